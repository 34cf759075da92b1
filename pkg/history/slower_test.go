// SPDX-License-Identifier: Apache-2.0

package history

import (
	"slices"
	"strings"
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// TestSlower: of two runs of one plan, the history knows which nodes, pairs of zones and single pairs are slower or
// lose more, and says when it no longer does.
func TestSlower(t *testing.T) {
	m := mesh{nodes: nodes(6), degree: 5, zone: map[string]string{}}
	for i, name := range m.nodes {
		m.zone[name] = []string{"east", "west"}[i/3]
	}
	m.slow = func(run int, from, to string) float64 {
		switch {
		case run == 1 && to == "node-0002":
			return 20
		case run == 2 && from == "node-0001" && to == "node-0004":
			return 20
		}
		return 1
	}
	m.verdict = func(run int, _, to string) checkup.Verdict {
		if run == 3 && to == "node-0005" {
			return checkup.Fail
		}
		return checkup.Pass
	}
	var h *History
	var reports []*checkup.Report
	for run := range keepPairs + 6 {
		r, sheets := m.sheet(run)
		h = Merge(h, EntryOf(r, sheets))
		reports = append(reports, r)
	}
	young := Merge(nil, EntryOf(m.sheet(0)))
	for run := range 4 {
		young = Merge(young, EntryOf(m.sheet(run)))
	}
	unlisted := *reports[0]
	unlisted.RunUID = "unlisted"
	for _, tt := range []struct {
		name          string
		h             *History
		before, after *checkup.Report
		groups        []string // udp of the first ones
		pairs         int      // udp
		note          bool
	}{
		{"a node", young, reports[0], reports[1], []string{"to node-0002"}, 5, false},
		{"faster", young, reports[1], reports[0], nil, 0, false},
		{"a pair", young, reports[0], reports[2], []string{"from node-0001", "to node-0004"}, 1, false},
		{"failed pairs are not slower ones", young, reports[0], reports[3], []string{"to node-0005"}, 0, false},
		{"too old", h, reports[0], reports[2], nil, 0, true},
		{"not listed", young, &unlisted, reports[1], nil, 0, true},
		{"no history", &History{Plan: "p"}, reports[0], reports[1], nil, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := checkup.Compare(tt.before, tt.after)
			tt.h.Slower(d, tt.before, tt.after)
			c := d.Checks[0]
			var groups []string
			pairs := 0
			for _, s := range c.SlowerGroups {
				if name, ok := strings.CutSuffix(s.Part, " udp IPv4 0B"); ok {
					groups = append(groups, name)
				}
			}
			for _, s := range c.SlowerUnits {
				if strings.HasSuffix(s.Part, " udp IPv4 0B") {
					pairs++
				}
			}
			first := slices.Sorted(slices.Values(groups[:min(len(groups), len(tt.groups))]))
			if !slices.Equal(first, tt.groups) || tt.groups == nil && len(groups) > 0 || pairs != tt.pairs || (len(c.Notes) > 0) != tt.note {
				t.Errorf("slower are %q and %d pairs, notes %q; want %q, %d, %v", groups, pairs, c.Notes, tt.groups, tt.pairs, tt.note)
			}
		})
	}
}
