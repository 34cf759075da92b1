// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// A responder answers every transport that it serves, in both families.
func TestResponderAnswersEveryTransport(t *testing.T) {
	bothFamilies(t, func(t *testing.T, family checkup.IPFamily) {
		r := serve(t, family)
		for transport, port := range r.Ports() {
			for _, size := range []int{0, checkup.MinUDPSize, 60_000} {
				if transport == checkup.UDP && size == 0 {
					continue
				}
				m := Measurement{
					Pair:    pairOf(transport, family, size),
					Address: netip.AddrPortFrom(loopback[family], uint16(port)),
					Probe:   checkup.Probe{Count: 5, Interval: checkup.Duration(time.Millisecond), Timeout: patience, Path: "/healthz"},
				}
				got := Funcs[transport](t.Context(), m, session())
				if diff := diffObservations(checkup.Observation{Pair: m.Pair, Sent: 5, Received: 5}, got); diff != "" {
					t.Errorf("%s of %d bytes (-want +got):\n%s", transport, size, diff)
				}
			}
		}
	})
}

func TestResponderListensInBothFamilies(t *testing.T) {
	r, err := Listen(t.Context(), ":0", ":0", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	if len(r.udp) != 2 || len(r.tcp) != 2 || len(r.http) != 2 || len(r.health) != 2 {
		t.Fatalf("%d UDP, %d TCP, %d HTTP, %d health sockets, want one of each per family",
			len(r.udp), len(r.tcp), len(r.http), len(r.health))
	}
	for i, family := range checkup.IPFamilies {
		for _, l := range []net.Listener{r.tcp[i], r.http[i], r.health[i]} {
			conn, err := net.Dial("tcp", netip.AddrPortFrom(loopback[family], l.Addr().(*net.TCPAddr).AddrPort().Port()).String())
			if err != nil {
				t.Error(err)
				continue
			}
			conn.Close()
		}
	}
}

func TestListenErrors(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	takenUDP, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer takenUDP.Close()
	for _, test := range []struct{ echo, http, health, want string }{
		{taken.Addr().String(), "127.0.0.1:0", "", "cannot listen for TCP echo: "},
		{"127.0.0.1:0", taken.Addr().String(), "", "cannot listen for HTTP: "},
		{"127.0.0.1:0", "127.0.0.1:0", taken.Addr().String(), "cannot listen for health checks: "},
		{"nonsense", "127.0.0.1:0", "", "cannot listen for TCP echo: "},
		{"127.0.0.1:0", "127.0.0.1", "", "cannot listen for HTTP: "},
		{takenUDP.LocalAddr().String(), "127.0.0.1:0", "", "cannot listen for UDP echo: "},
	} {
		if _, err := Listen(t.Context(), test.echo, test.http, test.health); err == nil || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("got error %v, want %s...", err, test.want)
		}
	}
}

func TestResponderHTTP(t *testing.T) {
	r := serve(t, checkup.IPv4)
	for _, test := range []struct {
		path   string
		status int
		body   string
	}{
		{"/healthz", 200, "ok\n"},
		{"/bytes?n=0", 200, ""},
		{"/bytes?n=3", 200, "\x00\x00\x00"},
		{"/bytes?n=-1", 400, "n: want a number from 0 to 16777216\n"},
		{"/bytes?n=16777217", 400, "n: want a number from 0 to 16777216\n"},
		{"/bytes", 400, "n: want a number from 0 to 16777216\n"},
		{"/", 404, "404 page not found\n"},
	} {
		response, err := nethttp.Get(fmt.Sprintf("http://%v%s", r.http[0].Addr(), test.path))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != test.status || string(body) != test.body {
			t.Errorf("GET %s: %d %q (%v), want %d %q", test.path, response.StatusCode, body, err, test.status, test.body)
		}
	}
}

// A responder must answer only requests: otherwise two responders could be made to answer each other forever.
func TestResponderIgnoresOtherPackets(t *testing.T) {
	r := serve(t, checkup.IPv4)
	conn, err := net.DialUDP("udp", nil, r.udp[0].LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	pair := pairOf(checkup.UDP, checkup.IPv4, 40)
	good := appendPacket(nil, packet{kind: request, sequence: 1, pair: pair})
	for _, b := range [][]byte{
		[]byte("hello"),
		{},
		appendPacket(nil, packet{kind: answer, sequence: 2, pair: pair}),
		good[:39],
		append(bytes.Clone(good), 0),
		good,
	} {
		if _, err := conn.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	buf := make([]byte, 100)
	n, err := conn.Read(buf) // the first answer is to the last packet
	if err != nil {
		t.Fatal(err)
	}
	setResidence(buf, 0)
	if diff := cmp.Diff(answerTo(good), buf[:n]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want := []checkup.Message{{Reception: &checkup.Reception{Pair: pair, Packets: 1}}}
	if diff := cmp.Diff(want, r.receptions.changed()); diff != "" {
		t.Errorf("receptions (-want +got):\n%s", diff)
	}
}

// A late responder reports for how long it kept the request.
func TestResponderReportsResidence(t *testing.T) {
	stamps, err := keepTimestamps()
	if err != nil {
		t.Fatal(err)
	}
	defer stamps.Close()
	bothFamilies(t, func(t *testing.T, family checkup.IPFamily) {
		// The kernel starts to timestamp a moment after the request: until then, the residence is unknown.
		for t.Context().Err() == nil {
			residence, least, most := lateAnswer(t, family)
			if residence == 0 {
				continue
			}
			if residence < least || residence > most {
				t.Errorf("residence %v, want from %v to %v", residence, least, most)
			}
			return
		}
	})
}

// lateAnswer sends a request to a responder that starts to serve a while after its arrival. It returns the reported
// residence and its bounds.
func lateAnswer(t *testing.T, family checkup.IPFamily) (reported, least, most time.Duration) {
	t.Helper()
	r, err := Listen(t.Context(), anyPort(family), anyPort(family), anyPort(family))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	conn, err := net.DialUDP("udp", nil, r.udp[0].LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	sent := time.Now()
	asked := packet{kind: request, sequence: 1, pair: pairOf(checkup.UDP, family, 1400)}
	if _, err := conn.Write(appendPacket(nil, asked)); err != nil {
		t.Fatal(err)
	}
	raw, err := r.udp[0].SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Read(func(fd uintptr) bool { // until there is something to read
		_, _, err := unix.Recvfrom(int(fd), nil, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return err != unix.EAGAIN
	}); err != nil {
		t.Fatal(err)
	}
	there := time.Now()
	<-time.After(10 * time.Millisecond)
	late := time.Now()
	served := make(chan error, 1)
	go func() { served <- r.Serve(ctx, io.Discard, nil) }()
	buf := make([]byte, 1500)
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	answered := time.Now()
	stop()
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	p, err := parsePacket(buf[:n])
	if err != nil || n != 1400 {
		t.Fatalf("the answer has %d bytes, %v; want as many as the request, 1400", n, err)
	}
	asked.kind, asked.residence = answer, p.residence
	if p != asked {
		t.Fatalf("answer %+v, want %+v", p, asked)
	}
	return p.residence, late.Sub(there), answered.Sub(sent)
}

func TestReceptionsCountDistinctRequests(t *testing.T) {
	a, b := pairOf(checkup.UDP, checkup.IPv4, 100), pairOf(checkup.UDP, checkup.IPv6, 100)
	reported := func(pair checkup.Pair, packets int) checkup.Message {
		return checkup.Message{Reception: &checkup.Reception{Pair: pair, Packets: packets}}
	}
	var r receptions
	for _, step := range []struct {
		name    string
		packets []packet
		want    []checkup.Message
	}{
		{"nothing", nil, nil},
		{"duplicates count once", []packet{{pair: a}, {pair: a}, {pair: a, sequence: maxTries*checkup.MaxCount - 1}, {pair: b}}, []checkup.Message{reported(a, 2), reported(b, 1)}},
		{"no change, no line", []packet{{pair: a}}, nil},
		{"only what changed", []packet{{pair: a, sequence: 5}}, []checkup.Message{reported(a, 3)}},
		{"a restarted agent", []packet{{pair: a, nonce: 1}}, []checkup.Message{reported(a, 1)}},
		{"a further look, with a late packet of the first", []packet{{pair: a, nonce: newNonce(1)}, {pair: a, nonce: 1, sequence: 9}},
			[]checkup.Message{reported(a, 2), {Reception: &checkup.Reception{Pair: a, Look: 1, Packets: 1}}}},
		{"no such sequence number", []packet{{pair: a, nonce: 1, sequence: maxTries * checkup.MaxCount}}, nil},
	} {
		for _, p := range step.packets {
			r.count(p)
		}
		if diff := cmp.Diff(step.want, r.changed()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
}

func TestReceptionsAreBounded(t *testing.T) {
	var r receptions
	for i := range maxReceptions + 1 {
		r.count(packet{pair: checkup.Pair{Source: i}})
	}
	if len(r.pairs) != maxReceptions {
		t.Errorf("got %d pairs, want %d", len(r.pairs), maxReceptions)
	}
	r.count(packet{pair: checkup.Pair{Source: 0}, sequence: 1})
	if got := r.pairs[counted{Pair: checkup.Pair{Source: 0}}].packets; got != 2 {
		t.Errorf("known pair: got count %d, want it to continue", got)
	}
}

// A pair uses memory only for its sequence numbers. When the memory limit is reached, it is no longer counted.
func TestReceptionsOfManyPacketsAreBounded(t *testing.T) {
	var r receptions
	last := packet{sequence: maxTries*checkup.MaxCount - 1}
	for i := range maxReceptions {
		last.pair.Source = i
		r.count(last)
		r.count(packet{pair: last.pair}) // counted already
		r.count(packet{pair: last.pair, nonce: uint64(i) + 1})
	}
	if len(r.pairs) != maxReceptions || r.words != maxReceptions {
		t.Errorf("%d pairs in %d words, want %d in as many", len(r.pairs), r.words, maxReceptions)
	}
	for i := range maxReceptions {
		r.count(packet{pair: checkup.Pair{Source: i}, nonce: uint64(i) + 1, sequence: last.sequence})
	}
	words := 0
	for _, of := range r.pairs {
		words += len(of.seen)
	}
	if words != r.words || words > maxSeen || words < maxSeen-100 {
		t.Errorf("%d words are used, %d counted, want up to %d", words, r.words, maxSeen)
	}
}

// Receptions are reported on a tick, and later ones at the end.
func TestResponderReportsReceptions(t *testing.T) {
	r, err := Listen(t.Context(), "127.0.0.1:0", "127.0.0.1:0", "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	reader, writer := io.Pipe()
	lines := bufio.NewScanner(reader)
	tick := make(chan time.Time)
	served := make(chan error, 1)
	go func() {
		err := r.Serve(ctx, writer, tick)
		writer.Close()
		served <- err
	}()
	pair := pairOf(checkup.UDP, checkup.IPv4, 100)
	measure := func(count int) {
		udp(t.Context(), Measurement{
			Pair:    pair,
			Address: r.udp[0].LocalAddr().(*net.UDPAddr).AddrPort(),
			Probe:   checkup.Probe{Count: count, Timeout: patience},
		}, session())
	}
	next := func() (m checkup.Message) {
		if !lines.Scan() {
			t.Fatalf("no line: %v", lines.Err())
		}
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	if diff := cmp.Diff(checkup.Message{Start: &checkup.AgentStart{Source: -1}}, next()); diff != "" {
		t.Errorf("first (-want +got):\n%s", diff)
	}
	measure(3)
	tick <- time.Time{}
	if diff := cmp.Diff(checkup.Message{Reception: &checkup.Reception{Pair: pair, Packets: 3}}, next()); diff != "" {
		t.Errorf("after a tick (-want +got):\n%s", diff)
	}
	tick <- time.Time{} // nothing changed
	measure(5)
	stop()
	if diff := cmp.Diff(checkup.Message{Reception: &checkup.Reception{Pair: pair, Packets: 5}}, next()); diff != "" {
		t.Errorf("at the end (-want +got):\n%s", diff)
	}
	if lines.Scan() {
		t.Errorf("got another line, want none: %s", lines.Text())
	}
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

// A responder ends although a connection is open.
func TestResponderEndsWithConnectionsOpen(t *testing.T) {
	r, err := Listen(t.Context(), "127.0.0.1:0", "127.0.0.1:0", "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	served := make(chan error, 1)
	go func() { served <- r.Serve(ctx, io.Discard, nil) }()
	conn, err := net.Dial("tcp", r.tcp[0].Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

func TestResponderReturnsWriteErrors(t *testing.T) {
	r, err := Listen(t.Context(), "127.0.0.1:0", "127.0.0.1:0", "")
	if err != nil {
		t.Fatal(err)
	}
	r.receptions.count(packet{pair: pairOf(checkup.UDP, checkup.IPv4, 100)})
	tick := make(chan time.Time, 1)
	tick <- time.Time{}
	if err := r.Serve(t.Context(), brokenWriter{}, tick); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("error %v, want %v", err, io.ErrClosedPipe)
	}
}

// brokenWriter is a closed standard output.
type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
