// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/tasks/internal/flaky"
)

// TestEachRequestFailsOnce: whichever request of setup fails once, and in whatever way, the worksheet and the roster
// are the same.
func TestEachRequestFailsOnce(t *testing.T) {
	setup := func(requests *flaky.Requests) string {
		outcome := ""
		synctest.Test(t, func(t *testing.T) {
			tk, client, log := newTask(t, "n0", "n1")
			requests.Of(&client.Fake)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			if err := run(ctx, tk); err != nil {
				t.Errorf("%v; log:\n%s", err, log)
				return
			}
			requests.Stop()
			var frozen record.Frozen
			if err := tk.Store("day-2").Load(t.Context(), record.Worksheet("mesh"), &frozen); err != nil {
				t.Error(err)
			}
			frozen.Started = time.Time{}
			b, err := json.Marshal(frozen)
			if err != nil {
				t.Error(err)
			}
			outcome = "measurable " + measurableOf(t, tk) + " " + string(b)
		})
		return outcome
	}
	flaky.EachOnce(t, flaky.InEveryWay, setup)
}
