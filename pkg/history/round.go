// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Round is the round of a check that a report records. It is an annotation of the report, because setup must read it
// with no more than the right to list.
type Round struct {
	Plan    string    `json:"plan"`
	Check   string    `json:"check"`
	Round   int       `json:"round"`
	Created time.Time `json:"created"`
}

// RoundAnnotations are the annotations of a report: the round of each of its checks that has one.
func RoundAnnotations(r *checkup.Report) map[string]string {
	rounds := map[string]string{}
	for _, c := range r.Checks {
		if c.Coverage != nil {
			rounds[checkup.AnnotationRound+c.Name] = strconv.Itoa(c.Coverage.Round)
		}
	}
	return rounds
}

// RoundsOf reads the rounds from the annotations of a report of the plan. What is not a number from 0 is skipped.
func RoundsOf(plan string, annotations map[string]string, created time.Time) []Round {
	var rounds []Round
	for key, value := range annotations {
		check, ok := strings.CutPrefix(key, checkup.AnnotationRound)
		round, err := strconv.Atoi(value)
		if ok && err == nil && round >= 0 {
			rounds = append(rounds, Round{Plan: plan, Check: check, Round: round, Created: created.UTC()})
		}
	}
	return rounds
}

// SortRounds sorts rounds from the oldest to the newest, and removes duplicates: each chunk of a report has its rounds.
func SortRounds(rounds []Round) []Round {
	slices.SortFunc(rounds, func(a, b Round) int {
		return cmp.Or(
			a.Created.Compare(b.Created),
			cmp.Compare(a.Plan, b.Plan),
			cmp.Compare(a.Check, b.Check),
			cmp.Compare(a.Round, b.Round),
		)
	})
	return slices.Compact(rounds)
}

// NextRound returns the round for the next run of a check whose sample rotates: the newest recorded one plus 1, or
// first if none of this plan and check is recorded. Of rounds that were recorded at the same time (Kubernetes'
// timestamps have seconds), the highest counts.
func NextRound(plan, check string, first int, recorded []Round) int {
	var last *Round
	for i, r := range recorded {
		if r.Plan != plan || r.Check != check {
			continue
		}
		if last == nil || r.Created.After(last.Created) || r.Created.Equal(last.Created) && r.Round > last.Round {
			last = &recorded[i]
		}
	}
	if last == nil {
		return first
	}
	return last.Round + 1
}
