// SPDX-License-Identifier: Apache-2.0

package dns

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
		Servers:   Servers, DNSService: ServiceName{"kube-system", "kube-dns"}, Domain: "cluster.local", Transports: Transports,
		Sample:   servicecheck.Sample{Budget: 20000},
		Probe:    servicecheck.Probe{Count: 3, Interval: checkup.Duration(200 * time.Millisecond), Timeout: checkup.Duration(2 * time.Second)},
		Expect:   Expect{Loss: checkup.LossLimit{Max: &loss}},
		Limits:   checkup.Limits{PacketsPerSecond: 50, Concurrency: 16},
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
		Checks: map[string]checkup.Check{"dns": {Spec: spec}},
	}
}

// town is a cluster under construction.
type town struct {
	cluster.Snapshot
	next int // number of the next Service
}

// townOf has n ready nodes, and a DNS Service with an endpoint on each of so many of them, of one family or two.
func townOf(n, servers int, families ...corev1.IPFamily) *town {
	t := &town{}
	for i := range n {
		t.Nodes = append(t.Nodes, cluster.Node{Name: fmt.Sprintf("n%d", i), Ready: corev1.ConditionTrue})
	}
	t.Seen = []string{"services of all namespaces"}
	t.service("kube-system", "kube-dns", servers, func(s *corev1.Service, slices []discoveryv1.EndpointSlice) {
		s.Spec.IPFamilies = families
		s.Spec.Ports = []corev1.ServicePort{
			{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}, {Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP},
			{Name: "metrics", Port: 9153, Protocol: corev1.ProtocolTCP},
		}
		for i := range slices {
			slices[i].Ports = nil
			for _, p := range s.Spec.Ports {
				slices[i].Ports = append(slices[i].Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol})
			}
		}
	})
	if len(families) == 1 {
		t.EndpointSlices = slices.DeleteFunc(t.EndpointSlices, func(s discoveryv1.EndpointSlice) bool {
			return string(s.AddressType) != string(families[0])
		})
	}
	return t
}

// service adds a Service of two families with a port 80, and so many endpoints.
func (t *town) service(namespace, name string, endpoints int, change func(*corev1.Service, []discoveryv1.EndpointSlice)) {
	t.next++
	s := corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), Labels: map[string]string{"app": name}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: fmt.Sprintf("10.96.0.%d", t.next),
			ClusterIPs: []string{fmt.Sprintf("10.96.0.%d", t.next), fmt.Sprintf("fd00:96::%d", t.next)},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			Ports:      []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	var of []discoveryv1.EndpointSlice
	for _, f := range s.Spec.IPFamilies {
		slice := discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: name + "-" + strings.ToLower(string(f)), UID: types.UID(name + string(f)), Generation: 1,
				Labels: map[string]string{discoveryv1.LabelServiceName: name},
			},
			AddressType: discoveryv1.AddressType(f),
			Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
		}
		for i := range endpoints {
			address := fmt.Sprintf("10.244.%d.%d", t.next, i+1)
			if f == corev1.IPv6Protocol {
				address = fmt.Sprintf("fd00:244::%d:%d", t.next, i+1)
			}
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			})
		}
		of = append(of, slice)
	}
	if change != nil {
		change(&s, of)
	}
	t.ServiceObjects, t.EndpointSlices = append(t.ServiceObjects, s), append(t.EndpointSlices, of...)
}

// headless has no cluster IP. Its first endpoint has a hostname.
func headless(s *corev1.Service, slices []discoveryv1.EndpointSlice) {
	s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
	for i := range slices {
		if len(slices[i].Endpoints) > 0 {
			slices[i].Endpoints[0].Hostname = new("first")
		}
	}
}

// onlyIPv4 has one family.
func onlyIPv4(s *corev1.Service, slices []discoveryv1.EndpointSlice) {
	s.Spec.ClusterIPs, s.Spec.IPFamilies = s.Spec.ClusterIPs[:1], s.Spec.IPFamilies[:1]
	slices[1].Endpoints = nil
}

// small is a cluster of three nodes with two DNS servers of one family, and Services of all sorts.
func small() *town {
	t := townOf(3, 2, corev1.IPv4Protocol)
	t.service("shop", "web", 2, nil)
	t.service("shop", "db", 3, headless)
	t.service("shop", "old", 1, onlyIPv4)
	return t
}

func expanded(tb testing.TB, spec *Spec, t *town) *checkup.Worksheet {
	tb.Helper()
	w, _, err := Expand(planOf(spec), "dns", &t.Snapshot, 0)
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

// answer is what a node gets from a server.
type answer string

const (
	right    answer = "right"
	wrong    answer = "wrong"
	servfail answer = "servfail"
	silent   answer = "silent"
	lossy    answer = "lossy" // one datagram of three is lost
	missing  answer = ""      // the agent does not report
)

// asked is one pair, as a simulated network sees it.
type asked struct {
	node, server, question, kind string
	transport                    Transport
}

// measure simulates the record of a worksheet.
func measure(tb testing.TB, w *checkup.Worksheet, network func(asked) answer) *checkup.Record {
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
		n, t, q := w.Measurements(p), sheet.Targets[p.Target], w.Targets[p.Target].Peer.Question
		o := checkup.Observation{Pair: p, Sent: n}
		fail := func(reason checkup.Reason, message string) {
			o.Failure = &checkup.Cause{Stage: checkup.StageEcho, Reason: reason, Message: message}
		}
		transport := UDP
		if p.Transport == checkup.DNSTCP {
			transport = TCP
		}
		switch network(asked{w.Sources[p.Source].Node, t.Server, t.Question, q.Type, transport}) {
		case missing:
			continue
		case right:
			o.Received = n
		case lossy:
			o.Received, o.Repeated = n-n/3, n/3
			fail(checkup.ReasonRepeated, "lost: no answer within 2s, but one when asked again; a pod's resolver waits 5s before it asks again")
		case wrong:
			fail(checkup.ReasonWrong, "answered NXDOMAIN, must be another answer")
		case servfail:
			fail(checkup.ReasonCode, "answered SERVFAIL")
		case silent:
			fail(checkup.ReasonTimedOut, map[Transport]string{UDP: "timed out after 2s, twice", TCP: "timed out after 2s"}[transport])
		}
		for i := range o.Received {
			o.RTTs = append(o.RTTs, int64(300+10*i))
			if transport == TCP {
				o.Connects = append(o.Connects, int64(100+i))
			}
		}
		r.Observations = append(r.Observations, o)
		r.Sources[p.Source].End.Observations++
	}
	return r
}

// look measures again what Again wants, and adds it to the record.
func look(tb testing.TB, w *checkup.Worksheet, r *checkup.Record, network func(asked) answer) {
	tb.Helper()
	next := Again(w, Kind.Roster(nil, w, nil), r, planOf(nil).Gate)
	if next == nil {
		return
	}
	again := measure(tb, next, network)
	again.Facts = nil
	r.Looks = []checkup.Look{{Worksheet: *next, After: checkup.Duration(20 * time.Second), Record: *again}}
}

// judged measures twice, and judges.
func judged(tb testing.TB, w *checkup.Worksheet, network func(asked) answer) checkup.CheckReport {
	tb.Helper()
	r := measure(tb, w, network)
	look(tb, w, r, network)
	return Judge(w, Kind.Roster(nil, w, nil), r, planOf(nil).Gate)
}
