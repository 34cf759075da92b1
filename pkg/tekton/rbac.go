// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Right is one verb that a phase uses, on one resource.
type Right struct {
	Phase Phase
	// Scope is where the verb is used.
	Scope Scope
	// Namespace is set when Scope is ScopeNamespace.
	Namespace string
	// Resource, all of the core API group.
	Resource string
	Verb     string
	// Why says which code needs it.
	Why string
}

// Scope is where a right holds.
type Scope string

const (
	ScopeRun       Scope = "run"       // the namespace of the run
	ScopeCluster   Scope = "cluster"   // everywhere: for what has no namespace
	ScopeNamespace Scope = "namespace" // another namespace than the run's, by name
)

// phaseRights is every verb that the mains in tasks/ use, whatever the plan. What
// is not here they cannot do.
var phaseRights = []Right{
	{PhaseSetup, ScopeCluster, "", "nodes", "get", "pkg/fleet: whether a node is there that a responder waits for"},
	{PhaseSetup, ScopeCluster, "", "nodes", "list", "pkg/podmesh Survey: which nodes there are, their zones and taints"},
	{PhaseSetup, ScopeRun, "", "pods", "create", "pkg/fleet: start responders"},
	{PhaseSetup, ScopeRun, "", "pods", "get", "pkg/fleet: find what an earlier try of the task has made"},
	{PhaseSetup, ScopeRun, "", "pods", "list", "pkg/fleet: wait for responders; tasks/setup: find leftovers of earlier runs; pkg/podmesh Survey: pods that are targets"},
	{PhaseSetup, ScopeRun, "", "pods", "watch", "pkg/fleet: wait for responders"},
	{PhaseSetup, ScopeRun, "", "pods", "patch", "pkg/fleet: make what an earlier try has made the property of this one's pod"},
	{PhaseSetup, ScopeRun, "", "pods", "delete", "tasks/setup: remove leftovers of earlier runs"},
	{PhaseSetup, ScopeRun, "", "configmaps", "create", "pkg/record: freeze worksheet and roster"},
	{PhaseSetup, ScopeRun, "", "configmaps", "get", "pkg/record: find what an earlier try of the task has written"},
	{PhaseSetup, ScopeRun, "", "configmaps", "list", "pkg/podmesh Survey: the rounds of the plan's reports"},
	{PhaseSetup, ScopeRun, "", "configmaps", "update", "pkg/record: write worksheet and roster again when the task is retried"},
	{PhaseSetup, ScopeRun, "", "configmaps", "delete", "tasks/setup: remove leftovers of earlier runs"},
	{PhaseSetup, ScopeRun, "", "events", "list", "pkg/fleet: why a responder was not scheduled or not started"},

	{PhaseProbe, ScopeCluster, "", "nodes", "get", "pkg/fleet: whether a node is there that an agent waits for"},
	{PhaseProbe, ScopeRun, "", "pods", "create", "pkg/fleet: start agents"},
	{PhaseProbe, ScopeRun, "", "pods", "get", "pkg/fleet: find what an earlier try of the task has made"},
	{PhaseProbe, ScopeRun, "", "pods", "list", "pkg/fleet: wait for agents"},
	{PhaseProbe, ScopeRun, "", "pods", "watch", "pkg/fleet: wait for agents"},
	{PhaseProbe, ScopeRun, "", "pods", "patch", "pkg/fleet: make the responders the property of the probe task's pod"},
	{PhaseProbe, ScopeRun, "", "pods", "delete", "pkg/fleet: replace an agent that failed; change an owner where OwnerReferencesPermissionEnforcement is on"},
	{PhaseProbe, ScopeRun, "", "pods/log", "get", "pkg/fleet: read what agents and responders measured"},
	{PhaseProbe, ScopeRun, "", "configmaps", "create", "pkg/fleet: the agents' orders; pkg/record: observations"},
	{PhaseProbe, ScopeRun, "", "configmaps", "get", "pkg/record: read worksheet and roster"},
	{PhaseProbe, ScopeRun, "", "configmaps", "update", "pkg/record: add observations and progress"},
	{PhaseProbe, ScopeRun, "", "events", "list", "pkg/fleet: why an agent was not scheduled or not started"},

	{PhaseConclude, ScopeRun, "", "pods", "list", "tasks/teardown: find the run's fixtures; tasks/report: what is left of them"},
	{PhaseConclude, ScopeRun, "", "pods", "watch", "tasks/teardown: wait until the fixtures are gone"},
	{PhaseConclude, ScopeRun, "", "pods", "delete", "tasks/teardown: remove the run's fixtures"},
	{PhaseConclude, ScopeRun, "", "pods/log", "get", "tasks/teardown: save the logs of what went wrong"},
	{PhaseConclude, ScopeRun, "", "configmaps", "create", "pkg/record: write evidence and report"},
	{PhaseConclude, ScopeRun, "", "configmaps", "get", "pkg/record: read worksheets and observations"},
	{PhaseConclude, ScopeRun, "", "configmaps", "list", "pkg/record: find the reports beyond the plan's retention"},
	{PhaseConclude, ScopeRun, "", "configmaps", "update", "pkg/record: write evidence and report again when the task is retried"},
	{PhaseConclude, ScopeRun, "", "configmaps", "delete", "tasks/teardown: remove the agents' orders; pkg/record: reports beyond the plan's retention"},
	{PhaseConclude, ScopeRun, "", "events", "list", "tasks/teardown: save what happened to what went wrong"},
}

// Rights lists every right that the plan's phases get: phase by phase, within
// one the cluster's first, then the run's namespace, then other namespaces.
func Rights(plan *checkup.Plan, opts Options) []Right {
	opts = opts.withDefaults()
	all := slices.Clone(phaseRights)
	for _, namespace := range targetNamespaces(plan, opts) {
		all = append(all, Right{PhaseSetup, ScopeNamespace, namespace, "pods", "list", "pkg/podmesh Survey: pods that are targets"})
	}
	slices.SortStableFunc(all, func(a, b Right) int {
		return cmp.Compare(slices.Index(Phases, a.Phase), slices.Index(Phases, b.Phase))
	})
	return all
}

// targetNamespaces are the namespaces beside the run's in which a check's
// targets are existing pods.
func targetNamespaces(plan *checkup.Plan, opts Options) []string {
	var namespaces []string
	for _, check := range plan.Checks {
		if mesh := check.PodMesh; mesh != nil && mesh.Targets.Pods != nil {
			if ns := mesh.Targets.Pods.Namespace; ns != "" && ns != opts.Namespace {
				namespaces = append(namespaces, ns)
			}
		}
	}
	slices.Sort(namespaces)
	return slices.Compact(namespaces)
}

// accountName names the ServiceAccount of a phase.
func accountName(plan *checkup.Plan, phase Phase) string { return plan.Name + "-" + string(phase) }

func accounts(plan *checkup.Plan) []string {
	names := make([]string, len(Phases))
	for i, phase := range Phases {
		names[i] = accountName(plan, phase)
	}
	return names
}

// rights are the accounts of the phases and, for each place in which a phase has
// rights, a role and a binding.
//
// One more account, named as the plan, is bound to all roles: the dashboard's
// form takes one account for a whole run. It opens nothing that was closed,
// because whoever may create PipelineRuns in a namespace may have them run under
// any of its accounts, and so under all of these. But within such a run each
// step holds the rights of all phases, which is why `planner run`, the sample
// and schedules name the accounts task by task.
func rights(plan *checkup.Plan, opts Options) []runtime.Object {
	var objects, roles []runtime.Object
	account := func(name string) {
		objects = append(objects, &corev1.ServiceAccount{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
			ObjectMeta: opts.meta(name, plan.Name),
		})
	}
	account(plan.Name)
	for _, phase := range Phases {
		account(accountName(plan, phase))
	}

	type place struct {
		phase     Phase
		scope     Scope
		namespace string
	}
	var places []place
	rules := map[place][]rbacv1.PolicyRule{}
	for _, r := range Rights(plan, opts) {
		p := place{r.Phase, r.Scope, r.Namespace}
		if _, ok := rules[p]; !ok {
			places = append(places, p)
		}
		rules[p] = addVerb(rules[p], r.Resource, r.Verb)
	}
	for _, p := range places {
		meta := opts.meta(accountName(plan, p.phase), plan.Name)
		subjects := []rbacv1.Subject{
			{Kind: rbacv1.ServiceAccountKind, Name: accountName(plan, p.phase), Namespace: opts.Namespace},
			{Kind: rbacv1.ServiceAccountKind, Name: plan.Name, Namespace: opts.Namespace},
		}
		if p.scope != ScopeRun {
			// Outside its own namespace, another installation of the plan may have the
			// same name.
			meta.Name = "checkplan:" + opts.Namespace + ":" + meta.Name
			meta.Namespace = p.namespace
		}
		roleRef := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name}
		typeMeta := func(kind string) metav1.TypeMeta {
			return metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: kind}
		}
		if p.scope == ScopeCluster {
			roleRef.Kind = "ClusterRole"
			roles = append(roles,
				&rbacv1.ClusterRole{TypeMeta: typeMeta("ClusterRole"), ObjectMeta: meta, Rules: rules[p]},
				&rbacv1.ClusterRoleBinding{TypeMeta: typeMeta("ClusterRoleBinding"), ObjectMeta: meta, RoleRef: roleRef, Subjects: subjects})
			continue
		}
		roles = append(roles,
			&rbacv1.Role{TypeMeta: typeMeta("Role"), ObjectMeta: meta, Rules: rules[p]},
			&rbacv1.RoleBinding{TypeMeta: typeMeta("RoleBinding"), ObjectMeta: meta, RoleRef: roleRef, Subjects: subjects})
	}
	return append(objects, roles...)
}

// addVerb adds a verb to the rule of its resource.
func addVerb(rules []rbacv1.PolicyRule, resource, verb string) []rbacv1.PolicyRule {
	i := slices.IndexFunc(rules, func(r rbacv1.PolicyRule) bool { return r.Resources[0] == resource })
	if i < 0 {
		return append(rules, rbacv1.PolicyRule{APIGroups: []string{corev1.GroupName}, Resources: []string{resource}, Verbs: []string{verb}})
	}
	rules[i].Verbs = append(rules[i].Verbs, verb)
	return rules
}
