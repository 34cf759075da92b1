// SPDX-License-Identifier: Apache-2.0

package vmlatency

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakediscovery "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/podmesh"
)

var (
	kubeVirts = schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "kubevirts"}
	nads      = schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}
)

// readerOf reads a cluster with KubeVirt, Multus, network default/br10 and a pod.
func readerOf(t *testing.T) (cluster.Reader, *fake.Clientset, *dynamicfake.FakeDynamicClient) {
	t.Helper()
	client := fake.NewSimpleClientset(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "checks", Name: "setup"}, Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.244.0.7"}}}})
	client.Discovery().(*fakediscovery.FakeDiscovery).Resources = []*metav1.APIResourceList{
		{GroupVersion: "kubevirt.io/v1", APIResources: []metav1.APIResource{{Name: "kubevirts"}, {Name: "virtualmachineinstances"}}},
		{GroupVersion: "k8s.cni.cncf.io/v1", APIResources: []metav1.APIResource{{Name: "network-attachment-definitions"}}},
	}
	d := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{kubeVirts: "KubeVirtList", nads: "NetworkAttachmentDefinitionList"})
	for _, o := range []struct {
		resource        schema.GroupVersionResource
		kind, namespace string
		name            string
		more            map[string]any
	}{
		{kubeVirts, "KubeVirt", "kubevirt", "kubevirt", map[string]any{"status": map[string]any{"phase": "Deployed", "conditions": []any{map[string]any{"type": "Available", "status": "True"}}}}},
		{nads, "NetworkAttachmentDefinition", "default", "br10", map[string]any{"spec": map[string]any{"config": `{"type": "bridge", "bridge": "br10"}`}}},
	} {
		object := &unstructured.Unstructured{Object: o.more}
		object.SetGroupVersionKind(o.resource.GroupVersion().WithKind(o.kind))
		object.SetNamespace(o.namespace)
		object.SetName(o.name)
		if err := d.Tracker().Create(o.resource, object, o.namespace); err != nil {
			t.Fatal(err)
		}
	}
	return cluster.Reader{Kubernetes: client, Dynamic: d, Namespace: "checks", Run: "uid"}, client, d
}

func TestSurvey(t *testing.T) {
	r, client, d := readerOf(t)
	plan := &checkup.Plan{Name: "p", Checks: map[string]checkup.Check{
		"a":    {Spec: vmCheck()},
		"b":    {Spec: vmCheck(func(v *Spec) { v.Networks = append(v.Networks, checkup.NetworkRef{Name: "own"}) })},
		"mesh": {Spec: &podmesh.Spec{}},
	}}
	got := &cluster.Snapshot{}
	if err := Survey(t.Context(), r, plan, got); err != nil {
		t.Fatal(err)
	}
	want := &cluster.Snapshot{
		KubeVirt: &cluster.KubeVirt{Served: true, Object: "kubevirt/kubevirt", Phase: "Deployed", Ready: true},
		Multus:   true,
		Networks: []cluster.Network{
			{NetworkRef: br10, Config: `{"type": "bridge", "bridge": "br10"}`},
			{NetworkRef: checkup.NetworkRef{Name: "own"}, Unread: "NetworkAttachmentDefinition own does not exist in namespace checks"},
		},
		Ranges: []netip.Prefix{netip.MustParsePrefix("10.240.0.0/12")},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	// What Expand makes of it.
	if w, _, err := Expand(plan, "a", got); err != nil || len(w.Sources) != 2 {
		t.Errorf("%v, %v", w, err)
	}

	// Another kind asks nothing.
	other := &cluster.Snapshot{}
	client.ClearActions()
	if err := Survey(t.Context(), r, &checkup.Plan{Checks: map[string]checkup.Check{"mesh": {Spec: &podmesh.Spec{}}}}, other); err != nil || len(client.Actions()) > 0 || other.KubeVirt != nil {
		t.Errorf("%v, asked %v", err, client.Actions())
	}

	// Without Multus, networks are not asked for: Kubernetes would say of the right
	// what it should say of the API.
	discovery := client.Discovery().(*fakediscovery.FakeDiscovery)
	had := discovery.Resources
	discovery.Resources = nil
	d.ClearActions()
	bare := &cluster.Snapshot{}
	if err := Survey(t.Context(), r, plan, bare); err != nil || bare.Multus || bare.KubeVirt == nil || bare.KubeVirt.Served || len(d.Actions()) > 0 {
		t.Errorf("%v, %+v, asked %v", err, bare, d.Actions())
	}
	discovery.Resources = had

	// Every problem is reported at once.
	d.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewInternalError(errors.New("etcd is away"))
	})
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("timeout") })
	err := Survey(t.Context(), r, plan, &cluster.Snapshot{})
	for _, want := range []string{"list kubevirts: ", "read NetworkAttachmentDefinition default/br10: ", "read NetworkAttachmentDefinition checks/own: ", "list the pods of namespace checks: timeout"} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("error %v\ndoes not say %q", err, want)
		}
	}
}

// TestSurveyUsesItsRights: what Survey asks for with a right of its own, a plan's
// account of setup has.
func TestSurveyUsesItsRights(t *testing.T) {
	r, client, d := readerOf(t)
	check := checkup.Check{Spec: vmCheck(func(v *Spec) { v.Networks = append(v.Networks, checkup.NetworkRef{Name: "own"}) })}
	if err := Survey(t.Context(), r, &checkup.Plan{Checks: map[string]checkup.Check{"a": check}}, &cluster.Snapshot{}); err != nil {
		t.Fatal(err)
	}
	everybody := []string{
		"list kubevirts",                     // ClusterRole kubevirt.io:default
		"get resource",                       // ClusterRole system:discovery
		"list pods in checks",                // every plan's setup
		"get services in default kubernetes", // tried
	}
	var got []string
	for _, a := range slices.Concat(d.Actions(), client.Actions()) {
		text := a.GetVerb() + " " + a.GetResource().Resource
		if a.GetNamespace() != "" {
			text += " in " + a.GetNamespace()
		}
		if get, ok := a.(clienttesting.GetAction); ok {
			text += " " + get.GetName()
		}
		if !slices.Contains(everybody, strings.TrimSpace(text)) {
			got = append(got, text)
		}
	}
	var want []string
	for _, right := range Rights(check) {
		if right.Resource == nads.Resource {
			namespace := right.Namespace
			if right.Scope == checkup.ScopeRun {
				namespace = r.Namespace
			}
			want = append(want, right.Verb+" "+right.Resource+" in "+namespace+" "+right.Names[0])
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-rights +asked):\n%s", diff)
	}
}

// TestRights: none in the whole cluster; those of the outcome in kiagnose's keys
// only where it is asked for; none to change a VM.
func TestRights(t *testing.T) {
	if got := Rights(checkup.Check{}); got != nil {
		t.Errorf("another kind: %v", got)
	}
	text := func(v *Spec) []string {
		var all []string
		for _, r := range Rights(checkup.Check{Spec: v}) {
			if r.Scope == checkup.ScopeCluster || r.Why == "" {
				t.Errorf("%+v", r)
			}
			all = append(all, strings.TrimSpace(fmt.Sprint(r.Phase, " ", place(r), ": ", r.Verb, " ", r.Resource, " ", strings.Join(r.Names, ","))))
		}
		slices.Sort(all)
		return all
	}
	want := []string{
		"conclude run: delete pods", "conclude run: delete virtualmachineinstances", "conclude run: get pods/log", "conclude run: list events", "conclude run: list virtualmachineinstances",
		"probe run: delete configmaps", "probe run: get virtualmachineinstances/console", "probe run: list events", "probe run: list pods", "probe run: list virtualmachineinstances",
		"setup default: get network-attachment-definitions br10",
		"setup run: create pods", "setup run: create virtualmachineinstances", "setup run: delete virtualmachineinstances", "setup run: get pods",
		"setup run: get virtualmachineinstances", "setup run: get virtualmachineinstances/console", "setup run: list events", "setup run: list virtualmachineinstances",
	}
	plain := text(vmCheck())
	if diff := cmp.Diff(want, plain); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	more := slices.DeleteFunc(text(vmCheck(func(v *Spec) { v.Kiagnose = &checkup.ConfigMapRef{Namespace: "kiagnose", Name: "config"} })), func(s string) bool { return slices.Contains(plain, s) })
	want = []string{"conclude kiagnose: get configmaps config", "conclude kiagnose: update configmaps config", "setup kiagnose: get configmaps config", "setup kiagnose: update configmaps config"}
	if diff := cmp.Diff(want, more); diff != "" {
		t.Errorf("kiagnose (-want +got):\n%s", diff)
	}
}

// place is the namespace in which a right holds.
func place(r checkup.Right) string {
	if r.Scope == checkup.ScopeRun {
		return "run"
	}
	return r.Namespace
}
