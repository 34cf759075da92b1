// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"knative.dev/pkg/apis"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/kiagnose"
	"github.com/checkplan/checkplan/pkg/kinds"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/run"
	"github.com/checkplan/checkplan/pkg/tekton"
)

// runOptions are the flags of run.
type runOptions struct {
	startOptions
	plan     string
	settings []string
	output   string
	keep     bool
	detach   bool
	// from is where start finds the Pipeline.
	from tekton.Resolver
}

// allSettings are the settings, and that of --keep.
func (o runOptions) allSettings() []string {
	if o.keep {
		return append(o.settings, "teardown="+string(checkup.TeardownNever))
	}
	return o.settings
}

// startOptions are the flags of the verbs that start a run.
type startOptions struct {
	access  run.Access
	compile tekton.Options
	timeout time.Duration
}

func addStartOptions(env *environment, cmd *cobra.Command, o *startOptions) {
	addAccess(cmd, &o.access)
	addCompileOptions(env, cmd, &o.compile)
	resolverFlag(cmd, &o.compile.Tasks, "where the Pipeline finds its Tasks; none are applied")
	timeoutFlag(cmd, &o.timeout)
}

func timeoutFlag(cmd *cobra.Command, timeout *time.Duration) {
	cmd.Flags().DurationVar(timeout, "timeout", 0,
		"time limit of the whole run, teardown included; 0: the sum of the plan's timeouts")
}

func newRun(env *environment) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run PATH...",
		Short: "Run a plan on a cluster and print its report",
		Long: `run applies what the plan compiles to, creates a PipelineRun, follows it, and
prints its report. Ctrl-C cancels the run, and its teardown still runs. A second
Ctrl-C exits at once, and prints which pods are left.

The ConfigMap of a kiagnose checkup runs in its own namespace, unless -n names
another. The outcome is written to the ConfigMap. If the ConfigMap does not exist
in the cluster, run creates it first.

Exit codes: 0 the run passed its gate; 1 inconclusive, or the tool or the cluster
failed; 2 wrong usage, or an invalid plan; 3 the network does not do what the
plan expects.`,
		Args: paths,
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.run(cmd.Context(), args, o)
		},
	}
	fileFlag(cmd)
	addStartOptions(env, cmd, &o.startOptions)
	planFlag(env, cmd, &o.plan)
	addRunOptions(env, cmd, &o)
	return cmd
}

// addRunOptions adds the flags of run that start has, too.
func addRunOptions(env *environment, cmd *cobra.Command, o *runOptions) {
	setFlag(env, cmd, &o.settings)
	cmd.Flags().BoolVar(&o.keep, "keep", false,
		"keep the pods that the run creates, for debugging (same as --set teardown=Never)")
	cmd.Flags().BoolVar(&o.detach, "detach", false,
		"print the name of the PipelineRun and exit, while it goes on: planner report NAME prints its report")
	outputFlag(cmd, &o.output)
}

func (e *environment) run(ctx context.Context, args []string, o runOptions) error {
	e.warnChangeable(o.compile.Tasks)
	plan, files, err := e.onePlan(ctx, args, o.plan)
	if err != nil {
		return err
	}
	o.access.Namespace = cmp.Or(o.access.Namespace, homeOf(plan))
	cluster, err := run.Connect(o.access)
	if err != nil {
		return err
	}
	o.compile.Namespace = cluster.Namespace
	compiled, err := tekton.Compile(plan, o.compile)
	if err != nil {
		return exit{exitUsage, err}
	}
	objects := compiled.Applied()
	pipelineRun, err := tekton.Run(plan, o.compile, o.allSettings(), o.timeout)
	if err != nil {
		return exit{exitUsage, err}
	}

	screen := newScreen(e.stderr, e.terminalOf(e.stderr))
	defer screen.close()
	if err := e.preflight(ctx, cluster, plan, objects, screen); err != nil {
		return err
	}
	started, err := e.start(ctx, cluster, plan, files.ConfigMaps, objects, pipelineRun, screen)
	if err != nil {
		return err
	}
	return e.watch(ctx, cluster, started, screen, o)
}

// watch follows a run to its end and prints its report, or prints its name only if o says so.
func (e *environment) watch(ctx context.Context, cluster *run.Cluster, started *pipelinev1.PipelineRun, screen *screen,
	o runOptions) error {
	if o.detach {
		screen.close()
		_, err := fmt.Fprintln(e.stdout, started.Name)
		return err
	}
	outcome, err := e.finish(ctx, cluster, started, screen)
	if err != nil {
		return err
	}
	screen.close()
	return e.printReport(outcome, e.past(ctx, cluster, outcome, o.output), o.output)
}

// preflight checks whether a plan can run, unless it is interrupted.
func (e *environment) preflight(ctx context.Context, cluster *run.Cluster, plan *checkup.Plan, objects []runtime.Object,
	screen *screen) error {
	ctx, stop := e.interruptible(ctx)
	defer stop()
	screen.show("checking whether the plan can run on %s", cluster.Server)
	return cluster.Preflight(ctx, plan, objects)
}

// start applies the objects of a plan and creates its run, unless it is interrupted. files has the data of ConfigMaps
// that were read from files.
func (e *environment) start(ctx context.Context, cluster *run.Cluster, plan *checkup.Plan,
	files map[checkup.ConfigMapRef]map[string]string, objects []runtime.Object, pipelineRun *pipelinev1.PipelineRun,
	screen *screen) (*pipelinev1.PipelineRun, error) {
	ctx, stop := e.interruptible(ctx)
	defer stop()
	if err := e.ensureConfigMaps(ctx, cluster, plan, files, screen); err != nil {
		return nil, err
	}
	screen.show("applying %d objects", len(objects))
	if err := cluster.Apply(ctx, objects); err != nil {
		return nil, err
	}
	started, err := cluster.Start(ctx, pipelineRun)
	if err == nil {
		screen.say("started PipelineRun %s in namespace %s", started.Name, cluster.Namespace)
	}
	return started, err
}

// finish follows a run to its end, and returns its report.
func (e *environment) finish(ctx context.Context, cluster *run.Cluster, started *pipelinev1.PipelineRun,
	screen *screen) (*checkup.Report, error) {
	finished, last, err := e.follow(ctx, cluster, started, screen)
	if err != nil {
		return nil, err
	}
	ctx, stop := e.interruptible(ctx)
	defer stop()
	report, err := storedReport(ctx, cluster, string(finished.UID))
	if err != nil {
		what := "ended, and its report cannot be read"
		if apierrors.IsNotFound(err) {
			what = "ended without a report"
		}
		return nil, fmt.Errorf("PipelineRun %s %s: %w\n%s", finished.Name, what, err, whyEnded(finished, last))
	}
	for _, line := range failedTasks(last, checkup.PhaseConclude) { // a verdict makes that task fail
		screen.say("%s", line)
	}
	return report, nil
}

// homeOf is the namespace that a plan belongs to: that of the ConfigMap of the kiagnose
// checkup that it is; empty for any other plan, and for one in a namespace of Kubernetes,
// which only -n selects.
func homeOf(plan *checkup.Plan) string {
	if names := plan.CheckNames(); len(names) == 1 {
		outcome := kinds.Outcome(plan.Checks[names[0]])
		if outcome != nil && !strings.HasPrefix(outcome.Namespace, "kube-") {
			return outcome.Namespace
		}
	}
	return ""
}

// ensureConfigMaps creates missing ConfigMaps for the outcomes of the plan's checks, and
// prints where the outcomes will be. files has the data of ConfigMaps that were read from
// files.
func (e *environment) ensureConfigMaps(ctx context.Context, cluster *run.Cluster, plan *checkup.Plan,
	files map[checkup.ConfigMapRef]map[string]string, screen *screen) error {
	for _, name := range plan.CheckNames() {
		outcome := kinds.Outcome(plan.Checks[name])
		cm, ok := kiagnose.Of(cluster.Kube, outcome, cluster.Namespace)
		if !ok {
			continue
		}
		data, isFile := files[*outcome]
		if !isFile {
			data = kiagnose.Data(plan.Checks[name].Spec)
		}
		created, err := cm.Ensure(ctx, data)
		if err != nil {
			return err
		}
		if created {
			screen.say("created %s", cm)
		}
		screen.say("the outcome of check %s will be in %s", name, cm)
	}
	return nil
}

// whyEnded is Tekton's reason and message of a finished run and of its failed tasks.
func whyEnded(r *pipelinev1.PipelineRun, last run.Progress) string {
	var lines []string
	if condition := r.Status.GetCondition(apis.ConditionSucceeded); condition != nil {
		lines = append(lines, condition.Reason+": "+condition.Message)
	}
	return strings.Join(append(lines, failedTasks(last, "")...), "\n")
}

// failedTasks has a line for each failed task but that of a phase, with Tekton's reason and message. The message has
// the exit code, which says more than the report does of a task that could not record why it failed.
func failedTasks(last run.Progress, except checkup.Phase) (lines []string) {
	for _, task := range last.Tasks {
		if task.Failed && task.Name != string(except) {
			lines = append(lines, fmt.Sprintf("task %s failed (%s): %s", task.Name, task.Reason, task.Message))
		}
	}
	return lines
}

// follow waits for the end of the run, and returns the run and the last status of its
// tasks. The first interrupt cancels the run. At the second, follow returns at once,
// with an error that lists what is left.
func (e *environment) follow(ctx context.Context, cluster *run.Cluster, started *pipelinev1.PipelineRun,
	screen *screen) (*pipelinev1.PipelineRun, run.Progress, error) {
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	type end struct {
		run  *pipelinev1.PipelineRun
		last run.Progress
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		var last run.Progress
		follower := run.Follower{Cluster: cluster, Report: func(p run.Progress) {
			last = p
			screen.progress(p)
		}}
		finished, err := follower.Follow(ctx, started.Name)
		ended <- end{finished, last, err}
	}()
	cancelled := false
	failed := make(chan error, 1)
	for {
		select {
		case end := <-ended:
			return end.run, end.last, end.err
		case err := <-failed:
			screen.say("%v", err)
		case <-e.interrupts:
			if cancelled {
				leave(errInterrupted)
				<-ended
				return nil, run.Progress{}, e.whatRemains(cluster, started)
			}
			cancelled = true
			screen.say("interrupted: cancelling %s; its teardown still runs. Press Ctrl-C again to exit at once.", started.Name)
			go func() { // the API server may not answer, and the next interrupt must be seen
				if err := cluster.Cancel(ctx, started.Name); err != nil {
					failed <- err
				}
			}()
		}
	}
}

// whatRemains is the error that lists the pods of the run that remain.
func (e *environment) whatRemains(cluster *run.Cluster, started *pipelinev1.PipelineRun) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	left, err := cluster.Remaining(ctx, string(started.UID))
	advice := fmt.Sprintf("PipelineRun %s is being cancelled, and its teardown deletes them; if it does not, run: %s",
		started.Name, cluster.RemoveCommand(string(started.UID)))
	switch {
	case err != nil:
		return fmt.Errorf("interrupted before the run ended; cannot list the pods that remain: %w; %s", err, advice)
	case len(left) == 0:
		return errors.New("interrupted before the run ended; no pod of it remains")
	}
	return fmt.Errorf("interrupted before the run ended; pods that remain: %s; %s", strings.Join(left, ", "), advice)
}

// outputFlag adds the flag with the format of a report.
func outputFlag(cmd *cobra.Command, output *string) {
	enumVar(cmd, output, "output", "text", "output format", "text", "html", "json", "junit", "openmetrics",
		"prometheus")
}

// printReport prints a report in one of the formats of outputFlag, as HTML with the history of its plan, if that is not
// nil. Its error is the exit code of the report.
func (e *environment) printReport(r *checkup.Report, past *history.Overview, output string) error {
	var err error
	switch output {
	case "json":
		err = print.JSON(e.stdout, r)
	case "junit":
		err = print.JUnit(e.stdout, r)
	case "openmetrics":
		err = print.OpenMetrics(e.stdout, r)
	case "prometheus":
		err = print.Prometheus(e.stdout, r)
	case "html":
		err = print.HTML(e.stdout, r, print.HTMLOptions{History: past})
	default:
		t := e.terminalOf(e.stdout)
		err = print.Text(e.stdout, r, print.TextOptions{Width: t.width, Color: t.color, Rest: allInJSON})
	}
	if err != nil {
		return fmt.Errorf("print the report of plan %s: %w", r.Plan, err)
	}
	return outcome(r)
}

// outcome is nil if the report passes the plan's gate, else an exit code without a
// message, because the report is the message.
func outcome(r *checkup.Report) error {
	switch {
	case r.Passed:
		return nil
	case r.Verdict == checkup.RunFail:
		return exit{code: exitFailed}
	default:
		return exit{code: exitError}
	}
}

// errNotAReport is the error of a file that can be read, and is no report.
var errNotAReport = errors.New("not a report")

// readReport reads a report from a file, or from standard input for "-".
func (e *environment) readReport(ctx context.Context, path string) (*checkup.Report, error) {
	text, err := e.readAll(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	r, err := print.Read(bytes.NewReader(text))
	if err != nil {
		return nil, usage("%s: %w: %w", path, errNotAReport, err)
	}
	return r, nil
}
