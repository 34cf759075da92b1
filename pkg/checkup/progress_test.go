// SPDX-License-Identifier: Apache-2.0

package checkup

import "testing"

func TestProgressReadsWhatItPrints(t *testing.T) {
	want := Progress{1, 2, 30, 40}
	got, ok := ReadProgress(map[string]string{AnnotationProgress: want.String()})
	if !ok || got != want {
		t.Errorf("read %v, %v; want %v", got, ok, want)
	}
	for _, value := range []string{"", "agents", "agents 1/2 pairs 3/x"} {
		if got, ok := ReadProgress(map[string]string{AnnotationProgress: value}); ok {
			t.Errorf("%q reads as %v", value, got)
		}
	}
}
