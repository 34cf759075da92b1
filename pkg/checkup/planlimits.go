// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"slices"
	"strings"
)

// PlanLimits are what a run of a plan may use at most, whatever the cluster has and whatever settings it is started
// with. A nil field does not limit.
type PlanLimits struct {
	// Pods that the run creates, VMs and containers in existing pods included.
	Pods *int `json:"pods,omitempty"`
	// Packets that the checks send in their first look.
	Packets *int `json:"packets,omitempty"`
	// PrivilegedPods are those in the network of their node.
	PrivilegedPods *int `json:"privilegedPods,omitempty"`
	// Rights outside the run's namespace, as Right.Words writes them, or without names of objects. nil does not limit;
	// an empty list admits none.
	Rights []string `json:"rights,omitzero"`
}

// Admits reports whether the limits admit a right outside the run's namespace.
func (l *PlanLimits) Admits(r Right) bool {
	if l == nil || l.Rights == nil {
		return true
	}
	all := r
	all.Names = nil
	return slices.Contains(l.Rights, r.Words()) || slices.Contains(l.Rights, all.Words())
}

// Words are the right as plans and messages write it: "list nodes", "get configmaps kubeadm-config in kube-system".
func (r Right) Words() string {
	s := r.Verb + " " + r.Object()
	if r.Namespace != "" {
		s += " in " + r.Namespace
	}
	return s
}

// Object names what the right is on: "pods/log", "apiservices.apiregistration.k8s.io", "configmaps cluster-info".
func (r Right) Object() string {
	resource, sub, found := strings.Cut(r.Resource, "/")
	if r.Group != "" {
		resource += "." + r.Group
	}
	if found {
		resource += "/" + sub
	}
	return strings.Join(append([]string{resource}, r.Names...), " ")
}
