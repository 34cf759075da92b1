// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// diffUnit is a udp pair of 64 bytes.
func diffUnit(source, target string, v Verdict) Unit {
	return Unit{Name: source + " -> " + target, Source: source, Target: target, Family: IPv4, Transport: UDP, Size: 64, Verdict: v}
}

var diffRows = []DelayRow{{Transport: UDP, Family: IPv4, Size: 64, Pairs: 1, Sent: 20}}

// mesh has the pairs a -> b, a -> c, b -> c and so on of the names, all passed, but for the units.
func diffMesh(names []string, units ...Unit) CheckReport {
	c := CheckReport{Name: "mesh", Units: units, Delays: diffRows, Matrix: &Matrix{Sources: names, Targets: names}}
	letters := map[Verdict]byte{Fail: 'x', Undecided: '~', Unmeasured: '?', Pass: '.'}
	for i, source := range names {
		row := make([]byte, len(names))
		for k, target := range names {
			row[k] = '.'
			if i == k {
				row[k] = ' '
			}
			for _, u := range units {
				if u.Source == source && u.Target == target {
					row[k] = letters[u.Verdict]
				}
			}
		}
		c.Matrix.Cells = append(c.Matrix.Cells, string(row))
	}
	return c
}

// TestCompareFindings: a finding that a report only counts is neither new nor gone.
func TestCompareFindings(t *testing.T) {
	node := func(name string) Finding { return Finding{Cause: CauseNode, Subject: name} }
	more := func(names ...string) Finding {
		return Finding{Cause: CauseNode, Subject: Count(len(names), "more finding"), Rest: names}
	}
	for _, tt := range []struct {
		name          string
		before, after []Finding
		want          string // new and gone
	}{
		{"the same", []Finding{node("a")}, []Finding{node("a")}, "[] []"},
		{"others", []Finding{node("a")}, []Finding{node("b")}, "[node b] [node a]"},
		{"counted before", []Finding{node("a"), more("node b", "node c")}, []Finding{node("b"), more("node a", "node c")}, "[] []"},
		{"one less", []Finding{node("a"), more("node b", "node c")}, []Finding{node("a"), node("c")}, "[] [node 2 more findings]"},
		{"as many others", []Finding{more("node b", "node c")}, []Finding{more("node b", "node d")}, "[node 2 more findings] [node 2 more findings]"},
		{"names in one report only", []Finding{{Cause: CauseNode, Subject: "2 more findings"}}, []Finding{more("node b", "node c")},
			"[node 2 more findings] []"},
	} {
		report := func(f []Finding) *Report { return &Report{Checks: []CheckReport{{Name: "mesh", Findings: f}}} }
		d := Compare(report(tt.before), report(tt.after)).Checks[0]
		if got := fmt.Sprint(d.NewFindings, d.GoneFindings); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}

// TestCauses: a finding that counts others has their causes. A name that this program does not write has the finding's.
func TestCauses(t *testing.T) {
	for _, tt := range []struct {
		finding Finding
		want    []FindingCause
	}{
		{Finding{Cause: CauseNode, Subject: "a"}, []FindingCause{CauseNode}},
		{Finding{Cause: CauseNetwork, Rest: []string{"nodeIngress a", "nodeIngress b (udp only)", "network"}},
			[]FindingCause{CauseNodeIngress, CauseNodeIngress, CauseNetwork}},
		{Finding{Cause: CauseNode, Rest: []string{"", "made up"}}, []FindingCause{CauseNode, CauseNode}},
	} {
		if got := tt.finding.Causes(); !slices.Equal(got, tt.want) {
			t.Errorf("%+v: got %v, want %v", tt.finding, got, tt.want)
		}
	}
}

// TestCompareUnits: each pair of what two runs know about a unit is in the one list that it belongs to.
func TestCompareUnits(t *testing.T) {
	abc := []string{"a", "b", "c"}
	nothing := CheckReport{Name: "mesh", Cause: &Cause{Stage: StageSetup, Message: "no"}}
	large := func(round int, units ...Unit) CheckReport {
		return CheckReport{Name: "mesh", Units: units, Counts: Counts{Expected: 9}, Coverage: &Coverage{Round: round, Rounds: 3}}
	}
	grouped := func(c CheckReport) CheckReport { // more than 100 nodes
		c.Matrix = &Matrix{Group: 2, Sources: []string{"a to b (2)", "c"}, Targets: []string{"a to b (2)", "c"}, Cells: []string{"..", ". "}}
		return c
	}
	whole := func(units ...Unit) CheckReport { return CheckReport{Name: "mesh", Complete: true, Units: units} }
	ab := func(v Verdict) Unit { return diffUnit("a", "b", v) }
	for _, tt := range []struct {
		name          string
		before, after CheckReport
		want          string // list and change, or the number of units that still fail
	}{
		{"pass, fail", diffMesh(abc), diffMesh(abc, ab(Fail)), "new a -> b: pass, fail"},
		{"undecided, fail", diffMesh(abc, ab(Undecided)), diffMesh(abc, ab(Fail)), "new a -> b: undecided, fail"},
		{"fail, pass", diffMesh(abc, ab(Fail)), diffMesh(abc), "gone a -> b: fail, pass"},
		{"fail, fail", diffMesh(abc, ab(Fail)), diffMesh(abc, ab(Fail)), "still 1"},
		{"pass, undecided", diffMesh(abc), diffMesh(abc, ab(Undecided)), ""},
		{"pass, unmeasured", diffMesh(abc), diffMesh(abc, ab(Unmeasured)), "unseen a -> b: pass, unmeasured"},
		{"unmeasured, pass", diffMesh(abc, ab(Unmeasured)), diffMesh(abc), ""},
		{"unmeasured, fail", diffMesh(abc, ab(Unmeasured)), diffMesh(abc, ab(Fail)), "unseen a -> b: unmeasured, fail"},
		{"fail, unmeasured", diffMesh(abc, ab(Fail)), diffMesh(abc, ab(Unmeasured)), "unseen a -> b: fail, unmeasured"},
		{"fail on a node that left", diffMesh(abc, ab(Fail)), diffMesh([]string{"a", "c"}), "unseen a -> b: fail, not expected"},
		{"fail on a node that came", diffMesh([]string{"a", "c"}), diffMesh(abc, ab(Fail)), "unseen a -> b: not expected, fail"},
		{"a check that was not measured", nothing, diffMesh(abc, ab(Fail)), "unseen a -> b: unmeasured, fail"},
		{"without a matrix, same sample", large(1), large(1, ab(Fail)), "new a -> b: pass, fail"},
		{"without a matrix, other samples", large(1), large(2, ab(Fail)), "unseen a -> b: not known, fail"},
		{"groups of nodes, same sample", grouped(large(1)), grouped(large(1, ab(Fail))), "new a -> b: pass, fail"},
		{"groups of nodes, other samples", grouped(large(1)), grouped(large(2, ab(Fail))), "unseen a -> b: not known, fail"},
		{"all units listed", whole(ab(Pass)), whole(ab(Fail)), "new a -> b: pass, fail"},
		{"all units listed, one came", whole(), whole(ab(Fail)), "unseen a -> b: not expected, fail"},
	} {
		d := Compare(&Report{Checks: []CheckReport{tt.before}}, &Report{Checks: []CheckReport{tt.after}})
		got := ""
		c := d.Checks[0]
		for _, list := range []struct {
			name string
			of   []UnitDiff
		}{{"new", c.New}, {"gone", c.Gone}, {"unseen", c.Unseen}} {
			for _, change := range list.of {
				got += fmt.Sprintf("%s %s: %s, %s", list.name, change.Unit, change.Before, change.After)
			}
		}
		if c.Still > 0 {
			got += fmt.Sprintf("still %d", c.Still)
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestCompareSlower(t *testing.T) {
	row := func(p50, p99 int64, loss Percent) DelayRow {
		return DelayRow{Transport: UDP, Family: IPv4, Size: 64, Sent: 100, Loss: loss, Delay: &Delay{P50: p50, P99: p99}}
	}
	for _, tt := range []struct {
		name    string
		was, is DelayRow
		want    bool
	}{
		{"the same", row(400, 900, 0), row(400, 900, 0), false},
		{"the median", row(400, 900, 0), row(600, 900, 0), true},
		{"the tail", row(400, 900, 0), row(400, 1350, 0), true},
		{"faster", row(600, 1350, 0), row(400, 900, 0), false},
		{"less than half more", row(4000, 9000, 0), row(5900, 9000, 0), false},
		{"twice of very little", row(40, 90, 0), row(80, 180, 0), false},
		{"loss", row(400, 900, 0), row(400, 900, 1), true},
		{"less loss", row(400, 900, 5), row(400, 900, 1), false},
		{"nothing sent", row(400, 900, 0), DelayRow{Transport: UDP, Family: IPv4, Size: 64, Loss: 100}, false},
		{"another probe", DelayRow{Transport: TCP, Family: IPv4, Sent: 1, Delay: &Delay{}}, row(4000, 9000, 9), false},
	} {
		d := Compare(&Report{Checks: []CheckReport{{Delays: []DelayRow{tt.was}}}}, &Report{Checks: []CheckReport{{Delays: []DelayRow{tt.is}}}})
		if got := len(d.Checks[0].Slower) > 0; got != tt.want {
			t.Errorf("%s: slower is %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestCompareSlowerUnits: units that both reports list are compared by median and loss, unless they fail.
func TestCompareSlowerUnits(t *testing.T) {
	unit := func(v Verdict, p50, p99 int64, received int) Unit {
		return Unit{Name: "a -> b", Verdict: v, Sent: 100, Received: received, Delay: &Delay{P50: p50, P99: p99}}
	}
	staged := func(p50 int64) Unit {
		return Unit{Name: "a -> b", Verdict: Pass, Sent: 60, Received: 60, Delays: map[Stage]*Delay{
			StageConnect: {P50: 100}, StageHandshake: {P50: p50}, StageResponse: nil,
		}}
	}
	none := Unit{Name: "a -> b", Verdict: Pass, Sent: 5, Received: 1} // one answer is enough
	for _, tt := range []struct {
		name    string
		was, is Unit
		want    string
	}{
		{"the same", unit(Pass, 400, 900, 100), unit(Pass, 400, 900, 100), ""},
		{"the median", unit(Pass, 400, 900, 100), unit(Pass, 700, 900, 100), "a -> b: 400 to 700, 0% to 0% lost"},
		{"the tail of few", unit(Pass, 400, 900, 100), unit(Pass, 400, 9000, 100), ""},
		{"loss", unit(Pass, 400, 900, 100), unit(Undecided, 400, 900, 97), "a -> b: 400 to 400, 0% to 3% lost"},
		{"failed", unit(Pass, 400, 900, 100), unit(Fail, 4000, 9000, 1), ""},
		{"failed before", unit(Fail, 400, 900, 100), unit(Pass, 4000, 9000, 100), "a -> b: 400 to 4000, 0% to 0% lost"},
		{"a stage", staged(900), staged(5000), "a -> b: handshake: 900 to 5000, 0% to 0% lost"},
		{"without delays", none, none, ""},
		{"of one run only", Unit{Name: "b -> a"}, unit(Pass, 4000, 9000, 100), ""},
	} {
		d := Compare(&Report{Checks: []CheckReport{{Complete: true, Units: []Unit{tt.was}}}},
			&Report{Checks: []CheckReport{{Complete: true, Units: []Unit{tt.is}}}})
		got := ""
		for _, s := range d.Checks[0].SlowerUnits {
			got += fmt.Sprintf("%s: %d to %d, %s to %s lost", s.Part, s.Before.P50, s.After.P50, s.Before.Loss, s.After.Loss)
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestCompareRandom: a report compared with itself has no change. What is new in one direction is gone in the other,
// and what both see is the same.
func TestCompareRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	report := func() *Report {
		names := []string{"a", "b", "c", "d", "e"}
		names = names[:2+random.IntN(4)]
		var units []Unit
		for _, s := range names {
			for _, u := range names {
				if v := []Verdict{Pass, Fail, Undecided, Unmeasured}[random.IntN(4)]; v != Pass && s != u {
					units = append(units, diffUnit(s, u, v))
				}
			}
		}
		c := diffMesh(names, units...)
		if random.IntN(2) == 0 {
			c.Findings = []Finding{{Cause: CauseNode, Subject: names[random.IntN(len(names))]}}
		}
		return &Report{Plan: "p", Started: time.Unix(1, 0), Checks: []CheckReport{c}}
	}
	of := func(changes []UnitDiff) []string {
		var names []string
		for _, c := range changes {
			names = append(names, c.Unit)
		}
		return names
	}
	for range 300 {
		a, b := report(), report()
		if d := Compare(a, a).Checks[0]; len(d.New)+len(d.Gone)+len(d.Unseen)+len(d.Slower)+len(d.NewFindings)+len(d.GoneFindings)+d.Seen.Before+d.Seen.After != 0 {
			t.Fatalf("a report differs from itself: %+v", d)
		}
		there, back := Compare(a, b).Checks[0], Compare(b, a).Checks[0]
		if !slices.Equal(of(there.New), of(back.Gone)) || !slices.Equal(of(there.Gone), of(back.New)) || there.Still != back.Still ||
			len(there.NewFindings) != len(back.GoneFindings) || there.Seen.Both != back.Seen.Both || there.Seen.Before != back.Seen.After {
			t.Fatalf("there %+v\nback %+v", there, back)
		}
	}
}

// TestCompareChecks: a check of one run only, two plans, and runs in the wrong order.
func TestCompareChecks(t *testing.T) {
	d := Compare(
		&Report{Plan: "p", Started: time.Unix(2, 0), Checks: []CheckReport{{Name: "old", Verdict: RunPass}, {Name: "both"}}},
		&Report{Plan: "q", Started: time.Unix(1, 0), Checks: []CheckReport{{Name: "both"}, {Name: "new", Verdict: RunFail}}})
	if len(d.Notes) != 2 || len(d.Checks) != 3 || d.Checks[1].Before != "" || d.Checks[1].After != RunFail ||
		d.Checks[2].Name != "old" || d.Checks[2].After != "" {
		t.Errorf("%+v", d)
	}
}
