// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"cmp"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// The sample is built on a ring. Sources and targets are each sorted by seeded hash; nodes that are on both sides come
// first, in the same order. Let the larger side have L elements, the smaller one m. For each offset o from 0 to m-1,
// element l of the larger side is paired with element (l+o) mod m of the smaller one. Therefore
//
//   - every possible pair lies on exactly one offset;
//   - on one offset every element of the larger side has one pair, every
//     element of the smaller side at least one (where L = m, exactly one);
//   - where a node has at most one target, all pairs of a node with itself lie
//     on offset 0.
//
// The other offsets are permuted by seed and split into blocks of k, one block per round; the last block is filled up
// from the first. The possible pairs on offset 0 (of nodes that are on one side only) are spread evenly over the
// rounds. A round has these properties, which sample_test.go checks:
//
//   - every source has at least min(k, its possible targets) targets, every
//     target at least min(k, its possible sources) sources; where sources and
//     targets are the same nodes, exactly k;
//   - successive rounds have no pair in common, except for the filling of the last;
//   - the rounds of a cycle, ceil((n-1)/k) of them for n nodes, are together the
//     full mesh;
//   - the order in which nodes are given does not matter.
//
// If targets are existing pods, with several on a node, pairs of a node with itself lie on many offsets. These offsets
// stay in the cycle, which then has ceil(m/k) rounds. An element with fewer than k pairs in a round gets another pair
// from the far side of the cycle. All properties hold, except that these few pairs repeat.
//
// If sources are existing pods, the elements are pods, not nodes: two pods of a node are a possible pair, a pod with
// itself is not.

// sampling holds the pairs of one round.
type sampling struct {
	// assignments holds for each source the indexes of its targets, ascending.
	assignments [][]int
	// degree is k, or in a full mesh the lowest degree of any source or target that is in a pair; 0 if the budget is
	// not enough for a degree of 1.
	degree        int
	round, rounds int
	possible      int
	// zonePairs is the number of ordered zone pairs that have a possible pair,
	// zonePairsHit of them have one in the sample.
	zonePairs, zonePairsHit int
}

// sample selects the pairs of a round. sources has one endpoint per node, or existing pods; degree 0 is the full mesh;
// budget is the maximum number of assignments, at least 1. The degree is lowered until the most expensive round of the
// cycle fits the budget. If even a degree of 1 does not fit, each round has as many pairs of the cycle as fit, and the
// cycle gets longer.
func sample(seed uint64, round, degree, budget int, sources, targets []checkup.Endpoint) sampling {
	r := newRing(seed, sources, targets)
	s := sampling{assignments: make([][]int, len(sources)), rounds: 1, possible: r.possible}
	if r.possible == 0 {
		return s
	}
	k := len(r.offsets)
	if degree > 0 {
		k = min(k, degree)
	}
	for k > 1 && r.cost(k) > budget {
		k--
	}
	if r.cost(k) > budget {
		s.rounds = ceilDiv(r.possible, budget)
		s.round = round % s.rounds
		r.stretch(s.round*budget, budget, s.add)
	} else {
		s.degree, s.rounds = k, r.rounds(k)
		s.round = round % s.rounds
		r.block(k, s.round, s.add)
		r.fill(k, s.round, s.assignments)
		if s.rounds == 1 {
			s.degree = lowestDegree(s.assignments, len(targets))
		}
	}
	s.hitZones(r, budget)
	for _, t := range s.assignments {
		slices.Sort(t)
	}
	return s
}

// lowestDegree is the lowest out- or in-degree that is not 0.
func lowestDegree(assignments [][]int, targets int) int {
	in := make([]int, targets)
	lowest := len(assignments) + targets
	for _, assigned := range assignments {
		if len(assigned) > 0 {
			lowest = min(lowest, len(assigned))
		}
		for _, t := range assigned {
			in[t]++
		}
	}
	for _, n := range in {
		if n > 0 {
			lowest = min(lowest, n)
		}
	}
	return lowest
}

// add assigns a target to a source.
func (s *sampling) add(source, target int) {
	s.assignments[source] = append(s.assignments[source], target)
}

// ring holds sources and targets in their order.
type ring struct {
	seed             uint64
	sources, targets []checkup.Endpoint
	// sourceAt and targetAt are the indexes of sources and targets by position.
	sourceAt, targetAt []int
	// large and small are the sizes of the two sides; targetsLarge reports that targets are the larger one.
	large, small int
	targetsLarge bool
	// sameNode allows pairs of a node with itself.
	sameNode bool
	// self is the number of pairs of a node with itself by offset.
	self []int
	// offsets of the cycle in the order in which they are taken.
	offsets []int
	// spread reports that offset 0 is not in offsets, but spread over the rounds.
	spread bool
	// possible is the number of possible pairs.
	possible int
}

func newRing(seed uint64, sources, targets []checkup.Endpoint) *ring {
	r := &ring{
		seed: seed, sources: sources, targets: targets,
		large: max(len(sources), len(targets)), small: min(len(sources), len(targets)),
		targetsLarge: len(targets) > len(sources),
		sameNode: len(sources) == 1 && !sources[0].Inside &&
			slices.ContainsFunc(targets, func(t checkup.Endpoint) bool { return t.Pod != "" }),
		possible: len(sources) * len(targets),
	}
	if r.small == 0 {
		return r
	}
	isSource, isTarget := map[string]bool{}, map[string]bool{}
	for _, s := range sources {
		isSource[element(s)] = true
	}
	for _, t := range targets {
		isTarget[r.counterpart(t)] = true
	}
	r.sourceAt = order(seed, sources, isTarget, element)
	r.targetAt = order(seed, targets, isSource, r.counterpart)

	// Pairs of a node with itself, by offset.
	r.self = make([]int, r.small)
	selves := 0
	if !r.sameNode {
		at := make(map[string]int, len(sources))
		for p, i := range r.sourceAt {
			at[element(sources[i])] = p
		}
		for p, i := range r.targetAt {
			if q, ok := at[r.counterpart(targets[i])]; ok {
				offset := p - q
				if r.targetsLarge {
					offset = q - p
				}
				r.self[mod(offset, r.small)]++
				selves++
			}
		}
	}
	r.possible -= selves
	r.spread = selves > 0 && r.self[0] == selves
	for o := range r.small {
		if o > 0 || !r.spread {
			r.offsets = append(r.offsets, o)
		}
	}
	slices.SortFunc(r.offsets, func(a, b int) int {
		return cmp.Or(cmp.Compare(checkup.HashInts(seed, a), checkup.HashInts(seed, b)), cmp.Compare(a, b))
	})
	return r
}

// element is what a source is on the ring: a node or, if it is inside an existing pod, the pod.
func element(source checkup.Endpoint) string {
	if source.Inside {
		return source.Pod
	}
	return source.Node
}

// counterpart is the element that a target would be as a source.
func (r *ring) counterpart(target checkup.Endpoint) string {
	if len(r.sources) > 0 && r.sources[0].Inside && target.Pod != "" {
		return target.Pod
	}
	return target.Node
}

// order returns the indexes of endpoints in ring order: those whose element is on the
// other side first, then by hash of the element; existing pods of a node by name.
func order(
	seed uint64, endpoints []checkup.Endpoint, other map[string]bool, element func(checkup.Endpoint) string,
) []int {
	type key struct {
		alone int
		node  uint64
		index int
	}
	keys := make([]key, len(endpoints))
	for i, e := range endpoints {
		keys[i] = key{node: checkup.HashString(seed, element(e)), index: i}
		if !other[element(e)] {
			keys[i].alone = 1
		}
	}
	slices.SortFunc(keys, func(a, b key) int {
		return cmp.Or(
			cmp.Compare(a.alone, b.alone),
			cmp.Compare(a.node, b.node),
			cmp.Compare(
				endpoints[a.index].Node,
				endpoints[b.index].Node,
			),
			cmp.Compare(endpoints[a.index].Pod, endpoints[b.index].Pod),
		)
	})
	indexes := make([]int, len(keys))
	for p, k := range keys {
		indexes[p] = k.index
	}
	return indexes
}

// pair returns the indexes of source and target at a position of the larger
// side and an offset, and whether the pair is possible.
func (r *ring) pair(position, offset int) (source, target int, ok bool) {
	p, q := position, (position+offset)%r.small
	if r.targetsLarge {
		p, q = q, p
	}
	source, target = r.sourceAt[p], r.targetAt[q]
	return source, target, r.pairable(source, target)
}

// pairable reports whether source and target may be a pair.
func (r *ring) pairable(source, target int) bool {
	return r.sameNode || element(r.sources[source]) != r.counterpart(r.targets[target])
}

// rounds is the number of rounds of a cycle with degree k.
func (r *ring) rounds(k int) int {
	if len(r.offsets) == 0 {
		return 1
	}
	return ceilDiv(len(r.offsets), k)
}

// cost is the number of pairs of the most expensive round of a cycle with degree k. It is exact if no pairs are filled
// in, otherwise an upper bound: a block lacks one pair for each node that is paired with itself, and filling adds for
// each at most one pair for the source and one for the target.
func (r *ring) cost(k int) int {
	if k == len(r.offsets) {
		return r.possible
	}
	if r.spread {
		return k*r.large + ceilDiv(r.large-r.self[0], r.rounds(k))
	}
	self := slices.Clone(r.self)
	slices.Sort(self)
	cost := k * r.large
	for _, n := range self[len(self)-k:] {
		cost += n
	}
	return min(cost, r.possible)
}

// block adds the pairs of a round: its block of offsets, and its share of the pairs that are spread over the rounds.
func (r *ring) block(k, round int, add func(source, target int)) {
	for i := range k {
		offset := r.offsets[(round*k+i)%len(r.offsets)]
		for position := range r.large {
			if s, t, ok := r.pair(position, offset); ok {
				add(s, t)
			}
		}
	}
	if !r.spread {
		return
	}
	rounds, n := r.rounds(k), 0
	for position := range r.large {
		if s, t, ok := r.pair(position, 0); ok {
			if n%rounds == round {
				add(s, t)
			}
			n++
		}
	}
}

// fill adds pairs for sources and targets that have fewer pairs than the degree, because they were paired with their
// own node in the block.
func (r *ring) fill(k, round int, assignments [][]int) {
	if r.spread || r.possible == len(r.sources)*len(r.targets) {
		return // no node is paired with itself in a block
	}
	inDegree := make([]int, len(r.targets))
	for _, targets := range assignments {
		for _, t := range targets {
			inDegree[t]++
		}
	}
	// Start at the far side of the cycle.
	first := round*k + len(r.offsets)/2
	try := func(position, offset int) bool {
		s, t, ok := r.pair(position, offset)
		if !ok || slices.Contains(assignments[s], t) {
			return false
		}
		assignments[s] = append(assignments[s], t)
		inDegree[t]++
		return true
	}
	// For elements with fewer than k possible pairs, the search ends at the end of the cycle.
	lacks := func(large bool, position int) int {
		if large == r.targetsLarge {
			return k - inDegree[r.targetAt[position]]
		}
		return k - len(assignments[r.sourceAt[position]])
	}
	for position := range r.large {
		n := lacks(true, position)
		for i := 0; n > 0 && i < len(r.offsets); i++ {
			if try(position, r.offsets[(first+i)%len(r.offsets)]) {
				n--
			}
		}
	}
	for position := range r.small {
		n := lacks(false, position)
		for i := 0; n > 0 && i < len(r.offsets); i++ {
			offset := r.offsets[(first+i)%len(r.offsets)]
			for p := mod(position-offset, r.small); n > 0 && p < r.large; p += r.small {
				if try(p, offset) {
					n--
				}
			}
		}
	}
}

// stretch adds n pairs of the cycle from the given one on, or fewer at its end.
func (r *ring) stretch(from, n int, add func(source, target int)) {
	offsets := r.offsets
	if r.spread {
		offsets = append(slices.Clone(offsets), 0)
	}
	for _, offset := range offsets {
		if here := r.large - r.self[offset]; from >= here {
			from -= here
			continue
		}
		for position := 0; position < r.large && n > 0; position++ {
			s, t, ok := r.pair(position, offset)
			switch {
			case !ok:
			case from > 0:
				from--
			default:
				add(s, t)
				n--
			}
		}
	}
}

// hitZones adds a pair for each ordered zone pair that has a possible pair but none in the sample, as far as the budget
// allows. Endpoints without a zone are skipped. If there are more zone pairs than the budget, none is added.
func (s *sampling) hitZones(r *ring, budget int) {
	type zone struct {
		name             string
		sources, targets []int // by ring position
		elements         map[string]bool
	}
	byName := map[string]*zone{}
	var zones []*zone
	of := func(e checkup.Endpoint, element string) *zone {
		z := byName[e.Zone]
		if z == nil {
			z = &zone{name: e.Zone, elements: map[string]bool{}}
			byName[e.Zone] = z
			zones = append(zones, z)
		}
		z.elements[element] = true
		return z
	}
	for _, i := range r.sourceAt {
		if e := r.sources[i]; e.Zone != "" {
			z := of(e, element(e))
			z.sources = append(z.sources, i)
		}
	}
	for _, i := range r.targetAt {
		if e := r.targets[i]; e.Zone != "" {
			z := of(e, r.counterpart(e))
			z.targets = append(z.targets, i)
		}
	}
	slices.SortFunc(zones, func(a, b *zone) int { return cmp.Compare(a.name, b.name) })
	var from, to []*zone
	within := 0 // zones whose sources and targets are all one element
	for _, z := range zones {
		if len(z.sources) > 0 {
			from = append(from, z)
		}
		if len(z.targets) > 0 {
			to = append(to, z)
		}
		if len(z.sources) > 0 && len(z.targets) > 0 && len(z.elements) == 1 && !r.sameNode {
			within++
		}
	}
	s.zonePairs = len(from)*len(to) - within

	fromIndex, toIndex := map[string]int{}, map[string]int{}
	for i, z := range from {
		fromIndex[z.name] = i
	}
	for i, z := range to {
		toIndex[z.name] = i
	}
	hit := map[int]bool{}
	assigned := 0
	for i, targets := range s.assignments {
		assigned += len(targets)
		zs, ok := fromIndex[r.sources[i].Zone]
		if !ok {
			continue
		}
		for _, t := range targets {
			if zt, ok := toIndex[r.targets[t].Zone]; ok {
				hit[zs*len(to)+zt] = true
			}
		}
	}
	s.zonePairsHit = len(hit)
	if s.zonePairs > budget {
		return
	}
	n := len(from) * len(to)
	for i := 0; i < n && s.zonePairsHit < s.zonePairs && assigned < budget; i++ {
		code := (int(checkup.HashInts(r.seed, s.round)%uint64(n)) + i) % n
		if hit[code] {
			continue
		}
		zs, zt := from[code/len(to)], to[code%len(to)]
		start := checkup.HashInts(r.seed, s.round, code)
		if source, target, ok := r.anyPair(start, zs.sources, zt.targets); ok {
			s.add(source, target)
			s.zonePairsHit++
			assigned++
		}
	}
}

// anyPair returns a possible pair of these sources and targets. The search starts at a position derived from start.
func (r *ring) anyPair(start uint64, sources, targets []int) (source, target int, ok bool) {
	for i := range sources {
		source := sources[(start%uint64(len(sources))+uint64(i))%uint64(len(sources))]
		for j := range targets {
			target := targets[(start>>32+uint64(j))%uint64(len(targets))]
			if r.pairable(source, target) {
				return source, target, true
			}
		}
	}
	return 0, 0, false
}

// mod is the remainder from 0 to m-1.
func mod(a, m int) int { return ((a % m) + m) % m }

// ceilDiv is a/b rounded up, for a >= 0 and b > 0.
func ceilDiv(a, b int) int { return (a + b - 1) / b }
