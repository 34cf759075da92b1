// SPDX-License-Identifier: Apache-2.0

package history

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// Due says when runs of a plan have to start.
type Due struct {
	// Cron and TimeZone are those of the plan's schedule.
	Cron     string `json:"cron"`
	TimeZone string `json:"timeZone"`
	// Since is the start of the first run with this schedule.
	Since time.Time `json:"since"`
}

// next is what is due after a run; nil for a plan without a schedule, or with one that is not valid. Nothing is due
// before the schedule has started a run: people run plans with a schedule that is in no cluster.
func (d *Due) next(e *Entry) *Due {
	s, started := e.Schedule, e.Run.Started
	if s == nil {
		return nil
	}
	next := &Due{Cron: s.Cron, TimeZone: s.TimeZone, Since: started}
	switch times, _ := next.times(); {
	case times == nil:
		return nil
	case d != nil && d.Cron == next.Cron && d.TimeZone == next.TimeZone:
		if d.Since.Before(started) || !bySchedule(e) {
			return d
		}
	case !bySchedule(e):
		return nil
	}
	return next
}

// bySchedule reports whether the schedule of the plan started a run. Such a run is named after its Job, and a CronJob
// names its Jobs after itself and the minutes from 1970 to the time at which they were due (getJobName in
// pkg/controller/cronjob/utils.go of Kubernetes).
func bySchedule(e *Entry) bool {
	suffix, ok := strings.CutPrefix(e.Run.Name, e.Plan+"-")
	minutes, err := strconv.ParseInt(suffix, 10, 64)
	if !ok || err != nil {
		return false
	}
	late := e.Run.Started.Sub(time.Unix(60*minutes, 0))
	return late > -time.Minute && late < 24*time.Hour
}

// ParseCron parses five fields of cron, or a descriptor such as @daily, with the parser of Kubernetes' controller. It
// refuses a time zone in them: Kubernetes does, too, and the parser panics if nothing follows it.
func ParseCron(fields string) (cron.Schedule, error) {
	if strings.Contains(fields, "TZ") {
		return nil, errors.New("the time zone must be in timeZone")
	}
	return cron.ParseStandard(fields)
}

// times returns the schedule in its zone; nil if it is not valid.
func (d *Due) times() (cron.Schedule, *time.Location) {
	times, err := ParseCron(d.Cron)
	zone, bad := time.LoadLocation(d.TimeZone)
	if err != nil || bad != nil {
		return nil, nil
	}
	return times, zone
}

// maxMissed is how many missed runs are counted, in all gaps together and then one of each: a schedule of one minute
// reaches it in a week.
const maxMissed = 10_000

// missed returns how many runs were due between the starts of two runs that follow each other, at most so many. A start
// may be late by less than the time to the next one.
func (d *Due) missed(after, before time.Time, most int) int {
	times, zone := d.times()
	if times == nil {
		return 0
	}
	missed := 0
	for at := times.Next(after.In(zone)); !at.IsZero() && missed < most; at = times.Next(at) {
		// The last one before the start is that of the run itself.
		if next := times.Next(at); next.IsZero() || next.After(before) {
			break
		}
		missed++
	}
	return missed
}
