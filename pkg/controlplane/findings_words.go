// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// passing names those of the pairs that pass, in one line; nil if none does.
func (b *blamer) passing(pairs []int) []string {
	var names []string
	for _, i := range pairs {
		if !b.fails(i) {
			names = append(names, b.source(i).Name()+" -> "+b.target(i).Name())
		}
	}
	if len(names) == 0 {
		return nil
	}
	s := strings.Join(names[:min(len(names), 3)], ", ")
	if more := len(names) - 3; more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return []string{fmt.Sprintf("%d of %s pass: %s", len(names), count(len(pairs), "measured pair"), s)}
}

// where a component is.
func (b *blamer) where(e checkup.Endpoint, addresses []string) string {
	var s []string
	if e.Component != "" {
		s = append(s, e.Component)
	}
	if e.Node != "" && e.Node != e.Name() {
		s = append(s, "on node "+e.Node)
	}
	if len(addresses) > 0 {
		s = append(s, "at "+strings.Join(addresses, " and "))
	}
	if len(s) == 0 {
		return "a target"
	}
	return strings.Join(s, " ")
}

// names of the sources of pairs, each once.
func (b *blamer) names(pairs []int) []string {
	var names []string
	for _, i := range pairs {
		if n := b.source(i).Name(); !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names
}

// nodes of the sources of pairs, each once.
func (b *blamer) nodes(pairs []int) []string {
	var nodes []string
	for _, i := range pairs {
		if n := b.source(i).Node; !slices.Contains(nodes, n) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// targets of pairs by name, each once.
func (b *blamer) targets(pairs []int) []string {
	var names []string
	for _, i := range pairs {
		if n := b.target(i).Name(); !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names
}

// effect says what happens to failing pairs: what most of them say.
func (b *blamer) effect(pairs []int) string {
	var causes []checkup.Cause
	var slowest int
	votes := map[checkup.Stage]int{}
	var failed, made int
	for _, i := range pairs {
		if !b.fails(i) {
			continue
		}
		o := &b.outcomes[i]
		if o.failure == slow {
			slowest++
		}
		cause := o.cause
		if o.told != nil {
			made, failed = made+o.sent, failed+o.sent-o.received
			if worst := longest(o.told.Outages); o.failure == lost && worst != nil {
				cause = worst.Cause
			}
		}
		votes[cause.Stage]++
		causes = append(causes, cause)
	}
	first := slices.MaxFunc(causes, func(a, c checkup.Cause) int {
		return cmp.Or(cmp.Compare(votes[a.Stage], votes[c.Stage]), cmp.Compare(c.String(), a.String()))
	})
	switch {
	case slowest == len(causes):
		return "too slow: " + first.Message
	case failed < made:
		return fmt.Sprintf("%s, in %d of %d measurements", act(first), failed, made)
	default:
		return act(first)
	}
}

// act says what a target does that fails at a stage.
func act(c checkup.Cause) string {
	switch c.Stage {
	case checkup.StageResolve:
		return "its name is not resolved (" + c.Message + ")"
	case checkup.StageConnect:
		return "no connection (" + c.Message + ")"
	case checkup.StageHandshake:
		// pkg/probe's words for a peer that is silent
		if long, silent := strings.CutPrefix(c.Message, "accepted the connection and then said nothing"); silent {
			return "accepts connections and then says nothing" + long
		}
		return "accepts connections, but makes no TLS handshake (" + c.Message + ")"
	case checkup.StageResponse:
		return "accepts connections, but gives no good response (" + c.Message + ")"
	default:
		return c.String()
	}
}

// evidence begins with a line on the pairs, and tells the longest outage of them.
func (b *blamer) evidence(first string, pairs []int) []string {
	lines := []string{first}
	var most *checkup.Outage
	n := 0
	for _, i := range pairs {
		if !b.fails(i) {
			continue
		}
		if o := longest(b.outages(i)); o != nil {
			n++
			if most == nil || o.Duration() > most.Duration() {
				most = o
			}
		}
	}
	if most != nil {
		s := fmt.Sprintf("outage of %s %s", lasted(*most), during(*most))
		if n > 1 {
			s += fmt.Sprintf(", the longest of %d pairs", n)
		}
		lines = append(lines, s)
	}
	return lines
}

// list puts what explains most first, and sums up what are too many.
func (b *blamer) list() []checkup.Finding {
	times := map[int]int{}
	for _, f := range b.found {
		for _, i := range f.pairs {
			times[i]++
		}
	}
	for _, f := range b.found {
		f.Explains, f.OnlyThis = len(f.pairs), 0
		for _, i := range f.pairs {
			if times[i] == 1 {
				f.OnlyThis++
			}
		}
	}
	slices.SortStableFunc(b.found, func(a, c *blamed) int { return cmp.Compare(c.Explains, a.Explains) })
	listed := b.found
	if len(listed) > maxFindings {
		listed = listed[:maxFindings-1]
	}
	var list []checkup.Finding
	for _, f := range listed {
		list = append(list, f.Finding)
	}
	if rest := b.found[len(listed):]; len(rest) > 0 {
		f := checkup.Finding{Cause: rest[0].Cause, Subject: count(len(rest), "more finding")}
		explained := map[int]bool{}
		for _, r := range rest {
			if r.Cause != f.Cause {
				f.Cause = checkup.CauseNetwork
			}
			f.OnlyThis += r.OnlyThis
			for _, i := range r.pairs {
				explained[i] = true
			}
		}
		f.Explains = len(explained)
		f.Message = fmt.Sprintf("%s, the first of them: %s", f.Subject, rest[0].Message)
		list = append(list, f)
	}
	return list
}
