// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// scenarios are the reports of testdata, by name of the file.
func scenarios() map[string]checkup.Report {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	run := Run{Namespace: "checks", Name: "day-2-run-1767323045", UID: "6d1c1f0e", Started: start, Finished: start.Add(62 * time.Second)}
	plan := &checkup.Plan{Name: "day-2", Gate: checkup.Gate{Require: checkup.RequirePass, MaxUnmeasured: 5}, Checks: map[string]checkup.Check{"mesh": {Spec: spec("podMesh")}}}
	mesh := func(nodes, degree int, change func(*network)) *network {
		n := newNetwork(7, nodes, degree, 3, fourTransports())
		n.w.Expect.Loss.Max = ptr(checkup.Percent(1))
		n.w.Expect.Latency.P99 = ptr(checkup.Duration(10 * time.Millisecond))
		if change != nil {
			change(n)
		}
		return n
	}
	judged := func(n *network, change func(*checkup.Record)) checkup.Report {
		record := n.measure()
		if change != nil {
			change(record)
		}
		return Join(plan, run, []checkup.CheckReport{Judge(n.w, n.roster, record, plan.Gate)}, nil)
	}
	all := map[string]checkup.Report{
		"pass":   judged(mesh(3, 0, nil), nil),
		"sample": judged(mesh(40, 3, nil), nil),
		"ingress": judged(mesh(3, 0, func(n *network) {
			n.drop = func(p packet) float64 { return when(p.to == 1) }
		}), nil),
		"policy": judged(mesh(4, 0, func(n *network) {
			n.drop = func(p packet) float64 { return when(p.to == 1 && !p.answer) }
		}), nil),
		"loss": judged(mesh(3, 0, func(n *network) {
			n.drop = func(p packet) float64 { return .2 * when(p.to == 1) }
		}), nil),
		"slow": judged(mesh(3, 0, func(n *network) {
			n.delay = func(p packet) time.Duration { return time.Duration(when(p.to == 1)) * 30 * time.Millisecond }
		}), nil),
		"chaos": judged(mesh(30, 4, func(n *network) {
			n.w.Probes = n.w.Probes[1:2]
			n.drop = func(p packet) float64 { return when((min(p.from, p.to)*31+max(p.from, p.to)*17)%5 == 0) }
		}), nil),
		"unreachable": judged(mesh(3, 0, func(n *network) {
			n.w.Expect = checkup.Expect{Unreachable: true}
			n.drop = func(p packet) float64 { return when(p.to != 2) }
		}), nil),
		"agents": judged(mesh(5, 0, nil), func(r *checkup.Record) {
			of := func(s int) func(checkup.Observation) bool {
				return func(o checkup.Observation) bool { return o.Source == s }
			}
			r.Observations = slices.DeleteFunc(r.Observations, of(1))
			r.Sources[1] = checkup.Source{Source: 1, Cause: &checkup.Cause{Stage: checkup.StageSchedule, Message: "0/5 nodes are available: 1 Insufficient cpu"}}
			r.Sources[2].Controls[0].OK = false
			r.Sources[2].Controls[0].Message = "timed out after 1s"
			r.Sources[3].End.SelfDoubt = checkup.SelfDoubt{SchedulingDelayMax: 81_000, SchedulingDelayP99: 12_000, ThrottledMicros: ptr(int64(230_000))}
		}),
		"setup":   Join(plan, run, []checkup.CheckReport{NotMeasured("mesh", "podMesh", checkup.Cause{Stage: checkup.StageSetup, Message: "no node matches nodeSelector role=probe"})}, []string{"Pod/mesh-responder-abc"}),
		"nothing": Join(&checkup.Plan{Name: "empty"}, Run{}, nil, nil),
	}
	for name, r := range connectionScenarios(run) {
		all[name] = r
	}
	for name, r := range placementScenarios(run) {
		all[name] = r
	}
	for name, r := range guestScenarios(run) {
		all[name] = r
	}
	// One of each, and text that wants to be more than text.
	each := NotMeasured("each\n::endgroup::", "podMesh", checkup.Cause{Stage: checkup.StageSetup, Message: "\x1b[31mred\x1b[0m <&> \"quoted\"\r\n::error::not one"})
	each.Verdict = checkup.RunFail
	for _, s := range checkup.Stages {
		each.Unmeasured = append(each.Unmeasured, checkup.PairResult{Source: "a", Target: "b", Family: checkup.IPv4, Transport: checkup.TCP, Verdict: checkup.Unmeasured, Cause: checkup.Cause{Stage: s, Message: "because"}})
		each.Failed = append(each.Failed, checkup.PairResult{Source: "a", Target: "c", Family: checkup.IPv6, Transport: checkup.HTTP, Size: 10, Verdict: checkup.Fail, Cause: checkup.Cause{Stage: s, Message: "because"}})
	}
	each.Counts = checkup.Counts{Expected: 2 * len(checkup.Stages), Unmeasured: len(checkup.Stages), Fail: len(checkup.Stages)}
	each.Delays = []checkup.DelayRow{{Transport: checkup.TCP, Family: checkup.IPv4}, {Transport: checkup.HTTP, Family: checkup.IPv6, Size: 10, Pairs: len(checkup.Stages), Sent: 10, Loss: 100}}
	for _, cause := range checkup.FindingCauses {
		each.Findings = append(each.Findings, checkup.Finding{Cause: cause, Subject: "that", Message: "that: is so", Explains: 1, Against: []string{"1 of 2 pass"}, Alternatives: []string{"this", "and 3 more"}})
	}
	all["each"] = Join(plan, run, []checkup.CheckReport{each, {Name: "other", Verdict: checkup.RunPass, Counts: checkup.Counts{Expected: 1, Pass: 1}}}, nil)
	return all
}

var printers = map[string]func(io.Writer, *checkup.Report) error{
	".txt": func(w io.Writer, r *checkup.Report) error { return Text(w, r, TextOptions{Width: 100}) },
	".log": Log,
	".xml": JUnit,
	".om":  OpenMetrics,
}

// TestGolden judges each scenario into testdata/<name>.json and prints that, read
// back, into a file for each printer. UPDATE=1 writes the files.
func TestGolden(t *testing.T) {
	golden := func(t *testing.T, name string, got []byte) {
		t.Helper()
		path := filepath.Join("testdata", name)
		if os.Getenv("UPDATE") == "1" {
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
	files := map[string]bool{}
	verdicts, pairs := map[checkup.RunVerdict]bool{}, map[checkup.Verdict]bool{}
	for name, live := range scenarios() {
		t.Run(name, func(t *testing.T) {
			var saved bytes.Buffer
			if err := JSON(&saved, &live); err != nil {
				t.Fatal(err)
			}
			files[name+".json"] = true
			golden(t, name+".json", saved.Bytes())
			read, err := Read(bytes.NewReader(saved.Bytes()))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&live, read); diff != "" {
				t.Errorf("a report that was saved and read is another one (-live +read):\n%s", diff)
			}
			for ext, print := range printers {
				var fromLive, fromSaved bytes.Buffer
				if err := errors.Join(print(&fromLive, &live), print(&fromSaved, read)); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(fromLive.String(), fromSaved.String()); diff != "" {
					t.Errorf("%s of the saved report differs (-live +saved):\n%s", ext, diff)
				}
				files[name+ext] = true
				golden(t, name+ext, fromSaved.Bytes())
			}
			verdicts[live.Verdict] = true
			pairs[checkup.Pass] = pairs[checkup.Pass] || live.Counts.Pass > 0
			pairs[checkup.Fail] = pairs[checkup.Fail] || live.Counts.Fail > 0
			pairs[checkup.Unmeasured] = pairs[checkup.Unmeasured] || live.Counts.Unmeasured > 0
		})
	}
	for _, v := range checkup.RunVerdicts {
		if !verdicts[v] {
			t.Errorf("no golden has the verdict %s", v)
		}
	}
	for _, v := range checkup.Verdicts {
		if !pairs[v] {
			t.Errorf("no golden has a pair that is %s", v)
		}
	}
	entries, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !e.IsDir() && !files[e.Name()] {
			t.Errorf("testdata/%s belongs to no scenario", e.Name())
		}
	}
}

// TestGoldenNamesEach checks that every stage and every cause is printed.
func TestGoldenNamesEach(t *testing.T) {
	for ext := range printers {
		b, err := os.ReadFile(filepath.Join("testdata", "each"+ext))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range checkup.Stages {
			if ext != ".om" && !strings.Contains(string(b), string(s)+": because") {
				t.Errorf("each%s does not tell stage %s", ext, s)
			}
		}
		told := " that"
		if ext == ".om" {
			told = `"} 1`
		}
		for _, c := range checkup.FindingCauses {
			if ext != ".xml" && !strings.Contains(string(b), string(c)+told) {
				t.Errorf("each%s does not tell finding %s", ext, c)
			}
		}
	}
}

// TestOneLine checks that what comes from the cluster cannot end a line or reach
// the terminal as more than text.
func TestOneLine(t *testing.T) {
	each := scenarios()["each"]
	for ext, print := range printers {
		var b bytes.Buffer
		if err := print(&b, &each); err != nil {
			t.Fatal(err)
		}
		if i := strings.IndexFunc(b.String(), func(r rune) bool { return r < ' ' && r != '\n' }); i >= 0 {
			t.Errorf("%s holds a control character at %d: %q", ext, i, b.String()[max(0, i-20):i+20])
		}
		if ext != ".log" && strings.Contains(b.String(), "\n::") {
			t.Errorf("%s has a line that is a command", ext)
		}
	}
	var b bytes.Buffer
	if err := Log(&b, &each); err != nil {
		t.Fatal(err)
	}
	if n, m := strings.Count("\n"+b.String(), "\n::group::"), strings.Count(b.String(), "\n::endgroup::"); n != len(each.Checks) || m != len(each.Checks) {
		t.Errorf("%d groups, %d ends; want one for each of %d checks:\n%s", n, m, len(each.Checks), b.String())
	}
}

func TestLastLineIsVerdict(t *testing.T) {
	for name, r := range scenarios() {
		for _, test := range []struct {
			print func(io.Writer, *checkup.Report) error
			want  string
		}{
			{printers[".txt"], string(r.Verdict) + ": "},
			{Log, "verdict: " + string(r.Verdict)},
		} {
			var b bytes.Buffer
			if err := test.print(&b, &r); err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
			if last := lines[len(lines)-1]; !strings.HasPrefix(last, test.want) {
				t.Errorf("%s ends with %q, want %q", name, last, test.want)
			}
		}
	}
}

// TestTextOptions checks that colour and block characters change no word, that
// the heat map knows where it fits, and that what is cut is counted.
func TestTextOptions(t *testing.T) {
	r := scenarios()["ingress"]
	print := func(o TextOptions) string {
		var b bytes.Buffer
		if err := Text(&b, &r, o); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	plain := print(TextOptions{})
	colour := print(TextOptions{Color: true})
	if colour == plain {
		t.Error("no colour")
	}
	for _, code := range []string{"\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[1;31m"} {
		colour = strings.ReplaceAll(colour, code, "")
	}
	if diff := cmp.Diff(plain, colour); diff != "" {
		t.Errorf("colour changes words:\n%s", diff)
	}
	if blocks := print(TextOptions{Unicode: true}); !strings.Contains(blocks, "█") || strings.Contains(plain, "█") {
		t.Errorf("want blocks with Unicode only:\n%s", blocks)
	}
	if narrow := print(TextOptions{Width: 20}); !strings.Contains(narrow, "left out: it needs") {
		t.Errorf("want no heat map in 20 columns:\n%s", narrow)
	}
	if cut := print(TextOptions{Lines: 1}); !strings.Contains(cut, "... and 7 more lines") {
		t.Errorf("want 1 of 8 lines of failed pairs, and a count:\n%s", cut)
	}
	if whole := print(TextOptions{Lines: -1}); strings.Contains(whole, "... and") {
		t.Errorf("want no cut:\n%s", whole)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestWriterFails(t *testing.T) {
	r := scenarios()["ingress"]
	printers := map[string]func(io.Writer, *checkup.Report) error{"JSON": JSON}
	for k, v := range printers {
		printers[k] = v
	}
	for name, print := range printers {
		if err := print(full{}, &r); err == nil || !strings.Contains(err.Error(), "disk full") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestJUnit(t *testing.T) {
	for name, r := range scenarios() {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := JUnit(&b, &r); err != nil {
				t.Fatal(err)
			}
			var suites junitSuites
			if err := xml.Unmarshal(b.Bytes(), &suites); err != nil {
				t.Fatalf("%v in\n%s", err, b.String())
			}
			tests, failures, errs, skipped := 0, 0, 0, 0
			for _, s := range suites.Suites {
				for _, c := range s.Cases {
					tests++
					switch {
					case c.Failure != nil:
						failures++
					case c.Error != nil:
						errs++
					case c.Skipped != nil:
						skipped++
					}
				}
			}
			if tests != suites.Tests || failures != suites.Failures || errs != suites.Errors || skipped != suites.Skipped {
				t.Errorf("counts %d, %d, %d, %d; the suites say %d, %d, %d, %d", tests, failures, errs, skipped, suites.Tests, suites.Failures, suites.Errors, suites.Skipped)
			}
			if tests == 0 {
				t.Error("a document without a test reads as passed")
			}
			switch r.Verdict {
			case checkup.RunPass:
				if failures+errs > 0 {
					t.Error("a passed run reads as failed")
				}
			case checkup.RunFail:
				if failures == 0 {
					t.Error("a failed run reads as passed")
				}
			default:
				if failures > 0 || errs == 0 {
					t.Errorf("an inconclusive run reads as %d failures, %d errors", failures, errs)
				}
			}
		})
	}
}

// TestJUnitUnmeasured checks that unmeasured pairs which the gate admits do not
// read as passed.
func TestJUnitUnmeasured(t *testing.T) {
	n := newNetwork(1, 6, 0, 0, fourTransports())
	record := n.measure()
	record.Observations = record.Observations[1:]
	gate := checkup.Gate{MaxUnmeasured: 50}
	r := Join(&checkup.Plan{Gate: gate, Checks: map[string]checkup.Check{"mesh": {}}}, Run{}, []checkup.CheckReport{Judge(n.w, n.roster, record, gate)}, nil)
	suite := junitCheck(&r, &r.Checks[0])
	if r.Verdict != checkup.RunPass || suite.Skipped != 1 || suite.Errors+suite.Failures > 0 {
		t.Errorf("verdict %s, %d skipped, %d errors, %d failures; want pass with the one case skipped", r.Verdict, suite.Skipped, suite.Errors, suite.Failures)
	}
}

func TestReadRefuses(t *testing.T) {
	const head = `{"apiVersion": "checkplan.dev/v1alpha1", "kind": "Report", `
	const good = `"gate": {"maxUnmeasured": "0%"}, "verdict": "pass", "counts": {}, "checks": []}`
	if _, err := Read(strings.NewReader(head + good)); err != nil {
		t.Fatalf("the one good report: %v", err)
	}
	for _, test := range []struct{ in, want string }{
		{``, `read report: not a JSON document: unexpected end of JSON input`},
		{`verdict: pass`, `read report: not a JSON document: invalid character 'v' looking for beginning of value`},
		{head + good + `{}`, `read report: not a JSON document: invalid character '{' after top-level value`},
		{`{}`, `read report: apiVersion "", kind "": want "checkplan.dev/v1alpha1" and "Report"`},
		{`{"apiVersion": "checkplan.dev/v2", "kind": "Report"}`, `read report: apiVersion "checkplan.dev/v2", kind "Report": want "checkplan.dev/v1alpha1" and "Report"`},
		{`{"apiVersion": "checkplan.dev/v1alpha1", "kind": "Plan"}`, `read report: apiVersion "checkplan.dev/v1alpha1", kind "Plan": want "checkplan.dev/v1alpha1" and "Report"`},
		{head + `"colour": "red", ` + good, `read report: json: unknown field "colour"`},
		{head + `"verdict": "fine", "gate": {"maxUnmeasured": "0%"}, "counts": {"expected": 1}, "checks": []}`, `read report: verdict: "fine" is none of [fail inconclusive pass]
counts: 1 expected is not the sum of 0 pass, 0 fail, 0 unmeasured`},
		{head + `"verdict": "pass", "counts": {}, "gate": {"maxUnmeasured": "0%"}, "checks": [{"verdict": "pass", "counts": {"expected": 1, "fail": 1}, "findings": [{"cause": "gremlins"}], "unmeasured": [{"verdict": "pass"}], "matrix": {"sources": ["a"], "targets": ["b"], "cells": [".."]}}]}`,
			`read report: checks[0]: lists 0 failed and 1 unmeasured pairs, but counts 1 and 0
checks[0].unmeasured[0].verdict: "pass" is not "unmeasured"
checks[0].findings[0].cause: "gremlins" is none of [nodeIngress nodeEgress node pair zones family transport size source target network service placement]
checks[0].matrix.cells[0]: 2 cells for 1 targets`},
	} {
		_, err := Read(strings.NewReader(test.in))
		if err == nil || err.Error() != test.want {
			t.Errorf("Read(%s)\n got %v\nwant %s", test.in, err, test.want)
		}
	}
}

// FuzzRead: whatever is read prints, and saves as what it was read from.
func FuzzRead(f *testing.F) {
	paths, err := filepath.Glob("testdata/*.json")
	if err != nil || len(paths) == 0 {
		f.Fatal("no seeds", err)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		if len(b) < 16_000 {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Read(bytes.NewReader(b))
		if err != nil {
			return
		}
		for ext, print := range printers {
			if err := print(io.Discard, r); err != nil {
				t.Fatalf("%s: %v", ext, err)
			}
		}
		var metrics strings.Builder
		if err := OpenMetrics(&metrics, r); err != nil {
			t.Fatal(err)
		}
		parse(t, metrics.String())
		if n := resultsSize(Results(r, "")); n > resultsBudget {
			t.Fatalf("results take %d bytes", n)
		}
		var first, second bytes.Buffer
		if err := JSON(&first, r); err != nil {
			t.Fatal(err)
		}
		again, err := Read(bytes.NewReader(first.Bytes()))
		if err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		if err := JSON(&second, again); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first.Bytes(), second.Bytes()) {
			t.Fatalf("not the same twice:\n%s\n%s", first.String(), second.String())
		}
	})
}

func TestResults(t *testing.T) {
	r := scenarios()["ingress"]
	got := Results(&r, "configmaps report-0 to report-1 in namespace checks")
	want := map[string]string{
		"verdict": "fail", "expected": "84", "pass": "28", "fail": "56", "unmeasured": "0",
		"summary":  r.Summary,
		"findings": "mesh: nodeIngress worker-2: into the pods of worker-2: nothing gets through",
		"report":   "configmaps report-0 to report-1 in namespace checks",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	if len(got) != len(ResultNames) {
		t.Errorf("%d results, %d names", len(got), len(ResultNames))
	}
	for _, name := range ResultNames {
		if _, ok := got[name]; !ok {
			t.Errorf("no result %s", name)
		}
	}
	chaos := scenarios()["chaos"]
	if s := Results(&chaos, "x")["findings"]; !strings.Contains(s, " ... and ") || !strings.HasSuffix(s, " more") {
		t.Errorf("findings are cut without a mark: %s", s)
	}
}

// TestResultsFit checks the budget with text that is long, or grows when it is
// encoded, or is not text.
func TestResultsFit(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 6))
	alphabet := []string{"a", "worker-1", `"`, `\`, "<", ">", "&", "\n", "\x00", "\x1b[31m", "é", "→", "\u2028", "\U0001F600", "\xff", " "}
	nasty := func(n int) string {
		var b strings.Builder
		for range rng.IntN(n + 1) {
			b.WriteString(alphabet[rng.IntN(len(alphabet))])
		}
		return b.String()
	}
	for range iterations(60, 3000) {
		long := []int{0, 10, 300, 3000}[rng.IntN(4)]
		r := checkup.Report{Verdict: checkup.RunVerdicts[rng.IntN(3)], Summary: nasty(long)}
		r.Counts = checkup.Counts{Expected: 1 << rng.IntN(40)}
		for range rng.IntN(3) {
			c := checkup.CheckReport{Name: nasty(20)}
			for range rng.IntN(25) {
				c.Findings = append(c.Findings, checkup.Finding{Cause: checkup.CausePair, Subject: nasty(10), Message: nasty(long)})
			}
			r.Checks = append(r.Checks, c)
		}
		got := Results(&r, nasty(long))
		if n := resultsSize(got); n > resultsBudget {
			t.Fatalf("%d bytes, budget %d: %q", n, resultsBudget, got)
		}
		for name, value := range got {
			if strings.ContainsAny(value, "\n\r\x00\x1b") || strings.TrimSpace(value) != value {
				t.Fatalf("%s: %q", name, value)
			}
		}
		if got[ResultVerdict] != string(r.Verdict) {
			t.Fatalf("verdict %q", got[ResultVerdict])
		}
	}
}

func TestCut(t *testing.T) {
	for _, test := range []struct {
		in     string
		budget int
		want   string
	}{
		{"", 0, ""},
		{"short", 5, "short"},
		{"too long", 6, "too..."},
		{"a<b", 8, "a<b"},
		{"a<b<c", 10, "a<..."}, // "<" takes six bytes
		{"héllo wörld", 6, "hé..."},
		{"ab cdef", 6, "ab..."},
	} {
		if got := cut(test.in, test.budget); got != test.want {
			t.Errorf("cut(%q, %d) = %q, want %q", test.in, test.budget, got, test.want)
		}
	}
}

func ExampleText() {
	plan := &checkup.Plan{Name: "day-2", Checks: map[string]checkup.Check{"mesh": {Spec: spec("podMesh")}}}
	r := Join(plan, Run{}, nil, nil)
	_ = Text(os.Stdout, &r, TextOptions{})
	fmt.Println(r.Passed)
	// Output:
	// Plan day-2
	//
	// Check mesh (podMesh): inconclusive
	//   not measured: setup: the check has no worksheet: its setup failed or did not run
	//   0 pairs expected: 0 pass, 0 fail, 0 unmeasured; 0 measurements made
	//
	// Gate: verdict must satisfy , at most 0% unmeasured: the gate does not let it through
	// inconclusive: no pair was to be measured; mesh was not measured: setup: the check has no worksheet: its setup failed or did not run
	// false
}
