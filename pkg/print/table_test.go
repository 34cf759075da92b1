// SPDX-License-Identifier: Apache-2.0

package print

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
)

// tablesOf are the tables in blocks, those of items included.
func tablesOf(blocks []checkup.Block) (tables []*checkup.Table) {
	var below func(l *checkup.List)
	below = func(l *checkup.List) {
		for i := range l.Items {
			if t := l.Items[i].Table; t != nil {
				tables = append(tables, t)
			}
			below(&checkup.List{Items: l.Items[i].Items})
		}
	}
	for _, b := range blocks {
		if b.Table != nil {
			tables = append(tables, b.Table)
		}
		if b.List != nil {
			below(b.List)
		}
	}
	return tables
}

// longer is a table with the longest names and numbers that its cells could have.
func longer(t *checkup.Table) *checkup.Table {
	long := *t
	long.Rows = nil
	for _, row := range t.Rows {
		cells := slices.Clone(row)
		for i := range cells {
			if i%2 == 0 && cells[i].Number == nil {
				cells[i].Text = strings.Repeat("ip-10-0-123-45.eu-central-1.compute.internal.", 6)
			}
			if cells[i].Number != nil {
				cells[i] = checkup.Number(*cells[i].Number + 1e12)
			}
		}
		long.Rows = append(long.Rows, cells)
	}
	return &long
}

// TestTablesFit: no table is wider than the page, whatever its cells hold. A column that is left out is named.
func TestTablesFit(t *testing.T) {
	runs := []history.Run{{Started: time.Unix(0, 0), Name: "day-2-run-1", Verdict: checkup.RunFail, Counts: checkup.Counts{Undecided: 1}}}
	tables := []*checkup.Table{runsTable(runs)}
	for _, r := range scenarios(t) {
		for i := range r.Checks {
			c := &r.Checks[i]
			tables = append(tables, tablesOf(c.Blocks)...)
			if _, delays := delayTable(c.Delays); len(c.Delays) > 0 {
				tables = append(tables, delays)
			}
		}
	}
	if len(tables) < 10 {
		t.Fatalf("only %d tables", len(tables))
	}
	cut := 0
	for _, table := range tables {
		for _, shown := range []*checkup.Table{table, longer(table)} {
			for width := range 9 {
				p := newPrinter(io.Discard, TextOptions{Width: width, Lines: -1, Rest: "all of them: --output json"})
				p.table(4, shown) // too narrow to fit, but it ends
			}
			for _, width := range []int{200, 80, 78, 40, 24} {
				var b strings.Builder
				p := newPrinter(&b, TextOptions{Width: width, Lines: -1, Rest: "all of them: --output json"})
				p.table(4, shown)
				if err := p.w.Flush(); err != nil {
					t.Fatal(err)
				}
				for line := range strings.Lines(b.String()) {
					if line = strings.TrimSuffix(line, "\n"); runes(line) > width {
						t.Errorf("%d columns, want at most %d:\n%s", runes(line), width, b.String())
						break
					}
				}
				_, dropped := p.rows(4, shown, len(shown.Rows))
				cut += len(dropped)
				words := strings.Join(strings.Fields(b.String()), " ")
				for _, name := range dropped {
					if !regexp.MustCompile(`not shown in \d+ columns: .*` + regexp.QuoteMeta(name)).MatchString(words) {
						t.Errorf("column %q is left out without a word:\n%s", name, b.String())
					}
				}
			}
		}
	}
	if cut == 0 {
		t.Error("no column was left out")
	}
}

// TestTableNarrows: first columns with a priority go, the highest first; then texts are broken, behind signs; then
// columns go from the right. Where there is room nothing changes.
func TestTableNarrows(t *testing.T) {
	table := &checkup.Table{
		Columns: []checkup.Column{
			{Name: "node"}, {Name: "sent", Measure: checkup.MeasureCount, Priority: 1},
			{Name: "lost", Measure: checkup.MeasureCount, Priority: 2}, {Name: "p99", Measure: checkup.MeasureMicroseconds},
		},
		Rows: [][]checkup.Cell{
			{checkup.Text("worker-1.rack-2.example.com"), checkup.Number(10), checkup.Number(1), checkup.Number(1500)},
			{checkup.Text("worker-2"), checkup.Number(9), checkup.Number(0), {}},
		},
	}
	for _, tt := range []struct {
		width int
		want  string
	}{
		{46, `
node                         sent  lost    p99
worker-1.rack-2.example.com    10     1  1.5ms
worker-2                        9     0      -
`},
		{45, `
node                         sent    p99
worker-1.rack-2.example.com    10  1.5ms
worker-2                        9      -
not shown in 45 columns: lost (elsewhere)
`},
		{34, `
node                           p99
worker-1.rack-2.example.com  1.5ms
worker-2                         -
not shown in 34 columns: sent,
  lost (elsewhere)
`},
		{24, `
node                 p99
worker-1.rack-2.   1.5ms
example.com
worker-2               -
not shown in 24
  columns: sent, lost
  (elsewhere)
`},
		{12, `
node
worker-1.
rack-2.
example.com
worker-2
not shown
  in 12
  columns:
  sent,
  lost, p99
  (elsewhere
  )
`},
	} {
		var b strings.Builder
		p := newPrinter(&b, TextOptions{Width: tt.width, Rest: "elsewhere"})
		p.table(0, table)
		if err := p.w.Flush(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.TrimPrefix(tt.want, "\n"), b.String()); diff != "" {
			t.Errorf("in %d columns (-want +got):\n%s", tt.width, diff)
		}
	}
}

// TestPrintedTablesFit: no row of a table that is saved in this repository, in goldens, scripts and documents, has more
// than 80 columns. A row is an indented line of four or more cells.
func TestPrintedTablesFit(t *testing.T) {
	row := regexp.MustCompile(`^ {2,10}(\S+( \S+)* {2,}){3,}\S`)
	rows := 0
	for _, pattern := range []string{
		"testdata/*.txt", "testdata/*.log", "../../cmd/planner/testdata/script/*.txtar", "../../README.md", "../../docs/*.md",
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(paths), err)
		}
		for _, path := range paths {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for i, line := range strings.Split(string(b), "\n") {
				if !row.MatchString(line) {
					continue
				}
				rows++
				if runes(line) > 80 {
					t.Error(fmt.Sprintf("%s:%d: %d columns: ", path, i+1, runes(line)) + line)
				}
			}
		}
	}
	if rows < 100 {
		t.Errorf("only %d rows of tables", rows)
	}
}
