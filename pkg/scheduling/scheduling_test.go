// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

func quantities(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

// linuxNode is a ready node with 10 of 110 pods and half of its resources requested. The changes are applied to it.
func linuxNode(name string, changes ...func(*cluster.Node)) cluster.Node {
	n := cluster.Node{
		Name: name, Ready: corev1.ConditionTrue,
		Labels:      map[string]string{"kubernetes.io/os": "linux", "kubernetes.io/hostname": name},
		Allocatable: quantities("pods", "110", "cpu", "4", "memory", "8Gi"), Requested: quantities("pods", "10", "cpu", "2", "memory", "4Gi"),
	}
	for _, change := range changes {
		change(&n)
	}
	return n
}

func label(key, value string) func(*cluster.Node) {
	return func(n *cluster.Node) { n.Labels[key] = value }
}

func taint(key, value string, effect corev1.TaintEffect) func(*cluster.Node) {
	return func(n *cluster.Node) {
		n.Taints = append(n.Taints, corev1.Taint{Key: key, Value: value, Effect: effect})
	}
}

func cordon(n *cluster.Node) {
	n.Unschedulable = true
	n.Taints = append(n.Taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
}

func unready(n *cluster.Node) {
	n.Ready = corev1.ConditionFalse
	for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
		n.Taints = append(n.Taints, corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: effect})
	}
}

func unsurveyed(n *cluster.Node) { n.Requested = nil }

func podOf(changes ...func(*corev1.PodSpec)) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	for _, change := range changes {
		change(&p.Spec)
	}
	return p
}

func selector(pairs ...string) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) {
		s.NodeSelector = map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			s.NodeSelector[pairs[i]] = pairs[i+1]
		}
	}
}

func requests(pairs ...string) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) { s.Containers[0].Resources.Requests = quantities(pairs...) }
}

func toleration(t corev1.Toleration) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) { s.Tolerations = append(s.Tolerations, t) }
}

// affinity has one term for each JSON list of requirements; a requirement on metadata.name is one on a field.
func affinity(terms ...string) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) {
		required := &corev1.NodeSelector{}
		for _, text := range terms {
			var all []corev1.NodeSelectorRequirement
			if err := json.Unmarshal([]byte(text), &all); err != nil {
				panic(err)
			}
			var term corev1.NodeSelectorTerm
			for _, r := range all {
				if r.Key == metav1.ObjectNameField {
					term.MatchFields = append(term.MatchFields, r)
				} else {
					term.MatchExpressions = append(term.MatchExpressions, r)
				}
			}
			required.NodeSelectorTerms = append(required.NodeSelectorTerms, term)
		}
		s.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}}
	}
}

func hostPort(p corev1.ContainerPort) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) { s.Containers[0].Ports = append(s.Containers[0].Ports, p) }
}

func takes(ports ...cluster.HostPort) func(*cluster.Node) {
	return func(n *cluster.Node) { n.HostPorts = ports }
}

func TestFit(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	tests := []struct {
		name string
		pod  *corev1.Pod
		node cluster.Node
		want []string // predicate: scheduler's words: message
	}{
		{"nothing demanded", podOf(), linuxNode("a"), nil},
		{"for another node", podOf(func(s *corev1.PodSpec) { s.NodeName = "b" }), linuxNode("a"),
			[]string{"NodeName: node(s) didn't match the requested node name: the pod requires node b"}},
		{"for this node", podOf(func(s *corev1.PodSpec) { s.NodeName = "a" }), linuxNode("a"), nil},

		{"each key of the selector", podOf(selector("disk", "ssd", "kubernetes.io/os", "windows", "kubernetes.io/hostname", "a")), linuxNode("a"), []string{
			"NodeAffinity: node(s) didn't match Pod's node affinity/selector: no label disk, want ssd (nodeSelector)",
			"NodeAffinity: node(s) didn't match Pod's node affinity/selector: label kubernetes.io/os is not windows (nodeSelector)",
		}},
		{"labels without a value", podOf(selector("node-role.kubernetes.io/infra", "", "pool", "")), linuxNode("a", label("pool", "x")), []string{
			"NodeAffinity: node(s) didn't match Pod's node affinity/selector: no label node-role.kubernetes.io/infra (nodeSelector)",
			"NodeAffinity: node(s) didn't match Pod's node affinity/selector: label pool is not empty (nodeSelector)",
		}},
		{"a selector that matches", podOf(selector("kubernetes.io/os", "linux")), linuxNode("a"), nil},
		{"each expression of one term", podOf(affinity(`[{"key": "zone", "operator": "In", "values": ["x", "y"]}, {"key": "kubernetes.io/os", "operator": "Exists"}, {"key": "cpus", "operator": "Gt", "values": ["8"]}]`)), linuxNode("a", label("cpus", "8")), []string{
			"NodeAffinity: node(s) didn't match Pod's node affinity/selector: not zone in (x, y) and cpus > 8 (affinity)",
		}},
		{"each of several terms", podOf(affinity(`[{"key": "zone", "operator": "NotIn", "values": ["x"]}, {"key": "gpu", "operator": "Exists"}]`, `[{"key": "zone", "operator": "DoesNotExist"}]`, `[]`)), linuxNode("a", label("zone", "x")), []string{
			"NodeAffinity: node(s) didn't match Pod's node affinity/selector: none of 2 terms: not zone not in (x) and a label gpu, nor without label zone (affinity)",
		}},
		{"one of several terms is enough", podOf(affinity(`[{"key": "gpu", "operator": "Exists"}]`, `[{"key": "cpus", "operator": "Lt", "values": ["9"]}]`)), linuxNode("a", label("cpus", "8")), nil},
		{"more terms than are listed", podOf(affinity(`[{"key": "a", "operator": "Exists"}]`, `[{"key": "b", "operator": "Exists"}]`, `[{"key": "c", "operator": "Exists"}]`, `[{"key": "d", "operator": "In", "values": ["1", "2", "3", "4", "5"]}]`)), linuxNode("a"), []string{
			"NodeAffinity: node(s) didn't match Pod's node affinity/selector: none of 4 terms: not a label a, nor a label b, nor a label c, and so on (affinity)",
		}},
		{"an affinity without terms", podOf(affinity()), linuxNode("a"), []string{
			"NodeAffinity: node(s) didn't match Pod's node affinity/selector: the affinity has no terms: it matches no node",
		}},
		{"an affinity that Kubernetes would reject", podOf(affinity(`[{"key": "a", "operator": "Like", "values": ["1", "2", "3", "4", "5"]}]`)), linuxNode("a"), []string{
			"NodeAffinity: node(s) didn't match Pod's node affinity/selector: not a Like (1, 2, 3 and 2 more) (affinity)",
		}},
		{"pinned to another node: the scheduler reports only that", podOf(affinity(`[{"key": "metadata.name", "operator": "In", "values": ["b"]}]`)), linuxNode("a", cordon), []string{
			"NodeAffinity: node(s) didn't satisfy plugin(s) [NodeAffinity]: not metadata.name in (b) (affinity)",
			"NodeUnschedulable: node(s) were unschedulable: cordoned (spec.unschedulable)",
			"TaintToleration: node(s) had untolerated taint(s): taint node.kubernetes.io/unschedulable:NoSchedule is not tolerated",
		}},
		{"pinned to this node", podOf(affinity(`[{"key": "metadata.name", "operator": "In", "values": ["a"]}, {"key": "gpu", "operator": "Exists"}]`)), linuxNode("a"), []string{
			"NodeAffinity: node(s) didn't match Pod's node affinity/selector: not a label gpu (affinity)",
		}},
		{"pinned in one term only", podOf(affinity(`[{"key": "metadata.name", "operator": "In", "values": ["b"]}]`, `[{"key": "gpu", "operator": "Exists"}]`)), linuxNode("a"), []string{
			"NodeAffinity: node(s) didn't match Pod's node affinity/selector: none of 2 terms: not metadata.name in (b), nor a label gpu (affinity)",
		}},
		{"pinned to two nodes at once", podOf(affinity(`[{"key": "metadata.name", "operator": "In", "values": ["a"]}, {"key": "metadata.name", "operator": "In", "values": ["b"]}]`)), linuxNode("a"), []string{
			"NodeAffinity: pod affinity terms conflict: not metadata.name in (b) (affinity)",
		}},

		{"each taint", podOf(), linuxNode("a", taint("dedicated", "db", corev1.TaintEffectNoSchedule), taint("broken", "", corev1.TaintEffectNoExecute), taint("soon", "", corev1.TaintEffectPreferNoSchedule)), []string{
			"TaintToleration: node(s) had untolerated taint(s): taint dedicated=db:NoSchedule is not tolerated",
			"TaintToleration: node(s) had untolerated taint(s): taint broken:NoExecute is not tolerated",
		}},
		{"tolerated by value and by key", podOf(toleration(corev1.Toleration{Key: "dedicated", Value: "db"}), toleration(corev1.Toleration{Key: "broken", Operator: corev1.TolerationOpExists})),
			linuxNode("a", taint("dedicated", "db", corev1.TaintEffectNoSchedule), taint("broken", "", corev1.TaintEffectNoExecute)), nil},
		{"not ready: default tolerations keep pods, but schedule none", podOf(), linuxNode("a", unready), []string{
			"TaintToleration: node(s) had untolerated taint(s): taint node.kubernetes.io/not-ready:NoSchedule is not tolerated: the node is not ready",
		}},
		{"unreachable", podOf(), linuxNode("a", taint(corev1.TaintNodeUnreachable, "", corev1.TaintEffectNoSchedule), func(n *cluster.Node) { n.Ready = corev1.ConditionUnknown }), []string{
			"TaintToleration: node(s) had untolerated taint(s): taint node.kubernetes.io/unreachable:NoSchedule is not tolerated: the node's kubelet does not answer",
		}},
		{"cordoned, for a pod that tolerates it", DaemonSetPod(podOf()), linuxNode("a", cordon), nil},
		{"cordoned a moment ago, before the taint", podOf(), linuxNode("a", func(n *cluster.Node) { n.Unschedulable = true }), []string{
			"NodeUnschedulable: node(s) were unschedulable: cordoned (spec.unschedulable)",
		}},

		{"host ports in use", podOf(hostPort(corev1.ContainerPort{HostPort: 80}), hostPort(corev1.ContainerPort{HostPort: 53, Protocol: corev1.ProtocolUDP, HostIP: "192.0.2.1"})),
			linuxNode("a", takes(cluster.HostPort{Port: 80, Protocol: corev1.ProtocolTCP, HostIP: "127.0.0.1"}, cluster.HostPort{Port: 53, Protocol: corev1.ProtocolUDP})), []string{
				"NodePorts: node(s) didn't have free ports for the requested pod ports: host port 80/TCP is in use",
				"NodePorts: node(s) didn't have free ports for the requested pod ports: host port 53/UDP of 192.0.2.1 is in use",
			}},
		{"host ports that do not conflict", podOf(hostPort(corev1.ContainerPort{HostPort: 80, HostIP: "192.0.2.1"}), hostPort(corev1.ContainerPort{HostPort: 81})),
			linuxNode("a", takes(cluster.HostPort{Port: 80, Protocol: corev1.ProtocolTCP, HostIP: "192.0.2.2"}, cluster.HostPort{Port: 81, Protocol: corev1.ProtocolUDP})), nil},
		{"ports of a pod on the host network", podOf(func(s *corev1.PodSpec) { s.HostNetwork = true }, hostPort(corev1.ContainerPort{ContainerPort: 6443})), linuxNode("a", takes(cluster.HostPort{Port: 6443, Protocol: corev1.ProtocolTCP})), []string{
			"NodePorts: node(s) didn't have free ports for the requested pod ports: host port 6443/TCP is in use",
		}},

		{"each resource that is short", podOf(requests("cpu", "2500m", "memory", "12Gi", "example.com/gpu", "1", "ephemeral-storage", "1Gi", "pods", "3")), linuxNode("a", func(n *cluster.Node) { n.Allocatable["ephemeral-storage"] = resource.MustParse("1Gi") }), []string{
			"NodeResourcesFit: Insufficient cpu: short of 500m cpu: requests 2500m, 2 of 4 are left",
			"NodeResourcesFit: Insufficient example.com/gpu: short of 1 example.com/gpu: requests 1, the node has 0 in total",
			"NodeResourcesFit: Insufficient memory: short of 8Gi memory: requests 12Gi, the node has 8Gi in total",
		}},
		{"exactly enough resources", podOf(requests("cpu", "2", "memory", "4Gi")), linuxNode("a"), nil},
		{"no more pods", podOf(), linuxNode("a", func(n *cluster.Node) { n.Requested["pods"] = resource.MustParse("110") }), []string{
			"NodeResourcesFit: Too many pods: has 110 of at most 110 pods",
		}},
		{"a node without allocatable takes nothing", podOf(), linuxNode("a", func(n *cluster.Node) { n.Allocatable, n.Requested = nil, quantities("pods", "0") }), []string{
			"NodeResourcesFit: Too many pods: has 0 of at most 0 pods",
		}},
		{"limits are the default of requests; sidecars and overhead count", podOf(func(s *corev1.PodSpec) {
			s.Containers[0].Resources.Limits = quantities("cpu", "1")
			s.InitContainers = []corev1.Container{{Name: "s", RestartPolicy: &always, Resources: corev1.ResourceRequirements{Requests: quantities("cpu", "1")}}}
			s.Overhead = quantities("cpu", "1m")
		}), linuxNode("a"), []string{"NodeResourcesFit: Insufficient cpu: short of 1m cpu: requests 2001m, 2 of 4 are left"}},
		{"unknown requests: only more than the whole node is rejected", podOf(requests("cpu", "3", "memory", "9Gi")), linuxNode("a", unsurveyed), []string{
			"NodeResourcesFit: Insufficient memory: short of 1Gi memory: requests 9Gi, the node has 8Gi in total",
		}},
		{"unknown requests and allocatable", podOf(requests("cpu", "300", "example.com/gpu", "1")), linuxNode("a", unsurveyed, func(n *cluster.Node) { n.Allocatable = nil }), []string{
			"NodeResourcesFit: Insufficient example.com/gpu: short of 1 example.com/gpu: requests 1, the node has 0 in total",
		}},

		{"a topology spread without its label", podOf(func(s *corev1.PodSpec) {
			s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{
				{MaxSkew: 1, TopologyKey: "topology.kubernetes.io/zone", WhenUnsatisfiable: corev1.DoNotSchedule},
				{MaxSkew: 1, TopologyKey: "rack", WhenUnsatisfiable: corev1.ScheduleAnyway},
				{MaxSkew: 1, TopologyKey: "kubernetes.io/hostname", WhenUnsatisfiable: corev1.DoNotSchedule},
			}
		}), linuxNode("a"), []string{
			"PodTopologySpread: node(s) didn't match pod topology spread constraints (missing required label): no label topology.kubernetes.io/zone (topologySpreadConstraints)",
		}},
	}
	reported := map[string]bool{}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			last := -1
			for _, r := range NewDemands(test.pod).Reasons(&test.node) {
				got = append(got, fmt.Sprintf("%s: %s: %s", r.Predicate, r.Scheduler, r.Message))
				reported[r.Predicate] = true
				if at := slices.Index(Predicates, r.Predicate); at >= last {
					last = at
				} else if len(got) != 2 || !strings.Contains(got[0], saysPinned) {
					t.Errorf("%s comes too late: not in the scheduler's order", r.Predicate)
				} else {
					last = at
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("reasons (-want +got):\n%s", diff)
			}
		})
	}
	for _, p := range Predicates {
		if !reported[p] {
			t.Errorf("no test has a reason of %s", p)
		}
	}
}

func TestPlace(t *testing.T) {
	nodes := []cluster.Node{
		linuxNode("a"),
		linuxNode("b", func(n *cluster.Node) { n.Requested = quantities("pods", "110", "cpu", "3", "memory", "1Gi") }),
		linuxNode("c", func(n *cluster.Node) { n.Requested = quantities("pods", "111", "cpu", "3500m", "memory", "1Gi") }),
		linuxNode("d", taint("broken", "", corev1.TaintEffectNoExecute), taint("worse", "", corev1.TaintEffectNoExecute)),
		linuxNode("e", taint("dedicated", "db", corev1.TaintEffectNoSchedule)),
		linuxNode("f", unsurveyed),
		linuxNode("g", taint(corev1.TaintNodeNotReady, "", corev1.TaintEffectNoExecute)),
	}
	pod := podOf(requests("cpu", "2"), toleration(corev1.Toleration{Key: "broken", Operator: corev1.TolerationOpExists, TolerationSeconds: new(int64(60)), Effect: corev1.TaintEffectNoExecute}),
		toleration(corev1.Toleration{Key: "worse", Operator: corev1.TolerationOpExists, TolerationSeconds: new(int64(-5)), Effect: corev1.TaintEffectNoExecute}))
	reason := func(predicate, scheduler, message string) NodeReason {
		return NodeReason{Predicate: predicate, Scheduler: scheduler, Message: message}
	}
	want := Outcome{
		Eligible: []string{"a", "d", "f", "g"},
		Rejected: []NodeGroup{
			{Nodes: []string{"b", "c"}, Reasons: []NodeReason{
				reason("NodeResourcesFit", "Too many pods", "can take no more pods"),
				reason("NodeResourcesFit", "Insufficient cpu", "short of 1 to 1500m cpu: requests 2"),
			}},
			{Nodes: []string{"e"}, Reasons: []NodeReason{reason("TaintToleration", "node(s) had untolerated taint(s)", "taint dedicated=db:NoSchedule is not tolerated")}},
		},
		Later: []NodeGroup{
			{Nodes: []string{"d"}, Reasons: []NodeReason{reason("TaintToleration", "", "evicted after 0s by taint worse:NoExecute")}},
			{Nodes: []string{"g"}, Reasons: []NodeReason{reason("TaintToleration", "", "evicted after 300s by taint node.kubernetes.io/not-ready:NoExecute")}},
		},
		Unknown: []string{"NodeResourcesFit: the snapshot has no resource requests of node f"},
	}
	if diff := cmp.Diff(want, Place(pod, nodes)); diff != "" {
		t.Errorf("outcome (-want +got):\n%s", diff)
	}
	want.Eligible, want.Later = []string{"a", "d", "f", "g"}, want.Later[:1]
	if diff := cmp.Diff(want, Place(DaemonSetPod(pod), nodes)); diff != "" {
		t.Errorf("outcome of a DaemonSet (-want +got):\n%s", diff)
	}
}

func TestContradictions(t *testing.T) {
	tests := []struct {
		name  string
		pod   *corev1.Pod
		nodes []cluster.Node
		want  []string
	}{
		{"no nodes", podOf(), nil, nil},
		{"an eligible node", podOf(selector("pool", "x")), []cluster.Node{linuxNode("a"), linuxNode("b", label("pool", "x"))}, nil},
		{"a label that no node has", podOf(selector("disk", "ssd", "gpu", "yes")), []cluster.Node{linuxNode("a", label("disk", "hdd")), linuxNode("b", label("disk", "nvme"))},
			[]string{"no node has the label disk=ssd: values of disk are hdd, nvme", "no node has the label gpu=yes"}},
		{"a label that only tainted nodes have", podOf(selector("pool", "mesh", "kubernetes.io/os", "linux")), []cluster.Node{
			linuxNode("a"), linuxNode("b", label("pool", "web")), linuxNode("c", label("pool", "mesh"), taint("dedicated", "mesh", corev1.TaintEffectNoSchedule)), linuxNode("d", label("pool", "mesh"), cordon, taint("dedicated", "mesh", corev1.TaintEffectNoSchedule)),
		}, []string{"every node that has the label pool=mesh has an untolerated taint: dedicated=mesh:NoSchedule, node.kubernetes.io/unschedulable:NoSchedule"}},
		{"a set of values that only cordoned nodes have", podOf(affinity(`[{"key": "zone", "operator": "In", "values": ["x", "y"]}]`), toleration(corev1.Toleration{Key: "other"})), []cluster.Node{
			linuxNode("a"), linuxNode("b", label("zone", "x"), func(n *cluster.Node) { n.Unschedulable = true }),
		}, []string{"every node that matches the affinity zone in (x, y) is cordoned"}},
		{"two labels that no node has both", podOf(selector("a", "1", "b", "1")), []cluster.Node{linuxNode("a", label("a", "1")), linuxNode("b", label("b", "1")), linuxNode("c", label("a", "1"), label("b", "2"))},
			[]string{"no node that has the label a=1 has the label b=1: values of b are 2"}},
		{"three labels that no node has all", podOf(selector("a", "1", "b", "1", "c", "1")), []cluster.Node{linuxNode("a", label("a", "1"), label("b", "1")), linuxNode("b", label("b", "1"), label("c", "1")), linuxNode("c", label("a", "1"), label("c", "1"))},
			[]string{"no node that has the label a=1 and has the label b=1 has the label c=1"}},
		{"four labels", podOf(selector("a", "1", "b", "1", "c", "1", "d", "1")), []cluster.Node{
			linuxNode("a", label("a", "1"), label("b", "1"), label("c", "1")), linuxNode("b", label("b", "1"), label("c", "1"), label("d", "1")), linuxNode("c", label("a", "1"), label("c", "1"), label("d", "1")), linuxNode("d", label("a", "1"), label("b", "1"), label("d", "1")),
		}, []string{"any three of the demands are met by some node, but no node meets all demands"}},
		{"demands that exclude each other", podOf(selector("zone", "x"), affinity(`[{"key": "zone", "operator": "NotIn", "values": ["x"]}, {"key": "gpu", "operator": "Exists"}, {"key": "gpu", "operator": "DoesNotExist"}]`)), []cluster.Node{linuxNode("a", label("zone", "x")), linuxNode("b", label("gpu", "1"))}, []string{
			"a node that has the label zone=x never matches the affinity zone not in (x)",
			"a node that matches the affinity a label gpu never matches the affinity without label gpu",
			"no node that has the label zone=x matches the affinity a label gpu",
			"no node that matches the affinity zone not in (x) matches the affinity without label gpu",
		}},
		{"more than any node has", podOf(requests("cpu", "16")), []cluster.Node{linuxNode("a"), linuxNode("b", func(n *cluster.Node) { n.Allocatable["cpu"] = resource.MustParse("8") })},
			[]string{"every node has less than 16 of cpu left: the largest has 8 in total"}},
		{"a label on full nodes only", podOf(selector("pool", "x"), requests("cpu", "3")), []cluster.Node{linuxNode("a", label("pool", "x")), linuxNode("b", func(n *cluster.Node) { n.Requested["cpu"] = resource.MustParse("1") })},
			[]string{"every node that has the label pool=x has less than 3 of cpu left: the largest has 4 in total"}},
		{"a port in use everywhere, and full nodes", podOf(hostPort(corev1.ContainerPort{HostPort: 80})), []cluster.Node{linuxNode("a", takes(cluster.HostPort{Port: 80, Protocol: corev1.ProtocolTCP})), linuxNode("b", takes(cluster.HostPort{Port: 80, Protocol: corev1.ProtocolTCP}), func(n *cluster.Node) { n.Allocatable["pods"] = resource.MustParse("1") })},
			[]string{"every node has port 80/TCP in use"}},
		{"several terms, none met", podOf(affinity(`[{"key": "x", "operator": "Exists"}]`, `[{"key": "y", "operator": "Exists"}]`)), []cluster.Node{linuxNode("a")},
			[]string{"no node matches one of the affinity's terms"}},
		{"the name of a missing node", podOf(func(s *corev1.PodSpec) { s.NodeName = "z" }), []cluster.Node{linuxNode("a")}, []string{"no node has the name z"}},
		{"more contradictions than are listed", podOf(selector("a", "1", "b", "1", "c", "1", "d", "1", "e", "1", "f", "1", "g", "1")), []cluster.Node{linuxNode("a")},
			[]string{"no node has the label a=1", "no node has the label b=1", "no node has the label c=1", "no node has the label d=1", "no node has the label e=1", "and 2 more"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, Place(test.pod, test.nodes).Contradictions); diff != "" {
				t.Errorf("contradictions (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLand: pods take resources from the pods after them.
func TestLand(t *testing.T) {
	pod := func(role checkup.Role, node string, changes ...func(*corev1.PodSpec)) *corev1.Pod {
		p := podOf(append(changes, affinity(fmt.Sprintf(`[{"key": "metadata.name", "operator": "In", "values": [%q]}]`, node)))...)
		p.Labels = map[string]string{checkup.LabelRole: string(role)}
		return p
	}
	cpu := requests("cpu", "1500m")
	nodes := []cluster.Node{
		linuxNode("a"), linuxNode("b", func(n *cluster.Node) { n.Requested["pods"] = resource.MustParse("109") }), linuxNode("c", unsurveyed),
		linuxNode("d", taint("broken", "", corev1.TaintEffectNoExecute)), linuxNode("e", func(n *cluster.Node) { n.Requested["cpu"] = resource.MustParse("3") }),
	}
	before := fmt.Sprint(nodes)
	got := Land([]*corev1.Pod{
		pod(checkup.RoleResponder, "a", cpu), nil, pod(checkup.RoleAgent, "a", cpu),
		pod(checkup.RoleResponder, "b"), pod(checkup.RoleAgent, "b"),
		pod(checkup.RoleResponder, "c", cpu), pod(checkup.RoleAgent, "c", cpu),
		pod(checkup.RoleAgent, "d", toleration(corev1.Toleration{Key: "broken", Operator: corev1.TolerationOpExists, TolerationSeconds: new(int64(5))})),
		pod(checkup.RoleAgent, "e", cpu), pod(checkup.RoleAgent, "gone"), podOf(),
	}, nodes)
	group := func(role checkup.Role, predicate, says, message string, nodes ...string) PodGroup {
		return PodGroup{role, NodeGroup{Nodes: nodes, Reasons: []NodeReason{{Predicate: predicate, Scheduler: says, Message: message}}}}
	}
	want := Landing{
		Scheduled: 5,
		Pending: []PodGroup{
			group("", "NodeAffinity", saysPinned, `node "" does not exist`, ""),
			group(checkup.RoleAgent, "NodeResourcesFit", "Insufficient cpu", "short of 500m to 1 cpu: requests 1500m", "a", "e"),
			group(checkup.RoleAgent, "NodeResourcesFit", "Too many pods", "has 110 of at most 110 pods", "b"),
			group(checkup.RoleAgent, "NodeAffinity", saysPinned, `node "gone" does not exist`, "gone"),
		},
		Later:   []PodGroup{group(checkup.RoleAgent, "TaintToleration", "", "evicted after 5s by taint broken:NoExecute", "d")},
		Unknown: []string{"NodeResourcesFit: the snapshot has no resource requests of node c"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("landing (-want +got):\n%s", diff)
	}
	if after := fmt.Sprint(nodes); after != before {
		t.Errorf("the nodes changed:\n%s\n%s", before, after)
	}
}

func TestDaemonSetPod(t *testing.T) {
	pod := podOf(toleration(corev1.Toleration{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(3))}), toleration(corev1.Toleration{Key: "own"}))
	before := pod.DeepCopy()
	exists := func(key string, effect corev1.TaintEffect) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect}
	}
	want := []corev1.Toleration{
		exists("node.kubernetes.io/not-ready", "NoExecute"), {Key: "own"}, exists("node.kubernetes.io/unreachable", "NoExecute"),
		exists("node.kubernetes.io/disk-pressure", "NoSchedule"), exists("node.kubernetes.io/memory-pressure", "NoSchedule"), exists("node.kubernetes.io/pid-pressure", "NoSchedule"),
		exists("node.kubernetes.io/unschedulable", "NoSchedule"),
	}
	if diff := cmp.Diff(want, DaemonSetPod(pod).Spec.Tolerations); diff != "" {
		t.Errorf("tolerations (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, pod); diff != "" {
		t.Errorf("the pod itself changed (-before +after):\n%s", diff)
	}
	pod.Spec.HostNetwork = true
	want = append(want, exists("node.kubernetes.io/network-unavailable", "NoSchedule"))
	if diff := cmp.Diff(want, DaemonSetPod(pod).Spec.Tolerations); diff != "" {
		t.Errorf("tolerations on the host network (-want +got):\n%s", diff)
	}
}

func TestFixtureTolerations(t *testing.T) {
	everything := []checkup.Toleration{{Operator: "Exists"}}
	if got := FixtureTolerations(everything); !cmp.Equal(got, everything) {
		t.Errorf("a placement that tolerates everything: got %v, want nothing more", got)
	}
	own := checkup.Toleration{Key: "node.kubernetes.io/not-ready", Operator: "Exists", TolerationSeconds: new(int64(3))}
	got := FixtureTolerations([]checkup.Toleration{own})
	want := []checkup.Toleration{
		own,
		{Key: "node.kubernetes.io/unreachable", Operator: "Exists"},
		{Key: "node.kubernetes.io/disk-pressure", Operator: "Exists", Effect: "NoSchedule"},
		{Key: "node.kubernetes.io/memory-pressure", Operator: "Exists", Effect: "NoSchedule"},
		{Key: "node.kubernetes.io/pid-pressure", Operator: "Exists", Effect: "NoSchedule"},
		{Key: "node.kubernetes.io/unschedulable", Operator: "Exists", Effect: "NoSchedule"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tolerations (-want +got):\n%s", diff)
	}
}

func TestAffinity(t *testing.T) {
	at := field.NewPath("sourcePlacement", "affinity")
	tests := []struct{ name, data, err string }{
		{"none", ``, ``},
		{"null", `null`, ``},
		{"preferred only", `{"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {"matchExpressions": [{"key": "x", "operator": "Exists"}]}}]}`, ``},
		{"required", `{"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "x", "operator": "Exists"}]}]}}`, ``},
		{"no object", `["a"]`, `sourcePlacement.affinity: not a Kubernetes NodeAffinity: json: cannot unmarshal array into Go value of type v1.NodeAffinity`},
		{"an unknown field", `{"required": {}}`, `sourcePlacement.affinity: not a Kubernetes NodeAffinity: unknown field "required"`},
		{"a pod's affinity", `{"podAffinity": {}}`, `sourcePlacement.affinity: not a Kubernetes NodeAffinity: unknown field "podAffinity"`},
		{"every bad part", `{"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "x", "operator": "More", "values": ["8"]}]}, {"matchFields": [{"key": "metadata.name", "operator": "Exists"}]}]}}`,
			`[sourcePlacement.affinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].operator: Unsupported value: "More": supported values: "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", sourcePlacement.affinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[1].matchFields[0].operator: Unsupported value: "Exists": supported values: "In", "NotIn"]`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			a, err := Affinity(json.RawMessage(test.data), at)
			if err == nil && test.err != "" || err != nil && err.Error() != test.err {
				t.Errorf("got error %v, want %s", err, test.err)
			}
			if wanted := test.err == "" && len(test.data) > 4; (a != nil) != wanted {
				t.Errorf("got affinity %v, want one: %v", a, wanted)
			}
		})
	}
}

// BenchmarkPlace has a pod with all kinds of demands, and nodes that differ.
func BenchmarkPlace(b *testing.B) {
	pod := podOf(selector("kubernetes.io/os", "linux"), requests("cpu", "100m", "memory", "128Mi"), hostPort(corev1.ContainerPort{HostPort: 8443}),
		affinity(`[{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-0", "zone-1"]}, {"key": "cpus", "operator": "Gt", "values": ["3"]}]`, `[{"key": "gpu", "operator": "Exists"}]`))
	for _, n := range []int{100, 1000, 5000, 10000} {
		var nodes []cluster.Node
		for i := range n {
			node := linuxNode(fmt.Sprintf("node-%05d", i), label("topology.kubernetes.io/zone", fmt.Sprintf("zone-%d", i%3)), label("cpus", fmt.Sprint(i%8)),
				takes(cluster.HostPort{Port: 9100, Protocol: corev1.ProtocolTCP}, cluster.HostPort{Port: 10250 + int32(i%2), Protocol: corev1.ProtocolTCP}))
			node.Requested = quantities("pods", fmt.Sprint(i%111), "cpu", fmt.Sprintf("%dm", 3000+i%1001), "memory", "4Gi")
			if i%10 == 0 {
				taint("dedicated", fmt.Sprint(i%3), corev1.TaintEffectNoSchedule)(&node)
			}
			nodes = append(nodes, node)
		}
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if o := Place(pod, nodes); len(o.Eligible) == 0 || len(o.Rejected) == 0 {
					b.Fatalf("%d eligible, %d groups rejected", len(o.Eligible), len(o.Rejected))
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/node")
		})
	}
}
