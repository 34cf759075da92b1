// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// icmpHeader is the size of the header of an ICMP echo packet of either family:
// type, code, checksum (2), identifier (2), sequence number (2).
const icmpHeader = 8

// icmp sends echo requests from an unprivileged ping socket. The kernel sets checksum and identifier, and delivers only
// answers with that identifier.
func icmp(ctx context.Context, m Measurement, s *Session) checkup.Observation {
	protocol, ask, reply := syscall.IPPROTO_ICMP, int(ipv4.ICMPTypeEcho), int(ipv4.ICMPTypeEchoReply)
	if m.Pair.Family == checkup.IPv6 {
		protocol, ask, reply = syscall.IPPROTO_ICMPV6, int(ipv6.ICMPTypeEchoRequest), int(ipv6.ICMPTypeEchoReply)
	}
	address := netip.AddrPortFrom(m.Address.Addr(), 0)
	build := func(kind int) func([]byte, int) []byte {
		return func(b []byte, i int) []byte {
			b = append(b, byte(kind), 0, 0, 0, 0, 0)
			b = binary.BigEndian.AppendUint16(b, uint16(i))
			return appendFill(b, s.Nonce+uint64(i), m.Pair.Size)
		}
	}
	number := func(kind int) func([]byte) (int, bool) {
		return func(b []byte) (int, bool) {
			if len(b) < icmpHeader || b[0] != byte(kind) {
				return 0, false
			}
			clear(b[2:6]) // checksum and identifier are the kernel's
			return int(binary.BigEndian.Uint16(b[6:])), true
		}
	}
	d := datagrams{
		m: m,
		open: func(int) (*socket, error) {
			sock, err := openSocket(address, 0, protocol, icmpHeader+m.Pair.Size+1)
			var call *os.SyscallError
			if errors.As(err, &call) && call.Syscall == "socket" && errors.Is(err, syscall.EACCES) {
				call.Err = fmt.Errorf(
					"%w: ping sockets are forbidden to this group: set the pod's sysctl net.ipv4.ping_group_range to \"0 2147483647\"",
					call.Err,
				)
			}
			return sock, err
		},
		flows:  1,
		packet: build(ask),
		answer: build(reply),
		number: number(reply),
		quoted: number(ask),
	}
	return d.measure(ctx, s)
}
