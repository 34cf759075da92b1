// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// readerOf reads a cluster with these objects.
func readerOf(t *testing.T, objects ...runtime.Object) (Reader, *fake.Clientset) {
	t.Helper()
	client := fake.NewSimpleClientset(objects...)
	client.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{GitVersion: "v1.35.0"}
	return Reader{Kubernetes: client, Namespace: "checks"}, client
}

// forbidden answers requests as the API server does if a right is missing.
func forbidden(resource string) clienttesting.ReactionFunc {
	return func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("user cannot"))
	}
}

func TestSurvey(t *testing.T) {
	r, client := readerOf(t,
		&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "b", Labels: map[string]string{"x": "y"}, Annotations: map[string]string{"long": "and not kept"}},
			Spec: corev1.NodeSpec{
				PodCIDR: "10.244.1.0/24", Unschedulable: true,
				Taints: []corev1.Taint{{Key: "node.kubernetes.io/unschedulable", Effect: corev1.TaintEffectNoSchedule, TimeAdded: new(metav1.Now())}},
			},
			Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceCPU: resource.MustParse("2")},
				Conditions:  []corev1.NodeCondition{{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue}, {Type: corev1.NodeReady, Status: corev1.ConditionFalse}},
				Addresses:   []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "b"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.1"}},
			},
		},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
	)
	want := &Snapshot{
		APIVersion: checkup.APIVersion, Kind: SnapshotKind, ServerVersion: "v1.35.0",
		Nodes: []Node{
			{Name: "a", Ready: corev1.ConditionUnknown},
			{
				Name: "b", Labels: map[string]string{"x": "y"}, Unschedulable: true, Ready: corev1.ConditionFalse,
				Taints:   []corev1.Taint{{Key: "node.kubernetes.io/unschedulable", Effect: corev1.TaintEffectNoSchedule}},
				PodCIDRs: []string{"10.244.1.0/24"}, InternalIPs: []string{"192.0.2.1"},
				Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceCPU: resource.MustParse("2")},
			},
		},
	}
	got, err := Survey(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("survey (-want +got):\n%s", diff)
	}

	client.PrependReactor("list", "nodes", forbidden("nodes"))
	client.PrependReactor("get", "version", forbidden("version"))
	s, err := Survey(t.Context(), r)
	if want := "list nodes: missing the verb list on nodes in the whole cluster (a ClusterRole): nodes is forbidden: user cannot"; fmt.Sprint(err) != want || s == nil || s.ServerVersion != "" {
		t.Errorf("no rights: got %v, %v, want a snapshot without version and error %s", s, err, want)
	}
	for _, broken := range []struct{ verb, resource, want string }{
		{"list", "nodes", "list nodes: connection refused"},
		{"get", "version", "read the API server's version: connection refused"},
	} {
		r, client := readerOf(t)
		client.PrependReactor(broken.verb, broken.resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("connection refused")
		})
		if _, err := Survey(t.Context(), r); fmt.Sprint(err) != broken.want {
			t.Errorf("got error %v, want %s", err, broken.want)
		}
	}
}

func podOn(node, name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c"}}}}
	for _, change := range changes {
		change(p)
	}
	return p
}

func requests(list corev1.ResourceList) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = list }
}

// TestRequests: pods that have ended or are not scheduled are skipped; init containers, overhead and sidecars count as
// in the scheduler.
func TestRequests(t *testing.T) {
	quantities := func(pairs ...string) corev1.ResourceList {
		list := corev1.ResourceList{}
		for i := 0; i < len(pairs); i += 2 {
			list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
		}
		return list
	}
	port := func(p corev1.ContainerPort) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, p) }
	}
	r, client := readerOf(t,
		podOn("a", "one", requests(quantities("cpu", "250m", "memory", "64Mi", "example.com/gpu", "1")), port(corev1.ContainerPort{ContainerPort: 80, HostPort: 8080, Protocol: corev1.ProtocolTCP, HostIP: "0.0.0.0"}), port(corev1.ContainerPort{ContainerPort: 81})),
		podOn("a", "two", requests(quantities("cpu", "1", "memory", "1Gi")), port(corev1.ContainerPort{HostPort: 53, Protocol: corev1.ProtocolUDP, HostIP: "127.0.0.1"}), func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{
				{Name: "first", Resources: corev1.ResourceRequirements{Requests: quantities("cpu", "3")}},
				{Name: "sidecar", RestartPolicy: new(corev1.ContainerRestartPolicyAlways), Ports: []corev1.ContainerPort{{HostPort: 15000}}},
			}
			p.Spec.Overhead = quantities("cpu", "50m")
		}),
		podOn("a", "done", requests(quantities("cpu", "8")), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
		podOn("a", "failed", requests(quantities("cpu", "8")), func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
		podOn("", "pending", requests(quantities("cpu", "8"))),
		podOn("gone", "elsewhere", requests(quantities("cpu", "8"))),
	)
	s := &Snapshot{Nodes: []Node{{Name: "a"}, {Name: "b"}}}
	if err := r.Requests(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	want := []Node{
		{Name: "a", Requested: quantities("pods", "2", "cpu", "3300m", "memory", "1088Mi", "example.com/gpu", "1"), HostPorts: []HostPort{
			{Port: 53, Protocol: corev1.ProtocolUDP, HostIP: "127.0.0.1"}, {Port: 8080, Protocol: corev1.ProtocolTCP}, {Port: 15000, Protocol: corev1.ProtocolTCP},
		}},
		{Name: "b", Requested: quantities("pods", "0")},
	}
	if diff := cmp.Diff(want, s.Nodes); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	client.PrependReactor("list", "pods", forbidden("pods"))
	s = &Snapshot{Nodes: []Node{{Name: "a"}}}
	err := r.Requests(t.Context(), s)
	if want := "list the pods of all namespaces: missing the verb list on pods in the whole cluster (a ClusterRole): pods is forbidden: user cannot"; fmt.Sprint(err) != want || !apierrors.IsForbidden(err) {
		t.Errorf("no right: got error %v, want %s", err, want)
	}
	if s.Nodes[0].Requested != nil {
		t.Errorf("no right: got requested %v, want none", s.Nodes[0].Requested)
	}
}

func TestComponents(t *testing.T) {
	labels := map[string]string{"component": "etcd"}
	component := func(p *corev1.Pod) {
		p.Labels = labels
		p.Annotations = map[string]string{"kubeadm.kubernetes.io/etcd.advertise-client-urls": "https://192.0.2.1:2379", "secret": "no"}
		p.Spec.HostNetwork = true
		p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(3))}}
		p.Status = corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "192.0.2.1"}}, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	}
	leaving := podOn("a", "leaving", component)
	leaving.DeletionTimestamp, leaving.Finalizers = new(metav1.Now()), []string{"example/wait"}
	r, client := readerOf(t, podOn("a", "etcd-a", component), leaving,
		podOn("a", "ended", component, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), podOn("a", "other"))
	want := []Component{{
		Pod:         Pod{Name: "shop/etcd-a", Node: "a", IPs: []string{"192.0.2.1"}, Ready: true, HostNetwork: true},
		Labels:      labels,
		Annotations: map[string]string{"kubeadm.kubernetes.io/etcd.advertise-client-urls": "https://192.0.2.1:2379"},
		Tolerations: []checkup.Toleration{{Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(3))}},
	}}
	got, err := r.Components(t.Context(), "shop", "component=etcd", "kubeadm.kubernetes.io/etcd.advertise-client-urls")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("components (-want +got):\n%s", diff)
	}
	client.PrependReactor("list", "pods", forbidden("pods"))
	_, err = r.Pods(t.Context(), "", "component=etcd")
	if want := "list pods with labels component=etcd in namespace checks: missing the verb list on pods in namespace checks (a Role): pods is forbidden: user cannot"; fmt.Sprint(err) != want {
		t.Errorf("no right: got error %v, want %s", err, want)
	}
}

func TestService(t *testing.T) {
	slice := func(name string, endpoints []discoveryv1.Endpoint, ports ...discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "metrics", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "server"}},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints, Ports: ports,
		}
	}
	https := discoveryv1.EndpointPort{Name: new("https"), Port: new(int32(6443)), Protocol: new(corev1.ProtocolTCP)}
	pod := discoveryv1.Endpoint{
		Addresses: []string{"10.244.1.7"}, NodeName: new("a"), TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "metrics", Name: "server-1"},
		Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
	}
	r, client := readerOf(t,
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "metrics", Name: "server"}, Spec: corev1.ServiceSpec{
			ClusterIPs: []string{"10.96.0.9", "fd00::9"},
			Ports:      []corev1.ServicePort{{Name: "https", Port: 443}, {Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}},
		}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "metrics", Name: "headless"}, Spec: corev1.ServiceSpec{ClusterIPs: []string{"None"}}},
		slice("s1", []discoveryv1.Endpoint{pod, {Addresses: []string{"10.244.2.7"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}}}, https,
			discoveryv1.EndpointPort{Name: new("dns"), Port: new(int32(53)), Protocol: new(corev1.ProtocolUDP)}, discoveryv1.EndpointPort{Name: new("any")}),
		slice("s2", []discoveryv1.Endpoint{pod, {Addresses: []string{"fd00::7"}}, {Addresses: []string{"host.example"}}}, https),
	)
	want := &Service{Namespace: "metrics", Name: "server", ClusterIPs: []string{"10.96.0.9", "fd00::9"}, Ports: []ServicePort{{"https", 443}}, Endpoints: []ServiceEndpoint{
		{Address: "10.244.1.7", Family: checkup.IPv4, Port: 6443, PortName: "https", Node: "a", Pod: "metrics/server-1", Ready: true},
		{Address: "10.244.2.7", Family: checkup.IPv4, Port: 6443, PortName: "https"},
		{Address: "fd00::7", Family: checkup.IPv6, Port: 6443, PortName: "https", Ready: true},
	}}
	got, err := r.Service(t.Context(), "metrics", "server")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("service (-want +got):\n%s", diff)
	}
	if got, err := r.Service(t.Context(), "metrics", "headless"); err != nil || len(got.ClusterIPs)+len(got.Endpoints) != 0 {
		t.Errorf("headless: got %v, %v, want no addresses", got, err)
	}
	if _, err := r.Service(t.Context(), "metrics", "none"); !apierrors.IsNotFound(err) || err.Error() != `read service metrics/none: services "none" not found` {
		t.Errorf("missing service: got error %v, want not found", err)
	}
	client.PrependReactor("list", "endpointslices", forbidden("endpointslices"))
	if _, err := r.Service(t.Context(), "metrics", "server"); !apierrors.IsForbidden(err) {
		t.Errorf("no right to list endpoint slices: got error %v, want forbidden", err)
	}
}

func TestConfigMap(t *testing.T) {
	r, _ := readerOf(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kubeadm-config"}, Data: map[string]string{"a": "b"}})
	if data, err := r.ConfigMap(t.Context(), "kube-system", "kubeadm-config"); err != nil || data["a"] != "b" {
		t.Errorf("got %v, %v, want the data", data, err)
	}
	if _, err := r.ConfigMap(t.Context(), "kube-public", "cluster-info"); !apierrors.IsNotFound(err) {
		t.Errorf("missing object: got error %v, want not found", err)
	}
}

// TestSurveyPages: Survey reads a hundred nodes in pages.
func TestSurveyPages(t *testing.T) {
	r, client := readerOf(t)
	var continues []string
	client.PrependReactor("list", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		options := action.(clienttesting.ListActionImpl).ListOptions
		if options.Limit == 0 {
			return true, nil, errors.New("a list without a limit")
		}
		continues = append(continues, options.Continue)
		first := 0
		fmt.Sscan(options.Continue, &first)
		list := &corev1.NodeList{}
		for i := first; i < first+40 && i < 100; i++ {
			list.Items = append(list.Items, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%02d", i)}})
		}
		if first+40 < 100 {
			list.Continue = fmt.Sprint(first + 40)
		}
		return true, list, nil
	})
	s, err := Survey(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Nodes) != 100 || s.Nodes[99].Name != "node-99" {
		t.Errorf("got %d nodes, want 100 in order", len(s.Nodes))
	}
	if want := []string{"", "40", "80"}; !slices.Equal(continues, want) {
		t.Errorf("got requests with the continue tokens %q, want %q", continues, want)
	}
}
