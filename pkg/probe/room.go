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

// How much a datagram socket may hold before the kernel drops what comes. The
// kernel cuts it down to net.core.rmem_max and then doubles it, for its own
// bookkeeping (socket(7)); it is used only while packets wait. A responder's
// socket takes the packets of all its sources, an agent's those of one flow.
const (
	agentBuffer     = 1 << 20
	responderBuffer = 4 << 20
)

// Of the values of SO_MEMINFO (linux/sock_diag.h), the drops are the last.
const (
	memInfoDrops = 8 // SK_MEMINFO_DROPS
	memInfoSize  = 9 // SK_MEMINFO_VARS
)

// drops is how many packets the kernel has dropped at a socket, 0 if it does not
// tell. It is the number of SO_RXQ_OVFL, which comes only with the next packet,
// and so never for the last of a burst.
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

// noRoom is how many of a UDP socket's drops were for want of room in its
// buffer. The kernel counts wrong checksums, which are the network's doing, among
// a socket's drops too, and apart only for the whole network namespace, a pod's
// own: all of those are left out. root is the root of the file system.
func noRoom(drops int, family checkup.IPFamily, root fs.FS) int {
	if drops == 0 {
		return 0
	}
	return max(0, drops-checksumErrors(family, root))
}

// checksumErrors is how many UDP packets with a wrong checksum came to this
// network namespace (InCsumErrors of /proc/net/snmp, Udp6InCsumErrors of
// /proc/net/snmp6), 0 if it does not tell.
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
