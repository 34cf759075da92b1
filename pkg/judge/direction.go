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
	// A responder cannot have dropped more than was sent to it: such a number excuses no loss, and shows no silence.
	if most := e.requests(side{o.Pair.Target, o.Pair.Family}); n > most {
		if !j.Worksheet.Expect.Unreachable {
			return nil
		}
		return &checkup.Cause{Stage: checkup.StageCollect, Message: fmt.Sprintf(
			"the responder counted %d dropped requests, of at most %d that were sent to it: its count is not trusted", n, most)}
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

// requests is the largest number of udp requests that can have been sent to a target: those that agents made, or might
// have made before they ended without a report.
func (e *evidence) requests(to side) int {
	if e.most == nil {
		e.most = map[side]int{}
		for at, p := range e.pairs {
			if p.Transport != checkup.UDP {
				continue
			}
			n := mostTries * e.w.Measurements(p)
			if seen := e.observed[at]; seen != nil && seen.Unmeasured == nil {
				n = min(n, made(seen))
			}
			e.most[side{p.Target, p.Family}] += n
		}
	}
	return e.most[to]
}

// carry applies the direction of the udp pairs of one source and target to the other
// transports of the same family, if all of them fail: one common loss is then the simpler
// explanation. It is not if nothing of udp is answered, and something of the others is.
func carry(pairs []Outcome) {
	for _, family := range checkup.IPFamilies {
		directions, all := map[checkup.Direction]bool{}, true
		dead, answered := true, false
		for i := range pairs {
			if o := &pairs[i]; o.Pair.Family == family && o.Verdict != checkup.Unmeasured {
				all = all && o.Failure == Lost
				if o.Pair.Transport == checkup.UDP {
					dead = dead && o.Received == 0
				} else {
					answered = answered || o.Received > 0
				}
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
				if o.Carried == checkup.DirectionUnknown && all && (!dead || !answered) {
					o.Carried = common
				}
			}
		}
	}
}
