// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

// BenchmarkRun measures one simulated run of 1,000 nodes at degree 10 with all that a cell does with it: the judge in both
// looks, and each algorithm.
func BenchmarkRun(b *testing.B) {
	for _, s := range []string{"clean", "node in", "half of the nodes"} {
		settings, err := settingsOf("1000", "10", s, "0.1%")
		if err != nil {
			b.Fatal(err)
		}
		b.Run(s, func(b *testing.B) {
			for seed := range b.N {
				if _, err := settings[0].run(uint64(seed)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
