// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables

import (
	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/netfilter"
)

// Read reads the tables of one family from the kernel, and says what the first of them does and who wrote each. Without
// any, nobody did.
func Read(family dataplane.Family) (dataplane.Table, []dataplane.Program, error) {
	dump, err := netfilter.Read(family == dataplane.IPv6, Name, OwnName)
	if err != nil {
		return dataplane.Table{}, nil, err
	}
	dumps, by := split(dump)
	if len(dumps) == 0 {
		return dataplane.Table{}, nil, nil
	}
	table, _ := Parse(dumps[0])
	return table, by, nil
}
