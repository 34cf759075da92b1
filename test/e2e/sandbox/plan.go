// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Limits for the number of nodes. The pods' IPv4 range is a /17 with a /24 for each node. Three
// etcd members survive the loss of one; more would test nothing new.
const (
	maxWorkers       = 100
	maxControlPlanes = 3
)

// firstControlPlane is the name of the first control plane.
const firstControlPlane = "control-plane"

// plan lists the nodes and addresses of a cluster. It is a pure function of the flags of `up`. The
// state file stores it: every other command uses the plan of the existing cluster.
type plan struct {
	// Family is "dual" (IPv4 first), "ipv4" or "ipv6".
	Family string `json:"family"`
	// Nodes lists the control planes first, then the workers, both in order.
	Nodes []nodePlan `json:"nodes"`
	// NodeNets, PodNets and ServiceNets contain one range for each IP family, the primary family
	// first.
	NodeNets    []netip.Prefix `json:"nodeNets"`
	PodNets     []netip.Prefix `json:"podNets"`
	ServiceNets []netip.Prefix `json:"serviceNets"`
}

// nodePlan is one node. IPs and PodCIDRs have the order of the plan's IP families.
type nodePlan struct {
	Name         string         `json:"name"`
	ControlPlane bool           `json:"controlPlane,omitempty"`
	Zone         string         `json:"zone,omitempty"` // empty on control planes
	IPs          []netip.Addr   `json:"nodeIPs"`
	PodCIDRs     []netip.Prefix `json:"podCIDRs"`
}

// family has the ranges of one IP family. All are from 198.18.0.0/15 (RFC 2544) and 2001:2::/48
// (RFC 5180), which are reserved for tests of network devices: no real host has such an address.
type family struct {
	nodes, pods, services netip.Prefix
	podBits               int
}

func ipv4Family() family {
	return family{
		nodes:    netip.MustParsePrefix("198.18.0.0/24"),
		pods:     netip.MustParsePrefix("198.18.128.0/17"),
		services: netip.MustParsePrefix("198.19.0.0/16"),
		podBits:  24,
	}
}

// The API server accepts at most 20 bits of IPv6 Service addresses; a /112 has 16.
func ipv6Family() family {
	return family{
		nodes:    netip.MustParsePrefix("2001:2::/64"),
		pods:     netip.MustParsePrefix("2001:2:0:100::/56"),
		services: netip.MustParsePrefix("2001:2:0:f000::/112"),
		podBits:  64,
	}
}

// newPlan returns a plan with this number of control planes, workers and zones. Workers are in
// zone-a, zone-b and so on, round robin. workerNames are the names of the first workers; the others
// are worker-N. The error lists every bad value.
func newPlan(controlPlanes, workers, zones int, ipFamily string, workerNames ...string) (plan, error) {
	var errs []error
	if controlPlanes < 1 || controlPlanes > maxControlPlanes {
		errs = append(errs, fmt.Errorf("--control-planes is %d: must be from 1 to %d", controlPlanes, maxControlPlanes))
	}
	if workers < 1 || workers > maxWorkers {
		errs = append(errs, fmt.Errorf("--nodes is %d: must be from 1 to %d", workers, maxWorkers))
	}
	if len(workerNames) > workers {
		errs = append(errs, fmt.Errorf("--worker-names has %d names for %d workers", len(workerNames), workers))
	}
	if zones < 1 || zones > 26 {
		errs = append(errs, fmt.Errorf("--zones is %d: must be from 1 to 26", zones))
	}
	var families []family
	switch ipFamily {
	case "dual":
		families = []family{ipv4Family(), ipv6Family()}
	case "ipv4":
		families = []family{ipv4Family()}
	case "ipv6":
		families = []family{ipv6Family()}
	default:
		errs = append(errs, fmt.Errorf("--ip-family is %q: must be dual, ipv4 or ipv6", ipFamily))
	}
	if err := errors.Join(errs...); err != nil {
		return plan{}, err
	}

	p := plan{Family: ipFamily}
	for _, f := range families {
		p.NodeNets = append(p.NodeNets, f.nodes)
		p.PodNets = append(p.PodNets, f.pods)
		p.ServiceNets = append(p.ServiceNets, f.services)
	}
	// add gives a node the n-th addresses. The first control plane has n = 0, worker-N has n = N.
	// Other control planes come after the last possible worker: so the addresses of workers do not
	// depend on the number of control planes.
	add := func(node nodePlan, n int) {
		for _, f := range families {
			node.IPs = append(node.IPs, nth(f.nodes, 10+n))
			node.PodCIDRs = append(node.PodCIDRs, subnet(f.pods, f.podBits, n))
		}
		p.Nodes = append(p.Nodes, node)
	}
	add(nodePlan{Name: firstControlPlane, ControlPlane: true}, 0)
	for i := 2; i <= controlPlanes; i++ {
		add(nodePlan{Name: fmt.Sprintf("%s-%d", firstControlPlane, i), ControlPlane: true}, maxWorkers+i-1)
	}
	for i := 1; i <= workers; i++ {
		name := fmt.Sprintf("worker-%d", i)
		if i <= len(workerNames) {
			name = workerNames[i-1]
		}
		if err := checkNodeName(name, p.Nodes); err != nil {
			errs = append(errs, fmt.Errorf("--worker-names: %w", err))
		}
		add(nodePlan{Name: name, Zone: fmt.Sprintf("zone-%c", 'a'+(i-1)%zones)}, i)
	}
	if err := errors.Join(errs...); err != nil {
		return plan{}, err
	}
	return p, nil
}

// checkNodeName returns the problem of a node name, given the other nodes. The name is also the
// name of a link in the networks between nodes.
func checkNodeName(name string, others []nodePlan) error {
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 || len(name) >= unix.IFNAMSIZ {
		return fmt.Errorf("%q is not a node name: must consist of lower case letters, digits and '-', at most %d",
			name, unix.IFNAMSIZ-1)
	}
	taken := []string{"br0", "lo", fabric, balancerName}
	for _, network := range l2Networks() {
		taken = append(taken, network.name, l2Fabric(network.name))
	}
	if slices.Contains(taken, name) || strings.HasPrefix(name, firstControlPlane) {
		return fmt.Errorf("%q is a reserved name in the sandbox: choose another", name)
	}
	if slices.ContainsFunc(others, func(n nodePlan) bool { return n.Name == name }) {
		return fmt.Errorf("two nodes are named %s", name)
	}
	return nil
}

// controlPlanes returns the nodes with an etcd member and an API server each. The first one also
// runs the controller manager and the scheduler.
func (p plan) controlPlanes() []nodePlan {
	var found []nodePlan
	for _, n := range p.Nodes {
		if n.ControlPlane {
			found = append(found, n)
		}
	}
	return found
}

// names returns the names of the nodes.
func (p plan) names() []string {
	var names []string
	for _, n := range p.Nodes {
		names = append(names, n.Name)
	}
	return names
}

// balancerIPs returns the addresses, in the nodes' ranges, of the balancer in front of the API
// servers.
func (p plan) balancerIPs() []netip.Addr { return eachNth(p.NodeNets, 2) }

// controlPlaneEndpoint returns host and port of the API server for everything in the cluster, like
// kubeadm's controlPlaneEndpoint.
func (p plan) controlPlaneEndpoint() string {
	return netip.AddrPortFrom(p.balancerIPs()[0], apiServerPort).String()
}

// apiServiceIPs returns the addresses of the Service kubernetes in namespace default: always the
// first of each service range.
func (p plan) apiServiceIPs() []netip.Addr { return eachNth(p.ServiceNets, 1) }

// dnsServiceIPs returns the addresses of the DNS Service: by convention the tenth.
func (p plan) dnsServiceIPs() []netip.Addr { return eachNth(p.ServiceNets, 10) }

func eachNth(nets []netip.Prefix, n int) []netip.Addr {
	var addrs []netip.Addr
	for _, p := range nets {
		addrs = append(addrs, nth(p, n))
	}
	return addrs
}

// nth returns the n-th address of p, n at most 255; 0 is the network's own.
func nth(p netip.Prefix, n int) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	b[len(b)-1] += byte(n)
	a, _ := netip.AddrFromSlice(b) // the slice has the length of an address
	return a
}

// subnet returns the n-th subnet of p with a prefix length that is a multiple of 8. n is at most
// 255 and within p.
func subnet(p netip.Prefix, bits, n int) netip.Prefix {
	b := p.Masked().Addr().AsSlice()
	b[bits/8-1] += byte(n)
	a, _ := netip.AddrFromSlice(b) // the slice has the length of an address
	return netip.PrefixFrom(a, bits)
}

// joined joins values with commas, as the flags of Kubernetes expect.
func joined[T fmt.Stringer](values []T) string {
	s := ""
	for i, v := range values {
		if i > 0 {
			s += ","
		}
		s += v.String()
	}
	return s
}
