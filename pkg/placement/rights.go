// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// Rights are those that a check of this kind needs beyond the ones that every
// run needs, and beyond listing nodes, which pkg/kinds has.
func Rights(c checkup.Check) []checkup.Right {
	spec, ok := c.Spec.(*Spec)
	if !ok {
		return nil
	}
	rights := []checkup.Right{
		{
			Phase: checkup.PhaseSetup, Scope: checkup.ScopeCluster, Resource: "pods", Verb: "list",
			Why: "pkg/placement Survey: what is requested on the nodes, and which of their ports are taken",
		},
		{
			Phase: checkup.PhaseProbe, Scope: checkup.ScopeRun, Resource: "pods", Verb: "create",
			Why: "pkg/placement Ask: dry runs, by which nothing is created",
		},
	}
	if spec.NetworkConfig {
		for _, resource := range []struct{ group, why string }{
			{configs.Group, "pkg/placement Survey: mode and placements"},
			{operators.Group, "pkg/placement Survey: disableNetworkDiagnostics"},
		} {
			rights = append(rights, checkup.Right{
				Phase: checkup.PhaseSetup, Scope: checkup.ScopeCluster, Group: resource.group, Resource: configs.Resource,
				Names: []string{objectName}, Verb: "get", Why: resource.why,
			})
		}
	}
	return rights
}

// Roster is empty: nothing is started, and nothing reached.
func Roster(*checkup.Plan, *checkup.Worksheet, *cluster.Snapshot) *checkup.Roster {
	return &checkup.Roster{}
}
