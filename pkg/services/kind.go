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
