// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/controlplane"
	"github.com/checkplan/checkplan/pkg/dns"
	"github.com/checkplan/checkplan/pkg/kinds"
	"github.com/checkplan/checkplan/pkg/placement"
	"github.com/checkplan/checkplan/pkg/podmesh"
	"github.com/checkplan/checkplan/pkg/servicecanary"
	"github.com/checkplan/checkplan/pkg/servicerules"
	"github.com/checkplan/checkplan/pkg/services"
	"github.com/checkplan/checkplan/pkg/vmlatency"
)

// grant is one right of one account, as text.
func grant(account, place, verb, group, resource string, names []string) string {
	return strings.TrimSpace(fmt.Sprintf("%s in %s: %s %s.%s %s", account, place, verb, resource, group, strings.Join(names, ",")))
}

// granted is every (account, place, resource, verb) that the objects allow. Like the
// API server, it follows bindings to roles to rules.
func granted(t *testing.T, o *Objects) []string {
	t.Helper()
	type role struct{ kind, namespace, name string }
	rules := map[role][]rbacv1.PolicyRule{}
	for _, object := range o.Rights {
		switch r := object.(type) {
		case *rbacv1.Role:
			rules[role{"Role", r.Namespace, r.Name}] = r.Rules
		case *rbacv1.ClusterRole:
			rules[role{"ClusterRole", "", r.Name}] = r.Rules
		}
	}
	all := map[string]bool{}
	bind := func(place string, ref role, subjects []rbacv1.Subject) {
		if len(rules[ref]) == 0 {
			t.Errorf("a binding refers to %v, which has no rules", ref)
		}
		for _, subject := range subjects {
			for _, rule := range rules[ref] {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						all[grant(subject.Namespace+"/"+subject.Name, place, verb, rule.APIGroups[0], resource, rule.ResourceNames)] = true
					}
				}
			}
		}
	}
	for _, object := range o.Rights {
		switch b := object.(type) {
		case *rbacv1.RoleBinding:
			bind(b.Namespace, role{b.RoleRef.Kind, b.Namespace, b.RoleRef.Name}, b.Subjects)
		case *rbacv1.ClusterRoleBinding:
			bind("cluster", role{b.RoleRef.Kind, "", b.RoleRef.Name}, b.Subjects)
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// TestGranted: each account has the rights that Rights lists for its phase, the
// dashboard's account those of all phases, and nothing else.
func TestGranted(t *testing.T) {
	for _, plan := range []*checkup.Plan{smallPlan(), twoChecks(), allKinds(), healthy()} {
		t.Run(plan.Name, func(t *testing.T) {
			want := map[string]bool{}
			for _, r := range Rights(plan, testOptions) {
				place := map[checkup.Scope]string{checkup.ScopeRun: "net", checkup.ScopeCluster: "cluster", checkup.ScopeNamespace: r.Namespace}[r.Scope]
				for _, account := range []string{checkup.AccountName(plan.Name, r.Phase), plan.Name} {
					want[grant("net/"+account, place, r.Verb, r.Group, r.Resource, r.Names)] = true
				}
			}
			if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), granted(t, compile(t, plan, testOptions))); diff != "" {
				t.Errorf("rights (-listed +granted):\n%s", diff)
			}
		})
	}
}

// TestEveryRightSaysWhy: every right has a reason, no right is a duplicate or has a
// wildcard, and names are given only for verbs whose requests have a name.
func TestEveryRightSaysWhy(t *testing.T) {
	phases := map[checkup.Phase]bool{}
	for _, plan := range []*checkup.Plan{smallPlan(), twoChecks(), allKinds(), healthy()} {
		seen := map[string]bool{}
		for _, r := range Rights(plan, testOptions) {
			if !strings.HasPrefix(r.Why, "pkg/") && !strings.HasPrefix(r.Why, "tasks/") {
				t.Errorf("%s may %s %s for %q: want the code that needs it", r.Phase, r.Verb, r.Resource, r.Why)
			}
			if strings.Contains(r.Verb+r.Resource+r.Group, "*") || r.Resource == "secrets" {
				t.Errorf("%s may %s %s", r.Phase, r.Verb, r.Resource)
			}
			if (r.Scope == checkup.ScopeNamespace) != (r.Namespace != "") {
				t.Errorf("%+v: want a namespace if, and only if, the scope is a namespace", r)
			}
			if len(r.Names) > 0 && slices.Contains([]string{"list", "watch", "deletecollection"}, r.Verb) {
				t.Errorf("%+v: requests of this verb have no name", r)
			}
			key := r
			key.Why = ""
			if seen[fmt.Sprint(key)] {
				t.Errorf("%v is a duplicate", key)
			}
			seen[fmt.Sprint(key)] = true
			phases[r.Phase] = true
		}
	}
	for _, phase := range checkup.Phases {
		if !phases[phase] {
			t.Errorf("phase %s has no right", phase)
		}
	}
}

// TestRightsOfHealth: PodNetworkHealths need rights of setup and conclude, only if the feature is on; to create their
// definition, only if the plan allows it.
func TestRightsOfHealth(t *testing.T) {
	rights := func(p *checkup.Plan) (all []string) {
		for _, r := range Rights(p, testOptions) {
			if strings.HasPrefix(r.Resource, "podnetworkhealths") || slices.Contains(r.Names, "podnetworkhealths.networkhealth.checkplan.dev") {
				all = append(all, strings.Join([]string{string(r.Phase), string(r.Scope), r.Verb, r.Resource}, " "))
			}
		}
		return all
	}
	const definitions = "customresourcedefinitions"
	objects := []string{
		"conclude run list podnetworkhealths", "conclude run create podnetworkhealths", "conclude run patch podnetworkhealths",
		"conclude run delete podnetworkhealths", "conclude run patch podnetworkhealths/status",
	}
	install := []string{"setup cluster get " + definitions, "setup cluster create " + definitions, "setup cluster patch " + definitions}
	p := healthy()
	if diff := cmp.Diff(append(install, objects...), rights(p)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	p.PodNetworkHealth.InstallCRD = false
	if diff := cmp.Diff(append(install[:1:1], objects...), rights(p)); diff != "" {
		t.Errorf("without installCRD (-want +got):\n%s", diff)
	}
	p.Features.PodNetworkHealth = false
	if got := rights(p); got != nil {
		t.Errorf("off: got %q", got)
	}
}

// TestRightsOfKinds: a plan has the rights of its kinds, and those for the pods that
// these start.
func TestRightsOfKinds(t *testing.T) {
	has := func(plan *checkup.Plan, phase checkup.Phase, verb, resource string) bool {
		return slices.ContainsFunc(Rights(plan, testOptions), func(r checkup.Right) bool {
			return r.Phase == phase && r.Verb == verb && r.Resource == resource
		})
	}
	pods := mesh()
	pods.Spec.(*podmesh.Spec).Targets.Pods = &podmesh.PodTargets{Port: 80}
	plans := map[checkup.Kind]*checkup.Plan{}
	for _, check := range []checkup.Check{mesh(), controlPlane(), dryRun(), vmLatency(), {Spec: &services.Spec{}}, {Spec: &servicerules.Spec{}}, {Spec: &dns.Spec{}}, {Spec: &servicecanary.Spec{}}} {
		plans[check.Kind()] = planOf("p", "", map[string]checkup.Check{"c": check})
	}
	plans["existing pods"] = planOf("p", "", map[string]checkup.Check{"c": pods})
	for _, tt := range []struct {
		phase          checkup.Phase
		verb, resource string
		kinds          []checkup.Kind // that need it
	}{
		{checkup.PhaseSetup, "list", "nodes", []checkup.Kind{podmesh.Name, controlplane.Name, placement.Name, services.Name, servicerules.Name, servicecanary.Name, dns.Name, "existing pods"}},
		{checkup.PhaseSetup, "create", "pods", []checkup.Kind{podmesh.Name, controlplane.Name, servicecanary.Name, vmlatency.Name}},
		{checkup.PhaseSetup, "create", "services", []checkup.Kind{servicecanary.Name}},
		{checkup.PhaseSetup, "delete", "services", []checkup.Kind{servicecanary.Name}},
		{checkup.PhaseProbe, "create", "services", nil},
		{checkup.PhaseConclude, "delete", "services", []checkup.Kind{servicecanary.Name}},
		{checkup.PhaseSetup, "create", "virtualmachineinstances", []checkup.Kind{vmlatency.Name}},
		{checkup.PhaseProbe, "get", "virtualmachineinstances/console", []checkup.Kind{vmlatency.Name}},
		{checkup.PhaseProbe, "create", "virtualmachineinstances", nil},
		{checkup.PhaseConclude, "delete", "virtualmachineinstances", []checkup.Kind{vmlatency.Name}},
		{checkup.PhaseConclude, "get", "pods/log", []checkup.Kind{podmesh.Name, controlplane.Name, services.Name, servicerules.Name, servicecanary.Name, dns.Name, vmlatency.Name, "existing pods"}},
		{checkup.PhaseSetup, "get", "customresourcedefinitions", []checkup.Kind{controlplane.Name}},
		{checkup.PhaseSetup, "list", "endpointslices", []checkup.Kind{controlplane.Name, services.Name, servicerules.Name, servicecanary.Name, dns.Name}},
		{checkup.PhaseProbe, "list", "endpointslices", []checkup.Kind{services.Name, servicerules.Name, servicecanary.Name, dns.Name}},
		{checkup.PhaseProbe, "list", "services", []checkup.Kind{services.Name, servicerules.Name, servicecanary.Name, dns.Name}},
		{checkup.PhaseProbe, "get", "pods/log", []checkup.Kind{podmesh.Name, controlplane.Name, services.Name, servicerules.Name, servicecanary.Name, dns.Name, "existing pods"}},
		{checkup.PhaseProbe, "create", "podnetworkconnectivitychecks", []checkup.Kind{controlplane.Name}},
		{checkup.PhaseConclude, "delete", "podnetworkconnectivitychecks", []checkup.Kind{controlplane.Name}},
		{checkup.PhaseConclude, "delete", "pods", []checkup.Kind{podmesh.Name, controlplane.Name, services.Name, servicerules.Name, servicecanary.Name, dns.Name, vmlatency.Name, "existing pods"}},
		{checkup.PhaseConclude, "update", "configmaps", kinds.Names()},
	} {
		for kind, plan := range plans {
			if kind == "existing pods" && len(tt.kinds) == len(kinds.Names()) {
				continue
			}
			if got, want := has(plan, tt.phase, tt.verb, tt.resource), slices.Contains(tt.kinds, kind); got != want {
				t.Errorf("%s: %s may %s %s: %v, want %v", kind, tt.phase, tt.verb, tt.resource, got, want)
			}
		}
	}
	without := allKinds()
	without.Checks["watch"].Spec.(*controlplane.Spec).ConnectivityChecks.Write = false
	if has(without, checkup.PhaseProbe, "create", "podnetworkconnectivitychecks") {
		t.Error("a plan that writes no objects may write them")
	}
	for _, kind := range kinds.Names() {
		if plans[kind] == nil {
			t.Errorf("no test of kind %s", kind)
		}
	}
}

// TestVMsNeedNoClusterRight: a plan with checks of VMs only has no cluster-wide right.
// In other namespaces it has rights only on the objects that it names.
func TestVMsNeedNoClusterRight(t *testing.T) {
	other := vmLatency("a")
	other.Spec.(*vmlatency.Spec).Kiagnose = nil
	plan := planOf("vms", "", map[string]checkup.Check{"a": vmLatency(), "b": other})
	for _, r := range Rights(plan, testOptions) {
		if r.Scope == checkup.ScopeCluster {
			t.Errorf("%s may %s %s in the whole cluster", r.Phase, r.Verb, r.Resource)
		}
		if r.Scope == checkup.ScopeNamespace && len(r.Names) == 0 {
			t.Errorf("%s may %s any %s in namespace %s", r.Phase, r.Verb, r.Resource, r.Namespace)
		}
	}
	for _, object := range compile(t, plan, testOptions).Rights {
		switch object.(type) {
		case *rbacv1.ClusterRole, *rbacv1.ClusterRoleBinding:
			t.Errorf("%s", describe(object))
		}
	}
}

func TestMerge(t *testing.T) {
	right := func(verb, why string, names ...string) checkup.Right {
		return checkup.Right{Phase: checkup.PhaseSetup, Scope: checkup.ScopeRun, Resource: "configmaps", Verb: verb, Names: names, Why: why}
	}
	for _, tt := range []struct {
		name       string
		have, want []checkup.Right
	}{
		{"twice for one reason", []checkup.Right{right("get", "a"), right("get", "a")}, []checkup.Right{right("get", "a")}},
		{"for two reasons", []checkup.Right{right("get", "a"), right("get", "b")}, []checkup.Right{right("get", "a; b")}},
		{"two verbs", []checkup.Right{right("get", "a"), right("list", "a")}, []checkup.Right{right("get", "a"), right("list", "a")}},
		{"two names", []checkup.Right{right("get", "a", "x"), right("get", "b", "y")}, []checkup.Right{right("get", "a", "x"), right("get", "b", "y")}},
		{"a name, then any", []checkup.Right{right("get", "a", "x"), right("get", "b", "y"), right("get", "c")}, []checkup.Right{right("get", "a; b; c")}},
		{"any, then a name", []checkup.Right{right("get", "a"), right("get", "b", "y")}, []checkup.Right{right("get", "a; b")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, merge(tt.have)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestInstallationsDoNotCollide: one plan in two namespaces has no common object.
func TestInstallationsDoNotCollide(t *testing.T) {
	seen := map[string]bool{}
	for _, namespace := range []string{"a", "b"} {
		opts := testOptions
		opts.Namespace = namespace
		for _, object := range compile(t, twoChecks(), opts).Rights {
			key := describe(object)
			switch o := object.(type) {
			case *corev1.ServiceAccount:
				key += o.Namespace
			case *rbacv1.Role:
				key += o.Namespace
			case *rbacv1.RoleBinding:
				key += o.Namespace
			}
			if seen[key] {
				t.Errorf("both installations have %s", key)
			}
			seen[key] = true
		}
	}
}

func TestTargetsInOtherNamespaces(t *testing.T) {
	plan := planOf("p", "", map[string]checkup.Check{})
	for name, namespace := range map[string]string{"a": "shop", "b": "shop", "c": "net", "d": "", "e": "bank"} {
		check := mesh()
		check.Spec.(*podmesh.Spec).Targets.Pods = &podmesh.PodTargets{Namespace: namespace, Port: 80}
		plan.Checks[name] = check
	}
	var got []string
	for _, r := range Rights(plan, testOptions) {
		if r.Scope == checkup.ScopeNamespace {
			got = append(got, fmt.Sprint(r.Phase, " ", r.Namespace, ": ", r.Verb, " ", r.Resource))
		}
	}
	want := []string{"setup bank: list pods", "setup shop: list pods"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rights outside the run's namespace (-want +got):\n%s", diff)
	}
}
