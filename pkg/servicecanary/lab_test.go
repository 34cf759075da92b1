// SPDX-License-Identifier: Apache-2.0

package servicecanary

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/nodestate"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// specOf is a spec with the schema's defaults, changed.
func specOf(changes ...func(*Spec)) *Spec {
	loss := checkup.Percent(1)
	s := &Spec{
		Policies: Policies, Endpoints: 3, Budget: 50000,
		Placement: checkup.Placement{Tolerations: []checkup.Toleration{{Operator: "Exists"}}},
		Probe:     servicecheck.Probe{Count: 60, Interval: checkup.Duration(20 * time.Millisecond), Timeout: checkup.Duration(2 * time.Second)},
		Expect:    Expect{Loss: checkup.LossLimit{Max: &loss}, Share: ShareEven, Closed: servicecheck.ClosedExact},
		Limits:    checkup.Limits{PacketsPerSecond: 200, Concurrency: 16},
		Timeouts:  checkup.Timeouts{Setup: checkup.Duration(2 * time.Minute), Probe: checkup.Duration(5 * time.Minute)},
	}
	for _, change := range changes {
		change(s)
	}
	return s
}

func planOf(spec *Spec) *checkup.Plan {
	return &checkup.Plan{
		Name: "day-2", Gate: checkup.Gate{Require: checkup.RequirePass, Confirm: true},
		Checks: map[string]checkup.Check{"canary": {Spec: spec}},
	}
}

// townOf has n ready nodes of two families, in two zones.
func townOf(n int) *cluster.Snapshot {
	s := &cluster.Snapshot{}
	for i := range n {
		s.Nodes = append(s.Nodes, cluster.Node{
			Name: fmt.Sprintf("n%d", i), Ready: corev1.ConditionTrue,
			InternalIPs: []string{fmt.Sprintf("172.18.0.%d", i+1), fmt.Sprintf("fd00:18::%d", i+1)},
			PodCIDRs:    []string{fmt.Sprintf("10.244.%d.0/24", i), fmt.Sprintf("fd00:244:%d::/64", i)},
			Labels:      map[string]string{corev1.LabelTopologyZone: fmt.Sprintf("z%d", i%2)},
		})
	}
	return s
}

func expanded(tb testing.TB, spec *Spec, s *cluster.Snapshot) *checkup.Worksheet {
	tb.Helper()
	w, _, err := Expand(planOf(spec), "canary", s)
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

// rosterOf is the roster of a worksheet of which everything was set up.
func rosterOf(w *checkup.Worksheet) *checkup.Roster {
	r := &checkup.Roster{}
	for i, t := range w.Targets {
		e := checkup.RosterEntry{Pod: "ns/" + t.Name(), Addresses: map[checkup.IPFamily]string{}}
		for _, f := range w.IPFamilies {
			switch {
			case t.IsFixture():
				e.Addresses[f] = addressOf(f, "10.1.0.%d", "fd00:1::%d", i)
			case t.Hosts != nil:
				e.Pod, e.Addresses[f] = "ns/"+t.OfService, t.Hosts[f]
			default:
				e.Pod, e.Addresses[f] = "ns/"+t.OfService, addressOf(f, "10.96.0.%d", "fd00:96::%d", i)
			}
		}
		r.Targets = append(r.Targets, e)
	}
	return r
}

func addressOf(f checkup.IPFamily, ipv4, ipv6 string, n int) string {
	if f == checkup.IPv6 {
		return fmt.Sprintf(ipv6, n)
	}
	return fmt.Sprintf(ipv4, n)
}

// apiOf is what the API says of the worksheet's Services, before or after the turn: all that its controllers do.
func apiOf(w *checkup.Worksheet, roster *checkup.Roster, turned bool) *cluster.Snapshot {
	s := &cluster.Snapshot{}
	for n, fixture := range w.Services {
		service := corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fixture.Name, UID: types.UID(fixture.Name)},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP},
		}
		for _, p := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
			port := corev1.ServicePort{Name: strings.ToLower(string(p)), Protocol: p, Port: 7}
			if fixture.NodePort {
				service.Spec.Type, port.NodePort = corev1.ServiceTypeNodePort, 30007
			}
			service.Spec.Ports = append(service.Spec.Ports, port)
		}
		if fixture.InternalLocal {
			service.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
		}
		if fixture.ExternalLocal {
			service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
		if fixture.ClientIP > 0 {
			service.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			service.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &fixture.ClientIP},
			}
		}
		for _, f := range w.IPFamilies {
			service.Spec.IPFamilies = append(service.Spec.IPFamilies, corev1.IPFamily(f))
			service.Spec.ClusterIPs = append(service.Spec.ClusterIPs, addressOf(f, "10.96.1.%d", "fd00:96::1:%d", n+1))
			slice := discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "ns", Name: fixture.Name + string(f), UID: types.UID(fixture.Name + string(f)), Generation: 1,
					Labels: map[string]string{discoveryv1.LabelServiceName: fixture.Name},
				},
				AddressType: discoveryv1.AddressType(f),
				Ports: []discoveryv1.EndpointPort{
					{Name: new("tcp"), Port: new(int32(7007)), Protocol: new(corev1.ProtocolTCP)},
					{Name: new("udp"), Port: new(int32(7007)), Protocol: new(corev1.ProtocolUDP)},
				},
			}
			for t, e := range w.Targets {
				in := slices.Contains(e.In, fixture.Name)
				if turned {
					in = (in || slices.Contains(e.Joins, fixture.Name)) && !slices.Contains(e.Leaves, fixture.Name)
				}
				if in {
					ends := turned && e.Ends
					endpoint := discoveryv1.Endpoint{
						Addresses: []string{roster.Targets[t].Addresses[f]}, NodeName: &e.Node,
						Conditions: discoveryv1.EndpointConditions{
							Ready: new((!e.NeverReady || fixture.PublishNotReady) && !ends), Serving: new(!e.NeverReady), Terminating: &ends,
						},
					}
					if fixture.Distribution != "" {
						endpoint.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zoneOf(w, e.Node)}}}
					}
					slice.Endpoints = append(slice.Endpoints, endpoint)
				}
			}
			s.EndpointSlices = append(s.EndpointSlices, slice)
		}
		if service.Spec.ClusterIP = service.Spec.ClusterIPs[0]; fixture.Headless {
			service.Spec.ClusterIP, service.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
		}
		s.ServiceObjects = append(s.ServiceObjects, service)
	}
	return s
}

func zoneOf(w *checkup.Worksheet, node string) string {
	return w.Sources[slices.IndexFunc(w.Sources, func(e checkup.Endpoint) bool { return e.Node == node })].Zone
}

func factOf(tb testing.TB, unit string, s *cluster.Snapshot) checkup.Fact {
	tb.Helper()
	content, err := json.Marshal(s)
	if err != nil {
		tb.Fatal(err)
	}
	return checkup.Fact{Unit: unit, Content: content}
}

// pair is what wrong gets of a pair: the node and target by name, what is right, and how often it is measured.
type pair struct {
	checkup.Pair
	node, target string
	must
	count int
}

// proxy is the node whose service proxy decides who answers.
func (p pair) proxy() string {
	if _, at, is := strings.Cut(p.target, " at "); is {
		return at
	}
	return p.node
}

// answers are who answered how often; with nobody, refused says whether the pair is refused or not answered. Endpoints
// saw the source address; empty for the agent's own. unturned says that the agent saw no turn. later answered after the
// session affinity.
type answers struct {
	by       map[string]int
	refused  bool
	saw      string
	unturned bool
	later    []string
}

// right is what a node does whose service proxy is right: each endpoint in turn.
func right(p pair) answers {
	a := answers{by: map[string]int{}, refused: p.action == nodestate.Reject}
	if p.action == nodestate.Forward {
		for i := range p.count {
			if p.one {
				i = 0
			}
			a.by[p.endpoints[i%len(p.endpoints)]]++
		}
		for i := range 4 {
			a.later = append(a.later, p.endpoints[(i+1)%len(p.endpoints)])
		}
	}
	return a
}

// lab is a worksheet with all that was set up.
type lab struct {
	testing.TB
	w      *checkup.Worksheet
	roster *checkup.Roster
	// api and turned are before and after the turn.
	api, turned *cluster.Snapshot
}

func newLab(tb testing.TB, spec *Spec, s *cluster.Snapshot) *lab {
	w := expanded(tb, spec, s)
	roster := rosterOf(w)
	return &lab{tb, w, roster, apiOf(w, roster, false), apiOf(w, roster, true)}
}

// address is that of the responder of a name.
func (l *lab) address(label string, f checkup.IPFamily) string {
	i := slices.IndexFunc(l.w.Targets, func(e checkup.Endpoint) bool { return e.Label == label })
	if i < 0 {
		l.Fatalf("no target %q", label)
	}
	return l.roster.Targets[i].Addresses[f]
}

// leaver is the responder that leaves, or terminates, at the turn.
func (l *lab) leaver(f checkup.IPFamily) string {
	i := slices.IndexFunc(l.w.Targets, func(e checkup.Endpoint) bool { return len(e.Leaves) > 0 })
	return l.roster.Targets[i].Addresses[f]
}

// measure simulates the record of a look: wrong returns what is not right.
func (l *lab) measure(w *checkup.Worksheet, wrong func(pair) answers) *checkup.Record {
	r := &checkup.Record{Facts: []checkup.Fact{
		factOf(l, checkup.FactServicesBefore, l.api), factOf(l, checkup.FactServicesAfter, l.turned),
		factOf(l, checkup.FactServicesTurned, l.turned),
	}}
	own := func(source int, f checkup.IPFamily) string { return addressOf(f, "10.2.0.%d", "fd00:2::%d", source+1) }
	for s := range w.Sources {
		source := checkup.Source{Source: s, End: &checkup.AgentEnd{}, Addresses: map[checkup.IPFamily]string{}}
		for _, f := range w.IPFamilies {
			source.Addresses[f] = own(s, f)
			source.Controls = append(source.Controls,
				checkup.Control{Family: f, Name: "self", OK: true}, checkup.Control{Family: f, Name: "closed", OK: true})
		}
		r.Sources = append(r.Sources, source)
	}
	state := stateOf(l.w, l.roster, r)
	for p := range w.Pairs() {
		of := pair{Pair: p, node: w.Sources[p.Source].Node, target: w.Targets[p.Target].Name(), count: w.Measurements(p)}
		switch fixture, isService := w.ServiceOf(p.Target); {
		case !isService:
			of.must = must{action: nodestate.Forward, endpoints: []string{l.roster.Targets[p.Target].Addresses[p.Family]}}
		case fixture.Name == hairpinService:
			of.must = must{action: nodestate.Forward, endpoints: []string{own(p.Source, p.Family)}}
		default:
			var ok bool
			at := state.before
			if state.turns(p) {
				at = state.turned
			}
			if of.must, ok = state.of(at, p); !ok {
				l.Fatalf("no state of %s", of.target)
			}
		}
		a := wrong(of)
		o := checkup.Observation{Pair: p, Sent: of.count, Unturned: a.unturned}
		for _, address := range slices.Sorted(maps.Keys(a.by)) {
			if n := a.by[address]; n > 0 {
				o.Received += n
				o.Answerers = append(o.Answerers, checkup.Answerer{Address: address, Count: n})
			}
		}
		if of.one {
			o.Later = a.later
		}
		if of.preserved {
			o.Witnessed = o.Received
			if o.Received > 0 && a.saw != "" {
				o.Rewritten, o.SeenAs = o.Received, a.saw
			}
		}
		for i := range o.Received {
			o.RTTs = append(o.RTTs, int64(100+i))
		}
		if o.Received < o.Sent {
			o.Failure = &checkup.Cause{Stage: checkup.StageConnect, Reason: checkup.ReasonTimedOut, Message: "timed out after 2s"}
			if a.refused {
				o.Failure = &checkup.Cause{Stage: checkup.StageConnect, Reason: checkup.ReasonRefused, Message: "connection refused"}
			}
		}
		r.Observations = append(r.Observations, o)
		r.Sources[p.Source].End.Observations++
	}
	return r
}

// record simulates both looks.
func (l *lab) record(wrong func(pair) answers) *checkup.Record {
	r := l.measure(l.w, wrong)
	if next := Again(l.w, l.roster, r, planOf(nil).Gate); next != nil {
		again := l.measure(next, wrong)
		again.Facts = nil
		r.Looks = []checkup.Look{{Worksheet: *next, After: checkup.Duration(20 * time.Second), Record: *again}}
	}
	return r
}

func (l *lab) judged(wrong func(pair) answers) checkup.CheckReport {
	return Judge(l.w, l.roster, l.record(wrong), planOf(nil).Gate)
}
