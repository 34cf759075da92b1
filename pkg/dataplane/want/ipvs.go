// SPDX-License-Identifier: Apache-2.0

package want

import (
	"net/netip"
	"slices"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/nodestate"
)

// ipvs returns the frontends of a port in the mode ipvs, in which a virtual server knows no origins. The names in
// comments are functions of k8s.io/kubernetes/pkg/proxy/ipvs in 1.35.
func ipvs(s *nodestate.ServiceEndpoints, f *nodestate.Family, p *nodestate.Port) []dataplane.Frontend {
	// syncEndpoint: the endpoints of this node if the policy is Local and there are some, else those of the cluster.
	// CategorizeEndpoints leaves these out if no traffic can use them.
	internal := endpoints(p, func(e nodestate.Endpoint) bool { return e.Internal })
	external := endpoints(p, func(e nodestate.Endpoint) bool { return e.External })
	cluster := endpoints(p, func(e nodestate.Endpoint) bool { return e.Inside })
	if len(internal) == 0 && s.InternalTrafficToLocal {
		internal = cluster
	}
	if len(external) == 0 && s.ExternalTrafficToLocal {
		external = cluster
	}
	// writeIptablesRules: what is in the sets of policy Local keeps its source, whoever connects.
	masquerade := dataplane.Rewritten
	if s.ExternalTrafficToLocal {
		masquerade = dataplane.Preserved
	}

	var all []dataplane.Frontend
	add := func(address string, number int32, to []dataplane.Endpoint, masquerade dataplane.Masquerade, sources []string) {
		key, ok := frontendKey(p, address, number)
		if !ok {
			return
		}
		allowed, own := split(sources, f.LoadBalancerIPs)
		for _, origin := range dataplane.Origins {
			front := dataplane.Frontend{
				Key: key, From: origin, Service: s.Namespace + "/" + s.Name, PortName: p.Name, Action: dataplane.Reject,
			}
			if len(to) > 0 {
				front.Action, front.Endpoints, front.Masquerade = dataplane.Forward, to, masquerade
				front.AffinitySeconds = s.AffinitySeconds
			}
			switch {
			case len(sources) == 0:
			case origin != dataplane.Node && len(allowed) > 0: // KUBE-PROXY-FIREWALL, before the virtual server
				front.Sources = dataplane.Prefixes(slices.Clone(allowed))
			// KUBE-IPVS-OUT-FILTER, after it: unless the node's address is in a range, what has the load balancer's own
			// address as its source is dropped. The node has no other one for it.
			case origin != dataplane.Node, front.Action == dataplane.Forward && !own:
				front = dataplane.Frontend{
					Key: key, From: origin, Service: front.Service, PortName: front.PortName, Action: dataplane.Drop,
				}
			}
			all = append(all, front)
		}
	}
	add(f.ClusterIP, p.Port, internal, dataplane.Either, nil)
	for _, address := range f.ExternalIPs {
		add(address, p.Port, external, masquerade, nil)
	}
	for _, address := range f.LoadBalancerIPs {
		add(address, p.Port, external, masquerade, f.LoadBalancerSources)
	}
	if p.NodePort != 0 {
		add("", p.NodePort, external, masquerade, nil)
	}
	return all
}

// split returns the prefixes from which packets can come, and whether the addresses of the load balancer are among
// sources: the node has these, so no packet from elsewhere has one as its source.
func split(sources, loadBalancers []string) (allowed []netip.Prefix, own bool) {
	for _, text := range sources {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
		case p.IsSingleIP() && slices.Contains(loadBalancers, p.Addr().String()):
			own = true
		default:
			allowed = append(allowed, p)
		}
	}
	return allowed, own
}
