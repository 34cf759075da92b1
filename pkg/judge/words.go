// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// beyond is the limit of a test that an observation breaks, or may break, in words. why says what a single pair's
// measurements do not show; empty if they show that the limit is exceeded.
func beyond(seen *checkup.Observation, t Test, expect checkup.Expect, why string) broken {
	if why != "" {
		why = ": " + why
	}
	if t.Limit == checkup.LimitLoss {
		loss, failed, what := checkup.PercentOf(t.K, t.N), unanswered(seen), "lost"
		if seen.Stages != nil {
			what = "failed"
		}
		return broken{
			checkup.Breach{
				Limit: t.Limit, Measured: float64(loss), Max: float64(*expect.Loss.Max), Measure: checkup.MeasurePercent,
				Cause: &failed,
			},
			Lost, failed.Stage,
			fmt.Sprintf("%d of %d %s (%s), limit %s%s; last: %s", t.K, t.N, what, loss, *expect.Loss.Max, why, failed.Message),
		}
	}
	limits := expect.Latency.Ordered()
	l := limits[slices.IndexFunc(limits, func(l checkup.LatencyLimit) bool { return checkup.Limit(l.Name) == t.Limit })]
	rtt := time.Duration(Quantile(slices.Sorted(slices.Values(seen.RTTs)), l.Quantile)) * time.Microsecond
	message := fmt.Sprintf("%s %s, limit %s", t.Limit, rtt, l.Limit)
	if t.P > 0 {
		message += fmt.Sprintf(", exceeded by %d of %d", t.K, t.N)
	}
	return broken{delayed(t.Limit, rtt, *l.Limit), Slow, answerStage(seen.Pair), message + why}
}

// rewritten is the expected source address that an observation breaks, in words.
func rewritten(seen *checkup.Observation) broken {
	why := checkup.Cause{Stage: answerStage(seen.Pair), Message: "the target saw the source address " + seen.SeenAs}
	return broken{
		checkup.Breach{
			Limit: checkup.LimitSourceAddress, Measured: float64(seen.Rewritten), Measure: checkup.MeasureCount, Cause: &why,
		},
		Rewritten, why.Stage,
		fmt.Sprintf("%s, not the agent's own, in %d of %d", why.Message, seen.Rewritten, seen.Witnessed),
	}
}

// tooLong is the limit on outages that an outage breaks, in words.
func tooLong(o *checkup.Outage, limit checkup.Duration) broken {
	b := delayed(checkup.LimitOutage, o.Duration(), limit)
	b.Cause = &o.Cause
	message := fmt.Sprintf("an outage of %s, limit %s, %s: %s", Lasted(*o), limit, During(*o), o.Cause.Message)
	return broken{b, Lost, o.Cause.Stage, message}
}

// delayed is a breach of a limit on time.
func delayed(l checkup.Limit, measured time.Duration, limit checkup.Duration) checkup.Breach {
	micros := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	return checkup.Breach{
		Limit: l, Measured: micros(measured), Max: micros(time.Duration(limit)), Measure: checkup.MeasureMicroseconds,
	}
}

// unanswered is how an unanswered measurement failed.
func unanswered(seen *checkup.Observation) checkup.Cause {
	if seen.Failure != nil {
		return *seen.Failure
	}
	return checkup.Cause{Stage: answerStage(seen.Pair), Message: "no answer"}
}

// Longest returns the longest outage; nil without outages.
func Longest(outages []checkup.Outage) *checkup.Outage {
	var most *checkup.Outage
	for i := range outages {
		if o := &outages[i]; most == nil || o.Duration() > most.Duration() {
			most = o
		}
	}
	return most
}

// During prints the start and the end of an outage.
func During(o checkup.Outage) string {
	if o.End.IsZero() {
		return fmt.Sprintf("from %s, not over at %s", stamp(o.Start), stamp(o.Last))
	}
	return fmt.Sprintf("from %s to %s", stamp(o.Start), stamp(o.End))
}

// Lasted prints how long an outage lasted.
func Lasted(o checkup.Outage) string {
	s := o.Duration().Round(time.Millisecond).String()
	if o.End.IsZero() {
		return "at least " + s
	}
	return s
}

// stamp prints a time to the millisecond.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// Micros prints microseconds as a duration.
func Micros(us int64) string { return (time.Duration(us) * time.Microsecond).String() }

// Name returns the name of an endpoint; "#5" for an index 5 that does not exist.
func Name(of []checkup.Endpoint, i int) string {
	if i < 0 || i >= len(of) {
		return fmt.Sprintf("#%d", i)
	}
	return of[i].Name()
}
