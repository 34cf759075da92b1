// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
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
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

// plan as the schema's defaults make it, on nodes that are labelled so.
func plan(t *testing.T) string {
	linux := checkup.Placement{NodeSelector: map[string]string{"kubernetes.io/os": "linux"}}
	second := checkup.Duration(time.Second)
	b, err := json.Marshal(checkup.Plan{
		Name: "day-2", Gate: checkup.Gate{Require: checkup.RequirePass}, Teardown: checkup.TeardownAlways, Retention: checkup.Retention{Reports: 3},
		Checks: map[string]checkup.Check{"mesh": {PodMesh: &checkup.PodMesh{
			Sources: checkup.Sources{Placement: linux}, Targets: checkup.Targets{Placement: linux},
			Sample:     checkup.Sample{Degree: 1, Budget: 1000},
			IPFamilies: []checkup.IPFamily{checkup.IPv4},
			Probes:     map[checkup.Transport]checkup.Probe{checkup.TCP: {Sizes: []int{0}, Count: 1, Interval: second, Timeout: second}},
			Limits:     checkup.Limits{PacketsPerSecond: 10, Concurrency: 1, StartJitter: second},
			Timeouts:   checkup.Timeouts{Setup: 60 * second, Probe: 60 * second},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func newTask(t *testing.T, nodes ...string) (*task.Task, *fake.Clientset, *strings.Builder) {
	client := fake.NewClientset()
	for _, n := range nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n, Labels: map[string]string{"kubernetes.io/os": "linux"}}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if err := client.Tracker().Add(node); err != nil {
			t.Fatal(err)
		}
	}
	client.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		pod := a.(k8stesting.CreateAction).GetObject().(*corev1.Pod)
		pod.Status = corev1.PodStatus{
			Phase:      corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			PodIPs:     []corev1.PodIP{{IP: "198.18.0.1"}},
		}
		return false, nil, nil
	})
	log := &strings.Builder{}
	return &task.Task{
		Kubernetes: client, Namespace: "ns", RunName: "run", RunUID: "uid-1", PodName: "setup-pod", PodUID: "uid-2",
		AgentImage: "registry.example/agent:v1", PlanJSON: plan(t), Check: "mesh", Stdout: log,
	}, client, log
}

func TestSetup(t *testing.T) {
	tk, _, log := newTask(t, "n0", "n1", "n2")
	tk.Settings = []string{"mesh.degree=2"}
	if err := run(t.Context(), tk); err != nil {
		t.Fatal(err, log)
	}
	var frozen record.Frozen
	if err := tk.Store("day-2").Load(t.Context(), record.Worksheet("mesh"), &frozen); err != nil {
		t.Fatal(err)
	}
	if n := frozen.Worksheet.CountPairs(); n != 6 {
		t.Errorf("%d pairs, want the 6 of a full mesh of 3: the setting counts", n)
	}
	for i, e := range frozen.Roster.Targets {
		if e.Cause != nil || e.Addresses[checkup.IPv4] == "" {
			t.Errorf("target %d: %+v, want it up", i, e)
		}
	}
	if frozen.Started.IsZero() {
		t.Error("nobody knows when it started")
	}
	if p, err := tk.Store("").LoadProgress(t.Context(), "mesh"); err != nil || p != (record.Progress{Phase: "setup", Ready: 3, Pods: 3}) {
		t.Errorf("progress %+v, %v; want 3 of 3", p, err)
	}
}

// TestSetupFails: the error tells what to do, and the report will say it too.
func TestSetupFails(t *testing.T) {
	for _, tt := range []struct {
		name    string
		nodes   []string
		prepare func(*task.Task, *fake.Clientset)
		want    string
	}{
		{"no such check", []string{"n0", "n1"}, func(tk *task.Task, _ *fake.Clientset) { tk.Check = "mash" }, `plan day-2 has no check "mash"`},
		{"bad setting", []string{"n0", "n1"}, func(tk *task.Task, _ *fake.Clientset) { tk.Settings = []string{"mesh.degree=many"} }, `mesh.degree: "many"`},
		{"no node", nil, nil, "no nodes"},
		{"one node", []string{"n0"}, nil, "a mesh needs two nodes"},
		{"no right to list nodes", []string{"n0", "n1"}, func(_ *task.Task, c *fake.Clientset) {
			c.PrependReactor("list", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewForbidden(corev1.Resource("nodes"), "", errors.New("no"))
			})
		}, "missing the verb list on nodes"},
		{"no right to create pods", []string{"n0", "n1"}, func(_ *task.Task, c *fake.Clientset) {
			c.PrependReactor("create", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no"))
			})
		}, "none of 2 responders could be created"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tk, client, _ := newTask(t, tt.nodes...)
			if tt.prepare != nil {
				tt.prepare(tk, client)
			}
			err := run(t.Context(), tk)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("%v, want %q", err, tt.want)
			}
			whole, err := json.Marshal(mustReport(t, tk))
			if err != nil {
				t.Fatal(err)
			}
			if tk.Check == "mesh" && !strings.Contains(string(whole), strings.ReplaceAll(tt.want, `"`, `\"`)) {
				t.Errorf("the report does not say %q: %s", tt.want, whole)
			}
		})
	}
}

func mustReport(t *testing.T, tk *task.Task) *checkup.Report {
	tk.Settings = nil
	p, err := tk.Plan()
	if err != nil {
		t.Fatal(err)
	}
	r, err := tk.Report(t.Context(), p, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if r.Verdict != checkup.RunInconclusive {
		t.Errorf("verdict %s without a measurement", r.Verdict)
	}
	return r
}

// TestSetupSweeps: what earlier runs of the plan left behind goes, unless the
// plan says that pods are kept.
func TestSetupSweeps(t *testing.T) {
	for _, tt := range []struct {
		teardown string
		left     int
	}{{"Always", 0}, {"OnPass", 0}, {"Never", 1}} {
		t.Run(tt.teardown, func(t *testing.T) {
			tk, client, log := newTask(t, "n0", "n1")
			tk.Settings = []string{"teardown=" + tt.teardown}
			stale := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Name: "stale", Namespace: "ns",
				Labels:      map[string]string{checkup.LabelPlan: "day-2", checkup.LabelRole: "agent", checkup.LabelRun: "uid-0"},
				Annotations: map[string]string{"checkplan.dev/expires": "2020-01-01T00:00:00Z"},
			}}
			if err := client.Tracker().Add(stale); err != nil {
				t.Fatal(err)
			}
			if err := run(t.Context(), tk); err != nil {
				t.Fatal(err, log)
			}
			pods, err := client.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{LabelSelector: checkup.LabelRun + "=uid-0"})
			if err != nil {
				t.Fatal(err)
			}
			if len(pods.Items) != tt.left {
				t.Errorf("%d stale pods are left, want %d", len(pods.Items), tt.left)
			}
		})
	}
}
