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
	narrow
	// flows: only new flows are affected, as by a stateful policy: the answers of other
	// flows pass. If false, every packet is affected.
	flows     bool
	explained []int32 // failed pairs, in order
	there     int     // of which by their requests
	passing   []int32 // pairs that should fail, but pass
	scope     int     // measured pairs that it affects
	share     float64 // of measurements that fail
	links     int     // unordered node pairs among explained
	ways      int     // ordered node pairs among explained
	oneWay    int     // explained pairs whose direction is known to be one
	bothWays  int     // explained pairs that lost packets in both directions
	oddity    float64 // cost of its exceptions
	cost      float64
	// when it was accepted
	gain         int
	alternatives []*candidate
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

// assess computes what a cause explains and what it costs; nil if it explains nothing,
// or less than minShare of its scope.
func (l *localiser) assess(p *place, n narrow, flows bool) *candidate {
	c := &candidate{l: l, place: p, narrow: n, flows: flows}
	var scope []int32
	var datagrams, all tally
	failing := 0
	take := func(list []int32, back bool) {
		for _, i := range list {
			m := &l.all[i]
			if !n.admits(l.attributes[m.Attribute]) {
				continue
			}
			if m.fail {
				if !p.explains(m, back) {
					continue
				}
				c.explained = append(c.explained, i)
				if !back {
					c.there++
				}
			} else {
				c.passing = append(c.passing, i)
			}
			scope = append(scope, i)
			all.add(m)
			if datagram(m.Pair.Transport) {
				datagrams.add(m)
			}
		}
	}
	take(p.there, false)
	there := len(scope)
	if !flows {
		take(p.back, true)
	}
	if len(c.explained) == 0 {
		return nil
	}
	slices.Sort(c.explained)
	c.scope = len(scope)

	// A loss that is not total is judged only by datagrams, if there are any.
	counts := func(*measured) bool { return true }
	total := all
	if part := datagrams.failed / max(datagrams.made, 1); l.class == judge.Lost && part > 0 && part < dropShare {
		counts = func(m *measured) bool { return datagram(m.Pair.Transport) }
		total = datagrams
	}
	c.share = total.failed / max(total.made, 1)
	relevant := 0
	for _, i := range scope {
		if m := &l.all[i]; counts(m) {
			relevant++
			if m.fail {
				failing++
			}
		}
	}
	c.oddity = l.exceptions(c, scope, there, counts)
	c.cost = 1 + c.oddity
	switch {
	case p.cause == checkup.CauseNetwork && n.degree() > 0:
		c.cost += narrowCost * float64(n.degree()-1)
	default:
		c.cost += narrowCost * float64(n.degree())
	}
	c.weigh()
	if p.cause != checkup.CausePair && float64(failing) < minShare*float64(relevant) {
		return nil
	}
	return c
}

// exceptions is the cost of the cells whose results differ from the rest of the scope:
// by node pair, by whether requests or answers go through the place, by each attribute,
// and for wide places by node. The requests of the first there pairs of the scope go
// through the place.
func (l *localiser) exceptions(c *candidate, scope []int32, there int, counts func(*measured) bool) float64 {
	wide := c.cause == checkup.CauseNetwork || c.cause == checkup.CauseZones
	var sources, targets []tally
	if wide {
		sources, targets = make([]tally, len(l.nodes)), make([]tally, len(l.nodes))
	}
	byAttribute := make([]tally, len(l.attributes))
	cells := make([]tally, 2, 16) // the first two are for requests and answers
	var a, b int32 = -1, -1
	for k, i := range scope {
		m := &l.all[i]
		if !counts(m) {
			continue
		}
		// Pairs of one source and target follow one another.
		if m.a != a || m.b != b {
			cells = append(cells, tally{})
			a, b = m.a, m.b
		}
		cells[len(cells)-1].add(m)
		if k < there && (c.cause != checkup.CauseNode || l.nodes[m.a] == c.subject) {
			cells[0].add(m)
		} else {
			cells[1].add(m)
		}
		byAttribute[m.Attribute].add(m)
		if wide {
			sources[m.a].add(m)
			targets[m.b].add(m)
		}
	}
	for _, n := range l.values {
		var t tally
		for i, a := range l.attributes {
			if n.is(a) {
				t.made += byAttribute[i].made
				t.failed += byAttribute[i].failed
			}
		}
		cells = append(cells, t)
	}
	cells = slices.Concat(cells, sources, targets)

	// Of many cells, one differs by chance. But whether a pair is slow, or passes a
	// policy, does not depend on chance.
	allowed := float64(chance)
	if l.class == judge.Lost {
		allowed += math.Log(float64(len(cells)))
	}
	share := min(max(c.share, 1e-9), 1-1e-9)
	cost := 0.0
	for _, t := range cells {
		cost += min(exceptionCost, max(0, t.against(share)-allowed))
	}
	return cost
}

// weigh counts the node pairs and directions of the explained pairs.
func (c *candidate) weigh() {
	links, ways := map[[2]int32]bool{}, map[[2]int32]bool{}
	var a, b int32 = -1, -1
	for _, i := range c.explained {
		m := &c.l.all[i]
		if m.a != a || m.b != b { // pairs of one source and target follow one another
			a, b = m.a, m.b
			links[[2]int32{min(a, b), max(a, b)}] = true
			ways[[2]int32{a, b}] = true
		}
		switch m.Carried {
		case checkup.DirectionForward, checkup.DirectionReturn:
			c.oneWay++
		case checkup.DirectionBoth:
			c.bothWays++
		}
	}
	c.links, c.ways = len(links), len(ways)
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
	case checkup.CauseNode:
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
		cmp.Compare(d.there, c.there),
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
