// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/cost"
	"github.com/checkplan/checkplan/pkg/kind"
)

// TestQuestions: what is asked of each sort of Service, and what must be answered, by the DNS specification.
func TestQuestions(t *testing.T) {
	notReady := func(_ *corev1.Service, slices []discoveryv1.EndpointSlice) {
		for i := range slices {
			slices[i].Endpoints[0].Conditions.Ready = new(false)
		}
	}
	both := func(changes ...func(*corev1.Service, []discoveryv1.EndpointSlice)) func(*corev1.Service, []discoveryv1.EndpointSlice) {
		return func(s *corev1.Service, slices []discoveryv1.EndpointSlice) {
			for _, change := range changes {
				change(s, slices)
			}
		}
	}
	tests := []struct {
		name      string
		endpoints int
		change    func(*corev1.Service, []discoveryv1.EndpointSlice)
		want      string
	}{
		{"cluster IPs", 1, nil, `
A shop/x: x.shop.svc.cluster.local. x.shop.svc Records 10.96.0.1
AAAA shop/x: x.shop.svc.cluster.local. x.shop.svc Records fd00:96::1
SRV _http._tcp shop/x: _http._tcp.x.shop.svc.cluster.local. _http._tcp.x.shop.svc Records 80 x.shop.svc.cluster.local.
`},
		{"cluster IPs without endpoints", 0, nil, `
A shop/x: x.shop.svc.cluster.local. x.shop.svc Records 10.96.0.1
AAAA shop/x: x.shop.svc.cluster.local. x.shop.svc Records fd00:96::1
SRV _http._tcp shop/x: _http._tcp.x.shop.svc.cluster.local. _http._tcp.x.shop.svc Records 80 x.shop.svc.cluster.local.
`},
		{"one family, a port without a name", 1, both(onlyIPv4, func(s *corev1.Service, _ []discoveryv1.EndpointSlice) {
			s.Spec.Ports[0].Name = ""
		}), `
A shop/x: x.shop.svc.cluster.local. x.shop.svc Records 10.96.0.1
AAAA shop/x: x.shop.svc.cluster.local. x.shop.svc NoData
`},
		{"no address yet", 1, func(s *corev1.Service, _ []discoveryv1.EndpointSlice) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil
		}, ``},
		{"headless", 3, headless, `
A shop/x: x.shop.svc.cluster.local. x.shop.svc Records 10.244.1.1, 10.244.1.2, 10.244.1.3
AAAA shop/x: x.shop.svc.cluster.local. x.shop.svc Records fd00:244::1:1, fd00:244::1:2, fd00:244::1:3
SRV _http._tcp shop/x: _http._tcp.x.shop.svc.cluster.local. _http._tcp.x.shop.svc Records 8080 *.x.shop.svc.cluster.local., 8080 *.x.shop.svc.cluster.local., 8080 *.x.shop.svc.cluster.local., 8080 *.x.shop.svc.cluster.local., 8080 first.x.shop.svc.cluster.local.
`},
		{"headless in one family, the first endpoint not ready", 2, both(headless, onlyIPv4, func(_ *corev1.Service, slices []discoveryv1.EndpointSlice) {
			slices[0].Endpoints[0].Conditions.Ready = new(false)
			slices[0].Endpoints[1].Conditions.Ready = nil
		}), `
A shop/x: x.shop.svc.cluster.local. x.shop.svc Records 10.244.1.2
AAAA shop/x: x.shop.svc.cluster.local. x.shop.svc NoData
SRV _http._tcp shop/x: _http._tcp.x.shop.svc.cluster.local. _http._tcp.x.shop.svc Records 8080 *.x.shop.svc.cluster.local.
`},
		{"headless, nothing ready", 1, both(headless, notReady), `
A shop/x: x.shop.svc.cluster.local.  None
AAAA shop/x: x.shop.svc.cluster.local.  None
SRV _http._tcp shop/x: _http._tcp.x.shop.svc.cluster.local.  None
`},
		{"headless, a port that no endpoint has", 1, both(headless, func(s *corev1.Service, _ []discoveryv1.EndpointSlice) {
			s.Spec.Ports[0].Name = "grpc"
		}), `
A shop/x: x.shop.svc.cluster.local. x.shop.svc Records 10.244.1.1
AAAA shop/x: x.shop.svc.cluster.local. x.shop.svc Records fd00:244::1:1
SRV _grpc._tcp shop/x: _grpc._tcp.x.shop.svc.cluster.local.  None
`},
		{"headless, more than an answer holds", checkup.MaxRecords + 1, both(headless, func(s *corev1.Service, slices []discoveryv1.EndpointSlice) {
			onlyIPv4(s, slices)
			for i := range slices[0].Endpoints {
				slices[0].Endpoints[i].Addresses[0] = fmt.Sprintf("10.1.%d.%d", i/200, i%200)
			}
		}), `
AAAA shop/x: x.shop.svc.cluster.local. x.shop.svc NoData
note: 2 questions with more than 1000 records are not asked: A shop/x, SRV _http._tcp shop/x
`},
		{"external", 0, func(s *corev1.Service, _ []discoveryv1.EndpointSlice) {
			s.Spec.Type, s.Spec.ExternalName, s.Spec.ClusterIP = corev1.ServiceTypeExternalName, "WWW.Example.com", ""
		}, `
CNAME shop/x: x.shop.svc.cluster.local. x.shop.svc Records www.example.com.
`},
		{"external, an address", 0, func(s *corev1.Service, _ []discoveryv1.EndpointSlice) {
			s.Spec.Type, s.Spec.ExternalName, s.Spec.ClusterIP = corev1.ServiceTypeExternalName, "192.0.2.1", ""
		}, `
note: 1 Service without a question, because externalName is no DNS name: shop/x
`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			town := &town{}
			town.service("shop", "x", tt.endpoints, tt.change)
			all, warnings := questionsOf(specOf(), &town.Snapshot)
			var b strings.Builder
			b.WriteString("\n")
			for _, q := range all {
				if q.service != "" {
					fmt.Fprintln(&b, strings.TrimSpace(fmt.Sprintf("%s: %s %s %s %s", q.label, q.absolute, q.relative, q.answer, strings.Join(q.records, ", "))))
				}
			}
			for _, warning := range warnings {
				fmt.Fprintln(&b, "note:", warning)
			}
			if diff := cmp.Diff(strings.TrimPrefix(tt.want, "\n"), strings.TrimPrefix(b.String(), "\n")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	spec := specOf(func(s *Spec) { s.ExternalNames, s.Services.Namespaces = []string{"example.com"}, []string{"shop"} })
	var got []string
	all, _ := questionsOf(spec, &cluster.Snapshot{})
	for _, q := range all {
		got = append(got, fmt.Sprintf("%s: %s %s %s", q.label, q.absolute, q.relative, q.answer))
	}
	want := []string{
		"A checkplan-no-such-service.shop: checkplan-no-such-service.shop.svc.cluster.local.  NoName",
		"A example.com: example.com. example.com Any",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("other names (-want +got):\n%s", diff)
	}
}

// TestServers: who is asked.
func TestServers(t *testing.T) {
	notReady := func(t *town) { t.EndpointSlices[0].Endpoints[1].Conditions.Ready = new(false) }
	tests := []struct {
		name string
		town *town
		spec *Spec
		edit func(*town)
		want string
	}{
		{"all", townOf(1, 2, corev1.IPv4Protocol, corev1.IPv6Protocol), specOf(), nil, `
resolver TCP 53, resolver UDP 53, 10.244.1.1 TCP 53, 10.244.1.1 UDP 53, 10.244.1.2 TCP 53, 10.244.1.2 UDP 53, fd00:244::1:1 TCP 53, fd00:244::1:1 UDP 53, fd00:244::1:2 TCP 53, fd00:244::1:2 UDP 53
families [IPv4 IPv6]`},
		{"endpoints over UDP, one not ready", townOf(1, 2, corev1.IPv4Protocol), specOf(func(s *Spec) {
			s.Servers, s.Transports = []Server{Endpoints}, []Transport{UDP}
		}), notReady, `
10.244.1.1 UDP 53
families [IPv4]`},
		{"resolver of an IPv6 cluster", townOf(1, 1, corev1.IPv6Protocol), specOf(func(s *Spec) { s.Servers = []Server{Resolver} }), nil, `
resolver UDP 53, resolver TCP 53
families [IPv6]`},
		{"resolver without a DNS Service", &town{}, specOf(func(s *Spec) { s.Servers = []Server{Resolver} }), nil, `
resolver UDP 53, resolver TCP 53
families [IPv4]`},
		{"another port behind 53", townOf(1, 1, corev1.IPv4Protocol), specOf(func(s *Spec) { s.Servers, s.Transports = []Server{Endpoints}, []Transport{UDP} }), func(t *town) {
			t.EndpointSlices[0].Ports[0].Port = new(int32(5353))
		}, `
10.244.1.1 UDP 5353
families [IPv4]`},
		{"no TCP", townOf(1, 1, corev1.IPv4Protocol), specOf(func(s *Spec) { s.Servers = []Server{Endpoints} }), func(t *town) {
			t.ServiceObjects[0].Spec.Ports = t.ServiceObjects[0].Spec.Ports[:1]
		}, `
10.244.1.1 UDP 53
families [IPv4]
the DNS Service kube-system/kube-dns has no port 53 of TCP: its endpoints are not asked over it`},
		{"nothing ready", townOf(1, 0, corev1.IPv4Protocol), specOf(), nil, `
resolver TCP 53, resolver UDP 53
families [IPv4]
the DNS Service kube-system/kube-dns has no ready endpoint`},
		{"nothing ready, and no resolver", townOf(1, 0, corev1.IPv4Protocol), specOf(func(s *Spec) { s.Servers = []Server{Endpoints} }), nil, `
error: no DNS server: the DNS Service kube-system/kube-dns has no ready endpoint at its port 53`},
		{"no DNS Service", &town{}, specOf(), nil, `
error: there is no Service kube-system/kube-dns: name the cluster's DNS Service in dnsService, or leave Endpoints out of servers`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.edit != nil {
				tt.edit(tt.town)
			}
			all, warnings, err := serversOf(tt.spec, &tt.town.Snapshot)
			var servers []string
			for _, s := range all {
				servers = append(servers, fmt.Sprintf("%s %s %d", s.name, s.transport, s.port))
			}
			got := "\n" + strings.Join(servers, ", ") + "\n" +
				fmt.Sprint("families ", families(all, dnsService(tt.spec, &tt.town.Snapshot)))
			if err != nil {
				got = "\nerror: " + err.Error()
			}
			for _, warning := range warnings {
				got += "\n" + warning
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestExpand: each node asks all questions at all servers over both transports, or a sample of them; successive rounds
// add up. A resolver is asked as a pod asks, an endpoint for the absolute name.
func TestExpand(t *testing.T) {
	w := expanded(t, specOf(), small())
	// kube-dns has A, AAAA and three SRV (it has two families of addresses), web and old A, AAAA and SRV, db the same.
	if got, want := w.CountPairs(), 3*(5+3+3+3+1)*(2+2*2); got != want || w.Possible != want || w.Rounds != 1 {
		t.Errorf("%d pairs of %d in %d rounds, want %d", got, w.Possible, w.Rounds, want)
	}
	names := map[string]string{}
	for _, target := range w.Targets {
		names[target.Label] = target.Peer.Question.Name
	}
	for label, want := range map[string]string{
		"A shop/web at resolver/UDP":                                  "web.shop.svc",
		"A shop/web at 10.244.1.1:53/TCP":                             "web.shop.svc.cluster.local.",
		"SRV _http._tcp shop/db at resolver/TCP":                      "_http._tcp.db.shop.svc",
		"A checkplan-no-such-service.default at resolver/UDP":         "checkplan-no-such-service.default.svc.cluster.local.",
		"SRV _dns._udp kube-system/kube-dns at 10.244.1.2:53/UDP":     "_dns._udp.kube-dns.kube-system.svc.cluster.local.",
		"AAAA shop/old at 10.244.1.2:53/UDP":                          "old.shop.svc.cluster.local.",
		"SRV _metrics._tcp kube-system/kube-dns at 10.244.1.1:53/TCP": "_metrics._tcp.kube-dns.kube-system.svc.cluster.local.",
		"SRV _dns-tcp._tcp kube-system/kube-dns at 10.244.1.1:53/UDP": "_dns-tcp._tcp.kube-dns.kube-system.svc.cluster.local.",
		"A checkplan-no-such-service.default at 10.244.1.2:53/TCP":    "checkplan-no-such-service.default.svc.cluster.local.",
		"AAAA kube-system/kube-dns at resolver/TCP":                   "kube-dns.kube-system.svc",
	} {
		if names[label] != want {
			t.Errorf("%s asks for %q, want %q", label, names[label], want)
		}
	}
	spec := specOf(func(s *Spec) { s.Sample.Degree = 7 })
	all := map[[2]string]bool{}
	rounds := expanded(t, spec, small()).Rounds
	for round := range rounds {
		w, _, err := Expand(planOf(spec), "dns", &small().Snapshot, round)
		if err != nil {
			t.Fatal(err)
		}
		if got := w.CountPairs(); got != 3*7 {
			t.Errorf("round %d: %d pairs, want %d", round, got, 3*7)
		}
		for p := range w.Pairs() {
			all[[2]string{w.Sources[p.Source].Node, w.Targets[p.Target].Label}] = true
		}
	}
	if len(all) != w.Possible {
		t.Errorf("%d rounds ask %d of %d", rounds, len(all), w.Possible)
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
		{"another snapshot", specOf(func(s *Spec) { s.Services.Namespaces = []string{"shop"} }), nil, "does not list the services of namespace shop"},
		{"no Service", specOf(), func(t *town) { t.ServiceObjects = nil }, "no Service is selected"},
		{"no DNS Service", specOf(func(s *Spec) { s.DNSService.Name = "dns" }), nil, "there is no Service kube-system/dns: name the cluster's DNS Service in dnsService"},
		{"budget", specOf(func(s *Spec) { s.Sample.Budget = 2 }), nil, "sample.budget: 2 pairs is not enough for one question from each of 3 nodes"},
		{"count", specOf(func(s *Spec) { s.Probe.Count = 0 }), nil, "probe.count and sample.budget must be at least 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			town := small()
			if tt.town != nil {
				tt.town(town)
			}
			_, _, err := Expand(planOf(tt.spec), "dns", &town.Snapshot, 0)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

// TestJudge: one pair that fails in each way, everything else right.
func TestJudge(t *testing.T) {
	tests := []struct {
		answer           answer
		verdict          checkup.RunVerdict
		fail, unmeasured int
		message          string
	}{
		{right, checkup.RunPass, 0, 0, ""},
		{wrong, checkup.RunFail, 1, 0, "answered NXDOMAIN"},
		{servfail, checkup.RunFail, 1, 0, "answered SERVFAIL"},
		{silent, checkup.RunFail, 1, 0, "timed out after 2s, twice"},
		{lossy, checkup.RunFail, 1, 0, "a pod's resolver waits 5s before it asks again"},
		{missing, checkup.RunInconclusive, 0, 1, "the agent exited without reporting this pair"},
	}
	for _, tt := range tests {
		t.Run("answer "+string(tt.answer), func(t *testing.T) {
			w := expanded(t, specOf(), small())
			report := judged(t, w, func(a asked) answer {
				if a.node == "n1" && a.server == "10.244.1.2" && a.question == "A shop/web" && a.transport == UDP {
					return tt.answer
				}
				return right
			})
			c := report.Counts
			if report.Verdict != tt.verdict || c.Fail != tt.fail || c.Unmeasured != tt.unmeasured || c.Expected != w.CountPairs() {
				t.Fatalf("%s, %+v; units %+v", report.Verdict, c, report.Units)
			}
			if tt.message == "" {
				return
			}
			u := report.Units[0]
			if len(report.Units) != 1 || !strings.Contains(u.Cause.Message, tt.message) {
				t.Errorf("units %+v: want %q", report.Units, tt.message)
			}
			want := map[string]string{"server": "10.244.1.2", "question": "A shop/web", "service": "shop/web", checkup.UnitSourceNode: "n1"}
			if diff := cmp.Diff(want, u.Labels); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
			if tt.fail > 0 && u.Confirmation != checkup.Confirmed {
				t.Errorf("confirmation %q", u.Confirmation)
			}
			if quoted := strings.Join(findingsFor(report), "\n"); (tt.fail > 0 && tt.answer != silent) != strings.Contains(quoted, tt.message) {
				t.Errorf("evidence %q: want %q unless nothing is answered", quoted, tt.message)
			}
		})
	}
}

// findingsFor is the evidence for all findings.
func findingsFor(r checkup.CheckReport) (lines []string) {
	for _, f := range r.Findings {
		lines = append(lines, f.For...)
	}
	return lines
}

// TestChanged: a wrong answer about a Service that changed, and any failure of a server of which the DNS Service
// changed, are unmeasured. Silence is not excused by a change of the Service that is asked for.
func TestChanged(t *testing.T) {
	before := func() *town {
		t := small()
		t.service("shop", "one", 1, func(s *corev1.Service, slices []discoveryv1.EndpointSlice) {
			headless(s, slices)
			onlyIPv4(s, slices)
		})
		return t
	}
	tests := []struct {
		name             string
		answer           answer
		change           func(*town)
		fail, unmeasured int
		question, server string // that get the answer
	}{
		{"nothing", wrong, func(*town) {}, 1, 0, "A shop/web", "10.244.1.2"},
		{"the Service, and a wrong answer", wrong, func(t *town) { t.EndpointSlices[1].Generation++ }, 0, 1, "A shop/web", "10.244.1.2"},
		{"the Service in another family", wrong, func(t *town) { t.EndpointSlices[2].Generation++ }, 1, 0, "A shop/web", "10.244.1.2"},
		{"the Service, and no answer", silent, func(t *town) { t.EndpointSlices[1].Generation++ }, 1, 0, "A shop/web", "10.244.1.2"},
		{"the DNS Service", silent, func(t *town) { t.EndpointSlices[0].Endpoints = t.EndpointSlices[0].Endpoints[:1] }, 0, 1, "A shop/web", "10.244.1.2"},
		{"a deleted Service", wrong, func(t *town) { t.ServiceObjects = t.ServiceObjects[:1] }, 0, 1, "A shop/web", "10.244.1.2"},
		{"the Service, and no answer of the resolver", silent, func(t *town) { t.EndpointSlices[1].Generation++ }, 0, 1,
			"A shop/web", ResolverName},
		{"a headless Service in the family that it has", wrong, func(t *town) { t.EndpointSlices[len(t.EndpointSlices)-2].Generation++ }, 0, 1,
			"AAAA shop/one", "10.244.1.2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := expanded(t, specOf(), before())
			network := func(a asked) answer {
				if a.node == "n1" && a.server == tt.server && a.question == tt.question && a.transport == UDP {
					return tt.answer
				}
				return right
			}
			r := measure(t, w, network)
			look(t, w, r, network)
			now := before()
			tt.change(now)
			r.Facts = AskAfter(t.Context(), fake.NewSimpleClientset(objectsOf(now)...), w)
			report := Judge(w, Kind.Roster(nil, w, nil), r, planOf(nil).Gate)
			if c := report.Counts; c.Fail != tt.fail || c.Unmeasured != tt.unmeasured || c.Pass != c.Expected-1 {
				t.Errorf("%+v, units %+v", c, report.Units)
			}
		})
	}
	client := fake.NewSimpleClientset()
	client.PrependReactor("list", "endpointslices", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("endpointslices"), "", errors.New("no"))
	})
	facts := AskAfter(t.Context(), client, expanded(t, specOf(), small()))
	if len(facts) != 1 || facts[0].Cause == nil || !strings.Contains(facts[0].Cause.Message, "missing the verb list on endpointslices") {
		t.Errorf("without the right: %+v", facts)
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

// TestFindings: which cause explains what fails. A resolver whose Service has two endpoints is as often wrong as they
// are.
func TestFindings(t *testing.T) {
	const first, second = "10.244.1.1", "10.244.1.2"
	when := func(is func(asked) bool, as answer) func(asked) answer {
		return func(a asked) answer {
			if is(a) {
				return as
			}
			return right
		}
	}
	// through is what a resolver makes of a server that fails: every second question.
	through := func(server string, as answer) func(asked) answer {
		return func(a asked) answer {
			switch {
			case a.server == server:
				return as
			case a.server == ResolverName && as == silent:
				return lossy
			case a.server == ResolverName:
				return as
			}
			return right
		}
	}
	tests := []struct {
		name    string
		network func(asked) answer
		want    []string
	}{
		{"nothing", when(func(asked) bool { return false }, silent), nil},
		{"everything", when(func(asked) bool { return true }, silent), []string{"network : DNS does not work from any node: no answer"}},
		{"TCP", when(func(a asked) bool { return a.transport == TCP }, silent), []string{"transport TCP: DNS over TCP does not work from any node: no answer"}},
		{"IPv6 servers", when(func(a asked) bool { return strings.Contains(a.server, ":") }, silent), []string{
			"family IPv6: IPv6 addresses of DNS servers do not work from any node: no answer",
		}},
		{"AAAA", when(func(a asked) bool { return a.kind == "AAAA" }, wrong), []string{"family AAAA: questions of the type AAAA: wrong answers everywhere"}},
		{"a silent server, and the resolvers that are sent to it", through(second, silent), []string{
			"target " + second + ": DNS server " + second + ": no answer from every node",
		}},
		{"a server that answers wrongly", through(first, wrong), []string{
			"target " + first + ": DNS server " + first + ": wrong answers from every node",
		}},
		{"a server that only pods of its own node reach", when(func(a asked) bool { return a.server == first && a.node != "n0" }, silent), []string{
			"target " + first + ": DNS server " + first + ": no answer from n1, n2, n3",
		}},
		{"three of four nodes", when(func(a asked) bool { return a.node != "n0" }, silent), []string{
			"node n1: node n1: DNS does not work from it, and works from other nodes: no answer",
			"node n2: node n2: DNS does not work from it, and works from other nodes: no answer",
			"node n3: node n3: DNS does not work from it, and works from other nodes: no answer",
		}},
		{"the resolver only", when(func(a asked) bool { return a.server == ResolverName }, silent), []string{
			"target resolver: the pods' resolver: no answer from every node",
		}},
		{"one node", when(func(a asked) bool { return a.node == "n2" }, silent), []string{
			"node n2: node n2: DNS does not work from it, and works from other nodes: no answer",
		}},
		{"one node and one server", when(func(a asked) bool { return a.node == "n2" && a.server == first }, silent), []string{
			"node n2 -> " + first + ": node n2: no answer from DNS server " + first + ", which answers other nodes",
		}},
		{"one Service", when(func(a asked) bool { return strings.HasSuffix(a.question, " shop/web") }, wrong), []string{
			"service shop/web: Service shop/web: wrong answers from every node and every server",
		}},
		{"one Service at one server", when(func(a asked) bool { return strings.HasSuffix(a.question, " shop/web") && a.server == first }, wrong), []string{
			"service shop/web: Service shop/web: wrong answers from every node, by DNS server " + first,
		}},
		{"one Service at one server from one node", when(func(a asked) bool {
			return a.question == "A shop/web" && a.server == first && a.node == "n0" && a.transport == UDP
		}, servfail), []string{"service shop/web: Service shop/web: errors from node n0, by DNS server " + first}},
		{"losses at one server", when(func(a asked) bool { return a.server == first && a.transport == UDP }, lossy), []string{
			"target " + first + ": DNS server " + first + ": lost datagrams at times from every node",
		}},
		{"SRV at one server", when(func(a asked) bool { return a.server == first && a.kind == "SRV" }, wrong), []string{
			"target " + first + ": DNS server " + first + ": wrong answers to some questions, from every node",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			town := townOf(4, 2, corev1.IPv4Protocol, corev1.IPv6Protocol)
			town.service("shop", "web", 2, nil)
			town.service("shop", "db", 3, headless)
			w := expanded(t, specOf(), town)
			report := judged(t, w, tt.network)
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

// TestBlocks: the servers with their delays, and how often TCP was needed; no number is believed beyond what was sent.
func TestBlocks(t *testing.T) {
	w := expanded(t, specOf(func(s *Spec) { s.Servers = []Server{Resolver} }), small())
	r := measure(t, w, func(asked) answer { return right })
	for i := range r.Observations {
		if o := &r.Observations[i]; o.Transport == checkup.DNSUDP && o.Source == 0 {
			o.Truncated, o.Repeated = 1000000, -5
		}
	}
	blocks := Judge(w, Kind.Roster(nil, w, nil), r, planOf(nil).Gate).Blocks
	n := float64(3 * w.CountPairs() / 3 / 2) // a node's pairs over UDP
	want := map[string][]any{"TCP": {"resolver", "TCP", 0.0, 0.0, 310.0}, "UDP": {"resolver", "UDP", 0.0, n, 310.0}}
	for _, row := range blocks[0].Table.Rows {
		got := []any{row[0].Text, row[1].Text, *row[8].Number, *row[9].Number, *row[6].Number}
		if diff := cmp.Diff(want[row[1].Text], got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	stages := map[string]float64{} // p50
	for _, row := range blocks[1].Table.Rows {
		stages[row[0].Text+" "+row[1].Text+" "+row[2].Text] = *row[3].Number
	}
	if diff := cmp.Diff(map[string]float64{"resolver TCP connect": 101, "resolver TCP answer": 209, "resolver UDP answer": 310}, stages); diff != "" {
		t.Errorf("stages (-want +got):\n%s", diff)
	}
	if last := blocks[len(blocks)-1].Note; !strings.Contains(last, fmt.Sprintf("%.0f answers did not fit in a datagram", n)) {
		t.Errorf("note %q", last)
	}
}

// TestStages: only what is a part of a delay is believed.
func TestStages(t *testing.T) {
	for _, tt := range []struct {
		name           string
		rtts, connects []int64
		want           []int64 // of the answers
	}{
		{"over TCP", []int64{300, 310}, []int64{100, 310}, []int64{200, 0}},
		{"over UDP", []int64{300, 310}, nil, nil},
		{"too few", []int64{300, 310}, []int64{100}, nil},
		{"too long", []int64{300}, []int64{301}, nil},
		{"negative", []int64{300}, []int64{-1}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			connects, answers := stages(&checkup.Observation{RTTs: tt.rtts, Connects: tt.connects})
			if diff := cmp.Diff(tt.want, answers); diff != "" || (tt.want == nil) != (connects == nil) {
				t.Errorf("connects %v, answers (-want +got):\n%s", connects, diff)
			}
		})
	}
}

// TestSurvey: the selected Services are read, and the DNS Service, and each only once.
func TestSurvey(t *testing.T) {
	town := small()
	client := fake.NewSimpleClientset(objectsOf(town)...)
	plan := planOf(specOf(func(s *Spec) { s.Services.Namespaces = []string{"shop"} }))
	snapshot := &cluster.Snapshot{Nodes: town.Nodes}
	if err := Survey(t.Context(), cluster.Reader{Kubernetes: client}, plan, snapshot); err != nil {
		t.Fatal(err)
	}
	if len(snapshot.ServiceObjects) != len(town.ServiceObjects) {
		t.Errorf("%d Services", len(snapshot.ServiceObjects))
	}
	w, _, err := Expand(plan, "dns", snapshot, 0)
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(w.Targets, func(e checkup.Endpoint) bool { return strings.Contains(e.Label, "kube-system") }) {
		t.Error("asks for the DNS Service, which is not selected")
	}
	client.PrependReactor("list", "services", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("services"), "", errors.New("no"))
	})
	if err := Survey(t.Context(), cluster.Reader{Kubernetes: client}, plan, &cluster.Snapshot{}); err == nil || !strings.Contains(err.Error(), "missing the verb list on services in namespace kube-system") {
		t.Errorf("without the right: %v", err)
	}
}

// TestRights: the namespaces that are listed, before and after, and no others.
func TestRights(t *testing.T) {
	for _, tt := range []struct {
		namespaces []string
		want       []string
	}{
		{nil, []string{""}},
		{[]string{"shop"}, []string{"shop", "kube-system"}},
		{[]string{"kube-system"}, []string{"kube-system"}},
	} {
		rights := Rights(checkup.Check{Spec: specOf(func(s *Spec) { s.Services.Namespaces = tt.namespaces })})
		found := map[string]int{}
		for _, r := range rights {
			found[r.Namespace]++
			if r.Verb != "list" || (r.Namespace == "") != (r.Scope == checkup.ScopeCluster) {
				t.Errorf("right %+v", r)
			}
		}
		for _, namespace := range tt.want {
			if found[namespace] != 4 {
				t.Errorf("%v: %d rights in %q, want 4", tt.namespaces, found[namespace], namespace)
			}
		}
		if len(found) != len(tt.want) {
			t.Errorf("%v: rights in %v", tt.namespaces, found)
		}
	}
}

// TestSheetOfAnother: details that do not fit the worksheet are an error, and the check is not measured.
func TestSheetOfAnother(t *testing.T) {
	w := expanded(t, specOf(), small())
	bare := *w
	bare.Targets = slices.Clone(w.Targets)
	bare.Targets[0].Peer = nil
	for _, other := range []checkup.Worksheet{{Details: []byte(`{`)}, {Targets: w.Targets, Details: []byte(`{"targets":[]}`)}, bare} {
		report := Judge(&other, nil, nil, checkup.Gate{})
		if report.Verdict != checkup.RunInconclusive || report.Cause == nil || !strings.Contains(report.Cause.Message, "read the ") {
			t.Errorf("%.40s: %s, %v", other.Details, report.Verdict, report.Cause)
		}
	}
}

// TestExplain: what is shown before a run.
func TestExplain(t *testing.T) {
	spec := specOf(func(s *Spec) { s.Sample.Degree = 30 })
	w := expanded(t, spec, small())
	x := Explain(kind.Explained{
		Spec: spec, Worksheet: w, Gate: planOf(nil).Gate, Cost: cost.Of(w, planOf(spec), "agent"),
	})
	var b strings.Builder
	for _, f := range x.Fields {
		fmt.Fprintf(&b, "%s: %s\n", f.Name, f.Text)
	}
	for _, row := range x.Blocks[0].Table.Rows {
		fmt.Fprintln(&b, row[0].Text, *row[1].Number, *row[2].Number)
	}
	want := `
questions: 15 (5 A, 4 AAAA, 6 SRV), about 4 Services
sample: round 0 of 3, degree 30, seed 2795667898750280
pairs: 90: a node, a question, a server and a transport; each 3 times, every 200ms
load: at most 50 questions per second from each of 3 agents; a resolver's search list and what is asked again count as well
second look: failed pairs, at most 90, within what is left of timeouts.probe (5m0s)
changes: Services are listed again after measuring: what failed and has changed is unmeasured
10.244.1.1 15 15
10.244.1.2 15 15
resolver 15 15
`
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
