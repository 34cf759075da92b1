// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/controlplane"
	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dns"
	"github.com/checkplan/checkplan/pkg/placement"
	"github.com/checkplan/checkplan/pkg/podmesh"
	"github.com/checkplan/checkplan/pkg/servicecanary"
	"github.com/checkplan/checkplan/pkg/servicecheck"
	"github.com/checkplan/checkplan/pkg/servicerules"
	"github.com/checkplan/checkplan/pkg/services"
	"github.com/checkplan/checkplan/pkg/vmlatency"
)

// good is a plan without problems.
func good() *checkup.Plan {
	loss := checkup.Percent(1)
	return &checkup.Plan{
		Name: "good", Retention: checkup.Retention{Reports: 1}, Schedule: everyTenMinutes(),
		Checks: map[string]checkup.Check{
			"first": {Spec: &podmesh.Spec{
				Sample: podmesh.Sample{Degree: 10, Budget: 1000},
				Probes: map[checkup.Transport]checkup.Probe{
					checkup.TCP: {
						Sizes:    []int{0},
						Count:    5,
						Interval: checkup.Duration(time.Second),
						Timeout:  checkup.Duration(time.Second),
					},
					checkup.UDP: {
						Sizes:    []int{64, 1400},
						Count:    5,
						Interval: checkup.Duration(time.Second),
						Timeout:  checkup.Duration(time.Second),
					},
				},
				Expect: checkup.Expect{
					Loss: checkup.LossLimit{Max: &loss}, Jitter: checkup.MaxDuration{Max: duration(time.Millisecond)},
					Latency: checkup.LatencyLimits{P50: duration(time.Millisecond), P99: duration(time.Second)},
				},
				Limits:   checkup.Limits{PacketsPerSecond: 100, Concurrency: 1},
				Timeouts: checkup.Timeouts{Setup: checkup.Duration(time.Minute), Probe: checkup.Duration(time.Minute)},
			}},
			"second": {After: []string{"first"}, Spec: &podmesh.Spec{
				Sample: podmesh.Sample{Degree: 0, Budget: 2},
				Targets: podmesh.Targets{
					Pods: &podmesh.PodTargets{
						Port:     80,
						Selector: checkup.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
					},
				},
				Probes: map[checkup.Transport]checkup.Probe{
					checkup.HTTP: {Sizes: []int{0}, Count: 1, Interval: 1, Timeout: 1, Path: "/"},
				},
				Expect:   checkup.Expect{Unreachable: true},
				Limits:   checkup.Limits{PacketsPerSecond: 1, Concurrency: 1},
				Timeouts: checkup.Timeouts{Setup: checkup.Duration(time.Minute), Probe: checkup.Duration(time.Minute)},
			}},
			"third": {Spec: &controlplane.Spec{
				Preset: controlplane.PresetKubeadm, MaxNodes: 1,
				Roles: map[string]controlplane.ComponentRole{
					"etcd": {TLS: true, ClientCertificate: "etcd-client"},
					"out":  {Hosts: []string{"a:1"}, TLS: true},
				},
				Pairs: []controlplane.ComponentPair{
					{From: "kube-apiserver", To: "out"},
					{From: "kube-apiserver", To: "aggregated-apiserver.service"},
				},
				Probe: controlplane.ConnectionProbe{
					Count: 5,
					Deadlines: checkup.StageDeadlines{
						Resolve:   checkup.Duration(time.Second),
						Connect:   checkup.Duration(time.Second),
						Handshake: checkup.Duration(time.Second),
						Response:  checkup.Duration(time.Second),
					},
				},
				For: duration(time.Minute), Interval: checkup.Duration(time.Second),
				ConnectivityChecks: checkup.ConnectivityChecks{StaleAfter: checkup.Duration(time.Minute)},
				Limits:             checkup.Limits{PacketsPerSecond: 1, Concurrency: 1},
				Timeouts: checkup.Timeouts{
					Setup: checkup.Duration(time.Minute),
					Probe: checkup.Duration(time.Minute),
				},
			}},
			"fourth": {Spec: &placement.Spec{
				SourcePlacement: new(placement.SourceDefaults()),
				Timeouts: checkup.Timeouts{
					Setup: checkup.Duration(time.Minute),
					Probe: checkup.Duration(time.Minute),
				},
			}},
			"svc": {Spec: &services.Spec{
				Addresses: []services.Address{services.ClusterIP}, Sample: servicecheck.Sample{Budget: 10},
				Services: servicecheck.Selection{Namespaces: []string{"shop"}},
				Probe:    servicecheck.Probe{Count: 5, Interval: checkup.Duration(time.Second), Timeout: checkup.Duration(time.Second)},
				Expect: services.Expect{
					Loss: checkup.LossLimit{Max: &loss}, Closed: servicecheck.ClosedExact,
					Latency: checkup.LatencyLimits{P50: duration(time.Millisecond), P99: duration(time.Second)},
				},
				Limits:   checkup.Limits{PacketsPerSecond: 100, Concurrency: 1},
				Timeouts: checkup.Timeouts{Setup: checkup.Duration(time.Minute), Probe: checkup.Duration(time.Minute)},
			}},
			"names": {Spec: &dns.Spec{
				Servers: dns.Servers, Transports: dns.Transports, Domain: "cluster.local", ExternalNames: []string{"example.com"},
				DNSService: dns.ServiceName{Namespace: "kube-system", Name: "kube-dns"}, Sample: servicecheck.Sample{Budget: 10},
				Services: servicecheck.Selection{Namespaces: []string{"shop"}},
				Probe:    servicecheck.Probe{Count: 3, Interval: checkup.Duration(time.Second), Timeout: checkup.Duration(time.Second)},
				Expect: dns.Expect{
					Loss:    checkup.LossLimit{Max: &loss},
					Latency: checkup.LatencyLimits{P50: duration(time.Millisecond), P99: duration(time.Second)},
				},
				Limits:   checkup.Limits{PacketsPerSecond: 100, Concurrency: 1},
				Timeouts: checkup.Timeouts{Setup: checkup.Duration(time.Minute), Probe: checkup.Duration(time.Minute)},
			}},
			"canary": {Spec: &servicecanary.Spec{
				Policies: servicecanary.Policies, Endpoints: 3, Budget: 10,
				Probe: servicecheck.Probe{Count: 3, Interval: checkup.Duration(time.Second), Timeout: checkup.Duration(time.Second)},
				Expect: servicecanary.Expect{
					Loss: checkup.LossLimit{Max: &loss}, Share: servicecanary.ShareEven, Closed: servicecheck.ClosedExact,
					Latency: checkup.LatencyLimits{P50: duration(time.Millisecond), P99: duration(time.Second)},
				},
				Limits:   checkup.Limits{PacketsPerSecond: 100, Concurrency: 1},
				Timeouts: checkup.Timeouts{Setup: checkup.Duration(time.Minute), Probe: checkup.Duration(time.Minute)},
			}},
			"rules": {Spec: &servicerules.Spec{
				Interval: checkup.Duration(time.Second),
				Expect:   servicerules.Expect{Allow: []dataplane.Kind{dataplane.WrongMasquerade}},
				Timeouts: checkup.Timeouts{Setup: checkup.Duration(time.Minute), Probe: checkup.Duration(time.Minute)},
			}},
			"sixth": {Spec: &vmlatency.Spec{
				Networks: []checkup.NetworkRef{{Namespace: "default", Name: "br10"}, {Name: "br10"}},
				Pairs: []checkup.NodePair{
					{Source: "a", Target: "b"},
					{Source: "b", Target: "a"},
					{Source: "a", Target: "a"},
				},
				IPFamilies: checkup.IPFamilies, Duration: checkup.Duration(time.Second), Interval: checkup.Duration(time.Millisecond),
				Guest: checkup.Guest{
					Memory: "128Mi",
					Image:  "quay.io/x/y:z",
					Login:  &checkup.GuestLogin{User: "root", Password: "pass word"},
				},
				Expect: vmlatency.Expect{
					Loss:    checkup.LossLimit{Max: &loss},
					Jitter:  checkup.MaxDuration{Max: duration(time.Millisecond)},
					Latency: checkup.LatencyLimits{P50: duration(time.Millisecond), Max: duration(time.Second)},
				},
				Timeouts: checkup.Timeouts{Setup: checkup.Duration(time.Minute), Probe: checkup.Duration(time.Minute)},
				Kiagnose: &checkup.ConfigMapRef{Namespace: "kiagnose", Name: "config"},
			}},
		},
	}
}

func duration(d time.Duration) *checkup.Duration { return new(checkup.Duration(d)) }

// everyTenMinutes is a schedule without problems.
func everyTenMinutes() *checkup.Schedule {
	return &checkup.Schedule{
		Cron: "*/10 * * * *", TimeZone: "Europe/Berlin", ConcurrencyPolicy: checkup.ConcurrencyForbid,
		StartingDeadlineSeconds: 300, Jitter: checkup.Duration(time.Minute),
	}
}

// health turns the feature on, and changes the plan.
func health(change func(*checkup.Plan)) func(*checkup.Plan) {
	return func(p *checkup.Plan) {
		p.Features.PodNetworkHealth = true
		p.PodNetworkHealth = &checkup.PodNetworkHealth{
			MaxObjects: 500, StaleAfter: checkup.Duration(time.Hour), ExpireAfter: checkup.Duration(24 * time.Hour),
		}
		change(p)
	}
}

func schedules(change func(*checkup.Schedule)) func(*checkup.Plan) {
	return func(p *checkup.Plan) { change(p.Schedule) }
}

// Every rule has a case that breaks it and no other; pkg/load has a plan with
// the exact message for each.
func TestProblems(t *testing.T) {
	if got := Problems(good()); got != nil {
		t.Fatalf("the good plan has problems: %v", got)
	}
	first := func(change func(*podmesh.Spec)) func(*checkup.Plan) {
		return func(p *checkup.Plan) { change(p.Checks["first"].Spec.(*podmesh.Spec)) }
	}
	second := func(change func(*podmesh.Spec)) func(*checkup.Plan) {
		return func(p *checkup.Plan) { change(p.Checks["second"].Spec.(*podmesh.Spec)) }
	}
	third := func(change func(*controlplane.Spec)) func(*checkup.Plan) {
		return func(p *checkup.Plan) { change(p.Checks["third"].Spec.(*controlplane.Spec)) }
	}
	fourth := func(change func(*placement.Spec)) func(*checkup.Plan) {
		return func(p *checkup.Plan) { change(p.Checks["fourth"].Spec.(*placement.Spec)) }
	}
	fifth := func(change func(*services.Spec)) func(*checkup.Plan) {
		return func(p *checkup.Plan) { change(p.Checks["svc"].Spec.(*services.Spec)) }
	}
	asking := func(change func(*dns.Spec)) func(*checkup.Plan) {
		return func(p *checkup.Plan) { change(p.Checks["names"].Spec.(*dns.Spec)) }
	}
	canary := func(change func(*servicecanary.Spec)) func(*checkup.Plan) {
		return func(p *checkup.Plan) { change(p.Checks["canary"].Spec.(*servicecanary.Spec)) }
	}
	bird := func(path ...string) []string { return append([]string{"checks", "canary", "serviceCanary"}, path...) }
	sixth := func(change func(*vmlatency.Spec)) func(*checkup.Plan) {
		return func(p *checkup.Plan) { change(p.Checks["sixth"].Spec.(*vmlatency.Spec)) }
	}
	read := func(change func(*servicerules.Spec)) func(*checkup.Plan) {
		return func(p *checkup.Plan) { change(p.Checks["rules"].Spec.(*servicerules.Spec)) }
	}
	ruled := func(path ...string) []string { return append([]string{"checks", "rules", "serviceRules"}, path...) }
	service := func(path ...string) []string { return append([]string{"checks", "svc", "services"}, path...) }
	names := func(path ...string) []string { return append([]string{"checks", "names", "dns"}, path...) }
	vms := func(path ...string) []string { return append([]string{"checks", "sixth", "vmLatency"}, path...) }
	after := func(after ...string) func(*checkup.Plan) {
		return func(p *checkup.Plan) {
			c := p.Checks["first"]
			c.After = after
			p.Checks["first"] = c
		}
	}
	probe := func(tr checkup.Transport, change func(*checkup.Probe)) func(*podmesh.Spec) {
		return func(m *podmesh.Spec) { p := m.Probes[tr]; change(&p); m.Probes[tr] = p }
	}
	all := checkup.Percent(100)
	tests := []struct {
		rule   string
		change func(*checkup.Plan)
		path   []string
	}{
		{"plan-name", func(p *checkup.Plan) { p.Name = "Bad" }, nil},
		{"plan-name", func(p *checkup.Plan) { p.Name = "dns-setup" }, nil},
		{"plan-name", func(p *checkup.Plan) { p.Name = "dns-schedule" }, nil},
		{"plan-size", func(p *checkup.Plan) { p.Description = string(make([]byte, checkup.MaxPlanSize/4)) }, nil},
		{"no-check", func(p *checkup.Plan) { p.Checks = nil }, []string{"checks"}},
		{"check-name", func(p *checkup.Plan) { p.Checks["-x"] = p.Checks["second"] }, []string{"checks", "-x"}},
		{"no-kind", func(p *checkup.Plan) { p.Checks["x"] = checkup.Check{} }, []string{"checks", "x"}},
		{"after-self", after("first"), []string{"checks", "first", "after", "[0]"}},
		{"after-unknown", after("fifth"), []string{"checks", "first", "after", "[0]"}},
		{"after-twice", func(p *checkup.Plan) {
			c := p.Checks["second"]
			c.After = []string{"first", "first"}
			p.Checks["second"] = c
		}, []string{"checks", "second", "after", "[1]"}},
		{"after-cycle", after("second"), []string{"checks", "first", "after"}},
		{"network-health", health(func(p *checkup.Plan) { p.PodNetworkHealth = nil }), []string{"features", "PodNetworkHealth"}},
		{"network-health", health(func(p *checkup.Plan) { p.Features.PodNetworkHealth = false }), []string{"podNetworkHealth"}},
		{"network-health", health(func(p *checkup.Plan) { p.PodNetworkHealth.MaxObjects = 0 }), []string{"podNetworkHealth", "maxObjects"}},
		{"network-health", health(func(p *checkup.Plan) { p.PodNetworkHealth.MaxObjects = 1001 }), []string{"podNetworkHealth", "maxObjects"}},
		{"network-health", health(func(p *checkup.Plan) { p.PodNetworkHealth.StaleAfter = 0 }), []string{"podNetworkHealth", "staleAfter"}},
		{"network-health", health(func(p *checkup.Plan) { p.PodNetworkHealth.ExpireAfter = 1 }), []string{"podNetworkHealth", "expireAfter"}},
		{"network-health", health(func(p *checkup.Plan) { p.PodNetworkHealth.PodGoneGrace = -1 }), []string{"podNetworkHealth", "podGoneGrace"}},
		{"limits", func(p *checkup.Plan) { p.Limits = &checkup.PlanLimits{Pods: new(-1)} }, []string{"limits", "pods"}},
		{"limits", func(p *checkup.Plan) { p.Limits = &checkup.PlanLimits{Packets: new(-1)} }, []string{"limits", "packets"}},
		{"limits", func(p *checkup.Plan) { p.Limits = &checkup.PlanLimits{PrivilegedPods: new(-1)} }, []string{"limits", "privilegedPods"}},
		{"limits", func(p *checkup.Plan) { p.Limits = &checkup.PlanLimits{Rights: []string{}} }, []string{"limits", "rights"}},
		{"schedule", schedules(func(s *checkup.Schedule) { s.Cron = "61 * * * *" }), []string{"schedule", "cron"}},
		{"schedule", schedules(func(s *checkup.Schedule) { s.Cron = "* * * *" }), []string{"schedule", "cron"}},
		{"schedule", schedules(func(s *checkup.Schedule) { s.Cron = "" }), []string{"schedule", "cron"}},
		{"schedule", schedules(func(s *checkup.Schedule) { s.Cron = "TZ=UTC 0 * * * *" }), []string{"schedule", "cron"}},
		{"schedule", schedules(func(s *checkup.Schedule) { s.Cron = "@every 1m" }), []string{"schedule", "cron"}},
		{"schedule", schedules(func(s *checkup.Schedule) { s.Cron = "0 0 31 2 *" }), []string{"schedule", "cron"}},
		{"schedule", schedules(func(s *checkup.Schedule) { s.Cron = "$(CRON) * * * *" }), []string{"schedule", "cron"}},
		{"schedule", schedules(func(s *checkup.Schedule) { s.TimeZone = "Mars/Olympus" }), []string{"schedule", "timeZone"}},
		{"schedule", schedules(func(s *checkup.Schedule) { s.TimeZone = "Local" }), []string{"schedule", "timeZone"}},
		{"schedule", schedules(func(s *checkup.Schedule) { s.Jitter = checkup.Duration(10 * time.Minute) }), []string{"schedule", "jitter"}},
		{"schedule", schedules(func(s *checkup.Schedule) { s.Jitter = -1 }), []string{"schedule", "jitter"}},
		{"schedule", schedules(func(s *checkup.Schedule) { s.StartingDeadlineSeconds = 9 }), []string{"schedule", "startingDeadlineSeconds"}},
		{"schedule", schedules(func(s *checkup.Schedule) { s.ConcurrencyPolicy = "Maybe" }), []string{"schedule", "concurrencyPolicy"}},
		{
			"durations",
			first(probe(checkup.TCP, func(p *checkup.Probe) { p.Interval = 0 })),
			[]string{"checks", "first", "podMesh", "probes", "tcp", "interval"},
		},
		{
			"families-twice",
			first(func(m *podmesh.Spec) { m.IPFamilies = []checkup.IPFamily{checkup.IPv4, checkup.IPv4} }),
			[]string{"checks", "first", "podMesh", "ipFamilies", "[1]"},
		},
		{"no-probe", first(func(m *podmesh.Spec) { m.Probes = nil }), []string{"checks", "first", "podMesh", "probes"}},
		{
			"no-size",
			first(probe(checkup.TCP, func(p *checkup.Probe) { p.Sizes = nil })),
			[]string{"checks", "first", "podMesh", "probes", "tcp", "sizes"},
		},
		{
			"size-twice",
			first(probe(checkup.UDP, func(p *checkup.Probe) { p.Sizes = []int{64, 64} })),
			[]string{"checks", "first", "podMesh", "probes", "udp", "sizes", "[1]"},
		},
		{
			"size-limit",
			first(probe(checkup.UDP, func(p *checkup.Probe) { p.Sizes = []int{checkup.MinUDPSize - 1} })),
			[]string{"checks", "first", "podMesh", "probes", "udp", "sizes", "[0]"},
		},
		{
			"path",
			second(probe(checkup.HTTP, func(p *checkup.Probe) { p.Path = "/a b" })),
			[]string{"checks", "second", "podMesh", "probes", "http", "path"},
		},
		{"pods-which", second(func(m *podmesh.Spec) { m.Targets.Pods.Name = "web-1" }),
			[]string{"checks", "second", "podMesh", "targets", "pods", "selector"}},
		{"pods-udp", second(func(m *podmesh.Spec) {
			m.Probes[checkup.UDP] = checkup.Probe{Sizes: []int{64}, Count: 1, Interval: 1, Timeout: 1}
		}), []string{"checks", "second", "podMesh", "probes", "udp"}},
		{
			"pods-size",
			second(probe(checkup.HTTP, func(p *checkup.Probe) { p.Sizes = []int{1} })),
			[]string{"checks", "second", "podMesh", "probes", "http", "sizes", "[0]"},
		},
		{
			"latency-order",
			first(func(m *podmesh.Spec) { *m.Expect.Latency.P99 = 1 }),
			[]string{"checks", "first", "podMesh", "expect", "latency", "p99"},
		},
		{
			"loss-all",
			first(func(m *podmesh.Spec) { m.Expect.Loss.Max = &all }),
			[]string{"checks", "first", "podMesh", "expect", "loss", "max"},
		},
		{"jitter-one", first(func(m *podmesh.Spec) {
			probe(checkup.TCP, func(p *checkup.Probe) { p.Count = 1 })(m)
			probe(checkup.UDP, func(p *checkup.Probe) { p.Count = 1 })(m)
		}), []string{"checks", "first", "podMesh", "expect", "jitter", "max"}},
		{"unreachable-limits", second(func(m *podmesh.Spec) {
			m.Expect.Jitter.Max = new(checkup.Duration)
			*m.Expect.Jitter.Max = 1
			probe(checkup.HTTP, func(p *checkup.Probe) { p.Count = 2 })(m)
		}), []string{"checks", "second", "podMesh", "expect", "jitter", "max"}},
		{
			"regression",
			first(func(m *podmesh.Spec) { m.Expect.Regression = &checkup.Regression{Runs: 61, MinFactor: 1.5} }),
			[]string{"checks", "first", "podMesh", "expect", "regression", "runs"},
		},
		{
			"regression",
			first(func(m *podmesh.Spec) { m.Expect.Regression = &checkup.Regression{Runs: 20, MinFactor: 1} }),
			[]string{"checks", "first", "podMesh", "expect", "regression", "minFactor"},
		},
		{
			"topology",
			first(func(m *podmesh.Spec) { m.Sample.Topology = []string{"example.com/rack", "r/a/c/k"} }),
			[]string{"checks", "first", "podMesh", "sample", "topology", "[1]"},
		},
		{
			"budget",
			first(func(m *podmesh.Spec) { m.Sample.Budget = 329 }),
			[]string{"checks", "first", "podMesh", "sample", "budget"},
		},
		{
			"probe-timeout",
			first(func(m *podmesh.Spec) { m.Timeouts.Probe = checkup.Duration(4999 * time.Millisecond) }),
			[]string{"checks", "first", "podMesh", "timeouts", "probe"},
		},
		{"one-kind", func(p *checkup.Plan) {
			c := p.Checks["first"]
			c.Others = []checkup.Kind{controlplane.Name}
			p.Checks["first"] = c
		}, []string{"checks", "first"}},
		{
			"role-name",
			third(func(c *controlplane.Spec) { c.Roles["A.b"] = controlplane.ComponentRole{Hosts: []string{"a:1"}} }),
			[]string{"checks", "third", "controlPlane", "roles", "A.b"},
		},
		{
			"role-where",
			third(func(c *controlplane.Spec) { c.Roles["nowhere"] = controlplane.ComponentRole{} }),
			[]string{"checks", "third", "controlPlane", "roles", "nowhere"},
		},
		{"role-host", third(func(c *controlplane.Spec) {
			c.Roles["out"] = controlplane.ComponentRole{Hosts: []string{"a:1", "a"}, TLS: true}
		}), []string{"checks", "third", "controlPlane", "roles", "out", "hosts", "[1]"}},
		{
			"role-tls",
			third(func(c *controlplane.Spec) { c.Roles["etcd"] = controlplane.ComponentRole{Path: "/health"} }),
			[]string{"checks", "third", "controlPlane", "roles", "etcd", "path"},
		},
		{
			"pair-role",
			third(func(c *controlplane.Spec) { c.Pairs[0].To = "etcdd" }),
			[]string{"checks", "third", "controlPlane", "pairs", "[0]", "to"},
		},
		{
			"pair-twice",
			third(func(c *controlplane.Spec) { c.Pairs = append(c.Pairs, c.Pairs[0]) }),
			[]string{"checks", "third", "controlPlane", "pairs", "[2]"},
		},
		{"watch-interval", third(func(c *controlplane.Spec) {
			c.For, c.Interval = duration(time.Minute), checkup.Duration(500*time.Millisecond)
		}), []string{"checks", "third", "controlPlane", "interval"}},
		{
			"watch-length",
			third(func(c *controlplane.Spec) { c.For = duration(20 * time.Hour) }),
			[]string{"checks", "third", "controlPlane", "for"},
		},
		{
			"disabled-placement",
			fourth(func(c *placement.Spec) { c.Mode = cluster.DiagnosticsDisabled }),
			[]string{"checks", "fourth", "placement"},
		},
		{
			"network-config",
			fourth(func(c *placement.Spec) { c.NetworkConfig = true }),
			[]string{"checks", "fourth", "placement", "networkConfig"},
		},
		{"no-network", sixth(func(v *vmlatency.Spec) { v.Networks = nil }), vms("networks")},
		{
			"network-twice",
			sixth(func(v *vmlatency.Spec) { v.Networks = append(v.Networks, v.Networks[0]) }),
			vms("networks", "[2]"),
		},
		{"no-family", sixth(func(v *vmlatency.Spec) { v.IPFamilies = nil }), vms("ipFamilies")},
		{
			"families-twice",
			sixth(func(v *vmlatency.Spec) { v.IPFamilies = []checkup.IPFamily{checkup.IPv6, checkup.IPv6} }),
			vms("ipFamilies", "[1]"),
		},
		{"node-pair", sixth(func(v *vmlatency.Spec) { v.Pairs[1].Target = "" }), vms("pairs", "[1]")},
		{"node-pair", sixth(func(v *vmlatency.Spec) { v.Pairs[1] = checkup.NodePair{} }), vms("pairs", "[1]")},
		{"node-pair", sixth(func(v *vmlatency.Spec) { v.Pairs[2] = v.Pairs[0] }), vms("pairs", "[2]")},
		{"too-many-vms", sixth(func(v *vmlatency.Spec) {
			for i := range vmlatency.MaxVMs / 4 {
				v.Pairs = append(v.Pairs, checkup.NodePair{Source: "a", Target: fmt.Sprint(i)})
			}
		}), vms("networks")},
		{"measurements", sixth(func(v *vmlatency.Spec) { v.Interval = v.Duration + 1 }), vms("interval")},
		{
			"measurements",
			sixth(func(v *vmlatency.Spec) { v.Interval = v.Duration / (checkup.MaxEchoes + 1) }),
			vms("interval"),
		},
		{"durations", sixth(func(v *vmlatency.Spec) { v.Duration = -1 }), vms("duration")},
		{"durations", sixth(func(v *vmlatency.Spec) { v.Duration = 1<<63 - 1 }), vms("duration")},
		{"durations", sixth(func(v *vmlatency.Spec) { v.Interval = 0 }), vms("interval")},
		{"durations", sixth(func(v *vmlatency.Spec) { *v.Expect.Latency.P50 = 0 }), vms("expect", "latency", "p50")},
		{"durations", sixth(func(v *vmlatency.Spec) { *v.Expect.Jitter.Max = 0 }), vms("expect", "jitter", "max")},
		{"durations", sixth(func(v *vmlatency.Spec) { v.Timeouts.Setup = 0 }), vms("timeouts", "setup")},
		{
			"latency-order",
			sixth(func(v *vmlatency.Spec) { *v.Expect.Latency.Max = 1 }),
			vms("expect", "latency", "max"),
		},
		{"loss-all", sixth(func(v *vmlatency.Spec) { v.Expect.Loss.Max = &all }), vms("expect", "loss", "max")},
		{"jitter-one", sixth(func(v *vmlatency.Spec) { v.Interval = v.Duration }), vms("expect", "jitter", "max")},
		{
			"probe-timeout",
			sixth(func(v *vmlatency.Spec) { v.Timeouts.Probe = checkup.Duration(20 * time.Second) }),
			vms("timeouts", "probe"),
		},
		{"durations", read(func(s *servicerules.Spec) { s.Interval = 0 }), ruled("interval")},
		{"durations", read(func(s *servicerules.Spec) { s.Expect.Stale.Max = -1 }), ruled("expect", "stale", "max")},
		{"families-twice", read(func(s *servicerules.Spec) {
			s.IPFamilies = []checkup.IPFamily{checkup.IPv6, checkup.IPv6}
		}), ruled("ipFamilies", "[1]")},
		{"namespace-twice", read(func(s *servicerules.Spec) { s.Services.Namespaces = []string{"a", "a"} }), ruled("services", "namespaces", "[1]")},
		{"interval-timeout", read(func(s *servicerules.Spec) { s.Interval = checkup.Duration(45 * time.Second) }), ruled("timeouts", "probe")},
		{"allow", read(func(s *servicerules.Spec) { s.Expect.Allow = []dataplane.Kind{dataplane.Missing} }), ruled("expect", "allow", "[0]")},
		{"allow", read(func(s *servicerules.Spec) {
			s.Expect.Allow = []dataplane.Kind{dataplane.NoHairpin, dataplane.NoHairpin}
		}), ruled("expect", "allow", "[1]")},
		{"pod-namespace", read(func(s *servicerules.Spec) { s.Services.Namespaces = []string{""} }), ruled("services", "namespaces", "[0]")},
		{"toleration", read(func(s *servicerules.Spec) { s.Placement.Tolerations = []checkup.Toleration{{}} }), ruled("placement", "tolerations", "[0]")},
		{"durations", fifth(func(s *services.Spec) { s.Probe.Timeout = 0 }), service("probe", "timeout")},
		{"families-twice", fifth(func(s *services.Spec) {
			s.IPFamilies = []checkup.IPFamily{checkup.IPv4, checkup.IPv4}
		}), service("ipFamilies", "[1]")},
		{"namespace-twice", fifth(func(s *services.Spec) { s.Services.Namespaces = []string{"a", "a"} }), service("services", "namespaces", "[1]")},
		{"addresses", fifth(func(s *services.Spec) { s.Addresses = nil }), service("addresses")},
		{"addresses", fifth(func(s *services.Spec) { s.Addresses = append(s.Addresses, s.Addresses...) }), service("addresses", "[1]")},
		{"latency-order", fifth(func(s *services.Spec) { *s.Expect.Latency.P99 = 1 }), service("expect", "latency", "p99")},
		{"loss-all", fifth(func(s *services.Spec) { s.Expect.Loss.Max = &all }), service("expect", "loss", "max")},
		{"probe-timeout", fifth(func(s *services.Spec) { s.Probe.Count = 50 }), service("timeouts", "probe")},
		{"pod-namespace", fifth(func(s *services.Spec) { s.Services.Namespaces = []string{""} }), service("services", "namespaces", "[0]")},
		{"toleration", fifth(func(s *services.Spec) { s.Placement.Tolerations = []checkup.Toleration{{}} }), service("placement", "tolerations", "[0]")},
		{"durations", asking(func(s *dns.Spec) { s.Probe.Interval = 0 }), names("probe", "interval")},
		{"namespace-twice", asking(func(s *dns.Spec) { s.Services.Namespaces = []string{"a", "a"} }), names("services", "namespaces", "[1]")},
		{"servers", asking(func(s *dns.Spec) { s.Servers = nil }), names("servers")},
		{"servers", asking(func(s *dns.Spec) { s.Servers = []dns.Server{dns.Resolver, dns.Resolver} }), names("servers", "[1]")},
		{"transports", asking(func(s *dns.Spec) { s.Transports = nil }), names("transports")},
		{"transports", asking(func(s *dns.Spec) { s.Transports = []dns.Transport{dns.UDP, dns.UDP} }), names("transports", "[1]")},
		{"names", asking(func(s *dns.Spec) { s.Domain = "cluster.local." }), names("domain")},
		{"names", asking(func(s *dns.Spec) { s.DNSService.Name = "a.b" }), names("dnsService", "name")},
		{"names", asking(func(s *dns.Spec) { s.ExternalNames = []string{"a b"} }), names("externalNames", "[0]")},
		{"names", asking(func(s *dns.Spec) { s.ExternalNames = []string{"a", "a"} }), names("externalNames", "[1]")},
		{"latency-order", asking(func(s *dns.Spec) { *s.Expect.Latency.P99 = 1 }), names("expect", "latency", "p99")},
		{"loss-all", asking(func(s *dns.Spec) { s.Expect.Loss.Max = &all }), names("expect", "loss", "max")},
		{"probe-timeout", asking(func(s *dns.Spec) { s.Probe.Count = 50 }), names("timeouts", "probe")},
		{"pod-namespace", asking(func(s *dns.Spec) { s.DNSService.Namespace = "" }), names("dnsService", "namespace")},
		{"durations", canary(func(s *servicecanary.Spec) { s.Probe.Timeout = 0 }), bird("probe", "timeout")},
		{"families-twice", canary(func(s *servicecanary.Spec) {
			s.IPFamilies = []checkup.IPFamily{checkup.IPv4, checkup.IPv4}
		}), bird("ipFamilies", "[1]")},
		{"policies", canary(func(s *servicecanary.Spec) { s.Policies = nil }), bird("policies")},
		{"policies", canary(func(s *servicecanary.Spec) {
			s.Policies = []servicecanary.Policy{servicecanary.Hairpin, servicecanary.Hairpin}
		}), bird("policies", "[1]")},
		{"latency-order", canary(func(s *servicecanary.Spec) { *s.Expect.Latency.P99 = 1 }), bird("expect", "latency", "p99")},
		{"loss-all", canary(func(s *servicecanary.Spec) { s.Expect.Loss.Max = &all }), bird("expect", "loss", "max")},
		{"probe-timeout", canary(func(s *servicecanary.Spec) { s.Probe.Count = 50 }), bird("timeouts", "probe")},
		{"toleration", canary(func(s *servicecanary.Spec) {
			s.Placement.Tolerations = []checkup.Toleration{{}}
		}), bird("placement", "tolerations", "[0]")},
		{"guest-login", sixth(func(v *vmlatency.Spec) { v.Guest.Image = "" }), vms("guest", "login")},
		{"guest-login", sixth(func(v *vmlatency.Spec) { v.Guest.Login = nil }), vms("guest")},
		{"guest-login", sixth(func(v *vmlatency.Spec) { v.Guest.Login.User = "" }), vms("guest")},
		{"guest-login", sixth(func(v *vmlatency.Spec) { v.Guest.Image = "a b" }), vms("guest", "image")},
		{"guest-login", sixth(func(v *vmlatency.Spec) { v.Guest.Login.Password = "a\n" }), vms("guest", "login")},
		{
			"node-selector",
			first(func(m *podmesh.Spec) { m.Sources.Placement.NodeSelector = map[string]string{"a b": ""} }),
			[]string{"checks", "first", "podMesh", "sources", "placement", "nodeSelector", "a b"},
		},
		{
			"toleration",
			first(func(m *podmesh.Spec) { m.Targets.Placement.Tolerations = []checkup.Toleration{{}} }),
			[]string{"checks", "first", "podMesh", "targets", "placement", "tolerations", "[0]"},
		},
		{
			"affinity",
			first(func(m *podmesh.Spec) { m.Targets.Placement.Affinity = json.RawMessage(`[]`) }),
			[]string{"checks", "first", "podMesh", "targets", "placement", "affinity"},
		},
		{
			"pod-selector",
			second(func(m *podmesh.Spec) { m.Targets.Pods.Selector = checkup.LabelSelector{} }),
			[]string{"checks", "second", "podMesh", "targets", "pods", "selector"},
		},
		{
			"pod-namespace",
			second(func(m *podmesh.Spec) { m.Targets.Pods.Namespace = "A" }),
			[]string{"checks", "second", "podMesh", "targets", "pods", "namespace"},
		},
		{"pod-namespace", third(func(c *controlplane.Spec) {
			c.Roles["own"] = controlplane.ComponentRole{Service: &controlplane.ComponentService{Name: "s"}}
		}), []string{"checks", "third", "controlPlane", "roles", "own", "service", "namespace"}},
		{"object-name", third(func(c *controlplane.Spec) {
			c.Roles["etcd"] = controlplane.ComponentRole{TLS: true, ClientCertificate: "A"}
		}), []string{"checks", "third", "controlPlane", "roles", "etcd", "clientCertificate"}},
		{"topology-key", fourth(func(c *placement.Spec) {
			c.SourcePlacement.TopologySpreadConstraints = []checkup.TopologySpreadConstraint{{TopologyKey: "a b"}}
		}), []string{"checks", "fourth", "placement", "sourcePlacement", "topologySpreadConstraints", "[0]", "topologyKey"}},
		{
			"resources",
			fourth(func(c *placement.Spec) { c.SourcePlacement.Resources.Requests = map[string]string{"cpu": "x"} }),
			[]string{"checks", "fourth", "placement", "sourcePlacement", "resources", "requests", "cpu"},
		},
		{"guest-memory", sixth(func(v *vmlatency.Spec) { v.Guest.Memory = "1Mi" }), vms("guest", "memory")},
		{"kiagnose-twice", func(p *checkup.Plan) {
			again := *p.Checks["sixth"].Spec.(*vmlatency.Spec)
			p.Checks["seventh"] = checkup.Check{Spec: &again}
		}, vms("kiagnose")},
	}
	tested := map[string]bool{}
	for _, test := range tests {
		tested[test.rule] = true
		t.Run(test.rule, func(t *testing.T) {
			p := good()
			test.change(p)
			found := Problems(p)
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
		t.Errorf("duplicate name in %v", names)
	}
}
