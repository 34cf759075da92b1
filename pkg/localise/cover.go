// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"container/heap"
	"math"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
)

// measured is one measured pair, as evidence.
type measured struct {
	*judge.Outcome
	at           int     // in the outcomes
	a, b         int32   // nodes of source and target
	way          int32   // index of its way
	by           int32   // order of the accepted cause that explains it, open or silent
	fail         bool    // in the localiser's class
	datagram     bool    // its transport shows each lost packet
	requests     bool    // lost requests may have made it fail
	answers      bool    // lost answers may have made it fail
	made, failed float64 // measurements, and how many of them failed
}

// What measured.by is if no accepted cause explains a pair: open for one that matters, silent
// for one that is evidence neither for nor against a cause.
const (
	open   = math.MaxInt32
	silent = -1
)

// way is a source and a target with their measured pairs.
type way struct {
	from, end      int32 // of its pairs
	a, b           int32 // nodes of source and target
	source, target int
	left           int // failed pairs that no accepted cause explains
	places         []*place
}

// localiser is the evidence of one class of failure, indexed.
type localiser struct {
	w          *checkup.Worksheet
	class      judge.Failure
	attributes []judge.Attribute
	values     []narrowing // every family, transport and size
	whole      narrowing
	narrows    []narrowing // by one attribute
	narrows2   []narrowing // by two
	all        []measured
	ways       []way
	places     []*place
	nodes      []string
	q          queue
	difference *Difference // nil if what is explained are failures
	// scratch space of assessments
	by                 []sums
	cells, byAttribute []tally
	odd                []bool
}

// newLocaliser indexes the measured pairs, without those that are done.
func newLocaliser(e *Evidence, class judge.Failure, done []bool) *localiser {
	w := e.Worksheet
	l := &localiser{
		w: w, class: class, attributes: e.Attributes, byAttribute: make([]tally, len(e.Attributes)),
		by:  make([]sums, len(e.Attributes)),
		all: make([]measured, 0, len(e.Measured)),
	}
	keys := map[string]int32{}
	node := func(name string) int32 {
		i, ok := keys[name]
		if !ok {
			i = int32(len(l.nodes))
			keys[name] = i
			l.nodes = append(l.nodes, name)
		}
		return i
	}
	for _, i := range e.Measured {
		o := alive(&e.Outcomes[i])
		if done[i] {
			continue
		}
		m := measured{Outcome: o, at: i, fail: o.Failure == class, made: 1, by: open, datagram: datagram(o.Pair.Transport)}
		switch {
		case class == judge.Lost:
			m.made, m.failed = float64(o.Sent), float64(o.Sent-o.Received)
		case o.Verdict != checkup.Pass && !m.fail:
			m.by = silent // a pair without answers is neither slow nor fast
		case m.fail:
			m.failed = 1
		}
		m.requests, m.answers = o.Carried != checkup.DirectionReturn, o.Carried != checkup.DirectionForward
		if n := len(l.ways); n == 0 || l.ways[n-1].source != o.Pair.Source || l.ways[n-1].target != o.Pair.Target {
			l.ways = append(l.ways, way{
				from: int32(len(l.all)), source: o.Pair.Source, target: o.Pair.Target,
				a: node(w.Sources[o.Pair.Source].Node), b: node(w.Targets[o.Pair.Target].Node),
			})
		}
		m.way = int32(len(l.ways) - 1)
		way := &l.ways[m.way]
		m.a, m.b = way.a, way.b
		if m.fail {
			way.left++
		}
		l.all = append(l.all, m)
		way.end = int32(len(l.all))
	}
	l.narrowings()
	l.listPlaces()
	l.labelled()
	l.racks()
	return l
}

// modes are whether a cause at the place may concern all packets (false) or new flows only.
func (l *localiser) modes(p *place) []bool {
	switch {
	case len(p.back) == 0:
		return []bool{false}
	case l.class == judge.Reached:
		// A policy that allows new flows need not allow other packets.
		return []bool{true}
	default:
		return []bool{false, true}
	}
}

// fits is the tolerance of sums of costs.
const fits = 1e-9

// patience is how much more than the best known cause per pair another one may cost to be
// assessed to the end.
const patience = 2

// propose finds the best cause at a place: narrowed by one attribute only if the whole place
// costs extra, and by two only if one attribute is not sufficient. It does not look for causes
// that cost much more than atMost per pair; the place's key is then a lower bound.
func (l *localiser) propose(p *place, order int32, atMost float64) {
	p.best, p.floor, p.touched, p.last = nil, math.Inf(1), 0, p.left
	least := math.Inf(1) // cost per pair of those that were not assessed to the end
	var s *scope
	try := func(n *narrowing) *candidate {
		c := s.assess(n, patience*atMost)
		if c == nil || c.rare {
			return nil
		}
		p.floor = min(p.floor, c.cost)
		switch {
		case c.weak():
		case c.cut:
			least = min(least, c.perPair())
		case p.best == nil || c.better(p.best):
			p.best = c
		}
		return c
	}
	for _, flows := range l.modes(p) {
		s = l.scope(p, flows, order)
		whole := try(&l.whole)
		if whole == nil && p.cause == checkup.CausePair || whole != nil && whole.cost < 1+fits ||
			p.whole() {
			continue
		}
		done := false
		for i := range l.narrows {
			if c := try(&l.narrows[i]); c != nil {
				done = done || whole != nil && c.gain == whole.gain && c.cost < 1+narrowCost+fits
			}
		}
		for i := range l.narrows2 {
			if done {
				break
			}
			try(&l.narrows2[i])
		}
	}
	p.key, p.fresh = math.Inf(1), true
	if p.best != nil {
		p.key = p.best.perPair()
	}
	if least < p.key {
		p.key, p.fresh = least, false
	}
}

// perPair is the cost per newly explained pair, rounded, because equal sums added up in
// another order may differ.
func (c *candidate) perPair() float64 { return math.Round(1e9 * c.cost / float64(c.gain)) }

// better reports whether c is to be accepted before d.
func (c *candidate) better(d *candidate) bool {
	if a, b := c.perPair(), d.perPair(); a != b {
		return a < b
	}
	return c.compare(d) < 0
}

// queue is a heap of places, the one with the cheapest cause per newly explained pair on top.
// The key of a place that is not fresh is a lower bound, so that a fresh one on top is the
// best of all.
type queue []*place

func (q queue) Len() int { return len(q) }

func (q queue) Swap(i, k int) {
	q[i], q[k] = q[k], q[i]
	q[i].at, q[k].at = i, k
}

func (q queue) Less(i, k int) bool {
	p, o := q[i], q[k]
	switch {
	case p.key != o.key:
		return p.key < o.key
	case p.fresh != o.fresh:
		return o.fresh
	case p.fresh && p.best != nil && o.best != nil:
		return p.best.compare(o.best) < 0
	default:
		return p.index < o.index
	}
}

func (q *queue) Push(x any) {
	p := x.(*place)
	p.at = len(*q)
	*q = append(*q, p)
}

func (q *queue) Pop() any {
	last := len(*q) - 1
	p := (*q)[last]
	p.at = -1
	*q = (*q)[:last]
	return p
}

// bound makes the key of a place a lower bound of the cost per pair. Each way of which pairs
// were explained may have been an exception, by itself and in the cells that it is in. A wide
// place is assessed again only if half of what it explained is explained otherwise: it has
// many ways, and few of them matter.
func (p *place) bound() {
	p.fresh = false
	if p.wide() && 2*p.left > p.last && p.at >= 0 {
		return
	}
	p.key = math.Floor(1e9 * max(1, p.floor-2*exceptionCost*float64(p.touched)) / float64(p.left))
}

// cover chooses causes until every failed pair is explained: a greedy weighted set cover.
// Those of given are accepted first.
func (l *localiser) cover(given []*candidate) []*candidate {
	l.q = l.q[:0]
	for _, p := range l.places {
		if p.left > 0 {
			p.floor, p.touched, p.last = 1, 0, 0
			p.bound()
			l.q = append(l.q, p)
			p.at = len(l.q) - 1
		}
	}
	heap.Init(&l.q)
	var chosen []*candidate
	accept := func(c *candidate) {
		c.order = int32(len(chosen))
		l.accept(c)
		chosen = append(chosen, c)
	}
	for _, known := range given {
		if c := l.scope(known.place, known.flows, int32(len(chosen))).assess(&known.narrowing, math.Inf(1)); c != nil {
			c.component = known.component
			accept(c)
		}
	}
	for len(l.q) > 0 {
		p := l.q[0]
		switch {
		case p.left == 0:
			heap.Pop(&l.q)
		case p.fresh && p.best != nil:
			accept(p.best)
		case p.fresh:
			heap.Pop(&l.q)
		default:
			atMost := math.Inf(1)
			for k := 1; k < min(3, len(l.q)); k++ {
				atMost = min(atMost, l.q[k].key/1e9)
			}
			l.propose(p, int32(len(chosen)), atMost)
			heap.Fix(&l.q, 0)
		}
	}
	for _, c := range chosen {
		l.visit(c.place, &c.narrowing, c.flows, 0, func(i int32, _ bool) { c.add(i) })
		// with those that l.accept added
		c.explained = append(c.explained, c.newly...)
		slices.Sort(c.explained)
		c.explained = slices.Compact(c.explained)
	}
	kept := prune(chosen)
	l.oneDirection(kept)
	return kept
}

// add adds a pair of the scope.
func (c *candidate) add(i int32) {
	if c.l.all[i].fail {
		c.explained = append(c.explained, i)
	} else {
		c.passing = append(c.passing, i)
	}
}

// oneDirection replaces each node, and nodes of a label, by one of its directions, if that explains all pairs that no
// other cause explains.
func (l *localiser) oneDirection(chosen []*candidate) {
	if l.class != judge.Lost {
		return
	}
	times := map[int32]int{}
	for _, c := range chosen {
		for _, i := range c.explained {
			times[i]++
		}
	}
	for _, c := range chosen {
		if !c.bothDirections() || c.oneWay <= c.bothWays {
			continue
		}
		for _, p := range l.places[c.index-2 : c.index] { // its ingress and its egress: see listPlaces and labelled
			may := map[int32]bool{}
			var explained []int32
			l.visit(p, &c.narrowing, false, 0, func(i int32, _ bool) {
				if l.all[i].fail {
					may[i] = true
					explained = append(explained, i)
				}
			})
			if !slices.ContainsFunc(c.explained, func(i int32) bool { return times[i] == 1 && !may[i] }) {
				slices.Sort(explained)
				c.place, c.explained = p, explained
				break
			}
		}
	}
}

// accept notes what a cause newly explains. A place that drops everything also explains
// failures of which the direction is not known but only carried from other pairs: the pairs
// fail in any case.
func (l *localiser) accept(c *candidate) {
	touched := map[int32]bool{}
	take := func(i int32) {
		m := &l.all[i]
		m.by = c.order
		c.newly = append(c.newly, i)
		w := &l.ways[m.way]
		w.left--
		for _, p := range w.places {
			p.left--
		}
		touched[m.way] = true
	}
	drops := l.class == judge.Lost && !c.flows && c.drops
	for side, list := range [][]int32{c.there, c.back} {
		if side == 1 && c.flows {
			break
		}
		for _, k := range list {
			for i := l.ways[k].from; i < l.ways[k].end; i++ {
				m := &l.all[i]
				if m.fail && m.by == open && c.admits[m.Attribute] &&
					(c.explains(m, side == 1) || drops && m.Direction == checkup.DirectionUnknown) {
					take(i)
				}
			}
		}
	}
	slices.Sort(c.newly)
	stale := map[*place]int{}
	for k := range touched {
		for _, p := range l.ways[k].places {
			stale[p]++
		}
	}
	for p, ways := range stale {
		p.touched += ways
		switch {
		case p.left == 0 && p.at >= 0:
			heap.Remove(&l.q, p.at)
		case p.left == 0:
		case p.at < 0:
			p.bound()
			heap.Push(&l.q, p)
		default:
			p.bound()
			heap.Fix(&l.q, p.at)
		}
	}
}

// alternatives are the causes that explain the same pairs, which no cause accepted before
// explained, at about the same cost. What the whole sample shows against such a cause is one more
// exception: in a small mesh, or with few probes, no cell shows enough by itself.
func (l *localiser) alternatives(c *candidate) []*candidate {
	var same []*candidate
	usual := c.elsewhere(c.only)
	atMost := c.cost + alternativeCost + fits
	for _, p := range l.ways[l.all[c.newly[0]].way].places {
		for _, flows := range l.modes(p) {
			s := l.scope(p, flows, c.order)
			for _, list := range [][]narrowing{{l.whole}, l.narrows, l.narrows2} {
				for i := range list {
					if p == c.place && list[i].narrow == c.narrow ||
						p.whole() && list[i].degree() > 0 {
						continue
					}
					if s.gain(&list[i]) != len(c.newly) {
						continue
					}
					d := s.assess(&list[i], atMost/float64(len(c.newly)))
					if d.rare || d.cut {
						continue
					}
					worse := c.total.against(usual) - s.total(&list[i], c.only).against(usual)
					if d.cost+max(0, worse-d.allowed) <= atMost && l.explains(d, c.newly) {
						same = append(same, d)
					}
				}
			}
		}
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

// explains reports whether a cause explains each of some failed pairs.
func (l *localiser) explains(c *candidate, pairs []int32) bool {
	rest := map[int32]bool{}
	for _, i := range pairs {
		rest[i] = true
	}
	l.visit(c.place, &c.narrowing, c.flows, c.order, func(i int32, _ bool) { delete(rest, i) })
	return len(rest) == 0
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
