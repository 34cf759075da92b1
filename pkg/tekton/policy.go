// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kinds"
	"github.com/checkplan/checkplan/pkg/networkhealth"
)

// creators are the phases whose accounts may create or change pods.
var creators = []checkup.Phase{checkup.PhaseSetup, checkup.PhaseProbe}

// Policies are ValidatingAdmissionPolicies, with their bindings, that limit the accounts of a plan to what they are
// for. Those of setup and probe may make pods of the agent's image only, pinned to a node, without a token, restricted,
// or, if agents of the plan read the rules of their nodes, exactly such agents: an account that may create pods in a
// namespace of the pod security level privileged could otherwise become root on nodes. That of probe may add to
// existing pods ephemeral containers of that image only, restricted, and without the pod's volumes, among which is its
// token. Those of setup and conclude may change the label with the verdict of the plan's runs, and nothing else of a
// run. If the plan has Services of its own, they may create and delete these only, over the pods of its runs. That of
// conclude may write PodNetworkHealths of checkplan only, if the plan has some. That of the schedule may
// start and delete runs of this plan only, under the plan's accounts. RBAC cannot express any of this. The policies are
// objects of the cluster, so only who administers it can apply them. Kubernetes has them since 1.30.
func Policies(plan *checkup.Plan, opts Options) []runtime.Object {
	opts = opts.withDefaults()
	var objects []runtime.Object
	for _, phase := range creators {
		// The account for all phases may do what each may.
		users := []string{checkup.AccountName(plan.Name, phase)}
		if phase == checkup.PhaseProbe {
			users = append(users, plan.Name)
		}
		pods := rule(corev1.GroupName, []string{"pods"}, admissionv1.Create, admissionv1.Update)
		objects = append(objects, policy(plan, opts, users[0], users, pods, validations(plan, opts, phase))...)
	}
	if inside(plan) {
		containers := rule(corev1.GroupName, []string{"pods/ephemeralcontainers"}, admissionv1.Update)
		users := []string{checkup.AccountName(plan.Name, checkup.PhaseProbe), plan.Name}
		objects = append(objects, policy(plan, opts, users[0]+"-inside", users, containers, insideValidations(plan, opts))...)
	}
	if plan.Starts(checkup.RoleService) {
		services := rule(corev1.GroupName, []string{"services"}, admissionv1.Create, admissionv1.Delete)
		users := setsUpAndConcludes(plan.Name)
		objects = append(objects, policy(plan, opts, plan.Name+"-services", users, services, serviceValidations(plan))...)
	}
	if plan.NetworkHealth() != nil {
		resource := networkhealth.Resource.Resource
		health := rule(networkhealth.Group, []string{resource, resource + "/status"},
			admissionv1.Create, admissionv1.Update, admissionv1.Delete)
		// The account for all phases may do what each may.
		users := []string{checkup.AccountName(plan.Name, checkup.PhaseConclude), plan.Name}
		objects = append(objects, policy(plan, opts, users[0], users, health, healthValidations(plan))...)
	}
	runs := func(of ...admissionv1.OperationType) admissionv1.RuleWithOperations {
		return rule("tekton.dev", []string{"pipelineruns"}, of...)
	}
	labelling := setsUpAndConcludes(plan.Name)
	objects = append(objects,
		policy(plan, opts, plan.Name+"-verdict", labelling, runs(admissionv1.Update), verdictValidations(plan))...)
	if plan.Schedule != nil {
		account := ScheduleAccount(plan)
		objects = append(objects, policy(plan, opts, account, []string{account},
			runs(admissionv1.Create, admissionv1.Update, admissionv1.Delete), runValidations(plan))...)
	}
	return objects
}

// setsUpAndConcludes lists the accounts of the first and the last phase, and the one for all phases.
func setsUpAndConcludes(plan string) []string {
	return []string{
		checkup.AccountName(plan, checkup.PhaseSetup), checkup.AccountName(plan, checkup.PhaseConclude), plan,
	}
}

// rule is about operations on resources of an API group, in all of its versions.
func rule(group string, resources []string, of ...admissionv1.OperationType) admissionv1.RuleWithOperations {
	return admissionv1.RuleWithOperations{
		Operations: of,
		Rule:       admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: resources},
	}
}

// policy is a policy for these accounts, and its binding.
func policy(
	plan *checkup.Plan, opts Options, name string, accounts []string, rule admissionv1.RuleWithOperations,
	validations []admissionv1.Validation,
) []runtime.Object {
	name = "checkplan." + opts.Namespace + "." + name
	users := make([]string, len(accounts))
	for i, account := range accounts {
		users[i] = fmt.Sprintf("%q", "system:serviceaccount:"+opts.Namespace+":"+account)
	}
	typeMeta := func(kind string) metav1.TypeMeta {
		return metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: kind}
	}
	meta := opts.meta(name, plan.Name)
	meta.Namespace = ""
	fail := admissionv1.Fail
	return []runtime.Object{
		&admissionv1.ValidatingAdmissionPolicy{
			TypeMeta: typeMeta("ValidatingAdmissionPolicy"), ObjectMeta: meta,
			Spec: admissionv1.ValidatingAdmissionPolicySpec{
				FailurePolicy: &fail,
				MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
					RuleWithOperations: rule,
				}}},
				MatchConditions: []admissionv1.MatchCondition{{
					Name: "account", Expression: "request.userInfo.username in [" + strings.Join(users, ", ") + "]",
				}},
				Validations: validations,
			},
		},
		&admissionv1.ValidatingAdmissionPolicyBinding{
			TypeMeta: typeMeta("ValidatingAdmissionPolicyBinding"), ObjectMeta: meta,
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			},
		},
	}
}

// serviceValidations are which Services setup may create, and setup and conclude delete: those of the plan's runs, over
// their own pods, without addresses outside the cluster. An external IP would take the traffic of others.
func serviceValidations(plan *checkup.Plan) []admissionv1.Validation {
	own := func(of string) string {
		return labelled(of, checkup.LabelPlan, plan.Name) + " && " +
			labelled(of, checkup.LabelRole, string(checkup.RoleService))
	}
	return []admissionv1.Validation{
		{
			Message: fmt.Sprintf("plan %s: its accounts for setup and conclude may create and delete Services of its runs only",
				plan.Name),
			Expression: `(request.operation == "CREATE" || (` + own("oldObject") + `)) && ` +
				`(request.operation == "DELETE" || (` + own("object") + `))`,
		},
		{
			Message: fmt.Sprintf("plan %s: a Service of its account for setup must select pods of a run, by %s and %s",
				plan.Name, checkup.LabelRun, checkup.LabelCheck),
			Expression: fmt.Sprintf(`request.operation == "DELETE" || has(object.spec.selector) && `+
				`%q in object.spec.selector && %q in object.spec.selector`, checkup.LabelRun, checkup.LabelCheck),
		},
		{
			Message: fmt.Sprintf("plan %s: a Service of its account for setup must have no load balancer and no external address",
				plan.Name),
			Expression: `request.operation == "DELETE" || ` +
				`(!has(object.spec.type) || object.spec.type in ["ClusterIP", "NodePort"]) && ` +
				`(!has(object.spec.externalIPs) || size(object.spec.externalIPs) == 0)`,
		},
	}
}

// healthValidations are which PodNetworkHealths the account for conclude may write: those of checkplan, because it ages
// those of other plans, too, and none of other tools.
func healthValidations(plan *checkup.Plan) []admissionv1.Validation {
	own := func(of string) string {
		return labelled(of, checkup.LabelManagedBy, checkup.ManagedBy) +
			fmt.Sprintf(` && %s.spec.observer.name == %q`, of, networkhealth.ObserverName)
	}
	return []admissionv1.Validation{{
		Message: fmt.Sprintf("plan %s: its account for %s may write PodNetworkHealths of checkplan only",
			plan.Name, checkup.PhaseConclude),
		Expression: `(request.operation == "CREATE" || (` + own("oldObject") + `)) && ` +
			`(request.operation == "DELETE" || (` + own("object") + `))`,
	}}
}

// verdictValidations are what setup and conclude may change of a PipelineRun: the label with the verdict, of a run of
// their plan.
func verdictValidations(plan *checkup.Plan) []admissionv1.Validation {
	// The other labels, or the annotations, that the one object has are those of the other.
	same := func(of, with, field, but string) string {
		return fmt.Sprintf(`(!has(%[1]s.metadata.%[3]s) || %[1]s.metadata.%[3]s.all(k, k == %[4]q || `+
			`has(%[2]s.metadata.%[3]s) && k in %[2]s.metadata.%[3]s && %[2]s.metadata.%[3]s[k] == %[1]s.metadata.%[3]s[k]))`,
			of, with, field, but)
	}
	var both []string
	for field, but := range map[string]string{"labels": checkup.LabelVerdict, "annotations": ""} {
		both = append(both, same("object", "oldObject", field, but), same("oldObject", "object", field, but))
	}
	slices.Sort(both)
	for _, field := range []string{"ownerReferences", "finalizers"} { // with them, others would delete the run, or nobody could
		both = append(both, fmt.Sprintf(`has(object.metadata.%[1]s) == has(oldObject.metadata.%[1]s) && `+
			`(!has(object.metadata.%[1]s) || object.metadata.%[1]s == oldObject.metadata.%[1]s)`, field))
	}
	return []admissionv1.Validation{
		{
			Message: fmt.Sprintf(
				"plan %s: its accounts for setup and conclude may label runs of the plan only", plan.Name),
			Expression: labelled("oldObject", checkup.LabelPlan, plan.Name),
		},
		{
			Message: fmt.Sprintf(
				"plan %s: its accounts for setup and conclude may change the label %s of a run, and nothing else",
				plan.Name, checkup.LabelVerdict),
			Expression: `object.spec == oldObject.spec && ` + strings.Join(both, " && "),
		},
	}
}

// labelled is true of an object with a label.
func labelled(of, key, value string) string {
	return fmt.Sprintf(`has(%[1]s.metadata.labels) && %[2]q in %[1]s.metadata.labels && %[1]s.metadata.labels[%[2]q] == %[3]q`,
		of, key, value)
}

// runValidations are what a PipelineRun must be that the schedule's account creates, changes or deletes. Tekton itself
// refuses a change of the spec of a run, but for spec.status.
func runValidations(plan *checkup.Plan) []admissionv1.Validation {
	var all []admissionv1.Validation
	add := func(message, expression string) {
		all = append(all, admissionv1.Validation{
			Message:    fmt.Sprintf("plan %s: a run that the account of its schedule %s", plan.Name, message),
			Expression: expression,
		})
	}
	ofPlan := func(of string) string { return labelled(of, checkup.LabelPlan, plan.Name) }
	scheduled := func(of string) string { return ofPlan(of) + " && " + labelled(of, checkup.LabelScheduled, "true") }
	add("starts must have its labels "+checkup.LabelPlan+" and "+checkup.LabelScheduled,
		`request.operation != "CREATE" || (`+scheduled("object")+`)`)
	add("deletes must be one that it started", `request.operation != "DELETE" || (`+scheduled("oldObject")+`)`)
	add("cancels must be one of the plan", `request.operation != "UPDATE" || (`+ofPlan("oldObject")+`)`)
	add("starts must have the plan's Pipeline, and neither an inline one nor workspaces", fmt.Sprintf(
		`request.operation != "CREATE" || has(object.spec.pipelineRef) && has(object.spec.pipelineRef.name) && `+
			`object.spec.pipelineRef.name == %q && !has(object.spec.pipelineRef.resolver) && `+
			`!has(object.spec.pipelineSpec) && (!has(object.spec.workspaces) || size(object.spec.workspaces) == 0)`, plan.Name))
	var accounts []string
	for _, phase := range checkup.Phases {
		accounts = append(accounts, fmt.Sprintf("%q", checkup.AccountName(plan.Name, phase)))
	}
	const harmless = `(!has(t.podTemplate) || (!has(t.podTemplate.hostNetwork) || !t.podTemplate.hostNetwork) && ` +
		`(!has(t.podTemplate.volumes) || size(t.podTemplate.volumes) == 0))`
	add("starts must have the plan's accounts, and no pod template with hostNetwork or volumes",
		`request.operation != "CREATE" || (!has(object.spec.taskRunTemplate) || [object.spec.taskRunTemplate].all(t, `+
			`(!has(t.serviceAccountName) || t.serviceAccountName == "default") && `+harmless+`)) && `+
			`(!has(object.spec.taskRunSpecs) || object.spec.taskRunSpecs.all(t, (!has(t.serviceAccountName) || `+
			`t.serviceAccountName in [`+strings.Join(accounts, ", ")+`]) && `+harmless+`))`)
	return all
}

// validations are what a pod of the phase must be. A dry run, with which a placement check asks about the pods of its
// plan, creates nothing.
func validations(plan *checkup.Plan, opts Options, phase checkup.Phase) []admissionv1.Validation {
	var all []admissionv1.Validation
	add := func(message, expression string) {
		all = append(all, admissionv1.Validation{
			Message:    fmt.Sprintf("plan %s: a pod of its account for %s must %s", plan.Name, phase, message),
			Expression: fmt.Sprintf(`has(request.dryRun) && request.dryRun || request.operation != "CREATE" || (%s)`, expression),
		})
	}
	add("have the agent's image in its only container", fmt.Sprintf(
		`size(object.spec.containers) == 1 && object.spec.containers[0].image == %q && `+
			`(!has(object.spec.initContainers) || size(object.spec.initContainers) == 0)`, AgentImage(opts)))
	namespaces := `(!has(object.spec.hostPID) || !object.spec.hostPID) && (!has(object.spec.hostIPC) || !object.spec.hostIPC)`
	const podNetwork = `(!has(object.spec.hostNetwork) || !object.spec.hostNetwork)`
	reads := phase == checkup.PhaseProbe && readRules(plan)
	switch {
	case phase == checkup.PhaseProbe && hostNetwork(plan):
		add("not have hostPID or hostIPC", namespaces)
	case reads:
		add("not have hostPID or hostIPC, nor hostNetwork, unless it reads the rules of its node",
			`(`+podNetwork+` || object.spec.containers.all(c, `+reader+`)) && `+namespaces)
	default:
		add("not have hostNetwork, hostPID or hostIPC", podNetwork+` && `+namespaces)
	}
	const pinned = `has(object.spec.affinity) && has(object.spec.affinity.nodeAffinity) && ` +
		`has(object.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution) && ` +
		`object.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.all(t, ` +
		`has(t.matchFields) && t.matchFields.exists(f, f.key == "metadata.name" && f.operator == "In" && size(f.values) == 1))`
	switch {
	case plan.Starts(checkup.RolePreflight): // its preflight pods may run where the VMs may
		add("be pinned to a node, or be a preflight pod", fmt.Sprintf(
			`has(object.metadata.labels) && %q in object.metadata.labels && object.metadata.labels[%q] == %q || (%s)`,
			checkup.LabelRole, checkup.LabelRole, checkup.RolePreflight, pinned))
	default:
		add("be pinned to a node", pinned)
	}
	volume, words := `has(v.configMap)`, "ConfigMaps"
	if phase == checkup.PhaseProbe && hostNetwork(plan) { // the client certificates of components
		volume, words = `has(v.configMap) || has(v.secret)`, "ConfigMaps and Secrets"
	}
	add("have no API token, and volumes of "+words+" only",
		`has(object.spec.automountServiceAccountToken) && !object.spec.automountServiceAccountToken && `+
			`(!has(object.spec.volumes) || object.spec.volumes.all(v, `+volume+`))`)
	const (
		noRoot = `has(object.spec.securityContext.runAsNonRoot) && object.spec.securityContext.runAsNonRoot`
		// noPrivilege is of a container c.
		noPrivilege = `has(c.securityContext.runAsNonRoot) && c.securityContext.runAsNonRoot && ` +
			`(!has(c.securityContext.runAsUser) || c.securityContext.runAsUser != 0) && ` +
			`(!has(c.securityContext.capabilities.add) || size(c.securityContext.capabilities.add) == 0)`
	)
	words, root, privilege := "be restricted: no root, no capabilities", noRoot, noPrivilege
	if reads {
		words = "be restricted (no root, no capabilities), or read the rules of its node (its network, root with NET_ADMIN only)"
		root = `(` + noRoot + ` || object.spec.containers.all(c, ` + reader + `))`
		privilege = `(` + noPrivilege + ` || has(object.spec.hostNetwork) && object.spec.hostNetwork && ` + reader + `)`
	}
	add(words+", no escalation, a read-only file system, the runtime's seccomp profile",
		`has(object.spec.securityContext) && `+root+` && has(object.spec.securityContext.seccompProfile) && `+
			`object.spec.securityContext.seccompProfile.type == "RuntimeDefault" && `+
			`object.spec.containers.all(c, has(c.securityContext) && `+
			`(!has(c.securityContext.privileged) || !c.securityContext.privileged) && `+
			`has(c.securityContext.allowPrivilegeEscalation) && !c.securityContext.allowPrivilegeEscalation && `+
			`has(c.securityContext.readOnlyRootFilesystem) && c.securityContext.readOnlyRootFilesystem && `+
			`has(c.securityContext.capabilities) && has(c.securityContext.capabilities.drop) && `+
			`c.securityContext.capabilities.drop.exists(d, d == "ALL") && `+privilege+` && `+
			`(!has(c.securityContext.seccompProfile) || c.securityContext.seccompProfile.type == "RuntimeDefault"))`)
	add("take nothing of Secrets or ConfigMaps into its environment", `object.spec.containers.all(c, `+noEnvironment+`)`)
	add("have restartPolicy Never and activeDeadlineSeconds", `object.spec.restartPolicy == "Never" && has(object.spec.activeDeadlineSeconds)`)
	// The right to patch pods is for their owner. It must not change an image.
	all = append(all, admissionv1.Validation{
		Message:    fmt.Sprintf("plan %s: its account for %s may change the owner of a pod, but not what the pod runs", plan.Name, phase),
		Expression: `request.operation != "UPDATE" || object.spec == oldObject.spec`,
	})
	return all
}

// reader is true of the container c of an agent that reads the rules of its node: the agent carries out an order, as
// root with NET_ADMIN only.
const reader = `has(c.command) && c.command == ["/ko-app/agent"] && has(c.args) && size(c.args) > 0 && c.args[0] == "probe" && ` +
	`has(c.securityContext) && has(c.securityContext.runAsUser) && c.securityContext.runAsUser == 0 && ` +
	`has(c.securityContext.capabilities) && has(c.securityContext.capabilities.add) && ` +
	`c.securityContext.capabilities.add == ["NET_ADMIN"]`

// noEnvironment is true of a container c whose environment has literal values only.
const noEnvironment = `(!has(c.envFrom) || size(c.envFrom) == 0) && (!has(c.env) || c.env.all(e, !has(e.valueFrom)))`

// insideValidations are what an ephemeral container must be that the account of probe adds to an existing pod.
func insideValidations(plan *checkup.Plan, opts Options) []admissionv1.Validation {
	var all []admissionv1.Validation
	add := func(message, expression string) {
		all = append(all, admissionv1.Validation{
			Message: fmt.Sprintf("plan %s: an ephemeral container of its account for probe must %s", plan.Name, message),
			Expression: `!has(object.spec.ephemeralContainers) || object.spec.ephemeralContainers.all(c, ` +
				`has(oldObject.spec.ephemeralContainers) && oldObject.spec.ephemeralContainers.exists(o, o.name == c.name) || (` +
				expression + `))`,
		})
	}
	add("have the agent's image", fmt.Sprintf(`c.image == %q`, AgentImage(opts)))
	add("have no volume, and no environment of the pod's namespace",
		`(!has(c.volumeMounts) || size(c.volumeMounts) == 0) && (!has(c.volumeDevices) || size(c.volumeDevices) == 0) && `+
			noEnvironment)
	add("see its own processes only", `!has(c.targetContainerName) || c.targetContainerName == ""`)
	add("be restricted: no root, no capabilities, no escalation, a read-only file system, the runtime's seccomp profile",
		`has(c.securityContext) && (!has(c.securityContext.privileged) || !c.securityContext.privileged) && `+
			`has(c.securityContext.runAsNonRoot) && c.securityContext.runAsNonRoot && `+
			`(!has(c.securityContext.runAsUser) || c.securityContext.runAsUser != 0) && `+
			`has(c.securityContext.allowPrivilegeEscalation) && !c.securityContext.allowPrivilegeEscalation && `+
			`has(c.securityContext.readOnlyRootFilesystem) && c.securityContext.readOnlyRootFilesystem && `+
			`has(c.securityContext.capabilities) && has(c.securityContext.capabilities.drop) && `+
			`c.securityContext.capabilities.drop.exists(d, d == "ALL") && `+
			`(!has(c.securityContext.capabilities.add) || size(c.securityContext.capabilities.add) == 0) && `+
			`has(c.securityContext.seccompProfile) && c.securityContext.seccompProfile.type == "RuntimeDefault"`)
	return all
}

// inside reports whether agents of the plan may run in existing pods.
func inside(plan *checkup.Plan) bool {
	return slices.ContainsFunc(plan.CheckNames(), func(name string) bool {
		return slices.ContainsFunc(kinds.Rights(plan.Checks[name]), func(r checkup.Right) bool {
			return r.Resource == "pods/ephemeralcontainers"
		})
	})
}

// hostNetwork reports whether agents of the plan may be in their nodes' networks.
func hostNetwork(plan *checkup.Plan) bool {
	return slices.ContainsFunc(plan.CheckNames(), func(name string) bool {
		k, _ := kinds.Named(plan.Checks[name].Kind())
		return k.HostNetwork != nil
	})
}

// readRules reports whether agents of the plan read the rules of their nodes.
func readRules(plan *checkup.Plan) bool {
	return slices.ContainsFunc(plan.CheckNames(), func(name string) bool {
		k, _ := kinds.Named(plan.Checks[name].Kind())
		return k.Tables != nil
	})
}
