// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"fmt"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
)

// Explanation is what the failures of a mesh have in common.
type Explanation struct {
	// Found are all findings, in no order.
	Found []*Found
	// Undecided are components that may exceed a limit, most evidence first.
	Undecided []*Component
	// Background is what no finding explains, one for each limit that measurements exceed.
	Background []checkup.Background

	evidence *Evidence
}

// Measured reports whether a source measured anything.
func (x *Explanation) Measured(source int) bool { return len(x.evidence.From[source]) > 0 }

// Findings lists the findings for people, without those that are gone: see List.
func (x *Explanation) Findings() []checkup.Finding {
	return List(joinPairs(slices.DeleteFunc(slices.Clone(x.Found), (*Found).gone)))
}

// Gone lists the findings that are gone in a further look, one line each.
func (x *Explanation) Gone(after checkup.Duration) []string {
	var lines []string
	for _, f := range x.Found {
		switch {
		case !f.gone():
		case len(lines) == maxFindings:
			return append(lines, "and more findings gone")
		default:
			f.settle()
			lines = append(
				lines,
				fmt.Sprintf("gone after %s: %s (%s)", after, f.Message, checkup.Count(len(f.Pairs), "failed pair")),
			)
		}
	}
	return lines
}

func (f *Found) gone() bool { return f.Confirmation == checkup.Gone }

// Explain explains the failures of a mesh by the fewest causes; doc.go has the model. It
// also tests all components, and fails the pairs of those that exceed a limit.
func Explain(j *judge.Judgement) *Explanation {
	e := NewEvidence(j)
	done := make([]bool, len(e.Outcomes)) // pairs whose losses dead paths explain, or whose delays a lossy cause
	x := &Explanation{Found: paths(e, done), evidence: e}
	tests := len(limits(e.Worksheet.Expect, judge.Lost)) + len(limits(e.Worksheet.Expect, judge.Slow))
	for _, class := range []judge.Failure{judge.Lost, judge.Slow, judge.Reached} {
		of := limits(e.Worksheet.Expect, class)
		failed := func(i int) bool { return e.Outcomes[i].Failure == class && !done[i] }
		if len(of) == 0 && !slices.ContainsFunc(e.Measured, failed) || len(e.Measured) == 0 {
			continue
		}
		l := newLocaliser(e, class, done)
		chosen := l.cover(nil)
		given := slices.DeleteFunc(
			slices.Clone(chosen),
			func(c *candidate) bool { return !c.drops || c.cause == checkup.CausePair },
		)
		level := judge.Level(j.Worksheet, tests*l.components())
		var components []*Component
		marked := 0
		for _, limit := range of {
			p := newPool(l, limit, level)
			for _, c := range chosen {
				if c.drops {
					p.explained(c.explained)
				}
			}
			exceed, undecided := p.run()
			components = append(components, exceed...)
			for _, c := range undecided {
				c.where = (&candidate{l: l, place: c.place, narrowing: c.narrowing}).at()
				x.Undecided = append(x.Undecided, c)
			}
			if b := p.background(); b != nil {
				x.Background = append(x.Background, *b)
			}
			for _, c := range given {
				marked += l.failDoubted(j, c, limit)
			}
		}
		if len(components) > 0 || marked > 0 {
			for _, c := range components {
				l.fail(j, c)
			}
			l = newLocaliser(e, class, done)
			chosen = l.cover(l.accepted(given, components))
		}
		for _, c := range chosen {
			var also []int
			if class == judge.Lost {
				also = l.delays(c, done)
			}
			x.Found = append(x.Found, c.found(also))
		}
	}
	x.Found = append(x.Found, rewritten(e, func(int) bool { return true })...)
	return x
}

// accepted makes the candidates of causes that are known already, in their order, for an
// index of the same pairs.
func (l *localiser) accepted(given []*candidate, components []*Component) []*candidate {
	var known []*candidate
	for _, c := range given {
		if again := l.same(c); again != nil {
			known = append(known, again)
		}
	}
	for _, c := range components {
		known = append(known, l.same(&candidate{place: c.place, narrowing: c.narrowing, component: c}))
	}
	return known
}

// fail fails the pairs of a component that lost a packet at its place, or were slow.
func (l *localiser) fail(j *judge.Judgement, c *Component) {
	at := c.place
	var pairs []int
	l.visit(at, &c.narrowing, false, silent, func(i int32, back bool) {
		m := &l.all[i]
		switch {
		case m.fail:
		case c.Limit != checkup.LimitLoss, !at.directed() || !m.Counted,
			back && m.Received < m.Arrived, !back && m.Arrived < m.Sent:
			pairs = append(pairs, m.at)
		}
	})
	c.where = (&candidate{l: l, place: at, narrowing: c.narrowing}).at()
	j.FailTogether(pairs, c.Limit, "with the other pairs "+c.where)
}

// at is the place in words.
func (c *candidate) at() string {
	cause, subject, rest := c.name()
	where := c.phrase(cause, subject)
	if s := rest.String(); s != "" {
		where += ", " + s
	}
	return where
}

// failDoubted fails the undecided pairs of a cause that drops or delays everything. It
// returns their number.
func (l *localiser) failDoubted(j *judge.Judgement, c *candidate, of limit) int {
	var pairs []int
	l.visit(c.place, &c.narrowing, c.flows, silent, func(i int32, back bool) {
		if m := &l.all[i]; m.Verdict == checkup.Undecided {
			pairs = append(pairs, m.at)
		}
	})
	if len(pairs) == 0 {
		return 0
	}
	return j.FailTogether(pairs, of.Limit, "with the other pairs "+c.at())
}

// retransmission is the shortest time after which Linux sends a lost TCP segment again
// (TCP_RTO_MIN in include/net/tcp.h).
const retransmission = 200 * time.Millisecond

// delays returns the slow pairs of a place that loses some of the packets: TCP
// retransmits after a delay, so the loss explains them too. Other pairs that it may delay are
// no evidence of a cause of delays.
func (l *localiser) delays(c *candidate, done []bool) []int {
	if c.share >= dropShare {
		return nil
	}
	var also []int
	for _, i := range c.passing {
		switch o := l.all[i].Outcome; {
		case o.Failure == judge.Slow && c.delaysTCP(o):
			also = append(also, l.all[i].at)
			done[l.all[i].at] = true
		case c.delaysTCP(o):
			done[l.all[i].at] = true
		}
	}
	for _, i := range c.explained {
		done[l.all[i].at] = done[l.all[i].at] || c.delaysTCP(l.all[i].Outcome)
	}
	return also
}

// delaysTCP reports whether the loss of a cause may delay the pair, in this look or the next. The
// loss of the whole network leaves no other pairs to compare with: there, only pairs that were
// delayed so are.
func (c *candidate) delaysTCP(o *judge.Outcome) bool {
	if c.cause == checkup.CauseNetwork {
		return retransmitted(o)
	}
	return !datagram(o.Pair.Transport)
}

// repaired adds to a finding the pairs that are slow in a further look because the cause loses
// packets, as delays does in the first look.
func (c *candidate) repaired(e *Evidence, f *Found, done []bool) {
	if c.share >= dropShare {
		return
	}
	for _, i := range slices.Concat(c.explained, c.passing) {
		at := c.l.all[i].at
		switch o := &e.Outcomes[at]; {
		case done[at] || !c.delaysTCP(o):
		case o.Failure == judge.Slow && !slices.Contains(f.Pairs, at):
			f.Pairs = append(f.Pairs, at)
			done[at] = true
		default:
			done[at] = true
		}
	}
}

// retransmitted reports whether TCP may have sent a segment of a pair again.
func retransmitted(o *judge.Outcome) bool {
	late := func(rtt int64) bool { return rtt >= retransmission.Microseconds() }
	return !datagram(o.Pair.Transport) && slices.ContainsFunc(o.RTTs, late)
}
