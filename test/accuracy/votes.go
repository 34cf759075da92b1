// SPDX-License-Identifier: Apache-2.0

package main

// leastVotes is the share of all votes that a component must have, the paper's threshold.
const leastVotes = 0.01

// votes is 007: B. Arzani, S. Ciraci, L. Chamon, Y. Zhu, H. Liu, J. Padhye, B. T. Loo, G. Outhred: "007: Democratically
// Finding the Cause of Packet Drops", NSDI 2018, algorithm 1.
//
// Each observation with a lost packet gives each of the h components on its way 1/h vote. The component with most votes
// is a cause; votes of observations through it are withdrawn; this repeats while a component has at least 1% of all
// votes.
//
// Adapted: the links are our components, of which some are parts of others, and the widest has every vote. So votes are
// weighed by the share of the component's observations that voted. The paper's links carry about as many flows each, so
// that there it would change nothing.
func votes(o *observations) []guess {
	tally, voters := make([]float64, len(o.names)), make([]int, len(o.names))
	open := make([]bool, len(o.list))
	total := 0.0
	for i := range o.list {
		if o.list[i].bad == 0 {
			continue
		}
		open[i] = true
		vote := 1 / float64(len(o.list[i].components))
		total++
		for _, c := range o.list[i].components {
			tally[c] += vote
			voters[c]++
		}
	}
	var found []guess
	for {
		best, most := int32(-1), 0.0
		for c, v := range tally {
			// A component is on the way of an observation once, so its share of all votes is that of the observations.
			if float64(voters[c]) < leastVotes*total || voters[c] == 0 {
				continue
			}
			if v *= float64(voters[c]) / float64(len(o.of[c])); v > most {
				best, most = int32(c), v
			}
		}
		if best < 0 {
			return found
		}
		var newly []int32
		for _, i := range o.of[best] {
			if !open[i] {
				continue
			}
			open[i] = false
			newly = append(newly, i)
			for _, c := range o.list[i].components {
				tally[c] -= 1 / float64(len(o.list[i].components))
				voters[c]--
			}
		}
		found = append(found, guess{name: o.names[best], or: o.same(best, newly)})
	}
}
