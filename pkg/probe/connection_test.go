// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// peerAt is a peer with an IP address, and deadlines that are never reached.
func peerAt(transport checkup.Transport, family checkup.IPFamily, address netip.AddrPort) Measurement {
	return Measurement{
		Pair:      pairOf(transport, family, 0),
		Peer:      &checkup.Peer{Host: address.Addr().String(), Port: int(address.Port()), Family: family, Transport: transport},
		Deadlines: checkup.StageDeadlines{Resolve: patience, Connect: patience, Handshake: patience, Response: patience},
		Probe:     checkup.Probe{Count: 1, Timeout: patience},
	}
}

func TestTCPOfAPeer(t *testing.T) {
	for _, test := range []struct {
		name    string
		listen  func(*testing.T, checkup.IPFamily) netip.AddrPort
		short   checkup.Stage
		passed  []checkup.Stage
		failure *checkup.Cause
	}{
		{"silent", func(t *testing.T, f checkup.IPFamily) netip.AddrPort { return listenTCP(t, f, silentPeer) }, "", through(checkup.StageConnect), nil},
		{"refused", func(t *testing.T, f checkup.IPFamily) netip.AddrPort { return listenTCP(t, f, nil) }, "", nil,
			noConnection(checkup.ReasonRefused, "connection refused")},
		{"black hole", func(t *testing.T, f checkup.IPFamily) netip.AddrPort {
			return blackHole(t, netip.AddrPortFrom(loopback[f], 0))
		}, checkup.StageConnect, nil,
			noConnection(checkup.ReasonTimedOut, "timed out after 300ms")},
	} {
		t.Run(test.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, family checkup.IPFamily) {
				m := peerAt(checkup.TCP, family, test.listen(t, family))
				*deadlineOf(&m, test.short) = silence
				got, known := connection(t.Context(), m, session())
				if diff := diffResults(checkup.Result{Pair: m.Pair, Failure: test.failure}, test.passed, got); diff != "" || !known {
					t.Errorf("known %v (-want +got):\n%s", known, diff)
				}
			})
		})
	}
}

// A measurement that the context ends is not reported as a failure, at any stage.
func TestConnectionThatIsCutShortIsNotKnown(t *testing.T) {
	deaf := func(context.Context, string, string) (net.Conn, error) { c, _ := net.Pipe(); return c, nil }
	for _, test := range []struct {
		stage checkup.Stage
		peer  func(*testing.T) netip.AddrPort
	}{
		{checkup.StageResolve, func(*testing.T) netip.AddrPort { return netip.AddrPortFrom(loopback[checkup.IPv4], 1) }},
		{checkup.StageConnect, func(t *testing.T) netip.AddrPort { return blackHole(t, netip.AddrPortFrom(loopback[checkup.IPv4], 0)) }},
		{checkup.StageHandshake, func(t *testing.T) netip.AddrPort { return listenTCP(t, checkup.IPv4, silentPeer) }},
		{checkup.StageResponse, func(t *testing.T) netip.AddrPort { return listenTCP(t, checkup.IPv4, secure(nil, silentPeer)) }},
	} {
		for _, how := range []string{"cancelled", "deadline"} {
			t.Run(string(test.stage)+"/"+how, func(t *testing.T) {
				m := peerAt(checkup.TLS, checkup.IPv4, test.peer(t))
				m.Peer.Path = "/"
				s := session()
				if test.stage == checkup.StageResolve {
					m.Peer.Host, m.Pair.Family = "silent.test.", checkup.AnyIPFamily
					s.dialDNS = deaf
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(silence))
				if how == "cancelled" {
					ctx, cancel = context.WithCancel(t.Context())
					time.AfterFunc(time.Duration(silence)/10, cancel)
				}
				defer cancel()
				if r, known := connection(ctx, m, s); known {
					t.Errorf("got result %+v, want none", r)
				}
			})
		}
	}
}

// Hold-ups of the agent spoil timeouts, which the agent itself may have caused, and delays that the agent timed. A
// reached peer still counts as reached.
func TestHoldUpsOfTheAgent(t *testing.T) {
	held := &Watch{}
	held.set(nil, time.Now().Add(-time.Hour)) // the timer has not woken since
	for _, test := range []struct {
		name    string
		peer    func(net.Conn)
		passed  []checkup.Stage
		failure *checkup.Cause
		spoiled bool
	}{
		// The kernel has timed the connect.
		{"answered", secure(nil, serveOne(status(200))), through(checkup.StageConnect), nil, false},
		{"silent", silentPeer, through(checkup.StageConnect), nil, true},
		{"closed", func(c net.Conn) { c.(*net.TCPConn).CloseWrite(); silentPeer(c) }, through(checkup.StageConnect), cause(checkup.StageHandshake, "closed by the peer in the TLS handshake"), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := peerAt(checkup.TLS, checkup.IPv4, listenTCP(t, checkup.IPv4, test.peer))
			m.Peer.Path = "/some/path"
			if test.spoiled {
				m.Deadlines.Handshake = silence
			}
			s := session()
			s.Watch = held
			got, _ := connection(t.Context(), m, s)
			if test.spoiled != (got.Unmeasured != nil && *got.Unmeasured == *cause(checkup.StageSelf, "the agent was held up while it waited")) {
				t.Errorf("unmeasured: %v", got.Unmeasured)
			}
			got.Unmeasured = nil
			if diff := diffResults(checkup.Result{Pair: m.Pair, Failure: test.failure}, test.passed, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestSpoiledConnectIsClosed: a connection is closed although its connect was spoiled. The kernel times no connect whose
// SYN was sent again.
func TestSpoiledConnectIsClosed(t *testing.T) {
	address, listener := fullQueue(t, netip.AddrPortFrom(loopback[checkup.IPv4], 0))
	accept := func() int {
		fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	s := session()
	s.Watch = &Watch{}
	s.Watch.set(nil, time.Now().Add(-time.Hour)) // the timer has not woken since
	measured := make(chan checkup.Result)
	go func() {
		r, _ := connection(t.Context(), peerAt(checkup.TLS, checkup.IPv4, address), s)
		measured <- r
	}()
	time.Sleep(time.Duration(silence)) // until the first SYN is dropped; Linux repeats it after a second
	accept()
	if r := <-measured; r.Unmeasured == nil || r.Unmeasured.Stage != checkup.StageSelf {
		t.Fatalf("%+v, want a spoiled connect", r)
	}
	fd := accept()
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2}); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Read(fd, make([]byte, 1)); n != 0 || err != nil {
		t.Errorf("read %d bytes, %v; want that the peer has closed the connection", n, err)
	}
}

// resolveCases are DNS servers, and the expected results of a peer with a DNS name.
var resolveCases = []struct {
	name    string
	family  checkup.IPFamily
	dns     dnsServer
	dial    func(context.Context, string, string) (net.Conn, error)
	short   checkup.Stage
	passed  []checkup.Stage
	failure *checkup.Cause
	spoiled *checkup.Cause
}{
	{name: "both families", dns: dnsServer{addresses: []string{"127.0.0.1", "::1"}}, passed: []checkup.Stage{checkup.StageResolve, checkup.StageConnect}},
	{name: "IPv4 only", dns: dnsServer{addresses: []string{"127.0.0.1"}}, passed: []checkup.Stage{checkup.StageResolve, checkup.StageConnect}},
	{name: "IPv6 only", dns: dnsServer{addresses: []string{"::1"}}, passed: []checkup.Stage{checkup.StageResolve, checkup.StageConnect}},
	{name: "IPv4 of both", family: checkup.IPv4, dns: dnsServer{addresses: []string{"127.0.0.1", "::1"}}, passed: []checkup.Stage{checkup.StageResolve, checkup.StageConnect}},
	{name: "IPv6 of both", family: checkup.IPv6, dns: dnsServer{addresses: []string{"127.0.0.1", "::1"}}, passed: []checkup.Stage{checkup.StageResolve, checkup.StageConnect}},
	{name: "no address of the family", family: checkup.IPv6, dns: dnsServer{addresses: []string{"127.0.0.1"}}, failure: cause(checkup.StageResolve, "no such host")},
	{name: "no such name", dns: dnsServer{code: dnsmessage.RCodeNameError}, failure: cause(checkup.StageResolve, "no such host")},
	{name: "server failure", dns: dnsServer{code: dnsmessage.RCodeServerFailure}, failure: cause(checkup.StageResolve, "server misbehaving")},
	{name: "silent server", dns: dnsServer{silent: true}, short: checkup.StageResolve, failure: cause(checkup.StageResolve, "timed out after 300ms")},
	{name: "refused by the server's host", dial: refusedDNS, failure: cause(checkup.StageResolve, "the DNS server: connection refused")},
	{name: "no file left", dial: noFileForDNS, spoiled: cause(checkup.StageSocket, "socket: too many open files")},
	{name: "nothing listens at the address", dns: dnsServer{addresses: []string{"127.0.0.9"}}, passed: []checkup.Stage{checkup.StageResolve}, failure: noConnection(checkup.ReasonRefused, "connection refused")},
}

func refusedDNS(ctx context.Context, _, _ string) (net.Conn, error) {
	ports, release, err := closedPorts(checkup.IPv4)
	if err != nil {
		return nil, err
	}
	defer release()
	return new(net.Dialer).DialContext(ctx, "tcp", netip.AddrPortFrom(loopback[checkup.IPv4], uint16(ports[checkup.TCP])).String())
}

func noFileForDNS(context.Context, string, string) (net.Conn, error) {
	return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}
}

func TestResolve(t *testing.T) {
	for _, test := range resolveCases {
		t.Run(test.name, func(t *testing.T) {
			m := peerAt(checkup.TCP, test.family, netip.AddrPortFrom(netip.Addr{}, listenBoth(t)))
			m.Peer.Host = "api.example.test."
			*deadlineOf(&m, test.short) = silence
			s := session()
			if s.dialDNS = test.dial; s.dialDNS == nil {
				s.dialDNS = test.dns.serve(t)
			}
			got, known := connection(t.Context(), m, s)
			want := checkup.Result{Pair: m.Pair, Failure: test.failure, Unmeasured: test.spoiled}
			if diff := diffResults(want, test.passed, got); diff != "" || !known {
				t.Errorf("known %v (-want +got):\n%s", known, diff)
			}
		})
	}
}

// Every stage of a connection has a case that fails at it.
func TestEveryStageHasCases(t *testing.T) {
	fails := map[checkup.Stage]bool{}
	for _, test := range tlsCases {
		if test.failure != nil {
			fails[test.failure.Stage] = true
		}
	}
	for _, test := range resolveCases {
		if test.failure != nil {
			fails[test.failure.Stage] = true
		}
	}
	for _, stage := range checkup.ConnectionStages {
		if !fails[stage] {
			t.Errorf("no test case fails at stage %s", stage)
		}
		delete(fails, stage)
	}
	if len(fails) > 0 {
		t.Errorf("test cases fail at %v, which are not stages of a connection", fails)
	}
}

// One address of a name is a black hole. The delay is that of the other address, without the time for which only the
// black hole was tried.
func TestDelayBelongsToTheConnectionThatWon(t *testing.T) {
	for _, hole := range checkup.IPFamilies {
		t.Run("no answer by "+string(hole), func(t *testing.T) {
			port := blackHole(t, netip.AddrPortFrom(loopback[hole], 0)).Port()
			other := checkup.IPv4
			if hole == checkup.IPv4 {
				other = checkup.IPv6
			}
			l, err := net.Listen("tcp", netip.AddrPortFrom(loopback[other], port).String())
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			m := peerAt(checkup.TCP, checkup.AnyIPFamily, netip.AddrPortFrom(netip.Addr{}, port))
			m.Peer.Host = "api.example.test."
			s := session()
			s.dialDNS = dnsServer{addresses: []string{"127.0.0.1", "::1"}}.serve(t)
			got, _ := connection(t.Context(), m, s)
			// Timed by the kernel: load of this machine does not affect it.
			if got.Failure != nil || got.Unmeasured != nil || got.Delays.Connect <= 0 || got.Delays.Connect >= attemptDelay.Microseconds() {
				t.Errorf("got %+v, want a connect within %v", got, attemptDelay)
			}
		})
	}
}

// try is the behaviour of one address in a race.
type try struct {
	after time.Duration
	err   error
}

func TestRace(t *testing.T) {
	const second = time.Second
	refused := os.NewSyscallError("connect", syscall.ECONNREFUSED)
	unreachable := os.NewSyscallError("connect", syscall.EHOSTUNREACH)
	never := 1000 * time.Hour
	for _, test := range []struct {
		name  string
		tries []try
		// winner by its number from 0, and the duration of its own dial; without one, the error.
		winner   int
		took     time.Duration
		reported string
		// began is when each address was tried; addresses that were not tried are left out.
		began []time.Duration
	}{
		{"first", []try{{second / 10, nil}, {0, nil}}, 0, second / 10, "", []time.Duration{0}},
		{"second, while the first is silent", []try{{never, nil}, {second / 10, nil}}, 1, second / 10, "", []time.Duration{0, attemptDelay}},
		{"first, late, while the second is silent", []try{{second / 2, nil}, {never, nil}}, 0, second / 2, "", []time.Duration{0, attemptDelay}},
		{"second, late, while the first is later", []try{{second, nil}, {second / 2, nil}}, 1, second / 2, "", []time.Duration{0, attemptDelay}},
		{"second, as the first is refused", []try{{second / 10, refused}, {second / 10, nil}}, 1, second / 10, "", []time.Duration{0, second / 10}},
		{"third, behind a silent one and a refused one", []try{{never, nil}, {second / 10, refused}, {second / 10, nil}}, 2, second / 10, "",
			[]time.Duration{0, attemptDelay, attemptDelay + second/10}},
		{"all refused", []try{{0, refused}, {0, refused}}, -1, 0, "connection refused", []time.Duration{0, 0}},
		{"refused and no route", []try{{0, unreachable}, {0, refused}}, -1, 0, "connection refused, no route to host", []time.Duration{0, 0}},
		{"silent and refused", []try{{never, nil}, {0, refused}}, -1, 0, "connection refused, timed out after 5s", []time.Duration{0, attemptDelay}},
		{"all silent", []try{{never, nil}, {never, nil}}, -1, 0, "timed out after 5s", []time.Duration{0, attemptDelay}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				start := time.Now()
				var addresses []netip.AddrPort
				var conns []*net.TCPConn
				for i := range test.tries {
					addresses = append(addresses, netip.AddrPortFrom(loopback[checkup.IPv4], uint16(i)))
					conns = append(conns, &net.TCPConn{})
				}
				var mu sync.Mutex
				var began []time.Duration
				got := race(ctx, addresses, func(ctx context.Context, address netip.AddrPort) (*net.TCPConn, error) {
					mu.Lock()
					began = append(began, time.Since(start))
					mu.Unlock()
					try := test.tries[address.Port()]
					if err := sleepUntil(ctx, time.Now().Add(try.after)); err != nil {
						return nil, err
					}
					return conns[address.Port()], try.err
				})
				if diff := cmp.Diff(test.began, began); diff != "" {
					t.Errorf("tried at (-want +got):\n%s", diff)
				}
				if test.winner >= 0 {
					if got.err != nil || got.conn != conns[test.winner] || got.took != test.took {
						t.Errorf("got number %d after %v, %v; want %d after %v", slices.Index(conns, got.conn), got.took, got.err, test.winner, test.took)
					}
					return
				}
				if got.err == nil || words(got.err, 5*time.Second) != test.reported {
					t.Errorf("error %v, want %q", got.err, test.reported)
				}
			})
		})
	}
}

// A family that this host lacks is a local error only if all addresses are of that family.
func TestTroubleAmongSeveralAddresses(t *testing.T) {
	call := func(name string, err error) error {
		return &net.OpError{Op: "dial", Err: os.NewSyscallError(name, err)}
	}
	refused, noIPv6 := call("connect", syscall.ECONNREFUSED), call("connect", syscall.EADDRNOTAVAIL)
	noFile := call("socket", syscall.EMFILE)
	for _, test := range []struct {
		name string
		errs []error
		want error
	}{
		{"one", []error{refused}, refused},
		{"no IPv6 here", []error{noIPv6, refused}, refused},
		{"no family here", []error{noIPv6, noIPv6}, noIPv6},
		{"no file left", []error{refused, noFile}, noFile},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := whyNone(test.errs); !errors.Is(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestAlternateFamilies(t *testing.T) {
	for _, test := range []struct{ in, want string }{
		{"10.0.0.1", "10.0.0.1"},
		{"fd00::1 fd00::2 10.0.0.1 10.0.0.2 10.0.0.3", "fd00::1 10.0.0.1 fd00::2 10.0.0.2 10.0.0.3"},
		{"10.0.0.1 10.0.0.2 fd00::1", "10.0.0.1 fd00::1 10.0.0.2"},
		{"::ffff:10.0.0.1 fd00::1", "10.0.0.1 fd00::1"},
	} {
		var in []netip.Addr
		for a := range strings.FieldsSeq(test.in) {
			in = append(in, netip.MustParseAddr(a))
		}
		var got []string
		for _, a := range alternate(in) {
			got = append(got, a.String())
		}
		if diff := cmp.Diff(test.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.in, diff)
		}
	}
}

// listenBoth listens on one port of both loopback addresses.
func listenBoth(t *testing.T) uint16 {
	t.Helper()
	for t.Context().Err() == nil {
		first, err := net.Listen("tcp", anyPort(checkup.IPv4))
		if err != nil {
			t.Fatal(err)
		}
		port := first.Addr().(*net.TCPAddr).AddrPort().Port()
		second, err := net.Listen("tcp", netip.AddrPortFrom(loopback[checkup.IPv6], port).String())
		if err != nil {
			first.Close() // the port is in use: try another
			continue
		}
		t.Cleanup(func() { first.Close(); second.Close() })
		return port
	}
	t.Fatal("no port")
	return 0
}

// blackHole is an address that does not answer: its host drops packets, because the queue of connections to be accepted
// is full.
func blackHole(t *testing.T, address netip.AddrPort) netip.AddrPort {
	t.Helper()
	address, _ = fullQueue(t, address)
	return address
}

// fullQueue is blackHole with the listening socket. It answers once the only connection in its queue is accepted.
func fullQueue(t *testing.T, address netip.AddrPort) (netip.AddrPort, int) {
	t.Helper()
	domain, to := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(address.Port()), Addr: [4]byte(address.Addr().AsSlice()[:4])})
	if address.Addr().Is6() {
		domain, to = unix.AF_INET6, &unix.SockaddrInet6{Port: int(address.Port()), Addr: address.Addr().As16()}
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, to), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	switch name := name.(type) {
	case *unix.SockaddrInet4:
		address = netip.AddrPortFrom(address.Addr(), uint16(name.Port))
	case *unix.SockaddrInet6:
		address = netip.AddrPortFrom(address.Addr(), uint16(name.Port))
	}
	conn, err := net.Dial("tcp", address.String()) // a queue of length 0 holds one
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return address, fd
}

// dnsServer gives every question the same answer.
type dnsServer struct {
	addresses []string
	code      dnsmessage.RCode
	silent    bool
}

// serve starts the server on the loopback and returns a dial function that always connects to it.
func (d dnsServer) serve(t *testing.T) func(context.Context, string, string) (net.Conn, error) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		buf := make([]byte, 1<<10)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if answer := d.answer(buf[:n]); answer != nil {
				conn.WriteTo(answer, from)
			}
		}
	}()
	t.Cleanup(func() {
		conn.Close()
		<-served
	})
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}
}

func (d dnsServer) answer(b []byte) []byte {
	var m dnsmessage.Message
	if d.silent || m.Unpack(b) != nil {
		return nil
	}
	m.Response, m.Authoritative, m.RCode, m.Additionals = true, true, d.code, nil
	for _, a := range d.addresses {
		address, question := netip.MustParseAddr(a), m.Questions[0]
		header := dnsmessage.ResourceHeader{Name: question.Name, Type: question.Type, Class: question.Class}
		switch {
		case address.Is4() && question.Type == dnsmessage.TypeA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: address.As4()}})
		case address.Is6() && question.Type == dnsmessage.TypeAAAA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: address.As16()}})
		}
	}
	answer, err := m.Pack()
	if err != nil {
		return nil
	}
	return answer
}
