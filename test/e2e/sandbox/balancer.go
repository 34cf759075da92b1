// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// The balancer checks the readiness of each API server every checkInterval. New clients go to a
// server that is ready. The balancer closes the connections of existing clients only if the server
// did not complete a TLS handshake in maxSilent checks in a row, which takes six seconds: on a busy
// machine a slow server keeps its clients.
const (
	checkInterval = 500 * time.Millisecond
	checkTimeout  = 2 * time.Second
	maxSilent     = 3
)

// startPatience is how long a client waits for the first API server of a starting cluster. A
// refused client would try again only after a longer time.
const startPatience = 8 * time.Second

// balancer forwards TCP connections to API servers, round robin. It uses a server that is not ready
// only if no server is ready.
type balancer struct {
	log      io.Writer
	mu       sync.Mutex
	backends []*backend // guarded by mu, and what they point to
	next     int        // guarded by mu
	begun    bool       // guarded by mu: an API server was ready at least once
}

type backend struct {
	address string
	ready   bool
	silent  int // checks in a row
	conns   map[net.Conn]struct{}
}

// balance serves the listeners until ctx ends. It must run in a network namespace with routes to
// the backends. A listener may belong to another namespace.
func balance(
	ctx context.Context, listeners []net.Listener, backends []string, roots *x509.CertPool, log io.Writer,
) error {
	b := &balancer{log: log}
	for _, address := range backends {
		b.backends = append(b.backends, &backend{address: address, conns: map[net.Conn]struct{}{}})
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, back := range b.backends {
		g.Go(func() error { b.check(ctx, back, roots); return nil })
	}
	for _, l := range listeners {
		context.AfterFunc(ctx, func() { _ = l.Close() })
		g.Go(func() error {
			for {
				in, err := l.Accept()
				switch {
				case ctx.Err() != nil:
					return nil
				case err != nil:
					return fmt.Errorf("accept a client of the API server: %w", err)
				}
				go b.carry(ctx, in)
			}
		})
	}
	return g.Wait()
}

// dialFunc is the DialContext of [http.Transport]; nil is the default.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// errSilent is an API server that accepts connections but sends nothing.
var errSilent = errors.New("silent")

// readiness returns a function that checks whether an API server is ready: nil if it is. The error
// is errSilent if the server accepted the connection but did not complete the TLS handshake in
// time.
func readiness(address string, roots *x509.CertPool, dial dialFunc) func(context.Context) error {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, DialContext: dial, TLSClientConfig: &tls.Config{RootCAs: roots},
	}}
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		defer cancel()
		var connected, spoke atomic.Bool
		r, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
			TLSHandshakeStart: func() { connected.Store(true) },
			TLSHandshakeDone:  func(_ tls.ConnectionState, err error) { spoke.Store(err == nil) },
		}), http.MethodGet, "https://"+address+"/readyz", nil)
		if err != nil {
			return err
		}
		answer, err := client.Do(r)
		if err != nil {
			if ctx.Err() != nil && connected.Load() && !spoke.Load() {
				return errors.Join(errSilent, err)
			}
			return err
		}
		_ = answer.Body.Close() // not read
		if answer.StatusCode != http.StatusOK {
			return errors.New(answer.Status)
		}
		return nil
	}
}

// check checks the readiness of a backend until ctx ends. If there is only one backend, it returns once this one is
// ready: clients cannot use another.
func (b *balancer) check(ctx context.Context, back *backend, roots *x509.CertPool) {
	ask := readiness(back.address, roots, nil)
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	for {
		err := ask(ctx)
		b.checked(back, err)
		if err == nil && len(b.backends) == 1 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// checked records the result of a check. If a backend is silent for long, checked closes the
// connections of its clients, which then connect to another backend. If no other backend is ready,
// the clients stay.
func (b *balancer) checked(back *backend, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case err == nil && !back.ready:
		b.logf("%s is ready", back.address)
	case err != nil && back.ready:
		b.logf("%s is not ready: %v", back.address, err)
	}
	back.ready = err == nil
	b.begun = b.begun || back.ready
	if !errors.Is(err, errSilent) {
		back.silent = 0
		return
	}
	back.silent++
	if back.silent < maxSilent || len(back.conns) == 0 {
		return
	}
	for _, other := range b.backends {
		if other.ready {
			b.logf("%s is silent: closing the connections of %d clients", back.address, len(back.conns))
			for conn := range back.conns {
				_ = conn.Close() // ends both directions of carry
			}
			return
		}
	}
}

// logf writes a line to the log.
func (b *balancer) logf(format string, args ...any) {
	fmt.Fprintf(b.log, time.Now().UTC().Format(time.RFC3339Nano)+" "+format+"\n", args...)
}

// order lists the backends in the order in which a client should try them, and reports whether one
// was ever ready.
func (b *balancer) order() (try []*backend, begun bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next++
	for _, ready := range []bool{true, false} {
		for i := range b.backends {
			if back := b.backends[(b.next+i)%len(b.backends)]; back.ready == ready {
				try = append(try, back)
			}
		}
	}
	return try, b.begun
}

// dial connects to the first backend that accepts.
func (b *balancer) dial(ctx context.Context) (*backend, net.Conn, error) {
	dialer := net.Dialer{Timeout: time.Second}
	deadline := time.Now().Add(startPatience)
	for {
		var errs []error
		try, begun := b.order()
		for _, back := range try {
			conn, err := dialer.DialContext(ctx, "tcp", back.address)
			if err == nil {
				return back, conn, nil
			}
			errs = append(errs, err)
		}
		if begun || time.Now().After(deadline) {
			return nil, nil, errors.Join(errs...)
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// carry connects a client with a backend until one of them ends. If no backend accepts, the client
// sees a closed connection and tries again.
func (b *balancer) carry(ctx context.Context, in net.Conn) {
	defer in.Close()
	back, out, err := b.dial(ctx)
	if err != nil {
		b.logf("no API server for %s: %v", in.RemoteAddr(), err)
		return
	}
	defer out.Close()
	b.mu.Lock()
	back.conns[out] = struct{}{}
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(back.conns, out)
	}()
	// An error ends a direction like the end of its stream, and each direction passes its end on.
	var directions sync.WaitGroup
	copyTo := func(to, from net.Conn) {
		_, err := io.Copy(to, from)
		if half, ok := to.(*net.TCPConn); ok && err == nil {
			_ = half.CloseWrite()
			return
		}
		_ = to.Close()
	}
	directions.Go(func() { copyTo(out, in) })
	copyTo(in, out)
	directions.Wait()
}
