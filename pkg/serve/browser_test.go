// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package serve

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/record"
)

// browser is a headless Chromium that is asked over its debugging pipe:
// https://chromedevtools.github.io/devtools-protocol/tot/.
type browser struct {
	t       *testing.T
	to      io.Writer
	from    *bufio.Reader
	session string
	id      int
	events  []event
}

type event struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// startBrowser starts Chromium, or skips the test if there is none; `make e2e-pages` installs it.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("CHECKPLAN_BROWSER") != "" {
			t.Fatal(err)
		}
		t.Skip("no chromium: run make e2e-pages")
	}
	theirIn, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--user-data-dir="+t.TempDir(),
		"--remote-debugging-pipe", "about:blank")
	cmd.ExtraFiles = []*os.File{theirIn, theirOut} // 3 and 4
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirIn.Close()
	theirOut.Close()
	watchdog := time.AfterFunc(3*time.Minute, func() { _ = cmd.Process.Kill() }) // reads then end
	b := &browser{t: t, to: to, from: bufio.NewReader(from)}
	t.Cleanup(func() {
		watchdog.Stop()
		_ = cmd.Process.Signal(os.Interrupt)
		to.Close()
		from.Close()
		_ = cmd.Wait()
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

// next reads one message; events are kept.
func (b *browser) next() event {
	b.t.Helper()
	text, err := b.from.ReadBytes(0)
	if err != nil {
		b.t.Fatalf("Chromium ended: %v", err)
	}
	var e event
	if err := json.Unmarshal(bytes.TrimRight(text, "\x00"), &e); err != nil {
		b.t.Fatal(err)
	}
	if e.Method != "" {
		b.events = append(b.events, e)
	}
	return e
}

// call sends a command and waits for its result.
func (b *browser) call(method string, params map[string]any, result any) {
	b.t.Helper()
	b.id++
	message := map[string]any{"id": b.id, "method": method}
	if params != nil {
		message["params"] = params
	}
	if b.session != "" {
		message["sessionId"] = b.session
	}
	text, err := json.Marshal(message)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.to.Write(append(text, 0)); err != nil {
		b.t.Fatal(err)
	}
	for {
		e := b.next()
		if e.ID != b.id {
			continue
		}
		if e.Error != nil {
			b.t.Fatalf("%s: %s", method, e.Error)
		}
		if result != nil {
			if err := json.Unmarshal(e.Result, result); err != nil {
				b.t.Fatal(err)
			}
		}
		return
	}
}

// open loads a page. It reports requests for anything but the page and its data: URLs, and everything in the console.
func (b *browser) open(address string) {
	b.t.Helper()
	b.events = nil
	b.call("Page.navigate", map[string]any{"url": address}, nil)
	b.loaded()
	b.quiet(address)
}

// loaded waits until a page has loaded.
func (b *browser) loaded() {
	b.t.Helper()
	for !slices.ContainsFunc(b.events, func(e event) bool { return e.Method == "Page.loadEventFired" }) {
		b.next()
	}
}

// quiet reports what is in the console, and requests for anything but the address; empty allows the one of the page.
func (b *browser) quiet(address string) {
	b.t.Helper()
	if address == "" {
		b.evaluate("location.href", &address)
	}
	b.evaluate("document.fonts.ready.then(() => 1)", nil) // the console has everything by now
	for _, e := range b.events {
		switch e.Method {
		case "Network.requestWillBeSent":
			var p struct {
				Request struct{ URL string } `json:"request"`
			}
			if err := json.Unmarshal(e.Params, &p); err != nil {
				b.t.Fatal(err)
			}
			if p.Request.URL != address && !strings.HasPrefix(p.Request.URL, "data:") {
				b.t.Errorf("%s requests %s", address, p.Request.URL)
			}
		case "Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown":
			b.t.Errorf("%s: the console has %s", address, e.Params)
		}
	}
}

// evaluate runs an expression in the page; result takes its value.
func (b *browser) evaluate(expression string, result any) {
	b.t.Helper()
	var answer struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		ExceptionDetails json.RawMessage `json:"exceptionDetails"`
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &answer)
	if answer.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, answer.ExceptionDetails)
	}
	if result != nil {
		if err := json.Unmarshal(answer.Result.Value, result); err != nil {
			b.t.Fatal(err)
		}
	}
}

// screen sets the width of the screen, and whether it is dark.
func (b *browser) screen(width int, dark bool) {
	b.t.Helper()
	scheme := map[bool]string{false: "light", true: "dark"}[dark]
	b.call("Emulation.setDeviceMetricsOverride",
		map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
	b.call("Emulation.setEmulatedMedia",
		map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// keep writes what the browser drew, a screenshot or a PDF, where people can look at it.
func (b *browser) keep(name, method string, params map[string]any) {
	b.t.Helper()
	dir := filepath.Join("..", "..", "bin", "ci", "screenshots")
	var drawn struct{ Data string }
	b.call(method, params, &drawn)
	data, err := base64.StdEncoding.DecodeString(drawn.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// text is what a reader sees of the page, in single spaces.
func (b *browser) text() string {
	b.t.Helper()
	var text string
	b.evaluate("document.body.innerText", &text)
	return strings.Join(strings.Fields(text), " ")
}

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
			Cause: checkup.CauseNodeIngress, Subject: "node-0221", Message: "into the pods of node-0221: nothing gets through", Explains: 40,
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
	b := startBrowser(t)
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
			b.screen(screen.width, screen.dark)
			b.open((&url.URL{Scheme: "file", Path: path}).String())
			seen := b.text()
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
			b.fits(name, screen.width)
			b.keep(name+"-"+screen.name+".png", "Page.captureScreenshot", map[string]any{"captureBeyondViewport": true, "clip": b.whole(screen.width)})
		}
		if name == "ingress" || name == "large" {
			b.keep(name+".pdf", "Page.printToPDF", map[string]any{"preferCSSPageSize": true})
		}
	}
}

// fits reports a page that is wider than the screen.
func (b *browser) fits(name string, width int) {
	b.t.Helper()
	var wide int
	b.evaluate("document.documentElement.scrollWidth", &wide)
	if wide > width {
		b.t.Errorf("%s is %d wide on a screen of %d", name, wide, width)
	}
}

// whole is the clip of the whole page, up to a length that can be looked at.
func (b *browser) whole(width int) map[string]any {
	b.t.Helper()
	var height int
	b.evaluate("document.documentElement.scrollHeight", &height)
	return map[string]any{"x": 0, "y": 0, "width": width, "height": min(height, 6000), "scale": 1}
}

// TestRealBrowserServe walks from the list of plans to a plan, a pair, a run and a node by clicking.
func TestRealBrowserServe(t *testing.T) {
	b := startBrowser(t)
	s := newSite(t)
	server := httptest.NewServer(s.Handler())
	defer server.Close()
	b.screen(1280, false)
	b.open(server.URL + "/")
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
			b.click(step.click)
		}
		if seen := b.text(); !strings.Contains(seen, step.want) {
			t.Errorf("page %s does not show %q but %s", step.name, step.want, seen)
		}
		b.keep("serve-"+step.name+".png", "Page.captureScreenshot", map[string]any{"captureBeyondViewport": true, "clip": b.whole(1280)})
	}
	b.keep("serve-node.pdf", "Page.printToPDF", map[string]any{"preferCSSPageSize": true})
	b.screen(390, true)
	b.open(server.URL + "/nodes/node-b")
	b.fits("the page of a node", 390)
	b.keep("serve-node-phone.png", "Page.captureScreenshot", map[string]any{"captureBeyondViewport": true, "clip": b.whole(390)})
}

// click runs an expression that leaves the page, and waits for the next one.
func (b *browser) click(expression string) {
	b.t.Helper()
	b.events = nil
	b.evaluate(expression, nil)
	b.loaded()
	b.quiet("")
}
