// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/localise"
)

// passing names those of the pairs that pass, in one line; nil if none does.
func (b *blamer) passing(pairs []int) []string {
	var names []string
	for _, i := range pairs {
		if !b.Fails(i) {
			names = append(names, b.Source(i).Name()+" -> "+b.Target(i).Name())
		}
	}
	if len(names) == 0 {
		return nil
	}
	s := strings.Join(names[:min(len(names), 3)], ", ")
	if more := len(names) - 3; more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return []string{fmt.Sprintf("%d of %s pass: %s", len(names), checkup.Count(len(pairs), "measured pair"), s)}
}

// where describes a component: role, node and addresses.
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

// effect describes how pairs fail: the most frequent cause.
func (b *blamer) effect(pairs []int) string {
	var causes []checkup.Cause
	var slowest int
	votes := map[checkup.Stage]int{}
	var failed, made int
	for _, i := range pairs {
		if !b.Fails(i) {
			continue
		}
		o := &b.Outcomes[i]
		if o.Failure == judge.Slow {
			slowest++
		}
		cause := o.Cause
		if o.Folded != nil {
			made, failed = made+o.Sent, failed+o.Sent-o.Received
			if worst := judge.Longest(o.Folded.Outages); o.Failure == judge.Lost && worst != nil {
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

// act describes a target that fails at a stage.
func act(c checkup.Cause) string {
	switch c.Stage {
	case checkup.StageResolve:
		return "its name does not resolve (" + c.Message + ")"
	case checkup.StageConnect:
		return "no connection (" + c.Message + ")"
	case checkup.StageHandshake:
		if c.Reason == checkup.ReasonSilent {
			return "accepts connections and sends nothing (" + c.Message + ")"
		}
		return "accepts connections, but the TLS handshake fails (" + c.Message + ")"
	case checkup.StageResponse:
		return "accepts connections, but sends no valid response (" + c.Message + ")"
	default:
		return c.String()
	}
}

// evidence is a first line on the pairs, and a line on their longest outage.
func (b *blamer) evidence(first string, pairs []int) []string {
	lines := []string{first}
	var most *checkup.Outage
	n := 0
	for _, i := range pairs {
		if !b.Fails(i) {
			continue
		}
		if o := judge.Longest(b.outages(i)); o != nil {
			n++
			if most == nil || o.Duration() > most.Duration() {
				most = o
			}
		}
	}
	if most != nil {
		s := fmt.Sprintf("outage of %s %s", judge.Lasted(*most), judge.During(*most))
		if n > 1 {
			s += fmt.Sprintf(", the longest of %d pairs", n)
		}
		lines = append(lines, s)
	}
	return lines
}

// list sorts the findings by the pairs that they explain, and sums up those past the limit.
func (b *blamer) list() []checkup.Finding {
	found := make([]*localise.Found, len(b.found))
	for i, f := range b.found {
		found[i] = &f.Found
	}
	return localise.List(found)
}
