// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/connectivity"
	"github.com/checkplan/checkplan/pkg/kind"
)

// Name of the kind.
const Name checkup.Kind = "controlPlane"

// Kind probes connections between components of the control plane.
var Kind = kind.Kind{
	Name: Name, New: func() checkup.Spec { return &Spec{} }, Rules: rules(),
	Survey: Survey, Expand: Expand, Roster: Roster, Rights: allRights,
	Explain: Explain, Judge: Judge, Nodes: true, Tests: true,
	HostNetwork: hostNetwork,
}

// allRights are the rights of the survey, and those to write outcomes to objects.
func allRights(check checkup.Check) []checkup.Right {
	c, ok := check.Spec.(*Spec)
	if !ok {
		return nil
	}
	all := append(Rights(check), connectivity.Rights(c.ConnectivityChecks)...)
	if c.Preset == PresetAuto || c.Preset == PresetOpenShift {
		all = append(all, checkup.Right{
			Phase: checkup.PhaseProbe, Scope: checkup.ScopeRun, Group: "security.openshift.io",
			Resource: "securitycontextconstraints", Names: []string{hostNetworkSCC}, Verb: "use",
			Why: "pkg/fleet Measure: OpenShift admits agents on the host network",
		})
	}
	return append(all, checkup.Right{
		Phase: checkup.PhaseSetup, Scope: checkup.ScopeRun, Resource: "pods", Verb: "create",
		Why: "pkg/fleet Admitted: a dry run of an agent on the host network",
	})
}

// hostNetworkSCC is OpenShift's security context constraint for pods that are on the host network and restricted
// otherwise (cluster-kube-apiserver-operator, bindata/bootkube/scc-manifests). Elsewhere the right to use it is without
// effect.
const hostNetworkSCC = "hostnetwork-v2"

// hostNetwork reports whether agents will run on the host network. With the preset
// auto, they do if the cluster is one of kubeadm or OpenShift.
func hostNetwork(ctx context.Context, client kubernetes.Interface, spec checkup.Spec) bool {
	c, ok := spec.(*Spec)
	switch {
	case !ok || c.Preset == PresetGeneric:
		return false
	case c.Preset != PresetAuto:
		return true
	}
	// API servers are visible as pods: kubeadm's by their label, OpenShift's by its
	// API. Whoever may not look sees none.
	pods, err := client.CoreV1().
		Pods(metav1.NamespaceSystem).
		List(ctx, metav1.ListOptions{LabelSelector: "component=kube-apiserver", Limit: 1})
	if err == nil && len(pods.Items) > 0 {
		return true
	}
	_, err = client.Discovery().ServerResourcesForGroupVersion("config.openshift.io/v1")
	return err == nil
}
