// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"math"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
)

// passage is what goes from one endpoint to another, and back: the flows of all its pairs, or of those whose dead flows
// were dropped on the same way.
type passage struct {
	pairs       []int // outcomes with dead flows
	dead, flows int
	// lost of sent are measurements that are not of dead flows.
	lost, sent int
	// scope are the places that its packets go through, requests or answers; suspects those of them that may have dropped
	// the packets of its dead flows, by the target's count.
	scope, suspects []site
	link            [2]string // nodes, in alphabetical order
}

// passages sums up the measured pairs that can show dead flows.
func passages(e *Evidence) []passage {
	var all []passage
	var of [3]int // passage of each direction, plus one; 0 if there is none
	last := [2]int{-1, -1}
	for _, i := range e.Measured {
		o := &e.Outcomes[i]
		flows := len(o.Flows)
		switch {
		case len(o.Dead) == 0 && (o.Pair.Transport != checkup.UDP || o.Received == 0):
			continue
		case flows == 0:
			flows = min(checkup.UDPFlows, o.Sent)
		}
		if ends := [2]int{o.Pair.Source, o.Pair.Target}; ends != last {
			last, of = ends, [3]int{}
		}
		from, to := e.Source(i), e.Target(i)
		there, back := requestsOrAnswers(o)
		which := 0
		switch {
		case !there:
			which = 1
		case !back:
			which = 2
		}
		if of[which] == 0 {
			p := passage{link: [2]string{min(from.Node, to.Node), max(from.Node, to.Node)}}
			ways := [2][]site{sites(from, to), sites(to, from)}
			p.scope = slices.Concat(ways[0], ways[1])
			slices.SortFunc(p.scope, compareSites)
			p.scope = slices.Compact(p.scope)
			p.suspects = [][]site{p.scope, ways[1], ways[0]}[which]
			all = append(all, p)
			of[which] = len(all)
		}
		p := &all[of[which]-1]
		p.flows += flows
		sent, received := o.Living()
		p.lost, p.sent = p.lost+sent-received, p.sent+sent
		if len(o.Dead) > 0 {
			p.dead += len(o.Dead)
			p.pairs = append(p.pairs, i)
		}
	}
	return all
}

// requestsOrAnswers says on which ways the packets of dead flows may have been dropped: not on one on which fewer
// packets were lost, by the target's count, than a dead flow has.
func requestsOrAnswers(o *judge.Outcome) (there, back bool) {
	if !o.Counted {
		return true, true
	}
	fewest := math.MaxInt
	for _, f := range o.Dead {
		fewest = min(fewest, f.Sent)
	}
	there, back = o.Sent-o.Arrived >= fewest, o.Arrived-o.Received >= fewest
	return there || !back, back || !there
}
