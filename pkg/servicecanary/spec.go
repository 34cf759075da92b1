// SPDX-License-Identifier: Apache-2.0

package servicecanary

import (
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// Spec says which Services are created, over how many endpoints, and which nodes measure them.
type Spec struct {
	// Policies of the Services; at least one.
	Policies []Policy `json:"policies"`
	// Endpoints is the number of responders, each on a node of its own. There are fewer on fewer nodes.
	Endpoints int `json:"endpoints"`
	// Placement selects the nodes. Each of them gets an agent, and some of them a responder.
	Placement checkup.Placement `json:"placement"`
	// IPFamilies to measure. Empty means every family that the nodes' pods have.
	IPFamilies []checkup.IPFamily `json:"ipFamilies,omitempty"`
	// Budget is the maximum number of pairs of a node and an address.
	Budget    int                `json:"budget"`
	Probe     servicecheck.Probe `json:"probe"`
	Expect    Expect             `json:"expect"`
	Limits    checkup.Limits     `json:"limits"`
	Resources checkup.Resources  `json:"resources"` // of every agent and responder pod
	Timeouts  checkup.Timeouts   `json:"timeouts"`
}

// Policy is what a Service has, beside two ports, that a node has to respect.
type Policy string

const (
	ClusterIP           Policy = "ClusterIP"           // nothing: all ready endpoints, and no other
	InternalLocal       Policy = "InternalLocal"       // internalTrafficPolicy: Local
	SessionAffinity     Policy = "SessionAffinity"     // sessionAffinity: ClientIP
	NodePort            Policy = "NodePort"            // a node port, at the agent's own node and at another one
	ExternalLocal       Policy = "ExternalLocal"       // externalTrafficPolicy: Local, at the node ports of other nodes
	PublishNotReady     Policy = "PublishNotReady"     // publishNotReadyAddresses, and a Service without a ready endpoint
	TrafficDistribution Policy = "TrafficDistribution" // trafficDistribution: PreferClose
	Hairpin             Policy = "Hairpin"             // the only endpoint is the client itself
	EndpointLeaves      Policy = "EndpointLeaves"      // the endpoint is replaced: a UDP flow to it must follow
	Terminating         Policy = "Terminating"         // an endpoint that terminates, and a ready one
)

// Policies lists every Policy.
var Policies = []Policy{
	ClusterIP, InternalLocal, SessionAffinity, NodePort, ExternalLocal, PublishNotReady, TrafficDistribution, Hairpin,
	EndpointLeaves, Terminating,
}

// Expect is what the pairs must achieve. A nil limit is not checked.
type Expect struct {
	Loss    checkup.LossLimit     `json:"loss"`
	Latency checkup.LatencyLimits `json:"latency"`
	// Share says whether endpoints must be equally likely.
	Share Share `json:"share"`
	// Closed says how a TCP connection must fail that a node has to refuse or to drop.
	Closed servicecheck.Closed `json:"closed"`
}

// Share is how connections are spread over endpoints.
type Share string

const (
	ShareEven Share = "Even" // each is as likely as the others
	ShareAny  Share = "Any"  // each has some
)

// Kind is Name.
func (s *Spec) Kind() checkup.Kind { return Name }

// PhaseTimeouts are those of the plan.
func (s *Spec) PhaseTimeouts() checkup.Timeouts { return s.Timeouts }

// Fixtures are responders, Services over them, and agents.
func (s *Spec) Fixtures() []checkup.Role {
	return []checkup.Role{checkup.RoleResponder, checkup.RoleService, checkup.RoleAgent}
}

// Params lists the tunables of the check.
func (s *Spec) Params() []checkup.Param {
	params := []checkup.Param{
		kind.IntParam("endpoints", "Number of responders behind the Services, each on a node of its own", &s.Endpoints, 1),
	}
	params = append(params, checkup.AsRare(
		kind.IntParam("budget", "Most pairs of a node and an address that a run may measure", &s.Budget, 1),
		kind.CountParam("count", "How many connections, or datagrams, of each pair are made", &s.Probe.Count),
		checkup.EnumParam("share", "Whether all endpoints of a Service must be equally likely", &s.Expect.Share,
			[]Share{ShareEven, ShareAny}),
		checkup.EnumParam("closed", "How a connection must fail that a node has to refuse or drop", &s.Expect.Closed,
			[]servicecheck.Closed{servicecheck.ClosedExact, servicecheck.ClosedAny}),
	)...)
	params = append(params, kind.LimitParam("loss.max",
		"Highest share of a pair's connections that may fail, from 0% to 100%; empty: only a pair that is never answered fails",
		&s.Expect.Loss.Max))
	return append(params, kind.LatencyParams(&s.Expect.Latency, "round-trip")...)
}

// has reports whether the plan has a policy.
func (s *Spec) has(p Policy) bool { return slices.Contains(s.Policies, p) }
