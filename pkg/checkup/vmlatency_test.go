// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// guestSheet has two pairs of VMs: a to b by a bridge, of which a third cannot be
// started, and any two nodes by SR-IOV.
func guestSheet() *Worksheet {
	vm := func(node string, binding InterfaceBinding, target bool) Endpoint {
		return Endpoint{Node: node, VM: &VM{Binding: binding, Target: target}}
	}
	limit, loss := Duration(time.Millisecond), Percent(1)
	w := &Worksheet{
		Plan: "plan", Check: "vms", Kind: "vmLatency",
		Sources:     []Endpoint{vm("a", BindingBridge, false), vm("b", BindingBridge, true), vm("", BindingSRIOV, false), vm("", BindingSRIOV, true), vm("a", BindingBridge, false), vm("gone", BindingBridge, true)},
		Assignments: [][]int{{1}, {0}, {3}, {2}, {5}, {4}},
		IPFamilies:  []IPFamily{IPv4, IPv6},
		Probes:      []TransportProbe{{ICMP, Probe{Sizes: []int{VMEchoSize}, Count: 25, Interval: Duration(200 * time.Millisecond), Timeout: VMEchoTimeout}}},
		Expect:      Expect{Loss: LossLimit{Max: &loss}, Latency: LatencyLimits{Max: &limit}},
		Limits:      Limits{PacketsPerSecond: 1000, Concurrency: 16},
		Timeouts:    Timeouts{Setup: Duration(5 * time.Minute), Probe: Duration(2 * time.Minute)},
		Guests:      &GuestSheet{Guest: Guest{Memory: "128Mi"}, Duration: Duration(5 * time.Second)},
	}
	cause := &Cause{Stage: StageSetup, Message: "node gone does not exist"}
	w.Sources[4].Cause, w.Sources[5].Cause = cause, cause
	w.Targets = w.Sources
	return w
}

// TestMeasurementsOfVMs: from the source as many as the duration has, within the
// plan's limits; from the target enough to tell connectivity, within none.
func TestMeasurementsOfVMs(t *testing.T) {
	w := guestSheet()
	for pair := range w.Pairs() {
		count, expect := 25, w.Expect
		if pair.Source%2 == 1 {
			count, expect = VMConnectivityCount, Expect{}
		}
		if got := w.Measurements(pair); got != count {
			t.Errorf("%+v: %d measurements, want %d", pair, got, count)
		}
		if got := w.ExpectOf(pair); got != expect {
			t.Errorf("%+v: expected %+v, want %+v", pair, got, expect)
		}
	}
	w.Probes[0].Count = 1
	if got := w.Measurements(Pair{Source: 1, Transport: ICMP}); got != 1 {
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
	got := w.Cost(&Plan{Teardown: TeardownAlways, Retention: Retention{Reports: 10}}, "agent:v1")
	want := Cost{
		Check: "vms", Kind: "vmLatency", Image: "agent:v1", Capabilities: []string{},
		VMs: 4, Preflights: 2, GuestMemory: "128Mi",
		Nodes: []NodeCost{
			// In a second 6 echo requests of the source's fit, and all 5 of the target's,
			// of each family.
			{Node: "a", VMs: 1, PeakSent: 12, PeakReceived: 10},
			{Node: "b", VMs: 1, PeakSent: 10, PeakReceived: 12},
		},
		Pairs: 12, Packets: 3 * 2 * (25 + 5), PeakSent: 12, PeakReceived: 12,
		Bytes:         3 * (25 + 5) * (2*(20+8+56) + 2*(40+8+56)),
		ExpectedProbe: Duration((5 + 24) * 200 * time.Millisecond),
		Longest:       Duration(7*time.Minute + 5*time.Second),
		Objects: []ObjectCost{
			{Kind: "Pod", Role: RolePreflight, Count: 2, Until: "setup has seen whether the networks can be had"},
			{Kind: "VirtualMachineInstance", Role: RoleGuest, Count: 4, Until: "teardown, after every run"},
			{Kind: "Pod", Role: RoleGuest, Count: 4, Until: "teardown, after every run"},
			{Kind: "ConfigMap", Role: RoleGuest, Count: 1, Until: "teardown, after every run"},
			{Kind: "ConfigMap", Role: RoleWorksheet, Count: 1, AtLeast: true, LeftBehind: true, Until: "the PipelineRun is deleted"},
			{Kind: "ConfigMap", Role: RoleRecord, Count: 1, AtLeast: true, LeftBehind: true, Until: "the PipelineRun is deleted"},
			{Kind: "ConfigMap", Role: RoleReport, Count: 1, AtLeast: true, LeftBehind: true, Until: "10 newer reports of the plan are there"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cost (-want +got):\n%s", diff)
	}
	for _, tt := range []struct {
		teardown    Teardown
		image, want string
	}{
		{TeardownOnPass, "", "teardown if the verdict is pass; else the VMs power off at their deadline and stay until the run is deleted"},
		{TeardownNever, "", "the run is deleted; the VMs power off at their deadline"},
		{TeardownNever, "quay.io/x/y", "the run is deleted; the VMs run on"},
	} {
		w.Guests.Guest.Image = tt.image
		for _, o := range w.Cost(&Plan{Teardown: tt.teardown}, "").Objects {
			if o.Role == RoleGuest && (o.Until != tt.want || !o.LeftBehind) {
				t.Errorf("%s: %+v, want %q", tt.teardown, o, tt.want)
			}
			// They go before there is a VM, whatever becomes of the VMs.
			if o.Role == RolePreflight && (o.LeftBehind || o.Until != "setup has seen whether the networks can be had") {
				t.Errorf("%s: %+v", tt.teardown, o)
			}
		}
	}
	none := guestSheet()
	for i := range none.Sources {
		none.Sources[i].Cause = &Cause{Stage: StageSetup, Message: "no KubeVirt"}
	}
	if c := none.Cost(&Plan{}, ""); c.VMs != 0 || c.Preflights != 0 || c.GuestMemory != "" || len(c.Objects) != 3 || c.Pairs != 12 {
		t.Errorf("nothing can be started: %+v", c)
	}
}
