// SPDX-License-Identifier: Apache-2.0

package servicerules

import (
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// Spec selects Services, and the nodes whose rules are read.
type Spec struct {
	Services servicecheck.Selection `json:"services"`
	// Placement selects the nodes. Each of them gets an agent.
	Placement checkup.Placement `json:"placement"`
	// IPFamilies to read. Empty means every family of a Service.
	IPFamilies []checkup.IPFamily `json:"ipFamilies,omitempty"`
	Sample     Sample             `json:"sample"`
	// Interval between the two looks of each agent.
	Interval checkup.Duration `json:"interval"`
	Expect   Expect           `json:"expect"`
	// Resources of every agent pod.
	Resources checkup.Resources `json:"resources"`
	Timeouts  checkup.Timeouts  `json:"timeouts"`
}

// Sample says how many of the nodes a run reads.
type Sample struct {
	// Nodes is their number. 0 means all.
	Nodes int `json:"nodes"`
	// Rotate makes each run take the next round; else every run takes Round.
	Rotate bool `json:"rotate"`
	// Round is the first round, counted from 0.
	Round int `json:"round"`
	// Seed orders the nodes. nil means that it is derived from the names of plan and check.
	Seed *uint64 `json:"seed,omitempty"`
}

// Expect is what the rules must be, and how soon after a change.
type Expect struct {
	// Missing, Stale and Extra are by what rules may differ for some time.
	Missing Allowance `json:"missing"`
	Stale   Allowance `json:"stale"`
	Extra   Allowance `json:"extra"`
	// Allow are kinds of differences that do not fail a unit, however old they are.
	Allow []dataplane.Kind `json:"allow,omitempty"`
}

// Allowance is for how long after a change of its Service a difference is no failure. It is no pass, either.
type Allowance struct {
	// Max is 0 if two looks decide by themselves.
	Max checkup.Duration `json:"max"`
}

// allowable are the kinds of differences that a plan may allow for ever: settings that something else than the Service
// may decide. Without the right endpoints, nothing is right.
var allowable = []dataplane.Kind{
	dataplane.WrongAffinity, dataplane.WrongSources, dataplane.WrongMasquerade, dataplane.NoHairpin,
}

// dimension is what a plan may allow for some time.
type dimension string

const (
	// lacking: the rules lack an endpoint or an address that the Service has.
	lacking dimension = "missing"
	// stale: they have one that the API has not, not even as one that must not be used, or another setting than the
	// Service.
	stale dimension = "stale"
	// excluded: they lead to an endpoint of the Service that is not for this node, or not ready.
	excluded dimension = "extra"
	// always: no time makes it right.
	always dimension = ""
)

// ofDimension is the allowance of a dimension.
type ofDimension struct {
	dimension dimension
	max       *checkup.Duration
}

// allowances are those of each dimension but always, in the order of the schema.
func (e *Expect) allowances() []ofDimension {
	return []ofDimension{{lacking, &e.Missing.Max}, {stale, &e.Stale.Max}, {excluded, &e.Extra.Max}}
}

// allowed is the allowance of a dimension.
func (e *Expect) allowed(d dimension) checkup.Duration {
	for _, a := range e.allowances() {
		if a.dimension == d {
			return *a.max
		}
	}
	return 0
}

// Kind is Name.
func (s *Spec) Kind() checkup.Kind { return Name }

// PhaseTimeouts are those of the plan.
func (s *Spec) PhaseTimeouts() checkup.Timeouts { return s.Timeouts }

// Fixtures are agents.
func (s *Spec) Fixtures() []checkup.Role { return []checkup.Role{checkup.RoleAgent} }

// Params lists the tunables of the check.
func (s *Spec) Params() []checkup.Param {
	what := map[dimension]string{
		lacking:  "lack an endpoint or address of it",
		stale:    "have an endpoint or address that it does not have any more",
		excluded: "route to an endpoint of it that is not for their node",
	}
	params := []checkup.Param{
		kind.IntParam("nodes", "Number of nodes whose rules are read; 0 reads those of all", &s.Sample.Nodes, 0),
		checkup.BoolParam("rotate",
			"Whether each run takes the next round of the sample, so that successive runs add up to all nodes", &s.Sample.Rotate),
		kind.IntParam("round", "First round of the sample, counted from 0", &s.Sample.Round, 0),
		kind.DurationParam("interval", "Time between the two looks at the rules of a node, such as 10s", &s.Interval),
	}
	for _, a := range s.Expect.allowances() {
		params = append(params, kind.AllowanceParam(string(a.dimension)+".max",
			"Time after a change of a Service in which rules may "+what[a.dimension]+", such as 30s", a.max))
	}
	return checkup.AsRare(params...)
}

// rules are those of a check, in the order in which their problems are reported.
func rules() []kind.Rule {
	return append([]kind.Rule{
		kind.RuleOf("durations", func(s *Spec, r kind.Reporter) {
			kind.Duration(s.Interval, 1, r, "interval")
			for _, a := range s.Expect.allowances() {
				kind.Duration(*a.max, 0, r, "expect", string(a.dimension), "max")
			}
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
