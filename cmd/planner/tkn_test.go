// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/ecosystem"
	"github.com/checkplan/checkplan/pkg/tekton"
)

// TestTkn: tkn starts the Pipeline of every plan with the defaults of its params, and nothing else. Without an account,
// that is the run of TestDashboardRuns (test/e2e), whose log begins with the account to choose. `make tkn` builds tkn,
// of the release that CHECKPLAN_TKN names.
func TestTkn(t *testing.T) {
	version := os.Getenv("CHECKPLAN_TKN")
	if version == "" {
		t.Skip("make tkn builds tkn, and runs this test")
	}
	tkn, err := filepath.Abs("../../bin/tkn")
	if err != nil {
		t.Fatal(err)
	}
	plans := catalogPlans().Plans
	for _, plan := range plans {
		o, err := tekton.Compile(plan, tekton.Options{Namespace: "ns"})
		if err != nil {
			t.Fatal(err)
		}
		list := func(group string, resources ...any) map[string]any {
			return map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": resources}
		}
		served := func(kind string) any {
			name := strings.ToLower(kind)
			return map[string]any{"name": name + "s", "singularName": name, "namespaced": true, "kind": kind, "verbs": []any{"get"}}
		}
		v1 := map[string]any{"groupVersion": "tekton.dev/v1", "version": "v1"}
		kubeconfig := kubeconfigOf(t, &api{answers: map[string]any{
			"/api": map[string]any{"kind": "APIVersions", "versions": []any{"v1"}},
			"/apis": map[string]any{"kind": "APIGroupList", "apiVersion": "v1", "groups": []any{
				map[string]any{"name": "tekton.dev", "versions": []any{v1}, "preferredVersion": v1}}},
			"/api/v1": list("v1"), "/apis/tekton.dev/v1": list("tekton.dev/v1", served("Pipeline"), served("PipelineRun")),
			"/apis/tekton.dev/v1/namespaces/ns/pipelines/" + plan.Name: o.Pipeline,
		}})
		start := func(args ...string) *pipelinev1.PipelineRun {
			t.Helper()
			args = append([]string{"pipeline", "start", plan.Name, "--use-param-defaults", "--dry-run",
				"--kubeconfig", kubeconfig}, args...)
			var stdout, stderr bytes.Buffer
			command := exec.CommandContext(t.Context(), tkn, args...)
			command.Stdout, command.Stderr = &stdout, &stderr
			var run pipelinev1.PipelineRun
			if err := command.Run(); err != nil {
				t.Fatalf("tkn %s: %v\n%s%s", strings.Join(args, " "), err, stdout.String(), stderr.String())
			}
			if err := yaml.UnmarshalStrict(stdout.Bytes(), &run); err != nil {
				t.Fatalf("%v\n%s", err, stdout.String())
			}
			return &run
		}
		run := start()
		if ref := run.Spec.PipelineRef; ref == nil || ref.Name != plan.Name || run.Spec.TaskRunTemplate.ServiceAccountName != "" {
			t.Errorf("tkn starts %+v", run.Spec)
		}
		for _, p := range run.Spec.Params {
			i := slices.IndexFunc(o.Pipeline.Spec.Params, func(of pipelinev1.ParamSpec) bool { return of.Name == p.Name })
			if i < 0 || p.Value.StringVal != o.Pipeline.Spec.Params[i].Default.StringVal {
				t.Errorf("plan %s: tkn sets %s to %q, which is no default", plan.Name, p.Name, p.Value.StringVal)
			}
		}
		if got := start("--serviceaccount", plan.Name).Spec.TaskRunTemplate.ServiceAccountName; got != plan.Name {
			t.Errorf("plan %s: account %q", plan.Name, got)
		}
	}
	ecosystem.Row(t, "Tekton Dashboard and tkn", "`tkn pipeline start --use-param-defaults --dry-run`", version,
		fmt.Sprintf("`make tkn`: the Pipelines of %d plans, from a fake API server, without an account and with the plan's", len(plans)),
		"PipelineRuns of these Pipelines, with that account, and no param beyond the defaults")
}
