// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/pager"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Cluster is where a survey looks.
type Cluster struct {
	Kubernetes kubernetes.Interface
	// Metadata reads the reports' annotations without the reports. It is needed
	// only where a check's sample rotates, and may be nil elsewhere.
	Metadata metadata.Interface
	// Namespace of the run: where its reports are, and pods that are selected
	// without a namespace.
	Namespace string
}

// Survey reads what Expand needs for the podMesh checks of a plan. It needs the
// verb list on nodes; on pods, in the namespaces of targets.pods; and, where a
// sample rotates, on configmaps in the run's namespace. What it cannot read is
// an error: a cluster that was not looked at is not an empty one.
func Survey(ctx context.Context, c Cluster, p *checkup.Plan) (*Snapshot, error) {
	s := &Snapshot{APIVersion: checkup.APIVersion, Kind: SnapshotKind}
	var problems []error
	problem := func(err error) {
		if err != nil {
			problems = append(problems, err)
		}
	}

	version, err := c.Kubernetes.Discovery().ServerVersion()
	switch {
	case err == nil:
		s.ServerVersion = version.GitVersion
	case !apierrors.IsForbidden(err):
		return nil, fmt.Errorf("survey: read the API server's version: %w", err)
	}

	var rotates bool
	for _, name := range p.CheckNames() {
		mesh := p.Checks[name].PodMesh
		if mesh == nil {
			continue
		}
		rotates = rotates || mesh.Sample.Rotate
		if mesh.Targets.Pods == nil {
			continue
		}
		selection, err := selectionOf(*mesh.Targets.Pods)
		if err != nil {
			problem(fmt.Errorf("check %q: %w", name, err))
			continue
		}
		if slices.ContainsFunc(s.Selections, func(other Selection) bool {
			return other.Namespace == selection.Namespace && other.Selector == selection.Selector
		}) {
			continue
		}
		selection.Pods, err = c.pods(ctx, selection)
		problem(err)
		s.Selections = append(s.Selections, selection)
	}
	s.Nodes, err = c.nodes(ctx)
	problem(err)
	if rotates {
		s.Rounds, err = c.rounds(ctx, p.Name)
		problem(err)
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("survey: %w", errors.Join(problems...))
	}

	// A pod can be on a node that came or went between the two lists. It stays an
	// expected target, as one that is on no node that we know.
	known := map[string]bool{}
	for _, n := range s.Nodes {
		known[n.Name] = true
	}
	for _, selection := range s.Selections {
		for i, pod := range selection.Pods {
			if !known[pod.Node] {
				selection.Pods[i].Node = ""
			}
		}
	}
	s.sort()
	return s, nil
}

// nodes lists the nodes of the cluster.
func (c Cluster) nodes(ctx context.Context) ([]Node, error) {
	var nodes []Node
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return c.Kubernetes.CoreV1().Nodes().List(ctx, options)
	}
	err := pager.New(list).EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		nodes = append(nodes, nodeOf(o.(*corev1.Node)))
		return nil
	})
	if err != nil {
		return nil, missingRight(err, "list nodes", "list", "nodes", "")
	}
	return nodes, nil
}

// nodeOf keeps of a node what Expand reads.
func nodeOf(n *corev1.Node) Node {
	node := Node{
		Name:          n.Name,
		Labels:        n.Labels,
		Unschedulable: n.Spec.Unschedulable,
		Ready:         corev1.ConditionUnknown,
		PodCIDRs:      n.Spec.PodCIDRs,
	}
	if len(node.PodCIDRs) == 0 && n.Spec.PodCIDR != "" {
		node.PodCIDRs = []string{n.Spec.PodCIDR}
	}
	for _, t := range n.Spec.Taints {
		node.Taints = append(node.Taints, corev1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
	}
	for _, condition := range n.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			node.Ready = condition.Status
		}
	}
	for _, address := range n.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			node.InternalIPs = append(node.InternalIPs, address.Address)
		}
	}
	if pods, ok := n.Status.Allocatable[corev1.ResourcePods]; ok {
		node.Pods = new(pods.Value())
	}
	return node
}

// selectionOf returns the selection, still without pods, of a check's targets.
func selectionOf(t checkup.PodTargets) (Selection, error) {
	selector := &metav1.LabelSelector{MatchLabels: t.Selector.MatchLabels}
	for _, r := range t.Selector.MatchExpressions {
		selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: r.Key, Operator: metav1.LabelSelectorOperator(r.Operator), Values: r.Values,
		})
	}
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return Selection{}, fmt.Errorf("targets.pods.selector: %w", err)
	}
	if parsed.Empty() {
		return Selection{}, errors.New("targets.pods.selector: is empty, which would select every pod: say which labels the pods have")
	}
	return Selection{Namespace: t.Namespace, Selector: parsed.String()}, nil
}

// pods lists the pods of a selection that have not ended.
func (c Cluster) pods(ctx context.Context, s Selection) ([]Pod, error) {
	namespace := s.Namespace
	if namespace == "" {
		namespace = c.Namespace
	}
	var pods []Pod
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return c.Kubernetes.CoreV1().Pods(namespace).List(ctx, options)
	}
	err := pager.New(list).EachListItem(ctx, metav1.ListOptions{LabelSelector: s.Selector}, func(o runtime.Object) error {
		p := o.(*corev1.Pod)
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed || p.DeletionTimestamp != nil {
			return nil
		}
		pod := Pod{Name: p.Namespace + "/" + p.Name, Node: p.Spec.NodeName}
		for _, ip := range p.Status.PodIPs {
			pod.IPs = append(pod.IPs, ip.IP)
		}
		for _, condition := range p.Status.Conditions {
			if condition.Type == corev1.PodReady {
				pod.Ready = condition.Status == corev1.ConditionTrue
			}
		}
		pods = append(pods, pod)
		return nil
	})
	if err != nil {
		return nil, missingRight(err, fmt.Sprintf("list pods with labels %s in namespace %s", s.Selector, namespace), "list", "pods", namespace)
	}
	return pods, nil
}

// rounds reads from the annotations of the plan's reports which rounds they
// tell. An annotation that is not a number from 0 records no round.
func (c Cluster) rounds(ctx context.Context, plan string) ([]RecordedRound, error) {
	if c.Metadata == nil {
		return nil, errors.New("read the last round: no metadata client")
	}
	var rounds []RecordedRound
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return c.Metadata.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace(c.Namespace).List(ctx, options)
	}
	selector := labels.Set{checkup.LabelRole: string(checkup.RoleReport), checkup.LabelPlan: plan}.String()
	err := pager.New(list).EachListItem(ctx, metav1.ListOptions{LabelSelector: selector}, func(o runtime.Object) error {
		object := o.(*metav1.PartialObjectMetadata)
		for key, value := range object.Annotations {
			check, ok := strings.CutPrefix(key, checkup.AnnotationRound)
			round, err := strconv.Atoi(value)
			if !ok || err != nil || round < 0 {
				continue
			}
			rounds = append(rounds, RecordedRound{Plan: plan, Check: check, Round: round, Created: object.CreationTimestamp.UTC()})
		}
		return nil
	})
	if err != nil {
		return nil, missingRight(err, fmt.Sprintf("read the last round: list configmaps with labels %s in namespace %s", selector, c.Namespace), "list", "configmaps", c.Namespace)
	}
	// A report in several chunks tells its round with each of them.
	slices.SortFunc(rounds, compareRounds)
	return slices.Compact(rounds), nil
}

// missingRight wraps the error of a request, and says which right is missing if
// that is what it is.
func missingRight(err error, attempt, verb, resource, namespace string) error {
	if !apierrors.IsForbidden(err) {
		return fmt.Errorf("%s: %w", attempt, err)
	}
	where := "in the whole cluster (a ClusterRole)"
	if namespace != "" {
		where = "in namespace " + namespace + " (a Role)"
	}
	return fmt.Errorf("%s: missing the verb %s on %s %s: %w", attempt, verb, resource, where, err)
}
