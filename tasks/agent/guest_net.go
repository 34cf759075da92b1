// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// interfacePatience is how long a driver may take to create its interface.
const interfacePatience = 5 * time.Second

// findInterface finds the interface with a MAC. left are network devices without a driver, for the error.
func findInterface(mac net.HardwareAddr, left []string) (*net.Interface, error) {
	for deadline := time.Now().Add(interfacePatience); ; time.Sleep(10 * time.Millisecond) {
		all, err := net.Interfaces()
		if err != nil {
			return nil, fmt.Errorf("list the guest's interfaces: %w", err)
		}
		var seen []string
		for _, i := range all {
			if bytes.Equal(i.HardwareAddr, mac) {
				return &i, nil
			}
			if i.Flags&net.FlagLoopback == 0 {
				seen = append(seen, fmt.Sprintf("%s (%s)", i.Name, i.HardwareAddr))
			}
		}
		if time.Now().After(deadline) || len(left) > 0 {
			return nil, noInterface(mac, seen, left)
		}
	}
}

func noInterface(mac net.HardwareAddr, seen, left []string) error {
	message := fmt.Sprintf("the guest has no interface with the MAC address %s", mac)
	if len(seen) > 0 {
		message += "; it has " + strings.Join(seen, ", ")
	}
	if len(left) > 0 {
		message += "; its kernel has no driver for " + strings.Join(left, ", ")
	}
	return errors.New(message)
}

// set sets the addresses of the interface. settle waits for the detection of duplicates.
func (o *ownAddresses) set(i *net.Interface, addresses []netip.Prefix) error {
	o.iface, o.asked = i, make(chan struct{})
	if err := bringUp("lo"); err != nil {
		return err
	}
	// Ignore routers, and do not wait for a random time before the detection of duplicate IPv6 addresses.
	for _, name := range []string{"accept_ra", "router_solicitation_delay"} {
		_ = os.WriteFile(
			filepath.Join("/proc/sys/net/ipv6/conf", i.Name, name),
			[]byte("0"),
			0,
		) // optional: without it, it only takes longer
	}
	for _, a := range addresses {
		if a.Addr().Is4() {
			if err := setIPv4(i.Name, a); err != nil {
				return fmt.Errorf("set address %s of %s: %w", a, i.Name, err)
			}
			o.ipv4 = a.Addr().As4()
		}
	}
	if err := bringUp(i.Name); err != nil {
		return err
	}
	for _, a := range addresses {
		if a.Addr().Is6() {
			if err := addIPv6(i.Index, a); err != nil {
				return fmt.Errorf("set address %s of %s: %w", a, i.Name, err)
			}
			o.ipv6 = true
		}
	}
	if o.ipv4 == [4]byte{} {
		close(o.asked)
		return nil
	}
	return o.watchARP()
}

// ifreq is struct ifreq with what we need of its union.
type ifreq struct {
	name  [unix.IFNAMSIZ]byte
	value [24]byte
}

func newIfreq(name string) *ifreq {
	r := &ifreq{}
	copy(r.name[:unix.IFNAMSIZ-1], name)
	return r
}

// ioctl sends an ioctl to the kernel on a socket of a family.
func ioctl(family int, request uint, argument unsafe.Pointer) error {
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(argument)); errno != 0 {
		return os.NewSyscallError("ioctl", errno)
	}
	return nil
}

func bringUp(name string) error {
	r := newIfreq(name)
	err := ioctl(unix.AF_INET, unix.SIOCGIFFLAGS, unsafe.Pointer(r))
	if err == nil {
		flags := binary.NativeEndian.Uint16(r.value[:]) | unix.IFF_UP
		binary.NativeEndian.PutUint16(r.value[:], flags)
		err = ioctl(unix.AF_INET, unix.SIOCSIFFLAGS, unsafe.Pointer(r))
	}
	if err != nil {
		return fmt.Errorf("bring %s up: %w", name, err)
	}
	return nil
}

func setIPv4(name string, a netip.Prefix) error {
	for _, set := range []struct {
		request uint
		address [4]byte
	}{{unix.SIOCSIFADDR, a.Addr().As4()}, {unix.SIOCSIFNETMASK, [4]byte(net.CIDRMask(a.Bits(), 32))}} {
		r := newIfreq(name)
		binary.NativeEndian.PutUint16(r.value[:], unix.AF_INET)
		copy(r.value[4:], set.address[:]) // behind the port of struct sockaddr_in
		if err := ioctl(unix.AF_INET, set.request, unsafe.Pointer(r)); err != nil {
			return err
		}
	}
	return nil
}

func addIPv6(index int, a netip.Prefix) error {
	r := struct { // struct in6_ifreq
		address [16]byte
		bits    uint32
		index   int32
	}{a.Addr().As16(), uint32(a.Bits()), int32(index)}
	return ioctl(unix.AF_INET6, unix.SIOCSIFADDR, unsafe.Pointer(&r))
}

// Flags of an IPv6 address (linux/if_addr.h).
const (
	flagDADFailed = 0x08 // IFA_F_DADFAILED: another machine uses the address
	flagTentative = 0x40 // IFA_F_TENTATIVE: the detection is not over, the address is not usable yet
)

// flaggedAddress returns an address of an interface that has a flag, from the kernel's table of addresses
// (/proc/net/if_inet6); false if none has.
func flaggedAddress(table, name string, flag uint64) (netip.Addr, bool) {
	for line := range strings.Lines(table) {
		// address  index  bits  scope  flags  name, all but the name in hexadecimal
		fields := strings.Fields(line)
		if len(fields) != 6 || fields[5] != name {
			continue
		}
		flags, err := strconv.ParseUint(fields[4], 16, 32)
		if err != nil || flags&flag == 0 {
			continue
		}
		b, err := hex.DecodeString(fields[0])
		if err != nil || len(b) != 16 {
			continue
		}
		return netip.AddrFrom16([16]byte(b)), true
	}
	return netip.Addr{}, false
}

// ARP for Ethernet and IPv4 (RFC 826).
const (
	arpSize    = 28
	arpRequest = 1
)

// arpProbe returns an ARP probe: a request for an address that the sender does not use yet (RFC 5227, section 2.1.1).
func arpProbe(mac net.HardwareAddr, address [4]byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, unix.ARPHRD_ETHER)
	b = binary.BigEndian.AppendUint16(b, unix.ETH_P_IP)
	b = append(b, 6, 4, 0, arpRequest)
	b = append(append(b, mac...), 0, 0, 0, 0)
	return append(append(b, 0, 0, 0, 0, 0, 0), address[:]...)
}

// arpThief returns the MAC of another machine that, according to an ARP packet, uses the address or probes for it (RFC
// 5227, sections 2.1.1 and 2.4); nil otherwise.
func arpThief(packet []byte, mac net.HardwareAddr, address [4]byte) net.HardwareAddr {
	if len(packet) < arpSize || binary.BigEndian.Uint16(packet[2:]) != unix.ETH_P_IP || packet[4] != 6 || packet[5] != 4 {
		return nil
	}
	sender, from, to := net.HardwareAddr(packet[8:14]), [4]byte(packet[14:18]), [4]byte(packet[24:28])
	if bytes.Equal(sender, mac) {
		return nil // a switch may send our own packets back
	}
	probes := from == [4]byte{} && to == address && binary.BigEndian.Uint16(packet[6:]) == arpRequest
	if from == address || probes {
		return bytes.Clone(sender)
	}
	return nil
}

// watchARP sends ARP probes for the IPv4 address and checks all later ARP packets.
func (o *ownAddresses) watchARP() error {
	const protocol = unix.ETH_P_ARP<<8&0xff00 | unix.ETH_P_ARP>>8 // in network byte order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return fmt.Errorf("listen for ARP: %w", os.NewSyscallError("socket", err))
	}
	at := &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: o.iface.Index}
	if err := unix.Bind(fd, at); err != nil {
		unix.Close(fd)
		return fmt.Errorf("listen for ARP: %w", os.NewSyscallError("bind", err))
	}
	go func() {
		defer unix.Close(fd)
		buf := make([]byte, 128)
		for {
			n, _, err := unix.Recvfrom(fd, buf, 0)
			switch {
			case err == unix.EINTR, err == unix.ENETDOWN:
				continue
			case err != nil:
				return
			}
			if mac := arpThief(buf[:n], o.iface.HardwareAddr, o.ipv4); mac != nil {
				o.thief.CompareAndSwap(nil, &mac)
			}
		}
	}()
	go func() {
		defer close(o.asked)
		to := &unix.SockaddrLinklayer{
			Protocol: protocol,
			Ifindex:  o.iface.Index,
			Halen:    6,
			Addr:     [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		}
		const probes = 3
		for range probes {
			// A probe that cannot be sent counts as lost.
			_ = unix.Sendto(fd, arpProbe(o.iface.HardwareAddr, o.ipv4), 0, to)
			time.Sleep(askTime / probes)
		}
	}()
	return nil
}
