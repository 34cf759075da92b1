// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"math"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// words describes a broken limit. LimitUnreachable is not supported: through describes
// it.
func words(seen *checkup.Observation, b checkup.Breach) string {
	limit := checkup.Duration(math.Round(b.Max * float64(time.Microsecond)))
	switch b.Limit {
	case checkup.LimitAnswer:
		return b.Cause.Message
	case checkup.LimitLoss:
		what := "lost"
		if seen.Stages != nil {
			what = "failed"
		}
		return fmt.Sprintf("%d of %d %s (%s), limit %s; last: %s", seen.Sent-seen.Received, seen.Sent, what,
			checkup.Percent(b.Measured), checkup.Percent(b.Max), b.Cause.Message)
	case checkup.LimitOutage:
		o := Longest(seen.Outages)
		return fmt.Sprintf("an outage of %s, limit %s, %s: %s", Lasted(*o), limit, During(*o), o.Cause.Message)
	default:
		return fmt.Sprintf("%s %s, limit %s", b.Limit, Micros(int64(b.Measured)), limit)
	}
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
