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
	share    float64 // of their measurements that fail
	links    int     // unordered node pairs among those explained: 1, or 2 for more
	ways     int     // ordered node pairs among those explained: 1, or 2 for more
	oneWay   int     // explained pairs whose direction is known to be one
	bothWays int     // explained pairs that lost packets in both directions
	oddity   float64 // cost of its exceptions
	drops    bool    // it drops everything, except at its exceptions
	rare     bool    // too few pairs fail to suggest it
	cost     float64
	// when it was accepted
	order     int32      // how many were accepted before
	newly     []int32    // failed pairs that it newly explained
	explained []int32    // failed pairs that it explains, in order
	passing   []int32    // pairs that should fail, but do not
	component *Component // that exceeds a limit, as a whole; nil if single pairs do
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

// assess computes what a cause newly explains and what it costs, without the pairs that the
// first order accepted causes explain; nil if it explains nothing.
func (l *localiser) assess(p *place, n *narrowing, flows bool, order int32) *candidate {
	c := &candidate{l: l, place: p, narrowing: *n, flows: flows, order: order}
	var datagrams, all tally
	var pairs, failing [2]int // of streams and of datagrams
	var a, b int32 = -1, -1   // the first node pair
	l.visit(p, n, flows, order, func(i int32, back bool) {
		m := &l.all[i]
		c.measured++
		all.add(m)
		kind := 0
		if m.datagram {
			kind = 1
			datagrams.add(m)
		}
		pairs[kind]++
		if !m.fail {
			return
		}
		failing[kind]++
		c.gain++
		if !back {
			c.requests++
		}
		switch {
		case a < 0:
			a, b, c.links, c.ways = m.a, m.b, 1, 1
		case m.a == a && m.b == b:
		case m.a == b && m.b == a:
			c.ways = 2
		default:
			c.links, c.ways = 2, 2
		}
		switch m.Carried {
		case checkup.DirectionForward, checkup.DirectionReturn:
			c.oneWay++
		case checkup.DirectionBoth:
			c.bothWays++
		}
	})
	if c.gain == 0 {
		return nil
	}
	// A loss that is not total is judged only by datagrams, if there are any.
	only := false
	total, fail, relevant := all, failing[0]+failing[1], pairs[0]+pairs[1]
	if part := datagrams.failed / max(datagrams.made, 1); l.class == judge.Lost && part > 0 && part < dropShare {
		only, total, fail, relevant = true, datagrams, failing[1], pairs[1]
	}
	c.share = total.failed / max(total.made, 1)
	c.rare = p.cause != checkup.CausePair && float64(fail) < minShare*float64(relevant)
	c.oddity = l.exceptions(c, only)
	c.cost = 1 + c.oddity
	switch {
	case p.cause == checkup.CauseNetwork && n.degree() > 0:
		c.cost += narrowCost * float64(n.degree()-1)
	default:
		c.cost += narrowCost * float64(n.degree())
	}
	if p.cause == checkup.CauseNode && c.oneWay > c.bothWays {
		c.cost += narrowCost // if one direction suffices, it is the one
	}
	return c
}

// exceptions is the cost of the cells whose results differ from the rest of the scope:
// by node pair, by whether requests or answers go through the place, by each attribute,
// and for wide places by node. If only is set, datagrams alone count.
func (l *localiser) exceptions(c *candidate, only bool) float64 {
	wide := c.cause == checkup.CauseNetwork || c.cause == checkup.CauseZones || c.cause == checkup.CauseNodes
	ends := 0
	if wide {
		ends = len(l.nodes)
	}
	// tallies fills in l.cells, without the ways that are exceptions: first the cells of
	// requests and of answers, then those of each node as source and as target, then those of
	// ways and of attributes.
	const fixed = 2
	tallies := func(exceptions []bool) {
		cells := slices.Grow(l.cells[:0], fixed+2*ends)[:fixed+2*ends]
		clear(cells)
		clear(l.byAttribute)
		last, n := int32(-1), -1
		l.visit(c.place, &c.narrowing, c.flows, c.order, func(i int32, back bool) {
			m := &l.all[i]
			if only && !m.datagram {
				return
			}
			if m.way != last {
				last = m.way
				if n++; n >= len(exceptions) || !exceptions[n] {
					cells = append(cells, tally{})
				}
			}
			if n < len(exceptions) && exceptions[n] {
				return
			}
			cells[len(cells)-1].add(m)
			if back || c.cause == checkup.CauseNode && l.nodes[m.a] != c.subject {
				cells[1].add(m)
			} else {
				cells[0].add(m)
			}
			l.byAttribute[m.Attribute].add(m)
			if wide {
				cells[fixed+int(m.a)].add(m)
				cells[fixed+ends+int(m.b)].add(m)
			}
		})
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
	tallies(nil)

	// Of many cells, one differs by chance. But whether a pair is slow, or passes a
	// policy, does not depend on chance.
	allowed := float64(chance)
	if l.class == judge.Lost {
		n := 0
		for _, t := range l.cells {
			if t.made > 0 {
				n++
			}
		}
		allowed += math.Log(float64(n))
	}
	against := func(share float64) float64 {
		cost := 0.0
		for _, t := range l.cells {
			cost += min(exceptionCost, max(0, t.against(share)-allowed))
		}
		return cost
	}
	const sure = 1e-9
	cost := against(min(max(c.share, sure), 1-sure))
	c.drops = c.share >= dropShare
	if c.share > 0.5 && cost > 0 {
		// Of a place that drops everything, the exceptions are the ways that pass, not
		// those that fail.
		odd, n := make([]bool, 0, len(l.ways)), 0.0
		for _, t := range l.cells[fixed+2*ends : len(l.cells)-len(l.values)] {
			odd = append(odd, t.against(1-sure) > allowed+exceptionCost)
			if odd[len(odd)-1] {
				n++
			}
		}
		tallies(odd)
		if total := n*exceptionCost + against(1-sure); total < cost {
			cost, c.drops = total, true
		}
	}
	return cost
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
	case checkup.CauseNodeIngress, checkup.CauseNodeEgress:
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
	case checkup.CauseZones:
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
