// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// A pair ends at the first of its stopping points that it is beyond, and nothing is sent after that. Datagrams are sent
// from four source ports in turn.
func TestStopsOfUDP(t *testing.T) {
	for _, test := range []struct {
		name           string
		lost           func(number int) bool
		late           time.Duration // of each answer
		sent, received int
	}{
		{"nothing is lost", func(int) bool { return false }, 0, 40, 40},
		{"nothing is lost, all answers are late", func(int) bool { return false }, 50 * time.Millisecond, 40, 40},
		{"half is lost", func(i int) bool { return i/4%2 == 0 }, 0, 8, 4},
		{"all is lost", func(int) bool { return true }, 0, 8, 0},
		{"all is lost from the ninth on", func(i int) bool { return i >= 8 }, 0, 16, 8},
		{"as much, but behind the last point", func(i int) bool { return i >= 24 }, 0, 40, 24},
		{"one of four source ports", func(i int) bool { return i%4 == 0 || i < 8 && i%4 == 1 }, 0, 40, 28},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int32
			m := Measurement{
				Pair: pairOf(checkup.UDP, checkup.IPv4, 100),
				Address: listenDatagrams(t, checkup.IPv4, func(conn *net.UDPConn, request []byte, from netip.AddrPort) {
					requests.Add(1)
					if p, err := parsePacket(request); err == nil && !test.lost(int(p.sequence)) {
						answer := answerTo(request)
						time.AfterFunc(test.late, func() { conn.WriteToUDPAddrPort(answer, from) })
					}
				}),
				Probe: checkup.Probe{
					Count: 40, Interval: checkup.Duration(2 * time.Millisecond), Timeout: checkup.Duration(time.Second),
				},
				Stops: checkup.Stops{{After: 8, Lost: 4}, {After: 16, Lost: 8}, {After: 24, Lost: 12}},
			}
			got := udp(t.Context(), m, session())
			if got.Sent != test.sent || got.Received != test.received || int(requests.Load()) != test.sent {
				t.Errorf("%d of %d answered, %d requests; want %d of %d", got.Received, got.Sent, requests.Load(), test.received, test.sent)
			}
		})
	}
}

// Connections end likewise: there are no more than those before the stopping point.
func TestStopsOfTCP(t *testing.T) {
	for _, test := range []struct {
		name           string
		lost           func(number int) bool
		sent, received int
	}{
		{"nothing is lost", func(int) bool { return false }, 20, 20},
		{"half is lost", func(i int) bool { return i%2 == 0 }, 8, 4},
		{"all is lost", func(int) bool { return true }, 8, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var connections atomic.Int32
			m := Measurement{
				Pair: pairOf(checkup.TCP, checkup.IPv4, 10),
				Address: listenTCP(t, checkup.IPv4, func(c net.Conn) {
					if test.lost(int(connections.Add(1))) {
						c.Close()
						return
					}
					echoPeer(c)
				}),
				Probe: checkup.Probe{Count: 20, Interval: checkup.Duration(2 * time.Millisecond), Timeout: patience},
				Stops: checkup.Stops{{After: 4, Lost: 4}, {After: 8, Lost: 4}},
			}
			if test.received == 0 {
				m.Stops = m.Stops[1:]
			}
			got := tcp(t.Context(), m, session())
			if got.Sent != test.sent || got.Received != test.received || int(connections.Load()) != test.sent {
				t.Errorf("%d of %d answered, %d connections; want %d of %d",
					got.Received, got.Sent, connections.Load(), test.received, test.sent)
			}
		})
	}
}
