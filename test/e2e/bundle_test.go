// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/crane"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The registry of the sandbox's addon resolvers, on the host and in the pod of the resolvers.
const registry = "127.0.0.1:15000"

// A run of a bundle in a namespace that has the accounts and roles only, from the manifests beside the bundle, and one
// whose Tasks are in another namespace: Tekton's resolvers find both. Somebody pushes another bundle to the same tag
// before the first run, which does not use it.
func TestBundle(t *testing.T) {
	parallel(t)
	const plan = "../../plans/smoke.cue"
	forwardRegistry(t)
	dir := t.TempDir()
	push := func(args ...string) (pinned, manifests string) {
		t.Helper()
		c := start(t, append([]string{"catalog", "--plans", plan, "--bundle", registry + "/checkplan/catalog:v1"}, args...)...)
		if c.wait(t) != 0 {
			t.Fatal(c.stderr.String())
		}
		pinned, manifests, _ = strings.Cut(strings.TrimSpace(c.stdout.String()), "\n")
		return pinned, manifests
	}
	pinned, manifests := push(filepath.Join(dir, "written"))
	if other, _ := push("--image-repository", "sandbox.invalid/none", filepath.Join(dir, "other")); other == pinned {
		t.Fatalf("two catalogs have one bundle: %s", other)
	}
	unpack(t, manifests, filepath.Join(dir, "catalog"))
	overlay(t, dir, "bundle")

	namespaced(t, "bundle-tasks")
	namespaced(t, "bundle-cluster")
	compiled := filepath.Join(dir, "compiled")
	if c := start(t, "compile", plan, "-n", "bundle-tasks", "--output-dir", compiled); c.wait(t) != 0 {
		t.Fatal(c.stderr.String())
	}
	tasks, err := filepath.Glob(filepath.Join(compiled, "task-*.yaml"))
	if err != nil || len(tasks) == 0 {
		t.Fatalf("compiled Tasks: %v, %v", tasks, err)
	}
	for _, file := range tasks {
		sandbox(t, "kubectl", "apply", "-f", file)
	}

	digests := map[string]string{"bundle": pinned[strings.LastIndex(pinned, ":")+1:]}
	runs := map[string]*command{
		"bundle": start(t, "start", "smoke", "--resolver", "bundles="+pinned, "--kubeconfig", starter(t, "bundle"),
			"-n", "bundle", "--output", "json"),
		"bundle-cluster": start(t, "run", plan, "--resolver", "cluster=bundle-tasks", "-n", "bundle-cluster", "--output", "json"),
	}
	c := cluster(t)
	for namespace, command := range runs {
		if code := command.wait(t); code != 0 {
			t.Errorf("run in namespace %s: exit code %d\n%s", namespace, code, command.stderr.String())
			continue
		}
		r := reportOf(t, command)
		run, err := c.Tekton.TektonV1().PipelineRuns(namespace).Get(t.Context(), r.Run, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if want := digests[namespace]; want != "" {
			if p := run.Status.Provenance; p == nil || p.RefSource == nil || p.RefSource.Digest["sha256"] != want {
				t.Errorf("the Pipeline of run %s: %+v, want digest %s", r.Run, p, want)
			}
		}
		taskRuns, err := c.Tekton.TektonV1().TaskRuns(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(taskRuns.Items) == 0 {
			t.Fatalf("%d TaskRuns in namespace %s: %v", len(taskRuns.Items), namespace, err)
		}
		for _, taskRun := range taskRuns.Items {
			if p := taskRun.Status.Provenance; p == nil || p.RefSource == nil || taskRun.Spec.TaskRef.Resolver == "" {
				t.Errorf("TaskRun %s: provenance %+v, want a Task that a resolver found", taskRun.Name, p)
			}
		}
		for _, resource := range []string{"tasks", "pipelines"} {
			if found := sandbox(t, "kubectl", "-n", namespace, "get", resource, "-o", "name"); found != "" &&
				!strings.HasPrefix(found, "No resources") && (resource == "tasks" || namespace == "bundle") {
				t.Errorf("namespace %s has %s: %s", namespace, resource, found)
			}
		}
	}
}

// unpack writes the files of an image to a new directory, as `crane export IMAGE - | tar x` does.
func unpack(t *testing.T, image, dir string) {
	t.Helper()
	pulled, err := crane.Pull(image)
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := errors.Join(os.Mkdir(dir, 0o755), crane.Export(pulled, &archive)); err != nil {
		t.Fatal(err)
	}
	tar := exec.CommandContext(t.Context(), "tar", "x", "-C", dir)
	tar.Stdin = &archive
	if out, err := tar.CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
}

// forwardRegistry forwards the registry's port of the host to the pod, until the test ends.
func forwardRegistry(t *testing.T) {
	t.Helper()
	_, port, _ := strings.Cut(registry, ":")
	out := portForward(t, "tekton-pipelines-resolvers", "deployment/tekton-pipelines-remote-resolvers", port)
	eventually(t, time.Minute, func() error {
		response, err := http.Get("http://" + registry + "/v2/")
		if err != nil {
			return fmt.Errorf("the registry of `sandbox up --with resolvers`: %w\n%s", err, out.String())
		}
		return response.Body.Close()
	})
}
