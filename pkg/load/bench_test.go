// SPDX-License-Identifier: Apache-2.0

package load

import "testing"

// BenchmarkPlans loads plans/pod-mesh.cue, as `cue vet -c plans/pod-mesh.cue`
// does.
func BenchmarkPlans(b *testing.B) {
	b.Setenv("CUE_REGISTRY", "none")
	for b.Loop() {
		if _, _, problems := Plans(b.Context(), "../..", []string{"plans/pod-mesh.cue"}); len(problems) > 0 {
			b.Fatal(problems)
		}
	}
}
