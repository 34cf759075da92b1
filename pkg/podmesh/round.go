// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"github.com/checkplan/checkplan/pkg/cluster"
)

// NextRound returns the round for the next run of a check: the sample's own or, if it rotates and a round of this plan
// and check is recorded, the newest one plus 1. Of rounds that were recorded at the same time (Kubernetes' timestamps
// have seconds), the highest counts. Expand takes the result modulo the number of rounds, which only it knows.
func NextRound(plan, check string, sample Sample, recorded []cluster.RecordedRound) int {
	if !sample.Rotate {
		return sample.Round
	}
	var last *cluster.RecordedRound
	for i, r := range recorded {
		if r.Plan != plan || r.Check != check {
			continue
		}
		if last == nil || r.Created.After(last.Created) || r.Created.Equal(last.Created) && r.Round > last.Round {
			last = &recorded[i]
		}
	}
	if last == nil {
		return sample.Round
	}
	return last.Round + 1
}
