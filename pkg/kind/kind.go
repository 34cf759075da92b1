// SPDX-License-Identifier: Apache-2.0

// Package kind is the one place that knows which kinds of check there are, and
// which package sets each up. A new kind is one more line in Kinds.
package kind

import (
	"context"
	"fmt"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/podmesh"
)

// Kind is how a kind of check gets from a plan to what is to be measured.
type Kind struct {
	// Survey reads from the cluster what Expand needs for all checks of the kind
	// in the plan.
	Survey func(context.Context, podmesh.Cluster, *checkup.Plan) (*podmesh.Snapshot, error)
	// Expand is pure: it takes the round that is due, and returns the worksheet
	// with warnings, one line each.
	Expand func(p *checkup.Plan, check string, s *podmesh.Snapshot) (w *checkup.Worksheet, warnings []string, err error)
	// Roster is pure too: one entry per target, in which those that are existing
	// pods are filled in.
	Roster func(p *checkup.Plan, w *checkup.Worksheet, s *podmesh.Snapshot) *checkup.Roster
}

// Kinds holds every kind of check.
var Kinds = map[checkup.Kind]Kind{
	checkup.KindPodMesh: {Survey: podmesh.Survey, Expand: expandPodMesh, Roster: podMeshRoster},
}

// Of returns the kind of a check of the plan. The error says which checks the
// plan has, if not this one.
func Of(p *checkup.Plan, check string) (Kind, error) {
	c, ok := p.Checks[check]
	if !ok {
		return Kind{}, fmt.Errorf("plan %s has no check %q; it has %q", p.Name, check, p.CheckNames())
	}
	k, ok := Kinds[c.Kind()]
	if !ok {
		return Kind{}, fmt.Errorf("check %q: nothing here knows how to set up its kind %q: the images are older than the plan's compiler", check, c.Kind())
	}
	return k, nil
}

func expandPodMesh(p *checkup.Plan, check string, s *podmesh.Snapshot) (*checkup.Worksheet, []string, error) {
	round := podmesh.NextRound(p.Name, check, p.Checks[check].PodMesh.Sample, s.Rounds)
	w, warnings, err := podmesh.Expand(p, check, s, round)
	lines := make([]string, len(warnings))
	for i, warning := range warnings {
		lines[i] = warning.String()
	}
	return w, lines, err
}

func podMeshRoster(p *checkup.Plan, w *checkup.Worksheet, s *podmesh.Snapshot) *checkup.Roster {
	roster := podmesh.Roster(p.Checks[w.Check].PodMesh, w, s)
	return &roster
}
