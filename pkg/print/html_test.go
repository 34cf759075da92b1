// SPDX-License-Identifier: Apache-2.0

package print

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/checkup/hostile"
	"github.com/checkplan/checkplan/pkg/history"
)

// page is a report as HTML.
func page(t testing.TB, r *checkup.Report, o HTMLOptions) string {
	t.Helper()
	var b bytes.Buffer
	if err := HTML(&b, r, o); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

var tags = regexp.MustCompile(`(?s)<(style|title)>.*?</(style|title)>|<[^>]*>`)

// words are the texts of a page.
func words(page string) []string {
	return strings.Fields(html.UnescapeString(tags.ReplaceAllString(page, " ")))
}

// TestHTMLHasWhatTextHas: every word that Text prints is in the page, but for signs of heat maps and marks of lists. So
// no part of a report can be added to one printer and forgotten in the other.
func TestHTMLHasWhatTextHas(t *testing.T) {
	signs := regexp.MustCompile(`^[-.x/?~|+_=*#@:;,]*$`)
	for name, r := range scenarios(t) {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := Text(&b, &r, TextOptions{Width: 1000, Lines: htmlItems}); err != nil {
				t.Fatal(err)
			}
			have := map[string]bool{}
			for _, w := range words(page(t, &r, HTMLOptions{})) {
				have[strings.Trim(w, ":,;")] = true
			}
			heat := false
			for line := range strings.Lines(b.String()) {
				switch {
				case strings.Contains(line, "Source by target"), strings.TrimSpace(line) == "Grid":
					heat = true
				case strings.TrimSpace(line) == "":
					heat = false
				}
				for _, w := range strings.Fields(line) {
					w = strings.Trim(w, ":,;")
					if regexp.MustCompile(`^[0-9]+\.?$`).MatchString(w) || heat || signs.MatchString(w) {
						continue // numbers of findings and columns
					}
					if !have[w] {
						t.Errorf("the page does not have %q of the line %q", w, line)
					}
				}
			}
		})
	}
}

// TestHTMLIsOneFile: a page requests nothing, runs nothing, and its policy names its own style.
func TestHTMLIsOneFile(t *testing.T) {
	loads := regexp.MustCompile(`(?i)<script|<iframe|<img|<object|<embed|<video|@import|url\((?:[^#])|\son[a-z]+=|\sstyle=|(?:src|href|action)="[^"#d]`)
	for name, r := range scenarios(t) {
		hostile.Fill(&r, true)
		text := page(t, &r, HTMLOptions{})
		if found := loads.FindString(text); found != "" {
			t.Errorf("%s: the page has %q", name, found)
		}
		if strings.Count(text, "<style>") != 1 || !strings.Contains(text, "<style>"+htmlStyle+"</style>") ||
			!strings.Contains(text, `content="`+HTMLPolicy()+`"`) {
			t.Errorf("%s: the style is not the one of the policy", name)
		}
		if strings.Contains(text, "ZgotmplZ") {
			t.Errorf("%s: html/template refused a value", name)
		}
	}
}

// TestHTMLEscapes: markup in texts is text.
func TestHTMLEscapes(t *testing.T) {
	r := scenarios(t)["toy"]
	const attack = `"'><script>alert(1)</script><b onclick=x>&lt;`
	r.Plan, r.Run, r.Summary, r.Verdict = attack, attack, attack, attack
	c := &r.Checks[0]
	c.Name, c.Noun, c.Verdict = attack, attack, attack
	c.Findings = []checkup.Finding{{Message: attack, Subject: attack, For: []string{attack}, Against: []string{attack}, Alternatives: []string{attack}, Rest: []string{attack}}}
	c.Matrix = &checkup.Matrix{Group: 2, Sources: []string{attack}, Targets: []string{attack}, Cells: []string{"x"}}
	c.Blocks = append(c.Blocks, checkup.Block{Title: attack, Grid: &checkup.Matrix{Sources: []string{attack}, Targets: []string{attack}, Cells: []string{"x"}}})
	c.Delays = []checkup.DelayRow{{Transport: attack, Family: attack, Delay: &checkup.Delay{Min: 1, P50: 2, Max: 3}}}
	links := Links{Plans: "/", Plan: func(_, _ string) string { return "/plan" }, Run: func(_, _ string) string { return "javascript:alert(1)" }}
	h := overview()
	h.Plan, h.Runs[0].Name, h.Findings[0].Message, h.Trends[0].Check = attack, attack, attack, attack
	text := page(t, &r, HTMLOptions{History: h, Links: links})
	for _, bad := range []string{"<script", "<b onclick", `href="javascript`} {
		if strings.Contains(text, bad) {
			t.Errorf("the page has %s", bad)
		}
	}
	if !strings.Contains(text, "&lt;script&gt;") {
		t.Error("the page does not have the text")
	}
}

// TestHTMLRest: a page names the findings that the last one counts.
func TestHTMLRest(t *testing.T) {
	r := scenarios(t)["toy"]
	r.Checks[0].Findings = []checkup.Finding{
		{Cause: checkup.CauseNode, Subject: "2 more findings", Message: "2 more findings", Rest: []string{"node b", "nodeEgress c"}},
	}
	text := page(t, &r, HTMLOptions{})
	for _, name := range r.Checks[0].Findings[0].Rest {
		if !strings.Contains(text, name) {
			t.Errorf("the page does not name %s", name)
		}
	}
}

// overview is a history with all that a page shows.
func overview() *history.Overview {
	start := time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)
	h := &history.Overview{
		Plan: "day-2", Every: checkup.Duration(time.Hour),
		Findings: []history.Finding{{Check: "mesh", Finding: "nodeIngress worker-2", Message: "into the pods of worker-2: nothing gets through",
			First: start.Add(5 * time.Hour), Last: start.Add(6 * time.Hour), Runs: 2}},
		Coverage: []history.CheckCoverage{{Check: "mesh", Cumulative: checkup.Cumulative{Since: start, Runs: 9, Measured: 80, Possible: 90,
			Failing: 1, Oldest: "a -> b", RunsLeft: new(3), FailingUpperBound: new(0.05)}}},
		Trends: []history.Trend{{Check: "mesh", Probe: "udp IPv4 64B", P50: []int64{100, 0, 120, 130, 0, 500, 480, 110}, Typical: 115,
			Daily: &history.Daily{First: "2025-12-29", P50: []int64{90, 0, 100, 110, 105}, P99: []int64{400, 0, 450, 700, 500}}}},
		SetAside: []string{"2026-01-01T00:00:00Z part runs of the history is ignored: it is corrupt"},
	}
	for i := range 8 {
		v := checkup.RunPass
		if i == 5 || i == 6 {
			v = checkup.RunFail
		}
		if i == 1 {
			v = checkup.RunInconclusive
		}
		at := start.Add(time.Duration(i) * time.Hour)
		if i == 7 {
			at = at.Add(2 * time.Hour)
		}
		h.Runs = append(h.Runs, history.Run{N: i + 1, Name: fmt.Sprintf("day-2-run-%d", i), UID: fmt.Sprint("uid-", i), Started: at, Finished: at.Add(time.Minute),
			Verdict: v, Counts: checkup.Counts{Expected: 4, Pass: 4}})
	}
	h.Gaps = []history.Gap{{After: h.Runs[6].Started, Before: h.Runs[7].Started, Missed: 2}}
	return h
}

// TestHTMLHistory: the page of a plan, and the list of plans, by golden files.
func TestHTMLHistory(t *testing.T) {
	links := Links{
		Plans: "/", Nodes: "/nodes", Namespace: "checks",
		Plan: func(namespace, plan string) string { return "/plans/" + namespace + "/" + plan },
		Run: func(namespace, uid string) string {
			if uid == "uid-0" {
				return ""
			}
			return "/runs/" + namespace + "/" + uid
		},
		Node: func(node string) string { return "/nodes/" + node },
	}
	all := links
	all.Namespaces = true
	rows := []PlanRow{
		{Namespace: "checks", Plan: "day-2", Run: "day-2-run-7", UID: "uid-7", Ended: time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC), Verdict: checkup.RunPass, Summary: "pass: 4 of 4 pairs passed"},
		{Namespace: "shop", Plan: "other", Run: "other-run-1", UID: "uid-9", Problem: "the chunks do not belong together"},
		{Namespace: "shop", Plan: "new"},
	}
	nodes := []NodeRow{
		{Node: "node-a", Plans: 2, From: checkup.Counts{Expected: 3, Pass: 3}, To: checkup.Counts{Expected: 3, Pass: 2, Unmeasured: 1}},
		{Node: "node-b", Plans: 1, From: checkup.Counts{Expected: 3, Pass: 3}, To: checkup.Counts{Expected: 3, Fail: 3}},
	}
	pair := func(source, target string, v checkup.Verdict, p50 int64, loss int) NodePair {
		return NodePair{Check: "mesh", Source: source, Target: target,
			Result: history.Result{Probe: "udp IPv4 64B", Verdict: v, P50: p50, Max: 2 * p50, Loss: loss}}
	}
	on := []NodePlan{
		{PlanRow: rows[0], Findings: []checkup.Finding{{Cause: checkup.CauseNodeIngress, Subject: "node-b", Message: "into the pods of node-b: nothing gets through", Explains: 3}},
			From: []NodePair{pair("node-b", "node-a", checkup.Pass, 120, 0), pair("node-b", "node-c", checkup.Pass, 110, 0)},
			To:   []NodePair{pair("node-a", "node-b", checkup.Fail, 0, 100), pair("node-c", "node-b", checkup.Unmeasured, 0, -1)}, MoreTo: 7},
		{PlanRow: rows[1], Notes: []string{"check mesh: a note"}},
	}
	for name, print := range map[string]func(w io.Writer) error{
		"history": func(w io.Writer) error { return HTMLHistory(w, overview(), "", "", Links{}) },
		"plan":    func(w io.Writer) error { return HTMLHistory(w, overview(), "a", "b", links) },
		"plans": func(w io.Writer) error {
			return HTMLPlans(w, "Plans in all namespaces", rows, []string{"a note"}, all)
		},
		"nodes": func(w io.Writer) error { return HTMLNodes(w, "Nodes", nodes, []string{"a note"}, links) },
		"node":  func(w io.Writer) error { return HTMLNode(w, "node-b", on, []string{"a note"}, all) },
	} {
		var b bytes.Buffer
		if err := print(&b); err != nil {
			t.Fatal(err)
		}
		got := strings.Replace(b.String(), string((*htmlPage)(nil).Head()), "", 1)
		path := filepath.Join("testdata", "pages", name+".html")
		if os.Getenv("UPDATE") == "1" {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s is not as saved; UPDATE=1 writes it:\n%s", path, got)
		}
	}
}

// TestHTMLNodes: names and texts on the pages of nodes are harmless, and their size is bounded.
func TestHTMLNodes(t *testing.T) {
	const most = 2 << 20
	rows := make([]NodeRow, 3*htmlNodeRows)
	pairs := make([]NodePair, 5000)
	for i := range rows {
		rows[i].Node = fmt.Sprintf("node-%05d", i)
	}
	for i := range pairs {
		pairs[i] = NodePair{Check: "mesh", Source: rows[i].Node, Target: "node-b", Result: history.Result{Probe: "tcp IPv4 0B", Verdict: checkup.Fail}}
	}
	links := Links{Plans: "/", Nodes: "/nodes", Node: func(string) string { return "/node" }, Plan: func(_, _ string) string { return "/plan" }}
	plans := []NodePlan{{PlanRow: PlanRow{Plan: "mesh"}, To: pairs, MoreTo: 7}}
	for name, page := range map[string]func(w io.Writer) error{
		"10000 more nodes": func(w io.Writer) error { return HTMLNodes(w, "Nodes", rows, nil, links) },
		"4807 more lines":  func(w io.Writer) error { return HTMLNode(w, "node-b", plans, nil, links) },
	} {
		var b bytes.Buffer
		if err := page(&b); err != nil {
			t.Fatal(err)
		}
		if b.Len() > most || !strings.Contains(b.String(), name) {
			t.Errorf("a page of %d bytes, want at most %d and %q", b.Len(), most, name)
		}
	}
	rows, plans[0].To = rows[:2], pairs[:2]
	plans[0].Findings, plans[0].Notes = []checkup.Finding{{Cause: checkup.CauseNode, Subject: "node-b", Alternatives: []string{"a"}}}, []string{"a note"}
	hostile.Fill(&rows, true)
	hostile.Fill(&plans, true)
	for _, page := range []func(w io.Writer) error{
		func(w io.Writer) error { return HTMLNodes(w, hostile.Text, rows, []string{hostile.Text}, links) },
		func(w io.Writer) error { return HTMLNode(w, hostile.Text, plans, []string{hostile.Text}, links) },
	} {
		var b bytes.Buffer
		if err := page(&b); err != nil {
			t.Fatal(err)
		}
		hostile.Check(t, "page", strings.Replace(b.String(), string((*htmlPage)(nil).Head()), "", 1))
	}
}

// large is a report of a mesh of n nodes, in which most pairs of a node fail.
func large(n int) *checkup.Report {
	m := &checkup.Matrix{Group: (n + 99) / 100}
	for i := range 100 {
		m.Sources = append(m.Sources, fmt.Sprintf("zone-a: node-%05d to node-%05d (%d)", i*m.Group, (i+1)*m.Group-1, m.Group))
		row := make([]byte, 100)
		for k := range row {
			row[k] = " .x/?~"[checkup.HashString(uint64(i), fmt.Sprint(k))%6]
		}
		m.Cells = append(m.Cells, string(row))
	}
	m.Targets = m.Sources
	c := checkup.CheckReport{Name: "mesh", Noun: "pair", Verdict: checkup.RunFail, Matrix: m}
	for i := range 10 * n {
		c.Units = append(c.Units, checkup.Unit{
			Source: fmt.Sprintf("node-%05d", i/10), Target: fmt.Sprintf("node-%05d", (i*7)%n), Transport: checkup.UDP, Family: checkup.IPv4, Size: 64,
			Verdict: []checkup.Verdict{checkup.Fail, checkup.Unmeasured, checkup.Undecided}[i%3], Cause: &checkup.Cause{Stage: checkup.StageEcho, Message: "timed out after 1s"},
		})
		c.Agents = append(c.Agents, checkup.AgentNote{Source: "node", Note: strings.Repeat("was held up ", 1000)})
	}
	c.Counts = checkup.Counts{Expected: 20 * n, Pass: 10 * n, Fail: 10 * n}
	r := run(c)
	return &r
}

// TestHTMLIsBounded: a page of 1,000 nodes with everything wrong is as large as one of 5,000.
func TestHTMLIsBounded(t *testing.T) {
	const most = 1 << 20
	for _, n := range []int{1000, 5000} {
		if text := page(t, large(n), HTMLOptions{}); len(text) > most {
			t.Errorf("%d nodes take %d bytes, want at most %d", n, len(text), most)
		}
	}
	huge := scenarios(t)["toy"]
	huge.Checks[0].Matrix = &checkup.Matrix{Sources: make([]string, 5000), Targets: make([]string, 5000), Cells: make([]string, 5000)}
	if text := page(t, &huge, HTMLOptions{}); !strings.Contains(text, "left out: 5000 rows and 5000 columns") {
		t.Error("a huge matrix is not left out")
	}
}

// TestHTMLMatrix: what is not measured never looks like what passed, in a table or in a drawing, and without colour.
func TestHTMLMatrix(t *testing.T) {
	for _, group := range []int{0, 2} {
		m := htmlMatrixOf(&checkup.Matrix{Group: group, Sources: []string{"a"}, Targets: []string{"b", "c", "d", "e", "f", "g"}, Cells: []string{"x/?~. "}}, "pair")
		looks := map[string]bool{}
		if group == 0 {
			for _, c := range m.Cells[0].Row {
				looks[c.Glyph] = true
			}
		} else {
			looks[""] = true // an empty cell
			for _, p := range m.Rows[0].Paths {
				looks[p.Fill] = true
			}
		}
		if len(looks) != 6 {
			t.Errorf("group %d: %d looks of 6 cells: %v", group, len(looks), looks)
		}
		if len(m.Legend) != 6 || !strings.Contains(m.Note, "unmeasured: 1") {
			t.Errorf("group %d: legend %v, note %q", group, m.Legend, m.Note)
		}
	}
}

// BenchmarkHTML prints a report of 1,000 nodes in which 10,000 units did not pass.
func BenchmarkHTML(b *testing.B) {
	r := large(1000)
	size := 0
	for b.Loop() {
		size = len(page(b, r, HTMLOptions{}))
	}
	b.ReportMetric(float64(size)/1024, "KiB")
}
