// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"context"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// TestAcrossTurn: what is measured when, and from which source port, if a Service's endpoint changes from a to b.
func TestAcrossTurn(t *testing.T) {
	const never = time.Hour
	for _, tt := range []struct {
		name string
		keep bool
		// Since when something answers, since when new source ports lead to b, and since when one that has led to a does.
		begins, turns, follows time.Duration
		reports                time.Duration // when the agent first reports another pair
		at                     time.Duration // when it is measured
		by                     string
		unturned               bool
	}{
		{"a turn long after the start, but soon after the first report", false, 0, 75 * time.Second, never, 70 * time.Second,
			75 * time.Second, "b", false},
		{"a flow that does not follow a late turn", true, 0, 75 * time.Second, never, 70 * time.Second, 115 * time.Second,
			"a", false},
		{"no turn after a late first report", false, 0, never, never, 70 * time.Second, 80 * time.Second, "a", true},
		{"a turn before the first report", true, 0, 2 * time.Second, never, 70 * time.Second, 42 * time.Second, "a", false},
		{"new connections", false, 0, 2 * time.Second, never, 0, 2 * time.Second, "b", false},
		{"a flow that follows at once", true, 0, 2 * time.Second, 2 * time.Second, 0, 2 * time.Second, "b", false},
		{"a flow that follows later", true, 0, 2 * time.Second, 40 * time.Second, 0, 40 * time.Second, "b", false},
		{"a flow that does not follow", true, 0, 2 * time.Second, never, 0, 42 * time.Second, "a", false},
		{"a flow that follows before new ones do", true, 0, 2 * time.Second, time.Second, 0, 2 * time.Second, "b", false},
		{"no turn", false, 0, never, never, 0, 10 * time.Second, "a", true},
		{"no turn of a flow", true, 0, never, never, 0, 10 * time.Second, "a", true},
		{"a late turn of a flow that does not follow", true, 0, 8 * time.Second, never, 0, 48 * time.Second, "a", false},
		{"nothing answers at first", true, time.Second, 3 * time.Second, 3 * time.Second, 0, 3 * time.Second, "b", false},
		{"the turn was before", true, 0, 0, 0, 0, 10 * time.Second, "b", true},
		{"nothing answers", true, never, never, never, 0, 10 * time.Second, "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				begun, reported := false, make(chan struct{})
				if tt.reports == 0 {
					close(reported)
				} else {
					time.AfterFunc(tt.reports-time.Millisecond, func() { close(reported) }) // before the try at that time
				}
				remembered := map[int]string{} // where source ports lead
				measure := func(_ context.Context, m Measurement, _ *Session) checkup.Observation {
					now := time.Since(start)
					o := checkup.Observation{Pair: m.Pair, Sent: m.Probe.Count}
					ports := m.Ports
					if len(ports) == 0 { // as udp does
						for range m.Probe.Count {
							ports = append(ports, newPort(m))
						}
					}
					if m.Avoid == nil || m.Probe.Count > 1 && (len(m.Ports) == 1) != tt.keep {
						t.Errorf("%d measurements from the ports %d, without %d: want the kept port, or only new ones",
							m.Probe.Count, m.Ports, len(m.Avoid))
					}
					by := map[string]int{}
					for i := range m.Probe.Count {
						if now < tt.begins {
							break
						}
						port := ports[i%len(ports)]
						to, known := remembered[port]
						switch {
						case !known && now < tt.turns, known && to == "a" && now < tt.follows:
							to = "a"
						default:
							to = "b"
						}
						remembered[port] = to
						by[to]++
					}
					for _, address := range slices.Sorted(maps.Keys(by)) {
						o.Received += by[address]
						o.Answerers = append(o.Answerers, checkup.Answerer{Address: address, Count: by[address]})
					}
					return o
				}
				m := Measurement{
					Pair: checkup.Pair{Family: checkup.IPv4, Transport: checkup.UDP, Size: checkup.MinIdentifySize}, Identify: true,
					Probe: checkup.Probe{Count: 60}, Turn: 10 * time.Second, Keep: tt.keep, Address: netip.MustParseAddrPort("127.0.0.1:7"),
				}
				o := acrossTurn(t.Context(), m, &Session{}, measure, func() {
					if begun = true; time.Since(start) > 0 {
						t.Error("begun too late")
					}
				}, reported)
				if at := time.Since(start); at != tt.at || o.Sent != 60 || answererOf(o) != tt.by || o.Unturned != tt.unturned || !begun {
					t.Errorf("after %s: %d by %q, unturned: %v; want after %s, by %q, %v", at, o.Sent, answererOf(o), o.Unturned, tt.at,
						tt.by, tt.unturned)
				}
			})
		})
	}
}

// TestAvoid: each datagram to a Service has a new source port: none that a datagram before it had, and not that of newPort.
func TestAvoid(t *testing.T) {
	bothFamilies(t, func(t *testing.T, family checkup.IPFamily) {
		from := map[netip.AddrPort]int{}
		var mu sync.Mutex
		m := Measurement{
			Pair: pairOf(checkup.UDP, family, checkup.MinIdentifySize), Identify: true,
			Probe: checkup.Probe{Count: 60, Timeout: patience}, Avoid: map[int]bool{},
			Address: listenDatagrams(t, family, func(conn *net.UDPConn, b []byte, at netip.AddrPort) {
				mu.Lock()
				defer mu.Unlock()
				from[at]++
				conn.WriteToUDPAddrPort(answerTo(b), at)
			}),
		}
		chosen := newPort(m)
		for range 2 {
			if o := udp(t.Context(), m, session()); o.Sent != 60 || o.Unmeasured != nil {
				t.Errorf("%d of 60 measurements were made: %v", o.Sent, o.Unmeasured)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if len(from) != 120 || len(m.Avoid) != 121 || !m.Avoid[chosen] {
			t.Errorf("%d source ports, and %d to avoid; want 120, and one more", len(from), len(m.Avoid))
		}
		for at, packets := range from {
			if packets != 1 || !m.Avoid[int(at.Port())] || int(at.Port()) == chosen {
				t.Errorf("%d packets came from port %d", packets, at.Port())
			}
		}
	})
}

// TestNoTimeForTurn: a pair is unmeasured if the agent's time ends before the turn, whether or not it reported a pair.
func TestNoTimeForTurn(t *testing.T) {
	for _, reports := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			reported := make(chan struct{})
			if reports {
				close(reported)
			}
			measure := func(_ context.Context, m Measurement, _ *Session) checkup.Observation {
				return checkup.Observation{Sent: m.Probe.Count, Answerers: []checkup.Answerer{{Address: "a", Count: m.Probe.Count}}}
			}
			m := Measurement{Pair: checkup.Pair{Transport: checkup.TCP}, Probe: checkup.Probe{Count: 60}, Turn: time.Minute}
			o := acrossTurn(ctx, m, &Session{}, measure, func() {}, reported)
			if o.Unmeasured == nil || o.Sent > 0 {
				t.Errorf("reported %v: %+v, want that it is unmeasured", reports, o)
			}
		})
	}
}

// TestAfterIdle: a pair is measured once more after each of some times without a connection, as far as there is time.
func TestAfterIdle(t *testing.T) {
	unmeasurable := &checkup.Cause{Stage: checkup.StageSocket}
	for _, tt := range []struct {
		name       string
		deadline   time.Duration
		silent     int // the number of a measurement without an answer
		unmeasured *checkup.Cause
		want       []string
		took       time.Duration
	}{
		{"all", time.Hour, -1, nil, []string{"1", "2", "3", "4"}, 48 * time.Second},
		{"no time", 30 * time.Second, -1, nil, []string{"1", "2"}, 30 * time.Second},
		{"one is lost", time.Hour, 3, nil, []string{"1", "2", "4"}, 48 * time.Second},
		{"not measured", time.Hour, -1, unmeasurable, nil, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, n := time.Now(), 0
				ctx, cancel := context.WithTimeout(t.Context(), tt.deadline)
				defer cancel()
				measure := func(_ context.Context, m Measurement, _ *Session) checkup.Observation {
					o := checkup.Observation{Sent: m.Probe.Count, Unmeasured: tt.unmeasured}
					if time.Since(start) != time.Duration(n)*12*time.Second || (m.Probe.Count == 60) != (n == 0) {
						t.Errorf("measurement %d: %d times after %s", n, m.Probe.Count, time.Since(start))
					}
					if n != tt.silent {
						o.Received, o.Answerers = o.Sent, []checkup.Answerer{{Address: strconv.Itoa(n), Count: o.Sent}}
					}
					n++
					return o
				}
				o := afterIdle(ctx, Measurement{Probe: checkup.Probe{Count: 60}, Idle: 12 * time.Second}, &Session{}, measure)
				if !slices.Equal(o.Later, tt.want) || o.Sent != 60 || time.Since(start) != tt.took {
					t.Errorf("%d sent, %v later, in %s; want %v in %s", o.Sent, o.Later, time.Since(start), tt.want, tt.took)
				}
			})
		})
	}
}

// TestTurnsBesideOthers: pairs that turn are begun before all others, take no place from them, and wait until one of
// those is reported.
func TestTurnsBesideOthers(t *testing.T) {
	order := orderTo(serve(t, checkup.IPv4), checkup.IPv4)
	order.Probes, order.Limits.Concurrency = order.Probes[:1], 1
	order.Probes[0].Sizes = []int{0}
	ordinary := order.Targets[0]
	ordinary.Identify = true
	order.Targets = []checkup.OrderTarget{ordinary}
	for i := range 3 {
		turning := ordinary
		turning.Target, turning.Turn = ordinary.Target+1+i, 1 // over before the ordinary one is measured
		order.Targets = append(order.Targets, turning)
	}
	measured := make(chan struct{}) // the ordinary one
	var mu sync.Mutex               // guards tried
	tried := map[int]bool{}
	first := func(target int) bool {
		mu.Lock()
		defer mu.Unlock()
		defer func() { tried[target] = true }()
		return !tried[target]
	}
	funcs := unwatched()
	measure := funcs[checkup.TCP]
	funcs[checkup.TCP] = func(ctx context.Context, m Measurement, s *Session) checkup.Observation {
		if m.Pair.Target == controlTarget {
			return measure(ctx, m, s)
		}
		o := checkup.Observation{Pair: m.Pair, Sent: m.Probe.Count, Received: m.Probe.Count}
		by := "a"
		switch {
		case !first(m.Pair.Target):
			<-measured
			by = "b"
		case m.Turn == 0:
			if len(tried) != 4 {
				t.Errorf("measured when %d were tried, want all that turn first", len(tried))
			}
			close(measured)
		}
		o.Answerers = []checkup.Answerer{{Address: by, Count: o.Received}}
		return o
	}
	var out bytes.Buffer
	if err := (Agent{Order: order, Out: &out, Funcs: funcs, Root: noCgroup}).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got []int
	for _, m := range messages(t, out.Bytes()) {
		if o := m.Observation; o != nil && !o.Unturned && o.Unmeasured == nil {
			got = append(got, o.Target-ordinary.Target)
		}
	}
	if slices.Sort(got); !slices.Equal(got, []int{0, 1, 2, 3}) {
		t.Errorf("measured %v, want all four", got)
	}
}

// TestOnlyTurns: an agent of which all pairs turn does not wait for a report of another one.
func TestOnlyTurns(t *testing.T) {
	order := orderTo(serve(t, checkup.IPv4), checkup.IPv4)
	order.Probes = order.Probes[:1]
	order.Probes[0].Sizes = []int{0}
	order.Targets[0].Identify, order.Targets[0].Turn = true, 1
	var out bytes.Buffer
	if err := (Agent{Order: order, Out: &out, Funcs: unwatched(), Root: noCgroup}).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, m := range messages(t, out.Bytes()) {
		if o := m.Observation; o != nil && (!o.Unturned || o.Unmeasured != nil) {
			t.Errorf("%+v, want that it was measured without a turn", o)
		}
	}
}
