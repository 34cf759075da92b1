// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"math"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Slower adds to the comparison of two reports of the plan what the history knows of both runs: delays and losses of
// nodes, of pairs of zones, and of single pairs, which the report of a mesh does not have. Where it no longer knows
// them of a check, a note says so. Units of a check whose reports list all of them stay as they are.
func (h *History) Slower(d *checkup.Diff, before, after *checkup.Report) {
	for i := range d.Checks {
		c := &d.Checks[i]
		if c.Before == "" || c.After == "" {
			continue
		}
		was, some := h.pairsOf(before.RunUID, c.Name)
		is, others := h.pairsOf(after.RunUID, c.Name)
		switch {
		case !some || !others:
			continue
		case was == nil || was.groups == nil || is == nil || is.groups == nil:
			c.Notes = append(c.Notes, fmt.Sprintf("the history of plan %s does not have the delays of nodes, zones and "+
				"pairs of both runs: only the whole check is compared", h.Plan))
			continue
		}
		c.SlowerGroups = slowerGroups(c.Name, was, is)
		k := slices.IndexFunc(after.Checks, func(r checkup.CheckReport) bool { return r.Name == c.Name })
		if k >= 0 && !after.Checks[k].Complete && was.detail != nil && is.detail != nil {
			c.SlowerUnits = slowerPairs(was, is)
		}
	}
}

// pairsOf returns the pairs of a check of a listed run, by its UID; nil if the history does not have them, or no
// longer. some is false if the check has no pairs.
func (h *History) pairsOf(uid, check string) (p *Pairs, some bool) {
	i := slices.IndexFunc(h.Runs, func(r Run) bool { return r.UID == uid })
	if i < 0 {
		return nil, true
	}
	if c := h.Runs[i].check(check); c != nil {
		return c.Pairs, c.Possible > 0
	}
	return nil, false
}

// slowerGroups compares the groups that both runs measured, by their names. That of all pairs is left out: reports have
// it, and more precisely.
func slowerGroups(check string, was, is *Pairs) []checkup.SlowerPart {
	before := map[Key]checkup.Pace{}
	for k, pace := range was.paces(check) {
		before[k] = pace
	}
	var all []checkup.SlowerPart
	for k, pace := range is.paces(check) {
		b, ok := before[k]
		if k.Group == All || !ok || !pace.Slower(b) {
			continue
		}
		name := map[Group]string{
			Out: "from " + k.From, In: "to " + k.To, Zones: "zone " + k.From + " to zone " + k.To,
		}[k.Group]
		all = append(all, checkup.SlowerPart{Part: name + " " + k.Probe, Before: b, After: pace})
	}
	checkup.SortSlower(all)
	return all
}

// paces yields the values of the groups that were measured.
func (p *Pairs) paces(check string) func(func(Key, checkup.Pace) bool) {
	return func(yield func(Key, checkup.Pace) bool) {
		at := 0
		for _, g := range p.groupsOf() {
			for _, probe := range p.Probes {
				c := p.groups[at : at+perGroup]
				at += perGroup
				if c[2] == 0 {
					continue
				}
				loss := checkup.Percent(math.Round(1000*lossOf(c[2])) / 10)
				if !yield(g.key(check, probe), checkup.Pace{P50: delayOf(c[0]), P90: delayOf(c[1]), Loss: loss}) {
					return
				}
			}
		}
	}
}

// slowerPairs compares the pairs that both runs measured and that do not fail in the second.
func slowerPairs(was, is *Pairs) []checkup.SlowerPart {
	type pair struct{ source, target, probe string }
	every := func(_, _ *Member) bool { return true }
	paceOf := func(r Result) checkup.Pace { return checkup.Pace{P50: r.P50, Loss: checkup.Percent(r.Loss)} }
	before := map[pair]checkup.Pace{}
	for ends, results := range was.results(every) {
		for _, r := range results {
			if r.Loss >= 0 {
				before[pair{ends[0].Name, ends[1].Name, r.Probe}] = paceOf(r)
			}
		}
	}
	var all []checkup.SlowerPart
	for ends, results := range is.results(every) {
		for _, r := range results {
			b, ok := before[pair{ends[0].Name, ends[1].Name, r.Probe}]
			if pace := paceOf(r); ok && r.Loss >= 0 && r.Verdict != checkup.Fail && pace.Slower(b) {
				part := fmt.Sprintf("%s -> %s %s", ends[0].Name, ends[1].Name, r.Probe)
				all = append(all, checkup.SlowerPart{Part: part, Before: b, After: pace})
			}
		}
	}
	checkup.SortSlower(all)
	return all
}
