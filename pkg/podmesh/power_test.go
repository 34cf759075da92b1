// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/judge/judgetest"
	"github.com/checkplan/checkplan/pkg/kind"
)

// TestPowerOfRandomMeshes: a probability is one, a larger loss is seen no less often, a dead place is always seen, and
// a loss below the limit is no more often than FalseAlarms. Only zones may be absent.
func TestPowerOfRandomMeshes(t *testing.T) {
	for seed := range judgetest.Iterations(50, 1000) {
		rng := rand.New(rand.NewPCG(seed, 5))
		probes := judgetest.DefaultProbes()
		rng.Shuffle(len(probes), func(a, b int) { probes[a], probes[b] = probes[b], probes[a] })
		n := judgetest.NewMesh(seed, 2+rng.IntN(40), rng.IntN(12), rng.IntN(4), probes[:1+rng.IntN(4)])
		limit := []checkup.Percent{0, 1, 5}[rng.IntN(3)]
		n.Worksheet.Budget, n.Worksheet.Expect.Loss.Max = 1+rng.IntN(100_000), &limit
		if rng.IntN(2) == 0 {
			n.Worksheet.Expect.Latency.P99 = new(checkup.Duration(time.Millisecond))
		}
		confirm := rng.IntN(2) == 0
		var last [4]float64
		for i, row := range sightOf(n.Worksheet, confirm).powers() {
			for k, seen := range [4]float64{row.pair, row.ingress, row.zones, row.network} {
				absent := seen == -1 && k == 2
				if !(seen >= 0 && seen <= 1) && !absent || i > 0 && seen < last[k]-1e-12 {
					t.Fatalf("seed %d: %+v after %v", seed, row, last)
				}
				if !absent && row.loss == 100 && seen != 1 {
					t.Fatalf("seed %d: a dead place is not always seen: %+v", seed, row)
				}
				if below := k != 3 && row.loss <= limit || k == 3 && 2*row.loss <= limit; below && seen > judge.FalseAlarms {
					t.Fatalf("seed %d: %s is seen although the limit is %s: %+v", seed, row.loss, limit, row)
				}
				last[k] = seen
			}
		}
		if lines := sightOf(n.Worksheet, confirm).sees(n.Worksheet, false); len(lines) != 4 {
			t.Fatalf("seed %d: %+v", seed, lines)
		}
	}
}

// TestPowerAgrees: with one look, simulated runs fail as often as is computed, and the difference is chance. With a second
// look they fail at least as often: what is computed is a lower bound, for a second look that makes as many tests as it
// may, and only for the losses at that place.
func TestPowerAgrees(t *testing.T) {
	const nodes, zones = 9, 3
	runs := judgetest.Iterations(25, 1000)
	for _, test := range []struct {
		name    string
		loss    float64
		drops   func(p judgetest.Packet) bool
		of      func(*sight, float64) float64
		confirm bool
	}{
		{"pair", 0.08, func(p judgetest.Packet) bool { return p.From == 0 && p.To == 1 }, (*sight).pair, false},
		{"pair", 0.05, func(p judgetest.Packet) bool { return p.From == 0 && p.To == 1 }, (*sight).pair, true},
		{"node", 0.025, func(p judgetest.Packet) bool { return p.To == 1 }, func(s *sight, p float64) float64 { return s.ingress.seen(p) }, false},
		{"node", 0.02, func(p judgetest.Packet) bool { return p.To == 1 }, func(s *sight, p float64) float64 { return s.ingress.seen(p) }, true},
		{"zones", 0.022, func(p judgetest.Packet) bool { return p.From%zones == 0 && p.To%zones == 1 }, func(s *sight, p float64) float64 { return s.zones.seen(p) }, false},
		{"zones", 0.017, func(p judgetest.Packet) bool { return p.From%zones == 0 && p.To%zones == 1 }, func(s *sight, p float64) float64 { return s.zones.seen(p) }, true},
		{"network", 0.007, func(judgetest.Packet) bool { return true }, func(s *sight, p float64) float64 { return s.network.seen(roundTrip(p)) }, false},
		{"nothing", 0, func(judgetest.Packet) bool { return false }, func(*sight, float64) float64 { return 0 }, true},
	} {
		gate := checkup.Gate{Confirm: test.confirm, MaxUnmeasured: 100}
		failed, want := 0, 0.0
		for seed := range runs {
			n := judgetest.NewMesh(seed, nodes, 0, zones, judgetest.DefaultProbes())
			n.Worksheet.Budget, n.Worksheet.Expect.Loss.Max, n.Repair = 100_000, new(checkup.Percent(1)), true
			n.Drop = func(p judgetest.Packet) float64 { return test.loss * judgetest.When(test.drops(p)) }
			record := n.Measure()
			if next := Again(n.Worksheet, n.Roster, record, gate); next != nil {
				further := *n
				further.Worksheet = next
				record.Looks = []checkup.Look{{Worksheet: *next, Record: *further.Measure()}}
			}
			if Judge(n.Worksheet, n.Roster, record, gate).Verdict == checkup.RunFail {
				failed++
			}
			if seed == 0 {
				want = test.of(sightOf(n.Worksheet, test.confirm), test.loss)
			}
		}
		got, tolerance := float64(failed)/float64(runs), 4*math.Sqrt(want*(1-want)/float64(runs))
		t.Logf("%s loses %v, confirmed %t: fails %.3f of the runs, computed %.3f", test.name, test.loss, test.confirm, got, want)
		if want-got > tolerance || got-want > tolerance && (!test.confirm || want == 0) {
			t.Errorf("%s loses %v, confirmed %t: fails %.3f of the runs, computed %.3f, tolerance %.3f",
				test.name, test.loss, test.confirm, got, want, tolerance)
		}
	}
}

// TestSees: what a run can see, in words.
func TestSees(t *testing.T) {
	mesh := func(nodes, degree int, change func(*checkup.Worksheet)) *checkup.Worksheet {
		w := judgetest.NewMesh(1, nodes, degree, 0, judgetest.DefaultProbes()).Worksheet
		w.Budget, w.Rounds, w.Expect.Loss.Max = 100_000, 5, new(checkup.Percent(1))
		if change != nil {
			change(w)
		}
		return w
	}
	for _, test := range []struct {
		name            string
		w               *checkup.Worksheet
		rotate, confirm bool
		want            string
	}{
		{"the full mesh", mesh(4, 0, nil), false, true, `
			a dead pair: always
			a node that loses 2.6% or more of what comes in: with 95%
			a sampled pair that loses 4.9% or more: with 95%
			false alarm: at most 1 clean run in 1,000`},
		{"a sample that rotates", mesh(50, 10, nil), true, true, `
			a dead pair: if sampled, 20.5% of the pairs are, all after 5 runs
			a node that loses 1.8% or more of what comes in: with 95%
			a sampled pair that loses 9.5% or more: with 95%
			false alarm: at most 1 clean run in 1,000`},
		{"a fixed sample, one look", mesh(50, 10, nil), false, false, `
			a dead pair: if sampled, 20.5% of the pairs are, the same in every run
			a node that loses 3.4% or more of what comes in: with 95%
			a sampled pair that loses 18.9% or more: with 95%
			false alarm: at most 1 clean run in 1,000`},
		{"no limit", mesh(4, 0, func(w *checkup.Worksheet) { w.Expect.Loss.Max = nil }), false, true, `
			a dead pair: always
			a partial loss: never, the plan has no limit (expect.loss.max)`},
		{"single measurements", mesh(4, 0, func(w *checkup.Worksheet) {
			w.Probes = []checkup.TransportProbe{{Transport: checkup.UDP, Probe: checkup.Probe{Sizes: []int{64}, Count: 1}}}
		}), false, true, `
			a dead pair: always
			a node that loses 33.9% or more of what comes in: with 95%
			a sampled pair that loses 75.2% or more: with 95%
			false alarm: at most 1 clean run in 1,000; pairs of 1 or 2 measurements add more`},
		{"nothing may be lost", mesh(4, 0, func(w *checkup.Worksheet) { w.Expect.Loss.Max = new(checkup.Percent(0)) }), false, false, `
			a dead pair: always
			a node that loses 0.7% or more of what comes in: with 95%
			a sampled pair that loses 1.7% or more: with 95%
			false alarm: at most 1 clean run in 1,000`},
	} {
		got := ""
		for _, line := range sightOf(test.w, test.confirm).sees(test.w, test.rotate) {
			got += "\n\t\t\t" + line.Text
		}
		if strings.TrimSpace(got) != strings.TrimSpace(test.want) {
			t.Errorf("%s:%s\nwant%s", test.name, got, test.want)
		}
	}
	unreachable := mesh(4, 0, func(w *checkup.Worksheet) { w.Expect = checkup.Expect{Unreachable: true} })
	if x := Explain(kind.Explained{Worksheet: unreachable}); x.Power != nil {
		t.Errorf("a plan that expects no answers sees losses: %+v", x.Power)
	}
}
