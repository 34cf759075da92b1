// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/judge"
)

// Explainer finds the causes of a difference, as a kind finds those of failures. Each finding has a Change, but for one
// that sums up others.
type Explainer func(*judge.Judgement, *Difference) []checkup.Finding

// Compare adds to the report of a check what is worse than in earlier runs, as findings behind those of failures. If
// the plan wants it, a regression fails the check. It never makes a verdict better.
//
// It is pure. The history, which is nil if it could not be read, must not have the run, which ended at the given time.
func Compare(
	before *history.History, at time.Time, sheet history.Sheet, rules judge.Rules, explain Explainer,
	r *checkup.CheckReport,
) {
	w := sheet.Worksheet
	expect := w.Expect.Regression
	if expect == nil || before == nil {
		return
	}
	pairs := history.PairsOf(r, sheet)
	if pairs == nil {
		r.Notes = append(r.Notes, "not compared with earlier runs: the history keeps no results of this check")
		return
	}
	x := before.Compare(w.Check, pairs, at, *expect)
	r.Compared = &checkup.Compared{Runs: x.Runs, Needed: expect.Runs}
	if x.Runs < expect.Runs || len(x.Changes) == 0 {
		return
	}
	var findings []checkup.Finding
	d := newDifferences(x, judge.Pairs(w, sheet.Roster, sheet.Record, rules), explain)
	for _, limits := range [][]checkup.Limit{{checkup.LimitP50, checkup.LimitP90}, {checkup.LimitLoss}} {
		clear(d.known) // a pair may be slower, and lose more
		for _, l := range limits {
			for _, drift := range []bool{false, true} {
				findings = append(findings, d.explain(l, drift)...)
			}
		}
	}
	r.Findings = append(r.Findings, findings...)
	if expect.Fail && len(findings) > 0 {
		r.Notes = append(r.Notes, "a regression fails this check: expect.regression.fail is true")
		r.Verdict = checkup.RunFail
	}
}

// differences finds the pairs behind the changes of groups.
type differences struct {
	*history.Comparison
	w         *checkup.Worksheet
	j         *judge.Judgement
	explainer Explainer
	// of are the outcomes of each group and pair that can be compared; known are those that a finding explains already.
	of    map[history.Key][]int
	known []bool
}

func newDifferences(x *history.Comparison, j *judge.Judgement, explain Explainer) *differences {
	d := &differences{
		Comparison: x, w: j.Worksheet, j: j, explainer: explain,
		of: map[history.Key][]int{}, known: make([]bool, len(j.Outcomes)),
	}
	for i := range j.Outcomes {
		if o := &j.Outcomes[i]; canCompare(j, o) {
			pair, out, in, zones, all := d.keys(o.Pair)
			for _, k := range []history.Key{pair, out, in, zones, all} {
				d.of[k] = append(d.of[k], i)
			}
		}
	}
	return d
}

// keys are those of a pair and of its groups.
func (d *differences) keys(p checkup.Pair) (pair, out, in, zones, all history.Key) {
	s, t := d.w.Sources[p.Source], d.w.Targets[p.Target]
	base := history.Key{Check: d.w.Check, Probe: history.ProbeName(p)}
	with := func(g history.Group, from, to string) history.Key {
		k := base
		k.Group, k.From, k.To = g, from, to
		return k
	}
	return with(history.PairGroup, s.Name(), t.Name()), with(history.Out, s.Name(), ""), with(history.In, "", t.Name()),
		with(history.Zones, s.Zone, t.Zone), with(history.All, "", "")
}

// value of outcomes together, in the unit of a history.Change; false if nothing was answered.
func (d *differences) value(outcomes []int, l checkup.Limit) (float64, bool) {
	sent, lost := 0, 0
	var rtts []int64
	for _, i := range outcomes {
		o := &d.j.Outcomes[i]
		sent += o.Sent
		lost += o.Sent - o.Received
		rtts = append(rtts, o.RTTs...)
	}
	if l == checkup.LimitLoss {
		return float64(lost) / float64(max(sent, 1)), sent > 0
	}
	q := 0.5
	if l == checkup.LimitP90 {
		q = 0.9
	}
	slices.Sort(rtts)
	return float64(judge.Quantile(rtts, q)), len(rtts) > 0
}

// usual is what a pair had before: by its own results or, if they are too few, by those of its source and its target,
// the higher of the two; 0 if that is unknown.
func (d *differences) usual(p checkup.Pair, l checkup.Limit, drift bool) float64 {
	of := d.Usual
	if drift {
		of = d.First
	}
	pair, out, in, _, _ := d.keys(p)
	if v, ok := of(pair, l); ok {
		return v
	}
	a, _ := of(out, l)
	b, _ := of(in, l)
	return max(a, b)
}

// explain finds the pairs that are worse in one value, by a step or by a drift, and explains them.
func (d *differences) explain(l checkup.Limit, drift bool) []checkup.Finding {
	var changes []history.Change
	days := 0
	for _, c := range d.Changes {
		if c.Limit == l && c.Days > 0 == drift {
			changes = append(changes, c)
			days = max(days, c.Days)
		}
	}
	worse := d.worse(changes, l, drift)
	if len(worse) == 0 {
		return nil
	}
	difference := &Difference{Class: judge.Slow, Changed: make([]bool, len(d.j.Outcomes))}
	if l == checkup.LimitLoss {
		difference.Class = judge.Lost
	}
	for _, i := range worse {
		difference.Changed[i] = true
	}
	difference.Of = func(outcomes []int) *checkup.Change { return d.change(outcomes, l, days) }
	findings := d.explainer(d.j, difference)
	for i := range findings {
		if findings[i].Change == nil { // it sums up others
			findings[i].Change = difference.Of(worse)
		}
	}
	return findings
}

// worse finds the pairs behind changes of one value. Groups come in the order of their changes: a group that is not
// worse without the pairs of those before it is no change. A pair of a group is worse if it is nearer to the value of
// the group now than to the usual one, on a logarithmic scale.
func (d *differences) worse(changes []history.Change, l checkup.Limit, drift bool) []int {
	slices.SortStableFunc(changes, func(a, b history.Change) int {
		return cmp.Compare(b.Now*max(a.Usual, 1e-3), a.Now*max(b.Usual, 1e-3))
	})
	var worse []int
	for _, c := range changes {
		left := slices.DeleteFunc(slices.Clone(d.of[c.Key]), func(i int) bool { return d.known[i] })
		now, ok := d.value(left, l)
		if !ok || now < c.Least {
			continue
		}
		for _, i := range left {
			v, ok := d.value([]int{i}, l)
			usual := d.usual(d.j.Outcomes[i].Pair, l, drift)
			if ok && (l == checkup.LimitLoss && v > usual || l != checkup.LimitLoss && v >= usual*math.Sqrt(c.Now/c.Usual)) {
				worse, d.known[i] = append(worse, i), true
			}
		}
	}
	slices.Sort(worse)
	return worse
}

// change sums up the change of some outcomes in one value: the medians of their delays, or all their losses in percent.
// Days is that of a drift, and 0 for a step.
func (d *differences) change(outcomes []int, l checkup.Limit, days int) *checkup.Change {
	c := &checkup.Change{Limit: l, Measure: checkup.MeasureMicroseconds, Runs: d.Runs, Days: days}
	if days > 0 {
		c.Runs = d.Days
	}
	var usual, now []int64
	sent, lost, usuallyLost := 0, 0, 0.0
	for _, i := range outcomes {
		o := &d.j.Outcomes[i]
		before := d.usual(o.Pair, l, days > 0)
		sent += o.Sent
		lost += o.Sent - o.Received
		usuallyLost += float64(o.Sent) * before
		v, _ := d.value([]int{i}, l)
		usual, now = append(usual, int64(before)), append(now, int64(v))
	}
	if l == checkup.LimitLoss {
		percent := func(lost float64) float64 { return math.Round(1e4*lost/float64(max(sent, 1))) / 100 }
		c.Measure, c.Usual, c.Now = checkup.MeasurePercent, percent(usuallyLost), percent(float64(lost))
		return c
	}
	slices.Sort(usual)
	slices.Sort(now)
	c.Usual, c.Now = float64(judge.Quantile(usual, 0.5)), float64(judge.Quantile(now, 0.5))
	return c
}

// InWords says how much worse than in earlier runs.
func InWords(c *checkup.Change) string {
	since := fmt.Sprintf("in the last %d runs", c.Runs)
	usually := "usually"
	if c.Days > 0 {
		since, usually = fmt.Sprintf("%d days ago, growing slowly", c.Days), "then"
	}
	if c.Limit == checkup.LimitLoss {
		return fmt.Sprintf("loses more than %s, %.3g%% of the measurements, %s %.3g%%", since, c.Now, usually, c.Usual)
	}
	what := "median round trip"
	if c.Limit == checkup.LimitP90 {
		what = "90th percentile of the round trips"
	}
	times := c.Now / max(c.Usual, 1)
	factor := fmt.Sprintf("%.1f", times)
	if times >= 10 {
		factor = fmt.Sprintf("%.0f", times)
	}
	return fmt.Sprintf("%s times slower than %s, %s %s, %s %s", factor, since, what,
		judge.Micros(int64(c.Now)), usually, judge.Micros(int64(c.Usual)))
}
