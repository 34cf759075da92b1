// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// apiServer answers reads from what it has, and dry runs of server-side apply with what is applied. It refuses all
// else.
type apiServer struct {
	t  *testing.T
	mu sync.Mutex
	// tried and has are objects by the path of their URL.
	tried, has map[string]string // guarded by mu
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.URL.Path == "/api/v1/nodes":
		var nodes []string
		for i := range 3 {
			nodes = append(nodes, fmt.Sprintf(`{"metadata":{"name":"n%d","labels":{"kubernetes.io/os":"linux"}},"status":{`+
				`"allocatable":{"pods":"110"},"conditions":[{"type":"Ready","status":"True"}]}}`, i))
		}
		fmt.Fprintf(w, `{"kind":"NodeList","apiVersion":"v1","items":[%s]}`, strings.Join(nodes, ","))
	case r.Method == http.MethodGet && s.has[r.URL.Path] != "":
		io.WriteString(w, s.has[r.URL.Path])
	case r.Method == http.MethodGet && r.URL.Path == "/version":
		io.WriteString(w, `{"major":"1","minor":"35","gitVersion":"v1.35.0"}`)
	case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/configmaps"):
		io.WriteString(w, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","items":[]}`)
	case r.Method == http.MethodGet:
		w.WriteHeader(http.StatusNotFound)
		io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
	case r.Method == http.MethodPatch && r.URL.Query().Get("dryRun") == "All" && r.URL.Query().Get("fieldManager") == "flux":
		body, err := io.ReadAll(r.Body)
		if err != nil {
			s.t.Error(err)
		}
		s.tried[r.URL.Path] = string(body)
		w.Write(body)
	default:
		s.t.Errorf("diff sent %s %s", r.Method, r.URL)
		w.WriteHeader(http.StatusForbidden)
	}
}

// diff of a plan shows what would change, in words and as objects, with the exit codes of kubectl diff, and changes
// nothing.
func TestDiffOfAPlan(t *testing.T) {
	server := &apiServer{t: t, tried: map[string]string{}, has: map[string]string{}}
	http := httptest.NewServer(server)
	defer http.Close()
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("kubeconfig", `{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: "`+http.URL+`"}}],
contexts: [{name: x, context: {cluster: c, namespace: team}}], current-context: x}`)
	plan := func(fields, probes string) {
		write("plan.cue", `package p

import "github.com/checkplan/checkplan/schema"

plan: small: schema.#Plan & {
	`+fields+`
	checks: mesh: podMesh: `+probes+`
}
`)
	}
	try := func(wantCode int, wants ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		env := &environment{stdin: os.Stdin, stdout: &out, stderr: &errs, dir: dir, getenv: os.Getenv}
		code := planner(t.Context(), env, []string{"diff", "plan.cue", "--kubeconfig", filepath.Join(dir, "kubeconfig"),
			"--field-manager", "flux"})
		if code != wantCode {
			t.Errorf("exit code %d, want %d: %s", code, wantCode, errs.String())
		}
		for _, want := range wants {
			if !strings.Contains(out.String()+errs.String(), want) {
				t.Errorf("no %q in:\n%s%s", want, out.String(), errs.String())
			}
		}
		return out.String()
	}

	plan("", `{ipFamilies: ["IPv4"], sample: degree: 1, probes: tcp: {}}`)
	try(exitError, "plan small in namespace team: 16 objects to create, 0 to change\n",
		"check mesh (podMesh): new: pairs 3, packets 15, pods 6\n", "right added: small-setup: list nodes\n",
		"\nPipeline team/small\ndiff cluster plan\n", "\n+  name: small\n")

	server.has = server.tried
	server.tried = map[string]string{}
	try(exitOK, "plan small in namespace team: no differences\n")

	plan(`schedule: cron: "@daily"
	limits: pods: 5
	features: PodNetworkHealth: true`, `{ipFamilies: ["IPv4"], sample: degree: 2, probes: tcp: {}}`)
	out := try(exitError, "check mesh (podMesh): pairs 3 -> 6, packets 15 -> 30\n", `parameter mesh.degree: "1" -> "2"`,
		"right added: small-setup: get customresourcedefinitions.apiextensions.k8s.io podnetworkhealths.networkhealth.checkplan.dev\n",
		`schedule: none -> {"cron":"@daily"`, `limits: none -> {"pods":5}`,
		"limit pods 6 of 5 (refused): on this cluster, setup would refuse every run\n", "\nCronJob team/small\n")
	if strings.Contains(out, "right removed") {
		t.Errorf("no right is removed:\n%s", out)
	}

	plan("", "{probes: {}}")
	try(exitUsage, "probes")
	http.Close()
	plan("", "{probes: tcp: {}}")
	try(exitUsage, "connect")
}

// Nothing is compared with what is not deployed, and a check that is gone is named.
func TestMeasuredOfRemovedCheck(t *testing.T) {
	before := &explanation{Checks: []checkExplained{{}}}
	before.Checks[0].Check, before.Checks[0].Kind = "mesh", "podMesh"
	before.Parameters = map[string]string{"mesh.degree": "1", "gate": "Pass"}
	after := &explanation{Parameters: map[string]string{"gate": "Nothing"}}
	got := strings.Join(measured(before, after, &checkup.Plan{}, &checkup.Plan{}), "\n")
	want := `check mesh (podMesh): removed
parameter gate: "Pass" -> "Nothing"`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
