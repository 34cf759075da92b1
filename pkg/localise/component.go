// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
)

const (
	// Doubt about a component is less than judge.Doubt about a single pair: a cluster has
	// thousands of components.
	Doubt = 0.01
	// MaxUndecided is the most components that are left to a further look.
	MaxUndecided = 50
	// How much more evidence, in nats, there must be for a component for each attribute that
	// narrows it: there are so many ways to narrow.
	plainer = 3
)

// Component is a place with what the packets of all its pairs say about one limit.
type Component struct {
	// Test has the limit, and what was measured without the packets that other findings
	// explain.
	judge.Test
	// Parts are the outcomes that are tested.
	Parts []Part

	named     []Part // the outcomes of which packets go through the place
	place     *place
	narrowing narrowing
	where     string // in words
	verdict   checkup.Verdict
}

// Part is an outcome of a component.
type Part struct {
	// At is the index of the outcome.
	At int
	// Of says which of its packets go through the place.
	Of Packets
}

// Packets are those of a pair that go through a place.
type Packets uint8

const (
	RoundTrips Packets = iota // requests and answers; a loss of either counts once
	Requests                  // by the target's count
	Answers                   // by the target's count
)

// count adds the measurement of one pair to the test: no losses that the responder itself may have caused.
func count(t judge.Test, o *judge.Outcome, of Packets, late int) judge.Test {
	switch {
	case t.Limit != checkup.LimitLoss:
		t.K, t.N = t.K+late, t.N+len(o.RTTs)
	case o.Excused:
	case of == RoundTrips:
		t.K, t.N = t.K+o.Sent-o.Received, t.N+o.Sent
	case !o.Counted:
	case of == Requests:
		t.K, t.N = t.K+o.Sent-o.Arrived, t.N+o.Sent
	default:
		t.K, t.N = t.K+o.Arrived-o.Received, t.N+o.Arrived
	}
	return t
}

// limit is a limit on the packets of a class of failures.
type limit struct {
	judge.Test               // without measurements
	late       time.Duration // delays above this count, for limits on the delay
}

// limits returns those of a class that components are tested against.
func limits(e checkup.Expect, class judge.Failure) []limit {
	var all []limit
	switch {
	case e.Unreachable:
	case class == judge.Lost && e.Loss.Max != nil:
		all = append(all, limit{Test: judge.Test{Limit: checkup.LimitLoss, P: float64(*e.Loss.Max) / 100}})
	case class == judge.Slow:
		for _, l := range e.Latency.Ordered() {
			if l.Limit != nil {
				all = append(all, limit{judge.Test{Limit: checkup.Limit(l.Name), P: 1 - l.Quantile}, time.Duration(*l.Limit)})
			}
		}
	}
	return all
}

// lateOf counts the delays of an outcome that are above the limit.
func (l limit) lateOf(o *judge.Outcome) int {
	if l.Limit == checkup.LimitLoss {
		return 0
	}
	n := 0
	for _, rtt := range o.RTTs {
		if rtt > l.late.Microseconds() {
			n++
		}
	}
	return n
}

// pooled reports whether a place is tested as a component. Delays have no direction, and
// sources and targets are the same packets as nodes.
func (l *localiser) pooled(p *place) bool {
	switch p.cause {
	case checkup.CauseNetwork, checkup.CauseNode:
		return true
	case checkup.CausePair, checkup.CauseZones, checkup.CauseGroups:
		return l.class == judge.Lost || !p.mirror
	case checkup.CauseNodeIngress, checkup.CauseNodeEgress, checkup.CauseNodesIngress, checkup.CauseNodesEgress:
		return l.class == judge.Lost
	case checkup.CauseNodes:
		return p.label
	default:
		return false
	}
}

// narrowingsOf lists how the component of a place is narrowed.
func (l *localiser) narrowingsOf(p *place) [][]narrowing {
	if p.cause == checkup.CausePair || p.cause == checkup.CauseGroups { // there are many
		return [][]narrowing{{l.whole}}
	}
	return [][]narrowing{{l.whole}, l.narrows, l.narrows2}
}

// components is the number of components.
func (l *localiser) components() int {
	n := 0
	for _, p := range l.places {
		if l.pooled(p) {
			for _, list := range l.narrowingsOf(p) {
				n += len(list)
			}
		}
	}
	return n
}

// Components is the number of components that a look tests if it measures all pairs of the
// worksheet.
func Components(w *checkup.Worksheet) int {
	j := judge.Pairs(w, nil, nil, judge.Rules{})
	for i := range j.Outcomes {
		j.Outcomes[i].Verdict = checkup.Pass
	}
	return newLocaliser(NewEvidence(j), judge.Lost, make([]bool, len(j.Outcomes))).components()
}

// directed reports whether a place concerns one direction.
func (p *place) directed() bool {
	switch p.cause {
	case checkup.CauseNodeIngress, checkup.CauseNodeEgress, checkup.CauseNodesIngress, checkup.CauseNodesEgress,
		checkup.CausePair, checkup.CauseZones, checkup.CauseGroups:
		return true
	default:
		return false
	}
}
