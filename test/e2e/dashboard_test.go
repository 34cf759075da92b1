// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Runs as Tekton's dashboard and tkn make them: from the form, with one account for all tasks or none, and a rerun,
// which copies labels and spec.
func TestDashboardRuns(t *testing.T) {
	t.Parallel()
	first := pipelineRun(t, runPlan(t, "full", 0, "--set", "mesh.latency.p50=").Run)
	form := func(account string) *pipelinev1.PipelineRun {
		r := &pipelinev1.PipelineRun{ObjectMeta: metav1.ObjectMeta{GenerateName: "full-run-"}}
		r.Spec.PipelineRef = &pipelinev1.PipelineRef{Name: "full"}
		r.Spec.TaskRunTemplate.ServiceAccountName = account
		r.Spec.Params = pipelinev1.Params{
			{Name: checkup.SettingsParam, Value: *pipelinev1.NewStructuredValues("mesh.latency.p50=  confirm=true")},
		}
		return r
	}
	again := &pipelinev1.PipelineRun{
		ObjectMeta: metav1.ObjectMeta{GenerateName: first.Name + "-r-", Labels: maps.Clone(first.Labels)}, Spec: first.Spec,
	}
	delete(again.Labels, "tekton.dev/pipeline")
	again.Labels[checkup.LabelVerdict] = "fail"

	t.Run("without an account", func(t *testing.T) {
		parallel(t)
		r := create(t, form(""), nil)
		if r.IsSuccessful() || r.Labels[checkup.LabelVerdict] != "" {
			t.Errorf("succeeded is %v, labels %v", r.IsSuccessful(), r.Labels)
		}
		for task, step := range map[string]string{"setup-mesh": "setup", "conclude": "report"} {
			pod := taskPod(t, r.Name, task)
			log, err := cluster(t).Kube.CoreV1().Pods(pod.Namespace).
				GetLogs(pod.Name, &corev1.PodLogOptions{Container: "step-" + step}).DoRaw(t.Context())
			if err != nil || !strings.HasPrefix(string(log), "::error::choose the service account full: account default has no rights\n") {
				t.Errorf("log of task %s: %v:\n%s", task, err, log)
			}
			for _, s := range pod.Status.ContainerStatuses {
				if code := s.State.Terminated; s.Name == "step-"+step && (code == nil || code.ExitCode != 5) {
					t.Errorf("step %s ended with %+v, want exit code 5", step, code)
				}
			}
		}
		nothingLeft(t, string(r.UID))
	})
	t.Run("with the account for all tasks", func(t *testing.T) {
		parallel(t)
		r := create(t, form("full"), nil)
		if !r.IsSuccessful() || r.Labels[checkup.LabelVerdict] != "pass" {
			t.Errorf("conditions %+v, labels %v", r.Status.Conditions, r.Labels)
		}
		nothingLeft(t, string(r.UID))
	})
	t.Run("rerun", func(t *testing.T) {
		parallel(t)
		absent := false
		r := create(t, again, func(r *pipelinev1.PipelineRun) {
			verdict := r.Labels[checkup.LabelVerdict]
			absent = absent || verdict == ""
			if verdict == "pass" && !absent {
				t.Errorf("the rerun had the label of the run that it repeats until it had its own")
			}
		})
		if !r.IsSuccessful() || r.Labels[checkup.LabelVerdict] != "pass" || !absent {
			t.Errorf("conditions %+v, labels %v, label removed: %v", r.Status.Conditions, r.Labels, absent)
		}
		nothingLeft(t, string(r.UID))
	})
}

// create creates a run and waits for its end. see gets the run as often as it is read.
func create(t *testing.T, r *pipelinev1.PipelineRun, see func(*pipelinev1.PipelineRun)) *pipelinev1.PipelineRun {
	t.Helper()
	c := cluster(t)
	runs := c.Tekton.TektonV1().PipelineRuns(c.Namespace)
	created, err := runs.Create(t.Context(), r, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Minute, func() error {
		if created, err = runs.Get(t.Context(), created.Name, metav1.GetOptions{}); err != nil {
			return err
		}
		if see != nil {
			see(created)
		}
		if !created.IsDone() {
			return fmt.Errorf("run %s has not ended: %+v", created.Name, created.Status.Conditions)
		}
		return nil
	})
	return created
}
