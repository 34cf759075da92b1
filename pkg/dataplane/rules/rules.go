// SPDX-License-Identifier: Apache-2.0

// Package rules follows packets through the rules of a node, whatever they were written as: the readers of nftables and
// iptables make a Ruleset, and Table says what it does with Services.
//
// A packet is a kind of packets: from an origin, to a frontend, from any source address. Where a rule depends on
// chance, on an earlier connection, or on the source address, both ways are followed.
package rules

import (
	"net/netip"
	"slices"

	"github.com/checkplan/checkplan/pkg/dataplane"
)

// Hook is where the kernel takes a packet through base chains.
type Hook string

// The hooks that new connections to Services pass.
const (
	Prerouting  Hook = "prerouting"
	Input       Hook = "input"
	Forward     Hook = "forward"
	Output      Hook = "output"
	Postrouting Hook = "postrouting"
	// Sent is the part of Output that comes after virtual servers, which rewrite the destination there: what they
	// forward passes it, and what the node itself sends. Only for a Ruleset with Servers.
	Sent Hook = "sent"
)

// Ruleset has the rules of one IP family.
type Ruleset struct {
	// Hooks has the base chains of each hook, in the order in which packets pass them.
	Hooks map[Hook][]string
	// Chains has the rules of each chain. Names are the reader's; those of iptables have their table before them.
	Chains map[string][]Rule
	// Keys are the frontends that any rule names.
	Keys map[dataplane.Key]bool
	// NodePortAddresses: see dataplane.Table.
	NodePortAddresses []netip.Addr
	// Unknown are all rules that were not understood. Incomplete: see dataplane.Table.
	Unknown    []string
	Incomplete bool

	// Servers are IPVS's virtual servers, by the addresses that packets go to; not nil: the ruleset is of a proxy in mode
	// ipvs. They take a packet to an address that the node has when it has passed Input, and any packet of the node
	// itself when it has passed Output. Keys then has a key for each, without an address if it is a node port's.
	Servers map[dataplane.Key]*Server
	// Marks are those of virtual servers that take packets by their mark, whatever their address, with their text.
	Marks map[uint32]string
	// Addresses are those that the node has. Only for a Ruleset with Servers.
	Addresses map[netip.Addr]bool

	indexes map[string]*index // of Chains, when a packet meets them
}

// Rule is conditions, all of which have to be met, and what is done then.
type Rule struct {
	Conds []Cond
	// Map, if not nil, decides on the verdict after the conditions. A packet that it does not have goes on.
	Map *Map
	// Effects take place before the verdict.
	Effects []Effect
	Verdict Verdict
	// Label is namespace/name:port of the Service that the rule says it is of. Empty: none.
	Label   string
	Comment string
	// Text is the rule as it was read, for evidence; empty if each of its parts was understood.
	Text string
}

// Field is what a condition is about.
type Field string

// The fields. Unknown is a condition that was not understood.
const (
	Source      Field = "source"      // Addrs
	Dest        Field = "dest"        // Addrs
	Protocol    Field = "protocol"    // Text
	DestPort    Field = "destPort"    // Low to High
	SourceLocal Field = "sourceLocal" // the source is an address of the node
	DestLocal   Field = "destLocal"   // the destination is an address of the node
	Interface   Field = "interface"   // Text: the packet came in by it; * at the end: those that begin so
	State       Field = "state"       // New: of connections, new ones are among those that are asked for
	Translated  Field = "translated"  // the destination was rewritten
	Mark        Field = "mark"        // mark & Mask == Value
	Chance      Field = "chance"      // by chance
	Affinity    Field = "affinity"    // Text, Seconds: the source address was sent to an endpoint before
	Set         Field = "set"         // Fields, Set: an ipset has the packet's values
	Virtual     Field = "virtual"     // Addrs, Text, Low to High: a virtual server took it at this address, protocol, port
	Never       Field = "never"       // a packet of a new connection to a Service never meets it
	Unknown     Field = "unknown"
)

// Cond is a condition.
type Cond struct {
	Field       Field
	Not         bool
	Addrs       *Addrs
	Text        string
	Low, High   uint16
	New         bool
	Value, Mask uint32
	Seconds     int32
	// Fields are Dest, Protocol and DestPort, those of them that Set is asked for. If sources are a part of the set, Set
	// has those of each key; else nil.
	Fields []Field
	Set    map[MapKey]*Addrs
	// Pods: a condition on the source or the interface that asks for pods of the node, by the place where it is.
	Pods bool
}

// Addrs is a set of addresses.
type Addrs struct {
	Single   map[netip.Addr]bool
	Prefixes []netip.Prefix
}

// Has reports whether the address is in the set.
func (a *Addrs) Has(addr netip.Addr) bool {
	if a.Single[addr] {
		return true
	}
	for _, p := range a.Prefixes {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

func (a *Addrs) everything() bool {
	return slices.ContainsFunc(a.Prefixes, func(p netip.Prefix) bool { return p.Bits() == 0 })
}

// loopback reports whether no packet to a Service comes from there: Services are not served at loopback addresses.
func (a *Addrs) loopback() bool {
	return !slices.ContainsFunc(a.all(), func(p netip.Prefix) bool {
		l := loopback[p.Addr().Is4()]
		return p.Bits() < l.Bits() || !l.Contains(p.Addr())
	})
}

var loopback = map[bool]netip.Prefix{true: netip.MustParsePrefix("127.0.0.0/8"), false: netip.MustParsePrefix("::1/128")}

// all returns the set as prefixes.
func (a *Addrs) all() []netip.Prefix {
	list := append([]netip.Prefix(nil), a.Prefixes...)
	for addr := range a.Single {
		list = append(list, netip.PrefixFrom(addr, addr.BitLen()))
	}
	return dataplane.Prefixes(list)
}

// one returns the only address of the set.
func (a *Addrs) one() (netip.Addr, bool) {
	switch {
	case len(a.Single) == 1 && len(a.Prefixes) == 0:
		for addr := range a.Single {
			return addr, true
		}
	case len(a.Single) == 0 && len(a.Prefixes) == 1 && a.Prefixes[0].IsSingleIP():
		return a.Prefixes[0].Addr(), true
	}
	return netip.Addr{}, false
}

// Server is a virtual server.
type Server struct {
	// Endpoints are those that get new connections. Without any, connections are refused.
	Endpoints []netip.AddrPort
	// AffinitySeconds: see dataplane.Frontend.
	AffinitySeconds int32
	// Text says what of it was not understood; empty: nothing.
	Text string
}

// Map is a verdict map: of fields of the packet, or of chance.
type Map struct {
	// Fields are Dest, Protocol and DestPort, in their order; empty: Random.
	Fields   []Field
	Elements map[MapKey]Element
	// Random, if not 0: the key is a random number below it, and Choices has the elements.
	Random  int
	Choices []Element
}

// MapKey is the values of a packet's fields. What the map does not ask for is zero.
type MapKey struct {
	Dest     netip.Addr
	Protocol string
	Port     uint16
}

// Element is what a map has for a key.
type Element struct {
	Verdict Verdict
	Label   string
	Comment string
}

// Do is what a verdict does.
type Do string

// The verdicts.
const (
	Continue   Do = ""
	Accept     Do = "accept"
	Drop       Do = "drop"
	Reject     Do = "reject"
	Return     Do = "return"
	Jump       Do = "jump"
	Goto       Do = "goto"
	DNAT       Do = "dnat"
	Masquerade Do = "masquerade"
)

// Verdict is what becomes of a packet.
type Verdict struct {
	Do    Do
	Chain string         // Jump, Goto
	To    netip.AddrPort // DNAT
}

// Effect changes the packet's mark to mark & And ^ Xor, or notes the source address for affinity.
type Effect struct {
	And, Xor uint32
	Affinity string // if not empty, the effect is that of affinity
	Seconds  int32
}
