// SPDX-License-Identifier: Apache-2.0

package report

// The rules of the text: what is wrong comes first, the numbers behind it after;
// the verdict is the last line, and its first word. A list is never cut without
// saying how much was left out. Nothing that came from the cluster reaches the
// terminal with control characters in it. Colour only repeats what words say.

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// TextOptions say how Text prints.
type TextOptions struct {
	// Width of the terminal in columns; 0 means 80. The heat map is left out where
	// it does not fit; lines are not broken.
	Width int
	// Color writes ANSI colours.
	Color bool
	// Unicode draws the heat map with block characters instead of ASCII.
	Unicode bool
	// Lines is the most lines of each list of pairs; 0 means 20, less than 0 all.
	Lines int
}

// Text prints the report for people. Its error is the writer's.
func Text(w io.Writer, r *checkup.Report, o TextOptions) error {
	p := newPrinter(w, o)
	title := "Plan " + r.Plan
	if r.Run != "" {
		title += ", run " + r.Run
	}
	if r.Namespace != "" {
		title += " in namespace " + r.Namespace
	}
	p.line("%s", p.bold(clean(title)))
	if !r.Started.IsZero() {
		when := r.Started.UTC().Format("2006-01-02 15:04:05 UTC")
		if !r.Finished.IsZero() {
			when += ", took " + r.Finished.Sub(r.Started).Round(time.Millisecond).String()
		}
		p.line("%s", when)
	}
	for i := range r.Checks {
		p.line("")
		p.line("%s %s", p.bold(clean(checkTitle(&r.Checks[i]))+":"), p.verdict(string(r.Checks[i].Verdict)))
		p.check(&r.Checks[i], r.Gate)
	}
	if len(r.Leftovers) > 0 {
		p.line("")
		p.line("Left behind, because teardown could not remove it:")
		for _, l := range r.Leftovers {
			p.line("  %s", clean(l))
		}
	}
	p.line("")
	gate := "the gate lets it through"
	if !r.Passed {
		gate = "the gate does not let it through"
	}
	p.line("Gate: verdict must satisfy %s, at most %s unmeasured: %s", clean(string(r.Gate.Require)), r.Gate.MaxUnmeasured, gate)
	p.line("%s%s", p.verdict(string(r.Verdict)), clean(strings.TrimPrefix(r.Summary, string(r.Verdict))))
	return p.w.Flush()
}

func checkTitle(c *checkup.CheckReport) string {
	if c.Kind == "" {
		return "Check " + c.Name
	}
	return fmt.Sprintf("Check %s (%s)", c.Name, c.Kind)
}

// printer writes lines; bufio keeps its first error for Flush.
type printer struct {
	w *bufio.Writer
	o TextOptions
}

func newPrinter(w io.Writer, o TextOptions) *printer {
	if o.Width <= 0 {
		o.Width = 80
	}
	if o.Lines == 0 {
		o.Lines = 20
	}
	return &printer{w: bufio.NewWriter(w), o: o}
}

func (p *printer) line(format string, args ...any) {
	fmt.Fprintf(p.w, format+"\n", args...)
}

func (p *printer) bold(s string) string { return p.ansi("1", s) }

func (p *printer) ansi(code, s string) string {
	if !p.o.Color {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// verdict of a pair, a check or a run, coloured.
func (p *printer) verdict(v string) string {
	switch v {
	case string(checkup.RunPass):
		return p.ansi("32", v)
	case string(checkup.RunFail):
		return p.ansi("1;31", v)
	default:
		return p.ansi("33", clean(v))
	}
}

// check prints all of one check but its title.
func (p *printer) check(c *checkup.CheckReport, gate checkup.Gate) {
	if c.Cause != nil {
		p.line("  not measured: %s", clean(c.Cause.String()))
	}
	counts := fmt.Sprintf("%s expected: %d pass, %d fail, %d unmeasured", count(c.Counts.Expected, unitOf(c)), c.Counts.Pass, c.Counts.Fail, c.Counts.Unmeasured)
	if c.Sent > 0 {
		counts += fmt.Sprintf("; %s made", count(c.Sent, "measurement"))
	}
	p.line("  %s", counts)
	if c.Verdict == checkup.RunInconclusive && c.Cause == nil {
		switch {
		case c.Counts.Expected == 0:
			p.line("  inconclusive: there was nothing to measure")
		case c.Counts.Pass+c.Counts.Fail == 0:
			p.line("  inconclusive: nothing was measured")
		default:
			p.line("  inconclusive: %s of the %ss are unmeasured, and the gate allows %s", percent(c.Counts.Unmeasured, c.Counts.Expected), unitOf(c), gate.MaxUnmeasured)
		}
	}
	for _, n := range c.Notes {
		p.line("  note: %s", clean(n))
	}
	p.findings(c.Findings, unitOf(c))
	p.blocks(c.Blocks)
	if !c.BlocksListUnits {
		p.failed(of(c, checkup.Fail))
		p.unmeasured(of(c, checkup.Unmeasured))
	}
	p.matrix(c.Matrix)
	p.coverage(c.Coverage, !c.Complete)
	p.delays(c.Delays)
	if len(c.Agents) > 0 {
		p.heading(fmt.Sprintf("What the %ss say of themselves", or(c.Reporter, "agent")))
		p.list(len(c.Agents), "note", func(i int) string {
			return clean(c.Agents[i].Source + " " + c.Agents[i].Note)
		})
	}
}

func (p *printer) blocks(blocks []checkup.Block) {
	for _, b := range blocks {
		if b.Title != "" {
			p.heading(b.Title)
		}
		if b.Note != "" {
			p.line("    %s", clean(b.Note))
		}
		if b.List != nil {
			p.items("    ", b.List.Items)
		}
	}
}

func (p *printer) items(indent string, items []checkup.Item) {
	for _, i := range items {
		text := strings.TrimSpace(i.Name + " " + i.Text)
		if i.Verdict != "" {
			text = string(i.Verdict) + " " + text
		}
		p.line("%s%s", indent, clean(text))
		p.items(indent+"  ", i.Items)
	}
}

func (p *printer) heading(s string) {
	p.line("")
	p.line("  %s", p.bold(s))
}

// list prints n lines, or the first of them and how many more there are.
func (p *printer) list(n int, noun string, text func(int) string) {
	shown := n
	if p.o.Lines > 0 && n > p.o.Lines {
		shown = p.o.Lines
	}
	for i := range shown {
		p.line("    %s", text(i))
	}
	if n > shown {
		p.line("    ... and %s", count(n-shown, "more "+noun))
	}
}

func (p *printer) findings(findings []checkup.Finding, unit string) {
	if len(findings) == 0 {
		return
	}
	p.heading("Findings")
	for i, f := range findings {
		p.line("  %3d. %s", i+1, p.ansi("31", clean(f.Message)))
		explains := kind(f) + ", explains " + count(f.Explains, "failed "+unit)
		if f.OnlyThis < f.Explains {
			explains += fmt.Sprintf(", %d of which nothing else here explains", f.OnlyThis)
		}
		p.line("       %s", clean(explains))
		for _, s := range f.For {
			p.line("       + %s", clean(s))
		}
		for _, s := range f.Against {
			p.line("       - %s", clean(s))
		}
		if len(f.Alternatives) > 0 {
			p.line("       ? this sample cannot tell it from: %s", clean(strings.Join(f.Alternatives, "; ")))
		}
	}
}

// alike is what messages have in common that differ in their numbers only.
func alike(message string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r == '.' {
			return -1
		}
		return r
	}, message)
}

// failed prints the failed pairs, those of one source and target with one cause
// in one line.
func (p *printer) failed(pairs []checkup.Unit) {
	if len(pairs) == 0 {
		return
	}
	type key struct {
		source, target string
		stage          checkup.Stage
		alike          string
	}
	type way struct {
		transport checkup.Transport
		size      int
		direction checkup.Direction
	}
	type group struct {
		key
		cause    checkup.Cause
		differ   bool
		ways     []way
		families map[way][]string
	}
	groups := map[key]*group{}
	var order []*group
	for i := range pairs {
		r := &pairs[i]
		k := key{r.Source, r.Target, r.Cause.Stage, alike(r.Cause.Message)}
		g := groups[k]
		if g == nil {
			g = &group{key: k, cause: *r.Cause, families: map[way][]string{}}
			groups[k] = g
			order = append(order, g)
		}
		g.differ = g.differ || g.cause != *r.Cause
		w := way{r.Transport, r.Size, r.Direction}
		if g.families[w] == nil {
			g.ways = append(g.ways, w)
		}
		g.families[w] = append(g.families[w], string(r.Family))
	}
	p.heading(fmt.Sprintf("Failed pairs (%d)", len(pairs)))
	p.list(len(order), "line", func(i int) string {
		g := order[i]
		var ways []string
		for _, w := range g.ways {
			s := fmt.Sprintf("%s %s %dB", w.transport, strings.Join(g.families[w], "+"), w.size)
			switch w.direction {
			case checkup.DirectionForward:
				s += " on the way there"
			case checkup.DirectionReturn:
				s += " on the way back"
			case checkup.DirectionBoth:
				s += " both ways"
			}
			ways = append(ways, s)
		}
		cause := g.cause.String()
		if g.differ {
			cause += ", and the like"
		}
		return clean(fmt.Sprintf("%s -> %s  %s  [%s]", g.source, g.target, cause, strings.Join(ways, ", ")))
	})
}

// unmeasuredGroup is the unmeasured pairs of one cause.
type unmeasuredGroup struct {
	cause            checkup.Cause
	differ           bool // in numbers
	pairs            int
	sources, targets []string
}

// String says how many, of what, and why.
func (g unmeasuredGroup) String() string {
	s := fmt.Sprintf("%s from %s to %s: %s", count(g.pairs, "pair"), some(g.sources, "source"), some(g.targets, "target"), g.cause)
	if g.differ {
		s += ", and the like"
	}
	return s
}

// unmeasuredGroups puts together the pairs that one source or one target of one
// cause accounts for, the largest group first.
func unmeasuredGroups(pairs []checkup.Unit) []unmeasuredGroup {
	type key struct {
		stage checkup.Stage
		alike string
		name  string
	}
	groups := map[key]*unmeasuredGroup{}
	seen := map[key]map[string]bool{}
	var order []*unmeasuredGroup
	for i := range pairs {
		r := &pairs[i]
		// A cause belongs to the target if it is the setup's, else to the source.
		k := key{r.Cause.Stage, alike(r.Cause.Message), "from " + r.Source}
		if r.Cause.Stage == checkup.StageSetup {
			k.name = "to " + r.Target
		}
		g := groups[k]
		if g == nil {
			g = &unmeasuredGroup{cause: *r.Cause}
			groups[k], seen[k] = g, map[string]bool{}
			order = append(order, g)
		}
		g.pairs++
		g.differ = g.differ || g.cause != *r.Cause
		if s := "from " + r.Source; !seen[k][s] {
			seen[k][s] = true
			g.sources = append(g.sources, r.Source)
		}
		if s := "to " + r.Target; !seen[k][s] {
			seen[k][s] = true
			g.targets = append(g.targets, r.Target)
		}
	}
	list := make([]unmeasuredGroup, len(order))
	for i, g := range order {
		list[i] = *g
	}
	slices.SortStableFunc(list, func(a, b unmeasuredGroup) int { return cmp.Compare(b.pairs, a.pairs) })
	return list
}

func (p *printer) unmeasured(pairs []checkup.Unit) {
	if len(pairs) == 0 {
		return
	}
	groups := unmeasuredGroups(pairs)
	p.heading(fmt.Sprintf("Unmeasured pairs (%d)", len(pairs)))
	p.list(len(groups), "line", func(i int) string { return clean(groups[i].String()) })
}

func (p *printer) matrix(m *checkup.Matrix) {
	if m == nil || len(m.Sources) == 0 || len(m.Targets) == 0 {
		return
	}
	p.heading("Source by target")
	wide := 0
	for _, s := range m.Sources {
		wide = max(wide, utf8.RuneCountInString(clean(s)))
	}
	number := len(fmt.Sprint(max(len(m.Targets), len(m.Sources))))
	if need := 4 + number + 1 + wide + 1 + (number+1)*len(m.Targets); need > p.o.Width {
		p.line("    left out: it needs %d columns, and there are %d", need, p.o.Width)
		return
	}
	same := slices.Equal(m.Sources, m.Targets)
	head := fmt.Sprintf("    %*s %-*s ", number, "", wide, "")
	for i := range m.Targets {
		head += fmt.Sprintf(" %*d", number, i+1)
	}
	p.line("%s", head)
	for i, s := range m.Sources {
		s = clean(s)
		label := ""
		if same {
			label = fmt.Sprint(i + 1)
		}
		line := fmt.Sprintf("    %*s %s%s ", number, label, s, strings.Repeat(" ", wide-utf8.RuneCountInString(s)))
		for _, c := range m.Cells[i] {
			line += strings.Repeat(" ", number) + p.cell(c)
		}
		p.line("%s", strings.TrimRight(line, " "))
	}
	if !same {
		for i, t := range m.Targets {
			p.line("    target %*d is %s", number, i+1, clean(t))
		}
	}
	p.line("    %s pass  %s every pair fails  %s some fail  %s unmeasured", p.cell('.'), p.cell('x'), p.cell('/'), p.cell('?'))
}

// cell draws one cell of the matrix.
func (p *printer) cell(c rune) string {
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
	case '?':
		return p.ansi("33", glyph)
	default:
		return clean(glyph)
	}
}

// coverage prints how much was measured; of a sample, which one it was.
func (p *printer) coverage(c *checkup.Coverage, sampled bool) {
	if c == nil {
		return
	}
	p.heading("Coverage")
	partly := ""
	if c.Partial > 0 {
		partly = fmt.Sprintf(", %d more in part", c.Partial)
	}
	p.line("    %d of %d possible source-target pairs measured (%s)%s", c.Measured, c.Possible, percent(c.Measured, c.Possible), partly)
	if sampled {
		round := fmt.Sprintf("round %d", c.Round)
		if c.Rounds > 1 {
			round += fmt.Sprintf(" (0 to %d together are the full mesh)", c.Rounds-1)
		}
		p.line("    %s, seed %d", round, c.Seed)
	}
	zones := ""
	if c.ZonePairsPossible > 0 {
		zones = fmt.Sprintf("; %d of %d zone pairs", c.ZonePairsHit, c.ZonePairsPossible)
	}
	p.line("    measured per source %s, per target %s%s", span(c.OutDegreeMin, c.OutDegreeMax), span(c.InDegreeMin, c.InDegreeMax), zones)
	if c.FailingUpperBound != nil && c.Measured < c.Possible {
		p.line("    with 95%% confidence at most %.3g%% of the possible source-target pairs fail, if the sample is random", 100**c.FailingUpperBound)
	}
}

func span(low, high int) string {
	if low == high {
		return fmt.Sprint(low)
	}
	return fmt.Sprintf("%d to %d", low, high)
}

func (p *printer) delays(rows []checkup.DelayRow) {
	if len(rows) == 0 {
		return
	}
	stages := slices.ContainsFunc(rows, func(r checkup.DelayRow) bool { return r.Stage != "" })
	var table [][]string
	if stages {
		p.heading("Delays of each stage")
		table = [][]string{{"transport", "family", "stage", "pairs", "sent", "loss", "min", "p50", "p90", "p99", "max"}}
	} else {
		p.heading("Round-trip delays")
		table = [][]string{{"transport", "family", "size", "pairs", "sent", "loss", "dup", "reord", "min", "p50", "p90", "p99", "max", "jitter"}}
	}
	for _, r := range rows {
		row := []string{string(r.Transport), string(r.Family), fmt.Sprint(r.Size), fmt.Sprint(r.Pairs), fmt.Sprint(r.Sent)}
		loss := r.Loss.String()
		if r.Sent == 0 {
			loss = "-"
		}
		if stages {
			row[1], row[2] = or(row[1], "any"), string(r.Stage)
			row = append(row, loss)
		} else {
			row = append(row, loss, fmt.Sprint(r.Duplicates), fmt.Sprint(r.Reordered))
		}
		for i := range table[0][len(row):] {
			v := "-"
			if d := r.Delay; d != nil {
				v = micros([]int64{d.Min, d.P50, d.P90, d.P99, d.Max, d.Jitter}[i])
			}
			row = append(row, v)
		}
		table = append(table, row)
	}
	p.table("  ", 2, table)
}

// table prints rows of the same length, the first columns to the left.
func (p *printer) table(indent string, left int, table [][]string) {
	widths := make([]int, len(table[0]))
	for _, row := range table {
		for i := range row {
			row[i] = clean(row[i])
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	for _, row := range table {
		var b strings.Builder
		for i, s := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(s))
			if i < left {
				b.WriteString("  " + s + pad)
			} else {
				b.WriteString("  " + pad + s)
			}
		}
		p.line("%s%s", indent, strings.TrimRight(b.String(), " "))
	}
}

// clean makes one harmless line of a text that may hold anything: messages come
// from pods.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == utf8.RuneError || !unicode.IsPrint(r) && !unicode.IsSpace(r):
			return '\uFFFD'
		case unicode.IsSpace(r):
			return ' '
		default:
			return r
		}
	}, s)
}
