// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/checkplan/checkplan/pkg/checkup"
)

func TestNoRoomExcludesWrongChecksums(t *testing.T) {
	root := fstest.MapFS{
		"proc/net/snmp": {Data: []byte(`Ip: Forwarding DefaultTTL
Ip: 1 64
Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors
Udp: 117847 558 7 118412 4 0 3 0 0
UdpLite: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors
UdpLite: 0 0 0 0 0 0 90 0 0
`)},
		"proc/net/snmp6": {Data: []byte("Ip6InReceives                   \t36\nUdp6InCsumErrors                \t5\nUdpLite6InCsumErrors                \t90\n")},
	}
	cut := fstest.MapFS{
		"proc/net/snmp":  {Data: []byte("Udp: InDatagrams InCsumErrors\nUdp: 117847\n")},
		"proc/net/snmp6": {Data: []byte("Udp6InCsumErrors\n")},
	}
	for _, test := range []struct {
		name   string
		drops  int
		family checkup.IPFamily
		root   fstest.MapFS
		want   int
	}{
		{"none", 0, checkup.IPv4, root, 0},
		{"wrong checksums only", 3, checkup.IPv4, root, 0},
		{"both", 10, checkup.IPv4, root, 7},
		{"fewer drops here than wrong checksums everywhere", 2, checkup.IPv4, root, 0},
		{"both, IPv6", 10, checkup.IPv6, root, 5},
		{"not reported", 10, checkup.IPv4, fstest.MapFS{}, 10},
		{"not reported, IPv6", 10, checkup.IPv6, fstest.MapFS{}, 10},
		{"cut off", 10, checkup.IPv4, cut, 10},
		{"cut off, IPv6", 10, checkup.IPv6, cut, 10},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := noRoom(test.drops, test.family, test.root); got != test.want {
				t.Errorf("noRoom = %d, want %d", got, test.want)
			}
		})
	}
}

// Only timeouts are attributed to drops, and at most as many as the drops of their flow.
func TestPacketsDroppedHereAreNotLost(t *testing.T) {
	full, empty := &flow{noRoom: 2}, &flow{}
	c := conversation{
		datagrams: &datagrams{m: Measurement{Pair: pairOf(checkup.UDP, checkup.IPv4, 100), Probe: checkup.Probe{Timeout: silence}}},
		journeys: []journey{
			{flow: full, err: unix.ECONNREFUSED},
			{flow: full, wrong: true},
			{flow: full},
			{flow: empty},
		},
	}
	w := &Watch{}
	first := c.samples(0)
	w.believe(first)
	c.journeys = append(c.journeys, journey{flow: full}, journey{flow: full})
	second := c.samples(4)
	w.believe(second)
	var spoiled []bool
	for _, s := range append(first, second...) {
		spoiled = append(spoiled, s.spoiled)
	}
	if diff := cmp.Diff([]bool{false, false, true, false, true, false}, spoiled); diff != "" {
		t.Errorf("spoiled (-want +got):\n%s", diff)
	}
	want := checkup.Observation{Pair: c.m.Pair, Spoiled: 1, Unmeasured: cause(checkup.StageSelf, "the agent's socket buffer was full and dropped the answers to all 1 measurements")}
	if diff := cmp.Diff(want, tally(c.m, first[2:3])); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The answer to the second packet is dropped, because duplicates of the first one fill the agent's socket buffer;
// therefore the measurement is repeated.
func TestFullSocketIsNotALostAnswer(t *testing.T) {
	bothFamilies(t, func(t *testing.T, family checkup.IPFamily) {
		sockets := make(chan *socket, 1)
		m := Measurement{
			Pair: pairOf(checkup.UDP, family, 1400),
			Address: listenDatagrams(t, family, func(conn *net.UDPConn, b []byte, from netip.AddrPort) {
				p, _ := parsePacket(b)
				b = answerTo(b)
				if p.sequence == 0 {
					for s := <-sockets; drops(s.raw) == 0; {
						conn.WriteToUDPAddrPort(b, from)
					}
				}
				if p.sequence != 1 {
					conn.WriteToUDPAddrPort(b, from)
				}
			}),
			Probe: checkup.Probe{Count: 2, Timeout: silence},
		}
		d := overUDP(m, 1)
		d.flows = 1
		open := d.open
		d.open = func(port int) (*socket, error) {
			s, err := open(port)
			if err == nil {
				s.raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 8<<10) })
				sockets <- s
			}
			return s, err
		}
		got := d.measure(t.Context(), session())
		if got.Sent != 2 || got.Spoiled < 1 || got.Received != 2 {
			t.Errorf("got %+v, want 2 of 2 received, and at least 1 spoiled", got)
		}
	})
}

// A responder reports packets that its full socket buffer dropped.
func TestResponderReportsDrops(t *testing.T) {
	bothFamilies(t, func(t *testing.T, family checkup.IPFamily) {
		r, err := Listen(t.Context(), anyPort(family), anyPort(family), anyPort(family))
		if err != nil {
			t.Fatal(err)
		}
		if err := r.udp[0].SetReadBuffer(1); err != nil {
			t.Fatal(err)
		}
		raw, err := r.udp[0].SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.DialUDP("udp", nil, r.udp[0].LocalAddr().(*net.UDPAddr))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		p := packet{kind: request, pair: pairOf(checkup.UDP, family, 1400)}
		for drops(raw) < 3 {
			if _, err := conn.Write(appendPacket(nil, p)); err != nil {
				t.Fatal(err)
			}
			p.sequence++
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var out bytes.Buffer
		served := make(chan error, 1)
		go func() { served <- r.Serve(ctx, &out, nil) }()
		if _, err := io.ReadAtLeast(conn, make([]byte, 1400), 1400); err != nil {
			t.Fatal(err)
		}
		stop()
		if err := <-served; err != nil {
			t.Fatal(err)
		}
		ms := messages(t, out.Bytes())
		if len(ms) != 2 || ms[0].Start == nil || ms[1].Reception == nil {
			t.Fatalf("got %s, want a start and one reception", out.Bytes())
		}
		got := ms[1].Reception
		if got.Pair != p.pair || got.Packets < 1 || got.Dropped < 3 || got.Packets+got.Dropped > int(p.sequence) {
			t.Errorf("got %+v of %d requests, want at least 3 dropped", got, p.sequence)
		}
	})
}

func TestReceptionsReportDrops(t *testing.T) {
	a, b := pairOf(checkup.UDP, checkup.IPv4, 100), pairOf(checkup.UDP, checkup.IPv6, 100)
	reported := func(pair checkup.Pair, packets, dropped int) checkup.Message {
		return checkup.Message{Reception: &checkup.Reception{Pair: pair, Packets: packets, Dropped: dropped}}
	}
	var r receptions
	for _, step := range []struct {
		name string
		do   func()
		want []checkup.Message
	}{
		{"no pair yet", func() { r.drop(checkup.IPv4, 1) }, nil},
		{"with the next", func() { r.count(packet{pair: a}); r.count(packet{pair: b}) }, []checkup.Message{reported(a, 1, 1), reported(b, 1, 0)}},
		{"no more, no line", func() { r.drop(checkup.IPv4, 1) }, nil},
		{"more, and nothing else", func() { r.drop(checkup.IPv4, 3) }, []checkup.Message{reported(a, 1, 3)}},
		{"fewer", func() { r.drop(checkup.IPv4, 2) }, nil},
		{"a further look has its own", func() { r.count(packet{pair: a, nonce: 1 << 56}); r.drop(checkup.IPv4, 7) },
			[]checkup.Message{{Reception: &checkup.Reception{Pair: a, Look: 1, Packets: 1, Dropped: 4}}}},
	} {
		step.do()
		if diff := cmp.Diff(step.want, r.changed()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
}
