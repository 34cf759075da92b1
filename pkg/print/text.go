// SPDX-License-Identifier: Apache-2.0

package print

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

	"github.com/checkplan/checkplan/pkg/checkup"
)

// TextOptions say how Text prints.
type TextOptions struct {
	// Width of the terminal in columns; 0 means 80. No table exceeds it. The heat map is
	// left out where it does not fit; other lines are not broken.
	Width int
	// Color writes ANSI colours.
	Color bool
	// Unicode draws the heat map with block characters instead of ASCII.
	Unicode bool
	// Lines is the most lines of each list; 0 means 20, less than 0 all.
	Lines int
	// Rest says where to find what is left out, as that of BlockOptions.
	Rest string
}

// Text prints the report for people. Its error is the writer's.
func Text(w io.Writer, r *checkup.Report, o TextOptions) error {
	p := newPrinter(w, o)
	p.line("%s", p.bold(checkup.Clean(runTitle(r))))
	if when := runTime(r); when != "" {
		p.line("%s", when)
	}
	for i := range r.Checks {
		p.line("")
		p.line("%s %s", p.bold(checkup.Clean(checkTitle(&r.Checks[i]))+":"), p.verdict(string(r.Checks[i].Verdict)))
		p.check(&r.Checks[i], r.Gate)
	}
	if len(r.Leftovers) > 0 {
		p.line("")
		p.line("Left behind, because teardown could not remove it:")
		for _, l := range r.Leftovers {
			p.line("  %s", checkup.Clean(l))
		}
	}
	if len(r.Notes) > 0 {
		p.line("")
		for _, n := range r.Notes {
			p.line("note: %s", checkup.Clean(n))
		}
	}
	p.line("")
	p.line("%s", checkup.Clean(gateLine(r)))
	p.line("%s%s", p.verdict(string(r.Verdict)), checkup.Clean(r.AfterVerdict()))
	return p.w.Flush()
}

// runTitle names plan, run and namespace.
func runTitle(r *checkup.Report) string {
	title := "Plan " + r.Plan
	if r.Run != "" {
		title += ", run " + r.Run
	}
	if r.Namespace != "" {
		title += " in namespace " + r.Namespace
	}
	return title
}

// runTime says when the run started and how long it took; empty if nobody knows.
func runTime(r *checkup.Report) string {
	if r.Started.IsZero() {
		return ""
	}
	when := r.Started.UTC().Format("2006-01-02 15:04:05 UTC")
	if !r.Finished.IsZero() {
		when += ", took " + r.Finished.Sub(r.Started).Round(time.Millisecond).String()
	}
	return when
}

// gateLine says whether the report passes the gate of its plan, and what that
// demands.
func gateLine(r *checkup.Report) string {
	passed := "passed"
	if !r.Passed {
		passed = "not passed"
	}
	require := ""
	if r.Gate.Require != "" {
		require = fmt.Sprintf("require %s, ", r.Gate.Require)
	}
	return fmt.Sprintf("gate: %s (%sat most %s unmeasured)", passed, require, r.Gate.MaxUnmeasured)
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
	// wrap is the width at which text is wrapped; 0 wraps nothing.
	wrap int
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

// line writes a line of cleaned parts, which is no command.
func (p *printer) line(format string, args ...any) {
	fmt.Fprintf(p.w, "%s\n", checkup.NoCommand(fmt.Sprintf(format, args...)))
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
		return p.ansi("33", checkup.Clean(v))
	}
}

// head prints what comes before the findings of a check: counts, why it is inconclusive, conditions and notes.
func (p *printer) head(c *checkup.CheckReport, gate checkup.Gate) {
	noun := nounOf(c)
	if c.Cause != nil {
		p.line("  not measured: %s", checkup.Clean(c.Cause.String()))
	}
	counts := fmt.Sprintf(
		"%s expected: %d pass, %d fail, %s%d unmeasured",
		checkup.Count(
			c.Counts.Expected,
			noun,
		),
		c.Counts.Pass,
		c.Counts.Fail,
		undecided(c.Counts.Undecided),
		c.Counts.Unmeasured,
	)
	if c.Sent > 0 {
		counts += fmt.Sprintf("; %s made", checkup.Count(c.Sent, "measurement"))
	}
	p.line("  %s", checkup.Clean(counts))
	p.secondLook(c)
	if c.Verdict == checkup.RunInconclusive && c.Cause == nil {
		switch {
		case c.Counts.Expected == 0:
			p.line("  inconclusive: no %s was expected", checkup.Clean(noun))
		case c.Counts.Pass+c.Counts.Fail+c.Counts.Undecided == 0:
			p.line("  inconclusive: no %s was measured", checkup.Clean(noun))
		case unconfirmed(c):
			p.line("  inconclusive: the second look confirmed no failed %s (gate.confirm)", checkup.Clean(noun))
		default:
			p.line(
				"  inconclusive: %s of the %ss are unmeasured; the gate allows %s",
				checkup.PercentOf(c.Counts.Unmeasured, c.Counts.Expected),
				checkup.Clean(noun),
				gate.MaxUnmeasured,
			)
		}
	}
	for _, k := range c.Conditions {
		p.line("  condition: %s", checkup.Clean(condition(k)))
	}
	for _, n := range c.Notes {
		p.line("  note: %s", checkup.Clean(n))
	}
}

// check prints all of one check but its title.
func (p *printer) check(c *checkup.CheckReport, gate checkup.Gate) {
	noun := nounOf(c)
	p.head(c, gate)
	p.findings(c.Findings, noun)
	p.compared(c)
	for _, b := range c.Background {
		p.line("  background: %s", checkup.Clean(background(b)))
	}
	p.blocks(2, c.Blocks)
	if !c.BlocksListUnits {
		p.measured(c, checkup.Fail, "Failed")
		p.measured(c, checkup.Undecided, "Undecided")
		p.measured(c, checkup.Pass, "Gone")
		p.unmeasured(c)
	}
	if m := c.Matrix; m != nil && len(m.Sources) > 0 && len(m.Targets) > 0 {
		p.heading(2, "Source by target")
		whole := *p
		whole.o.Rest = "--output html draws it"
		whole.grid(4, m, noun)
	}
	p.covered(c)
	p.delays(c.Delays)
	p.agents(c)
}

// agents prints what agents report about themselves.
func (p *printer) agents(c *checkup.CheckReport) {
	if len(c.Agents) == 0 {
		return
	}
	l := &checkup.List{Noun: "note"}
	for _, a := range c.Agents {
		l.Items = append(l.Items, checkup.Item{Text: a.Source + " " + a.Note})
	}
	p.heading(2, fmt.Sprintf("What the %ss report about themselves", cmp.Or(c.Reporter, "agent")))
	p.list(4, l)
}

// undecided prints the number of undecided units, with a comma; empty if there are none.
func undecided(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d undecided, ", n)
}

// nounOf is what a check counts.
func nounOf(c *checkup.CheckReport) string { return cmp.Or(c.Noun, "unit") }

// condition prints "<type> is <status>, reason <reason>: <message>".
func condition(c checkup.Condition) string {
	s := fmt.Sprintf("%s is %s, reason %s", c.Type, c.Status, c.Reason)
	if c.Message != "" {
		s += ": " + c.Message
	}
	return s
}

// lines prints texts below a title, or the first of them and how many more there
// are.
func (p *printer) lines(title string, texts []string) {
	l := &checkup.List{}
	for _, s := range texts {
		l.Items = append(l.Items, checkup.Item{Text: s})
	}
	p.heading(2, title)
	p.list(4, l)
}

func (p *printer) findings(findings []checkup.Finding, unit string) {
	if len(findings) == 0 {
		return
	}
	p.heading(2, "Findings")
	for i, f := range findings {
		p.line("  %3d. %s", i+1, p.ansi("31", checkup.Clean(said(f))))
		p.line("       %s", checkup.Clean(explains(f, unit)))
		for _, s := range f.For {
			p.line("       + %s", checkup.Clean(s))
		}
		for _, s := range f.Against {
			p.line("       - %s", checkup.Clean(s))
		}
		if len(f.Alternatives) > 0 {
			p.line("       ? %s", checkup.Clean(alternatives(f)))
		}
	}
}

// explains is the cause of a finding, with what it explains.
func explains(f checkup.Finding, unit string) string {
	s := f.String() + ", explains " + explained(f, unit)
	if f.OnlyThis < f.Explains {
		s += fmt.Sprintf(", %d of them explained by no other finding", f.OnlyThis)
	}
	if found := confirmation(f.Confirmation, 0); found != "" {
		s += ", " + found
	}
	return s
}

// explained is what a finding explains: failed units, or with a change those that became worse.
func explained(f checkup.Finding, unit string) string {
	switch {
	case f.Change == nil:
		return checkup.Count(f.Explains, "failed "+unit)
	case f.Change.Limit == checkup.LimitLoss:
		return checkup.Count(f.Explains, unit) + " with losses"
	default:
		return checkup.Count(f.Explains, "slower "+unit)
	}
}

// compared says with how many earlier runs the check was compared, unless a finding says it.
func (p *printer) compared(c *checkup.CheckReport) {
	if s := compared(c); s != "" {
		p.line("  %s", s)
	}
}

// compared is what a check was compared with, in words; empty if it was not, or if a finding says it.
func compared(c *checkup.CheckReport) string {
	switch k := c.Compared; {
	case k == nil:
		return ""
	case k.Runs < k.Needed:
		return fmt.Sprintf("compared with earlier runs: not yet, %d of %s are needed", k.Runs, checkup.Count(k.Needed, "run"))
	case slices.ContainsFunc(c.Findings, func(f checkup.Finding) bool { return f.Change != nil }):
		return ""
	default:
		return fmt.Sprintf("compared with the last %s: no regression", checkup.Count(k.Runs, "run"))
	}
}

// alternatives are the causes that the sample cannot distinguish from a finding's, in words.
func alternatives(f checkup.Finding) string {
	return "this sample cannot distinguish it from: " + strings.Join(f.Alternatives, "; ")
}

// background is what no finding explains, in words.
func background(b checkup.Background) string {
	what := "packets lost"
	if b.Limit != checkup.LimitLoss {
		what = fmt.Sprintf("answers slower than the limit of %s", b.Limit)
	}
	return fmt.Sprintf(
		"%.2g%% of %d %s everywhere, at most %.2g%%: no cause stands out",
		float64(b.Rate),
		b.Sent,
		what,
		float64(b.Upper),
	)
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

// cause of a unit; one that nobody gave has no stage and no message.
func cause(u *checkup.Unit) checkup.Cause {
	if u.Cause == nil {
		return checkup.Cause{}
	}
	return *u.Cause
}

// why prints a cause.
func why(c checkup.Cause) string {
	if c == (checkup.Cause{}) {
		return "no cause reported"
	}
	return c.String()
}

// way is "<source> -> <target>", or the unit's name where it cannot be drawn.
func way(u *checkup.Unit) string {
	if u.Source == "" || u.Target == "" {
		return u.Name
	}
	return u.Source + " -> " + u.Target
}

// measured prints the units with one verdict, those of one source and target with one
// cause in one line. Of those that passed, it prints those that failed before.
func (p *printer) measured(c *checkup.CheckReport, v checkup.Verdict, title string) {
	type key struct {
		way   string
		stage checkup.Stage
		alike string
		again checkup.Confirmation
	}
	type packets struct {
		transport checkup.Transport
		size      int
		direction checkup.Direction
	}
	type group struct {
		key
		cause    checkup.Cause
		after    checkup.Duration
		differ   bool
		packets  []packets
		families map[packets][]string
	}
	groups := map[key]*group{}
	var order []*group
	n := 0
	for i := range c.Units {
		u := &c.Units[i]
		if u.Verdict != v || v == checkup.Pass && u.Confirmation != checkup.Gone {
			continue
		}
		n++
		cause := cause(u)
		k := key{way(u), cause.Stage, alike(cause.Message), u.Confirmation}
		g := groups[k]
		if g == nil {
			g = &group{key: k, cause: cause, after: u.After, families: map[packets][]string{}}
			groups[k] = g
			order = append(order, g)
		}
		g.differ = g.differ || g.cause != cause
		w := packets{u.Transport, u.Size, u.Direction}
		if g.families[w] == nil {
			g.packets = append(g.packets, w)
		}
		g.families[w] = append(g.families[w], string(u.Family))
	}
	if n == 0 {
		return
	}
	texts := make([]string, len(order))
	for i, g := range order {
		var ways []string
		for _, w := range g.packets {
			s := strings.TrimSpace(fmt.Sprintf("%s %s", w.transport, strings.Trim(strings.Join(g.families[w], "+"), "+")))
			if w.transport != "" {
				s += fmt.Sprintf(" %dB", w.size)
			}
			switch w.direction {
			case checkup.DirectionForward:
				s += " on the way there"
			case checkup.DirectionReturn:
				s += " on the way back"
			case checkup.DirectionBoth:
				s += " both ways"
			}
			if s != "" {
				ways = append(ways, s)
			}
		}
		texts[i] = g.way + "  " + why(g.cause)
		if g.differ {
			texts[i] += ", and the like"
		}
		if found := confirmation(g.again, g.after); found != "" {
			texts[i] += ", " + found
		}
		if len(ways) > 0 {
			texts[i] += "  [" + strings.Join(ways, ", ") + "]"
		}
	}
	p.lines(fmt.Sprintf("%s %ss (%d)", title, nounOf(c), n), texts)
}

// unmeasuredGroup is the unmeasured units of one cause.
type unmeasuredGroup struct {
	noun             string
	cause            checkup.Cause
	differ           bool // in numbers
	units            int
	sources, targets []string
	names            []string // of units without source and target
}

// String says how many, of what, and why.
func (g unmeasuredGroup) String() string {
	s := checkup.SomeOf(g.names, g.noun)
	if len(g.names) == 0 {
		s = fmt.Sprintf(
			"%s from %s to %s",
			checkup.Count(g.units, g.noun),
			checkup.SomeOf(g.sources, "source"),
			checkup.SomeOf(g.targets, "target"),
		)
	}
	s += ": " + why(g.cause)
	if g.differ {
		s += ", and the like"
	}
	return s
}

// unmeasuredGroups puts together the units that one source or one target of one
// cause accounts for, the largest group first.
func unmeasuredGroups(c *checkup.CheckReport) []unmeasuredGroup {
	type key struct {
		stage checkup.Stage
		alike string
		name  string
	}
	groups := map[key]*unmeasuredGroup{}
	seen := map[key]map[string]bool{}
	var order []*unmeasuredGroup
	for i := range c.Units {
		u := &c.Units[i]
		if u.Verdict != checkup.Unmeasured {
			continue
		}
		cause := cause(u)
		named := u.Source == "" || u.Target == ""
		k := key{stage: cause.Stage, alike: alike(cause.Message)}
		switch {
		// A cause belongs to the target if it is the setup's, else to the source.
		case named:
		case cause.Stage == checkup.StageSetup:
			k.name = "to " + u.Target
		default:
			k.name = "from " + u.Source
		}
		g := groups[k]
		if g == nil {
			g = &unmeasuredGroup{noun: nounOf(c), cause: cause}
			groups[k], seen[k] = g, map[string]bool{}
			order = append(order, g)
		}
		g.units++
		g.differ = g.differ || g.cause != cause
		if named {
			g.names = append(g.names, u.Name)
			continue
		}
		if s := "from " + u.Source; !seen[k][s] {
			seen[k][s] = true
			g.sources = append(g.sources, u.Source)
		}
		if s := "to " + u.Target; !seen[k][s] {
			seen[k][s] = true
			g.targets = append(g.targets, u.Target)
		}
	}
	list := make([]unmeasuredGroup, len(order))
	for i, g := range order {
		list[i] = *g
	}
	slices.SortStableFunc(list, func(a, b unmeasuredGroup) int { return cmp.Compare(b.units, a.units) })
	return list
}

func (p *printer) unmeasured(c *checkup.CheckReport) {
	groups := unmeasuredGroups(c)
	if len(groups) == 0 {
		return
	}
	n := 0
	texts := make([]string, len(groups))
	for i, g := range groups {
		texts[i] = g.String()
		n += g.units
	}
	p.lines(fmt.Sprintf("Unmeasured %ss (%d)", nounOf(c), n), texts)
}

// coverage prints how much was measured; of a sample, which one it was.
func (p *printer) coverage(c *checkup.Coverage) {
	if c == nil {
		return
	}
	p.heading(2, "Coverage")
	partly := ""
	if c.Partial > 0 {
		partly = fmt.Sprintf(", %d more in part", c.Partial)
	}
	of, all := "possible source-target pairs", "the full mesh"
	if c.Noun != "" {
		of = checkup.Clean(c.Noun) + "s"
		all = "all " + of
	}
	p.line("    %d of %d %s measured (%s)%s", c.Measured, c.Possible, of, checkup.PercentOf(c.Measured, c.Possible), partly)
	if c.Rounds > 1 || c.Seed != 0 {
		round := fmt.Sprintf("round %d", c.Round)
		if c.Rounds > 1 {
			round += fmt.Sprintf(" (0 to %d together are %s)", c.Rounds-1, all)
		}
		p.line("    %s, seed %d", round, c.Seed)
	}
	if c.Noun != "" {
		return
	}
	zones := ""
	if c.ZonePairsPossible > 0 {
		zones = fmt.Sprintf("; %d of %d zone pairs", c.ZonePairsHit, c.ZonePairsPossible)
	}
	p.line(
		"    measured per source %s, per target %s%s",
		span(c.OutDegreeMin, c.OutDegreeMax),
		span(c.InDegreeMin, c.InDegreeMax),
		zones,
	)
	if c.FailingUpperBound != nil && c.Measured < c.Possible {
		p.line(
			"    with 95%% confidence at most %.3g%% of the possible source-target pairs fail, if the sample is random",
			100**c.FailingUpperBound,
		)
	}
}

// covered prints what this run, and all runs together, have measured.
func (p *printer) covered(c *checkup.CheckReport) {
	p.coverage(c.Coverage)
	if c.Coverage == nil && c.Cumulative != nil {
		p.heading(2, "Coverage")
	}
	p.cumulative(c.Cumulative)
}

// cumulative prints what all runs of the plan have measured together.
func (p *printer) cumulative(c *checkup.Cumulative) {
	if c == nil {
		return
	}
	if c.Measured == 0 {
		p.line("    no pair was measured in any run of this plan")
		return
	}
	p.line("    %s of all pairs measured since %s, by %s: %d of %d pairs, %d of which failed when measured last",
		checkup.PercentOf(c.Measured, c.Possible), stamp(c.Since), checkup.Count(c.Runs, "run"), c.Measured, c.Possible, c.Failing)
	left := "the newest run added no pair"
	if c.RunsLeft != nil {
		left = checkup.Count(*c.RunsLeft, "more run") + " until all pairs are measured, at this rate"
	}
	switch {
	case c.Measured == c.Possible:
		p.line("    not measured for longest: %s, since %s", checkup.Clean(c.Oldest), stamp(c.OldestAt))
	case c.Oldest != "":
		p.line("    %s; not measured yet: %s", left, checkup.Clean(c.Oldest))
	default:
		p.line("    %s", left)
	}
	if c.FailingUpperBound != nil && c.Measured < c.Possible {
		p.line("    with 95%% confidence at most %.3g%% of all pairs fail, if nothing changed since", 100**c.FailingUpperBound)
	}
}

// stamp is a time in UTC, to the minute.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

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
	title, t := delayTable(rows)
	p.heading(2, title)
	whole := *p
	whole.o.Lines = -1
	whole.table(4, t)
}

// delayTable has the delays with their title.
func delayTable(rows []checkup.DelayRow) (string, *checkup.Table) {
	number := func(name string, m checkup.Measure, priority int) checkup.Column {
		return checkup.Column{Name: name, Measure: m, Priority: priority}
	}
	stages := slices.ContainsFunc(rows, func(r checkup.DelayRow) bool { return r.Stage != "" })
	t := &checkup.Table{Columns: []checkup.Column{{Name: "transport"}, {Name: "family"}}}
	names, priorities := []string{"min", "p50", "p90", "p99", "max"}, []int{4, 0, 2, 0, 0, 3}
	title := "Delays of each stage"
	if stages {
		t.Columns = append(t.Columns, checkup.Column{Name: "stage"})
	} else {
		title = "Round-trip delays"
		t.Columns = append(t.Columns, number("size", checkup.MeasureCount, 0))
		names = append(names, "jitter")
	}
	t.Columns = append(
		t.Columns,
		number("pairs", checkup.MeasureCount, 1),
		number("sent", checkup.MeasureCount, 0),
		number("loss", checkup.MeasurePercent, 0),
	)
	if !stages {
		t.Columns = append(t.Columns, number("dup", checkup.MeasureCount, 5), number("reord", checkup.MeasureCount, 5))
	}
	for i, name := range names {
		t.Columns = append(t.Columns, number(name, checkup.MeasureMicroseconds, priorities[i]))
	}
	for _, r := range rows {
		row := []checkup.Cell{checkup.Text(string(r.Transport))}
		if stages {
			row = append(row, checkup.Text(cmp.Or(string(r.Family), "any")), checkup.Text(string(r.Stage)))
		} else {
			row = append(row, checkup.Text(string(r.Family)), checkup.Number(r.Size))
		}
		loss := checkup.Cell{}
		if r.Sent > 0 {
			loss = checkup.Number(r.Loss)
		}
		row = append(row, checkup.Number(r.Pairs), checkup.Number(r.Sent), loss)
		if !stages {
			row = append(row, checkup.Number(r.Duplicates), checkup.Number(r.Reordered))
		}
		if d := r.Delay; d != nil {
			for _, us := range []int64{d.Min, d.P50, d.P90, d.P99, d.Max, d.Jitter}[:len(names)] {
				row = append(row, checkup.Number(us))
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return title, t
}
