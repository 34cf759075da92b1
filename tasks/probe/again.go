// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/fleet"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

// leastTime is the shortest time that is worth a second look: pods must be scheduled and
// started.
const leastTime = 10 * time.Second

// lookAgain makes a second look, if due returns one, in the time that is left of the
// worksheet's probe timeout. Its trouble is never an error: pairs without a second
// measurement keep the verdict of the first look. It returns the record of the second look,
// of which the end is not written yet; nil if there is none.
func lookAgain(
	ctx context.Context, t *task.Task, f *fleet.Fleet, first *record.Writer, frozen *record.Frozen,
	began time.Time, due func() *checkup.Worksheet,
) *record.Writer {
	w := &frozen.Worksheet
	soon, cancel := context.WithDeadline(ctx, began.Add(max(time.Duration(w.ProbeTimeout()), time.Since(began)+leastTime)))
	defer cancel()
	// A responder that ended must not be looked at again, and a task that is killed must
	// keep the first look.
	if err := f.Lost(soon, w, &frozen.Roster); err != nil {
		t.Logf("::warning::%v", err)
	}
	if err := first.Flush(soon); err != nil && ctx.Err() == nil {
		t.Logf("::warning::cannot write the record, will retry: %v", err)
	}
	further := due()
	if further == nil {
		return nil
	}
	took := time.Since(began)
	left := time.Duration(w.ProbeTimeout()) - took
	further.Timeouts.Probe = checkup.Duration(max(left, 0))
	writer, err := first.BeginLook(soon, &checkup.Look{
		Worksheet: *further, After: checkup.Duration(took.Round(100 * time.Millisecond)),
	})
	pairs := checkup.Count(further.CountPairs(), "pair")
	switch {
	case err != nil:
		t.Logf("::warning::second look: %s not measured again: %v", pairs, err)
		return nil
	case left < leastTime:
		t.Logf(
			"::warning::second look: %s not measured again: no time is left of timeouts.probe (%s)",
			pairs,
			w.Timeouts.Probe,
		)
		return nil
	}
	t.Logf("second look: %s, for at most %s", pairs, left.Round(time.Second))
	live, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	err = watched(live, t, writer, further, func(progress func(fleet.Progress)) error {
		err := f.Measure(ctx, further, &frozen.Roster, writer, progress)
		if ctx.Err() != nil {
			end()
		}
		return err
	})
	if err == nil && ctx.Err() == nil {
		reading, done := context.WithTimeout(ctx, keepTime)
		f.Receptions(reading, further, &frozen.Roster, writer.Receptions)
		done()
	}
	if err != nil {
		t.Logf("::warning::second look: %s not measured again: %v", pairs, err)
	}
	return writer
}
