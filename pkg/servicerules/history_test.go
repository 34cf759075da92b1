// SPDX-License-Identifier: Apache-2.0

package servicerules

import (
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/judge"
)

// TestHistory: the history keeps verdict and counts of a check without pairs, and nothing else.
func TestHistory(t *testing.T) {
	l := labOf(t, "nftables", specOf())
	c := l.report(t, checkup.Gate{})
	plan := &checkup.Plan{Name: "day-2", Checks: map[string]checkup.Check{c.Name: {Spec: specOf()}}}
	r := judge.Join(plan, judge.Run{Name: "r", UID: "u"}, []checkup.CheckReport{c}, nil)
	h := history.Merge(nil, history.EntryOf(&r, map[string]history.Sheet{c.Name: {Worksheet: l.w, Record: &checkup.Record{}}}))
	got := h.Runs[0].Checks[0]
	if got.Verdict != checkup.RunPass || got.Counts.Pass == 0 || got.Pairs != nil || len(got.Delays)+len(h.Digests) > 0 || h.Cumulative(c.Name) != nil {
		t.Errorf("history has %+v", got)
	}
}
