// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/kind"
)

// Name of the kind.
const Name checkup.Kind = "dns"

// Kind asks DNS servers from each node for the names of Services, and compares their answers with the API's.
var Kind = kind.Kind{
	Name: Name, New: func() checkup.Spec { return &Spec{} }, Rules: rules(),
	Survey: Survey, Expand: expandDue, Roster: kind.ExistingTargets, Rights: Rights,
	Explain: Explain, Judge: Judge, Again: Again, AskAfter: AskAfter, Nodes: true,
}

// expandDue expands the round that is due.
func expandDue(p *checkup.Plan, check string, s *cluster.Snapshot) (*checkup.Worksheet, []string, error) {
	round := 0
	if spec, ok := p.Checks[check].Spec.(*Spec); ok {
		round = spec.Sample.Round
		if spec.Sample.Rotate {
			round = history.NextRound(p.Name, check, round, s.Rounds)
		}
	}
	return Expand(p, check, s, round)
}
