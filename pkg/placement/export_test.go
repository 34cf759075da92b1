// SPDX-License-Identifier: Apache-2.0

package placement

// OpenShift is for tests that load plans, which cannot be in this package: pkg/load
// imports it.
var OpenShift = openshift
