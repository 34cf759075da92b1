// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Node is what a fault must know of a node of the sandbox.
type Node struct {
	Name     string
	NetNS    string         // file of its network namespace, absolute, fit for setns
	PodCIDRs []netip.Prefix // of its pods, one or two IP families; other nodes' must not overlap
	Uplink   string         // the link in NetNS towards the other nodes, for netem; empty: delay is made without netem
}

// tablePrefix begins the name of every nftables table of ours, family inet.
const tablePrefix = "checkplan_fault_"

// ruleset is what one fault puts into one node.
type ruleset struct {
	Node Node
	Text string // for `nft -f -`; replaces whatever the table of that id held
}

// flow is packets from some nodes' pods to other nodes' pods, met at one node.
type flow struct {
	at       int
	src, dst []int // indexes of nodes
}

// compile works out what a fault puts where. via is what makes a delay, which
// depends on the kernel; it is nothing to the other kinds.
func compile(id string, nodes []Node, f Fault, via Via) ([]ruleset, error) {
	if err := f.Validate(); err != nil {
		return nil, err
	}
	if err := checkNodes(nodes); err != nil {
		return nil, err
	}
	flows, err := flowsOf(nodes, f, via)
	if err != nil {
		return nil, err
	}
	rules := make(map[int][]string)
	for _, fl := range flows {
		for _, family := range []Family{IPv4, IPv6} {
			src, dst := prefixes(nodes, fl.src, family), prefixes(nodes, fl.dst, family)
			if (f.Family == AnyFamily || f.Family == family) && len(src) > 0 && len(dst) > 0 {
				rules[fl.at] = append(rules[fl.at], rule(f, family, src, dst, via))
			}
		}
	}
	if len(rules) == 0 {
		return nil, fmt.Errorf("fault %s: the nodes have no pod CIDRs that it could act between", f)
	}
	var sets []ruleset
	for i, n := range nodes {
		if len(rules[i]) > 0 {
			sets = append(sets, ruleset{Node: n, Text: table(id, f, rules[i], via)})
		}
	}
	return sets, nil
}

// checkNodes reports nodes that cannot be told apart.
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
		for _, p := range n.PodCIDRs {
			if !p.IsValid() {
				problems = append(problems, fmt.Errorf("node %s has an invalid pod CIDR", n.Name))
			}
		}
	}
	return errors.Join(problems...)
}

// flowsOf is the packets that a fault selects by place, each packet in one flow
// only.
func flowsOf(nodes []Node, f Fault, via Via) ([]flow, error) {
	var problems []error
	index := func(name string) int {
		i := slices.IndexFunc(nodes, func(n Node) bool { return n.Name == name })
		if i < 0 && name != "" {
			var names []string
			for _, n := range nodes {
				names = append(names, n.Name)
			}
			problems = append(problems, fmt.Errorf("there is no node %s; there are: %s", name, strings.Join(names, ", ")))
		}
		return i
	}
	node, from, to := index(f.Node), index(f.From), index(f.To)
	if len(nodes) < 2 {
		problems = append(problems, fmt.Errorf("%d node: there is no traffic between nodes to act on", len(nodes)))
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("fault %s: %w", f, errors.Join(problems...))
	}
	selects := func(s, d int) bool {
		switch {
		case f.From != "":
			return s == from && d == to
		case f.Node == "":
			return true
		}
		return f.Direction != Ingress && s == node || f.Direction != Egress && d == node
	}
	meets := func(s, d int) int { // at which node, see the package comment
		switch {
		case f.Kind == Delay && via == Queue:
			return d
		case f.Kind != Delay && f.Node != "":
			return node
		}
		return s
	}
	var flows []flow
	for at := range nodes {
		var out, in []int
		for other := range nodes {
			if other != at && selects(at, other) && meets(at, other) == at {
				out = append(out, other)
			}
			if other != at && selects(other, at) && meets(other, at) == at {
				in = append(in, other)
			}
		}
		if len(out) > 0 {
			flows = append(flows, flow{at: at, src: []int{at}, dst: out})
		}
		if len(in) > 0 {
			flows = append(flows, flow{at: at, src: in, dst: []int{at}})
		}
	}
	return flows, nil
}

func prefixes(nodes []Node, which []int, family Family) []string {
	var all []string
	for _, i := range which {
		for _, p := range nodes[i].PodCIDRs {
			if p.Addr().Is4() == (family == IPv4) {
				all = append(all, p.Masked().String())
			}
		}
	}
	return all
}

// rule is one line of nft: which packets, and what becomes of them.
func rule(f Fault, family Family, src, dst []string, via Via) string {
	ip, icmp := "ip", "icmp"
	if family == IPv6 {
		ip, icmp = "ip6", "icmpv6"
	}
	words := []string{
		ip, "saddr {", strings.Join(src, ", "), "}",
		ip, "daddr {", strings.Join(dst, ", "), "}",
	}
	add := func(format string, a ...any) { words = append(words, fmt.Sprintf(format, a...)) }

	ports := f.SrcPort != 0 || f.DstPort != 0
	switch {
	case f.Protocol == ICMP:
		add("meta l4proto %s", icmp)
	case f.Protocol != AnyProtocol:
		add("meta l4proto %s", f.Protocol)
	case ports:
		add("meta l4proto { tcp, udp }")
	}
	// th is the header of whichever of TCP and UDP it is: both begin with the
	// two ports.
	if f.SrcPort != 0 {
		add("th sport %d", f.SrcPort)
	}
	if f.DstPort != 0 {
		add("th dport %d", f.DstPort)
	}
	switch f.Kind {
	case Drop:
		add("counter drop")
	case Loss:
		if f.Percent < 100_00 { // nft refuses a comparison that is always true
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
	return strings.Join(words, " ")
}

// table is the text that makes the table of a fault in one node. Its chain is
// ahead of the filter chains of kube-proxy and others, so that nothing has
// judged a packet before the fault does.
//
// A queue is put into chain hold afterwards, see queueRule. It is before routing
// and before connection tracking (priority -200): packets of one new flow that
// wait between the tracking's first and last hook, at once, are taken for
// clashes, and all but one would be lost.
func table(id string, f Fault, rules []string, via Via) string {
	name := "inet " + tablePrefix + id
	hook := "forward"
	if via == Queue {
		hook = "prerouting"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n", f)
	fmt.Fprintf(&b, "add table %s\ndelete table %s\n", name, name)
	fmt.Fprintf(&b, "table %s {\n", name)
	if via == Queue {
		b.WriteString("\tchain hold {\n\t}\n\n")
	}
	fmt.Fprintf(&b, "\tchain %s {\n\t\ttype filter hook %s priority -300; policy accept;\n", hook, hook)
	for _, r := range rules {
		b.WriteString("\t\t" + r + "\n")
	}
	b.WriteString("\t}\n}\n")
	return b.String()
}

// The qdiscs of a delay by netem: a prio that replaces what the uplink has, with
// a band for all packets and another one, behind netem, for those to delay.
// Handles are hexadecimal.
const (
	prioHandle = "cf5:"
	netemBand  = "cf5:2"
)

// prioArgs and netemArgs are arguments of tc for one uplink.
func prioArgs(uplink string) []string {
	return append([]string{"qdisc", "replace", "dev", uplink, "root", "handle", prioHandle, "prio", "bands", "2", "priomap"},
		strings.Fields(strings.Repeat("0 ", 16))...)
}

func netemArgs(uplink string, delay time.Duration) []string {
	return []string{
		"qdisc", "replace", "dev", uplink, "parent", netemBand,
		"netem", "limit", strconv.Itoa(maxHeld), "delay", fmt.Sprintf("%dus", delay.Microseconds()),
	}
}

// queueNumber is the netfilter queue of a delay, from 47001 on. Numbers below
// are left to whoever else may use queues in a node.
func queueNumber(id string) uint16 { return uint16(47000 + number(id)) }

// maxID keeps queueNumber within 16 bits.
const maxID = 10000

// maxHeld is how many packets one delay holds back in one node; more are lost.
// At 30 ms that is two million packets per second.
const maxHeld = 65536
