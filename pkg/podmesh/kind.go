// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/kind"
)

// Name of the kind.
const Name checkup.Kind = "podMesh"

// Kind measures a sample of the paths between pods of different nodes.
var Kind = kind.Kind{
	Name: Name, New: func() checkup.Spec { return &Spec{} }, Rules: rules(),
	Survey: Survey, Expand: kind.Due(func(s *Spec) (int, bool) { return s.Sample.Round, s.Sample.Rotate }, expand),
	Roster: rosterOf, Rights: Rights,
	Explain: Explain, Judge: Judge, Again: Again, Compare: Compare, Nodes: true, Tests: true,
}

// expand is Expand, with warnings as lines.
func expand(p *checkup.Plan, check string, s *cluster.Snapshot, round int) (*checkup.Worksheet, []string, error) {
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
