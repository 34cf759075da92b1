// SPDX-License-Identifier: Apache-2.0

package kinds

import (
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
		got := Missed(&checkup.Schedule{Cron: tt.cron, TimeZone: tt.zone}, at(tt.after), at(tt.before))
		if got != tt.want {
			t.Errorf("%q in %s from %s to %s: %d missed, want %d", tt.cron, tt.zone, tt.after, tt.before, got, tt.want)
		}
	}
}
