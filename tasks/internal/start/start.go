// SPDX-License-Identifier: Apache-2.0

// Package start starts one run of a plan: what the Job of a schedule does.
//
//   - The PipelineRun has the name of the Job, so that a retried Job makes no second run.
//   - Overlap is guarded by looking at the runs, because a Job is over as soon as its run is created. Two Jobs that
//     look at once are decided after both have created: the run that was created later, or has the higher name, goes.
//   - Finished runs of the schedule beyond the plan's retention are deleted, the oldest first, and with them their
//     TaskRuns and pods. Runs that were started by hand stay.
//
// A run that is not started is no error of the Job. The history of the plan has no run at that time: a gap.
package start

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/checkplan/checkplan/pkg/checkup"
)

var pipelineRuns = schema.GroupVersionResource{Group: "tekton.dev", Version: "v1", Resource: "pipelineruns"}

// Starter starts one run.
type Starter struct {
	// Runs are the PipelineRuns of the namespace.
	Runs dynamic.ResourceInterface
	Plan string
	// Name of the run: that of the Job.
	Name   string
	Policy checkup.ConcurrencyPolicy
	// Jitter is the longest random delay.
	Jitter time.Duration
	// Keep is the number of finished runs of the schedule that are kept.
	Keep int
	// Run is the PipelineRun to create, without a name.
	Run *unstructured.Unstructured
	// Sleep waits for the jitter, or returns the error of the context.
	Sleep func(context.Context, time.Duration) error
	Out   io.Writer
}

// Main starts the run that the environment describes, and returns the exit code.
func Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	s, namespace, err := New(os.Getenv, os.Stdout)
	if err == nil {
		err = s.connect(namespace)
	}
	if err == nil {
		err = s.Start(ctx)
	}
	if err != nil {
		fmt.Fprintf(os.Stdout, "::error::%s\n", checkup.Clean(err.Error()))
		return 1
	}
	return 0
}

// New reads the environment, which planner compile writes into the CronJob.
func New(getenv func(string) string, out io.Writer) (s *Starter, namespace string, err error) {
	s = &Starter{
		Plan: getenv("PLAN_NAME"), Name: getenv("JOB_NAME"), Policy: checkup.ConcurrencyPolicy(getenv("CONCURRENCY_POLICY")),
		Run: &unstructured.Unstructured{}, Sleep: sleep, Out: out,
	}
	var problems []error
	for _, name := range []string{"PLAN_NAME", "JOB_NAME", "NAMESPACE"} {
		if getenv(name) == "" {
			problems = append(problems, fmt.Errorf("environment variable %s is not set: this is the Job of a schedule, made by "+
				"planner compile", name))
		}
	}
	bad := func(name string, err error) {
		if err != nil {
			problems = append(problems, fmt.Errorf("environment variable %s: %w", name, err))
		}
	}
	s.Jitter, err = time.ParseDuration(getenv("JITTER"))
	bad("JITTER", err)
	s.Keep, err = strconv.Atoi(getenv("KEEP"))
	bad("KEEP", err)
	bad("PIPELINE_RUN", json.Unmarshal([]byte(getenv("PIPELINE_RUN")), &s.Run.Object))
	if !slices.Contains(checkup.ConcurrencyPolicies, s.Policy) {
		bad("CONCURRENCY_POLICY", fmt.Errorf("%q: want one of %v", s.Policy, checkup.ConcurrencyPolicies))
	}
	return s, getenv("NAMESPACE"), errors.Join(problems...)
}

func (s *Starter) connect(namespace string) error {
	config, err := rest.InClusterConfig()
	if err != nil {
		return fmt.Errorf("connect to the API server as the pod's service account: %w", err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	s.Runs = client.Resource(pipelineRuns).Namespace(namespace)
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// Start waits for the jitter, starts the run if the policy lets it, and deletes old runs. That it is not started is no
// error.
func (s *Starter) Start(ctx context.Context) error {
	if s.Jitter > 0 {
		if err := s.Sleep(ctx, rand.N(s.Jitter)); err != nil {
			return fmt.Errorf("wait before the start: %w", err)
		}
	}
	runs, err := s.list(ctx)
	if err != nil {
		return err
	}
	// Old runs go first: a cluster that refuses new ones may have no room.
	tidied := s.tidy(ctx, runs)
	return errors.Join(s.create(ctx, runs), tidied)
}

// create creates the run, unless another one forbids it.
func (s *Starter) create(ctx context.Context, runs []Run) error {
	if slices.ContainsFunc(runs, func(r Run) bool { return r.Name == s.Name }) {
		fmt.Fprintf(s.Out, "run %s exists: an earlier try of this Job created it\n", s.Name)
		return nil
	}
	if other := Overlaps(runs, s.Name); other != nil && s.Policy == checkup.ConcurrencyForbid {
		fmt.Fprintf(s.Out, "run %s is not started: run %s of plan %s has not finished\n", s.Name, other.Name, s.Plan)
		return nil
	}
	if s.Policy == checkup.ConcurrencyReplace {
		if err := s.cancel(ctx, runs); err != nil {
			return err
		}
	}
	run := s.Run.DeepCopy()
	run.SetGenerateName("")
	run.SetName(s.Name)
	marked := map[string]string{}
	for k, v := range run.GetLabels() {
		marked[k] = v
	}
	marked[checkup.LabelPlan], marked[checkup.LabelScheduled] = s.Plan, "true"
	run.SetLabels(marked)
	if _, err := s.Runs.Create(ctx, run, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create PipelineRun %s: %w", s.Name, err)
	}
	if s.Policy != checkup.ConcurrencyForbid {
		fmt.Fprintf(s.Out, "run %s is started\n", s.Name)
		return nil
	}
	runs, err := s.list(ctx)
	if err != nil {
		return err
	}
	if first := First(runs); first != nil && first.Name != s.Name {
		own := slices.IndexFunc(runs, func(r Run) bool { return r.Name == s.Name })
		if own >= 0 {
			if err := s.remove(ctx, runs[own]); err != nil {
				return err
			}
		}
		fmt.Fprintf(s.Out, "run %s is not started: run %s of plan %s began at the same time\n", s.Name, first.Name, s.Plan)
		return nil
	}
	fmt.Fprintf(s.Out, "run %s is started\n", s.Name)
	return nil
}

// cancel stops the unfinished runs. Their finally tasks tear down and report.
func (s *Starter) cancel(ctx context.Context, runs []Run) error {
	for _, r := range runs {
		if r.Finished {
			continue
		}
		patch := []byte(`{"spec":{"status":"CancelledRunFinally"}}`)
		_, err := s.Runs.Patch(ctx, r.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("cancel PipelineRun %s: %w", r.Name, err)
		}
		fmt.Fprintf(s.Out, "run %s is cancelled: run %s replaces it\n", r.Name, s.Name)
	}
	return nil
}

// tidy deletes the runs beyond the retention.
func (s *Starter) tidy(ctx context.Context, runs []Run) error {
	var problems []error
	for _, r := range Expired(runs, s.Keep) {
		problems = append(problems, s.remove(ctx, r))
	}
	return errors.Join(problems...)
}

// remove deletes a run, with its TaskRuns and pods; another run of the same name stays.
func (s *Starter) remove(ctx context.Context, r Run) error {
	background, uid := metav1.DeletePropagationBackground, types.UID(r.UID)
	err := s.Runs.Delete(ctx, r.Name, metav1.DeleteOptions{
		PropagationPolicy: &background, Preconditions: &metav1.Preconditions{UID: &uid},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete PipelineRun %s: %w", r.Name, err)
	}
	return nil
}

// Run is what matters here of a PipelineRun.
type Run struct {
	Name, UID string
	Created   time.Time
	// Scheduled says that a schedule started it.
	Scheduled bool
	Finished  bool
}

// listPage is how many PipelineRuns a list reads at once. Each may have 1.5 MiB, etcd's limit: this many, read and
// decoded, are within the memory limit of the pod (startMemory in pkg/tekton).
const listPage = 20

// list returns the runs of the plan. The API server keeps the state of a list for some minutes; then its next page is
// an error, 410, and the retried Job lists again.
func (s *Starter) list(ctx context.Context) ([]Run, error) {
	var runs []Run
	options := metav1.ListOptions{LabelSelector: labels.Set{checkup.LabelPlan: s.Plan}.String(), Limit: listPage}
	for {
		page, err := s.Runs.List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list the PipelineRuns of plan %s: %w", s.Plan, err)
		}
		for i := range page.Items {
			o := &page.Items[i]
			finished, _, _ := unstructured.NestedString(o.Object, "status", "completionTime")
			runs = append(runs, Run{
				Name: o.GetName(), UID: string(o.GetUID()), Created: o.GetCreationTimestamp().Time,
				Scheduled: o.GetLabels()[checkup.LabelScheduled] == "true", Finished: finished != "",
			})
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return runs, nil
		}
	}
}

// Overlaps returns a run that has not finished and has another name; nil if there is none.
func Overlaps(runs []Run, name string) *Run {
	for i := range runs {
		if !runs[i].Finished && runs[i].Name != name {
			return &runs[i]
		}
	}
	return nil
}

// First returns the unfinished run that was created first, by name of two in one second; nil if all have finished.
func First(runs []Run) *Run {
	var first *Run
	for i := range runs {
		if !runs[i].Finished && (first == nil || older(runs[i], *first) < 0) {
			first = &runs[i]
		}
	}
	return first
}

func older(a, b Run) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name)) }

// Expired returns the finished runs of the schedule that are beyond the newest keep, oldest first.
func Expired(runs []Run, keep int) []Run {
	old := slices.DeleteFunc(slices.Clone(runs), func(r Run) bool { return !r.Finished || !r.Scheduled })
	slices.SortFunc(old, older)
	return old[:max(0, len(old)-max(keep, 1))]
}
