// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	schedulingcorev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	kjson "sigs.k8s.io/json"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// admission is what a placement makes of the nodes of a cluster.
type admission struct {
	nodes    []cluster.Node // admitted, in the snapshot's order
	excluded []exclusion
}

// exclusion is one reason why nodes are left out.
type exclusion struct {
	what  string // continues "3 nodes ..."; of one node, "1 node ..."
	nodes []string
}

// admit decides for each node whether a pod with the placement's nodeSelector
// and affinity and with these tolerations could be scheduled to it, as
// Kubernetes' scheduler does: labels and name by NodeAffinity, taints of effect
// NoSchedule and NoExecute by TaintToleration. An unschedulable node is decided
// by its taint, which the API server's node controller adds and which fixtures
// tolerate.
func admit(nodes []cluster.Node, p checkup.Placement, tolerations []checkup.Toleration, at *field.Path) (admission, error) {
	affinity, err := affinityOf(p, at)
	if err != nil {
		return admission{}, err
	}
	tolerated := make([]corev1.Toleration, len(tolerations))
	for i, t := range tolerations {
		tolerated[i] = corev1.Toleration{
			Key: t.Key, Operator: corev1.TolerationOperator(t.Operator), Value: t.Value,
			Effect: corev1.TaintEffect(t.Effect), TolerationSeconds: t.TolerationSeconds,
		}
	}
	bySelector := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: corev1.PodSpec{NodeSelector: p.NodeSelector}})
	byAffinity := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: affinity}}})
	decides := func(t *corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	}
	keys := selectiveFirst(nodes, p.NodeSelector)

	var a admission
	excluded := map[string][]string{}
	var reasons []string
	exclude := func(n cluster.Node, what string) {
		if _, ok := excluded[what]; !ok {
			reasons = append(reasons, what)
		}
		excluded[what] = append(excluded[what], n.Name)
	}
	for _, n := range nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}}
		if ok, err := bySelector.Match(node); err != nil || !ok {
			i := slices.IndexFunc(keys, func(key string) bool { v, ok := n.Labels[key]; return !ok || v != p.NodeSelector[key] })
			exclude(n, fmt.Sprintf("without label %s=%s (%s)", keys[i], p.NodeSelector[keys[i]], at.Child("nodeSelector")))
		} else if ok, err := byAffinity.Match(node); err != nil || !ok {
			exclude(n, fmt.Sprintf("not matched by the affinity (%s)", at.Child("affinity")))
		} else if taint, found := schedulingcorev1.FindMatchingUntoleratedTaint(klog.Background(), n.Taints, tolerated, decides, false); found {
			exclude(n, fmt.Sprintf("with taint %s, which %s does not tolerate", taint.ToString(), at.Child("tolerations")))
		} else {
			a.nodes = append(a.nodes, n)
		}
	}
	for _, what := range reasons {
		a.excluded = append(a.excluded, exclusion{what, excluded[what]})
	}
	slices.SortStableFunc(a.excluded, func(x, y exclusion) int {
		return cmp.Or(cmp.Compare(len(y.nodes), len(x.nodes)), cmp.Compare(x.what, y.what))
	})
	return a, nil
}

// selectiveFirst returns the keys of a node selector, those that match the
// fewest nodes first: a key that matches nothing is then the one that is told.
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

// affinityOf reads the placement's affinity, and reports every part of it that
// Kubernetes would refuse.
func affinityOf(p checkup.Placement, at *field.Path) (*corev1.NodeAffinity, error) {
	if len(p.Affinity) == 0 {
		return nil, nil
	}
	at = at.Child("affinity")
	var affinity *corev1.NodeAffinity
	problems, err := kjson.UnmarshalStrict(p.Affinity, &affinity)
	if err == nil && len(problems) > 0 {
		err = problems[0]
	}
	if err != nil {
		return nil, fmt.Errorf("%s: not a Kubernetes NodeAffinity: %w", at, err)
	}
	if affinity == nil || affinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil, nil
	}
	required := at.Child("requiredDuringSchedulingIgnoredDuringExecution")
	if _, err := nodeaffinity.NewNodeSelector(affinity.RequiredDuringSchedulingIgnoredDuringExecution, field.WithPath(required)); err != nil {
		return nil, err
	}
	return affinity, nil
}

// String says how many nodes are left out, and why: "2 nodes with taint ...;
// 1 node without label ...".
func (a admission) String() string {
	parts := make([]string, len(a.excluded))
	for i, e := range a.excluded {
		parts[i] = plural(len(e.nodes), "node") + " " + e.what
	}
	return strings.Join(parts, "; ")
}

// fixtureTolerations returns the tolerations of a fixture pod: the placement's,
// and those that the DaemonSet controller gives to its pods
// (AddOrUpdateDaemonPodTolerations in Kubernetes' pkg/controller/daemon/util),
// with two differences.
//
// A node that is not ready or unreachable carries two taints of that name, of
// effect NoExecute and NoSchedule. The DaemonSet controller tolerates the first
// only: its pods stay on such a node, but none is started there. A check would
// then lose just the nodes that are broken, so fixtures tolerate both.
//
// The toleration for node.kubernetes.io/network-unavailable, which a DaemonSet
// has for pods in the host's network only, is left out, as a fixture is in the
// pod network, which such a node is known not to have. Expand warns of nodes
// that are left out by it.
//
// A placement that tolerates everything needs none of them.
func fixtureTolerations(placement []checkup.Toleration) []checkup.Toleration {
	exists := string(corev1.TolerationOpExists)
	if slices.ContainsFunc(placement, func(t checkup.Toleration) bool {
		return t.Key == "" && t.Operator == exists && t.Effect == ""
	}) {
		return placement
	}
	tolerations := slices.Clone(placement)
	for _, t := range []checkup.Toleration{
		{Key: corev1.TaintNodeNotReady, Operator: exists},
		{Key: corev1.TaintNodeUnreachable, Operator: exists},
		{Key: corev1.TaintNodeDiskPressure, Operator: exists, Effect: string(corev1.TaintEffectNoSchedule)},
		{Key: corev1.TaintNodeMemoryPressure, Operator: exists, Effect: string(corev1.TaintEffectNoSchedule)},
		{Key: corev1.TaintNodePIDPressure, Operator: exists, Effect: string(corev1.TaintEffectNoSchedule)},
		{Key: corev1.TaintNodeUnschedulable, Operator: exists, Effect: string(corev1.TaintEffectNoSchedule)},
	} {
		if !slices.ContainsFunc(tolerations, func(have checkup.Toleration) bool {
			have.TolerationSeconds = nil
			return have == t
		}) {
			tolerations = append(tolerations, t)
		}
	}
	return tolerations
}

// plural counts things: "1 node", "2 nodes".
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// some names the first few of many.
func some(names []string) string {
	const few = 5
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}
