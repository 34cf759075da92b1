// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// attemptDelay is how long an address may take before the next one is also tried (RFC 8305, section 5: Connection
// Attempt Delay).
const attemptDelay = 250 * time.Millisecond

// connect connects to the address that answers first, from a new source port. The sample's delay is that of the
// returned connection, not of other attempts. Without a connection, the sample has a cause, or the error is one of the
// local socket.
func connect(ctx context.Context, addresses []netip.AddrPort, timeout time.Duration) (sample, *net.TCPConn, error) {
	return connectBy(ctx, addresses, timeout, dial)
}

// connectFrom is connect to the address of a measurement, from its source port if it demands one. It records the source
// port in the sample.
func connectFrom(ctx context.Context, m Measurement) (sample, *net.TCPConn, error) {
	from := 0
	if len(m.Ports) > 0 {
		from = m.Ports[0]
	}
	port := 0
	dial := func(ctx context.Context, address netip.AddrPort) (conn *net.TCPConn, err error) {
		conn, port, err = dialFrom(ctx, from, address)
		return conn, err
	}
	s, conn, err := connectBy(ctx, []netip.AddrPort{m.Address}, time.Duration(m.Probe.Timeout), dial)
	s.port = port
	if conn != nil {
		s.own = addressOf(conn.LocalAddr())
	}
	return s, conn, err
}

// connectBy is connect with a function that connects to one address.
func connectBy(
	ctx context.Context,
	addresses []netip.AddrPort,
	timeout time.Duration,
	dial func(context.Context, netip.AddrPort) (*net.TCPConn, error),
) (sample, *net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s := sample{start: time.Now()}
	a := race(ctx, addresses, dial)
	s.end = time.Now()
	switch {
	case isLocal(a.err):
		return s, nil, localTrouble(a.err)
	case a.err != nil:
		s.fail(checkup.StageConnect, a.err, timeout)
		s.cause.Reason = reasonOf(a.err)
		return s, nil, nil
	}
	s.rtt = a.took
	if rtt := synDelay(a.conn); rtt > 0 {
		s.rtt, s.kernel = rtt, true
	}
	return s, a.conn, nil
}

// attempt is the result of connecting to one address.
type attempt struct {
	conn *net.TCPConn
	took time.Duration
	err  error
}

// race tries addresses in order until one connects. It tries the next address as soon as one failed, or attemptDelay
// after the start of the attempt before (RFC 8305, section 5). It returns the first connection, or the error.
func race(
	ctx context.Context,
	addresses []netip.AddrPort,
	dial func(context.Context, netip.AddrPort) (*net.TCPConn, error),
) attempt {
	ctx, cancel := context.WithCancel(ctx)
	attempts := make(chan attempt)
	running := 0
	defer func() {
		cancel()
		for ; running > 0; running-- {
			if late := <-attempts; late.err == nil {
				late.conn.Close()
			}
		}
	}()
	var errs []error
	next := time.NewTimer(0)
	defer next.Stop()
	for len(errs) < len(addresses) {
		begin := next.C
		if len(errs)+running == len(addresses) {
			begin = nil
		}
		select {
		case <-begin:
			address := addresses[len(errs)+running]
			running++
			next.Reset(attemptDelay)
			go func() {
				start := time.Now()
				conn, err := dial(ctx, address)
				attempts <- attempt{conn, time.Since(start), err}
			}()
		case a := <-attempts:
			running--
			if a.err == nil {
				return a
			}
			errs = append(errs, a.err)
			next.Reset(0)
		}
	}
	return attempt{err: whyNone(errs)}
}

// whyNone combines the errors of several addresses. Local errors have priority over errors of the network, except that
// this host lacks the family of some addresses, if others remain.
func whyNone(errs []error) error {
	var reported []error
	for _, err := range errs {
		lacksFamily := errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.EADDRNOTAVAIL)
		switch {
		case lacksFamily:
		case isLocal(err):
			return err
		default:
			reported = append(reported, err)
		}
	}
	switch len(reported) {
	case 0:
		return errs[0]
	case 1:
		return reported[0]
	}
	return errors.Join(reported...)
}

// dial connects to an address.
func dial(ctx context.Context, address netip.AddrPort) (*net.TCPConn, error) {
	d := net.Dialer{KeepAlive: -1}
	conn, err := d.DialContext(ctx, "tcp", address.String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// dialFrom is dial from a source port, or from any if it is 0. It also returns the port that it used, 0 if that is
// unknown: the kernel forgets the port of a connection that was refused.
func dialFrom(ctx context.Context, from int, address netip.AddrPort) (*net.TCPConn, int, error) {
	kept := -1 // a duplicate of the socket, which net closes if the connect fails
	defer func() {
		if kept >= 0 {
			unix.Close(kept)
		}
	}()
	d := net.Dialer{KeepAlive: -1, Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) {
			if kept >= 0 {
				unix.Close(kept)
			}
			kept, _ = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
			// Without it on both sockets, a demanded port must not be that of another connection, whatever its target.
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		})
	}}
	if from != 0 {
		d.LocalAddr = &net.TCPAddr{Port: from}
	}
	conn, err := d.DialContext(ctx, "tcp", address.String())
	port := from
	if kept >= 0 && from == 0 {
		port = int(nameOf(kept).Port())
	}
	if err != nil {
		return nil, port, err
	}
	tcp := conn.(*net.TCPConn)
	if from != 0 {
		// Closed by a reset: otherwise the next connection from this port would have to wait for a minute, in TIME-WAIT.
		_ = tcp.SetLinger(0)
	}
	return tcp, port, nil
}

// synDelay returns the time from SYN to SYN-ACK as measured by the kernel. It returns 0 if that is unknown or if the
// SYN was sent again: the duration of the connect is then more accurate.
func synDelay(conn *net.TCPConn) time.Duration {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	var info *unix.TCPInfo
	if err := raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), syscall.IPPROTO_TCP, unix.TCP_INFO)
	}); err != nil || info == nil || info.Total_retrans > 0 {
		return 0
	}
	return time.Duration(info.Rtt) * time.Microsecond
}

// alternate sorts the addresses of a name, in the resolver's order (RFC 6724), into the order in which they are tried:
// alternating families (RFC 8305, section 4).
func alternate(addresses []netip.Addr) []netip.Addr {
	var first, other []netip.Addr
	for _, a := range addresses {
		if a = a.Unmap(); a.Is4() == addresses[0].Unmap().Is4() {
			first = append(first, a)
		} else {
			other = append(other, a)
		}
	}
	var sorted []netip.Addr
	for len(first) > 0 || len(other) > 0 {
		if len(first) > 0 {
			sorted, first = append(sorted, first[0]), first[1:]
		}
		if len(other) > 0 {
			sorted, other = append(sorted, other[0]), other[1:]
		}
	}
	return sorted
}
