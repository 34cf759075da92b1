// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// TestTurn: when the turn is made, and when it is no turn.
func TestTurn(t *testing.T) {
	const latest = time.Minute
	report := func(source int, at time.Duration) func(*turn) {
		return func(tn *turn) {
			time.Sleep(at)
			for range 2 { // an agent has many pairs
				tn.Observation(checkup.Observation{Pair: checkup.Pair{Source: source}})
			}
		}
	}
	for _, tt := range []struct {
		name  string
		steps []func(*turn)
		takes time.Duration
		end   time.Duration // when everything is measured
		at    time.Duration // when the turn is made; negative if it is not
		cause string
	}{
		{"when each agent has reported", []func(*turn){report(0, 1*time.Second), report(1, 5*time.Second)}, time.Second, 20 * time.Second, 6 * time.Second, ""},
		{"an agent never reports", []func(*turn){report(1, 2*time.Second)}, time.Second, 70 * time.Second, 62 * time.Second, ""},
		{"it is being made at the end", []func(*turn){report(0, 0), report(1, 0)}, 10 * time.Second, 0, 0, ""},
		{"no agent reports", nil, time.Second, 70 * time.Second, -1, "agents ended before"},
		{"agents end before", []func(*turn){report(0, 0)}, time.Second, 50 * time.Second, -1, "agents ended before"},
		{"too late", []func(*turn){report(0, 0)}, 20 * time.Second, 90 * time.Second, time.Minute,
			"the endpoints were changed 1m20s after the first pair was measured, later than 1m15s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, made := time.Now(), []time.Duration{}
				tn := newTurn(latest, map[int]bool{0: true, 1: true}, func() checkup.Fact {
					made = append(made, time.Since(start))
					time.Sleep(tt.takes)
					return checkup.Fact{Unit: checkup.FactServicesTurned}
				})
				for _, step := range tt.steps {
					step(tn)
				}
				time.Sleep(tt.end - time.Since(start))
				fact := tn.finish()
				if (tt.at < 0) != (len(made) == 0) || tt.at >= 0 && (len(made) != 1 || made[0] != tt.at) {
					t.Errorf("made after %v, want %s", made, tt.at)
				}
				message := ""
				if fact.Cause != nil {
					message = fact.Cause.Message
				}
				if fact.Unit != checkup.FactServicesTurned || (tt.cause == "") != (message == "") || !strings.Contains(message, tt.cause) {
					t.Errorf("%+v: %q, want %q", fact, message, tt.cause)
				}
			})
		})
	}
}
