// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// watchInterval is the interval between the timers of Watch while measurements are open. When the first one begins,
	// the next timer is due after firstInterval, but not within watchInterval of the last one: only what follows a time
	// at which a timer is due counts as a hold-up. idleInterval is the interval while no measurement is open: hold-ups
	// of that time spoil nothing, but show how busy the node is.
	watchInterval = 5 * time.Millisecond
	firstInterval = time.Millisecond
	idleInterval  = 50 * time.Millisecond
	// heldUp is how late a timer must be for the agent to count as held up; timers of an idle agent are late by less
	// than 1 ms.
	heldUp = 5 * time.Millisecond
	// spoiling is the hold-up that spoils a measurement with any delay.
	spoiling = 20 * time.Millisecond
	// maxDelays and maxHoldUps limit memory: at least 22 minutes of timers, and the last hold-ups. When full, the oldest
	// are overwritten.
	maxDelays  = 1 << 18
	maxHoldUps = 1 << 12
)

// Watch measures how late the timers of this process wake: if the process is starved or throttled, so are its
// measurements. While no measurement is open, its timers are rare: an agent that waits for its next measurement, for
// hours in a watch, uses little CPU time. The zero Watch is ready to use.
type Watch struct {
	mu sync.Mutex // guards following
	// open is the number of open measurements.
	open int
	// timer is that of Run; nil if Run does not run. due is when it should wake; zero if it is not set.
	timer   *time.Timer
	due     time.Time
	last    time.Time // when a timer woke last
	delays  []int32   // in microseconds
	next    int       // index in delays to overwrite when it is full
	longest time.Duration
	holdUps []holdUp
	oldest  int // index in holdUps to overwrite when it is full
}

// holdUp is a time for which the agent did not run although it should have.
type holdUp struct{ from, to time.Time }

// Run watches until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	timer := time.NewTimer(firstInterval)
	defer timer.Stop()
	w.set(timer, time.Now().Add(firstInterval))
	defer w.set(nil, time.Time{})
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			w.wake(time.Now())
		}
	}
}

func (w *Watch) set(timer *time.Timer, due time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer, w.due = timer, due
}

// begin says that a measurement begins; end must follow. A nil Watch does nothing.
func (w *Watch) begin() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open++
	if w.timer == nil || w.open > 1 {
		return
	}
	now := time.Now()
	wait := max(firstInterval, w.last.Add(watchInterval).Sub(now))
	if due := now.Add(wait); due.Before(w.due) {
		w.due = due
		w.timer.Reset(wait)
	}
}

// end says that a measurement that began has ended. A nil Watch does nothing.
func (w *Watch) end() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open--
}

// wake records that the timer woke, and sets it again.
func (w *Watch) wake(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.woke(w.due, now)
	interval := idleInterval
	if w.open > 0 {
		interval = watchInterval
	}
	// From the time that the timer woke: a hold-up may have followed.
	w.last, w.due = now, now.Add(interval)
	w.timer.Reset(time.Until(w.due))
}

// woke records when a timer was due and when it woke. The caller holds mu.
func (w *Watch) woke(due, now time.Time) {
	late := max(now.Sub(due), 0)
	w.longest = max(w.longest, late)
	micros := int32(min(late.Microseconds(), 1<<31-1))
	if len(w.delays) < maxDelays {
		w.delays = append(w.delays, micros)
	} else {
		w.delays[w.next] = micros
		w.next = (w.next + 1) % maxDelays
	}
	if late < heldUp {
		return
	}
	if len(w.holdUps) < maxHoldUps {
		w.holdUps = append(w.holdUps, holdUp{due, now})
	} else {
		w.holdUps[w.oldest] = holdUp{due, now}
		w.oldest = (w.oldest + 1) % maxHoldUps
	}
}

// held returns the longest hold-up that overlaps a period, including one that has not ended for Watch itself. A nil
// Watch has none.
func (w *Watch) held(from, to time.Time) time.Duration {
	if w == nil {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var longest time.Duration
	for _, h := range w.holdUps {
		if h.from.Before(to) && h.to.After(from) {
			longest = max(longest, h.to.Sub(h.from))
		}
	}
	if late := time.Since(w.due); !w.due.IsZero() && w.due.Before(to) && late >= heldUp {
		longest = max(longest, late)
	}
	return longest
}

// believe marks the samples that a hold-up or a full socket buffer spoiled, and returns the number of the others.
func (w *Watch) believe(samples []sample) int {
	believed := 0
	for i := range samples {
		s := &samples[i]
		s.held, s.spoiled = w.spoils(*s)
		s.spoiled = s.spoiled || s.noRoom
		if !s.spoiled {
			believed++
		}
	}
	return believed
}

// spoils reports whether a hold-up of the agent, or of the Responder that kept the request, spoils a sample, and how
// long it was. It spoils an answered sample that the kernel
// did not time if it lasted at least spoiling or half of the delay, and a timeout if an answer in time may have been
// read too late. A nil Watch spoils nothing. Other failures were reported by the network and are not spoiled.
func (w *Watch) spoils(s sample) (time.Duration, bool) {
	if s.cause == nil && s.kernel || s.cause != nil && !s.timedOut {
		return 0, false
	}
	if w == nil {
		return 0, false
	}
	held := w.held(s.start, s.end)
	if s.residence >= heldUp {
		held = max(held, s.residence)
	}
	if s.timedOut {
		return held, held > 0 && held >= s.end.Sub(s.start)/2
	}
	return held, held >= spoiling || held > 0 && held >= s.rtt/2
}

// delay returns the highest and the 99th percentile (nearest rank) of how late
// timers were, both 0 before the first woke.
func (w *Watch) delay() (longest, p99 time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.delays) == 0 {
		return 0, 0
	}
	sorted := slices.Sorted(slices.Values(w.delays))
	rank := (len(sorted)*99 + 99) / 100
	return w.longest, time.Duration(sorted[rank-1]) * time.Microsecond
}
