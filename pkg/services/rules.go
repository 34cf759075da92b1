// SPDX-License-Identifier: Apache-2.0

package services

import (
	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// rules are those of a services check, in the order in which their problems are reported.
func rules() []kind.Rule {
	return append([]kind.Rule{
		kind.RuleOf("durations", func(s *Spec, r kind.Reporter) {
			servicecheck.Durations(s.Probe, s.Expect.Latency, s.Limits, s.Timeouts, r)
		}),
		kind.RuleOf("families-twice", func(s *Spec, r kind.Reporter) { kind.FamiliesTwice(s.IPFamilies, r) }),
		kind.RuleOf("namespace-twice", func(s *Spec, r kind.Reporter) { s.Services.NamespaceTwice(r) }),
		kind.RuleOf("addresses", addresses),
		kind.RuleOf("latency-order", func(s *Spec, r kind.Reporter) { kind.LatencyOrder(s.Expect.Latency, r) }),
		kind.RuleOf("loss-all", func(s *Spec, r kind.Reporter) { kind.LossAll(s.Expect.Loss, r) }),
		kind.RuleOf("probe-timeout", func(s *Spec, r kind.Reporter) { servicecheck.ProbeTimeout(s.Probe, s.Timeouts, r) }),
	}, kind.KubernetesRules(parts)...)
}

// parts are the fields to which Kubernetes' own rules apply.
func parts(s *Spec) kind.Parts {
	p := kind.Parts{
		Placements: []kind.Part[checkup.Placement]{kind.At(s.Placement, "placement")},
		Resources:  []kind.Part[checkup.Resources]{kind.At(s.Resources, "resources")},
	}
	s.Services.Parts(&p)
	return p
}

func addresses(s *Spec, report kind.Reporter) {
	kind.AtLeastOne(s.Addresses, "address", "ClusterIP, NodePort, ExternalIP", report, "addresses")
}
