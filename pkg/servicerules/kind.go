// SPDX-License-Identifier: Apache-2.0

package servicerules

import (
	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/kind"
)

// Name of the kind.
const Name checkup.Kind = "serviceRules"

// Kind compares the rules of each node's service proxy with what they have to be.
var Kind = kind.Kind{
	Name: Name, New: func() checkup.Spec { return &Spec{} }, Rules: rules(),
	Survey: Survey, Expand: kind.Due(func(s *Spec) (int, bool) { return s.Sample.Round, s.Sample.Rotate }, Expand),
	Roster: roster, Rights: Rights,
	Explain: Explain, Judge: Judge, Tables: Tables, Nodes: true,
	Summarize: summarize,
}

// roster is empty: there are no targets.
func roster(*checkup.Plan, *checkup.Worksheet, *cluster.Snapshot) *checkup.Roster {
	return &checkup.Roster{}
}

// Rights returns the rights that a check needs in addition to those of every run, and to listing nodes: it lists
// Services and EndpointSlices in setup, and before and after the rules are read.
func Rights(c checkup.Check) []checkup.Right {
	spec, ok := c.Spec.(*Spec)
	if !ok {
		return nil
	}
	return spec.Services.Rights(map[checkup.Phase]string{
		checkup.PhaseSetup: "pkg/servicerules Survey: which Services each node has to serve",
		checkup.PhaseProbe: "pkg/servicerules Tables: what each node has to do, and what of it changed while rules were read",
	})
}
