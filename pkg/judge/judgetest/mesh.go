// SPDX-License-Identifier: Apache-2.0

// Package judgetest simulates what tests of judging and localising measure: a mesh of
// nodes and a control plane, each with faults. It judges nothing itself.
package judgetest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Iterations are the seeds of a property's loop: few, or with CHECKPLAN_LONG set
// many.
func Iterations(few, many uint64) uint64 {
	if os.Getenv("CHECKPLAN_LONG") != "" {
		return many
	}
	return few
}

// Packet is one packet of a simulated network, on its way from one node to
// another. Answers carry the size of their requests.
type Packet struct {
	From, To  int
	Family    checkup.IPFamily
	Transport checkup.Transport
	Size      int
	Answer    bool
	// Port is the source port of the request, and the destination port of the answer; 0 for
	// icmp.
	Port int
}

// Mesh is a simulated cluster whose nodes are sources and targets, with a
// fault. A measurement is a request and an answer.
type Mesh struct {
	Worksheet *checkup.Worksheet
	Roster    *checkup.Roster
	rng       *rand.Rand
	ports     *rand.Rand
	// Drop is the probability with which the fault drops a packet, Delay what it adds
	// to its way; nil means no fault.
	Drop  func(Packet) float64
	Delay func(Packet) time.Duration
	// Seen is the source address that a target sees of a request if it is not the source's own,
	// otherwise empty; nil means that all see the source's own. It matters if the worksheet
	// expects the source's own address.
	Seen func(Packet) string
	// Repair lets tcp and http repair a loss, once, after a second.
	Repair bool
	// Tally says that responders counted, and that the count was collected.
	Tally bool
}

// NewMesh is a mesh of so many nodes in so many zones, of which each is source of
// and target of degree others; 0 means all others.
func NewMesh(seed uint64, nodes, degree, zones int, probes []checkup.TransportProbe) *Mesh {
	rng := rand.New(rand.NewPCG(seed, 1))
	w := &checkup.Worksheet{
		Plan: "p", Check: "mesh", Kind: "podMesh", Seed: seed, Rounds: 1, Degree: degree,
		Possible: nodes * (nodes - 1), IPFamilies: checkup.IPFamilies, Probes: probes,
	}
	roster := &checkup.Roster{}
	for i := range nodes {
		e := checkup.Endpoint{Node: fmt.Sprintf("worker-%d", i+1)}
		if zones > 0 {
			e.Zone = fmt.Sprintf("zone-%c", 'a'+i%zones)
		}
		w.Sources, w.Targets = append(w.Sources, e), append(w.Targets, e)
		roster.Targets = append(roster.Targets, checkup.RosterEntry{
			Pod:       "ns/" + e.Node,
			Addresses: map[checkup.IPFamily]string{checkup.IPv4: "10.0.0.1", checkup.IPv6: "fd00::1"},
		})
	}
	offsets := rng.Perm(max(nodes-1, 0))
	if degree > 0 && degree < len(offsets) {
		offsets = offsets[:degree]
	}
	for i := range nodes {
		var targets []int
		for _, o := range offsets {
			targets = append(targets, (i+o+1)%nodes)
		}
		slices.Sort(targets)
		w.Assignments = append(w.Assignments, targets)
	}
	return &Mesh{Worksheet: w, Roster: roster, rng: rng, ports: rand.New(rand.NewPCG(seed, 3)), Tally: true}
}

// FourTransports are small probes of every transport.
func FourTransports() []checkup.TransportProbe {
	return []checkup.TransportProbe{
		{Transport: checkup.TCP, Probe: checkup.Probe{Sizes: []int{0}, Count: 5}},
		{Transport: checkup.UDP, Probe: checkup.Probe{Sizes: []int{64, 1400}, Count: 20}},
		{Transport: checkup.ICMP, Probe: checkup.Probe{Sizes: []int{56, 1400}, Count: 5}},
		{Transport: checkup.HTTP, Probe: checkup.Probe{Sizes: []int{0, 4000}, Count: 3}},
	}
}

// DefaultProbes are those of the schema's defaults.
func DefaultProbes() []checkup.TransportProbe {
	return []checkup.TransportProbe{
		{Transport: checkup.TCP, Probe: checkup.Probe{Sizes: []int{0}, Count: 5}},
		{Transport: checkup.UDP, Probe: checkup.Probe{Sizes: []int{64, 1400}, Count: 20}},
		{Transport: checkup.ICMP, Probe: checkup.Probe{Sizes: []int{56}, Count: 5}},
		{Transport: checkup.HTTP, Probe: checkup.Probe{Sizes: []int{0}, Count: 3}},
	}
}

// Measure runs every source to its end.
func (n *Mesh) Measure() *checkup.Record {
	r := &checkup.Record{}
	for s := range n.Worksheet.Assignments {
		source := checkup.Source{Source: s, Pod: fmt.Sprintf("ns/agent-%d", s), End: &checkup.AgentEnd{}}
		for _, f := range n.Worksheet.IPFamilies {
			for _, name := range Controls {
				source.Controls = append(source.Controls, checkup.Control{Family: f, Name: name, OK: true})
			}
		}
		for p := range n.Worksheet.PairsOf(s) {
			o := n.pair(p, r)
			r.Observations = append(r.Observations, o)
			source.End.Observations++
		}
		r.Sources = append(r.Sources, source)
	}
	if n.Tally {
		for t := range n.Worksheet.Targets {
			r.Counted = append(r.Counted, t)
		}
	}
	return r
}

func (n *Mesh) pair(p checkup.Pair, r *checkup.Record) checkup.Observation {
	o := checkup.Observation{Pair: p}
	count := n.Worksheet.Measurements(p)
	arrived := 0
	var flows []checkup.Flow
	var stops checkup.Stops
	if a := n.Worksheet.AgainOf(p); a != nil {
		stops = a.Stops
	}
	for i := range count {
		if stops.Crossed(o.Sent, o.Sent-o.Received) && !checkup.SilentFlow(flows) {
			break // as agents do
		}
		o.Sent++
		flow := n.flow(&flows, p.Transport, i, count)
		request := Packet{p.Source, p.Target, p.Family, p.Transport, p.Size, false, flow.Port}
		answer := Packet{p.Target, p.Source, p.Family, p.Transport, p.Size, true, flow.Port}
		rtt := time.Duration(100+n.rng.IntN(200)) * time.Microsecond
		through := func() bool {
			if n.dropped(request) {
				return false
			}
			arrived++
			return !n.dropped(answer)
		}
		if !through() {
			if !n.Repair || datagram(p.Transport) || !through() {
				continue
			}
			rtt += time.Second
		}
		o.Received++
		flow.Received++
		if n.Worksheet.Witnesses(p) {
			o.Witnessed++
			if n.Seen != nil && n.Seen(request) != "" {
				o.Rewritten++
				o.SeenAs = n.Seen(request)
			}
		}
		if n.Delay != nil {
			rtt += n.Delay(request) + n.Delay(answer)
		}
		o.RTTs = append(o.RTTs, rtt.Microseconds())
	}
	if o.Received > 0 && o.Received < o.Sent && p.Transport != checkup.ICMP {
		o.Flows = flows
	}
	if o.Received < o.Sent {
		o.Failure = &checkup.Cause{Stage: checkup.StageConnect, Message: "timed out"}
		if datagram(p.Transport) {
			o.Failure.Stage = checkup.StageEcho
		}
	}
	if n.Tally && p.Transport == checkup.UDP && arrived > 0 {
		r.Receptions = append(r.Receptions, checkup.Reception{Pair: p, Packets: arrived})
	}
	return o
}

// flow counts measurement i of count, and returns the flow that it is part of: a udp pair has four, in turn, and each
// connection has its own.
func (n *Mesh) flow(flows *[]checkup.Flow, t checkup.Transport, i, count int) *checkup.Flow {
	all := map[checkup.Transport]int{checkup.UDP: min(checkup.UDPFlows, count), checkup.ICMP: 1}[t]
	if all == 0 {
		all = count
	}
	at := i % all
	if at == len(*flows) {
		port := 0
		if t != checkup.ICMP {
			port = 32768 + n.ports.IntN(28000)
		}
		*flows = append(*flows, checkup.Flow{Port: port})
	}
	f := &(*flows)[at]
	f.Sent++
	return f
}

func (n *Mesh) dropped(p Packet) bool {
	if n.Drop == nil {
		return false
	}
	chance := n.Drop(p)
	return chance >= 1 || chance > 0 && n.rng.Float64() < chance
}

// datagram reports whether a transport shows each lost packet; TCP repairs losses.
func datagram(t checkup.Transport) bool { return t == checkup.UDP || t == checkup.ICMP }

// RandomMesh is a mesh of a random size, sample and fault, with loss that
// is judged.
func RandomMesh(seed uint64) *Mesh {
	rng := rand.New(rand.NewPCG(seed, 2))
	n := NewMesh(seed, rng.IntN(9), rng.IntN(4), rng.IntN(4), FourTransports())
	n.Worksheet.Expect.Loss.Max = new(checkup.Percent(1))
	n.Worksheet.Expect.Unreachable = rng.IntN(4) == 0
	bad, chance := rng.IntN(9), rng.Float64()
	n.Drop = func(p Packet) float64 {
		if p.To == bad || rng.IntN(50) == 0 {
			return chance
		}
		return 0
	}
	return n
}

// Reseed draws the noise of the next measurements anew; the sample stays.
func (n *Mesh) Reseed(seed uint64) {
	n.rng, n.ports = rand.New(rand.NewPCG(seed, 11)), rand.New(rand.NewPCG(seed, 12))
}
