// SPDX-License-Identifier: Apache-2.0

package cost

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// costSheet is a worksheet of three sources and four targets, of which two are
// on one node and one has no source.
func costSheet() *checkup.Worksheet {
	return &checkup.Worksheet{
		Plan: "plan", Check: "mesh", Kind: "podMesh",
		Sources:     []checkup.Endpoint{{Node: "a"}, {Node: "b"}, {Node: "idle"}},
		Targets:     []checkup.Endpoint{{Node: "b"}, {Node: "c", Pod: "ns/one"}, {Node: "c", Pod: "ns/two"}, {Node: "unused"}},
		Assignments: [][]int{{0, 1, 2}, {1}, {}},
		IPFamilies:  []checkup.IPFamily{checkup.IPv4, checkup.IPv6},
		Probes: []checkup.TransportProbe{
			{Transport: checkup.TCP, Probe: checkup.Probe{Sizes: []int{0, 1000}, Count: 5, Interval: checkup.Duration(100 * time.Millisecond), Timeout: checkup.Duration(2 * time.Second)}},
			{Transport: checkup.ICMP, Probe: checkup.Probe{Sizes: []int{56}, Count: 20, Interval: checkup.Duration(100 * time.Millisecond), Timeout: checkup.Duration(time.Second)}},
		},
		Limits:   checkup.Limits{PacketsPerSecond: 100, Concurrency: 4, StartJitter: checkup.Duration(500 * time.Millisecond)},
		Timeouts: checkup.Timeouts{Setup: checkup.Duration(2 * time.Minute), Probe: checkup.Duration(5 * time.Minute)},
	}
}

func TestCost(t *testing.T) {
	p := &checkup.Plan{Teardown: checkup.TeardownAlways, Retention: checkup.Retention{Reports: 10}}
	got := Of(costSheet(), p, "agent:v1")
	want := Cost{
		Check: "mesh", Kind: "podMesh", Image: "agent:v1",
		Agents: 2, Responders: 1, PodsPerNode: 2,
		// One target takes 2 x 5 connects and, in the second in which 11 of the 20
		// fit, 11 echo requests, in each family: 42.
		Nodes: []Node{
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
		ExpectedProbe: checkup.Duration(500*time.Millisecond + (12*400+6*1900)*time.Millisecond/4),
		Longest:       checkup.Duration(7 * time.Minute),
		Objects: []Object{
			{Kind: "Pod", Role: checkup.RoleResponder, Count: 1, Until: "teardown, after every run"},
			{Kind: "Pod", Role: checkup.RoleAgent, Count: 2, Until: "teardown, after every run"},
			{Kind: "ConfigMap", Role: checkup.RoleAgent, Count: 2, Until: "teardown, after every run"},
			{Kind: "ConfigMap", Role: checkup.RoleWorksheet, Count: 1, AtLeast: true, LeftBehind: true, Until: "the PipelineRun is deleted"},
			{Kind: "ConfigMap", Role: checkup.RoleRecord, Count: 1, AtLeast: true, LeftBehind: true, Until: "the PipelineRun is deleted"},
			{Kind: "ConfigMap", Role: checkup.RoleReport, Count: 1, AtLeast: true, LeftBehind: true, Until: "10 newer reports of the plan exist"},
			{Kind: "ConfigMap", Role: checkup.RoleHistory, Count: 3, AtLeast: true, LeftBehind: true, Until: "somebody deletes the plan's history, of at most 16 MiB"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cost (-want +got):\n%s", diff)
	}
}

// TestCostOfTeardown: what a plan keeps is left behind.
func TestCostOfTeardown(t *testing.T) {
	for _, teardown := range checkup.Teardowns {
		for _, o := range Of(costSheet(), &checkup.Plan{Teardown: teardown}, "").Objects {
			fixture := slices.Contains(checkup.FixtureRoles, o.Role)
			if want := !fixture || teardown != checkup.TeardownAlways; o.LeftBehind != want {
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
		change func(*checkup.Worksheet)
		want   time.Duration
	}{
		{"by rate", func(w *checkup.Worksheet) { w.Limits.PacketsPerSecond = 10 }, 500*time.Millisecond + 18*time.Second},
		{"by concurrency", func(w *checkup.Worksheet) { w.Limits.Concurrency = 1 }, 500*time.Millisecond + 16200*time.Millisecond},
		{"by the longest pair", func(w *checkup.Worksheet) { w.Limits.Concurrency = 1000; w.Limits.PacketsPerSecond = 100_000 }, 500*time.Millisecond + 1900*time.Millisecond},
		{"no answer expected", func(w *checkup.Worksheet) {
			w.Limits.Concurrency = 1000
			w.Limits.PacketsPerSecond = 100_000
			w.Expect.Unreachable = true
		}, 500*time.Millisecond + 2900*time.Millisecond},
		{"a session affinity ends four times", func(w *checkup.Worksheet) {
			w.Services = []checkup.ServiceFixture{{}, {ClientIP: 10}}
		}, 500*time.Millisecond + 48*time.Second},
		{"nothing to measure", func(w *checkup.Worksheet) { w.Assignments = [][]int{{}, {}, {}} }, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := costSheet()
			test.change(w)
			if got := time.Duration(Of(w, &checkup.Plan{}, "").ExpectedProbe); got != test.want {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
}

// TestCostOfTables: agents that read rules send nothing, and each is on the host network.
func TestCostOfTables(t *testing.T) {
	w := costSheet()
	w.Tables = &checkup.TableSheet{Interval: checkup.Duration(10 * time.Second)}
	w.Sources = []checkup.Endpoint{{Node: "a", HostNetwork: true}, {Node: "b", HostNetwork: true}}
	w.Targets, w.Assignments, w.Probes = nil, nil, nil
	got := Of(w, &checkup.Plan{}, "")
	if want := []Node{{Node: "a", Agents: 1}, {Node: "b", Agents: 1}}; !slices.Equal(got.Nodes, want) {
		t.Errorf("nodes %+v, want %+v", got.Nodes, want)
	}
	if got.Agents != 2 || got.HostNetwork != 2 || got.PodsPerNode != 1 || got.Packets+got.Pairs+got.PeakSent+got.PeakReceived != 0 {
		t.Errorf("cost %+v, want two agents that send nothing", got)
	}
	if got.ExpectedProbe != w.Limits.StartJitter+w.Tables.Interval {
		t.Errorf("about %s of probing, want the interval", got.ExpectedProbe)
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
		transport checkup.Transport
		family    checkup.IPFamily
		size      int
		want      int64
	}{
		{checkup.UDP, checkup.IPv4, 64, 2 * (20 + 8 + 64)},
		{checkup.UDP, checkup.IPv6, 64, 2 * (40 + 8 + 64)},
		{checkup.ICMP, checkup.IPv4, 56, 2 * (20 + 8 + 56)},
		{checkup.UDP, checkup.IPv4, 1472, 2 * 1500},              // just fits
		{checkup.UDP, checkup.IPv4, 1473, 2 * (1481 + 2*20)},     // two fragments
		{checkup.UDP, checkup.IPv6, 1453, 2 * (1461 + 2*48)},     // two fragments, with their own header
		{checkup.ICMP, checkup.IPv4, 65507, 2 * (65515 + 45*20)}, // the largest datagram: 45 fragments
		{checkup.TCP, checkup.IPv4, 0, 2*60 + 5*52},
		{checkup.TCP, checkup.IPv6, 0, 2*80 + 5*72},
		{checkup.TCP, checkup.IPv4, 1448, 380 + 2*(1448+2*52)},
		{checkup.TCP, checkup.IPv4, 1449, 380 + 2*(1449+4*52)},
		{checkup.HTTP, checkup.IPv4, 0, 380 + (100 + 2*52) + (150 + 2*52)},
		{checkup.TLS, checkup.IPv4, 0, 380 + (700 + 2*52) + (2000 + 2*2*52)},
		{checkup.DNSUDP, checkup.IPv4, 0, 2*(20+8) + 60 + 90},
		{checkup.DNSTCP, checkup.IPv4, 0, 380 + (60 + 2*52) + (90 + 2*52)},
		{checkup.HTTP, checkup.IPv6, 10_000, 520 + (100 + 2*72) + (10_150 + 2*8*72)},
	}
	seen := map[checkup.Transport]bool{}
	for _, test := range tests {
		seen[test.transport] = true
		if got := wireBytes(test.transport, test.family, test.size); got != test.want {
			t.Errorf("%s %s %d: %d bytes, want %d", test.transport, test.family, test.size, got, test.want)
		}
	}
	for _, transport := range checkup.Transports {
		if !seen[transport] {
			t.Errorf("no test of %s", transport)
		}
	}
}

// guestSheet has two pairs of VMs: a to b by a bridge, of which a third cannot be
// started, and any two nodes by SR-IOV.
func guestSheet() *checkup.Worksheet {
	vm := func(node string, binding checkup.InterfaceBinding, target bool) checkup.Endpoint {
		return checkup.Endpoint{Node: node, VM: &checkup.VM{Binding: binding, Target: target}}
	}
	limit, loss := checkup.Duration(time.Millisecond), checkup.Percent(1)
	w := &checkup.Worksheet{
		Plan: "plan", Check: "vms", Kind: "vmLatency",
		Sources:     []checkup.Endpoint{vm("a", checkup.BindingBridge, false), vm("b", checkup.BindingBridge, true), vm("", checkup.BindingSRIOV, false), vm("", checkup.BindingSRIOV, true), vm("a", checkup.BindingBridge, false), vm("gone", checkup.BindingBridge, true)},
		Assignments: [][]int{{1}, {0}, {3}, {2}, {5}, {4}},
		IPFamilies:  []checkup.IPFamily{checkup.IPv4, checkup.IPv6},
		Probes:      []checkup.TransportProbe{{Transport: checkup.ICMP, Probe: checkup.Probe{Sizes: []int{checkup.VMEchoSize}, Count: 25, Interval: checkup.Duration(200 * time.Millisecond), Timeout: checkup.Duration(5 * time.Second)}}},
		Expect:      checkup.Expect{Loss: checkup.LossLimit{Max: &loss}, Latency: checkup.LatencyLimits{Max: &limit}},
		Limits:      checkup.Limits{PacketsPerSecond: 1000, Concurrency: 16},
		Timeouts:    checkup.Timeouts{Setup: checkup.Duration(5 * time.Minute), Probe: checkup.Duration(2 * time.Minute)},
		Guests:      &checkup.GuestSheet{Guest: checkup.Guest{Memory: "128Mi"}, Duration: checkup.Duration(5 * time.Second)},
	}
	cause := &checkup.Cause{Stage: checkup.StageSetup, Message: "node gone does not exist"}
	w.Sources[4].Cause, w.Sources[5].Cause = cause, cause
	w.Targets = w.Sources
	return w
}

// TestMeasurementsOfVMs: from the source as many as the duration has, within the
// plan's limits; from the target enough to show connectivity, without limits.
func TestMeasurementsOfVMs(t *testing.T) {
	w := guestSheet()
	for pair := range w.Pairs() {
		count, expect := 25, w.Expect
		if pair.Source%2 == 1 {
			count, expect = checkup.VMConnectivityCount, checkup.Expect{}
		}
		if got := w.Measurements(pair); got != count {
			t.Errorf("%+v: %d measurements, want %d", pair, got, count)
		}
		if got := w.ExpectOf(pair); got != expect {
			t.Errorf("%+v: expected %+v, want %+v", pair, got, expect)
		}
	}
	w.Probes[0].Count = 1
	if got := w.Measurements(checkup.Pair{Source: 1, Transport: checkup.ICMP}); got != 1 {
		t.Errorf("%d measurements of connectivity, but 1 of the delay", got)
	}
	mesh := costSheet()
	for pair := range mesh.Pairs() {
		if probe, _ := mesh.Probe(pair.Transport); mesh.Measurements(pair) != probe.Count || mesh.ExpectOf(pair) != mesh.Expect {
			t.Errorf("pods: %+v: %d measurements", pair, mesh.Measurements(pair))
		}
	}
}

// TestCostOfVMs: VMs and the pods that try their network out, no agents and no
// responders; what cannot be started costs nothing.
func TestCostOfVMs(t *testing.T) {
	w := guestSheet()
	got := Of(w, &checkup.Plan{Teardown: checkup.TeardownAlways, Retention: checkup.Retention{Reports: 10}}, "agent:v1")
	want := Cost{
		Check: "vms", Kind: "vmLatency", Image: "agent:v1",
		VMs: 4, Preflights: 2, GuestMemory: "128Mi",
		Nodes: []Node{
			// In a second 6 echo requests of the source's fit, and all 5 of the target's,
			// of each family.
			{Node: "a", VMs: 1, PeakSent: 12, PeakReceived: 10},
			{Node: "b", VMs: 1, PeakSent: 10, PeakReceived: 12},
		},
		Pairs: 12, Packets: 3 * 2 * (25 + 5), PeakSent: 12, PeakReceived: 12,
		Bytes:         3 * (25 + 5) * (2*(20+8+56) + 2*(40+8+56)),
		ExpectedProbe: checkup.Duration((5 + 24) * 200 * time.Millisecond),
		Longest:       checkup.Duration(7*time.Minute + 5*time.Second),
		Objects: []Object{
			{Kind: "Pod", Role: checkup.RolePreflight, Count: 2, Until: "setup has tested the networks"},
			{Kind: "VirtualMachineInstance", Role: checkup.RoleGuest, Count: 4, Until: "teardown, after every run"},
			{Kind: "Pod", Role: checkup.RoleGuest, Count: 4, Until: "teardown, after every run"},
			{Kind: "ConfigMap", Role: checkup.RoleGuest, Count: 1, Until: "teardown, after every run"},
			{Kind: "ConfigMap", Role: checkup.RoleWorksheet, Count: 1, AtLeast: true, LeftBehind: true, Until: "the PipelineRun is deleted"},
			{Kind: "ConfigMap", Role: checkup.RoleRecord, Count: 1, AtLeast: true, LeftBehind: true, Until: "the PipelineRun is deleted"},
			{Kind: "ConfigMap", Role: checkup.RoleReport, Count: 1, AtLeast: true, LeftBehind: true, Until: "10 newer reports of the plan exist"},
			{Kind: "ConfigMap", Role: checkup.RoleHistory, Count: 3, AtLeast: true, LeftBehind: true, Until: "somebody deletes the plan's history, of at most 16 MiB"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cost (-want +got):\n%s", diff)
	}
	for _, tt := range []struct {
		teardown    checkup.Teardown
		image, want string
	}{
		{checkup.TeardownOnPass, "", "teardown if the verdict is pass; else the VMs power off at their deadline and stay until the run is deleted"},
		{checkup.TeardownNever, "", "the run is deleted; the VMs power off at their deadline"},
		{checkup.TeardownNever, "quay.io/x/y", "the run is deleted; the VMs keep running"},
	} {
		w.Guests.Guest.Image = tt.image
		for _, o := range Of(w, &checkup.Plan{Teardown: tt.teardown}, "").Objects {
			if o.Role == checkup.RoleGuest && (o.Until != tt.want || !o.LeftBehind) {
				t.Errorf("%s: %+v, want %q", tt.teardown, o, tt.want)
			}
			// They go before there is a VM, whatever becomes of the VMs.
			if o.Role == checkup.RolePreflight && (o.LeftBehind || o.Until != "setup has tested the networks") {
				t.Errorf("%s: %+v", tt.teardown, o)
			}
		}
	}
	none := guestSheet()
	for i := range none.Sources {
		none.Sources[i].Cause = &checkup.Cause{Stage: checkup.StageSetup, Message: "no KubeVirt"}
	}
	if c := Of(none, &checkup.Plan{}, ""); c.VMs != 0 || c.Preflights != 0 || c.GuestMemory != "" || len(c.Objects) != 4 || c.Pairs != 12 {
		t.Errorf("nothing can be started: %+v", c)
	}
}
