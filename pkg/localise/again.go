// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
)

// enough is how many pairs of a finding a further look must have measured, or all of them, for the others to be gone or
// undecided with them.
const enough = 20

// LookAgain adds what a further look found, a while after the first look. It decides by the
// measurements of the further look alone:
//
//   - A component of the first look is tested again with those of its pairs that were measured
//     again, without those whose losses dead paths explain. The number of these components is the
//     number of tests, which gives their level. Its pairs have its fate: one that is confirmed, gone or undecided makes
//     them so. But a pair that the further look fails by itself fails, and has another cause if the component is gone.
//     So does a pair without any answer that was not measured again, unless nearly all packets were lost at the place.
//   - Other pairs are merged by judge.Merge, one by one.
//   - A finding is confirmed if its component or one of its pairs is, and gone if all of its
//     pairs that were measured again passed. If some of its pairs are of no other finding, only these decide: the other
//     ones may fail because of the other finding. What is gone or undecided decides about pairs that were not measured
//     again only if enough of its pairs were.
//   - Pairs that failed only now, alone or with their component, are explained anew.
//   - Of a finding that is confirmed, causes that the further look rules out are dropped. The further look may measure
//     pairs for that which j does not have (see Separating).
//
// It changes the outcomes of j.
func (x *Explanation) LookAgain(j, further *judge.Judgement, after checkup.Duration) {
	again := map[checkup.Pair]int{}
	for k := range further.Outcomes {
		if o := &further.Outcomes[k]; o.Verdict != checkup.Unmeasured {
			again[o.Pair] = k
		}
	}
	components := slices.Clone(x.Undecided)
	for _, f := range x.Found {
		if f.Component != nil {
			components = append(components, f.Component)
		}
	}
	level := judge.Level(j.Worksheet, len(components))
	deadPaths := make([]bool, len(further.Outcomes)) // pairs whose losses dead paths explain
	if len(components) > 0 {
		paths(NewEvidence(further), deadPaths)
	}
	for _, c := range components {
		c.lookAgain(j, further, again, deadPaths, level)
	}
	x.reconsider(x.Found, j, further, again)
	for _, f := range x.Found[:min(len(x.Found), 2*maxFindings)] {
		f.settle() // in the words of the first look
	}
	failed := make([]bool, len(j.Outcomes)) // in the first look
	for i := range j.Outcomes {
		failed[i] = j.Outcomes[i].Verdict == checkup.Fail
	}
	// What the first look said of pairs whose component decides.
	first := map[int]judge.Outcome{}
	for _, f := range x.Found {
		if f.Component != nil {
			for _, i := range f.Pairs {
				first[i] = j.Outcomes[i]
			}
		}
	}
	j.Merge(further, after)
	for _, c := range components {
		for _, part := range c.named {
			if look := j.Outcomes[part.At].Look; look != nil && c.verdict == checkup.Fail {
				look.Together = true
			}
		}
	}
	fate := func(i int, v checkup.Verdict) {
		o := &j.Outcomes[i]
		before, known := first[i]
		if !known {
			before = *o
		}
		if v == o.Verdict && o.Look != nil {
			return
		}
		if v == checkup.Fail {
			look := o.Look
			*o = before
			o.Look = look
		}
		o.Look = &judge.Look{First: before.Verdict, FirstCause: before.Cause, Made: true, After: after}
		switch o.Verdict = v; {
		case v == checkup.Pass:
			o.Failure, o.Breaches = 0, nil
		case o.Cause == checkup.Cause{}: // by itself, it passed
			o.Cause = before.Cause
		}
	}
	of := x.concern(len(j.Outcomes))
	for _, f := range x.Found {
		made := func(i int) bool { _, made := again[j.Outcomes[i].Pair]; return made }
		measured := 0
		for _, i := range f.Pairs {
			if made(i) {
				measured++
			}
		}
		all := measured >= min(enough, len(f.Pairs)) // decides about those that were not measured again, too
		if c := f.Component; c != nil && c.verdict != checkup.Fail && !all {
			c.verdict = checkup.Unmeasured
		}
		own := func(i int) bool { return false }
		switch {
		case f.Component != nil && f.Component.verdict != checkup.Unmeasured:
			own = func(i int) bool {
				o := &j.Outcomes[i]
				return f.Component.verdict != checkup.Fail && o.Verdict == checkup.Fail &&
					(made(i) || o.Received == 0 && f.cause.share < dropShare)
			}
			f.Confirmation = map[checkup.Verdict]checkup.Confirmation{
				checkup.Fail: checkup.Confirmed, checkup.Pass: checkup.Gone, checkup.Undecided: checkup.NotConfirmed,
			}[f.Component.verdict]
			for _, i := range f.Pairs {
				if !own(i) {
					fate(i, f.Component.verdict)
				}
			}
		default:
			alone := slices.DeleteFunc(slices.Clone(f.Pairs), func(i int) bool { return of[i] > 1 || !made(i) })
			if len(alone) == 0 {
				alone = f.Pairs
			}
			f.Confirmation = confirmation(j, alone)
			if f.Confirmation == checkup.NotConfirmed && f.passes(j, further, again) {
				f.Confirmation = checkup.Gone
			}
			if f.Confirmation != checkup.Gone {
				break
			}
			if !all {
				f.Confirmation = checkup.NotMadeAgain
				break
			}
			own = func(i int) bool { return made(i) && of[i] > 1 && j.Outcomes[i].Verdict == checkup.Fail }
			for _, i := range f.Pairs {
				if j.Outcomes[i].Verdict == checkup.Fail && !own(i) {
					fate(i, checkup.Pass)
				}
			}
		}
		for _, i := range f.Pairs {
			failed[i] = failed[i] && !own(i) // it fails without this finding: it is explained anew
		}
		f.Pairs = slices.DeleteFunc(f.Pairs, own)
		if f.Confirmation != checkup.Gone {
			f.Pairs = slices.DeleteFunc(f.Pairs, func(i int) bool { return j.Outcomes[i].Verdict == checkup.Pass })
		}
	}
	x.reconsider(x.addNew(j, failed), j, further, again)
}

// concern counts for each of n outcomes the findings whose cause concerns it, whether it explains what became of it or
// not.
func (x *Explanation) concern(n int) []int {
	findings, last := make([]int, n), make([]int, n)
	for id, f := range x.Found {
		if f.cause == nil {
			continue
		}
		f.cause.pairs(func(at int) {
			if last[at] != id+1 {
				findings[at], last[at] = findings[at]+1, id+1
			}
		})
	}
	return findings
}

// pairs calls do with each pair of the index that the cause affects, if it is right; twice if it affects both ways.
func (c *candidate) pairs(do func(at int)) {
	ways := c.place.there
	if !c.flows {
		ways = slices.Concat(ways, c.place.back)
	}
	for _, k := range ways {
		for i := c.l.ways[k].from; i < c.l.ways[k].end; i++ {
			if m := &c.l.all[i]; c.narrowing.admits[m.Attribute] {
				do(m.at)
			}
		}
	}
}

// passes reports whether the pairs of a finding, all together, give no reason for doubt in a
// further look, although one of them does.
func (f *Found) passes(j, further *judge.Judgement, again map[checkup.Pair]int) bool {
	limits := slices.Concat(limits(j.Worksheet.Expect, judge.Lost), limits(j.Worksheet.Expect, judge.Slow))
	for _, l := range limits {
		t := l.Test
		for _, i := range f.Pairs {
			if k, made := again[j.Outcomes[i].Pair]; made {
				o := &further.Outcomes[k]
				t = count(t, o, RoundTrips, l.lateOf(o))
			}
		}
		if t.Verdict(0) != checkup.Pass {
			return false
		}
	}
	return len(limits) > 0
}

// confirmation is what a further look found about some failed pairs.
func confirmation(j *judge.Judgement, pairs []int) checkup.Confirmation {
	found := checkup.NotMadeAgain
	for _, i := range pairs {
		switch c := j.Outcomes[i].Confirmation(); {
		case c == checkup.Confirmed:
			return c
		case c == checkup.NotConfirmed, c == checkup.Gone && found != checkup.NotConfirmed:
			found = c
		}
	}
	return found
}

// lookAgain tests a component with what a further look measured of it, without the pairs whose losses dead paths
// explain. again has the indexes of the further look's outcomes. If the component fails, so do its pairs.
func (c *Component) lookAgain(
	j, further *judge.Judgement, again map[checkup.Pair]int, deadPaths []bool, level float64,
) {
	limits := slices.Concat(limits(j.Worksheet.Expect, judge.Lost), limits(j.Worksheet.Expect, judge.Slow))
	of := limits[slices.IndexFunc(limits, func(l limit) bool { return l.Limit == c.Limit })]
	add := func(t judge.Test, part Part) (sum judge.Test, at int) {
		k, made := again[j.Outcomes[part.At].Pair]
		if !made || len(further.Outcomes[k].Dead) > 0 || deadPaths[k] {
			return t, k
		}
		o := &further.Outcomes[k]
		return count(t, o, part.Of, of.lateOf(o)), k
	}
	t := of.Test
	for _, part := range c.Parts {
		t, _ = add(t, part)
	}
	if t.N == 0 {
		c.verdict = checkup.Unmeasured
		return
	}
	c.Test, c.verdict = t, t.Verdict(level)
	if c.verdict == checkup.Fail {
		var beyond []int
		for _, part := range c.named {
			if lost, k := add(of.Test, part); lost.K > 0 {
				beyond = append(beyond, k)
			}
		}
		further.FailTogether(beyond, c.Limit, "with the other pairs "+c.where)
	}
}

// addNew explains the pairs that did not fail in the first look, but fail now. It returns the findings that it adds.
func (x *Explanation) addNew(j *judge.Judgement, before []bool) []*Found {
	var added []*Found
	add := func(f *Found) {
		f.Confirmation = confirmation(j, f.Pairs)
		x.Found, added = append(x.Found, f), append(added, f)
	}
	e := NewEvidence(j)
	done := make([]bool, len(e.Outcomes))
	flow := func(i int) bool { return !before[i] && e.Outcomes[i].Failure == judge.FlowLost }
	if slices.ContainsFunc(e.Measured, flow) {
		x.Found = slices.DeleteFunc(x.Found, func(f *Found) bool {
			return f.Finding.Cause == checkup.CausePaths && f.Confirmation != checkup.Gone
		})
		for _, f := range paths(e, done) {
			add(f)
		}
	}
	for _, f := range x.Found {
		if f.Finding.Cause == checkup.CausePaths {
			for _, i := range f.Pairs {
				done[i] = true
			}
		}
	}
	for _, f := range rewritten(e, func(i int) bool { return !before[i] }) {
		add(f)
	}
	for _, class := range []judge.Failure{judge.Lost, judge.Slow, judge.Reached} {
		if class == judge.Slow {
			for _, f := range x.Found {
				if f.cause != nil && f.cause.l.class == judge.Lost && f.Confirmation != checkup.Gone {
					f.cause.repaired(e, f, done)
				}
			}
			e.leaveOutAllLate(done)
		}
		isNew := func(i int) bool { return !before[i] && e.Outcomes[i].Failure == class && !done[i] }
		if !slices.ContainsFunc(e.Measured, isNew) {
			continue
		}
		l := newLocaliser(e, class, done)
		var given []*candidate
		known := len(x.Found)
		for _, f := range x.Found {
			if f.cause != nil && f.cause.l.class == class && f.Confirmation != checkup.Gone && !f.doubted() {
				given = append(given, l.same(f.cause))
			}
		}
		for _, c := range x.Undecided {
			if c.verdict == checkup.Fail && (c.Limit == checkup.LimitLoss) == (class == judge.Lost) {
				given = append(given, l.same(&candidate{place: c.place, narrowing: c.narrowing, component: c}))
			}
		}
		chosen := l.cover(slices.DeleteFunc(given, func(c *candidate) bool { return c == nil }))
		fresh, claimed := map[*candidate][]int{}, map[int32]bool{}
		claim := func(c *candidate, pairs []int32) {
			for _, i := range pairs {
				if at := l.all[i].at; isNew(at) && !claimed[i] {
					claimed[i] = true
					fresh[c] = append(fresh[c], at)
				}
			}
		}
		for _, c := range chosen {
			claim(c, c.newly)
		}
		for _, c := range chosen {
			claim(c, c.explained) // what a cause newly explained that was dropped as superfluous
		}
		for _, c := range chosen {
			if len(fresh[c]) == 0 {
				continue
			}
			same := func(f *Found) bool {
				return f.cause != nil && f.cause.l.class == class && f.cause.same(c) && !f.gone() && !f.doubted()
			}
			if at := slices.IndexFunc(x.Found[:known], same); at >= 0 {
				f := x.Found[at]
				f.Pairs = slices.Compact(slices.Sorted(slices.Values(slices.Concat(f.Pairs, fresh[c]))))
				continue
			}
			add(c.found(nil))
		}
	}
	return added
}

// leaveOutAllLate leaves out pairs that pass a limit on the delay although each of their delays is above it. They pass
// only because the delays are so few, so they are no exceptions of a cause that delays. In the first look they need not
// be left out: there, the pairs of a component are tested together, and they fail with the others.
func (e *Evidence) leaveOutAllLate(done []bool) {
	for _, l := range limits(e.Worksheet.Expect, judge.Slow) {
		for _, i := range e.Measured {
			o := &e.Outcomes[i]
			if o.Verdict == checkup.Pass && len(o.RTTs) > 0 && l.lateOf(o) == len(o.RTTs) {
				done[i] = true
			}
		}
	}
}

// doubted reports whether the finding is of a component that a further look did not confirm: it explains no pair that
// fails by itself.
func (f *Found) doubted() bool { return f.Component != nil && f.Component.verdict == checkup.Undecided }

// same reports whether two candidates are the same cause.
func (c *candidate) same(d *candidate) bool {
	return c.cause == d.cause && c.subject == d.subject && c.narrow == d.narrow && c.flows == d.flows
}

// same finds the cause in another index; nil if it has no such place.
func (l *localiser) same(c *candidate) *candidate {
	if p := l.find(c.place); p != nil {
		return &candidate{l: l, place: p, narrowing: c.narrowing, flows: c.flows, component: c.component}
	}
	return nil
}
