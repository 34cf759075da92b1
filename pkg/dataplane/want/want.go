// SPDX-License-Identifier: Apache-2.0

// Package want says what the state of pkg/nodestate means for packets, in the terms of pkg/dataplane: the table that a
// node's proxy has to have.
package want

import (
	"net/netip"
	"slices"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/nodestate"
)

// Table returns what the proxy of a node in the mode has to do in one family. State is the node's, from
// nodestate.Cluster. Invalid addresses, which nodestate does not make, are skipped.
func Table(state []*nodestate.ServiceEndpoints, family dataplane.Family, mode dataplane.Mode) dataplane.Table {
	table := dataplane.Table{Mode: mode, Family: family, Frontends: []dataplane.Frontend{}}
	for _, s := range state {
		for i := range s.Families {
			f := &s.Families[i]
			if string(f.Family) != string(family) {
				continue
			}
			for j := range f.Ports {
				table.Frontends = append(table.Frontends, port(s, f, &f.Ports[j], mode)...)
			}
		}
	}
	table.Sort()
	return table
}

// kind of traffic, in the terms of nodestate.Port.
type kind struct {
	action     nodestate.Action
	may        func(nodestate.Endpoint) bool
	masquerade dataplane.Masquerade
}

func port(
	s *nodestate.ServiceEndpoints, f *nodestate.Family, p *nodestate.Port, mode dataplane.Mode,
) []dataplane.Frontend {
	if mode == dataplane.IPVS {
		return ipvs(s, f, p)
	}
	// Flags of the proxy decide whether connections to the cluster IP are masqueraded. All others are, because an answer
	// has to come back through this node, unless the policy is Local: then endpoints see who calls. The node itself
	// always is: the address that it calls may be its own, too.
	internal := kind{p.Internal, func(e nodestate.Endpoint) bool { return e.Internal }, dataplane.Either}
	external := kind{p.External, func(e nodestate.Endpoint) bool { return e.External }, dataplane.Rewritten}
	inside := kind{p.Inside, func(e nodestate.Endpoint) bool { return e.Inside }, dataplane.Rewritten}
	pod := inside
	if s.ExternalTrafficToLocal {
		external.masquerade, pod.masquerade = dataplane.Preserved, dataplane.Preserved
	}

	var all []dataplane.Frontend
	add := func(address string, number int32, sources []string, kinds [3]kind) {
		key, ok := frontendKey(p, address, number)
		if !ok {
			return
		}
		for i, k := range kinds {
			front := dataplane.Frontend{
				Key: key, From: dataplane.Origins[i], Service: s.Namespace + "/" + s.Name, PortName: p.Name,
				Action: dataplane.Action(k.action),
			}
			// These two modes differ only here. Without any endpoint, iptables refuses all sources alike; and it does not refuse
			// what the node itself sends to addresses that are not its own: such packets leave the node.
			if mode == dataplane.IPTables && k.action == nodestate.Reject && address != "" && address != f.ClusterIP &&
				dataplane.Origins[i] == dataplane.Node {
				front.Action = dataplane.Pass
			}
			if k.action == nodestate.Forward || k.action == nodestate.Reject && mode != dataplane.IPTables {
				front.Sources = parse(sources)
			}
			if k.action == nodestate.Forward {
				front.Endpoints, front.AffinitySeconds = endpoints(p, k.may), s.AffinitySeconds
				front.Masquerade = k.masquerade
			}
			if mode == dataplane.OwnIPVS && len(front.Sources) > 0 {
				front = served(front, sources, f.LoadBalancerIPs)
			}
			all = append(all, front)
		}
	}
	outside := [3]kind{external, pod, inside}
	add(f.ClusterIP, p.Port, nil, [3]kind{internal, internal, internal})
	for _, address := range f.ExternalIPs {
		add(address, p.Port, nil, outside)
	}
	for _, address := range f.LoadBalancerIPs {
		add(address, p.Port, f.LoadBalancerSources, outside)
	}
	if p.NodePort != 0 {
		add("", p.NodePort, nil, outside)
	}
	return all
}

// frontendKey is false for an invalid address. An empty one is that of a node port.
func frontendKey(p *nodestate.Port, address string, number int32) (dataplane.Key, bool) {
	key := dataplane.Key{Protocol: string(p.Protocol), Port: uint16(number)}
	if address == "" {
		return key, true
	}
	addr, err := netip.ParseAddr(address)
	key.Address = addr
	return key, err == nil
}

// served returns a frontend with sources as it is on a node that has its address: the node's own connections to it come
// from it, and no others do. The sources are those of the Service.
func served(f dataplane.Frontend, sources, loadBalancers []string) dataplane.Frontend {
	allowed, own := split(sources, loadBalancers)
	own = own || slices.ContainsFunc(allowed, func(p netip.Prefix) bool { return p.Contains(f.Address) })
	switch {
	case f.From == dataplane.Node && own:
		f.Sources = nil
	case f.From == dataplane.Node, len(allowed) == 0:
		return dataplane.Frontend{
			Key: f.Key, From: f.From, Service: f.Service, PortName: f.PortName, Action: dataplane.Drop,
		}
	default:
		f.Sources = dataplane.Prefixes(allowed)
	}
	return f
}

func endpoints(p *nodestate.Port, may func(nodestate.Endpoint) bool) []dataplane.Endpoint {
	var list []dataplane.Endpoint
	for _, e := range p.Endpoints {
		if addr, err := netip.ParseAddr(e.Address); err == nil && may(e) {
			list = append(list, dataplane.Endpoint{Address: netip.AddrPortFrom(addr, uint16(e.Port)), Hairpin: e.Local})
		}
	}
	slices.SortFunc(list, func(a, b dataplane.Endpoint) int { return a.Address.Compare(b.Address) })
	return list
}

func parse(sources []string) []netip.Prefix {
	var list []netip.Prefix
	for _, text := range sources {
		if p, err := netip.ParsePrefix(text); err == nil {
			list = append(list, p)
		}
	}
	return dataplane.Prefixes(list)
}
