// SPDX-License-Identifier: Apache-2.0

package run

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// scheduledCluster has the schedules of plans a and b, and a CronJob of somebody else.
func scheduledCluster() *Cluster {
	job := func(name, plan string, suspend bool) *batchv1.CronJob {
		zone := "Etc/UTC"
		j := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: "uid", Labels: map[string]string{}}}
		j.Spec.Schedule, j.Spec.TimeZone, j.Spec.Suspend = "0 * * * *", &zone, &suspend
		if plan != "" {
			j.Labels = map[string]string{checkup.LabelManagedBy: checkup.ManagedBy, checkup.LabelPlan: plan}
			j.Status.LastScheduleTime = &metav1.Time{Time: time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)}
		}
		j.Spec.JobTemplate.Spec.Template.Spec.Containers = []corev1.Container{{
			Name: "start", Env: []corev1.EnvVar{{Name: "JITTER", Value: "5m"}, {Name: "KEEP", Value: "3"}},
		}}
		return j
	}
	return &Cluster{Namespace: "ns", Kube: fake.NewSimpleClientset(job("b", "b", false), job("a", "a", true), job("other", "", false))}
}

func TestSchedules(t *testing.T) {
	all, err := scheduledCluster().Schedules(t.Context())
	if err != nil || len(all) != 2 || all[0].Plan != "a" || !all[0].Suspended || all[1].Suspended ||
		all[1].Cron != "0 * * * *" || all[1].TimeZone != "Etc/UTC" || all[1].Last.Hour() != 3 {
		t.Errorf("%+v, %v; want those of a and b", all, err)
	}
}

func TestSuspend(t *testing.T) {
	c := scheduledCluster()
	for _, suspend := range []bool{true, false} {
		if err := c.Suspend(t.Context(), "b", suspend); err != nil {
			t.Fatal(err)
		}
		if job, err := c.cronJob(t.Context(), "b"); err != nil || *job.Spec.Suspend != suspend {
			t.Errorf("suspended %t, %v; want %t", *job.Spec.Suspend, err, suspend)
		}
	}
	for plan, want := range map[string]string{"none": "plan none has no schedule in namespace ns", "other": "is not the schedule of a plan"} {
		if err := c.Suspend(t.Context(), plan, true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", plan, err, want)
		}
	}
}

// TestTrigger: the Job is that of the schedule, starts at once, and goes with the CronJob.
func TestTrigger(t *testing.T) {
	c := scheduledCluster()
	name, err := c.Trigger(t.Context(), "a", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	job, err := c.Kube.BatchV1().Jobs("ns").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	env := job.Spec.Template.Spec.Containers[0].Env
	if env[0].Value != "0s" || env[1].Value != "3" || len(job.OwnerReferences) != 1 || job.OwnerReferences[0].Name != "a" {
		t.Errorf("Job %s has env %v, owners %v", name, env, job.OwnerReferences)
	}
	if again, err := c.cronJob(t.Context(), "a"); err != nil || again.Spec.JobTemplate.Spec.Template.Spec.Containers[0].Env[0].Value != "5m" {
		t.Errorf("the schedule itself has changed (%v)", err)
	}
	if n := len(strings.Repeat("x", checkup.MaxPlanName)) + len(name) - len("a"); n > 63 {
		t.Errorf("the longest name has %d characters, want at most 63", n)
	}
}
