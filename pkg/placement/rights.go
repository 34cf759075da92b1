// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// Rights returns the rights that a check of this kind needs in addition to those of every run, and to listing nodes,
// which pkg/kind adds.
func Rights(c checkup.Check) []checkup.Right {
	spec, ok := c.Spec.(*Spec)
	if !ok {
		return nil
	}
	rights := []checkup.Right{
		{
			Phase: checkup.PhaseSetup, Scope: checkup.ScopeCluster, Resource: "pods", Verb: "list",
			Why: "pkg/placement Survey: resource requests and used host ports on the nodes",
		},
		{
			Phase: checkup.PhaseProbe, Scope: checkup.ScopeRun, Resource: "pods", Verb: "create",
			Why: "pkg/placement Ask: dry runs, which create nothing",
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

// Roster is empty: the check starts nothing and connects to nothing.
func Roster(*checkup.Plan, *checkup.Worksheet, *cluster.Snapshot) *checkup.Roster {
	return &checkup.Roster{}
}
