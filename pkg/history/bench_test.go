// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// BenchmarkYear adds a run to the history of a year: 5,000 nodes, degree 10, two probes, a run every hour, one node in
// a hundred of another name each week, and one pair in a thousand that fails. It reports the size of the whole history
// in MiB, and the ConfigMaps and MiB that one more run writes.
func BenchmarkYear(b *testing.B) {
	const hours = 365 * 24
	names, zones := nodes(5000), map[string]string{}
	uids := map[string]string{}
	m := mesh{nodes: names, degree: 10, zone: zones, uids: uids, verdict: func(run int, from, to string) checkup.Verdict {
		if checkup.HashString(uint64(run), from+to)%1000 == 0 {
			return checkup.Fail
		}
		return checkup.Pass
	}}
	var h *History
	for run := range hours {
		if run%168 == 0 {
			for i := range 50 {
				names[(run/168*50+i)%len(names)] = fmt.Sprintf("node-%04d-%d", (run/168*50+i)%len(names), run)
			}
			for i, name := range names {
				zones[name], uids[name] = fmt.Sprintf("zone-%d", i%3), "uid of "+name
			}
		}
		// Only what is left at the end is made in full: the newest cycle of 500 runs, and the delays of the newest 64 runs,
		// and of one run of each of the days before.
		daily := run%24 == 23 && run >= hours-keepPairs-24*keepDays
		if run < hours-520 && !daily {
			at := start.Add(time.Duration(run) * time.Hour)
			delay := func(probe string, least int) Delay {
				noise := int(checkup.HashString(uint64(run), probe) % 64)
				return Delay{Probe: probe, P50: int64(least + noise), P99: int64(3*least + 7*noise), Sent: 150_000, Lost: noise}
			}
			h = Merge(h, &Entry{Plan: "p", Run: Run{Name: fmt.Sprintf("p-run-%d", run), UID: fmt.Sprintf("uid-%032d", run),
				Started: at, Finished: at.Add(time.Minute), Verdict: checkup.RunPass,
				Checks: []Check{{Name: "mesh", Delays: []Delay{delay("tcp IPv4 0B", 200), delay("udp IPv4 0B", 180)}}}}})
			continue
		}
		m.bare = run < hours-keepPairs && !daily
		h = Merge(h, m.entry(run))
	}
	if c := h.Cumulative("mesh"); float64(c.Measured) < 0.95*float64(c.Possible) {
		b.Fatalf("%d of %d pairs are covered", c.Measured, c.Possible)
	}
	old, err := Encode(h)
	if err != nil {
		b.Fatal(err)
	}
	whole := 0
	known := map[string]bool{}
	for _, p := range old {
		whole += len(p.Data)
		known[string(p.Data)] = true
	}
	r, sheets := m.sheet(hours)
	if n := len(h.Overview(Filter{}).Trends[0].Daily.P50); n != 365 {
		b.Fatalf("the trend has %d days, want the year", n)
	}
	b.ReportMetric(float64(whole)/(1<<20), "MiB")
	for b.Loop() {
		before, _ := Decode("p", old, start)
		next := Merge(before, EntryOf(r, sheets))
		next.Cumulative("mesh")
		parts, err := Encode(next)
		if err != nil {
			b.Fatal(err)
		}
		written, objects := 1, 0
		for _, p := range parts {
			if !known[string(p.Data)] {
				written += len(p.Data)
				objects += 1 + (len(p.Data)-1)/(768<<10)
			}
		}
		b.ReportMetric(float64(written)/(1<<20), "MiB-written")
		b.ReportMetric(float64(objects), "objects-written")
		b.ReportMetric(float64(whole)/(1<<20), "MiB")
	}
}

// BenchmarkCompare compares a run of 1,000 nodes, degree 10 and two probes with the 64 runs and the 64 days before it.
// times-entry is its time divided by that of EntryOf for the same run.
func BenchmarkCompare(b *testing.B) {
	m := mesh{nodes: nodes(1000), degree: 10, zone: map[string]string{}, every: 8 * time.Hour}
	for i, name := range m.nodes {
		m.zone[name] = fmt.Sprintf("zone-%d", i%3)
	}
	var h *History
	sample := m
	entries := make([]*Entry, 4)
	for i := range entries {
		r, sheets := sample.sheet(0) // the same round each time
		r.RunUID = fmt.Sprint(i)
		entries[i] = EntryOf(r, sheets)
	}
	const runs = 64 + 64*3
	for run := range runs {
		e := *entries[run%len(entries)]
		e.Run.UID, e.Run.Finished = fmt.Sprint("run-", run), start.Add(time.Duration(run)*m.every)
		h = Merge(h, &e)
	}
	now := entries[0].Run.Checks[0].Pairs
	at := start.Add(runs * m.every)
	r, sheets := sample.sheet(0)
	began := time.Now()
	const entered = 3
	for range entered {
		EntryOf(r, sheets)
	}
	entry := time.Since(began) / entered
	values := 0
	for b.Loop() {
		x := h.Compare("mesh", now, at, demand)
		values = len(x.rows.all)*x.rows.n + len(x.daily.all)*x.daily.n
		if x.Runs < demand.Runs || x.Days < demand.Runs {
			b.Fatalf("compared with %d runs and %d days", x.Runs, x.Days)
		}
	}
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(entry), "times-entry")
	b.ReportMetric(float64(values), "values")
}
