// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/cluster"
)

// Outcome lists the nodes that a pod could be scheduled to. Its fields are those of a checkup.PlacementSide.
type Outcome struct {
	// Eligible nodes, in the order of the nodes.
	Eligible []string
	// Rejected nodes by their reasons, the largest group first.
	Rejected []NodeGroup
	// Later are eligible nodes from which the pod would be evicted later, by a NoExecute taint that it tolerates for
	// a limited time.
	Later []NodeGroup
	// Contradictions explain why no node is eligible: demands that no node meets, and combinations of demands that
	// no node meets. Empty if a node is eligible.
	Contradictions []string
	// Unknown are predicates that could not be evaluated on nodes that are counted as eligible.
	Unknown []string
}

// Place predicts which nodes a pod could be scheduled to. For a DaemonSet, which runs a pod on each eligible node, pass
// the pod that DaemonSetPod returns.
func Place(pod *corev1.Pod, nodes []cluster.Node) Outcome {
	d := NewDemands(pod)
	var o Outcome
	var rejected, later groups
	unknown := map[string][]string{}
	reasons := make([][]Reason, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		if reasons[i] = d.Reasons(n); len(reasons[i]) > 0 {
			rejected.add(n.Name, reasons[i])
			continue
		}
		o.Eligible = append(o.Eligible, n.Name)
		for _, predicate := range d.unknown(n) {
			unknown[predicate] = append(unknown[predicate], n.Name)
		}
		if r, ok := d.later(n); ok {
			later.add(n.Name, []Reason{r})
		}
	}
	o.Rejected, o.Later = rejected.sorted(), later.sorted()
	if len(o.Eligible) == 0 {
		o.Contradictions = d.contradictions(nodes, reasons)
	}
	o.Unknown = unknownLines(unknown)
	return o
}

// later reports whether a taint would evict the pod from the node later, and the reason.
func (d *Demands) later(n *cluster.Node) (Reason, bool) {
	seconds, taint := staysFor(d.tolerations, n.Taints)
	if taint == nil {
		return Reason{}, false
	}
	return Reason{NodeReason: NodeReason{
		Predicate: TaintToleration, Message: fmt.Sprintf("evicted after %ds by taint %s", seconds, taint.ToString()),
	}}, true
}

// unknownLines lists the predicates that could not be evaluated, with their nodes.
func unknownLines(unknown map[string][]string) []string {
	var lines []string
	for _, u := range []struct{ predicate, what string }{
		{NodePorts, "used host ports"}, {NodeResourcesFit, "resource requests"},
	} {
		if on := unknown[u.predicate]; len(on) > 0 {
			lines = append(lines, fmt.Sprintf("%s: the snapshot has no %s of %s", u.predicate, u.what, some(on)))
		}
	}
	return lines
}

// groups are nodes by their reasons.
type groups struct {
	index map[string]int
	all   []group
}

type group struct {
	reasons []Reason
	most    []int64 // the largest missing amount of each reason; reasons hold the smallest
	nodes   []string
}

// add adds a node to the group with the same reasons. Missing amounts of resources may differ within a group.
func (g *groups) add(node string, reasons []Reason) {
	var key strings.Builder
	for _, r := range reasons {
		key.WriteString(r.Predicate)
		key.WriteByte(0)
		key.WriteString(r.Key)
		key.WriteByte(0)
		if r.short == 0 {
			key.WriteString(r.Message)
		}
		key.WriteByte(0)
	}
	i, ok := g.index[key.String()]
	if !ok {
		if g.index == nil {
			g.index = map[string]int{}
		}
		i = len(g.all)
		g.index[key.String()] = i
		x := group{reasons: slices.Clone(reasons), most: make([]int64, len(reasons))}
		for j, r := range reasons {
			x.most[j] = r.short
		}
		g.all = append(g.all, x)
	}
	x := &g.all[i]
	x.nodes = append(x.nodes, node)
	for j, r := range reasons {
		have := &x.reasons[j]
		if have.Message == r.Message {
			continue
		}
		// The amounts differ: report their range.
		have.short, x.most[j] = min(have.short, r.short), max(x.most[j], r.short)
		name := corev1.ResourceName(r.Key)
		least, most := amountText(name, have.short), amountText(name, x.most[j])
		switch {
		case name == corev1.ResourcePods:
			have.Message = "can take no more pods"
		case least == most:
			have.Message = fmt.Sprintf("short of %s %s: requests %s", least, name, have.want)
		default:
			have.Message = fmt.Sprintf("short of %s to %s %s: requests %s", least, most, name, have.want)
		}
	}
}

// sorted returns the groups, the largest first.
func (g *groups) sorted() []NodeGroup {
	var all []NodeGroup
	for _, x := range g.all {
		group := NodeGroup{Nodes: x.nodes}
		for _, r := range x.reasons {
			group.Reasons = append(group.Reasons, r.NodeReason)
		}
		all = append(all, group)
	}
	slices.SortStableFunc(all, func(a, b NodeGroup) int {
		byMessage := func(a, b NodeReason) int { return cmp.Compare(a.Message, b.Message) }
		return cmp.Or(cmp.Compare(len(b.Nodes), len(a.Nodes)), slices.CompareFunc(a.Reasons, b.Reasons, byMessage))
	})
	return all
}

// some lists the names of the first few nodes, and the number of all.
func some(names []string) string {
	const few = 3
	switch {
	case len(names) == 1:
		return "node " + names[0]
	case len(names) <= few:
		return "nodes " + strings.Join(names, ", ")
	}
	return fmt.Sprintf("%d nodes (%s and %d more)", len(names), strings.Join(names[:few], ", "), len(names)-few)
}

// NodeGroup is nodes that share their reasons.
type NodeGroup struct {
	// Reasons are one line each, every one of them true of each node.
	Reasons []NodeReason `json:"reasons"`
	Nodes   []string     `json:"nodes"`
}

// NodeReason is one reason why a node does not take a pod.
type NodeReason struct {
	// Predicate is the name of the scheduler's plugin that rejects: NodeAffinity,
	// TaintToleration, NodeUnschedulable, NodeResourcesFit, NodePorts,
	// PodTopologySpread, NodeName.
	Predicate string `json:"predicate"`
	// Scheduler is what the scheduler would write to the pod's condition PodScheduled,
	// such as "Insufficient cpu".
	Scheduler string `json:"scheduler"`
	// Message says it in full: which key, which taint, how much is missing.
	Message string `json:"message"`
}
