// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// An answerer returns what a misbehaving peer sends back for the newest request of a source port; it receives all
// requests of that port so far.
type answerer func(requests [][]byte) (answers [][]byte)

func answerTo(b []byte) []byte {
	b = slices.Clone(b)
	b[kindOffset] = byte(answer)
	return b
}

// udpCases are peers and the expected observations, of eight measurements from four source ports: two each.
var udpCases = []struct {
	name    string
	peer    answerer // nil means that nothing listens
	size    int
	timeout checkup.Duration
	want    checkup.Observation
}{
	{"smallest", truthful, checkup.MinUDPSize, patience, checkup.Observation{Sent: 8, Received: 8}},
	{"of one packet", truthful, 1400, patience, checkup.Observation{Sent: 8, Received: 8}},
	{"fragmented", truthful, 9000, patience, checkup.Observation{Sent: 8, Received: 8}},
	{"largest", truthful, checkup.MaxDatagramSize, patience, checkup.Observation{Sent: 8, Received: 8}},
	{"refused", nil, 100, patience, checkup.Observation{Sent: 8, Failure: noConnection(checkup.ReasonRefused, "connection refused")}},
	{"silent", func([][]byte) [][]byte { return nil }, 100, silence,
		checkup.Observation{Sent: 8, Failure: noAnswer("timed out after 300ms")}},
	{"duplicates", func(requests [][]byte) [][]byte {
		if len(requests) < 2 {
			return nil
		}
		first, second := answerTo(requests[0]), answerTo(requests[1])
		return [][]byte{first, first, first, second}
	}, 100, patience, checkup.Observation{Sent: 8, Received: 8, Duplicates: 8}},
	{"reordered", func(requests [][]byte) [][]byte {
		if len(requests) < 2 {
			return nil
		}
		return [][]byte{answerTo(requests[1]), answerTo(requests[0])}
	}, 100, patience, checkup.Observation{Sent: 8, Received: 8, Reordered: 4}},
	{"half lost", func(requests [][]byte) [][]byte {
		if len(requests) < 2 {
			return nil
		}
		return [][]byte{answerTo(requests[1])}
	}, 100, checkup.Duration(time.Second), checkup.Observation{Sent: 8, Received: 4, Failure: noAnswer("timed out after 1s")}},
	{"plain echo", func(requests [][]byte) [][]byte { return requests[len(requests)-1:] }, 100, silence,
		checkup.Observation{Sent: 8, Failure: cause(checkup.StageEcho, "the answer differs from what was sent")}},
	{"cut off", func(requests [][]byte) [][]byte { return [][]byte{answerTo(requests[len(requests)-1])[:99]} }, 100, patience,
		checkup.Observation{Sent: 8, Failure: cause(checkup.StageEcho, "the answer differs from what was sent")}},
	{"too long", func(requests [][]byte) [][]byte { return [][]byte{append(answerTo(requests[len(requests)-1]), 0)} }, 100, patience,
		checkup.Observation{Sent: 8, Failure: cause(checkup.StageEcho, "the answer differs from what was sent")}},
	{"garbled", func(requests [][]byte) [][]byte {
		b := answerTo(requests[len(requests)-1])
		b[99]++
		return [][]byte{b}
	}, 100, patience, checkup.Observation{Sent: 8, Failure: cause(checkup.StageEcho, "the answer differs from what was sent")}},
	{"garbage", func([][]byte) [][]byte { return [][]byte{{}, []byte("what?")} }, 100, silence,
		checkup.Observation{Sent: 8, Failure: cause(checkup.StageEcho, "the answer differs from what was sent")}},
	{"answers to another agent", func(requests [][]byte) [][]byte {
		b := answerTo(requests[len(requests)-1])
		b[8]++
		return [][]byte{b, answerTo(requests[len(requests)-1])}
	}, 100, patience, checkup.Observation{Sent: 8, Received: 8}},
	{"answers before the request", func(requests [][]byte) [][]byte {
		var all [][]byte
		p, _ := parsePacket(requests[len(requests)-1])
		for i := range uint32(20) {
			p.kind, p.sequence = answer, i
			all = append(all, appendPacket(nil, p))
		}
		return append(all, answerTo(requests[len(requests)-1]))
	}, 100, patience, checkup.Observation{Sent: 8, Received: 8, Duplicates: -1}},
	{"no such size", truthful, checkup.MinUDPSize - 1, patience,
		checkup.Observation{Unmeasured: cause(checkup.StageSocket, "size is below the smallest udp payload")}},
}

func truthful(requests [][]byte) [][]byte { return [][]byte{answerTo(requests[len(requests)-1])} }

func TestUDP(t *testing.T) {
	for _, test := range udpCases {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			bothFamilies(t, func(t *testing.T, family checkup.IPFamily) {
				m := Measurement{
					Pair:    pairOf(checkup.UDP, family, test.size),
					Address: listenUDP(t, family, test.peer),
					Probe:   checkup.Probe{Count: 8, Timeout: test.timeout},
				}
				got := udp(t.Context(), m, session())
				want := test.want
				want.Pair = m.Pair
				if want.Duplicates < 0 { // the number depends on timing
					want.Duplicates, want.Reordered = got.Duplicates, got.Reordered
				}
				if diff := diffObservations(want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestUDPOversizeIsData(t *testing.T) {
	m := Measurement{
		Pair:    pairOf(checkup.UDP, checkup.IPv4, checkup.MaxDatagramSize+1),
		Address: listenUDP(t, checkup.IPv4, truthful),
		Probe:   checkup.Probe{Count: 2, Timeout: patience},
	}
	want := checkup.Observation{Pair: m.Pair, Sent: 2, Failure: cause(checkup.StageConnect, "message too long")}
	if diff := diffObservations(want, udp(t.Context(), m, session())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestUDPIsTimedByTheKernel(t *testing.T) {
	stamps, err := keepTimestamps()
	if err != nil {
		t.Fatal(err)
	}
	defer stamps.Close()
	bothFamilies(t, func(t *testing.T, family checkup.IPFamily) {
		m := Measurement{
			Pair:    pairOf(checkup.UDP, family, 1400),
			Address: serve(t, family).udp[0].LocalAddr().(*net.UDPAddr).AddrPort(),
			Probe:   checkup.Probe{Count: 20, Interval: checkup.Duration(time.Millisecond), Timeout: patience},
		}
		// The kernel starts to timestamp a moment after the request: only a later pair certainly has timestamps.
		for ctx := t.Context(); ctx.Err() == nil; {
			if got := udp(ctx, m, session()); got.Kernel {
				return
			} else if got.Received != 20 {
				t.Fatalf("got %+v", got)
			}
		}
	})
}

func TestUDPUsesSeveralSourcePortsInTurn(t *testing.T) {
	var mu sync.Mutex
	ports := map[netip.AddrPort][]uint32{}
	m := Measurement{
		Pair: pairOf(checkup.UDP, checkup.IPv4, 100),
		Address: listenDatagrams(t, checkup.IPv4, func(conn *net.UDPConn, b []byte, from netip.AddrPort) {
			p, _ := parsePacket(b)
			mu.Lock()
			ports[from] = append(ports[from], p.sequence)
			mu.Unlock()
			conn.WriteToUDPAddrPort(answerTo(b), from)
		}),
		Probe: checkup.Probe{Count: 10, Timeout: patience},
	}
	udp(t.Context(), m, session())
	mu.Lock()
	defer mu.Unlock()
	var turns [][]uint32
	for _, sequence := range ports {
		turns = append(turns, sequence)
	}
	slices.SortFunc(turns, slices.Compare)
	if diff := cmp.Diff([][]uint32{{0, 4, 8}, {1, 5, 9}, {2, 6}, {3, 7}}, turns); diff != "" {
		t.Errorf("packets by source port (-want +got):\n%s", diff)
	}
}

func TestDelayOfAnAnswer(t *testing.T) {
	sent := time.Now()
	after := func(d time.Duration) time.Time { return sent.Add(d) }
	wall := func(d time.Duration) time.Time { return sent.Add(d).Round(0) }
	for _, test := range []struct {
		name   string
		j      journey
		want   time.Duration
		kernel bool
	}{
		{"kernel at both ends", journey{sent: sent, departed: wall(2), came: after(20), arrived: wall(9)}, 7, true},
		{"no departure", journey{sent: sent, came: after(20), arrived: wall(9)}, 9, false},
		{"no timestamp", journey{sent: sent, departed: wall(2), came: after(20)}, 20, false},
		{"clock set forward between", journey{sent: sent, departed: wall(2), came: after(20), arrived: wall(time.Hour)}, 20, false},
		{"clock set back between", journey{sent: sent, departed: wall(2), came: after(20), arrived: wall(-time.Hour)}, 20, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, kernel := test.j.delay(); got != test.want || kernel != test.kernel {
				t.Errorf("delay = %v, %v, want %v, %v", got, kernel, test.want, test.kernel)
			}
		})
	}
}

func TestLessResidence(t *testing.T) {
	for _, test := range []struct {
		name       string
		delay      time.Duration
		kernel     bool
		residence  time.Duration
		want       time.Duration
		wantKernel bool
	}{
		{"timed by the kernel", 10, true, 7, 3, true},
		{"timed by the agent", 10, false, 7, 3, false},
		{"all of it", 10, true, 10, 0, true},
		{"unknown", 10, true, 0, 10, false},
		{"more than the delay", 10, true, 11, 10, false},
		{"negative", 10, true, -1, 10, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, kernel := lessResidence(test.delay, test.kernel, test.residence); got != test.want || kernel != test.wantKernel {
				t.Errorf("lessResidence = %v, %v, want %v, %v", got, kernel, test.want, test.wantKernel)
			}
		})
	}
}

// The residence time that a peer reports is not part of the delay; a residence time longer than the delay is ignored.
func TestUDPDelayIsWithoutThePeersTime(t *testing.T) {
	const own = 20 * time.Millisecond
	for _, test := range []struct {
		name    string
		claim   func(honest time.Duration) time.Duration
		cleared bool
	}{
		{"honest", func(honest time.Duration) time.Duration { return honest }, true},
		{"silent", func(time.Duration) time.Duration { return 0 }, false},
		{"nonsense", func(time.Duration) time.Duration { return math.MaxUint32 }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, family checkup.IPFamily) {
				m := Measurement{
					Pair: pairOf(checkup.UDP, family, checkup.MinUDPSize),
					Address: listenDatagrams(t, family, func(conn *net.UDPConn, b []byte, from netip.AddrPort) {
						came := time.Now()
						<-time.After(own)
						b = answerTo(b)
						setResidence(b, test.claim(time.Since(came)))
						conn.WriteToUDPAddrPort(b, from)
					}),
					Probe: checkup.Probe{Count: 1, Timeout: patience},
				}
				start := time.Now()
				got := udp(t.Context(), m, session())
				elapsed := time.Since(start)
				if diff := diffObservations(checkup.Observation{Pair: m.Pair, Sent: 1, Received: 1}, got); diff != "" {
					t.Fatalf("(-want +got):\n%s", diff)
				}
				switch rtt := time.Duration(got.RTTs[0]) * time.Microsecond; {
				case test.cleared && rtt > elapsed-own:
					t.Errorf("got delay %v in %v, which includes the peer's %v", rtt, elapsed, own)
				case !test.cleared && (rtt < own.Truncate(time.Microsecond) || got.Kernel):
					t.Errorf("delay %v, kernel %v; want the whole, at least %v, and not called the kernel's", rtt, got.Kernel, own)
				}
			})
		})
	}
}

func TestAnswerAfterTheTimeoutIsLost(t *testing.T) {
	sent, timeout := time.Now(), 10*time.Millisecond
	f := &flow{}
	c := conversation{
		datagrams: &datagrams{m: Measurement{Pair: pairOf(checkup.UDP, checkup.IPv4, 100), Probe: checkup.Probe{Count: 3, Timeout: checkup.Duration(timeout)}}},
		journeys: []journey{
			{flow: f, sent: sent, came: sent.Add(timeout)},
			{flow: f, sent: sent, came: sent.Add(timeout + 1)},
			// Read too late, but arrived in time by the kernel's clock.
			{flow: f, sent: sent, departed: sent.Round(0), arrived: sent.Round(0).Add(timeout), came: sent.Add(time.Hour)},
		},
	}
	got := tally(c.m, c.samples(0))
	want := checkup.Observation{Pair: c.m.Pair, Sent: 3, Received: 2, RTTs: []int64{10000, 10000},
		Failure: noAnswer("timed out after 10ms")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// listenUDP answers with peer; without a peer it returns a closed port.
func listenUDP(t testing.TB, family checkup.IPFamily, peer answerer) netip.AddrPort {
	t.Helper()
	if peer == nil {
		ports, release, err := closedPorts(family)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(release)
		return netip.AddrPortFrom(loopback[family], uint16(ports[checkup.UDP]))
	}
	requests := map[netip.AddrPort][][]byte{}
	return listenDatagrams(t, family, func(conn *net.UDPConn, b []byte, from netip.AddrPort) {
		requests[from] = append(requests[from], slices.Clone(b))
		for _, b := range peer(requests[from]) {
			conn.WriteToUDPAddrPort(b, from)
		}
	})
}

// listenDatagrams calls handle for every datagram until the test ends.
func listenDatagrams(t testing.TB, family checkup.IPFamily, handle func(conn *net.UDPConn, b []byte, from netip.AddrPort)) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(loopback[family], 0)))
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadBuffer(4 << 20)
	var serving sync.WaitGroup
	serving.Go(func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			handle(conn, buf[:n], from)
		}
	})
	t.Cleanup(func() {
		conn.Close()
		serving.Wait()
	})
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}
