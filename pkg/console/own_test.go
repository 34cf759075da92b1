// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// order is what these tests measure; the guests here do not read it.
var order = checkup.Order{Source: 3, Deadline: checkup.Duration(10 * time.Minute)}

// messages of an order: as an agent reports them.
func messages(pairs int) []checkup.Message {
	ms := []checkup.Message{
		{Start: &checkup.AgentStart{Source: 3, Version: "v1", Pairs: pairs}},
		{Control: &checkup.Control{Family: checkup.IPv4, Name: "self", OK: true, Message: "10.0.0.1: 3 of 3 answered in 1.2µs"}},
	}
	for i := range pairs {
		o := checkup.Observation{Pair: checkup.Pair{Source: 3, Target: i, Family: checkup.IPv4, Transport: checkup.ICMP, Size: 56}, Sent: 100, Received: 100}
		for n := range 100 {
			o.RTTs = append(o.RTTs, int64(1000*i+n))
		}
		ms = append(ms, checkup.Message{Observation: &o})
	}
	return append(ms, checkup.Message{End: &checkup.AgentEnd{Observations: pairs}})
}

// server reports messages, one each so often.
func server(ms []checkup.Message, every time.Duration) *Server {
	return &Server{
		State: func() State { return State{Version: "v1", Kernel: "6.1.0", Uptime: 2500, Clock: "kvm-clock"} },
		Run: func(ctx context.Context, order io.Reader, out io.Writer) error {
			for _, m := range ms {
				if err := sleep(ctx, every); err != nil {
					return err
				}
				b, err := json.Marshal(m)
				if err != nil {
					return err
				}
				if _, err := out.Write(append(b, '\n')); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// serve runs a guest on a line until the end of the test's bubble.
func serve(t *testing.T, s *Server, l *line) {
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.Serve(ctx, l.guest)
	}()
	t.Cleanup(func() { cancel(); l.hangUp(); <-served })
}

func TestReadyAndMeasure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine()
		serve(t, server(messages(3), time.Second), l)
		var transcript bytes.Buffer
		var logged []string
		g := &Guest{Dial: l.dial, Transcript: &transcript, Logf: func(format string, args ...any) { logged = append(logged, fmt.Sprintf(format, args...)) }}
		defer g.Close()
		if err := g.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"the guest is ready 2.5s after its kernel started; its clock is kvm-clock"}, logged); diff != "" {
			t.Errorf("(-want +logged):\n%s", diff)
		}
		var reported []checkup.Message
		if err := g.Measure(t.Context(), order, func(m checkup.Message) { reported = append(reported, m) }); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(messages(3), reported); diff != "" {
			t.Errorf("(-want +reported):\n%s", diff)
		}
		if l.dials != 1 {
			t.Errorf("%d connections, want 1", l.dials)
		}
		if !strings.Contains(transcript.String(), `"version":"v1"`) {
			t.Errorf("the transcript lacks what the guest said: %q", transcript.String())
		}
	})
}

// Whatever happens to the line, each message is reported once, in its order.
func TestMeasureOverPoorLines(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  func(*line)
	}{
		{"echo", func(l *line) { l.echo = true }},
		{"noise", func(l *line) { l.noise = rand.New(rand.NewPCG(1, 2)) }},
		{"cuts", func(l *line) { l.cut = 3000 }},
		{"refusals", func(l *line) {
			l.cut = 3000
			l.refuse = func(n int) error {
				if n%3 != 0 {
					return errRefused
				}
				return nil
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLine()
				tt.set(l)
				measureAll(t, l)
			})
		})
	}
	for seed := range uint64(30) {
		t.Run(fmt.Sprintf("everything, seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLine()
				l.noise, l.echo, l.cut = rand.New(rand.NewPCG(seed, 0)), true, 2000
				measureAll(t, l)
			})
		})
	}
}

func measureAll(t *testing.T, l *line) {
	serve(t, server(messages(20), 300*time.Millisecond), l)
	g := &Guest{Dial: l.dial}
	defer g.Close()
	if err := g.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	var reported []checkup.Message
	if err := g.Measure(t.Context(), order, func(m checkup.Message) { reported = append(reported, m) }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(messages(20), reported); diff != "" {
		t.Errorf("(-want +reported):\n%s", diff)
	}
}

// A second order replaces the first; the same guest can be measured again.
func TestMeasureTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine()
		serve(t, server(messages(2), time.Second), l)
		for range 2 {
			g := &Guest{Dial: l.dial}
			n := 0
			if err := g.Measure(t.Context(), order, func(checkup.Message) { n++ }); err != nil || n != len(messages(2)) {
				t.Errorf("%d messages, %v; want %d", n, err, len(messages(2)))
			}
			g.Close()
		}
	})
}

func TestOwnGuestErrors(t *testing.T) {
	for _, tt := range []struct {
		name  string
		guest func(*line) *Server // nil: nobody listens
		do    func(context.Context, *Guest) error
		want  []string
		not   string
	}{
		{name: "never boots", do: ready,
			want: []string{"the guest did not answer on its console: ", "deadline exceeded, after 1m0s", "the console showed nothing"}},
		{name: "boots and stops", do: ready, guest: func(l *line) *Server {
			go func() { time.Sleep(time.Second); l.say([]byte("\x1b[2J[    1.0] Kernel panic - not syncing: VFS\r\n")) }()
			return nil
		}, want: []string{"did not answer", `showed last: "[    1.0] Kernel panic - not syncing: VFS"`}},
		{name: "has a problem", do: ready, guest: func(*line) *Server {
			return &Server{State: func() State { return State{Problems: []string{"no interface with MAC 02:00:00:00:00:01", "no way"}} }}
		}, want: []string{"the guest cannot measure: no interface with MAC 02:00:00:00:00:01; no way"}},
		{name: "has no console for long", do: ready, guest: func(l *line) *Server {
			l.refuse = func(int) error { return errRefused }
			return nil
		}, want: []string{"connect to the console: connection refused"}},
		{name: "is gone", do: ready, guest: func(l *line) *Server {
			l.refuse = func(n int) error { return fmt.Errorf("no VirtualMachineInstance: %w", ErrGone) }
			return nil
		}, want: []string{"no VirtualMachineInstance"}, not: "deadline"},
		{name: "is taken by another client", do: measure, guest: func(l *line) *Server {
			l.cut = 1 // nothing but the newline before the first frame
			return server(messages(1), time.Second)
		}, want: []string{"closed 12 times", "newest client"}},
		{name: "loses its node", do: measure, guest: func(l *line) *Server {
			l.cut = 100
			l.refuse = func(n int) error {
				if n > 1 {
					return errRefused
				}
				return nil
			}
			return server(messages(1), time.Second)
		}, want: []string{"no console after 1 lost connections and 11 failed attempts", "connection refused"}},
		{name: "falls silent", do: measure, guest: func(l *line) *Server { return nil },
			want: []string{"closed 12 times", "silent for 16s"}},
		{name: "its agent fails", do: measure, guest: func(l *line) *Server {
			return &Server{State: func() State { return State{} }, Run: func(context.Context, io.Reader, io.Writer) error { return errors.New("the order is not valid") }}
		}, want: []string{"the guest's agent: the order is not valid"}},
		{name: "never ends", do: measure, guest: func(l *line) *Server { return server(messages(3), time.Hour) },
			want: []string{"did not finish its order within 11m0s"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLine()
				var s *Server
				if tt.guest != nil {
					s = tt.guest(l)
				}
				if s != nil {
					serve(t, s, l)
				}
				g := &Guest{Dial: l.dial}
				defer g.Close()
				err := tt.do(t.Context(), g)
				if err == nil {
					t.Fatal("no error")
				}
				for _, want := range tt.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%v\nwant it to say %q", err, want)
					}
				}
				if tt.not != "" && strings.Contains(err.Error(), tt.not) {
					t.Errorf("%v\nwant it not to say %q", err, tt.not)
				}
			})
		})
	}
}

func ready(ctx context.Context, g *Guest) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return g.Ready(ctx)
}

func measure(ctx context.Context, g *Guest) error {
	return g.Measure(ctx, order, func(checkup.Message) {})
}

// A guest that was started anew has lost the order, and what it reported.
func TestMeasureRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine()
		ctx, crash := context.WithCancel(t.Context())
		first := server(messages(5), time.Second)
		go first.Serve(ctx, l.guest)
		g := &Guest{Dial: l.dial}
		defer g.Close()
		reported := 0
		var again sync.WaitGroup
		err := g.Measure(t.Context(), order, func(checkup.Message) {
			if reported++; reported == 3 {
				crash()
				l.guest.typed <- []byte("\n") // ends the first server's read
				again.Go(func() {
					time.Sleep(2500 * time.Millisecond)
					serve(t, server(messages(5), time.Second), l)
				})
			}
		})
		again.Wait() // the test must not end before it knows how to end the second server
		if err == nil || !strings.Contains(err.Error(), "restarted while it measured") || reported != 3 {
			t.Errorf("%d messages, %v", reported, err)
		}
	})
}

// A guest that restarted since it was ready is not ready again: it answered nothing meanwhile. It is the same guest when
// its console was lost, or failed.
func TestReadyRestart(t *testing.T) {
	for _, tt := range []struct {
		name string
		next func(first *Server) *Server
		want string
	}{
		{"restarted", func(*Server) *Server { return server(nil, 0) }, "the guest restarted since it was ready"},
		{"the console failed", func(first *Server) *Server { return first }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLine()
				ctx, crash := context.WithCancel(t.Context())
				first := server(nil, 0)
				served := make(chan struct{})
				go func() {
					defer close(served)
					first.Serve(ctx, l.guest)
				}()
				g := &Guest{Dial: l.dial}
				defer g.Close()
				for range 2 {
					if err := ready(t.Context(), g); err != nil {
						t.Fatal(err)
					}
				}
				crash()
				l.guest.typed <- []byte("\n") // ends the first server's read
				<-served
				synctest.Wait()
				late, err := frame(replyMark, reply{ID: "earlier", State: first.state()})
				if err != nil {
					t.Fatal(err)
				}
				go l.guest.Write(late) // what the first server sent, and nobody read
				synctest.Wait()
				serve(t, tt.next(first), l)
				err = ready(t.Context(), g)
				if (err != nil) != (tt.want != "") || err != nil && !strings.HasPrefix(err.Error(), tt.want) {
					t.Errorf("%v, want %q", err, tt.want)
				}
			})
		})
	}
}

// Nothing that is typed makes a guest fall.
func FuzzServe(f *testing.F) {
	good, err := frame(requestMark, request{ID: "a", Order: json.RawMessage(`{}`)})
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][]byte{good, []byte("checkplan? 00000000 {}\n"), []byte("checkplan? 8587d865 null\r\n"), []byte("login:\n"), nil} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, typed []byte) {
		s := server(nil, 0)
		err := s.Serve(t.Context(), struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(typed), io.Discard})
		if !errors.Is(err, io.EOF) {
			t.Errorf("%v, want the end of what was typed", err)
		}
	})
}

// Nothing that a console says is taken for a reply but a frame as it was made.
func FuzzFrame(f *testing.F) {
	f.Add([]byte("[ 1.0] x checkplan! "), []byte(`{"id":"a"}`))
	f.Add([]byte("\x1b[2J"), []byte(`{"id":"a","state":{"version":"v"}}`))
	f.Fuzz(func(t *testing.T, before, content []byte) {
		var r, again reply
		if json.Unmarshal(content, &r) != nil {
			return
		}
		b, err := frame(replyMark, r)
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		var s splitter
		s.feed(append(bytes.Clone(before), b...), func(line []byte) {
			if unframe(replyMark, line, &again) {
				found++
			}
		})
		if found == 0 {
			t.Fatalf("%q: the frame was not found", b)
		}
		if diff := cmp.Diff(r, again); diff != "" && !bytes.Contains(before, []byte(replyMark)) {
			t.Errorf("(-made +found):\n%s", diff)
		}
	})
}

func TestKernelArgs(t *testing.T) {
	vm := checkup.VM{MAC: "02:00:00:00:00:01", Addresses: map[checkup.IPFamily]string{checkup.IPv4: "10.1.2.3/29", checkup.IPv6: "fd00::1/64"}}
	args := KernelArgs(vm, 90*time.Second)
	c, err := ParseKernelArgs("BOOT_IMAGE=x " + args)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(c); got != "{02:00:00:00:00:01 [10.1.2.3/29 fd00::1/64] 1m30s}" {
		t.Errorf("%q was read as %s", args, got)
	}
	for _, tt := range []struct{ args, want string }{
		{"quiet", "has no checkplan.mac"},
		{"checkplan.mac=02:00:00:00:00:01", "has no checkplan.address"},
		{"checkplan.mac=x checkplan.address=10.0.0.1/8", "checkplan.mac=x"},
		{"checkplan.mac=02:00:00:00:00:01 checkplan.address=10.0.0.1", "checkplan.address=10.0.0.1"},
		{"checkplan.deadline=9999999999999", "value out of range"},
	} {
		if _, err := ParseKernelArgs(tt.args); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want it to say %q", tt.args, err, tt.want)
		}
	}
}
