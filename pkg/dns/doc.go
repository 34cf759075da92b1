// SPDX-License-Identifier: Apache-2.0

// Package dns is the kind of check dns: do the DNS servers of a cluster answer, from each of its nodes, what the API's
// Services and EndpointSlices say?
//
//	spec.go       the parameters
//	survey.go     Survey: Services and EndpointSlices into the snapshot; AskAfter: what changed while it was measured
//	questions.go  what is asked of each Service, and what must be answered
//	servers.go    who is asked
//	expand.go     Expand: the worksheet; sheet.go: what it has of this kind
//	judge.go      Judge, and Again: the pairs that are measured a second time
//	findings.go   which server, node, transport, family or name explains the failed pairs
//	explain.go    Explain
//
// A pair is a node, a question, a server and a transport. The agent is a pod in the pod network of the node.
//
// What must be answered is Kubernetes' specification of DNS, version 1.1.0
// (https://github.com/kubernetes/dns/blob/master/docs/specification.md), in the comments "section N". Its records for
// PTR, for the endpoints' own names and for the version of the schema are not asked for.
package dns
