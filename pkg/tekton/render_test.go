// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/container"

	"github.com/checkplan/checkplan/pkg/kinds"
)

// rendered is a step after substitution.
type rendered struct {
	Command []string
	Env     map[string]string
}

// replacements are the values that Tekton substitutes for params: each name in the
// three spellings of Tekton's docs/variables.md.
func replacements(params pipelinev1.Params) (text map[string]string, lists map[string][]string) {
	text, lists = map[string]string{}, map[string][]string{}
	for _, p := range params {
		for _, key := range []string{"params." + p.Name, `params["` + p.Name + `"]`, "params['" + p.Name + "']"} {
			if p.Value.Type == pipelinev1.ParamTypeArray {
				lists[key] = p.Value.ArrayVal
			} else {
				text[key] = p.Value.StringVal
			}
		}
	}
	return text, lists
}

// render substitutes variables with Tekton's own code, in the order of its
// controllers: in the Pipeline the run's params, the Pipeline's defaults and the
// context; in the steps the task's params.
func render(t *testing.T, o *Objects, run *pipelinev1.PipelineRun, context map[string]string) map[string]rendered {
	t.Helper()
	var params pipelinev1.Params
	for _, p := range o.Pipeline.Spec.Params {
		params = append(params, pipelinev1.Param{Name: p.Name, Value: *p.Default})
	}
	text, lists := replacements(append(params, run.Spec.Params...))
	maps.Copy(text, context)
	tasks := map[string]*pipelinev1.Task{}
	for _, task := range o.Tasks {
		tasks[task.Name] = task
	}

	steps := map[string]rendered{}
	for _, pt := range append(o.Pipeline.Spec.Tasks, o.Pipeline.Spec.Finally...) {
		params := pt.Params.DeepCopy()
		for i := range params {
			params[i].Value.ApplyReplacements(text, lists, nil)
		}
		task := tasks[pt.TaskRef.Name]
		merged, err := pipelinev1.MergeStepsWithStepTemplate(task.Spec.StepTemplate, task.DeepCopy().Spec.Steps)
		if err != nil {
			t.Fatal(err)
		}
		text, lists := replacements(params)
		text["steps.step-teardown.exitCode.path"] = "/tekton/steps/step-teardown/exitCode"
		for _, step := range merged {
			container.ApplyStepReplacements(&step, text, lists)
			r := rendered{Command: append(step.Command, step.Args...), Env: map[string]string{}}
			for _, env := range step.Env {
				r.Env[env.Name] = env.Value
				if env.ValueFrom != nil {
					r.Env[env.Name] = env.ValueFrom.FieldRef.FieldPath
				}
			}
			for _, s := range slices.Concat(r.Command, slices.Collect(maps.Values(r.Env))) {
				if strings.Contains(s, "$") {
					t.Errorf("%s: step %s: %q is left for Kubernetes to expand", pt.Name, step.Name, s)
				}
			}
			steps[pt.Name+"/"+step.Name] = r
		}
	}
	return steps
}

// TestRendered checks the contract of doc.go: environment and arguments of each step.
func TestRendered(t *testing.T) {
	plan := smallPlan()
	plan.Description = "Costs $(params.gate) ${HOME} $$ \"quoted\"\nand more"
	o := compile(t, plan, testOptions)
	run, err := Run(plan, testOptions, []string{"settings=mesh.topology=a, b mesh.tcp.count=7", "mesh.degree=3", "gate=Nothing"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	steps := render(t, o, run, map[string]string{
		"context.pipelineRun.name": "small-x7k2p", "context.pipelineRun.uid": "8d1f",
		"tasks.setup-mesh.status": "Succeeded", "tasks.setup-mesh.reason": "Succeeded",
		"tasks.probe-mesh.status": "None", "tasks.probe-mesh.reason": "",
	})

	for name, step := range steps {
		if text, ok := step.Env[envPlan]; ok {
			got, err := kinds.DecodeStrict([]byte(text))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if got.Description != plan.Description {
				t.Errorf("%s: the plan's description is %q, want %q", name, got.Description, plan.Description)
			}
			step.Env[envPlan] = "(plan)"
		}
	}
	settings := []string{
		"mesh.degree=3", "mesh.loss.max=1%", "mesh.latency.p99=", "gate=Nothing", "teardown=Always", "settings=mesh.topology=a, b mesh.tcp.count=7",
	}
	who := func(more map[string]string) map[string]string {
		all := map[string]string{
			"HOME": "/tekton/home", "RUN_NAME": "small-x7k2p", "RUN_UID": "8d1f",
			"NAMESPACE": "metadata.namespace", "POD_NAME": "metadata.name", "POD_UID": "metadata.uid", "SERVICE_ACCOUNT": "spec.serviceAccountName",
		}
		maps.Copy(all, more)
		return all
	}
	agent, guest := "registry.example.com/checkplan/agent:v1.2.3", "registry.example.com/checkplan/guest:v1.2.3"
	want := map[string]rendered{
		"setup-mesh/setup": {
			append([]string{"/ko-app/setup", "--check", "mesh", "--timeout", "4m0s", "--results", "/tekton/results"}, settings...),
			who(map[string]string{"PLAN": "(plan)", "AGENT_IMAGE": agent, "GUEST_IMAGE": guest}),
		},
		"probe-mesh/probe": {
			[]string{"/ko-app/probe", "--check", "mesh", "--timeout", "7m0s"},
			who(map[string]string{"AGENT_IMAGE": agent, "GUEST_IMAGE": guest}),
		},
		"conclude/teardown": {
			append([]string{"/ko-app/teardown", "--timeout", "4m0s"}, settings...),
			who(map[string]string{"PLAN": "(plan)"}),
		},
		"conclude/report": {
			append([]string{"/ko-app/report", "--timeout", "2m0s", "--results", "/tekton/results", "--task=setup-mesh=Succeeded/Succeeded", "--task=probe-mesh=None/"}, settings...),
			who(map[string]string{"PLAN": "(plan)", "TEARDOWN_EXIT_CODE_FILE": "/tekton/steps/step-teardown/exitCode"}),
		},
	}
	if diff := cmp.Diff(want, steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}
