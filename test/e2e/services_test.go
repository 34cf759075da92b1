// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/fleet"
	"github.com/checkplan/checkplan/pkg/scheduling"
	"github.com/checkplan/checkplan/pkg/tekton"
)

// servicesNamespace has the Services of TestServices; the plan "services" names it.
const servicesNamespace = "e2e-services"

// TestServices: Services with endpoints work from each node, one without is refused, and one whose policy wants an
// endpoint of the node is dropped where there is none. When one node has lost the rule of one Service, this node and
// this Service are found, by connecting and by reading the rules. A namespace that refuses agents on the host network
// still gets the connections.
func TestServices(t *testing.T) {
	t.Parallel()
	address := serveServices(t)

	// This namespace has no label of pod security, and so admits agents on the host network.
	run := func(wantCode int) (r *checkup.Report, rules, services checkup.CheckReport) {
		r = runPlan(t, "services", wantCode, "--namespace", servicesNamespace)
		return r, r.Checks[0], r.Checks[1]
	}
	r, rules, services := run(0)
	for _, c := range []checkup.CheckReport{rules, services} {
		if c.Counts.Pass != c.Counts.Expected || c.Counts.Expected == 0 || len(c.Findings) > 0 {
			t.Errorf("want that all pass:\n%s", describe(t, r))
		}
	}
	if text := describe(t, r); !strings.Contains(text, "are refused (no endpoint)") || !strings.Contains(text, "are dropped (no endpoint on the node)") {
		t.Errorf("not every expectation was tested:\n%s", text)
	}
	checkResults(t, r)

	faultID(t, "delete-service-rules", "--node", "worker-2", "--service", address)
	broken, rules, services := run(3)
	found := services.Findings
	if len(found) != 1 || found[0].Cause != checkup.CausePair || found[0].Subject != "worker-2 -> "+servicesNamespace+"/web" ||
		found[0].Confirmation != checkup.Confirmed {
		t.Errorf("want one finding, of web from worker-2:\n%s", describe(t, broken))
	}
	if services.Counts.Fail != 1 || services.Counts.Unmeasured != 0 {
		t.Errorf("want one failed pair:\n%s", describe(t, broken))
	}
	found = rules.Findings
	if len(found) != 1 || found[0].Cause != checkup.CausePair || found[0].Subject != "worker-2 -> "+servicesNamespace+"/web" {
		t.Errorf("want one finding, of the rules of worker-2 for web:\n%s", describe(t, broken))
	}
	if rules.Counts.Fail != 1 || rules.Counts.Unmeasured != 0 || len(rules.Units) != 1 || rules.Units[0].Cause.Reason != checkup.ReasonMissing {
		t.Errorf("want one failed rule set, without rules:\n%s", describe(t, broken))
	}

	// The namespace of the other tests is restricted.
	refused := runPlan(t, "services", 3)
	rules, services = refused.Checks[0], refused.Checks[1]
	if services.Counts.Fail != 1 || services.Counts.Unmeasured != 0 {
		t.Errorf("want that connections are measured:\n%s", describe(t, refused))
	}
	if rules.Counts.Unmeasured != rules.Counts.Expected || rules.Counts.Expected == 0 || len(rules.Units) == 0 ||
		!strings.Contains(rules.Units[0].Cause.Message, "violates PodSecurity") {
		t.Errorf("want that no rules are read, because of pod security:\n%s", describe(t, refused))
	}
	nothingLeft(t, r.RunUID, broken.RunUID, refused.RunUID)
}

// TestServiceCanary: new Services of every policy lead from each node to the endpoints that they must, and to each of
// them. When one node loses the rule of one of them while the run starts, this node and this Service are found. Nothing
// is left behind, of a run that was cancelled neither.
func TestServiceCanary(t *testing.T) {
	t.Parallel()
	clean := runPlan(t, "canary", 0)
	c := clean.Checks[0]
	if c.Counts.Pass != c.Counts.Expected || c.Counts.Expected == 0 || len(c.Findings) > 0 {
		t.Errorf("want that all pass:\n%s", describe(t, clean))
	}
	// From each node to four responders, one that is not ready, and 8 Services, in two families, by TCP and UDP.
	nodes, err := cluster(t).Kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if want := len(nodes.Items) * (4 + 1 + 8) * 2 * 2; c.Counts.Expected != want {
		t.Errorf("%d pairs, want %d:\n%s", c.Counts.Expected, want, describe(t, clean))
	}
	text := describe(t, clean)
	for _, want := range []string{"one of 4", "1, dropped", "refused"} {
		if !strings.Contains(text, want) {
			t.Errorf("nothing is expected to be %q:\n%s", want, text)
		}
	}
	checkResults(t, clean)

	running := start(t, "run", plans, "--plan", "canary", "--output", "json")
	running.started(t)
	address := canaryAddress(t, clean.RunUID)
	// Not on the node of TestServices: clearing such a fault writes all rules of the node. kube-proxy may not have written
	// the rule yet.
	eventually(t, 30*time.Second, func() error {
		out, err := sandboxCommand("fault", "add", "delete-service-rules", "--node", "worker-3", "--service", address).Output()
		if err != nil {
			return err
		}
		id := strings.TrimSpace(string(out))
		t.Cleanup(func() { clearFault(t, id) })
		return nil
	})
	if code := running.wait(t); code != 3 {
		t.Errorf("exit code %d, want 3: %s", code, running.stderr.String())
	}
	broken := reportOf(t, running)
	c = broken.Checks[0]
	if len(c.Findings) != 1 || c.Findings[0].Cause != checkup.CausePair || c.Findings[0].Subject != "worker-3 -> cluster-ip" ||
		c.Findings[0].Confirmation != checkup.Confirmed || c.Counts.Fail != 1 || c.Counts.Unmeasured != 0 {
		t.Errorf("want one failed pair, of cluster-ip from worker-3:\n%s", describe(t, broken))
	}

	// A killed run: the pod of the probe task is deleted, with it the responders, and with these their Services.
	cancelled := start(t, "run", plans, "--plan", "canary")
	name := cancelled.started(t)
	uid := string(pipelineRun(t, name).UID)
	eventually(t, 2*time.Minute, func() error { return probing(t, uid) })
	cancel(t, name, pipelinev1.PipelineRunSpecStatusCancelled)
	if code := cancelled.wait(t); code != 1 {
		t.Errorf("exit code %d, want 1: %s", code, cancelled.stderr.String())
	}
	nothingLeft(t, clean.RunUID, broken.RunUID, uid)
}

// canaryAddress waits for the Service cluster-ip of a run other than these, and returns its first cluster IP and port.
func canaryAddress(t *testing.T, except ...string) (address string) {
	t.Helper()
	eventually(t, 2*time.Minute, func() error {
		list, err := cluster(t).Kube.CoreV1().Services(cluster(t).Namespace).List(t.Context(), metav1.ListOptions{
			LabelSelector: fmt.Sprintf("%s=%s", checkup.LabelRole, checkup.RoleService),
		})
		if err != nil {
			return err
		}
		for _, s := range list.Items {
			if !slices.Contains(except, s.Labels[checkup.LabelRun]) && s.Spec.Selector[checkup.LabelIn+"cluster-ip"] != "" {
				address = net.JoinHostPort(s.Spec.ClusterIP, fmt.Sprint(s.Spec.Ports[0].Port))
				return nil
			}
		}
		return fmt.Errorf("no Service of a new run among %d", len(list.Items))
	})
	return address
}

// serveServices makes the namespace with its Services, and returns the first cluster IP and port of web.
func serveServices(t *testing.T) (address string) {
	t.Helper()
	core := cluster(t).Kube.CoreV1()
	ctx := t.Context()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: servicesNamespace}}
	if _, err := core.Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		sandbox(t, "kubectl", "delete", "--wait=false", "namespace", servicesNamespace)
	})
	deploy := func(name string, replicas int32) {
		labels := map[string]string{"app": name}
		deployment := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: appsv1.DeploymentSpec{
				Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec: corev1.PodSpec{Containers: []corev1.Container{{
						Name: "server", Image: tekton.AgentImage(tekton.Options{}), ImagePullPolicy: corev1.PullIfNotPresent,
						Command: []string{"/ko-app/agent"}, Args: []string{"respond"},
						Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: fleet.HTTPPort}},
						ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
							TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("http")},
						}},
					}}},
				},
			},
		}
		scheduling.Restrict(&deployment.Spec.Template.Spec)
		if _, err := cluster(t).Kube.AppsV1().Deployments(servicesNamespace).Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	deploy("web", 2)
	deploy("one", 1)
	prefer := corev1.IPFamilyPolicyPreferDualStack
	for name, spec := range map[string]corev1.ServiceSpec{
		"web":   {Selector: map[string]string{"app": "web"}},
		"one":   {Selector: map[string]string{"app": "one"}},
		"local": {Selector: map[string]string{"app": "one"}, InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyLocal)},
		"empty": {Selector: map[string]string{"app": "none"}},
	} {
		spec.IPFamilyPolicy = &prefer
		spec.Ports = []corev1.ServicePort{{Name: "tcp", Port: 80, TargetPort: intstr.FromString("http")}}
		service, err := core.Services(servicesNamespace).Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if name == "web" {
			address = net.JoinHostPort(service.Spec.ClusterIP, "80")
		}
	}
	eventually(t, 90*time.Second, func() error {
		list, err := cluster(t).Kube.AppsV1().Deployments(servicesNamespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, d := range list.Items {
			if d.Status.ReadyReplicas != *d.Spec.Replicas {
				return fmt.Errorf("%s: %d of %d pods are ready", d.Name, d.Status.ReadyReplicas, *d.Spec.Replicas)
			}
		}
		return nil
	})
	return address
}
