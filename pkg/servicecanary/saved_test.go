// SPDX-License-Identifier: Apache-2.0

package servicecanary

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
	l := newLab(t, specOf(), townOf(3))
	judged := func(wrong func(pair) answers) checkup.Report {
		return judge.Join(planOf(specOf()), run, []checkup.CheckReport{l.judged(wrong)}, nil)
	}
	judgetest.Saved(t, map[string]checkup.Report{
		"canary-pass": judged(right),
		// One node's proxy is stale, and another one has lost an endpoint of one Service.
		"canary-nodes": judged(func(p pair) answers {
			a := right(p)
			switch {
			case p.proxy() == "n2" && !strings.HasPrefix(p.target, "endpoint "):
				return answers{}
			case p.node == "n0" && p.target == "cluster-ip":
				delete(a.by, l.address("endpoint on n1", p.Family))
			}
			return a
		}),
	})
}
