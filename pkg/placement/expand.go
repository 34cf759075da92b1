// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/scheduling"
)

// Expand predicts on which nodes of the snapshot's cluster the pods of a placement
// check would run. It is pure. The worksheet has no pairs; its Details are a Sheet.
// Warnings are one line each.
//
// An error says that the placement is invalid, and has every reason. It is not an
// error if no node takes a pod.
func Expand(p *checkup.Plan, check string, s *cluster.Snapshot) (*checkup.Worksheet, []string, error) {
	fail := func(err error) (*checkup.Worksheet, []string, error) {
		return nil, nil, fmt.Errorf("check %q: %w", check, err)
	}
	c, ok := p.Checks[check].Spec.(*Spec)
	if !ok {
		return fail(fmt.Errorf("plan %s has no placement check of that name", p.Name))
	}
	if len(s.Nodes) == 0 {
		return fail(errors.New("the cluster has no nodes"))
	}
	r, err := requestOf(c, s)
	if err != nil {
		return fail(err)
	}
	nodes := s.Nodes
	if byName := func(a, b cluster.Node) int { return cmp.Compare(a.Name, b.Name) }; !slices.IsSortedFunc(nodes, byName) {
		nodes = slices.SortedFunc(slices.Values(nodes), byName)
	}
	sheet := &Sheet{Origin: r.origin, Mode: r.mode, Nodes: len(s.Nodes)}
	w := &checkup.Worksheet{Plan: p.Name, Check: check, Kind: Name, Timeouts: c.Timeouts}
	warnings := r.notes
	if c.NetworkConfig {
		if s.NetworkConfig != nil {
			for _, path := range s.NetworkConfig.Unknown {
				warnings = append(warnings, configObject+": "+path+": unknown field: ignored")
			}
		}
		read := []string{configObject, operatorObject}
		if r.mode != cluster.DiagnosticsDisabled { // the operator deletes its workloads with the diagnostics
			read = append(read, workloadObject(SideSource), workloadObject(SideTarget))
		}
		for _, u := range s.Unseen {
			if slices.Contains(read, u.What) {
				warnings = append(warnings, u.What+": "+u.Cause)
			}
		}
	}
	var problems []error
	least := map[SideName]*int{SideSource: c.Expect.MinSources, SideTarget: c.Expect.MinTargets}
	placed := Sides
	if r.mode == cluster.DiagnosticsDisabled {
		placed = nil
		for _, side := range Sides {
			if n := least[side]; n != nil && *n > 0 {
				problems = append(
					problems,
					fmt.Errorf(
						"%s: the plan demands %s that can take one, but %s disables the diagnostics: nothing is placed, and the demand cannot be evaluated",
						side,
						checkup.Count(*n, "node"),
						r.origin,
					),
				)
			}
		}
	}
	for _, name := range placed {
		pod, err := podOf(p.Name, check, name, r.sides[name], r.at[name])
		if err != nil {
			if r.origin != originPlan {
				err = fmt.Errorf("%s: %w", r.origin, err)
			}
			problems = append(problems, err)
			continue
		}
		side, remarks, err := place(name, pod, nodes, unseen(s, requestedResources))
		if err != nil {
			problems = append(problems, err)
			continue
		}
		side.Min = least[name]
		sheet.Sides = append(sheet.Sides, side)
		warnings = append(warnings, remarks...)
	}
	if len(problems) > 0 {
		return fail(errors.Join(problems...))
	}
	if err := sheet.Put(w); err != nil {
		return fail(err)
	}
	return w, warnings, nil
}

// place predicts on which nodes a pod of one side would run. notRequested says why
// the resource requests on the nodes are unknown; empty if they are known. remarks
// are warnings about the side, one line each.
func place(
	name SideName,
	pod *corev1.Pod,
	nodes []cluster.Node,
	notRequested string,
) (side Side, remarks []string, err error) {
	raw, err := json.Marshal(pod)
	if err != nil {
		return side, nil, fmt.Errorf("%s: write the pod: %w", name, err)
	}
	o := scheduling.Place(pod, nodes)
	side = Side{
		Side: name, Workload: workloads[name].kind, Pod: raw,
		Eligible: o.Eligible, Rejected: o.Rejected, Later: o.Later,
		Contradictions: o.Contradictions, Unknown: o.Unknown,
	}
	remark := func(format string, args ...any) {
		remarks = append(remarks, fmt.Sprintf("%s: %s", name, fmt.Sprintf(format, args...)))
	}
	if notRequested != "" && len(side.Unknown) > 0 {
		remark("cannot read %s: %s", requestedResources, notRequested)
	}
	if class := pod.Spec.PriorityClassName; class != "" {
		if n := roomOnly(side.Rejected); n > 0 {
			remark(
				"%s no room for the pod: it would evict pods of a lower priority than that of %s, which the prediction ignores",
				hasOrHave(n, "node"),
				class,
			)
		}
	}
	if side.Workload == "Deployment" && len(side.Eligible) > 1 {
		for _, idle := range idleDemands(pod, nodes) {
			remark("its pod can run on any of %s: %s excludes no node", checkup.Count(len(side.Eligible), "node"), idle)
		}
	}
	return side, remarks, nil
}

// roomOnly counts nodes that are rejected only for lack of resources or ports: those
// on which preemption could help.
func roomOnly(rejected []scheduling.NodeGroup) int {
	n := 0
	for _, group := range rejected {
		if !slices.ContainsFunc(group.Reasons, func(r scheduling.NodeReason) bool {
			return r.Predicate != scheduling.NodeResourcesFit && r.Predicate != scheduling.NodePorts
		}) {
			n += len(group.Nodes)
		}
	}
	return n
}

// idleDemands names the pod's demands on labels that every node meets, without the
// default one, which the user did not set.
func idleDemands(pod *corev1.Pod, nodes []cluster.Node) []string {
	met := func(spec corev1.PodSpec) bool {
		spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		demands := scheduling.NewDemands(&corev1.Pod{Spec: spec})
		return !slices.ContainsFunc(nodes, func(n cluster.Node) bool {
			return slices.ContainsFunc(
				demands.Reasons(&n),
				func(r scheduling.Reason) bool { return r.Predicate == scheduling.NodeAffinity },
			)
		})
	}
	var idle []string
	usual := SourceDefaults().NodeSelector
	for _, key := range slices.Sorted(maps.Keys(pod.Spec.NodeSelector)) {
		value := pod.Spec.NodeSelector[key]
		if v, ok := usual[key]; (!ok || v != value) && met(corev1.PodSpec{NodeSelector: map[string]string{key: value}}) {
			idle = append(idle, fmt.Sprintf("nodeSelector %s=%s", key, value))
		}
	}
	if pod.Spec.Affinity != nil && met(corev1.PodSpec{Affinity: pod.Spec.Affinity}) {
		idle = append(idle, "affinity")
	}
	return idle
}

// hasOrHave begins a sentence about things: "1 node has", "2 nodes have".
func hasOrHave(n int, thing string) string {
	if n == 1 {
		return checkup.Count(n, thing) + " has"
	}
	return checkup.Count(n, thing) + " have"
}
