// SPDX-License-Identifier: Apache-2.0

//go:build linux

package iptables

import (
	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/netfilter"
)

// Read reads the rules of one family that iptables-nft keeps in the kernel, and says what those of the first program do
// and who wrote some. Without any, nobody did. ReadLegacy does the same for iptables-legacy.
func Read(family dataplane.Family) (dataplane.Table, []dataplane.Program, error) {
	dump, err := netfilter.Read(family == dataplane.IPv6, Tables...)
	if err != nil {
		return dataplane.Table{}, nil, err
	}
	table, by := parse(dump)
	return table, by, nil
}

// ReadLegacy reads the rules of one family of iptables-legacy.
func ReadLegacy(family dataplane.Family) (dataplane.Table, []dataplane.Program, error) {
	tables, err := netfilter.ReadLegacy(family == dataplane.IPv6, Tables...)
	if err != nil {
		return dataplane.Table{}, nil, err
	}
	return parseLegacy(tables, family)
}
