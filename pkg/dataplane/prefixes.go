// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"net/netip"
	"slices"
)

// Prefixes returns the fewest prefixes of one family that have the same addresses, sorted. nil if there is none, and if
// they have all addresses: what has no Sources is open to all.
func Prefixes(list []netip.Prefix) []netip.Prefix {
	for {
		slices.SortFunc(list, netip.Prefix.Compare)
		var fewer []netip.Prefix
		for _, p := range list {
			last := len(fewer) - 1
			switch {
			case last >= 0 && fewer[last].Bits() <= p.Bits() && fewer[last].Contains(p.Addr()):
			case last >= 0 && fewer[last].Bits() == p.Bits() && parent(fewer[last]) == parent(p):
				fewer[last] = parent(p)
			default:
				fewer = append(fewer, p)
			}
		}
		if len(fewer) == len(list) {
			if len(fewer) == 1 && fewer[0].Bits() == 0 {
				return nil
			}
			return fewer
		}
		list = fewer
	}
}

func parent(p netip.Prefix) netip.Prefix { return netip.PrefixFrom(p.Addr(), p.Bits()-1).Masked() }

// Range returns the prefixes that have all addresses from first to last.
func Range(first, last netip.Addr) []netip.Prefix {
	var list []netip.Prefix
	for first.IsValid() && first.Compare(last) <= 0 {
		for bits := range first.BitLen() + 1 {
			p := netip.PrefixFrom(first, bits)
			if end := lastOf(p); p.Masked().Addr() == first && end.Compare(last) <= 0 {
				list, first = append(list, p), end.Next()
				break
			}
		}
	}
	return list
}

func lastOf(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for i := p.Bits(); i < len(bytes)*8; i++ {
		bytes[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return last
}
