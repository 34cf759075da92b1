// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"net"
	"slices"
	"strconv"

	"github.com/checkplan/checkplan/pkg/nodestate/api"
)

// Store turns full states into changes. The zero value holds the empty state.
type Store struct {
	state []*api.ServiceEndpoints
}

// Op is what a change does.
type Op string

// The operations.
const (
	Create Op = "create"
	Update Op = "update"
	Delete Op = "delete"
)

// Change is one difference between two states. It is about an object of one of three levels:
//
//   - an endpoint, if Endpoint is set; its key is in Service, Family, Port and itself
//   - else a port in one family, if Port is set: all of it except its Endpoints; those of Established are a part of it
//   - else a Service: all of it except the ports of its families
//
// The messages are the new ones, or the old ones if Op is Delete.
type Change struct {
	Op       Op
	Service  *api.ServiceEndpoints
	Family   *api.Family
	Port     *api.Port
	Endpoint *api.Endpoint
}

// String is for logs: "create endpoint shop/web IPv4 http/TCP 10.0.0.2:8080".
func (c Change) String() string {
	level, text := "service", c.Service.Namespace+"/"+c.Service.Name
	if c.Port != nil {
		level, text = "port", fmt.Sprintf("%s %s %s/%s", text, c.Family.Family, c.Port.Name, c.Port.Protocol)
	}
	if c.Endpoint != nil {
		level, text = "endpoint", text+" "+net.JoinHostPort(c.Endpoint.Address, strconv.Itoa(int(c.Endpoint.Port)))
	}
	return fmt.Sprintf("%s %s %s", c.Op, level, text)
}

// The phases of a list of changes. After each change, every endpoint has its port, and every port its Service and the
// Service's family. What goes makes room, so that a new Service can have the address or the node port of one that is
// gone. But in a port that stays, new endpoints come before old ones go, so that it is not without any in between.
const (
	endpointsOfPortsThatGo = iota
	portsThatGo
	servicesThatGo
	servicesThatCome
	portsThatCome
	endpointsThatCome
	endpointsThatGo
	phases
)

type changes [phases][]Change

// Set replaces the state, and returns what is different. If two Services of the state have the same name, the last one
// counts. The messages must not be written to afterwards.
func (s *Store) Set(state []*api.ServiceEndpoints) []Change {
	type key struct{ namespace, name string }
	now := make(map[key]*api.ServiceEndpoints, len(state))
	for _, n := range state {
		now[key{n.Namespace, n.Name}] = n
	}
	before := make(map[key]*api.ServiceEndpoints, len(s.state))
	var all changes
	for _, old := range s.state {
		k := key{old.Namespace, old.Name}
		if before[k] = old; now[k] == nil {
			all.compare(old, &api.ServiceEndpoints{})
			all.add(servicesThatGo, Change{Op: Delete, Service: old})
		}
	}
	s.state = make([]*api.ServiceEndpoints, 0, len(now))
	for _, n := range state {
		k := key{n.Namespace, n.Name}
		if now[k] != n {
			continue // a duplicate
		}
		s.state = append(s.state, n)
		old := before[k]
		if old == nil {
			all.add(servicesThatCome, Change{Op: Create, Service: n})
			old = &api.ServiceEndpoints{}
		} else if !equalServices(old, n) {
			all.add(servicesThatCome, Change{Op: Update, Service: n})
		}
		all.compare(old, n)
	}
	return slices.Concat(all[:]...)
}

func (all *changes) add(phase int, c Change) { all[phase] = append(all[phase], c) }

// compare adds the changes of the ports and endpoints of one Service.
func (all *changes) compare(old, now *api.ServiceEndpoints) {
	type key struct {
		family   api.IPFamily
		name     string
		protocol api.Protocol
	}
	ports := map[key]Change{}
	for _, f := range old.Families {
		for _, p := range f.Ports {
			ports[key{f.Family, p.Name, p.Protocol}] = Change{Op: Delete, Service: old, Family: f, Port: p}
		}
	}
	for _, f := range now.Families {
		for _, p := range f.Ports {
			k := key{f.Family, p.Name, p.Protocol}
			c := Change{Op: Create, Service: now, Family: f, Port: p}
			was, found := ports[k]
			if found {
				c.Op = Update
				delete(ports, k)
			}
			if !found || !equalPorts(was.Port, p) {
				all.add(portsThatCome, c)
			}
			all.compareEndpoints(was, c)
		}
	}
	for _, f := range old.Families { // in their order, not the map's
		for _, p := range f.Ports {
			if was, gone := ports[key{f.Family, p.Name, p.Protocol}]; gone && was.Port == p {
				all.add(portsThatGo, was)
				for _, e := range p.Endpoints {
					was.Endpoint = e
					all.add(endpointsOfPortsThatGo, was)
				}
			}
		}
	}
}

// compareEndpoints adds the changes of the endpoints of one port. The port of was is nil if it is new.
func (all *changes) compareEndpoints(was, now Change) {
	var old []*api.Endpoint
	if was.Port != nil {
		old = was.Port.Endpoints
	}
	if slices.EqualFunc(old, now.Port.Endpoints, equalEndpoints) {
		return
	}
	type key struct {
		address string
		port    int32
	}
	before := make(map[key]*api.Endpoint, len(old))
	for _, e := range old {
		before[key{e.Address, e.Port}] = e
	}
	for _, e := range now.Port.Endpoints {
		k := key{e.Address, e.Port}
		had := before[k]
		delete(before, k)
		now.Endpoint = e
		if now.Op = Create; had != nil {
			now.Op = Update
		}
		if had == nil || !equalEndpoints(had, e) {
			all.add(endpointsThatCome, now)
		}
	}
	for _, e := range old {
		if before[key{e.Address, e.Port}] == e {
			was.Endpoint = e
			all.add(endpointsThatGo, was)
		}
	}
}

func equalServices(s, t *api.ServiceEndpoints) bool {
	return s.Type == t.Type && s.ExternalTrafficToLocal == t.ExternalTrafficToLocal &&
		s.InternalTrafficToLocal == t.InternalTrafficToLocal && s.AffinitySeconds == t.AffinitySeconds &&
		s.HealthCheckNodePort == t.HealthCheckNodePort && slices.EqualFunc(s.Families, t.Families, equalFamilies)
}

func equalFamilies(f, g *api.Family) bool {
	return f.Family == g.Family && f.ClusterIP == g.ClusterIP && slices.Equal(f.ExternalIPs, g.ExternalIPs) &&
		slices.Equal(f.LoadBalancerIPs, g.LoadBalancerIPs) &&
		slices.Equal(f.LoadBalancerSources, g.LoadBalancerSources) &&
		slices.Equal(f.NodePortPrefixes, g.NodePortPrefixes) && f.HealthyEndpoints == g.HealthyEndpoints
}

func equalPorts(p, q *api.Port) bool {
	return p.Port == q.Port && p.NodePort == q.NodePort && p.Internal == q.Internal && p.External == q.External &&
		p.Inside == q.Inside && slices.EqualFunc(p.Established, q.Established, equalEndpoints)
}

func equalEndpoints(e, f *api.Endpoint) bool {
	return e.Address == f.Address && e.Port == f.Port && e.Local == f.Local && e.Internal == f.Internal &&
		e.External == f.External && e.Inside == f.Inside
}
