// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"fmt"
	"strings"
	"time"

	"github.com/tektoncd/pipeline/pkg/apis/config"
	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// concludeName is the name of the only finally task.
const concludeName = "conclude"

// pipelineTaskName names the task of a phase of a check.
func pipelineTaskName(phase checkup.Phase, check string) string { return string(phase) + "-" + check }

func pipeline(plan *checkup.Plan, opts Options, planJSON string) *pipelinev1.Pipeline {
	p := &pipelinev1.Pipeline{
		TypeMeta:   metav1.TypeMeta{APIVersion: pipelinev1.SchemeGroupVersion.String(), Kind: "Pipeline"},
		ObjectMeta: opts.meta(plan.Name, plan.Name),
		Spec: pipelinev1.PipelineSpec{
			DisplayName: title(plan.Name),
			Description: description(plan),
		},
	}
	p.Annotations = catalogAnnotations(opts, title(plan.Name))
	// Tekton copies labels to runs, and checkup.LabelVerdict must be one of the first four.
	delete(p.Labels, checkup.LabelManagedBy)

	var set, statuses []string
	for _, param := range formParams(plan) {
		p.Spec.Params = append(p.Spec.Params, pipelinev1.ParamSpec{
			Name:        param.Name,
			Description: plainText(param.Description),
			Type:        pipelinev1.ParamTypeString,
			Default:     pipelinev1.NewStructuredValues(param.Default),
		})
		set = append(set, param.Name+"="+ref(param.Name))
	}
	run := pipelinev1.Params{
		stringParam(paramRunName, "$(context.pipelineRun.name)"),
		stringParam(paramRunUID, "$(context.pipelineRun.uid)"),
	}

	for _, name := range plan.CheckNames() {
		check := plan.Checks[name]
		setup, probe := checkDeadlines(check)
		setupName, probeName := pipelineTaskName(checkup.PhaseSetup, name), pipelineTaskName(checkup.PhaseProbe, name)
		var after []string
		for _, other := range check.After {
			after = append(after, pipelineTaskName(checkup.PhaseProbe, other))
		}
		tasks := []pipelinev1.PipelineTask{
			pipelineTask(opts, setupName, "Set up "+name,
				"Records what check "+name+" expects, and starts the pods or VMs that it needs",
				taskName(checkup.PhaseSetup, stepTimeout(setup)), stepTimeout(setup)+taskGrace, after, append(pipelinev1.Params{
					stringParam(paramPlan, planJSON),
					stringParam(paramCheck, name),
					arrayParam(paramSet, set),
					stringParam(paramTimeout, setup.String()),
				}, run...)),
			pipelineTask(opts, probeName, "Probe "+name, "Measures the expected units of check "+name+", if any can be measured",
				taskName(checkup.PhaseProbe, stepTimeout(probe)), stepTimeout(probe)+taskGrace, []string{setupName},
				append(pipelinev1.Params{
					stringParam(paramCheck, name),
					stringParam(paramTimeout, probe.String()),
				}, run...)),
		}
		// Tekton skips this task only, and not the tasks that run after it.
		tasks[1].When = pipelinev1.WhenExpressions{{
			Input: "$(tasks." + setupName + ".results." + resultMeasurable + ")", Operator: selection.In,
			Values: []string{"true"},
		}}
		p.Spec.Tasks = append(p.Spec.Tasks, tasks...)
		for _, task := range []string{setupName, probeName} {
			statuses = append(statuses, fmt.Sprintf("--task=%s=$(tasks.%s.status)/$(tasks.%s.reason)", task, task, task))
		}
	}
	p.Spec.Finally = []pipelinev1.PipelineTask{
		pipelineTask(opts, concludeName, "Tear down and report", "Deletes what the run created, and judges what was measured",
			taskName(checkup.PhaseConclude, 0), concludeTimeout, nil, append(pipelinev1.Params{
				stringParam(paramPlan, planJSON),
				arrayParam(paramSet, set),
				arrayParam(paramTasks, statuses),
			}, run...)),
	}
	for _, result := range ConcludeResults {
		p.Spec.Results = append(p.Spec.Results, pipelinev1.PipelineResult{
			Name:        result.Name,
			Description: result.Description,
			Type:        pipelinev1.ResultsTypeString,
			Value:       *pipelinev1.NewStructuredValues("$(finally." + concludeName + ".results." + result.Name + ")"),
		})
	}
	return p
}

// formParams are the params of the Pipeline, in the order in which they are wanted: those of the checks, those of the
// plan, and the one that sets all others. The dashboard (0.71, src/containers/CreatePipelineRun) shows one text area
// for each, in this order, with the description below it. It shows nothing of the Pipeline itself, and the choice of
// the account, without which no task can read anything, follows all of them as optional. Therefore the first
// description names the account, as `tkn pipeline start` also shows it.
func formParams(plan *checkup.Plan) []checkup.Param {
	var ofChecks, ofPlan []checkup.Param
	var rare []string
	for _, param := range plan.Params() {
		switch {
		case param.Rare:
			rare = append(rare, param.Name)
		case strings.Contains(param.Name, "."):
			ofChecks = append(ofChecks, param)
		default:
			ofPlan = append(ofPlan, param)
		}
	}
	params := append(append(ofChecks, ofPlan...), checkup.Param{
		Name: checkup.SettingsParam,
		Description: "Further settings, as NAME=VALUE, separated by spaces; they override the fields above. Names: " +
			strings.Join(rare, ", "),
	})
	params[0].Description += ". NOTE: below, choose the ServiceAccount " + plan.Name
	return params
}

func pipelineTask(opts Options, name, displayName, description, task string, timeout time.Duration, after []string,
	params pipelinev1.Params) pipelinev1.PipelineTask {
	taskRef := &pipelinev1.TaskRef{Name: task}
	if opts.Tasks.Name != "" {
		taskRef = &pipelinev1.TaskRef{ResolverRef: opts.Tasks.ref("task", task, opts.version())}
	}
	return pipelinev1.PipelineTask{
		Name:        name,
		DisplayName: displayName,
		Description: description,
		TaskRef:     taskRef,
		Timeout:     &metav1.Duration{Duration: timeout},
		RunAfter:    after,
		Params:      params,
	}
}

func stringParam(name, value string) pipelinev1.Param {
	return pipelinev1.Param{Name: name, Value: *pipelinev1.NewStructuredValues(value)}
}

func arrayParam(name string, values []string) pipelinev1.Param {
	return pipelinev1.Param{Name: name, Value: pipelinev1.ParamValue{Type: pipelinev1.ParamTypeArray, ArrayVal: values}}
}

// title makes "Pod mesh" of "pod-mesh".
func title(name string) string {
	words := strings.ReplaceAll(name, "-", " ")
	return strings.ToUpper(words[:1]) + words[1:]
}

// description is the plan's description, with a summary line first, as Tekton's
// catalog demands, and then the accounts and timeouts that a run needs.
func description(plan *checkup.Plan) string {
	summary, detail, _ := strings.Cut(strings.TrimSpace(plan.Description), "\n")
	if summary == "" {
		summary = "Checks the cluster's network: " + strings.Join(plan.CheckNames(), ", ")
	}
	paragraphs := []string{strings.TrimSpace(summary)}
	if detail = strings.TrimSpace(detail); detail != "" {
		paragraphs = append(paragraphs, detail)
	}
	paragraphs = append(paragraphs, fmt.Sprintf("Runs with the service accounts %s. The dashboard's form takes one "+
		"account for all tasks: choose %s, which has the rights of those three.",
		strings.Join(accounts(plan), ", "), plan.Name))
	timeouts := Timeouts(plan)
	if atMost := config.DefaultTimeoutMinutes * time.Minute; timeouts.Tasks.Duration+runGrace > atMost {
		paragraphs = append(paragraphs, fmt.Sprintf("A run may take longer than Tekton's default timeout of %s. Set these "+
			"timeouts: pipeline %s, tasks %s, finally %s.",
			atMost, timeouts.Pipeline.Duration, timeouts.Tasks.Duration, timeouts.Finally.Duration))
	}
	return plainText(strings.Join(paragraphs, "\n\n"))
}
