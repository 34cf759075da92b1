// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/podmesh"
)

func TestRunIsTheSampleWithSettings(t *testing.T) {
	plan := smallPlan()
	before, _ := json.Marshal(plan)
	o := compile(t, plan, testOptions)
	sample := o.Sample

	run, err := Run(plan, testOptions, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sample, run); diff != "" {
		t.Errorf("a run without settings is not the sample (-sample +run):\n%s", diff)
	}

	run, err = Run(plan, testOptions, []string{"mesh.latency.p99=7ms", "gate=Nothing", "mesh.degree=3", "mesh.degree=2", "mesh.loss.max="}, 0)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, p := range run.Spec.Params {
		got[p.Name] = p.Value.StringVal
	}
	want := map[string]string{"gate": "Nothing", "mesh.degree": "2", "mesh.loss.max": "", "mesh.latency.p99": "7ms"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("params (-want +got):\n%s", diff)
	}
	rare := []string{"mesh.tcp.count=7", "mesh.topology=rack, switch", "settings=mesh.latency.p50= confirm=true"}
	run, err = Run(plan, testOptions, append(rare, "gate=Nothing"), 0)
	if err != nil {
		t.Fatal(err)
	}
	got = map[string]string{}
	for _, p := range run.Spec.Params {
		got[p.Name] = p.Value.StringVal
	}
	want = map[string]string{
		"gate": "Nothing", "settings": "confirm=true mesh.topology=rack, switch mesh.tcp.count=7 mesh.latency.p50=",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("params of a run with settings that the form lacks (-want +got):\n%s", diff)
	}
	if len(o.Pipeline.Spec.Params) > 6 {
		t.Errorf("the form has %d text areas, want at most 6", len(o.Pipeline.Spec.Params))
	}
	checkRoundTrip(t, encodeObjects(t, run))
	if after, _ := json.Marshal(plan); string(before) != string(after) {
		t.Errorf("the plan changed from\n%s\nto\n%s", before, after)
	}
}

func TestRunNamesTheAccountOfEveryTask(t *testing.T) {
	o := compile(t, twoChecks(), testOptions)
	accounts := map[string]string{}
	for _, spec := range o.Sample.Spec.TaskRunSpecs {
		accounts[spec.PipelineTaskName] = spec.ServiceAccountName
	}
	want := map[string]string{}
	for _, task := range append(o.Pipeline.Spec.Tasks, o.Pipeline.Spec.Finally...) {
		phase, _, _ := strings.Cut(task.Name, "-")
		want[task.Name] = "two-checks-" + phase
	}
	if diff := cmp.Diff(want, accounts); diff != "" {
		t.Errorf("accounts (-want +got):\n%s", diff)
	}
	if got := o.Sample.Spec.TaskRunTemplate.ServiceAccountName; got != "default" {
		t.Errorf("tasks without an account run as %q, want the namespace's default account, which has no rights", got)
	}
}

// TestRunOutlasts: a setting may shorten a watch, but may not make it longer than the
// timeouts of the compiled Pipeline.
func TestRunOutlasts(t *testing.T) {
	for setting, want := range map[string]string{
		"watch.for=10m": "", "watch.for=1h": "", "watch.for=": "",
		"watch.for=61m": "check watch may take 1h6m0s with these settings, but its timeout in the Pipeline is 1h5m0s: write the settings into the plan, and compile it again",
	} {
		_, err := Run(allKinds(), testOptions, []string{setting}, 0)
		if (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("%s: %v, want %q", setting, err, want)
		}
	}
}

func TestRunTimeout(t *testing.T) {
	for _, test := range []struct {
		limit                    time.Duration
		pipeline, tasks, finally string
		err                      string
	}{
		{0, "50m0s", "35m0s", "10m0s", ""},
		{2 * time.Hour, "2h0m0s", "35m0s", "10m0s", ""},
		{20 * time.Minute, "20m0s", "10m0s", "10m0s", ""},
		{11 * time.Minute, "11m0s", "1m0s", "10m0s", ""},
		{10 * time.Minute, "", "", "", "timeout 10m0s: teardown and report may take 10m0s; want at least 11m0s"},
		{-time.Minute, "", "", "", "timeout -1m0s: teardown and report may take 10m0s; want at least 11m0s"},
	} {
		t.Run(test.limit.String(), func(t *testing.T) {
			run, err := Run(smallPlan(), testOptions, nil, test.limit)
			if test.err != "" {
				if err == nil || err.Error() != test.err {
					t.Errorf("error %v, want %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := run.Spec.Timeouts
			if got.Pipeline.Duration.String() != test.pipeline || got.Tasks.Duration.String() != test.tasks || got.Finally.Duration.String() != test.finally {
				t.Errorf("pipeline %s, tasks %s, finally %s; want %s, %s, %s", got.Pipeline.Duration, got.Tasks.Duration, got.Finally.Duration, test.pipeline, test.tasks, test.finally)
			}
		})
	}
}

func TestRunRefuses(t *testing.T) {
	plan := smallPlan()
	plan.Checks["mesh"].Spec.(*podmesh.Spec).Timeouts.Probe = checkup.Duration(time.Minute)
	for _, test := range []struct {
		name     string
		settings []string
		want     []string
	}{
		{"unknown name", []string{"mesh.degre=1"}, []string{`plan small has no parameter "mesh.degre"; it has gate,`}},
		{"no value", []string{"gate"}, []string{`setting "gate": want name=value`}},
		{"bad value", []string{"gate=$(params.x)"}, []string{`parameter gate: "$(params.x)": want one of Pass, NoFailure, Nothing`}},
		{"contradictory values", []string{"mesh.budget=1"}, []string{"checks.mesh.podMesh.sample.budget: 1 is less than the smallest sample"}},
		{"all at once", []string{"gate", "teardown=No"}, []string{`setting "gate"`, "parameter teardown"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			run, err := Run(plan, testOptions, test.settings, 0)
			if err == nil || run != nil {
				t.Fatalf("got %v and error %v, want no run and an error", run, err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q\ndoes not contain %q", err, want)
				}
			}
		})
	}
}

// TestStartUndeclared: what the deployed Pipeline does not know is refused, because Tekton would ignore it.
func TestStartUndeclared(t *testing.T) {
	deployed := compile(t, smallPlan(), testOptions).Pipeline
	older := deployed.DeepCopy()
	older.Spec.Params = slices.DeleteFunc(older.Spec.Params, func(p pipelinev1.ParamSpec) bool {
		return p.Name != "gate" && p.Name != "teardown"
	})
	for _, tt := range []struct {
		name     string
		pipeline *pipelinev1.Pipeline
		settings []string
		want     []string
	}{
		{"known", deployed, []string{"gate=Nothing", "mesh.degree=1", "mesh.tcp.count=3"}, nil},
		{"no parameter of the plan", deployed, []string{"nope=1"}, []string{`plan small has no parameter "nope"; it has gate,`}},
		{"all that the Pipeline has", older, []string{"gate=Nothing", "teardown=Never"}, nil},
		{"not in the Pipeline", older, []string{"gate=Nothing", "mesh.degree=1"},
			[]string{"has no param mesh.degree, and Tekton would ignore it: it has gate, teardown; compile and apply its plan again"}},
		{"no param for all others", older, []string{"mesh.tcp.count=3"}, []string{"has no param settings"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			run, err := Start(tt.pipeline, tt.pipeline.Namespace, Resolver{}, tt.settings, 0)
			if tt.want == nil {
				if err != nil || run == nil {
					t.Fatalf("error %v", err)
				}
				return
			}
			if err == nil || run != nil {
				t.Fatalf("got %v and error %v, want no run and an error", run, err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q\ndoes not contain %q", err, want)
				}
			}
		})
	}
}

// A run of a deployed Pipeline is that of its plan. Kustomize's prefix and suffix of the Pipeline's name are those of
// its accounts.
func TestStart(t *testing.T) {
	o := compile(t, twoChecks(), testOptions)
	run, err := Start(o.Pipeline, o.Pipeline.Namespace, Resolver{}, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(o.Sample, run); diff != "" {
		t.Errorf("a run without settings is not the sample (-sample +run):\n%s", diff)
	}
	renamed := o.Pipeline.DeepCopy()
	renamed.Name = "x-" + renamed.Name + "-y"
	if run, err = Start(renamed, renamed.Namespace, Resolver{}, []string{"gate=Nothing"}, 0); err != nil {
		t.Fatal(err)
	}
	if run.Spec.PipelineRef.Name != renamed.Name || run.GenerateName != renamed.Name+"-" || len(run.Spec.Params) != 1 {
		t.Errorf("run of the renamed Pipeline: %+v", run)
	}
	for i, spec := range run.Spec.TaskRunSpecs {
		if want := "x-" + o.Sample.Spec.TaskRunSpecs[i].ServiceAccountName + "-y"; spec.ServiceAccountName != want {
			t.Errorf("task %s: account %s, want %s", spec.PipelineTaskName, spec.ServiceAccountName, want)
		}
	}
}

// A Pipeline of a cluster may be anybody's.
func TestStartRefuses(t *testing.T) {
	good := compile(t, smallPlan(), testOptions).Pipeline
	plan := func(p *pipelinev1.Pipeline, text string) {
		for i, param := range p.Spec.Finally[0].Params {
			if param.Name == paramPlan {
				p.Spec.Finally[0].Params[i].Value.StringVal = text
			}
		}
	}
	for _, tt := range []struct {
		name   string
		change func(*pipelinev1.Pipeline)
		want   string
	}{
		{"no plan", func(p *pipelinev1.Pipeline) { p.Spec.Finally = nil }, "Pipeline small has no plan: planner did not compile it"},
		{"no JSON", func(p *pipelinev1.Pipeline) { plan(p, "{") }, "Pipeline small: read its plan: "},
		{"too large", func(p *pipelinev1.Pipeline) { plan(p, strings.Repeat(" ", checkup.MaxPlanSize+1)) }, "want at most"},
		{"no checks", func(p *pipelinev1.Pipeline) { plan(p, `{"name":"small"}`) }, "plan small: "},
		{"another name", func(p *pipelinev1.Pipeline) { p.Name = "large" }, "Pipeline large is of plan small: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := good.DeepCopy()
			tt.change(p)
			if _, err := Start(p, p.Namespace, Resolver{}, nil, 0); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}
