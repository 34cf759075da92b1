// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"cmp"
	"container/heap"

	"github.com/checkplan/checkplan/pkg/judge"
)

// component is a Component that may be accepted.
type component struct {
	*place
	index     int // of the place
	narrowing *narrowing
	test      judge.Test
	p         float64 // of a sample as bad or worse, if the limit is just kept
	score     float64 // evidence that more fail than usually, in nats
	suspect   bool    // it may exceed the limit
	fresh     bool
	gone      bool // it was taken, or does not exceed the limit any more
}

// ranking is a heap of components, the one with most evidence on top. The evidence of one that
// is not fresh is an upper bound: it had more packets.
type ranking []*component

func (r ranking) Len() int { return len(r) }

func (r ranking) Swap(i, k int) { r[i], r[k] = r[k], r[i] }

func (r ranking) Less(i, k int) bool { return r[i].before(r[k]) }

func (r *ranking) Push(x any) { *r = append(*r, x.(*component)) }

func (r *ranking) Pop() any {
	last := len(*r) - 1
	c := (*r)[last]
	*r = (*r)[:last]
	return c
}

func (c *component) before(d *component) bool {
	return cmp.Or(
		cmp.Compare(d.score, c.score),
		cmp.Compare(c.narrowing.degree(), d.narrowing.degree()),
		cmp.Compare(c.index, d.index),
	) < 0
}

// refresh assesses a component without the packets that were explained meanwhile. It reports
// whether it still may exceed the limit.
func (p *pool) refresh(c *component) bool {
	if c.fresh {
		return true
	}
	p.sum(c.place)
	if test, of := p.total(c.place, &p.l.whole); test.k+of.packets.k+of.trips.k == 0 {
		for _, d := range p.components[c.index] {
			d.gone = true
		}
	}
	if c.gone || !p.assess(c) || !c.suspect {
		return false
	}
	c.score -= p.uneven(c)
	c.fresh = true
	return c.score > 0 && !p.single(c)
}

// next removes the component for which there is most evidence from the ranking; nil if none is
// left. Components that share packets with one that was taken are assessed again when they are
// on top. Those that do not suit any more go to rest.
func (r *ranking) next(p *pool, suits func(*component) bool, rest *ranking) *component {
	for len(*r) > 0 {
		c := heap.Pop(r).(*component)
		switch fresh := c.fresh; {
		case c.gone:
		case !p.refresh(c):
			c.gone = true
		case !suits(c):
			*rest = append(*rest, c)
		case fresh:
			return c
		default:
			heap.Push(r, c)
		}
	}
	return nil
}
