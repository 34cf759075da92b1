// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"io/fs"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Receive buffers of datagram sockets. If a buffer is full, the kernel drops packets. The kernel limits the size to
// net.core.rmem_max and then doubles it, for its own bookkeeping (socket(7)); memory is used only while packets wait. A
// responder's socket receives the packets of all its sources, an agent's those of one flow.
const (
	agentBuffer     = 1 << 20
	responderBuffer = 4 << 20
)

// The drops are the last value of SO_MEMINFO (linux/sock_diag.h).
const (
	memInfoDrops = 8 // SK_MEMINFO_DROPS
	memInfoSize  = 9 // SK_MEMINFO_VARS
)

// drops returns how many packets the kernel has dropped at a socket, 0 if unknown. SO_RXQ_OVFL reports the same number,
// but only with the next packet, and therefore never for the end of a burst.
func drops(raw syscall.RawConn) int {
	var info [memInfoSize]uint32
	size := uint32(unsafe.Sizeof(info))
	var errno syscall.Errno
	if err := raw.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO,
			uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	}); err != nil || errno != 0 {
		return 0
	}
	return int(info[memInfoDrops])
}

// noRoom returns how many of a UDP socket's drops were caused by a full buffer. A socket's drops also include packets
// with a wrong checksum, which the network has damaged. The kernel counts those separately only for the whole network
// namespace (the pod's): all of them are subtracted. root is the root of the file system.
func noRoom(drops int, family checkup.IPFamily, root fs.FS) int {
	if drops == 0 {
		return 0
	}
	return max(0, drops-checksumErrors(family, root))
}

// checksumErrors returns how many UDP packets with a wrong checksum this network namespace received (InCsumErrors of
// /proc/net/snmp, Udp6InCsumErrors of /proc/net/snmp6), 0 if unknown.
func checksumErrors(family checkup.IPFamily, root fs.FS) int {
	if family == checkup.IPv6 {
		counters, _ := fs.ReadFile(root, "proc/net/snmp6")
		for line := range strings.Lines(string(counters)) {
			if fields := strings.Fields(line); len(fields) == 2 && fields[0] == "Udp6InCsumErrors" {
				n, _ := strconv.Atoi(fields[1])
				return n
			}
		}
		return 0
	}
	// A line of names, then one of numbers.
	counters, _ := fs.ReadFile(root, "proc/net/snmp")
	var names []string
	for line := range strings.Lines(string(counters)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "Udp:" {
			continue
		}
		for i, name := range names {
			if name == "InCsumErrors" && i < len(fields) {
				n, _ := strconv.Atoi(fields[i])
				return n
			}
		}
		names = fields
	}
	return 0
}
