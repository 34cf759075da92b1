// SPDX-License-Identifier: Apache-2.0

package server

import (
	"github.com/checkplan/checkplan/pkg/nodestate"
	"github.com/checkplan/checkplan/pkg/nodestate/api"
)

var families = map[nodestate.IPFamily]api.IPFamily{
	nodestate.IPv4: api.IPFamily_IPv4,
	nodestate.IPv6: api.IPFamily_IPv6,
}

var protocols = map[nodestate.Protocol]api.Protocol{
	nodestate.TCP:  api.Protocol_TCP,
	nodestate.UDP:  api.Protocol_UDP,
	nodestate.SCTP: api.Protocol_SCTP,
}

var actions = map[nodestate.Action]api.Action{
	nodestate.Forward: api.Action_FORWARD,
	nodestate.Reject:  api.Action_REJECT,
	nodestate.Drop:    api.Action_DROP,
}

// Message is a Service of the state as a message of the API. It is made when it is sent: one that is kept would be
// several times as large.
func Message(s *nodestate.ServiceEndpoints) *api.ServiceEndpoints {
	m := &api.ServiceEndpoints{
		Namespace: s.Namespace, Name: s.Name, Type: s.Type,
		ExternalTrafficToLocal: s.ExternalTrafficToLocal, InternalTrafficToLocal: s.InternalTrafficToLocal,
		AffinitySeconds: s.AffinitySeconds, HealthCheckNodePort: s.HealthCheckNodePort,
		Families: make([]*api.Family, len(s.Families)),
	}
	for i, f := range s.Families {
		family := &api.Family{
			Family: families[f.Family], ClusterIP: f.ClusterIP, ExternalIPs: f.ExternalIPs,
			LoadBalancerIPs: f.LoadBalancerIPs, LoadBalancerSources: f.LoadBalancerSources,
			NodePortPrefixes: f.NodePortPrefixes, HealthyEndpoints: f.HealthyEndpoints,
			Ports: make([]*api.Port, len(f.Ports)),
		}
		m.Families[i] = family
		for j, p := range f.Ports {
			port := &api.Port{
				Name: p.Name, Protocol: protocols[p.Protocol], Port: p.Port, NodePort: p.NodePort,
				Internal: actions[p.Internal], External: actions[p.External], Inside: actions[p.Inside],
				Endpoints: endpoints(p.Endpoints), Established: endpoints(p.Established),
			}
			family.Ports[j] = port
		}
	}
	return m
}

func endpoints(list []nodestate.Endpoint) []*api.Endpoint {
	messages := make([]*api.Endpoint, len(list))
	for i, e := range list {
		messages[i] = &api.Endpoint{Address: e.Address, Port: e.Port, Local: e.Local,
			Internal: e.Internal, External: e.External, Inside: e.Inside}
	}
	return messages
}
