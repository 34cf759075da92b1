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
		// By name, but in all namespaces: a Role needs its namespace, which the operator deletes with the diagnostics.
		for _, object := range []struct{ group, resource, name, why string }{
			{configs.Group, configs.Resource, objectName, "mode and placements"},
			{operators.Group, operators.Resource, objectName, "disableNetworkDiagnostics"},
			{"apps", "deployments", workloads[SideSource].name, "the operator's pods"},
			{"apps", "daemonsets", workloads[SideTarget].name, "the operator's pods"},
		} {
			rights = append(rights, checkup.Right{
				Phase: checkup.PhaseSetup, Scope: checkup.ScopeCluster, Group: object.group, Resource: object.resource,
				Names: []string{object.name}, Verb: "get", Why: "pkg/placement Survey: " + object.why,
			})
		}
	}
	return rights
}

// Roster is empty: the check starts nothing and connects to nothing.
func Roster(*checkup.Plan, *checkup.Worksheet, *cluster.Snapshot) *checkup.Roster {
	return &checkup.Roster{}
}
