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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// insideSheet has the pods shop/web-0, shop/web-1, ... as sources and targets, each on a node of its own.
func insideSheet(n int) *checkup.Worksheet {
	w := worksheet(n)
	for i := range n {
		w.Sources[i].Pod, w.Sources[i].Inside = fmt.Sprintf("shop/web-%d", i), true
		w.Targets[i].Pod = w.Sources[i].Pod
		w.Sources[i].Tolerations, w.Targets[i].Tolerations = nil, nil
	}
	return w
}

// workload is the pod of a source, as its owner runs it.
func workload(w *checkup.Worksheet, source int) *corev1.Pod {
	namespace, name, _ := strings.Cut(w.Sources[source].Pod, "/")
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: w.Sources[source].Node, Containers: []corev1.Container{{Name: "web", Image: "web"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: state(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})},
	}
}

// insideCluster has the pods of the sources. became is what a kubelet makes of an ephemeral container; nil runs it.
func insideCluster(w *checkup.Worksheet, became func(pod *corev1.Pod, status *corev1.ContainerStatus)) *fake.Clientset {
	var pods []runtime.Object
	for s := range w.Sources {
		pods = append(pods, workload(w, s))
	}
	c := fake.NewSimpleClientset(pods...)
	c.PrependReactor("get", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		of := a.(k8stesting.GetAction)
		o, err := c.Tracker().Get(a.GetResource(), a.GetNamespace(), of.GetName())
		if err != nil {
			return true, nil, err
		}
		pod := o.(*corev1.Pod).DeepCopy()
		for _, e := range pod.Spec.EphemeralContainers {
			status := corev1.ContainerStatus{Name: e.Name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
			if became != nil {
				became(pod, &status)
			}
			pod.Status.EphemeralContainerStatuses = append(pod.Status.EphemeralContainerStatuses, status)
		}
		return true, pod, nil
	})
	return c
}

func insideFleet(t *testing.T, c *fake.Clientset, w *checkup.Worksheet) *Fleet {
	f, _ := newFleet(t, &cluster{Clientset: c})
	f.OpenLog = func(_ context.Context, pod string, o *corev1.PodLogOptions) (io.ReadCloser, error) {
		for s, e := range w.Sources {
			if e.Pod == pod && o.Container == checkup.ObjectName("run-uid", w.Check, checkup.RoleAgent, e.Name()) {
				return text(speech(w, s)), nil
			}
		}
		return nil, fmt.Errorf("no log of pod %s, container %s", pod, o.Container)
	}
	return f
}

// TestMeasureInside: an agent in an existing pod is restricted, has no volume, and its order; its reports arrive. No
// request changes anything else, and nothing is deleted.
func TestMeasureInside(t *testing.T) {
	w := insideSheet(3)
	c := insideCluster(w, nil)
	root := workload(w, 2)
	root.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(0))}
	if err := c.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), root, root.Namespace); err != nil {
		t.Fatal(err)
	}
	f := insideFleet(t, c, w)
	s := newSink()
	for try := range 2 { // a retry of the task finds the containers
		if err := f.Measure(t.Context(), w, rosterOf(w), s, nil); err != nil {
			t.Fatal(err)
		}
		for p := range w.Pairs() {
			if s.observations[p] != try+1 {
				t.Errorf("pair %v was reported %d times, want %d", p, s.observations[p], try+1)
			}
		}
	}
	for i, e := range w.Sources {
		if got := s.sources[i]; got.Cause != nil || got.Pod != e.Pod {
			t.Errorf("source %s: %+v; want the pod, and no cause", e.Pod, got)
		}
		_, name, _ := strings.Cut(e.Pod, "/")
		pod, err := c.CoreV1().Pods("shop").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(pod.Spec.EphemeralContainers) != 1 || len(pod.Labels) != 1 || pod.OwnerReferences != nil {
			t.Fatalf("pod %s has %d ephemeral containers, labels %v, owners %v; want one, and those that it had",
				name, len(pod.Spec.EphemeralContainers), pod.Labels, pod.OwnerReferences)
		}
		a := pod.Spec.EphemeralContainers[0]
		sc := a.SecurityContext
		if a.VolumeMounts != nil || a.EnvFrom != nil || a.Image != f.Image || !*sc.RunAsNonRoot || *sc.AllowPrivilegeEscalation ||
			!*sc.ReadOnlyRootFilesystem || sc.Capabilities.Drop[0] != "ALL" || sc.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("container %+v, want it restricted", a)
		}
		if i == 2 && (sc.RunAsUser == nil || *sc.RunAsUser != nonRoot) || i != 2 && sc.RunAsUser != nil {
			t.Errorf("source %d: UID %v; want that of the image or the platform, except in a pod that is root", i, sc.RunAsUser)
		}
		var order checkup.Order
		if err := json.Unmarshal([]byte(a.Env[0].Value), &order); err != nil || order.Source != i || len(order.Targets) != 2 {
			t.Errorf("order %+v, %v; want that of source %d", order, err, i)
		}
	}
	for _, a := range c.Actions() {
		if verb := a.GetVerb(); verb != "get" && (verb != "patch" || a.GetSubresource() != "ephemeralcontainers") {
			t.Errorf("%s %s/%s, want get and patch of ephemeral containers only", verb, a.GetResource().Resource, a.GetSubresource())
		}
	}
}

// TestInsideUnmeasured: what becomes of somebody else's pod is data, with its cause.
func TestInsideUnmeasured(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods/ephemeralcontainers"}, "web-0", errors.New("no right"))
	for _, tt := range []struct {
		name   string
		before func(t *testing.T, c *fake.Clientset, pod *corev1.Pod) // changes the pod of source 0 after the survey
		became func(pod *corev1.Pod, status *corev1.ContainerStatus)
		patch  error
		want   string // cause of source 0
		err    string // of Measure, with one source
	}{
		{name: "deleted", before: func(t *testing.T, c *fake.Clientset, pod *corev1.Pod) {
			if err := c.Tracker().Delete(podResource, "shop", pod.Name); err != nil {
				t.Fatal(err)
			}
		}, want: "source pod shop/web-0 was deleted"},
		{name: "being deleted", before: changed(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: p.CreationTimestamp.Time} }),
			want: "source pod shop/web-0 is being deleted"},
		{name: "completed", before: changed(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), want: "source pod shop/web-0 has ended (Succeeded)"},
		{name: "replaced on another node", before: changed(func(p *corev1.Pod) { p.Spec.NodeName = "n9" }),
			want: "is another one now: it was on node n0, and is on node n9"},
		{name: "Windows", before: changed(func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }), want: "is for windows: agents run on Linux only"},
		{name: "measured too often", before: changed(func(p *corev1.Pod) {
			p.Spec.EphemeralContainers = make([]corev1.EphemeralContainer, checkup.MaxInside)
			for i := range p.Spec.EphemeralContainers {
				p.Spec.EphemeralContainers[i].Name = fmt.Sprintf("old-%d", i)
			}
		}), want: "has 30 ephemeral containers already"},
		{name: "ended meanwhile", became: func(pod *corev1.Pod, status *corev1.ContainerStatus) {
			pod.Status.Phase, status.State = corev1.PodFailed, corev1.ContainerState{}
		}, want: "the source pod ended before its agent did"},
		{name: "replaced meanwhile", became: func(pod *corev1.Pod, status *corev1.ContainerStatus) {
			pod.UID, status.State = "another", corev1.ContainerState{}
		}, want: "the source pod was deleted or replaced before its agent ended"},
		{name: "no image", became: func(_ *corev1.Pod, status *corev1.ContainerStatus) {
			status.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}
		}, want: "ImagePullBackOff: no such image"},
		{name: "a static pod", patch: apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "web-0", nil), want: "start an ephemeral container in pod shop/web-0: "},
		{name: "no right", patch: forbidden, want: "no right", err: "none of 1 agent could be created"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := insideSheet(2)
			w.Assignments[1] = nil
			c := insideCluster(w, tt.became)
			if tt.before != nil {
				tt.before(t, c, workload(w, 0))
			}
			if tt.patch != nil {
				c.PrependReactor("patch", "pods", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, tt.patch })
			}
			f := insideFleet(t, c, w)
			s := newSink()
			err := f.Measure(t.Context(), w, rosterOf(w), s, nil)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("Measure: %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := s.sources[0].Cause; got == nil || !strings.Contains(got.Message, tt.want) {
				t.Errorf("cause %v, want %q", got, tt.want)
			}
			for _, a := range c.Actions() {
				if a.GetVerb() == "delete" || a.GetVerb() == "create" {
					t.Errorf("%s of %s", a.GetVerb(), a.GetResource().Resource)
				}
			}
		})
	}
}

var podResource = corev1.SchemeGroupVersion.WithResource("pods")

func changed(change func(*corev1.Pod)) func(*testing.T, *fake.Clientset, *corev1.Pod) {
	return func(t *testing.T, c *fake.Clientset, pod *corev1.Pod) {
		change(pod)
		if err := c.Tracker().Update(podResource, pod, pod.Namespace); err != nil {
			t.Fatal(err)
		}
	}
}

// TestInsideStopped: a task that is stopped leaves the pods of others alone.
func TestInsideStopped(t *testing.T) {
	w := insideSheet(2)
	c := insideCluster(w, nil)
	f := insideFleet(t, c, w)
	ctx, stop := context.WithCancel(t.Context())
	f.OpenLog = func(ctx context.Context, _ string, _ *corev1.PodLogOptions) (io.ReadCloser, error) {
		stop()
		return hanging(ctx, nil), nil
	}
	s := newSink()
	if err := f.Measure(ctx, w, rosterOf(w), s, nil); err != nil {
		t.Fatal(err)
	}
	if got := s.sources[0].Cause; got == nil || !strings.Contains(got.Message, "the probe task was stopped") {
		t.Errorf("cause %v, want that the task was stopped", got)
	}
	if slices.ContainsFunc(c.Actions(), func(a k8stesting.Action) bool { return a.GetVerb() == "delete" }) {
		t.Error("a pod of somebody else was deleted")
	}
}

// TestInsideOrder: an order that is too large for a pod's spec is refused, and a dollar sign is not the kubelet's.
func TestInsideOrder(t *testing.T) {
	w := insideSheet(400)
	w.Probes[0].Path = "/$(HOME)"
	for i := range w.Targets[1:] {
		w.Assignments[0] = append(w.Assignments[0], i+1)
	}
	f := insideFleet(t, insideCluster(w, nil), w)
	for _, order := range Orders(w, rosterOf(w))[:2] {
		a, err := f.agentInside(w, order)
		if err != nil {
			t.Fatal(err)
		}
		value := a.inside.container.Env[0].Value
		if large := order.Source == 0; (a.refused != nil) != large {
			t.Errorf("an order of %d bytes: %v, want refused: %v", len(value), a.refused, large)
		}
		var read checkup.Order
		if err := json.Unmarshal([]byte(value), &read); err != nil || read.Probes[0].Path != "/$(HOME)" || strings.Contains(value, "$") {
			t.Errorf("path %q, %v; want it without a dollar sign, and the same", read.Probes[0].Path, err)
		}
	}
}
