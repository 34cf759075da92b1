// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/tasks/internal/flaky"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

// TestEachRequestFailsOnce: whichever request of the report step fails once, and in whatever way, the verdict of a run
// that passed is the same, and the report is kept. For a run that failed, the ways take turns.
func TestEachRequestFailsOnce(t *testing.T) {
	for _, passed := range []bool{true, false} {
		report := func(requests *flaky.Requests) string {
			outcome := ""
			synctest.Test(t, func(t *testing.T) {
				tk, client, log := newTask(t, passed, planOf(checkup.RequirePass, checkup.TeardownAlways))
				requests.Of(&client.Fake)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				err := run(ctx, tk)
				requests.Stop()
				if err != nil && !errors.Is(err, task.ErrSaid) {
					t.Error(err)
				}
				kept, problem := record.FindReport(t.Context(), tk.Store("").ConfigMaps, "run")
				if problem != nil {
					t.Errorf("%v; log:\n%s", problem, log)
					return
				}
				outcome = fmt.Sprint(err, result(t, tk, "verdict"), kept.Verdict, kept.Counts)
			})
			return outcome
		}
		ways := flaky.InEveryWay
		if !passed {
			ways = flaky.InTurn
		}
		flaky.EachOnce(t, ways, report)
	}
}
