// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"encoding/json"
	"errors"
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
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/fleet"
)

// meta of an object of a run and role, that expires at that time.
func meta(name, run string, role checkup.Role, expires string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, Namespace: "ns", UID: types.UID("uid-of-" + name),
		Labels: map[string]string{
			checkup.LabelRun: run, checkup.LabelRole: string(role), checkup.LabelPlan: "vm-latency", checkup.LabelCheck: "vms",
		},
		Annotations: map[string]string{fleet.AnnotationExpires: expires},
	}
}

// leftovers is a world with a VM and its pod, an anchor, and things that are not the
// run's VMs.
func leftovers(t *testing.T) *world {
	t.Helper()
	x := newWorld(t, worksheet(t, 1))
	const past, future = "2026-01-02T03:04:04Z", "2036-01-02T03:04:06Z"
	pod := func(name, run string, role checkup.Role, vmi string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: meta(name, run, role, past)}
		p.Labels[kubevirtv1.CreatedByLabel] = "uid-of-" + vmi
		p.Spec.NodeName, p.Spec.TerminationGracePeriodSeconds = "n1", new(int64(30))
		p.Status.Phase = corev1.PodRunning
		return p
	}
	for _, o := range []runtime.Object{
		pod("launcher", "run-uid", checkup.RoleGuest, "vm"), pod("stale-launcher", "run-2", checkup.RoleGuest, "stale"),
		pod("agent", "run-uid", checkup.RoleAgent, ""),
		&corev1.ConfigMap{ObjectMeta: meta("anchor", "run-uid", checkup.RoleGuest, past)},
		&corev1.ConfigMap{ObjectMeta: meta("stale-anchor", "run-2", checkup.RoleGuest, past)},
		&corev1.ConfigMap{ObjectMeta: meta("record", "run-uid", checkup.RoleRecord, past)},
	} {
		if err := x.kube.Tracker().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range []metav1.ObjectMeta{meta("vm", "run-uid", checkup.RoleGuest, past), meta("stale", "run-2", checkup.RoleGuest, past), meta("other", "run-3", checkup.RoleGuest, future)} {
		vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: m}
		vmi.Status.NodeName, vmi.Status.Phase = "n1", kubevirtv1.Running
		if err := x.virt.Tracker().Add(vmi); err != nil {
			t.Fatal(err)
		}
	}
	return x
}

// there names all VMs, pods and ConfigMaps that there are.
func (x *world) there(t *testing.T) []string {
	t.Helper()
	found, err := x.list(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	names := found.names()
	slices.Sort(names)
	return names
}

// TestRemove: VMs go first, their pods with them, and what owned them last; nothing
// else is touched.
func TestRemove(t *testing.T) { synctest.Test(t, testRemove) }

func testRemove(t *testing.T) {
	x := leftovers(t)
	left, err := x.Left(t.Context())
	if err != nil || !slices.Equal(left, []string{"virtualmachineinstance/vm", "pod/launcher", "configmap/anchor"}) {
		t.Errorf("left %v, %v", left, err)
	}
	asked := 0
	x.virt.PrependReactor("delete", "virtualmachineinstances", func(a k8stesting.Action) (bool, runtime.Object, error) {
		asked++
		// KubeVirt deletes the pod, and lets go of the VM when that is gone.
		time.AfterFunc(10*time.Second, func() {
			if err := x.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ns", "launcher"); err != nil {
				t.Error(err)
			}
			if err := x.virt.Tracker().Delete(a.GetResource(), "ns", "vm"); err != nil {
				t.Error(err)
			}
		})
		return true, nil, nil
	})
	if left, err := x.Remove(t.Context()); err != nil || len(left) > 0 {
		t.Fatalf("left %v, %v; want nothing", left, err)
	}
	if asked != 1 {
		t.Errorf("the VM was asked to go %d times", asked)
	}
	want := []string{"configmap/record", "configmap/stale-anchor", "pod/agent", "pod/stale-launcher", "virtualmachineinstance/other", "virtualmachineinstance/stale"}
	if diff := cmp.Diff(want, x.there(t)); diff != "" {
		t.Errorf("what is there (-want +got):\n%s", diff)
	}
	for _, a := range x.kube.Actions() {
		if a.GetVerb() == "delete" && a.GetResource().Resource == "pods" {
			t.Error("the VM's pod was deleted behind KubeVirt's back")
		}
	}
}

// TestRemoveFromLostNode: a VM whose kubelet is away goes, too, by and by.
func TestRemoveFromLostNode(t *testing.T) { synctest.Test(t, testRemoveFromLostNode) }

func testRemoveFromLostNode(t *testing.T) {
	x := leftovers(t)
	began := time.Now()
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	x.virt.PrependReactor("delete", "virtualmachineinstances", func(a k8stesting.Action) (bool, runtime.Object, error) {
		pod, err := x.kube.CoreV1().Pods("ns").Get(context.Background(), "launcher", metav1.GetOptions{})
		if err != nil {
			t.Error(err)
		}
		pod.DeletionTimestamp = new(metav1.Now())
		return true, nil, x.kube.Tracker().Update(pods, pod, "ns")
	})
	var forced time.Duration
	x.kube.PrependReactor("delete", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if period := a.(k8stesting.DeleteActionImpl).DeleteOptions.GracePeriodSeconds; period == nil || *period != 0 {
			return true, nil, nil
		}
		forced = time.Since(began)
		return false, nil, x.virt.Tracker().Delete(kubevirtv1.SchemeGroupVersion.WithResource("virtualmachineinstances"), "ns", "vm")
	})
	if left, err := x.Remove(t.Context()); err != nil || len(left) > 0 {
		t.Fatalf("left %v, %v; want nothing", left, err)
	}
	if forced < 30*time.Second || forced > 32*time.Second {
		t.Errorf("its pod was force-deleted after %s, want its grace period of 30 s and a moment", forced)
	}
	if !strings.Contains(x.log.String(), "::warning::pod/launcher of a VM on node n1 did not end") {
		t.Errorf("log %s, want a warning", &x.log)
	}
}

// TestRemoveAgain: a request to delete that fails once is made again.
func TestRemoveAgain(t *testing.T) { synctest.Test(t, testRemoveAgain) }

func testRemoveAgain(t *testing.T) {
	x := leftovers(t)
	failed := map[string]bool{}
	once := func(a k8stesting.Action) (bool, runtime.Object, error) {
		resource := a.GetResource().Resource
		if failed[resource] {
			return false, nil, nil
		}
		failed[resource] = true
		return true, nil, apierrors.NewInternalError(errors.New("etcdserver: leader changed"))
	}
	x.virt.PrependReactor("delete", "*", once)
	x.kube.PrependReactor("delete", "*", once)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if left, err := x.Remove(ctx); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v; want nothing", left, err)
	}
}

// TestRemoveAlone: a process that runs all phases removes its VMs by name, without any other right, and waits for an
// API server that denies everything while it starts.
func TestRemoveAlone(t *testing.T) { synctest.Test(t, testRemoveAlone) }

func testRemoveAlone(t *testing.T) {
	w := worksheet(t, 1)
	x := newWorld(t, w)
	t.Cleanup(x.end)
	x.Fleet.Alone, x.NoPods = true, true
	deny := func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, forbidden("anything") }
	x.kube.PrependReactor("*", "*", deny)
	x.virt.PrependReactor("list", "*", deny)
	roster := rosterOf(w)
	if err := x.Start(t.Context(), w, roster, nil); err != nil || roster.Targets[0].Cause != nil {
		t.Fatalf("%v, %v", err, roster.Targets[0].Cause)
	}
	vmi, err := x.vmis().Get(t.Context(), x.nameOf(w, 0), metav1.GetOptions{})
	if err != nil || len(vmi.OwnerReferences) != 1 || vmi.OwnerReferences[0].UID != "uid-of-task-pod" {
		t.Errorf("owners %+v, %v; want the pod", vmi.OwnerReferences, err)
	}
	began := time.Now()
	x.virt.PrependReactor("get", "*", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if time.Since(began) < 5*time.Second {
			return deny(a)
		}
		return false, nil, nil
	})
	if left, err := x.Remove(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v; want nothing", left, err)
	}
	for i := range w.Sources {
		if _, err := x.vmis().Get(t.Context(), x.nameOf(w, i), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("VM %d: %v, want it gone", i, err)
		}
	}
}

// TestRemoveFails: what is left is named, and why where that is known.
func TestRemoveFails(t *testing.T) { synctest.Test(t, testRemoveFails) }

func testRemoveFails(t *testing.T) {
	want := []string{"virtualmachineinstance/vm", "pod/launcher", "configmap/anchor"}
	x := leftovers(t)
	var answer error
	x.virt.PrependReactor("delete", "virtualmachineinstances", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, answer })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if left, err := x.Remove(ctx); err != nil || !slices.Equal(left, want) {
		t.Errorf("left %v, %v; want all of it", left, err)
	}
	answer = forbidden("virtualmachineinstances")
	if left, err := x.Remove(t.Context()); !apierrors.IsForbidden(err) || !slices.Equal(left, want) {
		t.Errorf("left %v, %v; want all of it, at once", left, err)
	}
	x.virt.PrependReactor("list", "virtualmachineinstances", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, forbidden("virtualmachineinstances")
	})
	if _, err := x.Remove(t.Context()); !apierrors.IsForbidden(err) {
		t.Errorf("%v, want that there is no right to look", err)
	}
	if _, err := x.Left(t.Context()); !apierrors.IsForbidden(err) {
		t.Errorf("%v, want that there is no right to look", err)
	}
}

// TestRemoveWithoutKubeVirt: the anchor goes although there is no such API any more.
func TestRemoveWithoutKubeVirt(t *testing.T) {
	x := leftovers(t)
	x.virt.PrependReactor("list", "virtualmachineinstances", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewGenericServerResponse(404, "list", kubevirtv1.Resource("virtualmachineinstances"), "", "the server could not find the requested resource", 0, true)
	})
	if left, err := x.Remove(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v; want nothing", left, err)
	}
}

// TestSweep: what another run of the plan needs no more goes, nothing else.
func TestSweep(t *testing.T) {
	x := leftovers(t)
	n, err := x.Sweep(t.Context())
	if err != nil || n != 2 {
		t.Errorf("%d, %v; want a VM and an anchor", n, err)
	}
	want := []string{"configmap/anchor", "configmap/record", "pod/agent", "pod/launcher", "pod/stale-launcher", "virtualmachineinstance/other", "virtualmachineinstance/vm"}
	if diff := cmp.Diff(want, x.there(t)); diff != "" {
		t.Errorf("what is there (-want +got):\n%s", diff)
	}
}

// TestEvidence: the VM with its pod, its events, the ends of its logs.
func TestEvidence(t *testing.T) {
	x := leftovers(t)
	x.warn(t, "VirtualMachineInstance", "vm", "SyncFailed", "no\nkvm")
	x.warn(t, "Pod", "launcher", "Unhealthy", "not ready")
	x.warn(t, "Pod", "agent", "Unhealthy", "somebody else")
	x.Fleet.OpenLog = func(_ context.Context, pod string, o *corev1.PodLogOptions) (io.ReadCloser, error) {
		if o.Container == "compute" {
			return nil, forbidden("pods/log")
		}
		return io.NopCloser(strings.NewReader(strings.Repeat("x", evidenceLog) + pod)), nil
	}
	kept, err := x.Evidence(t.Context(), []string{"vms"})
	if err != nil || len(kept) != 1 {
		t.Fatalf("%v, %v; want that of one VM", kept, err)
	}
	e := kept[0]
	var vmi kubevirtv1.VirtualMachineInstance
	var pod corev1.Pod
	if err := errors.Join(json.Unmarshal(e.Manifest, &vmi), json.Unmarshal(e.Pod, &pod)); err != nil {
		t.Fatal(err)
	}
	if e.VM != "vm" || e.Check != "vms" || e.Node != "n1" || e.Phase != "Running" || vmi.Name != "vm" || pod.Name != "launcher" {
		t.Errorf("%+v", e)
	}
	if diff := cmp.Diff([]string{
		"2026-01-02T03:04:05Z Warning Pod: Unhealthy: not ready", "2026-01-02T03:04:05Z Warning VirtualMachineInstance: SyncFailed: no kvm",
	}, slices.Sorted(slices.Values(e.Events))); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if log := e.Logs["guest-console-log"]; len(log) != evidenceLog || !strings.HasSuffix(log, "xlauncher") {
		t.Errorf("the console's log has %d bytes, and ends with %q", len(log), log[len(log)-10:])
	}
	if log := e.Logs["compute"]; !strings.Contains(log, "cannot be read: ") {
		t.Errorf("the pod's log: %q, want why it is not there", log)
	}
	for _, check := range []string{"other", ""} {
		if kept, err := x.Evidence(t.Context(), []string{check}); err != nil || len(kept) != 0 {
			t.Errorf("%q: %v, %v; want nothing of a check that was not asked for", check, kept, err)
		}
	}
	for i := range 30 {
		vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: meta("vm-"+string(rune('a'+i)), "run-uid", checkup.RoleGuest, "")}
		if err := x.virt.Tracker().Add(vmi); err != nil {
			t.Fatal(err)
		}
	}
	if kept, err := x.Evidence(t.Context(), []string{"vms"}); err != nil || len(kept) != evidenceVMs {
		t.Errorf("%d, %v; want %d", len(kept), err, evidenceVMs)
	}
}
