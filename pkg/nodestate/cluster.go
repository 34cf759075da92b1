// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	netutils "k8s.io/utils/net"
)

// Options are the settings of a node's proxy that change its state.
type Options struct {
	// NodePortAddresses is kube-proxy's --nodeport-addresses: prefixes, or the single word "primary". Empty: node ports
	// answer on all addresses of the node, kube-proxy's default in the modes iptables and ipvs. In the mode nftables
	// its default is "primary".
	NodePortAddresses []string
}

// Selector is the label selector for watches of Services and EndpointSlices: the others change no state.
var Selector = "!" + strings.Join(foreignLabels, ",!")

// primary is the value of Options.NodePortAddresses for the node's first address of each family.
const primary = "primary"

// Labels by which kube-proxy's informers leave out Services and EndpointSlices: it serves none that has one of them,
// with whatever value. Source: cmd/kube-proxy/app/server.go.
var foreignLabels = []string{"service.kubernetes.io/service-proxy-name", corev1.IsHeadlessService}

// Cluster holds what the API server has of Services, EndpointSlices and Nodes, as far as a node's state depends on it.
// The zero value is not usable: New makes one.
type Cluster struct {
	nodePorts [2][]string // Options.NodePortAddresses of each family
	primary   bool
	services  map[types.NamespacedName]*service
	slices    map[types.NamespacedName]types.NamespacedName // of an EndpointSlice: its Service
	nodes     map[string]node
	views     []*View
}

// The indexes of the families in arrays.
const (
	v4 = iota
	v6
)

var familyNames = [2]IPFamily{IPv4, IPv6}

// allPrefix is what matches every address of a family.
var allPrefix = [2]string{"0.0.0.0/0", "::/0"}

// node is what a state depends on of a Node. Its zero value is an unknown node: without a zone and addresses.
type node struct {
	zone    string
	primary [2]netip.Addr // the first address of each family; invalid: none
}

// service is all that is known of one name of a Service: the object, its slices, or both.
type service struct {
	key    types.NamespacedName
	object *object // nil: none that a proxy serves
	slices map[string]*slice
	groups [2]map[portKey]group // of all slices; nil: to be made by grouped
}

// object is a Service that a proxy serves.
type object struct {
	message  ServiceEndpoints // without Families
	ports    []Port           // without actions and endpoints
	families [2]family
}

// family is a Service's own part of a Family.
type family struct {
	clusterIP     string // empty: the Service is not of this family
	externalIPs   []string
	loadBalancers []netip.Addr
	sources       []netip.Prefix
}

// portKey is what a port of a Service and one of a slice have in common if they are the same.
type portKey struct {
	name     string
	protocol Protocol
}

// slice is an EndpointSlice.
type slice struct {
	family    int
	ports     []slicePort
	endpoints []endpoint
}

type slicePort struct {
	portKey
	number uint16
}

// endpoint is an endpoint of a slice, without its ports.
type endpoint struct {
	addr        netip.Addr
	text        string
	node        string
	ready       bool
	serving     bool
	terminating bool // serving although its pod is being deleted: better than none
	zones       []string
	nodes       []string
}

// group has the endpoints of one port of a Service, of all slices, in the order of address and port.
type group struct {
	members []member
	// duplicates: several members have the same address and port.
	duplicates bool
}

type member struct {
	addr netip.AddrPort
	*endpoint
}

// New returns an empty cluster. It fails if the options have an invalid prefix.
func New(o Options) (*Cluster, error) {
	c := &Cluster{
		services: map[types.NamespacedName]*service{}, slices: map[types.NamespacedName]types.NamespacedName{},
		nodes: map[string]node{},
	}
	if len(o.NodePortAddresses) == 1 && o.NodePortAddresses[0] == primary {
		c.primary = true
		return c, nil
	}
	for _, text := range o.NodePortAddresses {
		_, cidr, err := netutils.ParseCIDRSloppy(text)
		if err != nil {
			return nil, fmt.Errorf("node port addresses %q: not a prefix, nor the word %q: for example 192.0.2.0/24",
				text, primary)
		}
		p, f := prefixOf(cidr)
		c.nodePorts[f] = append(c.nodePorts[f], p.String())
	}
	for f := range c.nodePorts {
		c.nodePorts[f] = sorted(c.nodePorts[f])
		// As in kube-proxy, no prefix of a family means all of its addresses, and so does one that matches all.
		if len(c.nodePorts[f]) == 0 || slices.Contains(c.nodePorts[f], allPrefix[f]) {
			c.nodePorts[f] = []string{allPrefix[f]}
		}
	}
	return c, nil
}

// SetNode adds or replaces a Node.
func (c *Cluster) SetNode(n *corev1.Node) { c.setNode(n.Name, parseNode(n)) }

// DeleteNode removes a Node. Its state is then that of a node without a zone and addresses: the API server may not
// have it yet.
func (c *Cluster) DeleteNode(name string) { c.setNode(name, node{}) }

func (c *Cluster) setNode(name string, n node) {
	if c.nodes[name] == n {
		return
	}
	c.nodes[name] = n
	if n == (node{}) {
		delete(c.nodes, name)
	}
	for _, v := range c.views {
		if v.node == name {
			v.refreshAll()
		}
	}
}

// SetService adds or replaces a Service.
func (c *Cluster) SetService(s *corev1.Service) {
	c.setObject(types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, parseService(s))
}

// DeleteService removes a Service. One that does not exist is ignored.
func (c *Cluster) DeleteService(namespace, name string) {
	c.setObject(types.NamespacedName{Namespace: namespace, Name: name}, nil)
}

func (c *Cluster) setObject(key types.NamespacedName, o *object) {
	s := c.service(key)
	s.object = o
	c.changed(s)
}

// SetSlice adds or replaces an EndpointSlice. The Service that it names need not exist.
func (c *Cluster) SetSlice(s *discoveryv1.EndpointSlice) {
	parsed := parseSlice(s)
	if parsed == nil {
		c.DeleteSlice(s.Namespace, s.Name)
		return
	}
	key := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
	name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	if old, ok := c.slices[name]; ok && old != key {
		c.DeleteSlice(s.Namespace, s.Name)
	}
	c.slices[name] = key
	owner := c.service(key)
	owner.slices[s.Name] = parsed
	owner.groups = [2]map[portKey]group{}
	c.changed(owner)
}

// DeleteSlice removes an EndpointSlice. One that does not exist is ignored.
func (c *Cluster) DeleteSlice(namespace, name string) {
	id := types.NamespacedName{Namespace: namespace, Name: name}
	key, ok := c.slices[id]
	if !ok {
		return
	}
	delete(c.slices, id)
	owner := c.service(key)
	delete(owner.slices, name)
	owner.groups = [2]map[portKey]group{}
	c.changed(owner)
}

// service returns the entry of a Service, and makes it if there is none.
func (c *Cluster) service(key types.NamespacedName) *service {
	s := c.services[key]
	if s == nil {
		s = &service{key: key, slices: map[string]*slice{}}
		c.services[key] = s
	}
	return s
}

// changed forgets a service that has nothing left, and brings views up to date.
func (c *Cluster) changed(s *service) {
	if s.object == nil && len(s.slices) == 0 {
		delete(c.services, s.key)
	}
	for _, v := range c.views {
		v.refresh(s)
	}
}

// parseNode follows kube-proxy's choice of node addresses: internal ones before external ones, the first of each
// family (pkg/util/node GetNodeHostIPs).
func parseNode(n *corev1.Node) node {
	parsed := node{zone: n.Labels[corev1.LabelTopologyZone]}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range n.Status.Addresses {
			if a.Type != kind {
				continue
			}
			if addr, ok := parseAddr(a.Address); ok && !parsed.primary[familyOf(addr)].IsValid() {
				parsed.primary[familyOf(addr)] = addr
			}
		}
	}
	return parsed
}

// parseService returns nil if no proxy serves the Service.
func parseService(s *corev1.Service) *object {
	if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone ||
		s.Spec.Type == corev1.ServiceTypeExternalName || foreign(s.Labels) {
		return nil
	}
	o := &object{message: ServiceEndpoints{Namespace: s.Namespace, Name: s.Name, Type: string(s.Spec.Type)}}
	if p := s.Spec.InternalTrafficPolicy; p != nil {
		o.message.InternalTrafficToLocal = *p == corev1.ServiceInternalTrafficPolicyLocal
	}
	accessible := s.Spec.Type == corev1.ServiceTypeLoadBalancer || s.Spec.Type == corev1.ServiceTypeNodePort ||
		s.Spec.Type == corev1.ServiceTypeClusterIP && len(s.Spec.ExternalIPs) > 0
	o.message.ExternalTrafficToLocal = accessible &&
		s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer && o.message.ExternalTrafficToLocal {
		o.message.HealthCheckNodePort = s.Spec.HealthCheckNodePort
	}
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		o.message.AffinitySeconds = corev1.DefaultClientIPServiceAffinitySeconds
		if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
			o.message.AffinitySeconds = *c.ClientIP.TimeoutSeconds
		}
	}
	o.families = parseFamilies(s)
	if o.families[v4].clusterIP == "" && o.families[v6].clusterIP == "" {
		return nil
	}

	// Of two ports with the same name and protocol, kube-proxy knows the last.
	ports := map[portKey]Port{}
	for _, p := range s.Spec.Ports {
		key := portKey{p.Name, protocolOf(&p.Protocol)}
		ports[key] = Port{Name: key.name, Protocol: key.protocol, Port: p.Port, NodePort: p.NodePort}
	}
	o.ports = slices.SortedFunc(maps.Values(ports), func(p, q Port) int {
		return cmp.Or(cmp.Compare(p.Name, q.Name), cmp.Compare(p.Protocol, q.Protocol))
	})
	if len(o.ports) == 0 {
		return nil
	}
	return o
}

// parseFamilies reads the addresses of a Service. Those that are invalid are left out.
func parseFamilies(s *corev1.Service) [2]family {
	var families [2]family
	clusterIP := func(text string, f int) {
		if addr, ok := parseAddr(text); ok && families[f].clusterIP == "" {
			families[f].clusterIP = addr.String()
		}
	}
	if len(s.Spec.IPFamilies) == 0 { // an API server older than the field
		f := v4
		if netutils.IsIPv6String(s.Spec.ClusterIP) {
			f = v6
		}
		clusterIP(s.Spec.ClusterIP, f)
	}
	for i, f := range s.Spec.IPFamilies {
		if n := slices.Index(familyNames[:], IPFamily(f)); n >= 0 && i < len(s.Spec.ClusterIPs) {
			clusterIP(s.Spec.ClusterIPs[i], n)
		}
	}
	for _, text := range s.Spec.ExternalIPs {
		if addr, ok := parseAddr(text); ok {
			f := &families[familyOf(addr)]
			f.externalIPs = append(f.externalIPs, addr.String())
		}
	}
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		if ingress.IPMode != nil && *ingress.IPMode != corev1.LoadBalancerIPModeVIP {
			continue
		}
		if addr, ok := parseAddr(ingress.IP); ok {
			f := &families[familyOf(addr)]
			f.loadBalancers = append(f.loadBalancers, addr)
		}
	}
	all := [2]bool{}
	for _, text := range s.Spec.LoadBalancerSourceRanges {
		_, cidr, err := netutils.ParseCIDRSloppy(strings.TrimSpace(text)) // the API allows spaces
		if err != nil {
			continue
		}
		p, f := prefixOf(cidr)
		families[f].sources = append(families[f].sources, p)
		all[f] = all[f] || p.Bits() == 0
	}
	for f := range families {
		families[f].externalIPs = sorted(families[f].externalIPs)
		slices.SortFunc(families[f].loadBalancers, netip.Addr.Compare)
		families[f].loadBalancers = slices.Compact(families[f].loadBalancers)
		if all[f] {
			families[f].sources = nil
		}
	}
	return families
}

// parseSlice returns nil if no proxy reads the slice.
func parseSlice(s *discoveryv1.EndpointSlice) *slice {
	f := slices.Index(familyNames[:], IPFamily(s.AddressType))
	if f < 0 || s.Labels[discoveryv1.LabelServiceName] == "" || foreign(s.Labels) {
		return nil
	}
	parsed := &slice{family: f, endpoints: make([]endpoint, 0, len(s.Endpoints))}
	for _, p := range s.Ports {
		// A port without a name is none of a Service's; one without a number means "all", which no proxy serves.
		if p.Name == nil || p.Port == nil || *p.Port <= 0 || *p.Port > 65535 {
			continue
		}
		parsed.ports = append(parsed.ports, slicePort{portKey{*p.Name, protocolOf(p.Protocol)}, uint16(*p.Port)})
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		// All addresses of an endpoint mean the same one; consumers use the first.
		if len(e.Addresses) == 0 {
			continue
		}
		addr, ok := parseAddr(e.Addresses[0])
		if !ok || familyOf(addr) != f {
			continue
		}
		one := endpoint{addr: addr, text: addr.String(), ready: e.Conditions.Ready == nil || *e.Conditions.Ready}
		one.serving = e.Conditions.Serving == nil || *e.Conditions.Serving
		one.terminating = one.serving && e.Conditions.Terminating != nil && *e.Conditions.Terminating
		if e.NodeName != nil {
			one.node = *e.NodeName
		}
		if e.Hints != nil {
			for _, z := range e.Hints.ForZones {
				one.zones = append(one.zones, z.Name)
			}
			for _, n := range e.Hints.ForNodes {
				one.nodes = append(one.nodes, n.Name)
			}
		}
		parsed.endpoints = append(parsed.endpoints, one)
	}
	return parsed
}

// grouped returns the endpoints of all slices of one family, by port.
func (s *service) grouped(f int) map[portKey]group {
	if s.groups[f] != nil {
		return s.groups[f]
	}
	members := map[portKey][]member{}
	for _, name := range slices.Sorted(maps.Keys(s.slices)) {
		of := s.slices[name]
		if of.family != f {
			continue
		}
		for _, p := range of.ports {
			list := slices.Grow(members[p.portKey], len(of.endpoints))
			for i := range of.endpoints {
				e := &of.endpoints[i]
				list = append(list, member{netip.AddrPortFrom(e.addr, p.number), e})
			}
			members[p.portKey] = list
		}
	}
	byAddr := func(a, b member) int { return a.addr.Compare(b.addr) }
	groups := make(map[portKey]group, len(members))
	for key, list := range members {
		slices.SortStableFunc(list, byAddr)
		g := group{members: list}
		for i := 1; i < len(list) && !g.duplicates; i++ {
			g.duplicates = list[i-1].addr == list[i].addr
		}
		groups[key] = g
	}
	s.groups[f] = groups
	return groups
}

// of returns the group as a node sees it: each address and port once. The first of several counts, but each local one
// replaces those before it.
func (g group) of(node string) []member {
	if !g.duplicates {
		return g.members
	}
	var once []member
	for _, m := range g.members {
		switch last := len(once) - 1; {
		case last < 0 || once[last].addr != m.addr:
			once = append(once, m)
		case m.local(node):
			once[last] = m
		}
	}
	return once
}

// local reports whether the endpoint is on the node.
func (e *endpoint) local(node string) bool { return node != "" && e.node == node }

// foreign reports whether labels leave an object to another proxy, or to none.
func foreign(labels map[string]string) bool {
	return slices.ContainsFunc(foreignLabels, func(l string) bool { _, ok := labels[l]; return ok })
}

// protocolOf returns the protocol; none is TCP, the API's default.
func protocolOf(p *corev1.Protocol) Protocol {
	if p == nil || *p == "" {
		return TCP
	}
	return Protocol(*p)
}

// parseAddr reads an address as Kubernetes does: leading zeros are allowed, and mean nothing.
func parseAddr(text string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" {
		var ok bool
		if addr, ok = netip.AddrFromSlice(netutils.ParseIPSloppy(text)); !ok {
			return netip.Addr{}, false
		}
	}
	return addr.Unmap(), true
}

func familyOf(addr netip.Addr) int {
	if addr.Is4() {
		return v4
	}
	return v6
}

// prefixOf converts a valid prefix, and returns its family. ::ffff:192.0.2.0/120 is the IPv4 prefix 192.0.2.0/24.
func prefixOf(cidr *net.IPNet) (netip.Prefix, int) {
	addr, _ := netip.AddrFromSlice(cidr.IP)
	bits, size := cidr.Mask.Size()
	if addr.Is4() || addr.Is4In6() {
		return netip.PrefixFrom(addr.Unmap(), bits-(size-32)), v4
	}
	return netip.PrefixFrom(addr, bits), v6
}

// sorted sorts a list, and removes duplicates. An empty list is nil.
func sorted(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}
