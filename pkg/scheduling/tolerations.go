// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedulingcorev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Tolerations are a plan's tolerations in Kubernetes' type.
func Tolerations(tolerations []checkup.Toleration) []corev1.Toleration {
	var all []corev1.Toleration
	for _, t := range tolerations {
		all = append(all, corev1.Toleration{
			Key: t.Key, Operator: corev1.TolerationOperator(t.Operator), Value: t.Value,
			Effect: corev1.TaintEffect(t.Effect), TolerationSeconds: t.TolerationSeconds,
		})
	}
	return all
}

// daemonTolerations are those that the DaemonSet controller gives to its pods
// (AddOrUpdateDaemonPodTolerations in Kubernetes' pkg/controller/daemon/util),
// in its order; the last one only to pods in the host's network.
var daemonTolerations = []checkup.Toleration{
	{Key: corev1.TaintNodeNotReady, Operator: "Exists", Effect: "NoExecute"},
	{Key: corev1.TaintNodeUnreachable, Operator: "Exists", Effect: "NoExecute"},
	{Key: corev1.TaintNodeDiskPressure, Operator: "Exists", Effect: "NoSchedule"},
	{Key: corev1.TaintNodeMemoryPressure, Operator: "Exists", Effect: "NoSchedule"},
	{Key: corev1.TaintNodePIDPressure, Operator: "Exists", Effect: "NoSchedule"},
	{Key: corev1.TaintNodeUnschedulable, Operator: "Exists", Effect: "NoSchedule"},
	{Key: corev1.TaintNodeNetworkUnavailable, Operator: "Exists", Effect: "NoSchedule"},
}

// DaemonSetPod returns a copy of a DaemonSet's pod as the DaemonSet controller
// makes it, with the tolerations that it adds. One of the pod's own that differs
// from those in its seconds only is replaced, as the controller does.
func DaemonSetPod(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	for _, t := range Tolerations(daemonTolerations) {
		if t.Key == corev1.TaintNodeNetworkUnavailable && !pod.Spec.HostNetwork {
			continue
		}
		if i := slices.IndexFunc(pod.Spec.Tolerations, func(have corev1.Toleration) bool { return t.MatchToleration(&have) }); i >= 0 {
			pod.Spec.Tolerations[i] = t
		} else {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, t)
		}
	}
	return pod
}

// FixtureTolerations returns the tolerations of a pod of ours: the placement's,
// and those that the DaemonSet controller gives to its pods, with two
// differences.
//
// A node that is not ready or unreachable carries two taints of that name, of
// effect NoExecute and NoSchedule. The DaemonSet controller tolerates the first
// only: its pods stay on such a node, but none is started there. A check would
// then lose just the nodes that are broken, so fixtures tolerate both.
//
// The toleration for node.kubernetes.io/network-unavailable, which a DaemonSet
// has for pods in the host's network only, is left out, as a fixture is in the
// pod network, which such a node is known not to have.
//
// A placement that tolerates everything needs none of them.
func FixtureTolerations(placement []checkup.Toleration) []checkup.Toleration {
	if slices.ContainsFunc(placement, func(t checkup.Toleration) bool {
		return t.Key == "" && t.Operator == "Exists" && t.Effect == ""
	}) {
		return placement
	}
	tolerations := slices.Clone(placement)
	for _, t := range daemonTolerations {
		switch t.Key {
		case corev1.TaintNodeNetworkUnavailable:
			continue
		case corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable:
			t.Effect = ""
		}
		if !slices.ContainsFunc(tolerations, func(have checkup.Toleration) bool {
			have.TolerationSeconds = nil
			return have == t
		}) {
			tolerations = append(tolerations, t)
		}
	}
	return tolerations
}

// defaultTolerationSeconds is how long the admission plugin
// DefaultTolerationSeconds lets a pod stay on a node that is not ready or
// unreachable: the default of kube-apiserver's
// --default-not-ready-toleration-seconds.
const defaultTolerationSeconds = 300

// admitted returns a pod's tolerations with those that the admission plugin
// DefaultTolerationSeconds adds.
func admitted(tolerations []corev1.Toleration) []corev1.Toleration {
	tolerations = slices.Clone(tolerations)
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		has := slices.ContainsFunc(tolerations, func(t corev1.Toleration) bool {
			return (t.Key == key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "")
		})
		if !has {
			tolerations = append(tolerations, corev1.Toleration{
				Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(defaultTolerationSeconds)),
			})
		}
	}
	return tolerations
}

// keepsAway reports whether a taint is one of those that keep pods from being
// scheduled.
func keepsAway(t *corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
}

// tolerates reports whether one of the tolerations tolerates the taint. The
// comparison operators Gt and Lt are alpha, and off, in 1.35.
func tolerates(tolerations []corev1.Toleration, taint *corev1.Taint) bool {
	return schedulingcorev1.TolerationsTolerateTaint(klog.Background(), tolerations, taint, false)
}

// staysFor returns for how many seconds a pod may stay on a node, and the taint
// by which it leaves; nil where no taint evicts it. It reckons as the taint
// eviction controller does: of each taint the first toleration that tolerates
// it counts, and of these the shortest.
func staysFor(tolerations []corev1.Toleration, taints []corev1.Taint) (int64, *corev1.Taint) {
	var least int64
	var by *corev1.Taint
	for i := range taints {
		taint := &taints[i]
		if taint.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		first := slices.IndexFunc(tolerations, func(t corev1.Toleration) bool { return tolerates([]corev1.Toleration{t}, taint) })
		if first < 0 || tolerations[first].TolerationSeconds == nil {
			continue
		}
		if seconds := max(0, *tolerations[first].TolerationSeconds); by == nil || seconds < least {
			least, by = seconds, taint
		}
	}
	return least, by
}
