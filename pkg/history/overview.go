// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// OverviewKind is the kind of an Overview in JSON.
const OverviewKind = "History"

// Overview is a history for people and programs.
type Overview struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Plan       string `json:"plan"`
	// Since is the start of what is shown; zero shows all.
	Since time.Time `json:"since,omitzero"`
	// Runs by their start, oldest first. Of a run, the listed checks are shown.
	Runs []Run `json:"runs"`
	// Days count the runs that are too old to be listed. Their delays are in Trends.
	Days []Day `json:"days,omitempty"`
	// Every is the usual time between two starts; 0 if it is unknown. Gaps are times without a run.
	Every checkup.Duration `json:"every,omitempty"`
	Gaps  []Gap            `json:"gaps,omitempty"`
	// Findings that were seen since, by the time at which they were first seen.
	Findings []Finding `json:"findings,omitempty"`
	// Coverage of the possible pairs by all runs, by check. It does not depend on Since.
	Coverage []CheckCoverage `json:"coverage,omitempty"`
	// Trends of the delays, by check and probe; at most 64, those of the newest runs.
	Trends []Trend `json:"trends,omitempty"`
	// Pair has the results of one pair, if it was asked for.
	Pair []PairResult `json:"pair,omitempty"`
	// SetAside says what could not be read, and when that was noticed.
	SetAside []string `json:"setAside,omitempty"`
}

// CheckCoverage is the coverage of one check.
type CheckCoverage struct {
	Check string `json:"check"`
	checkup.Cumulative
}

// Trend has the median delay of one probe of one check, in microseconds, for each run of an Overview; 0 where nothing
// was answered. Typical is the median of all runs together, from the digest, which weighs newer runs more. Daily has
// the days of listed and of older runs; nil if all runs with an answer began on one day.
type Trend struct {
	Check   string  `json:"check"`
	Probe   string  `json:"probe"`
	P50     []int64 `json:"p50"`
	Typical int64   `json:"typical,omitempty"`
	Daily   *Daily  `json:"daily,omitempty"`
}

// Filter selects what an Overview shows.
type Filter struct {
	// Since is the earliest start of a run; zero for all.
	Since time.Time
	// Check is the name of the only check; empty for all.
	Check string
	// Source and Target name the pair of Overview.Pair; empty for none.
	Source, Target string
	// Now ends a gap that is still open: no run began since the last one. Zero looks for none.
	Now time.Time
}

// Overview returns what the filter selects.
func (h *History) Overview(f Filter) *Overview {
	o := &Overview{
		APIVersion: checkup.APIVersion, Kind: OverviewKind, Plan: h.Plan, Since: f.Since, Runs: []Run{}, SetAside: h.SetAside,
	}
	for _, r := range h.Runs {
		if r.Started.Before(f.Since) {
			continue
		}
		var checks []Check
		for _, c := range r.Checks {
			if f.Check == "" || c.Name == f.Check {
				c.Pairs = nil
				checks = append(checks, c)
			}
		}
		r.Checks = checks
		o.Runs = append(o.Runs, r)
	}
	slices.SortStableFunc(o.Runs, func(a, b Run) int { return a.Started.Compare(b.Started) })
	var days []Day
	for _, d := range h.Days {
		if d.Date >= f.Since.UTC().Format(time.DateOnly) {
			days = append(days, d)
			d.Delays = nil
			o.Days = append(o.Days, d)
		}
	}
	gaps, every := Gaps(o.Runs, h.Due)
	if n := len(o.Runs); n > 0 && !f.Now.IsZero() {
		gaps = appendGap(gaps, o.Runs[n-1].Started, f.Now, h.Due, every)
	}
	o.Gaps, o.Every = gaps, checkup.Duration(every)
	for _, d := range h.Findings {
		if !d.Last.Before(f.Since) && (f.Check == "" || d.Check == f.Check) {
			o.Findings = append(o.Findings, d)
		}
	}
	byDay := dailyOf(f.Check, days, o.Runs)
	checks := h.checks()
	listed := len(checks)
	for s := range byDay {
		if !slices.Contains(checks, s.check) {
			checks = append(checks, s.check)
		}
	}
	slices.Sort(checks[listed:])
	for _, check := range checks {
		if f.Check != "" && check != f.Check {
			continue
		}
		if c := h.Cumulative(check); c != nil {
			o.Coverage = append(o.Coverage, CheckCoverage{check, *c})
		}
		o.Trends = append(o.Trends, h.trends(check, byDay, o.Runs, maxTrends-len(o.Trends))...)
	}
	if f.Source != "" {
		o.Pair = slices.DeleteFunc(h.Pair(f.Source, f.Target), func(p PairResult) bool {
			return p.At.Before(f.Since) || f.Check != "" && p.Check != f.Check
		})
	}
	return o
}

// trends are those of the probes of a check, in the order of the newest run, then those of older runs, then those that
// only the days have; at most a number of them.
func (h *History) trends(check string, byDay map[series]*Daily, runs []Run, most int) []Trend {
	var trends []Trend
	of := func(probe string) *Trend { // nil beyond the number
		k := slices.IndexFunc(trends, func(t Trend) bool { return t.Probe == probe })
		switch {
		case k >= 0:
			return &trends[k]
		case len(trends) >= most:
			return nil
		}
		t := Trend{Check: check, Probe: probe, P50: make([]int64, len(runs)), Daily: byDay[series{check, probe}]}
		key := Key{Check: check, Group: All, Probe: probe}
		at, ok := slices.BinarySearchFunc(h.Digests, key, func(d Digest, k Key) int { return compareKeys(d.Key, k) })
		if ok {
			t.Typical = h.Digests[at].Quantile(0.5)
		}
		trends = append(trends, t)
		return &trends[len(trends)-1]
	}
	for i, r := range slices.Backward(runs) {
		c := r.check(check)
		if c == nil {
			continue
		}
		for _, d := range c.Delays {
			if t := of(d.Probe); t != nil {
				t.P50[i] = d.P50
			}
		}
	}
	runsHave := len(trends)
	for s := range byDay {
		if s.check == check {
			of(s.probe)
		}
	}
	slices.SortFunc(trends[runsHave:], func(a, b Trend) int { return cmp.Compare(a.Probe, b.Probe) })
	return trends
}
