// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kinds"
)

// Run returns a PipelineRun of the plan's compiled Pipeline, to be created. Each
// setting is "name=value", one of plan.Params(); the others keep the defaults of the
// Pipeline. The last of two settings of one name wins. timeout limits the whole run;
// 0 means the limit of Timeouts. The plan is not changed. The error lists every bad
// setting, a line each.
func Run(plan *checkup.Plan, opts Options, settings []string, timeout time.Duration) (*pipelinev1.PipelineRun, error) {
	opts = opts.withDefaults()
	if err := errors.Join(opts.validate(), validatePlan(plan, opts)); err != nil {
		return nil, err
	}
	run := sampleRun(plan, opts)
	params, err := runParams(plan, settings)
	if err := errors.Join(err, limitRun(run.Spec.Timeouts, timeout)); err != nil {
		return nil, err
	}
	run.Spec.Params = params
	if err := validateAll(run); err != nil {
		return nil, err
	}
	return run, nil
}

// Start returns a PipelineRun of a Pipeline that is deployed in the namespace, or that a resolver finds elsewhere. It
// is to be created, as that of Run. If kustomize changed the Pipeline's name by a prefix or suffix, the accounts have
// them, too.
func Start(p *pipelinev1.Pipeline, namespace string, from Resolver, settings []string, timeout time.Duration) (
	*pipelinev1.PipelineRun, error) {
	plan, err := PlanOf(p)
	if err != nil {
		return nil, err
	}
	opts := Options{Namespace: namespace, Pipelines: from}
	run, err := Run(plan, opts, settings, timeout)
	if err != nil {
		return nil, err
	}
	if err := declared(p, run.Spec.Params); err != nil {
		return nil, err
	}
	prefix, suffix, ok := strings.Cut(p.Name, plan.Name)
	if !ok {
		return nil, fmt.Errorf("Pipeline %s is of plan %s: compile the plan under the name of the Pipeline, or add only a prefix "+
			"or suffix to it", p.Name, plan.Name)
	}
	run.GenerateName, run.Spec.PipelineRef = p.Name+"-", pipelineRef(p.Name, opts)
	for i := range run.Spec.TaskRunSpecs {
		account := &run.Spec.TaskRunSpecs[i].ServiceAccountName
		*account = prefix + *account + suffix
	}
	return run, nil
}

// DecodePipeline reads a Pipeline from YAML or JSON that somebody else wrote. Unknown fields are an error.
func DecodePipeline(text []byte) (*pipelinev1.Pipeline, error) {
	var p pipelinev1.Pipeline
	if err := checkup.Guarded(func() error { return yaml.UnmarshalStrict(text, &p) }); err != nil {
		return nil, fmt.Errorf("read a Pipeline: %w", err)
	}
	if p.Kind != "Pipeline" || p.APIVersion != pipelinev1.SchemeGroupVersion.String() {
		return nil, fmt.Errorf("read a Pipeline: found %q of %q", p.Kind, p.APIVersion)
	}
	return &p, nil
}

// declared returns an error for each param of a run that its Pipeline does not have: Tekton ignores them. Pipelines
// that another version of planner compiled lack some.
func declared(p *pipelinev1.Pipeline, params pipelinev1.Params) error {
	names := make([]string, len(p.Spec.Params))
	for i, param := range p.Spec.Params {
		names[i] = param.Name
	}
	var errs []error
	for _, param := range params {
		if !slices.Contains(names, param.Name) {
			errs = append(errs, fmt.Errorf("Pipeline %s has no param %s, and Tekton would ignore it: it has %s; "+
				"compile and apply its plan again", p.Name, param.Name, cmp.Or(strings.Join(names, ", "), "none")))
		}
	}
	return errors.Join(errs...)
}

// PlanOf reads the plan that a Pipeline was compiled from.
func PlanOf(p *pipelinev1.Pipeline) (*checkup.Plan, error) {
	for _, task := range p.Spec.Finally {
		for _, param := range task.Params {
			if task.Name != concludeName || param.Name != paramPlan {
				continue
			}
			if n := len(param.Value.StringVal); n > checkup.MaxPlanSize {
				return nil, fmt.Errorf("Pipeline %s: its plan has %d bytes; want at most %d", p.Name, n, checkup.MaxPlanSize)
			}
			plan, err := kinds.Decode([]byte(param.Value.StringVal))
			if err != nil {
				return nil, fmt.Errorf("Pipeline %s: read its plan: %w", p.Name, err)
			}
			return plan, nil
		}
	}
	return nil, fmt.Errorf("Pipeline %s has no plan: planner did not compile it", p.Name)
}

// shortestRun is the least time for the tasks of a limited run: one pod can start and
// be stopped in it.
const shortestRun = time.Minute

// limitRun changes the timeouts of a run to fit the limit. Teardown and report keep
// their time: a shorter limit shortens the time of the other tasks.
func limitRun(timeouts *pipelinev1.TimeoutFields, limit time.Duration) error {
	if limit == 0 {
		return nil
	}
	if least := timeouts.Finally.Duration + shortestRun; limit < least {
		return fmt.Errorf("timeout %s: teardown and report may take %s; want at least %s", limit, timeouts.Finally.Duration,
			least)
	}
	timeouts.Pipeline.Duration = limit
	timeouts.Tasks.Duration = min(timeouts.Tasks.Duration, limit-timeouts.Finally.Duration)
	return nil
}

// runParams tries the settings on a copy of the plan and puts them in the order
// of formParams. Those that the Pipeline has no param for are in checkup.SettingsParam.
func runParams(plan *checkup.Plan, settings []string) (pipelinev1.Params, error) {
	scratch, err := clone(plan)
	if err != nil {
		return nil, err
	}
	if err := kinds.Apply(scratch, settings); err != nil {
		return nil, err
	}
	if err := outlasts(scratch, plan); err != nil {
		return nil, err
	}
	values := map[string]string{}
	for _, setting := range checkup.SplitSettings(settings) {
		name, value, _ := strings.Cut(setting, "=")
		values[name] = value
	}
	var further []string
	for _, param := range plan.Params() {
		if value, ok := values[param.Name]; ok && param.Rare {
			further = append(further, param.Name+"="+strings.TrimSpace(value))
		}
	}
	if len(further) > 0 {
		values[checkup.SettingsParam] = strings.Join(further, " ")
	}
	var params pipelinev1.Params
	for _, param := range formParams(plan) {
		if value, ok := values[param.Name]; ok {
			params = append(params, stringParam(param.Name, value))
		}
	}
	return params, nil
}

// outlasts lists every check that needs more time with the settings than the compiled
// Pipeline has: a param cannot set timeouts of steps and tasks.
func outlasts(set, compiled *checkup.Plan) error {
	var errs []error
	for _, name := range set.CheckNames() {
		_, want := checkDeadlines(set.Checks[name])
		if _, have := checkDeadlines(compiled.Checks[name]); want > have {
			errs = append(errs, fmt.Errorf("check %s may take %s with these settings, but its timeout in the Pipeline is %s: "+
				"write the settings into the plan, and compile it again", name, want-Overhead, have-Overhead))
		}
	}
	return errors.Join(errs...)
}

// clone copies the plan, so that settings can be tried on the copy.
func clone(plan *checkup.Plan) (*checkup.Plan, error) {
	b, err := json.Marshal(plan)
	if err != nil {
		return nil, fmt.Errorf("plan %s: write as JSON: %w", plan.Name, err)
	}
	c, err := kinds.Decode(b)
	if err != nil {
		return nil, fmt.Errorf("plan %s: read its JSON back: %w", plan.Name, err)
	}
	return c, nil
}

// pipelineRef refers to a Pipeline in the run's namespace, or where opts say that Pipelines are.
func pipelineRef(pipeline string, opts Options) *pipelinev1.PipelineRef {
	if opts.Pipelines.Name == "" {
		return &pipelinev1.PipelineRef{Name: pipeline}
	}
	return &pipelinev1.PipelineRef{ResolverRef: opts.Pipelines.ref("pipeline", pipeline, opts.version())}
}

// sampleRun is a run with the plan's value of every param, and with the service
// account of its phase for each task.
func sampleRun(plan *checkup.Plan, opts Options) *pipelinev1.PipelineRun {
	timeouts := Timeouts(plan)
	run := &pipelinev1.PipelineRun{
		TypeMeta: metav1.TypeMeta{APIVersion: pipelinev1.SchemeGroupVersion.String(), Kind: "PipelineRun"},
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: plan.Name + "-",
			Namespace:    opts.Namespace,
			Labels:       map[string]string{checkup.LabelPlan: plan.Name},
		},
		Spec: pipelinev1.PipelineRunSpec{
			PipelineRef: pipelineRef(plan.Name, opts),
			Timeouts:    &timeouts,
		},
	}
	account := func(task string, phase checkup.Phase) {
		run.Spec.TaskRunSpecs = append(run.Spec.TaskRunSpecs, pipelinev1.PipelineTaskRunSpec{
			PipelineTaskName: task, ServiceAccountName: checkup.AccountName(plan.Name, phase),
		})
	}
	for _, check := range plan.CheckNames() {
		account(pipelineTaskName(checkup.PhaseSetup, check), checkup.PhaseSetup)
		account(pipelineTaskName(checkup.PhaseProbe, check), checkup.PhaseProbe)
	}
	account(concludeName, checkup.PhaseConclude)
	return run
}
