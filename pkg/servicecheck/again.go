// SPDX-License-Identifier: Apache-2.0

package servicecheck

import (
	"math/rand/v2"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
)

const (
	// A second look has at most one of budgetShare pairs of the budget, but leastAgain are always allowed.
	budgetShare = 10
	leastAgain  = 1000
	// A pair that connected at times is measured oftener times as often as in the first look, at most mostCount times.
	oftener   = 5
	mostCount = 200
)

// LookAgain returns the worksheet of a second look at the pairs that failed, are undecided, or could not be measured
// because an agent or a responder was held up; nil if there are none. A pair that must be answered is measured more
// often if it was answered at times.
func LookAgain(j *judge.Judgement, answered func(checkup.Pair) bool) *checkup.Worksheet {
	w := j.Worksheet
	counts := map[checkup.Pair]int{}
	var doubtful []checkup.Pair
	for i := range j.Outcomes {
		o := &j.Outcomes[i]
		if o.Verdict != checkup.Fail && o.Verdict != checkup.Undecided && !j.HeldUp(o) {
			continue
		}
		doubtful = append(doubtful, o.Pair)
		counts[o.Pair] = w.Measurements(o.Pair)
		if o.Received > 0 && answered(o.Pair) {
			counts[o.Pair] = countAgain(counts[o.Pair])
		}
	}
	if len(doubtful) == 0 {
		return nil
	}
	random := rand.New(rand.NewPCG(w.Seed, uint64(w.Round)))
	random.Shuffle(len(doubtful), func(a, b int) { doubtful[a], doubtful[b] = doubtful[b], doubtful[a] })
	for _, p := range doubtful[min(len(doubtful), MostAgain(w)):] {
		delete(counts, p)
	}
	var again []checkup.Again
	for p := range w.Pairs() {
		if n, is := counts[p]; is {
			again = append(again, checkup.Again{Pair: p, Count: n})
		}
	}
	return w.FurtherLook(again)
}

// MostAgain is the largest number of pairs of a second look.
func MostAgain(w *checkup.Worksheet) int {
	return min(w.CountPairs(), max(leastAgain, w.Budget/budgetShare))
}

// countAgain is how often the second look measures a pair that connected in some of n measurements of the first.
func countAgain(n int) int { return max(n, min(oftener*n, mostCount)) }

// Merge adds to the judgement of the first look what the further looks of a record show; pairs judges one look. A nil
// record has none.
func Merge(
	j *judge.Judgement, w *checkup.Worksheet, record *checkup.Record,
	pairs func(*checkup.Worksheet, *checkup.Record) *judge.Judgement,
) {
	if record == nil {
		return
	}
	for i := range record.Looks {
		look := &record.Looks[i]
		next := *w
		next.Look, next.Again = max(look.Worksheet.Look, 1), look.Worksheet.Again
		if next.Again == nil {
			next.Again = []checkup.Again{}
		}
		j.Merge(pairs(&next, &look.Record), look.After)
	}
}
