// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables

import (
	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/netfilter"
)

// Read reads the table of one family from the kernel, and says what it does. It is false if there is none.
func Read(family dataplane.Family) (dataplane.Table, bool, error) {
	dump, err := netfilter.Read(family == dataplane.IPv6, Name)
	if err != nil {
		return dataplane.Table{}, false, err
	}
	table, ok := Parse(dump)
	return table, ok, nil
}
