// SPDX-License-Identifier: Apache-2.0

// Setup prepares one check of a run: it surveys the cluster, works out the
// worksheet, starts the responders, waits for them, and freezes worksheet and
// roster. What the cluster did to a responder is in the roster; setup fails only
// if it could not do its work.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/kind"
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
	k, err := kind.Of(plan, t.Check)
	if err != nil {
		return err
	}
	fleet := t.Fleet(plan.Name)
	if plan.Teardown != checkup.TeardownNever {
		switch n, err := fleet.Sweep(ctx); {
		case err != nil:
			t.Logf("::warning::what earlier runs left behind could not be removed: %v", err)
		case n > 0:
			t.Logf("removed %d pods and ConfigMaps that earlier runs left behind", n)
		}
	}
	snapshot, err := kind.Survey(ctx, cluster.Reader{Kubernetes: t.Kubernetes, Metadata: t.Metadata, Namespace: t.Namespace}, plan, t.Check)
	if err != nil {
		return err
	}
	w, warnings, err := k.Expand(plan, t.Check, snapshot)
	if err != nil {
		return err
	}
	for _, warning := range warnings {
		t.Logf("::warning::%s", warning)
	}
	t.Logf("round %d of %d: %d pairs from %d sources to %d targets, of %d possible ordered node pairs", w.Round, w.Rounds, w.CountPairs(), len(w.Sources), len(w.Targets), w.Possible)

	store := t.Store(plan.Name)
	tell := task.NewTeller(t, store)
	stop := tell.Start(ctx)
	roster := k.Roster(plan, w, snapshot)
	err = fleet.StartResponders(ctx, w, roster, func(ready, of int) {
		tell.Set(record.Progress{Phase: "setup", Ready: ready, Pods: of})
	})
	stop()
	if err != nil {
		return err
	}
	if err := store.Save(ctx, record.Worksheet(t.Check), record.Frozen{Started: started.UTC(), Worksheet: *w, Roster: *roster}); err != nil {
		return fmt.Errorf("freeze the worksheet: %w", err)
	}
	t.Logf("worksheet and roster are frozen")
	return nil
}
