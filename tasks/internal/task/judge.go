// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/kinds"
	"github.com/checkplan/checkplan/pkg/record"
)

// Report judges what the run recorded. What cannot be read is unmeasured in the report and
// part of the error; the report is complete in either case. The caller sets Leftovers.
func (t *Task) Report(ctx context.Context, plan *checkup.Plan, now time.Time) (*checkup.Report, error) {
	r, _, err := t.Judge(ctx, plan, now, nil)
	return r, err
}

// Judge is Report, and compares with the earlier runs of the plan; nil compares with none. It also returns what was
// measured, for the checks that were set up.
func (t *Task) Judge(
	ctx context.Context, plan *checkup.Plan, now time.Time, before *history.History,
) (*checkup.Report, map[string]history.Sheet, error) {
	run := judge.Run{Namespace: t.Namespace, Name: t.RunName, UID: t.RunUID, Finished: now}
	var (
		checks   []checkup.CheckReport
		problems []error
	)
	sheets := map[string]history.Sheet{}
	for _, name := range plan.CheckNames() {
		c, started, sheet, err := t.judge(ctx, plan, name, now, before)
		if err != nil {
			problems = append(problems, fmt.Errorf("check %s: %w", name, err))
		}
		if !started.IsZero() && (run.Started.IsZero() || started.Before(run.Started)) {
			run.Started = started
		}
		if sheet.Worksheet != nil {
			sheets[name] = sheet
		}
		checks = append(checks, c)
	}
	r := judge.Join(plan, run, checks, nil)
	return &r, sheets, errors.Join(problems...)
}

// judge judges one check. The sheet is empty if the check was not set up.
func (t *Task) judge(
	ctx context.Context, plan *checkup.Plan, check string, now time.Time, before *history.History,
) (checkup.CheckReport, time.Time, history.Sheet, error) {
	var none history.Sheet
	store := t.Store(plan.Name)
	of := plan.Checks[check].Kind()
	var frozen record.Frozen
	switch err := store.Load(ctx, record.Worksheet(check), &frozen); {
	case apierrors.IsNotFound(err):
		return judge.NotMeasured(check, of, t.why(ctx, store, check, "setup", checkup.StageSetup)), time.Time{}, none, nil
	case err != nil:
		return judge.NotMeasured(
			check,
			of,
			checkup.Cause{Stage: checkup.StageCollect, Message: err.Error()},
		), time.Time{}, none, err
	}
	w := &frozen.Worksheet
	k, err := kinds.Of(plan, check)
	if err != nil {
		cause := checkup.Cause{Stage: checkup.StageSetup, Message: err.Error()}
		return judge.NotMeasured(check, of, cause), time.Time{}, none, err
	}

	var problems []error
	roster := &checkup.Roster{}
	switch err := store.Load(ctx, record.Roster(check), roster); {
	case err == nil:
	case apierrors.IsNotFound(err): // probe did not finish
		roster = &frozen.Roster
	default:
		problems = append(problems, err)
		roster = &frozen.Roster
	}
	measured, err := store.LoadRecord(ctx, check)
	switch {
	case err == nil:
	case apierrors.IsNotFound(err):
		measured = &checkup.Record{}
	default:
		problems = append(problems, err)
		if measured == nil { // else only a further look could not be read
			measured = &checkup.Record{}
		}
	}
	if len(measured.Sources) < len(w.Sources) {
		cause := t.why(ctx, store, check, "probe", checkup.StageCollect)
		if err := errors.Join(problems...); err != nil {
			cause = checkup.Cause{Stage: checkup.StageCollect, Message: err.Error()}
		}
		fill(measured, w, cause)
	}
	if len(measured.Facts) < len(w.Units) {
		excuse(measured, w, t.why(ctx, store, check, "probe", checkup.StageCollect))
	}
	sheet := history.Sheet{Worksheet: w, Roster: roster, Record: measured}
	c := k.Judge(w, roster, measured, plan.Gate)
	if k.Compare != nil {
		k.Compare(before, now, sheet, plan.Gate, &c)
	}
	return c, frozen.Started, sheet, errors.Join(problems...)
}

// why is the cause of a failed phase of a check: the error that the phase recorded, else
// the status that Tekton reports of its task.
func (t *Task) why(ctx context.Context, store *record.Store, check, phase string, stage checkup.Stage) checkup.Cause {
	var cause checkup.Cause
	if store.Load(ctx, failure(check, phase), &cause) == nil {
		return cause
	}
	name := phase + "-" + check
	outcome, ok := t.Outcomes[name]
	message := fmt.Sprintf("task %s %s", name, outcome)
	switch {
	case !ok:
		message = fmt.Sprintf("task %s did not finish", name)
	case outcome.Status == "None":
		message += ": the run was stopped, or a task before it failed"
	}
	return checkup.Cause{Stage: stage, Message: message}
}

// fill records the cause for every source without a record: such a source did not report
// that it had nothing to measure.
func fill(r *checkup.Record, w *checkup.Worksheet, cause checkup.Cause) {
	known := map[int]bool{}
	for _, s := range r.Sources {
		known[s.Source] = true
	}
	for s := range w.Sources {
		if own := w.Sources[s]; !known[s] && own.Inside && own.Cause != nil { // why nothing was probed
			r.Sources = append(r.Sources, checkup.Source{Source: s, Cause: own.Cause})
		} else if !known[s] {
			r.Sources = append(r.Sources, checkup.Source{Source: s, Cause: &cause})
		}
	}
}

// excuse records the cause for every unit without a fact.
func excuse(r *checkup.Record, w *checkup.Worksheet, cause checkup.Cause) {
	for _, unit := range w.Units {
		if !slices.ContainsFunc(r.Facts, func(f checkup.Fact) bool { return f.Unit == unit }) {
			r.Facts = append(r.Facts, checkup.Fact{Unit: unit, Cause: &cause})
		}
	}
}

// Removes reports whether fixtures are removed after a run of this verdict.
func Removes(when checkup.Teardown, verdict checkup.RunVerdict) bool {
	switch when {
	case checkup.TeardownNever:
		return false
	case checkup.TeardownOnPass:
		return verdict == checkup.RunPass
	default:
		return true
	}
}
