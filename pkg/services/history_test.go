// SPDX-License-Identifier: Apache-2.0

package services

import (
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// TestHistory: the history keeps every pair of a node and an address, with its verdict, delays and losses. A pair that
// must not connect, and does not, has neither: a Service that loses its endpoints is no loss of the network.
func TestHistory(t *testing.T) {
	w := expanded(t, specOf(), small())
	sheet, err := SheetOf(w)
	if err != nil {
		t.Fatal(err)
	}
	record := measure(t, w, func(node, target string, right answer) answer {
		if node == w.Sources[0].Node && right == connects {
			return timeout
		}
		return right
	})
	c := Judge(w, Kind.Roster(nil, w, nil), record, checkup.Gate{})
	plan := &checkup.Plan{Name: "day-2", Checks: map[string]checkup.Check{w.Check: {Spec: specOf()}}}
	r := judge.Join(plan, judge.Run{Name: "r", UID: "u"}, []checkup.CheckReport{c}, nil)
	h := history.Merge(nil, history.EntryOf(&r, map[string]history.Sheet{c.Name: {Worksheet: w, Record: record}}))
	seen := map[string]int{}
	for p := range w.Pairs() {
		all := h.Pair(w.Sources[p.Source].Name(), w.Targets[p.Target].Name())
		if len(all) != 1 || len(all[0].Results) != 1 {
			t.Fatalf("%+v: history has %+v, want one result", p, all)
		}
		got := all[0].Results[0]
		switch expects := sheet.Expects(w, p); {
		case expects != servicecheck.Works:
			seen["closed"]++
			if got.Verdict != checkup.Pass || got.P50 != 0 || got.Loss != -1 {
				t.Errorf("%+v must not connect: history has %+v, want neither delays nor losses", p, got)
			}
		case p.Source == 0:
			seen["broken"]++
			if got.Verdict != checkup.Fail || got.P50 != 0 || got.Loss != 100 {
				t.Errorf("%+v does not connect: history has %+v", p, got)
			}
		default:
			seen["works"]++
			if got.Verdict != checkup.Pass || got.P50 == 0 || got.Loss != 0 {
				t.Errorf("%+v connects: history has %+v", p, got)
			}
		}
	}
	if len(seen) != 3 {
		t.Errorf("pairs %v, want some of each", seen)
	}
	if got := h.Cumulative(c.Name); got.Measured != w.CountPairs() || got.Possible != w.Possible || got.Failing == 0 {
		t.Errorf("coverage %+v, want %d of %d pairs", got, w.CountPairs(), w.Possible)
	}
}
