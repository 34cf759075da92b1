// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Mode is how a service proxy programs a node, with the names of kube-proxy's flag --proxy-mode.
type Mode string

// The modes of kube-proxy on Linux.
const (
	NFTables Mode = "nftables"
	IPTables Mode = "iptables"
	IPVS     Mode = "ipvs"
)

// Userspace is the mode without rules, which kube-proxy had until 1.25. ServiceProxy has it.
const Userspace Mode = "userspace"

// OwnIPVS is what ServiceProxy decides in the mode IPVS: as in the mode NFTables, but the node's own connections to an
// address of a Service come from that address, because the node has it. A Table that was read has never this mode.
const OwnIPVS Mode = "ipvs of service-proxy"

// The interfaces on which ServiceProxy has the addresses of Services in these modes.
const (
	UserspaceDevice = "cplan-userspace"
	IPVSDevice      = "cplan-ipvs"
)

// Program is what wrote the rules of a Mode.
type Program string

const (
	// KubeProxy is Kubernetes' own.
	KubeProxy Program = "kube-proxy"
	// ServiceProxy is tasks/service-proxy of this project. Its rules are as kube-proxy's, under names of their own.
	ServiceProxy Program = "service-proxy"
)

// Family is an IP family, with the names of the Kubernetes API.
type Family string

// The two families.
const (
	IPv4 Family = "IPv4"
	IPv6 Family = "IPv6"
)

// Action is what the rules do with a new connection. The first three are pkg/nodestate's.
type Action string

const (
	// Forward: to one of the endpoints.
	Forward Action = "forward"
	// Reject: refused at once by an ICMP message.
	Reject Action = "reject"
	// Drop: discarded without an answer.
	Drop Action = "drop"
	// Pass: no rule of the proxy takes the packet. It goes on with its address as it is, and nobody serves it.
	Pass Action = "pass"
)

// Origin is where a connection comes from.
type Origin string

const (
	// Outside: from another node, or from outside the cluster.
	Outside Origin = "outside"
	// Pod: from a pod of this node.
	Pod Origin = "pod"
	// Node: from the node itself, or from a pod in its network.
	Node Origin = "node"
)

// Origins are all origins, in the order in which a Table has them.
var Origins = [3]Origin{Outside, Pod, Node}

// Table is what the proxy of one node does with Services in one IP family, in terms of packets. It is equal for all
// modes that do the same.
type Table struct {
	Mode   Mode   `json:"mode"`
	Family Family `json:"family"`
	// PodsBy is how the rules recognise packets of the node's pods, as text: a prefix, or the name of an interface. It
	// is empty if they do not: then a pod's packets are as if from outside.
	PodsBy string `json:"podsBy,omitempty"`
	// NodePortAddresses are those at which node ports are served. Empty: all of the node, except loopback addresses.
	// They follow from a flag of the proxy and from the node's interfaces; Compare does not look at them.
	NodePortAddresses []netip.Addr `json:"nodePortAddresses,omitempty"`
	// Frontends are sorted by address, protocol, port, and origin. Each of these that has one origin has all three. A node
	// port has several for each origin if addresses of the node serve it differently.
	Frontends []Frontend `json:"frontends"`
	// Incomplete: among the rules that distinguish frontends are some that were not understood. So it is unmeasured
	// whether frontends exist that the table does not have.
	Incomplete bool `json:"incomplete,omitempty"`
	// Unknown are rules of the proxy's own that were not understood, as text: evidence, at most MaxUnknown. What a
	// frontend's packets may meet of them is in Frontend.Unknown, too.
	Unknown []string `json:"unknown,omitempty"`
}

// MaxUnknown is how many rules that were not understood a Table keeps, and how many a Frontend does.
const MaxUnknown = 20

// Key is where connections go before the proxy rewrites them.
type Key struct {
	// Address is invalid (the zero value, in JSON the empty string) for a node port.
	Address  netip.Addr `json:"address"`
	Protocol string     `json:"protocol"` // TCP, UDP or SCTP
	Port     uint16     `json:"port"`
}

// String is address:port/protocol, for example "10.96.0.1:80/TCP" and "node port 30080/TCP".
func (k Key) String() string {
	if !k.Address.IsValid() {
		return fmt.Sprintf("node port %d/%s", k.Port, k.Protocol)
	}
	return netip.AddrPortFrom(k.Address, k.Port).String() + "/" + k.Protocol
}

func (k Key) compare(o Key) int {
	return cmp.Or(k.Address.Compare(o.Address), cmp.Compare(k.Protocol, o.Protocol), cmp.Compare(k.Port, o.Port))
}

// Frontend is what happens to new connections from one origin to one address, protocol and port.
type Frontend struct {
	Key
	From Origin `json:"from"`
	// Service is namespace/name, and PortName the name of its port. In a table that was read they are what the rules
	// say of themselves, in names of chains and in comments; empty if they do not.
	Service  string `json:"service,omitempty"`
	PortName string `json:"portName,omitempty"`
	Action   Action `json:"action"`
	// Endpoints are sorted, without duplicates, and empty unless Action is Forward.
	Endpoints []Endpoint `json:"endpoints,omitempty"`
	// Lost: not all connections get to one of Endpoints, although Action is Forward: a rule leads nowhere.
	Lost bool `json:"lost,omitempty"`
	// AffinitySeconds is for how long a client address keeps its endpoint; 0: not at all, MixedAffinity: it differs
	// between the endpoints, or only half of the rules that it needs are there.
	AffinitySeconds int32 `json:"affinitySeconds,omitempty"`
	// Sources are the prefixes from which the frontend may be used, sorted. Empty: all. Packets from elsewhere are
	// dropped. If Action is Drop, they do not matter, and are left out.
	Sources []netip.Prefix `json:"sources,omitempty"`
	// Elsewhere is what happens to packets from elsewhere if they are not dropped.
	Elsewhere Action `json:"elsewhere,omitempty"`
	// Masquerade: whether connections get the node's address as their source.
	Masquerade Masquerade `json:"masquerade,omitempty"`
	// Unknown are rules that the frontend's packets may meet and that were not understood. With one of them, nothing
	// of the frontend is measured.
	Unknown []string `json:"unknown,omitempty"`
}

// MixedAffinity is a Frontend's AffinitySeconds if its endpoints are not alike.
const MixedAffinity int32 = -1

// Masquerade is whether the source of connections is rewritten.
type Masquerade string

const (
	// Either is what a table wants if the proxy's own flags decide it (--masquerade-all, --detect-local-mode), and for
	// connections that are not forwarded.
	Either    Masquerade = ""
	Rewritten Masquerade = "rewritten"
	Preserved Masquerade = "preserved"
	Undecided Masquerade = "undecided" // some of the endpoints
)

// Endpoint is where a connection may go.
type Endpoint struct {
	Address netip.AddrPort `json:"address"`
	// Hairpin: a connection from the endpoint to itself gets another source, without which the answers do not come
	// back through the proxy.
	Hairpin bool `json:"hairpin,omitempty"`
}

func (e Endpoint) compare(o Endpoint) int { return e.Address.Compare(o.Address) }

// Sort puts the table in its order.
func (t *Table) Sort() {
	slices.SortStableFunc(t.Frontends, func(f, g Frontend) int {
		return cmp.Or(f.compare(g.Key), cmp.Compare(slices.Index(Origins[:], f.From), slices.Index(Origins[:], g.From)))
	})
}
