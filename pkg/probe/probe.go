// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Func measures one pair. It returns when every measurement is answered, failed
// or timed out, or when ctx ends; a pair cut short by ctx is unmeasured.
type Func func(ctx context.Context, m Measurement, s *Session) checkup.Observation

// Funcs holds the prober function of every transport.
var Funcs = map[checkup.Transport]Func{
	checkup.TCP:  tcp,
	checkup.UDP:  udp,
	checkup.ICMP: icmp,
	checkup.HTTP: http,
}

// Measurement is one pair, where its target is, and how to measure it.
type Measurement struct {
	Pair checkup.Pair
	// Address of the target; its port means nothing to icmp.
	Address netip.AddrPort
	// Probe gives count, interval, timeout and path. Its Sizes mean nothing: the
	// size is Pair.Size.
	Probe checkup.Probe
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
}

// maxOutstanding is how many tcp or http measurements of one pair may be under
// way at once; it bounds the agent's open files.
const maxOutstanding = 32

// sample is one measurement.
type sample struct {
	start, end time.Time
	// rtt is the round-trip delay, if cause is nil.
	rtt time.Duration
	// kernel says that the kernel timed both ends of rtt.
	kernel bool
	// cause of there being no answer; nil if there was one.
	cause *checkup.Cause
	// timedOut says that the cause is that nothing came in time.
	timedOut bool
}

// series makes the measurements of a tcp or http pair, each by a call of one,
// which returns an error only for trouble with the local socket.
func series(ctx context.Context, m Measurement, s *Session, one func(context.Context, Measurement) (sample, error)) checkup.Observation {
	samples := make([]sample, m.Probe.Count)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(maxOutstanding)
	next := time.Now()
	started := 0
	for i := range samples {
		if err := pace(gctx, next, s.Limiter); err != nil {
			break
		}
		started++
		next = time.Now().Add(time.Duration(m.Probe.Interval))
		g.Go(func() error {
			var err error
			samples[i], err = one(gctx, m)
			return err
		})
	}
	err := g.Wait()
	switch {
	case ctx.Err() != nil || err == nil && started < len(samples):
		return cutShort(m)
	case err != nil:
		return unmeasured(m, checkup.StageSocket, err.Error())
	}
	return tally(m, samples, s.Watch)
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
func tally(m Measurement, samples []sample, w *Watch) checkup.Observation {
	o := checkup.Observation{Pair: m.Pair, Kernel: true}
	var longest time.Duration
	unexplained := false // o.Failure is a timeout
	for _, s := range samples {
		if held, spoiled := w.spoils(s); spoiled {
			o.Spoiled++
			longest = max(longest, held)
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
	if o.Sent == 0 {
		o.Unmeasured = &checkup.Cause{Stage: checkup.StageSelf, Message: fmt.Sprintf(
			"the agent was held up during all %d measurements, for up to %v", o.Spoiled, longest.Round(time.Millisecond))}
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
