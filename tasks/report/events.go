// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/retry"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

const (
	// eventTime is the longest time for all events of a run.
	eventTime = 10 * time.Second
	// maxEvent is the longest message of an event, in bytes (maxEventNoteLength of Kubernetes' events.k8s.io).
	maxEvent = 1024
)

// announce writes Kubernetes Events about the news, on the PipelineRun and on the CronJob of the plan's schedule. A
// failure costs a warning: the verdict stands.
func announce(ctx context.Context, t *task.Task, plan *checkup.Plan, news []history.News) {
	if len(news) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, eventTime)
	defer cancel()
	on := []corev1.ObjectReference{{
		APIVersion: "tekton.dev/v1", Kind: "PipelineRun", Namespace: t.Namespace, Name: t.RunName, UID: types.UID(t.RunUID),
	}}
	if plan.Schedule != nil {
		// The CronJob has the plan's name.
		job, err := t.Kubernetes.BatchV1().CronJobs(t.Namespace).Get(ctx, plan.Name, metav1.GetOptions{})
		switch {
		case err == nil && job.Labels[checkup.LabelPlan] == plan.Name:
			on = append(on, corev1.ObjectReference{
				APIVersion: "batch/v1", Kind: "CronJob", Namespace: t.Namespace, Name: job.Name, UID: job.UID,
			})
		case err != nil && !apierrors.IsNotFound(err):
			t.Logf("::warning::no event on the schedule of the plan: read CronJob %s: %v", plan.Name, err)
		}
	}
	for _, n := range news {
		for _, object := range on {
			event := eventOf(n, object, t.RunUID, metav1.Now())
			err := retry.Until(ctx, func() error {
				_, err := t.Kubernetes.CoreV1().Events(t.Namespace).Create(ctx, event, metav1.CreateOptions{})
				if apierrors.IsAlreadyExists(err) { // of an earlier try of the step
					return nil
				}
				return err
			})
			if err != nil {
				t.Logf("::warning::no event on %s %s: %v", object.Kind, object.Name, err)
			}
		}
	}
}

// eventOf is the event about news on an object. Its name is the same in every try.
func eventOf(n history.News, on corev1.ObjectReference, runUID string, now metav1.Time) *corev1.Event {
	kind := corev1.EventTypeNormal
	if n.Warning {
		kind = corev1.EventTypeWarning
	}
	message := strings.Join(strings.Fields(checkup.Clean(n.Message)), " ")
	const cut = "..."
	if len(message) > maxEvent {
		message = strings.ToValidUTF8(message[:maxEvent-len(cut)], "") + cut
	}
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name:      checkup.ObjectName(runUID, "", checkup.RoleReport, fmt.Sprintf("%s/%s", on.Kind, n.Reason)),
			Namespace: on.Namespace,
		},
		InvolvedObject: on, Reason: string(n.Reason), Message: message, Type: kind, Count: 1,
		FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: checkup.ManagedBy}, ReportingController: "checkplan.dev/report",
		ReportingInstance: runUID,
	}
}
