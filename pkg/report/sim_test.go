// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// iterations are the seeds of a property's loop: few, or with CHECKPLAN_LONG set
// many.
func iterations(few, many uint64) uint64 {
	if os.Getenv("CHECKPLAN_LONG") != "" {
		return many
	}
	return few
}

// packet is one packet of a simulated network, on its way from one node to
// another. Answers carry the size of their requests.
type packet struct {
	from, to  int
	family    checkup.IPFamily
	transport checkup.Transport
	size      int
	answer    bool
}

// network is a simulated cluster whose nodes are sources and targets, with a
// fault. A measurement is a request and an answer.
type network struct {
	w      *checkup.Worksheet
	roster *checkup.Roster
	rng    *rand.Rand
	// drop is the probability with which the fault drops a packet, delay what it
	// adds to its way; nil means no fault.
	drop  func(packet) float64
	delay func(packet) time.Duration
	// repair lets tcp and http repair a loss, once, after a second.
	repair bool
	// tally says whether responders counted, and the count was collected.
	tally bool
}

func newNetwork(seed uint64, nodes, degree, zones int, probes []checkup.TransportProbe) *network {
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
	return &network{w: w, roster: roster, rng: rng, tally: true}
}

// fourTransports are small probes of every transport.
func fourTransports() []checkup.TransportProbe {
	return []checkup.TransportProbe{
		{Transport: checkup.TCP, Probe: checkup.Probe{Sizes: []int{0}, Count: 5}},
		{Transport: checkup.UDP, Probe: checkup.Probe{Sizes: []int{64, 1400}, Count: 20}},
		{Transport: checkup.ICMP, Probe: checkup.Probe{Sizes: []int{56, 1400}, Count: 5}},
		{Transport: checkup.HTTP, Probe: checkup.Probe{Sizes: []int{0, 4000}, Count: 3}},
	}
}

// defaultProbes are those of the schema's defaults.
func defaultProbes() []checkup.TransportProbe {
	return []checkup.TransportProbe{
		{Transport: checkup.TCP, Probe: checkup.Probe{Sizes: []int{0}, Count: 5}},
		{Transport: checkup.UDP, Probe: checkup.Probe{Sizes: []int{64, 1400}, Count: 20}},
		{Transport: checkup.ICMP, Probe: checkup.Probe{Sizes: []int{56}, Count: 5}},
		{Transport: checkup.HTTP, Probe: checkup.Probe{Sizes: []int{0}, Count: 3}},
	}
}

// measure runs every source to its end.
func (n *network) measure() *checkup.Record {
	r := &checkup.Record{}
	for s := range n.w.Assignments {
		source := checkup.Source{Source: s, Pod: fmt.Sprintf("ns/agent-%d", s), End: &checkup.AgentEnd{}}
		for _, f := range n.w.IPFamilies {
			for _, name := range controlNames {
				source.Controls = append(source.Controls, checkup.Control{Family: f, Name: name, OK: true})
			}
		}
		for p := range n.w.PairsOf(s) {
			o := n.pair(p, r)
			r.Observations = append(r.Observations, o)
			source.End.Observations++
		}
		r.Sources = append(r.Sources, source)
	}
	if n.tally {
		for t := range n.w.Targets {
			r.Counted = append(r.Counted, t)
		}
	}
	return r
}

func (n *network) pair(p checkup.Pair, r *checkup.Record) checkup.Observation {
	o := checkup.Observation{Pair: p}
	probe, _ := n.w.Probe(p.Transport)
	arrived := 0
	for range probe.Count {
		o.Sent++
		request := packet{p.Source, p.Target, p.Family, p.Transport, p.Size, false}
		answer := packet{p.Target, p.Source, p.Family, p.Transport, p.Size, true}
		rtt := time.Duration(100+n.rng.IntN(200)) * time.Microsecond
		through := func() bool {
			if n.dropped(request) {
				return false
			}
			arrived++
			return !n.dropped(answer)
		}
		if !through() {
			if !n.repair || datagram(p.Transport) || !through() {
				continue
			}
			rtt += time.Second
		}
		o.Received++
		if n.delay != nil {
			rtt += n.delay(request) + n.delay(answer)
		}
		o.RTTs = append(o.RTTs, rtt.Microseconds())
	}
	if o.Received < o.Sent {
		o.Failure = &checkup.Cause{Stage: checkup.StageConnect, Message: "timed out"}
		if datagram(p.Transport) {
			o.Failure.Stage = checkup.StageEcho
		}
	}
	if n.tally && p.Transport == checkup.UDP && arrived > 0 {
		r.Receptions = append(r.Receptions, checkup.Reception{Pair: p, Packets: arrived})
	}
	return o
}

func (n *network) dropped(p packet) bool {
	if n.drop == nil {
		return false
	}
	chance := n.drop(p)
	return chance >= 1 || chance > 0 && n.rng.Float64() < chance
}

// judge is Judge with the default gate.
func (n *network) judge() checkup.CheckReport {
	return Judge(n.w, n.roster, n.measure(), checkup.Gate{})
}
