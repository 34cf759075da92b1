// SPDX-License-Identifier: Apache-2.0

//go:build linux

package detect

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/iptables"
	"github.com/checkplan/checkplan/pkg/dataplane/ipvs"
	"github.com/checkplan/checkplan/pkg/dataplane/nftables"
)

// ErrForbidden means that the process may not read the node's rules.
var ErrForbidden = errors.New("no right to read the node's rules: the capability NET_ADMIN in the host's network is needed")

// Read says which proxy the node has in one family, and what it programmed. The table is nil if Proxy.Mode is empty. It
// reads the rules of the network that the process is in.
func Read(family dataplane.Family) (dataplane.Proxy, *dataplane.Table, error) {
	var e Evidence
	devices, err := net.Interfaces()
	if err != nil {
		return dataplane.Proxy{}, nil, fmt.Errorf("list network devices: %w", err)
	}
	for _, d := range devices {
		e.Devices = append(e.Devices, d.Name)
	}
	table, found, err := ipvs.Read(family)
	if err != nil {
		return dataplane.Proxy{}, nil, forbidden(err)
	}
	have, inIPVS := table, len(found) > 0
	e.IPVS = found
	for _, way := range []struct {
		found *[]dataplane.Program
		read  func(dataplane.Family) (dataplane.Table, []dataplane.Program, error)
	}{
		{&e.NFTables, nftables.Read}, {&e.IPTablesNFT, iptables.Read}, {&e.IPTablesLegacy, iptables.ReadLegacy},
	} {
		table, found, err := way.read(family)
		switch {
		case err != nil:
			return dataplane.Proxy{}, nil, forbidden(err)
		case inIPVS && !serves(table): // the chains of the mode ipvs have names of the mode iptables
		case len(found) > 0:
			*way.found, have = found, table
		}
	}
	p := Decide(e)
	if p.Mode == "" {
		return p, nil, nil
	}
	return p, &have, nil
}

func forbidden(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%w (%w)", ErrForbidden, err)
	}
	return err
}

// serves reports whether rules take any connection.
func serves(table dataplane.Table) bool {
	return slices.ContainsFunc(table.Frontends, func(f dataplane.Frontend) bool { return f.Action != dataplane.Pass })
}
