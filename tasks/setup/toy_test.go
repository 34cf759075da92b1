// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kinds/toy"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/record"
)

// TestToyKind: setup freezes the units of a kind in the map, the kind judges them, and every printer prints its unit
// that failed, its finding or its block, as far as the format has them.
func TestToyKind(t *testing.T) {
	toy.Add(t)
	tk, client, log := newTask(t, "n0", "n1")
	tk.Check, tk.PlanJSON = "rack", planOf(t, map[string]checkup.Check{"rack": {Spec: &toy.Spec{Label: "kubernetes.io/os"}}})
	if err := client.Tracker().Add(node("bare")); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), tk); err != nil {
		t.Fatal(err, log)
	}
	var frozen record.Frozen
	if err := tk.Store("day-2").Load(t.Context(), record.Worksheet("rack"), &frozen); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(frozen.Worksheet.Units, " "); got != "bare n0 n1" {
		t.Errorf("units %q, want the nodes", got)
	}
	plan, err := tk.Plan()
	if err != nil {
		t.Fatal(err)
	}
	r, err := tk.Report(t.Context(), plan, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	c := r.Checks[0]
	if want := (checkup.Counts{Expected: 3, Pass: 2, Fail: 1}); r.Verdict != checkup.RunFail || c.Counts != want || len(c.Findings) != 1 {
		t.Errorf("verdict %s, counts %+v, %d findings; want fail, %+v, 1 finding", r.Verdict, c.Counts, len(c.Findings), want)
	}
	if want := "fail: 2 of 3 nodes passed, 1 failed, 0 unmeasured; node bare does not have the label"; r.Summary != want {
		t.Errorf("summary %q, want %q", r.Summary, want)
	}
	rows := map[string]struct {
		print func(io.Writer, *checkup.Report) error
		want  []string
	}{
		"text": {func(w io.Writer, r *checkup.Report) error { return print.Text(w, r, print.TextOptions{}) },
			[]string{"3 nodes expected: 2 pass, 1 fail", "node bare does not have the label", "Labels", "linux"}},
		"html": {func(w io.Writer, r *checkup.Report) error { return print.HTML(w, r, print.HTMLOptions{}) },
			[]string{"<strong>node bare does not have the label</strong>", "<h3>Labels</h3>", "linux"}},
		"log":         {print.Log, []string{"::error::rack: node bare does not have the label"}},
		"json":        {print.JSON, []string{`"kind": "toy"`, `"title": "Labels"`}},
		"junit":       {print.JUnit, []string{`<testcase name="bare"`, "<failure"}},
		"openmetrics": {print.OpenMetrics, []string{`noun="node",verdict="fail"} 1.0`, `unit="bare"`}},
		"prometheus":  {print.Prometheus, []string{`noun="node",verdict="fail"} 1`, `unit="bare"`}},
		"results": {func(w io.Writer, r *checkup.Report) error {
			_, err := io.WriteString(w, print.Results(r, "ns/report")[print.ResultFindings])
			return err
		}, []string{"rack: node bare: node bare does not have the label"}},
	}
	for _, name := range printers(t) {
		if _, ok := rows[strings.ToLower(name)]; !ok {
			t.Errorf("no row for print.%s", name)
		}
	}
	for name, tt := range rows {
		var out bytes.Buffer
		if err := tt.print(&out, r); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, want := range tt.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s does not contain %q:\n%s", name, want, out.String())
			}
		}
		if name == "json" {
			if _, err := print.Read(&out); err != nil {
				t.Errorf("read back: %v", err)
			}
		}
	}
}

// printers are the functions of pkg/print that print a whole report: exported ones with a report among their
// parameters. Valid prints nothing, and Answer prints the report of one pair.
func printers(t *testing.T) []string {
	files, err := filepath.Glob("../../pkg/print/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !f.Name.IsExported() || slices.Contains([]string{"Valid", "Answer"}, f.Name.Name) {
				continue
			}
			if slices.ContainsFunc(f.Type.Params.List, func(p *ast.Field) bool { return types.ExprString(p.Type) == "*checkup.Report" }) {
				names = append(names, f.Name.Name)
			}
		}
	}
	if len(names) == 0 {
		t.Fatal("no printer found in pkg/print")
	}
	return names
}
