// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// Port of DNS servers (RFC 1035, section 4.2).
const Port = 53

// ResolverName is the name of the pods' resolver among the servers.
const ResolverName = "resolver"

// server is one that is asked over one transport.
type server struct {
	// name is ResolverName or the address; host and family are empty for the resolver.
	name, host string
	port       int
	family     checkup.IPFamily
	transport  Transport
}

// serversOf lists the servers of a check: of Endpoints, each ready one of the DNS Service, at the ports behind its port
// 53. It fails if there is no server at all.
func serversOf(spec *Spec, s *cluster.Snapshot) (all []server, warnings []string, err error) {
	if slices.Contains(spec.Servers, Resolver) {
		for _, t := range spec.Transports {
			all = append(all, server{name: ResolverName, port: Port, transport: t})
		}
	}
	if !slices.Contains(spec.Servers, Endpoints) {
		return all, nil, nil
	}
	service := dnsService(spec, s)
	if service == nil {
		return nil, nil, fmt.Errorf("there is no Service %s: name the cluster's DNS Service in dnsService, "+
			"or leave Endpoints out of servers", spec.DNSService)
	}
	ready := readyEndpoints(s.EndpointSlices)[spec.DNSService.String()]
	if len(ready) == 0 {
		warnings = append(warnings, fmt.Sprintf("the DNS Service %s has no ready endpoint", spec.DNSService))
	}
	for _, t := range spec.Transports {
		protocol, found := corev1.Protocol(t), false
		for _, p := range service.Spec.Ports {
			if p.Port != Port || cmp.Or(p.Protocol, corev1.ProtocolTCP) != protocol {
				continue
			}
			found = true
			for _, e := range ready {
				for _, of := range e.ports {
					if of.Port == nil || of.Protocol == nil || *of.Protocol != protocol || of.Name != nil && *of.Name != p.Name {
						continue
					}
					family := checkup.IPv4
					if e.address.Is6() {
						family = checkup.IPv6
					}
					all = append(all, server{e.address.String(), e.address.String(), int(*of.Port), family, t})
				}
			}
		}
		if !found {
			warnings = append(warnings, fmt.Sprintf("the DNS Service %s has no port %d of %s: its endpoints are not asked over it",
				spec.DNSService, Port, t))
		}
	}
	slices.SortFunc(all, func(a, b server) int {
		return cmp.Or(cmp.Compare(a.family, b.family), cmp.Compare(a.name, b.name), cmp.Compare(a.transport, b.transport))
	})
	all = slices.Compact(all)
	if len(all) == 0 {
		return nil, nil, fmt.Errorf("no DNS server: the DNS Service %s has no ready endpoint at its port %d",
			spec.DNSService, Port)
	}
	return all, warnings, nil
}

// dnsService finds the DNS Service; nil if there is none.
func dnsService(spec *Spec, s *cluster.Snapshot) *corev1.Service {
	for i := range s.ServiceObjects {
		if o := &s.ServiceObjects[i]; o.Namespace == spec.DNSService.Namespace && o.Name == spec.DNSService.Name {
			return o
		}
	}
	return nil
}

// families whose control pairs agents measure: those of the servers' addresses. For the resolver, whose address is not
// known, it is the first family of the DNS Service, or IPv4 without one.
func families(servers []server, service *corev1.Service) []checkup.IPFamily {
	var all []checkup.IPFamily
	for _, f := range checkup.IPFamilies {
		if slices.ContainsFunc(servers, func(s server) bool { return s.family == f }) {
			all = append(all, f)
		}
	}
	switch {
	case len(all) > 0:
		return all
	case service != nil && len(service.Spec.IPFamilies) > 0:
		return []checkup.IPFamily{checkup.IPFamily(service.Spec.IPFamilies[0])}
	}
	return []checkup.IPFamily{checkup.IPv4}
}
