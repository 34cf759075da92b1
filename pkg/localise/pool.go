// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"container/heap"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/stats"
)

// pool tests the places of a localiser, with all their packets, against one limit.
type pool struct {
	l     *localiser
	limit limit
	level float64
	usual usual
	late  []int32 // by pair
	// By pair, whether its requests, and its answers, are explained.
	requests, answers []bool
	by                []shares       // by attribute, of one place
	components        [][]*component // by place
}

// newPool prepares a limit's test of all components at the given level.
func newPool(l *localiser, of limit, level float64) *pool {
	p := &pool{
		l: l, limit: of, level: level, requests: make([]bool, len(l.all)), answers: make([]bool, len(l.all)),
		by: make([]shares, len(l.attributes)),
	}
	if of.Limit != checkup.LimitLoss {
		p.late = make([]int32, len(l.all))
		for i := range l.all {
			p.late[i] = int32(of.lateOf(l.all[i].Outcome))
		}
	}
	return p
}

// scan finds the components of which more measurements fail than the limit allows.
func (p *pool) scan() {
	p.components = make([][]*component, len(p.l.places))
	for i, at := range p.l.places {
		if !p.l.pooled(at) {
			continue
		}
		p.sum(at)
		for _, list := range p.l.narrowingsOf(at) {
			for k := range list {
				c := &component{place: at, index: i, narrowing: &list[k]}
				if p.assess(c) && c.suspect {
					p.components[i] = append(p.components[i], c)
				}
			}
		}
	}
}

// explained notes that the failures of pairs are explained by a cause.
func (p *pool) explained(pairs []int32) {
	for _, i := range pairs {
		p.requests[i], p.answers[i] = true, true
	}
}

// take removes the packets of a component, and returns it.
func (p *pool) take(c *component) *Component {
	l := p.l
	made := &Component{Test: c.test, place: c.place, narrowing: *c.narrowing, verdict: checkup.Undecided}
	if c.p <= p.level {
		made.verdict = checkup.Fail
	}
	made.Parts = p.partsOf(c)
	made.named = made.Parts
	counted, _ := p.sorts(c)
	p.scope(c, func(i int32, back bool) {
		one := counted && l.all[i].Counted
		p.requests[i] = p.requests[i] || !one || !back
		p.answers[i] = p.answers[i] || !one || back
	})
	c.gone = true
	p.l.waysOf(c.place, func(w *way) {
		for _, at := range w.places {
			for _, d := range p.components[at.index] {
				d.fresh = false
			}
		}
	})
	return made
}

// run tests all components: it returns those that exceed the limit, the one with most
// evidence first, and then those that may exceed it. Each is tested without the packets of
// those before it.
func (p *pool) run() (failed, undecided []*Component) {
	p.setUsual()
	p.scan()
	var exceed, doubted, nothing ranking
	exceeds := func(c *component) bool { return c.p <= p.level }
	for _, list := range p.components {
		for _, c := range list {
			if exceeds(c) {
				exceed = append(exceed, c)
			} else {
				doubted = append(doubted, c)
			}
		}
	}
	heap.Init(&exceed)
	for {
		c := exceed.next(p, exceeds, &doubted)
		if c == nil {
			break
		}
		failed = append(failed, p.locate(c))
	}
	doubted = slices.DeleteFunc(doubted, func(c *component) bool { return c.gone })
	heap.Init(&doubted)
	for len(undecided) < MaxUndecided {
		c := doubted.next(p, func(*component) bool { return true }, &nothing)
		if c == nil {
			break
		}
		undecided = append(undecided, p.locate(c))
	}
	return failed, undecided
}

// locate takes a component that exceeds the limit, or may. If another one, of some of its ways,
// explains that better although it may not exceed the limit by itself, this one is named.
func (p *pool) locate(c *component) *Component {
	if c.cause == checkup.CauseNetwork || c.betweenGroups() {
		return p.take(c) // what explains it better is among the others
	}
	within := map[int32]bool{}
	for _, list := range [][]int32{c.there, c.back} {
		for _, w := range list {
			within[w] = true
		}
	}
	outside := func(w int32) bool { return !within[w] }
	best := c
	for _, at := range p.l.ways[slices.Concat(c.there, c.back)[0]].places {
		if !p.l.pooled(at) || slices.ContainsFunc(at.there, outside) || slices.ContainsFunc(at.back, outside) {
			continue
		}
		p.sum(at)
		for _, list := range p.l.narrowingsOf(at) {
			for k := range list {
				d := &component{place: at, index: at.index, narrowing: &list[k]}
				if p.assess(d); d.score > best.score {
					d.score -= p.uneven(d)
				}
				if d.score > best.score && !p.single(d) {
					best = d
				}
			}
		}
	}
	var named []Part
	if best != c {
		named = p.partsOf(best)
	}
	made := p.take(c)
	if best != c {
		made.place, made.narrowing, made.named = best.place, *best.narrowing, named
	}
	return made
}

// background is the share of measurements that fail although no cause explains them; nil if
// none does.
func (p *pool) background() *checkup.Background {
	network := p.l.places[0]
	p.sum(network)
	test, _ := p.total(network, &p.l.whole)
	if test.k == 0 {
		return nil
	}
	return &checkup.Background{
		Limit: p.limit.Limit, Failed: test.k, Sent: test.n,
		Rate:  checkup.Percent(100 * float64(test.k) / float64(test.n)),
		Upper: checkup.Percent(100 * stats.Upper(test.k, test.n, 0.95)),
	}
}
