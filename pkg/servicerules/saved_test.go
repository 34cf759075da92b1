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
	judged := func(damage func(l *lab), changes ...func(*Spec)) checkup.Report {
		spec := specOf(changes...)
		plan := planOf(spec)
		l := labOf(t, "nftables", spec, written("11:00:00"), written("12:03:10", "plain"), written("12:04:00", "sticky"))
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
		// Of a sample, one node has missed that endpoints of two Services have ended, and all nodes lack a Service.
		"service-rules-behind": judged(func(l *lab) {
			l.now = at("12:05:11")
			l.each(more("shop/plain", "10.244.9.8:8080", "[fd00:244:9::8]:8080"), l.w.Sources[0].Node)
			l.each(more("shop/sticky", "10.244.9.9:8080", "[fd00:244:9::9]:8080"), l.w.Sources[0].Node)
			l.each(without("shop/both-local"))
		}, func(s *Spec) { s.Sample.Nodes = 2 }),
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
