// SPDX-License-Identifier: Apache-2.0

// Package cost computes what a run of a check takes before it starts: pods, VMs,
// packets, bytes, rates, durations and objects. It is pure.
package cost

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Cost is what a run of one check takes, computed from its worksheet before
// anything is measured. A packet here is a measurement, as in checkup.Limits and in
// checkup.Observation.Sent: a connect, a datagram, an echo request, a GET.
type Cost struct {
	Check string       `json:"check"`
	Kind  checkup.Kind `json:"kind"`
	// Image of every pod.
	Image string `json:"image,omitempty"`
	// Agents and Responders are pods: one agent for each source that has a target
	// and is not an existing pod, one responder for each target that has a source and is not an existing pod.
	Agents     int `json:"agents"`
	Responders int `json:"responders"`
	// Inside is the number of agents that are ephemeral containers in existing pods. They are not in Agents.
	Inside int `json:"inside,omitempty"`
	// PodsPerNode is the highest number of these pods on one node.
	PodsPerNode int `json:"podsPerNode"`
	// VMs are started, each in a pod of KubeVirt's. Preflights are pods of Image that
	// test the networks; they end before VMs are started.
	VMs        int `json:"vms,omitempty"`
	Preflights int `json:"preflights,omitempty"`
	// GuestMemory is that of each VM, as a Kubernetes quantity; empty without VMs.
	GuestMemory string `json:"guestMemory,omitempty"`
	// Nodes that take part, by name.
	Nodes []Node `json:"nodes"`
	// HostNetwork is the number of agents in their node's network. An agent is there if
	// the component that it represents is, or if it reads the rules of its node. Nothing else widens pod security.
	HostNetwork int `json:"hostNetwork,omitempty"`

	Pairs int `json:"pairs"`
	// Packets is the sum of the counts of all pairs, which is the sum of Observation.Sent if
	// every pair is measured and no measurement is discarded, and of their Worksheet.Tries. Control pairs do not
	// count: their packets stay in the pod.
	Packets int `json:"packets"`
	// Bytes estimates what the measurements send, both directions together, as IP
	// packets: see wireBytes.
	Bytes int64 `json:"bytes"`
	// PeakSent is the highest number of packets per second that one node sends,
	// PeakReceived the highest that one node receives from all sources together. Both
	// are upper bounds, except for a burst: within one second an agent may exceed its
	// limit by 1%, or by one packet.
	PeakSent     int `json:"peakSent"`
	PeakReceived int `json:"peakReceived"`

	// ExpectedProbe estimates how long the slowest agent takes if nothing delays it,
	// from its rate, concurrency and intervals.
	ExpectedProbe checkup.Duration `json:"expectedProbe"`
	// Longest is the sum of the timeouts of setup and probe. Pairs that are not measured
	// by then are unmeasured.
	Longest checkup.Duration `json:"longest"`

	// Objects that the check creates.
	Objects []Object `json:"objects"`
}

// Node is the part of a Cost that falls on one node.
type Node struct {
	Node       string `json:"node"`
	Agents     int    `json:"agents"`
	Responders int    `json:"responders"`
	// VMs that are pinned to the node.
	VMs          int `json:"vms,omitempty"`
	PeakSent     int `json:"peakSent"`
	PeakReceived int `json:"peakReceived"`
}

// Object is a number of objects of one kind and role.
type Object struct {
	Kind string `json:"kind"` // Pod, Service, EphemeralContainer, ConfigMap, VirtualMachineInstance or PodNetworkHealth
	// Role is that of the label; empty for objects without one.
	Role checkup.Role `json:"role"`
	// Count is their number, the minimum if AtLeast: a value that does not fit one
	// object is cut into several, and its size is not known before the run.
	Count   int  `json:"count"`
	AtLeast bool `json:"atLeast,omitempty"`
	// LeftBehind says that the objects outlive the run. Until says in words what
	// removes them.
	LeftBehind bool   `json:"leftBehind"`
	Until      string `json:"until"`
}

// Of computes what a run of the check takes. The plan says when objects are removed;
// image is the agent's, copied into the Cost.
func Of(w *checkup.Worksheet, p *checkup.Plan, image string) Cost {
	c := Cost{
		Check: w.Check, Kind: w.Kind, Image: image,
		Pairs: w.CountPairs(), Packets: w.CountPackets(), Nodes: nodes(w),
		Longest: w.Timeouts.Setup + w.ProbeTimeout(),
	}
	for _, n := range c.Nodes {
		c.Agents += n.Agents
		c.Responders += n.Responders
		c.PodsPerNode = max(c.PodsPerNode, n.Agents+n.Responders)
		c.PeakSent = max(c.PeakSent, n.PeakSent)
		c.PeakReceived = max(c.PeakReceived, n.PeakReceived)
	}
	for s, e := range w.Sources {
		if e.Inside && e.Node != "" && e.Cause == nil && s < len(w.Assignments) && len(w.Assignments[s]) > 0 {
			c.Inside++
		}
		if e.HostNetwork && !e.Inside {
			c.HostNetwork++
		}
		if e.VM != nil && e.Cause == nil {
			c.VMs++
			if e.VM.Binding != checkup.BindingSRIOV { // a pod without a VM cannot test SR-IOV devices
				c.Preflights++
			}
		}
	}
	if c.VMs > 0 && w.Guests != nil {
		c.GuestMemory = w.Guests.Guest.Memory
	}
	c.ExpectedProbe = ExpectedProbe(w)
	tries := w.Tries()
	for pair := range w.Pairs() {
		c.Bytes += int64(w.Measurements(pair)+tries(pair)) * wireBytes(pair.Transport, pair.Family, pair.Size)
	}

	fixture := func(ends string) Object {
		switch p.Teardown {
		case checkup.TeardownOnPass:
			return Object{
				LeftBehind: true,
				Until:      "teardown if the verdict is pass; else " + ends + " and stay until the run is deleted",
			}
		case checkup.TeardownNever:
			return Object{LeftBehind: true, Until: "the run is deleted; " + ends}
		}
		return Object{Until: "teardown, after every run"}
	}
	pods := fixture("the pods end at their active deadline")
	guests := fixture("the VMs power off at their deadline")
	if w.Guests != nil && w.Guests.Guest.Image != "" {
		guests = fixture("the VMs keep running")
	}
	object := func(o Object, kind string, role checkup.Role, count int) {
		if o.Kind, o.Role, o.Count = kind, role, count; count > 0 {
			c.Objects = append(c.Objects, o)
		}
	}
	run := Object{AtLeast: true, LeftBehind: true, Until: "the PipelineRun is deleted"}
	object(pods, "Pod", checkup.RoleResponder, c.Responders)
	object(pods, "Service", checkup.RoleService, len(w.Services))
	object(pods, "Pod", checkup.RoleAgent, c.Agents)
	object(pods, "ConfigMap", checkup.RoleAgent, c.Agents)
	object(Object{LeftBehind: true, Until: "their pods are deleted; they end at their deadline"},
		"EphemeralContainer", checkup.RoleAgent, c.Inside)
	object(Object{Until: "setup has tested the networks"}, "Pod", checkup.RolePreflight, c.Preflights)
	object(guests, "VirtualMachineInstance", checkup.RoleGuest, c.VMs)
	object(guests, "Pod", checkup.RoleGuest, c.VMs)
	object(guests, "ConfigMap", checkup.RoleGuest, min(c.VMs, 1))
	object(run, "ConfigMap", checkup.RoleWorksheet, 1)
	object(run, "ConfigMap", checkup.RoleRecord, 1)
	object(
		Object{
			AtLeast:    true,
			LeftBehind: true,
			Until:      fmt.Sprintf("%d newer reports of the plan exist", p.Retention.Reports),
		},
		"ConfigMap",
		checkup.RoleReport,
		1,
	)
	object(
		Object{AtLeast: true, LeftBehind: true, Until: "somebody deletes the plan's history, of at most 16 MiB"},
		"ConfigMap",
		checkup.RoleHistory,
		3,
	)
	return c
}

// nodes computes the part of each node.
func nodes(w *checkup.Worksheet) []Node {
	index := map[string]int{}
	var nodes []Node
	of := func(name string) int {
		i, ok := index[name]
		if !ok {
			i = len(nodes)
			index[name] = i
			nodes = append(nodes, Node{Node: name})
		}
		return i
	}
	targetNode := make([]int, len(w.Targets))
	for t, degree := range w.InDegrees() {
		targetNode[t] = of(w.Targets[t].Node)
		if (degree > 0 || w.Targets[t].Turns()) && w.Targets[t].IsFixture() {
			nodes[targetNode[t]].Responders++
		}
	}
	// each is the highest number of measurements of a target that one source starts in
	// one second. Measurements of a pair start one interval apart, so a second holds one
	// more than it has intervals. A VM is the target of one source only.
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
				n = min(n, int(checkup.Duration(time.Second)/p.Interval)+1)
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
		case e.Inside && e.Cause != nil: // has no agent
			continue
		case e.Inside:
		case e.VM == nil:
			nodes[i].Agents++
		case e.Cause != nil: // not started: sends nothing
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
	for _, e := range w.Sources {
		if w.Tables != nil {
			i := of(e.Node)
			nodes[i].Agents++
		}
	}
	nodes = slices.DeleteFunc(
		nodes,
		func(n Node) bool { return n.Node == "" || n.Agents+n.Responders+n.VMs+n.PeakSent+n.PeakReceived == 0 },
	)
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Node, b.Node) })
	return nodes
}

// ExpectedProbe estimates how long the agent with the most targets takes: its start
// jitter, then the longest of three: all packets at its rate, all pairs at its
// concurrency, its longest pair. A pair takes its intervals, and the timeout of the
// last measurement if no answer is expected. One that waits for the end of a session
// affinity does so beside the others.
func ExpectedProbe(w *checkup.Worksheet) checkup.Duration {
	if w.Tables != nil {
		return w.Limits.StartJitter + (checkup.TableLooks-1)*w.Tables.Interval
	}
	targets, peers := 0, map[checkup.Transport]int{} // of the agent with the most targets
	for _, of := range w.Assignments {
		if len(of) <= targets {
			continue
		}
		targets = len(of)
		clear(peers)
		for _, t := range of {
			if w.Targets[t].Peer != nil { // each has one address
				peers[w.Targets[t].Peer.Transport]++
			}
		}
	}
	if targets == 0 {
		return 0
	}
	if w.Guests != nil { // connectivity, then the measurement, all pairs at once
		longest := checkup.Duration(0)
		for _, p := range w.Probes {
			count, interval := checkup.VMConnectivity(p.Count, p.Interval)
			longest = max(longest, checkup.Duration(count)*interval+checkup.Duration(max(p.Count-1, 0))*p.Interval)
		}
		return longest
	}
	if w.Connections != nil { // every pair at its own pace, all at once
		longest := checkup.Duration(0)
		for _, p := range w.Probes {
			longest = max(longest, checkup.Duration(max(p.Count-1, 0))*p.Interval)
		}
		return w.Limits.StartJitter + longest
	}
	var packets int
	var inTurn, longest checkup.Duration
	for _, p := range w.Probes {
		pair := checkup.Duration(max(p.Count-1, 0)) * p.Interval
		if w.Expect.Unreachable {
			pair += p.Timeout
		}
		pairs := targets * len(p.Sizes) * len(w.IPFamilies)
		if len(peers) > 0 {
			pairs = peers[p.Transport]
		}
		packets += pairs * p.Count
		inTurn += checkup.Duration(pairs) * pair
		longest = max(longest, pair)
	}
	var byRate checkup.Duration
	if w.Limits.PacketsPerSecond > 0 {
		byRate = checkup.Duration(packets) * checkup.Duration(time.Second) / checkup.Duration(w.Limits.PacketsPerSecond)
	}
	for _, s := range w.Services { // beside all other pairs
		longest = max(longest, checkup.IdleTries*s.IdleTime())
	}
	return w.Limits.StartJitter + max(byRate, inTurn/checkup.Duration(max(w.Limits.Concurrency, 1)), longest)
}

// Sizes from which wireBytes is worked out: headers without options, but for
// TCP's timestamps, and the round numbers that our checkup.HTTP requests and responses
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
	dnsQuestion    = 60   // a name of 42 bytes (RFC 1035, section 4.1)
	dnsAnswer      = 90   // with one or two addresses
)

// wireBytes estimates what one measurement sends, both directions together, as IP
// packets on a path of MTU 1500 without loss. Headers of links and tunnels are not
// included. H is the IP header:
//
//	udp, icmp  2 x (8 + size + H for each fragment; checkup.IPv6 fragments have 8 more)
//	tcp        2 x (H+40) for the SYNs, 5 x (H+32) for the handshake's end and
//	           the close, and size both ways: size + 2 x (H+32) for each segment
//	           and its acknowledgement
//	http       as tcp, with a request of 100 and a response of 150 + size bytes
//	tls        as tcp, with 700 bytes there and 2000 back for the handshake
//	dns-udp    2 x (8 + H), and a question of 60 and an answer of 90 bytes
//	dns-tcp    as tcp, with the same question and answer
//
// The kernel acknowledges several segments at once if it can, so tcp and http send
// less. The body of an http probe of size 0 is not known and not counted.
func wireBytes(t checkup.Transport, f checkup.IPFamily, size int) int64 {
	header := ipv4Header
	if f == checkup.IPv6 {
		header = ipv6Header
	}
	stream := func(n int) int {
		segments := (n + wireMTU - header - tcpHeader - 1) / (wireMTU - header - tcpHeader)
		return n + segments*2*(header+tcpHeader)
	}
	connection := 2*(header+tcpSYNHeader) + 5*(header+tcpHeader)
	switch t {
	case checkup.TCP:
		return int64(connection + 2*stream(size))
	case checkup.HTTP:
		return int64(connection + stream(httpRequest) + stream(httpResponse+size))
	case checkup.TLS:
		return int64(connection + stream(tlsClient) + stream(tlsServer))
	case checkup.DNSUDP:
		return 2*int64(header+datagramHeader) + dnsQuestion + dnsAnswer
	case checkup.DNSTCP:
		return int64(connection + stream(dnsQuestion) + stream(dnsAnswer))
	default:
		n := datagramHeader + size
		if n+header <= wireMTU {
			return int64(2 * (n + header))
		}
		if f == checkup.IPv6 {
			header += ipv6Fragment
		}
		part := (wireMTU - header) / 8 * 8 // fragments but the last are multiples of 8
		return int64(2 * (n + (n+part-1)/part*header))
	}
}
