// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"github.com/checkplan/checkplan/pkg/checkup"
)

// Look is what a further look says about an outcome of the first.
type Look struct {
	// First is the verdict of the first look, and FirstCause its cause.
	First      checkup.Verdict
	FirstCause checkup.Cause
	// Made says that the further look measured the pair. If First is unmeasured, only that look did.
	Made bool
	// Together says that the pair is one of those that the first look doubted together, and that the further look fails
	// together.
	Together bool
	After    checkup.Duration
}

// HeldUp reports whether an outcome is unmeasured because the agent or its target was held up: a further look may
// measure the pair.
func (j *Judgement) HeldUp(o *Outcome) bool {
	at, expected := j.evidence.position(o.Pair)
	return expected && o.Verdict == checkup.Unmeasured && o.Cause.Stage == checkup.StageSelf &&
		j.evidence.observed[at] != nil && j.evidence.observed[at].Spoiled > 0
}

// Merge replaces the outcomes that a further look measured: it decides on fresh data alone.
// A pair that passed the first look, and was measured with others that are undecided
// together, changes only if it fails. A pair that failed or is undecided and was not
// measured again stays as it is, and so does an unmeasured one that was not HeldUp.
//
// Merge is called after the pairs of both looks were tested together. Report, Unit and what
// localises causes then see one judgement.
func (j *Judgement) Merge(further *Judgement, after checkup.Duration) {
	for i := range j.Outcomes {
		o := &j.Outcomes[i]
		look := &Look{First: o.Verdict, FirstCause: o.Cause, After: after}
		k, asked := further.evidence.position(o.Pair)
		if !asked || further.Outcomes[k].Verdict == checkup.Unmeasured {
			if o.Verdict == checkup.Fail || o.Verdict == checkup.Undecided {
				o.Look = look
			}
			continue
		}
		again := further.Outcomes[k]
		if o.Verdict == checkup.Unmeasured && !j.HeldUp(o) || o.Verdict == checkup.Pass && again.Verdict != checkup.Fail {
			continue
		}
		look.Made = true
		again.Attribute, again.Look = o.Attribute, look
		*o = again
		j.replaced += made(j.evidence.observed[i])
		j.evidence.observed[i] = further.evidence.observed[k]
		if n, counted := further.evidence.reception[k]; counted {
			j.evidence.reception[i] = n
		} else {
			delete(j.evidence.reception, i)
		}
	}
	for from, end := range j.evidence.assignments() {
		carry(j.Outcomes[from:end])
	}
}

// Confirmation says what the further look found about an outcome. A failure that only the further look could measure,
// or that only it found, is not confirmed by it.
func (o *Outcome) Confirmation() checkup.Confirmation {
	switch {
	case o.Look == nil:
		return checkup.NotLookedAt
	case !o.Look.Made, o.Look.First == checkup.Unmeasured && o.Verdict != checkup.Pass,
		o.Look.First == checkup.Pass && o.Verdict == checkup.Fail && !o.Look.Together:
		return checkup.NotMadeAgain
	case o.Verdict == checkup.Fail:
		return checkup.Confirmed
	case o.Verdict == checkup.Undecided:
		return checkup.NotConfirmed
	case o.Verdict == checkup.Pass && o.Look.First == checkup.Fail:
		return checkup.Gone
	default:
		return checkup.NotLookedAt
	}
}

// looked adds to a unit what the further look found.
func (o *Outcome) looked(u *checkup.Unit) {
	u.Confirmation = o.Confirmation()
	if u.Confirmation == checkup.NotLookedAt || !o.Look.Made {
		return
	}
	u.After = o.Look.After
	if u.Confirmation == checkup.Gone {
		u.Cause = &o.Look.FirstCause
	}
}
