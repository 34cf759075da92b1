// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"fmt"
	"strings"

	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// The pages of a catalog: what the objects hold, and how to use them.

func catalogReadme(plans []*checkup.Plan, opts Options, tasks, clusters []string) []byte {
	var p page
	p.line("# Catalog")
	needs := "no feature flag"
	if opts.Tasks.Name != "" {
		needs = "its remote resolvers, with the defaults of its feature flags"
	}
	p.line("Plans of [checkplan](https://github.com/checkplan/checkplan) as a Tekton catalog. Each Pipeline measures "+
		"paths of the cluster's network, and its verdict is in the status of the PipelineRun. It needs Tekton Pipelines %s "+
		"or newer, and %s.", opts.Tekton, needs)
	p.line("```\nkubectl create namespace %s\nkubectl apply -k default", opts.Namespace)
	for _, plan := range plans {
		p.text("kubectl create -f pipeline/%s/samples/%s.yaml\n", plan.Name, plan.Name)
	}
	p.text("```\n")
	images, one := "; `images:` in it takes the images from another registry", "`task`, "
	if opts.Tasks.Name != "" {
		images, one = "", ""
	}
	p.line("The objects are for the namespace `%s`. An overlay moves them to another, for `kubectl apply -k`, Flux and "+
		"Argo CD%s:", opts.Namespace, images)
	p.text("\n```yaml\n# team-a/namespaced/kustomization.yaml\nnamespace: team-a\nresources: [../../catalog]\n```\n")
	if len(clusters) > 0 {
		p.text("\n```yaml\n# team-a/kustomization.yaml\nresources: [namespaced]\ncomponents: [../catalog/cluster]\n```\n")
		p.line("The component adds the rights outside the namespace, with the namespace in their names. It belongs in the " +
			"outer file, because kustomize applies `namespace:` after the components of the same file. For one plan only, " +
			"name " + one + "`pipeline/NAME` and `cluster/NAME`.")
	}
	p.line("More in [docs/gitops.md](https://github.com/checkplan/checkplan/blob/main/docs/gitops.md).")
	p.line("In a namespace that enforces the restricted pod security standard, Tekton's feature flag " +
		"`set-security-context` must be `true`.")
	p.line("## Pipelines")
	if opts.Pipelines.Name != "" {
		p.line("%s", whereRemote("Pipelines", opts.Pipelines))
		p.line("```\nplanner start NAME -n %s --resolver %s\n```", opts.Namespace, opts.Pipelines)
	}
	p.table("Pipeline", "Question")
	for _, plan := range plans {
		p.row(fmt.Sprintf("[%s](pipeline/%s/README.md)", plan.Name, plan.Name), firstLine(description(plan)))
	}
	p.line("## Tasks")
	if opts.Tasks.Name != "" {
		p.line("%s", whereRemote("Tasks", opts.Tasks))
		return p.bytes()
	}
	p.line("The Pipelines share these Tasks. They are not for use alone.")
	p.text("\n")
	for _, task := range tasks {
		p.text("- [%s](task/%s/README.md)\n", task, task)
	}
	return p.bytes()
}

func pipelineReadme(plan *checkup.Plan, opts Options, o *Objects) []byte {
	spec := o.Pipeline.Spec
	var p page
	p.line("# %s", spec.DisplayName)
	p.line("%s", spec.Description)
	p.line("```")
	if opts.Tasks.Name == "" {
		p.text("kubectl apply -k task\n")
	}
	p.text("kubectl apply -k pipeline/%s\n", plan.Name)
	if _, outside := beyond(o.Rights, opts.Namespace); len(outside) > 0 {
		p.text("kubectl apply -f cluster/%s/rbac.yaml\n", plan.Name)
	}
	p.text("kubectl create -f pipeline/%s/samples/%s.yaml\n```\n", plan.Name, plan.Name)
	p.params(spec.Params)
	p.line("`%s` sets these, and overrides the params above:", checkup.SettingsParam)
	p.table("Setting", "Default", "Meaning")
	for _, param := range plan.Params() {
		if param.Rare {
			p.row(code(param.Name), code(param.Default), param.Description)
		}
	}
	p.line("## Results")
	p.table("Result", "Meaning")
	for _, r := range spec.Results {
		p.row(code(r.Name), r.Description)
	}
	p.line("## Tasks")
	p.table("Task", "After", "At most", "What it does")
	for _, task := range append(spec.Tasks, spec.Finally...) {
		after := strings.Join(task.RunAfter, ", ")
		if task.Name == concludeName {
			after = "all others, always"
		}
		p.row(code(task.Name), after, task.Timeout.Duration.String(), task.Description)
	}
	timeouts := o.Sample.Spec.Timeouts
	p.line("A run needs these timeouts: pipeline %s, tasks %s, finally %s. The sample has them.",
		timeouts.Pipeline.Duration, timeouts.Tasks.Duration, timeouts.Finally.Duration)
	if readRules(plan) {
		p.line("## Pods")
		p.line("Agents that read the rules of their nodes are on the host network, as UID 0 with all capabilities dropped but "+
			"NET_ADMIN. They have a read-only root file system, no privilege escalation, the seccomp profile RuntimeDefault, and "+
			"no token. Other pods of the plan are restricted. The namespace must admit these agents: `kubectl label --overwrite "+
			"namespace %s %s=privileged`. If it does not, their check is unmeasured, and other checks of the plan go on. In a "+
			"namespace with this label, whoever may create pods is root on nodes: `planner compile --policies` writes policies "+
			"that limit the plan's accounts to its own pods.", opts.Namespace, checkup.LabelPodSecurity)
	}
	p.line("## Rights")
	p.line("Each phase has its own service account, and the sample names it for each task. The account `%s` has the "+
		"rights of all phases: it is for runs from the dashboard's form, which takes one account for all tasks. It gives "+
		"nobody a new right: whoever may create PipelineRuns in a namespace may use any of its accounts. The pods that "+
		"measure have no token.", plan.Name)
	p.table("Account", "Where", "Resource", "Verb", "For")
	for _, r := range Rights(plan, opts) {
		p.row(code(checkup.AccountName(plan.Name, r.Phase)), where(r, opts), r.Object(), r.Verb, r.Why)
	}
	return p.bytes()
}

// whereRemote says where a resolver finds objects.
func whereRemote(objects string, r Resolver) string {
	return fmt.Sprintf("Tekton's resolver `%s` finds the %s in `%s`.", r.Name, objects, r.From)
}

// where names the scope of a right: the cluster, or a namespace.
func where(r checkup.Right, opts Options) string {
	switch r.Scope {
	case checkup.ScopeCluster:
		return "cluster"
	case checkup.ScopeNamespace:
		return "namespace " + r.Namespace
	default:
		return "namespace " + opts.Namespace
	}
}

func taskReadme(task *pipelinev1.Task) []byte {
	var p page
	p.line("# %s", task.Name)
	p.line("%s", task.Spec.Description)
	p.params(task.Spec.Params)
	if len(task.Spec.Results) > 0 {
		p.line("## Results")
		p.line("Each is written without a newline at its end.")
		p.table("Result", "Meaning")
		for _, r := range task.Spec.Results {
			p.row(code(r.Name), r.Description)
		}
	}
	p.line("## Steps")
	p.table("Step", "Image", "At most")
	for _, s := range task.Spec.Steps {
		p.row(code(s.Name), code(s.Image), s.Timeout.Duration.String())
	}
	return p.bytes()
}

// page is a Markdown page under construction.
type page struct{ b strings.Builder }

func (p *page) text(format string, args ...any) { fmt.Fprintf(&p.b, format, args...) }

// line adds a paragraph.
func (p *page) line(format string, args ...any) {
	if p.b.Len() > 0 {
		p.text("\n")
	}
	p.text(format+"\n", args...)
}

func (p *page) bytes() []byte { return []byte(checkup.CleanLines(p.b.String())) }

func (p *page) table(columns ...string) {
	p.text("\n| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat(" --- |", len(columns)))
}

func (p *page) row(cells ...string) {
	for i, cell := range cells {
		cells[i] = strings.NewReplacer("|", `\|`, "\n", " ").Replace(cell)
	}
	p.text("| %s |\n", strings.Join(cells, " | "))
}

func (p *page) params(params pipelinev1.ParamSpecs) {
	p.line("## Params")
	p.table("Param", "Default", "Meaning")
	for _, param := range params {
		value := "required"
		if param.Default != nil {
			value = code(param.Default.StringVal)
		}
		p.row(code(param.Name), value, param.Description)
	}
}

func code(s string) string {
	if s == "" {
		return "(empty)"
	}
	return "`" + s + "`"
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
