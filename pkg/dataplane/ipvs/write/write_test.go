// SPDX-License-Identifier: Apache-2.0

package write

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/ipvs"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
)

// lab is a Writer whose kernel does not exist, and what it did.
type lab struct {
	*Writer
	t *testing.T
	// log has what was done, in its order, since done was called.
	log       []string
	none      bool // the module is not loaded
	loads     error
	servers   map[dataplane.Family][]ipvs.VirtualServer
	addresses map[netip.Addr]bool
	settings  map[string]string
	fail      map[string]error // by what is done
	clock     time.Time
}

func newLab(t *testing.T) *lab {
	l := &lab{t: t, servers: map[dataplane.Family][]ipvs.VirtualServer{}, addresses: map[netip.Addr]bool{},
		settings: map[string]string{}, fail: map[string]error{}, clock: time.Unix(1e9, 0)}
	note := func(what string) error {
		l.log = append(l.log, what)
		return l.fail[what]
	}
	l.Writer = &Writer{
		Kernel: Kernel{
			Load: func(context.Context) error {
				l.none = l.loads != nil
				return l.loads
			},
			Servers: func(family dataplane.Family, _ bool) ([]ipvs.VirtualServer, error) {
				if l.none {
					return nil, ipvs.ErrNone
				}
				return apply(t, l.servers[family], nil), nil
			},
			Destinations: func(family dataplane.Family, s *ipvs.VirtualServer) ([]ipvs.Destination, error) {
				for _, o := range l.servers[family] {
					if o.Compare(s) == 0 {
						return o.Destinations, nil
					}
				}
				return nil, nil
			},
			Do: func(family dataplane.Family, s Step) error {
				if err := note(s.String()); err != nil {
					return err
				}
				list := l.servers[family]
				err := s.apply(&list)
				ipvs.Sort(list)
				l.servers[family] = list
				return err
			},
			Set: func(name, value string) error { l.settings[name] = value; return nil },
		},
		Device: proxy.Device{
			Name: dataplane.IPVSDevice, Create: func() error { return nil },
			Addresses: func() ([]netip.Addr, error) { return slices.Collect(maps.Keys(l.addresses)), nil },
			Add: func(a netip.Addr) error {
				if err := note("address " + a.String()); err != nil {
					return err
				}
				l.addresses[a] = true
				return nil
			},
			Remove: func(a netip.Addr) error { delete(l.addresses, a); return note("no address " + a.String()) },
			Delete: func() error { clear(l.addresses); return note("no interface") },
		},
		Rules: fakeRules(note), Now: func() time.Time { return l.clock },
	}
	return l
}

// fakeRules is a Writer of rules that notes what it is called for.
type fakeRules func(what string) error

func (f fakeRules) Write(context.Context, *proxy.State, proxy.Node) error { return f("rules") }
func (f fakeRules) Tidy(context.Context) (bool, error)                    { return false, nil }
func (f fakeRules) Present(context.Context) error                         { return f("look") }
func (f fakeRules) Cleanup(context.Context) error                         { return f("no rules") }

// successor is a Writer of another process, in the same kernel.
func (l *lab) successor() {
	w := *l.Writer
	w.families, w.assigned = nil, nil
	l.Writer = &w
}

// write writes a state, and compares what was done for it.
func (l *lab) write(want []string, ports ...proxy.Port) error {
	l.t.Helper()
	l.log = nil
	err := l.Write(l.t.Context(), stateOf(ports...), atNode())
	if diff := cmp.Diff(want, l.log); diff != "" {
		l.t.Errorf("(-want +got)\n%s", diff)
	}
	return err
}

// TestWrite: what is done for each state, in its order: a port is served before packets get to it, and until none do.
func TestWrite(t *testing.T) {
	l := newLab(t)
	web, dns := port("web", "10.96.0.1"), port("dns", "fd00:96::2")
	err := l.write([]string{"add 10.96.0.1:80/TCP", "add destination 10.96.0.1:80/TCP 10.1.0.1:8080, weight 1",
		"rules", "address 10.96.0.1"}, web)
	if err != nil {
		t.Error(err)
	}
	settings := map[string]string{"conntrack": "1", "expire_nodest_conn": "1", "expire_quiescent_template": "1"}
	if diff := cmp.Diff(settings, l.settings); diff != "" {
		t.Errorf("settings (-want +got)\n%s", diff)
	}
	err = l.write([]string{"add [fd00:96::2]:80/TCP", "add destination [fd00:96::2]:80/TCP [fd00:1::1]:8080, weight 1",
		"no address 10.96.0.1", "rules", "address fd00:96::2", "delete 10.96.0.1:80/TCP"}, dns)
	if err != nil || len(l.addresses) != 1 {
		t.Error(err, l.addresses)
	}
	if err := l.write([]string{"rules"}, dns); err != nil {
		t.Error(err)
	}
	if err := l.Present(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestPredecessor: what a dead one left is changed into what has to be there, and nothing is done twice.
func TestPredecessor(t *testing.T) {
	l := newLab(t)
	web, dns := port("web", "10.96.0.1"), port("dns", "10.96.0.2")
	if err := l.Write(t.Context(), stateOf(web, dns), atNode()); err != nil {
		t.Fatal(err)
	}
	l.servers[dataplane.IPv4] = append(servers(t, "other 10.0.0.1:80/TCP=10.0.0.2:80"), l.servers[dataplane.IPv4]...)
	l.successor()
	if err := l.write([]string{"no address 10.96.0.2", "rules", "delete 10.96.0.2:80/TCP"}, web); err != nil {
		t.Error(err)
	}
	l.successor()
	l.log = nil
	if err := l.Cleanup(t.Context()); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"no interface", "delete 10.96.0.1:80/TCP", "no rules"}, l.log); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if left := l.servers[dataplane.IPv4]; len(left) != 1 || left[0].Address.String() != "10.0.0.1" {
		t.Errorf("left: %v", left)
	}
	l.none = true
	if err := l.Cleanup(t.Context()); err != nil {
		t.Errorf("a kernel without IPVS: %v", err)
	}
}

// TestUnserved: what fails costs nothing else, and is tried again by what the kernel has then.
func TestUnserved(t *testing.T) {
	web, dns := port("web", "10.96.0.1"), port("dns", "10.96.0.2")
	for _, row := range []struct {
		name, fails, problem string
	}{
		{"a virtual server", "add 10.96.0.1:80/TCP", "busy"},
		{"a destination", "add destination 10.96.0.1:80/TCP 10.1.0.1:8080, weight 1", "busy"},
		{"an address", "address 10.96.0.1", "address 10.96.0.1 is not served: add it to interface cplan-ipvs: busy"},
	} {
		t.Run(row.name, func(t *testing.T) {
			l := newLab(t)
			l.fail[row.fails] = errors.New("busy")
			if row.fails == "add 10.96.0.1:80/TCP" { // its destination then fails, too
				l.fail["add destination 10.96.0.1:80/TCP 10.1.0.1:8080, weight 1"] = errors.New("busy")
			}
			err := l.Write(t.Context(), stateOf(web, dns), atNode())
			var unserved proxy.Unserved
			if !errors.As(err, &unserved) || !unserved.Again || !slices.Contains(unserved.Problems, row.problem) {
				t.Errorf("error %v", err)
			}
			if !l.addresses[netip.MustParseAddr("10.96.0.2")] {
				t.Error("the other Service is not served")
			}
			clear(l.fail)
			if err := l.Write(t.Context(), stateOf(web, dns), atNode()); err != nil {
				t.Error(err)
			}
			have := fmt.Sprint(l.servers[dataplane.IPv4])
			if strings.Count(have, "10.1.0.1:8080") != 2 || len(l.addresses) != 2 {
				t.Errorf("%s %v", have, l.addresses)
			}
		})
	}
	l := newLab(t)
	l.servers[dataplane.IPv4] = servers(t, "other 10.96.0.1:80/TCP=10.0.0.2:80")
	const taken = "10.96.0.1:80/TCP is not served: somebody else has this virtual server of IPVS"
	for range 2 {
		if err := l.Write(t.Context(), stateOf(web, dns), atNode()); err == nil || err.Error() != taken {
			t.Errorf("error %v", err)
		}
	}
	l.servers[dataplane.IPv4] = l.servers[dataplane.IPv4][1:]
	if err := l.Write(t.Context(), stateOf(web, dns), atNode()); err != nil {
		t.Error(err)
	}
}

// TestNothingServed: without IPVS, or rules, there is an error that is not Unserved.
func TestNothingServed(t *testing.T) {
	l := newLab(t)
	l.none, l.loads = true, errors.New("modprobe ip_vs: not found")
	err := l.Write(t.Context(), stateOf(port("web", "10.96.0.1")), atNode())
	if !errors.Is(err, ipvs.ErrNone) || !strings.Contains(fmt.Sprint(err), "modprobe ip_vs: not found") {
		t.Errorf("error %v", err)
	}
	l.loads = nil
	if err := l.Write(t.Context(), stateOf(port("web", "10.96.0.1")), atNode()); err != nil {
		t.Errorf("the module can be loaded: %v", err)
	}
	l.fail["rules"] = errors.New("no nft")
	other := port("web", "10.96.0.2")
	err = l.Write(t.Context(), stateOf(other), atNode())
	if err == nil || errors.As(err, new(proxy.Unserved)) {
		t.Errorf("error %v", err)
	}
	clear(l.fail)
	if err := l.write([]string{"rules", "address 10.96.0.2", "delete 10.96.0.1:80/TCP"}, other); err != nil {
		t.Error(err)
	}
}

// TestTidy: destinations without new connections are deleted once they have no open ones; it does not look too often.
func TestTidy(t *testing.T) {
	l := newLab(t)
	two := port("web", "10.96.0.1", internal("10.1.0.1:8080 10.1.0.2:8080"))
	for _, p := range []proxy.Port{two, port("web", "10.96.0.1")} {
		if err := l.Write(t.Context(), stateOf(p), atNode()); err != nil {
			t.Fatal(err)
		}
	}
	tidy := func(want bool, log ...string) {
		t.Helper()
		l.log = nil
		more, err := l.Tidy(t.Context())
		if diff := cmp.Diff(log, l.log); diff != "" || more != want || err != nil {
			t.Errorf("more %v, error %v (-want +got)\n%s", more, err, diff)
		}
	}
	l.servers[dataplane.IPv4][0].Destinations[1].Connections = 1
	tidy(true)
	l.servers[dataplane.IPv4][0].Destinations[1].Connections = 0
	tidy(true)
	l.clock = l.clock.Add(lookInterval)
	tidy(false, "delete destination 10.96.0.1:80/TCP 10.1.0.2:8080")
	tidy(false)
	if err := l.write([]string{"add destination 10.96.0.1:80/TCP 10.1.0.2:8080, weight 1", "rules"}, two); err != nil {
		t.Error(err)
	}
}

// TestPresent: what somebody removed is missed, and written again.
func TestPresent(t *testing.T) {
	for _, row := range []struct {
		name   string
		remove func(*lab)
	}{
		{"addresses", func(l *lab) { clear(l.addresses) }},
		{"virtual servers", func(l *lab) { clear(l.servers) }},
		{"rules", func(l *lab) { l.fail["look"] = errors.New("no table") }},
	} {
		t.Run(row.name, func(t *testing.T) {
			l := newLab(t)
			state := stateOf(port("web", "10.96.0.1"))
			if err := errors.Join(l.Write(t.Context(), state, atNode()), l.Present(t.Context())); err != nil {
				t.Fatal(err)
			}
			row.remove(l)
			if err := l.Present(t.Context()); err == nil {
				t.Error("not missed")
			}
			clear(l.fail)
			if err := errors.Join(l.Write(t.Context(), state, atNode()), l.Present(t.Context())); err != nil {
				t.Error(err)
			}
			if len(l.addresses) != 1 || len(l.servers[dataplane.IPv4]) != 1 {
				t.Error(l.addresses, l.servers)
			}
		})
	}
}
