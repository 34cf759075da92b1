// SPDX-License-Identifier: Apache-2.0

package print

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Diff prints the comparison of two runs for people. Its error is the writer's.
func Diff(w io.Writer, d *checkup.Diff, o TextOptions) error {
	p := newPrinter(w, o)
	of := func(which string, r checkup.RunRef) {
		name := cmp.Or(r.Run, "without a name")
		if !r.Started.IsZero() {
			name += ", " + stamp(r.Started)
		}
		p.line("%s", checkup.Clean(fmt.Sprintf("%s run %s of plan %s: %s", which, name, r.Plan, r.Summary)))
	}
	of("first ", d.Before)
	of("second", d.After)
	for _, note := range d.Notes {
		p.line("note: %s", checkup.Clean(note))
	}
	for i := range d.Checks {
		p.checkDiff(&d.Checks[i])
	}
	return p.w.Flush()
}

func (p *printer) checkDiff(d *checkup.CheckDiff) {
	verdicts := fmt.Sprintf("%s, then %s", d.Before, d.After)
	switch {
	case d.Before == "":
		verdicts = fmt.Sprintf("%s, in the second run only", d.After)
	case d.After == "":
		verdicts = fmt.Sprintf("%s, in the first run only", d.Before)
	case d.Before == d.After:
		verdicts = fmt.Sprintf("%s in both", d.After)
	}
	p.heading(0, checkup.Clean(fmt.Sprintf("Check %s: %s", d.Name, verdicts)))
	noun := checkup.Clean(cmp.Or(d.Noun, "unit"))
	list := func(title string, lines []string) {
		if len(lines) == 0 {
			return
		}
		p.line("  %s", title)
		shown := lines
		if most := cmp.Or(p.o.Lines, 20); most > 0 && len(shown) > most {
			shown = shown[:most]
		}
		for _, line := range shown {
			p.line("    %s", checkup.Clean(line))
		}
		if more := len(lines) - len(shown); more > 0 {
			p.line("    ... and %d more", more)
		}
	}
	list("new", append(findingMessages(d.NewFindings), changes(d.New, false)...))
	list("gone", append(findingMessages(d.GoneFindings), changes(d.Gone, false)...))
	var slower []string
	for _, s := range d.Slower {
		slower = append(slower, slowerLine(s))
	}
	list("slower, or with more loss", slower)
	list("slower, or with more loss: nodes and zones (delays to 10%)", slowerParts(d.SlowerGroups))
	list("slower, or with more loss: "+noun+"s that do not fail", slowerParts(d.SlowerUnits))
	list("not seen by both", changes(d.Unseen, true))
	if d.Still > 0 {
		p.line("  %s failed in both", checkup.Count(d.Still, noun))
	}
	if s := d.Seen; s != nil && s.Both+s.Before+s.After > 0 {
		p.line("  measured (source, target) pairs: %d by both, %d by the first only, %d by the second only",
			s.Both, s.Before, s.After)
		if len(s.BeforeNames) > 0 {
			p.line("    in the first only: %s", checkup.Clean(checkup.Some(s.BeforeNames)))
		}
		if len(s.AfterNames) > 0 {
			p.line("    in the second only: %s", checkup.Clean(checkup.Some(s.AfterNames)))
		}
	}
	for _, note := range d.Notes {
		p.line("  note: %s", checkup.Clean(note))
	}
	changed := len(d.NewFindings) + len(d.GoneFindings) + len(d.New) + len(d.Gone) + len(d.Slower) + len(d.Unseen) +
		len(d.SlowerGroups) + len(d.SlowerUnits)
	if len(d.Notes) == 0 && d.Before != "" && d.After != "" && changed == 0 {
		p.line("  nothing is new, gone or slower")
	}
}

func findingMessages(of []checkup.Finding) []string {
	var lines []string
	for _, f := range of {
		lines = append(lines, "finding: "+f.Message)
	}
	return lines
}

// changes are lines of changed units, with what each run knows if states is set.
func changes(of []checkup.UnitDiff, states bool) []string {
	var lines []string
	for _, c := range of {
		line := c.Unit
		if states {
			line += fmt.Sprintf(": %s, then %s", c.Before, c.After)
		}
		if c.Cause != nil {
			line += ": " + c.Cause.String()
		}
		lines = append(lines, line)
	}
	return lines
}

// slowerParts are lines of groups or units.
func slowerParts(of []checkup.SlowerPart) []string {
	var lines []string
	for _, s := range of {
		var parts []string
		delay := func(name string, was, is int64) {
			if was > 0 && is > 0 {
				parts = append(parts, fmt.Sprintf("%s %s, was %s", name, micros(is), micros(was)))
			}
		}
		delay("p50", s.Before.P50, s.After.P50)
		delay("p90", s.Before.P90, s.After.P90)
		parts = append(parts, fmt.Sprintf("loss %s, was %s", s.After.Loss, s.Before.Loss))
		lines = append(lines, s.Part+": "+strings.Join(parts, "; "))
	}
	return lines
}

// slowerLine is one row of delays in both runs.
func slowerLine(s checkup.Slower) string {
	row := s.After
	name := fmt.Sprintf("%s %s", row.Transport, cmp.Or(string(row.Family), "any family"))
	if row.Stage != "" {
		name += " " + string(row.Stage)
	} else {
		name += fmt.Sprintf(" %dB", row.Size)
	}
	var parts []string
	if a, b := s.Before.Delay, s.After.Delay; a != nil && b != nil {
		parts = append(parts, fmt.Sprintf("p50 %s, was %s", micros(b.P50), micros(a.P50)),
			fmt.Sprintf("p99 %s, was %s", micros(b.P99), micros(a.P99)))
	}
	parts = append(parts, fmt.Sprintf("loss %s, was %s", row.Loss, s.Before.Loss))
	return name + ": " + strings.Join(parts, "; ")
}
