// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Diff is what changed from one run to another: what is new, gone and slower, and what the two did not both see. It
// compares two reports as they are, without a test of significance.
type Diff struct {
	Before RunRef `json:"before"`
	After  RunRef `json:"after"`
	// Notes limit what the comparison means, one line each.
	Notes []string `json:"notes,omitempty"`
	// Checks of both runs by name, those of After first.
	Checks []CheckDiff `json:"checks"`
}

// RunRef names a run in a Diff.
type RunRef struct {
	Plan    string     `json:"plan"`
	Run     string     `json:"run,omitempty"`
	Started time.Time  `json:"started,omitzero"`
	Verdict RunVerdict `json:"verdict"`
	Summary string     `json:"summary"`
}

// CheckDiff is what changed in one check. A list is empty if nothing changed.
type CheckDiff struct {
	Name string `json:"name"`
	// Before and After are the verdicts; empty where the run has no such check.
	Before RunVerdict `json:"before,omitempty"`
	After  RunVerdict `json:"after,omitempty"`
	Noun   string     `json:"noun,omitempty"`
	// NewFindings are of After only, GoneFindings of Before only.
	NewFindings  []Finding `json:"newFindings,omitempty"`
	GoneFindings []Finding `json:"goneFindings,omitempty"`
	// New failed in After and was measured in Before without failing, Gone the other way round. Still is the number of
	// units that failed in both.
	New   []UnitDiff `json:"new,omitempty"`
	Gone  []UnitDiff `json:"gone,omitempty"`
	Still int        `json:"still"`
	// Slower are the delays and losses of the whole check that grew by the limits of slower. SlowerGroups are those of
	// nodes and zones, which only a plan's history has, and SlowerUnits those of units that do not fail in After: of units
	// that both reports list, or of pairs that the history has.
	Slower       []Slower     `json:"slower,omitempty"`
	SlowerGroups []SlowerPart `json:"slowerGroups,omitempty"`
	SlowerUnits  []SlowerPart `json:"slowerUnits,omitempty"`
	// Unseen are units that one run could not see: failed in one and not measured in the other, or measured in Before
	// and unmeasured in After.
	Unseen []UnitDiff `json:"unseen,omitempty"`
	// Seen says how many (source, target) pairs both measured; nil if the reports do not list their pairs.
	Seen *Seen `json:"seen,omitempty"`
	// Notes limit what the comparison of the check means, one line each.
	Notes []string `json:"notes,omitempty"`
}

// UnitDiff is one unit in two runs.
type UnitDiff struct {
	Unit   string  `json:"unit"`
	Before Sighted `json:"before"`
	After  Sighted `json:"after"`
	// Cause is that of After, or that of Before if After has none; nil if neither has one.
	Cause *Cause `json:"cause,omitempty"`
}

// Sighted is what a run knows about a unit: a Verdict, NotExpected or NotKnown.
type Sighted string

const (
	NotExpected Sighted = "not expected" // the run did not expect the unit: it is not in its sample
	NotKnown    Sighted = "not known"    // the report does not say: passed, or not in the sample
)

// measured reports whether a run measured the unit.
func (s Sighted) measured() bool {
	return s == Sighted(Pass) || s == Sighted(Fail) || s == Sighted(Undecided)
}

// Slower is one row of delays in two runs.
type Slower struct {
	Before DelayRow `json:"before"`
	After  DelayRow `json:"after"`
}

// SlowerPart is a part of a check, and one of its probes, in two runs.
type SlowerPart struct {
	// Part is a group or a unit, with its probe or stage.
	Part   string `json:"part"`
	Before Pace   `json:"before"`
	After  Pace   `json:"after"`
}

// Pace has delays in microseconds; 0 if nothing was answered. P90 is 0 for single units: they have too few
// measurements. Loss is in percent of the measurements.
type Pace struct {
	P50  int64   `json:"p50,omitempty"`
	P90  int64   `json:"p90,omitempty"`
	Loss Percent `json:"loss"`
}

// Slower reports whether a delay or the loss grew by more than the limits of what counts as slower.
func (p Pace) Slower(before Pace) bool {
	return p.Loss-before.Loss >= slowerLoss || grew(before.P50, p.P50) || grew(before.P90, p.P90)
}

// SortSlower sorts parts: those that lose more, then those whose median grew most, then by the 90th percentile.
func SortSlower(parts []SlowerPart) {
	ratio := func(was, is int64) float64 {
		if was <= 0 || is <= 0 {
			return 0
		}
		return float64(is) / float64(was)
	}
	slices.SortFunc(parts, func(a, b SlowerPart) int {
		return cmp.Or(cmp.Compare(b.After.Loss-b.Before.Loss, a.After.Loss-a.Before.Loss),
			cmp.Compare(ratio(b.Before.P50, b.After.P50), ratio(a.Before.P50, a.After.P50)),
			cmp.Compare(ratio(b.Before.P90, b.After.P90), ratio(a.Before.P90, a.After.P90)), cmp.Compare(a.Part, b.Part))
	})
}

// Seen counts (source, target) pairs by who measured them.
type Seen struct {
	Both   int `json:"both"`
	Before int `json:"before"` // the first run only
	After  int `json:"after"`  // the second run only
	// BeforeNames and AfterNames are sources or targets that one run only expected.
	BeforeNames []string `json:"beforeNames,omitempty"`
	AfterNames  []string `json:"afterNames,omitempty"`
}

// Limits of what counts as slower: half more, and more than a scheduler of a busy node delays a packet; and a percent
// of the packets.
const (
	slowerRatio  = 1.5
	slowerMicros = 200
	slowerLoss   = Percent(1)
)

// Compare compares two reports. It is pure.
func Compare(before, after *Report) *Diff {
	d := &Diff{Before: refOf(before), After: refOf(after), Checks: []CheckDiff{}}
	if before.Plan != after.Plan {
		d.Notes = append(d.Notes, fmt.Sprintf("the runs are of two plans, %s and %s: checks are compared by their names",
			before.Plan, after.Plan))
	}
	if !before.Started.IsZero() && !after.Started.IsZero() && after.Started.Before(before.Started) {
		d.Notes = append(d.Notes, "the second run started before the first one")
	}
	find := func(r *Report, name string) *CheckReport {
		if i := slices.IndexFunc(r.Checks, func(c CheckReport) bool { return c.Name == name }); i >= 0 {
			return &r.Checks[i]
		}
		return nil
	}
	for i := range after.Checks {
		d.Checks = append(d.Checks, compareChecks(find(before, after.Checks[i].Name), &after.Checks[i]))
	}
	for i := range before.Checks {
		if find(after, before.Checks[i].Name) == nil {
			d.Checks = append(d.Checks, compareChecks(&before.Checks[i], nil))
		}
	}
	return d
}

func refOf(r *Report) RunRef {
	return RunRef{Plan: r.Plan, Run: r.Run, Started: r.Started, Verdict: r.Verdict, Summary: r.Summary}
}

// compareChecks compares two checks of the same name; one may be nil.
func compareChecks(before, after *CheckReport) CheckDiff {
	if before == nil {
		return CheckDiff{Name: after.Name, After: after.Verdict, Noun: after.Noun}
	}
	if after == nil {
		return CheckDiff{Name: before.Name, Before: before.Verdict, Noun: before.Noun}
	}
	d := CheckDiff{Name: after.Name, Before: before.Verdict, After: after.Verdict, Noun: cmp.Or(after.Noun, before.Noun)}
	d.NewFindings, d.GoneFindings = without(after.Findings, before.Findings), without(before.Findings, after.Findings)
	d.units(before, after)
	for _, row := range after.Delays {
		for _, was := range before.Delays {
			same := was.Transport == row.Transport && was.Stage == row.Stage && was.Family == row.Family && was.Size == row.Size
			if same && isSlower(was, row) {
				d.Slower = append(d.Slower, Slower{was, row})
			}
		}
	}
	d.SlowerUnits = slowerUnits(before, after)
	if a, b := before.pairs(), after.pairs(); a != nil && b != nil {
		d.Seen = seenBy(a, b)
	}
	for _, c := range []struct {
		which string
		of    *CheckReport
	}{{"first", before}, {"second", after}} {
		if c.of.Cause != nil {
			d.Notes = append(d.Notes, fmt.Sprintf("the %s run did not measure the check: %s", c.which, c.of.Cause))
		}
	}
	if a, b := before.Coverage, after.Coverage; d.Seen == nil && a != nil && b != nil && !sameSample(before, after) {
		d.Notes = append(d.Notes, fmt.Sprintf("the runs measured different samples (round %d of %d, and round %d of %d): "+
			"a unit that is not listed in one of them passed, or was not in its sample", a.Round, a.Rounds, b.Round, b.Rounds))
	}
	return d
}

// without returns the findings that are not among the others. A finding that counts more findings is among the others
// if each of these is.
func without(of, others []Finding) []Finding {
	among := map[string]bool{}
	for _, o := range others {
		among[o.String()] = true
		for _, name := range o.Rest {
			among[name] = true
		}
	}
	missing := func(name string) bool { return !among[name] }
	var left []Finding
	for _, f := range of {
		if len(f.Rest) == 0 && missing(f.String()) || slices.ContainsFunc(f.Rest, missing) {
			left = append(left, f)
		}
	}
	return left
}

// units compares the units that one of the reports lists.
func (d *CheckDiff) units(before, after *CheckReport) {
	was, is := sightOf(before, after), sightOf(after, before)
	listed := map[string]bool{}
	for _, u := range slices.Concat(after.Units, before.Units) {
		if listed[u.Name] {
			continue
		}
		listed[u.Name] = true
		c := UnitDiff{Unit: u.Name, Cause: u.Cause}
		c.Before, c.After = was.of(&u), is.of(&u)
		failed, fails := c.Before == Sighted(Fail), c.After == Sighted(Fail)
		switch {
		case failed && fails:
			d.Still++
		case fails && c.Before.measured():
			d.New = append(d.New, c)
		case failed && c.After.measured():
			d.Gone = append(d.Gone, c)
		case failed || fails || c.Before.measured() && c.After == Sighted(Unmeasured):
			d.Unseen = append(d.Unseen, c)
		}
	}
	for _, list := range [][]UnitDiff{d.New, d.Gone, d.Unseen} {
		slices.SortStableFunc(list, func(a, b UnitDiff) int { return cmp.Compare(a.Unit, b.Unit) })
	}
}

// pairs is the matrix of a check if its rows and columns are single sources and targets; nil if they are groups.
func (c *CheckReport) pairs() *Matrix {
	if c.Matrix == nil || c.Matrix.Group > 1 {
		return nil
	}
	return c.Matrix
}

// sight is what a report knows about units, those that it does not list too.
type sight struct {
	c        *CheckReport
	pairs    *Matrix // nil if the report does not list its pairs
	verdicts map[string]Verdict
	rows     map[string]int // of the matrix, by source
	columns  map[string]int // by target
	// same says that the other report has the same sample: what it lists was expected here.
	same bool
}

func sightOf(c, other *CheckReport) *sight {
	s := &sight{
		c: c, verdicts: map[string]Verdict{}, rows: map[string]int{}, columns: map[string]int{}, same: sameSample(c, other),
	}
	for _, u := range c.Units {
		s.verdicts[u.Name] = u.Verdict
	}
	if s.pairs = c.pairs(); s.pairs != nil {
		for i, name := range s.pairs.Sources {
			s.rows[name] = i
		}
		for i, name := range s.pairs.Targets {
			s.columns[name] = i
		}
	}
	return s
}

// of returns what the report knows about a unit, which it or the other one lists.
func (s *sight) of(u *Unit) Sighted {
	if v, ok := s.verdicts[u.Name]; ok {
		return Sighted(v)
	}
	if s.c.Cause != nil {
		return Sighted(Unmeasured)
	}
	if s.c.Complete {
		return NotExpected
	}
	if s.pairs != nil && u.Source != "" && u.Target != "" {
		row, ok := s.rows[u.Source]
		column, known := s.columns[u.Target]
		if !ok || !known || row >= len(s.pairs.Cells) || column >= len(s.pairs.Cells[row]) ||
			s.pairs.Cells[row][column] == ' ' || !s.probes(u) {
			return NotExpected
		}
		return Sighted(Pass)
	}
	if s.same {
		return Sighted(Pass)
	}
	return NotKnown
}

// probes reports whether the check measured by the unit's transport, family and size.
func (s *sight) probes(u *Unit) bool {
	return slices.ContainsFunc(s.c.Delays, func(r DelayRow) bool {
		return r.Transport == u.Transport && r.Family == u.Family && (r.Size == u.Size || r.Stage != "")
	})
}

// sameSample reports whether two reports have the same expected units, as far as they say.
func sameSample(a, b *CheckReport) bool {
	x, y := a.Coverage, b.Coverage
	if x == nil || y == nil {
		return x == y && a.Counts.Expected == b.Counts.Expected
	}
	return x.Round == y.Round && x.Rounds == y.Rounds && x.Seed == y.Seed && x.Possible == y.Possible &&
		a.Counts.Expected == b.Counts.Expected
}

// isSlower reports whether delays or losses grew by more than the limits.
func isSlower(was, is DelayRow) bool {
	if was.Sent == 0 || is.Sent == 0 {
		return false
	}
	if is.Loss-was.Loss >= slowerLoss {
		return true
	}
	if was.Delay == nil || is.Delay == nil {
		return false
	}
	return grew(was.Delay.P50, is.Delay.P50) || grew(was.Delay.P99, is.Delay.P99)
}

// grew reports whether a delay is more by the limits of what counts as slower; 0 is no delay.
func grew(was, is int64) bool {
	return was > 0 && float64(is) >= slowerRatio*float64(was) && is-was >= slowerMicros
}

// slowerUnits compares the units that both reports list with their delays.
func slowerUnits(before, after *CheckReport) []SlowerPart {
	was := make(map[string]map[string]Pace, len(before.Units))
	for i := range before.Units {
		was[before.Units[i].Name] = paces(&before.Units[i])
	}
	var all []SlowerPart
	for i := range after.Units {
		u := &after.Units[i]
		if u.Verdict == Fail {
			continue
		}
		for part, is := range paces(u) {
			if b, ok := was[u.Name][part]; ok && is.Slower(b) {
				all = append(all, SlowerPart{part, b, is})
			}
		}
	}
	SortSlower(all)
	return all
}

// paces are what a unit says about its delays, by name; nil if it has none.
func paces(u *Unit) map[string]Pace {
	if u.Sent == 0 || u.Delay == nil && len(u.Delays) == 0 {
		return nil
	}
	loss := PercentOf(u.Sent-u.Received, u.Sent)
	all := map[string]Pace{}
	if u.Delay != nil {
		all[u.Name] = Pace{P50: u.Delay.P50, Loss: loss}
	}
	for stage, d := range u.Delays {
		if d != nil {
			all[u.Name+": "+string(stage)] = Pace{P50: d.P50, Loss: loss}
		}
	}
	return all
}

// seenBy counts the pairs that the runs measured, by their matrices.
func seenBy(before, after *Matrix) *Seen {
	type pair struct{ source, target string }
	measured := func(m *Matrix) map[pair]bool {
		pairs := map[pair]bool{}
		for i, source := range m.Sources {
			for k, target := range m.Targets {
				if i < len(m.Cells) && k < len(m.Cells[i]) && strings.IndexByte(".x/~", m.Cells[i][k]) >= 0 {
					pairs[pair{source, target}] = true
				}
			}
		}
		return pairs
	}
	was, is := measured(before), measured(after)
	s := &Seen{}
	for p := range was {
		if is[p] {
			s.Both++
		} else {
			s.Before++
		}
	}
	s.After = len(is) - s.Both
	s.BeforeNames, s.AfterNames = onlyIn(before, after), onlyIn(after, before)
	return s
}

// onlyIn returns the sources and targets of a matrix that the other one does not have.
func onlyIn(m, other *Matrix) []string {
	names := slices.Compact(slices.Sorted(slices.Values(slices.Concat(m.Sources, m.Targets))))
	return slices.DeleteFunc(names, func(name string) bool {
		return slices.Contains(other.Sources, name) || slices.Contains(other.Targets, name)
	})
}
