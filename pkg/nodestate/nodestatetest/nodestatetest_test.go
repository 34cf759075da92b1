// SPDX-License-Identifier: Apache-2.0

package nodestatetest

import (
	"encoding/json"
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestGenerate: a seed gives the same case again, and seeds give different ones.
func TestGenerate(t *testing.T) {
	texts := map[string]bool{}
	for seed := range uint64(100) {
		one, err := json.Marshal(Generate(seed))
		if err != nil {
			t.Fatal(err)
		}
		two, err := json.Marshal(Generate(seed))
		if err != nil {
			t.Fatal(err)
		}
		if string(one) != string(two) {
			t.Errorf("seed %d gives two cases:\n%s\n%s", seed, one, two)
		}
		texts[string(one)] = true
	}
	if len(texts) != 100 {
		t.Errorf("100 seeds give %d cases, want 100", len(texts))
	}
}

// TestShrink: what a failure needs is left, and nothing else.
func TestShrink(t *testing.T) {
	unready := func(s discoveryv1.EndpointSlice) bool {
		return slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool {
			return e.Conditions.Ready != nil && !*e.Conditions.Ready
		})
	}
	fails := func(c Case) bool { return c.NodeName == "node-a" && slices.ContainsFunc(c.Slices, unready) }
	shrunk := 0
	for seed := range uint64(30) {
		c := Generate(seed)
		if !fails(c) {
			continue
		}
		small, err := Shrink(c, fails)
		if err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(small)
		if err != nil {
			t.Fatal(err)
		}
		const want = `{"nodeName":"node-a","slices":[{"metadata":{},"addressType":"","endpoints":[{"addresses":null,"conditions":{"ready":false}}],"ports":null}]}`
		if string(got) != want {
			t.Errorf("seed %d:\n%s, want\n%s", seed, got, want)
		}
		shrunk++
	}
	if shrunk < 5 {
		t.Errorf("%d of 30 cases failed, want 5 or more", shrunk)
	}
}

// TestFleet: the size is what was asked for, and a day has events of all kinds, in order.
func TestFleet(t *testing.T) {
	f := NewFleet(100, 1000, 50)
	endpoints := 0
	for _, s := range f.Slices {
		endpoints += len(s.Endpoints)
	}
	if len(f.Services) != 100 || len(f.Slices) != 100 || endpoints != 1000 || len(f.Nodes) != 50 {
		t.Fatalf("%d Services, %d slices, %d endpoints, %d nodes, want 100, 100, 1000, 50", len(f.Services), len(f.Slices), endpoints, len(f.Nodes))
	}
	nodes, services, slices, last := 0, 0, 0, 0
	for e := range f.Day() {
		if e.Second < last {
			t.Fatalf("an event of second %d after one of second %d", e.Second, last)
		}
		last = e.Second
		switch {
		case e.Node != nil:
			nodes++
		case e.Service != nil:
			services++
		default:
			slices++
		}
	}
	if nodes != 50*24*12 || services == 0 || slices == 0 {
		t.Errorf("%d events of Nodes, %d of Services, %d of slices, want %d and some", nodes, services, slices, 50*24*12)
	}
	after := 0
	for _, s := range f.Slices {
		after += len(s.Endpoints)
	}
	if after != endpoints {
		t.Errorf("%d endpoints after the day, want %d: each rollout ends", after, endpoints)
	}
}
