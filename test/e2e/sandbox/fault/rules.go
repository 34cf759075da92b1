// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Node is what a fault needs to know about a node of the sandbox, or about an additional network of
// the nodes.
type Node struct {
	Name     string
	NetNS    string         // absolute path of its network namespace file, for setns
	PodCIDRs []netip.Prefix // of its pods, one or two IP families; CIDRs of different nodes must not overlap
	IPs      []netip.Addr   // its own addresses; empty: faults cannot affect its own traffic
	Uplink   string         // link in NetNS to the other nodes, for netem; empty: delays do not use netem

	// Ports makes this an additional network: the links of its bridge in NetNS, each named after
	// the node that it leads to. Nil for a node.
	Ports []string
}

// tablePrefix begins the name of each of our nftables tables: family bridge for the frames of an
// additional network, inet for everything else.
const tablePrefix = "checkplan_fault_"

// ruleset is the rules of one fault in one node.
type ruleset struct {
	Node Node
	Text string // for `nft -f -`; replaces the table of the same fault ID
}

// side is one end of a flow: the pods of a node, or the node itself.
type side struct {
	node int // index
	host bool
}

// flow is the packets between some sides that one hook of one node handles.
type flow struct {
	at       int
	hook     string
	src, dst []side
}

// compile returns the rules of a fault for each node. via is how a delay is made, which depends on
// the kernel; other kinds ignore it.
func compile(id string, nodes []Node, f Fault, via Via) ([]ruleset, error) {
	if err := f.Validate(); err != nil {
		return nil, err
	}
	if err := checkNodes(nodes); err != nil {
		return nil, err
	}
	if f.Network != "" {
		return compileNetwork(id, nodes, f)
	}
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool { return n.Ports != nil })
	if f.Kind == Stale {
		return compileStale(id, nodes, f)
	}
	placed := f
	if f.Kind == SNAT {
		placed.Direction = Egress
	}
	flows, err := flowsOf(nodes, placed, via)
	if err != nil {
		return nil, err
	}
	rules := make([]map[string][]string, len(nodes)) // by hook
	found := false
	for _, fl := range flows {
		for _, family := range []Family{IPv4, IPv6} {
			src, dst := prefixes(nodes, fl.src, f.Src, family), prefixes(nodes, fl.dst, f.Dst, family)
			if f.Family != AnyFamily && f.Family != family || len(src) == 0 || len(dst) == 0 {
				continue
			}
			if fl.hook == "output" && !f.Src.addr().IsValid() {
				src = nil // the node may use any of its addresses, including that of its pods' bridge
			}
			act := verdict(f, via)
			if f.Kind == SNAT {
				own := prefixes(nodes, []side{{fl.at, true}}, Hosts, family)
				if len(own) == 0 {
					continue
				}
				ip := map[Family]string{IPv4: "ip", IPv6: "ip6"}[family]
				fl.hook, act = "postrouting", []string{"counter snat " + ip + " to " + own[0]}
			}
			if rules[fl.at] == nil {
				rules[fl.at] = map[string][]string{}
			}
			rules[fl.at][fl.hook] = append(rules[fl.at][fl.hook], rule(f, family, src, dst, act))
			found = true
		}
	}
	if !found {
		return nil, fmt.Errorf("fault %s: the nodes have no matching addresses of this IP family", f)
	}
	var sets []ruleset
	for i, n := range nodes {
		if rules[i] != nil {
			sets = append(sets, ruleset{Node: n, Text: table("inet", id, f, rules[i], via)})
		}
	}
	return sets, nil
}

// compileStale is compile for a fault that keeps flows. Nothing hinders a service proxy from removing their entries of
// connection tracking. So the first chain remembers the source ports of flows that the endpoint answers. If their entry
// is removed, the second chain lets their next packet make the same entry again, before the proxy's rules.
func compileStale(id string, nodes []Node, f Fault) ([]ruleset, error) {
	i, err := indexOf(nodes, f.Node)
	if err != nil {
		return nil, fmt.Errorf("fault %s: %w", f, err)
	}
	service, err := parseAddrPort(f.Service)
	if err != nil {
		return nil, err // Validate has parsed it
	}
	endpoint, err := parseAddrPort(f.Endpoint)
	if err != nil {
		return nil, err
	}
	ip, kind := "ip", "ipv4_addr"
	if service.Addr().Is6() {
		ip, kind = "ip6", "ipv6_addr"
	}
	name := "inet " + tablePrefix + id
	to := fmt.Sprintf("%s daddr %s udp dport %d", ip, service.Addr(), service.Port())
	flow := ip + " saddr . udp sport"
	var b strings.Builder
	line := func(format string, a ...any) { fmt.Fprintf(&b, format+"\n", a...) }
	line("# %s", f)
	line("add table %s\ndelete table %s", name, name)
	line("table %s {", name)
	line("\tset flows {\n\t\ttype %s . inet_service\n\t\tflags dynamic,timeout\n\t\ttimeout 3m\n\t}\n", kind)
	// After connection tracking (priority -200), and before address translation (-100), with which it would no longer
	// have the address of the Service.
	line("\tchain answered {\n\t\ttype filter hook prerouting priority -150; policy accept;")
	line("\t\t%s ct state established ct reply %s saddr %s ct reply proto-src %d update @flows { %s }\n\t}\n",
		to, ip, endpoint.Addr(), endpoint.Port(), flow)
	line("\tchain prerouting {\n\t\ttype nat hook prerouting priority -110; policy accept;")
	line("\t\t%s %s @flows counter dnat %s to %s\n\t}\n}", to, flow, ip, endpoint)
	return []ruleset{{Node: nodes[i], Text: b.String()}}, nil
}

// compileNetwork is compile for a fault of an additional network, which acts in one place only.
func compileNetwork(id string, nodes []Node, f Fault) ([]ruleset, error) {
	var names []string
	for _, n := range nodes {
		if n.Ports != nil {
			names = append(names, n.Name)
		}
	}
	i := slices.IndexFunc(nodes, func(n Node) bool { return n.Name == f.Network && n.Ports != nil })
	if len(names) == 0 {
		return nil, fmt.Errorf("fault %s: the nodes have no additional network", f)
	}
	if i < 0 {
		return nil, fmt.Errorf("fault %s: unknown network %s: want one of %s", f, f.Network, strings.Join(names, ", "))
	}
	network := nodes[i]
	var problems []error
	for _, name := range []string{f.Node, f.From, f.To} {
		if name != "" && !slices.Contains(network.Ports, name) {
			problems = append(problems, fmt.Errorf("network %s has no node %s: want one of %s",
				f.Network, name, strings.Join(network.Ports, ", ")))
		}
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("fault %s: %w", f, errors.Join(problems...))
	}

	var places [][]string // expressions that select frames by their links
	in := func(node string) string { return fmt.Sprintf("iifname %q", node) }
	out := func(node string) string { return fmt.Sprintf("oifname %q", node) }
	switch {
	case f.From != "":
		places = [][]string{{in(f.From), out(f.To)}}
	case f.Node == "":
		places = [][]string{nil}
	default:
		if f.Direction != Ingress {
			places = append(places, []string{in(f.Node)})
		}
		if f.Direction != Egress {
			places = append(places, []string{out(f.Node)})
		}
	}
	judgement := verdict(f, "")
	if f.Kind == Delay {
		judgement = []string{fmt.Sprintf("counter meta mark set meta mark or %#x", markOf(id))}
	}
	var rules []string
	if f.Kind == Drop && f.Protocol == AnyProtocol && f.SrcPort == 0 && f.DstPort == 0 && f.Buckets == 0 {
		frames := map[Family][]string{IPv4: {"ether type { ip, arp }"}, IPv6: {"ether type ip6"}}[f.Family]
		for _, place := range places {
			rules = append(rules, strings.Join(slices.Concat(place, frames, judgement), " "))
		}
	} else {
		rules = append(rules, "ether type ip6 icmpv6 type { "+neighborDiscovery+" } accept")
		for _, place := range places {
			for _, family := range []Family{IPv4, IPv6} {
				if f.Family != AnyFamily && f.Family != family {
					continue
				}
				ether := []string{"ether type " + map[Family]string{IPv4: "ip", IPv6: "ip6"}[family]}
				rules = append(rules, strings.Join(slices.Concat(place, ether, matches(f, family), judgement), " "))
			}
		}
	}
	text := table("bridge", id, f, map[string][]string{"forward": rules}, "")
	if f.Kind == Delay {
		mark := fmt.Sprintf("%#x", markOf(id))
		text += table("inet", id, f, map[string][]string{
			"forward": {"meta mark and " + mark + " == " + mark + " jump hold"},
		}, Queue)
	}
	return []ruleset{{Node: network, Text: text}}, nil
}

// markOf returns the bit that marks frames to delay. Bridges have no queue of their own. The kernel
// passes their packets to the hooks of family inet after those of family bridge, but without their
// input and output links.
func markOf(id string) uint32 { return 1 << (number(id) % 32) }

// neighborDiscovery lists the messages of RFC 4861.
const neighborDiscovery = "nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert, nd-redirect"

// checkNodes reports nodes that a fault cannot distinguish.
func checkNodes(nodes []Node) error {
	var problems []error
	for i, n := range nodes {
		for _, m := range nodes[:i] {
			if n.Name == m.Name {
				problems = append(problems, fmt.Errorf("two nodes are named %s", n.Name))
			}
			for _, p := range n.PodCIDRs {
				for _, q := range m.PodCIDRs {
					if p.Overlaps(q) {
						problems = append(problems, fmt.Errorf("pod CIDR %s of %s overlaps %s of %s", p, n.Name, q, m.Name))
					}
				}
			}
		}
		for _, ip := range n.IPs {
			if j, _ := owner(nodes, ip); j != i {
				problems = append(problems, fmt.Errorf("address %s of %s is also an address of %s", ip, n.Name, nodes[j].Name))
			}
		}
		for _, p := range n.PodCIDRs {
			if !p.IsValid() {
				problems = append(problems, fmt.Errorf("node %s has an invalid pod CIDR", n.Name))
			}
		}
	}
	return errors.Join(problems...)
}

// indexOf finds a node by its name. The index is -1 if there is none.
func indexOf(nodes []Node, name string) (int, error) {
	var names []string
	for i, n := range nodes {
		if n.Name == name {
			return i, nil
		}
		names = append(names, n.Name)
	}
	return -1, fmt.Errorf("unknown node %s: want one of %s", name, strings.Join(names, ", "))
}

// owner returns the first node that has an address, and whether it is the node's own or in its pod
// CIDRs; -1: none.
func owner(nodes []Node, a netip.Addr) (node int, host bool) {
	for i, n := range nodes {
		if slices.Contains(n.IPs, a) {
			return i, true
		}
		if slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return i, false
		}
	}
	return -1, false
}

// flowsOf returns the flows that a fault selects by place. Each packet is in one flow only.
func flowsOf(nodes []Node, f Fault, via Via) ([]flow, error) {
	var problems []error
	index := func(name string) int {
		i, err := indexOf(nodes, name)
		if name != "" && err != nil {
			problems = append(problems, err)
		}
		return i
	}
	node, from, to := index(f.Node), index(f.From), index(f.To)
	if len(nodes) < 2 {
		problems = append(problems, fmt.Errorf("needs two nodes or more, has %d", len(nodes)))
	}
	for _, e := range []End{f.Src, f.Dst} {
		if a := e.addr(); a.IsValid() {
			if i, _ := owner(nodes, a); i < 0 {
				problems = append(problems, fmt.Errorf("%s is not an address of a node or its pods", a))
			}
		}
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("fault %s: %w", f, errors.Join(problems...))
	}
	is := func(e End, s side) bool {
		if a := e.addr(); a.IsValid() {
			i, host := owner(nodes, a)
			return s == side{i, host}
		}
		return e == Any || s.host == (e == Hosts)
	}
	within := f.From != "" || f.Src.addr().IsValid() || f.Dst.addr().IsValid()
	selects := func(s, d side) bool {
		switch {
		case !is(f.Src, s) || !is(f.Dst, d):
			return false
		case s.node == d.node && (!within || f.Kind == Delay || !s.host && !d.host):
			return false
		case f.From != "":
			return s.node == from && d.node == to
		case f.Node == "":
			return true
		}
		return f.Direction != Ingress && s.node == node || f.Direction != Egress && d.node == node
	}
	meets := func(s, d int) int { // the node whose hooks act on the packet, see the package comment
		switch {
		case f.Kind == Delay && via == Queue:
			return d
		case f.Kind != Delay && f.Node != "":
			return node
		}
		return s
	}
	var flows []flow
	// Whether source and destination are on the host network.
	ends := [][2]bool{{false, false}, {false, true}, {true, false}, {true, true}}
	for at := range nodes {
		for _, host := range ends {
			here := [2]side{{at, host[0]}, {at, host[1]}} // as source, as destination
			var out, in []side
			for other := range nodes {
				to, from := side{other, host[1]}, side{other, host[0]}
				if other != at && selects(here[0], to) && meets(at, other) == at {
					out = append(out, to)
				}
				if other != at && selects(from, here[1]) && meets(other, at) == at {
					in = append(in, from)
				}
			}
			if len(out) > 0 {
				flows = append(flows, flow{at, hookOf(via, host[0], "output"), here[:1], out})
			}
			if len(in) > 0 {
				flows = append(flows, flow{at, hookOf(via, host[1], "input"), in, here[1:]})
			}
			if selects(here[0], here[1]) && meets(at, at) == at {
				hook := "output"
				if !host[0] {
					hook = "input"
				}
				flows = append(flows, flow{at, hook, here[:1], here[1:]})
			}
		}
	}
	return flows, nil
}

// hookOf returns the hook for packets that come from or go to another node: forward for those of
// its pods, own for those of the node itself. A queue is before both.
func hookOf(via Via, host bool, own string) string {
	switch {
	case via == Queue:
		return "prerouting"
	case host:
		return own
	}
	return "forward"
}

// prefixes returns the addresses of sides in a family, or only the end's address if the end is one.
func prefixes(nodes []Node, which []side, e End, family Family) []string {
	if a := e.addr(); a.IsValid() {
		if a.Is4() == (family == IPv4) {
			return []string{a.String()}
		}
		return nil
	}
	var all []string
	for _, s := range which {
		if s.host {
			for _, ip := range nodes[s.node].IPs {
				if ip.Is4() == (family == IPv4) {
					all = append(all, ip.String())
				}
			}
			continue
		}
		for _, p := range nodes[s.node].PodCIDRs {
			if p.Addr().Is4() == (family == IPv4) {
				all = append(all, p.Masked().String())
			}
		}
	}
	return all
}

// rule returns one line of nft: a match and what to do. Without src, it matches any source.
func rule(f Fault, family Family, src, dst, act []string) string {
	ip := "ip"
	if family == IPv6 {
		ip = "ip6"
	}
	var words []string
	if len(src) > 0 {
		words = append(words, ip, "saddr {", strings.Join(src, ", "), "}")
	}
	words = append(words, ip, "daddr {", strings.Join(dst, ", "), "}")
	return strings.Join(slices.Concat(words, matches(f, family), act), " ")
}

// matches returns the expressions that match protocol, ports and flows.
func matches(f Fault, family Family) []string {
	var words []string
	add := func(format string, a ...any) { words = append(words, fmt.Sprintf(format, a...)) }
	ports := f.SrcPort != 0 || f.DstPort != 0 || f.Buckets != 0
	switch {
	case f.Protocol == ICMP && family == IPv6:
		add("meta l4proto icmpv6")
	case f.Protocol != AnyProtocol:
		add("meta l4proto %s", f.Protocol)
	case ports:
		add("meta l4proto { tcp, udp }")
	}
	// th is the header of TCP or UDP: both begin with the two ports.
	if f.SrcPort != 0 {
		add("th sport %d", f.SrcPort)
	}
	if f.DstPort != 0 {
		add("th dport %d", f.DstPort)
	}
	// The hash is symmetric and keyed once per boot: both directions of a flow have the same one, in
	// every network namespace of this kernel.
	if f.Buckets != 0 {
		add("symhash mod %d < %d", f.Buckets, f.Flows)
	}
	return words
}

// verdict returns the statements that act on the matched packets.
func verdict(f Fault, via Via) []string {
	var words []string
	add := func(format string, a ...any) { words = append(words, fmt.Sprintf(format, a...)) }
	if f.For != 0 {
		add("meta protocol @active")
	}
	switch f.Kind {
	case Drop:
		add("counter drop")
	case Loss:
		if f.Percent < 100_00 { // nft rejects a comparison that is always true
			add("numgen random mod 10000 < %d", f.Percent)
		}
		add("counter drop")
	case MTU:
		add("meta length > %d counter drop", f.MaxBytes)
	case Delay:
		if via == Netem {
			add("counter meta priority set %s", netemBand)
		} else {
			add("counter jump hold")
		}
	}
	return words
}

// table returns the nft text of a fault's table in one node. Its chains have a priority before the
// filter chains of kube-proxy and others, because these could drop a packet first. In the output
// hook the chain comes after address translation (priority -100): as in the other hooks, a packet
// to a Service then has the address of its pod.
//
// queueRule later adds a queue to chain hold. It is before routing and before connection tracking
// (priority -200). A queue between the first and the last hook of connection tracking would lose
// packets: the kernel treats several waiting packets of one new flow as clashes and drops all but
// one.
func table(family, id string, f Fault, rules map[string][]string, via Via) string {
	name := family + " " + tablePrefix + id
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n", f)
	fmt.Fprintf(&b, "add table %s\ndelete table %s\n", name, name)
	fmt.Fprintf(&b, "table %s {\n", name)
	if via == Queue {
		b.WriteString("\tchain hold {\n\t}\n\n")
	}
	if f.For != 0 { // every protocol, until the kernel removes it
		fmt.Fprintf(&b, "\tset active {\n\t\ttype ether_type\n\t\tflags timeout\n\t\ttimeout %dms\n"+
			"\t\telements = { ip, ip6, arp }\n\t}\n\n", f.For.Milliseconds())
	}
	for i, hook := range slices.Sorted(maps.Keys(rules)) {
		priority := -300
		kind := "filter"
		switch hook {
		case "output":
			priority = -50
		case "postrouting":
			kind, priority = "nat", 100 // NF_IP_PRI_NAT_SRC, as kube-proxy's
		}
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "\tchain %s {\n\t\ttype %s hook %s priority %d; policy accept;\n", hook, kind, hook, priority)
		for _, r := range rules[hook] {
			b.WriteString("\t\t" + r + "\n")
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// The qdiscs of a delay by netem: a prio qdisc replaces the root qdisc of the uplink. It has one
// band for all packets and a second band with netem for packets to delay. Handles are hexadecimal.
const (
	prioHandle = "cf5:"
	netemBand  = "cf5:2"
)

// prioArgs returns the arguments of tc for the prio qdisc of an uplink.
func prioArgs(uplink string) []string {
	return append(
		[]string{"qdisc", "replace", "dev", uplink, "root", "handle", prioHandle, "prio", "bands", "2", "priomap"},
		strings.Fields(strings.Repeat("0 ", 16))...)
}

// netemArgs returns the arguments of tc for the netem qdisc of an uplink.
func netemArgs(uplink string, delay time.Duration) []string {
	return []string{
		"qdisc", "replace", "dev", uplink, "parent", netemBand,
		"netem", "limit", strconv.Itoa(maxHeld), "delay", fmt.Sprintf("%dus", delay.Microseconds()),
	}
}

// queueNumber returns the netfilter queue of a delay, from 47001 on. Lower numbers are for other
// users of queues in a node.
func queueNumber(id string) uint16 { return uint16(47000 + number(id)) }

// maxID keeps queueNumber within 16 bits.
const maxID = 10000

// maxHeld is how many packets one delay holds in one node; more are lost. At a delay of 30 ms that
// is two million packets per second.
const maxHeld = 65536
