// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// JSON writes the report as one indented JSON document, the same bytes for the
// same report. Its fields are those of checkup.Report; apiVersion and kind say
// which version of them, and Read reads them back.
func JSON(w io.Writer, r *checkup.Report) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(r); err != nil {
		return fmt.Errorf("write report as JSON: %w", err)
	}
	return nil
}

// Read reads a report that JSON wrote. It refuses another apiVersion or kind,
// fields that it does not know, and values that no report has, so that what it
// returns prints as the report that was saved.
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
	if head.APIVersion != checkup.APIVersion || head.Kind != checkup.ReportKind {
		return nil, fmt.Errorf("read report: apiVersion %q, kind %q: want %q and %q", head.APIVersion, head.Kind, checkup.APIVersion, checkup.ReportKind)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	r := &checkup.Report{}
	if err := d.Decode(r); err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	if err := valid(r); err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	return r, nil
}

// valid tells everything that is wrong with a report that came from outside.
func valid(r *checkup.Report) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	counts := func(path string, c checkup.Counts) {
		if c.Pass < 0 || c.Fail < 0 || c.Unmeasured < 0 || c.Pass+c.Fail+c.Unmeasured != c.Expected {
			wrong("%s: %d expected is not the sum of %d pass, %d fail, %d unmeasured", path, c.Expected, c.Pass, c.Fail, c.Unmeasured)
		}
	}
	known := func(path string, v checkup.RunVerdict) {
		if !slices.Contains(checkup.RunVerdicts, v) {
			wrong("%s: %q is none of %v", path, v, checkup.RunVerdicts)
		}
	}
	known("verdict", r.Verdict)
	counts("counts", r.Counts)
	for i, c := range r.Checks {
		path := fmt.Sprintf("checks[%d]", i)
		known(path+".verdict", c.Verdict)
		counts(path+".counts", c.Counts)
		for k, f := range c.Findings {
			if !slices.Contains(checkup.FindingCauses, f.Cause) {
				wrong("%s.findings[%d].cause: %q is none of %v", path, k, f.Cause, checkup.FindingCauses)
			}
		}
		if m := c.Matrix; m != nil {
			if len(m.Cells) != len(m.Sources) {
				wrong("%s.matrix: %d rows for %d sources", path, len(m.Cells), len(m.Sources))
			}
			for k, row := range m.Cells {
				if len(row) != len(m.Targets) {
					wrong("%s.matrix.cells[%d]: %d cells for %d targets", path, k, len(row), len(m.Targets))
				}
			}
		}
	}
	return errors.Join(errs...)
}
