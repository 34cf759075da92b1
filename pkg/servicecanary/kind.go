// SPDX-License-Identifier: Apache-2.0

package servicecanary

import (
	"context"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/kind"
)

// Name of the kind.
const Name checkup.Kind = "serviceCanary"

// Kind measures from each node which responders answer behind Services of the plan's own.
var Kind = kind.Kind{
	Name: Name, New: func() checkup.Spec { return &Spec{} }, Rules: rules(),
	Survey: survey, Expand: Expand, Roster: kind.ExistingTargets, Rights: Rights,
	Explain: Explain, Judge: Judge, Again: Again, Nodes: true, Tests: true,
}

// survey adds nothing: the nodes are in every snapshot.
func survey(context.Context, cluster.Reader, *checkup.Plan, *cluster.Snapshot) error { return nil }

// Rights are those to create the Services in the namespace of the run, to read what the API says of them, and to delete
// them.
func Rights(c checkup.Check) []checkup.Right {
	spec, ok := c.Spec.(*Spec)
	if !ok {
		return nil
	}
	var rights []checkup.Right
	add := func(phase checkup.Phase, group, resource, verb, why string) {
		rights = append(rights, checkup.Right{
			Phase: phase, Scope: checkup.ScopeRun, Group: group, Resource: resource, Verb: verb, Why: why,
		})
	}
	const slices = "discovery.k8s.io"
	add(checkup.PhaseSetup, "", "services", "create", "pkg/fleet StartResponders: the plan's own Services")
	add(checkup.PhaseSetup, "", "services", "list", "pkg/fleet Sweep: leftovers of earlier runs")
	add(checkup.PhaseSetup, "", "services", "delete",
		"pkg/fleet Sweep: leftovers of earlier runs; StartResponders: a Service of an earlier try of the task")
	add(checkup.PhaseSetup, slices, "endpointslices", "list", "pkg/fleet StartResponders: wait until the Services have their endpoints")
	add(checkup.PhaseProbe, "", "services", "list", "tasks/probe: what nodes have to do with the plan's own Services")
	add(checkup.PhaseProbe, slices, "endpointslices", "list", "tasks/probe: which endpoints nodes may use")
	if spec.has(EndpointLeaves) || spec.has(Terminating) {
		add(checkup.PhaseProbe, "", "pods", "patch", "pkg/fleet Turn: responders leave and join Services while these are measured")
	}
	if spec.has(Terminating) {
		add(checkup.PhaseProbe, "", "pods", "delete", "pkg/fleet Turn: a responder terminates while it is measured")
	}
	add(checkup.PhaseConclude, "", "services", "list", "pkg/fleet Remove and Left: the plan's own Services")
	add(checkup.PhaseConclude, "", "services", "delete", "pkg/fleet Remove: the plan's own Services")
	return rights
}
