// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/scheduling"
)

func ptr[T any](v T) *T { return &v }

// answers of the API server, in the order in which they came.
type answers struct{ Admissions []asked }

// judgeSheet is the report of a dry run with these answers.
func judgeSheet(t *testing.T, sheet *Sheet, given *answers) checkup.CheckReport {
	t.Helper()
	w := &checkup.Worksheet{Plan: "day-2", Check: "where", Kind: Name}
	if err := sheet.Put(w); err != nil {
		t.Fatal(err)
	}
	if given == nil {
		return Judge(w, nil, nil, checkup.Gate{})
	}
	record := &checkup.Record{}
	for _, a := range given.Admissions {
		record.Facts = append(record.Facts, a.fact())
	}
	return Judge(w, nil, record, checkup.Gate{})
}

// placed is a dry run on three nodes that the API server was asked about.
func placed() (*Sheet, *answers) {
	sheet := &Sheet{
		Origin: "plan", Mode: cluster.DiagnosticsAll, Nodes: 3,
		Sides: []Side{
			{Side: SideSource, Workload: "Deployment", Pod: json.RawMessage(`{}`), Eligible: []string{"worker-1"}, Rejected: []scheduling.NodeGroup{{
				Reasons: []scheduling.NodeReason{
					{Predicate: "NodeAffinity", Scheduler: "didn't match Pod's node affinity/selector", Message: "has no label node-role.kubernetes.io/infra"},
					{Predicate: "TaintToleration", Scheduler: "had untolerated taint", Message: "taint dedicated=db:NoSchedule is not tolerated"},
				},
				Nodes: []string{"worker-2", "worker-3"},
			}}},
			{Side: SideTarget, Workload: "DaemonSet", Pod: json.RawMessage(`{}`), Eligible: []string{"worker-1", "worker-2", "worker-3"},
				Later: []scheduling.NodeGroup{{Reasons: []scheduling.NodeReason{{Predicate: "TaintToleration", Message: "taint drain=soon:NoExecute is tolerated for 60s"}}, Nodes: []string{"worker-3"}}}},
		},
	}
	return sheet, &answers{Admissions: []asked{
		{Side: SideTarget, Admission: Admission{Allowed: true}},
		{Side: SideSource, Admission: Admission{Allowed: true, Warnings: []string{"would violate PodSecurity"}, Changed: []string{"priority 1000000000"}}},
	}}
}

// none leaves a side without an eligible node.
func none(s *Side) {
	s.Eligible = nil
	s.Rejected = []scheduling.NodeGroup{{Reasons: []scheduling.NodeReason{{Predicate: "NodeAffinity", Scheduler: "didn't match Pod's node affinity/selector", Message: "has no label node-role.kubernetes.io/infra"}}, Nodes: []string{"worker-1", "worker-2", "worker-3"}}}
	s.Contradictions = []string{"node-role.kubernetes.io/infra is only on nodes with the taint dedicated=db:NoSchedule, which is not tolerated"}
}

func TestPlacement(t *testing.T) {
	const expected = "NetworkDiagnosticsAvailable True AsExpected "
	type change = func(*Sheet, *answers)
	tests := []struct {
		name      string
		change    change
		verdict   checkup.RunVerdict
		source    checkup.Verdict
		target    checkup.Verdict
		cause     string // of the first side that does not pass
		condition string
	}{
		{"as expected", func(*Sheet, *answers) {}, checkup.RunPass, checkup.Pass, checkup.Pass, "", expected},
		{"no source", func(p *Sheet, _ *answers) { none(&p.Sides[0]) }, checkup.RunPass, checkup.Pass, checkup.Pass, "", "NetworkDiagnosticsAvailable False NoSources No source pods available"},
		{"no source, and one is demanded", func(p *Sheet, _ *answers) { none(&p.Sides[0]); p.Sides[0].Min = ptr(1) },
			checkup.RunFail, checkup.Fail, checkup.Pass, "schedule: 0 of 3 nodes can take a source: the plan demands 1", "NetworkDiagnosticsAvailable False NoSources No source pods available"},
		{"no source, demanded, and not asked", func(p *Sheet, r *answers) {
			none(&p.Sides[0])
			p.Sides[0].Min = ptr(1)
			r.Admissions = r.Admissions[:1]
		}, checkup.RunFail, checkup.Fail, checkup.Pass, "schedule: 0 of 3 nodes can take a source: the plan demands 1", "NetworkDiagnosticsAvailable False NoSources No source pods available"},
		{"source not admitted", func(_ *Sheet, r *answers) {
			r.Admissions[1] = asked{Side: SideSource, Admission: Admission{Message: "exceeded quota"}}
		}, checkup.RunPass, checkup.Pass, checkup.Pass, "", "NetworkDiagnosticsAvailable False NoSources No source pods available"},
		{"source not admitted, and demanded", func(p *Sheet, r *answers) {
			p.Sides[0].Min = ptr(1)
			r.Admissions[1] = asked{Side: SideSource, Admission: Admission{Message: "exceeded quota"}}
		}, checkup.RunFail, checkup.Fail, checkup.Pass, "schedule: the API server does not admit the pod: exceeded quota", "NetworkDiagnosticsAvailable False NoSources No source pods available"},
		{"source not admitted, and none demanded", func(p *Sheet, r *answers) {
			p.Sides[0].Min = ptr(0)
			r.Admissions[1] = asked{Side: SideSource, Admission: Admission{Message: "exceeded quota"}}
		}, checkup.RunPass, checkup.Pass, checkup.Pass, "", "NetworkDiagnosticsAvailable False NoSources No source pods available"},
		{"source not asked", func(_ *Sheet, r *answers) { r.Admissions = r.Admissions[:1] },
			checkup.RunInconclusive, checkup.Unmeasured, checkup.Pass, "collect: the task recorded no answer of the API server about the pod", "NetworkDiagnosticsAvailable Unknown NotEvaluated the task recorded no answer of the API server about the pod"},
		{"asked twice, differently", func(_ *Sheet, r *answers) {
			r.Admissions = append(r.Admissions, asked{Side: SideSource, Admission: Admission{Message: "no"}})
		}, checkup.RunInconclusive, checkup.Unmeasured, checkup.Pass, "collect: the API server gave two different answers", "NetworkDiagnosticsAvailable Unknown NotEvaluated the API server gave two different answers"},
		{"asked again", func(_ *Sheet, r *answers) {
			r.Admissions = append(r.Admissions, asked{Side: SideTarget, Cause: &checkup.Cause{Stage: checkup.StageCollect, Message: "timed out"}})
		}, checkup.RunPass, checkup.Pass, checkup.Pass, "", expected},
		{"something unknown of the source", func(p *Sheet, _ *answers) {
			p.Sides[0].Unknown = []string{"resources"}
		}, checkup.RunInconclusive, checkup.Unmeasured, checkup.Pass, "setup: some predicates could not be evaluated: resources", "NetworkDiagnosticsAvailable Unknown NotEvaluated resources"},
		{"no target", func(p *Sheet, _ *answers) { none(&p.Sides[1]) }, checkup.RunPass, checkup.Pass, checkup.Pass, "", expected},
		{"no target, and one is demanded", func(p *Sheet, _ *answers) { none(&p.Sides[1]); p.Sides[1].Min = ptr(1) },
			checkup.RunFail, checkup.Pass, checkup.Fail, "schedule: 0 of 3 nodes can take a target: the plan demands 1", expected},
		{"fewer targets than demanded", func(p *Sheet, _ *answers) { p.Sides[1].Min = ptr(4) },
			checkup.RunFail, checkup.Pass, checkup.Fail, "schedule: 3 of 3 nodes can take a target: the plan demands 4", expected},
		{"target not asked", func(p *Sheet, r *answers) { r.Admissions = r.Admissions[1:] },
			checkup.RunInconclusive, checkup.Pass, checkup.Unmeasured, "collect: the task recorded no answer of the API server about the pod", expected},
		{"target demanded, and not asked", func(p *Sheet, r *answers) {
			p.Sides[1].Min = ptr(1)
			r.Admissions = r.Admissions[1:]
		}, checkup.RunInconclusive, checkup.Pass, checkup.Unmeasured, "collect: the task recorded no answer of the API server about the pod", expected},
		{"neither source nor target", func(p *Sheet, _ *answers) {
			none(&p.Sides[0])
			none(&p.Sides[1])
			p.Sides[1].Min = ptr(1)
		}, checkup.RunFail, checkup.Pass, checkup.Fail, "schedule: 0 of 3 nodes can take a target: the plan demands 1", "NetworkDiagnosticsAvailable False NoSources No source pods available"},
	}
	seen := map[string]bool{}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			sheet, given := placed()
			test.change(sheet, given)
			r := judgeSheet(t, sheet, given)
			cause := ""
			var verdicts []checkup.Verdict
			for i, u := range r.Units {
				if u.Name != string(Sides[i]) || (u.Cause == nil) != (u.Verdict == checkup.Pass) || len(u.Values) != 2 {
					t.Errorf("unit %+v", u)
				}
				verdicts = append(verdicts, u.Verdict)
				if u.Cause != nil && cause == "" {
					cause = u.Cause.String()
				}
			}
			if r.Verdict != test.verdict || cause != test.cause || !cmp.Equal(verdicts, []checkup.Verdict{test.source, test.target}) {
				t.Errorf("got %s, %v, %q\nwant %s, [%s %s], %q", r.Verdict, verdicts, cause, test.verdict, test.source, test.target, test.cause)
			}
			if len(r.Conditions) != 1 {
				t.Fatalf("conditions %+v, want 1", r.Conditions)
			}
			c := r.Conditions[0]
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
	for _, reason := range []string{reasonAsExpected, reasonNoSources, reasonNotComplete} {
		if !seen[reason] {
			t.Errorf("no case has the reason %s", reason)
		}
	}
}

// TestPlacementWithoutSides: where the diagnostics are disabled nothing is wrong, but no source runs, as the operator
// reports; and where there is nothing else, nothing was measured.
func TestPlacementWithoutSides(t *testing.T) {
	sheet, _ := placed()
	sheet.Sides, sheet.Mode = nil, cluster.DiagnosticsDisabled
	r := judgeSheet(t, sheet, nil)
	if r.Verdict != checkup.RunPass || r.Counts.Expected != 0 || len(r.Conditions) != 1 || r.Conditions[0] != (checkup.Condition{Type: "NetworkDiagnosticsAvailable", Status: "False", Reason: "NoSources", Message: "No source pods available"}) || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "plan disables the network diagnostics") {
		t.Errorf("disabled: %+v", r)
	}
	sheet.Mode = cluster.DiagnosticsAll
	if r := judgeSheet(t, sheet, nil); r.Verdict != checkup.RunInconclusive || r.Conditions != nil {
		t.Errorf("nothing: %+v", r)
	}
	sheet, _ = placed()
	if r := judgeSheet(t, sheet, nil); r.Verdict != checkup.RunInconclusive || r.Counts.Unmeasured != 2 {
		t.Errorf("no record: %+v", r.Counts)
	}
	if c := sheet.Predicted(); c == nil || c.Status != "True" {
		t.Errorf("predicted %+v, want True", c)
	}
	if r := Judge(&checkup.Worksheet{Details: []byte("{")}, nil, nil, checkup.Gate{}); r.Verdict != checkup.RunInconclusive || r.Cause == nil {
		t.Errorf("unreadable: %+v", r)
	}
}

// TestBlocks: what the block of a dry run says, line by line.
func TestBlocks(t *testing.T) {
	sheet, given := placed()
	none(&sheet.Sides[0])
	sheet.Sides[0].Min = ptr(1)
	sheet.Sides[1].Unknown = []string{"resources: no right to list pods"}
	r := judgeSheet(t, sheet, given)
	var got []string
	var add func(indent string, items []checkup.Item)
	add = func(indent string, items []checkup.Item) {
		for _, i := range items {
			got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s", i.Verdict, i.Name, i.Text)))
			got[len(got)-1] = indent + got[len(got)-1]
			add(indent+"  ", i.Items)
		}
	}
	for _, b := range r.Blocks {
		if b.List == nil {
			got = append(got, b.Title+": "+b.Note)
			continue
		}
		add("", b.List.Items)
	}
	want := []string{
		"Placement: from plan; mode All; 3 nodes examined",
		"fail source 0 of 3 nodes eligible, at least 1 demanded",
		"  schedule: 0 of 3 nodes can take a source: the plan demands 1",
		"  no node takes the pods of the Deployment",
		"  not on worker-1, worker-2, worker-3: has no label node-role.kubernetes.io/infra",
		"  contradiction: node-role.kubernetes.io/infra is only on nodes with the taint dedicated=db:NoSchedule, which is not tolerated",
		"  the API server admits the pod",
		"  warning: would violate PodSecurity",
		"  changed at admission: priority 1000000000",
		"unmeasured target 3 of 3 nodes eligible",
		"  setup: some predicates could not be evaluated: resources: no right to list pods",
		"  the DaemonSet has a pod on worker-1, worker-2, worker-3",
		"  evicted later from worker-3: taint drain=soon:NoExecute is tolerated for 60s",
		"  unknown: resources: no right to list pods",
		"  the API server admits the pod",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("blocks (-want +got):\n%s", diff)
	}
}
