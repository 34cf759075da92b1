// SPDX-License-Identifier: Apache-2.0

package vmlatency

import (
	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// Rights returns the rights that a check of this kind needs in addition to those of every run. All of them are in
// namespaces.
func Rights(c checkup.Check) []checkup.Right {
	v, ok := c.Spec.(*Spec)
	if !ok {
		return nil
	}
	const (
		guests    = "virtualmachineinstances"
		console   = guests + "/console"
		group     = "kubevirt.io"
		consoles  = "subresources.kubevirt.io"
		start     = "pkg/guest Start: "
		measure   = "pkg/guest Measure: "
		takeOver  = "pkg/guest TakeOver: "
		remove    = "pkg/guest Remove and Left: "
		evidence  = "pkg/guest Evidence: "
		preflight = start + "preflight pods, which test the network before VMs are started on it"
	)
	setup, probe, conclude := checkup.PhaseSetup, checkup.PhaseProbe, checkup.PhaseConclude
	rights := NetworkRights(v)
	for _, r := range []checkup.Right{
		{Phase: setup, Resource: "pods", Verb: "create", Why: preflight},
		{Phase: setup, Resource: "pods", Verb: "get", Why: preflight},
		{Phase: setup, Resource: "events", Verb: "list", Why: start + "why a pod or a VM did not start"},
		{Phase: setup, Group: group, Resource: guests, Verb: "create", Why: start + "VMs"},
		{Phase: setup, Group: group, Resource: guests, Verb: "get", Why: start + "finds a VM that an earlier try of the task created"},
		{Phase: setup, Group: group, Resource: guests, Verb: "list", Why: start + "wait until VMs run; Sweep: leftovers of earlier runs"},
		{Phase: setup, Group: group, Resource: guests, Verb: "delete", Why: "pkg/guest Sweep: leftovers of earlier runs"},
		{Phase: setup, Group: consoles, Resource: console, Verb: "get", Why: start + "wait until guests answer"},

		{Phase: probe, Resource: "configmaps", Verb: "delete", Why: takeOver + "OwnerReferencesPermissionEnforcement requires it to change the owner of the ConfigMap that owns the VMs"},
		{Phase: probe, Group: group, Resource: guests, Verb: "list", Why: measure + "finds deleted and migrated VMs"},
		{Phase: probe, Resource: "pods", Verb: "list", Why: measure + "reads the pods of deleted VMs"},
		{Phase: probe, Resource: "events", Verb: "list", Why: measure + "why a VM was deleted"},
		{Phase: probe, Group: consoles, Resource: console, Verb: "get", Why: measure + "sends orders and receives answers"},

		{Phase: conclude, Resource: "pods", Verb: "delete", Why: remove + "pods of VMs, and preflight pods"},
		{Phase: conclude, Resource: "pods/log", Verb: "get", Why: evidence + "logs of failed pods"},
		{Phase: conclude, Resource: "events", Verb: "list", Why: evidence + "events of failed pods and VMs"},
		{Phase: conclude, Group: group, Resource: guests, Verb: "list", Why: remove + "the run's VMs, and those that are left"},
		{Phase: conclude, Group: group, Resource: guests, Verb: "delete", Why: remove + "VMs"},
	} {
		r.Scope = checkup.ScopeRun
		rights = append(rights, r)
	}
	if v.Kiagnose != nil {
		for _, phase := range []checkup.Phase{setup, conclude} {
			for _, verb := range []string{"get", "update"} {
				rights = append(rights, inNamespace(v.Kiagnose.Namespace, checkup.Right{
					Phase: phase, Resource: "configmaps", Names: []string{v.Kiagnose.Name}, Verb: verb,
					Why: "pkg/kiagnose: writes the result with the keys of kiagnose's checkups",
				}))
			}
		}
	}
	return rights
}

// NetworkRights returns the rights that a check needs to read its networks.
func NetworkRights(v *Spec) []checkup.Right {
	var rights []checkup.Right
	for _, n := range v.Networks {
		rights = append(rights, inNamespace(n.Namespace, checkup.Right{
			Phase:    checkup.PhaseSetup,
			Group:    "k8s.cni.cncf.io",
			Resource: "network-attachment-definitions",
			Names:    []string{n.Name},
			Verb:     "get",
			Why:      "pkg/vmlatency Survey: how VMs are attached to the network",
		}))
	}
	return rights
}

// inNamespace sets the namespace of a right; an empty namespace is the run's.
func inNamespace(namespace string, r checkup.Right) checkup.Right {
	r.Scope = checkup.ScopeRun
	if namespace != "" {
		r.Scope, r.Namespace = checkup.ScopeNamespace, namespace
	}
	return r
}

// Roster returns an entry for each VM. VMs that will not be started have their cause; the other entries are set when
// the VMs run.
func Roster(_ *checkup.Plan, w *checkup.Worksheet, _ *cluster.Snapshot) *checkup.Roster {
	roster := &checkup.Roster{Targets: make([]checkup.RosterEntry, len(w.Targets))}
	for i, e := range w.Targets {
		roster.Targets[i].Cause = e.Cause
	}
	return roster
}
