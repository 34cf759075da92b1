// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/scheduling"
)

// ScheduleName names the CronJob of a plan's schedule, and its account and role. Kubernetes appends eleven characters
// to it for a Job, whose name is the PipelineRun's: 45 for the plan leave room in 63.
func ScheduleName(plan *checkup.Plan) string { return plan.Name }

const (
	// startTime is how long a Job may take to create a run, beside its jitter.
	startTime = 5 * time.Minute
	// startTries is how often Kubernetes starts a failed Job's pod again.
	startTries = 3
	// jobKept is how long a finished Job is kept, in seconds, if the CronJob does not delete it earlier.
	jobKept = 3600
)

// schedule is what starts the runs of a plan: a CronJob, and an account that can create them; nil for a plan without a
// schedule.
//
// RBAC cannot limit the right to create to one name or label. So the account can create any PipelineRun of the
// namespace, and list and delete those that are there. It can read nothing else.
func schedule(plan *checkup.Plan, run *pipelinev1.PipelineRun, opts Options) ([]runtime.Object, error) {
	s := plan.Schedule
	if s == nil {
		return nil, nil
	}
	run = run.DeepCopy()
	run.Namespace = "" // that of the Job's pod: kustomize's namespace: does not change JSON
	content, err := json.Marshal(run)
	if err != nil {
		return nil, fmt.Errorf("plan %s: write its PipelineRun as JSON: %w", plan.Name, err)
	}
	name := ScheduleAccount(plan)
	meta := opts.meta(name, plan.Name)
	typeMeta := func(kind string) metav1.TypeMeta {
		return metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: kind}
	}
	var rules []rbacv1.PolicyRule
	for _, r := range ScheduleRights(plan) {
		rules = addVerb(rules, r)
	}
	suspend, yes := s.Suspend, true
	tries, kept := int32(startTries), int32(jobKept)
	one := int32(1)
	deadline := int64((time.Duration(s.Jitter) + startTime).Seconds())
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name,
			ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}}
	}
	labels := opts.meta("", plan.Name).Labels
	job := batchv1.JobSpec{
		BackoffLimit: &tries, ActiveDeadlineSeconds: &deadline, TTLSecondsAfterFinished: &kept,
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{
				ServiceAccountName: name,
				RestartPolicy:      corev1.RestartPolicyNever,
				Containers: []corev1.Container{{
					Name:    "start",
					Image:   opts.image("setup"),
					Command: []string{"/ko-app/setup", "start"},
					Env: []corev1.EnvVar{
						field("NAMESPACE", "metadata.namespace"),
						field("JOB_NAME", "metadata.labels['batch.kubernetes.io/job-name']"),
						{Name: "PLAN_NAME", Value: plan.Name},
						{Name: "CONCURRENCY_POLICY", Value: string(s.ConcurrencyPolicy)},
						{Name: "JITTER", Value: s.Jitter.String()},
						{Name: "KEEP", Value: fmt.Sprint(plan.Retention.Reports)},
						// A dollar sign could be expanded; in JSON it is in strings only.
						{Name: "PIPELINE_RUN", Value: strings.ReplaceAll(string(content), "$", `\u0024`)},
					},
					Resources: stepResources(startMemory),
				}},
			},
		},
	}
	scheduling.Restrict(&job.Template.Spec)
	job.Template.Spec.AutomountServiceAccountToken = &yes // the token of name, which creates the runs
	cronMeta := opts.meta(ScheduleName(plan), plan.Name)
	cronMeta.Annotations = map[string]string{syncWave: "1"} // after the Pipeline that its runs need
	return []runtime.Object{
		&corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: meta},
		&rbacv1.Role{TypeMeta: typeMeta("Role"), ObjectMeta: meta, Rules: rules},
		&rbacv1.RoleBinding{TypeMeta: typeMeta("RoleBinding"), ObjectMeta: meta,
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: opts.Namespace}}},
		&batchv1.CronJob{
			TypeMeta:   metav1.TypeMeta{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "CronJob"},
			ObjectMeta: cronMeta,
			Spec: batchv1.CronJobSpec{
				Schedule: s.Cron, TimeZone: &s.TimeZone, StartingDeadlineSeconds: &s.StartingDeadlineSeconds,
				// A Job only creates a run: the runs guard their overlap themselves. Two Jobs of one plan never need
				// to run at once.
				ConcurrencyPolicy: batchv1.ForbidConcurrent, Suspend: &suspend,
				SuccessfulJobsHistoryLimit: &one, FailedJobsHistoryLimit: &one,
				JobTemplate: batchv1.JobTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: job},
			},
		},
	}, nil
}

// startMemory is the memory limit of the pod that starts a run.
const startMemory = "128Mi"

// ScheduleRights are the rights of the account of a schedule; nil for a plan without one.
func ScheduleRights(plan *checkup.Plan) []checkup.Right {
	if plan.Schedule == nil {
		return nil
	}
	right := func(verb, why string) checkup.Right {
		return checkup.Right{Scope: checkup.ScopeRun, Group: "tekton.dev", Resource: "pipelineruns", Verb: verb, Why: why}
	}
	rights := []checkup.Right{
		right("create", "tasks/internal/start: start a run"),
		right("list", "tasks/internal/start: whether another run has not finished, and which are beyond the retention"),
		right("delete", "tasks/internal/start: runs beyond the retention, and one of two that began at once"),
	}
	if plan.Schedule.ConcurrencyPolicy == checkup.ConcurrencyReplace {
		rights = append(rights, right("patch", "tasks/internal/start: cancel the run that is replaced"))
	}
	return rights
}

// ScheduleAccount names the account of a schedule.
func ScheduleAccount(plan *checkup.Plan) string { return plan.Name + "-schedule" }
