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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/retry"
)

// Multus' annotations: the networks of a pod as they are requested, and as they are
// (Network Plumbing Working Group, de-facto standard 1.3).
const (
	annotationNetworks      = "k8s.v1.cni.cncf.io/networks"
	annotationNetworkStatus = "k8s.v1.cni.cncf.io/network-status"
)

// bridgeResource is the prefix of the resources by which KubeVirt's bridge-marker
// reports the bridges of a node.
const bridgeResource = "bridge.network.kubevirt.io/"

// allByAffinity matches the scheduler's message when the pod's node affinity or selector
// excludes every node.
var allByAffinity = regexp.MustCompile(
	`^0/\d+ nodes are available: (\d+ node\(s\) didn't (satisfy plugin\(s\) \[NodeAffinity\]|match Pod's node affinity/selector)(, |\.?$))+$`,
)

// SchedulerWords returns the part of the scheduler's message about nodes, without the
// part about preemption, which does not help pods of the lowest priority.
func SchedulerWords(message string) string {
	words, _, _ := strings.Cut(OneLine(message), ". ")
	return strings.TrimSuffix(words, ".")
}

// labelSchedulable is on nodes whose virt-handler accepts VMs. KubeVirt selects it
// for every VM.
const labelSchedulable = "kubevirt.io/schedulable"

// preflightPatience is how long the scheduler or a network plugin may refuse a
// preflight pod. Both retry by themselves, in case the reason is temporary.
const preflightPatience = 5 * time.Second

// Attachment is what a preflight pod found out.
type Attachment struct {
	// Node that the pod ran on; empty if it was not scheduled.
	Node string
	// Cause why a VM cannot be attached there; nil means that it can.
	Cause *checkup.Cause
}

// Preflight attaches a short pod to the network of each of the VMs, where the VM is to
// run, and returns by the VM's index how that went: if a node lacks a bridge or a
// plugin, scheduler or kubelet report that in a second or two, and the VM would never
// start. It waits for at most half of the worksheet's setup timeout: the other half is for
// the VMs whose preflight pods ended. The pods are deleted when the result is known:
// nothing deletes them when the run is stopped later.
func (f *Fleet) Preflight(ctx context.Context, w *checkup.Worksheet, vms []int) (map[int]Attachment, error) {
	if len(vms) == 0 {
		return nil, nil
	}
	deadline, cancel := context.WithTimeout(ctx, time.Duration(w.Timeouts.Setup)/2)
	defer cancel()
	pods := make([]*corev1.Pod, len(vms))
	for i, vm := range vms {
		var err error
		if pods[i], err = f.preflight(w, vm); err != nil {
			return nil, fmt.Errorf("preflight pod for %s: %w", w.Sources[vm].Name(), err)
		}
	}
	errs := Each(len(pods), func(i int) error { return f.createPreflight(deadline, pods[i]) })
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
		list, err := f.Client.CoreV1().
			Pods(f.Namespace).
			List(deadline, metav1.ListOptions{LabelSelector: f.Labels(w.Check, checkup.RolePreflight).String()})
		if err != nil && ctx.Err() == nil && !retry.Passing(err) && deadline.Err() == nil {
			return nil, fmt.Errorf("read the state of preflight pods: %w", err)
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

// createPreflight creates a preflight pod. If admission forbids it, it is created again without requests and limits for
// CPU and memory: a LimitRange may demand others, and then has defaults. They are not left out at once, because a quota
// without a LimitRange demands them. If both are forbidden, the first error is returned.
func (f *Fleet) createPreflight(ctx context.Context, pod *corev1.Pod) error {
	err := f.create(ctx, pod)
	if !apierrors.IsForbidden(err) {
		return err
	}
	bare := pod.DeepCopy()
	own := bare.Spec.Containers[0].Resources
	for _, list := range []corev1.ResourceList{own.Requests, own.Limits} {
		delete(list, corev1.ResourceCPU)
		delete(list, corev1.ResourceMemory)
	}
	if f.create(ctx, bare) == nil {
		return nil
	}
	return err
}

// dismiss deletes the preflight pods of a check, and does not wait until they are
// gone. Remove deletes what dismiss could not.
func (f *Fleet) dismiss(ctx context.Context, check string) {
	found, err := f.list(ctx, f.Labels(check, checkup.RolePreflight).String())
	if err == nil {
		err = errors.Join(Each(len(found), func(i int) error {
			return f.remove(ctx, found[i], metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{
					UID: &found[i].UID,
				}, GracePeriodSeconds: new(int64(0)), // they have reported everything
			})
		})...)
	}
	if err != nil && ctx.Err() == nil {
		f.logf("::warning::cannot delete preflight pods, which teardown will retry: %v", err)
	}
}

// preflight is one run of Preflight.
type preflight struct {
	*Fleet
	w       *checkup.Worksheet
	found   map[int]Attachment
	waiting map[string]int       // VMs without a result, by their pod
	since   map[string]time.Time // since when a pod has been refused, by its name
	pods    map[string]*corev1.Pod
}

// look notes which VMs have a result now; over says that there is no time to look
// again.
func (p *preflight) look(ctx context.Context, over bool) {
	var warnings map[string]Warning
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
			found.Cause = setupCause("the API server reported nothing about its preflight pod")
		case pod == nil:
			found.Cause = setupCause("its preflight pod was deleted before it ended")
		case pod.Status.Phase == corev1.PodSucceeded:
			found.Cause = p.attached(pod, e)
		case pod.Status.Phase == corev1.PodFailed:
			found.Cause = setupCause(
				fmt.Sprintf("its preflight pod failed on node %s: %s", found.Node, explain(pod, warnings[name]).Message),
			)
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

// refused reports whether a pod has been refused for too long.
func (p *preflight) refused(pod *corev1.Pod, event Warning) bool {
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
// to set up its network, and whether the plugin refused the network. A plugin that got
// no answer itself did not refuse: that may pass.
func NetworkFailed(pod *corev1.Pod, event Warning) (failed, refused bool) {
	failed = event.Reason == reasonSandbox && pod.Status.Phase == corev1.PodPending &&
		condition(pod, corev1.PodReadyToStartContainers).Status != corev1.ConditionTrue
	words := strings.ToLower(event.Message)
	return failed, failed && !slices.ContainsFunc(passingWords, func(w string) bool { return strings.Contains(words, w) })
}

// reasonSandbox is that of the kubelet's event about a pod whose network could not be set up
// (kubernetes/pkg/kubelet/events/event.go).
const reasonSandbox = "FailedCreatePodSandBox"

// passingWords are in the messages of plugins when a server did not answer them. The
// last is the node authorizer's message about a pod that it does not know yet, when
// Multus uses the kubelet's identity.
var passingWords = []string{
	"timeout",
	"timed out",
	"deadline exceeded",
	"connection refused",
	"connection reset",
	"no route to host",
	"unexpected eof",
	"etcdserver",
	"no relationship found",
}

// cause says why a pod did not end.
func (p *preflight) cause(pod *corev1.Pod, e checkup.Endpoint, event Warning) *checkup.Cause {
	scheduled := condition(pod, corev1.PodScheduled)
	words := SchedulerWords(scheduled.Message)
	failed, _ := NetworkFailed(pod, event)
	switch {
	case scheduled.Status != corev1.ConditionFalse && failed:
		return setupCause(
			fmt.Sprintf("node %s cannot attach a VM to %s: %s",
				pod.Spec.NodeName, NetworkWords(e.VM), PluginWords(event.String())),
		)
	case scheduled.Status != corev1.ConditionFalse: // below
	case e.Node == "":
		return setupCause(fmt.Sprintf("no node accepts a VM on %s: %s", NetworkWords(e.VM), words))
	case allByAffinity.MatchString(words):
		return setupCause(
			fmt.Sprintf("no node %q accepts VMs (no such node, or no label %s=true): %s", e.Node, labelSchedulable, words),
		)
	case e.VM.Bridge != "" && strings.HasPrefix(e.VM.Resource, bridgeResource) &&
		strings.Contains(words, "Insufficient "+e.VM.Resource):
		return setupCause(fmt.Sprintf("node %s has no bridge %s: %s", e.Node, e.VM.Bridge, words))
	default:
		return setupCause(fmt.Sprintf("node %s accepts no VM on %s: %s", e.Node, NetworkWords(e.VM), words))
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
	message := fmt.Sprintf(
		"node %s did not attach a pod to %s: Multus is not active there",
		pod.Spec.NodeName,
		NetworkWords(e.VM),
	)
	switch {
	case status == "":
		message += " (the pod has no annotation " + annotationNetworkStatus + ")"
	case err != nil:
		message += fmt.Sprintf(" (the pod's annotation %s is invalid: %v)", annotationNetworkStatus, err)
	default:
		message += fmt.Sprintf(" (the pod's annotation %s does not name %s)", annotationNetworkStatus, name)
	}
	return setupCause(message)
}

// NetworkWords returns the network of a VM, and its bridge, for people.
func NetworkWords(vm *checkup.VM) string {
	words := "network " + vm.Network.String()
	if vm.Bridge != "" {
		words += " (bridge " + vm.Bridge + ")"
	}
	return words
}

// networkName returns the network of a VM with its namespace.
func (f *Fleet) networkName(vm *checkup.VM) string {
	if vm.Network.Namespace == "" {
		return f.Namespace + "/" + vm.Network.Name
	}
	return vm.Network.String()
}

// PluginWords returns the message of a network plugin from the kubelet's event about it:
// what follows the last of the prefixes that name pods and containers by their IDs.
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
	pod.Spec.Tolerations = nil // the VM has none
	c := &pod.Spec.Containers[0]
	c.Args = []string{"version"}
	if c.Resources.Requests == nil {
		c.Resources = corev1.ResourceRequirements{
			Requests: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("10m"),
				corev1.ResourceMemory: resource.MustParse("16Mi"),
			},
			Limits: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("100m"),
				corev1.ResourceMemory: resource.MustParse("64Mi"),
			},
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

// BesideVM returns where a VM, or its preflight pod, is to run: on its node, or, if it
// has none, not on the node of the other one of its pair, of that role.
func (f *Fleet) BesideVM(w *checkup.Worksheet, vm int, role checkup.Role) *corev1.Affinity {
	if node := w.Sources[vm].Node; node != "" {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{NodeTerm(node)},
			},
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
