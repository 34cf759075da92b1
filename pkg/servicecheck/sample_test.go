// SPDX-License-Identifier: Apache-2.0

package servicecheck

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSample: the rounds of a cycle add up to all pairs, each node has its degree in each round, and if the nodes
// together take enough, every address is measured in every round. The budget holds.
func TestSample(t *testing.T) {
	for _, tt := range []struct{ nodes, addresses, degree, budget int }{
		{1, 1, 0, 1}, {3, 7, 0, 1000}, {5, 40, 8, 1000}, {5, 41, 9, 1000}, {4, 100, 7, 1000}, {10, 3, 2, 1000}, {7, 50, 0, 100}, {100, 10, 1, 100},
	} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			all := map[[2]int]bool{}
			first := SampleOf(7, 0, tt.degree, tt.budget, tt.nodes, tt.addresses)
			for round := range first.Rounds {
				s := SampleOf(7, round, tt.degree, tt.budget, tt.nodes, tt.addresses)
				measured := map[int]bool{}
				pairs := 0
				for node, addresses := range s.Assignments {
					if len(addresses) != first.Degree || !slices.IsSorted(addresses) || len(slices.Compact(slices.Clone(addresses))) != len(addresses) {
						t.Fatalf("round %d, node %d: %v, want %d different ones", round, node, addresses, first.Degree)
					}
					pairs += len(addresses)
					for _, a := range addresses {
						all[[2]int{node, a}], measured[a] = true, true
					}
				}
				if pairs > tt.budget {
					t.Errorf("round %d: %d pairs, budget %d", round, pairs, tt.budget)
				}
				if first.Degree*tt.nodes >= tt.addresses+tt.nodes && len(measured) < tt.addresses {
					t.Errorf("round %d: %d of %d addresses", round, len(measured), tt.addresses)
				}
			}
			if len(all) != tt.nodes*tt.addresses {
				t.Errorf("%d rounds measure %d of %d pairs", first.Rounds, len(all), tt.nodes*tt.addresses)
			}
			if again := SampleOf(7, first.Rounds, tt.degree, tt.budget, tt.nodes, tt.addresses); again.Round != 0 || !cmp.Equal(again.Assignments, first.Assignments) {
				t.Error("the cycle does not begin again")
			}
		})
	}
}
