// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/judge/judgetest"
)

// demand are the schema's defaults of expect.regression.
func demand() *checkup.Regression {
	return &checkup.Regression{
		Runs: 20, MinFactor: 1.5, MinDelay: checkup.Duration(100 * time.Microsecond), MinLoss: 1,
	}
}

// daily simulates the runs of a plan: each has its own noise, and so has each node in each run.
type daily struct {
	nodes, degree int
	probes        []checkup.TransportProbe
	every         time.Duration
	// change adds the fault of a run; nil adds none.
	change func(run int, n *judgetest.Mesh)
	expect *checkup.Regression
	h      *history.History
}

var day0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// run returns the report of a run, and adds it to the history.
func (d *daily) run(run int) *checkup.CheckReport {
	n := judgetest.NewMesh(7, d.nodes, d.degree, 3, d.probes)
	random := rand.New(rand.NewPCG(uint64(run), 5))
	n.Reseed(uint64(run))
	n.Worksheet.IPFamilies = checkup.IPFamilies[:1]
	n.Worksheet.Expect.Loss.Max = new(checkup.Percent(50))
	n.Worksheet.Expect.Regression = d.expect
	noise := make([]time.Duration, d.nodes)
	for i := range noise {
		noise[i] = time.Duration(40*math.Exp(random.NormFloat64()/4)) * time.Microsecond
	}
	n.Delay = func(p judgetest.Packet) time.Duration { return noise[p.From] + noise[p.To] }
	if d.change != nil {
		d.change(run, n)
	}
	at := day0.Add(time.Duration(run) * d.every)
	gate := checkup.Gate{MaxUnmeasured: 5}
	record := n.Measure()
	c := Judge(n.Worksheet, n.Roster, record, gate)
	if d.h == nil {
		d.h = &history.History{Plan: "p"}
	}
	Compare(d.h, at, history.Sheet{Worksheet: n.Worksheet, Roster: n.Roster, Record: record}, gate, &c)
	plan := &checkup.Plan{Name: "p", Gate: gate, Checks: map[string]checkup.Check{"mesh": {Spec: &Spec{}}}}
	r := judge.Join(plan, judge.Run{Name: fmt.Sprint("r", run), UID: fmt.Sprint("u", run), Started: at, Finished: at},
		[]checkup.CheckReport{c}, nil)
	sheets := map[string]history.Sheet{"mesh": {Worksheet: n.Worksheet, Record: record}}
	d.h = history.Merge(d.h, history.EntryOf(&r, sheets))
	return &r.Checks[0]
}

// slower adds a delay to some packets, behind the noise.
func slower(n *judgetest.Mesh, by time.Duration, some func(judgetest.Packet) bool) {
	before := n.Delay
	n.Delay = func(p judgetest.Packet) time.Duration {
		if some(p) {
			return before(p) + by
		}
		return before(p)
	}
}

func twoProbes() []checkup.TransportProbe { return judgetest.DefaultProbes()[:2] }

func kindsOf(findings []checkup.Finding) string {
	var all []string
	for _, f := range findings {
		all = append(all, judgetest.Kind(f))
	}
	return strings.Join(all, ", ")
}

// TestCompare: after 20 runs without a change, the first run with one has its place as the only finding.
func TestCompare(t *testing.T) {
	const b = 4
	into := func(p judgetest.Packet) bool { return p.To == b }
	tests := []struct {
		name   string
		change func(*judgetest.Mesh)
		want   string // findings
		says   string // the first message has it
	}{
		{"no change", nil, "", ""},
		{"30ms into a node", func(n *judgetest.Mesh) { slower(n, 30*time.Millisecond, into) }, "node worker-5",
			" times slower than in the last 20 runs, median round trip 30."},
		{"half a millisecond into a node", func(n *judgetest.Mesh) { slower(n, 500*time.Microsecond, into) }, "node worker-5",
			"times slower than in the last 20 runs, median round trip "},
		{"twice as slow everywhere", func(n *judgetest.Mesh) {
			slower(n, 400*time.Microsecond, func(judgetest.Packet) bool { return true })
		}, "network", "the whole network: "},
		{"a zone", func(n *judgetest.Mesh) {
			slower(n, 5*time.Millisecond, func(p judgetest.Packet) bool { return p.From%3 == 0 && p.To%3 == 1 && !p.Answer })
		}, "zones zone-a -> zone-b", "from zone zone-a to zone-b: "},
		{"a pair", func(n *judgetest.Mesh) {
			to := n.Worksheet.Assignments[b][0]
			slower(n, 30*time.Millisecond, func(p judgetest.Packet) bool { return p.From == b && p.To == to && !p.Answer })
		}, "pair worker-5 -> ", "between worker-5 and "},
		{"udp of a node", func(n *judgetest.Mesh) {
			slower(n, 5*time.Millisecond, func(p judgetest.Packet) bool { return p.To == b && p.Transport == checkup.UDP })
		}, "node worker-5 (udp only)", "udp only: "},
		{"loss below the limit", func(n *judgetest.Mesh) {
			n.Drop = func(p judgetest.Packet) float64 { return 0.15 * judgetest.When(p.To == b) }
		}, "nodeIngress worker-5", "loses more than in the last 20 runs, 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := &daily{nodes: 30, degree: 6, probes: twoProbes(), every: time.Hour, expect: demand()}
			for run := range 20 {
				r := d.run(run)
				if len(r.Findings) > 0 || r.Compared == nil || r.Compared.Runs != run {
					t.Fatalf("run %d: findings %q, compared %+v; want none with %d runs", run, kindsOf(r.Findings), r.Compared, run)
				}
			}
			d.change = func(_ int, n *judgetest.Mesh) {
				if tt.change != nil {
					tt.change(n)
				}
			}
			for run := 20; run < 23; run++ { // it is found again while it lasts
				r := d.run(run)
				got := kindsOf(r.Findings)
				if !strings.HasPrefix(got, tt.want) || strings.Contains(got, ",") || tt.want == "" && got != "" {
					t.Errorf("run %d: findings %q, want %q%s", run, got, tt.want, judgetest.Show(r.Findings))
				}
				if r.Verdict != checkup.RunPass || r.Counts.Fail > 0 {
					t.Errorf("run %d: verdict %s with %d failed pairs, want pass", run, r.Verdict, r.Counts.Fail)
				}
				if len(r.Findings) > 0 && (!strings.Contains(r.Findings[0].Message, tt.says) || r.Findings[0].Change == nil) {
					t.Errorf("run %d: message %q, want %q; change %+v", run, r.Findings[0].Message, tt.says, r.Findings[0].Change)
				}
				if run == 20 {
					t.Logf("%s", judgetest.Show(r.Findings))
				}
			}
		})
	}
}

// TestCompareHidesNoFailure: findings about failures come first, and failed pairs are no regression.
func TestCompareHidesNoFailure(t *testing.T) {
	d := &daily{nodes: 12, degree: 0, probes: twoProbes(), every: time.Hour, expect: demand()}
	for run := range 20 {
		d.run(run)
	}
	d.change = func(_ int, n *judgetest.Mesh) {
		n.Drop = func(p judgetest.Packet) float64 { return judgetest.When(p.To == 1) }
		slower(n, 30*time.Millisecond, func(p judgetest.Packet) bool { return p.To == 5 })
	}
	r := d.run(20)
	if got := kindsOf(r.Findings); got != "nodeIngress worker-2, node worker-6" {
		t.Errorf("findings %q, want the failure, then the regression%s", got, judgetest.Show(r.Findings))
	}
	if len(r.Findings) == 2 && (r.Findings[0].Change != nil || r.Findings[1].Change == nil) {
		t.Errorf("changes %+v and %+v, want one of the second finding only", r.Findings[0].Change, r.Findings[1].Change)
	}
	if r.Verdict != checkup.RunFail {
		t.Errorf("verdict %s, want fail", r.Verdict)
	}
}

// TestCompareVerdict: a regression fails the check if the plan says so; without the demand, or without a history,
// nothing is compared.
func TestCompareVerdict(t *testing.T) {
	slow := func(run int, n *judgetest.Mesh) {
		if run >= 3 {
			slower(n, 30*time.Millisecond, func(p judgetest.Packet) bool { return p.To == 1 })
		}
	}
	expect := demand()
	expect.Runs, expect.Fail = 3, true
	d := &daily{nodes: 3, probes: twoProbes(), every: time.Hour, expect: expect, change: slow}
	for run := range 3 {
		if r := d.run(run); r.Verdict != checkup.RunPass || r.Compared.Needed != 3 {
			t.Fatalf("run %d: verdict %s, compared %+v; want pass, 3 needed", run, r.Verdict, r.Compared)
		}
	}
	if r := d.run(3); r.Verdict != checkup.RunFail || kindsOf(r.Findings) != "node worker-2" || r.Counts.Fail != 0 {
		t.Errorf("verdict %s, findings %q, %d failed pairs; want fail by node worker-2 without a failed pair",
			r.Verdict, kindsOf(r.Findings), r.Counts.Fail)
	}
	d.expect = nil
	if r := d.run(4); r.Compared != nil || len(r.Findings) > 0 {
		t.Errorf("compared %+v although the plan does not ask for it", r.Compared)
	}
}

// TestCompareDrift: a node that becomes 1% slower each day is found, with one run a day, as that node's drift.
func TestCompareDrift(t *testing.T) {
	const b = 2
	d := &daily{nodes: 9, probes: twoProbes()[:1], every: 24 * time.Hour, expect: demand()}
	d.change = func(run int, n *judgetest.Mesh) {
		if run > 25 {
			slower(n, time.Duration(140*(math.Pow(1.01, float64(run-25))-1))*time.Microsecond,
				func(p judgetest.Packet) bool { return p.To == b || p.From == b })
		}
	}
	for run := range 25 + 110 {
		r := d.run(run)
		i := slices.IndexFunc(r.Findings, func(f checkup.Finding) bool { return f.Change.Days > 0 })
		if i < 0 {
			continue
		}
		f := r.Findings[i]
		t.Logf("day %d of the drift: %s", run-25, f.Message)
		const says = " days ago, growing slowly, median"
		if got := judgetest.Kind(f); got != "node worker-3" || !strings.Contains(f.Message, says) {
			t.Errorf("drift %q: %s; want node worker-3", got, f.Message)
		}
		return
	}
	t.Error("the drift was not found in 110 days")
}

// TestCompareLarge: in 200 nodes, 30ms at one node are found as that node's in the first run, and each run before has
// no finding.
func TestCompareLarge(t *testing.T) {
	d := &daily{nodes: 200, degree: 10, probes: twoProbes()[:1], every: time.Hour, expect: demand()}
	d.change = func(run int, n *judgetest.Mesh) {
		if run >= 20 {
			slower(n, 30*time.Millisecond, func(p judgetest.Packet) bool { return p.To == 77 })
		}
	}
	for run := range 21 {
		want := ""
		if run == 20 {
			want = "node worker-78"
		}
		if r := d.run(run); kindsOf(r.Findings) != want {
			t.Errorf("run %d: findings %q, want %q%s", run, kindsOf(r.Findings), want, judgetest.Show(r.Findings))
		}
	}
}
