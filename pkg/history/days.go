// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// DayDelay has the round trips of one probe of one check on one day, in microseconds: the medians of P50 and P99 of
// Runs, the runs of that day that had an answer.
type DayDelay struct {
	Check string `json:"check"`
	Probe string `json:"probe"`
	P50   int64  `json:"p50"`
	P99   int64  `json:"p99"`
	Runs  int    `json:"runs"`
}

func compareDayDelays(a, b DayDelay) int {
	return cmp.Or(cmp.Compare(a.Check, b.Check), cmp.Compare(a.Probe, b.Probe))
}

// dateOf is the day to which a run belongs, in UTC.
func dateOf(r *Run) string { return r.Started.UTC().Format(time.DateOnly) }

func compareDate(d Day, date string) int { return cmp.Compare(d.Date, date) }

// intoDays turns the oldest n runs into counts of their days. Delays of a day are those of all its listed runs, also of
// those that stay: its other runs become counts later, when these are no longer listed.
func (h *History) intoDays(n int) {
	days, counted := slices.Clone(h.Days), map[string]bool{}
	for i := range h.Runs[:n] {
		r := &h.Runs[i]
		k, ok := slices.BinarySearchFunc(days, dateOf(r), compareDate)
		if !ok {
			days = slices.Insert(days, k, Day{Date: dateOf(r)})
		}
		counted[dateOf(r)] = true
		switch r.Verdict {
		case checkup.RunPass:
			days[k].Pass++
		case checkup.RunFail:
			days[k].Fail++
		default:
			days[k].Inconclusive++
		}
	}
	for date, delays := range delaysByDay(h.Runs) {
		if counted[date] {
			k, _ := slices.BinarySearchFunc(days, date, compareDate)
			days[k].Delays = joinDelays(days[k].Delays, delays)
		}
	}
	h.Days, h.Runs = days, slices.Clone(h.Runs[n:])
}

// delaysByDay returns the delays of each day on which a run had any, sorted by check and probe.
func delaysByDay(runs []Run) map[string][]DayDelay {
	type values struct{ p50, p99 []int64 }
	byDay := map[string]map[series]*values{}
	for i := range runs {
		date := dateOf(&runs[i])
		for _, c := range runs[i].Checks {
			for _, d := range c.Delays {
				if d.P50 <= 0 {
					continue
				}
				if byDay[date] == nil {
					byDay[date] = map[series]*values{}
				}
				v := byDay[date][series{c.Name, d.Probe}]
				if v == nil {
					v = &values{}
					byDay[date][series{c.Name, d.Probe}] = v
				}
				v.p50, v.p99 = append(v.p50, d.P50), append(v.p99, d.P99)
			}
		}
	}
	all := make(map[string][]DayDelay, len(byDay))
	for date, of := range byDay {
		delays := make([]DayDelay, 0, len(of))
		for s, v := range of {
			delays = append(delays, DayDelay{s.check, s.probe, Median(v.p50), Median(v.p99), len(v.p50)})
		}
		slices.SortFunc(delays, compareDayDelays)
		all[date] = delays[:min(len(delays), maxDayDelays)]
	}
	return all
}

// joinDelays returns the delays of one day from two lists: of each probe, those of more runs.
func joinDelays(a, b []DayDelay) []DayDelay {
	all := slices.Concat(a, b)
	slices.SortStableFunc(all, func(a, b DayDelay) int { return cmp.Or(compareDayDelays(a, b), b.Runs-a.Runs) })
	all = slices.CompactFunc(all, func(a, b DayDelay) bool { return compareDayDelays(a, b) == 0 })
	return all[:min(len(all), maxDayDelays)]
}

// Median returns the lower median of the values that are above 0; 0 if none is. It sorts nothing in place.
func Median(values []int64) int64 {
	known := slices.DeleteFunc(slices.Clone(values), func(v int64) bool { return v <= 0 })
	if len(known) == 0 {
		return 0
	}
	slices.Sort(known)
	return known[(len(known)-1)/2]
}

// Daily has the delays of one probe of one check by day, in microseconds, from the day First to the newest day that has
// any of any probe: the medians of P50 and P99 of the runs of each day; 0 for a day without an answer.
type Daily struct {
	First string  `json:"first"` // 2026-01-31
	P50   []int64 `json:"p50"`
	P99   []int64 `json:"p99"`
}

// series is one probe of one check.
type series struct{ check, probe string }

// dailyOf returns the delays by day, of listed and of older runs, for the same days of each probe; nil if all are of
// one day. A check that is not empty is the only one. Probes are at most maxDayDelays, those of the newest days.
func dailyOf(check string, days []Day, runs []Run) map[series]*Daily {
	byDay := delaysByDay(runs)
	for _, d := range days {
		byDay[d.Date] = joinDelays(d.Delays, byDay[d.Date])
	}
	of := map[int64][]DayDelay{}
	for date, delays := range byDay {
		at, err := time.Parse(time.DateOnly, date)
		delays = slices.DeleteFunc(slices.Clone(delays), func(d DayDelay) bool {
			return d.P50 <= 0 || check != "" && d.Check != check
		})
		if err == nil && len(delays) > 0 {
			of[dayOf(at)] = delays
		}
	}
	known := slices.Sorted(maps.Keys(of))
	if len(known) == 0 {
		return nil
	}
	newest := known[len(known)-1]
	known = slices.DeleteFunc(known, func(day int64) bool { return newest-day >= maxDays })
	first := known[0]
	if first == newest {
		return nil
	}
	all := map[series]*Daily{}
	for _, day := range slices.Backward(known) {
		for _, d := range of[day] {
			key := series{d.Check, d.Probe}
			if all[key] == nil && len(all) == maxDayDelays {
				continue
			}
			if all[key] == nil {
				n := newest - first + 1
				date := time.Unix(first*24*60*60, 0).UTC().Format(time.DateOnly)
				all[key] = &Daily{First: date, P50: make([]int64, n), P99: make([]int64, n)}
			}
			all[key].P50[day-first], all[key].P99[day-first] = d.P50, d.P99
		}
	}
	return all
}
