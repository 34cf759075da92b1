// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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

// TestFacts: one about each unit, the last that was recorded.
func TestFacts(t *testing.T) {
	s, _ := newStore()
	w := s.Writer("where")
	first := checkup.Fact{Unit: "target", Content: json.RawMessage(`{"allowed":true}`)}
	source := checkup.Fact{Unit: "source", Cause: &checkup.Cause{Stage: checkup.StageSetup, Message: "not asked"}}
	target := checkup.Fact{Unit: "target", Content: json.RawMessage(`{"message":"exceeded quota","warnings":["w"],"changed":["priority"]}`)}
	for _, f := range []checkup.Fact{first, source, target} {
		w.Fact(f)
	}
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := s.LoadRecord(t.Context(), "where")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]checkup.Fact{source, target}, got.Facts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
