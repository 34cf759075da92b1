// SPDX-License-Identifier: Apache-2.0

// Package kind is the one place that knows which kinds of check there are, and
// which package sets each up. A new kind is one more line in Kinds.
package kind

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/connectivity"
	"github.com/checkplan/checkplan/pkg/controlplane"
	"github.com/checkplan/checkplan/pkg/placement"
	"github.com/checkplan/checkplan/pkg/podmesh"
	"github.com/checkplan/checkplan/pkg/vmlatency"
)

// Kind is how a kind of check gets from a plan to what is to be measured.
type Kind struct {
	// Survey adds to the snapshot what Expand needs for all checks of the kind in
	// the plan. The snapshot has version and nodes already.
	Survey func(context.Context, cluster.Reader, *checkup.Plan, *cluster.Snapshot) error
	// Expand is pure: it takes the round that is due, and returns the worksheet
	// with warnings, one line each.
	Expand func(p *checkup.Plan, check string, s *cluster.Snapshot) (w *checkup.Worksheet, warnings []string, err error)
	// Roster is pure too: one entry per target, in which those that exist already
	// are filled in.
	Roster func(p *checkup.Plan, w *checkup.Worksheet, s *cluster.Snapshot) *checkup.Roster
	// Rights that a check needs beyond those that every run does, and to list the
	// nodes; nil is none.
	Rights func(checkup.Check) []checkup.Right
	// Ask finds out what the worksheet's Units need without an agent: one fact for each
	// unit that it asked about. nil for kinds without such units.
	Ask func(ctx context.Context, c kubernetes.Interface, namespace string, w *checkup.Worksheet) []checkup.Fact
	// Summarize says what setup worked out for the worksheet's Units, one line each; nil
	// for kinds without such units.
	Summarize func(*checkup.Worksheet) []string
	// Judge is pure: it works out the report of the check.
	Judge func(w *checkup.Worksheet, roster *checkup.Roster, record *checkup.Record, gate checkup.Gate) checkup.CheckReport
	// Nodes says that Expand works out nothing without the nodes.
	Nodes bool
}

// Kinds holds every kind of check.
var Kinds = map[checkup.Kind]Kind{
	checkup.KindControlPlane: {Survey: controlplane.Survey, Expand: controlplane.Expand, Roster: controlplane.Roster, Rights: controlPlaneRights, Judge: controlplane.Judge, Nodes: true},
	checkup.KindPlacement:    {Survey: placement.Survey, Expand: placement.Expand, Roster: placement.Roster, Rights: placement.Rights, Summarize: placement.Summarize, Ask: placement.Ask, Judge: placement.Judge, Nodes: true},
	checkup.KindPodMesh:      {Survey: podmesh.Survey, Expand: expandPodMesh, Roster: podMeshRoster, Rights: podmesh.Rights, Judge: podmesh.Judge, Nodes: true},
	checkup.KindVMLatency:    {Survey: vmlatency.Survey, Expand: vmlatency.Expand, Roster: vmlatency.Roster, Rights: vmlatency.Rights, Judge: vmlatency.Judge},
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

// Rights are those that a check needs beyond the ones that every run does.
func Rights(c checkup.Check) []checkup.Right {
	k := Kinds[c.Kind()]
	var rights []checkup.Right
	if k.Nodes {
		rights = append(rights, checkup.Right{
			Phase: checkup.PhaseSetup, Scope: checkup.ScopeCluster, Resource: "nodes", Verb: "list",
			Why: "pkg/cluster Survey: which nodes there are, their zones and taints",
		})
	}
	if k.Rights != nil {
		rights = append(rights, k.Rights(c)...)
	}
	return rights
}

// Survey reads what the named checks of a plan need of a cluster, or all of its
// checks if none is named. Each kind is asked once. What it cannot read is an
// error, all of it at once, unless every kind that asked goes on without it.
func Survey(ctx context.Context, r cluster.Reader, p *checkup.Plan, checks ...string) (*cluster.Snapshot, error) {
	if len(checks) == 0 {
		checks = p.CheckNames()
	}
	asked := *p
	asked.Checks = map[string]checkup.Check{}
	var kinds []checkup.Kind
	for _, name := range checks {
		if _, err := Of(p, name); err != nil {
			return nil, err
		}
		asked.Checks[name] = p.Checks[name]
		kinds = append(kinds, p.Checks[name].Kind())
	}
	slices.Sort(kinds)
	s, err := cluster.Survey(ctx, r)
	if s == nil {
		return nil, fmt.Errorf("survey: %w", err)
	}
	needed := slices.ContainsFunc(kinds, func(k checkup.Kind) bool { return Kinds[k].Nodes })
	if apierrors.IsForbidden(err) && !needed {
		s.AddUnseen(cluster.Nodes, err)
		err = nil
	}
	problems := []error{err}
	for _, kind := range slices.Compact(kinds) {
		problems = append(problems, Kinds[kind].Survey(ctx, r, &asked, s))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("survey: %w", err)
	}
	s.Normalize()
	return s, nil
}

// Prepare surveys the cluster and works out what one check of the plan is to
// measure there: its worksheet, with the warnings, and the roster with those targets
// that exist already. It creates nothing.
func Prepare(ctx context.Context, r cluster.Reader, p *checkup.Plan, check string) (*checkup.Worksheet, *checkup.Roster, error) {
	k, err := Of(p, check)
	if err != nil {
		return nil, nil, err
	}
	s, err := Survey(ctx, r, p, check)
	if err != nil {
		return nil, nil, err
	}
	w, warnings, err := k.Expand(p, check, s)
	if err != nil {
		return nil, nil, err
	}
	w.Warnings = warnings
	return w, k.Roster(p, w, s), nil
}

func expandPodMesh(p *checkup.Plan, check string, s *cluster.Snapshot) (*checkup.Worksheet, []string, error) {
	round := podmesh.NextRound(p.Name, check, p.Checks[check].PodMesh.Sample, s.Rounds)
	w, warnings, err := podmesh.Expand(p, check, s, round)
	lines := make([]string, len(warnings))
	for i, warning := range warnings {
		lines[i] = warning.String()
	}
	return w, lines, err
}

func podMeshRoster(p *checkup.Plan, w *checkup.Worksheet, s *cluster.Snapshot) *checkup.Roster {
	roster := podmesh.Roster(p.Checks[w.Check].PodMesh, w, s)
	return &roster
}

// controlPlaneRights are those of the survey, and those of the objects in which
// outcomes are told.
func controlPlaneRights(c checkup.Check) []checkup.Right {
	return append(controlplane.Rights(c), connectivity.Rights(c.ControlPlane.ConnectivityChecks)...)
}
