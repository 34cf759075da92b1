// SPDX-License-Identifier: Apache-2.0

// Package kind defines what a kind of check is, and has what kinds share: constructors
// of parameters, and rules. It imports no concrete kind: pkg/kinds lists them.
package kind

import (
	"context"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/history"
)

// Kind is one kind of check. A field may be nil only where its comment says so.
type Kind struct {
	// Name is the field of a check in CUE and JSON, such as "podMesh".
	Name checkup.Kind
	// New returns empty parameters to decode a check into.
	New func() checkup.Spec
	// Schema is CUE that declares the kind's field of #Check and the definition of its
	// value; nil for kinds whose file is in schema/.
	Schema []byte
	// Rules that the checks of the kind must keep.
	Rules []Rule

	// Survey adds to the snapshot what Expand needs for all checks of the kind in the
	// plan. The snapshot has version and nodes already.
	Survey func(context.Context, cluster.Reader, *checkup.Plan, *cluster.Snapshot) error
	// Expand is pure: it takes the round that is due, and returns the worksheet with
	// warnings, one line each.
	Expand func(p *checkup.Plan, check string, s *cluster.Snapshot) (w *checkup.Worksheet, warnings []string, err error)
	// Roster is pure: it has one entry per target, in which those that exist already
	// are filled in.
	Roster func(p *checkup.Plan, w *checkup.Worksheet, s *cluster.Snapshot) *checkup.Roster
	// Rights that a check needs in addition to those of every run and to list nodes; nil
	// if it needs none.
	Rights func(checkup.Check) []checkup.Right
	// Ask reads from the API server what the worksheet's Units need without an agent: one
	// fact for each unit. nil for kinds without such units.
	Ask func(ctx context.Context, c kubernetes.Interface, namespace string, w *checkup.Worksheet) []checkup.Fact
	// AskAfter reads from the API server, after everything was measured, what judging must know of the cluster's state
	// at that time. Its facts need not be about Units. nil for kinds that need nothing.
	AskAfter func(ctx context.Context, c kubernetes.Interface, w *checkup.Worksheet) []checkup.Fact
	// Summarize describes what setup computed for the worksheet's Units, one line each; nil
	// for kinds without such units.
	Summarize func(*checkup.Worksheet) []string
	// Judge is pure: it computes the report of the check.
	Judge func(w *checkup.Worksheet, roster *checkup.Roster, record *checkup.Record, gate checkup.Gate) checkup.CheckReport
	// Again is pure: it returns the worksheet of a further look at some pairs, from what was
	// measured so far; nil if there is nothing to look at. nil for kinds that look once.
	Again func(w *checkup.Worksheet, roster *checkup.Roster, record *checkup.Record, gate checkup.Gate) *checkup.Worksheet
	// Compare is pure: it adds to the report of a check what became worse since the earlier runs of the plan, if the plan
	// asks for it. The run ended at the given time. nil for kinds that do not compare.
	Compare func(before *history.History, at time.Time, sheet history.Sheet, gate checkup.Gate, r *checkup.CheckReport)
	// Explain is pure: it shows what a run of the check will do, beside its cost.
	Explain func(Explained) Explanation
	// Nodes says that Expand cannot work without the nodes.
	Nodes bool
	// Tests says that Judge tests limits, which may fail a unit by chance: the checks of such kinds in a plan share the
	// probability of a false alarm (judge.Share).
	Tests bool

	// HostNetwork reports whether agents of a check will run in their nodes' networks,
	// which the namespace's pod security must admit: a run is refused before it starts. It
	// may ask the cluster. nil means that none do, except those of Tables.
	HostNetwork func(context.Context, kubernetes.Interface, checkup.Spec) bool
	// Tables reads from the API server, before anything is measured, what the tables that agents read of their nodes are
	// compared with. nil for kinds whose agents read no tables. Such an agent is in its node's network, as root with the
	// capability NET_ADMIN. If the namespace's pod security refuses that, the units are unmeasured.
	Tables func(context.Context, kubernetes.Interface, *checkup.Worksheet) Tables
	// Outcome is the user's ConfigMap to which the outcome of a check is
	// written; nil, and a nil result, mean none.
	Outcome func(checkup.Spec) *checkup.ConfigMapRef
}

// Tables compares what agents read of their nodes with the state of the API server.
type Tables struct {
	// Compare returns what a record keeps of one reading, whose text is not trusted. Calls do not overlap.
	Compare func(checkup.TableReading) checkup.Fact
	// After reads the state again, when everything was read: what changed meanwhile.
	After func(context.Context) checkup.Fact
}

// ExistingTargets is the Roster of kinds whose targets exist already, with their addresses on the worksheet: an empty
// entry for each.
func ExistingTargets(_ *checkup.Plan, w *checkup.Worksheet, _ *cluster.Snapshot) *checkup.Roster {
	return &checkup.Roster{Targets: make([]checkup.RosterEntry, len(w.Targets))}
}
