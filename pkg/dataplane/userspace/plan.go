// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"cmp"
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

// maxPlaces bounds a Layout.
const maxPlaces = 50_000

// Want returns what serves a state on a node, and what of the state cannot be served: protocols other than TCP and UDP,
// and see proxy.Sites.
func Want(state *proxy.State, node proxy.Node) (*Layout, []string) {
	w := wanted{layout: &Layout{Frontends: map[Place]*Frontend{}}, near: map[dataplane.Family][]netip.Prefix{}}
	for _, family := range proxy.Families {
		if prefix, ok := node.Pods.Prefix(family); ok {
			w.near[family] = append(w.near[family], prefix)
		}
		for _, a := range node.Addresses {
			if of(a, family) {
				w.near[family] = append(w.near[family], single(a))
			}
		}
	}
	served := proxy.State{NodePorts: state.NodePorts}
	for i := range state.Ports {
		if p := &state.Ports[i]; p.Protocol == "TCP" || p.Protocol == "UDP" {
			served.Ports = append(served.Ports, *p)
		} else {
			w.unserved.Add("%s is not served: the mode userspace has no %s", p, p.Protocol)
		}
	}
	for _, site := range proxy.Sites(&served, node, &w.unserved) {
		w.add(site)
	}
	slices.SortFunc(w.layout.Addresses, netip.Addr.Compare)
	w.layout.Addresses = slices.Compact(w.layout.Addresses)
	return w.layout, w.unserved.Problems
}

type wanted struct {
	layout   *Layout
	unserved proxy.Unserved
	// near has each family's addresses of the node and of its pods.
	near map[dataplane.Family][]netip.Prefix
}

// add adds a place, unless connections to it are refused.
func (w *wanted) add(site proxy.Site) {
	p, place := site.Port, Place{site.Port.Protocol, site.At}
	if len(w.layout.Frontends) >= maxPlaces {
		w.unserved.Add("%s of %s is not served: there are %d others", place, p, maxPlaces)
		return
	}
	near := w.near[p.Family]
	if site.Own { // the node's own connections to the address come from it
		w.layout.Addresses = append(w.layout.Addresses, site.At.Addr())
		near = append(slices.Clone(near), single(site.At.Addr()))
	}
	inside, outside, sources := site.Inside.Action, site.Outside.Action, site.Sources
	if inside == dataplane.Reject && outside == dataplane.Reject {
		return
	}
	f := Frontend{
		Service: p.String(), Affinity: time.Duration(p.AffinitySeconds) * time.Second,
		Inside: site.Inside.Endpoints, Outside: site.Outside.Endpoints,
	}
	if p.Protocol == "UDP" {
		f.Serving = p.Serving()
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
	c.Add, c.Remove = proxy.Assign(addresses, want.Addresses)
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
	for _, places := range [][]Place{c.Close, c.Set, c.Open} {
		slices.SortFunc(places, Place.compare)
	}
	return c
}
