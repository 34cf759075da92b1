// SPDX-License-Identifier: Apache-2.0

package kind

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/history"
)

// Due returns the Expand of a kind that measures its sample in rounds: it expands the round that is due, the sample's
// own, or, if it rotates, the one after those of the plan's earlier runs. expand takes it modulo the number of rounds,
// which only it knows.
func Due[S checkup.Spec](
	sample func(S) (round int, rotate bool),
	expand func(p *checkup.Plan, check string, s *cluster.Snapshot, round int) (*checkup.Worksheet, []string, error),
) func(p *checkup.Plan, check string, s *cluster.Snapshot) (*checkup.Worksheet, []string, error) {
	return func(p *checkup.Plan, check string, s *cluster.Snapshot) (*checkup.Worksheet, []string, error) {
		round, rotate := 0, false
		if spec, ok := p.Checks[check].Spec.(S); ok {
			round, rotate = sample(spec)
		}
		if rotate {
			round = history.NextRound(p.Name, check, round, s.Rounds)
		}
		return expand(p, check, s, round)
	}
}

// Seed is the seed of the random choices of a check whose plan sets none. It is the
// same in every run. It has 53 bits: JSON readers that use float64 keep them.
func Seed(plan, check string) uint64 {
	sum := sha256.Sum256([]byte(plan + "\x00" + check))
	return binary.BigEndian.Uint64(sum[:]) >> 11
}
