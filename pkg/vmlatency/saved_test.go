// SPDX-License-Identifier: Apache-2.0

package vmlatency

import (
	"slices"
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
	plan := &checkup.Plan{Name: "day-2", Gate: checkup.Gate{Require: checkup.RequirePass}, Checks: map[string]checkup.Check{"vms": {Spec: &Spec{}}}}
	one := []vmLine{{"node01", "node02", "br10"}}
	judged := func(links []vmLine, change func(*guests), record func(*checkup.Record), leftovers ...string) checkup.Report {
		g := newGuests(5, links...)
		if change != nil {
			change(g)
		}
		r := g.measure()
		if record != nil {
			record(r)
		}
		return judge.Join(plan, run, []checkup.CheckReport{Judge(g.w, g.roster, r, plan.Gate)}, leftovers)
	}
	lossy := func(g *guests) {
		g.drop = func(_, _ int, _ checkup.IPFamily, answer bool) float64 { return .2 * judgetest.When(!answer) }
	}
	judgetest.Saved(t, map[string]checkup.Report{
		"vms-pass": judged(one, nil, nil),
		"vms-cut": judged(one, func(g *guests) {
			g.drop = func(int, int, checkup.IPFamily, bool) float64 { return 1 }
		}, nil),
		"vms-slow": judged(one, func(g *guests) {
			g.w.Expect.Latency.Max = ptr(checkup.Duration(200 * time.Millisecond))
			g.delay = func(int, int, checkup.IPFamily) time.Duration { return 200 * time.Millisecond }
		}, nil),
		"vms-lossy": judged(one, lossy, nil),
		"vms-loss": judged(one, func(g *guests) {
			lossy(g)
			g.w.Expect.Loss.Max = ptr(checkup.Percent(5))
		}, nil),
		// The scheduler chooses the nodes, and IPv6 gets through one way only.
		"vms-oneway": judged([]vmLine{{"?node01", "?node02", "br10"}}, func(g *guests) {
			g.drop = func(from, _ int, family checkup.IPFamily, answer bool) float64 {
				return judgetest.When(from == 0 && family == checkup.IPv6 && !answer)
			}
		}, nil),
		// A node without a way out on one network, one without the other's bridge, VMs
		// that do not come up, a run that is stopped, VMs that stay.
		"vms-several": judged([]vmLine{
			{"node01", "node02", "br10"}, {"node01", "node03", "br10"}, {"node02", "node03", "br10"}, {"node02", "node02", "br10"},
			{"node01", "node02", "br20"}, {"node01", "node03", "br20"}, {"node02", "node03", "br20"}, {"node02", "node02", "br20"},
		}, func(g *guests) {
			g.drop = func(from, to int, _ checkup.IPFamily, _ bool) float64 {
				return judgetest.When(g.on(from, "node03", "br10") || g.on(to, "node03", "br10"))
			}
			missing := &checkup.Cause{Stage: checkup.StageSetup, Message: "node03 has no bridge br20, which NetworkAttachmentDefinition default/br20 names"}
			for _, vm := range []int{10, 11, 12, 13} {
				for _, list := range [][]checkup.Endpoint{g.w.Sources, g.w.Targets} {
					list[vm].Cause = missing
				}
				g.roster.Targets[vm] = checkup.RosterEntry{Cause: missing}
			}
			g.roster.Targets[14] = checkup.RosterEntry{Cause: &checkup.Cause{Stage: checkup.StageStart, Message: "the guest did not answer on its console within 2m0s"}}
		}, func(r *checkup.Record) {
			r.Observations = slices.DeleteFunc(r.Observations, func(o checkup.Observation) bool { return o.Source == 8 && o.Family == checkup.IPv6 || o.Source >= 10 })
			r.Sources[8].End, r.Sources[8].Cause = nil, &checkup.Cause{Stage: checkup.StageCollect, Message: "the console was lost, and not found again within 30s"}
			for s := 10; s < len(r.Sources); s++ {
				r.Sources[s] = checkup.Source{Source: s, Cause: &checkup.Cause{Stage: checkup.StageStart, Message: "its VM or that of its pair did not start"}}
			}
			r.Sources[1].End.SelfDoubt.SchedulingDelayMax = 70_000
		}, "VirtualMachineInstance/vms-guest-abc", "Pod/virt-launcher-vms-guest-abc"),
	})
}
