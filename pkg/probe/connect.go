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

// attemptDelay is how long an address may take before the next is tried beside
// it (RFC 8305, section 5: Connection Attempt Delay).
const attemptDelay = 250 * time.Millisecond

// connect connects to whichever of the addresses answers first, from a source
// port of its own, and tells how that went. The delay is that of the connection
// that is returned, whatever was tried beside it. Without a connection the sample
// has a cause, or the error tells of trouble with the local socket.
func connect(ctx context.Context, addresses []netip.AddrPort, timeout time.Duration) (sample, *net.TCPConn, error) {
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
		return s, nil, nil
	}
	s.rtt = a.took
	if rtt := synDelay(a.conn); rtt > 0 {
		s.rtt, s.kernel = rtt, true
	}
	return s, a.conn, nil
}

// attempt is what became of one address.
type attempt struct {
	conn *net.TCPConn
	took time.Duration
	err  error
}

// race tries addresses in their order until one connects: the next as soon as one
// failed, or attemptDelay after the one before it was begun (RFC 8305, section
// 5). It returns the first that connected, or why none did.
func race(ctx context.Context, addresses []netip.AddrPort, dial func(context.Context, netip.AddrPort) (*net.TCPConn, error)) attempt {
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

// whyNone is the error of which several addresses tell. Trouble of this host
// counts above what the network says; only that it lacks the family of some
// addresses is no trouble while there are others.
func whyNone(errs []error) error {
	var told []error
	for _, err := range errs {
		lacksFamily := errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.EADDRNOTAVAIL)
		switch {
		case lacksFamily:
		case isLocal(err):
			return err
		default:
			told = append(told, err)
		}
	}
	switch len(told) {
	case 0:
		return errs[0]
	case 1:
		return told[0]
	}
	return errors.Join(told...)
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

// synDelay is the time from SYN to SYN-ACK as the kernel measured it, or 0 if it
// does not tell or the SYN had to be sent again: then the time that the connect
// took says more.
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

// alternate puts the addresses of a name, as the resolver sorted them (RFC 6724),
// into the order in which they are tried: the families by turns (RFC 8305,
// section 4).
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
