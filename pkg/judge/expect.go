// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// credible copies the numbers of an observation to its outcome, which is unmeasured if they are not credible.
func (j *Judgement) credible(at int, o *Outcome) {
	seen, folded := j.evidence.observed[at], j.evidence.folded[at]
	o.Sent, o.Received, o.RTTs = seen.Sent, seen.Received, seen.RTTs
	o.Duplicates, o.Reordered = seen.Duplicates, seen.Reordered
	unmeasured := func(stage checkup.Stage, format string, args ...any) {
		o.unmeasured(checkup.Cause{Stage: stage, Message: fmt.Sprintf(format, args...)})
	}
	ordered := j.Worksheet.Measurements(o.Pair)
	switch {
	case folded != nil && folded.wrong != nil:
		o.unmeasured(*folded.wrong)
		return
	case folded != nil && seen.Sent > ordered:
		unmeasured(checkup.StageCollect, "the agent reported %d measurements, of %d ordered", seen.Sent, ordered)
		return
	case folded != nil:
		o.Folded = folded
	}
	if folded == nil && (seen.Sent < 0 || seen.Spoiled < 0 || seen.Received < 0 || seen.Received > seen.Sent ||
		seen.Sent > ordered || len(seen.RTTs) != seen.Received || seen.Duplicates < 0 || seen.Reordered < 0 ||
		seen.Reordered > seen.Received || seen.Spoiled > mostTries*ordered) {
		unmeasured(checkup.StageCollect,
			"the numbers do not add up: %d sent, %d spoiled and %d received with %d delays, of %d ordered",
			seen.Sent, seen.Spoiled, seen.Received, len(seen.RTTs), ordered)
		return
	}
	delays, most := [][]int64{seen.RTTs}, j.longest(o.Pair)
	if folded != nil {
		delays, most = nil, j.Worksheet.MaxDelay()
		for _, s := range checkup.ConnectionStages {
			delays = append(delays, seen.Stages[s])
		}
	}
	for _, each := range delays {
		if delay := impossible(each, most); delay != nil {
			unmeasured(checkup.StageCollect, "the numbers do not add up: a delay of %d µs, of at most %d", *delay, most)
			return
		}
	}
	if arrived := j.evidence.reception[at]; o.Pair.Transport == checkup.UDP && j.evidence.counted[o.Pair.Target] &&
		arrived < seen.Received {
		j.evidence.sources[o.Pair.Source].uncounted++
		unmeasured(checkup.StageCollect, "the %s reported %s, but its target counted %s: one of them is wrong",
			j.rules.Reporter, checkup.Count(seen.Received, "answer"), checkup.Count(arrived, "request"))
		return
	}
	if why := wrongWitness(seen); why != "" {
		unmeasured(checkup.StageCollect, "the numbers do not add up: %s", why)
		return
	}
	if why := wrongFlows(seen, ordered); why != "" {
		unmeasured(checkup.StageCollect, "the numbers do not add up: %s", why)
		return
	}
	o.Flows = seen.Flows
	if j.Worksheet.Witnesses(o.Pair) {
		o.SeenAs, o.Witnessed = seen.SeenAs, seen.Witnessed > 0
	}
	if seen.Failure != nil && !ofNetwork(seen.Failure.Stage) {
		o.unmeasured(*seen.Failure)
		return
	}
	if seen.Spoiled > 0 && 2*seen.Sent < ordered && !j.stopped(o) {
		if folded != nil {
			unmeasured(
				folded.spoiled.Stage,
				"%d of %d measurements were discarded; %d of %d ordered remain; the last discarded: %s",
				seen.Spoiled,
				seen.Spoiled+seen.Sent,
				seen.Sent,
				ordered,
				folded.spoiled.Message,
			)
			return
		}
		unmeasured(checkup.StageSelf, "the %s or its target was held up in %d of %d measurements; %d of %d ordered remain",
			j.rules.Reporter, seen.Spoiled, seen.Spoiled+seen.Sent, seen.Sent, ordered)
		return
	}
	if seen.Sent == 0 {
		unmeasured(checkup.StageCollect, "no measurement was made")
	}
}

// wrongWitness says why the source addresses of an observation cannot be; empty if they can.
func wrongWitness(seen *checkup.Observation) string {
	if seen.Rewritten < 0 || seen.Rewritten > seen.Witnessed || seen.Witnessed > seen.Received {
		return fmt.Sprintf("%d answers with a source address, %d of them rewritten, of %d received",
			seen.Witnessed, seen.Rewritten, seen.Received)
	}
	address, err := netip.ParseAddr(seen.SeenAs)
	if (seen.Rewritten > 0) != (seen.SeenAs != "") || seen.SeenAs != "" && (err != nil || address.Zone() != "") {
		return fmt.Sprintf("%d answers with a rewritten source address, which is not an IP address", seen.Rewritten)
	}
	return ""
}

// few says that the measurements are too few to pass; nil if they are not.
func (j *Judgement) few(at int, o *Outcome) *checkup.Cause {
	seen, folded, ordered := j.evidence.observed[at], j.evidence.folded[at], j.Worksheet.Measurements(o.Pair)
	because := func(stage checkup.Stage, format string, args ...any) *checkup.Cause {
		return &checkup.Cause{Stage: stage, Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case seen.Sent >= ordered:
		return nil
	case seen.Spoiled > 0 && folded != nil:
		return because(folded.spoiled.Stage,
			"%d of %d measurements were discarded; %d of %d ordered remain, too few to pass; the last discarded: %s",
			seen.Spoiled, seen.Spoiled+seen.Sent, seen.Sent, ordered, folded.spoiled.Message)
	case seen.Spoiled > 0:
		return because(
			checkup.StageSelf,
			"the %s or its target was held up in %d of %d measurements; %d of %d ordered remain, too few to pass",
			j.rules.Reporter,
			seen.Spoiled,
			seen.Spoiled+seen.Sent,
			seen.Sent,
			ordered,
		)
	case unused(seen) != nil:
		return unused(seen)
	default:
		return because(checkup.StageCollect, "only %d of %d measurements were made: too few to pass", seen.Sent, ordered)
	}
}

// impossible returns a delay that is not from 0 to the longest one; nil if all are.
func impossible(rtts []int64, longest int64) *int64 {
	at := slices.IndexFunc(rtts, func(rtt int64) bool { return rtt < 0 || rtt > longest })
	if at < 0 {
		return nil
	}
	return &rtts[at]
}

// longest is the longest delay of a pair that can be measured, in microseconds: its timeout if an agent measures it,
// otherwise the time of the whole probe task.
func (j *Judgement) longest(p checkup.Pair) int64 {
	if probe, ok := j.Worksheet.Probe(p.Transport); ok && probe.Timeout > 0 && j.Worksheet.Guests == nil {
		return time.Duration(probe.Timeout).Microseconds()
	}
	return j.Worksheet.MaxDelay()
}

// through returns how many packets or connections got through to or from a target that
// must be unreachable, with a description; 0 if none did.
func (j *Judgement) through(seen *checkup.Observation) (int, string) {
	if seen.Received > 0 {
		return seen.Received, fmt.Sprintf("%d of %d were answered", seen.Received, seen.Sent)
	}
	if n := len(seen.Stages[checkup.StageConnect]); n > 0 {
		return n, fmt.Sprintf("%d of %d were connected", n, seen.Sent)
	}
	stream := seen.Transport == checkup.TCP || seen.Transport == checkup.HTTP
	if f := seen.Failure; f != nil && stream && (f.Stage == checkup.StageEcho || f.Stage == checkup.StageResponse) {
		return 1, "it accepted a connection: " + f.Message
	}
	if at, ok := j.evidence.position(seen.Pair); ok && j.evidence.reception[at] > 0 {
		n := j.evidence.reception[at]
		return n, fmt.Sprintf("%s arrived at the target", checkup.Count(n, "request"))
	}
	return 0, ""
}

// ofNetwork reports whether a failure at the stage is a failure of the network path. At
// other stages it is a failure of checkplan itself.
func ofNetwork(s checkup.Stage) bool { return slices.Contains(networkStages, s) }

// networkStages are the stages at which a failure is a failure of the network path.
var networkStages = []checkup.Stage{
	checkup.StageResolve, checkup.StageConnect, checkup.StageHandshake, checkup.StageEcho, checkup.StageResponse,
}

// answerStage is the stage whose delay is the pair's delay.
func answerStage(p checkup.Pair) checkup.Stage {
	switch {
	case p.Transport == checkup.HTTP:
		return checkup.StageResponse
	case p.Transport == checkup.TCP && p.Size == 0, p.Transport == checkup.TLS:
		return checkup.StageConnect
	default:
		return checkup.StageEcho
	}
}
