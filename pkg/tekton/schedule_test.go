// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/checkplan/checkplan/pkg/checkup"
)

func scheduleOf[T runtime.Object](t *testing.T, plan *checkup.Plan) T {
	t.Helper()
	for _, object := range compile(t, plan, testOptions).Schedule {
		if o, ok := object.(T); ok {
			return o
		}
	}
	t.Fatalf("the schedule of plan %s has no %T", plan.Name, *new(T))
	return *new(T)
}

func TestScheduleGolden(t *testing.T) {
	golden(t, "schedule.yaml", encodeObjects(t, compile(t, scheduled(), testOptions).Schedule...))
	if o := compile(t, smallPlan(), testOptions); o.Schedule != nil || len(o.Deployed()) != len(o.Applied()) {
		t.Error("a plan without a schedule has one")
	}
}

// TestScheduleIsNotApplied: a run by hand starts no schedule, and compile writes it.
func TestScheduleIsNotApplied(t *testing.T) {
	o := compile(t, scheduled(), testOptions)
	isCronJob := func(o runtime.Object) bool { _, ok := o.(*batchv1.CronJob); return ok }
	if slices.ContainsFunc(o.Applied(), isCronJob) || !slices.ContainsFunc(o.Deployed(), isCronJob) {
		t.Error("want the CronJob among the deployed objects, and not among those of a run")
	}
	files, err := o.Files()
	if err != nil || !strings.Contains(string(files["schedule-scheduled.yaml"]), "kind: CronJob") {
		t.Errorf("no file schedule-scheduled.yaml with the CronJob (%v)", err)
	}
}

// TestScheduleRun: the Job gets the PipelineRun of the sample, and its pod nothing that the shell or Kubernetes
// expands.
func TestScheduleRun(t *testing.T) {
	plan := scheduled()
	plan.Description = "costs $(HOME)"
	job := scheduleOf[*batchv1.CronJob](t, plan)
	i := slices.IndexFunc(job.Spec.JobTemplate.Spec.Template.Spec.Containers[0].Env, func(e corev1.EnvVar) bool {
		return e.Name == "PIPELINE_RUN"
	})
	text := job.Spec.JobTemplate.Spec.Template.Spec.Containers[0].Env[i].Value
	var run pipelinev1.PipelineRun
	if err := json.Unmarshal([]byte(text), &run); err != nil {
		t.Fatal(err)
	}
	if run.Spec.PipelineRef.Name != "scheduled" || run.Labels[checkup.LabelPlan] != "scheduled" || strings.Contains(text, "$") {
		t.Errorf("PIPELINE_RUN is %s", text)
	}
}

// TestScheduleRestricted: the pod is admitted under the restricted pod security standard, and its Jobs do not pile up.
func TestScheduleRestricted(t *testing.T) {
	job := scheduleOf[*batchv1.CronJob](t, scheduled()).Spec
	pod := job.JobTemplate.Spec.Template.Spec
	c := pod.Containers[0].SecurityContext
	if !*pod.SecurityContext.RunAsNonRoot || pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault ||
		*c.AllowPrivilegeEscalation || c.Capabilities.Drop[0] != "ALL" || !*c.ReadOnlyRootFilesystem {
		t.Errorf("pod %+v, container %+v: not restricted", pod.SecurityContext, c)
	}
	if *job.SuccessfulJobsHistoryLimit > 1 || *job.FailedJobsHistoryLimit > 1 || job.JobTemplate.Spec.TTLSecondsAfterFinished == nil ||
		job.JobTemplate.Spec.ActiveDeadlineSeconds == nil {
		t.Error("Jobs can pile up, or never end")
	}
}

// TestScheduleRights: the account can do nothing but start and tidy runs; only Replace can change one.
func TestScheduleRights(t *testing.T) {
	for policy, want := range map[checkup.ConcurrencyPolicy][]string{
		checkup.ConcurrencyForbid:  {"create", "list", "delete"},
		checkup.ConcurrencyAllow:   {"create", "list", "delete"},
		checkup.ConcurrencyReplace: {"create", "list", "delete", "patch"},
	} {
		plan := scheduled()
		plan.Schedule.ConcurrencyPolicy = policy
		rules := scheduleOf[*rbacv1.Role](t, plan).Rules
		if len(rules) != 1 || !slices.Equal(rules[0].Resources, []string{"pipelineruns"}) || !slices.Equal(rules[0].Verbs, want) {
			t.Errorf("%s: rules %v, want the verbs %v on pipelineruns", policy, rules, want)
		}
	}
}

// TestScheduleNames: the longest plan name leaves room for the names of Jobs, runs and pods.
func TestScheduleNames(t *testing.T) {
	plan := scheduled()
	plan.Name = strings.Repeat("x", checkup.MaxPlanName)
	// Kubernetes allows 52 characters for a CronJob, and names a Job "<cronjob>-<minutes>", 8 digits until 2160.
	if n := len(scheduleOf[*batchv1.CronJob](t, plan).Name); n > 52 || n+9 > 63 {
		t.Errorf("the CronJob's name has %d characters", n)
	}
}
