// SPDX-License-Identifier: Apache-2.0

// Package nftables reads what kube-proxy wrote in its mode nftables: the table kube-proxy of the families ip and ip6.
// It knows the rules of kube-proxy 1.31 to 1.36, and follows whatever the rules are: only the names of chains, maps
// and sets are kube-proxy's. What this project's service-proxy writes (pkg/dataplane/nftables/write) has the same names
// in a table of its own.
package nftables

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/netfilter"
	"github.com/checkplan/checkplan/pkg/dataplane/rules"
)

// Name is the table of kube-proxy, OwnName that of this project's service-proxy.
const (
	Name    = "kube-proxy"
	OwnName = "checkplan-proxy"
)

// services is the chain that leads packets to the chains of their Services.
const services = "services"

// Parse returns what the one table of a dump does. It is false if the dump has none.
func Parse(dump *netfilter.Dump) (dataplane.Table, bool) {
	family := dataplane.IPv4
	if dump.IPv6 {
		family = dataplane.IPv6
	}
	set := dump.Ruleset(func(_, chain string) string { return chain })
	return Table(set, family), len(dump.Chains) > 0
}

// split returns the dumps of each table that is in one, and who wrote it.
func split(dump *netfilter.Dump) (dumps []*netfilter.Dump, by []dataplane.Program) {
	for _, owner := range []struct {
		table   string
		program dataplane.Program
	}{{Name, dataplane.KubeProxy}, {OwnName, dataplane.ServiceProxy}} {
		one := &netfilter.Dump{IPv6: dump.IPv6}
		for _, c := range dump.Chains {
			if c.Table == owner.table {
				one.Chains = append(one.Chains, c)
			}
		}
		for _, r := range dump.Rules {
			if r.Table == owner.table {
				one.Rules = append(one.Rules, r)
			}
		}
		for _, s := range dump.Sets {
			if s.Table == owner.table {
				one.Sets = append(one.Sets, s)
			}
		}
		if len(one.Chains) > 0 {
			dumps, by = append(dumps, one), append(by, owner.program)
		}
	}
	return dumps, by
}

// Table returns what the rules of a table do that were converted already. The set is its own afterwards.
func Table(set *rules.Ruleset, family dataplane.Family) dataplane.Table {
	Prepare(set)
	return rules.Table(set, dataplane.NFTables, family)
}

// Prepare adds to converted rules what follows from the names of chains: keys, labels, which conditions ask for pods of
// the node, and what was not understood.
func Prepare(set *rules.Ruleset) {
	for name, chain := range set.Chains {
		begins := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
		// Since 1.36, the rule that marks what comes from outside is one for all Services, in the chain services.
		pods := name == services || strings.Contains(name, "/") &&
			slices.ContainsFunc([]string{"service-", "local-", "external-"}, begins)
		for i := range chain {
			r := &chain[i]
			if r.Text != "" {
				set.Unknown = append(set.Unknown, r.Text)
				set.Incomplete = set.Incomplete || !strings.Contains(name, "/") // not of one Service
			}
			r.Label = label(r.Verdict.Chain)
			for j := range r.Conds {
				c := &r.Conds[j]
				c.Pods = pods && (c.Field == rules.Source || c.Field == rules.Interface)
				if c.Field == rules.Dest && !c.Not && dispatches(r) {
					set.NodePortAddresses = nodePorts(c.Addrs)
				}
			}
			if r.Map != nil {
				frontends(set, r.Map)
			}
		}
	}
	slices.Sort(set.Unknown)
}

// dispatches reports whether the rule leads node ports to their Services, or says that they have no endpoints.
func dispatches(r *rules.Rule) bool {
	return r.Map != nil && len(r.Map.Fields) > 0 && !slices.Contains(r.Map.Fields, rules.Dest)
}

func nodePorts(a *rules.Addrs) []netip.Addr {
	var list []netip.Addr
	for addr := range a.Single {
		list = append(list, addr)
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

// frontends adds the keys of a map, and labels its elements.
func frontends(set *rules.Ruleset, m *rules.Map) {
	for key, e := range m.Elements {
		e.Label = e.Comment
		if to := label(e.Verdict.Chain); to != "" {
			e.Label = to
		}
		m.Elements[key] = e
		if slices.Contains(m.Fields, rules.DestPort) && slices.Contains(m.Fields, rules.Protocol) && key.Protocol != "" {
			set.Keys[dataplane.Key{Address: key.Dest, Protocol: key.Protocol, Port: key.Port}] = true
		}
	}
	for i := range m.Choices {
		m.Choices[i].Label = label(m.Choices[i].Verdict.Chain)
	}
}

// label finds the Service in the name of a chain: PREFIX-HASH-namespace/name/protocol/port, with __address/port at the
// end if it is an endpoint's.
func label(chain string) string {
	for _, prefix := range []string{"service-", "local-", "external-", "firewall-"} {
		rest, ok := strings.CutPrefix(chain, prefix)
		if !ok {
			continue
		}
		if _, name, ok := strings.Cut(rest, "-"); ok {
			if parts := strings.Split(name, "/"); len(parts) == 4 {
				return join(parts[0], parts[1], parts[3])
			}
		}
	}
	return ""
}

func join(namespace, name, port string) string {
	if port == "" {
		return namespace + "/" + name
	}
	return namespace + "/" + name + ":" + port
}
