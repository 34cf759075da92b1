// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"regexp"
	"slices"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/nodestate/api"
)

// Families are both, in the order in which rules are written.
var Families = [2]dataplane.Family{dataplane.IPv4, dataplane.IPv6}

// State is what a node has to serve.
type State struct {
	// Ports are sorted by family, namespace, Service, name and protocol, which are their key.
	Ports []Port
	// NodePorts says at which addresses of the node each family serves its node ports. A family without any has none.
	NodePorts map[dataplane.Family]NodePorts
	// Health are the health check node ports, sorted by family and number, which are their key.
	Health []Health
	// Problems are texts about what is not served, and why: Services that the API does not allow, and addresses that two
	// Services have. Texts of messages are quoted in them.
	Problems []string
}

// Port is one port of a Service in one family.
type Port struct {
	Family                   dataplane.Family
	Namespace, Service, Name string // labels of DNS; Name may be empty
	Protocol                 string // TCP, UDP or SCTP
	Port                     uint16
	NodePort                 uint16 // 0: none
	ClusterIP                netip.Addr
	// ExternalIPs have no address that is in LoadBalancerIPs, too: it has the Sources.
	ExternalIPs     []netip.Addr
	LoadBalancerIPs []netip.Addr
	// Sources are the prefixes from which LoadBalancerIPs may be used. Empty: all.
	Sources []netip.Prefix
	// AffinitySeconds is 0 without session affinity.
	AffinitySeconds int32
	// ExternalToLocal and InternalToLocal are the policies.
	ExternalToLocal, InternalToLocal bool
	// Internal is traffic to the cluster IP, External traffic to all other addresses from outside the cluster, and Inside
	// traffic to these from pods of the node and from the node itself. The last two are zero if there are no other
	// addresses. Endpoints of External are served only if Inside is, too.
	Internal, External, Inside Traffic
	// Established are endpoints to which no new connection goes, but where those of UDP that exist may stay. Sorted.
	Established []netip.AddrPort
}

// Traffic is what happens to one kind of traffic.
type Traffic struct {
	Action dataplane.Action
	// Endpoints are sorted, without duplicates, and empty unless Action is Forward.
	Endpoints []netip.AddrPort
}

// Forwards reports whether there are endpoints.
func (t Traffic) Forwards() bool { return t.Action == dataplane.Forward }

// Serving returns the endpoints where UDP connections that exist may stay, sorted.
func (p *Port) Serving() []netip.AddrPort {
	all := slices.Concat(p.Internal.Endpoints, p.External.Endpoints, p.Inside.Endpoints, p.Established)
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all)
}

// Sets yields the sets of endpoints that connections go to, each once: those that are local to the node (true), and
// those of the cluster (false).
func (p *Port) Sets() iter.Seq2[bool, []netip.AddrPort] {
	return func(yield func(bool, []netip.AddrPort) bool) {
		done := map[bool]bool{}
		for _, set := range []struct {
			local bool
			Traffic
		}{{p.InternalToLocal, p.Internal}, {false, p.Inside}, {p.ExternalToLocal, p.External}} {
			if !set.Forwards() || done[set.local] {
				continue
			}
			if done[set.local] = true; !yield(set.local, set.Endpoints) {
				return
			}
		}
	}
}

// String is namespace/name:port, as kube-proxy words it; without the colon if the port has no name.
func (p *Port) String() string {
	if p.Name == "" {
		return p.Namespace + "/" + p.Service
	}
	return p.Namespace + "/" + p.Service + ":" + p.Name
}

func (p *Port) compare(o *Port) int {
	return cmp.Or(cmp.Compare(p.Family, o.Family), cmp.Compare(p.Namespace, o.Namespace),
		cmp.Compare(p.Service, o.Service), cmp.Compare(p.Name, o.Name), cmp.Compare(p.Protocol, o.Protocol))
}

// Of returns the ports of a family.
func (s *State) Of(family dataplane.Family) []Port {
	first := slices.IndexFunc(s.Ports, func(p Port) bool { return p.Family == family })
	if first < 0 {
		return nil
	}
	last := first
	for last < len(s.Ports) && s.Ports[last].Family == family {
		last++
	}
	return s.Ports[first:last]
}

// NodePorts is where node ports are served. Loopback addresses are not meant.
type NodePorts struct {
	All      bool // at all addresses of the node
	Prefixes []netip.Prefix
}

// Addresses returns those of the node's addresses at which node ports are served, sorted, if they are not All.
func (n NodePorts) Addresses(node []netip.Addr) []netip.Addr {
	var list []netip.Addr
	for _, a := range node {
		if !a.IsLoopback() && slices.ContainsFunc(n.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
			list = append(list, a)
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// Health is a health check node port in one family.
type Health struct {
	Family             dataplane.Family
	Number             uint16
	Namespace, Service string
	// Local is the number of ready endpoints on this node.
	Local int32
}

// label is a label of DNS, as namespaces, Services and ports of Services have. Nothing in it has a meaning to nft or
// iptables-restore.
var label = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// Check turns messages into what can be served. It never fails: a Service that is wrong in any part is left out whole,
// with a Problem, because half of a Service would be a guess.
func Check(items []*api.ServiceEndpoints) *State {
	c := checker{state: &State{NodePorts: map[dataplane.Family]NodePorts{}}}
	seen := map[[2]string]bool{}
	for _, item := range items {
		key := [2]string{item.GetNamespace(), item.GetName()}
		ports, health, err := c.service(item)
		if err == nil && seen[key] {
			err = errors.New("duplicate")
		}
		if err != nil {
			c.problem("Service %.70q/%.70q is not served: %v", key[0], key[1], err)
			continue
		}
		seen[key] = true
		c.state.Ports = append(c.state.Ports, ports...)
		c.state.Health = append(c.state.Health, health...)
	}
	slices.SortStableFunc(c.state.Ports, func(a, b Port) int { return a.compare(&b) })
	c.collisions()
	return c.state
}

type checker struct{ state *State }

// MaxProblems bounds State.Problems, and those of Unserved.
const MaxProblems = 100

func (c *checker) problem(format string, args ...any) {
	if len(c.state.Problems) < MaxProblems {
		c.state.Problems = append(c.state.Problems, fmt.Sprintf(format, args...))
	}
}

var familyOf = map[api.IPFamily]dataplane.Family{
	api.IPFamily_IPv4: dataplane.IPv4, api.IPFamily_IPv6: dataplane.IPv6,
}

func (c *checker) service(s *api.ServiceEndpoints) ([]Port, []Health, error) {
	for _, name := range []string{s.GetNamespace(), s.GetName()} {
		if !label.MatchString(name) {
			return nil, nil, fmt.Errorf("name %.70q: not a label of DNS", name)
		}
	}
	if s.AffinitySeconds < 0 || s.AffinitySeconds > 86400 { // the API's limit
		return nil, nil, fmt.Errorf("session affinity of %d s", s.AffinitySeconds)
	}
	var all []Port
	var health []Health
	families := map[dataplane.Family]bool{}
	nodePorts := map[dataplane.Family]NodePorts{}
	for _, f := range s.Families {
		family, ok := familyOf[f.GetFamily()]
		if !ok || families[family] {
			return nil, nil, fmt.Errorf("family %d: unknown, or twice", f.GetFamily())
		}
		families[family] = true
		ports, at, err := ports(s, f, family)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, ports...)
		if s.HealthCheckNodePort != 0 {
			number, err := number(s.HealthCheckNodePort)
			if err != nil || f.HealthyEndpoints < 0 {
				return nil, nil, fmt.Errorf("health check node port %d with %d endpoints",
					s.HealthCheckNodePort, f.HealthyEndpoints)
			}
			health = append(health, Health{family, number, s.Namespace, s.Name, f.HealthyEndpoints})
		} else if !slices.ContainsFunc(ports, func(p Port) bool { return p.NodePort != 0 }) {
			continue
		}
		if !at.All && len(at.Prefixes) == 0 {
			return nil, nil, errors.New("a node port, and no addresses of the node for it")
		}
		if other, ok := c.state.NodePorts[family]; ok && (other.All != at.All || !slices.Equal(other.Prefixes, at.Prefixes)) {
			return nil, nil, errors.New("its node ports are at other addresses than those of other Services")
		}
		nodePorts[family] = at
	}
	for family, at := range nodePorts {
		c.state.NodePorts[family] = at
	}
	return all, health, nil
}

// ports checks one family of a Service.
func ports(s *api.ServiceEndpoints, f *api.Family, family dataplane.Family) ([]Port, NodePorts, error) {
	base := Port{Family: family, Namespace: s.Namespace, Service: s.Name, AffinitySeconds: s.AffinitySeconds,
		ExternalToLocal: s.ExternalTrafficToLocal, InternalToLocal: s.InternalTrafficToLocal}
	var at NodePorts
	clusterIP, err := address(f.ClusterIP, family)
	if err != nil {
		return nil, at, err
	}
	base.ClusterIP = clusterIP
	if base.ExternalIPs, err = addresses(f.ExternalIPs, family, address); err != nil {
		return nil, at, err
	}
	// The API allows any address in a Service's status, such as 127.0.0.1 (minikube tunnel).
	if base.LoadBalancerIPs, err = addresses(f.LoadBalancerIPs, family, anyAddress); err != nil {
		return nil, at, err
	}
	if base.Sources, err = prefixes(f.LoadBalancerSources, family); err != nil {
		return nil, at, err
	}
	if at.Prefixes, err = prefixes(f.NodePortPrefixes, family); err != nil {
		return nil, at, err
	}
	at.All = len(f.NodePortPrefixes) > 0 && at.Prefixes == nil // dataplane.Prefixes has none for all addresses
	var all []Port
	seen := map[[2]string]bool{}
	for _, in := range f.Ports {
		p := base
		if err := p.read(in); err != nil {
			return nil, at, fmt.Errorf("port %.70q: %w", in.GetName(), err)
		}
		if key := [2]string{p.Name, p.Protocol}; seen[key] {
			return nil, at, fmt.Errorf("port %.70q: twice", p.Name)
		} else {
			seen[key] = true
		}
		all = append(all, p)
	}
	return all, at, nil
}

// read fills in what is the port's own.
func (p *Port) read(in *api.Port) error {
	if in.GetName() != "" && !label.MatchString(in.Name) {
		return errors.New("not a label of DNS")
	}
	protocol, ok := map[api.Protocol]string{
		api.Protocol_TCP: "TCP", api.Protocol_UDP: "UDP", api.Protocol_SCTP: "SCTP",
	}[in.GetProtocol()]
	if !ok {
		return fmt.Errorf("protocol %d", in.GetProtocol())
	}
	p.Name, p.Protocol = in.Name, protocol
	var err error
	if p.Port, err = number(in.Port); err != nil {
		return err
	}
	if in.NodePort != 0 {
		if p.NodePort, err = number(in.NodePort); err != nil {
			return err
		}
	}
	for _, kind := range []struct {
		traffic *Traffic
		action  api.Action
		may     func(*api.Endpoint) bool
	}{
		{&p.Internal, in.Internal, (*api.Endpoint).GetInternal},
		{&p.External, in.External, (*api.Endpoint).GetExternal},
		{&p.Inside, in.Inside, (*api.Endpoint).GetInside},
	} {
		if *kind.traffic, err = traffic(kind.action, in.Endpoints, kind.may, p.Family); err != nil {
			return err
		}
	}
	if p.Established, err = addrPorts(in.Established, p.Family); err != nil {
		return err
	}
	other := p.NodePort != 0 || len(p.ExternalIPs)+len(p.LoadBalancerIPs) > 0
	switch {
	case p.Internal.Action == "":
		return errors.New("no action for its cluster IP")
	case other != (p.External.Action != "") || other != (p.Inside.Action != ""):
		return errors.New("actions for addresses that it does not have, or addresses without an action")
	case p.External.Forwards() && !p.Inside.Forwards(),
		other && !p.External.Forwards() && !p.Inside.Forwards() && p.External.Action != p.Inside.Action:
		return errors.New("what comes from inside is treated worse than what comes from outside")
	case !p.chains():
		return errors.New("different endpoints by the same policy")
	}
	// Slices that are equal share memory: most are.
	if slices.Equal(p.Internal.Endpoints, p.Inside.Endpoints) {
		p.Inside.Endpoints = p.Internal.Endpoints
	}
	if slices.Equal(p.Inside.Endpoints, p.External.Endpoints) {
		p.External.Endpoints = p.Inside.Endpoints
	}
	return nil
}

// chains reports whether kinds of traffic with the same policy have the same endpoints, so that one chain is enough for
// them.
func (p *Port) chains() bool {
	same := func(a, b Traffic) bool {
		return !a.Forwards() || !b.Forwards() || slices.Equal(a.Endpoints, b.Endpoints)
	}
	return (p.InternalToLocal || same(p.Internal, p.Inside)) && (p.ExternalToLocal || same(p.External, p.Inside)) &&
		(p.InternalToLocal != p.ExternalToLocal || same(p.Internal, p.External))
}

func traffic(
	action api.Action, list []*api.Endpoint, may func(*api.Endpoint) bool, family dataplane.Family,
) (Traffic, error) {
	var t Traffic
	switch action {
	case api.Action_ACTION_UNSPECIFIED:
	case api.Action_FORWARD:
		t.Action = dataplane.Forward
	case api.Action_REJECT:
		t.Action = dataplane.Reject
	case api.Action_DROP:
		t.Action = dataplane.Drop
	default:
		return t, fmt.Errorf("action %d", action)
	}
	used := make([]*api.Endpoint, 0, len(list))
	for _, e := range list {
		if may(e) {
			used = append(used, e)
		}
	}
	var err error
	if t.Endpoints, err = addrPorts(used, family); err != nil {
		return t, err
	}
	if (t.Action == dataplane.Forward) != (len(t.Endpoints) > 0) {
		return t, fmt.Errorf("%d endpoints for the action %v", len(t.Endpoints), action)
	}
	return t, nil
}

// addrPorts returns the addresses and ports of endpoints, sorted and without duplicates; nil for none.
func addrPorts(list []*api.Endpoint, family dataplane.Family) ([]netip.AddrPort, error) {
	var all []netip.AddrPort
	for _, e := range list {
		addr, err := address(e.GetAddress(), family)
		if err != nil {
			return nil, err
		}
		port, err := number(e.GetPort())
		if err != nil {
			return nil, err
		}
		all = append(all, netip.AddrPortFrom(addr, port))
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all), nil
}

func number(n int32) (uint16, error) {
	if n < 1 || n > 65535 {
		return 0, fmt.Errorf("port number %d", n)
	}
	return uint16(n), nil
}

func address(text string, family dataplane.Family) (netip.Addr, error) {
	a, err := anyAddress(text, family)
	if err != nil || !sendable(a) {
		return a, fmt.Errorf("address %.70q: not one of %s to which packets can be sent", text, family)
	}
	return a, nil
}

func anyAddress(text string, family dataplane.Family) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" || a.Is4() != (family == dataplane.IPv4) || a.Is4In6() {
		return a, fmt.Errorf("address %.70q: not one of %s", text, family)
	}
	return a, nil
}

// sendable reports whether packets can be sent to an address from elsewhere.
func sendable(a netip.Addr) bool { return !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() }

func addresses(
	texts []string, family dataplane.Family, parse func(string, dataplane.Family) (netip.Addr, error),
) ([]netip.Addr, error) {
	var list []netip.Addr
	for _, text := range texts {
		a, err := parse(text, family)
		if err != nil {
			return nil, err
		}
		list = append(list, a)
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list), nil
}

// prefixes returns nil for none, and for all addresses.
func prefixes(texts []string, family dataplane.Family) ([]netip.Prefix, error) {
	var list []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil || p.Addr().Is4() != (family == dataplane.IPv4) || p.Addr().Is4In6() {
			return nil, fmt.Errorf("prefix %.70q: not one of %s", text, family)
		}
		list = append(list, p.Masked())
	}
	return dataplane.Prefixes(list), nil
}

// collisions leaves each address, protocol and port to one Service: to the one whose cluster IP it is, else to the
// first one in the state's order. kube-proxy takes any one of them.
func (c *checker) collisions() {
	type key struct {
		family dataplane.Family
		dataplane.Key
	}
	taken := map[key]*Port{}
	take := func(p *Port, addr netip.Addr, number uint16, what string) bool {
		k := key{p.Family, dataplane.Key{Address: addr, Protocol: p.Protocol, Port: number}}
		other := taken[k]
		if other == nil {
			taken[k] = p
			return true
		}
		if other != p {
			c.problem("%s of %s is not served: %s has it: %s", what, p, other, k.Key)
		}
		return other == p
	}
	var kept []Port
	for i := range c.state.Ports {
		p := &c.state.Ports[i]
		if take(p, p.ClusterIP, p.Port, "a port") {
			kept = append(kept, *p)
		}
	}
	c.state.Ports = kept
	clear(taken)
	for i := range c.state.Ports {
		take(&c.state.Ports[i], c.state.Ports[i].ClusterIP, c.state.Ports[i].Port, "")
	}
	for i := range c.state.Ports {
		p := &c.state.Ports[i]
		p.ExternalIPs = slices.DeleteFunc(slices.Clone(p.ExternalIPs), func(a netip.Addr) bool {
			return a == p.ClusterIP || slices.Contains(p.LoadBalancerIPs, a) || !take(p, a, p.Port, "an external IP")
		})
		p.LoadBalancerIPs = slices.DeleteFunc(slices.Clone(p.LoadBalancerIPs), func(a netip.Addr) bool {
			if !sendable(a) {
				c.problem("load balancer IP %s of %s is not served: packets cannot be sent to it", a, p)
				return true
			}
			return a == p.ClusterIP || !take(p, a, p.Port, "a load balancer IP")
		})
		if p.NodePort != 0 && !take(p, netip.Addr{}, p.NodePort, "a node port") {
			p.NodePort = 0
		}
		if p.NodePort == 0 && len(p.ExternalIPs)+len(p.LoadBalancerIPs) == 0 {
			p.External, p.Inside = Traffic{}, Traffic{}
		}
	}
	ports := map[[2]any]bool{}
	c.state.Health = slices.DeleteFunc(c.state.Health, func(h Health) bool {
		k := [2]any{h.Family, h.Number}
		if ports[k] {
			c.problem("health check node port %d of %s/%s is not served: another Service has it", h.Number, h.Namespace, h.Service)
			return true
		}
		ports[k] = true
		return false
	})
	slices.SortFunc(c.state.Health, func(a, b Health) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Number, b.Number))
	})
}
