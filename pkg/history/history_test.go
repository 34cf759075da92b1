// SPDX-License-Identifier: Apache-2.0

package history

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// mesh is a plan whose check "mesh" measures a ring sample, as pkg/podmesh makes it: each run takes the next offsets.
type mesh struct {
	nodes  []string
	zone   map[string]string
	degree int
	// verdict returns the verdict of a pair; nil passes all.
	verdict func(run int, from, to string) checkup.Verdict
	// slow multiplies the delays of a pair; nil is 1.
	slow func(run int, from, to string) float64
	// uids of the nodes; nil if they are not known.
	uids map[string]string
	// bare leaves the delays out.
	bare bool
	// every is the time between two runs; 0 is an hour.
	every time.Duration
}

func nodes(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("node-%04d", i)
	}
	return names
}

// sheet returns the worksheet of a run, with its measurements, and the report.
func (m mesh) sheet(run int) (*checkup.Report, map[string]Sheet) {
	n := len(m.nodes)
	endpoints := make([]checkup.Endpoint, n)
	for i, name := range m.nodes {
		endpoints[i] = checkup.Endpoint{Node: name, NodeUID: m.uids[name], Zone: m.zone[name]}
	}
	order, _ := inOrder(7, endpoints)
	w := &checkup.Worksheet{
		Plan: "p", Check: "mesh", Seed: 7, Rounds: (n - 2 + m.degree) / m.degree, Possible: n * (n - 1),
		Sources: endpoints, Targets: endpoints, Assignments: make([][]int, n), IPFamilies: []checkup.IPFamily{checkup.IPv4},
		Probes: []checkup.TransportProbe{{Transport: checkup.TCP, Probe: checkup.Probe{Sizes: []int{0}, Count: 3}},
			{Transport: checkup.UDP, Probe: checkup.Probe{Sizes: []int{0}, Count: 3}}},
	}
	w.Round = run % w.Rounds
	for at, s := range order {
		for k := range m.degree {
			offset := 1 + (w.Round*m.degree+k)%(n-1)
			w.Assignments[s] = append(w.Assignments[s], order[(at+offset)%n])
		}
	}
	for _, row := range w.Assignments {
		slices.Sort(row)
	}
	c := checkup.CheckReport{Name: "mesh", Verdict: checkup.RunPass,
		Coverage: &checkup.Coverage{Possible: w.Possible, Round: w.Round, Rounds: w.Rounds}}
	random := rand.New(rand.NewPCG(1, uint64(run)))
	record := &checkup.Record{}
	for p := range w.Pairs() {
		from, to := m.nodes[p.Source], m.nodes[p.Target]
		verdict := checkup.Pass
		if m.verdict != nil {
			verdict = m.verdict(run, from, to)
		}
		c.Counts.Expected++
		switch verdict {
		case checkup.Pass:
			c.Counts.Pass++
		case checkup.Fail:
			c.Counts.Fail++
			c.Verdict = checkup.RunFail
		default:
			c.Counts.Unmeasured++
		}
		o := checkup.Observation{Pair: p, Sent: 3, Received: 3}
		if verdict != checkup.Pass {
			c.Units = append(c.Units, checkup.Unit{Source: from, Target: to, Family: p.Family, Transport: p.Transport,
				Size: p.Size, Verdict: verdict})
			o.Received = 0
		}
		if m.bare {
			continue
		}
		for range o.Received {
			us := 200 * math.Exp(random.NormFloat64()/4)
			if m.slow != nil {
				us *= m.slow(run, from, to)
			}
			o.RTTs = append(o.RTTs, int64(us))
		}
		record.Observations = append(record.Observations, o)
	}
	every := m.every
	if every == 0 {
		every = time.Hour
	}
	at := start.Add(time.Duration(run) * every)
	r := &checkup.Report{
		Plan: "p", Run: fmt.Sprintf("p-run-%d", run), RunUID: fmt.Sprintf("uid-%d", run), Started: at,
		Finished: at.Add(time.Minute), Verdict: c.Verdict, Counts: c.Counts, Checks: []checkup.CheckReport{c},
	}
	return r, map[string]Sheet{"mesh": {Worksheet: w, Record: record}}
}

func (m mesh) entry(run int) *Entry { return EntryOf(m.sheet(run)) }

// coverage reads "20 of 90, 2 runs, 7 left, oldest ...".
func coverage(c *checkup.Cumulative) string {
	left := "none"
	if c.RunsLeft != nil {
		left = fmt.Sprint(*c.RunsLeft)
	}
	return fmt.Sprintf("%d of %d, %d fail, by %d runs, %s left", c.Measured, c.Possible, c.Failing, c.Runs, left)
}

// TestCoverageGrowsToTheFullMesh: each run adds its round, a failed pair counts until it is measured again, and a pair
// that was not measured is not covered.
func TestCoverageGrowsToTheFullMesh(t *testing.T) {
	m := mesh{nodes: nodes(10), degree: 3, verdict: func(run int, from, to string) checkup.Verdict {
		switch {
		case run == 0 && from == "node-0003":
			return checkup.Fail
		case run == 1 && from == "node-0004":
			return checkup.Unmeasured
		}
		return checkup.Pass
	}}
	var h *History
	for run, want := range []string{
		"30 of 90, 3 fail, by 1 runs, 2 left",
		"57 of 90, 3 fail, by 2 runs, 2 left",
		"87 of 90, 3 fail, by 3 runs, 1 left",
		"87 of 90, 0 fail, by 3 runs, none left",
		"90 of 90, 0 fail, by 3 runs, 0 left",
	} {
		h = Merge(h, m.entry(run))
		c := h.Cumulative("mesh")
		if got := coverage(c); got != want {
			t.Errorf("run %d: %s, want %s", run, got, want)
		}
		switch {
		case c.Measured < 90 && (c.Oldest == "" || !c.OldestAt.IsZero()):
			t.Errorf("run %d: oldest %q at %v, want a pair that was never measured", run, c.Oldest, c.OldestAt)
		case c.Measured == 90 && !c.OldestAt.Equal(start.Add(2*time.Hour+time.Minute)):
			t.Errorf("run %d: oldest %q at %v, want one of run 2", run, c.Oldest, c.OldestAt)
		}
	}
	if got := h.Cumulative("other"); got != nil {
		t.Errorf("coverage %+v of an unknown check, want none", got)
	}
}

// TestBound: the bound is Clopper and Pearson's while pairs are missing, and exact at the end.
func TestBound(t *testing.T) {
	m := mesh{nodes: nodes(10), degree: 3}
	h := Merge(nil, m.entry(0))
	c := h.Cumulative("mesh")
	if want := 1 - math.Pow(0.05, 1.0/30); math.Abs(*c.FailingUpperBound-want) > 1e-9 {
		t.Errorf("bound %g after 30 of 90 pairs passed, want %g", *c.FailingUpperBound, want)
	}
	h = Merge(Merge(h, m.entry(1)), m.entry(2))
	if c := h.Cumulative("mesh"); *c.FailingUpperBound != 0 {
		t.Errorf("bound %g after all pairs passed, want 0", *c.FailingUpperBound)
	}
}

// TestMembership: a changed cluster restarts the pairs of the changed nodes only.
func TestMembership(t *testing.T) {
	all := nodes(10)
	full := mesh{nodes: all, degree: 9}
	without := mesh{nodes: all[1:], degree: 1}
	known := func(degree int, uid string) mesh {
		uids := map[string]string{"node-0005": uid}
		for _, name := range append(slices.Clone(all[:5]), all[6:]...) {
			uids[name] = "uid of " + name
		}
		return mesh{nodes: all, degree: degree, uids: uids}
	}
	moved := mesh{nodes: all, degree: 1, zone: map[string]string{"node-0005": "b"}}
	tests := []struct {
		name     string
		runs     []mesh
		possible int
		want     int
	}{
		{"all nodes", []mesh{full}, 90, 90},
		{"a node left", []mesh{full, without}, 72, 72},
		{"a node left and came back", []mesh{full, without, {nodes: all, degree: 1}}, 90, 72 + 2},
		{"a node joined", []mesh{{nodes: all[1:], degree: 8}, {nodes: all, degree: 1}}, 90, 72 + 2},
		{"a node moved to another zone", []mesh{full, moved}, 90, 72 + 2},
		{"a node was created again", []mesh{known(9, "new"), known(1, "newer")}, 90, 72 + 2},
		{"a node was created again, some runs ago", []mesh{known(9, "new"), known(1, "newer"), known(1, "newer")}, 90, 72 + 4},
		{"a node was created again twice", []mesh{known(9, "new"), known(9, "newer"), known(1, "new")}, 90, 72 + 2},
		{"the same nodes", []mesh{known(9, "new"), known(1, "new")}, 90, 90},
		{"nodes whose UIDs were not known", []mesh{full, known(1, "new")}, 90, 90},
		{"nodes whose UIDs are not known any more", []mesh{known(9, "new"), known(9, "newer"), {nodes: all, degree: 1}}, 90, 90},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var h *History
			for run, m := range tt.runs {
				h = Merge(h, m.entry(run))
				parts, err := Encode(h)
				if err != nil {
					t.Fatal(err)
				}
				again, newer := Decode("p", parts, start)
				if newer || !reflect.DeepEqual(again, h) {
					t.Errorf("run %d: the decoded history differs", run)
				}
				h = again
			}
			if c := h.Cumulative("mesh"); c.Measured != tt.want {
				t.Errorf("%d pairs are measured, want %d", c.Measured, tt.want)
			}
		})
	}
}

// TestMergeTwice: a retried report adds nothing, and Merge leaves its arguments alone.
func TestMergeTwice(t *testing.T) {
	m := mesh{nodes: nodes(5), degree: 2}
	one := Merge(nil, m.entry(0))
	before, err := Encode(one)
	if err != nil {
		t.Fatal(err)
	}
	if again := Merge(one, m.entry(0)); len(again.Runs) != 1 || !reflect.DeepEqual(again.Digests, one.Digests) {
		t.Errorf("%d runs after the same run twice, want 1 and the same digests", len(again.Runs))
	}
	Merge(one, m.entry(1))
	after, err := Encode(one)
	if err != nil || !reflect.DeepEqual(before, after) {
		t.Errorf("Merge changed its argument (%v)", err)
	}
}

// TestFindings: a finding has its first and last time, and how many runs have it.
func TestFindings(t *testing.T) {
	of := func(run int, cause checkup.FindingCause, subject string) *Entry {
		at := start.Add(time.Duration(run) * time.Hour)
		r := &checkup.Report{Plan: "p", RunUID: fmt.Sprint(run), Started: at, Finished: at, Verdict: checkup.RunFail,
			Checks: []checkup.CheckReport{{Name: "mesh", Verdict: checkup.RunFail,
				Findings: []checkup.Finding{{Cause: cause, Subject: subject, Message: fmt.Sprintf("in run %d", run)}}}}}
		return EntryOf(r, nil)
	}
	var h *History
	for _, e := range []*Entry{of(1, checkup.CauseNode, "a"), of(2, checkup.CauseNode, "b"), of(5, checkup.CauseNode, "a")} {
		h = Merge(h, e)
	}
	var got []string
	for _, f := range h.Findings {
		got = append(got, fmt.Sprintf("%s %d times %s to %s %s", f.Finding, f.Runs, f.First.Format("15h"), f.Last.Format("15h"), f.Message))
	}
	want := []string{"node a 2 times 01h to 05h in run 5", "node b 1 times 02h to 02h in run 2"}
	if !slices.Equal(got, want) {
		t.Errorf("findings %q, want %q", got, want)
	}
}

// TestDigests: quantiles of a group are those of its delays over all runs, within Accuracy.
func TestDigests(t *testing.T) {
	m := mesh{nodes: nodes(10), degree: 9, zone: map[string]string{"node-0001": "a", "node-0002": "b"},
		slow: func(_ int, _, to string) float64 {
			if to == "node-0007" {
				return 10
			}
			return 1
		}}
	var h *History
	for run := range 30 {
		h = Merge(h, m.entry(run))
	}
	find := func(k Key) *Digest {
		k.Check, k.Probe = "mesh", "tcp IPv4 0B"
		i := slices.IndexFunc(h.Digests, func(d Digest) bool { return d.Key == k })
		if i < 0 {
			t.Fatalf("no digest %+v", k)
		}
		return &h.Digests[i]
	}
	for _, tt := range []struct {
		name  string
		key   Key
		sent  float64
		p50   float64
		about float64
	}{
		{"all", Key{Group: All}, 8100, 200, 0.12},
		{"into a slow node", Key{Group: In, To: "node-0007"}, 810, 2000, 0.08},
		{"out of a slow node", Key{Group: Out, From: "node-0007"}, 810, 200, 0.08},
		{"one zone to another", Key{Group: Zones, From: "a", To: "b"}, 90, 200, 0.15},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := find(tt.key)
			if d.Sent != tt.sent || d.Lost != 0 {
				t.Errorf("%g sent, %g lost; want %g and 0", d.Sent, d.Lost, tt.sent)
			}
			if got := float64(d.Quantile(0.5)); math.Abs(got/tt.p50-1) > tt.about {
				t.Errorf("median %g us, want %g within %g", got, tt.p50, tt.about)
			}
		})
	}
}

// TestPair: the results of one pair, oldest first, with delays while they are kept.
func TestPair(t *testing.T) {
	m := mesh{nodes: nodes(4), degree: 3, verdict: func(run int, from, to string) checkup.Verdict {
		if run == 1 && from == "node-0001" && to == "node-0002" {
			return checkup.Fail
		}
		return checkup.Pass
	}}
	h := Merge(Merge(nil, m.entry(0)), m.entry(1))
	all := h.Pair("node-0001", "node-0002")
	if len(all) != 2 {
		t.Fatalf("%d runs, want 2", len(all))
	}
	ok, bad := all[0].Results[0], all[1].Results[0]
	if ok.Verdict != checkup.Pass || ok.P50 < 100 || ok.P50 > 400 || ok.Max < ok.P50 || ok.Loss != 0 {
		t.Errorf("first %+v, want a pass with delays", ok)
	}
	if bad.Verdict != checkup.Fail || bad.P50 != 0 || bad.Loss != 100 {
		t.Errorf("second %+v, want a failure without answers", bad)
	}
	if got := h.Pair("node-0001", "elsewhere"); got != nil {
		t.Errorf("%+v for an unknown pair, want none", got)
	}
	pairs := 0
	for got := range h.Measured(h.Runs[1].UID) {
		pairs++
		want := h.Pair(got.Source, got.Target)[1]
		if got.Check != want.Check || !reflect.DeepEqual(got.Results, want.Results) || got.SourceNode != got.Source || got.TargetNode != got.Target {
			t.Errorf("the run found out %+v, want %+v", got, want)
		}
	}
	if pairs != 12 {
		t.Errorf("the run measured %d pairs, want those of 4 nodes", pairs)
	}
	for got := range h.Measured("no run") {
		t.Errorf("%+v of a run that is not listed", got)
	}
}

// TestUnjudgedIsNotRemembered: a pair that the report does not judge must not be remembered as passed.
func TestUnjudgedIsNotRemembered(t *testing.T) {
	m := mesh{nodes: nodes(4), degree: 3}
	for name, spoil := range map[string]func(*checkup.CheckReport){
		"other units than pairs": func(c *checkup.CheckReport) { c.Counts.Expected-- },
		"a unit of no pair":      func(c *checkup.CheckReport) { c.Units = []checkup.Unit{{Source: "x", Verdict: checkup.Fail}} },
	} {
		t.Run(name, func(t *testing.T) {
			r, sheets := m.sheet(0)
			spoil(&r.Checks[0])
			if e := EntryOf(r, sheets); e.Run.Checks[0].Pairs != nil || e.Digests != nil {
				t.Error("the pairs are remembered")
			}
		})
	}
}

func TestGaps(t *testing.T) {
	hours := func(at ...float64) []Run {
		var runs []Run
		for _, h := range at {
			runs = append(runs, Run{Started: start.Add(time.Duration(h * float64(time.Hour)))})
		}
		return runs
	}
	due := func(cron string, since int) *Due {
		return &Due{Cron: cron, TimeZone: "Etc/UTC", Since: start.Add(time.Duration(since) * time.Hour)}
	}
	for _, tt := range []struct {
		name string
		runs []Run
		due  *Due
		want string
	}{
		{"too few runs", hours(0, 1, 9), nil, "[] every 0s"},
		{"no gap", hours(0, 1, 2, 3.5, 4, 5), nil, "[] every 1h0m0s"},
		{"one missed", hours(0, 1, 2, 4, 5), nil, "[02h-04h missed 1] every 1h0m0s"},
		{"in any order", hours(5, 1, 0, 4, 2), nil, "[02h-04h missed 1] every 1h0m0s"},
		{"six missed", hours(0, 1, 2, 3, 4, 11, 12), nil, "[04h-11h missed 6] every 1h0m0s"},
		{"all at once", hours(0, 0, 0, 0), nil, "[] every 0s"},
		{"twice a day", hours(9, 17, 33, 41, 65), due("0 9,17 * * *", 0), "[17h-17h missed 1] every 16h0m0s"},
		{"not at night", hours(16, 17, 33, 34, 36), due("0 9-17 * * *", 0), "[10h-12h missed 1] every 2h0m0s"},
		{"few runs", hours(0, 5), due("0 * * * *", 0), "[00h-05h missed 4] every 0s"},
		{"a schedule that nobody can parse", hours(0, 5), due("CRON_TZ=UTC", 0), "[] every 0s"},
		{"by a schedule since", hours(0, 24, 48, 72, 73, 75), due("0 * * * *", 72), "[01h-03h missed 1] every 24h0m0s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			gaps, every := Gaps(tt.runs, tt.due)
			var words []string
			for _, g := range gaps {
				words = append(words, fmt.Sprintf("%s-%s missed %d", g.After.Format("15h"), g.Before.Format("15h"), g.Missed))
			}
			if got := fmt.Sprintf("%v every %v", words, every); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

// TestOpenGap: the newest run is too long ago.
func TestOpenGap(t *testing.T) {
	var h *History
	for run := range 5 {
		h = Merge(h, mesh{nodes: nodes(3), degree: 1}.entry(run))
	}
	if o := h.Overview(Filter{Now: start.Add(5 * time.Hour)}); len(o.Gaps) != 0 {
		t.Errorf("gaps %+v when the next run is due, want none", o.Gaps)
	}
	if o := h.Overview(Filter{Now: start.Add(9 * time.Hour)}); len(o.Gaps) != 1 || o.Gaps[0].Missed != 4 {
		t.Errorf("gaps %+v, want one with 4 missed runs", o.Gaps)
	}
}

// TestDecay: runs beyond the limits become counts of their days, replaced pairs and old delays go, and coverage stays.
func TestDecay(t *testing.T) {
	m := mesh{nodes: nodes(6), degree: 1, every: 10 * time.Minute}
	total := maxRuns + 2*block + 3
	rounds := make([]*Entry, 5)
	for round := range rounds {
		rounds[round] = m.entry(round)
	}
	h := &History{Plan: "p"}
	first := long(maxRuns, 0) // runs without pairs come before
	for run := range first {
		at := start.Add(time.Duration(run) * m.every)
		h.Runs = append(h.Runs, Run{N: run + 1, UID: fmt.Sprint("uid-", run), Started: at, Finished: at.Add(time.Minute),
			Verdict: checkup.RunPass, Checks: []Check{{Name: "mesh", Verdict: checkup.RunPass}}})
	}
	for run := first; run < total; run++ {
		e := *rounds[run%len(rounds)]
		e.Run.UID, e.Run.Started = fmt.Sprint("uid-", run), start.Add(time.Duration(run)*m.every)
		e.Run.Finished = e.Run.Started.Add(time.Minute)
		h = Merge(h, &e)
	}
	counted, withPairs, withDetail := len(h.Runs), 0, 0
	for _, d := range h.Days {
		counted += d.Pass
	}
	for _, r := range h.Runs {
		if p := r.Checks[0].Pairs; p != nil {
			withPairs++
			if p.detail != nil {
				withDetail++
			}
		}
	}
	if counted != total || len(h.Runs) > maxRuns+block {
		t.Errorf("%d runs are counted, %d are listed; want %d, at most %d", counted, len(h.Runs), total, maxRuns+block)
	}
	if withDetail < keepPairs || withDetail > keepPairs+keepDays || withPairs > keepPairs+keepDays+block {
		t.Errorf("%d runs have pairs, %d delays of pairs; want at most %d and %d", withPairs, withDetail,
			keepPairs+keepDays+block, keepPairs+keepDays)
	}
	if c := h.Cumulative("mesh"); c.Measured != 30 {
		t.Errorf("%d of 30 pairs are covered", c.Measured)
	}
}

// TestDaily: delays outlive the runs that measured them: a day has the medians of its runs, whether these are listed,
// counted, or some of both. A history that an older version wrote has days without delays.
func TestDaily(t *testing.T) {
	const perDay = 24 * 60 / 5
	run := func(n int) Run {
		at := start.Add(time.Duration(n) * 5 * time.Minute)
		day := int64(n / perDay)
		r := Run{N: n + 1, UID: fmt.Sprint("uid-", n), Started: at, Finished: at.Add(time.Minute), Verdict: checkup.RunPass,
			Checks: []Check{{Name: "mesh", Delays: []Delay{{Probe: "udp", P50: 100 + 10*day + int64(n%3), P99: 1000 + day}, {Probe: "tcp"}}}}}
		if n%perDay < 12 {
			r.Checks[0].Delays[0].P50 = 90_000 // a bad hour is no bad day
		}
		return r
	}
	h := &History{Plan: "p", Days: []Day{{Date: "2025-12-30", Pass: 7}}}
	const total = 40*perDay + 7
	for n := range total {
		h = Merge(h, &Entry{Plan: "p", Run: run(n)})
		if n%1000 == 0 { // as it is read again
			parts, err := Encode(h)
			if err != nil {
				t.Fatal(err)
			}
			h, _ = Decode("p", parts, start)
		}
	}
	if counted := len(h.Days); counted < 20 || counted > 30 || len(h.SetAside) > 0 {
		t.Fatalf("%d days are counted, want some of 40; set aside %q", counted, h.SetAside)
	}
	var want []int64
	for day := range int64(40) {
		want = append(want, 101+10*day)
	}
	want = append(want, 90_000)
	o := h.Overview(Filter{})
	if len(o.Trends) != 2 || o.Trends[1].Daily != nil {
		t.Fatalf("trends %+v, want two, and no days of the one without an answer", o.Trends)
	}
	d := o.Trends[0].Daily
	if d.First != "2026-01-01" || !slices.Equal(d.P50, want) || d.P99[3] != 1003 || len(d.P99) != len(want) {
		t.Errorf("by day %+v, want %v", d, want)
	}
	if o := h.Overview(Filter{Since: start.AddDate(0, 0, 5)}); o.Trends[0].Daily.First != "2026-01-06" {
		t.Errorf("since the sixth day: %+v", o.Trends[0].Daily)
	}
	if o := h.Overview(Filter{Check: "other"}); len(o.Trends) != 0 {
		t.Errorf("trends of another check: %+v", o.Trends)
	}
	if o := (&History{Plan: "p", Runs: h.Runs[len(h.Runs)-7:]}).Overview(Filter{}); o.Trends[0].Daily != nil {
		t.Errorf("one day has a trend by day: %+v", o.Trends[0].Daily)
	}
}

// TestTrendsAreBounded: however many checks and probes a hostile history names, its newest ones are shown.
func TestTrendsAreBounded(t *testing.T) {
	h := &History{Plan: "p"}
	for n := range 4 * maxChecks {
		c := Check{Name: fmt.Sprintf("check-%d", n)}
		for k := range 3 {
			c.Delays = append(c.Delays, Delay{Probe: fmt.Sprintf("probe-%d", k), P50: 1})
		}
		h.Runs = append(h.Runs, Run{N: n + 1, Checks: []Check{c}})
	}
	if checks := h.checks(); len(checks) != maxChecks || checks[maxChecks-1] != h.Runs[len(h.Runs)-1].Checks[0].Name {
		t.Errorf("%d checks are found, want the newest %d", len(checks), maxChecks)
	}
	if o := h.Overview(Filter{}); len(o.Trends) != maxTrends {
		t.Errorf("%d trends, want %d", len(o.Trends), maxTrends)
	}
}

// TestDayDelaysAreBounded: in number, and in the years that hostile dates span.
func TestDayDelaysAreBounded(t *testing.T) {
	r := Run{N: 1, UID: "a", Started: start, Checks: []Check{{Name: "mesh"}}}
	for i := range 2 * maxDayDelays {
		r.Checks[0].Delays = append(r.Checks[0].Delays, Delay{Probe: fmt.Sprint(i), P50: 1, P99: 1})
	}
	h := &History{Plan: "p", Runs: []Run{r}}
	h.intoDays(1)
	if n := len(h.Days[0].Delays); n != maxDayDelays {
		t.Errorf("a day keeps %d delays, want %d", n, maxDayDelays)
	}
	r.Checks[0].Name, r.Started = "other", start.AddDate(0, 0, 1)
	h.Runs = []Run{r}
	if n := len(dailyOf("", h.Days, h.Runs)); n != maxDayDelays {
		t.Errorf("%d probes have a trend by day, want %d", n, maxDayDelays)
	}
	udp := []DayDelay{{Check: "mesh", Probe: "udp", P50: 5, P99: 5, Runs: 1}}
	h = &History{Days: []Day{{Date: "0001-01-01", Delays: udp}, {Date: "nonsense", Delays: udp}, {Date: "9998-12-30", Delays: udp}, {Date: "9998-12-31", Delays: udp}}}
	if o := h.Overview(Filter{}); len(o.Trends) != 1 || o.Trends[0].Daily.First != "9998-12-30" || len(o.Trends[0].Daily.P50) != 2 {
		t.Errorf("trends %+v", o.Trends)
	}
}

// TestEncode: what is decoded is what was encoded, and a part that did not change has the same bytes.
func TestEncode(t *testing.T) {
	all := nodes(12)
	var h *History
	for run := range block + 20 {
		m := mesh{nodes: all[run/7%3:], degree: 2, zone: map[string]string{"node-0003": fmt.Sprint(run / 50)}}
		h = Merge(h, m.entry(run))
	}
	h.Note(start, "something was set aside")
	parts, err := Encode(h)
	if err != nil {
		t.Fatal(err)
	}
	got, newer := Decode("p", parts, start)
	if newer || !reflect.DeepEqual(got, h) {
		t.Errorf("decoded history differs (newer %t)", newer)
	}
	next, err := Encode(Merge(h, mesh{nodes: all, degree: 2}.entry(block+20)))
	if err != nil {
		t.Fatal(err)
	}
	same := 0
	for _, p := range parts {
		if slices.ContainsFunc(next, func(n Part) bool { return n.Name == p.Name && slices.Equal(n.Data, p.Data) }) {
			same++
		}
	}
	// All but state, the newest runs, the oldest and newest delays of pairs and of groups, and digests.
	if changed := len(parts) - same; changed > 7 {
		t.Errorf("%d of %d parts changed with one more run, want at most 7", changed, len(parts))
	}
}

// TestDecodeSetsAside: what cannot be understood is left out with a note, and the rest is used.
func TestDecodeSetsAside(t *testing.T) {
	m := mesh{nodes: nodes(5), degree: 2}
	h := Merge(Merge(nil, m.entry(0)), m.entry(1))
	replace := func(name string, with func(string) []byte) func([]Part) []Part {
		return func(parts []Part) []Part {
			for i := range parts {
				if parts[i].Name == name {
					parts[i].Data = with(string(parts[i].Data))
				}
			}
			return parts
		}
	}
	other := func(change func(*document)) func(string) []byte {
		return func(data string) []byte {
			d, err := decodePart([]byte(data), new(maxMemory))
			if err != nil {
				t.Fatal(err)
			}
			change(d)
			return compressed(t, d)
		}
	}
	for _, tt := range []struct {
		name   string
		plan   string
		spoil  func([]Part) []Part
		runs   int
		newer  bool
		states string // in the note
	}{
		{"nothing", "p", func(p []Part) []Part { return p }, 2, false, ""},
		{"no parts", "p", func([]Part) []Part { return nil }, 0, false, ""},
		{"another plan", "q", func(p []Part) []Part { return p }, 0, false, `is of plan "p"`},
		{"not gzip", "p", replace("runs-0", func(string) []byte { return []byte("hello") }), 0, false, "part runs-0"},
		{"cut off", "p", replace("runs-0", func(s string) []byte { return []byte(s[:len(s)/2]) }), 0, false, "unexpected EOF"},
		{"cut off delays", "p", replace("details-0", func(s string) []byte { return []byte(s[:len(s)/2]) }), 2, false, "part details-0"},
		{"another version", "p", replace("runs-0", other(func(d *document) { d.Version = 2 })), 0, true, "another checkplan wrote it"},
		{"swapped parts", "p", replace("runs-0", other(func(d *document) { d.Name = "runs-1" })), 0, false, `is part "runs-1"`},
		{"rows of other members", "p", replace("runs-0", other(func(d *document) { d.Runs.Members[0].All = d.Runs.Members[0].All[:3] })), 0, false, "run 1"},
		{"verdicts that end early", "p", replace("runs-0", other(func(d *document) { d.Runs.Pairs[1][0].Verdicts = nil })), 0, false, "0 verdicts, want 20"},
		{"an unknown verdict", "p", replace("runs-0", other(func(d *document) { d.Runs.Pairs[1][0].Verdicts[1] = 99 })), 0, false, "bad verdicts"},
		{"members that are not listed", "p", replace("runs-0", other(func(d *document) { d.Runs.Pairs[1][0].Targets = 9 })), 0, false, "unknown list"},
		{"a run without a verdict", "p", replace("runs-0", other(func(d *document) { d.Runs.Runs[0].Verdict = "green" })), 0, false, "run 1 is not valid"},
		{"a digest of nonsense", "p", replace("digests-0", other(func(d *document) { d.Digests[0].Sketch = []byte{0xff, 1, 2} })), 2, false, "digest"},
		{"more lost than sent", "p", replace("digests-0", other(func(d *document) { d.Digests[0].Lost = 1e9 })), 2, false, "impossible losses"},
		{"millions of empty runs", "p", replace("runs-0", func(string) []byte {
			return gzipped([]byte(`{"version":1,"plan":"p","name":"runs-0","runs":{"runs":[{}` + strings.Repeat(",{}", 1<<20) + `]}}`))
		}), 0, false, "takes too much memory"},
		{"delays of other pairs", "p", replace("details-0", other(func(d *document) { d.Details[0].Detail = []byte{1} })), 2, false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			parts, err := Encode(h)
			if err != nil {
				t.Fatal(err)
			}
			got, newer := Decode(tt.plan, tt.spoil(parts), start)
			if len(got.Runs) != tt.runs || newer != tt.newer {
				t.Errorf("%d runs, newer %t; want %d, %t (%q)", len(got.Runs), newer, tt.runs, tt.newer, got.SetAside)
			}
			notes := strings.Join(got.SetAside, "\n")
			if tt.states == "" && notes != "" || !strings.Contains(notes, tt.states) {
				t.Errorf("notes %q, want %q", notes, tt.states)
			}
			if next := Merge(got, m.entry(2)); len(next.Runs) != tt.runs+1 || next.Cumulative("mesh") == nil {
				t.Error("the next run cannot be added")
			}
		})
	}
}

// TestMembersAreBounded: lists of members that are only changes of other lists take from the memory of the whole
// history, not from one of their part.
func TestMembersAreBounded(t *testing.T) {
	part := runsPart{Members: []memberList{{All: make([]Member, 100)}}}
	for range 10 {
		part.Members = append(part.Members, memberList{Change: true})
	}
	left := 15 * 100 * int(reflect.TypeFor[Member]().Size())
	for i, want := range []string{"<nil>", "has too many members"} {
		if _, err := part.decode(&left); fmt.Sprint(err) != want {
			t.Errorf("part %d: %v, want %s", i, err, want)
		}
	}
}

// TestUnmarshal: what takes much more memory than its JSON has bytes is refused before it is read, however it is
// spelled. Nothing else is, and it is read as json.Unmarshal does.
func TestUnmarshal(t *testing.T) {
	const many, most = 100_000, 16 << 20
	list := func(element string) string { return "[" + strings.Repeat(element+",", many) + element + "]" }
	for _, tt := range []struct {
		name, text string
		refused    bool
	}{
		{"checks", `{"checks":` + list("{}") + `}`, true},
		{"checks in capitals", `{"CHECKS":` + list("{}") + `}`, true},
		{"checks with an escape", `{"\u0063hecks":` + list("{}") + `}`, true},
		{"checks of null", `{"checks":` + list("null") + `}`, true},
		{"checks of numbers", `{"checks":` + list("0") + `}`, true},
		{"units", `{"checks":[{"units":` + list(" {\n} ") + `}]}`, true},
		{"units many times", `{"checks":[{` + strings.Repeat(`"units":[{}],`, many) + `"units":[]}]}`, true},
		{"maps", `{"checks":[{"units":[{}` + strings.Repeat(`,{"labels":{"":""}}`, many/4) + `]}]}`, true},
		{"pointers", `{"checks":[{"units":[{"delays":{"x":{}` + strings.Repeat(`,"x":{}`, 2*many) + `}}]}]}`, true},
		{"cells of lists", `{"checks":[{"blocks":[{"table":{"rows":[[` + list("[]") + `]]}}]}]}`, true},
		{"an unknown field", `{"what":` + list(`{"checks":[]}`) + `}`, false},
		{"text", `{"summary":"` + strings.Repeat(`\"[{`, many) + `"}`, false},
		{"notes", `{"notes":` + list(`"a"`) + `}`, false},
		{"no JSON", `{"notes":[}`, false},
		{"another type", `{"notes":{"a":[1]},"summary":3,"checks":"x"}`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got, want checkup.Report
			left := most
			err := Unmarshal([]byte(tt.text), &got, &left)
			refused := err != nil && err.Error() == "takes too much memory"
			if refused != tt.refused || refused && left != 0 {
				t.Fatalf("%v, %d bytes left; want that it is refused: %t", err, left, tt.refused)
			}
			if refused {
				return
			}
			if plain := json.Unmarshal([]byte(tt.text), &want); fmt.Sprint(err) != fmt.Sprint(plain) || !reflect.DeepEqual(got, want) {
				t.Errorf("%v, want %v and the same value", err, plain)
			}
		})
	}
}

// FuzzDecode: no bytes make Decode or what follows it panic.
func FuzzDecode(f *testing.F) {
	m := mesh{nodes: nodes(5), degree: 2}
	known := Merge(Merge(nil, m.entry(0)), m.entry(1))
	for _, due := range []*Due{nil, {Cron: "* * * * *", TimeZone: "UTC"}, {Cron: "CRON_TZ=UTC", TimeZone: "UTC"}} {
		h := *known
		h.Due = due
		parts, err := Encode(&h)
		if err != nil {
			f.Fatal(err)
		}
		for _, p := range parts {
			d, err := decodePart(p.Data, new(maxMemory))
			if err != nil {
				f.Fatal(err)
			}
			f.Add(p.Name, raw(f, d))
		}
	}
	e := m.entry(2)
	f.Fuzz(func(t *testing.T, name string, content []byte) {
		h, _ := Decode("p", []Part{{name, gzipped(content)}}, start)
		if h != nil {
			h.Overview(Filter{})
			Gaps(known.Runs, h.Due) // the part with the schedule has no runs
		}
		h = Merge(h, e)
		h.Cumulative("mesh")
		h.Pair("node-0001", "node-0002")
		if _, err := Encode(h); err != nil {
			t.Error(err)
		}
	})
}

// TestShrink: a history that is too large loses the values of single runs first, then the digests of nodes, then the
// oldest runs, which become counts of their days. No run is lost altogether.
func TestShrink(t *testing.T) {
	var h *History
	for run := range 12 {
		h = Merge(h, mesh{nodes: nodes(8), degree: 2}.entry(run))
	}
	// kept encodes a history and says what of it is there when it is read again.
	kept := func(most int) (what string, size int) {
		parts, err := encodeWithin(h, most)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range parts {
			size += len(p.Data)
		}
		got, _ := Decode("p", parts, start)
		values, ofNodes, counted := 0, 0, 0
		for _, r := range got.Runs {
			if p := r.Checks[0].Pairs; p != nil && p.detail != nil {
				values++
			}
		}
		for _, d := range got.Digests {
			if d.Group == In || d.Group == Out {
				ofNodes++
			}
		}
		for _, d := range got.Days {
			counted += d.Pass + d.Fail + d.Inconclusive
		}
		return fmt.Sprintf("%d runs, %d with values, %d counted, digests of nodes: %v", len(got.Runs), values, counted, ofNodes > 0), size
	}
	limit := MaxBytes
	for _, want := range []string{
		"12 runs, 12 with values, 0 counted, digests of nodes: true",
		"12 runs, 0 with values, 0 counted, digests of nodes: true",
		"12 runs, 0 with values, 0 counted, digests of nodes: false",
		"6 runs, 0 with values, 6 counted, digests of nodes: false",
	} {
		got, size := kept(limit)
		if got != want || size > limit {
			t.Errorf("within %d bytes: %s in %d bytes, want %s", limit, got, size, want)
		}
		limit = size - 1
	}
}
