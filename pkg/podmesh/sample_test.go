// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// mesh is the shape of a mesh: small numbers, so that what fails is small.
type mesh struct {
	both, sources, targets int // nodes on both sides, on one side only
	podsEach               int // existing pods on each target node; 0 means responders
	podsSpread             int // the i-th target node has up to so many more
	inside                 int // sources are so many existing pods on each source node, targets too if podsEach is set; 0 means fixtures
	zones                  int // zones over which the nodes are spread; 0 means none
	seed                   uint64
	degree                 int
	budget                 int // assignments; 0 means enough for everything
}

func (c mesh) endpoints() (sources, targets []checkup.Endpoint) {
	zone := func(i int) string {
		if c.zones == 0 {
			return ""
		}
		return fmt.Sprintf("zone-%d", i%c.zones)
	}
	target := func(node string, i int) {
		if c.podsEach == 0 {
			targets = append(targets, checkup.Endpoint{Node: node, Zone: zone(i)})
			return
		}
		more := 0
		if c.podsSpread > 0 {
			more = int(checkup.HashInts(c.seed, i) % uint64(c.podsSpread+1))
		}
		for p := range c.podsEach + more {
			targets = append(targets, checkup.Endpoint{Node: node, Zone: zone(i), Pod: fmt.Sprintf("ns/%s-%d", node, p)})
		}
	}
	source := func(node string, i int) {
		if c.inside == 0 {
			sources = append(sources, checkup.Endpoint{Node: node, Zone: zone(i)})
		}
		for p := range c.inside {
			sources = append(sources, checkup.Endpoint{Node: node, Zone: zone(i), Pod: fmt.Sprintf("ns/%s-%d", node, p), Inside: true})
		}
	}
	for i := range c.both {
		node := fmt.Sprintf("both-%d", i)
		source(node, i)
		target(node, i)
	}
	for i := range c.sources {
		source(fmt.Sprintf("source-%d", i), c.both+i)
	}
	for i := range c.targets {
		target(fmt.Sprintf("target-%d", i), c.both+i)
	}
	return sources, targets
}

// long says that there is time for more and larger clusters.
func long() bool { return os.Getenv("CHECKPLAN_LONG") != "" }

// pairable restates which pairs are possible, without the code under test.
func pairable(sources []checkup.Endpoint, s, t checkup.Endpoint) bool {
	if s.Inside {
		return t.Pod != s.Pod && t.Pod != "" || t.Pod == "" && t.Node != s.Pod
	}
	return s.Node != t.Node || t.Pod != "" && len(sources) == 1
}

// check builds a whole cycle of rounds and holds every guarantee against it.
func (c mesh) check(t *testing.T) {
	t.Helper()
	sources, targets := c.endpoints()
	possible := 0
	outPossible, inPossible := make([]int, len(sources)), make([]int, len(targets))
	zonePossible := map[[2]string]bool{}
	for i, s := range sources {
		for j, u := range targets {
			if pairable(sources, s, u) {
				possible++
				outPossible[i]++
				inPossible[j]++
				if s.Zone != "" && u.Zone != "" {
					zonePossible[[2]string{s.Zone, u.Zone}] = true
				}
			}
		}
	}
	budget := c.budget
	if budget == 0 {
		budget = max(1, 2*possible)
	}

	first := sample(c.seed, 0, c.degree, budget, sources, targets)
	if first.possible != possible {
		t.Fatalf("%+v: possible is %d, want %d", c, first.possible, possible)
	}
	if first.rounds < 1 {
		t.Fatalf("%+v: rounds is %d", c, first.rounds)
	}
	k := first.degree
	same := c.sources == 0 && c.targets == 0 && c.podsEach == 0 && c.inside == 0
	n := c.both
	if same && k > 0 && first.rounds != ceilDiv(n-1, k) {
		t.Errorf("%+v: rounds is %d, want ceil((n-1)/k) = %d", c, first.rounds, ceilDiv(n-1, k))
	}

	union := map[[2]int]bool{}
	var before map[[2]int]bool
	for round := range first.rounds {
		s := sample(c.seed, round, c.degree, budget, sources, targets)
		at := fmt.Sprintf("%+v round %d of %d", c, round, s.rounds)
		if s.degree != k || s.rounds != first.rounds || s.round != round {
			t.Fatalf("%s: degree %d rounds %d round %d, but round 0 has degree %d rounds %d", at, s.degree, s.rounds, s.round, k, first.rounds)
		}
		pairs := map[[2]int]bool{}
		in := make([]int, len(targets))
		total := 0
		zoneHit := map[[2]string]bool{}
		for i, assigned := range s.assignments {
			if !slices.IsSorted(assigned) || len(slices.Compact(slices.Clone(assigned))) != len(assigned) {
				t.Fatalf("%s: source %d has targets %v: not ascending, or one twice", at, i, assigned)
			}
			for _, j := range assigned {
				if !pairable(sources, sources[i], targets[j]) {
					t.Fatalf("%s: node %s probes itself", at, sources[i].Node)
				}
				in[j]++
				total++
				pairs[[2]int{i, j}] = true
				union[[2]int{i, j}] = true
				zoneHit[[2]string{sources[i].Zone, targets[j].Zone}] = true
			}
		}
		if total > budget {
			t.Errorf("%s: %d assignments, budget %d", at, total, budget)
		}
		if k > 0 {
			for i, assigned := range s.assignments {
				if want := min(k, outPossible[i]); len(assigned) < want {
					t.Errorf("%s: source %d has out-degree %d, want %d or more", at, i, len(assigned), want)
				}
				if same && c.zones == 0 && len(assigned) != k {
					t.Errorf("%s: source %d has out-degree %d, want exactly %d", at, i, len(assigned), k)
				}
			}
			for j := range targets {
				if want := min(k, inPossible[j]); in[j] < want {
					t.Errorf("%s: target %d has in-degree %d, want %d or more", at, j, in[j], want)
				}
				if same && c.zones == 0 && in[j] != k {
					t.Errorf("%s: target %d has in-degree %d, want exactly %d", at, j, in[j], k)
				}
			}
		}
		// Zone extras and existing pods' fillings may repeat; nothing else does, but
		// for the filling of the last block.
		if last := round == first.rounds-1; round > 0 && !last && c.zones == 0 && c.podsEach == 0 {
			for p := range pairs {
				if before[p] {
					t.Errorf("%s: pair %v was in the round before", at, p)
				}
			}
		}
		if s.zonePairs != len(zonePossible) {
			t.Errorf("%s: %d zone pairs possible, want %d", at, s.zonePairs, len(zonePossible))
		}
		delete(zoneHit, [2]string{})
		if s.zonePairsHit != len(zoneHit) {
			t.Errorf("%s: %d zone pairs hit, want %d", at, s.zonePairsHit, len(zoneHit))
		}
		if len(zoneHit) < len(zonePossible) && total < budget && len(zonePossible) <= budget {
			t.Errorf("%s: %d of %d zone pairs hit by %d assignments, with a budget of %d", at, len(zoneHit), len(zonePossible), total, budget)
		}
		before = pairs
	}
	if len(union) != possible {
		t.Errorf("%+v: %d rounds have %d pairs together, want the full mesh of %d", c, first.rounds, len(union), possible)
	}
	if again := sample(c.seed, first.rounds, c.degree, budget, sources, targets); !slices.EqualFunc(again.assignments, first.assignments, slices.Equal) {
		t.Errorf("%+v: round %d is not round 0 again", c, first.rounds)
	}
}

func TestSampleGuarantees(t *testing.T) {
	t.Run("same nodes on both sides", func(t *testing.T) {
		for n := range 26 {
			for degree := range 28 {
				mesh{both: n, seed: uint64(n*31 + degree), degree: degree}.check(t)
			}
		}
	})
	t.Run("sides overlap", func(t *testing.T) {
		for both := range 6 {
			for sources := range 6 {
				for targets := range 6 {
					for degree := range 8 {
						mesh{both: both, sources: sources, targets: targets, degree: degree, seed: uint64(degree)}.check(t)
					}
				}
			}
		}
	})
	t.Run("existing pods", func(t *testing.T) {
		for both := range 5 {
			for sources := range 5 {
				for targets := range 4 {
					for pods := 1; pods <= 5; pods++ {
						for degree := range 6 {
							mesh{both: both, sources: sources, targets: targets, podsEach: pods, degree: degree, seed: uint64(pods)}.check(t)
						}
					}
				}
			}
		}
	})
	t.Run("from inside existing pods", func(t *testing.T) {
		for both := range 4 {
			for sources := range 3 {
				for targets := range 3 {
					for pods := range 4 {
						for inside := 1; inside <= 3; inside++ {
							for degree := range 5 {
								mesh{both: both, sources: sources, targets: targets, podsEach: pods, inside: inside, degree: degree, seed: uint64(pods)}.check(t)
							}
						}
					}
				}
			}
		}
	})
	t.Run("existing pods and every budget", func(t *testing.T) {
		for both := 2; both <= 4; both++ {
			for sources := range 3 {
				for pods := 2; pods <= 4; pods++ {
					for budget := 1; budget <= both*pods*(both+sources-1); budget++ {
						mesh{both: both, sources: sources, podsEach: pods, degree: 3, seed: uint64(pods), budget: budget}.check(t)
					}
				}
			}
		}
	})
	t.Run("any", func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		clusters := 100
		if long() {
			clusters = 3000
		}
		for range clusters {
			c := mesh{
				both: r.IntN(20), sources: r.IntN(12), targets: r.IntN(12), podsEach: r.IntN(3), podsSpread: r.IntN(8), inside: r.IntN(3),
				zones: r.IntN(6), seed: r.Uint64(), degree: r.IntN(15), budget: r.IntN(400),
			}
			c.check(t)
			if t.Failed() {
				return
			}
		}
	})
}

// TestSampleOfLargeClusters checks single rounds where a whole cycle is too
// much to build.
func TestSampleOfLargeClusters(t *testing.T) {
	for _, n := range []int{100, 1000, 5000, 10000} {
		for _, k := range []int{1, 10, 32} {
			if n > 1000 && k != 10 && !long() {
				continue
			}
			c := mesh{both: n, degree: k, seed: uint64(n), budget: 1 << 30}
			sources, targets := c.endpoints()
			var before [][]int
			for _, round := range []int{0, 1, 2, ceilDiv(n-1, k) - 1} {
				s := sample(c.seed, round, k, c.budget, sources, targets)
				if s.rounds != ceilDiv(n-1, k) {
					t.Errorf("n %d, k %d: %d rounds, want %d", n, k, s.rounds, ceilDiv(n-1, k))
				}
				in := make([]int, n)
				for i, assigned := range s.assignments {
					if len(assigned) != k || slices.Contains(assigned, i) || len(slices.Compact(slices.Clone(assigned))) != k {
						t.Fatalf("n %d, k %d, round %d: source %d has targets %v, want %d others", n, k, round, i, assigned, k)
					}
					for _, j := range assigned {
						in[j]++
						if before != nil && slices.Contains(before[i], j) {
							t.Fatalf("n %d, k %d, round %d: pair %d, %d was in the round before", n, k, round, i, j)
						}
					}
				}
				if slices.Min(in) != k || slices.Max(in) != k {
					t.Errorf("n %d, k %d, round %d: in-degrees from %d to %d, want %d", n, k, round, slices.Min(in), slices.Max(in), k)
				}
				before = s.assignments
				if round == 2 {
					before = nil // the next one is not its successor
				}
			}
		}
	}
}

// TestFilledPairsAreFarAway: where existing pods made a round short of pairs,
// those that fill it up are not those of its neighbours.
func TestFilledPairsAreFarAway(t *testing.T) {
	sources, targets := mesh{both: 20, podsEach: 1, podsSpread: 1}.endpoints()
	var before [][]int
	filled := 0
	for round := range sample(1, 0, 2, 10_000, sources, targets).rounds - 1 {
		s := sample(1, round, 2, 10_000, sources, targets)
		for i, assigned := range s.assignments {
			filled += max(0, len(assigned)-2*len(targets)/len(sources))
			for _, j := range assigned {
				if before != nil && slices.Contains(before[i], j) {
					t.Errorf("round %d: %s -> %s was in the round before", round, sources[i].Node, targets[j].Pod)
				}
			}
		}
		before = s.assignments
	}
	if filled == 0 {
		t.Error("no round was filled up: this test says nothing")
	}
}

// TestFullMeshBeyondTheBudget must not build the 10^8 pairs that it refuses.
func TestFullMeshBeyondTheBudget(t *testing.T) {
	sources, targets := mesh{both: 10000}.endpoints()
	s := sample(1, 0, 0, 100_000, sources, targets)
	if s.degree != 10 || s.rounds != 1000 || s.possible != 10000*9999 {
		t.Errorf("degree %d, rounds %d, possible %d, want 10, 1000, 99990000", s.degree, s.rounds, s.possible)
	}
}

func TestSampleBudget(t *testing.T) {
	tests := []struct {
		name           string
		c              mesh
		degree, rounds int
	}{
		{"full mesh fits", mesh{both: 10, budget: 90}, 9, 1},
		{"full mesh does not fit by one", mesh{both: 10, budget: 89}, 8, 2},
		{"largest degree that fits", mesh{both: 10, degree: 5, budget: 45}, 4, 3},
		{"degree fits", mesh{both: 10, degree: 5, budget: 50}, 5, 2},
		{"degree of 1 fits", mesh{both: 10, degree: 5, budget: 10}, 1, 9},
		{"not even a degree of 1", mesh{both: 10, degree: 5, budget: 9}, 0, 10},
		{"one pair a run", mesh{both: 3, degree: 1, budget: 1}, 0, 6},
		{"one target more, its pairs spread over the rounds", mesh{both: 3, targets: 1, degree: 1, budget: 5}, 1, 2},
		{"one target more, and no room for its pairs", mesh{both: 3, targets: 1, degree: 1, budget: 4}, 0, 3},
		{"one target only", mesh{both: 1, sources: 4, degree: 2}, 1, 1},
		{"more degree than there are targets", mesh{both: 3, targets: 1, degree: 9}, 2, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			sources, targets := test.c.endpoints()
			budget := test.c.budget
			if budget == 0 {
				budget = 1000
			}
			s := sample(test.c.seed, 0, test.c.degree, budget, sources, targets)
			if s.degree != test.degree || s.rounds != test.rounds {
				t.Errorf("degree %d, rounds %d, want %d, %d", s.degree, s.rounds, test.degree, test.rounds)
			}
			test.c.check(t)
		})
	}
}

// TestSampleIgnoresInputOrder compares samples by name.
func TestSampleIgnoresInputOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		c := mesh{both: r.IntN(12), sources: r.IntN(5), targets: r.IntN(5), podsEach: r.IntN(3), podsSpread: r.IntN(3), zones: r.IntN(4), degree: r.IntN(6), seed: r.Uint64()}
		named := func(sources, targets []checkup.Endpoint) map[string]bool {
			names := map[string]bool{}
			s := sample(c.seed, 1, c.degree, 1000, sources, targets)
			for i, assigned := range s.assignments {
				for _, j := range assigned {
					names[sources[i].Name()+" -> "+targets[j].Name()] = true
				}
			}
			return names
		}
		sources, targets := c.endpoints()
		want := named(sources, targets)
		r.Shuffle(len(sources), func(i, j int) { sources[i], sources[j] = sources[j], sources[i] })
		r.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
		if diff := cmp.Diff(want, named(sources, targets)); diff != "" {
			t.Fatalf("%+v: the order of the input changes the sample (-sorted +shuffled):\n%s", c, diff)
		}
	}
}

// TestSampleChangesWithSeed guards against a seed that is not used.
func TestSampleChangesWithSeed(t *testing.T) {
	sources, targets := mesh{both: 50}.endpoints()
	a, b := sample(1, 0, 3, 1000, sources, targets), sample(2, 0, 3, 1000, sources, targets)
	if slices.EqualFunc(a.assignments, b.assignments, slices.Equal) {
		t.Error("seeds 1 and 2 give the same sample")
	}
}

// TestSampleIsStable pins one sample: a report's sample can be built again from
// its seed by later versions only if none of this ever changes.
func TestSampleIsStable(t *testing.T) {
	sources, targets := mesh{both: 6, targets: 1}.endpoints()
	got := sample(42, 1, 2, 1000, sources, targets).assignments
	want := [][]int{{3, 4}, {2, 5, 6}, {0, 5}, {1, 2, 6}, {1, 3}, {0, 4}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sample of seed 42 changed (-want +got):\n%s", diff)
	}
}

func FuzzSample(f *testing.F) {
	f.Add(byte(3), byte(0), byte(1), byte(0), byte(0), byte(2), uint64(1), byte(1), uint16(0))
	f.Add(byte(0), byte(9), byte(2), byte(3), byte(2), byte(0), uint64(7), byte(0), uint16(5))
	f.Fuzz(func(t *testing.T, both, sources, targets, podsEach, podsSpread, zones byte, seed uint64, degree byte, budget uint16) {
		mesh{
			both: int(both % 24), sources: int(sources % 16), targets: int(targets % 16),
			podsEach: int(podsEach % 4), podsSpread: int(podsSpread % 8), zones: int(zones % 8),
			seed: seed, degree: int(degree), budget: int(budget % 1024),
		}.check(t)
	})
}
