// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// Roster says why the targets of a worksheet without a Peer cannot be measured:
// one entry per target, empty but for its pod where it has a Peer, which says
// where it is. Nothing has come up since the survey that the worksheet is not made
// of, so that plan and snapshot do not matter.
func Roster(_ *checkup.Plan, w *checkup.Worksheet, _ *cluster.Snapshot) *checkup.Roster {
	roster := &checkup.Roster{Targets: make([]checkup.RosterEntry, len(w.Targets))}
	for i, t := range w.Targets {
		roster.Targets[i] = checkup.RosterEntry{Pod: t.Pod, Cause: t.Cause}
		if t.Peer == nil && t.Cause == nil {
			roster.Targets[i].Cause = &checkup.Cause{Stage: checkup.StageSetup, Message: "the worksheet does not say where it is"}
		}
	}
	return roster
}
