// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/controlplane"
	"github.com/checkplan/checkplan/pkg/placement"
	"github.com/checkplan/checkplan/pkg/podmesh"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

// plan as the schema's defaults make it, on nodes that are labelled so.
func plan(t *testing.T) string {
	linux := checkup.Placement{NodeSelector: map[string]string{"kubernetes.io/os": "linux"}}
	second := checkup.Duration(time.Second)
	return planOf(t, map[string]checkup.Check{"mesh": {Spec: &podmesh.Spec{
		Sources: podmesh.Sources{Placement: linux}, Targets: podmesh.Targets{Placement: linux},
		Sample:     podmesh.Sample{Degree: 1, Budget: 1000},
		IPFamilies: []checkup.IPFamily{checkup.IPv4},
		Probes:     map[checkup.Transport]checkup.Probe{checkup.TCP: {Sizes: []int{0}, Count: 1, Interval: second, Timeout: second}},
		Limits:     checkup.Limits{PacketsPerSecond: 10, Concurrency: 1, StartJitter: second},
		Timeouts:   checkup.Timeouts{Setup: 60 * second, Probe: 60 * second},
	}}})
}

func planOf(t *testing.T, checks map[string]checkup.Check) string {
	b, err := json.Marshal(checkup.Plan{
		Name: "day-2", Gate: checkup.Gate{Require: checkup.RequirePass}, Teardown: checkup.TeardownAlways, Retention: checkup.Retention{Reports: 3},
		Checks: checks,
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// node is a Ready node without labels.
func node(name string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110")}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

func newTask(t *testing.T, nodes ...string) (*task.Task, *fake.Clientset, *strings.Builder) {
	client := fake.NewSimpleClientset()
	for _, n := range nodes {
		node := node(n)
		node.Labels = map[string]string{"kubernetes.io/os": "linux"}
		if err := client.Tracker().Add(node); err != nil {
			t.Fatal(err)
		}
	}
	client.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		pod := a.(k8stesting.CreateAction).GetObject().(*corev1.Pod)
		if isDryRun(a) {
			return true, pod, nil
		}
		pod.Status = corev1.PodStatus{
			Phase:      corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			PodIPs:     []corev1.PodIP{{IP: "198.18.0.1"}},
		}
		return false, nil, nil
	})
	log := &strings.Builder{}
	return &task.Task{
		Kubernetes: client, Namespace: "ns", RunName: "run", RunUID: "uid-1", PodName: "setup-pod", PodUID: "uid-2",
		AgentImage: "registry.example/agent:v1", PlanJSON: plan(t), Check: "mesh", Stdout: log, Results: t.TempDir(),
	}, client, log
}

// isDryRun reports whether a request changes nothing.
func isDryRun(a k8stesting.Action) bool {
	create, ok := a.(k8stesting.CreateActionImpl)
	return ok && slices.Equal(create.CreateOptions.DryRun, []string{metav1.DryRunAll})
}

// measurableOf is the Tekton result that decides whether the probe task is started.
func measurableOf(t *testing.T, tk *task.Task) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(tk.Results, "measurable"))
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

func TestSetup(t *testing.T) {
	tk, _, log := newTask(t, "n0", "n1", "n2")
	tk.Settings = []string{"mesh.degree=2"}
	if err := run(t.Context(), tk); err != nil {
		t.Fatal(err, log)
	}
	var frozen record.Frozen
	if err := tk.Store("day-2").Load(t.Context(), record.Worksheet("mesh"), &frozen); err != nil {
		t.Fatal(err)
	}
	if got := measurableOf(t, tk); got != "true" {
		t.Errorf("measurable is %q", got)
	}
	if n := frozen.Worksheet.CountPairs(); n != 6 {
		t.Errorf("%d pairs, want the 6 of a full mesh of 3: the setting counts", n)
	}
	for i, e := range frozen.Roster.Targets {
		if e.Cause != nil || e.Addresses[checkup.IPv4] == "" {
			t.Errorf("target %d: %+v, want it up", i, e)
		}
	}
	if frozen.Started.IsZero() {
		t.Error("nobody knows when it started")
	}
	if p, err := tk.Store("").LoadProgress(t.Context(), "mesh"); err != nil || p != (record.Progress{Phase: "setup", Ready: 3, Pods: 3}) {
		t.Errorf("progress %+v, %v; want 3 of 3", p, err)
	}
}

// TestSetupFails: the error says what to do, and the report repeats it.
func TestSetupFails(t *testing.T) {
	for _, tt := range []struct {
		name    string
		nodes   []string
		prepare func(*task.Task, *fake.Clientset)
		want    string
	}{
		{"no such check", []string{"n0", "n1"}, func(tk *task.Task, _ *fake.Clientset) { tk.Check = "mash" }, `plan day-2 has no check "mash"`},
		{"bad setting", []string{"n0", "n1"}, func(tk *task.Task, _ *fake.Clientset) { tk.Settings = []string{"mesh.degree=many"} }, `mesh.degree: "many"`},
		{"beyond the limits", []string{"n0", "n1"}, limited(checkup.PlanLimits{Pods: new(3), Packets: new(2), PrivilegedPods: new(0)}),
			"plan day-2 would exceed its limits: pods 4, at most 3; nothing is created"},
		{"no node", nil, nil, "no nodes"},
		{"one node", []string{"n0"}, nil, "a mesh needs two nodes"},
		{"no right to list nodes", []string{"n0", "n1"}, func(_ *task.Task, c *fake.Clientset) {
			c.PrependReactor("list", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewForbidden(corev1.Resource("nodes"), "", errors.New("no"))
			})
		}, "missing the verb list on nodes"},
		{"no right to create pods", []string{"n0", "n1"}, func(_ *task.Task, c *fake.Clientset) {
			c.PrependReactor("create", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no"))
			})
		}, "none of 2 responders could be created"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tk, client, _ := newTask(t, tt.nodes...)
			if tt.prepare != nil {
				tt.prepare(tk, client)
			}
			err := run(t.Context(), tk)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("%v, want %q", err, tt.want)
			}
			whole, err := json.Marshal(mustReport(t, tk))
			if err != nil {
				t.Fatal(err)
			}
			if tk.Check == "mesh" && !strings.Contains(string(whole), strings.ReplaceAll(tt.want, `"`, `\"`)) {
				t.Errorf("the report does not say %q: %s", tt.want, whole)
			}
		})
	}
}

// limited gives the plan limits.
func limited(l checkup.PlanLimits) func(*task.Task, *fake.Clientset) {
	return func(tk *task.Task, _ *fake.Clientset) {
		text, err := json.Marshal(l)
		if err != nil {
			panic(err)
		}
		tk.PlanJSON = strings.Replace(tk.PlanJSON, `{`, `{"limits":`+string(text)+`,`, 1)
	}
}

// TestSetupLimits: the limits are those of all checks together, whichever is set up first; a run within them starts,
// and one beyond them creates no pod. One survey is enough for all checks.
func TestSetupLimits(t *testing.T) {
	for _, tt := range []struct {
		pods   int
		system string // of the nodes of the other check; no node has another one than linux
		want   string
	}{{8, "linux", ""}, {7, "linux", "pods 8, at most 7"}, {4, "plan9", ""}} {
		tk, client, _ := newTask(t, "n0", "n1")
		two := strings.Replace(tk.PlanJSON, `"checks":{"mesh":`, `"checks":{"other":MESH,"mesh":`, 1)
		_, mesh, _ := strings.Cut(tk.PlanJSON, `"checks":{"mesh":`)
		other := strings.ReplaceAll(strings.TrimSuffix(mesh, "}}"), `"linux"`, `"`+tt.system+`"`)
		tk.PlanJSON = strings.Replace(two, "MESH", other, 1)
		limited(checkup.PlanLimits{Pods: &tt.pods})(tk, client)
		err := run(t.Context(), tk)
		surveys := 0
		for _, action := range client.Actions() {
			if action.Matches("list", "nodes") {
				surveys++
			}
		}
		if surveys != 1 {
			t.Errorf("%d pods: %d lists of nodes, want 1", tt.pods, surveys)
		}
		if tt.want == "" {
			if err != nil {
				t.Errorf("%d pods: %v", tt.pods, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%d pods: error %v, want %q", tt.pods, err, tt.want)
		}
		for _, action := range client.Actions() {
			if action.GetVerb() == "create" && action.GetResource().Resource == "pods" {
				t.Error("a pod was created")
			}
		}
	}
}

// TestSetupOfConnections: what exists already is on worksheet and roster, nothing
// is started, and the worksheet says whether the pairs' objects will be written.
func TestSetupOfConnections(t *testing.T) {
	const crd = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"podnetworkconnectivitychecks.controlplane.operator.openshift.io"}}`
	for _, tt := range []struct {
		name    string
		change  func(*controlplane.Spec)
		crd     bool // one of another shape is there
		want    string
		failure error
	}{
		{name: "no CRD, and none is to be made", want: "does not allow creating it"},
		{name: "a CRD of another shape", crd: true, want: "is not OpenShift's"},
		{name: "none are to be written", change: func(c *controlplane.Spec) { c.ConnectivityChecks.Write = false }},
		{name: "the API server is away", failure: apierrors.NewInternalError(errors.New("etcd leader changed"))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			check := controlPlane()
			if tt.change != nil {
				tt.change(check)
			}
			tk, client, log := newTask(t, "n0", "n1")
			tk.Check, tk.PlanJSON = "api", planOf(t, map[string]checkup.Check{"api": {Spec: check}})
			crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
			dynamic := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{crds: "CustomResourceDefinitionList"})
			dynamic.PrependReactor("get", crds.Resource, func(k8stesting.Action) (bool, runtime.Object, error) {
				u := &unstructured.Unstructured{}
				switch {
				case tt.failure != nil:
					return true, nil, tt.failure
				case tt.crd:
					return true, u, json.Unmarshal([]byte(crd), &u.Object)
				}
				return false, nil, nil
			})
			tk.Dynamic = dynamic
			if err := client.Tracker().Add(shop); err != nil {
				t.Fatal(err)
			}
			err := run(t.Context(), tk)
			if (err != nil) != (tt.failure != nil) {
				t.Fatalf("%v, want %v; log:\n%s", err, tt.failure, log)
			}
			if err != nil {
				return
			}
			var frozen record.Frozen
			if err := tk.Store("day-2").Load(t.Context(), record.Worksheet("api"), &frozen); err != nil {
				t.Fatal(err)
			}
			w := frozen.Worksheet
			if w.CountPairs() != 1 || w.Targets[0].Peer == nil || frozen.Roster.Targets[0].Cause != nil {
				t.Errorf("worksheet %+v, roster %+v; want one pair that can be measured", w, frozen.Roster)
			}
			if c := w.Connections; (c.Unwritten == "") != (tt.want == "") || !strings.Contains(c.Unwritten, tt.want) {
				t.Errorf("unwritten %q, want %q", c.Unwritten, tt.want)
			}
			if warned := strings.Contains(log.String(), "::warning::no PodNetworkConnectivityCheck will be written"); warned != (tt.want != "") {
				t.Errorf("log %s, want a warning of the objects: %v", log, tt.want != "")
			}
			if slices.ContainsFunc(w.Warnings, func(warning string) bool { return strings.Contains(warning, "PodNetworkConnectivityCheck") }) {
				t.Errorf("warnings %q: the report would mention the objects twice", w.Warnings)
			}
			for _, a := range client.Actions() {
				if a.GetVerb() == "create" && a.GetResource().Resource == "pods" && !isDryRun(a) || a.GetVerb() == "watch" {
					t.Errorf("%s %s: there is nothing to start", a.GetVerb(), a.GetResource().Resource)
				}
			}
		})
	}
}

// TestSetupAsksAdmission: where admission would refuse the agents of the probe task, setup fails and says what to do.
// It has created nothing. The dry run is of a pod with the account of the probe task, by which OpenShift decides. If
// that is not known, setup warns and goes on.
func TestSetupAsksAdmission(t *testing.T) {
	for account, want := range map[string]string{
		"day-2-setup": "day-2-probe", "x-day-2-setup-y": "x-day-2-probe-y", "day-2": "day-2",
		"mine": "", "": "",
	} {
		t.Run(account, func(t *testing.T) {
			tk, client, log := newTask(t, "n0", "n1")
			tk.Account, tk.Check = account, "api"
			tk.PlanJSON = planOf(t, map[string]checkup.Check{"api": {Spec: controlPlane()}})
			tk.Dynamic = dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
			if err := client.Tracker().Add(shop); err != nil {
				t.Fatal(err)
			}
			client.PrependReactor("create", "selfsubjectaccessreviews", func(k8stesting.Action) (bool, runtime.Object, error) {
				allowed := authorizationv1.SubjectAccessReviewStatus{Allowed: true}
				return true, &authorizationv1.SelfSubjectAccessReview{Status: allowed}, nil
			})
			got := "none was asked about"
			client.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
				pod := a.(k8stesting.CreateAction).GetObject().(*corev1.Pod)
				if !isDryRun(a) || !pod.Spec.HostNetwork {
					t.Errorf("pod %s is not a dry run, or not on the host network", pod.Name)
				}
				got = pod.Spec.ServiceAccountName
				return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), pod.Name,
					errors.New("unable to validate against any security context constraint: [hostNetwork]"))
			})
			err := run(t.Context(), tk)
			if want == "" {
				if err != nil || !strings.Contains(log.String(), "may be refused, depending on the account") {
					t.Errorf("%v, want a warning; log:\n%s", err, log)
				}
			} else if err == nil || !strings.Contains(err.Error(), "compile the plan with preset openshift or auto") {
				t.Errorf("%v, want what to do; log:\n%s", err, log)
			}
			if got != want {
				t.Errorf("the pod of the dry run has the account %q, want %q", got, want)
			}
			for _, a := range client.Actions() {
				if a.GetVerb() == "create" && a.GetResource().Resource == "pods" && !isDryRun(a) {
					t.Errorf("setup creates a pod: %v", a)
				}
			}
		})
	}
}

// shop is a component of a plan's own.
var shop = &corev1.Pod{
	ObjectMeta: metav1.ObjectMeta{Name: "shop-1", Namespace: "shop", Labels: map[string]string{"app": "shop"}},
	Spec:       corev1.PodSpec{NodeName: "n0", HostNetwork: true},
	Status: corev1.PodStatus{
		Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "192.0.2.10"}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	},
}

// controlPlane probes from it to an address.
func controlPlane() *controlplane.Spec {
	second := checkup.Duration(time.Second)
	return &controlplane.Spec{
		Preset: controlplane.PresetGeneric, MaxNodes: 10, Interval: second,
		Roles: map[string]controlplane.ComponentRole{
			"shop": {Pods: &controlplane.ComponentPods{Namespace: "shop", Port: 80, Selector: checkup.LabelSelector{MatchLabels: map[string]string{"app": "shop"}}}},
			"bank": {Hosts: []string{"192.0.2.1:443"}, TLS: true},
		},
		Pairs:              []controlplane.ComponentPair{{From: "shop", To: "bank"}},
		Probe:              controlplane.ConnectionProbe{Count: 3, Deadlines: checkup.StageDeadlines{Resolve: second, Connect: second, Handshake: second, Response: second}},
		ConnectivityChecks: checkup.ConnectivityChecks{Write: true, Retention: 7200 * second, StaleAfter: 300 * second},
		Limits:             checkup.Limits{PacketsPerSecond: 10, Concurrency: 1, StartJitter: second},
		Timeouts:           checkup.Timeouts{Setup: 60 * second, Probe: 60 * second},
	}
}

// TestSetupOfHealth: what the worksheet says of PodNetworkHealths; without them, the check goes on.
func TestSetupOfHealth(t *testing.T) {
	for _, tt := range []struct {
		name string
		on   bool
		want string
	}{
		{"off", false, ""},
		{"no CRD, and none is to be made", true, "the cluster has no CustomResourceDefinition podnetworkhealths.networkhealth.checkplan.dev, " +
			"and the plan does not allow creating it (podNetworkHealth.installCRD)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tk, _, log := newTask(t, "n0", "n1")
			p := checkup.Plan{}
			if plan, err := tk.Plan(); err != nil {
				t.Fatal(err)
			} else {
				p = *plan
			}
			if tt.on {
				p.Features.PodNetworkHealth = true
				p.PodNetworkHealth = &checkup.PodNetworkHealth{MaxObjects: 1, StaleAfter: 1, ExpireAfter: 1}
			}
			b, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			tk.PlanJSON = string(b)
			tk.Dynamic = dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
			if err := run(t.Context(), tk); err != nil {
				t.Fatal(err, log)
			}
			var frozen record.Frozen
			if err := tk.Store("day-2").Load(t.Context(), record.Worksheet("mesh"), &frozen); err != nil {
				t.Fatal(err)
			}
			if got := frozen.Worksheet.HealthUnwritten; got != tt.want {
				t.Errorf("unwritten %q, want %q", got, tt.want)
			}
			if warned := strings.Contains(log.String(), "::warning::no PodNetworkHealths are written: "+tt.want); warned != (tt.want != "") {
				t.Errorf("log %s", log)
			}
		})
	}
}

// TestSetupOfPlacement: a dry run is worked out, and nothing is started.
func TestSetupOfPlacement(t *testing.T) {
	minute := checkup.Duration(time.Minute)
	tk, client, log := newTask(t, "n0", "n1")
	tk.Check = "where"
	tk.PlanJSON = planOf(t, map[string]checkup.Check{"where": {Spec: &placement.Spec{Timeouts: checkup.Timeouts{Setup: minute, Probe: minute}}}})
	if err := run(t.Context(), tk); err != nil {
		t.Fatal(err, log)
	}
	var frozen record.Frozen
	if err := tk.Store("day-2").Load(t.Context(), record.Worksheet("where"), &frozen); err != nil {
		t.Fatal(err)
	}
	if sheet, err := placement.SheetOf(&frozen.Worksheet); err != nil || len(frozen.Worksheet.Units) != 2 || len(sheet.Sides) != 2 || len(sheet.Sides[0].Eligible) != 2 {
		t.Error("want two sides, each of which may land on both nodes")
	}
	if !strings.Contains(log.String(), "source (Deployment): 2 nodes are eligible, 0 are not") {
		t.Errorf("the log does not say what came out:\n%s", log)
	}
	for _, a := range client.Actions() {
		if a.GetVerb() == "create" && a.GetResource().Resource == "pods" || a.GetVerb() == "watch" {
			t.Errorf("%s %s: there is nothing to start", a.GetVerb(), a.GetResource().Resource)
		}
	}
}

func mustReport(t *testing.T, tk *task.Task) *checkup.Report {
	tk.Settings = nil
	p, err := tk.Plan()
	if err != nil {
		t.Fatal(err)
	}
	r, err := tk.Report(t.Context(), p, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if r.Verdict != checkup.RunInconclusive {
		t.Errorf("verdict %s without a measurement", r.Verdict)
	}
	return r
}

// TestSetupSweeps: what earlier runs of the plan left behind goes, unless the
// plan says that pods are kept.
func TestSetupSweeps(t *testing.T) {
	for _, tt := range []struct {
		teardown string
		left     int
	}{{"Always", 0}, {"OnPass", 0}, {"Never", 1}} {
		t.Run(tt.teardown, func(t *testing.T) {
			tk, client, log := newTask(t, "n0", "n1")
			tk.Settings = []string{"teardown=" + tt.teardown}
			stale := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Name: "stale", Namespace: "ns",
				Labels:      map[string]string{checkup.LabelPlan: "day-2", checkup.LabelRole: "agent", checkup.LabelRun: "uid-0"},
				Annotations: map[string]string{"checkplan.dev/expires": "2020-01-01T00:00:00Z"},
			}}
			if err := client.Tracker().Add(stale); err != nil {
				t.Fatal(err)
			}
			if err := run(t.Context(), tk); err != nil {
				t.Fatal(err, log)
			}
			pods, err := client.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{LabelSelector: checkup.LabelRun + "=uid-0"})
			if err != nil {
				t.Fatal(err)
			}
			if len(pods.Items) != tt.left {
				t.Errorf("%d stale pods are left, want %d", len(pods.Items), tt.left)
			}
		})
	}
}
