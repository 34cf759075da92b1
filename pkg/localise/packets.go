// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"math"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// each calls do with what each pair says about a component: k of n measurements failed.
func (p *pool) each(c *component, do func(i int32, of Packets, k, n int)) {
	counted, datagrams := p.sorts(c)
	p.parts(c, counted, func(i int32, back bool) {
		m := &p.l.all[i]
		switch {
		case p.late != nil:
			do(i, RoundTrips, int(p.late[i]), len(m.RTTs))
		case counted && back:
			do(i, Answers, m.Arrived-m.Received, m.Arrived)
		case counted:
			do(i, Requests, m.Sent-m.Arrived, m.Sent)
		case m.datagram || !datagrams:
			do(i, RoundTrips, m.Sent-m.Received, m.Sent)
		}
	})
}

// sorts reports whether only packets that targets counted say something about a component, or
// only datagrams do.
func (p *pool) sorts(c *component) (counted, datagrams bool) {
	if p.late != nil {
		return false, false
	}
	if c.directed() {
		p.parts(c, true, func(int32, bool) { counted = true })
	}
	p.parts(c, false, func(i int32, _ bool) { datagrams = datagrams || p.l.all[i].datagram })
	return counted, datagrams
}

// uneven is the evidence, in nats, that not all nodes of a wide component fail alike.
func (p *pool) uneven(c *component) float64 {
	if !c.wide() {
		return 0
	}
	n := len(p.l.nodes)
	cells := make([]share, 2*n)
	var all share
	p.each(c, func(i int32, _ Packets, k, made int) {
		m := &p.l.all[i]
		all.add(k, made)
		cells[m.a].add(k, made)
		cells[n+int(m.b)].add(k, made)
	})
	if all.n == 0 {
		return 0
	}
	nats, allowed := 0.0, chance+math.Log(float64(2*n))
	for _, s := range cells {
		nats += max(0, s.against(float64(all.k)/float64(all.n))-allowed)
	}
	return nats
}

// single reports whether only one node pair fails. It is never named as more than that.
func (p *pool) single(c *component) bool {
	if c.cause == checkup.CausePair {
		return false
	}
	var a, b int32 = -1, -1
	single := true
	p.each(c, func(i int32, _ Packets, k, _ int) {
		m := &p.l.all[i]
		switch {
		case k == 0:
		case a < 0:
			a, b = min(m.a, m.b), max(m.a, m.b)
		default:
			single = single && a == min(m.a, m.b) && b == max(m.a, m.b)
		}
	})
	return single
}

// parts calls do with the pairs of a component of which packets are not explained, if counted
// is set those at the place, as far as targets counted, otherwise round trips.
func (p *pool) parts(c *component, counted bool, do func(i int32, back bool)) {
	for side, list := range [][]int32{c.there, c.back} {
		for _, w := range list {
			for i := p.l.ways[w].from; i < p.l.ways[w].end; i++ {
				m := &p.l.all[i]
				if !c.narrowing.admits[m.Attribute] || m.Excused {
					continue
				}
				switch {
				case counted && side == 0 && m.Counted && !p.requests[i],
					counted && side == 1 && m.Counted && !p.answers[i],
					!counted && !p.requests[i] && !p.answers[i]:
					do(i, side == 1)
				}
			}
		}
	}
}

// scope calls do with all pairs of a component.
func (p *pool) scope(c *component, do func(i int32, back bool)) {
	for side, list := range [][]int32{c.there, c.back} {
		for _, w := range list {
			for i := p.l.ways[w].from; i < p.l.ways[w].end; i++ {
				if c.narrowing.admits[p.l.all[i].Attribute] {
					do(i, side == 1)
				}
			}
		}
	}
}

// partsOf lists the outcomes of which packets go through a component and are not explained.
func (p *pool) partsOf(c *component) []Part {
	var parts []Part
	p.each(c, func(i int32, of Packets, _, _ int) { parts = append(parts, Part{p.l.all[i].at, of}) })
	return parts
}

func (l *localiser) waysOf(p *place, do func(*way)) {
	for _, list := range [][]int32{p.there, p.back} {
		for _, k := range list {
			do(&l.ways[k])
		}
	}
}
