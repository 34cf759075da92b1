// SPDX-License-Identifier: Apache-2.0

// Package write writes what a node has to serve into the kernel's IPVS: the mode ipvs of tasks/service-proxy. It is
// beside the reader of IPVS (pkg/dataplane/ipvs). Linux only.
//
// The addresses of Services are on an interface of the proxy's own, because IPVS takes packets that are for the node.
// Each address and port, and each address of the node with a node port, has a virtual server with the endpoints as its
// destinations. A table of nftables, checkplan-ipvs, does what IPVS cannot: it rewrites sources, drops, refuses ports
// that no Service has, and chooses the endpoint where clients of the node have others than clients from outside.
//
//	want := Want(state, node, &unserved)      // addresses and virtual servers; pure
//	rules := Render(state, node, family)      // the table; pure
//	change := Difference(have, want.Servers)  // what to do with virtual servers; pure
//
// Writer is a proxy.Writer that does this for each state. The kernel is a struct of functions.
package write
