// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
)

// Difference is what became worse since earlier runs, and how.
type Difference struct {
	// Class is judge.Slow for delays, and judge.Lost for losses.
	Class judge.Failure
	// Changed says of each outcome whether it became worse.
	Changed []bool
	// Of sums up the change of some outcomes, by their indexes; Message puts it into words.
	Of      func(outcomes []int) *checkup.Change
	Message func(*checkup.Change) string
}

// changed is the Difference that a localiser explains.
type changed struct{ message func(*checkup.Change) string }

// verbs of what is explained and of what is not.
func (l *localiser) verbs() (fail, pass string) {
	switch {
	case l.changed == nil:
		return "fail", "pass"
	case l.class == judge.Lost:
		return "lose more", "do not"
	default:
		return "are slower", "are not"
	}
}

// ExplainChange explains the outcomes that became worse by the fewest causes, as Explain explains failures. Those that
// failed are evidence neither for nor against a cause, because other findings are about them. It does not change the
// judgement.
func ExplainChange(j *judge.Judgement, d Difference) []checkup.Finding {
	copied := judge.Judgement{
		Worksheet: j.Worksheet, Attributes: j.Attributes, Outcomes: make([]judge.Outcome, len(j.Outcomes)),
	}
	done := make([]bool, len(j.Outcomes))
	var all []int
	for i, o := range j.Outcomes {
		copied.Outcomes[i] = o
		c := &copied.Outcomes[i]
		switch {
		case o.Verdict == checkup.Unmeasured:
			continue
		case o.Verdict == checkup.Fail:
			done[i] = true
			continue
		case d.Changed[i]:
			c.Verdict, c.Failure, c.Carried = checkup.Fail, d.Class, o.Direction
			all = append(all, i)
		default:
			c.Verdict, c.Failure = checkup.Pass, 0
		}
	}
	if len(all) == 0 {
		return nil
	}
	l := newLocaliser(NewEvidence(&copied), d.Class, done)
	l.changed = &changed{d.Message}
	x := &Explanation{}
	for _, c := range l.cover(nil) {
		f := c.found(nil)
		f.Change = d.Of(f.Pairs)
		x.Found = append(x.Found, f)
	}
	findings := x.Findings()
	for i := range findings {
		if findings[i].Change == nil { // it sums up others
			findings[i].Change = d.Of(all)
		}
	}
	return findings
}
