// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	schedulingcorev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/checkplan/checkplan/pkg/cluster"
)

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// randomNodes have few keys and values, because then many of them coincide.
func randomNodes(r *rand.Rand) []cluster.Node {
	var nodes []cluster.Node
	for i := range r.IntN(12) {
		n := linuxNode(fmt.Sprintf("n%02d", i))
		for range r.IntN(4) {
			n.Labels[pick(r, "a", "b", "c")] = pick(r, "1", "2", "9")
		}
		for range r.IntN(3) {
			n.Taints = append(n.Taints, corev1.Taint{
				Key: pick(r, "x", "y", corev1.TaintNodeNotReady), Value: pick(r, "", "1"),
				Effect: pick(r, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute, corev1.TaintEffectPreferNoSchedule),
			})
		}
		if r.IntN(5) == 0 {
			cordon(&n)
		}
		n.Requested["cpu"] = *resource.NewMilliQuantity(int64(r.IntN(5000)), resource.DecimalSI)
		n.Requested["pods"] = *resource.NewQuantity(int64(pick(r, 0, 109, 110)), resource.DecimalSI)
		if r.IntN(3) == 0 {
			n.HostPorts = []cluster.HostPort{{Port: pick[int32](r, 80, 81), Protocol: corev1.ProtocolTCP, HostIP: pick(r, "", "127.0.0.1")}}
		}
		nodes = append(nodes, n)
	}
	return nodes
}

func randomPod(r *rand.Rand) *corev1.Pod {
	requirement := func() corev1.NodeSelectorRequirement {
		q := corev1.NodeSelectorRequirement{Key: pick(r, "a", "b", "c"), Operator: pick(r, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist, corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt)}
		switch q.Operator {
		case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
			q.Values = []string{pick(r, "1", "2", "9"), pick(r, "1", "2", "9")}
		case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
			q.Values = []string{pick(r, "0", "1", "5")}
		}
		return q
	}
	pod := podOf()
	if r.IntN(2) == 0 {
		pod.Spec.NodeSelector = map[string]string{pick(r, "a", "b", "kubernetes.io/os"): pick(r, "1", "2", "linux")}
	}
	if r.IntN(2) == 0 {
		required := &corev1.NodeSelector{}
		for range r.IntN(3) {
			var term corev1.NodeSelectorTerm
			for range r.IntN(3) {
				term.MatchExpressions = append(term.MatchExpressions, requirement())
			}
			if r.IntN(4) == 0 {
				term.MatchFields = []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{pick(r, "n00", "n01", "none")}}}
			}
			required.NodeSelectorTerms = append(required.NodeSelectorTerms, term)
		}
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}}
	}
	for range r.IntN(3) {
		t := corev1.Toleration{Key: pick(r, "x", "y", ""), Operator: pick(r, corev1.TolerationOpExists, corev1.TolerationOpEqual), Effect: pick(r, "", corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute)}
		if t.Key == "" {
			t.Operator = corev1.TolerationOpExists
		}
		if t.Operator == corev1.TolerationOpEqual {
			t.Value = pick(r, "", "1")
		}
		if t.Effect == corev1.TaintEffectNoExecute && r.IntN(2) == 0 {
			t.TolerationSeconds = new(int64(r.IntN(60)))
		}
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, t)
	}
	if r.IntN(2) == 0 {
		requests("cpu", fmt.Sprintf("%dm", r.IntN(4500)))(&pod.Spec)
	}
	if r.IntN(3) == 0 {
		hostPort(corev1.ContainerPort{HostPort: 80})(&pod.Spec)
	}
	return pod
}

// TestPlaceProperties compares every outcome with that of component-helpers, and checks invariants.
func TestPlaceProperties(t *testing.T) {
	for seed := range uint64(600) {
		r := rand.New(rand.NewPCG(seed, 1))
		nodes, pod := randomNodes(r), randomPod(r)
		o := Place(pod, nodes)
		describe := func() string {
			data, _ := json.Marshal(pod.Spec)
			all, _ := json.Marshal(nodes)
			return fmt.Sprintf("seed %d: pod %s\nnodes %s\noutcome %+v", seed, data, all, o)
		}

		rejected := map[string][]NodeReason{}
		for _, g := range o.Rejected {
			for _, name := range g.Nodes {
				if rejected[name] != nil {
					t.Fatalf("%s is rejected twice: %s", name, describe())
				}
				rejected[name] = g.Reasons
			}
		}
		required := nodeaffinity.GetRequiredNodeAffinity(pod)
		tolerations := admitted(pod.Spec.Tolerations)
		for i := range nodes {
			n := &nodes[i]
			eligible := slices.Contains(o.Eligible, n.Name)
			if eligible == (rejected[n.Name] != nil) {
				t.Fatalf("%s is neither eligible nor rejected, or both: %s", n.Name, describe())
			}
			matches, err := required.Match(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}})
			_, untolerated := schedulingcorev1.FindMatchingUntoleratedTaint(klog.Background(), n.Taints, tolerations, keepsAway, false)
			cpu := amountOf(n.Requested, "cpu")+amountOf(pod.Spec.Containers[0].Resources.Requests, "cpu") <= 4000 || amountOf(pod.Spec.Containers[0].Resources.Requests, "cpu") == 0
			pods := amountOf(n.Requested, "pods") < 110
			port := len(pod.Spec.Containers[0].Ports) == 0 || !slices.ContainsFunc(n.HostPorts, func(p cluster.HostPort) bool { return p.Port == 80 })
			cordoned := n.Unschedulable && !tolerates(tolerations, &corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
			want := map[string]bool{NodeAffinity: !matches || err != nil, TaintToleration: untolerated, NodeResourcesFit: !cpu || !pods, NodePorts: !port, NodeUnschedulable: cordoned}
			got := map[string]bool{NodeAffinity: false, TaintToleration: false, NodeResourcesFit: false, NodePorts: false, NodeUnschedulable: false}
			fit := NewDemands(pod).Reasons(n)
			for _, reason := range fit {
				got[reason.Predicate] = true
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("predicates that reject %s (-want +got):\n%s\n%s", n.Name, diff, describe())
			}
			if len(fit) != len(rejected[n.Name]) {
				t.Fatalf("%s: alone %v, in its group %v: %s", n.Name, fit, rejected[n.Name], describe())
			}
		}
		if contradicted := len(o.Contradictions) > 0; contradicted != (len(o.Eligible) == 0 && len(nodes) > 0) {
			t.Fatalf("got contradictions and eligible nodes, or neither: %s", describe())
		}

		// Tolerating everything and unknown requests reject no further node.
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists})
		for i := range nodes {
			nodes[i].Requested, nodes[i].HostPorts = nil, nil
		}
		if more := Place(pod, nodes).Eligible; slices.ContainsFunc(o.Eligible, func(name string) bool { return !slices.Contains(more, name) }) {
			t.Fatalf("eligible: %v, but with fewer demands: %v: %s", o.Eligible, more, describe())
		}
	}
}

// FuzzAffinity: no JSON panics, and every accepted affinity can be evaluated on nodes.
func FuzzAffinity(f *testing.F) {
	f.Add([]byte(`{"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}], "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}, {}]}}`))
	f.Add([]byte(`{"preferredDuringSchedulingIgnoredDuringExecution": []}`))
	f.Add([]byte(`null`))
	nodes := []cluster.Node{linuxNode("n", label("a", "2")), linuxNode("m", cordon)}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := Affinity(data, field.NewPath("affinity"))
		if err != nil {
			return
		}
		pod := podOf(func(s *corev1.PodSpec) { s.Affinity = &corev1.Affinity{NodeAffinity: a} })
		o := Place(pod, nodes)
		if n := len(o.Eligible); n == 0 && len(o.Contradictions) == 0 {
			t.Fatalf("no node is eligible, but there is no contradiction: %+v", o)
		}
		Land([]*corev1.Pod{pod}, nodes)
	})
}
