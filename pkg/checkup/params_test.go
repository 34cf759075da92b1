// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCheckNames(t *testing.T) {
	plan := func(after map[string][]string) *Plan {
		p := &Plan{Checks: map[string]Check{}}
		for name, a := range after {
			p.Checks[name] = Check{After: a}
		}
		return p
	}
	tests := []struct {
		name  string
		after map[string][]string
		want  []string
	}{
		{"none", nil, nil},
		{"alphabetical", map[string][]string{"b": nil, "a": nil}, []string{"a", "b"}},
		{"after", map[string][]string{"a": {"c"}, "b": nil, "c": {"b"}}, []string{"b", "c", "a"}},
		{"unknown name does not block", map[string][]string{"a": {"zz"}}, []string{"a"}},
		{"cycle last", map[string][]string{"a": {"b"}, "b": {"a"}, "c": nil}, []string{"c", "a", "b"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, plan(tt.after).CheckNames()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPairsAgreeWithTheirCount(t *testing.T) {
	w := &Worksheet{
		Assignments: [][]int{{1, 2}, nil, {0}},
		IPFamilies:  IPFamilies,
		Probes:      []TransportProbe{{TCP, Probe{Sizes: []int{0}}}, {UDP, Probe{Sizes: []int{64, 1400}}}},
	}
	seen := map[Pair]bool{}
	for p := range w.Pairs() {
		if seen[p] {
			t.Errorf("duplicate pair %v", p)
		}
		seen[p] = true
	}
	if want := 3 * 2 * 3; len(seen) != want || w.CountPairs() != want {
		t.Errorf("%d pairs, counted %d, want %d", len(seen), w.CountPairs(), want)
	}
	for p := range w.Pairs() {
		_ = p
		break // stopping early must not panic
	}
}

// TestPairsOfPeers: a target with a Peer has one pair, of the peer's family and
// transport.
func TestPairsOfPeers(t *testing.T) {
	w := &Worksheet{
		Sources: []Endpoint{{Node: "a"}, {Node: "b"}},
		Targets: []Endpoint{
			{Peer: &Peer{Family: IPv6, Transport: TLS}}, {Peer: &Peer{Transport: TCP}}, {Component: "etcd"},
		},
		Assignments: [][]int{{0, 1}, {1, 2}},
		IPFamilies:  []IPFamily{IPv4},
		Probes:      []TransportProbe{{TLS, Probe{Sizes: []int{0}, Count: 5}}},
	}
	want := []Pair{
		{0, 0, IPv6, TLS, 0}, {0, 1, AnyIPFamily, TCP, 0}, {1, 1, AnyIPFamily, TCP, 0}, {1, 2, IPv4, TLS, 0},
	}
	if diff := cmp.Diff(want, slices.Collect(w.Pairs())); diff != "" {
		t.Error(diff)
	}
	if got := w.CountPairs(); got != len(want) {
		t.Errorf("counted %d pairs, want %d", got, len(want))
	}
}

func TestObjectNameIsALabel(t *testing.T) {
	for _, role := range append([]Role{RoleWorksheet, RoleRecord, RoleReport, RoleEvidence}, FixtureRoles...) {
		name := ObjectName("uid", strings.Repeat("c", MaxCheckName), role, "node")
		if len(name) > 63 {
			t.Errorf("%s has %d characters", name, len(name))
		}
		if name == ObjectName("uid", strings.Repeat("c", MaxCheckName), role, "other") {
			t.Errorf("%s names two parts", name)
		}
		if name != ObjectName("uid", strings.Repeat("c", MaxCheckName), role, "node") {
			t.Errorf("%s is not stable", name)
		}
	}
}

func TestRequirementAdmits(t *testing.T) {
	admitted := map[Requirement][]RunVerdict{
		RequirePass:      {RunPass},
		RequireNoFailure: {RunPass, RunInconclusive},
		RequireNothing:   {RunPass, RunInconclusive, RunFail},
	}
	for _, r := range append([]Requirement{""}, Requirements...) {
		for _, v := range append([]RunVerdict{""}, RunVerdicts...) {
			want := r == RequireNothing
			for _, a := range admitted[r] {
				want = want || a == v
			}
			if r == "" {
				want = v == RunPass // an unset Requirement is the strictest
			}
			if got := r.Admits(v); got != want {
				t.Errorf("%q admits %q: %v, want %v", r, v, got, want)
			}
		}
	}
}
