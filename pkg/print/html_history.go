// SPDX-License-Identifier: Apache-2.0

package print

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
)

type htmlHistory struct {
	// Top says that the history is the page, not a part of it.
	Top          bool
	Title, Tally string
	Strip        []htmlBox
	Trends       []htmlTrendLine
	Findings     *htmlTable
	Sections     []htmlLines
	// Form is the address that the form for a pair asks; empty for none.
	Form, Source, Target string
	Pair                 *htmlLines
	Runs                 []htmlRun
	MoreRuns             string
}

// htmlBox is one run, or a gap, of the strip.
type htmlBox struct{ Class, Text, Title, URL string }

type htmlTrendLine struct{ Name, Label, ViewBox, D, Dots, Typical string }

type htmlRun struct {
	Started, Verdict, Counts, Gap string
	Link                          htmlLink
}

type htmlPlans struct {
	Title string
	Notes []string
	Rows  []htmlPlan
}

type htmlPlan struct {
	Plan, Run               htmlLink
	Verdict, Ended, Summary string
}

func htmlHistoryOf(h *history.Overview, links Links) *htmlHistory {
	v := &htmlHistory{Title: htmlClip(historyTitle(h)), Tally: htmlClip(tally(h))}
	v.runs(h, links)
	for i, t := range h.Trends {
		if i == htmlTrends {
			break
		}
		name := "round trips of " + t.Check + " " + t.Probe
		v.trend("Median "+name, t.P50, t.Typical, "run")
		if t.Daily != nil {
			v.trend("Median "+name+" by day", t.Daily.P50, 0, "day")
			v.trend("99th percentile of "+name+" by day", t.Daily.P99, 0, "day")
		}
	}
	if len(h.Findings) > 0 {
		t := &checkup.Table{Noun: "finding", Columns: []checkup.Column{
			{Name: "finding"}, {Name: "first seen"}, {Name: "last seen"}, {Name: "runs", Measure: checkup.MeasureCount},
			{Name: "check"}, {Name: "message of the newest run"},
		}}
		for _, f := range slices.Backward(h.Findings) {
			t.Rows = append(t.Rows, []checkup.Cell{
				checkup.Text(f.Finding), checkup.Text(stamp(f.First)), checkup.Text(stamp(f.Last)), checkup.Number(f.Runs),
				checkup.Text(f.Check), checkup.Text(f.Message),
			})
		}
		v.Findings = htmlTableOf("Findings over time", t)
	}
	for i := range h.Coverage {
		v.Sections = append(v.Sections, htmlSection(func(p *printer) {
			p.heading(0, "Coverage of check "+h.Coverage[i].Check)
			p.cumulative(&h.Coverage[i].Cumulative)
		}))
	}
	if len(h.SetAside) > 0 {
		v.Sections = append(v.Sections, htmlLines{"Ignored", htmlClips(h.SetAside)})
	}
	return v
}

// runs fills the strip and the table of runs.
func (v *htmlHistory) runs(h *history.Overview, links Links) {
	boxes := map[checkup.RunVerdict]string{checkup.RunPass: "P", checkup.RunFail: "F", checkup.RunInconclusive: "I"}
	from := max(0, len(h.Runs)-htmlStrip)
	gap := func(here func(g history.Gap) bool) {
		i := slices.IndexFunc(h.Gaps, here)
		if i < 0 {
			return
		}
		g := h.Gaps[i]
		text := gapText(g)
		v.Strip = append(v.Strip, htmlBox{"gap", fmt.Sprintf("%d missing", g.Missed), text, ""})
		v.Runs = append(v.Runs, htmlRun{Started: "after " + stamp(g.After), Gap: text})
	}
	for i := from; i < len(h.Runs); i++ {
		r := &h.Runs[i]
		if i > from {
			gap(func(g history.Gap) bool { return g.Before.Equal(r.Started) })
		}
		c := r.Counts
		counts := fmt.Sprintf("%d pass, %d fail, %s%d unmeasured", c.Pass, c.Fail, undecided(c.Undecided), c.Unmeasured)
		verdict := htmlVerdict(string(r.Verdict))
		class, url := verdict, links.run(r.UID)
		if boxes[r.Verdict] == "" {
			class = string(checkup.RunInconclusive)
		}
		text := boxes[r.Verdict]
		if text == "" {
			text = "?"
		}
		title := htmlClip(stamp(r.Started) + " " + r.Name + ": " + verdict + ", " + counts)
		v.Strip = append(v.Strip, htmlBox{class, text, title, url})
		v.Runs = append(v.Runs, htmlRun{
			Started: stamp(r.Started), Verdict: verdict, Counts: counts, Link: htmlLink{htmlClip(r.Name), url},
		})
	}
	if n := len(h.Runs); n > 0 {
		last := h.Runs[n-1].Started
		gap(func(g history.Gap) bool { return g.After.Equal(last) && g.Before.After(last) })
	}
	slices.Reverse(v.Runs)
	if from > 0 {
		v.MoreRuns = "... and " + checkup.Count(from, "older run")
	}
}

// trend draws delays as a line, with breaks where a run or a day, the noun, has none; no line if none has one.
func (v *htmlHistory) trend(name string, values []int64, typical int64, noun string) {
	values = values[max(0, len(values)-htmlTrend):]
	low, high := int64(0), int64(0)
	for _, us := range values {
		if us > 0 && (low == 0 || us < low) {
			low = us
		}
		high = max(high, us)
	}
	if high == 0 {
		return
	}
	label := fmt.Sprintf("%s to %s in %s", micros(low), micros(high), checkup.Count(len(values), noun))
	bottom, top := low, high
	if typical > 0 {
		label += ", usually " + micros(typical)
		bottom, top = min(bottom, typical), max(top, typical)
	}
	const height = 100
	y := func(us int64) string {
		if top == bottom {
			return strconv.Itoa(height / 2)
		}
		return decimal(height - 5 - (height-10)*float64(us-bottom)/float64(top-bottom))
	}
	var d, dots strings.Builder
	pen := "M"
	for i, us := range values {
		if us <= 0 {
			pen = "M"
			continue
		}
		fmt.Fprintf(&d, "%s%d %s", pen, i, y(us))
		if pen == "M" && (i+1 == len(values) || values[i+1] <= 0) { // a line of one point is not drawn
			fmt.Fprintf(&dots, "M%d %sh.01", i, y(us))
		}
		pen = "L"
	}
	line := htmlTrendLine{
		Name: htmlClip(name), Label: label, D: d.String(), Dots: dots.String(),
		ViewBox: fmt.Sprintf("-0.5 0 %d %d", max(1, len(values)), height),
	}
	if typical > 0 {
		line.Typical = fmt.Sprintf("M-0.5 %sH%d", y(typical), len(values))
	}
	v.Trends = append(v.Trends, line)
}
