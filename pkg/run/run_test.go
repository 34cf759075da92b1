// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	discoveryfake "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/controlplane"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/pkg/vmlatency"
)

func objectMeta(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

// objects is one of each kind that a plan compiles to.
func objects() []runtime.Object {
	return []runtime.Object{
		&corev1.ServiceAccount{ObjectMeta: objectMeta("p-setup")},
		&rbacv1.Role{ObjectMeta: objectMeta("p-setup")},
		&rbacv1.RoleBinding{ObjectMeta: objectMeta("p-setup")},
		&rbacv1.ClusterRole{ObjectMeta: objectMeta("checkplan-ns-p")},
		&rbacv1.ClusterRoleBinding{ObjectMeta: objectMeta("checkplan-ns-p")},
		&pipelinev1.Task{ObjectMeta: objectMeta("checkplan-setup")},
		&pipelinev1.Pipeline{ObjectMeta: objectMeta("p")},
	}
}

// fakeCluster has Tekton, a namespace and every right, until a test takes them.
func fakeCluster(t *testing.T, existing ...runtime.Object) (*Cluster, *kubefake.Clientset) {
	t.Helper()
	kube := kubefake.NewSimpleClientset(existing...)
	kube.Discovery().(*discoveryfake.FakeDiscovery).Resources = []*metav1.APIResourceList{{GroupVersion: "tekton.dev/v1"}}
	kube.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview).DeepCopy()
		review.Status.Allowed = true
		return true, review, nil
	})
	scheme := runtime.NewScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return &Cluster{
		Kube: kube, Tekton: tektonfake.NewSimpleClientset(),
		Dynamic:   dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()),
		Metadata:  metadatafake.NewSimpleMetadataClient(scheme),
		Namespace: "ns", Server: "https://api.test",
	}, kube
}

func namespace(restricted bool) *corev1.Namespace {
	n := &corev1.Namespace{ObjectMeta: objectMeta("ns")}
	if restricted {
		n.Labels = map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}
	}
	return n
}

// enforcing is the namespace with a pod security standard.
func enforcing(standard string) *corev1.Namespace {
	n := namespace(false)
	n.Labels = map[string]string{"pod-security.kubernetes.io/enforce": standard}
	return n
}

func controlPlane(preset controlplane.Preset) *checkup.Plan {
	return &checkup.Plan{Name: "p", Checks: map[string]checkup.Check{"api": {Spec: &controlplane.Spec{Preset: preset}}}}
}

// apiServer is a kube-apiserver as kubeadm makes it.
func apiServer() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "kube-apiserver-n0", Namespace: "kube-system", Labels: map[string]string{"component": "kube-apiserver"}}}
}

func tektonConfig(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: tektonNamespace}, Data: data}
}

// checkupOf is a plan with a kiagnose checkup's ConfigMap in a namespace.
func checkupOf(namespace string) *checkup.Plan {
	v := &vmlatency.Spec{Kiagnose: &checkup.ConfigMapRef{Namespace: namespace, Name: "cm"}}
	return &checkup.Plan{Name: "p", Checks: map[string]checkup.Check{"latency": {Spec: v}}}
}

// denied takes one right away.
func denied(resource, verb string) func(*kubefake.Clientset) {
	return func(kube *kubefake.Clientset) {
		kube.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
			review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview).DeepCopy()
			a := review.Spec.ResourceAttributes
			review.Status.Allowed = a.Resource != resource || a.Verb != verb
			return true, review, nil
		})
	}
}

func TestPreflight(t *testing.T) {
	tests := []struct {
		name     string
		existing []runtime.Object
		change   func(*kubefake.Clientset)
		plan     *checkup.Plan    // nil is one without checks
		objects  []runtime.Object // beside one of each kind
		want     []string         // lines of the error, in order; each a part of its line
	}{
		{name: "all well", existing: []runtime.Object{namespace(false)}},
		{
			name:     "a development build of Tekton has no version to compare",
			existing: []runtime.Object{namespace(false), tektonConfig("pipelines-info", map[string]string{"version": "devel"})},
		},
		{
			name:     "restricted namespace and Tekton configured for it",
			existing: []runtime.Object{namespace(true), tektonConfig("feature-flags", map[string]string{"set-security-context": "true"})},
		},
		{
			name:     "restricted namespace and Tekton not configured for it",
			existing: []runtime.Object{namespace(true), tektonConfig("feature-flags", map[string]string{"set-security-context": "false"})},
			want:     []string{"namespace ns enforces restricted pod security, and Tekton does not give its own containers a security context"},
		},
		{
			name:     "Tekton too old",
			existing: []runtime.Object{namespace(false), tektonConfig("pipelines-info", map[string]string{"version": "v1.9.2"})},
			want:     []string{"Tekton Pipelines v1.9.2 is too old"},
		},
		{
			name: "everything at once",
			change: func(kube *kubefake.Clientset) {
				kube.Discovery().(*discoveryfake.FakeDiscovery).Resources = nil
				kube.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
					review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview).DeepCopy()
					a := review.Spec.ResourceAttributes
					review.Status.Allowed = a.Resource != "clusterroles" && (a.Resource != "pipelineruns" || a.Verb != "create")
					return true, review, nil
				})
			},
			want: []string{
				"no Tekton Pipelines at https://api.test: the API tekton.dev/v1 is not served; install",
				"namespace ns does not exist; create it (kubectl create namespace ns)",
				"missing right: create clusterroles.rbac.authorization.k8s.io at cluster scope",
				"missing right: patch clusterroles.rbac.authorization.k8s.io at cluster scope",
				"missing right: create pipelineruns.tekton.dev in namespace ns",
			},
		},
		{
			name:     "agents in their nodes' networks, where that is forbidden",
			existing: []runtime.Object{enforcing("baseline")}, plan: controlPlane(controlplane.PresetKubeadm),
			want: []string{"namespace ns enforces baseline pod security, but agents of check api run on the host network; allow it (kubectl label --overwrite namespace ns pod-security.kubernetes.io/enforce=privileged)"},
		},
		{
			name:     "likewise where the cluster shows its control plane",
			existing: []runtime.Object{enforcing("restricted"), apiServer()}, plan: controlPlane(controlplane.PresetAuto),
			want: []string{"namespace ns enforces restricted pod security, but agents of check api run on the host network"},
		},
		{
			name:     "likewise OpenShift",
			existing: []runtime.Object{enforcing("baseline")}, plan: controlPlane(controlplane.PresetAuto),
			change: func(kube *kubefake.Clientset) {
				discovery := kube.Discovery().(*discoveryfake.FakeDiscovery)
				discovery.Resources = append(discovery.Resources, &metav1.APIResourceList{GroupVersion: "config.openshift.io/v1"})
			},
			want: []string{"namespace ns enforces baseline pod security, but agents of check api run on the host network"},
		},
		{
			name:     "a control plane that is not visible has no agents in its nodes' networks",
			existing: []runtime.Object{enforcing("baseline")}, plan: controlPlane(controlplane.PresetAuto),
		},
		{
			name:     "nor has one of which only the API is probed",
			existing: []runtime.Object{enforcing("baseline"), apiServer()}, plan: controlPlane(controlplane.PresetGeneric),
		},
		{
			name:     "nor is it forbidden everywhere",
			existing: []runtime.Object{enforcing("privileged"), apiServer()}, plan: controlPlane(controlplane.PresetKubeadm),
		},
		{
			name:     "roles in other namespaces",
			existing: []runtime.Object{namespace(false)},
			objects:  []runtime.Object{&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "kube-system"}}},
			change: func(kube *kubefake.Clientset) {
				kube.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
					review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview).DeepCopy()
					review.Status.Allowed = review.Spec.ResourceAttributes.Namespace != "kube-system"
					return true, review, nil
				})
			},
			want: []string{
				"missing right: create roles.rbac.authorization.k8s.io in namespace kube-system",
				"missing right: patch roles.rbac.authorization.k8s.io in namespace kube-system",
			},
		},
		{
			name:     "a kiagnose checkup's ConfigMap is there",
			existing: []runtime.Object{namespace(false), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cm", Namespace: "team"}}},
			plan:     checkupOf("team"), change: denied("configmaps", "create"),
		},
		{
			name:     "a kiagnose checkup's ConfigMap may not be read",
			existing: []runtime.Object{namespace(false), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cm", Namespace: "team"}}},
			plan:     checkupOf("team"), change: denied("configmaps", "get"),
			want: []string{"missing right: get configmaps in namespace ns", "missing right: get configmaps cm in namespace team"},
		},
		{
			name:     "a kiagnose checkup's ConfigMap cannot be made",
			existing: []runtime.Object{namespace(false)},
			plan:     checkupOf(""), change: denied("configmaps", "create"),
			want: []string{"missing right: create configmaps in namespace ns"},
		},
		{
			name: "a namespace that may not be read is no obstacle",
			change: func(kube *kubefake.Clientset) {
				kube.PrependReactor("get", "namespaces", func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, "ns", errors.New("no"))
				})
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cluster, kube := fakeCluster(t, tt.existing...)
			if tt.change != nil {
				tt.change(kube)
			}
			plan := tt.plan
			if plan == nil {
				plan = &checkup.Plan{}
			}
			err := cluster.Preflight(t.Context(), plan, append(objects(), tt.objects...))
			if len(tt.want) == 0 {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil {
				t.Fatalf("no error, want %q", tt.want)
			}
			lines := strings.Split(err.Error(), "\n")
			if len(lines) != len(tt.want) {
				t.Fatalf("%d lines, want %d:\n%v", len(lines), len(tt.want), err)
			}
			for i, want := range tt.want {
				if !strings.Contains(lines[i], want) {
					t.Errorf("line %d is %q, want it to have %q", i, lines[i], want)
				}
			}
		})
	}
}

func TestApplyIsServerSideAndInOrder(t *testing.T) {
	cluster, _ := fakeCluster(t)
	var applied []string
	dyn := cluster.Dynamic.(*dynamicfake.FakeDynamicClient)
	dyn.PrependReactor("patch", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		if patch.GetPatchType() != types.ApplyPatchType {
			t.Errorf("%s %s: patch type %s", patch.GetResource().Resource, patch.GetName(), patch.GetPatchType())
		}
		applied = append(applied, fmt.Sprintf("%s %s/%s", patch.GetResource().Resource, patch.GetNamespace(), patch.GetName()))
		return true, nil, nil
	})
	if err := cluster.Apply(t.Context(), objects()); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"serviceaccounts ns/p-setup", "roles ns/p-setup", "rolebindings ns/p-setup",
		"clusterroles /checkplan-ns-p", "clusterrolebindings /checkplan-ns-p", "tasks ns/checkplan-setup", "pipelines ns/p",
	}
	if diff := cmp.Diff(want, applied); diff != "" {
		t.Error(diff)
	}
}

func TestApplyErrorsSayWhatToDo(t *testing.T) {
	forbidden := func(message string) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "roles"}, "p", errors.New(message))
	}
	tests := []struct {
		name  string
		err   error
		wants []string
	}{
		{"no right", forbidden("user may not"), []string{"apply serviceaccounts p-setup", "ask a cluster administrator for this right"}},
		{"escalation", forbidden("attempting to grant RBAC permissions not currently held: ..."), []string{"Kubernetes does not let you grant rights"}},
		{"webhook", errors.New(`Internal error occurred: failed calling webhook "x"`), []string{"Tekton's webhook does not answer"}},
		{"else", errors.New("boom"), []string{"boom"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cluster, _ := fakeCluster(t)
			cluster.Dynamic.(*dynamicfake.FakeDynamicClient).PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, tt.err
			})
			err := cluster.Apply(t.Context(), objects())
			for _, want := range tt.wants {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want it to have %q", err, want)
				}
			}
		})
	}
	cluster, _ := fakeCluster(t)
	if err := cluster.Apply(t.Context(), []runtime.Object{&corev1.Pod{}}); err == nil {
		t.Error("a kind that no plan compiles to was applied")
	}
}

func pipelineRun(done bool) *pipelinev1.PipelineRun {
	r := &pipelinev1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Name: "p-1", Namespace: "ns", UID: "u1"}}
	status := corev1.ConditionUnknown
	if done {
		status = corev1.ConditionFalse
	}
	r.Status.Conditions = duckv1.Conditions{{Type: apis.ConditionSucceeded, Status: status, Reason: "R"}}
	return r
}

func TestFollow(t *testing.T) {
	cluster, _ := fakeCluster(t)
	task := &pipelinev1.TaskRun{ObjectMeta: metav1.ObjectMeta{Name: "p-1-probe-mesh", Namespace: "ns",
		Labels: map[string]string{"tekton.dev/pipelineRun": "p-1", "tekton.dev/pipelineTask": "probe-mesh"}}}
	task.Status.Conditions = duckv1.Conditions{{Type: apis.ConditionSucceeded, Status: corev1.ConditionUnknown, Reason: "Running"}}
	fake := tektonfake.NewSimpleClientset(pipelineRun(false), task)
	cluster.Tekton = fake
	store := record.Store{ConfigMaps: cluster.Kube.CoreV1().ConfigMaps("ns"), Plan: "p", Run: "p-1", RunUID: "u1"}
	recorded := record.Progress{Phase: "probe", Ready: 1, Pods: 2, Measured: 3, Pairs: 4}
	if err := store.SaveProgress(t.Context(), "mesh", recorded); err != nil {
		t.Fatal(err)
	}
	var seen []Progress
	follower := Follower{Cluster: cluster, Interval: time.Millisecond, Report: func(p Progress) {
		seen = append(seen, p)
		if len(seen) == 2 {
			if _, err := fake.TektonV1().PipelineRuns("ns").Update(t.Context(), pipelineRun(true), metav1.UpdateOptions{}); err != nil {
				t.Error(err)
			}
		}
	}}
	finished, err := follower.Follow(t.Context(), "p-1")
	if err != nil || !finished.IsDone() {
		t.Fatalf("%v, %v", finished, err)
	}
	want := Progress{Tasks: []TaskProgress{{Name: "probe-mesh", Reason: "Running", Progress: recorded.String()}}, Reason: "R"}
	if diff := cmp.Diff(want, seen[0]); diff != "" {
		t.Error(diff)
	}
}

func TestFollowEndsWithoutTheRun(t *testing.T) {
	t.Run("deleted", func(t *testing.T) {
		cluster, _ := fakeCluster(t)
		_, err := (&Follower{Cluster: cluster}).Follow(t.Context(), "gone")
		if err == nil || !strings.Contains(err.Error(), "follow PipelineRun gone: it was deleted") {
			t.Error(err)
		}
	})
	t.Run("API server away", func(t *testing.T) {
		cluster, _ := fakeCluster(t)
		cluster.Tekton.(*tektonfake.Clientset).PrependReactor("get", "pipelineruns", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("connection refused")
		})
		lost := 0
		follower := Follower{Cluster: cluster, Interval: time.Millisecond, Patience: 20 * time.Millisecond, Report: func(p Progress) {
			if p.Lost > 0 {
				lost++
			}
		}}
		_, err := follower.Follow(t.Context(), "p-1")
		if err == nil || !strings.Contains(err.Error(), "has not answered for 20ms; the run may still continue: connection refused") {
			t.Error(err)
		}
		if lost == 0 {
			t.Error("want a report that the API server was away")
		}
	})
	t.Run("left", func(t *testing.T) {
		cluster, _ := fakeCluster(t)
		cluster.Tekton = tektonfake.NewSimpleClientset(pipelineRun(false))
		left := errors.New("left")
		ctx, leave := context.WithCancelCause(t.Context())
		_, err := (&Follower{Cluster: cluster, Interval: time.Hour, Report: func(Progress) { leave(left) }}).Follow(ctx, "p-1")
		if !errors.Is(err, left) {
			t.Error(err)
		}
	})
}

func TestCancelRunsFinally(t *testing.T) {
	cluster, _ := fakeCluster(t)
	cluster.Tekton = tektonfake.NewSimpleClientset(pipelineRun(false))
	if err := cluster.Cancel(t.Context(), "p-1"); err != nil {
		t.Fatal(err)
	}
	r, err := cluster.Tekton.TektonV1().PipelineRuns("ns").Get(t.Context(), "p-1", metav1.GetOptions{})
	if err != nil || r.Spec.Status != "CancelledRunFinally" {
		t.Errorf("status %q, %v", r.Spec.Status, err)
	}
	if err := cluster.Cancel(t.Context(), "gone"); err == nil || !strings.Contains(err.Error(), "cancel PipelineRun gone") {
		t.Error(err)
	}
}

func TestRemainingNamesOnlyFixturesOfTheRun(t *testing.T) {
	cluster, _ := fakeCluster(t)
	scheme := runtime.NewScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	object := func(kind, name, run string, role checkup.Role) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: kind},
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", Labels: map[string]string{
				checkup.LabelRun: run, checkup.LabelRole: string(role)}},
		}
	}
	cluster.Metadata = metadatafake.NewSimpleMetadataClient(scheme,
		object("Pod", "a", "u1", checkup.RoleResponder), object("Pod", "b", "u1", checkup.RoleAgent), object("ConfigMap", "b", "u1", checkup.RoleAgent),
		object("Pod", "other", "u2", checkup.RoleAgent), object("ConfigMap", "report", "u1", checkup.RoleReport))
	left, err := cluster.Remaining(t.Context(), "u1")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"pod/a", "pod/b", "configmap/b"}, left); diff != "" {
		t.Error(diff)
	}
	want := "kubectl -n ns delete pod,configmap -l 'checkplan.dev/run=u1,checkplan.dev/role in (responder,agent,preflight,service,guest)'"
	if got := cluster.RemoveCommand("u1"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestConnect(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := Connect(Access{}); !errors.Is(err, ErrNoCluster) {
		t.Errorf("without kubeconfig: %v", err)
	}
	bad := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(bad, []byte("{not yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Connect(Access{Kubeconfig: bad}); err == nil || !strings.Contains(err.Error(), "read kubeconfig") {
		t.Errorf("bad kubeconfig: %v", err)
	}
	good := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(good, []byte(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: x, context: {cluster: c, namespace: team}}]
current-context: x
`), 0o600); err != nil {
		t.Fatal(err)
	}
	cluster, err := Connect(Access{Kubeconfig: good})
	if err != nil || cluster.Namespace != "team" {
		t.Fatalf("%+v, %v", cluster, err)
	}
	// Nothing listens there: the first question says so, and names the server.
	if err := cluster.Preflight(t.Context(), &checkup.Plan{}, nil); err == nil || !strings.Contains(err.Error(), "cannot reach the API server at http://127.0.0.1:1") {
		t.Errorf("unreachable API server: %v", err)
	}
	if cluster, err = Connect(Access{Kubeconfig: good, Namespace: "mine"}); err != nil || cluster.Namespace != "mine" {
		t.Errorf("--namespace: %+v, %v", cluster, err)
	}
}

// TestWithdraw: what a plan's run left and the plan's objects are deleted, and nothing else; what cannot be is in the
// error.
func TestWithdraw(t *testing.T) {
	cluster, _ := fakeCluster(t)
	of := map[string]string{checkup.LabelPlan: "p"}
	for _, cm := range []*corev1.ConfigMap{
		{ObjectMeta: metav1.ObjectMeta{Name: "p-report", Namespace: "ns", Labels: of}},
		{ObjectMeta: metav1.ObjectMeta{Name: "other", Namespace: "ns", Labels: map[string]string{checkup.LabelPlan: "q"}}},
	} {
		if _, err := cluster.Kube.CoreV1().ConfigMaps("ns").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	r := pipelineRun(true)
	r.Labels = of
	if _, err := cluster.Tekton.TektonV1().PipelineRuns("ns").Create(t.Context(), r, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var deleted []string
	dyn := cluster.Dynamic.(*dynamicfake.FakeDynamicClient)
	dyn.PrependReactor("delete", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		d := action.(clienttesting.DeleteAction)
		deleted = append(deleted, fmt.Sprintf("%s %s/%s", d.GetResource().Resource, d.GetNamespace(), d.GetName()))
		if d.GetResource().Resource == "roles" {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "roles"}, d.GetName(), errors.New("user may not"))
		}
		return true, nil, nil
	})
	err := cluster.Withdraw(t.Context(), "p", objects())
	if err == nil || !strings.Contains(err.Error(), "cannot delete all of plan p; left: roles p-setup (") {
		t.Errorf("error %v, want the role that is left", err)
	}
	if len(deleted) != len(objects()) {
		t.Errorf("deleted %v, want each of the %d objects", deleted, len(objects()))
	}
	if runs, err := cluster.Tekton.TektonV1().PipelineRuns("ns").List(t.Context(), metav1.ListOptions{LabelSelector: "checkplan.dev/plan=p"}); err != nil || len(runs.Items) != 0 {
		t.Errorf("%d runs of the plan are left, %v", len(runs.Items), err)
	}
	maps, err := cluster.Kube.CoreV1().ConfigMaps("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(maps.Items) != 1 || maps.Items[0].Name != "other" {
		t.Errorf("ConfigMaps %v, %v; want only that of the other plan", maps.Items, err)
	}
}
