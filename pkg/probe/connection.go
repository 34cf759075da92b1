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

// connection makes one connection to a peer, stage by stage, each with its own deadline: name resolution (of a DNS
// name), TCP connect and, with tls, a TLS handshake and, if there is a path, a GET. known is false if ctx ended first.
// The caller sets the start time.
func connection(ctx context.Context, m Measurement, s *Session) (r checkup.Result, known bool) {
	r.Pair = m.Pair
	s.Watch.begin()
	defer s.Watch.end()
	// passed records the result of a stage and reports whether the next stage can start.
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
	if conn != nil {
		defer conn.Close()
	}
	if !passed(step, trouble, &r.Delays.Connect) {
		return r, known
	}
	if m.Peer.Transport != checkup.TLS {
		return r, known
	}
	var secure net.Conn
	step, trouble = within(
		ctx,
		checkup.StageHandshake,
		m.Deadlines.Handshake,
		func(ctx context.Context) (_ time.Duration, err error) {
			secure, err = handshake(ctx, conn, m.Peer, certificate)
			return 0, err
		},
	)
	if !passed(step, trouble, &r.Delays.Handshake) {
		return r, known
	}
	defer secure.Close() // closes properly: the peer logs no error
	if m.Peer.Path == "" {
		return r, known
	}
	step, trouble = within(
		ctx,
		checkup.StageResponse,
		m.Deadlines.Response,
		func(ctx context.Context) (time.Duration, error) {
			return ready(ctx, secure, m.Peer)
		},
	)
	passed(step, trouble, &r.Delays.Response)
	return r, known
}

// isOver reports whether a context has ended or its deadline has passed: operations with its deadline may end before
// it.
func isOver(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// within runs a stage within its deadline. The delay is the one that do returns or, if that is 0, the duration of do.
// An error of the network is recorded in the sample; an error of the local socket is returned.
func within(
	ctx context.Context,
	stage checkup.Stage,
	deadline checkup.Duration,
	do func(context.Context) (time.Duration, error),
) (sample, error) {
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

// resolve resolves the DNS name of a peer with the host's resolv.conf and hosts file. It returns the addresses in the
// order in which they are tried.
func (s *Session) resolve(ctx context.Context, m Measurement) (sample, []netip.AddrPort, error) {
	var addresses []netip.AddrPort
	step, trouble := within(
		ctx,
		checkup.StageResolve,
		m.Deadlines.Resolve,
		func(ctx context.Context) (time.Duration, error) {
			// A new resolver: with a shared one, concurrent lookups of a name would wait for each other.
			var trouble atomic.Pointer[error] // both families are looked up at the same time
			resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				dial := s.dialDNS
				if dial == nil {
					dial = new(net.Dialer).DialContext
				}
				conn, err := dial(ctx, network, address)
				if isLocal(err) {
					trouble.Store(&err) // net.DNSError does not contain it
				}
				return conn, err
			}}
			network := map[checkup.IPFamily]string{
				checkup.AnyIPFamily: "ip", checkup.IPv4: "ip4", checkup.IPv6: "ip6",
			}[m.Pair.Family]
			found, err := resolver.LookupNetIP(ctx, network, m.Peer.Host)
			var dns *net.DNSError
			switch {
			case err != nil && trouble.Load() != nil:
				return 0, *trouble.Load()
			case isTimeout(err) && ctx.Err() == nil:
				return 0, errors.New("no DNS server answered")
			case errors.As(err, &dns) && !isTimeout(err):
				// The outer error names ports, which differ each time.
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
		},
	)
	return step, addresses, trouble
}

// ready sends a GET for the peer's path.
func ready(ctx context.Context, conn net.Conn, p *checkup.Peer) (time.Duration, error) {
	request, err := newRequest(ctx, urlOf(p))
	if err != nil {
		return 0, err
	}
	delay, _, err := get(conn, request, 0)
	switch {
	case err != nil && isTimeout(err) && delay == 0:
		return 0, silentInResponse
	case err != nil && isTimeout(err):
		return 0, slowInResponse
	}
	return delay, err
}

// urlOf returns the URL of the GET. Its scheme is http, because the connection already has TLS.
func urlOf(p *checkup.Peer) string {
	return "http://" + net.JoinHostPort(serverName(p), strconv.Itoa(p.Port)) + p.Path
}
