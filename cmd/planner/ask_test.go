// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/run"
	"github.com/checkplan/checkplan/pkg/tekton"
)

// TestAskPlan: a question with the longest names compiles, of one pair, and what its accounts may do in other
// namespaces is for the two pods only.
func TestAskPlan(t *testing.T) {
	long := strings.Repeat("a", 63)
	from := podRef{namespace: long, name: strings.Repeat("b.", 126) + "b"}
	for _, port := range []int{0, 5432} {
		to := podRef{namespace: "shop", name: "db-0", port: port}
		plan, err := (&environment{}).askPlan(t.Context(), from, to)
		if err != nil {
			t.Fatal(err)
		}
		if other, err := (&environment{}).askPlan(t.Context(), from, to); err != nil || other.Name == plan.Name {
			t.Errorf("two questions have the name %s (%v)", plan.Name, err)
		}
		if _, err := tekton.Compile(plan, tekton.Options{}); err != nil {
			t.Error(err)
		}
		var got []string
		for _, r := range tekton.Rights(plan, tekton.Options{}) {
			if r.Scope == checkup.ScopeNamespace {
				got = append(got, strings.Join([]string{string(r.Phase), r.Verb, r.Resource, strings.Join(r.Names, " ")}, " "))
			}
		}
		want := []string{
			"setup get pods " + from.name, "setup get pods db-0", "probe get pods " + from.name,
			"probe patch pods/ephemeralcontainers " + from.name, "probe get pods/log " + from.name,
		}
		if !slices.Equal(got, want) {
			t.Errorf("rights %q, want %q", got, want)
		}
	}
}

// TestFindPods: the port is the one that was asked for, else the first TCP port that the target declares, else none.
func TestFindPods(t *testing.T) {
	pod := func(name string, ports ...corev1.ContainerPort) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{}, {Ports: ports}},
		}}
	}
	udp := corev1.ContainerPort{ContainerPort: 53, Protocol: corev1.ProtocolUDP}
	c := &run.Cluster{Namespace: "ns", Kube: fake.NewSimpleClientset(
		pod("web"), pod("db", udp, corev1.ContainerPort{ContainerPort: 5432}), pod("dns", udp),
	)}
	for _, tt := range []struct {
		from, to string
		port     int
		want     int
		err      string
	}{
		{from: "web", to: "db", port: 80, want: 80},
		{from: "web", to: "db", want: 5432},
		{from: "web", to: "dns", want: 0},
		{from: "gone", to: "db", err: "no pod gone in namespace ns: see kubectl get pods -n ns"},
		{from: "web", to: "gone", err: "no pod gone in namespace ns"},
	} {
		got, err := findPods(t.Context(), c, podRef{namespace: "ns", name: tt.from}, podRef{namespace: "ns", name: tt.to, port: tt.port})
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s to %s:%d: port %d, %v; want %d, %q", tt.from, tt.to, tt.port, got, err, tt.want, tt.err)
		}
	}
}
