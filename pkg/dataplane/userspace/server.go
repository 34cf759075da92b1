// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
)

// Server serves Services: it is a proxy.Writer.
type Server struct {
	Device proxy.Device
	// Idle is how long a UDP session lasts after its last packet, in either direction.
	Idle time.Duration
	// MaxConnections and MaxSessions bound TCP connections and UDP sessions of all listeners together. One listener has
	// at most the quarter, so that one Service cannot take them from all others.
	MaxConnections, MaxSessions int
	// Dial connects to an endpoint.
	Dial func(network, address string, timeout time.Duration) (net.Conn, error)
	// Now is the clock of session affinity.
	Now func() time.Time

	clients                       clients
	connections, sessions, turned atomic.Int64

	// What the goroutine of Write has: listeners, and the addresses that the interface has since then.
	open     map[Place]*listener
	assigned []netip.Addr

	mu  sync.Mutex
	tcp map[*net.TCPConn]netip.Addr // of clients, with the address of the Service
}

// share is the part of all connections that one listener may have: one in so many.
const share = 4

// DefaultIdle is for how long Linux remembers a UDP connection without an answer (nf_conntrack_udp_timeout), as in the
// other modes. It was 250 ms in kube-proxy (--udp-timeout), where the slower answers of a DNS server were lost.
const DefaultIdle = 30 * time.Second

// maxAtOnce is the default of MaxConnections and MaxSessions. Fewer files may be open in less of them.
const maxAtOnce = 10_000

// New returns a Server at the kernel's interface. It may use the files that the process may have open: half of them for
// TCP, where a connection has two sockets and two pipes; a quarter for UDP; the rest is for listeners.
func New() *Server {
	s := &Server{
		Device: proxy.NewDevice(dataplane.UserspaceDevice), Idle: DefaultIdle,
		MaxConnections: maxAtOnce, MaxSessions: maxAtOnce,
		Dial: net.DialTimeout, Now: time.Now,
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil && limit.Cur < 12*maxAtOnce {
		s.MaxConnections, s.MaxSessions = int(limit.Cur/12), int(min(limit.Cur/4, maxAtOnce))
	}
	return s
}

// Counts are what a Server has now, and how many clients it turned away because it had too many.
type Counts struct{ Connections, Sessions, TurnedAway int64 }

// Counts may be called at any time.
func (s *Server) Counts() Counts {
	return Counts{s.connections.Load(), s.sessions.Load(), s.turned.Load()}
}

// listener listens at one Place.
type listener struct {
	server *Server
	place  Place
	tcp    *net.TCPListener // one of both
	udp    *net.UDPConn

	mu          sync.Mutex
	frontend    *Frontend
	connections int
	flows       flows
}

// Write is proxy.Writer's. What cannot be served costs nothing else: it is a proxy.Unserved.
func (s *Server) Write(_ context.Context, state *proxy.State, node proxy.Node) error {
	want, unserved := Want(state, node)
	return s.apply(want, unserved)
}

func (s *Server) apply(want *Layout, texts []string) error {
	if err := s.Device.Create(); err != nil {
		return err
	}
	have, err := s.Device.Addresses()
	if err != nil {
		return err
	}
	all, wrong := proxy.Unserved{Problems: texts}, proxy.Unserved{}
	frontends := map[Place]*Frontend{}
	for place, l := range s.open {
		frontends[place] = l.frontend
	}
	change := Difference(have, frontends, want)
	for _, place := range change.Close {
		s.close(place)
	}
	missing := map[netip.Addr]bool{}
	s.assigned = nil
	for _, a := range change.Add {
		if err := s.Device.Add(a); err != nil {
			missing[a] = true
			wrong.Add("address %s is not served: add it to interface %s: %v", a, s.Device.Name, err)
		}
	}
	for _, a := range want.Addresses {
		if !missing[a] {
			s.assigned = append(s.assigned, a)
		}
	}
	for _, place := range change.Set {
		if err := s.open[place].set(want.Frontends[place]); err != nil {
			s.close(place)
			wrong.Add("%s of %s is not served: %v", place, want.Frontends[place].Service, err)
		}
	}
	for _, place := range change.Open {
		if missing[place.At.Addr()] {
			continue
		}
		if err := s.listen(place, want.Frontends[place]); err != nil {
			wrong.Add("%s of %s is not served: %v", place, want.Frontends[place].Service, err)
		}
	}
	s.disconnect(change.Remove)
	for _, a := range change.Remove {
		if err := s.Device.Remove(a); err != nil {
			wrong.Add("address %s is no longer needed, but cannot be removed from interface %s: %v", a, s.Device.Name, err)
		}
	}
	return all.With(wrong)
}

// disconnect resets the connections to addresses that will be removed: their packets would not arrive any more, and
// nobody would notice.
func (s *Server) disconnect(addresses []netip.Addr) {
	if len(addresses) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn, at := range s.tcp {
		if slices.Contains(addresses, at) {
			reset(conn)
		}
	}
}

// listen opens a listener. Its filter is there before it is.
func (s *Server) listen(place Place, f *Frontend) error {
	ipv4 := place.At.Addr().Is4()
	config := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		return attach(conn, f, ipv4)
	}}
	config.SetMultipathTCP(false) // its sockets have no filters
	family := "6"
	if ipv4 {
		family = "4"
	}
	l := &listener{server: s, place: place, frontend: f}
	if place.Protocol == "TCP" {
		tcp, err := config.Listen(context.Background(), "tcp"+family, place.At.String())
		if err != nil {
			return short(err)
		}
		l.tcp = tcp.(*net.TCPListener)
		go l.accept()
	} else {
		udp, err := config.ListenPacket(context.Background(), "udp"+family, place.At.String())
		if err != nil {
			return short(err)
		}
		l.udp = udp.(*net.UDPConn)
		go l.receive()
	}
	if s.open == nil {
		s.open = map[Place]*listener{}
	}
	s.open[place] = l
	return nil
}

// short leaves out of an error what the text around it says.
func short(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// set changes what a listener serves. Sessions of UDP whose endpoints do not serve end.
func (l *listener) set(f *Frontend) error {
	var conn syscall.RawConn
	var err error
	if l.tcp != nil {
		conn, err = l.tcp.SyscallConn()
	} else {
		conn, err = l.udp.SyscallConn()
	}
	if err == nil {
		err = attach(conn, f, l.place.At.Addr().Is4())
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.frontend = f
	for _, flow := range l.flows.all {
		if _, ok := slices.BinarySearchFunc(f.Serving, flow.endpoint, netip.AddrPort.Compare); !ok {
			l.end(flow)
		}
	}
	return nil
}

// serves returns what a listener serves now.
func (l *listener) serves() *Frontend {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.frontend
}

// close closes a listener and its UDP sessions. TCP connections go on.
func (s *Server) close(place Place) {
	l := s.open[place]
	delete(s.open, place)
	if l.tcp != nil {
		l.tcp.Close()
		return
	}
	l.udp.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flows.closed = true
	for _, flow := range l.flows.all {
		l.end(flow)
	}
}

// Tidy is proxy.Writer's: Write leaves nothing behind.
func (s *Server) Tidy(context.Context) (more bool, err error) { return false, nil }

// Present is proxy.Writer's: it looks whether the interface has its addresses.
func (s *Server) Present(context.Context) error { return s.Device.Missing(s.assigned) }

// Cleanup ends all that a Server has, and removes the interface: that of a predecessor, too.
func (s *Server) Cleanup(context.Context) error {
	for place := range s.open {
		s.close(place)
	}
	s.mu.Lock()
	for conn := range s.tcp {
		reset(conn)
	}
	s.mu.Unlock()
	s.assigned = nil
	return s.Device.Delete()
}
