// SPDX-License-Identifier: Apache-2.0

package history

import (
	"testing"
	"time"
)

func TestNextRound(t *testing.T) {
	at := func(seconds int64, plan, check string, round int) Round {
		return Round{Plan: plan, Check: check, Round: round, Created: time.Unix(seconds, 0)}
	}
	tests := []struct {
		name     string
		recorded []Round
		want     int
	}{
		{"nothing recorded", nil, 4},
		{"one more than the newest", []Round{at(2, "p", "c", 9), at(3, "p", "c", 1), at(1, "p", "c", 7)}, 2},
		{"the higher of two in one second", []Round{at(3, "p", "c", 2), at(3, "p", "c", 1)}, 3},
		{"other plans and checks play no part", []Round{at(1, "p", "c", 5), at(2, "p", "d", 8), at(3, "q", "c", 9)}, 6},
		{"a round of 0 is recorded too", []Round{at(1, "p", "c", 0)}, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := NextRound("p", "c", 4, test.recorded); got != test.want {
				t.Errorf("round %d, want %d", got, test.want)
			}
		})
	}
}
