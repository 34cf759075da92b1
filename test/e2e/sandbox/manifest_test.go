// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func toYAML(t *testing.T, objects []map[string]any) string {
	t.Helper()
	var docs []string
	for _, o := range objects {
		b, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, string(b))
	}
	return strings.Join(docs, "---\n")
}

func TestNodesCoreDNSAndKubeadm(t *testing.T) {
	p, err := newPlan(2, 1, 2, "dual")
	if err != nil {
		t.Fatal(err)
	}
	coredns, err := corednsObjects(p)
	if err != nil {
		t.Fatal(err)
	}
	kubeadm, err := kubeadmObjects(p, []byte("a certificate\n"))
	if err != nil {
		t.Fatal(err)
	}
	var objects []map[string]any
	for _, o := range slices.Concat(nodeObjects(p), coredns, kubeadm) {
		objects = append(objects, o.Object)
	}
	golden(t, "nodes-coredns-kubeadm.yaml", toYAML(t, objects))
}

// fakeResolvers writes a manifest of Tekton's module as short as can be.
func fakeResolvers(t *testing.T, c *cluster) {
	t.Helper()
	file := filepath.Join(c.build().tekton(), "resolvers", "resolvers-deployment.yaml")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	const text = `apiVersion: apps/v1
kind: Deployment
metadata: {name: tekton-pipelines-remote-resolvers, namespace: tekton-pipelines-resolvers}
spec:
  template:
    spec:
      containers:
      - {name: controller, image: "ko://github.com/tektoncd/pipeline/cmd/resolvers", command: [/sbin/tini, --, /ko-app/resolvers]}
`
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestResolvers(t *testing.T) {
	c := &cluster{state: state{BinDir: build{dir: t.TempDir()}.bin()}}
	if _, err := resolversObjects(c); err == nil {
		t.Error("no error without manifests")
	}
	fakeResolvers(t, c)
	objects, err := resolversObjects(c)
	if err != nil {
		t.Fatal(err)
	}
	containers, _, err := unstructured.NestedSlice(objects[0].Object, "spec", "template", "spec", "containers")
	if err != nil || len(containers) != 1 {
		t.Fatalf("%d containers, %v", len(containers), err)
	}
	want := map[string]any{
		"name": "controller", "image": "sandbox.invalid/resolvers:" + tektonVersion, "command": []any{"/ko-app/resolvers"},
		"resources": map[string]any{"requests": map[string]any{"cpu": controllerCPU}},
	}
	if !reflect.DeepEqual(containers[0], want) {
		t.Errorf("got %v, want %v", containers[0], want)
	}
}

// Every addon builds its objects from the files of a sandbox.
func TestAddons(t *testing.T) {
	p, err := newPlan(1, 1, 1, "ipv4")
	if err != nil {
		t.Fatal(err)
	}
	d := dirs{state: t.TempDir()}
	if err := d.writePKI(p, 16443); err != nil {
		t.Fatal(err)
	}
	c := &cluster{dirs: d, state: state{plan: p, BinDir: build{dir: t.TempDir()}.bin()}}
	fakeDashboard(t, c)
	fakeKubeVirt(t, c)
	fakeResolvers(t, c)
	for _, name := range addonNames() {
		if name == "conformance" {
			continue // it has none
		}
		objects, err := addons()[name].objects(c)
		if err != nil || len(objects) == 0 {
			t.Errorf("%s: %d objects, error %v", name, len(objects), err)
		}
		for _, deployment := range addons()[name].deployments {
			if !slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool {
				return o.GetKind() == "Deployment" && o.GetNamespace() == deployment[0] && o.GetName() == deployment[1]
			}) {
				t.Errorf("%s: Deployment %s is missing", name, strings.Join(deployment[:], "/"))
			}
		}
	}
	if _, err := aggregatedObjects(&cluster{dirs: dirs{state: t.TempDir()}}); err == nil {
		t.Error("aggregated: no error without certificates")
	}
	err = checkAddons([]string{"aggregated", "jam"})
	if want := `--with "jam": must be one of ` + strings.Join(addonNames(), ", "); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// The manifests of the aggregated API server, with short certificates.
func TestAggregatedManifests(t *testing.T) {
	d := dirs{state: t.TempDir()}
	for _, file := range []string{"aggregated.crt", "aggregated.key", "ca.crt"} {
		if err := writeFile(d.file("pki", file), []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := aggregatedObjects(&cluster{dirs: d})
	if err != nil {
		t.Fatal(err)
	}
	var objects []map[string]any
	for _, o := range inOrder(got) {
		objects = append(objects, o.Object)
	}
	golden(t, "aggregated.yaml", toYAML(t, objects))
}

// The changes to Tekton's manifests; everything else stays as it is.
func TestTektonManifests(t *testing.T) {
	config := fstest.MapFS{
		"100-namespace/100-namespace.yaml": {Data: []byte("# only a comment\n---\n" +
			"apiVersion: v1\nkind: Namespace\nmetadata: {name: tekton-pipelines}\n")},
		"config-feature-flags.yaml": {Data: []byte("apiVersion: v1\nkind: ConfigMap\n" +
			"metadata: {name: feature-flags}\ndata: {set-security-context: \"false\", other: \"false\"}\n")},
		"config-info.yaml": {Data: []byte("apiVersion: v1\nkind: ConfigMap\n" +
			"metadata: {name: pipelines-info}\ndata: {version: \"devel\"}\n")},
		"events.yaml":               {Data: []byte("kind: Deployment\nmetadata: {name: left-out}\n")},
		"webhook-hpa.yaml":          {Data: []byte("kind: HorizontalPodAutoscaler\nmetadata: {name: left-out}\n")},
		"resolvers/deployment.yaml": {Data: []byte("kind: Deployment\nmetadata: {name: left-out}\n")},
		"dummy.go":                  {Data: []byte("package config\n")},
		"controller.yaml": {Data: []byte(`apiVersion: apps/v1
kind: Deployment
metadata:
  name: tekton-pipelines-controller
  labels: {version: "devel"}
spec:
  template:
    spec:
      containers:
      - name: tekton-pipelines-controller
        image: ko://github.com/tektoncd/pipeline/cmd/controller
        args: ["-entrypoint-image", "ko://github.com/tektoncd/pipeline/cmd/entrypoint", "-nop-image", "ko://github.com/tektoncd/pipeline/cmd/nop"]
        readinessProbe: {httpGet: {path: /readiness, port: probes}, initialDelaySeconds: 5, periodSeconds: 10}
        livenessProbe: {httpGet: {path: /health, port: probes}, initialDelaySeconds: 5, periodSeconds: 10}
`)},
	}
	got, err := tektonObjects(config)
	if err != nil {
		t.Fatal(err)
	}
	var objects []map[string]any
	for _, o := range inOrder(got) {
		objects = append(objects, o.Object)
	}
	golden(t, "tekton.yaml", toYAML(t, objects))
}

func TestTektonManifestsMustExist(t *testing.T) {
	if _, err := tektonObjects(fstest.MapFS{}); err == nil {
		t.Error("no error without manifests")
	}
	_, err := tektonObjects(fstest.MapFS{"a.yaml": {Data: []byte("a: [")}})
	if err == nil || !strings.Contains(err.Error(), "a.yaml") {
		t.Errorf("error for a broken manifest: %v, want it to name a.yaml", err)
	}
}
