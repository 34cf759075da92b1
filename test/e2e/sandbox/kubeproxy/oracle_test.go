// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	apiservice "k8s.io/kubernetes/pkg/api/v1/service"
	"k8s.io/kubernetes/pkg/proxy"
	"k8s.io/kubernetes/pkg/proxy/apis"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"
	utilnode "k8s.io/kubernetes/pkg/util/node"
	netutils "k8s.io/utils/net"

	"github.com/checkplan/checkplan/test/e2e/sandbox/internal/nodestate"
	"github.com/checkplan/checkplan/test/e2e/sandbox/internal/nodestate/nodestatetest"
)

func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{}) // kube-proxy logs what it ignores
	os.Exit(m.Run())
}

var families = [2]corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}

// oracle is kube-proxy up to the point where it writes rules: both families' trackers, and the maps that they update.
type oracle struct {
	node      string
	zone      map[string]string // topology labels
	nodeIPs   [2]net.IP
	nodePorts []string // --nodeport-addresses, without "primary"

	objects   map[string]*corev1.Service
	services  [2]*proxy.ServiceChangeTracker
	endpoints [2]*proxy.EndpointsChangeTracker
	ports     [2]proxy.ServicePortMap
	ready     [2]proxy.EndpointsMap
}

// watched is the selector of kube-proxy's informers of Services and EndpointSlices: cmd/kube-proxy/app/server.go.
var watched = func() labels.Selector {
	selector := labels.NewSelector()
	for _, label := range []string{apis.LabelServiceProxyName, corev1.IsHeadlessService} {
		absent, err := labels.NewRequirement(label, selection.DoesNotExist, nil)
		if err != nil {
			panic(err)
		}
		selector = selector.Add(*absent)
	}
	return selector
}()

func newOracle(c nodestatetest.Case) *oracle {
	o := &oracle{node: c.NodeName, nodePorts: c.NodePortAddresses, objects: map[string]*corev1.Service{}}
	// detectNodeIPs of cmd/kube-proxy/app/server.go, which is not exported.
	o.nodeIPs = [2]net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	if c.Node != nil {
		o.zone = map[string]string{}
		if zone, ok := c.Node.Labels[corev1.LabelTopologyZone]; ok {
			o.zone[corev1.LabelTopologyZone] = zone
		}
		ips, _ := utilnode.GetNodeHostIPs(c.Node)
		for _, ip := range ips {
			if netutils.IsIPv4(ip) {
				o.nodeIPs[0] = ip
			} else {
				o.nodeIPs[1] = ip
			}
		}
	}
	// newProxyServer of the same file.
	if len(o.nodePorts) == 1 && o.nodePorts[0] == "primary" {
		o.nodePorts = nil
		for f, ip := range o.nodeIPs {
			if !ip.IsLoopback() {
				o.nodePorts = append(o.nodePorts, fmt.Sprintf("%s/%d", ip, []int{32, 128}[f]))
			}
		}
	}
	for f, family := range families {
		o.services[f] = proxy.NewServiceChangeTracker(family, nil, nil)
		o.endpoints[f] = proxy.NewEndpointsChangeTracker(family, c.NodeName, nil, nil)
		o.ports[f], o.ready[f] = proxy.ServicePortMap{}, proxy.EndpointsMap{}
	}
	for i := range c.Services {
		o.setService(&c.Services[i])
	}
	for i := range c.Slices {
		o.setSlice(&c.Slices[i], false)
	}
	o.update()
	return o
}

// setService does what the informer's events of an added, updated or deleted Service do.
func (o *oracle) setService(s *corev1.Service) {
	if !watched.Matches(labels.Set(s.Labels)) || s.Spec.ClusterIP == corev1.ClusterIPNone { // the field selector
		o.deleteService(s.Name)
		return
	}
	for _, tracker := range o.services {
		tracker.Update(o.objects[s.Name], s)
	}
	o.objects[s.Name] = s
}

func (o *oracle) deleteService(name string) {
	if old := o.objects[name]; old != nil {
		for _, tracker := range o.services {
			tracker.Update(old, nil)
		}
		delete(o.objects, name)
	}
}

func (o *oracle) setSlice(s *discoveryv1.EndpointSlice, remove bool) {
	for _, tracker := range o.endpoints {
		tracker.EndpointSliceUpdate(s, remove || !watched.Matches(labels.Set(s.Labels)))
	}
}

func (o *oracle) update() {
	for f := range families {
		o.ports[f].Update(o.services[f])
		o.ready[f].Update(o.endpoints[f])
	}
}

// state words what kube-proxy knows in the terms of pkg/nodestate.
func (o *oracle) state() []*nodestate.ServiceEndpoints {
	state := []*nodestate.ServiceEndpoints{}
	for _, object := range o.objects {
		message := &nodestate.ServiceEndpoints{
			Namespace: object.Namespace, Name: object.Name, Type: string(object.Spec.Type),
			ExternalTrafficToLocal: apiservice.ExternalPolicyLocal(object),
			InternalTrafficToLocal: apiservice.InternalPolicyLocal(object),
		}
		for f := range families {
			if family, ok := o.family(f, object, message); ok {
				message.Families = append(message.Families, family)
			}
		}
		if len(message.Families) > 0 {
			state = append(state, message)
		}
	}
	slices.SortFunc(state, func(s, t *nodestate.ServiceEndpoints) int { return strings.Compare(s.Name, t.Name) })
	return state
}

func (o *oracle) family(f int, object *corev1.Service, message *nodestate.ServiceEndpoints) (nodestate.Family, bool) {
	family := nodestate.Family{Family: nodestate.IPFamily(families[f])}
	id := types.NamespacedName{Namespace: object.Namespace, Name: object.Name}
	nodePorts := proxyutil.NewNodePortAddresses(families[f], o.nodePorts)
	served := strings.Fields(strings.Trim(nodePorts.String(), "[]"))
	if nodePorts.MatchAll() {
		served = []string{[]string{proxyutil.IPv4ZeroCIDR, proxyutil.IPv6ZeroCIDR}[f]}
	}
	slices.Sort(served)
	for name, info := range o.ports[f] {
		if name.NamespacedName != id {
			continue
		}
		message.AffinitySeconds = int32(info.StickyMaxAgeSeconds())
		if info.SessionAffinityType() != corev1.ServiceAffinityClientIP && info.StickyMaxAgeSeconds() != 0 {
			panic("seconds without affinity")
		}
		family.ClusterIP = info.ClusterIP().String()
		family.ExternalIPs, family.LoadBalancerIPs = texts(info.ExternalIPs()), texts(info.LoadBalancerVIPs())
		family.LoadBalancerSources = o.sources(f, info)
		if health, ok := o.ports[f].HealthCheckNodePorts()[id]; ok {
			message.HealthCheckNodePort = int32(health)
			family.HealthyEndpoints = int32(o.ready[f].LocalReadyEndpoints()[id])
			family.NodePortPrefixes = served
		}
		if info.NodePort() != 0 {
			family.NodePortPrefixes = served
		}
		family.Ports = append(family.Ports, o.port(f, name, info))
	}
	slices.SortFunc(family.Ports, func(p, q nodestate.Port) int {
		return strings.Compare(p.Name+" "+string(p.Protocol), q.Name+" "+string(q.Protocol))
	})
	return family, len(family.Ports) > 0
}

// port follows syncProxyRules of pkg/proxy/nftables/proxier.go, which is the same as that of pkg/proxy/iptables here.
func (o *oracle) port(f int, name proxy.ServicePortName, info proxy.ServicePort) nodestate.Port {
	p := nodestate.Port{Name: name.Port, Protocol: nodestate.Protocol(name.Protocol), Port: int32(info.Port()), NodePort: int32(info.NodePort())}
	cluster, local, reachable, hasEndpoints := proxy.CategorizeEndpoints(o.ready[f][name], info, o.node, o.zone)
	internal, external := cluster, cluster
	hasInternal, hasExternal := hasEndpoints, hasEndpoints
	if info.InternalPolicyLocal() {
		internal, hasInternal = local, hasEndpoints && len(local) > 0
	}
	if info.ExternalPolicyLocal() {
		external, hasExternal = local, hasEndpoints && len(local) > 0
	}
	action := func(has bool) nodestate.Action {
		switch {
		case !hasEndpoints:
			return nodestate.Reject
		case !has:
			return nodestate.Drop
		}
		return nodestate.Forward
	}
	p.Internal = action(hasInternal)
	inside := cluster // what the short-circuit rules of the external chain jump to; and without them the policy is Cluster
	if info.ExternallyAccessible() {
		p.External, p.Inside = action(hasExternal), action(hasEndpoints)
	} else {
		external, inside = nil, nil
	}
	has := func(list []proxy.Endpoint, e proxy.Endpoint) bool {
		return slices.ContainsFunc(list, func(other proxy.Endpoint) bool { return other.String() == e.String() })
	}
	for _, e := range reachable {
		p.Endpoints = append(p.Endpoints, nodestate.Endpoint{
			Address: e.IP(), Port: int32(e.Port()), Local: e.IsLocal(),
			Internal: has(internal, e), External: has(external, e), Inside: has(inside, e),
		})
	}
	// What CleanStaleEntries of pkg/proxy/conntrack/cleanup.go lets be.
	for _, e := range o.ready[f][name] {
		if name.Protocol == corev1.ProtocolUDP && e.IsServing() && !has(reachable, e) {
			p.Established = append(p.Established, nodestate.Endpoint{Address: e.IP(), Port: int32(e.Port()), Local: e.IsLocal()})
		}
	}
	for _, list := range [][]nodestate.Endpoint{p.Endpoints, p.Established} {
		slices.SortFunc(list, func(a, b nodestate.Endpoint) int {
			return netip.MustParseAddrPort(net.JoinHostPort(a.Address, fmt.Sprint(a.Port))).Compare(
				netip.MustParseAddrPort(net.JoinHostPort(b.Address, fmt.Sprint(b.Port))))
		})
	}
	return p
}

// sources follows the firewall chain of syncProxyRules.
func (o *oracle) sources(f int, info proxy.ServicePort) []string {
	if len(info.LoadBalancerVIPs()) == 0 || len(info.LoadBalancerSourceRanges()) == 0 {
		return nil
	}
	var sources []string
	fromNode := false
	for _, cidr := range info.LoadBalancerSourceRanges() {
		sources = append(sources, cidr.String())
		fromNode = fromNode || cidr.Contains(o.nodeIPs[f])
	}
	if fromNode {
		for _, ip := range info.LoadBalancerVIPs() {
			sources = append(sources, fmt.Sprintf("%s/%d", ip, []int{32, 128}[f]))
		}
	}
	slices.Sort(sources)
	return slices.Compact(sources)
}

// texts are addresses in their order as text, once each.
func texts(ips []net.IP) []string {
	var list []netip.Addr
	for _, ip := range ips {
		addr, _ := netip.AddrFromSlice(ip)
		list = append(list, addr.Unmap())
	}
	var texts []string
	for _, addr := range list {
		texts = append(texts, addr.String())
	}
	slices.Sort(texts)
	return slices.Compact(texts)
}
