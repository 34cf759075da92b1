// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/localise"
)

// Compare adds to the report of a mesh what is worse than in earlier runs, explained as its failures are.
func Compare(before *history.History, at time.Time, sheet history.Sheet, gate checkup.Gate, r *checkup.CheckReport) {
	localise.Compare(before, at, sheet, judging(gate), localise.ExplainChange, r)
}
