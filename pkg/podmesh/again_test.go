// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/judge/judgetest"
	"github.com/checkplan/checkplan/pkg/localise"
)

// confirms is a gate that wants failures to be confirmed.
var confirms = checkup.Gate{Require: checkup.RequirePass, Confirm: true}

// TestAgainOfRandomMeshes: a second look has pairs that failed, are undecided, or are of an undecided
// component, each once and in the order of the worksheet, at most mostAgain of them, and no other. It is the same for the same record,
// in any order of its observations. A clean look, a third look, and a gate that does not confirm have
// none.
func TestAgainOfRandomMeshes(t *testing.T) {
	for seed := range judgetest.Iterations(200, 5000) {
		mesh := judgetest.RandomMesh(seed)
		w, record := mesh.Worksheet, mesh.Measure()
		further := Again(w, mesh.Roster, record, confirms)
		doubtful := map[checkup.Pair]bool{}
		j := judge.Pairs(w, mesh.Roster, record, judging(confirms))
		for _, c := range localise.Explain(j).Undecided {
			for _, part := range c.Parts {
				doubtful[j.Outcomes[part.At].Pair] = true
			}
		}
		for i := range j.Outcomes {
			if o := &j.Outcomes[i]; o.Verdict == checkup.Fail || o.Verdict == checkup.Undecided {
				doubtful[o.Pair] = true
			}
		}
		if (further == nil) != (len(doubtful) == 0) {
			t.Fatalf("seed %d: a second look: %t, with %d doubtful pairs", seed, further != nil, len(doubtful))
		}
		if Again(w, mesh.Roster, record, checkup.Gate{}) != nil {
			t.Fatalf("seed %d: a second look although the gate does not confirm", seed)
		}
		if further == nil {
			continue
		}
		pairs := slices.Collect(further.Pairs())
		most, packets := mostAgain(w)
		if further.CountPackets() > packets {
			t.Fatalf("seed %d: %d packets, explained as at most %d", seed, further.CountPackets(), packets)
		}
		if further.Look != 1 || len(pairs) != min(len(doubtful), most) || len(pairs) != len(further.Again) {
			t.Fatalf("seed %d: look %d with %d pairs, %d listed, of %d", seed, further.Look, len(pairs), len(further.Again), len(doubtful))
		}
		for i, a := range further.Again {
			first := j.Find(a.Pair)
			if a.Pair != pairs[i] || !doubtful[a.Pair] ||
				a.Count < w.Measurements(a.Pair) || a.Count > countAgain(w.Measurements(a.Pair)) ||
				(a.Count == w.Measurements(a.Pair)) != (first.Received == 0) {
				t.Fatalf("seed %d: %+v, after %+v", seed, a, first)
			}
		}
		shuffled := *record
		shuffled.Observations = slices.Clone(record.Observations)
		rand.New(rand.NewPCG(seed, 9)).Shuffle(len(shuffled.Observations), func(a, b int) {
			shuffled.Observations[a], shuffled.Observations[b] = shuffled.Observations[b], shuffled.Observations[a]
		})
		if diff := cmp.Diff(further, Again(w, mesh.Roster, &shuffled, confirms)); diff != "" {
			t.Fatalf("seed %d: depends on the order of the observations:\n%s", seed, diff)
		}
		if Again(further, mesh.Roster, record, confirms) != nil {
			t.Fatalf("seed %d: a third look", seed)
		}
	}
}

// TestAgainIsBounded: of a mesh in which all fails, the second look has as many pairs as the budget
// allows, and every source and target has its share.
func TestAgainIsBounded(t *testing.T) {
	mesh := judgetest.NewMesh(7, 60, 10, 0, judgetest.DefaultProbes())
	mesh.Drop = func(judgetest.Packet) float64 { return 1 }
	w := mesh.Worksheet
	record := mesh.Measure()
	for _, tt := range []struct{ budget, want int }{{0, 1000}, {100, 1000}, {30_000, 3000}, {10_000_000, 6000}} {
		w.Budget = tt.budget
		further := Again(w, mesh.Roster, record, confirms)
		if most, _ := mostAgain(w); further == nil || len(further.Again) != tt.want || most != tt.want {
			t.Fatalf("budget %d: not %d pairs of %d", tt.budget, tt.want, w.CountPairs())
		}
		for name, n := range map[string]func(checkup.Again) int{
			"source": func(a checkup.Again) int { return a.Source },
			"target": func(a checkup.Again) int { return a.Target },
		} {
			each := make([]int, len(w.Sources))
			for _, a := range further.Again {
				each[n(a)]++
			}
			if slices.Max(each) > 3*slices.Min(each) {
				t.Errorf("budget %d: pairs by %s: %v, want them spread", tt.budget, name, each)
			}
		}
	}
}

// TestAgainCounts: a pair that was answered is measured five times as often, up to 200.
func TestAgainCounts(t *testing.T) {
	for n, want := range map[int]int{1: 5, 5: 25, 20: 100, 40: 200, 100: 200, 200: 200, 1000: 1000} {
		if got := countAgain(n); got != want {
			t.Errorf("%d measurements: again %d, want %d", n, got, want)
		}
	}
}

// TestAgainPorts: if one source port of a pair was never answered and another was, both are used
// again with others, 20 in all, each of them five times. Ports do not matter where nothing was
// answered, or every port was.
func TestAgainPorts(t *testing.T) {
	mesh := judgetest.NewMesh(7, 3, 0, 0, []checkup.TransportProbe{
		{Transport: checkup.UDP, Probe: checkup.Probe{Sizes: []int{64}, Count: 10}},
	})
	mesh.Drop = func(judgetest.Packet) float64 { return 1 }
	record := mesh.Measure()
	mesh.Worksheet.Expect.Loss.Max = new(checkup.Percent(0))
	for i, f := range [][]checkup.Flow{
		{{Port: 4001, Sent: 5}, {Port: 4002, Sent: 5}},
		{{Port: 4001, Sent: 5, Received: 4}, {Port: 4002, Sent: 5, Received: 1}},
		{{Port: 4002, Sent: 5}, {Port: 4001, Sent: 5, Received: 5}},
		{{Port: 0, Sent: 5}, {Port: 65536, Sent: 5, Received: 5}}, // hostile
	} {
		o := &record.Observations[i]
		o.Flows, o.Received, o.RTTs = f, f[0].Received+f[1].Received, slices.Repeat([]int64{1}, f[0].Received+f[1].Received)
	}
	further := Again(mesh.Worksheet, mesh.Roster, record, confirms)
	for i, want := range []struct {
		first []int // of its ports
		count int
	}{{nil, 10}, {nil, 50}, {[]int{4002, 4001}, 100}, {[]int{}, 100}} {
		a := further.AgainOf(record.Observations[i].Pair)
		if a == nil || a.Count != want.count || (a.Ports == nil) != (want.first == nil) ||
			a.Ports != nil && (len(a.Ports) != 20 || !slices.Equal(a.Ports[:len(want.first)], want.first)) {
			t.Errorf("pair %d: again %+v, want %d measurements by ports that begin with %v", i, a, want.count, want.first)
		}
		for _, port := range a.Ports {
			if port < 1 || port > 65535 {
				t.Errorf("pair %d: port %d", i, port)
			}
		}
	}
	if _, packets := mostAgain(mesh.Worksheet); further.CountPackets() > packets {
		t.Errorf("%d packets, explained as at most %d", further.CountPackets(), packets)
	}
}
