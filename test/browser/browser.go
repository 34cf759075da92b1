// SPDX-License-Identifier: Apache-2.0

// Package browser is for end-to-end tests that look at pages in a real Chromium: they click and type as a person does,
// read what is visible, and keep screenshots.
package browser

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Browser is a headless Chromium that is asked over its debugging pipe:
// https://chromedevtools.github.io/devtools-protocol/tot/.
type Browser struct {
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

// Start starts Chromium, which is killed after the limit. It skips the test if there is none: `make chromium` installs
// it.
func Start(t *testing.T, limit time.Duration) *Browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("CHECKPLAN_BROWSER") != "" {
			t.Fatal(err)
		}
		t.Skip("no chromium: run make chromium")
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
	watchdog := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() }) // reads then end
	b := &Browser{t: t, to: to, from: bufio.NewReader(from)}
	t.Cleanup(func() {
		watchdog.Stop()
		_ = cmd.Process.Signal(os.Interrupt)
		to.Close()
		from.Close()
		_ = cmd.Wait()
	})
	var target struct{ TargetID string }
	b.Call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.Call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.Call(domain+".enable", nil, nil)
	}
	return b
}

// next reads one message; events are kept.
func (b *Browser) next() event {
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

// Call sends a command and waits for its result.
func (b *Browser) Call(method string, params map[string]any, result any) {
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

// Open loads a page.
func (b *Browser) Open(address string) {
	b.t.Helper()
	b.events = nil
	b.Call("Page.navigate", map[string]any{"url": address}, nil)
	b.loaded()
}

// Leave runs an expression that leaves the page, and waits for the next one.
func (b *Browser) Leave(expression string) {
	b.t.Helper()
	b.events = nil
	b.Evaluate(expression, nil)
	b.loaded()
}

// loaded waits until a page has loaded.
func (b *Browser) loaded() {
	b.t.Helper()
	for !slices.ContainsFunc(b.events, func(e event) bool { return e.Method == "Page.loadEventFired" }) {
		b.next()
	}
}

// Quiet reports what the console has had since the page was loaded, and requests for anything but the address and data:
// URLs. Empty allows the address of the page.
func (b *Browser) Quiet(address string) {
	b.t.Helper()
	if address == "" {
		b.Evaluate("location.href", &address)
	}
	b.Evaluate("document.fonts.ready.then(() => 1)", nil) // the console has everything by now
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

// Evaluate runs an expression in the page; result takes its value.
func (b *Browser) Evaluate(expression string, result any) {
	b.t.Helper()
	var answer struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		ExceptionDetails json.RawMessage `json:"exceptionDetails"`
	}
	b.Call("Runtime.evaluate", map[string]any{
		"expression": expression, "returnByValue": true, "awaitPromise": true,
	}, &answer)
	if answer.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, answer.ExceptionDetails)
	}
	if result != nil {
		if err := json.Unmarshal(answer.Result.Value, result); err != nil {
			b.t.Fatal(err)
		}
	}
}

// Wait waits until an expression is neither false, empty nor null; result takes its value.
func (b *Browser) Wait(within time.Duration, expression string, result any) {
	b.t.Helper()
	value := "(" + expression + ") || null"
	if result == nil {
		value = "!!(" + expression + ") || null" // an element has no value
	}
	for end := time.Now().Add(within); ; time.Sleep(100 * time.Millisecond) {
		b.events = nil // pages that poll would fill the memory
		var got json.RawMessage
		b.Evaluate(value, &got)
		if string(got) != "null" {
			if result != nil {
				if err := json.Unmarshal(got, result); err != nil {
					b.t.Fatal(err)
				}
			}
			return
		}
		if time.Now().After(end) {
			b.Keep(strings.ReplaceAll(b.t.Name(), "/", "-")+"-failed.png", "Page.captureScreenshot", nil)
			b.t.Fatalf("after %s, the page does not have %s; it shows\n%s", within, expression, b.Text())
		}
	}
}

// Click waits for an element, an expression of the page, and clicks in its middle with the mouse.
func (b *Browser) Click(element string) {
	b.t.Helper()
	var at struct{ X, Y float64 }
	b.Wait(30*time.Second, fmt.Sprintf(`(element => {
		if (!element || element.disabled) return null;
		element.scrollIntoView({block: "center", behavior: "instant"});
		const r = element.getBoundingClientRect();
		const x = r.x + r.width / 2, y = r.y + r.height / 2;
		const hit = document.elementFromPoint(x, y); // null, or another element, while it is hidden or moves
		return element.contains(hit) ? {x, y} : null;
	})(%s)`, element), &at)
	for _, kind := range []string{"mouseMoved", "mousePressed", "mouseReleased"} {
		b.Call("Input.dispatchMouseEvent",
			map[string]any{"type": kind, "x": at.X, "y": at.Y, "button": "left", "clickCount": 1}, nil)
	}
}

// Type types a text where the focus is.
func (b *Browser) Type(text string) {
	b.t.Helper()
	b.Call("Input.insertText", map[string]any{"text": text}, nil)
}

// Screen sets the width of the screen, and whether it is dark.
func (b *Browser) Screen(width int, dark bool) {
	b.t.Helper()
	scheme := map[bool]string{false: "light", true: "dark"}[dark]
	b.Call("Emulation.setDeviceMetricsOverride",
		map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
	b.Call("Emulation.setEmulatedMedia",
		map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// Keep writes what the browser drew, a screenshot or a PDF, where people can look at it.
func (b *Browser) Keep(name, method string, params map[string]any) {
	b.t.Helper()
	dir := filepath.Join("..", "..", "bin", "ci", "screenshots")
	var drawn struct{ Data string }
	b.Call(method, params, &drawn)
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

// Text is what a reader sees of the page, in single spaces.
func (b *Browser) Text() string {
	b.t.Helper()
	var text string
	b.Evaluate("document.body.innerText", &text)
	return strings.Join(strings.Fields(text), " ")
}

// Fits reports a page that is wider than the screen.
func (b *Browser) Fits(name string, width int) {
	b.t.Helper()
	var wide int
	b.Evaluate("document.documentElement.scrollWidth", &wide)
	if wide > width {
		b.t.Errorf("%s is %d wide on a screen of %d", name, wide, width)
	}
}

// Whole is the clip of the whole page, up to a length that can be looked at.
func (b *Browser) Whole(width int) map[string]any {
	b.t.Helper()
	var height int
	b.Evaluate("document.documentElement.scrollHeight", &height)
	return map[string]any{"x": 0, "y": 0, "width": width, "height": min(height, 6000), "scale": 1}
}
