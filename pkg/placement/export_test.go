// SPDX-License-Identifier: Apache-2.0

package placement

import "github.com/checkplan/checkplan/pkg/checkup"

// OpenShift is for tests that load plans, which cannot be in this package: pkg/load
// imports it.
var OpenShift = openshift

// Admitted is the fact that the API server admits the pod of a side.
func Admitted(side SideName) checkup.Fact {
	return asked{Side: side, Admission: Admission{Allowed: true}}.fact()
}
