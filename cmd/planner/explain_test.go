// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/load"
	"github.com/checkplan/checkplan/pkg/tekton"
)

// largeCluster has n nodes: every hundredth is a control plane, every tenth is
// dedicated, every seventh is full, each is as used as no other.
func largeCluster(n int) *cluster.Snapshot {
	s := &cluster.Snapshot{APIVersion: checkup.APIVersion, Kind: cluster.SnapshotKind, ServerVersion: "v1.35.0"}
	for i := range n {
		name := fmt.Sprintf("node-%05d", i)
		node := cluster.Node{
			Name: name, Ready: corev1.ConditionTrue,
			Labels: map[string]string{
				"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": name, "node.kubernetes.io/instance-type": "m1.large",
				corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3), "topology.kubernetes.io/region": "region-1",
			},
			PodCIDRs: []string{fmt.Sprintf("10.%d.%d.0/24", 128+i/256, i%256)}, InternalIPs: []string{fmt.Sprintf("10.0.%d.%d", i/256, i%256)},
			Allocatable: corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("110")},
			Requested:   corev1.ResourceList{"cpu": *resource.NewMilliQuantity(int64(i%3500), resource.DecimalSI), "memory": resource.MustParse("1Gi"), "pods": *resource.NewQuantity(int64(i%100), resource.DecimalSI)},
			HostPorts:   []cluster.HostPort{{Port: 9100, Protocol: corev1.ProtocolTCP}},
		}
		switch {
		case i%100 == 0:
			node.Labels["node-role.kubernetes.io/control-plane"] = ""
			node.Taints = []corev1.Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}}
		case i%10 == 0:
			node.Taints = []corev1.Taint{{Key: "dedicated", Value: fmt.Sprint(i % 30), Effect: corev1.TaintEffectNoSchedule}}
		case i%7 == 0:
			node.Requested["cpu"] = *resource.NewMilliQuantity(int64(4000-i%10), resource.DecimalSI)
		}
		s.Nodes = append(s.Nodes, node)
	}
	return s
}

// planOf loads a plan.
func planOf(tb testing.TB, yaml string) *checkup.Plan {
	tb.Helper()
	path := tb.TempDir() + "/plan.yaml"
	if err := os.WriteFile(path, []byte(yaml), 0o644); err != nil {
		tb.Fatal(err)
	}
	plans, _, problems := load.Plans(tb.Context(), ".", []string{path})
	if len(problems) > 0 || len(plans) != 1 {
		tb.Fatalf("%d plans: %v", len(plans), problems)
	}
	return plans[0]
}

const largePlan = `apiVersion: checkplan.dev/v1alpha1
kind: Plan
metadata: {name: large}
spec:
  checks:
    dryrun:
      placement:
        sourcePlacement:
          nodeSelector: {kubernetes.io/os: linux}
          resources: {requests: {cpu: 100m, memory: 64Mi}}
          hostPorts: [9101]
        targetPlacement:
          nodeSelector: {kubernetes.io/os: linux}
          tolerations: [{key: dedicated, operator: Exists}]
    mesh:
      podMesh:
        sample: {degree: 2}
        probes: {tcp: {}}
`

// TestExplainLargeCluster: the text names few of many nodes in lines of 80
// columns, and the JSON names all.
func TestExplainLargeCluster(t *testing.T) {
	const n = 2000
	x, err := explain(planOf(t, largePlan), largeCluster(n), tekton.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := x.print(&out, false); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	if len(lines) > 150 {
		t.Errorf("%d lines for %d nodes:\n%s", len(lines), n, out.String())
	}
	for _, line := range lines {
		if len(line) > columns {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
	data, err := json.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if name := fmt.Sprintf("%q", fmt.Sprintf("node-%05d", i)); bytes.Count(data, []byte(name)) < 2 {
			t.Fatalf("%s is not in the JSON of both checks", name)
		}
	}
	mesh := x.Checks[1]
	pending := 0
	for _, g := range mesh.Landing.Pending {
		pending += len(g.Nodes)
	}
	if pods := mesh.Agents + mesh.Responders; mesh.Landing.Scheduled+pending != pods || pending == 0 {
		t.Errorf("%d pods scheduled and %d pending, of %d", mesh.Landing.Scheduled, pending, pods)
	}
}

// TestRequests: what is requested is read once, and not known to who may not
// list pods; an API server that breaks down is an error.
func TestRequests(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p"}, Spec: corev1.PodSpec{NodeName: "a"}}
	client := fake.NewSimpleClientset(pod)
	r := cluster.Reader{Kubernetes: client}
	s := &cluster.Snapshot{Nodes: []cluster.Node{{Name: "a"}}}
	if err := requests(t.Context(), r, s); err != nil || s.Nodes[0].Requested.Pods().Value() != 1 || len(s.Unseen) != 0 {
		t.Errorf("%v, %v, %+v", s.Nodes, s.Unseen, err)
	}
	var answer error
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, answer })
	answer = errors.New("connection refused")
	if err := requests(t.Context(), r, s); err != nil {
		t.Errorf("asked again although it is known: %v", err)
	}
	s.Nodes[0].Requested = nil
	if err := requests(t.Context(), r, s); err == nil {
		t.Error("an API server that breaks down is no error")
	}
	answer = apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("user cannot"))
	if err := requests(t.Context(), r, s); err != nil || len(s.Unseen) != 1 || s.Nodes[0].Requested != nil {
		t.Errorf("no right: %v, %+v", err, s)
	}
}

func TestResourceText(t *testing.T) {
	for _, test := range []struct {
		right checkup.Right
		want  string
	}{
		{checkup.Right{Resource: "pods"}, "pods"},
		{checkup.Right{Resource: "pods/log"}, "pods/log"},
		{checkup.Right{Group: "config.openshift.io", Resource: "networks", Names: []string{"cluster"}}, "networks.config.openshift.io named cluster"},
		{checkup.Right{Group: "example.com", Resource: "things/status", Names: []string{"a", "b"}}, "things.example.com/status named a, b"},
	} {
		if got := resourceText(test.right); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

// BenchmarkExplain reads a recorded snapshot, and explains a placement and a
// mesh on it: where their pods land, and all else that explain prints.
func BenchmarkExplain(b *testing.B) {
	plan := planOf(b, largePlan)
	for _, n := range []int{1000, 5000} {
		data, err := cluster.EncodeSnapshot(largeCluster(n))
		if err != nil {
			b.Fatal(err)
		}
		perNode := func(b *testing.B) {
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(n), "µs/node")
		}
		b.Run(fmt.Sprintf("read/nodes=%d", n), func(b *testing.B) {
			for b.Loop() {
				if _, err := cluster.DecodeSnapshot(data); err != nil {
					b.Fatal(err)
				}
			}
			perNode(b)
		})
		snapshot, err := cluster.DecodeSnapshot(data)
		if err != nil {
			b.Fatal(err)
		}
		for _, check := range plan.CheckNames() {
			one := *plan
			one.Checks = map[string]checkup.Check{check: plan.Checks[check]}
			b.Run(fmt.Sprintf("%s/nodes=%d", check, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					x, err := explain(&one, snapshot, tekton.Options{})
					if err != nil {
						b.Fatal(err)
					}
					if err := x.print(io.Discard, true); err != nil {
						b.Fatal(err)
					}
				}
				perNode(b)
			})
		}
	}
}
