// SPDX-License-Identifier: Apache-2.0

// Package server serves the state of one node over KEP-2094's API: it watches Services, EndpointSlices and the Node,
// has pkg/nodestate compute what the node's proxy has to serve, and answers clients with it.
//
// What it promises:
//
//   - No answer before everything was read (revision 1). A state without Services is a state.
//   - Each answer is one whole state, in the order of namespace and name. A list of the API server (the first one, and
//     those after an outage) is taken over at once, not object by object.
//   - A client that names the present state waits until the node's result changes: not the cluster.
//   - No state is kept for a client, except the one that it is receiving. Its connection ends if it no longer answers
//     pings, and the number of connections is limited.
//   - Without the API server, clients get the last state. Age is for how long it has been the last one.
//
// Objects of the API server are not kept: a watch feeds nodestate.Cluster directly, which has what it needs of them.
package server
