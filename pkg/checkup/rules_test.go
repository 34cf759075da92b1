// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// good is a plan without problems.
func good() *Plan {
	loss := Percent(1)
	return &Plan{
		Name: "good", Retention: Retention{Reports: 1},
		Checks: map[string]Check{
			"first": {PodMesh: &PodMesh{
				Sample: Sample{Degree: 10, Budget: 1000},
				Probes: map[Transport]Probe{
					TCP: {Sizes: []int{0}, Count: 5, Interval: Duration(time.Second), Timeout: Duration(time.Second)},
					UDP: {Sizes: []int{64, 1400}, Count: 5, Interval: Duration(time.Second), Timeout: Duration(time.Second)},
				},
				Expect: Expect{
					Loss: LossLimit{Max: &loss}, Jitter: MaxDuration{Max: duration(time.Millisecond)},
					Latency: LatencyLimits{P50: duration(time.Millisecond), P99: duration(time.Second)},
				},
				Limits:   Limits{PacketsPerSecond: 100, Concurrency: 1},
				Timeouts: Timeouts{Setup: Duration(time.Minute), Probe: Duration(time.Minute)},
			}},
			"second": {After: []string{"first"}, PodMesh: &PodMesh{
				Sample:   Sample{Degree: 0, Budget: 2},
				Targets:  Targets{Pods: &PodTargets{Port: 80}},
				Probes:   map[Transport]Probe{HTTP: {Sizes: []int{0}, Count: 1, Interval: 1, Timeout: 1, Path: "/"}},
				Expect:   Expect{Unreachable: true},
				Limits:   Limits{PacketsPerSecond: 1, Concurrency: 1},
				Timeouts: Timeouts{Setup: Duration(time.Minute), Probe: Duration(time.Minute)},
			}},
			"third": {ControlPlane: &ControlPlane{
				Preset: PresetKubeadm, MaxNodes: 1,
				Roles: map[string]ComponentRole{"etcd": {TLS: true, ClientCertificate: "etcd-client"}, "out": {Hosts: []string{"a:1"}, TLS: true}},
				Pairs: []ComponentPair{{"kube-apiserver", "out"}, {"kube-apiserver", "aggregated-apiserver.service"}},
				Probe: ConnectionProbe{Count: 5, Deadlines: StageDeadlines{Duration(time.Second), Duration(time.Second), Duration(time.Second), Duration(time.Second)}},
				For:   duration(time.Minute), Interval: Duration(time.Second),
				ConnectivityChecks: ConnectivityChecks{StaleAfter: Duration(time.Minute)},
				Limits:             Limits{PacketsPerSecond: 1, Concurrency: 1},
				Timeouts:           Timeouts{Setup: Duration(time.Minute), Probe: Duration(time.Minute)},
			}},
			"fourth": {Placement: &PlacementCheck{
				SourcePlacement: new(SourceDefaults()),
				Timeouts:        Timeouts{Setup: Duration(time.Minute), Probe: Duration(time.Minute)},
			}},
			"sixth": {VMLatency: &VMLatency{
				Networks:   []NetworkRef{{Namespace: "default", Name: "br10"}, {Name: "br10"}},
				Pairs:      []NodePair{{"a", "b"}, {"b", "a"}, {"a", "a"}},
				IPFamilies: IPFamilies, Duration: Duration(time.Second), Interval: Duration(time.Millisecond),
				Guest:    Guest{Memory: "128Mi", Image: "quay.io/x/y:z", Login: &GuestLogin{User: "root", Password: "pass word"}},
				Expect:   VMExpect{Loss: LossLimit{Max: &loss}, Jitter: MaxDuration{Max: duration(time.Millisecond)}, Latency: LatencyLimits{P50: duration(time.Millisecond), Max: duration(time.Second)}},
				Timeouts: Timeouts{Setup: Duration(time.Minute), Probe: Duration(time.Minute)},
				Kiagnose: &ConfigMapRef{Namespace: "kiagnose", Name: "config"},
			}},
		},
	}
}

func duration(d time.Duration) *Duration { return new(Duration(d)) }

// Every rule has a case that breaks it and no other; pkg/load has a plan with
// the exact message for each.
func TestProblems(t *testing.T) {
	if got := good().Problems(); got != nil {
		t.Fatalf("the good plan has problems: %v", got)
	}
	first := func(change func(*PodMesh)) func(*Plan) { return func(p *Plan) { change(p.Checks["first"].PodMesh) } }
	second := func(change func(*PodMesh)) func(*Plan) { return func(p *Plan) { change(p.Checks["second"].PodMesh) } }
	third := func(change func(*ControlPlane)) func(*Plan) {
		return func(p *Plan) { change(p.Checks["third"].ControlPlane) }
	}
	fourth := func(change func(*PlacementCheck)) func(*Plan) {
		return func(p *Plan) { change(p.Checks["fourth"].Placement) }
	}
	sixth := func(change func(*VMLatency)) func(*Plan) {
		return func(p *Plan) { change(p.Checks["sixth"].VMLatency) }
	}
	vms := func(path ...string) []string { return append([]string{"checks", "sixth", "vmLatency"}, path...) }
	after := func(after ...string) func(*Plan) {
		return func(p *Plan) {
			c := p.Checks["first"]
			c.After = after
			p.Checks["first"] = c
		}
	}
	probe := func(tr Transport, change func(*Probe)) func(*PodMesh) {
		return func(m *PodMesh) { p := m.Probes[tr]; change(&p); m.Probes[tr] = p }
	}
	all := Percent(100)
	tests := []struct {
		rule   string
		change func(*Plan)
		path   []string
	}{
		{"plan-name", func(p *Plan) { p.Name = "Bad" }, nil},
		{"plan-size", func(p *Plan) { p.Description = string(make([]byte, MaxPlanSize/4)) }, nil},
		{"no-check", func(p *Plan) { p.Checks = nil }, []string{"checks"}},
		{"check-name", func(p *Plan) { p.Checks["-x"] = p.Checks["second"] }, []string{"checks", "-x"}},
		{"no-kind", func(p *Plan) { p.Checks["x"] = Check{} }, []string{"checks", "x"}},
		{"after-self", after("first"), []string{"checks", "first", "after", "[0]"}},
		{"after-unknown", after("fifth"), []string{"checks", "first", "after", "[0]"}},
		{"after-twice", func(p *Plan) {
			c := p.Checks["second"]
			c.After = []string{"first", "first"}
			p.Checks["second"] = c
		}, []string{"checks", "second", "after", "[1]"}},
		{"after-cycle", after("second"), []string{"checks", "first", "after"}},
		{"durations", first(probe(TCP, func(p *Probe) { p.Interval = 0 })), []string{"checks", "first", "podMesh", "probes", "tcp", "interval"}},
		{"families-twice", first(func(m *PodMesh) { m.IPFamilies = []IPFamily{IPv4, IPv4} }), []string{"checks", "first", "podMesh", "ipFamilies", "[1]"}},
		{"no-probe", first(func(m *PodMesh) { m.Probes = nil }), []string{"checks", "first", "podMesh", "probes"}},
		{"no-size", first(probe(TCP, func(p *Probe) { p.Sizes = nil })), []string{"checks", "first", "podMesh", "probes", "tcp", "sizes"}},
		{"size-twice", first(probe(UDP, func(p *Probe) { p.Sizes = []int{64, 64} })), []string{"checks", "first", "podMesh", "probes", "udp", "sizes", "[1]"}},
		{"size-limit", first(probe(UDP, func(p *Probe) { p.Sizes = []int{MinUDPSize - 1} })), []string{"checks", "first", "podMesh", "probes", "udp", "sizes", "[0]"}},
		{"path", second(probe(HTTP, func(p *Probe) { p.Path = "/a b" })), []string{"checks", "second", "podMesh", "probes", "http", "path"}},
		{"pods-udp", second(func(m *PodMesh) {
			m.Probes[UDP] = Probe{Sizes: []int{64}, Count: 1, Interval: 1, Timeout: 1}
		}), []string{"checks", "second", "podMesh", "probes", "udp"}},
		{"pods-size", second(probe(HTTP, func(p *Probe) { p.Sizes = []int{1} })), []string{"checks", "second", "podMesh", "probes", "http", "sizes", "[0]"}},
		{"latency-order", first(func(m *PodMesh) { *m.Expect.Latency.P99 = 1 }), []string{"checks", "first", "podMesh", "expect", "latency", "p99"}},
		{"loss-all", first(func(m *PodMesh) { m.Expect.Loss.Max = &all }), []string{"checks", "first", "podMesh", "expect", "loss", "max"}},
		{"jitter-one", first(func(m *PodMesh) {
			probe(TCP, func(p *Probe) { p.Count = 1 })(m)
			probe(UDP, func(p *Probe) { p.Count = 1 })(m)
		}), []string{"checks", "first", "podMesh", "expect", "jitter", "max"}},
		{"unreachable-limits", second(func(m *PodMesh) {
			m.Expect.Jitter.Max = new(Duration)
			*m.Expect.Jitter.Max = 1
			probe(HTTP, func(p *Probe) { p.Count = 2 })(m)
		}), []string{"checks", "second", "podMesh", "expect", "jitter", "max"}},
		{"budget", first(func(m *PodMesh) { m.Sample.Budget = 329 }), []string{"checks", "first", "podMesh", "sample", "budget"}},
		{"probe-timeout", first(func(m *PodMesh) { m.Timeouts.Probe = Duration(4999 * time.Millisecond) }), []string{"checks", "first", "podMesh", "timeouts", "probe"}},
		{"one-kind", func(p *Plan) {
			c := p.Checks["first"]
			c.ControlPlane = p.Checks["third"].ControlPlane
			p.Checks["first"] = c
		}, []string{"checks", "first"}},
		{"role-name", third(func(c *ControlPlane) { c.Roles["A.b"] = ComponentRole{Hosts: []string{"a:1"}} }), []string{"checks", "third", "controlPlane", "roles", "A.b"}},
		{"role-where", third(func(c *ControlPlane) { c.Roles["nowhere"] = ComponentRole{} }), []string{"checks", "third", "controlPlane", "roles", "nowhere"}},
		{"role-host", third(func(c *ControlPlane) { c.Roles["out"] = ComponentRole{Hosts: []string{"a:1", "a"}, TLS: true} }), []string{"checks", "third", "controlPlane", "roles", "out", "hosts", "[1]"}},
		{"role-tls", third(func(c *ControlPlane) { c.Roles["etcd"] = ComponentRole{Path: "/health"} }), []string{"checks", "third", "controlPlane", "roles", "etcd", "path"}},
		{"pair-role", third(func(c *ControlPlane) { c.Pairs[0].To = "etcdd" }), []string{"checks", "third", "controlPlane", "pairs", "[0]", "to"}},
		{"pair-twice", third(func(c *ControlPlane) { c.Pairs = append(c.Pairs, c.Pairs[0]) }), []string{"checks", "third", "controlPlane", "pairs", "[2]"}},
		{"watch-interval", third(func(c *ControlPlane) { c.For, c.Interval = duration(time.Minute), Duration(500*time.Millisecond) }), []string{"checks", "third", "controlPlane", "interval"}},
		{"watch-length", third(func(c *ControlPlane) { c.For = duration(20 * time.Hour) }), []string{"checks", "third", "controlPlane", "for"}},
		{"disabled-placement", fourth(func(c *PlacementCheck) { c.Mode = DiagnosticsDisabled }), []string{"checks", "fourth", "placement"}},
		{"network-config", fourth(func(c *PlacementCheck) { c.NetworkConfig = true }), []string{"checks", "fourth", "placement", "networkConfig"}},
		{"no-network", sixth(func(v *VMLatency) { v.Networks = nil }), vms("networks")},
		{"network-twice", sixth(func(v *VMLatency) { v.Networks = append(v.Networks, v.Networks[0]) }), vms("networks", "[2]")},
		{"no-family", sixth(func(v *VMLatency) { v.IPFamilies = nil }), vms("ipFamilies")},
		{"families-twice", sixth(func(v *VMLatency) { v.IPFamilies = []IPFamily{IPv6, IPv6} }), vms("ipFamilies", "[1]")},
		{"node-pair", sixth(func(v *VMLatency) { v.Pairs[1].Target = "" }), vms("pairs", "[1]")},
		{"node-pair", sixth(func(v *VMLatency) { v.Pairs[1] = NodePair{} }), vms("pairs", "[1]")},
		{"node-pair", sixth(func(v *VMLatency) { v.Pairs[2] = v.Pairs[0] }), vms("pairs", "[2]")},
		{"too-many-vms", sixth(func(v *VMLatency) {
			for i := range MaxVMs / 4 {
				v.Pairs = append(v.Pairs, NodePair{"a", fmt.Sprint(i)})
			}
		}), vms("networks")},
		{"measurements", sixth(func(v *VMLatency) { v.Interval = v.Duration + 1 }), vms("interval")},
		{"measurements", sixth(func(v *VMLatency) { v.Interval = Duration(time.Millisecond) - 1 }), vms("interval")},
		{"durations", sixth(func(v *VMLatency) { v.Duration = -1 }), vms("duration")},
		{"durations", sixth(func(v *VMLatency) { v.Duration = 1<<63 - 1 }), vms("duration")},
		{"durations", sixth(func(v *VMLatency) { v.Interval = 0 }), vms("interval")},
		{"durations", sixth(func(v *VMLatency) { *v.Expect.Latency.P50 = 0 }), vms("expect", "latency", "p50")},
		{"durations", sixth(func(v *VMLatency) { *v.Expect.Jitter.Max = 0 }), vms("expect", "jitter", "max")},
		{"durations", sixth(func(v *VMLatency) { v.Timeouts.Setup = 0 }), vms("timeouts", "setup")},
		{"latency-order", sixth(func(v *VMLatency) { *v.Expect.Latency.Max = 1 }), vms("expect", "latency", "max")},
		{"loss-all", sixth(func(v *VMLatency) { v.Expect.Loss.Max = &all }), vms("expect", "loss", "max")},
		{"jitter-one", sixth(func(v *VMLatency) { v.Interval = v.Duration }), vms("expect", "jitter", "max")},
		{"probe-timeout", sixth(func(v *VMLatency) { v.Timeouts.Probe = Duration(20 * time.Second) }), vms("timeouts", "probe")},
		{"guest-login", sixth(func(v *VMLatency) { v.Guest.Image = "" }), vms("guest", "login")},
		{"guest-login", sixth(func(v *VMLatency) { v.Guest.Login = nil }), vms("guest")},
		{"guest-login", sixth(func(v *VMLatency) { v.Guest.Login.User = "" }), vms("guest")},
		{"guest-login", sixth(func(v *VMLatency) { v.Guest.Image = "a b" }), vms("guest", "image")},
		{"guest-login", sixth(func(v *VMLatency) { v.Guest.Login.Password = "a\n" }), vms("guest", "login")},
		{"kiagnose-twice", func(p *Plan) {
			again := *p.Checks["sixth"].VMLatency
			p.Checks["seventh"] = Check{VMLatency: &again}
		}, vms("kiagnose")},
	}
	tested := map[string]bool{}
	for _, test := range tests {
		tested[test.rule] = true
		t.Run(test.rule, func(t *testing.T) {
			p := good()
			test.change(p)
			found := p.Problems()
			if len(found) == 0 {
				t.Fatal("no problem")
			}
			for _, problem := range found {
				if problem.Rule != test.rule {
					t.Errorf("another problem: %s: %v", problem.Rule, problem)
				}
			}
			if diff := cmp.Diff(test.path, found[0].Path); diff != "" {
				t.Errorf("path (-want +got):\n%s", diff)
			}
		})
	}
	for _, name := range RuleNames() {
		if !tested[name] {
			t.Errorf("no case for rule %s", name)
		}
	}
	if names := RuleNames(); len(slices.Compact(slices.Sorted(slices.Values(names)))) != len(names) {
		t.Errorf("a name stands twice in %v", names)
	}
}
