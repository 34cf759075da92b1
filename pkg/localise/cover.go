// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"container/heap"
	"math"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
)

// Cover explains the failed pairs by the fewest causes; doc.go has the model. It is
// a greedy weighted set cover: of all causes, the one of the lowest cost per pair
// that it newly explains comes first, until no pair is left.
func Cover(e *Evidence) []checkup.Finding {
	done := make([]bool, len(e.Outcomes)) // pairs that dead paths explain, and slow ones that a lossy cause explains
	found := paths(e, done)
	for _, class := range []judge.Failure{judge.Lost, judge.Slow, judge.Reached} {
		l := newLocaliser(e, class, done)
		if l == nil {
			continue
		}
		for _, c := range l.cover() {
			var also []int
			if class == judge.Lost {
				also = l.delays(c, done)
			}
			found = append(found, c.found(also))
		}
	}
	return List(found)
}

// measured is one measured pair, as evidence.
type measured struct {
	*judge.Outcome
	at           int     // in the outcomes
	a, b         int32   // nodes of source and target
	fail         bool    // in the localiser's class
	made, failed float64 // measurements, and how many of them failed
}

// localiser is the evidence of one class of failure, indexed.
type localiser struct {
	w          *checkup.Worksheet
	class      judge.Failure
	attributes []judge.Attribute
	values     []narrow // every family, transport and size
	narrows    []narrow // by one attribute
	narrows2   []narrow // by two
	all        []measured
	fails      int
	nodes      []string
	covered    []bool
	candidates []*candidate
	of         map[int32][]*candidate // by explained pair
	key        map[string]int32       // node index by name
}

// newLocaliser returns nil if no pair failed in the class.
func newLocaliser(e *Evidence, class judge.Failure, done []bool) *localiser {
	failed := func(i int) bool { return e.Outcomes[i].Failure == class }
	if !slices.ContainsFunc(e.Measured, failed) {
		return nil
	}
	w := e.Worksheet
	l := &localiser{w: w, class: class, attributes: e.Attributes, of: map[int32][]*candidate{}, key: map[string]int32{}}
	node := func(name string) int32 {
		i, ok := l.key[name]
		if !ok {
			i = int32(len(l.nodes))
			l.key[name] = i
			l.nodes = append(l.nodes, name)
		}
		return i
	}
	for _, i := range e.Measured {
		o := &e.Outcomes[i]
		if done[i] {
			continue
		}
		m := measured{Outcome: o, at: i, fail: failed(i), made: 1}
		switch {
		case class == judge.Lost:
			sent, received := o.Living()
			m.made, m.failed = float64(sent), float64(sent-received)
		case o.Verdict == checkup.Fail && !m.fail:
			continue // a pair without answers is neither slow nor fast
		case m.fail:
			m.failed = 1
		}
		m.a, m.b = node(w.Sources[o.Pair.Source].Node), node(w.Targets[o.Pair.Target].Node)
		if m.fail {
			l.fails++
		}
		l.all = append(l.all, m)
	}
	if l.fails == 0 {
		return nil
	}
	l.covered = make([]bool, len(l.all))
	l.narrowings()
	return l
}

// propose makes the candidates: each place, narrowed by one attribute only if the whole
// place costs extra, and by two only if one attribute is not sufficient.
func (l *localiser) propose() {
	const fits = 1e-9
	for _, p := range l.places() {
		modes := []bool{false}
		switch {
		case len(p.back) > 0 && l.class == judge.Reached:
			// A policy that allows new flows need not allow other packets.
			modes = []bool{true}
		case len(p.back) > 0:
			modes = append(modes, true)
		}
		narrowest := len(l.narrows) + len(l.narrows2)
		if p.cause == checkup.CauseSource {
			narrowest = 0
		}
		for _, flows := range modes {
			whole := l.assess(p, narrow{}, flows)
			if whole == nil && p.cause == checkup.CausePair {
				continue
			}
			l.add(whole)
			if narrowest == 0 || whole != nil && whole.cost < 1+fits {
				continue
			}
			done := false
			for _, n := range l.narrows {
				if c := l.assess(p, n, flows); c != nil {
					l.add(c)
					done = done || whole != nil && len(c.explained) == len(whole.explained) && c.cost < 1+narrowCost+fits
				}
			}
			if done {
				continue
			}
			for _, n := range l.narrows2 {
				l.add(l.assess(p, n, flows))
			}
		}
	}
}

func (l *localiser) add(c *candidate) {
	if c == nil {
		return
	}
	l.candidates = append(l.candidates, c)
	for _, i := range c.explained {
		l.of[i] = append(l.of[i], c)
	}
}

// queue is a heap of candidates, the cheapest per newly explained pair on top.
type queue []*candidate

func (q queue) Len() int { return len(q) }

func (q queue) Swap(i, k int) { q[i], q[k] = q[k], q[i] }

func (q queue) Less(i, k int) bool {
	// Rounded, so that equal sums added up in another order are equal.
	a, b := math.Round(1e9*q[i].cost/float64(q[i].gain)), math.Round(1e9*q[k].cost/float64(q[k].gain))
	if a != b {
		return a < b
	}
	return q[i].compare(q[k]) < 0
}

func (q *queue) Push(x any) { *q = append(*q, x.(*candidate)) }

func (q *queue) Pop() any {
	last := len(*q) - 1
	c := (*q)[last]
	*q = (*q)[:last]
	return c
}

// cover chooses causes until every failed pair is explained.
func (l *localiser) cover() []*candidate {
	l.propose()
	q := make(queue, 0, len(l.candidates))
	for _, c := range l.candidates {
		c.gain = len(c.explained)
		if !c.weak() {
			q = append(q, c)
		}
	}
	heap.Init(&q)
	var chosen []*candidate
	for uncovered := l.fails; uncovered > 0 && len(q) > 0; {
		c := q[0]
		left := l.left(c)
		switch {
		case len(left) == 0:
			heap.Pop(&q)
		case len(left) < c.gain:
			// The number of newly explained pairs never grows, so a candidate that stays
			// on top after its count is updated is the best.
			c.gain = len(left)
			heap.Fix(&q, 0)
		default:
			heap.Pop(&q)
			c.alternatives = l.alternatives(c, left)
			for _, i := range left {
				l.covered[i] = true
			}
			uncovered -= len(left)
			chosen = append(chosen, c)
		}
	}
	return prune(chosen)
}

// left is the pairs that a candidate explains and no chosen one does.
func (l *localiser) left(c *candidate) []int32 {
	var left []int32
	for _, i := range c.explained {
		if !l.covered[i] {
			left = append(left, i)
		}
	}
	return left
}

// alternatives are the candidates that explain the same uncovered pairs at about the
// same cost.
func (l *localiser) alternatives(c *candidate, left []int32) []*candidate {
	var same []*candidate
	for _, d := range l.of[left[0]] {
		if d.place == c.place && d.narrow == c.narrow || d.cost > c.cost+alternativeCost+1e-9 ||
			!slices.Equal(left, l.left(d)) {
			continue
		}
		same = append(same, d)
	}
	// Not the same place narrowed more than necessary.
	all := append([]*candidate{c}, same...)
	same = slices.DeleteFunc(same, func(d *candidate) bool {
		wider := func(e *candidate) bool { return e.place == d.place && e.narrow.wider(d.narrow) }
		return slices.ContainsFunc(all, wider) || c.excludes(d)
	})
	slices.SortFunc(same, (*candidate).compare)
	return slices.CompactFunc(same, func(d, e *candidate) bool { return d.place == e.place && d.narrow == e.narrow })
}

// sureOneWay is how many pairs with partial loss must have lost packets in the same one
// direction to exclude a loss in both: by chance alone, this happens in 1 of 32 cases.
const sureOneWay = 5

// excludes reports whether the evidence for c excludes d: a node that loses some packets
// in both directions would not lose them in only one.
func (c *candidate) excludes(d *candidate) bool {
	return d.cause == checkup.CauseNode && (c.cause == checkup.CauseNodeIngress || c.cause == checkup.CauseNodeEgress) &&
		c.share < dropShare && c.oneWay >= sureOneWay && c.bothWays == 0
}

// prune drops causes all of whose pairs are explained by others, the latest first.
func prune(chosen []*candidate) []*candidate {
	times := map[int32]int{}
	for _, c := range chosen {
		for _, i := range c.explained {
			times[i]++
		}
	}
	var kept []*candidate
	for _, c := range slices.Backward(chosen) {
		if !slices.ContainsFunc(c.explained, func(i int32) bool { return times[i] == 1 }) {
			for _, i := range c.explained {
				times[i]--
			}
			continue
		}
		kept = append(kept, c)
	}
	slices.Reverse(kept)
	return kept
}

// delays returns the slow pairs of a place that loses some of the packets: TCP
// retransmits after a delay, so the loss explains them too.
func (l *localiser) delays(c *candidate, done []bool) []int {
	if c.share >= dropShare {
		return nil
	}
	var also []int
	for _, i := range c.passing {
		if m := &l.all[i]; m.Failure == judge.Slow {
			also = append(also, m.at)
			done[m.at] = true
		}
	}
	return also
}
