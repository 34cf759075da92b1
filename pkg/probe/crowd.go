// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

const (
	// maxConnections is the maximum number of connections that a crowd serves at the same time.
	maxConnections = 256
	// fairShare is how many of them each peer may keep when all are taken.
	fairShare = 8
)

// crowd is a listener with at most maxConnections open connections. When all are taken, a new connection takes the
// place of the oldest one of the peer (IP address) that has most, if that has more than fairShare: nobody can keep
// others out with idle connections. Otherwise, it waits for a place.
type crowd struct {
	net.Listener
	freed  chan struct{} // holds a token if a place became free
	closed chan struct{}
	close  func() error

	mu    sync.Mutex // guards following
	peers map[netip.Addr][]*member
	open  int
}

// member is an open connection of a crowd.
type member struct {
	net.Conn
	of    *crowd
	peer  netip.Addr
	leave func() error
}

func newCrowd(l net.Listener) *crowd {
	c := &crowd{
		Listener: l, freed: make(chan struct{}, 1), closed: make(chan struct{}), peers: map[netip.Addr][]*member{},
	}
	c.close = sync.OnceValue(func() error {
		close(c.closed)
		return l.Close()
	})
	return c
}

// Accept waits for a connection, and for a place for it.
func (c *crowd) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	m := &member{Conn: conn, of: c, peer: addressOf(conn.RemoteAddr())}
	m.leave = sync.OnceValue(func() error {
		c.remove(m)
		return conn.Close()
	})
	for !c.admit(m) {
		select {
		case <-c.freed:
		case <-c.closed:
			conn.Close()
			return nil, net.ErrClosed
		}
	}
	return m, nil
}

// Close closes the listener. Open connections stay.
func (c *crowd) Close() error { return c.close() }

// Close gives up the place of the connection and closes it.
func (m *member) Close() error { return m.leave() }

// admit gives a connection a place, for which it may close another one. It reports false if there is none.
func (c *crowd) admit(m *member) bool {
	c.mu.Lock()
	if c.open >= maxConnections {
		var most []*member
		for _, of := range c.peers {
			if len(of) > len(most) {
				most = of
			}
		}
		if len(most) <= fairShare {
			c.mu.Unlock()
			return false
		}
		c.mu.Unlock()
		most[0].Close()
		c.mu.Lock()
	}
	defer c.mu.Unlock()
	c.peers[m.peer] = append(c.peers[m.peer], m)
	c.open++
	return true
}

// remove frees the place of a connection.
func (c *crowd) remove(m *member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.peers[m.peer]
	at := slices.Index(of, m)
	if at < 0 {
		return
	}
	if c.peers[m.peer] = slices.Delete(slices.Clone(of), at, at+1); len(of) == 1 {
		delete(c.peers, m.peer)
	}
	c.open--
	select {
	case c.freed <- struct{}{}:
	default: // there is one already
	}
}
