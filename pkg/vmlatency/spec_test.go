// SPDX-License-Identifier: Apache-2.0

package vmlatency

import (
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

func TestCountOfVMs(t *testing.T) {
	for _, tt := range []struct {
		duration, interval time.Duration
		want               int
	}{{5 * time.Second, 200 * time.Millisecond, 25}, {time.Second, time.Second, 1}, {time.Second, 300 * time.Millisecond, 4}, {time.Second, 0, 0}} {
		v := Spec{Duration: checkup.Duration(tt.duration), Interval: checkup.Duration(tt.interval)}
		if got := v.Measurements(); got != tt.want {
			t.Errorf("%s every %s: %d, want %d", tt.duration, tt.interval, got, tt.want)
		}
	}
	for _, duration := range []time.Duration{1, time.Second, time.Second + 1, 1001 * time.Millisecond, 24 * time.Hour} {
		least := LeastInterval(checkup.Duration(duration))
		v := Spec{Duration: checkup.Duration(duration), Interval: least}
		if v.Measurements() > checkup.MaxEchoes || time.Duration(least)%time.Millisecond != 0 {
			t.Errorf("%s every %s are %d", duration, least, v.Measurements())
		}
		if v.Interval = least - checkup.Duration(time.Millisecond); v.Interval > 0 &&
			v.Measurements() <= checkup.MaxEchoes {
			t.Errorf("%s every %s would do, too", duration, v.Interval)
		}
	}
}
