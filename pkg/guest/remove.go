// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/fleet"
	"github.com/checkplan/checkplan/pkg/retry"
)

// all is everything of the VMs: VMs, pods, and anchors, which own them.
type all struct {
	vmis    []kubevirtv1.VirtualMachineInstance
	pods    []corev1.Pod
	anchors []corev1.ConfigMap
}

// names of everything, as kind/name, VMs first.
func (a *all) names() []string {
	var names []string
	for _, vmi := range a.vmis {
		names = append(names, "virtualmachineinstance/"+vmi.Name)
	}
	for _, pod := range a.pods {
		names = append(names, "pod/"+pod.Name)
	}
	for _, cm := range a.anchors {
		names = append(names, "configmap/"+cm.Name)
	}
	return names
}

// list lists what the selector matches, as far as there may be any. It tries until the deadline of ctx.
func (g *Guests) list(ctx context.Context, selector string) (*all, error) {
	return retry.Get(ctx, func() (*all, error) { return g.listOnce(ctx, selector) })
}

func (g *Guests) listOnce(ctx context.Context, selector string) (*all, error) {
	found := &all{}
	var err error
	if found.vmis, err = g.read(ctx, selector); err != nil {
		return nil, err
	}
	if found.pods, err = g.pods(ctx, selector); err != nil {
		return nil, err
	}
	if g.Fleet.Alone {
		return found, nil
	}
	options := metav1.ListOptions{LabelSelector: selector}
	anchors, err := g.Fleet.Client.CoreV1().ConfigMaps(g.Fleet.Namespace).List(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("list the VMs' owners: %w", err)
	}
	found.anchors = anchors.Items
	return found, nil
}

// expect notes the names of VMs that are about to be created.
func (g *Guests) expect(vmis []*kubevirtv1.VirtualMachineInstance) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, vmi := range vmis {
		g.mine = append(g.mine, vmi.Name)
	}
}

// read reads the VMs that the selector matches. If one process runs all phases, it reads those that it may have
// created, by name. Without KubeVirt there are none.
func (g *Guests) read(ctx context.Context, selector string) ([]kubevirtv1.VirtualMachineInstance, error) {
	if !g.Fleet.Alone {
		list, err := g.vmis().List(ctx, metav1.ListOptions{LabelSelector: selector})
		switch {
		case apierrors.IsNotFound(err): // KubeVirt was removed
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("list VMs: %w", err)
		}
		return list.Items, nil
	}
	g.mu.Lock()
	names := slices.Clone(g.mine)
	g.mu.Unlock()
	var found []kubevirtv1.VirtualMachineInstance
	for _, name := range names {
		vmi, err := g.vmis().Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("read VM %s: %w", name, err)
		case vmi.Labels[checkup.LabelRun] == g.Fleet.RunUID:
			found = append(found, *vmi)
		}
	}
	return found, nil
}

// pods lists the VMs' pods that the selector matches; none without the right.
func (g *Guests) pods(ctx context.Context, selector string) ([]corev1.Pod, error) {
	if g.NoPods {
		return nil, nil
	}
	list, err := g.Fleet.Client.CoreV1().Pods(g.Fleet.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list the VMs' pods: %w", err)
	}
	return list.Items, nil
}

// Left returns the names of what is left of the VMs of the run, as kind/name.
func (g *Guests) Left(ctx context.Context) ([]string, error) {
	found, err := g.list(ctx, g.Fleet.Labels("", checkup.RoleGuest).String())
	if err != nil {
		return nil, err
	}
	return found.names(), nil
}

// Remove deletes every VM of the run and waits until they and their pods are gone, or
// ctx is done. It returns the names of what is left, as kind/name.
//
// A pod whose kubelet does not answer is force-deleted some time after its grace
// period (Force), and KubeVirt then removes its VM; kubelet and virt-handler end what
// still runs when they come back.
func (g *Guests) Remove(ctx context.Context) (left []string, err error) {
	asked := map[types.UID]time.Time{}
	var denials fleet.Denials
	for {
		found, err := g.list(ctx, g.Fleet.Labels("", checkup.RoleGuest).String())
		if err != nil {
			// A process that runs all phases has reviewed its rights: an API server that denies them has just started.
			again := retry.Passing(err) || g.Fleet.Alone
			if again && ctx.Err() == nil && fleet.Sleep(ctx, g.poll()) {
				continue
			}
			return left, err
		}
		left = found.names()
		if len(left) == 0 {
			return nil, nil
		}
		problems := g.removeOnce(ctx, found, asked)
		if denials.Final(problems) || !fleet.Sleep(ctx, g.poll()) {
			return left, problems
		}
	}
}

// removeOnce deletes what was found, unless its deletion was requested before. Pods go with their VMs, and anchors when
// no VM is left that they own. A request that failed is forgotten, and thus made again.
func (g *Guests) removeOnce(ctx context.Context, found *all, asked map[types.UID]time.Time) error {
	var uids []types.UID
	var requests []func() error
	now := time.Now()
	request := func(uid types.UID, do func() error) {
		asked[uid] = now
		uids, requests = append(uids, uid), append(requests, do)
	}
	for i := range found.vmis {
		vmi := &found.vmis[i]
		if _, before := asked[vmi.UID]; before || vmi.DeletionTimestamp != nil {
			continue
		}
		request(vmi.UID, func() error { return g.deleteVMI(ctx, vmi) })
	}
	for i := range found.pods {
		pod := &found.pods[i]
		since, before := asked[pod.UID]
		switch {
		case pod.DeletionTimestamp == nil && len(found.vmis) > 0: // it goes with its VM
			continue
		case !before && pod.DeletionTimestamp != nil:
			asked[pod.UID] = now
			continue
		case !before:
			request(pod.UID, func() error { return g.deletePod(ctx, pod, metav1.DeleteOptions{}) })
			continue
		}
		if now.Sub(since) > time.Duration(deletionGrace(pod))*time.Second+cmp.Or(g.Force, 15*time.Second) {
			g.logf(
				"::warning::pod/%s of a VM on node %s did not end: force-deleted; the node's kubelet ends its containers when it answers again",
				pod.Name,
				pod.Spec.NodeName,
			)
			request(pod.UID, func() error {
				return g.deletePod(ctx, pod, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
			})
		}
	}
	if len(found.vmis) == 0 {
		for i := range found.anchors {
			anchor := &found.anchors[i]
			request(anchor.UID, func() error { return g.deleteAnchor(ctx, anchor) })
		}
	}
	errs := fleet.Each(len(requests), func(i int) error { return requests[i]() })
	for i, err := range errs {
		if err != nil {
			delete(asked, uids[i])
		}
	}
	return errors.Join(errs...)
}

// deletionGrace is how long a pod that is being deleted has to end, in seconds.
func deletionGrace(pod *corev1.Pod) int64 {
	for _, period := range []*int64{pod.DeletionGracePeriodSeconds, pod.Spec.TerminationGracePeriodSeconds} {
		if period != nil {
			return *period
		}
	}
	return 30 // Kubernetes' default
}

func (g *Guests) deleteVMI(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance) error {
	err := g.vmis().Delete(ctx, vmi.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &vmi.UID}})
	return deletion(err, "virtualmachineinstance/"+vmi.Name)
}

func (g *Guests) deletePod(ctx context.Context, pod *corev1.Pod, options metav1.DeleteOptions) error {
	options.Preconditions = &metav1.Preconditions{UID: &pod.UID}
	return deletion(g.Fleet.Client.CoreV1().Pods(g.Fleet.Namespace).Delete(ctx, pod.Name, options), "pod/"+pod.Name)
}

func (g *Guests) deleteAnchor(ctx context.Context, cm *corev1.ConfigMap) error {
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &cm.UID}}
	return deletion(
		g.Fleet.Client.CoreV1().ConfigMaps(g.Fleet.Namespace).Delete(ctx, cm.Name, options),
		"configmap/"+cm.Name,
	)
}

// deletion returns the error of a deletion: nil if the object is gone, or if its name
// now belongs to another object.
func deletion(err error, what string) error {
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("delete %s: %w", what, err)
}

// Sweep deletes the VMs of other runs of the plan that no run needs any longer, as
// fleet.Sweep does with pods. It returns how many it deleted.
func (g *Guests) Sweep(ctx context.Context) (int, error) {
	selector := g.Fleet.Labels("", checkup.RoleGuest)
	delete(selector, checkup.LabelRun)
	selector[checkup.LabelPlan] = g.Fleet.Plan
	found, err := g.list(ctx, selector.String())
	if err != nil {
		return 0, err
	}
	stale := func(meta metav1.ObjectMeta) bool {
		expires, err := time.Parse(time.RFC3339, meta.Annotations[fleet.AnnotationExpires])
		return err == nil && expires.Before(g.now()) && meta.Labels[checkup.LabelRun] != g.Fleet.RunUID
	}
	n := 0
	var problems []error
	deleted := func(err error) {
		if err == nil {
			n++
		}
		problems = append(problems, err)
	}
	for i := range found.vmis {
		if stale(found.vmis[i].ObjectMeta) {
			deleted(g.deleteVMI(ctx, &found.vmis[i]))
		}
	}
	for i := range found.anchors {
		if stale(found.anchors[i].ObjectMeta) {
			deleted(g.deleteAnchor(ctx, &found.anchors[i]))
		}
	}
	return n, errors.Join(problems...)
}

const (
	// evidenceVMs is the number of VMs of which evidence is kept.
	evidenceVMs = 20
	// evidenceLog is how much of a log is kept, from its end, in bytes.
	evidenceLog = 64 << 10
	// evidenceEvents is how many events of a VM are kept, the last ones.
	evidenceEvents = 50
)

// evidenceContainers are the containers of a VM's pod whose logs are kept.
var evidenceContainers = []string{"compute", "guest-console-log"}

// Evidence reads what is known of the VMs of the checks, of at most 20 of them, whether
// or not they look well. What cannot be read is left out, except the manifest.
func (g *Guests) Evidence(ctx context.Context, checks []string) ([]checkup.VMEvidence, error) {
	found, err := g.list(ctx, g.Fleet.Labels("", checkup.RoleGuest).String())
	if err != nil {
		return nil, err
	}
	vmis := slices.DeleteFunc(found.vmis, func(vmi kubevirtv1.VirtualMachineInstance) bool {
		return !slices.Contains(checks, vmi.Labels[checkup.LabelCheck])
	})
	if len(vmis) == 0 {
		return nil, nil
	}
	slices.SortFunc(vmis, func(a, b kubevirtv1.VirtualMachineInstance) int { return strings.Compare(a.Name, b.Name) })
	if n := len(vmis); n > evidenceVMs {
		g.logf("keeping evidence of the first %d of %d VMs", evidenceVMs, n)
		vmis = vmis[:evidenceVMs]
	}
	events, err := g.Fleet.Client.CoreV1().Events(g.Fleet.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		g.logf("::warning::cannot read events of the VMs: %v", err)
		events = &corev1.EventList{}
	}
	slices.SortStableFunc(
		events.Items,
		func(a, b corev1.Event) int { return fleet.EventTime(a).Compare(fleet.EventTime(b)) },
	)
	kept := make([]checkup.VMEvidence, len(vmis))
	fleet.Each(len(vmis), func(i int) error {
		vmi := &vmis[i]
		vmi.ManagedFields = nil
		vmi.SetGroupVersionKind(kubevirtv1.VirtualMachineInstanceGroupVersionKind)
		e := &kept[i]
		*e = checkup.VMEvidence{
			VM:       vmi.Name,
			Check:    vmi.Labels[checkup.LabelCheck],
			Node:     vmi.Status.NodeName,
			Phase:    string(vmi.Status.Phase),
			Manifest: fleet.Manifest(vmi),
		}
		var pod *corev1.Pod
		for j := range found.pods {
			if found.pods[j].Labels[kubevirtv1.CreatedByLabel] == string(vmi.UID) {
				pod = &found.pods[j]
				pod.ManagedFields, pod.TypeMeta = nil, metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"} // lists omit the type
				e.Pod = fleet.Manifest(pod)
			}
		}
		for _, event := range events.Items {
			about := event.InvolvedObject
			if about.Name == vmi.Name || pod != nil && about.Name == pod.Name {
				e.Events = append(
					e.Events,
					fmt.Sprintf(
						"%s %s %s: %s: %s",
						fleet.EventTime(event).UTC().Format(time.RFC3339),
						event.Type,
						about.Kind,
						event.Reason,
						fleet.OneLine(event.Message),
					),
				)
			}
		}
		e.Events = e.Events[max(0, len(e.Events)-evidenceEvents):]
		e.Logs = g.logs(ctx, pod)
		return nil // what cannot be read is left out
	})
	return kept, nil
}

// logs returns the ends of the logs of a VM's pod; nil if it has none.
func (g *Guests) logs(ctx context.Context, pod *corev1.Pod) map[string]string {
	if pod == nil || pod.Spec.NodeName == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // its kubelet may not answer
	defer cancel()
	logs := map[string]string{}
	for _, container := range evidenceContainers {
		log, err := g.Fleet.Log(ctx, pod.Name, &corev1.PodLogOptions{Container: container})
		if err != nil {
			logs[container] = fleet.OneLine("cannot be read: " + err.Error())
			continue
		}
		logs[container] = fleet.Tail(log, evidenceLog)
		log.Close()
	}
	return logs
}
