// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/nodestate"
)

// stateText prints what the service proxy of a node has to serve, a paragraph for each Service. Its error is the
// writer's.
func stateText(w io.Writer, services []*nodestate.ServiceEndpoints) error {
	p := &page{w: w}
	for _, s := range services {
		p.service(s)
	}
	return p.err
}

func (p *page) service(s *nodestate.ServiceEndpoints) {
	p.line("%s/%s, type %s", s.Namespace, s.Name, s.Type)
	var items []checkup.Item
	line := func(to *[]checkup.Item, format string, args ...any) {
		*to = append(*to, checkup.Item{Text: fmt.Sprintf(format, args...)})
	}
	if s.AffinitySeconds > 0 {
		line(&items, "session affinity by client address, for %d s", s.AffinitySeconds)
	}
	for i := range s.Families {
		f := &s.Families[i]
		family := checkup.Item{Text: stateAddresses(f)}
		if len(f.LoadBalancerSources) > 0 {
			line(&family.Items, "load balancer only from %s", strings.Join(f.LoadBalancerSources, ", "))
		}
		if s.HealthCheckNodePort > 0 {
			line(&family.Items, "health check on node port %d: %s here", s.HealthCheckNodePort,
				checkup.Count(int(f.HealthyEndpoints), "ready endpoint"))
		}
		for j := range f.Ports {
			family.Items = append(family.Items, statePort(&f.Ports[j]))
		}
		items = append(items, family)
	}
	p.show(-1, []checkup.Block{{List: &checkup.List{Items: items}}})
}

// stateAddresses names a family, and where the node serves it.
func stateAddresses(f *nodestate.Family) string {
	s := string(f.Family) + " " + f.ClusterIP
	for _, of := range []struct {
		name string
		list []string
	}{{"external", f.ExternalIPs}, {"load balancer", f.LoadBalancerIPs}, {"node ports on", f.NodePortPrefixes}} {
		if len(of.list) > 0 {
			s += "; " + of.name + " " + strings.Join(of.list, ", ")
		}
	}
	return s
}

// statePort has a line for each kind of traffic; one for all kinds if they have the same action and endpoints. Below
// them are the endpoints that only connections that exist may use.
func statePort(port *nodestate.Port) checkup.Item {
	head := fmt.Sprintf("%d/%s", port.Port, port.Protocol)
	if port.Name != "" {
		head += " " + port.Name
	}
	if port.NodePort > 0 {
		head += fmt.Sprintf(", node port %d", port.NodePort)
	}
	internal := traffic(port.Internal, port.Endpoints, func(e *nodestate.Endpoint) bool { return e.Internal })
	external := traffic(port.External, port.Endpoints, func(e *nodestate.Endpoint) bool { return e.External })
	inside := traffic(port.Inside, port.Endpoints, func(e *nodestate.Endpoint) bool { return e.Inside })
	item := checkup.Item{Text: head, Items: []checkup.Item{
		{Name: "to the cluster IP:", Text: internal},
		{Name: "from outside:", Text: external},
		{Name: "from pods of this node:", Text: inside},
	}}
	if port.External == "" || internal == external && internal == inside {
		item = checkup.Item{Text: head + ": " + internal}
	}
	if len(port.Established) > 0 {
		item.Items = append(item.Items, checkup.Item{Name: "established only:", Text: endpointNames(port.Established)})
	}
	return item
}

// stateEndpoints is the most endpoints of a kind of traffic that are named; JSON has all.
const stateEndpoints = 20

// traffic says what happens to one kind of traffic.
func traffic(action nodestate.Action, endpoints []nodestate.Endpoint, uses func(*nodestate.Endpoint) bool) string {
	if action != nodestate.Forward {
		return string(action)
	}
	return endpointNames(slices.DeleteFunc(slices.Clone(endpoints), func(e nodestate.Endpoint) bool { return !uses(&e) }))
}

// endpointNames has an endpoint as its address and port; one on the node with a star.
func endpointNames(endpoints []nodestate.Endpoint) string {
	var names []string
	for _, e := range endpoints[:min(len(endpoints), stateEndpoints)] {
		name := net.JoinHostPort(e.Address, fmt.Sprint(e.Port))
		if e.Local {
			name += "*"
		}
		names = append(names, name)
	}
	if more := len(endpoints) - stateEndpoints; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, " ")
}
