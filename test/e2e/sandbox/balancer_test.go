// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
)

func newTestBalancer(addresses ...string) *balancer {
	b := &balancer{log: io.Discard}
	for _, a := range addresses {
		b.backends = append(b.backends, &backend{address: a, conns: map[net.Conn]struct{}{}})
	}
	return b
}

func (b *balancer) tries() []string {
	var addresses []string
	try, _ := b.order()
	for _, back := range try {
		addresses = append(addresses, back.address)
	}
	return addresses
}

// New clients go to API servers that are ready, round robin, and to others only if these fail. If a
// server is silent for long, its clients are disconnected if another server is ready.
func TestBalancerChoosesWhoIsReady(t *testing.T) {
	b := newTestBalancer("a", "b")
	if _, begun := b.order(); begun {
		t.Error("begun before a backend was ready")
	}
	b.checked(b.backends[1], nil)
	for range 3 {
		if got := b.tries(); !slices.Equal(got, []string{"b", "a"}) {
			t.Errorf("with b ready, clients try %v", got)
		}
	}
	if _, begun := b.order(); !begun {
		t.Error("not begun after a backend was ready")
	}
	b.checked(b.backends[0], nil)
	if first, second := b.tries()[0], b.tries()[0]; first == second {
		t.Errorf("with both ready, two successive clients go to %s", first)
	}

	ours, theirs := net.Pipe()
	b.backends[0].conns[ours] = struct{}{}
	for range 2 * maxSilent { // not ready, but not silent: clients stay
		b.checked(b.backends[0], errors.New("500"))
	}
	if got := b.tries(); !slices.Equal(got, []string{"b", "a"}) {
		t.Errorf("with a not ready, clients try %v", got)
	}
	for range maxSilent - 1 {
		b.checked(b.backends[0], errSilent)
	}
	go func() { _, _ = ours.Write([]byte("x")) }()
	if _, err := theirs.Read(make([]byte, 1)); err != nil {
		t.Errorf("client of a: %v after only two silent checks, want its connection kept", err)
	}
	b.checked(b.backends[0], errSilent)
	if _, err := theirs.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("client of a: %v, want the end of its connection", err)
	}

	// The last backend keeps its clients: no other is ready.
	ours, theirs = net.Pipe()
	b.backends[1].conns[ours] = struct{}{}
	for range maxSilent {
		b.checked(b.backends[1], errSilent)
	}
	go func() { _, _ = ours.Write([]byte("x")) }()
	if _, err := theirs.Read(make([]byte, 1)); err != nil {
		t.Errorf("client of the last backend: %v, want its connection kept", err)
	}
}

// Only a server that accepts without a TLS handshake is silent: not one that refuses connections,
// and not one that is slow to answer.
func TestReadiness(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	slow := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(slow.Close)
	roots := x509.NewCertPool()
	roots.AddCert(slow.Certificate())
	for _, tt := range []struct {
		name    string
		address net.Addr
		silent  bool
	}{{"silent", silent.Addr(), true}, {"gone", gone.Addr(), false}, {"slow", slow.Listener.Addr(), false}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := readiness(tt.address.String(), roots, nil)(t.Context())
			if err == nil || errors.Is(err, errSilent) != tt.silent {
				t.Errorf("error is %v; want it to be errSilent: %t", err, tt.silent)
			}
		})
	}
}

// If no API server is ready, a client waits while the cluster starts, and is refused at once later.
func TestBalancerIsPatientAtTheStartOnly(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil { // connections are refused
		t.Fatal(err)
	}
	b := newTestBalancer(address)
	b.begun = true
	if _, _, err := b.dial(t.Context()); err == nil {
		t.Error("dial succeeded without a backend")
	}
	b.begun = false
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := b.dial(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("dial of a client that gave up: %v, want context.Canceled", err)
	}
}

// TLS passes through to a real server on every listener. When a server is no longer ready, its
// clients reach the other one.
func TestBalance(t *testing.T) {
	var notReady [2]atomic.Bool
	var backends []string
	roots := x509.NewCertPool()
	for i := range notReady {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if notReady[i].Load() {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			_, _ = io.WriteString(w, string(rune('0'+i))) // the test reads it
		}))
		s.Config.ErrorLog = log.New(io.Discard, "", 0) // no errors of cut connections
		s.StartTLS()
		t.Cleanup(s.Close)
		backends = append(backends, s.Listener.Addr().String())
		roots.AddCert(s.Certificate())
	}
	var listeners []net.Listener
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- balance(ctx, listeners, backends, roots, io.Discard) }()

	get := func(l net.Listener) (string, error) {
		transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots}}
		client := http.Client{Transport: transport}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+l.Addr().String(), nil)
		if err != nil {
			return "", err
		}
		answer, err := client.Do(r)
		if err != nil {
			return "", err
		}
		defer answer.Body.Close() // only read
		body, err := io.ReadAll(answer.Body)
		return string(body), err
	}
	for _, l := range listeners {
		if _, err := get(l); err != nil {
			t.Error(err)
		}
	}
	notReady[0].Store(true)
	for inARow := 0; inARow < 4; { // the timeout of the test ends this
		if body, err := get(listeners[0]); err != nil {
			t.Fatal(err)
		} else if body == "1" {
			inARow++
		} else {
			inARow = 0
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("balance returned %v", err)
	}
}
