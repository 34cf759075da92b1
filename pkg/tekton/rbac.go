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
	Phase Phase `json:"phase"`
	// Scope is where the verb is used.
	Scope Scope `json:"scope"`
	// Namespace is set when Scope is ScopeNamespace.
	Namespace string `json:"namespace,omitempty"`
	// Resource, all of the core API group.
	Resource string `json:"resource"`
	Verb     string `json:"verb"`
	// Why says which code needs it.
	Why string `json:"why"`
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
	{PhaseSetup, ScopeCluster, "", "nodes", "list", "pkg/podmesh Survey: which nodes there are, their zones and taints"},
	{PhaseSetup, ScopeCluster, "", "nodes", "get", "pkg/fleet StartResponders: the node of a responder that does not start"},
	{PhaseSetup, ScopeRun, "", "pods", "create", "pkg/fleet StartResponders"},
	{PhaseSetup, ScopeRun, "", "pods", "get", "pkg/fleet StartResponders: a responder that an earlier try of the task has made"},
	{PhaseSetup, ScopeRun, "", "pods", "list", "pkg/fleet StartResponders and Sweep; pkg/podmesh Survey: pods that are targets"},
	{PhaseSetup, ScopeRun, "", "pods", "watch", "pkg/fleet StartResponders: wait until they are ready"},
	{PhaseSetup, ScopeRun, "", "pods", "patch", "pkg/fleet StartResponders: give a responder of an earlier try to this one's pod"},
	{PhaseSetup, ScopeRun, "", "pods", "delete", "pkg/fleet Sweep: leftovers of earlier runs; StartResponders: one that has failed"},
	{PhaseSetup, ScopeRun, "", "configmaps", "create", "pkg/record: freeze worksheet and roster"},
	{PhaseSetup, ScopeRun, "", "configmaps", "list", "pkg/podmesh Survey: the rounds of the plan's reports; pkg/fleet Sweep"},
	{PhaseSetup, ScopeRun, "", "configmaps", "update", "pkg/record: write worksheet and roster again when the task is retried"},
	{PhaseSetup, ScopeRun, "", "configmaps", "delete", "pkg/fleet Sweep: orders of earlier runs"},
	{PhaseSetup, ScopeRun, "", "events", "list", "pkg/fleet StartResponders: why one was not scheduled or not started"},

	{PhaseProbe, ScopeCluster, "", "nodes", "get", "pkg/fleet Measure: the node of an agent that does not answer"},
	{PhaseProbe, ScopeRun, "", "pods", "create", "pkg/fleet Measure: start agents"},
	{PhaseProbe, ScopeRun, "", "pods", "get", "pkg/fleet Measure: an agent that an earlier try of the task has made"},
	{PhaseProbe, ScopeRun, "", "pods", "list", "pkg/fleet Measure and Lost: agents, and responders that went"},
	{PhaseProbe, ScopeRun, "", "pods", "watch", "pkg/fleet Measure: wait for agents"},
	{PhaseProbe, ScopeRun, "", "pods", "patch", "pkg/fleet TakeOver: give the responders to this task's pod"},
	{PhaseProbe, ScopeRun, "", "pods", "delete", "pkg/fleet Measure: an agent of an earlier try that has failed; TakeOver: OwnerReferencesPermissionEnforcement wants it"},
	{PhaseProbe, ScopeRun, "", "pods/log", "get", "pkg/fleet Measure and Receptions: what agents and responders tell"},
	{PhaseProbe, ScopeRun, "", "configmaps", "create", "pkg/fleet Measure: the agents' orders; pkg/record: observations"},
	{PhaseProbe, ScopeRun, "", "configmaps", "get", "pkg/record: read worksheet and roster"},
	{PhaseProbe, ScopeRun, "", "configmaps", "update", "pkg/record: add observations and progress"},
	{PhaseProbe, ScopeRun, "", "events", "list", "pkg/fleet Measure: why an agent was not scheduled or not started"},

	{PhaseConclude, ScopeRun, "", "pods", "list", "pkg/fleet Remove and Left: the run's fixtures, and what is left of them"},
	{PhaseConclude, ScopeRun, "", "pods", "delete", "pkg/fleet Remove"},
	{PhaseConclude, ScopeRun, "", "pods/log", "get", "pkg/fleet Evidence: the logs of what went wrong"},
	{PhaseConclude, ScopeRun, "", "configmaps", "create", "pkg/record: write evidence and report"},
	{PhaseConclude, ScopeRun, "", "configmaps", "get", "pkg/record: read worksheets and observations"},
	{PhaseConclude, ScopeRun, "", "configmaps", "list", "pkg/fleet Remove and Left; pkg/record: reports beyond the plan's retention"},
	{PhaseConclude, ScopeRun, "", "configmaps", "update", "pkg/record: write evidence and report again when the task is retried"},
	{PhaseConclude, ScopeRun, "", "configmaps", "delete", "pkg/fleet Remove; pkg/record: reports beyond the plan's retention"},
	{PhaseConclude, ScopeRun, "", "events", "list", "pkg/fleet Evidence: what happened to what went wrong"},
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

// AccountName names the ServiceAccount of a phase.
func AccountName(plan *checkup.Plan, phase Phase) string { return plan.Name + "-" + string(phase) }

func accounts(plan *checkup.Plan) []string {
	names := make([]string, len(Phases))
	for i, phase := range Phases {
		names[i] = AccountName(plan, phase)
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
		account(AccountName(plan, phase))
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
		meta := opts.meta(AccountName(plan, p.phase), plan.Name)
		subjects := []rbacv1.Subject{
			{Kind: rbacv1.ServiceAccountKind, Name: AccountName(plan, p.phase), Namespace: opts.Namespace},
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
