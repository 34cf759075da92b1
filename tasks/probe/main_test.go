// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/podmesh"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

// newTask is a probe task whose worksheet has one source and one target, and
// whose agents end at once with the exit code.
func newTask(t *testing.T, code int32) (*task.Task, *fake.Clientset) {
	client := fake.NewSimpleClientset()
	client.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		pod := a.(k8stesting.CreateAction).GetObject().(*corev1.Pod)
		pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}},
		}}}
		return false, nil, nil
	})
	responder := checkup.ObjectName("uid-1", "mesh", checkup.RoleResponder, "n1")
	if err := client.Tracker().Add(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: responder, Namespace: "ns", Labels: map[string]string{
			checkup.LabelRun: "uid-1", checkup.LabelCheck: "mesh", checkup.LabelRole: "responder",
		}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}); err != nil {
		t.Fatal(err)
	}
	tk := &task.Task{Kubernetes: client, Namespace: "ns", RunName: "run", RunUID: "uid-1", PodName: "probe-pod", PodUID: "uid-3", Check: "mesh", Stdout: io.Discard}
	frozen := record.Frozen{
		Worksheet: checkup.Worksheet{
			Plan: "day-2", Check: "mesh", Kind: podmesh.Name,
			Sources: []checkup.Endpoint{{Node: "n0"}}, Targets: []checkup.Endpoint{{Node: "n1"}}, Assignments: [][]int{{0}},
			IPFamilies: []checkup.IPFamily{checkup.IPv4},
			Probes:     []checkup.TransportProbe{{Transport: checkup.TCP, Probe: checkup.Probe{Sizes: []int{0}, Count: 1}}},
			Timeouts:   checkup.Timeouts{Setup: checkup.Duration(time.Minute), Probe: checkup.Duration(time.Minute)},
		},
		Roster: checkup.Roster{Targets: []checkup.RosterEntry{{Pod: "ns/" + responder, Addresses: map[checkup.IPFamily]string{checkup.IPv4: "198.18.0.1"}}}},
	}
	if err := tk.Store("day-2").Save(t.Context(), record.Worksheet("mesh"), frozen); err != nil {
		t.Fatal(err)
	}
	return tk, client
}

// TestProbe: an agent that breaks is data, and the task succeeds. The responder
// is the task's own then.
func TestProbe(t *testing.T) {
	tk, client := newTask(t, 3)
	if err := run(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	r, err := tk.Store("").LoadRecord(t.Context(), "mesh")
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Sources) != 1 || r.Sources[0].Cause == nil || !strings.Contains(r.Sources[0].Cause.Message, "exit code 3") {
		t.Errorf("sources %+v, want one, with its exit code", r.Sources)
	}
	if len(r.Counted) != 0 {
		t.Errorf("counted %v, want none: the beginning of the responder's log is missing", r.Counted)
	}
	var roster checkup.Roster
	if err := tk.Store("").Load(t.Context(), record.Roster("mesh"), &roster); err != nil {
		t.Error(err)
	}
	pods, err := client.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods.Items {
		if len(pod.OwnerReferences) != 1 || pod.OwnerReferences[0].Name != "probe-pod" {
			t.Errorf("owners of %s: %v, want this task's pod", pod.Name, pod.OwnerReferences)
		}
	}
}

func TestProbeWithoutWorksheet(t *testing.T) {
	tk, _ := newTask(t, 0)
	tk.Check = "other"
	if err := run(t.Context(), tk); err == nil || !strings.Contains(err.Error(), "cannot measure without a worksheet: load worksheet of check other") {
		t.Errorf("%v, want that there is no worksheet", err)
	}
}

// TestProbeFails: when nothing can be started at all, the report says why.
func TestProbeFails(t *testing.T) {
	tk, client := newTask(t, 0)
	client.PrependReactor("create", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("exceeded quota"))
	})
	if err := run(t.Context(), tk); !apierrors.IsForbidden(err) {
		t.Errorf("%v, want that pods may not be created", err)
	}
	reported(t, tk, "exceeded quota")
}

// TestProbeStopped: what was measured until SIGTERM or the deadline is kept, and
// the rest says that it was stopped.
func TestProbeStopped(t *testing.T) {
	tk, _ := newTask(t, 0)
	ctx, cancel := context.WithCancelCause(t.Context())
	store := tk.Store("").ConfigMaps
	client := tk.Kubernetes.(*fake.Clientset)
	client.PrependReactor("create", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
		cancel(errors.New("terminated"))
		return false, nil, nil
	})
	if err := run(ctx, tk); err == nil || !strings.Contains(err.Error(), "stopped before everything was measured: terminated") {
		t.Errorf("%v, want that it was stopped", err)
	}
	if _, err := store.List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	reported(t, tk, "stopped")
}

// reported asserts that nothing passed and that the pairs say why.
func reported(t *testing.T, tk *task.Task, why string) {
	t.Helper()
	plan := &checkup.Plan{Name: "day-2", Checks: map[string]checkup.Check{"mesh": {Spec: &podmesh.Spec{}}}}
	r, err := tk.Report(t.Context(), plan, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if r.Verdict != checkup.RunInconclusive || r.Counts.Unmeasured != 1 {
		t.Errorf("%s %+v, want inconclusive and one unmeasured pair", r.Verdict, r.Counts)
	}
	for _, p := range r.Checks[0].Units {
		if p.Verdict != checkup.Unmeasured || !strings.Contains(p.Cause.Message, why) {
			t.Errorf("cause %s, want %q", p.Cause, why)
		}
	}
}
