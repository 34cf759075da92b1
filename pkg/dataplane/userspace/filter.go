// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const (
	// networkHeader is where the network header is for the instructions of a socket filter (SKF_NET_OFF of
	// linux/filter.h): in front of what the socket gets.
	networkHeader = 0xfff00000
	// source is where the source address is in the headers of IPv4 and IPv6.
	source4, source6 = 12, 8
	// maxInstructions is the kernel's limit (BPF_MAXINSNS). The sysctl net.core.optmem_max limits the memory, too.
	maxInstructions = 4096
)

// whole is all of a word, and of a packet.
const whole uint32 = 0xffffffff

// program returns a socket filter that lets through packets from these prefixes, all of one family, and drops others.
func program(from []netip.Prefix, ipv4 bool) ([]bpf.RawInstruction, error) {
	var all []bpf.Instruction
	words := 4
	if ipv4 {
		words = 1
	}
	for i := range words {
		offset := uint32(source6 + 4*i)
		if ipv4 {
			offset = source4
		}
		all = append(all, bpf.LoadAbsolute{Off: networkHeader + offset, Size: 4}, bpf.StoreScratch{Src: bpf.RegA, N: i})
	}
	for _, p := range from {
		address, bits := p.Masked().Addr().AsSlice(), p.Bits()
		var steps []bpf.Instruction
		var jumps []int // of steps: to the next prefix, if the word is another one
		for i := 0; i*32 < bits; i++ {
			steps = append(steps, bpf.LoadScratch{Dst: bpf.RegA, N: i})
			if left := bits - i*32; left < 32 {
				steps = append(steps, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: whole << (32 - left)})
			}
			jumps = append(jumps, len(steps))
			steps = append(steps, bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(address[4*i:])})
		}
		steps = append(steps, bpf.RetConstant{Val: whole})
		for _, at := range jumps {
			jump := steps[at].(bpf.JumpIf)
			jump.SkipFalse = uint8(len(steps) - at - 1)
			steps[at] = jump
		}
		if all = append(all, steps...); len(all) >= maxInstructions {
			return nil, fmt.Errorf("%d prefixes of sources are too many for the kernel", len(from))
		}
	}
	return bpf.Assemble(append(all, bpf.RetConstant{Val: 0}))
}

// attach makes the kernel drop what a Frontend is not for, from now on. Connections that it has are not touched.
func attach(conn syscall.RawConn, f *Frontend, ipv4 bool) error {
	var code []bpf.RawInstruction
	if !f.Open {
		var err error
		if code, err = program(f.From, ipv4); err != nil {
			return err
		}
	}
	var failed error
	if err := conn.Control(func(fd uintptr) {
		if f.Open {
			if failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0); errors.Is(failed, unix.ENOENT) {
				failed = nil // it has none
			}
			return
		}
		filters := make([]unix.SockFilter, len(code))
		for i, c := range code {
			filters[i] = unix.SockFilter{Code: c.Op, Jt: c.Jt, Jf: c.Jf, K: c.K}
		}
		failed = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(filters)), Filter: &filters[0]})
	}); err != nil {
		return err
	}
	if failed != nil {
		return fmt.Errorf("make the kernel drop packets of other sources than %d prefixes: %w", len(f.From), failed)
	}
	return nil
}
