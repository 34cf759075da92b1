// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Limits of a history. What is beyond them decays into something smaller; see doc.go.
const (
	// maxRuns is the number of runs that are listed one by one. Older runs become counts of their day.
	maxRuns = 4096
	// maxDays is the number of days that are listed.
	maxDays = 800
	// maxDayDelays is the number of probes, of all checks, whose delays a day keeps.
	maxDayDelays = 64
	// maxTrends is the number of probes, of all checks, whose delays an Overview has for each run.
	maxTrends = maxDayDelays
	// maxChecks is the number of checks that are looked for in the runs, by name. A history is untrusted input.
	maxChecks = 256
	// maxFindings is the number of findings that are remembered. Those last seen longest ago are dropped.
	maxFindings = 500
	// keepPairs is the number of newest runs whose pairs are kept although newer runs measured all of them again.
	keepPairs = 64
	// keepDays is the number of days before the newest keepPairs runs of which the last run keeps the delays of single
	// pairs and the values of groups.
	keepDays = 64
	// maxDetail is the size of the delays of single pairs of the newest runs, and that of the days, and maxGroups that of
	// the values of groups; in bytes before compression.
	maxDetail = 4 << 20
	maxGroups = 8 << 20
	// maxSetAside is the number of notes about what was set aside.
	maxSetAside = 20
	// block is the number of runs of one part: old parts then stay the same from run to run.
	block = 256
)

// History is what the runs of a plan hand to the next one.
type History struct {
	// Plan is the plan's name.
	Plan string `json:"plan"`
	// Runs that are listed one by one, in the order in which they ended.
	Runs []Run `json:"-"`
	// Days are the counts of runs that are no longer in Runs, oldest first.
	Days []Day `json:"days,omitempty"`
	// Findings in the order of the time at which they were first seen.
	Findings []Finding `json:"findings,omitempty"`
	// Digests of delays and losses, sorted by their Keys.
	Digests []Digest `json:"-"`
	// Nodes are those whose UID a run knew, by name.
	Nodes []Node `json:"-"`
	// Due says when the plan's schedule starts runs; nil for a plan without a schedule.
	Due *Due `json:"due,omitempty"`
	// SetAside says what could not be read, and when that was noticed; one line each, oldest first.
	SetAside []string `json:"setAside,omitempty"`
}

// Run is one run of a plan.
type Run struct {
	// N counts the runs of the plan, from 1, in the order in which they ended.
	N        int                `json:"n"`
	Name     string             `json:"name"`
	UID      string             `json:"uid"`
	Started  time.Time          `json:"started,omitzero"`
	Finished time.Time          `json:"finished,omitzero"`
	Verdict  checkup.RunVerdict `json:"verdict"`
	Counts   checkup.Counts     `json:"counts"`
	Checks   []Check            `json:"checks,omitempty"`
}

// Check is one check of a run.
type Check struct {
	Name    string             `json:"name"`
	Verdict checkup.RunVerdict `json:"verdict"`
	Counts  checkup.Counts     `json:"counts"`
	// Possible is the number of (source, target) pairs that runs may measure, such as the full mesh; 0 for checks without
	// pairs.
	Possible int     `json:"possible,omitempty"`
	Delays   []Delay `json:"delays,omitempty"`
	// Regressed says that the run had a finding of what became worse by a step since earlier runs.
	Regressed bool `json:"regressed,omitempty"`
	// Pairs has the results of the pairs; nil for checks without pairs, and if newer runs replaced all of them.
	Pairs *Pairs `json:"pairs,omitempty"`
}

// Delay has the round trips of all pairs of one probe in one run, in microseconds.
type Delay struct {
	Probe string `json:"probe"`
	P50   int64  `json:"p50"`
	P99   int64  `json:"p99"`
	Sent  int    `json:"sent"`
	Lost  int    `json:"lost,omitempty"`
}

// Day counts the runs of one day, in UTC, by verdict.
type Day struct {
	Date         string `json:"date"` // 2026-01-31
	Pass         int    `json:"pass,omitempty"`
	Fail         int    `json:"fail,omitempty"`
	Inconclusive int    `json:"inconclusive,omitempty"`
	// Delays of the day, by check and probe; nil if no run had any, or if an older version of checkplan counted them.
	Delays []DayDelay `json:"delays,omitempty"`
}

// Finding is a finding of one or more runs.
type Finding struct {
	Check string `json:"check"`
	// Finding is the cause and its subject, as checkup.Finding.String: what makes two findings the same.
	Finding string `json:"finding"`
	// Message of the newest run that has the finding.
	Message string `json:"message"`
	// First and Last are the ends of the first and the newest run that have it; Runs is how many have it.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	Runs  int       `json:"runs"`
}

// Entry is what one run adds to a history.
type Entry struct {
	Plan string
	// Schedule of the plan; nil if it has none.
	Schedule *checkup.Schedule
	Run      Run
	Findings []Finding
	Digests  []Digest
}

// Merge returns the history with one run more. It changes neither argument. A run that the history has already, by its
// UID, adds nothing. A nil history is an empty one.
func Merge(h *History, e *Entry) *History {
	next := &History{Plan: e.Plan}
	if h != nil {
		*next = *h
	}
	if slices.ContainsFunc(next.Runs, func(r Run) bool { return r.UID == e.Run.UID }) {
		return next
	}
	run := e.Run
	run.N = 1
	if n := len(next.Runs); n > 0 {
		run.N = next.Runs[n-1].N + 1
	}
	run.Checks = slices.Clone(run.Checks)
	for i := range run.Checks {
		if p := run.Checks[i].Pairs; p != nil {
			next.Nodes = joinNodes(next.Nodes, p.uids)
			run.Checks[i].Pairs = p.at(next.Nodes)
		}
	}
	next.Runs = append(slices.Clone(next.Runs), run)
	next.Findings = mergeFindings(next.Findings, e.Findings)
	next.Due = next.Due.next(e)
	next.Digests = mergeDigests(next.Digests, e.Digests, run.Finished)
	next.decay()
	return next
}

// decay makes what is old smaller.
func (h *History) decay() {
	h.dropOld()
	newest := h.Runs[len(h.Runs)-1].N
	if newest%block == 0 {
		h.dropReplaced()
	}
	// Whole blocks only: the part of the oldest block stays the same from run to run.
	if len(h.Runs) <= maxRuns+block {
		return
	}
	h.intoDays(len(h.Runs) - maxRuns)
	h.Days = h.Days[max(0, len(h.Days)-maxDays):]
}

// dropOld drops the delays of single pairs, and the values of groups, of all but the newest runs and the last run of
// each day before.
func (h *History) dropOld() {
	sizes := map[bool]struct{ detail, groups int }{}
	days := 0
	for i := len(h.Runs) - 1; i >= 0; i-- {
		r := &h.Runs[i]
		old := len(h.Runs)-i > keepPairs
		last := old && dayOf(r.Finished) != dayOf(h.Runs[i+1].Finished)
		if last {
			days++
		}
		for k := range r.Checks {
			p := r.Checks[k].Pairs
			if p == nil || p.detail == nil && p.groups == nil {
				continue
			}
			bare := *p
			size := sizes[old]
			size.detail += len(p.detail)
			size.groups += len(p.groups)
			sizes[old] = size
			gone := old && (!last || days > keepDays)
			if gone || size.detail > maxDetail {
				bare.detail = nil
			}
			if gone || size.groups > maxGroups {
				bare.groups = nil
			}
			r.Checks = slices.Clone(r.Checks)
			r.Checks[k].Pairs = &bare
		}
	}
}

// dayOf is the number of the day of a time, in UTC.
func dayOf(t time.Time) int64 { return t.Unix() / (24 * 60 * 60) }

// dropReplaced drops the pairs of old runs of which newer runs measured every one again, or whose nodes left.
func (h *History) dropReplaced() {
	for _, check := range h.checks() {
		n := h.newest(check)
		for i := 0; i < len(h.Runs)-keepPairs; i++ {
			k := slices.IndexFunc(h.Runs[i].Checks, func(c Check) bool { return c.Name == check })
			if k < 0 || h.Runs[i].Checks[k].Pairs == nil || h.Runs[i].Checks[k].Pairs.groups != nil ||
				n.used[h.Runs[i].N] > 0 || n.keep[h.Runs[i].N] {
				continue
			}
			h.Runs[i].Checks = slices.Clone(h.Runs[i].Checks)
			h.Runs[i].Checks[k].Pairs = nil
		}
	}
}

// checks are the names of all checks of the runs, at most maxChecks: those of the newest runs.
func (h *History) checks() []string {
	left := map[string]bool{}
	for i := len(h.Runs) - 1; i >= 0; i-- {
		for _, c := range h.Runs[i].Checks {
			if len(left) < maxChecks {
				left[c.Name] = true
			}
		}
	}
	var names []string
	for i := range h.Runs { // in the order of their first run
		for _, c := range h.Runs[i].Checks {
			if left[c.Name] {
				names = append(names, c.Name)
				delete(left, c.Name)
			}
		}
	}
	return names
}

// check returns a check of a run; nil if the run has none of that name.
func (r *Run) check(name string) *Check {
	for i := range r.Checks {
		if r.Checks[i].Name == name {
			return &r.Checks[i]
		}
	}
	return nil
}

func mergeFindings(old, added []Finding) []Finding {
	all := slices.Clone(old)
	for _, f := range added {
		i := slices.IndexFunc(all, func(o Finding) bool { return o.Check == f.Check && o.Finding == f.Finding })
		if i < 0 {
			all = append(all, f)
			continue
		}
		o := &all[i]
		o.Runs += f.Runs
		if f.Last.After(o.Last) {
			o.Last, o.Message = f.Last, f.Message
		}
		if f.First.Before(o.First) {
			o.First = f.First
		}
	}
	if len(all) > maxFindings {
		slices.SortStableFunc(all, func(a, b Finding) int { return b.Last.Compare(a.Last) })
		all = all[:maxFindings]
	}
	slices.SortStableFunc(all, func(a, b Finding) int {
		return cmp.Or(a.First.Compare(b.First), cmp.Compare(a.Check, b.Check), cmp.Compare(a.Finding, b.Finding))
	})
	return all
}

// Note adds a line about something that could not be read.
func (h *History) Note(at time.Time, format string, args ...any) {
	h.SetAside = append(h.SetAside, at.UTC().Format(time.RFC3339)+" "+fmt.Sprintf(format, args...))
	h.SetAside = h.SetAside[max(0, len(h.SetAside)-maxSetAside):]
}

// NotesSince returns the lines of SetAside that were noticed since.
func (h *History) NotesSince(since time.Time) []string {
	from := since.UTC().Format(time.RFC3339)
	return slices.DeleteFunc(slices.Clone(h.SetAside), func(n string) bool { return n < from })
}

// Gap is a time without a run that was due.
type Gap struct {
	// After and Before are the starts of the runs around it. Before of a gap that is still open is the time of the look.
	After  time.Time `json:"after"`
	Before time.Time `json:"before"`
	// Missed is the number of runs that were due, by the schedule or else at the usual interval.
	Missed int `json:"missed"`
}

// gapFactor is how much longer than usual the time between two starts is in a gap, if there is no schedule.
const gapFactor = 1.75

// Gaps returns the gaps of the runs, and the usual interval between two starts, their median. Fewer than four runs have
// no usual interval. A run that never reported is not in a history, so it leaves a gap. Runs are due by the schedule,
// since a run has it; before that, or if it is nil, one is due at each usual interval.
func Gaps(runs []Run, due *Due) (gaps []Gap, every time.Duration) {
	var starts []time.Time
	for _, r := range runs {
		if !r.Started.IsZero() {
			starts = append(starts, r.Started)
		}
	}
	slices.SortFunc(starts, time.Time.Compare)
	if len(starts) == 0 {
		return nil, 0
	}
	between := make([]time.Duration, len(starts)-1)
	for i := range between {
		between[i] = starts[i+1].Sub(starts[i])
	}
	if len(starts) >= 4 {
		sorted := slices.Clone(between)
		slices.Sort(sorted)
		every = max(sorted[len(sorted)/2], 0)
	}
	for i := range between {
		gaps = appendGap(gaps, starts[i], starts[i+1], due, every)
	}
	return gaps, every
}

// appendGap adds the time between two starts if it is a gap.
func appendGap(gaps []Gap, after, before time.Time, due *Due, every time.Duration) []Gap {
	missed := 0
	switch d := before.Sub(after); {
	case due != nil && !after.Before(due.Since):
		most := maxMissed
		for _, g := range gaps {
			most -= g.Missed
		}
		missed = due.missed(after, before, max(most, 1))
	case every > 0 && float64(d) > gapFactor*float64(every):
		missed = int(math.Round(float64(d)/float64(every))) - 1
	}
	if missed == 0 {
		return gaps
	}
	return append(gaps, Gap{after, before, missed})
}
