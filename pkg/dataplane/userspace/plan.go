// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
)

// Place is where the proxy listens.
type Place struct {
	Protocol string // TCP or UDP
	At       netip.AddrPort
}

func (p Place) String() string { return p.Protocol + " " + p.At.String() }

func (p Place) compare(o Place) int {
	return cmp.Or(cmp.Compare(p.Protocol, o.Protocol), p.At.Compare(o.At))
}

// Frontend is what is served at a Place.
type Frontend struct {
	// Service is the port of the Service, as proxy.Port words it.
	Service string
	// Affinity is for how long a client keeps its endpoint. 0: not at all.
	Affinity time.Duration
	// Near has the addresses of clients that are the node or its pods: they use Inside, all others Outside. nil: all use
	// Outside.
	Near []netip.Prefix
	// Inside and Outside are sorted. Without endpoints, connections are closed at once.
	Inside, Outside []netip.AddrPort
	// Serving are the endpoints where a session of UDP that exists may stay, sorted; nil for TCP.
	Serving []netip.AddrPort
	// Open to all clients; else only to those in From. The packets of others are dropped.
	Open bool
	From []netip.Prefix
}

// endpoints returns those for a client.
func (f *Frontend) endpoints(client netip.Addr) []netip.AddrPort {
	if contains(f.Near, client) {
		return f.Inside
	}
	return f.Outside
}

func (f *Frontend) equal(o *Frontend) bool {
	return f.Service == o.Service && f.Affinity == o.Affinity && slices.Equal(f.Near, o.Near) &&
		slices.Equal(f.Inside, o.Inside) && slices.Equal(f.Outside, o.Outside) &&
		slices.Equal(f.Serving, o.Serving) && f.Open == o.Open && slices.Equal(f.From, o.From)
}

// Layout is what has to be there.
type Layout struct {
	// Addresses are those of Services that the interface has, sorted.
	Addresses []netip.Addr
	Frontends map[Place]*Frontend
}

// Limits of a Layout and of the texts about it.
const (
	maxPlaces   = 50_000
	maxUnserved = 100
)

// unserved has the first maxUnserved texts.
type unserved []string

func (u *unserved) add(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if len(*u) < maxUnserved && !slices.Contains(*u, text) {
		*u = append(*u, text)
	}
}

// Want returns what serves a state on a node, and what of the state cannot be served: protocols other than TCP and UDP,
// and addresses with which the proxy would connect to itself, or cut the node off from what it connects to. Who is
// right if an address of a Service is that of an endpoint, too?
//
//   - A cluster IP and a node port: they can be nobody else's, and anybody could claim them as an endpoint.
//   - The endpoint before external and load balancer IPs: these are any addresses, such as that of another node, with
//     the API server on it. On the interface, none of its ports could be reached any more.
func Want(state *proxy.State, node proxy.Node) (*Layout, []string) {
	w := wanted{
		layout: &Layout{Frontends: map[Place]*Frontend{}}, near: map[dataplane.Family][]netip.Prefix{},
		node: map[netip.Addr]bool{}, clusterIPs: map[netip.Addr]bool{}, hosts: map[netip.Addr]bool{},
		nodePorts: map[Place]bool{}, endpoints: map[Place]bool{},
	}
	for _, a := range node.Addresses {
		w.node[a] = true
	}
	nodePorts := map[dataplane.Family][]netip.Addr{}
	for _, family := range proxy.Families {
		if at, ok := state.NodePorts[family]; ok {
			nodePorts[family] = nodePortAddresses(at, node.Addresses, family)
		}
		if prefix, ok := node.Pods.Prefix(family); ok {
			w.near[family] = append(w.near[family], prefix)
		}
		for _, a := range node.Addresses {
			if of(a, family) {
				w.near[family] = append(w.near[family], single(a))
			}
		}
	}
	var ports []*proxy.Port
	for _, port := range state.Ports { // copies
		p := &port
		switch {
		case p.Protocol != "TCP" && p.Protocol != "UDP":
			w.unserved.add("%s is not served: the mode userspace has no %s", p, p.Protocol)
			continue
		case !w.node[p.ClusterIP]:
			w.clusterIPs[p.ClusterIP] = true
		}
		ports = append(ports, p)
		if p.NodePort == 0 {
			continue
		}
		for _, a := range nodePorts[p.Family] {
			w.nodePorts[Place{p.Protocol, netip.AddrPortFrom(a, p.NodePort)}] = true
		}
	}
	for _, p := range ports {
		for _, t := range []*proxy.Traffic{&p.Internal, &p.External, &p.Inside} {
			t.Endpoints = w.reachable(p, t.Endpoints)
			for _, e := range t.Endpoints {
				w.endpoints[Place{p.Protocol, e}], w.hosts[e.Addr()] = true, true
			}
		}
	}
	for _, p := range ports {
		base := Frontend{Service: p.String(), Affinity: time.Duration(p.AffinitySeconds) * time.Second}
		if p.Protocol == "UDP" {
			base.Serving = p.Serving()
		}
		cluster, other := base, base
		cluster.Inside, cluster.Outside = p.Internal.Endpoints, p.Internal.Endpoints
		other.Inside, other.Outside = p.Inside.Endpoints, p.External.Endpoints
		if w.node[p.ClusterIP] {
			w.unserved.add("cluster IP %s of %s is not served: the node has it on another interface", p.ClusterIP, p)
		} else {
			w.add(p, cluster, netip.AddrPortFrom(p.ClusterIP, p.Port), p.Internal.Action, p.Internal.Action, nil)
		}
		for _, a := range p.ExternalIPs {
			w.add(p, other, netip.AddrPortFrom(a, p.Port), p.Inside.Action, p.External.Action, nil)
		}
		for _, a := range p.LoadBalancerIPs {
			w.add(p, other, netip.AddrPortFrom(a, p.Port), p.Inside.Action, p.External.Action, p.Sources)
		}
		if p.NodePort == 0 {
			continue
		}
		for _, a := range nodePorts[p.Family] {
			w.add(p, other, netip.AddrPortFrom(a, p.NodePort), p.Inside.Action, p.External.Action, nil)
		}
	}
	slices.SortFunc(w.layout.Addresses, netip.Addr.Compare)
	w.layout.Addresses = slices.Compact(w.layout.Addresses)
	return w.layout, w.unserved
}

type wanted struct {
	layout   *Layout
	unserved unserved
	// near has each family's addresses of the node and of its pods.
	near map[dataplane.Family][]netip.Prefix
	// node has the node's addresses, hosts those of endpoints.
	node, clusterIPs, hosts map[netip.Addr]bool
	nodePorts, endpoints    map[Place]bool
}

// reachable returns the endpoints that are not the proxy itself.
func (w *wanted) reachable(p *proxy.Port, endpoints []netip.AddrPort) []netip.AddrPort {
	itself := func(e netip.AddrPort) bool { return w.clusterIPs[e.Addr()] || w.nodePorts[Place{p.Protocol, e}] }
	if !slices.ContainsFunc(endpoints, itself) {
		return endpoints
	}
	w.unserved.add("some endpoints of %s are not used: they are cluster IPs or node ports", p)
	return slices.DeleteFunc(slices.Clone(endpoints), itself)
}

// add adds a place, unless connections to it are refused. Inside and outside are what happens to clients of the node,
// and to all others. Sources are those that may connect; empty: all.
func (w *wanted) add(
	p *proxy.Port, f Frontend, at netip.AddrPort, inside, outside dataplane.Action, sources []netip.Prefix,
) {
	place, own := Place{p.Protocol, at}, !w.node[at.Addr()]
	switch {
	case own && w.hosts[at.Addr()] && !w.clusterIPs[at.Addr()], w.endpoints[place]:
		w.unserved.add("%s of %s is not served: it is an endpoint's address", place, p)
		return
	case len(w.layout.Frontends) >= maxPlaces:
		w.unserved.add("%s of %s is not served: there are %d others", place, p, maxPlaces)
		return
	}
	if own {
		w.layout.Addresses = append(w.layout.Addresses, at.Addr())
	}
	if inside == dataplane.Reject && outside == dataplane.Reject {
		return
	}
	near := w.near[p.Family]
	if own { // the node's own connections to the address come from it
		near = append(slices.Clone(near), single(at.Addr()))
	}
	switch {
	case inside == dataplane.Drop && outside == dataplane.Drop:
	case outside == dataplane.Drop && len(sources) == 0:
		f.From = near
	case outside == dataplane.Drop:
		f.From = intersection(near, sources)
	case len(sources) > 0:
		f.From = sources
	default:
		f.Open = true
	}
	if !slices.Equal(f.Inside, f.Outside) {
		f.Near = near
	}
	w.layout.Frontends[place] = &f
}

// nodePortAddresses returns the node's addresses at which a family has its node ports. Link-local addresses of IPv6
// have none: they are no address without an interface.
func nodePortAddresses(at proxy.NodePorts, node []netip.Addr, family dataplane.Family) []netip.Addr {
	list := node
	if !at.All {
		list = at.Addresses(node)
	}
	return slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool {
		return !of(a, family) || a.IsLoopback() || a.Is6() && a.IsLinkLocalUnicast()
	})
}

func of(a netip.Addr, family dataplane.Family) bool { return a.Is4() == (family == dataplane.IPv4) }

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func contains(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// intersection returns the prefixes of what is in both lists.
func intersection(a, b []netip.Prefix) []netip.Prefix {
	var list []netip.Prefix
	for _, p := range a {
		for _, q := range b {
			switch {
			case !p.Overlaps(q):
			case p.Bits() > q.Bits():
				list = append(list, p)
			default:
				list = append(list, q)
			}
		}
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	return slices.Compact(list)
}

// Change is what turns what is there into a Layout, in the order in which it is done. Lists are sorted.
type Change struct {
	// Close are the listeners that end. Set are those that serve something else; they lose no connection.
	Close []Place
	Add   []netip.Addr
	Set   []Place
	Open  []Place
	// Remove are the addresses that are nobody's any more.
	Remove []netip.Addr
}

// Difference compares what is there with what has to be: the addresses of the interface, and the listeners.
func Difference(addresses []netip.Addr, frontends map[Place]*Frontend, want *Layout) Change {
	var c Change
	has := map[netip.Addr]bool{}
	for _, a := range addresses {
		has[a] = true
		if _, ok := slices.BinarySearchFunc(want.Addresses, a, netip.Addr.Compare); !ok {
			c.Remove = append(c.Remove, a)
		}
	}
	for _, a := range want.Addresses {
		if !has[a] {
			c.Add = append(c.Add, a)
		}
	}
	for place := range frontends {
		if want.Frontends[place] == nil {
			c.Close = append(c.Close, place)
		}
	}
	for place, f := range want.Frontends {
		switch old := frontends[place]; {
		case old == nil:
			c.Open = append(c.Open, place)
		case !old.equal(f):
			c.Set = append(c.Set, place)
		}
	}
	slices.SortFunc(c.Remove, netip.Addr.Compare)
	for _, places := range [][]Place{c.Close, c.Set, c.Open} {
		slices.SortFunc(places, Place.compare)
	}
	return c
}
