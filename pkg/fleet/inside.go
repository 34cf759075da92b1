// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/retry"
	"github.com/checkplan/checkplan/pkg/scheduling"
)

// An agent inside an existing pod is an ephemeral container. It cannot mount a ConfigMap that the pod does not mount,
// so its order is in its environment. Nobody can delete it: it ends at its deadline, and stays in the pod's spec. The
// pod belongs to somebody else: it is never deleted, owned, or labelled.

// inside is the part of an agent that is an ephemeral container.
type inside struct {
	container corev1.EphemeralContainer
	// uid of the pod that has the container; empty before insert.
	uid types.UID
}

const (
	// orderVariable is the environment variable with the order.
	orderVariable = "CHECKPLAN_ORDER"
	// insideMemory is the agent's memory limit in a pod whose own containers need the rest: Kubernetes admits no resources
	// of an ephemeral container.
	insideMemory = "24MiB"
	// nonRoot is the UID of an agent in a pod whose user is root: that of distroless and Chainguard images, and of ours.
	nonRoot = 65532
	// reasonPodEnded is the reason of a pod's view (see view) whose own containers have ended.
	reasonPodEnded = "SourcePodEnded"
)

// agentInside returns the agent of a source that is an existing pod. It does not exist before insert.
func (f *Fleet) agentInside(w *checkup.Worksheet, order checkup.Order) (*agent, error) {
	source := w.Sources[order.Source]
	raw, err := json.Marshal(order)
	if err != nil {
		return nil, fmt.Errorf("encode its order: %w", err)
	}
	a := newAgent(w, order, source.Pod)
	// The kubelet expands $(NAME); in JSON a dollar sign is in strings only.
	value := strings.ReplaceAll(string(raw), "$", `\u0024`)
	spec := corev1.PodSpec{Containers: []corev1.Container{{}}}
	scheduling.Restrict(&spec)
	name := checkup.ObjectName(f.RunUID, w.Check, checkup.RoleAgent, partOf(w, checkup.RoleAgent, source))
	a.inside = &inside{container: corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name:            name,
		Image:           f.Image,
		ImagePullPolicy: corev1.PullIfNotPresent,
		Command:         []string{agentBinary},
		Args:            []string{"probe", "--order-env", orderVariable},
		Env: []corev1.EnvVar{
			{Name: orderVariable, Value: value}, {Name: "GOMEMLIMIT", Value: insideMemory},
		},
		SecurityContext:          spec.Containers[0].SecurityContext,
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}}}
	if n := len(value); n > checkup.MaxInsideOrder {
		a.refused = fmt.Errorf("the order for %s has %d bytes, and that of an ephemeral container at most %d: "+
			"measure fewer targets from each source pod (sample.degree, targets.pods)",
			checkup.Count(len(order.Targets), "target"), n, checkup.MaxInsideOrder)
	}
	return a, nil
}

// insertion is the patch that adds an ephemeral container. The UID makes the API server refuse it for another pod of
// the same name.
type insertion struct {
	Metadata struct {
		UID types.UID `json:"uid"`
	} `json:"metadata"`
	Spec struct {
		EphemeralContainers []corev1.EphemeralContainer `json:"ephemeralContainers"`
	} `json:"spec"`
}

// insert adds the agent to its pod, or finds the one that an earlier try of the task added.
func (f *Fleet) insert(ctx context.Context, w *checkup.Worksheet, a *agent) error {
	if a.refused != nil {
		return a.refused
	}
	namespace, name, _ := strings.Cut(a.name, "/")
	pods := f.Client.CoreV1().Pods(namespace)
	var err error
	for try := 1; ; try++ {
		var pod *corev1.Pod
		pod, err = pods.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return fmt.Errorf("source pod %s was deleted", a.name)
		case err == nil:
			if err := fit(pod, w.Sources[a.source].Node, a.inside.container.Name); err != nil {
				return err
			}
			a.inside.uid = pod.UID
			if has(pod, a.inside.container.Name) {
				return nil
			}
			var patch insertion
			container := a.inside.container
			if of := pod.Spec.SecurityContext; of != nil && of.RunAsUser != nil && *of.RunAsUser == 0 {
				// The container would be root like its pod, and the kubelet would not start it.
				container.SecurityContext = container.SecurityContext.DeepCopy()
				container.SecurityContext.RunAsUser = new(int64(nonRoot))
			}
			patch.Metadata.UID, patch.Spec.EphemeralContainers = pod.UID, []corev1.EphemeralContainer{container}
			var raw []byte
			if raw, err = json.Marshal(patch); err != nil {
				return fmt.Errorf("encode the ephemeral container of %s: %w", a.name, err)
			}
			_, err = pods.Patch(ctx, name, types.StrategicMergePatchType, raw, metav1.PatchOptions{}, "ephemeralcontainers")
			if err == nil {
				return nil
			}
		}
		if try >= tries || !retry.Passing(err) && !apierrors.IsConflict(err) || !Sleep(ctx, f.retry()) {
			return fmt.Errorf("start an ephemeral container in pod %s: %w", a.name, err)
		}
	}
}

// has reports whether a pod has an ephemeral container of that name.
func has(pod *corev1.Pod, container string) bool {
	for _, c := range pod.Spec.EphemeralContainers {
		if c.Name == container {
			return true
		}
	}
	return false
}

// fit says why a pod cannot be a source any more; nil if it can. node is the one that it was on when it was surveyed.
func fit(pod *corev1.Pod, node, container string) error {
	name := pod.Namespace + "/" + pod.Name
	switch n := len(pod.Spec.EphemeralContainers); {
	case pod.DeletionTimestamp != nil:
		return fmt.Errorf("source pod %s is being deleted", name)
	case over(pod):
		return fmt.Errorf("source pod %s has ended (%s)", name, pod.Status.Phase)
	case pod.Spec.NodeName != node:
		return fmt.Errorf("source pod %s is another one now: it was on node %s, and is on node %s",
			name, node, pod.Spec.NodeName)
	case pod.Spec.OS != nil && pod.Spec.OS.Name != corev1.Linux:
		return fmt.Errorf("source pod %s is for %s: agents run on Linux only", name, pod.Spec.OS.Name)
	case n >= checkup.MaxInside && !has(pod, container):
		return fmt.Errorf("source pod %s has %d ephemeral containers already, which Kubernetes keeps until the pod is "+
			"deleted: replace the pod, or measure from it less often", name, n)
	}
	return nil
}

// poll calls seen with the state of every source pod, as the agent in it sees it, until ctx ends. A watch of one pod
// would need the right to watch more; a request that fails is made again.
func (m *measuring) poll(ctx context.Context, seen func(a *agent, pod *corev1.Pod, gone bool)) {
	for {
		Each(len(m.agents), func(i int) error {
			a := m.agents[i]
			if _, waited := a.stuck(); !waited {
				return nil
			}
			namespace, name, _ := strings.Cut(a.name, "/")
			pod, err := m.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err) || err == nil && pod.UID != a.inside.uid:
				last, _ := a.state()
				if last == nil {
					last = &corev1.Pod{}
				}
				seen(a, last, true)
			case err == nil:
				seen(a, view(pod, a.inside.container.Name), false)
			}
			return nil
		})
		if !Sleep(ctx, m.retry()) {
			return
		}
	}
}

// view returns a pod as if the ephemeral container were its only one, so that its state reads as that of an agent's own
// pod. A container that has not begun when the pod ends never does.
func view(pod *corev1.Pod, container string) *corev1.Pod {
	v := pod.DeepCopy()
	waiting := &corev1.ContainerStateWaiting{Message: "the kubelet has reported nothing about the ephemeral container"}
	status := corev1.ContainerStatus{Name: container, State: corev1.ContainerState{Waiting: waiting}}
	for _, s := range pod.Status.EphemeralContainerStatuses {
		if s.Name == container {
			status = s
		}
	}
	v.Status.ContainerStatuses = []corev1.ContainerStatus{status}
	switch ended := status.State.Terminated; {
	case ended != nil && ended.ExitCode == 0:
		v.Status.Phase = corev1.PodSucceeded
	case ended != nil:
		v.Status.Phase = corev1.PodFailed
	case over(pod):
		v.Status.Phase, v.Status.Reason = corev1.PodFailed, reasonPodEnded
	default:
		v.Status.Phase = corev1.PodRunning
	}
	return v
}
