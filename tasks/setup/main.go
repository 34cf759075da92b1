// SPDX-License-Identifier: Apache-2.0

// Setup prepares one check of a run: it surveys the cluster, works out the
// worksheet, starts the responders or VMs that it asks for, waits for them, and freezes
// worksheet and roster. What the cluster did to one of them is in the roster; setup
// fails only if it could not do its work.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/connectivity"
	"github.com/checkplan/checkplan/pkg/kiagnose"
	"github.com/checkplan/checkplan/pkg/kinds"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

func main() { os.Exit(task.Main(run)) }

func run(ctx context.Context, t *task.Task) error {
	plan, err := t.Plan()
	if plan == nil {
		return err
	}
	if err == nil {
		err = setup(ctx, t, plan)
	}
	return t.Explain(ctx, "setup", checkup.StageSetup, plan.Name, err)
}

func setup(ctx context.Context, t *task.Task, plan *checkup.Plan) error {
	started := time.Now()
	// First what is never wrong: without the result no run comes to its end.
	if err := measurable(t, true); err != nil {
		return err
	}
	if cm, ok := kiagnose.Of(t.Kubernetes, kinds.Outcome(plan.Checks[t.Check]), t.Namespace); ok {
		if err := cm.Start(ctx, started); err != nil {
			return err
		}
	}
	fleet, guests := t.Fleet(plan.Name), t.Guests(plan.Name)
	if plan.Teardown != checkup.TeardownNever {
		sweep(ctx, t, fleet.Sweep)
		if task.HasGuests(plan) {
			sweep(ctx, t, guests.Sweep)
		}
	}
	reader := cluster.Reader{Kubernetes: t.Kubernetes, Metadata: t.Metadata, Dynamic: t.Dynamic, Namespace: t.Namespace, Run: t.RunUID}
	w, roster, err := kinds.Prepare(ctx, reader, plan, t.Check)
	if err != nil {
		return err
	}
	if err := objects(ctx, t, w); err != nil {
		return err
	}
	for _, warning := range w.Warnings {
		t.Logf("::warning::%s", warning)
	}
	for _, line := range summary(w) {
		t.Logf("%s", line)
	}

	store := t.Store(plan.Name)
	progress := task.NewProgressWriter(t, store)
	stop := progress.Start(ctx)
	start := fleet.StartResponders
	if w.Guests != nil {
		start = guests.Start
	}
	err = start(ctx, w, roster, func(ready, of int) {
		progress.Set(record.Progress{Phase: "setup", Ready: ready, Pods: of, VMs: w.Guests != nil})
	})
	stop()
	if ctx.Err() == nil {
		t.KeepTranscripts(ctx, store, guests, "setup")
	}
	if err != nil {
		return err
	}
	if err := store.Save(ctx, record.Worksheet(t.Check), record.Frozen{Started: started.UTC(), Worksheet: *w, Roster: *roster}); err != nil {
		return fmt.Errorf("freeze the worksheet: %w", err)
	}
	t.Logf("worksheet and roster are frozen")
	if w.Measurable(roster) {
		return nil
	}
	t.Logf("nothing can be measured: the probe task is not started")
	return measurable(t, false)
}

// measurable writes the Tekton result that decides whether the probe task is started.
func measurable(t *task.Task, is bool) error {
	if err := os.WriteFile(filepath.Join(t.Results, "measurable"), []byte(strconv.FormatBool(is)), 0o644); err != nil {
		return fmt.Errorf("write result measurable: %w", err)
	}
	return nil
}

// sweep removes what earlier runs left behind, which is no part of the work.
func sweep(ctx context.Context, t *task.Task, sweep func(context.Context) (int, error)) {
	switch n, err := sweep(ctx); {
	case err != nil:
		t.Logf("::warning::what earlier runs left behind could not be removed: %v", err)
	case n > 0:
		t.Logf("removed %d objects that earlier runs left behind", n)
	}
}

// objects sees to it that the pairs' objects can be written, where they are to be,
// and writes down why if they cannot: that costs the objects, not the check.
func objects(ctx context.Context, t *task.Task, w *checkup.Worksheet) error {
	c := w.Connections
	if !c.Writes() {
		return nil
	}
	unwritten, err := connectivity.EnsureCRD(ctx, t.Dynamic, c.Checks.InstallCRD)
	if err != nil {
		return err
	}
	if c.Unwritten = unwritten; unwritten != "" { // which the report tells, too
		t.Logf("::warning::no %s will be written: %s", connectivity.Kind, unwritten)
	}
	return nil
}

// summary says what will be done.
func summary(w *checkup.Worksheet) []string {
	var lines []string
	if k, _ := kinds.Named(w.Kind); k.Summarize != nil {
		lines = append(lines, k.Summarize(w)...)
	}
	if len(w.Sources) == 0 {
		return lines
	}
	pairs := fmt.Sprintf("%d pairs from %d sources to %d targets", w.CountPairs(), len(w.Sources), len(w.Targets))
	switch {
	case w.Guests != nil:
		pairs = fmt.Sprintf("%d pairs of %d VMs, measured for %s", w.CountPairs(), len(w.Sources), w.Guests.Duration)
	case w.Connections == nil:
		pairs = fmt.Sprintf("round %d of %d: %s, of %d possible ordered node pairs", w.Round, w.Rounds, pairs, w.Possible)
	case w.Connections.For > 0:
		pairs += fmt.Sprintf(", watched for %s: %d measurements", w.Connections.For, w.CountPackets())
	default:
		pairs += fmt.Sprintf(": %d measurements", w.CountPackets())
	}
	return append(lines, pairs)
}
