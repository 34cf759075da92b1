// SPDX-License-Identifier: Apache-2.0

package main

// hitRatio is the share of the observations through a component that must have failed. Of 0.1, 0.2, ..., 0.9 it is the
// one with the highest F1 score, averaged over the cases and noises, at 50 nodes and degree 10.
const hitRatio = 0.8

// setCover is SCORE, greedy set cover over risk groups: R. R. Kompella, J. Yates, A. Greenberg, A. C. Snoeren: "IP
// Fault Localization Via Risk Modeling", NSDI 2005, and in the same form "Detection and Localization of Network Black
// Holes" (MAX-COVERAGE), INFOCOM 2007, and Tomo, of A. Dhamdhere, R. Teixeira, C. Dovrolis, C. Diot: "NetDiagnoser",
// CoNEXT 2007.
//
// Of the components with a hit ratio of at least a threshold, the one that covers most failed observations that are not
// covered yet is a cause, until no failed observation is left that any of them covers.
//
// Adapted: the risk groups are our components; an observation failed if it lost more than the plan's limit. Of
// components that cover as many, the one with fewer observations is taken: ours are nested, those of the paper are not.
func setCover(o *observations) []guess {
	bad, covered := make([]int, len(o.names)), make([]bool, len(o.list))
	for i := range o.list {
		covered[i] = !o.list[i].failed()
		for _, c := range o.list[i].components {
			if !covered[i] {
				bad[c]++
			}
		}
	}
	var groups []int32
	for c, n := range bad {
		if n > 0 && float64(n) >= hitRatio*float64(len(o.of[c])) {
			groups = append(groups, int32(c))
		}
	}
	var found []guess
	for {
		best := int32(-1)
		for _, c := range groups {
			switch {
			case bad[c] == 0:
			case best < 0, bad[c] > bad[best], bad[c] == bad[best] && len(o.of[c]) < len(o.of[best]):
				best = c
			}
		}
		if best < 0 {
			return found
		}
		var newly []int32
		for _, i := range o.of[best] {
			if covered[i] {
				continue
			}
			covered[i] = true
			newly = append(newly, i)
			for _, c := range o.list[i].components {
				bad[c]--
			}
		}
		found = append(found, guess{name: o.names[best], or: o.same(best, newly)})
	}
}
