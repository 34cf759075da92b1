// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // a time zone is valid or not, whatever the machine has installed

	"github.com/robfig/cron/v3"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/kind"
)

// schedule checks what Kubernetes would refuse of a CronJob, with the parser of its controller, and a jitter that would
// make one run pass the next.
func schedule(p *checkup.Plan, report kind.Reporter) {
	s := p.Schedule
	if s == nil {
		return
	}
	field := func(name string) []string { return []string{"schedule", name} }
	zone, err := time.LoadLocation(s.TimeZone)
	if err != nil || s.TimeZone == "" || strings.EqualFold(s.TimeZone, "local") {
		report(field("timeZone"), "%q: want a name of the IANA time zone database, such as Europe/Berlin", s.TimeZone)
		zone = time.UTC
	}
	times, err := history.ParseCron(s.Cron)
	switch {
	case strings.Contains(s.Cron, "TZ"):
		report(field("cron"), "%q: the time zone must be in timeZone", s.Cron)
	case strings.Contains(s.Cron, "$"):
		report(field("cron"), "%q has a dollar sign", s.Cron)
	case strings.HasPrefix(s.Cron, "@every"):
		report(field("cron"), "%q: Kubernetes counts @every from the start of its controller: want five fields", s.Cron)
	case err != nil:
		report(field("cron"), "%q: want five fields of cron, such as \"*/10 * * * *\": %v", s.Cron, err)
	default:
		if shortest := shortest(times, zone); shortest == 0 {
			report(field("cron"), "%q: matches no time in the next five years", s.Cron)
		} else if time.Duration(s.Jitter) >= shortest {
			report(field("jitter"), "%s: two starts can be only %s apart: want less", s.Jitter, shortest)
		}
	}
	if s.Jitter < 0 {
		report(field("jitter"), "%s is less than 0s", s.Jitter)
	}
	if s.StartingDeadlineSeconds < 10 {
		report(field("startingDeadlineSeconds"), "%d: Kubernetes looks every 10 seconds: want at least 10",
			s.StartingDeadlineSeconds)
	}
	if !slices.Contains(checkup.ConcurrencyPolicies, s.ConcurrencyPolicy) {
		report(field("concurrencyPolicy"), "%q: want one of %v", s.ConcurrencyPolicy, checkup.ConcurrencyPolicies)
	}
}

// shortest is the shortest time between two of the next hundred starts; 0 if there is no start in five years.
func shortest(times cron.Schedule, zone *time.Location) time.Duration {
	at := times.Next(time.Date(2026, 1, 1, 0, 0, 0, 0, zone))
	if at.IsZero() {
		return 0
	}
	least := 5 * 365 * 24 * time.Hour
	for range 100 {
		next := times.Next(at)
		if next.IsZero() {
			break
		}
		least, at = min(least, next.Sub(at)), next
	}
	return least
}
