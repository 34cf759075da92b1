// SPDX-License-Identifier: Apache-2.0

package services

import (
	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// Again returns the worksheet of the second look: the pairs that failed, are undecided, or could not be measured
// because an agent or a responder was held up. Of more than MostAgain, a seeded choice. It is nil if there are none, if
// the gate does not want failures to be confirmed, and after the second look.
func Again(
	w *checkup.Worksheet, roster *checkup.Roster, record *checkup.Record, gate checkup.Gate,
) *checkup.Worksheet {
	sheet, err := SheetOf(w)
	if err != nil || !gate.Confirm || w.Look > 0 {
		return nil
	}
	works := func(p checkup.Pair) bool { return sheet.Expects(w, p) == servicecheck.Works }
	return servicecheck.LookAgain(pairs(w, sheet, roster, record, gate), works)
}
