// SPDX-License-Identifier: Apache-2.0

package write

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/knftables"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
)

// Rules is what the table of one family has to have.
type Rules struct {
	Family dataplane.Family
	// Comment is the table's.
	Comment string
	Chains  map[string]Chain
	Sets    map[string]Set
}

// NewRules returns those of a table that has nothing yet.
func NewRules(family dataplane.Family, comment string) *Rules {
	return &Rules{Family: family, Comment: comment, Chains: map[string]Chain{}, Sets: map[string]Set{}}
}

// Rule adds one to the end of a chain, and the chain if it is new.
func (r *Rules) Rule(chain, text string, comment ...string) {
	c := r.Chains[chain]
	c.Rules = append(c.Rules, Rule{text, strings.Join(comment, "")})
	r.Chains[chain] = c
}

// Element adds one to a set, or with a value to a map.
func (r *Rules) Element(set, value, comment string, key ...string) {
	r.Sets[set].Elements[strings.Join(key, " . ")] = Element{key, value, comment}
}

// Words returns how nft names the family and its type of addresses.
func Words(family dataplane.Family) (ip, addrType string) {
	if family == dataplane.IPv6 {
		return "ip6", "ipv6_addr"
	}
	return "ip", "ipv4_addr"
}

// FromPods returns the conditions of nft for packets that come from pods, and for all others; empty if pods are not
// recognised.
func FromPods(pods proxy.Pods, family dataplane.Family) (from, notFrom string) {
	ip, _ := Words(family)
	if prefix, ok := pods.Prefix(family); ok {
		return ip + " saddr " + prefix.String(), ip + " saddr != " + prefix.String()
	}
	if pods.Interface != "" {
		return `iifname "` + pods.Interface + `"`, `iifname != "` + pods.Interface + `"`
	}
	return "", ""
}

// Chain is one of the table.
type Chain struct {
	// Type, Hook and Priority are empty if it is no base chain.
	Type     knftables.BaseChainType
	Hook     knftables.BaseChainHook
	Priority knftables.BaseChainPriority
	Rules    []Rule
	// stale is since when nothing leads to it and it has no rules; the kernel may not know yet. Zero: it is used.
	stale time.Time
}

// Rule is one of a chain, in the words of nft.
type Rule struct {
	Text, Comment string
}

// Set is a set or a map.
type Set struct {
	Map  bool
	Type string
	// Timeout, if not 0: the elements are the packets', and nobody else's.
	Timeout time.Duration
	// Elements are by their keys.
	Elements map[string]Element
	// unknown: it exists, and what it has was not read.
	unknown bool
}

// Element is one of a set. Value is empty if it is no map.
type Element struct {
	Key            []string
	Value, Comment string
}

// Names of the table's chains, sets and maps: kube-proxy's.
const (
	services        = "services"
	nodePortCheck   = "nodeport-endpoints-check"
	serviceCheck    = "service-endpoints-check"
	firewallCheck   = "firewall-check"
	clusterIPCheck  = "cluster-ips-check"
	masquerading    = "masquerading"
	reject          = "reject-chain"
	clusterIPs      = "cluster-ips"
	nodePortIPs     = "nodeport-ips"
	noEndpoint      = "no-endpoint-services"
	noEndpointPorts = "no-endpoint-nodeports"
	firewallIPs     = "firewall-ips"
	serviceIPs      = "service-ips"
	servicePorts    = "service-nodeports"
)

// MarkMasquerade is the chain that marks packets whose source will be rewritten, and Mark their bit: kube-proxy's.
const (
	MarkMasquerade = "mark-for-masquerade"
	Mark           = "0x4000"
)

// endpointPrefix begins the names of the chains of endpoints.
const endpointPrefix = "endpoint-"

// base chains, and where each leads. Packets meet the filters before and after nat as in kube-proxy: what DNAT rewrote
// no longer has the addresses of the maps of Services without endpoints.
var base = []struct {
	name     string
	kind     knftables.BaseChainType
	hook     knftables.BaseChainHook
	priority knftables.BaseChainPriority
	rules    []string
}{
	{"filter-prerouting-pre-dnat", knftables.FilterType, knftables.PreroutingHook, knftables.DNATPriority + "-10",
		[]string{"ct state new jump " + firewallCheck}},
	{"filter-output-pre-dnat", knftables.FilterType, knftables.OutputHook, knftables.DNATPriority + "-10",
		[]string{"ct state new jump " + firewallCheck}},
	{"filter-input", knftables.FilterType, knftables.InputHook, knftables.FilterPriority,
		[]string{"ct state new jump " + nodePortCheck, "ct state new jump " + serviceCheck}},
	{"filter-forward", knftables.FilterType, knftables.ForwardHook, knftables.FilterPriority,
		[]string{"ct state new jump " + serviceCheck, "ct state new jump " + clusterIPCheck}},
	{"filter-output", knftables.FilterType, knftables.OutputHook, knftables.FilterPriority,
		[]string{"ct state new jump " + serviceCheck, "ct state new jump " + clusterIPCheck}},
	{"nat-prerouting", knftables.NATType, knftables.PreroutingHook, knftables.DNATPriority, []string{"jump " + services}},
	{"nat-output", knftables.NATType, knftables.OutputHook, knftables.DNATPriority, []string{"jump " + services}},
	{"nat-postrouting", knftables.NATType, knftables.PostroutingHook, knftables.SNATPriority, []string{"jump " + masquerading}},
}

// Render returns the rules of a family, for a state and a node. They are the same for the same input, and have no text
// of a message but names that are labels of DNS: see proxy.Check.
func Render(state *proxy.State, node proxy.Node, family dataplane.Family) *Rules {
	r := renderer{Rules: NewRules(family, "rules of checkplan's service-proxy"), node: node, loopback: "127.0.0.0/8"}
	if family == dataplane.IPv6 {
		r.loopback = "::1"
	}
	r.ip, r.addrType = Words(family)
	r.fromPods, r.notFromPods = FromPods(node.Pods, family)
	r.fixed(state.NodePorts[family])
	ports := state.Of(family)
	for i := range ports {
		r.port(&ports[i])
	}
	return r.Rules
}

type renderer struct {
	*Rules
	node                   proxy.Node
	ip, addrType, loopback string
	// fromPods and notFromPods are conditions; empty if pods are not recognised.
	fromPods, notFromPods string
}

// fixed adds what does not depend on Services.
func (r *renderer) fixed(at proxy.NodePorts) {
	for _, b := range base {
		c := Chain{Type: b.kind, Hook: b.hook, Priority: b.priority}
		for _, text := range b.rules {
			c.Rules = append(c.Rules, Rule{Text: text})
		}
		r.Chains[b.name] = c
	}
	for name, kind := range map[string]string{
		serviceIPs:      r.addrType + " . inet_proto . inet_service : verdict",
		servicePorts:    "inet_proto . inet_service : verdict",
		noEndpoint:      r.addrType + " . inet_proto . inet_service : verdict",
		noEndpointPorts: "inet_proto . inet_service : verdict",
		firewallIPs:     r.addrType + " . inet_proto . inet_service : verdict", clusterIPs: r.addrType, nodePortIPs: r.addrType,
	} {
		r.Sets[name] = Set{Map: strings.HasSuffix(kind, "verdict"), Type: kind, Elements: map[string]Element{}}
	}
	toNode := "fib daddr type local " + r.ip + " daddr != " + r.loopback
	inCheck := r.ip + " daddr != " + r.loopback // of packets to the node
	if !at.All {
		toNode = r.ip + " daddr @" + nodePortIPs
		inCheck = toNode
		for _, a := range at.Addresses(r.node.Addresses) {
			r.Element(nodePortIPs, "", "", a.String())
		}
	}
	r.Rule(services, r.ip+" daddr . meta l4proto . th dport vmap @"+serviceIPs)
	r.Rule(services, toNode+" meta l4proto . th dport vmap @"+servicePorts)
	r.Rule(firewallCheck, r.ip+" daddr . meta l4proto . th dport vmap @"+firewallIPs)
	r.Rule(serviceCheck, r.ip+" daddr . meta l4proto . th dport vmap @"+noEndpoint)
	r.Rule(nodePortCheck, inCheck+" meta l4proto . th dport vmap @"+noEndpointPorts)
	r.Rule(clusterIPCheck, r.ip+" daddr @"+clusterIPs+" reject", "Reject traffic to invalid ports of ClusterIPs")
	r.Rule(reject, "reject")
	r.Rule(MarkMasquerade, "meta mark set meta mark or "+Mark)
	r.Rule(masquerading, "meta mark and "+Mark+" == 0 return")
	r.Rule(masquerading, "meta mark set meta mark xor "+Mark)
	r.Rule(masquerading, "masquerade fully-random")
}

// port adds one port of a Service.
func (r *renderer) port(p *proxy.Port) {
	protocol, number := strings.ToLower(p.Protocol), strconv.Itoa(int(p.Port))
	base := Hashed(p.Namespace + "/" + p.Service + "/" + protocol + "/" + p.Name)
	cluster, local, external, firewall := "service-"+base, "local-"+base, "external-"+base, "firewall-"+base
	of := func(toLocal bool) string {
		if toLocal {
			return local
		}
		return cluster
	}
	r.Element(clusterIPs, "", "", p.ClusterIP.String())
	if p.Internal.Forwards() {
		chain := of(p.InternalToLocal)
		r.Element(serviceIPs, "goto "+chain, "", p.ClusterIP.String(), protocol, number)
		to := fmt.Sprintf("%s daddr %s %s dport %s ", r.ip, p.ClusterIP, protocol, number)
		switch {
		case r.node.MasqueradeAll:
			r.Rule(chain, to+"jump "+MarkMasquerade)
		case r.notFromPods != "":
			r.Rule(chain, to+r.notFromPods+" jump "+MarkMasquerade)
		}
	} else {
		r.Element(noEndpoint, verdict(p.Internal), p.String(), p.ClusterIP.String(), protocol, number)
	}
	outside := slices.Concat(p.ExternalIPs, p.LoadBalancerIPs)
	for _, a := range outside {
		if p.Inside.Forwards() {
			r.Element(serviceIPs, "goto "+external, "", a.String(), protocol, number)
		}
		if !p.External.Forwards() {
			r.Element(noEndpoint, verdict(p.External), p.String(), a.String(), protocol, number)
		}
	}
	if p.NodePort != 0 {
		number := strconv.Itoa(int(p.NodePort))
		if p.Inside.Forwards() {
			r.Element(servicePorts, "goto "+external, "", protocol, number)
		}
		if !p.External.Forwards() {
			r.Element(noEndpointPorts, verdict(p.External), p.String(), protocol, number)
		}
	}
	if len(p.Sources) > 0 && len(p.LoadBalancerIPs) > 0 {
		for _, a := range p.LoadBalancerIPs {
			r.Element(firewallIPs, "goto "+firewall, "", a.String(), protocol, number)
		}
		r.Rule(firewall, r.ip+" saddr != { "+List(p.Sources)+" } drop")
	}
	if p.Inside.Forwards() {
		r.external(p, external, cluster, of(p.ExternalToLocal))
	}
	for local, endpoints := range p.Sets() {
		r.Balance(p, of(local), endpoints)
	}
}

// external adds the chain of all addresses but the cluster IP.
func (r *renderer) external(p *proxy.Port, chain, cluster, to string) {
	if !p.ExternalToLocal {
		r.Rule(chain, "jump "+MarkMasquerade) // endpoints may be on other nodes
		r.Rule(chain, "goto "+to)
		return
	}
	if r.fromPods != "" { // as if they had left the cluster and come back in
		r.Rule(chain, r.fromPods+" goto "+cluster, "short-circuit pod traffic")
	}
	// The node's own connections may have the load balancer's address as their source.
	r.Rule(chain, "fib saddr type local jump "+MarkMasquerade, "masquerade local traffic")
	r.Rule(chain, "fib saddr type local goto "+cluster, "short-circuit local traffic")
	if p.External.Forwards() {
		r.Rule(chain, "goto "+to)
	}
}

// Balance adds a chain that chooses one of a port's endpoints, and their chains. They jump to MarkMasquerade
// for connections of an endpoint to itself.
func (r *Rules) Balance(p *proxy.Port, chain string, endpoints []netip.AddrPort) {
	ip, addrType := Words(r.Family)
	protocol := strings.ToLower(p.Protocol)
	choices := make([]string, len(endpoints))
	var sticky []Rule
	for i, e := range endpoints {
		base := Hashed(fmt.Sprintf("%s/%s/%s/%s__%s/%d", p.Namespace, p.Service, protocol, p.Name,
			strings.ReplaceAll(e.Addr().String(), ":", "."), e.Port()))
		to := endpointPrefix + base
		choices[i] = fmt.Sprintf("%d : goto %s", i, to)
		set := ""
		if p.AffinitySeconds > 0 {
			// A set's timeout cannot be changed, so another one is another set.
			set = "affinity-" + Hashed(fmt.Sprintf("%s/%s/%s/%s__%s/%d/%d", p.Namespace, p.Service, protocol, p.Name,
				strings.ReplaceAll(e.Addr().String(), ":", "."), e.Port(), p.AffinitySeconds))
			sticky = append(sticky, Rule{Text: ip + " saddr @" + set + " goto " + to})
		}
		if _, ok := r.Chains[to]; ok {
			continue
		}
		r.Rule(to, fmt.Sprintf("%s saddr %s jump %s", ip, e.Addr(), MarkMasquerade)) // connections to itself
		if set != "" {
			r.Sets[set] = Set{Type: addrType, Timeout: time.Duration(p.AffinitySeconds) * time.Second}
			r.Rule(to, "update @"+set+" { "+ip+" saddr }")
		}
		r.Rule(to, "meta l4proto "+protocol+" dnat to "+e.String())
	}
	for _, rule := range sticky {
		r.Rule(chain, rule.Text)
	}
	if len(endpoints) == 1 { // as kube-proxy from 1.37 on: each map makes each later map slower to add
		r.Rule(chain, strings.TrimPrefix(choices[0], "0 : "))
		return
	}
	r.Rule(chain, fmt.Sprintf("numgen random mod %d vmap { %s }", len(endpoints), strings.Join(choices, " , ")))
}

func verdict(t proxy.Traffic) string {
	if t.Action == dataplane.Drop {
		return "drop"
	}
	return "goto " + reject
}

// List is prefixes as elements of a set.
func List(prefixes []netip.Prefix) string {
	texts := make([]string, len(prefixes))
	for i, p := range prefixes {
		texts[i] = p.String()
	}
	return strings.Join(texts, " , ")
}

// maxName is the longest part of a name after its prefix, in bytes: the kernel's limit is 255, the longest prefix has
// 9.
const maxName = 240

// Hashed returns a name that begins with a hash of itself: names that differ only at their ends are distinguished at
// a glance, and one that is cut stays unique.
func Hashed(name string) string {
	sum := sha256.Sum256([]byte(name))
	name = base32.StdEncoding.EncodeToString(sum[:])[:8] + "-" + name
	if len(name) > maxName {
		name = name[:maxName-3] + "..."
	}
	return name
}
