// SPDX-License-Identifier: Apache-2.0

// Package proxytest makes states for tests of service proxies: random ones of pkg/nodestate/nodestatetest, a large one,
// and hostile ones.
package proxytest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
	"github.com/checkplan/checkplan/pkg/nodestate"
	"github.com/checkplan/checkplan/pkg/nodestate/api"
	"github.com/checkplan/checkplan/pkg/nodestate/nodestatetest"
	"github.com/checkplan/checkplan/pkg/nodestate/server"
)

// Node is the node of all states: it has each address that their nodes have.
func Node() proxy.Node {
	pods, err := proxy.ParsePods([]string{"10.244.1.0/24", "fd00:244:1::/64"}, "")
	if err != nil {
		panic(err)
	}
	n := proxy.Node{Pods: pods}
	for _, text := range []string{
		"127.0.0.1", "192.0.2.1", "192.0.2.2", "192.0.2.9", "198.51.100.7", "::1", "2001:db8::1", "2001:db8:1::1",
	} {
		n.Addresses = append(n.Addresses, netip.MustParseAddr(text))
	}
	slices.SortFunc(n.Addresses, netip.Addr.Compare)
	return n
}

// Step is a state of a node, as pkg/nodestate computes it and as a client gets it.
type Step struct {
	State []*nodestate.ServiceEndpoints
	Items []*api.ServiceEndpoints
}

// Messages returns what a client gets.
func Messages(state []*nodestate.ServiceEndpoints) []*api.ServiceEndpoints {
	items := make([]*api.ServiceEndpoints, len(state))
	for i, s := range state {
		items[i] = server.Message(s)
	}
	return items
}

// Steps returns the states of a random cluster and of its changes, without those that no cluster can have, because two
// Services have one address. It is the same for the same seed.
func Steps(seed uint64) []Step {
	c := nodestatetest.Generate(seed)
	cluster, err := nodestate.New(nodestate.Options{NodePortAddresses: c.NodePortAddresses})
	if err != nil {
		panic(err)
	}
	if c.Node != nil {
		cluster.SetNode(c.Node)
	}
	for i := range c.Services {
		cluster.SetService(distinct(&c.Services[i]))
	}
	for i := range c.Slices {
		cluster.SetSlice(&c.Slices[i])
	}
	var steps []Step
	add := func() {
		state := cluster.State(c.NodeName)
		if items := Messages(state); len(proxy.Check(items).Problems) == 0 {
			steps = append(steps, Step{state, items})
		}
	}
	add()
	for _, change := range c.Changes {
		switch {
		case change.SetService != nil:
			cluster.SetService(distinct(change.SetService))
		case change.DeleteService != "":
			cluster.DeleteService(nodestatetest.Namespace, change.DeleteService)
		case change.SetSlice != nil:
			cluster.SetSlice(change.SetSlice)
		default:
			cluster.DeleteSlice(nodestatetest.Namespace, change.DeleteSlice)
		}
		add()
	}
	return steps
}

// Many is the state of a node of a cluster with so many Services and endpoints of IPv4.
func Many(services, endpoints int) Step {
	f := nodestatetest.NewFleet(services, endpoints, 50)
	cluster, err := nodestate.New(nodestate.Options{})
	if err != nil {
		panic(err)
	}
	for _, n := range f.Nodes {
		cluster.SetNode(n)
	}
	for _, s := range f.Services {
		cluster.SetService(s)
	}
	for _, s := range f.Slices {
		cluster.SetSlice(s)
	}
	state := cluster.State(f.Nodes[0].Name)
	return Step{state, Messages(state)}
}

// distinct gives each of the generator's Services cluster IPs and node ports of its own.
func distinct(s *corev1.Service) *corev1.Service {
	var n int
	if _, err := fmt.Sscanf(s.Name, "service-%d", &n); err != nil {
		return s
	}
	s = s.DeepCopy()
	own := func(ip string) string {
		switch {
		case strings.HasPrefix(ip, "10."):
			return fmt.Sprintf("10.96.%d.7", n+1)
		case strings.HasPrefix(ip, "fd00:"):
			return fmt.Sprintf("fd00:96:%d::7", n+1)
		}
		return ip
	}
	s.Spec.ClusterIP = own(s.Spec.ClusterIP)
	for i, ip := range s.Spec.ClusterIPs {
		s.Spec.ClusterIPs[i] = own(ip)
	}
	for i := range s.Spec.Ports {
		if p := &s.Spec.Ports[i]; p.NodePort != 0 {
			p.NodePort = p.NodePort%1000 + 30000 + int32(n)*1000
		}
	}
	if s.Spec.HealthCheckNodePort != 0 {
		s.Spec.HealthCheckNodePort = 40000 + int32(n)
	}
	return s
}

// Large returns the state of a node of a cluster with that many Services and endpoints: nodestatetest.Fleet.
func Large(services, endpoints int) []*api.ServiceEndpoints {
	f := nodestatetest.NewFleet(services, endpoints, 100)
	cluster, err := nodestate.New(nodestate.Options{})
	if err != nil {
		panic(err)
	}
	for _, n := range f.Nodes {
		cluster.SetNode(n)
	}
	for _, s := range f.Services {
		cluster.SetService(s)
	}
	for _, s := range f.Slices {
		cluster.SetSlice(s)
	}
	return Messages(cluster.State(f.Nodes[0].Name))
}

// Strings are what the texts of a message may be in hostile states.
var Strings = []string{"", "web", "a-b", "-", "Web", "web\n", "web\nadd table ip x", `"`, `web" -j ACCEPT`, "web;", "web }", "$(x)", "`x`", `\`, "\x00",
	"web#", "ü", strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a", 100_000), "10.0.0.1", "10.0.0.1\n", "10.0.0.1/8", "0.0.0.0",
	"::", "::1", "::ffff:10.0.0.1", "fe80::1%eth0", "10.0.0.0/33", "0.0.0.0/0", "::/0", "127.0.0.1", "224.0.0.1", "fd00::1", "010.0.0.1"}

// Hostile is one Service whose texts and numbers are any.
func Hostile(
	namespace, name, port, clusterIP, other, source, endpoint string, number, seconds int32, kinds uint16,
) *api.ServiceEndpoints {
	action := func(shift int) api.Action { return api.Action(kinds >> shift & 3) }
	family := api.IPFamily(kinds >> 6 & 3)
	return &api.ServiceEndpoints{
		Namespace: namespace, Name: name, Type: port, AffinitySeconds: seconds, HealthCheckNodePort: number,
		ExternalTrafficToLocal: kinds&(1<<8) != 0, InternalTrafficToLocal: kinds&(1<<9) != 0,
		Families: []*api.Family{{
			Family: family, ClusterIP: clusterIP, ExternalIPs: []string{other}, LoadBalancerIPs: []string{other, clusterIP},
			LoadBalancerSources: []string{source}, NodePortPrefixes: []string{source}, HealthyEndpoints: seconds,
			Ports: []*api.Port{{
				Name: port, Protocol: api.Protocol(kinds >> 10 & 3), Port: number, NodePort: number,
				Internal: action(0), External: action(2), Inside: action(4),
				Endpoints: []*api.Endpoint{{Address: endpoint, Port: number, Local: true,
					Internal: action(0) == 1, External: action(2) == 1, Inside: action(4) == 1}},
				Established: []*api.Endpoint{{Address: other, Port: number}},
			}},
		}},
	}
}
