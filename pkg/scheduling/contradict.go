// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"cmp"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/checkplan/checkplan/pkg/cluster"
)

// contradictions explains why no node is eligible. reasons holds the reasons of each node; every node has at least
// one. It reports each minimal set of up to three demands that no node meets: for each demand of the set, some node
// meets all the others.
func (d *Demands) contradictions(nodes []cluster.Node, reasons [][]Reason) []string {
	if len(nodes) == 0 {
		return nil
	}
	var lines []string
	reported := map[uint64]bool{}
	for i, a := range d.all {
		for j, b := range d.all[i+1:] {
			if exclude(a.label, b.label) {
				reported[bitOf(i)|bitOf(i+1+j)] = true
				lines = append(lines, fmt.Sprintf("a node that %s never %s", a.met, b.met))
			}
		}
	}

	missed := make([]uint64, len(nodes)) // by node
	common, any := ^uint64(0), uint64(0)
	for i := range nodes {
		for _, r := range reasons[i] {
			missed[i] |= r.missed
		}
		common &= missed[i]
		any |= missed[i]
	}
	distinct := slices.Clone(missed)
	slices.Sort(distinct)
	distinct = slices.Compact(distinct)
	hits := func(set uint64) bool {
		return !slices.ContainsFunc(distinct, func(m uint64) bool { return m&set == 0 })
	}
	found := []uint64{}
	for common := common; common != 0; common &= common - 1 {
		found = append(found, common&-common)
	}
	rest := bitsOf(any &^ common)
	for i, a := range rest {
		for _, b := range rest[i+1:] {
			if hits(a | b) {
				found = append(found, a|b)
			}
		}
	}
	if len(found) == 0 {
		for i, a := range rest {
			for j, b := range rest[i+1:] {
				for _, c := range rest[i+j+2:] {
					if hits(a | b | c) {
						found = append(found, a|b|c)
					}
				}
			}
		}
	}
	if len(found) == 0 {
		lines = append(lines, "any three of the demands are met by some node, but no node meets all demands")
	}
	for _, set := range found {
		if reported[set] {
			continue
		}
		lines = append(lines, d.line(set, nodes, missed, reasons))
	}
	const most = 6
	if len(lines) > most {
		lines = append(lines[:most-1], fmt.Sprintf("and %d more", len(lines)-most+1))
	}
	return lines
}

// line states that no node meets all demands of a set. The most informative demand comes last.
func (d *Demands) line(set uint64, nodes []cluster.Node, missed []uint64, reasons [][]Reason) string {
	rank := func(bit uint64) int {
		switch x := d.of(bit); {
		case x.predicate == TaintToleration:
			return 3
		case x.predicate == NodeUnschedulable:
			return 2
		case x.unmet != "":
			return 1
		}
		return 0
	}
	demands := bitsOf(set)
	slices.SortStableFunc(demands, func(a, b uint64) int { return cmp.Compare(rank(a), rank(b)) })
	last := demands[len(demands)-1]
	var met []string
	for _, bit := range demands[:len(demands)-1] {
		met = append(met, d.of(bit).met)
	}
	var line string
	switch x := d.of(last); {
	case len(met) == 0 && x.unmet == "":
		line = "no node " + x.met
	case len(met) == 0:
		line = "every node " + x.unmet
	case x.unmet == "":
		line = fmt.Sprintf("no node that %s %s", strings.Join(met, " and "), x.met)
	default:
		line = fmt.Sprintf("every node that %s %s", strings.Join(met, " and "), x.unmet)
	}
	if hint := d.hint(last, set&^last, nodes, missed, reasons); hint != "" {
		line += ": " + hint
	}
	return line
}

// of returns the demand of a bit: the first one, if several share the bit.
func (d *Demands) of(bit uint64) demand { return d.all[bits.TrailingZeros64(bit)] }

// hint describes what the nodes that meet the other demands have instead of the last one; empty if nothing is known.
func (d *Demands) hint(last, others uint64, nodes []cluster.Node, missed []uint64, reasons [][]Reason) string {
	x := d.of(last)
	seen := map[string]bool{}
	var largest int64
	for i := range nodes {
		if missed[i]&others != 0 {
			continue
		}
		switch {
		case x.predicate == TaintToleration:
			for _, r := range reasons[i] {
				if r.Predicate == TaintToleration {
					seen[r.Key] = true
				}
			}
		case x.request != "":
			largest = max(largest, amountOf(nodes[i].Allocatable, x.request))
		case x.label != nil && x.label.Operator == corev1.NodeSelectorOpIn:
			if value, ok := nodes[i].Labels[x.label.Key]; ok {
				seen[value] = true
			}
		}
	}
	values := slices.Sorted(maps.Keys(seen))
	const few = 3
	more := ""
	if len(values) > few {
		values, more = values[:few], fmt.Sprintf(" and %d more", len(values)-few)
	}
	switch {
	case x.request != "":
		return fmt.Sprintf("the largest has %s in total", amountText(x.request, largest))
	case len(values) == 0:
		return ""
	case x.label != nil:
		return fmt.Sprintf("values of %s are %s%s", x.label.Key, strings.Join(values, ", "), more)
	}
	return strings.Join(values, ", ") + more
}

// exclude reports whether no value of a label meets both demands.
func exclude(a, b *corev1.NodeSelectorRequirement) bool {
	if a == nil || b == nil || a.Key != b.Key {
		return false
	}
	if b.Operator == corev1.NodeSelectorOpIn && a.Operator != corev1.NodeSelectorOpIn {
		a, b = b, a
	}
	meets := func(r *corev1.NodeSelectorRequirement, labels map[string]string) bool {
		term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{*r}}
		selector := nodeaffinity.NewLazyErrorNodeSelector(
			&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}})
		ok, err := selector.Match(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}})
		return ok || err != nil // an invalid requirement excludes nothing
	}
	if a.Operator == corev1.NodeSelectorOpIn {
		return len(a.Values) > 0 &&
			!slices.ContainsFunc(a.Values, func(value string) bool { return meets(b, map[string]string{b.Key: value}) })
	}
	// Without In, only DoesNotExist excludes another demand: one that requires the label.
	absent := func(r *corev1.NodeSelectorRequirement) bool { return r.Operator == corev1.NodeSelectorOpDoesNotExist }
	demanded := func(r *corev1.NodeSelectorRequirement) bool { return !meets(r, nil) }
	return absent(a) && demanded(b) || absent(b) && demanded(a)
}

func bitsOf(set uint64) []uint64 {
	var all []uint64
	for ; set != 0; set &= set - 1 {
		all = append(all, set&-set)
	}
	return all
}
