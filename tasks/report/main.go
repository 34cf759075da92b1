// SPDX-License-Identifier: Apache-2.0

// Report judges the run from its worksheets and records, keeps the report, and
// writes the Tekton results. It fails if the plan's gate does not admit the
// verdict, if fixtures are left behind, or if something could not be read or
// kept; the results are there in any case.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/report"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

func main() { os.Exit(task.Main(run)) }

func run(ctx context.Context, t *task.Task) error {
	// First placeholders: a result that is missing fails a run that went well, and
	// one that says "inconclusive" is never wrong.
	nothing := &checkup.Report{Verdict: checkup.RunInconclusive, Summary: "inconclusive: the report step did not come to its end"}
	if err := writeResults(t.Results, report.Results(nothing, "")); err != nil {
		return err
	}
	plan, err := t.Plan()
	if plan == nil {
		return err
	}
	problems := []error{err, t.TeardownTrouble()}
	r, err := t.Report(ctx, plan, time.Now().UTC())
	problems = append(problems, err)
	if task.Removes(plan.Teardown, r.Verdict) {
		r.Leftovers, err = t.Fleet(plan.Name).Left(ctx)
		if err == nil && len(r.Leftovers) > 0 {
			err = fmt.Errorf("left behind: %s", strings.Join(r.Leftovers, " "))
		}
		problems = append(problems, err)
	}
	where := ""
	store := t.Store(plan.Name)
	if err := store.SaveReport(ctx, r, plan.Retention.Reports); err != nil {
		problems = append(problems, fmt.Errorf("keep the report: %w", err))
	} else {
		where = t.Namespace + "/" + store.ReportName()
	}
	problems = append(problems, writeResults(t.Results, report.Results(r, where)))
	failed := errors.Join(problems...)
	if failed != nil {
		t.Logf("::error::%s", strings.Join(strings.Fields(failed.Error()), " "))
	}
	if err := report.Log(t.Stdout, r); err != nil {
		return err
	}
	if failed != nil || !r.Passed {
		return task.ErrSaid
	}
	return nil
}

// writeResults writes one file for each result, each at once: whoever reads it
// finds the old content or the new.
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
