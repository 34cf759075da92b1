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

// Landing is what becomes of pods of which each is for one node.
type Landing struct {
	// Scheduled is how many would be scheduled to their nodes.
	Scheduled int `json:"scheduled"`
	// Pending are those that would not, by their reasons.
	Pending []PodGroup `json:"pending,omitempty"`
	// Later are those that would be, and evicted again.
	Later []PodGroup `json:"later,omitempty"`
	// Unknown are predicates that could not be evaluated on the nodes of pods that
	// count as scheduled.
	Unknown []string `json:"unknown,omitempty"`
}

// PodGroup is pods of one role that share their reasons, by their nodes.
type PodGroup struct {
	Role checkup.Role `json:"role"` // as their label checkplan.dev/role tells
	NodeGroup
}

// Land predicts what becomes of pods that each are bound by their affinity to
// the name of one node, as those of fixtures are. They are scheduled one after
// the other: what one takes of its node the next ones do not have. Nil pods are
// passed over.
func Land(pods []*corev1.Pod, nodes []cluster.Node) Landing {
	var l Landing
	index := map[string]int{}
	for i, n := range nodes {
		index[n.Name] = i
	}
	room := map[string]*cluster.Node{} // copies of nodes on which there are pods of ours by now
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
			add(pending, pod, name, []Reason{{NodeReason: NodeReason{Predicate: NodeAffinity, Scheduler: saysPinned, Message: fmt.Sprintf("there is no node %q", name)}}})
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

// take takes of a node what the pod requests of it, where it is known what is
// requested there already.
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
	n.Requested[corev1.ResourcePods] = *resource.NewQuantity(amountOf(n.Requested, corev1.ResourcePods)+1, resource.DecimalSI)
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
