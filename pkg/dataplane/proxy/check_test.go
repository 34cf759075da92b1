// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
	"github.com/checkplan/checkplan/pkg/nodestate/api"
)

// service is a Service of IPv4 with one port and all kinds of addresses; changes make others of it.
func service(name string, change ...func(*api.ServiceEndpoints)) *api.ServiceEndpoints {
	s := &api.ServiceEndpoints{Namespace: "shop", Name: name, Families: []*api.Family{{
		Family: api.IPFamily_IPv4, ClusterIP: "10.96.0.1", ExternalIPs: []string{"203.0.113.1"}, LoadBalancerIPs: []string{"203.0.113.2"},
		LoadBalancerSources: []string{"198.51.100.0/24"}, NodePortPrefixes: []string{"0.0.0.0/0"},
		Ports: []*api.Port{{
			Name: "http", Protocol: api.Protocol_TCP, Port: 80, NodePort: 30080,
			Internal: api.Action_FORWARD, External: api.Action_FORWARD, Inside: api.Action_FORWARD,
			Endpoints: []*api.Endpoint{
				{Address: "10.0.0.1", Port: 8080, Internal: true, External: true, Inside: true},
				{Address: "10.0.0.2", Port: 8080, Internal: true, External: true, Inside: true},
			},
		}},
	}}}
	for _, c := range change {
		c(s)
	}
	return s
}

func addresses(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

func endpoints(texts ...string) []netip.AddrPort {
	var list []netip.AddrPort
	for _, text := range texts {
		list = append(list, netip.MustParseAddrPort(text))
	}
	return list
}

var equalAddresses = cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})

// TestCheck: what a message is as addresses and numbers.
func TestCheck(t *testing.T) {
	all := proxy.Traffic{Action: dataplane.Forward, Endpoints: endpoints("10.0.0.1:8080", "10.0.0.2:8080")}
	want := &proxy.State{
		Ports: []proxy.Port{{
			Family: dataplane.IPv4, Namespace: "shop", Service: "web", Name: "http", Protocol: "TCP", Port: 80, NodePort: 30080,
			ClusterIP: netip.MustParseAddr("10.96.0.1"), ExternalIPs: addresses("203.0.113.1"), LoadBalancerIPs: addresses("203.0.113.2"),
			Sources: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}, AffinitySeconds: 600, ExternalToLocal: true,
			Internal: all, External: all, Inside: all, Established: endpoints("10.0.0.3:8080", "10.0.0.4:8080"),
		}},
		NodePorts: map[dataplane.Family]proxy.NodePorts{dataplane.IPv4: {All: true}},
		Health:    []proxy.Health{{Family: dataplane.IPv4, Number: 32000, Namespace: "shop", Service: "web", Local: 3}},
	}
	have := proxy.Check([]*api.ServiceEndpoints{service("web", func(s *api.ServiceEndpoints) {
		s.AffinitySeconds, s.ExternalTrafficToLocal, s.HealthCheckNodePort, s.Families[0].HealthyEndpoints = 600, true, 32000, 3
	}, established("10.0.0.4", "10.0.0.3"))})
	if diff := cmp.Diff(want, have, equalAddresses); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if n := len(have.Of(dataplane.IPv6)); n != 0 || len(have.Of(dataplane.IPv4)) != 1 {
		t.Errorf("%d ports of IPv6", n)
	}
}

// TestWrong: a Service that is wrong anywhere is left out whole, and said to be. Others are served.
func TestWrong(t *testing.T) {
	family := func(change func(*api.Family)) func(*api.ServiceEndpoints) {
		return func(s *api.ServiceEndpoints) { change(s.Families[0]) }
	}
	port := func(change func(*api.Port)) func(*api.ServiceEndpoints) {
		return func(s *api.ServiceEndpoints) { change(s.Families[0].Ports[0]) }
	}
	for _, row := range []struct {
		name   string
		change func(*api.ServiceEndpoints)
		want   string
	}{
		{"namespace", func(s *api.ServiceEndpoints) { s.Namespace = "a b" }, `name "a b": not a label of DNS`},
		{"a line in a name", func(s *api.ServiceEndpoints) { s.Name = "web\nadd rule" }, `not a label of DNS`},
		{"a long name", func(s *api.ServiceEndpoints) { s.Name = strings.Repeat("a", 64) }, `not a label of DNS`},
		{"affinity", func(s *api.ServiceEndpoints) { s.AffinitySeconds = 86401 }, "session affinity of 86401 s"},
		{"health check port", func(s *api.ServiceEndpoints) { s.HealthCheckNodePort = 65536 }, "health check node port 65536"},
		{"number of healthy endpoints", func(s *api.ServiceEndpoints) { s.HealthCheckNodePort, s.Families[0].HealthyEndpoints = 1, -1 }, "with -1 endpoints"},
		{"family", family(func(f *api.Family) { f.Family = 3 }), "family 3"},
		{"families", func(s *api.ServiceEndpoints) { s.Families = append(s.Families, s.Families[0]) }, "family 1: unknown, or twice"},
		{"no cluster IP", family(func(f *api.Family) { f.ClusterIP = "" }), `address ""`},
		{"a cluster IP of the other family", family(func(f *api.Family) { f.ClusterIP = "fd00::1" }), `address "fd00::1": not one of IPv4`},
		{"an IPv4 address in IPv6", family(func(f *api.Family) { f.Family, f.ClusterIP = 2, "::ffff:10.0.0.1" }), `address "::ffff:10.0.0.1": not one of IPv6`},
		{"a zone", family(func(f *api.Family) { f.Family, f.ClusterIP = 2, "fe80::1%eth0" }), `address "fe80::1%eth0": not one of IPv6`},
		{"loopback", family(func(f *api.Family) { f.ExternalIPs = []string{"127.0.0.1"} }), "not one of IPv4 to which packets can be sent"},
		{"load balancer", family(func(f *api.Family) { f.LoadBalancerIPs = []string{"0.0.0"} }), `address "0.0.0"`},
		{"source range", family(func(f *api.Family) { f.LoadBalancerSources = []string{"10.0.0.0/33"} }), `prefix "10.0.0.0/33"`},
		{"node port addresses", family(func(f *api.Family) { f.NodePortPrefixes = []string{"::/0"} }), `prefix "::/0": not one of IPv4`},
		{"no node port addresses", family(func(f *api.Family) { f.NodePortPrefixes = nil }), "no addresses of the node for it"},
		{"other node port addresses", family(func(f *api.Family) { f.NodePortPrefixes = []string{"192.0.2.0/24"} }), "at other addresses than those of other Services"},
		{"port name", port(func(p *api.Port) { p.Name = `"` }), `port "\"": not a label of DNS`},
		{"protocol", port(func(p *api.Port) { p.Protocol = 0 }), "protocol 0"},
		{"port number", port(func(p *api.Port) { p.Port = 0 }), "port number 0"},
		{"node port", port(func(p *api.Port) { p.NodePort = -1 }), "port number -1"},
		{"action", port(func(p *api.Port) { p.Internal = 4 }), "action 4"},
		{"no action", port(func(p *api.Port) { p.Internal, p.Endpoints = 0, nil }), "0 endpoints for the action FORWARD"},
		{"no internal action", port(func(p *api.Port) {
			p.Internal = 0
			for _, e := range p.Endpoints {
				e.Internal = false
			}
		}), "no action for its cluster IP"},
		{"forward to nobody", port(func(p *api.Port) { p.Endpoints = nil }), "0 endpoints for the action FORWARD"},
		{"reject, and endpoints", port(func(p *api.Port) { p.Internal = api.Action_REJECT }), "2 endpoints for the action REJECT"},
		{"endpoint address", port(func(p *api.Port) { p.Endpoints[0].Address = "x" }), `address "x"`},
		{"endpoint port", port(func(p *api.Port) { p.Endpoints[0].Port = 1 << 20 }), "port number 1048576"},
		{"established endpoint address", established("x"), `address "x"`},
		{"established endpoint port", port(func(p *api.Port) { p.Established = []*api.Endpoint{{Address: "10.0.0.3"}} }), "port number 0"},
		{"no addresses for an action", func(s *api.ServiceEndpoints) {
			s.Families[0].ExternalIPs, s.Families[0].LoadBalancerIPs, s.Families[0].Ports[0].NodePort = nil, nil, 0
		}, "actions for addresses that it does not have"},
		{"the node may not what others may", port(func(p *api.Port) {
			p.Inside = api.Action_REJECT
			for _, e := range p.Endpoints {
				e.Inside = false
			}
		}), "what comes from inside is treated worse"},
		{"one policy, two lists", port(func(p *api.Port) { p.Endpoints[0].External = false }), "different endpoints by the same policy"},
		{"a port twice", family(func(f *api.Family) { f.Ports = append(f.Ports, f.Ports[0]) }), `port "http": twice`},
		{"a Service twice", func(s *api.ServiceEndpoints) { s.Name = "good" }, "duplicate"},
	} {
		t.Run(row.name, func(t *testing.T) {
			good := service("good")
			bad := service("web", func(s *api.ServiceEndpoints) {
				f := s.Families[0]
				f.ClusterIP, f.ExternalIPs, f.LoadBalancerIPs, f.Ports[0].NodePort = "10.96.0.2", []string{"203.0.113.3"}, []string{"203.0.113.4"}, 30081
			}, row.change)
			state := proxy.Check([]*api.ServiceEndpoints{good, bad})
			if len(state.Ports) != 1 || state.Ports[0].Service != "good" || len(state.Health) != 0 {
				t.Errorf("served: %+v, %+v", state.Ports, state.Health)
			}
			if len(state.Problems) != 1 || !strings.Contains(state.Problems[0], row.want) || strings.Contains(state.Problems[0], "\n") {
				t.Errorf("problems %q, want one with %q", state.Problems, row.want)
			}
		})
	}
}

// TestLoadBalancerLoopback: the API allows any load balancer IP; the rest of the Service is served.
func TestLoadBalancerLoopback(t *testing.T) {
	state := proxy.Check([]*api.ServiceEndpoints{service("web", func(s *api.ServiceEndpoints) {
		s.Families[0].LoadBalancerIPs = []string{"127.0.0.1", "203.0.113.2"}
	})})
	if len(state.Ports) == 0 || len(state.Problems) == 0 || !strings.Contains(state.Problems[0], "load balancer IP 127.0.0.1") {
		t.Fatalf("%d ports, problems %q", len(state.Ports), state.Problems)
	}
	for _, p := range state.Ports {
		if diff := cmp.Diff(addresses("203.0.113.2"), p.LoadBalancerIPs, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
}

// TestCollisions: one address, protocol and port is one Service's: that of whose cluster IP it is, else the first
// one's.
func TestCollisions(t *testing.T) {
	thief := service("a-thief", func(s *api.ServiceEndpoints) {
		f := s.Families[0]
		f.ClusterIP, f.ExternalIPs, f.LoadBalancerIPs = "10.96.0.9", []string{"10.96.0.1", "203.0.113.9", "10.96.0.9"}, []string{"203.0.113.9"}
	})
	twin := service("z-twin", func(s *api.ServiceEndpoints) {
		f := s.Families[0]
		f.ClusterIP, f.ExternalIPs, f.LoadBalancerIPs = "10.96.0.7", []string{"203.0.113.1"}, nil
		f.Ports[0].NodePort, f.Ports[0].External, f.Ports[0].Inside = 30080, api.Action_FORWARD, api.Action_FORWARD
		s.HealthCheckNodePort = 32000
	})
	same := service("zz-same", func(s *api.ServiceEndpoints) { s.HealthCheckNodePort = 32000 })
	state := proxy.Check([]*api.ServiceEndpoints{thief, service("web"), twin, same})
	served := map[string][]string{}
	for i := range state.Ports {
		p := &state.Ports[i]
		list := []string{p.ClusterIP.String()}
		for _, a := range slices.Concat(p.ExternalIPs, p.LoadBalancerIPs) {
			list = append(list, a.String())
		}
		if p.NodePort != 0 {
			list = append(list, "node port")
		}
		served[p.Service] = append(list, string(p.Inside.Action))
	}
	if diff := cmp.Diff(map[string][]string{
		"a-thief": {"10.96.0.9", "203.0.113.9", "node port", "forward"},
		"web":     {"10.96.0.1", "203.0.113.1", "203.0.113.2", "forward"},
		"z-twin":  {"10.96.0.7", ""},
	}, served); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if len(state.Health) != 1 || state.Health[0].Service != "z-twin" {
		t.Errorf("health %+v", state.Health)
	}
	if diff := cmp.Diff([]string{
		"a port of shop/zz-same:http is not served: shop/web:http has it: 10.96.0.1:80/TCP",
		"an external IP of shop/a-thief:http is not served: shop/web:http has it: 10.96.0.1:80/TCP",
		"a node port of shop/web:http is not served: shop/a-thief:http has it: node port 30080/TCP",
		"an external IP of shop/z-twin:http is not served: shop/web:http has it: 203.0.113.1:80/TCP",
		"a node port of shop/z-twin:http is not served: shop/a-thief:http has it: node port 30080/TCP",
		"health check node port 32000 of shop/zz-same is not served: another Service has it",
	}, state.Problems); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestManyProblems: their number is bounded.
func TestManyProblems(t *testing.T) {
	var items []*api.ServiceEndpoints
	for range 1000 {
		items = append(items, service(strings.Repeat("x\n", 10_000)))
	}
	state := proxy.Check(items)
	if len(state.Problems) != 100 || len(state.Problems[0]) > 500 {
		t.Errorf("%d problems, the first with %d bytes", len(state.Problems), len(state.Problems[0]))
	}
}

func TestPods(t *testing.T) {
	for _, row := range []struct {
		prefixes []string
		iface    string
		err      string
	}{
		{nil, "", ""}, {[]string{"10.244.0.0/16", "fd00:244::/56"}, "", ""}, {nil, "cali*", ""}, {nil, "cni0", ""},
		{[]string{"10.244.0.0"}, "", "want one like"}, {[]string{"10.0.0.0/8", "11.0.0.0/8"}, "", "a second one of this family"},
		{nil, `cni0" accept`, "want a name"}, {nil, "*", "want a name"}, {nil, "-x", "want a name"}, {nil, "a*b", "want a name"},
		{nil, "abcdefghijklmnop", "want a name"}, {[]string{"10.0.0.0/8"}, "cni0", "and no prefixes"},
	} {
		p, err := proxy.ParsePods(row.prefixes, row.iface)
		switch {
		case row.err == "" && (err != nil || len(p.Prefixes) != len(row.prefixes) || p.Interface != row.iface):
			t.Errorf("%v: %+v, %v", row, p, err)
		case row.err != "" && (err == nil || !strings.Contains(err.Error(), row.err)):
			t.Errorf("%v: error %v", row, err)
		}
	}
}

func TestNodePortAddresses(t *testing.T) {
	n := proxy.NodePorts{Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("127.0.0.0/8")}}
	have := n.Addresses(addresses("198.51.100.7", "192.0.2.9", "127.0.0.1", "192.0.2.1", "192.0.2.9", "2001:db8::1"))
	if !slices.Equal(have, addresses("192.0.2.1", "192.0.2.9")) {
		t.Error(have)
	}
}

func TestAddresses(t *testing.T) {
	list, err := proxy.Addresses()
	if err != nil || !slices.IsSortedFunc(list, netip.Addr.Compare) {
		t.Error(list, err)
	}
	for _, a := range list {
		if a.Zone() != "" {
			t.Errorf("%s has a zone", a)
		}
	}
}
