// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"syscall"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// acrossTurn measures a pair when the endpoints of its Service have changed: when new connections are answered by
// another responder than the first one that answered, or m.Turn is over since reported was closed: since the agent has
// reported a pair, because the turn is not made before agents did. If ctx ends first, the pair is unmeasured. What is
// measured then is new connections, too, but with m.Keep, udp is measured from one source port that was used from the
// start, which has checkup.FollowTime to lead to another responder, too: whether the node's kernel still leads it to
// where it led before is what this shows. begun is called when the pair was tried once.
func acrossTurn(
	ctx context.Context, m Measurement, s *Session, measure Func, begun func(), reported <-chan struct{},
) checkup.Observation {
	var end time.Time // zero until it is known
	if m.Pair.Transport == checkup.UDP {
		m.Avoid = map[int]bool{} // new TCP connections are always new to the kernel
	}
	fresh := m
	fresh.Probe.Count = 1
	kept := fresh
	if port := newPort(m); port > 0 {
		kept.Ports = []int{port}
	}
	keep := m.Keep && len(kept.Ports) > 0
	first := answererOf(measure(ctx, kept, s))
	begun()
	turned := false
	for ctx.Err() == nil && (end.IsZero() || time.Now().Before(end)) {
		next := time.Now().Add(settleInterval)
		select {
		case <-reported:
			if end.IsZero() {
				end = time.Now().Add(m.Turn)
			}
		default:
		}
		now := answererOf(measure(ctx, fresh, s))
		switch {
		case first == "":
			first = now
		case !turned && now != "" && now != first:
			// A service proxy writes its rules first, and then deletes what the kernel remembers of old connections.
			turned, end = true, time.Now().Add(time.Duration(checkup.FollowTime))
		}
		follows := !keep
		if keep { // in any case, so that the kernel does not forget it
			now = answererOf(measure(ctx, kept, s))
			follows = now != "" && now != first
		}
		if turned && follows {
			break
		}
		_ = sleepUntil(ctx, next) // the loop looks at ctx
	}
	if ctx.Err() != nil {
		return cutShort(m)
	}
	if keep {
		m.Ports = kept.Ports
	}
	o := measure(ctx, m, s)
	o.Unturned = !turned
	return o
}

// afterIdle measures a pair, and then checkup.IdleTries times once more, each after a time without a connection, as
// long as ctx lasts.
func afterIdle(ctx context.Context, m Measurement, s *Session, measure Func) checkup.Observation {
	o := measure(ctx, m, s)
	once := m
	once.Probe.Count = 1
	for range checkup.IdleTries {
		if o.Unmeasured != nil || sleepUntil(ctx, time.Now().Add(m.Idle)) != nil {
			break
		}
		if by := answererOf(measure(ctx, once, s)); by != "" {
			o.Later = append(o.Later, by)
		}
	}
	return o
}

// answererOf is the address of the responder that answered all of a pair; empty if none did, or several.
func answererOf(o checkup.Observation) string {
	if len(o.Answerers) != 1 {
		return ""
	}
	return o.Answerers[0].Address
}

// newPort returns a source port of datagrams to the measurement's target that is not among those to avoid, and adds it
// to them. It returns 0, and the kernel then chooses, if there are none to avoid, or on an error, which measuring
// meets, too.
func newPort(m Measurement) int {
	if m.Avoid == nil {
		return 0
	}
	sock, err := openFresh(m, 1)
	if err != nil {
		return 0
	}
	defer sock.close()
	return int(sock.name().Port())
}

// openFresh opens a socket of datagrams to the measurement's target. Its source port, which the kernel chooses, is not
// among those to avoid, and is added to them: the kernel of the node may remember for half a minute where a used one
// led. It is not chosen before it is opened, because another process of the node may take it in between.
func openFresh(m Measurement, buffer int) (*socket, error) {
	for range 100 {
		sock, err := openSocket(m.Address, 0, syscall.IPPROTO_UDP, buffer)
		if err != nil {
			return nil, err
		}
		port := int(sock.name().Port())
		if !m.Avoid[port] {
			m.Avoid[port] = true
			return sock, nil
		}
		sock.close()
	}
	return nil, syscall.EADDRINUSE
}
