// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
)

// TestForget: of the connections that a kernel has, the stale ones of UDP are gone, and no others.
func TestForget(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	runtime.LockOSThread() // for good: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace: %v", err)
	}
	add := func(protocol uint8, to, from string) {
		t.Helper()
		dest, source := netip.MustParseAddrPort(to), netip.MustParseAddrPort(from)
		client := net.ParseIP("192.0.2.77")
		family := uint8(unix.AF_INET)
		if dest.Addr().Is6() {
			client, family = net.ParseIP("2001:db8::77"), unix.AF_INET6
		}
		flow := &netlink.ConntrackFlow{FamilyType: family, TimeOut: 300,
			Forward: netlink.IPTuple{SrcIP: client, DstIP: dest.Addr().AsSlice(), SrcPort: 4000, DstPort: dest.Port(), Protocol: protocol},
			Reverse: netlink.IPTuple{SrcIP: source.Addr().AsSlice(), DstIP: client, SrcPort: source.Port(), DstPort: 4000, Protocol: protocol}}
		if protocol == unix.IPPROTO_TCP {
			flow.ProtoInfo = &netlink.ProtoInfoTCP{State: 3}
		}
		if err := netlink.ConntrackCreate(netlink.ConntrackTable, netlink.InetFamily(family), flow); err != nil {
			t.Skipf("make a connection in the kernel: %v", err)
		}
	}
	add(unix.IPPROTO_UDP, "10.96.0.10:53", "10.0.0.1:53")
	add(unix.IPPROTO_UDP, "10.96.0.11:53", "10.0.0.9:53")
	add(unix.IPPROTO_UDP, "10.96.0.12:53", "10.96.0.12:53")
	add(unix.IPPROTO_TCP, "10.96.0.13:53", "10.0.0.9:53")
	add(unix.IPPROTO_UDP, "[fd00::10]:53", "[fd00::9]:53")
	var checks []proxy.UDPCheck
	for _, a := range addresses("10.96.0.10", "10.96.0.11", "10.96.0.12", "10.96.0.13", "fd00::10") {
		family := dataplane.IPv4
		if a.Is6() {
			family = dataplane.IPv6
		}
		checks = append(checks, proxy.UDPCheck{Frontend: proxy.Frontend{Family: family, Address: a, Port: 53}, Keep: endpoints("10.0.0.1:53")})
	}
	if n, err := proxy.Forget(proxy.NewStale(checks, nil)); err != nil || n != 3 {
		t.Errorf("%d forgotten, %v; want 3", n, err)
	}
	if n, err := proxy.Forget(proxy.NewStale(checks, nil)); err != nil || n != 0 {
		t.Errorf("%d forgotten again, %v", n, err)
	}
}
