// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy/proxytest"
)

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

func addrs(texts string) (list []netip.Addr) {
	for _, text := range strings.Fields(texts) {
		list = append(list, addr(text))
	}
	return list
}

func ports(texts string) (list []netip.AddrPort) {
	for _, text := range strings.Fields(texts) {
		list = append(list, netip.MustParseAddrPort(text))
	}
	return list
}

func prefixes(texts string) (list []netip.Prefix) {
	for _, text := range strings.Fields(texts) {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

// to is traffic that goes to endpoints, or is dropped or rejected.
func to(text string) proxy.Traffic {
	switch text {
	case "drop":
		return proxy.Traffic{Action: dataplane.Drop}
	case "reject":
		return proxy.Traffic{Action: dataplane.Reject}
	}
	return proxy.Traffic{Action: dataplane.Forward, Endpoints: ports(text)}
}

// port is a port of TCP with a cluster IP that goes to one endpoint; changes make it another one.
func port(service, clusterIP string, changes ...func(*proxy.Port)) proxy.Port {
	p := proxy.Port{
		Family: dataplane.IPv4, Namespace: "shop", Service: service, Protocol: "TCP", Port: 80, ClusterIP: addr(clusterIP),
		Internal: to("10.1.0.1:8080"),
	}
	if p.ClusterIP.Is6() {
		p.Family, p.Internal = dataplane.IPv6, to("[fd00:1::1]:8080")
	}
	for _, change := range changes {
		change(&p)
	}
	return p
}

// others sets what happens to external addresses, from inside and from outside.
func others(inside, outside string) func(*proxy.Port) {
	return func(p *proxy.Port) { p.Inside, p.External = to(inside), to(outside) }
}

// atNode is a node with pods.
func atNode(addresses, pods string) proxy.Node {
	n := proxy.Node{Addresses: addrs(addresses)}
	slices.SortFunc(n.Addresses, netip.Addr.Compare)
	var err error
	if n.Pods, err = proxy.ParsePods(strings.Fields(pods), ""); err != nil {
		panic(err)
	}
	return n
}

// lines words a Layout, a line for each address and each place.
func lines(l *Layout) (text []string) {
	for _, a := range l.Addresses {
		text = append(text, "address "+a.String())
	}
	for _, place := range slices.SortedFunc(maps.Keys(l.Frontends), Place.compare) {
		f := l.Frontends[place]
		line := fmt.Sprintf("%s %s to %v", place, f.Service, f.Outside)
		if f.Near != nil {
			line += fmt.Sprintf(", from %v to %v", f.Near, f.Inside)
		}
		if !f.Open {
			line += fmt.Sprintf(", only from %v", f.From)
		}
		if f.Affinity != 0 {
			line += ", affinity " + f.Affinity.String()
		}
		text = append(text, line)
	}
	return text
}

// TestWant: what serves a state.
func TestWant(t *testing.T) {
	const web = "TCP 10.96.0.1:80 shop/web to [10.1.0.1:8080]"
	node := atNode("127.0.0.1 192.0.2.1 198.51.100.7 ::1 2001:db8::1 fe80::1", "10.244.1.0/24 fd00:244:1::/64")
	const near = "[10.244.1.0/24 127.0.0.1/32 192.0.2.1/32 198.51.100.7/32"
	for _, row := range []struct {
		name     string
		ports    []proxy.Port
		want     []string
		unserved []string
	}{
		{"nothing", nil, nil, nil},
		{"a cluster IP", []proxy.Port{port("web", "10.96.0.1")}, []string{"address 10.96.0.1", web}, nil},
		{"IPv6", []proxy.Port{port("web", "fd00:96::1")},
			[]string{"address fd00:96::1", "TCP [fd00:96::1]:80 shop/web to [[fd00:1::1]:8080]"}, nil},
		{"UDP and affinity", []proxy.Port{port("dns", "10.96.0.1", func(p *proxy.Port) { p.Protocol, p.AffinitySeconds = "UDP", 60 })},
			[]string{"address 10.96.0.1", "UDP 10.96.0.1:80 shop/dns to [10.1.0.1:8080], affinity 1m0s"}, nil},
		{"two ports of one address", []proxy.Port{port("web", "10.96.0.1"), port("web", "10.96.0.1", func(p *proxy.Port) { p.Port = 81 })},
			[]string{"address 10.96.0.1", web, "TCP 10.96.0.1:81 shop/web to [10.1.0.1:8080]"}, nil},
		{"refused: an address without a listener", []proxy.Port{port("web", "10.96.0.1", func(p *proxy.Port) { p.Internal = to("reject") })},
			[]string{"address 10.96.0.1"}, nil},
		{"dropped: a listener for nobody", []proxy.Port{port("web", "10.96.0.1", func(p *proxy.Port) { p.Internal = to("drop") })},
			[]string{"address 10.96.0.1", "TCP 10.96.0.1:80 shop/web to [], only from []"}, nil},
		{"SCTP", []proxy.Port{port("web", "10.96.0.1", func(p *proxy.Port) { p.Protocol = "SCTP" })},
			nil, []string{"shop/web is not served: the mode userspace has no SCTP"}},
		{"node ports", []proxy.Port{port("web", "10.96.0.1", others("10.1.0.1:8080", "10.1.0.1:8080"), func(p *proxy.Port) { p.NodePort = 30080 })},
			[]string{"address 10.96.0.1", web, "TCP 192.0.2.1:30080 shop/web to [10.1.0.1:8080]"}, nil},
		{"node ports of IPv6: not at link-local addresses", []proxy.Port{port("web", "fd00:96::1",
			others("[fd00:1::1]:8080", "[fd00:1::1]:8080"), func(p *proxy.Port) { p.NodePort = 30080 })},
			[]string{"address fd00:96::1", "TCP [2001:db8::1]:30080 shop/web to [[fd00:1::1]:8080]",
				"TCP [fd00:96::1]:80 shop/web to [[fd00:1::1]:8080]"}, nil},
		{"external IPs, one of which is the node's", []proxy.Port{port("web", "10.96.0.1", others("10.1.0.1:8080", "10.1.0.1:8080"),
			func(p *proxy.Port) { p.ExternalIPs = addrs("192.0.2.1 203.0.113.1") })},
			[]string{"address 10.96.0.1", "address 203.0.113.1", web, "TCP 192.0.2.1:80 shop/web to [10.1.0.1:8080]",
				"TCP 203.0.113.1:80 shop/web to [10.1.0.1:8080]"}, nil},
		{"Local: other endpoints from inside", []proxy.Port{port("web", "10.96.0.1", others("10.1.0.1:8080 10.1.0.2:8080", "10.1.0.2:8080"),
			func(p *proxy.Port) { p.ExternalIPs = addrs("203.0.113.1") })},
			[]string{"address 10.96.0.1", "address 203.0.113.1", web,
				"TCP 203.0.113.1:80 shop/web to [10.1.0.2:8080], from " + near + " 203.0.113.1/32] to [10.1.0.1:8080 10.1.0.2:8080]"}, nil},
		{"Local without endpoints: dropped from outside", []proxy.Port{port("web", "10.96.0.1", others("10.1.0.1:8080", "drop"),
			func(p *proxy.Port) { p.ExternalIPs = addrs("203.0.113.1") })},
			[]string{"address 10.96.0.1", "address 203.0.113.1", web, "TCP 203.0.113.1:80 shop/web to [], from " + near +
				" 203.0.113.1/32] to [10.1.0.1:8080], only from " + near + " 203.0.113.1/32]"}, nil},
		{"sources, of load balancers only", []proxy.Port{port("web", "10.96.0.1", others("10.1.0.1:8080", "10.1.0.1:8080"), func(p *proxy.Port) {
			p.ExternalIPs, p.LoadBalancerIPs, p.Sources = addrs("203.0.113.1"), addrs("203.0.113.2"), prefixes("198.51.0.0/16")
		})},
			[]string{"address 10.96.0.1", "address 203.0.113.1", "address 203.0.113.2", web, "TCP 203.0.113.1:80 shop/web to [10.1.0.1:8080]",
				"TCP 203.0.113.2:80 shop/web to [10.1.0.1:8080], only from [198.51.0.0/16]"}, nil},
		{"sources and dropped from outside: from those of them that are inside", []proxy.Port{port("web", "10.96.0.1", others("10.1.0.1:8080", "drop"),
			func(p *proxy.Port) {
				p.LoadBalancerIPs, p.Sources = addrs("203.0.113.2"), prefixes("10.0.0.0/8 198.51.100.0/24")
			})},
			[]string{"address 10.96.0.1", "address 203.0.113.2", web, "TCP 203.0.113.2:80 shop/web to [], from " + near +
				" 203.0.113.2/32] to [10.1.0.1:8080], only from [10.244.1.0/24 198.51.100.7/32]"}, nil},

		{"an external IP of an endpoint: not taken from it", []proxy.Port{port("api", "10.96.0.1", func(p *proxy.Port) { p.Internal = to("192.0.2.9:6443") }),
			port("evil", "10.96.0.2", others("10.1.0.1:8080", "10.1.0.1:8080"), func(p *proxy.Port) { p.ExternalIPs = addrs("192.0.2.9") })},
			[]string{"address 10.96.0.1", "address 10.96.0.2", "TCP 10.96.0.1:80 shop/api to [192.0.2.9:6443]", "TCP 10.96.0.2:80 shop/evil to [10.1.0.1:8080]"},
			[]string{"TCP 192.0.2.9:80 of shop/evil is not served: it is an endpoint's address"}},
		{"an endpoint at the node's address, with the port of an external IP", []proxy.Port{port("web", "10.96.0.1", others("192.0.2.1:80", "192.0.2.1:80"),
			func(p *proxy.Port) { p.Internal, p.ExternalIPs = to("192.0.2.1:80"), addrs("192.0.2.1") })},
			[]string{"address 10.96.0.1", "TCP 10.96.0.1:80 shop/web to [192.0.2.1:80]"},
			[]string{"TCP 192.0.2.1:80 of shop/web is not served: it is an endpoint's address"}},
		{"a cluster IP as an endpoint: it is not taken from the Service", []proxy.Port{port("web", "10.96.0.1"),
			port("evil", "10.96.0.2", func(p *proxy.Port) { p.Internal = to("10.1.0.1:8080 10.96.0.1:80") })},
			[]string{"address 10.96.0.1", "address 10.96.0.2", web, "TCP 10.96.0.2:80 shop/evil to [10.1.0.1:8080]"},
			[]string{"some endpoints of shop/evil are not used: they are cluster IPs or node ports"}},
		{"a node port as an endpoint: no circle", []proxy.Port{port("web", "10.96.0.1", others("192.0.2.1:30080", "192.0.2.1:30080"),
			func(p *proxy.Port) { p.NodePort = 30080 })},
			[]string{"address 10.96.0.1", web, "TCP 192.0.2.1:30080 shop/web to []"},
			[]string{"some endpoints of shop/web are not used: they are cluster IPs or node ports"}},
		{"a cluster IP that the node has elsewhere: a DNS cache on the node", []proxy.Port{port("dns", "198.51.100.7")},
			nil, []string{"cluster IP 198.51.100.7 of shop/dns is not served: the node has it on another interface"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			state := &proxy.State{Ports: row.ports, NodePorts: map[dataplane.Family]proxy.NodePorts{
				dataplane.IPv4: {Prefixes: prefixes("192.0.2.0/24")}, dataplane.IPv6: {All: true},
			}}
			have, unserved := Want(state, node)
			if diff := cmp.Diff(row.want, lines(have)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(row.unserved, unserved); diff != "" {
				t.Errorf("not served (-want +got)\n%s", diff)
			}
		})
	}
}

// TestDifference: what turns what is there into what has to be.
func TestDifference(t *testing.T) {
	layout := func(ports ...proxy.Port) *Layout {
		l, unserved := Want(&proxy.State{Ports: ports}, proxy.Node{})
		if len(unserved) > 0 {
			t.Fatal(unserved)
		}
		return l
	}
	place := func(text string) Place { return Place{"TCP", netip.MustParseAddrPort(text)} }
	one, two := port("web", "10.96.0.1"), port("dns", "10.96.0.2")
	other := port("web", "10.96.0.1", func(p *proxy.Port) { p.Internal = to("10.1.0.2:8080") })
	more := port("web", "10.96.0.1", func(p *proxy.Port) { p.Port = 81 })
	for _, row := range []struct {
		name      string
		addresses string // of the interface
		have      *Layout
		want      *Layout
		change    Change
	}{
		{"the first state", "", layout(), layout(one), Change{Add: addrs("10.96.0.1"), Open: []Place{place("10.96.0.1:80")}}},
		{"the same", "10.96.0.1", layout(one), layout(one), Change{}},
		{"after a predecessor", "10.96.0.1 10.96.0.9 fd00::9", layout(), layout(one, two),
			Change{Add: addrs("10.96.0.2"), Open: []Place{place("10.96.0.1:80"), place("10.96.0.2:80")}, Remove: addrs("10.96.0.9 fd00::9")}},
		{"another endpoint", "10.96.0.1", layout(one), layout(other), Change{Set: []Place{place("10.96.0.1:80")}}},
		{"a port more", "10.96.0.1", layout(one), layout(one, more), Change{Open: []Place{place("10.96.0.1:81")}}},
		{"a port less", "10.96.0.1", layout(one, more), layout(one), Change{Close: []Place{place("10.96.0.1:81")}}},
		{"a Service less", "10.96.0.1 10.96.0.2", layout(one, two), layout(two),
			Change{Close: []Place{place("10.96.0.1:80")}, Remove: addrs("10.96.0.1")}},
		{"an address that somebody removed", "", layout(one), layout(one), Change{Add: addrs("10.96.0.1")}},
		{"a listener that could not be opened", "10.96.0.1 10.96.0.2", layout(one), layout(one, two), Change{Open: []Place{place("10.96.0.2:80")}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			have := Difference(addrs(row.addresses), row.have.Frontends, row.want)
			if diff := cmp.Diff(row.change, have, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
				cmp.Comparer(func(a, b Place) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestFrontends: each field of a Frontend is one that Difference looks at.
func TestFrontends(t *testing.T) {
	base := Frontend{}
	for name, f := range map[string]Frontend{
		"Service": {Service: "a"}, "Affinity": {Affinity: time.Second}, "Near": {Near: prefixes("10.0.0.0/8")}, "Inside": {Inside: ports("10.0.0.1:1")},
		"Outside": {Outside: ports("10.0.0.1:1")}, "Open": {Open: true}, "From": {From: prefixes("10.0.0.0/8")},
	} {
		if base.equal(&f) || !f.equal(&f) {
			t.Error(name)
		}
	}
}

// sound reports what no layout may have: the proxy connects to nothing that is itself, and takes no endpoint's address.
func sound(t *testing.T, l *Layout, node proxy.Node) {
	t.Helper()
	for place, f := range l.Frontends {
		if !slices.Contains(l.Addresses, place.At.Addr()) && !slices.Contains(node.Addresses, place.At.Addr()) {
			t.Errorf("%s is at no address", place)
		}
		for _, e := range slices.Concat(f.Inside, f.Outside) {
			if slices.Contains(l.Addresses, e.Addr()) || l.Frontends[Place{place.Protocol, e}] != nil {
				t.Errorf("%s leads to %s, which is the proxy", place, e)
			}
		}
	}
	for _, a := range l.Addresses {
		if slices.Contains(node.Addresses, a) {
			t.Errorf("the node has %s already", a)
		}
	}
}

// TestWantAny: layouts of random clusters serve each cluster IP, or word why not; each difference leads to the next.
func TestWantAny(t *testing.T) {
	node, served := proxytest.Node(), 0
	for seed := range uint64(50) {
		have := &Layout{}
		for _, step := range proxytest.Steps(seed) {
			state := proxy.Check(step.Items)
			want, unserved := Want(state, node)
			sound(t, want, node)
			for i := range state.Ports {
				p := &state.Ports[i]
				f := want.Frontends[Place{p.Protocol, netip.AddrPortFrom(p.ClusterIP, p.Port)}]
				wants := p.Internal.Action != dataplane.Reject && p.Protocol != "SCTP"
				if (f != nil) != wants || wants && (!slices.Equal(f.Outside, p.Internal.Endpoints) || f.Open != p.Internal.Forwards()) {
					t.Errorf("seed %d: %s: %+v, want %+v; %q", seed, p, f, p.Internal, unserved)
				}
				served++
			}
			c := Difference(have.Addresses, have.Frontends, want)
			next := &Layout{Frontends: maps.Clone(have.Frontends)}
			if next.Frontends == nil {
				next.Frontends = map[Place]*Frontend{}
			}
			for _, place := range c.Close {
				delete(next.Frontends, place)
			}
			for _, place := range slices.Concat(c.Set, c.Open) {
				next.Frontends[place] = want.Frontends[place]
			}
			next.Addresses = slices.Concat(have.Addresses, c.Add)
			next.Addresses = slices.DeleteFunc(next.Addresses, func(a netip.Addr) bool { return slices.Contains(c.Remove, a) })
			slices.SortFunc(next.Addresses, netip.Addr.Compare)
			if diff := cmp.Diff(lines(want), lines(next)); diff != "" {
				t.Fatalf("seed %d (-want +got)\n%s", seed, diff)
			}
			have = want
		}
	}
	if served < 50 {
		t.Errorf("only %d ports", served)
	}
}

// TestHostile: whatever a state has, its layout is sound, and texts about it are few.
func TestHostile(t *testing.T) {
	node := proxytest.Node()
	texts := proxytest.Strings
	pick := func(n, step int) string { return texts[(n*step+n/len(texts))%len(texts)] }
	kept := 0
	for n := range 20_000 {
		good := []string{"10.96.0.1", "192.0.2.1", "203.0.113.1", "10.96.0.2"}
		clusterIP, other, endpoint := good[n%4], good[n/4%4], good[n/16%4]
		if n%5 == 0 {
			clusterIP, other, endpoint = pick(n, 1), pick(n, 3), pick(n, 7)
		}
		number := []int32{80, 0, -1, 65535, 65536}[n/64%5]
		kinds := uint16(n*2654435761>>7) | 1<<6
		item := proxytest.Hostile("shop", "web", "", clusterIP, other, "0.0.0.0/0", endpoint, number, 0, kinds)
		state := proxy.Check(append(proxytest.Messages(nil), item,
			proxytest.Hostile("shop", "other", "", "10.96.0.2", "203.0.113.9", "0.0.0.0/0", clusterIP, 80, 0, 1<<6|1<<10|0b010101)))
		want, unserved := Want(state, node)
		kept += len(want.Frontends)
		sound(t, want, node)
		if len(unserved) > proxy.MaxProblems {
			t.Fatal(len(unserved))
		}
	}
	if kept < 1000 {
		t.Errorf("only %d places", kept)
	}
	var many proxy.State
	for i := range 300 {
		many.Ports = append(many.Ports, port(fmt.Sprint("s", i), "10.96.0.1", func(p *proxy.Port) { p.Protocol, p.Port = "SCTP", uint16(i+1) }))
	}
	if _, unserved := Want(&many, node); len(unserved) != proxy.MaxProblems {
		t.Errorf("%d texts", len(unserved))
	}
}

// TestMaxPlaces: more places than that are not opened.
func TestMaxPlaces(t *testing.T) {
	var state proxy.State
	for i := range maxPlaces + 10 {
		a := netip.AddrFrom4([4]byte{10, 96, byte(i >> 14), 1})
		state.Ports = append(state.Ports, port(fmt.Sprint("s", i), a.String(), func(p *proxy.Port) { p.Port = uint16(i&0x3fff + 1) }))
	}
	if l, unserved := Want(&state, proxy.Node{}); len(l.Frontends) != maxPlaces || len(unserved) != 10 {
		t.Errorf("%d places, %d are not", len(l.Frontends), len(unserved))
	}
}
