// SPDX-License-Identifier: Apache-2.0

//go:build linux

package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Options of sockets, and sizes: linux/netfilter_ipv4/ip_tables.h.
const (
	getInfo    = 64
	getEntries = 65
	infoSize   = 84
	headerSize = 40
	mostBytes  = 256 << 20
)

// ReadLegacy reads tables of iptables-legacy of one family. Tables that do not exist are left out; asking for one would
// make it.
func ReadLegacy(ipv6 bool, names ...string) ([]LegacyTable, error) {
	file, family, level := "/proc/thread-self/net/ip_tables_names", unix.AF_INET, unix.SOL_IP
	if ipv6 {
		file, family, level = "/proc/thread-self/net/ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the kernel has no such tables
	}
	if err != nil {
		return nil, fmt.Errorf("read which tables iptables-legacy has: %w", err)
	}
	there := strings.Fields(string(text))
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(fd)
	var tables []LegacyTable
	for _, name := range names {
		if !slices.Contains(there, name) {
			continue
		}
		t, err := readTable(fd, level, name)
		if err != nil {
			return nil, fmt.Errorf("read table %s of iptables-legacy: %w", name, err)
		}
		tables = append(tables, t)
	}
	return tables, nil
}

func readTable(fd, level int, name string) (LegacyTable, error) {
	t := LegacyTable{Name: name}
	for range attempts {
		info := make([]byte, infoSize)
		copy(info, name)
		if err := option(fd, level, getInfo, info); err != nil {
			return t, err
		}
		size := binary.NativeEndian.Uint32(info[80:])
		if size > mostBytes {
			return t, fmt.Errorf("it has %d bytes, more than %d", size, mostBytes)
		}
		for hook := range t.Hooks {
			t.Hooks[hook] = -1
			if binary.NativeEndian.Uint32(info[32:])&(1<<hook) != 0 {
				t.Hooks[hook] = int(binary.NativeEndian.Uint32(info[36+4*hook:]))
			}
		}
		entries := make([]byte, headerSize+size)
		copy(entries, name)
		binary.NativeEndian.PutUint32(entries[32:], size)
		err := option(fd, level, getEntries, entries)
		if errors.Is(err, unix.EAGAIN) {
			continue // the table has another size by now
		}
		t.Entries = entries[headerSize:]
		return t, err
	}
	return t, fmt.Errorf("it changed %d times while it was read", attempts)
}

func option(fd, level, name int, b []byte) error {
	size := uint32(len(b))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
