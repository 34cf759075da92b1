// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// words are those of a broken limit. Of LimitUnreachable the observation does not
// say enough: through has its words.
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

// Longest outage; nil if there is none.
func Longest(outages []checkup.Outage) *checkup.Outage {
	var most *checkup.Outage
	for i := range outages {
		if o := &outages[i]; most == nil || o.Duration() > most.Duration() {
			most = o
		}
	}
	return most
}

// During says from when to when an outage lasted.
func During(o checkup.Outage) string {
	if o.End.IsZero() {
		return fmt.Sprintf("from %s, not over at %s", stamp(o.Start), stamp(o.Last))
	}
	return fmt.Sprintf("from %s to %s", stamp(o.Start), stamp(o.End))
}

// Lasted says how long an outage lasted.
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

// Some names up to three things, or says how many there are.
func Some(names []string, noun string) string {
	if len(names) <= 3 {
		return strings.Join(names, ", ")
	}
	return checkup.Count(len(names), noun)
}

// Name of an endpoint; an index that the worksheet does not have prints as "#5".
func Name(of []checkup.Endpoint, i int) string {
	if i < 0 || i >= len(of) {
		return fmt.Sprintf("#%d", i)
	}
	return of[i].Name()
}
