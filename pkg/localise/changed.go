// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
)

// Difference is what became worse since earlier runs, and how.
type Difference struct {
	// Class is judge.Slow for delays, and judge.Lost for losses.
	Class judge.Failure
	// Changed says of each outcome whether it became worse.
	Changed []bool
	// Of sums up the change of some outcomes, by their indexes.
	Of func(outcomes []int) *checkup.Change
}

// Verb of what became worse.
func (d *Difference) Verb() string {
	if d.Class == judge.Lost {
		return "lose more"
	}
	return "are slower"
}

// verbs of what is explained and of what is not.
func (l *localiser) verbs() (fail, pass string) {
	switch {
	case l.difference == nil:
		return "fail", "pass"
	case l.class == judge.Lost:
		return l.difference.Verb(), "do not"
	default:
		return l.difference.Verb(), "are not"
	}
}

// canCompare reports whether an outcome can be compared with earlier runs: it was measured, did not fail, and the
// measurement is one of delays and losses.
func canCompare(j *judge.Judgement, o *judge.Outcome) bool {
	return o.Verdict != checkup.Unmeasured && o.Verdict != checkup.Fail && !j.Worksheet.ConnectivityOnly(o.Pair)
}

// Judgement returns a copy of the judgement in which failed what became worse, with its change as the cause, and all
// else that can be compared passed. The rest is unmeasured: other findings are about failures.
func (d *Difference) Judgement(j *judge.Judgement) *judge.Judgement {
	copied := &judge.Judgement{Worksheet: j.Worksheet, Attributes: j.Attributes, Outcomes: slices.Clone(j.Outcomes)}
	for i := range copied.Outcomes {
		switch o := &copied.Outcomes[i]; {
		case !canCompare(j, o):
			o.Verdict, o.Failure = checkup.Unmeasured, 0
		case d.Changed[i]:
			o.Verdict, o.Failure, o.Carried = checkup.Fail, d.Class, o.Direction
			o.Cause.Message = InWords(d.Of([]int{i}))
		default:
			o.Verdict, o.Failure = checkup.Pass, 0
		}
	}
	return copied
}

// ExplainChange explains the outcomes that became worse by the fewest causes, as Explain explains failures. It does not
// change the judgement.
func ExplainChange(j *judge.Judgement, d *Difference) []checkup.Finding {
	l := newLocaliser(NewEvidence(d.Judgement(j)), d.Class, make([]bool, len(j.Outcomes)))
	l.difference = d
	x := &Explanation{}
	for _, c := range l.cover(nil) {
		f := c.found(nil)
		f.Change = d.Of(f.Pairs)
		x.Found = append(x.Found, f)
	}
	return x.Findings()
}
