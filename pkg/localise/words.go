// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
)

// maxAlternatives are listed of each finding.
const maxAlternatives = 6

// found is the finding of a cause that explains also some slow pairs.
func (c *candidate) found(also []int) *Found {
	cause, subject, rest := c.name()
	f := &Found{
		Finding: checkup.Finding{
			Cause: cause, Subject: subject, Family: rest.family, Transport: rest.transport, FromSize: rest.fromSize,
		},
		Component: c.component,
		cause:     c,
	}
	f.Describe = func(described *checkup.Finding) { f.cause.describe(described, len(also)) }
	for _, i := range c.explained {
		f.Pairs = append(f.Pairs, c.l.all[i].at)
	}
	f.Pairs = append(f.Pairs, also...)
	return f
}

// describe writes the texts of a finding. also is the number of slow pairs that it
// explains in addition.
func (c *candidate) describe(f *checkup.Finding, also int) {
	f.Message = c.at() + ": " + c.effect()
	if c.l.difference != nil {
		f.Message = c.at() + ": " + InWords(f.Change)
	}
	f.For = c.evidence(also)
	f.Against = c.contradictions()
	rivals := c.rivals()
	f.Alternatives = some(rivals[1:])
	for _, d := range rivals[:min(len(rivals), 1+maxAlternatives)] {
		f.Concerns(d.concerned()...)
	}
	if len(c.ruledOut) > 0 {
		f.For = append(f.For, "ruled out by the second look: "+strings.Join(some(c.ruledOut), "; "))
	}
}

// some names causes, at most maxAlternatives of them; nil for none.
func some(causes []*candidate) []string {
	var names []string
	for i, d := range causes {
		if i == maxAlternatives {
			return append(names, fmt.Sprintf("and %d more", len(causes)-i))
		}
		names = append(names, d.String())
	}
	return names
}

// name returns the cause, its subject and what else narrows it. A narrowed cause on the
// whole network is named by an attribute.
func (c *candidate) name() (checkup.FindingCause, string, narrow) {
	rest := c.narrow
	if c.cause != checkup.CauseNetwork || rest.degree() == 0 {
		return c.cause, c.subject, rest
	}
	switch {
	case rest.fromSize > 0:
		size := strconv.Itoa(rest.fromSize)
		rest.fromSize = 0
		return checkup.CauseSize, size, rest
	case rest.transport != "":
		rest.transport = ""
		return checkup.CauseTransport, string(c.transport), rest
	default:
		return checkup.CauseFamily, string(c.family), narrow{}
	}
}

// String is "<cause> <subject> (<narrowed to>)".
func (c *candidate) String() string {
	cause, subject, rest := c.name()
	s := string(cause)
	if subject != "" {
		s += " " + subject
	}
	if n := rest.String(); n != "" {
		s += " (" + n + ")"
	}
	return s
}

// eitherWay reports whether a cause has no direction: a round trip is the sum of both ways, whichever end begins it, so
// delays of all round trips through a place have none.
func (c *candidate) eitherWay() bool { return c.l.class == judge.Slow && !c.flows }

// phrase is the place in words.
func (c *candidate) phrase(cause checkup.FindingCause, subject string) string {
	if c.eitherWay() {
		switch cause {
		case checkup.CauseNodeIngress, checkup.CauseNodeEgress, checkup.CauseNode:
			return "to or from the pods of " + subject
		case checkup.CauseNodesIngress, checkup.CauseNodesEgress:
			return "to or from " + subject
		case checkup.CausePair, checkup.CauseGroups:
			return "between " + c.from + " and " + c.to
		case checkup.CauseZones:
			return "between zone " + c.from + " and zone " + c.to
		}
	}
	switch cause {
	case checkup.CauseNodeIngress:
		return "into the pods of " + subject
	case checkup.CauseNodeEgress:
		return "out of the pods of " + subject
	case checkup.CauseNode:
		return "into and out of the pods of " + subject
	case checkup.CauseNodes:
		return "between " + subject + " and all other nodes"
	case checkup.CauseNodesIngress:
		return "into " + subject
	case checkup.CauseNodesEgress:
		return "out of " + subject
	case checkup.CausePair, checkup.CauseGroups:
		return "from " + c.from + " to " + c.to
	case checkup.CauseZones:
		return "from zone " + c.from + " to " + c.to
	case checkup.CauseSource:
		return "everything that source " + subject + " measures"
	case checkup.CauseTarget:
		return "target " + subject
	case checkup.CauseSize:
		return "payloads of " + subject + " bytes and more"
	case checkup.CauseNetwork:
		return "the whole network"
	default:
		return subject + " everywhere"
	}
}

// effect is what happens at the place.
func (c *candidate) effect() string {
	switch {
	case c.l.class == judge.Reached:
		return "gets through, and must not"
	case c.l.class == judge.Slow:
		there, elsewhere := c.medians()
		s := "too slow, median round trip " + judge.Micros(there)
		if elsewhere > 0 {
			s += ", elsewhere " + judge.Micros(elsewhere)
		}
		return s
	case c.share >= 1 && c.flows:
		return "no new flow gets through"
	case c.share >= 1:
		return "nothing gets through"
	default:
		return fmt.Sprintf("about %s of the measurements are lost", about(c.share))
	}
}

// about prints a share in percent: two digits are enough.
func about(share float64) string {
	percent := 100 * share
	if percent >= 10 {
		return fmt.Sprintf("%.0f%%", percent)
	}
	return fmt.Sprintf("%.2g%%", percent)
}

// medians of the pairs' median delays, of those explained and of those that pass
// outside the scope; 0 if there are none.
func (c *candidate) medians() (there, elsewhere int64) {
	explained, inside := map[int32]bool{}, map[int32]bool{}
	for _, i := range c.explained {
		explained[i] = true
	}
	for _, i := range c.passing {
		inside[i] = true
	}
	var of, others []int64
	for i := range c.l.all {
		m := &c.l.all[i]
		if len(m.RTTs) == 0 || m.by == silent {
			continue
		}
		switch median := judge.Quantile(slices.Sorted(slices.Values(m.RTTs)), 0.5); {
		case explained[int32(i)]:
			of = append(of, median)
		case !m.fail && !inside[int32(i)]:
			others = append(others, median)
		}
	}
	slices.Sort(of)
	slices.Sort(others)
	return judge.Quantile(of, 0.5), judge.Quantile(others, 0.5)
}

// evidence for the cause, one line each.
func (c *candidate) evidence(also int) []string {
	var lines []string
	fail, pass := c.l.verbs()
	s := fmt.Sprintf("%d of %s %s %s",
		len(c.explained), checkup.Count(len(c.explained)+len(c.passing), "measured pair"), c.where(), fail)
	in := map[int32]bool{}
	for _, i := range c.explained {
		in[i] = true
	}
	for _, i := range c.passing {
		in[i] = true
	}
	passing, others := 0, 0
	for i := range c.l.all {
		if !in[int32(i)] && c.l.all[i].by != silent {
			others++
			if c.l.all[i].Verdict == checkup.Pass {
				passing++
			}
		}
	}
	if others > 0 {
		s += fmt.Sprintf("; %d of %d pairs elsewhere %s", passing, others, pass)
	}
	lines = append(lines, s)

	if c.cause == checkup.CauseNodes {
		s := "they fail together and only towards others"
		if !c.label && !c.zone {
			s += ": what they share is not in the labels: rack, switch, host?"
		}
		lines = append(lines, s)
	}
	var forward, back, both int
	for _, i := range c.explained {
		switch c.l.all[i].Direction {
		case checkup.DirectionForward:
			forward++
		case checkup.DirectionReturn:
			back++
		case checkup.DirectionBoth:
			both++
		}
	}
	if n := forward + back + both; n > 0 {
		var parts []string
		for _, p := range []struct {
			n    int
			what string
		}{
			{forward, "requests did not arrive in %d"},
			{back, "answers did not come back in %d"},
			{both, "both were lost in %d"},
		} {
			if p.n > 0 {
				parts = append(parts, fmt.Sprintf(p.what, p.n))
			}
		}
		lines = append(lines, fmt.Sprintf("by the target's own count of udp requests: %s of %s",
			strings.Join(parts, ", "), checkup.Count(n, "pair")))
	}
	if c.flows {
		passing, all := 0, 0
		for _, k := range c.back {
			for i := c.l.ways[k].from; i < c.l.ways[k].end; i++ {
				if m := &c.l.all[i]; c.admits[m.Attribute] {
					all++
					if !m.fail {
						passing++
					}
				}
			}
		}
		if passing > 0 {
			s := fmt.Sprintf("%d of %s in the other direction %s", passing, checkup.Count(all, "pair"), pass)
			if c.l.class == judge.Lost {
				s += ": their answers get through, so only new flows are dropped, as by a policy"
			}
			lines = append(lines, s)
		}
	}
	if n := c.passed(); n > 0 && c.byChance() {
		lines = append(lines, fmt.Sprintf(
			"%d of the %d %s: expected by chance, because only a part of the packets is lost",
			n, len(c.explained)+len(c.passing), pass))
	}
	if also > 0 {
		lines = append(lines, fmt.Sprintf(
			"%s of the same place too slow, as expected when TCP repairs a loss", checkup.CountAre(also, "pair")))
	}
	return lines
}

// passed is how many pairs of the scope pass.
func (c *candidate) passed() int {
	n := 0
	for _, i := range c.passing {
		if c.l.all[i].Verdict == checkup.Pass {
			n++
		}
	}
	return n
}

// where names the pairs of the scope.
func (c *candidate) where() string {
	cause, subject, rest := c.name()
	var s string
	both := !c.flows && len(c.back) > 0 || c.eitherWay()
	switch cause {
	case checkup.CauseNodeIngress, checkup.CauseNodeEgress, checkup.CauseNode,
		checkup.CauseNodesIngress, checkup.CauseNodesEgress:
		switch {
		case both || cause == checkup.CauseNode:
			s = "into or out of " + subject
		case cause == checkup.CauseNodeIngress, cause == checkup.CauseNodesIngress:
			s = "into " + subject
		default:
			s = "out of " + subject
		}
	case checkup.CauseNodes:
		s = "between them and others"
	case checkup.CausePair, checkup.CauseZones, checkup.CauseGroups:
		s = fmt.Sprintf("from %s to %s", c.from, c.to)
		if both {
			s = fmt.Sprintf("between %s and %s", c.from, c.to)
		}
	case checkup.CauseSource:
		s = "out of " + subject
	case checkup.CauseTarget:
		s = "into " + subject
	case checkup.CauseSize:
		s = "of " + subject + " bytes and more"
	case checkup.CauseNetwork:
		s = "in all"
	default:
		s = "of " + subject
	}
	if n := rest.String(); n != "" {
		s += " (" + n + ")"
	}
	return s
}

// contradictions name the pairs that pass although the cause predicts a failure.
func (c *candidate) contradictions() []string {
	if c.byChance() {
		return nil
	}
	var names []string
	n := 0
	for _, i := range c.passing {
		m := &c.l.all[i]
		if m.Verdict != checkup.Pass {
			continue
		}
		if n++; n > 3 {
			continue
		}
		names = append(names, fmt.Sprintf("%s -> %s %s %s %dB",
			judge.Name(c.l.w.Sources, m.Pair.Source), judge.Name(c.l.w.Targets, m.Pair.Target),
			m.Pair.Transport, m.Pair.Family, m.Pair.Size))
	}
	if n == 0 {
		return nil
	}
	s := strings.Join(names, ", ")
	if more := n - len(names); more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	_, pass := c.l.verbs()
	return []string{fmt.Sprintf(
		"%d of %s %s %s: %s", n, checkup.Count(len(c.explained)+len(c.passing), "measured pair"), c.where(), pass, s)}
}
