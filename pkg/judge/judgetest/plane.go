// SPDX-License-Identifier: Apache-2.0

package judgetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Plane is a simulated control plane, with a fault. On each node there is an API
// server, an aggregated API server and an etcd member; both kinds of API server
// have a Service, and the API servers a load balancer with a DNS name.
type Plane struct {
	Worksheet *checkup.Worksheet
	Roster    *checkup.Roster
	Rand      *rand.Rand
	Start     time.Time
	// Way is the fault of the way from a source to an address, End that of a
	// target itself; nil means none. A Service's address leads to one of its
	// endpoints by chance, and meets the faults of both.
	Way   func(source, target int, after time.Duration) *checkup.Cause
	End   func(target int, after time.Duration) *checkup.Cause
	Delay func(source, target int) time.Duration
}

// The sources and targets of node i begin at these indexes; there are perNode of
// each target. Behind them are the two Services and the load balancer.
const (
	KubeAPIServer = iota // as source
	Aggregated           // as source
	SourcesPerNode
)

// Targets of a node.
const (
	EtcdTarget = iota
	KubeTarget
	AggregatedTarget
	TargetsPerNode
)

// Causes of failed connections.
var (
	Refused  = &checkup.Cause{Stage: checkup.StageConnect, Message: "connection refused"}
	TimedOut = &checkup.Cause{Stage: checkup.StageConnect, Message: "timed out after 10s"}
	Silent   = &checkup.Cause{
		Stage:   checkup.StageHandshake,
		Reason:  checkup.ReasonSilent,
		Message: "accepted the connection and then sent nothing for 10s",
	}
	NotReady  = &checkup.Cause{Stage: checkup.StageResponse, Message: "HTTP status 500 Internal Server Error"}
	NoAddress = &checkup.Cause{Stage: checkup.StageResolve, Message: "no such host"}
)

// NewPlane is a control plane of so many nodes, whose pairs are measured so often.
func NewPlane(seed uint64, nodes, count int) *Plane {
	p := &Plane{
		Rand: rand.New(rand.NewPCG(seed, 21)), Start: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Roster: &checkup.Roster{},
		Worksheet: &checkup.Worksheet{
			Plan: "day-2", Check: "api", Kind: "controlPlane", Rounds: 1, IPFamilies: []checkup.IPFamily{checkup.IPv4},
			Probes: []checkup.TransportProbe{{Transport: checkup.TLS, Probe: checkup.Probe{
				Sizes: []int{
					0,
				}, Count: count, Interval: checkup.Duration(time.Second), Timeout: checkup.Duration(10 * time.Second)}}},
			Connections: &checkup.ConnectionSheet{For: checkup.Duration(time.Duration(count) * time.Second)},
		},
	}
	target := func(node, label, component, host string, port int) {
		p.Worksheet.Targets = append(p.Worksheet.Targets, checkup.Endpoint{Node: node, Label: label, Component: component,
			Peer: &checkup.Peer{Host: host, Port: port, Family: checkup.IPv4, Transport: checkup.TLS}})
		p.Roster.Targets = append(p.Roster.Targets, checkup.RosterEntry{})
	}
	var kube, aggregate []int
	for i := range nodes {
		node := fmt.Sprintf("cp-%d", i+1)
		p.Worksheet.Sources = append(
			p.Worksheet.Sources,
			checkup.Endpoint{
				Node:        node,
				Label:       "kube-apiserver-" + node,
				Component:   "kube-apiserver",
				HostNetwork: true,
			},
			checkup.Endpoint{Node: node, Label: "aggregated-" + node, Component: "aggregated-apiserver"},
		)
		kube, aggregate = append(kube, i*TargetsPerNode+KubeTarget), append(aggregate, i*TargetsPerNode+AggregatedTarget)
		target(node, "etcd-server-"+node, "etcd", fmt.Sprintf("10.0.0.%d", i+1), 2379)
		target(
			node,
			"kubernetes-apiserver-endpoint-"+node,
			"kube-apiserver",
			fmt.Sprintf("10.0.0.%d", i+1),
			6443,
		)
		target(node, "aggregated-endpoint-"+node, "aggregated-apiserver", fmt.Sprintf("10.244.%d.7", i+1), 8443)
	}
	target("", "kubernetes-default-service-cluster", "kube-apiserver", "10.96.0.1", 443)
	target("", "aggregated-service-cluster", "aggregated-apiserver", "10.96.0.7", 443)
	target("", "load-balancer-api-external", "load-balancer-external", "api.example.com", 6443)
	p.Worksheet.Targets[p.KubeService()].Peer.Backends = kube
	p.Worksheet.Targets[p.AggregatedService()].Peer.Backends = aggregate
	p.Worksheet.Targets[p.Balancer()].Peer.Family = checkup.AnyIPFamily
	for s := range p.Worksheet.Sources {
		var targets []int
		own, service := KubeTarget, p.KubeService()
		if s%SourcesPerNode == KubeAPIServer {
			own, service = AggregatedTarget, p.AggregatedService()
		}
		for i := range nodes {
			targets = append(targets, i*TargetsPerNode+EtcdTarget, i*TargetsPerNode+own)
		}
		targets = append(targets, service)
		if s%SourcesPerNode == Aggregated {
			targets = append(targets, p.Balancer())
		}
		p.Worksheet.Assignments = append(p.Worksheet.Assignments, targets)
		p.Worksheet.Possible += len(targets)
	}
	return p
}

func (p *Plane) Nodes() int             { return len(p.Worksheet.Sources) / SourcesPerNode }
func (p *Plane) KubeService() int       { return p.Nodes() * TargetsPerNode }
func (p *Plane) AggregatedService() int { return p.KubeService() + 1 }
func (p *Plane) Balancer() int          { return p.KubeService() + 2 }

// Measure watches every pair, an interval between two measurements.
func (p *Plane) Measure() *checkup.Record {
	r := &checkup.Record{}
	for s := range p.Worksheet.Assignments {
		source := checkup.Source{Source: s, Pod: fmt.Sprintf("ns/agent-%d", s), End: &checkup.AgentEnd{}}
		for _, name := range Controls {
			source.Controls = append(source.Controls, checkup.Control{Family: checkup.IPv4, Name: name, OK: true})
		}
		for pair := range p.Worksheet.PairsOf(s) {
			if p.Worksheet.Targets[pair.Target].Peer == nil {
				continue // nothing to ask
			}
			probe, _ := p.Worksheet.Probe(pair.Transport)
			for k := range probe.Count {
				r.Results = append(r.Results, p.one(pair, time.Duration(k)*time.Duration(probe.Interval)))
				source.End.Results++
			}
		}
		r.Sources = append(r.Sources, source)
	}
	return r
}

func (p *Plane) one(pair checkup.Pair, after time.Duration) checkup.Result {
	r := checkup.Result{Pair: pair, At: p.Start.Add(after + time.Duration(p.Rand.IntN(100))*time.Millisecond)}
	peer := p.Worksheet.Targets[pair.Target].Peer
	ask := func(target int) {
		if r.Failure == nil && p.Way != nil {
			r.Failure = p.Way(pair.Source, target, after)
		}
		if r.Failure == nil && p.End != nil {
			r.Failure = p.End(target, after)
		}
	}
	ask(pair.Target)
	if len(peer.Backends) > 0 {
		ask(peer.Backends[p.Rand.IntN(len(peer.Backends))])
	}
	passed := func(s checkup.Stage) bool {
		return r.Failure == nil ||
			slices.Index(checkup.ConnectionStages, s) < slices.Index(checkup.ConnectionStages, r.Failure.Stage)
	}
	micros := func() int64 { return int64(200 + p.Rand.IntN(300)) }
	if peer.Family == checkup.AnyIPFamily && passed(checkup.StageResolve) {
		r.Delays.Resolve = micros()
	}
	if passed(checkup.StageConnect) {
		r.Delays.Connect = micros()
		if p.Delay != nil {
			r.Delays.Connect += p.Delay(pair.Source, pair.Target).Microseconds()
		}
	}
	if passed(checkup.StageHandshake) {
		r.Delays.Handshake = 3 * micros()
	}
	return r
}
