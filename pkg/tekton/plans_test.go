// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/controlplane"
	"github.com/checkplan/checkplan/pkg/placement"
	"github.com/checkplan/checkplan/pkg/podmesh"
	"github.com/checkplan/checkplan/pkg/vmlatency"
)

var testOptions = Options{Namespace: "net", ImageRepository: "registry.example.com/checkplan", ImageTag: "v1.2.3", Tekton: Tekton115}

// mesh is a check with the defaults of the schema.
func mesh(after ...string) checkup.Check {
	loss := checkup.Percent(1)
	return checkup.Check{After: after, Spec: &podmesh.Spec{
		Sources: podmesh.Sources{Placement: checkup.Placement{NodeSelector: map[string]string{"kubernetes.io/os": "linux"}}},
		Targets: podmesh.Targets{Placement: checkup.Placement{NodeSelector: map[string]string{"kubernetes.io/os": "linux"}, Tolerations: []checkup.Toleration{{Operator: "Exists"}}}},
		Sample:  podmesh.Sample{Degree: 10, Budget: 100000},
		Probes: map[checkup.Transport]checkup.Probe{
			checkup.TCP: {Sizes: []int{0}, Count: 5, Interval: checkup.Duration(100 * time.Millisecond), Timeout: checkup.Duration(2 * time.Second)},
		},
		Expect:    checkup.Expect{Loss: checkup.LossLimit{Max: &loss}},
		Limits:    checkup.Limits{PacketsPerSecond: 200, Concurrency: 16, StartJitter: checkup.Duration(500 * time.Millisecond)},
		Resources: checkup.Resources{Requests: map[string]string{"cpu": "10m", "memory": "32Mi"}, Limits: map[string]string{"memory": "64Mi"}},
		Timeouts:  checkup.Timeouts{Setup: checkup.Duration(2 * time.Minute), Probe: checkup.Duration(5 * time.Minute)},
	}}
}

func planOf(name, description string, checks map[string]checkup.Check) *checkup.Plan {
	return &checkup.Plan{
		Name: name, Description: description,
		Gate: checkup.Gate{Require: checkup.RequirePass}, Teardown: checkup.TeardownAlways,
		Retention: checkup.Retention{Reports: 10}, Checks: checks,
	}
}

// smallPlan has one check. twoChecks has two, one after the other, with a long phase
// and texts that Tekton or Kubernetes could expand.
func smallPlan() *checkup.Plan {
	return planOf("small", "Is the pod network whole?", map[string]checkup.Check{"mesh": mesh()})
}

// scheduled has a schedule.
func scheduled() *checkup.Plan {
	p := planOf("scheduled", "Is the pod network whole, every ten minutes?", map[string]checkup.Check{"mesh": mesh()})
	p.Schedule = &checkup.Schedule{
		Cron: "*/10 * * * *", TimeZone: "Europe/Berlin", ConcurrencyPolicy: checkup.ConcurrencyForbid,
		StartingDeadlineSeconds: 300, Jitter: checkup.Duration(30 * time.Second),
	}
	return p
}

// healthy writes PodNetworkHealths.
func healthy() *checkup.Plan {
	p := planOf("healthy", "Which pods can talk?", map[string]checkup.Check{"mesh": mesh(), "api": controlPlane()})
	p.Features.PodNetworkHealth = true
	p.PodNetworkHealth = &checkup.PodNetworkHealth{
		InstallCRD: true, MaxObjects: 500, StaleAfter: checkup.Duration(time.Hour), ExpireAfter: checkup.Duration(24 * time.Hour),
	}
	return p
}

func twoChecks() *checkup.Plan {
	pods := mesh("wide")
	pods.Spec.(*podmesh.Spec).Targets.Pods = &podmesh.PodTargets{Namespace: "shop", Selector: checkup.LabelSelector{MatchLabels: map[string]string{"app": "cart"}}, Port: 8080}
	pods.Spec.(*podmesh.Spec).Probes = map[checkup.Transport]checkup.Probe{
		checkup.HTTP: {Sizes: []int{0}, Count: 3, Interval: checkup.Duration(time.Second), Timeout: checkup.Duration(time.Second), Path: "/$(HOSTNAME)/${HOME}?a=1&b=<2>"},
	}
	wide := mesh()
	wide.Spec.(*podmesh.Spec).Timeouts.Probe = checkup.Duration(30 * time.Minute)
	latency, affinity := checkup.Duration(5*time.Millisecond), `{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"Exists"}]}]}}`
	wide.Spec.(*podmesh.Spec).Expect.Latency.P99 = &latency
	wide.Spec.(*podmesh.Spec).Sources.Placement.Affinity = json.RawMessage(affinity)
	return planOf("two-checks", "First the mesh, then the shop.\n\nIt costs $(money) and ${more}.", map[string]checkup.Check{"shop": pods, "wide": wide})
}

// controlPlane and dryRun are checks as the schema's defaults make them.
func controlPlane(after ...string) checkup.Check {
	second := checkup.Duration(time.Second)
	loss := checkup.Percent(0)
	return checkup.Check{After: after, Spec: &controlplane.Spec{
		Preset: controlplane.PresetAuto, MaxNodes: 100, Interval: second,
		Probe:              controlplane.ConnectionProbe{Count: 5, Deadlines: checkup.StageDeadlines{Resolve: 5 * second, Connect: 5 * second, Handshake: 5 * second, Response: 5 * second}},
		Expect:             controlplane.ConnectionExpect{Loss: checkup.LossLimit{Max: &loss}},
		ConnectivityChecks: checkup.ConnectivityChecks{Write: true, InstallCRD: true, Retention: 7200 * second, StaleAfter: 300 * second},
		Limits:             checkup.Limits{PacketsPerSecond: 200, Concurrency: 16, StartJitter: second / 2},
		Resources:          checkup.Resources{Requests: map[string]string{"cpu": "10m", "memory": "32Mi"}, Limits: map[string]string{"memory": "64Mi"}},
		Timeouts:           checkup.Timeouts{Setup: 120 * second, Probe: 300 * second},
	}}
}

func dryRun(after ...string) checkup.Check {
	second := checkup.Duration(time.Second)
	return checkup.Check{After: after, Spec: &placement.Spec{
		Timeouts: checkup.Timeouts{Setup: 120 * second, Probe: 60 * second},
	}}
}

func vmLatency(after ...string) checkup.Check {
	second := checkup.Duration(time.Second)
	return checkup.Check{After: after, Spec: &vmlatency.Spec{
		Networks: []checkup.NetworkRef{{Namespace: "default", Name: "br10"}}, IPFamilies: checkup.IPFamilies,
		Duration: 5 * second, Interval: second / 5, Guest: checkup.Guest{Memory: "128Mi"},
		Timeouts: checkup.Timeouts{Setup: 300 * second, Probe: 120 * second},
		Kiagnose: &checkup.ConfigMapRef{Namespace: "kiagnose", Name: "kubevirt-latency-checkup-config"},
	}}
}

// allKinds has a check of each kind; one takes an hour.
func allKinds() *checkup.Plan {
	watch := controlPlane("where")
	hour := checkup.Duration(time.Hour)
	watch.Spec.(*controlplane.Spec).For = &hour
	return planOf("all-kinds", "Where would it land, who can talk to whom, and is the mesh whole meanwhile?", map[string]checkup.Check{
		"where": dryRun(), "watch": watch, "mesh": mesh("where"), "vms": vmLatency("mesh"),
	})
}

// randomPlan is a random plan that Compile must accept.
func randomPlan(r *rand.Rand) *checkup.Plan {
	label := func(most int) string {
		const first, inner = "abcxyz0189", "abcxyz0189-"
		n := 1 + r.IntN(most)
		var b strings.Builder
		for i := range n {
			if i == 0 || i == n-1 {
				b.WriteByte(first[r.IntN(len(first))])
			} else {
				b.WriteByte(inner[r.IntN(len(inner))])
			}
		}
		return b.String()
	}
	text := func() string {
		words := []string{"$(params.gate)", "${HOME}", "$$", "\"", "'", "\\", ": ", "# ", "\n", "\t", "é", "- ", "{{ }}", "<&>", "\u2028", "x", "|", "%s"}
		var b strings.Builder
		for range r.IntN(12) {
			b.WriteString(words[r.IntN(len(words))])
		}
		return b.String()
	}
	duration := func(least, most time.Duration) checkup.Duration {
		return checkup.Duration(least + time.Duration(r.Int64N(int64(most-least))))
	}
	plan := planOf(label(checkup.MaxPlanName), text(), map[string]checkup.Check{})
	plan.Gate.Require = checkup.Requirements[r.IntN(len(checkup.Requirements))]
	plan.Gate.Confirm = r.IntN(2) == 0
	plan.Gate.MaxUnmeasured = checkup.Percent(r.Float64() * 100)
	plan.Teardown = checkup.Teardowns[r.IntN(len(checkup.Teardowns))]
	var names []string
	for range 1 + r.IntN(4) {
		name := label(checkup.MaxCheckName)
		if _, ok := plan.Checks[name]; ok {
			continue
		}
		var after []string
		for _, other := range names {
			if r.IntN(3) == 0 {
				after = append(after, other)
			}
		}
		names = append(names, name)
		if r.IntN(3) == 0 {
			plan.Checks[name] = dryRun(after...)
			continue
		}
		if r.IntN(4) == 0 {
			check := vmLatency(after...)
			v := check.Spec.(*vmlatency.Spec)
			v.Kiagnose.Name = name
			v.Networks = append(v.Networks, checkup.NetworkRef{Name: label(10)})
			v.Guest.Image, v.Guest.Login = "quay.io/x/y:$(z)", &checkup.GuestLogin{User: "root", Password: "$$ ${HOME} \"'"}
			v.Timeouts = checkup.Timeouts{Setup: duration(1, day), Probe: duration(time.Minute, day)}
			plan.Checks[name] = check
			continue
		}
		if r.IntN(3) == 0 {
			check := controlPlane(after...)
			if c := check.Spec.(*controlplane.Spec); r.IntN(2) == 0 {
				watch := duration(10*time.Second, 3*time.Hour)
				c.For = &watch
			}
			check.Spec.(*controlplane.Spec).Roles = map[string]controlplane.ComponentRole{"shop": {TLS: true, Pods: &controlplane.ComponentPods{
				Namespace: label(10), Port: 443, Selector: checkup.LabelSelector{MatchLabels: map[string]string{"app": "shop"}},
			}}}
			plan.Checks[name] = check
			continue
		}
		check := mesh(after...)
		m := check.Spec.(*podmesh.Spec)
		m.Timeouts = checkup.Timeouts{Setup: duration(1, day), Probe: duration(20*time.Minute, day)}
		if m.Expect.Unreachable = r.IntN(4) == 0; m.Expect.Unreachable {
			m.Expect.Loss.Max = nil
		} else if limit := duration(1, time.Second); r.IntN(2) == 0 {
			m.Expect.Jitter.Max = &limit
		}
		probe := checkup.Probe{Count: 2 + r.IntN(100), Interval: duration(1, time.Second), Timeout: duration(1, time.Second)}
		for _, t := range podmesh.Transports {
			if r.IntN(2) == 0 {
				probe.Path = ""
				if probe.Sizes = []int{r.IntN(2000) + checkup.MinUDPSize}; t == checkup.HTTP {
					probe.Path = "/${HOME}/$(params.gate)/$$?a=\"<&>'\\"
				}
				m.Probes[t] = probe
			}
		}
		if r.IntN(3) == 0 {
			m.Targets.Pods = &podmesh.PodTargets{Namespace: label(10), Port: 80, Selector: checkup.LabelSelector{MatchLabels: map[string]string{fmt.Sprint("k", r.IntN(9)): "v"}}}
			delete(m.Probes, checkup.UDP)
			for t, probe := range m.Probes {
				probe.Sizes = []int{0}
				m.Probes[t] = probe
			}
		}
		plan.Checks[name] = check
	}
	return plan
}

const day = 24 * time.Hour
