// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// Landing is the predicted scheduling of pods that are each bound to one node.
type Landing struct {
	// Scheduled is the number of pods that would be scheduled to their nodes.
	Scheduled int `json:"scheduled"`
	// Pending are the pods that would not be scheduled, by their reasons.
	Pending []PodGroup `json:"pending,omitempty"`
	// Later are the pods that would be scheduled and evicted later.
	Later []PodGroup `json:"later,omitempty"`
	// Unknown are predicates that could not be evaluated on the nodes of pods that count as scheduled.
	Unknown []string `json:"unknown,omitempty"`
}

// PodGroup is a group of pods of one role with the same reasons, listed by their nodes.
type PodGroup struct {
	Role checkup.Role `json:"role"` // the value of their label checkplan.dev/role
	NodeGroup
}

// Land predicts the scheduling of pods that are each bound to one node by an affinity on its name, as fixtures are.
// They are scheduled in order: resources and ports that a pod takes are not available to the pods after it. Nil pods
// are skipped.
func Land(pods []*corev1.Pod, nodes []cluster.Node) Landing {
	var l Landing
	index := map[string]int{}
	for i, n := range nodes {
		index[n.Name] = i
	}
	room := map[string]*cluster.Node{} // copies of the nodes, with the pods that were scheduled so far
	pending, later := map[checkup.Role]*groups{}, map[checkup.Role]*groups{}
	add := func(to map[checkup.Role]*groups, pod *corev1.Pod, node string, reasons []Reason) {
		role := checkup.Role(pod.Labels[checkup.LabelRole])
		if to[role] == nil {
			to[role] = &groups{}
		}
		to[role].add(node, reasons)
	}
	unknown, noted := map[string][]string{}, map[[2]string]bool{}
	for _, pod := range pods {
		if pod == nil {
			continue
		}
		d := NewDemands(pod)
		name := ""
		for pinned := range d.pinned {
			name = pinned
		}
		i, ok := index[name]
		if !ok || len(d.pinned) != 1 {
			add(pending, pod, name, []Reason{{NodeReason: NodeReason{
				Predicate: NodeAffinity, Scheduler: saysPinned, Message: fmt.Sprintf("node %q does not exist", name),
			}}})
			continue
		}
		n := room[name]
		if n == nil {
			n = new(nodes[i])
			n.Requested, n.HostPorts = maps.Clone(n.Requested), slices.Clone(n.HostPorts)
			room[name] = n
		}
		if reasons := d.Reasons(n); len(reasons) > 0 {
			add(pending, pod, name, reasons)
			continue
		}
		l.Scheduled++
		if r, ok := d.later(n); ok {
			add(later, pod, name, []Reason{r})
		}
		for _, predicate := range d.unknown(n) {
			if key := [2]string{predicate, name}; !noted[key] {
				noted[key] = true
				unknown[predicate] = append(unknown[predicate], name)
			}
		}
		d.take(n)
	}
	l.Pending, l.Later, l.Unknown = byRole(pending), byRole(later), unknownLines(unknown)
	return l
}

// take adds the pod's requests and ports to those of a node. It does nothing if the requests on the node are unknown.
func (d *Demands) take(n *cluster.Node) {
	if n.Requested == nil {
		return
	}
	for _, r := range d.requests {
		amount := amountOf(n.Requested, r.name) + r.amount
		if r.name == corev1.ResourceCPU {
			n.Requested[r.name] = *resource.NewMilliQuantity(amount, resource.DecimalSI)
		} else {
			n.Requested[r.name] = *resource.NewQuantity(amount, resource.BinarySI)
		}
	}
	pods := amountOf(n.Requested, corev1.ResourcePods) + 1
	n.Requested[corev1.ResourcePods] = *resource.NewQuantity(pods, resource.DecimalSI)
	for _, p := range d.ports {
		n.HostPorts = append(n.HostPorts, p.HostPort)
	}
}

func byRole(groups map[checkup.Role]*groups) []PodGroup {
	var all []PodGroup
	for _, role := range slices.Sorted(maps.Keys(groups)) {
		for _, g := range groups[role].sorted() {
			all = append(all, PodGroup{role, g})
		}
	}
	return all
}
