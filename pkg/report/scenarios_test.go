// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// scenarios are the reports of testdata, by name of the file.
func scenarios() map[string]checkup.Report {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	run := Run{Namespace: "checks", Name: "day-2-run-1767323045", UID: "6d1c1f0e", Started: start, Finished: start.Add(62 * time.Second)}
	plan := &checkup.Plan{Name: "day-2", Gate: checkup.Gate{Require: checkup.RequirePass, MaxUnmeasured: 5}, Checks: map[string]checkup.Check{"mesh": {PodMesh: &checkup.PodMesh{}}}}
	mesh := func(nodes, degree int, change func(*network)) *network {
		n := newNetwork(7, nodes, degree, 3, fourTransports())
		n.w.Expect.Loss.Max = ptr(checkup.Percent(1))
		n.w.Expect.Latency.P99 = ptr(checkup.Duration(10 * time.Millisecond))
		if change != nil {
			change(n)
		}
		return n
	}
	judged := func(n *network, change func(*checkup.Record)) checkup.Report {
		record := n.measure()
		if change != nil {
			change(record)
		}
		return Join(plan, run, []checkup.CheckReport{Judge(n.w, n.roster, record, plan.Gate)}, nil)
	}
	all := map[string]checkup.Report{
		"pass":   judged(mesh(3, 0, nil), nil),
		"sample": judged(mesh(40, 3, nil), nil),
		"ingress": judged(mesh(3, 0, func(n *network) {
			n.drop = func(p packet) float64 { return when(p.to == 1) }
		}), nil),
		"policy": judged(mesh(4, 0, func(n *network) {
			n.drop = func(p packet) float64 { return when(p.to == 1 && !p.answer) }
		}), nil),
		"loss": judged(mesh(3, 0, func(n *network) {
			n.drop = func(p packet) float64 { return .2 * when(p.to == 1) }
		}), nil),
		"slow": judged(mesh(3, 0, func(n *network) {
			n.delay = func(p packet) time.Duration { return time.Duration(when(p.to == 1)) * 30 * time.Millisecond }
		}), nil),
		"chaos": judged(mesh(30, 4, func(n *network) {
			n.w.Probes = n.w.Probes[1:2]
			n.drop = func(p packet) float64 { return when((min(p.from, p.to)*31+max(p.from, p.to)*17)%5 == 0) }
		}), nil),
		"unreachable": judged(mesh(3, 0, func(n *network) {
			n.w.Expect = checkup.Expect{Unreachable: true}
			n.drop = func(p packet) float64 { return when(p.to != 2) }
		}), nil),
		"agents": judged(mesh(5, 0, nil), func(r *checkup.Record) {
			of := func(s int) func(checkup.Observation) bool {
				return func(o checkup.Observation) bool { return o.Source == s }
			}
			r.Observations = slices.DeleteFunc(r.Observations, of(1))
			r.Sources[1] = checkup.Source{Source: 1, Cause: &checkup.Cause{Stage: checkup.StageSchedule, Message: "0/5 nodes are available: 1 Insufficient cpu"}}
			r.Sources[2].Controls[0].OK = false
			r.Sources[2].Controls[0].Message = "timed out after 1s"
			r.Sources[3].End.SelfDoubt = checkup.SelfDoubt{SchedulingDelayMax: 81_000, SchedulingDelayP99: 12_000, ThrottledMicros: ptr(int64(230_000))}
		}),
		"setup":   Join(plan, run, []checkup.CheckReport{NotMeasured("mesh", checkup.KindPodMesh, checkup.Cause{Stage: checkup.StageSetup, Message: "no node matches nodeSelector role=probe"})}, []string{"Pod/mesh-responder-abc"}),
		"nothing": Join(&checkup.Plan{Name: "empty"}, Run{}, nil, nil),
	}
	for name, r := range connectionScenarios(run) {
		all[name] = r
	}
	for name, r := range placementScenarios(run) {
		all[name] = r
	}
	for name, r := range guestScenarios(run) {
		all[name] = r
	}
	return all
}

// TestGolden judges each scenario into testdata/<name>.json. UPDATE=1 writes the
// files.
func TestGolden(t *testing.T) {
	for name, r := range scenarios() {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			e := json.NewEncoder(&got)
			e.SetEscapeHTML(false)
			e.SetIndent("", "  ")
			if err := e.Encode(r); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", name+".json")
			if os.Getenv("UPDATE") == "1" {
				if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", path, diff)
			}
		})
	}
}

// kind is the cause of a finding and its subject, as alternatives name theirs.
func kind(f checkup.Finding) string {
	s := string(f.Cause)
	if f.Subject != "" {
		s += " " + f.Subject
	}
	if n := (narrow{f.Family, f.Transport, f.FromSize}).String(); n != "" {
		s += " (" + n + ")"
	}
	return s
}
