// SPDX-License-Identifier: Apache-2.0

// Package userspace serves what a node has to serve by itself, without any rule: the mode userspace of
// tasks/service-proxy. Linux only.
//
// The addresses of Services are on an interface of the proxy's own, and the proxy listens at each address and port, as
// at the node's addresses for node ports. It copies TCP connections both ways, and has a UDP session for each address
// and port of a client. What is refused has no listener: the kernel refuses. What is dropped, the kernel drops: a
// listener has a socket filter (BPF) with the sources that it is for, and so answers nobody else, not even the first
// packet of a connection.
//
//	want, unserved := Want(state, node)              // addresses and listeners; pure
//	change := Difference(addresses, listeners, want) // what to add, to remove, to open, to close; pure
//
// Server is a proxy.Writer that does this for each state. Sockets are real in tests, too, at loopback addresses; the
// interface is a struct of functions.
package userspace
