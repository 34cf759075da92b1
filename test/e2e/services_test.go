// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	stdcmp "cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cost"
	"github.com/checkplan/checkplan/pkg/fleet"
	"github.com/checkplan/checkplan/pkg/scheduling"
	"github.com/checkplan/checkplan/pkg/services"
	"github.com/checkplan/checkplan/pkg/tekton"
)

const (
	// servicesNamespace has the Services of TestServices, TestServiceFaults and TestSoakRolling; their plans name it.
	servicesNamespace = "e2e-services"
	// runsNamespace is that of runs that create Services, which must not be among those of servicesNamespace. Like that
	// one, it has no label of pod security, and so admits agents on the host network.
	runsNamespace = "e2e-runs"
)

// TestServices: Services of all policies with endpoints work from each node, one without is refused, and one whose
// policy wants an endpoint of the node is dropped where there is none; rules, canary and DNS are as they must be, too.
// Pods and accounts of the run have what explain says, and nothing else. In a namespace that refuses agents on the host
// network, only the rules are unmeasured, with the reason. When one node has lost the rule of one Service, this node and
// this Service are found, by connecting and by reading the rules.
func TestServices(t *testing.T) {
	parallel(t)
	address := serveServices(t)
	makeNamespace(t, runsNamespace)

	x := explain(t, "everything", runsNamespace)
	running := start(t, "run", plans, "--plan", "everything", "--namespace", runsNamespace, "--output", "json")
	name := running.started(t)
	pods := watchPods(t, string(pipelineRun(t, name).UID))
	if code := running.wait(t); code != 0 {
		t.Errorf("exit code %d, want 0: %s\n%s", code, running.stderr.String(), text(t, running.stdout.Bytes()))
	}
	r := reportOf(t, running)
	asExplained(t, x, runsNamespace, name, pods())
	for _, c := range r.Checks {
		allPass(t, r, c)
	}
	words := describe(t, r)
	for _, want := range []string{
		"are refused (no endpoint)", "are dropped (no endpoint on the node)", // services
		"one of 4", "1, dropped", // canary
		"not measured: 2 UDP ports, 4 load balancer IPs (source ranges)",
	} {
		if !strings.Contains(words, want) {
			t.Errorf("the report does not contain %q:\n%s", want, words)
		}
	}
	probed := map[services.Address]bool{}
	sheet, err := services.SheetOf(x.check(t, "services").Worksheet)
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range sheet.Targets {
		probed[target.Address] = true
	}
	if len(probed) != len(services.Addresses) {
		t.Errorf("only addresses of the kinds %v are measured", probed)
	}
	// The canary measures from each node to four responders, one that is not ready, and 9 Services, in two families, by
	// TCP and UDP; to two node ports, and, with a policy Local, to one, and to that of the endpoint from all but its own
	// node.
	nodes, err := cluster(t).Kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := checkOf(t, r, "canary").Counts.Expected, (len(nodes.Items)*(4+1+9+2+2)-1)*2*2; got != want {
		t.Errorf("%d pairs of the canary, want %d:\n%s", got, want, words)
	}
	checkResults(t, r)

	// The namespace of the other tests is restricted.
	refused := runPlan(t, "everything", 1)
	for _, c := range refused.Checks {
		if c.Name != "rules" {
			allPass(t, refused, c)
		} else if c.Counts.Unmeasured != c.Counts.Expected || c.Counts.Expected == 0 || len(c.Units) == 0 ||
			!strings.Contains(c.Units[0].Cause.Message, "violates PodSecurity") {
			t.Errorf("want that no rules are read, because of pod security:\n%s", describe(t, refused))
		}
	}

	faultID(t, "delete-service-rules", "--node", "worker-2", "--service", address)
	broken := runPlan(t, "services", 3, "--namespace", runsNamespace)
	connects, rules := checkOf(t, broken, "services"), checkOf(t, broken, "rules")
	found := connects.Findings
	if len(found) != 1 || found[0].Cause != checkup.CausePair || found[0].Subject != "worker-2 -> "+servicesNamespace+"/web" ||
		found[0].Confirmation != checkup.Confirmed {
		t.Errorf("want one finding, of web from worker-2:\n%s", describe(t, broken))
	}
	if connects.Counts.Fail != 1 || connects.Counts.Unmeasured != 0 {
		t.Errorf("want one failed pair:\n%s", describe(t, broken))
	}
	found = rules.Findings
	if len(found) != 1 || found[0].Cause != checkup.CausePair || found[0].Subject != "worker-2 -> "+servicesNamespace+"/web" {
		t.Errorf("want one finding, of the rules of worker-2 for web:\n%s", describe(t, broken))
	}
	// kube-proxy in its mode iptables restores a rule that leads nowhere.
	reasons := []checkup.Reason{checkup.ReasonMissing, checkup.ReasonDiffers}
	if rules.Counts.Fail != 1 || rules.Counts.Unmeasured != 0 || len(rules.Units) != 1 || !slices.Contains(reasons, rules.Units[0].Cause.Reason) {
		t.Errorf("want one failed rule set, without rules:\n%s", describe(t, broken))
	}
	nothingLeft(t, r.RunUID, broken.RunUID, refused.RunUID)
}

// checkOf returns a check of a report.
func checkOf(t *testing.T, r *checkup.Report, name string) checkup.CheckReport {
	t.Helper()
	i := slices.IndexFunc(r.Checks, func(c checkup.CheckReport) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("no check %s:\n%s", name, describe(t, r))
	}
	return r.Checks[i]
}

// allPass wants that all units of a check pass.
func allPass(t *testing.T, r *checkup.Report, c checkup.CheckReport) {
	t.Helper()
	if c.Counts.Pass != c.Counts.Expected || c.Counts.Expected == 0 || len(c.Findings) > 0 {
		t.Errorf("check %s: want that all pass:\n%s", c.Name, describe(t, r))
	}
}

// explanation is what planner explain says of a plan, as far as asExplained compares it.
type explanation struct {
	Accounts []struct {
		Account string
		Rights  []checkup.Right
	} `json:"serviceAccounts"`
	Checks []checkExplanation
}

type checkExplanation struct {
	cost.Cost
	Fields    []checkup.Item
	Worksheet *checkup.Worksheet
}

// explain explains a plan for a namespace.
func explain(t *testing.T, plan, namespace string) (x explanation) {
	t.Helper()
	c := start(t, "explain", plans, "--plan", plan, "--namespace", namespace, "--output", "json")
	if code := c.wait(t); code != 0 {
		t.Fatalf("explain: exit code %d, want 0: %s", code, c.stderr.String())
	}
	if err := json.Unmarshal(c.stdout.Bytes(), &x); err != nil {
		t.Fatal(err)
	}
	return x
}

func (x explanation) check(t *testing.T, name string) checkExplanation {
	t.Helper()
	i := slices.IndexFunc(x.Checks, func(c checkExplanation) bool { return c.Check == name })
	if i < 0 {
		t.Fatalf("explain does not have check %s", name)
	}
	return x.Checks[i]
}

// podSecurity is the text of the field "pod security"; empty if nothing is.
func (c checkExplanation) podSecurity() string {
	for _, f := range c.Fields {
		if f.Name == "pod security" {
			return f.Text
		}
	}
	return ""
}

// asExplained compares the fixtures of a run, the pods of its tasks, and the rights of their accounts with what explain
// says of the plan.
func asExplained(t *testing.T, x explanation, namespace, run string, fixtures []corev1.Pod) {
	t.Helper()
	// By check. A second look has agents of its own, so these are counted by node.
	agents, onHost, responders := map[string]map[string]bool{}, map[string]map[string]bool{}, map[string]int{}
	note := func(of map[string]map[string]bool, check, node string) {
		if of[check] == nil {
			of[check] = map[string]bool{}
		}
		of[check][node] = true
	}
	for _, p := range fixtures {
		check := p.Labels[checkup.LabelCheck]
		if p.Labels[checkup.LabelRole] == string(checkup.RoleResponder) {
			responders[check]++
		} else {
			note(agents, check, pinnedTo(&p))
		}
		if p.Spec.HostNetwork {
			note(onHost, check, pinnedTo(&p))
		}
		var want []string
		if x.check(t, check).podSecurity() != "" && p.Labels[checkup.LabelRole] == string(checkup.RoleAgent) {
			want = []string{"capability NET_ADMIN", "host network", "user 0"}
		}
		if diff := cmp.Diff(want, widenings(p)); diff != "" {
			t.Errorf("what %s of check %s has beyond a restricted pod (-explained +has):\n%s", p.Name, check, diff)
		}
	}
	for _, c := range x.Checks {
		if len(agents[c.Check]) != c.Agents || responders[c.Check] != c.Responders || len(onHost[c.Check]) != c.HostNetwork {
			t.Errorf("check %s has %d agents, %d of them on the host network, and %d responders; explain predicts %d, %d and %d",
				c.Check, len(agents[c.Check]), len(onHost[c.Check]), responders[c.Check], c.Agents, c.HostNetwork, c.Responders)
		}
		want := ""
		if n := len(onHost[c.Check]); n > 0 {
			want = fmt.Sprintf("%d agents on the host network, as root with no capability but NET_ADMIN", n)
		}
		if beyond, _, _ := strings.Cut(c.podSecurity(), ": "); beyond != want {
			t.Errorf("check %s: explain says %q of pod security, want %q", c.Check, beyond, want)
		}
	}

	tasks, err := cluster(t).Kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "tekton.dev/pipelineRun=" + run})
	if err != nil {
		t.Fatal(err)
	}
	var explained, used []string
	want := map[string][]string{"default": nil} // that of fixtures has no right
	for _, a := range x.Accounts {
		explained = append(explained, a.Account)
		for _, r := range a.Rights {
			want[a.Account] = append(want[a.Account], rightWords(strings.TrimSpace(string(r.Scope)+" "+r.Namespace), r.Group, r.Resource, r.Names, r.Verb))
		}
	}
	for _, p := range tasks.Items {
		used = append(used, p.Spec.ServiceAccountName)
		beyond := slices.DeleteFunc(widenings(p), func(what string) bool {
			return what == "token" || what == "account "+p.Spec.ServiceAccountName || what == "writable root"
		})
		if len(beyond) > 0 {
			t.Errorf("task pod %s has %q", p.Name, beyond)
		}
	}
	slices.Sort(explained)
	slices.Sort(used)
	if diff := cmp.Diff(explained, slices.Compact(used)); diff != "" {
		t.Errorf("accounts of tasks (-explained +used):\n%s", diff)
	}
	got := map[string][]string{}
	for account := range want {
		got[account] = rightsOf(t, namespace, account)
		slices.Sort(want[account])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rights of accounts (-explained +bound):\n%s", diff)
	}
}

// widenings lists what a pod has beyond a restricted one in the pod network, without a token, sorted; nil for such a pod.
func widenings(p corev1.Pod) (all []string) {
	add := func(is bool, what string) {
		if is && !slices.Contains(all, what) {
			all = append(all, what)
		}
	}
	is := func(pointer *bool, value bool) bool { return pointer != nil && *pointer == value }
	seccomp := func(s *corev1.SeccompProfile) bool {
		return s != nil && s.Type == corev1.SeccompProfileTypeRuntimeDefault
	}
	s := p.Spec
	add(s.HostNetwork, "host network")
	add(s.HostPID || s.HostIPC, "host processes")
	add(!is(s.AutomountServiceAccountToken, false), "token")
	add(s.ServiceAccountName != "default", "account "+s.ServiceAccountName)
	for _, v := range s.Volumes {
		add(v.HostPath != nil, "host path")
		if v.Projected != nil {
			for _, source := range v.Projected.Sources {
				add(source.ServiceAccountToken != nil, "token")
			}
		}
	}
	of := s.SecurityContext
	for _, c := range slices.Concat(s.InitContainers, s.Containers) {
		own := c.SecurityContext
		if own == nil || own.Capabilities == nil || of == nil {
			add(true, "container without a security context")
			continue
		}
		for _, capability := range own.Capabilities.Add {
			add(true, "capability "+string(capability))
		}
		add(!slices.Contains(own.Capabilities.Drop, "ALL"), "default capabilities")
		add(is(own.Privileged, true), "privileged")
		add(!is(own.AllowPrivilegeEscalation, false), "privilege escalation")
		add(!is(own.ReadOnlyRootFilesystem, true), "writable root")
		add(!seccomp(own.SeccompProfile) && !seccomp(of.SeccompProfile), "no seccomp profile")
		if user := stdcmp.Or(own.RunAsUser, of.RunAsUser); user != nil && *user == 0 {
			add(true, "user 0")
		} else {
			add(!is(stdcmp.Or(own.RunAsNonRoot, of.RunAsNonRoot), true), "any user")
		}
	}
	slices.Sort(all)
	return all
}

// rightsOf lists what an account of a namespace may do by all roles of the cluster that are bound to it, sorted.
func rightsOf(t *testing.T, namespace, account string) (all []string) {
	t.Helper()
	rbac := cluster(t).Kube.RbacV1()
	bound := func(subjects []rbacv1.Subject) bool {
		return slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
			return s.Kind == rbacv1.ServiceAccountKind && s.Namespace == namespace && s.Name == account
		})
	}
	add := func(where string, rules []rbacv1.PolicyRule) {
		for _, r := range rules {
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					for _, verb := range r.Verbs {
						all = append(all, rightWords(where, group, resource, r.ResourceNames, verb))
					}
				}
			}
			all = append(all, r.NonResourceURLs...)
		}
	}
	everywhere, err := rbac.ClusterRoleBindings().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range everywhere.Items {
		if bound(b.Subjects) {
			role, err := rbac.ClusterRoles().Get(t.Context(), b.RoleRef.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			add(string(checkup.ScopeCluster), role.Rules)
		}
	}
	bindings, err := rbac.RoleBindings(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bindings.Items {
		if !bound(b.Subjects) {
			continue
		}
		where := string(checkup.ScopeNamespace) + " " + b.Namespace
		if b.Namespace == namespace {
			where = string(checkup.ScopeRun)
		}
		// A plan has no binding to a ClusterRole in a namespace: there is no Role of its name.
		role, err := rbac.Roles(b.Namespace).Get(t.Context(), b.RoleRef.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		add(where, role.Rules)
	}
	slices.Sort(all)
	return all
}

// rightWords words a right. Where it is used is a Scope, with the namespace of ScopeNamespace.
func rightWords(where, group, resource string, names []string, verb string) string {
	return fmt.Sprintf("%s: %s %s.%s %q", where, verb, resource, group, names)
}

// TestServiceCanary: when the kernel of a node does not forget where a UDP flow leads when its endpoint ends, and when a
// node loses the rule of a Service while the run starts, each alone is found, with the node and the Service. Nothing is
// left behind, of a run that was cancelled neither. TestServices has the runs in which all is right.
func TestServiceCanary(t *testing.T) {
	parallel(t)
	var uids []string
	// broken runs the plan, damages a node when the run has started, and returns the report and its only finding.
	broken := func(damage func(uid string)) (*checkup.Report, checkup.Finding) {
		t.Helper()
		running := start(t, "run", plans, "--plan", "canary", "--output", "json")
		uid := string(pipelineRun(t, running.started(t)).UID)
		uids = append(uids, uid)
		damage(uid)
		if code := running.wait(t); code != 3 {
			t.Errorf("exit code %d, want 3: %s", code, running.stderr.String())
		}
		r := reportOf(t, running)
		c := r.Checks[0]
		if len(c.Findings) != 1 || c.Counts.Fail != 1 || c.Counts.Unmeasured != 0 {
			t.Fatalf("want one failed pair, with a finding:\n%s", describe(t, r))
		}
		checkResults(t, r)
		return r, c.Findings[0]
	}

	// The flow exists before the endpoint leaves, and its entry afterwards: the node's kube-proxy removes it, in vain.
	var left netip.AddrPort
	var id string
	r, f := broken(func(uid string) {
		leaves := canaryService(t, "endpoint-leaves", uid)
		left = canaryEndpoint(t, leaves)
		id, _ = faultID(t, "stale", "--node", "worker-1", "--service", addressOf(leaves), "--endpoint", left.String())
	})
	if f.Cause != checkup.CausePair || f.Subject != "worker-1 -> endpoint-leaves" ||
		!strings.Contains(f.Message, "wrongly answered by endpoint that leaves") ||
		!strings.Contains(strings.Join(f.For, "\n"), "udp IPv4") ||
		!strings.Contains(strings.Join(f.For, "\n"), "answered by endpoint "+left.Addr().String()) {
		t.Errorf("want a finding, that %s answers UDP flows of worker-1 after it left:\n%s", left, describe(t, r))
	}
	clearFault(t, id)

	r, f = broken(func(uid string) {
		address := addressOf(canaryService(t, "cluster-ip", uid))
		// Not on the node of TestServices: clearing such a fault writes all rules of the node. kube-proxy may not have
		// written the rule yet.
		eventually(t, 30*time.Second, func() error {
			out, err := sandboxCommand("fault", "add", "delete-service-rules", "--node", "worker-3", "--service", address).Output()
			if err != nil {
				return err
			}
			id := strings.TrimSpace(string(out))
			t.Cleanup(func() { clearFault(t, id) })
			return nil
		})
	})
	if f.Cause != checkup.CausePair || f.Subject != "worker-3 -> cluster-ip" || f.Confirmation != checkup.Confirmed {
		t.Errorf("want a finding, of cluster-ip from worker-3:\n%s", describe(t, r))
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
	nothingLeft(t, append(uids, uid)...)
}

// TestServiceFaults: what is damaged on one node alone is found, with the node and the Service: all of its rules are
// deleted; its service proxy is stopped, and an endpoint changes; the rule of one endpoint is deleted by hand; an
// address is added by hand. planner state --diff on the node finds the same, and finds nothing on another node.
func TestServiceFaults(t *testing.T) {
	const node, other = "worker-2", "worker-1"
	address := serveServices(t)
	// Without rules, pods of the node do not reach the API server. Agents need not, but the pods of tasks do.
	sandbox(t, "kubectl", "cordon", node)
	t.Cleanup(func() { sandbox(t, "kubectl", "uncordon", node) })
	var uids []string
	run := func(wantCode int) (r *checkup.Report, rules checkup.CheckReport) {
		t.Helper()
		r = runPlan(t, "services", wantCode, "--namespace", servicesNamespace)
		uids = append(uids, r.RunUID)
		return r, r.Checks[0]
	}
	for range 2 {
		if r, _ := run(0); r.Counts.Pass != r.Counts.Expected || len(findings(r)) > 0 {
			t.Errorf("want that all pass:\n%s", describe(t, r))
		}
	}

	const added = "192.0.2.77:80"
	web := "node " + node + ", Service " + servicesNamespace + "/web: "
	pair := node + " -> " + servicesNamespace + "/web"
	for _, tt := range []struct {
		name    string
		fault   string
		then    func(t *testing.T) // what happens to the cluster
		cause   checkup.FindingCause
		subject string
		message string // part of it
		diff    string // part of what planner state --diff prints
	}{
		{"no rules", "delete-service-rules", nil,
			checkup.CauseNode, node, "node " + node + ": it has no rules of Services", node + ": IPv4 no rules, IPv6 no rules"},
		{"stale", "stop " + serviceProxy(t), replaceEndpoint,
			checkup.CausePair, pair, web, "which is no endpoint"},
		{"an endpoint's rule", "delete-service-rules --endpoint ENDPOINT", nil,
			checkup.CausePair, pair, web + "no connection goes to endpoint ENDPOINT", "no connection goes to endpoint ENDPOINT"},
		{"an address by hand", "add-service-rule --address " + added + " --service " + address, nil,
			checkup.CausePair, pair, web + "a rule takes connections to " + added, "a rule takes connections to " + added},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, text := range []*string{&tt.fault, &tt.message, &tt.diff} {
				*text = strings.ReplaceAll(*text, "ENDPOINT", endpoints(t)[0].String())
			}
			id, _ := faultID(t, append(strings.Fields(tt.fault), "--node", node)...)
			if tt.then != nil {
				tt.then(t)
			}
			r, rules := run(3)
			found := rules.Findings
			if len(found) != 1 || found[0].Cause != tt.cause || found[0].Subject != tt.subject || !strings.Contains(found[0].Message, tt.message) {
				t.Errorf("want one finding about rules, %s %q, %q:\n%s", tt.cause, tt.subject, tt.message, describe(t, r))
			}
			connects := r.Checks[1].Findings
			for _, f := range connects {
				if !strings.HasPrefix(f.Subject, node) {
					t.Errorf("want no finding but of %s:\n%s", node, describe(t, r))
				}
			}
			if tt.cause == checkup.CauseNode && (len(connects) != 1 || connects[0].Cause != tt.cause || connects[0].Subject != node) {
				t.Errorf("want one finding about connections, too, that Services do not work from %s:\n%s", node, describe(t, r))
			}
			if code, out := stateDiff(t, node); code != 3 || !strings.Contains(out, tt.diff) {
				t.Errorf("planner state --diff: exit code %d, want 3 and %q:\n%s", code, tt.diff, out)
			}
			if code, out := stateDiff(t, other); code != 0 {
				t.Errorf("planner state --diff of %s: exit code %d, want 0:\n%s", other, code, out)
			}
			clearFault(t, id)
			within(t, 30*time.Second, func() error {
				if code, out := stateDiff(t, node); code != 0 {
					return fmt.Errorf("after the fault: exit code %d:\n%s", code, out)
				}
				return nil
			})
		})
	}
	nothingLeft(t, uids...)
}

// endpoints returns the IPv4 endpoints of web that are ready.
func endpoints(t *testing.T) (ready []netip.AddrPort) {
	t.Helper()
	list, err := cluster(t).Kube.DiscoveryV1().EndpointSlices(servicesNamespace).List(t.Context(), metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=web"})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			if a := netip.MustParseAddr(e.Addresses[0]); a.Is4() && *e.Conditions.Ready {
				ready = append(ready, netip.AddrPortFrom(a, uint16(*s.Ports[0].Port)))
			}
		}
	}
	return ready
}

// replaceEndpoint deletes a pod of web, and waits until web has another endpoint.
func replaceEndpoint(t *testing.T) {
	t.Helper()
	before := endpoints(t)
	killPod(t, servicesNamespace, "app=web")
	eventually(t, time.Minute, func() error {
		now := endpoints(t)
		if len(now) != len(before) || !slices.ContainsFunc(now, func(e netip.AddrPort) bool { return !slices.Contains(before, e) }) {
			return fmt.Errorf("endpoints %v, and before %v", now, before)
		}
		return nil
	})
}

// stateDiff runs planner state --diff in the network of a node, for all Services if there are no arguments.
func stateDiff(t *testing.T, node string, args ...string) (code int, out string) {
	t.Helper()
	return stateDiffOf(t, objects(t), node, args...)
}

// objects returns what the state of a node is computed from, as JSON.
func objects(t *testing.T) []byte {
	t.Helper()
	list, err := sandboxCommand("kubectl", "get", "nodes,services,endpointslices", "-A", "-o", "json").Output()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// stateDiffOf is stateDiff for objects of another time.
func stateDiffOf(t *testing.T, objects []byte, node string, args ...string) (code int, out string) {
	t.Helper()
	c := exec.Command("nsenter", append([]string{fmt.Sprintf("--net=/proc/%d/ns/net", firstProcess(t, node)), "--",
		plannerBin, "state", "--node", node, "--filename", "-", "--diff"}, args...)...)
	c.Stdin = bytes.NewReader(objects)
	text, err := c.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode(), string(text)
}

// firstProcess returns the process whose namespaces are those of a node.
func firstProcess(t *testing.T, node string) int {
	t.Helper()
	pid := sandboxState(t).Processes[node].PID
	if pid == 0 {
		t.Fatalf("no process of node %s", node)
	}
	return pid
}

// serviceProxy returns the program of a node that writes its service rules.
func serviceProxy(t *testing.T) string {
	t.Helper()
	if strings.HasPrefix(sandboxState(t).ServiceProxy, "kube-proxy") {
		return "kube-proxy"
	}
	return "service-proxy"
}

// state is what a sandbox says of itself, as far as tests need it.
type state struct {
	ServiceProxy string
	Processes    map[string]struct{ PID int }
}

func sandboxState(t *testing.T) (s state) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(stateDir(), "state.json"))
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// canaryService waits for a Service of a run.
func canaryService(t *testing.T, name, runUID string) (found corev1.Service) {
	t.Helper()
	eventually(t, 2*time.Minute, func() error {
		list, err := cluster(t).Kube.CoreV1().Services(cluster(t).Namespace).List(t.Context(), metav1.ListOptions{
			LabelSelector: fmt.Sprintf("%s=%s,%s=%s", checkup.LabelRole, checkup.RoleService, checkup.LabelRun, runUID),
		})
		if err != nil {
			return err
		}
		for _, s := range list.Items {
			if s.Spec.Selector[checkup.LabelIn+name] != "" {
				found = s
				return nil
			}
		}
		return fmt.Errorf("no Service %s among %d of the run", name, len(list.Items))
	})
	return found
}

// addressOf is the first cluster IP of a Service, with its first port.
func addressOf(s corev1.Service) string {
	return net.JoinHostPort(s.Spec.ClusterIP, fmt.Sprint(s.Spec.Ports[0].Port))
}

// canaryEndpoint waits until a Service has one IPv4 endpoint, and returns its UDP port.
func canaryEndpoint(t *testing.T, s corev1.Service) (endpoint netip.AddrPort) {
	t.Helper()
	eventually(t, time.Minute, func() error {
		list, err := cluster(t).Kube.DiscoveryV1().EndpointSlices(s.Namespace).List(t.Context(), metav1.ListOptions{
			LabelSelector: discoveryv1.LabelServiceName + "=" + s.Name})
		if err != nil {
			return err
		}
		var all []netip.AddrPort
		for _, slice := range list.Items {
			for _, port := range slice.Ports {
				for _, e := range slice.Endpoints {
					if slice.AddressType == discoveryv1.AddressTypeIPv4 && *port.Protocol == corev1.ProtocolUDP {
						all = append(all, netip.AddrPortFrom(netip.MustParseAddr(e.Addresses[0]), uint16(*port.Port)))
					}
				}
			}
		}
		if len(all) != 1 {
			return fmt.Errorf("endpoints of %s: %v, want one", s.Name, all)
		}
		endpoint = all[0]
		return nil
	})
	return endpoint
}

// serveServices makes the namespace with Services of all policies, until the test ends, and returns the first cluster
// IP and port of web, which alone has the Deployment web.
func serveServices(t *testing.T) (address string) {
	t.Helper()
	core, ctx := cluster(t).Kube.CoreV1(), t.Context()
	makeNamespace(t, servicesNamespace)
	deploy(t, "web", 2)
	deploy(t, "pool", 2)
	deploy(t, "one", 1)
	serve := func(name string, spec corev1.ServiceSpec) *corev1.Service {
		t.Helper()
		if spec.IPFamilyPolicy == nil {
			spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack)
		}
		if spec.Ports == nil {
			spec.Ports = []corev1.ServicePort{{Name: "tcp", Port: 80, TargetPort: intstr.FromString("http")}}
		}
		service, err := core.Services(servicesNamespace).Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return service
	}
	web := serve("web", corev1.ServiceSpec{Selector: map[string]string{"app": "web"}})
	serve("empty", corev1.ServiceSpec{Selector: map[string]string{"app": "none"}})
	for i, app := range []string{"pool", "one"} { // on two nodes, and on one
		for name, spec := range policies(i) {
			spec.Selector = map[string]string{"app": app}
			service := serve(app+"-"+name, spec)
			if spec.Type != corev1.ServiceTypeLoadBalancer {
				continue
			}
			for _, ip := range balancerIPs(i, name) {
				service.Status.LoadBalancer.Ingress = append(service.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
			}
			if _, err := core.Services(servicesNamespace).UpdateStatus(ctx, service, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	deployed(t)
	return net.JoinHostPort(web.Spec.ClusterIP, "80")
}

// policies are Services of every policy, for one of several Deployments.
func policies(of int) map[string]corev1.ServiceSpec {
	const local, localExternal = corev1.ServiceInternalTrafficPolicyLocal, corev1.ServiceExternalTrafficPolicyLocal
	const balancer, nodePort = corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort
	return map[string]corev1.ServiceSpec{
		"plain":          {},
		"local":          {InternalTrafficPolicy: new(local)},
		"nodeport":       {Type: nodePort},
		"nodeport-local": {Type: nodePort, ExternalTrafficPolicy: localExternal},
		"both-local":     {Type: nodePort, ExternalTrafficPolicy: localExternal, InternalTrafficPolicy: new(local)},
		"lb":             {Type: balancer},
		"lb-local":       {Type: balancer, ExternalTrafficPolicy: localExternal},
		"lb-sources":     {Type: balancer, LoadBalancerSourceRanges: []string{"198.18.0.0/15", "2001:2::/48"}},
		"external":       {ExternalIPs: []string{fmt.Sprintf("192.0.2.%d", of+1), fmt.Sprintf("2001:db8::%d", of+1)}},
		"sticky": {SessionAffinity: corev1.ServiceAffinityClientIP, SessionAffinityConfig: &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(600))}}},
		"close":   {TrafficDistribution: new(corev1.ServiceTrafficDistributionPreferClose)},
		"unready": {PublishNotReadyAddresses: true},
		"ipv4":    {IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack), IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}},
		"ipv6":    {IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack), IPFamilies: []corev1.IPFamily{corev1.IPv6Protocol}},
		"ports": {Ports: []corev1.ServicePort{
			{Name: "tcp", Port: 80, TargetPort: intstr.FromString("http")}, {Name: "echo", Port: 7, TargetPort: intstr.FromInt32(fleet.EchoPort)},
			{Name: "echo-udp", Port: 7, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(fleet.EchoPort)},
		}},
	}
}

// balancerIPs are the addresses that a cloud would have given to a load balancer.
func balancerIPs(of int, name string) []string {
	last := 10*(of+1) + len(name)
	return []string{fmt.Sprintf("203.0.113.%d", last), fmt.Sprintf("2001:db8:1::%d", last)}
}

// makeNamespace makes a namespace until the test ends. It waits for one that another test has deleted.
func makeNamespace(t *testing.T, name string) {
	t.Helper()
	eventually(t, time.Minute, func() error {
		_, err := cluster(t).Kube.CoreV1().Namespaces().Create(t.Context(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	})
	t.Cleanup(func() { sandbox(t, "kubectl", "delete", "--wait=false", "namespace", name) })
}

// deploy makes a Deployment of responders in the namespace of TestServices.
func deploy(t *testing.T, name string, replicas int32) {
	t.Helper()
	labels := map[string]string{"app": name}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: new(int64(5)),
					Containers: []corev1.Container{{
						Name: "server", Image: tekton.AgentImage(tekton.Options{}), ImagePullPolicy: corev1.PullIfNotPresent,
						Command: []string{"/ko-app/agent"}, Args: []string{"respond"},
						Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: fleet.HTTPPort}},
						ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
							TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("http")},
						}},
					}},
				},
			},
		},
	}
	scheduling.Restrict(&deployment.Spec.Template.Spec)
	if _, err := cluster(t).Kube.AppsV1().Deployments(servicesNamespace).Create(t.Context(), deployment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// deployed waits until the pods of all Deployments of the namespace are those that it wants, and ready.
func deployed(t *testing.T) {
	t.Helper()
	eventually(t, 2*time.Minute, func() error {
		list, err := cluster(t).Kube.AppsV1().Deployments(servicesNamespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, d := range list.Items {
			if s := d.Status; s.ObservedGeneration != d.Generation || s.ReadyReplicas != *d.Spec.Replicas ||
				s.UpdatedReplicas != *d.Spec.Replicas || s.Replicas != *d.Spec.Replicas {
				return fmt.Errorf("%s: %d pods, %d updated, %d ready, want %d", d.Name, s.Replicas, s.UpdatedReplicas, s.ReadyReplicas, *d.Spec.Replicas)
			}
		}
		return nil
	})
}
