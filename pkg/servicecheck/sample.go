// SPDX-License-Identifier: Apache-2.0

package servicecheck

import (
	"math/rand/v2"
	"slices"
)

// Sample says how many of the possible pairs of a node and an address a run measures.
type Sample struct {
	// Degree is the number of addresses that each node measures. 0 means all.
	Degree int `json:"degree"`
	// Rotate makes each run take the next round; else every run takes Round.
	Rotate bool `json:"rotate"`
	// Round is the first round, counted from 0.
	Round int `json:"round"`
	// Seed orders nodes and addresses. nil means that it is derived from the names of plan and check.
	Seed *uint64 `json:"seed,omitempty"`
	// Budget is the maximum number of pairs that a run measures. The degree is lowered until the sample fits.
	Budget int `json:"budget"`
}

// Sampling is the sample of one round.
type Sampling struct {
	// Assignments has the indexes of the addresses of each node, ascending.
	Assignments   [][]int
	Degree        int // addresses of each node
	Round, Rounds int
}

// SampleOf selects the pairs of a round: for each of so many nodes degree of so many addresses, 0 for all, at most
// budget pairs; each node has at least one address. All of it follows from the seed.
//
// Addresses are on a ring, in an order of the seed. Nodes are spread evenly around it, in an order of the seed, too. In
// each round a node takes the next block of addresses from its place. So the rounds of a cycle, as many as there are
// blocks in the ring, add up to all pairs (those of the last block that were measured before are measured again), and
// if the nodes together take at least as many addresses as there are, every address is measured in each round.
func SampleOf(seed uint64, round, degree, budget, nodes, addresses int) Sampling {
	k := addresses
	if degree > 0 {
		k = min(k, degree)
	}
	k = max(1, min(k, budget/max(nodes, 1)))
	s := Sampling{Assignments: make([][]int, nodes), Degree: k, Rounds: (addresses + k - 1) / k}
	s.Round = round % s.Rounds
	random := rand.New(rand.NewPCG(seed, 0))
	ring, places := random.Perm(addresses), random.Perm(nodes)
	for node, place := range places {
		first := place*addresses/nodes + s.Round*k
		for i := range k {
			s.Assignments[node] = append(s.Assignments[node], ring[(first+i)%addresses])
		}
		slices.Sort(s.Assignments[node])
	}
	return s
}
