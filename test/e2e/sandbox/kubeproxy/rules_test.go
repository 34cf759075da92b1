// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	sysctltest "k8s.io/component-helpers/node/util/sysctl/testing"
	"k8s.io/kubernetes/pkg/proxy/iptables"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"
	utiliptables "k8s.io/kubernetes/pkg/util/iptables"
	iptablestest "k8s.io/kubernetes/pkg/util/iptables/testing"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/test/e2e/sandbox/internal/nodestate"
	"github.com/checkplan/checkplan/test/e2e/sandbox/internal/nodestate/nodestatetest"
)

// TestRules: what a state says of each kind of traffic is what the rules do that kube-proxy writes in the mode
// iptables. Packets are followed through them: to each address and port, from outside, from a pod of the node, and from
// the node.
func TestRules(t *testing.T) {
	// kube-proxy makes counters in the kernel, and cleans connections. It shall do so in a network of its own. A user
	// who may not have one may do neither.
	runtime.LockOSThread() // for good: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil && os.Geteuid() == 0 {
		t.Skipf("no network namespace: %v", err)
	}
	cases := uint64(1_000)
	if os.Getenv("CHECKPLAN_LONG") != "" {
		cases = 20_000
	}
	followed := map[string]int{}
	for seed := range cases {
		c := nodestatetest.Generate(seed)
		simplify(&c)
		if err := follow(c, followed); err != nil {
			small, shrinking := nodestatetest.Shrink(c, func(c nodestatetest.Case) bool {
				return possible(c) && len(c.Services) == 1 && follow(c, map[string]int{}) != nil
			})
			text, encoding := yaml.Marshal(small)
			t.Fatalf("seed %d: %v\n\nThe smallest case (shrink: %v, encode: %v):\n%s\n%v",
				seed, err, shrinking, encoding, text, follow(small, map[string]int{}))
		}
	}
	for what, least := range map[string]int{"internal forward": 500, "internal reject": 500, "internal drop": 50,
		"external forward": 100, "external reject": 200, "external drop": 30, "inside forward": 200, "inside reject": 200,
		"refused source": 20} {
		if followed[what] < least {
			t.Errorf("%d packets with %s, want %d or more", followed[what], what, least)
		}
	}
	t.Logf("%d cases, packets: %v", cases, followed)
}

// simplify leaves one Service, whose addresses and ports are its own, and no server of a health check.
func simplify(c *nodestatetest.Case) {
	c.Services, c.Changes, c.NodePortAddresses = c.Services[:1], nil, nil
	s := &c.Services[0]
	s.Spec.HealthCheckNodePort = 0
	taken := map[string]bool{}
	s.Spec.Ports = slices.DeleteFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
		keys := []string{fmt.Sprint(p.Name, p.Protocol), fmt.Sprint(p.Protocol, p.Port), fmt.Sprint("node ", p.Protocol, p.NodePort)}
		if p.NodePort == 0 {
			keys = keys[:2]
		}
		if slices.ContainsFunc(keys, func(k string) bool { return taken[k] }) {
			return true
		}
		for _, k := range keys {
			taken[k] = true
		}
		return false
	})
}

// Where packets come from, in both families.
var (
	outside  = [2]string{"198.18.0.9", "2001:db8:ffff::9"}
	podCIDRs = [2]string{"10.244.1.0/24", "fd00:244:1::/64"}
	pods     = [2]string{"10.244.1.5", "fd00:244:1::5"}
)

// packet is the first of a connection.
type packet struct {
	family       int
	from, to     netip.Addr
	fromHere     bool // from the node itself
	toHere       bool // to an address of the node
	protocol     nodestate.Protocol
	port         int32
	nat, filters *iptablestest.Table
}

// follow returns an error if a packet does not go where the state of the case says.
func follow(c nodestatetest.Case, followed map[string]int) error {
	if ambiguous(c) {
		return nil
	}
	cluster, err := nodestate.New(nodestate.Options{})
	if err != nil {
		return err
	}
	if c.Node != nil {
		cluster.SetNode(c.Node)
	}
	for i := range c.Services {
		cluster.SetService(&c.Services[i])
	}
	for i := range c.Slices {
		cluster.SetSlice(&c.Slices[i])
	}
	for _, service := range cluster.State(c.NodeName) {
		for _, family := range service.Families {
			f := slices.Index(families[:], corev1.IPFamily(family.Family))
			dump, nodeIP, err := rules(c, f)
			if err != nil {
				return err
			}
			for _, port := range family.Ports {
				if err := followPort(dump, f, nodeIP, family, port, followed); err != nil {
					return fmt.Errorf("%s %s port %q: %w\n%s", service.Name, family.Family, port.Name, err, dump)
				}
			}
		}
	}
	return nil
}

// rules are those that kube-proxy writes for one family, and the node's address.
func rules(c nodestatetest.Case, f int) (*iptablestest.IPTablesDump, netip.Addr, error) {
	o := newOracle(c)
	nodeIP, _ := netip.AddrFromSlice(o.nodeIPs[f])
	fake := iptablestest.NewFake()
	if f == 1 {
		fake = iptablestest.NewIPv6Fake()
	}
	p, err := iptables.NewProxier(context.Background(), families[f], fake, sysctltest.NewFake(), time.Hour, time.Hour, false, false, 14,
		proxyutil.NewDetectLocalByCIDR(podCIDRs[f]), c.NodeName, o.nodeIPs[f], nil, nil, nil, false)
	if err != nil {
		return nil, nodeIP, err
	}
	p.OnTopologyChange(o.zone)
	for _, s := range o.objects {
		p.OnServiceAdd(s)
	}
	for i := range c.Slices {
		if watched.Matches(labels.Set(c.Slices[i].Labels)) {
			p.OnEndpointSliceAdd(&c.Slices[i])
		}
	}
	p.OnServiceSynced()
	p.OnEndpointSlicesSynced()
	return fake.Dump, nodeIP.Unmap(), nil
}

func followPort(dump *iptablestest.IPTablesDump, f int, nodeIP netip.Addr, family nodestate.Family, port nodestate.Port, followed map[string]int) error {
	nat, err := dump.GetTable(utiliptables.TableNAT)
	if err != nil {
		return err
	}
	filters, err := dump.GetTable(utiliptables.TableFilter)
	if err != nil {
		return err
	}
	base := packet{family: f, protocol: port.Protocol, nat: nat, filters: filters}
	var want struct {
		action    nodestate.Action
		endpoints []string
	}
	expect := func(action nodestate.Action, may func(nodestate.Endpoint) bool) {
		want.action, want.endpoints = action, nil
		for _, e := range port.Endpoints {
			if may(e) {
				want.endpoints = append(want.endpoints, netip.AddrPortFrom(netip.MustParseAddr(e.Address), uint16(e.Port)).String())
			}
		}
		slices.Sort(want.endpoints)
	}
	check := func(kind string, p packet) error {
		action, endpoints := p.follow()
		followed[kind+" "+string(want.action)]++
		if action != want.action || !slices.Equal(endpoints, want.endpoints) {
			return fmt.Errorf("%s packet from %s to %s:%d: kube-proxy's rules %s %v, the state says %s %v",
				kind, p.from, p.to, p.port, action, endpoints, want.action, want.endpoints)
		}
		return nil
	}
	sources := []packet{base, base, base} // from outside, from a pod, from the node
	sources[0].from, sources[1].from = netip.MustParseAddr(outside[f]), netip.MustParseAddr(pods[f])
	sources[2].from, sources[2].fromHere = nodeIP, true

	expect(port.Internal, func(e nodestate.Endpoint) bool { return e.Internal })
	for _, p := range sources {
		p.to, p.port = netip.MustParseAddr(family.ClusterIP), port.Port
		if err := check("internal", p); err != nil {
			return err
		}
	}
	for i, source := range sources {
		kind := []string{"external", "inside", "inside"}[i]
		toward := func() {
			if kind == "external" {
				expect(port.External, func(e nodestate.Endpoint) bool { return e.External })
			} else {
				expect(port.Inside, func(e nodestate.Endpoint) bool { return e.Inside })
			}
		}
		toward()
		for _, to := range family.ExternalIPs {
			p := source
			p.to, p.port = netip.MustParseAddr(to), port.Port
			if err := check(kind, p); err != nil {
				return err
			}
		}
		if port.NodePort != 0 && !nodeIP.IsLoopback() {
			p := source
			p.to, p.port, p.toHere = nodeIP, port.NodePort, true
			if err := check(kind, p); err != nil {
				return err
			}
		}
		for _, to := range family.LoadBalancerIPs {
			froms := []netip.Addr{source.from}
			for _, prefix := range family.LoadBalancerSources {
				if kind == "external" { // the prefix's first address; a node's or a pod's own address is another kind
					froms = append(froms, netip.MustParsePrefix(prefix).Addr())
				}
			}
			for _, from := range froms {
				p := source
				p.from, p.to, p.port = from, netip.MustParseAddr(to), port.Port
				toward()
				allowed := len(family.LoadBalancerSources) == 0 || slices.ContainsFunc(family.LoadBalancerSources, func(prefix string) bool {
					return netip.MustParsePrefix(prefix).Contains(from)
				})
				if !allowed && want.action != nodestate.Reject { // without endpoints, this mode rejects first
					want.action, want.endpoints = nodestate.Drop, nil
					followed["refused source"]++
				}
				if err := check(kind, p); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// follow returns what becomes of the packet, and all endpoints that it may go to.
func (p packet) follow() (nodestate.Action, []string) {
	endpoints := map[string]bool{}
	p.walk(p.nat, "KUBE-SERVICES", func(r *iptablestest.Rule) bool {
		if r.DNATDestination != nil {
			endpoints[r.DNATDestination.Value] = true
		}
		return r.DNATDestination != nil
	})
	if len(endpoints) > 0 {
		var list []string
		for e := range endpoints {
			list = append(list, e)
		}
		slices.Sort(list)
		return nodestate.Forward, list
	}
	var action nodestate.Action
	for _, chain := range []utiliptables.Chain{"KUBE-PROXY-FIREWALL", "KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES"} {
		if p.walk(p.filters, chain, func(r *iptablestest.Rule) bool {
			switch r.Jump.Value {
			case "REJECT":
				action = nodestate.Reject
			case "DROP":
				action = nodestate.Drop
			default:
				return false
			}
			return true
		}) {
			return action, nil
		}
	}
	return "", nil
}

// walk calls final for each rule that matches and jumps to no chain of the table. It ends when final returns true, but
// for rules that match by chance or by affinity: then all that follows can happen, too.
func (p packet) walk(table *iptablestest.Table, name utiliptables.Chain, final func(*iptablestest.Rule) bool) bool {
	at := slices.IndexFunc(table.Chains, func(c iptablestest.Chain) bool { return c.Name == name })
	if at < 0 {
		return false
	}
	for _, r := range table.Chains[at].Rules {
		if r.Jump == nil || !p.matches(r) {
			continue
		}
		if r.Jump.Value == "RETURN" {
			return false
		}
		ended := p.walk(table, utiliptables.Chain(r.Jump.Value), final) || final(r)
		if ended && r.Probability == nil && r.AffinityCheck == nil {
			return true
		}
	}
	return false
}

func (p packet) matches(r *iptablestest.Rule) bool {
	is := func(v *iptablestest.IPTablesValue, matches bool) bool { return v == nil || matches != v.Negated }
	in := func(v *iptablestest.IPTablesValue, addr netip.Addr) bool {
		if v == nil {
			return true
		}
		if !strings.Contains(v.Value, "/") {
			return is(v, netip.MustParseAddr(v.Value) == addr)
		}
		return is(v, netip.MustParsePrefix(v.Value).Contains(addr))
	}
	return is(r.Protocol, r.Protocol != nil && strings.EqualFold(r.Protocol.Value, string(p.protocol))) &&
		in(r.SourceAddress, p.from) && in(r.DestinationAddress, p.to) &&
		is(r.SourceType, p.fromHere) && is(r.DestinationType, p.toHere) &&
		is(r.DestinationPort, r.DestinationPort != nil && r.DestinationPort.Value == fmt.Sprint(p.port)) &&
		r.MarkCheck == nil && r.SourcePort == nil && r.MatchSet == nil
}
