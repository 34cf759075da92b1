// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	fakediscovery "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	kubevirtv1 "kubevirt.io/api/core/v1"
	kubevirtfake "kubevirt.io/client-go/kubevirt/fake"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/console"
	"github.com/checkplan/checkplan/pkg/kiagnose"
	"github.com/checkplan/checkplan/pkg/vmlatency"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

// virtual is a fake cluster with KubeVirt, Multus and the network default/br10, in
// which this is the pod of a Job. Preflight pods are attached, and VMs run as soon
// as they are created.
type virtual struct {
	*task.Task
	kube *fake.Clientset
	virt *kubevirtfake.Clientset

	mu  sync.Mutex // guards following
	log strings.Builder
	// delay of every answer in microseconds; 0 is that none comes.
	delay int64
	// booted is called when a console is connected to; nil: nothing.
	booted func()
}

func (v *virtual) Write(b []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.log.Write(b)
}

func newVirtual(t *testing.T, data map[string]string) *virtual {
	t.Helper()
	self := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "job-x", Namespace: "kiagnose", UID: "uid-of-job"}}
	self.Spec.Containers = []corev1.Container{{Image: "sidecar"}, {Image: "registry.test:5000/cp/probe:v9@sha256:00"}}
	v := &virtual{
		kube: fake.NewSimpleClientset(self, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cm", Namespace: "kiagnose"}, Data: data}),
		virt: kubevirtfake.NewSimpleClientset(), delay: 1000,
	}
	v.kube.Discovery().(*fakediscovery.FakeDiscovery).Resources = []*metav1.APIResourceList{
		{GroupVersion: "kubevirt.io/v1", APIResources: []metav1.APIResource{{Name: "kubevirts"}, {Name: "virtualmachineinstances"}}},
		{GroupVersion: "k8s.cni.cncf.io/v1", APIResources: []metav1.APIResource{{Name: "network-attachment-definitions"}}},
	}
	v.kube.PrependReactor("list", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("nodes"), "", errors.New("no right"))
	})
	v.kube.PrependReactor("create", "*", func(a k8stesting.Action) (bool, runtime.Object, error) {
		switch o := a.(k8stesting.CreateAction).GetObject().(type) {
		case *corev1.Pod:
			o.UID, o.Status.Phase = types.UID("uid-of-"+o.Name), corev1.PodSucceeded
			o.Annotations["k8s.v1.cni.cncf.io/network-status"] = `[{"name":"cbr0","interface":"eth0","default":true},{"name":"default/br10","interface":"net1"}]`
		case *corev1.ConfigMap:
			o.UID = types.UID("uid-of-" + o.Name)
		}
		return false, nil, nil
	})
	v.kube.PrependReactor("create", "selfsubjectaccessreviews", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, &authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}}, nil
	})
	v.virt.PrependReactor("create", "virtualmachineinstances", func(a k8stesting.Action) (bool, runtime.Object, error) {
		vmi := a.(k8stesting.CreateAction).GetObject().(*kubevirtv1.VirtualMachineInstance)
		vmi.UID = types.UID("uid-of-" + vmi.Name)
		vmi.Status.Phase, vmi.Status.NodeName = kubevirtv1.Running, "node-of-"+vmi.Name[len(vmi.Name)-2:]
		return false, nil, nil
	})
	kubeVirts := schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "kubevirts"}
	networks := schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}
	objects := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{kubeVirts: "KubeVirtList", networks: "NetworkAttachmentDefinitionList"})
	add := func(resource schema.GroupVersionResource, kind, namespace, name string, content map[string]any) {
		o := &unstructured.Unstructured{Object: content}
		o.SetGroupVersionKind(resource.GroupVersion().WithKind(kind))
		o.SetNamespace(namespace)
		o.SetName(name)
		if err := objects.Tracker().Create(resource, o, namespace); err != nil {
			t.Fatal(err)
		}
	}
	add(kubeVirts, "KubeVirt", "kubevirt", "kubevirt", map[string]any{"status": map[string]any{"phase": "Deployed", "conditions": []any{map[string]any{"type": "Available", "status": "True"}}}})
	add(networks, "NetworkAttachmentDefinition", "default", "br10", map[string]any{"spec": map[string]any{"config": `{"type": "bridge", "bridge": "br10"}`}})
	v.Task = &task.Task{
		Kubernetes: v.kube, KubeVirt: v.virt.KubevirtV1(), Dynamic: objects, Console: v.connect,
		Namespace: "kiagnose", PodName: "job-x", Stdout: v,
	}
	return v
}

// connect is the console of a guest in memory.
func (v *virtual) connect(context.Context, string) (io.ReadWriteCloser, error) {
	if v.booted != nil {
		v.booted()
	}
	host, own := net.Pipe()
	server := console.Server{
		State: func() console.State { return console.State{Version: "test"} },
		Run: func(_ context.Context, in io.Reader, out io.Writer) error {
			var o checkup.Order
			if err := json.NewDecoder(in).Decode(&o); err != nil {
				return err
			}
			for _, m := range v.answers(o) {
				b, err := json.Marshal(m)
				if err != nil {
					return err
				}
				if _, err := out.Write(append(b, '\n')); err != nil {
					return err
				}
			}
			return nil
		},
	}
	go func() {
		defer own.Close()
		_ = server.Serve(context.Background(), own) // until the other end is closed
	}()
	return host, nil
}

func (v *virtual) answers(o checkup.Order) []checkup.Message {
	said := []checkup.Message{{Start: &checkup.AgentStart{Source: o.Source, Version: "test", Pairs: len(o.IPFamilies)}}}
	for _, f := range o.IPFamilies {
		for _, name := range []string{"self", "closed"} {
			said = append(said, checkup.Message{Control: &checkup.Control{Family: f, Name: name, OK: true}})
		}
	}
	for _, f := range o.IPFamilies {
		p := o.Probes[0]
		observed := checkup.Observation{
			Pair: checkup.Pair{Source: o.Source, Target: o.Targets[0].Target, Family: f, Transport: p.Transport, Size: p.Sizes[0]},
			Sent: p.Count, Received: p.Count, RTTs: slices.Repeat([]int64{v.delay}, p.Count),
		}
		if v.delay == 0 {
			observed.Received, observed.RTTs = 0, nil
			observed.Failure = &checkup.Cause{Stage: checkup.StageEcho, Message: "no answer within 5s"}
		}
		said = append(said, checkup.Message{Observation: &observed})
	}
	return append(said, checkup.Message{End: &checkup.AgentEnd{Observations: len(o.IPFamilies)}})
}

// left are the VMs, pods and ConfigMaps that are there, but for the Job's own.
func (v *virtual) left(t *testing.T) []string {
	t.Helper()
	var names []string
	vmis, err := v.virt.KubevirtV1().VirtualMachineInstances("kiagnose").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, vmi := range vmis.Items {
		names = append(names, vmi.Name)
	}
	pods, err := v.kube.CoreV1().Pods("kiagnose").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods.Items {
		names = append(names, pod.Name)
	}
	cms, err := v.kube.CoreV1().ConfigMaps("kiagnose").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, cm := range cms.Items {
		names = append(names, cm.Name)
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "job-x" || name == "cm" })
}

func (v *virtual) data(t *testing.T) map[string]string {
	t.Helper()
	cm, err := v.kube.CoreV1().ConfigMaps("kiagnose").Get(t.Context(), "cm", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return cm.Data
}

func environment(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func spec(more ...string) map[string]string {
	data := map[string]string{
		"spec.timeout": "30s", "spec.param.networkAttachmentDefinitionNamespace": "default", "spec.param.networkAttachmentDefinitionName": "br10",
		"spec.param.sampleDurationSeconds": "1",
	}
	for i := 0; i < len(more); i += 2 {
		data[more[i]] = more[i+1]
	}
	return data
}

var byConfigMap = []string{"CONFIGMAP_NAMESPACE", "kiagnose", "CONFIGMAP_NAME", "cm"}

// TestCheckup: a checkup in one process, from its input to the end of its teardown.
func TestCheckup(t *testing.T) {
	for _, tt := range []struct {
		name    string
		data    map[string]string
		env     []string
		change  func(*virtual)
		want    map[string]string // keys of the ConfigMap; "" is that there is none
		log     string
		started bool // VMs were
	}{
		{
			name: "success", data: spec(kiagnose.KeyMinLatency, "an earlier run's"), env: byConfigMap, started: true,
			want: map[string]string{kiagnose.KeySucceeded: "true", kiagnose.KeyFailureReason: "", kiagnose.KeyMinLatency: "1000000", kiagnose.KeyMaxLatency: "1000000", kiagnose.KeyDuration: "1", "spec.timeout": "30s"},
			log:  "status.result.avgLatencyNanoSec: 1000000",
		},
		{
			name: "old spelling, over the limit", data: spec("spec.param.max_desired_latency_milliseconds", "200"), env: byConfigMap, started: true,
			change: func(v *virtual) { v.delay = 400_000 },
			want:   map[string]string{kiagnose.KeySucceeded: "false", kiagnose.KeyFailureReason: `run: actual max latency "400ms" is greater than desired "200ms"`, kiagnose.KeyMaxLatency: "400000000"},
			log:    "warning: spec.param.max_desired_latency_milliseconds: is deprecated",
		},
		{
			name: "no connectivity", data: spec(), env: byConfigMap, started: true,
			change: func(v *virtual) { v.delay = 0 },
			want:   map[string]string{kiagnose.KeySucceeded: "false", kiagnose.KeyFailureReason: "run: no connectivity - 100% packet loss", kiagnose.KeyMaxLatency: "", kiagnose.KeyLoss: "100"},
			log:    "--- VM ",
		},
		{
			name: "by variables, with a ConfigMap for the outcome", started: true,
			env: []string{
				"NETWORK_ATTACHMENT_DEFINITION_NAMESPACE", "default", "NETWORK_ATTACHMENT_DEFINITION_NAME", "br10", "SAMPLE_DURATION_SECONDS", "1",
				"RESULT_CONFIGMAP_NAMESPACE", "kiagnose", "RESULT_CONFIGMAP_NAME", "cm",
			},
			want: map[string]string{kiagnose.KeySucceeded: "true"},
		},
		{
			name: "bad input", data: spec("spec.param.sourceNode", "n1", "spec.param.sampleDurationSeconds", "-1"), env: byConfigMap,
			want: map[string]string{kiagnose.KeySucceeded: "false", kiagnose.KeyMaxLatency: "",
				kiagnose.KeyFailureReason: `setup: spec.param.sampleDurationSeconds: "-1": want a whole number of seconds from 1 to 86400; spec.param.sourceNode: illegal source and target nodes combination`},
			log: "inconclusive",
		},
		{
			name: "no input", env: byConfigMap[2:],
			want: map[string]string{kiagnose.KeySucceeded: "false", kiagnose.KeyFailureReason: "setup: spec.param.networkAttachmentDefinitionName: is missing"},
		},
		{
			name: "bad variables", env: append([]string{"SOURCE_NODE", "a"}, byConfigMap...),
			want: map[string]string{kiagnose.KeyFailureReason: "setup: NETWORK_ATTACHMENT_DEFINITION_NAME: is missing"},
		},
		{
			name: "a prerequisite is not met", data: spec("spec.param.networkAttachmentDefinitionName", "br99"), env: byConfigMap,
			want: map[string]string{kiagnose.KeySucceeded: "false", kiagnose.KeyFailureReason: "setup: NetworkAttachmentDefinition br99 does not exist in namespace default", kiagnose.KeySourceNode: ""},
		},
		{
			name: "an image that cannot be determined", data: spec(), env: byConfigMap,
			change: func(v *virtual) { v.PodName = "other" },
			want:   map[string]string{kiagnose.KeyFailureReason: "setup: read the pod of this process: pods \"other\" not found; set the environment variables POD_NAME and POD_UID, AGENT_IMAGE and GUEST_IMAGE"},
		},
		{
			name: "VMs that cannot be removed", data: spec("spec.timeout", "30s"), env: byConfigMap, started: true,
			change: func(v *virtual) {
				v.virt.PrependReactor("delete", "virtualmachineinstances", func(k8stesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "virtualmachineinstances"}, "", errors.New("no right"))
				})
			},
			want: map[string]string{kiagnose.KeySucceeded: "false", kiagnose.KeyFailureReason: "teardown: left behind: virtualmachineinstance/", kiagnose.KeyMinLatency: "1000000"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := newVirtual(t, tt.data)
			if tt.change != nil {
				tt.change(v)
			}
			err := runCheckup(t.Context(), v.Task, environment(tt.env...))
			if want := tt.want[kiagnose.KeySucceeded] == "true"; (err == nil) != want || err != nil && !errors.Is(err, task.ErrSaid) {
				t.Errorf("%v; log:\n%s", err, &v.log)
			}
			data := v.data(t)
			for key, want := range tt.want {
				if got, ok := data[key]; ok && want == "" && key != kiagnose.KeyFailureReason || !strings.HasPrefix(got, want) {
					t.Errorf("%s is %q, want %q", key, got, want)
				}
			}
			if data[kiagnose.KeyCompletionTimestamp] == "" || data[kiagnose.KeyStartTimestamp] == "" {
				t.Errorf("no time of start or end: %v", data)
			}
			if !strings.Contains(v.log.String(), tt.log) || !strings.Contains(v.log.String(), "status.succeeded: ") {
				t.Errorf("the log does not say %q:\n%s", tt.log, &v.log)
			}
			started := slices.ContainsFunc(v.virt.Actions(), func(a k8stesting.Action) bool { return a.Matches("create", "virtualmachineinstances") })
			if started != tt.started {
				t.Errorf("VMs were started: %v", started)
			}
			if left := v.left(t); len(left) > 0 && !strings.HasPrefix(tt.want[kiagnose.KeyFailureReason], "teardown: ") {
				t.Errorf("left behind: %v", left)
			}
			for _, a := range v.virt.Actions() {
				if create, ok := a.(k8stesting.CreateAction); ok {
					vmi := create.GetObject().(*kubevirtv1.VirtualMachineInstance)
					if image := vmi.Spec.Domain.Firmware.KernelBoot.Container.Image; image != "registry.test:5000/cp/guest:v9" || vmi.Labels[checkup.LabelRun] != "uid-of-job" {
						t.Errorf("image %s, labels %v", image, vmi.Labels)
					}
				}
			}
		})
	}
}

// TestCheckupStopped: SIGTERM while VMs boot, or while they are waited for, removes
// them and is reported.
func TestCheckupStopped(t *testing.T) {
	v := newVirtual(t, spec())
	ctx, cancel := context.WithCancel(t.Context())
	v.booted = cancel
	if err := runCheckup(ctx, v.Task, environment(byConfigMap...)); !errors.Is(err, task.ErrSaid) {
		t.Errorf("%v; log:\n%s", err, &v.log)
	}
	data := v.data(t)
	if data[kiagnose.KeySucceeded] != "false" || !strings.HasPrefix(data[kiagnose.KeyFailureReason], "setup: wait for VMs: ") {
		t.Errorf("%v", data)
	}
	if left := v.left(t); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestTwoConfigMaps: with the variables of both releases, the parameters are read from the ConfigMap of the new ones,
// and the outcome is written to that of the old ones.
func TestTwoConfigMaps(t *testing.T) {
	v := newVirtual(t, spec())
	configMaps := v.Kubernetes.CoreV1().ConfigMaps("kiagnose")
	outcome := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "outcome"}}
	if _, err := configMaps.Create(t.Context(), outcome, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	env := append([]string{"RESULT_CONFIGMAP_NAMESPACE", "kiagnose", "RESULT_CONFIGMAP_NAME", "outcome"}, byConfigMap...)
	if err := runCheckup(t.Context(), v.Task, environment(env...)); err != nil {
		t.Errorf("%v; log:\n%s", err, &v.log)
	}
	outcome, err := configMaps.Get(t.Context(), "outcome", metav1.GetOptions{})
	if err != nil || outcome.Data[kiagnose.KeySucceeded] != "true" {
		t.Errorf("outcome %v (%v)", outcome.Data, err)
	}
	if got, ok := v.data(t)[kiagnose.KeySucceeded]; ok {
		t.Errorf("the ConfigMap with the parameters has an outcome, %q", got)
	}
}

// TestOutcomeIsPrinted: without a ConfigMap, the outcome is printed; with one that is not
// there, nothing is begun.
func TestOutcomeIsPrinted(t *testing.T) {
	v := newVirtual(t, nil)
	params := []string{"NETWORK_ATTACHMENT_DEFINITION_NAMESPACE", "default", "NETWORK_ATTACHMENT_DEFINITION_NAME", "br10", "SAMPLE_DURATION_SECONDS", "1"}
	if err := runCheckup(t.Context(), v.Task, environment(params...)); err != nil || !strings.Contains(v.log.String(), "status.succeeded: true\n") {
		t.Errorf("%v; log:\n%s", err, &v.log)
	}
	if len(v.data(t)) > 0 {
		t.Errorf("a ConfigMap that nobody named: %v", v.data(t))
	}
	v = newVirtual(t, nil)
	err := runCheckup(t.Context(), v.Task, environment(append(params, "RESULT_CONFIGMAP_NAME", "gone")...))
	if !apierrors.IsNotFound(err) || len(v.virt.Actions()) > 0 {
		t.Errorf("%v, and did %v", err, v.virt.Actions())
	}
}

func TestIsCheckup(t *testing.T) {
	for _, tt := range []struct {
		env  []string
		want bool
	}{
		{nil, true},
		{[]string{"RUN_UID", "u", "CONFIGMAP_NAME", "cm"}, false},
		{byConfigMap, true},
		{[]string{"RESULT_CONFIGMAP_NAME", "cm"}, true},
		{[]string{"TARGET_NODE", "n"}, true},
		{[]string{"NETWORK_ATTACHMENT_DEFINITION_NAME", "br10"}, true},
		{[]string{"CONFIGMAP_NAMESPACE", "ns"}, true},
	} {
		if got := isCheckup(environment(tt.env...)); got != tt.want {
			t.Errorf("%v: %v", tt.env, got)
		}
	}
}

func TestSibling(t *testing.T) {
	for image, want := range map[string]string{
		"ghcr.io/checkplan/checkplan/probe:v1": "ghcr.io/checkplan/checkplan/guest:v1", "probe:v1": "guest:v1", "r:5/probe:a@sha256:0": "r:5/guest:a",
		"r/probe@sha256:0": "", "r/probe": "", "r:5/probe": "", "r/other:v1": "", "": "",
	} {
		if got := sibling(image, "guest"); got != want {
			t.Errorf("%s: %q, want %q", image, got, want)
		}
	}
}

// TestSelf: an image that is needed, and known neither from the environment nor from the pod, is an error. Agents are
// started as preflight pods only.
func TestSelf(t *testing.T) {
	for _, tt := range []struct {
		image, agent, guest string
		pods                bool
		want                [2]string // images of agent and guest; empty: an error
	}{
		{image: "r/probe:v1", pods: true, want: [2]string{"r/agent:v1", "r/guest:v1"}},
		{image: "r/probe:v1", agent: "a", guest: "g", pods: true, want: [2]string{"a", "g"}},
		{image: "r/other:v1", agent: "a", pods: true},
		{image: "r/other:v1", guest: "g", pods: true},
		{image: "r/other:v1", guest: "g", want: [2]string{"", "g"}},
		{image: "r/other:v1", agent: "a"},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: tt.image}}}}
		pod.Namespace, pod.Name, pod.UID = "kiagnose", "job-x", "uid"
		tk := &task.Task{Kubernetes: fake.NewSimpleClientset(pod), Namespace: "kiagnose", PodName: "job-x", AgentImage: tt.agent, GuestImage: tt.guest}
		err := self(t.Context(), tk, tt.pods)
		if tt.want == [2]string{} {
			if err == nil {
				t.Errorf("%+v: no error", tt)
			}
			continue
		}
		if err != nil || tk.RunUID != "uid" || [2]string{tk.AgentImage, tk.GuestImage} != tt.want {
			t.Errorf("%+v: run %s, images %s and %s, %v", tt, tk.RunUID, tk.AgentImage, tk.GuestImage, err)
		}
	}
}

// TestManifest: the Job of the document has the rights that a checkup needs or uses, and no others; it has kiagnose's
// label, as its ConfigMap has; and it is a checkup.
func TestManifest(t *testing.T) {
	b, err := os.ReadFile("../../docs/kiagnose.md")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	var job batchv1.Job
	for i, block := range strings.Split(string(b), "```yaml\n") {
		block, _, _ = strings.Cut(block, "```")
		for _, doc := range strings.Split(block, "\n---\n") {
			switch {
			case i == 0:
			case strings.Contains(doc, "kind: Role\n"):
				var role rbacv1.Role
				if err := yaml.UnmarshalStrict([]byte(doc), &role); err != nil {
					t.Fatal(err)
				}
				for _, r := range role.Rules {
					for _, verb := range r.Verbs {
						have[role.Namespace+" "+r.APIGroups[0]+" "+r.Resources[0]+" "+verb] = true
					}
				}
			case strings.Contains(doc, "kind: Job\n"):
				if err := yaml.UnmarshalStrict([]byte(doc), &job); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	want := map[string]bool{}
	check, _, _ := kiagnose.FromData(spec())
	cm := kiagnose.ConfigMap{Namespace: "kiagnose", Name: "vm-latency"}
	for _, r := range slices.Concat(required("kiagnose", cm, cm), optional("kiagnose"), vmlatency.NetworkRights(check)) {
		want[r.Namespace+" "+r.Group+" "+r.Resource+" "+r.Verb] = true
	}
	for right := range maps.Keys(want) {
		if !have[right] {
			t.Errorf("the document's roles lack %q", right)
		}
	}
	for right := range maps.Keys(have) {
		if !want[right] {
			t.Errorf("the document's roles have %q, which nothing needs", right)
		}
	}
	if label := kiagnose.LabelCheckupType + ": " + kiagnose.CheckupType + "\n"; strings.Count(string(b), label) != 2 {
		t.Errorf("the label of Job and ConfigMap, %q, occurs %d times", label, strings.Count(string(b), label))
	}
	pod := job.Spec.Template.Spec
	if len(pod.Containers) != 1 || sibling(pod.Containers[0].Image, "guest") == "" || *pod.TerminationGracePeriodSeconds < int64((removeTime+keepTime).Seconds()) {
		t.Errorf("Job %+v", pod)
	}
	var env []string
	for _, e := range pod.Containers[0].Env {
		env = append(env, e.Name, e.Value)
	}
	if !isCheckup(environment(env...)) {
		t.Errorf("environment %v is not a checkup's", env)
	}
}
