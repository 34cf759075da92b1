// SPDX-License-Identifier: Apache-2.0

package servicecanary

import (
	"fmt"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// rules are those of a serviceCanary check, in the order in which their problems are reported.
func rules() []kind.Rule {
	return append([]kind.Rule{
		kind.RuleOf("durations", func(s *Spec, r kind.Reporter) {
			servicecheck.Durations(s.Probe, s.Expect.Latency, s.Limits, s.Timeouts, r)
		}),
		kind.RuleOf("families-twice", func(s *Spec, r kind.Reporter) { kind.FamiliesTwice(s.IPFamilies, r) }),
		kind.RuleOf("policies", policies),
		kind.RuleOf("latency-order", func(s *Spec, r kind.Reporter) { kind.LatencyOrder(s.Expect.Latency, r) }),
		kind.RuleOf("loss-all", func(s *Spec, r kind.Reporter) { kind.LossAll(s.Expect.Loss, r) }),
		kind.RuleOf("probe-timeout", func(s *Spec, r kind.Reporter) { servicecheck.ProbeTimeout(s.Probe, s.Timeouts, r) }),
	}, kind.KubernetesRules(func(s *Spec) kind.Parts {
		return kind.Parts{
			Placements: []kind.Part[checkup.Placement]{kind.At(s.Placement, "placement")},
			Resources:  []kind.Part[checkup.Resources]{kind.At(s.Resources, "resources")},
		}
	})...)
}

func policies(s *Spec, report kind.Reporter) {
	kind.AtLeastOne(s.Policies, "policy", strings.Trim(fmt.Sprint(Policies), "[]"), report, "policies")
}
