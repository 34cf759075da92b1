// SPDX-License-Identifier: Apache-2.0

package dns

import (
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// rules are those of a dns check, in the order in which their problems are reported.
func rules() []kind.Rule {
	return append([]kind.Rule{
		kind.RuleOf("durations", func(s *Spec, r kind.Reporter) {
			servicecheck.Durations(s.Probe, s.Expect.Latency, s.Limits, s.Timeouts, r)
		}),
		kind.RuleOf("namespace-twice", func(s *Spec, r kind.Reporter) { s.Services.NamespaceTwice(r) }),
		kind.RuleOf("servers", func(s *Spec, r kind.Reporter) {
			kind.AtLeastOne(s.Servers, "server", "Resolver, Endpoints", r, "servers")
		}),
		kind.RuleOf("transports", func(s *Spec, r kind.Reporter) {
			kind.AtLeastOne(s.Transports, "transport", "UDP, TCP", r, "transports")
		}),
		kind.RuleOf("names", names),
		kind.RuleOf("latency-order", func(s *Spec, r kind.Reporter) { kind.LatencyOrder(s.Expect.Latency, r) }),
		kind.RuleOf("loss-all", func(s *Spec, r kind.Reporter) { kind.LossAll(s.Expect.Loss, r) }),
		kind.RuleOf("probe-timeout", probeTimeout),
	}, kind.KubernetesRules(parts)...)
}

// parts are the fields to which Kubernetes' own rules apply.
func parts(s *Spec) kind.Parts {
	p := kind.Parts{
		Placements:       []kind.Part[checkup.Placement]{kind.At(s.Placement, "placement")},
		Resources:        []kind.Part[checkup.Resources]{kind.At(s.Resources, "resources")},
		NeededNamespaces: []kind.Part[string]{kind.At(s.DNSService.Namespace, "dnsService", "namespace")},
	}
	s.Services.Parts(&p)
	return p
}

// names checks that names can be asked for: the cluster's domain, the DNS Service's name, and the external ones.
func names(s *Spec, report kind.Reporter) {
	for _, problem := range utilvalidation.IsDNS1123Subdomain(s.Domain) {
		report([]string{"domain"}, "%q: %s", s.Domain, problem)
	}
	kind.DNSLabel(s.DNSService.Name, []string{"dnsService", "name"}, report)
	kind.Duplicates(s.ExternalNames, report, "externalNames")
	for i, name := range s.ExternalNames {
		if !askable(name) {
			report([]string{"externalNames", kind.Index(i)}, "%q is not a DNS name", name)
		}
	}
}

// probeTimeout compares the timeout with the time that one pair takes if its last question is not answered, twice.
func probeTimeout(s *Spec, report kind.Reporter) {
	p := s.Probe
	if s.Timeouts.Probe <= 0 || p.Count < 1 || p.Interval <= 0 || p.Interval > checkup.MaxTimeout ||
		p.Timeout <= 0 || p.Timeout > checkup.MaxTimeout {
		return
	}
	need := checkup.Duration(min(p.Count, checkup.MaxCount)-1)*p.Interval + 2*p.Timeout
	if have := s.Timeouts.Probe / 4 * 3; need > have {
		report([]string{"timeouts", "probe"}, "agents have three quarters of it, %s: less than the %s that a pair takes "+
			"if its last question is not answered, twice", have, need)
	}
}
