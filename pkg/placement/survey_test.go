// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/podmesh"
)

// network is one of the cluster's own objects.
func network(t *testing.T, gv schema.GroupVersion, spec string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{Object: decoded(t, `{"metadata":{"name":"cluster"},"spec":`+spec+`}`)}
	o.SetAPIVersion(gv.String())
	o.SetKind("Network")
	return o
}

// dynamicOf has these objects, and answers these requests with errors, by group.
func dynamicOf(failing map[string]error, objects ...runtime.Object) *dynamicfake.FakeDynamicClient {
	c := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{configs: "NetworkList", operators: "NetworkList"}, objects...)
	c.PrependReactor("get", "networks", func(a clienttesting.Action) (bool, runtime.Object, error) {
		err := failing[a.GetResource().Group]
		return err != nil, nil, err
	})
	return c
}

func TestSurvey(t *testing.T) {
	on := func(name, node string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
			Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
				Name: "c", Ports: []corev1.ContainerPort{{HostPort: 80}},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m")}},
			}}},
			Status: corev1.PodStatus{Phase: phase},
		}
	}
	gone := apierrors.NewGenericServerResponse(http.StatusNotFound, "get", configs.GroupResource(), "cluster", "404 page not found", 0, true)
	refused := func(group string) error {
		return apierrors.NewForbidden(schema.GroupResource{Group: group, Resource: "networks"}, "cluster", errorText("no right"))
	}
	config := network(t, configs.GroupVersion(), `{"networkDiagnostics":{"mode":"All","later":1,"targetPlacement":{"tolerations":[]}}}`)
	operator := network(t, operators.GroupVersion(), `{"disableNetworkDiagnostics":true}`)
	all := &cluster.NetworkConfig{
		Diagnostics:               &cluster.NetworkDiagnostics{Mode: "All", TargetPlacement: &cluster.DiagnosticsPlacement{Tolerations: []checkup.Toleration{}}},
		DisableNetworkDiagnostics: new(true), Unknown: []string{"spec.networkDiagnostics.later"},
	}
	live := &cluster.NetworkConfig{
		Diagnostics: all.Diagnostics, DisableNetworkDiagnostics: all.DisableNetworkDiagnostics, Unknown: all.Unknown,
		Source: &corev1.PodSpec{PriorityClassName: "p", Containers: []corev1.Container{{Name: "c"}}},
		Target: &corev1.PodSpec{},
	}
	absent := func(workload string) cluster.Unseen {
		return cluster.Unseen{What: workload, Cause: "it does not exist: the operator's manifest is used instead"}
	}
	noSource, noTarget := absent("Deployment openshift-network-diagnostics/network-check-source"), absent("DaemonSet openshift-network-diagnostics/network-check-target")

	for name, tt := range map[string]struct {
		plan      *checkup.Plan
		pods      error // of listing pods
		failing   map[string]error
		objects   []runtime.Object
		workloads []runtime.Object
		noDynamic bool
		requested bool
		config    *cluster.NetworkConfig
		unseen    []cluster.Unseen
		err       []string
	}{
		"a plan without placements": {plan: &checkup.Plan{Name: "p", Checks: map[string]checkup.Check{"mesh": {Spec: &podmesh.Spec{}}}}, pods: errorText("must not be asked"), noDynamic: true},
		"what is requested":         {plan: planOf(&Spec{}), noDynamic: true, requested: true},
		"no right to list pods": {
			plan: planOf(&Spec{}), pods: apierrors.NewForbidden(corev1.Resource("pods"), "", errorText("no right")), noDynamic: true,
			unseen: []cluster.Unseen{{What: "resource requests of the pods on the nodes", Cause: "list the pods of all namespaces: missing the verb list on pods in the whole cluster (a ClusterRole): pods is forbidden: no right"}},
		},
		"the cluster's objects": {
			plan: planOf(&Spec{NetworkConfig: true}), objects: []runtime.Object{config, operator}, requested: true,
			config: all, unseen: []cluster.Unseen{noSource, noTarget},
		},
		"the operator's workloads": {
			plan: planOf(&Spec{NetworkConfig: true}), objects: []runtime.Object{config, operator}, requested: true,
			workloads: []runtime.Object{
				&appsv1.Deployment{
					ObjectMeta: metav1.ObjectMeta{Namespace: "openshift-network-diagnostics", Name: "network-check-source"},
					Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
						PriorityClassName: "p", NodeSelector: map[string]string{"of": "an earlier configuration"},
						Containers: []corev1.Container{{Name: "c", Image: "i"}},
					}}},
				},
				&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "openshift-network-diagnostics", Name: "network-check-target"}},
			},
			config: live,
		},
		"no operator's object": {
			plan: planOf(&Spec{NetworkConfig: true}), objects: []runtime.Object{config}, requested: true,
			config: &cluster.NetworkConfig{Diagnostics: all.Diagnostics, Unknown: all.Unknown}, unseen: []cluster.Unseen{noSource, noTarget},
		},
		"no such object": {
			plan: planOf(&Spec{NetworkConfig: true}), requested: true,
			unseen: []cluster.Unseen{{What: "network.config.openshift.io/cluster", Cause: "the object does not exist"}},
		},
		"not OpenShift": {
			plan: planOf(&Spec{NetworkConfig: true}), failing: map[string]error{configs.Group: gone, operators.Group: gone}, requested: true,
			unseen: []cluster.Unseen{{What: "network.config.openshift.io/cluster", Cause: "the cluster does not serve config.openshift.io/v1: only OpenShift does"}},
		},
		"no right to see the objects": {
			plan: planOf(&Spec{NetworkConfig: true}), failing: map[string]error{configs.Group: refused(configs.Group), operators.Group: refused(operators.Group)}, requested: true,
			unseen: []cluster.Unseen{
				{What: "network.config.openshift.io/cluster", Cause: `read network.config.openshift.io/cluster: missing the verb get on networks.config.openshift.io in the whole cluster (a ClusterRole): networks.config.openshift.io "cluster" is forbidden: no right`},
				{What: "network.operator.openshift.io/cluster", Cause: `read network.operator.openshift.io/cluster: missing the verb get on networks.operator.openshift.io in the whole cluster (a ClusterRole): networks.operator.openshift.io "cluster" is forbidden: no right`},
			},
		},
		"an API server that goes away": {
			plan: planOf(&Spec{NetworkConfig: true}), pods: errorText("connection refused"),
			failing: map[string]error{configs.Group: errorText("connection refused"), operators.Group: errorText("connection reset")},
			err: []string{
				"list the pods of all namespaces: connection refused", "read network.config.openshift.io/cluster: connection refused", "read network.operator.openshift.io/cluster: connection reset",
			},
		},
		"malformed objects": {
			plan: planOf(&Spec{NetworkConfig: true}), requested: true,
			objects: []runtime.Object{network(t, configs.GroupVersion(), `{"networkDiagnostics":{"mode":"Most"}}`), network(t, operators.GroupVersion(), `{"disableNetworkDiagnostics":1}`)},
			err: []string{
				`network.config.openshift.io/cluster: spec.networkDiagnostics.mode: Unsupported value: "Most"`,
				`network.operator.openshift.io/cluster: spec.disableNetworkDiagnostics: Invalid value: 1: must be a boolean`,
			},
		},
		"no client": {plan: planOf(&Spec{NetworkConfig: true}), noDynamic: true, requested: true, err: []string{"read network.config.openshift.io/cluster: no dynamic client"}},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewSimpleClientset(append(tt.workloads, on("one", "a", corev1.PodRunning), on("done", "a", corev1.PodSucceeded))...)
			client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return tt.pods != nil, nil, tt.pods })
			r := cluster.Reader{Kubernetes: client}
			if !tt.noDynamic {
				r.Dynamic = dynamicOf(tt.failing, tt.objects...)
			}
			s := &cluster.Snapshot{Nodes: []cluster.Node{{Name: "a"}}}
			err := Survey(t.Context(), r, tt.plan, s)
			if (err == nil) != (tt.err == nil) {
				t.Fatalf("error %v, want %q", err, tt.err)
			}
			for _, line := range tt.err {
				if !strings.Contains(err.Error(), line) {
					t.Errorf("error %v\nlacks %s", err, line)
				}
			}
			if diff := cmp.Diff(tt.config, s.NetworkConfig); diff != "" {
				t.Errorf("network config (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.unseen, s.Unseen); diff != "" {
				t.Errorf("unseen (-want +got):\n%s", diff)
			}
			want := cluster.Node{Name: "a"}
			if tt.requested {
				want.Requested = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1"), corev1.ResourceCPU: resource.MustParse("250m")}
				want.HostPorts = []cluster.HostPort{{Port: 80, Protocol: corev1.ProtocolTCP}}
			}
			if diff := cmp.Diff(want, s.Nodes[0]); diff != "" {
				t.Errorf("node (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRights: a plan asks for no more than its checks use.
func TestRights(t *testing.T) {
	spelled := func(c checkup.Check) (all []string) {
		for _, r := range Rights(c) {
			if r.Why == "" {
				t.Errorf("%+v does not say why", r)
			}
			all = append(all, strings.Join([]string{string(r.Phase), string(r.Scope), r.Verb, r.Resource, r.Group, strings.Join(r.Names, ",")}, " "))
		}
		return all
	}
	own := []string{"setup cluster list pods  ", "probe run create pods  "}
	for name, tt := range map[string]struct {
		check checkup.Check
		want  []string
	}{
		"another kind":   {},
		"the plan's own": {checkup.Check{Spec: &Spec{}}, own},
		"the cluster's": {checkup.Check{Spec: &Spec{NetworkConfig: true}}, append(own,
			"setup cluster get networks config.openshift.io cluster", "setup cluster get networks operator.openshift.io cluster",
			"setup cluster get deployments apps network-check-source", "setup cluster get daemonsets apps network-check-target")},
	} {
		if diff := cmp.Diff(tt.want, spelled(tt.check)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if diff := cmp.Diff(&checkup.Roster{}, Roster(nil, nil, nil)); diff != "" {
		t.Errorf("roster (-want +got):\n%s", diff)
	}
}
