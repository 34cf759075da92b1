// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// ready reports whether the pod's Ready condition is true.
func ready(pod *corev1.Pod) bool {
	return condition(pod, corev1.PodReady).Status == corev1.ConditionTrue
}

// up reports whether a responder answers: its pod is ready or, if it never becomes ready, has started.
func up(pod *corev1.Pod) bool {
	if len(pod.Spec.Containers) == 0 || pod.Spec.Containers[0].StartupProbe == nil {
		return ready(pod)
	}
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Running != nil && s.Started != nil && *s.Started
	})
}

// over reports whether the pod has ended. Fixtures are never restarted.
func over(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// started reports whether the container runs or ran, so that it has a log.
func started(pod *corev1.Pod) bool {
	state := containerState(pod)
	return state.Running != nil || state.Terminated != nil
}

// ignored reports whether the kubelet of the pod's node has not accepted the pod, which
// takes a running kubelet a second at most.
func ignored(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.Status.StartTime == nil && pod.Status.Phase == corev1.PodPending &&
		len(pod.Status.ContainerStatuses) == 0
}

// stuck reports whether the pod is in a state that usually lasts.
func stuck(pod *corev1.Pod) bool {
	if condition(pod, corev1.PodScheduled).Reason == corev1.PodReasonUnschedulable || ignored(pod) {
		return true
	}
	waiting := containerState(pod).Waiting
	return waiting != nil && Stuck(waiting.Reason)
}

// Stuck reports whether a kubelet repeats the reason of a waiting container without
// end.
func Stuck(reason string) bool { return slices.Contains(stuckReasons, reason) }

// stuckReasons are from kubernetes/pkg/kubelet/images/types.go and
// container/sync_result.go.
var stuckReasons = []string{
	"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError",
	"RegistryUnavailable", "SignatureValidationFailed",
	"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff",
}

// explain says why a pod does not run, or did not end, with the message of the
// component that decided so. event is the last warning about the pod.
func explain(pod *corev1.Pod, event Warning) checkup.Cause {
	state := containerState(pod)
	scheduled := condition(pod, corev1.PodScheduled)
	warning := event.String()
	cause := func(stage checkup.Stage, what string, why ...string) checkup.Cause {
		for _, w := range why {
			if w = OneLine(w); w != "" && !strings.Contains(what, w) {
				what += ": " + w
			}
		}
		return checkup.Cause{Stage: stage, Message: what}
	}
	switch {
	case state.Terminated != nil:
		t := state.Terminated
		what := fmt.Sprintf("the container ended with exit code %d", t.ExitCode)
		if t.Signal != 0 {
			what = fmt.Sprintf("the container was ended by signal %d", t.Signal)
		}
		if reason := cmp.Or(podReason(pod), t.Reason); reason != "" && reason != "Error" && reason != "Completed" {
			what += " (" + reason + ")"
		}
		return cause(checkup.StageStart, what, pod.Status.Message, t.Message)
	case pod.Status.Phase == corev1.PodFailed:
		return cause(checkup.StageStart, "the pod failed ("+cmp.Or(podReason(pod), "no reason given")+")", pod.Status.Message)
	case scheduled.Status == corev1.ConditionFalse:
		return cause(checkup.StageSchedule, "not scheduled", scheduled.Message, warning)
	case pod.Spec.NodeName == "" && scheduled.Status != corev1.ConditionTrue:
		return cause(checkup.StageSchedule, "the scheduler has not considered the pod", warning)
	case state.Waiting != nil && Stuck(state.Waiting.Reason):
		w := state.Waiting
		return cause(checkup.StageStart, w.Reason, w.Message, warning)
	case state.Running != nil && !ready(pod):
		return cause(checkup.StageStart, "the container runs but is not ready", warning)
	case state.Running != nil:
		return cause(checkup.StageStart, "the container runs")
	case state.Waiting != nil:
		return cause(
			checkup.StageStart,
			"the container was not started by the deadline ("+cmp.Or(state.Waiting.Reason, "waiting")+")",
			state.Waiting.Message,
			warning,
		)
	default:
		return cause(checkup.StageStart, "the kubelet of the node has not accepted the pod", warning)
	}
}

// podReason is why the pod as a whole ended: its reason, or that of its
// disruption (eviction by taint, preemption, API eviction).
func podReason(pod *corev1.Pod) string {
	if d := condition(pod, corev1.DisruptionTarget); pod.Status.Reason == "" && d.Status == corev1.ConditionTrue {
		return d.Reason
	}
	return pod.Status.Reason
}

// condition returns the condition of that type, or one without status.
func condition(pod *corev1.Pod, of corev1.PodConditionType) corev1.PodCondition {
	for _, c := range pod.Status.Conditions {
		if c.Type == of {
			return c
		}
	}
	return corev1.PodCondition{}
}

// containerState returns the state of the only container.
func containerState(pod *corev1.Pod) corev1.ContainerState {
	if len(pod.Status.ContainerStatuses) == 0 {
		return corev1.ContainerState{}
	}
	return pod.Status.ContainerStatuses[0].State
}

// OneLine returns a message of Kubernetes as one line of at most 500 bytes.
func OneLine(s string) string {
	return checkup.Shorten(checkup.OneLine(s), 500)
}

// Warning is what a warning event says of an object, in one line. The zero value is that of an object without one.
type Warning struct{ Reason, Message string }

// String is for people; empty for the zero value.
func (w Warning) String() string {
	if w == (Warning{}) {
		return ""
	}
	return w.Reason + ": " + w.Message
}

// Warnings returns the last warning event about each object of that kind in the namespace, by the object's name; nil if
// they cannot be read. That is logged and is no error: what they explain is known without them, too.
func (f *Fleet) Warnings(ctx context.Context, kind string) map[string]Warning {
	list, err := f.Client.CoreV1().
		Events(f.Namespace).
		List(ctx, metav1.ListOptions{FieldSelector: "type=Warning,involvedObject.kind=" + kind})
	if err != nil {
		if !f.Alone || !apierrors.IsForbidden(err) { // else the missing right was logged at the start
			f.logf("::warning::cannot read events, which may explain what did not start: %v", err)
		}
		return nil
	}
	slices.SortStableFunc(list.Items, func(a, b corev1.Event) int { return EventTime(a).Compare(EventTime(b)) })
	last := map[string]Warning{}
	for _, e := range list.Items {
		last[e.InvolvedObject.Name] = Warning{e.Reason, OneLine(e.Message)}
	}
	return last
}

// EventTime is when the event occurred last; sources of events set different fields.
func EventTime(e corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	default:
		return e.EventTime.Time
	}
}
