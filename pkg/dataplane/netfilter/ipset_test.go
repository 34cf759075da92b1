// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/dataplane/rules"
)

// nest writes attributes into one.
func nest(kind uint16, parts ...[]byte) []byte {
	return attribute(kind|0x8000, slices.Concat(parts...))
}

func be16(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }
func be32(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

func addressOf(kind uint16, text string) []byte {
	addr := netip.MustParseAddr(text)
	if addr.Is4() {
		return nest(kind, attribute(1, addr.AsSlice()))
	}
	return nest(kind, attribute(2, addr.AsSlice()))
}

// listed is a message of a list: a set with its entries. Of a set's later messages, the head is nil.
func listed(name, kind string, head []byte, entries ...[]byte) []byte {
	b := slices.Concat(attribute(ipsetAttrProtocol, []byte{7}), attribute(ipsetAttrName, append([]byte(name), 0)))
	if kind != "" {
		b = append(b, slices.Concat(attribute(ipsetAttrType, append([]byte(kind), 0)), attribute(ipsetAttrIndex, be16(5)),
			nest(ipsetAttrData, head))...)
	}
	var list [][]byte
	for _, e := range entries {
		list = append(list, nest(ipsetAttrData, e))
	}
	return append(b, nest(ipsetAttrEntries, list...)...)
}

func TestAddSet(t *testing.T) {
	port := func(n uint16) []byte { return attribute(entryPort, be16(n)) }
	tcp, sctp := attribute(entryProto, []byte{6}), attribute(entryProto, []byte{132})
	for _, row := range []struct {
		name     string
		messages [][]byte
		want     string
	}{
		{"addresses and ports", [][]byte{listed("KUBE-CLUSTER-IP", "hash:ip,port", nil,
			slices.Concat(addressOf(entryAddress, "10.96.0.1"), port(80), tcp), slices.Concat(addressOf(entryAddress, "10.96.0.2"), port(90), sctp))},
			"5 KUBE-CLUSTER-IP hash:ip,port [10.96.0.1/32 TCP 80 -] [10.96.0.2/32 SCTP 90 -]"},
		{"networks", [][]byte{listed("s", "hash:ip,port,net", nil, slices.Concat(addressOf(entryAddress, "fd00::1"), port(80), tcp,
			addressOf(entrySecond, "2001:db8::"), attribute(entryBits2, []byte{32})))}, "5 s hash:ip,port,net [fd00::1/128 TCP 80 2001:db8::/32]"},
		{"ports, with comments and counters", [][]byte{listed("s", "bitmap:port", nil, slices.Concat(port(30080),
			attribute(entryComment, []byte("x\x00")), attribute(entryBytes, make([]byte, 8))))}, "5 s bitmap:port [- - 30080 -]"},
		{"a set in two messages", [][]byte{listed("s", "hash:ip", nil, addressOf(entryAddress, "10.0.0.1")), listed("s", "", nil, addressOf(entryAddress, "10.0.0.2"))},
			"5 s hash:ip [10.0.0.1/32 - 0 -] [10.0.0.2/32 - 0 -]"},
		{"another type", [][]byte{listed("s", "hash:mac", nil)}, "5 s hash:mac unknown: type hash:mac"},
		{"entries that end", [][]byte{listed("s", "hash:ip", attribute(entryTimeout, be32(60)))}, "5 s hash:ip unknown: its entries end by themselves"},
		{"an exception", [][]byte{listed("s", "hash:ip,port,net", nil, slices.Concat(addressOf(entryAddress, "10.0.0.1"), port(1), tcp, addressOf(entrySecond, "10.0.0.0"),
			attribute(entryBits2, []byte{8}), attribute(entryFlags, be32(flagNoMatch))))}, "5 s hash:ip,port,net [- - 0 -] unknown: an entry: an exception"},
		{"a range", [][]byte{listed("s", "hash:ip", nil, slices.Concat(addressOf(entryAddress, "10.0.0.1"), addressOf(2, "10.0.0.9")))},
			"5 s hash:ip [- - 0 -] unknown: an entry: attribute 2"},
		{"no index", [][]byte{slices.Concat(attribute(ipsetAttrName, []byte("s\x00")), attribute(ipsetAttrType, []byte("hash:ip\x00")))},
			"ipset s has no index: the kernel is older than Linux 4.20"},
		{"cut", [][]byte{{8, 0, 3, 0}}, errShort.Error()},
	} {
		t.Run(row.name, func(t *testing.T) {
			var d Dump
			var got []string
			for _, m := range row.messages {
				if err := d.addSet(message{ipsetList, m}); err != nil {
					got = append(got, err.Error())
				}
			}
			for _, s := range d.IPSets {
				text := fmt.Sprint(s.Index, " ", s.Name, " ", s.Type)
				for _, e := range s.Entries {
					text += fmt.Sprintf(" [%s %s %d %s]", or(e.Address), orText(e.Protocol), e.Port, or(e.Second))
				}
				if s.Unknown != "" {
					text += " unknown: " + s.Unknown
				}
				got = append(got, text)
			}
			if strings.Join(got, "\n") != row.want {
				t.Errorf("%s\nwant %s", strings.Join(got, "\n"), row.want)
			}
		})
	}
}

func or(p netip.Prefix) string {
	if !p.IsValid() {
		return "-"
	}
	return p.String()
}

func orText(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// TestMatchSet: what a match on a set asks for, by the set's type and the directions of the rule.
func TestMatchSet(t *testing.T) {
	prefix := netip.MustParsePrefix
	entry := IPSetEntry{prefix("10.96.0.1/32"), "TCP", 80, prefix("192.0.2.0/24")}
	for _, row := range []struct {
		name         string
		set          IPSet
		count, flags byte
		want         string
	}{
		{"dst,dst", IPSet{Index: 5, Type: "hash:ip,port", Entries: []IPSetEntry{entry}}, 2, 0, "[dest protocol destPort] 10.96.0.1 TCP 80 from anywhere"},
		{"not dst,dst", IPSet{Index: 5, Type: "hash:ip,port", Entries: []IPSetEntry{entry}}, 2, 1, "not [dest protocol destPort] 10.96.0.1 TCP 80 from anywhere"},
		{"dst,dst,src", IPSet{Index: 5, Type: "hash:ip,port,net", Entries: []IPSetEntry{entry}}, 3, 8, "[dest protocol destPort] 10.96.0.1 TCP 80 from 192.0.2.0/24"},
		{"src,dst", IPSet{Index: 5, Type: "hash:ip,port", Entries: []IPSetEntry{entry}}, 2, 2, "[protocol destPort] invalid IP TCP 80 from 10.96.0.1/32"},
		{"dst of ports", IPSet{Index: 5, Type: "bitmap:port", Entries: []IPSetEntry{{Port: 30080}}}, 1, 0, "[destPort] invalid IP  30080 from anywhere"},
		{"dst of addresses", IPSet{Index: 5, Type: "hash:ip", Entries: []IPSetEntry{entry}}, 1, 0, "[dest] 10.96.0.1  0 from anywhere"},
		{"a port of the source", IPSet{Index: 5, Type: "hash:ip,port"}, 2, 4, "its directions are not understood"},
		{"two sources", IPSet{Index: 5, Type: "hash:ip,port,net"}, 3, 2 | 8, "its directions are not understood"},
		{"a network as a destination", IPSet{Index: 5, Type: "hash:ip,port,net"}, 3, 0, "its directions are not understood"},
		{"one direction of two", IPSet{Index: 5, Type: "hash:ip,port"}, 1, 0, "with 1 directions, is not understood"},
		{"what was not understood", IPSet{Index: 5, Type: "hash:ip", Unknown: "a mask"}, 1, 0, "a mask is not understood"},
		{"another set", IPSet{Index: 6, Type: "hash:ip"}, 1, 0, "ipset 5 was not read"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := converter{dump: &Dump{IPSets: []IPSet{row.set}}}
			got := ""
			if err := c.matchSet(5, row.count, row.flags); err != nil {
				got = err.Error()
			} else {
				cond := c.rule.Conds[0]
				if cond.Field != rules.Set {
					t.Errorf("a condition on %s", cond.Field)
				}
				if cond.Not {
					got = "not "
				}
				got += fmt.Sprint(cond.Fields)
				for key, from := range cond.Set {
					sources := "anywhere"
					if from != nil {
						sources = ""
						for addr := range from.Single {
							sources += netip.PrefixFrom(addr, addr.BitLen()).String()
						}
						for _, p := range from.Prefixes {
							sources += p.String()
						}
					}
					got += fmt.Sprintf(" %s %s %d from %s", key.Dest, key.Protocol, key.Port, sources)
				}
			}
			if !strings.HasSuffix(got, row.want) {
				t.Errorf("%s, want %s", got, row.want)
			}
		})
	}
}

// TestVirtual: the match on the virtual server that took a packet.
func TestVirtual(t *testing.T) {
	of := func(which, inverse byte) []byte {
		b := make([]byte, 40)
		copy(b, netip.MustParseAddr("203.0.113.1").AsSlice())
		copy(b[16:], []byte{255, 255, 255, 255})
		copy(b[32:], be16(443))
		b[34], b[38], b[39] = 6, inverse, which
		return b
	}
	for _, row := range []struct {
		name string
		data []byte
		want *rules.Cond
	}{
		{"address, protocol and port", of(1|2|4|8, 0), &rules.Cond{Field: rules.Virtual, Text: "TCP", Low: 443, High: 443}},
		{"address", of(1|4, 0), &rules.Cond{Field: rules.Virtual, High: 0xffff}},
		{"not the port", of(4|8, 8), nil},
		{"any", of(1, 0), nil},
		{"direction", of(4|16, 0), nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := converter{dump: &Dump{}}
			err := c.match("ipvs", 0, row.data)
			if (err == nil) != (row.want != nil) {
				t.Fatal(err)
			}
			if row.want == nil {
				return
			}
			got := c.rule.Conds[0]
			if !got.Addrs.Has(netip.MustParseAddr("203.0.113.1")) || got.Addrs.Has(netip.MustParseAddr("203.0.113.2")) {
				t.Errorf("%+v", got.Addrs)
			}
			got.Addrs = nil
			if diff := cmp.Diff(*row.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
