// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Func measures one pair. It returns when every measurement is answered, failed or timed out and the spoiled ones are
// repeated, or when ctx ends. If ctx ends first, the pair is unmeasured, unless only repeats are missing.
type Func func(ctx context.Context, m Measurement, s *Session) checkup.Observation

// Funcs holds the prober function of every transport.
var Funcs = map[checkup.Transport]Func{
	checkup.TCP:  tcp,
	checkup.UDP:  udp,
	checkup.ICMP: icmp,
	checkup.HTTP: http,
	checkup.TLS:  tls,

	checkup.DNSUDP: dns,
	checkup.DNSTCP: dns,
}

// Measurement is one pair, with the address of its target and how to measure it.
type Measurement struct {
	Pair checkup.Pair
	// Address of the target; icmp ignores its port.
	Address netip.AddrPort
	// Probe has count, interval, timeout and path. Its Sizes are ignored: the size is Pair.Size.
	Probe checkup.Probe
	// Peer is measured instead of Address, with Deadlines instead of the probe's timeout; nil if the target is a
	// Responder or a pod. A Peer with a Question is asked at Address, within the probe's timeout.
	Peer      *checkup.Peer
	Deadlines checkup.StageDeadlines
	// Ports are the source ports that must be used, and Stops the points at which measuring may end before Probe.Count,
	// see checkup.Again; empty if any port will do, and if all must be measured.
	Ports []int
	Stops checkup.Stops
	// Avoid are source ports that udp must not use where Ports leaves the choice; those that it uses are added. nil: none.
	Avoid map[int]bool
	// Witness says that the target is a Responder, and must report the source address that it sees.
	Witness bool
	// Identify says that the target is a Responder, or a Service over several, and that each must report its own address.
	// What is answered by anything else is not answered.
	Identify bool
	// Settle is how long the target is tried before it is measured, until something answers.
	Settle time.Duration
	// Turn, Keep and Idle are those of checkup.OrderTarget.
	Turn, Idle time.Duration
	Keep       bool
}

// Session is the state that the measurements of one agent share.
type Session struct {
	// Nonce marks the agent's packets: answers to other agents do not have it.
	Nonce uint64
	// Limiter limits the measurements started per second; nil means no limit.
	Limiter *rate.Limiter
	// Watch knows when the agent was held up; nil means never.
	Watch *Watch
	// certificates are the client certificates for peers; nil means none.
	certificates *certificates
	// root of the file system with etc/resolv.conf; nil means the real one.
	root fs.FS
	// dialDNS connects to a DNS server; nil means a direct connection.
	dialDNS func(ctx context.Context, network, address string) (net.Conn, error)
}

const settleInterval = time.Duration(checkup.TryInterval)

// settled tries a target until something answers, for at most m.Settle or until ctx ends.
func settled(ctx context.Context, m Measurement, s *Session, measure Func) {
	tried := m
	tried.Probe.Count = 1
	for end := time.Now().Add(m.Settle); time.Now().Before(end) && ctx.Err() == nil; {
		next := time.Now().Add(settleInterval)
		if measure(ctx, tried, s).Received > 0 {
			return
		}
		_ = sleepUntil(ctx, next) // the caller looks at ctx
	}
}

// maxOutstanding is the maximum number of open tcp or http measurements of one pair; it limits the agent's open files.
const maxOutstanding = 32

// sample is one measurement.
type sample struct {
	start, end time.Time
	// rtt is the round-trip delay, if cause is nil.
	rtt time.Duration
	// connect is the part of rtt that the TCP connect of a DNS question took; 0 for everything else.
	connect time.Duration
	// kernel reports that the kernel timed both ends of rtt and that rtt includes no time of a process.
	kernel bool
	// cause of a missing answer; nil if there was an answer.
	cause *checkup.Cause
	// timedOut reports that the cause is a timeout.
	timedOut bool
	// port is the source port; 0 if it is unknown or the protocol has none.
	port int
	// residence is how long a Responder kept the request of a tcp or http sample, in whole milliseconds; 0 if unknown. A
	// long one spoils the sample. It is not subtracted, as the exact one of udp is.
	residence time.Duration
	// repeated reports that a DNS question without an answer in time was answered when it was asked again, and
	// truncated that its answer did not fit in a datagram.
	repeated, truncated bool
	// own is the source address of the socket, and seen the one that the target saw; invalid if unknown.
	own, seen netip.Addr
	// answerer is the Responder's own address; invalid if unknown.
	answerer netip.Addr
	// unusable says why the demanded source port could not be used: nothing was measured. nil if something was.
	unusable *checkup.Cause
	// noRoom reports that the agent's own socket dropped packets, perhaps the answer.
	noRoom bool
	// spoiled reports that the sample is discarded: because of noRoom, or because the agent was held up for the
	// duration held.
	spoiled bool
	held    time.Duration
}

// maxTries limits the measurements of a pair with spoiled ones, as a multiple of its count: if the agent is held up
// again and again, more tries would only take the time of other pairs.
const maxTries = 5

// Spoiled measurements are repeated after repeatPause: the default period of CPU bandwidth control (100 ms; the
// kernel's cgroup-v2.rst), so that a throttled agent is in a new period. The pause doubles with each repeat, up to
// longestPause: what holds an agent up for long is a busy node, and all tries must not fall in one such time.
const (
	repeatPause  = 100 * time.Millisecond
	longestPause = 8 * repeatPause
)

// ends reports whether a round ends before its next measurement, after it has made some, of which so many are not
// answered yet: if they never are, the pair is beyond one of its Stops. So an agent waits for late answers only if the
// pair almost certainly ends, and nothing is sent behind the point at which it does.
type ends func(made, unanswered int) bool

// repeat calls round until Probe.Count measurements are not spoiled: first for all, then for the missing ones, up to
// maxTries times the count in total, or until the pair ends at one of its Stops. If ctx ends in between, the earlier
// measurements count. round makes n measurements, or fewer if it ends before; it returns errCutShort if it did not
// complete them, or an error of the local socket.
func repeat(
	ctx context.Context,
	m Measurement,
	w *Watch,
	round func(n int, end ends) ([]sample, error),
) checkup.Observation {
	var samples []sample
	var sofar checkup.Observation
	end := func(made, unanswered int) bool {
		return made > 0 && m.Stops.Crossed(sofar.Sent+made, sofar.Sent-sofar.Received+unanswered)
	}
	pause, spoiled := repeatPause, false
	for missing := m.Probe.Count; missing > 0 && len(samples) < maxTries*m.Probe.Count; {
		if spoiled {
			if sleepUntil(ctx, time.Now().Add(pause)) != nil {
				break
			}
			pause = min(2*pause, longestPause)
		}
		more, err := round(min(missing, maxTries*m.Probe.Count-len(samples)), end)
		if ctx.Err() != nil || errors.Is(err, errCutShort) {
			if len(samples) == 0 {
				return cutShort(m)
			}
			break
		}
		if err != nil {
			return unmeasured(m, checkup.StageSocket, localTrouble(err).Error())
		}
		for i := range more {
			more[i].late(time.Duration(m.Probe.Timeout))
		}
		believed := w.believe(more)
		spoiled = believed < len(more)
		missing -= believed
		samples = append(samples, more...)
		if len(m.Stops) == 0 {
			continue
		}
		if sofar = tally(m, samples); m.Stops.End(&sofar) {
			break
		}
	}
	return tally(m, samples)
}

// errCutShort is the error of a round that ended before all its measurements.
var errCutShort = errors.New("cut short")

// series makes the measurements of a tcp or http pair, each by a call of one, which returns only errors of the local
// socket. If the pair demands source ports, each measurement gets one of them in turn, as its only port, and waits for
// the measurement before it that has the same one: two connections cannot share all of their addresses and ports.
// Probe.Interval is then that of each port.
func series(
	ctx context.Context,
	m Measurement,
	s *Session,
	one func(context.Context, Measurement) (sample, error),
) checkup.Observation {
	interval := time.Duration(m.Probe.Interval) / time.Duration(max(1, len(m.Ports)))
	turns := make([]turn, len(m.Ports))
	for i := range turns {
		turns[i].mine = make(chan struct{}, 1)
	}
	made := 0
	return repeat(ctx, m, s.Watch, func(n int, end ends) ([]sample, error) {
		samples := make([]sample, n)
		var answered atomic.Int64
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(maxOutstanding)
		next := time.Now()
		for i := range samples {
			err := sleepUntil(gctx, next)
			if err == nil && end(i, i-int(answered.Load())) {
				n = i
				break
			}
			if err == nil {
				err = pace(gctx, next, s.Limiter)
			}
			if err != nil {
				if err := g.Wait(); err != nil {
					return nil, err
				}
				return nil, errCutShort
			}
			next = time.Now().Add(interval)
			number := made
			made++
			g.Go(func() (err error) {
				s.Watch.begin()
				defer func() {
					s.Watch.end()
					if err == nil && samples[i].cause == nil {
						answered.Add(1)
					}
				}()
				if len(m.Ports) == 0 {
					samples[i], err = one(gctx, m)
					return err
				}
				m, at := m, number%len(m.Ports)
				m.Ports = m.Ports[at : at+1]
				samples[i], err = turns[at].take(gctx, m, one)
				return err
			})
		}
		return samples[:n], g.Wait()
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

// tally makes an observation from the samples of a pair, in the order of sending. Of several failures it reports the
// last one that the network explained, otherwise the last one: hosts limit the rate of their ICMP errors, and most
// packets of a rejected pair seem to be lost without an error.
func tally(m Measurement, samples []sample) checkup.Observation {
	o := checkup.Observation{Pair: m.Pair, Kernel: true}
	var longest time.Duration
	unexplained := false // o.Failure is a timeout
	var unusable *checkup.Cause
	answerers := map[netip.Addr]int{}
	for i := range samples {
		s := &samples[i]
		if s.unusable != nil {
			unusable = s.unusable
			continue
		}
		if s.spoiled {
			o.Spoiled++
			longest = max(longest, s.held)
			continue
		}
		o.Sent++
		if s.repeated {
			o.Repeated++
		}
		if s.truncated {
			o.Truncated++
		}
		if m.Identify && s.cause == nil && !s.answerer.IsValid() {
			s.cause = &checkup.Cause{Stage: checkup.StageEcho, Message: "answered by something that is no responder"}
		}
		if s.cause != nil {
			if o.Failure == nil || unexplained || !s.timedOut {
				o.Failure, unexplained = s.cause, s.timedOut
			}
			continue
		}
		o.Received++
		if m.Witness && s.own.IsValid() && s.seen.IsValid() {
			o.Witnessed++
			if s.seen != s.own {
				o.Rewritten++
				o.SeenAs = s.seen.String()
			}
		}
		if m.Identify {
			answerers[s.answerer]++
		}
		o.RTTs = append(o.RTTs, s.rtt.Microseconds())
		if m.Pair.Transport == checkup.DNSTCP {
			o.Connects = append(o.Connects, s.connect.Microseconds())
		}
		o.Kernel = o.Kernel && s.kernel
	}
	o.Kernel = o.Kernel && o.Received > 0
	for _, a := range slices.SortedFunc(maps.Keys(answerers), netip.Addr.Compare) {
		o.Answerers = append(o.Answerers, checkup.Answerer{Address: a.String(), Count: answerers[a]})
	}
	o.Flows = flows(o, samples)
	switch {
	case o.Sent > 0:
	case unusable != nil && o.Spoiled == 0:
		o.Unmeasured, o.Flows = unusable, nil
	case longest > 0:
		o.Unmeasured = &checkup.Cause{Stage: checkup.StageSelf, Message: fmt.Sprintf(
			"the agent or its target was held up during all %d measurements, for up to %v", o.Spoiled, longest.Round(time.Millisecond))}
	default:
		o.Unmeasured = &checkup.Cause{Stage: checkup.StageSelf, Message: fmt.Sprintf(
			"the agent's socket buffer was full and dropped the answers to all %d measurements", o.Spoiled)}
	}
	return o
}

// unmeasured returns the observation of a pair that could not be measured.
func unmeasured(m Measurement, stage checkup.Stage, message string) checkup.Observation {
	return checkup.Observation{Pair: m.Pair, Unmeasured: &checkup.Cause{Stage: stage, Message: message}}
}

// cutShort returns the observation of a pair whose measurement was stopped.
func cutShort(m Measurement) checkup.Observation {
	return unmeasured(m, checkup.StageSelf, "the agent's deadline passed before the pair was measured")
}
