// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"
	"slices"

	"github.com/checkplan/checkplan/pkg/dataplane"
)

// Site is an address and port at which a port of a Service is served by a proxy whose node has the addresses of
// Services, on an interface of the proxy's own (Device).
type Site struct {
	// Port has the endpoints that can be used: none of them is a Site.
	Port *Port
	At   netip.AddrPort
	// Own: the address is one of the interface. Else it is one that the node has anyway.
	Own bool
	// Cluster: it is the cluster IP.
	Cluster bool
	// Inside is what happens to connections from the node and from its pods, Outside to all others.
	Inside, Outside Traffic
	// Sources are the prefixes from which it may be used. Empty: all.
	Sources []netip.Prefix
}

// Sites returns where a state is served on a node, port by port, cluster IPs first, and adds to unserved what of the
// state cannot be: addresses with which the proxy would connect to itself, or cut the node off from what it connects
// to. Who is right if an address of a Service is that of an endpoint, too?
//
//   - A cluster IP and a node port: they can be nobody else's, and anybody could claim them as an endpoint.
//   - The endpoint before external and load balancer IPs: these are any addresses, such as that of another node, with
//     the API server on it. On the interface, none of its ports could be reached any more.
func Sites(state *State, node Node, unserved *Unserved) []Site {
	s := sites{
		unserved: unserved, node: map[netip.Addr]bool{}, clusterIPs: map[netip.Addr]bool{}, hosts: map[netip.Addr]bool{},
		nodePorts: map[socket]bool{}, endpoints: map[socket]bool{},
	}
	for _, a := range node.Addresses {
		s.node[a] = true
	}
	nodePorts := map[dataplane.Family][]netip.Addr{}
	for _, family := range Families {
		if at, ok := state.NodePorts[family]; ok {
			nodePorts[family] = at.at(node.Addresses, family)
		}
	}
	ports := slices.Clone(state.Ports)
	for i := range ports {
		p := &ports[i]
		if !s.node[p.ClusterIP] {
			s.clusterIPs[p.ClusterIP] = true
		}
		if p.NodePort == 0 {
			continue
		}
		for _, a := range nodePorts[p.Family] {
			s.nodePorts[socket{p.Protocol, netip.AddrPortFrom(a, p.NodePort)}] = true
		}
	}
	for i := range ports {
		p := &ports[i]
		for _, t := range []*Traffic{&p.Internal, &p.External, &p.Inside} {
			t.Endpoints = s.reachable(p, t.Endpoints)
			for _, e := range t.Endpoints {
				s.endpoints[socket{p.Protocol, e}], s.hosts[e.Addr()] = true, true
			}
		}
	}
	for i := range ports {
		p := &ports[i]
		if s.node[p.ClusterIP] {
			unserved.Add("cluster IP %s of %s is not served: the node has it on another interface", p.ClusterIP, p)
		} else {
			at := netip.AddrPortFrom(p.ClusterIP, p.Port)
			s.add(Site{Port: p, At: at, Cluster: true, Inside: p.Internal, Outside: p.Internal})
		}
		for _, a := range p.ExternalIPs {
			s.add(Site{Port: p, At: netip.AddrPortFrom(a, p.Port), Inside: p.Inside, Outside: p.External})
		}
		for _, a := range p.LoadBalancerIPs {
			s.add(Site{Port: p, At: netip.AddrPortFrom(a, p.Port), Inside: p.Inside, Outside: p.External, Sources: p.Sources})
		}
		if p.NodePort == 0 {
			continue
		}
		for _, a := range nodePorts[p.Family] {
			s.add(Site{Port: p, At: netip.AddrPortFrom(a, p.NodePort), Inside: p.Inside, Outside: p.External})
		}
	}
	return s.all
}

type socket struct {
	protocol string
	netip.AddrPort
}

type sites struct {
	all      []Site
	unserved *Unserved
	// node has the node's addresses, hosts those of endpoints.
	node, clusterIPs, hosts map[netip.Addr]bool
	nodePorts, endpoints    map[socket]bool
}

// reachable returns the endpoints that are not the proxy itself.
func (s *sites) reachable(p *Port, endpoints []netip.AddrPort) []netip.AddrPort {
	itself := func(e netip.AddrPort) bool { return s.clusterIPs[e.Addr()] || s.nodePorts[socket{p.Protocol, e}] }
	if !slices.ContainsFunc(endpoints, itself) {
		return endpoints
	}
	s.unserved.Add("some endpoints of %s are not used: they are cluster IPs or node ports", p)
	return slices.DeleteFunc(slices.Clone(endpoints), itself)
}

func (s *sites) add(site Site) {
	a := site.At.Addr()
	site.Own = !s.node[a]
	if site.Own && s.hosts[a] && !s.clusterIPs[a] || s.endpoints[socket{site.Port.Protocol, site.At}] {
		s.unserved.Add("%s %s of %s is not served: it is an endpoint's address", site.Port.Protocol, site.At, site.Port)
		return
	}
	s.all = append(s.all, site)
}

// at returns the node's addresses at which a family has its node ports. Link-local addresses of IPv6 have none: they
// are no address without an interface.
func (n NodePorts) at(node []netip.Addr, family dataplane.Family) []netip.Addr {
	list := node
	if !n.All {
		list = n.Addresses(node)
	}
	return slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool {
		return a.Is4() != (family == dataplane.IPv4) || a.IsLoopback() || a.Is6() && a.IsLinkLocalUnicast()
	})
}
