// SPDX-License-Identifier: Apache-2.0

package services

import (
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
)

// rules are those of a services check, in the order in which their problems are reported.
func rules() []kind.Rule {
	return append([]kind.Rule{
		kind.RuleOf("durations", durations),
		kind.RuleOf("families-twice", func(s *Spec, r kind.Reporter) { kind.FamiliesTwice(s.IPFamilies, r) }),
		kind.RuleOf("namespace-twice", func(s *Spec, r kind.Reporter) { s.Services.NamespaceTwice(r) }),
		kind.RuleOf("addresses", addresses),
		kind.RuleOf("latency-order", func(s *Spec, r kind.Reporter) { kind.LatencyOrder(s.Expect.Latency, r) }),
		kind.RuleOf("loss-all", func(s *Spec, r kind.Reporter) { kind.LossAll(s.Expect.Loss, r) }),
		kind.RuleOf("probe-timeout", func(s *Spec, r kind.Reporter) { ProbeTimeout(s.Probe, s.Timeouts, r) }),
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

// Parts adds the fields of a selection, which is a check's field services.
func (s Selection) Parts(p *kind.Parts) {
	for i, namespace := range s.Namespaces {
		p.NeededNamespaces = append(p.NeededNamespaces, kind.At(namespace, "services", "namespaces", kind.Index(i)))
	}
	if !s.Selector.IsZero() {
		p.Selectors = append(p.Selectors, kind.At(s.Selector, "services", "selector"))
	}
}

func durations(s *Spec, report kind.Reporter) {
	kind.Duration(s.Probe.Interval, 1, report, "probe", "interval")
	kind.Duration(s.Probe.Timeout, 1, report, "probe", "timeout")
	kind.LatencyDurations(s.Expect.Latency, report)
	kind.Duration(s.Limits.StartJitter, 0, report, "limits", "startJitter")
	kind.Timeouts(s.Timeouts, report)
}

// NamespaceTwice reports namespaces that are duplicates.
func (s Selection) NamespaceTwice(report kind.Reporter) {
	for i, namespace := range s.Namespaces {
		if slices.Contains(s.Namespaces[:i], namespace) {
			report([]string{"services", "namespaces", kind.Index(i)}, "duplicate: %s", namespace)
		}
	}
}

func addresses(s *Spec, report kind.Reporter) {
	if len(s.Addresses) == 0 {
		report([]string{"addresses"}, "no address: want at least one of ClusterIP, NodePort, ExternalIP")
	}
	for i, a := range s.Addresses {
		if slices.Contains(s.Addresses[:i], a) {
			report([]string{"addresses", kind.Index(i)}, "duplicate: %s", a)
		}
	}
}

// ProbeTimeout compares the timeout with the time that one pair takes if its last connection is not answered.
func ProbeTimeout(p Probe, timeouts checkup.Timeouts, report kind.Reporter) {
	if timeouts.Probe <= 0 || p.Count < 1 || p.Interval <= 0 || p.Interval > checkup.MaxTimeout ||
		p.Timeout <= 0 || p.Timeout > checkup.MaxTimeout {
		return
	}
	need := checkup.Duration(min(p.Count, checkup.MaxCount)-1)*p.Interval + p.Timeout
	if have := timeouts.Probe / 4 * 3; need > have {
		report([]string{"timeouts", "probe"}, "agents have three quarters of it, %s: less than the %s that a pair takes "+
			"if its last connection is not answered", have, need)
	}
}
