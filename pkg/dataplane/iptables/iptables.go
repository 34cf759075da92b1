// SPDX-License-Identifier: Apache-2.0

// Package iptables reads what kube-proxy wrote in its mode iptables: from the kernel, where iptables-nft and
// iptables-legacy keep it in different places, or from the text of iptables-save. It was written by the rules of
// kube-proxy 1.35, and follows whatever the rules are: only the names of chains are kube-proxy's, and the words at the
// beginning of comments.
//
// Rules of others in the built-in chains are not followed, except where they jump to a chain of kube-proxy. What they
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

// Tables are those that kube-proxy writes to.
var Tables = []string{"nat", "filter"}

// Parse returns what the rules of iptables-nft do. It is false if there are none of kube-proxy.
func Parse(dump *netfilter.Dump) (dataplane.Table, bool) {
	family := dataplane.IPv4
	if dump.IPv6 {
		family = dataplane.IPv6
	}
	return table(dump.Ruleset(qualified), family)
}

// ParseLegacy returns what the rules of iptables-legacy do. It is false if there are none of kube-proxy.
func ParseLegacy(tables []netfilter.LegacyTable, family dataplane.Family) (dataplane.Table, bool, error) {
	set, err := netfilter.Legacy(family == dataplane.IPv6, qualified, tables...)
	if err != nil {
		return dataplane.Table{}, false, err
	}
	have, ok := table(set, family)
	return have, ok, nil
}

func qualified(table, chain string) string { return table + "/" + chain }

// hooks are the built-in chains that a new connection passes, in their order.
var hooks = map[rules.Hook][]string{
	rules.Prerouting:  {"nat/PREROUTING"},
	rules.Input:       {"filter/INPUT"},
	rules.Forward:     {"filter/FORWARD"},
	rules.Output:      {"nat/OUTPUT", "filter/OUTPUT"},
	rules.Postrouting: {"nat/POSTROUTING"},
}

// frontendChains have rules for the addresses and ports of Services.
var frontendChains = []string{"nat/KUBE-SERVICES", "nat/KUBE-NODEPORTS", "filter/KUBE-SERVICES",
	"filter/KUBE-EXTERNAL-SERVICES", "filter/KUBE-PROXY-FIREWALL"}

// nodePortChains have those for node ports: what has no destination in another chain is no frontend.
var nodePortChains = []string{"nat/KUBE-NODEPORTS", "filter/KUBE-EXTERNAL-SERVICES"}

// podChains have conditions on the source or interface that ask for pods of the node, and no others.
var podChains = []string{"nat/KUBE-SVC-", "nat/KUBE-SVL-", "nat/KUBE-EXT-"}

func table(set *rules.Ruleset, family dataplane.Family) (dataplane.Table, bool) {
	set.Hooks = hooks
	for name, chain := range set.Chains {
		if !strings.HasPrefix(name, "nat/KUBE-") && !strings.HasPrefix(name, "filter/KUBE-") {
			set.Chains[name] = slices.DeleteFunc(slices.Clone(chain), func(r rules.Rule) bool {
				return r.Verdict.Do != rules.Jump || !strings.Contains(r.Verdict.Chain, "/KUBE-")
			})
			continue
		}
		pods := slices.ContainsFunc(podChains, func(p string) bool { return strings.HasPrefix(name, p) })
		for i := range chain {
			r := &chain[i]
			for j := range r.Conds {
				c := &r.Conds[j]
				c.Pods = pods && (c.Field == rules.Source || c.Field == rules.Interface)
			}
			if r.Text != "" {
				set.Unknown = append(set.Unknown, r.Text)
				set.Incomplete = set.Incomplete || slices.Contains(frontendChains, name)
			}
			if slices.Contains(frontendChains, name) {
				frontend(set, name, r)
			}
		}
	}
	slices.Sort(set.Unknown)
	slices.SortFunc(set.NodePortAddresses, netip.Addr.Compare)
	_, ok := set.Chains["nat/KUBE-SERVICES"]
	return rules.Table(set, dataplane.IPTables, family), ok
}

// frontend adds the key of a rule, and labels it.
func frontend(set *rules.Ruleset, chain string, r *rules.Rule) {
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
	case key.Address.IsValid() && !key.Address.IsLoopback() && r.Verdict.Chain == "nat/KUBE-NODEPORTS":
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
