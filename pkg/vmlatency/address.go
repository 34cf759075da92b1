// SPDX-License-Identifier: Apache-2.0

package vmlatency

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// blocks are the ranges of the pairs' IPv4 prefixes, in this order: the private ranges of RFC 1918, and that of RFC
// 2544 for network tests.
var blocks = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("198.18.0.0/15"),
}

// Hosts of a pair's prefixes.
const (
	hostSource = 1
	hostTarget = 2
	hostUnused = 6
)

// pairBits is the length of a pair's IPv4 prefix; that of IPv6 is 64.
const pairBits = 29

// attempts is the number of tried prefixes after which a block counts as full.
const attempts = 256

// allocator assigns unique prefixes to pairs and unique MAC addresses to VMs.
type allocator struct {
	run, check string
	// taken ranges: the cluster's, the networks', and those assigned before.
	taken []netip.Prefix
	macs  []string
}

// hash returns a hash of the run, the check and the parts.
func (a *allocator) hash(parts ...string) [sha256.Size]byte {
	return sha256.Sum256([]byte(strings.Join(append([]string{a.run, a.check}, parts...), "\x00")))
}

// prefix returns the prefix of a pair in a family; an error if none is left.
func (a *allocator) prefix(pair string, family checkup.IPFamily) (netip.Prefix, error) {
	if family == checkup.IPv6 {
		for i := range attempts {
			h := a.hash("prefix", pair, string(family), fmt.Sprint(i))
			address := [16]byte{0xfd}
			copy(address[1:8], h[:])
			if p := netip.PrefixFrom(netip.AddrFrom16(address), 64); a.take(p) {
				return p, nil
			}
		}
		return netip.Prefix{}, fmt.Errorf(
			"no free IPv6 range for the guests: the cluster and the network's config use all of fd00::/8",
		)
	}
	for _, block := range blocks {
		base := binary.BigEndian.Uint32(block.Addr().AsSlice())
		for i := range attempts {
			h := a.hash("prefix", pair, block.String(), fmt.Sprint(i))
			nth := binary.BigEndian.Uint32(h[:]) >> (block.Bits() + 32 - pairBits)
			p := netip.PrefixFrom(
				netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, base|nth<<(32-pairBits)))),
				pairBits,
			)
			if a.take(p) {
				return p, nil
			}
		}
	}
	return netip.Prefix{}, fmt.Errorf(
		"no free IPv4 range for the guests: the cluster and the network's config use all of %s",
		strings.Trim(fmt.Sprint(blocks), "[]"),
	)
}

// take reserves a prefix and reports whether it was free.
func (a *allocator) take(p netip.Prefix) bool {
	if slices.ContainsFunc(a.taken, p.Overlaps) {
		return false
	}
	a.taken = append(a.taken, p)
	return true
}

// mac returns the MAC address of a VM.
func (a *allocator) mac(pair, vm string) string {
	for i := 0; ; i++ {
		h := a.hash("mac", pair, vm, fmt.Sprint(i))
		mac := net.HardwareAddr(append([]byte{0x02}, h[:5]...)).String() // unicast, locally administered
		if !slices.Contains(a.macs, mac) {
			a.macs = append(a.macs, mac)
			return mac
		}
	}
}

// host returns an address of a prefix, with the length of the prefix.
func host(p netip.Prefix, n byte) netip.Prefix {
	b := p.Addr().AsSlice()
	b[len(b)-1] += n
	address, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(address, p.Bits())
}
