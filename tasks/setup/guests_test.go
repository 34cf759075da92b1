// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakediscovery "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	kubevirtv1 "kubevirt.io/api/core/v1"
	kubevirtfake "kubevirt.io/client-go/kubevirt/fake"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/console"
	"github.com/checkplan/checkplan/pkg/kiagnose"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/pkg/vmlatency"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

// vmTask is a setup task of a check of VMs, on a cluster with KubeVirt or without.
func vmTask(t *testing.T, kubeVirt bool) (*task.Task, *fake.Clientset, *kubevirtfake.Clientset, *strings.Builder) {
	t.Helper()
	tk, client, log := newTask(t, "n0", "n1")
	second := checkup.Duration(time.Second)
	tk.Check, tk.GuestImage = "vms", "registry.example/guest:v1"
	tk.PlanJSON = planOf(t, map[string]checkup.Check{"vms": {Spec: &vmlatency.Spec{
		Networks: []checkup.NetworkRef{{Name: "br10"}}, IPFamilies: checkup.IPFamilies, Duration: 5 * second, Interval: second / 5,
		Guest: checkup.Guest{Memory: "128Mi"}, Timeouts: checkup.Timeouts{Setup: 60 * second, Probe: 60 * second},
		Kiagnose: &checkup.ConfigMapRef{Name: "kiagnose"},
	}}})
	if err := client.Tracker().Add(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kiagnose", Namespace: "ns"}}); err != nil {
		t.Fatal(err)
	}
	client.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		pod := a.(k8stesting.CreateAction).GetObject().(*corev1.Pod)
		pod.Spec.NodeName, pod.Status.Phase = "n0", corev1.PodSucceeded
		pod.Annotations["k8s.v1.cni.cncf.io/network-status"] = `[{"name":"cbr0","default":true},{"name":"ns/br10"}]`
		return true, pod, client.Tracker().Create(a.GetResource(), pod, "ns")
	})
	kubevirts := schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "kubevirts"}
	networks := schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}
	kinds := map[schema.GroupVersionResource]string{kubevirts: "KubeVirtList", networks: "NetworkAttachmentDefinitionList"}
	objects := map[schema.GroupVersionResource]*unstructured.Unstructured{}
	for gvr, raw := range map[schema.GroupVersionResource]string{
		kubevirts: `{"apiVersion":"kubevirt.io/v1","kind":"KubeVirt","metadata":{"name":"kubevirt","namespace":"kubevirt"},"spec":{"configuration":{"developerConfiguration":{"useEmulation":true}}},
		  "status":{"phase":"Deployed","observedKubeVirtVersion":"v1.7.0","conditions":[{"type":"Available","status":"True"}]}}`,
		networks: `{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition","metadata":{"name":"br10","namespace":"ns"},"spec":{"config":"{\"type\":\"bridge\",\"bridge\":\"br10\"}"}}`,
	} {
		objects[gvr] = &unstructured.Unstructured{}
		if err := json.Unmarshal([]byte(raw), &objects[gvr].Object); err != nil {
			t.Fatal(err)
		}
	}
	dynamic := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
	for gvr, object := range objects {
		if err := dynamic.Tracker().Create(gvr, object, object.GetNamespace()); err != nil {
			t.Fatal(err)
		}
	}
	tk.Dynamic = dynamic
	if kubeVirt {
		client.Discovery().(*fakediscovery.FakeDiscovery).Resources = []*metav1.APIResourceList{
			{GroupVersion: "kubevirt.io/v1", APIResources: []metav1.APIResource{{Name: "kubevirts"}, {Name: "virtualmachineinstances"}}},
			{GroupVersion: "k8s.cni.cncf.io/v1", APIResources: []metav1.APIResource{{Name: "network-attachment-definitions"}}},
		}
	}
	for _, name := range []string{"n0", "n1"} {
		node, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		node.Labels["kubevirt.io/schedulable"] = "true"
		for _, device := range []corev1.ResourceName{"devices.kubevirt.io/kvm", "devices.kubevirt.io/tun", "devices.kubevirt.io/vhost-net"} {
			node.Status.Allocatable[device] = node.Status.Allocatable[corev1.ResourcePods]
		}
		if _, err := client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	virt := kubevirtfake.NewSimpleClientset()
	virt.PrependReactor("create", "virtualmachineinstances", func(a k8stesting.Action) (bool, runtime.Object, error) {
		vmi := a.(k8stesting.CreateAction).GetObject().(*kubevirtv1.VirtualMachineInstance)
		vmi.Status.Phase, vmi.Status.NodeName = kubevirtv1.Running, "n0"
		return false, nil, nil
	})
	tk.KubeVirt = virt.KubevirtV1()
	tk.Console = func(context.Context, string) (io.ReadWriteCloser, error) {
		host, own := net.Pipe()
		server := console.Server{State: func() console.State { return console.State{Version: "test"} }}
		go func() { _ = server.Serve(t.Context(), own) }()
		return host, nil
	}
	return tk, client, virt, log
}

// TestSetupOfVMs: they are started and answer, and kiagnose's users see that it began.
func TestSetupOfVMs(t *testing.T) {
	tk, client, virt, log := vmTask(t, true)
	if err := run(t.Context(), tk); err != nil {
		t.Fatal(err, log)
	}
	var frozen record.Frozen
	if err := tk.Store("day-2").Load(t.Context(), record.Worksheet("vms"), &frozen); err != nil {
		t.Fatal(err)
	}
	for i, e := range frozen.Roster.Targets {
		if e.Cause != nil || e.Node != "n0" || e.Addresses[checkup.IPv4] == "" || !strings.HasPrefix(e.Pod, "ns/vms-guest-") {
			t.Errorf("VM %d: %+v, want it up; log:\n%s", i, e, log)
		}
	}
	list, err := virt.KubevirtV1().VirtualMachineInstances("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 2 {
		t.Fatalf("%d VMs, %v; want two", len(list.Items), err)
	}
	if image := list.Items[0].Spec.Domain.Firmware.KernelBoot.Container.Image; image != "registry.example/guest:v1" {
		t.Errorf("image %s", image)
	}
	if p, err := tk.Store("").LoadProgress(t.Context(), "vms"); err != nil || p.String() != "2 of 2 VMs answer" {
		t.Errorf("progress %q, %v", p, err)
	}
	var said []checkup.Transcript
	if err := tk.Store("").Load(t.Context(), record.Consoles("vms", "setup"), &said); err != nil || len(said) != 2 {
		t.Errorf("transcripts %+v, %v; want two", said, err)
	}
	cm, err := client.CoreV1().ConfigMaps("ns").Get(t.Context(), "kiagnose", metav1.GetOptions{})
	if err != nil || cm.Data[kiagnose.KeyStartTimestamp] == "" {
		t.Errorf("%v, %v; want when it began", cm, err)
	}
	// Another run has other addresses.
	tk.RunUID = "uid-of-another"
	if err := run(t.Context(), tk); err != nil {
		t.Fatal(err, log)
	}
	var other record.Frozen
	if err := tk.Store("day-2").Load(t.Context(), record.Worksheet("vms"), &other); err != nil {
		t.Fatal(err)
	}
	if a, b := frozen.Worksheet.Sources[0].VM, other.Worksheet.Sources[0].VM; a.MAC == b.MAC || a.Addresses[checkup.IPv6] == b.Addresses[checkup.IPv6] {
		t.Errorf("%+v and %+v of two runs at once collide", a, b)
	}
}

// TestSetupWithoutKubeVirt: that is the cause of every pair, and nothing is created.
func TestSetupWithoutKubeVirt(t *testing.T) {
	tk, client, virt, log := vmTask(t, false)
	if err := run(t.Context(), tk); err != nil {
		t.Fatal(err, log)
	}
	if got := measurableOf(t, tk); got != "false" {
		t.Errorf("measurable is %q", got)
	}
	r := mustReport(t, tk)
	if r.Verdict != checkup.RunInconclusive || r.Counts.Unmeasured != r.Counts.Expected {
		t.Errorf("%s %+v, want nothing measured", r.Verdict, r.Counts)
	}
	for _, p := range r.Checks[0].Units {
		if p.Verdict != checkup.Unmeasured || !strings.Contains(p.Cause.Message, "KubeVirt") {
			t.Errorf("cause %s, want that there is no KubeVirt", p.Cause)
		}
	}
	for _, a := range append(client.Actions(), virt.Actions()...) {
		if a.GetVerb() == "create" && a.GetResource().Resource != "configmaps" {
			t.Errorf("created %s, want nothing", a.GetResource().Resource)
		}
	}
}

// TestSetupOfPodsOnly: a plan without VMs leaves KubeVirt's API alone.
func TestSetupOfPodsOnly(t *testing.T) {
	tk, _, virt, log := vmTask(t, true)
	tk.Check, tk.PlanJSON = "mesh", plan(t)
	tk.Kubernetes.(*fake.Clientset).PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		pod := a.(k8stesting.CreateAction).GetObject().(*corev1.Pod)
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}, PodIPs: []corev1.PodIP{{IP: "198.18.0.1"}}}
		return true, pod, tk.Kubernetes.(*fake.Clientset).Tracker().Create(a.GetResource(), pod, "ns")
	})
	if err := run(t.Context(), tk); err != nil {
		t.Fatal(err, log)
	}
	if a := virt.Actions(); len(a) != 0 {
		t.Errorf("%v, want nothing asked of KubeVirt", a)
	}
}
