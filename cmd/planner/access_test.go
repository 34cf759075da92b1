// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// api is an API server that answers GET by path, and keeps who asked. Lists are empty that answers do not have. It
// allows everything, applies what is sent, and creates runs with a name.
type api struct {
	answers map[string]any
	users   []string
	groups  []string
	writes  []string // verb and last element of the path of each request that is no GET
	after   int      // requests after the newest run was created
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.users = append(a.users, r.Header.Get("Impersonate-User"))
	a.groups = r.Header.Values("Impersonate-Group")
	answer, ok := a.answers[r.URL.Path]
	w.Header().Set("Content-Type", "application/json")
	a.after++
	sent := map[string]any{}
	if r.Method != http.MethodGet {
		_ = json.NewDecoder(r.Body).Decode(&sent)
		answer, ok = sent, true
	}
	switch resource := path.Base(r.URL.Path); {
	case r.Method == http.MethodPost && resource == "selfsubjectaccessreviews":
		sent["status"] = map[string]any{"allowed": true}
	case r.Method == http.MethodPost && resource == "pipelineruns":
		a.after = 0
		metadata := sent["metadata"].(map[string]any)
		metadata["name"] = fmt.Sprint(metadata["generateName"], "abcde")
		fallthrough
	case r.Method != http.MethodGet:
		a.writes = append(a.writes, r.Method+" "+resource)
	case ok:
	case strings.HasSuffix(r.URL.Path, "/configmaps"):
		answer = map[string]any{"kind": "List", "apiVersion": "v1", "items": []any{}}
	default:
		w.WriteHeader(http.StatusNotFound)
		answer = map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// kubeconfigOf serves a until the test ends, and returns the path of a kubeconfig for it.
func kubeconfigOf(t *testing.T, a *api) string {
	t.Helper()
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{kind: Config, apiVersion: v1, current-context: one, users: [{name: u, user: {}}],
  clusters: [{name: c, cluster: {server: %q}}],
  contexts: [{name: one, context: {cluster: c, user: u, namespace: ns}}, {name: two, context: {cluster: c, user: u}}]}`, server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// cli runs a command line of planner with a kubeconfig for a, and returns its exit code and output.
func cli(t *testing.T, a *api, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	kubeconfig := kubeconfigOf(t, a)
	var out, errs bytes.Buffer
	env := &environment{
		stdin: strings.NewReader(""), stdout: &out, stderr: &errs, dir: t.TempDir(),
		getenv: func(string) string { return "" }, interrupts: make(chan os.Signal),
	}
	verb := slices.IndexFunc(args, func(a string) bool { return a != "__complete" })
	args = slices.Insert(slices.Clone(args), verb+1, "--kubeconfig", kubeconfig)
	code = planner(t.Context(), env, args)
	return code, out.String(), errs.String()
}

// TestWhyNoReport: report says why a run has none.
func TestWhyNoReport(t *testing.T) {
	pipelineRun := func(conditions ...any) map[string]any {
		return map[string]any{"/apis/tekton.dev/v1/namespaces/ns/pipelineruns/r": map[string]any{
			"kind": "PipelineRun", "apiVersion": "tekton.dev/v1",
			"metadata": map[string]any{"name": "r", "namespace": "ns", "creationTimestamp": time.Now().Format(time.RFC3339)},
			"status":   map[string]any{"conditions": conditions},
		}}
	}
	condition := func(status, reason, message string) any {
		return map[string]any{"type": "Succeeded", "status": status, "reason": reason, "message": message}
	}
	for _, tt := range []struct {
		name    string
		answers map[string]any
		want    string
	}{
		{"unknown", nil, "run r: neither a report nor a PipelineRun in namespace ns; another namespace: -n"},
		{"not started", pipelineRun(), "run r has no report yet: it was created "},
		{"running", pipelineRun(condition("Unknown", "Running", "")), "and has not ended"},
		{"deleted", pipelineRun(condition("True", "Succeeded", "")), "run r has no report any more: it succeeded; spec.retention.reports"},
		{"failed", pipelineRun(condition("False", "CouldntGetTask", "no Task checkplan-setup")),
			"run r ended without a report, or the report was deleted: CouldntGetTask: no Task checkplan-setup"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, _, stderr := cli(t, &api{answers: tt.answers}, "report", "r")
			if code != exitError || !strings.Contains(stderr, tt.want) {
				t.Errorf("exit %d, %q; want exit %d and %q", code, stderr, exitError, tt.want)
			}
		})
	}
}

// TestRunDetach: the plan is applied, its run is created, and the name of the run is all that is printed for programs.
// Nothing follows the run.
func TestRunDetach(t *testing.T) {
	a := &api{answers: map[string]any{
		"/apis/tekton.dev/v1":   map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "tekton.dev/v1", "resources": []any{}},
		"/api/v1/namespaces/ns": map[string]any{"kind": "Namespace", "apiVersion": "v1", "metadata": map[string]any{"name": "ns"}},
		"/version":              map[string]any{"major": "1", "minor": "35", "gitVersion": "v1.35.0"},
	}}
	plan, err := filepath.Abs("../../plans/pod-mesh.cue")
	if err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := cli(t, a, "run", "--detach", plan)
	if code != exitOK || stdout != "pod-mesh-abcde\n" || !strings.Contains(stderr, "started PipelineRun pod-mesh-abcde in namespace ns") {
		t.Errorf("exit %d, printed %q, %q", code, stdout, stderr)
	}
	if n := len(a.writes); n < 5 || a.writes[n-1] != "POST pipelineruns" || !slices.Contains(a.writes, "PATCH pod-mesh") || a.after > 0 {
		t.Errorf("wrote %q, and %d requests came after the run was created; want the plan's objects, then the run, then none", a.writes, a.after)
	}
	delete(a.answers, "/apis/tekton.dev/v1")
	a.writes = nil
	if code, stdout, stderr := cli(t, a, "run", "--detach", plan); code != exitError || stdout != "" || len(a.writes) > 0 ||
		!strings.Contains(stderr, "no Tekton Pipelines") {
		t.Errorf("without Tekton: exit %d, printed %q, %q, wrote %q", code, stdout, stderr, a.writes)
	}
}

// TestImpersonation: --as and --as-group reach the API server with each request.
func TestImpersonation(t *testing.T) {
	a := &api{}
	cli(t, a, "report", "r", "--as", "alice", "--as-group", "team", "--as-group", "dev")
	if len(a.users) == 0 || slices.ContainsFunc(a.users, func(u string) bool { return u != "alice" }) ||
		!slices.Equal(a.groups, []string{"team", "dev"}) {
		t.Errorf("asked as %q in %q, want alice in team and dev", a.users, a.groups)
	}
}

// TestCompletion: what the cluster and the kubeconfig know completes words; no cluster completes nothing.
func TestCompletion(t *testing.T) {
	report := map[string]any{"metadata": map[string]any{"name": "x", "labels": map[string]any{
		"checkplan.dev/role": "report", "checkplan.dev/plan": "pod-mesh", "checkplan.dev/run": "uid-1",
		"checkplan.dev/run-name": "pod-mesh-run-abcde",
	}}}
	a := &api{answers: map[string]any{
		"/apis/tekton.dev/v1/namespaces/ns/pipelines": map[string]any{"kind": "PipelineList", "apiVersion": "tekton.dev/v1", "items": []any{
			map[string]any{"metadata": map[string]any{"name": "pod-mesh"}}}},
		"/api/v1/namespaces": map[string]any{"kind": "NamespaceList", "apiVersion": "v1", "items": []any{
			map[string]any{"metadata": map[string]any{"name": "checkplan"}}}},
		"/api/v1/namespaces/ns/configmaps": map[string]any{
			"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": map[string]any{}, "items": []any{report}},
	}}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"report", ""}, "pod-mesh-run-abcde\n:4\n"},
		{[]string{"report", "one", ""}, ":4\n"},
		{[]string{"diff", "one", ""}, "pod-mesh-run-abcde\n:4\n"},
		{[]string{"history", ""}, "pod-mesh\n:4\n"},
		{[]string{"start", ""}, "pod-mesh\n:4\n"},
		{[]string{"start", "one", ""}, ":4\n"},
		{[]string{"run", "-n", ""}, "checkplan\n:4\n"},
		{[]string{"run", "--context", ""}, "one\ntwo\n:4\n"},
		{[]string{"run", "--set", ""}, ":6\n"},
	} {
		if _, got, _ := cli(t, a, append([]string{"__complete"}, tt.args...)...); got != tt.want {
			t.Errorf("%q completes to %q, want %q", tt.args, got, tt.want)
		}
	}
}
