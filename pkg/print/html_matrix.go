// SPDX-License-Identifier: Apache-2.0

package print

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
)

type htmlMatrix struct {
	LeftOut, Note string
	// Cells are those of a table, Rows those of a drawing.
	Targets       []string
	Cells         []htmlRow
	ViewBox       string
	Width, Height int
	Rows          []htmlBand
	Ticks         []htmlTick
	Legend        []htmlLegend
	Worst         *htmlTable
	Names         []htmlLines
}

type htmlRow struct {
	Name string
	Row  []htmlGlyph
}

type htmlGlyph struct{ Class, Title, Glyph string }

// htmlBand is a row of a drawing: for each verdict one path around its cells.
type htmlBand struct {
	Title string
	Paths []htmlPath
}

type htmlPath struct{ Fill, D string }

type htmlTick struct{ X, Y, Size, Anchor, Text string }

type htmlLegend struct{ Fill, Text string }

// htmlCells are the cells of a matrix, worst first.
var htmlCells = []struct {
	cell                rune
	pattern, glyph, say string
}{
	{'x', "fail", "✕", "every %s fails"},
	{'/', "some", "/", "some fail"},
	{'?', "unmeasured", "?", "unmeasured"},
	{'~', "undecided", "~", "undecided"},
	{'.', "pass", "·", "pass"},
}

// htmlMatrixOf draws a matrix of what noun names.
func htmlMatrixOf(m *checkup.Matrix, noun string) *htmlMatrix {
	rows, columns := len(m.Sources), len(m.Targets)
	v := &htmlMatrix{Width: columns, Height: rows}
	if rows > checkup.MatrixMax || columns > checkup.MatrixMax {
		v.LeftOut = fmt.Sprintf("left out: %d rows and %d columns are more than %d", rows, columns, checkup.MatrixMax)
		return v
	}
	counts := map[rune]int{}
	for _, row := range m.Cells {
		for _, c := range row {
			counts[c]++
		}
	}
	var all []string
	for _, c := range htmlCells {
		say := c.say
		if c.cell == 'x' {
			say = fmt.Sprintf(say, noun)
		}
		if n := counts[c.cell]; n > 0 {
			all = append(all, fmt.Sprintf("%s: %d", say, n))
		}
		if counts[c.cell] > 0 || c.cell != '~' {
			v.Legend = append(v.Legend, htmlLegend{c.pattern, htmlClip(fmt.Sprintf("%s %s", c.glyph, say))})
		}
	}
	if counts[' '] > 0 {
		v.Legend = append(v.Legend, htmlLegend{Text: "empty: not in the sample"})
	}
	v.Note = "Rows are sources, columns are targets. Cells by what is worst in them: " + strings.Join(all, ", ") + "."
	if m.Group > 1 {
		v.Note += fmt.Sprintf(" A row or column has up to %d neighbours, so a cell has up to %d pairs of them.",
			m.Group, m.Group*m.Group)
	}
	v.Note = htmlClip(v.Note)
	if columns <= htmlGrid && m.Group <= 1 {
		v.table(m, noun)
	} else {
		v.draw(m)
	}
	return v
}

// table has a cell with a sign for each cell.
func (v *htmlMatrix) table(m *checkup.Matrix, noun string) {
	v.Targets = htmlClips(m.Targets)
	for i, source := range m.Sources {
		row := htmlRow{Name: htmlClip(source)}
		for k, c := range []byte(m.Cells[i]) {
			glyph := htmlGlyph{}
			if kind := htmlCellOf(rune(c)); kind >= 0 {
				say := htmlCells[kind].say
				if c == 'x' {
					say = fmt.Sprintf(say, noun)
				}
				glyph = htmlGlyph{
					"cell-" + htmlCells[kind].pattern, htmlClip(source + " -> " + m.Targets[k] + ": " + say), htmlCells[kind].glyph,
				}
			}
			row.Row = append(row.Row, glyph)
		}
		v.Cells = append(v.Cells, row)
	}
}

func htmlCellOf(c rune) int {
	for i := range htmlCells {
		if htmlCells[i].cell == c {
			return i
		}
	}
	return -1
}

// draw makes one path of each row and verdict: neighbours are one rectangle.
func (v *htmlMatrix) draw(m *checkup.Matrix) {
	size := float64(max(v.Width, v.Height)) / 45
	margin := 3.2 * size
	v.ViewBox = fmt.Sprintf("%.2f %.2f %.2f %.2f",
		-margin, -1.8*size, float64(v.Width)+margin+size, float64(v.Height)+2.6*size)
	for i, row := range m.Cells {
		counts := make([]string, 0, len(htmlCells))
		band := htmlBand{}
		for _, kind := range htmlCells {
			var d strings.Builder
			n := 0
			for from := 0; from < len(row); {
				to := from
				for to < len(row) && rune(row[to]) == kind.cell {
					to++
				}
				if to == from {
					from++
					continue
				}
				fmt.Fprintf(&d, "M%d %dh%dv1h-%dz", from, i, to-from, to-from)
				n += to - from
				from = to
			}
			if n > 0 {
				band.Paths = append(band.Paths, htmlPath{kind.pattern, d.String()})
				counts = append(counts, fmt.Sprintf("%s %d", kind.pattern, n))
			}
		}
		band.Title = htmlClip(fmt.Sprintf("row %d, from %s: %s", i+1, m.Sources[i], strings.Join(counts, ", ")))
		v.Rows = append(v.Rows, band)
	}
	tick := func(x, y float64, anchor string, n int) {
		v.Ticks = append(v.Ticks, htmlTick{decimal(x), decimal(y), decimal(size), anchor, strconv.Itoa(n)})
	}
	for n := 1; n <= v.Height; n = nextTick(n) {
		tick(-size/2, float64(n)-.5+size/3, "end", n)
	}
	for n := 1; n <= v.Width; n = nextTick(n) {
		tick(float64(n)-.5, -size/2, "middle", n)
	}
	v.Worst = worst(m)
	if slices.Equal(m.Sources, m.Targets) {
		v.Names = []htmlLines{numbered("Rows and columns", m.Sources)}
	} else {
		v.Names = []htmlLines{numbered("Rows", m.Sources), numbered("Columns", m.Targets)}
	}
}

// nextTick is 10, 20, 30, ... after 1.
func nextTick(n int) int {
	if n == 1 {
		return 10
	}
	return n + 10
}

func decimal(f float64) string { return strconv.FormatFloat(f, 'f', 2, 64) }

func numbered(title string, names []string) htmlLines {
	l := htmlLines{Title: title}
	for i, name := range names {
		l.Lines = append(l.Lines, htmlClip(fmt.Sprintf("%d: %s", i+1, name)))
	}
	return l
}

// worstRows is the number of rows and columns that worst lists.
const worstRows = 10

// worst lists the rows and columns with the most failed cells, then with the most unmeasured ones; nil if there are
// none.
func worst(m *checkup.Matrix) *htmlTable {
	type line struct {
		name             string
		fail, unmeasured int
	}
	var lines []line
	count := func(what string, names []string, cell func(i, k int) byte, length int) {
		for i, name := range names {
			l := line{name: fmt.Sprintf("%s %d, %s", what, i+1, name)}
			for k := range length {
				switch cell(i, k) {
				case 'x', '/':
					l.fail++
				case '?':
					l.unmeasured++
				}
			}
			if l.fail+l.unmeasured > 0 {
				lines = append(lines, l)
			}
		}
	}
	count("row", m.Sources, func(i, k int) byte { return m.Cells[i][k] }, len(m.Targets))
	count("column", m.Targets, func(i, k int) byte { return m.Cells[k][i] }, len(m.Sources))
	if len(lines) == 0 {
		return nil
	}
	slices.SortStableFunc(lines, func(a, b line) int {
		return cmp.Or(cmp.Compare(b.fail, a.fail), cmp.Compare(b.unmeasured, a.unmeasured))
	})
	t := &checkup.Table{Noun: "row or column", Columns: []checkup.Column{
		{Name: "most failed cells"}, {Name: "failed", Measure: checkup.MeasureCount},
		{Name: "unmeasured", Measure: checkup.MeasureCount},
	}}
	for _, l := range lines[:min(len(lines), worstRows)] {
		t.Rows = append(t.Rows, []checkup.Cell{checkup.Text(l.name), checkup.Number(l.fail), checkup.Number(l.unmeasured)})
	}
	v := htmlTableOf("Rows and columns with the most failed cells", t)
	if n := len(lines) - worstRows; n > 0 {
		v.More = fmt.Sprintf("... and %d more rows and columns", n)
	}
	return v
}
