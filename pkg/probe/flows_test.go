// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Samples are summed up by source port, but only where that adds something.
func TestFlows(t *testing.T) {
	taken := cause(checkup.StageSocket, "bind: address already in use")
	good := func(port int) sample { return sample{port: port} }
	lost := func(port int) sample { return sample{port: port, cause: cause(checkup.StageEcho, "x"), timedOut: true} }
	spoiled := func(port int) sample { return sample{port: port, spoiled: true} }
	unused := func(port int) sample { return sample{port: port, unusable: taken} }
	var many []sample
	for port := range checkup.MaxFlows {
		many = append(many, good(port+1))
	}
	for _, test := range []struct {
		name    string
		samples []sample
		want    []checkup.Flow
	}{
		{"all answered", []sample{good(1), good(2)}, nil},
		{"none answered", []sample{lost(1), lost(2)}, nil},
		{"one port dead", []sample{good(2), good(2), lost(1), lost(1)}, []checkup.Flow{{Port: 2, Sent: 2, Received: 2}, {Port: 1, Sent: 2}}},
		{"a loss", []sample{good(1), lost(1), good(2)}, []checkup.Flow{{Port: 1, Sent: 2, Received: 1}, {Port: 2, Sent: 1, Received: 1}}},
		{"spoiled ones are left out", []sample{good(1), spoiled(1), spoiled(3), lost(2)}, []checkup.Flow{{Port: 1, Sent: 1, Received: 1}, {Port: 2, Sent: 1}}},
		{"a port is not known", []sample{good(1), lost(0)}, nil},
		{"a port is in use", []sample{good(1), unused(2), unused(2)}, []checkup.Flow{{Port: 1, Sent: 1, Received: 1}, {Port: 2, Unmeasured: taken}}},
		{"all ports are in use", []sample{unused(1), unused(2)}, nil},
		{"too many ports", append(slices.Clone(many), lost(1000)), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := tally(Measurement{}, test.samples)
			if diff := cmp.Diff(test.want, o.Flows); diff != "" {
				t.Errorf("flows (-want +got):\n%s", diff)
			}
			sent, received := 0, 0
			for _, f := range o.Flows {
				sent, received = sent+f.Sent, received+f.Received
			}
			if o.Flows != nil && (sent != o.Sent || received != o.Received) {
				t.Errorf("flows add up to %d sent and %d received, want %d and %d", sent, received, o.Sent, o.Received)
			}
		})
	}
}

// triedPorts counts the ports that freePorts tried, each once.
var triedPorts atomic.Int32

// freePorts returns source ports that nobody uses. They are below those that the kernel chooses, which other tests may
// use at the same time.
func freePorts(t *testing.T, n int) []int {
	t.Helper()
	var ports []int
	for len(ports) < n {
		port := 20000 + (os.Getpid()+int(triedPorts.Add(1)))%10000
		c, err := net.ListenUDP("udp", &net.UDPAddr{Port: port})
		if err != nil {
			continue
		}
		c.Close()
		l, err := net.ListenTCP("tcp", &net.TCPAddr{Port: port})
		if err != nil {
			continue
		}
		l.Close()
		ports = append(ports, port)
	}
	return ports
}

// Demanded ports are used, evenly and in turn; the measurements of one that another socket uses are not made.
func TestDemandedPorts(t *testing.T) {
	for _, transport := range []checkup.Transport{checkup.UDP, checkup.TCP, checkup.HTTP} {
		t.Run(string(transport), func(t *testing.T) {
			t.Parallel()
			bothFamilies(t, func(t *testing.T, family checkup.IPFamily) {
				ports := freePorts(t, 3)
				var address netip.AddrPort
				var mu sync.Mutex
				seen := map[int]int{}
				count := func(port int) {
					mu.Lock()
					seen[port]++
					mu.Unlock()
				}
				switch transport {
				case checkup.UDP:
					address = listenUDP(t, family, truthful)
				case checkup.TCP:
					address = listenTCP(t, family, func(c net.Conn) {
						count(c.RemoteAddr().(*net.TCPAddr).Port)
						echoPeer(c)
					})
				case checkup.HTTP:
					address = listenHTTP(t, family, status(200))
				}
				m := Measurement{
					Pair:    pairOf(transport, family, 0),
					Address: address,
					Probe:   checkup.Probe{Count: 9, Timeout: checkup.Duration(time.Second), Path: "/some/path"},
					Ports:   ports,
				}
				switch transport {
				case checkup.UDP:
					m.Pair.Size = 100
				case checkup.TCP:
					m.Pair.Size = 10
				}
				got := Funcs[transport](t.Context(), m, session())
				if diff := diffObservations(checkup.Observation{Pair: m.Pair, Sent: 9, Received: 9}, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if want := map[int]int{ports[0]: 3, ports[1]: 3, ports[2]: 3}; transport == checkup.TCP {
					mu.Lock()
					if diff := cmp.Diff(want, seen); diff != "" {
						t.Errorf("connections by source port (-want +got):\n%s", diff)
					}
					mu.Unlock()
				}

				occupy(t, transport, family, ports[1])
				got = Funcs[transport](t.Context(), m, session())
				want := checkup.Observation{Pair: m.Pair, Sent: 6, Received: 6, Flows: []checkup.Flow{
					{Port: ports[0], Sent: 3, Received: 3},
					{Port: ports[2], Sent: 3, Received: 3},
					{Port: ports[1], Unmeasured: cause(checkup.StageSocket, "bind: address already in use")},
				}}
				anyOrder := cmpopts.SortSlices(func(a, b checkup.Flow) bool { return a.Port < b.Port })
				if diff := cmp.Diff(want, got, anyOrder, cmpopts.IgnoreFields(checkup.Observation{}, "RTTs", "Kernel")); diff != "" {
					t.Errorf("with a port in use (-want +got):\n%s", diff)
				}

				m.Ports = ports[1:2]
				got = Funcs[transport](t.Context(), m, session())
				none := checkup.Observation{Pair: m.Pair, Unmeasured: cause(checkup.StageSocket, "bind: address already in use")}
				if diff := cmp.Diff(none, got); diff != "" {
					t.Errorf("with all ports in use (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// Connections of a pair start Probe.Interval apart, and those from each of its demanded ports if it has some.
func TestIntervalOfPorts(t *testing.T) {
	const interval = 100 * time.Millisecond
	for _, test := range []struct {
		ports []int
		apart time.Duration // the starts of two connections of the pair
	}{
		{nil, interval},
		{[]int{1}, interval},
		{[]int{1, 2, 3, 4}, interval / 4},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			last := map[int]time.Time{}
			var mu sync.Mutex
			m := Measurement{Ports: test.ports, Probe: checkup.Probe{Count: 12, Interval: checkup.Duration(interval)}}
			got := series(t.Context(), m, &Session{Watch: &Watch{}}, func(_ context.Context, m Measurement) (sample, error) {
				mu.Lock()
				defer mu.Unlock()
				if len(m.Ports) == 1 {
					if before := last[m.Ports[0]]; !before.IsZero() && time.Since(before) != interval {
						t.Errorf("%v: port %d after %s, want %s", test.ports, m.Ports[0], time.Since(before), interval)
					}
					last[m.Ports[0]] = time.Now()
				}
				return sample{}, nil
			})
			if took := time.Since(began); got.Sent != 12 || took != 11*test.apart {
				t.Errorf("%v: %d connections in %s, want 12 in %s", test.ports, got.Sent, took, 11*test.apart)
			}
		})
	}
}

// occupy uses a source port until the test ends.
func occupy(t *testing.T, transport checkup.Transport, family checkup.IPFamily, port int) {
	t.Helper()
	at := netip.MustParseAddrPort(anyPort(family)).Addr()
	if transport == checkup.UDP {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, uint16(port))))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(at, uint16(port))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

// A peer that answers all source ports but one: that one is reported as the flow that is lost.
func TestDeadFlow(t *testing.T) {
	t.Parallel()
	for _, ports := range [][]int{nil, freePorts(t, 4)} {
		dead := 0
		var mu sync.Mutex
		m := Measurement{
			Pair: pairOf(checkup.UDP, checkup.IPv4, 100),
			Address: listenDatagrams(t, checkup.IPv4, func(conn *net.UDPConn, request []byte, from netip.AddrPort) {
				mu.Lock()
				defer mu.Unlock()
				if dead == 0 {
					dead = int(from.Port())
				}
				if int(from.Port()) != dead {
					conn.WriteToUDPAddrPort(answerTo(request), from)
				}
			}),
			Probe: checkup.Probe{Count: 12, Timeout: checkup.Duration(time.Second)},
			Ports: ports,
		}
		got := udp(t.Context(), m, session())
		mu.Lock()
		defer mu.Unlock()
		if got.Sent != 12 || got.Received != 9 || len(got.Flows) != 4 {
			t.Fatalf("%+v, want 9 of 12 answered, of four ports", got)
		}
		for i, f := range got.Flows {
			want := checkup.Flow{Port: f.Port, Sent: 3, Received: 3}
			if f.Port == dead {
				want.Received = 0
			}
			if f != want || ports != nil && f.Port != ports[i] {
				t.Errorf("%+v, want %+v of ports %v", f, want, ports)
			}
		}
	}
}

// The source port of a connection that was never established is known too.
func TestDeadFlowOfTCP(t *testing.T) {
	full := blackHole(t, netip.AddrPortFrom(loopback[checkup.IPv4], 0))
	m := Measurement{Address: full, Probe: checkup.Probe{Count: 1, Timeout: silence}}
	got, err := tcpOnce(t.Context(), m)
	if err != nil || got.cause == nil || got.port == 0 {
		t.Errorf("%+v, %v; want a timeout from a known source port", got, err)
	}
}
