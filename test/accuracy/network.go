// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/podmesh"
)

// The limits of the simulated plan, those of plans/pod-mesh.cue.
const (
	maxLoss = checkup.Percent(1)
	maxP99  = 100 * time.Millisecond
)

// plan is plans/pod-mesh.cue with the schema's defaults, without http: that is TCP with two more round trips.
func plan(degree int, seed uint64) *checkup.Plan {
	probe := func(count int, interval, timeout time.Duration, sizes ...int) checkup.Probe {
		return checkup.Probe{
			Sizes: sizes, Count: count, Interval: checkup.Duration(interval), Timeout: checkup.Duration(timeout),
		}
	}
	mesh := &podmesh.Spec{
		Sample: podmesh.Sample{Degree: degree, Seed: &seed, Budget: 100_000},
		Probes: map[checkup.Transport]checkup.Probe{
			checkup.TCP:  probe(5, 100*time.Millisecond, 2*time.Second, 0),
			checkup.UDP:  probe(20, 20*time.Millisecond, time.Second, 64, 1400),
			checkup.ICMP: probe(5, 100*time.Millisecond, time.Second, 56),
		},
		Expect: checkup.Expect{
			Loss:    checkup.LossLimit{Max: new(maxLoss)},
			Latency: checkup.LatencyLimits{P99: new(checkup.Duration(maxP99))},
		},
		Limits: checkup.Limits{
			PacketsPerSecond: 200, Concurrency: 16, StartJitter: checkup.Duration(500 * time.Millisecond),
		},
		Timeouts: checkup.Timeouts{Setup: checkup.Duration(2 * time.Minute), Probe: checkup.Duration(5 * time.Minute)},
	}
	return &checkup.Plan{
		Name: "accuracy", Gate: checkup.Gate{Require: checkup.RequirePass, Confirm: true},
		Checks: map[string]checkup.Check{"mesh": {Spec: mesh}},
	}
}

// The nodes are in racks of rackSize, which rackLabel names.
const (
	rackLabel = "example.com/rack"
	rackSize  = 4
)

// expand returns the worksheet of a cluster of so many nodes in three zones, by the real sampler, and its roster.
// Source and target i are node i.
func expand(p *checkup.Plan, nodes int) (*checkup.Worksheet, *checkup.Roster, error) {
	s := &cluster.Snapshot{}
	roster := &checkup.Roster{}
	for i := range nodes {
		s.Nodes = append(s.Nodes, cluster.Node{
			Name: fmt.Sprintf("node-%04d", i),
			Labels: map[string]string{
				corev1.LabelTopologyZone: fmt.Sprintf("zone-%c", 'a'+i%3), rackLabel: fmt.Sprintf("r%d", i/rackSize),
			},
			Ready:    corev1.ConditionTrue,
			PodCIDRs: []string{"10.244.0.0/24", "fd00:10:244::/64"},
		})
		roster.Targets = append(roster.Targets, checkup.RosterEntry{
			Pod:       fmt.Sprintf("accuracy/responder-%d", i),
			Addresses: map[checkup.IPFamily]string{checkup.IPv4: "10.244.0.1", checkup.IPv6: "fd00:10:244::1"},
		})
	}
	w, _, err := podmesh.Expand(p, "mesh", s, 0)
	return w, roster, err
}

// packet is one packet on its way from one node to another. Answers have the size and port of their requests.
type packet struct {
	from, to  int
	family    checkup.IPFamily
	transport checkup.Transport
	size      int
	port      int // the source's; 0 for icmp
	answer    bool
	look      int // 0 is the first look
}

// noise is what happens to packets everywhere, besides any fault.
type noise struct {
	name string
	// loss is the probability with which each packet is lost, on each way.
	loss float64
	// heavy makes delays heavy-tailed: of the round trips, 1 of 1,000 takes more than 100ms, and 1 of 31,000 more than
	// one second (Pareto with shape 1.5).
	heavy bool
}

// noises lists every noise; the first is no noise.
var noises = []noise{
	{name: "none"}, {name: "0.01%", loss: 0.0001}, {name: "0.1%", loss: 0.001}, {name: "0.5%", loss: 0.005},
	{name: "tail", heavy: true},
}

// network is a simulated cluster with a fault and noise.
type network struct {
	w      *checkup.Worksheet
	roster *checkup.Roster
	fault  fault
	noise  noise
	rng    *rand.Rand
}

// measure simulates every packet of a look, and returns what agents and responders would report.
func (n *network) measure(w *checkup.Worksheet) *checkup.Record {
	r := &checkup.Record{Observations: make([]checkup.Observation, 0, w.CountPairs())}
	for s := range w.Sources {
		source := checkup.Source{Source: s, Pod: fmt.Sprintf("accuracy/agent-%d", s)}
		if n.fault.silent[s] {
			source.Cause = &checkup.Cause{Stage: checkup.StageStart, Message: "the agent's pod did not start"}
			r.Sources = append(r.Sources, source)
			continue
		}
		source.End = &checkup.AgentEnd{}
		for _, f := range w.IPFamilies {
			for _, name := range []string{"self", "closed"} {
				source.Controls = append(source.Controls, checkup.Control{Family: f, Name: name, OK: true})
			}
		}
		for p := range w.PairsOf(s) {
			o, arrived := n.pair(w, p)
			r.Observations = append(r.Observations, o)
			source.End.Observations++
			if p.Transport == checkup.UDP && arrived > 0 {
				r.Receptions = append(r.Receptions, checkup.Reception{Pair: p, Look: w.Look, Packets: arrived})
			}
		}
		r.Sources = append(r.Sources, source)
	}
	for t := range w.Targets {
		r.Counted = append(r.Counted, t)
	}
	return r
}

// pair measures one pair, and counts the requests that arrived.
func (n *network) pair(w *checkup.Worksheet, p checkup.Pair) (checkup.Observation, int) {
	count := w.Measurements(p)
	probe, _ := w.Probe(p.Transport)
	o := checkup.Observation{Pair: p, RTTs: make([]int64, 0, count)}
	timeout, stage := time.Duration(probe.Timeout), checkup.StageEcho
	if p.Transport == checkup.TCP {
		stage = checkup.StageConnect
	}
	var demanded []int
	var stops checkup.Stops
	if a := w.AgainOf(p); a != nil {
		demanded, stops = a.Ports, a.Stops
	}
	if p.Transport == checkup.UDP && len(demanded) == 0 {
		for range min(checkup.UDPFlows, count) {
			demanded = append(demanded, n.port())
		}
	}
	request := packet{
		from: p.Source, to: p.Target, family: p.Family, transport: p.Transport, size: p.Size, look: w.Look,
	}
	arrived := 0
	for i := range count {
		if stops.End(&o) {
			break
		}
		switch {
		case len(demanded) > 0:
			request.port = demanded[i%len(demanded)] // in turn
		case p.Transport != checkup.ICMP:
			request.port = n.port()
		}
		o.Sent++
		rtt, came := n.exchange(request, timeout, &arrived)
		if came {
			o.Received++
			o.RTTs = append(o.RTTs, rtt.Microseconds())
		} else {
			o.Failure = &checkup.Cause{Stage: stage, Message: "timed out"}
		}
		if request.port != 0 {
			o.Flows = flowOf(o.Flows, request.port, came)
		}
	}
	if o.Received == 0 || o.Received == o.Sent || len(o.Flows) > checkup.MaxFlows {
		o.Flows = nil // as agents do
	}
	return o, arrived
}

// flowOf counts a measurement from a port.
func flowOf(flows []checkup.Flow, port int, came bool) []checkup.Flow {
	i := slices.IndexFunc(flows, func(f checkup.Flow) bool { return f.Port == port })
	if i < 0 {
		i = len(flows)
		flows = append(flows, checkup.Flow{Port: port})
	}
	flows[i].Sent++
	if came {
		flows[i].Received++
	}
	return flows
}

// exchange sends one request, and returns the delay of its answer; false if none came in time. A TCP segment is sent
// again after 1s, 3s, 7s, ... from the first (RFC 6298), within the timeout.
func (n *network) exchange(request packet, timeout time.Duration, arrived *int) (time.Duration, bool) {
	answer := request
	answer.from, answer.to, answer.answer = request.to, request.from, true
	for sent, again := time.Duration(0), time.Second; sent < timeout; sent, again = sent+again, 2*again {
		if !n.lost(request) {
			*arrived++
			if !n.lost(answer) {
				if rtt := sent + n.delay(request, answer); rtt <= timeout {
					return rtt, true
				}
			}
		}
		if request.transport != checkup.TCP {
			break
		}
	}
	return 0, false
}

// port draws a port of the range that Linux uses by default.
func (n *network) port() int { return 32768 + n.rng.IntN(28232) }

func (n *network) lost(p packet) bool {
	if n.noise.loss > 0 && n.rng.Float64() < n.noise.loss {
		return true
	}
	if n.fault.drop == nil {
		return false
	}
	chance := n.fault.drop(p)
	return chance >= 1 || chance > 0 && n.rng.Float64() < chance
}

// delay is the delay of a round trip.
func (n *network) delay(request, answer packet) time.Duration {
	d := time.Duration(100+n.rng.IntN(200)) * time.Microsecond
	if n.noise.heavy {
		d += time.Duration(float64(time.Millisecond) * (math.Pow(1-n.rng.Float64(), -1/1.5) - 1))
	}
	if n.fault.delay != nil {
		d += n.fault.delay(request) + n.fault.delay(answer)
	}
	return d
}
