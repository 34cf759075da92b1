// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedulingcorev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Tolerations converts a plan's tolerations to Kubernetes' type.
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

// daemonTolerations are the tolerations that the DaemonSet controller adds to its pods (AddOrUpdateDaemonPodTolerations
// in Kubernetes' pkg/controller/daemon/util), in its order; the last one only to pods on the host network.
var daemonTolerations = []checkup.Toleration{
	{Key: corev1.TaintNodeNotReady, Operator: "Exists", Effect: "NoExecute"},
	{Key: corev1.TaintNodeUnreachable, Operator: "Exists", Effect: "NoExecute"},
	{Key: corev1.TaintNodeDiskPressure, Operator: "Exists", Effect: "NoSchedule"},
	{Key: corev1.TaintNodeMemoryPressure, Operator: "Exists", Effect: "NoSchedule"},
	{Key: corev1.TaintNodePIDPressure, Operator: "Exists", Effect: "NoSchedule"},
	{Key: corev1.TaintNodeUnschedulable, Operator: "Exists", Effect: "NoSchedule"},
	{Key: corev1.TaintNodeNetworkUnavailable, Operator: "Exists", Effect: "NoSchedule"},
}

// DaemonSetPod returns a copy of a DaemonSet's pod with the tolerations that the DaemonSet controller adds. As in the
// controller, an added toleration replaces one of the pod that differs only in its seconds.
func DaemonSetPod(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	for _, t := range Tolerations(daemonTolerations) {
		if t.Key == corev1.TaintNodeNetworkUnavailable && !pod.Spec.HostNetwork {
			continue
		}
		same := func(have corev1.Toleration) bool { return t.MatchToleration(&have) }
		if i := slices.IndexFunc(pod.Spec.Tolerations, same); i >= 0 {
			pod.Spec.Tolerations[i] = t
		} else {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, t)
		}
	}
	return pod
}

// FixtureTolerations returns the tolerations of a fixture pod: the placement's, and those that the DaemonSet controller
// adds to its pods, with two differences.
//
// A node that is not ready or unreachable has two taints of that name, with the effects NoExecute and NoSchedule. The
// DaemonSet controller tolerates only the first: its pods stay on such a node, but none is started there. A check would
// then miss exactly the broken nodes; therefore fixtures tolerate both.
//
// The toleration of node.kubernetes.io/network-unavailable is left out: a DaemonSet has it only for pods on the host
// network, and a fixture needs the pod network, which such a node lacks.
//
// A placement that tolerates everything is returned unchanged.
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

// defaultTolerationSeconds is how long the admission plugin DefaultTolerationSeconds lets a pod stay on a node that is
// not ready or unreachable: the default of kube-apiserver's --default-not-ready-toleration-seconds.
const defaultTolerationSeconds = 300

// admitted returns a pod's tolerations with those that the admission plugin DefaultTolerationSeconds adds.
func admitted(tolerations []corev1.Toleration) []corev1.Toleration {
	tolerations = slices.Clone(tolerations)
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		has := slices.ContainsFunc(tolerations, func(t corev1.Toleration) bool {
			return (t.Key == key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "")
		})
		if !has {
			tolerations = append(tolerations, corev1.Toleration{
				Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
				TolerationSeconds: new(int64(defaultTolerationSeconds)),
			})
		}
	}
	return tolerations
}

// keepsAway reports whether a taint keeps pods without a matching toleration from being scheduled.
func keepsAway(t *corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
}

// tolerates reports whether one of the tolerations tolerates the taint. The comparison operators Gt and Lt are alpha,
// and disabled, in 1.35.
func tolerates(tolerations []corev1.Toleration, taint *corev1.Taint) bool {
	return schedulingcorev1.TolerationsTolerateTaint(klog.Background(), tolerations, taint, false)
}

// staysFor returns for how many seconds a pod may stay on a node, and the taint that evicts it; nil if none does. As in
// the taint eviction controller, the first toleration that tolerates a taint counts, and the shortest of these decides.
func staysFor(tolerations []corev1.Toleration, taints []corev1.Taint) (int64, *corev1.Taint) {
	var least int64
	var by *corev1.Taint
	for i := range taints {
		taint := &taints[i]
		if taint.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		first := slices.IndexFunc(tolerations, func(t corev1.Toleration) bool {
			return tolerates([]corev1.Toleration{t}, taint)
		})
		if first < 0 || tolerations[first].TolerationSeconds == nil {
			continue
		}
		if seconds := max(0, *tolerations[first].TolerationSeconds); by == nil || seconds < least {
			least, by = seconds, taint
		}
	}
	return least, by
}
