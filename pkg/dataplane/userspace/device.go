// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/checkplan/checkplan/pkg/dataplane"
)

// Device is the interface with the addresses of Services. Each function is called by one goroutine at a time.
type Device struct {
	// Create makes the interface, if it does not exist.
	Create func() error
	// Addresses returns what it has, and nothing if it does not exist.
	Addresses func() ([]netip.Addr, error)
	// Add and Remove one address.
	Add, Remove func(netip.Addr) error
	// Delete removes the interface with all of its addresses, if it exists.
	Delete func() error
}

// kinds are the types of interface that the proxy makes: the first one that the kernel has. A bridge without ports
// leads nowhere, as a dummy does. The interface stays down, as that of kube-proxy's mode ipvs: addresses work so, too.
var kinds = []string{"dummy", "bridge"}

// kernelDevice is dataplane.UserspaceDevice in the kernel.
func kernelDevice() Device {
	return Device{
		Create: func() error {
			if link, err := find(); err != nil || link != nil {
				return err
			}
			err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: dataplane.UserspaceDevice}})
			if errors.Is(err, unix.EOPNOTSUPP) {
				err = netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: dataplane.UserspaceDevice}})
			}
			if err != nil {
				return fmt.Errorf("create interface %s: %w", dataplane.UserspaceDevice, err)
			}
			return nil
		},
		Addresses: addresses,
		Add: func(a netip.Addr) error {
			link, err := required()
			if err != nil {
				return err
			}
			err = netlink.AddrAdd(link, assigned(a))
			if errors.Is(err, unix.EEXIST) {
				return nil
			}
			return err
		},
		Remove: func(a netip.Addr) error {
			link, err := required()
			if err != nil {
				return err
			}
			err = netlink.AddrDel(link, &netlink.Addr{IPNet: network(a)})
			if errors.Is(err, unix.EADDRNOTAVAIL) { // it is gone
				return nil
			}
			return err
		},
		Delete: func() error {
			link, err := find()
			if err != nil || link == nil {
				return err
			}
			if err := netlink.LinkDel(link); err != nil {
				return fmt.Errorf("delete interface %s: %w", dataplane.UserspaceDevice, err)
			}
			return nil
		},
	}
}

// assigned is an address as the interface has it: nothing that the node sends gets it as its source, unless it goes to
// the address itself. In IPv4, its scope does it. In IPv6, that it is deprecated does it (RFC 6724, rule 3): it is
// valid for long, and preferred for no time.
func assigned(a netip.Addr) *netlink.Addr {
	if a.Is4() {
		return &netlink.Addr{IPNet: network(a), Scope: unix.RT_SCOPE_HOST}
	}
	return &netlink.Addr{IPNet: network(a), Flags: unix.IFA_F_NODAD, ValidLft: math.MaxInt32}
}

func network(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// find returns the interface; nil: it does not exist.
func find() (netlink.Link, error) {
	link, err := netlink.LinkByName(dataplane.UserspaceDevice)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", dataplane.UserspaceDevice, err)
	}
	if !slices.Contains(kinds, link.Type()) {
		return nil, fmt.Errorf("interface %s is a %s, and not the proxy's", dataplane.UserspaceDevice, link.Type())
	}
	return link, nil
}

func required() (netlink.Link, error) {
	link, err := find()
	if err == nil && link == nil {
		err = fmt.Errorf("there is no interface %s", dataplane.UserspaceDevice)
	}
	return link, err
}

// attempts is how often addresses are read, if others change meanwhile.
const attempts = 5

func addresses() ([]netip.Addr, error) {
	link, err := find()
	if err != nil || link == nil {
		return nil, err
	}
	var list []netlink.Addr
	for range attempts {
		if list, err = netlink.AddrList(link, netlink.FAMILY_ALL); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read the addresses of interface %s: %w", dataplane.UserspaceDevice, err)
	}
	var all []netip.Addr
	for _, entry := range list {
		a, ok := netip.AddrFromSlice(entry.IP)
		if ones, bits := entry.Mask.Size(); ok && ones == bits { // what somebody else added has a network
			all = append(all, a.Unmap())
		}
	}
	return all, nil
}
