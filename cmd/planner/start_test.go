// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/load"
	"github.com/checkplan/checkplan/pkg/run"
	"github.com/checkplan/checkplan/pkg/tekton"
)

// catalogPlans are all plans of this repository, and one with a schedule.
var catalogPlans = sync.OnceValue(func() *load.Result {
	all := load.Read(context.Background(), ".", []string{"../../plans"})
	scheduled := load.Read(context.Background(), ".", []string{"testdata/scheduled.cue"})
	all.Plans, all.Problems = append(all.Plans, scheduled.Plans...), append(all.Problems, scheduled.Problems...)
	return all
})

// start asks the cluster for the Pipeline and creates the run, and nothing else.
func TestStart(t *testing.T) {
	plan := catalogPlans().Plans[0]
	compiled, err := tekton.Compile(plan, tekton.Options{Namespace: "ns"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name     string
		pipeline string
		o        runOptions
		code     int
		want     string // in the output or the error
	}{
		{"deployed", plan.Name, runOptions{}, exitOK, ""},
		{"kept", plan.Name, runOptions{keep: true}, exitOK, ""},
		{"unknown", "nope", runOptions{}, exitError, "no Pipeline nope in namespace ns; it has: " + plan.Name},
		{"setting", plan.Name, runOptions{settings: []string{"nope=1"}}, exitUsage, `has no parameter "nope"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client := tektonfake.NewSimpleClientset(compiled.Pipeline.DeepCopy())
			cluster := &run.Cluster{Tekton: client, Namespace: "ns"}
			env := &environment{stdout: io.Discard, stderr: io.Discard, getenv: func(string) string { return "" }}
			tt.o.detach = true
			err := env.startDeployed(t.Context(), cluster, tt.pipeline, tt.o)
			if err != nil {
				var e exit
				code := exitError
				if errors.As(err, &e) {
					code = e.code
				}
				if code != tt.code || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("error %q with code %d, want %q with %d", err, code, tt.want, tt.code)
				}
				return
			}
			if tt.code != exitOK {
				t.Fatalf("no error, want code %d", tt.code)
			}
			for _, action := range client.Actions() {
				if did := action.GetVerb() + " " + action.GetResource().Resource; did != "get pipelines" && did != "create pipelineruns" {
					t.Errorf("start did %s", did)
				}
			}
			runs, err := client.TektonV1().PipelineRuns("ns").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(runs.Items) != 1 {
				t.Fatalf("runs: %v, %v", runs, err)
			}
			checkStarted(t, &runs.Items[0], compiled.Sample, tt.o.keep)
		})
	}
}

// start from a bundle reads it from the registry, and asks the cluster for nothing but the run, which has the digest of
// what was read. From another namespace, it reads the Pipeline there.
func TestStartElsewhere(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	reference := strings.TrimPrefix(server.URL, "http://") + "/team/catalog:v1"
	plan := catalogPlans().Plans[0]
	env := &environment{stdout: io.Discard, stderr: io.Discard, getenv: func(string) string { return "" }}
	var options tekton.Options
	push, err := env.bundle(t.Context(), []*checkup.Plan{plan}, reference, &options)
	if err != nil {
		t.Fatal(err)
	}
	pushed, err := push(nil)
	if err != nil {
		t.Fatal(err)
	}
	pinned := pushed[0]
	compiled, err := tekton.Compile(plan, tekton.Options{Namespace: "tasks"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		from     string
		pipeline string
		did      string // of the fake cluster
		param    string // first param of the run's pipelineRef
		want     string // part of the error
	}{
		{"bundles=" + reference, plan.Name, "create pipelineruns in ns", pinned, ""},
		{"bundles=" + pinned + ",secret=pull", plan.Name, "create pipelineruns in ns", pinned, ""},
		{"cluster=tasks", plan.Name, "get pipelines in tasks, create pipelineruns in ns", "pipeline", ""},
		{"bundles=" + reference, "nope", "", "", `the bundle has no such object; of kind pipeline it has: ["` + plan.Name + `"]`},
		{"cluster=empty", plan.Name, "", "", "no Pipeline " + plan.Name + " in namespace empty"},
	} {
		from, err := tekton.ParseResolver(tt.from)
		if err != nil {
			t.Fatal(err)
		}
		client := tektonfake.NewSimpleClientset(compiled.Pipeline.DeepCopy())
		err = env.startDeployed(t.Context(), &run.Cluster{Tekton: client, Namespace: "ns"}, tt.pipeline, runOptions{detach: true, from: from})
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", tt.from, err, tt.want)
		}
		if err != nil {
			continue
		}
		var did []string
		for _, action := range client.Actions() {
			did = append(did, action.GetVerb()+" "+action.GetResource().Resource+" in "+action.GetNamespace())
		}
		if got := strings.Join(did, ", "); got != tt.did {
			t.Errorf("%s: start did %s, want %s", tt.from, got, tt.did)
		}
		runs, err := client.TektonV1().PipelineRuns("ns").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(runs.Items) != 1 {
			t.Fatalf("runs: %v, %v", runs, err)
		}
		ref := runs.Items[0].Spec.PipelineRef
		if string(ref.Resolver) != from.Name || ref.Params[0].Value.StringVal != tt.param {
			t.Errorf("%s: pipelineRef %v, want %s", tt.from, ref, tt.param)
		}
		checkStarted(t, &runs.Items[0], compiled.Sample, false)
	}
}

// A run that waits for a remote resolver says so: where none is installed, it waits until its timeout.
func TestProgressOfAWaitingRun(t *testing.T) {
	for reason, want := range map[string]string{
		"": "waiting for Tekton\n", "Running": "waiting for Tekton\n",
		"ResolvingPipelineRef": "waiting for Tekton's remote resolver (ResolvingPipelineRef)\n",
	} {
		var out strings.Builder
		s := newScreen(&out, terminal{})
		s.progress(run.Progress{Reason: reason})
		s.close()
		if out.String() != want {
			t.Errorf("reason %q: %q, want %q", reason, out.String(), want)
		}
	}
}

// checkStarted compares a run with the sample of its plan.
func checkStarted(t *testing.T, got, sample *pipelinev1.PipelineRun, kept bool) {
	t.Helper()
	if ref := got.Spec.PipelineRef; ref.Resolver == "" && ref.Name != sample.Spec.PipelineRef.Name || len(got.Spec.TaskRunSpecs) != len(sample.Spec.TaskRunSpecs) {
		t.Errorf("got %+v, want %+v", got.Spec, sample.Spec)
	}
	if set := len(got.Spec.Params) == 1; set != kept {
		t.Errorf("params %v", got.Spec.Params)
	}
}
