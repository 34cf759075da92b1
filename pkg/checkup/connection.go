// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"slices"
	"time"
)

// Result is one measurement of a pair of which each is told: one connection, at
// one time.
type Result struct {
	Pair
	// At is when it began, by the clock of the source's node.
	At time.Time `json:"at"`
	// Delays of the stages that were passed. They belong to the connection that was
	// used, never to another that was tried beside it.
	Delays StageDelays `json:"d"`
	// Failure is the stage that was not passed, and why; nil if all were.
	Failure *Cause `json:"failure,omitempty"`
	// Unmeasured says that the source's own trouble spoiled the measurement: it
	// says nothing about the target.
	Unmeasured *Cause `json:"unmeasured,omitempty"`
}

// StageDelays are in microseconds, at least 1; 0 means that the stage was not
// passed, that there was none, or that a hold-up of the agent spoiled its delay,
// which is never so of Connect.
type StageDelays struct {
	Resolve   int64 `json:"r,omitempty"`
	Connect   int64 `json:"c,omitempty"`
	Handshake int64 `json:"h,omitempty"`
	Response  int64 `json:"w,omitempty"`
}

// Of returns the delay of a stage, 0 for stages that are none of a connection's.
func (d StageDelays) Of(s Stage) int64 {
	switch s {
	case StageResolve:
		return d.Resolve
	case StageConnect:
		return d.Connect
	case StageHandshake:
		return d.Handshake
	case StageResponse:
		return d.Response
	}
	return 0
}

// ConnectionStages lists the stages of a connection in their order.
var ConnectionStages = []Stage{StageResolve, StageConnect, StageHandshake, StageResponse}

// Outage is a time in which a target could not be reached: from the start of the
// first measurement that failed to the start of the first one after it that
// did not.
type Outage struct {
	Start time.Time `json:"start"`
	// End is zero while the outage lasts, and where measuring ended before it did.
	End time.Time `json:"end,omitzero"`
	// Last is the start of the last measurement that failed in it.
	Last time.Time `json:"last"`
	// Failures is how many measurements failed in it.
	Failures int `json:"failures"`
	// Cause of the first failure.
	Cause Cause `json:"cause"`
}

// Duration is how long the outage lasted, as far as it was seen.
func (o Outage) Duration() time.Duration {
	if o.End.IsZero() {
		return o.Last.Sub(o.Start)
	}
	return o.End.Sub(o.Start)
}

// Overlaps reports whether two outages share a moment, give or take the slack.
func (o Outage) Overlaps(other Outage, slack time.Duration) bool {
	end := func(o Outage) time.Time {
		if o.End.IsZero() {
			return o.Last
		}
		return o.End
	}
	return !o.Start.After(end(other).Add(slack)) && !other.Start.After(end(o).Add(slack))
}

// Outages finds the outages of one pair in its results, oldest first. The
// results may be in any order; unmeasured ones say nothing.
func Outages(results []Result) []Outage {
	sorted := slices.SortedStableFunc(slices.Values(results), func(a, b Result) int { return a.At.Compare(b.At) })
	var outages []Outage
	open := false
	for _, r := range sorted {
		switch {
		case r.Unmeasured != nil:
		case r.Failure == nil && open:
			outages[len(outages)-1].End = r.At
			open = false
		case r.Failure != nil && !open:
			outages = append(outages, Outage{Start: r.At, Last: r.At, Failures: 1, Cause: *r.Failure})
			open = true
		case r.Failure != nil:
			o := &outages[len(outages)-1]
			o.Last = r.At
			o.Failures++
		}
	}
	return outages
}
