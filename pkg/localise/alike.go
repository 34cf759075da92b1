// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"math"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/stats"
)

// alike sets done for the pairs of a place whose losses its share of dead flows explains: so many flows of theirs lost
// everything by chance, and the others lost no more than the limit allows. It returns those of the pairs that fail.
func alike(e *Evidence, where site, share float64, done []bool) []int {
	var partly []int // pairs that lost some of their flows
	chances := map[int]float64{}
	pairs := map[int]int{}    // by number of flows
	wholly := map[int][]int{} // likewise, those that lost all of their flows
	for _, i := range e.Measured {
		o := &e.Outcomes[i]
		from, to := e.Source(i), e.Target(i)
		if done[i] || !where.carries(from, to) && !where.carries(to, from) {
			continue
		}
		flows, dead, rest := flowsOf(o)
		pairs[flows]++
		switch {
		case o.Failure != judge.Lost && o.Failure != 0 || dead == 0:
		case dead == flows:
			wholly[flows] = append(wholly[flows], i)
		default:
			partly = append(partly, i)
			chances[i] = stats.AtLeast(dead, flows, share)
			for _, l := range limits(e.Worksheet.ExpectOf(o.Pair), judge.Lost) {
				chances[i] = min(chances[i], stats.AtLeast(rest.k, rest.n, l.P))
			}
		}
	}
	level := judge.FalseAlarms / float64(len(e.Measured))
	also := slices.DeleteFunc(partly, func(i int) bool { return chances[i] <= level })
	for flows, of := range wholly {
		if stats.AtLeast(len(of), pairs[flows], math.Pow(share, float64(flows))) > level {
			also = append(also, of...)
		}
	}
	slices.Sort(also)
	for _, i := range also {
		done[i] = true
	}
	return e.Failed(also)
}

// alive is an outcome without the measurements of its dead flows: they say nothing about the loss of others. The
// target's count does not say how many of them arrived.
func alive(o *judge.Outcome) *judge.Outcome {
	if len(o.Dead) == 0 {
		return o
	}
	living := *o
	living.Sent, living.Received = o.Living()
	living.Counted, living.Arrived, living.Direction = false, 0, checkup.DirectionUnknown
	return &living
}

// flowsOf counts the flows of a pair, those of which everything was lost, and what the others lost. A connection is a
// flow of its own. ICMP has no ports: all measurements of a pair are one flow.
func flowsOf(o *judge.Outcome) (flows, dead int, rest share) {
	switch {
	case o.Pair.Transport == checkup.ICMP:
		flows = 1
	case o.Pair.Transport == checkup.UDP && len(o.Flows) > 0:
		flows = len(o.Flows)
	case o.Pair.Transport == checkup.UDP:
		flows = min(checkup.UDPFlows, o.Sent)
	default:
		return o.Sent, o.Sent - o.Received, share{}
	}
	if o.Received == 0 {
		return flows, flows, share{}
	}
	for _, f := range o.Flows {
		if f.Received == 0 {
			dead++
		} else {
			rest.add(f.Sent-f.Received, f.Sent)
		}
	}
	return flows, dead, rest
}
