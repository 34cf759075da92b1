// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/judge/judgetest"
)

// TestCarries: every place carries exactly what its list of measured ways says.
func TestCarries(t *testing.T) {
	causes := map[checkup.FindingCause]bool{}
	for seed := range judgetest.Iterations(20, 400) {
		n := judgetest.NewMesh(seed, 13, 4, 3, judgetest.DefaultProbes())
		inRacks(n)
		n.Drop = func(p judgetest.Packet) float64 { return judgetest.When((p.To < 4) != (p.From < 4)) }
		j := judge.Pairs(n.Worksheet, n.Roster, n.Measure(), judge.Rules{})
		l := newLocaliser(NewEvidence(j), judge.Lost, make([]bool, len(j.Outcomes)))
		for _, p := range l.places {
			causes[p.cause] = true
			c := &candidate{l: l, place: p}
			for k := range l.ways {
				from, to := &l.w.Sources[l.ways[k].source], &l.w.Targets[l.ways[k].target]
				there, back := slices.Contains(p.there, int32(k)), slices.Contains(p.back, int32(k))
				if a, b, _ := strings.Cut(p.subject, " -> "); !p.directed() || a == b {
					back = there // both ways go through it, in one list
				}
				if a, b := c.affects(from, to, l.attributes[0]); a != there || b != back {
					t.Fatalf("seed %d: %s, %s -> %s: affects requests %t and answers %t, want %t and %t",
						seed, c, from.Node, to.Node, a, b, there, back)
				}
			}
		}
	}
	if len(causes) != 12 {
		t.Errorf("places of %d causes: %v", len(causes), causes)
	}
}

// TestSeparating: the pairs are measurable, at most maxSeparating for each finding, of one way each, and the same for
// the same random. A finding without alternatives asks for none.
func TestSeparating(t *testing.T) {
	asked := 0
	for seed := range judgetest.Iterations(60, 2000) {
		rng := rand.New(rand.NewPCG(seed, 7))
		n := judgetest.NewMesh(seed, 6+rng.IntN(12), 1+rng.IntN(3), rng.IntN(4), judgetest.DefaultProbes())
		n.Worksheet.Expect.Loss.Max = new(checkup.Percent(1))
		bad, share := rng.IntN(6), []float64{0.1, 1}[rng.IntN(2)]
		n.Drop = func(p judgetest.Packet) float64 { return share * judgetest.When(p.To == bad) }
		n.Tally = rng.IntN(2) == 0
		x := Explain(judge.Pairs(n.Worksheet, n.Roster, n.Measure(), judge.Rules{Pools: true, LooksAgain: true}))
		measurable := func(p checkup.Pair) int {
			if p.Source == p.Target || p.Target == 0 {
				return 0
			}
			return 20
		}
		separating := func() []checkup.Pair { return x.Separating(rand.New(rand.NewPCG(seed, 8)), measurable) }
		pairs := separating()
		asked += len(pairs)
		if diff := cmp.Diff(pairs, separating()); diff != "" {
			t.Fatalf("seed %d: another choice:\n%s", seed, diff)
		}
		alternatives, ways := 0, map[[2]int]int{}
		for _, f := range x.Found {
			f.settle()
			if len(f.Alternatives) > 0 {
				alternatives++
			}
		}
		for _, p := range pairs {
			if ways[[2]int{p.Source, p.Target}]++; measurable(p) == 0 || ways[[2]int{p.Source, p.Target}] > alternatives {
				t.Fatalf("seed %d: %+v, in %+v", seed, p, pairs)
			}
		}
		if len(pairs) > alternatives*maxSeparating {
			t.Fatalf("seed %d: %d pairs for %d findings with alternatives", seed, len(pairs), alternatives)
		}
	}
	if asked == 0 {
		t.Error("nothing was asked for")
	}
}
