// SPDX-License-Identifier: Apache-2.0

package vmlatency

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

var br10 = checkup.NetworkRef{Namespace: "default", Name: "br10"}

// vmCheck is a check as the schema's defaults make it, over br10, with changes.
func vmCheck(change ...func(*Spec)) *Spec {
	second := checkup.Duration(time.Second)
	v := &Spec{
		Networks: []checkup.NetworkRef{br10}, IPFamilies: checkup.IPFamilies, Duration: 5 * second, Interval: second / 5,
		Guest: checkup.Guest{Memory: "128Mi"}, Timeouts: checkup.Timeouts{Setup: 300 * second, Probe: 120 * second},
	}
	for _, c := range change {
		c(v)
	}
	return v
}

func nodes(pairs ...string) func(*Spec) {
	return func(v *Spec) {
		for _, pair := range pairs {
			source, target, _ := strings.Cut(pair, ">")
			v.Pairs = append(v.Pairs, checkup.NodePair{Source: source, Target: target})
		}
	}
}

// node is a node that takes VMs, with these bridges, and other resources.
func node(name string, more ...string) cluster.Node {
	n := cluster.Node{
		Name: name, Ready: corev1.ConditionTrue, Labels: map[string]string{labelSchedulable: "true", labelZone: "zone-" + name},
		Allocatable: corev1.ResourceList{deviceTun: resource.MustParse("1k"), deviceKVM: resource.MustParse("1k"), deviceVhost: resource.MustParse("1k")},
	}
	for _, name := range more {
		if !strings.Contains(name, "/") {
			name = "bridge.network.kubevirt.io/" + name
		}
		n.Allocatable[corev1.ResourceName(name)] = resource.MustParse("1k")
	}
	return n
}

// vmCluster is a cluster with three nodes on which VMs can be started on br10,
// with changes.
func vmCluster(change ...func(*cluster.Snapshot)) *cluster.Snapshot {
	s := &cluster.Snapshot{
		Nodes:    []cluster.Node{node("n1", "br10"), node("n2", "br10"), node("n3", "br10")},
		KubeVirt: &cluster.KubeVirt{Served: true, Object: "kubevirt/kubevirt", Version: "v1.7.0", Phase: "Deployed", Ready: true},
		Multus:   true,
		Networks: []cluster.Network{{NetworkRef: br10, Config: `{"cniVersion": "0.3.1", "name": "br10", "type": "bridge", "bridge": "br10", "ipam": {}}`, Resource: "bridge.network.kubevirt.io/br10"}},
		Run:      "5f0e2b6c",
	}
	for _, c := range change {
		c(s)
	}
	return s
}

// config replaces br10's config and resource.
func config(text, resource string) func(*cluster.Snapshot) {
	return func(s *cluster.Snapshot) { s.Networks[0].Config, s.Networks[0].Resource = text, resource }
}

func expanded(t testing.TB, v *Spec, s *cluster.Snapshot) (*checkup.Worksheet, []string) {
	t.Helper()
	plan := &checkup.Plan{Name: "vm-latency", Checks: map[string]checkup.Check{"vms": {Spec: v}}}
	w, warnings, err := Expand(plan, "vms", s)
	if err != nil {
		t.Fatal(err)
	}
	return w, warnings
}

// TestExpand: a pair on any two nodes, from the source the delay, from the target
// connectivity alone.
func TestExpand(t *testing.T) {
	limit, loss := checkup.Duration(200*time.Millisecond), checkup.Percent(1)
	w, warnings := expanded(t, vmCheck(func(v *Spec) {
		v.Expect.Latency.Max, v.Expect.Loss.Max = &limit, &loss
		v.IPFamilies = []checkup.IPFamily{checkup.IPv6, checkup.IPv4}
	}), vmCluster())
	if len(warnings) > 0 {
		t.Errorf("warnings %q", warnings)
	}
	vm := func(name, mac, v4, v6 string, target bool) *checkup.VM {
		return &checkup.VM{
			Name: name, Network: br10, NetworkType: "bridge", Bridge: "br10", Resource: "bridge.network.kubevirt.io/br10", Binding: checkup.BindingBridge, MAC: mac, Target: target,
			Addresses: map[checkup.IPFamily]string{checkup.IPv4: v4, checkup.IPv6: v6},
			Unused:    map[checkup.IPFamily]string{checkup.IPv4: "10.159.54.78/29", checkup.IPv6: "fd3d:9b35:1676:9676::6/64"},
		}
	}
	endpoints := []checkup.Endpoint{
		{Label: "source", VM: vm("source", "02:5c:d9:d6:ec:36", "10.159.54.73/29", "fd3d:9b35:1676:9676::1/64", false)},
		{Label: "target", VM: vm("target", "02:5d:54:68:c2:38", "10.159.54.74/29", "fd3d:9b35:1676:9676::2/64", true)},
	}
	want := &checkup.Worksheet{
		Plan: "vm-latency", Check: "vms", Kind: Name, Rounds: 1, Degree: 1, Possible: 2,
		Sources: endpoints, Targets: endpoints, Assignments: [][]int{{1}, {0}},
		IPFamilies: checkup.IPFamilies,
		Probes: []checkup.TransportProbe{{Transport: checkup.ICMP, Probe: checkup.Probe{
			Sizes: []int{56}, Count: 25, Interval: checkup.Duration(200 * time.Millisecond), Timeout: checkup.Duration(5 * time.Second),
		}}},
		Expect:   checkup.Expect{Loss: checkup.LossLimit{Max: &loss}, Latency: checkup.LatencyLimits{Max: &limit}},
		Limits:   checkup.Limits{PacketsPerSecond: 1000, Concurrency: 16},
		Timeouts: checkup.Timeouts{Setup: checkup.Duration(5 * time.Minute), Probe: checkup.Duration(2 * time.Minute)},
		Guests:   &checkup.GuestSheet{Guest: checkup.Guest{Memory: "128Mi"}, Duration: checkup.Duration(5 * time.Second)},
	}
	if diff := cmp.Diff(want, w); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var pairs []string
	for p := range w.Pairs() {
		pairs = append(pairs, fmt.Sprint(p.Source, ">", p.Target, " ", p.Family, " ", w.Measurements(p), " ", w.ExpectOf(p) == w.Expect))
	}
	wantPairs := []string{"0>1 IPv4 25 true", "0>1 IPv6 25 true", "1>0 IPv4 5 false", "1>0 IPv6 5 false"}
	if diff := cmp.Diff(wantPairs, pairs); diff != "" {
		t.Errorf("pairs (-want +got):\n%s", diff)
	}
}

// TestLabels: several networks and pairs; what people read is unique, and says
// node and network only where that is not the same for all.
func TestLabels(t *testing.T) {
	own := checkup.NetworkRef{Name: "own"}
	two := func(v *Spec) { v.Networks = append(v.Networks, own) }
	twoNetworks := func(s *cluster.Snapshot) {
		s.Networks = append(s.Networks, cluster.Network{NetworkRef: own, Config: `{"type": "macvlan"}`})
	}
	for _, tt := range []struct {
		name   string
		change []func(*Spec)
		want   string
	}{
		{"any nodes", nil, "source, target"},
		{"named nodes", []func(*Spec){nodes("n1>n2")}, "n1, n2"},
		{"both ways, and within one", []func(*Spec){nodes("n1>n2", "n2>n1", "n3>n3")}, "n1, n2, n2 (2), n1 (2), n3, n3 (2)"},
		{"two networks", []func(*Spec){two}, "source on default/br10, target on default/br10, source on own, target on own"},
		{"two of both", []func(*Spec){two, nodes("n1>n2", "n1>n3")}, "n1 on default/br10, n2 on default/br10, n1 on default/br10 (2), n3 on default/br10, n1 on own, n2 on own, n1 on own (2), n3 on own"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, _ := expanded(t, vmCheck(tt.change...), vmCluster(twoNetworks))
			var labels []string
			for i, e := range w.Sources {
				labels = append(labels, e.Name())
				if want := strings.Replace(e.Name(), " on "+e.VM.Network.String(), "", 1); e.VM.Name != want {
					t.Errorf("VM %d is named %q, want %q", i, e.VM.Name, want)
				}
				if i%2 == 1 != e.VM.Target || w.Assignments[i][0] != i^1 {
					t.Errorf("VM %d: target %v, assigned to %v", i, e.VM.Target, w.Assignments[i])
				}
				if e.Node != "" && e.Zone != "zone-"+e.Node {
					t.Errorf("zone of %s: %q", e.Node, e.Zone)
				}
			}
			if got := strings.Join(labels, ", "); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// TestPrerequisites: each has a reason of its own; where several do not hold, all
// of them are reported.
func TestPrerequisites(t *testing.T) {
	change := func(name string, f func(*cluster.Node)) func(*cluster.Snapshot) {
		return func(s *cluster.Snapshot) { f(s.Node(name)) }
	}
	without := func(name, resource string) func(*cluster.Snapshot) {
		return change(name, func(n *cluster.Node) { delete(n.Allocatable, corev1.ResourceName(resource)) })
	}
	kubeVirt := func(k cluster.KubeVirt) func(*cluster.Snapshot) {
		return func(s *cluster.Snapshot) { s.KubeVirt = &k }
	}
	const kindBridge = `{"type": "bridge", "bridge": "br99"}`
	const sriov = `{"plugins": [{"type": "sriov", "vlan": 5}, {"type": "tuning"}]}`
	type changes = []func(*cluster.Snapshot)
	for _, tt := range []struct {
		name    string
		pairs   string // n1>n2, or none
		changes changes
		want    string // of every pair; empty: no prerequisite fails
	}{
		{"all is well", "n1>n2", nil, ""},
		{"all is well, any nodes", "", nil, ""},
		{"no KubeVirt", "n1>n2", changes{kubeVirt(cluster.KubeVirt{}), without("n1", deviceTun)}, "KubeVirt is not installed: the cluster does not serve kubevirt.io/v1"},
		{"an operator alone", "n1>n2", changes{kubeVirt(cluster.KubeVirt{Message: "its operator is installed, but there is no KubeVirt object"})}, "KubeVirt is not installed: its operator is installed, but there is no KubeVirt object"},
		{
			"KubeVirt not ready", "n1>n2", changes{kubeVirt(cluster.KubeVirt{Served: true, Object: "kubevirt/kubevirt", Phase: "Deploying", Message: "Available is False: DeploymentInProgress"})},
			"KubeVirt kubevirt/kubevirt is not ready: phase Deploying: Available is False: DeploymentInProgress",
		},
		{"KubeVirt just made", "n1>n2", changes{kubeVirt(cluster.KubeVirt{Object: "kubevirt/kubevirt"})}, "KubeVirt kubevirt/kubevirt is not ready: phase not reported yet"},
		{"KubeVirt does not serve VMs", "n1>n2", changes{kubeVirt(cluster.KubeVirt{Object: "kubevirt/kubevirt", Ready: true})}, "KubeVirt kubevirt/kubevirt is not ready: the cluster serves no VirtualMachineInstances"},
		{"KubeVirt unread", "n1>n2", changes{kubeVirt(cluster.KubeVirt{Served: true, Unread: "no right"})}, ""},
		{"KubeVirt unread and not served", "n1>n2", changes{kubeVirt(cluster.KubeVirt{Unread: "no right"})}, "KubeVirt is not ready: the cluster serves no VirtualMachineInstances; cannot read the cause: no right"},
		{"no Multus", "n1>n2", changes{func(s *cluster.Snapshot) { s.Multus, s.Networks = false, nil }}, "Multus is not installed: the cluster does not serve k8s.cni.cncf.io/v1 (NetworkAttachmentDefinitions)"},
		{
			"neither", "n1>n2", changes{kubeVirt(cluster.KubeVirt{}), func(s *cluster.Snapshot) { s.Multus, s.Networks = false, nil }},
			"KubeVirt is not installed: the cluster does not serve kubevirt.io/v1; Multus is not installed: the cluster does not serve k8s.cni.cncf.io/v1 (NetworkAttachmentDefinitions)",
		},
		{
			"no such network", "n1>n2", changes{func(s *cluster.Snapshot) {
				s.Networks[0] = cluster.Network{NetworkRef: br10, Unread: "NetworkAttachmentDefinition br10 does not exist in namespace default"}
			}},
			"NetworkAttachmentDefinition br10 does not exist in namespace default",
		},
		{"broken config", "n1>n2", changes{config(`{"type": bridge}`, "")}, "network default/br10 cannot be used: its config is not JSON: invalid character 'b' looking for beginning of value"},
		{"no such node", "n1>n9", nil, "node n9 does not exist"},
		{"neither node", "n8>n9", nil, "node n8 does not exist; node n9 does not exist"},
		{"one node for both", "n9>n9", nil, "node n9 does not exist"},
		{"cordoned", "n1>n2", changes{change("n2", func(n *cluster.Node) {
			n.Unschedulable = true
			n.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}}
		})}, "node n2 is cordoned (spec.unschedulable)"},
		{"tainted", "n1>n2", changes{change("n1", func(n *cluster.Node) {
			n.Taints = []corev1.Taint{{Key: "dedicated", Value: "db", Effect: corev1.TaintEffectNoSchedule}}
		})}, "node n1 takes no VM: taint dedicated=db:NoSchedule is not tolerated"},
		{"not ready", "n1>n2", changes{change("n1", func(n *cluster.Node) { n.Ready = corev1.ConditionUnknown })}, "node n1 is not ready"},
		{"not ready, as its taint says", "n1>n2", changes{change("n1", func(n *cluster.Node) {
			n.Ready = corev1.ConditionFalse
			n.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}
		})}, "node n1 takes no VM: taint node.kubernetes.io/not-ready:NoSchedule is not tolerated: the node is not ready"},
		{"full", "n1>n2", changes{change("n1", func(n *cluster.Node) { n.Allocatable[corev1.ResourcePods] = resource.MustParse("0") })}, "node n1 is full: has 0 of at most 0 pods"},
		{"without virt-handler", "n1>n2", changes{change("n1", func(n *cluster.Node) { n.Labels = nil })}, "node n1 takes no VM: label kubevirt.io/schedulable is missing: KubeVirt's virt-handler does not run there"},
		{"virt-handler not ready", "n1>n2", changes{change("n1", func(n *cluster.Node) { n.Labels[labelSchedulable] = "false" })}, "node n1 takes no VM: label kubevirt.io/schedulable=false: KubeVirt's virt-handler is not ready there"},
		{"no device", "n1>n2", changes{without("n1", deviceKVM), without("n2", deviceTun)}, "node n1 takes no VM: it has no devices.kubevirt.io/kvm; node n2 takes no VM: it has no devices.kubevirt.io/tun"},
		{"a device that is not healthy", "n1>n2", changes{change("n1", func(n *cluster.Node) { n.Allocatable[deviceVhost] = resource.MustParse("0") })}, "node n1 takes no VM: it has no devices.kubevirt.io/vhost-net"},
		{"no device, emulated", "n1>n2", changes{without("n1", deviceKVM), without("n1", deviceVhost), func(s *cluster.Snapshot) { s.KubeVirt.Emulation = true }}, ""},
		{"no tun, emulated", "n1>n2", changes{without("n1", deviceTun), func(s *cluster.Snapshot) { s.KubeVirt.Emulation = true }}, "node n1 takes no VM: it has no devices.kubevirt.io/tun"},
		{
			"no such bridge", "n1>n2", changes{config(kindBridge, ""), change("n1", func(n *cluster.Node) {
				n.Allocatable["bridge.network.kubevirt.io/br99"] = resource.MustParse("1k")
			})},
			"node n2 has no bridge br99 for network default/br10 (no resource bridge.network.kubevirt.io/br99)",
		},
		{
			"no such bridge anywhere, as the network says", "n1>n2",
			changes{config(kindBridge, "bridge.network.kubevirt.io/br99"), without("n1", "bridge.network.kubevirt.io/br10"), without("n2", "bridge.network.kubevirt.io/br10"), without("n3", "bridge.network.kubevirt.io/br10")},
			"node n1 has no bridge br99 for network default/br10 (no resource bridge.network.kubevirt.io/br99); node n2 has no bridge br99 for network default/br10 (no resource bridge.network.kubevirt.io/br99)",
		},
		{
			"bridges that nobody reports", "n1>n2",
			changes{config(kindBridge, ""), without("n1", "bridge.network.kubevirt.io/br10"), without("n2", "bridge.network.kubevirt.io/br10"), without("n3", "bridge.network.kubevirt.io/br10")}, "",
		},
		{"another plugin's bridges", "n1>n2", changes{config(`{"type": "ovs", "bridge": "br99"}`, "")}, ""},
		{
			"a bridge of Open vSwitch", "n1>n2", changes{config(`{"type": "ovs", "bridge": "br99"}`, "ovs-cni.network.kubevirt.io/br99")},
			"node n1 has no bridge br99 for network default/br10 (no resource ovs-cni.network.kubevirt.io/br99); node n2 has no bridge br99 for network default/br10 (no resource ovs-cni.network.kubevirt.io/br99)",
		},
		{"SR-IOV", "n1>n2", changes{config(sriov, "example.com/nic"), func(s *cluster.Snapshot) {
			s.Nodes[0], s.Nodes[1] = node("n1", "example.com/nic"), node("n2", "example.com/nic")
		}}, ""},
		{
			"SR-IOV without devices", "n1>n2", changes{config(sriov, "example.com/nic"), func(s *cluster.Snapshot) { s.Nodes[0] = node("n1", "example.com/nic") }},
			"node n2 has no example.com/nic, which network default/br10 requires",
		},
		{
			"SR-IOV without a resource", "n1>n2", changes{config(sriov, "")},
			"network default/br10 is of type sriov, but has no annotation k8s.v1.cni.cncf.io/resourceName: VMs would get no device",
		},
		{
			"OVN-Kubernetes assigns the addresses", "n1>n2",
			changes{config(`{"type": "ovn-k8s-cni-overlay", "topology": "layer2", "subnets": "10.100.200.0/24"}`, "")},
			"network default/br10 cannot be measured: it has subnets, from which OVN-Kubernetes assigns the addresses: its port security drops packets from the addresses that a check assigns: measure a network without subnets",
		},
		{
			"a primary user-defined network", "n1>n2",
			changes{config(`{"type": "ovn-k8s-cni-overlay", "topology": "layer2", "role": "primary", "subnets": "10.100.0.0/16"}`, "")},
			"network default/br10 cannot be measured: it is a primary user-defined network, to which VMs cannot be attached as to a secondary network: measure a network with the role secondary, without subnets",
		},
		{"OVN-Kubernetes without subnets", "n1>n2", changes{config(`{"type": "ovn-k8s-cni-overlay", "topology": "localnet"}`, "")}, ""},
		{
			"one node for VMs", "", changes{change("n1", func(n *cluster.Node) { n.Unschedulable = true }), without("n3", "bridge.network.kubevirt.io/br10")},
			"a pair needs two nodes, but only 1 of 3 can take a VM on network default/br10: node n1 is cordoned (spec.unschedulable), node n3 has no bridge br10 for network default/br10 (no resource bridge.network.kubevirt.io/br10)",
		},
		{"one node in all", "", changes{func(s *cluster.Snapshot) { s.Nodes = s.Nodes[:1] }}, "a pair needs two nodes, but only 1 of 1 can take a VM on network default/br10"},
		{
			"many nodes without", "", changes{func(s *cluster.Snapshot) {
				s.Nodes = nil
				for i := range 8 {
					n := node(fmt.Sprint("m", i))
					n.Ready = corev1.ConditionFalse
					s.Nodes = append(s.Nodes, n)
				}
			}},
			"a pair needs two nodes, but only 0 of 8 can take a VM on network default/br10: node m0 is not ready, node m1 is not ready, node m2 is not ready, node m3 is not ready, node m4 is not ready, and 3 more",
		},
		{"nodes that could not be listed", "n8>n9", changes{func(s *cluster.Snapshot) { s.Nodes = nil; s.AddUnseen(cluster.Nodes, fmt.Errorf("no right")) }}, ""},
		{"any nodes, which could not be listed", "", changes{func(s *cluster.Snapshot) { s.Nodes = nil; s.AddUnseen(cluster.Nodes, fmt.Errorf("no right")) }}, ""},
		{
			"several at once", "n1>n9", changes{
				kubeVirt(cluster.KubeVirt{Served: true, Object: "kubevirt/kubevirt", Phase: "Deploying"}),
				change("n1", func(n *cluster.Node) { n.Unschedulable, n.Ready = true, corev1.ConditionFalse }), config(`{}`, ""),
			},
			"KubeVirt kubevirt/kubevirt is not ready: phase Deploying; network default/br10 cannot be used: its config has neither type nor plugins; node n1 is cordoned (spec.unschedulable); node n1 is not ready; node n9 does not exist",
		},
		{"no range left", "n1>n2", changes{func(s *cluster.Snapshot) {
			s.Ranges = append(s.Ranges, blocks...)
			s.Ranges = append(s.Ranges, netip.MustParsePrefix("fd00::/8"))
		}}, "no free IPv4 range for the guests: the cluster and the network's config use all of 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 198.18.0.0/15; no free IPv6 range for the guests: the cluster and the network's config use all of fd00::/8"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := vmCheck()
			if tt.pairs != "" {
				nodes(tt.pairs)(v)
			}
			w, _ := expanded(t, v, vmCluster(tt.changes...))
			for _, e := range w.Sources {
				got := ""
				if e.Cause != nil {
					got = e.Cause.String()
				}
				want := tt.want
				if want != "" {
					want = "setup: " + want
				}
				if got != want {
					t.Errorf("%s:\n%s\nwant\n%s", e.Name(), got, want)
				}
			}
			for i, e := range Roster(nil, w, nil).Targets {
				if e.Cause != w.Sources[i].Cause || e.Pod != "" {
					t.Errorf("roster: %+v", e)
				}
			}
		})
	}
}

// TestOnePairFails: a prerequisite that fails for one pair does not stop the others.
func TestOnePairFails(t *testing.T) {
	w, _ := expanded(t, vmCheck(nodes("n1>n9", "n1>n2")), vmCluster())
	for i, e := range w.Sources {
		if (e.Cause == nil) != (i >= 2) {
			t.Errorf("%s: %v", e.Name(), e.Cause)
		}
	}
}

func TestWarnings(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*cluster.Snapshot)
		pairs  string
		want   []string
	}{
		"none":                     {func(*cluster.Snapshot) {}, "n1>n2", nil},
		"both VMs on one node":     {func(*cluster.Snapshot) {}, "n1>n1", []string{"both VMs of the pair n1 to n1 are on one node: the network between nodes is not measured"}},
		"KubeVirt unread":          {func(s *cluster.Snapshot) { s.KubeVirt = &cluster.KubeVirt{Served: true, Unread: "no right"} }, "n1>n2", []string{"cannot read whether KubeVirt is ready: no right"}},
		"a network without config": {config("", ""), "n1>n2", []string{"network default/br10 has no config: it is in a file on the nodes: VMs are bound by a bridge, and the config is not checked before the run"}},
		"macvlan": {config(`{"type": "macvlan", "master": "eth1"}`, ""), "n1>n2", []string{
			"network default/br10 may lose everything between VMs although it works: type macvlan discards frames for other MAC addresses than that of its own interface, and a VM that is bound by a bridge has another",
		}},
		"layer 3": {config(`{"type": "ptp"}`, ""), "n1>n2", []string{
			"network default/br10 may lose everything between VMs although it works: type ptp routes to the addresses that its IPAM assigned, and a check assigns other ones",
		}},
		"macvlan behind SR-IOV":    {config(`{"plugins": [{"type": "macvlan"}, {"type": "sriov"}]}`, "example.com/nic"), "n1>n2", nil},
		"a network that is broken": {config("{}", ""), "n1>n2", nil},
	} {
		if _, got := expanded(t, vmCheck(nodes(tt.pairs)), vmCluster(tt.change)); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestExpandRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		plan *Spec
		s    *cluster.Snapshot
		want string
	}{
		"another kind":       {nil, vmCluster(), `check "vms": plan p has no vmLatency check of that name`},
		"nothing to measure": {&Spec{}, vmCluster(), "check \"vms\": networks: empty: want at least one\nipFamilies: empty: want at least one\nduration 0s, interval 0s: no measurement"},
		"a snapshot for another plan": {vmCheck(), vmCluster(func(s *cluster.Snapshot) { s.KubeVirt = nil }),
			`check "vms": the snapshot has no data about KubeVirt and network default/br10: record it again with this plan`},
		"a snapshot for another network": {vmCheck(), vmCluster(func(s *cluster.Snapshot) { s.Networks = nil }),
			`check "vms": the snapshot has no data about KubeVirt and network default/br10: record it again with this plan`},
	} {
		plan := &checkup.Plan{Name: "p", Checks: map[string]checkup.Check{"vms": {}}}
		if tt.plan != nil {
			plan.Checks["vms"] = checkup.Check{Spec: tt.plan}
		}
		if _, _, err := Expand(plan, "vms", tt.s); err == nil || err.Error() != tt.want {
			t.Errorf("%s:\n%v\nwant\n%s", name, err, tt.want)
		}
	}
}

// TestAddresses is the property of addresses, for any cluster, network and plan:
// in their pair's own prefix; never in a range of the cluster or of the network;
// never the same for two pairs or for two runs; the same for the same run.
func TestAddresses(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 7))
	within := func(p string) netip.Prefix {
		prefix := netip.MustParsePrefix(p)
		b := prefix.Addr().AsSlice()
		for i := range b {
			b[i] |= byte(r.Uint32()) &^ mask(prefix.Bits(), i)
		}
		a, _ := netip.AddrFromSlice(b)
		return netip.PrefixFrom(a, min(a.BitLen(), prefix.Bits()+4+r.IntN(24))).Masked()
	}
	usual := []string{"10.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fd00::/8"}
	macs, prefixes := map[string]string{}, map[netip.Prefix]string{}
	for run := range 300 {
		s := vmCluster(func(s *cluster.Snapshot) { s.Run = fmt.Sprint("run-", run) })
		var all, given []string
		for i := range s.Nodes {
			n := &s.Nodes[i]
			n.PodCIDRs = []string{within(usual[r.IntN(len(usual))]).String(), within("fd00::/8").String()}
			n.InternalIPs = []string{within(usual[r.IntN(3)]).Addr().String()}
			given = append(given, n.PodCIDRs...)
			given = append(given, n.InternalIPs...)
		}
		for range r.IntN(3) {
			p := within(usual[r.IntN(len(usual))])
			s.Ranges = append(s.Ranges, p)
			given = append(given, p.String())
		}
		ipam := within(usual[r.IntN(3)])
		given = append(given, ipam.String())
		text, err := json.Marshal(map[string]any{"type": "bridge", "bridge": "br10", "ipam": map[string]any{"type": "host-local", "ranges": [][]any{{map[string]any{"subnet": ipam.String()}}}}})
		if err != nil {
			t.Fatal(err)
		}
		s.Networks[0].Config = string(text)
		for _, text := range given {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				a := netip.MustParseAddr(text)
				p = netip.PrefixFrom(a, a.BitLen())
			}
			all = append(all, p.String())
		}
		v := vmCheck(nodes("n1>n2", "n2>n1", "n1>n3", "n3>n1", "n2>n3"))
		w, _ := expanded(t, v, s)
		again, _ := expanded(t, v, s)
		if diff := cmp.Diff(w, again); diff != "" {
			t.Fatalf("not the same for the same run:\n%s", diff)
		}
		for i, e := range w.Sources {
			at := fmt.Sprintf("run %d, VM %d", run, i)
			if e.Cause != nil {
				t.Fatalf("%s: %v, with %s", at, e.Cause, all)
			}
			mac, err := net.ParseMAC(e.VM.MAC)
			if err != nil || len(mac) != 6 || mac[0]&3 != 2 {
				t.Errorf("%s: MAC %s (%v), want a unicast and locally administered one", at, e.VM.MAC, err)
			}
			if other, ok := macs[e.VM.MAC]; ok {
				t.Errorf("%s: MAC %s is that of %s, too", at, e.VM.MAC, other)
			}
			macs[e.VM.MAC] = at
			for _, family := range checkup.IPFamilies {
				own, unused := netip.MustParsePrefix(e.VM.Addresses[family]), netip.MustParsePrefix(e.VM.Unused[family])
				other := netip.MustParsePrefix(w.Sources[i^1].VM.Addresses[family])
				if own.Masked() != other.Masked() || own.Masked() != unused.Masked() || own == other || own == unused || other == unused {
					t.Errorf("%s: own %s, the other VM's %s, unused %s; want three in one prefix", at, own, other, unused)
				}
				if is4 := family == checkup.IPv4; own.Addr().Is4() != is4 || is4 && own.Bits() != 29 || !is4 && own.Bits() != 64 {
					t.Errorf("%s: %s of family %s", at, own, family)
				}
				if first := own.Masked().Addr(); own.Addr() == first || unused.Addr() == first || !own.Addr().IsPrivate() && !blocks[3].Overlaps(own) {
					t.Errorf("%s: %s is no host's, or not of a private range", at, own)
				}
				for _, text := range all {
					if own.Masked().Overlaps(netip.MustParsePrefix(text)) {
						t.Errorf("%s: %s is in %s, which the cluster or the network uses", at, own, text)
					}
				}
				pair := fmt.Sprintf("run %d, pair %d", run, i/2)
				if had, ok := prefixes[own.Masked()]; ok && had != pair {
					t.Errorf("%s: %s is that of %s, too", pair, own.Masked(), had)
				}
				prefixes[own.Masked()] = pair
			}
		}
	}
}

// mask is byte i of the mask of so many bits.
func mask(bits, i int) byte {
	return byte(uint(0xff00) >> min(8, max(0, bits-8*i)))
}

// TestAddressesOfOneFamily: no other is given.
func TestAddressesOfOneFamily(t *testing.T) {
	for _, family := range checkup.IPFamilies {
		w, _ := expanded(t, vmCheck(func(v *Spec) { v.IPFamilies = []checkup.IPFamily{family} }), vmCluster())
		for _, e := range w.Sources {
			if len(e.VM.Addresses) != 1 || e.VM.Addresses[family] == "" || len(e.VM.Unused) != 1 || e.VM.Unused[family] == "" {
				t.Errorf("%s: %+v", family, e.VM)
			}
		}
		if !slices.Equal(w.IPFamilies, []checkup.IPFamily{family}) {
			t.Errorf("families %v", w.IPFamilies)
		}
	}
}

// TestChecksAtOnce: two checks of one run share no address either.
func TestChecksAtOnce(t *testing.T) {
	plan := &checkup.Plan{Name: "p", Checks: map[string]checkup.Check{"a": {Spec: vmCheck()}, "b": {Spec: vmCheck()}}}
	seen := map[string]bool{}
	for _, check := range plan.CheckNames() {
		w, _, err := Expand(plan, check, vmCluster())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range w.Sources {
			for _, text := range []string{e.VM.MAC, e.VM.Addresses[checkup.IPv4], e.VM.Addresses[checkup.IPv6]} {
				if seen[text] {
					t.Errorf("duplicate: %s", text)
				}
				seen[text] = true
			}
		}
	}
}
