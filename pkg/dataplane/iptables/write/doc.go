// SPDX-License-Identifier: Apache-2.0

// Package write writes what a node has to serve as rules of iptables: the mode iptables of tasks/service-proxy. It is
// beside the reader of such rules (pkg/dataplane/iptables), and a package of its own because agents, which read, do not
// link gRPC.
//
// The chains are those of kube-proxy 1.35 in this mode, with another prefix, CPLAN-: so what reads kube-proxy's rules
// reads these, and the two programs do not touch each other's.
//
// Render says what has to be there, and Restore what iptables-restore has to read for it: one transaction for each of
// the tables nat and filter. Both are pure.
package write
