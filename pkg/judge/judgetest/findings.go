// SPDX-License-Identifier: Apache-2.0

package judgetest

import (
	"fmt"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Controls are the control pairs that agents report for each family.
var Controls = []string{"self", "closed"}

// When is 1 if the condition holds, else 0.
func When(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}

// Because is the cause if the condition holds, else nil.
func Because(holds bool, c *checkup.Cause) *checkup.Cause {
	if holds {
		return c
	}
	return nil
}

// Kind is the cause of a finding with its subject and what narrows it, in the form
// of Finding.Alternatives.
func Kind(f checkup.Finding) string {
	s := string(f.Cause)
	if f.Subject != "" {
		s += " " + f.Subject
	}
	switch {
	case f.Family != "":
		s += fmt.Sprintf(" (%s only)", f.Family)
	case f.Transport != "":
		s += fmt.Sprintf(" (%s only)", f.Transport)
	case f.FromSize > 0:
		s += fmt.Sprintf(" (payloads from %d bytes only)", f.FromSize)
	}
	return s
}

// Show prints findings with their evidence.
func Show(findings []checkup.Finding) string {
	var b strings.Builder
	for _, f := range findings {
		fmt.Fprintf(&b, "\n%s [%s] explains %d, only this %d", Kind(f), f.Message, f.Explains, f.OnlyThis)
		for _, s := range f.For {
			fmt.Fprintf(&b, "\n  + %s", s)
		}
		for _, s := range f.Against {
			fmt.Fprintf(&b, "\n  - %s", s)
		}
		fmt.Fprintf(&b, "\n  ? %s", strings.Join(f.Alternatives, "; "))
	}
	return b.String()
}
