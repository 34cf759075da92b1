// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Device is an interface with the addresses of Services, for proxies that need them to be the node's. Each function is
// called by one goroutine at a time.
type Device struct {
	Name string
	// Create makes the interface, if it does not exist.
	Create func() error
	// Addresses returns what it has, and nothing if it does not exist.
	Addresses func() ([]netip.Addr, error)
	// Add and Remove one address.
	Add, Remove func(netip.Addr) error
	// Delete removes the interface with all of its addresses, if it exists.
	Delete func() error
}

// Missing is an error if the interface lacks some of these addresses.
func (d Device) Missing(want []netip.Addr) error {
	have, err := d.Addresses()
	if err != nil {
		return err
	}
	slices.SortFunc(have, netip.Addr.Compare)
	var gone []string
	for _, a := range want {
		if _, ok := slices.BinarySearchFunc(have, a, netip.Addr.Compare); !ok {
			gone = append(gone, a.String())
		}
	}
	if len(gone) > 0 {
		return fmt.Errorf("interface %s lacks %d of its addresses, such as %s", d.Name, len(gone),
			strings.Join(gone[:min(len(gone), 3)], ", "))
	}
	return nil
}

// Assign compares the addresses that an interface has with those that it should have, both in any order: what to add,
// in the order of want, and what to remove, sorted.
func Assign(have, want []netip.Addr) (add, remove []netip.Addr) {
	has, wanted := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, a := range have {
		has[a] = true
	}
	for _, a := range want {
		if wanted[a] = true; !has[a] {
			add = append(add, a)
		}
	}
	for a := range has {
		if !wanted[a] {
			remove = append(remove, a)
		}
	}
	slices.SortFunc(remove, netip.Addr.Compare)
	return add, remove
}

// kinds are the types of interface that the proxy makes: the first one that the kernel has. A bridge without ports
// leads nowhere, as a dummy does. The interface stays down, as that of kube-proxy's mode ipvs: addresses work so, too.
var kinds = []string{"dummy", "bridge"}

// NewDevice returns the interface of that name in the kernel.
func NewDevice(name string) Device {
	return Device{
		Name: name,
		Create: func() error {
			if link, err := find(name); err != nil || link != nil {
				return err
			}
			err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: name}})
			if errors.Is(err, unix.EOPNOTSUPP) {
				err = netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}})
			}
			if err != nil {
				return fmt.Errorf("create interface %s: %w", name, err)
			}
			return nil
		},
		Addresses: func() ([]netip.Addr, error) { return assignedTo(name) },
		Add: func(a netip.Addr) error {
			link, err := required(name)
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
			link, err := required(name)
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
			link, err := find(name)
			if err != nil || link == nil {
				return err
			}
			if err := netlink.LinkDel(link); err != nil {
				return fmt.Errorf("delete interface %s: %w", name, err)
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
func find(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", name, err)
	}
	if !slices.Contains(kinds, link.Type()) {
		return nil, fmt.Errorf("interface %s is a %s, and not the proxy's", name, link.Type())
	}
	return link, nil
}

func required(name string) (netlink.Link, error) {
	link, err := find(name)
	if err == nil && link == nil {
		err = fmt.Errorf("there is no interface %s", name)
	}
	return link, err
}

// attempts is how often addresses are read, if others change meanwhile.
const attempts = 5

// assignedTo returns the addresses of an interface, without those that have a network: somebody else added them.
func assignedTo(name string) ([]netip.Addr, error) {
	link, err := find(name)
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
		return nil, fmt.Errorf("read the addresses of interface %s: %w", name, err)
	}
	var all []netip.Addr
	for _, entry := range list {
		a, ok := netip.AddrFromSlice(entry.IP)
		if ones, bits := entry.Mask.Size(); ok && ones == bits {
			all = append(all, a.Unmap())
		}
	}
	return all, nil
}
