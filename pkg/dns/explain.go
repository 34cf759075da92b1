// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// Explain shows which servers a run asks, and for what.
func Explain(e kind.Explained) kind.Explanation {
	w := e.Worksheet
	var x kind.Explanation
	sheet, err := SheetOf(w)
	if err != nil {
		x.Field("questions", err.Error())
		return x
	}
	questions, subjects, kinds := map[string]bool{}, map[string]bool{}, map[string]int{}
	pairs := map[string]map[checkup.Transport]int{}
	for p := range w.Pairs() {
		t := sheet.Targets[p.Target]
		if !questions[t.Question] {
			questions[t.Question] = true
			kinds[w.Targets[p.Target].Peer.Question.Type]++
		}
		if t.Service != "" {
			subjects[t.Service] = true
		}
		if pairs[t.Server] == nil {
			pairs[t.Server] = map[checkup.Transport]int{}
		}
		pairs[t.Server][p.Transport]++
	}
	var of []string
	for _, k := range checkup.DNSTypes {
		if kinds[k] > 0 {
			of = append(of, fmt.Sprintf("%d %s", kinds[k], k))
		}
	}
	x.Field("questions", fmt.Sprintf("%d (%s), about %s", len(questions), strings.Join(of, ", "),
		checkup.Count(len(subjects), "Service")))
	x.Field("sample", fmt.Sprintf("round %d of %d, degree %d, seed %d", w.Round, w.Rounds, w.Degree, w.Seed))
	if len(w.Probes) > 0 {
		p := w.Probes[0]
		x.Field("pairs", fmt.Sprintf("%d: a node, a question, a server and a transport; each %s, every %s", e.Cost.Pairs,
			checkup.Count(p.Count, "time"), p.Interval))
	}
	x.Field("load", fmt.Sprintf("at most %d questions per second from each of %s; a resolver's search list and what is asked "+
		"again count as well", w.Limits.PacketsPerSecond, checkup.Count(e.Cost.Agents, "agent")))
	if e.Gate.Confirm {
		x.Field("second look", fmt.Sprintf("failed pairs, at most %d, within what is left of timeouts.probe (%s)",
			servicecheck.MostAgain(w), w.Timeouts.Probe))
	}
	x.Field("changes", "Services are listed again after measuring: what failed and has changed is unmeasured")
	table := &checkup.Table{Noun: "server", Columns: []checkup.Column{
		{Name: "SERVER"}, {Name: "PAIRS OVER UDP", Measure: checkup.MeasureCount}, {Name: "OVER TCP", Measure: checkup.MeasureCount},
	}}
	for _, name := range slices.Sorted(maps.Keys(pairs)) {
		table.Rows = append(table.Rows, []checkup.Cell{
			checkup.Text(name), checkup.Number(pairs[name][checkup.DNSUDP]), checkup.Number(pairs[name][checkup.DNSTCP]),
		})
	}
	x.Blocks = []checkup.Block{{Table: table}}
	return x
}
