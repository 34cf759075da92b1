// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"fmt"
	"strings"

	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// The pages of a catalog: what the objects hold, and how to use them.

func catalogReadme(plans []*checkup.Plan, opts Options, tasks []string) []byte {
	var p page
	p.line("# Catalog")
	p.line("Plans of [checkplan](https://github.com/checkplan/checkplan) as a Tekton catalog. Each Pipeline measures "+
		"paths of the cluster's network, and its verdict is in the status of the PipelineRun. It needs Tekton Pipelines %s "+
		"or newer, and no feature flag.", opts.Tekton)
	p.line("```\nkubectl create namespace %s\nkubectl apply -R -f task -f pipeline", opts.Namespace)
	for _, plan := range plans {
		p.text("kubectl create -f samples/%s.yaml\n", plan.Name)
	}
	p.text("```\n")
	p.line("The objects are for the namespace `%s`; `planner compile --namespace` makes them for another. In a "+
		"namespace that enforces the restricted pod security standard, Tekton's feature flag `set-security-context` must "+
		"be `true`.", opts.Namespace)
	p.line("## Pipelines")
	p.table("Pipeline", "Question")
	for _, plan := range plans {
		p.row(fmt.Sprintf("[%s](pipeline/%s/README.md)", plan.Name, plan.Name), firstLine(description(plan)))
	}
	p.line("## Tasks")
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
	p.line("```\nkubectl apply -R -f task -f pipeline/%s\nkubectl create -f samples/%s.yaml\n```", plan.Name, plan.Name)
	p.params(spec.Params)
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
	p.line("## Rights")
	p.line("Each phase has its own service account, and the sample names it for each task. The account `%s` has the "+
		"rights of all phases: it is for runs from the dashboard's form, which takes one account for all tasks. It gives "+
		"nobody a new right: whoever may create PipelineRuns in a namespace may use any of its accounts. The pods that "+
		"measure have no token.", plan.Name)
	p.table("Account", "Where", "Resource", "Verb", "For")
	for _, r := range Rights(plan, opts) {
		p.row(code(AccountName(plan, r.Phase)), where(r, opts), object(r), r.Verb, r.Why)
	}
	return p.bytes()
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

// object names the resource of a right: "pods/log", "apiservices.apiregistration.k8s.io",
// "configmaps cluster-info".
func object(r checkup.Right) string {
	resource, sub, found := strings.Cut(r.Resource, "/")
	if r.Group != "" {
		resource += "." + r.Group
	}
	if found {
		resource += "/" + sub
	}
	return strings.Join(append([]string{resource}, r.Names...), " ")
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
