// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"syscall"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// udp sends datagrams to a Responder and counts its answers. A size below checkup.MinUDPSize is not measured: the
// header does not fit.
func udp(ctx context.Context, m Measurement, s *Session) checkup.Observation {
	if m.Pair.Size < checkup.MinUDPSize {
		return unmeasured(m, checkup.StageSocket, "size is below the smallest udp payload")
	}
	d := overUDP(m, s.Nonce)
	return d.measure(ctx, s)
}

// overUDP returns the packet formats of a udp pair.
func overUDP(m Measurement, nonce uint64) datagrams {
	build := func(kind packetKind) func([]byte, int) []byte {
		return func(b []byte, i int) []byte {
			return appendPacket(b, packet{kind: kind, nonce: nonce, sequence: uint32(i), pair: m.Pair, identify: m.Identify})
		}
	}
	number := func(kind packetKind) func([]byte) (int, bool) {
		return func(b []byte) (int, bool) {
			p, err := parsePacket(b)
			return int(p.sequence), err == nil && p.kind == kind && p.nonce == nonce && p.pair == m.Pair
		}
	}
	flows := min(checkup.UDPFlows, m.Probe.Count)
	if m.Identify { // a Service keeps the endpoint of a source port
		flows = m.Probe.Count
	}
	return datagrams{
		m: m,
		open: func(port int) (*socket, error) {
			if port == 0 && m.Avoid != nil {
				return openFresh(m, m.Pair.Size+1)
			}
			return openSocket(m.Address, port, syscall.IPPROTO_UDP, m.Pair.Size+1)
		},
		flows:  flows,
		packet: build(request),
		answer: build(answer),
		added: func(b []byte) added {
			p, _ := parsePacket(b)
			setResidence(b, 0)
			a := added{residence: p.residence, seen: takeAddress(b, seenOffset)}
			if m.Identify {
				a.own = takeAddress(b, ownOffset)
			}
			return a
		},
		number: number(answer),
		quoted: number(request),
	}
}
