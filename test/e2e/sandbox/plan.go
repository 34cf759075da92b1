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

// The largest numbers of nodes: the pods' IPv4 range is a /17 with a /24 for each
// node. Three etcd members outlive the loss of one; more would show nothing new.
const (
	maxWorkers       = 100
	maxControlPlanes = 3
)

// firstControlPlane is the name of the first control plane.
const firstControlPlane = "control-plane"

// plan is who is in the cluster and under which addresses: a pure function of
// the flags of `up`, written to the state file so that every other command
// works on what was made, not on what it would make.
type plan struct {
	// Family is "dual" (IPv4 first), "ipv4" or "ipv6".
	Family string `json:"family"`
	// Nodes holds the control planes first, then the workers, both in order.
	Nodes []nodePlan `json:"nodes"`
	// NodeNets, PodNets and ServiceNets hold one range for each address family,
	// the primary family first.
	NodeNets    []netip.Prefix `json:"nodeNets"`
	PodNets     []netip.Prefix `json:"podNets"`
	ServiceNets []netip.Prefix `json:"serviceNets"`
}

// nodePlan is one node. IPs and PodCIDRs are in the order of the plan's families.
type nodePlan struct {
	Name         string         `json:"name"`
	ControlPlane bool           `json:"controlPlane,omitempty"`
	Zone         string         `json:"zone,omitempty"` // empty on control planes
	IPs          []netip.Addr   `json:"nodeIPs"`
	PodCIDRs     []netip.Prefix `json:"podCIDRs"`
}

// family holds the ranges of one address family. All come from 198.18.0.0/15
// (RFC 2544) and 2001:2::/48 (RFC 5180), which are reserved for tests of
// network devices and so are nobody's real addresses.
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

// The API server takes at most 20 bits of IPv6 services, hence the /112.
func ipv6Family() family {
	return family{
		nodes:    netip.MustParsePrefix("2001:2::/64"),
		pods:     netip.MustParsePrefix("2001:2:0:100::/56"),
		services: netip.MustParsePrefix("2001:2:0:f000::/112"),
		podBits:  64,
	}
}

// newPlan makes the plan of so many control planes and workers, these spread in
// turn over zone-a, zone-b and so on. The first workers get these names, the others
// worker-N. It reports every bad value.
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
	// The n-th node's addresses: the first control plane has n 0, worker-n has n,
	// and further control planes come after the last worker that there could be,
	// so that workers keep their addresses whatever the number of control planes.
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

// checkNodeName says what is wrong with the name of a node beside others. It is
// the name of a link in the networks between the nodes too.
func checkNodeName(name string, others []nodePlan) error {
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 || len(name) >= unix.IFNAMSIZ {
		return fmt.Errorf("%q is not the name of a node: must be of lower case letters, digits and '-', at most %d", name, unix.IFNAMSIZ-1)
	}
	taken := []string{"br0", "lo", fabric, balancerName}
	for _, network := range l2Networks() {
		taken = append(taken, network.name, l2Fabric(network.name))
	}
	if slices.Contains(taken, name) || strings.HasPrefix(name, firstControlPlane) {
		return fmt.Errorf("%q is the name of something else in the sandbox", name)
	}
	if slices.ContainsFunc(others, func(n nodePlan) bool { return n.Name == name }) {
		return fmt.Errorf("two nodes are named %s", name)
	}
	return nil
}

// controlPlanes are the nodes with an etcd member and an API server each. The
// first has the controller manager and the scheduler too.
func (p plan) controlPlanes() []nodePlan {
	var found []nodePlan
	for _, n := range p.Nodes {
		if n.ControlPlane {
			found = append(found, n)
		}
	}
	return found
}

// names are those of the nodes.
func (p plan) names() []string {
	var names []string
	for _, n := range p.Nodes {
		names = append(names, n.Name)
	}
	return names
}

// balancerIPs are the addresses, in the nodes' ranges, at which a balancer leads
// to whichever API server answers.
func (p plan) balancerIPs() []netip.Addr { return eachNth(p.NodeNets, 2) }

// controlPlaneEndpoint is the API server for everything in the cluster, as
// kubeadm's controlPlaneEndpoint: host and port.
func (p plan) controlPlaneEndpoint() string {
	return netip.AddrPortFrom(p.balancerIPs()[0], apiServerPort).String()
}

// apiServiceIPs are the addresses of the service kubernetes.default: by
// Kubernetes' rule the first of each service range.
func (p plan) apiServiceIPs() []netip.Addr { return eachNth(p.ServiceNets, 1) }

// dnsServiceIPs are the addresses of the cluster's DNS service: by custom the tenth.
func (p plan) dnsServiceIPs() []netip.Addr { return eachNth(p.ServiceNets, 10) }

func eachNth(nets []netip.Prefix, n int) []netip.Addr {
	var addrs []netip.Addr
	for _, p := range nets {
		addrs = append(addrs, nth(p, n))
	}
	return addrs
}

// nth is the n-th address of p, n at most 255; the 0th is the network's own.
func nth(p netip.Prefix, n int) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	b[len(b)-1] += byte(n)
	a, _ := netip.AddrFromSlice(b) // the slice has the length of an address
	return a
}

// subnet is the n-th subnet of p with the given prefix length, a multiple of 8;
// n at most 255 and within p.
func subnet(p netip.Prefix, bits, n int) netip.Prefix {
	b := p.Masked().Addr().AsSlice()
	b[bits/8-1] += byte(n)
	a, _ := netip.AddrFromSlice(b) // the slice has the length of an address
	return netip.PrefixFrom(a, bits)
}

// joined writes values as the comma-separated list that Kubernetes' flags take.
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
