// SPDX-License-Identifier: Apache-2.0

// Teardown records evidence of failed fixtures, and of the VMs of checks that did not
// pass. It then removes all fixtures, if the plan says so. It fails if some are left. Only
// its own deadline stops it; it ignores SIGTERM, after which Tekton waits 30 s.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

func main() { os.Exit(task.Main(run)) }

func run(ctx context.Context, t *task.Task) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.Timeout)
	defer cancel()
	plan, err := t.Plan()
	if err != nil { // setup failed with the same error: no fixture needs to be kept
		t.Logf("::warning::%v", err)
	}
	if plan == nil {
		plan = &checkup.Plan{}
	} else if err := t.CheckAccount(ctx, plan.Name); err != nil {
		return err
	}
	f := t.Fleet(plan.Name)

	evidence, err := f.Evidence(ctx)
	if err == nil && len(evidence) > 0 {
		t.Logf("::group::%d pods failed", len(evidence))
		for _, e := range evidence {
			t.Logf("pod %s on node %s: %s %s", e.Pod, e.Node, e.Problem, e.Warning)
		}
		t.Logf("::endgroup::")
		t.Logf("for their logs: planner evidence -n %s %s", t.Namespace, t.RunName)
		err = t.Store(plan.Name).Save(ctx, record.Evidence(), evidence)
	}
	if err != nil {
		t.Logf("::warning::cannot record evidence of the failed pods: %v", err)
	}

	removes := plan.Teardown == checkup.TeardownAlways || plan.Teardown == ""
	if vms := plan.Starts(checkup.RoleGuest); vms || !removes {
		r, err := t.Report(ctx, plan, time.Now())
		if err != nil {
			t.Logf("::warning::%v", err)
		}
		if vms {
			keepVMs(ctx, t, plan, r)
		}
		if !removes && !task.Removes(plan.Teardown, r.Verdict) {
			t.Logf("fixtures are kept: teardown is %s and the verdict %s; pods end at their deadline", plan.Teardown, r.Verdict)
			if vms {
				t.Logf("VMs of checkplan's own guest end by themselves, too; "+
					"others by kubectl -n %s delete virtualmachineinstances -l %s=%s", t.Namespace, checkup.LabelRun, t.RunUID)
			}
			return nil
		}
	}
	left, err := t.Remove(ctx, plan)
	if len(left) > 0 {
		return errors.Join(fmt.Errorf("left behind: %s", strings.Join(left, " ")), err)
	}
	if err == nil {
		t.Logf("nothing is left behind")
	}
	return err
}

// keepVMs records evidence of the VMs of the checks that did not pass.
func keepVMs(ctx context.Context, t *task.Task, plan *checkup.Plan, r *checkup.Report) {
	var checks []string
	for _, c := range r.Checks {
		if slices.Contains(plan.Checks[c.Name].Fixtures(), checkup.RoleGuest) && c.Verdict != checkup.RunPass {
			checks = append(checks, c.Name)
		}
	}
	if len(checks) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, evidenceTime)
	defer cancel()
	evidence, err := t.Guests(plan.Name).Evidence(ctx, checks)
	if err == nil && len(evidence) > 0 {
		t.Logf("recorded evidence of %d VMs of checks that did not pass: planner evidence -n %s %s",
			len(evidence), t.Namespace, t.RunName)
		err = t.Store(plan.Name).Save(ctx, record.EvidenceVMs(), evidence)
	}
	if err != nil {
		t.Logf("::warning::cannot record evidence of the VMs: %v", err)
	}
}

// evidenceTime is the longest time for recording evidence of VMs.
const evidenceTime = 30 * time.Second
