// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
)

// Transports that a mesh can be measured with.
var Transports = []checkup.Transport{checkup.TCP, checkup.UDP, checkup.ICMP, checkup.HTTP}

// Spec selects the sample of the ordered node pairs that is measured, pod to pod.
type Spec struct {
	Sources Sources `json:"sources"`
	Targets Targets `json:"targets"`
	Sample  Sample  `json:"sample"`
	// IPFamilies to measure. Empty means every family that the nodes' pods have.
	IPFamilies []checkup.IPFamily `json:"ipFamilies,omitempty"`
	// Probes by transport; at least one.
	Probes map[checkup.Transport]checkup.Probe `json:"probes"`
	Expect checkup.Expect                      `json:"expect"`
	Limits checkup.Limits                      `json:"limits"`
	// Resources of every agent and responder pod.
	Resources checkup.Resources `json:"resources"`
	Timeouts  checkup.Timeouts  `json:"timeouts"`
}

// Kind is Name.
func (m *Spec) Kind() checkup.Kind { return Name }

// PhaseTimeouts are those of the plan.
func (m *Spec) PhaseTimeouts() checkup.Timeouts { return m.Timeouts }

// Fixtures are agents, and responders unless targets are existing pods. An agent inside an existing pod is none, but
// what reads responders needs the rights of a check with agents.
func (m *Spec) Fixtures() []checkup.Role {
	switch {
	case m.Targets.Pods != nil && m.Sources.Pods != nil:
		return nil
	case m.Targets.Pods != nil:
		return []checkup.Role{checkup.RoleAgent}
	}
	return []checkup.Role{checkup.RoleResponder, checkup.RoleAgent}
}

// Sources are agents: one on every node that the placement admits or, if Pods is set, one inside each of these existing
// pods.
type Sources struct {
	Placement checkup.Placement `json:"placement"`
	Pods      *PodSources       `json:"pods,omitempty"`
}

// PodSources selects existing pods, each of which gets an agent as an ephemeral container. Either Name or Selector is
// set.
type PodSources struct {
	// Namespace of the pods. Empty means the run's own.
	Namespace string `json:"namespace,omitempty"`
	// Name of the only pod.
	Name     string                `json:"name,omitempty"`
	Selector checkup.LabelSelector `json:"selector,omitzero"`
}

// Targets are a responder on every node that the placement admits or, if Pods is set,
// existing pods.
type Targets struct {
	Placement checkup.Placement `json:"placement"`
	Pods      *PodTargets       `json:"pods,omitempty"`
}

// PodTargets selects existing pods. They are probed by tcp, http and icmp only: only
// checkplan's responder answers a udp probe. Either Name or Selector is set.
type PodTargets struct {
	// Namespace of the pods. Empty means the run's own.
	Namespace string `json:"namespace,omitempty"`
	// Name of the only pod.
	Name     string                `json:"name,omitempty"`
	Selector checkup.LabelSelector `json:"selector,omitzero"`
	// Port for tcp and http.
	Port int `json:"port"`
}

// Sample says how many of the possible pairs a run measures.
type Sample struct {
	// Degree is how often each node is at least source, and how often target. 0 means
	// the full mesh.
	Degree int `json:"degree"`
	// Rotate makes each run take the next round; else every run takes Round.
	Rotate bool `json:"rotate"`
	// Round is the first round, counted from 0.
	Round int `json:"round"`
	// Seed orders the nodes on the ring. nil means that it is derived from the names of
	// plan and check: it is the same in every run.
	Seed *uint64 `json:"seed,omitempty"`
	// Budget is the maximum number of pairs (source, target, transport, family, size)
	// that a run measures. The degree is lowered until the sample fits.
	Budget int `json:"budget"`
	// Topology are keys of node labels. Nodes with the same value share something that may fail, such as a rack.
	Topology []string `json:"topology,omitempty"`
}

// Params lists the tunables of the check.
func (m *Spec) Params() []checkup.Param {
	params := []checkup.Param{
		kind.IntParam(
			"degree",
			"How often each node is source and target of a pair, at the least; 0 measures the full mesh",
			&m.Sample.Degree,
			0,
		),
	}
	params = append(params, checkup.AsRare(
		checkup.BoolParam(
			"rotate",
			"Whether each run takes the next round of the sample, so that successive runs add up to the full mesh",
			&m.Sample.Rotate,
		),
		kind.IntParam("round", "First round of the sample, counted from 0", &m.Sample.Round, 0),
		kind.IntParam(
			"budget",
			"Most pairs (source, target, transport, family, size) that a run may measure",
			&m.Sample.Budget,
			1,
		),
		checkup.Param{
			Name:        "topology",
			Description: "Keys of node labels, separated by commas, whose values name what nodes share: rack, switch, host",
			Default:     strings.Join(m.Sample.Topology, ","),
			Write: func(value string) error {
				m.Sample.Topology = strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' })
				return nil
			},
		},
	)...)
	for _, t := range Transports {
		if _, ok := m.Probes[t]; ok {
			params = append(params, checkup.AsRare(m.countParam(t))...)
		}
	}
	if m.Expect.Unreachable {
		return params
	}
	params = append(
		params,
		kind.LimitParam(
			"loss.max",
			"Highest loss of a pair, from 0% to 100%; empty: only a pair without any answer fails",
			&m.Expect.Loss.Max,
		),
	)
	params = append(params, kind.LatencyParams(&m.Expect.Latency, "round-trip")...)
	params = append(params, checkup.AsRare(kind.RegressionParams(m.Expect.Regression)...)...)
	return append(params, checkup.AsRare(
		kind.LimitParam(
			"jitter.max",
			"Highest mean difference of consecutive round-trip delays of a pair, such as 1ms; empty: no limit",
			&m.Expect.Jitter.Max,
		),
	)...)
}

func (m *Spec) countParam(t checkup.Transport) checkup.Param {
	probe := m.Probes[t]
	param := kind.CountParam(string(t)+".count", "How many times each pair is measured by "+string(t), &probe.Count)
	parse := param.Write
	param.Write = func(value string) error {
		if err := parse(value); err != nil {
			return err
		}
		m.Probes[t] = probe
		return nil
	}
	return param
}
