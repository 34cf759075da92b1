// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/iptables"
	"github.com/checkplan/checkplan/pkg/dataplane/netfilter"
)

// Files of the kernel, of the network that the thread is in.
const (
	serversFile  = "/proc/thread-self/net/ip_vs"
	trackingFile = "/proc/sys/net/ipv4/vs/conntrack"
)

// KubeDevice is the interface on which kube-proxy has the addresses of Services.
const KubeDevice = "kube-ipvs0"

// devices are the interfaces by which a proxy in mode ipvs is recognised.
var devices = map[string]dataplane.Program{
	KubeDevice: dataplane.KubeProxy, dataplane.IPVSDevice: dataplane.ServiceProxy,
}

// Read reads what a proxy in mode ipvs has in one family, and says what it does and whose it is. Nobody has anything if
// none of the interfaces exists that such a proxy makes. If its rules are in two places, two such programs run.
func Read(family dataplane.Family) (dataplane.Table, []dataplane.Program, error) {
	k, by, err := ReadKernel(family)
	if err != nil || len(by) == 0 {
		return dataplane.Table{}, nil, err
	}
	table, err := Parse(k)
	return table, by, err
}

// ReadKernel is Read without what it means.
func ReadKernel(family dataplane.Family) (*Kernel, []dataplane.Program, error) {
	k := &Kernel{}
	by, err := k.addresses(family)
	if err != nil || len(by) == 0 {
		return nil, nil, err
	}
	k.Program = by[0]
	ipv6 := family == dataplane.IPv6
	if k.Program == dataplane.ServiceProxy {
		k.Rules, err = netfilter.Read(ipv6, OwnTable)
	} else {
		var twice bool
		if twice, err = k.iptables(ipv6); twice {
			by = append(by, k.Program)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	switch _, err := os.Stat(serversFile); { // to ask for virtual servers would load IPVS
	case errors.Is(err, fs.ErrNotExist):
		return k, by, nil
	case err != nil:
		return nil, nil, fmt.Errorf("look for IPVS: %w", err)
	}
	if k.Servers, err = Servers(family); err != nil {
		return nil, nil, err
	}
	text, err := os.ReadFile(trackingFile)
	if err != nil {
		return nil, nil, fmt.Errorf("read whether IPVS tracks connections: %w", err)
	}
	k.Untracked = strings.TrimSpace(string(text)) == "0"
	return k, by, nil
}

// iptables reads the rules of kube-proxy. Twice: they are in iptables-nft and in iptables-legacy.
func (k *Kernel) iptables(ipv6 bool) (twice bool, err error) {
	if k.Rules, err = netfilter.Read(ipv6, iptables.Tables...); err != nil {
		return false, err
	}
	if k.Legacy, err = netfilter.ReadLegacy(ipv6, iptables.Tables...); err != nil {
		return false, err
	}
	const services = "nat/" + iptables.Prefix + "SERVICES"
	legacy, err := netfilter.Legacy(k.Rules, iptables.Qualified, k.Legacy...)
	if err != nil {
		return false, err
	}
	_, inLegacy := legacy.Chains[services]
	_, inNFT := k.Rules.Ruleset(iptables.Qualified).Chains[services]
	switch {
	case !inLegacy:
		k.Legacy = nil
	case !inNFT:
		k.Rules = &netfilter.Dump{IPv6: ipv6}
	}
	if !inLegacy && !inNFT { // no rule names an ipset: to ask for them would load what the kernel has no use for
		return false, nil
	}
	return inLegacy && inNFT, netfilter.ReadIPSets(k.Rules)
}

// addresses reads those of the node, and says whose interfaces there are.
func (k *Kernel) addresses(family dataplane.Family) ([]dataplane.Program, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network devices: %w", err)
	}
	var by []dataplane.Program
	for _, device := range all {
		program, own := devices[device.Name]
		if own {
			by = append(by, program)
		}
		list, err := device.Addrs()
		if err != nil {
			return nil, fmt.Errorf("list the addresses of %s: %w", device.Name, err)
		}
		for _, a := range list {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			addr, _ := netip.AddrFromSlice(n.IP)
			switch addr = addr.Unmap(); {
			case addr.Is4() != (family == dataplane.IPv4), addr.IsLoopback():
			case own:
				k.Device = append(k.Device, addr)
			default:
				k.Node = append(k.Node, addr)
			}
		}
	}
	slices.SortFunc(k.Device, netip.Addr.Compare)
	slices.SortFunc(k.Node, netip.Addr.Compare)
	return by, nil
}
