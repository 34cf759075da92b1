// SPDX-License-Identifier: Apache-2.0

// Probe measures one check of a run: it takes over the responders that setup
// made, starts the agents, and keeps what they tell as it comes, so that a run
// that is stopped half-way keeps what it has. It succeeds whatever the network
// did.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/fleet"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

func main() { os.Exit(task.Main(run)) }

func run(ctx context.Context, t *task.Task) error {
	var frozen record.Frozen
	if err := t.Store("").Load(ctx, record.Worksheet(t.Check), &frozen); err != nil {
		return fmt.Errorf("nothing tells what to measure: %w", err)
	}
	err := probe(ctx, t, &frozen.Worksheet, &frozen.Roster)
	return t.Explain(ctx, "probe", checkup.StageCollect, frozen.Worksheet.Plan, err)
}

func probe(ctx context.Context, t *task.Task, w *checkup.Worksheet, roster *checkup.Roster) error {
	f := t.Fleet(w.Plan)
	store := t.Store(w.Plan)
	if err := f.TakeOver(ctx, w, roster); err != nil {
		return err
	}
	writer := store.Writer(t.Check)
	tell := task.NewTeller(t, store)
	tell.Also = func(ctx context.Context) {
		if err := writer.Flush(ctx); err != nil && ctx.Err() == nil {
			t.Logf("::warning::will be tried again: %v", err)
		}
	}
	stop := tell.Start(ctx)
	err := f.Measure(ctx, w, roster, writer, func(p fleet.Progress) {
		tell.Set(record.Progress{Phase: "probe", Ready: p.Started, Pods: p.Agents, Measured: p.Measured, Pairs: p.Pairs})
	})
	stop()

	// Whatever ended the measuring, what came in is kept: on time of its own.
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	if err == nil && ctx.Err() == nil {
		reading, done := context.WithTimeout(ctx, 20*time.Second)
		f.Receptions(reading, w, roster, writer.Receptions)
		done()
	}
	if lost := f.Lost(after, w, roster); lost != nil {
		t.Logf("::warning::%v", lost)
	}
	if kept := writer.Flush(after); kept != nil {
		return fmt.Errorf("what was measured could not be kept: %w", kept)
	}
	if kept := store.Save(after, record.Roster(t.Check), roster); kept != nil {
		return fmt.Errorf("what became of the targets could not be kept: %w", kept)
	}
	if err == nil && ctx.Err() != nil {
		err = fmt.Errorf("stopped before all was measured: %w", context.Cause(ctx))
	}
	return err
}
