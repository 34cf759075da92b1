// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"maps"
	"slices"
	"strings"
	"time"

	tekton "github.com/tektoncd/pipeline/pkg/apis/pipeline"
	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/scheduling"
)

// envPlan is the environment variable that holds the plan.
const envPlan = "PLAN"

// Params of the Tasks. The Pipeline fills them in.
const (
	paramPlan    = "plan"
	paramCheck   = "check"
	paramSet     = "set"
	paramTimeout = "timeout"
	paramTasks   = "tasks"
	paramRunName = "run-name"
	paramRunUID  = "run-uid"
)

// Result is a result of the conclude Task, and of the Pipeline.
type Result struct {
	Name, Description string
}

// ConcludeResults are the results of a run, each a string without a newline at its
// end. They are exactly those that step report writes: Tekton fails a run whose
// successful task lacks a declared result.
var ConcludeResults = []Result{
	{"verdict", "pass, fail or inconclusive"},
	{"summary", "Verdict, numbers and findings, in one line"},
	{"expected", "Number of units (pairs, placements) that the plan expects"},
	{"pass", "Number of units that were measured and met every expectation"},
	{"fail", "Number of units that were measured and did not meet an expectation"},
	{"undecided", "Number of units that were measured too seldom to decide whether they meet an expectation"},
	{"unmeasured", "Number of expected units that were not measured"},
	{"findings", "Causes that explain the failed units, in one line that ends with the number of further causes; empty " +
		"if nothing failed"},
	{"report", "ConfigMap that holds the whole report, as NAMESPACE/NAME; empty if the report could not be stored"},
}

// resultMeasurable is the result of a setup task that decides whether its probe
// task is started.
const resultMeasurable = "measurable"

// taskName names the generic Task of a phase whose step has the given timeout.
func taskName(phase checkup.Phase, step time.Duration) string {
	name := "checkplan-" + string(phase)
	if phase != checkup.PhaseConclude && step != shortestStep {
		name += "-" + strings.TrimSuffix(step.String(), "0s")
	}
	return name
}

// tasks are the Tasks that the plan's Pipeline refers to, each once.
func tasks(plan *checkup.Plan, opts Options) []*pipelinev1.Task {
	var setups, probes []time.Duration
	for _, check := range plan.Checks {
		setup, probe := checkDeadlines(check)
		setups = append(setups, stepTimeout(setup))
		probes = append(probes, stepTimeout(probe))
	}
	var all []*pipelinev1.Task
	for _, timeout := range distinct(setups) {
		all = append(all, setupTask(timeout, opts))
	}
	for _, timeout := range distinct(probes) {
		all = append(all, probeTask(timeout, opts))
	}
	return append(all, concludeTask(opts))
}

func distinct(d []time.Duration) []time.Duration {
	slices.Sort(d)
	return slices.Compact(d)
}

func setupTask(timeout time.Duration, opts Options) *pipelinev1.Task {
	task := newTask(checkup.PhaseSetup, timeout, opts,
		"Sets up one check of a checkplan plan",
		"Surveys the cluster, records the worksheet of expected units, starts the pods or VMs that will be probed, and "+
			"waits for them. Targets that did not start in time are recorded, and reported as unmeasured.")
	task.Spec.Params = append([]pipelinev1.ParamSpec{specPlan, specCheck, specSet, specTimeout}, specsRun...)
	task.Spec.Results = []pipelinev1.TaskResult{{
		Name: resultMeasurable, Type: pipelinev1.ResultsTypeString,
		Description: "true, or false if setup found that nothing of the check can be measured",
	}}
	task.Spec.Steps = []pipelinev1.Step{{
		Name:        "setup",
		DisplayName: "Set up",
		Image:       opts.image("setup"),
		Command:     []string{"/ko-app/setup"},
		Args: []string{"--check", ref(paramCheck), "--timeout", ref(paramTimeout), "--results",
			tekton.DefaultResultPath, refAll(paramSet)},
		Env:              append([]corev1.EnvVar{{Name: envPlan, Value: ref(paramPlan)}}, fixtureImages(opts)...),
		ComputeResources: stepResources(stepMemory),
		Timeout:          &metav1.Duration{Duration: timeout},
	}}
	return task
}

func probeTask(timeout time.Duration, opts Options) *pipelinev1.Task {
	task := newTask(checkup.PhaseProbe, timeout, opts,
		"Measures the expected units of one check of a checkplan plan",
		"Starts one agent pod per source, pinned to its node, and reads the measurements from the logs of the agents, or "+
			"from the consoles of VMs. It succeeds even if the network fails.")
	task.Spec.Params = append([]pipelinev1.ParamSpec{specCheck, specTimeout}, specsRun...)
	task.Spec.Steps = []pipelinev1.Step{{
		Name:             "probe",
		DisplayName:      "Probe",
		Image:            opts.image("probe"),
		Command:          []string{"/ko-app/probe"},
		Args:             []string{"--check", ref(paramCheck), "--timeout", ref(paramTimeout)},
		Env:              fixtureImages(opts),
		ComputeResources: stepResources(stepMemory),
		Timeout:          &metav1.Duration{Duration: timeout},
	}}
	return task
}

// fixtureImages are the environment variables with the images of fixtures.
func fixtureImages(opts Options) []corev1.EnvVar {
	return []corev1.EnvVar{{Name: "AGENT_IMAGE", Value: AgentImage(opts)}, {Name: "GUEST_IMAGE", Value: GuestImage(opts)}}
}

func concludeTask(opts Options) *pipelinev1.Task {
	task := newTask(checkup.PhaseConclude, 0, opts,
		"Tears down what a checkplan run created, and reports",
		"Deletes the pods and VMs of the run and names those that are left, then judges every expected unit and writes the "+
			"verdict, the findings and the full report. It fails if the verdict does not satisfy the plan's gate.")
	task.Spec.Params = append([]pipelinev1.ParamSpec{specPlan, specSet, specTasks}, specsRun...)
	for _, result := range ConcludeResults {
		task.Spec.Results = append(task.Spec.Results, pipelinev1.TaskResult{Name: result.Name,
			Description: result.Description, Type: pipelinev1.ResultsTypeString})
	}
	task.Spec.Steps = []pipelinev1.Step{{
		Name:             "teardown",
		DisplayName:      "Tear down",
		Image:            opts.image("teardown"),
		Command:          []string{"/ko-app/teardown"},
		Args:             []string{"--timeout", teardownDeadline.String(), refAll(paramSet)},
		Env:              []corev1.EnvVar{{Name: envPlan, Value: ref(paramPlan)}},
		ComputeResources: stepResources(judgeMemory),
		Timeout:          &metav1.Duration{Duration: teardownDeadline + stepGrace},
		OnError:          pipelinev1.Continue,
	}, {
		Name:        "report",
		DisplayName: "Report",
		Image:       opts.image("report"),
		Command:     []string{"/ko-app/report"},
		Args: []string{"--timeout", reportDeadline.String(), "--results", tekton.DefaultResultPath, refAll(paramTasks),
			refAll(paramSet)},
		Env: []corev1.EnvVar{
			{Name: envPlan, Value: ref(paramPlan)},
			{Name: "TEARDOWN_EXIT_CODE_FILE", Value: "$(steps.step-teardown.exitCode.path)"},
		},
		ComputeResources: stepResources(judgeMemory),
		Timeout:          &metav1.Duration{Duration: reportDeadline + stepGrace},
	}}
	return task
}

// newTask is what all Tasks have in common: the variables that identify the step's
// run and pod, and the security context that a namespace under the restricted pod
// security standard demands.
func newTask(phase checkup.Phase, timeout time.Duration, opts Options, summary, detail string) *pipelinev1.Task {
	meta := opts.meta(taskName(phase, timeout), "")
	meta.Annotations = catalogAnnotations(opts, "checkplan "+string(phase))
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name,
			ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}}
	}
	return &pipelinev1.Task{
		TypeMeta:   metav1.TypeMeta{APIVersion: pipelinev1.SchemeGroupVersion.String(), Kind: "Task"},
		ObjectMeta: meta,
		Spec: pipelinev1.TaskSpec{
			DisplayName: "checkplan " + string(phase),
			Description: summary + "\n\n" + detail,
			StepTemplate: &pipelinev1.StepTemplate{
				Env: []corev1.EnvVar{
					{Name: "HOME", Value: tekton.HomeDir},
					{Name: "RUN_NAME", Value: ref(paramRunName)},
					{Name: "RUN_UID", Value: ref(paramRunUID)},
					field("NAMESPACE", "metadata.namespace"),
					field("POD_NAME", "metadata.name"),
					field("POD_UID", "metadata.uid"),
					field("SERVICE_ACCOUNT", "spec.serviceAccountName"),
				},
				SecurityContext: scheduling.RestrictedContainer(),
			},
		},
	}
}

// Memory limits of steps: enough for 5,000 nodes and 100,000 pairs. The step that
// judges the whole record has enough for checkup.MaxResults, which take up to
// 600 MiB.
const (
	stepMemory  = "512Mi"
	judgeMemory = "1Gi"
)

// stepResources are the requests and limits that a quota may demand. Each step has
// them, and not the stepTemplate, because Tekton's webhook writes
// "computeResources: {}" into a step without them, which kubectl apply and Argo CD
// report as a change.
func stepResources(memory string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"),
			corev1.ResourceMemory: resource.MustParse("64Mi")},
		Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"),
			corev1.ResourceMemory: resource.MustParse(memory)},
	}
}

var (
	specPlan    = stringSpec(paramPlan, "The plan, as JSON in which every dollar sign is written \\u0024")
	specCheck   = stringSpec(paramCheck, "Name of the check")
	specTimeout = stringSpec(paramTimeout, "Time limit of the whole step, such as 4m; what is not measured by then is "+
		"reported as unmeasured")
	specSet   = arraySpec(paramSet, "Settings that override the plan's, each as name=value")
	specTasks = arraySpec(paramTasks, "Status of each other task of the run, as --task=name=status/reason")
	specsRun  = []pipelinev1.ParamSpec{
		stringSpec(paramRunName, "Name of the PipelineRun"),
		stringSpec(paramRunUID, "UID of the PipelineRun"),
	}
)

func stringSpec(name, description string) pipelinev1.ParamSpec {
	return pipelinev1.ParamSpec{Name: name, Description: description, Type: pipelinev1.ParamTypeString}
}

func arraySpec(name, description string) pipelinev1.ParamSpec {
	return pipelinev1.ParamSpec{Name: name, Description: description, Type: pipelinev1.ParamTypeArray}
}

// ref refers to a string param.
func ref(param string) string { return "$(" + paramPath(param) + ")" }

// refAll stands for all elements of an array param.
func refAll(param string) string { return "$(" + paramPath(param) + "[*])" }

// paramPath is the path of a param, with brackets if its name has dots.
func paramPath(param string) string {
	if strings.Contains(param, ".") {
		return `params["` + param + `"]`
	}
	return "params." + param
}

// catalogAnnotations are the annotations that Tekton's catalog and catlin demand, and those of the options.
func catalogAnnotations(opts Options, displayName string) map[string]string {
	all := maps.Clone(opts.Annotations)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, map[string]string{
		"tekton.dev/categories":           "Kubernetes, Monitoring, Testing",
		"tekton.dev/displayName":          displayName,
		"tekton.dev/pipelines.minVersion": opts.Tekton.minVersion(),
		"tekton.dev/platforms":            "linux/amd64,linux/arm64",
		"tekton.dev/tags":                 "checkup, kubernetes, network",
	})
	return all
}
