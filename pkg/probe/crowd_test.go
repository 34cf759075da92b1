// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"net"
	nethttp "net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Idle connections of one peer keep nobody else out: not an agent, and not the kubelet's health check.
func TestIdleConnectionsKeepNobodyOut(t *testing.T) {
	r := serve(t, checkup.IPv4)
	for _, l := range []net.Listener{r.tcp[0], r.http[0], r.health[0]} {
		to := l.Addr().(*net.TCPAddr)
		for range maxConnections + 1 {
			conn, err := net.DialTCP("tcp4", &net.TCPAddr{IP: other.AsSlice()}, to)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
		}
	}
	for transport, l := range map[checkup.Transport]net.Listener{checkup.TCP: r.tcp[0], checkup.HTTP: r.http[0]} {
		for _, size := range []int{0, 1000} {
			m := Measurement{
				Pair:    pairOf(transport, checkup.IPv4, size),
				Address: netip.MustParseAddrPort(l.Addr().String()),
				Probe:   checkup.Probe{Count: 3, Timeout: silence * 10, Path: "/healthz"},
			}
			got := Funcs[transport](t.Context(), m, session())
			if diff := diffObservations(checkup.Observation{Pair: m.Pair, Sent: 3, Received: 3}, got); diff != "" {
				t.Errorf("%s of %d bytes (-want +got):\n%s", transport, size, diff)
			}
		}
	}
	client := nethttp.Client{Timeout: 10 * time.Duration(silence)}
	response, err := client.Get("http://" + r.health[0].Addr().String() + "/healthz")
	if err != nil {
		t.Fatalf("health: %v", err)
	}
	response.Body.Close()
}

// A new connection takes the place of the oldest one of the peer with most, and waits if all peers have a fair share.
func TestCrowd(t *testing.T) {
	inner := &queued{conns: make(chan net.Conn, 2*maxConnections), closed: make(chan struct{})}
	c := newCrowd(inner)
	accept := func(peer byte) *pretended {
		conn := &pretended{peer: netip.AddrFrom4([4]byte{10, 0, 0, peer})}
		inner.conns <- conn
		if _, err := c.Accept(); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	first := accept(1)
	second := accept(1)
	for range maxConnections - 3 {
		accept(1)
	}
	old := accept(2)
	accept(3)
	if !first.closed || second.closed || old.closed {
		t.Errorf("closed: first %t, second %t, of another peer %t; want only the first", first.closed, second.closed, old.closed)
	}
	for i := 0; c.most() > fairShare; i++ {
		accept(byte(10 + i/fairShare))
	}
	if c.open != maxConnections {
		t.Fatalf("%d connections are open, want %d", c.open, maxConnections)
	}
	inner.conns <- &pretended{peer: netip.AddrFrom4([4]byte{10, 0, 0, 200})}
	accepted := make(chan error, 1)
	go func() {
		_, err := c.Accept()
		accepted <- err
	}()
	c.mu.Lock()
	var any *member
	for _, of := range c.peers {
		any = of[0]
	}
	c.mu.Unlock()
	any.Close()
	if err := <-accepted; err != nil {
		t.Errorf("a place is free, and Accept returns %v", err)
	}
	inner.conns <- &pretended{peer: netip.AddrFrom4([4]byte{10, 0, 0, 201})}
	go func() {
		_, err := c.Accept()
		accepted <- err
	}()
	c.Close()
	if err := <-accepted; err == nil {
		t.Error("Accept returns a connection after Close")
	}
}

// most is the most connections of one peer.
func (c *crowd) most() int {
	n := 0
	for _, of := range c.peers {
		n = max(n, len(of))
	}
	return n
}

// queued is a listener whose connections come from a channel.
type queued struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (q *queued) Accept() (net.Conn, error) {
	select {
	case conn := <-q.conns:
		return conn, nil
	case <-q.closed:
		return nil, net.ErrClosed
	}
}

func (q *queued) Close() error { close(q.closed); return nil }
func (*queued) Addr() net.Addr { return &net.TCPAddr{} }

// pretended is a connection of a peer.
type pretended struct {
	net.Conn
	peer   netip.Addr
	closed bool
}

func (p *pretended) Close() error { p.closed = true; return nil }
func (p *pretended) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.peer, 1))
}
