// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// dialTimeouts are for connections to one endpoint after another, until one takes the client: those of kube-proxy's
// mode userspace.
var dialTimeouts = []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}

// acceptDelay is the time until the next attempt, if a connection cannot be accepted: no more files may be open, for
// example.
const acceptDelay = 100 * time.Millisecond

func (l *listener) accept() {
	for {
		conn, err := l.tcp.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			time.Sleep(acceptDelay)
		case !l.take(conn):
			l.server.turned.Add(1)
			reset(conn)
		default:
			go func() {
				defer l.give(conn)
				l.relay(conn)
			}()
		}
	}
}

// take counts a connection, unless there are too many.
func (l *listener) take(conn *net.TCPConn) bool {
	s := l.server
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.connections >= max(s.MaxConnections/share, 1) {
		return false
	}
	if s.connections.Add(1) > int64(s.MaxConnections) {
		s.connections.Add(-1)
		return false
	}
	l.connections++
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tcp == nil {
		s.tcp = map[*net.TCPConn]netip.Addr{}
	}
	s.tcp[conn] = l.place.At.Addr()
	return true
}

func (l *listener) give(conn *net.TCPConn) {
	l.mu.Lock()
	l.connections--
	l.mu.Unlock()
	l.server.connections.Add(-1)
	l.server.mu.Lock()
	defer l.server.mu.Unlock()
	delete(l.server.tcp, conn)
}

// relay connects a client with an endpoint until both have ended. A client that no endpoint takes is reset: it was
// accepted before that was known.
func (l *listener) relay(client *net.TCPConn) {
	from := client.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	server := l.dial(from)
	if server == nil {
		reset(client)
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { forward(server, client) })
	forward(client, server)
	wg.Wait()
	client.Close()
	server.Close()
}

// forward copies what one side sends, and its end, to the other side, which may go on sending. If one of them is gone,
// the other one is reset.
func forward(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		reset(to)
		reset(from)
		return
	}
	_ = to.CloseWrite() // it is gone: the other direction notices
}

// reset closes a connection at once.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0) // it is closed
	conn.Close()
}

// dial returns a connection to an endpoint for a client; nil: none takes it.
func (l *listener) dial(client netip.Addr) *net.TCPConn {
	f := l.serves()
	endpoints := f.endpoints(client)
	for _, timeout := range dialTimeouts {
		if len(endpoints) == 0 {
			return nil
		}
		endpoint := l.server.clients.choose(f, l.place.Protocol, client, endpoints, l.server.Now())
		if conn, err := l.server.Dial("tcp", endpoint.String(), timeout); err == nil {
			return conn.(*net.TCPConn)
		}
		if len(endpoints) > 1 {
			endpoints = slices.DeleteFunc(slices.Clone(endpoints), func(e netip.AddrPort) bool { return e == endpoint })
		}
	}
	return nil
}
