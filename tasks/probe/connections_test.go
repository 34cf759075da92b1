// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/connectivity"
	"github.com/checkplan/checkplan/pkg/controlplane"
	"github.com/checkplan/checkplan/pkg/fleet"
	"github.com/checkplan/checkplan/pkg/placement"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

// began is when the agent begins to measure.
var began = time.Now().UTC().Truncate(time.Microsecond)

// connections is a worksheet of one component that probes another for an hour.
func connections() (*checkup.Worksheet, *checkup.Roster) {
	second := checkup.Duration(time.Second)
	return &checkup.Worksheet{
		Plan: "day-2", Check: "api", Kind: controlplane.Name,
		Sources:     []checkup.Endpoint{{Node: "n0", Label: "kube-apiserver-n0", Component: "kube-apiserver", HostNetwork: true}},
		Targets:     []checkup.Endpoint{{Label: "etcd-server-n1", Component: "etcd", Peer: &checkup.Peer{Host: "192.0.2.1", Port: 2379, Family: checkup.IPv4, Transport: checkup.TLS}}},
		Assignments: [][]int{{0}},
		Probes:      []checkup.TransportProbe{{Transport: checkup.TLS, Probe: checkup.Probe{Sizes: []int{0}, Count: 3600, Interval: second, Timeout: second}}},
		Timeouts:    checkup.Timeouts{Setup: 60 * second, Probe: 60 * second},
		Connections: &checkup.ConnectionSheet{
			For:       3600 * second,
			Deadlines: checkup.StageDeadlines{Connect: second, Handshake: second},
			Checks:    checkup.ConnectivityChecks{Write: true, Retention: 7200 * second, StaleAfter: 300 * second},
		},
	}, &checkup.Roster{Targets: make([]checkup.RosterEntry, 1)}
}

// result is the n-th of the only pair: all but the last of three pass.
func result(n int) checkup.Result {
	r := checkup.Result{
		Pair: checkup.Pair{Family: checkup.IPv4, Transport: checkup.TLS}, At: began.Add(time.Duration(n) * time.Second),
		Delays: checkup.StageDelays{Connect: 200, Handshake: 2000},
	}
	if n%3 == 2 {
		r.Delays = checkup.StageDelays{}
		r.Failure = &checkup.Cause{Stage: checkup.StageConnect, Message: "connection refused"}
	}
	return r
}

func line(t *testing.T, m checkup.Message) string {
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b) + "\n"
}

// objects are the pairs' objects in the cluster: the last of what was applied of
// each, by name and subresource.
type objects struct {
	*dynamicfake.FakeDynamicClient
	mu      sync.Mutex // guards following
	applied map[string]string
	wrote   chan struct{} // holds one token after each
}

func newObjects(refused error) *objects {
	o := &objects{
		FakeDynamicClient: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{connectivity.Resource: connectivity.Kind + "List"}),
		applied:           map[string]string{}, wrote: make(chan struct{}, 1),
	}
	o.PrependReactor("patch", "*", func(a k8stesting.Action) (bool, runtime.Object, error) {
		patch := a.(k8stesting.PatchAction)
		u := &unstructured.Unstructured{}
		if err := json.Unmarshal(patch.GetPatch(), &u.Object); err != nil || refused != nil {
			return true, nil, errors.Join(err, refused)
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.applied[patch.GetName()+"/"+a.GetSubresource()] = string(patch.GetPatch())
		select {
		case o.wrote <- struct{}{}:
		default:
		}
		return true, u, nil
	})
	return o
}

func (o *objects) status(name string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.applied[name+"/status"]
}

// newWatch is a probe task whose only agent runs, and writes the log.
func newWatch(t *testing.T, o *objects, log func(ctx context.Context, deleted <-chan struct{}) io.ReadCloser) (*task.Task, *fleet.Fleet) {
	client := fake.NewSimpleClientset()
	client.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		a.(k8stesting.CreateAction).GetObject().(*corev1.Pod).Status = corev1.PodStatus{
			Phase:             corev1.PodRunning,
			ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
		}
		return false, nil, nil
	})
	deleted := make(chan struct{})
	end := sync.OnceFunc(func() { close(deleted) })
	client.PrependReactor("delete", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
		end()
		return true, nil, nil // it is there until its container has ended
	})
	tk := &task.Task{
		Kubernetes: client, Dynamic: o, Namespace: "ns", RunName: "run", RunUID: "uid-1", PodName: "probe-pod", PodUID: "uid-3", Check: "api", Stdout: io.Discard,
	}
	f := tk.Fleet("day-2")
	f.Retry = time.Millisecond
	f.OpenLog = func(ctx context.Context, _ string, _ *corev1.PodLogOptions) (io.ReadCloser, error) {
		return log(ctx, deleted), nil
	}
	return tk, f
}

// TestStoppedWatch: when a watch is stopped half-way, every result that the agent
// reported, also while it ended, is in the record and in the pair's object.
func TestStoppedWatch(t *testing.T) {
	w, roster := connections()
	o := newObjects(nil)
	tk, f := newWatch(t, o, func(ctx context.Context, deleted <-chan struct{}) io.ReadCloser {
		r, log := io.Pipe()
		go func() {
			fmt.Fprint(log, line(t, checkup.Message{Start: &checkup.AgentStart{Pairs: 1}}))
			fmt.Fprint(log, line(t, checkup.Message{Results: []checkup.Result{result(0), result(1)}}))
			<-deleted
			fmt.Fprint(log, line(t, checkup.Message{Results: []checkup.Result{result(2)}}))
			fmt.Fprint(log, line(t, checkup.Message{End: &checkup.AgentEnd{Results: 3}}))
			log.Close()
		}()
		return r
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	name := checkup.ConnectivityName(w.Sources[0], w.Targets[0])
	live := make(chan string)
	go func() {
		for range o.wrote {
			if status := o.status(name); status != "" {
				live <- status
				cancel(errors.New("terminated"))
				return
			}
		}
	}()
	done := make(chan error)
	go func() { done <- probe(ctx, tk, f, &record.Frozen{Worksheet: *w, Roster: *roster}) }()
	if status := <-live; !strings.Contains(status, `"True"`) {
		t.Errorf("while the watch goes on the object says %s, want that its target is reachable", status)
	}
	if err := <-done; err == nil || err.Error() != "stopped before everything was measured: terminated" {
		t.Errorf("%v, want that it was stopped", err)
	}
	r, err := tk.Store("").LoadRecord(t.Context(), "api")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]checkup.Result{result(0), result(1), result(2)}, r.Results); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	if len(r.Sources) != 1 || r.Sources[0].Cause == nil || !strings.Contains(r.Sources[0].Cause.Message, "stopped") {
		t.Errorf("sources %+v, want that it was stopped", r.Sources)
	}
	if status := o.status(name); !strings.Contains(status, `"False"`) || !strings.Contains(status, "connection refused") {
		t.Errorf("at the end the object says %s, want the failure", status)
	}
}

// slow is an API server that takes 150 ms to write a status.
type slow struct{ dynamic.Interface }

func (s slow) Resource(r schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return slowResource{s.Interface.Resource(r)}
}

type slowResource struct {
	dynamic.NamespaceableResourceInterface
}

func (s slowResource) Namespace(name string) dynamic.ResourceInterface {
	return slowNamespace{s.NamespaceableResourceInterface.Namespace(name)}
}

type slowNamespace struct{ dynamic.ResourceInterface }

func (s slowNamespace) ApplyStatus(ctx context.Context, name string, u *unstructured.Unstructured, o metav1.ApplyOptions) (*unstructured.Unstructured, error) {
	time.Sleep(150 * time.Millisecond)
	return s.ResourceInterface.ApplyStatus(ctx, name, u, o)
}

// TestManyObjects: the time for writing objects after the last result grows with their number.
func TestManyObjects(t *testing.T) { synctest.Test(t, testManyObjects) }

func testManyObjects(t *testing.T) {
	const pairs = 1500 // 28 s, as the book makes 8 requests at once
	w, roster := connections()
	w.Targets, w.Assignments, roster.Targets = nil, [][]int{nil}, make([]checkup.RosterEntry, pairs)
	var log strings.Builder
	for i := range pairs {
		w.Targets = append(w.Targets, checkup.Endpoint{Label: fmt.Sprintf("kubelet-%d", i), Peer: &checkup.Peer{
			Host: fmt.Sprintf("192.0.%d.%d", 2+i/250, i%250), Port: 10250, Family: checkup.IPv4, Transport: checkup.TLS,
		}})
		w.Assignments[0] = append(w.Assignments[0], i)
		r := result(0)
		r.Target, r.At = i, time.Now()
		log.WriteString(line(t, checkup.Message{Results: []checkup.Result{r}}))
	}
	log.WriteString(line(t, checkup.Message{End: &checkup.AgentEnd{Results: pairs}}))
	tk, f := newWatch(t, newObjects(nil), func(context.Context, <-chan struct{}) io.ReadCloser {
		return io.NopCloser(strings.NewReader(log.String()))
	})
	tk.Dynamic = slow{tk.Dynamic}
	if err := probe(t.Context(), tk, f, &record.Frozen{Worksheet: *w, Roster: *roster}); err != nil {
		t.Error(err)
	}
}

// TestObjectsRefused: objects that cannot be written cost no measurement, and are
// an error of the task.
func TestObjectsRefused(t *testing.T) {
	w, roster := connections()
	o := newObjects(apierrors.NewForbidden(connectivity.Resource.GroupResource(), "", errors.New("no right")))
	tk, f := newWatch(t, o, func(context.Context, <-chan struct{}) io.ReadCloser {
		return io.NopCloser(strings.NewReader(line(t, checkup.Message{Results: []checkup.Result{result(0)}}) + line(t, checkup.Message{End: &checkup.AgentEnd{Results: 1}})))
	})
	if err := probe(t.Context(), tk, f, &record.Frozen{Worksheet: *w, Roster: *roster}); err == nil || !strings.Contains(err.Error(), "objects of pairs are not up to date: ") || !strings.Contains(err.Error(), "no right") {
		t.Errorf("%v, want that the objects could not be written", err)
	}
	r, err := tk.Store("").LoadRecord(t.Context(), "api")
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Results) != 1 {
		t.Errorf("%d results, want 1", len(r.Results))
	}

	w.Connections.Unwritten = "no CRD"
	if err := probe(t.Context(), tk, f, &record.Frozen{Worksheet: *w, Roster: *roster}); err != nil {
		t.Errorf("%v, want no error where setup found out that there are to be none", err)
	}
}

// TestDryRun: the API server's answer about the pods of a dry run is in the record, and
// nothing is started.
func TestDryRun(t *testing.T) {
	client := fake.NewSimpleClientset()
	client.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		create := a.(k8stesting.CreateActionImpl)
		if len(create.CreateOptions.DryRun) != 1 {
			t.Error("a pod is created in earnest")
		}
		if create.Object.(*corev1.Pod).Labels["side"] == "source" {
			return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "x-1", errors.New(`violates PodSecurity "restricted:latest"`))
		}
		return true, create.Object, nil
	})
	tk := &task.Task{Kubernetes: client, Namespace: "ns", RunName: "run", RunUID: "uid-1", PodName: "probe-pod", PodUID: "uid-3", Check: "where", Stdout: io.Discard}
	side := func(name placement.SideName) placement.Side {
		return placement.Side{Side: name, Pod: json.RawMessage(`{"apiVersion":"v1","kind":"Pod","metadata":{"generateName":"x-","labels":{"side":"` + string(name) + `"}}}`)}
	}
	w := &checkup.Worksheet{Plan: "day-2", Check: "where", Kind: placement.Name}
	sheet := placement.Sheet{Sides: []placement.Side{side(placement.SideSource), side(placement.SideTarget)}}
	if err := sheet.Put(w); err != nil {
		t.Fatal(err)
	}
	if err := probe(t.Context(), tk, tk.Fleet("day-2"), &record.Frozen{Worksheet: *w}); err != nil {
		t.Fatal(err)
	}
	r, err := tk.Store("").LoadRecord(t.Context(), "where")
	if err != nil {
		t.Fatal(err)
	}
	answers := map[string]placement.Admission{}
	for _, f := range r.Facts {
		var a placement.Admission
		if err := json.Unmarshal(f.Content, &a); err != nil {
			t.Fatalf("fact %+v: %v", f, err)
		}
		answers[f.Unit] = a
	}
	if s := answers["source"]; len(r.Facts) != 2 || s.Allowed || !strings.Contains(s.Message, "PodSecurity") || !answers["target"].Allowed {
		t.Errorf("answers %+v, want the source refused with the words of admission, and the target allowed", answers)
	}
	for _, a := range client.Actions() {
		if a.GetResource().Resource == "pods" && a.GetVerb() != "create" {
			t.Errorf("%s pods: a plan without fixtures has no right to it", a.GetVerb())
		}
	}
}
