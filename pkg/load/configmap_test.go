// SPDX-License-Identifier: Apache-2.0

package load

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// TestConfigMaps: a kiagnose ConfigMap is told as its file has it, old keys and keys
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
	if diff := cmp.Diff(want, ConfigMaps(dir, []string{"checkup.yaml"})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := ConfigMaps("../..", []string{"plans/smoke.cue"}); len(got) != 0 {
		t.Errorf("a plan of CUE is no ConfigMap: %v", got)
	}
}
