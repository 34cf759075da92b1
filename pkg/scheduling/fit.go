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

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// Names of the scheduler's plugins, as checkup.NodeReason.Predicate has them
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

// Predicates lists them in the order in which the scheduler's default profile
// asks them.
var Predicates = []string{NodeUnschedulable, NodeName, TaintToleration, NodeAffinity, NodePorts, NodeResourcesFit, PodTopologySpread}

// What kube-scheduler 1.35 says, by the constants ErrReason... of its plugins
// (pkg/scheduler/framework/plugins) unless told otherwise.
const (
	saysUnschedulable = "node(s) were unschedulable"
	saysNodeName      = "node(s) didn't match the requested node name"
	saysTaint         = "node(s) had untolerated taint(s)" // tainttoleration, Filter
	saysAffinity      = "node(s) didn't match Pod's node affinity/selector"
	saysPinned        = "node(s) didn't satisfy plugin(s) [NodeAffinity]" // schedule_one.go: nodes that an affinity by name rules out at once
	saysConflict      = "pod affinity terms conflict"
	saysPorts         = "node(s) didn't have free ports for the requested pod ports"
	saysPods          = "Too many pods"   // noderesources, fitsRequest
	saysInsufficient  = "Insufficient %s" // noderesources, fitsRequest
	saysTopologyKey   = "node(s) didn't match pod topology spread constraints (missing required label)"
)

// Reason is why a node does not take a pod.
type Reason struct {
	checkup.NodeReason
	// Key is what it is about: of NodeAffinity the key of the nodeSelector, or
	// empty for the affinity; of TaintToleration the taint; of NodePorts the port;
	// of NodeResourcesFit the resource; of PodTopologySpread the topology key.
	Key string

	missed uint64 // demands, by bit
	short  int64  // how much of a resource is missing
	want   string // how much of it is requested
}

// Demands are what a pod demands of a node, worked out once for many nodes. They
// are not safe for concurrent use.
type Demands struct {
	all             []demand
	nodeName        string
	selector        []labelDemand
	affinity        *nodeaffinity.LazyErrorNodeSelector // nil if there is none
	terms           [][]expression
	pinned          map[string]bool // nodes that the affinity names; nil if it leaves that open
	tolerations     []corev1.Toleration
	toleratesCordon bool
	ports           []portDemand
	requests        []request
	spread          []labelDemand
	// Demands by bit; affine is 0 where each expression of the affinity is one.
	cordon, name, taint, affine, pods uint64

	// Messages that many nodes share.
	byTaint  map[tainted]Reason
	byMisses map[string]Reason
	scratch  corev1.Node
}

// demand is one thing that a node must meet.
type demand struct {
	predicate string
	met       string // continues "a node that ..."
	unmet     string // continues "every node ..."; empty where "no node" and met say it better
	// label that it is about; nil for others.
	label *corev1.NodeSelectorRequirement
	// request that it is; empty for others.
	request corev1.ResourceName
}

type labelDemand struct {
	key, value string
	missing    Reason // there is no such label
	other      Reason // it has another value
}

type expression struct {
	text   string
	parsed *nodeaffinity.LazyErrorNodeSelector
	demand uint64 // where the affinity has one term only, else 0
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

// NewDemands works out what a pod demands. The pod may be one that was never
// sent to an API server: what that would fill in is filled in (requests that are
// left out are the limits; ports of a pod in the host's network are host ports;
// default tolerations).
func NewDemands(pod *corev1.Pod) *Demands {
	spec := defaulted(pod)
	d := &Demands{
		nodeName: spec.NodeName, tolerations: admitted(spec.Tolerations),
		byTaint: map[tainted]Reason{}, byMisses: map[string]Reason{},
	}
	d.cordon = d.add(demand{predicate: NodeUnschedulable, met: "is not cordoned", unmet: "is cordoned"})
	d.toleratesCordon = tolerates(d.tolerations, &corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	d.name = d.add(demand{predicate: NodeName, met: "has the name " + spec.NodeName})
	d.taint = d.add(demand{predicate: TaintToleration, met: "has no taint that is not tolerated", unmet: "has a taint that is not tolerated"})
	for _, key := range slices.Sorted(maps.Keys(spec.NodeSelector)) {
		value := spec.NodeSelector[key]
		at := d.add(demand{predicate: NodeAffinity, met: fmt.Sprintf("has the label %s=%s", key, value), label: &corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}})
		says := func(format string, args ...any) Reason {
			return Reason{NodeReason: checkup.NodeReason{Predicate: NodeAffinity, Scheduler: saysAffinity, Message: fmt.Sprintf(format, args...)}, Key: key, missed: at}
		}
		l := labelDemand{key, value, says("no label %s, want %s (nodeSelector)", key, value), says("label %s is not %s (nodeSelector)", key, value)}
		if value == "" {
			l.missing, l.other = says("no label %s (nodeSelector)", key), says("label %s is not empty (nodeSelector)", key)
		}
		d.selector = append(d.selector, l)
	}
	if a := spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		d.require(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	for _, p := range cluster.HostPorts(spec) {
		d.ports = append(d.ports, portDemand{p, d.add(demand{predicate: NodePorts, met: "has port " + portText(p) + " free", unmet: "has port " + portText(p) + " taken"})})
	}
	d.pods = d.add(demand{predicate: NodeResourcesFit, met: "takes one more pod", unmet: "takes no more pods"})
	list := resourcehelper.PodRequests(&corev1.Pod{Spec: *spec}, resourcehelper.PodResourcesOptions{})
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if amount := amountOf(list, name); amount > 0 && decides(name) {
			text := amountText(name, amount)
			d.requests = append(d.requests, request{name, amount, d.add(demand{
				predicate: NodeResourcesFit, met: fmt.Sprintf("has %s of %s left", text, name), unmet: fmt.Sprintf("has less than %s of %s left", text, name), request: name,
			})})
		}
	}
	for _, c := range spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable != corev1.DoNotSchedule {
			continue
		}
		at := d.add(demand{predicate: PodTopologySpread, met: "has the label " + c.TopologyKey, label: &corev1.NodeSelectorRequirement{Key: c.TopologyKey, Operator: corev1.NodeSelectorOpExists}})
		d.spread = append(d.spread, labelDemand{key: c.TopologyKey, missing: Reason{
			NodeReason: checkup.NodeReason{Predicate: PodTopologySpread, Scheduler: saysTopologyKey, Message: fmt.Sprintf("no label %s (topologySpreadConstraints)", c.TopologyKey)},
			Key:        c.TopologyKey, missed: at,
		}})
	}
	return d
}

// add notes a demand, and returns its bit.
func (d *Demands) add(x demand) uint64 {
	d.all = append(d.all, x)
	return bitOf(len(d.all) - 1)
}

// bitOf is the bit of a demand, by its index. Those beyond the 63rd share one.
func bitOf(index int) uint64 { return 1 << min(index, 63) }

// require takes up a required node affinity.
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
			expressions = append(expressions, expression{requirementText(r), nodeaffinity.NewLazyErrorNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}), 0})
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

	// As NodeAffinity's PreFilter does: nodes that no term names are not looked at.
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

// Reasons returns every reason why the pod would not be scheduled to a node, in
// the order in which the scheduler would find them; nil if there is none, as far
// as the snapshot tells.
func (d *Demands) Reasons(n *cluster.Node) []Reason {
	var reasons []Reason
	affinity, matches := d.matches(n)
	if !matches && d.pinned != nil && !d.pinned[n.Name] {
		reasons = append(reasons, affinity)
	}
	if n.Unschedulable && !d.toleratesCordon {
		reasons = append(reasons, Reason{NodeReason: checkup.NodeReason{Predicate: NodeUnschedulable, Scheduler: saysUnschedulable, Message: "cordoned (spec.unschedulable)"}, missed: d.cordon})
	}
	if d.nodeName != "" && d.nodeName != n.Name {
		reasons = append(reasons, Reason{NodeReason: checkup.NodeReason{Predicate: NodeName, Scheduler: saysNodeName, Message: "the pod is for node " + d.nodeName}, missed: d.name})
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
		if slices.ContainsFunc(n.HostPorts, func(taken cluster.HostPort) bool { return conflict(p.HostPort, taken) }) {
			reasons = append(reasons, Reason{NodeReason: checkup.NodeReason{Predicate: NodePorts, Scheduler: saysPorts, Message: fmt.Sprintf("host port %s is taken", portText(p.HostPort))}, Key: portText(p.HostPort), missed: p.demand})
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

// matches reports whether a node matches the affinity, and if not, the reason.
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
		r = Reason{NodeReason: checkup.NodeReason{Predicate: NodeAffinity, Scheduler: says, Message: d.missText(missed)}, missed: demands}
		d.byMisses[key] = r
	}
	return r, false
}

// missText says which expressions of the affinity are not met.
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
		return "the affinity has no term, and so matches no node"
	case len(terms) == 1:
		return "not " + terms[0] + " (affinity)"
	case len(terms) > most:
		return fmt.Sprintf("none of %d terms: not %s, and so on (affinity)", len(terms), strings.Join(terms[:most], ", nor "))
	default:
		return fmt.Sprintf("none of %d terms: not %s (affinity)", len(terms), strings.Join(terms, ", nor "))
	}
}

// taintReason is the reason that an untolerated taint is.
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
		r = Reason{NodeReason: checkup.NodeReason{Predicate: TaintToleration, Scheduler: saysTaint, Message: fmt.Sprintf("taint %s is not tolerated%s", t.ToString(), note)}, Key: t.ToString(), missed: d.taint}
		d.byTaint[key] = r
	}
	return r
}

// resources appends what the node has too little of. Where it is not known what
// is requested there already, only what is more than the whole node counts.
func (d *Demands) resources(n *cluster.Node, reasons []Reason) []Reason {
	short := func(says string, demand uint64, name corev1.ResourceName, amount int64) {
		if _, told := n.Allocatable[name]; !told && n.Requested == nil && ofEveryNode(name) {
			return
		}
		takes, used := amountOf(n.Allocatable, name), amountOf(n.Requested, name)
		missing := amount - (takes - used)
		if missing <= 0 {
			return
		}
		r := Reason{NodeReason: checkup.NodeReason{Predicate: NodeResourcesFit, Scheduler: says}, Key: string(name), missed: demand, short: missing}
		switch {
		case name == corev1.ResourcePods:
			r.Message = fmt.Sprintf("has %d pods, and takes %d", used, takes)
		case amount > takes:
			r.want = amountText(name, amount)
			r.Message = fmt.Sprintf("short of %s %s: requests %s, and the node has %s in all", amountText(name, missing), name, r.want, amountText(name, takes))
		default:
			r.want = amountText(name, amount)
			r.Message = fmt.Sprintf("short of %s %s: requests %s, and %s of %s are left", amountText(name, missing), name, r.want, amountText(name, max(0, takes-used)), amountText(name, takes))
		}
		reasons = append(reasons, r)
	}
	short(saysPods, d.pods, corev1.ResourcePods, 1)
	for _, r := range d.requests {
		short(fmt.Sprintf(saysInsufficient, r.name), r.demand, r.name, r.amount)
	}
	return reasons
}

// unknown returns the predicates that a snapshot does not tell of a node.
func (d *Demands) unknown(n *cluster.Node) []string {
	if n.Requested != nil {
		return nil
	}
	if len(d.ports) > 0 {
		return []string{NodePorts, NodeResourcesFit}
	}
	return []string{NodeResourcesFit}
}

// defaulted returns a pod's spec with what the API server would fill in and a
// predicate reads. The pod's own stays as it is.
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

// decides reports whether the scheduler looks at a resource: at cpu, memory,
// ephemeral storage, and scalars (IsScalarResourceName in its util).
func decides(name corev1.ResourceName) bool {
	s := string(name)
	return ofEveryNode(name) && name != corev1.ResourcePods || strings.Contains(s, "/") || strings.HasPrefix(s, corev1.ResourceHugePagesPrefix) || strings.HasPrefix(s, corev1.ResourceAttachableVolumesPrefix)
}

// ofEveryNode reports whether every node has some of a resource. A snapshot
// without it does not tell how much; one without another resource tells that
// the node has none.
func ofEveryNode(name corev1.ResourceName) bool {
	return slices.Contains([]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods}, name)
}

// amountOf reads a quantity as the scheduler does: cpu in thousandths, all else
// in whole units, both rounded up.
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
	case name == corev1.ResourceMemory, name == corev1.ResourceEphemeralStorage, strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
		return resource.NewQuantity(amount, resource.BinarySI).String()
	}
	return resource.NewQuantity(amount, resource.DecimalSI).String()
}

// conflict reports whether two host ports exclude each other, as HostPortInfo's
// CheckConflict in k8s.io/kube-scheduler/framework does.
func conflict(a, b cluster.HostPort) bool {
	return a.Port == b.Port && a.Protocol == b.Protocol && (a.HostIP == "" || b.HostIP == "" || a.HostIP == b.HostIP)
}

func portText(p cluster.HostPort) string {
	if p.HostIP != "" {
		return fmt.Sprintf("%d/%s of %s", p.Port, p.Protocol, p.HostIP)
	}
	return fmt.Sprintf("%d/%s", p.Port, p.Protocol)
}

// requirementText spells a requirement of an affinity.
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
