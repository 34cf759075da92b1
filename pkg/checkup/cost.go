// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Cost is what a run of one check takes, worked out from its worksheet before
// anything is measured. A packet here is a measurement, as in Limits and in
// Observation.Sent: a connect, a datagram, an echo request, a GET.
type Cost struct {
	Check string `json:"check"`
	Kind  Kind   `json:"kind"`
	// Image of every pod.
	Image string `json:"image,omitempty"`
	// Agents and Responders are pods: an agent for each source that has a target,
	// a responder for each target that has a source and is not an existing pod.
	Agents     int `json:"agents"`
	Responders int `json:"responders"`
	// PodsPerNode is the most of them on any one node.
	PodsPerNode int `json:"podsPerNode"`
	// VMs that are started, each with a pod of KubeVirt's around it, and Preflights:
	// pods of Image that try a network out before, and end before VMs are started.
	VMs        int `json:"vms,omitempty"`
	Preflights int `json:"preflights,omitempty"`
	// GuestMemory is that of each VM, as a Kubernetes quantity; empty without VMs.
	GuestMemory string `json:"guestMemory,omitempty"`
	// Nodes that take part, by name.
	Nodes []NodeCost `json:"nodes"`
	// Capabilities that the pods have beyond none: none.
	Capabilities []string `json:"capabilities"`
	// HostNetwork is how many agents stand in their node's network, because the
	// component that they stand for does. Nothing else widens pod security.
	HostNetwork int `json:"hostNetwork,omitempty"`

	Pairs int `json:"pairs"`
	// Packets is the sum of the counts of all pairs, and so what Observation.Sent
	// comes to in a run in which every pair is measured and nothing is spoiled.
	// The control pairs of the agents are not among them: they stay in the pod.
	Packets int `json:"packets"`
	// Bytes is about what the measurements put on the wire, both directions
	// together, as IP packets: see wireBytes.
	Bytes int64 `json:"bytes"`
	// PeakSent and PeakReceived are the most packets per second that the agent of
	// any one node starts, and that any one node is asked by all sources
	// together: upper bounds, but for the burst of at most 1% (or one packet) by
	// which an agent may exceed its limit within a single second.
	PeakSent     int `json:"peakSent"`
	PeakReceived int `json:"peakReceived"`

	// ExpectedProbe is about how long the agents take if nothing holds them up:
	// as long as the slowest of them, by its rate, concurrency and intervals.
	ExpectedProbe Duration `json:"expectedProbe"`
	// Longest is how long setup and probing take at the most: both timeouts. What
	// is not measured by then is unmeasured.
	Longest Duration `json:"longest"`

	// Objects that the check makes.
	Objects []ObjectCost `json:"objects"`
}

// NodeCost is one node's part of a Cost.
type NodeCost struct {
	Node       string `json:"node"`
	Agents     int    `json:"agents"`
	Responders int    `json:"responders"`
	// VMs that are pinned to the node.
	VMs          int `json:"vms,omitempty"`
	PeakSent     int `json:"peakSent"`
	PeakReceived int `json:"peakReceived"`
}

// ObjectCost is a number of objects of one kind and role.
type ObjectCost struct {
	Kind string `json:"kind"` // Pod, ConfigMap or VirtualMachineInstance
	Role Role   `json:"role"`
	// Count of them. Where AtLeast is set it is the least: what does not fit one
	// object is cut into several, and its size is not known before the run.
	Count   int  `json:"count"`
	AtLeast bool `json:"atLeast,omitempty"`
	// LeftBehind says that the objects are still there when the run is over, and
	// Until what removes them, in words.
	LeftBehind bool   `json:"leftBehind"`
	Until      string `json:"until"`
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

// Cost works out what a run of the check takes. The plan tells what becomes of
// its objects; image is that of the agent, for the record.
func (w *Worksheet) Cost(p *Plan, image string) Cost {
	c := Cost{
		Check: w.Check, Kind: w.Kind, Image: image, Capabilities: []string{},
		Pairs: w.CountPairs(), Packets: w.CountPackets(), Nodes: w.nodeCosts(),
		Longest: w.Timeouts.Setup + w.ProbeTimeout(),
	}
	for _, n := range c.Nodes {
		c.Agents += n.Agents
		c.Responders += n.Responders
		c.PodsPerNode = max(c.PodsPerNode, n.Agents+n.Responders)
		c.PeakSent = max(c.PeakSent, n.PeakSent)
		c.PeakReceived = max(c.PeakReceived, n.PeakReceived)
	}
	most := 0
	for _, targets := range w.Assignments {
		most = max(most, len(targets))
	}
	for _, e := range w.Sources {
		if e.HostNetwork {
			c.HostNetwork++
		}
		if e.VM != nil && e.Cause == nil {
			c.VMs++
			if e.VM.Binding != BindingSRIOV { // whose devices a pod without a VM cannot try out
				c.Preflights++
			}
		}
	}
	if c.VMs > 0 && w.Guests != nil {
		c.GuestMemory = w.Guests.Guest.Memory
	}
	c.ExpectedProbe = w.expectedProbe(most)
	for pair := range w.Pairs() {
		c.Bytes += int64(w.Measurements(pair)) * wireBytes(pair.Transport, pair.Family, pair.Size)
	}

	fixture := func(ends string) ObjectCost {
		switch p.Teardown {
		case TeardownOnPass:
			return ObjectCost{LeftBehind: true, Until: "teardown if the verdict is pass; else " + ends + " and stay until the run is deleted"}
		case TeardownNever:
			return ObjectCost{LeftBehind: true, Until: "the run is deleted; " + ends}
		}
		return ObjectCost{Until: "teardown, after every run"}
	}
	pods := fixture("the pods end at their active deadline")
	guests := fixture("the VMs power off at their deadline")
	if w.Guests != nil && w.Guests.Guest.Image != "" {
		guests = fixture("the VMs run on")
	}
	object := func(o ObjectCost, kind string, role Role, count int) {
		if o.Kind, o.Role, o.Count = kind, role, count; count > 0 {
			c.Objects = append(c.Objects, o)
		}
	}
	run := ObjectCost{AtLeast: true, LeftBehind: true, Until: "the PipelineRun is deleted"}
	object(pods, "Pod", RoleResponder, c.Responders)
	object(pods, "Pod", RoleAgent, c.Agents)
	object(pods, "ConfigMap", RoleAgent, c.Agents)
	object(ObjectCost{Until: "setup has seen whether the networks can be had"}, "Pod", RolePreflight, c.Preflights)
	object(guests, "VirtualMachineInstance", RoleGuest, c.VMs)
	object(guests, "Pod", RoleGuest, c.VMs)
	object(guests, "ConfigMap", RoleGuest, min(c.VMs, 1))
	object(run, "ConfigMap", RoleWorksheet, 1)
	object(run, "ConfigMap", RoleRecord, 1)
	object(ObjectCost{AtLeast: true, LeftBehind: true, Until: fmt.Sprintf("%d newer reports of the plan are there", p.Retention.Reports)}, "ConfigMap", RoleReport, 1)
	return c
}

// nodeCosts works out the part of each node.
func (w *Worksheet) nodeCosts() []NodeCost {
	index := map[string]int{}
	var nodes []NodeCost
	of := func(name string) int {
		i, ok := index[name]
		if !ok {
			i = len(nodes)
			index[name] = i
			nodes = append(nodes, NodeCost{Node: name})
		}
		return i
	}
	targetNode := make([]int, len(w.Targets))
	for t, degree := range w.InDegrees() {
		targetNode[t] = of(w.Targets[t].Node)
		if degree > 0 && w.Targets[t].IsFixture() {
			nodes[targetNode[t]].Responders++
		}
	}
	// What one source may ask of one target in a second: measurements of a pair
	// start an interval apart, so that one more than the second has intervals may
	// fall into it. A VM is the target of one source only.
	each := make([]int, len(w.Targets))
	for t := range w.Targets {
		source := 0
		if w.Targets[t].VM != nil && len(w.Assignments[t]) > 0 {
			source = w.Assignments[t][0]
		}
		for pair := range w.PairsBetween(source, t) {
			p, _ := w.Probe(pair.Transport)
			n := w.Measurements(pair)
			if p.Interval > 0 {
				n = min(n, int(Duration(time.Second)/p.Interval)+1)
			}
			each[t] += n
		}
	}
	ofSource := map[int]int{}
	for s, targets := range w.Assignments {
		i := of(w.Sources[s].Node)
		if len(targets) == 0 {
			continue
		}
		switch e := w.Sources[s]; {
		case e.VM == nil:
			nodes[i].Agents++
		case e.Cause != nil: // not started, and asks nothing
			continue
		default:
			nodes[i].VMs++
		}
		clear(ofSource)
		sum := 0
		for _, t := range targets {
			ofSource[targetNode[t]] += each[t]
			sum += each[t]
		}
		nodes[i].PeakSent += min(w.Limits.PacketsPerSecond, sum)
		for n, packets := range ofSource {
			nodes[n].PeakReceived += min(w.Limits.PacketsPerSecond, packets)
		}
	}
	nodes = slices.DeleteFunc(nodes, func(n NodeCost) bool { return n.Node == "" || n.Agents+n.Responders+n.VMs+n.PeakReceived == 0 })
	slices.SortFunc(nodes, func(a, b NodeCost) int { return cmp.Compare(a.Node, b.Node) })
	return nodes
}

// expectedProbe is about how long an agent with that many targets takes: after
// its start jitter, as long as its rate, its pairs in turn at the given
// concurrency, and its longest pair each demand. A pair takes its intervals, and
// the timeout of the last measurement where no answer is expected.
func (w *Worksheet) expectedProbe(targets int) Duration {
	if targets == 0 {
		return 0
	}
	if w.Guests != nil { // connectivity, then the measurement, all pairs at once
		longest := Duration(0)
		for _, p := range w.Probes {
			count, interval := VMConnectivity(p.Count, p.Interval)
			longest = max(longest, Duration(count)*interval+Duration(max(p.Count-1, 0))*p.Interval)
		}
		return longest
	}
	if w.Connections != nil { // every pair at its own pace, all at once
		longest := Duration(0)
		for _, p := range w.Probes {
			longest = max(longest, Duration(max(p.Count-1, 0))*p.Interval)
		}
		return w.Limits.StartJitter + longest
	}
	var packets int
	var inTurn, longest Duration
	for _, p := range w.Probes {
		pair := Duration(max(p.Count-1, 0)) * p.Interval
		if w.Expect.Unreachable {
			pair += p.Timeout
		}
		pairs := targets * len(p.Sizes) * len(w.IPFamilies)
		packets += pairs * p.Count
		inTurn += Duration(pairs) * pair
		longest = max(longest, pair)
	}
	var byRate Duration
	if w.Limits.PacketsPerSecond > 0 {
		byRate = Duration(packets) * Duration(time.Second) / Duration(w.Limits.PacketsPerSecond)
	}
	return w.Limits.StartJitter + max(byRate, inTurn/Duration(max(w.Limits.Concurrency, 1)), longest)
}

// Sizes from which wireBytes is worked out: headers without options, but for
// TCP's timestamps, and the round numbers that our HTTP requests and responses
// come to.
const (
	wireMTU        = 1500
	ipv4Header     = 20
	ipv6Header     = 40
	ipv6Fragment   = 8
	datagramHeader = 8 // UDP, ICMP echo
	tcpSYNHeader   = 40
	tcpHeader      = 32 // 20, and timestamps
	httpRequest    = 100
	httpResponse   = 150
	tlsClient      = 700  // ClientHello and Finished; a client certificate is more
	tlsServer      = 2000 // ServerHello to Finished with a chain of one certificate
)

// wireBytes is about what one measurement puts on the wire, both directions
// together, as IP packets on a path of MTU 1500 without loss; what the link and
// a tunnel add comes on top. With H for the IP header:
//
//	udp, icmp  2 x (8 + size + H for each fragment; IPv6 fragments have 8 more)
//	tcp        2 x (H+40) for the SYNs, 5 x (H+32) for the handshake's end and
//	           the close, and size both ways: size + 2 x (H+32) for each segment
//	           and its acknowledgement
//	http       as tcp, with a request of 100 and a response of 150 + size bytes
//	tls        as tcp, with 700 bytes there and 2000 back for the handshake
//
// The kernel acknowledges several segments at once where it can, so that tcp
// and http are rather less. An http probe of size 0 is counted without the body
// that its path gives, which is not known.
func wireBytes(t Transport, f IPFamily, size int) int64 {
	header := ipv4Header
	if f == IPv6 {
		header = ipv6Header
	}
	stream := func(n int) int {
		segments := (n + wireMTU - header - tcpHeader - 1) / (wireMTU - header - tcpHeader)
		return n + segments*2*(header+tcpHeader)
	}
	connection := 2*(header+tcpSYNHeader) + 5*(header+tcpHeader)
	switch t {
	case TCP:
		return int64(connection + 2*stream(size))
	case HTTP:
		return int64(connection + stream(httpRequest) + stream(httpResponse+size))
	case TLS:
		return int64(connection + stream(tlsClient) + stream(tlsServer))
	default:
		n := datagramHeader + size
		if n+header <= wireMTU {
			return int64(2 * (n + header))
		}
		if f == IPv6 {
			header += ipv6Fragment
		}
		part := (wireMTU - header) / 8 * 8 // fragments but the last are multiples of 8
		return int64(2 * (n + (n+part-1)/part*header))
	}
}
