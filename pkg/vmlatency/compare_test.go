// SPDX-License-Identifier: Apache-2.0

package vmlatency

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/judge/judgetest"
)

// daily simulates the runs of a plan.
type daily struct {
	lines  []vmLine
	expect checkup.Regression
	h      *history.History
}

var day0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// run returns the report of a run, and adds it to the history.
func (d *daily) run(run int, change func(*guests)) *checkup.CheckReport {
	g := newGuests(uint64(run), d.lines...)
	g.w.Expect.Regression = &d.expect
	g.w.Expect.Loss.Max = ptr(checkup.Percent(60))
	if change != nil {
		change(g)
	}
	at := day0.Add(time.Duration(run) * time.Hour)
	sheet := history.Sheet{Worksheet: g.w, Roster: g.roster, Record: g.measure()}
	c := Judge(sheet.Worksheet, sheet.Roster, sheet.Record, checkup.Gate{})
	if d.h == nil {
		d.h = &history.History{Plan: "day-2"}
	}
	Compare(d.h, at, sheet, checkup.Gate{}, &c)
	plan := &checkup.Plan{Name: "day-2", Checks: map[string]checkup.Check{"vms": {Spec: &Spec{}}}}
	r := judge.Join(plan, judge.Run{Name: fmt.Sprint("r", run), UID: fmt.Sprint("u", run), Started: at, Finished: at},
		[]checkup.CheckReport{c}, nil)
	d.h = history.Merge(d.h, history.EntryOf(&r, map[string]history.Sheet{"vms": sheet}))
	return &r.Checks[0]
}

func demand() checkup.Regression {
	return checkup.Regression{
		Runs: 20, MinFactor: 1.5, MinDelay: checkup.Duration(100 * time.Microsecond), MinLoss: 1,
	}
}

// threeNodes are all pairs of three nodes on two networks.
func threeNodes() []vmLine {
	var lines []vmLine
	for _, network := range []string{"br10", "br20"} {
		lines = append(lines, vmLine{"node01", "node02", network}, vmLine{"node01", "node03", network},
			vmLine{"node02", "node03", network})
	}
	return lines
}

// TestCompare: after 20 runs without a change, the first run with one has its place as the only finding, in the words
// of a mesh.
func TestCompare(t *testing.T) {
	on := func(g *guests, vm int, node, network string) bool { return g.on(vm, node, network) }
	slower := func(g *guests, by time.Duration, some func(from, to int) bool) {
		g.delay = func(from, to int, _ checkup.IPFamily) time.Duration {
			return time.Duration(judgetest.When(some(from, to))) * by
		}
	}
	for _, tt := range []struct {
		name   string
		change func(*guests)
		want   []string // findings, and what each says
	}{
		{"no change", nil, nil},
		{"30ms into a node on a network", func(g *guests) {
			slower(g, 30*time.Millisecond, func(_, to int) bool { return on(g, to, "node03", "br20") })
		}, []string{
			"node node03", "between node03 and each of node01, node02 over default/br20, IPv4 and IPv6: ",
			" times slower than in the last 20 runs, median round trip 30.",
		}},
		{"a network", func(g *guests) {
			slower(g, 10*time.Millisecond, func(from, _ int) bool { return g.w.Sources[from].VM.Network.Name == "br10" })
		}, []string{"network default/br10", "between all 3 pairs of nodes over default/br10, IPv4 and IPv6: "}},
		{"a pair, IPv6 only", func(g *guests) {
			g.delay = func(from, to int, f checkup.IPFamily) time.Duration {
				slow := f == checkup.IPv6 && on(g, from, "node01", "br10") && on(g, to, "node02", "br10")
				return time.Duration(judgetest.When(slow)) * 30 * time.Millisecond
			}
		}, []string{"pair node01 -> node02 (IPv6 only)", "between node01 and node02 over default/br10, IPv6 only: "}},
		{"loss below the limit", func(g *guests) {
			g.drop = func(from, to int, _ checkup.IPFamily, answer bool) float64 {
				return 0.4 * judgetest.When(!answer && on(g, from, "node01", "br20") && on(g, to, "node02", "br20"))
			}
		}, []string{"pair node01 -> node02", "between node01 and node02 over default/br20, IPv4 and IPv6: loses more than "}},
		{"loss on the way back, of which one answer is enough", func(g *guests) {
			g.drop = func(from, to int, _ checkup.IPFamily, answer bool) float64 {
				return 0.5 * judgetest.When(!answer && on(g, from, "node02", "br10") && on(g, to, "node01", "br10"))
			}
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := &daily{lines: threeNodes(), expect: demand()}
			for run := range 20 {
				if r := d.run(run, nil); len(r.Findings) > 0 || r.Compared == nil || r.Compared.Runs != run {
					t.Fatalf("run %d: compared %+v, findings%s; want none with %d runs", run, r.Compared,
						judgetest.Show(r.Findings), run)
				}
			}
			for run := 20; run < 22; run++ { // it is found again while it lasts
				r := d.run(run, tt.change)
				if r.Verdict != checkup.RunPass || r.Counts.Fail > 0 || len(r.Findings) != min(1, len(tt.want)) {
					t.Fatalf("run %d: %s, %d failed, findings%s; want %q", run, r.Verdict, r.Counts.Fail,
						judgetest.Show(r.Findings), tt.want)
				}
				if len(tt.want) == 0 {
					continue
				}
				f := r.Findings[0]
				if f.Change == nil || judgetest.Kind(f) != tt.want[0] {
					t.Errorf("run %d: finding %q, change %+v, want %q", run, judgetest.Kind(f), f.Change, tt.want[0])
				}
				for _, says := range tt.want[1:] {
					if !strings.Contains(f.Message, says) {
						t.Errorf("run %d: message %q, want %q", run, f.Message, says)
					}
				}
				if run == 20 {
					t.Logf("%s", judgetest.Show(r.Findings))
				}
			}
		})
	}
}

// TestCompareFails: a regression fails the check if the plan says so, and hides no failure.
func TestCompareFails(t *testing.T) {
	d := &daily{lines: threeNodes(), expect: demand()}
	d.expect.Runs, d.expect.Fail = 3, true
	for run := range 3 {
		d.run(run, nil)
	}
	r := d.run(3, func(g *guests) {
		g.drop = func(from, to int, _ checkup.IPFamily, _ bool) float64 {
			return judgetest.When(g.on(from, "node03", "br10") || g.on(to, "node03", "br10"))
		}
		g.delay = func(from, _ int, _ checkup.IPFamily) time.Duration {
			return time.Duration(judgetest.When(g.w.Sources[from].VM.Network.Name == "br20")) * 30 * time.Millisecond
		}
	})
	if len(r.Findings) != 2 || r.Findings[0].Change != nil || r.Findings[1].Change == nil || r.Verdict != checkup.RunFail ||
		judgetest.Kind(r.Findings[0]) != "node node03" || judgetest.Kind(r.Findings[1]) != "network default/br20" {
		t.Errorf("verdict %s, findings%s; want the failure of node03, then the regression of br20", r.Verdict,
			judgetest.Show(r.Findings))
	}
}

// TestHistory: the history has the last result of each direction of a pair of nodes on each network, and what all runs
// have covered.
func TestHistory(t *testing.T) {
	d := &daily{lines: threeNodes(), expect: demand()}
	d.run(0, nil)
	d.run(1, func(g *guests) {
		away := checkup.RosterEntry{Cause: &checkup.Cause{Stage: checkup.StageStart, Message: "did not boot"}}
		g.roster.Targets[0] = away // node01 to node02 over br10
	})
	var got []string
	for _, p := range d.h.Pair("node01", "node02") {
		for _, r := range p.Results {
			got = append(got, fmt.Sprintf("%s %s -> %s %s %s %t", p.Run, p.Source, p.Target, r.Probe, r.Verdict, r.P50 > 0))
		}
	}
	want := []string{
		"r0 node01 on default/br10 -> node02 on default/br10 icmp IPv4 56B pass true",
		"r0 node01 on default/br10 -> node02 on default/br10 icmp IPv6 56B pass true",
		"r0 node01 on default/br20 -> node02 on default/br20 icmp IPv4 56B pass true",
		"r0 node01 on default/br20 -> node02 on default/br20 icmp IPv6 56B pass true",
		"r1 node01 on default/br10 -> node02 on default/br10 icmp IPv4 56B unmeasured false",
		"r1 node01 on default/br10 -> node02 on default/br10 icmp IPv6 56B unmeasured false",
		"r1 node01 on default/br20 -> node02 on default/br20 icmp IPv4 56B pass true",
		"r1 node01 on default/br20 -> node02 on default/br20 icmp IPv6 56B pass true",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the pair node01, node02:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	back := d.h.Pair("node02 on default/br10", "node01 on default/br10")
	if len(back) != 2 || back[0].Results[0].Verdict != checkup.Pass || back[0].Results[0].P50 != 0 {
		t.Errorf("back %+v, want verdicts without delays", back)
	}
	o := d.h.Overview(history.Filter{Check: "vms"})
	if len(o.Trends) != 2 || o.Trends[0].P50[1] < 400 || o.Trends[0].P50[1] > 900 {
		t.Errorf("trends %+v, want medians of IPv4 and IPv6", o.Trends)
	}
	c := d.h.Cumulative("vms")
	if c.Measured != 12 || c.Possible != 12 || c.Oldest != "node01 on default/br10 -> node02 on default/br10" &&
		c.Oldest != "node02 on default/br10 -> node01 on default/br10" || !c.OldestAt.Equal(day0) {
		t.Errorf("coverage %+v, want all 12 pairs, the oldest from run 0", c)
	}

	never := &daily{lines: threeNodes()[:2], expect: demand()}
	never.run(0, func(g *guests) {
		g.roster.Targets[2] = checkup.RosterEntry{Cause: &checkup.Cause{Stage: checkup.StageStart, Message: "did not boot"}}
	})
	c = never.h.Cumulative("vms")
	if c.Measured != 2 || c.Possible != 4 || !strings.Contains(c.Oldest, "node03") || c.FailingUpperBound != nil {
		t.Errorf("coverage %+v, want 2 of 4 pairs, one with node03 missing, and no bound: pairs are no sample", c)
	}
}
