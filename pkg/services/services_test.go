// SPDX-License-Identifier: Apache-2.0

package services

import (
	stdcmp "cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// described is one line for each node: what it measures, and what is expected.
func described(tb testing.TB, w *checkup.Worksheet) string {
	tb.Helper()
	sheet, err := SheetOf(w)
	if err != nil {
		tb.Fatal(err)
	}
	var b strings.Builder
	for p := range w.Pairs() {
		fmt.Fprintf(&b, "%s %s %c\n", w.Sources[p.Source].Node, w.Targets[p.Target].Label, sheet.Expects(w, p))
	}
	return b.String()
}

// TestExpand: which addresses each node measures, and what is expected there. A headless Service, one of UDP and one
// without endpoints in the plan's namespaces are no targets.
func TestExpand(t *testing.T) {
	tests := []struct {
		name string
		spec *Spec
		want string
	}{
		{"cluster IPs", specOf(), `
n0 shop/db 10.96.0.3:80 w
n0 shop/edge 10.96.0.8:80 w
n0 shop/edge [fd00:96::8]:80 r
n0 shop/empty 10.96.0.4:80 r
n0 shop/empty [fd00:96::4]:80 r
n0 shop/log 10.96.0.5:80 w
n0 shop/log [fd00:96::5]:80 w
n0 shop/web 10.96.0.2:80 w
n0 shop/web [fd00:96::2]:80 w
`},
		{"one family, all addresses", specOf(func(s *Spec) {
			s.Addresses, s.IPFamilies = Addresses, []checkup.IPFamily{checkup.IPv4}
			s.Services.Selector = checkup.LabelSelector{MatchLabels: map[string]string{"app": "edge"}}
		}), `
n0 shop/edge 10.96.0.8:80 w
n0 shop/edge 192.0.2.7:80 w
n0 shop/edge 172.18.0.1:30080 w
`},
		{"a policy without an endpoint on the node", specOf(func(s *Spec) {
			s.Placement.NodeSelector = map[string]string{"third": ""}
			s.Services.Selector = checkup.LabelSelector{MatchLabels: map[string]string{"app": "log"}}
		}), `
n2 shop/log 10.96.0.5:80 d
n2 shop/log [fd00:96::5]:80 d
`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			town := small()
			town.Nodes[2].Labels = map[string]string{"third": ""}
			// The endpoints of edge are IPv4 only.
			town.EndpointSlices = slices.DeleteFunc(town.EndpointSlices, func(s discoveryv1.EndpointSlice) bool { return s.Name == "edge-ipv6" })
			selector, err := tt.spec.Services.LabelText()
			if err != nil {
				t.Fatal(err)
			}
			town.Seen = append(town.Seen, servicecheck.Seen("", selector))
			var lines []string
			for line := range strings.Lines(described(t, expanded(t, tt.spec, town))) {
				if !strings.HasPrefix(line, "n1") && (!strings.HasPrefix(line, "n2") || len(tt.spec.Placement.NodeSelector) > 0) {
					lines = append(lines, line)
				}
			}
			if diff := cmp.Diff(strings.TrimPrefix(tt.want, "\n"), strings.Join(lines, "")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestLeftOut: one note counts what of the selected Services is not measured.
func TestLeftOut(t *testing.T) {
	change := func(changes ...func(*corev1.Service)) []func(*corev1.Service) { return changes }
	port := func(protocol corev1.Protocol) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: strings.ToLower(string(protocol)), Protocol: protocol, Port: 53})
		}
	}
	balancer := func(mode corev1.LoadBalancerIPMode, sources ...string) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.Type, s.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, sources
			for _, ip := range []string{"203.0.113.1", "2001:db8:1::1"} {
				s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip, IPMode: &mode})
			}
		}
	}
	nodePort := func(s *corev1.Service) { s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30080 }
	headless := func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} }
	foreign := func(s *corev1.Service) { s.Labels["service.kubernetes.io/service-proxy-name"] = "other" }
	const ranges = "192.0.2.0/24"
	all := func(s *Spec) { s.Addresses = Addresses }
	tests := []struct {
		name     string
		spec     *Spec
		services [][]func(*corev1.Service) // beside one of which everything is measured
		nodes    func([]cluster.Node)
		want     string
	}{
		{"nothing", specOf(all), nil, nil, ""},
		{"ports, each once", specOf(), [][]func(*corev1.Service){change(port("UDP"), port("SCTP")), change(port("UDP"))}, nil, "2 UDP ports, 1 SCTP port"},
		{"ports of another family", specOf(func(s *Spec) { s.IPFamilies = []checkup.IPFamily{checkup.IPv6} }), [][]func(*corev1.Service){change(port("UDP"), onlyIPv4)}, nil, ""},
		{"source ranges", specOf(all), [][]func(*corev1.Service){change(balancer(corev1.LoadBalancerIPModeVIP, ranges))}, nil, "1 load balancer IP (source ranges)"},
		{"no source ranges", specOf(all), [][]func(*corev1.Service){change(balancer(corev1.LoadBalancerIPModeVIP))}, nil, ""},
		{"the balancer's own", specOf(all), [][]func(*corev1.Service){change(balancer(corev1.LoadBalancerIPModeProxy))}, nil, "2 load balancer IPs (not served by nodes: ipMode Proxy)"},
		{"addresses that the plan does not want", specOf(), [][]func(*corev1.Service){change(balancer(corev1.LoadBalancerIPModeProxy, ranges), nodePort)}, nil, ""},
		{"a node without a family", specOf(all), [][]func(*corev1.Service){change(nodePort)}, func(nodes []cluster.Node) {
			nodes[0].InternalIPs = nodes[0].InternalIPs[:1]
		}, "1 node (node ports only: no internal IPv6 address)"},
		{"Services", specOf(), [][]func(*corev1.Service){change(headless), change(foreign)}, nil, "2 Services (not served by nodes: headless, ExternalName, or another proxy's)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			town := townOf(3)
			town.service("web", nil, "n0")
			for i, changes := range tt.services {
				town.service(fmt.Sprintf("s%d", i), changes, "n0")
			}
			if tt.nodes != nil {
				tt.nodes(town.Nodes)
			}
			_, warnings, err := Expand(planOf(tt.spec), "services", &town.Snapshot, 0)
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			if tt.want != "" {
				want = []string{"not measured: " + tt.want}
			}
			if diff := cmp.Diff(want, warnings); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestExpandErrors(t *testing.T) {
	tests := []struct {
		name string
		spec *Spec
		town func(*town)
		want string
	}{
		{"no nodes", specOf(), func(t *town) { t.Nodes = nil }, "the cluster has no nodes"},
		{"no node admitted", specOf(func(s *Spec) { s.Placement.NodeSelector = map[string]string{"a": "b"} }), nil, "no node can be a source: 3 nodes without label a=b"},
		{"another snapshot", specOf(func(s *Spec) { s.Services.Namespaces = []string{"shop"} }), nil, "does not list the services of namespace shop"},
		{"no Service", specOf(), func(t *town) { t.ServiceObjects = nil }, "none of 0 Services has a TCP port"},
		{"no address of the kind", specOf(func(s *Spec) { s.Addresses = []Address{NodePort} }), func(t *town) {
			t.ServiceObjects = t.ServiceObjects[:1]
		}, "none of 1 Service has a TCP port"},
		{"no node of the family", specOf(func(s *Spec) { s.Addresses = []Address{NodePort} }), func(t *town) {
			for i := range t.Nodes {
				t.Nodes[i].InternalIPs = nil
			}
		}, "no node has an address at which a node port answers"},
		{"budget", specOf(func(s *Spec) { s.Sample.Budget = 2 }), nil, "sample.budget: 2 pairs is not enough for one address from each of 3 nodes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			town := small()
			if tt.town != nil {
				tt.town(town)
			}
			_, _, err := Expand(planOf(tt.spec), "services", &town.Snapshot, 0)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

// TestJudge: what is measured against what is expected. web works on each node, empty is refused, log is dropped on n2.
func TestJudge(t *testing.T) {
	is := func(want answer, node, target string) func(string, string, answer) answer {
		return func(n, to string, right answer) answer {
			if n == node && strings.HasPrefix(to, target) {
				return want
			}
			return right
		}
	}
	tests := []struct {
		name           string
		wrong          func(string, string, answer) answer
		closed         servicecheck.Closed
		timeout        time.Duration // default 2 s
		verdict        checkup.RunVerdict
		reason         checkup.Reason
		message        string
		fail, unmeasur int
	}{
		{name: "right", wrong: is(connects, "", ""), verdict: checkup.RunPass},
		{name: "refused, should work", wrong: is(refused, "n0", "shop/db"), verdict: checkup.RunFail, reason: checkup.ReasonRefused, message: "connection refused", fail: 1},
		{name: "unreachable, should work", wrong: is(noRoute, "n0", "shop/db"), verdict: checkup.RunFail, reason: checkup.ReasonNoRoute, message: "no route to host", fail: 1},
		{name: "works at times", wrong: is(half, "n0", "shop/db"), verdict: checkup.RunFail, reason: checkup.ReasonTimedOut, message: "13 of 25 lost (52%), limit 1%", fail: 1},
		{name: "connects, should be refused", wrong: is(connects, "n1", "shop/empty 10."), verdict: checkup.RunFail, reason: checkup.ReasonReached, message: "must be refused, because the Service has no endpoint, but 5 of 5 connected", fail: 1},
		{name: "times out, should be refused", wrong: is(timeout, "n1", "shop/empty 10."), verdict: checkup.RunFail, reason: checkup.ReasonTimedOut, message: "must be refused, because the Service has no endpoint, but timed out after 2s", fail: 1},
		{name: "times out too soon to see it", wrong: is(timeout, "n1", "shop/empty 10."), timeout: time.Second, verdict: checkup.RunInconclusive, reason: checkup.ReasonTimedOut, message: "timed out after 1s: too soon to see a refusal", unmeasur: 1},
		{name: "times out, and may", wrong: is(timeout, "n1", "shop/empty 10."), closed: servicecheck.ClosedAny, verdict: checkup.RunPass},
		{name: "connects, should be dropped", wrong: is(connects, "n2", "shop/log 10."), verdict: checkup.RunFail, reason: checkup.ReasonReached, message: "must be dropped, because the Service has no endpoint on this node, but 5 of 5 connected", fail: 1},
		{name: "refused, should be dropped", wrong: is(refused, "n2", "shop/log 10."), verdict: checkup.RunFail, reason: checkup.ReasonRefused, message: "must be dropped, because the Service has no endpoint on this node, but connection refused", fail: 1},
		{name: "refused, and may be", wrong: is(refused, "n2", "shop/log 10."), closed: servicecheck.ClosedAny, verdict: checkup.RunPass},
		{name: "silent", wrong: is(silent, "n0", "shop/db"), verdict: checkup.RunInconclusive, message: "the agent exited without reporting this pair", unmeasur: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := expanded(t, specOf(func(s *Spec) {
				s.Expect.Closed, s.Probe.Timeout = tt.closed, checkup.Duration(stdcmp.Or(tt.timeout, time.Duration(s.Probe.Timeout)))
			}), small())
			r := measure(t, w, tt.wrong)
			look(t, w, r, tt.wrong)
			report := Judge(w, Kind.Roster(nil, w, nil), r, planOf(nil).Gate)
			c := report.Counts
			if report.Verdict != tt.verdict || c.Fail != tt.fail || c.Unmeasured != tt.unmeasur || c.Expected != w.CountPairs() {
				t.Fatalf("%s, %+v; units %+v", report.Verdict, c, report.Units)
			}
			if tt.message == "" {
				return
			}
			u := report.Units[0]
			if len(report.Units) != 1 || u.Cause.Reason != tt.reason || !strings.Contains(u.Cause.Message, tt.message) {
				t.Errorf("units %+v: cause %v, want %q: %s", report.Units, u.Cause, tt.reason, tt.message)
			}
			if u.Labels[labelService] == "" || u.Labels[checkup.UnitAddress] == "" {
				t.Errorf("labels %v", u.Labels)
			}
			if tt.fail > 0 && u.Confirmation != checkup.Confirmed {
				t.Errorf("confirmation %q", u.Confirmation)
			}
		})
	}
}

// TestGone: a failure that is gone in the second look is no failure.
func TestGone(t *testing.T) {
	w := expanded(t, specOf(), small())
	wrong := func(n, to string, right answer) answer {
		if n == "n0" && strings.HasPrefix(to, "shop/") {
			return timeout
		}
		return right
	}
	r := measure(t, w, wrong)
	look(t, w, r, func(_, _ string, right answer) answer { return right })
	report := Judge(w, Kind.Roster(nil, w, nil), r, planOf(nil).Gate)
	if report.Verdict != checkup.RunPass || len(report.Findings) != 0 || len(report.Units) == 0 || report.Units[0].Confirmation != checkup.Gone {
		t.Errorf("%s, findings %v, units %+v", report.Verdict, report.Findings, report.Units)
	}
	if next := Again(w, Kind.Roster(nil, w, nil), r, checkup.Gate{}); next != nil {
		t.Error("looks again although the gate does not confirm")
	}
}

// TestHeldUp: what could not be measured because an agent was held up is measured in the second look.
func TestHeldUp(t *testing.T) {
	w := expanded(t, specOf(), small())
	r := measure(t, w, func(n, to string, right answer) answer {
		if n == "n0" && strings.HasPrefix(to, "shop/db") {
			return heldUp
		}
		return right
	})
	first := Judge(w, Kind.Roster(nil, w, nil), r, planOf(nil).Gate)
	look(t, w, r, func(_, _ string, right answer) answer { return right })
	report := Judge(w, Kind.Roster(nil, w, nil), r, planOf(nil).Gate)
	if first.Counts.Unmeasured != 1 || report.Verdict != checkup.RunPass || report.Counts.Pass != w.CountPairs() {
		t.Errorf("first %+v; then %s, %+v", first.Counts, report.Verdict, report.Counts)
	}
}

// TestChanged: what failed, and of which something changed meanwhile, is unmeasured. What passed stays passed. If
// nobody knows, it is unmeasured, too.
func TestChanged(t *testing.T) {
	w := expanded(t, specOf(), small())
	wrong := func(n, to string, right answer) answer {
		if strings.HasPrefix(to, "shop/db") || n == "n0" && strings.HasPrefix(to, "shop/web") {
			return refused
		}
		return right
	}
	tests := []struct {
		name             string
		change           func(*checkup.Record)
		fail, unmeasured int
		message          string
	}{
		{"nothing", func(*checkup.Record) {}, 5, 0, ""},
		{"db", func(r *checkup.Record) { changed(w, r, "shop/db") }, 2, 3, "changed during the run: the Service or its endpoints are not what they were at setup; measured: connection refused"},
		{"all", func(r *checkup.Record) { changed(w, r, "shop/") }, 0, 5, "changed during the run"},
		{"not read", func(r *checkup.Record) { r.Facts = nil }, 0, 5, "while it was measured: the probe task did not read the Services again; measured: connection refused"},
		{"not readable", func(r *checkup.Record) {
			r.Facts = servicecheck.Unknown(errors.New("no right"))
		}, 0, 5, "while it was measured: no right"},
		{"nonsense", func(r *checkup.Record) { r.Facts[0].Content = []byte(`"x"`) }, 0, 5, "while it was measured: json"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := measure(t, w, wrong)
			look(t, w, r, wrong)
			tt.change(r)
			report := Judge(w, Kind.Roster(nil, w, nil), r, checkup.Gate{Confirm: true})
			if c := report.Counts; c.Fail != tt.fail || c.Unmeasured != tt.unmeasured || c.Pass != c.Expected-5 {
				t.Fatalf("%+v", c)
			}
			for _, u := range report.Units {
				if u.Verdict == checkup.Unmeasured && !strings.Contains(u.Cause.Message, tt.message) {
					t.Errorf("cause %q, want %q", u.Cause.Message, tt.message)
				}
			}
		})
	}
}

// TestFindings: which cause explains what fails.
func TestFindings(t *testing.T) {
	all := func(node, to string, _ answer) bool { return true }
	on := func(nodes ...string) func(string, string, answer) bool {
		return func(node, _ string, _ answer) bool { return slices.Contains(nodes, node) }
	}
	at := func(prefix string, nodes ...string) func(string, string, answer) bool {
		return func(node, to string, _ answer) bool {
			return strings.HasPrefix(to, "shop/"+prefix) && (len(nodes) == 0 || slices.Contains(nodes, node))
		}
	}
	either := func(these ...func(string, string, answer) bool) func(string, string, answer) bool {
		return func(node, to string, a answer) bool {
			return slices.ContainsFunc(these, func(is func(string, string, answer) bool) bool { return is(node, to, a) })
		}
	}
	tests := []struct {
		name string
		dead func(node, to string, right answer) bool
		want []string
	}{
		{"nothing", on(), nil},
		{"everything", all, []string{"network : Services do not work from any node"}},
		{"one family", func(_, to string, _ answer) bool { return strings.Contains(to, "[") }, []string{
			"family IPv6: IPv6 addresses of Services do not work from any node",
		}},
		{"one node", on("n2"), []string{"node n2: node n2: most Services do not work from it, and work from other nodes: its service proxy does not run, or has not written its rules"}},
		{"three of four nodes", on("n1", "n2", "n3"), []string{
			"node n1: node n1: most Services do not work from it, and work from other nodes: its service proxy does not run, or has not written its rules",
			"node n2: node n2: most Services do not work from it, and work from other nodes: its service proxy does not run, or has not written its rules",
			"node n3: node n3: most Services do not work from it, and work from other nodes: its service proxy does not run, or has not written its rules",
		}},
		{"one Service", at("s3"), []string{"service shop/s3: Service shop/s3: timed out from every node"}},
		{"one Service in one family", at("s3 ["), []string{"service shop/s3 IPv6: Service shop/s3 IPv6: timed out from every node"}},
		{"one Service, and a node", either(at("s3"), on("n1")), []string{
			"node n1: node n1: most Services do not work from it, and work from other nodes: its service proxy does not run, or has not written its rules",
			"service shop/s3: Service shop/s3: timed out from every node",
		}},
		{"a stale node", either(at("s1", "n0"), at("s2", "n0")), []string{
			"node n0: node n0: 2 Services do not work from it, and work from other nodes: its service proxy is not up to date",
		}},
		{"one Service from two nodes", at("s1", "n0", "n3"), []string{"service shop/s1: Service shop/s1: timed out from n0, n3"}},
		{"one Service from one node", at("s1", "n3"), []string{"pair n3 -> shop/s1: Service shop/s1: timed out from node n3"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			town := townOf(4)
			for i := range 6 {
				town.service(fmt.Sprintf("s%d", i), nil, "n0", "n1")
			}
			w := expanded(t, specOf(), town)
			wrong := func(n, to string, right answer) answer {
				if tt.dead(n, to, right) {
					return timeout
				}
				return right
			}
			r := measure(t, w, wrong)
			look(t, w, r, wrong)
			report := Judge(w, Kind.Roster(nil, w, nil), r, planOf(nil).Gate)
			var got []string
			explained := 0
			for _, f := range report.Findings {
				got = append(got, fmt.Sprintf("%s %s: %s", f.Cause, f.Subject, f.Message))
				explained += f.OnlyThis
				if f.Confirmation != checkup.Confirmed {
					t.Errorf("%s: confirmation %q", f.Message, f.Confirmation)
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if explained != report.Counts.Fail {
				t.Errorf("%d of %d failed pairs are explained", explained, report.Counts.Fail)
			}
		})
	}
}

// TestWhy: a finding about one Service from every node has the policy or the hints that decide.
func TestWhy(t *testing.T) {
	zoned := func(t *town, name string) {
		for i := range t.EndpointSlices {
			if s := &t.EndpointSlices[i]; s.Labels[discoveryv1.LabelServiceName] == name {
				for k := range s.Endpoints {
					s.Endpoints[k].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: []string{"zone-a", "zone-b"}[k%2]}}}
				}
			}
		}
	}
	ending := func(t *town, name string) {
		for i := range t.EndpointSlices {
			if s := &t.EndpointSlices[i]; s.Labels[discoveryv1.LabelServiceName] == name {
				s.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
				s.Endpoints[1].Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false)}
			}
		}
	}
	for _, tt := range []struct {
		name   string
		town   func(*town)
		change []func(*corev1.Service)
		want   []string
	}{
		{name: "all ready endpoints", want: []string{"the Service has 3 usable endpoints"}},
		{name: "a policy", change: []func(*corev1.Service){local}, want: []string{
			"internalTrafficPolicy is Local: only endpoints on the node itself serve the cluster IP",
		}},
		{name: "hints", town: func(t *town) { zoned(t, "s0") }, want: []string{
			"the Service has 3 usable endpoints", "topology hints keep 2 of 3 endpoints to zone-a", "topology hints keep 1 of 3 endpoints to zone-b",
		}},
		{name: "a policy and hints", change: []func(*corev1.Service){local}, town: func(t *town) { zoned(t, "s0") }, want: []string{
			"internalTrafficPolicy is Local: only endpoints on the node itself serve the cluster IP",
		}},
		{name: "a policy for others", change: []func(*corev1.Service){func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyLocal
		}}, want: []string{"the Service has 3 usable endpoints"}},
		{name: "one that terminates", town: func(t *town) {
			for i := range t.EndpointSlices {
				t.EndpointSlices[i].Endpoints = t.EndpointSlices[i].Endpoints[:2]
			}
			ending(t, "s0")
		}, want: []string{"the Service has 1 usable endpoint", "no endpoint is ready; 1 terminating serves"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			town := townOf(4)
			for i := range town.Nodes {
				town.Nodes[i].Labels = map[string]string{corev1.LabelTopologyZone: []string{"zone-a", "zone-b"}[i%2]}
			}
			for i := range 3 {
				var changes []func(*corev1.Service)
				if i == 0 {
					changes = tt.change
				}
				town.service(fmt.Sprintf("s%d", i), changes, "n0", "n1", "n2")
			}
			if tt.town != nil {
				tt.town(town)
			}
			w := expanded(t, specOf(), town)
			wrong := func(_, to string, right answer) answer {
				if strings.HasPrefix(to, "shop/s0") {
					return noRoute
				}
				return right
			}
			r := measure(t, w, wrong)
			look(t, w, r, wrong)
			report := Judge(w, Kind.Roster(nil, w, nil), r, planOf(nil).Gate)
			if len(report.Findings) != 1 || report.Findings[0].Subject != "shop/s0" || len(report.Findings[0].For) < 2 {
				t.Fatalf("findings %+v", report.Findings)
			}
			if diff := cmp.Diff(tt.want, report.Findings[0].For[1:]); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestAskAfter: what changed is found, also if it was undone; what did not is not. A failed request is a cause.
func TestAskAfter(t *testing.T) {
	tests := []struct {
		name   string
		change func(*town)
		want   []string // beginnings of the labels of the changed targets
	}{
		{"nothing", func(*town) {}, nil},
		{"a label of a Service", func(t *town) { t.ServiceObjects[0].Labels["x"] = "y" }, nil},
		{"an endpoint", func(t *town) { t.EndpointSlices[0].Endpoints = t.EndpointSlices[0].Endpoints[:1] }, []string{"shop/web 10."}},
		{"an endpoint that went and came back", func(t *town) { t.EndpointSlices[1].Generation += 2 }, []string{"shop/web ["}},
		{"an endpoint that is not ready", func(t *town) { t.EndpointSlices[0].Endpoints[0].Conditions.Ready = new(false) }, []string{"shop/web 10."}},
		{"a policy", func(t *town) { local(&t.ServiceObjects[0]) }, []string{"shop/web 10.", "shop/web ["}},
		{"a deleted Service", func(t *town) { t.ServiceObjects = t.ServiceObjects[1:] }, []string{"shop/web 10.", "shop/web ["}},
		{"a new one of the same name", func(t *town) { t.ServiceObjects[0].UID = "other" }, []string{"shop/web 10.", "shop/web ["}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := expanded(t, specOf(), small())
			now := small()
			tt.change(now)
			client := fake.NewSimpleClientset(objectsOf(now)...)
			facts := AskAfter(t.Context(), client, w)
			found, why := servicecheck.ChangedSince(&checkup.Record{Facts: facts})
			if why != nil {
				t.Fatal(why)
			}
			var got []string
			for i := range w.Targets {
				if found[i] {
					label, _, _ := strings.Cut(w.Targets[i].Label, "96")
					got = append(got, strings.TrimSuffix(label, "fd00:"))
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	client := fake.NewSimpleClientset()
	client.PrependReactor("list", "endpointslices", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("endpointslices"), "", errors.New("no"))
	})
	_, why := servicecheck.ChangedSince(&checkup.Record{Facts: AskAfter(t.Context(), client, expanded(t, specOf(), small()))})
	if why == nil || !strings.Contains(why.Message, "missing the verb list on endpointslices in the whole cluster") {
		t.Errorf("without the right: %v", why)
	}
}

func objectsOf(t *town) []runtime.Object {
	var all []runtime.Object
	for i := range t.ServiceObjects {
		all = append(all, &t.ServiceObjects[i])
	}
	for i := range t.EndpointSlices {
		all = append(all, &t.EndpointSlices[i])
	}
	return all
}

// TestSurvey: what is read is what the checks of the plan select, each object once, and it is expanded as if it had
// been listed for one check.
func TestSurvey(t *testing.T) {
	town := small()
	client := fake.NewSimpleClientset(objectsOf(town)...)
	plan := planOf(specOf(func(s *Spec) { s.Services.Namespaces = []string{"shop"} }))
	plan.Checks["all"] = checkup.Check{Spec: specOf()}
	snapshot := &cluster.Snapshot{Nodes: town.Nodes}
	if err := Survey(t.Context(), cluster.Reader{Kubernetes: client}, plan, snapshot); err != nil {
		t.Fatal(err)
	}
	if len(snapshot.ServiceObjects) != len(town.ServiceObjects) || len(snapshot.EndpointSlices) != len(town.EndpointSlices) {
		t.Errorf("%d Services, %d slices", len(snapshot.ServiceObjects), len(snapshot.EndpointSlices))
	}
	for _, check := range []string{"services", "all"} {
		w, _, err := Expand(plan, check, snapshot, 0)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(described(t, expanded(t, specOf(), town)), described(t, w)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", check, diff)
		}
	}
	for _, resource := range []string{"endpointslices", "services"} {
		client.PrependReactor("list", resource, func(k8stesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(corev1.Resource(resource), "", errors.New("no"))
		})
		err := Survey(t.Context(), cluster.Reader{Kubernetes: client}, plan, &cluster.Snapshot{})
		for _, want := range []string{"in namespace shop", "in the whole cluster"} {
			if err == nil || !strings.Contains(err.Error(), "missing the verb list on "+resource+" "+want) {
				t.Errorf("without the right to list %s %s: %v", resource, want, err)
			}
		}
	}
}

// TestSheetOfAnother: details that do not fit the worksheet are an error, and the check is not measured.
func TestSheetOfAnother(t *testing.T) {
	w := expanded(t, specOf(), small())
	for _, details := range []string{``, `{}`, `{"targets":[],"expected":[]}`, strings.Replace(string(w.Details), `"expected":["w`, `"expected":["`, 1)} {
		other := *w
		other.Details = []byte(details)
		report := Judge(&other, nil, nil, checkup.Gate{})
		if report.Verdict != checkup.RunInconclusive || report.Cause == nil || !strings.Contains(report.Cause.Message, "read the details") {
			t.Errorf("%.40s: %s, %v", details, report.Verdict, report.Cause)
		}
	}
}
