// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Rights are those that the functions of this package use for a check with these
// settings; none if it writes no objects.
func Rights(c checkup.ConnectivityChecks) []checkup.Right {
	if !c.Write {
		return nil
	}
	var rights []checkup.Right
	crd := func(why string, verbs ...string) {
		for _, verb := range verbs {
			rights = append(rights, checkup.Right{
				Phase: checkup.PhaseSetup, Scope: checkup.ScopeCluster, Group: crdResource.Group, Resource: crdResource.Resource,
				Names: []string{crdName}, Verb: verb, Why: why,
			})
		}
	}
	objects := func(phase checkup.Phase, resource, why string, verbs ...string) {
		for _, verb := range verbs {
			rights = append(rights, checkup.Right{
				Phase: phase, Scope: checkup.ScopeRun, Group: Group, Resource: resource, Verb: verb, Why: why,
			})
		}
	}
	const status = "/status"
	crd("pkg/connectivity EnsureCRD: whether PodNetworkConnectivityChecks can be written", "get")
	if c.InstallCRD {
		// Server-side apply of what does not exist asks for both.
		crd("pkg/connectivity EnsureCRD: creates it where it is missing", "create", "patch")
	}
	objects(checkup.PhaseProbe, Resource.Resource, "pkg/connectivity Open: the history that there is", "list")
	objects(checkup.PhaseProbe, Resource.Resource, "pkg/connectivity Book: an object for each pair", "create", "patch")
	objects(checkup.PhaseProbe, Resource.Resource+status, "pkg/connectivity Book: what was measured", "patch")
	rights = append(rights, checkup.Right{
		Phase: checkup.PhaseProbe, Scope: checkup.ScopeNamespace, Namespace: metav1.NamespaceDefault,
		Resource: "events", Verb: "create", Why: "pkg/connectivity Book: outages, told of the source's node",
	})
	objects(checkup.PhaseConclude, Resource.Resource, "pkg/connectivity Retire: objects of pairs that are gone", "list", "delete")
	objects(checkup.PhaseConclude, Resource.Resource+status, "pkg/connectivity Retire: what was last seen too long ago", "patch")
	return rights
}
