// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/controlplane"
	"github.com/checkplan/checkplan/pkg/placement"
	"github.com/checkplan/checkplan/pkg/podmesh"
	"github.com/checkplan/checkplan/pkg/servicerules"
	"github.com/checkplan/checkplan/pkg/vmlatency"
)

// TestStarts: of these kinds, only checks of VMs start VMs, whatever other checks the plan has.
func TestStarts(t *testing.T) {
	mesh, vms := checkup.Check{Spec: &podmesh.Spec{}}, checkup.Check{Spec: &vmlatency.Spec{}}
	for _, tt := range []struct {
		checks map[string]checkup.Check
		want   bool
	}{
		{nil, false},
		{map[string]checkup.Check{"a": mesh}, false},
		{map[string]checkup.Check{"a": mesh, "b": vms}, true},
	} {
		p := &checkup.Plan{Checks: tt.checks}
		if got := p.Starts(checkup.RoleGuest); got != tt.want {
			t.Errorf("checks %v: %v, want %v", p.CheckNames(), got, tt.want)
		}
	}
}

// TestEveryKindIsKnown: a kind has one name, and everything without which it cannot
// be set up.
func TestEveryKindIsKnown(t *testing.T) {
	seen := map[checkup.Kind]bool{}
	for _, want := range All {
		spec := want.New()
		if spec.Kind() != want.Name || seen[want.Name] {
			t.Errorf("kind %q, its parameters are of %q; there is another: %v", want.Name, spec.Kind(), seen[want.Name])
		}
		seen[want.Name] = true
		plan := &checkup.Plan{Name: "p", Checks: map[string]checkup.Check{"c": {Spec: spec}}}
		k, err := Of(plan, "c")
		if err != nil {
			t.Errorf("%s: %v", want.Name, err)
			continue
		}
		if k.Name != want.Name || k.Survey == nil || k.Expand == nil || k.Roster == nil || k.Judge == nil || len(k.Rules) == 0 || len(spec.Params()) == 0 {
			t.Errorf("%s: %+v lacks something", want.Name, k)
		}
	}
}

func TestOfUnknown(t *testing.T) {
	plan := &checkup.Plan{Name: "p", Checks: map[string]checkup.Check{"none": {}}}
	for _, tt := range []struct{ check, want string }{
		{"mesh", `plan p has no check "mesh"; it has ["none"]`},
		{"none", `check "none": unsupported kind "": the task images are too old`},
	} {
		if _, err := Of(plan, tt.check); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.check, err, tt.want)
		}
	}
}

// TestSurvey: every named check is surveyed, and only those; what cannot be read
// is reported at once.
func TestSurvey(t *testing.T) {
	pods := func(app string) checkup.Check {
		return checkup.Check{Spec: &podmesh.Spec{Targets: podmesh.Targets{Pods: &podmesh.PodTargets{
			Namespace: "shop", Selector: checkup.LabelSelector{MatchLabels: map[string]string{"app": app}}, Port: 80,
		}}}}
	}
	plan := &checkup.Plan{Name: "p", Checks: map[string]checkup.Check{"web": pods("web"), "db": pods("db")}}
	client := fake.NewSimpleClientset(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{"app": "web"}},
			Spec:       corev1.PodSpec{NodeName: "gone"},
		},
	)
	r := cluster.Reader{Kubernetes: client, Namespace: "checks"}
	selectors := func(checks ...string) []string {
		s, err := Survey(t.Context(), r, plan, checks...)
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Nodes) != 2 || s.Nodes[0].Name != "a" {
			t.Errorf("nodes %v", s.Nodes)
		}
		var all []string
		for _, selection := range s.Selections {
			all = append(all, selection.Selector)
			for _, pod := range selection.Pods {
				if pod.Node != "" {
					t.Errorf("pod %s is on node %s, which is not there", pod.Name, pod.Node)
				}
			}
		}
		return all
	}
	if diff := cmp.Diff([]string{"app=db", "app=web"}, selectors()); diff != "" {
		t.Errorf("all checks (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"app=web"}, selectors("web")); diff != "" {
		t.Errorf("one check (-want +got):\n%s", diff)
	}
	if _, err := Survey(t.Context(), r, plan, "other"); err == nil ||
		!strings.Contains(err.Error(), `plan p has no check "other"`) {
		t.Errorf("no such check: %v", err)
	}

	client.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "", errors.New("user cannot"))
	})
	_, err := Survey(t.Context(), r, plan, "web")
	want := "survey: list nodes: missing the verb list on nodes in the whole cluster (a ClusterRole): nodes is forbidden: user cannot\n" +
		"list pods with labels app=web in namespace shop: missing the verb list on pods in namespace shop (a Role): pods is forbidden: user cannot"
	if fmt.Sprint(err) != want {
		t.Errorf("no rights:\n%v\nwant:\n%s", err, want)
	}
}

// TestNodesUnseen: a check of VMs is worked out without the right to list nodes,
// one of another kind is not, nor one of VMs where another trouble hides them.
func TestNodesUnseen(t *testing.T) {
	plan := &checkup.Plan{
		Name:   "p",
		Checks: map[string]checkup.Check{"vms": {Spec: &vmlatency.Spec{}}, "mesh": {Spec: &podmesh.Spec{}}},
	}
	client := fake.NewSimpleClientset()
	failure := error(apierrors.NewForbidden(corev1.Resource("nodes"), "", errors.New("user cannot")))
	client.PrependReactor(
		"list",
		"nodes",
		func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, failure },
	)
	r := cluster.Reader{Kubernetes: client, Namespace: "checks", Run: "uid"}
	const want = "list nodes: missing the verb list on nodes in the whole cluster (a ClusterRole): nodes is forbidden: user cannot"
	s, err := Survey(t.Context(), r, plan, "vms")
	if err != nil || !s.NodesUnseen() || s.Unseen[0].Cause != want || s.Run != "uid" {
		t.Errorf("VMs: %+v, %v", s, err)
	}
	for _, checks := range [][]string{{"mesh"}, nil} {
		if _, err := Survey(t.Context(), r, plan, checks...); fmt.Sprint(err) != "survey: "+want {
			t.Errorf("%q: %v", checks, err)
		}
	}
	failure = errors.New("timeout")
	if _, err := Survey(t.Context(), r, plan, "vms"); fmt.Sprint(err) != "survey: list nodes: timeout" {
		t.Errorf("no answer: %v", err)
	}
}

// TestRights: the right to list nodes is that of the kinds that cannot do without
// them.
func TestRights(t *testing.T) {
	for kind, check := range map[checkup.Kind]checkup.Check{
		podmesh.Name: {Spec: &podmesh.Spec{}}, controlplane.Name: {Spec: &controlplane.Spec{}},
		placement.Name: {Spec: &placement.Spec{}}, vmlatency.Name: {Spec: &vmlatency.Spec{}},
	} {
		has := slices.ContainsFunc(
			Rights(check),
			func(r checkup.Right) bool { return r.Resource == "nodes" && r.Verb == "list" },
		)
		k, _ := Named(kind)
		if has != (kind != vmlatency.Name) || has != k.Nodes {
			t.Errorf("%s: the right to list nodes: %v", kind, has)
		}
	}
	if got := Rights(checkup.Check{}); got != nil {
		t.Errorf("no kind: %v", got)
	}
}

// TestChecksShareTheLevel: a worksheet has the number of the plan's checks that test limits; those that compare, and a
// check without others, have none.
func TestChecksShareTheLevel(t *testing.T) {
	mesh := func() checkup.Check {
		return checkup.Check{Spec: &podmesh.Spec{
			Sample: podmesh.Sample{Budget: 100},
			Probes: map[checkup.Transport]checkup.Probe{checkup.ICMP: {Sizes: []int{56}, Count: 5}},
		}}
	}
	snapshot := &cluster.Snapshot{}
	for _, name := range []string{"n1", "n2"} {
		snapshot.Nodes = append(snapshot.Nodes, cluster.Node{
			Name: name, Ready: corev1.ConditionTrue, PodCIDRs: []string{"10.244.0.0/24"},
		})
	}
	for _, tt := range []struct {
		name   string
		others map[string]checkup.Check
		want   int
	}{
		{"alone", nil, 0},
		{"beside a dry run", map[string]checkup.Check{"dry": {Spec: &placement.Spec{}}}, 0},
		{"beside rules", map[string]checkup.Check{"rules": {Spec: &servicerules.Spec{}}}, 0},
		{"beside another mesh, VMs and rules", map[string]checkup.Check{
			"more": mesh(), "vms": {Spec: &vmlatency.Spec{}}, "rules": {Spec: &servicerules.Spec{}},
		}, 3},
	} {
		plan := &checkup.Plan{Name: "p", Checks: map[string]checkup.Check{"mesh": mesh()}}
		maps.Copy(plan.Checks, tt.others)
		w, _, err := Expand(plan, "mesh", snapshot)
		if err != nil {
			t.Fatal(err)
		}
		if w.Checks != tt.want {
			t.Errorf("%s: %d checks share the level, want %d", tt.name, w.Checks, tt.want)
		}
	}
}

func TestPodMeshRoster(t *testing.T) {
	plan := &checkup.Plan{Checks: map[string]checkup.Check{"mesh": {Spec: &podmesh.Spec{
		Targets: podmesh.Targets{
			Pods: &podmesh.PodTargets{
				Selector: checkup.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
				Port:     8080,
			},
		},
	}}}}
	w := &checkup.Worksheet{Check: "mesh", Targets: []checkup.Endpoint{
		{Node: "n0", Pod: "shop/both"}, {Node: "n1", Pod: "shop/none"}, {Node: "n2"},
	}}
	s := &cluster.Snapshot{Selections: []cluster.Selection{{Selector: "app=web", Pods: []cluster.Pod{
		{
			Name:  "shop/both",
			Node:  "n0",
			IPs:   []string{"198.18.0.1", "fd00::1"},
			Ready: true,
		}, {Name: "shop/none", Node: "n1"},
	}}}}
	ports := map[checkup.Transport]int{checkup.TCP: 8080, checkup.HTTP: 8080}
	want := &checkup.Roster{Targets: []checkup.RosterEntry{
		{
			Pod:       "shop/both",
			Ports:     ports,
			Addresses: map[checkup.IPFamily]string{checkup.IPv4: "198.18.0.1", checkup.IPv6: "fd00::1"},
		},
		{Pod: "shop/none", Cause: &checkup.Cause{Stage: checkup.StageSetup, Message: "the pod has no address yet"}},
		{},
	}}
	if diff := cmp.Diff(want, podmesh.Kind.Roster(plan, w, s)); diff != "" {
		t.Errorf("existing pods (-want +got):\n%s", diff)
	}
	plan.Checks["mesh"].Spec.(*podmesh.Spec).Targets.Pods = nil
	if diff := cmp.Diff(&checkup.Roster{Targets: make([]checkup.RosterEntry, 3)}, podmesh.Kind.Roster(plan, w, s)); diff != "" {
		t.Errorf("responders (-want +got):\n%s", diff)
	}
}
