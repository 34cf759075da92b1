// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// sheetOf is a sheet of these placements.
func sheetOf(t *testing.T, source, target PodPlacement) *Sheet {
	t.Helper()
	sheet := &Sheet{Origin: "plan", Mode: cluster.DiagnosticsAll}
	for _, side := range Sides {
		p := source
		if side == SideTarget {
			p = target
		}
		pod, err := podOf("plan", "check", side, p, nil)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		sheet.Sides = append(sheet.Sides, Side{Side: side, Workload: workloads[side].kind, Pod: raw})
	}
	return sheet
}

// apiServer answers every request by one function.
func apiServer(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, pod *corev1.Pod) (int, runtime.Object)) kubernetes.Interface {
	t.Helper()
	codec := scheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
			return
		}
		code, reply := answer(w, r, object.(*corev1.Pod))
		raw, err := runtime.Encode(codec, reply)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		w.Write(raw)
	}))
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// asked is what the API server answered about one side.
type asked struct {
	Side SideName
	Admission
	Cause *checkup.Cause
}

// fact is the answer as the probe task records it.
func (a asked) fact() checkup.Fact {
	f := checkup.Fact{Unit: string(a.Side), Cause: a.Cause}
	if a.Cause == nil {
		b, err := json.Marshal(a.Admission)
		if err != nil {
			panic(err) // plain structs of strings always encode
		}
		f.Content = b
	}
	return f
}

// askSides asks about the sides of a sheet.
func askSides(ctx context.Context, t *testing.T, c kubernetes.Interface, sheet *Sheet) []asked {
	t.Helper()
	w := &checkup.Worksheet{}
	if err := sheet.Put(w); err != nil {
		t.Fatal(err)
	}
	var all []asked
	for _, f := range Ask(ctx, c, "checks", w) {
		a := asked{Side: SideName(f.Unit), Cause: f.Cause}
		if (f.Content == nil) != (f.Cause != nil) {
			t.Fatalf("%s: content %s and cause %v: want one of them", f.Unit, f.Content, f.Cause)
		}
		if f.Content != nil {
			if err := json.Unmarshal(f.Content, &a.Admission); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, a)
	}
	return all
}

// TestAskUnreadable: a side of a worksheet without details is not asked about, and
// its fact says so.
func TestAskUnreadable(t *testing.T) {
	facts := Ask(t.Context(), fake.NewSimpleClientset(), "checks", &checkup.Worksheet{Units: []string{"source"}})
	if len(facts) != 1 || facts[0].Unit != "source" || facts[0].Cause == nil || !strings.Contains(facts[0].Cause.Message, "no details") {
		t.Errorf("%+v", facts)
	}
}

// TestAskIsDry: each pod is posted once, to be created with dryRun=All, in the
// run's namespace, by a name of its own.
func TestAskIsDry(t *testing.T) {
	var requests []string
	var mu sync.Mutex
	client := apiServer(t, func(w http.ResponseWriter, r *http.Request, pod *corev1.Pod) (int, runtime.Object) {
		mu.Lock()
		defer mu.Unlock()
		requests = append(requests, r.Method+" "+r.URL.String()+" "+pod.Namespace+" "+pod.GenerateName+pod.Labels[appLabel])
		w.Header().Add("Warning", `299 - "first of `+pod.Labels[appLabel]+`"`)
		w.Header().Add("Warning", `299 - "second"`)
		w.Header().Add("Warning", `299 - "second"`)
		w.Header().Add("Warning", `199 - "not of Kubernetes"`)
		pod.Spec.PriorityClassName, pod.Spec.Priority = "usual", new(int32(5))
		return http.StatusCreated, pod
	})
	got := askSides(t.Context(), t, client, sheetOf(t, SourceDefaults(), TargetDefaults()))
	changed := []string{"priority 5 from the class usual, which was not requested"}
	want := []asked{
		{Side: "source", Admission: Admission{Allowed: true, Warnings: []string{"first of network-check-source", "second"}, Changed: changed}},
		{Side: "target", Admission: Admission{Allowed: true, Warnings: []string{"first of network-check-target", "second"}, Changed: changed}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("admissions (-want +got):\n%s", diff)
	}
	wantRequests := []string{
		"POST /api/v1/namespaces/checks/pods?dryRun=All checks network-check-source",
		"POST /api/v1/namespaces/checks/pods?dryRun=All checks network-check-target",
	}
	slices.Sort(requests) // both sides are asked at once
	if diff := cmp.Diff(wantRequests, requests); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// TestAskWithoutHTTP: a clientset that speaks no HTTP is asked for a dry run too.
func TestAskWithoutHTTP(t *testing.T) {
	client := fake.NewSimpleClientset()
	got := askSides(t.Context(), t, client, sheetOf(t, SourceDefaults(), TargetDefaults()))
	want := []asked{{Side: "source", Admission: Admission{Allowed: true}}, {Side: "target", Admission: Admission{Allowed: true}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("admissions (-want +got):\n%s", diff)
	}
	if n := len(client.Actions()); n != 2 {
		t.Fatalf("%d requests, want 2", n)
	}
	for _, a := range client.Actions() {
		create, ok := a.(clienttesting.CreateActionImpl)
		if !ok || a.GetNamespace() != "checks" || !cmp.Equal(create.CreateOptions.DryRun, []string{metav1.DryRunAll}) {
			t.Errorf("%+v is no dry run of a creation in the namespace", a)
		}
	}
}

// TestAskNothing: without sides there is nothing to ask.
func TestAskNothing(t *testing.T) {
	client := fake.NewSimpleClientset()
	if got := askSides(t.Context(), t, client, &Sheet{Mode: cluster.DiagnosticsDisabled}); got != nil || len(client.Actions()) > 0 {
		t.Errorf("%+v, and requests %v", got, client.Actions())
	}
}

// TestAskAnswers: what each answer of an API server comes to: a decision
// against the pod, or none.
func TestAskAnswers(t *testing.T) {
	pods := corev1.Resource("pods")
	// What kube-apiserver 1.35 says; those with a name are of admission.
	authorization := apierrors.NewForbidden(pods, "", errorText(`User "nobody" cannot create resource "pods" in API group "" in the namespace "checks"`))
	denial := func(code int32, reason metav1.StatusReason) *apierrors.StatusError {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: `admission webhook "policy.example.com" denied the request: image not signed`}}
	}
	quota := `exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0`
	for name, tt := range map[string]struct {
		err     *apierrors.StatusError
		message string
		cause   string
	}{
		"quota":                    {err: apierrors.NewForbidden(pods, "p", errorText(quota)), message: `pods "p" is forbidden: ` + quota},
		"pod security":             {err: apierrors.NewForbidden(pods, "p", errorText(`violates PodSecurity "restricted:latest": hostPort`)), message: `pods "p" is forbidden: violates PodSecurity "restricted:latest": hostPort`},
		"validation":               {err: apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "p", field.ErrorList{field.Invalid(field.NewPath("spec", "nodeSelector"), "x", "no label")}), message: `Pod "p" is invalid: spec.nodeSelector: Invalid value: "x": no label`},
		"webhook, forbidden":       {err: denial(403, metav1.StatusReasonForbidden), message: `admission webhook "policy.example.com" denied the request: image not signed`},
		"webhook, bad request":     {err: denial(400, ""), message: `admission webhook "policy.example.com" denied the request: image not signed`},
		"webhook, whatever":        {err: denial(418, "Teapot"), message: `admission webhook "policy.example.com" denied the request: image not signed`},
		"authorization":            {err: authorization, cause: `missing the verb create on pods in namespace checks (a Role), which a dry run also needs: ` + authorization.Error()},
		"not logged in":            {err: apierrors.NewUnauthorized("Unauthorized"), cause: "the API server did not decide on the pod: Unauthorized"},
		"no namespace":             {err: apierrors.NewNotFound(corev1.Resource("namespaces"), "checks"), cause: `the API server did not decide on the pod: namespaces "checks" not found`},
		"a pod of that name":       {err: apierrors.NewAlreadyExists(pods, "p"), cause: `a pod with the name of the dry run's pod already exists, and the API server did not decide: pods "p" already exists`},
		"webhook without dry run":  {err: apierrors.NewBadRequest(`admission webhook "side.example.com" does not support dry run`), cause: `the API server did not decide on the pod: admission webhook "side.example.com" does not support dry run`},
		"webhook that is away":     {err: apierrors.NewInternalError(errorText(`failed calling webhook "away.example.com": connection refused`)), cause: `the API server did not decide on the pod: Internal error occurred: failed calling webhook "away.example.com": connection refused`},
		"API server that is going": {err: apierrors.NewServiceUnavailable("shutting down"), cause: "the API server did not decide on the pod: shutting down"},
	} {
		t.Run(name, func(t *testing.T) {
			client := apiServer(t, func(http.ResponseWriter, *http.Request, *corev1.Pod) (int, runtime.Object) {
				status := tt.err.Status()
				return int(status.Code), &status
			})
			want := asked{Admission: Admission{Message: tt.message}}
			if tt.cause != "" {
				want.Cause = &checkup.Cause{Stage: checkup.StageCollect, Message: tt.cause}
			}
			sheet := sheetOf(t, SourceDefaults(), TargetDefaults())
			got := askSides(t.Context(), t, client, sheet)
			if len(got) != len(sheet.Sides) {
				t.Fatalf("%d answers", len(got))
			}
			for i, a := range got {
				want.Side = sheet.Sides[i].Side
				if diff := cmp.Diff(want, a); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
		})
	}
}

type errorText string

func (e errorText) Error() string { return string(e) }

// TestAskAway: an API server that is not there, or not for long enough, has not
// decided.
func TestAskAway(t *testing.T) {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	sheet := sheetOf(t, SourceDefaults(), TargetDefaults())
	for words, ctx := range map[string]context.Context{"connection refused": t.Context(), "context canceled": stopped} {
		for _, a := range askSides(ctx, t, client, sheet) {
			if a.Allowed || a.Message != "" || a.Cause == nil || !strings.Contains(a.Cause.Message, words) {
				t.Errorf("%+v (%v), want no decision and %q as its cause", a, a.Cause, words)
			}
		}
	}
	sheet.Sides[0].Pod = json.RawMessage(`"none"`)
	if a := askSides(t.Context(), t, fake.NewSimpleClientset(), sheet)[0]; a.Allowed || a.Cause == nil || !strings.Contains(a.Cause.Message, "cannot read the pod of this side") {
		t.Errorf("%+v, want no decision on what is no pod", a)
	}
}

// TestAskSilent: an API server that takes the connection and then says nothing is
// not waited for without end.
func TestAskSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards servers
		var servers []net.Conn
		client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api.invalid", Dial: func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			mu.Lock()
			defer mu.Unlock()
			servers = append(servers, there)
			return here, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		all := askSides(t.Context(), t, client, sheetOf(t, SourceDefaults(), TargetDefaults()))
		for _, a := range all {
			if a.Allowed || a.Cause == nil || !strings.Contains(a.Cause.Message, "context deadline exceeded") {
				t.Errorf("%+v (%v), want no decision", a, a.Cause)
			}
		}
		if took := time.Since(start); len(all) != 2 || took != patience {
			t.Errorf("%d answers after %v, want 2 after %v", len(all), took, patience)
		}
		for _, s := range servers {
			s.Close()
		}
	})
}

// TestChanges: each change of admission that bears on where a pod lands.
func TestChanges(t *testing.T) {
	source := PodPlacement{
		NodeSelector:      map[string]string{"a": "1", "b": "2"},
		Tolerations:       []checkup.Toleration{{Key: "mine", Operator: "Exists"}},
		PriorityClassName: "asked",
		Resources:         checkup.Resources{Requests: map[string]string{"cpu": "0.5", "memory": "1Gi"}},
		HostPorts:         []int{80},
	}
	asked, err := podOf("plan", "check", SideSource, source, nil)
	if err != nil {
		t.Fatal(err)
	}
	exists := corev1.TolerationOpExists
	for name, tt := range map[string]struct {
		change func(*corev1.PodSpec)
		want   []string
	}{
		"nothing": {change: func(*corev1.PodSpec) {}},
		"what every pod gets": {change: func(s *corev1.PodSpec) {
			for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
				s.Tolerations = append(s.Tolerations, corev1.Toleration{Key: key, Operator: exists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))})
			}
			s.ServiceAccountName, s.SchedulerName, s.DNSPolicy = "default", corev1.DefaultSchedulerName, corev1.DNSClusterFirst
			s.PriorityClassName, s.Priority = "", new(int32(0))
			s.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("500m")
		}},
		"tolerations": {change: func(s *corev1.PodSpec) {
			s.Tolerations = []corev1.Toleration{
				{Operator: exists},
				{Key: "dedicated", Value: "infra", Effect: corev1.TaintEffectNoSchedule},
				{Key: corev1.TaintNodeNotReady, Operator: exists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(60))},
			}
		}, want: []string{
			"toleration of everything added", "toleration dedicated=infra:NoSchedule added",
			"toleration node.kubernetes.io/not-ready:NoExecute for 60s added", "toleration mine removed",
		}},
		"node selector": {change: func(s *corev1.PodSpec) {
			s.NodeSelector = map[string]string{"a": "1", "b": "3", "c": ""}
		}, want: []string{"node selector b=3 instead of 2", "node selector c= added"}},
		"node selector taken away": {change: func(s *corev1.PodSpec) { s.NodeSelector = nil }, want: []string{"node selector a=1 removed", "node selector b=2 removed"}},
		"affinity and spread": {change: func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{}}
			s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1}}
		}, want: []string{"affinity changed", "topology spread constraints changed"}},
		"priority":       {change: func(s *corev1.PodSpec) { s.Priority = new(int32(7)) }, want: []string{"priority 7 from the class asked"}},
		"other priority": {change: func(s *corev1.PodSpec) { s.PriorityClassName, s.Priority = "other", new(int32(7)) }, want: []string{"priority 7 from the class other, which was not requested"}},
		"who decides": {change: func(s *corev1.PodSpec) {
			s.SchedulerName = "bin-packer"
			s.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}}
		}, want: []string{"scheduler bin-packer decides: the prediction does not apply to it", "scheduling gate example.com/wait added: the pod waits until it is removed"}},
		"runtime class": {change: func(s *corev1.PodSpec) {
			s.RuntimeClassName = new("gvisor")
			s.Overhead = corev1.ResourceList{"cpu": resource.MustParse("50m")}
		}, want: []string{"runtime class gvisor added", "overhead cpu 50m added"}},
		"resources": {change: func(s *corev1.PodSpec) {
			r := &s.Containers[0].Resources
			r.Requests = corev1.ResourceList{"cpu": resource.MustParse("1"), "ephemeral-storage": resource.MustParse("1Gi")}
			r.Limits = corev1.ResourceList{"memory": resource.MustParse("2Gi")}
		}, want: []string{"request cpu 1 instead of 500m", "request ephemeral-storage 1Gi added", "request memory 1Gi removed", "limit memory 2Gi added"}},
		"a sidecar": {change: func(s *corev1.PodSpec) {
			s.Containers = append(s.Containers, corev1.Container{
				Name:      "proxy",
				Ports:     []corev1.ContainerPort{{HostPort: 15001, ContainerPort: 15001, Protocol: corev1.ProtocolTCP}},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("10m")}},
			})
		}, want: []string{"container proxy added", "request cpu 10m added", "host port 15001/TCP added"}},
	} {
		t.Run(name, func(t *testing.T) {
			admitted := asked.DeepCopy()
			tt.change(&admitted.Spec)
			if diff := cmp.Diff(tt.want, changes(asked, admitted)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
