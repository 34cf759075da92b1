// SPDX-License-Identifier: Apache-2.0

package print

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

// iterations are the seeds of a property's loop: few, or with CHECKPLAN_LONG set
// many.
func iterations(few, many uint64) uint64 {
	if os.Getenv("CHECKPLAN_LONG") != "" {
		return many
	}
	return few
}

// saved are the reports of testdata, by name of the file without ".json": of a mesh,
// of connections, of VMs and of placements.
var saved = []string{
	"agents", "chaos", "ingress", "loss", "pass", "paths", "policy", "regression", "sample", "setup", "slow", "unreachable",
	"connections-endpoint", "connections-restart", "connections-service", "connections-silent", "connections-stopped",
	"vms-cut", "vms-loss", "vms-lossy", "vms-oneway", "vms-pass", "vms-several", "vms-slow",
	"services-pass", "services-node", "services-changed", "dns-pass", "dns-silent",
	"canary-pass", "canary-nodes", "service-rules-pass", "service-rules-nodes", "service-rules-behind",
	"service-rules-unread",
	"placement-disabled", "placement-none", "placement-pass", "placement-unasked",
}

// scenarios are the saved reports, and those that are made here, by name of the file.
func scenarios(t testing.TB) map[string]checkup.Report {
	t.Helper()
	all := map[string]checkup.Report{"nothing": nothing(), "each": each(), "toy": toy(), "again": again()}
	for _, name := range saved {
		f, err := os.Open(filepath.Join("testdata", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		r, err := Read(f)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all[name] = *r
	}
	return all
}

// run is a report of a plan that has failed.
func run(checks ...checkup.CheckReport) checkup.Report {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r := checkup.Report{
		APIVersion: checkup.APIVersion, Kind: checkup.ReportKind, Plan: "day-2", Namespace: "checks", Run: "day-2-run-1767323045", RunUID: "6d1c1f0e",
		Started: start, Finished: start.Add(62 * time.Second), Verdict: checkup.RunFail, Gate: checkup.Gate{Require: checkup.RequirePass, MaxUnmeasured: 5}, Checks: checks,
	}
	for _, c := range checks {
		r.Counts.Expected += c.Counts.Expected
		r.Counts.Pass += c.Counts.Pass
		r.Counts.Fail += c.Counts.Fail
		r.Counts.Undecided += c.Counts.Undecided
		r.Counts.Unmeasured += c.Counts.Unmeasured
	}
	r.Summary = fmt.Sprintf("fail: %d of %d units passed, %d failed, %d unmeasured", r.Counts.Pass, r.Counts.Expected, r.Counts.Fail, r.Counts.Unmeasured)
	return r
}

// nothing is a report without a check.
func nothing() checkup.Report {
	return checkup.Report{
		APIVersion: checkup.APIVersion, Kind: checkup.ReportKind, Plan: "empty",
		Verdict: checkup.RunInconclusive, Summary: "inconclusive: no pair was expected", Checks: []checkup.CheckReport{},
	}
}

// each has one of each stage and cause, and text that wants to be more than text.
func each() checkup.Report {
	c := checkup.CheckReport{
		Name: "each\n::endgroup::", Kind: "podMesh", Noun: "pair", Verdict: checkup.RunFail,
		Cause: &checkup.Cause{Stage: checkup.StageSetup, Message: "\x1b[31mred\x1b[0m <&> \"quoted\"\r\n::error::not one"},
	}
	for _, s := range checkup.Stages {
		because := &checkup.Cause{Stage: s, Message: "because"}
		c.Units = append(c.Units,
			checkup.Unit{Name: "not " + string(s), Source: "a", Target: "b", Family: checkup.IPv4, Transport: checkup.TCP, Verdict: checkup.Unmeasured, Cause: because},
			checkup.Unit{Name: string(s), Source: "a", Target: "c", Family: checkup.IPv6, Transport: checkup.HTTP, Size: 10, Verdict: checkup.Fail, Cause: because})
	}
	c.Counts = checkup.Counts{Expected: 2 * len(checkup.Stages), Unmeasured: len(checkup.Stages), Fail: len(checkup.Stages)}
	c.Delays = []checkup.DelayRow{{Transport: checkup.TCP, Family: checkup.IPv4}, {Transport: checkup.HTTP, Family: checkup.IPv6, Size: 10, Pairs: len(checkup.Stages), Sent: 10, Loss: 100}}
	for _, cause := range checkup.FindingCauses {
		c.Findings = append(c.Findings, checkup.Finding{Cause: cause, Subject: "that", Message: "that: is so", Explains: 1, Against: []string{"1 of 2 pass"}, Alternatives: []string{"this", "and 3 more"}})
	}
	return run(c, checkup.CheckReport{Name: "other", Verdict: checkup.RunPass, Counts: checkup.Counts{Expected: 1, Pass: 1}})
}

// again is a report with second looks: of one that confirmed failures, of one that could
// not be made, and of one in which all was gone.
func again() checkup.Report {
	noAnswer := &checkup.Cause{Stage: checkup.StageEcho, Message: "timed out after 1s"}
	unit := func(target string, v checkup.Verdict, found checkup.Confirmation) checkup.Unit {
		u := checkup.Unit{
			Source: "worker-1", Target: target, Family: checkup.IPv4, Transport: checkup.UDP, Size: 64,
			Verdict: v, Cause: noAnswer, Confirmation: found, After: checkup.Duration(12 * time.Second),
		}
		u.Name = fmt.Sprintf("%s -> %s udp IPv4 64B", u.Source, u.Target)
		return u
	}
	check := func(name string, v checkup.RunVerdict, units ...checkup.Unit) checkup.CheckReport {
		c := checkup.CheckReport{Name: name, Kind: "podMesh", Noun: "pair", Verdict: v, Units: units, Counts: checkup.Counts{Expected: 6}}
		for _, u := range units {
			switch u.Verdict {
			case checkup.Fail:
				c.Counts.Fail++
			case checkup.Undecided:
				c.Counts.Undecided++
			}
		}
		c.Counts.Pass = c.Counts.Expected - c.Counts.Fail - c.Counts.Undecided
		c.Delays = []checkup.DelayRow{{Transport: checkup.UDP, Family: checkup.IPv4, Size: 64, Pairs: 6, Sent: 120, Received: 60, Loss: 50}}
		return c
	}
	mesh := check("mesh", checkup.RunFail,
		unit("worker-2", checkup.Fail, checkup.Confirmed), unit("worker-3", checkup.Fail, checkup.NotMadeAgain),
		unit("worker-4", checkup.Undecided, checkup.NotConfirmed), unit("worker-5", checkup.Pass, checkup.Gone))
	mesh.Units[1].After = 0 // it was not measured again
	mesh.Findings = []checkup.Finding{{
		Cause: checkup.CauseNodeEgress, Subject: "worker-1", Message: "out of the pods of worker-1: 50% lost", Explains: 2, OnlyThis: 2,
		Confirmation: checkup.Confirmed,
	}}
	blip := check("blip", checkup.RunPass, unit("worker-2", checkup.Pass, checkup.Gone), unit("worker-3", checkup.Pass, checkup.Gone))
	blip.Findings = []checkup.Finding{{
		Cause: checkup.CauseNodeEgress, Subject: "worker-1", Message: "out of the pods of worker-1: 50% lost", Explains: 2, OnlyThis: 2,
		Confirmation: checkup.Gone,
	}}
	return run(
		mesh,
		check("late", checkup.RunInconclusive, unit("worker-2", checkup.Fail, checkup.NotMadeAgain)),
		blip,
	)
}

// toy is of a kind that no printer knows: its blocks hold all that blocks can, and
// its units have no source and no target.
func toy() checkup.Report {
	noAnswer := &checkup.Cause{Stage: checkup.StageEcho, Message: "no answer"}
	noPod := &checkup.Cause{Stage: checkup.StageSetup, Message: "no pod"}
	small := &checkup.Table{Noun: "try", Columns: []checkup.Column{{Name: "try", Measure: checkup.MeasureCount}, {Name: "answer"}}, Rows: [][]checkup.Cell{
		{checkup.Number(1), checkup.Text("none")}, {checkup.Number(2), {}},
	}}
	blocks := []checkup.Block{
		{Note: "a note without a title"},
		{Title: "Of every measure", Table: &checkup.Table{
			Noun: "toy",
			Columns: []checkup.Column{
				{Name: "toy"}, {Name: "count", Measure: checkup.MeasureCount}, {Name: "us", Measure: checkup.MeasureMicroseconds}, {Name: "percent", Measure: checkup.MeasurePercent},
				{Name: "bytes", Measure: checkup.MeasureBytes}, {Name: "rate", Measure: checkup.MeasurePerSecond}, {Name: "text"},
			},
			Rows: [][]checkup.Cell{
				{checkup.Text("drum"), checkup.Number(12), checkup.Number(2241), checkup.Number(12.5), checkup.Number(512), checkup.Number(20), checkup.Text("loud")},
				{checkup.Text("top\x1b[31m"), checkup.Number(1), checkup.Number(400898), checkup.Number(100), checkup.Number(1536), checkup.Number(1), checkup.Text("turns")},
				{checkup.Text("kite"), {}, {}, {}, {}, {}, {}},
			},
		}},
		{Note: "a note below the table"},
		{Title: "Toys", List: &checkup.List{Noun: "toy", Items: []checkup.Item{
			{Verdict: checkup.Fail, Name: "drum", Text: "2 of 3 answer", Items: []checkup.Item{{Text: "echo: no answer"}, {Text: "below", Items: []checkup.Item{{Text: "further below"}}}}, Table: small},
			{Verdict: checkup.Unmeasured, Text: "kite", Items: []checkup.Item{{Text: "setup: no pod"}}},
			{Verdict: checkup.Pass, Name: "top"},
			{Text: "neither"},
		}}},
		{Title: "Fields", List: &checkup.List{Items: []checkup.Item{
			{Name: "colour", Text: "red"}, {Name: "a long name, indeed", Text: "of a field", Items: []checkup.Item{{Text: "with more"}}}, {Text: "and more"},
		}}},
		{Title: "Grid", Grid: &checkup.Matrix{Sources: []string{"box", "shelf"}, Targets: []string{"drum", "kite", "top"}, Cells: []string{"x?.", "/ ."}}},
	}
	return run(checkup.CheckReport{
		Name: "toys", Kind: "toy", Verdict: checkup.RunFail, Counts: checkup.Counts{Expected: 3, Pass: 1, Fail: 1, Unmeasured: 1},
		Noun: "toy", Complete: true, Blocks: blocks, BlocksListUnits: true, Reporter: "keeper", Sent: 3,
		Conditions: []checkup.Condition{{Type: "ToysTidy", Status: "False", Reason: "OnTheFloor", Message: "1 of 3 toys"}},
		Units: []checkup.Unit{
			{
				Name: "drum", Labels: map[string]string{"material": "wood"}, Verdict: checkup.Fail, Cause: noAnswer, Sent: 3, Received: 2, Duplicates: 1, Delay: &checkup.Delay{Min: 1, Mean: 2, Max: 3},
				Breaches: []checkup.Breach{{Limit: checkup.LimitLoss, Measured: 33.333, Max: 10, Measure: checkup.MeasurePercent}},
				Values:   []checkup.Value{{Name: "beat", Value: 500_000, Measure: checkup.MeasureMicroseconds}, {Name: "noise", Value: 50, Measure: checkup.MeasurePercent}, {Name: "skins", Value: 2, Measure: checkup.MeasureCount}},
			},
			{Name: "kite", Labels: map[string]string{"place": "attic"}, Verdict: checkup.Unmeasured, Cause: noPod},
			{Name: "top", Verdict: checkup.Pass},
		},
		Agents: []checkup.AgentNote{{Source: "keeper", Note: "was held up"}},
	}, checkup.CheckReport{
		Name: "balls", Kind: "toy", Verdict: checkup.RunFail, Counts: checkup.Counts{Expected: 10, Pass: 2, Fail: 2, Unmeasured: 6}, Noun: "ball",
		Units: []checkup.Unit{
			{Name: "red", Verdict: checkup.Fail, Cause: noAnswer},
			{Name: "green", Verdict: checkup.Fail},
			{Name: "1", Verdict: checkup.Unmeasured, Cause: noPod},
			{Name: "2", Verdict: checkup.Unmeasured, Cause: noPod},
			{Name: "3", Verdict: checkup.Unmeasured, Cause: noPod},
			{Name: "4", Verdict: checkup.Unmeasured, Cause: noPod},
			{Name: "5", Verdict: checkup.Unmeasured, Cause: noAnswer},
			{Name: "6", Verdict: checkup.Unmeasured, Source: "here", Target: "there", Cause: noPod},
		},
	})
}

// headless is HTML without its head, which is the same for all reports.
func headless(w io.Writer, r *checkup.Report) error {
	var b bytes.Buffer
	if err := HTML(&b, r, HTMLOptions{}); err != nil {
		return err
	}
	_, err := io.WriteString(w, strings.Replace(b.String(), string((*htmlPage)(nil).Head()), "", 1))
	return err
}

var printers = map[string]func(io.Writer, *checkup.Report) error{
	".txt": func(w io.Writer, r *checkup.Report) error {
		return Text(w, r, TextOptions{Rest: "all of them: --output json"})
	},
	".html": headless,
	".log":  Log,
	".xml":  JUnit,
	".om":   OpenMetrics,
}

// TestGolden saves each scenario as testdata/<name>.json and prints that, read back,
// into a file for each printer. UPDATE=1 writes the files.
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
	for name, live := range scenarios(t) {
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
			pairs[checkup.Undecided] = pairs[checkup.Undecided] || live.Counts.Undecided > 0
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
				t.Errorf("each%s does not name stage %s", ext, s)
			}
		}
		after := " that"
		if ext == ".om" {
			after = `"} 1`
		}
		for _, c := range checkup.FindingCauses {
			if ext != ".xml" && !strings.Contains(string(b), string(c)+after) {
				t.Errorf("each%s does not name finding %s", ext, c)
			}
		}
	}
}

// TestOneLine checks that what comes from the cluster cannot end a line or reach
// the terminal as more than text.
func TestOneLine(t *testing.T) {
	each := scenarios(t)["each"]
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
	for name, r := range scenarios(t) {
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
	r := scenarios(t)["ingress"]
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
	r := scenarios(t)["ingress"]
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
	for name, r := range scenarios(t) {
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
	r := checkup.Report{Verdict: checkup.RunPass, Checks: []checkup.CheckReport{{
		Name: "mesh", Verdict: checkup.RunPass, Counts: checkup.Counts{Expected: 30, Pass: 29, Unmeasured: 1},
		Delays: []checkup.DelayRow{{Transport: checkup.TCP, Family: checkup.IPv4, Pairs: 29, Sent: 145, Received: 145}, {Transport: checkup.UDP, Family: checkup.IPv4, Size: 64, Pairs: 30, Sent: 600, Received: 600}},
		Units:  []checkup.Unit{{Name: "a -> b tcp", Source: "a", Target: "b", Transport: checkup.TCP, Family: checkup.IPv4, Verdict: checkup.Unmeasured, Cause: &checkup.Cause{Stage: checkup.StageCollect, Message: "nothing reported"}}},
	}}}
	suite := junitCheck(&r, &r.Checks[0])
	if r.Verdict != checkup.RunPass || suite.Skipped != 1 || suite.Errors+suite.Failures > 0 {
		t.Errorf("verdict %s, %d skipped, %d errors, %d failures; want pass with the one case skipped", r.Verdict, suite.Skipped, suite.Errors, suite.Failures)
	}
}

func TestReadRefuses(t *testing.T) {
	const head = `{"apiVersion": "checkplan.dev/v1alpha1", "kind": "Report", `
	const good = `"gate": {"maxUnmeasured": "0%"}, "verdict": "pass", "counts": {}, "checks": []}`
	check := func(fields string) string {
		return head + `"gate": {"maxUnmeasured": "0%"}, "verdict": "pass", "counts": {}, "checks": [{"verdict": "pass", "counts": {"expected": 1, "pass": 1}, ` + fields + `}]}`
	}
	if _, err := Read(strings.NewReader(head + good)); err != nil {
		t.Fatalf("the one good report: %v", err)
	}
	for _, test := range []struct{ in, want string }{
		{``, `read report: not a JSON document: unexpected end of JSON input`},
		{`verdict: pass`, `read report: not a JSON document: invalid character 'v' looking for beginning of value`},
		{head + good + `{}`, `read report: not a JSON document: invalid character '{' after top-level value`},
		{`{}`, `read report: apiVersion "", kind "": want "checkplan.dev/v1alpha1" and "Report", as this version of checkplan writes`},
		{`{"apiVersion": "checkplan.dev/v2", "kind": "Report"}`, `read report: apiVersion "checkplan.dev/v2", kind "Report": want "checkplan.dev/v1alpha1" and "Report", as this version of checkplan writes`},
		{`{"apiVersion": "checkplan.dev/v1alpha1", "kind": "Plan"}`, `read report: apiVersion "checkplan.dev/v1alpha1", kind "Plan": want "checkplan.dev/v1alpha1" and "Report", as this version of checkplan writes`},
		{head + `"colour": "red", ` + good, `read report: json: unknown field "colour": written by another version of planner`},
		{head + `"verdict": "fine", "gate": {"maxUnmeasured": "0%"}, "counts": {"expected": 1}, "checks": []}`, `read report: verdict: "fine" is not one of [fail inconclusive pass]
counts: 1 expected is not the sum of 0 pass, 0 fail, 0 undecided, 0 unmeasured`},
		{head + `"verdict": "pass", "counts": {}, "gate": {"maxUnmeasured": "0%"}, "checks": [{"verdict": "pass", "counts": {"expected": 1, "fail": 1}, "findings": [{"cause": "gremlins"}], "units": [{"verdict": "unmeasured"}, {"verdict": "fine"}], "matrix": {"sources": ["a"], "targets": ["b"], "cells": [".."]}}]}`,
			`read report: checks[0].units[1].verdict: "fine" is not one of [pass fail undecided unmeasured]
checks[0]: lists 0 failed, 0 undecided and 2 unmeasured units, but counts 1, 0 and 0
checks[0].findings[0].cause: "gremlins" is not one of [nodeIngress nodeEgress node nodes nodesIngress nodesEgress pair zones groups family transport size source target paths network sourceAddress service placement]
checks[0].matrix.cells[0]: 2 cells for 1 targets`},
		{check(`"units": [{"verdict": "pass"}]`), `read report: checks[0]: lists 1 units that passed, but is not complete`},
		{check(`"complete": true, "units": [{"name": "a", "verdict": "pass"}, {"name": "a", "verdict": "pass"}]`), `read report: checks[0].units[1].name: duplicate "a"
checks[0]: lists 2 passed, 0 failed, 0 undecided and 0 unmeasured units, but counts 1, 0, 0 and 0`},
		{check(`"complete": true, "units": [{"verdict": "pass", "labels": {"a b": "", "plan": ""}, "values": [{"measure": "ell"}], "breaches": [{"measure": ""}]}]`), `read report: checks[0].units[0].labels: invalid name "a b"
checks[0].units[0].labels: invalid name "plan"
checks[0].units[0].values[0].measure: "ell" is not one of [count us percent bytes per-second]
checks[0].units[0].breaches[0].measure: "" is not one of [count us percent bytes per-second]`},
		{check(`"blocks": [{}, {"note": "a", "list": {"items": null}}]`), `read report: checks[0].blocks[0]: 0 of table, list, grid and note are set: want 1
checks[0].blocks[1]: 2 of table, list, grid and note are set: want 1`},
		{check(`"blocks": [{"table": {"columns": [{"name": "a", "measure": "ell"}], "rows": [[1], [], ["a", null]]}}, {"table": {"columns": [], "rows": []}}]`), `read report: checks[0].blocks[0].table.columns[0].measure: "ell" is not one of [count us percent bytes per-second]
checks[0].blocks[0].table.rows[1]: 0 cells for 1 columns
checks[0].blocks[0].table.rows[2]: 2 cells for 1 columns
checks[0].blocks[1].table: no columns`},
		{check(`"blocks": [{"list": {"items": [{"verdict": "fine", "items": [{"table": {"columns": [], "rows": []}}]}]}}, {"grid": {"sources": ["a"], "targets": [], "cells": []}}]`), `read report: checks[0].blocks[0].list.items[0].verdict: "fine" is not one of [pass fail undecided unmeasured]
checks[0].blocks[0].list.items[0].items[0].table: no columns
checks[0].blocks[1].grid: 0 rows for 1 sources`},
		{check(`"blocks": [{"list": {"items": [` + strings.Repeat(`{"items": [`, 9) + strings.Repeat(`]}`, 9) + `]}}]`), `read report: checks[0].blocks[0].list.items` + strings.Repeat("[0].items", 8) + `: more than 8 levels`},
		{check(`"blocks": [{"table": {"columns": [], "rows": [[{}]]}}]`), `read report: cell {}: want a string, a number or null: written by another version of planner`},
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
		metrics.Reset()
		if err := Prometheus(&metrics, r); err != nil {
			t.Fatal(err)
		}
		parseText(t, metrics.String())
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
	r := scenarios(t)["ingress"]
	got := Results(&r, "configmaps report-0 to report-1 in namespace checks")
	want := map[string]string{
		"verdict": "fail", "expected": "84", "pass": "28", "fail": "56", "undecided": "0", "unmeasured": "0",
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
	many := scenarios(t)["chaos"]
	many.Checks[0].Findings = slices.Repeat(many.Checks[0].Findings, 30)
	if s := Results(&many, "x")["findings"]; !strings.Contains(s, " ... and ") || !strings.HasSuffix(s, " more") {
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

// TestBlocks checks wrapping, cutting and indentation, as explanations use them.
func TestBlocks(t *testing.T) {
	rows := func(n int) [][]checkup.Cell {
		var rows [][]checkup.Cell
		for i := range n {
			rows = append(rows, []checkup.Cell{checkup.Text(fmt.Sprintf("worker-%d", i+1)), checkup.Text("words that go on for a while and then some more")})
		}
		return rows
	}
	for _, test := range []struct {
		name   string
		blocks []checkup.Block
		o      BlockOptions
		want   string
	}{
		{"nothing", nil, BlockOptions{}, ""},
		{
			"fields, wrapped", []checkup.Block{{List: &checkup.List{Items: []checkup.Item{
				{Name: "warning", Text: "words that go on for a while and then some more"},
				{Text: "without a name"},
				{Name: "pairs", Text: "4:", Items: []checkup.Item{{Text: "from a to b, and onward to c and d and e"}}},
			}}}}, BlockOptions{Indent: 2, Width: 40}, `
  warning       words that go on for a
                while and then some more
                without a name
  pairs         4:
                from a to b, and
                  onward to c and d and
                  e
`,
		},
		{
			"fields are not cut", []checkup.Block{{List: &checkup.List{Items: []checkup.Item{{Name: "a", Text: "1"}, {Name: "b", Text: "2"}}}}}, BlockOptions{Lines: 1}, `
a             1
b             2
`,
		},
		{
			"a table, cut and wrapped", []checkup.Block{{Table: &checkup.Table{Noun: "node", Columns: []checkup.Column{{Name: "NODE"}, {Name: "WHY"}}, Rows: rows(3)}}},
			BlockOptions{Indent: 2, Width: 40, Lines: 2, Rest: "all of them: --output json"}, `

  NODE      WHY
  worker-1  words that go on for a while
            and then some more
  worker-2  words that go on for a while
            and then some more
  ... and 1 more node (all of them:
    --output json)
`,
		},
		{
			"a verdict, wrapped", []checkup.Block{{Title: "Title", List: &checkup.List{Noun: "line", Items: []checkup.Item{{Verdict: checkup.Fail, Text: "one two three four five six seven"}, {}, {}}}}},
			BlockOptions{Width: 24, Lines: 1}, `

Title
  fail one two three
    four five six seven
  ... and 2 more lines
`,
		},
		{
			"a note below a title", []checkup.Block{{Title: "Title", Note: "one"}, {Note: "two"}}, BlockOptions{}, `

Title
  one
  two
`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			var b strings.Builder
			if err := Blocks(&b, test.blocks, test.o); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.TrimPrefix(test.want, "\n"), b.String()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	if err := Blocks(full{}, []checkup.Block{{Note: "one"}}, BlockOptions{}); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("error %v", err)
	}
}

func TestWrap(t *testing.T) {
	for _, test := range []struct {
		text  string
		width int
		want  []string
	}{
		{"", 10, []string{""}},
		{"one two three", 7, []string{"one two", "three"}},
		{"one-word-that-is-longer than that", 8, []string{"one-word-that-is-longer", "than", "that"}},
		{"first\n second", 20, []string{"first", "second"}},
		{"über alle", 9, []string{"über alle"}},
	} {
		if diff := cmp.Diff(test.want, wrap(test.text, test.width)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", test.text, diff)
		}
	}
}

func ExampleText() {
	r := nothing()
	r.Checks = []checkup.CheckReport{{
		Name: "mesh", Kind: "podMesh", Noun: "pair", Verdict: checkup.RunInconclusive,
		Cause: &checkup.Cause{Stage: checkup.StageSetup, Message: "the check has no worksheet: its setup failed or did not run"},
	}}
	_ = Text(os.Stdout, &r, TextOptions{})
	// Output:
	// Plan empty
	//
	// Check mesh (podMesh): inconclusive
	//   not measured: setup: the check has no worksheet: its setup failed or did not run
	//   0 pairs expected: 0 pass, 0 fail, 0 unmeasured
	//
	// gate: not passed (at most 0% unmeasured)
	// inconclusive: no pair was expected
}
