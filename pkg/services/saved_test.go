// SPDX-License-Identifier: Apache-2.0

package services

import (
	"strings"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/judge/judgetest"
)

// TestSaved keeps the reports that the tests of pkg/print print.
func TestSaved(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	run := judge.Run{
		Namespace: "checks", Name: "day-2-run-1767323045", UID: "6d1c1f0e", Started: start, Finished: start.Add(62 * time.Second),
	}
	w := expanded(t, specOf(), small())
	judged := func(wrong func(string, string, answer) answer, of ...string) checkup.Report {
		r := measure(t, w, wrong)
		look(t, w, r, wrong)
		changed(w, r, of...)
		plan := planOf(specOf())
		return judge.Join(plan, run, []checkup.CheckReport{Judge(w, Kind.Roster(nil, w, nil), r, plan.Gate)}, nil)
	}
	judgetest.Saved(t, map[string]checkup.Report{
		"services-pass": judged(func(_, _ string, right answer) answer { return right }),
		"services-node": judged(func(node, _ string, right answer) answer {
			if node == "n2" {
				return timeout
			}
			return right
		}),
		// A Service is refused everywhere, and another one changed while it was measured.
		"services-changed": judged(func(_, to string, right answer) answer {
			if strings.HasPrefix(to, "shop/web") || strings.HasPrefix(to, "shop/db") {
				return refused
			}
			return right
		}, "shop/db"),
	})
}
