// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/checkplan/checkplan/pkg/dataplane/rules"
)

// Matches and targets of iptables are the kernel's structures (linux/netfilter/xt_*.h), in native byte order. Those
// that kube-proxy uses are understood.

func u16(b []byte, at int) uint16 { return binary.NativeEndian.Uint16(b[at:]) }
func u32(b []byte, at int) uint32 { return binary.NativeEndian.Uint32(b[at:]) }

func text(b []byte) string {
	t, _, _ := bytes.Cut(b, []byte{0})
	return string(t)
}

func (c *converter) match(name string, revision uint32, b []byte) error {
	is := func(want string, rev uint32, size int) bool { return name == want && revision == rev && len(b) >= size }
	switch {
	case name == "comment":
		c.rule.Comment = text(b)
	case name == "nfacct":
	case is("tcp", 0, 12):
		if u16(b, 0) != 0 || u16(b, 2) != 0xffff || b[8] != 0 || b[9] != 0 || b[10] != 0 || b[11]&^2 != 0 {
			return errUnknown
		}
		c.ports(u16(b, 4), u16(b, 6), b[11]&2 != 0)
	case is("udp", 0, 9):
		if u16(b, 0) != 0 || u16(b, 2) != 0xffff || b[8]&^2 != 0 {
			return errUnknown
		}
		c.ports(u16(b, 4), u16(b, 6), b[8]&2 != 0)
	case is("sctp", 0, 292):
		if flags := u32(b, 284); flags&^2 != 0 {
			return errUnknown
		} else if flags != 0 {
			c.ports(u16(b, 0), u16(b, 2), u32(b, 288)&2 != 0)
		}
	case is("addrtype", 1, 8):
		const local = 1 << 2
		source, dest, flags := u16(b, 0), u16(b, 2), u32(b, 4)
		if flags&^3 != 0 || source&^local != 0 || dest&^local != 0 {
			return errUnknown
		}
		if source != 0 {
			c.cond(rules.Cond{Field: rules.SourceLocal, Not: flags&1 != 0})
		}
		if dest != 0 {
			c.cond(rules.Cond{Field: rules.DestLocal, Not: flags&2 != 0})
		}
	case is("statistic", 0, 8):
		c.cond(rules.Cond{Field: rules.Chance})
	case name == "recent" && revision <= 1 && len(b) >= 210:
		affinity, seconds := text(b[10:210]), int32(u32(b, 0))
		switch set := b[8]; {
		case b[9] != 0 || u32(b, 4) != 0 || set&^(1|2|32) != 0 || set&3 == 0 || set&3 == 3:
			return errUnknown
		case set&2 != 0:
			c.effect(rules.Effect{Affinity: affinity})
		default:
			c.cond(rules.Cond{Field: rules.Affinity, Text: affinity, Seconds: seconds})
		}
	case is("mark", 1, 9):
		c.cond(rules.Cond{Field: rules.Mark, Not: b[8] != 0, Value: u32(b, 0), Mask: u32(b, 4)})
	case name == "conntrack" && (revision == 2 || revision == 3) && len(b) >= 154:
		if u16(b, 146) != 1 || u16(b, 148)&^1 != 0 {
			return errUnknown
		}
		c.cond(rules.Cond{Field: rules.State, Not: u16(b, 148) != 0, New: u16(b, 150)&stateNew != 0})
	case name == "set" && revision >= 1 && revision <= 4 && len(b) >= 4:
		// Revision 3 and 4 can compare an entry's counters, too: how is at other places.
		at := map[uint32]int{3: 8, 4: 16}[revision]
		if at != 0 && (len(b) < 40 || b[at] != 0 || b[at+16] != 0) {
			return errUnknown
		}
		return c.matchSet(u16(b, 0), b[2], b[3])
	case is("physdev", 0, 66):
		const isIn = 8
		if b[65] != isIn || b[64]&^isIn != 0 {
			return errUnknown
		}
		c.cond(rules.Cond{Field: rules.Chance}) // packets may come from a port of a bridge, or not
	case is("ipvs", 0, 40):
		return c.virtual(b)
	default:
		return unknown(name)
	}
	return nil
}

// virtual is a condition on the virtual server that took a packet: struct xt_ipvs_mtinfo.
func (c *converter) virtual(b []byte) error {
	const ipvs, protocol, addr, port = 1, 2, 4, 8
	inverse, which := b[38], b[39]
	if inverse != 0 || which&^(ipvs|protocol|addr|port) != 0 || which&addr == 0 {
		return errUnknown
	}
	cond := rules.Cond{Field: rules.Virtual, High: 0xffff}
	n := c.size(rules.Dest)
	p, err := c.prefix(b[:n], b[16:16+n])
	if err != nil {
		return err
	}
	cond.Addrs = addrs(p)
	if which&protocol != 0 {
		if cond.Text = protocols[b[34]]; cond.Text == "" {
			cond.Field = rules.Never
		}
	}
	if which&port != 0 {
		cond.Low = binary.BigEndian.Uint16(b[32:])
		cond.High = cond.Low
	}
	c.cond(cond)
	return nil
}

type unknown string

func (u unknown) Error() string { return string(u) + " is not understood" }

func (c *converter) ports(low, high uint16, not bool) {
	if low != 0 || high != 0xffff || not {
		c.cond(rules.Cond{Field: rules.DestPort, Low: low, High: high, Not: not})
	}
}

func (c *converter) target(name string, revision uint32, b []byte) error {
	switch {
	case name == "MARK" && revision == 2 && len(b) >= 8:
		c.effect(rules.Effect{And: ^u32(b, 4), Xor: u32(b, 0)})
	case name == "MASQUERADE":
		c.rule.Verdict = rules.Verdict{Do: rules.Masquerade}
	case name == "REJECT":
		c.rule.Verdict = rules.Verdict{Do: rules.Reject}
	case name == "DNAT" && revision == 0 && !c.dump.IPv6 && len(b) >= 20: // nf_nat_ipv4_multi_range_compat
		return c.dnat(u32(b, 4), b[8:12], b[12:16], b[16:18], b[18:20])
	case name == "DNAT" && (revision == 1 || revision == 2) && len(b) >= 40: // nf_nat_range and nf_nat_range2
		n := c.size(rules.Dest)
		return c.dnat(u32(b, 0), b[4:4+n], b[20:20+n], b[36:38], b[38:40])
	default:
		return unknown(name)
	}
	return nil
}

// dnat to one address and port.
func (c *converter) dnat(flags uint32, addr, last, port, lastPort []byte) error {
	if flags&3 != 3 || flags&^7 != 0 || !bytes.Equal(addr, last) || !bytes.Equal(port, lastPort) {
		return errUnknown
	}
	to, _ := netip.AddrFromSlice(addr)
	c.rule.Verdict = rules.Verdict{Do: rules.DNAT, To: netip.AddrPortFrom(to, binary.BigEndian.Uint16(port))}
	return nil
}
