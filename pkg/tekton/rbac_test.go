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
)

// granted is every (account, place, resource, verb) that the objects allow, read
// as the API server reads them: bindings to roles to rules.
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
						all[fmt.Sprintf("%s/%s in %s: %s %s", subject.Namespace, subject.Name, place, verb, resource)] = true
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

// TestGranted: the objects allow each account what Rights lists for its phase,
// the dashboard's account what it lists for any, and nothing else.
func TestGranted(t *testing.T) {
	for _, plan := range []*checkup.Plan{smallPlan(), twoChecks()} {
		t.Run(plan.Name, func(t *testing.T) {
			want := map[string]bool{}
			for _, r := range Rights(plan, testOptions) {
				place := map[Scope]string{ScopeRun: "net", ScopeCluster: "cluster", ScopeNamespace: r.Namespace}[r.Scope]
				for _, account := range []string{AccountName(plan, r.Phase), plan.Name} {
					want[fmt.Sprintf("net/%s in %s: %s %s", account, place, r.Verb, r.Resource)] = true
				}
			}
			if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), granted(t, compile(t, plan, testOptions))); diff != "" {
				t.Errorf("rights (-listed +granted):\n%s", diff)
			}
		})
	}
}

// TestEveryRightSaysWhy also keeps the table free of repetition and wildcards.
func TestEveryRightSaysWhy(t *testing.T) {
	seen := map[Right]bool{}
	phases := map[Phase]bool{}
	for _, r := range Rights(twoChecks(), testOptions) {
		if !strings.HasPrefix(r.Why, "pkg/") && !strings.HasPrefix(r.Why, "tasks/") {
			t.Errorf("%s may %s %s for %q: want the code that needs it", r.Phase, r.Verb, r.Resource, r.Why)
		}
		if strings.Contains(r.Verb+r.Resource, "*") || r.Resource == "secrets" {
			t.Errorf("%s may %s %s", r.Phase, r.Verb, r.Resource)
		}
		key := r
		key.Why = ""
		if seen[key] {
			t.Errorf("%v is listed twice", key)
		}
		seen[key] = true
		phases[r.Phase] = true
	}
	for _, phase := range Phases {
		if !phases[phase] {
			t.Errorf("phase %s has no right", phase)
		}
	}
}

// TestInstallationsDoNotCollide: one plan in two namespaces makes no object twice.
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
				t.Errorf("%s is made by both", key)
			}
			seen[key] = true
		}
	}
}

func TestTargetsInOtherNamespaces(t *testing.T) {
	plan := planOf("p", "", map[string]checkup.Check{})
	for name, namespace := range map[string]string{"a": "shop", "b": "shop", "c": "net", "d": "", "e": "bank"} {
		check := mesh()
		check.PodMesh.Targets.Pods = &checkup.PodTargets{Namespace: namespace, Port: 80}
		plan.Checks[name] = check
	}
	var got []string
	for _, r := range Rights(plan, testOptions) {
		if r.Scope == ScopeNamespace {
			got = append(got, fmt.Sprint(r.Phase, " ", r.Namespace, ": ", r.Verb, " ", r.Resource))
		}
	}
	want := []string{"setup bank: list pods", "setup shop: list pods"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rights outside the run's namespace (-want +got):\n%s", diff)
	}
}
