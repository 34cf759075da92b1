// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Rights returns the rights that this package needs for a check with these settings; none if it writes no objects.
func Rights(c checkup.ConnectivityChecks) []checkup.Right {
	if !c.Write {
		return nil
	}
	rights := definition.Rights("pkg/connectivity", Kind+"s", c.InstallCRD)
	objects := func(phase checkup.Phase, resource, why string, verbs ...string) {
		for _, verb := range verbs {
			rights = append(rights, checkup.Right{
				Phase: phase, Scope: checkup.ScopeRun, Group: Group, Resource: resource, Verb: verb, Why: why,
			})
		}
	}
	const status = "/status"
	objects(checkup.PhaseProbe, Resource.Resource, "pkg/connectivity Open: reads the existing history", "list")
	objects(
		checkup.PhaseProbe,
		Resource.Resource,
		"pkg/connectivity Book: writes an object for each pair",
		"create",
		"patch",
	)
	objects(checkup.PhaseProbe, Resource.Resource+status, "pkg/connectivity Book: writes the results", "patch")
	rights = append(rights, checkup.Right{
		Phase: checkup.PhaseProbe, Scope: checkup.ScopeNamespace, Namespace: metav1.NamespaceDefault,
		Resource: "events", Verb: "create", Why: "pkg/connectivity Book: records outages as events of the source's node",
	})
	const retire = "pkg/connectivity Retire: "
	objects(checkup.PhaseConclude, Resource.Resource, retire+"deletes objects of removed pairs", "list", "delete")
	objects(checkup.PhaseConclude, Resource.Resource+status, retire+"marks objects without a recent result", "patch")
	return rights
}
