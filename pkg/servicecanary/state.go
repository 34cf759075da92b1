// SPDX-License-Identifier: Apache-2.0

package servicecanary

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/nodestate"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// state is what the API said of the Services at some moments: before and after everything was measured, and at the turn
// of the worksheet.
type state struct {
	w      *checkup.Worksheet
	roster *checkup.Roster
	// turning are the Services of the worksheet whose endpoints change at the turn.
	turning               map[string]bool
	before, turned, after *moment
	// unknown says why nothing is known of the Services, unknownTurned why not of the turn, and unknownAfter why it is not
	// known what changed; nil if it is.
	unknown, unknownTurned, unknownAfter *checkup.Cause
}

// moment is what the API said of the Services at one moment.
type moment struct {
	cluster *nodestate.Cluster
	digests servicecheck.States
	// nodes have what each node has to serve, by its name and the Service's object.
	nodes map[string]map[string]*nodestate.ServiceEndpoints
}

// stateOf reads the facts of a record. A nil record has none.
func stateOf(w *checkup.Worksheet, roster *checkup.Roster, record *checkup.Record) *state {
	s := &state{w: w, roster: roster, turning: w.Turning()}
	read := func(unit string, reason checkup.Reason, what string) (*moment, *checkup.Cause) {
		m, err := momentOf(w, record, unit)
		if err != nil {
			return nil, &checkup.Cause{
				Stage: checkup.StageCollect, Reason: reason, Message: what + ": " + err.Error(),
			}
		}
		return m, nil
	}
	s.before, s.unknown = read(checkup.FactServicesBefore, "", "cannot tell what the API says of the Service")
	s.turned, s.unknownTurned = read(checkup.FactServicesTurned, "",
		"cannot tell what the API says of the Service since its endpoint left")
	s.after, s.unknownAfter = read(checkup.FactServicesAfter, checkup.ReasonChanged,
		"cannot tell whether the Service changed while it was measured")
	return s
}

// momentOf reads a fact of a record.
func momentOf(w *checkup.Worksheet, record *checkup.Record, unit string) (*moment, error) {
	s, err := snapshotOf(record, unit)
	if err != nil {
		return nil, err
	}
	m := &moment{
		digests: servicecheck.Digests(s.ServiceObjects, s.EndpointSlices),
		nodes:   map[string]map[string]*nodestate.ServiceEndpoints{},
	}
	m.cluster, err = clusterOf(w, s)
	return m, err
}

// state is what a node has to serve, by the Service's object.
func (m *moment) state(node string) map[string]*nodestate.ServiceEndpoints {
	states, ok := m.nodes[node]
	if !ok {
		states = map[string]*nodestate.ServiceEndpoints{}
		for _, e := range m.cluster.State(node) {
			states[e.Namespace+"/"+e.Name] = e
		}
		m.nodes[node] = states
	}
	return states
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

// must is what a node has to do with the traffic of one pair.
type must struct {
	action nodestate.Action
	// endpoints are the addresses of those that it may use, sorted.
	endpoints []string
	// one says that the node must use the same one for all connections.
	one bool
	// preserved says that the endpoint must see the source address with which the connection arrived at the node.
	preserved bool
}

// turns reports whether the endpoints of a pair's Service change at the turn.
func (s *state) turns(p checkup.Pair) bool {
	service, _ := s.w.ServiceOf(p.Target)
	_, turns := s.turning[service.Name]
	return turns
}

// of returns what has to be done with a pair to a Service, by the source's node, or by the one whose node port it is;
// false if the Service has no such port at this moment.
func (s *state) of(m *moment, p checkup.Pair) (must, bool) {
	source, at := s.w.Sources[p.Source].Node, s.w.Targets[p.Target].Node
	service := m.state(cmp.Or(at, source))[s.object(p.Target)]
	if service == nil {
		return must{}, false
	}
	for _, f := range service.Families {
		for _, port := range f.Ports {
			if checkup.IPFamily(f.Family) != p.Family || port.Protocol != protocols[p.Transport] {
				continue
			}
			m := must{action: port.Internal, one: service.AffinitySeconds > 0}
			usable := func(e nodestate.Endpoint) bool { return e.Internal }
			switch at {
			case "":
			case source: // its node port, from a pod of the node
				m.action, usable = port.Inside, func(e nodestate.Endpoint) bool { return e.Inside }
			default:
				m.action, usable = port.External, func(e nodestate.Endpoint) bool { return e.External }
				m.preserved = service.ExternalTrafficToLocal
			}
			for _, e := range port.Endpoints {
				if usable(e) {
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
// measured. Of one that turns, it is who may answer that must not have changed since: a terminating endpoint ends.
func (s *state) changed(p checkup.Pair) bool {
	if s.turns(p) {
		turned, _ := s.of(s.turned, p)
		after, exists := s.of(s.after, p)
		return !exists || turned.action != after.action || !slices.Equal(turned.endpoints, after.endpoints)
	}
	object := s.object(p.Target)
	return s.before.digests.Of(object, p.Family) != s.after.digests.Of(object, p.Family)
}
