// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
)

func TestExplain(t *testing.T) {
	notReady := running(0)
	notReady.Conditions[1].Status = corev1.ConditionFalse
	evicted := corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on resource: memory."}
	disrupted := ended(137, "Error", "")
	disrupted.Conditions = append(disrupted.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager"})
	late := ended(137, "Error", "")
	late.Reason, late.Message = "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
	signal := ended(0, "", "")
	signal.ContainerStatuses[0].State.Terminated.Signal = 9
	for _, tt := range []struct {
		name   string
		node   string
		status corev1.PodStatus
		event  Warning
		want   string
		stuck  bool
	}{
		{"unschedulable", "", unschedulable("0/4 nodes are available: 1 node(s) had untolerated taint(s)."), Warning{}, "schedule: not scheduled: 0/4 nodes are available: 1 node(s) had untolerated taint(s).", true},
		{"unschedulable, event says the same", "", unschedulable("FailedScheduling: no node."), Warning{"FailedScheduling", "no node."}, "schedule: not scheduled: FailedScheduling: no node.", true},
		{"not considered", "", corev1.PodStatus{Phase: corev1.PodPending}, Warning{}, "schedule: the scheduler has not considered the pod", false},
		{"kubelet away", "n1", corev1.PodStatus{Phase: corev1.PodPending}, Warning{}, "start: the kubelet of the node has not accepted the pod", true},
		{"image", "n1", waiting("ImagePullBackOff", `Back-off pulling image "a:b"`), Warning{"Failed", "not found"}, `start: ImagePullBackOff: Back-off pulling image "a:b": Failed: not found`, true},
		{"sandbox", "n1", waiting("ContainerCreating", ""), Warning{"FailedCreatePodSandBox", "plugin type=\"bridge\" failed"}, "start: the container was not started by the deadline (ContainerCreating): FailedCreatePodSandBox: plugin type=\"bridge\" failed", false},
		{"not ready", "n1", notReady, Warning{"Unhealthy", "Readiness probe failed: timeout"}, "start: the container runs but is not ready: Unhealthy: Readiness probe failed: timeout", false},
		{"runs", "n1", running(0), Warning{}, "start: the container runs", false},
		{"crash", "n1", ended(2, "Error", "cannot read\n the order"), Warning{}, "start: the container ended with exit code 2: cannot read the order", false},
		{"out of memory", "n1", ended(137, "OOMKilled", ""), Warning{}, "start: the container ended with exit code 137 (OOMKilled)", false},
		{"signal", "n1", signal, Warning{}, "start: the container was ended by signal 9", false},
		{"evicted before it ran", "n1", evicted, Warning{}, "start: the pod failed (Evicted): The node was low on resource: memory.", false},
		{"evicted by taint", "n1", disrupted, Warning{}, "start: the container ended with exit code 137 (DeletionByTaintManager)", false},
		{"deadline", "n1", late, Warning{}, "start: the container ended with exit code 137 (DeadlineExceeded): Pod was active on the node longer than the specified deadline", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: tt.node}, Status: tt.status}
			if got := explain(pod, tt.event).String(); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if got := stuck(pod); got != tt.stuck {
				t.Errorf("stuck is %v, want %v", got, tt.stuck)
			}
		})
	}
	for _, reason := range stuckReasons {
		c := explain(&corev1.Pod{Spec: corev1.PodSpec{NodeName: "n1"}, Status: waiting(reason, "the reason")}, Warning{})
		if want := (checkup.Cause{Stage: checkup.StageStart, Message: reason + ": the reason"}); c != want {
			t.Errorf("%s: %v, want %v", reason, c, want)
		}
	}
}

func TestOneLine(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"", ""},
		{" a\n\tb  c ", "a b c"},
		{"bad \xff byte", "bad ? byte"},
		{strings.Repeat("é", 400), strings.Repeat("é", 250) + "..."},
	} {
		if got := OneLine(tt.in); got != tt.want {
			t.Errorf("OneLine(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
}
