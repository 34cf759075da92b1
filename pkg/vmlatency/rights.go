// SPDX-License-Identifier: Apache-2.0

package vmlatency

import (
	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// Rights are those that a check of this kind needs beyond the ones that every run
// needs. All of them are in namespaces.
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
		preflight = start + "pods that try the network out before VMs are started on it"
	)
	setup, probe, conclude := checkup.PhaseSetup, checkup.PhaseProbe, checkup.PhaseConclude
	var rights []checkup.Right
	for _, n := range v.Networks {
		rights = append(rights, inNamespace(n.Namespace, checkup.Right{
			Phase: setup, Group: "k8s.cni.cncf.io", Resource: "network-attachment-definitions", Names: []string{n.Name}, Verb: "get",
			Why: "pkg/vmlatency Survey: how VMs are plugged into the network",
		}))
	}
	for _, r := range []checkup.Right{
		{Phase: setup, Resource: "pods", Verb: "create", Why: preflight},
		{Phase: setup, Resource: "pods", Verb: "get", Why: preflight},
		{Phase: setup, Resource: "events", Verb: "list", Why: start + "why a pod or a VM did not start"},
		{Phase: setup, Group: group, Resource: guests, Verb: "create", Why: start + "VMs"},
		{Phase: setup, Group: group, Resource: guests, Verb: "get", Why: start + "a VM that an earlier try of the task has made"},
		{Phase: setup, Group: group, Resource: guests, Verb: "list", Why: start + "wait until VMs run; Sweep: leftovers of earlier runs"},
		{Phase: setup, Group: group, Resource: guests, Verb: "delete", Why: "pkg/guest Sweep: leftovers of earlier runs"},
		{Phase: setup, Group: consoles, Resource: console, Verb: "get", Why: start + "wait until guests answer"},

		{Phase: probe, Resource: "configmaps", Verb: "delete", Why: takeOver + "OwnerReferencesPermissionEnforcement wants it of who changes the owner of what owns the VMs"},
		{Phase: probe, Group: group, Resource: guests, Verb: "list", Why: measure + "VMs that went"},
		{Phase: probe, Resource: "pods", Verb: "list", Why: measure + "the pods of VMs that went"},
		{Phase: probe, Resource: "events", Verb: "list", Why: measure + "why a VM went"},
		{Phase: probe, Group: consoles, Resource: console, Verb: "get", Why: measure + "orders and answers"},

		{Phase: conclude, Resource: "pods", Verb: "delete", Why: remove + "pods of VMs, and those that tried networks out"},
		{Phase: conclude, Resource: "pods/log", Verb: "get", Why: evidence + "the logs of what went wrong"},
		{Phase: conclude, Resource: "events", Verb: "list", Why: evidence + "what happened to what went wrong"},
		{Phase: conclude, Group: group, Resource: guests, Verb: "list", Why: remove + "the run's VMs, and what is left of them"},
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
					Why: "pkg/kiagnose: the outcome in the keys of kiagnose's checkups",
				}))
			}
		}
	}
	return rights
}

// inNamespace gives a right its place; an empty namespace is the run's.
func inNamespace(namespace string, r checkup.Right) checkup.Right {
	r.Scope = checkup.ScopeRun
	if namespace != "" {
		r.Scope, r.Namespace = checkup.ScopeNamespace, namespace
	}
	return r
}

// Roster has an entry for each VM. Those that are not to be started have their
// cause; the others are filled in when they run.
func Roster(_ *checkup.Plan, w *checkup.Worksheet, _ *cluster.Snapshot) *checkup.Roster {
	roster := &checkup.Roster{Targets: make([]checkup.RosterEntry, len(w.Targets))}
	for i, e := range w.Targets {
		roster.Targets[i].Cause = e.Cause
	}
	return roster
}
