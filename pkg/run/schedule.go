// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Schedule is the schedule of a plan as the cluster has it.
type Schedule struct {
	Plan      string
	Cron      string
	TimeZone  string
	Suspended bool
	// Last is when the newest start was due; zero if none was.
	Last time.Time
}

// Schedules lists the schedules of all plans of the namespace, by the names of the plans.
func (c *Cluster) Schedules(ctx context.Context) ([]Schedule, error) {
	list, err := c.Kube.BatchV1().CronJobs(c.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.Set{checkup.LabelManagedBy: checkup.ManagedBy}.String(),
	})
	if err != nil {
		return nil, fmt.Errorf("list the schedules of namespace %s: %w%s", c.Namespace, err, hint(err))
	}
	var all []Schedule
	for _, job := range list.Items {
		s := Schedule{Plan: job.Labels[checkup.LabelPlan], Cron: job.Spec.Schedule}
		if job.Spec.TimeZone != nil {
			s.TimeZone = *job.Spec.TimeZone
		}
		if job.Spec.Suspend != nil {
			s.Suspended = *job.Spec.Suspend
		}
		if job.Status.LastScheduleTime != nil {
			s.Last = job.Status.LastScheduleTime.Time
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Schedule) int { return strings.Compare(a.Plan, b.Plan) })
	return all, nil
}

// cronJob returns the CronJob of a plan's schedule.
func (c *Cluster) cronJob(ctx context.Context, plan string) (*batchv1.CronJob, error) {
	job, err := c.Kube.BatchV1().CronJobs(c.Namespace).Get(ctx, plan, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("plan %s has no schedule in namespace %s: planner compile writes the one of its plan", plan,
			c.Namespace)
	case err != nil:
		return nil, fmt.Errorf("read the schedule of plan %s: %w%s", plan, err, hint(err))
	case job.Labels[checkup.LabelPlan] != plan:
		return nil, fmt.Errorf("CronJob %s in namespace %s is not the schedule of a plan", plan, c.Namespace)
	}
	return job, nil
}

// Suspend stops the schedule of a plan, or lets it go on. Runs that have started are not touched.
func (c *Cluster) Suspend(ctx context.Context, plan string, suspend bool) error {
	if _, err := c.cronJob(ctx, plan); err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"spec":{"suspend":%t}}`, suspend)
	_, err := c.Kube.BatchV1().CronJobs(c.Namespace).
		Patch(ctx, plan, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
	if err != nil {
		return fmt.Errorf("change the schedule of plan %s: %w%s", plan, err, hint(err))
	}
	return nil
}

// Trigger starts a run now, as the schedule would, without its jitter; also if it is suspended. It returns the name of
// the Job, which is the run's. The schedule's policy decides whether the run starts.
func (c *Cluster) Trigger(ctx context.Context, plan string, now time.Time) (string, error) {
	cron, err := c.cronJob(ctx, plan)
	if err != nil {
		return "", err
	}
	template := cron.Spec.JobTemplate.DeepCopy()
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name:   plan + "-" + strconv.FormatInt(now.Unix(), 36),
			Labels: template.Labels,
			// As kubectl create job --from marks it.
			Annotations: map[string]string{"cronjob.kubernetes.io/instantiate": "manual"},
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(cron, batchv1.SchemeGroupVersion.WithKind("CronJob")),
			},
		},
		Spec: template.Spec,
	}
	maps.Copy(job.Annotations, template.Annotations)
	for i := range job.Spec.Template.Spec.Containers {
		env := job.Spec.Template.Spec.Containers[i].Env
		for k := range env {
			if env[k].Name == "JITTER" {
				env[k].Value = "0s"
			}
		}
	}
	_, err = c.Kube.BatchV1().Jobs(c.Namespace).Create(ctx, job, metav1.CreateOptions{FieldManager: FieldManager})
	if err != nil {
		return "", fmt.Errorf("start a run of plan %s: create Job %s: %w%s", plan, job.Name, err, hint(err))
	}
	return job.Name, nil
}
