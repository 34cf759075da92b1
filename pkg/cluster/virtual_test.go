// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	fakediscovery "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// virtualReader reads a cluster with these APIs ("kubevirt.io/v1 kubevirts virtualmachineinstances") and these objects
// in YAML. The requests in failing ("list kubevirts") return errors.
func virtualReader(t *testing.T, apis []string, failing map[string]error, objects ...string) Reader {
	t.Helper()
	client := fake.NewSimpleClientset()
	for _, api := range apis {
		words := strings.Fields(api)
		list := &metav1.APIResourceList{GroupVersion: words[0]}
		for _, name := range words[1:] {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: name})
		}
		d := client.Discovery().(*fakediscovery.FakeDiscovery)
		d.Resources = append(d.Resources, list)
	}
	d := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{kubeVirts: "KubeVirtList", networks: "NetworkAttachmentDefinitionList"})
	for _, text := range objects {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			t.Fatal(err)
		}
		resource := map[string]schema.GroupVersionResource{"KubeVirt": kubeVirts, "NetworkAttachmentDefinition": networks}[o.GetKind()]
		if err := d.Tracker().Create(resource, o, o.GetNamespace()); err != nil {
			t.Fatal(err)
		}
	}
	d.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		err := failing[a.GetVerb()+" "+a.GetResource().Resource]
		return err != nil, nil, err
	})
	return Reader{Kubernetes: client, Dynamic: d, Namespace: "checks"}
}

func refused(r schema.GroupVersionResource, name string) error {
	return apierrors.NewForbidden(r.GroupResource(), name, errors.New("user cannot"))
}

// TestKubeVirt distinguishes not installed, not ready, and forbidden to read.
func TestKubeVirt(t *testing.T) {
	const api = "kubevirt.io/v1 kubevirts virtualmachineinstances"
	object := func(status string) string {
		return "apiVersion: kubevirt.io/v1\nkind: KubeVirt\nmetadata: {name: kubevirt, namespace: kubevirt}\nspec: {configuration: {developerConfiguration: {useEmulation: true}}}\nstatus: " + status
	}
	for _, tt := range []struct {
		name    string
		apis    []string
		failing map[string]error
		object  string
		want    *KubeVirt
		err     string
	}{
		{name: "none", apis: []string{"apps/v1 deployments"}, want: &KubeVirt{}},
		{
			name: "deployed", apis: []string{api},
			object: object(`{phase: Deployed, observedKubeVirtVersion: v1.7.0, conditions: [{type: Available, status: "True"}, {type: Progressing, status: "False"}, {type: Degraded, status: "False"}]}`),
			want:   &KubeVirt{Served: true, Object: "kubevirt/kubevirt", Version: "v1.7.0", Phase: "Deployed", Ready: true, Emulation: true},
		},
		{
			name: "being updated", apis: []string{api},
			object: object(`{phase: Deployed, conditions: [{type: Available, status: "True"}, {type: Progressing, status: "True", reason: UpdateInProgress}]}`),
			want:   &KubeVirt{Served: true, Object: "kubevirt/kubevirt", Phase: "Deployed", Ready: true, Emulation: true},
		},
		{
			name: "being deployed", apis: []string{"kubevirt.io/v1 kubevirts"},
			object: object(`{phase: Deploying, conditions: [{type: Available, status: "False", reason: DeploymentInProgress, message: Deploying version v1.7.0}, {type: Progressing, status: "True", reason: DeploymentInProgress}]}`),
			want: &KubeVirt{
				Object: "kubevirt/kubevirt", Phase: "Deploying", Emulation: true,
				Message: "Available is False: DeploymentInProgress: Deploying version v1.7.0; Progressing is True: DeploymentInProgress",
			},
		},
		{
			name: "just made", apis: []string{api}, object: object(`{}`),
			want: &KubeVirt{Served: true, Object: "kubevirt/kubevirt", Emulation: true, Message: "it does not report that it is available"},
		},
		{
			name: "going", apis: []string{api},
			object: strings.Replace(object(`{phase: Deployed, conditions: [{type: Available, status: "True"}]}`), "{name: kubevirt,", "{deletionTimestamp: 2026-01-01T00:00:00Z, finalizers: [x], name: kubevirt,", 1),
			want:   &KubeVirt{Served: true, Object: "kubevirt/kubevirt", Phase: "Deployed", Emulation: true, Message: "it is being deleted"},
		},
		{
			name: "odd types", apis: []string{api}, object: object(`{phase: 3, conditions: [x, {type: Available, status: true}]}`),
			want: &KubeVirt{Served: true, Object: "kubevirt/kubevirt", Emulation: true, Message: "Available is"},
		},
		{name: "an operator alone", apis: []string{"kubevirt.io/v1 kubevirts"}, want: &KubeVirt{Message: "its operator is installed, but there is no KubeVirt object: create one"}},
		{
			name: "no right", apis: []string{api}, failing: map[string]error{"list kubevirts": refused(kubeVirts, "")},
			want: &KubeVirt{Served: true, Unread: `list kubevirts: missing the verb list on kubevirts.kubevirt.io in the whole cluster (a ClusterRole): kubevirts.kubevirt.io is forbidden: user cannot`},
		},
		{name: "no answer", apis: []string{api}, failing: map[string]error{"list kubevirts": errors.New("timeout")}, err: "list kubevirts: timeout"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var objects []string
			if tt.object != "" {
				objects = append(objects, tt.object)
			}
			got, err := virtualReader(t, tt.apis, tt.failing, objects...).KubeVirt(t.Context())
			if tt.err != "" || err != nil {
				if err == nil || err.Error() != tt.err {
					t.Fatalf("error %v, want %q", err, tt.err)
				}
				return
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	r := virtualReader(t, nil, nil)
	r.Kubernetes.(*fake.Clientset).PrependReactor("get", "resource", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("connection refused")
	})
	if _, err := r.KubeVirt(t.Context()); fmt.Sprint(err) != "discover the API kubevirt.io/v1: connection refused" {
		t.Errorf("no discovery: got error %v", err)
	}
	if _, err := r.MultusServed(t.Context()); fmt.Sprint(err) != "discover the API k8s.cni.cncf.io/v1: connection refused" {
		t.Errorf("no discovery: got error %v", err)
	}
}

func TestNetwork(t *testing.T) {
	object := func(spec string) string {
		return "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: br10, namespace: default, annotations: {k8s.v1.cni.cncf.io/resourceName: bridge.network.kubevirt.io/br10}}\nspec: " + spec
	}
	failing := func(err error) map[string]error {
		return map[string]error{"get network-attachment-definitions": err}
	}
	ref := checkup.NetworkRef{Namespace: "default", Name: "br10"}
	const marker = "bridge.network.kubevirt.io/br10"
	for _, tt := range []struct {
		name    string
		object  string
		ref     checkup.NetworkRef
		failing map[string]error
		want    Network
		err     string
	}{
		{"exists", object(`{config: '{"type": "bridge"}'}`), ref, nil, Network{Config: `{"type": "bridge"}`, Resource: marker}, ""},
		{"exists in the run's namespace", strings.Replace(object(`{config: x}`), "default", "checks", 1), checkup.NetworkRef{Name: "br10"}, nil, Network{Config: "x", Resource: marker}, ""},
		{"without a config", object(`{}`), ref, nil, Network{Resource: marker}, ""},
		{"with a config that is not a string", object(`{config: {type: bridge}}`), ref, nil, Network{Resource: marker, Unread: "read NetworkAttachmentDefinition default/br10: .spec.config accessor error: map[type:bridge] is of the type map[string]interface {}, expected string"}, ""},
		{"does not exist", object(`{}`), checkup.NetworkRef{Namespace: "shop", Name: "br10"}, nil, Network{Unread: "NetworkAttachmentDefinition br10 does not exist in namespace shop"}, ""},
		{"does not exist in the run's namespace", object(`{}`), checkup.NetworkRef{Name: "br20"}, nil, Network{Unread: "NetworkAttachmentDefinition br20 does not exist in namespace checks"}, ""},
		{
			"no right", object(`{}`), ref, failing(refused(networks, "br10")),
			Network{Unread: `read NetworkAttachmentDefinition default/br10: missing the verb get on network-attachment-definitions.k8s.cni.cncf.io in namespace default (a Role): network-attachment-definitions.k8s.cni.cncf.io "br10" is forbidden: user cannot`}, "",
		},
		{"no answer", object(`{}`), ref, failing(errors.New("timeout")), Network{}, "read NetworkAttachmentDefinition default/br10: timeout"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := virtualReader(t, nil, tt.failing, tt.object).Network(t.Context(), tt.ref)
			if fmt.Sprint(err) != tt.err && (err != nil || tt.err != "") {
				t.Fatalf("error %v, want %q", err, tt.err)
			}
			tt.want.NetworkRef = tt.ref
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for _, has := range []bool{true, false} {
		var apis []string
		if has {
			apis = []string{"k8s.cni.cncf.io/v1 network-attachment-definitions"}
		}
		if got, err := virtualReader(t, apis, nil).MultusServed(t.Context()); err != nil || got != has {
			t.Errorf("Multus is served: got %v (%v), want %v", got, err, has)
		}
	}
}

// TestAddressRanges: the ranges that are known with only the right to list the pods of the run's namespace, with more
// rights, and without.
func TestAddressRanges(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "checks", Name: "setup"}, Status: corev1.PodStatus{
		PodIPs: []corev1.PodIP{{IP: "10.244.3.7"}, {IP: "fd00:10:244::7"}}, HostIP: "192.168.7.3", HostIPs: []corev1.HostIP{{IP: "192.168.7.3"}},
	}}
	elsewhere := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "172.20.0.1"}}}}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}, Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.1"}}}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		Ports:      []discoveryv1.EndpointPort{{Port: new(int32(6443))}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}},
	}
	r, client := readerOf(t, pod, elsewhere, service, slice)
	ranges := func(want ...string) {
		t.Helper()
		got, err := r.AddressRanges(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, texts(got)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	ranges("10.96.0.0/12", "10.240.0.0/12", "192.0.0.0/12", "192.160.0.0/12", "fd00:10:244::/48")
	client.PrependReactor("get", "services", forbidden("services"))
	ranges("10.240.0.0/12", "192.160.0.0/12", "fd00:10:244::/48")
	client.PrependReactor("list", "pods", forbidden("pods"))
	ranges()
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("timeout") })
	if _, err := r.AddressRanges(t.Context()); fmt.Sprint(err) != "list the pods of namespace checks: timeout" {
		t.Errorf("no answer: got error %v", err)
	}
}

// withHost has the REST client of a real clientset, because a fake one has no address of the API server.
type withHost struct {
	*fake.Clientset
	real kubernetes.Interface
}

func (w withHost) Discovery() discovery.DiscoveryInterface { return w.real.Discovery() }

func texts(ranges []netip.Prefix) []string {
	var all []string
	for _, r := range ranges {
		all = append(all, r.String())
	}
	return all
}

func TestAddressRangesIncludeAPIServer(t *testing.T) {
	for host, want := range map[string]string{"https://10.96.0.1:443": "10.96.0.0/12", "https://[fd00:10:96::1]:443": "fd00:10:96::/48", "https://api.example.com": "", "https://127.0.0.1:6443": ""} {
		client, err := kubernetes.NewForConfig(&rest.Config{Host: host})
		if err != nil {
			t.Fatal(err)
		}
		r := Reader{Kubernetes: withHost{fake.NewSimpleClientset(), client}, Namespace: "checks"}
		got, err := r.AddressRanges(t.Context())
		if err != nil || strings.Join(texts(got), " ") != want {
			t.Errorf("%s: got %v (%v), want %q", host, got, err, want)
		}
	}
}

func TestRangeOf(t *testing.T) {
	for s, want := range map[string]string{
		"10.96.0.1": "10.96.0.0/12", "10.244.3.0/24": "10.240.0.0/12", "10.0.0.0/8": "10.0.0.0/8", "::ffff:10.96.0.1": "10.96.0.0/12",
		"fd00:10:96::1": "fd00:10:96::/48", "fd00::/16": "fd00::/16", "fe80::1%eth0": "fe80::/48", "node-1": "", "": "",
	} {
		p, ok := RangeOf(s)
		if ok != (want != "") || ok && p.String() != want {
			t.Errorf("%q: got %v %v, want %q", s, p, ok, want)
		}
	}
}

func TestNodesUnseen(t *testing.T) {
	s := &Snapshot{}
	s.AddUnseen("other", errors.New("x"))
	if s.NodesUnseen() {
		t.Error("got nodes unseen, want seen")
	}
	s.AddUnseen(Nodes, errors.New("x"))
	if !s.NodesUnseen() {
		t.Error("got nodes seen, want unseen")
	}
}
