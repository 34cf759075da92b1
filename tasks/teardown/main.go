// SPDX-License-Identifier: Apache-2.0

// Teardown keeps evidence of the fixtures that went wrong and removes all of
// them, if the plan says so. It fails if some are left. Nothing stops it short
// of its own deadline: not SIGTERM, after which Tekton leaves it 30 s.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	if err != nil { // setup has said so, too: nothing is there to be kept
		t.Logf("::warning::%v", err)
	}
	if plan == nil {
		plan = &checkup.Plan{}
	}
	f := t.Fleet(plan.Name)

	evidence, err := f.Evidence(ctx)
	if err == nil && len(evidence) > 0 {
		t.Logf("::group::%d pods went wrong", len(evidence))
		for _, e := range evidence {
			t.Logf("pod %s on node %s: %s %s", e.Pod, e.Node, e.Problem, e.Warning)
		}
		t.Logf("::endgroup::")
		err = t.Store(plan.Name).Save(ctx, record.Evidence(), evidence)
	}
	if err != nil {
		t.Logf("::warning::there will be no evidence of what went wrong: %v", err)
	}

	if plan.Teardown != checkup.TeardownAlways && plan.Teardown != "" {
		r, err := t.Report(ctx, plan, time.Now())
		if err != nil {
			t.Logf("::warning::%v", err)
		}
		if !task.Removes(plan.Teardown, r.Verdict) {
			t.Logf("pods are kept: teardown is %s and the verdict %s; they end by themselves", plan.Teardown, r.Verdict)
			return nil
		}
	}
	left, err := f.Remove(ctx)
	if len(left) > 0 {
		return errors.Join(fmt.Errorf("left behind: %s", strings.Join(left, " ")), err)
	}
	if err == nil {
		t.Logf("nothing is left behind")
	}
	return err
}
