// SPDX-License-Identifier: Apache-2.0

//go:build !race

// The race detector makes these tests, which encode and compress megabytes, take ten times as long: they run without it.

package record

import (
	"math/rand/v2"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// TestLargeEvidence: more evidence than anybody keeps is an error.
func TestLargeEvidence(t *testing.T) {
	s, _ := newStore()
	if err := s.Save(t.Context(), Evidence(), []checkup.PodEvidence{{Log: strings.Repeat("0", evidenceMost)}}); err != nil {
		t.Fatal(err)
	}
	_, err := LoadEvidence(t.Context(), s.ConfigMaps, metadataOf{s}, s.RunUID)
	if err == nil || !strings.Contains(err.Error(), "load evidence: ") || !strings.Contains(err.Error(), "larger than 64 MiB") {
		t.Errorf("%v, want that it is too large", err)
	}
}

// TestCompressible: a chunk ends where it would be more than its reader takes, however small it is when compressed.
func TestCompressible(t *testing.T) {
	s, _ := newStore()
	want := strings.Repeat("a", chunkRaw+1)
	if err := s.Save(t.Context(), Worksheet("mesh"), want); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := s.Load(t.Context(), Worksheet("mesh"), &got); err != nil || got != want {
		t.Errorf("%d bytes (%v), want %d", len(got), err, len(want))
	}
}

// TestWatchSize: a watch takes few bytes of the cluster for each result, and a
// Flush writes no more at its end than at its beginning.
func TestWatchSize(t *testing.T) {
	s, client := newStore()
	flushed := 0
	client.PrependReactor("*", "configmaps", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if create, ok := a.(k8stesting.CreateAction); ok && a.GetVerb() == "create" {
			flushed += len(create.GetObject().(*corev1.ConfigMap).BinaryData[dataKey])
		}
		return false, nil, nil
	})
	w := s.Writer("control")
	const seconds = 200
	pairs := watched(10, 10)
	most := 0
	r := rand.New(rand.NewPCG(1, 1))
	for n := range seconds {
		for _, p := range pairs {
			w.Results([]checkup.Result{measured(r, p, n)})
		}
		if n%10 != 9 { // as if one were made every ten seconds
			continue
		}
		flushed = 0
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		most = max(most, flushed)
	}
	if limit := 2 * appendedBytes; most > limit {
		t.Errorf("a Flush wrote up to %d bytes, want at most %d", most, limit)
	}
	total := 0
	cms := list(t, s)
	for _, cm := range cms {
		total += len(cm.BinaryData[dataKey])
	}
	if len(cms) < 2 {
		t.Errorf("%d chunks: the test does not test what it should", len(cms))
	}
	each := float64(total) / float64(seconds*len(pairs))
	t.Logf("%.1f bytes for each result, in %d chunks; a Flush wrote up to %d bytes", each, len(cms), most)
	if each > 20 {
		t.Errorf("a result takes %.1f bytes, want at most 20", each)
	}
}
