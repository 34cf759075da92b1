// SPDX-License-Identifier: Apache-2.0

package podmesh

import "github.com/checkplan/checkplan/pkg/checkup"

// Rights returns the rights that a podMesh check needs in addition to those of every run: listing the existing pods
// that are its targets.
func Rights(c checkup.Check) []checkup.Right {
	mesh, ok := c.Spec.(*Spec)
	if !ok || mesh.Targets.Pods == nil {
		return nil
	}
	r := checkup.Right{
		Phase: checkup.PhaseSetup, Scope: checkup.ScopeRun,
		Resource: "pods", Verb: "list", Why: "pkg/podmesh Survey: pods that are targets",
	}
	if namespace := mesh.Targets.Pods.Namespace; namespace != "" {
		r.Scope, r.Namespace = checkup.ScopeNamespace, namespace
	}
	return []checkup.Right{r}
}
