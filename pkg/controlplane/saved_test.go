// SPDX-License-Identifier: Apache-2.0

package controlplane

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
	plan := &checkup.Plan{Name: "day-2", Gate: checkup.Gate{Require: checkup.RequirePass}, Checks: map[string]checkup.Check{"api": {Spec: &Spec{}}}}
	api := func(nodes, count int, change func(*judgetest.Plane)) *judgetest.Plane {
		p := judgetest.NewPlane(7, nodes, count)
		p.Worksheet.Expect.Loss.Max = ptr(checkup.Percent(10))
		p.Worksheet.Connections.MaxOutage = ptr(checkup.Duration(30 * time.Second))
		if change != nil {
			change(p)
		}
		return p
	}
	judged := func(p *judgetest.Plane, change func(*checkup.Record)) checkup.Report {
		record := p.Measure()
		if change != nil {
			change(record)
		}
		return judge.Join(plan, run, []checkup.CheckReport{Judge(p.Worksheet, p.Roster, record, plan.Gate)}, nil)
	}
	judgetest.Saved(t, map[string]checkup.Report{
		// An API server is restarted while it is watched, which the plan allows.
		"connections-restart": judged(api(2, 60, func(p *judgetest.Plane) {
			p.Worksheet.Expect.Loss.Max = nil
			p.End = func(t int, after time.Duration) *checkup.Cause {
				return judgetest.Because(t == judgetest.KubeTarget && after >= 20*time.Second && after < 32*time.Second, judgetest.Refused)
			}
		}), nil),
		"connections-silent": judged(api(2, 5, func(p *judgetest.Plane) {
			p.End = func(t int, _ time.Duration) *checkup.Cause {
				return judgetest.Because(t == judgetest.EtcdTarget, judgetest.Silent)
			}
		}), nil),
		"connections-endpoint": judged(api(2, 60, func(p *judgetest.Plane) {
			p.End = func(t int, _ time.Duration) *checkup.Cause {
				return judgetest.Because(t == judgetest.KubeTarget, judgetest.TimedOut)
			}
		}), nil),
		"connections-service": judged(api(2, 60, func(p *judgetest.Plane) {
			p.Way = func(s, t int, after time.Duration) *checkup.Cause {
				return judgetest.Because(s == judgetest.SourcesPerNode+judgetest.Aggregated && t == p.KubeService() && after >= 10*time.Second, judgetest.TimedOut)
			}
		}), nil),
		// No etcd is visible, the CRD is missing, and the run was stopped half-way.
		"connections-stopped": judged(api(2, 60, func(p *judgetest.Plane) {
			p.Worksheet.Warnings = []string{"no etcd member is visible"}
			p.Worksheet.Connections.Unwritten = "the cluster has no CustomResourceDefinition, and the plan does not allow to install it"
			for _, t := range []int{judgetest.EtcdTarget, judgetest.TargetsPerNode + judgetest.EtcdTarget} {
				p.Worksheet.Targets[t].Peer = nil
				p.Roster.Targets[t].Cause = &checkup.Cause{Stage: checkup.StageSetup, Message: "no pod of this component is visible"}
			}
			p.End = func(t int, after time.Duration) *checkup.Cause {
				return judgetest.Because(t == p.Balancer() && after >= 10*time.Second, judgetest.NoAddress)
			}
		}), func(r *checkup.Record) {
			first := r.Results[0].At
			r.Results = slices.DeleteFunc(r.Results, func(r checkup.Result) bool { return r.At.Sub(first) > 30*time.Second })
			for i := range r.Sources {
				r.Sources[i].End = nil
				r.Sources[i].Cause = &checkup.Cause{Stage: checkup.StageCollect, Message: "the run was stopped"}
			}
		}),
	})
}
