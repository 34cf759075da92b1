// SPDX-License-Identifier: Apache-2.0

package want_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/ipvs"
	"github.com/checkplan/checkplan/pkg/dataplane/netfilter"
	"github.com/checkplan/checkplan/pkg/dataplane/want"
)

// server finds a virtual server by its text.
func server(t *testing.T, k *ipvs.Kernel, text string) *ipvs.VirtualServer {
	t.Helper()
	for i := range k.Servers {
		if k.Servers[i].String() == text {
			return &k.Servers[i]
		}
	}
	t.Fatalf("no virtual server %s", text)
	return nil
}

// unset removes the entries of an ipset that have a text.
func unset(t *testing.T, k *ipvs.Kernel, set, has string) {
	t.Helper()
	i := slices.IndexFunc(k.Rules.IPSets, func(s netfilter.IPSet) bool { return s.Name == set })
	if i < 0 {
		t.Fatalf("no ipset %s", set)
	}
	before := len(k.Rules.IPSets[i].Entries)
	k.Rules.IPSets[i].Entries = slices.DeleteFunc(k.Rules.IPSets[i].Entries, func(e netfilter.IPSetEntry) bool {
		return strings.Contains(fmt.Sprintf("%s %s %d %s", e.Address, e.Protocol, e.Port, e.Second), has)
	})
	if len(k.Rules.IPSets[i].Entries) == before {
		t.Fatalf("no %q in ipset %s", has, set)
	}
}

// TestDamagedIPVS: what somebody changed in the mode ipvs on node-a is the one difference that is found.
func TestDamagedIPVS(t *testing.T) {
	const plain = "10.96.0.1:80/TCP"
	for _, row := range []struct {
		name   string
		damage func(t *testing.T, k *ipvs.Kernel)
		want   []string
	}{
		{"nothing", func(t *testing.T, k *ipvs.Kernel) {}, nil},
		{"a destination less", func(t *testing.T, k *ipvs.Kernel) {
			s := server(t, k, plain)
			s.Destinations = s.Destinations[1:]
		}, []string{"endpointMissing shop/plain:http 10.244.1.4:8080; 10.96.0.1:80/TCP from outside pod node"}},
		{"a destination gets no new connections", func(t *testing.T, k *ipvs.Kernel) { server(t, k, plain).Destinations[1].Weight = 0 }, []string{"endpointMissing shop/plain:http 10.244.2.5:8080; 10.96.0.1:80/TCP from outside pod node"}},
		{"a destination more", func(t *testing.T, k *ipvs.Kernel) {
			s := server(t, k, plain)
			s.Destinations = append(s.Destinations, ipvs.Destination{Address: netip.MustParseAddrPort("10.244.9.9:8080"), Weight: 1})
		}, []string{"endpointExtra shop/plain:http 10.244.9.9:8080; 10.96.0.1:80/TCP from outside pod node"}},
		{"another port", func(t *testing.T, k *ipvs.Kernel) {
			server(t, k, plain).Destinations[1].Address = netip.MustParseAddrPort("10.244.2.5:9999")
		}, []string{"endpointPort shop/plain:http 10.244.2.5:8080 (9999, not 8080); 10.96.0.1:80/TCP from outside pod node"}},
		{"no destinations", func(t *testing.T, k *ipvs.Kernel) { server(t, k, plain).Destinations = nil }, []string{"action shop/plain:http (reject, not forward); 10.96.0.1:80/TCP from outside pod node"}},
		{"no virtual server", func(t *testing.T, k *ipvs.Kernel) {
			*server(t, k, plain) = ipvs.VirtualServer{Mark: 7, Scheduler: "rr"}
		}, []string{"missing shop/plain:http (, not forward) whole; 10.96.0.1:80/TCP from outside pod node"}},
		{"no address on the interface", func(t *testing.T, k *ipvs.Kernel) {
			k.Device = slices.DeleteFunc(k.Device, func(a netip.Addr) bool { return a == netip.MustParseAddr("10.96.0.1") })
		}, []string{"missing shop/plain:http (, not forward); 10.96.0.1:80/TCP from outside pod"}},
		{"a virtual server at an address that no Service has", func(t *testing.T, k *ipvs.Kernel) {
			s := *server(t, k, plain)
			s.Address = netip.MustParseAddr("10.96.0.99")
			k.Servers = append(k.Servers, s)
			k.Device = append(k.Device, s.Address)
		}, []string{"extra : (forward, not ) whole; 10.96.0.99:80/TCP from outside pod node"}},
		{"a node port at one of the node's addresses", func(t *testing.T, k *ipvs.Kernel) {
			*server(t, k, "198.18.255.2:30053/UDP") = ipvs.VirtualServer{Mark: 7, Scheduler: "rr"}
		}, []string{"missing shop/node-port:stats (, not forward); node port 30053/UDP from outside pod node"}},
		{"a destination of a node port at one of the node's addresses", func(t *testing.T, k *ipvs.Kernel) {
			s := server(t, k, "198.18.255.2:30080/TCP")
			s.Destinations = s.Destinations[:1]
		}, []string{"endpointMissing shop/node-port:http 10.244.3.49:8080; node port 30080/TCP from outside pod node"}},
		{"a cluster IP that the rules do not let in", func(t *testing.T, k *ipvs.Kernel) { unset(t, k, "KUBE-CLUSTER-IP", "10.96.0.1/32 TCP 80") }, []string{"action shop/plain:http (reject, not forward); 10.96.0.1:80/TCP from outside pod"}},
		{"connections of an endpoint to itself", func(t *testing.T, k *ipvs.Kernel) { unset(t, k, "KUBE-LOOP-BACK", "10.244.1.4/32 TCP 8080") }, []string{"hairpin shop/plain:http 10.244.1.4:8080; 10.96.0.1:80/TCP from pod"}},
		{"a node port keeps the source", func(t *testing.T, k *ipvs.Kernel) { unset(t, k, "KUBE-NODE-PORT-UDP", "30053") }, []string{"masquerade shop/node-port:stats (preserved, not rewritten); node port 30053/UDP from outside pod node"}},
		{"the policy Local does not keep it", func(t *testing.T, k *ipvs.Kernel) { unset(t, k, "KUBE-NODE-PORT-LOCAL-TCP", "30082") }, []string{"masquerade shop/local-here:http (rewritten, not preserved); node port 30082/TCP from outside pod node"}},
		{"the source ranges are not looked at", func(t *testing.T, k *ipvs.Kernel) { unset(t, k, "KUBE-LOAD-BALANCER-FW", "203.0.113.15/32 TCP 443") }, []string{"sources shop/sources:https (all sources, not 192.0.2.0/28 198.51.100.0/23); 203.0.113.15:443/TCP from outside pod"}},
		{"a source range", func(t *testing.T, k *ipvs.Kernel) {
			unset(t, k, "KUBE-LOAD-BALANCER-SOURCE-CIDR", "203.0.113.15/32 TCP 443 198.51.100.0/24")
		}, []string{"sources shop/sources:https (192.0.2.0/28 198.51.101.0/24, not 192.0.2.0/28 198.51.100.0/23); 203.0.113.15:443/TCP from outside pod"}},
		{"another timeout of affinity", func(t *testing.T, k *ipvs.Kernel) { server(t, k, "10.96.0.11:80/TCP").AffinitySeconds = 60 }, []string{"affinity shop/sticky:http (60 s, not 600 s); 10.96.0.11:80/TCP from outside pod node"}},
		{"no affinity", func(t *testing.T, k *ipvs.Kernel) { server(t, k, "10.96.0.11:80/TCP").AffinitySeconds = 0 }, []string{"affinity shop/sticky:http (none, not 600 s); 10.96.0.11:80/TCP from outside pod node"}},
		{"affinity of networks", func(t *testing.T, k *ipvs.Kernel) { server(t, k, "10.96.0.11:80/TCP").ClientBits = 24 }, []string{"unmeasured shop/sticky:http (virtual server 10.96.0.11:80/TCP: clients of a prefix of length 24 share an endpoint, not ); 10.96.0.11:80/TCP from outside pod node"}},
		{"a scheduler that prefers an endpoint", func(t *testing.T, k *ipvs.Kernel) { server(t, k, plain).Scheduler = "fo" }, []string{`unmeasured shop/plain:http (virtual server 10.96.0.1:80/TCP: scheduler "fo", not ); 10.96.0.1:80/TCP from outside pod node`}},
		{"a method that is not NAT", func(t *testing.T, k *ipvs.Kernel) { server(t, k, plain).Destinations[0].Method = 3 }, []string{`unmeasured shop/plain:http (virtual server 10.96.0.1:80/TCP: method 3 to 10.244.1.4:8080, not ); 10.96.0.1:80/TCP from outside pod node`}},
		{"no jump to the rules for packets from elsewhere", func(t *testing.T, k *ipvs.Kernel) {
			k.Rules.Rules = slices.DeleteFunc(k.Rules.Rules, func(r netfilter.Rule) bool { return r.Chain == "PREROUTING" })
		}, []string{"masquerade shop/external-ip:http (preserved, not rewritten); 203.0.113.30:80/TCP from outside pod", "masquerade shop/node-port:http (preserved, not rewritten); node port 30080/TCP from outside pod", "masquerade shop/node-port:stats (preserved, not rewritten); node port 30053/UDP from outside pod", "masquerade shop/sources:https (preserved, not rewritten); node port 30443/TCP from outside pod; 203.0.113.15:443/TCP from outside pod"}},
		{"IPVS does not track connections", func(t *testing.T, k *ipvs.Kernel) { k.Untracked = true }, []string{"masquerade shop/external-ip:http (preserved, not rewritten); 203.0.113.30:80/TCP from outside pod node", "hairpin shop/hints:http 10.244.1.76:8080; 10.96.0.19:80/TCP from outside pod", "and 13 more"}},
		{"a rule that nobody knows", func(t *testing.T, k *ipvs.Kernel) {
			for i := range k.Rules.Rules {
				if r := &k.Rules.Rules[i]; r.Chain == "KUBE-MARK-MASQ" {
					r.Handle = 7
					r.Exprs = append([]netfilter.Expression{{Name: "quota"}}, r.Exprs...)
				}
			}
		}, []string{"unmeasured shop/both-local:http (table nat, chain KUBE-MARK-MASQ, rule 7: quota: not understood (quota, counter, target), not ); 10.96.0.20:80/TCP from outside node",
			"unmeasured shop/empty:http (table nat, chain KUBE-MARK-MASQ, rule 7: quota: not understood (quota, counter, target), not ); 10.96.0.6:80/TCP from outside node", "and 21 more"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			k := kernel(t, "ipvs-node-a-IPv4.json")
			row.damage(t, k)
			got := lines(dataplane.Compare(want.Table(state(t, "node-a"), dataplane.IPv4, dataplane.IPVS), parseIPVS(t, k)))
			if len(got) > 4 {
				got = append(got[:2], fmt.Sprintf("and %d more", len(got)-2))
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
