// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"io"
	"net"
	nethttp "net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// other is an address of the loopback that an agent does not choose by itself.
var other = netip.AddrFrom4([4]byte{127, 0, 0, 2})

// A responder reports the source address that it sees, whatever the transport and the size, and the agent compares it
// with its own.
func TestWitness(t *testing.T) {
	for _, tt := range []struct {
		transport checkup.Transport
		size      int
		witnessed int // of 3
	}{
		{checkup.TCP, 0, 3},
		{checkup.TCP, 100, 3},
		{checkup.TCP, 60_000, 3},
		{checkup.UDP, checkup.MinUDPSize, 0}, // no room for an address
		{checkup.UDP, checkup.MinWitnessSize - 1, 0},
		{checkup.UDP, checkup.MinWitnessSize, 3},
		{checkup.UDP, 60_000, 3},
		{checkup.HTTP, 0, 3},
		{checkup.HTTP, 4000, 3},
	} {
		t.Run(string(tt.transport), func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, family checkup.IPFamily) {
				r := serve(t, family)
				want := checkup.Observation{Sent: 3, Received: 3, Witnessed: tt.witnessed}
				witnessed(t, want, tt.transport, tt.size, netip.AddrPortFrom(loopback[family], uint16(r.Ports()[tt.transport])))
			})
			// The network rewrites the source address: here, a relay does.
			want := checkup.Observation{Sent: 3, Received: 3, Witnessed: tt.witnessed}
			if want.Rewritten = tt.witnessed; want.Rewritten > 0 {
				want.SeenAs = other.String()
			}
			to := netip.AddrPortFrom(loopback[checkup.IPv4], uint16(serve(t, checkup.IPv4).Ports()[tt.transport]))
			witnessed(t, want, tt.transport, tt.size, relay(t, tt.transport, to))
		})
	}
}

// A delay of the responder's process is none of the network's, whatever the transport: udp subtracts it, and tcp and
// http discard the measurement, as if the agent had been held up.
func TestHeldUpResponder(t *testing.T) {
	const count, size = 3, 100
	for _, tt := range []struct {
		transport checkup.Transport
		// listen starts a responder that kept as many requests for 190 ms as count.
		listen func(held func() int) netip.AddrPort
	}{
		{checkup.TCP, func(held func() int) netip.AddrPort {
			return listenTCP(t, checkup.IPv4, func(c net.Conn) {
				data := make([]byte, witnessSize+size)
				if _, err := io.ReadFull(c, data[:witnessSize]); err != nil {
					return
				}
				answer := witness(sourceSeen, loopback[checkup.IPv4].As16())
				c.Write(answer[:])
				if _, err := io.ReadFull(c, data[:size]); err != nil {
					return
				}
				report := witness(echoHeld, number(uint64(held())))
				c.Write(append(data[:size], report[:]...))
				io.Copy(io.Discard, c)
			})
		}},
		{checkup.HTTP, func(held func() int) netip.AddrPort {
			return listenHTTP(t, checkup.IPv4, func(w nethttp.ResponseWriter, _ *nethttp.Request) {
				w.Header().Set(sourceHeader, "127.0.0.1")
				w.Header().Set(heldHeader, strconv.Itoa(held()))
				w.Write(make([]byte, size))
			})
		}},
	} {
		t.Run(string(tt.transport), func(t *testing.T) {
			var asked atomic.Int32
			at := tt.listen(func() int {
				if asked.Add(1) <= count {
					return 190
				}
				return 0
			})
			want := checkup.Observation{Sent: count, Received: count, Witnessed: count, Spoiled: count}
			witnessed(t, want, tt.transport, size, at)
		})
	}
}

// What a responder reports as the time for which it kept a request is a time, and not more than an hour.
func TestParseHeld(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"": 0, "0": 0, "190": 190 * time.Millisecond, "-5": 0, "nonsense": 0, "18446744073709551615": time.Hour,
	} {
		if got := parseHeld(text); got != want {
			t.Errorf("held %q is %v, want %v", text, got, want)
		}
	}
}

// TestHoldUpInWitness: a sample that waits in vain for a witness lasts from the connect to the timeout: a hold-up of the
// agent in between spoils it.
func TestHoldUpInWitness(t *testing.T) {
	for _, m := range []Measurement{
		{Pair: pairOf(checkup.TCP, checkup.IPv4, 0), Witness: true, Identify: true},
		{Pair: pairOf(checkup.TCP, checkup.IPv4, 100), Witness: true},
	} {
		m.Address = listenTCP(t, checkup.IPv4, silentPeer)
		m.Probe = checkup.Probe{Count: 1, Timeout: silence}
		s, err := tcpOnce(t.Context(), m)
		if lasted := s.end.Sub(s.start); err != nil || !s.timedOut || lasted < time.Duration(silence)/2 {
			t.Errorf("%+v: %v, timed out: %t, lasted %s", m.Pair, err, s.timedOut, lasted)
		}
	}
}

// Without a witness in the order, nothing is asked and nothing is reported.
func TestNoWitness(t *testing.T) {
	r := serve(t, checkup.IPv4)
	for transport, port := range r.Ports() {
		m := Measurement{
			Pair:    pairOf(transport, checkup.IPv4, 100),
			Address: netip.AddrPortFrom(loopback[checkup.IPv4], uint16(port)),
			Probe:   checkup.Probe{Count: 1, Timeout: patience},
		}
		if got := Funcs[transport](t.Context(), m, session()); got.Witnessed != 0 || got.Received != 1 {
			t.Errorf("%s: %+v, want one answer and no witness", transport, got)
		}
	}
}

// What an older responder, or a hostile one, answers leaves the source address unknown and the measurement as it is.
func TestWrongWitness(t *testing.T) {
	answers := func(b string) func(net.Conn) {
		return func(c net.Conn) {
			if _, err := io.ReadFull(c, make([]byte, witnessSize)); err == nil {
				io.WriteString(c, b)
			}
			io.Copy(c, c)
		}
	}
	seen := witness(sourceSeen, other.As16())
	wrongMagic, zero := seen, witness(sourceSeen, netip.IPv6Unspecified().As16())
	wrongMagic[0] = 'x'
	for name, peer := range map[string]func(net.Conn){
		"an older responder": echoPeer,
		"another magic":      answers(string(wrongMagic[:])),
		"no address":         answers(string(zero[:])),
		"noise":              answers(strings.Repeat("\xff", witnessSize)),
	} {
		for _, size := range []int{0, 100} {
			t.Run("tcp "+name, func(t *testing.T) {
				want := checkup.Observation{Sent: 3, Received: 3}
				witnessed(t, want, checkup.TCP, size, listenTCP(t, checkup.IPv4, peer))
			})
		}
	}
	t.Run("udp an older responder", func(t *testing.T) {
		want := checkup.Observation{Sent: 3, Received: 3}
		witnessed(t, want, checkup.UDP, 100, listenUDP(t, checkup.IPv4, truthful))
	})
	for _, header := range []string{"", "nonsense", "0.0.0.0", "fe80::1%eth0", strings.Repeat("9", 10_000)} {
		t.Run("http "+header[:min(len(header), 20)], func(t *testing.T) {
			want := checkup.Observation{Sent: 3, Received: 3}
			witnessed(t, want, checkup.HTTP, 0, listenHTTP(t, checkup.IPv4, func(w nethttp.ResponseWriter, _ *nethttp.Request) {
				w.Header().Set(sourceHeader, header)
			}))
		})
	}
}

// An older agent's udp packets come back as they were: it compares all bytes.
func TestWitnessLeavesOlderPackets(t *testing.T) {
	p := packet{kind: request, nonce: 7, pair: pairOf(checkup.UDP, checkup.IPv4, 100)}
	b := appendPacket(nil, p)
	copy(b[headerSize:], appendFill(nil, p.nonce, len(b)-headerSize))
	older := string(b)
	if setAddress(b, seenOffset, other); string(b) != older {
		t.Error("the padding of an older agent's packet was overwritten")
	}
}

func witnessed(t *testing.T, want checkup.Observation, transport checkup.Transport, size int, at netip.AddrPort) {
	t.Helper()
	m := Measurement{
		Pair: pairOf(transport, familyOf(at.Addr()), size), Address: at, Witness: true,
		Probe: checkup.Probe{Count: 3, Timeout: patience, Path: "/healthz"},
	}
	want.Pair = m.Pair
	s := session()
	if want.Spoiled > 0 {
		s.Watch = &Watch{}
	}
	if diff := diffObservations(want, Funcs[transport](t.Context(), m, s)); diff != "" {
		t.Errorf("%s of %d bytes (-want +got):\n%s", transport, size, diff)
	}
}

// relay passes what it receives on to an address, from another source address.
func relay(t *testing.T, transport checkup.Transport, to netip.AddrPort) netip.AddrPort {
	if transport != checkup.UDP {
		return listenTCP(t, checkup.IPv4, func(c net.Conn) {
			onward, err := net.DialTCP("tcp4", &net.TCPAddr{IP: other.AsSlice()}, net.TCPAddrFromAddrPort(to))
			if err != nil {
				t.Error(err)
				return
			}
			defer onward.Close()
			go func() {
				io.Copy(onward, c)
				onward.CloseWrite()
			}()
			io.Copy(c, onward)
		})
	}
	return listenDatagrams(t, checkup.IPv4, func(conn *net.UDPConn, b []byte, from netip.AddrPort) {
		onward, err := net.DialUDP("udp4", &net.UDPAddr{IP: other.AsSlice()}, net.UDPAddrFromAddrPort(to))
		if err != nil {
			t.Error(err)
			return
		}
		defer onward.Close()
		onward.SetDeadline(time.Now().Add(time.Duration(patience)))
		onward.Write(b)
		answer := make([]byte, 1<<16)
		if n, err := onward.Read(answer); err == nil {
			conn.WriteToUDPAddrPort(answer[:n], from)
		}
	})
}

// A responder reports its own address: a Service's address leads to several. What is answered by something else is not
// answered.
func TestIdentify(t *testing.T) {
	for _, tt := range []struct {
		transport checkup.Transport
		size      int
		known     bool
	}{
		{checkup.TCP, 0, true},
		{checkup.TCP, 100, true},
		{checkup.UDP, checkup.MinIdentifySize, true},
		{checkup.UDP, 1400, true},
		{checkup.UDP, checkup.MinIdentifySize - 1, false}, // no room for an address
	} {
		t.Run(string(tt.transport), func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, family checkup.IPFamily) {
				want := checkup.Observation{Sent: 3, Received: 3,
					Answerers: []checkup.Answerer{{Address: loopback[family].String(), Count: 3}}}
				if !tt.known {
					want = checkup.Observation{Sent: 3, Failure: notResponder}
				}
				identified(t, want, tt.transport, tt.size, netip.AddrPortFrom(loopback[family], uint16(serve(t, family).Ports()[tt.transport])))
			})
		})
	}
	// It answers, but not as a responder does.
	identified(t, checkup.Observation{Sent: 3, Failure: notResponder}, checkup.TCP, 0,
		listenTCP(t, checkup.IPv4, func(c net.Conn) { io.Copy(c, c) }))
	// A connection alone says nothing: what is behind it must answer. It reads, because the kernel resets a connection
	// that is closed before all of it was read.
	identified(t, checkup.Observation{Sent: 3, Failure: &checkup.Cause{
		Stage: checkup.StageEcho, Message: "closed by the peer before the whole answer",
	}}, checkup.TCP, 0, listenTCP(t, checkup.IPv4, func(c net.Conn) { c.Read(make([]byte, 4096)) }))
}

var notResponder = &checkup.Cause{Stage: checkup.StageEcho, Message: "answered by something that is no responder"}

func identified(t *testing.T, want checkup.Observation, transport checkup.Transport, size int, at netip.AddrPort) {
	t.Helper()
	m := Measurement{
		Pair: pairOf(transport, familyOf(at.Addr()), size), Address: at, Identify: true,
		Probe: checkup.Probe{Count: 3, Timeout: patience},
	}
	want.Pair = m.Pair
	if diff := diffObservations(want, Funcs[transport](t.Context(), m, session())); diff != "" {
		t.Errorf("%s of %d bytes (-want +got):\n%s", transport, size, diff)
	}
}
