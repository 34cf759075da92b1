// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/stats"
)

const (
	// FalseAlarms is the highest probability that the tests of a run, of all its checks, fail a unit although no limit is
	// exceeded.
	FalseAlarms = 1e-3
	// Doubt is the probability from which on a sample passes a limit: a network that just keeps the limit gives a
	// sample as bad or worse with more than this probability.
	Doubt = 0.05
)

// Share is the part of FalseAlarms that a check has: all checks of the plan that test limits have the same.
func Share(w *checkup.Worksheet) float64 { return FalseAlarms / float64(max(w.Checks, 1)) }

// Level is the level at which one of two looks makes each of so many tests, of single pairs or of components. There are
// two looks and two sorts of tests, and each gets a quarter of the check's Share.
func Level(w *checkup.Worksheet, tests int) float64 { return Share(w) / 4 / float64(max(tests, 1)) }

// stopping is the part of the level of a further look's tests of single pairs that its stopping points have, if it has
// any. The tests of what is measured to the end have the rest.
const stopping = 0.5

// LevelAtStops is the level of each of so many stopping points of a further look, those of all pairs together.
func LevelAtStops(w *checkup.Worksheet, points int) float64 { return stopping * Level(w, points) }

// LevelToTheEnd is the level of each of so many tests of single pairs in a further look that has stopping points.
func LevelToTheEnd(w *checkup.Worksheet, tests int) float64 { return (1 - stopping) * Level(w, tests) }

// StopsOf are the stopping points of a pair that is measured so often: after each fifth of the measurements, it ends if
// the loss is beyond the share p at the given level. Points at which not even a loss of all is are left out.
func StopsOf(count int, p, level float64) checkup.Stops {
	var stops checkup.Stops
	for k := 1; k < stopParts; k++ {
		n := k * count / stopParts
		lost := sort.Search(n+1, func(lost int) bool { return lost > 0 && stats.AtLeast(lost, n, p) <= level })
		if before := len(stops) - 1; lost <= n && (before < 0 || stops[before].After < n) {
			stops = append(stops, checkup.Stop{After: n, Lost: lost})
		}
	}
	return stops
}

// StopPoints is how many stopping points a pair has at the most. There is one after each of stopParts parts of its
// measurements, but the last one, where it ends anyway.
const (
	StopPoints = stopParts - 1
	stopParts  = 5
)

// Test is a sample and the limit that it is tested against: K of N measurements are beyond the limit, and a share P of
// all may be. The K and N of several pairs may be added up.
type Test struct {
	Limit checkup.Limit
	K, N  int
	P     float64
}

// Verdict is Fail if the sample shows at this level that the limit is exceeded, Pass if it gives no reason for doubt,
// and otherwise Undecided. It is never Unmeasured.
func (t Test) Verdict(level float64) checkup.Verdict {
	switch probability := stats.AtLeast(t.K, t.N, t.P); {
	case probability <= level:
		return checkup.Fail
	case probability > Doubt:
		return checkup.Pass
	default:
		return checkup.Undecided
	}
}

// Tests yields what an outcome says about each limit on loss and on percentiles of the delay: nothing if it is
// unmeasured or must be unreachable, and nothing about loss that the responder itself may have caused. The measurements
// of dead flows are not among them: they say nothing about the loss of the others.
func (j *Judgement) Tests(o *Outcome) iter.Seq[Test] {
	return func(yield func(Test) bool) {
		expect := j.Worksheet.ExpectOf(o.Pair)
		if o.Sent == 0 || expect.Unreachable {
			return
		}
		if limit := expect.Loss.Max; limit != nil && !o.Excused {
			sent, received := o.Living()
			if !yield(Test{checkup.LimitLoss, sent - received, sent, float64(*limit) / 100}) {
				return
			}
		}
		for _, l := range expect.Latency.Ordered() {
			if l.Limit != nil && !yield(slower(o.RTTs, l)) {
				return
			}
		}
	}
}

// slower counts the delays above the limit of a percentile. The p-th percentile of all delays is above it only if more
// than 1-p of them are (order statistics: David and Nagaraja, section 7.1).
func slower(rtts []int64, l checkup.LatencyLimit) Test {
	t := Test{Limit: checkup.Limit(l.Name), N: len(rtts), P: 1 - l.Quantile}
	most := time.Duration(*l.Limit).Microseconds()
	for _, rtt := range rtts {
		if rtt > most {
			t.K++
		}
	}
	return t
}

// level is the level of the tests of single pairs that the look makes. A kind without other tests spends all of
// its Share on them. A test against a share of 0 does not count: one measurement beyond the
// limit is proof, and never a false alarm.
func (j *Judgement) level() float64 {
	n, flows := 0, 0
	for i := range j.Outcomes {
		for t := range j.Tests(&j.Outcomes[i]) {
			if t.P > 0 {
				n++
			}
		}
		flows += flowTests(&j.Outcomes[i])
	}
	n += flows + min(flows, 1) // see deadFlow
	switch {
	case !j.rules.Pools:
		return Share(j.Worksheet) / float64(max(n, 1))
	case slices.ContainsFunc(j.Worksheet.Again, func(a checkup.Again) bool { return len(a.Stops) > 0 }):
		return LevelToTheEnd(j.Worksheet, n)
	default:
		return Level(j.Worksheet, n)
	}
}

// stopped reports whether the agent ended a pair at a stopping point of its order that the pair is beyond. Then fewer
// measurements than ordered are all that was ordered, and the pair fails: the points have their own part of the level.
func (j *Judgement) stopped(o *Outcome) bool {
	a := j.Worksheet.AgainOf(o.Pair)
	return j.rules.Pools && a != nil && o.Sent < a.Count && a.Stops.Crossed(o.Sent, o.Sent-o.Received)
}

// broken is a limit that an outcome breaks, or may break.
type broken struct {
	checkup.Breach
	failure Failure
	stage   checkup.Stage
	message string
}

// limits compares a credible observation with the limits, each at the same level.
func (j *Judgement) limits(seen *checkup.Observation, o *Outcome, level float64) {
	o.Verdict = checkup.Pass
	stage, expect := answerStage(seen.Pair), j.Worksheet.ExpectOf(o.Pair)
	if expect.Unreachable {
		if n, what := j.through(seen); n > 0 {
			b := checkup.Breach{Limit: checkup.LimitUnreachable, Measured: float64(n), Measure: checkup.MeasureCount}
			o.breaks(checkup.Fail, broken{b, Reached, stage, "must be unreachable, but " + what})
		}
		return
	}
	if seen.Received == 0 {
		why := unanswered(seen)
		b := checkup.Breach{Limit: checkup.LimitAnswer, Measure: checkup.MeasureCount, Cause: &why}
		o.breaks(checkup.Fail, broken{b, Lost, why.Stage, why.Message})
		return
	}
	failed, doubted := j.deadFlows(seen, o)
	// A dead flow fails the pair as well, and may be all that it lost.
	stopped := j.stopped(o) && len(o.Dead) == 0
	for t := range j.Tests(o) {
		if t.Limit == checkup.LimitLoss && stopped {
			why := fmt.Sprintf("enough after %d of %d", o.Sent, j.Worksheet.Measurements(o.Pair))
			failed = append(failed, beyond(seen, t, expect, why))
			continue
		}
		switch t.Verdict(level) {
		case checkup.Fail:
			failed = append(failed, beyond(seen, t, expect, ""))
		case checkup.Undecided:
			doubted = append(doubted, beyond(seen, t, expect, "too few measurements to decide"))
		}
	}
	if c := j.Worksheet.Connections; c != nil && c.MaxOutage != nil {
		if o := Longest(seen.Outages); o != nil && o.Duration() > time.Duration(*c.MaxOutage) {
			failed = append(failed, tooLong(o, *c.MaxOutage))
		}
	}
	if limit := expect.Jitter.Max; limit != nil {
		if us := jitter(seen.RTTs); us > time.Duration(*limit).Microseconds() {
			v := time.Duration(us) * time.Microsecond
			b := broken{delayed(checkup.LimitJitter, v, *limit), Slow, stage, fmt.Sprintf("jitter %s, limit %s", v, limit)}
			if j.rules.LooksAgain && j.Worksheet.Look == 0 {
				b.message += ": not yet measured twice"
				doubted = append(doubted, b)
			} else {
				failed = append(failed, b)
			}
		}
	}
	if o.SeenAs != "" {
		failed = append(failed, rewritten(seen))
	}
	// Dead flows come first, and then losses: the first broken limit decides the outcome's Failure and stage.
	slices.SortStableFunc(failed, func(a, b broken) int { return cmp.Compare(a.failure, b.failure) })
	switch {
	case len(failed) > 0:
		o.breaks(checkup.Fail, failed...)
	case len(doubted) > 0:
		o.breaks(checkup.Undecided, doubted...)
	}
}

// breaks sets the verdict of an outcome that breaks limits, or may break them.
func (o *Outcome) breaks(v checkup.Verdict, limits ...broken) {
	first := limits[0]
	o.Verdict, o.Breaches, o.Failure, o.Cause = v, nil, 0, checkup.Cause{Stage: first.stage}
	if v == checkup.Fail {
		o.Failure = first.failure
	}
	if first.Cause != nil {
		o.Cause.Reason = first.Cause.Reason
	}
	var messages []string
	for _, l := range limits {
		o.Breaches = append(o.Breaches, l.Breach)
		messages = append(messages, l.message)
	}
	o.Cause.Message = strings.Join(messages, "; ")
}

// FailTogether fails outcomes, by their indexes, of which no single one shows that the limit is exceeded, but all
// together do. why describes the others, such as "with the other pairs into the pods of worker-2". Only outcomes that
// passed or are undecided, and of which a measurement is beyond the limit, fail. It returns their number. Report counts
// them if it is called later.
func (j *Judgement) FailTogether(indexes []int, limit checkup.Limit, why string) int {
	n := 0
	for _, i := range indexes {
		o := &j.Outcomes[i]
		if o.Verdict != checkup.Pass && o.Verdict != checkup.Undecided {
			continue
		}
		for t := range j.Tests(o) {
			if t.Limit == limit && t.K > 0 {
				o.breaks(checkup.Fail, beyond(j.evidence.observed[i], t, j.Worksheet.ExpectOf(o.Pair), why))
				n++
			}
		}
	}
	spans := j.evidence.spans
	for _, i := range indexes {
		// The assignment of the outcome: no two spans begin at the same index, unless they are empty.
		at, _ := slices.BinarySearch(spans, i+1)
		carry(j.Outcomes[spans[at-1]:spans[at]])
	}
	return n
}
