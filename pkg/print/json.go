// SPDX-License-Identifier: Apache-2.0

package print

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// JSON writes the report as one indented JSON document, the same bytes for the
// same report. Its fields are those of checkup.Report; apiVersion and kind say
// which version of them, and Read reads them back.
func JSON(w io.Writer, r *checkup.Report) error {
	if err := Encode(w, r); err != nil {
		return fmt.Errorf("write report as JSON: %w", err)
	}
	return nil
}

// Encode writes a value as one indented JSON document that prints (checkup.EscapeJSON).
func Encode(w io.Writer, value any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(value); err != nil {
		return err
	}
	_, err := w.Write(checkup.EscapeJSON(b.Bytes()))
	return err
}

// Read reads a report that JSON wrote. It refuses another apiVersion or kind,
// fields that it does not know, and values that no report has, because what it
// returns must print as the report that was saved.
func Read(from io.Reader) (*checkup.Report, error) {
	data, err := io.ReadAll(from)
	if err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("read report: not a JSON document: %w", err)
	}
	if err := ofThisVersion(head.APIVersion, head.Kind); err != nil { // before fields that it may have and we do not know
		return nil, fmt.Errorf("read report: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	r := &checkup.Report{}
	if err := d.Decode(r); err != nil {
		// A well-formed document with an unknown field, or a field of another type.
		return nil, fmt.Errorf("read report: %w: written by another version of planner", err)
	}
	if err := Valid(r); err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	return r, nil
}

// ofThisVersion returns an error unless these are the apiVersion and kind of the reports that this program writes. The
// values of another version may mean something else.
func ofThisVersion(apiVersion, kind string) error {
	if apiVersion != checkup.APIVersion || kind != checkup.ReportKind {
		return fmt.Errorf("apiVersion %q, kind %q: want %q and %q, as this version of checkplan writes",
			apiVersion, kind, checkup.APIVersion, checkup.ReportKind)
	}
	return nil
}

// maxDepth is the most levels of items in a list: printers indent each by two
// columns and more.
const maxDepth = 8

// labelName is what Prometheus takes for the name of a label.
var labelName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// mostWrong is the number of errors of Valid.
const mostWrong = 20

// validator collects what is wrong with a report: the first mostWrong errors.
type validator struct{ errs []error }

func (v *validator) wrong(format string, args ...any) {
	if len(v.errs) < mostWrong {
		v.errs = append(v.errs, fmt.Errorf(format, args...))
	}
}

// known reports a value that is not in a list.
func known[T ~string](v *validator, path string, value T, values []T) {
	if !slices.Contains(values, value) {
		v.wrong("%s: %q is not one of %v", path, value, values)
	}
}

// Valid returns what is wrong with a report that came from outside. It is nil if the report is of this version, and
// printers can print it.
func Valid(r *checkup.Report) error {
	if err := ofThisVersion(r.APIVersion, r.Kind); err != nil {
		return err
	}
	v := &validator{}
	known(v, "verdict", r.Verdict, checkup.RunVerdicts)
	v.counts("counts", r.Counts)
	for i := range r.Checks {
		c, path := &r.Checks[i], fmt.Sprintf("checks[%d]", i)
		known(v, path+".verdict", c.Verdict, checkup.RunVerdicts)
		v.counts(path+".counts", c.Counts)
		v.units(path, c)
		for k := range c.Blocks {
			v.block(fmt.Sprintf("%s.blocks[%d]", path, k), &c.Blocks[k])
		}
		for k, f := range c.Findings {
			known(v, fmt.Sprintf("%s.findings[%d].cause", path, k), f.Cause, checkup.FindingCauses)
			known(v, fmt.Sprintf("%s.findings[%d].confirmation", path, k), f.Confirmation, checkup.Confirmations)
		}
		if c.Matrix != nil {
			v.grid(path+".matrix", c.Matrix)
		}
	}
	return errors.Join(v.errs...)
}

func (v *validator) counts(path string, c checkup.Counts) {
	if c.Pass < 0 || c.Fail < 0 || c.Undecided < 0 || c.Unmeasured < 0 ||
		c.Pass+c.Fail+c.Undecided+c.Unmeasured != c.Expected {
		v.wrong("%s: %d expected is not the sum of %d pass, %d fail, %d undecided, %d unmeasured",
			path, c.Expected, c.Pass, c.Fail, c.Undecided, c.Unmeasured)
	}
}

// units checks that a check lists the units that it counts.
func (v *validator) units(path string, c *checkup.CheckReport) {
	listed := checkup.Counts{Expected: len(c.Units)}
	names := map[string]bool{}
	for k := range c.Units {
		u, at := &c.Units[k], fmt.Sprintf("%s.units[%d]", path, k)
		known(v, at+".verdict", u.Verdict, checkup.Verdicts)
		known(v, at+".confirmation", u.Confirmation, checkup.Confirmations)
		switch u.Verdict {
		case checkup.Pass:
			if c.Complete || u.Confirmation != checkup.Gone {
				listed.Pass++
			}
		case checkup.Fail:
			listed.Fail++
		case checkup.Undecided:
			listed.Undecided++
		default:
			listed.Unmeasured++
		}
		if c.Complete && names[u.Name] {
			v.wrong("%s.name: duplicate %q", at, u.Name)
		}
		names[u.Name] = true
		for _, name := range slices.Sorted(maps.Keys(u.Labels)) {
			if !labelName.MatchString(name) || slices.Contains(unitLabels, name) {
				v.wrong("%s.labels: invalid name %q", at, name)
			}
		}
		for n, value := range u.Values {
			known(v, fmt.Sprintf("%s.values[%d].measure", at, n), value.Measure, checkup.Measures)
		}
		for n, b := range u.Breaches {
			known(v, fmt.Sprintf("%s.breaches[%d].measure", at, n), b.Measure, checkup.Measures)
		}
	}
	switch {
	case c.Complete && listed != c.Counts:
		v.wrong("%s: lists %d passed, %d failed, %d undecided and %d unmeasured units, but counts %d, %d, %d and %d",
			path, listed.Pass, listed.Fail, listed.Undecided, listed.Unmeasured,
			c.Counts.Pass, c.Counts.Fail, c.Counts.Undecided, c.Counts.Unmeasured)
	case !c.Complete && listed.Pass > 0:
		v.wrong("%s: lists %d units that passed, but is not complete", path, listed.Pass)
	case listed.Fail != c.Counts.Fail || listed.Undecided != c.Counts.Undecided ||
		listed.Unmeasured != c.Counts.Unmeasured:
		v.wrong("%s: lists %d failed, %d undecided and %d unmeasured units, but counts %d, %d and %d",
			path, listed.Fail, listed.Undecided, listed.Unmeasured, c.Counts.Fail, c.Counts.Undecided, c.Counts.Unmeasured)
	}
}

func (v *validator) block(path string, b *checkup.Block) {
	contents := 0
	for _, set := range []bool{b.Table != nil, b.List != nil, b.Grid != nil, b.Note != ""} {
		if set {
			contents++
		}
	}
	if contents != 1 {
		v.wrong("%s: %d of table, list, grid and note are set: want 1", path, contents)
	}
	if b.Table != nil {
		v.table(path+".table", b.Table)
	}
	if b.List != nil {
		v.items(path+".list.items", b.List.Items, 1)
	}
	if b.Grid != nil {
		v.grid(path+".grid", b.Grid)
	}
}

func (v *validator) table(path string, t *checkup.Table) {
	if len(t.Columns) == 0 {
		v.wrong("%s: no columns", path)
	}
	for i, c := range t.Columns {
		if c.Measure != "" {
			known(v, fmt.Sprintf("%s.columns[%d].measure", path, i), c.Measure, checkup.Measures)
		}
	}
	for i, row := range t.Rows {
		if len(row) != len(t.Columns) {
			v.wrong("%s.rows[%d]: %d cells for %d columns", path, i, len(row), len(t.Columns))
		}
	}
}

func (v *validator) items(path string, items []checkup.Item, depth int) {
	if depth > maxDepth {
		v.wrong("%s: more than %d levels", path, maxDepth)
		return
	}
	for i := range items {
		item, at := &items[i], fmt.Sprintf("%s[%d]", path, i)
		if item.Verdict != "" {
			known(v, at+".verdict", item.Verdict, checkup.Verdicts)
		}
		if item.Table != nil {
			v.table(at+".table", item.Table)
		}
		v.items(at+".items", item.Items, depth+1)
	}
}

func (v *validator) grid(path string, m *checkup.Matrix) {
	if len(m.Cells) != len(m.Sources) {
		v.wrong("%s: %d rows for %d sources", path, len(m.Cells), len(m.Sources))
	}
	for k, row := range m.Cells {
		if len(row) != len(m.Targets) {
			v.wrong("%s.cells[%d]: %d cells for %d targets", path, k, len(row), len(m.Targets))
		}
	}
}
