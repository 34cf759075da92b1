// SPDX-License-Identifier: Apache-2.0

package servicerules

import (
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/judge/judgetest"
)

// TestSaved keeps the reports that the tests of pkg/print print, and docs/service-rules.md quotes.
func TestSaved(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	run := judge.Run{
		Namespace: "checks", Name: "day-2-run-1767323045", UID: "6d1c1f0e", Started: start, Finished: start.Add(62 * time.Second),
	}
	judged := func(damage func(l *lab)) checkup.Report {
		spec := specOf()
		plan := planOf(spec)
		l := labOf(t, "nftables", spec)
		damage(l)
		return judge.Join(plan, run, []checkup.CheckReport{l.report(t, plan.Gate)}, nil)
	}
	judgetest.Saved(t, map[string]checkup.Report{
		"service-rules-pass": judged(func(*lab) {}),
		// One node has lost everything, another one the endpoint of a Service, and a third has rules that nobody wants.
		"service-rules-nodes": judged(func(l *lab) {
			l.each(none, "node-b")
			l.each(fewer("shop/plain"), "node-a")
			l.each(added("shop/gone"), "node-c")
		}),
		// Agents of one node have no right, another node has a proxy that cannot be read.
		"service-rules-unread": judged(func(l *lab) {
			l.sides[0].unmeasured = &checkup.Cause{
				Stage: checkup.StageRules, Reason: checkup.ReasonForbidden,
				Message: "no right to read the node's rules: the capability NET_ADMIN in the host's network is needed (operation not permitted)",
			}
			l.sides[1].unmeasured = l.sides[0].unmeasured
			l.each(otherProxy, "node-b")
		}),
	})
}
