// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/cost"
	"github.com/checkplan/checkplan/pkg/history"
)

// meshPlan is a plan with one podMesh check, "mesh", as a loaded plan is: with
// the schema's defaults. Each change is made to the check.
func meshPlan(changes ...func(*Spec)) *checkup.Plan {
	mesh := &Spec{
		Sources: Sources{Placement: checkup.Placement{NodeSelector: map[string]string{"kubernetes.io/os": "linux"}}},
		Targets: Targets{Placement: checkup.Placement{
			NodeSelector: map[string]string{"kubernetes.io/os": "linux"},
			Tolerations:  []checkup.Toleration{{Operator: "Exists"}},
		}},
		Sample: Sample{Degree: 1, Budget: 100_000},
		Probes: map[checkup.Transport]checkup.Probe{checkup.TCP: {
			Sizes: []int{0}, Count: 5, Interval: checkup.Duration(100 * time.Millisecond), Timeout: checkup.Duration(2 * time.Second),
		}},
		Limits:   checkup.Limits{PacketsPerSecond: 200, Concurrency: 16, StartJitter: checkup.Duration(500 * time.Millisecond)},
		Timeouts: checkup.Timeouts{Setup: checkup.Duration(2 * time.Minute), Probe: checkup.Duration(5 * time.Minute)},
	}
	for _, change := range changes {
		change(mesh)
	}
	return &checkup.Plan{Name: "plan", Teardown: checkup.TeardownAlways, Retention: checkup.Retention{Reports: 10},
		Checks: map[string]checkup.Check{"mesh": {Spec: mesh}}}
}

// linuxNode is a ready, dual-stack node. Each change is made to it.
func linuxNode(name string, changes ...func(*cluster.Node)) cluster.Node {
	n := cluster.Node{
		Name: name, Ready: corev1.ConditionTrue, Allocatable: podLimit("110"),
		Labels:   map[string]string{"kubernetes.io/os": "linux", "kubernetes.io/hostname": name},
		PodCIDRs: []string{"10.244.0.0/24", "fd00:10:244::/64"}, InternalIPs: []string{"192.0.2.1"},
	}
	for _, change := range changes {
		change(&n)
	}
	return n
}

func podLimit(pods string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourcePods: resource.MustParse(pods)}
}

func label(key, value string) func(*cluster.Node) {
	return func(n *cluster.Node) { n.Labels[key] = value }
}

func taint(key, value string, effect corev1.TaintEffect) func(*cluster.Node) {
	return func(n *cluster.Node) {
		n.Taints = append(n.Taints, corev1.Taint{Key: key, Value: value, Effect: effect})
	}
}

func status(ready corev1.ConditionStatus) func(*cluster.Node) {
	return func(n *cluster.Node) { n.Ready = ready }
}

var controlPlane = taint("node-role.kubernetes.io/control-plane", "", corev1.TaintEffectNoSchedule)

func snapshotOf(nodes ...cluster.Node) *cluster.Snapshot {
	return &cluster.Snapshot{APIVersion: checkup.APIVersion, Kind: cluster.SnapshotKind, Nodes: nodes}
}

// webPods makes the targets existing pods with the label app=web.
func webPods(m *Spec) {
	m.Targets.Pods = &PodTargets{Namespace: "shop", Port: 80, Selector: checkup.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}
}

// insideWebPods makes the sources existing pods with the label app=web.
func insideWebPods(m *Spec) {
	m.Sources.Pods = &PodSources{Namespace: "shop", Selector: checkup.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}
}

func withPods(s *cluster.Snapshot, pods ...cluster.Pod) *cluster.Snapshot {
	s.Selections = []cluster.Selection{{Namespace: "shop", Selector: "app=web", Pods: pods}}
	return s
}

func readyPod(name, node string) cluster.Pod {
	return cluster.Pod{Name: "shop/" + name, Node: node, IPs: []string{"10.244.0.7"}, Ready: true}
}

func TestExpand(t *testing.T) {
	sourcePlacement := func(change func(*checkup.Placement)) func(*Spec) {
		return func(m *Spec) { change(&m.Sources.Placement) }
	}
	bothPlacements := func(change func(*checkup.Placement)) func(*Spec) {
		return func(m *Spec) { change(&m.Sources.Placement); change(&m.Targets.Placement) }
	}
	three := func(changes ...func(*cluster.Node)) []cluster.Node {
		return []cluster.Node{linuxNode("a"), linuxNode("b"), linuxNode("c", changes...)}
	}
	tests := []struct {
		name     string
		plan     *checkup.Plan
		snapshot *cluster.Snapshot
		// want is "sources > targets, families, degree"
		want     string
		warnings []string
		err      string
	}{
		{
			name: "three nodes", plan: meshPlan(), snapshot: snapshotOf(three()...),
			want: "a b c > a b c, IPv4 IPv6, degree 1, round 0 of 2",
		}, {
			name: "a control plane is a target, but no source", plan: meshPlan(),
			snapshot: snapshotOf(append(three(), linuxNode("cp", controlPlane))...),
			want:     "a b c > a b c cp, IPv4 IPv6, degree 1, round 0 of 2",
			warnings: []string{"NodesLeftOut: 3 of 4 nodes can be a source; left out: 1 node with taint node-role.kubernetes.io/control-plane:NoSchedule, which sources.placement.tolerations does not tolerate"},
		}, {
			name: "a taint that only prefers decides nothing", plan: meshPlan(),
			snapshot: snapshotOf(three(taint("maintenance", "soon", corev1.TaintEffectPreferNoSchedule))...),
			want:     "a b c > a b c, IPv4 IPv6, degree 1, round 0 of 2",
		}, {
			name: "a toleration of the plan", plan: meshPlan(sourcePlacement(func(p *checkup.Placement) {
				p.Tolerations = []checkup.Toleration{{Key: "dedicated", Value: "db", Effect: "NoSchedule"}}
			})),
			snapshot: snapshotOf(linuxNode("a"), linuxNode("b", taint("dedicated", "db", corev1.TaintEffectNoSchedule)), linuxNode("c", taint("dedicated", "ml", corev1.TaintEffectNoSchedule))),
			want:     "a b > a b c, IPv4 IPv6, degree 1, round 0 of 1",
			warnings: []string{"NodesLeftOut: 2 of 3 nodes can be a source; left out: 1 node with taint dedicated=ml:NoSchedule, which sources.placement.tolerations does not tolerate"},
		}, {
			name: "a stopped node stays expected", plan: meshPlan(),
			snapshot: snapshotOf(three(status(corev1.ConditionUnknown),
				taint(corev1.TaintNodeUnreachable, "", corev1.TaintEffectNoSchedule), taint(corev1.TaintNodeUnreachable, "", corev1.TaintEffectNoExecute))...),
			want:     "a b c > a b c, IPv4 IPv6, degree 1, round 0 of 2",
			warnings: []string{"NodesNotReady: 1 node is not ready, and will probably fail or be unmeasured: c"},
		}, {
			name: "a node under pressure and a cordoned one stay expected", plan: meshPlan(),
			snapshot: snapshotOf(
				linuxNode("a", taint(corev1.TaintNodeDiskPressure, "", corev1.TaintEffectNoSchedule), taint(corev1.TaintNodeMemoryPressure, "", corev1.TaintEffectNoSchedule), taint(corev1.TaintNodePIDPressure, "", corev1.TaintEffectNoSchedule)),
				linuxNode("b", func(n *cluster.Node) { n.Unschedulable = true }, taint(corev1.TaintNodeUnschedulable, "", corev1.TaintEffectNoSchedule))),
			want: "a b > a b, IPv4 IPv6, degree 1, round 0 of 1",
		}, {
			name: "a node that is known to have no network is no source, and that is reported", plan: meshPlan(),
			snapshot: snapshotOf(three(taint(corev1.TaintNodeNetworkUnavailable, "", corev1.TaintEffectNoSchedule))...),
			want:     "a b > a b c, IPv4 IPv6, degree 1, round 0 of 1",
			warnings: []string{"NodesLeftOut: 2 of 3 nodes can be a source; left out: 1 node with taint node.kubernetes.io/network-unavailable:NoSchedule, which sources.placement.tolerations does not tolerate"},
		}, {
			name: "a taint that would evict decides as well", plan: meshPlan(),
			snapshot: snapshotOf(three(taint("broken", "", corev1.TaintEffectNoExecute))...),
			want:     "a b > a b c, IPv4 IPv6, degree 1, round 0 of 1",
			warnings: []string{"NodesLeftOut: 2 of 3 nodes can be a source; left out: 1 node with taint broken:NoExecute, which sources.placement.tolerations does not tolerate"},
		}, {
			name: "of several labels the one that nothing has is reported", plan: meshPlan(bothPlacements(func(p *checkup.Placement) {
				p.NodeSelector = map[string]string{"disk": "ssd", "zebra": "yes"}
			})),
			snapshot: snapshotOf(linuxNode("a", label("disk", "ssd")), linuxNode("b")),
			err: `check "mesh": no node can be a source: 2 nodes without label zebra=yes (sources.placement.nodeSelector)
no node can be a target: 2 nodes without label zebra=yes (targets.placement.nodeSelector)`,
		}, {
			name: "affinity by label and by name", plan: meshPlan(bothPlacements(func(p *checkup.Placement) {
				p.Affinity = json.RawMessage(`{"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
					{"matchExpressions": [{"key": "cpus", "operator": "Gt", "values": ["8"]}]},
					{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]},
					"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {"matchExpressions": [{"key": "x", "operator": "Exists"}]}}]}`)
			})),
			snapshot: snapshotOf(linuxNode("a", label("cpus", "16")), linuxNode("b"), linuxNode("c", label("cpus", "4"))),
			want:     "a b > a b, IPv4 IPv6, degree 1, round 0 of 1",
			warnings: []string{
				"NodesLeftOut: 2 of 3 nodes can be a source; left out: 1 node not matched by the affinity (sources.placement.affinity)",
				"NodesLeftOut: 2 of 3 nodes can be a target; left out: 1 node not matched by the affinity (targets.placement.affinity)",
			},
		}, {
			name: "an affinity that only prefers decides nothing", plan: meshPlan(bothPlacements(func(p *checkup.Placement) {
				p.Affinity = json.RawMessage(`{"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {"matchExpressions": [{"key": "x", "operator": "Exists"}]}}]}`)
			})),
			snapshot: snapshotOf(three()...),
			want:     "a b c > a b c, IPv4 IPv6, degree 1, round 0 of 2",
		}, {
			name: "an affinity that Kubernetes would refuse", plan: meshPlan(sourcePlacement(func(p *checkup.Placement) {
				p.Affinity = json.RawMessage(`{"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "cpus", "operator": "More", "values": ["8"]}]}]}}`)
			})),
			snapshot: snapshotOf(three()...),
			err:      `check "mesh": sources.placement.affinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].operator: Unsupported value: "More": supported values: "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"`,
		}, {
			name: "an invalid affinity", plan: meshPlan(sourcePlacement(func(p *checkup.Placement) { p.Affinity = json.RawMessage(`["a"]`) })),
			snapshot: snapshotOf(three()...),
			err:      `check "mesh": sources.placement.affinity: not a Kubernetes NodeAffinity: json: cannot unmarshal array into Go value of type v1.NodeAffinity`,
		}, {
			name: "nothing matches, on both sides", plan: meshPlan(
				sourcePlacement(func(p *checkup.Placement) {
					p.NodeSelector = map[string]string{"kubernetes.io/os": "linux", "pool": "mesh"}
				}),
				func(m *Spec) { m.Targets.Placement.NodeSelector["kubernetes.io/os"] = "windows" }),
			snapshot: snapshotOf(linuxNode("a", label("pool", "web")), linuxNode("b"), linuxNode("cp", label("pool", "mesh"), controlPlane)),
			err: `check "mesh": no node can be a source: 2 nodes without label pool=mesh (sources.placement.nodeSelector); 1 node with taint node-role.kubernetes.io/control-plane:NoSchedule, which sources.placement.tolerations does not tolerate
no node can be a target: 3 nodes without label kubernetes.io/os=windows (targets.placement.nodeSelector)`,
		}, {
			name: "one node", plan: meshPlan(), snapshot: snapshotOf(linuxNode("a")),
			err: `check "mesh": node a is the only source and the only target, but a mesh needs two nodes: admit more of the 1 node by sources.placement or targets.placement`,
		}, {
			name: "no node", plan: meshPlan(), snapshot: snapshotOf(), err: `check "mesh": the cluster has no nodes`,
		}, {
			name: "no such check", plan: &checkup.Plan{Name: "other"}, snapshot: snapshotOf(three()...),
			err: `check "mesh": plan other has no podMesh check of that name`,
		}, {
			name: "more degree than nodes", plan: meshPlan(func(m *Spec) { m.Sample.Degree = 10 }), snapshot: snapshotOf(three()...),
			want:     "a b c > a b c, IPv4 IPv6, degree 2, round 0 of 1",
			warnings: []string{"FullMesh: 3 nodes but degree 10: full mesh"},
		}, {
			name: "full mesh", plan: meshPlan(func(m *Spec) { m.Sample.Degree = 0 }), snapshot: snapshotOf(three()...),
			want: "a b c > a b c, IPv4 IPv6, degree 2, round 0 of 1",
		}, {
			name: "full mesh beyond the budget", plan: meshPlan(func(m *Spec) { m.Sample.Degree, m.Sample.Budget = 0, 11 }), snapshot: snapshotOf(three()...),
			want:     "a b c > a b c, IPv4 IPv6, degree 1, round 0 of 2",
			warnings: []string{"DegreeLowered: sample.budget of 11 is not enough for the full mesh of 3 nodes, which is 12 pairs: the degree is 1, and the full mesh takes 2 runs that rotate"},
		}, {
			name: "degree beyond the budget", plan: meshPlan(func(m *Spec) { m.Sample.Degree, m.Sample.Budget = 2, 11 }), snapshot: snapshotOf(three()...),
			want:     "a b c > a b c, IPv4 IPv6, degree 1, round 0 of 2",
			warnings: []string{"DegreeLowered: sample.budget of 11 is not enough for a degree of 2 with 3 nodes: the degree is 1, and the full mesh takes 2 runs that rotate"},
		}, {
			name: "not even a degree of 1", plan: meshPlan(func(m *Spec) { m.Sample.Budget = 5 }), snapshot: snapshotOf(three()...),
			want:     "a b c > a b c, IPv4 IPv6, degree 0, round 0 of 3",
			warnings: []string{"SampleCut: sample.budget of 5 is not enough for a degree of 1 with 3 nodes: a run measures 4 of 12 pairs, and not every node; the full mesh takes 3 runs that rotate"},
		}, {
			name: "budget below one source and target", plan: meshPlan(func(m *Spec) { m.Sample.Budget = 1 }), snapshot: snapshotOf(three()...),
			err: `check "mesh": sample.budget: 1 pair is not enough for one source and one target, which are 2 pairs (families x transports x sizes): raise it, or measure less of each`,
		}, {
			name: "labels of the topology", plan: meshPlan(func(m *Spec) { m.Sample.Topology = []string{"rack", "host"} }),
			snapshot: snapshotOf(linuxNode("a", label("rack", "x")), linuxNode("b", label("rack", "y")), linuxNode("c")),
			want:     "a b c > a b c, IPv4 IPv6, degree 1, round 0 of 2",
			warnings: []string{"LabelMissing: sample.topology: no node that takes part has the label host"},
		}, {
			name: "zones beyond the budget", plan: meshPlan(func(m *Spec) { m.Sample.Budget = 8; m.IPFamilies = []checkup.IPFamily{"IPv4"} }),
			snapshot: snapshotOf(
				linuxNode("a", label(corev1.LabelTopologyZone, "x")), linuxNode("b", label(corev1.LabelTopologyZone, "y")),
				linuxNode("c", label(corev1.LabelTopologyZone, "z")), linuxNode("d", label(corev1.LabelTopologyZone, "w"))),
			want:     "a b c d > a b c d, IPv4, degree 1, round 0 of 3",
			warnings: []string{"ZonesMissed: 8 of 12 ordered zone pairs have no pair in the sample, because sample.budget of 8 does not allow more"},
		}, {
			name: "families of internal addresses where there are no pod CIDRs", plan: meshPlan(),
			snapshot: snapshotOf(three(func(n *cluster.Node) { n.PodCIDRs = nil })[2], linuxNode("d", func(n *cluster.Node) { n.PodCIDRs, n.InternalIPs = nil, []string{"2001:db8::1"} })),
			want:     "c d > c d, IPv4 IPv6, degree 1, round 0 of 1",
		}, {
			name: "families of nodes that take part only", plan: meshPlan(),
			snapshot: snapshotOf(linuxNode("a", func(n *cluster.Node) { n.PodCIDRs = n.PodCIDRs[:1] }), linuxNode("b", func(n *cluster.Node) { n.PodCIDRs = n.PodCIDRs[:1] }), linuxNode("win", label("kubernetes.io/os", "windows"))),
			want:     "a b > a b, IPv4, degree 1, round 0 of 1",
			warnings: []string{
				"NodesLeftOut: 2 of 3 nodes can be a source; left out: 1 node without label kubernetes.io/os=linux (sources.placement.nodeSelector)",
				"NodesLeftOut: 2 of 3 nodes can be a target; left out: 1 node without label kubernetes.io/os=linux (targets.placement.nodeSelector)",
			},
		}, {
			name: "families of the plan", plan: meshPlan(func(m *Spec) { m.IPFamilies = []checkup.IPFamily{"IPv6", "IPv4"} }),
			snapshot: snapshotOf(linuxNode("a", func(n *cluster.Node) { n.PodCIDRs = []string{"10.0.0.0/24"} }), linuxNode("b", func(n *cluster.Node) { n.PodCIDRs = nil })),
			want:     "a b > a b, IPv4 IPv6, degree 1, round 0 of 1",
			warnings: []string{"FamilyMissing: the plan measures IPv6, but the cluster's pods seem to have no such addresses: its pairs will be unmeasured"},
		}, {
			name: "no family is visible", plan: meshPlan(),
			snapshot: snapshotOf(linuxNode("a", func(n *cluster.Node) { n.PodCIDRs, n.InternalIPs = nil, nil }), linuxNode("b", func(n *cluster.Node) { n.PodCIDRs, n.InternalIPs = nil, []string{"host.example"} })),
			err:      `check "mesh": ipFamilies: pod CIDRs and internal addresses of the nodes do not show the IP families of their pods: set ipFamilies`,
		}, {
			name: "a node that takes one pod", plan: meshPlan(), snapshot: snapshotOf(three(func(n *cluster.Node) { n.Allocatable = podLimit("1") })...),
			want:     "a b c > a b c, IPv4 IPv6, degree 1, round 0 of 2",
			warnings: []string{"NodesFull: 1 node is too full for the pods of the check: c"},
		}, {
			name: "existing pods", plan: meshPlan(webPods), snapshot: withPods(snapshotOf(three()...), readyPod("one", "a"), readyPod("three", "c"), readyPod("two", "a")),
			want: "a b c > shop/one shop/two shop/three, IPv4, degree 1, round 0 of 3",
		}, {
			name: "existing pods that are not ready or not scheduled", plan: meshPlan(webPods),
			snapshot: withPods(snapshotOf(three()...), readyPod("one", "a"), cluster.Pod{Name: "shop/starting", Node: "b"}, cluster.Pod{Name: "shop/waiting"}),
			want:     "a b c > shop/waiting shop/one shop/starting, IPv4, degree 1, round 0 of 2",
			warnings: []string{"PodsNotReady: 2 targets are not ready, and will be unmeasured: shop/starting, shop/waiting"},
		}, {
			name: "existing pods on nodes that the placement leaves out", plan: meshPlan(webPods, func(m *Spec) { m.Targets.Placement.NodeSelector = map[string]string{"pool": "web"} }),
			snapshot: withPods(snapshotOf(three(label("pool", "web"))...), readyPod("one", "a"), readyPod("three", "c")),
			want:     "a b c > shop/three, IPv4, degree 1, round 0 of 1",
			warnings: []string{"NodesLeftOut: 1 of 2 pods can be a target; the others are on nodes that are left out: 2 nodes without label pool=web (targets.placement.nodeSelector)"},
		}, {
			name: "existing pods on none of the nodes that the placement admits", plan: meshPlan(webPods, func(m *Spec) { m.Targets.Placement.NodeSelector = map[string]string{"pool": "web"} }),
			snapshot: withPods(snapshotOf(three(label("pool", "web"))...), readyPod("one", "a")),
			err:      `check "mesh": targets.pods: none of the 1 pod with the labels app=web in namespace shop is on a node that targets.placement admits: 2 nodes without label pool=web (targets.placement.nodeSelector)`,
		}, {
			name: "existing pods on the only source", plan: meshPlan(webPods), snapshot: withPods(snapshotOf(linuxNode("a")), readyPod("one", "a")),
			want: "a > shop/one, IPv4, degree 1, round 0 of 1",
		}, {
			name: "from inside existing pods, on tainted nodes too", plan: meshPlan(insideWebPods, func(m *Spec) { m.Sample.Degree = 0 }),
			snapshot: withPods(snapshotOf(three(controlPlane)...), readyPod("one", "a"), readyPod("two", "c")),
			want:     "shop/one shop/two > a b c, IPv4 IPv6, degree 2, round 0 of 1",
		}, {
			name: "from inside existing pods to existing pods, on the same node too", plan: meshPlan(insideWebPods, webPods, func(m *Spec) { m.Sample.Degree = 0 }),
			snapshot: withPods(snapshotOf(three()...), readyPod("one", "a"), readyPod("two", "a")),
			want:     "shop/one shop/two > shop/one shop/two, IPv4, degree 1, round 0 of 1",
		}, {
			name: "from inside a pod to itself", plan: meshPlan(insideWebPods, webPods), snapshot: withPods(snapshotOf(three()...), readyPod("one", "a")),
			err: `check "mesh": pod shop/one is the only source and the only target: admit more by sources.pods or targets.pods`,
		}, {
			name: "from inside pods that have not started, or are on the host network", plan: meshPlan(insideWebPods),
			snapshot: withPods(snapshotOf(three()...), cluster.Pod{Name: "shop/starting", Node: "a"},
				cluster.Pod{Name: "shop/host", Node: "b", IPs: []string{"192.0.2.1"}, Ready: true, HostNetwork: true}),
			want: "shop/starting shop/host > a b c, IPv4 IPv6, degree 1, round 0 of 2",
			warnings: []string{
				"PodsNotReady: 1 source is not ready, and may be unmeasured: shop/starting",
				"PodsOnHost: 1 source is in the network of the node: that network is measured, and no NetworkPolicy selects the pod: shop/host",
			},
		}, {
			name: "from inside a pod on a Windows node", plan: meshPlan(insideWebPods),
			snapshot: withPods(snapshotOf(three(label("kubernetes.io/os", "windows"))...), readyPod("one", "c")),
			err: `check "mesh": sources.pods: none of the 1 pod with the labels app=web in namespace shop is on a node that sources.placement admits: ` +
				`1 node without label kubernetes.io/os=linux (sources.placement.nodeSelector)`,
		}, {
			name: "from inside a pod that does not exist", plan: meshPlan(func(m *Spec) { m.Sources.Pods = &PodSources{Namespace: "shop", Name: "gone"} }),
			snapshot: func() *cluster.Snapshot {
				s := snapshotOf(three()...)
				s.Selections = []cluster.Selection{{Namespace: "shop", Name: "gone"}}
				return s
			}(),
			err: `check "mesh": sources.pods: no pod in namespace shop has the name gone: see kubectl get pods --show-labels`,
		}, {
			name: "no such pod", plan: meshPlan(webPods), snapshot: withPods(snapshotOf(three()...)),
			err: `check "mesh": targets.pods: no pod in namespace shop has the labels app=web: see kubectl get pods --show-labels`,
		}, {
			name: "a snapshot for another plan", plan: meshPlan(webPods), snapshot: snapshotOf(three()...),
			err: `check "mesh": targets.pods: the snapshot does not list which pods in namespace shop have the labels app=web: it was recorded for another plan: record it again`,
		}, {
			name: "a pod selector that Kubernetes would refuse", plan: meshPlan(webPods, func(m *Spec) {
				m.Targets.Pods.Selector.MatchExpressions = []checkup.SelectorRequirement{{Key: "app", Operator: "Like", Values: []string{"w"}}}
			}),
			snapshot: withPods(snapshotOf(three()...)),
			err:      `check "mesh": targets.pods.selector: "Like" is not a valid label selector operator`,
		}, {
			name: "a pod selector that selects everything", plan: meshPlan(webPods, func(m *Spec) { m.Targets.Pods.Selector = checkup.LabelSelector{} }),
			snapshot: snapshotOf(three()...),
			err:      `check "mesh": targets.pods.selector: is empty and would select every pod: set the labels of the pods`,
		}, {
			name: "probing that is too long", plan: meshPlan(func(m *Spec) {
				m.Limits.PacketsPerSecond, m.Timeouts.Probe = 1, checkup.Duration(5*time.Second)
			}),
			snapshot: snapshotOf(three()...),
			want:     "a b c > a b c, IPv4 IPv6, degree 1, round 0 of 2",
			warnings: []string{"ProbeTooLong: probing takes about 11s, but agents have 3.75s of timeouts.probe (5s): later pairs are unmeasured: raise it or limits.packetsPerSecond, or measure less"},
		}, {
			name: "a plan that was never loaded", plan: meshPlan(webPods, func(m *Spec) {
				m.Sample = Sample{Degree: -1}
				m.IPFamilies = []checkup.IPFamily{"IPv5"}
				m.Probes = map[checkup.Transport]checkup.Probe{checkup.UDP: {Sizes: []int{64}}, "sctp": {}, checkup.TCP: {}}
			}),
			snapshot: snapshotOf(three()...),
			err: `check "mesh": sample.degree: is -1, want 0 or more
sample.budget: is 0, want 1 or more
probes.sctp: no such transport
probes.tcp.sizes: empty: want at least one
probes.udp: existing pods (targets.pods) do not answer it
ipFamilies: "IPv5": want IPv4 or IPv6`,
		},
	}
	warned := map[Reason]bool{}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w, warnings, err := Expand(test.plan, "mesh", test.snapshot, 0)
			if fmt.Sprint(err) != cmpErr(test.err) {
				t.Fatalf("error:\n%v\nwant:\n%v", err, test.err)
			}
			var got string
			if w != nil {
				got = describe(w)
				for _, e := range slices.Concat(w.Sources, w.Targets) {
					if (e.Pod == "") != (len(e.Tolerations) > 0) {
						t.Errorf("%s has tolerations %v: fixtures have some, existing pods none", e.Name(), e.Tolerations)
					}
				}
			}
			if got != test.want {
				t.Errorf("worksheet: %s\nwant:      %s", got, test.want)
			}
			var messages []string
			for _, w := range warnings {
				warned[w.Reason] = true
				messages = append(messages, string(w.Reason)+": "+w.Message)
			}
			if diff := cmp.Diff(test.warnings, messages); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
	for _, r := range Reasons {
		if !warned[r] {
			t.Errorf("no test has the warning %s", r)
		}
	}
}

func cmpErr(want string) string {
	if want == "" {
		return fmt.Sprint(error(nil))
	}
	return want
}

func describe(w *checkup.Worksheet) string {
	names := func(endpoints []checkup.Endpoint) string {
		var names []string
		for _, e := range endpoints {
			names = append(names, e.Name())
		}
		return strings.Join(names, " ")
	}
	var families []string
	for _, f := range w.IPFamilies {
		families = append(families, string(f))
	}
	return fmt.Sprintf("%s > %s, %s, degree %d, round %d of %d", names(w.Sources), names(w.Targets), strings.Join(families, " "), w.Degree, w.Round, w.Rounds)
}

// TestExpandWorksheet compares a whole worksheet. It is rewritten with UPDATE=1.
func TestExpandWorksheet(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "snapshot.json"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := cluster.DecodeSnapshot(data)
	if err != nil {
		t.Fatal(err)
	}
	p := meshPlan(func(m *Spec) {
		m.Sample.Rotate = true
		m.Probes[checkup.UDP] = checkup.Probe{Sizes: []int{1400, 64, 64}, Count: 20, Interval: checkup.Duration(20 * time.Millisecond), Timeout: checkup.Duration(time.Second)}
		m.Expect.Loss.Max = new(checkup.Percent(1))
	})
	w, _, err := Kind.Expand(p, "mesh", s)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.MarshalIndent(w, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "worksheet.json", append(got, '\n'))
	cost, err := json.MarshalIndent(cost.Of(w, p, "registry.example/agent:v1"), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "cost.json", append(cost, '\n'))
}

// golden compares with a file of testdata, or writes it if UPDATE is set.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s, rewritten with UPDATE=1 (-want +got):\n%s", path, diff)
	}
}

// TestExpandSeed: the plan's seed, or else one that depends on both names and
// survives every reader of JSON.
func TestExpandSeed(t *testing.T) {
	seedOf := func(p *checkup.Plan, check string) uint64 {
		w, _, err := Expand(p, check, testCluster(3), 0)
		if err != nil {
			t.Fatal(err)
		}
		return w.Seed
	}
	if got := seedOf(meshPlan(func(m *Spec) { m.Sample.Seed = new(uint64(7)) }), "mesh"); got != 7 {
		t.Errorf("seed %d, want the plan's 7", got)
	}
	p := meshPlan()
	p.Checks["other"] = p.Checks["mesh"]
	seeds := []uint64{seedOf(p, "mesh"), seedOf(p, "other")}
	p.Name = "another"
	seeds = append(seeds, seedOf(p, "mesh"))
	if seeds[0] == seeds[1] || seeds[0] == seeds[2] || seeds[1] == seeds[2] {
		t.Errorf("seeds of different plans and checks: %d", seeds)
	}
	for _, seed := range seeds {
		if seed >= 1<<53 {
			t.Errorf("seed %d has more than 53 bits", seed)
		}
	}
}

// TestExpandIgnoresNodeOrder compares worksheets of one cluster whose nodes
// were listed in different orders.
func TestExpandIgnoresNodeOrder(t *testing.T) {
	s := testCluster(40)
	p := meshPlan(func(m *Spec) { m.Sample.Degree = 3 })
	want, _, err := Expand(p, "mesh", s, 1)
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(s.Nodes)
	got, _, err := Expand(p, "mesh", s, 1)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("worksheet changes with the order of nodes (-in order +reversed):\n%s", diff)
	}
}

// TestExpandRounds follows a rotation through its reports: each run takes the
// next round, and together they are the full mesh.
func TestExpandRounds(t *testing.T) {
	s := testCluster(7)
	p := meshPlan(func(m *Spec) { m.Sample.Degree, m.Sample.Rotate, m.Sample.Round = 2, true, 2 })
	union := map[[2]int]bool{}
	var rounds []int
	for run := range 4 {
		w, _, err := Kind.Expand(p, "mesh", s)
		if err != nil {
			t.Fatal(err)
		}
		rounds = append(rounds, w.Round)
		for source, targets := range w.Assignments {
			for _, target := range targets {
				union[[2]int{source, target}] = true
			}
		}
		s.Rounds = append(s.Rounds, history.Round{Plan: p.Name, Check: "mesh", Round: w.Round, Created: time.Unix(int64(run), 0)})
	}
	if want := []int{2, 0, 1, 2}; !slices.Equal(rounds, want) {
		t.Errorf("rounds %v, want %v", rounds, want)
	}
	if len(union) != 7*6 {
		t.Errorf("%d pairs measured by a whole cycle, want %d", len(union), 7*6)
	}
}

// testCluster is a cluster of n nodes in three zones with the labels that nodes
// of a real one have.
func testCluster(n int) *cluster.Snapshot {
	s := snapshotOf()
	for i := range n {
		s.Nodes = append(s.Nodes, linuxNode(fmt.Sprintf("node-%05d", i),
			label(corev1.LabelTopologyZone, fmt.Sprintf("zone-%d", i%3)), label("topology.kubernetes.io/region", "region-1"),
			label("node.kubernetes.io/instance-type", "m1.large"), label("beta.kubernetes.io/arch", "amd64"), label("kubernetes.io/arch", "amd64")))
	}
	return s
}

func BenchmarkExpand(b *testing.B) {
	for _, n := range []int{100, 1000, 5000, 10000} {
		s := testCluster(n)
		p := meshPlan(func(m *Spec) { m.Sample.Degree, m.Sample.Budget = 10, 10_000_000 })
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w, _, err := Expand(p, "mesh", s, i)
				if err != nil {
					b.Fatal(err)
				}
				if len(w.Assignments) != n || len(w.Assignments[0]) < 10 {
					b.Fatalf("%d sources, %d targets of the first", len(w.Assignments), len(w.Assignments[0]))
				}
			}
		})
	}
}

// FuzzExpandSnapshot: no snapshot that can be read makes Expand panic, or gives
// a worksheet without pairs.
func FuzzExpandSnapshot(f *testing.F) {
	data, err := os.ReadFile(filepath.Join("testdata", "snapshot.json"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(strings.ReplaceAll(string(data), "worker-1", "worker-2")))
	f.Add([]byte(`{"apiVersion": "checkplan.dev/v1alpha1", "kind": "Snapshot", "nodes": [{"name": "a", "ready": "True", "podCIDRs": ["x"]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := cluster.DecodeSnapshot(data)
		if err != nil {
			return
		}
		p := meshPlan()
		w, _, err := Kind.Expand(p, "mesh", s)
		if err == nil && w.CountPairs() == 0 {
			t.Fatal("a worksheet without pairs, and no error")
		}
	})
}
