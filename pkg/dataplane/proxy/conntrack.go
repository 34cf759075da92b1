// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/checkplan/checkplan/pkg/dataplane"
)

// UDP has no end of a connection: as long as a client sends, the kernel sends its packets to where the first one went,
// whatever the rules are now. So what went to an endpoint that ended, or to nobody because there were no rules, has to
// be forgotten. What went to an endpoint that still serves is not, although new connections may not go there any more:
// a change of a policy or of hints, or a pod that terminates slowly, cuts no connection of TCP, either.

// Frontend is where UDP packets of clients go.
type Frontend struct {
	Family dataplane.Family
	// Address is invalid for a node port.
	Address netip.Addr
	Port    uint16
}

// UDPCheck means: forget the connections to Frontend that go elsewhere than to one of Keep.
type UDPCheck struct {
	Frontend
	Keep []netip.AddrPort // sorted
}

// StaleUDP returns what has to be forgotten when the rules of a state have replaced those of an older one, in the order
// of frontends. The older one is nil if it is not known: then every frontend is compared.
func StaleUDP(older, newer *State) []UDPCheck {
	was, is := map[Frontend][]netip.AddrPort{}, frontends(newer)
	if older != nil {
		was = frontends(older)
	}
	var checks []UDPCheck
	for f, keep := range is {
		if before, ok := was[f]; !ok || !slices.Equal(before, keep) {
			checks = append(checks, UDPCheck{f, keep})
		}
	}
	for f := range was {
		if _, ok := is[f]; !ok {
			checks = append(checks, UDPCheck{Frontend: f})
		}
	}
	slices.SortFunc(checks, func(a, b UDPCheck) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), a.Address.Compare(b.Address), cmp.Compare(a.Port, b.Port))
	})
	return checks
}

// gone returns the checks of frontends that a state does not have.
func gone(all map[Frontend]bool, s *State) []UDPCheck {
	is := frontends(s)
	var checks []UDPCheck
	for f := range all {
		if _, ok := is[f]; !ok {
			checks = append(checks, UDPCheck{Frontend: f})
		}
	}
	return checks
}

func frontends(s *State) map[Frontend][]netip.AddrPort {
	all := map[Frontend][]netip.AddrPort{}
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.Protocol != "UDP" {
			continue
		}
		keep := p.Serving()
		all[Frontend{p.Family, p.ClusterIP, p.Port}] = keep
		for _, a := range slices.Concat(p.ExternalIPs, p.LoadBalancerIPs) {
			all[Frontend{p.Family, a, p.Port}] = keep
		}
		if p.NodePort != 0 {
			all[Frontend{p.Family, netip.Addr{}, p.NodePort}] = keep
		}
	}
	return all
}

// Stale answers for each connection whether it has to be forgotten.
type Stale struct {
	keep map[Frontend][]netip.AddrPort
	node map[netip.Addr]bool
}

// NewStale prepares the answers. Node has the node's addresses: a node port is one at these only.
func NewStale(checks []UDPCheck, node []netip.Addr) Stale {
	s := Stale{map[Frontend][]netip.AddrPort{}, map[netip.Addr]bool{}}
	for _, c := range checks {
		s.keep[c.Frontend] = c.Keep
	}
	for _, a := range node {
		s.node[a] = true
	}
	return s
}

// Families returns those whose connections have to be checked.
func (s Stale) Families() []dataplane.Family {
	found := map[dataplane.Family]bool{}
	for f := range s.keep {
		found[f.Family] = true
	}
	return slices.Sorted(maps.Keys(found))
}

// Is reports whether a UDP connection has to be forgotten: to is where the client sends, from is where the answers come
// from. If no rule rewrote the destination, they are equal.
func (s Stale) Is(family dataplane.Family, to, from netip.AddrPort) bool {
	keep, ok := s.keep[Frontend{family, to.Addr(), to.Port()}]
	if !ok && s.node[to.Addr()] {
		keep, ok = s.keep[Frontend{family, netip.Addr{}, to.Port()}]
	}
	if !ok {
		return false
	}
	_, kept := slices.BinarySearchFunc(keep, from, netip.AddrPort.Compare)
	return !kept
}
