// SPDX-License-Identifier: Apache-2.0

package podmesh

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
	plan := &checkup.Plan{Name: "day-2", Gate: checkup.Gate{Require: checkup.RequirePass, MaxUnmeasured: 5}, Checks: map[string]checkup.Check{"mesh": {Spec: &Spec{}}}}
	mesh := func(nodes, degree int, change func(*judgetest.Mesh)) *judgetest.Mesh {
		n := judgetest.NewMesh(7, nodes, degree, 3, judgetest.FourTransports())
		n.Worksheet.Expect.Loss.Max = new(checkup.Percent(1))
		n.Worksheet.Expect.Latency.P99 = new(checkup.Duration(10 * time.Millisecond))
		if change != nil {
			change(n)
		}
		return n
	}
	judged := func(n *judgetest.Mesh, change func(*checkup.Record)) checkup.Report {
		record := n.Measure()
		if change != nil {
			change(record)
		}
		return judge.Join(plan, run, []checkup.CheckReport{Judge(n.Worksheet, n.Roster, record, plan.Gate)}, nil)
	}
	regression := func() checkup.Report {
		d := &daily{nodes: 6, probes: judgetest.FourTransports()[:2], every: time.Hour, expect: demand()}
		for i := range 20 {
			d.run(i)
		}
		d.change = func(_ int, n *judgetest.Mesh) {
			slower(n, 30*time.Millisecond, func(p judgetest.Packet) bool { return p.To == 1 })
		}
		return judge.Join(plan, run, []checkup.CheckReport{*d.run(20)}, nil)
	}
	judgetest.Saved(t, map[string]checkup.Report{
		"pass":   judged(mesh(3, 0, nil), nil),
		"sample": judged(mesh(40, 3, nil), nil),
		"ingress": judged(mesh(3, 0, func(n *judgetest.Mesh) {
			n.Drop = func(p judgetest.Packet) float64 { return judgetest.When(p.To == 1) }
		}), nil),
		"policy": judged(mesh(4, 0, func(n *judgetest.Mesh) {
			n.Drop = func(p judgetest.Packet) float64 { return judgetest.When(p.To == 1 && !p.Answer) }
		}), nil),
		"loss": judged(mesh(3, 0, func(n *judgetest.Mesh) {
			n.Drop = func(p judgetest.Packet) float64 { return .2 * judgetest.When(p.To == 1) }
		}), nil),
		"paths": judged(mesh(6, 0, func(n *judgetest.Mesh) {
			n.Worksheet.Probes = n.Worksheet.Probes[:2]
			n.Drop = func(p judgetest.Packet) float64 {
				return judgetest.When(p.Port%8 == 0 && p.From%3+p.To%3 == 1)
			}
		}), nil),
		"slow": judged(mesh(3, 0, func(n *judgetest.Mesh) {
			n.Delay = func(p judgetest.Packet) time.Duration {
				return time.Duration(judgetest.When(p.To == 1)) * 30 * time.Millisecond
			}
		}), nil),
		"regression": regression(),
		"chaos": judged(mesh(30, 4, func(n *judgetest.Mesh) {
			n.Worksheet.Probes = n.Worksheet.Probes[1:2]
			n.Drop = func(p judgetest.Packet) float64 {
				return judgetest.When((min(p.From, p.To)*31+max(p.From, p.To)*17)%5 == 0)
			}
		}), nil),
		"unreachable": judged(mesh(3, 0, func(n *judgetest.Mesh) {
			n.Worksheet.Expect = checkup.Expect{Unreachable: true}
			n.Drop = func(p judgetest.Packet) float64 { return judgetest.When(p.To != 2) }
		}), nil),
		"agents": judged(mesh(5, 0, nil), func(r *checkup.Record) {
			of := func(s int) func(checkup.Observation) bool {
				return func(o checkup.Observation) bool { return o.Source == s }
			}
			r.Observations = slices.DeleteFunc(r.Observations, of(1))
			r.Sources[1] = checkup.Source{Source: 1, Cause: &checkup.Cause{Stage: checkup.StageSchedule, Message: "0/5 nodes are available: 1 Insufficient cpu"}}
			r.Sources[2].Controls[0].OK = false
			r.Sources[2].Controls[0].Message = "timed out after 1s"
			r.Sources[3].End.SelfDoubt = checkup.SelfDoubt{SchedulingDelayMax: 81_000, SchedulingDelayP99: 12_000, ThrottledMicros: new(int64(230_000))}
		}),
		"setup": judge.Join(plan, run, []checkup.CheckReport{judge.NotMeasured("mesh", Name, checkup.Cause{Stage: checkup.StageSetup, Message: "no node matches nodeSelector role=probe"})}, []string{"Pod/mesh-responder-abc"}),
	})
}
