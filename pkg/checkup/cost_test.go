// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// costSheet is a worksheet of three sources and four targets, of which two are
// on one node and one has no source.
func costSheet() *Worksheet {
	return &Worksheet{
		Plan: "plan", Check: "mesh", Kind: "podMesh",
		Sources:     []Endpoint{{Node: "a"}, {Node: "b"}, {Node: "idle"}},
		Targets:     []Endpoint{{Node: "b"}, {Node: "c", Pod: "ns/one"}, {Node: "c", Pod: "ns/two"}, {Node: "unused"}},
		Assignments: [][]int{{0, 1, 2}, {1}, {}},
		IPFamilies:  []IPFamily{IPv4, IPv6},
		Probes: []TransportProbe{
			{TCP, Probe{Sizes: []int{0, 1000}, Count: 5, Interval: Duration(100 * time.Millisecond), Timeout: Duration(2 * time.Second)}},
			{ICMP, Probe{Sizes: []int{56}, Count: 20, Interval: Duration(100 * time.Millisecond), Timeout: Duration(time.Second)}},
		},
		Limits:   Limits{PacketsPerSecond: 100, Concurrency: 4, StartJitter: Duration(500 * time.Millisecond)},
		Timeouts: Timeouts{Setup: Duration(2 * time.Minute), Probe: Duration(5 * time.Minute)},
	}
}

func TestCost(t *testing.T) {
	p := &Plan{Teardown: TeardownAlways, Retention: Retention{Reports: 10}}
	got := costSheet().Cost(p, "agent:v1")
	want := Cost{
		Check: "mesh", Kind: "podMesh", Image: "agent:v1", Capabilities: []string{},
		Agents: 2, Responders: 1, PodsPerNode: 2,
		// One target takes 2 x 5 connects and, in the second in which 11 of the 20
		// fit, 11 echo requests, in each family: 42.
		Nodes: []NodeCost{
			{Node: "a", Agents: 1, PeakSent: 100}, // 3 x 42, but for its limit
			{Node: "b", Agents: 1, Responders: 1, PeakSent: 42, PeakReceived: 42},
			{Node: "c", PeakReceived: 84 + 42}, // two targets of a, one of b
		},
		Pairs:    4 * 2 * 3,
		Packets:  4 * 2 * (5 + 5 + 20),
		PeakSent: 100, PeakReceived: 126,
		// 4 targets: of tcp 5 times the connection and the connection with 1000
		// bytes both ways, of icmp 20 times two packets.
		Bytes: 4 * (5*(380+380+2*(1000+2*52)) + 20*2*(20+8+56) +
			5*(520+520+2*(1000+2*72)) + 20*2*(40+8+56)),
		// Source a has 3 targets: 12 tcp pairs of 400ms and 6 icmp pairs of 1900ms,
		// four at a time.
		ExpectedProbe: Duration(500*time.Millisecond + (12*400+6*1900)*time.Millisecond/4),
		Longest:       Duration(7 * time.Minute),
		Objects: []ObjectCost{
			{Kind: "Pod", Role: RoleResponder, Count: 1, Until: "teardown, after every run"},
			{Kind: "Pod", Role: RoleAgent, Count: 2, Until: "teardown, after every run"},
			{Kind: "ConfigMap", Role: RoleAgent, Count: 2, Until: "teardown, after every run"},
			{Kind: "ConfigMap", Role: RoleWorksheet, Count: 1, AtLeast: true, LeftBehind: true, Until: "the PipelineRun is deleted"},
			{Kind: "ConfigMap", Role: RoleRecord, Count: 1, AtLeast: true, LeftBehind: true, Until: "the PipelineRun is deleted"},
			{Kind: "ConfigMap", Role: RoleReport, Count: 1, AtLeast: true, LeftBehind: true, Until: "10 newer reports of the plan are there"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cost (-want +got):\n%s", diff)
	}
}

// TestCostOfTeardown: what a plan keeps is left behind.
func TestCostOfTeardown(t *testing.T) {
	for _, teardown := range Teardowns {
		for _, o := range costSheet().Cost(&Plan{Teardown: teardown}, "").Objects {
			fixture := slices.Contains(FixtureRoles, o.Role)
			if want := !fixture || teardown != TeardownAlways; o.LeftBehind != want {
				t.Errorf("teardown %s: %s of role %s left behind: %v, want %v", teardown, o.Kind, o.Role, o.LeftBehind, want)
			}
			if o.Until == "" {
				t.Errorf("teardown %s: nothing removes the %s of role %s", teardown, o.Kind, o.Role)
			}
		}
	}
}

func TestExpectedProbe(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Worksheet)
		want   time.Duration
	}{
		{"by rate", func(w *Worksheet) { w.Limits.PacketsPerSecond = 10 }, 500*time.Millisecond + 18*time.Second},
		{"by concurrency", func(w *Worksheet) { w.Limits.Concurrency = 1 }, 500*time.Millisecond + 16200*time.Millisecond},
		{"by the longest pair", func(w *Worksheet) { w.Limits.Concurrency = 1000; w.Limits.PacketsPerSecond = 100_000 }, 500*time.Millisecond + 1900*time.Millisecond},
		{"no answer expected", func(w *Worksheet) {
			w.Limits.Concurrency = 1000
			w.Limits.PacketsPerSecond = 100_000
			w.Expect.Unreachable = true
		}, 500*time.Millisecond + 2900*time.Millisecond},
		{"nothing to measure", func(w *Worksheet) { w.Assignments = [][]int{{}, {}, {}} }, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := costSheet()
			test.change(w)
			if got := time.Duration(w.Cost(&Plan{}, "").ExpectedProbe); got != test.want {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
}

// TestCountPackets counts by the pairs themselves.
func TestCountPackets(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 100 {
		w := costSheet()
		for i := range w.Probes {
			w.Probes[i].Count = r.IntN(9)
		}
		for s := range w.Assignments {
			w.Assignments[s] = slices.Clone([]int{0, 1, 2, 3}[:r.IntN(5)])
		}
		want, in := 0, make([]int, len(w.Targets))
		for pair := range w.Pairs() {
			p, _ := w.Probe(pair.Transport)
			want += p.Count
			in[pair.Target]++
		}
		if got := w.CountPackets(); got != want {
			t.Fatalf("%d packets, want %d, of %v", got, want, w.Assignments)
		}
		for target, degree := range w.InDegrees() {
			if degree*w.PairsPerAssignment(0) != in[target] {
				t.Fatalf("target %d has in-degree %d, but %d pairs of %d each", target, degree, in[target], w.PairsPerAssignment(0))
			}
		}
	}
}

func TestWireBytes(t *testing.T) {
	tests := []struct {
		transport Transport
		family    IPFamily
		size      int
		want      int64
	}{
		{UDP, IPv4, 64, 2 * (20 + 8 + 64)},
		{UDP, IPv6, 64, 2 * (40 + 8 + 64)},
		{ICMP, IPv4, 56, 2 * (20 + 8 + 56)},
		{UDP, IPv4, 1472, 2 * 1500},              // just fits
		{UDP, IPv4, 1473, 2 * (1481 + 2*20)},     // two fragments
		{UDP, IPv6, 1453, 2 * (1461 + 2*48)},     // two fragments, with their own header
		{ICMP, IPv4, 65507, 2 * (65515 + 45*20)}, // the largest datagram: 45 fragments
		{TCP, IPv4, 0, 2*60 + 5*52},
		{TCP, IPv6, 0, 2*80 + 5*72},
		{TCP, IPv4, 1448, 380 + 2*(1448+2*52)},
		{TCP, IPv4, 1449, 380 + 2*(1449+4*52)},
		{HTTP, IPv4, 0, 380 + (100 + 2*52) + (150 + 2*52)},
		{TLS, IPv4, 0, 380 + (700 + 2*52) + (2000 + 2*2*52)},
		{HTTP, IPv6, 10_000, 520 + (100 + 2*72) + (10_150 + 2*8*72)},
	}
	seen := map[Transport]bool{}
	for _, test := range tests {
		seen[test.transport] = true
		if got := wireBytes(test.transport, test.family, test.size); got != test.want {
			t.Errorf("%s %s %d: %d bytes, want %d", test.transport, test.family, test.size, got, test.want)
		}
	}
	for _, transport := range Transports {
		if !seen[transport] {
			t.Errorf("no test of %s", transport)
		}
	}
}
