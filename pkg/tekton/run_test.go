// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/podmesh"
)

func TestRunIsTheSampleWithSettings(t *testing.T) {
	plan := smallPlan()
	before, _ := json.Marshal(plan)
	sample := compile(t, plan, testOptions).Sample

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
