// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/fleet"
)

// sight is the state of the VMs of a check, as the API server has it at one time.
type sight struct {
	vmis map[string]*kubevirtv1.VirtualMachineInstance // by name
	// pods of the VMs, by the VM's UID; read only if a VM does not run.
	pods map[string]*corev1.Pod
	// The last warning about a VM or a pod, by name; nil if they were not or could not be read.
	vmiWarnings, podWarnings map[string]fleet.Warning
}

// see reads the state of the VMs of a check and, if one does not run, what explains
// it.
func (g *Guests) see(ctx context.Context, check string) (*sight, error) {
	selector := g.Fleet.Labels(check, checkup.RoleGuest).String()
	vmis, err := g.read(ctx, selector)
	if err != nil {
		return nil, fmt.Errorf("read the state of the VMs: %w", err)
	}
	s := &sight{vmis: map[string]*kubevirtv1.VirtualMachineInstance{}, pods: map[string]*corev1.Pod{}}
	fine := true
	for i := range vmis {
		vmi := &vmis[i]
		s.vmis[vmi.Name] = vmi
		fine = fine && vmi.IsRunning() &&
			condition(vmi, kubevirtv1.VirtualMachineInstanceReady).Status != corev1.ConditionFalse
	}
	if fine {
		return s, nil
	}
	pods, err := g.pods(ctx, selector)
	if err != nil {
		return nil, err
	}
	for i := range pods {
		pod := &pods[i]
		uid := pod.Labels[kubevirtv1.CreatedByLabel]
		if old := s.pods[uid]; old == nil || old.CreationTimestamp.Before(&pod.CreationTimestamp) {
			s.pods[uid] = pod
		}
	}
	s.vmiWarnings = g.Fleet.Warnings(ctx, "VirtualMachineInstance")
	s.podWarnings = g.Fleet.Warnings(ctx, "Pod")
	return s, nil
}

// trouble is what keeps a VM from starting.
type trouble struct {
	message string // empty if nothing does
	// patience is how long the trouble may last until the VM is given up; negative
	// means until the deadline.
	patience time.Duration
}

const (
	// networkPatience is how long plugins may refuse the network of a VM's pod: a
	// kubelet asks again every 10 to 15 s, and a preflight pod got the network.
	networkPatience = 45 * time.Second
	// handlerPatience is how long a virt-handler that has warned about a VM may take: it
	// tries again, too.
	handlerPatience = 45 * time.Second
)

// trouble says what keeps a VM from starting. patience is for trouble that has no
// patience of its own.
func (s *sight) trouble(vmi *kubevirtv1.VirtualMachineInstance, vm *checkup.VM, patience time.Duration) trouble {
	say := func(patience time.Duration, format string, args ...any) trouble {
		return trouble{fleet.OneLine(fmt.Sprintf(format, args...)), patience}
	}
	pod := s.pods[string(vmi.UID)]
	if pod == nil {
		// virt-controller's message about why it created no pod.
		c := condition(vmi, kubevirtv1.VirtualMachineInstanceSynchronized)
		switch {
		case c.Status != corev1.ConditionFalse:
			return trouble{}
		case fleet.RefusedSecurity(c.Message):
			patience = 0
		}
		return say(patience, "KubeVirt created no pod for it: %s", c.Message)
	}
	event := s.podWarnings[pod.Name]
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return say(patience, "its pod is not scheduled: %s", fleet.SchedulerWords(c.Message))
		}
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if waiting := c.State.Waiting; waiting != nil && fleet.Stuck(waiting.Reason) {
			return say(
				patience,
				"container %s of its pod on node %s does not start: %s: %s",
				c.Name,
				pod.Spec.NodeName,
				waiting.Reason,
				waiting.Message,
			)
		}
	}
	if failed, refused := fleet.NetworkFailed(pod, event); failed {
		if patience = max(patience, networkPatience); !refused {
			patience = -1
		}
		return say(
			patience,
			"node %s cannot attach it to %s: %s",
			pod.Spec.NodeName,
			fleet.NetworkWords(vm),
			fleet.PluginWords(event.String()),
		)
	}
	if warning := s.vmiWarnings[vmi.Name].String(); warning != "" && vmi.Status.Phase == kubevirtv1.Scheduled {
		return say(max(patience, handlerPatience), "node %s does not start it: %s", vmi.Status.NodeName, warning)
	}
	return trouble{}
}

// stage says how far a VM that does not run yet has come.
func (s *sight) stage(vmi *kubevirtv1.VirtualMachineInstance) string {
	phase := "its phase is " + cmp.Or(string(vmi.Status.Phase), "unknown")
	pod := s.pods[string(vmi.UID)]
	if pod == nil {
		return phase + ": it has no pod"
	}
	var waits []string
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		switch {
		case c.State.Waiting != nil:
			waits = append(waits, fmt.Sprintf("container %s is not started (%s)", c.Name, cmp.Or(c.State.Waiting.Reason, "Waiting")))
		case c.State.Running != nil && !c.Ready:
			waits = append(waits, fmt.Sprintf("container %s runs but is not ready", c.Name))
		}
	}
	where := cmp.Or(pod.Spec.NodeName, "no node")
	if len(waits) == 0 {
		waits = []string{"phase " + cmp.Or(string(pod.Status.Phase), "unknown")}
	}
	if warning := s.podWarnings[pod.Name].String(); warning != "" {
		waits = append(waits, warning)
	}
	return fleet.OneLine(fmt.Sprintf("%s: its pod on %s: %s", phase, where, strings.Join(waits, ", ")))
}

// ended says how a VM ended.
func (s *sight) ended(vmi *kubevirtv1.VirtualMachineInstance) string {
	message := "it ended"
	if vmi.Status.Phase == kubevirtv1.Failed {
		message = "it failed"
	}
	if vmi.Status.NodeName != "" {
		message += " on node " + vmi.Status.NodeName
	}
	var why []string
	if vmi.Status.Reason != "" {
		why = append(why, vmi.Status.Reason)
	}
	if c := condition(vmi, kubevirtv1.VirtualMachineInstanceSynchronized); c.Status == corev1.ConditionFalse {
		why = append(why, c.Message)
	}
	if pod := s.pods[string(vmi.UID)]; pod != nil {
		if pod.Status.Message != "" {
			why = append(why, pod.Status.Message)
		}
		for _, c := range pod.Status.ContainerStatuses {
			if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
				why = append(
					why,
					strings.TrimSpace(
						fmt.Sprintf("container %s of its pod ended with exit code %d %s", c.Name, t.ExitCode, t.Message),
					),
				)
			}
		}
		why = append(why, s.podWarnings[pod.Name].String())
	}
	why = append(why, s.vmiWarnings[vmi.Name].String())
	for _, w := range why {
		if w != "" && !strings.Contains(message, w) {
			message += ": " + w
		}
	}
	return fleet.OneLine(message)
}

// moved says how a VM left the node on which it started, or that a migration was tried; empty if neither is known. A
// migration holds up the VM, and ends on another path: what was measured meanwhile is no fact about the network.
// Nothing is known of a nil sight.
func (s *sight) moved(name, node string) string {
	if s == nil || s.vmis[name] == nil {
		return ""
	}
	now, m := s.vmis[name].Status.NodeName, s.vmis[name].Status.MigrationState
	if m == nil || m.StartTimestamp == nil {
		if now == node || now == "" || node == "" {
			return ""
		}
		return fmt.Sprintf("it moved from node %s to node %s during the check", node, now)
	}
	verb := "migrated"
	switch {
	case m.Failed:
		verb = "failed to migrate"
	case !m.Completed:
		verb = "began to migrate"
	}
	return fleet.OneLine(fmt.Sprintf("KubeVirt %s it from node %s to node %s during the check",
		verb, cmp.Or(m.SourceNode, node), cmp.Or(m.TargetNode, "?")))
}

// lost says why a VM that ran no longer runs, or "" if nothing is known, and whether it ended by itself. Nothing is known
// of a nil sight.
func (s *sight) lost(name string) (message string, final bool) {
	if s == nil {
		return "", false
	}
	vmi := s.vmis[name]
	switch {
	case vmi == nil, vmi.DeletionTimestamp != nil:
		return "it was deleted", false
	case vmi.IsFinal():
		return s.ended(vmi), true
	}
	if c := condition(vmi, kubevirtv1.VirtualMachineInstanceReady); c.Status == corev1.ConditionFalse {
		message = "it is no longer ready"
		if pod := s.pods[string(vmi.UID)]; pod != nil && pod.Spec.NodeName != "" {
			message += fmt.Sprintf(" on node %s: %s", pod.Spec.NodeName, cmp.Or(s.podWarnings[pod.Name].String(), c.Message))
		}
		return fleet.OneLine(message), false
	}
	return "", false
}
