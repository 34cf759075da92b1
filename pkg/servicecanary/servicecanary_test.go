// SPDX-License-Identifier: Apache-2.0

package servicecanary

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/nodestate"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// TestExpand: which responders, Services and pairs a cluster has.
func TestExpand(t *testing.T) {
	only := func(p ...Policy) func(*Spec) { return func(s *Spec) { s.Policies = p } }
	for _, tt := range []struct {
		name     string
		spec     *Spec
		cluster  *cluster.Snapshot
		targets  string // of n0, without Services that all have
		services string
		pairs    int
		warning  string
	}{
		{"all policies", specOf(), townOf(3),
			"cluster-ip, endpoint-leaves, hairpin, internal-local, not-ready, prefer-close, publish-not-ready, session-affinity, " +
				"terminating, endpoint on n0, endpoint that is not ready, on n0, node-port at n0, endpoint on n1, " +
				"external-local at n1, endpoint on n2, external-local at n2, node-port at n2",
			"endpoints cluster-ip internal-local session-affinity node-port external-local publish-not-ready not-ready " +
				"prefer-close hairpin endpoint-leaves terminating", 200, ""},
		{"one policy", specOf(only(ClusterIP)), townOf(3), "cluster-ip, endpoint on n0, endpoint on n1, endpoint on n2",
			"endpoints cluster-ip", 48, ""},
		{"fewer nodes than endpoints", specOf(only(NodePort)), townOf(1), "endpoint on n0, node-port at n0", "endpoints node-port", 8,
			"endpoints: 3, but 1 node is ready: each responder has a node of its own"},
		{"one family", specOf(only(ClusterIP), func(s *Spec) { s.IPFamilies = []checkup.IPFamily{checkup.IPv6} }), townOf(3),
			"cluster-ip, endpoint on n0, endpoint on n1, endpoint on n2", "endpoints cluster-ip", 24, ""},
		{"a node without an address of a family has no node port there", specOf(only(NodePort)), func() *cluster.Snapshot {
			s := townOf(3)
			s.Nodes[0].InternalIPs = s.Nodes[0].InternalIPs[:1]
			return s
		}(), "endpoint on n0, node-port at n0, endpoint on n1, endpoint on n2, node-port at n2", "endpoints node-port", 56, ""},
		{"only kube-proxy must drop where it has no endpoint", specOf(only(ExternalLocal), func(s *Spec) {
			s.Expect.Closed = servicecheck.ClosedAny
		}), townOf(3), "endpoint on n0, endpoint on n1, endpoint on n2, external-local at n2",
			"endpoints external-local", 44, ""},
		{"too few measurements", specOf(only(ClusterIP), func(s *Spec) { s.Probe.Count = 10 }), townOf(3),
			"cluster-ip, endpoint on n0, endpoint on n1, endpoint on n2", "endpoints cluster-ip", 48,
			"probe.count: with 10, an endpoint of 3 may be missed by chance, and a pair be undecided: want 35"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, warnings, err := Expand(planOf(tt.spec), "canary", tt.cluster)
			if err != nil {
				t.Fatal(err)
			}
			var targets, names []string
			for _, i := range w.Assignments[0] {
				targets = append(targets, w.Targets[i].Name())
			}
			for _, s := range w.Services {
				names = append(names, s.Name)
			}
			if got := strings.Join(targets, ", "); got != tt.targets {
				t.Errorf("n0 measures %s, want %s", got, tt.targets)
			}
			if got := strings.Join(names, " "); got != tt.services {
				t.Errorf("Services %s, want %s", got, tt.services)
			}
			if got := w.CountPairs(); got != tt.pairs {
				t.Errorf("%d pairs, want %d", got, tt.pairs)
			}
			if got := strings.Join(warnings, "\n"); got != tt.warning {
				t.Errorf("warnings %q, want %q", got, tt.warning)
			}
		})
	}
}

func TestExpandErrors(t *testing.T) {
	for _, tt := range []struct {
		name    string
		spec    *Spec
		cluster *cluster.Snapshot
		want    string
	}{
		{"no nodes", specOf(), &cluster.Snapshot{}, "the cluster has no nodes"},
		{"budget", specOf(func(s *Spec) { s.Budget = 199 }), townOf(3), "budget: 199 pairs are not enough for the 200 of 3 nodes"},
		{"no family", specOf(), func() *cluster.Snapshot {
			s := townOf(1)
			s.Nodes[0].InternalIPs, s.Nodes[0].PodCIDRs = nil, nil
			return s
		}(), "set ipFamilies"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, _, err := Expand(planOf(tt.spec), "canary", tt.cluster); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want an error with %q", err, tt.want)
			}
		})
	}
}

// TestEndpointNodes: responders are spread over zones, on nodes that are ready.
func TestEndpointNodes(t *testing.T) {
	s := townOf(9) // n0, n2, ... are in z0
	for i := range s.Nodes {
		if i > 1 {
			s.Nodes[i].Labels["topology.kubernetes.io/zone"] = "z0"
		}
	}
	s.Nodes[0].Ready = "False"
	for seed := range uint64(50) {
		zones := map[string]int{}
		for _, n := range endpointNodes(seed, s.Nodes, 4) {
			zones[n.Labels["topology.kubernetes.io/zone"]]++
			if n.Name == "n0" {
				t.Errorf("seed %d: n0 is not ready, and has a responder", seed)
			}
		}
		if zones["z0"] != 3 || zones["z1"] != 1 {
			t.Errorf("seed %d: %v, want one in z1, which has one node", seed, zones)
		}
	}
}

// TestJudge: each fault is found, with node and Service, and nothing else.
func TestJudge(t *testing.T) {
	l := newLab(t, specOf(), townOf(3))
	isService := func(p pair) bool { return !strings.HasPrefix(p.target, "endpoint ") }
	swap := func(p pair, from, to string) answers { // connections of one responder go to another one
		a := right(p)
		from, to = l.address(from, p.Family), l.address(to, p.Family)
		a.by[to] += a.by[from]
		delete(a.by, from)
		return a
	}
	for _, tt := range []struct {
		name    string
		wrong   func(pair) answers
		fail    int
		finding string // all of them, without details
	}{
		{"all is right", right, 0, ""},
		{"a stale proxy", func(p pair) answers {
			if p.proxy() == "n1" && isService(p) {
				return answers{}
			}
			return right(p)
		}, 42, "node n1"}, // internal-local: 4 of n1's, which has an endpoint; not-ready over UDP is silent in any case
		{"an endpoint is lost at one Service of one node", func(p pair) answers {
			if p.node == "n1" && p.target == "cluster-ip" {
				a := right(p)
				delete(a.by, l.address("endpoint on n0", p.Family))
				return a
			}
			return right(p)
		}, 4, "pair n1 -> cluster-ip"},
		{"an endpoint is never chosen, and nothing is lost", func(p pair) answers {
			if p.node == "n1" && p.target == "cluster-ip" {
				return swap(p, "endpoint on n0", "endpoint on n2")
			}
			return right(p)
		}, 4, "pair n1 -> cluster-ip"},
		{"an endpoint that is not ready is used", func(p pair) answers {
			if p.node == "n1" && p.target == "cluster-ip" {
				return swap(p, "endpoint on n0", "endpoint that is not ready, on n0")
			}
			return right(p)
		}, 4, "pair n1 -> cluster-ip"},
		{"a Local policy is ignored", func(p pair) answers {
			if p.target == "internal-local" {
				return answers{by: map[string]int{l.address("endpoint on n1", p.Family): p.count}}
			}
			return right(p)
		}, 8, "service internal-local"}, // right from n1 itself
		{"no session affinity", func(p pair) answers {
			if p.target == "session-affinity" {
				p.one = false
			}
			return right(p)
		}, 12, "service session-affinity"},
		{"session affinity ends, and chance finds the same endpoint", func(p pair) answers {
			a := right(p)
			if p.target == "session-affinity" && (p.Family == checkup.IPv4 || p.Transport == checkup.TCP) {
				a.later = slices.Repeat(p.endpoints[:1], 4)
			}
			return a
		}, 0, ""},
		{"too few connections to say whether session affinity ends", func(p pair) answers {
			a := right(p)
			if p.target == "session-affinity" {
				a.later = slices.Repeat(p.endpoints[:1], 2) // 1 in 3^8, of three nodes
			}
			return a
		}, 0, ""},
		{"shares are uneven", func(p pair) answers {
			a := right(p)
			if p.node == "n2" && p.target == "node-port at n2" {
				a.by[l.address("endpoint on n0", p.Family)] -= p.count * 3 / 10
				a.by[l.address("endpoint on n1", p.Family)] += p.count * 3 / 10
			}
			return a
		}, 4, "pair n2 -> node-port"},
		{"a Service without an endpoint answers", func(p pair) answers {
			if p.target == "not-ready" {
				return answers{by: map[string]int{l.address("endpoint that is not ready, on n0", p.Family): p.count}}
			}
			return right(p)
		}, 12, "service not-ready"},
		{"a refusal is a silence", func(p pair) answers {
			if p.target == "not-ready" {
				return answers{}
			}
			return right(p)
		}, 6, "service not-ready"}, // over TCP
		{"no hairpin", func(p pair) answers {
			if p.target == "hairpin" && p.node == "n0" {
				return answers{}
			}
			return right(p)
		}, 4, "pair n0 -> hairpin"},
		{"a hairpin leads to another agent", func(p pair) answers {
			if p.target == "hairpin" && p.node == "n0" {
				return answers{by: map[string]int{addressOf(p.Family, "10.2.0.%d", "fd00:2::%d", 2): p.count}}
			}
			return right(p)
		}, 4, "pair n0 -> hairpin"},
		{"one family", func(p pair) answers {
			if p.Family == checkup.IPv6 && isService(p) {
				return answers{}
			}
			return right(p)
		}, 65, "family IPv6"}, // internal-local is dropped at n0, as it must be, and not-ready over UDP everywhere
		{"UDP", func(p pair) answers {
			if p.Transport == checkup.UDP && isService(p) {
				return answers{}
			}
			return right(p)
		}, 62, "transport udp"},
		{"a responder that nobody reaches is no fault of a proxy", func(p pair) answers {
			a := right(p)
			delete(a.by, l.address("endpoint on n0", p.Family))
			return a
		}, 80, "target endpoint on n0"},
		{"a node whose pods reach nothing is no fault of its proxy", func(p pair) answers {
			if p.node == "n2" {
				return answers{}
			}
			return right(p)
		}, 58, "source n2"},
		{"one path between nodes", func(p pair) answers {
			a := right(p)
			if p.node == "n2" {
				delete(a.by, l.address("endpoint on n0", p.Family))
			}
			return a
		}, 28, "pair n2 -> endpoint on n0"},
		{"nothing", func(pair) answers { return answers{} }, 0, "network "},
		{"a node port that only its own node reaches", func(p pair) answers {
			if p.target == "node-port at n1" && p.node != "n1" {
				return answers{}
			}
			return right(p)
		}, 4, "pair n2 -> node-port at n1"},
		{"a node sends node ports of a policy Local to other nodes", func(p pair) answers {
			if p.preserved && p.node == "n2" && p.action == nodestate.Drop {
				return answers{by: map[string]int{l.address("endpoint on n0", p.Family): p.count}}
			}
			return right(p)
		}, 4, "pair n2 -> external-local at n1"},
		{"a node hides source addresses", func(p pair) answers {
			a := right(p)
			if p.preserved {
				a.saw = addressOf(p.Family, "10.244.0.%d", "fd00:244::%d", 1)
			}
			return a
		}, 8, "service external-local"},
		{"the network hides those of pods behind their nodes", func(p pair) answers {
			a := right(p)
			a.saw = addressOf(p.Family, "172.18.0.%d", "fd00:18::%d", p.Source+1)
			return a
		}, 0, ""},
		{"a UDP flow stays with an endpoint that has left", func(p pair) answers {
			if p.target == "endpoint-leaves" && p.Transport == checkup.UDP && p.node == "n1" {
				return answers{by: map[string]int{l.leaver(p.Family): p.count}}
			}
			return right(p)
		}, 2, "pair n1 -> endpoint-leaves"},
		{"a node does not know that the endpoint has left", func(p pair) answers {
			if p.target == "endpoint-leaves" && p.node == "n1" {
				return answers{by: map[string]int{l.leaver(p.Family): p.count}, unturned: true}
			}
			return right(p)
		}, 4, "pair n1 -> endpoint-leaves"},
		{"a UDP flow to an endpoint that has left is lost", func(p pair) answers {
			if p.target == "endpoint-leaves" && p.Transport == checkup.UDP {
				return answers{}
			}
			return right(p)
		}, 6, "service endpoint-leaves"},
		{"an endpoint that terminates is used", func(p pair) answers {
			a := right(p)
			if p.target == "terminating" {
				a.by[p.endpoints[0]] -= p.count / 2
				a.by[l.leaver(p.Family)] += p.count / 2
			}
			return a
		}, 12, "service terminating"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := l.judged(tt.wrong)
			var found []string
			for _, f := range r.Findings {
				found = append(found, string(f.Cause)+" "+f.Subject)
			}
			if got := strings.Join(found, ", "); got != tt.finding {
				t.Errorf("findings %q, want %q", got, tt.finding)
			}
			if tt.fail > 0 && r.Counts.Fail != tt.fail || tt.finding == "" && r.Counts.Pass != r.Counts.Expected {
				t.Errorf("%+v, want %d failed", r.Counts, tt.fail)
				for _, u := range r.Units {
					t.Log(u.Name, u.Cause)
				}
			}
			if r.Counts.Unmeasured > 0 {
				t.Errorf("%d unmeasured", r.Counts.Unmeasured)
			}
		})
	}
}

// TestUnmeasured: what is not known is never a pass, and never a failure of the proxy.
func TestUnmeasured(t *testing.T) {
	l := newLab(t, specOf(), townOf(3))
	broken := func(p pair) answers { // n0 reaches nothing through Services
		if p.node == "n0" && !strings.HasPrefix(p.target, "endpoint ") {
			return answers{}
		}
		return right(p)
	}
	cause := &checkup.Cause{Stage: checkup.StageCollect, Message: "services is forbidden"}
	for _, tt := range []struct {
		name    string
		change  func(*checkup.Record)
		fail    int
		message string // of unmeasured units
	}{
		{"as it is", func(*checkup.Record) {}, 42, ""},
		{"changed", func(r *checkup.Record) {
			after := *l.turned
			after.EndpointSlices = slices.Clone(after.EndpointSlices)
			for i := range after.EndpointSlices {
				s := &after.EndpointSlices[i]
				if s.Labels[discoveryv1.LabelServiceName] == "cluster-ip" && s.AddressType == discoveryv1.AddressTypeIPv4 {
					s.Generation++
				}
			}
			r.Facts[1] = factOf(t, checkup.FactServicesAfter, &after)
		}, 40, "changed during the run"},
		{"not known what changed", func(r *checkup.Record) {
			r.Facts[1] = checkup.Fact{Unit: checkup.FactServicesAfter, Cause: cause}
		}, 4, "cannot tell whether the Service changed while it was measured: services is forbidden"}, // the hairpin
		{"not known after", func(r *checkup.Record) { r.Facts = r.Facts[:1] }, 4, "the probe task did not read it"},
		{"not known before", func(r *checkup.Record) {
			r.Facts[0] = checkup.Fact{Unit: checkup.FactServicesBefore, Cause: cause}
		}, 4, "cannot tell what the API says of the Service: services is forbidden"},
		{"no JSON", func(r *checkup.Record) { r.Facts[0].Content = json.RawMessage("7") }, 4, "read the fact"},
		{"no Service", func(r *checkup.Record) {
			r.Facts[0] = factOf(t, checkup.FactServicesBefore, &cluster.Snapshot{})
		}, 12, "the Service did not exist any more"}, // and what turns,
		{"an agent that counts more than it received", func(r *checkup.Record) {
			for i := range r.Observations {
				if a := r.Observations[i].Answerers; len(a) > 0 {
					a[0].Count = 1 << 40
				}
			}
		}, 42, "more answers by endpoint than it received"},
		{"an older agent", func(r *checkup.Record) {
			for i := range r.Observations {
				r.Observations[i].Answerers = nil
			}
		}, 42, "is of an older version"},
		{"negative counts", func(r *checkup.Record) {
			for i := range r.Observations {
				for k := range r.Observations[i].Answerers {
					r.Observations[i].Answerers[k].Count = -1
				}
			}
		}, 42, "more answers by endpoint than it received"},
		{"an agent that does not say what endpoints saw", func(r *checkup.Record) {
			for i := range r.Observations {
				r.Observations[i].Witnessed = 0
			}
		}, -1, "which source address the endpoint saw"},
		{"agents that began after the turn", func(r *checkup.Record) {
			for i := range r.Observations {
				if o := &r.Observations[i]; l.w.Targets[o.Target].OfService == "terminating" {
					o.Unturned = true
				}
			}
		}, -1, "the endpoint did not change while this node's agent measured"},
		{"no turn", func(r *checkup.Record) {
			r.Facts[2] = checkup.Fact{Unit: checkup.FactServicesTurned, Cause: cause}
		}, -1, "cannot tell what the API says of the Service since its endpoint left: services is forbidden"},
		{"changed since the turn", func(r *checkup.Record) {
			r.Facts[1] = factOf(t, checkup.FactServicesAfter, l.api)
		}, -1, "changed during the run"},
		{"a terminating endpoint has ended since", func(r *checkup.Record) {
			after := *l.turned
			after.EndpointSlices = slices.Clone(after.EndpointSlices)
			for i := range after.EndpointSlices {
				s := &after.EndpointSlices[i]
				s.Endpoints = slices.DeleteFunc(slices.Clone(s.Endpoints), func(e discoveryv1.Endpoint) bool {
					return *e.Conditions.Terminating
				})
			}
			r.Facts[1] = factOf(t, checkup.FactServicesAfter, &after)
		}, 42, ""},
		{"nothing was collected", func(r *checkup.Record) { *r = checkup.Record{} }, 0, "the record has no data of the source"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := l.record(broken)
			r.Looks = nil // as if there had been no time
			tt.change(r)
			report := Judge(l.w, l.roster, r, planOf(nil).Gate)
			if tt.fail >= 0 && report.Counts.Fail != tt.fail {
				t.Errorf("%+v, want %d failed", report.Counts, tt.fail)
			}
			if (report.Counts.Unmeasured > 0) != (tt.message != "") {
				t.Errorf("%+v, want unmeasured ones: %v", report.Counts, tt.message != "")
			}
			for _, u := range report.Units {
				if u.Verdict == checkup.Unmeasured && !strings.Contains(u.Cause.Message, tt.message) {
					t.Errorf("%s: %s, want %q", u.Name, u.Cause.Message, tt.message)
				}
			}
		})
	}
	for _, roster := range []*checkup.Roster{nil, kind.ExistingTargets(nil, l.w, nil)} {
		if r := Judge(l.w, roster, l.record(right), planOf(nil).Gate); r.Counts.Unmeasured != r.Counts.Expected {
			t.Errorf("%+v, want all unmeasured without addresses", r.Counts)
		}
	}
}

// TestChance: if all endpoints are equally likely, all pairs of 1,000 runs pass; if one has a third of its share, it is
// found.
func TestChance(t *testing.T) {
	l := newLab(t, specOf(func(s *Spec) { s.Policies = []Policy{ClusterIP} }), townOf(3))
	random := rand.New(rand.NewPCG(1, 2))
	choose := func(weight float64) func(pair) answers {
		return func(p pair) answers {
			a := answers{by: map[string]int{}}
			for range p.count {
				i := random.IntN(len(p.endpoints))
				if i == 0 && len(p.endpoints) > 1 && random.Float64() >= weight { // it is passed over
					i = 1 + random.IntN(len(p.endpoints)-1)
				}
				a.by[p.endpoints[i]]++
			}
			return a
		}
	}
	for range 1000 {
		if r := l.judged(choose(1)); r.Counts.Pass != r.Counts.Expected {
			t.Fatalf("a clean run: %+v: %s", r.Counts, r.Units[0].Cause)
		}
	}
	missed := 0
	for range 20 {
		if r := l.judged(choose(1. / 3)); r.Counts.Fail == 0 {
			missed++
		}
	}
	if missed > 0 {
		t.Errorf("%d of 20 runs with an endpoint of a third of its share were not found", missed)
	}
}

// TestShareAny: other proxies may spread connections as they like, but must use every endpoint.
func TestShareAny(t *testing.T) {
	l := newLab(t, specOf(func(s *Spec) { s.Expect.Share, s.Expect.Closed = ShareAny, servicecheck.ClosedAny }), townOf(3))
	uneven := func(least int) func(pair) answers {
		return func(p pair) answers {
			a := right(p)
			if p.target == "cluster-ip" {
				first, last := p.endpoints[0], p.endpoints[len(p.endpoints)-1]
				a.by[last] += a.by[first] - least
				a.by[first] = least
			}
			if p.action == nodestate.Reject {
				a.refused = false
			}
			return a
		}
	}
	if r := l.judged(uneven(1)); r.Counts.Pass != r.Counts.Expected {
		t.Errorf("%+v, want that all pass", r.Counts)
	}
	if r := l.judged(uneven(0)); r.Counts.Fail != 12 {
		t.Errorf("%+v, want that cluster-ip fails", r.Counts)
	}
}

// TestAffinityEnd: a session affinity that does not end is undecided, because it may be the kernel's closed connections
// that keep it; and a second look ends the doubt only if it shows that the affinity ends.
func TestAffinityEnd(t *testing.T) {
	sticks := func(times int) func(pair) answers {
		return func(p pair) answers {
			a := right(p)
			if p.target == "session-affinity" && p.node == "n1" {
				a.later = slices.Repeat(p.endpoints[:1], times)
			}
			return a
		}
	}
	for _, tt := range []struct {
		name          string
		share         Share
		first, second func(pair) answers
		undecided     int
		confirmation  checkup.Confirmation
	}{
		{"it never ends", ShareEven, sticks(4), sticks(4), 4, checkup.NotConfirmed},
		{"it ends in the second look", ShareEven, sticks(4), right, 0, ""},
		{"the second look has no time", ShareEven, sticks(4), sticks(0), 4, checkup.NotMadeAgain},
		{"the second look is cut short", ShareEven, sticks(4), sticks(1), 4, checkup.NotMadeAgain},
		{"endpoints need not have equal shares", ShareAny, sticks(4), sticks(4), 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, specOf(func(s *Spec) { s.Expect.Share = tt.share }), townOf(3))
			r := l.measure(l.w, tt.first)
			if next := Again(l.w, l.roster, r, planOf(nil).Gate); next != nil {
				r.Looks = []checkup.Look{{Worksheet: *next, Record: *l.measure(next, tt.second)}}
			}
			report := Judge(l.w, l.roster, r, planOf(nil).Gate)
			if c := report.Counts; c.Undecided != tt.undecided || c.Pass != c.Expected-tt.undecided || len(report.Findings) > 0 {
				t.Errorf("%+v, %d findings, want %d undecided, and that all others pass", c, len(report.Findings), tt.undecided)
			}
			for _, u := range report.Units {
				if u.Confirmation != tt.confirmation || u.Cause == nil || !strings.Contains(u.Cause.Message, "as IPVS does") {
					t.Errorf("%s: %s, %v, want %s, and what else may keep the affinity", u.Name, u.Confirmation, u.Cause,
						tt.confirmation)
				}
			}
		})
	}
}

// TestHostileLater: an agent that reports answers after a session affinity which nobody answered is no panic.
func TestHostileLater(t *testing.T) {
	l := newLab(t, specOf(func(s *Spec) { s.Policies = []Policy{SessionAffinity} }), townOf(3))
	for _, s := range []*cluster.Snapshot{l.api, l.turned} {
		for i := range s.EndpointSlices {
			if s.EndpointSlices[i].Labels[discoveryv1.LabelServiceName] == "session-affinity" {
				s.EndpointSlices[i].Endpoints = nil // it refuses
			}
		}
	}
	r := l.judged(func(p pair) answers {
		a := right(p)
		a.later = []string{"x", "10.1.0.1"}
		return a
	})
	if r.Counts.Pass != r.Counts.Expected {
		t.Errorf("%+v, want that all pass", r.Counts)
	}
}

// TestSourceAddress: of external-local, an endpoint may see any internal address of the agent's node, however it is
// written, and no other one.
func TestSourceAddress(t *testing.T) {
	s := townOf(3)
	for i := range s.Nodes {
		n := &s.Nodes[i]
		n.InternalIPs = append(n.InternalIPs, fmt.Sprintf("192.0.2.%d", i+1), fmt.Sprintf("fd00:99:0:0::000%d", i+1))
	}
	l := newLab(t, specOf(func(s *Spec) { s.Policies = []Policy{ExternalLocal} }), s)
	for _, tt := range []struct {
		name, ipv4, ipv6 string
		node, fail       int
	}{
		{"the first address", "172.18.0.%d", "fd00:18::%d", 1, 0},
		{"another address, written otherwise", "::ffff:192.0.2.%d", "fd00:99::%d", 1, 0},
		{"that of another node", "192.0.2.%d", "fd00:99::%d", 2, 8},
		{"no address", "x%d", "%d", 1, -1},
	} {
		r := l.judged(func(p pair) answers {
			a := right(p)
			a.saw = addressOf(p.Family, tt.ipv4, tt.ipv6, p.Source+tt.node)
			return a
		})
		if tt.fail >= 0 && r.Counts.Fail != tt.fail || r.Counts.Pass != r.Counts.Expected-8*min(1, max(tt.fail, -tt.fail)) {
			t.Errorf("%s: %+v, want %d failed", tt.name, r.Counts, tt.fail)
		}
	}
}

// TestAgain: failed pairs are measured a second time, those that are answered more often.
func TestAgain(t *testing.T) {
	l := newLab(t, specOf(), townOf(3))
	r := l.measure(l.w, func(p pair) answers {
		a := right(p)
		switch {
		case p.node == "n0" && p.target == "cluster-ip" && p.Family == checkup.IPv4:
			delete(a.by, l.address("endpoint on n1", p.Family))
		case p.node == "n0" && p.target == "not-ready" && p.Transport == checkup.TCP, p.target == "endpoint-leaves":
			return answers{}
		}
		return a
	})
	next := Again(l.w, l.roster, r, planOf(nil).Gate) // of the one that turns, nothing is measured again
	var got []string
	for _, a := range next.Again {
		got = append(got, fmt.Sprintf("%s %s %s %d", l.w.Targets[a.Target].Name(), a.Family, a.Transport, a.Count))
	}
	want := []string{"cluster-ip IPv4 tcp 200", "cluster-ip IPv4 udp 200", "not-ready IPv4 tcp 60", "not-ready IPv6 tcp 60"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if Again(next, l.roster, r, planOf(nil).Gate) != nil || Again(l.w, l.roster, r, checkup.Gate{}) != nil {
		t.Error("a third look, or one that the gate does not want")
	}
}

// TestHostileSheet: a worksheet of something else is no panic.
func TestHostileSheet(t *testing.T) {
	l := newLab(t, specOf(), townOf(1))
	r := l.record(right)
	l.w.Details = []byte("7")
	if report := Judge(l.w, l.roster, r, planOf(nil).Gate); report.Verdict != checkup.RunInconclusive {
		t.Errorf("verdict %s, want inconclusive", report.Verdict)
	}
	if Again(l.w, l.roster, r, planOf(nil).Gate) != nil {
		t.Error("a second look without a sheet")
	}
}

// TestRights: Services are created by setup only, and deleted by setup and teardown only, all in the run's namespace.
func TestRights(t *testing.T) {
	var got []string
	for _, r := range Rights(checkup.Check{Spec: specOf()}) {
		if r.Scope != checkup.ScopeRun || r.Why == "" {
			t.Errorf("%+v: want the run's namespace, and a reason", r)
		}
		got = append(got, fmt.Sprintf("%s: %s %s", r.Phase, r.Verb, r.Resource))
	}
	want := []string{
		"setup: create services", "setup: list services", "setup: delete services", "setup: list endpointslices",
		"probe: list services", "probe: list endpointslices", "probe: patch pods", "probe: delete pods",
		"conclude: list services", "conclude: delete services",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for policy, want := range map[Policy]string{ClusterIP: "", EndpointLeaves: "patch", Terminating: "patch delete"} {
		var verbs []string
		for _, r := range Rights(checkup.Check{Spec: specOf(func(s *Spec) { s.Policies = []Policy{policy} })}) {
			if r.Resource == "pods" {
				verbs = append(verbs, r.Verb)
			}
		}
		if got := strings.Join(verbs, " "); got != want {
			t.Errorf("%s: %q of pods, want %q", policy, got, want)
		}
	}
}

// TestNodePortsOfOthers: each node asks the node port of one other node, and each is asked by one; with a policy Local,
// each asks the node that has the endpoint, and one that has none. Nodes that are not ready are not asked.
func TestNodePortsOfOthers(t *testing.T) {
	s := townOf(40)
	s.Nodes[7].Ready = corev1.ConditionFalse
	with := s.Nodes[3:5]
	for seed := range uint64(20) {
		asks := askedNodes(seed, s.Nodes, with, servicecheck.ClosedExact)
		others := askedNodes(seed, s.Nodes, with, servicecheck.ClosedAny)
		asked := map[bool]map[string]int{false: {}, true: {}}
		for i, n := range s.Nodes {
			var names []string // where another proxy than kube-proxy decides
			for _, node := range others(i, true) {
				names = append(names, node.Name)
			}
			if want := map[bool]string{true: "", false: "n3"}[n.Name == "n3"]; strings.Join(names, " ") != want ||
				len(others(i, false)) != 2 {
				t.Errorf("seed %d: another proxy's %s asks %q, and %d nodes, want %q and 2", seed, n.Name, names,
					len(others(i, false)), want)
			}
			for _, local := range []bool{false, true} {
				own, with := 0, 0
				for _, other := range asks(i, local) {
					if other.Name == n.Name {
						own++
					} else if other.Name == "n3" && local {
						with++
					} else if asked[local][other.Name]++; other.Name == "n7" {
						t.Errorf("seed %d: n7 is not ready, and asked", seed)
					}
				}
				if local && (own != 0 || with == 0 != (n.Name == "n3")) || !local && own != 1 {
					t.Errorf("seed %d: %s asks itself %d times, and the node with the endpoint %d times", seed, n.Name, own, with)
				}
			}
		}
		for local, n := range map[bool]int{false: 39, true: 38} {
			most := 0
			for _, times := range asked[local] {
				most = max(most, times)
			}
			if len(asked[local]) != n || most > 3 {
				t.Errorf("seed %d: %d nodes are asked, one by %d; want %d", seed, len(asked[local]), most, n)
			}
		}
	}
	one := askedNodes(1, s.Nodes[:1], s.Nodes[:1], servicecheck.ClosedExact)
	if len(one(0, false)) != 1 || len(one(0, true)) != 0 {
		t.Error("a node that is alone asks itself, and nobody about a policy Local")
	}
}
