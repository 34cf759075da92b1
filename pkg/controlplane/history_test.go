// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/judge/judgetest"
)

// TestHistory: the history keeps every connection, with its verdict, delays and losses, and what all runs have covered.
func TestHistory(t *testing.T) {
	p := judgetest.NewPlane(7, 2, 20)
	p.Worksheet.Expect.Loss.Max = ptr(checkup.Percent(10))
	p.End = func(target int, after time.Duration) *checkup.Cause {
		return judgetest.Because(target == judgetest.EtcdTarget && after >= 10*time.Second, judgetest.Refused)
	}
	record := p.Measure()
	c := Judge(p.Worksheet, p.Roster, record, checkup.Gate{})
	plan := &checkup.Plan{Name: "day-2", Checks: map[string]checkup.Check{p.Worksheet.Check: {Spec: &Spec{}}}}
	r := judge.Join(plan, judge.Run{Name: "r", UID: "u"}, []checkup.CheckReport{c}, nil)
	h := history.Merge(nil, history.EntryOf(&r, map[string]history.Sheet{c.Name: {Worksheet: p.Worksheet, Record: record}}))
	failed := 0
	for _, u := range c.Units {
		all := h.Pair(u.Source, u.Target)
		if len(all) != 1 || len(all[0].Results) != 1 || all[0].Results[0].Verdict != u.Verdict ||
			all[0].Results[0].P50 == 0 || u.Verdict == checkup.Fail && all[0].Results[0].Loss < 1 {
			t.Errorf("%s -> %s, %s: history has %+v", u.Source, u.Target, u.Verdict, all)
		}
		if u.Verdict == checkup.Fail {
			failed++
		}
	}
	got := h.Cumulative(c.Name)
	if n := len(c.Units); failed == 0 || got.Measured != n || got.Possible != n || got.Failing != failed {
		t.Errorf("coverage %+v, want all %d connections, %d of them failing", got, n, failed)
	}
}
