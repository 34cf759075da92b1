// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	mathrand "math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Agent carries out one order.
type Agent struct {
	Order   checkup.Order
	Version string
	// Out receives the messages, one line each.
	Out io.Writer
	// Funcs are the prober functions; nil means Funcs.
	Funcs map[checkup.Transport]Func
	// Table writes what the node's service proxy has programmed in one family, as pkg/dataplane's Look.Write does, or
	// returns why it cannot be read. It is called for orders with Tables only.
	Table func(checkup.IPFamily, io.Writer) *checkup.Cause
	// Root of the file system, to read the cgroup's statistics; nil means the real one.
	Root fs.FS
	// Certificates holds the client certificates for peers: a directory for each Secret, with tls.crt and tls.key.
	// nil means /etc/checkplan/certificates.
	Certificates fs.FS
	// Echo and HTTP are the addresses, as those of Listen, at which the agent answers if the order has Respond; empty
	// means all addresses, at a responder's ports.
	Echo, HTTP string
}

// certificatesDirectory is where the Secrets of the peers are mounted in an agent's pod.
const certificatesDirectory = "/etc/checkplan/certificates"

// Run reports the start, waits for a random part of the start jitter, measures the control pairs, then all pairs in
// random order, and reports the end. It reports each pair as soon as it is measured. Pairs that are not measured by the
// order's deadline are reported as unmeasured. Pairs with a Turn are begun first. They and those with Idle
// are measured beside all others, for which they wait without sending much.
//
// The pairs of an order with Connections are measured all at the same time, and each measurement is reported. A pair is
// reported as unmeasured only if none of its measurements could be made.
//
// An order with Tables has no pairs: Run reads the tables instead, see readTables.
//
// If ctx ends first, Run reports what it has measured, stops and returns nil: without an end message, the report is
// incomplete. Errors are of the agent itself, never of the network.
func (a Agent) Run(ctx context.Context) error {
	if a.Funcs == nil {
		a.Funcs = Funcs
	}
	if a.Root == nil {
		a.Root = os.DirFS("/")
	}
	if a.Certificates == nil {
		a.Certificates = os.DirFS(certificatesDirectory)
	}
	lines := &lineWriter{w: a.Out}
	pairs, impossible := measurements(a.Order)
	if err := lines.write(checkup.Message{Start: &checkup.AgentStart{
		Source: a.Order.Source, Version: a.Version, Pairs: len(pairs) + len(impossible),
	}}); err != nil {
		return err
	}
	if a.Order.Tables != nil {
		ctx, cancel := context.WithTimeout(ctx, time.Duration(a.Order.Deadline))
		defer cancel()
		return a.readTables(ctx, lines)
	}
	if a.Order.Respond {
		end, err := a.respond(ctx)
		if err != nil {
			return err
		}
		defer end()
	}
	stamps, err := keepTimestamps()
	if err != nil {
		return fmt.Errorf("cannot open a socket: %w", err)
	}
	defer stamps.Close()
	session := &Session{
		Nonce: newNonce(a.Order.Look),
		// The burst keeps the rate although timers wake up to 10 ms late.
		Limiter: rate.NewLimiter(rate.Limit(a.Order.Limits.PacketsPerSecond), max(1, a.Order.Limits.PacketsPerSecond/100)),
		Watch:   &Watch{},

		certificates: &certificates{files: a.Certificates},
		root:         a.Root,
	}
	before, reported := throttled(a.Root)
	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { session.Watch.Run(watching) })
	end, err := a.measure(ctx, session, lines, pairs, impossible)
	stop()
	watch.Wait()
	if err != nil || ctx.Err() != nil {
		return err
	}
	longest, p99 := session.Watch.delay()
	end.SelfDoubt.SchedulingDelayMax, end.SelfDoubt.SchedulingDelayP99 = longest.Microseconds(), p99.Microseconds()
	if after, ok := throttled(a.Root); ok && reported {
		micros := (after - before).Microseconds()
		end.SelfDoubt.ThrottledMicros = &micros
	}
	return lines.write(checkup.Message{End: &end})
}

// respond answers as a responder does, until ctx ends or the returned function is called.
func (a Agent) respond(ctx context.Context) (end func(), err error) {
	echo, http := cmp.Or(a.Echo, fmt.Sprintf(":%d", EchoPort)), cmp.Or(a.HTTP, fmt.Sprintf(":%d", HTTPPort))
	responder, err := Listen(ctx, echo, http, "")
	if err != nil {
		return nil, fmt.Errorf("the agent cannot answer: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = responder.Serve(ctx, io.Discard, nil) // an answer that is missing is a result
	}()
	return func() { cancel(); <-ended }, nil
}

// measure measures control pairs and pairs within the deadline, and counts what it reports.
func (a Agent) measure(
	outer context.Context,
	session *Session,
	lines *lineWriter,
	pairs []Measurement,
	impossible []checkup.Observation,
) (checkup.AgentEnd, error) {
	var end checkup.AgentEnd
	ctx, cancel := context.WithTimeout(outer, time.Duration(a.Order.Deadline))
	defer cancel()
	random := mathrand.New(mathrand.NewPCG(a.Order.Seed, uint64(a.Order.Source)))
	if jitter := a.Order.Limits.StartJitter; jitter > 0 {
		// If the context has ended, every pair below reports that.
		_ = sleepUntil(ctx, time.Now().Add(time.Duration(random.Int64N(int64(jitter)))))
	}
	// Hold-ups do not spoil control pairs: their delays are not used.
	controls := control{a.Order, &Session{Nonce: session.Nonce, Limiter: session.Limiter}, a.Funcs}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(a.Order.Limits.Concurrency)
	// The control pairs of a VM take a full timeout, but do not disturb the other pairs: they are measured at the same
	// time, and only reported first.
	controlled := make(chan struct{})
	if a.Order.Own != nil {
		g.Go(func() error {
			defer close(controlled)
			return controls.vm(gctx, outer, lines)
		})
	} else {
		if err := controls.pod(ctx, outer, lines); err != nil || outer.Err() != nil {
			return end, err
		}
		close(controlled)
	}
	reported := make(chan struct{}) // closed when the first pair was
	reports := sync.OnceFunc(func() { close(reported) })
	write := func(o checkup.Observation) error {
		<-controlled
		defer reports()
		return lines.write(checkup.Message{Observation: &o})
	}
	report := func(os []checkup.Observation) error {
		for _, o := range os {
			if err := write(o); err != nil {
				return err
			}
		}
		end.Observations += len(os)
		return nil
	}
	pairs, uncertified := certified(pairs, session)
	if err := report(append(impossible, uncertified...)); err != nil {
		return end, err
	}
	shuffled := slices.Clone(pairs)
	random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	if a.Order.Connections != nil {
		r := results{
			lines:   lines,
			limiter: session.Limiter,
			watch:   a.Order.Connections.For > 0,
			measure: func(ctx context.Context, m Measurement) (checkup.Result, bool) {
				return connection(ctx, m, session)
			},
		}
		unknown, err := r.run(ctx, shuffled)
		end.Results = r.reported
		if err != nil || outer.Err() != nil {
			return end, err
		}
		var cut []checkup.Observation
		for _, m := range unknown {
			cut = append(cut, cutShort(m))
		}
		return end, report(cut)
	}
	one := func(ctx context.Context, m Measurement, measure Func) error {
		o := cutShort(m)
		if ctx.Err() == nil {
			o = measure(ctx, m, session)
		}
		if outer.Err() != nil && o.Unmeasured != nil {
			return nil
		}
		return write(o)
	}
	if !slices.ContainsFunc(shuffled, func(m Measurement) bool { return m.Turn == 0 }) {
		reports() // no pair is reported before the turn
	}
	beside, bctx := errgroup.WithContext(ctx)
	var begun sync.WaitGroup
	for _, m := range shuffled {
		switch {
		case m.Turn > 0:
			begun.Add(1)
			beside.Go(func() error {
				begins := sync.OnceFunc(begun.Done)
				defer begins()
				return one(bctx, m, func(ctx context.Context, m Measurement, s *Session) checkup.Observation {
					return acrossTurn(ctx, m, s, a.Funcs[m.Pair.Transport], begins, reported)
				})
			})
		case m.Idle > 0:
			beside.Go(func() error {
				return one(bctx, m, func(ctx context.Context, m Measurement, s *Session) checkup.Observation {
					return afterIdle(ctx, m, s, a.Funcs[m.Pair.Transport])
				})
			})
		}
	}
	begun.Wait()
	for _, m := range shuffled {
		if outer.Err() != nil {
			break
		}
		if m.Turn > 0 || m.Idle > 0 {
			continue
		}
		g.Go(func() error {
			if m.Settle > 0 {
				settled(gctx, m, session, a.Funcs[m.Pair.Transport])
			}
			return one(gctx, m, a.Funcs[m.Pair.Transport])
		})
	}
	end.Observations += len(shuffled)
	return end, errors.Join(g.Wait(), beside.Wait())
}

// certified returns the pairs whose client certificate exists or that need none, and the observations of the others.
func certified(pairs []Measurement, s *Session) (able []Measurement, unable []checkup.Observation) {
	for _, m := range pairs {
		if m.Peer != nil {
			if _, err := s.certificates.of(m.Peer.ClientCertificate); err != nil {
				unable = append(unable, unmeasured(m, checkup.StageSetup, err.Error()))
				continue
			}
		}
		able = append(able, m)
	}
	return able, unable
}
