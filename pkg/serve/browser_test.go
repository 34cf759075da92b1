// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package serve

import (
	"fmt"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/test/browser"
)

// large is a report of 1,000 nodes at degree 10, one of which receives nothing.
func large() *checkup.Report {
	m := &checkup.Matrix{Group: 11}
	for i := range 93 {
		m.Sources = append(m.Sources, fmt.Sprintf("zone-%c: node-%04d to node-%04d (11)", 'a'+i/31, i*11, i*11+10))
		row := []byte(strings.Repeat(".", 93))
		for k := range row {
			switch {
			case checkup.HashString(uint64(i), fmt.Sprint(k))%3 == 0:
				row[k] = ' '
			case k == 20 || k == 57:
				row[k] = '/'
			case i == 71:
				row[k] = '?'
			case i > 31 && i < 62 && k > 61 && (i+k)%5 > 1:
				row[k] = 'x'
			case (i*93+k)%997 == 0:
				row[k] = '~'
			}
		}
		m.Cells = append(m.Cells, string(row))
	}
	m.Targets = m.Sources
	c := checkup.CheckReport{
		Name: "mesh", Kind: "podMesh", Noun: "pair", Verdict: checkup.RunFail, Matrix: m, Sent: 240_000,
		Counts: checkup.Counts{Expected: 40_000, Pass: 37_000, Fail: 1_900, Undecided: 100, Unmeasured: 1_000},
		Findings: []checkup.Finding{{
			Cause: checkup.CauseNodeIngress, Subject: "node-0221", Nodes: []string{"node-0221"}, Message: "into the pods of node-0221: nothing gets through", Explains: 40,
			OnlyThis: 40, Confirmation: checkup.Confirmed, For: []string{"40 of 40 measured pairs fail"},
		}},
	}
	return &checkup.Report{
		Plan: "large", Run: "large-run-1", Namespace: "checks", Verdict: checkup.RunFail, Counts: c.Counts,
		Summary: "fail: 37000 of 40000 pairs passed", Gate: checkup.Gate{Require: checkup.RequirePass}, Checks: []checkup.CheckReport{c},
	}
}

// TestRealBrowserReport opens reports in Chromium: what matters is visible text, nothing is requested, and no page is
// wider than a phone.
func TestRealBrowserReport(t *testing.T) {
	b := browser.Start(t, 3*time.Minute)
	text, err := os.ReadFile("../../pkg/record/testdata/history.yaml")
	if err != nil {
		t.Fatal(err)
	}
	h, err := record.ReadHistory(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	view := h.Overview(history.Filter{})
	names := []string{"ingress", "toy", "connections-service", "placement-none", "large"}
	for _, name := range names {
		var r *checkup.Report
		if name == "large" {
			r = large()
		} else {
			f, err := os.Open("../../pkg/print/testdata/" + name + ".json")
			if err != nil {
				t.Fatal(err)
			}
			r, err = print.Read(f)
			f.Close()
			if err != nil {
				t.Fatal(err)
			}
		}
		path := filepath.Join(t.TempDir(), name+".html")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		o := print.HTMLOptions{}
		if name == "ingress" {
			o.History = view
		}
		if err := print.HTML(f, r, o); err != nil {
			t.Fatal(err)
		}
		f.Close()
		for _, screen := range []struct {
			name  string
			width int
			dark  bool
		}{{"desktop", 1280, false}, {"desktop-dark", 1280, true}, {"phone", 390, false}} {
			if screen.dark && name != "ingress" && name != "large" {
				continue
			}
			b.Screen(screen.width, screen.dark)
			address := (&url.URL{Scheme: "file", Path: path}).String()
			b.Open(address)
			b.Quiet(address)
			seen := b.Text()
			want := []string{string(r.Verdict), r.Summary[strings.Index(r.Summary, ":")+1:]}
			for _, c := range r.Checks {
				want = append(want, "Check "+c.Name)
				for _, f := range c.Findings {
					want = append(want, f.Message)
				}
			}
			for _, s := range want {
				if s = strings.Join(strings.Fields(checkup.Clean(s)), " "); !strings.Contains(seen, s) {
					t.Errorf("%s on %s does not show %q", name, screen.name, s)
				}
			}
			b.Fits(name, screen.width)
			b.Keep(name+"-"+screen.name+".png", "Page.captureScreenshot", map[string]any{"captureBeyondViewport": true, "clip": b.Whole(screen.width)})
		}
		if name == "ingress" || name == "large" {
			b.Keep(name+".pdf", "Page.printToPDF", map[string]any{"preferCSSPageSize": true})
		}
	}
}

// TestRealBrowserServe walks from the list of plans to a plan, a pair, a run and a node by clicking.
func TestRealBrowserServe(t *testing.T) {
	b := browser.Start(t, 3*time.Minute)
	s := newSite(t)
	server := httptest.NewServer(s.Handler())
	defer server.Close()
	b.Screen(1280, false)
	b.Open(server.URL + "/")
	b.Quiet("")
	for _, step := range []struct{ name, click, want string }{
		{"plans", "", "Plans in namespace checks"},
		{"plan", `document.querySelector('a[href="/plans/checks/day-2"]').click()`, "Findings over time"},
		{"pair", `document.querySelector('[name=source]').value = "node-a"; document.querySelector('[name=target]').value = "node-b";
			document.querySelector('button').click()`, "From node-a to node-b"},
		{"run", `document.querySelector('a[href="/runs/checks/uid-12"]').click()`, "into the pods of worker-2: nothing gets through"},
		{"nodes", `document.querySelector('a[href="/nodes"]').click()`, "Nodes in plans of namespace checks"},
		{"node", `document.querySelector('a[href="/nodes/node-b"]').click()`, "Pairs to the node, worst first"},
	} {
		if step.click != "" {
			b.Leave(step.click)
			b.Quiet("")
		}
		if seen := b.Text(); !strings.Contains(seen, step.want) {
			t.Errorf("page %s does not show %q but %s", step.name, step.want, seen)
		}
		b.Keep("serve-"+step.name+".png", "Page.captureScreenshot", map[string]any{"captureBeyondViewport": true, "clip": b.Whole(1280)})
	}
	b.Keep("serve-node.pdf", "Page.printToPDF", map[string]any{"preferCSSPageSize": true})
	b.Screen(390, true)
	b.Open(server.URL + "/nodes/node-b")
	b.Quiet("")
	b.Fits("the page of a node", 390)
	b.Keep("serve-node-phone.png", "Page.captureScreenshot", map[string]any{"captureBeyondViewport": true, "clip": b.Whole(390)})
}
