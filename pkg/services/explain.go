// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// tableRows is the most Services that Explain lists.
const tableRows = 50

// Explain shows to which Services a run connects, and what it expects.
func Explain(e kind.Explained) kind.Explanation {
	w := e.Worksheet
	var x kind.Explanation
	sheet, err := SheetOf(w)
	if err != nil {
		x.Field("services", err.Error())
		return x
	}
	type row struct {
		targets  map[int]bool
		expected map[servicecheck.Expectation]int
	}
	rows := map[string]*row{}
	expected := map[servicecheck.Expectation]int{}
	for p := range w.Pairs() {
		name := sheet.Service(p.Target)
		if rows[name] == nil {
			rows[name] = &row{map[int]bool{}, map[servicecheck.Expectation]int{}}
		}
		is := sheet.Expects(w, p)
		rows[name].targets[p.Target] = true
		rows[name].expected[is]++
		expected[is]++
	}
	x.Field("services", fmt.Sprintf("%s, addresses: %d", checkup.Count(len(rows), "Service"), len(w.Targets)))
	x.Field("sample", fmt.Sprintf("round %d of %d, degree %d, seed %d", w.Round, w.Rounds, w.Degree, w.Seed))
	x.Field("pairs", fmt.Sprintf("%d; expected: %s", e.Cost.Pairs, expectedWords(expected)))
	if p, ok := w.Probe(checkup.TCP); ok {
		x.Field("connects", fmt.Sprintf("each pair %s, every %s, to Services that are not checkplan's: a TCP connection is "+
			"opened and closed, nothing is sent", checkup.Count(p.Count, "time"), p.Interval))
	}
	if e.Gate.Confirm {
		x.Field("second look", fmt.Sprintf("failed pairs, at most %d, within what is left of timeouts.probe (%s)",
			servicecheck.MostAgain(w), w.Timeouts.Probe))
	}
	x.Field("changes", "Services are listed again after measuring: what failed and has changed is unmeasured")
	table := &checkup.Table{Noun: "Service", Columns: []checkup.Column{
		{Name: "SERVICE"}, {Name: "ADDRESSES", Measure: checkup.MeasureCount},
		{Name: "CONNECT", Measure: checkup.MeasureCount},
		{Name: "REFUSED", Measure: checkup.MeasureCount}, {Name: "DROPPED", Measure: checkup.MeasureCount},
	}}
	// Those of which something else is expected than that they work are the first.
	names := slices.SortedFunc(maps.Keys(rows), func(a, b string) int {
		closed := func(name string) int {
			return rows[name].expected[servicecheck.Refused] + rows[name].expected[servicecheck.Dropped]
		}
		return cmp.Or(cmp.Compare(closed(b), closed(a)), cmp.Compare(a, b))
	})
	for _, name := range names[:min(len(names), tableRows)] {
		r := rows[name]
		table.Rows = append(table.Rows, []checkup.Cell{
			checkup.Text(name), checkup.Number(len(r.targets)), checkup.Number(r.expected[servicecheck.Works]),
			checkup.Number(r.expected[servicecheck.Refused]), checkup.Number(r.expected[servicecheck.Dropped]),
		})
	}
	x.Blocks = []checkup.Block{{Table: table}}
	if more := len(names) - tableRows; more > 0 {
		x.Blocks = append(x.Blocks, checkup.Block{Note: fmt.Sprintf("and %s", checkup.Count(more, "more Service"))})
	}
	return x
}
