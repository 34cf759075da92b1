// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/checkplan/checkplan/pkg/dataplane"
)

// Forget removes stale UDP connections from the kernel, and returns their number. A kernel that tracks none has none.
func Forget(s Stale) (int, error) {
	total := 0
	for _, family := range s.Families() {
		inet := netlink.InetFamily(unix.AF_INET)
		if family == dataplane.IPv6 {
			inet = unix.AF_INET6
		}
		n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, inet, flows{s, family})
		total += int(n)
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EPROTONOSUPPORT) {
			return total, fmt.Errorf("forget stale UDP connections: %w", err)
		}
	}
	return total, nil
}

// flows is what the netlink library calls for each connection.
type flows struct {
	stale  Stale
	family dataplane.Family
}

func (f flows) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	to, ok := netip.AddrFromSlice(flow.Forward.DstIP)
	from, fine := netip.AddrFromSlice(flow.Reverse.SrcIP)
	return ok && fine && f.stale.Is(f.family, netip.AddrPortFrom(to.Unmap(), flow.Forward.DstPort),
		netip.AddrPortFrom(from.Unmap(), flow.Reverse.SrcPort))
}
