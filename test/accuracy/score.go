// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/stats"
)

// score compares findings with the causes that were injected.
type score struct {
	// Causes that were injected and findings that were made, and how many of them agree: exactly, and also if the
	// cause is one of the finding's Alternatives.
	Causes, Findings, Exact, Among int
}

func (s *score) add(o score) {
	s.Causes += o.Causes
	s.Findings += o.Findings
	s.Exact += o.Exact
	s.Among += o.Among
}

// both prints precision and recall for so many right findings; "-" where there are no findings, or no causes.
func (s score) both(right int) string {
	return fmt.Sprintf("%4s / %4s", share(right, s.Findings), share(right, s.Causes))
}

// f1 is the harmonic mean of exact precision and recall; 1 if nothing is broken, and nothing found.
func (s score) f1() float64 {
	if s.Findings+s.Causes == 0 {
		return 1
	}
	return 2 * float64(s.Exact) / float64(s.Findings+s.Causes)
}

// duel counts the runs in which an algorithm has a higher f1 than ours, and those in which it has a lower one.
type duel struct{ Better, Worse int }

// chance is the probability that an algorithm that is better as often as it is worse is better in so many of these runs
// or more: the exact one-sided sign test of paired runs (Conover, Practical Nonparametric Statistics, 1999, 3.4). Runs
// in which both are alike say nothing.
func (d duel) chance() float64 { return stats.AtLeast(d.Better, d.Better+d.Worse, 0.5) }

func share(part, of int) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", float64(part)/float64(of))
}

// grade grades findings against the causes. A finding that only counts pairs ("7 pairs of nodes") excuses as many broken
// pairs that are not found: they are neither found nor missed. If it excuses none, it is one wrong finding.
func grade(causes []string, found []guess) score {
	s := score{}
	left := slices.Clone(causes)
	take := func(cause string) bool {
		i := slices.Index(left, cause)
		if i >= 0 {
			left = slices.Delete(left, i, i+1)
		}
		return i >= 0
	}
	listed := slices.DeleteFunc(slices.Clone(found), func(g guess) bool { return g.pairs > 0 })
	s.Findings = len(listed)
	listed = slices.DeleteFunc(listed, func(g guess) bool { return take(g.name) })
	s.Exact = s.Findings - len(listed)
	listed = slices.DeleteFunc(listed, func(g guess) bool { return slices.ContainsFunc(g.or, take) })
	s.Among = s.Findings - len(listed)
	for _, g := range found {
		if g.pairs == 0 {
			continue
		}
		excused := 0
		left = slices.DeleteFunc(left, func(cause string) bool {
			hit := excused < g.pairs && strings.HasPrefix(cause, string(checkup.CausePair)+" ")
			if hit {
				excused++
			}
			return hit
		})
		s.Causes -= excused
		if excused == 0 {
			s.Findings++ // one line, however many pairs
		}
	}
	s.Causes += len(causes)
	return s
}

// standing returns the findings of a report that are not gone in a further look, with those that another one counts.
// Nodes that are named together are one each.
func standing(findings []checkup.Finding) []guess {
	var found []guess
	add := func(name string, or []string) {
		cause, subject, _ := strings.Cut(name, " ")
		subject, _, _ = strings.Cut(subject, " (") // without its restriction
		var pairs int
		_, err := fmt.Sscanf(subject, "%d pairs of nodes", &pairs)
		switch {
		case cause == string(checkup.CausePair) && err == nil:
			found = append(found, guess{name: name, pairs: pairs})
		case cause == string(checkup.CauseNodes) && !strings.HasPrefix(subject, "rack "):
			for node := range strings.SplitSeq(subject, ", ") {
				found = append(found, guess{name: "node " + node, or: or})
			}
		default:
			found = append(found, guess{name: name, or: or})
		}
	}
	for _, f := range findings {
		if f.Confirmation == checkup.Gone {
			continue
		}
		if len(f.Rest) == 0 {
			add(f.String(), f.Alternatives)
		}
		for _, name := range f.Rest {
			add(name, nil)
		}
	}
	return found
}
