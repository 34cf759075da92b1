// SPDX-License-Identifier: Apache-2.0

package services

import (
	"math/rand/v2"
	"slices"
)

// sampling is the sample of one round.
type sampling struct {
	// assignments has the indexes of the addresses of each node, ascending.
	assignments   [][]int
	degree        int // addresses of each node
	round, rounds int
}

// sample selects the pairs of a round: for each of so many nodes degree of so many addresses, 0 for all, at most budget
// pairs; each node has at least one address. All of it follows from the seed.
//
// Addresses are on a ring, in an order of the seed. Nodes are spread evenly around it, in an order of the seed, too. In
// each round a node takes the next block of addresses from its place. So the rounds of a cycle, as many as there are
// blocks in the ring, add up to all pairs (those of the last block that were measured before are measured again), and
// if the nodes together take at least as many addresses as there are, every address is measured in each round.
func sample(seed uint64, round, degree, budget, nodes, addresses int) sampling {
	k := addresses
	if degree > 0 {
		k = min(k, degree)
	}
	k = max(1, min(k, budget/max(nodes, 1)))
	s := sampling{assignments: make([][]int, nodes), degree: k, rounds: (addresses + k - 1) / k}
	s.round = round % s.rounds
	random := rand.New(rand.NewPCG(seed, 0))
	ring, places := random.Perm(addresses), random.Perm(nodes)
	for node, place := range places {
		first := place*addresses/nodes + s.round*k
		for i := range k {
			s.assignments[node] = append(s.assignments[node], ring[(first+i)%addresses])
		}
		slices.Sort(s.assignments[node])
	}
	return s
}
