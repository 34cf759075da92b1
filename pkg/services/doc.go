// SPDX-License-Identifier: Apache-2.0

// Package services is the kind of check services: do the Services of a cluster work from each of its nodes?
//
//	spec.go      the parameters
//	survey.go    Survey: Services and EndpointSlices into the snapshot
//	state.go     what each node has to do, by pkg/nodestate; AskAfter: what changed while it was measured
//	expand.go    Expand: the worksheet; sheet.go: what it has of this kind, the expectation of each pair
//	why.go       which policies and hints decide
//	again.go     Again: the pairs that are measured a second time
//	judge.go     Judge: what was measured against what is expected
//	findings.go  which node, Service or family explains the failed pairs
//	explain.go   Explain
//
// A pair is a node and an address of a Service's TCP port. An agent in the pod network of the node connects, and sends
// nothing. By the state of the node, a connection has to work, to be refused at once (the Service has no endpoint), or
// to be dropped (a policy wants an endpoint of this node, and only other nodes have one).
//
// What is expected may change while it is measured. So the probe task reads the Services again when everything is
// measured. A pair that did not pass, and of which anything changed since setup, is unmeasured: what it had to do is
// not known. One that passed needs no such excuse. What other kinds about Services need, too, is in pkg/servicecheck.
package services
