// SPDX-License-Identifier: Apache-2.0

package print

import (
	"fmt"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// confirmation says in words what the further look found; empty if there was none.
func confirmation(c checkup.Confirmation, after checkup.Duration) string {
	switch c {
	case checkup.NotLookedAt:
		return ""
	case checkup.Gone:
		if after == 0 {
			return "gone"
		}
		return fmt.Sprintf("gone after %s", after)
	case checkup.NotConfirmed:
		return "undecided again"
	case checkup.NotMadeAgain:
		if after > 0 {
			return "in the second look only"
		}
		return "not measured again"
	default:
		return string(c)
	}
}

// lookedAgain counts what the further look found, and returns after which time it began.
func lookedAgain(c *checkup.CheckReport) (counts map[checkup.Confirmation]int, after checkup.Duration) {
	counts = map[checkup.Confirmation]int{}
	for i := range c.Units {
		if u := &c.Units[i]; u.Confirmation != checkup.NotLookedAt {
			counts[u.Confirmation]++
			after = max(after, u.After)
		}
	}
	return counts, after
}

// secondLook says what the further look found: "3 pairs confirmed, 2 gone after 12s"; empty if there
// was none.
func secondLook(c *checkup.CheckReport) string {
	counts, after := lookedAgain(c)
	late := 0 // only the second look measured them, or saw them fail
	for i := range c.Units {
		if u := &c.Units[i]; u.Confirmation == checkup.NotMadeAgain && u.After > 0 {
			late++
		}
	}
	var found []string
	add := func(n int, what string) {
		if n == 0 {
			return
		}
		number := fmt.Sprint(n)
		if len(found) == 0 {
			number = checkup.Count(n, nounOf(c))
		}
		found = append(found, number+" "+what)
	}
	for _, of := range checkup.Confirmations {
		if of == checkup.NotMadeAgain {
			add(late, confirmation(of, after))
			add(counts[of]-late, confirmation(of, 0))
			continue
		}
		add(counts[of], confirmation(of, after))
	}
	return strings.Join(found, ", ")
}

// secondLook prints what the further look found.
func (p *printer) secondLook(c *checkup.CheckReport) {
	if found := secondLook(c); found != "" {
		p.line("  second look: %s", checkup.Clean(found))
	}
}

// unconfirmed reports whether a check is inconclusive because none of its failures was
// measured again.
func unconfirmed(c *checkup.CheckReport) bool {
	return c.Verdict == checkup.RunInconclusive && c.Counts.Fail > 0
}

// said is the message of a finding; one that is gone begins with this.
func said(f checkup.Finding) string {
	if f.Confirmation == checkup.Gone {
		return "gone: " + f.Message
	}
	return f.Message
}

// cameBack prints a cause with what the further look found.
func cameBack(u *checkup.Unit) string {
	s := why(cause(u))
	if found := confirmation(u.Confirmation, u.After); found != "" {
		s += ", " + found
	}
	return s
}
