// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/servicecheck"
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
	servicecheck.Merge(j, w, record, func(next *checkup.Worksheet, record *checkup.Record) *judge.Judgement {
		return pairs(next, sheet, roster, record, gate)
	})
	servicecheck.Excuse(j, record, func(o *judge.Outcome, changed map[int]bool) bool { return changed[o.Pair.Target] })
	r := j.Report(gate)
	r.Units = j.Troubled()
	for i := range r.Units {
		label(&r.Units[i], w, sheet)
	}
	connect := *j
	connect.Outcomes = slices.DeleteFunc(slices.Clone(j.Outcomes), func(o judge.Outcome) bool {
		return sheet.Expects(w, o.Pair) != servicecheck.Works
	})
	r.Delays = connect.DelayRows()
	r.Matrix = j.Matrix()
	r.Findings = findings(j, sheet)
	r.Blocks = blocks(j, sheet)
	judge.Confirm(&r, gate)
	return r
}

// pairs judges the pairs of one look.
func pairs(
	w *checkup.Worksheet, sheet *Sheet, roster *checkup.Roster, record *checkup.Record, gate checkup.Gate,
) *judge.Judgement {
	j := judge.Pairs(w, roster, record, judge.Rules{LooksAgain: gate.Confirm})
	for i := range j.Outcomes {
		o := &j.Outcomes[i]
		if e := sheet.Expects(w, o.Pair); e != servicecheck.Works && o.Verdict != checkup.Unmeasured {
			servicecheck.MustNotConnect(w, o, e, sheet.Closed)
		}
	}
	return j
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
	expected := map[servicecheck.Expectation]int{}
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
func expectedWords(n map[servicecheck.Expectation]int) string {
	words := fmt.Sprintf("%d connect", n[servicecheck.Works])
	if n[servicecheck.Refused] > 0 {
		words += fmt.Sprintf(", %d are refused (no endpoint)", n[servicecheck.Refused])
	}
	if n[servicecheck.Dropped] > 0 {
		words += fmt.Sprintf(", %d are dropped (no endpoint on the node)", n[servicecheck.Dropped])
	}
	return words
}
