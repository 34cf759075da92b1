// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/dataplane"
)

// Node is what decides on rules beside the state.
type Node struct {
	// Addresses are those of the node's interfaces, sorted.
	Addresses []netip.Addr
	Pods      Pods
	// MasqueradeAll rewrites the source of all connections to cluster IPs.
	MasqueradeAll bool
}

// Pods is how packets of pods are recognised. If they are not, they are as if from outside the cluster, and connections
// to cluster IPs keep their source.
type Pods struct {
	// Prefixes have the addresses of pods: one of a family, at most.
	Prefixes []netip.Prefix
	// Interface is the name of the interface from which packets of pods come; with * at its end, of all whose names begin
	// so. Empty: Prefixes count.
	Interface string
}

// device is a name of network devices in which nothing has a meaning to nft or iptables, and the star.
var device = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,15}$|^[A-Za-z0-9_.-]{1,14}\*$`)

// ParsePods reads what a person wrote.
func ParsePods(prefixes []string, iface string) (Pods, error) {
	p := Pods{Interface: iface}
	if iface != "" && (len(prefixes) > 0 || !device.MatchString(iface) || strings.HasPrefix(iface, "-")) {
		return p, fmt.Errorf("interface of pods %q: want a name, or the beginning of names and *, and no prefixes", iface)
	}
	for _, text := range prefixes {
		prefix, err := netip.ParsePrefix(text)
		if err != nil || prefix.Addr().Is4In6() {
			return p, fmt.Errorf("prefix of pods %q: want one like 10.244.0.0/16", text)
		}
		if slices.ContainsFunc(p.Prefixes, func(q netip.Prefix) bool { return q.Addr().Is4() == prefix.Addr().Is4() }) {
			return p, fmt.Errorf("prefix of pods %q: a second one of this family", text)
		}
		p.Prefixes = append(p.Prefixes, prefix.Masked())
	}
	return p, nil
}

// Prefix returns the one of a family.
func (p Pods) Prefix(family dataplane.Family) (netip.Prefix, bool) {
	for _, prefix := range p.Prefixes {
		if prefix.Addr().Is4() == (family == dataplane.IPv4) {
			return prefix, true
		}
	}
	return netip.Prefix{}, false
}

// Addresses returns those of the interfaces of the network that the process is in, without those of a proxy's own
// interface (Device), which are not the node's.
func Addresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	served := map[string]bool{}
	for _, name := range []string{dataplane.UserspaceDevice, dataplane.IPVSDevice} {
		device, err := net.InterfaceByName(name)
		if err != nil {
			continue
		}
		own, err := device.Addrs()
		if err != nil {
			return nil, fmt.Errorf("list the addresses of interface %s: %w", name, err)
		}
		for _, a := range own {
			served[a.String()] = true
		}
	}
	var all []netip.Addr
	for _, a := range list {
		if served[a.String()] {
			continue
		}
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			all = append(all, p.Addr().WithZone(""))
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all), nil
}
