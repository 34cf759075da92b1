// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/run"
)

// scheduled is a plan that starts runs by itself, once its schedule is resumed. It has the longest delay that passes.
const scheduled = `apiVersion: checkplan.dev/v1alpha1
kind: Plan
metadata: {name: scheduled}
spec:
  gate: {confirm: false}
  schedule: {cron: "* * * * *", suspend: true}
  checks:
    mesh:
      podMesh:
        targets: {placement: {tolerations: []}}
        sample: {degree: 1, rotate: true}
        probes: {tcp: {}}
        expect: {latency: {max: %s}}
`

// A schedule starts runs: when a person triggers it, but not beside a run that has not finished, and by itself once it
// is resumed, within the policies of its account. The history has both runs, of which the first one fails. So each has
// another verdict than the one before, which is an event on the schedule.
func TestSchedule(t *testing.T) {
	parallel(t)
	const plan = "scheduled"
	dir := t.TempDir()
	policies := filepath.Join(dir, "out", "policies")
	// As planner run applies it, because runs beside this one have the same Tasks.
	apply := func(longest string) {
		t.Helper()
		file := filepath.Join(dir, "plan.yaml")
		if err := os.WriteFile(file, fmt.Appendf(nil, scheduled, longest), 0o600); err != nil {
			t.Fatal(err)
		}
		if c := start(t, "compile", file, "--policies", "--output-dir", filepath.Dir(policies)); c.wait(t) != 0 {
			t.Fatal(c.stderr.String())
		}
		for _, files := range [][]string{{"-k", filepath.Dir(policies)}, {"-f", policies}} {
			sandbox(t, append([]string{"kubectl", "apply", "--server-side", "--field-manager", run.FieldManager}, files...)...)
		}
	}
	apply("1us")
	planner := func(args ...string) string {
		t.Helper()
		c := start(t, args...)
		if code := c.wait(t); code != 0 {
			t.Fatalf("planner %s: exit code %d: %s", strings.Join(args, " "), code, c.stderr.String())
		}
		return strings.TrimSpace(c.stdout.String())
	}
	t.Cleanup(func() {
		sandbox(t, "kubectl", "delete", "-n", cluster(t).Namespace, "cronjob", plan)
		sandbox(t, "kubectl", "delete", "-f", policies)
	})
	if list := planner("schedule", "list"); !strings.Contains(list, plan) || !strings.Contains(list, "* * * * *") {
		t.Errorf("planner schedule list does not list the plan:\n%s", list)
	}

	triggered := planner("schedule", "trigger", plan)
	eventually(t, 3*time.Minute, func() error { return exists(t, triggered) })
	time.Sleep(time.Second) // a Job has the second of its trigger in its name
	refused := planner("schedule", "trigger", plan)
	if log := logOfJob(t, refused); !strings.Contains(log, "is not started: run "+triggered) {
		t.Errorf("a run beside another one must not start:\n%s", log)
	}
	if err := exists(t, refused); err == nil {
		t.Errorf("run %s was started beside %s", refused, triggered)
	}
	ends(t, triggered, checkup.RunFail)
	within(t, 30*time.Second, func() error { return announced(t, plan, history.VerdictFail) })

	apply("10s")
	planner("schedule", "resume", plan)
	var own string
	eventually(t, 2*time.Minute, func() error {
		for _, name := range scheduledRuns(t, plan) {
			if name != triggered {
				own = name
				return nil
			}
		}
		return fmt.Errorf("the CronJob has started no run")
	})
	planner("schedule", "suspend", plan)
	ends(t, own, checkup.RunPass)
	within(t, 30*time.Second, func() error { return announced(t, plan, history.VerdictFail, history.VerdictPass) })
	past := planner("history", plan)
	for _, name := range []string{triggered, own} {
		if !strings.Contains(past, name) {
			t.Errorf("the history does not have run %s:\n%s", name, past)
		}
	}
}

// scheduledRuns returns the names of the runs that the schedule of a plan started.
func scheduledRuns(t *testing.T, plan string) []string {
	t.Helper()
	c := cluster(t)
	runs, err := c.Tekton.TektonV1().PipelineRuns(c.Namespace).List(t.Context(), metav1.ListOptions{
		LabelSelector: fmt.Sprintf("%s=%s,%s=true", checkup.LabelPlan, plan, checkup.LabelScheduled)})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range runs.Items {
		names = append(names, r.Name)
	}
	return names
}

// exists returns an error if there is no PipelineRun of this name.
func exists(t *testing.T, name string) error {
	t.Helper()
	c := cluster(t)
	_, err := c.Tekton.TektonV1().PipelineRuns(c.Namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err
}

// ends waits until a run has ended, with this verdict, which its label has, too: the policies of the plan admit it.
func ends(t *testing.T, name string, want checkup.RunVerdict) {
	t.Helper()
	eventually(t, 3*time.Minute, func() error {
		if pipelineRun(t, name).Status.GetCondition(apis.ConditionSucceeded).IsUnknown() {
			return fmt.Errorf("run %s has not ended", name)
		}
		return nil
	})
	r := pipelineRun(t, name)
	if verdict := result(r, "verdict"); r.IsSuccessful() != (want == checkup.RunPass) || verdict != string(want) {
		t.Errorf("run %s: verdict %q, want %s: %+v", name, verdict, want, r.Status.Conditions)
	}
	if label := r.Labels[checkup.LabelVerdict]; label != string(want) {
		t.Errorf("run %s has the label %s: %q, want %s", name, checkup.LabelVerdict, label, want)
	}
	nothingLeft(t, string(r.UID))
}

// announced returns an error if the events on the schedule of a plan are not one of each reason.
func announced(t *testing.T, plan string, want ...history.Reason) error {
	t.Helper()
	c := cluster(t)
	events, err := c.Kube.CoreV1().Events(c.Namespace).List(t.Context(), metav1.ListOptions{
		FieldSelector: "involvedObject.kind=CronJob,involvedObject.name=" + plan})
	if err != nil {
		return err
	}
	var got []history.Reason
	for _, e := range events.Items {
		if e.Source.Component == checkup.ManagedBy { // others are of Kubernetes' controller
			got = append(got, history.Reason(e.Reason))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Errorf("the events on CronJob %s are %v, want %v", plan, got, want)
	}
	return nil
}

// logOfJob waits until a Job has succeeded and returns the log of its pod.
func logOfJob(t *testing.T, name string) string {
	t.Helper()
	c := cluster(t)
	eventually(t, 3*time.Minute, func() error {
		job, err := c.Kube.BatchV1().Jobs(c.Namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && job.Status.Succeeded == 0 {
			err = fmt.Errorf("job %s has not succeeded: %+v", name, job.Status.Conditions)
		}
		return err
	})
	pods, err := c.Kube.CoreV1().Pods(c.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + name})
	if err != nil || len(pods.Items) == 0 {
		t.Fatalf("no pod of Job %s: %v", name, err)
	}
	log, err := c.Kube.CoreV1().Pods(c.Namespace).GetLogs(pods.Items[0].Name, &corev1.PodLogOptions{}).DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return string(log)
}
