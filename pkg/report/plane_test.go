// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// plane is a simulated control plane, with a fault. On each node there is an API
// server, an aggregated API server and an etcd member; both kinds of API server
// have a Service, and the API servers a load balancer with a DNS name.
type plane struct {
	w      *checkup.Worksheet
	roster *checkup.Roster
	rng    *rand.Rand
	start  time.Time
	// way is the fault of the way from a source to an address, end that of a
	// target itself; nil means none. A Service's address leads to one of its
	// endpoints by chance, and meets the faults of both.
	way   func(source, target int, after time.Duration) *checkup.Cause
	end   func(target int, after time.Duration) *checkup.Cause
	delay func(source, target int) time.Duration
}

// The sources and targets of node i begin at these indexes; there are perNode of
// each target. Behind them are the two Services and the load balancer.
const (
	kubeAPIServer = iota // as source
	aggregated           // as source
	sourcesPerNode
)
const (
	etcdTarget = iota
	kubeTarget
	aggregatedTarget
	targetsPerNode
)

var (
	refused   = &checkup.Cause{Stage: checkup.StageConnect, Message: "connection refused"}
	timedOut  = &checkup.Cause{Stage: checkup.StageConnect, Message: "timed out after 10s"}
	silent    = &checkup.Cause{Stage: checkup.StageHandshake, Message: "accepted the connection and then said nothing for 10s"}
	notReady  = &checkup.Cause{Stage: checkup.StageResponse, Message: "HTTP status 500 Internal Server Error"}
	noAddress = &checkup.Cause{Stage: checkup.StageResolve, Message: "no such host"}
)

func newPlane(seed uint64, nodes, count int) *plane {
	p := &plane{
		rng: rand.New(rand.NewPCG(seed, 21)), start: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), roster: &checkup.Roster{},
		w: &checkup.Worksheet{
			Plan: "day-2", Check: "api", Kind: "controlPlane", Rounds: 1, IPFamilies: []checkup.IPFamily{checkup.IPv4},
			Probes: []checkup.TransportProbe{{Transport: checkup.TLS, Probe: checkup.Probe{
				Sizes: []int{0}, Count: count, Interval: checkup.Duration(time.Second), Timeout: checkup.Duration(10 * time.Second)}}},
			Connections: &checkup.ConnectionSheet{For: checkup.Duration(time.Duration(count) * time.Second)},
		},
	}
	target := func(node, label, component, host string, port int) {
		p.w.Targets = append(p.w.Targets, checkup.Endpoint{Node: node, Label: label, Component: component,
			Peer: &checkup.Peer{Host: host, Port: port, Family: checkup.IPv4, Transport: checkup.TLS}})
		p.roster.Targets = append(p.roster.Targets, checkup.RosterEntry{})
	}
	var kube, aggregate []int
	for i := range nodes {
		node := fmt.Sprintf("cp-%d", i+1)
		p.w.Sources = append(p.w.Sources,
			checkup.Endpoint{Node: node, Label: "kube-apiserver-" + node, Component: checkup.ComponentKubeAPIServer, HostNetwork: true},
			checkup.Endpoint{Node: node, Label: "aggregated-" + node, Component: checkup.ComponentAggregatedAPIServer})
		kube, aggregate = append(kube, i*targetsPerNode+kubeTarget), append(aggregate, i*targetsPerNode+aggregatedTarget)
		target(node, "etcd-server-"+node, checkup.ComponentEtcd, fmt.Sprintf("10.0.0.%d", i+1), 2379)
		target(node, "kubernetes-apiserver-endpoint-"+node, checkup.ComponentKubeAPIServer, fmt.Sprintf("10.0.0.%d", i+1), 6443)
		target(node, "aggregated-endpoint-"+node, checkup.ComponentAggregatedAPIServer, fmt.Sprintf("10.244.%d.7", i+1), 8443)
	}
	target("", "kubernetes-default-service-cluster", checkup.ComponentKubeAPIServer, "10.96.0.1", 443)
	target("", "aggregated-service-cluster", checkup.ComponentAggregatedAPIServer, "10.96.0.7", 443)
	target("", "load-balancer-api-external", checkup.ComponentLoadBalancerOut, "api.example.com", 6443)
	p.w.Targets[p.kubeService()].Peer.Backends = kube
	p.w.Targets[p.aggregatedService()].Peer.Backends = aggregate
	p.w.Targets[p.balancer()].Peer.Family = checkup.AnyIPFamily
	for s := range p.w.Sources {
		var targets []int
		own, service := kubeTarget, p.kubeService()
		if s%sourcesPerNode == kubeAPIServer {
			own, service = aggregatedTarget, p.aggregatedService()
		}
		for i := range nodes {
			targets = append(targets, i*targetsPerNode+etcdTarget, i*targetsPerNode+own)
		}
		targets = append(targets, service)
		if s%sourcesPerNode == aggregated {
			targets = append(targets, p.balancer())
		}
		p.w.Assignments = append(p.w.Assignments, targets)
		p.w.Possible += len(targets)
	}
	return p
}

func (p *plane) nodes() int             { return len(p.w.Sources) / sourcesPerNode }
func (p *plane) kubeService() int       { return p.nodes() * targetsPerNode }
func (p *plane) aggregatedService() int { return p.kubeService() + 1 }
func (p *plane) balancer() int          { return p.kubeService() + 2 }

// measure watches every pair, an interval between two measurements.
func (p *plane) measure() *checkup.Record {
	r := &checkup.Record{}
	for s := range p.w.Assignments {
		source := checkup.Source{Source: s, Pod: fmt.Sprintf("ns/agent-%d", s), End: &checkup.AgentEnd{}}
		for _, name := range controlNames {
			source.Controls = append(source.Controls, checkup.Control{Family: checkup.IPv4, Name: name, OK: true})
		}
		for pair := range p.w.PairsOf(s) {
			if p.w.Targets[pair.Target].Peer == nil {
				continue // nothing to ask
			}
			probe, _ := p.w.Probe(pair.Transport)
			for k := range probe.Count {
				r.Results = append(r.Results, p.one(pair, time.Duration(k)*time.Duration(probe.Interval)))
				source.End.Results++
			}
		}
		r.Sources = append(r.Sources, source)
	}
	return r
}

func (p *plane) one(pair checkup.Pair, after time.Duration) checkup.Result {
	r := checkup.Result{Pair: pair, At: p.start.Add(after + time.Duration(p.rng.IntN(100))*time.Millisecond)}
	peer := p.w.Targets[pair.Target].Peer
	ask := func(target int) {
		if r.Failure == nil && p.way != nil {
			r.Failure = p.way(pair.Source, target, after)
		}
		if r.Failure == nil && p.end != nil {
			r.Failure = p.end(target, after)
		}
	}
	ask(pair.Target)
	if len(peer.Backends) > 0 {
		ask(peer.Backends[p.rng.IntN(len(peer.Backends))])
	}
	passed := func(s checkup.Stage) bool {
		return r.Failure == nil || slices.Index(checkup.ConnectionStages, s) < slices.Index(checkup.ConnectionStages, r.Failure.Stage)
	}
	micros := func() int64 { return int64(200 + p.rng.IntN(300)) }
	if peer.Family == checkup.AnyIPFamily && passed(checkup.StageResolve) {
		r.Delays.Resolve = micros()
	}
	if passed(checkup.StageConnect) {
		r.Delays.Connect = micros()
		if p.delay != nil {
			r.Delays.Connect += p.delay(pair.Source, pair.Target).Microseconds()
		}
	}
	if passed(checkup.StageHandshake) {
		r.Delays.Handshake = 3 * micros()
	}
	return r
}

// judge is Judge with the default gate.
func (p *plane) judge() checkup.CheckReport {
	return Judge(p.w, p.roster, p.measure(), checkup.Gate{})
}
