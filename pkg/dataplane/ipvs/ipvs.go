// SPDX-License-Identifier: Apache-2.0

// Package ipvs reads what a service proxy in its mode ipvs programmed: virtual servers of IPVS, the addresses of an
// interface, ipsets, and the rules beside them. Parse is pure; Read asks the kernel, and changes nothing. Package write
// has the mode ipvs of tasks/service-proxy.
package ipvs

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/iptables"
	"github.com/checkplan/checkplan/pkg/dataplane/netfilter"
	"github.com/checkplan/checkplan/pkg/dataplane/nftables"
	"github.com/checkplan/checkplan/pkg/dataplane/rules"
)

// Kernel is what a node's kernel has of a proxy in mode ipvs in one family, as it was read.
type Kernel struct {
	// Program is whose it is.
	Program dataplane.Program `json:"program"`
	Servers []VirtualServer   `json:"servers,omitempty"`
	// Device are the addresses of the proxy's interface, Node those of all others except loopback addresses.
	Device []netip.Addr `json:"device,omitempty"`
	Node   []netip.Addr `json:"node,omitempty"`
	// Untracked: connections of virtual servers are not in conntrack (net.ipv4.vs.conntrack is 0), so no rule changes
	// their source.
	Untracked bool `json:"untracked,omitempty"`
	// Rules are those of kube-proxy in iptables-nft, with the ipsets that they name, or OwnTable of ServiceProxy. If
	// Legacy is not empty, kube-proxy's rules are there, and Rules has the ipsets only.
	Rules  *netfilter.Dump         `json:"rules"`
	Legacy []netfilter.LegacyTable `json:"legacy,omitempty"`
}

// hooks are the built-in chains of iptables that a new connection passes. IPVS takes the packets of the node itself
// between the two chains OUTPUT.
var hooks = map[rules.Hook][]string{
	rules.Prerouting:  {"nat/PREROUTING"},
	rules.Input:       {"filter/INPUT"},
	rules.Forward:     {"filter/FORWARD"},
	rules.Output:      {"nat/OUTPUT"},
	rules.Sent:        {"filter/OUTPUT"},
	rules.Postrouting: {"nat/POSTROUTING"},
}

// Parse returns what the proxy does. The error is one of a kernel that contradicts itself.
func Parse(k *Kernel) (dataplane.Table, error) {
	family := dataplane.IPv4
	if k.Rules.IPv6 {
		family = dataplane.IPv6
	}
	read := k.kubeProxy
	if k.Program == dataplane.ServiceProxy {
		read = k.serviceProxy
	}
	set, err := read()
	if err != nil {
		return dataplane.Table{}, err
	}
	if k.Untracked {
		delete(set.Hooks, rules.Postrouting)
	}
	set.Addresses = map[netip.Addr]bool{}
	for _, addr := range slices.Concat(k.Device, k.Node) {
		set.Addresses[addr] = true
	}
	k.servers(set)
	slices.Sort(set.Unknown)
	return rules.Table(set, dataplane.IPVS, family), nil
}

// taken is the priority in the hook output at which IPVS takes packets: linux/net/netfilter/ipvs/ip_vs_core.c. In the
// hook input it is after all filters.
const taken = -98

// serviceProxy has the rules of OwnTable.
func (k *Kernel) serviceProxy() (*rules.Ruleset, error) {
	set := k.Rules.Ruleset(func(_, chain string) string { return chain })
	output := set.Hooks[rules.Output]
	set.Hooks[rules.Output] = nil
	for _, name := range output {
		hook := rules.Output
		if slices.ContainsFunc(k.Rules.Chains, func(c netfilter.Chain) bool { return c.Name == name && c.Priority > taken }) {
			hook = rules.Sent
		}
		set.Hooks[hook] = append(set.Hooks[hook], name)
	}
	nftables.Prepare(set)
	keys := set.Keys
	set.Keys = map[dataplane.Key]bool{}
	for key := range keys { // those of the maps: what is dropped has no virtual server
		k.add(set, key, true)
	}
	return set, nil
}

// add adds what is served at an address and port to the set's keys. At an address of the node, it may be a node port.
func (k *Kernel) add(set *rules.Ruleset, key dataplane.Key, nodePort bool) {
	if nodePort && slices.Contains(k.Node, key.Address) {
		if !slices.Contains(set.NodePortAddresses, key.Address) {
			set.NodePortAddresses = append(set.NodePortAddresses, key.Address)
		}
		key.Address = netip.Addr{}
	}
	set.Keys[key] = true
}

// kubeProxy has the rules of kube-proxy.
func (k *Kernel) kubeProxy() (*rules.Ruleset, error) {
	set := k.Rules.Ruleset(iptables.Qualified)
	if len(k.Legacy) > 0 {
		var err error
		if set, err = netfilter.Legacy(k.Rules, iptables.Qualified, k.Legacy...); err != nil {
			return nil, err
		}
	}
	set.Hooks = map[rules.Hook][]string{}
	for hook, chains := range hooks {
		set.Hooks[hook] = chains
	}
	iptables.Only(set, iptables.Prefix)
	for name, chain := range set.Chains {
		for i := range chain {
			r := &chain[i]
			for j := range r.Conds {
				// Connections to a cluster IP that do not come from a pod of the node are masqueraded.
				c := &r.Conds[j]
				c.Pods = name == iptables.Qualified("nat", iptables.Prefix+"SERVICES") && c.Not &&
					(c.Field == rules.Source || c.Field == rules.Interface)
			}
			if r.Text != "" {
				set.Unknown = append(set.Unknown, r.Text)
			}
		}
	}
	return set, nil
}

// Kinds of virtual servers that choose one of all destinations that have a weight: linux/net/netfilter/ipvs, ip_vs_*.c.
// The others prefer one as long as it can take connections.
var schedulers = []string{"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "mh", "twos"}

// Flags of virtual servers that are the scheduler's own, such as whether the hash of a client has its port.
const schedulerFlags = 0x38

// servers adds the virtual servers to a set.
func (k *Kernel) servers(set *rules.Ruleset) {
	set.Servers, set.Marks = map[dataplane.Key]*rules.Server{}, map[uint32]string{}
	named := k.named()
	for i := range k.Servers {
		s := &k.Servers[i]
		unknown := func(format string, args ...any) string {
			text := fmt.Sprintf("virtual server %s: %s", s, fmt.Sprintf(format, args...))
			set.Unknown = append(set.Unknown, text)
			return text
		}
		if s.Mark != 0 {
			set.Marks[s.Mark] = unknown("it takes packets by their mark")
			continue
		}
		server := &rules.Server{AffinitySeconds: int32(min(s.AffinitySeconds, 1<<31-1))}
		if what := s.strange(); what != "" {
			server.Text = unknown("%s", what)
		}
		for _, d := range s.Destinations {
			if d.Weight > 0 { // others keep the connections that they have
				server.Endpoints = append(server.Endpoints, d.Address)
			}
		}
		key := dataplane.Key{Address: s.Address, Protocol: s.Protocol, Port: s.Port}
		set.Servers[key] = server
		if s.Port == 0 {
			set.Incomplete = true // it takes packets to ports that have no virtual server
			unknown("it takes packets to all ports")
			continue
		}
		k.add(set, key, !named[key])
	}
	slices.SortFunc(set.NodePortAddresses, netip.Addr.Compare)
}

// strange says what of a virtual server is not understood; empty: nothing.
func (s *VirtualServer) strange() string {
	switch {
	case !slices.Contains(schedulers, s.Scheduler):
		return fmt.Sprintf("scheduler %q", s.Scheduler)
	case s.Flags&^schedulerFlags != 0:
		return fmt.Sprintf("flags 0x%x", s.Flags)
	case s.ClientBits != 0:
		return fmt.Sprintf("clients of a prefix of length %d share an endpoint", s.ClientBits)
	}
	for _, d := range s.Destinations {
		if d.Method != 0 {
			return fmt.Sprintf("method %d to %s", d.Method, d.Address)
		}
	}
	return ""
}

// serviceSets are those of kube-proxy that have addresses and ports of Services, without what their names begin with.
var serviceSets = []string{"CLUSTER-IP", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL", "LOAD-BALANCER"}

// named has what is an address of a Service by kube-proxy's sets. A virtual server at an address of the node that is
// not among them is a node port's.
func (k *Kernel) named() map[dataplane.Key]bool {
	named := map[dataplane.Key]bool{}
	for _, set := range k.Rules.IPSets {
		name := strings.TrimPrefix(strings.TrimPrefix(set.Name, iptables.Prefix), "6-")
		if !slices.Contains(serviceSets, name) {
			continue
		}
		for _, e := range set.Entries {
			named[dataplane.Key{Address: e.Address.Addr(), Protocol: e.Protocol, Port: e.Port}] = true
		}
	}
	return named
}
