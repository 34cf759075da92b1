// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"cmp"
	"container/heap"
	"math"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/stats"
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

// count adds the measurement of one pair to the test.
func count(t judge.Test, o *judge.Outcome, of Packets, late int) judge.Test {
	switch {
	case t.Limit != checkup.LimitLoss:
		t.K, t.N = t.K+late, t.N+len(o.RTTs)
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

// share is K of N.
type share struct{ k, n int }

func (s *share) add(k, n int) {
	s.k += k
	s.n += n
}

// nats is the evidence that more than the share p fail: the logarithm of the likelihood
// ratio; 0 if not more do.
func (s share) nats(p float64) float64 {
	if s.n == 0 || float64(s.k) <= p*float64(s.n) {
		return 0
	}
	return s.against(p)
}

// against is the evidence that another share than p fails.
func (s share) against(p float64) float64 {
	return tally{made: float64(s.n), failed: float64(s.k)}.against(min(max(p, least), 1-1e-9))
}

// shares are those of one attribute at a place.
type shares struct {
	trips     share // round trips
	datagrams share // round trips of datagrams
	way       share // packets on the way through the place, as far as targets counted
	packets   share // packets both ways, as far as targets counted
	others    share // round trips of datagrams that no target counted
}

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

// pooled reports whether a place is tested as a component. Delays have no direction, and
// sources and targets are the same packets as nodes.
func (l *localiser) pooled(p *place) bool {
	switch p.cause {
	case checkup.CauseNetwork, checkup.CauseNode:
		return true
	case checkup.CausePair, checkup.CauseZones:
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
	if p.cause == checkup.CausePair {
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
		checkup.CausePair, checkup.CauseZones:
		return true
	default:
		return false
	}
}

// sum fills in p.by for a place.
func (p *pool) sum(at *place) {
	clear(p.by)
	l := p.l
	for side, list := range [][]int32{at.there, at.back} {
		for _, w := range list {
			for i := l.ways[w].from; i < l.ways[w].end; i++ {
				m := &l.all[i]
				s := &p.by[m.Attribute]
				if p.late != nil {
					if !p.requests[i] {
						s.trips.add(int(p.late[i]), len(m.RTTs))
					}
					continue
				}
				if m.Excused {
					continue
				}
				if !p.requests[i] && !p.answers[i] {
					s.trips.add(m.Sent-m.Received, m.Sent)
					if m.datagram {
						s.datagrams.add(m.Sent-m.Received, m.Sent)
					}
				}
				if !m.Counted {
					if m.datagram && !p.requests[i] && !p.answers[i] {
						s.others.add(m.Sent-m.Received, m.Sent)
					}
					continue
				}
				if !p.requests[i] {
					s.packets.add(m.Sent-m.Arrived, m.Sent)
					if side == 0 {
						s.way.add(m.Sent-m.Arrived, m.Sent)
					}
				}
				if !p.answers[i] {
					s.packets.add(m.Arrived-m.Received, m.Arrived)
					if side == 1 {
						s.way.add(m.Arrived-m.Received, m.Arrived)
					}
				}
			}
		}
	}
}

// usual are the shares that fail at most nodes, at most that of the limit.
type usual struct{ packets, trips float64 }

// evidence is what the evidence of a component is computed from. Its trips are those of datagrams
// that no target counted.
type evidence struct{ packets, trips share }

// nats is the evidence that more than usually fails: see share.nats.
func (e evidence) nats(u usual) float64 { return e.packets.nats(u.packets) + e.trips.nats(u.trips) }

// total adds up p.by for the attributes that are admitted: what is tested, and what the
// evidence is computed from.
func (p *pool) total(at *place, n *narrowing) (test share, of evidence) {
	var all shares
	for i, s := range p.by {
		if n.admits[i] {
			all.trips.add(s.trips.k, s.trips.n)
			all.datagrams.add(s.datagrams.k, s.datagrams.n)
			all.way.add(s.way.k, s.way.n)
			all.packets.add(s.packets.k, s.packets.n)
			all.others.add(s.others.k, s.others.n)
		}
	}
	test = all.trips
	if all.datagrams.n > 0 {
		test = all.datagrams
	}
	switch {
	case at.directed() && all.way.n > 0:
		return all.way, evidence{all.way, all.others}
	case !at.directed() && all.packets.n > 0:
		return test, evidence{all.packets, all.others}
	default:
		return test, evidence{trips: test}
	}
}

// assess computes a component from p.by; false if its share of failures is within the limit.
func (p *pool) assess(c *component) bool {
	test, of := p.total(c.place, c.narrowing)
	c.test = p.limit.Test
	c.test.K, c.test.N = test.k, test.n
	c.score = of.nats(p.usual) - plainer*float64(c.narrowing.degree())
	if test.n == 0 || float64(test.k) <= c.test.P*float64(test.n) {
		return false
	}
	c.p = stats.AtLeast(test.k, test.n, c.test.P)
	c.suspect = suspect(c.test, p.usual.packets, p.level)
	return true
}

// suspect reports whether a component that exceeds the limit is to be looked at again, at the
// level of the first look. usual is the share of packets that fail elsewhere.
func suspect(t judge.Test, usual, level float64) bool {
	return stats.AtLeast(t.K, t.N, t.P) <= Doubt || usual < t.P && stats.AtLeast(t.K, t.N, min(2*usual, 1)) <= level
}

// Suspect reports whether a component is to be looked at again if nothing fails elsewhere.
func Suspect(t judge.Test, level float64) bool {
	return float64(t.K) > t.P*float64(t.N) && suspect(t, least, level)
}

// least is the lowest share of failures that is told from none.
const least = 1e-4

// setUsual computes p.usual: the medians of all nodes.
func (p *pool) setUsual() {
	var packets, trips []float64
	for _, at := range p.l.places {
		if at.cause != checkup.CauseNode {
			continue
		}
		p.sum(at)
		test, of := p.total(at, &p.l.whole)
		if test.n > 0 {
			trips = append(trips, float64(test.k)/float64(test.n))
		}
		if of.packets.n > 0 {
			packets = append(packets, float64(of.packets.k)/float64(of.packets.n))
		}
	}
	median := func(of []float64) float64 {
		slices.Sort(of)
		m := 0.0
		if len(of) > 0 {
			m = of[len(of)/2]
		}
		return min(max(m, least), max(p.limit.P, least))
	}
	p.usual.trips = median(trips)
	if p.usual.packets = p.usual.trips; len(packets) > 0 {
		p.usual.packets = median(packets)
	}
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

// explained notes that the failures of pairs are explained by a cause.
func (p *pool) explained(pairs []int32) {
	for _, i := range pairs {
		p.requests[i], p.answers[i] = true, true
	}
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
	if c.cause == checkup.CauseNetwork || c.cause == checkup.CauseZones {
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
