// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"cmp"
	"encoding/json"
	"iter"
	"math"
	"net"
	"slices"
	"strconv"
	"time"
)

// Worksheet is the list of expected pairs and other units of a check. It is written
// before anything is measured, and does not change after that. It is compact: Pairs
// enumerates the pairs.
type Worksheet struct {
	Plan  string `json:"plan"`
	Check string `json:"check"`
	Kind  Kind   `json:"kind"`
	// Seed and Round of the sample. Rounds is the number of rounds that together measure
	// every possible pair.
	Seed   uint64 `json:"seed"`
	Round  int    `json:"round"`
	Rounds int    `json:"rounds"`
	// Degree of the sample. It is lower than the plan's if the budget or the number of
	// nodes limits it.
	Degree int `json:"degree"`
	// Budget is the maximum number of pairs of the sample, which also bounds a further look;
	// 0 where pairs are not sampled.
	Budget int `json:"budget,omitempty"`
	// Possible is the number of ordered (source, target) pairs of the full mesh.
	Possible int `json:"possible"`
	// Sources and Targets, each sorted by node and name. A pair refers to them by index.
	Sources []Endpoint `json:"sources"`
	Targets []Endpoint `json:"targets"`
	// Assignments has the indexes of the targets of each source, in ascending order, by
	// the index of the source.
	Assignments [][]int `json:"assignments"`
	// IPFamilies and Probes: every assignment is measured in each family with each probe.
	IPFamilies []IPFamily       `json:"ipFamilies"`
	Probes     []TransportProbe `json:"probes"`
	Expect     Expect           `json:"expect"`
	Limits     Limits           `json:"limits"`
	Resources  Resources        `json:"resources"`
	Timeouts   Timeouts         `json:"timeouts"`
	// Checks is how many checks of the plan share the probability that a run fails although all limits are kept; 0 counts
	// as 1.
	Checks int `json:"checks,omitempty"`
	// Units are the names of the expected units that are not pairs.
	Units []string `json:"units,omitempty"`
	// Details is JSON of the check's kind, with what it needs beyond the other fields to
	// measure and judge; null for kinds that need nothing more.
	Details json.RawMessage `json:"details,omitempty"`
	// Warnings of the expansion, one line each.
	Warnings []string `json:"warnings,omitempty"`
	// HealthUnwritten says why no PodNetworkHealth objects are written although the plan
	// enables them; empty if they are written, or not enabled. Setup sets it.
	HealthUnwritten string `json:"healthUnwritten,omitempty"`
	// Connections is set if the measurements of targets with a Peer are reported one by one; nil otherwise.
	Connections *ConnectionSheet `json:"connections,omitempty"`
	// Guests is set if sources and targets are VMs; nil otherwise.
	Guests *GuestSheet `json:"guests,omitempty"`
	// Tables is set if agents read what the service proxies of their nodes have programmed: then the sources are nodes,
	// and there are no targets; nil otherwise.
	Tables *TableSheet `json:"tables,omitempty"`
	// Services are created by setup over the fixtures that name them; empty if the check needs none. Their names, which
	// targets and fixtures refer to, are unique.
	Services []ServiceFixture `json:"services,omitempty"`
	// Look is 0 for the worksheet that setup writes. Further looks at some of its pairs are
	// counted from 1; each has a worksheet of its own, with the same Sources and Targets.
	Look int `json:"look,omitempty"`
	// Again lists the pairs of a further look, in the order of Pairs. It is nil for the first
	// look, whose pairs are those of Assignments, IPFamilies and Probes. A listed pair that is
	// not one of those is ignored.
	Again []Again `json:"again,omitempty"`
}

// ServiceFixture is a Service that setup creates. It has a TCP and a UDP port for the echo of responders, and their
// IPv4 and IPv6 addresses, as far as the worksheet measures these families.
type ServiceFixture struct {
	// Name is a DNS label of at most 32 characters. The object has another name, which only the run uses.
	Name string `json:"name"`
	// Headless Services have no address of their own, and NodePort ones a node port for each of their ports.
	Headless bool `json:"headless,omitempty"`
	NodePort bool `json:"nodePort,omitempty"`
	// InternalLocal and ExternalLocal are the policies Local.
	InternalLocal bool `json:"internalLocal,omitempty"`
	ExternalLocal bool `json:"externalLocal,omitempty"`
	// ClientIP is for how many seconds after its last connection a client address leads to the same endpoint; 0 for no
	// session affinity.
	ClientIP int32 `json:"clientIP,omitempty"`
	// PublishNotReady is the field publishNotReadyAddresses.
	PublishNotReady bool `json:"publishNotReady,omitempty"`
	// Distribution is the field trafficDistribution; empty for none.
	Distribution string `json:"trafficDistribution,omitempty"`
}

// IdleTries is how often an agent lets a session affinity end: often enough that chance does not explain one endpoint,
// see docs/service-canary.md.
const IdleTries = 4

// TryInterval is the time between two tries of a target that settles or turns.
const TryInterval = Duration(500 * time.Millisecond)

// IdleTime is how long an agent makes no connection to let the session affinity of a Service end: 2 s more than it
// lasts, because kernels count it in seconds. 0 without one.
func (s ServiceFixture) IdleTime() Duration {
	if s.ClientIP <= 0 {
		return 0
	}
	return Duration((time.Duration(s.ClientIP) + 2) * time.Second)
}

// Again is one pair of a further look.
type Again struct {
	Pair
	// Count of measurements.
	Count int `json:"n"`
	// Ports are the source ports that must be used, the measurements evenly spread over
	// them; empty if any will do.
	Ports []int `json:"ports,omitempty"`
	// Stops are the points at which measuring may end before Count; empty if it must not.
	Stops Stops `json:"stops,omitempty"`
}

// Stop is a point of a pair's measurement at which it ends, if so much is lost that more packets change nothing.
type Stop struct {
	// After so many measurements, not counting spoiled ones.
	After int `json:"n"`
	// Lost is the fewest losses among them with which it ends.
	Lost int `json:"lost"`
}

// Stops are the stopping points of a pair, in the order of After.
type Stops []Stop

// Crossed reports whether a pair that lost so many of exactly sent measurements is beyond one of the stopping points.
func (s Stops) Crossed(sent, lost int) bool {
	return slices.ContainsFunc(s, func(at Stop) bool { return sent == at.After && lost >= at.Lost })
}

// End reports whether an agent that has measured so much of a pair ends. It goes on if one source port was never
// answered although others were: it may be a dead path, which more measurements from each port show.
func (s Stops) End(o *Observation) bool {
	return s.Crossed(o.Sent, o.Sent-o.Received) && !SilentFlow(o.Flows)
}

// ConnectionSheet is the part of a worksheet for pairs whose measurements are reported
// one by one, as Results.
type ConnectionSheet struct {
	// For is how long pairs are watched; 0 means one round. In both cases a pair is
	// measured Probe.Count times.
	For       Duration       `json:"for,omitempty"`
	Deadlines StageDeadlines `json:"deadlines"`
	// MaxOutage is the limit on outages; nil means no limit.
	MaxOutage *Duration `json:"maxOutage,omitempty"`
	// Checks configures the PodNetworkConnectivityChecks of the pairs.
	Checks ConnectivityChecks `json:"checks"`
	// Unwritten says why no objects are written although Checks.Write is set; empty if
	// they are written. Setup sets it.
	Unwritten string `json:"unwritten,omitempty"`
}

// Writes reports whether the pairs' objects are written; false for a nil sheet.
func (c *ConnectionSheet) Writes() bool { return c != nil && c.Checks.Write && c.Unwritten == "" }

// TransportProbe is a Probe with its transport. Worksheets list them in the order of
// Transports.
type TransportProbe struct {
	Transport Transport `json:"transport"`
	Probe
}

// Endpoint is a source or a target: a fixture, an existing pod, a component of the
// control plane, or a VM.
type Endpoint struct {
	// Node that the pod runs on, or will be pinned to.
	Node string `json:"node"`
	// NodeUID is the UID of the node; empty if it is not known, as for VMs and components of the control plane.
	NodeUID string `json:"nodeUID,omitempty"`
	// Zone of the node (label topology.kubernetes.io/zone), or empty.
	Zone string `json:"zone,omitempty"`
	// Topology has the node's values of the labels that the plan names in sample.topology, without those that the node
	// does not have; nil if it has none.
	Topology map[string]string `json:"topology,omitempty"`
	// Pod names an existing pod, as namespace/name. Empty means a fixture.
	Pod string `json:"pod,omitempty"`
	// Tolerations that the fixture needs to run on its node.
	Tolerations []Toleration `json:"tolerations,omitempty"`
	// Label is the name of the endpoint; empty means that Pod or Node names it. It is
	// unique among the sources, and among the targets, of a worksheet. For a component it
	// has the form of the names of OpenShift's connectivity checks
	// ("etcd-server-<node>").
	Label string `json:"label,omitempty"`
	// Component names the role of a component of the control plane; empty for others.
	Component string `json:"component,omitempty"`
	// Inside says that the agent of a source is an ephemeral container in Pod, which exists already.
	Inside bool `json:"inside,omitempty"`
	// HostNetwork says that a source uses its node's network.
	HostNetwork bool `json:"hostNetwork,omitempty"`
	// ClientCertificates are the Secrets that the agent of a source needs.
	ClientCertificates []string `json:"clientCertificates,omitempty"`
	// Peer of an existing target whose address the survey found; nil for others. Without Connections it has an IP
	// address and the transport TCP, or a Question.
	Peer *Peer `json:"peer,omitempty"`
	// OfService is the name of the worksheet's Service that a target is; empty for others. It is measured at its cluster
	// IPs, or, if Hosts has the addresses of a node, at its node ports there.
	OfService string              `json:"ofService,omitempty"`
	Hosts     map[IPFamily]string `json:"hosts,omitempty"`
	// Exits of a source are the addresses of its node, one of which its packets may have when they have left it; nil if
	// that does not matter.
	Exits []string `json:"exits,omitempty"`
	// In are the names of the worksheet's Services that select a fixture.
	In []string `json:"in,omitempty"`
	// NeverReady says of a responder that its pod never becomes ready, although it answers.
	NeverReady bool `json:"neverReady,omitempty"`
	// Leaves, Joins and Ends change the Services of a responder while they are measured, at the turn: when each agent has
	// reported a pair, at most TurnTime after the first did. Then those of Leaves, which are in In, select it no longer.
	// Ends says that its pod is deleted, but goes on answering for a while. When the EndpointSlices have that, those of
	// Joins, which are not in In, select it. Such a responder is started even if no source measures it.
	Leaves []string `json:"leaves,omitempty"`
	Joins  []string `json:"joins,omitempty"`
	Ends   bool     `json:"ends,omitempty"`
	// VM that is started for the endpoint; nil for others. If Node is empty, the VM may
	// run on any node except the node of the other VM of its pair.
	VM *VM `json:"vm,omitempty"`
	// Cause says why a target without a Peer cannot be measured, why a source without a
	// node, or an existing pod, has no agent, or why a VM is not started; nil for others. The
	// survey sets it.
	Cause *Cause `json:"cause,omitempty"`
}

// Peer is the address of an existing target, and how the agent connects to it.
type Peer struct {
	// Host is an IP address or a DNS name.
	Host string `json:"host"`
	Port int    `json:"port"`
	// Family of the address; AnyIPFamily for a DNS name.
	Family IPFamily `json:"family,omitempty"`
	// Transport is TLS or TCP, or, with a Question, DNSUDP or DNSTCP.
	Transport Transport `json:"transport"`
	// ServerName, Path and ClientCertificate as those of ComponentRole.
	ServerName        string `json:"serverName,omitempty"`
	Path              string `json:"path,omitempty"`
	ClientCertificate string `json:"clientCertificate,omitempty"`
	// Backends are the indexes of the targets that are endpoints of this Service address;
	// empty for targets that are not a Service address.
	Backends []int `json:"backends,omitempty"`
	// Question that the peer, a DNS server, is asked; nil for others.
	Question *Question `json:"question,omitempty"`
}

// Question is a question to a DNS server, and what it must answer.
type Question struct {
	// Resolver says that the servers that the agent's own /etc/resolv.conf names are asked, as a pod asks them. Host and
	// Family of the peer are then empty.
	Resolver bool `json:"resolver,omitempty"`
	// Name ends with a dot. Without one it is completed with the search list of resolv.conf; only with Resolver.
	Name string `json:"name"`
	// Type is one of DNSTypes.
	Type string `json:"type"`
	// Answer says which Records the answer must have.
	Answer DNSAnswer `json:"answer"`
	// Records that must be answered, each once and no others, in any order, if Answer is AnswerRecords: an address as
	// netip prints it; "PORT TARGET." of SRV; a name with a final dot, in lower case, of CNAME. The TARGET "*.NAME." is
	// any name that has one label more than NAME; several of them are several names.
	Records []string `json:"records,omitempty"`
}

// DNSTypes are the types of questions.
var DNSTypes = []string{"A", "AAAA", "SRV", "CNAME"}

// DNSAnswer is a kind of answer to a DNS question.
type DNSAnswer string

const (
	AnswerRecords DNSAnswer = "Records" // exactly the records
	AnswerAny     DNSAnswer = "Any"     // at least one record, any
	AnswerNoData  DNSAnswer = "NoData"  // the name exists, and has no record of the type: NOERROR without records
	AnswerNoName  DNSAnswer = "NoName"  // the name does not exist: NXDOMAIN
	AnswerNone    DNSAnswer = "None"    // no record: NOERROR or NXDOMAIN
)

// DNSAnswers lists every DNSAnswer.
var DNSAnswers = []DNSAnswer{AnswerRecords, AnswerAny, AnswerNoData, AnswerNoName, AnswerNone}

// MaxRecords is the most Records of a Question: as many IPv6 addresses fill half of the longest DNS message, of 64 KiB,
// at 28 bytes each (RFC 1035, section 4.2.2; RFC 3596).
const MaxRecords = 1000

// IsFixture reports whether a target is a responder that setup must start.
func (e Endpoint) IsFixture() bool {
	return e.Pod == "" && e.Peer == nil && e.Component == "" && e.VM == nil && e.OfService == ""
}

// IsService reports whether a target is a Service of the worksheet.
func (w *Worksheet) IsService(target int) bool {
	return target >= 0 && target < len(w.Targets) && w.Targets[target].OfService != ""
}

// ServiceOf returns the Service of the worksheet that a target is; false if the target is no Service.
func (w *Worksheet) ServiceOf(target int) (ServiceFixture, bool) {
	if !w.IsService(target) {
		return ServiceFixture{}, false
	}
	i := slices.IndexFunc(w.Services, func(s ServiceFixture) bool { return s.Name == w.Targets[target].OfService })
	if i < 0 {
		return ServiceFixture{}, false
	}
	return w.Services[i], true
}

// Turns reports whether the Services of a responder change at the turn.
func (e Endpoint) Turns() bool { return len(e.Leaves)+len(e.Joins) > 0 || e.Ends }

// Turning returns the names of the Services that lose an endpoint at the turn. It is true for those that it leaves,
// false for those of which it terminates; empty if there is no turn.
func (w *Worksheet) Turning() map[string]bool {
	turning := map[string]bool{}
	for _, e := range w.Targets {
		if e.Ends {
			for _, service := range e.In {
				turning[service] = false
			}
		}
	}
	for _, e := range w.Targets {
		for _, service := range e.Leaves {
			turning[service] = true
		}
	}
	return turning
}

// FollowTime is how long a service proxy may take to do what the API says. kube-proxy 1.35 writes its rules again after
// its syncPeriod, 30 s by default, if it could not write them, and deletes after them what the kernel remembers of UDP
// flows: a proxy that needs longer is not late, but stuck.
const FollowTime = Duration(40 * time.Second)

// TurnTime is how long after the first pair was reported the turn is begun at the latest: a minute, or less in a
// short check. A turn that is not made a quarter of this later counts as none.
func (w *Worksheet) TurnTime() Duration { return min(Duration(time.Minute), w.AgentDeadline()/3) }

// TurnWait is how long an agent waits for the turn since its own first report: as long as the turn may take, and for
// the node's proxy to follow, less in a short check.
func (w *Worksheet) TurnWait() Duration {
	return w.TurnTime()/4*5 + w.FollowWait()
}

// FollowWait is how long an agent waits for the node's proxy to lead a Service to a new endpoint: FollowTime, less in a
// short check.
func (w *Worksheet) FollowWait() Duration { return min(FollowTime, w.AgentDeadline()/5) }

// Address returns "host:port", with an IPv6 address in brackets.
func (p Peer) Address() string { return net.JoinHostPort(p.Host, strconv.Itoa(p.Port)) }

// Name returns the label, or the pod if there is no label, or else the node.
func (e Endpoint) Name() string {
	if e.Label != "" {
		return e.Label
	}
	if e.Pod != "" {
		return e.Pod
	}
	return e.Node
}

// Pair is the unit that an agent measures: one source, one target, one transport, one
// IP family, one payload size in bytes. Source and Target are indexes in the worksheet.
type Pair struct {
	Source    int       `json:"s"`
	Target    int       `json:"t"`
	Family    IPFamily  `json:"f"`
	Transport Transport `json:"p"`
	Size      int       `json:"z"`
}

// Compare is the order of Worksheet.Pairs; transports and families are in the order of their names.
func (p Pair) Compare(o Pair) int {
	return cmp.Or(
		cmp.Compare(p.Source, o.Source), cmp.Compare(p.Target, o.Target), cmp.Compare(p.Family, o.Family),
		cmp.Compare(p.Transport, o.Transport), cmp.Compare(p.Size, o.Size),
	)
}

// Pairs yields every expected pair, always in the same order: by source, target, family,
// transport and size.
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

// PairsBetween yields the pairs of one assignment: one for every family, probe and size,
// or, for a target with a Peer, the one of its family and transport; a target with Hosts
// has those of their families. In a further look it
// yields only those that Again lists.
func (w *Worksheet) PairsBetween(source, target int) iter.Seq[Pair] {
	again := w.againBetween(source, target)
	return func(yield func(Pair) bool) {
		expected := func(p Pair) bool {
			return w.Again == nil || slices.ContainsFunc(again, func(a Again) bool { return a.Pair == p })
		}
		if target >= 0 && target < len(w.Targets) && w.Targets[target].Peer != nil {
			peer := w.Targets[target].Peer
			if p := (Pair{source, target, peer.Family, peer.Transport, 0}); expected(p) {
				yield(p)
			}
			return
		}
		hosts := w.hosts(target)
		for _, f := range w.IPFamilies {
			if hosts != nil && hosts[f] == "" {
				continue
			}
			for _, p := range w.Probes {
				for _, z := range p.Sizes {
					if p := (Pair{source, target, f, p.Transport, z}); expected(p) && !yield(p) {
						return
					}
				}
			}
		}
	}
}

// hosts are the Hosts of a target; nil if it has none.
func (w *Worksheet) hosts(target int) map[IPFamily]string {
	if target < 0 || target >= len(w.Targets) {
		return nil
	}
	return w.Targets[target].Hosts
}

// againBetween returns the pairs of one assignment that Again lists.
func (w *Worksheet) againBetween(source, target int) []Again {
	find := func(target int) int {
		at, _ := slices.BinarySearchFunc(w.Again, Pair{Source: source, Target: target}, func(a Again, p Pair) int {
			return cmp.Or(cmp.Compare(a.Source, p.Source), cmp.Compare(a.Target, p.Target))
		})
		return at
	}
	from := find(target)
	return w.Again[from:max(from, find(target+1))]
}

// AgainOf returns what a further look asks of a pair; nil if it does not ask for the pair,
// and in the first look.
func (w *Worksheet) AgainOf(p Pair) *Again {
	of := w.againBetween(p.Source, p.Target)
	if at := slices.IndexFunc(of, func(a Again) bool { return a.Pair == p }); at >= 0 {
		return &of[at]
	}
	return nil
}

// PairsPerAssignment is the number of pairs of one assignment of a target in the first
// look.
func (w *Worksheet) PairsPerAssignment(target int) int {
	n := 0
	for range w.PairsBetween(0, target) {
		n++
	}
	return n
}

// CountPairs is the number of expected pairs.
func (w *Worksheet) CountPairs() int {
	if w.Again != nil {
		n := 0
		for range w.Pairs() {
			n++
		}
		return n
	}
	per := map[int]int{} // by target; those without a Peer or Hosts are alike
	n := 0
	for _, targets := range w.Assignments {
		for _, t := range targets {
			alike := -1
			if t >= 0 && t < len(w.Targets) && w.Targets[t].Peer != nil || w.hosts(t) != nil {
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

// ProbeTimeout is the longest time for probing, including watching and the measurement
// between VMs.
func (w *Worksheet) ProbeTimeout() Duration {
	switch {
	case w.Connections != nil:
		return w.Timeouts.Probe + w.Connections.For
	case w.Guests != nil:
		return w.Timeouts.Probe + w.Guests.Duration
	}
	return w.Timeouts.Probe
}

// MaxDelay returns the longest delay that can be measured, in microseconds: the time of the whole probe task.
func (w *Worksheet) MaxDelay() int64 {
	if t := w.ProbeTimeout(); t > 0 {
		return time.Duration(t).Microseconds()
	}
	return math.MaxInt64
}

// jitterShare is the share of the start jitter of a further look: it has as many agents as the first look at most, but
// about a tenth of the pairs.
const jitterShare = 10

// FurtherLook returns the worksheet of the look after w at one or more pairs, in the order of Pairs. Its agents start
// within a tenth of the start jitter: the check's probe timeout is for all looks together.
func (w *Worksheet) FurtherLook(again []Again) *Worksheet {
	next := *w
	next.Look++
	next.Again, next.Warnings = again, nil
	next.Limits.StartJitter /= jitterShare
	return &next
}

// Probe returns how a transport is measured; false if it is not measured.
func (w *Worksheet) Probe(t Transport) (Probe, bool) {
	for _, p := range w.Probes {
		if p.Transport == t {
			return p.Probe, true
		}
	}
	return Probe{}, false
}

// Measurable reports whether probing is useful: false if every expected pair already has
// a cause that prevents its measurement. It is always true for pairs whose measurements
// are reported one by one, for tables, and for units that are not pairs: their probing also records
// what could not be determined.
func (w *Worksheet) Measurable(r *Roster) bool {
	if w.Connections != nil || w.Tables != nil || len(w.Units) > 0 {
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

// Roster has the addresses of the targets of a worksheet, after the fixtures were
// started: one entry per target, by index.
type Roster struct {
	Targets []RosterEntry `json:"targets"`
}

// RosterEntry is one target, in the state in which setup left it.
type RosterEntry struct {
	// Pod is namespace/name of the responder, existing pod, VM or Service of the worksheet; empty if it did not
	// start.
	Pod string `json:"pod,omitempty"`
	// UID of a pod; empty if unknown.
	UID string `json:"uid,omitempty"`
	// Node that a VM runs on; empty for others, which run on their endpoint's node.
	Node string `json:"node,omitempty"`
	// Addresses by family. A missing family cannot be measured.
	Addresses map[IPFamily]string `json:"addresses,omitempty"`
	// Ports by transport (tcp, udp, http).
	Ports map[Transport]int `json:"ports,omitempty"`
	// Cause says why the target cannot be measured; nil if it can.
	Cause *Cause `json:"cause,omitempty"`
}

// Order is the input of one agent: the pairs of one source of a worksheet, with the
// addresses of its targets. The agent has no other input.
type Order struct {
	// Source is the index of the source in the worksheet.
	Source int `json:"source"`
	// Seed of the agent's random choices (start jitter, order of pairs).
	Seed    uint64           `json:"seed"`
	Limits  Limits           `json:"limits"`
	Probes  []TransportProbe `json:"probes"`
	Targets []OrderTarget    `json:"targets"`
	// IPFamilies are the families whose control pairs must be measured.
	IPFamilies []IPFamily `json:"ipFamilies"`
	// Own are the addresses of a source that is a VM, by family. Its control pairs are
	// measured by icmp, to Own (self) and to Unused (closed), an address of the same
	// prefix that no VM has. Both are empty for pods.
	Own    map[IPFamily]string `json:"own,omitempty"`
	Unused map[IPFamily]string `json:"unused,omitempty"`
	// Deadline is how long the agent may run, from its start. It reports pairs that it
	// has not measured by then as unmeasured.
	Deadline Duration `json:"deadline"`
	// Respond says that the agent must answer as a responder does while it measures: a Service selects it.
	Respond bool `json:"respond,omitempty"`
	// Connections is set if the agent must report each measurement as a Result; nil if
	// it reports pairs as Observations.
	Connections *ConnectionSheet `json:"connections,omitempty"`
	// Tables is set if the agent must read the tables of IPFamilies, and measure nothing; nil otherwise.
	Tables *TableSheet `json:"tables,omitempty"`
	// Look is the worksheet's. Requests carry it, and responders count each look for itself.
	Look int `json:"look,omitempty"`
	// Again lists the pairs of a further look. In the first look it is nil: all pairs of
	// Targets, their families, and Probes must be measured.
	Again []Again `json:"again,omitempty"`
}

// MaxLook is the highest Look: it takes one byte of a request.
const MaxLook = 255

// OrderTarget is a target with the addresses that the agent must probe.
type OrderTarget struct {
	Target    int                 `json:"target"`
	Addresses map[IPFamily]string `json:"addresses"`
	Ports     map[Transport]int   `json:"ports"`
	// Witness says that the target is a responder, or a Service over some, which report the source address that they
	// see, and that the agent must compare this address with its own.
	Witness bool `json:"witness,omitempty"`
	// Identify says that responders must report which of their own addresses the requests arrived at: the target may be
	// a Service over several.
	Identify bool `json:"identify,omitempty"`
	// Settle is for how long the agent tries the target before it measures, until something answers: a Service that
	// selects the agent itself needs some time. 0 for others.
	Settle Duration `json:"settle,omitempty"`
	// Turn is for how long, since it first reported a pair, the agent waits before it measures a Service, until new
	// connections are answered by another responder than the first one; Keep that udp is measured from one source port,
	// which it has used from the start. 0 and false for others.
	Turn Duration `json:"turn,omitempty"`
	Keep bool     `json:"keep,omitempty"`
	// Idle is how long the agent makes no connection before each of several further measurements, which show whether the
	// session affinity of a Service has ended; 0 for others.
	Idle Duration `json:"idle,omitempty"`
	// Peer is set for an existing target; nil for others. Addresses and Ports are ignored
	// if it is set. Without Connections it has an IP address and the transport TCP, or a Question.
	Peer *Peer `json:"peer,omitempty"`
}

// Witnesses reports whether a target must report the source address that it sees in a
// measurement of the pair: the worksheet expects the address to be preserved, the target is
// a responder, the source has an address of its own, and the answer has room for it.
func (w *Worksheet) Witnesses(p Pair) bool {
	if w.Expect.SourceAddress != PreservedSource || w.Expect.Unreachable ||
		!w.Targets[p.Target].IsFixture() || w.Sources[p.Source].HostNetwork {
		return false
	}
	return p.Transport == TCP || p.Transport == HTTP || p.Transport == UDP && p.Size >= MinWitnessSize
}

// Inside reports whether agents are ephemeral containers in existing pods: all are, or none.
func (w *Worksheet) Inside() bool {
	return slices.ContainsFunc(w.Sources, func(e Endpoint) bool { return e.Inside })
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

// CountPackets is the number of measurements of all expected pairs, with their Tries.
func (w *Worksheet) CountPackets() int {
	n, tries := 0, w.Tries()
	for p := range w.Pairs() {
		n += w.Measurements(p) + tries(p)
	}
	return n
}

// Tries returns a function that says how many connections or packets an agent makes for a pair beside its measurements,
// at most: while it waits for the turn, but for the time before it reports its first pair, and to see whether a session
// affinity ends.
func (w *Worksheet) Tries() func(Pair) int {
	turning := w.Turning()
	return func(p Pair) int {
		service, of := w.ServiceOf(p.Target)
		keeps, turns := turning[service.Name]
		switch {
		case of && turns && w.Look == 0:
			wait := w.TurnWait()
			if keeps && p.Transport == UDP { // the port that it keeps is tried, too, and may follow later
				wait = 2 * (wait + FollowTime)
			}
			return 1 + int((wait+TryInterval-1)/TryInterval)
		case of && service.ClientIP > 0:
			return IdleTries
		}
		return 0
	}
}

// AgentDeadline is how long an agent may run, from its start: three quarters of the
// probe timeout, plus the time for which it watches. The remaining quarter is for
// collecting its report.
func (w *Worksheet) AgentDeadline() Duration {
	return w.Timeouts.Probe/4*3 + w.ProbeTimeout() - w.Timeouts.Probe
}
