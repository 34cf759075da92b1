// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// noService is the name of a Service that is expected not to exist.
const noService = "checkplan-no-such-service"

// question is one that every server is asked.
type question struct {
	// label names the question in reports; service is namespace/name of the Service that it is about, empty for others.
	label, service string
	// absolute is the name with its final dot; relative the one that a pod would use, if that finds the same.
	absolute, relative string
	kind               string
	answer             checkup.DNSAnswer
	records            []string
}

// endpoint is a ready endpoint of a Service.
type endpoint struct {
	address  netip.Addr
	hostname string
	ports    []discoveryv1.EndpointPort
}

// readyEndpoints returns the ready endpoints of each Service, by namespace/name. An unknown condition is ready, as the
// API says (EndpointConditions.Ready); publishNotReadyAddresses makes the controller set it.
func readyEndpoints(slicesOf []discoveryv1.EndpointSlice) map[string][]endpoint {
	all := map[string][]endpoint{}
	for i := range slicesOf {
		slice := &slicesOf[i]
		service := slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			hostname := ""
			if e.Hostname != nil {
				hostname = *e.Hostname
			}
			for _, a := range e.Addresses {
				// Of the type FQDN they are no addresses, and DNS has no record of them.
				if address, err := netip.ParseAddr(a); err == nil {
					all[service] = append(all[service], endpoint{address, hostname, slice.Ports})
				}
			}
		}
	}
	return all
}

// questionsOf lists the questions of a check in a fixed order, and says which are left out.
func questionsOf(spec *Spec, s *cluster.Snapshot) (all []question, warnings []string) {
	ready := readyEndpoints(s.EndpointSlices)
	zone := "svc." + strings.TrimSuffix(spec.Domain, ".") + "."
	var large, odd []string
	for i := range s.ServiceObjects {
		service := &s.ServiceObjects[i]
		name := service.Namespace + "/" + service.Name
		of := ofService(service, ready[name], zone)
		if service.Spec.Type == corev1.ServiceTypeExternalName && len(of) == 0 {
			odd = append(odd, name)
		}
		for _, q := range of {
			if len(q.records) > checkup.MaxRecords {
				large = append(large, q.label)
				continue
			}
			all = append(all, q)
		}
	}
	if len(large) > 0 {
		warnings = append(warnings, fmt.Sprintf("%s with more than %d records are not asked: %s",
			checkup.Count(len(large), "question"), checkup.MaxRecords, checkup.Some(large)))
	}
	if len(odd) > 0 {
		warnings = append(warnings, fmt.Sprintf("%s without a question, because externalName is no DNS name: %s",
			checkup.Count(len(odd), "Service"), checkup.Some(odd)))
	}
	namespace := "default"
	if len(spec.Services.Namespaces) > 0 {
		namespace = spec.Services.Namespaces[0]
	}
	all = append(all, question{
		label: "A " + noService + "." + namespace, kind: "A", answer: checkup.AnswerNoName,
		absolute: noService + "." + namespace + "." + zone,
	})
	for _, name := range spec.ExternalNames {
		all = append(all, question{
			label: "A " + name, kind: "A", answer: checkup.AnswerAny,
			absolute: strings.TrimSuffix(name, ".") + ".", relative: name,
		})
	}
	slices.SortFunc(all, func(a, b question) int { return cmp.Compare(a.label, b.label) })
	return slices.CompactFunc(all, func(a, b question) bool { return a.label == b.label }), warnings
}

// ofService lists the questions about one Service, whose ready endpoints are given.
func ofService(service *corev1.Service, ready []endpoint, zone string) []question {
	name := service.Namespace + "/" + service.Name
	relative := service.Name + "." + service.Namespace + ".svc"
	absolute := service.Name + "." + service.Namespace + "." + zone
	ask := func(kind, prefix string, answer checkup.DNSAnswer, records []string) question {
		slices.Sort(records)
		q := question{
			label: kind + " " + name, service: name, kind: kind, answer: answer, records: records,
			absolute: prefix + absolute, relative: prefix + relative,
		}
		if prefix != "" {
			q.label = kind + " " + strings.TrimSuffix(prefix, ".") + " " + name
		}
		if answer == checkup.AnswerNone {
			q.relative = "" // servers may answer NXDOMAIN, after which a resolver asks for names outside the cluster
		}
		return q
	}
	var all []question
	switch {
	case service.Spec.Type == corev1.ServiceTypeExternalName: // section 2.5
		target := strings.ToLower(strings.TrimSuffix(service.Spec.ExternalName, "."))
		if _, err := netip.ParseAddr(target); err == nil || !askable(target) {
			return nil
		}
		return []question{ask("CNAME", "", checkup.AnswerRecords, []string{target + "."})}
	case service.Spec.ClusterIP == corev1.ClusterIPNone:
		addresses := map[string][]string{} // sections 2.4.1
		for _, e := range ready {
			kind := kindOf(e.address)
			addresses[kind] = append(addresses[kind], e.address.String())
		}
		for _, kind := range []string{"A", "AAAA"} {
			all = append(all, ask(kind, "", answerOf(addresses[kind], ready), compact(addresses[kind])))
		}
		for _, prefix := range ports(service) {
			records := headlessSRV(prefix, ready, absolute)
			answer := checkup.AnswerRecords
			if len(records) == 0 { // no name either, of a port that no endpoint has
				answer = checkup.AnswerNone
			}
			all = append(all, ask("SRV", prefix.String(), answer, records))
		}
	case service.Spec.ClusterIP != "": // section 2.3; an empty one is not allocated yet
		addresses := map[string][]string{}
		for _, ip := range clusterIPs(service) {
			if address, err := netip.ParseAddr(ip); err == nil {
				addresses[kindOf(address)] = append(addresses[kindOf(address)], address.String())
			}
		}
		for _, kind := range []string{"A", "AAAA"} {
			answer := checkup.AnswerRecords
			if len(addresses[kind]) == 0 {
				answer = checkup.AnswerNoData
			}
			all = append(all, ask(kind, "", answer, addresses[kind]))
		}
		for _, p := range ports(service) {
			all = append(all, ask("SRV", p.String(), checkup.AnswerRecords, []string{fmt.Sprintf("%d %s", p.number, absolute)}))
		}
	}
	return all
}

// answerOf is the kind of answer to a question about the addresses of a headless Service. Without any ready endpoint
// the answer "should be NXDOMAIN" (section 2.4.1), and may be without data. With some, the name exists.
func answerOf(records []string, ready []endpoint) checkup.DNSAnswer {
	switch {
	case len(records) > 0:
		return checkup.AnswerRecords
	case len(ready) > 0:
		return checkup.AnswerNoData
	}
	return checkup.AnswerNone
}

// port is a named port of a Service. Ports without a name have no SRV record (sections 2.3.2 and 2.4.2).
type port struct {
	name     string
	protocol corev1.Protocol
	number   int32
}

// String is what its questions begin with: "_http._tcp.".
func (p port) String() string {
	return fmt.Sprintf("_%s._%s.", p.name, strings.ToLower(string(p.protocol)))
}

func ports(service *corev1.Service) []port {
	var all []port
	for _, p := range service.Spec.Ports {
		if p.Name != "" {
			all = append(all, port{p.Name, cmp.Or(p.Protocol, corev1.ProtocolTCP), p.Port})
		}
	}
	return all
}

// headlessSRV has one record for each endpoint and port (section 2.4.2), once if endpoints of both families have one
// hostname. The number is that of the endpoint's port: CoreDNS and kube-dns answer that, and nothing else is reached
// there. An endpoint without a hostname has a name of the server's choice.
func headlessSRV(p port, ready []endpoint, service string) []string {
	type name struct {
		port          int32
		host, address string
	}
	names := map[name]bool{}
	var records []string
	for _, e := range ready {
		for _, of := range e.ports {
			protocol := corev1.ProtocolTCP
			if of.Protocol != nil {
				protocol = *of.Protocol
			}
			if of.Name == nil || *of.Name != p.name || protocol != p.protocol || of.Port == nil {
				continue
			}
			n, host := name{port: *of.Port, host: strings.ToLower(e.hostname)}, strings.ToLower(e.hostname)
			if host == "" {
				n.address, host = e.address.String(), "*"
			}
			if !names[n] {
				names[n] = true
				records = append(records, fmt.Sprintf("%d %s.%s", *of.Port, host, service))
			}
		}
	}
	return records
}

// clusterIPs of a Service: an API server older than 1.20 has only one.
func clusterIPs(service *corev1.Service) []string {
	if len(service.Spec.ClusterIPs) > 0 {
		return service.Spec.ClusterIPs
	}
	return []string{service.Spec.ClusterIP}
}

// kindOf is the type of an address's records.
func kindOf(a netip.Addr) string {
	if a.Is4() {
		return "A"
	}
	return "AAAA"
}

// compact sorts a list and removes duplicates: two slices may have one address while a controller changes them.
func compact(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

// askable reports whether a name can be asked for, as agents demand it: labels of up to 63 letters, digits, hyphens and
// underscores, 253 bytes at most.
func askable(name string) bool {
	labels := strings.Split(strings.TrimSuffix(name, "."), ".")
	return len(name) <= 253 && !slices.ContainsFunc(labels, func(label string) bool {
		return label == "" || len(label) > 63 || strings.ContainsFunc(label, func(r rune) bool {
			return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
		})
	})
}
