// SPDX-License-Identifier: Apache-2.0

//go:build linux

package iptables

import (
	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/netfilter"
)

// Read reads the rules of one family that iptables-nft keeps in the kernel, and says what they do. It is false if there
// are none of kube-proxy. ReadLegacy does the same for iptables-legacy.
func Read(family dataplane.Family) (dataplane.Table, bool, error) {
	dump, err := netfilter.Read(family == dataplane.IPv6, Tables...)
	if err != nil {
		return dataplane.Table{}, false, err
	}
	table, ok := Parse(dump)
	return table, ok, nil
}

// ReadLegacy reads the rules of one family of iptables-legacy.
func ReadLegacy(family dataplane.Family) (dataplane.Table, bool, error) {
	tables, err := netfilter.ReadLegacy(family == dataplane.IPv6, Tables...)
	if err != nil {
		return dataplane.Table{}, false, err
	}
	return ParseLegacy(tables, family)
}
