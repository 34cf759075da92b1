// SPDX-License-Identifier: Apache-2.0

// Package servicerules is the kind of check serviceRules: does each node's service proxy hold the rules that it must
// hold?
//
//	spec.go      the parameters
//	expand.go    Survey, and Expand: nodes and Services; Sheet, what the worksheet has of this kind
//	tables.go    Tables: what agents read against the state of the API server, before and after
//	judge.go     Judge: every unit
//	findings.go  which node or Service explains the failed units
//	explain.go   Explain
//
// A unit is a node, a Service and a family: what the node's rules do with connections to this Service. One more unit
// for each node and family is that there are no rules for Services that do not exist.
//
// Agents read the rules of their nodes (pkg/dataplane) twice, and report what they do with packets. The probe task
// compares each table with what the state of the node wants (pkg/nodestate, pkg/dataplane/want), and records only the
// differences that are in both looks. It lists Services and EndpointSlices before and after: a unit that differs, and
// whose objects changed meanwhile, is unmeasured.
//
// The kind is not a part of pkg/services, because its agents need a privilege. Whoever refuses that still has the
// other.
package servicerules
