// SPDX-License-Identifier: Apache-2.0

package print

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/checkup/hostile"
	"github.com/checkplan/checkplan/pkg/history"
)

// TestHostileTexts: whatever the texts of a report hold, no printer writes a character that does not print, and no line
// that a log viewer takes for a command.
func TestHostileTexts(t *testing.T) {
	all := maps.Clone(printers)
	all["json"] = JSON
	all["results"] = func(w io.Writer, r *checkup.Report) error {
		for _, name := range slices.Sorted(maps.Keys(Results(r, ""))) {
			fmt.Fprintln(w, name, Results(r, hostile.Text)[name])
		}
		return nil
	}
	for name, r := range scenarios(t) {
		for _, enums := range []bool{false, true} {
			var b bytes.Buffer
			if err := JSON(&b, &r); err != nil { // a copy
				t.Fatal(err)
			}
			filled, err := Read(&b)
			if err != nil {
				t.Fatal(err)
			}
			hostile.Fill(filled, enums)
			for printer, print := range all {
				var out bytes.Buffer
				if err := print(&out, filled); err != nil {
					t.Errorf("%s: %v", printer, err)
				}
				hostile.Check(t, fmt.Sprintf("%s with %s, enums %v", name, printer, enums), out.String())
			}
		}
	}
}

// TestHostileHistories: so is what is printed of several runs.
func TestHostileHistories(t *testing.T) {
	results := []history.Result{{Probe: "udp IPv4 64B", Verdict: checkup.Fail, P50: 100, Max: 200, Loss: 3}}
	pair := []history.PairResult{
		{Run: "a", Check: "mesh", Source: "a", Target: "b", Results: results}, {Run: "b", Check: "mesh", Source: "a", Target: "c", Results: results},
	}
	units := []checkup.UnitDiff{{Unit: "a -> b", Before: "pass", After: "fail", Cause: &checkup.Cause{Message: "timed out"}}}
	row := checkup.DelayRow{Transport: "udp", Family: "IPv4", Delay: &checkup.Delay{P50: 1, P99: 2}}
	staged := row
	staged.Stage = "connect"
	findings := []checkup.Finding{{Message: "into the pods of b: nothing gets through"}}
	run := checkup.RunRef{Plan: "day-2", Run: "a", Verdict: checkup.RunFail, Summary: "fail"}
	for _, enums := range []bool{false, true} {
		h := overview()
		h.Pair = pair
		hostile.Fill(h, enums)
		d := &checkup.Diff{Before: run, After: run, Notes: []string{"other plan"}, Checks: []checkup.CheckDiff{
			{
				Name: "mesh", Before: "pass", After: "fail", Noun: "pair", NewFindings: findings, GoneFindings: findings, New: units, Gone: units,
				Still: 2, Slower: []checkup.Slower{{Before: row, After: row}, {Before: staged, After: staged}}, Unseen: units, Notes: []string{"a note"},
				Seen: &checkup.Seen{Both: 1, BeforeNames: []string{"a"}, AfterNames: []string{"b"}},
			},
			{Name: "new", After: "pass"}, {Name: "gone", Before: "pass"},
		}}
		hostile.Fill(d, enums)
		for name, print := range map[string]func(io.Writer) error{
			"history":      func(w io.Writer) error { return History(w, h, TextOptions{}) },
			"history json": func(w io.Writer) error { return HistoryJSON(w, h) },
			"diff":         func(w io.Writer) error { return Diff(w, d, TextOptions{}) },
		} {
			var out bytes.Buffer
			if err := print(&out); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			hostile.Check(t, fmt.Sprintf("%s, enums %v", name, enums), out.String())
		}
	}
}
