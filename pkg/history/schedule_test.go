// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// TestMissed: the runs that were due between two that started, each a little late.
func TestMissed(t *testing.T) {
	at := func(text string) time.Time {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	for _, tt := range []struct {
		cron, zone    string
		after, before string
		want          int
	}{
		{"0 * * * *", "Etc/UTC", "2026-01-01T00:00:09Z", "2026-01-01T01:00:02Z", 0},
		{"0 * * * *", "Etc/UTC", "2026-01-01T00:00:09Z", "2026-01-01T02:00:02Z", 1},
		{"0 * * * *", "Etc/UTC", "2026-01-01T00:40:00Z", "2026-01-01T05:59:00Z", 4},
		{"0 * * * *", "Etc/UTC", "2026-01-01T00:10:00Z", "2026-01-01T00:20:00Z", 0}, // by hand
		{"0 9-17 * * 1-5", "Etc/UTC", "2026-01-02T17:00:09Z", "2026-01-05T09:00:09Z", 0},
		{"0 9-17 * * 1-5", "Etc/UTC", "2026-01-02T16:00:09Z", "2026-01-05T09:00:09Z", 1},
		{"30 0 * * *", "Europe/Berlin", "2026-01-01T23:30:09Z", "2026-01-02T23:30:09Z", 0},
		{"* * * * *", "Etc/UTC", "2025-01-01T00:00:09Z", "2026-01-01T00:00:09Z", maxMissed},
		{"nonsense", "Etc/UTC", "2026-01-01T00:00:09Z", "2026-01-02T00:00:09Z", 0},
		{"0 * * * *", "Nowhere", "2026-01-01T00:00:09Z", "2026-01-02T00:00:09Z", 0},
	} {
		got := (&Due{Cron: tt.cron, TimeZone: tt.zone}).missed(at(tt.after), at(tt.before), maxMissed)
		if got != tt.want {
			t.Errorf("%q in %s from %s to %s: %d missed, want %d", tt.cron, tt.zone, tt.after, tt.before, got, tt.want)
		}
	}
}

// TestDue: a schedule counts from the first run that it has started.
func TestDue(t *testing.T) {
	hourly, daily := &checkup.Schedule{Cron: "0 * * * *", TimeZone: "Etc/UTC"}, &checkup.Schedule{Cron: "0 9 * * *", TimeZone: "Etc/UTC"}
	at := func(hour int) time.Time { return start.Add(time.Duration(hour)*time.Hour + 7*time.Second) }
	var d *Due
	for i, step := range []struct {
		schedule *checkup.Schedule
		hour     int
		by       string // who started the run
		since    int    // hour; -1 for no schedule
	}{
		{nil, 0, "a person", -1},
		{hourly, 1, "a person", -1}, // no cluster has the schedule, as far as the history says
		{hourly, 2, "schedule", 2},
		{hourly, 3, "schedule", 2},
		{hourly, 4, "a person", 2},
		{hourly, 1, "schedule", 1}, // it ended late
		{daily, 5, "schedule", 5},
		{hourly, 6, "a person", -1},
		{hourly, 7, "schedule", 7},
		{&checkup.Schedule{Cron: "nonsense", TimeZone: "Etc/UTC"}, 8, "schedule", -1},
		{hourly, 9, "schedule", 9},
		{nil, 10, "a person", -1},
		{hourly, 11, "another schedule", -1},
	} {
		name := map[string]string{
			"a person": "p-x7k2p", "schedule": fmt.Sprint("p-", at(step.hour).Unix()/60), "another schedule": "p-12345",
		}[step.by]
		d = d.next(&Entry{Plan: "p", Schedule: step.schedule, Run: Run{Name: name, Started: at(step.hour)}})
		if step.since < 0 && d != nil || step.since >= 0 && (d == nil || d.Cron != step.schedule.Cron || !d.Since.Equal(at(step.since))) {
			t.Errorf("step %d: %+v, want one since %d", i, d, step.since)
		}
	}
}
