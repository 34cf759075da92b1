// SPDX-License-Identifier: Apache-2.0

package load

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kinds"
	"github.com/checkplan/checkplan/pkg/vmlatency"
)

// The document's own example is a plan, and what of it has no effect is reported.
func TestKiagnoseWarnings(t *testing.T) {
	offline(t)
	archive, err := txtar.ParseFile("testdata/good/kiagnose-document.txtar")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "doc.yaml"), archive.Files[0].Data, 0o666); err != nil {
		t.Fatal(err)
	}
	plans, warnings, problems := Plans(t.Context(), dir, []string{"doc.yaml"})
	if len(plans) != 1 || len(problems) > 0 {
		t.Fatalf("%d plans, problems:\n%v", len(plans), problems)
	}
	want := `doc.yaml:8:3: warning: data."spec.image": has no effect: the checkup has images of its own
doc.yaml:10:3: warning: data."spec.clusterRoles": has no effect: the checkup needs rights in namespaces only, and brings its own roles
doc.yaml:12:3: warning: data."spec.param.network_attachment_definition_namespace": is deprecated: write spec.param.networkAttachmentDefinitionNamespace
doc.yaml:13:3: warning: data."spec.param.network_attachment_definition_name": is deprecated: write spec.param.networkAttachmentDefinitionName
doc.yaml:14:3: warning: data."spec.param.source_node": is deprecated: write spec.param.sourceNode
doc.yaml:15:3: warning: data."spec.param.target_node": is deprecated: write spec.param.targetNode
doc.yaml:16:3: warning: data."spec.param.sample_duration_seconds": Kubernetes accepts only strings: write "300"
doc.yaml:16:3: warning: data."spec.param.sample_duration_seconds": is deprecated: write spec.param.sampleDurationSeconds
doc.yaml:17:3: warning: data."spec.param.max_desired_latency_milliseconds": Kubernetes accepts only strings: write "50"
doc.yaml:17:3: warning: data."spec.param.max_desired_latency_milliseconds": is deprecated: write spec.param.maxDesiredLatencyMilliseconds
doc.yaml:19:1: warning: Job latency-checkup1 is ignored: checkplan does not need it to run the checkup
`
	if diff := cmp.Diff(want, warnings.String()); diff != "" {
		t.Error(diff)
	}
}

// What a ConfigMap has no key for is as in a plan that does not say it: the
// defaults that pkg/kiagnose has, because task images link no CUE, are the schema's.
func TestKiagnoseDefaults(t *testing.T) {
	offline(t)
	dir := t.TempDir()
	for name, data := range map[string]string{
		"plan.yaml": `{apiVersion: checkplan.dev/v1alpha1, kind: Plan, metadata: {name: a},
  spec: {checks: {latency: {vmLatency: {networks: [{namespace: ns, name: net}], timeouts: {probe: 5m}, kiagnose: {name: b}}}}}}`,
		"checkup.yaml": `{kind: ConfigMap, metadata: {name: b},
  data: {spec.timeout: 5m, spec.param.networkAttachmentDefinitionNamespace: ns, spec.param.networkAttachmentDefinitionName: net}}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	plans, _, problems := Plans(t.Context(), dir, []string{"plan.yaml", "checkup.yaml"})
	if len(plans) != 2 {
		t.Fatalf("%d plans, problems:\n%v", len(plans), problems)
	}
	plans[1].Name = plans[0].Name
	if diff := cmp.Diff(plans[0], plans[1]); diff != "" {
		t.Errorf("(-plan +checkup)\n%s", diff)
	}
	if got, want := plans[1].Checks["latency"].Spec.(*vmlatency.Spec).Timeouts.Setup, plans[0].Checks["latency"].Spec.(*vmlatency.Spec).Timeouts.Setup; got != want || want == 0 {
		t.Errorf("setup %s, want the schema's %s", got, want)
	}
}

func TestPlanName(t *testing.T) {
	seen := map[string]bool{}
	for _, object := range []string{"a", "a.b", "a-b", "a-probe", "a.b.c", "x123456789012345678901234567890123456789012345", "123456789012345678901234567890123456.-.8901234567"} {
		name := planName(object)
		p := &checkup.Plan{Name: name, Checks: map[string]checkup.Check{}}
		for _, problem := range kinds.Problems(p) {
			if problem.Rule == "plan-name" {
				t.Errorf("%s: %s", object, problem)
			}
		}
		if seen[name] {
			t.Errorf("%s: %s is another object's, too", object, name)
		}
		seen[name] = true
	}
}

// TestConfigMaps: a kiagnose ConfigMap is loaded as its file has it, old keys and keys
// without effect included, and numbers as strings.
func TestConfigMaps(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "checkup.yaml"), []byte(`apiVersion: v1
kind: ConfigMap
metadata: {name: latency, namespace: kiagnose}
data:
  spec.image: quay.io/kiagnose/kubevirt-vm-latency:main
  spec.timeout: 5m
  spec.param.network_attachment_definition_namespace: default
  spec.param.network_attachment_definition_name: br10
  spec.param.sample_duration_seconds: 300
`), 0o600); err != nil {
		t.Fatal(err)
	}
	want := map[checkup.ConfigMapRef]map[string]string{{Namespace: "kiagnose", Name: "latency"}: {
		"spec.image":   "quay.io/kiagnose/kubevirt-vm-latency:main",
		"spec.timeout": "5m",
		"spec.param.network_attachment_definition_namespace": "default",
		"spec.param.network_attachment_definition_name":      "br10",
		"spec.param.sample_duration_seconds":                 "300",
	}}
	if diff := cmp.Diff(want, Read(t.Context(), dir, []string{"checkup.yaml"}).ConfigMaps); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := Read(t.Context(), "../..", []string{"plans/smoke.cue"}).ConfigMaps; len(got) != 0 {
		t.Errorf("a plan of CUE is no ConfigMap: %v", got)
	}
}
