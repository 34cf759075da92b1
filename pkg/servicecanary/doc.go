// SPDX-License-Identifier: Apache-2.0

// Package servicecanary is the kind of check serviceCanary: do Services of the plan's own, one for each policy, lead
// from each node to the right endpoints, and to each of them as often as they must?
//
//	spec.go      the parameters; rules.go: what they must keep
//	expand.go    Expand: responders, the Services over them, and who measures what
//	state.go     which endpoints each node may use, by pkg/nodestate, from what the API says at probe time
//	judge.go     Judge: who answered, against who may
//	findings.go  which endpoint, node or Service explains the failed pairs
//	explain.go   Explain
//
// Setup creates the Services, over responders that say which of their addresses a request arrived at. So the answers
// show the set of endpoints that a node's service proxy uses, and their shares, whatever the proxy is.
//
// It is a kind of its own, and not a parameter of services, because it creates Services. That needs a right to create
// and delete them, which a check of existing Services must not have, and pods that answer. What it measures is also
// judged by other rules: not whether an address connects, but who answers.
package servicecanary
