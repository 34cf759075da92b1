// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/checkplan/checkplan/pkg/checkup"
)

const (
	// batchInterval is how long a result waits for others before it is reported.
	batchInterval = 500 * time.Millisecond
	// maxUnderWay is the maximum number of open measurements of all pairs together; a connection whose peer sends
	// nothing in the TLS handshake takes about 50 KiB. It is divided among the pairs: silent peers do not delay the
	// other pairs, unless there are more pairs than that.
	maxUnderWay = 512
	// maxSpread is the time over which the first measurements of all pairs are spread, if the interval is not shorter.
	maxSpread = time.Second
	// maxLate is how late a measurement may start, if the interval is not longer. Later ones do not start: a burst would
	// measure one moment many times.
	maxLate = time.Second
	// minTurn is the minimum time until a measurement of a round that did not start is tried again.
	minTurn = 100 * time.Millisecond
	// maxLine is the maximum length of a line in bytes: container runtimes split longer ones.
	maxLine = 16<<10 - 1
)

// results measures pairs and reports each measurement.
type results struct {
	lines   *lineWriter
	limiter *rate.Limiter // nil means no limit
	// watch says that each measurement belongs to its time: one that cannot start then is unmeasured. If it is false,
	// such a measurement is tried again, an interval later.
	watch bool
	// measure makes one measurement. known is false if the context ended first. It need not set the start time.
	measure func(context.Context, Measurement) (_ checkup.Result, known bool)

	news chan struct{} // report inHand at once

	mu       sync.Mutex // guards following, and sequences
	inHand   []checkup.Result
	reported int // number of reported results, including inHand
	underWay int
}

// sequence is the state of one pair.
type sequence struct {
	// places of the started measurements that are not in inHand yet, oldest first.
	places   []*place
	last     time.Time // start of the newest
	underWay int
	// known is the number of results that are reported or in inHand; failing is the result of the last measured one.
	known    int
	measured bool
	failing  bool
}

// place keeps a measurement's place in the order of its pair.
type place struct {
	at       time.Time // its start; later than that of the place before
	underWay bool      // it was started
	settled  bool
	known    bool
	result   checkup.Result // if it is known
}

// run measures all pairs at the same time, each Probe.Count times, Probe.Interval apart, and reports the known results,
// also when ctx ends. It returns the pairs without a known result; the error is one of writing.
func (r *results) run(ctx context.Context, ms []Measurement) ([]Measurement, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.news = make(chan struct{}, 1)
	sequences := make([]sequence, len(ms))
	start := time.Now()
	var measuring sync.WaitGroup
	for i, m := range ms {
		spread := min(time.Duration(m.Probe.Interval), maxSpread)
		first := start.Add(spread / time.Duration(len(ms)) * time.Duration(i))
		measuring.Go(func() { r.pair(ctx, &measuring, m, &sequences[i], first, share(len(ms))) })
	}
	ended := make(chan struct{})
	go func() {
		measuring.Wait()
		close(ended)
	}()
	batch := time.NewTicker(batchInterval)
	defer batch.Stop()
	var err error
	for running := true; running; {
		select {
		case <-batch.C:
		case <-r.news:
		case <-ended:
			running = false
		}
		if err == nil {
			err = r.report()
		}
		if err != nil {
			cancel()
		}
	}
	var unknown []Measurement
	for i, m := range ms {
		if sequences[i].known == 0 {
			unknown = append(unknown, m)
		}
	}
	return unknown, err
}

// share returns the maximum number of open measurements of one pair.
func share(pairs int) int { return max(1, min(maxOutstanding, maxUnderWay/pairs)) }

// pair starts the measurements of one pair, each when it is due, whether or not earlier ones have ended.
func (r *results) pair(
	ctx context.Context,
	measuring *sync.WaitGroup,
	m Measurement,
	of *sequence,
	first time.Time,
	share int,
) {
	interval := time.Duration(m.Probe.Interval)
	late, turn := max(interval, maxLate), max(interval, minTurn)
	skip := func(at time.Time, why string) {
		p := r.begin(of, at, false)
		result := checkup.Result{Pair: m.Pair, Unmeasured: &checkup.Cause{Stage: checkup.StageSelf, Message: why}}
		r.settle(of, p, result, true)
	}
	var why string // why a measurement of a round that is due has not started; empty if none is due
	i := 0
	for i < m.Probe.Count {
		due := first.Add(time.Duration(i) * interval)
		if sleepUntil(ctx, due) != nil {
			break
		}
		if time.Since(due) > late {
			why = fmt.Sprintf(
				"not started within %v of its time: the agent was held up, or limits.packetsPerSecond is too low",
				late,
			)
		} else {
			why = r.full(of, share)
		}
		switch {
		case why == "":
			if pace(ctx, due, r.limiter) != nil {
				return
			}
			// By the monotonic clock, which cannot be set in between.
			p := r.begin(of, first.Add(time.Since(first)), true)
			measuring.Go(func() {
				result, known := r.measure(ctx, m)
				r.settle(of, p, result, known)
			})
			i++
		case r.watch:
			skip(due, why)
			why = ""
			i++
		default: // later by whole intervals: the pairs remain spread
			first = first.Add(time.Since(due).Truncate(turn) + turn)
		}
	}
	if why != "" {
		skip(first.Add(time.Since(first)), why) // one result for all that did not start
	}
}

// full returns the reason why no measurement of a pair can start now; empty if one can.
func (r *results) full(of *sequence, share int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case of.underWay >= share:
		return fmt.Sprintf("not started: %d measurements of this pair were still open", share)
	case r.underWay >= maxUnderWay:
		return fmt.Sprintf("not started: %d measurements of other pairs were still open", maxUnderWay)
	}
	return ""
}

// begin appends a place for a measurement that starts now, or that should have started.
func (r *results) begin(of *sequence, at time.Time, underWay bool) *place {
	r.mu.Lock()
	defer r.mu.Unlock()
	at = at.UTC().Truncate(time.Microsecond)
	if !at.After(of.last) {
		at = of.last.Add(time.Microsecond)
	}
	of.last = at
	p := &place{at: at, underWay: underWay}
	if underWay {
		of.underWay++
		r.underWay++
	}
	of.places = append(of.places, p)
	return p
}

// settle moves a known result to inHand as soon as the ones before it are there. A pair's first result, and one that
// differs from the one before, is reported at once.
func (r *results) settle(of *sequence, p *place, result checkup.Result, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.underWay {
		of.underWay--
		r.underWay--
	}
	result.At = p.at
	p.settled, p.known, p.result = true, known, result
	for len(of.places) > 0 && of.places[0].settled {
		next := of.places[0]
		of.places = of.places[1:]
		if !next.known {
			continue
		}
		r.inHand = append(r.inHand, next.result)
		r.reported++
		if of.take(next.result) {
			select {
			case r.news <- struct{}{}:
			default: // already requested
			}
		}
	}
}

// take records a result and reports whether it must be reported at once.
func (of *sequence) take(result checkup.Result) bool {
	of.known++
	if result.Unmeasured != nil {
		return of.known == 1
	}
	news := !of.measured || of.failing != (result.Failure != nil)
	of.measured, of.failing = true, result.Failure != nil
	return news
}

// report writes the results in inHand. Only run calls it: the lines stay in order.
func (r *results) report() error {
	r.mu.Lock()
	rs := r.inHand
	r.inHand = nil
	r.mu.Unlock()
	for len(rs) > 0 {
		n, err := fitting(rs)
		if err != nil {
			return err
		}
		if err := r.lines.write(checkup.Message{Results: rs[:n]}); err != nil {
			return err
		}
		rs = rs[n:]
	}
	return nil
}

// fitting returns how many of the results fit in a line, at least 1.
func fitting(rs []checkup.Result) (int, error) {
	size := len(`{"results":[]}`) + 1
	for i := range rs {
		b, err := json.Marshal(rs[i])
		if err != nil {
			return 0, fmt.Errorf("cannot encode a result: %w", err)
		}
		if size += len(b) + 1; size > maxLine && i > 0 {
			return i, nil
		}
	}
	return len(rs), nil
}
