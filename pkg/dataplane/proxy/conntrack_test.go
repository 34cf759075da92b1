// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
	"github.com/checkplan/checkplan/pkg/nodestate/api"
)

func udp(s *api.ServiceEndpoints) { s.Families[0].Ports[0].Protocol = api.Protocol_UDP }

func without(last int) func(*api.ServiceEndpoints) {
	return func(s *api.ServiceEndpoints) {
		p := s.Families[0].Ports[0]
		p.Endpoints = p.Endpoints[:len(p.Endpoints)-last]
		if len(p.Endpoints) == 0 {
			p.Internal, p.External, p.Inside = api.Action_REJECT, api.Action_REJECT, api.Action_REJECT
		}
	}
}

// established adds endpoints that keep the connections that exist.
func established(addresses ...string) func(*api.ServiceEndpoints) {
	return func(s *api.ServiceEndpoints) {
		p := s.Families[0].Ports[0]
		for _, a := range addresses {
			p.Established = append(p.Established, &api.Endpoint{Address: a, Port: 8080})
		}
	}
}

// TestStaleUDP: what has to be forgotten, as a value, for each way in which a state can change.
func TestStaleUDP(t *testing.T) {
	all := endpoints("10.0.0.1:8080", "10.0.0.2:8080")
	check := func(keep []netip.AddrPort) []proxy.UDPCheck {
		return []proxy.UDPCheck{
			{Frontend: proxy.Frontend{Family: dataplane.IPv4, Port: 30080}, Keep: keep},
			{Frontend: proxy.Frontend{Family: dataplane.IPv4, Address: netip.MustParseAddr("10.96.0.1"), Port: 80}, Keep: keep},
			{Frontend: proxy.Frontend{Family: dataplane.IPv4, Address: netip.MustParseAddr("203.0.113.1"), Port: 80}, Keep: keep},
			{Frontend: proxy.Frontend{Family: dataplane.IPv4, Address: netip.MustParseAddr("203.0.113.2"), Port: 80}, Keep: keep},
		}
	}
	for _, row := range []struct {
		name         string
		older, newer []*api.ServiceEndpoints
		unknown      bool
		want         []proxy.UDPCheck
	}{
		{"no change", []*api.ServiceEndpoints{service("web", udp)}, []*api.ServiceEndpoints{service("web", udp)}, false, nil},
		{"TCP", nil, []*api.ServiceEndpoints{service("web")}, true, nil},
		{"a start: connections of a predecessor's time", nil, []*api.ServiceEndpoints{service("web", udp)}, true, check(all)},
		{"a new Service: clients sent to it before", nil, []*api.ServiceEndpoints{service("web", udp)}, false, check(all)},
		{"an endpoint ended", []*api.ServiceEndpoints{service("web", udp)}, []*api.ServiceEndpoints{service("web", udp, without(1))}, false, check(all[:1])},
		{"the last one ended", []*api.ServiceEndpoints{service("web", udp)}, []*api.ServiceEndpoints{service("web", udp, without(2))}, false, check(nil)},
		{"an endpoint terminates, and still serves", []*api.ServiceEndpoints{service("web", udp)}, []*api.ServiceEndpoints{service("web", udp, without(1), established("10.0.0.2"))}, false, nil},
		{"it has ended", []*api.ServiceEndpoints{service("web", udp, without(1), established("10.0.0.2"))}, []*api.ServiceEndpoints{service("web", udp, without(1))}, false, check(all[:1])},
		{"a start, while one terminates", nil, []*api.ServiceEndpoints{service("web", udp, without(1), established("10.0.0.2"))}, true, check(all)},
		{"no new connection may go anywhere", []*api.ServiceEndpoints{service("web", udp)}, []*api.ServiceEndpoints{service("web", udp, without(2), established("10.0.0.2"))}, false, check(all[1:])},
		{"a policy excludes one for the cluster IP", []*api.ServiceEndpoints{service("web", udp)}, []*api.ServiceEndpoints{service("web", udp, func(s *api.ServiceEndpoints) {
			s.InternalTrafficToLocal, s.Families[0].Ports[0].Endpoints[1].Internal = true, false
		})}, false, nil},
		{"the first one came", []*api.ServiceEndpoints{service("web", udp, without(2))}, []*api.ServiceEndpoints{service("web", udp)}, false, check(all)},
		{"the Service was deleted", []*api.ServiceEndpoints{service("web", udp)}, nil, false, check(nil)},
	} {
		t.Run(row.name, func(t *testing.T) {
			older := proxy.Check(row.older)
			if row.unknown {
				older = nil
			}
			if diff := cmp.Diff(row.want, proxy.StaleUDP(older, proxy.Check(row.newer)), equalAddresses); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestStaleUDPLocal: with the policy Local, what comes from inside may keep its endpoint on another node, at the same
// address.
func TestStaleUDPLocal(t *testing.T) {
	state := proxy.Check([]*api.ServiceEndpoints{service("web", udp, func(s *api.ServiceEndpoints) {
		s.ExternalTrafficToLocal = true
		s.Families[0].Ports[0].Endpoints[1].External = false
	})})
	for _, c := range proxy.StaleUDP(nil, state) {
		if !slices.Equal(c.Keep, endpoints("10.0.0.1:8080", "10.0.0.2:8080")) {
			t.Errorf("%+v", c)
		}
	}
}

// TestStale: which connections are forgotten.
func TestStale(t *testing.T) {
	stale := proxy.NewStale([]proxy.UDPCheck{
		{Frontend: proxy.Frontend{Family: dataplane.IPv4, Port: 30053}, Keep: endpoints("10.0.0.1:53")},
		{Frontend: proxy.Frontend{Family: dataplane.IPv4, Address: netip.MustParseAddr("10.96.0.10"), Port: 53}, Keep: endpoints("10.0.0.1:53", "10.0.0.2:53")},
		{Frontend: proxy.Frontend{Family: dataplane.IPv6, Address: netip.MustParseAddr("fd00::10"), Port: 53}},
	}, addresses("192.0.2.1"))
	if diff := cmp.Diff([]dataplane.Family{dataplane.IPv4, dataplane.IPv6}, stale.Families()); diff != "" {
		t.Error(diff)
	}
	for _, row := range []struct {
		name     string
		family   dataplane.Family
		to, from string
		want     bool
	}{
		{"an endpoint that is one", dataplane.IPv4, "10.96.0.10:53", "10.0.0.2:53", false},
		{"one that ended", dataplane.IPv4, "10.96.0.10:53", "10.0.0.3:53", true},
		{"another port of one", dataplane.IPv4, "10.96.0.10:53", "10.0.0.2:54", true},
		{"nobody: the rules came later", dataplane.IPv4, "10.96.0.10:53", "10.96.0.10:53", true},
		{"another port of the cluster IP", dataplane.IPv4, "10.96.0.10:54", "10.96.0.10:54", false},
		{"a node port", dataplane.IPv4, "192.0.2.1:30053", "10.0.0.2:53", true},
		{"a node port, kept", dataplane.IPv4, "192.0.2.1:30053", "10.0.0.1:53", false},
		{"the same port of another machine", dataplane.IPv4, "198.51.100.1:30053", "198.51.100.1:30053", false},
		{"no endpoint any more", dataplane.IPv6, "[fd00::10]:53", "[fd00::1]:53", true},
		{"a connection of nobody's", dataplane.IPv6, "[fd00::11]:53", "[fd00::11]:53", false},
	} {
		if have := stale.Is(row.family, netip.MustParseAddrPort(row.to), netip.MustParseAddrPort(row.from)); have != row.want {
			t.Errorf("%s: %v", row.name, have)
		}
	}
}
