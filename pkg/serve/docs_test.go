// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile("../../docs/" + path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestManifest: the manifests give the server the two rights that it uses, in a namespace or in all, and a container
// without any privilege.
func TestManifest(t *testing.T) {
	kinds := map[string]int{}
	rights := func(rules []rbacv1.PolicyRule) {
		if len(rules) != 1 || !slices.Equal(rules[0].Resources, []string{"configmaps"}) ||
			!slices.Equal(rules[0].Verbs, []string{"get", "list"}) || !slices.Equal(rules[0].APIGroups, []string{""}) {
			t.Errorf("rights %v", rules)
		}
	}
	for _, document := range strings.Split(read(t, "serve/kubernetes.yaml")+"\n---\n"+read(t, "serve/all-namespaces.yaml"), "\n---\n") {
		var head struct{ Kind string }
		if err := yaml.Unmarshal([]byte(document), &head); err != nil {
			t.Fatal(err)
		}
		kinds[head.Kind]++
		strict := func(v any) {
			if err := yaml.UnmarshalStrict([]byte(document), v); err != nil {
				t.Fatalf("%s: %v", head.Kind, err)
			}
		}
		switch head.Kind {
		case "ServiceAccount":
			strict(&corev1.ServiceAccount{})
		case "Service":
			strict(&corev1.Service{})
		case "RoleBinding":
			strict(&rbacv1.RoleBinding{})
		case "Role":
			var role rbacv1.Role
			strict(&role)
			rights(role.Rules)
		case "ClusterRole":
			var role rbacv1.ClusterRole
			strict(&role)
			rights(role.Rules)
		case "ClusterRoleBinding":
			strict(&rbacv1.ClusterRoleBinding{})
		case "Deployment":
			var d appsv1.Deployment
			strict(&d)
			pod := d.Spec.Template.Spec
			c := pod.Containers[0].SecurityContext
			if !*pod.SecurityContext.RunAsNonRoot || pod.SecurityContext.RunAsUser != nil || !*c.ReadOnlyRootFilesystem ||
				*c.AllowPrivilegeEscalation || len(c.Capabilities.Drop) != 1 || c.Capabilities.Drop[0] != "ALL" ||
				pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
				t.Error("the pod is not restricted")
			}
			if pod.Containers[0].Resources.Limits.Memory().IsZero() {
				t.Error("the pod has no memory limit")
			}
		default:
			t.Errorf("kind %s", head.Kind)
		}
	}
	if len(kinds) != 7 {
		t.Errorf("kinds %v", kinds)
	}
}

// TestMetricNames: alerts, their tests and the dashboard use only metrics that the documents name.
func TestMetricNames(t *testing.T) {
	known := read(t, "report.md") + read(t, "serve.md")
	dashboard := read(t, "serve/dashboard.json")
	d := json.NewDecoder(bytes.NewReader([]byte(dashboard)))
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("dashboard.json: %v", err)
	}
	names := regexp.MustCompile(`checkplan_[a-z_]+`).FindAllString(dashboard+read(t, "serve/alerts.yaml")+read(t, "serve/alerts_test.yaml"), -1)
	if len(names) < 20 {
		t.Errorf("only %d names", len(names))
	}
	for _, name := range names {
		if !strings.Contains(known, "`"+name+"`") {
			t.Errorf("no document names the metric %s", name)
		}
	}
}

// TestMetricsAreDocumented: each metric of the server is in the documents.
func TestMetricsAreDocumented(t *testing.T) {
	known := read(t, "report.md") + read(t, "serve.md")
	body := newSite(t).ask("GET", "/metrics").Body.String()
	types := regexp.MustCompile(`(?m)^# TYPE (\S+)`).FindAllStringSubmatch(body, -1)
	if len(types) < 5 {
		t.Fatalf("the metrics are %s", body)
	}
	for _, m := range types {
		if !strings.Contains(known, "`"+m[1]+"`") {
			t.Errorf("no document names the metric %s", m[1])
		}
	}
}
