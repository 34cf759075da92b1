// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/checkplan/checkplan/pkg/dataplane/rules"
)

// IPSet is a set that rules of iptables are matched with.
type IPSet struct {
	// Index is the kernel's number, by which rules name it.
	Index   uint16       `json:"index"`
	Name    string       `json:"name"`
	Type    string       `json:"type"` // hash:ip,port for example: what its entries consist of
	Entries []IPSetEntry `json:"entries,omitempty"`
	// Unknown says what of it was not understood; empty: nothing.
	Unknown string `json:"unknown,omitempty"`
}

// IPSetEntry has what the set's type says, and nothing else.
type IPSetEntry struct {
	Address  netip.Prefix `json:"address,omitzero"`
	Protocol string       `json:"protocol,omitempty"` // empty if Services cannot have it
	Port     uint16       `json:"port,omitempty"`
	Second   netip.Prefix `json:"second,omitzero"` // the second address, or the network
}

// part is what an entry consists of.
type part string

const (
	address part = "address"
	port    part = "port" // and protocol
	bare    part = "bare" // a port, of any protocol
	second  part = "second"
)

// ipsetTypes are those that are understood.
var ipsetTypes = map[string][]part{
	"hash:ip": {address}, "hash:net": {address}, "hash:ip,port": {address, port},
	"hash:ip,port,ip": {address, port, second}, "hash:ip,port,net": {address, port, second},
	"bitmap:port": {bare},
}

// The protocol of requests about ipsets, of which answers say a set's index since Linux 4.20; commands and attributes:
// linux/netfilter/ipset/ip_set.h. The library github.com/vishvananda/netlink speaks protocol 6, which has no index.
const (
	ipsetProtocol = 7
	ipsetList     = 7

	ipsetAttrProtocol = 1
	ipsetAttrName     = 2
	ipsetAttrType     = 3
	ipsetAttrData     = 7
	ipsetAttrEntries  = 8
	ipsetAttrIndex    = 11

	entryAddress = 1
	entryBits    = 3
	entryPort    = 4
	entryTimeout = 6
	entryProto   = 7
	entryFlags   = 8
	entrySecond  = 20
	entryBits2   = 21
	entryBytes   = 24
	entryPackets = 25
	entryComment = 26

	headBitmask = 12
	headNetmask = 20

	flagNoMatch = 1 << 2
)

// entryAttributes are those that an entry may have: what it is, and what does not change which packets it is for.
var entryAttributes = []uint16{
	entryAddress, entryBits, entryPort, entryProto, entryFlags, entrySecond, entryBits2, entryBytes, entryPackets,
	entryComment,
}

// addSet decodes a message of a list. A large set has several.
func (d *Dump) addSet(m message) error {
	a, err := parse(m.data)
	if err != nil {
		return err
	}
	name := a.text(ipsetAttrName)
	i := slices.IndexFunc(d.IPSets, func(s IPSet) bool { return s.Name == name })
	if i < 0 {
		index := a.raw(ipsetAttrIndex)
		if len(index) != 2 {
			return fmt.Errorf("ipset %s has no index: the kernel is older than Linux 4.20", name)
		}
		i = len(d.IPSets)
		s := IPSet{Index: binary.BigEndian.Uint16(index), Name: name, Type: a.text(ipsetAttrType)}
		head := a.nested(ipsetAttrData)
		switch {
		case ipsetTypes[s.Type] == nil:
			s.Unknown = "type " + s.Type
		case head.raw(entryTimeout) != nil:
			s.Unknown = "its entries end by themselves"
		case head.raw(headNetmask) != nil || head.raw(headBitmask) != nil:
			s.Unknown = "its addresses have a mask"
		}
		d.IPSets = append(d.IPSets, s)
	}
	s := &d.IPSets[i]
	list, err := parse(a.raw(ipsetAttrEntries))
	if err != nil {
		return err
	}
	for _, data := range list[ipsetAttrData] {
		e, err := entry(data)
		if err != nil && s.Unknown == "" {
			s.Unknown = "an entry: " + err.Error()
		}
		s.Entries = append(s.Entries, e)
	}
	return nil
}

func entry(data []byte) (IPSetEntry, error) {
	var e IPSetEntry
	a, err := parse(data)
	if err != nil {
		return e, err
	}
	for kind := range a {
		if !slices.Contains(entryAttributes, kind) {
			return e, fmt.Errorf("attribute %d", kind)
		}
	}
	if a.number(entryFlags)&flagNoMatch != 0 {
		return e, errors.New("an exception")
	}
	if b := a.raw(entryPort); len(b) == 2 {
		e.Port = binary.BigEndian.Uint16(b)
	}
	if b := a.raw(entryProto); len(b) == 1 {
		e.Protocol = protocols[b[0]]
	}
	if e.Address, err = entryPrefix(a, entryAddress, entryBits); err != nil {
		return e, err
	}
	e.Second, err = entryPrefix(a, entrySecond, entryBits2)
	return e, err
}

// entryPrefix is an address with its length; invalid if there is none.
func entryPrefix(a attributes, of, length uint16) (netip.Prefix, error) {
	if a.raw(of) == nil {
		return netip.Prefix{}, nil
	}
	inner := a.nested(of)
	raw := inner.raw(1) // IPv4
	if raw == nil {
		raw = inner.raw(2)
	}
	addr, ok := netip.AddrFromSlice(raw)
	if !ok {
		return netip.Prefix{}, errors.New("an address without bytes")
	}
	bits := addr.BitLen()
	if b := a.raw(length); len(b) == 1 {
		bits = int(b[0])
	}
	p := netip.PrefixFrom(addr, bits)
	if !p.IsValid() || p.Masked() != p {
		return netip.Prefix{}, fmt.Errorf("address %s/%d", addr, bits)
	}
	return p, nil
}

// matchSet adds a condition on an ipset. A bit of flags says for each part of its entries whether it is the packet's
// source; the first bit is a match that must not be.
func (c *converter) matchSet(index uint16, count, flags byte) error {
	i := slices.IndexFunc(c.dump.IPSets, func(s IPSet) bool { return s.Index == index })
	if i < 0 {
		return fmt.Errorf("ipset %d was not read", index)
	}
	set := &c.dump.IPSets[i]
	parts := ipsetTypes[set.Type]
	switch {
	case set.Unknown != "":
		return fmt.Errorf("ipset %s: %s is not understood", set.Name, set.Unknown)
	case len(parts) != int(count):
		return fmt.Errorf("ipset %s of type %s, with %d directions, is not understood", set.Name, set.Type, count)
	}
	cond := rules.Cond{Field: rules.Set, Not: flags&1 != 0, Set: map[rules.MapKey]*rules.Addrs{}}
	source := part("") // which is compared with the source
	for i, p := range parts {
		fromSource := flags&(2<<i) != 0
		switch {
		case fromSource && (p == address || p == second) && source == "":
			source = p
		case fromSource || p == second:
			return fmt.Errorf("ipset %s: its directions are not understood", set.Name)
		case p == address:
			cond.Fields = append(cond.Fields, rules.Dest)
		case p == port:
			cond.Fields = append(cond.Fields, rules.Protocol, rules.DestPort)
		case p == bare:
			cond.Fields = append(cond.Fields, rules.DestPort)
		}
	}
	sources := map[rules.MapKey][]netip.Prefix{}
	for _, e := range set.Entries {
		var key rules.MapKey
		if slices.Contains(cond.Fields, rules.DestPort) {
			key.Port = e.Port
		}
		if slices.Contains(cond.Fields, rules.Protocol) {
			if key.Protocol = e.Protocol; key.Protocol == "" {
				continue // no packet of a Service
			}
		}
		if slices.Contains(cond.Fields, rules.Dest) {
			if !e.Address.IsSingleIP() {
				return fmt.Errorf("ipset %s: a network as a destination is not understood", set.Name)
			}
			key.Dest = e.Address.Addr()
		}
		cond.Set[key] = nil
		from := map[part]netip.Prefix{address: e.Address, second: e.Second}[source]
		if source != "" && !from.IsValid() {
			return fmt.Errorf("ipset %s: an entry without a source is not understood", set.Name)
		}
		if source != "" {
			sources[key] = append(sources[key], from)
		}
	}
	for key, from := range sources {
		cond.Set[key] = addrs(from...)
	}
	c.cond(cond)
	return nil
}
