// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/judge"
)

// TestHistory: the history keeps every pair of a node and a question at a server. A wrong answer is a loss, as none is.
func TestHistory(t *testing.T) {
	w := expanded(t, specOf(), small())
	record := measure(t, w, func(a asked) answer {
		switch a.node {
		case w.Sources[0].Node:
			return silent
		case w.Sources[1].Node:
			return wrong
		}
		return right
	})
	c := Judge(w, Kind.Roster(nil, w, nil), record, checkup.Gate{})
	plan := &checkup.Plan{Name: "day-2", Checks: map[string]checkup.Check{w.Check: {Spec: specOf()}}}
	r := judge.Join(plan, judge.Run{Name: "r", UID: "u"}, []checkup.CheckReport{c}, nil)
	h := history.Merge(nil, history.EntryOf(&r, map[string]history.Sheet{c.Name: {Worksheet: w, Record: record}}))
	for p := range w.Pairs() {
		all := h.Pair(w.Sources[p.Source].Name(), w.Targets[p.Target].Name())
		if len(all) != 1 || len(all[0].Results) != 1 {
			t.Fatalf("%+v: history has %+v, want one result", p, all)
		}
		got := all[0].Results[0]
		if broken := p.Source < 2; broken != (got.Verdict == checkup.Fail) || broken != (got.Loss == 100) || broken != (got.P50 == 0) {
			t.Errorf("from node %d: history has %+v", p.Source, got)
		}
	}
	if got := h.Cumulative(c.Name); got.Measured != w.CountPairs() || got.Possible != w.Possible || got.Failing == 0 {
		t.Errorf("coverage %+v, want %d of %d pairs", got, w.CountPairs(), w.Possible)
	}
}
