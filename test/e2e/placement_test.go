// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"

	"github.com/checkplan/checkplan/pkg/checkup"
	clusterpkg "github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/placement"
	"github.com/checkplan/checkplan/pkg/scheduling"
)

// How many placements TestPlacementScheduler compares: states of the cluster, times
// waves of pods in each, times checks in each wave, times two sides.
const (
	placementStates = 20
	placementWaves  = 2
	placementChecks = 3
)

// fillerPort is in use on every node, by the state's filler pod.
const fillerPort = 9001

// schedulerReasons are the messages of the scheduler about nodes in these tests, as in Kubernetes 1.35, by plugin.
var schedulerReasons = []struct {
	plugin  string
	reasons []string
}{
	{"NodeUnschedulable", []string{"node(s) were unschedulable"}},
	{"TaintToleration", []string{"node(s) had untolerated taint(s)"}},
	{"NodeAffinity", []string{"node(s) didn't match Pod's node affinity/selector", "node(s) didn't satisfy plugin(s) [NodeAffinity]"}},
	{"NodePorts", []string{"node(s) didn't have free ports for the requested pod ports"}},
	{"NodeResourcesFit", []string{"Too many pods", "Insufficient cpu", "Insufficient memory", "Insufficient ephemeral-storage"}},
	{"PodTopologySpread", []string{"node(s) didn't match pod topology spread constraints (missing required label)"}},
}

// TestPlacementScheduler compares what pkg/placement predicts for random placements with what the sandbox's scheduler
// and DaemonSet controller do.
//
// Beside the sandbox's own nodes, some nodes exist only as objects: the scheduler treats them like all others, but the
// test chooses their resources, and no kubelet runs their pods. In each state of the cluster, each node except those of
// the control plane has random labels and taints, may be cordoned, and has a pod that uses some of its resources and a
// port. Waves of placements follow. The placements of a wave cannot affect each other: at most one in a wave requests
// resources that a node has, and host ports are all different or already in use. Before a wave exists, the snapshot
// predicts for each placement:
//
//   - the nodes to which a DaemonSet's pods are scheduled;
//   - whether a single pod is scheduled, and to one of which nodes; if it is not, how many nodes have each reason that
//     the scheduler gives.
func TestPlacementScheduler(t *testing.T) {
	f := newPlacementField(t, "placement-scheduler")
	var seen placementTally
	for state := range placementStates {
		t.Run(fmt.Sprintf("state-%02d", state), func(t *testing.T) {
			random := rand.New(rand.NewPCG(7, uint64(state)))
			f.enter(t, random, state)
			for wave := range placementWaves {
				f.wave(t, random, fmt.Sprintf("s%02dw%d", state, wave), &seen)
			}
		})
	}
	t.Logf("%s", &seen)
	if want := placementStates * placementWaves * placementChecks * 2; seen.placements != want {
		t.Errorf("%d placements were compared, want %d", seen.placements, want)
	}
	for _, plugin := range schedulerReasons {
		if seen.predicates[plugin.plugin] == 0 {
			t.Errorf("no node was rejected by %s: the placements do not test it", plugin.plugin)
		}
	}
	if seen.scheduled == 0 || seen.pending == 0 || seen.daemons == 0 || seen.partly == 0 {
		t.Errorf("not every outcome occurred: %s", &seen)
	}
}

// placementTally counts what was compared.
type placementTally struct {
	placements, scheduled, pending, daemons, partly int
	nodes                                           int            // verdicts on nodes
	predicates                                      map[string]int // of rejected nodes
}

func (p *placementTally) String() string {
	return fmt.Sprintf("%d placements, %d verdicts on nodes: %d single pods scheduled and %d pending; %d DaemonSets with pods, %d of them with pods that are pending; nodes rejected by %v",
		p.placements, p.nodes, p.scheduled, p.pending, p.daemons, p.partly, p.predicates)
}

// placementField is a cluster in which pods are placed.
type placementField struct {
	client    kubernetes.Interface
	namespace string
	// movable are the nodes that the test may change: all except those of the control plane.
	movable []string
}

// newPlacementField creates a namespace and nodes without a kubelet. It deletes them when the test ends.
func newPlacementField(t *testing.T, namespace string) *placementField {
	t.Helper()
	f := &placementField{client: kubernetes.NewForConfigOrDie(placementConfig(t)), namespace: namespace}
	placementNamespace(t, f.client, namespace, nil)

	nodes, err := f.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes.Items {
		if _, ok := n.Labels["node-role.kubernetes.io/control-plane"]; !ok {
			f.movable = append(f.movable, n.Name)
		}
	}
	real := slices.Clone(f.movable)
	t.Cleanup(func() {
		for _, name := range real {
			f.change(t, name, clearNode)
		}
	})
	f.hollowNodes(t, []hollowNode{
		{"hollow-0", "2", "4Gi", "110"},
		{"hollow-1", "4", "8Gi", "110"},
		{"hollow-2", "8", "2Gi", "110"},
		{"hollow-3", "4", "4Gi", "110"},
		{"hollow-4", "64", "64Gi", "1"}, // has room for the filler only
	})
	t.Cleanup(func() { f.removePods(t, "") })
	return f
}

// placementConfig returns the client configuration of the sandbox, without a rate limit.
func placementConfig(t *testing.T) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return config
}

// placementNamespace creates a namespace, deletes it when the test ends, and waits until pods can be created in it.
func placementNamespace(t *testing.T, c kubernetes.Interface, name string, labels map[string]string) {
	t.Helper()
	_, err := c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.CoreV1().Namespaces().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	eventually(t, 30*time.Second, func() error {
		_, err := c.CoreV1().ServiceAccounts(name).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
}

type hollowNode struct{ name, cpu, memory, pods string }

// hollowNodes creates nodes that exist only as objects, and renews their leases as a kubelet would: without that, they
// would soon not be ready.
func (f *placementField) hollowNodes(t *testing.T, nodes []hollowNode) {
	t.Helper()
	leases := f.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	for _, h := range nodes {
		has := corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(h.cpu), corev1.ResourceMemory: resource.MustParse(h.memory), corev1.ResourcePods: resource.MustParse(h.pods),
		}
		now := metav1.Now()
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: h.name, Labels: map[string]string{corev1.LabelOSStable: "linux", corev1.LabelHostname: h.name}},
			Status: corev1.NodeStatus{
				Capacity: has, Allocatable: has,
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: now, LastTransitionTime: now}},
			},
		}
		if _, err := f.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := f.client.CoreV1().Nodes().Delete(context.Background(), h.name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		f.movable = append(f.movable, h.name)
	}
	renew := func(ctx context.Context) error {
		for _, h := range nodes {
			lease := &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: h.name},
				Spec: coordinationv1.LeaseSpec{
					HolderIdentity: new(h.name), LeaseDurationSeconds: new(int32(40)), RenewTime: new(metav1.NowMicro()),
				},
			}
			have, err := leases.Get(ctx, h.name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
				_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
			case err == nil:
				have.Spec = lease.Spec
				_, err = leases.Update(ctx, have, metav1.UpdateOptions{})
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var renewing sync.WaitGroup
	renewing.Go(func() {
		tick := time.NewTicker(4 * time.Second) // as the kubelets of the sandbox, whose nodes have 18 s
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if err := renew(ctx); err != nil && ctx.Err() == nil {
					t.Errorf("renew the leases of nodes without a kubelet: %v", err)
				}
			}
		}
	})
	t.Cleanup(func() {
		stop()
		renewing.Wait()
		for _, h := range nodes {
			if err := leases.Delete(context.Background(), h.name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
	})
	// A new node has the taint of a node that is not ready.
	eventually(t, time.Minute, func() error {
		for _, h := range nodes {
			n, err := f.client.CoreV1().Nodes().Get(t.Context(), h.name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if len(n.Spec.Taints) > 0 {
				return fmt.Errorf("node %s has taints %v", h.name, n.Spec.Taints)
			}
		}
		return nil
	})
}

// change updates a node.
func (f *placementField) change(t *testing.T, name string, change func(*corev1.Node)) {
	t.Helper()
	ctx := context.Background() // cleanup changes nodes too
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		n, err := f.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(n)
		_, err = f.client.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Errorf("update node %s: %v", name, err)
	}
}

// The labels and taints of the test, and their values.
const labelPrefix = "placement.e2e/"

var (
	nodeLabels = map[string][]string{
		labelPrefix + "disk": {"ssd", "hdd"},
		labelPrefix + "gen":  {"1", "2", "3", "4", "5"},
		labelPrefix + "rack": {"a", "b"},
	}
	taintKeys   = []string{labelPrefix + "dedicated", labelPrefix + "gpu"}
	taintValues = []string{"infra", "db"}
	effects     = []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute, corev1.TaintEffectPreferNoSchedule}
)

// unschedulable is the taint that a controller adds to a cordoned node. The test adds it at once.
var unschedulable = corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}

// clearNode removes the labels and taints of the test from a node, and uncordons it.
func clearNode(n *corev1.Node) {
	maps.DeleteFunc(n.Labels, func(key, _ string) bool { return strings.HasPrefix(key, labelPrefix) })
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return strings.HasPrefix(t.Key, labelPrefix) || t.Key == unschedulable.Key
	})
	n.Spec.Unschedulable = false
}

// enter brings the cluster into a random state. When it returns, the scheduler has observed the state: on each node it
// has scheduled a pod that selects the state's own label.
func (f *placementField) enter(t *testing.T, random *rand.Rand, state int) {
	t.Helper()
	f.removePods(t, "")
	stateLabel, stateValue := labelPrefix+"state", strconv.Itoa(state)
	var fillers []*corev1.Pod
	for _, name := range f.movable {
		labels := map[string]string{stateLabel: stateValue}
		for _, key := range slices.Sorted(maps.Keys(nodeLabels)) {
			if random.IntN(4) > 0 {
				labels[key] = pick(random, nodeLabels[key])
			}
		}
		taints := map[corev1.Taint]bool{} // by key and effect
		for range pick(random, []int{0, 0, 1, 1, 2}) {
			taints[corev1.Taint{Key: pick(random, taintKeys), Effect: pick(random, effects)}] = true
		}
		cordon := random.IntN(6) == 0
		values := [...]string{pick(random, taintValues), pick(random, taintValues), ""}
		f.change(t, name, func(n *corev1.Node) {
			clearNode(n)
			maps.Copy(n.Labels, labels)
			for i, taint := range slices.SortedFunc(maps.Keys(taints), func(a, b corev1.Taint) int {
				return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Effect, b.Effect))
			}) {
				taint.Value = values[i]
				n.Spec.Taints = append(n.Spec.Taints, taint)
			}
			if cordon {
				n.Spec.Unschedulable = true
				n.Spec.Taints = append(n.Spec.Taints, unschedulable)
			}
		})
		filler := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "filler-" + name, Labels: map[string]string{"filler": ""}},
			Spec: corev1.PodSpec{
				NodeSelector: map[string]string{stateLabel: stateValue},
				Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
						MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{name}}},
					}}},
				}},
				Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
				TerminationGracePeriodSeconds: new(int64(0)),
				Containers: []corev1.Container{{
					Name: "filler", Image: "none.invalid/filler", ImagePullPolicy: corev1.PullNever,
					Ports: []corev1.ContainerPort{{ContainerPort: fillerPort, HostPort: fillerPort}},
					Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
						corev1.ResourceCPU:    resource.MustParse(pick(random, []string{"0", "100m", "500m", "1"})),
						corev1.ResourceMemory: resource.MustParse(pick(random, []string{"0", "256Mi", "1Gi"})),
					}},
				}},
			},
		}
		fillers = append(fillers, filler)
	}
	f.createPods(t, fillers)
	eventually(t, time.Minute, func() error {
		pods, err := f.client.CoreV1().Pods(f.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "filler"})
		if err != nil {
			return err
		}
		for _, p := range pods.Items {
			if p.Spec.NodeName == "" {
				return fmt.Errorf("pod %s is not scheduled: %v", p.Name, p.Status.Conditions)
			}
		}
		return nil
	})
}

// removePods deletes the DaemonSets and pods that match a selector, or all for "", and waits until they do not exist.
func (f *placementField) removePods(t *testing.T, selector string) {
	t.Helper()
	ctx := context.Background()
	options := metav1.ListOptions{LabelSelector: selector}
	at := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	if err := f.client.AppsV1().DaemonSets(f.namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, options); err != nil {
		t.Error(err)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		if err := f.client.CoreV1().Pods(f.namespace).DeleteCollection(ctx, at, options); err != nil {
			t.Error(err)
		}
		pods, err := f.client.CoreV1().Pods(f.namespace).List(ctx, options)
		daemons, derr := f.client.AppsV1().DaemonSets(f.namespace).List(ctx, options)
		if err = errors.Join(err, derr); err == nil && len(pods.Items)+len(daemons.Items) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("pods or DaemonSets are left in namespace %s (%v)", f.namespace, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (f *placementField) createPods(t *testing.T, pods []*corev1.Pod) {
	t.Helper()
	var group errgroup.Group
	for _, p := range pods {
		group.Go(func() error {
			_, err := f.client.CoreV1().Pods(f.namespace).Create(t.Context(), p, metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

func pick[T any](random *rand.Rand, from []T) T { return from[random.IntN(len(from))] }

// placementGenerator generates the placements of a wave.
type placementGenerator struct {
	*rand.Rand
	nodes []string
	port  int  // the last host port that was given to a placement
	asked bool // a placement of the wave already requests resources
}

// requested are requests of about the free resources of the nodes, of zero, and of more than any node has.
var requested = map[string][]string{
	"cpu":    {"0", "100m", "500m", "1", "1500m", "2", "3", "4", "8", "500"},
	"memory": {"0", "512Mi", "1Gi", "2Gi", "3Gi", "4Gi", "6Gi", "8Gi", "4000Gi"},
}

func (g *placementGenerator) placement() placement.PodPlacement {
	var p placement.PodPlacement
	if g.IntN(5) < 2 {
		key := pick(g.Rand, slices.Sorted(maps.Keys(nodeLabels)))
		p.NodeSelector = map[string]string{key: pick(g.Rand, nodeLabels[key])}
		if g.IntN(8) == 0 {
			p.NodeSelector[key] = "nowhere"
		}
	}
	for range pick(g.Rand, []int{0, 1, 1, 2, 3}) {
		p.Tolerations = append(p.Tolerations, g.toleration())
	}
	if g.IntN(2) == 0 {
		p.Affinity = g.affinity()
	}
	if g.IntN(6) == 0 {
		p.TopologySpreadConstraints = []checkup.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: labelPrefix + "rack", WhenUnsatisfiable: pick(g.Rand, []string{"DoNotSchedule", "DoNotSchedule", "ScheduleAnyway"}),
		}}
	}
	switch g.IntN(6) {
	case 0:
		p.HostPorts = []int{fillerPort}
	case 1:
		g.port++
		p.HostPorts = []int{g.port}
	}
	if !g.asked && g.IntN(2) == 0 {
		g.asked = true
		p.Resources.Requests = map[string]string{"cpu": pick(g.Rand, requested["cpu"])}
		if g.IntN(2) == 0 {
			p.Resources.Requests["memory"] = pick(g.Rand, requested["memory"])
		}
	}
	return p
}

func (g *placementGenerator) toleration() checkup.Toleration {
	switch g.IntN(8) {
	case 0:
		return checkup.Toleration{Operator: "Exists"}
	case 1:
		return checkup.Toleration{Key: unschedulable.Key, Operator: "Exists", Effect: string(unschedulable.Effect)}
	}
	t := checkup.Toleration{Key: pick(g.Rand, taintKeys)}
	switch g.IntN(3) {
	case 0:
		t.Operator = "Exists"
	case 1:
		t.Operator = "Equal"
		fallthrough
	default:
		t.Value = pick(g.Rand, append([]string{""}, taintValues...))
	}
	if g.IntN(2) == 0 {
		t.Effect = string(pick(g.Rand, effects))
	}
	if t.Effect == string(corev1.TaintEffectNoExecute) && g.IntN(2) == 0 {
		t.TolerationSeconds = new(int64(3600)) // longer than the test
	}
	return t
}

func (g *placementGenerator) affinity() json.RawMessage {
	var terms []corev1.NodeSelectorTerm
	for range 1 + g.IntN(3) {
		var term corev1.NodeSelectorTerm
		for range 1 + g.IntN(2) {
			key := pick(g.Rand, slices.Sorted(maps.Keys(nodeLabels)))
			r := corev1.NodeSelectorRequirement{Key: key}
			switch r.Operator = pick(g.Rand, []corev1.NodeSelectorOperator{
				corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists,
				corev1.NodeSelectorOpDoesNotExist, corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt,
			}); r.Operator {
			case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
				r.Values = []string{pick(g.Rand, nodeLabels[key]), "nowhere"}
			case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
				r.Key, r.Values = labelPrefix+"gen", []string{strconv.Itoa(1 + g.IntN(5))}
			}
			term.MatchExpressions = append(term.MatchExpressions, r)
		}
		if g.IntN(4) == 0 {
			term.MatchFields = []corev1.NodeSelectorRequirement{{
				Key:      metav1.ObjectNameField,
				Operator: pick(g.Rand, []corev1.NodeSelectorOperator{corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn}),
				Values:   []string{pick(g.Rand, g.nodes)},
			}}
		}
		terms = append(terms, term)
	}
	raw, err := json.Marshal(corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}})
	if err != nil {
		panic(err)
	}
	return raw
}

// predicted is what the snapshot predicts for one side of a check.
type predicted struct {
	name     string // of the pod or DaemonSet
	side     placement.Side
	asked    placement.PodPlacement
	eligible []string
	rejected map[string][]scheduling.NodeReason // by node
}

// wave creates and compares one wave. If the pods differ from the prediction, the wave is repeated, three times in all:
// a wrong prediction is wrong each time. The nodes may not be as surveyed any more, such as after a lease that was
// renewed late; or the scheduler considered a pod when it had not observed yet that the last wave's pods were deleted:
// it reports the reasons of that moment until an event that may help the pod, or for five minutes.
func (f *placementField) wave(t *testing.T, random *rand.Rand, name string, seen *placementTally) {
	t.Helper()
	g := &placementGenerator{Rand: random, nodes: f.movable, port: fillerPort}
	plan := &checkup.Plan{Name: name, Checks: map[string]checkup.Check{}}
	for i := range placementChecks {
		source, target := g.placement(), g.placement()
		plan.Checks[fmt.Sprintf("c%d", i)] = checkup.Check{Spec: &placement.Spec{SourcePlacement: &source, TargetPlacement: &target}}
	}
	for attempt := 1; ; attempt++ {
		before := f.survey(t, plan)
		all := predict(t, plan, before)
		f.create(t, all)
		// A difference may be transient: the scheduler may not have observed yet that the last wave's pods were deleted.
		var differences []string
		deadline := time.Now().Add(time.Duration(attempt) * 20 * time.Second) // on a busy machine, controllers are slow
		for {
			differences = f.compare(t, all)
			if len(differences) == 0 || time.Now().After(deadline) {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		during := f.survey(t, plan)
		f.removePods(t, "!filler")
		if len(differences) > 0 && attempt < 3 {
			t.Logf("wave %s is repeated: %s\nnodes that changed meanwhile (-before +during):\n%s", name,
				strings.Join(differences, "\n"), gocmp.Diff(bare(before.Nodes), bare(during.Nodes)))
			continue
		}
		for _, d := range differences {
			t.Errorf("wave %s: %s", name, d)
		}
		if len(differences) > 0 {
			nodes, _ := json.MarshalIndent(before.Nodes, "", " ")
			t.Logf("wave %s, nodes:\n%s", name, nodes)
		}
		for _, p := range all {
			seen.add(p)
		}
		return
	}
}

// survey returns the state of the cluster as far as the plan depends on it.
func (f *placementField) survey(t *testing.T, plan *checkup.Plan) *clusterpkg.Snapshot {
	t.Helper()
	reader := clusterpkg.Reader{Kubernetes: f.client, Namespace: f.namespace}
	snapshot, err := clusterpkg.Survey(t.Context(), reader)
	if err == nil {
		err = placement.Survey(t.Context(), reader, plan, snapshot)
	}
	if err != nil {
		t.Fatal(err)
	}
	return snapshot
}

// bare returns the nodes without what depends on their pods.
func bare(nodes []clusterpkg.Node) []clusterpkg.Node {
	nodes = slices.Clone(nodes)
	for i := range nodes {
		nodes[i].Requested, nodes[i].HostPorts = nil, nil
	}
	return nodes
}

// predict returns what the snapshot predicts for both sides of each check of the plan.
func predict(t *testing.T, plan *checkup.Plan, snapshot *clusterpkg.Snapshot) []predicted {
	t.Helper()
	var all []predicted
	for _, check := range plan.CheckNames() {
		w, _, err := placement.Expand(plan, check, snapshot)
		if err != nil {
			t.Fatalf("%s: %v", check, err)
		}
		asked := map[placement.SideName]placement.PodPlacement{
			placement.SideSource: *plan.Checks[check].Spec.(*placement.Spec).SourcePlacement,
			placement.SideTarget: *plan.Checks[check].Spec.(*placement.Spec).TargetPlacement,
		}
		sheet, err := placement.SheetOf(w)
		if err != nil {
			t.Fatalf("%s: %v", check, err)
		}
		for _, side := range sheet.Sides {
			p := predicted{name: check + "-" + string(side.Side), side: side, asked: asked[side.Side], eligible: side.Eligible, rejected: map[string][]scheduling.NodeReason{}}
			for _, group := range side.Rejected {
				for _, n := range group.Nodes {
					p.rejected[n] = group.Reasons
				}
			}
			all = append(all, p)
		}
	}
	return all
}

func (p *placementTally) add(of predicted) {
	if p.predicates == nil {
		p.predicates = map[string]int{}
	}
	p.placements++
	p.nodes += len(of.eligible) + len(of.rejected)
	var controlled int
	for _, reasons := range of.rejected {
		plugins := map[string]bool{}
		for _, r := range reasons {
			plugins[r.Predicate] = true
		}
		for plugin := range plugins {
			p.predicates[plugin]++
		}
		if !plugins["NodeAffinity"] && !plugins["TaintToleration"] {
			controlled++
		}
	}
	switch {
	case of.side.Side == placement.SideTarget:
		if len(of.eligible) > 0 {
			p.daemons++
			if controlled > 0 {
				p.partly++
			}
		}
	case len(of.eligible) > 0:
		p.scheduled++
	default:
		p.pending++
	}
}

// create creates the pods and DaemonSets of the predictions.
func (f *placementField) create(t *testing.T, all []predicted) {
	t.Helper()
	var group errgroup.Group
	for _, p := range all {
		var pod corev1.Pod
		if err := json.Unmarshal(p.side.Pod, &pod); err != nil {
			t.Fatal(err)
		}
		pod.Name = p.name
		pod.Labels["placement"] = p.name
		pod.Spec.TerminationGracePeriodSeconds = new(int64(0))
		group.Go(func() error {
			if p.side.Workload == "Deployment" {
				_, err := f.client.CoreV1().Pods(f.namespace).Create(t.Context(), &pod, metav1.CreateOptions{})
				return err
			}
			_, err := f.client.AppsV1().DaemonSets(f.namespace).Create(t.Context(), &appsv1.DaemonSet{
				ObjectMeta: metav1.ObjectMeta{Name: p.name},
				Spec: appsv1.DaemonSetSpec{
					Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"placement": p.name}},
					Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec},
				},
			}, metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// compare returns what differs from the prediction, and what is not decided yet.
func (f *placementField) compare(t *testing.T, all []predicted) []string {
	t.Helper()
	pods, err := f.client.CoreV1().Pods(f.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "placement"})
	if err != nil {
		t.Fatal(err)
	}
	daemons, err := f.client.AppsV1().DaemonSets(f.namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	of := map[string][]corev1.Pod{}
	for _, p := range pods.Items {
		if p.DeletionTimestamp == nil {
			of[p.Labels["placement"]] = append(of[p.Labels["placement"]], p)
		}
	}
	var differences []string
	add := func(p predicted, format string, args ...any) {
		asked, _ := json.Marshal(p.asked)
		differences = append(differences, fmt.Sprintf("%s: %s\nplacement: %s", p.name, fmt.Sprintf(format, args...), asked))
	}
	for _, p := range all {
		if message := p.strange(); message != "" {
			add(p, "%s", message)
		}
		if p.side.Workload == "Deployment" {
			if len(of[p.name]) != 1 {
				add(p, "%d pods exist, want 1", len(of[p.name]))
			} else if message := p.single(&of[p.name][0]); message != "" {
				add(p, "%s", message)
			}
			continue
		}
		i := slices.IndexFunc(daemons.Items, func(d appsv1.DaemonSet) bool { return d.Name == p.name })
		if i < 0 {
			add(p, "the DaemonSet does not exist")
			continue
		}
		d := daemons.Items[i]
		if d.Status.ObservedGeneration != d.Generation || int(d.Status.DesiredNumberScheduled) != len(of[p.name]) {
			add(p, "the DaemonSet has %d pods of %d", len(of[p.name]), d.Status.DesiredNumberScheduled)
		} else if message := p.daemonSet(of[p.name]); message != "" {
			add(p, "%s", message)
		}
	}
	return differences
}

// strange returns an error message if a reason is not one that the scheduler gives, or "".
func (p predicted) strange() string {
	for node, reasons := range p.rejected {
		for _, r := range reasons {
			i := slices.IndexFunc(schedulerReasons, func(known struct {
				plugin  string
				reasons []string
			}) bool {
				return known.plugin == r.Predicate
			})
			if i < 0 || !slices.Contains(schedulerReasons[i].reasons, r.Scheduler) {
				return fmt.Sprintf("node %s is predicted to be rejected by %s with %q, which is not a message of the scheduler", node, r.Predicate, r.Scheduler)
			}
		}
	}
	return ""
}

// first returns what the scheduler reports about a node: the reason of the first plugin that rejects it. For resources
// there may be several reasons.
func first(reasons []scheduling.NodeReason) []string {
	if len(reasons) == 0 {
		return nil
	}
	reported := []string{reasons[0].Scheduler}
	for _, r := range reasons[1:] {
		if r.Predicate == "NodeResourcesFit" && r.Predicate == reasons[0].Predicate {
			reported = append(reported, r.Scheduler)
		}
	}
	slices.Sort(reported)
	return reported
}

// single compares a single pod with the prediction. It returns the difference, or "".
func (p predicted) single(pod *corev1.Pod) string {
	if node := pod.Spec.NodeName; node != "" {
		if !slices.Contains(p.eligible, node) {
			return fmt.Sprintf("the pod is on %s; predicted: one of %q, and %s rejected: %v", node, p.eligible, node, p.rejected[node])
		}
		return ""
	}
	reported, message, decided := reportedReasons(pod)
	if !decided {
		return "the scheduler has not considered the pod"
	}
	if len(p.eligible) > 0 {
		return fmt.Sprintf("the pod is pending (%s); predicted: one of %q", message, p.eligible)
	}
	want := map[string]int{}
	for _, reasons := range p.rejected {
		for _, reason := range first(reasons) {
			want[reason]++
		}
	}
	if diff := gocmp.Diff(want, reported); diff != "" {
		return fmt.Sprintf("the scheduler reports other reasons (-predicted +reported):\n%s%s", diff, message)
	}
	return ""
}

// daemonSet compares the pods of a DaemonSet with the prediction: one pod for each node for which its controller
// creates one. It returns the difference, or "".
func (p predicted) daemonSet(pods []corev1.Pod) string {
	var on []string
	for _, pod := range pods {
		node := pinnedTo(&pod)
		if pod.Spec.NodeName != "" {
			on = append(on, pod.Spec.NodeName)
			continue
		}
		reported, message, decided := reportedReasons(&pod)
		if !decided {
			return "the scheduler has not considered the pod for " + node
		}
		// Ignore the reason for the nodes that the pod is not for.
		maps.DeleteFunc(reported, func(reason string, _ int) bool {
			return strings.HasPrefix(reason, "node(s) didn't satisfy plugin(s)")
		})
		if diff := gocmp.Diff(first(p.rejected[node]), slices.Sorted(maps.Keys(reported))); diff != "" {
			return fmt.Sprintf("the scheduler reports other reasons for node %s (-predicted +reported):\n%s%s", node, diff, message)
		}
	}
	slices.Sort(on)
	if diff := gocmp.Diff(p.eligible, on); diff != "" {
		return fmt.Sprintf("the DaemonSet's pods are on other nodes (-predicted +scheduled):\n%s", diff)
	}
	return ""
}

// pinnedTo returns the node for which the DaemonSet controller created a pod.
func pinnedTo(pod *corev1.Pod) string {
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, f := range term.MatchFields {
				if f.Key == metav1.ObjectNameField && len(f.Values) == 1 {
					return f.Values[0]
				}
			}
		}
	}
	return ""
}

var reportedReason = regexp.MustCompile(`^(\d+) (.+)$`)

// reportedReasons parses the condition PodScheduled of a pending pod: "0/9 nodes are available: 3 Insufficient cpu, 6
// node(s) had untolerated taint(s). no new claims to deallocate, preemption: ...". What follows the first sentence is
// not about nodes.
func reportedReasons(pod *corev1.Pod) (reasons map[string]int, message string, decided bool) {
	for _, c := range pod.Status.Conditions {
		if c.Type != corev1.PodScheduled || c.Status != corev1.ConditionFalse {
			continue
		}
		_, list, _ := strings.Cut(c.Message, " nodes are available: ")
		list, _, _ = strings.Cut(list, ". ")
		reasons = map[string]int{}
		for part := range strings.SplitSeq(strings.TrimSuffix(strings.TrimSpace(list), "."), ", ") {
			m := reportedReason.FindStringSubmatch(part)
			if m == nil {
				reasons[part]++
				continue
			}
			n, _ := strconv.Atoi(m[1])
			reasons[m[2]] += n
		}
		return reasons, c.Message, true
	}
	return nil, "", false
}

// TestPlacementAdmission creates pods in a dry run on the sandbox's API server: pod security, quota, limits and
// priority decide, and nothing is created.
func TestPlacementAdmission(t *testing.T) {
	parallel(t)
	config := placementConfig(t)
	c := kubernetes.NewForConfigOrDie(config)
	const restricted, warned, limited, full = "placement-restricted", "placement-warned", "placement-limited", "placement-full"
	placementNamespace(t, c, restricted, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	placementNamespace(t, c, warned, map[string]string{"pod-security.kubernetes.io/warn": "restricted"})
	placementNamespace(t, c, limited, nil)
	placementNamespace(t, c, full, nil)
	quantities := func(list ...string) corev1.ResourceList {
		all := corev1.ResourceList{}
		for i := 0; i < len(list); i += 2 {
			all[corev1.ResourceName(list[i])] = resource.MustParse(list[i+1])
		}
		return all
	}
	if _, err := c.CoreV1().LimitRanges(limited).Create(t.Context(), &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Name: "limits"},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type: corev1.LimitTypeContainer, DefaultRequest: quantities("cpu", "100m"), Max: quantities("memory", "1Gi"), Default: quantities("memory", "64Mi"),
		}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().ResourceQuotas(full).Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "none"}, Spec: corev1.ResourceQuotaSpec{Hard: quantities("pods", "0")},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, func() error {
		q, err := c.CoreV1().ResourceQuotas(full).Get(t.Context(), "none", metav1.GetOptions{})
		if err == nil && len(q.Status.Hard) == 0 {
			err = errors.New("the quota is not in effect yet")
		}
		return err
	})
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "placement-e2e"}, Value: 1234}
	if _, err := c.SchedulingV1().PriorityClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.SchedulingV1().PriorityClasses().Delete(context.Background(), class.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})

	nobody := rest.CopyConfig(config)
	nobody.Impersonate = rest.ImpersonationConfig{UserName: "placement-nobody"}
	away := rest.CopyConfig(config)
	away.Host = "https://127.0.0.1:1"

	snapshot, err := clusterpkg.Survey(t.Context(), clusterpkg.Reader{Kubernetes: c})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		config    *rest.Config // nil is the cluster's administrator
		namespace string
		change    func(*placement.PodPlacement)
		allowed   bool
		message   string // part of it
		warning   string
		changed   []string
		cause     string
	}{
		"a restricted namespace":       {namespace: restricted, allowed: true},
		"a host port, restricted":      {namespace: restricted, change: func(p *placement.PodPlacement) { p.HostPorts = []int{9100} }, message: `violates PodSecurity "restricted:latest": hostPort`},
		"a host port, warned of":       {namespace: warned, change: func(p *placement.PodPlacement) { p.HostPorts = []int{9100} }, allowed: true, warning: `would violate PodSecurity "restricted:latest": hostPort`},
		"a quota that is used up":      {namespace: full, message: "exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0"},
		"defaults of a limit range":    {namespace: limited, allowed: true, changed: []string{"request cpu 100m added", "request memory 64Mi added", "limit memory 64Mi added"}},
		"more than a limit range lets": {namespace: limited, change: func(p *placement.PodPlacement) { p.Resources.Limits = map[string]string{"memory": "2Gi"} }, message: "maximum memory usage per Container is 1Gi, but limit is 2Gi"},
		"a priority class":             {namespace: restricted, change: func(p *placement.PodPlacement) { p.PriorityClassName = class.Name }, allowed: true, changed: []string{"priority 1234 from the class placement-e2e"}},
		"no such priority class":       {namespace: restricted, change: func(p *placement.PodPlacement) { p.PriorityClassName = "no-such-class" }, message: "no PriorityClass with name no-such-class was found"},
		"more requested than limited": {namespace: restricted, change: func(p *placement.PodPlacement) {
			p.Resources.Requests, p.Resources.Limits = map[string]string{"cpu": "2"}, map[string]string{"cpu": "1"}
		}, message: "must be less than or equal to cpu limit"},
		"no such namespace":          {namespace: "placement-nowhere", cause: `namespaces "placement-nowhere" not found`},
		"no right":                   {config: nobody, namespace: restricted, cause: "missing the verb create on pods in namespace placement-restricted"},
		"an API server that is away": {config: away, namespace: restricted, cause: "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			p := placement.SourceDefaults()
			if tt.change != nil {
				tt.change(&p)
			}
			plan := &checkup.Plan{Name: "plan", Checks: map[string]checkup.Check{"check": {Spec: &placement.Spec{SourcePlacement: &p}}}}
			w, _, err := placement.Expand(plan, "check", snapshot)
			if err != nil {
				t.Fatal(err)
			}
			client := c
			if tt.config != nil {
				client = kubernetes.NewForConfigOrDie(tt.config)
			}
			all := placement.Ask(t.Context(), client, tt.namespace, w)
			if len(all) != 2 || all[0].Unit != string(placement.SideSource) || all[1].Unit != string(placement.SideTarget) {
				t.Fatalf("want one answer for each side: %+v", all)
			}
			cause := all[0].Cause
			var a placement.Admission
			if cause == nil {
				if err := json.Unmarshal(all[0].Content, &a); err != nil {
					t.Fatal(err)
				}
			}
			if a.Allowed != tt.allowed {
				t.Errorf("allowed is %v, want %v", a.Allowed, tt.allowed)
			}
			if (tt.message == "") != (a.Message == "") || !strings.Contains(a.Message, tt.message) {
				t.Errorf("message %q, want one that contains %q", a.Message, tt.message)
			}
			if warnings := strings.Join(a.Warnings, "\n"); (tt.warning == "") != (warnings == "") || !strings.Contains(warnings, tt.warning) {
				t.Errorf("warnings %q, want one that contains %q", warnings, tt.warning)
			}
			if diff := gocmp.Diff(tt.changed, a.Changed); diff != "" {
				t.Errorf("changes by admission (-want +got):\n%s", diff)
			}
			switch {
			case (tt.cause == "") != (cause == nil):
				t.Errorf("cause is %v, want %q", cause, tt.cause)
			case cause != nil && !strings.Contains(cause.Message, tt.cause):
				t.Errorf("cause %q, want one that contains %q", cause, tt.cause)
			}
		})
	}
	for _, namespace := range []string{restricted, warned, limited, full} {
		pods, err := c.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(pods.Items) > 0 {
			t.Errorf("a dry run created pods in %s: %v", namespace, pods.Items)
		}
	}
}

// networkCRDs are the CRDs of OpenShift's two kinds of configuration that a dry run reads.
const networkCRDs = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: networks.config.openshift.io}
spec:
  group: config.openshift.io
  scope: Cluster
  names: {kind: Network, listKind: NetworkList, plural: networks, singular: network}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: networks.operator.openshift.io}
spec:
  group: operator.openshift.io
  scope: Cluster
  names: {kind: Network, listKind: NetworkList, plural: networks, singular: network}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

// The cluster's configuration is used instead of the plan's, with the precedence of the legacy flag.
func TestPlacementNetworkConfig(t *testing.T) {
	parallel(t)
	absent := runPlan(t, "configured", 1)
	if absent.Verdict != checkup.RunInconclusive || !strings.Contains(describe(t, absent), "network.config.openshift.io") {
		t.Errorf("want inconclusive without the API, and its name:\n%s", describe(t, absent))
	}
	kubectlApply(t, networkCRDs)
	// The pods of the operator have this class, which OpenShift has.
	kubectlApply(t, "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: openshift-user-critical}\nvalue: 1000000000\n")
	t.Cleanup(func() {
		sandbox(t, "kubectl", "delete", "crd", "networks.config.openshift.io", "networks.operator.openshift.io")
		sandbox(t, "kubectl", "delete", "priorityclass", "openshift-user-critical")
	})
	sandbox(t, "kubectl", "wait", "--for=condition=Established", "crd/networks.config.openshift.io", "crd/networks.operator.openshift.io", "--timeout=30s")
	for _, tt := range []struct {
		name, config, operator string
		mode                   string
		source                 []string // eligible nodes
		reason                 string   // of the condition
	}{
		{
			name:     "the configuration",
			config:   `{networkDiagnostics: {mode: All, sourcePlacement: {nodeSelector: {kubernetes.io/hostname: worker-2}}}}`,
			operator: `{disableNetworkDiagnostics: true}`, mode: "All", source: []string{"worker-2"}, reason: "AsExpected",
		},
		{
			name:     "nobody matches",
			config:   `{networkDiagnostics: {sourcePlacement: {nodeSelector: {example.test/none: ""}}}}`,
			operator: `{}`, mode: "All", reason: "NoSources",
		},
		{name: "the legacy flag", config: `{}`, operator: `{disableNetworkDiagnostics: true}`, mode: "Disabled", reason: "NoSources"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			kubectlApply(t, fmt.Sprintf("apiVersion: config.openshift.io/v1\nkind: Network\nmetadata: {name: cluster}\nspec: %s\n---\napiVersion: operator.openshift.io/v1\nkind: Network\nmetadata: {name: cluster}\nspec: %s\n", tt.config, tt.operator))
			r := runPlan(t, "configured", 0)
			c := r.Checks[0]
			mode := tt.mode
			if tt.mode == "" {
				mode = "not set, which is All"
			}
			if len(c.Blocks) == 0 || !strings.Contains(c.Blocks[0].Note, "; mode "+mode+";") {
				t.Fatalf("want mode %s:\n%s", mode, describe(t, r))
			}
			reason := ""
			for _, k := range c.Conditions {
				reason += k.Reason
			}
			if reason != tt.reason {
				t.Errorf("conditions %+v, want reason %q:\n%s", c.Conditions, tt.reason, describe(t, r))
			}
			for _, u := range c.Units {
				if u.Name != string(placement.SideSource) {
					continue
				}
				i := slices.IndexFunc(u.Values, func(v checkup.Value) bool { return v.Name == "eligible_nodes" })
				if i < 0 || u.Values[i].Value != float64(len(tt.source)) {
					t.Errorf("values %+v, want %d eligible nodes:\n%s", u.Values, len(tt.source), describe(t, r))
				}
			}
			lands := ""
			for _, b := range c.Blocks {
				if b.List == nil {
					continue
				}
				for _, side := range b.List.Items {
					if side.Name == string(placement.SideSource) {
						for _, line := range side.Items {
							lands += line.Text + "\n"
						}
					}
				}
			}
			if want := "lands on " + strings.Join(tt.source, ", "); len(tt.source) == 1 && !strings.Contains(lands, want) ||
				len(tt.source) > 1 && !strings.Contains(lands, "lands on one of "+strings.Join(tt.source, ", ")) {
				t.Errorf("sources: %s\nwant sources on %q:\n%s", lands, tt.source, describe(t, r))
			}
			if (len(c.Units) == 0) != (tt.mode == "Disabled") {
				t.Errorf("%d sides in mode %s, want none only in mode Disabled", len(c.Units), tt.mode)
			}
		})
	}
}

// kubectlApply applies manifests.
func kubectlApply(t *testing.T, manifests string) {
	t.Helper()
	c := sandboxCommand("kubectl", "apply", "-f", "-")
	c.Stdin = strings.NewReader(manifests)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}
