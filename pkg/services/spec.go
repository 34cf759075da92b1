// SPDX-License-Identifier: Apache-2.0

package services

import (
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// Spec selects Services, and the nodes from which they are measured.
type Spec struct {
	Services servicecheck.Selection `json:"services"`
	// Placement selects the nodes. Each of them gets an agent.
	Placement checkup.Placement `json:"placement"`
	// Addresses are the kinds of addresses to connect to; at least one.
	Addresses []Address `json:"addresses"`
	// IPFamilies to measure. Empty means every family of a Service.
	IPFamilies []checkup.IPFamily  `json:"ipFamilies,omitempty"`
	Sample     servicecheck.Sample `json:"sample"`
	Probe      servicecheck.Probe  `json:"probe"`
	Expect     Expect              `json:"expect"`
	Limits     checkup.Limits      `json:"limits"`
	// Resources of every agent pod.
	Resources checkup.Resources `json:"resources"`
	Timeouts  checkup.Timeouts  `json:"timeouts"`
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

// Expect is what the pairs must achieve. A nil limit is not checked.
type Expect struct {
	Loss    checkup.LossLimit     `json:"loss"`
	Latency checkup.LatencyLimits `json:"latency"`
	// Closed says how a pair must fail to connect if the node has to refuse or to drop its connections.
	Closed servicecheck.Closed `json:"closed"`
}

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
		checkup.EnumParam("closed", "How a connection must fail that a node has to refuse or drop", &s.Expect.Closed,
			[]servicecheck.Closed{servicecheck.ClosedExact, servicecheck.ClosedAny}),
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
