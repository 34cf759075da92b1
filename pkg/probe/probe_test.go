// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/checkplan/checkplan/pkg/checkup"
)

const (
	// patience is the timeout if an answer must come: never reached.
	patience = checkup.Duration(time.Minute)
	// silence is the timeout if no answer may come: always reached.
	silence = checkup.Duration(300 * time.Millisecond)
)

func TestFuncsCoverEveryTransport(t *testing.T) {
	got := slices.Sorted(maps.Keys(Funcs))
	want := slices.Sorted(slices.Values(checkup.Transports))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Funcs has other transports than checkup.Transports (-want +got):\n%s", diff)
	}
}

// Every transport has a table of cases.
func TestEveryTransportHasCases(t *testing.T) {
	tables := map[checkup.Transport]int{
		checkup.TCP: len(tcpCases), checkup.UDP: len(udpCases), checkup.ICMP: len(icmpCases), checkup.HTTP: len(httpCases), checkup.TLS: len(tlsCases),
		checkup.DNSUDP: len(dnsCases), checkup.DNSTCP: len(dnsCases),
	}
	for _, transport := range checkup.Transports {
		if tables[transport] == 0 {
			t.Errorf("no test case for transport %s", transport)
		}
	}
}

// session is a session for tests: no limit, and nothing is spoiled.
func session() *Session { return &Session{Nonce: 0x0023456789abcdef} }

// bothFamilies runs a test on the loopback address of either family.
func bothFamilies(t *testing.T, test func(t *testing.T, family checkup.IPFamily)) {
	for _, family := range checkup.IPFamilies {
		t.Run(string(family), func(t *testing.T) {
			t.Parallel()
			test(t, family)
		})
	}
}

// anyPort is the loopback address of a family, with port 0.
func anyPort(family checkup.IPFamily) string {
	return netip.AddrPortFrom(loopback[family], 0).String()
}

func pairOf(transport checkup.Transport, family checkup.IPFamily, size int) checkup.Pair {
	return checkup.Pair{Source: 1, Target: 2, Family: family, Transport: transport, Size: size}
}

// diffObservations compares observations. Of the delays it checks only that there is one per answer, and of the flows,
// whose ports differ each time, nothing.
func diffObservations(want, got checkup.Observation) string {
	if len(got.RTTs) != got.Received && got.Unmeasured == nil {
		return fmt.Sprintf("%d delays for %d answers", len(got.RTTs), got.Received)
	}
	for _, rtt := range got.RTTs {
		if rtt < 0 {
			return fmt.Sprintf("delay of %d µs", rtt)
		}
	}
	if want := len(got.RTTs); got.Pair.Transport == checkup.DNSTCP && len(got.Connects) != want {
		return fmt.Sprintf("%d delays of the connect, want %d", len(got.Connects), want)
	}
	for i, connect := range got.Connects {
		if connect < 0 || connect > got.RTTs[i] {
			return fmt.Sprintf("%d µs for the connect, of %d µs", connect, got.RTTs[i])
		}
	}
	return cmp.Diff(want, got, cmpopts.IgnoreFields(checkup.Observation{}, "RTTs", "Connects", "Kernel", "Flows"))
}

// serve starts a responder on the loopback of a family and stops it at the end of the test.
func serve(t testing.TB, family checkup.IPFamily) *Responder {
	t.Helper()
	r, err := Listen(t.Context(), anyPort(family), anyPort(family), anyPort(family))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- r.Serve(ctx, io.Discard, nil) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return r
}

func cause(stage checkup.Stage, format string, args ...any) *checkup.Cause {
	return &checkup.Cause{Stage: stage, Message: fmt.Sprintf(format, args...)}
}

// noConnection is the cause of a TCP connection that was not made, or of a datagram that was refused.
func noConnection(reason checkup.Reason, message string) *checkup.Cause {
	return &checkup.Cause{Stage: checkup.StageConnect, Reason: reason, Message: message}
}

// noAnswer is the cause of a datagram without an answer in time.
func noAnswer(message string) *checkup.Cause {
	return &checkup.Cause{Stage: checkup.StageEcho, Reason: checkup.ReasonTimedOut, Message: message}
}

// TestReasonOf: why a connection was not made, for code.
func TestReasonOf(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want checkup.Reason
	}{
		{os.NewSyscallError("connect", syscall.ECONNREFUSED), checkup.ReasonRefused},
		{os.NewSyscallError("connect", syscall.ETIMEDOUT), checkup.ReasonTimedOut},
		{context.DeadlineExceeded, checkup.ReasonTimedOut},
		{os.NewSyscallError("connect", syscall.EHOSTUNREACH), checkup.ReasonNoRoute},
		{os.NewSyscallError("connect", syscall.ENETUNREACH), checkup.ReasonNoRoute},
		{errors.Join(syscall.ENETUNREACH, syscall.ECONNREFUSED), checkup.ReasonRefused},
		{errors.New("another"), ""},
	} {
		if got := reasonOf(tt.err); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.err, got, tt.want)
		}
	}
}

// TestPeersWithoutConnections: a peer at an IP address is measured as a pair, in the first look and in a further one.
func TestPeersWithoutConnections(t *testing.T) {
	peer := &checkup.Peer{Host: "::1", Port: 80, Family: checkup.IPv6, Transport: checkup.TCP}
	pair := checkup.Pair{Source: 5, Target: 2, Family: checkup.IPv6, Transport: checkup.TCP}
	o := checkup.Order{
		Source: 5, IPFamilies: checkup.IPFamilies, Deadline: 1, Limits: checkup.Limits{PacketsPerSecond: 1, Concurrency: 1},
		Probes:  []checkup.TransportProbe{{Transport: checkup.TCP, Probe: checkup.Probe{Sizes: []int{0}, Count: 3, Timeout: 1}}},
		Targets: []checkup.OrderTarget{{Target: 2, Peer: peer}},
	}
	for look, count := range []int{3, 7} {
		if look > 0 {
			o.Look, o.Again = look, []checkup.Again{{Pair: pair, Count: count}}
		}
		if err := checkOrder(o); err != nil {
			t.Fatal(err)
		}
		ms, impossible := measurements(o)
		if len(ms) != 1 || len(impossible) > 0 || ms[0].Peer != nil || ms[0].Pair != pair || ms[0].Probe.Count != count ||
			ms[0].Address != netip.MustParseAddrPort("[::1]:80") {
			t.Errorf("look %d: %+v, %+v", look, ms, impossible)
		}
	}
}

func TestFailureMessagesAreStable(t *testing.T) {
	call := func(name string, err error) error {
		return &net.OpError{Op: "dial", Err: os.NewSyscallError(name, err)}
	}
	for _, test := range []struct {
		err   error
		want  string
		local bool
	}{
		{call("connect", syscall.ECONNREFUSED), "connection refused", false},
		{call("connect", syscall.EHOSTUNREACH), "no route to host", false},
		{call("connect", syscall.ENETUNREACH), "network is unreachable", false},
		{call("connect", syscall.EPERM), "operation not permitted", false},
		{call("read", syscall.ECONNRESET), "connection reset by peer", false},
		{call("send", syscall.EMSGSIZE), "message too long", false},
		{call("connect", syscall.ETIMEDOUT), "timed out after 2s", false},
		{context.DeadlineExceeded, "timed out after 2s", false},
		{os.ErrDeadlineExceeded, "timed out after 2s", false},
		{io.EOF, "closed by the peer before the whole answer", false},
		{io.ErrUnexpectedEOF, "closed by the peer before the whole answer", false},
		{errWrongAnswer, "the answer differs from what was sent", false},
		{call("socket", syscall.EMFILE), "socket: too many open files", true},
		{call("socket", syscall.EACCES), "socket: permission denied", true},
		{call("connect", syscall.EADDRNOTAVAIL), "connect: cannot assign requested address", true},
	} {
		t.Run(test.err.Error(), func(t *testing.T) {
			if got := isLocal(test.err); got != test.local {
				t.Fatalf("isLocal = %v, want %v", got, test.local)
			}
			got := localTrouble(test.err).Error()
			if !test.local {
				var s sample
				s.fail(checkup.StageConnect, test.err, 2*time.Second)
				got = s.cause.Message
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestCancelledPairIsUnmeasured(t *testing.T) {
	for _, transport := range checkup.Transports {
		t.Run(string(transport), func(t *testing.T) {
			r := serve(t, checkup.IPv4)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			m := Measurement{
				Pair:    pairOf(transport, checkup.IPv4, 100),
				Address: netip.AddrPortFrom(loopback[checkup.IPv4], uint16(r.Ports()[transport])),
				Probe:   checkup.Probe{Count: 3, Timeout: patience},
			}
			got := Funcs[transport](ctx, m, session())
			if got.Unmeasured == nil || got.Sent != 0 || got.Received != 0 {
				t.Errorf("got %+v, want unmeasured", got)
			}
		})
	}
}

func TestTallyCountsSpoiledSeparately(t *testing.T) {
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	answered := func(from int, rtt time.Duration, kernel bool) sample {
		return sample{start: at(from), end: at(from).Add(rtt), rtt: rtt, kernel: kernel}
	}
	lost := func(from, to int) sample {
		s := sample{start: at(from), end: at(to)}
		s.timeOut(at(to).Sub(at(from)))
		return s
	}
	refused := sample{start: at(0), end: at(1000)}
	refused.fail(checkup.StageConnect, syscall.ECONNREFUSED, time.Second)
	// The agent was held up from 100 ms to 130 ms, and from 200 ms to 206 ms.
	w := &Watch{}
	w.woke(at(100), at(130))
	w.woke(at(200), at(206))
	m := Measurement{Pair: pairOf(checkup.TCP, checkup.IPv4, 0)}
	for _, test := range []struct {
		name    string
		samples []sample
		want    checkup.Observation
	}{
		{"away from any hold-up", []sample{answered(0, time.Millisecond, false)},
			checkup.Observation{Sent: 1, Received: 1, RTTs: []int64{1000}}},
		{"long hold-up", []sample{answered(90, 100*time.Millisecond, false), answered(0, time.Millisecond, true)},
			checkup.Observation{Sent: 1, Received: 1, Spoiled: 1, RTTs: []int64{1000}, Kernel: true}},
		{"hold-up timed by the kernel", []sample{answered(90, 50*time.Millisecond, true)},
			checkup.Observation{Sent: 1, Received: 1, RTTs: []int64{50000}, Kernel: true}},
		{"hold-up as long as the delay", []sample{answered(199, 8*time.Millisecond, false), answered(0, 0, false)},
			checkup.Observation{Sent: 1, Received: 1, Spoiled: 1, RTTs: []int64{0}}},
		{"hold-up far below the delay", []sample{answered(150, 80*time.Millisecond, false)},
			checkup.Observation{Sent: 1, Received: 1, RTTs: []int64{80000}}},
		{"lost, with a hold-up far below the timeout", []sample{lost(50, 1050)},
			checkup.Observation{Sent: 1, Failure: cause(checkup.StageEcho, "timed out after 1s")}},
		{"lost, with a hold-up as long as the timeout", []sample{lost(95, 125), answered(0, 0, false)},
			checkup.Observation{Sent: 1, Received: 1, Spoiled: 1, RTTs: []int64{0}}},
		{"reported by the network during a hold-up", []sample{refused},
			checkup.Observation{Sent: 1, Failure: cause(checkup.StageConnect, "connection refused")}},
		{"explained before it timed out", []sample{refused, lost(0, 50)},
			checkup.Observation{Sent: 2, Failure: cause(checkup.StageConnect, "connection refused")}},
		{"explained after it timed out", []sample{lost(0, 50), refused},
			checkup.Observation{Sent: 2, Failure: cause(checkup.StageConnect, "connection refused")}},
		{"one not timed by the kernel", []sample{answered(0, 0, true), answered(0, 0, false)},
			checkup.Observation{Sent: 2, Received: 2, RTTs: []int64{0, 0}}},
		{"all spoiled", []sample{answered(90, 100*time.Millisecond, false), answered(120, 50*time.Millisecond, false)},
			checkup.Observation{Spoiled: 2, Unmeasured: cause(checkup.StageSelf, "the agent or its target was held up during all 2 measurements, for up to 30ms")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.want.Pair = m.Pair
			believed := w.believe(test.samples)
			got := tally(m, test.samples)
			if believed != got.Sent {
				t.Errorf("got %d samples that are not spoiled, %d reported", believed, got.Sent)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWatchIncludesCurrentHoldUp(t *testing.T) {
	w := &Watch{}
	due := time.Now().Add(-time.Hour)
	w.set(nil, due)
	if held := w.held(due.Add(-time.Second), time.Now()); held < time.Hour {
		t.Errorf("held = %v, want at least an hour", held)
	}
	if held := w.held(due.Add(-2*time.Second), due.Add(-time.Second)); held != 0 {
		t.Errorf("held before the hold-up = %v, want 0", held)
	}
}

func TestWatchBoundsItsMemory(t *testing.T) {
	w := &Watch{}
	due := time.Unix(0, 0)
	for range maxDelays + maxHoldUps {
		due = due.Add(time.Second)
		w.woke(due, due.Add(heldUp))
	}
	w.woke(due, due.Add(-time.Second)) // early is not late
	if len(w.delays) != maxDelays || len(w.holdUps) != maxHoldUps {
		t.Errorf("got %d delays and %d hold-ups, want %d and %d", len(w.delays), len(w.holdUps), maxDelays, maxHoldUps)
	}
	if longest, p99 := w.delay(); longest != heldUp || p99 != heldUp {
		t.Errorf("delay = %v, %v, want %v for both", longest, p99, heldUp)
	}
	if held := w.held(due, due.Add(time.Millisecond)); held != heldUp {
		t.Errorf("the newest hold-up is not kept: held = %v", held)
	}
}

func TestWatchDelayIsNearestRank(t *testing.T) {
	w := &Watch{}
	for i := 1; i <= 100; i++ {
		w.woke(time.Unix(0, 0), time.Unix(0, int64(i)*1000))
	}
	if longest, p99 := w.delay(); longest != 100*time.Microsecond || p99 != 99*time.Microsecond {
		t.Errorf("delay = %v, %v, want 100µs, 99µs", longest, p99)
	}
}

func TestWatchRunMeasuresUntilItsContextEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*watchInterval)
	defer cancel()
	w := &Watch{}
	w.Run(ctx)
	if len(w.delays) == 0 {
		t.Error("no timer was measured")
	}
	if !w.due.IsZero() {
		t.Error("got a pending timer, want none")
	}
}

func TestWatchHasMoreTimersWhileMeasurementsAreOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w := &Watch{}
		go w.Run(ctx)
		woken := 0
		for _, step := range []struct {
			name  string
			do    func()
			after time.Duration
			woken int // timers since the step before
		}{
			{"starts", func() {}, firstInterval, 1},
			{"waits", func() {}, 10*idleInterval + watchInterval, 10},
			{"two begin", func() { w.begin(); w.begin() }, firstInterval + 9*watchInterval, 10},
			{"one ends", w.end, 10 * watchInterval, 10},
			{"the other ends", w.end, watchInterval + 10*idleInterval, 11},
			{"one begins and ends", func() { w.begin(); w.end() }, watchInterval + 10*idleInterval, 11},
			{"100 begin and end within 100 ms", func() {
				for range 100 {
					w.begin()
					w.end()
					time.Sleep(time.Millisecond)
				}
			}, 0, 20},
		} {
			step.do()
			time.Sleep(step.after)
			synctest.Wait()
			w.mu.Lock()
			if n := len(w.delays) - woken; n != step.woken {
				t.Errorf("%s: %d timers woke, want %d", step.name, n, step.woken)
			}
			woken = len(w.delays)
			w.mu.Unlock()
		}
	})
}

// Measurements are open for Watch, however they are made, and none of them stays open.
func TestMeasurementsAreWatched(t *testing.T) {
	for name, measure := range map[string]func(*testing.T, *Session){
		"datagrams": func(t *testing.T, s *Session) {
			udp(t.Context(), Measurement{
				Pair:    pairOf(checkup.UDP, checkup.IPv4, 100),
				Address: listenUDP(t, checkup.IPv4, func([][]byte) [][]byte { return nil }),
				Probe:   checkup.Probe{Count: 2, Timeout: silence},
			}, s)
		},
		"connections of a pair": func(t *testing.T, s *Session) {
			tcp(t.Context(), Measurement{
				Pair:    pairOf(checkup.TCP, checkup.IPv4, 100),
				Address: listenTCP(t, checkup.IPv4, silentPeer),
				Probe:   checkup.Probe{Count: 2, Timeout: silence},
			}, s)
		},
		"a peer": func(t *testing.T, s *Session) {
			connection(t.Context(), peerAt(checkup.TCP, checkup.IPv4, listenTCP(t, checkup.IPv4, silentPeer)), s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := session()
			s.Watch = &Watch{}
			distant := time.Now().Add(time.Hour)
			s.Watch.set(time.NewTimer(time.Hour), distant) // as of Run between measurements
			measure(t, s)
			if s.Watch.due.Equal(distant) {
				t.Error("the timer was not set to an earlier time")
			}
			if s.Watch.open != 0 {
				t.Errorf("%d measurements are still open", s.Watch.open)
			}
		})
	}
}

func TestPacketsBackToErrNotOurs(t *testing.T) {
	good := appendPacket(nil, packet{kind: request, nonce: 1, sequence: 2, pair: pairOf(checkup.UDP, checkup.IPv6, 40)})
	for name, spoil := range map[string]func(b []byte) []byte{
		"short":          func(b []byte) []byte { return b[:headerSize-1] },
		"empty":          func(b []byte) []byte { return nil },
		"other magic":    func(b []byte) []byte { b[0]++; return b },
		"other kind":     func(b []byte) []byte { b[kindOffset] = 3; return b },
		"other family":   func(b []byte) []byte { b[5] = '5'; return b },
		"size below own": func(b []byte) []byte { b[6], b[7] = 0, headerSize-1; return b },
	} {
		if _, err := parsePacket(spoil(slices.Clone(good))); !errors.Is(err, errNotOurs) {
			t.Errorf("%s: error %v, want %v", name, err, errNotOurs)
		}
	}
}

func FuzzParsePacket(f *testing.F) {
	for _, family := range checkup.IPFamilies {
		for _, kind := range []packetKind{request, answer} {
			f.Add(appendPacket(nil, packet{kind: kind, nonce: 1 << 63, sequence: 7, pair: pairOf(checkup.UDP, family, checkup.MinUDPSize)}))
			f.Add(appendPacket(nil, packet{kind: kind, sequence: 1<<32 - 1, pair: checkup.Pair{Source: -1, Target: controlTarget, Family: family, Size: 1400}, residence: math.MaxUint32}))
		}
	}
	f.Add([]byte(packetMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parsePacket(b)
		if err != nil {
			return
		}
		again := appendPacket(nil, p)
		if len(again) != p.pair.Size {
			t.Fatalf("%d bytes of a packet of size %d", len(again), p.pair.Size)
		}
		if diff := cmp.Diff(b[:headerSize], again[:headerSize]); diff != "" {
			t.Fatalf("the header does not round-trip (-want +got):\n%s", diff)
		}
		q, err := parsePacket(again)
		if err != nil || q != p {
			t.Fatalf("read %+v, %v; want %+v", q, err, p)
		}
	})
}
