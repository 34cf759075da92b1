// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"knative.dev/pkg/apis"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/pkg/run"
)

func newReport(env *environment) *cobra.Command {
	var access run.Access
	var output string
	cmd := &cobra.Command{
		Use:   "report RUN|FILE|-",
		Short: "Print the report of an earlier run",
		Long: `report prints the stored report of a run: by the name or UID of its PipelineRun,
from a file that "planner run --output json" wrote, or from standard input. Its
exit code is that of the run: 0, 1 or 3. With --output html it prints one file for
a browser, a phone or paper, which needs nothing else: no script, no network. From
the cluster, the plan's history is part of it.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("%s: want one argument: the name of a PipelineRun, a file, or - for standard input", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			r, cluster, err := env.findReport(cmd.Context(), args[0], access)
			if err != nil {
				return err
			}
			return env.printReport(r, env.past(cmd.Context(), cluster, r, output), output)
		},
	}
	addAccess(cmd, &access)
	outputFlag(cmd, &output)
	cmd.ValidArgsFunction = completeNames(&access, 1, runNames)
	return cmd
}

// past returns the history of a report's plan for a format that prints it, else nil, and nil without a cluster. A
// history that cannot be read is a warning.
func (e *environment) past(
	ctx context.Context, cluster *run.Cluster, r *checkup.Report, output string,
) *history.Overview {
	if output != "html" || cluster == nil {
		return nil
	}
	ctx, stop := e.interruptible(ctx)
	defer stop()
	h, err := record.LoadHistory(ctx, cluster.Kube.CoreV1().ConfigMaps(cluster.Namespace), r.Plan)
	if err != nil {
		warning := fmt.Sprintf("warning: cannot read the history, the report is printed without it: %v", err)
		fmt.Fprintln(e.stderr, checkup.NoCommand(checkup.Clean(warning)))
	}
	if h == nil || len(h.Runs) == 0 {
		return nil
	}
	return h.Overview(history.Filter{})
}

// findReport reads a report from a file, from standard input, or from the cluster by the name or UID of its
// PipelineRun. The cluster is nil if it was not asked.
func (e *environment) findReport(
	ctx context.Context, name string, access run.Access,
) (*checkup.Report, *run.Cluster, error) {
	ctx, stop := e.interruptible(ctx)
	defer stop()
	if name == "-" || isFile(dirOf(e, name)) {
		r, err := e.readReport(ctx, name)
		return r, nil, err
	}
	cluster, err := run.Connect(access)
	if err != nil {
		return nil, nil, err
	}
	r, err := storedReport(ctx, cluster, name)
	if apierrors.IsNotFound(err) {
		err = whyNoReport(ctx, cluster, name)
	}
	return r, cluster, err
}

// isFile reports whether a path exists and is no directory: a directory may have the name of a plan or a run.
func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// storedReport reads the report of a run from the cluster, by the name or UID of its PipelineRun, and refuses one that
// cannot be printed: anybody who may write ConfigMaps may have written it.
func storedReport(ctx context.Context, cluster *run.Cluster, name string) (*checkup.Report, error) {
	r, err := record.FindReport(ctx, cluster.Kube.CoreV1().ConfigMaps(cluster.Namespace), name)
	if err != nil {
		return nil, err
	}
	if err := print.Valid(r); err != nil {
		return nil, fmt.Errorf("the report of run %s in namespace %s is not valid: %w", name, cluster.Namespace, err)
	}
	return r, nil
}

// whyNoReport is the error of a run that has no report: what its PipelineRun says about it.
func whyNoReport(ctx context.Context, cluster *run.Cluster, name string) error {
	one, err := cluster.Tekton.TektonV1().PipelineRuns(cluster.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("run %s: neither a report nor a PipelineRun in namespace %s; another namespace: -n; "+
			"runs of a plan: planner history PLAN", name, cluster.Namespace)
	case err != nil:
		return fmt.Errorf("run %s has no report in namespace %s, and its PipelineRun cannot be read: %w",
			name, cluster.Namespace, err)
	case !one.IsDone():
		return fmt.Errorf("run %s has no report yet: it was created %s ago, and has not ended",
			name, duration.HumanDuration(time.Since(one.CreationTimestamp.Time)))
	case one.Status.GetCondition(apis.ConditionSucceeded).IsTrue():
		return fmt.Errorf("run %s has no report any more: it succeeded; spec.retention.reports of its plan, or somebody, "+
			"deleted the report", name)
	}
	return fmt.Errorf("run %s ended without a report, or the report was deleted: %s", name, whyEnded(one, run.Progress{}))
}
