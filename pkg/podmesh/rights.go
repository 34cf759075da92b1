// SPDX-License-Identifier: Apache-2.0

package podmesh

import "github.com/checkplan/checkplan/pkg/checkup"

// Rights returns the rights that a podMesh check needs in addition to those of every run: reading the existing pods
// that are its sources or targets, and running agents in those that are sources. They are in the pods' namespaces only
// and, if the plan names a pod, for that pod only.
func Rights(c checkup.Check) []checkup.Right {
	mesh, ok := c.Spec.(*Spec)
	if !ok {
		return nil
	}
	var rights []checkup.Right
	for _, pods := range mesh.existing() {
		right := func(phase checkup.Phase, resource, verb, why string) {
			r := checkup.Right{Phase: phase, Scope: checkup.ScopeRun, Resource: resource, Verb: verb, Why: why}
			if pods.Namespace != "" {
				r.Scope, r.Namespace = checkup.ScopeNamespace, pods.Namespace
			}
			if pods.Name != "" {
				r.Names = []string{pods.Name}
			}
			rights = append(rights, r)
		}
		verb := "list"
		if pods.Name != "" {
			verb = "get"
		}
		right(checkup.PhaseSetup, "pods", verb, "pkg/podmesh Survey: pods that are "+pods.side+"s")
		if pods.side == "source" {
			right(checkup.PhaseProbe, "pods", "get", "pkg/fleet Measure: the state of a source pod, and of its agent")
			right(checkup.PhaseProbe, "pods/ephemeralcontainers", "patch", "pkg/fleet Measure: start an agent in a source pod")
			right(checkup.PhaseProbe, "pods/log", "get", "pkg/fleet Measure: what the agent in a source pod reports")
		}
	}
	return rights
}
