// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// vms is a worksheet of one pair of VMs, the first on n1 and the second on any other
// node, on a network of the run's namespace that asks for a resource.
func vms() *checkup.Worksheet {
	vm := &checkup.VM{Network: checkup.NetworkRef{Name: "br10"}, Bridge: "br10", Resource: "bridge.network.kubevirt.io/br10", Binding: checkup.BindingBridge}
	w := &checkup.Worksheet{
		Plan: "day-2", Check: "vms", Kind: "vmLatency",
		Sources:     []checkup.Endpoint{{Node: "n1", VM: vm}, {Label: "target", VM: vm}},
		Assignments: [][]int{{1}, {0}},
		Timeouts:    checkup.Timeouts{Setup: checkup.Duration(300 * time.Millisecond), Probe: checkup.Duration(time.Second)},
		Guests:      &checkup.GuestSheet{Guest: checkup.Guest{Memory: "128Mi"}},
	}
	w.Targets = w.Sources
	return w
}

// vmCluster is a cluster in which pods become what the function makes of them.
func vmCluster(becomes func(*corev1.Pod)) *cluster {
	c := newCluster()
	c.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		pod := a.(k8stesting.CreateAction).GetObject().(*corev1.Pod)
		becomes(pod)
		return true, pod, c.Tracker().Create(a.GetResource(), pod, a.GetNamespace())
	})
	return c
}

// attached is what becomes of a pod of which all is well.
func attached(pod *corev1.Pod) {
	pod.Spec.NodeName, pod.Status.Phase = "n1", corev1.PodSucceeded
	pod.Annotations[annotationNetworkStatus] = `[{"name":"cbr0","default":true},{"name":"ns/br10","interface":"net1"}]`
}

// TestPreflightPods: where VMs are to be, so are their preflight pods, and they ask
// for what VMs ask for.
func TestPreflightPods(t *testing.T) {
	f, _ := newFleet(t, newCluster())
	var pods []any
	for vm := range 2 {
		pod, err := f.preflight(vms(), vm)
		if err != nil {
			t.Fatal(err)
		}
		pods = append(pods, pod)
	}
	golden(t, "preflight.yaml", pods...)
	agents, responders, err := Pods(vms(), "ns", "agent:v1")
	if err != nil || agents[0] != nil || agents[1] != nil || responders[0] != nil || responders[1] != nil {
		t.Errorf("%v, %v, %v: VMs have neither agents nor responders", agents, responders, err)
	}
}

func TestPreflight(t *testing.T) {
	f, _ := newFleet(t, vmCluster(attached))
	for range 2 { // a retry of the task begins anew
		found, err := f.Preflight(t.Context(), vms(), []int{0, 1})
		if err != nil {
			t.Fatal(err)
		}
		for vm := range 2 {
			if found[vm] != (Attachment{Node: "n1"}) {
				t.Errorf("VM %d: %+v, want it on n1", vm, found[vm])
			}
		}
		if left, err := f.Left(t.Context()); err != nil || len(left) > 0 {
			t.Errorf("left %v, %v: a run that is cancelled later would leave them, too", left, err)
		}
	}
	if found, err := f.Preflight(t.Context(), vms(), nil); err != nil || len(found) != 0 {
		t.Errorf("%v, %v; want nothing", found, err)
	}
}

// TestPreflightLimitRange: a LimitRange that refuses a preflight pod's own requests or limits does not stop it. Without
// them, the LimitRange has defaults; only the network's resource is left. A namespace that refuses every pod is
// reported with its first words.
func TestPreflightLimitRange(t *testing.T) {
	for name, tt := range map[string]struct {
		refuses func(corev1.ResourceRequirements) string // empty: the pod is admitted
		want    string
	}{
		"minimum": {func(r corev1.ResourceRequirements) string {
			if memory, ok := r.Requests[corev1.ResourceMemory]; ok && memory.Value() < 100<<20 {
				return "minimum memory usage per Container is 100Mi, but request is " + memory.String()
			}
			return ""
		}, ""},
		"ratio": {func(r corev1.ResourceRequirements) string {
			if len(r.Limits) > 1 {
				return "cpu max limit to request ratio per Container is 2, but provided ratio is 10.000000"
			}
			return ""
		}, ""},
		"everything": {func(r corev1.ResourceRequirements) string {
			if len(r.Requests) > 1 {
				return "no pod here"
			}
			return "failed quota: must specify memory"
		}, "no pod here"},
	} {
		t.Run(name, func(t *testing.T) {
			c := vmCluster(attached)
			c.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
				pod := a.(k8stesting.CreateAction).GetObject().(*corev1.Pod)
				resources := pod.Spec.Containers[0].Resources
				for _, list := range []corev1.ResourceList{resources.Requests, resources.Limits} {
					if _, ok := list["bridge.network.kubevirt.io/br10"]; !ok {
						t.Errorf("resources %+v lack the network's", resources)
					}
				}
				if why := tt.refuses(resources); why != "" {
					return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), pod.Name, errors.New(why))
				}
				return false, nil, nil
			})
			f, _ := newFleet(t, c)
			found, err := f.Preflight(t.Context(), vms(), []int{0, 1})
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%v, want %q", err, tt.want)
				}
				return
			}
			if err != nil || found[0] != (Attachment{Node: "n1"}) {
				t.Errorf("%+v, %v; want it attached", found, err)
			}
		})
	}
}

// TestPreflightGoesWrong: what the cluster does to the pod of a VM without a node,
// which the VM on n1 does not suffer from.
func TestPreflightGoesWrong(t *testing.T) {
	for _, tt := range []struct {
		name    string
		becomes func(*corev1.Pod)
		prepare func(*cluster)
		want    string
	}{
		{"no node", func(pod *corev1.Pod) { pod.Status = unschedulable("0/2 nodes are available: 2 node(s) didn't match") }, nil,
			"no node accepts a VM on network br10 (bridge br10): 0/2 nodes are available"},
		{"nothing happens", func(pod *corev1.Pod) {}, nil, "its preflight pod did not start: the scheduler has not considered the pod"},
		{"no sense", func(pod *corev1.Pod) {
			attached(pod)
			pod.Annotations[annotationNetworkStatus] = "["
		}, nil, "is invalid"},
		{"not created", attached, func(c *cluster) {
			c.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
				if strings.Contains(a.(k8stesting.CreateAction).GetObject().(*corev1.Pod).Name, checkup.ObjectName("run-uid", "vms", checkup.RolePreflight, "target")) {
					return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("exceeded quota"))
				}
				return false, nil, nil
			})
		}, "its preflight pod was not created: create pod"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := vmCluster(func(pod *corev1.Pod) {
				attached(pod)
				if pod.Spec.Affinity.PodAntiAffinity != nil {
					pod.Spec.NodeName, pod.Status = "", corev1.PodStatus{Phase: corev1.PodPending}
					tt.becomes(pod)
				}
			})
			if tt.prepare != nil {
				tt.prepare(c)
			}
			f, _ := newFleet(t, c)
			found, err := f.Preflight(t.Context(), vms(), []int{0, 1})
			if err != nil {
				t.Fatal(err)
			}
			if found[0].Cause != nil || found[1].Cause == nil || !strings.Contains(found[1].Cause.Message, tt.want) {
				t.Errorf("%+v, %v; want %q of the second", found[0], found[1].Cause, tt.want)
			}
		})
	}
}

// TestPreflightStopped: it ends at once, and says why.
func TestPreflightStopped(t *testing.T) {
	f, _ := newFleet(t, vmCluster(func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodPending }))
	w := vms()
	w.Timeouts.Setup = checkup.Duration(time.Minute)
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { cancel(errors.New("terminated")) })
	if _, err := f.Preflight(ctx, w, []int{0, 1}); err == nil || !strings.Contains(err.Error(), "wait for preflight pods: terminated") {
		t.Errorf("%v, want that it was stopped", err)
	}
}

// TestPreflightNames: a node that does not exist, or has no bridge, is named in words
// of their own.
func TestPreflightNames(t *testing.T) {
	const preemption = " no new claims to deallocate, preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
	for _, tt := range []struct{ message, want string }{
		{"0/3 nodes are available: 3 node(s) didn't satisfy plugin(s) [NodeAffinity]." + preemption,
			`no node "n1" accepts VMs (no such node, or no label kubevirt.io/schedulable=true): 0/3 nodes are available: 3 node(s) didn't satisfy plugin(s) [NodeAffinity]`},
		{"0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]." + preemption,
			`no node "n1" accepts VMs (no such node, or no label kubevirt.io/schedulable=true): 0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]`},
		{"0/3 nodes are available: 1 Insufficient bridge.network.kubevirt.io/br10, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]." + preemption,
			"node n1 has no bridge br10: 0/3 nodes are available: 1 Insufficient bridge.network.kubevirt.io/br10, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]"},
		{"0/3 nodes are available: 1 node(s) were unschedulable, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]." + preemption,
			"node n1 accepts no VM on network br10 (bridge br10): 0/3 nodes are available: 1 node(s) were unschedulable, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]"},
	} {
		f, _ := newFleet(t, vmCluster(func(pod *corev1.Pod) { pod.Status = unschedulable(tt.message) }))
		found, err := f.Preflight(t.Context(), vms(), []int{0})
		if err != nil || found[0].Cause == nil || found[0].Cause.Message != tt.want {
			t.Errorf("%v, %v; want %q", found[0].Cause, err, tt.want)
		}
	}
}

// TestNetworkFailed: an old error of a plugin does not fail a pod whose network works
// now, nor does a missing answer.
func TestNetworkFailed(t *testing.T) {
	failing := func(message string) Warning { return Warning{"FailedCreatePodSandBox", message} }
	for _, tt := range []struct {
		event           Warning
		pod             corev1.PodStatus
		failed, refused bool
	}{
		{failing("no such bridge"), corev1.PodStatus{Phase: corev1.PodPending}, true, true},
		{failing(`Get "https://198.18.0.2:6443": context deadline exceeded`), corev1.PodStatus{Phase: corev1.PodPending}, true, false},
		{failing("dial tcp 198.18.0.2:6443: connect: connection refused"), corev1.PodStatus{Phase: corev1.PodPending}, true, false},
		{failing(`pods "p" is forbidden: User "system:node:n1" cannot get resource "pods" in API group "" in the namespace "ns": no relationship found between...`), corev1.PodStatus{Phase: corev1.PodPending}, true, false},
		{failing(`pods "p" is forbidden: User "multus" cannot get resource "pods"`), corev1.PodStatus{Phase: corev1.PodPending}, true, true},
		{failing("no such bridge"), corev1.PodStatus{Phase: corev1.PodRunning}, false, false},
		{failing("no such bridge"), corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}}, false, false},
		{Warning{"Unhealthy", "no such bridge"}, corev1.PodStatus{Phase: corev1.PodPending}, false, false},
	} {
		failed, refused := NetworkFailed(&corev1.Pod{Status: tt.pod}, tt.event)
		if failed != tt.failed || refused != tt.refused {
			t.Errorf("%s %+v: %v, %v", tt.event, tt.pod, failed, refused)
		}
	}
}

// TestRemoveIdle: a preflight pod whose kubelet tries on and on is not waited for.
func TestRemoveIdle(t *testing.T) {
	c := newCluster()
	for _, name := range []string{"idle", "began"} {
		pod := &corev1.Pod{ObjectMeta: meta(name, "run-uid", checkup.RolePreflight, "")}
		if name == "began" {
			pod.Status = ended(0, "Completed", "")
		}
		if err := c.Tracker().Add(pod); err != nil {
			t.Fatal(err)
		}
	}
	f, _ := newFleet(t, c)
	if left, err := f.Remove(t.Context()); err != nil || len(left) > 0 {
		t.Fatalf("left %v, %v", left, err)
	}
	for _, a := range c.Actions() {
		if d, ok := a.(k8stesting.DeleteActionImpl); ok && *d.DeleteOptions.GracePeriodSeconds != map[string]int64{"idle": 0, "began": grace}[d.Name] {
			t.Errorf("%s has %d s to end", d.Name, *d.DeleteOptions.GracePeriodSeconds)
		}
	}
}

func TestPluginWords(t *testing.T) {
	for event, want := range map[string]string{
		`FailedCreatePodSandBox: a: plugin type="multus" failed (add): [ns/pod:br10]: error adding: plugin type="ovs" failed (add): no bridge`: "no bridge",
		"FailedCreatePodSandBox: rpc error: code = Unknown desc = no such network":                                                             "no such network",
		"Unhealthy: not ready": "Unhealthy: not ready",
	} {
		if got := PluginWords(event); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
