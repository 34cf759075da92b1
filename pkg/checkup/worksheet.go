// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"encoding/json"
	"iter"
	"net"
	"strconv"
)

// Worksheet is the frozen list of expected pairs and other units of a check, written
// before anything is measured. It is compact: pairs are spelled out by Pairs.
type Worksheet struct {
	Plan  string `json:"plan"`
	Check string `json:"check"`
	Kind  Kind   `json:"kind"`
	// Seed and Round of the sample, and Rounds, the number of rounds after which
	// every possible pair was measured.
	Seed   uint64 `json:"seed"`
	Round  int    `json:"round"`
	Rounds int    `json:"rounds"`
	// Degree that was sampled; lower than the plan's where the budget or the
	// number of nodes made it so.
	Degree int `json:"degree"`
	// Possible is the number of ordered (source, target) pairs that the full mesh
	// would have.
	Possible int `json:"possible"`
	// Sources and Targets, each sorted by node and name. A pair names them by
	// index.
	Sources []Endpoint `json:"sources"`
	Targets []Endpoint `json:"targets"`
	// Assignments holds for each source, by its index, the indexes of its targets
	// in ascending order.
	Assignments [][]int `json:"assignments"`
	// IPFamilies, Probes: every assignment is measured in each of them.
	IPFamilies []IPFamily       `json:"ipFamilies"`
	Probes     []TransportProbe `json:"probes"`
	Expect     Expect           `json:"expect"`
	Limits     Limits           `json:"limits"`
	Resources  Resources        `json:"resources"`
	Timeouts   Timeouts         `json:"timeouts"`
	// Units are the names of the expected units that are not pairs.
	Units []string `json:"units,omitempty"`
	// Details are what the check's kind needs to know when it asks and judges, as JSON
	// of its own; null for kinds of which the rest of the worksheet says everything.
	Details json.RawMessage `json:"details,omitempty"`
	// Warnings of the expansion, one line each.
	Warnings []string `json:"warnings,omitempty"`
	// Connections is set where targets have Peers; nil elsewhere.
	Connections *ConnectionSheet `json:"connections,omitempty"`
	// Guests is set where sources and targets are VMs; nil elsewhere.
	Guests *GuestSheet `json:"guests,omitempty"`
}

// ConnectionSheet is what a worksheet says of pairs of which each measurement is
// told by itself, as a Result.
type ConnectionSheet struct {
	// For is how long pairs are watched; 0 means one round. Either way a pair is
	// measured as often as its probe counts.
	For       Duration       `json:"for,omitempty"`
	Deadlines StageDeadlines `json:"deadlines"`
	// MaxOutage is the limit on outages; nil is none.
	MaxOutage *Duration `json:"maxOutage,omitempty"`
	// Checks says what becomes of the pairs' PodNetworkConnectivityChecks.
	Checks ConnectivityChecks `json:"checks"`
	// Unwritten says why none are written although Checks.Write says so; empty
	// where they are. Setup finds out.
	Unwritten string `json:"unwritten,omitempty"`
}

// Writes reports whether the pairs' objects are written; nil writes none.
func (c *ConnectionSheet) Writes() bool { return c != nil && c.Checks.Write && c.Unwritten == "" }

// TransportProbe is a Probe with its transport. Worksheets hold them in the
// order of Transports.
type TransportProbe struct {
	Transport Transport `json:"transport"`
	Probe
}

// Endpoint is a source or a target: a pod, ours or an existing one.
type Endpoint struct {
	// Node that the pod is on, or is to be pinned to.
	Node string `json:"node"`
	// Zone of the node (label topology.kubernetes.io/zone), or empty.
	Zone string `json:"zone,omitempty"`
	// Pod names an existing pod, as namespace/name. Empty means a fixture.
	Pod string `json:"pod,omitempty"`
	// Tolerations that the fixture needs to stand on its node.
	Tolerations []Toleration `json:"tolerations,omitempty"`
	// Label names what has a name of its own; unique among the sources, and among
	// the targets, of a worksheet. For a component it is made as the names of
	// OpenShift's connectivity checks are ("etcd-server-<node>").
	Label string `json:"label,omitempty"`
	// Component names the role of a component of the control plane; empty for others.
	Component string `json:"component,omitempty"`
	// HostNetwork says that a source stands in its node's network.
	HostNetwork bool `json:"hostNetwork,omitempty"`
	// ClientCertificates are the Secrets that the agent of a source needs.
	ClientCertificates []string `json:"clientCertificates,omitempty"`
	// Peer of a target that exists already and whose address the survey told; nil
	// for others.
	Peer *Peer `json:"peer,omitempty"`
	// VM that is started for it; nil for others. Its node may be empty: then it is
	// any but the other VM's of its pair.
	VM *VM `json:"vm,omitempty"`
	// Cause says why a target without a Peer cannot be measured, why a source
	// without a node has no agent, or why a VM is not started, as the survey saw it;
	// nil for others.
	Cause *Cause `json:"cause,omitempty"`
}

// Peer is how a target that exists already is spoken to.
type Peer struct {
	// Host is an IP address or a DNS name.
	Host string `json:"host"`
	Port int    `json:"port"`
	// Family of the address; AnyIPFamily for a DNS name.
	Family IPFamily `json:"family,omitempty"`
	// Transport is TLS or TCP.
	Transport Transport `json:"transport"`
	// ServerName, Path and ClientCertificate as those of ComponentRole.
	ServerName        string `json:"serverName,omitempty"`
	Path              string `json:"path,omitempty"`
	ClientCertificate string `json:"clientCertificate,omitempty"`
	// Backends are the indexes of the targets that are endpoints behind this one,
	// which is a Service's address; empty for others.
	Backends []int `json:"backends,omitempty"`
}

// IsFixture reports whether a target is a responder of ours, which has to be
// started.
func (e Endpoint) IsFixture() bool {
	return e.Pod == "" && e.Peer == nil && e.Component == "" && e.VM == nil
}

// Address is "host:port", an IPv6 address in brackets.
func (p Peer) Address() string { return net.JoinHostPort(p.Host, strconv.Itoa(p.Port)) }

// Name returns the label, or the pod, or else the node: what people call it.
func (e Endpoint) Name() string {
	if e.Label != "" {
		return e.Label
	}
	if e.Pod != "" {
		return e.Pod
	}
	return e.Node
}

// Pair is the unit that is measured: one source, one target, one transport, one
// IP family, one payload size. Source and Target are indexes in the worksheet.
type Pair struct {
	Source    int       `json:"s"`
	Target    int       `json:"t"`
	Family    IPFamily  `json:"f"`
	Transport Transport `json:"p"`
	Size      int       `json:"z"`
}

// Pairs yields every expected pair, source by source, target by target, family,
// transport, size: always in the same order.
func (w *Worksheet) Pairs() iter.Seq[Pair] {
	return func(yield func(Pair) bool) {
		for s := range w.Assignments {
			for p := range w.PairsOf(s) {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// PairsOf yields the expected pairs of one source, in the order of Pairs.
func (w *Worksheet) PairsOf(source int) iter.Seq[Pair] {
	return func(yield func(Pair) bool) {
		for _, t := range w.Assignments[source] {
			for p := range w.PairsBetween(source, t) {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// PairsBetween yields the pairs that one assignment stands for: those of every
// family and probe, or, of a target with a Peer, the one of its family and
// transport.
func (w *Worksheet) PairsBetween(source, target int) iter.Seq[Pair] {
	return func(yield func(Pair) bool) {
		if target >= 0 && target < len(w.Targets) && w.Targets[target].Peer != nil {
			peer := w.Targets[target].Peer
			yield(Pair{source, target, peer.Family, peer.Transport, 0})
			return
		}
		for _, f := range w.IPFamilies {
			for _, p := range w.Probes {
				for _, z := range p.Sizes {
					if !yield(Pair{source, target, f, p.Transport, z}) {
						return
					}
				}
			}
		}
	}
}

// PairsPerAssignment is how many pairs one assignment of a target stands for.
func (w *Worksheet) PairsPerAssignment(target int) int {
	n := 0
	for range w.PairsBetween(0, target) {
		n++
	}
	return n
}

// CountPairs is the number of expected pairs.
func (w *Worksheet) CountPairs() int {
	per := map[int]int{} // by target; those without a Peer are alike
	n := 0
	for _, targets := range w.Assignments {
		for _, t := range targets {
			alike := -1
			if t >= 0 && t < len(w.Targets) && w.Targets[t].Peer != nil {
				alike = t
			}
			if _, ok := per[alike]; !ok {
				per[alike] = w.PairsPerAssignment(t)
			}
			n += per[alike]
		}
	}
	return n
}

// ProbeTimeout is how long probing may take, watching and the measurement between
// VMs included.
func (w *Worksheet) ProbeTimeout() Duration {
	switch {
	case w.Connections != nil:
		return w.Timeouts.Probe + w.Connections.For
	case w.Guests != nil:
		return w.Timeouts.Probe + w.Guests.Duration
	}
	return w.Timeouts.Probe
}

// Probe returns how a transport is measured, and whether it is at all.
func (w *Worksheet) Probe(t Transport) (Probe, bool) {
	for _, p := range w.Probes {
		if p.Transport == t {
			return p.Probe, true
		}
	}
	return Probe{}, false
}

// Measurable reports whether it is worth while to probe: false if it is known of
// every expected pair already why it cannot be measured. Pairs of which each
// measurement is reported, and units that are not pairs, are worth while in any case:
// their probing records what is not known, too.
func (w *Worksheet) Measurable(r *Roster) bool {
	if w.Connections != nil || len(w.Units) > 0 {
		return true
	}
	known := false
	for source, targets := range w.Assignments {
		for _, t := range targets {
			known = known || w.Sources[source].Cause != nil || w.Targets[t].Cause != nil || r.Targets[t].Cause != nil
			if w.Sources[source].Cause == nil && w.Targets[t].Cause == nil && r.Targets[t].Cause == nil &&
				(w.Guests == nil || r.Targets[source].Cause == nil) {
				return true
			}
		}
	}
	return !known
}

// Roster says where the targets of a worksheet can be reached, after the
// fixtures were started: one entry per target, by index.
type Roster struct {
	Targets []RosterEntry `json:"targets"`
}

// RosterEntry is one target as it was when the worksheet was frozen.
type RosterEntry struct {
	// Pod is namespace/name of the responder or existing pod, or of the VM; empty if
	// none came up.
	Pod string `json:"pod,omitempty"`
	// Node that a VM runs on; empty for others, which are on their endpoint's node.
	Node string `json:"node,omitempty"`
	// Addresses by family. A family that is missing cannot be measured.
	Addresses map[IPFamily]string `json:"addresses,omitempty"`
	// Ports by transport (tcp, udp, http).
	Ports map[Transport]int `json:"ports,omitempty"`
	// Cause says why the target cannot be measured at all; empty means it can.
	Cause *Cause `json:"cause,omitempty"`
}

// Order is what one agent is told to do: one source's share of a worksheet with
// the addresses of its targets. It is the agent's whole input.
type Order struct {
	// Source is the index of the source in the worksheet.
	Source int `json:"source"`
	// Seed of the agent's own random choices (start jitter, order of pairs).
	Seed    uint64           `json:"seed"`
	Limits  Limits           `json:"limits"`
	Probes  []TransportProbe `json:"probes"`
	Targets []OrderTarget    `json:"targets"`
	// Families whose control pairs must be measured.
	IPFamilies []IPFamily `json:"ipFamilies"`
	// Own are the source's own addresses, of each of IPFamilies, where the source is
	// a VM: its control pairs are measured by icmp, to Own (self) and to Unused
	// (closed), an address of the same prefix that nobody has. Both are empty for
	// pods.
	Own    map[IPFamily]string `json:"own,omitempty"`
	Unused map[IPFamily]string `json:"unused,omitempty"`
	// Deadline is how long the agent may run, from its start; what is not
	// measured by then is told as unmeasured.
	Deadline Duration `json:"deadline"`
	// Connections is set where each measurement is to be told as a Result; nil
	// where pairs are told as Observations.
	Connections *ConnectionSheet `json:"connections,omitempty"`
}

// OrderTarget is a target with the addresses that the agent must probe.
type OrderTarget struct {
	Target    int                 `json:"target"`
	Addresses map[IPFamily]string `json:"addresses"`
	Ports     map[Transport]int   `json:"ports"`
	// Peer says how a target that existed before is spoken to; nil for others.
	// Addresses and Ports say nothing then.
	Peer *Peer `json:"peer,omitempty"`
}

// InDegrees returns the number of sources of each target, by its index.
func (w *Worksheet) InDegrees() []int {
	degrees := make([]int, len(w.Targets))
	for _, targets := range w.Assignments {
		for _, t := range targets {
			degrees[t]++
		}
	}
	return degrees
}

// CountPackets is the number of measurements of all expected pairs.
func (w *Worksheet) CountPackets() int {
	n := 0
	for p := range w.Pairs() {
		n += w.Measurements(p)
	}
	return n
}

// AgentDeadline is how long an agent may run, from its start: three quarters of
// the probe timeout, so that it has said what it has before nobody listens, and
// the time for which it is to watch.
func (w *Worksheet) AgentDeadline() Duration {
	return w.Timeouts.Probe/4*3 + w.ProbeTimeout() - w.Timeouts.Probe
}
