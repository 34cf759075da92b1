// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/checkplan/checkplan/pkg/checkup"
)

const (
	// controlTarget is the target of control pairs, which are not in the worksheet.
	controlTarget = -1
	// controlCount and controlTimeout apply to control pairs instead of the order's values: on loopback nothing is
	// lost, and only a slow agent causes delays.
	controlCount    = 3
	controlInterval = time.Millisecond
	controlTimeout  = 2 * time.Second
)

// loopback addresses, for control pairs.
var loopback = map[checkup.IPFamily]netip.Addr{
	checkup.IPv4: netip.AddrFrom4([4]byte{127, 0, 0, 1}),
	checkup.IPv6: netip.IPv6Loopback(),
}

// control measures control pairs with the prober functions of the order's
// transports.
type control struct {
	order   checkup.Order
	session *Session
	funcs   map[checkup.Transport]Func
}

// pod measures and reports the control pairs of a pod, unless outer ends.
func (c control) pod(ctx, outer context.Context, lines *lineWriter) error {
	for _, f := range c.order.IPFamilies {
		for _, measure := range []func(context.Context, checkup.IPFamily) checkup.Control{c.self, c.closed} {
			reported := measure(ctx, f)
			if outer.Err() != nil {
				return nil
			}
			if err := lines.write(checkup.Message{Control: &reported}); err != nil {
				return err
			}
		}
	}
	return nil
}

// vm measures and reports the control pairs of a VM, all at the same time, unless outer ends. A VM has no responder:
// its own address must answer, and an unused address must not. If the unused address answers, something else answers
// for every address.
func (c control) vm(ctx, outer context.Context, lines *lineWriter) error {
	var all []func()
	controls := make([]checkup.Control, 2*len(c.order.IPFamilies))
	for i, f := range c.order.IPFamilies {
		all = append(all, func() {
			controls[2*i] = c.address(ctx, f, "self", c.order.Own[f], func(o checkup.Observation) bool {
				return o.Received > 0 && o.Received == o.Sent
			})
		}, func() {
			controls[2*i+1] = c.address(ctx, f, "closed", c.order.Unused[f], func(o checkup.Observation) bool {
				return o.Received == 0
			})
		})
	}
	var g sync.WaitGroup
	for _, measure := range all {
		g.Go(measure)
	}
	g.Wait()
	for _, reported := range controls {
		if outer.Err() != nil {
			return nil
		}
		if err := lines.write(checkup.Message{Control: &reported}); err != nil {
			return err
		}
	}
	return nil
}

// address measures an address by icmp.
func (c control) address(
	ctx context.Context,
	family checkup.IPFamily,
	name, address string,
	right func(checkup.Observation) bool,
) checkup.Control {
	result := checkup.Control{Family: family, Name: name}
	addr, err := netip.ParseAddr(address)
	if err != nil {
		result.Message = fmt.Sprintf("no address: %v", err)
		return result
	}
	o := c.funcs[checkup.ICMP](ctx, Measurement{
		Pair: checkup.Pair{
			Source:    c.order.Source,
			Target:    controlTarget,
			Family:    family,
			Transport: checkup.ICMP,
			Size:      checkup.VMEchoSize,
		},
		Address: netip.AddrPortFrom(addr, 0),
		Probe: checkup.Probe{
			Count:    controlCount,
			Interval: checkup.Duration(controlInterval),
			Timeout:  checkup.Duration(controlTimeout),
		},
	}, c.session)
	result.OK = o.Unmeasured == nil && right(o)
	result.Message = fmt.Sprintf("%s: %s", addr, seen(o))
	return result
}

// self measures a responder of this agent, which must answer every request.
func (c control) self(ctx context.Context, family checkup.IPFamily) checkup.Control {
	result := checkup.Control{Family: family, Name: "self"}
	address := netip.AddrPortFrom(loopback[family], 0).String()
	responder, err := Listen(ctx, address, address, "")
	if err != nil {
		result.Message = fmt.Sprintf("cannot start the agent's own responder: %v", err)
		return result
	}
	ports := responder.Ports()
	serving, stop := context.WithCancel(ctx)
	defer stop()
	served, serving := errgroup.WithContext(serving)
	served.Go(func() error { return responder.Serve(serving, io.Discard, nil) })
	if c.uses(checkup.TLS) {
		l, err := listenTLS(serving, address)
		if err == nil {
			ports[checkup.TLS] = l.Addr().(*net.TCPAddr).Port
			served.Go(func() error { return unlessEnded(serving, serveHTTP(serving, l)) })
		} else {
			served.Go(func() error { return err })
		}
	}
	if c.uses(checkup.DNSUDP) || c.uses(checkup.DNSTCP) {
		server, err := listenDNS(serving, address)
		if err == nil {
			maps.Copy(ports, server.ports())
			served.Go(func() error { server.serve(serving); return nil })
		} else {
			served.Go(func() error { return err })
		}
	}
	result.OK, result.Message = c.measure(
		ctx,
		family,
		ports,
		checkup.Transports,
		"answered",
		func(o checkup.Observation) bool {
			return o.Unmeasured == nil && o.Received > 0 && o.Received == o.Sent
		},
	)
	stop()
	if err := served.Wait(); err != nil {
		result.OK, result.Message = false, fmt.Sprintf("the agent's own responder: %v", err)
	}
	return result
}

// closed measures ports that are certainly closed, which must refuse every request: an agent that gets an answer from
// everything would find no fault.
func (c control) closed(ctx context.Context, family checkup.IPFamily) checkup.Control {
	result := checkup.Control{Family: family, Name: "closed"}
	ports, release, err := closedPorts(family)
	if err != nil {
		result.Message = fmt.Sprintf("no closed port: %v", err)
		return result
	}
	defer release()
	result.OK, result.Message = c.measure(
		ctx,
		family,
		ports,
		[]checkup.Transport{checkup.TCP, checkup.UDP, checkup.HTTP, checkup.TLS, checkup.DNSUDP, checkup.DNSTCP},
		"refused",
		func(o checkup.Observation) bool {
			return o.Unmeasured == nil && o.Received == 0 && o.Failure != nil &&
				o.Failure.Stage == checkup.StageConnect && o.Failure.Reason == checkup.ReasonRefused
		},
	)
	return result
}

// measure measures each transport of the order, and always tcp. It reports whether all results are right, and describes
// them.
func (c control) measure(
	ctx context.Context,
	family checkup.IPFamily,
	ports map[checkup.Transport]int,
	transports []checkup.Transport,
	outcome string,
	right func(checkup.Observation) bool,
) (bool, string) {
	var good, bad, open []string
	for _, t := range transports {
		if !c.uses(t) {
			continue
		}
		size := 0
		for _, p := range c.order.Probes {
			if p.Transport == t && len(p.Sizes) > 0 {
				size = p.Sizes[0]
			}
		}
		m := Measurement{
			Pair:    checkup.Pair{Source: c.order.Source, Target: controlTarget, Family: family, Transport: t, Size: size},
			Address: netip.AddrPortFrom(loopback[family], uint16(ports[t])),
			Probe: checkup.Probe{Count: controlCount, Interval: checkup.Duration(controlInterval),
				Timeout: checkup.Duration(controlTimeout), Path: "/healthz"},
		}
		switch t {
		case checkup.DNSUDP, checkup.DNSTCP:
			m.Peer = &checkup.Peer{Question: &controlQuestion}
		case checkup.TLS:
			m.Peer = &checkup.Peer{
				Host:      loopback[family].String(),
				Port:      ports[t],
				Family:    family,
				Transport: t,
				Path:      m.Probe.Path,
			}
			m.Deadlines = checkup.StageDeadlines{Connect: m.Probe.Timeout, Handshake: m.Probe.Timeout, Response: m.Probe.Timeout}
		}
		o := c.funcs[t](ctx, m, c.session)
		switch {
		case right(o):
			good = append(good, string(t))
		case o.Unmeasured != nil && o.Unmeasured.Stage == checkup.StageSocket && t == checkup.ICMP:
			// Ping sockets are forbidden here: icmp pairs will be unmeasured. The other transports are not affected.
			open = append(open, fmt.Sprintf("%s not checked: %s", t, o.Unmeasured.Message))
		default:
			bad = append(bad, fmt.Sprintf("%s: %s", t, seen(o)))
		}
	}
	var said []string
	if len(good) > 0 {
		said = append(said, strings.Join(good, ", ")+" "+outcome)
	}
	return len(bad) == 0, strings.Join(append(append(said, bad...), open...), "; ")
}

// uses reports whether the order uses a transport; tcp is always used.
func (c control) uses(t checkup.Transport) bool {
	return t == checkup.TCP ||
		slices.ContainsFunc(
			c.order.Probes,
			func(p checkup.TransportProbe) bool { return p.Transport == t && len(p.Sizes) > 0 },
		)
}

// seen describes an observation in a few words.
func seen(o checkup.Observation) string {
	switch {
	case o.Unmeasured != nil:
		return o.Unmeasured.String()
	case o.Failure != nil:
		return fmt.Sprintf("%d of %d answered, %s", o.Received, o.Sent, o.Failure)
	}
	return fmt.Sprintf("%d of %d answered", o.Received, o.Sent)
}

// closedPorts reserves a TCP and a UDP port of the loopback on which nothing answers, until release: a TCP socket that
// does not listen, and a UDP socket connected to itself, which accepts no other packets.
func closedPorts(family checkup.IPFamily) (ports map[checkup.Transport]int, release func(), err error) {
	var fds []int
	release = func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	ports = map[checkup.Transport]int{}
	for t, kind := range map[checkup.Transport]int{checkup.TCP: unix.SOCK_STREAM, checkup.UDP: unix.SOCK_DGRAM} {
		domain, address := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Addr: loopback[checkup.IPv4].As4()})
		if family == checkup.IPv6 {
			domain, address = unix.AF_INET6, &unix.SockaddrInet6{Addr: loopback[checkup.IPv6].As16()}
		}
		fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, nil, err
		}
		fds = append(fds, fd)
		if err := unix.Bind(fd, address); err != nil {
			return nil, nil, err
		}
		name, err := unix.Getsockname(fd)
		if err != nil {
			return nil, nil, err
		}
		switch name := name.(type) {
		case *unix.SockaddrInet4:
			ports[t] = name.Port
		case *unix.SockaddrInet6:
			ports[t] = name.Port
		default:
			return nil, nil, errors.New("the socket has no address")
		}
		if kind == unix.SOCK_DGRAM {
			if err := unix.Connect(fd, name); err != nil {
				return nil, nil, err
			}
		}
	}
	ports[checkup.HTTP], ports[checkup.TLS] = ports[checkup.TCP], ports[checkup.TCP]
	ports[checkup.DNSUDP], ports[checkup.DNSTCP] = ports[checkup.UDP], ports[checkup.TCP]
	return ports, release, nil
}
