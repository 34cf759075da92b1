// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"cmp"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// State computes the state of a node from scratch: one message per Service that a proxy serves, in the order of
// namespace and name. A node that the cluster does not have is one without a zone and addresses. Callers must not
// change the messages.
func (c *Cluster) State(node string) []*ServiceEndpoints {
	state := make([]*ServiceEndpoints, 0, len(c.services))
	for _, s := range c.services {
		if message := c.serve(s, node); message != nil {
			state = append(state, message)
		}
	}
	slices.SortFunc(state, byKey)
	return state
}

func byKey(s, t *ServiceEndpoints) int {
	return cmp.Or(cmp.Compare(s.Namespace, t.Namespace), cmp.Compare(s.Name, t.Name))
}

// serve computes the message of one Service for one node. It is nil if no proxy serves the Service.
func (c *Cluster) serve(s *service, name string) *ServiceEndpoints {
	if s.object == nil {
		return nil
	}
	message, n := s.object.message, c.nodes[name]
	for f, own := range s.object.families {
		if own.clusterIP == "" {
			continue
		}
		groups := s.grouped(f)
		served := Family{
			Family: familyNames[f], ClusterIP: own.clusterIP, ExternalIPs: own.externalIPs,
			Ports: slices.Clone(s.object.ports),
		}
		for _, addr := range own.loadBalancers {
			served.LoadBalancerIPs = append(served.LoadBalancerIPs, addr.String())
		}
		served.LoadBalancerSources = own.allowed(n.address(f))
		if message.HealthCheckNodePort != 0 {
			served.HealthyEndpoints = healthy(groups, name)
			served.NodePortPrefixes = c.nodePortPrefixes(f, n)
		}
		for i := range served.Ports {
			p := &served.Ports[i]
			accessible := p.NodePort != 0 || len(own.loadBalancers) > 0 || len(own.externalIPs) > 0
			if p.NodePort != 0 {
				served.NodePortPrefixes = c.nodePortPrefixes(f, n)
			}
			decide(p, groups[portKey{p.Name, p.Protocol}].of(name), policies{
				internal: message.InternalTrafficToLocal, external: message.ExternalTrafficToLocal, accessible: accessible,
			}, name, n.zone)
		}
		message.Families = append(message.Families, served)
	}
	return &message
}

// policies of a port: internal and external are true for Local, accessible if the port has external addresses.
type policies struct{ internal, external, accessible bool }

// tally counts the endpoints of a port that are candidates for a node.
type tally struct {
	ready, terminating           int // of the whole cluster
	localReady, localTerminating int
	nodeHints, zoneHints         int // ready endpoints that have a hint
	forNode, forZone             int // ready endpoints whose hint matches
}

// decide sets the actions and endpoints of a port. Members have each address and port once.
func decide(p *Port, members []member, policy policies, node, zone string) {
	var t tally
	for _, m := range members {
		t.count(m.endpoint, node, zone)
	}
	hints, _ := t.hints()
	// The endpoints of a port in the terms of policies: Cluster is any endpoint, Local is one of this node.
	cluster := func(e *endpoint) bool {
		switch {
		case t.ready == 0:
			return e.terminating
		case !e.ready:
			return false
		case hints == NodeHints:
			return slices.Contains(e.nodes, node)
		case hints == ZoneHints:
			return slices.Contains(e.zones, zone)
		}
		return true
	}
	local := func(e *endpoint) bool {
		if t.localReady == 0 {
			return e.local(node) && e.terminating
		}
		return e.local(node) && e.ready
	}
	usable := func(toLocal bool, e *endpoint) bool {
		if toLocal {
			return local(e)
		}
		return cluster(e)
	}
	action := func(toLocal bool) Action {
		switch {
		case t.ready+t.terminating == 0:
			return Reject
		case toLocal && t.localReady+t.localTerminating == 0:
			return Drop
		}
		return Forward
	}

	p.Internal = action(policy.internal)
	if policy.accessible {
		p.External, p.Inside = action(policy.external), action(false)
	}
	for _, m := range members {
		e := Endpoint{Address: m.text, Port: int32(m.addr.Port()), Local: m.local(node)}
		e.Internal = usable(policy.internal, m.endpoint)
		if policy.accessible {
			e.External, e.Inside = usable(policy.external, m.endpoint), usable(false, m.endpoint)
		}
		switch {
		case e.Internal || e.External || e.Inside:
			p.Endpoints = append(p.Endpoints, e)
		case p.Protocol == UDP && m.serving:
			p.Established = append(p.Established, e)
		}
	}
}

func (t *tally) count(e *endpoint, node, zone string) {
	local := e.local(node)
	switch {
	case e.ready:
		t.ready++
		if local {
			t.localReady++
		}
	case e.terminating:
		t.terminating++
		if local {
			t.localTerminating++
		}
		return
	default:
		return
	}
	if len(e.nodes) > 0 {
		t.nodeHints++
	}
	if slices.Contains(e.nodes, node) {
		t.forNode++
	}
	if len(e.zones) > 0 {
		t.zoneHints++
	}
	if slices.Contains(e.zones, zone) {
		t.forZone++
	}
}

// hints are those that count, and how many ready endpoints have a matching one.
func (t *tally) hints() (hints Hints, matching int) {
	switch {
	case t.ready == 0:
	case t.nodeHints == t.ready && t.forNode > 0:
		return NodeHints, t.forNode
	case t.zoneHints == t.ready && t.forZone > 0:
		return ZoneHints, t.forZone
	}
	return NoHints, 0
}

// Hints are the topology hints by which a node narrows the ready endpoints of a port.
type Hints string

const (
	NoHints   Hints = ""     // all ready endpoints are used
	NodeHints Hints = "node" // those with a hint for this node
	ZoneHints Hints = "zone" // those with a hint for the node's zone
)

// Choice is how a node chooses among the endpoints of a port: the reasons of Port's actions and of Endpoint's marks,
// for people.
type Choice struct {
	// InternalToLocal and ExternalToLocal are the policies of the Service, as in ServiceEndpoints.
	InternalToLocal bool `json:"internalToLocal,omitempty"`
	ExternalToLocal bool `json:"externalToLocal,omitempty"`
	// Ready is the number of endpoints in the cluster that are ready, and Terminating that of those that serve while they
	// terminate. The latter are used only if Ready is 0.
	Ready       int `json:"ready,omitempty"`
	Terminating int `json:"terminating,omitempty"`
	// Hints narrow what a policy Cluster may use to Hinted of the ready endpoints. Policies Local ignore them.
	Hints  Hints `json:"hints,omitempty"`
	Hinted int   `json:"hinted,omitempty"`
}

// Choice returns how a node chooses among the endpoints of a Service's port in one family. It is false if no proxy
// serves the port.
func (c *Cluster) Choice(node, namespace, name string, f IPFamily, port string, protocol Protocol) (Choice, bool) {
	s, n := c.services[types.NamespacedName{Namespace: namespace, Name: name}], slices.Index(familyNames[:], f)
	is := func(p Port) bool { return p.Name == port && p.Protocol == protocol }
	if s == nil || s.object == nil || n < 0 || s.object.families[n].clusterIP == "" ||
		!slices.ContainsFunc(s.object.ports, is) {
		return Choice{}, false
	}
	var t tally
	for _, m := range s.grouped(n)[portKey{port, protocol}].of(node) {
		t.count(m.endpoint, node, c.nodes[node].zone)
	}
	choice := Choice{
		InternalToLocal: s.object.message.InternalTrafficToLocal, ExternalToLocal: s.object.message.ExternalTrafficToLocal,
		Ready: t.ready, Terminating: t.terminating,
	}
	choice.Hints, choice.Hinted = t.hints()
	return choice, true
}

// Names reports whether an EndpointSlice of a Service names an endpoint in one family, whatever its conditions and
// hints.
func (c *Cluster) Names(namespace, name string, f IPFamily, endpoint netip.AddrPort) bool {
	s, n := c.services[types.NamespacedName{Namespace: namespace, Name: name}], slices.Index(familyNames[:], f)
	if s == nil || n < 0 {
		return false
	}
	for _, g := range s.grouped(n) {
		if slices.ContainsFunc(g.members, func(m member) bool { return m.addr == endpoint }) {
			return true
		}
	}
	return false
}

// healthy counts the addresses of ready endpoints on a node, whatever their ports.
func healthy(groups map[portKey]group, node string) int32 {
	addrs := map[netip.Addr]bool{}
	for _, g := range groups {
		for _, m := range g.of(node) {
			if m.ready && m.local(node) {
				addrs[m.endpoint.addr] = true
			}
		}
	}
	return int32(len(addrs))
}

// allowed returns the sources that may use the load balancer's addresses on a node with an address.
func (f *family) allowed(address netip.Addr) []string {
	if len(f.loadBalancers) == 0 || len(f.sources) == 0 {
		return nil
	}
	var allowed []string
	for _, p := range f.sources {
		allowed = append(allowed, p.String())
	}
	if slices.ContainsFunc(f.sources, func(p netip.Prefix) bool { return p.Contains(address) }) {
		for _, addr := range f.loadBalancers {
			allowed = append(allowed, netip.PrefixFrom(addr, addr.BitLen()).String())
		}
	}
	return sorted(allowed)
}

// loopback is the address of a node that has none, as in kube-proxy.
var loopback = [2]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}

func (n node) address(f int) netip.Addr {
	if n.primary[f].IsValid() {
		return n.primary[f]
	}
	return loopback[f]
}

// nodePortPrefixes returns where node ports answer. As in kube-proxy, "primary" on a node without an address of the
// family means all addresses.
func (c *Cluster) nodePortPrefixes(f int, n node) []string {
	if !c.primary {
		return c.nodePorts[f]
	}
	address := n.address(f)
	if address.IsLoopback() {
		return []string{allPrefix[f]}
	}
	return []string{netip.PrefixFrom(address, address.BitLen()).String()}
}
