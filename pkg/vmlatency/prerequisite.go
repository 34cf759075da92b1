// SPDX-License-Identifier: Apache-2.0

package vmlatency

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/scheduling"
)

const (
	labelZone = corev1.LabelTopologyZone
	// labelSchedulable is the label that KubeVirt's virt-handler sets on the nodes that take VMs (kubevirt.io/api
	// core/v1 NodeSchedulable).
	labelSchedulable = "kubevirt.io/schedulable"

	// Devices that virt-launcher pods request (kubevirt v1.7,
	// pkg/virt-controller/services getRequiredResources).
	deviceTun   = "devices.kubevirt.io/tun"
	deviceKVM   = "devices.kubevirt.io/kvm"
	deviceVhost = "devices.kubevirt.io/vhost-net"
)

// markers are the prefixes of the resources that announce the bridges of nodes, by the type of network: those of
// kubevirt/bridge-marker and of kubevirt/ovs-cni.
var markers = map[string]string{
	"bridge":     "bridge.network.kubevirt.io/",
	"cnv-bridge": "bridge.network.kubevirt.io/",
	"ovs":        "ovs-cni.network.kubevirt.io/",
}

// cordonTaint is the taint of a cordoned node, in addition to spec.unschedulable.
const cordonTaint = corev1.TaintNodeUnschedulable + ":" + string(corev1.TaintEffectNoSchedule)

// maxNodesNamed limits the nodes that are listed with their reasons if the plan names no nodes.
const maxNodesNamed = 5

// attachment is how VMs are attached to a network of a cluster.
type attachment struct {
	network
	ref      checkup.NetworkRef
	resource string
	// marker is the resource of nodes that have the bridge; empty if nodes do not announce their bridges.
	marker string
	// needs are the devices that a VM needs on its node.
	needs []string
	// ready reports that KubeVirt has labelled the nodes.
	ready bool
	// reasons why no VM can be started, one line each.
	reasons []string
}

// attach returns how VMs are attached to a network, or the reasons why they cannot be.
func attach(s *cluster.Snapshot, ref checkup.NetworkRef) attachment {
	n := attachment{ref: ref, network: network{binding: checkup.BindingBridge}, needs: []string{deviceTun}}
	if !s.KubeVirt.Emulation {
		n.needs = append(n.needs, deviceKVM, deviceVhost)
	}
	if reason := kubeVirtReason(s.KubeVirt); reason != "" {
		n.reasons = append(n.reasons, reason)
	}
	n.ready = len(n.reasons) == 0
	if !s.Multus {
		n.reasons = append(
			n.reasons,
			"Multus is not installed: the cluster does not serve k8s.cni.cncf.io/v1 (NetworkAttachmentDefinitions)",
		)
		return n
	}
	object := s.Network(ref)
	if object.Unread != "" {
		n.reasons = append(n.reasons, object.Unread)
		return n
	}
	var err error
	n.resource = object.Resource
	if n.network, err = parseNetwork(object.Config); err != nil {
		n.reasons = append(n.reasons, fmt.Sprintf("network %s cannot be used: %v", ref, err))
		return n
	}
	if n.unfit != "" {
		n.reasons = append(n.reasons, fmt.Sprintf("network %s cannot be measured: %s", ref, n.unfit))
	}
	if n.binding == checkup.BindingSRIOV && n.resource == "" {
		n.reasons = append(
			n.reasons,
			fmt.Sprintf(
				"network %s is of type sriov, but has no annotation k8s.v1.cni.cncf.io/resourceName: VMs would get no device",
				ref,
			),
		)
	}
	if prefix := markers[n.kind]; prefix != "" && n.bridge != "" {
		marked := func(node cluster.Node) bool {
			for name := range node.Allocatable {
				if strings.HasPrefix(string(name), prefix) {
					return true
				}
			}
			return false
		}
		if strings.HasPrefix(n.resource, prefix) || slices.ContainsFunc(s.Nodes, marked) {
			n.marker = prefix + n.bridge
		}
	}
	return n
}

// kubeVirtReason returns the reason why KubeVirt cannot start any VM; empty if it can.
func kubeVirtReason(k *cluster.KubeVirt) string {
	switch {
	case k.Unread != "" && k.Served:
		return "" // unknown: reported as a warning
	case k.Unread != "":
		return "KubeVirt is not ready: the cluster serves no VirtualMachineInstances; cannot read the cause: " + k.Unread
	case k.Object == "" && k.Message == "":
		return "KubeVirt is not installed: the cluster does not serve kubevirt.io/v1"
	case k.Object == "":
		return "KubeVirt is not installed: " + k.Message
	case !k.Ready:
		return strings.TrimSuffix(
			fmt.Sprintf("KubeVirt %s is not ready: phase %s: %s", k.Object, cmp.Or(k.Phase, "not reported yet"), k.Message),
			": ",
		)
	case !k.Served:
		return fmt.Sprintf("KubeVirt %s is not ready: the cluster serves no VirtualMachineInstances", k.Object)
	}
	return ""
}

// pairReasons returns the reasons why the nodes of a pair do not take its VMs; nil if the snapshot contains none.
func (n *attachment) pairReasons(s *cluster.Snapshot, pair checkup.NodePair) []string {
	if pair.Source == "" {
		return n.anyReasons(s)
	}
	nodes := []string{pair.Source, pair.Target}
	var reasons []string
	for _, name := range slices.Compact(nodes) {
		node := s.Node(name)
		if node == nil {
			reasons = append(reasons, fmt.Sprintf("node %s does not exist", name))
			continue
		}
		reasons = append(reasons, n.nodeReasons(node)...)
	}
	return reasons
}

// anyReasons returns the reason why there are no two nodes that take a VM; nil if there are.
func (n *attachment) anyReasons(s *cluster.Snapshot) []string {
	takes := 0
	var named []string
	for i := range s.Nodes {
		if reasons := n.nodeReasons(&s.Nodes[i]); len(reasons) > 0 {
			named = append(named, reasons[0])
		} else {
			takes++
		}
	}
	if takes >= 2 {
		return nil
	}
	reason := fmt.Sprintf(
		"a pair needs two nodes, but only %d of %d can take a VM on network %s",
		takes,
		len(s.Nodes),
		n.ref,
	)
	if more := len(named) - maxNodesNamed; more > 0 {
		named = append(named[:maxNodesNamed], fmt.Sprintf("and %d more", more))
	}
	if len(named) > 0 {
		reason += ": " + strings.Join(named, ", ")
	}
	return []string{reason}
}

// nodeReasons returns the reasons why a node does not take a VM.
func (n *attachment) nodeReasons(node *cluster.Node) []string {
	var reasons []string
	add := func(format string, args ...any) {
		reasons = append(reasons, "node "+node.Name+" "+fmt.Sprintf(format, args...))
	}
	tainted := false
	for _, r := range scheduling.NewDemands(&corev1.Pod{}).Reasons(node) {
		switch r.Predicate {
		case scheduling.NodeUnschedulable:
			add("is cordoned (spec.unschedulable)")
		case scheduling.TaintToleration:
			if r.Key == cordonTaint { // already reported
				continue
			}
			tainted = true
			add("takes no VM: %s", r.Message)
		case scheduling.NodeResourcesFit:
			add("is full: %s", r.Message)
		}
	}
	if node.Ready != corev1.ConditionTrue && !tainted {
		add("is not ready")
	}
	if n.ready {
		switch value, ok := node.Labels[labelSchedulable]; {
		case !ok:
			add("takes no VM: label %s is missing: KubeVirt's virt-handler does not run there", labelSchedulable)
		case value != "true":
			add("takes no VM: label %s=%s: KubeVirt's virt-handler is not ready there", labelSchedulable, value)
		default:
			for _, device := range n.needs {
				if !has(node, device) {
					add("takes no VM: it has no %s", device)
				}
			}
		}
	}
	if n.marker != "" && !has(node, n.marker) {
		add("has no bridge %s for network %s (no resource %s)", n.bridge, n.ref, n.marker)
	}
	if n.resource != "" && n.resource != n.marker && !has(node, n.resource) {
		add("has no %s, which network %s requires", n.resource, n.ref)
	}
	return reasons
}

// has reports whether a node has any allocatable amount of a resource.
func has(node *cluster.Node, resource string) bool {
	quantity, ok := node.Allocatable[corev1.ResourceName(resource)]
	return ok && quantity.Sign() > 0
}
