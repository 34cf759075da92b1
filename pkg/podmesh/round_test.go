// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/cluster"
)

func TestNextRound(t *testing.T) {
	at := func(seconds int64, plan, check string, round int) cluster.RecordedRound {
		return cluster.RecordedRound{Plan: plan, Check: check, Round: round, Created: time.Unix(seconds, 0)}
	}
	rotating := Sample{Rotate: true, Round: 4}
	tests := []struct {
		name     string
		sample   Sample
		recorded []cluster.RecordedRound
		want     int
	}{
		{"nothing recorded", rotating, nil, 4},
		{"one more than the newest", rotating, []cluster.RecordedRound{at(2, "p", "c", 9), at(3, "p", "c", 1), at(1, "p", "c", 7)}, 2},
		{"the higher of two in one second", rotating, []cluster.RecordedRound{at(3, "p", "c", 2), at(3, "p", "c", 1)}, 3},
		{"other plans and checks play no part", rotating, []cluster.RecordedRound{at(1, "p", "c", 5), at(2, "p", "d", 8), at(3, "q", "c", 9)}, 6},
		{"a round of 0 is recorded too", rotating, []cluster.RecordedRound{at(1, "p", "c", 0)}, 1},
		{"no rotation", Sample{Round: 4}, []cluster.RecordedRound{at(1, "p", "c", 5)}, 4},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := NextRound("p", "c", test.sample, test.recorded); got != test.want {
				t.Errorf("round %d, want %d", got, test.want)
			}
		})
	}
}
