// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
)

// Judge returns the report of a services check. Its units are the pairs that failed or were not measured.
//
// It is pure. A nil roster or record means that nothing was set up or collected.
func Judge(
	w *checkup.Worksheet, roster *checkup.Roster, record *checkup.Record, gate checkup.Gate,
) checkup.CheckReport {
	sheet, err := SheetOf(w)
	if err != nil {
		return judge.NotMeasured(w.Check, w.Kind, checkup.Cause{Stage: checkup.StageSetup, Message: err.Error()})
	}
	j := pairs(w, sheet, roster, record, gate)
	Merge(j, w, record, func(next *checkup.Worksheet, record *checkup.Record) *judge.Judgement {
		return pairs(next, sheet, roster, record, gate)
	})
	Excuse(j, record, func(o *judge.Outcome, changed map[int]bool) bool { return changed[o.Pair.Target] })
	r := j.Report(gate)
	r.Units = j.Troubled()
	for i := range r.Units {
		label(&r.Units[i], w, sheet)
	}
	connect := *j
	connect.Outcomes = slices.DeleteFunc(slices.Clone(j.Outcomes), func(o judge.Outcome) bool {
		return sheet.Expects(w, o.Pair) != Works
	})
	r.Delays = connect.DelayRows()
	r.Matrix = j.Matrix()
	r.Findings = findings(j, sheet)
	r.Blocks = blocks(j, sheet)
	judge.Confirm(&r, gate)
	return r
}

// Merge adds to the judgement of the first look what the further looks of a record show; pairs judges one look. A nil
// record has none.
func Merge(
	j *judge.Judgement, w *checkup.Worksheet, record *checkup.Record,
	pairs func(*checkup.Worksheet, *checkup.Record) *judge.Judgement,
) {
	if record == nil {
		return
	}
	for i := range record.Looks {
		look := &record.Looks[i]
		next := *w
		next.Look, next.Again = max(look.Worksheet.Look, 1), look.Worksheet.Again
		if next.Again == nil {
			next.Again = []checkup.Again{}
		}
		j.Merge(pairs(&next, &look.Record), look.After)
	}
}

// pairs judges the pairs of one look.
func pairs(
	w *checkup.Worksheet, sheet *Sheet, roster *checkup.Roster, record *checkup.Record, gate checkup.Gate,
) *judge.Judgement {
	j := judge.Pairs(w, roster, record, judge.Rules{LooksAgain: gate.Confirm})
	for i := range j.Outcomes {
		o := &j.Outcomes[i]
		if e := sheet.Expects(w, o.Pair); e != Works && o.Verdict != checkup.Unmeasured {
			MustNotConnect(w, o, e, sheet.Closed)
		}
	}
	return j
}

// synAgain is after how long Linux sends a SYN again (TCP_TIMEOUT_INIT, RFC 6298). A refusal of the first one may be
// lost: if the agent's own node refuses, its ICMP error arrives while connect still holds the lock of the socket, and
// the kernel drops it (TcpExtLockDroppedIcmps).
const synAgain = checkup.Duration(time.Second)

// MustNotConnect judges a measured pair that must not connect.
func MustNotConnect(w *checkup.Worksheet, o *judge.Outcome, e Expectation, how Closed) {
	seen, ordered := o.Cause, w.Measurements(o.Pair)
	probe, _ := w.Probe(o.Pair.Transport)
	o.Verdict, o.Cause, o.Breaches, o.Failure, o.Dead = checkup.Pass, checkup.Cause{}, nil, 0, nil
	fail := func(failure judge.Failure, reason checkup.Reason, format string, args ...any) {
		o.Verdict, o.Failure = checkup.Fail, failure
		o.Cause = checkup.Cause{Stage: checkup.StageConnect, Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	must, otherwise := "must be refused, because the Service has no endpoint", seen.Reason != checkup.ReasonRefused
	if e == Dropped {
		must = "must be dropped, because the Service has no endpoint on this node"
		otherwise = seen.Reason != checkup.ReasonTimedOut
	}
	switch {
	case o.Received > 0:
		fail(judge.Reached, checkup.ReasonReached, "%s, but %d of %d connected", must, o.Received, o.Sent)
		o.Breaches = []checkup.Breach{{
			Limit: checkup.LimitUnreachable, Measured: float64(o.Received), Measure: checkup.MeasureCount,
		}}
	case o.Sent < ordered:
		o.Verdict = checkup.Unmeasured
		o.Cause = checkup.Cause{Stage: checkup.StageCollect, Message: fmt.Sprintf(
			"only %d of %d measurements were made: too few to pass", o.Sent, ordered)}
	case how == ClosedExact && e == Refused && seen.Reason == checkup.ReasonTimedOut && probe.Timeout <= synAgain:
		o.Verdict = checkup.Unmeasured
		o.Cause = checkup.Cause{Stage: checkup.StageConnect, Reason: seen.Reason, Message: fmt.Sprintf(
			"timed out after %s: too soon to see a refusal, which may come only after the second SYN, at %s: raise probe.timeout",
			probe.Timeout, synAgain)}
	case how == ClosedExact && otherwise:
		fail(judge.Lost, seen.Reason, "%s, but %s", must, cmp.Or(seen.Message, "another error"))
	}
}

// Excuse makes the pairs unmeasured that did not pass, and of which something changed since setup, or nobody knows
// whether it did. excused decides by what AskAgain recorded as changed.
func Excuse(j *judge.Judgement, record *checkup.Record, excused func(o *judge.Outcome, changed map[int]bool) bool) {
	changed, why := changedSince(record)
	ExcuseBy(j, func(o *judge.Outcome) *checkup.Cause {
		if why == nil && excused(o, changed) {
			return &Changed
		}
		return why
	})
}

// Changed is the cause of a pair that is unmeasured because its Service changed.
var Changed = checkup.Cause{
	Stage: checkup.StageCollect, Reason: checkup.ReasonChanged,
	Message: "changed during the run: the Service or its endpoints are not what they were at setup",
}

// ExcuseBy makes the pairs unmeasured that did not pass, and of which excused returns a cause that is not nil.
func ExcuseBy(j *judge.Judgement, excused func(o *judge.Outcome) *checkup.Cause) {
	for i := range j.Outcomes {
		o := &j.Outcomes[i]
		if o.Verdict != checkup.Fail && o.Verdict != checkup.Undecided {
			continue
		}
		if why := excused(o); why != nil {
			cause := *why
			cause.Message += "; measured: " + o.Cause.Message
			o.Verdict, o.Cause, o.Breaches, o.Failure, o.Look = checkup.Unmeasured, cause, nil, 0, nil
		}
	}
}

// Labels of units.
const (
	labelService = "service"
	labelPort    = "port"
	labelKind    = "kind"
)

// label adds what a unit's target is.
func label(u *checkup.Unit, w *checkup.Worksheet, sheet *Sheet) {
	i := slices.IndexFunc(w.Targets, func(e checkup.Endpoint) bool { return e.Name() == u.Target })
	if i < 0 || w.Targets[i].Peer == nil {
		return
	}
	t := sheet.Targets[i]
	u.Labels = map[string]string{
		checkup.UnitAddress: w.Targets[i].Peer.Address(), labelService: t.Service, labelKind: string(t.Address),
		checkup.UnitSourceNode: u.Source,
	}
	if t.Port != "" {
		u.Labels[labelPort] = t.Port
	}
}

// blocks say how the Services do of which not all pairs passed, the worst first, and what was expected of all.
func blocks(j *judge.Judgement, sheet *Sheet) []checkup.Block {
	counts := map[string]checkup.Counts{}
	expected := map[Expectation]int{}
	for i := range j.Outcomes {
		o := &j.Outcomes[i]
		service := sheet.Service(o.Pair.Target)
		counts[service] = judge.Sum(counts[service], judge.Counted(o.Verdict))
		expected[sheet.Expects(j.Worksheet, o.Pair)]++
	}
	var troubled []string
	for service, c := range counts {
		if c.Pass < c.Expected {
			troubled = append(troubled, service)
		}
	}
	slices.SortFunc(troubled, func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b].Fail, counts[a].Fail), cmp.Compare(counts[b].Unmeasured, counts[a].Unmeasured),
			cmp.Compare(a, b))
	})
	title := fmt.Sprintf("Services (%d)", len(counts))
	var all []checkup.Block
	if len(troubled) > 0 {
		table := &checkup.Table{Noun: "Service", Columns: []checkup.Column{
			{Name: "Service"}, {Name: "pairs", Measure: checkup.MeasureCount}, {Name: "pass", Measure: checkup.MeasureCount},
			{Name: "fail", Measure: checkup.MeasureCount}, {Name: "undecided", Measure: checkup.MeasureCount},
			{Name: "unmeasured", Measure: checkup.MeasureCount},
		}}
		for _, service := range troubled {
			c := counts[service]
			table.Rows = append(table.Rows, []checkup.Cell{
				checkup.Text(service), checkup.Number(c.Expected), checkup.Number(c.Pass), checkup.Number(c.Fail),
				checkup.Number(c.Undecided), checkup.Number(c.Unmeasured),
			})
		}
		all, title = append(all, checkup.Block{Title: title, Table: table}), ""
	}
	return append(all, checkup.Block{Title: title, Note: "expected: " + expectedWords(expected)})
}

// expectedWords counts pairs by what is expected of them.
func expectedWords(n map[Expectation]int) string {
	words := fmt.Sprintf("%d connect", n[Works])
	if n[Refused] > 0 {
		words += fmt.Sprintf(", %d are refused (no endpoint)", n[Refused])
	}
	if n[Dropped] > 0 {
		words += fmt.Sprintf(", %d are dropped (no endpoint on the node)", n[Dropped])
	}
	return words
}
