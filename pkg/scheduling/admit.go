// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// Admission lists the nodes of a cluster that match a placement, and the others with their reasons.
type Admission struct {
	// Nodes are admitted, in the snapshot's order.
	Nodes []cluster.Node

	excluded []exclusion
}

// exclusion is one reason why nodes are excluded.
type exclusion struct {
	what  string // continues "3 nodes ..."; of one node, "1 node ..."
	nodes []string
}

// Admit decides for each node, by labels, name and taints, whether a pod with the placement's nodeSelector and affinity
// and with these tolerations could be scheduled to it. The other predicates of the scheduler are ignored: a full node
// is expected, and its pairs are unmeasured. Of several reasons, the first of nodeSelector, affinity and tolerations is
// reported.
func Admit(
	nodes []cluster.Node,
	p checkup.Placement,
	tolerations []checkup.Toleration,
	at *field.Path,
) (Admission, error) {
	affinity, err := Affinity(p.Affinity, at.Child("affinity"))
	if err != nil {
		return Admission{}, err
	}
	demands := NewDemands(&corev1.Pod{Spec: corev1.PodSpec{
		NodeSelector: p.NodeSelector,
		Affinity:     &corev1.Affinity{NodeAffinity: affinity},
		Tolerations:  Tolerations(tolerations),
	}})
	keys := selectiveFirst(nodes, p.NodeSelector)
	what := func(r Reason) (order int, what string) {
		switch {
		case r.Predicate == NodeAffinity && r.Key != "":
			return slices.Index(
					keys,
					r.Key,
				), fmt.Sprintf(
					"without label %s=%s (%s)",
					r.Key,
					p.NodeSelector[r.Key],
					at.Child("nodeSelector"),
				)
		case r.Predicate == NodeAffinity:
			return len(keys), fmt.Sprintf("not matched by the affinity (%s)", at.Child("affinity"))
		case r.Predicate == TaintToleration:
			return len(keys) + 1, fmt.Sprintf("with taint %s, which %s does not tolerate", r.Key, at.Child("tolerations"))
		}
		return len(keys) + 2, ""
	}

	var a Admission
	excluded := map[string][]string{}
	for i := range nodes {
		first, because := len(keys)+2, ""
		for _, r := range demands.Reasons(&nodes[i]) {
			if order, what := what(r); order < first {
				first, because = order, what
			}
		}
		if because == "" {
			a.Nodes = append(a.Nodes, nodes[i])
		} else {
			excluded[because] = append(excluded[because], nodes[i].Name)
		}
	}
	for what, nodes := range excluded {
		a.excluded = append(a.excluded, exclusion{what, nodes})
	}
	slices.SortFunc(a.excluded, func(x, y exclusion) int {
		return cmp.Or(cmp.Compare(len(y.nodes), len(x.nodes)), cmp.Compare(x.what, y.what))
	})
	return a, nil
}

// selectiveFirst returns the keys of a node selector, those that match the fewest nodes first: a key that matches no
// node is then the reported one.
func selectiveFirst(nodes []cluster.Node, selector map[string]string) []string {
	matches := map[string]int{}
	for key, value := range selector {
		for _, n := range nodes {
			if v, ok := n.Labels[key]; ok && v == value {
				matches[key]++
			}
		}
	}
	return slices.SortedFunc(maps.Keys(selector), func(a, b string) int {
		return cmp.Or(cmp.Compare(matches[a], matches[b]), cmp.Compare(a, b))
	})
}

// Complete reports whether no node was excluded.
func (a Admission) Complete() bool { return len(a.excluded) == 0 }

// String returns how many nodes are excluded, and why: "2 nodes with taint ...; 1 node without label ...".
func (a Admission) String() string {
	parts := make([]string, len(a.excluded))
	for i, e := range a.excluded {
		parts[i] = checkup.Count(len(e.nodes), "node") + " " + e.what
	}
	return strings.Join(parts, "; ")
}
