// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// The hash in go.sum is what verifies the module: the checksum database does not have it.
func TestDashboardVersion(t *testing.T) {
	for file, want := range map[string]string{
		"dashboard.mod": "\t" + dashboardModule + " " + dashboardVersion + " ",
		"dashboard.sum": "\n" + dashboardModule + " " + dashboardVersion + " h1:",
	} {
		b, err := dashboardSource.ReadFile("addons/" + file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(b), want) {
			t.Errorf("%s does not contain %q", file, want)
		}
	}
}

// fakeDashboard writes manifests as those of the dashboard's module, as short as can be.
func fakeDashboard(t *testing.T, c *cluster) {
	t.Helper()
	for name, content := range map[string]string{
		"kustomization.yaml": "resources: [./300-deployment.yaml, ./300-config-info.yaml]\n",
		"100-namespace.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: left-out}\n",
		"300-config-info.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: dashboard-info\n" +
			"  namespace: tekton-dashboard\ndata: {version: \"devel\"}\n",
		"clusterrole-extra.yaml": "kind: ClusterRole\nmetadata: {name: left-out}\n",
		"300-deployment.yaml": `apiVersion: apps/v1
kind: Deployment
metadata:
  name: tekton-dashboard
  namespace: tekton-pipelines
  labels: {app.kubernetes.io/version: devel}
spec:
  template:
    spec:
      nodeSelector: {kubernetes.io/os: linux}
      containers:
      - name: tekton-dashboard
        image: dashboardImage
        readinessProbe: {httpGet: {path: /readiness, port: 9097}}
        args:
        - --default-namespace=--default-namespace
        - --external-logs=--external-logs
        - --log-format=--log-format
        - --log-level=--log-level
        - --logout-url=--logout-url
        - --namespaces=--tenant-namespaces
        - --pipelines-namespace=--pipelines-namespace
        - --port=9097
        - --read-only=--read-only
        - --stream-logs=--stream-logs
        - --triggers-namespace=--triggers-namespace
`,
	} {
		file := filepath.Join(c.build().addonDir("dashboard"), "manifests", name)
		if err := writeFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDashboardManifests(t *testing.T) {
	c := &cluster{state: state{BinDir: build{dir: t.TempDir()}.bin()}}
	if _, err := dashboardObjects(c); err == nil {
		t.Error("no error without a build")
	}
	fakeDashboard(t, c)
	got, err := dashboardObjects(c)
	if err != nil {
		t.Fatal(err)
	}
	var objects []map[string]any
	for _, o := range inOrder(got) {
		objects = append(objects, o.Object)
	}
	golden(t, "dashboard.yaml", toYAML(t, objects))
}

// The image has the server, its user, and the pages beside it.
func TestDashboardImage(t *testing.T) {
	server := filepath.Join(t.TempDir(), "dashboard")
	if err := os.WriteFile(server, []byte("the server"), 0o755); err != nil {
		t.Fatal(err)
	}
	pages := fstest.MapFS{"index.html": {Data: []byte("a page")}, "fonts/plex.woff2": {Data: []byte("a font")}}
	img, err := dashboardImage(server, pages)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.User != "65532" || cmp.Diff([]string{"/ko-app/dashboard"}, config.Config.Entrypoint) != "" {
		t.Errorf("user %q, entrypoint %q", config.Config.User, config.Config.Entrypoint)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 2 {
		t.Fatalf("%d layers, error %v; want two", len(layers), err)
	}
	content, err := layers[1].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for tr := tar.NewReader(content); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if h.Mode != 0o644 {
			t.Errorf("%s has mode %o, which the user may not read", h.Name, h.Mode)
		}
		files[h.Name] = string(b)
	}
	want := map[string]string{"var/run/ko/index.html": "a page", "var/run/ko/fonts/plex.woff2": "a font"}
	if d := cmp.Diff(want, files); d != "" {
		t.Errorf("files (-want +got):\n%s", d)
	}
	if _, err := dashboardImage(server, fstest.MapFS{}); err == nil {
		t.Error("no error without pages")
	}
}
