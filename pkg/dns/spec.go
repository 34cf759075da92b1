// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// Spec says which names are asked for, by whom, and of whom.
type Spec struct {
	Services servicecheck.Selection `json:"services"`
	// ExternalNames are names outside the cluster, which must have an IPv4 address.
	ExternalNames []string `json:"externalNames,omitempty"`
	// Placement selects the nodes. Each of them gets an agent.
	Placement checkup.Placement `json:"placement"`
	// Servers to ask; at least one.
	Servers []Server `json:"servers"`
	// DNSService is the Service whose endpoints are asked.
	DNSService ServiceName `json:"dnsService"`
	// Domain of the cluster, such as cluster.local.
	Domain string `json:"domain"`
	// Transports to ask over; at least one.
	Transports []Transport         `json:"transports"`
	Sample     servicecheck.Sample `json:"sample"`
	Probe      servicecheck.Probe  `json:"probe"`
	Expect     Expect              `json:"expect"`
	Limits     checkup.Limits      `json:"limits"`
	Resources  checkup.Resources   `json:"resources"` // of every agent pod
	Timeouts   checkup.Timeouts    `json:"timeouts"`
}

// Server is a kind of server to ask.
type Server string

const (
	// Resolver are the servers that a pod's /etc/resolv.conf names, asked as a libc resolver asks them.
	Resolver Server = "Resolver"
	// Endpoints are the ready endpoints of the DNS Service, each by itself.
	Endpoints Server = "Endpoints"
)

// Servers lists every Server.
var Servers = []Server{Resolver, Endpoints}

// ServiceName names a Service.
type ServiceName struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// String prints namespace/name.
func (n ServiceName) String() string { return n.Namespace + "/" + n.Name }

// Transport is how a server is asked.
type Transport string

const (
	UDP Transport = "UDP"
	TCP Transport = "TCP"
)

// Transports lists every Transport.
var Transports = []Transport{UDP, TCP}

// of is the transport of pairs.
func (t Transport) of() checkup.Transport {
	if t == TCP {
		return checkup.DNSTCP
	}
	return checkup.DNSUDP
}

// Expect is what the pairs must achieve. A nil limit is not checked. A wrong answer counts as lost.
type Expect struct {
	Loss    checkup.LossLimit     `json:"loss"`
	Latency checkup.LatencyLimits `json:"latency"`
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
		kind.IntParam("degree", "Number of questions that each node asks, each at one server over one transport; 0 asks all",
			&s.Sample.Degree, 0),
	}
	params = append(params, checkup.AsRare(
		checkup.BoolParam("rotate",
			"Whether each run takes the next round of the sample, so that successive runs add up to all questions from all nodes",
			&s.Sample.Rotate),
		kind.IntParam("round", "First round of the sample, counted from 0", &s.Sample.Round, 0),
		kind.IntParam("budget", "Most pairs of a node and a question that a run may measure", &s.Sample.Budget, 1),
		kind.CountParam("count", "How often each question is asked", &s.Probe.Count),
	)...)
	params = append(params, kind.LimitParam("loss.max",
		"Highest share of a pair's questions without the right answer, from 0% to 100%; empty: only a pair that is never "+
			"answered correctly fails", &s.Expect.Loss.Max))
	return append(params, kind.LatencyParams(&s.Expect.Latency, "DNS answer")...)
}
