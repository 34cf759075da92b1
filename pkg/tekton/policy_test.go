// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/tektoncd/pipeline/pkg/apis/pipeline/pod"
	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/fleet"
	"github.com/checkplan/checkplan/pkg/kinds"
	"github.com/checkplan/checkplan/pkg/podmesh"
)

// evaluate returns the first message of the policies that refuses a request for a resource; empty if none does.
func evaluate(
	t *testing.T, policies []runtime.Object, user, operation, resource string, dryRun bool, subject, old any,
) string {
	t.Helper()
	env, err := cel.NewEnv(cel.Variable("object", cel.DynType), cel.Variable("oldObject", cel.DynType), cel.Variable("request", cel.DynType))
	if err != nil {
		t.Fatal(err)
	}
	object := func(o any) map[string]any {
		u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	vars := map[string]any{
		"request": map[string]any{"operation": operation, "dryRun": dryRun, "userInfo": map[string]any{"username": user}},
		"object":  object(subject), "oldObject": object(old),
	}
	holds := func(expression string) bool {
		ast, issues := env.Compile(expression)
		if issues.Err() != nil {
			t.Fatalf("%s: %v", expression, issues.Err())
		}
		program, err := env.Program(ast)
		if err != nil {
			t.Fatal(err)
		}
		out, _, err := program.Eval(vars)
		if err != nil {
			t.Fatalf("%s: %v", expression, err)
		}
		return out.Value() == true
	}
	for _, o := range policies {
		p, ok := o.(*admissionv1.ValidatingAdmissionPolicy)
		if !ok || !holds(p.Spec.MatchConditions[0].Expression) {
			continue
		}
		rule := p.Spec.MatchConstraints.ResourceRules[0]
		if !slices.Contains(rule.Resources, resource) || !slices.Contains(rule.Operations, admissionv1.OperationType(operation)) {
			continue
		}
		for _, v := range p.Spec.Validations {
			if !holds(v.Expression) {
				return v.Message
			}
		}
	}
	return ""
}

// fixtures are the pods that setup and probe create, made by the code that makes them in a run.
func fixtures(t *testing.T, host bool) (responder, agent *corev1.Pod) {
	t.Helper()
	return fixturesOf(t, func(w *checkup.Worksheet) { w.Sources[0].HostNetwork = host })
}

// fixturesOf are those of a worksheet that is changed.
func fixturesOf(t *testing.T, change func(*checkup.Worksheet)) (responder, agent *corev1.Pod) {
	t.Helper()
	client := fake.NewSimpleClientset()
	made := map[string]*corev1.Pod{}
	client.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		pod := a.(k8stesting.CreateAction).GetObject().(*corev1.Pod)
		made[pod.Labels[checkup.LabelRole]] = pod.DeepCopy()
		pod.Status.Phase = corev1.PodFailed
		return false, nil, nil
	})
	minute := checkup.Duration(time.Minute)
	w := &checkup.Worksheet{
		Plan: "mesh", Check: "mesh", Sources: []checkup.Endpoint{{Node: "n0"}}, Targets: []checkup.Endpoint{{Node: "n1"}},
		Assignments: [][]int{{0}}, IPFamilies: []checkup.IPFamily{checkup.IPv4},
		Probes:   []checkup.TransportProbe{{Transport: checkup.ICMP, Probe: checkup.Probe{Sizes: []int{56}, Count: 1}}},
		Timeouts: checkup.Timeouts{Setup: minute, Probe: minute},
	}
	change(w)
	f := &fleet.Fleet{Client: client, Namespace: "ns", Plan: "mesh", RunUID: "uid", Image: AgentImage(Options{}), Owner: "p", OwnerUID: "u"}
	roster := &checkup.Roster{Targets: make([]checkup.RosterEntry, 1)}
	if err := f.StartResponders(t.Context(), w, roster, nil); err != nil {
		t.Fatal(err)
	}
	roster.Targets[0] = checkup.RosterEntry{Pod: "ns/r", Addresses: map[checkup.IPFamily]string{checkup.IPv4: "10.0.0.1"}}
	if err := f.Measure(t.Context(), w, roster, nowhere{}, nil); err != nil {
		t.Fatal(err)
	}
	for _, pod := range made { // as the API server completes it
		pod.Spec.SchedulerName, pod.Spec.ServiceAccountName = "default-scheduler", "default"
	}
	return made[string(checkup.RoleResponder)], made[string(checkup.RoleAgent)]
}

type nowhere struct{}

func (nowhere) Observation(checkup.Observation) {}
func (nowhere) Results([]checkup.Result)        {}
func (nowhere) Source(checkup.Source)           {}

// TestPolicies: each account may create the pods of its phase, and no pod that differs where it matters.
func TestPolicies(t *testing.T) {
	mesh, host, where := policyPlan("podMesh"), policyPlan("controlPlane"), policyPlan("placement")
	responder, agent := fixtures(t, false)
	_, hostAgent := fixtures(t, true)
	rules := policyPlan("serviceRules")
	_, reader := fixturesOf(t, func(w *checkup.Worksheet) {
		w.Sources[0].HostNetwork, w.Tables = true, &checkup.TableSheet{Interval: checkup.Duration(time.Second)}
	})
	security := func(change func(*corev1.SecurityContext)) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) { change(s.Containers[0].SecurityContext) }
	}
	const account = "system:serviceaccount:ns:"
	yes, no := true, false
	opts := Options{Namespace: "ns"}
	for _, tt := range []struct {
		name    string
		plan    *checkup.Plan
		user    string
		pod     *corev1.Pod
		change  func(*corev1.PodSpec)
		allowed bool
	}{
		{name: "responder by setup", user: "p-setup", pod: responder, allowed: true},
		{name: "agent by probe", user: "p-probe", pod: agent, allowed: true},
		{name: "both by the account for all phases", user: "p", pod: responder, allowed: true},
		{name: "agent on the host network", plan: host, user: "p-probe", pod: hostAgent, allowed: true},
		{name: "responder on the host network", plan: host, user: "p-setup", pod: responder, change: func(s *corev1.PodSpec) { s.HostNetwork = true }},
		{name: "agent of a mesh on the host network", user: "p-probe", pod: hostAgent},
		{name: "anything by another account", user: "other", pod: agent, change: func(s *corev1.PodSpec) { s.HostPID = true }, allowed: true},
		{name: "another image", user: "p-probe", pod: agent, change: func(s *corev1.PodSpec) { s.Containers[0].Image = "evil" }},
		{name: "in earnest, a pod whose placement is asked", plan: where, user: "p-probe", pod: agent, change: func(s *corev1.PodSpec) { s.Containers[0].Image = "web" }},
		{name: "a second container", user: "p", pod: agent, change: func(s *corev1.PodSpec) { s.Containers = append(s.Containers, s.Containers[0]) }},
		{name: "an init container", user: "p-probe", pod: agent, change: func(s *corev1.PodSpec) { s.InitContainers = s.Containers }},
		{name: "the host's processes", plan: host, user: "p-probe", pod: hostAgent, change: func(s *corev1.PodSpec) { s.HostPID = true }},
		{name: "any node", user: "p-probe", pod: agent, change: func(s *corev1.PodSpec) { s.Affinity = nil }},
		{name: "nodes by label", user: "p-setup", pod: responder, change: func(s *corev1.PodSpec) {
			s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0] = corev1.NodeSelectorTerm{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: corev1.NodeSelectorOpExists}},
			}
		}},
		{name: "a token", user: "p-probe", pod: agent, change: func(s *corev1.PodSpec) { s.AutomountServiceAccountToken = &yes }},
		{name: "the default for tokens", user: "p-probe", pod: agent, change: func(s *corev1.PodSpec) { s.AutomountServiceAccountToken = nil }},
		{name: "a volume of the host", user: "p-probe", pod: agent, change: func(s *corev1.PodSpec) {
			s.Volumes = append(s.Volumes, corev1.Volume{Name: "h", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}})
		}},
		{name: "a Secret", user: "p-probe", pod: agent, change: secretVolume},
		{name: "a Secret in the environment", user: "p-probe", pod: agent, change: secretVariable},
		{name: "all of a Secret in the environment", user: "p-setup", pod: agent, change: secretVariables},
		{name: "the certificate of a component", plan: host, user: "p-probe", pod: hostAgent, change: secretVolume, allowed: true},
		{name: "privileged", user: "p-probe", pod: agent, change: func(s *corev1.PodSpec) { s.Containers[0].SecurityContext.Privileged = &yes }},
		{name: "root", user: "p-setup", pod: responder, change: func(s *corev1.PodSpec) { s.Containers[0].SecurityContext.RunAsUser = new(int64(0)) }},
		{name: "may be root", user: "p-setup", pod: responder, change: func(s *corev1.PodSpec) { s.SecurityContext.RunAsNonRoot = &no }},
		{name: "a capability", user: "p-probe", pod: agent, change: func(s *corev1.PodSpec) {
			s.Containers[0].SecurityContext.Capabilities.Add = []corev1.Capability{"NET_ADMIN"}
		}},
		{name: "no security context", user: "p-probe", pod: agent, change: func(s *corev1.PodSpec) { s.Containers[0].SecurityContext = nil }},
		{name: "agent that reads rules", plan: rules, user: "p-probe", pod: reader, allowed: true},
		{name: "agent that reads rules, by the account for all phases", plan: rules, user: "p", pod: reader, allowed: true},
		{name: "agent that reads rules, by setup", plan: rules, user: "p-setup", pod: reader},
		{name: "agent that reads rules, of a mesh", user: "p-probe", pod: reader},
		{name: "agent that reads rules, of a control plane", plan: host, user: "p-probe", pod: reader},
		{name: "restricted agent of a plan that reads rules", plan: rules, user: "p-probe", pod: agent, allowed: true},
		{name: "restricted agent on the host network of a plan that reads rules", plan: rules, user: "p-probe", pod: hostAgent},
		{name: "reader in the pod network", plan: rules, user: "p-probe", pod: reader, change: func(s *corev1.PodSpec) { s.HostNetwork = false }},
		{name: "reader of the host's processes", plan: rules, user: "p-probe", pod: reader, change: func(s *corev1.PodSpec) { s.HostPID = true }},
		{name: "reader with another image", plan: rules, user: "p-probe", pod: reader, change: func(s *corev1.PodSpec) { s.Containers[0].Image = "evil" }},
		{name: "reader with another command", plan: rules, user: "p-probe", pod: reader, change: func(s *corev1.PodSpec) { s.Containers[0].Command = []string{"sh"} }},
		{name: "reader that responds", plan: rules, user: "p-probe", pod: reader, change: func(s *corev1.PodSpec) { s.Containers[0].Args = []string{"respond"} }},
		{name: "reader with one more capability", plan: rules, user: "p-probe", pod: reader, change: security(func(c *corev1.SecurityContext) {
			c.Capabilities.Add = append(c.Capabilities.Add, "SYS_ADMIN")
		})},
		{name: "reader with another capability", plan: rules, user: "p-probe", pod: reader, change: security(func(c *corev1.SecurityContext) {
			c.Capabilities.Add = []corev1.Capability{"SYS_ADMIN"}
		})},
		{name: "reader that drops nothing", plan: rules, user: "p-probe", pod: reader, change: security(func(c *corev1.SecurityContext) { c.Capabilities.Drop = nil })},
		{name: "reader that is privileged", plan: rules, user: "p-probe", pod: reader, change: security(func(c *corev1.SecurityContext) { c.Privileged = &yes })},
		{name: "reader whose privileges may grow", plan: rules, user: "p-probe", pod: reader, change: security(func(c *corev1.SecurityContext) {
			c.AllowPrivilegeEscalation = &yes
		})},
		{name: "reader that writes its root file system", plan: rules, user: "p-probe", pod: reader, change: security(func(c *corev1.SecurityContext) {
			c.ReadOnlyRootFilesystem = &no
		})},
		{name: "reader without seccomp", plan: rules, user: "p-probe", pod: reader, change: security(func(c *corev1.SecurityContext) {
			c.SeccompProfile.Type = corev1.SeccompProfileTypeUnconfined
		})},
		{name: "reader with a Secret", plan: rules, user: "p-probe", pod: reader, change: secretVolume},
		{name: "reader with a token", plan: rules, user: "p-probe", pod: reader, change: func(s *corev1.PodSpec) { s.AutomountServiceAccountToken = &yes }},
		{name: "for ever", user: "p-setup", pod: responder, change: func(s *corev1.PodSpec) { s.ActiveDeadlineSeconds = nil }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			plan := tt.plan
			if plan == nil {
				plan = mesh
			}
			policies := Policies(plan, opts)
			pod := tt.pod.DeepCopy()
			if tt.change != nil {
				tt.change(&pod.Spec)
			}
			if refused := evaluate(t, policies, account+tt.user, "CREATE", "pods", false, pod, &corev1.Pod{}); (refused == "") != tt.allowed {
				t.Errorf("refused %q, want allowed: %v", refused, tt.allowed)
			}
			if refused := evaluate(t, policies, account+tt.user, "CREATE", "pods", true, pod, &corev1.Pod{}); refused != "" {
				t.Errorf("a dry run is refused: %s", refused)
			}
			owned := tt.pod.DeepCopy()
			owned.OwnerReferences = nil
			if refused := evaluate(t, policies, account+tt.user, "UPDATE", "pods", false, owned, tt.pod); refused != "" {
				t.Errorf("another owner is refused: %s", refused)
			}
			owned.Spec.Containers[0].Image = "evil"
			if refused := evaluate(t, policies, account+tt.user, "UPDATE", "pods", false, owned, tt.pod); (refused == "") != (tt.user == "other") {
				t.Errorf("another image later: refused %q", refused)
			}
		})
	}
}

// TestAccountsAreNoPlans: no plan may have the name of an account of another plan, because it is the name of its own
// account for all phases.
func TestAccountsAreNoPlans(t *testing.T) {
	plan := policyPlan("podMesh")
	accounts := []string{ScheduleAccount(plan)}
	for _, phase := range checkup.Phases {
		accounts = append(accounts, checkup.AccountName(plan.Name, phase))
	}
	for _, account := range accounts {
		other := policyPlan("podMesh")
		other.Name = account
		if _, err := Compile(other, Options{Namespace: "ns"}); err == nil || !strings.Contains(err.Error(), "choose another name") {
			t.Errorf("a plan of the name %s: %v, want that it is refused", account, err)
		}
	}
}

// TestHealthPolicy: the account for conclude may write the PodNetworkHealths of checkplan, and of no other tool.
func TestHealthPolicy(t *testing.T) {
	object := func(managedBy, observer string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{"name": "x"}, "spec": map[string]any{"observer": map[string]any{"name": observer}},
		}}
		if managedBy != "" {
			u.SetLabels(map[string]string{checkup.LabelManagedBy: managedBy})
		}
		return u
	}
	own := object("checkplan", "checkplan")
	const account = "system:serviceaccount:ns:p-conclude"
	plan := policyPlan("podMesh")
	if n := len(Policies(plan, Options{Namespace: "ns"})); n != 6 {
		t.Errorf("%d objects without the feature, want 6", n)
	}
	plan.Features, plan.PodNetworkHealth = healthy().Features, healthy().PodNetworkHealth
	policies := Policies(plan, Options{Namespace: "ns"})
	for name, tt := range map[string]struct {
		user         string
		object, from *unstructured.Unstructured
		allowed      bool
	}{
		"own":               {account, own, own, true},
		"of another tool":   {account, object("goldpinger", "goldpinger"), object("goldpinger", "goldpinger"), false},
		"without labels":    {account, object("", "checkplan"), object("", "checkplan"), false},
		"takes over":        {account, own, object("goldpinger", "goldpinger"), false},
		"by other accounts": {"system:serviceaccount:ns:other", object("", "x"), object("", "x"), true},
	} {
		t.Run(name, func(t *testing.T) {
			none := &unstructured.Unstructured{Object: map[string]any{}}
			for operation, pair := range map[string][2]*unstructured.Unstructured{
				"CREATE": {tt.object, none}, "UPDATE": {tt.object, tt.from}, "DELETE": {none, tt.from},
			} {
				want := tt.allowed || name == "takes over" && operation == "CREATE"
				if refused := evaluate(t, policies, tt.user, operation, "podnetworkhealths", false, pair[0], pair[1]); (refused == "") != want {
					t.Errorf("%s: refused %q, want allowed: %v", operation, refused, want)
				}
			}
		})
	}
}

// insidePod is an existing pod without and with the agent, as the code of a run adds it.
func insidePod(t *testing.T) (without, with *corev1.Pod) {
	t.Helper()
	without = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u"},
		Spec: corev1.PodSpec{
			NodeName: "n0", Containers: []corev1.Container{{Name: "web", Image: "web"}},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debugger", Image: "busybox"}}},
		},
	}
	client := fake.NewSimpleClientset(without.DeepCopy())
	minute := checkup.Duration(time.Minute)
	w := &checkup.Worksheet{
		Plan: "mesh", Check: "mesh", Sources: []checkup.Endpoint{{Node: "n0", Pod: "shop/web", Inside: true}}, Targets: []checkup.Endpoint{{Node: "n1"}},
		Assignments: [][]int{{0}}, IPFamilies: []checkup.IPFamily{checkup.IPv4}, Timeouts: checkup.Timeouts{Probe: minute},
	}
	roster := &checkup.Roster{Targets: []checkup.RosterEntry{{Addresses: map[checkup.IPFamily]string{checkup.IPv4: "10.0.0.1"}}}}
	f := &fleet.Fleet{Client: client, Namespace: "ns", Plan: "mesh", RunUID: "uid", Image: AgentImage(Options{}),
		OpenLog: func(context.Context, string, *corev1.PodLogOptions) (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader("")), nil
		}}
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	f.Farewell = time.Millisecond
	if err := f.Measure(ctx, w, roster, nowhere{}, nil); err != nil {
		t.Fatal(err)
	}
	with, err := client.CoreV1().Pods("shop").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || len(with.Spec.EphemeralContainers) != 2 {
		t.Fatalf("%+v, %v; want two ephemeral containers", with.Spec.EphemeralContainers, err)
	}
	return without, with
}

// TestInsidePolicy: the account of probe may add the agent to an existing pod, and no container that differs where it
// matters. What others added is not its business.
func TestInsidePolicy(t *testing.T) {
	plan := policyPlan("podMesh")
	plan.Checks["check"].Spec.(*podmesh.Spec).Sources.Pods = &podmesh.PodSources{Namespace: "shop", Name: "web"}
	without, with := insidePod(t)
	policies := Policies(plan, Options{Namespace: "ns"})
	yes := true
	for _, tt := range []struct {
		name    string
		user    string
		change  func(*corev1.EphemeralContainer)
		allowed bool
	}{
		{name: "the agent", user: "p-probe", change: func(*corev1.EphemeralContainer) {}, allowed: true},
		{name: "anything by another account", user: "other", change: func(c *corev1.EphemeralContainer) { c.Image = "evil" }, allowed: true},
		{name: "another image", user: "p-probe", change: func(c *corev1.EphemeralContainer) { c.Image = "evil" }},
		{name: "another image by the account for all phases", user: "p", change: func(c *corev1.EphemeralContainer) { c.Image = "evil" }},
		{name: "the pod's token", user: "p-probe", change: func(c *corev1.EphemeralContainer) { c.VolumeMounts = []corev1.VolumeMount{{Name: "token"}} }},
		{name: "a Secret", user: "p-probe", change: func(c *corev1.EphemeralContainer) { c.EnvFrom = []corev1.EnvFromSource{{}} }},
		{name: "one key of a Secret", user: "p-probe", change: func(c *corev1.EphemeralContainer) {
			c.Env = append(c.Env, corev1.EnvVar{Name: "a", ValueFrom: &corev1.EnvVarSource{}})
		}},
		{name: "the processes of a container", user: "p-probe", change: func(c *corev1.EphemeralContainer) { c.TargetContainerName = "web" }},
		{name: "privileged", user: "p-probe", change: func(c *corev1.EphemeralContainer) { c.SecurityContext.Privileged = &yes }},
		{name: "root", user: "p-probe", change: func(c *corev1.EphemeralContainer) { c.SecurityContext.RunAsUser = new(int64(0)) }},
		{name: "a capability", user: "p-probe", change: func(c *corev1.EphemeralContainer) {
			c.SecurityContext.Capabilities.Add = []corev1.Capability{"NET_ADMIN"}
		}},
		{name: "no security context", user: "p-probe", change: func(c *corev1.EphemeralContainer) { c.SecurityContext = nil }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := with.DeepCopy()
			added := slices.IndexFunc(pod.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool { return c.Name != "debugger" })
			tt.change(&pod.Spec.EphemeralContainers[added])
			refused := evaluate(t, policies, "system:serviceaccount:ns:"+tt.user, "UPDATE", "pods/ephemeralcontainers", false, pod, without)
			if (refused == "") != tt.allowed {
				t.Errorf("refused %q, want allowed: %v", refused, tt.allowed)
			}
		})
	}
}

// TestVerdictPolicy: the accounts that label runs with the verdict may change nothing else of a run, and no other run.
func TestVerdictPolicy(t *testing.T) {
	plan := policyPlan("podMesh")
	opts := Options{Namespace: "ns"}
	run := sampleRun(plan, opts)
	for _, tt := range []struct {
		name    string
		change  func(before, after *pipelinev1.PipelineRun)
		allowed bool
	}{
		{"nothing", func(_, _ *pipelinev1.PipelineRun) {}, true},
		{"the verdict", func(_, r *pipelinev1.PipelineRun) { r.Labels[checkup.LabelVerdict] = "fail" }, true},
		{"another verdict", func(b, r *pipelinev1.PipelineRun) {
			b.Labels[checkup.LabelVerdict], r.Labels[checkup.LabelVerdict] = "pass", "fail"
		}, true},
		{"no verdict", func(b, _ *pipelinev1.PipelineRun) { b.Labels[checkup.LabelVerdict] = "pass" }, true},
		{"a run of another plan", func(b, r *pipelinev1.PipelineRun) {
			b.Labels[checkup.LabelPlan], r.Labels[checkup.LabelPlan] = "q", "q"
			r.Labels[checkup.LabelVerdict] = "pass"
		}, false},
		{"a run without labels", func(b, _ *pipelinev1.PipelineRun) { b.Labels = nil }, false},
		{"another label", func(_, r *pipelinev1.PipelineRun) { r.Labels["a"] = "b" }, false},
		{"the value of another label", func(b, r *pipelinev1.PipelineRun) { b.Labels["a"], r.Labels["a"] = "b", "c" }, false},
		{"one label less", func(b, _ *pipelinev1.PipelineRun) { b.Labels["a"] = "b" }, false},
		{"all labels", func(_, r *pipelinev1.PipelineRun) { r.Labels = nil }, false},
		{"an annotation", func(_, r *pipelinev1.PipelineRun) { r.Annotations = map[string]string{"a": "b"} }, false},
		{"one annotation less", func(b, _ *pipelinev1.PipelineRun) { b.Annotations = map[string]string{"a": "b"} }, false},
		{"an owner", func(_, r *pipelinev1.PipelineRun) { r.OwnerReferences = []metav1.OwnerReference{{Name: "a", UID: "u"}} }, false},
		{"another owner", func(b, r *pipelinev1.PipelineRun) {
			b.OwnerReferences = []metav1.OwnerReference{{Name: "a", UID: "u"}}
			r.OwnerReferences = []metav1.OwnerReference{{Name: "a", UID: "v"}}
		}, false},
		{"the same owner and finalizer", func(b, r *pipelinev1.PipelineRun) {
			b.OwnerReferences, b.Finalizers = []metav1.OwnerReference{{Name: "a", UID: "u"}}, []string{"a/b"}
			r.OwnerReferences, r.Finalizers = b.OwnerReferences, b.Finalizers
		}, true},
		{"a finalizer less", func(b, _ *pipelinev1.PipelineRun) { b.Finalizers = []string{"a/b"} }, false},
		{"cancelled", func(_, r *pipelinev1.PipelineRun) { r.Spec.Status = pipelinev1.PipelineRunSpecStatusCancelled }, false},
		{"another account", func(_, r *pipelinev1.PipelineRun) { r.Spec.TaskRunTemplate.ServiceAccountName = "admin" }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before, after := run.DeepCopy(), run.DeepCopy()
			tt.change(before, after)
			for user, want := range map[string]bool{"p-setup": tt.allowed, "p-conclude": tt.allowed, "p": tt.allowed, "admin": true} {
				refused := evaluate(t, Policies(plan, opts), "system:serviceaccount:ns:"+user, "UPDATE", "pipelineruns", false, after, before)
				if (refused == "") != want {
					t.Errorf("%s: refused %q, want allowed: %v", user, refused, want)
				}
			}
		})
	}
}

// TestSchedulePolicy: the account of a schedule may start, cancel and delete runs as its Job does, and no others.
func TestSchedulePolicy(t *testing.T) {
	plan := policyPlan("podMesh")
	plan.Schedule = &checkup.Schedule{Cron: "@hourly", TimeZone: "Etc/UTC", ConcurrencyPolicy: checkup.ConcurrencyReplace}
	opts := Options{Namespace: "ns"}
	due := sampleRun(plan, opts)
	due.Labels[checkup.LabelScheduled] = "true" // as tasks/internal/start does
	const account = "system:serviceaccount:ns:p-schedule"
	for _, tt := range []struct {
		name    string
		change  func(*pipelinev1.PipelineRun)
		creates bool // whether it may be created
		deletes bool
		updates bool
	}{
		{"its own", func(*pipelinev1.PipelineRun) {}, true, true, true},
		{"started by hand", func(r *pipelinev1.PipelineRun) { delete(r.Labels, checkup.LabelScheduled) }, false, false, true},
		{"of another plan", func(r *pipelinev1.PipelineRun) { r.Labels[checkup.LabelPlan] = "q" }, false, false, false},
		{"without labels", func(r *pipelinev1.PipelineRun) { r.Labels = nil }, false, false, false},
		{"of another Pipeline", func(r *pipelinev1.PipelineRun) { r.Spec.PipelineRef.Name = "q" }, false, true, true},
		{"of a remote Pipeline", func(r *pipelinev1.PipelineRun) { r.Spec.PipelineRef.Resolver = "git" }, false, true, true},
		{"with a Pipeline of its own", func(r *pipelinev1.PipelineRun) {
			r.Spec.PipelineRef, r.Spec.PipelineSpec = nil, &pipelinev1.PipelineSpec{Tasks: []pipelinev1.PipelineTask{{Name: "evil"}}}
		}, false, true, true},
		{"under another account", func(r *pipelinev1.PipelineRun) { r.Spec.TaskRunSpecs[0].ServiceAccountName = "admin" }, false, true, true},
		{"all under another account", func(r *pipelinev1.PipelineRun) { r.Spec.TaskRunTemplate.ServiceAccountName = "admin" }, false, true, true},
		{"on the host network", func(r *pipelinev1.PipelineRun) {
			r.Spec.TaskRunTemplate.PodTemplate = &pod.PodTemplate{HostNetwork: true}
		}, false, true, true},
		{"with a volume", func(r *pipelinev1.PipelineRun) {
			r.Spec.TaskRunSpecs[0].PodTemplate = &pod.PodTemplate{Volumes: []corev1.Volume{{Name: "v"}}}
		}, false, true, true},
		{"with the cluster's default pod template", func(r *pipelinev1.PipelineRun) {
			r.Spec.TaskRunTemplate.PodTemplate = &pod.PodTemplate{NodeSelector: map[string]string{"a": "b"}}
		}, true, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			policies := Policies(plan, opts)
			run := due.DeepCopy()
			tt.change(run)
			for operation, want := range map[string]bool{"CREATE": tt.creates, "UPDATE": tt.updates, "DELETE": tt.deletes} {
				if refused := evaluate(t, policies, account, operation, "pipelineruns", false, run, run); (refused == "") != want {
					t.Errorf("%s: refused %q, want allowed: %v", operation, refused, want)
				}
				if refused := evaluate(t, policies, account+"r", operation, "pipelineruns", false, run, run); refused != "" {
					t.Errorf("%s by another account: refused %q", operation, refused)
				}
			}
		})
	}
}

func secretVariable(s *corev1.PodSpec) {
	s.Containers[0].Env = []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{
		SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}, Key: "k"},
	}}}
}

func secretVariables(s *corev1.PodSpec) {
	s.Containers[0].EnvFrom = []corev1.EnvFromSource{{
		SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}},
	}}
}

func secretVolume(s *corev1.PodSpec) {
	s.Volumes = append(s.Volumes, corev1.Volume{Name: "c", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "c"}}})
}

// policyPlan is a plan p with a check of that kind.
func policyPlan(kind checkup.Kind) *checkup.Plan {
	k, _ := kinds.Named(kind)
	return &checkup.Plan{Name: "p", Checks: map[string]checkup.Check{"check": {Spec: k.New()}}}
}

// TestServicePolicies: setup may create Services over pods of the plan's runs, and setup and conclude may delete them,
// but no others.
func TestServicePolicies(t *testing.T) {
	policies := Policies(policyPlan("serviceCanary"), testOptions)
	service := func(changes ...func(*corev1.Service)) *corev1.Service {
		s := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: map[string]string{
				checkup.LabelPlan: "p", checkup.LabelRole: string(checkup.RoleService), checkup.LabelRun: "uid",
			}},
			Spec: corev1.ServiceSpec{
				Type:     corev1.ServiceTypeClusterIP,
				Selector: map[string]string{checkup.LabelRun: "uid", checkup.LabelCheck: "c", checkup.LabelIn + "cluster-ip": "true"},
			},
		}
		for _, change := range changes {
			change(s)
		}
		return s
	}
	other := func(s *corev1.Service) { s.Labels[checkup.LabelPlan] = "other" }
	for _, tt := range []struct {
		name, phase, operation string
		service                *corev1.Service
		want                   string
	}{
		{"its own", "setup", "CREATE", service(), ""},
		{"a node port", "setup", "CREATE", service(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort }), ""},
		{"of another plan", "setup", "CREATE", service(other), "of its runs only"},
		{"over other pods", "setup", "CREATE", service(func(s *corev1.Service) {
			s.Spec.Selector = map[string]string{"app": "web"}
		}), "must select pods of a run"},
		{"over no pods", "setup", "CREATE", service(func(s *corev1.Service) { s.Spec.Selector = nil }), "must select pods of a run"},
		{"a load balancer", "setup", "CREATE", service(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer }),
			"no load balancer"},
		{"an external name", "setup", "CREATE", service(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }),
			"no load balancer"},
		{"an external IP", "setup", "CREATE", service(func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.1"} }),
			"no external address"},
		{"deletes its own", "conclude", "DELETE", service(), ""},
		{"deletes others", "conclude", "DELETE", service(other), "of its runs only"},
		{"deletes others", "setup", "DELETE", service(other), "of its runs only"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			user := "system:serviceaccount:" + testOptions.withDefaults().Namespace + ":p-" + tt.phase
			object, old := tt.service, &corev1.Service{}
			if tt.operation == "DELETE" {
				object, old = old, object
			}
			if got := evaluate(t, policies, user, tt.operation, "services", false, object, old); (got != "") != (tt.want != "") ||
				!strings.Contains(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
	for _, o := range Policies(policyPlan("podMesh"), testOptions) {
		if p, ok := o.(*admissionv1.ValidatingAdmissionPolicy); ok && strings.HasSuffix(p.Name, "-services") {
			t.Error("a plan without Services has a policy for them")
		}
	}
}
