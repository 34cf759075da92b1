// SPDX-License-Identifier: Apache-2.0

package print

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
)

// HistoryJSON writes an overview as one indented JSON document.
func HistoryJSON(w io.Writer, o *history.Overview) error {
	if err := Encode(w, o); err != nil {
		return fmt.Errorf("write history as JSON: %w", err)
	}
	return nil
}

// History prints an overview for people. The newest runs are those that are printed if there are too many. Its error is
// the writer's.
func History(w io.Writer, h *history.Overview, o TextOptions) error {
	p := newPrinter(w, o)
	runs := append([]history.Run(nil), h.Runs...)
	p.line("%s", p.bold(checkup.Clean(historyTitle(h))))
	p.line("%s", tally(h))
	p.historyRuns(h, runs)
	p.historyFindings(h.Findings)
	for i := range h.Coverage {
		p.heading(0, "Coverage of check "+h.Coverage[i].Check)
		p.cumulative(&h.Coverage[i].Cumulative)
	}
	if len(h.Trends) > 0 {
		p.heading(0, "Median round trips, a character for each run")
		for _, t := range h.Trends {
			p.trend(t.Check+" "+t.Probe, t.P50, t.Typical)
		}
	}
	p.daily(h.Trends)
	p.historyPair(h.Pair)
	if len(h.SetAside) > 0 {
		p.heading(0, "Ignored")
		for _, n := range h.SetAside {
			p.line("  %s", checkup.Clean(n))
		}
	}
	return p.w.Flush()
}

// historyTitle names the plan, and how many runs are listed.
func historyTitle(h *history.Overview) string {
	title := "Plan " + h.Plan + ": " + checkup.Count(len(h.Runs), "run")
	if n := len(h.Runs); n > 0 {
		title += fmt.Sprintf(" from %s to %s", stamp(h.Runs[0].Started), stamp(h.Runs[n-1].Started))
	}
	return title
}

// tally counts runs by verdict, and what is missing.
func tally(h *history.Overview) string {
	counts := map[checkup.RunVerdict]int{}
	for _, r := range h.Runs {
		counts[r.Verdict]++
	}
	older := 0
	for _, d := range h.Days {
		counts[checkup.RunPass] += d.Pass
		counts[checkup.RunFail] += d.Fail
		counts[checkup.RunInconclusive] += d.Inconclusive
		older += d.Pass + d.Fail + d.Inconclusive
	}
	s := fmt.Sprintf("%d pass, %d fail, %d inconclusive",
		counts[checkup.RunPass], counts[checkup.RunFail], counts[checkup.RunInconclusive])
	if older > 0 {
		s += fmt.Sprintf(" (%s older than those that are listed)", checkup.Count(older, "run"))
	}
	missed := 0
	for _, g := range h.Gaps {
		missed += g.Missed
	}
	switch {
	case missed > 0:
		s += fmt.Sprintf("; %s without a run, in which %s did not report", checkup.Count(len(h.Gaps), "gap"),
			checkup.Count(missed, "run"))
	case h.Every > 0:
		s += "; no gap"
	}
	if h.Every > 0 {
		s += fmt.Sprintf("; usually a run every %s", time.Duration(h.Every).Round(time.Second))
	}
	return s
}

func (p *printer) historyRuns(h *history.Overview, runs []history.Run) {
	if len(runs) == 0 {
		return
	}
	p.heading(0, "Runs")
	runs = newest(p, runs, "run")
	rows, dropped := p.rows(2, runsTable(runs), len(runs))
	for i, row := range rows {
		if i > 0 { // not the head
			r := runs[i-1]
			p.gap(h.Gaps, func(g history.Gap) bool { return g.Before.Equal(r.Started) })
			verdict := checkup.Clean(string(r.Verdict))
			row[0] = strings.Replace(row[0], verdict, p.verdict(verdict), 1)
		}
		for _, line := range row {
			p.line("%s", line)
		}
	}
	p.dropped(2, dropped)
	last := runs[len(runs)-1].Started
	p.gap(h.Gaps, func(g history.Gap) bool { return g.After.Equal(last) && g.Before.After(last) })
}

// runsTable has a row for each run.
func runsTable(runs []history.Run) *checkup.Table {
	t := &checkup.Table{Columns: []checkup.Column{{Name: "started (UTC)"}, {Name: "verdict"}, {Name: "run"}}}
	names, some := []string{"pass", "fail", "unmeasured"}, false
	for i := range runs {
		some = some || runs[i].Counts.Undecided > 0
	}
	if some {
		names = append(names, "undecided")
	}
	for _, name := range names {
		t.Columns = append(t.Columns, checkup.Column{Name: name, Measure: checkup.MeasureCount})
	}
	for _, r := range runs {
		t.Rows = append(t.Rows, []checkup.Cell{
			checkup.Text(r.Started.UTC().Format("2006-01-02 15:04")), checkup.Text(string(r.Verdict)), checkup.Text(r.Name),
			checkup.Number(r.Counts.Pass), checkup.Number(r.Counts.Fail), checkup.Number(r.Counts.Unmeasured),
			checkup.Number(r.Counts.Undecided),
		}[:len(t.Columns)])
	}
	return t
}

// newest returns the last of a list, as many as the options let print, and prints how many come before.
func newest[T any](p *printer, all []T, noun string) []T {
	n := len(all) - p.o.Lines
	if p.o.Lines <= 0 || n <= 0 {
		return all
	}
	p.line("  ... and %s before", checkup.Count(n, noun))
	return all[n:]
}

func (p *printer) gap(gaps []history.Gap, here func(history.Gap) bool) {
	if i := slices.IndexFunc(gaps, here); i >= 0 {
		p.line("  %s", p.ansi("33", gapText(gaps[i])))
	}
}

// gapText says how long there was no report, and how many runs are missing.
func gapText(g history.Gap) string {
	return fmt.Sprintf("gap: no report for %s, %s missing",
		g.Before.Sub(g.After).Round(time.Second), checkup.Count(g.Missed, "run"))
}

func (p *printer) historyFindings(findings []history.Finding) {
	if len(findings) == 0 {
		return
	}
	p.heading(0, "Findings")
	findings = newest(p, findings, "finding")
	for _, f := range findings {
		p.line("  %s to %s, in %s: check %s: %s", stamp(f.First), stamp(f.Last), checkup.Count(f.Runs, "run"),
			checkup.Clean(f.Check), checkup.Clean(f.Finding))
		p.line("    %s", checkup.Clean(f.Message))
	}
}

func (p *printer) historyPair(results []history.PairResult) {
	if len(results) == 0 {
		return
	}
	p.heading(0, "The pair")
	results = newest(p, results, "run")
	trends := map[string][]int64{}
	var order []string
	several := slices.ContainsFunc(results, func(r history.PairResult) bool {
		return r.Source != results[0].Source || r.Target != results[0].Target
	})
	runs := -1
	for i, r := range results {
		if i == 0 || r.Run != results[i-1].Run {
			runs++
		}
		what := r.Check
		if several {
			what += ": " + r.Source + " -> " + r.Target
		}
		var words []string
		for _, result := range r.Results {
			name := what + " " + result.Probe
			if trends[name] == nil {
				trends[name] = make([]int64, len(results))
				order = append(order, name)
			}
			trends[name][runs] = result.P50
			word := result.Probe + " " + string(result.Verdict)
			if result.P50 > 0 {
				word += fmt.Sprintf(" %s to %s", micros(result.P50), micros(result.Max))
			}
			if result.Loss > 0 {
				word += fmt.Sprintf(", %d%% lost", result.Loss)
			}
			words = append(words, word)
		}
		p.line("  %s  %s  check %s: %s", stamp(r.At), checkup.Clean(r.Run), checkup.Clean(what),
			checkup.Clean(strings.Join(words, "; ")))
	}
	for _, name := range order {
		p.trend(name, trends[name][:runs+1], 0)
	}
}

// Levels of a trend, lowest first.
var (
	blockLevels = []rune("▁▂▃▄▅▆▇█")
	asciiLevels = []rune("_.-=+*#@")
)

// A trend shows the newest runs: at most trendMax, at least trendMin, and as many as there is room for.
const trendMin, trendMax = 8, 60

// trend prints delays as a line of characters, with the range that they span. A run without a delay is a space.
func (p *printer) trend(name string, values []int64, typical int64) {
	for n := min(trendMax, len(values)); ; n-- {
		line := p.trendLine(name, values[len(values)-n:], typical)
		if runes(line) <= p.o.Width || n <= trendMin {
			if line != "" {
				p.line("%s", line)
			}
			return
		}
	}
}

// daily prints the delays by day, all days of a year and more: of so many days a character that each line fits.
func (p *printer) daily(trends []history.Trend) {
	for days := 1; ; days++ {
		var lines []string
		first, fits := "", true
		for _, t := range trends {
			if t.Daily == nil {
				continue
			}
			first = t.Daily.First
			for _, s := range []struct {
				name   string
				values []int64
			}{{"p50", t.Daily.P50}, {"p99", t.Daily.P99}} {
				values := perDays(s.values, days)
				if line := p.trendLine(t.Check+" "+t.Probe+" "+s.name, values, 0); line != "" {
					fits = fits && (len(values) <= trendMin || len(values) <= trendMax && runes(line) <= p.o.Width)
					lines = append(lines, line)
				}
			}
		}
		if !fits {
			continue
		}
		if len(lines) > 0 {
			p.heading(0, fmt.Sprintf("Round trips by day since %s, %s a character, medians of the runs", checkup.Clean(first),
				checkup.Count(days, "day")))
		}
		for _, line := range lines {
			p.line("%s", line)
		}
		return
	}
}

// perDays returns one value for each so many days, the newest of them whole: the median of those that have a delay.
func perDays(values []int64, days int) []int64 {
	var all []int64
	for to := len(values); to > 0; to -= days {
		all = append(all, history.Median(values[max(0, to-days):to]))
	}
	slices.Reverse(all)
	return all
}

// trendLine is the line of a trend; empty if no run has a delay.
func (p *printer) trendLine(name string, values []int64, typical int64) string {
	levels := asciiLevels
	if p.o.Unicode {
		levels = blockLevels
	}
	known := slices.DeleteFunc(slices.Clone(values), func(v int64) bool { return v <= 0 })
	if len(known) == 0 {
		return ""
	}
	low, high := slices.Min(known), slices.Max(known)
	line := make([]rune, len(values))
	for i, v := range values {
		switch {
		case v <= 0:
			line[i] = ' '
		case high == low:
			line[i] = levels[0]
		default:
			line[i] = levels[int(float64(v-low)/float64(high-low)*float64(len(levels)-1)+0.5)]
		}
	}
	text := fmt.Sprintf("  %s  |%s|  %s to %s", checkup.Clean(name), string(line), micros(low), micros(high))
	if typical > 0 {
		text += ", usually " + micros(typical)
	}
	return text
}
