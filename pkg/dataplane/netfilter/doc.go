// SPDX-License-Identifier: Apache-2.0

// Package netfilter reads the rules that the kernel has, without any binary: those of nftables, and those of iptables
// that are kept there (iptables-nft), with the ipsets that they name, by netlink. It needs NET_ADMIN in the node's
// network, and changes nothing.
//
// Read does I/O and returns a Dump, a plain value. Dump.Rules makes rules of pkg/dataplane/rules from it and is pure.
package netfilter
