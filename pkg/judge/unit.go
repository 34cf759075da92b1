// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Unit returns the unit of one expected pair.
func (j *Judgement) Unit(o *Outcome) checkup.Unit {
	p := o.Pair
	u := checkup.Unit{
		Source: Name(j.Worksheet.Sources, p.Source), Target: Name(j.Worksheet.Targets, p.Target),
		Family: p.Family, Transport: p.Transport, Size: p.Size,
		Verdict: o.Verdict, Cause: o.Why(), Breaches: slices.Clone(o.Breaches),
		Sent: o.Sent, Received: o.Received, Duplicates: o.Duplicates, Reordered: o.Reordered, Direction: o.Direction,
	}
	u.Name = fmt.Sprintf(
		"%s -> %s %s %s %dB",
		u.Source,
		u.Target,
		p.Transport,
		cmp.Or(string(p.Family), "any family"),
		p.Size,
	)
	o.looked(&u)
	f := o.Folded
	if f == nil {
		u.Delay = DelayOf([][]int64{o.RTTs})
		return u
	}
	u.Sent, u.Received, u.Failures, u.Outages = f.Sent, f.Received, maps.Clone(f.Failures), f.Outages
	for s, delays := range f.Stages {
		if u.Delays == nil {
			u.Delays = map[checkup.Stage]*checkup.Delay{}
		}
		u.Delays[s] = DelayOf([][]int64{delays})
	}
	return u
}

// Troubled returns the units of the pairs that failed, are undecided or were not measured,
// or that a further look found gone, in the worksheet's order.
func (j *Judgement) Troubled() []checkup.Unit {
	var troubled []*Outcome
	for i := range j.Outcomes {
		if o := &j.Outcomes[i]; o.Verdict != checkup.Pass || o.Confirmation() == checkup.Gone {
			troubled = append(troubled, o)
		}
	}
	units := slices.Grow([]checkup.Unit(nil), len(troubled)) // large, and half of all may fail
	for _, o := range troubled {
		units = append(units, j.Unit(o))
	}
	return units
}

// Counted returns the counts of a single verdict.
func Counted(v checkup.Verdict) checkup.Counts {
	switch v {
	case checkup.Pass:
		return checkup.Counts{Expected: 1, Pass: 1}
	case checkup.Fail:
		return checkup.Counts{Expected: 1, Fail: 1}
	case checkup.Undecided:
		return checkup.Counts{Expected: 1, Undecided: 1}
	default:
		return checkup.Counts{Expected: 1, Unmeasured: 1}
	}
}

// Sum adds counts.
func Sum(a, b checkup.Counts) checkup.Counts {
	return checkup.Counts{
		Expected: a.Expected + b.Expected, Pass: a.Pass + b.Pass, Fail: a.Fail + b.Fail,
		Undecided: a.Undecided + b.Undecided, Unmeasured: a.Unmeasured + b.Unmeasured,
	}
}

// Verdict returns the verdict of a check with these counts. Undecided units were measured, and do not fail it.
func Verdict(c checkup.Counts, maxUnmeasured checkup.Percent) checkup.RunVerdict {
	switch measured := c.Pass + c.Fail + c.Undecided; {
	case c.Fail > 0:
		return checkup.RunFail
	case measured == 0:
		return checkup.RunInconclusive
	// The tolerance makes 1 of 20 fit "5%" in binary, too. If the maximum is NaN, nothing
	// may be unmeasured.
	case !(100*float64(c.Unmeasured)/float64(c.Expected) <= float64(maxUnmeasured)+1e-9):
		return checkup.RunInconclusive
	default:
		return checkup.RunPass
	}
}
