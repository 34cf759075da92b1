// SPDX-License-Identifier: Apache-2.0

package write

import (
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/knftables"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/ipvs"
	nftables "github.com/checkplan/checkplan/pkg/dataplane/nftables/write"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
)

// Names of the table's chains, sets and maps. Those that the mode nftables has, too, have the same meaning there.
const (
	services      = "services"
	servedCheck   = "served-check"
	firewallCheck = "firewall-check"
	masquerading  = "masquerading"
	addresses     = "service-addresses"
	serviceIPs    = "service-ips"
	served        = "served"
	firewallIPs   = "firewall-ips"
	hairpin       = "hairpin"
)

// base chains, and where each leads. IPVS takes packets for the node after the filters of the hook input, and the
// node's own before those of the hook output: what passes these with the address of a Service was not taken yet, or no
// virtual server takes it.
var base = []struct {
	name     string
	kind     knftables.BaseChainType
	hook     knftables.BaseChainHook
	priority knftables.BaseChainPriority
	rule     string
}{
	{"filter-prerouting-pre-dnat", knftables.FilterType, knftables.PreroutingHook, knftables.DNATPriority + "-10",
		"ct state new jump " + firewallCheck},
	{"filter-output-pre-dnat", knftables.FilterType, knftables.OutputHook, knftables.DNATPriority + "-10",
		"ct state new jump " + firewallCheck},
	{"filter-input", knftables.FilterType, knftables.InputHook, knftables.FilterPriority,
		"ct state new jump " + servedCheck},
	{"filter-output", knftables.FilterType, knftables.OutputHook, knftables.FilterPriority,
		"ct state new jump " + servedCheck},
	{"nat-prerouting", knftables.NATType, knftables.PreroutingHook, knftables.DNATPriority, "jump " + services},
	{"nat-output", knftables.NATType, knftables.OutputHook, knftables.DNATPriority, "jump " + services},
	{"nat-postrouting", knftables.NATType, knftables.PostroutingHook, knftables.SNATPriority, "jump " + masquerading},
}

// table is what a nftables.Writer keeps.
var table = nftables.Table{Name: ipvs.OwnTable, Look: services, Render: Render}

// Render returns the rules of a family, for a state and a node. They are the same for the same input, and have no text
// of a message but names that are labels of DNS: see proxy.Check.
func Render(state *proxy.State, node proxy.Node, family dataplane.Family) *nftables.Rules {
	r := renderer{Rules: nftables.NewRules(family, "rules of checkplan's service-proxy in its mode ipvs"), node: node}
	r.ip, r.addrType = nftables.Words(family)
	r.fromPods, r.notFromPods = nftables.FromPods(node.Pods, family)
	r.fixed()
	done := map[*proxy.Port]bool{}
	for _, site := range sites(state, node, family, &proxy.Unserved{}) {
		r.site(site)
		if !done[site.Port] {
			done[site.Port] = true
			r.endpoints(site.Port)
		}
	}
	return r.Rules
}

type renderer struct {
	*nftables.Rules
	node         proxy.Node
	ip, addrType string
	// fromPods and notFromPods are conditions; empty if pods are not recognised.
	fromPods, notFromPods string
}

// fixed adds what does not depend on Services.
func (r *renderer) fixed() {
	for _, b := range base {
		r.Chains[b.name] = nftables.Chain{Type: b.kind, Hook: b.hook, Priority: b.priority}
		r.Rule(b.name, b.rule)
	}
	key := r.addrType + " . inet_proto . inet_service"
	for name, kind := range map[string]string{
		serviceIPs: key + " : verdict", served: key + " : verdict", firewallIPs: key + " : verdict",
		addresses: r.addrType, hairpin: r.addrType + " . " + r.addrType,
	} {
		r.Sets[name] = nftables.Set{
			Map: strings.HasSuffix(kind, "verdict"), Type: kind, Elements: map[string]nftables.Element{},
		}
	}
	to := r.ip + " daddr . meta l4proto . th dport vmap @"
	r.Rule(services, to+serviceIPs)
	r.Rule(firewallCheck, to+firewallIPs)
	r.Rule(servedCheck, to+served)
	r.Rule(servedCheck, r.ip+" daddr @"+addresses+" meta l4proto { tcp, udp, sctp } reject", "ports that no Service has")
	r.Rule(nftables.MarkMasquerade, "meta mark set meta mark or "+nftables.Mark)
	// The node's own connections to an address of a Service come from it.
	r.Rule(masquerading, r.ip+" saddr @"+addresses+" jump "+nftables.MarkMasquerade)
	r.Rule(masquerading, r.ip+" saddr . "+r.ip+" daddr @"+hairpin+" jump "+nftables.MarkMasquerade)
	r.Rule(masquerading, "meta mark and "+nftables.Mark+" == 0 return")
	r.Rule(masquerading, "meta mark set meta mark xor "+nftables.Mark)
	r.Rule(masquerading, "masquerade fully-random")
}

// site adds what one address and port needs.
func (r *renderer) site(s proxy.Site) {
	p := s.Port
	id, protocol := name(p), strings.ToLower(p.Protocol)
	key := []string{s.At.Addr().String(), protocol, strconv.Itoa(int(s.At.Port()))}
	if s.Own {
		r.Element(addresses, "", "", s.At.Addr().String())
	}
	switch {
	case s.Outside.Action == dataplane.Drop:
		r.Element(served, "drop", p.String(), key...)
	case s.Own:
		r.Element(served, "return", p.String(), key...)
	}
	if len(s.Sources) > 0 {
		r.Element(firewallIPs, "goto firewall-"+id, "", key...)
		r.once("firewall-"+id, r.ip+" saddr != { "+nftables.List(s.Sources)+" } drop")
	}
	chain := "external-" + id
	if s.Cluster {
		chain = "service-" + id
	}
	if r.sources(chain, s) {
		r.Element(serviceIPs, "goto "+chain, "", key...)
	}
}

// sources adds the chain that decides for a site whether the source of connections is rewritten, and which endpoints
// clients of the node have, if they are others. It is false if there is nothing to decide.
func (r *renderer) sources(chain string, s proxy.Site) bool {
	switch {
	case !s.Inside.Forwards():
		return false
	case !s.Cluster && !s.Port.ExternalToLocal:
		r.once(chain, "jump "+nftables.MarkMasquerade) // endpoints may be on other nodes
		return true
	case !s.Cluster:
		r.local(chain, s)
		return true
	case r.node.MasqueradeAll:
		r.once(chain, "jump "+nftables.MarkMasquerade)
		return true
	case r.notFromPods != "":
		r.once(chain, r.notFromPods+" jump "+nftables.MarkMasquerade)
		return true
	}
	return false
}

// local adds the chain of the addresses of a Service whose policy is Local. Clients of the node use all endpoints, as
// if they had left the cluster and come back in. IPVS has one list of destinations for all clients: it is for those
// from outside.
func (r *renderer) local(chain string, s proxy.Site) {
	if _, ok := r.Chains[chain]; ok {
		return
	}
	then, split := "return", ""
	if len(s.Inside.Endpoints) > 0 && !slices.Equal(s.Inside.Endpoints, s.Outside.Endpoints) {
		split = "inside-" + name(s.Port)
		then = "goto " + split
	}
	if r.fromPods != "" {
		r.Rule(chain, r.fromPods+" "+then, "short-circuit pod traffic")
	}
	// The node's own connections may have the load balancer's address as their source.
	r.Rule(chain, "fib saddr type local jump "+nftables.MarkMasquerade, "masquerade local traffic")
	if split != "" {
		r.Rule(chain, "fib saddr type local "+then, "short-circuit local traffic")
		r.Balance(s.Port, split, s.Inside.Endpoints)
	}
}

// endpoints adds those of a port to the pairs of addresses of connections to themselves.
func (r *renderer) endpoints(p *proxy.Port) {
	for _, e := range slices.Concat(p.Internal.Endpoints, p.External.Endpoints, p.Inside.Endpoints) {
		a := e.Addr().String()
		r.Element(hairpin, "", "", a, a)
	}
}

// once adds a chain with one rule, unless it exists: several addresses of a Service share it.
func (r *renderer) once(chain, rule string) {
	if _, ok := r.Chains[chain]; !ok {
		r.Rule(chain, rule)
	}
}

// name is the part of the names of a port's chains by which they are unique.
func name(p *proxy.Port) string {
	return nftables.Hashed(p.Namespace + "/" + p.Service + "/" + strings.ToLower(p.Protocol) + "/" + p.Name)
}
