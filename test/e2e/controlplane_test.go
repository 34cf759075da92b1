// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cost"
	"github.com/checkplan/checkplan/pkg/judge/judgetest"
	"github.com/checkplan/checkplan/pkg/record"
)

// Runs of control-plane plans have a namespace of their own, which admits pods on the host network. The Secret contains
// etcd's client certificate, like the one that kubeadm creates for the API server.
const (
	hostNamespace = "checkplan-host"
	etcdSecret    = "etcd-client"
)

// aggregated is the sandbox's aggregated API server.
var aggregated = struct{ namespace, name string }{"sandbox-aggregated", "aggregated"}

// controlPlane prepares the namespace. The sandbox must have two API servers.
func controlPlane(t *testing.T) {
	t.Helper()
	c := cluster(t)
	if pods := componentPods(t, "kube-apiserver"); len(pods) < 2 {
		t.Fatalf("%d API servers, want 2: start the sandbox with --control-planes 2 --with aggregated", len(pods))
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: hostNamespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"}}}
	if _, err := c.Kube.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	dir := filepath.Join(filepath.Dir(os.Getenv("KUBECONFIG")), "pki")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: etcdSecret}, Type: corev1.SecretTypeTLS, Data: map[string][]byte{}}
	for key, file := range map[string]string{corev1.TLSCertKey: "apiserver-etcd-client.crt", corev1.TLSPrivateKeyKey: "apiserver-etcd-client.key"} {
		b, err := os.ReadFile(dir + "/" + file)
		if err != nil {
			t.Fatal(err)
		}
		secret.Data[key] = b
	}
	if _, err := c.Kube.CoreV1().Secrets(hostNamespace).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

func componentPods(t *testing.T, component string) []corev1.Pod {
	t.Helper()
	pods, err := cluster(t).Kube.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{LabelSelector: "component=" + component})
	if err != nil {
		t.Fatal(err)
	}
	return pods.Items
}

// runHost runs a plan in the namespace for host-network agents.
func runHost(t *testing.T, plan string, wantCode int, args ...string) *checkup.Report {
	t.Helper()
	return runPlan(t, plan, wantCode, append([]string{"--namespace", hostNamespace}, args...)...)
}

// connectivityCheck has the fields of a PodNetworkConnectivityCheck that the tests read.
type connectivityCheck struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		SourcePod      string `json:"sourcePod"`
		TargetEndpoint string `json:"targetEndpoint"`
		TLSClientCert  struct {
			Name string `json:"name"`
		} `json:"tlsClientCert"`
	} `json:"spec"`
	Status struct {
		Successes []logEntry `json:"successes"`
		Failures  []logEntry `json:"failures"`
		Outages   []struct {
			Start     time.Time  `json:"start"`
			End       *time.Time `json:"end"`
			StartLogs []logEntry `json:"startLogs"`
			EndLogs   []logEntry `json:"endLogs"`
			Message   string     `json:"message"`
		} `json:"outages"`
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

type logEntry struct {
	Time    time.Time `json:"time"`
	Success bool      `json:"success"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Latency string    `json:"latency"`
}

func (c connectivityCheck) reachable() string {
	for _, condition := range c.Status.Conditions {
		if condition.Type == "Reachable" {
			return string(condition.Status)
		}
	}
	return "none"
}

func (c connectivityCheck) String() string {
	return fmt.Sprintf("%s (%s -> %s)", c.Metadata.Name, c.Spec.SourcePod, c.Spec.TargetEndpoint)
}

// connectivityChecks lists all PodNetworkConnectivityChecks of the namespace.
func connectivityChecks(t *testing.T) []connectivityCheck {
	t.Helper()
	var list struct{ Items []connectivityCheck }
	eventually(t, 30*time.Second, func() error { // an API server may be stopping
		raw, err := cluster(t).Kube.Discovery().RESTClient().Get().
			AbsPath("/apis/controlplane.operator.openshift.io/v1alpha1/namespaces/" + hostNamespace + "/podnetworkconnectivitychecks").DoRaw(t.Context())
		if err != nil {
			return err
		}
		return json.Unmarshal(raw, &list)
	})
	return list.Items
}

// check returns the PodNetworkConnectivityCheck of a source pod and a target.
func check(t *testing.T, sourcePod, target string) connectivityCheck {
	t.Helper()
	for _, c := range connectivityChecks(t) {
		if c.Spec.SourcePod == sourcePod && c.Spec.TargetEndpoint == target {
			return c
		}
	}
	t.Fatalf("no PodNetworkConnectivityCheck from %s to %s", sourcePod, target)
	return connectivityCheck{}
}

// forgetChecks deletes the PodNetworkConnectivityChecks of earlier tests.
func forgetChecks(t *testing.T) {
	t.Helper()
	err := cluster(t).Kube.Discovery().RESTClient().Delete().
		AbsPath("/apis/controlplane.operator.openshift.io/v1alpha1/namespaces/" + hostNamespace + "/podnetworkconnectivitychecks").Do(t.Context()).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}

// topology is the control plane, read without the code under test.
type topology struct {
	apiservers, aggregated, etcds []corev1.Pod
	apiEndpoints, apiService      []string // host:port
	aggEndpoints, aggService      []string
}

func lookAround(t *testing.T) topology {
	t.Helper()
	c := cluster(t)
	top := topology{apiservers: componentPods(t, "kube-apiserver"), etcds: componentPods(t, "etcd")}
	pods, err := c.Kube.CoreV1().Pods(aggregated.namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		if p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
			top.aggregated = append(top.aggregated, p)
		}
	}
	read := func(namespace, name string) (endpoints, addresses []string) {
		service, err := c.Kube.CoreV1().Services(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, ip := range service.Spec.ClusterIPs {
			addresses = append(addresses, net.JoinHostPort(ip, fmt.Sprint(service.Spec.Ports[0].Port)))
		}
		slices, err := c.Kube.DiscoveryV1().EndpointSlices(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range slices.Items {
			for _, e := range s.Endpoints {
				endpoints = append(endpoints, net.JoinHostPort(e.Addresses[0], fmt.Sprint(*s.Ports[0].Port)))
			}
		}
		return endpoints, addresses
	}
	top.apiEndpoints, top.apiService = read("default", "kubernetes")
	top.aggEndpoints, top.aggService = read(aggregated.namespace, aggregated.name)
	if len(top.apiservers) < 2 || len(top.etcds) < 2 || len(top.aggregated) < 2 || len(top.apiEndpoints) < 2 || len(top.aggEndpoints) < 2 {
		t.Fatalf("%d API servers, %d etcd members, %d aggregated API servers, endpoints %v and %v: want two of each",
			len(top.apiservers), len(top.etcds), len(top.aggregated), top.apiEndpoints, top.aggEndpoints)
	}
	return top
}

func hosts(pods []corev1.Pod, port int) []string {
	var all []string
	for _, p := range pods {
		all = append(all, net.JoinHostPort(p.Status.HostIP, fmt.Sprint(port)))
	}
	return all
}

// goals returns the pairs of the seven goals of the document, as source pods and targets. The first goal is a property
// of all pairs.
func (top topology) goals() map[string]struct {
	from []corev1.Pod
	to   []string
} {
	type goal = struct {
		from []corev1.Pod
		to   []string
	}
	return map[string]goal{
		"2: each API server to each aggregated endpoint":     {top.apiservers, top.aggEndpoints},
		"3: each API server to each etcd":                    {top.apiservers, hosts(top.etcds, 2379)},
		"4: each API server to the aggregated service IP":    {top.apiservers, top.aggService},
		"5: each aggregated one to each API server host IP":  {top.aggregated, hosts(top.apiservers, 6443)},
		"6: each aggregated one to each API server endpoint": {top.aggregated, top.apiEndpoints},
		"7: each aggregated one to each etcd":                {top.aggregated, hosts(top.etcds, 2379)},
		"beyond: each to the default service":                {append(slices.Clone(top.apiservers), top.aggregated...), top.apiService},
	}
}

// TestControlPlane: every pair of the seven goals has an object, and all are reachable. What explain predicts is what
// runs.
func TestControlPlane(t *testing.T) {
	controlPlane(t)
	forgetChecks(t)
	explain := start(t, "explain", plans, "--plan", "api", "--namespace", hostNamespace, "--output", "json")
	if code := explain.wait(t); code != 0 {
		t.Fatalf("explain: exit code %d, want 0: %s", code, explain.stderr.String())
	}
	var explained struct {
		Checks []struct{ cost.Cost } `json:"checks"`
	}
	if err := json.Unmarshal(explain.stdout.Bytes(), &explained); err != nil {
		t.Fatal(err)
	}
	r := runHost(t, "api", 0)
	if r.Verdict != checkup.RunPass || len(findings(r)) > 0 {
		t.Errorf("want pass:\n%s", describe(t, r))
	}
	if got, want := r.Counts.Expected, explained.Checks[0].Pairs; got != want || r.Checks[0].Sent != explained.Checks[0].Packets {
		t.Errorf("explain predicts %d pairs and %d measurements; %d and %d were made", want, explained.Checks[0].Packets, got, r.Checks[0].Sent)
	}
	checks := connectivityChecks(t)
	if len(checks) != r.Counts.Expected {
		t.Errorf("%d objects for %d pairs", len(checks), r.Counts.Expected)
	}
	for _, c := range checks {
		if c.reachable() != "True" || len(c.Status.Successes) == 0 || len(c.Status.Failures)+len(c.Status.Outages) > 0 {
			t.Errorf("%s: Reachable is %s, with %d successes, %d failures, %d outages", c, c.reachable(), len(c.Status.Successes), len(c.Status.Failures), len(c.Status.Outages))
		}
		for _, s := range c.Status.Successes {
			if d, err := time.ParseDuration(s.Latency); err != nil || d <= 0 || !s.Success {
				t.Errorf("%s: %+v", c, s)
			}
		}
	}
	if r := runHost(t, "etcd", 0); r.Verdict != checkup.RunPass {
		t.Errorf("want pass:\n%s", describe(t, r))
	}
	for name, goal := range lookAround(t).goals() {
		for _, source := range goal.from {
			for _, target := range goal.to {
				c := check(t, source.Name, target)
				if strings.HasSuffix(target, ":2379") != (c.Spec.TLSClientCert.Name == etcdSecret) {
					t.Errorf("goal %s: %s has the client certificate %q", name, c, c.Spec.TLSClientCert.Name)
				}
			}
		}
	}
	columns := sandbox(t, "kubectl", "get", "podnetworkconnectivitychecks", "--namespace", hostNamespace)
	if head, _, _ := strings.Cut(columns, "\n"); !slices.Equal(strings.Fields(head), []string{"NAME", "REACHABLE", "SINCE"}) {
		t.Errorf("kubectl get shows %q", head)
	}
	checkResults(t, r)
	nothingLeft(t)
}

// faultID adds a fault and returns its ID, and the messages of the sandbox, which contain times. The fault is cleared
// when the test ends.
func faultID(t *testing.T, args ...string) (id, times string) {
	t.Helper()
	c := sandboxCommand(append([]string{"fault", "add"}, args...)...)
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("fault add %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	id = strings.TrimSpace(string(out))
	clearedFaults.Delete(addedFault{t, id})
	t.Cleanup(func() {
		if _, done := clearedFaults.Load(addedFault{t, id}); !done {
			clearFault(t, id)
		}
	})
	return id, stderr.String()
}

// clearedFaults has as keys those that tests have cleared: a fault of another test may have the same ID by now.
var clearedFaults sync.Map

type addedFault struct {
	by *testing.T
	id string
}

// clearFault clears one fault, if it still exists, and returns the messages of the sandbox.
func clearFault(t *testing.T, id string) string {
	t.Helper()
	clearedFaults.Store(addedFault{t, id}, true)
	for line := range strings.Lines(sandbox(t, "fault", "list")) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] == id {
			return sandbox(t, "fault", "clear", id)
		}
	}
	return ""
}

// since parses the time that follows "<what> since" in the messages of the sandbox.
func since(t *testing.T, said, what string) time.Time {
	t.Helper()
	_, rest, ok := strings.Cut(said, what+" since ")
	words := strings.Fields(rest + " none")
	at, err := time.Parse(time.RFC3339Nano, strings.Trim(words[0], ",."))
	if !ok || err != nil {
		t.Fatalf("no time after \"%s since\" in %q: %v", what, said, err)
	}
	return at
}

// broken runs the plan under a fault, checks that it fails, and returns its report and the objects of the failed pairs.
func broken(t *testing.T, cause checkup.FindingCause, subject string) (*checkup.Report, []connectivityCheck) {
	t.Helper()
	r := runHost(t, "api", 3)
	found(t, r, cause, subject)
	return r, outages(t, r)
}

// found checks that the run failed, and checks the first finding.
func found(t *testing.T, r *checkup.Report, cause checkup.FindingCause, subject string) {
	t.Helper()
	all := findings(r)
	var got []string
	for _, f := range all {
		got = append(got, judgetest.Kind(f))
	}
	if r.Verdict != checkup.RunFail || len(all) == 0 || all[0].Cause != cause || !strings.Contains(all[0].Subject+" "+all[0].Message, subject) {
		t.Errorf("want a first finding %s about %s; got %q:\n%s", cause, subject, got, describe(t, r))
	}
}

// outages returns the objects of the failed pairs, and checks that each has an outage. An outage that has not ended
// makes the object's Reachable False.
func outages(t *testing.T, r *checkup.Report) []connectivityCheck {
	t.Helper()
	failed := map[string]checkup.Unit{}
	for _, c := range r.Checks[0].Units {
		if c.Verdict == checkup.Fail {
			failed[c.Object] = c
		}
	}
	if len(failed) == 0 || len(failed) != r.Counts.Fail {
		t.Errorf("%d connections failed, but %d pairs", len(failed), r.Counts.Fail)
	}
	var objects []connectivityCheck
	for _, c := range connectivityChecks(t) {
		connection, fails := failed[c.Metadata.Name]
		if !fails {
			if c.reachable() != "True" || len(c.Status.Outages) > 0 {
				t.Errorf("%s passed, but its object is Reachable %s with %d outages", c, c.reachable(), len(c.Status.Outages))
			}
			continue
		}
		objects = append(objects, c)
		outages := c.Status.Outages
		if len(outages) == 0 || len(outages) != len(connection.Outages) || len(c.Status.Failures) == 0 || len(outages[0].StartLogs) == 0 {
			t.Errorf("%s: %d failures and outages %+v; the report has %+v", c, len(c.Status.Failures), outages, connection.Outages)
			continue
		}
		last := connection.Outages[len(connection.Outages)-1]
		if want := map[bool]string{true: "False", false: "True"}[last.End.IsZero()]; c.reachable() != want {
			t.Errorf("%s is Reachable %s, want %s: %+v", c, c.reachable(), want, connection.Outages)
		}
	}
	if len(objects) != len(failed) {
		t.Errorf("%d of %d failed pairs have an object", len(objects), len(failed))
	}
	nothingLeft(t)
	return objects
}

func TestControlPlaneFaults(t *testing.T) {
	controlPlane(t)
	top := lookAround(t)
	// The cluster needs what runs beside the first one, so the faults are on the second.
	first, second := top.apiservers[0], top.apiservers[1]
	restored := func(t *testing.T) {
		t.Helper()
		r := runHost(t, "api", 0)
		for _, c := range connectivityChecks(t) {
			if c.reachable() != "True" {
				t.Errorf("%s is Reachable %s after the fault was cleared, want True:\n%s", c, c.reachable(), describe(t, r))
			}
			for _, o := range c.Status.Outages {
				if o.End == nil || len(o.EndLogs) == 0 {
					t.Errorf("%s: an outage has no end: %+v", c, o)
				}
			}
		}
	}
	t.Run("one pair", func(t *testing.T) {
		forgetChecks(t)
		id, _ := faultID(t, "drop", "--from", second.Spec.NodeName, "--to", first.Spec.NodeName, "--src", "hosts", "--dst", "hosts", "--protocol", "tcp", "--dport", "2379")
		_, unreachable := broken(t, checkup.CausePair, second.Spec.NodeName)
		for _, c := range unreachable {
			if c.Spec.SourcePod != second.Name || c.Spec.TargetEndpoint != net.JoinHostPort(first.Status.HostIP, "2379") {
				t.Errorf("%s is unreachable, but is not the pair that is cut", c)
			}
		}
		clearFault(t, id)
		restored(t)
	})
	t.Run("an endpoint behind the service", func(t *testing.T) {
		forgetChecks(t)
		victim := top.aggregated[0]
		id, _ := faultID(t, "drop", "--src", "any", "--dst", victim.Status.PodIP, "--protocol", "tcp", "--dport", "8443")
		_, unreachable := broken(t, checkup.CauseTarget, victim.Spec.NodeName)
		if !slices.ContainsFunc(unreachable, func(c connectivityCheck) bool {
			host, _, _ := net.SplitHostPort(c.Spec.TargetEndpoint)
			return host == victim.Status.PodIP
		}) {
			t.Errorf("no object of %s is unreachable: %v", victim.Status.PodIP, unreachable)
		}
		clearFault(t, id)
		restored(t)
	})
	// An API server without service rules does not reach the webhooks that Tekton's next task needs: the rules are
	// restored before the watch ends.
	t.Run("the service rules of one node", func(t *testing.T) {
		forgetChecks(t)
		node := second.Spec.NodeName
		file := edited(t, plans, `for:      "45s"`, fmt.Sprintf("for: %q", patient(30*time.Second)))
		c := start(t, "run", file, "--plan", "api-watch", "--namespace", hostNamespace, "--output", "json")
		c.started(t)
		watching(t)
		id, _ := faultID(t, "delete-service-rules", "--node", node)
		time.Sleep(8 * time.Second) // the outage itself
		clearFault(t, id)
		if code := c.wait(t); code != 3 {
			t.Errorf("exit code %d, want 3: %s", code, c.stderr.String())
		}
		r := reportOf(t, c)
		found(t, r, checkup.CauseService, node)
		services := slices.Concat(top.apiService, top.aggService)
		for _, c := range outages(t, r) {
			if !slices.Contains(services, c.Spec.TargetEndpoint) {
				t.Errorf("%s is unreachable, but is not a service address", c)
			}
			if c.reachable() != "True" {
				t.Errorf("%s is Reachable %s after the rules were restored, want True", c, c.reachable())
			}
		}
	})
	t.Run("a component that accepts and stays silent", func(t *testing.T) {
		forgetChecks(t)
		victim := top.aggregated[1]
		id, _ := faultID(t, "silence", victim.Namespace+"/"+victim.Name, "--node", victim.Spec.NodeName)
		r, unreachable := broken(t, checkup.CauseTarget, victim.Spec.NodeName)
		if !strings.Contains(describe(t, r), "sent nothing") {
			t.Errorf("the report does not contain \"sent nothing\":\n%s", describe(t, r))
		}
		// A service refuses connections while its other endpoint is not ready either, which happens for a second on a
		// busy machine.
		own := 0
		for _, c := range unreachable {
			if c.Spec.TargetEndpoint == net.JoinHostPort(victim.Status.PodIP, "8443") {
				own++
			}
			service := slices.Contains(top.aggService, c.Spec.TargetEndpoint)
			for _, f := range c.Status.Failures {
				if !strings.Contains(f.Message, "sent nothing") && (!service || !strings.Contains(f.Message, "connection refused")) {
					t.Errorf("%s fails with %q, want \"sent nothing\"", c, f.Message)
				}
			}
		}
		if own == 0 {
			t.Errorf("no object of %s is unreachable: %v", victim.Status.PodIP, unreachable)
		}
		clearFault(t, id)
		restored(t)
	})
}

// A watch during the restart of an API server records one outage per affected pair. Its start and end are within two
// seconds of the real times.
func TestWatchOverRestart(t *testing.T) {
	controlPlane(t)
	forgetChecks(t)
	top := lookAround(t)
	victim := top.apiservers[1]
	c := start(t, "run", plans, "--plan", "api-watch", "--namespace", hostNamespace, "--output", "json")
	c.started(t)
	watching(t)
	id, said := faultID(t, "stop", "kube-apiserver", "--node", victim.Spec.NodeName)
	down := since(t, said, "down")
	time.Sleep(8 * time.Second) // the outage itself
	said = clearFault(t, id)
	up, ready := since(t, said, "up"), since(t, said, "ready")
	api := net.JoinHostPort(victim.Status.HostIP, "6443")
	code := c.wait(t)
	r := reportOf(t, c)
	if code != 3 {
		t.Errorf("exit code %d, want 3 because an API server was down:\n%s", code, describe(t, r))
	}
	t.Logf("down since %s, up since %s, ready since %s", down.Format(time.StampMilli), up.Format(time.StampMilli), ready.Format(time.StampMilli))
	affected := 0
	const slack = 2 * time.Second
	for _, c := range connectivityChecks(t) {
		if c.Spec.TargetEndpoint != api {
			continue
		}
		affected++
		if len(c.Status.Outages) != 1 || c.Status.Outages[0].End == nil {
			t.Errorf("%s: want one outage that ended: %+v", c, c.Status.Outages)
			continue
		}
		o := c.Status.Outages[0]
		if d := o.Start.Sub(down).Abs(); d > slack {
			t.Errorf("%s: the outage starts at %s, which differs by %s", c, o.Start.Format(time.StampMilli), d)
		}
		// An API server accepts connections when it is up, and answers requests by the time it is ready.
		if o.End.Before(up.Add(-slack)) || o.End.After(ready.Add(slack)) {
			t.Errorf("%s: the outage ends at %s, want a time from up to ready", c, o.End.Format(time.StampMilli))
		}
		if c.reachable() != "True" {
			t.Errorf("%s is Reachable %s at the end, want True", c, c.reachable())
		}
	}
	if affected == 0 {
		t.Errorf("no object has the target %s", api)
	}
	nothingLeft(t)
}

// watching waits until an object has a successful result.
func watching(t *testing.T) {
	t.Helper()
	eventually(t, 2*time.Minute, func() error {
		var n int
		for _, c := range connectivityChecks(t) {
			if len(c.Status.Successes) > 0 {
				n++
			}
		}
		if n == 0 {
			return errors.New("no result has been written yet")
		}
		return nil
	})
}

// A run that is killed half-way loses no observation: what the agents had reported is in the record and in the objects.
func TestKilledWatchLosesNothing(t *testing.T) {
	controlPlane(t)
	forgetChecks(t)
	c := start(t, "run", plans, "--plan", "api-watch", "--namespace", hostNamespace)
	name := c.started(t)
	watching(t)
	reported := followAgents(t, string(pipelineRun(t, name).UID))
	var results []checkup.Result
	eventually(t, 10*time.Second, func() error { // all agents have reported; not all start in the same second
		results = reported()
		measured := map[checkup.Pair]bool{}
		for _, r := range results {
			measured[r.Pair] = true
		}
		if all := len(connectivityChecks(t)); len(measured) < all {
			return fmt.Errorf("agents reported %d of %d pairs", len(measured), all)
		}
		return nil
	})
	cancel(t, name, pipelinev1.PipelineRunSpecStatusCancelled)
	if code := c.wait(t); code != 1 {
		t.Errorf("exit code %d, want 1: %s", code, c.stderr.String())
	}
	run := pipelineRun(t, name)
	store := &record.Store{ConfigMaps: cluster(t).Kube.CoreV1().ConfigMaps(hostNamespace), Plan: "api-watch", Run: name, RunUID: string(run.UID)}
	var kept *checkup.Record
	within(t, 45*time.Second, func() error {
		var err error
		if kept, err = store.LoadRecord(t.Context(), "api"); err != nil {
			return err
		}
		have := map[string]bool{}
		for _, r := range kept.Results {
			have[fmt.Sprintf("%+v %d", r.Pair, r.At.UnixNano())] = true
		}
		missing := 0
		for _, r := range results {
			if !have[fmt.Sprintf("%+v %d", r.Pair, r.At.UnixNano())] {
				missing++
			}
		}
		if missing > 0 || len(results) == 0 {
			return fmt.Errorf("%d of %d results that were reported before the kill are not in the record, which has %d", missing, len(results), len(kept.Results))
		}
		return nil
	})
	newest := map[string]time.Time{}
	for _, c := range connectivityChecks(t) {
		if len(c.Status.Successes) == 0 {
			t.Errorf("%s has no success", c)
			continue
		}
		newest[c.Metadata.Name] = c.Status.Successes[0].Time
	}
	if len(newest) == 0 {
		t.Error("no object was created")
	}
	nothingLeft(t)
}

// forgetful returns the file of plans with a retention of 0s.
func forgetful(t *testing.T) string {
	t.Helper()
	const install = "connectivityChecks: installCRD: true\n"
	return edited(t, plans, install, install+"\tconnectivityChecks: retention: \"0s\"\n")
}

// followAgents reads what the agents of a run report, until the test ends. The returned function returns what they have
// reported so far.
func followAgents(t *testing.T, runUID string) func() []checkup.Result {
	t.Helper()
	c := cluster(t)
	ctx, stop := context.WithCancel(t.Context())
	var pods *corev1.PodList
	eventually(t, time.Minute, func() error {
		var err error
		pods, err = c.Kube.CoreV1().Pods(hostNamespace).List(ctx, metav1.ListOptions{LabelSelector: fmt.Sprintf("%s=%s,%s=%s", checkup.LabelRun, runUID, checkup.LabelRole, checkup.RoleAgent)})
		if err == nil && len(pods.Items) == 0 {
			err = errors.New("no agents")
		}
		return err
	})
	var (
		mu      sync.Mutex
		results []checkup.Result
		wg      sync.WaitGroup
	)
	t.Cleanup(func() { stop(); wg.Wait() })
	for _, pod := range pods.Items {
		wg.Go(func() {
			follow := c.Kube.CoreV1().Pods(hostNamespace).GetLogs(pod.Name, &corev1.PodLogOptions{Follow: true})
			log, err := follow.Stream(ctx)
			for ; err != nil; log, err = follow.Stream(ctx) {
				if ctx.Err() != nil {
					return
				}
				time.Sleep(200 * time.Millisecond) // an agent that has not started has no log
			}
			defer log.Close()
			lines := json.NewDecoder(log)
			for {
				var m checkup.Message
				if lines.Decode(&m) != nil {
					return
				}
				mu.Lock()
				results = append(results, m.Results...)
				mu.Unlock()
			}
		})
	}
	return func() []checkup.Result {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(results)
	}
}

// The object of a removed endpoint stays, with its history, until its retention ends.
func TestRemovedEndpoint(t *testing.T) {
	controlPlane(t)
	forgetChecks(t)
	runHost(t, "api", 0)
	before := lookAround(t)
	scale := func(replicas int) {
		sandbox(t, "kubectl", "--namespace", aggregated.namespace, "scale", "deployment/"+aggregated.name, fmt.Sprintf("--replicas=%d", replicas))
	}
	t.Cleanup(func() {
		scale(2)
		sandbox(t, "kubectl", "--namespace", aggregated.namespace, "rollout", "status", "deployment/"+aggregated.name, "--timeout=60s")
	})
	scale(1)
	var gone []string
	eventually(t, time.Minute, func() error {
		slices_, err := cluster(t).Kube.DiscoveryV1().EndpointSlices(aggregated.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + aggregated.name})
		if err != nil {
			return err
		}
		left := map[string]bool{}
		for _, s := range slices_.Items {
			for _, e := range s.Endpoints {
				left[net.JoinHostPort(e.Addresses[0], fmt.Sprint(*s.Ports[0].Port))] = true
			}
		}
		gone = slices.DeleteFunc(slices.Clone(before.aggEndpoints), func(e string) bool { return left[e] })
		if len(gone) == 0 || len(left) == 0 {
			return fmt.Errorf("endpoints are still %v", left)
		}
		return nil
	})
	// A node whose rules still lead to the removed endpoint fails the run, rightly.
	nodes, err := cluster(t).Kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes.Items {
		eventually(t, time.Minute, func() error {
			if code, out := stateDiff(t, node.Name, "--namespace", aggregated.namespace, aggregated.name); code != 0 {
				return fmt.Errorf("rules of %s: %s", node.Name, out)
			}
			return nil
		})
	}
	r := runHost(t, "api", 0)
	for _, target := range gone {
		for _, source := range before.apiservers {
			c := check(t, source.Name, target)
			if len(c.Status.Successes) == 0 {
				t.Errorf("%s has lost its history:\n%s", c, describe(t, r))
			}
		}
	}
	runFile(t, forgetful(t), "api", 0, "--namespace", hostNamespace)
	for _, c := range connectivityChecks(t) {
		if slices.Contains(gone, c.Spec.TargetEndpoint) {
			t.Errorf("%s still exists after its retention", c)
		}
	}
	nothingLeft(t)
}
