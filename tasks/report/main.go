// SPDX-License-Identifier: Apache-2.0

// Report judges the run from its worksheets and records. It stores the report, writes the
// Tekton results, a label of the run and the ConfigMaps of kiagnose checkups, and retires objects of pairs
// that are no longer expected. It fails if the verdict does not pass the plan's gate, if
// fixtures are left, or if something could not be read or stored. It always writes the
// results.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/connectivity"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/kiagnose"
	"github.com/checkplan/checkplan/pkg/kinds"
	"github.com/checkplan/checkplan/pkg/networkhealth"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/pkg/retry"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

func main() { os.Exit(task.Main(run)) }

func run(ctx context.Context, t *task.Task) error {
	// Placeholders come first: a missing result would fail a successful run, and
	// "inconclusive" is never wrong.
	nothing := &checkup.Report{Verdict: checkup.RunInconclusive, Summary: "inconclusive: the report step did not finish"}
	if err := writeResults(t.Results, print.Results(nothing, "")); err != nil {
		return err
	}
	plan, err := t.Plan()
	if plan == nil {
		return err
	}
	removed := t.TeardownTrouble()
	if err := t.CheckAccount(ctx, plan.Name); err != nil {
		return err
	}
	problems := []error{err, removed}
	store := t.Store(plan.Name)
	now := time.Now().UTC()
	before, unread := earlier(ctx, store, t.RunUID)
	r, sheets, err := t.Judge(ctx, plan, now, before)
	problems = append(problems, err)
	if task.Removes(plan.Teardown, r.Verdict) {
		r.Leftovers, err = t.Left(ctx, plan)
		if err == nil && len(r.Leftovers) > 0 {
			err = fmt.Errorf("left behind: %s", strings.Join(r.Leftovers, " "))
			removed = err
		}
		problems = append(problems, err)
	}
	where := ""
	entry := history.EntryOf(r, sheets)
	entry.Schedule = plan.Schedule
	if unread != nil {
		t.Logf("::warning::cannot read the history of the plan: %v", unread)
		r.Notes = append(r.Notes, fmt.Sprintf("earlier runs are not considered: %v", unread))
	} else {
		cumulate(r, before, entry)
	}
	if err := store.SaveReport(ctx, r); err != nil {
		problems = append(problems, fmt.Errorf("store the report: %w", err))
	} else {
		where = t.Namespace + "/" + store.ReportName()
	}
	problems = append(problems, writeResults(t.Results, print.Results(r, where)))
	if err := store.PruneReports(ctx, plan.Retention.Reports); err != nil {
		problems = append(problems, fmt.Errorf("delete reports beyond retention.reports: %w", err))
	}
	problems = append(problems, writeOutcomes(ctx, t, plan, r, removed))
	problems = append(problems, retire(ctx, t, plan))
	remember(ctx, t, store, entry)
	writeHealth(ctx, t, plan, r, sheets)
	if before != nil {
		announce(ctx, t, plan, before.NewsOf(entry, r.Summary))
	}
	failed := errors.Join(problems...)
	t.Mark(ctx, label(r, failed, t.Outcomes))
	if failed != nil {
		t.Logf("::error::%s", strings.Join(strings.Fields(failed.Error()), " "))
	}
	if err := print.Log(t.Stdout, r); err != nil {
		return err
	}
	switch {
	case !r.Passed && r.Verdict == checkup.RunFail:
		return task.ErrFailed
	case failed != nil:
		return fmt.Errorf("%w: %w", task.ErrSaid, failed)
	case !r.Passed:
		return task.ErrInconclusive
	}
	return nil
}

// label is the value of checkup.LabelVerdict. A failure of the network comes before one of the tool.
func label(r *checkup.Report, failed error, outcomes map[string]task.Outcome) string {
	if r.Verdict != checkup.RunFail {
		for _, o := range outcomes {
			if o.Status == "Failed" {
				return checkup.VerdictError
			}
		}
		if failed != nil {
			return checkup.VerdictError
		}
	}
	return string(r.Verdict)
}

// earlier reads the history of the plan, without this run: a retried step compares as the first one did. It is nil if
// it cannot be read.
func earlier(ctx context.Context, store *record.Store, uid string) (*history.History, error) {
	ctx, cancel := context.WithTimeout(ctx, historyTime)
	defer cancel()
	h, err := record.LoadHistory(ctx, store.ConfigMaps, store.Plan)
	if err != nil {
		return nil, err
	}
	h.Runs = slices.DeleteFunc(h.Runs, func(r history.Run) bool { return r.UID == uid })
	return h, nil
}

// cumulate adds to the report what this run and those before it have covered together, and what of their history could
// not be read. The verdict does not depend on it.
func cumulate(r *checkup.Report, before *history.History, entry *history.Entry) {
	r.Notes = append(r.Notes, before.NotesSince(r.Finished.Truncate(time.Second))...)
	h := history.Merge(before, entry)
	for i := range r.Checks {
		c := &r.Checks[i]
		c.Cumulative = h.Cumulative(c.Name)
	}
}

// remember adds the run to the history of its plan. It comes last: the report and the verdict stand without it.
func remember(ctx context.Context, t *task.Task, store *record.Store, entry *history.Entry) {
	ctx, cancel := context.WithTimeout(ctx, historyTime)
	defer cancel()
	if err := store.AddHistory(ctx, entry); err != nil {
		t.Logf("::warning::the history of the plan lacks this run: %v", err)
	}
}

// historyTime is the longest time for reading the history, and for adding a run to it.
const historyTime = 40 * time.Second

// writeHealth updates the plan's PodNetworkHealths, if it enables them. They are best effort: the verdict stands
// without them. If no check could write them, there is nothing to update.
func writeHealth(
	ctx context.Context, t *task.Task, plan *checkup.Plan, r *checkup.Report, sheets map[string]history.Sheet,
) {
	h := plan.NetworkHealth()
	if h == nil {
		return
	}
	in := networkhealth.Input{
		Plan: plan.Name, Config: *h,
		Run: networkhealth.Run{Name: r.Run, UID: r.RunUID, Started: r.Started, Finished: r.Finished},
	}
	for i := range r.Checks {
		sheet, ok := sheets[r.Checks[i].Name]
		if ok && networkhealth.Reports(sheet.Worksheet) && sheet.Worksheet.HealthUnwritten == "" {
			in.Checks = append(in.Checks, networkhealth.Measured{
				Report: &r.Checks[i], Worksheet: sheet.Worksheet, Roster: sheet.Roster, Record: sheet.Record,
			})
		}
	}
	if len(in.Checks) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, networkhealth.Deadline)
	defer cancel()
	options := networkhealth.Options{Dynamic: t.Dynamic, Namespace: t.Namespace, Logf: t.Logf}
	changes, err := networkhealth.Sync(ctx, options, in)
	if err != nil {
		t.Logf("::warning::PodNetworkHealths are not up to date: %v", err)
		return
	}
	t.Logf("%s of this plan, %s deleted, %s without one because of podNetworkHealth.maxObjects",
		checkup.Count(changes.Objects, networkhealth.Kind), checkup.Count(len(changes.Delete), "object"),
		checkup.Count(changes.Omitted, "pair"))
}

// writeOutcomes writes the outcome of each check of a kiagnose checkup into the checkup's
// ConfigMap. removed is the error of teardown, or nil. It has a timeout of its own,
// because users of kiagnose read the ConfigMap only.
func writeOutcomes(ctx context.Context, t *task.Task, plan *checkup.Plan, r *checkup.Report, removed error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), outcomeTime)
	defer cancel()
	var problems []error
	for _, c := range r.Checks {
		cm, ok := kiagnose.Of(t.Kubernetes, kinds.Outcome(plan.Checks[c.Name]), t.Namespace)
		if !ok {
			continue
		}
		o := kiagnose.Outcome{Report: c, Started: r.Started, Finished: r.Finished}
		if removed != nil {
			o.Teardown = removed.Error()
		}
		if err := cm.Write(ctx, o); err != nil {
			problems = append(problems, fmt.Errorf("check %s: %w", c.Name, err))
			continue
		}
		t.Logf("check %s: the outcome is in %s", c.Name, cm)
	}
	return errors.Join(problems...)
}

// outcomeTime is the longest time for writing the ConfigMaps.
const outcomeTime = 20 * time.Second

// retire updates the objects of pairs that this and earlier runs of the plan wrote: an
// object without a recent result becomes Unknown, and an object whose pair no check
// expects any longer is deleted after its retention.
func retire(ctx context.Context, t *task.Task, plan *checkup.Plan) error {
	ctx, cancel := context.WithTimeout(ctx, retireTime)
	defer cancel()
	o := connectivity.RetireOptions{Dynamic: t.Dynamic, Namespace: t.Namespace}
	for _, check := range plan.CheckNames() {
		var frozen record.Frozen
		if err := t.Store(plan.Name).Load(ctx, record.Worksheet(check), &frozen); err != nil {
			continue // the report says so
		}
		if !frozen.Worksheet.Connections.Writes() {
			continue
		}
		o.Worksheets = append(o.Worksheets, &frozen.Worksheet)
		if o.Started.IsZero() || frozen.Started.Before(o.Started) {
			o.Started = frozen.Started
		}
	}
	n := 0
	err := retry.Until(ctx, func() error {
		more, err := connectivity.Retire(ctx, o)
		n += more
		return err
	})
	if n > 0 {
		t.Logf("deleted %s of pairs that no check expects any longer: their retention is over", checkup.Count(n, "object"))
	}
	if err != nil {
		return fmt.Errorf("retire objects of pairs: %w", err)
	}
	return nil
}

// retireTime is the longest time for retiring objects of pairs.
const retireTime = 30 * time.Second

// writeResults writes one file for each result. Each write is atomic: a reader finds the
// old or the new content.
func writeResults(dir string, results map[string]string) error {
	var problems []error
	for name, value := range results {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path+".new", []byte(value), 0o644); err != nil {
			problems = append(problems, fmt.Errorf("write result %s: %w", name, err))
			continue
		}
		if err := os.Rename(path+".new", path); err != nil {
			problems = append(problems, fmt.Errorf("write result %s: %w", name, err))
		}
	}
	return errors.Join(problems...)
}
