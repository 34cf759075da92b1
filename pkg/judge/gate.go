// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Confirm applies the gate's Confirm to the report of a check that looked again. If none
// of its failures was seen in both looks, the check is inconclusive instead of failed.
// This, and the number of failures that are gone, become clauses of the summary. Counts
// stay as they are.
func Confirm(r *checkup.CheckReport, gate checkup.Gate) {
	if !gate.Confirm {
		return
	}
	gone, again := 0, 0
	var after checkup.Duration
	for i := range r.Units {
		switch u := &r.Units[i]; {
		case u.Confirmation == checkup.Gone:
			gone, after = gone+1, u.After
		case u.Confirmation == checkup.NotMadeAgain && u.Verdict == checkup.Fail:
			again++
		}
	}
	if gone > 0 {
		r.Said = append(r.Said, fmt.Sprintf("%s gone after %s", checkup.Count(gone, "failure"), after))
	}
	if again > 0 && again == r.Counts.Fail && r.Verdict == checkup.RunFail {
		r.Verdict = checkup.RunInconclusive
		r.Said = append(r.Said, "nothing failed in both looks")
	}
}
