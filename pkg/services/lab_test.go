// SPDX-License-Identifier: Apache-2.0

package services

import (
	"encoding/json"
	"fmt"
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
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// specOf is a spec with the schema's defaults, changed.
func specOf(changes ...func(*Spec)) *Spec {
	loss := checkup.Percent(1)
	s := &Spec{
		Placement: checkup.Placement{Tolerations: []checkup.Toleration{{Operator: "Exists"}}},
		Addresses: []Address{ClusterIP}, Sample: servicecheck.Sample{Budget: 20000},
		Probe:    servicecheck.Probe{Count: 5, Interval: checkup.Duration(100 * time.Millisecond), Timeout: checkup.Duration(2 * time.Second)},
		Expect:   Expect{Loss: checkup.LossLimit{Max: &loss}, Closed: servicecheck.ClosedExact},
		Limits:   checkup.Limits{PacketsPerSecond: 200, Concurrency: 16},
		Timeouts: checkup.Timeouts{Setup: checkup.Duration(2 * time.Minute), Probe: checkup.Duration(5 * time.Minute)},
	}
	for _, change := range changes {
		change(s)
	}
	return s
}

func planOf(spec *Spec) *checkup.Plan {
	return &checkup.Plan{
		Name: "day-2", Gate: checkup.Gate{Require: checkup.RequirePass, Confirm: true},
		Checks: map[string]checkup.Check{"services": {Spec: spec}},
	}
}

// town is a cluster under construction.
type town struct {
	cluster.Snapshot
	next int // number of the next address
}

// townOf has n ready nodes of two families.
func townOf(n int) *town {
	t := &town{next: 1}
	for i := range n {
		t.Nodes = append(t.Nodes, cluster.Node{
			Name: fmt.Sprintf("n%d", i), Ready: corev1.ConditionTrue,
			InternalIPs: []string{fmt.Sprintf("172.18.0.%d", i+1), fmt.Sprintf("fd00:18::%d", i+1)},
		})
	}
	t.Seen = []string{servicecheck.Seen("", "")}
	return t
}

// service adds a Service of two families with a port 80 and one endpoint on each of the named nodes.
func (t *town) service(name string, changes []func(*corev1.Service), nodes ...string) {
	t.next++
	dual := corev1.IPFamilyPolicyRequireDualStack
	s := corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), Labels: map[string]string{"app": name}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: fmt.Sprintf("10.96.0.%d", t.next),
			ClusterIPs: []string{fmt.Sprintf("10.96.0.%d", t.next), fmt.Sprintf("fd00:96::%d", t.next)},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, IPFamilyPolicy: &dual,
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	for _, change := range changes {
		change(&s)
	}
	t.ServiceObjects = append(t.ServiceObjects, s)
	for _, f := range s.Spec.IPFamilies {
		slice := discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: name + "-" + strings.ToLower(string(f)), UID: types.UID(name + string(f)), Generation: 1,
				Labels: map[string]string{discoveryv1.LabelServiceName: name},
			},
			AddressType: discoveryv1.AddressType(f),
			Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
		}
		for i, node := range nodes {
			address := fmt.Sprintf("10.244.%d.%d", t.next, i+1)
			if f == corev1.IPv6Protocol {
				address = fmt.Sprintf("fd00:244::%d:%d", t.next, i+1)
			}
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{address}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			})
		}
		t.EndpointSlices = append(t.EndpointSlices, slice)
	}
}

func local(s *corev1.Service) {
	s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
}

func onlyIPv4(s *corev1.Service) {
	s.Spec.ClusterIPs, s.Spec.IPFamilies = s.Spec.ClusterIPs[:1], s.Spec.IPFamilies[:1]
}

// small is a cluster of three nodes with Services of all expectations, and some that no node serves.
func small() *town {
	t := townOf(3)
	t.service("web", nil, "n0", "n1")
	t.service("db", []func(*corev1.Service){onlyIPv4}, "n2")
	t.service("empty", nil)
	t.service("log", []func(*corev1.Service){local}, "n0", "n1")
	t.service("headless", []func(*corev1.Service){func(s *corev1.Service) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"}
	}}, "n0")
	t.service("syslog", []func(*corev1.Service){func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolUDP }}, "n0")
	t.service("edge", []func(*corev1.Service){func(s *corev1.Service) {
		s.Spec.Type, s.Spec.Ports[0].NodePort, s.Spec.ExternalIPs = corev1.ServiceTypeNodePort, 30080, []string{"192.0.2.7"}
	}}, "n1")
	return t
}

func expanded(tb testing.TB, spec *Spec, t *town) *checkup.Worksheet {
	tb.Helper()
	w, _, err := Expand(planOf(spec), "services", &t.Snapshot, 0)
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

// answer is what a node sees of an address.
type answer string

const (
	connects answer = "connects"
	refused  answer = "refused"
	timeout  answer = "timed out"
	noRoute  answer = "no route"
	heldUp   answer = "is not measured: the agent was held up"
	half     answer = "connects at times"
	silent   answer = "" // the agent does not report
)

// right is the answer of a node whose proxy is right.
func right(e servicecheck.Expectation) answer {
	return map[servicecheck.Expectation]answer{servicecheck.Works: connects, servicecheck.Refused: refused, servicecheck.Dropped: timeout}[e]
}

// measure simulates the record of a worksheet. wrong returns what is not right; "right" is what a node's proxy does if
// it is right, and what wrong returns then.
func measure(tb testing.TB, w *checkup.Worksheet, wrong func(node, target string, right answer) answer) *checkup.Record {
	tb.Helper()
	sheet, err := SheetOf(w)
	if err != nil {
		tb.Fatal(err)
	}
	r := &checkup.Record{Facts: []checkup.Fact{{Unit: "state", Content: json.RawMessage(`{"changed":[]}`)}}}
	for s := range w.Sources {
		source := checkup.Source{Source: s, End: &checkup.AgentEnd{}}
		for _, f := range w.IPFamilies {
			source.Controls = append(source.Controls,
				checkup.Control{Family: f, Name: "self", OK: true}, checkup.Control{Family: f, Name: "closed", OK: true})
		}
		r.Sources = append(r.Sources, source)
	}
	for p := range w.Pairs() {
		n := w.Measurements(p)
		o := checkup.Observation{Pair: p, Sent: n}
		fail := func(reason checkup.Reason, message string) {
			o.Failure = &checkup.Cause{Stage: checkup.StageConnect, Reason: reason, Message: message}
		}
		a := wrong(w.Sources[p.Source].Node, w.Targets[p.Target].Label, right(sheet.Expects(w, p)))
		switch a {
		case silent:
			continue
		case connects:
			o.Received = n
		case half:
			o.Received = n / 2
			fail(checkup.ReasonTimedOut, "timed out after 2s")
		case refused:
			fail(checkup.ReasonRefused, "connection refused")
		case timeout:
			fail(checkup.ReasonTimedOut, "timed out after 2s")
		case heldUp:
			o.Sent, o.Spoiled = 0, 5*n
			o.Unmeasured = &checkup.Cause{Stage: checkup.StageSelf, Message: "the agent or its target was held up"}
		case noRoute:
			fail(checkup.ReasonNoRoute, "no route to host")
		}
		for i := range o.Received {
			o.RTTs = append(o.RTTs, int64(100+i))
		}
		r.Observations = append(r.Observations, o)
		r.Sources[p.Source].End.Observations++
	}
	return r
}

// look measures again what Again wants, and adds it to the record.
func look(tb testing.TB, w *checkup.Worksheet, r *checkup.Record, wrong func(node, target string, right answer) answer) {
	tb.Helper()
	next := Again(w, Kind.Roster(nil, w, nil), r, planOf(nil).Gate)
	if next == nil {
		return
	}
	again := measure(tb, next, wrong)
	again.Facts = nil
	r.Looks = []checkup.Look{{Worksheet: *next, After: checkup.Duration(20 * time.Second), Record: *again}}
}

// changed records that something of targets changed, by their labels' beginnings.
func changed(w *checkup.Worksheet, r *checkup.Record, prefixes ...string) {
	found := []int{}
	for i, t := range w.Targets {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(t.Label, p) }) {
			found = append(found, i)
		}
	}
	content, _ := json.Marshal(map[string][]int{"changed": found})
	r.Facts = []checkup.Fact{{Unit: "state", Content: content}}
}
