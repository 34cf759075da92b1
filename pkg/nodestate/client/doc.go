// SPDX-License-Identifier: Apache-2.0

// Package client gets the state of a node from the server of KEP-2094's API: what the node's service proxy has to
// serve. It links gRPC and protobuf, and nothing of Kubernetes.
//
// Run is a whole program. EndpointsClient is the client below it: Next returns the full state after each change, and
// does not fail. It is safe to be slow: the server keeps no states for a client, which gets the newest one when it asks
// again.
//
// Most proxies replace all of their rules at once and need no more. For the others, Store turns each state into what
// it changes: create, update and delete, in an order in which nothing is ever without what it belongs to.
package client
