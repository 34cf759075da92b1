// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// score compares findings with the causes that were injected.
type score struct {
	// causes that were injected and findings that were made, and how many of them agree: exactly, and also if the
	// cause is one of the finding's Alternatives.
	causes, findings, exact, among int
}

func (s *score) add(o score) {
	s.causes += o.causes
	s.findings += o.findings
	s.exact += o.exact
	s.among += o.among
}

// both prints precision and recall for so many right findings; "-" where there are no findings, or no causes.
func (s score) both(right int) string {
	return fmt.Sprintf("%4s / %4s", share(right, s.findings), share(right, s.causes))
}

// f1 is the harmonic mean of exact precision and recall.
func (s score) f1() float64 { return 2 * float64(s.exact) / float64(max(1, s.findings+s.causes)) }

func share(part, of int) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", float64(part)/float64(of))
}

// grade grades findings against the causes. unlisted is the number of further findings that a report only counts: as many
// of them as there are causes left are neither right nor wrong; the others are wrong.
func grade(causes []string, found []guess, unlisted int) score {
	s := score{findings: len(found)}
	left := slices.Clone(causes)
	take := func(cause string) bool {
		i := slices.Index(left, cause)
		if i >= 0 {
			left = slices.Delete(left, i, i+1)
		}
		return i >= 0
	}
	found = slices.DeleteFunc(slices.Clone(found), func(g guess) bool { return take(g.name) })
	s.exact = s.findings - len(found)
	found = slices.DeleteFunc(found, func(g guess) bool { return slices.ContainsFunc(g.or, take) })
	s.among = s.findings - len(found)
	excused := min(unlisted, len(left))
	s.causes, s.findings = len(causes)-excused, s.findings+unlisted-excused
	return s
}

// standing returns the listed findings of a report that are not gone in a further look, and the number of findings that
// it only counts ("7 more findings").
func standing(findings []checkup.Finding) (found []guess, unlisted int) {
	for _, f := range findings {
		var more int
		_, err := fmt.Sscanf(f.Subject, "%d more finding", &more)
		switch {
		case err == nil:
			unlisted += more
		case f.Confirmation != checkup.Gone:
			found = append(found, guess{name(f), f.Alternatives})
		}
	}
	return found, unlisted
}

// name is a finding's cause in the form of Finding.Alternatives.
func name(f checkup.Finding) string {
	s := strings.TrimSpace(string(f.Cause) + " " + f.Subject)
	var only []string
	if f.Family != "" {
		only = append(only, string(f.Family))
	}
	if f.Transport != "" {
		only = append(only, string(f.Transport))
	}
	if f.FromSize > 0 {
		only = append(only, fmt.Sprintf("payloads from %d bytes", f.FromSize))
	}
	if len(only) > 0 {
		s += " (" + strings.Join(only, ", ") + " only)"
	}
	return s
}
