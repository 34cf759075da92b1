// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// TestMatrixBands: however many nodes there are, in however many zones, the matrix is at most checkup.MatrixMax wide
// and high, each node has one row, rows do not mix zones, and the worst pair of a cell decides.
func TestMatrixBands(t *testing.T) {
	for _, tt := range []struct {
		nodes, zones, rows, group int
		first, last               string
	}{
		{nodes: 1, zones: 1, rows: 1, first: "n0000", last: "n0000"},
		{nodes: 100, zones: 3, rows: 100, first: "n0000", last: "n0099"},
		{nodes: 101, zones: 0, rows: 51, group: 2, first: "n0000 to n0001 (2)", last: "n0100"},
		{nodes: 150, zones: 3, rows: 75, group: 2, first: "zone-000: n0000 to n0003 (2)", last: "zone-002: n0146 to n0149 (2)"},
		{nodes: 1000, zones: 3, rows: 93, group: 11, first: "zone-000: n0000 to n0030 (11)", last: "zone-002: n0992 to n0998 (3)"},
		{nodes: 5000, zones: 1, rows: 100, group: 50, first: "zone-000: n0000 to n0049 (50)", last: "zone-000: n4950 to n4999 (50)"},
		{nodes: 300, zones: 150, rows: 100, group: 3, first: "n0000 to n0001 (3)", last: "n0298 to n0299 (3)"},
	} {
		t.Run(fmt.Sprintf("%d nodes in %d zones", tt.nodes, tt.zones), func(t *testing.T) {
			w := &checkup.Worksheet{}
			for i := range tt.nodes {
				e := checkup.Endpoint{Node: fmt.Sprintf("n%04d", i)}
				if tt.zones > 0 {
					e.Zone = fmt.Sprintf("zone-%03d", i%tt.zones)
				}
				w.Sources, w.Targets = append(w.Sources, e), append(w.Targets, e)
			}
			last := tt.nodes - 1
			pair := func(source, target int, v checkup.Verdict) Outcome {
				return Outcome{Pair: checkup.Pair{Source: source, Target: target}, Verdict: v}
			}
			j := &Judgement{Worksheet: w, Outcomes: []Outcome{
				pair(0, last, checkup.Pass), pair(0, last, checkup.Unmeasured), pair(0, last, checkup.Undecided),
				pair(last, 0, checkup.Pass), pair(last, 0, checkup.Fail), pair(0, 0, checkup.Fail),
			}}
			m := j.Matrix()
			if len(m.Sources) != tt.rows || len(m.Targets) != tt.rows || len(m.Cells) != tt.rows || m.Group != tt.group {
				t.Errorf("%d x %d names, %d rows, group %d; want %d rows, group %d",
					len(m.Sources), len(m.Targets), len(m.Cells), m.Group, tt.rows, tt.group)
			}
			if tt.rows > checkup.MatrixMax {
				t.Errorf("%d rows, want at most %d", tt.rows, checkup.MatrixMax)
			}
			if !slices.Equal(m.Sources, m.Targets) {
				t.Error("the same nodes have other columns than rows")
			}
			if first, last := m.Sources[0], m.Sources[len(m.Sources)-1]; first != tt.first || last != tt.last {
				t.Errorf("rows from %q to %q, want from %q to %q", first, last, tt.first, tt.last)
			}
			if tt.nodes == 1 {
				return
			}
			all := strings.Join(m.Cells, "")
			for cell, n := range map[string]int{"?": 1, "/": 1, "x": 1, "~": 0, ".": 0} {
				if strings.Count(all, cell) != n {
					t.Errorf("%d cells are %q, want %d: the worst pair of a cell decides", strings.Count(all, cell), cell, n)
				}
			}
			at := func(node int) int { return bandsOf(w.Sources).of[node] }
			if got := m.Cells[at(0)][at(last)]; got != '?' {
				t.Errorf("cell of an unmeasured pair is %q", got)
			}
		})
	}
}
