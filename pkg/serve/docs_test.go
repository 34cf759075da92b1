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
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
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

// TestServiceMonitor: the Prometheus Operator finds the Service and its port by the ServiceMonitor, and keeps the label
// namespace of the metrics. The fields are those of monitoring.coreos.com/v1.
func TestServiceMonitor(t *testing.T) {
	var m struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name   string            `json:"name"`
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
		Spec struct {
			Selector  metav1.LabelSelector `json:"selector"`
			Endpoints []struct {
				Port          string `json:"port"`
				Path          string `json:"path"`
				HonorLabels   bool   `json:"honorLabels"`
				Interval      string `json:"interval"`
				ScrapeTimeout string `json:"scrapeTimeout"`
			} `json:"endpoints"`
		} `json:"spec"`
	}
	if err := yaml.UnmarshalStrict([]byte(read(t, "serve/servicemonitor.yaml")), &m); err != nil {
		t.Fatal(err)
	}
	if m.APIVersion != "monitoring.coreos.com/v1" || m.Kind != "ServiceMonitor" || m.Metadata.Name == "" || len(m.Spec.Endpoints) != 1 {
		t.Fatalf("%+v", m)
	}
	selector, err := metav1.LabelSelectorAsSelector(&m.Spec.Selector)
	if err != nil || selector.Empty() {
		t.Fatalf("selector %v, %v", selector, err)
	}
	e := m.Spec.Endpoints[0]
	interval, bad := time.ParseDuration(e.Interval)
	timeout, worse := time.ParseDuration(e.ScrapeTimeout)
	if bad != nil || worse != nil || timeout > interval || timeout < requestTime {
		t.Errorf("scraped every %s for at most %s, want a timeout from %s, below the interval", e.Interval, e.ScrapeTimeout, requestTime)
	}
	if !e.HonorLabels {
		t.Error("the label namespace of planner serve --all-namespaces is lost")
	}
	if got := newSite(t).ask("GET", e.Path); got.Code != 200 || !strings.Contains(got.Body.String(), "checkplan_run_verdict") {
		t.Errorf("path %s: status %d", e.Path, got.Code)
	}
	found := 0
	for _, document := range strings.Split(read(t, "serve/kubernetes.yaml"), "\n---\n") {
		var service corev1.Service
		if !strings.Contains(document, "\nkind: Service\n") {
			continue
		}
		if err := yaml.Unmarshal([]byte(document), &service); err != nil {
			t.Fatal(err)
		}
		if selector.Matches(labels.Set(service.Labels)) &&
			slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == e.Port }) {
			found++
		}
	}
	if found != 1 {
		t.Errorf("%d Services of kubernetes.yaml are scraped, want 1", found)
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
