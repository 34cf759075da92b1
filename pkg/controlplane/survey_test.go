// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
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
	fakediscovery "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/podmesh"
)

// apiserver is an API server with objects, whose requests are kept.
type apiserver struct {
	reader  cluster.Reader
	typed   *fake.Clientset
	dynamic *dynamicfake.FakeDynamicClient
}

// serve makes an API server with objects, those of YAML documents.
func serve(t *testing.T, openshift bool, objects ...any) *apiserver {
	t.Helper()
	var typed, untyped []runtime.Object
	for _, o := range objects {
		switch o := o.(type) {
		case runtime.Object:
			typed = append(typed, o)
		case string:
			for document := range strings.SplitSeq(o, "\n---\n") {
				object := &unstructured.Unstructured{}
				encoded, err := yaml.YAMLToJSON([]byte(document))
				if err == nil {
					err = object.UnmarshalJSON(encoded)
				}
				if err != nil {
					t.Fatalf("%v:\n%s", err, document)
				}
				untyped = append(untyped, object)
			}
		}
	}
	a := &apiserver{
		typed: fake.NewSimpleClientset(typed...),
		dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
			apiServices: "APIServiceList", infrastructures: "InfrastructureList",
		}, untyped...),
	}
	if openshift {
		a.typed.Discovery().(*fakediscovery.FakeDiscovery).Resources = []*metav1.APIResourceList{{
			GroupVersion: "config.openshift.io/v1", APIResources: []metav1.APIResource{{Name: "infrastructures", Kind: "Infrastructure"}},
		}}
	}
	a.reader = cluster.Reader{Kubernetes: a.typed, Dynamic: a.dynamic, Namespace: "checks"}
	return a
}

// fail lets requests fail; resource is as in a rule of RBAC.
func (a *apiserver) fail(verb, resource, namespace string, err error) {
	react := func(action clienttesting.Action) (bool, runtime.Object, error) {
		if namespace != "" && action.GetNamespace() != namespace {
			return false, nil, nil
		}
		return true, nil, err
	}
	a.typed.PrependReactor(verb, resource, react)
	a.dynamic.PrependReactor(verb, resource, react)
}

func (a *apiserver) forbid(verb, resource, namespace string) {
	a.fail(verb, resource, namespace, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("no such right")))
}

func (a *apiserver) survey(p *checkup.Plan) (*cluster.Snapshot, error) {
	s, err := cluster.Survey(context.Background(), a.reader)
	if err != nil {
		return nil, err
	}
	return s, Survey(context.Background(), a.reader, p, s)
}

func meta(namespace, name string, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}
}

func nodeObject(name, ip string, controlPlane bool) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: meta("", name, map[string]string{"kubernetes.io/os": "linux"}),
		Status: corev1.NodeStatus{
			Conditions:      []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: ip}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
		},
	}
	if controlPlane {
		n.Spec.Taints = []corev1.Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}}
	}
	return n
}

func podObject(namespace, name, node, ip string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: meta(namespace, name, labels),
		Spec:       corev1.PodSpec{NodeName: node, Tolerations: []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: ip}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
}

func staticPodObject(namespace, name, node, ip string, labels, annotations map[string]string) *corev1.Pod {
	p := podObject(namespace, name, node, ip, labels)
	p.Annotations = map[string]string{
		"kubernetes.io/config.hash": "0123456789abcdef", "kubernetes.io/config.mirror": "0123456789abcdef",
		"kubernetes.io/config.source": "file",
	}
	for k, v := range annotations {
		p.Annotations[k] = v
	}
	p.Spec.HostNetwork = true
	p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}}
	return p
}

func serviceObject(namespace, name, ip string, selector map[string]string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: meta(namespace, name, nil),
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip}, Selector: selector, Ports: ports},
	}
}

// sliceObject has endpoints "address node pod", of which node and pod may be "-".
func sliceObject(namespace, service, portName string, port int32, endpoints ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  meta(namespace, fmt.Sprintf("%s-%d", service, port), map[string]string{discoveryv1.LabelServiceName: service}),
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: new(corev1.ProtocolTCP)}},
	}
	for _, e := range endpoints {
		fields := strings.Fields(e)
		endpoint := discoveryv1.Endpoint{Addresses: fields[:1]}
		if fields[1] != "-" {
			endpoint.NodeName = &fields[1]
		}
		if fields[2] != "-" {
			endpoint.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: fields[2]}
		}
		s.Endpoints = append(s.Endpoints, endpoint)
	}
	return s
}

func apiServiceYAML(name, namespace, service string) string {
	return fmt.Sprintf(`
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: %s}
spec:
  group: %[1]s
  service: {namespace: %s, name: %s, port: 443}
status:
  conditions: [{type: Available, status: "True"}]`, name, namespace, service)
}

const localAPIService = `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.apps}
spec: {group: apps, version: v1}
status:
  conditions: [{type: Available, status: "True", reason: Local}]`

// kubeadmObjects are those of a cluster with two control planes and a worker.
func kubeadmObjects() []any {
	https := corev1.ServicePort{Name: "https", Port: 443, Protocol: corev1.ProtocolTCP}
	objects := []any{
		nodeObject("worker", "192.0.2.20", false),
		podObject("kube-system", "metrics-server-0", "worker", "10.244.1.5", map[string]string{"k8s-app": "metrics-server"}),
		podObject("kube-system", "other", "worker", "10.244.1.6", map[string]string{"k8s-app": "other"}),
		serviceObject("default", "kubernetes", "10.96.0.1", nil, https),
		serviceObject("kube-system", "metrics-server", "10.96.0.50", map[string]string{"k8s-app": "metrics-server"}, https),
		sliceObject("default", "kubernetes", "https", 6443, "192.0.2.11 - -", "192.0.2.12 - -"),
		sliceObject("kube-system", "metrics-server", "https", 10250, "10.244.1.5 worker metrics-server-0"),
		apiServiceYAML("v1beta1.metrics.k8s.io", "kube-system", "metrics-server"), localAPIService,
		&corev1.ConfigMap{ObjectMeta: meta("kube-system", "kubeadm-config", nil), Data: map[string]string{"ClusterConfiguration": `
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
controlPlaneEndpoint: api.example.com:6443
networking: {serviceSubnet: 10.96.0.0/16}
`}},
		&corev1.ConfigMap{ObjectMeta: meta("kube-public", "cluster-info", nil), Data: map[string]string{"kubeconfig": `
apiVersion: v1
kind: Config
clusters: [{name: "", cluster: {server: "https://api.example.com:6443"}}]
`}},
	}
	for i := 1; i <= 2; i++ {
		node, ip := fmt.Sprintf("cp-%d", i), fmt.Sprintf("192.0.2.1%d", i)
		objects = append(objects, nodeObject(node, ip, true),
			staticPodObject("kube-system", "kube-apiserver-"+node, node, ip, map[string]string{"component": "kube-apiserver", "tier": "control-plane"}, map[string]string{advertisedAPIServer: ip + ":6443"}),
			staticPodObject("kube-system", "etcd-"+node, node, ip, map[string]string{"component": "etcd", "tier": "control-plane"}, map[string]string{advertisedEtcd: "https://" + ip + ":2379"}),
			staticPodObject("kube-system", "kube-scheduler-"+node, node, ip, map[string]string{"component": "kube-scheduler", "tier": "control-plane"}, nil))
	}
	return objects
}

func infrastructureYAML(topology string) string {
	return `
apiVersion: config.openshift.io/v1
kind: Infrastructure
metadata: {name: cluster}
spec: {}
status:
  apiServerURL: https://api.ocp.example.com:6443
  apiServerInternalURI: https://api-int.ocp.example.com:6443
  controlPlaneTopology: ` + topology
}

// openshiftObjects are those of a cluster with one control plane.
func openshiftObjects(topology string) []any {
	https := corev1.ServicePort{Name: "https", Port: 443, Protocol: corev1.ProtocolTCP}
	return []any{
		nodeObject("master-0", "192.0.2.10", true), nodeObject("worker-0", "192.0.2.20", false),
		staticPodObject("openshift-kube-apiserver", "kube-apiserver-master-0", "master-0", "192.0.2.10", map[string]string{"app": "openshift-kube-apiserver", "apiserver": "true"}, nil),
		podObject("openshift-kube-apiserver", "kube-apiserver-guard-master-0", "master-0", "10.128.0.3", map[string]string{"app": "guard"}),
		staticPodObject("openshift-etcd", "etcd-master-0", "master-0", "192.0.2.10", map[string]string{"app": "etcd", "k8s-app": "etcd", "etcd": "true"}, nil),
		podObject("openshift-etcd", "etcd-guard-master-0", "master-0", "10.128.0.4", map[string]string{"app": "guard"}),
		podObject("openshift-apiserver", "apiserver-0", "master-0", "10.128.0.5", map[string]string{"apiserver": "true"}),
		serviceObject("default", "kubernetes", "172.30.0.1", nil, https),
		serviceObject("openshift-apiserver", "api", "172.30.10.1", map[string]string{"apiserver": "true"}, https),
		sliceObject("default", "kubernetes", "https", 6443, "192.0.2.10 - -"),
		sliceObject("openshift-apiserver", "api", "https", 8443, "10.128.0.5 master-0 apiserver-0"),
		apiServiceYAML("v1.apps.openshift.io", "openshift-apiserver", "api"), apiServiceYAML("v1.build.openshift.io", "openshift-apiserver", "api"), localAPIService,
		infrastructureYAML(topology),
	}
}

// TestSurvey holds what is surveyed of whole clusters, and what comes of it.
func TestSurvey(t *testing.T) {
	managed := func(objects []any) []any { // the part of a kubeadm cluster that its operator makes visible
		return slices.DeleteFunc(objects, func(o any) bool {
			switch o := o.(type) {
			case *corev1.Node:
				return o.Name != "worker"
			case *corev1.Pod:
				return o.Spec.HostNetwork
			case *corev1.ConfigMap:
				return true
			}
			return false
		})
	}
	for _, tt := range []struct {
		name      string
		plan      *checkup.Plan
		openshift bool
		objects   []any
	}{
		{"kubeadm", planOf(), false, kubeadmObjects()},
		{"openshift", planOf(), true, openshiftObjects("HighlyAvailable")},
		{"openshift-hosted", planOf(), true, openshiftObjects("External")},
		{"managed", planOf(), false, managed(kubeadmObjects())},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := serve(t, tt.openshift, tt.objects...)
			s, err := a.survey(tt.plan)
			if err != nil {
				t.Fatal(err)
			}
			got, err := cluster.EncodeSnapshot(s)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, "survey/"+tt.name+".json", got)
			again, err := cluster.DecodeSnapshot(got)
			if err != nil {
				t.Fatalf("a survey cannot be read again: %v", err)
			}
			if diff := cmp.Diff(s, again); diff != "" {
				t.Errorf("a survey changes when it is recorded (-survey +read):\n%s", diff)
			}
			w, warnings, err := Expand(tt.plan, "api", s)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, "survey/"+tt.name+".txt", []byte(readable(w, warnings)))
		})
	}
}

const (
	forbiddenAPI  = "list pods with labels component=kube-apiserver,tier=control-plane in namespace kube-system: missing the verb list on pods in namespace kube-system (a Role): pods is forbidden: no such right"
	forbiddenEtcd = "list pods with labels component=etcd,tier=control-plane in namespace kube-system: missing the verb list on pods in namespace kube-system (a Role): pods is forbidden: no such right"
)

// TestSurveyUnseen: what may not be read, or makes no sense, is reported.
func TestSurveyUnseen(t *testing.T) {
	for _, tt := range []struct {
		name string
		plan *checkup.Plan
		// change makes a kubeadm cluster what it is.
		change func(*apiserver)
		want   []string
	}{
		{"all is seen", planOf(), func(*apiserver) {}, nil},
		{"pods of the control plane", planOf(preset(PresetKubeadm)), func(a *apiserver) { a.forbid("list", "pods", "kube-system") }, []string{
			kubeadmEtcd + ": " + forbiddenEtcd,
			kubeadmAPI + ": " + forbiddenAPI,
			"pods with the labels k8s-app=metrics-server in namespace kube-system: list pods with labels k8s-app=metrics-server in namespace kube-system: missing the verb list on pods in namespace kube-system (a Role): pods is forbidden: no such right",
		}},
		{"a platform that nothing shows, and that may not be looked for", planOf(), func(a *apiserver) {
			a.forbid("list", "pods", "kube-system")
			a.fail("get", "configmaps", "kube-system", apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, "kubeadm-config"))
		}, []string{
			kubeadmAPI + ": " + forbiddenAPI,
			kubeadmEtcd + ": " + forbiddenEtcd,
			whatPlatform + ": " + forbiddenAPI + "; " + forbiddenEtcd,
		}},
		{"aggregated API servers", planOf(), func(a *apiserver) { a.forbid("list", "apiservices", "") }, []string{
			"apiservices: list apiservices: missing the verb list on apiservices.apiregistration.k8s.io in the whole cluster (a ClusterRole): apiservices is forbidden: no such right",
		}},
		{"a Service", planOf(), func(a *apiserver) { a.forbid("get", "services", "kube-system") }, []string{
			"service kube-system/metrics-server: read service kube-system/metrics-server: missing the verb get on services in namespace kube-system (a Role): services is forbidden: no such right",
		}},
		{"endpoints", planOf(), func(a *apiserver) { a.forbid("list", "endpointslices", "kube-system") }, []string{
			"service kube-system/metrics-server: list the endpoint slices of service kube-system/metrics-server: missing the verb list on endpointslices in namespace kube-system (a Role): endpointslices is forbidden: no such right",
		}},
		{"the configuration of kubeadm", planOf(), func(a *apiserver) { a.forbid("get", "configmaps", "") }, []string{
			"configmap kube-system/kubeadm-config: read configmap kube-system/kubeadm-config: missing the verb get on configmaps in namespace kube-system (a Role): configmaps is forbidden: no such right",
			"configmap kube-public/cluster-info: read configmap kube-public/cluster-info: missing the verb get on configmaps in namespace kube-public (a Role): configmaps is forbidden: no such right",
		}},
		{"the configuration of kubeadm makes no sense", planOf(), func(a *apiserver) {
			a.configMap("kube-system", "kubeadm-config", "ClusterConfiguration", "controlPlaneEndpoint: [1")
			a.configMap("kube-public", "cluster-info", "kubeconfig", "{")
		}, []string{
			"configmap kube-system/kubeadm-config: configmap kube-system/kubeadm-config: ClusterConfiguration: error converting YAML to JSON: yaml: line 1: did not find expected ',' or ']'",
			"configmap kube-public/cluster-info: configmap kube-public/cluster-info: kubeconfig: yaml: line 1: did not find expected node content",
		}},
		{"the configuration of kubeadm names no hosts", planOf(), func(a *apiserver) {
			a.configMap("kube-system", "kubeadm-config", "ClusterConfiguration", "controlPlaneEndpoint: api.example.com:https")
			a.configMap("kube-public", "cluster-info", "kubeconfig", `{apiVersion: v1, kind: Config, clusters: [{name: a, cluster: {server: "api.example.com:6443"}}]}`)
		}, []string{
			`configmap kube-system/kubeadm-config: configmap kube-system/kubeadm-config: ClusterConfiguration: controlPlaneEndpoint: "api.example.com:https" is not host:port`,
			`configmap kube-public/cluster-info: configmap kube-public/cluster-info: server of cluster "a": "api.example.com:6443" is not a URL`,
		}},
		{"pods that only look like etcd members", planOf(), func(a *apiserver) {
			a.configMap("kube-system", "kubeadm-config", "ClusterConfiguration", "etcd: {external: {endpoints: ['https://etcd-1:2379', 'etcd-2']}}")
		}, []string{
			`configmap kube-system/kubeadm-config: configmap kube-system/kubeadm-config: ClusterConfiguration: etcd.external.endpoints[1]: "etcd-2" is not a URL`,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := serve(t, false, kubeadmObjects()...)
			tt.change(a)
			s, err := a.survey(tt.plan)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, u := range s.Unseen {
				got = append(got, u.What+": "+u.Cause)
				if slices.Contains(s.Seen, u.What) {
					t.Errorf("%s is seen and unseen", u.What)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			w, warnings, err := Expand(tt.plan, "api", s)
			switch {
			case err != nil && !strings.Contains(err.Error(), "cannot detect the platform") && !strings.Contains(err.Error(), "nothing can be measured"):
				t.Error(err)
			case err == nil && len(tt.want) > 0 && len(warnings) == 0:
				t.Errorf("nothing is warned of, and the worksheet is\n%s", print(w))
			}
		})
	}
}

func (a *apiserver) configMap(namespace, name, key, value string) {
	a.typed.PrependReactor("get", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetNamespace() != namespace || action.(clienttesting.GetAction).GetName() != name {
			return false, nil, nil
		}
		return true, &corev1.ConfigMap{ObjectMeta: meta(namespace, name, nil), Data: map[string]string{key: value}}, nil
	})
}

// TestSurveyInfrastructure: OpenShift's object may name fewer load balancers, or
// what are none.
func TestSurveyInfrastructure(t *testing.T) {
	for _, tt := range []struct {
		name, status string
		want         []string // what becomes of it
	}{
		{"both", "apiServerURL: https://api:6443\n  apiServerInternalURI: https://api-int:6443", []string{"internal api-int 6443", "external api 6443"}},
		{"one, without a port", "apiServerURL: https://api", []string{"external api 443"}},
		{"an address", "apiServerInternalURI: https://[fd00::1]:6443", []string{"internal fd00::1 6443"}},
		{"none", "platform: None", nil},
		{"no URL", "apiServerURL: api:6443:1", []string{`infrastructures.config.openshift.io cluster: infrastructures.config.openshift.io cluster: status.apiServerURL: "api:6443:1" is not a URL`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			objects := slices.DeleteFunc(openshiftObjects(""), func(o any) bool { return o == infrastructureYAML("") })
			a := serve(t, true, append(objects, "apiVersion: config.openshift.io/v1\nkind: Infrastructure\nmetadata: {name: cluster}\nstatus:\n  "+tt.status)...)
			s, err := a.survey(planOf())
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, b := range s.LoadBalancers {
				got = append(got, fmt.Sprintf("%s %s %d", b.Side, b.Host, b.Port))
			}
			for _, u := range s.Unseen {
				got = append(got, u.What+": "+u.Cause)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestSurveyAPIServices: those that have a Service, with their port and condition.
func TestSurveyAPIServices(t *testing.T) {
	a := serve(t, false, localAPIService, `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.a}
spec: {service: {namespace: one, name: a}}`, `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.b}
spec: {service: {namespace: one, name: b, port: 8443}}
status: {conditions: [{type: Other, status: "True"}, {type: Available, status: "False"}]}`)
	s, err := a.survey(planOf(preset(PresetGeneric)))
	if err != nil {
		t.Fatal(err)
	}
	want := []cluster.APIService{
		{Name: "v1.a", Namespace: "one", Service: "a", Port: 443, Available: corev1.ConditionUnknown},
		{Name: "v1.b", Namespace: "one", Service: "b", Port: 8443, Available: corev1.ConditionFalse},
	}
	if diff := cmp.Diff(want, s.APIServices); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestSurveyFails: a cluster that could not be asked is no cluster without
// anything, and all that failed is reported.
func TestSurveyFails(t *testing.T) {
	broken := &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: "etcd is gone"}}
	a := serve(t, false, kubeadmObjects()...)
	a.fail("list", "apiservices", "", broken)
	a.fail("get", "services", "", broken)
	a.fail("get", "configmaps", "kube-public", broken)
	_, err := a.survey(planOf())
	want := `read service default/kubernetes: etcd is gone
list apiservices: etcd is gone
read configmap kube-public/cluster-info: etcd is gone`
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}

	a = serve(t, true, openshiftObjects("HighlyAvailable")...)
	a.fail("get", "infrastructures", "", broken)
	if _, err := a.survey(planOf()); err == nil || err.Error() != "read infrastructures.config.openshift.io cluster: etcd is gone" {
		t.Errorf("infrastructure: %v", err)
	}

	a = serve(t, false, kubeadmObjects()...)
	a.reader.Dynamic = nil
	if _, err := a.survey(planOf()); err == nil || err.Error() != "list apiservices: no dynamic client" {
		t.Errorf("no dynamic client: %v", err)
	}

	a = serve(t, false, kubeadmObjects()...)
	if _, err := a.survey(planOf(withRole("all", ComponentRole{Pods: &ComponentPods{Namespace: "x", Port: 1}}), pairs("all > etcd"))); err == nil ||
		err.Error() != `check "api": roles.all.pods.selector: is empty and would select every pod: set the labels of the pods` {
		t.Errorf("selector: %v", err)
	}
}

// TestSurveyOnce: what several checks need is asked for once, and what none
// needs not at all.
func TestSurveyOnce(t *testing.T) {
	a := serve(t, false, kubeadmObjects()...)
	p := planOf()
	p.Checks["again"] = planOf(preset(PresetKubeadm)).Checks["api"]
	p.Checks["mesh"] = checkup.Check{Spec: &podmesh.Spec{}}
	if _, err := a.survey(p); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, r := range a.requests() {
		seen[r.String()]++
	}
	for r, n := range seen {
		if n > 1 {
			t.Errorf("%d times %s", n, r)
		}
	}

	a = serve(t, false, kubeadmObjects()...)
	if _, err := a.survey(planOf(preset(PresetKubeadm), pairs("kube-apiserver > kube-apiserver.service"))); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range a.requests() {
		got = append(got, r.String())
	}
	want := []string{
		"list nodes", "list pods in kube-system: component=kube-apiserver,tier=control-plane", "get services in default: kubernetes",
		"list endpointslices in default: kubernetes.io/service-name=kubernetes",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a check of the default service asks (-want +got):\n%s", diff)
	}
}
