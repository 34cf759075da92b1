// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/controlplane"
	"github.com/checkplan/checkplan/pkg/dns"
	"github.com/checkplan/checkplan/pkg/placement"
	"github.com/checkplan/checkplan/pkg/podmesh"
	"github.com/checkplan/checkplan/pkg/servicecanary"
	"github.com/checkplan/checkplan/pkg/servicerules"
	"github.com/checkplan/checkplan/pkg/services"
	"github.com/checkplan/checkplan/pkg/vmlatency"
)

// meshPlan has one check "mesh" with every probe and no limits but loss.
func meshPlan() *checkup.Plan {
	one := checkup.Percent(1)
	probes := map[checkup.Transport]checkup.Probe{}
	for _, t := range checkup.Transports {
		probes[t] = checkup.Probe{
			Sizes:    []int{64},
			Count:    5,
			Interval: checkup.Duration(10 * time.Millisecond),
			Timeout:  checkup.Duration(time.Second),
		}
	}
	http := probes[checkup.HTTP]
	http.Path = "/healthz"
	probes[checkup.HTTP] = http
	return &checkup.Plan{
		Name: "p", Gate: checkup.Gate{Require: checkup.RequirePass}, Teardown: checkup.TeardownAlways, Retention: checkup.Retention{Reports: 10},
		Checks: map[string]checkup.Check{"mesh": {Spec: &podmesh.Spec{
			Sample:   podmesh.Sample{Degree: 10, Budget: 100000},
			Probes:   probes,
			Expect:   checkup.Expect{Loss: checkup.LossLimit{Max: &one}},
			Limits:   checkup.Limits{PacketsPerSecond: 200, Concurrency: 16},
			Timeouts: checkup.Timeouts{Setup: checkup.Duration(time.Minute), Probe: checkup.Duration(5 * time.Minute)},
		}}},
	}
}

func TestSet(t *testing.T) {
	tests := []struct {
		name, value string
		want        string // JSON that the plan then has, or
		err         string
	}{
		{"gate", "Nothing", `"require":"Nothing"`, ""},
		{"gate", "pass", "", "parameter gate: \"pass\": want one of Pass, NoFailure, Nothing"},
		{"max-unmeasured", "2.5%", `"maxUnmeasured":"2.5%"`, ""},
		{"max-unmeasured", "101%", "", `percentage "101%": want a number from 0 to 100`},
		{"confirm", "true", `"confirm":true`, ""},
		{"confirm", "1", "", "want true or false"},
		{"max-unmeasured", "NaN%", "", `percentage "NaN%"`},
		{"teardown", "Never", `"teardown":"Never"`, ""},
		{"mesh.degree", "0", `"degree":0`, ""},
		{"mesh.degree", "-1", "", "want a whole number of at least 0"},
		{"mesh.degree", "ten", "", "want a whole number of at least 0"},
		{"mesh.rotate", "true", `"rotate":true`, ""},
		{"mesh.rotate", "yes", "", "want true or false"},
		{"mesh.round", "3", `"round":3`, ""},
		{"mesh.budget", "0", "", "want a whole number of at least 1"},
		{"mesh.budget", "12", `"budget":12`, ""},
		{"mesh.topology", "example.com/rack, host", `"topology":["example.com/rack","host"]`, ""},
		{"mesh.udp.count", "50", `"count":50`, ""},
		{"mesh.udp.count", "1001", "", "want at most 1000"},
		{"mesh.tcp.count", "0", "", "at least 1"},
		{"mesh.tcp.count", "9", `"count":9`, ""},
		{"mesh.icmp.count", "7", `"count":7`, ""},
		{"mesh.http.count", "7", `"count":7`, ""},
		{"mesh.loss.max", "", `"loss":{}`, ""},
		{"mesh.loss.max", "3%", `"loss":{"max":"3%"}`, ""},
		{"mesh.latency.p50", "1ms", `"p50":"1ms"`, ""},
		{"mesh.latency.p90", "1ms", `"p90":"1ms"`, ""},
		{"mesh.latency.p95", "1ms", `"p95":"1ms"`, ""},
		{"mesh.latency.p99", "1500us", `"p99":"1.5ms"`, ""},
		{"mesh.latency.max", "1s", `"max":"1s"`, ""},
		{"mesh.latency.max", "0s", "", "want more than 0"},
		{"mesh.latency.max", "5", "", `duration "5": want a number and a unit`},
		{"mesh.jitter.max", "2ms", `"jitter":{"max":"2ms"}`, ""},
		{"mesh.nope", "1", "", `plan p has no parameter "mesh.nope"; it has gate,`},
	}
	covered := map[string]bool{}
	for _, tt := range tests {
		t.Run(tt.name+"="+tt.value, func(t *testing.T) {
			p := meshPlan()
			before := toJSON(t, p)
			err := p.Set(tt.name, tt.value)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("error %v, want one with %q", err, tt.err)
				}
				if diff := cmp.Diff(before, toJSON(t, p)); diff != "" {
					t.Errorf("a refused value changed the plan:\n%s", diff)
				}
				return
			}
			covered[tt.name] = true
			if err != nil {
				t.Fatal(err)
			}
			if got := toJSON(t, p); !strings.Contains(got, tt.want) {
				t.Errorf("plan is %s, want it to have %s", got, tt.want)
			}
		})
	}
	for _, param := range meshPlan().Params() {
		if !covered[param.Name] {
			t.Errorf("no test sets %s", param.Name)
		}
	}
}

// Apply reports every bad setting, and then what the settings do to each other.
func TestApply(t *testing.T) {
	tests := []struct {
		name     string
		settings []string
		want     []string // each a part of one line of the error
	}{
		{"nothing", nil, nil},
		{"good", []string{"mesh.degree=3", "gate=Nothing"}, nil},
		{"several in one", []string{"settings=mesh.degree=3  mesh.topology=rack, switch\ngate=Nothing"}, nil},
		{"none in one", []string{"settings=", "settings= \n"}, nil},
		{"words in one", []string{"settings=mesh.degree 3 x=1"}, []string{`setting "mesh.degree 3": want name=value`, `no parameter "x"`}},
		{
			"each by itself",
			[]string{"mesh.degree", "gate=Nope", "x=1"},
			[]string{"want name=value", "parameter gate", `no parameter "x"`},
		},
		{"contradiction", []string{"mesh.latency.p50=5ms", "mesh.latency.p99=1ms"}, []string{"p99"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := Apply(meshPlan(), tt.settings)
			if (err == nil) != (len(tt.want) == 0) {
				t.Fatalf("error %v, want %q", err, tt.want)
			}
			for i, want := range tt.want {
				if lines := strings.Split(err.Error(), "\n"); i >= len(lines) || !strings.Contains(lines[i], want) {
					t.Errorf("error %v, want %q in line %d", err, want, i)
				}
			}
		})
	}
}

// A param's default, set, changes nothing: what the dashboard's form shows is
// what the plan says.
func TestParamDefaultsAreThePlan(t *testing.T) {
	p := meshPlan()
	before := toJSON(t, p)
	for _, param := range p.Params() {
		if param.Description == "" {
			t.Errorf("%s has no description", param.Name)
		}
		if err := p.Set(param.Name, param.Default); err != nil {
			t.Errorf("default of %s: %v", param.Name, err)
		}
	}
	if diff := cmp.Diff(before, toJSON(t, p)); diff != "" {
		t.Errorf("defaults changed the plan:\n%s", diff)
	}
}

func TestUnreachableHasNoLimits(t *testing.T) {
	p := meshPlan()
	p.Checks["mesh"].Spec.(*podmesh.Spec).Expect = checkup.Expect{Unreachable: true}
	for _, param := range p.Params() {
		for _, word := range []string{"loss", "latency", "jitter"} {
			if strings.Contains(param.Name, word) {
				t.Errorf("%s: a plan that expects pairs to be cut off has no such limit", param.Name)
			}
		}
	}
}

// Watching comes on top of the timeouts, for the run and for the agent.
func TestWatchingIsBesideTimeouts(t *testing.T) {
	hour := checkup.Duration(time.Hour)
	c := &controlplane.Spec{
		For:      &hour,
		Interval: checkup.Duration(time.Second),
		Probe:    controlplane.ConnectionProbe{Count: 5},
		Timeouts: checkup.Timeouts{Setup: 1, Probe: checkup.Duration(4 * time.Minute)},
	}
	if got := (checkup.Check{Spec: c}).PhaseTimeouts(); got.Setup != 1 ||
		got.Probe != checkup.Duration(64*time.Minute) {
		t.Errorf("%+v", got)
	}
	if got := c.Measurements(); got != 3600 {
		t.Errorf("%d measurements, want one a second", got)
	}
	w := &checkup.Worksheet{Timeouts: c.Timeouts, Connections: &checkup.ConnectionSheet{For: hour}}
	if got := w.AgentDeadline(); got != checkup.Duration(63*time.Minute) {
		t.Errorf("the agent has %s", got)
	}
	v := &vmlatency.Spec{Duration: hour, Timeouts: c.Timeouts}
	if got := (checkup.Check{Spec: v}).PhaseTimeouts(); got.Setup != 1 ||
		got.Probe != checkup.Duration(64*time.Minute) {
		t.Errorf("VMs: %+v", got)
	}
	w = &checkup.Worksheet{Timeouts: c.Timeouts, Guests: &checkup.GuestSheet{Duration: hour}}
	if got := w.AgentDeadline(); got != checkup.Duration(63*time.Minute) ||
		w.ProbeTimeout() != checkup.Duration(64*time.Minute) {
		t.Errorf("guests have %s of %s", got, w.ProbeTimeout())
	}
	c.For = nil
	if got := c.Measurements(); got != 5 {
		t.Errorf("%d measurements in one round, want 5", got)
	}
	if got := (checkup.Check{}).PhaseTimeouts(); got != (checkup.Timeouts{}) {
		t.Errorf("a check without a kind takes %+v", got)
	}
}

// Every kind has params, whose names begin with its check's, and which can be set.
func TestParamsOfEveryKind(t *testing.T) {
	set := map[checkup.Kind][]string{
		podmesh.Name: {"degree=3"},
		controlplane.Name: {
			"preset=generic",
			"for=10m0s",
			"for=",
			"interval=2s",
			"count=7",
			"loss.max=5%",
			"outage.max=30s",
			"latency.p99=5ms",
		},
		placement.Name: {"mode=All", "mode=", "networkConfig=true"},
		servicerules.Name: {
			"nodes=3", "rotate=true", "round=2", "interval=20s", "missing.max=30s", "stale.max=1m0s", "stale.max=0s", "extra.max=10s",
		},
		services.Name:      {"degree=3", "rotate=true", "round=2", "budget=7", "count=9", "closed=Any", "loss.max=", "latency.p99=5ms"},
		servicecanary.Name: {"endpoints=3", "budget=7", "count=9", "share=Any", "closed=Any", "loss.max=", "latency.p99=5ms"},
		dns.Name:           {"degree=3", "rotate=true", "round=2", "budget=7", "count=9", "loss.max=", "latency.p99=5ms"},
		vmlatency.Name: {
			"duration=10s",
			"interval=100ms",
			"loss.max=5%",
			"loss.max=",
			"latency.max=200ms",
			"latency.p50=5ms",
			"jitter.max=1ms",
			"jitter.max=",
		},
	}
	refused := map[checkup.Kind][]string{
		podmesh.Name:      {"degree=-1"},
		controlplane.Name: {"preset=k3s", "for=0s", "interval=", "interval=0s", "count=0", "count=1001"},
		placement.Name:    {"mode=Some", "networkConfig=yes"},
		servicerules.Name: {
			"nodes=-1", "interval=", "interval=0s", "interval=x", "missing.max=", "stale.max=-1s", "extra.max=25h",
		},
		services.Name:      {"degree=-1", "budget=0", "count=0", "closed=Never", "loss.max=101%"},
		servicecanary.Name: {"endpoints=0", "budget=0", "count=0", "share=Odd", "closed=Never", "loss.max=101%"},
		dns.Name:           {"degree=-1", "budget=0", "count=0", "loss.max=101%"},
		vmlatency.Name: {
			"duration=",
			"duration=0s",
			"duration=-1s",
			"interval=0",
			"loss.max=101%",
			"latency.max=-1ms",
			"jitter.max=x",
		},
	}
	for _, kind := range Names() {
		checks := map[checkup.Kind]checkup.Check{
			podmesh.Name: {
				Spec: &podmesh.Spec{},
			}, controlplane.Name: {Spec: &controlplane.Spec{Interval: 1}}, placement.Name: {Spec: &placement.Spec{}},
			services.Name:      {Spec: &services.Spec{}},
			servicerules.Name:  {Spec: &servicerules.Spec{Interval: 1}},
			vmlatency.Name:     {Spec: &vmlatency.Spec{Duration: 1, Interval: 1}},
			dns.Name:           {Spec: &dns.Spec{}},
			servicecanary.Name: {Spec: &servicecanary.Spec{}},
		}
		c, ok := checks[kind]
		if !ok || c.Kind() != kind {
			t.Fatalf("no check of kind %s", kind)
		}
		p := &checkup.Plan{Name: "p", Checks: map[string]checkup.Check{"x": c}}
		for _, setting := range set[kind] {
			name, value, _ := strings.Cut(setting, "=")
			if err := p.Set("x."+name, value); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
			for _, param := range p.Params() {
				if param.Name == "x."+name && param.Default != value {
					t.Errorf("%s: %s is now %q", kind, setting, param.Default)
				}
			}
		}
		for _, setting := range refused[kind] {
			name, value, _ := strings.Cut(setting, "=")
			before := toJSON(t, p)
			if err := p.Set("x."+name, value); err == nil {
				t.Errorf("%s: %s was taken", kind, setting)
			}
			if after := toJSON(t, p); after != before {
				t.Errorf("%s: %s was refused, and changed %s to %s", kind, setting, before, after)
			}
		}
		if len(set[kind]) == 0 || len(refused[kind]) == 0 {
			t.Errorf("no setting of kind %s is tried", kind)
		}
	}
}

func toJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
