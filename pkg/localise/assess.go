// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"cmp"
	"math"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
)

// The weights of the localiser's costs. One cause costs 1, and what makes an
// explanation worse costs as much as this many more causes.
const (
	// narrowing a place to one family, transport or size, or an attribute to a
	// second one
	narrowCost = 0.25
	// an exception: one node pair, or one transport, whose results differ from the rest
	// of the scope. A node with 5 peers of which 1 passes is not named; one with 6 is.
	exceptionCost = 3
	// evidence, in nats, that chance explains, and that costs nothing
	chance = 3
	// how much more an explanation of the same pairs may cost to be listed as an
	// alternative
	alternativeCost = 0.3
	// the share of its pairs that a cause of more than one node pair must see fail
	minShare = 0.15
	// from this share of losses up, a loss is a drop: TCP would not repair it
	dropShare = 0.9
)

// candidate is one possible cause.
type candidate struct {
	l *localiser
	*place
	narrowing
	// flows: only new flows are affected, as by a stateful policy: the answers of other
	// flows pass. If false, every packet is affected.
	flows    bool
	gain     int     // failed pairs that it newly explains
	requests int     // of which by their requests
	measured int     // pairs that it affects and that no cause accepted before explains
	total    tally   // their measurements
	only     bool    // of which datagrams alone count
	share    float64 // of them that fails
	links    int     // unordered node pairs among those explained: 1, or 2 for more
	ways     int     // ordered node pairs among those explained: 1, or 2 for more
	oneWay   int     // explained pairs whose direction is known to be one
	bothWays int     // explained pairs that lost packets in both directions
	allowed  float64 // evidence, in nats, that chance explains in one cell
	oddity   float64 // cost of its exceptions
	drops    bool    // it drops everything, except at its exceptions
	rare     bool    // too few pairs fail to suggest it
	cut      bool    // it costs at least cost, which is too much
	cost     float64
	// when it was accepted
	order     int32        // how many were accepted before
	newly     []int32      // failed pairs that it newly explained
	explained []int32      // failed pairs that it explains, in order
	passing   []int32      // pairs that should fail, but do not
	component *Component   // that exceeds a limit, as a whole; nil if single pairs do
	others    []*candidate // itself and its alternatives; nil if they are not computed yet: see rivals
	ruledOut  []*candidate // alternatives that a further look ruled out
}

// datagram reports whether a transport shows each lost packet; TCP repairs
// losses, and shows them as delays.
func datagram(t checkup.Transport) bool { return t == checkup.UDP || t == checkup.ICMP }

// tally is the sum of the measurements in a cell of the evidence.
type tally struct{ made, failed float64 }

func (t *tally) add(m *measured) {
	t.made += m.made
	t.failed += m.failed
}

// against is the evidence, in nats, that the cell's share of failures differs
// from that of the whole scope: the logarithm of the likelihood ratio.
func (t tally) against(share float64) float64 {
	if t.made == 0 {
		return 0
	}
	q := t.failed / t.made
	nats := 0.0
	if q > 0 {
		nats += q * math.Log(q/share)
	}
	if q < 1 {
		nats += (1 - q) * math.Log((1-q)/(1-share))
	}
	return t.made * nats
}

// visit calls do with each pair that a cause affects and that none of the first order
// accepted causes explains. A failed pair that lost its packets elsewhere is left out.
func (l *localiser) visit(p *place, n *narrowing, flows bool, order int32, do func(i int32, back bool)) {
	for side, list := range [][]int32{p.there, p.back} {
		back := side == 1
		if back && flows {
			return
		}
		for _, k := range list {
			for i := l.ways[k].from; i < l.ways[k].end; i++ {
				m := &l.all[i]
				if m.by >= order && n.admits[m.Attribute] && (!m.fail || p.explains(m, back)) {
					do(i, back)
				}
			}
		}
	}
}

// sums are those of the pairs of one attribute, or of several, at a place.
type sums struct {
	all, datagrams   tally
	pairs, failing   [2]int // of streams and of datagrams
	requests         int    // failing pairs whose requests go through the place
	oneWay, bothWays int    // failing pairs by direction
	a, b             int32  // nodes of the first failing pair, if ways is not 0
	links, ways      int    // as in candidate
}

// fail adds a failed pair.
func (s *sums) fail(m *measured, kind int, back bool) {
	s.failing[kind]++
	if !back {
		s.requests++
	}
	switch m.Carried {
	case checkup.DirectionForward, checkup.DirectionReturn:
		s.oneWay++
	case checkup.DirectionBoth:
		s.bothWays++
	}
	s.way(m.a, m.b)
}

// way adds an ordered node pair.
func (s *sums) way(a, b int32) {
	switch {
	case s.ways == 0:
		s.a, s.b, s.links, s.ways = a, b, 1, 1
	case s.a == a && s.b == b:
	case s.a == b && s.b == a:
		s.ways = 2
	default:
		s.links, s.ways = 2, 2
	}
}

// add adds the pairs of another attribute.
func (s *sums) add(o *sums) {
	s.all.made += o.all.made
	s.all.failed += o.all.failed
	s.datagrams.made += o.datagrams.made
	s.datagrams.failed += o.datagrams.failed
	for k := range s.pairs {
		s.pairs[k] += o.pairs[k]
		s.failing[k] += o.failing[k]
	}
	s.requests += o.requests
	s.oneWay += o.oneWay
	s.bothWays += o.bothWays
	if o.ways > 0 {
		s.way(o.a, o.b)
		s.links, s.ways = max(s.links, o.links), max(s.ways, o.ways)
	}
}

// scope is a place, all packets or new flows only, and the pairs that the first order accepted
// causes do not explain, summed up by attribute.
type scope struct {
	l *localiser
	*place
	flows bool
	order int32
	by    []sums
}

// scope sums up the pairs of a place.
func (l *localiser) scope(p *place, flows bool, order int32) *scope {
	s := &scope{l: l, place: p, flows: flows, order: order, by: l.by}
	clear(s.by)
	l.visit(p, &l.whole, flows, order, func(i int32, back bool) {
		m := &l.all[i]
		t := &s.by[m.Attribute]
		t.all.add(m)
		kind := 0
		if m.datagram {
			kind = 1
			t.datagrams.add(m)
		}
		t.pairs[kind]++
		if m.fail {
			t.fail(m, kind, back)
		}
	})
	return s
}

// admitted sums up the pairs of the attributes that a narrowing admits.
func (s *scope) admitted(n *narrowing) sums {
	var t sums
	for i := range s.by {
		if n.admits[i] {
			t.add(&s.by[i])
		}
	}
	return t
}

// total sums up their measurements; if only is set, those of datagrams.
func (s *scope) total(n *narrowing, only bool) tally {
	t := s.admitted(n)
	if only {
		return t.datagrams
	}
	return t.all
}

// gain is the number of pairs that a cause newly explains.
func (s *scope) gain(n *narrowing) int {
	gain := 0
	for i := range s.by {
		if n.admits[i] {
			gain += s.by[i].failing[0] + s.by[i].failing[1]
		}
	}
	return gain
}

// assess computes what a cause newly explains and what it costs; nil if it explains nothing.
// If it costs more than atMost per pair, its cost is only a lower bound, and cut is set.
func (s *scope) assess(n *narrowing, atMost float64) *candidate {
	l, t := s.l, s.admitted(n)
	c := &candidate{
		l: l, place: s.place, narrowing: *n, flows: s.flows, order: s.order, gain: t.failing[0] + t.failing[1],
		measured: t.pairs[0] + t.pairs[1], requests: t.requests, oneWay: t.oneWay, bothWays: t.bothWays,
		links: t.links, ways: t.ways,
	}
	if c.gain == 0 {
		return nil
	}
	// A loss that is not total is judged only by datagrams, if there are any.
	fail, relevant := c.gain, c.measured
	c.total = t.all
	if part := t.datagrams.failed / max(t.datagrams.made, 1); l.class == judge.Lost && part > 0 && part < dropShare {
		c.only, c.total, fail, relevant = true, t.datagrams, t.failing[1], t.pairs[1]
	}
	c.share = c.total.failed / max(c.total.made, 1)
	c.rare = s.cause != checkup.CausePair && float64(fail) < minShare*float64(relevant)
	c.cost = 1
	switch {
	case s.cause == checkup.CauseNetwork && n.degree() > 0:
		c.cost += narrowCost * float64(n.degree()-1)
	default:
		c.cost += narrowCost * float64(n.degree())
	}
	if s.bothDirections() && c.oneWay > c.bothWays {
		c.cost += narrowCost // if one direction suffices, it is the one
	}
	l.exceptions(c, atMost*float64(c.gain)-c.cost)
	c.cost += c.oddity
	return c
}

// exceptions computes the cost of the cells whose results differ from the rest of the scope:
// by node pair, by whether requests or answers go through the place, by each attribute,
// and for wide places by node. If c.only is set, datagrams alone count. It stops when the cost is
// higher than atMost.
func (l *localiser) exceptions(c *candidate, atMost float64) {
	if atMost < 0 {
		c.cut = true
		return
	}
	c.drops = c.share >= dropShare
	wide := c.wide()
	ways := len(c.there)
	if !c.flows {
		ways += len(c.back)
	}
	cells := 2 + ways + len(l.values) // 2 for requests and answers
	if wide {
		cells += 2 * len(l.nodes)
	}
	// Of many cells, one differs by chance. But whether a pair is slow, or passes a
	// policy, does not depend on chance.
	c.allowed = chance
	if l.class == judge.Lost {
		c.allowed += math.Log(float64(cells))
	}
	const sure = 1e-9
	share := min(max(c.share, sure), 1-sure)
	price := func(t tally, share float64) float64 { return min(exceptionCost, max(0, t.against(share)-c.allowed)) }

	// Of a place that drops everything, the exceptions are the ways that pass, not those that
	// fail: dropping is the cost if it is such a place, and odd are its exceptions.
	cost, dropping := 0.0, math.Inf(1)
	if c.share > 0.5 {
		dropping = 0
	}
	odd, k := l.odd[:0], -1
	l.tally(c, wide, nil, func(t tally) bool {
		k++
		odd = append(odd, t.against(1-sure) > c.allowed+exceptionCost)
		cost += price(t, share)
		dropping += price(t, 1-sure)
		return min(cost, dropping) <= atMost
	})
	l.odd = odd
	if min(cost, dropping) > atMost {
		c.cut, c.oddity = true, min(cost, dropping)
		return
	}
	for _, t := range l.cells {
		cost += price(t, share)
	}
	if cost > 0 && dropping < cost {
		l.tally(c, wide, odd, func(tally) bool { return true })
		for _, t := range l.cells {
			dropping += price(t, 1-sure)
		}
		if dropping < cost {
			cost, c.drops = dropping, true
		}
	}
	c.oddity = cost
	c.cut = cost > atMost
}

// wide reports whether a place has so many nodes that some may be exceptions.
func (p *place) wide() bool {
	return p.cause == checkup.CauseNetwork || p.betweenGroups() || len(p.nodes) > 0
}

// betweenGroups reports whether a place is what goes from one group of nodes to another.
func (p *place) betweenGroups() bool {
	return p.cause == checkup.CauseZones || p.cause == checkup.CauseGroups
}

// whole reports whether a place is never narrowed.
func (p *place) whole() bool {
	return p.cause == checkup.CauseSource || p.cause == checkup.CauseNodes && !p.label
}

// bothDirections reports whether the two directions of a place are places too.
func (p *place) bothDirections() bool {
	return p.cause == checkup.CauseNode || p.cause == checkup.CauseNodes && p.label
}

// tally calls each with the tally of each way of a cause's scope, until it returns false, and
// fills in l.cells with the others, without the ways that are odd.
func (l *localiser) tally(c *candidate, wide bool, odd []bool, each func(tally) bool) {
	ends := 0
	if wide {
		ends = len(l.nodes)
	}
	const fixed = 2
	cells := slices.Grow(l.cells[:0], fixed+2*ends+len(l.values))[:fixed+2*ends]
	clear(cells)
	clear(l.byAttribute)
	n := -1
	for side, list := range [][]int32{c.there, c.back} {
		back := side == 1
		if back && c.flows {
			break
		}
		for _, k := range list {
			w := &l.ways[k]
			var t tally
			side := 0
			if back || c.cause == checkup.CauseNode && l.nodes[w.a] != c.subject || c.bothDirections() && c.label && !c.in[w.a] {
				side = 1
			}
			n++
			skip := n < len(odd) && odd[n]
			for i := w.from; i < w.end; i++ {
				m := &l.all[i]
				if m.by < c.order || !c.admits[m.Attribute] || m.fail && !c.explains(m, back) || c.only && !m.datagram {
					continue
				}
				t.add(m)
				if !skip {
					l.byAttribute[m.Attribute].add(m)
				}
			}
			if t.made == 0 {
				if !each(t) {
					return
				}
				continue
			}
			if !skip {
				cells[side].made += t.made
				cells[side].failed += t.failed
				if wide {
					for _, at := range []int{fixed + int(w.a), fixed + ends + int(w.b)} {
						cells[at].made += t.made
						cells[at].failed += t.failed
					}
				}
			}
			if !each(t) {
				return
			}
		}
	}
	for _, value := range l.values {
		var t tally
		for i, is := range value.admits {
			if is {
				t.made += l.byAttribute[i].made
				t.failed += l.byAttribute[i].failed
			}
		}
		cells = append(cells, t)
	}
	l.cells = cells
}

// weak reports whether the evidence is too little to name more than a node pair.
func (c *candidate) weak() bool {
	switch c.cause {
	case checkup.CausePair:
		return false
	case checkup.CauseNetwork:
		return c.ways < 2
	default:
		return c.links < 2
	}
}

// byChance reports whether pairs of the scope pass by chance: the cause drops only some
// of the packets, and no cell differs from the rest.
func (c *candidate) byChance() bool { return c.share < dropShare && c.oddity == 0 }

// rank orders causes that explain the same pairs at the same cost: the more specific
// first.
func (c *candidate) rank() int {
	switch c.cause {
	case checkup.CausePair:
		if c.links == 1 {
			return 0
		}
		return 90
	case checkup.CauseNodeIngress, checkup.CauseNodeEgress, checkup.CauseNodesIngress, checkup.CauseNodesEgress:
		// Without a known direction they are no more likely than node.
		if c.flows || c.oneWay > c.bothWays {
			return 10
		}
		return 12
	case checkup.CauseNode, checkup.CauseNodes:
		return 11
	case checkup.CauseTarget:
		if c.pod {
			return 9
		}
		return 20
	case checkup.CauseSource:
		return 21
	case checkup.CauseZones, checkup.CauseGroups:
		return 30
	default:
		switch {
		case c.degree() == 0:
			return 50
		case c.fromSize > 0:
			return 42
		case c.transport != "":
			return 41
		default:
			return 40
		}
	}
}

// compare orders candidates of the same cost per pair.
func (c *candidate) compare(d *candidate) int {
	return cmp.Or(
		cmp.Compare(c.rank(), d.rank()),
		cmp.Compare(d.requests, c.requests),
		cmp.Compare(c.degree(), d.degree()),
		cmp.Compare(c.cost, d.cost),
		cmp.Compare(slices.Index(checkup.FindingCauses, c.cause), slices.Index(checkup.FindingCauses, d.cause)),
		cmp.Compare(c.subject, d.subject),
		// If only one transport has the large payloads, the transport is named.
		cmp.Compare(c.fromSize, d.fromSize),
		cmp.Compare(c.transport, d.transport),
		cmp.Compare(c.family, d.family),
		-compareBool(c.flows, d.flows),
	)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	default:
		return -1
	}
}
