// SPDX-License-Identifier: Apache-2.0

package print

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// BlockOptions say how Blocks prints.
type BlockOptions struct {
	// Indent of titles, in columns. What has a title is indented by two more.
	Indent int
	// Width in columns at which text is wrapped at spaces, which no table exceeds, and
	// above which a grid is left out. 0 wraps nothing and leaves nothing out.
	Width int
	// Lines is the most rows of a table, and the most items of a list; 0 means 20,
	// less than 0 all. Lists of named items are fields of one thing: all are printed.
	Lines int
	// Rest says where the columns, rows and items are that are left out; empty prints
	// only which columns, and how many rows and items.
	Rest string
	// Color writes ANSI colours, Unicode draws grids with block characters.
	Color, Unicode bool
}

// Blocks prints blocks below each other. A block without a title goes on at the
// indentation of the block above it. Its error is the writer's.
func Blocks(w io.Writer, blocks []checkup.Block, o BlockOptions) error {
	p := newPrinter(w, TextOptions{
		Width: cmp.Or(o.Width, math.MaxInt), Lines: o.Lines, Rest: o.Rest, Color: o.Color, Unicode: o.Unicode,
	})
	p.wrap = o.Width
	p.blocks(o.Indent, blocks)
	return p.w.Flush()
}

// The name of a field takes so many columns, or more where one is longer.
const fieldColumns = 14

// A text of a table is narrowed to at least so many columns: one at the end of its lines before columns are left out;
// that one again and the others after that.
const (
	lastColumns = 24
	textColumns = 16
)

func (p *printer) blocks(indent int, blocks []checkup.Block) {
	at := indent
	for i := range blocks {
		b := &blocks[i]
		switch {
		case b.Title != "":
			p.heading(indent, b.Title)
			at = indent + 2
		case b.Table != nil || b.Grid != nil:
			p.line("")
		}
		switch {
		case b.Table != nil:
			p.table(at, b.Table)
		case b.List != nil:
			p.list(at, b.List)
		case b.Grid != nil:
			p.grid(at, b.Grid, "pair")
		default:
			p.text(at, 0, b.Note)
		}
	}
}

func (p *printer) heading(indent int, s string) {
	p.line("")
	p.line("%s%s", spaces(indent), p.bold(checkup.Clean(s)))
}

// text prints words, wrapped, with as much more indentation below as hang says.
func (p *printer) text(indent, hang int, s string) {
	for i, line := range p.wrapped(s, indent+hang) {
		if i == 1 {
			indent += hang
		}
		p.line("%s", strings.TrimRight(spaces(indent)+line, " "))
	}
}

// shown is how many of n things are printed.
func (p *printer) shown(n int) int {
	if p.o.Lines > 0 {
		return min(n, p.o.Lines)
	}
	return n
}

// more says how many things were left out, if any.
func (p *printer) more(indent, n int, noun string) {
	if n <= 0 {
		return
	}
	p.text(indent, 2, fmt.Sprintf("... and %s%s", checkup.Count(n, "more "+noun), p.elsewhere()))
}

func (p *printer) list(indent int, l *checkup.List) {
	if slices.ContainsFunc(l.Items, isField) {
		p.fields(indent, l.Items)
		return
	}
	p.items(indent, l.Items, l.Noun)
}

func isField(i checkup.Item) bool { return i.Name != "" && i.Verdict == "" }

func (p *printer) items(indent int, items []checkup.Item, noun string) {
	n := p.shown(len(items))
	for i := range items[:n] {
		item := &items[i]
		text := item.Text
		if item.Name != "" {
			text = strings.TrimSuffix(item.Name+": "+text, ": ")
		}
		if item.Verdict == "" {
			p.text(indent, 2, text)
		} else {
			// Wrapped as plain text, because colour takes no columns.
			v := string(item.Verdict)
			for k, line := range p.wrapped(v+" "+text, indent+2) {
				if k == 0 {
					p.line("%s%s%s", spaces(indent), p.verdict(v), strings.TrimPrefix(line, checkup.Clean(v)))
				} else {
					p.line("%s%s", spaces(indent+2), line)
				}
			}
		}
		p.below(indent+2, item)
	}
	p.more(indent, len(items)-n, cmp.Or(noun, "line"))
}

// fields prints items with their names in one column and their texts in another.
func (p *printer) fields(indent int, items []checkup.Item) {
	width := fieldColumns
	for i := range items {
		if items[i].Verdict == "" {
			width = max(width, runes(checkup.Clean(items[i].Name))+2)
		}
	}
	for i := range items {
		item := &items[i]
		if item.Verdict != "" {
			p.items(indent, items[i:i+1], "")
			continue
		}
		name := checkup.Clean(item.Name)
		for _, line := range p.wrapped(item.Text, indent+width) {
			p.line("%s", strings.TrimRight(spaces(indent)+pad(name, width)+line, " "))
			name = ""
		}
		p.below(indent+width, item)
	}
}

// below prints what belongs to an item.
func (p *printer) below(indent int, item *checkup.Item) {
	if len(item.Items) > 0 {
		p.list(indent, &checkup.List{Items: item.Items})
	}
	if item.Table != nil {
		p.table(indent, item.Table)
	}
}

// table prints aligned columns, numbers to the right. It is not wider than the page: columns are left out, and named
// below the table, and long texts go on below themselves.
func (p *printer) table(indent int, t *checkup.Table) {
	if len(t.Columns) == 0 {
		return
	}
	n := p.shown(len(t.Rows))
	rows, dropped := p.rows(indent, t, n)
	for _, row := range rows {
		for _, line := range row {
			p.line("%s", line)
		}
	}
	p.dropped(indent, dropped)
	p.more(indent, len(t.Rows)-n, cmp.Or(t.Noun, "row"))
}

// rows are the lines of the head and of the first n rows of a table, and the names of the columns that are left out.
func (p *printer) rows(indent int, t *checkup.Table, n int) (rows [][]string, dropped []string) {
	cells := make([][]string, 1, n+1)
	widths := make([]int, len(t.Columns))
	for _, c := range t.Columns {
		cells[0] = append(cells[0], checkup.Clean(c.Name))
	}
	for _, r := range t.Rows[:n] {
		row := make([]string, len(t.Columns))
		for i := range row {
			row[i] = "-"
			if i < len(r) {
				row[i] = cell(r[i], t.Columns[i].Measure)
			}
		}
		cells = append(cells, row)
	}
	for _, row := range cells {
		for i, s := range row {
			widths[i] = max(widths[i], runes(s))
		}
	}
	shown := fit(t.Columns, widths, p.o.Width-indent)
	for i, name := range cells[0] {
		if !slices.Contains(shown, i) {
			dropped = append(dropped, name)
		}
	}
	for _, row := range cells {
		rows = append(rows, rowLines(indent, t.Columns, row, shown, widths))
	}
	return rows, dropped
}

// rowLines are the lines of a row: as many as the cell that needs most.
func rowLines(indent int, columns []checkup.Column, row []string, shown, widths []int) (lines []string) {
	parts := make([][]string, len(row))
	for _, i := range shown {
		parts[i] = broken(row[i], widths[i])
		for len(lines) < len(parts[i]) {
			lines = append(lines, spaces(indent))
		}
	}
	for k := range lines {
		for _, i := range shown {
			s := ""
			if k < len(parts[i]) {
				s = parts[i][k]
			}
			if columns[i].Measure == "" {
				lines[k] += pad(s, widths[i]) + "  "
			} else {
				lines[k] += spaces(widths[i]-runes(s)) + s + "  "
			}
		}
		lines[k] = strings.TrimRight(lines[k], " ")
	}
	return lines
}

// fit returns the columns of a table for which the page has room, and narrows widths to what they get. First it leaves
// out columns by their priority, then it narrows texts, then it leaves out columns from the right.
func fit(columns []checkup.Column, widths []int, room int) (shown []int) {
	for i := range columns {
		shown = append(shown, i)
	}
	text := func(i int) bool { return columns[i].Measure == "" }
	over := func() int {
		wide := -2
		for _, i := range shown {
			wide += widths[i] + 2
		}
		return wide - room
	}
	// narrower is how much narrower a text at the end can be.
	narrower := func(least int) int {
		if last := shown[len(shown)-1]; text(last) {
			return max(0, widths[last]-least)
		}
		return 0
	}
	for over() > narrower(lastColumns) {
		least := 0
		for k, i := range shown {
			if k > 0 && columns[i].Priority > 0 && columns[i].Priority >= columns[shown[least]].Priority {
				least = k
			}
		}
		if least == 0 {
			break
		}
		shown = slices.Delete(shown, least, least+1)
	}
	widths[shown[len(shown)-1]] -= min(narrower(textColumns), max(0, over()))
	for over() > 0 {
		widest := -1
		for _, i := range shown {
			if text(i) && widths[i] > textColumns && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
	}
	for over() > 0 && len(shown) > 1 {
		shown = shown[:len(shown)-1]
	}
	if over() > 0 {
		widths[shown[0]] = max(1, room)
	}
	return shown
}

// broken is a text in lines of at most width runes: it ends a line at a space, else behind a sign in a name, else
// anywhere. A width of less than 1 counts as 1.
func broken(s string, width int) (lines []string) {
	width = max(width, 1)
	if runes(s) <= width {
		return []string{s}
	}
	for _, line := range wrap(s, width) {
		for rest := []rune(line); len(rest) > 0; {
			cut := min(len(rest), width)
			if cut < len(rest) {
				if sign := strings.LastIndexAny(string(rest[:cut]), "-./:"); sign > 0 {
					cut = runes(string(rest[:cut])[:sign+1])
				}
			}
			lines = append(lines, string(rest[:cut]))
			rest = rest[cut:]
		}
	}
	return lines
}

// dropped names the columns of a table that are left out, if any.
func (p *printer) dropped(indent int, names []string) {
	if len(names) == 0 {
		return
	}
	text := fmt.Sprintf("not shown in %d columns: %s%s", p.o.Width, strings.Join(names, ", "), p.elsewhere())
	for i, line := range broken(text, p.o.Width-indent-2) {
		p.line("%s", spaces(indent+2*min(i, 1))+line)
	}
}

// elsewhere says where to find what is left out, in parentheses; empty if nobody knows.
func (p *printer) elsewhere() string {
	if p.o.Rest == "" {
		return ""
	}
	return " (" + p.o.Rest + ")"
}

// cell prints a cell; "-" if it is empty.
func cell(c checkup.Cell, m checkup.Measure) string {
	switch {
	case c.Number != nil:
		return number(*c.Number, m)
	case c.Text != "":
		return checkup.Clean(c.Text)
	default:
		return "-"
	}
}

// number prints a number in its measure.
func number(v float64, m checkup.Measure) string {
	plain := strconv.FormatFloat(v, 'f', -1, 64)
	if math.Abs(v) >= 1e15 {
		plain = strconv.FormatFloat(v, 'g', -1, 64)
	}
	switch m {
	case checkup.MeasureMicroseconds:
		if math.Abs(v) >= 1e15 { // more than a time.Duration holds
			return plain + "µs"
		}
		return micros(int64(math.Round(v)))
	case checkup.MeasurePercent:
		return plain + "%"
	case checkup.MeasureBytes:
		return Bytes(v)
	case checkup.MeasurePerSecond:
		return plain + "/s"
	default:
		return plain
	}
}

// Bytes prints a number of bytes in the binary units of Kubernetes quantities:
// "512 B", "1.5 KiB".
func Bytes(n float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, i := n, 0
	for math.Abs(v) >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if i == 0 {
		return strconv.FormatFloat(n, 'f', -1, 64) + " B"
	}
	return strconv.FormatFloat(v, 'f', 1, 64) + " " + units[i]
}

// micros prints microseconds as a duration.
func micros(us int64) string { return (time.Duration(us) * time.Microsecond).String() }

// grid draws a matrix of what noun names, if it fits.
func (p *printer) grid(indent int, m *checkup.Matrix, noun string) {
	wide := 0
	for _, s := range m.Sources {
		wide = max(wide, runes(checkup.Clean(s)))
	}
	number := len(strconv.Itoa(max(len(m.Targets), len(m.Sources))))
	if need := indent + number + 1 + wide + 1 + (number+1)*len(m.Targets); need > p.o.Width {
		p.line("%sleft out: it needs %d columns, and there are %d%s", spaces(indent), need, p.o.Width, p.elsewhere())
		return
	}
	same := slices.Equal(m.Sources, m.Targets)
	head := spaces(indent + number + 1 + wide + 1)
	for i := range m.Targets {
		head += fmt.Sprintf(" %*d", number, i+1)
	}
	p.line("%s", head)
	for i, s := range m.Sources {
		label := ""
		if same {
			label = strconv.Itoa(i + 1)
		}
		line := fmt.Sprintf("%s%*s %s ", spaces(indent), number, label, pad(checkup.Clean(s), wide))
		if i < len(m.Cells) {
			for _, c := range m.Cells[i] {
				line += spaces(number) + p.glyph(c)
			}
		}
		p.line("%s", strings.TrimRight(line, " "))
	}
	if !same {
		for i, t := range m.Targets {
			p.line("%starget %*d is %s", spaces(indent), number, i+1, checkup.Clean(t))
		}
	}
	legend := fmt.Sprintf("%s pass  %s every %s fails  %s some fail  %s unmeasured",
		p.glyph('.'), p.glyph('x'), checkup.Clean(noun), p.glyph('/'), p.glyph('?'))
	if slices.ContainsFunc(m.Cells, func(row string) bool { return strings.Contains(row, "~") }) {
		legend += fmt.Sprintf("  %s undecided", p.glyph('~'))
	}
	p.line("%s%s", spaces(indent), legend)
}

// glyph draws one cell of a grid.
func (p *printer) glyph(c rune) string {
	glyph := string(c)
	if p.o.Unicode {
		switch c {
		case '.':
			glyph = "·"
		case 'x':
			glyph = "█"
		case '/':
			glyph = "▒"
		}
	}
	switch c {
	case '.':
		return p.ansi("32", glyph)
	case 'x', '/':
		return p.ansi("31", glyph)
	case '?', '~':
		return p.ansi("33", glyph)
	default:
		return checkup.Clean(glyph)
	}
}

// wrapped is a text in lines that fit behind an indentation; one line, if nothing is
// wrapped.
func (p *printer) wrapped(s string, indent int) []string {
	if p.wrap <= 0 {
		return []string{checkup.Clean(s)}
	}
	lines := wrap(s, p.wrap-indent)
	for i := range lines {
		lines[i] = checkup.Clean(lines[i])
	}
	return lines
}

// wrap cuts text at line ends, and at spaces into lines of at most width runes, if
// it can.
func wrap(text string, width int) []string {
	var lines []string
	for paragraph := range strings.SplitSeq(text, "\n") {
		line := ""
		for _, word := range strings.Fields(paragraph) {
			if line != "" && runes(line)+1+runes(word) > width {
				lines = append(lines, line)
				line = ""
			}
			if line != "" {
				line += " "
			}
			line += word
		}
		lines = append(lines, line)
	}
	return lines
}

func runes(s string) int { return utf8.RuneCountInString(s) }

func spaces(n int) string { return strings.Repeat(" ", max(0, n)) }

// pad fills a string to a width.
func pad(s string, width int) string { return s + spaces(width-runes(s)) }
