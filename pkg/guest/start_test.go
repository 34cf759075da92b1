// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// TestStart: both VMs come up, and everything belongs to the task's pod.
func TestStart(t *testing.T) {
	w := worksheet(t, 1)
	x := newWorld(t, w)
	roster := rosterOf(w)
	var seen [][2]int
	if err := x.Start(t.Context(), w, roster, func(ready, of int) { seen = append(seen, [2]int{ready, of}) }); err != nil {
		t.Fatal(err)
	}
	for vm, e := range roster.Targets {
		want := checkup.RosterEntry{Pod: "ns/" + x.nameOf(w, vm), Node: w.Sources[vm].Node, Addresses: addresses(w.Sources[vm].VM.Addresses)}
		if diff := cmp.Diff(want, e); diff != "" {
			t.Errorf("VM %d (-want +got):\n%s", vm, diff)
		}
		for _, a := range e.Addresses {
			if strings.Contains(a, "/") {
				t.Errorf("address %s has a prefix length", a)
			}
		}
	}
	if diff := cmp.Diff([][2]int{{0, 2}, {1, 2}, {2, 2}}, seen); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
	anchors, err := x.kube.CoreV1().ConfigMaps("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(anchors.Items) != 1 || anchors.Items[0].OwnerReferences[0].Name != "task-pod" {
		t.Fatalf("anchors %v, %v; want one, of the task's pod", anchors, err)
	}
	vmis, err := x.vmis().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(vmis.Items) != 2 {
		t.Fatalf("VMs %v, %v; want two", vmis, err)
	}
	for _, vmi := range vmis.Items {
		if o := vmi.OwnerReferences; len(o) != 1 || o[0].Kind != "ConfigMap" || o[0].UID != anchors.Items[0].UID {
			t.Errorf("owners of %s: %v, want the anchor", vmi.Name, o)
		}
	}
	// The next task takes over, and an earlier try is gone on with.
	x.Fleet.Owner = "probe-pod"
	if err := x.TakeOver(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	anchor, err := x.kube.CoreV1().ConfigMaps("ns").Get(t.Context(), anchors.Items[0].Name, metav1.GetOptions{})
	if err != nil || anchor.OwnerReferences[0].Name != "probe-pod" {
		t.Errorf("anchor %v, %v; want it the probe's", anchor, err)
	}
	if err := x.Start(t.Context(), w, rosterOf(w), nil); err != nil {
		t.Errorf("a retry: %v", err)
	}
}

// TestStartAnywhere: VMs without nodes of their own are kept apart, and rather where
// their preflight pods were attached.
func TestStartAnywhere(t *testing.T) {
	w := worksheetOf(t, bridgeConfig, nil)
	x := newWorld(t, w)
	x.preflight[""] = func(pod *corev1.Pod) { pod.Spec.NodeName = "n7" }
	if err := x.Start(t.Context(), w, rosterOf(w), nil); err != nil {
		t.Fatal(err)
	}
	vmi, err := x.vmis().Get(t.Context(), x.nameOf(w, 0), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a := vmi.Spec.Affinity
	if len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) != 1 || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		t.Errorf("affinity %+v, want only that it is not beside the other", a)
	}
	if p := a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution; len(p) != 1 || p[0].Preference.MatchFields[0].Values[0] != "n7" {
		t.Errorf("preference %+v, want n7", p)
	}
}

// TestStartReplaces: a VM of an earlier try that has ended is replaced, and one of
// another run is left alone.
func TestStartReplaces(t *testing.T) {
	w := worksheet(t, 1)
	x := newWorld(t, w)
	for vm, change := range []func(*kubevirtv1.VirtualMachineInstance){
		func(vmi *kubevirtv1.VirtualMachineInstance) { vmi.Status.Phase = kubevirtv1.Failed },
		func(vmi *kubevirtv1.VirtualMachineInstance) { vmi.Labels[checkup.LabelRun] = "another" },
	} {
		vmi, err := x.VMI(w, vm)
		if err != nil {
			t.Fatal(err)
		}
		change(vmi)
		if err := x.virt.Tracker().Add(vmi); err != nil {
			t.Fatal(err)
		}
	}
	roster := rosterOf(w)
	if err := x.Start(t.Context(), w, roster, nil); err != nil {
		t.Fatal(err)
	}
	if c := roster.Targets[1].Cause; c == nil || !strings.Contains(c.Message, "belongs to another run") {
		t.Errorf("cause %v, want that the name is taken", c)
	}
	vmi, err := x.vmis().Get(t.Context(), x.nameOf(w, 0), metav1.GetOptions{})
	if err != nil || vmi.Status.Phase != kubevirtv1.Running {
		t.Errorf("VM %v, %v; want a new one", vmi, err)
	}
}

// TestStartGoesWrong: each thing that may go wrong with the VM on n1 has its own
// reason, is reported before the timeout where there is nothing to hope for, and costs
// its own pair only.
func TestStartGoesWrong(t *testing.T) {
	pending := func(vmi *kubevirtv1.VirtualMachineInstance) {
		vmi.Status.Phase, vmi.Status.NodeName = kubevirtv1.Scheduling, ""
	}
	synchronized := func(message string) func(*kubevirtv1.VirtualMachineInstance) {
		return func(vmi *kubevirtv1.VirtualMachineInstance) {
			vmi.Status.Phase, vmi.Status.NodeName = kubevirtv1.Pending, ""
			vmi.Status.Conditions = []kubevirtv1.VirtualMachineInstanceCondition{{Type: kubevirtv1.VirtualMachineInstanceSynchronized, Status: corev1.ConditionFalse, Reason: "FailedCreate", Message: message}}
		}
	}
	for _, tt := range []struct {
		name    string
		prepare func(t *testing.T, x *world, w *checkup.Worksheet)
		want    []string
		created int  // VMs
		slow    bool // it takes the whole timeout
	}{
		{
			name: "the survey has a reason",
			prepare: func(_ *testing.T, _ *world, w *checkup.Worksheet) {
				for _, i := range []int{0, 1} {
					w.Sources[i].Cause = setupCause("node n1 does not exist")
				}
			},
			want: []string{"node n1 does not exist"}, created: 2,
		}, {
			name: "no bridge, says the scheduler",
			prepare: func(_ *testing.T, x *world, _ *checkup.Worksheet) {
				x.preflight["n1"] = func(pod *corev1.Pod) {
					pod.Spec.NodeName = ""
					pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/3 nodes are available: 1 Insufficient bridge.network.kubevirt.io/br10."}}}
				}
			},
			want: []string{"node n1 accepts no VM on network default/net (bridge br10): 0/3 nodes are available: 1 Insufficient bridge.network.kubevirt.io/br10"}, created: 2,
		}, {
			name: "no bridge, says the plugin",
			prepare: func(t *testing.T, x *world, w *checkup.Worksheet) {
				x.preflight["n1"] = func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodPending }
				x.warn(t, "Pod", checkup.ObjectName("run-uid", "vms", checkup.RolePreflight, "n1"), "FailedCreatePodSandBox",
					`Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "0123": plugin type="multus" name="multus-cni-network" failed (add): [ns/pod/uid:net]: error adding container to network "net": failed to find bridge br10`)
			},
			want: []string{"node n1 cannot attach a VM to network default/net (bridge br10)", ": [ns/pod/uid:net]: error adding container", "failed to find bridge br10"}, created: 2,
		}, {
			name: "Multus is not active",
			prepare: func(_ *testing.T, x *world, _ *checkup.Worksheet) {
				x.preflight["n1"] = func(pod *corev1.Pod) {
					delete(pod.Annotations, "k8s.v1.cni.cncf.io/network-status")
				}
			},
			want: []string{"node n1 did not attach a pod", "Multus is not active there", "has no annotation"}, created: 2,
		}, {
			name: "Multus attaches something else",
			prepare: func(_ *testing.T, x *world, _ *checkup.Worksheet) {
				x.preflight["n1"] = func(pod *corev1.Pod) {
					pod.Annotations["k8s.v1.cni.cncf.io/network-status"] = `[{"name":"cbr0","default":true}]`
				}
			},
			want: []string{"does not name default/net"}, created: 2,
		}, {
			name: "the preflight pod fails",
			prepare: func(_ *testing.T, x *world, _ *checkup.Worksheet) {
				x.preflight["n1"] = func(pod *corev1.Pod) {
					pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "disk pressure"}
				}
			},
			want: []string{"its preflight pod failed on node n1", "Evicted", "disk pressure"}, created: 2,
		}, {
			name: "the preflight pod's image cannot be pulled",
			prepare: func(_ *testing.T, x *world, _ *checkup.Worksheet) {
				x.preflight["n1"] = func(pod *corev1.Pod) {
					pod.Status = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "not found"}}}}}
				}
			},
			want: []string{"its preflight pod did not start on node n1", "ErrImagePull", "not found"}, created: 2,
		}, {
			name: "the preflight pod does not start",
			prepare: func(_ *testing.T, x *world, _ *checkup.Worksheet) {
				x.preflight["n1"] = func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodPending }
			},
			want: []string{"its preflight pod did not start on node n1: the kubelet of the node has not accepted the pod"}, created: 2,
		}, {
			name: "a plugin has no answer for the preflight pod",
			prepare: func(t *testing.T, x *world, _ *checkup.Worksheet) {
				x.preflight["n1"] = func(pod *corev1.Pod) {
					pod.Status = corev1.PodStatus{Phase: corev1.PodPending, StartTime: new(metav1.Now())}
				}
				x.warn(t, "Pod", checkup.ObjectName("run-uid", "vms", checkup.RolePreflight, "n1"), "FailedCreatePodSandBox",
					`error waiting for pod: Get "https://198.18.0.2:6443/": dial tcp: connection refused`)
			},
			want: []string{"node n1 cannot attach a VM to network default/net (bridge br10)", "connection refused"}, created: 2,
		}, {
			name: "admission takes no such VM",
			prepare: func(_ *testing.T, x *world, w *checkup.Worksheet) {
				x.virt.PrependReactor("create", "virtualmachineinstances", func(a k8stesting.Action) (bool, runtime.Object, error) {
					vmi := a.(k8stesting.CreateAction).GetObject().(*kubevirtv1.VirtualMachineInstance)
					if vmi.Name == x.nameOf(w, 0) {
						return true, nil, apierrors.NewBadRequest("admission webhook denied the request: too much memory")
					}
					return false, nil, nil
				})
			},
			want: []string{"it was not created", "admission webhook denied the request: too much memory"}, created: 3,
		}, {
			name: "pod security",
			prepare: func(_ *testing.T, x *world, _ *checkup.Worksheet) {
				x.becomes["n1"] = synchronized(`violates PodSecurity "restricted:latest": runAsNonRoot`)
			},
			want: []string{"KubeVirt created no pod for it", `violates PodSecurity "restricted:latest"`}, created: 4,
		}, {
			name: "the network's definition is deleted in the middle",
			prepare: func(_ *testing.T, x *world, _ *checkup.Worksheet) {
				x.becomes["n1"] = synchronized("failed to render launch manifest: Failed to locate network attachment definition default/net")
			},
			want: []string{"Failed to locate network attachment definition default/net"}, created: 4,
		}, {
			name: "the VM's pod is not scheduled",
			prepare: func(_ *testing.T, x *world, _ *checkup.Worksheet) {
				x.becomes["n1"] = pending
				x.launcher["n1"] = func(pod *corev1.Pod) {
					pod.Spec.NodeName = ""
					pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/3 nodes are available: 3 Insufficient devices.kubevirt.io/kvm."}}
				}
			},
			want: []string{"its pod is not scheduled", "Insufficient devices.kubevirt.io/kvm"}, created: 4,
		}, {
			name: "the guest's image cannot be pulled",
			prepare: func(_ *testing.T, x *world, _ *checkup.Worksheet) {
				x.becomes["n1"] = pending
				x.launcher["n1"] = func(pod *corev1.Pod) {
					pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "container-disk-binary"}, {Name: "kernel-boot", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}}
				}
			},
			want: []string{"container kernel-boot of its pod on node n1 does not start: ImagePullBackOff: no such image"}, created: 4,
		}, {
			name: "the VM's pod is not attached",
			prepare: func(t *testing.T, x *world, _ *checkup.Worksheet) {
				x.becomes["n1"], x.launcher["n1"] = pending, func(*corev1.Pod) {}
				x.warn(t, "Pod", "virt-launcher-n1", "FailedCreatePodSandBox", `Failed to create pod sandbox: rpc error: code = Unknown desc = cannot find a network-attachment-definition (net) in namespace (default)`)
			},
			want: []string{"node n1 cannot attach it to network default/net (bridge br10): cannot find a network-attachment-definition (net)"}, created: 4,
		}, {
			name: "a plugin has no answer yet",
			prepare: func(t *testing.T, x *world, _ *checkup.Worksheet) {
				x.becomes["n1"], x.launcher["n1"] = pending, func(*corev1.Pod) {}
				x.warn(t, "Pod", "virt-launcher-n1", "FailedCreatePodSandBox", `error waiting for pod: Get "https://198.18.0.2:6443/": context deadline exceeded`)
			},
			want: []string{"it did not start within 1m40s: node n1 cannot attach it to network default/net (bridge br10)", "context deadline exceeded"}, created: 4, slow: true,
		}, {
			name: "virt-handler cannot start it",
			prepare: func(t *testing.T, x *world, w *checkup.Worksheet) {
				x.becomes["n1"] = func(vmi *kubevirtv1.VirtualMachineInstance) { vmi.Status.Phase = kubevirtv1.Scheduled }
				x.launcher["n1"] = func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodRunning }
				x.warn(t, "VirtualMachineInstance", x.nameOf(w, 0), "SyncFailed", "server error. command SyncVMI failed: no /dev/kvm")
			},
			want: []string{"node n1 does not start it: SyncFailed", "no /dev/kvm"}, created: 4,
		}, {
			name: "virt-handler cannot start it, and at the deadline its warnings cannot be read",
			prepare: func(t *testing.T, x *world, w *checkup.Worksheet) {
				w.Timeouts.Setup = checkup.Duration(30 * time.Second)
				x.becomes["n1"] = func(vmi *kubevirtv1.VirtualMachineInstance) { vmi.Status.Phase = kubevirtv1.Scheduled }
				x.launcher["n1"] = func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodRunning }
				x.warn(t, "VirtualMachineInstance", x.nameOf(w, 0), "SyncFailed", "server error. command SyncVMI failed: no /dev/kvm")
				began := time.Now()
				x.kube.PrependReactor("list", "events", func(k8stesting.Action) (bool, runtime.Object, error) {
					return time.Since(began) > 20*time.Second, nil, context.DeadlineExceeded
				})
			},
			want: []string{"it did not start within 30s: node n1 does not start it: SyncFailed", "no /dev/kvm"}, created: 4, slow: true,
		}, {
			name: "the VM fails",
			prepare: func(_ *testing.T, x *world, _ *checkup.Worksheet) {
				x.becomes["n1"] = func(vmi *kubevirtv1.VirtualMachineInstance) {
					vmi.Status.Phase, vmi.Status.Reason = kubevirtv1.Failed, "Crashed"
				}
				x.launcher["n1"] = func(pod *corev1.Pod) {
					pod.Status.Phase = corev1.PodFailed
					pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "compute", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "qemu died"}}}}
				}
			},
			want: []string{"it failed on node n1: Crashed", "container compute of its pod ended with exit code 1 qemu died"}, created: 4,
		}, {
			name: "the VM is deleted while it boots",
			prepare: func(t *testing.T, x *world, _ *checkup.Worksheet) {
				x.guests["n1"].mute = true
				x.guests["n1"].dial = func() error {
					x.gone(t, "n1")
					return nil
				}
			},
			want: []string{"it was deleted before the guest started"}, created: 3,
		}, {
			name: "the guest never boots",
			prepare: func(_ *testing.T, x *world, w *checkup.Worksheet) {
				w.Timeouts.Setup = checkup.Duration(300 * time.Millisecond)
				x.guests["n1"].mute, x.guests["n1"].boot = true, "Kernel panic - not syncing: No working init found\r\n"
			},
			want: []string{"it did not start within 300ms", "Kernel panic - not syncing: No working init found"}, created: 4, slow: true,
		}, {
			name: "nothing happens",
			prepare: func(_ *testing.T, x *world, w *checkup.Worksheet) {
				w.Timeouts.Setup = checkup.Duration(300 * time.Millisecond)
				x.becomes["n1"] = pending
			},
			want: []string{"it did not start within 300ms: its phase is Scheduling: it has no pod"}, created: 4, slow: true,
		}, {
			name: "its pod does not become ready",
			prepare: func(_ *testing.T, x *world, w *checkup.Worksheet) {
				w.Timeouts.Setup = checkup.Duration(300 * time.Millisecond)
				x.becomes["n1"], x.launcher["n1"] = pending, func(pod *corev1.Pod) {
					pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{
						Name: "container-disk-binary", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
					}}
					pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
						Name: "compute", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}},
					}}
				}
			},
			want: []string{
				"it did not start within 300ms: its phase is Scheduling: its pod on n1",
				"container container-disk-binary runs but is not ready, container compute is not started (PodInitializing)",
			},
			created: 4, slow: true,
		},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			w := worksheet(t, 2)
			x := newWorld(t, w)
			t.Cleanup(x.end)
			tt.prepare(t, x, w)
			roster := rosterOf(w)
			began := time.Now()
			if err := x.Start(t.Context(), w, roster, nil); err != nil {
				t.Fatal(err)
			}
			cause := roster.Targets[0].Cause
			if cause == nil || cause.Stage != checkup.StageSetup {
				t.Fatalf("cause %v, want one of setup", cause)
			}
			for _, want := range tt.want {
				if !strings.Contains(cause.Message, want) {
					t.Errorf("cause %q, want %q", cause.Message, want)
				}
			}
			if took := time.Since(began); !tt.slow && took > time.Duration(w.Timeouts.Setup)*3/4 {
				t.Errorf("it took %s to find out", took)
			}
			// The other of the pair is up, or says why it was not waited for.
			if other := roster.Targets[1]; other.Pod == "" && (other.Cause == nil || !strings.Contains(other.Cause.Message, tt.want[0])) {
				t.Errorf("the other VM: %+v", other)
			}
			for _, i := range []int{2, 3} {
				if roster.Targets[i].Cause != nil || roster.Targets[i].Pod == "" {
					t.Errorf("VM %d: %+v, want it up", i, roster.Targets[i])
				}
			}
			if vmis, err := x.vmis().List(t.Context(), metav1.ListOptions{}); err != nil || len(vmis.Items) != tt.created {
				t.Errorf("%d VMs, %v; want %d", len(vmis.Items), err, tt.created)
			}
		})
	}
}

// TestStartFails: what concerns all VMs is an error.
func TestStartFails(t *testing.T) {
	refuse := func(c interface {
		PrependReactor(verb, resource string, reaction k8stesting.ReactionFunc)
	}, verb, resource string) {
		c.PrependReactor(verb, resource, func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, forbidden(resource) })
	}
	for _, tt := range []struct {
		name    string
		prepare func(x *world, w *checkup.Worksheet)
		want    string
	}{
		{"preflight pods", func(x *world, _ *checkup.Worksheet) { refuse(x.kube, "create", "pods") }, "none of 2 preflight pods could be created"},
		{"look at preflight pods", func(x *world, _ *checkup.Worksheet) { refuse(x.kube, "list", "pods") }, "read the state of preflight pods"},
		{"anchor", func(x *world, _ *checkup.Worksheet) { refuse(x.kube, "update", "configmaps") }, "write the owner of the VMs"},
		{"VMs", func(x *world, _ *checkup.Worksheet) { refuse(x.virt, "create", "virtualmachineinstances") }, "none of 2 VMs could be created"},
		{"look at VMs", func(x *world, _ *checkup.Worksheet) { refuse(x.virt, "list", "virtualmachineinstances") }, "read the state of the VMs"},
		{"memory", func(_ *world, w *checkup.Worksheet) { w.Guests.Guest.Memory = "much" }, "VM n1: guest.memory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := worksheet(t, 1)
			x := newWorld(t, w)
			tt.prepare(x, w)
			if err := x.Start(t.Context(), w, rosterOf(w), nil); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

// TestStartStopped: a run that is cancelled during boot ends at once.
func TestStartStopped(t *testing.T) {
	w := worksheet(t, 1)
	x := newWorld(t, w)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	for _, g := range x.guests {
		g.mute = true
		g.dial = func() error {
			cancel(errors.New("terminated"))
			return nil
		}
	}
	began := time.Now()
	if err := x.Start(ctx, w, rosterOf(w), nil); err == nil || !strings.Contains(err.Error(), "wait for VMs: terminated") {
		t.Errorf("%v, want that it was stopped", err)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("it took %s to stop", took)
	}
}

// TestNothingToStart: prerequisites that are missing for every pair leave the cluster
// alone.
func TestNothingToStart(t *testing.T) {
	w := worksheet(t, 1)
	x := newWorld(t, w)
	for i := range w.Sources {
		w.Sources[i].Cause = setupCause("KubeVirt is not installed")
	}
	roster := rosterOf(w)
	if err := x.Start(t.Context(), w, roster, nil); err != nil {
		t.Fatal(err)
	}
	if err := x.TakeOver(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	for _, e := range roster.Targets {
		if e.Cause == nil || e.Cause.Message != "KubeVirt is not installed" {
			t.Errorf("%+v, want the survey's cause", e)
		}
	}
	if a := append(x.kube.Actions(), x.virt.Actions()...); len(a) != 0 {
		t.Errorf("%v, want nothing asked of the cluster", a)
	}
}
