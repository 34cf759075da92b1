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

// precision and recall of right findings; "-" where there are no findings or causes.
func (s score) precision(right int) string { return share(right, s.findings) }
func (s score) recall(right int) string    { return share(right, s.causes) }

func share(part, of int) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", float64(part)/float64(of))
}

// grade grades findings. A finding that is gone in a further look is not counted. Of the findings that a report only
// counts ("7 more findings"), as many as there are causes left are neither right nor wrong; the others are wrong.
func grade(causes []string, findings []checkup.Finding) score {
	var standing []checkup.Finding
	unlisted := 0
	for _, f := range findings {
		var more int
		_, err := fmt.Sscanf(f.Subject, "%d more finding", &more)
		switch {
		case err == nil:
			unlisted += more
		case f.Confirmation != checkup.Gone:
			standing = append(standing, f)
		}
	}
	s := score{findings: len(standing)}
	left := slices.Clone(causes)
	take := func(cause string) bool {
		i := slices.Index(left, cause)
		if i >= 0 {
			left = slices.Delete(left, i, i+1)
		}
		return i >= 0
	}
	standing = slices.DeleteFunc(standing, func(f checkup.Finding) bool { return take(name(f)) })
	s.exact = s.findings - len(standing)
	standing = slices.DeleteFunc(standing, func(f checkup.Finding) bool { return slices.ContainsFunc(f.Alternatives, take) })
	s.among = s.findings - len(standing)
	excused := min(unlisted, len(left))
	s.causes, s.findings = len(causes)-excused, s.findings+unlisted-excused
	return s
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
