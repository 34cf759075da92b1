// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/checkplan/checkplan/pkg/cluster"
)

// Names of the scheduler's plugins, the values of NodeReason.Predicate
// (pkg/scheduler/framework/plugins/names in Kubernetes).
const (
	NodeUnschedulable = "NodeUnschedulable"
	NodeName          = "NodeName"
	TaintToleration   = "TaintToleration"
	NodeAffinity      = "NodeAffinity"
	NodePorts         = "NodePorts"
	NodeResourcesFit  = "NodeResourcesFit"
	PodTopologySpread = "PodTopologySpread"
)

// Predicates lists them in the order in which the scheduler's default profile evaluates them.
var Predicates = []string{
	NodeUnschedulable, NodeName, TaintToleration, NodeAffinity, NodePorts, NodeResourcesFit, PodTopologySpread,
}

// Messages of kube-scheduler 1.35: the constants ErrReason... of its plugins (pkg/scheduler/framework/plugins), unless
// a comment names another source.
const (
	saysUnschedulable = "node(s) were unschedulable"
	saysNodeName      = "node(s) didn't match the requested node name"
	saysTaint         = "node(s) had untolerated taint(s)" // tainttoleration, Filter
	saysAffinity      = "node(s) didn't match Pod's node affinity/selector"
	// schedule_one.go: nodes that NodeAffinity's PreFilter excludes, because the affinity names others
	saysPinned       = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
	saysConflict     = "pod affinity terms conflict"
	saysPorts        = "node(s) didn't have free ports for the requested pod ports"
	saysPods         = "Too many pods"   // noderesources, fitsRequest
	saysInsufficient = "Insufficient %s" // noderesources, fitsRequest
	saysTopologyKey  = "node(s) didn't match pod topology spread constraints (missing required label)"
)

// Reason is why a node does not take a pod.
type Reason struct {
	NodeReason
	// Key is, for NodeAffinity, the key of the nodeSelector, or empty for the affinity; for TaintToleration the
	// taint; for NodePorts the port; for NodeResourcesFit the resource; for PodTopologySpread the topology key.
	Key string

	missed uint64 // unmet demands, by bit
	short  int64  // missing amount of a resource
	want   string // requested amount of it
}

// Demands are the demands of a pod on a node, computed once for many nodes. They are not safe for concurrent use.
type Demands struct {
	all             []demand
	nodeName        string
	selector        []labelDemand
	affinity        *nodeaffinity.LazyErrorNodeSelector // nil without an affinity
	terms           [][]expression
	pinned          map[string]bool // nodes that the affinity names; nil if it does not name nodes
	tolerations     []corev1.Toleration
	toleratesCordon bool
	ports           []portDemand
	requests        []request
	spread          []labelDemand
	// Bits of demands; affine is 0 if each expression of the affinity is a demand.
	cordon, name, taint, affine, pods uint64

	// Reasons that many nodes share.
	byTaint  map[tainted]Reason
	byMisses map[string]Reason
	scratch  corev1.Node
}

// demand is one requirement on a node.
type demand struct {
	predicate string
	met       string // continues "a node that ..."
	unmet     string // continues "every node ..."; empty if "no node" and met are clearer
	// label is the required label; nil for demands of other kinds.
	label *corev1.NodeSelectorRequirement
	// request is the requested resource; empty for demands of other kinds.
	request corev1.ResourceName
}

type labelDemand struct {
	key, value string
	missing    Reason // the node does not have the label
	other      Reason // the label has another value
}

type expression struct {
	text   string
	parsed *nodeaffinity.LazyErrorNodeSelector
	demand uint64 // 0 if the affinity has several terms
}

type portDemand struct {
	cluster.HostPort
	demand uint64
}

type request struct {
	name   corev1.ResourceName
	amount int64
	demand uint64
}

type tainted struct {
	key, value string
	effect     corev1.TaintEffect
	ready      corev1.ConditionStatus
}

// NewDemands computes the demands of a pod. The pod need not come from an API server: the defaults that the server sets
// are applied (missing requests are the limits; ports of a pod on the host network are host ports; default
// tolerations).
func NewDemands(pod *corev1.Pod) *Demands {
	spec := defaulted(pod)
	d := &Demands{
		nodeName: spec.NodeName, tolerations: admitted(spec.Tolerations),
		byTaint: map[tainted]Reason{}, byMisses: map[string]Reason{},
	}
	d.cordon = d.add(demand{predicate: NodeUnschedulable, met: "is not cordoned", unmet: "is cordoned"})
	cordoned := &corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	d.toleratesCordon = tolerates(d.tolerations, cordoned)
	d.name = d.add(demand{predicate: NodeName, met: "has the name " + spec.NodeName})
	d.taint = d.add(demand{
		predicate: TaintToleration, met: "has no untolerated taint", unmet: "has an untolerated taint",
	})
	for _, key := range slices.Sorted(maps.Keys(spec.NodeSelector)) {
		value := spec.NodeSelector[key]
		at := d.add(demand{
			predicate: NodeAffinity, met: fmt.Sprintf("has the label %s=%s", key, value),
			label: &corev1.NodeSelectorRequirement{
				Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value},
			},
		})
		says := func(format string, args ...any) Reason {
			return Reason{NodeReason: NodeReason{
				Predicate: NodeAffinity, Scheduler: saysAffinity, Message: fmt.Sprintf(format, args...),
			}, Key: key, missed: at}
		}
		l := labelDemand{
			key, value, says("no label %s, want %s (nodeSelector)", key, value),
			says("label %s is not %s (nodeSelector)", key, value),
		}
		if value == "" {
			l.missing = says("no label %s (nodeSelector)", key)
			l.other = says("label %s is not empty (nodeSelector)", key)
		}
		d.selector = append(d.selector, l)
	}
	if a := spec.Affinity; a != nil && a.NodeAffinity != nil {
		if required := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
			d.require(required)
		}
	}
	for _, p := range cluster.HostPorts(spec) {
		d.ports = append(d.ports, portDemand{p, d.add(demand{
			predicate: NodePorts, met: "has port " + portText(p) + " free", unmet: "has port " + portText(p) + " in use",
		})})
	}
	d.pods = d.add(demand{
		predicate: NodeResourcesFit, met: "can take one more pod", unmet: "can take no more pods",
	})
	list := resourcehelper.PodRequests(&corev1.Pod{Spec: *spec}, resourcehelper.PodResourcesOptions{})
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if amount := amountOf(list, name); amount > 0 && decides(name) {
			text := amountText(name, amount)
			d.requests = append(d.requests, request{name, amount, d.add(demand{
				predicate: NodeResourcesFit, met: fmt.Sprintf("has %s of %s left", text, name),
				unmet: fmt.Sprintf("has less than %s of %s left", text, name), request: name,
			})})
		}
	}
	for _, c := range spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable != corev1.DoNotSchedule {
			continue
		}
		at := d.add(demand{
			predicate: PodTopologySpread, met: "has the label " + c.TopologyKey,
			label: &corev1.NodeSelectorRequirement{Key: c.TopologyKey, Operator: corev1.NodeSelectorOpExists},
		})
		d.spread = append(d.spread, labelDemand{key: c.TopologyKey, missing: Reason{
			NodeReason: NodeReason{
				Predicate: PodTopologySpread, Scheduler: saysTopologyKey,
				Message: fmt.Sprintf("no label %s (topologySpreadConstraints)", c.TopologyKey),
			},
			Key: c.TopologyKey, missed: at,
		}})
	}
	return d
}

// add appends a demand and returns its bit.
func (d *Demands) add(x demand) uint64 {
	d.all = append(d.all, x)
	return bitOf(len(d.all) - 1)
}

// bitOf returns the bit of a demand by its index. All demands from index 63 share one bit.
func bitOf(index int) uint64 { return 1 << min(index, 63) }

// require adds the demands of a required node affinity.
func (d *Demands) require(selector *corev1.NodeSelector) {
	d.affinity = nodeaffinity.NewLazyErrorNodeSelector(selector)
	only := -1 // the one term that can match
	for i, term := range selector.NodeSelectorTerms {
		if len(term.MatchExpressions)+len(term.MatchFields) == 0 {
			continue
		}
		only = i
		var expressions []expression
		add := func(r corev1.NodeSelectorRequirement, term corev1.NodeSelectorTerm) {
			selector := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}
			expressions = append(expressions,
				expression{requirementText(r), nodeaffinity.NewLazyErrorNodeSelector(selector), 0})
		}
		for _, r := range term.MatchExpressions {
			add(r, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{r}})
		}
		for _, r := range term.MatchFields {
			add(r, corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{r}})
		}
		d.terms = append(d.terms, expressions)
	}
	if len(d.terms) == 1 {
		term := selector.NodeSelectorTerms[only]
		for i := range d.terms[0] {
			e := &d.terms[0][i]
			var label *corev1.NodeSelectorRequirement
			if i < len(term.MatchExpressions) {
				label = &term.MatchExpressions[i]
			}
			e.demand = d.add(demand{predicate: NodeAffinity, met: "matches the affinity " + e.text, label: label})
		}
	} else {
		d.affine = d.add(demand{predicate: NodeAffinity, met: "matches one of the affinity's terms"})
	}

	// As NodeAffinity's PreFilter does: nodes that no term names are skipped.
	for _, term := range selector.NodeSelectorTerms {
		var names map[string]bool
		for _, r := range term.MatchFields {
			if r.Key != metav1.ObjectNameField || r.Operator != corev1.NodeSelectorOpIn {
				continue
			}
			next := map[string]bool{}
			for _, v := range r.Values {
				if names == nil || names[v] {
					next[v] = true
				}
			}
			names = next
		}
		if names == nil {
			d.pinned = nil
			return
		}
		if d.pinned == nil {
			d.pinned = map[string]bool{}
		}
		maps.Copy(d.pinned, names)
	}
}

// Reasons returns all reasons why the pod would not be scheduled to a node, in the order in which the scheduler would
// find them; nil if the snapshot contains none.
func (d *Demands) Reasons(n *cluster.Node) []Reason {
	var reasons []Reason
	affinity, matches := d.matches(n)
	if !matches && d.pinned != nil && !d.pinned[n.Name] {
		reasons = append(reasons, affinity)
	}
	if n.Unschedulable && !d.toleratesCordon {
		reasons = append(reasons, Reason{NodeReason: NodeReason{
			Predicate: NodeUnschedulable, Scheduler: saysUnschedulable, Message: "cordoned (spec.unschedulable)",
		}, missed: d.cordon})
	}
	if d.nodeName != "" && d.nodeName != n.Name {
		reasons = append(reasons, Reason{NodeReason: NodeReason{
			Predicate: NodeName, Scheduler: saysNodeName, Message: "the pod requires node " + d.nodeName,
		}, missed: d.name})
	}
	for i := range n.Taints {
		if t := &n.Taints[i]; keepsAway(t) && !tolerates(d.tolerations, t) {
			reasons = append(reasons, d.taintReason(t, n.Ready))
		}
	}
	for _, l := range d.selector {
		if value, ok := n.Labels[l.key]; !ok {
			reasons = append(reasons, l.missing)
		} else if value != l.value {
			reasons = append(reasons, l.other)
		}
	}
	if !matches && (d.pinned == nil || d.pinned[n.Name]) {
		reasons = append(reasons, affinity)
	}
	for _, p := range d.ports {
		if slices.ContainsFunc(n.HostPorts, func(used cluster.HostPort) bool { return conflict(p.HostPort, used) }) {
			reasons = append(reasons, Reason{NodeReason: NodeReason{
				Predicate: NodePorts, Scheduler: saysPorts,
				Message: fmt.Sprintf("host port %s is in use", portText(p.HostPort)),
			}, Key: portText(p.HostPort), missed: p.demand})
		}
	}
	reasons = d.resources(n, reasons)
	for _, l := range d.spread {
		if _, ok := n.Labels[l.key]; !ok {
			reasons = append(reasons, l.missing)
		}
	}
	return reasons
}

// matches reports whether a node matches the affinity, and the reason if it does not.
func (d *Demands) matches(n *cluster.Node) (Reason, bool) {
	if d.affinity == nil {
		return Reason{}, true
	}
	d.scratch.Name, d.scratch.Labels = n.Name, n.Labels
	if ok, err := d.affinity.Match(&d.scratch); ok && err == nil {
		return Reason{}, true
	}
	var missed []byte
	demands := d.affine
	for _, term := range d.terms {
		for _, e := range term {
			ok, err := e.parsed.Match(&d.scratch)
			if ok && err == nil {
				missed = append(missed, '0')
				continue
			}
			missed = append(missed, '1')
			demands |= e.demand
		}
	}
	says := saysAffinity
	switch {
	case d.pinned != nil && len(d.pinned) == 0:
		says = saysConflict
	case d.pinned != nil && !d.pinned[n.Name]:
		says = saysPinned
	}
	key := says + string(missed)
	r, ok := d.byMisses[key]
	if !ok {
		r = Reason{NodeReason: NodeReason{
			Predicate: NodeAffinity, Scheduler: says, Message: d.missText(missed),
		}, missed: demands}
		d.byMisses[key] = r
	}
	return r, false
}

// missText lists the expressions of the affinity that the node does not meet. missed has a byte per expression, '1' if
// it is not met.
func (d *Demands) missText(missed []byte) string {
	var terms []string
	for _, term := range d.terms {
		var misses []string
		for _, e := range term {
			if missed[0] == '1' {
				misses = append(misses, e.text)
			}
			missed = missed[1:]
		}
		terms = append(terms, strings.Join(misses, " and "))
	}
	switch most := 3; {
	case len(terms) == 0:
		return "the affinity has no terms: it matches no node"
	case len(terms) == 1:
		return "not " + terms[0] + " (affinity)"
	case len(terms) > most:
		return fmt.Sprintf("none of %d terms: not %s, and so on (affinity)",
			len(terms), strings.Join(terms[:most], ", nor "))
	default:
		return fmt.Sprintf("none of %d terms: not %s (affinity)", len(terms), strings.Join(terms, ", nor "))
	}
}

// taintReason returns the reason for an untolerated taint.
func (d *Demands) taintReason(t *corev1.Taint, ready corev1.ConditionStatus) Reason {
	key := tainted{t.Key, t.Value, t.Effect, ready}
	r, ok := d.byTaint[key]
	if !ok {
		note := ""
		switch {
		case t.Key == corev1.TaintNodeNotReady && ready != corev1.ConditionTrue:
			note = ": the node is not ready"
		case t.Key == corev1.TaintNodeUnreachable && ready == corev1.ConditionUnknown:
			note = ": the node's kubelet does not answer"
		}
		r = Reason{NodeReason: NodeReason{
			Predicate: TaintToleration, Scheduler: saysTaint,
			Message: fmt.Sprintf("taint %s is not tolerated%s", t.ToString(), note),
		}, Key: t.ToString(), missed: d.taint}
		d.byTaint[key] = r
	}
	return r
}

// resources appends a reason for each resource that the node lacks. If the existing requests on the node are unknown,
// a request is rejected only if it exceeds the whole node.
func (d *Demands) resources(n *cluster.Node, reasons []Reason) []Reason {
	short := func(says string, demand uint64, name corev1.ResourceName, amount int64) {
		if _, known := n.Allocatable[name]; !known && n.Requested == nil && ofEveryNode(name) {
			return
		}
		total, used := amountOf(n.Allocatable, name), amountOf(n.Requested, name)
		missing := amount - (total - used)
		if missing <= 0 {
			return
		}
		r := Reason{
			NodeReason: NodeReason{Predicate: NodeResourcesFit, Scheduler: says},
			Key:        string(name), missed: demand, short: missing,
		}
		text := func(amount int64) string { return amountText(name, amount) }
		switch {
		case name == corev1.ResourcePods:
			r.Message = fmt.Sprintf("has %d of at most %d pods", used, total)
		case amount > total:
			r.want = text(amount)
			r.Message = fmt.Sprintf("short of %s %s: requests %s, the node has %s in total",
				text(missing), name, r.want, text(total))
		default:
			r.want = text(amount)
			r.Message = fmt.Sprintf("short of %s %s: requests %s, %s of %s are left",
				text(missing), name, r.want, text(max(0, total-used)), text(total))
		}
		reasons = append(reasons, r)
	}
	short(saysPods, d.pods, corev1.ResourcePods, 1)
	for _, r := range d.requests {
		short(fmt.Sprintf(saysInsufficient, r.name), r.demand, r.name, r.amount)
	}
	return reasons
}

// unknown returns the predicates of a node that the snapshot has no data for.
func (d *Demands) unknown(n *cluster.Node) []string {
	if n.Requested != nil {
		return nil
	}
	if len(d.ports) > 0 {
		return []string{NodePorts, NodeResourcesFit}
	}
	return []string{NodeResourcesFit}
}

// defaulted returns a copy of a pod's spec with those defaults of the API server that a predicate reads.
func defaulted(pod *corev1.Pod) *corev1.PodSpec {
	spec := pod.Spec
	spec.InitContainers, spec.Containers = slices.Clone(spec.InitContainers), slices.Clone(spec.Containers)
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			c := &containers[i]
			if len(c.Resources.Limits) > 0 {
				requests := maps.Clone(c.Resources.Limits)
				maps.Copy(requests, c.Resources.Requests)
				c.Resources.Requests = requests
			}
			if !spec.HostNetwork {
				continue
			}
			c.Ports = slices.Clone(c.Ports)
			for j := range c.Ports {
				if p := &c.Ports[j]; p.HostPort == 0 {
					p.HostPort = p.ContainerPort
				}
			}
		}
	}
	return &spec
}

// decides reports whether the scheduler looks at a resource: cpu, memory, ephemeral storage, and scalars
// (IsScalarResourceName in its util).
func decides(name corev1.ResourceName) bool {
	s := string(name)
	return ofEveryNode(name) && name != corev1.ResourcePods || strings.Contains(s, "/") ||
		strings.HasPrefix(s, corev1.ResourceHugePagesPrefix) ||
		strings.HasPrefix(s, corev1.ResourceAttachableVolumesPrefix)
}

// ofEveryNode reports whether every node has some of a resource. If a snapshot lacks such a resource, its amount is
// unknown; if it lacks any other resource, the node has none.
func ofEveryNode(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods:
		return true
	}
	return false
}

// amountOf reads a quantity as the scheduler does: cpu in thousandths, everything else in whole units, both rounded up.
func amountOf(list corev1.ResourceList, name corev1.ResourceName) int64 {
	q, ok := list[name]
	switch {
	case !ok:
		return 0
	case name == corev1.ResourceCPU:
		return q.MilliValue()
	}
	return q.Value()
}

func amountText(name corev1.ResourceName, amount int64) string {
	switch {
	case name == corev1.ResourceCPU:
		return resource.NewMilliQuantity(amount, resource.DecimalSI).String()
	case name == corev1.ResourceMemory, name == corev1.ResourceEphemeralStorage,
		strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
		return resource.NewQuantity(amount, resource.BinarySI).String()
	}
	return resource.NewQuantity(amount, resource.DecimalSI).String()
}

// conflict reports whether two host ports conflict, as HostPortInfo's CheckConflict in
// k8s.io/kube-scheduler/framework does.
func conflict(a, b cluster.HostPort) bool {
	return a.Port == b.Port && a.Protocol == b.Protocol && (a.HostIP == "" || b.HostIP == "" || a.HostIP == b.HostIP)
}

func portText(p cluster.HostPort) string {
	if p.HostIP != "" {
		return fmt.Sprintf("%d/%s of %s", p.Port, p.Protocol, p.HostIP)
	}
	return fmt.Sprintf("%d/%s", p.Port, p.Protocol)
}

// requirementText formats a requirement of an affinity.
func requirementText(r corev1.NodeSelectorRequirement) string {
	const most = 3
	values := r.Values
	more := ""
	if len(values) > most {
		values, more = values[:most], fmt.Sprintf(" and %d more", len(values)-most)
	}
	list := "(" + strings.Join(values, ", ") + more + ")"
	switch r.Operator {
	case corev1.NodeSelectorOpIn:
		return r.Key + " in " + list
	case corev1.NodeSelectorOpNotIn:
		return r.Key + " not in " + list
	case corev1.NodeSelectorOpExists:
		return "a label " + r.Key
	case corev1.NodeSelectorOpDoesNotExist:
		return "without label " + r.Key
	case corev1.NodeSelectorOpGt:
		return r.Key + " > " + strings.Join(values, ", ")
	case corev1.NodeSelectorOpLt:
		return r.Key + " < " + strings.Join(values, ", ")
	}
	return fmt.Sprintf("%s %s %s", r.Key, r.Operator, list)
}
