// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/kind"
)

// Name of the kind.
const Name checkup.Kind = "podMesh"

// Kind measures a sample of the paths between pods of different nodes.
var Kind = kind.Kind{
	Name: Name, New: func() checkup.Spec { return &Spec{} }, Rules: rules(),
	Survey: Survey, Expand: expandDue, Roster: rosterOf, Rights: Rights,
	Explain: Explain, Judge: Judge, Again: Again, Compare: Compare, Nodes: true,
}

// dueRound is the round for the next run of a check: the sample's own, or the next one if it rotates. Expand takes it
// modulo the number of rounds, which only it knows.
func dueRound(plan, check string, sample Sample, recorded []history.Round) int {
	if !sample.Rotate {
		return sample.Round
	}
	return history.NextRound(plan, check, sample.Round, recorded)
}

// expandDue expands the round that is due.
func expandDue(p *checkup.Plan, check string, s *cluster.Snapshot) (*checkup.Worksheet, []string, error) {
	round := 0
	if mesh, ok := p.Checks[check].Spec.(*Spec); ok {
		round = dueRound(p.Name, check, mesh.Sample, s.Rounds)
	}
	w, warnings, err := Expand(p, check, s, round)
	lines := make([]string, len(warnings))
	for i, warning := range warnings {
		lines[i] = warning.String()
	}
	return w, lines, err
}

func rosterOf(p *checkup.Plan, w *checkup.Worksheet, s *cluster.Snapshot) *checkup.Roster {
	mesh, ok := p.Checks[w.Check].Spec.(*Spec)
	if !ok {
		return &checkup.Roster{Targets: make([]checkup.RosterEntry, len(w.Targets))}
	}
	roster := Roster(mesh, w, s)
	return &roster
}
