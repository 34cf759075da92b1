// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
)

// maxPipelineSize is the limit, in bytes, on all copies of a plan in its Pipeline
// together: etcd accepts objects of at most 1.5 MiB, and the status of a PipelineRun holds the
// Pipeline with everything in it.
const maxPipelineSize = 1 << 20

// planRules are the rules for every plan.
var planRules = []kind.Rule{
	{Name: "plan-name", Plan: planName},
	{Name: "plan-size", Plan: planSize},
	{Name: "no-check", Plan: noCheck},
	{Name: "check-name", Plan: checkName},
	{Name: "no-kind", Plan: noKind},
	{Name: "one-kind", Plan: oneKind},
	{Name: "after-self", Plan: afterSelf},
	{Name: "after-unknown", Plan: afterUnknown},
	{Name: "after-twice", Plan: afterTwice},
	{Name: "after-cycle", Plan: afterCycle},
	{Name: "schedule", Plan: schedule},
	{Name: "network-health", Plan: networkHealth},
	{Name: "limits", Plan: limits},
}

func planName(p *checkup.Plan, report kind.Reporter) {
	switch {
	case p.Name == "":
		report(nil, "the plan has no name")
	case !kind.DNSLabel(p.Name, nil, report):
	case len(p.Name) > checkup.MaxPlanName:
		report(
			nil,
			"name has %d characters; at most %d leave room for the names of its runs",
			len(p.Name),
			checkup.MaxPlanName,
		)
	default:
		if other := checkup.PlanOfAccount(p.Name); other != "" {
			report(nil, "name ends in %s: plan %s would have a service account of the same name, with the rights of both plans: "+
				"choose another name", p.Name[len(other):], other)
		}
	}
}

func planSize(p *checkup.Plan, report kind.Reporter) {
	b, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		report(nil, "writing the plan as JSON: %v", err)
		return
	}
	size := len(b) + bytes.Count(b, []byte("$"))*len(`u0024`)
	if size > checkup.MaxPlanSize {
		report(
			nil,
			"the plan has %d bytes as JSON; at most %d fit what Linux passes to a task: split it",
			size,
			checkup.MaxPlanSize,
		)
	} else if copies := len(p.Checks) + 1; size*copies > maxPipelineSize {
		report(
			nil,
			"the plan has %d bytes as JSON, and its Pipeline holds it %d times, once per check and once at the end; "+
				"at most %d bytes fit: split it",
			size,
			copies,
			maxPipelineSize,
		)
	}
}

func noCheck(p *checkup.Plan, report kind.Reporter) {
	if len(p.Checks) == 0 {
		report([]string{"checks"}, "no check: want at least one")
	}
}

func checkName(p *checkup.Plan, report kind.Reporter) {
	for _, name := range slices.Sorted(maps.Keys(p.Checks)) {
		switch {
		case !kind.DNSLabel(name, []string{"checks", name}, report):
		case len(name) > checkup.MaxCheckName:
			report(
				[]string{"checks", name},
				"name has %d characters; at most %d leave room for the names of its tasks",
				len(name),
				checkup.MaxCheckName,
			)
		}
	}
}

func noKind(p *checkup.Plan, report kind.Reporter) {
	var kinds []string
	for _, k := range Names() {
		kinds = append(kinds, string(k))
	}
	for _, name := range slices.Sorted(maps.Keys(p.Checks)) {
		if p.Checks[name].Kind() == "" {
			report([]string{"checks", name}, "no kind: want one of %s", strings.Join(kinds, ", "))
		}
	}
}

func oneKind(p *checkup.Plan, report kind.Reporter) {
	for _, name := range slices.Sorted(maps.Keys(p.Checks)) {
		if c := p.Checks[name]; len(c.Others) > 0 {
			kinds := append([]checkup.Kind{c.Kind()}, c.Others...)
			report([]string{"checks", name}, "kinds %q: want one kind per check: split the check", kinds)
		}
	}
}

// eachAfter yields every element of every after, with its path.
func eachAfter(p *checkup.Plan, yield func(name string, i int, after string, path []string)) {
	for _, name := range slices.Sorted(maps.Keys(p.Checks)) {
		for i, after := range p.Checks[name].After {
			yield(name, i, after, []string{"checks", name, "after", kind.Index(i)})
		}
	}
}

func afterSelf(p *checkup.Plan, report kind.Reporter) {
	eachAfter(p, func(name string, _ int, after string, path []string) {
		if after == name {
			report(path, "check %q has itself in after: remove it", name)
		}
	})
}

func afterUnknown(p *checkup.Plan, report kind.Reporter) {
	eachAfter(p, func(_ string, _ int, after string, path []string) {
		if _, ok := p.Checks[after]; !ok {
			report(
				path,
				"no check %q in this plan; it has %s",
				after,
				strings.Join(slices.Sorted(maps.Keys(p.Checks)), ", "),
			)
		}
	})
}

func afterTwice(p *checkup.Plan, report kind.Reporter) {
	eachAfter(p, func(name string, i int, after string, path []string) {
		if slices.Contains(p.Checks[name].After[:i], after) {
			report(path, "duplicate: %s", after)
		}
	})
}

// afterCycle reports each cycle of two or more checks once, at the check whose name
// is the first in alphabetical order.
func afterCycle(p *checkup.Plan, report kind.Reporter) {
	done := map[string]bool{}
	var trail []string
	var visit func(name string)
	visit = func(name string) {
		if i := slices.Index(trail, name); i >= 0 {
			if cycle := trail[i:]; len(cycle) > 1 {
				first := slices.Index(cycle, slices.Min(cycle))
				cycle = slices.Concat(cycle[first:], cycle[:first], cycle[first:first+1])
				report(
					[]string{"checks", cycle[0], "after"},
					"cycle of checks: %s",
					strings.Join(cycle, " after "),
				)
			}
			return
		}
		check, ok := p.Checks[name]
		if !ok || done[name] {
			return
		}
		trail = append(trail, name)
		for _, after := range check.After {
			visit(after)
		}
		trail = trail[:len(trail)-1]
		done[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(p.Checks)) {
		visit(name)
	}
}
