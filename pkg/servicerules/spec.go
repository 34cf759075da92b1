// SPDX-License-Identifier: Apache-2.0

package servicerules

import (
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/services"
)

// Spec selects Services, and the nodes whose rules are read.
type Spec struct {
	Services services.Selection `json:"services"`
	// Placement selects the nodes. Each of them gets an agent.
	Placement checkup.Placement `json:"placement"`
	// IPFamilies to read. Empty means every family of a Service.
	IPFamilies []checkup.IPFamily `json:"ipFamilies,omitempty"`
	// Interval between the two looks of each agent.
	Interval checkup.Duration `json:"interval"`
	Expect   Expect           `json:"expect"`
	// Resources of every agent pod.
	Resources checkup.Resources `json:"resources"`
	Timeouts  checkup.Timeouts  `json:"timeouts"`
}

// Expect is what the rules must be.
type Expect struct {
	// Allow are kinds of differences that do not fail a unit.
	Allow []dataplane.Kind `json:"allow,omitempty"`
}

// allowable are the kinds of differences that a plan may allow. Without rules, or with rules that were not understood,
// nothing is right.
var allowable = []dataplane.Kind{
	dataplane.Extra, dataplane.WrongAction, dataplane.EndpointMissing, dataplane.EndpointExtra, dataplane.WrongAffinity,
	dataplane.WrongSources, dataplane.WrongMasquerade, dataplane.NoHairpin,
}

// Kind is Name.
func (s *Spec) Kind() checkup.Kind { return Name }

// PhaseTimeouts are those of the plan.
func (s *Spec) PhaseTimeouts() checkup.Timeouts { return s.Timeouts }

// Fixtures are agents.
func (s *Spec) Fixtures() []checkup.Role { return []checkup.Role{checkup.RoleAgent} }

// Params lists the tunables of the check.
func (s *Spec) Params() []checkup.Param {
	return checkup.AsRare(kind.DurationParam("interval", "Time between the two looks at the rules of a node, such as 10s", &s.Interval))
}

// rules are those of a check, in the order in which their problems are reported.
func rules() []kind.Rule {
	return append([]kind.Rule{
		kind.RuleOf("durations", func(s *Spec, r kind.Reporter) {
			kind.Duration(s.Interval, 1, r, "interval")
			kind.Timeouts(s.Timeouts, r)
		}),
		kind.RuleOf("families-twice", func(s *Spec, r kind.Reporter) { kind.FamiliesTwice(s.IPFamilies, r) }),
		kind.RuleOf("namespace-twice", func(s *Spec, r kind.Reporter) { s.Services.NamespaceTwice(r) }),
		kind.RuleOf("interval-timeout", intervalTimeout),
		kind.RuleOf("allow", allow),
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

// intervalTimeout compares the interval with the time that an agent has.
func intervalTimeout(s *Spec, report kind.Reporter) {
	if have := s.Timeouts.Probe / 4 * 3; s.Timeouts.Probe > 0 && s.Interval > 0 && s.Interval >= have {
		report([]string{"timeouts", "probe"}, "agents have three quarters of it, %s: not more than the interval, %s, "+
			"after which they look again", have, s.Interval)
	}
}

func allow(s *Spec, report kind.Reporter) {
	for i, k := range s.Expect.Allow {
		switch at := []string{"expect", "allow", kind.Index(i)}; {
		case !slices.Contains(allowable, k):
			report(at, "%q is no difference that can be allowed: want one of %q", k, allowable)
		case slices.Contains(s.Expect.Allow[:i], k):
			report(at, "duplicate: %s", k)
		}
	}
}

// wants reports whether the plan reads a family.
func (s *Spec) wants(f checkup.IPFamily) bool {
	return len(s.IPFamilies) == 0 || slices.Contains(s.IPFamilies, f)
}
