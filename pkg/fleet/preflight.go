// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Multus' annotations: what a pod is to be attached to, and what it is attached to
// (Network Plumbing Working Group, de-facto standard 1.3).
const (
	annotationNetworks      = "k8s.v1.cni.cncf.io/networks"
	annotationNetworkStatus = "k8s.v1.cni.cncf.io/network-status"
)

// bridgeResource is what the names of the resources begin with by which KubeVirt's
// bridge-marker tells which bridges a node has.
const bridgeResource = "bridge.network.kubevirt.io/"

// allByAffinity matches the scheduler's words where it has ruled out every node by the
// pod's node affinity or selector.
var allByAffinity = regexp.MustCompile(`^0/\d+ nodes are available: (\d+ node\(s\) didn't (satisfy plugin\(s\) \[NodeAffinity\]|match Pod's node affinity/selector)(, |\.?$))+$`)

// SchedulerWords is what the scheduler said of nodes, without what it said of
// preemption, which is of no use to pods that came last.
func SchedulerWords(message string) string {
	words, _, _ := strings.Cut(OneLine(message), ". ")
	return strings.TrimSuffix(words, ".")
}

// labelSchedulable is on nodes whose virt-handler takes VMs. KubeVirt selects it
// for every VM.
const labelSchedulable = "kubevirt.io/schedulable"

// preflightPatience is how long the scheduler or a network plugin may go on
// refusing a preflight pod. Both try again by themselves, for what passes.
const preflightPatience = 5 * time.Second

// Attachment is what a preflight pod found out.
type Attachment struct {
	// Node that the pod ran on; empty if it came to none.
	Node string
	// Cause why a VM cannot be attached there; nil means that it can.
	Cause *checkup.Cause
}

// Preflight attaches a short pod to the network of each of the VMs, in the place
// in which the VM is to be, and tells by the VM's index how that went: a bridge or
// a plugin that a node lacks is told in a second or two, in the words of whoever
// said so, where a VM would never start. It waits for at most the worksheet's setup
// timeout. The pods are asked to go when that is known: a run that is stopped later
// has nothing that would take them along.
func (f *Fleet) Preflight(ctx context.Context, w *checkup.Worksheet, vms []int) (map[int]Attachment, error) {
	if len(vms) == 0 {
		return nil, nil
	}
	deadline, cancel := context.WithTimeout(ctx, time.Duration(w.Timeouts.Setup))
	defer cancel()
	pods := make([]*corev1.Pod, len(vms))
	for i, vm := range vms {
		var err error
		if pods[i], err = f.preflight(w, vm); err != nil {
			return nil, fmt.Errorf("preflight pod for %s: %w", w.Sources[vm].Name(), err)
		}
	}
	errs := Each(len(pods), func(i int) error { return f.create(deadline, pods[i]) })
	if err := EveryOne(errs); err != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("none of %d preflight pods could be created: %w", len(pods), err)
	}
	defer f.dismiss(ctx, w.Check)
	p := &preflight{Fleet: f, w: w, found: map[int]Attachment{}, waiting: map[string]int{}, since: map[string]time.Time{}}
	for i, vm := range vms {
		if errs[i] != nil {
			p.found[vm] = Attachment{Cause: setupCause("its preflight pod was not created: " + OneLine(errs[i].Error()))}
			continue
		}
		p.waiting[pods[i].Name] = vm
	}
	for len(p.waiting) > 0 {
		list, err := f.Client.CoreV1().Pods(f.Namespace).List(deadline, metav1.ListOptions{LabelSelector: f.Labels(w.Check, checkup.RolePreflight).String()})
		if err != nil && ctx.Err() == nil && !Passing(err) && deadline.Err() == nil {
			return nil, fmt.Errorf("look after preflight pods: %w", err)
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("wait for preflight pods: %w", context.Cause(ctx))
		}
		if err == nil {
			p.pods = map[string]*corev1.Pod{}
			for i := range list.Items {
				p.pods[list.Items[i].Name] = &list.Items[i]
			}
		}
		if over := deadline.Err() != nil; over || err == nil {
			p.look(ctx, over)
		}
		if len(p.waiting) > 0 {
			Sleep(deadline, f.retry()/2)
		}
	}
	return p.found, nil
}

// dismiss deletes the preflight pods of a check, and does not wait until they are
// gone. What it cannot delete is left to Remove.
func (f *Fleet) dismiss(ctx context.Context, check string) {
	found, err := f.list(ctx, f.Labels(check, checkup.RolePreflight).String())
	if err == nil {
		err = errors.Join(Each(len(found), func(i int) error {
			return f.remove(ctx, found[i], metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &found[i].UID}, GracePeriodSeconds: new(int64(0)), // they have said all
			})
		})...)
	}
	if err != nil && ctx.Err() == nil {
		f.logf("::warning::preflight pods are left to the teardown: %v", err)
	}
}

// preflight is one run of Preflight.
type preflight struct {
	*Fleet
	w       *checkup.Worksheet
	found   map[int]Attachment
	waiting map[string]int       // VMs that nothing was found out about, by their pod
	since   map[string]time.Time // since when a pod is refused, by its name
	pods    map[string]*corev1.Pod
}

// look finds out what there is to find out now; over says that there is no time to
// look again.
func (p *preflight) look(ctx context.Context, over bool) {
	var warnings map[string]string
	for name := range p.waiting {
		if pod := p.pods[name]; pod != nil && pod.Spec.NodeName != "" && !started(pod) {
			warnings = p.Warnings(ctx, "Pod")
			break
		}
	}
	for name, vm := range p.waiting {
		e := p.w.Sources[vm]
		pod := p.pods[name]
		found := Attachment{}
		if pod != nil {
			found.Node = pod.Spec.NodeName
		}
		switch {
		case pod == nil && over:
			found.Cause = setupCause("the API server did not tell of its preflight pod")
		case pod == nil:
			found.Cause = setupCause("its preflight pod was deleted before it ended")
		case pod.Status.Phase == corev1.PodSucceeded:
			found.Cause = p.attached(pod, e)
		case pod.Status.Phase == corev1.PodFailed:
			found.Cause = setupCause(fmt.Sprintf("its preflight pod failed on node %s: %s", found.Node, explain(pod, warnings[name]).Message))
		default:
			if p.refused(pod, warnings[name]) || over {
				found.Cause = p.cause(pod, e, warnings[name])
				break
			}
			continue
		}
		p.found[vm] = found
		delete(p.waiting, name)
	}
}

// refused reports whether a pod has been refused for so long that it will stay so.
func (p *preflight) refused(pod *corev1.Pod, event string) bool {
	patience := min(preflightPatience, p.patience())
	_, refused := NetworkFailed(pod, event)
	switch {
	case condition(pod, corev1.PodScheduled).Reason == corev1.PodReasonUnschedulable:
	case refused:
	case stuck(pod):
		patience = p.patience()
	default:
		delete(p.since, pod.Name)
		return false
	}
	if _, ok := p.since[pod.Name]; !ok {
		p.since[pod.Name] = time.Now()
	}
	return time.Since(p.since[pod.Name]) >= patience
}

// NetworkFailed reports whether the last warning about a pod is that a plugin failed
// to set up its network, and whether that is its word on the network. A plugin that did
// not get an answer itself has not refused: that passes.
func NetworkFailed(pod *corev1.Pod, event string) (failed, refused bool) {
	failed = strings.HasPrefix(event, "FailedCreatePodSandBox") && pod.Status.Phase == corev1.PodPending &&
		condition(pod, corev1.PodReadyToStartContainers).Status != corev1.ConditionTrue
	return failed, failed && !slices.ContainsFunc(passingWords, func(w string) bool { return strings.Contains(strings.ToLower(event), w) })
}

// passingWords are in what plugins say when somebody whom they asked was away. The
// last is the node authorizer's word on a pod that it has not yet heard of, where
// Multus asks with the kubelet's identity.
var passingWords = []string{"timeout", "timed out", "deadline exceeded", "connection refused", "connection reset", "no route to host", "unexpected eof", "etcdserver", "no relationship found"}

// cause says why a pod did not come to its end.
func (p *preflight) cause(pod *corev1.Pod, e checkup.Endpoint, event string) *checkup.Cause {
	scheduled := condition(pod, corev1.PodScheduled)
	words := SchedulerWords(scheduled.Message)
	failed, _ := NetworkFailed(pod, event)
	switch {
	case scheduled.Status != corev1.ConditionFalse && failed:
		return setupCause(fmt.Sprintf("node %s cannot attach a VM to %s: %s", pod.Spec.NodeName, NetworkWords(e.VM), PluginWords(event)))
	case scheduled.Status != corev1.ConditionFalse: // below
	case e.Node == "":
		return setupCause(fmt.Sprintf("no node takes a VM on %s: %s", NetworkWords(e.VM), words))
	case allByAffinity.MatchString(words):
		return setupCause(fmt.Sprintf("there is no node %q that takes VMs (no such name, or not labelled %s=true): %s", e.Node, labelSchedulable, words))
	case e.VM.Bridge != "" && strings.HasPrefix(e.VM.Resource, bridgeResource) && strings.Contains(words, "Insufficient "+e.VM.Resource):
		return setupCause(fmt.Sprintf("node %s has no bridge %s: %s", e.Node, e.VM.Bridge, words))
	default:
		return setupCause(fmt.Sprintf("node %s takes no VM on %s: %s", e.Node, NetworkWords(e.VM), words))
	}
	where := ""
	if pod.Spec.NodeName != "" {
		where = " on node " + pod.Spec.NodeName
	}
	return setupCause(fmt.Sprintf("its preflight pod did not start%s: %s", where, explain(pod, event).Message))
}

// attached says why a pod that ran was not attached; nil if it was.
func (p *preflight) attached(pod *corev1.Pod, e checkup.Endpoint) *checkup.Cause {
	var networks []struct {
		Name    string `json:"name"`
		Default bool   `json:"default"`
	}
	status := pod.Annotations[annotationNetworkStatus]
	err := json.Unmarshal([]byte(status), &networks)
	name := p.networkName(e.VM)
	for _, n := range networks {
		if n.Name == name || !n.Default && !strings.Contains(n.Name, "/") {
			return nil
		}
	}
	message := fmt.Sprintf("node %s did not attach a pod to %s: Multus does not act there", pod.Spec.NodeName, NetworkWords(e.VM))
	switch {
	case status == "":
		message += " (the pod has no annotation " + annotationNetworkStatus + ")"
	case err != nil:
		message += fmt.Sprintf(" (the pod's annotation %s makes no sense: %v)", annotationNetworkStatus, err)
	default:
		message += fmt.Sprintf(" (the pod's annotation %s does not name %s)", annotationNetworkStatus, name)
	}
	return setupCause(message)
}

// NetworkWords names the network of a VM, and its bridge, for people.
func NetworkWords(vm *checkup.VM) string {
	words := "network " + vm.Network.String()
	if vm.Bridge != "" {
		words += " (bridge " + vm.Bridge + ")"
	}
	return words
}

// networkName is the network of a VM with its namespace.
func (f *Fleet) networkName(vm *checkup.VM) string {
	if vm.Network.Namespace == "" {
		return f.Namespace + "/" + vm.Network.Name
	}
	return vm.Network.String()
}

// PluginWords is what a network plugin said, of the kubelet's event about it:
// behind the last of the wrappings that name pods and containers by their IDs.
func PluginWords(event string) string {
	for _, wrapping := range []string{"failed (add): ", "desc = "} {
		if i := strings.LastIndex(event, wrapping); i >= 0 {
			return event[i+len(wrapping):]
		}
	}
	return event
}

// preflight is the pod that is attached to the network of a VM.
func (f *Fleet) preflight(w *checkup.Worksheet, vm int) (*corev1.Pod, error) {
	e := w.Sources[vm]
	pod, err := f.pod(w, checkup.RolePreflight, e, time.Duration(w.Timeouts.Setup))
	if err != nil {
		return nil, err
	}
	pod.Labels[LabelPair] = strconv.Itoa(vm / 2)
	pod.Annotations[annotationNetworks] = f.networkName(e.VM)
	pod.Spec.NodeSelector = map[string]string{labelSchedulable: "true"}
	pod.Spec.Affinity = f.BesideVM(w, vm, checkup.RolePreflight)
	pod.Spec.Tolerations = nil // as the VM
	c := &pod.Spec.Containers[0]
	c.Args = []string{"version"}
	if c.Resources.Requests == nil {
		c.Resources = corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
		}
	}
	if e.VM.Resource != "" {
		one, name := *resource.NewQuantity(1, resource.DecimalSI), corev1.ResourceName(e.VM.Resource)
		c.Resources.Requests[name] = one
		if c.Resources.Limits == nil {
			c.Resources.Limits = corev1.ResourceList{}
		}
		c.Resources.Limits[name] = one // extended resources must have both
	}
	return pod, nil
}

// BesideVM is where a VM, or its preflight pod, is to be: on its node, or else on
// another one than the other of its pair, of that role.
func (f *Fleet) BesideVM(w *checkup.Worksheet, vm int, role checkup.Role) *corev1.Affinity {
	if node := w.Sources[vm].Node; node != "" {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{NodeTerm(node)}},
		}}
	}
	labels := f.Labels(w.Check, role)
	labels[LabelPair] = strconv.Itoa(vm / 2)
	return &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			LabelSelector: &metav1.LabelSelector{MatchLabels: labels}, TopologyKey: corev1.LabelHostname,
		}},
	}}
}
