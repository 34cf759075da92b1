// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"container/list"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// flows are the UDP sessions of a listener.
type flows struct {
	all    map[netip.AddrPort]*flow // by the client
	order  list.List                // the one that the client used last is the last one
	closed bool
}

// flow is the UDP session of one client: packets that it sends go to one endpoint, and what this one answers comes
// back.
type flow struct {
	client, endpoint netip.AddrPort
	conn             *net.UDPConn // to the endpoint
	element          *list.Element
}

// maxPacket is the largest UDP packet, in bytes.
const maxPacket = 65_535

// packets are buffers. A socket without packets needs none: see readable.
var packets = sync.Pool{New: func() any { return new([maxPacket]byte) }}

// readable waits until a socket has a packet, an error, or passes its deadline.
func readable(conn syscall.RawConn) error {
	var failed error
	if err := conn.Read(func(fd uintptr) bool {
		var one [1]byte
		_, _, failed = unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR)
	}); err != nil {
		return err
	}
	return failed
}

// receive passes on what clients send.
func (l *listener) receive() {
	raw, err := l.udp.SyscallConn()
	if err != nil {
		return // it is closed
	}
	for !errors.Is(err, net.ErrClosed) {
		if err = readable(raw); err != nil {
			continue
		}
		packet := packets.Get().(*[maxPacket]byte)
		var n int
		var from netip.AddrPort
		if n, from, err = l.udp.ReadFromUDPAddrPort(packet[:]); err == nil {
			if f := l.flow(from); f != nil {
				l.touch(f)
				_, _ = f.conn.Write(packet[:n]) // if the endpoint refuses, answers notices
			}
		}
		packets.Put(packet)
	}
}

// touch begins the time until a session ends anew.
func (l *listener) touch(f *flow) {
	_ = f.conn.SetReadDeadline(time.Now().Add(l.server.Idle)) // it is closed
}

// flow returns the session of a client, a new one if it has none; nil: nothing serves it, or there are too many.
func (l *listener) flow(client netip.AddrPort) *flow {
	s := l.server
	l.mu.Lock()
	defer l.mu.Unlock()
	if f := l.flows.all[client]; f != nil {
		l.flows.order.MoveToBack(f.element)
		return f
	}
	address := client.Addr().Unmap().WithZone("")
	endpoints := l.frontend.endpoints(address)
	if l.flows.closed || len(endpoints) == 0 {
		return nil
	}
	// The session that its client has not used for the longest time makes room.
	if len(l.flows.all) >= max(s.MaxSessions/share, 1) || s.sessions.Load() >= int64(s.MaxSessions) {
		s.turned.Add(1)
		if l.flows.order.Len() == 0 {
			return nil
		}
		l.end(l.flows.order.Front().Value.(*flow))
	}
	endpoint := s.clients.choose(l.frontend, l.place.Protocol, address, endpoints, s.Now())
	conn, err := s.Dial("udp", endpoint.String(), dialTimeouts[0]) // does not wait
	if err != nil {
		s.turned.Add(1)
		return nil
	}
	f := &flow{client: client, endpoint: endpoint, conn: conn.(*net.UDPConn)}
	if l.flows.all == nil {
		l.flows.all = map[netip.AddrPort]*flow{}
	}
	l.flows.all[client], f.element = f, l.flows.order.PushBack(f)
	s.sessions.Add(1)
	l.touch(f)
	go l.answers(f)
	return f
}

// answers passes on what an endpoint answers, until the session ends.
func (l *listener) answers(f *flow) {
	raw, err := f.conn.SyscallConn()
	for err == nil {
		if err = readable(raw); err != nil {
			break
		}
		packet := packets.Get().(*[maxPacket]byte)
		var n int
		if n, err = f.conn.Read(packet[:]); err == nil {
			l.touch(f)
			_, _ = l.udp.WriteToUDPAddrPort(packet[:n], f.client) // the client is gone
		}
		packets.Put(packet)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end(f)
}

// end ends a session. The caller has the lock.
func (l *listener) end(f *flow) {
	if l.flows.all[f.client] != f {
		return
	}
	delete(l.flows.all, f.client)
	l.flows.order.Remove(f.element)
	l.server.sessions.Add(-1)
	f.conn.Close()
}
