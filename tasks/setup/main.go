// SPDX-License-Identifier: Apache-2.0

// Setup prepares one check of a run: it surveys the cluster, makes the worksheet, starts
// its responders or VMs, waits for them, and writes worksheet and roster. A fixture that
// does not start has its cause in the roster; setup fails only if setup itself cannot
// continue.
//
// "setup start" is another program in the same image: it starts a run of a plan, for the Job of its schedule.
package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/connectivity"
	"github.com/checkplan/checkplan/pkg/cost"
	"github.com/checkplan/checkplan/pkg/kiagnose"
	"github.com/checkplan/checkplan/pkg/kinds"
	"github.com/checkplan/checkplan/pkg/networkhealth"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/pkg/retry"
	"github.com/checkplan/checkplan/tasks/internal/start"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "start" {
		os.Exit(start.Main())
	}
	os.Exit(task.Main(run))
}

func run(ctx context.Context, t *task.Task) error {
	plan, err := t.Plan()
	if plan == nil {
		return err
	}
	if err := t.CheckAccount(ctx, plan.Name); err != nil {
		return err
	}
	t.Unmark(ctx)
	if err == nil {
		err = setup(ctx, t, plan)
	}
	return t.Explain(ctx, "setup", checkup.StageSetup, plan.Name, err)
}

func setup(ctx context.Context, t *task.Task, plan *checkup.Plan) error {
	started := time.Now()
	// The default comes first: without the result the run cannot continue.
	if err := measurable(t, true); err != nil {
		return err
	}
	if cm, ok := kiagnose.Of(t.Kubernetes, kinds.Outcome(plan.Checks[t.Check]), t.Namespace); ok {
		if err := cm.Start(ctx, started); err != nil {
			return err
		}
	}
	fleet, guests := t.Fleet(plan.Name), t.Guests(plan.Name)
	fleet.Services = plan.Starts(checkup.RoleService)
	if plan.Teardown != checkup.TeardownNever {
		sweep(ctx, t, fleet.Sweep)
		if plan.Starts(checkup.RoleGuest) {
			sweep(ctx, t, guests.Sweep)
		}
	}
	reader := cluster.Reader{
		Kubernetes: t.Kubernetes, Metadata: t.Metadata, Dynamic: t.Dynamic, Namespace: t.Namespace, Run: t.RunUID,
	}
	var (
		w      *checkup.Worksheet
		roster *checkup.Roster
		failed error
	)
	// An API server that has just started denies everything for a moment.
	denied := retry.Until(ctx, func() error {
		look := newSurvey(ctx, t, reader, plan)
		if w, roster, failed = look.expand(ctx, t.Check); failed == nil {
			failed = within(ctx, t, look, w)
		}
		if apierrors.IsForbidden(failed) {
			return failed
		}
		return nil
	})
	if err := cmp.Or(denied, failed); err != nil {
		return err
	}
	if err := fleet.Admitted(ctx, w, prober(t, plan)); err != nil {
		return err
	}
	if err := objects(ctx, t, w); err != nil {
		return err
	}
	health(ctx, t, plan, w)
	for _, warning := range w.Warnings {
		t.Logf("::warning::%s", warning)
	}
	for _, line := range summary(w) {
		t.Logf("%s", line)
	}

	store := t.Store(plan.Name)
	progress := task.NewProgressWriter(t, store)
	stop := progress.Start(ctx)
	fixtures := fleet.StartResponders
	if w.Guests != nil {
		fixtures = guests.Start
	}
	err := fixtures(ctx, w, roster, func(ready, of int) {
		progress.Set(record.Progress{Phase: "setup", Ready: ready, Pods: of, VMs: w.Guests != nil})
	})
	stop()
	if ctx.Err() == nil {
		t.KeepTranscripts(ctx, store, guests, checkup.PhaseSetup)
	}
	if err != nil {
		return err
	}
	frozen := record.Frozen{Started: started.UTC(), Gate: plan.Gate, Worksheet: *w, Roster: *roster}
	if err := store.Save(ctx, record.Worksheet(t.Check), frozen); err != nil {
		return fmt.Errorf("freeze the worksheet: %w", err)
	}
	t.Logf("worksheet and roster are frozen")
	if w.Measurable(roster) {
		return nil
	}
	t.Logf("nothing can be measured: the probe task is not started")
	return measurable(t, false)
}

// prober is the service account of the probe task, which planner names like this one's, with the prefix and suffix that
// kustomize may add. It is this one's if that has the plan's name, because it runs all tasks then. Empty if planner did
// not name this one's: it is not known.
func prober(t *task.Task, plan *checkup.Plan) string {
	if t.Account == plan.Name {
		return t.Account
	}
	prefix, suffix, ok := strings.Cut(t.Account, checkup.AccountName(plan.Name, checkup.PhaseSetup))
	if !ok {
		return ""
	}
	return prefix + checkup.AccountName(plan.Name, checkup.PhaseProbe) + suffix
}

// survey is what one setup reads of the cluster.
type survey struct {
	reader   cluster.Reader
	plan     *checkup.Plan
	snapshot *cluster.Snapshot // for each check that is expanded; nil if it could not be read
	err      error             // why it could not
	one      bool              // it is of one check only
}

// newSurvey reads what the task's check needs and, if the plan has limits, what the other checks need, at once.
func newSurvey(ctx context.Context, t *task.Task, r cluster.Reader, plan *checkup.Plan) *survey {
	checks := []string{t.Check}
	if plan.Limits != nil {
		checks = plan.CheckNames()
	}
	s := &survey{reader: r, plan: plan, one: len(checks) == 1}
	s.snapshot, s.err = kinds.Survey(ctx, r, plan, checks...)
	return s
}

// expand computes what a check measures: see kinds.Prepare. If not all checks could be surveyed, each is by itself:
// what another one lacks is no reason to fail.
func (s *survey) expand(ctx context.Context, check string) (*checkup.Worksheet, *checkup.Roster, error) {
	switch {
	case s.err == nil:
		return kinds.Expand(s.plan, check, s.snapshot)
	case s.one:
		return nil, nil, s.err
	default:
		return kinds.Prepare(ctx, s.reader, s.plan, check)
	}
}

// within returns an error if the plan would exceed its limits. They are those of all checks together, so the others
// are expanded, too: each setup finds out, whichever comes first. A check that cannot be expanded creates nothing;
// should it be possible later, its own setup counts all.
func within(ctx context.Context, t *task.Task, look *survey, own *checkup.Worksheet) error {
	plan := look.plan
	if plan.Limits == nil {
		return nil
	}
	costs := []cost.Cost{cost.Of(own, plan, "")}
	for _, name := range plan.CheckNames() {
		if name == own.Check {
			continue
		}
		w, _, err := look.expand(ctx, name)
		if err != nil {
			t.Logf("::warning::check %s does not count for the limits: %v", name, err)
			continue
		}
		costs = append(costs, cost.Of(w, plan, ""))
	}
	return cost.Within(plan.Name, cost.Uses(plan.Limits, costs...))
}

// measurable writes the Tekton result that decides whether the probe task is started.
func measurable(t *task.Task, is bool) error {
	if err := os.WriteFile(filepath.Join(t.Results, "measurable"), []byte(strconv.FormatBool(is)), 0o644); err != nil {
		return fmt.Errorf("write result measurable: %w", err)
	}
	return nil
}

// sweep removes fixtures of earlier runs. Its errors do not fail setup.
func sweep(ctx context.Context, t *task.Task, sweep func(context.Context) (int, error)) {
	switch n, err := sweep(ctx); {
	case err != nil:
		t.Logf("::warning::cannot remove objects of earlier runs: %v", err)
	case n > 0:
		t.Logf("removed %s of earlier runs", checkup.Count(n, "object"))
	}
}

// objects prepares writing of the pairs' objects, if the plan enables it. If that fails,
// it records why in the worksheet, and the check continues without the objects.
func objects(ctx context.Context, t *task.Task, w *checkup.Worksheet) error {
	c := w.Connections
	if !c.Writes() {
		return nil
	}
	unwritten, err := retry.Get(ctx, func() (string, error) {
		return connectivity.EnsureCRD(ctx, t.Dynamic, c.Checks.InstallCRD)
	})
	if err != nil {
		return err
	}
	if c.Unwritten = unwritten; unwritten != "" { // the report contains it, too
		t.Logf("::warning::no %s will be written: %s", connectivity.Kind, unwritten)
	}
	return nil
}

// health prepares writing of PodNetworkHealths, if the plan enables it. They are best effort: if that fails, the
// worksheet says why, and the check continues without them.
func health(ctx context.Context, t *task.Task, plan *checkup.Plan, w *checkup.Worksheet) {
	h := plan.NetworkHealth()
	if h == nil || !networkhealth.Reports(w) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, healthTime)
	defer cancel()
	unwritten, err := retry.Get(ctx, func() (string, error) {
		return networkhealth.EnsureCRD(ctx, t.Dynamic, h.InstallCRD)
	})
	if err != nil {
		unwritten = err.Error()
	}
	if w.HealthUnwritten = unwritten; unwritten != "" {
		w.Warnings = append(w.Warnings, fmt.Sprintf("no %ss are written: %s", networkhealth.Kind, unwritten))
	}
}

// healthTime is the longest time for installing a CustomResourceDefinition whose objects are best effort.
const healthTime = time.Minute

// summary describes what will be measured, in one line.
func summary(w *checkup.Worksheet) []string {
	var lines []string
	if k, _ := kinds.Named(w.Kind); k.Summarize != nil {
		lines = append(lines, k.Summarize(w)...)
	}
	if len(w.Sources) == 0 || w.Tables != nil {
		return lines
	}
	pairs := fmt.Sprintf("%s from %s to %s", checkup.Count(w.CountPairs(), "pair"),
		checkup.Count(len(w.Sources), "source"), checkup.Count(len(w.Targets), "target"))
	switch {
	case w.Guests != nil:
		pairs = fmt.Sprintf("%d pairs of %d VMs, measured for %s", w.CountPairs(), len(w.Sources), w.Guests.Duration)
	case w.Connections == nil && len(w.Targets) > 0 && (w.Targets[0].Peer != nil || len(w.Services) > 0):
		pairs = fmt.Sprintf("round %d of %d: %s, of %d possible", w.Round, w.Rounds, pairs, w.Possible)
	case w.Connections == nil:
		pairs = fmt.Sprintf("round %d of %d: %s, of %d possible ordered node pairs", w.Round, w.Rounds, pairs, w.Possible)
	case w.Connections.For > 0:
		pairs += fmt.Sprintf(", watched for %s: %d measurements", w.Connections.For, w.CountPackets())
	default:
		pairs += fmt.Sprintf(": %d measurements", w.CountPackets())
	}
	return append(lines, pairs)
}
