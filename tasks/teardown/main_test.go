// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

// newTask is a teardown of a run that left one agent, which failed.
func newTask(t *testing.T, teardown checkup.Teardown) (*task.Task, *fake.Clientset, *strings.Builder) {
	client := fake.NewSimpleClientset(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent", Namespace: "ns", UID: "uid-of-agent", Labels: map[string]string{checkup.LabelRun: "uid-1", checkup.LabelRole: "agent"}},
		Status: corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}},
		}}},
	})
	log := &strings.Builder{}
	return &task.Task{
		Kubernetes: client, Namespace: "ns", RunName: "run", RunUID: "uid-1", Timeout: time.Minute, Stdout: log,
		PlanJSON: `{"name":"day-2","gate":{"require":"Pass","maxUnmeasured":"0%"},"teardown":"` + string(teardown) + `"}`,
	}, client, log
}

func pods(t *testing.T, client *fake.Clientset) int {
	list, err := client.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return len(list.Items)
}

func TestTeardown(t *testing.T) {
	want := map[checkup.Teardown]int{checkup.TeardownAlways: 0, checkup.TeardownOnPass: 1, checkup.TeardownNever: 1}
	for _, when := range checkup.Teardowns {
		t.Run(string(when), func(t *testing.T) {
			tk, client, log := newTask(t, when) // the plan has no checks, so that the verdict is inconclusive
			if err := run(t.Context(), tk); err != nil {
				t.Fatal(err, log)
			}
			if n := pods(t, client); n != want[when] {
				t.Errorf("%d pods are left, want %d; log:\n%s", n, want[when], log)
			}
			var kept []checkup.PodEvidence
			if err := tk.Store("").Load(t.Context(), record.Evidence(), &kept); err != nil {
				t.Fatal(err)
			}
			if len(kept) != 1 || kept[0].Pod != "agent" || kept[0].Log != "fake logs" {
				t.Errorf("evidence %+v, want that of the agent", kept)
			}
		})
	}
}

// TestTeardownWithoutPlan: a plan that cannot be read is no reason to leave pods.
func TestTeardownWithoutPlan(t *testing.T) {
	tk, client, log := newTask(t, checkup.TeardownNever)
	tk.PlanJSON = "{"
	if err := run(t.Context(), tk); err != nil {
		t.Fatal(err, log)
	}
	if n := pods(t, client); n != 0 {
		t.Errorf("%d pods are left, want none", n)
	}
}

// TestTeardownStopped: SIGTERM does not stop it.
func TestTeardownStopped(t *testing.T) {
	tk, client, log := newTask(t, checkup.TeardownAlways)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ctx, tk); err != nil {
		t.Fatal(err, log)
	}
	if n := pods(t, client); n != 0 {
		t.Errorf("%d pods are left, want none", n)
	}
}

func TestTeardownFails(t *testing.T) { synctest.Test(t, testTeardownFails) }

func testTeardownFails(t *testing.T) {
	tk, client, _ := newTask(t, checkup.TeardownAlways)
	client.PrependReactor("delete", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "agent", errors.New("no"))
	})
	err := run(t.Context(), tk)
	if err == nil || !strings.Contains(err.Error(), "left behind: pod/agent") || !strings.Contains(err.Error(), "delete pod/agent") {
		t.Errorf("%v, want what is left and why", err)
	}
}
