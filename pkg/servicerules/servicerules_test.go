// SPDX-License-Identifier: Apache-2.0

package servicerules

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/cost"
	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/netfilter"
	"github.com/checkplan/checkplan/pkg/dataplane/nftables"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// of keeps what a frontend of a Service is not, or changes it.
func of(service string, change func(*dataplane.Frontend) (keep bool)) func(*dataplane.Look) {
	return func(l *dataplane.Look) {
		kept := l.Table.Frontends[:0]
		for _, f := range l.Table.Frontends {
			if f.Service != service || change(&f) {
				kept = append(kept, f)
			}
		}
		l.Table.Frontends = kept
	}
}

// without removes the rules of a Service.
func without(service string) func(*dataplane.Look) {
	return of(service, func(*dataplane.Frontend) bool { return false })
}

// fewer removes the first endpoint of each frontend of a Service.
func fewer(service string) func(*dataplane.Look) {
	return of(service, func(f *dataplane.Frontend) bool {
		if len(f.Endpoints) > 1 {
			f.Endpoints = f.Endpoints[1:]
		}
		return true
	})
}

// more adds to each frontend of a Service that forwards those endpoints that are of its family.
func more(service string, endpoints ...string) func(*dataplane.Look) {
	return func(l *dataplane.Look) {
		of(service, func(f *dataplane.Frontend) bool {
			for _, text := range endpoints {
				e := dataplane.Endpoint{Address: netip.MustParseAddrPort(text), Hairpin: true}
				if f.Action == dataplane.Forward && e.Address.Addr().Is4() == (l.Table.Family == dataplane.IPv4) {
					f.Endpoints = append(slices.Clone(f.Endpoints), e)
				}
			}
			slices.SortFunc(f.Endpoints, func(a, b dataplane.Endpoint) int { return a.Address.Compare(b.Address) })
			return true
		})(l)
	}
}

// noUDP removes all that serves UDP.
func noUDP(l *dataplane.Look) {
	l.Table.Frontends = slices.DeleteFunc(l.Table.Frontends, func(f dataplane.Frontend) bool { return f.Protocol == "UDP" })
}

// added adds a frontend that rules call a Service.
func added(service string) func(*dataplane.Look) {
	return func(l *dataplane.Look) {
		address := "10.96.0.99"
		if l.Table.Family == dataplane.IPv6 {
			address = "fd00:96::99"
		}
		for _, origin := range dataplane.Origins {
			l.Table.Frontends = append(l.Table.Frontends, dataplane.Frontend{
				Key:  dataplane.Key{Address: netip.MustParseAddr(address), Protocol: "TCP", Port: 80},
				From: origin, Service: service, Action: dataplane.Reject,
			})
		}
	}
}

// none removes everything.
func none(l *dataplane.Look) {
	*l = dataplane.Look{Proxy: dataplane.Proxy{None: true, Reason: "no rules of kube-proxy, and no other known proxy"}}
}

// otherProxy is a node whose rules nobody here can read.
func otherProxy(l *dataplane.Look) {
	*l = dataplane.Look{Proxy: dataplane.Proxy{Others: []string{"Cilium"}, Reason: "no rules of kube-proxy; seen: Cilium"}}
}

// short is a report in a few words: the verdict, how many units did not pass, why, and what explains them.
func short(r checkup.CheckReport) string {
	lines := []string{fmt.Sprintf("%s, %d fail, %d unmeasured", r.Verdict, r.Counts.Fail, r.Counts.Unmeasured)}
	reasons := map[string]int{}
	for _, u := range r.Units {
		reasons[fmt.Sprintf("%s %s %s", u.Verdict, u.Cause.Stage, u.Cause.Reason)]++
	}
	var why []string
	for reason, n := range reasons {
		why = append(why, fmt.Sprintf("%d %s", n, strings.TrimSpace(reason)))
	}
	slices.Sort(why)
	lines = append(lines, why...)
	for _, f := range r.Findings {
		lines = append(lines, fmt.Sprintf("%s %s explains %d: %s", f.Cause, f.Subject, f.Explains, f.Message))
	}
	return strings.Join(lines, "\n")
}

// TestJudge: what agents of three nodes with real rules report, damaged, and what changes meanwhile, and what is found.
func TestJudge(t *testing.T) {
	ctx := t.Context()
	shop := func(l *lab) {
		service, err := l.client.CoreV1().Services("shop").Get(ctx, "plain", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		service.Spec.Ports[0].Port++
		if _, err := l.client.CoreV1().Services("shop").Update(ctx, service, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	refuse := func(l *lab, resource string) {
		l.client.PrependReactor("list", resource, func(k8stesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("no"))
		})
	}
	remove := func(l *lab) {
		if err := l.client.CoreV1().Services("shop").Delete(ctx, "plain", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name   string
		spec   func(*Spec)
		damage func(l *lab)
		want   string
	}{
		{name: "as wanted", want: "pass, 0 fail, 0 unmeasured"},
		{name: "a node has no rules", damage: func(l *lab) { l.each(none, "node-b") }, want: `fail, 40 fail, 0 unmeasured
40 fail rules NoRules
node node-b explains 40: node node-b: it has no rules of Services: its service proxy does not run, or has never written them`},
		{name: "a node has the table, and nothing in it", damage: func(l *lab) {
			l.each(func(l *dataplane.Look) { l.Table.Frontends = nil }, "node-b")
		}, want: `fail, 40 fail, 0 unmeasured
40 fail rules Missing
node node-b explains 40: node node-b: it has no rules of Services: its service proxy does not run, or has never written them`},
		{name: "a node has no rules of one family", damage: func(l *lab) { none(l.sides[3].looks[0]); none(l.sides[3].looks[1]) }, want: `fail, 20 fail, 0 unmeasured
20 fail rules NoRules
node node-b explains 20: node node-b: it has no IPv6 rules of Services: its service proxy does not serve this family, or has never written them`},
		{name: "no node has rules of one family", damage: func(l *lab) {
			for i := 1; i < len(l.sides); i += 2 {
				none(l.sides[i].looks[0])
				none(l.sides[i].looks[1])
			}
		}, want: `fail, 60 fail, 0 unmeasured
60 fail rules NoRules
family IPv6 explains 60: IPv6: no node has rules of Services: their service proxies do not serve this family`},
		{name: "no node has rules, nor another proxy", damage: func(l *lab) { l.each(none) }, want: `inconclusive, 0 fail, 126 unmeasured
126 unmeasured rules OtherProxy`},
		{name: "one endpoint on one node", damage: func(l *lab) { l.each(fewer("shop/plain"), "node-b") }, want: `fail, 2 fail, 0 unmeasured
2 fail rules Differs
pair node-b -> shop/plain explains 2: node node-b, Service shop/plain: no connection goes to endpoint 10.244.1.4:8080 at 10.96.0.1:80/TCP`},
		{name: "one Service is missing on one node", damage: func(l *lab) { l.each(without("shop/plain"), "node-b") }, want: `fail, 2 fail, 0 unmeasured
2 fail rules Missing
pair node-b -> shop/plain explains 2: node node-b, Service shop/plain: the node has no rules for the Service`},
		{name: "one node is not up to date", damage: func(l *lab) {
			for _, service := range []string{"shop/plain", "shop/sticky", "shop/ports"} {
				l.each(fewer(service), "node-c")
			}
		}, want: `fail, 6 fail, 0 unmeasured
6 fail rules Differs
node node-c explains 6: node node-c: its rules of 3 Services differ from what they have to be: its service proxy is not up to date`},
		{name: "one Service is wrong on every node", damage: func(l *lab) { l.each(fewer("shop/plain")) }, want: `fail, 6 fail, 0 unmeasured
6 fail rules Differs
service shop/plain explains 6: Service shop/plain: the rules of every node differ from what they have to be`},
		{name: "one Service is wrong on two of three nodes", damage: func(l *lab) { l.each(fewer("shop/plain"), "node-a", "node-b") }, want: `fail, 4 fail, 0 unmeasured
4 fail rules Differs
service shop/plain explains 4: Service shop/plain: the rules of node-a, node-b differ from what they have to be`},
		{name: "rules for a Service that does not exist", damage: func(l *lab) { l.each(added("shop/gone"), "node-b", "node-c") }, want: `fail, 4 fail, 0 unmeasured
4 fail rules Extra
service shop/gone explains 4: rules for Service shop/gone, which does not exist, on node-b, node-c`},
		{name: "rules that do not say for which Service", damage: func(l *lab) { l.each(added(""), "node-b") }, want: `fail, 2 fail, 0 unmeasured
2 fail rules Extra
service unknown explains 2: rules for an address that no Service has, on node-b`},
		{name: "an address that the Service does not have", damage: func(l *lab) { l.each(added("shop/plain"), "node-b") }, want: `fail, 2 fail, 0 unmeasured
2 fail rules Differs
pair node-b -> shop/plain explains 2: node node-b, Service shop/plain: a rule takes connections to 10.96.0.99:80/TCP (reject): the Service has no such address`},
		{name: "a difference in one look only", damage: func(l *lab) { fewer("shop/plain")(l.sides[0].looks[0]) }, want: "pass, 0 fail, 0 unmeasured"},
		{name: "rules in one look only", damage: func(l *lab) { none(l.sides[0].looks[0]) }, want: `inconclusive, 0 fail, 21 unmeasured
21 unmeasured rules`},
		{name: "a Service that differs changed meanwhile", damage: func(l *lab) {
			l.each(fewer("shop/plain"), "node-b")
			l.each(fewer("shop/sticky"), "node-b")
			l.after = func() { shop(l) }
		}, want: `fail, 2 fail, 2 unmeasured
2 fail rules Differs
2 unmeasured rules Changed
pair node-b -> shop/sticky explains 2: node node-b, Service shop/sticky: no connection goes to endpoint 10.244.1.44:8080 at 10.96.0.11:80/TCP`},
		{name: "a Service that does not differ changed meanwhile", damage: func(l *lab) { l.after = func() { shop(l) } },
			want: "pass, 0 fail, 0 unmeasured"},
		{name: "a Service was deleted before the rules were read", damage: func(l *lab) {
			l.each(without("shop/plain"))
			l.before = func() { remove(l) }
		}, want: `inconclusive, 0 fail, 6 unmeasured
6 unmeasured rules Changed`},
		{name: "a Service was deleted while the rules were read", damage: func(l *lab) {
			l.each(without("shop/plain"), "node-a", "node-b")
			l.after = func() { remove(l) }
		}, want: `inconclusive, 0 fail, 4 unmeasured
4 unmeasured rules Changed`},
		{name: "a Service was made while the rules were read", damage: func(l *lab) {
			l.each(added("shop/new"), "node-b")
			l.after = func() {
				service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "new"}}
				if _, err := l.client.CoreV1().Services("shop").Create(ctx, service, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
		}, want: `inconclusive, 0 fail, 2 unmeasured
2 unmeasured rules Changed`},
		{name: "each list fails once", damage: func(l *lab) {
			l.before = func() {
				failed := map[string]int{}
				l.client.PrependReactor("list", "*", func(a k8stesting.Action) (bool, runtime.Object, error) {
					resource := a.GetResource().Resource
					failed[resource]++
					return failed[resource]%2 == 1, nil, apierrors.NewServiceUnavailable("the API server restarts")
				})
			}
		}, want: "pass, 0 fail, 0 unmeasured"},
		{name: "Services cannot be listed", damage: func(l *lab) { l.before = func() { refuse(l, "services") } }, want: `inconclusive, 0 fail, 126 unmeasured
126 unmeasured collect`},
		{name: "EndpointSlices cannot be listed", damage: func(l *lab) { l.before = func() { refuse(l, "endpointslices") } }, want: `inconclusive, 0 fail, 126 unmeasured
126 unmeasured collect`},
		{name: "Services cannot be listed again", damage: func(l *lab) {
			l.each(fewer("shop/plain"), "node-b")
			l.after = func() { refuse(l, "services") }
		}, want: `inconclusive, 0 fail, 2 unmeasured
2 unmeasured collect Changed`},
		{name: "EndpointSlices cannot be listed again", damage: func(l *lab) {
			l.each(fewer("shop/plain"), "node-b")
			l.after = func() { refuse(l, "endpointslices") }
		}, want: `inconclusive, 0 fail, 2 unmeasured
2 unmeasured collect Changed`},
		{name: "an agent may not read rules", damage: func(l *lab) {
			l.sides[0].unmeasured = &checkup.Cause{Stage: checkup.StageRules, Reason: checkup.ReasonForbidden, Message: "no right"}
		}, want: `inconclusive, 0 fail, 21 unmeasured
21 unmeasured rules Forbidden`},
		{name: "the namespace refuses an agent", damage: func(l *lab) { l.sides[0].silent, l.sides[1].silent = true, true }, want: `inconclusive, 0 fail, 42 unmeasured
42 unmeasured start`},
		{name: "another proxy on a node", damage: func(l *lab) {
			l.each(otherProxy, "node-a")
		}, want: `inconclusive, 0 fail, 42 unmeasured
42 unmeasured rules OtherProxy`},
		{name: "two modes on a node", damage: func(l *lab) {
			l.each(func(l *dataplane.Look) {
				*l = dataplane.Look{Proxy: dataplane.Proxy{Reason: "rules of one proxy in several modes"}}
			}, "node-a")
		}, want: `inconclusive, 0 fail, 42 unmeasured
42 unmeasured rules OtherProxy`},
		{name: "a rule that was not understood", damage: func(l *lab) {
			l.each(of("shop/plain", func(f *dataplane.Frontend) bool { f.Unknown = []string{"-m quota"}; return true }), "node-a")
		}, want: `inconclusive, 0 fail, 2 unmeasured
2 unmeasured rules UnknownRule`},
		{name: "not understood in one look, another endpoint in the other", damage: func(l *lab) {
			of("shop/plain", func(f *dataplane.Frontend) bool { f.Unknown = []string{"-m quota"}; return true })(l.sides[0].looks[0])
			fewer("shop/plain")(l.sides[0].looks[1])
		}, want: `inconclusive, 0 fail, 1 unmeasured
1 unmeasured rules UnknownRule`},
		{name: "rules that distinguish frontends were not understood", damage: func(l *lab) {
			l.each(func(l *dataplane.Look) { l.Table.Incomplete, l.Table.Unknown = true, []string{"-m quota"} }, "node-a")
		}, want: `inconclusive, 0 fail, 2 unmeasured
2 unmeasured rules UnknownRule`},
		{name: "garbage", damage: func(l *lab) { l.sides[0].garbage = []byte("hello") }, want: `inconclusive, 0 fail, 21 unmeasured
21 unmeasured collect`},
		{name: "what the plan allows", spec: func(s *Spec) { s.Expect.Allow = []dataplane.Kind{dataplane.WrongAffinity} },
			damage: func(l *lab) {
				l.each(of("shop/sticky", func(f *dataplane.Frontend) bool { f.AffinitySeconds++; return true }), "node-b")
				l.each(without("shop/plain"), "node-b")
			}, want: `fail, 2 fail, 0 unmeasured
2 fail rules Missing
pair node-b -> shop/plain explains 2: node node-b, Service shop/plain: the node has no rules for the Service`},
		{name: "no rules for one protocol", damage: func(l *lab) { l.each(noUDP) }, want: `fail, 12 fail, 0 unmeasured
12 fail rules Differs
transport UDP explains 12: UDP: the rules of 2 Services differ from what they have to be on node-a, node-b, node-c, and those for other protocols do not`},
		{name: "no rules for one protocol on one node", damage: func(l *lab) { l.each(noUDP, "node-a") }, want: `fail, 4 fail, 0 unmeasured
4 fail rules Differs
node node-a explains 4: node node-a: its rules of 2 Services differ from what they have to be: its service proxy is not up to date`},
		{name: "Services that are not selected", spec: func(s *Spec) {
			s.Services = servicecheck.Selection{Namespaces: []string{"shop"}, Selector: checkup.LabelSelector{MatchLabels: map[string]string{"app": "plain"}}}
		}, damage: func(l *lab) {
			l.each(without("shop/sticky"))
			l.each(added("other/gone"))
			l.each(added(""))
		}, want: "pass, 0 fail, 0 unmeasured"},
		{name: "rules lead to a Service of a namespace that is not listed", spec: func(s *Spec) { s.Services.Namespaces = []string{"shop"} },
			damage: func(l *lab) {
				l.each(of("shop/plain", func(f *dataplane.Frontend) bool { f.Service = "other/plain"; return true }), "node-a")
			}, want: `inconclusive, 0 fail, 2 unmeasured
2 unmeasured rules UnknownRule`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := specOf()
			if tt.spec != nil {
				tt.spec(spec)
			}
			l := labOf(t, "nftables", spec)
			if tt.damage != nil {
				tt.damage(l)
			}
			got := short(l.report(t, checkup.Gate{}))
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s\n%s", diff, got)
			}
		})
	}
}

// TestChanges: what the API server has noted of when Services changed, and what is found by it. The first look is after
// 12:05:11, the second one 10 s later.
func TestChanges(t *testing.T) {
	const old, oldIPv6 = "10.244.9.9:8080", "[fd00:244:9::9]:8080"
	staleFor := func(age string) string {
		return `fail, 2 fail, 0 unmeasured
2 fail rules Differs
pair node-b -> shop/plain explains 2: node node-b, Service shop/plain: connections go to ` + old +
			`, which is no endpoint for this node at 10.96.0.1:80/TCP` + age
	}
	const (
		unmeasured    = "inconclusive, 0 fail, 2 unmeasured\n2 unmeasured rules Changed"
		unmeasuredOne = "inconclusive, 0 fail, 1 unmeasured\n1 unmeasured rules Changed"
	)
	behind := func(services int, since string) string {
		return fmt.Sprintf(`fail, %d fail, 0 unmeasured
%[1]d fail rules Differs
node node-b explains %[1]d: node node-b: its rules of %d Services differ from what they have to be: its service proxy is not up to date%s`,
			2*services, services, since)
	}
	stale := func(l *lab) { l.each(more("shop/plain", old, oldIPv6), "node-b") }
	lacks := func(l *lab) { l.each(fewer("shop/plain"), "node-b") }
	deleted := func(l *lab) { l.each(without("shop/plain"), "node-b") }
	excluded := func(l *lab) { l.each(more("shop/hints", "10.244.3.77:8080"), "node-b") }
	type changes = []func(runtime.Object)
	trigger := func(value string) func(runtime.Object) {
		return func(o runtime.Object) {
			if slice, ok := o.(*discoveryv1.EndpointSlice); ok {
				slice.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: value}
			}
		}
	}
	for _, tt := range []struct {
		name    string
		objects changes
		spec    func(*Spec)
		damage  func(*lab)
		quiet   bool // the API server does not say what time it is
		want    string
	}{
		{name: "a stale endpoint", objects: changes{written("12:03:10", "plain")}, damage: stale, want: staleFor(" (not in the API for at least 2m10s)")},
		{name: "since days", objects: changes{func(o runtime.Object) {
			o.(metav1.Object).SetManagedFields([]metav1.ManagedFieldsEntry{{Time: &metav1.Time{Time: at("12:00:00").AddDate(0, 0, -2)}}})
		}}, damage: stale, want: staleFor(" (not in the API for at least 48h0m0s)")},
		{name: "by the annotation", objects: changes{written("11:00:00"), trigger("2026-11-25T12:03:10.7Z")}, damage: stale, want: staleFor(" (not in the API for at least 2m9s)")},
		{name: "an annotation that is no time", objects: changes{written("12:03:10"), trigger("yesterday")}, damage: stale, want: staleFor(" (not in the API for at least 2m10s)")},
		{name: "the Service changed after its endpoints", objects: changes{written("11:00:00"), func(o runtime.Object) {
			if _, ok := o.(*corev1.Service); ok {
				written("12:03:10")(o)
			}
		}}, damage: stale, want: staleFor(" (not in the API for at least 2m10s)")},
		{name: "no times", damage: stale, want: staleFor("")},
		{name: "a Service without a time", objects: changes{func(o runtime.Object) {
			if _, ok := o.(*discoveryv1.EndpointSlice); ok {
				written("12:03:10")(o)
			}
		}}, damage: stale, want: staleFor("")},
		{name: "times in the future", objects: changes{written("11:00:00"), trigger("9999-01-01T00:00:00Z")}, damage: stale, want: staleFor("")},
		{name: "a time before there were computers", objects: changes{func(o runtime.Object) {
			o.(metav1.Object).SetManagedFields([]metav1.ManagedFieldsEntry{{Time: &metav1.Time{Time: time.Unix(-62135596799, 0)}}, {}})
		}}, damage: stale, want: staleFor(" (not in the API for at least 876000h0m0s)")},
		{name: "the API server does not say what time it is", objects: changes{written("12:03:10")}, damage: stale, quiet: true, want: staleFor("")},
		{name: "several EndpointSlices: one that was deleted leaves no time", objects: changes{written("12:03:10")}, damage: func(l *lab) {
			stale(l)
			l.before = func() {
				for _, f := range checkup.IPFamilies {
					o := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressType(f), ObjectMeta: metav1.ObjectMeta{
						Namespace: "shop", Name: "more-" + strings.ToLower(string(f)), Labels: map[string]string{discoveryv1.LabelServiceName: "plain"},
					}}
					written("12:03:10")(o)
					if err := l.client.Tracker().Add(o); err != nil {
						t.Fatal(err)
					}
				}
			}
		}, want: staleFor("")},
		{name: "a stale address", objects: changes{written("12:03:10")}, damage: func(l *lab) { l.each(added("shop/plain"), "node-b") }, want: `fail, 2 fail, 0 unmeasured
2 fail rules Differs
pair node-b -> shop/plain explains 2: node node-b, Service shop/plain: a rule takes connections to 10.96.0.99:80/TCP (reject): the Service has no such address (not in the API for at least 2m10s)`},
		{name: "what is missing has no age", objects: changes{written("12:03:10")}, damage: lacks, want: `fail, 2 fail, 0 unmeasured
2 fail rules Differs
pair node-b -> shop/plain explains 2: node node-b, Service shop/plain: no connection goes to endpoint 10.244.1.4:8080 at 10.96.0.1:80/TCP`},

		{name: "a node has missed changes", objects: changes{
			written("11:00:00"), written("12:04:00", "plain"), written("12:03:10", "sticky"), written("12:04:30", "sources"),
		}, damage: func(l *lab) {
			for _, service := range []string{"shop/plain", "shop/sticky", "shop/sources"} {
				l.each(fewer(service), "node-b")
			}
		}, want: behind(3, " since 12:03:10 UTC")},
		{name: "a node has damaged rules, and knows of later changes", objects: changes{
			written("11:00:00"), written("12:04:30", "six", "sources"),
		}, damage: func(l *lab) {
			l.each(fewer("shop/plain"), "node-b")
			l.each(fewer("shop/sticky"), "node-b")
		}, want: behind(2, "")},
		{name: "a node has what is gone, although others changed later", objects: changes{
			written("12:05:00"), written("12:04:00", "plain"), written("12:03:10", "sticky"),
		}, damage: func(l *lab) {
			stale(l)
			l.each(more("shop/sticky", old, oldIPv6), "node-b")
		}, want: behind(2, " since 12:03:10 UTC")},
		{name: "a node is behind since days", objects: changes{func(o runtime.Object) {
			o.(metav1.Object).SetManagedFields([]metav1.ManagedFieldsEntry{{Time: &metav1.Time{Time: at("12:00:00").AddDate(0, 0, -2)}}})
		}}, damage: func(l *lab) {
			stale(l)
			l.each(more("shop/sticky", old, oldIPv6), "node-b")
		}, want: behind(2, " since 2026-11-23 12:00:00 UTC")},

		{name: "stale for less than is allowed", objects: changes{written("12:03:10")}, damage: stale,
			spec: func(s *Spec) { s.Expect.Stale.Max = checkup.Duration(131 * time.Second) }, want: unmeasured},
		{name: "stale for longer than is allowed", objects: changes{written("12:03:10")}, damage: stale,
			spec: func(s *Spec) { s.Expect.Stale.Max = checkup.Duration(130 * time.Second) }, want: staleFor(" (not in the API for at least 2m10s)")},
		{name: "stale, and nobody knows since when", damage: stale,
			spec: func(s *Spec) { s.Expect.Stale.Max = checkup.Duration(time.Hour) }, want: staleFor("")},
		{name: "stale, and the plan allows other dimensions", objects: changes{written("12:03:10")}, damage: stale,
			spec: func(s *Spec) {
				s.Expect.Missing.Max, s.Expect.Extra.Max = checkup.Duration(time.Hour), checkup.Duration(time.Hour)
			},
			want: staleFor(" (not in the API for at least 2m10s)")},
		{name: "missing for less than is allowed", objects: changes{written("12:03:10")}, damage: lacks,
			spec: func(s *Spec) { s.Expect.Missing.Max = checkup.Duration(time.Hour) }, want: unmeasured},
		{name: "no rules of a Service for less than is allowed", objects: changes{written("12:03:10")}, damage: deleted,
			spec: func(s *Spec) { s.Expect.Missing.Max = checkup.Duration(time.Hour) }, want: unmeasured},
		{name: "missing and stale, of which one is allowed", objects: changes{written("12:03:10")}, damage: func(l *lab) { lacks(l); stale(l) },
			spec: func(s *Spec) { s.Expect.Missing.Max = checkup.Duration(time.Hour) }, want: staleFor(" (not in the API for at least 2m10s)")},
		{name: "an endpoint for another zone", objects: changes{written("12:03:10")}, damage: excluded, want: `fail, 1 fail, 0 unmeasured
1 fail rules Differs
pair node-b -> shop/hints explains 1: node node-b, Service shop/hints: connections go to 10.244.3.77:8080, which is no endpoint for this node at 10.96.0.19:80/TCP`},
		{name: "an endpoint for another zone for less than is allowed", objects: changes{written("12:03:10")}, damage: excluded,
			spec: func(s *Spec) { s.Expect.Extra.Max = checkup.Duration(time.Hour) }, want: unmeasuredOne},
		{name: "an endpoint for another zone is not stale", objects: changes{written("12:03:10")}, damage: excluded,
			spec: func(s *Spec) { s.Expect.Stale.Max = checkup.Duration(time.Hour) }, want: `fail, 1 fail, 0 unmeasured
1 fail rules Differs
pair node-b -> shop/hints explains 1: node node-b, Service shop/hints: connections go to 10.244.3.77:8080, which is no endpoint for this node at 10.96.0.19:80/TCP`},
		{name: "no rules at all", objects: changes{written("12:05:10")}, damage: func(l *lab) { l.each(none, "node-b") },
			spec: func(s *Spec) { s.Expect.Missing.Max = checkup.Duration(time.Hour) }, want: `fail, 40 fail, 0 unmeasured
40 fail rules NoRules
node node-b explains 40: node node-b: it has no rules of Services: its service proxy does not run, or has never written them`},
		{name: "a Service that does not exist", objects: changes{written("12:05:10")}, damage: func(l *lab) { l.each(added("shop/gone"), "node-b") },
			spec: func(s *Spec) { s.Expect.Stale.Max = checkup.Duration(time.Hour) }, want: `fail, 2 fail, 0 unmeasured
2 fail rules Extra
service shop/gone explains 2: rules for Service shop/gone, which does not exist, on node-b`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := specOf()
			if tt.spec != nil {
				tt.spec(spec)
			}
			l := labOf(t, "nftables", spec, tt.objects...)
			if tt.damage(l); !tt.quiet {
				l.now = at("12:05:11")
			}
			r := l.report(t, checkup.Gate{})
			if diff := cmp.Diff(tt.want, short(r)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			for _, u := range r.Units {
				if u.Cause.Reason == checkup.ReasonChanged && !strings.Contains(u.Cause.Message, "before the rules were read (expect.") {
					t.Errorf("%s does not say what the plan allows: %s", u.Name, u.Cause.Message)
				}
			}
		})
	}
}

// TestWhy: a finding about one Service on every node has what decides about its endpoints.
func TestWhy(t *testing.T) {
	for service, want := range map[string][]string{
		"shop/plain": nil,
		"shop/hints": {"topology hints keep 1 of 2 endpoints to zone-x", "topology hints keep 1 of 2 endpoints to zone-y"},
		"shop/both-local": {
			"externalTrafficPolicy is Local: only endpoints on the node itself serve what comes from outside",
			"internalTrafficPolicy is Local: only endpoints on the node itself serve the cluster IP",
		},
		"shop/terminating": {"no endpoint is ready; 2 terminating serve"},
		"shop/not-ready":   {"no endpoint is ready"},
	} {
		t.Run(service, func(t *testing.T) {
			l := labOf(t, "nftables", specOf())
			l.each(without(service))
			found := l.report(t, checkup.Gate{}).Findings
			if len(found) != 1 || found[0].Cause != checkup.CauseService || found[0].Subject != service || len(found[0].For) < 2 {
				t.Fatalf("findings %+v", found)
			}
			if diff := cmp.Diff(want, found[0].For[2:], cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("after the numbers (-want +got)\n%s", diff)
			}
		})
	}
}

// TestSample: a run reads the rules of some nodes, and the rounds of a cycle those of all. The report has the round.
func TestSample(t *testing.T) {
	spec := specOf(func(s *Spec) { s.Sample = Sample{Nodes: 2, Rotate: true} })
	plan := planOf(spec)
	l := labOf(t, "nftables", specOf())
	r := cluster.Reader{Kubernetes: l.client}
	s, err := cluster.Survey(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if err := Survey(t.Context(), r, planOf(specOf()), s); err != nil {
		t.Fatal(err)
	}
	if err := Survey(t.Context(), r, plan, s); err == nil || !strings.Contains(err.Error(), "read the last round") {
		t.Errorf("want that the rounds are read, and cannot be: %v", err)
	}
	nodes := map[string]bool{}
	for run, want := range []string{"round 0 of 2", "round 1 of 2", "round 0 of 2"} {
		if run > 0 {
			s.Rounds = append(s.Rounds, history.Round{Plan: plan.Name, Check: "rules", Round: run - 1, Created: at("12:00:00").Add(time.Duration(run))})
		}
		w, _, err := Kind.Expand(plan, "rules", s)
		if err != nil {
			t.Fatal(err)
		}
		for _, source := range w.Sources {
			nodes[source.Node] = true
		}
		want = "the rules of 2 of 3 nodes (" + want + ") for 21 Services: 84 rule sets"
		if got := strings.Join(summarize(w), "; "); got != want || len(w.Sources) != 2 {
			t.Errorf("run %d: %s, want %s", run, got, want)
		}
		c := Judge(w, nil, nil, checkup.Gate{})
		if diff := cmp.Diff(&checkup.Coverage{Noun: "node", Possible: 3, Round: run % 2, Rounds: 2, Seed: w.Seed}, c.Coverage); diff != "" {
			t.Errorf("run %d: coverage (-want +got)\n%s", run, diff)
		}
	}
	if len(nodes) != 3 {
		t.Errorf("a cycle reads %v", nodes)
	}
	if c := l.report(t, checkup.Gate{}); c.Coverage != nil {
		t.Errorf("all nodes are no sample: %+v", c.Coverage)
	}
}

// TestNotUnderstood: rules that kube-proxy wrote, with an expression that nobody here knows. What they may concern is
// unmeasured, and the report has the rule.
func TestNotUnderstood(t *testing.T) {
	for _, tt := range []struct {
		name, chain string // the chains whose names contain it
		want        string
	}{
		{"in one Service", "-shop/plain/", `inconclusive, 0 fail, 1 unmeasured
1 unmeasured rules UnknownRule`},
		{"everywhere", "", `inconclusive, 0 fail, 21 unmeasured
21 unmeasured rules UnknownRule`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := labOf(t, "nftables", specOf())
			var d netfilter.Dump
			unpacked(t, "nftables-node-a-IPv4", &d)
			for i := range d.Rules {
				if r := &d.Rules[i]; strings.Contains(r.Chain, tt.chain) {
					r.Exprs = slices.Insert(r.Exprs, 0, netfilter.Expression{Name: "quota"})
				}
			}
			table, _ := nftables.Parse(&d)
			for _, look := range l.sides[0].looks {
				look.Table = &table
			}
			r := l.report(t, checkup.Gate{})
			if diff := cmp.Diff(tt.want, short(r)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			for _, u := range r.Units {
				if strings.Contains(u.Name, "no other Service") {
					continue // not one rule, but all
				}
				if !strings.Contains(u.Cause.Message, "table kube-proxy, chain ") ||
					!strings.Contains(u.Cause.Message, "quota: not understood") {
					t.Errorf("%s: %q does not have the rule", u.Name, u.Cause.Message)
				}
			}
		})
	}
}

// TestModes: real rules of each mode are what is wanted.
func TestModes(t *testing.T) {
	for reader := range readers {
		t.Run(reader, func(t *testing.T) {
			r := labOf(t, reader, specOf()).report(t, checkup.Gate{})
			if r.Verdict != checkup.RunPass || r.Counts.Pass != r.Counts.Expected || r.Counts.Expected < 100 {
				t.Error(short(r))
			}
		})
	}
}

// TestExpand: which units are expected, and why there are none.
func TestExpand(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Spec, *cluster.Snapshot)
		want   string // the summary, or the error
	}{
		{"everything", func(*Spec, *cluster.Snapshot) {}, "the rules of 3 nodes for 21 Services: 126 rule sets"},
		{"one family", func(s *Spec, _ *cluster.Snapshot) { s.IPFamilies = []checkup.IPFamily{checkup.IPv6} },
			"the rules of 3 nodes for 20 Services: 63 rule sets"},
		{"one Service on one node", func(s *Spec, _ *cluster.Snapshot) {
			s.Services.Selector.MatchLabels = map[string]string{"app": "plain"}
			s.Placement.NodeSelector = map[string]string{"topology.kubernetes.io/zone": "zone-y"}
		}, "the rules of 1 node for 1 Service: 4 rule sets"},
		{"no Service", func(s *Spec, _ *cluster.Snapshot) { s.Services.Selector.MatchLabels = map[string]string{"app": "none"} },
			`check "rules": no Service is selected that nodes serve in the families of the plan: see services and ipFamilies`},
		{"no node", func(s *Spec, _ *cluster.Snapshot) { s.Placement.NodeSelector = map[string]string{"no": "such"} },
			`no node can be a source`},
		{"of another plan", func(s *Spec, _ *cluster.Snapshot) { s.Services.Namespaces = []string{"other"} },
			`the snapshot does not list the services of namespace other: it was recorded for another plan: record it again`},
		{"too many", func(_ *Spec, s *cluster.Snapshot) {
			for i := range 5000 {
				s.Nodes = append(s.Nodes, cluster.Node{Name: fmt.Sprintf("more-%d", i), Ready: corev1.ConditionTrue})
			}
		}, "21 Services on 5003 nodes are 210126 units: at most 200000 fit a report: select fewer by services, placement or sample.nodes"},
		{"a sample of many nodes", func(spec *Spec, s *cluster.Snapshot) {
			for i := range 5000 {
				s.Nodes = append(s.Nodes, cluster.Node{Name: fmt.Sprintf("more-%d", i), Ready: corev1.ConditionTrue})
			}
			spec.Sample.Nodes = 100
		}, "the rules of 100 of 5003 nodes (round 0 of 51) for 21 Services: 4200 rule sets"},
		{"a sample of more nodes than there are", func(s *Spec, _ *cluster.Snapshot) { s.Sample.Nodes = 4 },
			"the rules of 3 nodes for 21 Services: 126 rule sets"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := specOf()
			r := cluster.Reader{Kubernetes: fake.NewSimpleClientset(objects(t)...)}
			s, err := cluster.Survey(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			if err := Survey(t.Context(), r, planOf(spec), s); err != nil {
				t.Fatal(err)
			}
			tt.change(spec, s)
			w, _, err := Expand(planOf(spec), "rules", s, 0)
			got := fmt.Sprint(err)
			if err == nil {
				got = strings.Join(summarize(w), "; ")
			}
			if !strings.Contains(got, tt.want) {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

// TestExplain: explain shows what the agents need beyond restricted pod security, and the cost counts the agents.
func TestExplain(t *testing.T) {
	l := labOf(t, "nftables", specOf(func(s *Spec) {
		s.Expect.Allow = []dataplane.Kind{dataplane.WrongMasquerade}
		s.Expect.Stale.Max, s.Sample.Nodes = checkup.Duration(30*time.Second), 2
	}))
	var text []string
	for _, f := range Explain(kind.Explained{Worksheet: l.w}).Fields {
		text = append(text, f.Name+": "+f.Text)
	}
	const want = `services: 21 Services, on 2 nodes: 84 rule sets
sample: 2 of 3 nodes, round 0 of 2, seed SEED
reads: the rules that each node's service proxy has written (nftables, iptables), twice, 10s apart, from the kernel; writes none, and sends nothing to Services
pod security: 2 agents on the host network, as root with no capability but NET_ADMIN: the kernel shows rules to nobody else. The root file system is read-only, privileges cannot grow, seccomp is RuntimeDefault, there is no token. The namespace of the run must admit that (label pod-security.kubernetes.io/enforce: privileged). If it does not, this check is unmeasured, and other checks of the plan go on
changes: Services are listed before the first look and after the last one: what differs and has changed is unmeasured
unmeasured: rules that are stale less than 30s after their Service changed
allowed: differences that do not fail a rule set: ["masquerade"]`
	got := strings.Replace(strings.Join(text, "\n"), fmt.Sprint(l.w.Seed), "SEED", 1)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if c := cost.Of(l.w, planOf(specOf()), ""); c.HostNetwork != 2 || c.Agents != 2 || c.Packets != 0 {
		t.Errorf("cost %+v, want 2 agents on the host network, and no packet", c)
	}
}

// TestBounded: whatever texts the rules of a node have, what is recorded of it is small.
func TestBounded(t *testing.T) {
	l := labOf(t, "nftables", specOf())
	long := strings.Repeat("x", 200)
	l.each(func(l *dataplane.Look) {
		for i := range l.Table.Frontends {
			l.Table.Frontends[i].Service = fmt.Sprintf("shop/%s-%d", long, i)
		}
		for i := range 10_000 {
			l.Table.Frontends = append(l.Table.Frontends, dataplane.Frontend{
				Key:  dataplane.Key{Protocol: "TCP", Port: uint16(1 + i)},
				From: dataplane.Node, Service: fmt.Sprintf("shop/%s-%d", long, i), Action: dataplane.Drop,
			})
		}
	})
	tables := Tables(t.Context(), l.client, l.w)
	var text bytes.Buffer
	zip := gzip.NewWriter(&text)
	if err := l.sides[0].looks[0].Write(zip); err != nil {
		t.Fatal(err)
	}
	zip.Close()
	look := checkup.TableLook{Data: text.Bytes()}
	fact := tables.Compare(checkup.TableReading{Family: checkup.IPv4, Looks: [checkup.TableLooks]checkup.TableLook{look, look}})
	if most := 20*(2*dataplane.MaxWords+300) + maxExtra*300; fact.Cause != nil || len(fact.Content) > most {
		t.Errorf("%v, %d bytes, want at most %d", fact.Cause, len(fact.Content), most)
	}
	var f found
	if err := json.Unmarshal(fact.Content, &f); err != nil || f.Extra.Count < 9_000 || !f.Extra.Unnamed || len(f.Extra.Services) != maxExtra {
		t.Errorf("%v: %d extra of %d names", err, f.Extra.Count, len(f.Extra.Services))
	}
}
