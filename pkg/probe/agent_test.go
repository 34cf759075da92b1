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
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// orderTo is an order for a responder's tcp, udp and http in one family.
func orderTo(r *Responder, family checkup.IPFamily) checkup.Order {
	probe := func(transport checkup.Transport, sizes ...int) checkup.TransportProbe {
		return checkup.TransportProbe{Transport: transport, Probe: checkup.Probe{
			Sizes: sizes, Count: 4, Interval: checkup.Duration(time.Microsecond), Timeout: patience, Path: "/healthz"}}
	}
	return checkup.Order{
		Source:     5,
		Seed:       42,
		Limits:     checkup.Limits{PacketsPerSecond: 100_000, Concurrency: 1, StartJitter: checkup.Duration(time.Millisecond)},
		Probes:     []checkup.TransportProbe{probe(checkup.TCP, 0, 100), probe(checkup.UDP, 100, 1400), probe(checkup.HTTP, 0, 100)},
		Targets:    []checkup.OrderTarget{{Target: 9, Addresses: map[checkup.IPFamily]string{family: loopback[family].String()}, Ports: r.Ports()}},
		IPFamilies: []checkup.IPFamily{family},
		Deadline:   patience,
	}
}

// noCgroup is a root without cgroups.
var noCgroup = fstest.MapFS{}

func TestAgentEndToEnd(t *testing.T) {
	order := orderTo(serve(t, checkup.IPv4), checkup.IPv4)
	order.Targets = append(order.Targets,
		checkup.OrderTarget{Target: 10, Addresses: order.Targets[0].Addresses, Ports: closedPortsOf(t)},
		checkup.OrderTarget{Target: 11, Addresses: order.Targets[0].Addresses})
	b, err := json.Marshal(order)
	if err != nil {
		t.Fatal(err)
	}
	read, err := ReadOrder(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := (Agent{Order: read, Version: "v1.2.3", Out: &out, Funcs: unwatched(), Root: noCgroup}).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/agent.jsonl", settle(t, out.Bytes()))
}

// unwatched are the prober functions, but hold-ups of this busy machine spoil nothing.
func unwatched() map[checkup.Transport]Func {
	funcs := map[checkup.Transport]Func{}
	for transport, f := range Funcs {
		funcs[transport] = func(ctx context.Context, m Measurement, s *Session) checkup.Observation {
			return f(ctx, m, &Session{Nonce: s.Nonce, Limiter: s.Limiter})
		}
	}
	return funcs
}

func closedPortsOf(t *testing.T) map[checkup.Transport]int {
	t.Helper()
	ports, release, err := closedPorts(checkup.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return ports
}

// settle replaces what differs between runs: delays and who timed them.
func settle(t *testing.T, lines []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	for _, m := range messages(t, lines) {
		if o := m.Observation; o != nil {
			clear(o.RTTs)
			o.Kernel = false
		}
		if m.End != nil {
			m.End.SelfDoubt.SchedulingDelayMax, m.End.SelfDoubt.SchedulingDelayP99 = 0, 0
		}
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(append(b, '\n'))
	}
	return out.Bytes()
}

// messages reads lines, each of which must have one field set.
func messages(t testing.TB, lines []byte) []checkup.Message {
	t.Helper()
	var ms []checkup.Message
	for line := range bytes.Lines(lines) {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(line, &fields); err != nil || len(fields) != 1 {
			t.Fatalf("line %q: got %d fields (%v), want 1", line, len(fields), err)
		}
		var m checkup.Message
		if err := json.Unmarshal(line, &m); err != nil {
			t.Fatal(err)
		}
		ms = append(ms, m)
	}
	return ms
}

// golden compares with a file, or writes it if UPDATE=1.
func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if os.Getenv("UPDATE") == "1" {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (UPDATE=1 updates it) (-want +got):\n%s", file, diff)
	}
}

// Each pair is reported exactly once, with any concurrency.
func TestAgentReportsEveryPairOnce(t *testing.T) {
	bothFamilies(t, func(t *testing.T, family checkup.IPFamily) {
		order := orderTo(serve(t, family), family)
		order.Limits.Concurrency = 8
		for i := range 20 {
			order.Targets = append(order.Targets, checkup.OrderTarget{Target: 100 + i, Addresses: order.Targets[0].Addresses, Ports: order.Targets[0].Ports})
		}
		var out bytes.Buffer
		if err := (Agent{Order: order, Out: &out}).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		ms := messages(t, out.Bytes())
		reported := map[checkup.Pair]int{}
		for _, m := range ms {
			if m.Observation != nil {
				reported[m.Observation.Pair]++
			}
		}
		expected, _ := measurements(order)
		for _, m := range expected {
			if reported[m.Pair] != 1 {
				t.Errorf("pair %+v: got %d reports, want 1", m.Pair, reported[m.Pair])
			}
		}
		if len(reported) != len(expected) || ms[0].Start.Pairs != len(expected) || ms[len(ms)-1].End.Observations != len(expected) {
			t.Errorf("got %d reported pairs, %d in start, %d in end, want %d", len(reported), ms[0].Start.Pairs, ms[len(ms)-1].End.Observations, len(expected))
		}
	})
}

// Wrong results of prober functions must show in the control pairs.
func TestWrongControlPairIsReported(t *testing.T) {
	blind := func(_ context.Context, m Measurement, _ *Session) checkup.Observation {
		o := checkup.Observation{Pair: m.Pair, Sent: 3}
		o.Failure = cause(checkup.StageConnect, "timed out after 2s")
		return o
	}
	gullible := func(_ context.Context, m Measurement, _ *Session) checkup.Observation {
		return checkup.Observation{Pair: m.Pair, Sent: 3, Received: 3, RTTs: []int64{1, 1, 1}}
	}
	unable := func(_ context.Context, m Measurement, _ *Session) checkup.Observation {
		return unmeasured(m, checkup.StageSocket, "socket: too many open files")
	}
	lossy := func(_ context.Context, m Measurement, _ *Session) checkup.Observation {
		return checkup.Observation{Pair: m.Pair, Sent: 3, Received: 2, RTTs: []int64{1, 1}, Failure: cause(checkup.StageEcho, "timed out after 2s")}
	}
	all := func(f Func) map[checkup.Transport]Func {
		return map[checkup.Transport]Func{checkup.TCP: f, checkup.UDP: f, checkup.ICMP: f, checkup.HTTP: f}
	}
	mixed := func(transport checkup.Transport, f Func) map[checkup.Transport]Func {
		m := all(nil)
		for t, real := range Funcs {
			m[t] = real
		}
		m[transport] = f
		return m
	}
	for _, test := range []struct {
		name         string
		funcs        map[checkup.Transport]Func
		self, closed checkup.Control
	}{
		{"right", nil,
			checkup.Control{OK: true, Message: "tcp, udp, http answered"},
			checkup.Control{OK: true, Message: "tcp, udp, http refused"}},
		{"blind", all(blind),
			checkup.Control{Message: "tcp: 0 of 3 answered, connect: timed out after 2s; udp: 0 of 3 answered, connect: timed out after 2s; http: 0 of 3 answered, connect: timed out after 2s"},
			checkup.Control{Message: "tcp: 0 of 3 answered, connect: timed out after 2s; udp: 0 of 3 answered, connect: timed out after 2s; http: 0 of 3 answered, connect: timed out after 2s"}},
		{"gullible", all(gullible),
			checkup.Control{OK: true, Message: "tcp, udp, http answered"},
			checkup.Control{Message: "tcp: 3 of 3 answered; udp: 3 of 3 answered; http: 3 of 3 answered"}},
		{"one transport unable", mixed(checkup.UDP, unable),
			checkup.Control{Message: "tcp, http answered; udp: socket: socket: too many open files"},
			checkup.Control{Message: "tcp, http refused; udp: socket: socket: too many open files"}},
		{"one transport lossy", mixed(checkup.UDP, lossy),
			checkup.Control{Message: "tcp, http answered; udp: 2 of 3 answered, echo: timed out after 2s"},
			checkup.Control{Message: "tcp, http refused; udp: 2 of 3 answered, echo: timed out after 2s"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			order := orderTo(serve(t, checkup.IPv6), checkup.IPv6)
			order.Targets = nil
			var out bytes.Buffer
			if err := (Agent{Order: order, Out: &out, Funcs: test.funcs}).Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			var got []checkup.Control
			for _, m := range messages(t, out.Bytes()) {
				if m.Control != nil {
					got = append(got, *m.Control)
				}
			}
			test.self.Family, test.self.Name = checkup.IPv6, "self"
			test.closed.Family, test.closed.Name = checkup.IPv6, "closed"
			if diff := cmp.Diff([]checkup.Control{test.self, test.closed}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Forbidden ping sockets make only icmp pairs unmeasured.
func TestForbiddenPingSocketsAreNotAWrongControlPair(t *testing.T) {
	order := checkup.Order{Probes: []checkup.TransportProbe{{Transport: checkup.ICMP, Probe: checkup.Probe{Sizes: []int{0}}}}}
	funcs := map[checkup.Transport]Func{checkup.TCP: tcp, checkup.ICMP: func(_ context.Context, m Measurement, _ *Session) checkup.Observation {
		return unmeasured(m, checkup.StageSocket, "forbidden")
	}}
	got := control{order, session(), funcs}.self(t.Context(), checkup.IPv4)
	want := checkup.Control{Family: checkup.IPv4, Name: "self", OK: true, Message: "tcp answered; icmp not checked: forbidden"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// hanging measures until its context ends.
func hanging(ctx context.Context, m Measurement, _ *Session) checkup.Observation {
	if m.Pair.Target == controlTarget {
		return checkup.Observation{Pair: m.Pair}
	}
	<-ctx.Done()
	return cutShort(m)
}

func TestDeadlineMakesTheRestUnmeasured(t *testing.T) {
	order := orderTo(serve(t, checkup.IPv4), checkup.IPv4)
	order.Deadline = checkup.Duration(time.Second)
	var out bytes.Buffer
	a := Agent{Order: order, Out: &out, Funcs: map[checkup.Transport]Func{checkup.TCP: hanging, checkup.UDP: hanging, checkup.HTTP: hanging}}
	if err := a.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	ms := messages(t, out.Bytes())
	unmeasured := 0
	for _, m := range ms {
		if m.Observation != nil && m.Observation.Unmeasured != nil {
			unmeasured++
		}
	}
	if end := ms[len(ms)-1].End; unmeasured != 6 || end == nil || end.Observations != 6 {
		t.Errorf("got %d unmeasured pairs and the last line %+v, want 6 and the end", unmeasured, ms[len(ms)-1])
	}
}

// A stopped agent reports what it measured, and no end.
func TestStoppedAgentReportsNoEnd(t *testing.T) {
	order := orderTo(serve(t, checkup.IPv4), checkup.IPv4)
	order.Limits.Concurrency = 6
	reader, writer := io.Pipe()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ran := make(chan error, 1)
	go func() {
		a := Agent{Order: order, Out: writer, Funcs: map[checkup.Transport]Func{checkup.TCP: unwatched()[checkup.TCP], checkup.UDP: hanging, checkup.HTTP: hanging}}
		err := a.Run(ctx)
		writer.Close()
		ran <- err
	}()
	reported := 0
	for lines := bufio.NewScanner(reader); lines.Scan(); {
		for _, m := range messages(t, lines.Bytes()) {
			switch {
			case m.End != nil:
				t.Error("got an end, want none")
			case m.Observation != nil:
				reported++
				if m.Observation.Unmeasured != nil || m.Observation.Transport != checkup.TCP {
					t.Errorf("got observation %+v, want none", m.Observation)
				}
				if reported == 2 {
					stop()
				}
			}
		}
	}
	if err := <-ran; err != nil || reported != 2 {
		t.Errorf("Run = %v after %d pairs, want nil after 2", err, reported)
	}
}

func TestAgentThatCannotWriteIsBroken(t *testing.T) {
	order := orderTo(serve(t, checkup.IPv4), checkup.IPv4)
	for n := range 5 {
		err := Agent{Order: order, Out: &failingWriter{after: n}}.Run(t.Context())
		if !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("after %d lines: got error %v, want %v", n, err, io.ErrClosedPipe)
		}
	}
}

// failingWriter accepts some writes before it fails.
type failingWriter struct{ after int }

func (w *failingWriter) Write(b []byte) (int, error) {
	if w.after--; w.after < 0 {
		return 0, io.ErrClosedPipe
	}
	return len(b), nil
}

// The order of pairs depends only on the seed.
func TestSeedOrdersThePairs(t *testing.T) {
	fake := func(_ context.Context, m Measurement, _ *Session) checkup.Observation {
		return checkup.Observation{Pair: m.Pair}
	}
	run := func(seed uint64) string {
		order := checkup.Order{Seed: seed, Deadline: patience, Limits: checkup.Limits{PacketsPerSecond: 1, Concurrency: 1},
			Probes: []checkup.TransportProbe{{Transport: checkup.TCP, Probe: checkup.Probe{Sizes: []int{0}}}}}
		for i := range 50 {
			order.Targets = append(order.Targets, checkup.OrderTarget{Target: i,
				Addresses: map[checkup.IPFamily]string{checkup.IPv4: "127.0.0.1"}, Ports: map[checkup.Transport]int{checkup.TCP: 1}})
		}
		var out bytes.Buffer
		if err := (Agent{Order: order, Out: &out, Funcs: map[checkup.Transport]Func{checkup.TCP: fake}}).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		var targets []string
		for _, m := range messages(t, out.Bytes()) {
			if m.Observation != nil {
				targets = append(targets, fmt.Sprint(m.Observation.Target))
			}
		}
		return strings.Join(targets, " ")
	}
	if a, b := run(1), run(1); a != b {
		t.Errorf("got two orders with one seed:\n%s\n%s", a, b)
	}
	if a, b := run(1), run(2); a == b {
		t.Errorf("got one order with two seeds: %s", a)
	}
}

// The longest possible line of a pair is shorter than 16 KiB, at which container runtimes split lines.
func TestLinesFitTheContainerLog(t *testing.T) {
	o := checkup.Observation{
		Pair: checkup.Pair{Source: 9999, Target: 9999, Family: checkup.IPv6, Transport: checkup.HTTP, Size: checkup.MaxStreamSize},
		Sent: checkup.MaxCount, Received: checkup.MaxCount, Duplicates: checkup.MaxCount * 10, Reordered: checkup.MaxCount, Spoiled: maxTries * checkup.MaxCount,
		Failure: cause(checkup.StageResponse, "%s", strings.Repeat("x", 200)),
	}
	for range checkup.MaxCount {
		o.RTTs = append(o.RTTs, (10 * time.Minute).Microseconds())
	}
	for range checkup.MaxFlows {
		o.Flows = append(o.Flows, checkup.Flow{
			Port: 65535, Sent: checkup.MaxCount, Received: checkup.MaxCount,
			Unmeasured: cause(checkup.StageSocket, "connect: %v", syscall.EADDRNOTAVAIL),
		})
	}
	line, err := json.Marshal(checkup.Message{Observation: &o})
	if err != nil {
		t.Fatal(err)
	}
	if len(line) >= 16<<10 {
		t.Errorf("%d bytes", len(line))
	}
}

// A VM's control pairs are its own address and an unused one, by icmp. They are reported first.
func TestAgentOfVM(t *testing.T) {
	const own, unused, target = "10.0.0.1", "10.0.0.6", "10.0.0.2"
	order := checkup.Order{
		Source: 1, Limits: checkup.Limits{PacketsPerSecond: 1000, Concurrency: 4}, Deadline: patience,
		Probes:     []checkup.TransportProbe{{Transport: checkup.ICMP, Probe: checkup.Probe{Sizes: []int{56}, Count: 5, Timeout: patience}}},
		Targets:    []checkup.OrderTarget{{Target: 2, Addresses: map[checkup.IPFamily]string{checkup.IPv4: target}}},
		IPFamilies: []checkup.IPFamily{checkup.IPv4},
		Own:        map[checkup.IPFamily]string{checkup.IPv4: own}, Unused: map[checkup.IPFamily]string{checkup.IPv4: unused},
	}
	for _, tt := range []struct {
		name     string
		answers  map[string]int
		trouble  string // address whose socket cannot be opened
		controls []checkup.Control
	}{
		{"right", map[string]int{own: 3, target: 5}, "", []checkup.Control{
			{Family: checkup.IPv4, Name: "self", OK: true, Message: "10.0.0.1: 3 of 3 answered"},
			{Family: checkup.IPv4, Name: "closed", OK: true, Message: "10.0.0.6: 0 of 3 answered"}}},
		{"everything answers", map[string]int{own: 3, unused: 1, target: 5}, "", []checkup.Control{
			{Family: checkup.IPv4, Name: "self", OK: true, Message: "10.0.0.1: 3 of 3 answered"},
			{Family: checkup.IPv4, Name: "closed", Message: "10.0.0.6: 1 of 3 answered"}}},
		{"its own address is lossy", map[string]int{own: 2, target: 5}, "", []checkup.Control{
			{Family: checkup.IPv4, Name: "self", Message: "10.0.0.1: 2 of 3 answered"},
			{Family: checkup.IPv4, Name: "closed", OK: true, Message: "10.0.0.6: 0 of 3 answered"}}},
		{"no socket", map[string]int{own: 3, target: 5}, unused, []checkup.Control{
			{Family: checkup.IPv4, Name: "self", OK: true, Message: "10.0.0.1: 3 of 3 answered"},
			{Family: checkup.IPv4, Name: "closed", Message: "10.0.0.6: socket: none left"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			measured := make(chan struct{})
			funcs := map[checkup.Transport]Func{checkup.ICMP: func(ctx context.Context, m Measurement, s *Session) checkup.Observation {
				address := m.Address.Addr().String()
				switch address {
				case target:
					close(measured)
				case unused:
					<-measured // the pair is measured before the control pair is known
				}
				if address == tt.trouble {
					return unmeasured(m, checkup.StageSocket, "none left")
				}
				return checkup.Observation{Pair: m.Pair, Sent: m.Probe.Count, Received: tt.answers[address]}
			}}
			b, err := json.Marshal(order)
			if err != nil {
				t.Fatal(err)
			}
			read, err := ReadOrder(bytes.NewReader(b))
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := (Agent{Order: read, Version: "v1", Out: &out, Funcs: funcs, Root: noCgroup}).Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			var got []checkup.Message
			for line := range bytes.Lines(out.Bytes()) {
				var m checkup.Message
				if err := json.Unmarshal(line, &m); err != nil {
					t.Fatal(err)
				}
				if m.End != nil {
					m.End.SelfDoubt = checkup.SelfDoubt{}
				}
				got = append(got, m)
			}
			want := []checkup.Message{{Start: &checkup.AgentStart{Source: 1, Version: "v1", Pairs: 1}}, {Control: &tt.controls[0]}, {Control: &tt.controls[1]},
				{Observation: &checkup.Observation{Pair: checkup.Pair{Source: 1, Target: 2, Family: checkup.IPv4, Transport: checkup.ICMP, Size: 56}, Sent: 5, Received: 5}},
				{End: &checkup.AgentEnd{Observations: 1}}}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestAgentResponds: an agent that a Service selects answers itself, and waits until the Service leads to it.
func TestAgentResponds(t *testing.T) {
	ports := closedPortsOf(t) // nothing answers there, at first
	address := fmt.Sprintf("127.0.0.3:%d", ports[checkup.TCP])
	order := orderTo(serve(t, checkup.IPv4), checkup.IPv4)
	order.Respond, order.Probes = true, order.Probes[:1]
	order.Probes[0].Sizes = []int{0}
	order.Targets = []checkup.OrderTarget{{
		Target: 9, Addresses: map[checkup.IPFamily]string{checkup.IPv4: "127.0.0.3"}, Identify: true, Settle: patience,
		Ports: map[checkup.Transport]int{checkup.TCP: ports[checkup.TCP]},
	}}
	var out bytes.Buffer
	tries := 0
	funcs := unwatched()
	measure := funcs[checkup.TCP]
	funcs[checkup.TCP] = func(ctx context.Context, m Measurement, s *Session) checkup.Observation {
		if m.Settle == 0 {
			return measure(ctx, m, s)
		}
		if tries++; tries == 1 { // the Service does not lead to it yet
			return checkup.Observation{Pair: m.Pair, Sent: 1}
		}
		return measure(ctx, m, s)
	}
	if err := (Agent{Order: order, Out: &out, Funcs: funcs, Root: noCgroup, Echo: address, HTTP: "127.0.0.3:0"}).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got *checkup.Observation
	for _, m := range messages(t, out.Bytes()) {
		if m.Observation != nil {
			got = m.Observation
		}
	}
	if got == nil || got.Received != 4 || len(got.Answerers) != 1 || got.Answerers[0] != (checkup.Answerer{Address: "127.0.0.3", Count: 4}) {
		t.Errorf("%+v, want that it answers itself", got)
	}
	if tries != 3 { // one that fails, one that is answered, and the measurement
		t.Errorf("measured %d times, want 3", tries)
	}
}
