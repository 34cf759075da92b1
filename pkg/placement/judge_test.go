// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// placed is a dry run on three nodes that the API server was asked about.
func placed() (*checkup.Worksheet, *checkup.Record) {
	w := &checkup.Worksheet{Plan: "day-2", Check: "where", Kind: checkup.KindPlacement, Placement: &checkup.PlacementSheet{
		Origin: "plan", Mode: checkup.DiagnosticsAll, Nodes: 3,
		Sides: []checkup.PlacementSide{
			{Side: checkup.SideSource, Workload: "Deployment", Pod: json.RawMessage(`{}`), Eligible: []string{"worker-1"}, Rejected: []checkup.NodeGroup{{
				Reasons: []checkup.NodeReason{
					{Predicate: "NodeAffinity", Scheduler: "didn't match Pod's node affinity/selector", Message: "has no label node-role.kubernetes.io/infra"},
					{Predicate: "TaintToleration", Scheduler: "had untolerated taint", Message: "taint dedicated=db:NoSchedule is not tolerated"},
				},
				Nodes: []string{"worker-2", "worker-3"},
			}}},
			{Side: checkup.SideTarget, Workload: "DaemonSet", Pod: json.RawMessage(`{}`), Eligible: []string{"worker-1", "worker-2", "worker-3"},
				Later: []checkup.NodeGroup{{Reasons: []checkup.NodeReason{{Predicate: "TaintToleration", Message: "taint drain=soon:NoExecute is tolerated for 60s"}}, Nodes: []string{"worker-3"}}}},
		},
	}}
	return w, &checkup.Record{Admissions: []checkup.Admission{
		{Side: checkup.SideTarget, Allowed: true},
		{Side: checkup.SideSource, Allowed: true, Warnings: []string{"would violate PodSecurity"}, Changed: []string{"priority 1000000000"}},
	}}
}

// none leaves a side without an eligible node.
func none(s *checkup.PlacementSide) {
	s.Eligible = nil
	s.Rejected = []checkup.NodeGroup{{Reasons: []checkup.NodeReason{{Predicate: "NodeAffinity", Scheduler: "didn't match Pod's node affinity/selector", Message: "has no label node-role.kubernetes.io/infra"}}, Nodes: []string{"worker-1", "worker-2", "worker-3"}}}
	s.Contradictions = []string{"node-role.kubernetes.io/infra is only on nodes with the taint dedicated=db:NoSchedule, which is not tolerated"}
}

// placementScenarios are reports of placements for testdata.
func placementScenarios(run Run) map[string]checkup.Report {
	plan := &checkup.Plan{Name: "where", Gate: checkup.Gate{Require: checkup.RequirePass}, Checks: map[string]checkup.Check{"where": {Placement: &checkup.PlacementCheck{}}}}
	judged := func(change func(*checkup.Worksheet, *checkup.Record)) checkup.Report {
		w, record := placed()
		change(w, record)
		return Join(plan, run, []checkup.CheckReport{Judge(w, nil, record, plan.Gate)}, nil)
	}
	return map[string]checkup.Report{
		"placement-pass": judged(func(*checkup.Worksheet, *checkup.Record) {}),
		"placement-none": judged(func(w *checkup.Worksheet, _ *checkup.Record) {
			none(&w.Placement.Sides[0])
			w.Placement.Sides[0].Min = ptr(1)
		}),
		"placement-unasked": judged(func(w *checkup.Worksheet, r *checkup.Record) {
			w.Placement.Sides[1].Unknown = []string{"resources: no right to list pods"}
			r.Admissions[1] = checkup.Admission{Side: checkup.SideSource, Cause: &checkup.Cause{Stage: checkup.StageCollect, Message: "the API server did not answer within 10s"}}
		}),
		"placement-disabled": judged(func(w *checkup.Worksheet, r *checkup.Record) {
			w.Placement = &checkup.PlacementSheet{Origin: "network.config.openshift.io/cluster", Mode: checkup.DiagnosticsDisabled, Nodes: 3}
			r.Admissions = nil
		}),
	}
}

func TestPlacement(t *testing.T) {
	const expected = "NetworkDiagnosticsAvailable True AsExpected "
	type change = func(*checkup.PlacementSheet, *checkup.Record)
	tests := []struct {
		name      string
		change    change
		verdict   checkup.RunVerdict
		source    checkup.Verdict
		target    checkup.Verdict
		cause     string // of the first side that does not pass
		condition string
	}{
		{"as expected", func(*checkup.PlacementSheet, *checkup.Record) {}, checkup.RunPass, checkup.Pass, checkup.Pass, "", expected},
		{"no source", func(p *checkup.PlacementSheet, _ *checkup.Record) { none(&p.Sides[0]) }, checkup.RunPass, checkup.Pass, checkup.Pass, "", "NetworkDiagnosticsAvailable False NoSources No source pods available"},
		{"no source, and one is demanded", func(p *checkup.PlacementSheet, _ *checkup.Record) { none(&p.Sides[0]); p.Sides[0].Min = ptr(1) },
			checkup.RunFail, checkup.Fail, checkup.Pass, "schedule: 0 of 3 nodes can take a source, and the plan demands 1", "NetworkDiagnosticsAvailable False NoSources No source pods available"},
		{"no source, demanded, and not asked", func(p *checkup.PlacementSheet, r *checkup.Record) {
			none(&p.Sides[0])
			p.Sides[0].Min = ptr(1)
			r.Admissions = r.Admissions[:1]
		}, checkup.RunFail, checkup.Fail, checkup.Pass, "schedule: 0 of 3 nodes can take a source, and the plan demands 1", "NetworkDiagnosticsAvailable False NoSources No source pods available"},
		{"source not admitted", func(_ *checkup.PlacementSheet, r *checkup.Record) {
			r.Admissions[1] = checkup.Admission{Side: checkup.SideSource, Message: "exceeded quota"}
		}, checkup.RunPass, checkup.Pass, checkup.Pass, "", "NetworkDiagnosticsAvailable False NoSources No source pods available"},
		{"source not admitted, and demanded", func(p *checkup.PlacementSheet, r *checkup.Record) {
			p.Sides[0].Min = ptr(1)
			r.Admissions[1] = checkup.Admission{Side: checkup.SideSource, Message: "exceeded quota"}
		}, checkup.RunFail, checkup.Fail, checkup.Pass, "schedule: the API server does not admit the pod: exceeded quota", "NetworkDiagnosticsAvailable False NoSources No source pods available"},
		{"source not admitted, and none demanded", func(p *checkup.PlacementSheet, r *checkup.Record) {
			p.Sides[0].Min = ptr(0)
			r.Admissions[1] = checkup.Admission{Side: checkup.SideSource, Message: "exceeded quota"}
		}, checkup.RunPass, checkup.Pass, checkup.Pass, "", "NetworkDiagnosticsAvailable False NoSources No source pods available"},
		{"source not asked", func(_ *checkup.PlacementSheet, r *checkup.Record) { r.Admissions = r.Admissions[:1] },
			checkup.RunInconclusive, checkup.Unmeasured, checkup.Pass, "collect: nothing was recorded of whether the API server admits the pod", "NetworkDiagnosticsAvailable Unknown NotEvaluated nothing was recorded of whether the API server admits the pod"},
		{"asked twice, differently", func(_ *checkup.PlacementSheet, r *checkup.Record) {
			r.Admissions = append(r.Admissions, checkup.Admission{Side: checkup.SideSource, Message: "no"})
		}, checkup.RunInconclusive, checkup.Unmeasured, checkup.Pass, "collect: the API server answered differently when it was asked twice", "NetworkDiagnosticsAvailable Unknown NotEvaluated the API server answered differently when it was asked twice"},
		{"asked again", func(_ *checkup.PlacementSheet, r *checkup.Record) {
			r.Admissions = append(r.Admissions, checkup.Admission{Side: checkup.SideTarget, Cause: &checkup.Cause{Stage: checkup.StageCollect, Message: "timed out"}})
		}, checkup.RunPass, checkup.Pass, checkup.Pass, "", expected},
		{"something unknown of the source", func(p *checkup.PlacementSheet, _ *checkup.Record) {
			p.Sides[0].Unknown = []string{"resources"}
		}, checkup.RunInconclusive, checkup.Unmeasured, checkup.Pass, "setup: not all that decides could be looked at: resources", "NetworkDiagnosticsAvailable Unknown NotEvaluated resources"},
		{"no target", func(p *checkup.PlacementSheet, _ *checkup.Record) { none(&p.Sides[1]) }, checkup.RunPass, checkup.Pass, checkup.Pass, "", expected},
		{"no target, and one is demanded", func(p *checkup.PlacementSheet, _ *checkup.Record) { none(&p.Sides[1]); p.Sides[1].Min = ptr(1) },
			checkup.RunFail, checkup.Pass, checkup.Fail, "schedule: 0 of 3 nodes can take a target, and the plan demands 1", "NetworkDiagnosticsAvailable False NoTargets No targets available"},
		{"fewer targets than demanded", func(p *checkup.PlacementSheet, _ *checkup.Record) { p.Sides[1].Min = ptr(4) },
			checkup.RunFail, checkup.Pass, checkup.Fail, "schedule: 3 of 3 nodes can take a target, and the plan demands 4", expected},
		{"target not asked", func(p *checkup.PlacementSheet, r *checkup.Record) { r.Admissions = r.Admissions[1:] },
			checkup.RunInconclusive, checkup.Pass, checkup.Unmeasured, "collect: nothing was recorded of whether the API server admits the pod", expected},
		{"target demanded, and not asked", func(p *checkup.PlacementSheet, r *checkup.Record) {
			p.Sides[1].Min = ptr(1)
			r.Admissions = r.Admissions[1:]
		}, checkup.RunInconclusive, checkup.Pass, checkup.Unmeasured, "collect: nothing was recorded of whether the API server admits the pod", "NetworkDiagnosticsAvailable Unknown NotEvaluated nothing was recorded of whether the API server admits the pod"},
		{"neither source nor target", func(p *checkup.PlacementSheet, _ *checkup.Record) {
			none(&p.Sides[0])
			none(&p.Sides[1])
			p.Sides[1].Min = ptr(1)
		}, checkup.RunFail, checkup.Pass, checkup.Fail, "schedule: 0 of 3 nodes can take a target, and the plan demands 1", "NetworkDiagnosticsAvailable False NoSources No source pods available"},
	}
	seen := map[string]bool{}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w, record := placed()
			test.change(w.Placement, record)
			r := Judge(w, nil, record, checkup.Gate{})
			cause := ""
			var verdicts []checkup.Verdict
			for i := range r.Placement.Sides {
				v, why := judgeSide(r.Placement, &r.Placement.Sides[i])
				verdicts = append(verdicts, v)
				if v != checkup.Pass && cause == "" {
					cause = why.String()
				}
			}
			if r.Verdict != test.verdict || cause != test.cause || !cmp.Equal(verdicts, []checkup.Verdict{test.source, test.target}) {
				t.Errorf("got %s, %v, %q\nwant %s, [%s %s], %q", r.Verdict, verdicts, cause, test.verdict, test.source, test.target, test.cause)
			}
			c := r.Placement.Condition
			if got := fmt.Sprintf("%s %s %s %s", c.Type, c.Status, c.Reason, c.Message); got != test.condition {
				t.Errorf("condition %q, want %q", got, test.condition)
			}
			seen[c.Reason] = true
			if r.Counts.Expected != 2 || len(r.Findings) != r.Counts.Fail {
				t.Errorf("%+v, %d findings", r.Counts, len(r.Findings))
			}
			for _, f := range r.Findings {
				if f.Cause != checkup.CausePlacement || f.Explains != 1 {
					t.Errorf("finding %+v", f)
				}
			}
		})
	}
	for _, reason := range []string{reasonAsExpected, reasonNoSources, reasonNoTargets, reasonNotComplete} {
		if !seen[reason] {
			t.Errorf("no case has the reason %s", reason)
		}
	}
}

// TestPlacementWithoutSides: where the diagnostics are disabled nothing is wrong,
// and where there is nothing else, nothing was measured.
func TestPlacementWithoutSides(t *testing.T) {
	w, _ := placed()
	w.Placement.Sides, w.Placement.Mode = nil, checkup.DiagnosticsDisabled
	r := Judge(w, nil, nil, checkup.Gate{})
	if r.Verdict != checkup.RunPass || r.Counts.Expected != 0 || r.Placement.Condition != nil || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "disabled by plan") {
		t.Errorf("disabled: %+v", r)
	}
	w.Placement.Mode = checkup.DiagnosticsAll
	if r := Judge(w, nil, nil, checkup.Gate{}); r.Verdict != checkup.RunInconclusive || r.Placement.Condition != nil {
		t.Errorf("nothing: %+v", r)
	}
	w, _ = placed()
	if r := Judge(w, nil, nil, checkup.Gate{}); r.Verdict != checkup.RunInconclusive || r.Counts.Unmeasured != 2 {
		t.Errorf("no record: %+v", r.Counts)
	}
}

func TestScore(t *testing.T) {
	pairs := checkup.CheckReport{Name: "mesh", Verdict: checkup.RunPass, Counts: checkup.Counts{Expected: 3, Pass: 3}}
	w, record := placed()
	where := Judge(w, nil, record, checkup.Gate{})
	w.Placement.Sides, w.Placement.Mode = nil, checkup.DiagnosticsDisabled
	disabled := Judge(w, nil, nil, checkup.Gate{})
	for _, test := range []struct {
		checks []checkup.CheckReport
		want   string
	}{
		{nil, "no pair was to be measured"},
		{[]checkup.CheckReport{where}, "2 of 2 placements passed, 0 failed, 0 unmeasured"},
		{[]checkup.CheckReport{where, pairs}, "3 of 3 pairs passed, 0 failed, 0 unmeasured; 2 of 2 placements passed, 0 failed, 0 unmeasured"},
		{[]checkup.CheckReport{disabled}, "nothing was to be placed"},
		{[]checkup.CheckReport{disabled, pairs}, "3 of 3 pairs passed, 0 failed, 0 unmeasured"},
	} {
		if got := score(&checkup.Report{Checks: test.checks}); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}
