// SPDX-License-Identifier: Apache-2.0

package write

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/ipvs"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy/proxytest"
)

func addrs(texts string) (list []netip.Addr) {
	for _, text := range strings.Fields(texts) {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

func ports(texts string) (list []netip.AddrPort) {
	for _, text := range strings.Fields(texts) {
		list = append(list, netip.MustParseAddrPort(text))
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
		Family: dataplane.IPv4, Namespace: "shop", Service: service, Protocol: "TCP", Port: 80,
		ClusterIP: netip.MustParseAddr(clusterIP), Internal: to("10.1.0.1:8080"),
	}
	if p.ClusterIP.Is6() {
		p.Family, p.Internal = dataplane.IPv6, to("[fd00:1::1]:8080")
	}
	for _, change := range changes {
		change(&p)
	}
	return p
}

func internal(text string) func(*proxy.Port) { return func(p *proxy.Port) { p.Internal = to(text) } }

// others gives a port an external IP, and sets what happens to it from inside and from outside. With the policy Local
// if that differs.
func others(inside, outside string) func(*proxy.Port) {
	return func(p *proxy.Port) {
		p.ExternalIPs, p.Inside, p.External = addrs("203.0.113.1"), to(inside), to(outside)
		p.ExternalToLocal = inside != outside
	}
}

func local(p *proxy.Port)    { p.ExternalToLocal = true }
func nodePort(p *proxy.Port) { p.ExternalIPs, p.NodePort = nil, 30080 }

func stateOf(ports ...proxy.Port) *proxy.State {
	return &proxy.State{Ports: ports, NodePorts: map[dataplane.Family]proxy.NodePorts{
		dataplane.IPv4: {All: true}, dataplane.IPv6: {All: true},
	}}
}

func atNode() proxy.Node {
	pods, err := proxy.ParsePods([]string{"10.244.1.0/24", "fd00:244:1::/64"}, "")
	if err != nil {
		panic(err)
	}
	return proxy.Node{Addresses: addrs("127.0.0.1 192.0.2.1 ::1 2001:db8::1"), Pods: pods}
}

// lines words what has to be there: a line for each address and each virtual server.
func lines(l *Layout) (text []string) {
	for _, a := range l.Addresses {
		text = append(text, "address "+a.String())
	}
	for _, s := range l.Servers {
		line := s.String() + " to"
		for _, d := range s.Destinations {
			line += " " + d.Address.String()
		}
		if s.AffinitySeconds > 0 {
			line += fmt.Sprintf(", affinity %d s", s.AffinitySeconds)
		}
		text = append(text, line)
	}
	return text
}

// TestWant: addresses and virtual servers of a state. What rules do is in TestRender.
func TestWant(t *testing.T) {
	const web = "10.96.0.1:80/TCP to 10.1.0.1:8080"
	for _, row := range []struct {
		name     string
		ports    []proxy.Port
		want     []string
		unserved []string
	}{
		{"nothing", nil, nil, nil},
		{"a cluster IP", []proxy.Port{port("web", "10.96.0.1")}, []string{"address 10.96.0.1", web}, nil},
		{"several endpoints, UDP and affinity", []proxy.Port{port("dns", "10.96.0.1", internal("10.1.0.1:53 10.1.0.2:53"),
			func(p *proxy.Port) { p.Protocol, p.AffinitySeconds = "UDP", 60 })},
			[]string{"address 10.96.0.1", "10.96.0.1:80/UDP to 10.1.0.1:53 10.1.0.2:53, affinity 60 s"}, nil},
		{"SCTP", []proxy.Port{port("web", "10.96.0.1", func(p *proxy.Port) { p.Protocol = "SCTP" })},
			[]string{"address 10.96.0.1", "10.96.0.1:80/SCTP to 10.1.0.1:8080"}, nil},
		{"refused: a virtual server without destinations", []proxy.Port{port("web", "10.96.0.1", internal("reject"))},
			[]string{"address 10.96.0.1", "10.96.0.1:80/TCP to"}, nil},
		{"dropped: no virtual server", []proxy.Port{port("web", "10.96.0.1", internal("drop"))}, []string{"address 10.96.0.1"}, nil},
		{"an external IP", []proxy.Port{port("web", "10.96.0.1", others("10.1.0.1:8080", "10.1.0.1:8080"))},
			[]string{"address 10.96.0.1", "address 203.0.113.1", web, "203.0.113.1:80/TCP to 10.1.0.1:8080"}, nil},
		{"an external IP that is the node's", []proxy.Port{port("web", "10.96.0.1", others("10.1.0.1:8080", "10.1.0.1:8080"),
			func(p *proxy.Port) { p.ExternalIPs = addrs("192.0.2.1") })},
			[]string{"address 10.96.0.1", web, "192.0.2.1:80/TCP to 10.1.0.1:8080"}, nil},
		{"a node port", []proxy.Port{port("web", "10.96.0.1", others("10.1.0.1:8080", "10.1.0.1:8080"), nodePort)},
			[]string{"address 10.96.0.1", web, "192.0.2.1:30080/TCP to 10.1.0.1:8080"}, nil},
		{"Local: the endpoints for clients from outside", []proxy.Port{port("web", "10.96.0.1", others("10.1.0.1:8080 10.1.0.2:8080", "10.1.0.2:8080"))},
			[]string{"address 10.96.0.1", "address 203.0.113.1", web, "203.0.113.1:80/TCP to 10.1.0.2:8080"}, nil},
		{"Local without endpoints: no virtual server", []proxy.Port{port("web", "10.96.0.1", others("10.1.0.1:8080", "drop"))},
			[]string{"address 10.96.0.1", "address 203.0.113.1", web}, nil},
		{"a cluster IP that the node has elsewhere", []proxy.Port{port("dns", "192.0.2.1")},
			nil, []string{"cluster IP 192.0.2.1 of shop/dns is not served: the node has it on another interface"}},
		{"an external IP of an endpoint", []proxy.Port{port("web", "10.96.0.1", others("203.0.113.1:80", "203.0.113.1:80"), internal("203.0.113.1:80"))},
			[]string{"address 10.96.0.1", "10.96.0.1:80/TCP to 203.0.113.1:80"},
			[]string{"TCP 203.0.113.1:80 of shop/web is not served: it is an endpoint's address"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			var unserved proxy.Unserved
			have := Want(stateOf(row.ports...), atNode(), dataplane.IPv4, &unserved)
			if diff := cmp.Diff(row.want, lines(have)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(row.unserved, unserved.Problems); diff != "" {
				t.Errorf("not served (-want +got)\n%s", diff)
			}
		})
	}
}

// servers are virtual servers as a kernel has them: "address:port/protocol=endpoint:weight,endpoint:weight".
func servers(t *testing.T, texts ...string) (list []ipvs.VirtualServer) {
	t.Helper()
	for _, text := range texts {
		flags := uint32(ipvs.OwnFlag)
		if rest, ok := strings.CutPrefix(text, "other "); ok {
			text, flags = rest, 0
		}
		at, endpoints, _ := strings.Cut(text, "=")
		address, protocol, _ := strings.Cut(at, "/")
		a := netip.MustParseAddrPort(address)
		s := ipvs.VirtualServer{Protocol: protocol, Address: a.Addr(), Port: a.Port(), Scheduler: "rr", Flags: flags}
		for _, e := range strings.Fields(endpoints) {
			weight := uint32(1)
			if rest, ok := strings.CutPrefix(e, "-"); ok {
				e, weight = rest, 0
			}
			s.Destinations = append(s.Destinations, ipvs.Destination{Address: netip.MustParseAddrPort(e), Weight: weight})
		}
		list = append(list, s)
	}
	return list
}

func texts(steps []Step) (list []string) {
	for _, s := range steps {
		list = append(list, s.String())
	}
	return list
}

// TestDifference: what turns the virtual servers that are there into those that have to be. A minus is for a
// destination of weight 0.
func TestDifference(t *testing.T) {
	udp := func(serving string) func(*proxy.Port) {
		return func(p *proxy.Port) { p.Protocol, p.Established = "UDP", ports(serving) }
	}
	for _, row := range []struct {
		name        string
		have        []string
		want        []proxy.Port
		first, last []string
		after       []string
		taken       int
	}{
		{"the first state", nil, []proxy.Port{port("web", "10.96.0.1")},
			[]string{"add 10.96.0.1:80/TCP", "add destination 10.96.0.1:80/TCP 10.1.0.1:8080, weight 1"}, nil,
			[]string{"10.96.0.1:80/TCP=10.1.0.1:8080"}, 0},
		{"the same", []string{"10.96.0.1:80/TCP=10.1.0.1:8080"}, []proxy.Port{port("web", "10.96.0.1")}, nil, nil,
			[]string{"10.96.0.1:80/TCP=10.1.0.1:8080"}, 0},
		{"a Service less", []string{"10.96.0.1:80/TCP=10.1.0.1:8080"}, nil, nil, []string{"delete 10.96.0.1:80/TCP"}, nil, 0},
		{"those of others stay", []string{"other 10.96.0.1:80/TCP=10.1.0.1:8080"}, nil, nil, nil, nil, 0},
		{"an address that others have", []string{"other 10.96.0.1:80/TCP=10.1.0.1:8080"}, []proxy.Port{port("web", "10.96.0.1")}, nil, nil, nil, 1},
		{"an endpoint more", []string{"10.96.0.1:80/TCP=10.1.0.1:8080"}, []proxy.Port{port("web", "10.96.0.1", internal("10.1.0.1:8080 10.1.0.2:8080"))},
			[]string{"add destination 10.96.0.1:80/TCP 10.1.0.2:8080, weight 1"}, nil, []string{"10.96.0.1:80/TCP=10.1.0.1:8080 10.1.0.2:8080"}, 0},
		{"an endpoint less: its connections go on", []string{"10.96.0.1:80/TCP=10.1.0.1:8080 10.1.0.2:8080"}, []proxy.Port{port("web", "10.96.0.1")},
			[]string{"change destination 10.96.0.1:80/TCP 10.1.0.2:8080, weight 0"}, nil, []string{"10.96.0.1:80/TCP=10.1.0.1:8080 -10.1.0.2:8080"}, 0},
		{"it is still there", []string{"10.96.0.1:80/TCP=10.1.0.1:8080 -10.1.0.2:8080"}, []proxy.Port{port("web", "10.96.0.1")}, nil, nil,
			[]string{"10.96.0.1:80/TCP=10.1.0.1:8080 -10.1.0.2:8080"}, 0},
		{"it comes back", []string{"10.96.0.1:80/TCP=-10.1.0.1:8080"}, []proxy.Port{port("web", "10.96.0.1")},
			[]string{"change destination 10.96.0.1:80/TCP 10.1.0.1:8080, weight 1"}, nil, []string{"10.96.0.1:80/TCP=10.1.0.1:8080"}, 0},
		{"no endpoint left", []string{"10.96.0.1:80/TCP=10.1.0.1:8080"}, []proxy.Port{port("web", "10.96.0.1", internal("reject"))},
			[]string{"change destination 10.96.0.1:80/TCP 10.1.0.1:8080, weight 0"}, nil, []string{"10.96.0.1:80/TCP=-10.1.0.1:8080"}, 0},
		{"UDP: an endpoint that ended", []string{"10.96.0.1:80/UDP=10.1.0.1:8080 10.1.0.2:8080"}, []proxy.Port{port("dns", "10.96.0.1", udp(""))},
			[]string{"delete destination 10.96.0.1:80/UDP 10.1.0.2:8080"}, nil, []string{"10.96.0.1:80/UDP=10.1.0.1:8080"}, 0},
		{"UDP: one that still serves", []string{"10.96.0.1:80/UDP=10.1.0.1:8080 10.1.0.2:8080"},
			[]proxy.Port{port("dns", "10.96.0.1", udp("10.1.0.2:8080"))},
			[]string{"change destination 10.96.0.1:80/UDP 10.1.0.2:8080, weight 0"}, nil, []string{"10.96.0.1:80/UDP=10.1.0.1:8080 -10.1.0.2:8080"}, 0},
		{"UDP: one that has served", []string{"10.96.0.1:80/UDP=10.1.0.1:8080 -10.1.0.2:8080"}, []proxy.Port{port("dns", "10.96.0.1", udp(""))},
			[]string{"delete destination 10.96.0.1:80/UDP 10.1.0.2:8080"}, nil, []string{"10.96.0.1:80/UDP=10.1.0.1:8080"}, 0},
		{"affinity", []string{"10.96.0.1:80/TCP=10.1.0.1:8080"}, []proxy.Port{port("web", "10.96.0.1", func(p *proxy.Port) { p.AffinitySeconds = 60 })},
			[]string{"change 10.96.0.1:80/TCP, affinity 60 s"}, nil, []string{"10.96.0.1:80/TCP=10.1.0.1:8080"}, 0},
		{"one goes, one comes", []string{"10.96.0.1:80/TCP=10.1.0.1:8080", "10.96.0.3:80/TCP="}, []proxy.Port{port("web", "10.96.0.2")},
			[]string{"add 10.96.0.2:80/TCP", "add destination 10.96.0.2:80/TCP 10.1.0.1:8080, weight 1"},
			[]string{"delete 10.96.0.1:80/TCP", "delete 10.96.0.3:80/TCP"}, []string{"10.96.0.2:80/TCP=10.1.0.1:8080"}, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			want := Want(stateOf(row.want...), atNode(), dataplane.IPv4, &proxy.Unserved{})
			c := Difference(servers(t, row.have...), want.Servers)
			if diff := cmp.Diff(row.first, texts(c.First)); diff != "" {
				t.Errorf("first (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(row.last, texts(c.Last)); diff != "" {
				t.Errorf("last (-want +got)\n%s", diff)
			}
			after := servers(t, row.after...)
			for i := range after {
				after[i].AffinitySeconds = c.After[i].AffinitySeconds
			}
			if diff := cmp.Diff(after, c.After, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
				cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
				t.Errorf("after (-want +got)\n%s", diff)
			}
			if len(c.Taken) != row.taken {
				t.Errorf("taken: %v", c.Taken)
			}
		})
	}
}

// TestDrained: destinations of weight 0 are deleted when they have no connections any more.
func TestDrained(t *testing.T) {
	s := servers(t, "10.96.0.1:80/TCP=10.1.0.1:8080 -10.1.0.2:8080 -10.1.0.3:8080")[0]
	list := slices.Clone(s.Destinations)
	list[0].Connections, list[1].Connections = 5, 1
	steps, after := Drained(s, list)
	if diff := cmp.Diff([]string{"delete destination 10.96.0.1:80/TCP 10.1.0.3:8080"}, texts(steps)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if len(after.Destinations) != 2 || !draining(&after) {
		t.Errorf("after: %+v", after)
	}
	list[1].Connections = 0
	steps, after = Drained(after, list)
	if len(steps) != 1 || len(after.Destinations) != 1 || draining(&after) {
		t.Errorf("%v, after: %+v", steps, after)
	}
}

// TestDifferenceAny: in random clusters, each difference leads to what has to be there, and no endpoint is a virtual
// server.
func TestDifferenceAny(t *testing.T) {
	served := 0
	for seed := range uint64(50) {
		have := map[dataplane.Family][]ipvs.VirtualServer{}
		for _, step := range proxytest.Steps(seed) {
			state := proxy.Check(step.Items)
			for _, family := range proxy.Families {
				want := Want(state, proxytest.Node(), family, &proxy.Unserved{})
				at := map[string]bool{}
				for _, s := range want.Servers {
					at[s.String()] = true
				}
				for _, s := range want.Servers {
					for _, d := range s.Destinations {
						if at[d.Address.String()+"/"+s.Protocol] || slices.Contains(want.Addresses, d.Address.Addr()) {
							t.Errorf("seed %d: %s leads to %s, which is a virtual server", seed, &s, d.Address)
						}
					}
				}
				c := Difference(have[family], want.Servers)
				kernel := apply(t, have[family], append(slices.Clone(c.First), c.Last...))
				if diff := cmp.Diff(kernel, c.After, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
					cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
					t.Fatalf("seed %d: (-kernel +after)\n%s", seed, diff)
				}
				again := Difference(c.After, want.Servers)
				if steps := append(again.First, again.Last...); len(steps) > 0 {
					t.Fatalf("seed %d: the second time: %v", seed, texts(steps))
				}
				have[family] = c.After
				served += len(want.Servers)
			}
		}
	}
	if served < 200 {
		t.Errorf("only %d virtual servers", served)
	}
}

// apply does steps as a kernel does: what exists cannot be added, and what does not exist cannot be changed.
func apply(t *testing.T, have []ipvs.VirtualServer, steps []Step) []ipvs.VirtualServer {
	t.Helper()
	var list []ipvs.VirtualServer
	for _, s := range have {
		s.Destinations = slices.Clone(s.Destinations)
		list = append(list, s)
	}
	for _, step := range steps {
		if err := step.apply(&list); err != nil {
			t.Fatal(err)
		}
	}
	ipvs.Sort(list)
	return list
}

func (s Step) apply(list *[]ipvs.VirtualServer) error {
	i := slices.IndexFunc(*list, func(o ipvs.VirtualServer) bool { return o.Compare(&s.Server) == 0 })
	if (i < 0) != (s.Do == AddServer) {
		return fmt.Errorf("%s: the server exists, or does not", s)
	}
	switch s.Do {
	case AddServer:
		*list = append(*list, s.Server)
		return nil
	case DeleteServer:
		*list = slices.Delete(*list, i, i+1)
		return nil
	case SetServer:
		destinations := (*list)[i].Destinations
		(*list)[i] = s.Server
		(*list)[i].Destinations = destinations
		return nil
	}
	server := &(*list)[i]
	j := slices.IndexFunc(server.Destinations, func(d ipvs.Destination) bool { return d.Address == s.Destination.Address })
	if (j < 0) != (s.Do == AddDestination) {
		return fmt.Errorf("%s: the destination exists, or does not", s)
	}
	switch s.Do {
	case AddDestination:
		server.Destinations = append(server.Destinations, s.Destination)
	case SetDestination:
		server.Destinations[j] = s.Destination
	default:
		if server.Destinations = slices.Delete(server.Destinations, j, j+1); len(server.Destinations) == 0 {
			server.Destinations = nil
		}
	}
	return nil
}
