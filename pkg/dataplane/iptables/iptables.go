// SPDX-License-Identifier: Apache-2.0

// Package iptables reads what kube-proxy wrote in its mode iptables: from the kernel, where iptables-nft and
// iptables-legacy keep it in different places, or from the text of iptables-save. It knows the rules of kube-proxy 1.31
// to 1.36, and follows whatever the rules are: only the names of chains are kube-proxy's, and the words at the
// beginning of comments. What this project's service-proxy writes (pkg/dataplane/iptables/write) has the same names,
// with a prefix of its own.
//
// Rules of others in the built-in chains are not followed, except where they jump to a chain of the proxy. What they
// do to connections shows when one measures.
package iptables

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/netfilter"
	"github.com/checkplan/checkplan/pkg/dataplane/rules"
)

// Tables are those that a proxy writes to.
var Tables = []string{"nat", "filter"}

// Prefix begins the names of kube-proxy's chains, OwnPrefix those of this project's service-proxy.
const (
	Prefix    = "KUBE-"
	OwnPrefix = "CPLAN-"
)

// owners are who may have written the rules, by prefix, in the order in which they are looked for.
var owners = []struct {
	prefix  string
	program dataplane.Program
}{{Prefix, dataplane.KubeProxy}, {OwnPrefix, dataplane.ServiceProxy}}

// Parse returns what the rules of iptables-nft do; false if none of them is a proxy's.
func Parse(dump *netfilter.Dump) (dataplane.Table, bool) {
	have, by := parse(dump)
	return have, len(by) > 0
}

func parse(dump *netfilter.Dump) (dataplane.Table, []dataplane.Program) {
	family := dataplane.IPv4
	if dump.IPv6 {
		family = dataplane.IPv6
	}
	return table(dump.Ruleset(Qualified), family)
}

// ParseLegacy returns what the rules of iptables-legacy do; false if none of them is a proxy's.
func ParseLegacy(tables []netfilter.LegacyTable, family dataplane.Family) (dataplane.Table, bool, error) {
	have, by, err := parseLegacy(tables, family)
	return have, len(by) > 0, err
}

func parseLegacy(
	tables []netfilter.LegacyTable, family dataplane.Family,
) (dataplane.Table, []dataplane.Program, error) {
	set, err := netfilter.Legacy(&netfilter.Dump{IPv6: family == dataplane.IPv6}, Qualified, tables...)
	if err != nil {
		return dataplane.Table{}, nil, err
	}
	have, by := table(set, family)
	return have, by, nil
}

// Qualified is the name of a chain with its table before it.
func Qualified(table, chain string) string { return table + "/" + chain }

// hooks are the built-in chains that a new connection passes, in their order.
var hooks = map[rules.Hook][]string{
	rules.Prerouting:  {"nat/PREROUTING"},
	rules.Input:       {"filter/INPUT"},
	rules.Forward:     {"filter/FORWARD"},
	rules.Output:      {"nat/OUTPUT", "filter/OUTPUT"},
	rules.Postrouting: {"nat/POSTROUTING"},
}

// frontendChains have rules for the addresses and ports of Services.
var frontendChains = []string{"nat/SERVICES", "nat/NODEPORTS", "filter/SERVICES", "filter/EXTERNAL-SERVICES",
	"filter/PROXY-FIREWALL"}

// nodePortChains have those for node ports: what has no destination in another chain is no frontend.
var nodePortChains = []string{"nat/NODEPORTS", "filter/EXTERNAL-SERVICES"}

// podChains have conditions on the source or interface that ask for pods of the node, and no others.
var podChains = []string{"nat/SVC-", "nat/SVL-", "nat/EXT-"}

// unprefixed returns the name of a proxy's chain without the prefix, for example nat/SERVICES. It is false if the chain
// is another one.
func unprefixed(name, prefix string) (string, bool) {
	for _, table := range Tables {
		if rest, ok := strings.CutPrefix(name, Qualified(table, prefix)); ok {
			return Qualified(table, rest), true
		}
	}
	return name, false
}

// Only leaves of the chains whose names do not begin with a proxy's prefix the jumps to those that do. Names of chains
// have their table before them.
func Only(set *rules.Ruleset, prefix string) {
	for name, chain := range set.Chains {
		if _, own := unprefixed(name, prefix); own {
			continue
		}
		set.Chains[name] = slices.DeleteFunc(slices.Clone(chain), func(r rules.Rule) bool {
			return r.Verdict.Do != rules.Jump || !strings.Contains(r.Verdict.Chain, "/"+prefix)
		})
	}
}

// table returns what the rules do of the first program that wrote some, and all that did.
func table(set *rules.Ruleset, family dataplane.Family) (dataplane.Table, []dataplane.Program) {
	set.Hooks = hooks
	var by []dataplane.Program
	prefix := Prefix
	for _, o := range owners {
		if _, ok := set.Chains[Qualified("nat", o.prefix+"SERVICES")]; ok {
			if len(by) == 0 {
				prefix = o.prefix
			}
			by = append(by, o.program)
		}
	}
	Only(set, prefix)
	for name, chain := range set.Chains {
		place, own := unprefixed(name, prefix)
		if !own {
			continue
		}
		pods := slices.ContainsFunc(podChains, func(p string) bool { return strings.HasPrefix(place, p) })
		for i := range chain {
			r := &chain[i]
			for j := range r.Conds {
				c := &r.Conds[j]
				c.Pods = pods && (c.Field == rules.Source || c.Field == rules.Interface)
			}
			if r.Text != "" {
				set.Unknown = append(set.Unknown, r.Text)
				set.Incomplete = set.Incomplete || slices.Contains(frontendChains, place)
			}
			if slices.Contains(frontendChains, place) {
				frontend(set, place, prefix, r)
			}
		}
	}
	slices.Sort(set.Unknown)
	slices.SortFunc(set.NodePortAddresses, netip.Addr.Compare)
	return rules.Table(set, dataplane.IPTables, family), by
}

// frontend adds the key of a rule, and labels it.
func frontend(set *rules.Ruleset, chain, prefix string, r *rules.Rule) {
	r.Label = label(r.Comment)
	var key dataplane.Key
	for _, c := range r.Conds {
		switch {
		case c.Not:
		case c.Field == rules.Dest && len(c.Addrs.Single) == 1 && len(c.Addrs.Prefixes) == 0:
			for addr := range c.Addrs.Single {
				key.Address = addr
			}
		case c.Field == rules.DestPort && c.Low == c.High:
			key.Port = c.Low
		case c.Field == rules.Protocol:
			key.Protocol = c.Text
		}
	}
	switch {
	case key.Port != 0 && key.Protocol != "" && (key.Address.IsValid() || slices.Contains(nodePortChains, chain)):
		set.Keys[key] = true
	case key.Address.IsValid() && !key.Address.IsLoopback() && r.Verdict.Chain == Qualified("nat", prefix+"NODEPORTS"):
		set.NodePortAddresses = append(set.NodePortAddresses, key.Address)
	}
}

// label finds the Service in a comment, which begins with namespace/name:port, or namespace/name if the port has no
// name.
func label(comment string) string {
	service, _, _ := strings.Cut(comment, " ")
	if namespace, name, ok := strings.Cut(service, "/"); !ok || namespace == "" || name == "" {
		return ""
	}
	return service
}
