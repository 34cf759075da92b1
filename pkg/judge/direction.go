// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// direction returns the direction in which an observed udp pair lost packets, by the
// count of the target's responder. It is unknown if the count is unknown or older than
// the answers, and also if the count includes spoiled requests, unless all or no requests
// arrived.
func (j *Judgement) direction(at int) checkup.Direction {
	seen := j.evidence.observed[at]
	if seen.Transport != checkup.UDP || !j.evidence.counted[seen.Target] {
		return checkup.DirectionUnknown
	}
	arrived, made := j.evidence.reception[at], seen.Sent+seen.Spoiled
	switch {
	case arrived < seen.Received:
		return checkup.DirectionUnknown
	case arrived == 0:
		return checkup.DirectionForward
	case arrived >= made:
		return checkup.DirectionReturn
	case seen.Spoiled > 0:
		return checkup.DirectionUnknown
	case arrived == seen.Received:
		return checkup.DirectionForward
	default:
		return checkup.DirectionBoth
	}
}

// dropped returns a cause if the responder itself may have caused a udp pair's loss: all
// lost requests did not arrive, and the responder's full socket dropped at least that
// many. The network may then be fine. The same holds for a target that must be
// unreachable and seems to have received nothing.
func (j *Judgement) dropped(at int, o *Outcome) *checkup.Cause {
	e := j.evidence
	seen, n := e.observed[at], e.full[side{o.Pair.Target, o.Pair.Family}]
	missing := seen.Sent + seen.Spoiled - e.reception[at]
	if seen.Received == seen.Sent || o.Pair.Transport != checkup.UDP || !e.counted[o.Pair.Target] ||
		seen.Sent-seen.Received > missing || missing > n {
		return nil
	}
	// A responder cannot have dropped more than was sent to it: such a number excuses nothing.
	if n > e.requests(side{o.Pair.Target, o.Pair.Family}) {
		return nil
	}
	return &checkup.Cause{Stage: checkup.StageSelf, Message: fmt.Sprintf(
		"%d of %d requests did not arrive, but the responder's socket had no room for %d",
		missing,
		seen.Sent+seen.Spoiled,
		n,
	)}
}

// mostTries is how often an agent makes each measurement at the most: spoiled ones are repeated (see pkg/probe).
const mostTries = 5

// requests is the largest number of udp requests that can have been sent to a target.
func (e *evidence) requests(to side) int {
	if e.most == nil {
		e.most = map[side]int{}
		for _, p := range e.pairs {
			if p.Transport == checkup.UDP {
				e.most[side{p.Target, p.Family}] += mostTries * e.w.Measurements(p)
			}
		}
	}
	return e.most[to]
}

// carry applies the direction of the udp pairs of one source and target to the other
// transports of the same family, if all of them fail: one common loss is then the simpler
// explanation.
func carry(pairs []Outcome) {
	for _, family := range checkup.IPFamilies {
		directions, all := map[checkup.Direction]bool{}, true
		for i := range pairs {
			if o := &pairs[i]; o.Pair.Family == family && o.Verdict != checkup.Unmeasured {
				all = all && o.Failure == Lost
				if o.Failure == Lost && o.Direction != checkup.DirectionUnknown {
					directions[o.Direction] = true
				}
			}
		}
		common := checkup.DirectionUnknown
		for d := range directions {
			common = d
		}
		if len(directions) > 1 {
			common = checkup.DirectionBoth
		}
		for i := range pairs {
			if o := &pairs[i]; o.Pair.Family == family && o.Failure == Lost {
				o.Carried = o.Direction
				if o.Carried == checkup.DirectionUnknown && all {
					o.Carried = common
				}
			}
		}
	}
}
