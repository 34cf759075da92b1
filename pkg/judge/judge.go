// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Rules are the rules that differ between kinds of check. The zero value is for pods that
// are measured by agents.
type Rules struct {
	// Reporter names what measures, in the singular: "agent" (also if empty), "guest".
	Reporter string
	// Absent returns the cause in worksheet or roster that prevents the measurement of a
	// pair. If Absent is nil, only the roster's entry of the target is read.
	Absent func(checkup.Pair) *checkup.Cause
	// Pools says that the kind tests too what its pairs show together. The tests of single
	// pairs in one look then get a quarter of the check's Share, as Level says; otherwise all of it.
	Pools bool
	// LooksAgain says that a further look follows. A jitter above its limit is then undecided
	// in the first look; there is no exact test of it.
	LooksAgain bool
}

// Failure is the way in which a pair failed. The zero value means that it did not fail.
type Failure uint8

const (
	FlowLost  Failure = iota + 1 // some source ports are never answered, and others are
	Lost                         // no answer, or more loss than the limit allows
	Slow                         // a delay or its variation exceeded a limit
	Reached                      // the target must be unreachable, and was reached
	Rewritten                    // the target saw another source address than the source's own
)

// Outcome is the verdict and the measurement of one expected pair.
type Outcome struct {
	Pair checkup.Pair
	// Attribute is the index of family, transport and size in Judgement.Attributes.
	Attribute int
	Verdict   checkup.Verdict
	// Cause is set unless the pair passed. Breaches are the limits that a failed pair
	// broke, and those that an undecided one may have broken.
	Cause    checkup.Cause
	Breaches []checkup.Breach
	Failure  Failure
	// Numbers of the observation; zero if unmeasured.
	Sent, Received, Duplicates, Reordered int
	// RTTs are in microseconds, in the order of sending.
	RTTs []int64
	// Flows are the measurements by source port, if the agent listed them; see
	// Observation.Flows. Dead are those of them that are never answered, although others are,
	// beyond doubt: the pair fails with FlowLost.
	Flows, Dead []checkup.Flow
	// SeenAs is the source address that the target saw if it was not the source's own; empty if it
	// was, or if Witnessed is not set: then the target did not report it, or need not.
	SeenAs    string
	Witnessed bool
	// Excused says that the responder itself may have caused the loss of a measured pair.
	Excused bool
	// Arrived is the number of requests that arrived, by the target's own count. It is valid
	// only if Counted is set: for udp pairs without spoiled measurements.
	Arrived int
	Counted bool
	// Direction in which packets of this pair were lost, by the target's count, whatever the
	// verdict.
	Direction checkup.Direction
	// Carried is the Direction of a pair with Failure Lost, or the direction of the udp pairs
	// of the same source and target.
	Carried checkup.Direction
	// Broken says that the worksheet has no such source or target.
	Broken bool
	// Folded is the sum of the pair's Results, if they are credible, for every verdict;
	// nil for pairs without Results.
	Folded *Folded
	// Look is what a further look says; nil without one, and for pairs that gave no reason
	// for it.
	Look *Look
}

// Why returns the cause of an outcome that did not pass; nil if it passed.
func (o *Outcome) Why() *checkup.Cause {
	if o.Verdict == checkup.Pass {
		return nil
	}
	cause := o.Cause
	cause.Message = cmp.Or(cause.Message, "no reason was given")
	return &cause
}

// Judgement holds every expected pair of a worksheet with its outcome.
type Judgement struct {
	Worksheet *checkup.Worksheet
	// Outcomes in the order of Worksheet.Pairs.
	Outcomes []Outcome
	// Attributes are the families, transports and sizes of the pairs.
	Attributes []Attribute

	rules    Rules
	roster   *checkup.Roster
	evidence *evidence
	replaced int // measurements of outcomes that a further look replaced
	// dead is the chance up to which a silent source port is dead.
	dead float64
}

// Pairs judges every expected pair of a worksheet; doc.go has the rules. It is pure,
// does not depend on the order of the record's observations and receptions, and
// does not keep or change the record. A nil roster or record means that nothing
// was set up or collected: every pair is unmeasured.
func Pairs(w *checkup.Worksheet, roster *checkup.Roster, record *checkup.Record, rules Rules) *Judgement {
	rules.Reporter = cmp.Or(rules.Reporter, "agent")
	j := &Judgement{Worksheet: w, Attributes: attributesOf(w), rules: rules, roster: roster, evidence: collect(w, record)}
	j.Outcomes = make([]Outcome, len(j.evidence.pairs))
	for from, end := range j.evidence.assignments() {
		for i := from; i < end; i++ {
			o := &j.Outcomes[i]
			o.Pair, o.Attribute = j.evidence.pairs[i], i-from
			t := o.Pair.Target
			if some := t >= 0 && t < len(w.Targets) && (w.Targets[t].Peer != nil || w.Targets[t].Hosts != nil); some ||
				w.Again != nil {
				o.Attribute = slices.Index(j.Attributes, Attribute{o.Pair.Family, o.Pair.Transport, o.Pair.Size})
			}
			if cause := j.unmeasured(i, o); cause != nil {
				o.unmeasured(*cause)
			} else {
				j.credible(i, o)
			}
		}
	}
	level := j.level()
	j.dead = j.deadFlow(level)
	for from, end := range j.evidence.assignments() {
		for i := from; i < end; i++ {
			if o := &j.Outcomes[i]; o.Verdict != checkup.Unmeasured {
				j.judge(i, o, level)
			}
		}
		carry(j.Outcomes[from:end])
	}
	return j
}

// Report returns the parts of a report that all kinds have: counts, verdict, coverage,
// and the notes of setup and agents. The gate's MaxUnmeasured decides between pass and
// inconclusive.
func (j *Judgement) Report(gate checkup.Gate) checkup.CheckReport {
	w := j.Worksheet
	r := checkup.CheckReport{
		Name: w.Check, Kind: w.Kind, Noun: "pair", Reporter: j.rules.Reporter, Notes: slices.Clone(w.Warnings),
	}
	r.Sent = j.replaced
	for i := range j.Outcomes {
		if seen := j.evidence.observed[i]; seen != nil {
			r.Sent += made(seen)
		}
		r.Counts = Sum(r.Counts, Counted(j.Outcomes[i].Verdict))
	}
	r.Verdict = Verdict(r.Counts, gate.MaxUnmeasured)
	r.Coverage = j.coverage()
	r.Agents = j.agentNotes()
	return r
}

// Find returns the outcome of a pair; nil if the worksheet does not expect it.
func (j *Judgement) Find(p checkup.Pair) *Outcome {
	if at, ok := j.evidence.position(p); ok {
		return &j.Outcomes[at]
	}
	return nil
}

// Assignments yields the outcomes of each assignment of the worksheet, in its order.
func (j *Judgement) Assignments(yield func([]Outcome) bool) {
	for from, end := range j.evidence.assignments() {
		if from < end && !yield(j.Outcomes[from:end]) {
			return
		}
	}
}

// judge determines the outcome of one pair that has a credible observation. level is that of each test.
func (j *Judgement) judge(at int, o *Outcome, level float64) {
	j.limits(j.evidence.observed[at], o, level)
	cause := j.dropped(at, o)
	if cause != nil && !o.lossy() && (o.Verdict != checkup.Pass || !j.Worksheet.Expect.Unreachable) {
		o.Excused, cause = true, nil
	}
	if cause == nil && o.Verdict != checkup.Fail {
		cause = j.few(at, o)
	}
	if cause == nil && o.Verdict != checkup.Fail && o.Folded != nil {
		cause = j.incomplete(at)
	}
	if cause == nil && o.Verdict == checkup.Pass && !o.Witnessed && j.Worksheet.Witnesses(o.Pair) {
		cause = &checkup.Cause{Stage: checkup.StageCollect,
			Message: "the target did not report the source address that it saw: " +
				"its responder, or the agent, is of an older version, or does not answer on this connection"}
	}
	switch {
	case cause != nil:
		o.unmeasured(*cause)
	case !j.Worksheet.Expect.Unreachable:
		if seen := j.evidence.observed[at]; o.Pair.Transport == checkup.UDP && seen.Spoiled == 0 &&
			j.evidence.counted[o.Pair.Target] {
			o.Arrived = j.evidence.reception[at]
			o.Counted = o.Received <= o.Arrived && o.Arrived <= o.Sent
		}
		if o.Received < o.Sent {
			o.Direction = j.direction(at)
		}
	}
}

// lossy reports whether an outcome fails or is undecided because of a loss.
func (o *Outcome) lossy() bool {
	return o.Failure == Lost || slices.ContainsFunc(o.Breaches, func(b checkup.Breach) bool {
		return b.Limit == checkup.LimitLoss || b.Limit == checkup.LimitFlow
	})
}

// unmeasured makes an outcome unmeasured: its numbers do not count.
func (o *Outcome) unmeasured(cause checkup.Cause) {
	*o = Outcome{
		Pair:      o.Pair,
		Attribute: o.Attribute,
		Verdict:   checkup.Unmeasured,
		Cause:     cause,
		Broken:    o.Broken,
		Folded:    o.Folded,
	}
}

// unmeasured says why a pair has no credible observation; nil if it has one.
func (j *Judgement) unmeasured(at int, o *Outcome) *checkup.Cause {
	p := o.Pair
	if p.Source >= len(j.Worksheet.Sources) || p.Target < 0 || p.Target >= len(j.Worksheet.Targets) {
		o.Broken = true
		return &checkup.Cause{
			Stage: checkup.StageSetup, Message: "invalid worksheet: the pair's source or target does not exist",
		}
	}
	if cause := j.absent(p); cause != nil {
		return cause
	}
	s, seen := &j.evidence.sources[p.Source], j.evidence.observed[at]
	untrusted := func(stage checkup.Stage, reason checkup.Reason, format string, args ...any) *checkup.Cause {
		return &checkup.Cause{
			Stage: stage, Reason: reason, Message: "the " + j.rules.Reporter + " " + fmt.Sprintf(format, args...),
		}
	}
	for _, c := range s.controls {
		if (c.Family == p.Family || p.Family == checkup.AnyIPFamily) && !c.OK {
			return untrusted(checkup.StageControl, "", "got its control pair %q wrong (%s), so it is not trusted",
				c.Name, cmp.Or(c.Message, "it gave no details"))
		}
	}
	if seen == nil && !j.evidence.conflict[at] {
		return j.silent(s)
	}
	if n := s.unrequested(); n > 0 {
		return untrusted(checkup.StageCollect, checkup.ReasonUnrequested, "reported %s, so it is not trusted",
			checkup.Count(n, "unrequested pair"))
	}
	if j.evidence.conflict[at] {
		return untrusted(checkup.StageCollect, checkup.ReasonConflict, "reported this pair twice, with different results")
	}
	if seen.Unmeasured != nil {
		return seen.Unmeasured
	}
	family := p.Family
	if family == checkup.AnyIPFamily && len(s.controls) > 0 {
		// Any family with control pairs; the loop above found all of them right.
		family = s.controls[0].Family
		for _, f := range checkup.IPFamilies {
			if s.uncontrolled(f) == "" {
				family = f
			}
		}
	}
	if missing := s.uncontrolled(family); missing != "" {
		return untrusted(checkup.StageControl, "", "reported no control pair %q, so it is not trusted", missing)
	}
	return nil
}

// silent says why there is no observation of a pair of the source.
func (j *Judgement) silent(s *source) *checkup.Cause {
	cause := &checkup.Cause{Stage: checkup.StageCollect}
	switch {
	case s.cause != nil:
		return s.cause
	case !s.recorded:
		cause.Message = "the record has no data of the source"
	case len(s.ends) == 0:
		cause.Message = fmt.Sprintf("the %s did not finish", j.rules.Reporter)
	default:
		cause.Message = fmt.Sprintf("the %s exited without reporting this pair", j.rules.Reporter)
	}
	return cause
}

// absent says why the target could not be measured.
func (j *Judgement) absent(p checkup.Pair) *checkup.Cause {
	if j.rules.Absent != nil {
		return j.rules.Absent(p)
	}
	if j.roster == nil || p.Target >= len(j.roster.Targets) {
		return &checkup.Cause{Stage: checkup.StageSetup, Message: "the target is not on the roster"}
	}
	entry := j.roster.Targets[p.Target]
	if entry.Cause != nil {
		return entry.Cause
	}
	if j.Worksheet.Targets[p.Target].Peer == nil && entry.Addresses[p.Family] == "" {
		return &checkup.Cause{Stage: checkup.StageSetup, Message: fmt.Sprintf(
			"the target has no %s address; if no pod of this cluster has one, remove it from the plan's ipFamilies", p.Family)}
	}
	return nil
}
