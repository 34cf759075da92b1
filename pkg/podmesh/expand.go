// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/cost"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/scheduling"
)

// Warning says before a run that the worksheet measures, or probably will measure,
// less than the plan asks for.
type Warning struct {
	Reason Reason `json:"reason"`
	// Message is one line.
	Message string `json:"message"`
}

// String prints the message.
func (w Warning) String() string { return w.Message }

// Reason is a kind of warning.
type Reason string

const (
	NodesLeftOut  Reason = "NodesLeftOut"  // nodes that a placement does not admit
	NodesNotReady Reason = "NodesNotReady" // nodes that take part although they are not ready
	NodesFull     Reason = "NodesFull"     // nodes with too few free pod slots
	PodsNotReady  Reason = "PodsNotReady"  // existing pods that take part although they are not ready
	PodsOnHost    Reason = "PodsOnHost"    // existing pods that are sources, and use their nodes' networks
	FamilyMissing Reason = "FamilyMissing" // an IP family of the plan that the cluster does not seem to have
	FullMesh      Reason = "FullMesh"      // a degree that is more than the full mesh
	DegreeLowered Reason = "DegreeLowered" // a degree that the budget does not allow
	SampleCut     Reason = "SampleCut"     // a budget that does not allow even a degree of 1
	ZonesMissed   Reason = "ZonesMissed"   // zone pairs that the budget leaves without a pair
	LabelMissing  Reason = "LabelMissing"  // a label of sample.topology that no node has
	ProbeTooLong  Reason = "ProbeTooLong"  // probing that takes longer than its timeout
)

// Reasons lists every Reason.
var Reasons = []Reason{
	NodesLeftOut,
	NodesNotReady,
	NodesFull,
	PodsNotReady,
	PodsOnHost,
	FamilyMissing,
	FullMesh,
	DegreeLowered,
	SampleCut,
	ZonesMissed,
	LabelMissing,
	ProbeTooLong,
}

// Expand returns the worksheet of a podMesh check for the cluster of the snapshot. It
// is pure: the same plan, snapshot and round give the same worksheet. The round counts
// from 0 and is taken modulo the number of rounds.
//
// An error says that nothing can be measured, or that plan and snapshot do not match.
// It has every reason.
func Expand(p *checkup.Plan, check string, s *cluster.Snapshot, round int) (*checkup.Worksheet, []Warning, error) {
	fail := func(err error) (*checkup.Worksheet, []Warning, error) {
		return nil, nil, fmt.Errorf("check %q: %w", check, err)
	}
	mesh, ok := p.Checks[check].Spec.(*Spec)
	if !ok {
		return fail(fmt.Errorf("plan %s has no podMesh check of that name", p.Name))
	}
	if err := usable(mesh, round); err != nil {
		return fail(err)
	}
	if len(s.Nodes) == 0 {
		return fail(errors.New("the cluster has no nodes"))
	}

	var e expansion
	var problems []error
	problem := func(err error) {
		if err != nil {
			problems = append(problems, err)
		}
	}
	problem(e.placeSources(mesh, s))
	problem(e.placeTargets(mesh, s))
	if len(problems) > 0 {
		return fail(errors.Join(problems...))
	}
	families, err := e.families(mesh.IPFamilies, s)
	if err != nil {
		return fail(err)
	}

	w := &checkup.Worksheet{
		Plan: p.Name, Check: check, Kind: Name,
		Sources: e.sources, Targets: e.targets,
		IPFamilies: families, Probes: probes(mesh.Probes),
		Expect: mesh.Expect, Limits: mesh.Limits, Resources: mesh.Resources, Timeouts: mesh.Timeouts,
	}
	w.Seed, w.Budget = kind.Seed(p.Name, check), mesh.Sample.Budget
	if mesh.Sample.Seed != nil {
		w.Seed = *mesh.Sample.Seed
	}
	perAssignment := w.PairsPerAssignment(0)
	budget := mesh.Sample.Budget / perAssignment
	if budget == 0 {
		return fail(
			fmt.Errorf(
				"sample.budget: %s is not enough for one source and one target, which are %d pairs (families x transports x sizes): raise it, or measure less of each",
				checkup.Count(mesh.Sample.Budget, "pair"),
				perAssignment,
			),
		)
	}
	sampled := sample(w.Seed, round, mesh.Sample.Degree, budget, w.Sources, w.Targets)
	if sampled.possible == 0 && w.Inside() {
		return fail(fmt.Errorf("pod %s is the only source and the only target: admit more by sources.pods or targets.pods",
			w.Sources[0].Name()))
	}
	if sampled.possible == 0 {
		return fail(
			fmt.Errorf(
				"node %s is the only source and the only target, but a mesh needs two nodes: admit more of the %s by sources.placement or targets.placement",
				w.Sources[0].Node,
				checkup.Count(len(s.Nodes), "node"),
			),
		)
	}
	w.Assignments, w.Degree, w.Possible = sampled.assignments, sampled.degree, sampled.possible
	w.Round, w.Rounds = sampled.round, sampled.rounds

	e.warnOfSample(mesh.Sample, sampled, w, perAssignment)
	e.warnOfNodes(w, s)
	for _, key := range mesh.Sample.Topology {
		if nodes, _ := countLabel(w, key); nodes == 0 {
			e.warn(LabelMissing, "sample.topology: no node that takes part has the label %s", key)
		}
	}
	if expected := cost.ExpectedProbe(w); expected > w.AgentDeadline() {
		e.warn(
			ProbeTooLong,
			"probing takes about %v, but agents have %v of timeouts.probe (%v): later pairs are unmeasured: raise it or limits.packetsPerSecond, or measure less",
			time.Duration(expected).Round(time.Second),
			w.AgentDeadline(),
			w.Timeouts.Probe,
		)
	}
	slices.SortStableFunc(e.warnings, func(a, b Warning) int {
		return cmp.Compare(slices.Index(Reasons, a.Reason), slices.Index(Reasons, b.Reason))
	})
	return w, e.warnings, nil
}

// usable reports values with which Expand cannot work. A plan that was loaded has
// none.
func usable(mesh *Spec, round int) error {
	var problems []error
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if round < 0 {
		add("sample.round: is %d, want 0 or more", round)
	}
	if mesh.Sample.Degree < 0 {
		add("sample.degree: is %d, want 0 or more", mesh.Sample.Degree)
	}
	if mesh.Sample.Budget < 1 {
		add("sample.budget: is %d, want 1 or more", mesh.Sample.Budget)
	}
	if len(mesh.Probes) == 0 {
		add("probes: empty: want at least one")
	}
	for _, t := range slices.Sorted(maps.Keys(mesh.Probes)) {
		switch {
		case !slices.Contains(checkup.Transports, t):
			add("probes.%s: no such transport", t)
		case len(mesh.Probes[t].Sizes) == 0:
			add("probes.%s.sizes: empty: want at least one", t)
		case t == checkup.UDP && mesh.Targets.Pods != nil:
			add("probes.udp: existing pods (targets.pods) do not answer it")
		}
	}
	for _, f := range mesh.IPFamilies {
		if !slices.Contains(checkup.IPFamilies, f) {
			add("ipFamilies: %q: want IPv4 or IPv6", f)
		}
	}
	return errors.Join(problems...)
}

// expansion is what Expand gathers on its way.
type expansion struct {
	sources, targets []checkup.Endpoint
	// pods that are targets; nil if the targets are fixtures.
	pods     []cluster.Pod
	warnings []Warning
}

func (e *expansion) warn(reason Reason, format string, args ...any) {
	e.warnings = append(e.warnings, Warning{reason, fmt.Sprintf(format, args...)})
}

// place admits nodes to one side of the mesh.
func (e *expansion) place(
	side string,
	nodes []cluster.Node,
	p checkup.Placement,
	tolerations []checkup.Toleration,
) (scheduling.Admission, error) {
	at := field.NewPath(side + "s").Child("placement")
	a, err := scheduling.Admit(nodes, p, tolerations, at)
	if err != nil {
		return a, err
	}
	if len(a.Nodes) == 0 {
		return a, fmt.Errorf("no node can be a %s: %v", side, a)
	}
	if !a.Complete() {
		e.warn(NodesLeftOut, "%d of %s can be a %s; left out: %v", len(a.Nodes), checkup.Count(len(nodes), "node"), side, a)
	}
	return a, nil
}

// placeSources puts an agent on every node that the sources' placement admits, or selects the existing pods there.
func (e *expansion) placeSources(mesh *Spec, s *cluster.Snapshot) error {
	p := mesh.Sources.Placement
	if mesh.Sources.Pods != nil {
		// The pods are there already, whatever the taints of their nodes.
		everything := []checkup.Toleration{{Operator: string(corev1.TolerationOpExists)}}
		pods, endpoints, err := e.pick(existing{*mesh.Sources.Pods, "source"}, p, everything, mesh.Sample.Topology, s)
		var host []string
		for i, pod := range pods {
			source := &endpoints[i]
			source.Inside, source.HostNetwork = true, pod.HostNetwork
			switch {
			case pod.Node != "" && len(pod.IPs) == 0:
				const message = "the source pod has no address yet: it has not started"
				source.Cause = &checkup.Cause{Stage: checkup.StageSetup, Message: message}
			case pod.HostNetwork:
				host = append(host, pod.Name)
			}
		}
		if len(host) > 0 {
			e.warn(PodsOnHost,
				"%s in the network of the node: that network is measured, and no NetworkPolicy selects the pod: %s",
				checkup.CountAre(len(host), "source"), checkup.Some(host))
		}
		e.sources = endpoints
		return err
	}
	tolerations := scheduling.FixtureTolerations(p.Tolerations)
	a, err := e.place("source", s.Nodes, p, tolerations)
	e.sources = fixtures(a.Nodes, mesh.Sample.Topology, tolerations)
	return err
}

// placeTargets puts a responder on every node that the targets' placement admits, or
// selects the existing pods there.
func (e *expansion) placeTargets(mesh *Spec, s *cluster.Snapshot) error {
	p := mesh.Targets.Placement
	tolerations := scheduling.FixtureTolerations(p.Tolerations)
	if mesh.Targets.Pods == nil {
		a, err := e.place("target", s.Nodes, p, tolerations)
		e.targets = fixtures(a.Nodes, mesh.Sample.Topology, tolerations)
		return err
	}

	var err error
	e.pods, e.targets, err = e.pick(mesh.Targets.Pods.existing(), p, tolerations, mesh.Sample.Topology, s)
	return err
}

// pick returns the existing pods of one side that are on nodes which the placement admits, or on none yet, and their
// endpoints. Both are sorted by node and name.
func (e *expansion) pick(
	of existing, p checkup.Placement, tolerations []checkup.Toleration, topology []string, s *cluster.Snapshot,
) ([]cluster.Pod, []checkup.Endpoint, error) {
	want, err := of.selection()
	if err != nil {
		return nil, nil, err
	}
	where := "namespace " + want.Namespace
	if want.Namespace == "" {
		where = "the run's namespace"
	}
	selected, ok := s.Selection(want)
	choice := "the labels " + want.Selector
	if want.Name != "" {
		choice = "the name " + want.Name
	}
	if !ok {
		return nil, nil, fmt.Errorf(
			"%s: the snapshot does not list which pods in %s have %s: it was recorded for another plan: record it again",
			of.field(),
			where,
			choice,
		)
	}
	all := selected.Pods
	if len(all) == 0 {
		return nil, nil, fmt.Errorf("%s: no pod in %s has %s: see kubectl get pods --show-labels", of.field(), where, choice)
	}
	a, err := scheduling.Admit(s.Nodes, p, tolerations, field.NewPath(of.side+"s").Child("placement"))
	if err != nil {
		return nil, nil, err
	}
	nodes := map[string]cluster.Node{"": {}}
	for _, n := range a.Nodes {
		nodes[n.Name] = n
	}
	var pods []cluster.Pod
	var notReady []string
	for _, pod := range all {
		if _, ok := nodes[pod.Node]; !ok {
			continue
		}
		pods = append(pods, pod)
		if !pod.Ready || pod.Node == "" || len(pod.IPs) == 0 {
			notReady = append(notReady, pod.Name)
		}
	}
	if len(pods) == 0 {
		return nil, nil, fmt.Errorf(
			"%s: none of the %s with %s in %s is on a node that %ss.placement admits: %v",
			of.field(),
			checkup.Count(len(all), "pod"),
			choice,
			where,
			of.side,
			a,
		)
	}
	if left := len(all) - len(pods); left > 0 {
		e.warn(
			NodesLeftOut,
			"%d of %s can be a %s; the others are on nodes that are left out: %v",
			len(pods),
			checkup.Count(len(all), "pod"),
			of.side,
			a,
		)
	}
	switch {
	case len(notReady) == 0:
	case of.side == "source":
		e.warn(
			PodsNotReady,
			"%s not ready, and may be unmeasured: %s",
			checkup.CountAre(len(notReady), "source"),
			checkup.Some(notReady),
		)
	default:
		e.warn(
			PodsNotReady,
			"%s not ready, and will be unmeasured: %s",
			checkup.CountAre(len(notReady), "target"),
			checkup.Some(notReady),
		)
	}
	slices.SortFunc(pods, func(x, y cluster.Pod) int {
		return cmp.Or(cmp.Compare(x.Node, y.Node), cmp.Compare(x.Name, y.Name))
	})
	endpoints := make([]checkup.Endpoint, len(pods))
	for i, pod := range pods {
		n := nodes[pod.Node]
		endpoints[i] = checkup.Endpoint{
			Node: pod.Node, NodeUID: n.UID, Zone: n.Labels[corev1.LabelTopologyZone], Topology: topologyOf(n, topology),
			Pod: pod.Name,
		}
	}
	return pods, endpoints, nil
}

// fixtures returns the endpoints of our own pods, one on each node.
func fixtures(nodes []cluster.Node, topology []string, tolerations []checkup.Toleration) []checkup.Endpoint {
	endpoints := make([]checkup.Endpoint, len(nodes))
	for i, n := range nodes {
		endpoints[i] = checkup.Endpoint{
			Node: n.Name, NodeUID: n.UID, Zone: n.Labels[corev1.LabelTopologyZone], Topology: topologyOf(n, topology),
			Tolerations: tolerations,
		}
	}
	slices.SortFunc(endpoints, func(x, y checkup.Endpoint) int { return cmp.Compare(x.Node, y.Node) })
	return endpoints
}

// topologyOf returns a node's values of the given labels, without empty ones; nil if it has none.
func topologyOf(n cluster.Node, keys []string) map[string]string {
	var of map[string]string
	for _, key := range keys {
		if value := n.Labels[key]; value != "" {
			if of == nil {
				of = map[string]string{}
			}
			of[key] = value
		}
	}
	return of
}

// countLabel counts the nodes that take part and have a label, and its values.
func countLabel(w *checkup.Worksheet, key string) (nodes, values int) {
	of, all := map[string]bool{}, map[string]bool{}
	for _, e := range slices.Concat(w.Sources, w.Targets) {
		if value := e.Topology[key]; value != "" {
			of[e.Node], all[value] = true, true
		}
	}
	return len(of), len(all)
}

// families returns the plan's IP families. If it has none, they are those of the
// target pods' addresses, else of the pod CIDRs of the nodes that take part, else of
// their internal addresses.
func (e *expansion) families(plan []checkup.IPFamily, s *cluster.Snapshot) ([]checkup.IPFamily, error) {
	takesPart := map[string]bool{}
	for _, endpoint := range slices.Concat(e.sources, e.targets) {
		takesPart[endpoint.Node] = true
	}
	var shown []checkup.IPFamily
	show := func(addresses []string) {
		for _, a := range addresses {
			if f, ok := cluster.FamilyOf(a); ok && !slices.Contains(shown, f) {
				shown = append(shown, f)
			}
		}
	}
	for _, pod := range e.pods {
		show(pod.IPs)
	}
	for _, of := range []func(cluster.Node) []string{
		func(n cluster.Node) []string { return n.PodCIDRs },
		func(n cluster.Node) []string { return n.InternalIPs },
	} {
		if len(shown) > 0 {
			break
		}
		for _, n := range s.Nodes {
			if takesPart[n.Name] {
				show(of(n))
			}
		}
	}
	var families []checkup.IPFamily
	for _, f := range checkup.IPFamilies {
		switch {
		case len(plan) == 0 && slices.Contains(shown, f):
			families = append(families, f)
		case slices.Contains(plan, f):
			families = append(families, f)
			if len(shown) > 0 && !slices.Contains(shown, f) {
				e.warn(
					FamilyMissing,
					"the plan measures %s, but the cluster's pods seem to have no such addresses: its pairs will be unmeasured",
					f,
				)
			}
		}
	}
	if len(families) == 0 {
		return nil, errors.New(
			"ipFamilies: pod CIDRs and internal addresses of the nodes do not show the IP families of their pods: set ipFamilies",
		)
	}
	return families, nil
}

// probes returns the plan's probes in the order of Transports, with ascending sizes
// without duplicates.
func probes(plan map[checkup.Transport]checkup.Probe) []checkup.TransportProbe {
	var probes []checkup.TransportProbe
	for _, t := range checkup.Transports {
		if p, ok := plan[t]; ok {
			p.Sizes = slices.Compact(slices.Sorted(slices.Values(p.Sizes)))
			probes = append(probes, checkup.TransportProbe{Transport: t, Probe: p})
		}
	}
	return probes
}

// warnOfSample warns if the sample is less than the plan asks for.
func (e *expansion) warnOfSample(plan Sample, s sampling, w *checkup.Worksheet, perAssignment int) {
	full := s.possible * perAssignment
	who := fmt.Sprintf("%s and %s", checkup.Count(len(w.Sources), "source"), checkup.Count(len(w.Targets), "target"))
	if slices.EqualFunc(
		w.Sources,
		w.Targets,
		func(a, b checkup.Endpoint) bool { return a.Node == b.Node && a.Pod == "" && b.Pod == "" },
	) {
		who = checkup.Count(len(w.Sources), "node")
	}
	switch {
	case s.degree == 0 && s.rounds > 1:
		e.warn(
			SampleCut,
			"sample.budget of %d is not enough for a degree of 1 with %s: a run measures %d of %d pairs, and not every node; the full mesh takes %d runs that rotate",
			plan.Budget,
			who,
			w.CountPairs(),
			full,
			s.rounds,
		)
	case plan.Degree == 0 && s.rounds > 1:
		e.warn(
			DegreeLowered,
			"sample.budget of %d is not enough for the full mesh of %s, which is %d pairs: the degree is %d, and the full mesh takes %d runs that rotate",
			plan.Budget,
			who,
			full,
			s.degree,
			s.rounds,
		)
	case plan.Degree > s.degree && s.rounds > 1:
		e.warn(
			DegreeLowered,
			"sample.budget of %d is not enough for a degree of %d with %s: the degree is %d, and the full mesh takes %d runs that rotate",
			plan.Budget,
			plan.Degree,
			who,
			s.degree,
			s.rounds,
		)
	case s.rounds == 1 && plan.Degree > s.degree:
		e.warn(FullMesh, "%s but degree %d: full mesh", who, plan.Degree)
	}
	if missed := s.zonePairs - s.zonePairsHit; missed > 0 {
		e.warn(
			ZonesMissed,
			"%d of %d ordered zone pairs have no pair in the sample, because sample.budget of %d does not allow more",
			missed,
			s.zonePairs,
			plan.Budget,
		)
	}
}

// warnOfNodes warns of nodes that will probably be unmeasured.
func (e *expansion) warnOfNodes(w *checkup.Worksheet, s *cluster.Snapshot) {
	pods := map[string]int64{}
	for i, source := range w.Sources {
		if source.Inside {
			pods[source.Node] += 0
		} else {
			pods[source.Node] += int64(min(1, len(w.Assignments[i])))
		}
	}
	for i, degree := range w.InDegrees() {
		if w.Targets[i].Pod == "" {
			pods[w.Targets[i].Node] += int64(min(1, degree))
		} else {
			pods[w.Targets[i].Node] += 0
		}
	}
	var notReady, full []string
	for _, n := range s.Nodes {
		want, takesPart := pods[n.Name]
		if !takesPart {
			continue
		}
		if n.Ready != corev1.ConditionTrue {
			notReady = append(notReady, n.Name)
		}
		if takes, ok := n.Allocatable[corev1.ResourcePods]; ok && takes.Value() < want {
			full = append(full, n.Name)
		}
	}
	if len(notReady) > 0 {
		e.warn(
			NodesNotReady,
			"%s not ready, and will probably fail or be unmeasured: %s",
			checkup.CountAre(len(notReady), "node"),
			checkup.Some(notReady),
		)
	}
	if len(full) > 0 {
		e.warn(NodesFull, "%s too full for the pods of the check: %s",
			checkup.CountAre(len(full), "node"), checkup.Some(full))
	}
}
