// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
	"github.com/checkplan/checkplan/pkg/nodestate/api"
)

// writer notes what is asked of it, with the time.
type writer struct {
	start  time.Time
	untidy bool

	mu    sync.Mutex
	calls []string
	// What the next calls return, and what the node is.
	err, gone, stuck, forget error
	addresses                []netip.Addr
	stale                    proxy.Stale // what was last to be forgotten
}

// set changes what the next calls return.
func (w *writer) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *writer) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, fmt.Sprintf("%s ", time.Since(w.start))+fmt.Sprintf(format, args...))
}

func (w *writer) Write(_ context.Context, state *proxy.State, node proxy.Node) error {
	w.note("write %d ports at %d addresses", len(state.Ports), len(node.Addresses))
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.untidy = true
	}
	return w.err
}

func (w *writer) Tidy(context.Context) (bool, error) {
	w.note("tidy")
	w.mu.Lock()
	defer w.mu.Unlock()
	more := w.untidy
	w.untidy = false
	return more, w.stuck
}

func (w *writer) Present(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.gone
	w.gone = nil
	return err
}

// lab is a Proxy on a node that does not exist, in a time of its own.
type lab struct {
	*proxy.Proxy
	writer *writer
	states chan []*api.ServiceEndpoints
}

// in runs a test on a lab. Each step is what happens, followed by a time that passes.
func in(t *testing.T, steps func(t *testing.T, l *lab)) {
	synctest.Test(t, func(t *testing.T) {
		w := &writer{start: time.Now(), addresses: addresses("192.0.2.1")}
		l := &lab{writer: w, states: make(chan []*api.ServiceEndpoints, 1)}
		l.Proxy = &proxy.Proxy{
			Writer: l.writer, Health: &proxy.HealthPorts{}, Log: slog.New(slog.DiscardHandler),
			Node: func() (proxy.Node, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				return proxy.Node{Addresses: w.addresses}, nil
			},
			Forget: func(s proxy.Stale) (int, error) {
				if len(s.Families()) > 0 {
					w.note("forget")
				}
				w.mu.Lock()
				defer w.mu.Unlock()
				w.stale = s
				return len(s.Families()), w.forget
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { l.Run(ctx, l.states); close(done) }()
		steps(t, l)
		cancel()
		<-done
	})
}

func (l *lab) pass(d time.Duration) {
	time.Sleep(d) // of the bubble's clock
	synctest.Wait()
}

func (l *lab) calls(t *testing.T, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, l.taken()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// taken returns the calls since the last time.
func (l *lab) taken() []string {
	l.writer.mu.Lock()
	defer l.writer.mu.Unlock()
	calls := l.writer.calls
	l.writer.calls = nil
	return calls
}

// TestRun: rules first, then what the kernel has to forget; nothing more until something changes.
func TestRun(t *testing.T) {
	in(t, func(t *testing.T, l *lab) {
		l.pass(time.Hour)
		l.calls(t) // no state, no rules: those of a predecessor stay
		if s := l.Status(); !s.Written.IsZero() || s.States != 0 {
			t.Errorf("%+v", s)
		}
		l.states <- []*api.ServiceEndpoints{service("web", udp)}
		l.pass(time.Minute)
		l.calls(t, "1h0m0s write 1 ports at 1 addresses", "1h0m0s forget", "1h0m0s tidy", "1h0m1s tidy")
		l.pass(time.Hour)
		l.calls(t)
		l.states <- nil
		l.pass(time.Minute)
		l.calls(t, "2h1m0s write 0 ports at 1 addresses", "2h1m0s forget", "2h1m0s tidy", "2h1m1s tidy")
		if s := l.Status(); s.States != 2 || s.Writes != 2 || s.Failures != 0 || s.Forgotten != 2 || s.Written.IsZero() {
			t.Errorf("%+v", s)
		}
	})
}

// TestRunFails: what fails is tried again, and what succeeded is not.
func TestRunFails(t *testing.T) {
	in(t, func(t *testing.T, l *lab) {
		l.writer.set(func() { l.writer.err = errors.New("no memory") })
		l.states <- []*api.ServiceEndpoints{service("web", udp)}
		l.pass(11 * time.Second)
		l.calls(t, "0s write 1 ports at 1 addresses", "5s write 1 ports at 1 addresses", "10s write 1 ports at 1 addresses")
		if s := l.Status(); s.Failures != 3 || s.Error != "no memory" || !s.Written.IsZero() {
			t.Errorf("%+v", s)
		}
		l.writer.set(func() { l.writer.err, l.writer.forget = nil, errors.New("interrupted") })
		l.pass(10 * time.Second)
		l.calls(t, "15s write 1 ports at 1 addresses", "15s forget", "15s tidy", "20s forget", "20s tidy")
		l.writer.set(func() { l.writer.forget = nil })
		l.pass(time.Minute)
		l.calls(t, "25s forget")
		if s := l.Status(); s.Failures != 3 || s.Error != "" || s.Writes != 1 || s.Written.IsZero() {
			t.Errorf("%+v", s)
		}
		l.writer.set(func() { l.writer.stuck = errors.New("device or resource busy") })
		l.states <- nil
		l.pass(3500 * time.Millisecond)
		if calls := l.taken(); strings.Count(strings.Join(calls, "\n"), "tidy") != 4 {
			t.Errorf("%q", calls)
		}
	})
}

// TestUnserved: what a Writer cannot serve is a problem, and tried again if that may help; all else is served, and
// healthy.
func TestUnserved(t *testing.T) {
	in(t, func(t *testing.T, l *lab) {
		const taken, sctp = "TCP 10.96.0.1:80: address already in use", "SCTP"
		l.writer.set(func() { l.writer.err = proxy.Unserved{Problems: []string{taken}, Again: true} })
		l.states <- []*api.ServiceEndpoints{service("web")}
		l.pass(6 * time.Second)
		if calls := l.taken(); strings.Count(strings.Join(calls, "\n"), "write") != 2 {
			t.Errorf("%q", calls)
		}
		l.pass(2 * time.Minute)
		s := l.Status()
		if diff := cmp.Diff([]string{taken}, s.Problems); diff != "" || s.Written.IsZero() || !s.Healthy || s.Error != "" || s.Failures < 2 {
			t.Errorf("%+v", s)
		}
		l.writer.set(func() { l.writer.err = proxy.Unserved{Problems: []string{sctp}} })
		l.pass(6 * time.Second)
		failures := l.Status().Failures
		l.taken()
		l.pass(time.Hour)
		l.calls(t)
		if s := l.Status(); len(s.Problems) != 1 || s.Problems[0] != sctp || s.Written.IsZero() || s.Failures != failures {
			t.Errorf("%+v", s)
		}
		l.writer.set(func() { l.writer.err = nil })
		l.states <- nil
		l.pass(time.Second)
		if s := l.Status(); len(s.Problems) > 0 || s.Written.IsZero() {
			t.Errorf("%+v", s)
		}
	})
}

// TestForgetsAfterGaps: what packets met while the rules were gone, or not those of one state, the kernel forgets when
// they are right again, although the state is the same as before.
func TestForgetsAfterGaps(t *testing.T) {
	in(t, func(t *testing.T, l *lab) {
		forgets := func(want int) {
			t.Helper()
			l.pass(time.Minute)
			calls := l.taken()
			if have := strings.Count(strings.Join(calls, "\n"), "forget"); have != want {
				t.Errorf("%d times forgotten, want %d: %q", have, want, calls)
			}
		}
		one, other := []*api.ServiceEndpoints{service("web", udp)}, []*api.ServiceEndpoints{service("web", udp, func(s *api.ServiceEndpoints) {
			s.Families[0].Ports[0].Endpoints[0].Address = "10.1.0.99"
		})}
		l.states <- one
		forgets(1)
		l.writer.set(func() { l.writer.gone = errors.New("no table") })
		forgets(1)
		l.writer.set(func() { l.writer.addresses = addresses("192.0.2.1", "192.0.2.2") })
		forgets(1)
		l.writer.set(func() { l.writer.err = errors.New("IPv6: no memory") })
		l.states <- other
		forgets(0)
		l.writer.set(func() { l.writer.err = nil })
		l.states <- one
		forgets(1)
		forgets(0)
	})
}

// TestForgetsWhatWasTried: connections to a Service that only a state had which failed, or after which the kernel could
// not forget, are forgotten when a later state is written without the Service.
func TestForgetsWhatWasTried(t *testing.T) {
	for _, row := range []struct {
		name string
		fail func(*writer, error)
	}{
		{"one family was not written", func(w *writer, err error) { w.err = err }},
		{"the kernel did not forget", func(w *writer, err error) { w.forget = err }},
	} {
		t.Run(row.name, func(t *testing.T) {
			in(t, func(t *testing.T, l *lab) {
				l.states <- nil
				l.pass(time.Minute)
				l.writer.set(func() { row.fail(l.writer, errors.New("no memory")) })
				l.states <- []*api.ServiceEndpoints{service("web", udp)}
				l.pass(time.Second)
				l.writer.set(func() { row.fail(l.writer, nil) })
				for _, want := range []bool{true, false} { // once
					l.states <- nil
					l.pass(time.Minute)
					l.writer.set(func() {
						to, from := netip.MustParseAddrPort("10.96.0.1:80"), netip.MustParseAddrPort("10.0.0.1:8080")
						if l.writer.stale.Is(dataplane.IPv4, to, from) != want {
							t.Errorf("forgotten: %v", !want)
						}
					})
				}
			})
		})
	}
}

// TestHealthy: load balancers are sent elsewhere if no rules were ever written, or if they are wrong for more than a
// minute.
func TestHealthy(t *testing.T) {
	in(t, func(t *testing.T, l *lab) {
		is := func(want bool) {
			t.Helper()
			if have := l.Status().Healthy; have != want {
				t.Errorf("healthy: %v", have)
			}
		}
		l.writer.set(func() { l.writer.err = errors.New("no memory") })
		l.states <- []*api.ServiceEndpoints{service("web")}
		l.pass(time.Second)
		is(false)
		l.writer.set(func() { l.writer.err = nil })
		l.pass(10 * time.Second)
		is(true)
		l.writer.set(func() { l.writer.err = errors.New("no memory") })
		l.states <- nil
		l.pass(59 * time.Second)
		is(true)
		l.pass(10 * time.Second)
		is(false)
		l.writer.set(func() { l.writer.err = nil })
		l.pass(10 * time.Second)
		is(true)
	})
}

// TestRunLooks: rules that somebody removed, and addresses that the node got, are noticed without a state.
func TestRunLooks(t *testing.T) {
	in(t, func(t *testing.T, l *lab) {
		l.states <- []*api.ServiceEndpoints{service("web")}
		l.pass(time.Second + time.Millisecond)
		l.taken()
		l.writer.set(func() { l.writer.gone = errors.New("no table") })
		l.pass(time.Minute)
		l.calls(t, "30s write 1 ports at 1 addresses", "30s tidy", "31s tidy")
		l.writer.set(func() { l.writer.addresses = addresses("192.0.2.1", "192.0.2.2") })
		l.pass(time.Minute)
		l.calls(t, "1m30s write 1 ports at 2 addresses", "1m30s tidy", "1m31s tidy")
		if s := l.Status(); s.Rewritten != 1 || s.Writes != 3 {
			t.Errorf("%+v", s)
		}
	})
}
