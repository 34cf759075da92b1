// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/stats"
)

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

// suspect reports whether a component that exceeds the limit is to be measured again, at the
// level of the first look. usual is the share of packets that fail elsewhere.
func suspect(t judge.Test, usual, level float64) bool {
	return stats.AtLeast(t.K, t.N, t.P) <= Doubt || usual < t.P && stats.AtLeast(t.K, t.N, min(2*usual, 1)) <= level
}

// Suspect reports whether a component is to be measured again if nothing fails elsewhere.
func Suspect(t judge.Test, level float64) bool {
	return float64(t.K) > t.P*float64(t.N) && suspect(t, least, level)
}

// least is the lowest share of failures that is distinguished from none.
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
