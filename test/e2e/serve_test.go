// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// served runs planner serve in the cluster by docs/serve/kubernetes.yaml, and looks at its pages of a run through the
// API server. Then it runs the planner of this machine for all namespaces, with the rights of
// docs/serve/kustomization.yaml and no others, and compares with planner report --output html.
func served(t *testing.T, r *checkup.Report) {
	t.Helper()
	c := cluster(t)
	const manifest = "../../docs/serve/kubernetes.yaml"
	account := "system:serviceaccount:" + c.Namespace + ":planner-serve"
	t.Cleanup(func() {
		sandbox(t, "kubectl", "delete", "-n", c.Namespace, "-f", manifest, "--ignore-not-found", "--wait=false")
	})
	sandbox(t, "kubectl", "apply", "-n", c.Namespace, "-f", manifest)
	plan, report := "/plans/"+c.Namespace+"/"+r.Plan, "/runs/"+c.Namespace+"/"+r.RunUID
	pages := map[string]string{
		"/":               plan,
		plan:              r.Run,
		report:            "Plan " + r.Plan + ", run " + r.Run,
		"/nodes":          "/nodes/worker-1",
		"/nodes/worker-1": "Pairs from the node",
		"/metrics":        fmt.Sprintf("plan=%q,run=", r.Plan),
		"/healthz":        "ok",
	}
	look := func(get func(path string) ([]byte, error)) {
		t.Helper()
		for path, want := range pages {
			// Another run of the plan may just have ended: its report is there, and its history not yet.
			eventually(t, time.Minute, func() error {
				body, err := get(path)
				if err == nil && !strings.Contains(string(body), want) {
					err = fmt.Errorf("does not have %q:\n%s", want, body)
				}
				if err != nil {
					return fmt.Errorf("%s: %w", path, err)
				}
				return nil
			})
		}
	}
	look(func(path string) ([]byte, error) {
		return c.Kube.CoreV1().Services(c.Namespace).ProxyGet("http", "planner-serve", "http", path, nil).DoRaw(t.Context())
	})
	for _, refused := range [][]string{
		{"create", "configmap", "planner-serve-test"}, {"delete", "configmap", "kube-root-ca.crt"}, {"get", "secrets"}, {"get", "pods"},
		{"get", "configmaps", "-n", "kube-system"},
	} {
		args := append([]string{"kubectl", "--as", account, "-n", c.Namespace}, refused...)
		if out, err := sandboxCommand(args...).CombinedOutput(); err == nil || !strings.Contains(string(out), "is forbidden") {
			t.Errorf("the account of planner serve: kubectl %s: %v, want that it is forbidden: %s", strings.Join(refused, " "), err, out)
		}
	}

	everywhere := t.TempDir()
	for _, name := range []string{"kubernetes.yaml", "all-namespaces.yaml", "kustomization.yaml"} {
		text, err := os.ReadFile("../../docs/serve/" + name)
		if err != nil {
			t.Fatal(err)
		}
		text = []byte(strings.ReplaceAll(string(text), "namespace: checkplan", "namespace: "+c.Namespace))
		if err := os.WriteFile(filepath.Join(everywhere, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sandbox(t, "kubectl", "apply", "-k", everywhere)
	t.Cleanup(func() { sandbox(t, "kubectl", "delete", "-k", everywhere, "--wait=false") })
	config, err := clientcmd.LoadFromFile(os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range config.AuthInfos {
		user.Impersonate = account
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	server := start(t, "serve", "--all-namespaces", "--listen", "127.0.0.1:0", "--kubeconfig", kubeconfig)
	address := ""
	eventually(t, time.Minute, func() error {
		if _, rest, ok := strings.Cut(server.stderr.String(), " on http://"); ok && strings.HasSuffix(rest, "/\n") {
			address = "http://" + strings.TrimSuffix(rest, "/\n")
			return nil
		}
		return fmt.Errorf("planner serve does not listen: %s", server.stderr.String())
	})
	pages["/metrics"] = fmt.Sprintf("checkplan_run_passed{namespace=%q,plan=%q,", c.Namespace, r.Plan)
	look(func(path string) ([]byte, error) {
		answer, err := http.Get(address + path)
		if err != nil {
			return nil, err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err == nil && answer.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", answer.Status, body)
		}
		return body, err
	})
	if err := server.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := server.wait(t); code != 0 {
		t.Errorf("exit code %d: %s", code, server.stderr.String())
	}

	page := start(t, "report", "--output", "html", r.Run)
	if code := page.wait(t); code != 0 {
		t.Fatalf("exit code %d: %s", code, page.stderr.String())
	}
	for _, want := range []string{"<!doctype html>", r.Run, "Median round trips"} {
		if !strings.Contains(page.stdout.String(), want) {
			t.Errorf("the page does not have %q", want)
		}
	}
}
