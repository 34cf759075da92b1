// SPDX-License-Identifier: Apache-2.0

package services

import (
	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
)

// Name of the kind.
const Name checkup.Kind = "services"

// Kind measures from each node what Services answer, and compares it with what the node has to do.
var Kind = kind.Kind{
	Name: Name, New: func() checkup.Spec { return &Spec{} }, Rules: rules(),
	Survey: Survey, Expand: kind.Due(func(s *Spec) (int, bool) { return s.Sample.Round, s.Sample.Rotate }, Expand),
	Roster: kind.ExistingTargets, Rights: Rights,
	Explain: Explain, Judge: Judge, Again: Again, AskAfter: AskAfter, Nodes: true, Tests: true,
}

// Rights returns the rights that a check needs in addition to those of every run, and to listing nodes: it lists
// Services and EndpointSlices before and after measuring.
func Rights(c checkup.Check) []checkup.Right {
	spec, ok := c.Spec.(*Spec)
	if !ok {
		return nil
	}
	return spec.Services.Rights(map[checkup.Phase]string{
		checkup.PhaseSetup: "pkg/services Survey: what each node has to do",
		checkup.PhaseProbe: "pkg/services AskAfter: what of it changed while it was measured",
	})
}

// Rights are those to list the Services and EndpointSlices of a selection in phases, each with its reason.
func (s Selection) Rights(why map[checkup.Phase]string) []checkup.Right {
	var rights []checkup.Right
	for _, phase := range checkup.Phases {
		if why[phase] == "" {
			continue
		}
		for _, namespace := range s.Listed() {
			for _, resource := range []struct{ group, name string }{{"", "services"}, {"discovery.k8s.io", "endpointslices"}} {
				r := checkup.Right{
					Phase: phase, Scope: checkup.ScopeNamespace, Namespace: namespace,
					Group: resource.group, Resource: resource.name, Verb: "list", Why: why[phase],
				}
				if namespace == "" {
					r.Scope = checkup.ScopeCluster
				}
				rights = append(rights, r)
			}
		}
	}
	return rights
}
