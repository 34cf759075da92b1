// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// NotMeasured returns the report of a check without a worksheet, because its setup
// failed or did not run. It is inconclusive: its expected units are unknown.
func NotMeasured(name string, kind checkup.Kind, cause checkup.Cause) checkup.CheckReport {
	return checkup.CheckReport{Name: name, Kind: kind, Verdict: checkup.RunInconclusive, Cause: &cause}
}

// Run identifies the run of a report. Every field may be empty.
type Run struct {
	Namespace string
	Name      string // of the PipelineRun
	UID       string // of the PipelineRun
	Started   time.Time
	Finished  time.Time
}

// Join makes the report of a run from the reports of its checks. A check of the plan
// without a report counts as NotMeasured. Leftovers are fixtures that teardown could not
// remove, as kind/name; they do not change the verdict, which concerns the network only.
func Join(plan *checkup.Plan, run Run, checks []checkup.CheckReport, leftovers []string) checkup.Report {
	r := checkup.Report{
		APIVersion: checkup.APIVersion, Kind: checkup.ReportKind,
		Plan: plan.Name, Namespace: run.Namespace, Run: run.Name, RunUID: run.UID,
		Started: run.Started, Finished: run.Finished,
		Gate: plan.Gate, Leftovers: slices.Clone(leftovers),
	}
	given := func(name string) func(checkup.CheckReport) bool {
		return func(c checkup.CheckReport) bool { return c.Name == name }
	}
	names := plan.CheckNames()
	for _, name := range names {
		if !slices.ContainsFunc(checks, given(name)) {
			r.Checks = append(r.Checks, NotMeasured(name, plan.Checks[name].Kind(), checkup.Cause{
				Stage: checkup.StageSetup, Message: "the check has no worksheet: its setup failed or did not run",
			}))
			continue
		}
		for _, c := range checks {
			if c.Name == name {
				r.Checks = append(r.Checks, c)
			}
		}
	}
	for _, c := range checks {
		if !slices.Contains(names, c.Name) {
			r.Checks = append(r.Checks, c)
		}
	}
	r.Verdict = checkup.RunInconclusive
	if len(r.Checks) > 0 {
		r.Verdict = checkup.RunPass
	}
	for _, c := range r.Checks {
		r.Verdict = worse(r.Verdict, c.Verdict)
		r.Counts = Sum(r.Counts, c.Counts)
	}
	r.Passed = r.Gate.Require.Admits(r.Verdict)
	r.Summarize(summary(&r))
	return r
}

// worse returns the worse of two verdicts; an unknown one is as bad as
// inconclusive, never better.
func worse(a, b checkup.RunVerdict) checkup.RunVerdict {
	if !slices.Contains(checkup.RunVerdicts, b) {
		b = checkup.RunInconclusive
	}
	if slices.Index(checkup.RunVerdicts, b) < slices.Index(checkup.RunVerdicts, a) {
		return b
	}
	return a
}

// summary is what a line for lists of runs says beside the verdict.
func summary(r *checkup.Report) string {
	clauses := []string{score(r)}
	findings := 0
	for _, check := range r.Checks {
		if check.Cause != nil {
			clauses = append(clauses, fmt.Sprintf("%s was not measured: %s", check.Name, check.Cause))
		}
		findings += len(lasting(check.Findings))
	}
	if f := first(r.Checks); f != nil {
		s := f.Message
		if findings > 1 {
			s += fmt.Sprintf(" (and %s)", checkup.Count(findings-1, "more finding"))
		}
		clauses = append(clauses, s)
	}
	for _, check := range r.Checks {
		clauses = append(clauses, check.Said...)
	}
	if len(r.Leftovers) > 0 {
		clauses = append(clauses, checkup.Count(len(r.Leftovers), "object")+" left behind")
	}
	return strings.Join(clauses, "; ")
}

// first returns the first lasting finding of all checks: one about failures, if there is one; nil without any.
func first(checks []checkup.CheckReport) *checkup.Finding {
	var changed *checkup.Finding
	for _, check := range checks {
		for _, f := range lasting(check.Findings) {
			if f.Change == nil {
				return &f
			}
			if changed == nil {
				changed = &f
			}
		}
	}
	return changed
}

// lasting are the findings that a further look did not find gone.
func lasting(findings []checkup.Finding) []checkup.Finding {
	return slices.DeleteFunc(
		slices.Clone(findings),
		func(f checkup.Finding) bool { return f.Confirmation == checkup.Gone },
	)
}

// score prints how many units of each noun passed, or that none was expected.
func score(r *checkup.Report) string {
	counts := map[string]checkup.Counts{}
	nothing := "pair"
	for i := range r.Checks {
		c := &r.Checks[i]
		noun := cmp.Or(c.Noun, "pair")
		if c.Counts.Expected > 0 {
			counts[noun] = Sum(counts[noun], c.Counts)
		} else if noun != "pair" {
			nothing = noun
		}
	}
	var clauses []string
	for _, noun := range slices.Sorted(maps.Keys(counts)) {
		c := counts[noun]
		undecided := ""
		if c.Undecided > 0 {
			undecided = fmt.Sprintf("%d undecided, ", c.Undecided)
		}
		clauses = append(clauses, fmt.Sprintf("%d of %s passed, %d failed, %s%d unmeasured",
			c.Pass, checkup.Count(c.Expected, noun), c.Fail, undecided, c.Unmeasured))
	}
	if len(clauses) == 0 {
		return fmt.Sprintf("no %s was expected", nothing)
	}
	return strings.Join(clauses, "; ")
}
