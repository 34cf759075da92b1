// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/kinds"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/pkg/servicecanary"
	"github.com/checkplan/checkplan/pkg/servicecheck"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

// TestServices: what the API says of the check's Services, before and after measuring, decides what their answers mean.
func TestServices(t *testing.T) {
	forbidden := apierrors.NewForbidden(discoveryv1.Resource("endpointslices"), "", errors.New("no"))
	for _, tt := range []struct {
		name     string
		answerer string
		lists    func(n int, slice *discoveryv1.EndpointSlice) error // the n-th list of EndpointSlices
		want     checkup.Verdict
		message  string
	}{
		{"as it must be", "10.1.0.1", nil, checkup.Pass, ""},
		{"another endpoint", "10.1.0.9", nil, checkup.Fail, "3 of 3 answered by endpoint 10.1.0.9, which this node must not use"},
		{"the endpoints change", "10.1.0.9", func(n int, slice *discoveryv1.EndpointSlice) error {
			slice.Generation = int64(n)
			return nil
		}, checkup.Unmeasured, "changed during the run"},
		{"not known", "10.1.0.1", func(int, *discoveryv1.EndpointSlice) error { return forbidden }, checkup.Unmeasured, "cannot tell what the API says of the Service"},
		{"not known after", "10.1.0.9", func(n int, _ *discoveryv1.EndpointSlice) error {
			if n > 1 {
				return forbidden
			}
			return nil
		}, checkup.Unmeasured, "cannot tell whether the Service changed while it was measured"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c checkup.CheckReport
			synctest.Test(t, func(t *testing.T) { c = testServices(t, tt.answerer, tt.lists) })
			got, message := checkup.Pass, ""
			for _, u := range c.Units {
				if u.Target == "cluster-ip" && u.Transport == checkup.TCP {
					got, message = u.Verdict, u.Cause.Message
				}
			}
			if got != tt.want || !strings.Contains(message, tt.message) {
				t.Errorf("%s: %q, want %s, %q", got, message, tt.want, tt.message)
			}
		})
	}
}

// testServices runs a probe task of one node with one responder. It returns the report.
func testServices(t *testing.T, answerer string, lists func(n int, slice *discoveryv1.EndpointSlice) error) checkup.CheckReport {
	ctx := t.Context()
	second := checkup.Duration(time.Second)
	spec := &servicecanary.Spec{
		Policies: []servicecanary.Policy{servicecanary.ClusterIP}, Endpoints: 1, Budget: 100, IPFamilies: []checkup.IPFamily{checkup.IPv4},
		Probe:    servicecheck.Probe{Count: 3, Interval: second, Timeout: second},
		Limits:   checkup.Limits{PacketsPerSecond: 100, Concurrency: 1},
		Timeouts: checkup.Timeouts{Setup: 60 * second, Probe: 60 * second},
	}
	plan := &checkup.Plan{Name: "day-2", Checks: map[string]checkup.Check{"canary": {Spec: spec}}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0"}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	client := fake.NewSimpleClientset(node)
	w, roster, err := kinds.Prepare(ctx, cluster.Reader{Kubernetes: client}, plan, "canary")
	if err != nil {
		t.Fatal(err)
	}
	tk := &task.Task{
		Kubernetes: client, Namespace: "ns", RunName: "run", RunUID: "uid-1", PodName: "probe-pod", PodUID: "uid-3",
		Check: "canary", Stdout: io.Discard,
	}
	f := tk.Fleet("day-2")
	f.Retry = time.Millisecond
	name := f.ServiceName("canary", "cluster-ip")
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: f.Labels("canary", checkup.RoleService)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{
				{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: 7}, {Name: "udp", Protocol: corev1.ProtocolUDP, Port: 7},
			},
		},
	}
	if err := client.Tracker().Add(service); err != nil {
		t.Fatal(err)
	}
	responder := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: checkup.ObjectName("uid-1", "canary", checkup.RoleResponder, "endpoint on n0"),
		Labels: f.Labels("canary", checkup.RoleResponder),
	}}
	if err := client.Tracker().Add(responder); err != nil {
		t.Fatal(err)
	}
	n := 0
	client.PrependReactor("list", "endpointslices", func(k8stesting.Action) (bool, runtime.Object, error) {
		n++
		tcp, udp, port := corev1.ProtocolTCP, corev1.ProtocolUDP, int32(7007)
		slice := discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: "slice", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: new("tcp"), Protocol: &tcp, Port: &port}, {Name: new("udp"), Protocol: &udp, Port: &port}},
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
		}
		if lists != nil {
			if err := lists(n, &slice); err != nil {
				return true, nil, err
			}
		}
		others := slice
		others.Name, others.Labels = "others", map[string]string{discoveryv1.LabelServiceName: "others"}
		return true, &discoveryv1.EndpointSliceList{Items: []discoveryv1.EndpointSlice{slice, others}}, nil
	})
	log := line(t, checkup.Message{Start: &checkup.AgentStart{Source: 0}})
	for _, name := range []string{"self", "closed"} {
		log += line(t, checkup.Message{Control: &checkup.Control{Family: checkup.IPv4, Name: name, OK: true}})
	}
	ports := map[checkup.Transport]int{checkup.TCP: 7, checkup.UDP: 7}
	pairs := 0
	for i, target := range w.Targets {
		roster.Targets[i] = checkup.RosterEntry{
			Pod: "ns/" + name, Addresses: map[checkup.IPFamily]string{checkup.IPv4: "10.96.0.1"}, Ports: ports,
		}
		by := answerer
		if target.IsFixture() {
			roster.Targets[i].Pod, roster.Targets[i].Addresses[checkup.IPv4], by = "ns/"+responder.Name, "10.1.0.1", "10.1.0.1"
		}
		for p := range w.PairsBetween(0, i) {
			pairs++
			log += line(t, checkup.Message{Observation: &checkup.Observation{
				Pair: p, Sent: 3, Received: 3, RTTs: []int64{1, 2, 3}, Answerers: []checkup.Answerer{{Address: by, Count: 3}},
			}})
		}
	}
	log += line(t, checkup.Message{End: &checkup.AgentEnd{Observations: pairs}})
	client.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		a.(k8stesting.CreateAction).GetObject().(*corev1.Pod).Status = corev1.PodStatus{
			Phase:             corev1.PodSucceeded,
			ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}},
		}
		return false, nil, nil
	})
	f.OpenLog = func(_ context.Context, pod string, _ *corev1.PodLogOptions) (io.ReadCloser, error) {
		if strings.Contains(pod, "agent") {
			return io.NopCloser(strings.NewReader(log)), nil
		}
		return nil, errors.New("no counts")
	}
	frozen := record.Frozen{Worksheet: *w, Roster: *roster}
	if err := tk.Store("day-2").Save(ctx, record.Worksheet("canary"), frozen); err != nil {
		t.Fatal(err)
	}
	if err := probe(ctx, tk, f, &frozen); err != nil {
		t.Fatal(err)
	}
	r, err := tk.Report(ctx, plan, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return r.Checks[0]
}
