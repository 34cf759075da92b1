// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/localise"
)

const (
	// A second look has at most one of budgetShare pairs of the budget, but leastAgain are
	// always allowed: a small mesh is measured again as a whole if need be.
	budgetShare = 10
	leastAgain  = 1000
	// A pair that was answered is measured oftener times as often as in the first look, but
	// not more than mostCount times (or as often as in the first look, if that is more): its
	// second sample must decide alone.
	oftener   = 5
	mostCount = 200
	// A pair of which a source port was never answered is measured from flowsAgain ports,
	// ofFlow times each: if one of eight paths is dead, 93% of such pairs hit it.
	flowsAgain = 20
	ofFlow     = 5
	// Ports below those that Linux chooses by itself (ip_local_port_range) are free.
	firstPort, lastPort = 20_000, 29_999
	// At least one of separatingShare pairs of the look is kept for those that separate causes.
	separatingShare = 8
)

// Again returns the worksheet of the second look at a mesh: the pairs that the first look
// did not decide, the pairs of components that it did not decide, those that it could not measure because an agent or a
// responder was held up, those that failed, and those that separate the causes of findings from their alternatives
// (localise.Separating). The last ones need not be in the sample, but their sources
// have an agent, and their targets are on the roster.
//
// Pairs without any answer are measured as often as before, others oftener, with stopping points (judge.StopsOf) at
// which those end that lose far too much. It is nil if there is nothing to look at, if the gate does not want failures
// to be confirmed, if agents are inside existing pods, and after the second look.
//
// Of more pairs than mostAgain, undecided ones come first, then those held up. But up to half of the look are
// failed ones, spread over sources and targets, and up to an eighth those that separate causes. Again is pure: a
// seeded choice of the worksheet selects the pairs.
func Again(
	w *checkup.Worksheet,
	roster *checkup.Roster,
	record *checkup.Record,
	gate checkup.Gate,
) *checkup.Worksheet {
	if !gateOf(w, gate).Confirm || w.Look > 0 {
		return nil
	}
	j := judge.Pairs(w, roster, record, judging(gate))
	explained := localise.Explain(j)
	var undecided, together, heldUp, failed []checkup.Pair
	for i := range j.Outcomes {
		switch o := &j.Outcomes[i]; {
		case o.Verdict == checkup.Undecided:
			undecided = append(undecided, o.Pair)
		case o.Verdict == checkup.Fail:
			failed = append(failed, o.Pair)
		case j.HeldUp(o):
			heldUp = append(heldUp, o.Pair)
		}
	}
	for _, c := range explained.Undecided {
		for _, part := range c.Parts {
			together = append(together, j.Outcomes[part.At].Pair)
		}
	}
	random := rand.New(rand.NewPCG(w.Seed, uint64(w.Round)))
	shuffle := func(pairs []checkup.Pair) {
		random.Shuffle(len(pairs), func(a, b int) { pairs[a], pairs[b] = pairs[b], pairs[a] })
	}
	shuffle(undecided)
	shuffle(together)
	shuffle(heldUp)
	shuffle(failed)
	spread(failed)

	most, packets := mostAgain(w)
	counts := map[checkup.Pair]int{}
	count := func(p checkup.Pair) int {
		n := w.Measurements(p)
		if o := j.Find(p); o == nil || o.Received > 0 {
			n = countAgain(n)
		}
		return n
	}
	take := func(pairs []checkup.Pair, upTo int) {
		for _, p := range pairs {
			if len(counts) >= upTo {
				return
			}
			counts[p] = count(p)
		}
	}
	measurable := measurableOf(w, roster, explained)
	separating := explained.Separating(random, func(p checkup.Pair) int {
		if !measurable(p) {
			return 0
		}
		return count(p)
	})
	others := most - min(len(failed), most/2)
	take(undecided, others)
	take(together, others)
	take(heldUp, others)
	take(failed, most-min(len(separating), most/separatingShare))
	take(separating, most)
	take(failed, most)
	ports := demandPorts(record, counts, random)
	for _, n := range counts {
		packets -= n
	}
	for _, p := range slices.Backward(separating) { // pairs beyond the sample may be larger than those within
		if n := counts[p]; packets < 0 && j.Find(p) == nil {
			packets += n
			delete(counts, p)
		}
	}
	return furtherLook(w, counts, ports)
}

// measurableOf returns which pairs a further look can measure, of the sample or not: from agents that measured
// something to targets with an address, on other nodes.
func measurableOf(w *checkup.Worksheet, roster *checkup.Roster, x *localise.Explanation) func(checkup.Pair) bool {
	return func(p checkup.Pair) bool {
		if roster == nil || p.Target >= len(roster.Targets) || w.Sources[p.Source].Node == w.Targets[p.Target].Node {
			return false
		}
		entry := &roster.Targets[p.Target]
		return entry.Cause == nil && entry.Addresses[p.Family] != "" && x.Measured(p.Source)
	}
}

// mostAgain is the largest number of pairs of a second look at a mesh, and of their
// measurements.
func mostAgain(w *checkup.Worksheet) (pairs, packets int) {
	pairs = min(w.CountPairs(), max(leastAgain, w.Budget/budgetShare))
	var counts []int
	for p := range w.Pairs() {
		n := countAgain(w.Measurements(p))
		if p.Transport != checkup.ICMP {
			n = max(n, flowsAgain*ofFlow)
		}
		counts = append(counts, n)
	}
	slices.Sort(counts)
	for _, n := range counts[len(counts)-pairs:] {
		packets += n
	}
	return pairs, packets
}

// countAgain is how often the second look measures a pair that was answered in n
// measurements of the first.
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

// demandPorts selects source ports for the pairs of which one port was never answered
// although another one was, and enough measurements for them. The ports are those of the
// first look and some more: the agent of the second look has another address, so parallel
// paths share out the old ports anew. Connections, of which each has a port of its own, get some too: measured
// from any ports, they look as if single pairs and nodes lost an eighth (docs/accuracy.md, one of eight paths).
func demandPorts(record *checkup.Record, counts map[checkup.Pair]int, random *rand.Rand) map[checkup.Pair][]int {
	ports := map[checkup.Pair][]int{}
	if record == nil {
		return ports
	}
	more := make([]int, flowsAgain) // the same for all pairs
	for i := range more {
		more[i] = firstPort + random.IntN(lastPort-firstPort+1)
	}
	for i := range record.Observations {
		o := &record.Observations[i]
		if _, asked := counts[o.Pair]; !asked || o.Received == 0 ||
			!slices.ContainsFunc(o.Flows, func(f checkup.Flow) bool { return f.Sent > 0 && f.Received == 0 }) {
			continue
		}
		var all []int
		for _, f := range o.Flows {
			all = append(all, f.Port)
		}
		for _, port := range append(all, more...) {
			if port >= 1 && port <= 65535 && !slices.Contains(ports[o.Pair], port) && len(ports[o.Pair]) < flowsAgain {
				ports[o.Pair] = append(ports[o.Pair], port)
			}
		}
		counts[o.Pair] = max(counts[o.Pair], flowsAgain*ofFlow)
	}
	return ports
}

// furtherLook returns the worksheet of the look after w at the given pairs; nil if there
// are none.
func furtherLook(w *checkup.Worksheet, counts map[checkup.Pair]int, ports map[checkup.Pair][]int) *checkup.Worksheet {
	if len(counts) == 0 {
		return nil
	}
	var asked []checkup.Again
	for p, count := range counts {
		asked = append(asked, checkup.Again{Pair: p, Count: count})
	}
	all := *w
	all.Assignments = assign(make([][]int, len(w.Assignments)), asked)
	stops := stopsOf(w, counts, ports)
	var again []checkup.Again
	for p := range all.Pairs() {
		if count, is := counts[p]; is {
			again = append(again, checkup.Again{Pair: p, Count: count, Ports: ports[p], Stops: stops(p)})
		}
	}
	return all.FurtherLook(again)
}

// stopsOf returns a function that returns the stopping points of a pair of a second look with these counts and source
// ports: none if the plan has no limit on loss, if the pair is measured no oftener than before, and if it demands
// source ports, because a dead one shows only if each is used several times.
func stopsOf(
	w *checkup.Worksheet,
	counts map[checkup.Pair]int,
	ports map[checkup.Pair][]int,
) func(checkup.Pair) checkup.Stops {
	limit := w.Expect.Loss.Max
	may := func(p checkup.Pair) bool {
		return limit != nil && !w.Expect.Unreachable && len(ports[p]) == 0 && counts[p] > w.Measurements(p)
	}
	points := 0
	for p := range counts {
		if may(p) {
			points += judge.StopPoints
		}
	}
	by := map[int]checkup.Stops{} // by count
	return func(p checkup.Pair) checkup.Stops {
		if !may(p) {
			return nil
		}
		n := counts[p]
		if _, known := by[n]; !known {
			by[n] = judge.StopsOf(n, float64(*limit)/100, judge.LevelAtStops(w, points))
		}
		return by[n]
	}
}

// assign adds the targets of a further look's pairs to those of each source, in order. Pairs of sources that do not
// exist are left out.
func assign(assignments [][]int, again []checkup.Again) [][]int {
	all := make([][]int, len(assignments))
	for s, targets := range assignments {
		all[s] = slices.Clone(targets)
	}
	for _, a := range again {
		if a.Source >= 0 && a.Source < len(all) {
			all[a.Source] = append(all[a.Source], a.Target)
		}
	}
	for s := range all {
		slices.Sort(all[s])
		all[s] = slices.Compact(all[s])
	}
	return all
}
