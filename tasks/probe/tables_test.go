// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/kinds"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/pkg/servicerules"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

// rulesOf is what an agent finds on a node: rules that refuse connections to an address, or none.
func rulesOf(t *testing.T, address string) []byte {
	t.Helper()
	l := dataplane.Look{Proxy: dataplane.Proxy{None: true}}
	if address != "" {
		l = dataplane.Look{Proxy: dataplane.Proxy{Mode: dataplane.NFTables}, Table: &dataplane.Table{Mode: dataplane.NFTables, Family: dataplane.IPv4}}
		for _, origin := range dataplane.Origins {
			l.Table.Frontends = append(l.Table.Frontends, dataplane.Frontend{
				Key:  dataplane.Key{Address: netip.MustParseAddr(address), Protocol: "TCP", Port: 80},
				From: origin, Service: "shop/web", Action: dataplane.Reject,
			})
		}
	}
	var text bytes.Buffer
	zip := gzip.NewWriter(&text)
	if err := l.Write(zip); err != nil {
		t.Fatal(err)
	}
	zip.Close()
	return text.Bytes()
}

// TestTables: the rules that agents report are compared with the Services, and only what differs is recorded: a node as
// it has to be, one with other rules, one without any, one whose log ends early, and one that the namespace refuses.
func TestTables(t *testing.T) {
	for _, tt := range []struct {
		name    string
		refused int // agents, the last ones
		want    map[string]string
	}{
		{"one agent refused", 1, map[string]string{
			"n1 shop/web IPv4":         "fail rules Missing",
			"n2 shop/web IPv4":         "fail rules NoRules",
			"n3 shop/web IPv4":         "unmeasured collect",
			"n3 no other Service IPv4": "unmeasured collect",
			"n4 shop/web IPv4":         "unmeasured start",
			"n4 no other Service IPv4": "unmeasured start",
		}},
		{"all agents refused", 5, map[string]string{}},
	} {
		t.Run(tt.name, func(t *testing.T) { testTables(t, tt.refused, tt.want) })
	}
}

func testTables(t *testing.T, refused int, want map[string]string) {
	ctx := t.Context()
	client := fake.NewSimpleClientset(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:      []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	})
	for i := range 5 {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i)}}
		if err := client.Tracker().Add(node); err != nil {
			t.Fatal(err)
		}
	}
	minute := checkup.Duration(time.Minute)
	plan := &checkup.Plan{Name: "day-2", Checks: map[string]checkup.Check{"rules": {Spec: &servicerules.Spec{
		Interval: 1, Timeouts: checkup.Timeouts{Setup: minute, Probe: minute},
	}}}}
	w, roster, err := kinds.Prepare(ctx, cluster.Reader{Kubernetes: client}, plan, "rules")
	if err != nil {
		t.Fatal(err)
	}
	tk := &task.Task{Kubernetes: client, Namespace: "ns", RunName: "run", RunUID: "uid-1", PodName: "probe-pod", PodUID: "uid-3", Check: "rules", Stdout: io.Discard}
	frozen := record.Frozen{Worksheet: *w, Roster: *roster}
	if err := tk.Store("day-2").Save(ctx, record.Worksheet("rules"), frozen); err != nil {
		t.Fatal(err)
	}
	logs := map[string]string{}
	for i, data := range [][]byte{
		rulesOf(t, "10.96.0.1"), rulesOf(t, "10.96.0.9"), rulesOf(t, ""), rulesOf(t, "10.96.0.1"), rulesOf(t, "10.96.0.1"),
	} {
		text := line(t, checkup.Message{Start: &checkup.AgentStart{Source: i}}) +
			line(t, checkup.Message{Table: &checkup.TablePart{Family: checkup.IPv4, Last: true, Data: data}})
		if i != 3 {
			text += line(t, checkup.Message{Table: &checkup.TablePart{Look: 1, Family: checkup.IPv4, Last: true, Same: true}}) +
				line(t, checkup.Message{End: &checkup.AgentEnd{Tables: 2}})
		}
		logs[checkup.ObjectName("uid-1", "rules", checkup.RoleAgent, fmt.Sprintf("n%d", i))] = text
	}
	made := 0
	client.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		pod := a.(k8stesting.CreateAction).GetObject().(*corev1.Pod)
		for i := range refused {
			if pod.Name == checkup.ObjectName("uid-1", "rules", checkup.RoleAgent, fmt.Sprintf("n%d", 4-i)) {
				return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), pod.Name,
					errors.New(`violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)`))
			}
		}
		made++
		if c := pod.Spec.Containers[0].SecurityContext; !pod.Spec.HostNetwork || *c.RunAsUser != 0 || len(c.Capabilities.Add) != 1 {
			t.Errorf("pod %s cannot read rules: %+v", pod.Name, c)
		}
		pod.Status = corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{{
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}},
		}}}
		return false, nil, nil
	})
	f := tk.Fleet("day-2")
	f.Retry = time.Millisecond
	f.OpenLog = func(_ context.Context, pod string, _ *corev1.PodLogOptions) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(logs[pod])), nil
	}
	if err := probe(ctx, tk, f, &frozen); err != nil {
		t.Fatal(err)
	}
	if made != 5-refused {
		t.Errorf("%d agents, want %d", made, 5-refused)
	}
	r, err := tk.Report(ctx, plan, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c := r.Checks[0]
	got := map[string]string{}
	for _, u := range c.Units {
		got[u.Name] = strings.TrimSpace(fmt.Sprintf("%s %s %s", u.Verdict, u.Cause.Stage, u.Cause.Reason))
		if u.Cause.Stage == checkup.StageStart && !strings.Contains(u.Cause.Message, "kubectl label --overwrite namespace ns pod-security.kubernetes.io/enforce=privileged") {
			t.Errorf("%s does not say what to do: %s", u.Name, u.Cause.Message)
		}
	}
	if refused == 5 {
		if c.Verdict != checkup.RunInconclusive || c.Counts.Unmeasured != 10 || c.Counts.Expected != 10 {
			t.Errorf("verdict %s, counts %+v, want that all is unmeasured", c.Verdict, c.Counts)
		}
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("units that did not pass (-want +got)\n%s", diff)
	}
}
