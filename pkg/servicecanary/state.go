// SPDX-License-Identifier: Apache-2.0

package servicecanary

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/nodestate"
	"github.com/checkplan/checkplan/pkg/services"
)

// state is what the API said of the Services, before and after everything was measured.
type state struct {
	w       *checkup.Worksheet
	roster  *checkup.Roster
	cluster *nodestate.Cluster
	before  services.States
	after   services.States
	// unknown says why nothing is known of the Services, and unknownAfter why it is not known what changed; nil if it is.
	unknown, unknownAfter *checkup.Cause
	// nodes have what each node has to serve, by its name and the Service's object.
	nodes map[string]map[string]*nodestate.ServiceEndpoints
}

// stateOf reads the facts of a record. A nil record has none.
func stateOf(w *checkup.Worksheet, roster *checkup.Roster, record *checkup.Record) *state {
	s := &state{w: w, roster: roster, nodes: map[string]map[string]*nodestate.ServiceEndpoints{}}
	before, err := snapshotOf(record, checkup.FactServicesBefore)
	if err == nil {
		s.cluster, err = clusterOf(w, before)
	}
	if err != nil {
		s.unknown = &checkup.Cause{Stage: checkup.StageCollect, Message: "what the API says of the Service is not known: " + err.Error()}
		return s
	}
	s.before = services.Digests(before.ServiceObjects, before.EndpointSlices)
	after, err := snapshotOf(record, checkup.FactServicesAfter)
	if err != nil {
		s.unknownAfter = &checkup.Cause{
			Stage: checkup.StageCollect, Reason: checkup.ReasonChanged,
			Message: "whether the Service changed while it was measured is not known: " + err.Error(),
		}
		return s
	}
	s.after = services.Digests(after.ServiceObjects, after.EndpointSlices)
	return s
}

// snapshotOf returns the Services of a fact.
func snapshotOf(record *checkup.Record, unit string) (*cluster.Snapshot, error) {
	if record != nil {
		for _, f := range record.Facts {
			if f.Unit != unit {
				continue
			}
			if f.Cause != nil {
				return nil, fmt.Errorf("%s", f.Cause.Message)
			}
			var s cluster.Snapshot
			if err := json.Unmarshal(f.Content, &s); err != nil {
				return nil, fmt.Errorf("read the fact %q: %w", unit, err)
			}
			return &s, nil
		}
	}
	return nil, fmt.Errorf("the probe task did not read it")
}

// clusterOf is the cluster of which the nodes have states: those of the worksheet, with their zones.
func clusterOf(w *checkup.Worksheet, s *cluster.Snapshot) (*nodestate.Cluster, error) {
	c, err := nodestate.New(nodestate.Options{})
	if err != nil {
		return nil, err
	}
	for i := range s.ServiceObjects {
		c.SetService(&s.ServiceObjects[i])
	}
	for i := range s.EndpointSlices {
		c.SetSlice(&s.EndpointSlices[i])
	}
	for _, e := range w.Sources {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: e.Node, Labels: map[string]string{}}}
		if e.Zone != "" {
			node.Labels[corev1.LabelTopologyZone] = e.Zone
		}
		c.SetNode(node)
	}
	return c, nil
}

// object is the namespace and name of the Service that a target is; empty if it was not created.
func (s *state) object(target int) string {
	if s.roster == nil || target >= len(s.roster.Targets) {
		return ""
	}
	return s.roster.Targets[target].Pod
}

// fixture is the Service that a target is; false if it is none.
func (s *state) fixture(target int) (checkup.ServiceFixture, bool) {
	name := s.w.Targets[target].OfService
	i := slices.IndexFunc(s.w.Services, func(f checkup.ServiceFixture) bool { return f.Name == name })
	if name == "" || i < 0 {
		return checkup.ServiceFixture{}, false
	}
	return s.w.Services[i], true
}

// must is what a node has to do with the traffic of one pair.
type must struct {
	action nodestate.Action
	// endpoints are the addresses of those that it may use, sorted.
	endpoints []string
	// one says that the node must use the same one for all connections.
	one bool
}

// of returns what the source's node has to do with a pair to a Service; false if the Service has no such port.
func (s *state) of(p checkup.Pair) (must, bool) {
	node := s.w.Sources[p.Source].Node
	states, ok := s.nodes[node]
	if !ok {
		states = map[string]*nodestate.ServiceEndpoints{}
		for _, m := range s.cluster.State(node) {
			states[m.Namespace+"/"+m.Name] = m
		}
		s.nodes[node] = states
	}
	service := states[s.object(p.Target)]
	if service == nil {
		return must{}, false
	}
	for _, f := range service.Families {
		for _, port := range f.Ports {
			if checkup.IPFamily(f.Family) != p.Family || port.Protocol != protocols[p.Transport] {
				continue
			}
			m := must{action: port.Internal, one: service.AffinitySeconds > 0}
			inside := len(s.w.Targets[p.Target].Hosts) > 0 // node ports, from a pod of the node
			if inside {
				m.action = port.Inside
			}
			for _, e := range port.Endpoints {
				if inside && e.Inside || !inside && e.Internal {
					m.endpoints = append(m.endpoints, e.Address)
				}
			}
			slices.Sort(m.endpoints)
			return m, true
		}
	}
	return must{}, false
}

var protocols = map[checkup.Transport]nodestate.Protocol{checkup.TCP: nodestate.TCP, checkup.UDP: nodestate.UDP}

// changed reports whether the Service that a target is, or its EndpointSlices of a family, changed while it was
// measured.
func (s *state) changed(p checkup.Pair) bool {
	object := s.object(p.Target)
	return s.before.Of(object, p.Family) != s.after.Of(object, p.Family)
}
