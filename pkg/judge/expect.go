// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// expect compares an observation with the plan's expectations.
func (j *Judgement) expect(at int, o *Outcome) {
	seen, folded := j.evidence.observed[at], j.evidence.folded[at]
	o.Sent, o.Received, o.Duplicates, o.Reordered, o.RTTs = seen.Sent, seen.Received, seen.Duplicates, seen.Reordered, seen.RTTs
	unmeasured := func(stage checkup.Stage, format string, args ...any) {
		o.Verdict, o.Cause = checkup.Unmeasured, checkup.Cause{Stage: stage, Message: fmt.Sprintf(format, args...)}
	}
	ordered := j.Worksheet.Measurements(o.Pair)
	switch {
	case folded != nil && folded.wrong != nil:
		o.Verdict, o.Cause = checkup.Unmeasured, *folded.wrong
		return
	case folded != nil && seen.Sent > ordered:
		unmeasured(checkup.StageCollect, "the agent reported %d measurements, of %d ordered", seen.Sent, ordered)
		return
	case folded != nil:
		o.Folded = folded
	}
	if folded == nil && (seen.Sent < 0 || seen.Spoiled < 0 || seen.Received < 0 || seen.Received > seen.Sent ||
		seen.Sent > ordered || len(seen.RTTs) != seen.Received ||
		slices.ContainsFunc(seen.RTTs, func(rtt int64) bool { return rtt < 0 })) {
		unmeasured(checkup.StageCollect,
			"the numbers do not add up: %d sent, %d spoiled and %d received with %d delays, of %d ordered",
			seen.Sent, seen.Spoiled, seen.Received, len(seen.RTTs), ordered)
		return
	}
	if seen.Failure != nil && !ofNetwork(seen.Failure.Stage) {
		o.Verdict, o.Cause = checkup.Unmeasured, *seen.Failure
		return
	}
	if seen.Spoiled > 0 && 2*seen.Sent < ordered {
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
		unmeasured(checkup.StageSelf, "the %s was held up in %d of %d measurements; %d of %d ordered remain",
			j.rules.Reporter, seen.Spoiled, seen.Spoiled+seen.Sent, seen.Sent, ordered)
		return
	}
	if seen.Sent == 0 {
		unmeasured(checkup.StageCollect, "no measurement was made")
		return
	}
	o.Verdict = checkup.Pass
	j.limits(seen, o)
	switch few := o.Verdict == checkup.Pass && seen.Sent < ordered; {
	case few && seen.Spoiled > 0 && folded != nil:
		unmeasured(folded.spoiled.Stage,
			"%d of %d measurements were discarded; %d of %d ordered remain, too few to pass; the last discarded: %s",
			seen.Spoiled, seen.Spoiled+seen.Sent, seen.Sent, ordered, folded.spoiled.Message)
	case few && seen.Spoiled > 0:
		unmeasured(checkup.StageSelf, "the %s was held up in %d of %d measurements; %d of %d ordered remain, too few to pass",
			j.rules.Reporter, seen.Spoiled, seen.Spoiled+seen.Sent, seen.Sent, ordered)
	case few:
		unmeasured(checkup.StageCollect, "only %d of %d measurements were made: too few to pass", seen.Sent, ordered)
	}
}

// limits fails the outcome for each limit that the observation breaks. The first broken
// limit decides its Failure and stage.
func (j *Judgement) limits(seen *checkup.Observation, o *Outcome) {
	fail := func(f Failure, stage checkup.Stage, b checkup.Breach, message string) {
		o.Breaches = append(o.Breaches, b)
		if o.Verdict == checkup.Fail {
			o.Cause.Message += "; " + message
			return
		}
		o.Verdict, o.Failure, o.Cause = checkup.Fail, f, checkup.Cause{Stage: stage, Message: message}
		if b.Cause != nil {
			o.Cause.Reason = b.Cause.Reason
		}
	}
	stage, expect := answerStage(seen.Pair), j.Worksheet.ExpectOf(o.Pair)
	if expect.Unreachable {
		if n, what := j.through(seen); n > 0 {
			b := checkup.Breach{Limit: checkup.LimitUnreachable, Measured: float64(n), Measure: checkup.MeasureCount}
			fail(Reached, stage, b, "must be unreachable, but "+what)
		}
		return
	}
	failed := checkup.Cause{Stage: stage, Message: "no answer"}
	if seen.Failure != nil {
		failed = *seen.Failure
	}
	if seen.Received == 0 {
		b := checkup.Breach{Limit: checkup.LimitAnswer, Measure: checkup.MeasureCount, Cause: &failed}
		fail(Lost, failed.Stage, b, words(seen, b))
		return
	}
	if limit := expect.Loss.Max; limit != nil {
		if loss := Percent(seen.Sent-seen.Received, seen.Sent); loss > *limit {
			b := checkup.Breach{
				Limit: checkup.LimitLoss, Measured: float64(loss), Max: float64(*limit), Measure: checkup.MeasurePercent, Cause: &failed,
			}
			fail(Lost, failed.Stage, b, words(seen, b))
		}
	}
	if c := j.Worksheet.Connections; c != nil && c.MaxOutage != nil {
		if o := Longest(seen.Outages); o != nil && o.Duration() > time.Duration(*c.MaxOutage) {
			b := delayed(checkup.LimitOutage, o.Duration(), *c.MaxOutage)
			b.Cause = &o.Cause
			fail(Lost, o.Cause.Stage, b, words(seen, b))
		}
	}
	var sorted []int64
	for _, l := range expect.Latency.Ordered() {
		if l.Limit == nil {
			continue
		}
		if sorted == nil {
			sorted = slices.Sorted(slices.Values(seen.RTTs))
		}
		if rtt := Quantile(sorted, l.Quantile); rtt > time.Duration(*l.Limit).Microseconds() {
			b := delayed(checkup.Limit(l.Name), time.Duration(rtt)*time.Microsecond, *l.Limit)
			fail(Slow, stage, b, words(seen, b))
		}
	}
	if limit := expect.Jitter.Max; limit != nil {
		if v := jitter(seen.RTTs); v > time.Duration(*limit).Microseconds() {
			b := delayed(checkup.LimitJitter, time.Duration(v)*time.Microsecond, *limit)
			fail(Slow, stage, b, words(seen, b))
		}
	}
}

// delayed is a breach of a limit on time.
func delayed(l checkup.Limit, measured time.Duration, limit checkup.Duration) checkup.Breach {
	micros := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	return checkup.Breach{
		Limit: l, Measured: micros(measured), Max: micros(time.Duration(limit)), Measure: checkup.MeasureMicroseconds,
	}
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
