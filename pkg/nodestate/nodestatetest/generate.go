// SPDX-License-Identifier: Apache-2.0

// Package nodestatetest makes small random clusters for tests of a node's state, and shrinks those that fail. It knows
// Kubernetes' objects only, and not pkg/nodestate: tests of two modules import it.
package nodestatetest

import (
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Case is a cluster as one node sees it, and what happens to it then.
type Case struct {
	// NodeName is the node whose state is computed.
	NodeName string `json:"nodeName"`
	// NodePortAddresses is the proxy's flag.
	NodePortAddresses []string `json:"nodePortAddresses,omitempty"`
	// Node is nil if the API server does not have the node.
	Node *corev1.Node `json:"node,omitempty"`
	// Services have different names, and Slices, too.
	Services []corev1.Service            `json:"services,omitempty"`
	Slices   []discoveryv1.EndpointSlice `json:"slices,omitempty"`
	// Changes happen one after another.
	Changes []Change `json:"changes,omitempty"`
}

// Change is one event of the API server: exactly one field is set. All objects are in namespace "ns".
type Change struct {
	SetService    *corev1.Service            `json:"setService,omitempty"`
	DeleteService string                     `json:"deleteService,omitempty"`
	SetSlice      *discoveryv1.EndpointSlice `json:"setSlice,omitempty"`
	DeleteSlice   string                     `json:"deleteSlice,omitempty"`
}

// Namespace is that of all objects.
const Namespace = "ns"

// Few names, so that objects meet, and all that is allowed happens together often.
var (
	nodeNames = []string{"node-a", "node-b", "node-c"}
	zoneNames = []string{"zone-x", "zone-y"}
	portNames = []string{"", "http", "dns", "admin"}
	numbers   = []int32{53, 80, 443, 8080, 9090}
	protocols = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	families  = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
)

// Generate makes the case of a seed.
func Generate(seed uint64) Case {
	g := generator{Rand: rand.New(rand.NewPCG(seed, 14))}
	g.shared = g.chance(0.2)
	c := Case{NodeName: nodeNames[0]}
	c.NodePortAddresses = pick(g, nil, nil, []string{"primary"}, []string{"192.0.2.0/24"}, []string{"2001:db8::/32"},
		[]string{"192.0.2.0/24", "2001:db8::/64", "198.51.100.7/32"}, []string{"192.0.2.0/24", "0.0.0.0/0"})
	if g.chance(0.9) {
		c.Node = g.node(c.NodeName)
	}
	for i := range 1 + g.IntN(3) {
		name := fmt.Sprintf("service-%d", i)
		service := g.service(name)
		c.Services = append(c.Services, service)
		g.slicesOf(name, &service, func(s discoveryv1.EndpointSlice) { c.Slices = append(c.Slices, s) })
	}
	if g.chance(0.1) { // endpoints of a Service that does not exist
		g.slicesOf("gone", nil, func(s discoveryv1.EndpointSlice) { c.Slices = append(c.Slices, s) })
	}
	for range pick(g, 0, 0, 1, 3) {
		c.Changes = append(c.Changes, g.change(c, fmt.Sprintf("late-%d", len(c.Changes))))
	}
	return c
}

type generator struct {
	*rand.Rand
	shared bool // slices have addresses in common
}

func (g generator) chance(p float64) bool { return g.Float64() < p }

func pick[T any](g generator, from ...T) T { return from[g.IntN(len(from))] }

// change draws an event. A slice's address type never changes (the API server refuses that), and its Service does not,
// either (kube-proxy would keep the endpoints at the old one).
func (g generator) change(c Case, name string) Change {
	service := pick(g, c.Services...)
	switch g.IntN(8) {
	case 0:
		return Change{DeleteService: service.Name}
	case 1, 2:
		next := g.service(service.Name)
		return Change{SetService: &next}
	}
	if len(c.Slices) == 0 || g.chance(0.2) {
		slice := g.slice(name, service.Name, &service)
		return Change{SetSlice: &slice}
	}
	old := pick(g, c.Slices...)
	if g.chance(0.25) {
		return Change{DeleteSlice: old.Name}
	}
	slice := *old.DeepCopy()
	switch {
	case g.chance(0.2):
		slice.Annotations = map[string]string{"changed": "nothing"}
	case len(slice.Endpoints) > 0 && g.chance(0.7):
		slice.Endpoints[g.IntN(len(slice.Endpoints))] = g.endpoint(slice.AddressType)
	default:
		slice = g.slice(old.Name, old.Labels[discoveryv1.LabelServiceName], &service)
		slice.AddressType, slice.Endpoints = old.AddressType, old.Endpoints
		delete(slice.Labels, discoveryv1.LabelServiceName)
		if of, ok := old.Labels[discoveryv1.LabelServiceName]; ok {
			slice.Labels[discoveryv1.LabelServiceName] = of
		}
	}
	return Change{SetSlice: &slice}
}

func (g generator) node(name string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	if g.chance(0.8) {
		n.Labels[corev1.LabelTopologyZone] = pick(g, zoneNames...)
	}
	for range g.IntN(4) {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{
			Type: pick(g, corev1.NodeInternalIP, corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeHostName),
			Address: pick(g, "192.0.2.1", "192.0.2.2", "198.51.100.7", "2001:db8::1", "2001:db8:1::1", "192.000.002.009",
				"none"),
		})
	}
	return n
}

// service makes a Service that the API server could have: its defaults are set, and what depends on a type is there
// with that type only, mostly.
func (g generator) service(name string) corev1.Service {
	s := corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: Namespace}}
	s.Spec.Type = pick(g, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer)
	if g.chance(0.03) {
		s.Spec.Type = corev1.ServiceTypeExternalName
	}
	if g.chance(0.05) {
		key := pick(g, "service.kubernetes.io/service-proxy-name", corev1.IsHeadlessService)
		s.Labels = map[string]string{key: pick(g, "", "other")}
	}
	clusterIPs := map[corev1.IPFamily]string{corev1.IPv4Protocol: pick(g, "10.96.0.1", "10.96.0.2", "10.096.0.3"),
		corev1.IPv6Protocol: pick(g, "fd00:96::1", "fd00:96:0::2")}
	switch g.IntN(10) {
	case 0:
		s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
		s.Spec.IPFamilies = families[:1]
	case 1: // older than dual stack
		s.Spec.ClusterIP = clusterIPs[pick(g, families...)]
	case 2, 3, 4, 5:
		f := pick(g, families...)
		s.Spec.IPFamilies, s.Spec.ClusterIPs = []corev1.IPFamily{f}, []string{clusterIPs[f]}
	default:
		first := g.IntN(2)
		s.Spec.IPFamilies = []corev1.IPFamily{families[first], families[1-first]}
		s.Spec.ClusterIPs = []string{clusterIPs[families[first]], clusterIPs[families[1-first]]}
		if g.chance(0.05) {
			s.Spec.ClusterIPs = s.Spec.ClusterIPs[:1]
		}
	}
	if len(s.Spec.ClusterIPs) > 0 {
		s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	}
	for range 1 + g.IntN(3) {
		p := corev1.ServicePort{Name: pick(g, portNames...), Protocol: pick(g, protocols...), Port: pick(g, numbers...)}
		if s.Spec.Type != corev1.ServiceTypeClusterIP && g.chance(0.9) {
			p.NodePort = 30000 + pick(g, numbers...)
		}
		s.Spec.Ports = append(s.Spec.Ports, p)
	}
	if g.chance(0.3) {
		s.Spec.InternalTrafficPolicy = new(pick(g, corev1.ServiceInternalTrafficPolicyLocal,
			corev1.ServiceInternalTrafficPolicyLocal, corev1.ServiceInternalTrafficPolicyCluster))
	}
	s.Spec.ExternalTrafficPolicy = pick(g, "",
		corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer && g.chance(0.8) || g.chance(0.05) {
		s.Spec.HealthCheckNodePort = 32000 + pick(g, numbers...)
	}
	s.Spec.SessionAffinity = corev1.ServiceAffinityNone
	if g.chance(0.2) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(pick(g, int32(1), 10800, 86400))},
		}
	}
	for g.chance(0.3) {
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, pick(g, "203.0.113.1", "203.0.113.02", "2001:db8:e::1",
			"2001:db8:e:0::2", "", " ", "none", "203.0.113.300"))
	}
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer || g.chance(0.05) {
		for g.chance(0.6) {
			ingress := corev1.LoadBalancerIngress{IP: pick(g, "203.0.113.10", "203.0.113.11", "2001:db8:f::1", "2001:db8:f::2")}
			if g.chance(0.1) {
				ingress = corev1.LoadBalancerIngress{Hostname: "lb.example.com"}
			}
			if g.chance(0.3) {
				ingress.IPMode = new(pick(g, corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy))
			}
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, ingress)
		}
		for g.chance(0.4) {
			s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges,
				pick(g, "192.0.2.0/24", " 198.51.100.0/24 ", "192.0.2.77/24", "2001:db8::/32", "2001:db8:2::/48",
					"0.0.0.0/0", "::/0",
					"127.0.0.0/8", "none", "::ffff:192.0.2.0/120", "192.0.002.0/25"))
		}
	}
	return s
}

// slicesOf makes the slices of a Service: some per family, sometimes with addresses in common.
func (g generator) slicesOf(service string, of *corev1.Service, add func(discoveryv1.EndpointSlice)) {
	for i := range g.IntN(4) {
		add(g.slice(fmt.Sprintf("%s-%d", service, i), service, of))
	}
}

func (g generator) slice(name, service string, of *corev1.Service) discoveryv1.EndpointSlice {
	s := discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: Namespace,
		Labels: map[string]string{discoveryv1.LabelServiceName: service}}}
	s.AddressType = pick(g, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6)
	switch g.IntN(40) {
	case 0:
		s.AddressType = discoveryv1.AddressTypeFQDN
	case 1:
		delete(s.Labels, discoveryv1.LabelServiceName)
	case 2:
		s.Labels[discoveryv1.LabelServiceName] = ""
	case 3:
		s.Labels["service.kubernetes.io/service-proxy-name"] = "other"
	case 4:
		s.Labels[corev1.IsHeadlessService] = ""
	}
	var ports []discoveryv1.EndpointPort
	if of != nil { // mostly, the names are the Service's
		for _, p := range of.Spec.Ports {
			if g.chance(0.85) {
				ports = append(ports, g.port(p.Name, p.Protocol))
			}
		}
	}
	for g.chance(0.2) {
		ports = append(ports, g.port(pick(g, portNames...), pick(g, protocols...)))
	}
	if len(ports) > 0 && g.chance(0.06) {
		p := &ports[g.IntN(len(ports))]
		switch g.IntN(3) {
		case 0:
			p.Name = nil
		case 1:
			p.Port = nil
		case 2:
			p.Port = new(int32(0))
		}
	}
	s.Ports = ports
	// What is drawn for a slice as a whole, so that fallbacks happen: conditions and hints of all endpoints alike.
	ready, serving, terminating := g.condition(0.5), g.condition(0.8), g.condition(0.5)
	hintZones, hintNodes, uniform := g.chance(0.4), g.chance(0.3), g.chance(0.5)
	for i := range g.IntN(5) {
		e := g.endpoint(s.AddressType)
		if !g.shared && len(e.Addresses) > 0 && s.AddressType != discoveryv1.AddressTypeFQDN {
			e.Addresses[0] = fmt.Sprintf(map[discoveryv1.AddressType]string{discoveryv1.AddressTypeIPv4: "10.1.%d.%d",
				discoveryv1.AddressTypeIPv6: "fd00:1:%x::%x"}[s.AddressType], len(name)*7+int(name[len(name)-1]), i+1)
		}
		if uniform {
			e.Conditions = discoveryv1.EndpointConditions{Ready: ready, Serving: serving, Terminating: terminating}
		}
		if e.Hints == nil && (hintZones || hintNodes) && g.chance(0.95) {
			e.Hints = g.hints(hintZones, hintNodes)
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// port is a slice's, with any number.
func (g generator) port(name string, protocol corev1.Protocol) discoveryv1.EndpointPort {
	return discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: new(pick(g, numbers...))}
}

func (g generator) endpoint(t discoveryv1.AddressType) discoveryv1.Endpoint {
	var e discoveryv1.Endpoint
	switch t {
	case discoveryv1.AddressTypeIPv4:
		e.Addresses = []string{pick(g, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.10", "10.0.0.02", "10.0.1.1")}
	case discoveryv1.AddressTypeIPv6:
		e.Addresses = []string{pick(g, "fd00::1", "fd00::2", "fd00::3", "fd00::a", "fd00:0::1", "fd00:1::1")}
	default:
		e.Addresses = []string{"pod.example.com"}
	}
	if g.chance(0.05) {
		e.Addresses = append(e.Addresses, e.Addresses[0])
	}
	if g.chance(0.02) {
		e.Addresses = nil
	}
	if g.chance(0.9) {
		e.NodeName = new(pick(g, nodeNames...))
	}
	e.Conditions = discoveryv1.EndpointConditions{
		Ready: g.condition(0.6), Serving: g.condition(0.7), Terminating: g.condition(0.3),
	}
	if g.chance(0.15) {
		e.Hints = g.hints(g.chance(0.7), g.chance(0.5))
	}
	return e
}

// condition is mostly true with probability p, and sometimes absent.
func (g generator) condition(p float64) *bool {
	if g.chance(0.1) {
		return nil
	}
	return new(g.chance(p))
}

func (g generator) hints(zones, nodes bool) *discoveryv1.EndpointHints {
	h := &discoveryv1.EndpointHints{}
	for range 1 + g.IntN(2) {
		if zones {
			h.ForZones = append(h.ForZones, discoveryv1.ForZone{Name: pick(g, zoneNames...)})
		}
		if nodes {
			h.ForNodes = append(h.ForNodes, discoveryv1.ForNode{Name: pick(g, nodeNames...)})
		}
	}
	return h
}
