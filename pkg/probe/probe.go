// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Func measures one pair. It returns when every measurement is answered, failed
// or timed out, and those that were spoiled are repeated, or when ctx ends. A
// pair cut short by ctx is unmeasured, unless all that is missing are repeats.
type Func func(ctx context.Context, m Measurement, s *Session) checkup.Observation

// Funcs holds the prober function of every transport.
var Funcs = map[checkup.Transport]Func{
	checkup.TCP:  tcp,
	checkup.UDP:  udp,
	checkup.ICMP: icmp,
	checkup.HTTP: http,
	checkup.TLS:  tls,
}

// Measurement is one pair, where its target is, and how to measure it.
type Measurement struct {
	Pair checkup.Pair
	// Address of the target; its port means nothing to icmp.
	Address netip.AddrPort
	// Probe gives count, interval, timeout and path. Its Sizes mean nothing: the
	// size is Pair.Size.
	Probe checkup.Probe
	// Peer is spoken to instead of Address, within Deadlines instead of the probe's
	// timeout; nil where the target is a Responder or a pod.
	Peer      *checkup.Peer
	Deadlines checkup.StageDeadlines
}

// Session is what the measurements of one agent share.
type Session struct {
	// Nonce marks the agent's packets, so that answers to others are not taken
	// for answers to it.
	Nonce uint64
	// Limiter bounds the measurements started per second; nil means no bound.
	Limiter *rate.Limiter
	// Watch knows when the agent was held up; nil means never.
	Watch *Watch
	// certificates with which peers are spoken to; nil means that there are none.
	certificates *certificates
	// dialDNS connects to a DNS server; nil means to the one that is asked for.
	dialDNS func(ctx context.Context, network, address string) (net.Conn, error)
}

// maxOutstanding is how many tcp or http measurements of one pair may be under
// way at once; it bounds the agent's open files.
const maxOutstanding = 32

// sample is one measurement.
type sample struct {
	start, end time.Time
	// rtt is the round-trip delay, if cause is nil.
	rtt time.Duration
	// kernel says that the kernel timed both ends of rtt, and that no process's time
	// is in it.
	kernel bool
	// cause of there being no answer; nil if there was one.
	cause *checkup.Cause
	// timedOut says that the cause is that nothing came in time.
	timedOut bool
	// noRoom says that the agent's own socket dropped packets, of which the answer
	// may be one.
	noRoom bool
	// spoiled says that the sample is not believed: because of that, or because the
	// agent was held up for so long.
	spoiled bool
	held    time.Duration
}

// maxTries bounds the measurements of a pair of which some are spoiled, as a
// multiple of its count: what an agent is held up in again and again it cannot
// measure, and trying on would take the time of its other pairs.
const maxTries = 5

// repeatPause is how long to wait before spoiled measurements are repeated: the
// period of CPU bandwidth control unless cpu.max says otherwise (100 ms; the
// kernel's cgroup-v2.rst), so that an agent that was throttled is in a new one.
const repeatPause = 100 * time.Millisecond

// repeat makes measurements by calls of round until Probe.Count of them are not
// spoiled: all of them first, then as many as are missing, up to maxTries times
// the count in all. When ctx ends in between, what was made before it counts.
// round makes n measurements, and returns errCutShort if it did not come to
// their end, or trouble with the local socket.
func repeat(ctx context.Context, m Measurement, w *Watch, round func(n int) ([]sample, error)) checkup.Observation {
	var samples []sample
	for missing := m.Probe.Count; missing > 0 && len(samples) < maxTries*m.Probe.Count; {
		if len(samples) > 0 && sleepUntil(ctx, time.Now().Add(repeatPause)) != nil {
			break
		}
		more, err := round(min(missing, maxTries*m.Probe.Count-len(samples)))
		if ctx.Err() != nil || errors.Is(err, errCutShort) {
			if len(samples) == 0 {
				return cutShort(m)
			}
			break
		}
		if err != nil {
			return unmeasured(m, checkup.StageSocket, localTrouble(err).Error())
		}
		missing -= w.believe(more)
		samples = append(samples, more...)
	}
	return tally(m, samples)
}

// errCutShort says that a round ended before its measurements.
var errCutShort = errors.New("cut short")

// series makes the measurements of a tcp or http pair, each by a call of one,
// which returns an error only for trouble with the local socket.
func series(ctx context.Context, m Measurement, s *Session, one func(context.Context, Measurement) (sample, error)) checkup.Observation {
	return repeat(ctx, m, s.Watch, func(n int) ([]sample, error) {
		samples := make([]sample, n)
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(maxOutstanding)
		next := time.Now()
		for i := range samples {
			if err := pace(gctx, next, s.Limiter); err != nil {
				if err := g.Wait(); err != nil {
					return nil, err
				}
				return nil, errCutShort
			}
			next = time.Now().Add(time.Duration(m.Probe.Interval))
			g.Go(func() error {
				var err error
				samples[i], err = one(gctx, m)
				return err
			})
		}
		return samples, g.Wait()
	})
}

// pace waits for the time next, and then for the limiter.
func pace(ctx context.Context, next time.Time, limiter *rate.Limiter) error {
	if err := sleepUntil(ctx, next); err != nil || limiter == nil {
		return err
	}
	return limiter.Wait(ctx)
}

// sleepUntil waits for the time t, or for the end of ctx, whose error it returns.
func sleepUntil(ctx context.Context, t time.Time) error {
	d := time.Until(t)
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tally makes an observation of the samples of a pair, in the order in which
// they were sent. Of several failures it tells the last that the network
// explained, else the last: hosts limit the rate of their ICMP errors, so that
// of a rejected pair most packets seem to be lost without a word.
func tally(m Measurement, samples []sample) checkup.Observation {
	o := checkup.Observation{Pair: m.Pair, Kernel: true}
	var longest time.Duration
	unexplained := false // o.Failure is a timeout
	for _, s := range samples {
		if s.spoiled {
			o.Spoiled++
			longest = max(longest, s.held)
			continue
		}
		o.Sent++
		if s.cause != nil {
			if o.Failure == nil || unexplained || !s.timedOut {
				o.Failure, unexplained = s.cause, s.timedOut
			}
			continue
		}
		o.Received++
		o.RTTs = append(o.RTTs, s.rtt.Microseconds())
		o.Kernel = o.Kernel && s.kernel
	}
	o.Kernel = o.Kernel && o.Received > 0
	switch {
	case o.Sent > 0:
	case longest > 0:
		o.Unmeasured = &checkup.Cause{Stage: checkup.StageSelf, Message: fmt.Sprintf(
			"the agent was held up during all %d measurements, for up to %v", o.Spoiled, longest.Round(time.Millisecond))}
	default:
		o.Unmeasured = &checkup.Cause{Stage: checkup.StageSelf, Message: fmt.Sprintf(
			"the agent's socket had no room for the answers to all %d measurements", o.Spoiled)}
	}
	return o
}

// unmeasured is the observation of a pair that could not be measured.
func unmeasured(m Measurement, stage checkup.Stage, message string) checkup.Observation {
	return checkup.Observation{Pair: m.Pair, Unmeasured: &checkup.Cause{Stage: stage, Message: message}}
}

// cutShort is the observation of a pair whose measuring was stopped.
func cutShort(m Measurement) checkup.Observation {
	return unmeasured(m, checkup.StageSelf, "the agent's time was over before the pair was measured")
}
