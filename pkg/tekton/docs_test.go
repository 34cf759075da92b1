// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"os"
	"regexp"
	"slices"
	"testing"

	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// The objects that docs/gitops.md shows decode strictly, and Tekton accepts its Task.
func TestObjectsOfDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/gitops.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, block := range regexp.MustCompile("(?s)\n```yaml\n(.*?)\n```\n").FindAllSubmatch(text, -1) {
		for _, document := range documents(block[1]) {
			m := kindLine.FindSubmatch(document)
			if m == nil {
				continue // a kustomization, or a workflow
			}
			kind := string(m[1])
			if slices.Contains([]string{"OCIRepository", "Kustomization", "Application"}, kind) {
				continue // of Flux and Argo CD
			}
			object := map[string]runtime.Object{
				"Role": &rbacv1.Role{}, "Task": &pipelinev1.Task{}, "PipelineRun": &pipelinev1.PipelineRun{},
				"ValidatingAdmissionPolicy":        &admissionv1.ValidatingAdmissionPolicy{},
				"ValidatingAdmissionPolicyBinding": &admissionv1.ValidatingAdmissionPolicyBinding{},
			}[kind]
			if object == nil {
				t.Fatalf("unexpected kind %s", kind)
			}
			if err := yaml.UnmarshalStrict(document, object); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
			if err := validateAll(object); err != nil {
				t.Error(err)
			}
			seen[kind] = true
		}
	}
	if len(seen) != 5 {
		t.Errorf("found %v", seen)
	}
}
