// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestMeasurable: probing is skipped only if every pair already has a cause that prevents
// its measurement.
func TestMeasurable(t *testing.T) {
	cause := &Cause{Stage: StageSetup, Message: "not there"}
	down, up := RosterEntry{Cause: cause}, RosterEntry{Addresses: map[IPFamily]string{IPv4: "198.18.0.1"}}
	vms := func(first, second *Cause) *Worksheet {
		ends := []Endpoint{{VM: &VM{}, Cause: first}, {VM: &VM{Target: true}, Cause: second}}
		return &Worksheet{Guests: &GuestSheet{}, Sources: ends, Targets: ends, Assignments: [][]int{{1}, {0}}}
	}
	watched := &Worksheet{
		Connections: &ConnectionSheet{}, Sources: make([]Endpoint, 1), Targets: make([]Endpoint, 1),
		Assignments: [][]int{{0}},
	}
	mesh := &Worksheet{Sources: make([]Endpoint, 2), Targets: make([]Endpoint, 2), Assignments: [][]int{{1}, {0}}}
	for name, tt := range map[string]struct {
		w    *Worksheet
		r    Roster
		want bool
	}{
		"all up":                           {mesh, Roster{Targets: []RosterEntry{up, up}}, true},
		"one target down":                  {mesh, Roster{Targets: []RosterEntry{up, down}}, true},
		"all targets down":                 {mesh, Roster{Targets: []RosterEntry{down, down}}, false},
		"nothing expected":                 {&Worksheet{}, Roster{}, true},
		"VMs up":                           {vms(nil, nil), Roster{Targets: []RosterEntry{up, up}}, true},
		"a VM down":                        {vms(nil, nil), Roster{Targets: []RosterEntry{up, down}}, false},
		"a node missing":                   {vms(nil, cause), Roster{Targets: []RosterEntry{up, up}}, false},
		"measurements reported one by one": {watched, Roster{Targets: []RosterEntry{down}}, true},
		"units that are not pairs":         {&Worksheet{Units: []string{"source"}}, Roster{}, true},
	} {
		if got := tt.w.Measurable(&tt.r); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// TestAgain: a further look expects exactly the pairs that Again lists, in the order of Pairs and with
// their own counts. A listed pair that the first look does not expect is ignored. Agents start within a tenth of the
// start jitter.
func TestAgain(t *testing.T) {
	first := Worksheet{
		Sources: make([]Endpoint, 3), Targets: make([]Endpoint, 4), Assignments: [][]int{{1, 3}, {0, 2, 3}, {0}},
		IPFamilies: IPFamilies, Probes: []TransportProbe{
			{Transport: TCP, Probe: Probe{Sizes: []int{0}, Count: 5}},
			{Transport: UDP, Probe: Probe{Sizes: []int{64, 1400}, Count: 20}},
		},
		Limits: Limits{PacketsPerSecond: 50, StartJitter: 5_000_000_000}, Warnings: []string{"said in the first look"},
	}
	first.Targets[3].Peer = &Peer{Family: IPv4, Transport: TLS}
	all := slices.Collect(first.Pairs())
	if n := first.CountPairs(); n != len(all) || n != 4*6+2 {
		t.Fatalf("the first look expects %d pairs, counted %d", len(all), n)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 100 {
		again := []Again{}
		var want []Pair
		packets := 0
		for _, p := range all {
			if rng.IntN(3) > 0 {
				continue
			}
			want = append(want, p)
			again = append(again, Again{Pair: p, Count: 7 + p.Source})
			packets += 7 + p.Source
			if rng.IntN(9) == 0 { // a size that is not on the worksheet
				p.Size = 9999
				again = append(again, Again{Pair: p, Count: 1})
			}
		}
		further := first.FurtherLook(again)
		if further.Look != 1 || further.Limits.StartJitter != 500_000_000 || further.Warnings != nil {
			t.Fatalf("look %d starts within %s, with warnings %q", further.Look, further.Limits.StartJitter, further.Warnings)
		}
		got := slices.Collect(further.Pairs())
		if !slices.Equal(got, want) || further.CountPairs() != len(want) || further.CountPackets() != packets {
			t.Fatalf("again %v: pairs %v, counted %d, %d packets; want %v, %d packets",
				further.Again, got, further.CountPairs(), further.CountPackets(), want, packets)
		}
		for _, p := range all {
			if asked := further.AgainOf(p); (asked != nil) != slices.Contains(want, p) ||
				(asked == nil) != (further.Measurements(p) == 0) {
				t.Fatalf("again %v: %v is asked as %v, %d measurements", further.Again, p, asked, further.Measurements(p))
			}
		}
		rng.Shuffle(len(further.Again), func(a, b int) { // hostile
			further.Again[a], further.Again[b] = further.Again[b], further.Again[a]
		})
		for p := range further.Pairs() {
			if !slices.Contains(want, p) {
				t.Fatalf("again in disorder yields %v", p)
			}
		}
	}
}

// TestTries: what an agent sends for a pair beside its measurements counts.
func TestTries(t *testing.T) {
	w := &Worksheet{
		Services: []ServiceFixture{{Name: "plain"}, {Name: "affine", ClientIP: 10}, {Name: "leaves"}, {Name: "ends"}},
		Sources:  []Endpoint{{Node: "n0"}},
		Targets: []Endpoint{
			{OfService: "plain"}, {OfService: "affine"}, {OfService: "leaves"}, {OfService: "ends"},
			{Node: "n0", In: []string{"leaves", "ends"}, Leaves: []string{"leaves"}, Ends: true},
		},
		Assignments: [][]int{{0, 1, 2, 3, 4}}, IPFamilies: []IPFamily{IPv4},
		Probes: []TransportProbe{
			{Transport: TCP, Probe: Probe{Sizes: []int{0}, Count: 10}},
			{Transport: UDP, Probe: Probe{Sizes: []int{0}, Count: 10}},
		},
		Timeouts: Timeouts{Probe: Duration(5 * time.Minute)},
	}
	want := map[int][2]int{1: {4, 4}, 2: {231, 621}, 3: {231, 231}} // by target, of TCP and UDP
	tries, sum := w.Tries(), 0
	for target := range w.Targets {
		for i, transport := range []Transport{TCP, UDP} {
			n := tries(Pair{Target: target, Family: IPv4, Transport: transport})
			if sum += n; n != want[target][i] {
				t.Errorf("%d tries of target %d over %s, want %d", n, target, transport, want[target][i])
			}
		}
	}
	if got := w.CountPackets(); got != 100+sum {
		t.Errorf("%d packets, want %d", got, 100+sum)
	}
	w.Look = 1
	if n := w.Tries()(Pair{Target: 2, Family: IPv4, Transport: UDP}); n != 0 {
		t.Errorf("%d tries in a second look, which has no turn", n)
	}
}
