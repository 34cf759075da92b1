// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/judge"
)

// noun is what the check counts.
const noun = "placement"

// Judge returns the report of a dry run; doc.go has the rules. Its units are the
// sides. If the diagnostics are disabled it has no units, and the check passes.
//
// It is pure. It does not use the roster; a nil record has no facts.
func Judge(w *checkup.Worksheet, _ *checkup.Roster, record *checkup.Record, gate checkup.Gate) checkup.CheckReport {
	sheet, err := SheetOf(w)
	if err != nil {
		return judge.NotMeasured(w.Check, w.Kind, checkup.Cause{Stage: checkup.StageSetup, Message: err.Error()})
	}
	d := &trial{Sheet: sheet, answers: answersOf(record)}
	r := checkup.CheckReport{
		Name: w.Check, Kind: w.Kind, Noun: noun, Complete: true, Notes: slices.Clone(w.Warnings),
		Blocks: d.blocks(), BlocksListUnits: true,
	}
	if c := d.condition(); c != nil {
		r.Conditions = []checkup.Condition{*c}
	}
	if len(d.Sides) == 0 && d.Mode == cluster.DiagnosticsDisabled {
		r.Verdict = checkup.RunPass
		r.Notes = append(r.Notes, fmt.Sprintf("%s disables the network diagnostics: nothing is placed", d.Origin))
		return r
	}
	for i := range d.Sides {
		u := d.unit(&d.Sides[i])
		r.Units = append(r.Units, u)
		r.Counts = judge.Sum(r.Counts, judge.Counted(u.Verdict))
		if u.Verdict == checkup.Fail {
			r.Findings = append(r.Findings, finding(&d.Sides[i], *u.Cause))
		}
	}
	r.Verdict = judge.Verdict(r.Counts, gate.MaxUnmeasured)
	return r
}

// trial is a sheet with the API server's answers about its sides.
type trial struct {
	*Sheet
	answers map[SideName][]answer
}

// answer of the API server about a side, or why it is missing.
type answer struct {
	Admission
	cause *checkup.Cause
}

// answersOf a record, by side, in the order of its facts.
func answersOf(record *checkup.Record) map[SideName][]answer {
	answers := map[SideName][]answer{}
	if record == nil {
		return answers
	}
	for _, fact := range record.Facts {
		a := answer{cause: fact.Cause}
		if a.cause == nil {
			if err := json.Unmarshal(fact.Content, &a.Admission); err != nil {
				a = answer{cause: undecided("cannot read the recorded answer of the API server: %v", err)}
			}
		}
		answers[SideName(fact.Unit)] = append(answers[SideName(fact.Unit)], a)
	}
	return answers
}

// unit is a side with its verdict.
func (d *trial) unit(s *Side) checkup.Unit {
	u := checkup.Unit{
		Name: string(s.Side), Labels: map[string]string{"workload": s.Workload},
		Values: []checkup.Value{
			{Name: "eligible_nodes", Value: float64(len(s.Eligible)), Measure: checkup.MeasureCount},
			{Name: "rejected_nodes", Value: float64(max(0, d.Nodes-len(s.Eligible))), Measure: checkup.MeasureCount},
		},
	}
	u.Verdict, u.Cause = d.judge(s)
	return u
}

// judge judges one side. What failed or was not measured has a cause.
func (d *trial) judge(s *Side) (checkup.Verdict, *checkup.Cause) {
	because := func(stage checkup.Stage, format string, args ...any) *checkup.Cause {
		return &checkup.Cause{Stage: stage, Message: fmt.Sprintf(format, args...)}
	}
	if s.Min != nil && len(s.Eligible) < *s.Min {
		return checkup.Fail, because(checkup.StageSchedule, "%d of %s can take a %s: the plan demands %d",
			len(s.Eligible), checkup.Count(d.Nodes, "node"), s.Side, *s.Min)
	}
	a, cause := d.admission(s.Side)
	switch {
	case cause != nil:
		return checkup.Unmeasured, cause
	case s.Min != nil && *s.Min > 0 && !a.Allowed:
		return checkup.Fail, because(
			checkup.StageSchedule,
			"the API server does not admit the pod: %s",
			cmp.Or(a.Message, "it gave no reason"),
		)
	case len(s.Unknown) > 0:
		return checkup.Unmeasured, because(
			checkup.StageSetup,
			"some predicates could not be evaluated: %s",
			strings.Join(s.Unknown, "; "),
		)
	}
	return checkup.Pass, nil
}

// admission is the API server's decision on the pod of a side, or why a credible one
// is missing.
func (d *trial) admission(side SideName) (*Admission, *checkup.Cause) {
	var decided *answer
	cause := &checkup.Cause{
		Stage:   checkup.StageCollect,
		Message: "the task recorded no answer of the API server about the pod",
	}
	for i := range d.answers[side] {
		switch a := &d.answers[side][i]; {
		case a.cause != nil:
			cause = a.cause
		case decided != nil && !reflect.DeepEqual(decided, a):
			return nil, &checkup.Cause{
				Stage: checkup.StageCollect, Reason: checkup.ReasonConflict, Message: "the API server gave two different answers",
			}
		default:
			decided = a
		}
	}
	if decided != nil {
		return &decided.Admission, nil
	}
	return nil, cause
}

// The condition that reports whether network diagnostics are available, with its
// reasons and messages, as OpenShift's network operator sets it.
const (
	availableType     = "NetworkDiagnosticsAvailable"
	reasonAsExpected  = "AsExpected"
	reasonNoSources   = "NoSources"
	messageNoSources  = "No source pods available"
	reasonNotComplete = "NotEvaluated" // ours: the operator has no reason for an unknown status
)

// Predicted is the condition NetworkDiagnosticsAvailable as it would be if the API
// server admitted every pod; nil if there is no source although the diagnostics are enabled.
func (s *Sheet) Predicted() *checkup.Condition {
	d := &trial{Sheet: s, answers: map[SideName][]answer{}}
	for i := range s.Sides {
		d.answers[s.Sides[i].Side] = []answer{{Admission: Admission{Allowed: true}}}
	}
	return d.condition()
}

// condition is NetworkDiagnosticsAvailable, as doc.go says; nil if the diagnostics are enabled and have no source.
func (d *trial) condition() *checkup.Condition {
	is := func(status, reason, message string) *checkup.Condition {
		return &checkup.Condition{Type: availableType, Status: status, Reason: reason, Message: message}
	}
	if d.Mode == cluster.DiagnosticsDisabled {
		return is("False", reasonNoSources, messageNoSources)
	}
	i := slices.IndexFunc(d.Sides, func(s Side) bool { return s.Side == SideSource })
	if i < 0 {
		return nil
	}
	source := &d.Sides[i]
	if len(source.Eligible) == 0 {
		return is("False", reasonNoSources, messageNoSources)
	}
	switch a, cause := d.admission(SideSource); {
	case cause != nil:
		return is("Unknown", reasonNotComplete, cause.Message)
	case !a.Allowed:
		return is("False", reasonNoSources, messageNoSources)
	case len(source.Unknown) > 0:
		return is("Unknown", reasonNotComplete, strings.Join(source.Unknown, "; "))
	}
	return is("True", reasonAsExpected, "")
}

// finding explains a side that fails.
func finding(s *Side, cause checkup.Cause) checkup.Finding {
	f := checkup.Finding{
		Cause: checkup.CausePlacement, Subject: string(s.Side), Explains: 1, OnlyThis: 1,
		Message: fmt.Sprintf("%s pods (%s): %s", s.Side, s.Workload, cause.Message),
	}
	for _, g := range s.Rejected {
		f.For = append(f.For, fmt.Sprintf("%s (%s): %s",
			checkup.Count(len(g.Nodes), "node"), checkup.SomeOf(g.Nodes, "node"), strings.Join(reasons(g), "; ")))
	}
	for _, c := range s.Contradictions {
		f.For = append(f.For, "contradiction: "+c)
	}
	if n := len(s.Eligible); n > 0 {
		f.Against = append(
			f.Against,
			fmt.Sprintf("%s can take one: %s", checkup.Count(n, "node"), checkup.SomeOf(s.Eligible, "node")),
		)
	}
	return f
}
