// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)

// measured is one measurement such as they are: the n-th of its pair, of which
// some fail and some are spoiled.
func measured(r *rand.Rand, p checkup.Pair, n int) checkup.Result {
	result := checkup.Result{Pair: p, At: began.Add(time.Duration(n)*time.Second + time.Duration(r.IntN(2000))*time.Microsecond)}
	delays := checkup.StageDelays{Connect: 150 + r.Int64N(400), Handshake: 1500 + r.Int64N(2000), Response: 300 + r.Int64N(900)}
	switch {
	case p.Family == checkup.AnyIPFamily:
		delays.Resolve = 200 + r.Int64N(500)
	case p.Transport == checkup.TCP:
		delays.Handshake, delays.Response = 0, 0
	}
	switch r.IntN(50) {
	case 0:
		result.Failure = &checkup.Cause{Stage: checkup.StageConnect, Message: "connection refused"}
		delays = checkup.StageDelays{}
	case 1:
		result.Failure = &checkup.Cause{Stage: checkup.StageResponse, Message: "500 Internal Server Error"}
		delays.Response = 0
	case 2:
		result.Unmeasured = &checkup.Cause{Stage: checkup.StageSelf, Message: "held up for 30ms"}
	}
	result.Delays = delays
	return result
}

// watched are the pairs of so many sources and targets.
func watched(sources, targets int) []checkup.Pair {
	var pairs []checkup.Pair
	for s := range sources {
		for t := range targets {
			p := checkup.Pair{Source: s, Target: t, Family: checkup.IPv4, Transport: checkup.TLS}
			switch t % 4 {
			case 1:
				p.Family = checkup.IPv6
			case 2:
				p.Family = checkup.AnyIPFamily
			case 3:
				p.Transport = checkup.TCP
			}
			pairs = append(pairs, p)
		}
	}
	return pairs
}

// TestResults: whatever order results come in, and however they are flushed, the
// record has each of them, by pair and time.
func TestResults(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 0))
		var all []checkup.Result
		for _, p := range watched(1+r.IntN(3), 1+r.IntN(5)) {
			for n := range r.IntN(30) {
				all = append(all, measured(r, p, n))
			}
		}
		want := slices.Clone(all)
		slices.SortFunc(want, compareResults)
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })

		s, _ := newStore()
		w := s.Writer("control")
		for left := all; len(left) > 0; {
			n := 1 + r.IntN(len(left))
			w.Results(left[:n])
			left = left[n:]
			if r.IntN(2) == 0 {
				if err := w.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, err := s.LoadRecord(t.Context(), "control")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got.Results); diff != "" {
			t.Fatalf("seed %d (-want +got):\n%s", seed, diff)
		}
	}
}

// TestResultsAfterFailedFlush: what a Flush could not write, the next one writes.
func TestResultsAfterFailedFlush(t *testing.T) {
	s, client := newStore()
	w := s.Writer("control")
	r := rand.New(rand.NewPCG(1, 1))
	p := watched(1, 1)[0]
	broken := false
	client.PrependReactor("*", "configmaps", func(a k8stesting.Action) (bool, runtime.Object, error) {
		return broken && a.GetVerb() != "get", nil, errors.New("no route to host")
	})
	var want []checkup.Result
	for n := range 4 {
		result := measured(r, p, n)
		want = append(want, result)
		w.Results([]checkup.Result{result})
		broken = n%2 == 1
		if err := w.Flush(t.Context()); (err != nil) != broken {
			t.Fatalf("flush %d: %v", n, err)
		}
	}
	broken = false
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := s.LoadRecord(t.Context(), "control"); err != nil || !cmp.Equal(want, got.Results) {
		t.Errorf("%v, %v, want all four", got, err)
	}
}

// TestAdmissions: one of each side, the last that was reported.
func TestAdmissions(t *testing.T) {
	s, _ := newStore()
	w := s.Writer("where")
	first := checkup.Admission{Side: checkup.SideTarget, Allowed: true}
	source := checkup.Admission{Side: checkup.SideSource, Cause: &checkup.Cause{Stage: checkup.StageSetup, Message: "not asked"}}
	target := checkup.Admission{Side: checkup.SideTarget, Message: "exceeded quota", Warnings: []string{"w"}, Changed: []string{"priority"}}
	for _, a := range []checkup.Admission{first, source, target} {
		w.Admission(a)
	}
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := s.LoadRecord(t.Context(), "where")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]checkup.Admission{source, target}, got.Admissions); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
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
