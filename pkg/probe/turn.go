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
	var end time.Time     // zero until it is known
	var used map[int]bool // source ports; nil for TCP, for which new connections are new to the kernel, too
	if m.Pair.Transport == checkup.UDP {
		used = map[int]bool{}
	}
	fresh := m
	fresh.Probe.Count = 1
	kept := fresh
	kept.Ports = newPorts(m, used, 1)
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
		fresh.Ports = newPorts(m, used, 1)
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
	if m.Ports = kept.Ports; !keep {
		m.Ports = newPorts(m, used, m.Probe.Count)
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

// answererOf is the address of the responder that answered all of a pair; empty if that were none or several.
func answererOf(o checkup.Observation) string {
	if len(o.Answerers) != 1 {
		return ""
	}
	return o.Answerers[0].Address
}

// newPorts returns n source ports of datagrams to the measurement's target that are not among the used ones, and adds
// them: the kernel of the node may remember for half a minute where a used one led. It returns nil, and the kernel then
// chooses, if used is nil, or on an error, which measuring meets, too.
func newPorts(m Measurement, used map[int]bool, n int) []int {
	if used == nil {
		return nil
	}
	var ports []int
	for tries := 0; len(ports) < n; tries++ {
		if tries == 100*n {
			return nil
		}
		sock, err := openSocket(m.Address, 0, syscall.IPPROTO_UDP, 1)
		if err != nil {
			return nil
		}
		port := 0
		_ = sock.raw.Control(func(fd uintptr) { port = int(nameOf(int(fd)).Port()) }) // fails only when closed
		sock.close()
		if !used[port] {
			used[port], ports = true, append(ports, port)
		}
	}
	return ports
}
