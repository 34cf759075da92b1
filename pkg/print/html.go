// SPDX-License-Identifier: Apache-2.0

package print

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
)

//go:embed html.css
var htmlStyle string

//go:embed html.tmpl
var htmlTemplate string

// Limits of a page, which bound its size whatever the report holds.
const (
	htmlItems  = 200  // of each list and table
	htmlText   = 2000 // characters of each text
	htmlDepth  = 8    // of lists in lists
	htmlStrip  = 120  // boxes for runs
	htmlTrend  = 400  // runs, or days, of a trend
	htmlTrends = 40   // probes with trends
	// A matrix with at most so many columns is a table with names. A larger one is a drawing, which any screen can scale.
	htmlGrid = 32
	// barWidth is the width of a bar of counts, in its own units.
	barWidth = 10_000
)

// HTMLOptions say what a page has beyond the report.
type HTMLOptions struct {
	// History of the plan, which follows the report; nil prints none.
	History *history.Overview
	// Links are addresses of further pages, where a server has them.
	Links Links
}

// Links are the addresses of the pages of a server. The zero value links nothing.
type Links struct {
	// Plans is the address of the list of plans, and Nodes that of the list of nodes; empty for none.
	Plans, Nodes string
	// Plan returns the address of a plan's page, Run that of a report by the UID of its run, and Node that of a node's
	// page; empty for none. All may be nil.
	Plan func(namespace, plan string) string
	Run  func(namespace, uid string) string
	Node func(node string) string
	// Namespace is that of the page's plan. Namespaces says that pages name it, because plans of several namespaces may
	// have the same name.
	Namespace  string
	Namespaces bool
}

func (l Links) plan(name string) string {
	if l.Plan == nil {
		return ""
	}
	return l.Plan(l.Namespace, name)
}

func (l Links) run(uid string) string {
	if l.Run == nil {
		return ""
	}
	return l.Run(l.Namespace, uid)
}

func (l Links) node(name string) string {
	if l.Node == nil {
		return ""
	}
	return l.Node(name)
}

// of returns the links of a page about a plan of this namespace.
func (l Links) of(namespace string) Links {
	l.Namespace = namespace
	return l
}

// title of a plan.
func (l Links) title(plan string) string {
	if l.Namespaces {
		return l.Namespace + "/" + plan
	}
	return plan
}

// lists are the links to the lists.
func (l Links) lists() []htmlLink {
	all := []htmlLink{{"Plans", l.Plans}, {"Nodes", l.Nodes}}
	return slices.DeleteFunc(all, func(list htmlLink) bool { return list.URL == "" })
}

// HTML writes the report as one HTML document that needs no other file, no script and no network. Its size is bounded:
// what is left out is counted. Its error is the writer's.
func HTML(w io.Writer, r *checkup.Report, o HTMLOptions) error {
	page := htmlPage{Title: fmt.Sprintf("%s: %s", r.Verdict, runTitle(r)), Report: htmlReportOf(r)}
	links := o.Links.of(r.Namespace)
	page.Lists = links.lists()
	page.Nav = []htmlLink{{htmlClip(links.title(r.Plan)), links.plan(r.Plan)}, {Text: htmlClip(r.Run)}}
	if o.History != nil {
		page.History = htmlHistoryOf(o.History, links)
	}
	return page.write(w)
}

// HTMLHistory writes a history as one HTML document, as HTML does. source and target name the pair of Overview.Pair;
// empty for none. With Links.Plan the page has a form that asks for another pair, as the parameters source and target.
func HTMLHistory(w io.Writer, h *history.Overview, source, target string, links Links) error {
	view := htmlHistoryOf(h, links)
	view.Top, view.Form, view.Source, view.Target = true, links.plan(h.Plan), htmlClip(source), htmlClip(target)
	if source != "" {
		pair := htmlSection(func(p *printer) { p.historyPair(h.Pair) })
		if pair.Title = ""; len(pair.Lines) == 0 {
			pair.Lines = []string{"no run that is remembered has measured this pair"}
		}
		view.Pair = &pair
	}
	title := links.title(h.Plan)
	page := htmlPage{Title: "Plan " + title, Lists: links.lists(), Nav: []htmlLink{{Text: htmlClip(title)}}, History: view}
	return page.write(w)
}

// PlanRow is one plan of a list of plans.
type PlanRow struct {
	Namespace, Plan string
	// Run and UID are those of the newest run with a report, Ended its end. Verdict and Summary are empty if the report
	// could not be read; Problem says why.
	Run, UID string
	Ended    time.Time
	Verdict  checkup.RunVerdict
	Summary  string
	Problem  string
}

// HTMLPlans writes a list of plans as one HTML document, as HTML does, with notes above it.
func HTMLPlans(w io.Writer, title string, rows []PlanRow, notes []string, links Links) error {
	view := &htmlPlans{Title: htmlClip(title), Notes: htmlClips(notes)}
	for i := range rows {
		view.Rows = append(view.Rows, htmlPlanOf(&rows[i], links))
	}
	return (&htmlPage{Title: title, Lists: links.lists(), Plans: view}).write(w)
}

func htmlPlanOf(r *PlanRow, links Links) htmlPlan {
	links = links.of(r.Namespace)
	row := htmlPlan{
		Plan: htmlLink{htmlClip(links.title(r.Plan)), links.plan(r.Plan)}, Run: htmlLink{htmlClip(r.Run), links.run(r.UID)},
		Verdict: htmlVerdict(string(r.Verdict)), Summary: htmlClip(r.Summary),
	}
	if !r.Ended.IsZero() {
		row.Ended = stamp(r.Ended)
	}
	if r.Problem != "" {
		row.Summary = htmlClip("not read: " + r.Problem)
	}
	return row
}

// HTMLPolicy is the Content-Security-Policy of the documents: their own style, and nothing from anywhere.
func HTMLPolicy() string {
	sum := sha256.Sum256([]byte(htmlStyle))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; img-src data:; base-uri 'none'; form-action 'self'"
}

// htmlPage is what the template page prints.
type htmlPage struct {
	Title string
	// Lists and Nav are links: to lists, and the way from there to this page. Without Lists there are none.
	Lists, Nav []htmlLink
	Report     *htmlReport
	History    *htmlHistory
	Plans      *htmlPlans
	Nodes      *htmlNodes
	Node       *htmlNode
}

// Head is constant: html/template refuses to fill in a policy.
func (*htmlPage) Head() template.HTML {
	return template.HTML(`<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="` + HTMLPolicy() + `">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<style>` + htmlStyle + `</style>`)
}

// parsed is the template. It is not parsed at start: task images print no HTML, and do not link it.
var parsed struct {
	sync.Once
	*template.Template
}

func (page *htmlPage) write(w io.Writer) error {
	parsed.Do(func() {
		functions := template.FuncMap{"mark": htmlMark, "barWidth": func() int { return barWidth }}
		parsed.Template = template.Must(template.New("").Funcs(functions).Parse(htmlTemplate))
	})
	page.Title = htmlClip(page.Title)
	var b bytes.Buffer
	if err := parsed.ExecuteTemplate(&b, "page", page); err != nil {
		return fmt.Errorf("write HTML: %w", err)
	}
	// Texts are clean already. This also holds for a text that somebody forgets to clean.
	if _, err := io.WriteString(w, checkup.NoCommand(checkup.CleanLines(b.String()))); err != nil {
		return fmt.Errorf("write HTML: %w", err)
	}
	return nil
}

// htmlMark is the sign of a verdict, which does not need colour.
func htmlMark(verdict string) string {
	switch verdict {
	case string(checkup.RunPass):
		return "✓"
	case string(checkup.RunFail):
		return "✕"
	case string(checkup.Undecided):
		return "~"
	default:
		return "?"
	}
}

// htmlVerdict is a verdict as word and class.
func htmlVerdict(v string) string { return htmlClip(v) }

// htmlClip cleans a text and cuts one that is too long.
func htmlClip(s string) string {
	if len(s) > 4*htmlText { // no rune is longer
		s = s[:4*htmlText]
	}
	s = checkup.Clean(s)
	if runes(s) <= htmlText {
		return s
	}
	return string([]rune(s)[:htmlText]) + "..."
}

// htmlClips is htmlClip of the first texts, and how many more there are.
func htmlClips(texts []string) []string {
	var all []string
	for i, s := range texts {
		if i == htmlItems {
			return append(all, fmt.Sprintf("... and %s", checkup.Count(len(texts)-i, "more line")))
		}
		all = append(all, htmlClip(s))
	}
	return all
}

type htmlLink struct{ Text, URL string }

// htmlLines are lines below a title.
type htmlLines struct {
	Title string
	Lines []string
}

// htmlSection is what the printer of text prints: its first title, and its lines. Both printers use the same words.
func htmlSection(print func(p *printer)) htmlLines {
	var b bytes.Buffer
	p := newPrinter(&b, TextOptions{Width: math.MaxInt, Lines: htmlItems, Unicode: true})
	print(p)
	_ = p.w.Flush() // a bytes.Buffer does not fail
	var s htmlLines
	for i, line := range strings.Split(strings.TrimRight(b.String(), "\n"), "\n") {
		text := htmlClip(strings.TrimSpace(line))
		switch {
		case text == "":
		case i == 1 && s.Title == "" && len(s.Lines) == 0: // heading begins with an empty line
			s.Title = text
		default:
			s.Lines = append(s.Lines, text)
		}
	}
	return s
}

type htmlReport struct {
	Title, When, Verdict, Summary, Gate string
	Tally                               []htmlCount
	Checks                              []htmlCheck
	Notes                               []htmlLines
}

// htmlCount is a number of units with one verdict, and its part of a bar.
type htmlCount struct {
	Verdict string
	N, X, W int
}

type htmlCheck struct {
	ID, Title, Verdict string
	Head               []string
	Tally              []htmlCount
	Findings           []htmlFinding
	MoreFindings       string
	Background         []string
	Blocks             []htmlBlock
	Matrix             *htmlMatrix
	Lists              []htmlLines
	Delays             *htmlDelays
	After              []htmlLines
}

type htmlFinding struct {
	Gone                            bool
	Message, Explains, Alternatives string
	For, Against                    []string
}

func htmlReportOf(r *checkup.Report) *htmlReport {
	v := &htmlReport{
		Title: htmlClip(runTitle(r)), When: runTime(r), Verdict: htmlVerdict(string(r.Verdict)), Gate: htmlClip(gateLine(r)),
		Summary: htmlClip(r.AfterVerdict()), Tally: htmlTally(r.Counts),
	}
	for i := range r.Checks {
		v.Checks = append(v.Checks, htmlCheckOf(&r.Checks[i], r.Gate, "check-"+strconv.Itoa(i+1)))
	}
	if len(r.Leftovers) > 0 {
		v.Notes = append(v.Notes, htmlLines{"Left behind, because teardown could not remove it", htmlClips(r.Leftovers)})
	}
	if len(r.Notes) > 0 {
		v.Notes = append(v.Notes, htmlLines{"Notes", htmlClips(r.Notes)})
	}
	return v
}

// htmlTally counts units by verdict. Undecided is left out if it is 0.
func htmlTally(c checkup.Counts) []htmlCount {
	var all []htmlCount
	at := 0
	for _, v := range []struct {
		verdict checkup.Verdict
		n       int
		always  bool
	}{
		{checkup.Fail, c.Fail, true}, {checkup.Unmeasured, c.Unmeasured, true}, {checkup.Undecided, c.Undecided, false},
		{checkup.Pass, c.Pass, true},
	} {
		if v.n == 0 && !v.always {
			continue
		}
		count := htmlCount{Verdict: string(v.verdict), N: v.n, X: at}
		if v.n > 0 && c.Expected > 0 {
			// One unit of thousands must be visible.
			count.W = max(barWidth/150, int(float64(barWidth)*float64(v.n)/float64(c.Expected)))
			count.W = min(count.W, barWidth-at)
		}
		at += count.W
		all = append(all, count)
	}
	return all
}

func htmlCheckOf(c *checkup.CheckReport, gate checkup.Gate, id string) htmlCheck {
	noun := nounOf(c)
	v := htmlCheck{
		ID: id, Title: htmlClip(checkTitle(c)), Verdict: htmlVerdict(string(c.Verdict)), Tally: htmlTally(c.Counts),
		Head: htmlSection(func(p *printer) { p.head(c, gate) }).Lines,
	}
	v.Findings, v.MoreFindings = htmlFindingsOf(c.Findings, noun)
	if s := compared(c); s != "" {
		v.Background = append(v.Background, htmlClip(s))
	}
	for _, b := range c.Background {
		v.Background = append(v.Background, htmlClip("background: "+background(b)))
	}
	for i := range c.Blocks {
		v.Blocks = append(v.Blocks, htmlBlockOf(&c.Blocks[i]))
	}
	add := func(to *[]htmlLines, print func(p *printer)) {
		if s := htmlSection(print); len(s.Lines) > 0 {
			*to = append(*to, s)
		}
	}
	if !c.BlocksListUnits {
		add(&v.Lists, func(p *printer) { p.measured(c, checkup.Fail, "Failed") })
		add(&v.Lists, func(p *printer) { p.measured(c, checkup.Undecided, "Undecided") })
		add(&v.Lists, func(p *printer) { p.measured(c, checkup.Pass, "Gone") })
		add(&v.Lists, func(p *printer) { p.unmeasured(c) })
	}
	if m := c.Matrix; m != nil && len(m.Sources) > 0 && len(m.Targets) > 0 {
		v.Matrix = htmlMatrixOf(m, noun)
	}
	if len(c.Delays) > 0 {
		v.Delays = htmlDelaysOf(c.Delays)
	}
	add(&v.After, func(p *printer) { p.covered(c) })
	add(&v.After, func(p *printer) { p.agents(c) })
	return v
}

// htmlFindingsOf are the first findings, and how many more there are.
func htmlFindingsOf(findings []checkup.Finding, noun string) (views []htmlFinding, more string) {
	for i, f := range findings {
		if i == htmlItems {
			return views, "... and " + checkup.Count(len(findings)-i, "more finding")
		}
		found := htmlFinding{
			Gone: f.Confirmation == checkup.Gone, Message: htmlClip(said(f)), Explains: htmlClip(explains(f, noun)),
			For: htmlClips(slices.Concat(f.For, f.Rest)), Against: htmlClips(f.Against),
		}
		if len(f.Alternatives) > 0 {
			found.Alternatives = htmlClip(alternatives(f))
		}
		views = append(views, found)
	}
	return views, ""
}

type htmlBlock struct {
	Title, Note string
	Table       *htmlTable
	List        *htmlList
	Grid        *htmlMatrix
}

func htmlBlockOf(b *checkup.Block) htmlBlock {
	v := htmlBlock{Title: htmlClip(b.Title)}
	switch {
	case b.Table != nil:
		v.Table = htmlTableOf(b.Title, b.Table)
	case b.List != nil:
		v.List = htmlListOf(b.List, 0)
	case b.Grid != nil:
		v.Grid = htmlMatrixOf(b.Grid, "pair")
	default:
		v.Note = htmlClip(b.Note)
	}
	return v
}

type htmlList struct {
	Fields bool
	Items  []htmlItem
	More   string
}

type htmlItem struct {
	Name, Verdict, Text string
	List                *htmlList
	Table               *htmlTable
}

func htmlListOf(l *checkup.List, depth int) *htmlList {
	v := &htmlList{Fields: slices.ContainsFunc(l.Items, isField)}
	for i := range l.Items {
		if i == htmlItems {
			v.More = "... and " + checkup.Count(len(l.Items)-i, "more "+htmlClip(orLine(l.Noun)))
			break
		}
		item := &l.Items[i]
		view := htmlItem{Verdict: htmlVerdict(string(item.Verdict)), Text: htmlClip(item.Text)}
		if v.Fields {
			view.Name = htmlClip(item.Name)
		} else if item.Name != "" {
			view.Text = htmlClip(strings.TrimSuffix(item.Name+": "+item.Text, ": "))
		}
		if len(item.Items) > 0 && depth < htmlDepth {
			view.List = htmlListOf(&checkup.List{Items: item.Items}, depth+1)
		}
		if item.Table != nil {
			view.Table = htmlTableOf(item.Name, item.Table)
		}
		v.Items = append(v.Items, view)
	}
	return v
}

func orLine(noun string) string {
	if noun == "" {
		return "line"
	}
	return noun
}

type htmlTable struct {
	Label   string
	Columns []htmlCell
	Rows    [][]htmlCell
	More    string
}

// htmlCell has a Verdict or a Text, which is a link if it has a URL.
type htmlCell struct {
	Text    string
	Number  bool
	URL     string
	Verdict string
}

func htmlTableOf(label string, t *checkup.Table) *htmlTable {
	v := &htmlTable{Label: htmlClip(label)}
	if v.Label == "" {
		v.Label = "Table"
	}
	columns := t.Columns[:min(len(t.Columns), htmlItems)]
	for _, c := range columns {
		v.Columns = append(v.Columns, htmlCell{Text: htmlClip(c.Name), Number: c.Measure != ""})
	}
	for i, r := range t.Rows {
		if i == htmlItems {
			noun := t.Noun
			if noun == "" {
				noun = "row"
			}
			v.More = "... and " + checkup.Count(len(t.Rows)-i, "more "+htmlClip(noun))
			break
		}
		var row []htmlCell
		for k, c := range columns {
			text := "-"
			if k < len(r) {
				text = htmlClip(cell(r[k], c.Measure))
			}
			row = append(row, htmlCell{Text: text, Number: c.Measure != ""})
		}
		v.Rows = append(v.Rows, row)
	}
	return v
}

type htmlDelays struct {
	Title   string
	Axis    []string
	Decades []int
	Rows    []htmlDelay
	Table   *htmlTable
}

type htmlDelay struct {
	Name, Label, Median, P99      string
	Min, P50, ToP90, ToP99, ToMax int
}

// htmlDelaysOf draws each distribution on one logarithmic scale from a power of ten to a power of ten.
func htmlDelaysOf(rows []checkup.DelayRow) *htmlDelays {
	title, table := delayTable(rows)
	v := &htmlDelays{Title: title, Table: htmlTableOf(title, table)}
	low, high := int64(math.MaxInt64), int64(0)
	for i := range rows {
		if d := rows[i].Delay; d != nil {
			low, high = min(low, max(1, d.Min)), max(high, d.Max, 1)
		}
	}
	if high == 0 {
		return v
	}
	from, to := int(math.Floor(math.Log10(float64(low)))), int(math.Ceil(math.Log10(float64(high))))
	to = max(to, from+1)
	at := func(us int64) int {
		x := (math.Log10(float64(max(1, us))) - float64(from)) / float64(to-from)
		return int(math.Round(1000 * min(1, max(0, x))))
	}
	for e := from; e <= to; e++ {
		v.Axis = append(v.Axis, micros(int64(math.Pow10(e))))
		if e > from && e < to {
			v.Decades = append(v.Decades, at(int64(math.Pow10(e))))
		}
	}
	for i := range rows {
		r := &rows[i]
		d := r.Delay
		if d == nil || len(v.Rows) == htmlItems {
			continue
		}
		name := strings.TrimSpace(fmt.Sprintf("%s %s", r.Transport, r.Family))
		if r.Stage != "" {
			name += " " + string(r.Stage)
		} else {
			name += fmt.Sprintf(" %dB", r.Size)
		}
		width := func(to int64) int { return max(2, at(to)-at(d.Min)) }
		v.Rows = append(v.Rows, htmlDelay{
			Name: htmlClip(name), Median: micros(d.P50), P99: micros(d.P99),
			Label: fmt.Sprintf("%s lowest, %s median, %s p90, %s p99, %s highest",
				micros(d.Min), micros(d.P50), micros(d.P90), micros(d.P99), micros(d.Max)),
			Min: at(d.Min), P50: at(d.P50), ToP90: max(2, at(d.P90)-at(d.P50)), ToP99: width(d.P99), ToMax: width(d.Max),
		})
	}
	return v
}
