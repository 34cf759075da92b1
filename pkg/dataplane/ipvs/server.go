// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
)

// What this project's service-proxy has beside virtual servers is in a table of nftables of this name. Its virtual
// servers have a flag that the scheduler rr does not read (IP_VS_SVC_F_SCHED3): nothing else of a virtual server says
// whose it is.
const (
	OwnTable = "checkplan-ipvs"
	OwnFlag  = 0x20
)

// VirtualServer is what the kernel's IPVS does with new connections to one address, protocol and port, or with packets
// of one mark.
type VirtualServer struct {
	// Protocol is TCP, UDP or SCTP. With a Mark, Protocol, Address and Port are empty.
	Protocol string     `json:"protocol,omitempty"`
	Address  netip.Addr `json:"address,omitzero"`
	// Port is 0 for all ports that no other server of Address has.
	Port uint16 `json:"port,omitempty"`
	// Mark, if not 0, is the mark of the packets (fwmark), whatever their address. It comes before all addresses.
	Mark uint32 `json:"mark,omitempty"`
	// Scheduler chooses among the destinations: "rr" takes each in its turn.
	Scheduler string `json:"scheduler"`
	// AffinitySeconds is for how long a client's address keeps its destination; 0: not at all.
	AffinitySeconds uint32 `json:"affinitySeconds,omitempty"`
	// ClientBits is the length of the prefix of clients that share a destination, if it is not a whole address.
	ClientBits int `json:"clientBits,omitempty"`
	// Flags are the kernel's (IP_VS_SVC_F_...) that nothing else here says: one packet is one connection, for example.
	Flags uint32 `json:"flags,omitempty"`
	// Destinations are sorted. Without any, connections are refused by an ICMP message.
	Destinations []Destination `json:"destinations,omitempty"`
}

// Destination is one that connections go to.
type Destination struct {
	Address netip.AddrPort `json:"address"`
	// Weight is its share. 0: no new connections.
	Weight uint32 `json:"weight"`
	// Method is how packets get there: the kernel's number (IP_VS_CONN_F_...). 0: their destination is rewritten.
	Method uint32 `json:"method,omitempty"`
	// Connections are those that the kernel remembers, closed ones included. They change by themselves.
	Connections uint32 `json:"connections,omitempty"`
}

// String is address:port/protocol, or the mark.
func (s *VirtualServer) String() string {
	if s.Mark != 0 {
		return "mark 0x" + strconv.FormatUint(uint64(s.Mark), 16)
	}
	return netip.AddrPortFrom(s.Address, s.Port).String() + "/" + s.Protocol
}

// Compare is the order of servers: addresses, then marks.
func (s *VirtualServer) Compare(o *VirtualServer) int {
	return cmp.Or(cmp.Compare(s.Mark, o.Mark), s.Address.Compare(o.Address), cmp.Compare(s.Protocol, o.Protocol),
		cmp.Compare(s.Port, o.Port))
}

// Sort puts servers and their destinations in order.
func Sort(servers []VirtualServer) {
	slices.SortFunc(servers, func(a, b VirtualServer) int { return a.Compare(&b) })
	for i := range servers {
		slices.SortFunc(servers[i].Destinations, func(a, b Destination) int { return a.Address.Compare(b.Address) })
	}
}
