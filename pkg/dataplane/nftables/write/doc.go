// SPDX-License-Identifier: Apache-2.0

// Package write writes what a node has to serve as rules of nftables: the mode nftables of tasks/service-proxy. It is
// beside the reader of such rules (pkg/dataplane/nftables), and a package of its own because agents, which read, link
// neither gRPC nor knftables.
//
// The chains, maps and sets are those of kube-proxy 1.35 in this mode, in a table of another name, checkplan-proxy: so
// what reads kube-proxy's rules reads these, and the two programs do not touch each other's.
//
// Render says what the table has to have, and Change what has to be done for it: one transaction of nft, which the
// kernel takes as a whole or not at all. Both are pure.
package write
