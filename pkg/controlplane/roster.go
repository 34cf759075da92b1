// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// Roster says why the targets of a worksheet without a Peer cannot be measured: one
// entry per target, with only its pod if it has a Peer. The worksheet has everything
// from the survey: plan and snapshot are not used.
func Roster(_ *checkup.Plan, w *checkup.Worksheet, _ *cluster.Snapshot) *checkup.Roster {
	roster := &checkup.Roster{Targets: make([]checkup.RosterEntry, len(w.Targets))}
	for i, t := range w.Targets {
		roster.Targets[i] = checkup.RosterEntry{Pod: t.Pod, Cause: t.Cause}
		if t.Peer == nil && t.Cause == nil {
			roster.Targets[i].Cause = &checkup.Cause{Stage: checkup.StageSetup, Message: "the worksheet has no address for it"}
		}
	}
	return roster
}
