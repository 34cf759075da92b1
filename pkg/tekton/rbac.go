// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kinds"
	"github.com/checkplan/checkplan/pkg/networkhealth"
)

// common is a right of a phase whatever the kinds of a plan's checks are.
type common struct {
	// fixture is the role of the pods that it is needed for: a plan of which no
	// check may start such pods does without. Empty is every plan.
	fixture  checkup.Role
	phase    checkup.Phase
	scope    checkup.Scope
	resource string // all of the core API group
	verb     string
	why      string
}

// phaseRights is every verb that the mains in tasks/ use for all kinds. They have
// no other right than these and those of the plan's kinds.
var phaseRights = []common{
	{checkup.RoleResponder, checkup.PhaseSetup, checkup.ScopeRun, "pods", "create", "pkg/fleet StartResponders"},
	{checkup.RoleResponder, checkup.PhaseSetup, checkup.ScopeRun, "pods", "get",
		"pkg/fleet StartResponders: a responder that an earlier try of the task created"},
	{"", checkup.PhaseSetup, checkup.ScopeRun, "pods", "list", "pkg/fleet Sweep: leftovers of earlier runs"},
	{checkup.RoleResponder, checkup.PhaseSetup, checkup.ScopeRun, "pods", "watch",
		"pkg/fleet StartResponders: wait until responders are ready"},
	{checkup.RoleResponder, checkup.PhaseSetup, checkup.ScopeRun, "pods", "patch",
		"pkg/fleet StartResponders: hand a responder of an earlier try to the pod of this try"},
	{"", checkup.PhaseSetup, checkup.ScopeRun, "pods", "delete",
		"pkg/fleet Sweep: leftovers of earlier runs; StartResponders: a failed responder"},
	{"", checkup.PhaseSetup, checkup.ScopeRun, "configmaps", "create", "pkg/record: freeze worksheet and roster"},
	{"", checkup.PhaseSetup, checkup.ScopeRun, "configmaps", "list",
		"pkg/fleet Sweep; pkg/cluster Rounds: the rounds of the plan's reports"},
	{"", checkup.PhaseSetup, checkup.ScopeRun, "configmaps", "update",
		"pkg/record: write worksheet and roster again when the task is retried"},
	{"", checkup.PhaseSetup, checkup.ScopeRun, "configmaps", "delete", "pkg/fleet Sweep: orders of earlier runs"},
	{checkup.RoleResponder, checkup.PhaseSetup, checkup.ScopeRun, "events", "list",
		"pkg/fleet StartResponders: why a responder was not scheduled or not started"},

	{checkup.RoleAgent, checkup.PhaseProbe, checkup.ScopeRun, "pods", "create", "pkg/fleet Measure: start agents"},
	{checkup.RoleAgent, checkup.PhaseProbe, checkup.ScopeRun, "pods", "get",
		"pkg/fleet Measure: an agent that an earlier try of the task created"},
	{checkup.RoleAgent, checkup.PhaseProbe, checkup.ScopeRun, "pods", "list",
		"pkg/fleet Measure and Lost: agents, and responders that were deleted"},
	{checkup.RoleAgent, checkup.PhaseProbe, checkup.ScopeRun, "pods", "watch", "pkg/fleet Measure: wait for agents"},
	{checkup.RoleAgent, checkup.PhaseProbe, checkup.ScopeRun, "pods", "patch",
		"pkg/fleet Measure: hand an agent of an earlier try to the pod of this try; TakeOver: the same for responders"},
	{checkup.RoleAgent, checkup.PhaseProbe, checkup.ScopeRun, "pods", "delete",
		"pkg/fleet Measure: agents when the task is stopped, and a failed agent of an earlier try; TakeOver: the admission " +
			"plugin OwnerReferencesPermissionEnforcement demands it"},
	{checkup.RoleAgent, checkup.PhaseProbe, checkup.ScopeRun, "pods/log", "get",
		"pkg/fleet Measure and Receptions: what agents and responders report"},
	{"", checkup.PhaseProbe, checkup.ScopeRun, "configmaps", "create",
		"pkg/record: what was measured; pkg/fleet Measure: the agents' orders"},
	{"", checkup.PhaseProbe, checkup.ScopeRun, "configmaps", "get", "pkg/record: read worksheet and roster"},
	{"", checkup.PhaseProbe, checkup.ScopeRun, "configmaps", "update", "pkg/record: add what was measured, and progress"},
	{checkup.RoleAgent, checkup.PhaseProbe, checkup.ScopeRun, "events", "list",
		"pkg/fleet Measure: why an agent was not scheduled or not started"},

	{"", checkup.PhaseConclude, checkup.ScopeRun, "pods", "list",
		"pkg/fleet Remove and Left: the run's fixtures, and those that are left"},
	{checkup.RoleAgent, checkup.PhaseConclude, checkup.ScopeRun, "pods", "delete", "pkg/fleet Remove"},
	{checkup.RoleAgent, checkup.PhaseConclude, checkup.ScopeRun, "pods/log", "get",
		"pkg/fleet Evidence: the logs of what went wrong"},
	{"", checkup.PhaseConclude, checkup.ScopeRun, "configmaps", "create", "pkg/record: write evidence, report and history"},
	{"", checkup.PhaseConclude, checkup.ScopeRun, "configmaps", "get",
		"pkg/record: read worksheets, what was measured, and the plan's history"},
	{"", checkup.PhaseConclude, checkup.ScopeRun, "configmaps", "list",
		"pkg/fleet Remove and Left; pkg/record: reports beyond the plan's retention, old pieces of its history"},
	{"", checkup.PhaseConclude, checkup.ScopeRun, "configmaps", "update",
		"pkg/record: the index of the history; evidence and report again when the task is retried"},
	{"", checkup.PhaseConclude, checkup.ScopeRun, "configmaps", "delete",
		"pkg/fleet Remove; pkg/record: reports beyond the plan's retention, old pieces of its history"},
	{"", checkup.PhaseConclude, checkup.ScopeRun, "events", "create", "tasks/report: the plan's verdict has changed"},
	{checkup.RoleAgent, checkup.PhaseConclude, checkup.ScopeRun, "events", "list",
		"pkg/fleet Evidence: what happened to what went wrong"},
}

// Rights lists every right of the plan's phases, each once. They are sorted by
// phase, and then by scope: cluster, the run's namespace, other namespaces. They are
// what the fixtures and kinds of the plan's checks need, and no more.
func Rights(plan *checkup.Plan, opts Options) []checkup.Right {
	opts = opts.withDefaults()
	fixtures := map[checkup.Role]bool{"": true}
	for _, check := range plan.Checks {
		for _, role := range check.Fixtures() {
			fixtures[role] = true
		}
	}
	var all []checkup.Right
	for _, r := range phaseRights {
		if fixtures[r.fixture] {
			all = append(all, checkup.Right{Phase: r.phase, Scope: r.scope, Resource: r.resource, Verb: r.verb, Why: r.why})
		}
	}
	mark := checkup.Right{Scope: checkup.ScopeRun, Group: "tekton.dev", Resource: "pipelineruns", Verb: "patch"}
	mark.Phase, mark.Why = checkup.PhaseSetup, "tasks/setup: remove the verdict's label, which the dashboard copies to a rerun"
	all = append(all, mark)
	mark.Phase, mark.Why = checkup.PhaseConclude, "tasks/report: the verdict is a label of the run, "+checkup.LabelVerdict
	all = append(all, mark)
	if plan.Schedule != nil {
		all = append(all, checkup.Right{
			Phase: checkup.PhaseConclude, Scope: checkup.ScopeRun, Group: "batch", Resource: "cronjobs",
			Names: []string{ScheduleName(plan)}, Verb: "get", Why: "tasks/report: an event is about an object of a UID",
		})
	}
	for _, name := range plan.CheckNames() {
		for _, r := range kinds.Rights(plan.Checks[name]) {
			if r.Scope == checkup.ScopeNamespace && r.Namespace == opts.Namespace {
				r.Scope, r.Namespace = checkup.ScopeRun, ""
			}
			all = append(all, r)
		}
	}
	all = append(all, networkhealth.Rights(plan.NetworkHealth())...)
	slices.SortStableFunc(all, func(a, b checkup.Right) int {
		return cmp.Or(
			cmp.Compare(slices.Index(checkup.Phases, a.Phase), slices.Index(checkup.Phases, b.Phase)),
			cmp.Compare(slices.Index(scopes, a.Scope), slices.Index(scopes, b.Scope)),
			cmp.Compare(a.Namespace, b.Namespace),
		)
	})
	return merge(all)
}

// scopes in the order in which rights are listed.
var scopes = []checkup.Scope{checkup.ScopeCluster, checkup.ScopeRun, checkup.ScopeNamespace}

// otherNamespaces are the namespaces that a check's rights name.
func otherNamespaces(check checkup.Check) []string {
	var namespaces []string
	for _, r := range kinds.Rights(check) {
		if r.Scope == checkup.ScopeNamespace && !slices.Contains(namespaces, r.Namespace) {
			namespaces = append(namespaces, r.Namespace)
		}
	}
	return namespaces
}

// merge joins equal rights into one, with all reasons. A right on all objects of a
// resource includes the rights on its objects by name.
func merge(rights []checkup.Right) []checkup.Right {
	same := func(a, b checkup.Right) bool {
		return a.Phase == b.Phase && a.Scope == b.Scope && a.Namespace == b.Namespace &&
			a.Group == b.Group && a.Resource == b.Resource && a.Verb == b.Verb
	}
	var merged []checkup.Right
	var reasons [][]string // of each
	for _, r := range rights {
		if slices.ContainsFunc(rights, func(other checkup.Right) bool { return len(other.Names) == 0 && same(other, r) }) {
			r.Names = nil
		}
		i := slices.IndexFunc(merged, func(have checkup.Right) bool {
			return same(have, r) && slices.Equal(have.Names, r.Names)
		})
		switch {
		case i < 0:
			merged, reasons = append(merged, r), append(reasons, []string{r.Why})
		case !slices.Contains(reasons[i], r.Why):
			reasons[i] = append(reasons[i], r.Why)
		}
	}
	for i := range merged {
		merged[i].Why = strings.Join(reasons[i], "; ")
	}
	return merged
}

func accounts(plan *checkup.Plan) []string {
	names := make([]string, len(checkup.Phases))
	for i, phase := range checkup.Phases {
		names[i] = checkup.AccountName(plan.Name, phase)
	}
	return names
}

// rights are the accounts of the phases and, for each place in which a phase has
// rights, a role and a binding.
//
// One more account has the plan's name and is bound to all roles: the dashboard's
// form takes one account for a whole run. It gives nobody a new right, because
// whoever may create PipelineRuns in a namespace may run them under any of its
// accounts. But each step of such a run has the rights of all phases. Therefore
// `planner run`, the sample and schedules name an account for each task.
func rights(plan *checkup.Plan, opts Options) []runtime.Object {
	var objects, roles []runtime.Object
	account := func(name string) {
		objects = append(objects, &corev1.ServiceAccount{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
			ObjectMeta: opts.meta(name, plan.Name),
		})
	}
	account(plan.Name)
	for _, phase := range checkup.Phases {
		account(checkup.AccountName(plan.Name, phase))
	}

	type place struct {
		phase     checkup.Phase
		scope     checkup.Scope
		namespace string
	}
	var places []place
	rules := map[place][]rbacv1.PolicyRule{}
	for _, r := range Rights(plan, opts) {
		p := place{r.Phase, r.Scope, r.Namespace}
		if _, ok := rules[p]; !ok {
			places = append(places, p)
		}
		rules[p] = addVerb(rules[p], r)
	}
	for _, p := range places {
		meta := opts.meta(checkup.AccountName(plan.Name, p.phase), plan.Name)
		subjects := []rbacv1.Subject{
			{Kind: rbacv1.ServiceAccountKind, Name: checkup.AccountName(plan.Name, p.phase), Namespace: opts.Namespace},
			{Kind: rbacv1.ServiceAccountKind, Name: plan.Name, Namespace: opts.Namespace},
		}
		if p.scope != checkup.ScopeRun {
			// Another installation of the plan, in another namespace, has the same name. So would have the roles in two
			// namespaces, and kustomize's namespace: moves both to one.
			meta.Name = strings.TrimSuffix("checkplan:"+opts.Namespace+":"+meta.Name+":"+p.namespace, ":")
			meta.Namespace = p.namespace
		}
		roleRef := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name}
		typeMeta := func(kind string) metav1.TypeMeta {
			return metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: kind}
		}
		if p.scope == checkup.ScopeCluster {
			roleRef.Kind = "ClusterRole"
			roles = append(roles,
				&rbacv1.ClusterRole{TypeMeta: typeMeta("ClusterRole"), ObjectMeta: meta, Rules: rules[p]},
				&rbacv1.ClusterRoleBinding{TypeMeta: typeMeta("ClusterRoleBinding"), ObjectMeta: meta, RoleRef: roleRef,
					Subjects: subjects})
			continue
		}
		roles = append(roles,
			&rbacv1.Role{TypeMeta: typeMeta("Role"), ObjectMeta: meta, Rules: rules[p]},
			&rbacv1.RoleBinding{TypeMeta: typeMeta("RoleBinding"), ObjectMeta: meta, RoleRef: roleRef, Subjects: subjects})
	}
	return append(objects, roles...)
}

// addVerb adds a right's verb to the rule of its resource.
func addVerb(rules []rbacv1.PolicyRule, r checkup.Right) []rbacv1.PolicyRule {
	i := slices.IndexFunc(rules, func(rule rbacv1.PolicyRule) bool {
		return rule.APIGroups[0] == r.Group && rule.Resources[0] == r.Resource && slices.Equal(rule.ResourceNames, r.Names)
	})
	if i < 0 {
		return append(rules, rbacv1.PolicyRule{APIGroups: []string{r.Group}, Resources: []string{r.Resource},
			ResourceNames: r.Names, Verbs: []string{r.Verb}})
	}
	rules[i].Verbs = append(rules[i].Verbs, r.Verb)
	return rules
}
