// SPDX-License-Identifier: Apache-2.0

package services

import (
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
)

// Spec selects Services, and the nodes from which they are measured.
type Spec struct {
	Services Selection `json:"services"`
	// Placement selects the nodes. Each of them gets an agent.
	Placement checkup.Placement `json:"placement"`
	// Addresses are the kinds of addresses to connect to; at least one.
	Addresses []Address `json:"addresses"`
	// IPFamilies to measure. Empty means every family of a Service.
	IPFamilies []checkup.IPFamily `json:"ipFamilies,omitempty"`
	Sample     Sample             `json:"sample"`
	Probe      Probe              `json:"probe"`
	Expect     Expect             `json:"expect"`
	Limits     checkup.Limits     `json:"limits"`
	// Resources of every agent pod.
	Resources checkup.Resources `json:"resources"`
	Timeouts  checkup.Timeouts  `json:"timeouts"`
}

// Selection selects Services.
type Selection struct {
	// Namespaces of the Services. Empty means all.
	Namespaces []string `json:"namespaces,omitempty"`
	// Selector of their labels. A zero one means every Service.
	Selector checkup.LabelSelector `json:"selector,omitzero"`
}

// Listed are the namespaces to list; the single one "" is all of them.
func (s Selection) Listed() []string {
	if len(s.Namespaces) == 0 {
		return []string{""}
	}
	return s.Namespaces
}

// Address is a kind of address of a Service.
type Address string

const (
	// ClusterIP is the Service's own address.
	ClusterIP Address = "ClusterIP"
	// NodePort is the node port at the address of the node that the agent is on.
	NodePort Address = "NodePort"
	// ExternalIP is an external IP, or an address of the load balancer that nodes serve themselves to any client.
	ExternalIP Address = "ExternalIP"
)

// Addresses lists every Address.
var Addresses = []Address{ClusterIP, NodePort, ExternalIP}

// Sample says how many of the possible pairs of a node and an address a run measures.
type Sample struct {
	// Degree is the number of addresses that each node measures. 0 means all.
	Degree int `json:"degree"`
	// Rotate makes each run take the next round; else every run takes Round.
	Rotate bool `json:"rotate"`
	// Round is the first round, counted from 0.
	Round int `json:"round"`
	// Seed orders nodes and addresses. nil means that it is derived from the names of plan and check.
	Seed *uint64 `json:"seed,omitempty"`
	// Budget is the maximum number of pairs that a run measures. The degree is lowered until the sample fits.
	Budget int `json:"budget"`
}

// Probe is how a pair is measured: by connecting and closing. No data is sent.
type Probe struct {
	Count    int              `json:"count"`
	Interval checkup.Duration `json:"interval"`
	Timeout  checkup.Duration `json:"timeout"`
}

// Expect is what the pairs must achieve. A nil limit is not checked.
type Expect struct {
	Loss    checkup.LossLimit     `json:"loss"`
	Latency checkup.LatencyLimits `json:"latency"`
	// Closed says how a pair must fail to connect if the node has to refuse or to drop its connections.
	Closed Closed `json:"closed"`
}

// Closed is how a connection must fail.
type Closed string

const (
	ClosedExact Closed = "Exact" // refused or dropped, as kube-proxy does it
	ClosedAny   Closed = "Any"   // in any way
)

// Kind is Name.
func (s *Spec) Kind() checkup.Kind { return Name }

// PhaseTimeouts are those of the plan.
func (s *Spec) PhaseTimeouts() checkup.Timeouts { return s.Timeouts }

// Fixtures are agents.
func (s *Spec) Fixtures() []checkup.Role { return []checkup.Role{checkup.RoleAgent} }

// Params lists the tunables of the check.
func (s *Spec) Params() []checkup.Param {
	params := []checkup.Param{
		kind.IntParam("degree", "Number of Services' addresses that each node measures; 0 measures all", &s.Sample.Degree, 0),
	}
	params = append(params, checkup.AsRare(
		checkup.BoolParam("rotate",
			"Whether each run takes the next round of the sample, so that successive runs add up to all addresses from all nodes",
			&s.Sample.Rotate),
		kind.IntParam("round", "First round of the sample, counted from 0", &s.Sample.Round, 0),
		kind.IntParam("budget", "Most pairs of a node and an address that a run may measure", &s.Sample.Budget, 1),
		kind.CountParam("count", "How many connections of each pair are made", &s.Probe.Count),
		checkup.EnumParam("closed", "How connections must fail that a node has to refuse or drop", &s.Expect.Closed,
			[]Closed{ClosedExact, ClosedAny}),
	)...)
	params = append(params, kind.LimitParam("loss.max",
		"Highest share of a pair's connections that may fail, from 0% to 100%; empty: only a pair that never connects fails",
		&s.Expect.Loss.Max))
	return append(params, kind.LatencyParams(&s.Expect.Latency, "TCP connect")...)
}

// wants reports whether the plan measures a family.
func (s *Spec) wants(f checkup.IPFamily) bool {
	return len(s.IPFamilies) == 0 || slices.Contains(s.IPFamilies, f)
}
