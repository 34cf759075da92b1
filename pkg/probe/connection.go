// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// connection makes one connection to a peer, stage by stage, each within its own
// deadline: name resolution (of a DNS name), TCP connect and, of tls, a TLS
// handshake and, where there is a path, a GET. It is not known how it goes if ctx
// ends first. When it began is for the caller to say.
func connection(ctx context.Context, m Measurement, s *Session) (r checkup.Result, known bool) {
	r.Pair = m.Pair
	// passed notes how a stage went, and reports whether the next may begin.
	passed := func(step sample, trouble error, delay *int64) bool {
		_, spoiled := s.Watch.spoils(step)
		switch {
		case trouble != nil:
			r.Unmeasured = &checkup.Cause{Stage: checkup.StageSocket, Message: trouble.Error()}
		case spoiled && (step.cause != nil || delay == &r.Delays.Connect):
			r.Unmeasured = &checkup.Cause{Stage: checkup.StageSelf, Message: "the agent was held up while it waited"}
		case step.cause != nil:
			r.Failure = step.cause
		case !spoiled:
			*delay = max(step.rtt.Microseconds(), 1)
		}
		good := trouble == nil && step.cause == nil
		known = good || !isOver(ctx)
		return good && r.Unmeasured == nil
	}

	certificate, err := s.certificates.of(m.Peer.ClientCertificate)
	if err != nil {
		r.Unmeasured = &checkup.Cause{Stage: checkup.StageSetup, Message: err.Error()}
		return r, true
	}
	var addresses []netip.AddrPort
	if address, err := netip.ParseAddr(m.Peer.Host); err == nil {
		addresses = []netip.AddrPort{netip.AddrPortFrom(address.Unmap(), uint16(m.Peer.Port))}
	} else {
		step, found, trouble := s.resolve(ctx, m)
		if !passed(step, trouble, &r.Delays.Resolve) {
			return r, known
		}
		addresses = found
	}
	step, conn, trouble := connect(ctx, addresses, time.Duration(m.Deadlines.Connect))
	if !passed(step, trouble, &r.Delays.Connect) {
		return r, known
	}
	defer conn.Close()
	if m.Peer.Transport != checkup.TLS {
		return r, known
	}
	var secure net.Conn
	step, trouble = within(ctx, checkup.StageHandshake, m.Deadlines.Handshake, func(ctx context.Context) (_ time.Duration, err error) {
		secure, err = handshake(ctx, conn, m.Peer, certificate)
		return 0, err
	})
	if !passed(step, trouble, &r.Delays.Handshake) {
		return r, known
	}
	defer secure.Close() // takes leave, so that the peer has nothing to log
	if m.Peer.Path == "" {
		return r, known
	}
	step, trouble = within(ctx, checkup.StageResponse, m.Deadlines.Response, func(ctx context.Context) (time.Duration, error) {
		return ready(ctx, secure, m.Peer)
	})
	passed(step, trouble, &r.Delays.Response)
	return r, known
}

// isOver reports whether a context has ended, or should have: what inherits its
// deadline may notice that first.
func isOver(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// within does what a stage is, within its deadline. The delay is what do says,
// or, if that is 0, the time that it took. Its error may be of the network or, and
// then it is returned, of the local socket.
func within(ctx context.Context, stage checkup.Stage, deadline checkup.Duration, do func(context.Context) (time.Duration, error)) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(deadline))
	defer cancel()
	s := sample{start: time.Now()}
	var err error
	s.rtt, err = do(ctx)
	s.end = time.Now()
	if s.rtt == 0 {
		s.rtt = s.end.Sub(s.start)
	}
	switch {
	case isLocal(err):
		return s, localTrouble(err)
	case err != nil:
		s.fail(stage, err, time.Duration(deadline))
	}
	return s, nil
}

// resolve finds the addresses of a peer with a DNS name, by the host's own
// resolv.conf and hosts file, in the order in which they are to be tried.
func (s *Session) resolve(ctx context.Context, m Measurement) (sample, []netip.AddrPort, error) {
	var addresses []netip.AddrPort
	step, trouble := within(ctx, checkup.StageResolve, m.Deadlines.Resolve, func(ctx context.Context) (time.Duration, error) {
		// A resolver of its own: a shared one would let lookups of a name that are
		// made at once wait for each other.
		var trouble atomic.Pointer[error] // both families are asked at once
		resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			dial := s.dialDNS
			if dial == nil {
				dial = new(net.Dialer).DialContext
			}
			conn, err := dial(ctx, network, address)
			if isLocal(err) {
				trouble.Store(&err) // net.DNSError does not say
			}
			return conn, err
		}}
		network := map[checkup.IPFamily]string{checkup.AnyIPFamily: "ip", checkup.IPv4: "ip4", checkup.IPv6: "ip6"}[m.Pair.Family]
		found, err := resolver.LookupNetIP(ctx, network, m.Peer.Host)
		var dns *net.DNSError
		switch {
		case err != nil && trouble.Load() != nil:
			return 0, *trouble.Load()
		case isTimeout(err) && ctx.Err() == nil:
			return 0, errors.New("no DNS server answered")
		case errors.As(err, &dns) && !isTimeout(err):
			// What the error is wrapped in names ports, and differs each time.
			said, cause := dns.Err, strings.LastIndex(dns.Err, ": ")
			if cause >= 0 {
				said = "the DNS server: " + said[cause+2:]
			}
			return 0, errors.New(said)
		}
		for _, address := range alternate(found) {
			addresses = append(addresses, netip.AddrPortFrom(address, uint16(m.Peer.Port)))
		}
		if err == nil && len(addresses) == 0 {
			err = errors.New("no such host")
		}
		return 0, err
	})
	return step, addresses, trouble
}

// ready asks a peer for its path.
func ready(ctx context.Context, conn net.Conn, p *checkup.Peer) (time.Duration, error) {
	request, err := newRequest(ctx, urlOf(p))
	if err != nil {
		return 0, err
	}
	delay, err := get(conn, request, 0)
	switch {
	case err != nil && isTimeout(err) && delay == 0:
		return 0, silentInResponse
	case err != nil && isTimeout(err):
		return 0, slowInResponse
	}
	return delay, err
}

// urlOf is what a peer is asked for. It says http, as the connection that it is
// asked over has its TLS already.
func urlOf(p *checkup.Peer) string {
	return "http://" + net.JoinHostPort(serverName(p), strconv.Itoa(p.Port)) + p.Path
}
