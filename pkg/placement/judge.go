// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// judgePlacement works out the report of a placement dry run. It counts sides;
// where the diagnostics are disabled there is none, and nothing is wrong.
func judgePlacement(w *checkup.Worksheet, record *checkup.Record, gate checkup.Gate) checkup.CheckReport {
	r := checkup.CheckReport{Name: w.Check, Kind: w.Kind, Notes: notes(w)}
	p := &checkup.PlacementReport{PlacementSheet: *w.Placement}
	if record != nil {
		p.Admissions = slices.Clone(record.Admissions)
		slices.SortStableFunc(p.Admissions, func(a, b checkup.Admission) int {
			return slices.Index(checkup.PlacementSides, a.Side) - slices.Index(checkup.PlacementSides, b.Side)
		})
	}
	p.Condition = Condition(p)
	r.Placement = p
	if len(p.Sides) == 0 && p.Mode == checkup.DiagnosticsDisabled {
		r.Verdict = checkup.RunPass
		r.Notes = append(r.Notes, fmt.Sprintf("the network diagnostics are disabled by %s: nothing is placed", p.Origin))
		return r
	}
	for i := range p.Sides {
		v, cause := judgeSide(p, &p.Sides[i])
		r.Counts = sum(r.Counts, counted(v))
		if v == checkup.Fail {
			r.Findings = append(r.Findings, placementFinding(&p.Sides[i], cause))
		}
	}
	r.Verdict = verdict(r.Counts, gate.MaxUnmeasured)
	return r
}

// judgeSide judges one side of a placement: the rules are in doc.go. What fails and
// what is unmeasured has a cause.
func judgeSide(p *checkup.PlacementReport, s *checkup.PlacementSide) (checkup.Verdict, checkup.Cause) {
	if s.Min != nil && len(s.Eligible) < *s.Min {
		return checkup.Fail, checkup.Cause{Stage: checkup.StageSchedule, Message: fmt.Sprintf("%d of %s can take a %s, and the plan demands %d", len(s.Eligible), count(p.Nodes, "node"), s.Side, *s.Min)}
	}
	a, cause := admission(p, s.Side)
	if cause != nil {
		return checkup.Unmeasured, *cause
	}
	if s.Min != nil && *s.Min > 0 && !a.Allowed {
		return checkup.Fail, checkup.Cause{Stage: checkup.StageSchedule, Message: "the API server does not admit the pod: " + or(a.Message, "it did not say why")}
	}
	if len(s.Unknown) > 0 {
		return checkup.Unmeasured, checkup.Cause{Stage: checkup.StageSetup, Message: "not all that decides could be looked at: " + strings.Join(s.Unknown, "; ")}
	}
	return checkup.Pass, checkup.Cause{}
}

// admission is the API server's decision on the pod of a side, or why there is
// none that could be believed.
func admission(p *checkup.PlacementReport, name checkup.PlacementSideName) (*checkup.Admission, *checkup.Cause) {
	var decided *checkup.Admission
	cause := &checkup.Cause{Stage: checkup.StageCollect, Message: "nothing was recorded of whether the API server admits the pod"}
	for i := range p.Admissions {
		switch a := &p.Admissions[i]; {
		case a.Side != name:
		case a.Cause != nil:
			cause = a.Cause
		case decided != nil && !reflect.DeepEqual(decided, a):
			return nil, &checkup.Cause{Stage: checkup.StageCollect, Message: "the API server answered differently when it was asked twice"}
		default:
			decided = a
		}
	}
	if decided != nil {
		return decided, nil
	}
	return nil, cause
}

// The condition that says whether there is a network diagnostics, with its
// reasons and messages, as OpenShift's network operator sets it.
const (
	availableType     = "NetworkDiagnosticsAvailable"
	reasonAsExpected  = "AsExpected"
	reasonNoSources   = "NoSources"
	reasonNoTargets   = "NoTargets"
	messageNoSources  = "No source pods available"
	messageNoTargets  = "No targets available"
	reasonNotComplete = "NotEvaluated" // ours: the operator never says that it does not know
)

// Condition works out NetworkDiagnosticsAvailable from the sides and admissions of
// a placement, as doc.go says; nil where it is disabled or has no source.
func Condition(p *checkup.PlacementReport) *checkup.Condition {
	of := func(name checkup.PlacementSideName) *checkup.PlacementSide {
		i := slices.IndexFunc(p.Sides, func(s checkup.PlacementSide) bool { return s.Side == name })
		if i < 0 {
			return nil
		}
		return &p.Sides[i]
	}
	// none says that there is no pod of a side, or why that is not known.
	none := func(s *checkup.PlacementSide) (bool, *checkup.Cause) {
		if len(s.Eligible) == 0 {
			return true, nil
		}
		a, cause := admission(p, s.Side)
		if cause != nil {
			return false, cause
		}
		if a.Allowed && len(s.Unknown) > 0 {
			return false, &checkup.Cause{Stage: checkup.StageSetup, Message: strings.Join(s.Unknown, "; ")}
		}
		return !a.Allowed, nil
	}
	source, target := of(checkup.SideSource), of(checkup.SideTarget)
	if p.Mode == checkup.DiagnosticsDisabled || source == nil {
		return nil
	}
	switch gone, cause := none(source); {
	case cause != nil:
		return &checkup.Condition{Type: availableType, Status: "Unknown", Reason: reasonNotComplete, Message: cause.Message}
	case gone:
		return &checkup.Condition{Type: availableType, Status: "False", Reason: reasonNoSources, Message: messageNoSources}
	}
	if target != nil && target.Min != nil && *target.Min > 0 {
		switch gone, cause := none(target); {
		case cause != nil:
			return &checkup.Condition{Type: availableType, Status: "Unknown", Reason: reasonNotComplete, Message: cause.Message}
		case gone:
			return &checkup.Condition{Type: availableType, Status: "False", Reason: reasonNoTargets, Message: messageNoTargets}
		}
	}
	return &checkup.Condition{Type: availableType, Status: "True", Reason: reasonAsExpected}
}

// placementFinding explains a side that fails.
func placementFinding(s *checkup.PlacementSide, cause checkup.Cause) checkup.Finding {
	f := checkup.Finding{Cause: checkup.CausePlacement, Subject: string(s.Side), Message: fmt.Sprintf("%s pods (%s): %s", s.Side, s.Workload, cause.Message), Explains: 1, OnlyThis: 1}
	for _, g := range s.Rejected {
		f.For = append(f.For, rejection(g))
	}
	for _, c := range s.Contradictions {
		f.For = append(f.For, "contradiction: "+c)
	}
	if len(s.Eligible) > 0 {
		f.Against = append(f.Against, fmt.Sprintf("%s: %s", can(len(s.Eligible)), some(s.Eligible, "node")))
	}
	return f
}

// can says how many nodes are eligible.
func can(n int) string {
	if n == 1 {
		return "1 node can take one"
	}
	return fmt.Sprintf("%d nodes can take one", n)
}

// rejection is a group of nodes with all their reasons, in one line.
func rejection(g checkup.NodeGroup) string {
	return fmt.Sprintf("%s (%s): %s", count(len(g.Nodes), "node"), some(g.Nodes, "node"), strings.Join(reasons(g), "; "))
}

// reasons of a group, each as it is told in full.
func reasons(g checkup.NodeGroup) []string {
	var list []string
	for _, r := range g.Reasons {
		list = append(list, or(r.Message, r.Scheduler))
	}
	return list
}
