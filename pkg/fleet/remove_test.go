// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

func meta(name, run string, role checkup.Role, expires string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, Namespace: "ns", UID: types.UID("uid-of-" + name),
		Labels: map[string]string{
			checkup.LabelRun: run, checkup.LabelRole: string(role), checkup.LabelPlan: "day-2", checkup.LabelCheck: "mesh",
		},
		Annotations: map[string]string{AnnotationExpires: expires},
	}
}

// objects are fixtures of our run and others, and things that are no fixtures.
func objects() []runtime.Object {
	const past, future = "2026-01-02T03:04:04Z", "2026-01-02T03:04:06Z"
	otherPlan := meta("other-plan", "run-3", checkup.RoleAgent, past)
	otherPlan.Labels[checkup.LabelPlan] = "other"
	order := meta("agent", "run-uid", checkup.RoleAgent, future)
	order.UID = "uid-of-order"
	return []runtime.Object{
		&corev1.Pod{ObjectMeta: meta("responder", "run-uid", checkup.RoleResponder, past)},
		&corev1.Pod{ObjectMeta: meta("agent", "run-uid", checkup.RoleAgent, future)},
		&corev1.ConfigMap{ObjectMeta: order},
		&corev1.ConfigMap{ObjectMeta: meta("worksheet", "run-uid", checkup.RoleWorksheet, past)},
		&corev1.ConfigMap{ObjectMeta: meta("report", "run-2", checkup.RoleReport, past)},
		&corev1.Pod{ObjectMeta: meta("stale", "run-2", checkup.RoleResponder, past)},
		&corev1.ConfigMap{ObjectMeta: meta("stale", "run-2", checkup.RoleAgent, past)},
		&corev1.Pod{ObjectMeta: meta("live", "run-2", checkup.RoleResponder, future)},
		&corev1.Pod{ObjectMeta: meta("no-date", "run-2", checkup.RoleResponder, "")},
		&corev1.Pod{ObjectMeta: otherPlan},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "somebody", Namespace: "ns"}},
	}
}

// names of everything in the namespace, as kind/name.
func names(t *testing.T, c *cluster) []string {
	t.Helper()
	var names []string
	pods, err := c.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		names = append(names, "pod/"+p.Name)
	}
	cms, err := c.CoreV1().ConfigMaps("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, cm := range cms.Items {
		names = append(names, "configmap/"+cm.Name)
	}
	slices.Sort(names)
	return names
}

func TestRemove(t *testing.T) {
	c := newCluster(objects()...)
	f, _ := newFleet(t, c)
	before := names(t, c)
	left, err := f.Left(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ours := []string{"pod/agent", "pod/responder", "configmap/agent"}
	if diff := cmp.Diff(ours, left); diff != "" {
		t.Errorf("left before (-want +got):\n%s", diff)
	}
	left, err = f.Remove(t.Context())
	if err != nil || len(left) != 0 {
		t.Fatalf("left %v, %v; want nothing", left, err)
	}
	want := slices.DeleteFunc(before, func(n string) bool { return slices.Contains(ours, n) })
	if diff := cmp.Diff(want, names(t, c)); diff != "" {
		t.Errorf("what is there (-want +got):\n%s", diff)
	}
	if left, err := f.Remove(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("a second time: %v, %v; want that there is nothing to do", left, err)
	}
}

// TestRemoveListsAgain: few fixtures are listed again after a quarter of a second, because kubelets end most pods within
// a second. Many are listed after a second.
func TestRemoveListsAgain(t *testing.T) {
	for number, want := range map[int]time.Duration{few: 500 * time.Millisecond, few + 1: time.Second} {
		synctest.Test(t, func(t *testing.T) {
			var fixtures []runtime.Object
			for i := range number {
				fixtures = append(fixtures, &corev1.Pod{ObjectMeta: meta(fmt.Sprintf("agent-%d", i), "run-uid", checkup.RoleAgent, "")})
			}
			c := newCluster(fixtures...)
			c.PrependReactor("delete", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
				name := a.(k8stesting.DeleteAction).GetName()
				time.AfterFunc(300*time.Millisecond, func() { _ = c.Tracker().Delete(a.GetResource(), "ns", name) })
				return true, nil, nil
			})
			f, _ := newFleet(t, c)
			f.Retry, f.Force = time.Second, time.Minute
			start := time.Now()
			if left, err := f.Remove(t.Context()); err != nil || len(left) != 0 {
				t.Fatalf("left %v, %v; want nothing", left, err)
			}
			if took := time.Since(start); took != want {
				t.Errorf("%d pods that end after 300ms: Remove took %s, want %s", number, took, want)
			}
		})
	}
}

// TestRemoveStubborn: a pod whose kubelet does not answer is taken out by force,
// after its grace period and not before.
func TestRemoveStubborn(t *testing.T) {
	c := newCluster(objects()...)
	var clock time.Time
	var periods []int64
	c.PrependReactor("delete", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		d := a.(k8stesting.DeleteActionImpl)
		if d.Name != "responder" {
			return false, nil, nil
		}
		period := *d.DeleteOptions.GracePeriodSeconds
		c.mu.Lock()
		defer c.mu.Unlock()
		periods = append(periods, period)
		return period > 0, nil, nil // it goes only by force
	})
	f, log := newFleet(t, c)
	f.Force = 10 * time.Second
	f.Now = func() time.Time { clock = clock.Add(4 * time.Second); return clock }
	left, err := f.Remove(t.Context())
	if err != nil || len(left) != 0 {
		t.Fatalf("left %v, %v; want nothing", left, err)
	}
	if diff := cmp.Diff([]int64{grace, 0}, periods); diff != "" {
		t.Errorf("grace periods of the requests (-want +got):\n%s", diff)
	}
	if !strings.Contains(log.String(), "pod/responder on node  did not end") {
		t.Error("the log does not say that it was taken out by force")
	}
}

func TestRemoveFails(t *testing.T) {
	t.Run("no right to delete", func(t *testing.T) { synctest.Test(t, testRemoveDenied) })
	t.Run("not gone by the deadline", func(t *testing.T) {
		c := newCluster(objects()...)
		ctx, cancel := context.WithCancel(t.Context())
		tries := 0
		c.PrependReactor("delete", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if tries++; tries > 4 {
				cancel()
			}
			return true, nil, nil // accepted, and nothing happens
		})
		f, _ := newFleet(t, c)
		f.Now = nil
		clock := time.Now()
		f.Now = func() time.Time { clock = clock.Add(time.Minute); return clock }
		left, err := f.Remove(ctx)
		if err != nil {
			t.Errorf("%v, want no error: what is left is returned", err)
		}
		if diff := cmp.Diff([]string{"pod/agent", "pod/responder"}, left); diff != "" {
			t.Errorf("left (-want +got):\n%s", diff)
		}
	})
	t.Run("no API server", func(t *testing.T) {
		c := newCluster(objects()...)
		c.refuse("list", "configmaps", apierrors.NewForbidden(corev1.Resource("configmaps"), "", errors.New("no")), nil)
		f, _ := newFleet(t, c)
		if _, err := f.Remove(t.Context()); !apierrors.IsForbidden(err) {
			t.Errorf("%v, want that nobody could look", err)
		}
	})
	t.Run("API server that stumbles", func(t *testing.T) {
		c := newCluster(objects()...)
		n := 0
		c.PrependReactor("*", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			n++
			return n%3 == 1, nil, apierrors.NewInternalError(errors.New("etcdserver: leader changed"))
		})
		f, _ := newFleet(t, c)
		if left, err := f.Remove(t.Context()); err != nil || len(left) != 0 {
			t.Errorf("left %v, %v; want nothing", left, err)
		}
	})
}

func testRemoveDenied(t *testing.T) {
	c := newCluster(objects()...)
	c.refuse("delete", "pods", apierrors.NewForbidden(pods, "x", errors.New("no")), nil)
	f, _ := newFleet(t, c)
	left, err := f.Remove(t.Context())
	if !apierrors.IsForbidden(err) && (err == nil || !strings.Contains(err.Error(), "delete pod/agent")) {
		t.Errorf("%v, want that it may not delete which pod", err)
	}
	if !slices.Contains(left, "pod/agent") || !slices.Contains(left, "pod/responder") {
		t.Errorf("left %v, want both pods", left)
	}
}

func TestSweep(t *testing.T) {
	c := newCluster(objects()...)
	f, _ := newFleet(t, c)
	before := names(t, c)
	n, err := f.Sweep(t.Context())
	if err != nil || n != 2 {
		t.Errorf("%d deleted, %v; want 2", n, err)
	}
	stale := []string{"pod/stale", "configmap/stale"}
	want := slices.DeleteFunc(before, func(n string) bool { return slices.Contains(stale, n) })
	if diff := cmp.Diff(want, names(t, c)); diff != "" {
		t.Errorf("what is there (-want +got):\n%s", diff)
	}
}

// TestFixturesExpire: the sweep of a later run finds every fixture, once it is
// over and not before.
func TestFixturesExpire(t *testing.T) {
	w := worksheet(3)
	f, c, roster := startedFleet(t, w)
	f.OpenLog = (&logs{w: w}).open
	if err := f.Measure(t.Context(), w, roster, newSink(), nil); err != nil {
		t.Fatal(err)
	}
	later, _ := newFleet(t, c)
	later.RunUID = "later-run"
	life := time.Duration(w.Timeouts.Setup) + time.Duration(w.Timeouts.Probe)
	for _, tt := range []struct {
		after time.Duration
		want  int
	}{{life, 0}, {life + 2*expiry + time.Second, 9}} { // 3 responders, 3 agents, 3 orders
		later.Now = func() time.Time { return f.now().Add(tt.after) }
		if n, err := later.Sweep(t.Context()); err != nil || n != tt.want {
			t.Errorf("%s later: %d deleted, %v; want %d", tt.after, n, err, tt.want)
		}
	}
}

func TestEvidence(t *testing.T) {
	pod := func(name string, role checkup.Role, status corev1.PodStatus) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: meta(name, "run-uid", role, ""), Status: status}
		p.Spec.NodeName = "n1"
		return p
	}
	c := newCluster(
		pod("good-responder", checkup.RoleResponder, running(0)),
		pod("good-agent", checkup.RoleAgent, ended(0, "Completed", "")),
		pod("killed-agent", checkup.RoleAgent, ended(137, "OOMKilled", "")),
		pod("late-agent", checkup.RoleAgent, running(0)),
		pod("no-image", checkup.RoleResponder, waiting("ErrImagePull", "not found")),
		&corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "ns"}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "no-image"},
			Type: corev1.EventTypeWarning, Reason: "Failed", Message: "manifest unknown",
		},
	)
	f, _ := newFleet(t, c)
	f.OpenLog = func(_ context.Context, pod string, _ *corev1.PodLogOptions) (io.ReadCloser, error) {
		if pod == "late-agent" {
			return nil, errors.New("kubelet does not answer")
		}
		return io.NopCloser(strings.NewReader(strings.Repeat("x", evidenceLog) + "last words\n")), nil
	}
	kept, err := f.Evidence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	type row struct{ Pod, Problem, Warning, LogEnd string }
	var got []row
	for _, e := range kept {
		var pod corev1.Pod
		if err := json.Unmarshal(e.Manifest, &pod); err != nil {
			t.Fatal(err)
		}
		if pod.Name != e.Pod || pod.Kind != "Pod" || e.Node != "n1" || e.Check != "mesh" || len(e.Log) > evidenceLog {
			t.Errorf("evidence of %s is not whole: %+v", e.Pod, e)
		}
		got = append(got, row{e.Pod, e.Problem, e.Warning, e.Log[max(0, len(e.Log)-11):]})
	}
	want := []row{
		{"killed-agent", "the container ended with exit code 137 (OOMKilled)", "", "last words\n"},
		{"late-agent", "the container runs", "", " not answer"},
		{"no-image", "ErrImagePull: not found", "Failed: manifest unknown", ""},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestEvidenceIsBounded(t *testing.T) {
	var many []runtime.Object
	for i := range evidencePods + 5 {
		many = append(many, &corev1.Pod{ObjectMeta: meta(string(rune('a'+i)), "run-uid", checkup.RoleAgent, ""), Status: waiting("ErrImagePull", "")})
	}
	f, log := newFleet(t, newCluster(many...))
	kept, err := f.Evidence(t.Context())
	if err != nil || len(kept) != evidencePods {
		t.Errorf("%d kept, %v; want %d", len(kept), err, evidencePods)
	}
	if !strings.Contains(log.String(), "first 20 of 25 pods") {
		t.Error("the log does not say that there were more")
	}
}
