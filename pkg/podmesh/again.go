// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
)

const (
	// A second look has at most one of budgetShare pairs of the budget, but leastAgain are
	// always allowed: a small mesh is looked at again as a whole if need be.
	budgetShare = 10
	leastAgain  = 1000
	// An undecided pair is measured oftener times as often as in the first look, but not
	// more than mostCount times (or as often as in the first look, if that is more).
	oftener   = 5
	mostCount = 200
)

// Again returns the worksheet of the second look at a mesh: the pairs that the first look
// did not decide, oftener than before, and the pairs that failed, as often as before. It
// is nil if there is nothing to look at, if the gate does not want failures to be
// confirmed, and after the second look.
//
// Of more pairs than MostAgain, undecided ones come first. But up to half of the look are
// failed ones, spread over sources and targets. Again is pure: a seeded choice of the
// worksheet selects the pairs.
func Again(
	w *checkup.Worksheet,
	roster *checkup.Roster,
	record *checkup.Record,
	gate checkup.Gate,
) *checkup.Worksheet {
	if !gate.Confirm || w.Look > 0 {
		return nil
	}
	j := judge.Pairs(w, roster, record, judge.Rules{})
	var undecided, failed []checkup.Pair
	for i := range j.Outcomes {
		switch o := &j.Outcomes[i]; o.Verdict {
		case checkup.Undecided:
			undecided = append(undecided, o.Pair)
		case checkup.Fail:
			failed = append(failed, o.Pair)
		}
	}
	random := rand.New(rand.NewPCG(w.Seed, uint64(w.Round)))
	shuffle := func(pairs []checkup.Pair) {
		random.Shuffle(len(pairs), func(a, b int) { pairs[a], pairs[b] = pairs[b], pairs[a] })
	}
	shuffle(undecided)
	shuffle(failed)
	spread(failed)

	most := MostAgain(w)
	counts := map[checkup.Pair]int{}
	take := func(pairs []checkup.Pair, upTo int, count func(int) int) {
		for _, p := range pairs {
			if len(counts) >= upTo {
				return
			}
			if _, known := counts[p]; !known {
				counts[p] = count(w.Measurements(p))
			}
		}
	}
	take(undecided, most-min(len(failed), most/2), countAgain)
	take(failed, most, func(n int) int { return n })
	return furtherLook(w, counts, ports(record, counts))
}

// MostAgain is the largest number of pairs of a second look at a mesh.
func MostAgain(w *checkup.Worksheet) int {
	return min(w.CountPairs(), max(leastAgain, w.Budget/budgetShare))
}

// countAgain is how often the second look measures a pair that is not decided after n
// measurements.
func countAgain(n int) int { return max(n, min(oftener*n, mostCount)) }

// spread sorts pairs such that every part of them from the beginning has as many sources
// and targets as possible. It keeps the order of pairs that are alike.
func spread(pairs []checkup.Pair) {
	type ranked struct {
		checkup.Pair
		rank int
	}
	sources, targets := map[int]int{}, map[int]int{}
	all := make([]ranked, len(pairs))
	for i, p := range pairs {
		all[i] = ranked{p, max(sources[p.Source], targets[p.Target])}
		sources[p.Source]++
		targets[p.Target]++
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
	for i, p := range all {
		pairs[i] = p.Pair
	}
}

// ports returns the source ports of those pairs of which one was never answered although
// another one was: they are measured again by the same ports.
func ports(record *checkup.Record, of map[checkup.Pair]int) map[checkup.Pair][]int {
	ports := map[checkup.Pair][]int{}
	if record == nil {
		return ports
	}
	for i := range record.Observations {
		o := &record.Observations[i]
		if _, asked := of[o.Pair]; !asked || o.Received == 0 ||
			!slices.ContainsFunc(o.Flows, func(f checkup.Flow) bool { return f.Sent > 0 && f.Received == 0 }) {
			continue
		}
		ports[o.Pair] = nil
		for _, f := range o.Flows {
			if f.Port >= 1 && f.Port <= 65535 && !slices.Contains(ports[o.Pair], f.Port) {
				ports[o.Pair] = append(ports[o.Pair], f.Port)
			}
		}
	}
	return ports
}

// furtherLook returns the worksheet of the look after w at the given pairs; nil if there
// are none.
func furtherLook(w *checkup.Worksheet, counts map[checkup.Pair]int, ports map[checkup.Pair][]int) *checkup.Worksheet {
	if len(counts) == 0 {
		return nil
	}
	next := *w
	next.Look++
	next.Again, next.Warnings = nil, nil
	next.Assignments = make([][]int, len(w.Assignments))
	for p := range w.Pairs() {
		count, asked := counts[p]
		if !asked {
			continue
		}
		next.Again = append(next.Again, checkup.Again{Pair: p, Count: count, Ports: ports[p]})
		if !slices.Contains(next.Assignments[p.Source], p.Target) {
			next.Assignments[p.Source] = append(next.Assignments[p.Source], p.Target)
		}
	}
	return &next
}
