// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

func surveyedNode(name string, changes ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/os": "linux", corev1.LabelTopologyZone: "zone-a"}, Annotations: map[string]string{"long": "and not kept"}},
		Spec:       corev1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24", "fd00:10:244:1::/64"}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceCPU: resource.MustParse("2")},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse}, {Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Addresses:   []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeExternalIP, Address: "198.51.100.1"}},
		},
	}
	for _, change := range changes {
		change(n)
	}
	return n
}

func surveyedPod(namespace, name, node string, phase corev1.PodPhase) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Phase: phase},
	}
	if phase == corev1.PodRunning {
		p.Status.PodIPs = []corev1.PodIP{{IP: "10.244.1.5"}, {IP: "fd00:10:244:1::5"}}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return p
}

// reportOf is the metadata of a report's ConfigMap, or of one that looks like it.
func reportOf(name string, created int64, labels, annotations map[string]string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "checks", Name: name, CreationTimestamp: metav1.NewTime(time.Unix(created, 0)), Labels: labels, Annotations: annotations,
		},
	}
}

// clusterOf is a cluster with these objects, ConfigMaps as metadata.
func clusterOf(t *testing.T, objects ...runtime.Object) (cluster.Reader, *fake.Clientset) {
	t.Helper()
	var full, metadata []runtime.Object
	for _, o := range objects {
		if _, ok := o.(*metav1.PartialObjectMetadata); ok {
			metadata = append(metadata, o)
		} else {
			full = append(full, o)
		}
	}
	client := fake.NewSimpleClientset(full...)
	client.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{GitVersion: "v1.35.0"}
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return cluster.Reader{Kubernetes: client, Metadata: metadatafake.NewSimpleMetadataClient(scheme, metadata...), Namespace: "checks"}, client
}

// survey does what kind.Survey does.
func survey(t *testing.T, c cluster.Reader, p *checkup.Plan) (*cluster.Snapshot, error) {
	t.Helper()
	s, err := cluster.Survey(t.Context(), c)
	if err != nil {
		return nil, err
	}
	if err := Survey(t.Context(), c, p, s); err != nil {
		return nil, err
	}
	s.Normalize()
	return s, nil
}

func TestSurvey(t *testing.T) {
	report := map[string]string{checkup.LabelRole: "report", checkup.LabelPlan: "plan"}
	round := func(check, n string) map[string]string { return map[string]string{checkup.AnnotationRound + check: n} }
	leaving := surveyedPod("shop", "leaving", "a", corev1.PodRunning)
	leaving.DeletionTimestamp, leaving.Finalizers = new(metav1.Now()), []string{"example/wait"}
	c, _ := clusterOf(t,
		surveyedNode("b", func(n *corev1.Node) {
			n.Spec.Unschedulable = true
			n.Spec.Taints = []corev1.Taint{{Key: "node.kubernetes.io/unschedulable", Effect: corev1.TaintEffectNoSchedule, TimeAdded: new(metav1.Now())}}
			n.Status.Conditions = nil
		}),
		surveyedNode("a", func(n *corev1.Node) { n.Spec.PodCIDRs, n.Status.Allocatable = nil, nil }),
		surveyedPod("checks", "mine", "a", corev1.PodRunning),
		surveyedPod("shop", "two", "b", corev1.PodPending),
		surveyedPod("shop", "one", "a", corev1.PodRunning),
		surveyedPod("shop", "waiting", "", corev1.PodPending),
		surveyedPod("shop", "elsewhere", "gone", corev1.PodRunning),
		leaving,
		surveyedPod("shop", "done", "a", corev1.PodSucceeded),
		surveyedPod("shop", "failed", "a", corev1.PodFailed),
		reportOf("newer", 200, report, round("mesh", "3")),
		reportOf("newer-chunk", 200, report, round("mesh", "3")),
		reportOf("older", 100, report, map[string]string{checkup.AnnotationRound + "mesh": "2", checkup.AnnotationRound + "web": "7", "other": "5"}),
		reportOf("no-number", 300, report, round("mesh", "four")),
		reportOf("negative", 300, report, round("mesh", "-4")),
		reportOf("other-plan", 300, map[string]string{checkup.LabelRole: "report", checkup.LabelPlan: "other"}, round("mesh", "9")),
		reportOf("record", 300, map[string]string{checkup.LabelRole: "record", checkup.LabelPlan: "plan"}, round("mesh", "9")),
	)
	p := meshPlan(func(m *Spec) { m.Sample.Rotate = true })
	p.Checks["web"] = meshPlan(webPods).Checks["mesh"]
	p.Checks["web-again"] = meshPlan(webPods).Checks["mesh"]
	p.Checks["inside"] = meshPlan(func(m *Spec) {
		m.Sources.Pods = &PodSources{Namespace: "shop", Name: "one"}
		m.Targets.Pods = &PodTargets{Namespace: "shop", Name: "done", Port: 80}
	}).Checks["mesh"]
	p.Checks["own"] = meshPlan(webPods, func(m *Spec) { m.Targets.Pods.Namespace = "" }).Checks["mesh"]

	s, err := survey(t, c, p)
	if err != nil {
		t.Fatal(err)
	}
	got, err := cluster.EncodeSnapshot(s)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "survey.json", got)
	again, err := cluster.DecodeSnapshot(got)
	if err != nil {
		t.Fatalf("a survey cannot be read again: %v", err)
	}
	if diff := cmp.Diff(s, again); diff != "" {
		t.Errorf("a survey changes when it is recorded (-survey +read):\n%s", diff)
	}
}

// TestSurveyErrors: what cannot be read is an error, and all of it is reported.
func TestSurveyErrors(t *testing.T) {
	forbidden := func(verb, resource string) clienttesting.ReactionFunc {
		return func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", fmt.Errorf("user cannot %s", verb))
		}
	}
	rotating := func(m *Spec) { m.Sample.Rotate = true }
	tests := []struct {
		name    string
		plan    *checkup.Plan
		breakIt func(c *cluster.Reader, client *fake.Clientset)
		err     []string // "" for none
	}{
		{
			"no rights at all", meshPlan(webPods, rotating),
			func(c *cluster.Reader, client *fake.Clientset) {
				client.PrependReactor("list", "pods", forbidden("list", "pods"))
				c.Metadata.(*metadatafake.FakeMetadataClient).PrependReactor("list", "configmaps", forbidden("list", "configmaps"))
			},
			[]string{
				"list pods with labels app=web in namespace shop: missing the verb list on pods in namespace shop (a Role): pods is forbidden: user cannot list",
				"read the last round: list configmaps with labels checkplan.dev/plan=plan,checkplan.dev/role=report in namespace checks: missing the verb list on configmaps in namespace checks (a Role): configmaps is forbidden: user cannot list",
			},
		}, {
			"no metadata client, and none needed", meshPlan(), func(c *cluster.Reader, _ *fake.Clientset) { c.Metadata = nil }, nil,
		}, {
			"no metadata client", meshPlan(rotating), func(c *cluster.Reader, _ *fake.Clientset) { c.Metadata = nil },
			[]string{"read the last round: no metadata client"},
		}, {
			"a selector that Kubernetes would refuse", meshPlan(webPods, func(m *Spec) { m.Targets.Pods.Selector.MatchLabels["app"] = "a b" }),
			func(*cluster.Reader, *fake.Clientset) {},
			[]string{`check "mesh": targets.pods.selector: values[0][app]: Invalid value: "a b": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')`},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c, client := clusterOf(t, surveyedNode("a"))
			test.breakIt(&c, client)
			s, err := survey(t, c, test.plan)
			if fmt.Sprint(err) != cmpErr(strings.Join(test.err, "\n")) {
				t.Errorf("error:\n%v\nwant:\n%s", err, strings.Join(test.err, "\n"))
			}
			if (s == nil) != (err != nil) {
				t.Errorf("snapshot %v with error %v", s, err)
			}
		})
	}
}
