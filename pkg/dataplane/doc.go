// SPDX-License-Identifier: Apache-2.0

// Package dataplane says what the service proxy of a node has programmed, and compares it with what it has to be. It
// is about packets, not rules: which connections, from where, go to which endpoints, are refused, are dropped. So
// rules that are written differently and do the same are equal, and a rule that is there and does nothing is not.
//
//	proxy, have, err := detect.Read(family) // pkg/dataplane/detect: which proxy the node has, and its table
//	wanted := want.Table(state, family, proxy.Decides()) // pkg/dataplane/want: the state of pkg/nodestate
//	differences := dataplane.Compare(wanted, *have)
//	differences = dataplane.Both(differences, later) // what is in two looks is no change under way
//
// What was not understood is never equal: a rule of the proxy's own that the reader does not know makes each frontend
// whose packets may meet it unmeasured, with the rule's text as evidence.
//
// This package and the readers know no Kubernetes and link none of it, because agents do not. pkg/dataplane/want does.
package dataplane
