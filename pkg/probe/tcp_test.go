// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// tcpCases are peers and the expected observations, of three measurements.
var tcpCases = []struct {
	name string
	// peer serves one connection; nil means that nothing listens.
	peer    func(net.Conn)
	size    int
	timeout checkup.Duration
	want    checkup.Observation
}{
	{"connect", silentPeer, 0, patience, checkup.Observation{Sent: 3, Received: 3}},
	{"echo", echoPeer, 100, patience, checkup.Observation{Sent: 3, Received: 3}},
	// More than the sockets' buffers hold: writing and reading must overlap.
	{"large echo", echoPeer, 4 << 20, patience, checkup.Observation{Sent: 3, Received: 3}},
	{"byte by byte", slowPeer, 50, patience, checkup.Observation{Sent: 3, Received: 3}},
	{"refused", nil, 0, patience, checkup.Observation{Sent: 3, Failure: noConnection(checkup.ReasonRefused, "connection refused")}},
	{"refused echo", nil, 100, patience, checkup.Observation{Sent: 3, Failure: noConnection(checkup.ReasonRefused, "connection refused")}},
	{"silent", silentPeer, 100, silence, checkup.Observation{Sent: 3, Failure: cause(checkup.StageEcho, "timed out after 300ms")}},
	{"deaf", deafPeer, 16 << 20, silence, checkup.Observation{Sent: 3, Failure: cause(checkup.StageEcho, "timed out after 300ms")}},
	{"wrong echo", func(c net.Conn) { io.CopyN(c, zeroes{}, 100); silentPeer(c) }, 100, patience,
		checkup.Observation{Sent: 3, Failure: cause(checkup.StageEcho, "the answer differs from what was sent")}},
	{"half an echo", func(c net.Conn) { io.CopyN(c, c, 50); c.(*net.TCPConn).CloseWrite(); silentPeer(c) }, 100, patience,
		checkup.Observation{Sent: 3, Failure: cause(checkup.StageEcho, "closed by the peer before the whole answer")}},
	{"reset", func(c net.Conn) { io.CopyN(io.Discard, c, 1); c.(*net.TCPConn).SetLinger(0) }, 1, patience,
		checkup.Observation{Sent: 3, Failure: cause(checkup.StageEcho, "connection reset by peer")}},
}

func TestTCP(t *testing.T) {
	for _, test := range tcpCases {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			bothFamilies(t, func(t *testing.T, family checkup.IPFamily) {
				m := Measurement{
					Pair:    pairOf(checkup.TCP, family, test.size),
					Address: listenTCP(t, family, test.peer),
					Probe:   checkup.Probe{Count: 3, Timeout: test.timeout},
				}
				got := tcp(t.Context(), m, session())
				want := test.want
				want.Pair = m.Pair
				if diff := diffObservations(want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestTCPConnectIsTimedByTheKernel(t *testing.T) {
	bothFamilies(t, func(t *testing.T, family checkup.IPFamily) {
		m := Measurement{
			Pair:    pairOf(checkup.TCP, family, 0),
			Address: listenTCP(t, family, silentPeer),
			Probe:   checkup.Probe{Count: 3, Timeout: patience},
		}
		if got := tcp(t.Context(), m, session()); !got.Kernel {
			t.Errorf("not timed by the kernel: %+v", got)
		}
	})
}

func TestTCPSourcePortsVary(t *testing.T) {
	var mu sync.Mutex
	ports := map[uint16]bool{}
	m := Measurement{
		Pair: pairOf(checkup.TCP, checkup.IPv4, 10),
		Address: listenTCP(t, checkup.IPv4, func(c net.Conn) {
			mu.Lock()
			ports[c.RemoteAddr().(*net.TCPAddr).AddrPort().Port()] = true
			mu.Unlock()
			echoPeer(c)
		}),
		Probe: checkup.Probe{Count: 20, Timeout: patience},
	}
	tcp(t.Context(), m, session())
	mu.Lock()
	defer mu.Unlock()
	if len(ports) != 20 {
		t.Errorf("20 connects came from %d source ports", len(ports))
	}
}

// listenTCP serves every connection with peer until the test ends; without a peer it returns a port on which nothing
// listens.
func listenTCP(t testing.TB, family checkup.IPFamily, peer func(net.Conn)) netip.AddrPort {
	t.Helper()
	if peer == nil {
		ports, release, err := closedPorts(family)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(release)
		return netip.AddrPortFrom(loopback[family], uint16(ports[checkup.TCP]))
	}
	l, err := net.Listen("tcp", anyPort(family))
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				peer(conn)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		serving.Wait()
	})
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func echoPeer(c net.Conn) { io.Copy(c, c) }

// silentPeer reads, sends nothing, and waits until the other end closes.
func silentPeer(c net.Conn) { io.Copy(io.Discard, c) }

// deafPeer reads only one byte until the other end has closed: its host acknowledges until the buffers are full.
func deafPeer(c net.Conn) {
	c.(*net.TCPConn).SetReadBuffer(4 << 10)
	c.Read(make([]byte, 1))
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return
	}
	// A probe that gives up with unread data in flight resets the connection, which is an event on the socket without a
	// read.
	raw.Read(func(fd uintptr) bool {
		soerr, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		return err != nil || soerr != 0
	})
}

// slowPeer echoes one byte at a time.
func slowPeer(c net.Conn) {
	c.(*net.TCPConn).SetNoDelay(true)
	for {
		if _, err := io.CopyN(c, c, 1); err != nil {
			return
		}
	}
}

// zeroes is an endless reader of zeroes.
type zeroes struct{}

func (zeroes) Read(b []byte) (int, error) { clear(b); return len(b), nil }
