// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// icmpCases are addresses in a network namespace with only a loopback, and the expected observations, of three
// measurements.
var icmpCases = []struct {
	name    string
	address map[checkup.IPFamily]string // nil is the loopback
	size    int
	want    checkup.Observation
}{
	{"empty", nil, 0, checkup.Observation{Sent: 3, Received: 3}},
	{"of one packet", nil, 1400, checkup.Observation{Sent: 3, Received: 3}},
	{"fragmented", nil, 9000, checkup.Observation{Sent: 3, Received: 3}},
	{"no route", map[checkup.IPFamily]string{checkup.IPv4: "192.0.2.1", checkup.IPv6: "2001:db8::1"}, 100,
		checkup.Observation{Sent: 3, Failure: noConnection(checkup.ReasonNoRoute, "network is unreachable")}},
}

func TestICMP(t *testing.T) {
	inOwnNetwork(t)
	if err := os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0); err != nil {
		t.Skipf("cannot allow ping sockets: %v", err)
	}
	for _, test := range icmpCases {
		for _, family := range checkup.IPFamilies {
			address := loopback[family]
			if test.address != nil {
				address = netip.MustParseAddr(test.address[family])
			}
			m := Measurement{
				Pair:    pairOf(checkup.ICMP, family, test.size),
				Address: netip.AddrPortFrom(address, 0),
				Probe:   checkup.Probe{Count: 3, Timeout: patience},
			}
			test.want.Pair = m.Pair
			// No subtest: another goroutine would be in another network.
			if diff := diffObservations(test.want, icmp(t.Context(), m, session())); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", test.name, family, diff)
			}
		}
	}
}

func TestICMPForbiddenNamesSysctl(t *testing.T) {
	inOwnNetwork(t)
	if err := os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("1 0"), 0); err != nil {
		t.Skipf("cannot forbid ping sockets: %v", err)
	}
	for _, family := range checkup.IPFamilies {
		got := icmp(t.Context(), Measurement{
			Pair:    pairOf(checkup.ICMP, family, 0),
			Address: netip.AddrPortFrom(loopback[family], 0),
			Probe:   checkup.Probe{Count: 3, Timeout: patience},
		}, session())
		if got.Unmeasured == nil || got.Unmeasured.Stage != checkup.StageSocket || !strings.Contains(got.Unmeasured.Message, "net.ipv4.ping_group_range") {
			t.Errorf("%s: got %+v, want unmeasured at the socket, naming the sysctl", family, got)
		}
	}
}

func TestUDPWithoutRoute(t *testing.T) {
	inOwnNetwork(t)
	for family, address := range map[checkup.IPFamily]string{checkup.IPv4: "192.0.2.1:7007", checkup.IPv6: "[2001:db8::1]:7007"} {
		m := Measurement{
			Pair:    pairOf(checkup.UDP, family, 100),
			Address: netip.MustParseAddrPort(address),
			Probe:   checkup.Probe{Count: 3, Timeout: patience},
		}
		want := checkup.Observation{Pair: m.Pair, Sent: 3, Failure: noConnection(checkup.ReasonNoRoute, "network is unreachable")}
		if diff := diffObservations(want, udp(t.Context(), m, session())); diff != "" {
			t.Errorf("%s (-want +got):\n%s", family, diff)
		}
	}
}

// inOwnNetwork moves only the calling goroutine to a new network namespace with a loopback. Its thread ends with it. It
// skips the test if that is not allowed.
func inOwnNetwork(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		t.Skipf("cannot make a network namespace (needs root): %v", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		t.Fatal(err)
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		t.Fatal(err)
	}
}
