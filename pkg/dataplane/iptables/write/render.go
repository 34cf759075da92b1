// SPDX-License-Identifier: Apache-2.0

package write

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/iptables"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
)

// Rules is what iptables has to have in one family, by the names of tables: nat and filter.
type Rules struct {
	Family dataplane.Family
	Tables map[string]*Table
}

// Table is what is the proxy's of one table.
type Table struct {
	// Chains have the rules of the proxy's chains, as iptables-restore reads them, without -A and the chain.
	Chains map[string][]string
	// Jumps are rules in chains of others, in the order in which packets meet them.
	Jumps []Jump
}

// Jump is a rule in a chain that is not the proxy's.
type Jump struct{ Chain, Rule string }

// Names of chains, which begin as iptables.OwnPrefix does. The longest that the kernel takes has 28 bytes.
const (
	services    = iptables.OwnPrefix + "SERVICES"
	external    = iptables.OwnPrefix + "EXTERNAL-SERVICES"
	nodePorts   = iptables.OwnPrefix + "NODEPORTS"
	firewall    = iptables.OwnPrefix + "PROXY-FIREWALL"
	forward     = iptables.OwnPrefix + "FORWARD"
	postrouting = iptables.OwnPrefix + "POSTROUTING"
	markMasq    = iptables.OwnPrefix + "MARK-MASQ"
)

// mark is the bit of packets whose source will be rewritten: kube-proxy's default.
const mark = "0x4000"

const isNew = "-m conntrack --ctstate NEW "

// Render returns the rules of a family, for a state and a node. They are the same for the same input, and have no text
// of a message but names that are labels of DNS: see proxy.Check.
func Render(state *proxy.State, node proxy.Node, family dataplane.Family) *Rules {
	r := renderer{nat: &Table{Chains: map[string][]string{}}, filter: &Table{Chains: map[string][]string{}}, node: node}
	iface := strings.Replace(node.Pods.Interface, "*", "+", 1)
	if prefix, ok := node.Pods.Prefix(family); ok {
		r.fromPods, r.notFromPods = "-s "+prefix.String()+" ", "! -s "+prefix.String()+" "
	} else if iface != "" {
		r.fromPods, r.notFromPods = "-i "+iface+" ", "! -i "+iface+" "
	}
	r.fixed()
	ports := state.Of(family)
	for i := range ports {
		r.port(&ports[i])
	}
	for _, h := range state.Health {
		if h.Family == family {
			r.filter.add(nodePorts, fmt.Sprintf("-p tcp %s-m tcp --dport %d -j ACCEPT",
				comment(h.Namespace+"/"+h.Service+" health check node port"), h.Number))
		}
	}
	// Last: an address of the node may be an external IP, too.
	loopback := "127.0.0.0/8"
	if family == dataplane.IPv6 {
		loopback = "::1/128"
	}
	if at := state.NodePorts[family]; at.All {
		r.nat.add(services, comment("service nodeports")+"-m addrtype --dst-type LOCAL ! -d "+loopback+" -j "+nodePorts)
	} else {
		for _, a := range at.Addresses(node.Addresses) {
			r.nat.add(services, "-d "+single(a)+" "+comment("service nodeports")+"-j "+nodePorts)
		}
	}
	return &Rules{family, map[string]*Table{"nat": r.nat, "filter": r.filter}}
}

type renderer struct {
	nat, filter *Table
	node        proxy.Node
	// fromPods and notFromPods are conditions; empty if pods are not recognised.
	fromPods, notFromPods string
}

func (t *Table) add(chain, rule string) { t.Chains[chain] = append(t.Chains[chain], rule) }

// fixed adds what does not depend on Services.
func (r *renderer) fixed() {
	for table, chains := range map[*Table][]string{
		r.nat:    {services, nodePorts, postrouting, markMasq},
		r.filter: {services, external, nodePorts, firewall, forward},
	} {
		for _, name := range chains {
			table.Chains[name] = nil
		}
	}
	portals, outside := comment("service portals"), comment("externally-visible service portals")
	lbFirewall := isNew + comment("load balancer firewall") + "-j " + firewall
	r.nat.Jumps = []Jump{
		{"PREROUTING", portals + "-j " + services}, {"OUTPUT", portals + "-j " + services},
		{"POSTROUTING", comment("postrouting rules") + "-j " + postrouting},
	}
	r.filter.Jumps = []Jump{
		{"INPUT", lbFirewall}, {"INPUT", comment("health check service ports") + "-j " + nodePorts},
		{"INPUT", isNew + outside + "-j " + external},
		{"FORWARD", lbFirewall}, {"FORWARD", comment("forwarding rules") + "-j " + forward},
		{"FORWARD", isNew + portals + "-j " + services}, {"FORWARD", isNew + outside + "-j " + external},
		{"OUTPUT", lbFirewall}, {"OUTPUT", isNew + portals + "-j " + services},
	}
	r.nat.add(markMasq, "-j MARK --or-mark "+mark)
	r.nat.add(postrouting, "-m mark ! --mark "+mark+"/"+mark+" -j RETURN")
	r.nat.add(postrouting, "-j MARK --xor-mark "+mark)
	r.nat.add(postrouting, comment("service traffic requiring SNAT")+"-j MASQUERADE --random-fully")
	// A packet that conntrack cannot place would leave with the endpoint's address, and its connection would be reset.
	r.filter.add(forward, "-m conntrack --ctstate INVALID -j DROP")
	r.filter.add(forward, comment("forwarding rules")+"-m mark --mark "+mark+"/"+mark+" -j ACCEPT")
	r.filter.add(forward, comment("forwarding conntrack rule")+"-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
}

// port adds one port of a Service.
func (r *renderer) port(p *proxy.Port) {
	protocol, name := strings.ToLower(p.Protocol), p.String()
	id := hashed(name, protocol)
	cluster, local, ext, fw := iptables.OwnPrefix+"SVC-"+id, iptables.OwnPrefix+"SVL-"+id, iptables.OwnPrefix+"EXT-"+id,
		iptables.OwnPrefix+"FW-"+id
	of := func(toLocal bool) string {
		if toLocal {
			return local
		}
		return cluster
	}
	to := func(dest string, number uint16, what string) string {
		return fmt.Sprintf("%s-p %s %s-m %s --dport %d ", dest, protocol, comment(name+" "+what), protocol, number)
	}
	at := func(a netip.Addr) string { return "-d " + single(a) + " " }
	if p.Internal.Forwards() {
		chain := of(p.InternalToLocal)
		frontend := to(at(p.ClusterIP), p.Port, "cluster IP")
		r.nat.add(services, frontend+"-j "+chain)
		switch {
		case r.node.MasqueradeAll:
			r.nat.add(chain, frontend+"-j "+markMasq)
		case r.notFromPods != "":
			r.nat.add(chain, r.notFromPods+frontend+"-j "+markMasq)
		}
	} else {
		r.filter.add(services, to(at(p.ClusterIP), p.Port, why(p.Internal))+"-j "+target(p.Internal))
	}
	usesFirewall := p.Inside.Forwards() && len(p.LoadBalancerIPs) > 0 && len(p.Sources) > 0
	outside := func(a netip.Addr, what, chain string) {
		if p.Inside.Forwards() {
			r.nat.add(services, to(at(a), p.Port, what)+"-j "+chain)
		}
		if !p.External.Forwards() {
			r.filter.add(external, to(at(a), p.Port, why(p.External))+"-j "+target(p.External))
		}
	}
	for _, a := range p.ExternalIPs {
		outside(a, "external IP", ext)
	}
	for _, a := range p.LoadBalancerIPs {
		if !usesFirewall {
			outside(a, "loadbalancer IP", ext)
			continue
		}
		outside(a, "loadbalancer IP", fw)
		r.filter.add(firewall, to(at(a), p.Port, "traffic not accepted by "+fw)+"-j DROP")
	}
	if p.NodePort != 0 {
		if p.Inside.Forwards() {
			r.nat.add(nodePorts, to("", p.NodePort, "")+"-j "+ext)
		}
		if !p.External.Forwards() {
			r.filter.add(external, "-m addrtype --dst-type LOCAL "+to("", p.NodePort, why(p.External))+"-j "+target(p.External))
		}
	}
	if usesFirewall {
		for _, source := range p.Sources {
			r.nat.add(fw, "-s "+source.String()+" "+comment(name+" loadbalancer IP")+"-j "+ext)
		}
	}
	if p.Inside.Forwards() {
		r.external(p, ext, cluster, of(p.ExternalToLocal))
	}
	for local, endpoints := range p.Sets() {
		r.balance(p, of(local), endpoints)
	}
}

// external adds the chain of all addresses but the cluster IP.
func (r *renderer) external(p *proxy.Port, chain, cluster, to string) {
	name := p.String()
	if !p.ExternalToLocal {
		// Endpoints may be on other nodes.
		r.nat.add(chain, comment("masquerade traffic for "+name+" external destinations")+"-j "+markMasq)
		r.nat.add(chain, "-j "+to)
		return
	}
	if r.fromPods != "" { // as if they had left the cluster and come back in
		r.nat.add(chain, r.fromPods+comment("pod traffic for "+name+" external destinations")+"-j "+cluster)
	}
	// The node's own connections may have the load balancer's address as their source.
	fromNode := "-m addrtype --src-type LOCAL "
	r.nat.add(chain, comment("masquerade LOCAL traffic for "+name+" external destinations")+fromNode+"-j "+markMasq)
	r.nat.add(chain, comment("route LOCAL traffic for "+name+" external destinations")+fromNode+"-j "+cluster)
	if p.External.Forwards() {
		r.nat.add(chain, "-j "+to)
	}
}

// balance adds rules that choose one of the endpoints, and the endpoints' chains.
func (r *renderer) balance(p *proxy.Port, chain string, endpoints []netip.AddrPort) {
	protocol, name := strings.ToLower(p.Protocol), p.String()
	chains := make([]string, len(endpoints))
	for i, e := range endpoints {
		sep := iptables.OwnPrefix + "SEP-" + hashed(name, protocol, e.String())
		chains[i] = sep
		if p.AffinitySeconds > 0 {
			r.nat.add(chain, fmt.Sprintf("%s-m recent --rcheck --seconds %d --reap --name %s -j %s",
				comment(name+" -> "+e.String()), p.AffinitySeconds, sep, sep))
		}
		if _, ok := r.nat.Chains[sep]; ok {
			continue
		}
		r.nat.add(sep, "-s "+single(e.Addr())+" "+comment(name)+"-j "+markMasq) // connections to itself
		note := ""
		if p.AffinitySeconds > 0 {
			note = "-m recent --set --name " + sep + " "
		}
		r.nat.add(sep, fmt.Sprintf("-p %s %s%s-m %s -j DNAT --to-destination %s", protocol, comment(name), note, protocol, e))
	}
	for i, e := range endpoints {
		chance := ""
		if left := len(endpoints) - i; left > 1 {
			chance = "-m statistic --mode random --probability " + strconv.FormatFloat(1/float64(left), 'f', 10, 64) + " "
		}
		r.nat.add(chain, comment(name+" -> "+e.String())+chance+"-j "+chains[i])
	}
}

func why(t proxy.Traffic) string {
	if t.Action == dataplane.Drop {
		return "has no local endpoints"
	}
	return "has no endpoints"
}

func target(t proxy.Traffic) string {
	if t.Action == dataplane.Drop {
		return "DROP"
	}
	return "REJECT"
}

// single is the prefix of one address.
func single(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

// comment is a condition that is always met. Its text has labels of DNS, addresses and words of this file only, and at
// most 255 bytes, the kernel's limit.
func comment(text string) string {
	return `-m comment --comment "` + strings.TrimSpace(text) + `" `
}

// hashed is the part of a chain's name by which it is unique.
func hashed(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, " ")))
	return base32.StdEncoding.EncodeToString(sum[:])[:16]
}
