// SPDX-License-Identifier: Apache-2.0

package write

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/knftables"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/ipvs"
	nftables "github.com/checkplan/checkplan/pkg/dataplane/nftables/write"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
)

// hash is that of the names of chains.
var hash = regexp.MustCompile(`-[A-Z2-7]{8}-`)

// rendered words rules: those of chains that are not of every table, and the elements of sets.
func rendered(r *nftables.Rules) (list []string) {
	fixed := Render(stateOf(), atNode(), r.Family)
	for _, name := range slices.Sorted(maps.Keys(r.Chains)) {
		if _, ok := fixed.Chains[name]; ok {
			continue
		}
		for _, rule := range r.Chains[name].Rules {
			list = append(list, hash.ReplaceAllString(name+": "+rule.Text, "-*-"))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Sets)) {
		for _, key := range slices.Sorted(maps.Keys(r.Sets[name].Elements)) {
			text := name + ": " + key
			if value := r.Sets[name].Elements[key].Value; value != "" {
				text += " : " + value
			}
			list = append(list, hash.ReplaceAllString(text, "-*-"))
		}
	}
	return list
}

// TestRender: the rules beside virtual servers. Chains and elements that a row does not name do not exist.
func TestRender(t *testing.T) {
	const (
		address  = "service-addresses: 10.96.0.1"
		served   = "served: 10.96.0.1 . tcp . 80 : return"
		loops    = "hairpin: 10.1.0.1 . 10.1.0.1"
		ofPods   = "service-*-shop/web/tcp/: ip saddr != 10.244.1.0/24 jump mark-for-masquerade"
		toOfPods = "service-ips: 10.96.0.1 . tcp . 80 : goto service-*-shop/web/tcp/"
	)
	for _, row := range []struct {
		name string
		node func(*proxy.Node)
		port proxy.Port
		want []string
	}{
		{"a cluster IP: the source of connections from elsewhere is rewritten", nil, port("web", "10.96.0.1"),
			[]string{ofPods, loops, served, address, toOfPods}},
		{"pods are not recognised", func(n *proxy.Node) { n.Pods = proxy.Pods{} }, port("web", "10.96.0.1"), []string{loops, served, address}},
		{"pods by interface", func(n *proxy.Node) { n.Pods = proxy.Pods{Interface: "cali*"} }, port("web", "10.96.0.1"),
			[]string{`service-*-shop/web/tcp/: iifname != "cali*" jump mark-for-masquerade`, loops, served, address, toOfPods}},
		{"all sources", func(n *proxy.Node) { n.MasqueradeAll = true }, port("web", "10.96.0.1"),
			[]string{"service-*-shop/web/tcp/: jump mark-for-masquerade", loops, served, address, toOfPods}},
		{"refused by IPVS", nil, port("web", "10.96.0.1", internal("reject")), []string{served, address}},
		{"dropped", nil, port("web", "10.96.0.1", internal("drop")), []string{"served: 10.96.0.1 . tcp . 80 : drop", address}},
		{"an external IP", nil, port("web", "10.96.0.1", others("10.1.0.1:8080", "10.1.0.1:8080")),
			[]string{"external-*-shop/web/tcp/: jump mark-for-masquerade", ofPods, loops, served, "served: 203.0.113.1 . tcp . 80 : return", address,
				"service-addresses: 203.0.113.1", toOfPods, "service-ips: 203.0.113.1 . tcp . 80 : goto external-*-shop/web/tcp/"}},
		{"a node port: other ports of the address are not refused", nil, port("web", "10.96.0.1", others("10.1.0.1:8080", "10.1.0.1:8080"), nodePort),
			[]string{"external-*-shop/web/tcp/: jump mark-for-masquerade", ofPods, loops, served, address, toOfPods,
				"service-ips: 192.0.2.1 . tcp . 30080 : goto external-*-shop/web/tcp/"}},
		{"Local, all endpoints on the node", nil, port("web", "10.96.0.1", others("10.1.0.1:8080", "10.1.0.1:8080"), local),
			[]string{"external-*-shop/web/tcp/: ip saddr 10.244.1.0/24 return",
				"external-*-shop/web/tcp/: fib saddr type local jump mark-for-masquerade", ofPods, loops, served,
				"served: 203.0.113.1 . tcp . 80 : return", address, "service-addresses: 203.0.113.1", toOfPods,
				"service-ips: 203.0.113.1 . tcp . 80 : goto external-*-shop/web/tcp/"}},
		{"Local, other endpoints from inside", nil, port("web", "10.96.0.1", others("10.1.0.1:8080 10.1.0.2:8080", "10.1.0.2:8080")),
			[]string{
				"endpoint-*-shop/web/tcp/__10.1.0.1/8080: ip saddr 10.1.0.1 jump mark-for-masquerade",
				"endpoint-*-shop/web/tcp/__10.1.0.1/8080: meta l4proto tcp dnat to 10.1.0.1:8080",
				"endpoint-*-shop/web/tcp/__10.1.0.2/8080: ip saddr 10.1.0.2 jump mark-for-masquerade",
				"endpoint-*-shop/web/tcp/__10.1.0.2/8080: meta l4proto tcp dnat to 10.1.0.2:8080",
				"external-*-shop/web/tcp/: ip saddr 10.244.1.0/24 goto inside-*-shop/web/tcp/",
				"external-*-shop/web/tcp/: fib saddr type local jump mark-for-masquerade",
				"external-*-shop/web/tcp/: fib saddr type local goto inside-*-shop/web/tcp/",
				"inside-*-shop/web/tcp/: numgen random mod 2 vmap { 0 : goto endpoint-*-shop/web/tcp/__10.1.0.1/8080 , " +
					"1 : goto endpoint-*-shop/web/tcp/__10.1.0.2/8080 }",
				ofPods, loops, "hairpin: 10.1.0.2 . 10.1.0.2", served, "served: 203.0.113.1 . tcp . 80 : return", address,
				"service-addresses: 203.0.113.1", toOfPods, "service-ips: 203.0.113.1 . tcp . 80 : goto external-*-shop/web/tcp/"}},
		{"Local, and none on the node: dropped from outside", nil, port("web", "10.96.0.1", others("10.1.0.1:8080", "drop")),
			[]string{
				"endpoint-*-shop/web/tcp/__10.1.0.1/8080: ip saddr 10.1.0.1 jump mark-for-masquerade",
				"endpoint-*-shop/web/tcp/__10.1.0.1/8080: meta l4proto tcp dnat to 10.1.0.1:8080",
				"external-*-shop/web/tcp/: ip saddr 10.244.1.0/24 goto inside-*-shop/web/tcp/",
				"external-*-shop/web/tcp/: fib saddr type local jump mark-for-masquerade",
				"external-*-shop/web/tcp/: fib saddr type local goto inside-*-shop/web/tcp/",
				"inside-*-shop/web/tcp/: goto endpoint-*-shop/web/tcp/__10.1.0.1/8080",
				ofPods, loops, served, "served: 203.0.113.1 . tcp . 80 : drop", address, "service-addresses: 203.0.113.1", toOfPods,
				"service-ips: 203.0.113.1 . tcp . 80 : goto external-*-shop/web/tcp/"}},
		{"sources of load balancers", nil, port("web", "10.96.0.1", others("reject", "reject"), func(p *proxy.Port) {
			p.LoadBalancerIPs, p.Sources, p.Internal = addrs("203.0.113.2"), atNode().Pods.Prefixes[:1], to("reject")
		}),
			[]string{"firewall-*-shop/web/tcp/: ip saddr != { 10.244.1.0/24 } drop", "firewall-ips: 203.0.113.2 . tcp . 80 : goto firewall-*-shop/web/tcp/",
				served, "served: 203.0.113.1 . tcp . 80 : return", "served: 203.0.113.2 . tcp . 80 : return", address,
				"service-addresses: 203.0.113.1", "service-addresses: 203.0.113.2"}},
		{"IPv6", nil, port("web", "fd00:96::1"),
			[]string{"service-*-shop/web/tcp/: ip6 saddr != fd00:244:1::/64 jump mark-for-masquerade", "hairpin: fd00:1::1 . fd00:1::1",
				"served: fd00:96::1 . tcp . 80 : return", "service-addresses: fd00:96::1",
				"service-ips: fd00:96::1 . tcp . 80 : goto service-*-shop/web/tcp/"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			node := atNode()
			if row.node != nil {
				row.node(&node)
			}
			if diff := cmp.Diff(row.want, rendered(Render(stateOf(row.port), node, row.port.Family))); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// everything is a Service with all that a Service can have.
func everything() *proxy.State {
	return stateOf(port("web", "10.96.0.1", others("10.1.0.1:8080 10.1.0.2:8080", "10.1.0.2:8080"), func(p *proxy.Port) {
		p.NodePort, p.AffinitySeconds, p.Name = 30080, 600, "http"
		p.LoadBalancerIPs, p.Sources = addrs("203.0.113.2"), atNode().Pods.Prefixes[:1]
	}), port("zero", "10.96.0.2", internal("reject")))
}

// TestGolden: the whole table, addresses and virtual servers of a Service with everything, as a person reads them.
func TestGolden(t *testing.T) {
	fake := knftables.NewFake(knftables.IPv4Family, ipvs.OwnTable)
	tx := fake.NewTransaction()
	Render(everything(), atNode(), dataplane.IPv4).Replace(tx)
	if err := fake.Run(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	have := fake.Dump() + strings.Join(lines(Want(everything(), atNode(), dataplane.IPv4, &proxy.Unserved{})), "\n") + "\n"
	const golden = "testdata/everything.txt"
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(golden, []byte(have), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), have); diff != "" {
		t.Errorf("%s (-want +got)\n%s", golden, diff)
	}
}
