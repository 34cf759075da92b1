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

// served asks planner serve for a run of plan ring, with the rights of docs/serve/kubernetes.yaml and no others, and
// compares with planner report --output html.
func served(t *testing.T, r *checkup.Report) {
	t.Helper()
	namespace := cluster(t).Namespace
	manifest, err := os.ReadFile("../../docs/serve/kubernetes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rights, _, ok := strings.Cut(string(manifest), "---\napiVersion: apps/v1\n")
	if !ok {
		t.Fatal("the manifest has no Deployment")
	}
	path := filepath.Join(t.TempDir(), "rights.yaml")
	if err := os.WriteFile(path, []byte(rights), 0o600); err != nil {
		t.Fatal(err)
	}
	sandbox(t, "kubectl", "apply", "-n", namespace, "-f", path)
	t.Cleanup(func() { sandbox(t, "kubectl", "delete", "-n", namespace, "-f", path) })

	config, err := clientcmd.LoadFromFile(os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range config.AuthInfos {
		user.Impersonate = "system:serviceaccount:" + namespace + ":planner-serve"
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	server := start(t, "serve", "--listen", "127.0.0.1:0", "--kubeconfig", kubeconfig, "-n", namespace)
	address := ""
	eventually(t, time.Minute, func() error {
		if _, rest, ok := strings.Cut(server.stderr.String(), " on http://"); ok && strings.HasSuffix(rest, "/\n") {
			address = "http://" + strings.TrimSuffix(rest, "/\n")
			return nil
		}
		return fmt.Errorf("planner serve does not listen: %s", server.stderr.String())
	})
	for path, want := range map[string]string{
		"/":                 "/plans/" + r.Plan,
		"/plans/" + r.Plan:  r.Run,
		"/runs/" + r.RunUID: "Plan " + r.Plan + ", run " + r.Run,
		"/metrics":          fmt.Sprintf("checkplan_run_verdict{plan=%q,", r.Plan),
		"/healthz":          "ok",
	} {
		answer, err := http.Get(address + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s: %s, %v; want %q in\n%s", path, answer.Status, err, want, body)
		}
	}
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
