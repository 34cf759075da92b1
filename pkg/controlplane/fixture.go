// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	corev1 "k8s.io/api/core/v1"
	schedulingcorev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

func fixtureTolerations(own []checkup.Toleration) []checkup.Toleration {
	exists := string(corev1.TolerationOpExists)
	all := append([]checkup.Toleration(nil), own...)
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeDiskPressure, corev1.TaintNodeMemoryPressure, corev1.TaintNodePIDPressure, corev1.TaintNodeUnschedulable} {
		all = append(all, checkup.Toleration{Key: key, Operator: exists})
	}
	return all
}

func takes(n cluster.Node, tolerations []checkup.Toleration) bool {
	if os, ok := n.Labels[corev1.LabelOSStable]; ok && os != "linux" {
		return false
	}
	tolerated := make([]corev1.Toleration, len(tolerations))
	for i, t := range tolerations {
		tolerated[i] = corev1.Toleration{Key: t.Key, Operator: corev1.TolerationOperator(t.Operator), Value: t.Value, Effect: corev1.TaintEffect(t.Effect), TolerationSeconds: t.TolerationSeconds}
	}
	_, untolerated := schedulingcorev1.FindMatchingUntoleratedTaint(klog.Background(), n.Taints, tolerated, func(t *corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	}, false)
	return !untolerated
}
