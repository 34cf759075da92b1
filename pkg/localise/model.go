// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
)

const (
	// The most findings that are listed; the last one sums up the rest. Nobody reads more.
	maxFindings = 10
	// The most single pairs of nodes that are findings of their own.
	maxPairs = 3
)

// Evidence is the measured outcomes of a check, by source and target. Its methods
// name an outcome by its index in Outcomes. Unmeasured outcomes are evidence neither
// for nor against a cause.
type Evidence struct {
	Worksheet  *checkup.Worksheet
	Attributes []judge.Attribute
	// Outcomes of every expected pair, measured or not.
	Outcomes []judge.Outcome
	// Measured lists the measured ones in the worksheet's order, From and To those of
	// each source and of each target.
	Measured []int
	From, To [][]int
}

// NewEvidence indexes the outcomes of a judgement.
func NewEvidence(j *judge.Judgement) *Evidence {
	w := j.Worksheet
	e := &Evidence{
		Worksheet: w, Attributes: j.Attributes, Outcomes: j.Outcomes,
		From: make([][]int, len(w.Sources)), To: make([][]int, len(w.Targets)),
	}
	for i := range e.Outcomes {
		o := &e.Outcomes[i]
		if o.Verdict == checkup.Unmeasured {
			continue
		}
		e.Measured = append(e.Measured, i)
		e.From[o.Pair.Source] = append(e.From[o.Pair.Source], i)
		e.To[o.Pair.Target] = append(e.To[o.Pair.Target], i)
	}
	return e
}

// Source of an outcome.
func (e *Evidence) Source(i int) checkup.Endpoint {
	return e.Worksheet.Sources[e.Outcomes[i].Pair.Source]
}

// Target of an outcome.
func (e *Evidence) Target(i int) checkup.Endpoint {
	return e.Worksheet.Targets[e.Outcomes[i].Pair.Target]
}

// Fails reports whether an outcome failed.
func (e *Evidence) Fails(i int) bool { return e.Outcomes[i].Verdict == checkup.Fail }

// Failed returns the outcomes that failed.
func (e *Evidence) Failed(of []int) []int {
	return slices.DeleteFunc(slices.Clone(of), func(i int) bool { return !e.Fails(i) })
}

// AllFail reports whether there are outcomes, and each of them failed.
func (e *Evidence) AllFail(of []int) bool { return len(of) > 0 && len(e.Failed(of)) == len(of) }

// Ends counts the sources and targets of outcomes.
func (e *Evidence) Ends(of []int) (sources, targets int) {
	s, t := map[int]bool{}, map[int]bool{}
	for _, i := range of {
		s[e.Outcomes[i].Pair.Source], t[e.Outcomes[i].Pair.Target] = true, true
	}
	return len(s), len(t)
}

// SourceNames of outcomes, each once, in the order of the outcomes.
func (e *Evidence) SourceNames(of []int) []string {
	return each(of, func(i int) string { return e.Source(i).Name() })
}

// TargetNames of outcomes, each once, in the order of the outcomes.
func (e *Evidence) TargetNames(of []int) []string {
	return each(of, func(i int) string { return e.Target(i).Name() })
}

// SourceNodes of outcomes, each once, in the order of the outcomes.
func (e *Evidence) SourceNodes(of []int) []string {
	return each(of, func(i int) string { return e.Source(i).Node })
}

// TargetNode is the node that the targets of outcomes are on; empty if they are on several or on none.
func (e *Evidence) TargetNode(of []int) string {
	nodes := each(of, func(i int) string { return e.Target(i).Node })
	if len(nodes) != 1 {
		return ""
	}
	return nodes[0]
}

func each(of []int, name func(int) string) []string {
	var names []string
	for _, i := range of {
		if n := name(i); !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names
}

// Found is a finding with the failed outcomes that it explains.
type Found struct {
	checkup.Finding
	Pairs []int
	// Component is set if the pairs fail only together; nil if they fail each.
	Component *Component
	// Describe fills in what only listed findings need, such as evidence that is costly
	// to compute; nil if Finding is complete.
	Describe func(*checkup.Finding)

	cause *candidate // nil for other kinds than a mesh
}

func (f *Found) describe() checkup.Finding {
	f.settle()
	return f.Finding
}

// settle describes a finding, once.
func (f *Found) settle() {
	if f.Describe != nil {
		f.Describe(&f.Finding)
		f.Describe = nil
	}
}

// List counts the pairs that each finding explains, and those that no other explains. The
// finding that explains most is the first. Findings beyond maxFindings are summed up in one.
func List(found []*Found) []checkup.Finding {
	times := map[int]int{}
	for _, f := range found {
		for _, i := range f.Pairs {
			times[i]++
		}
	}
	for _, f := range found {
		f.Explains, f.OnlyThis = len(f.Pairs), 0
		for _, i := range f.Pairs {
			if times[i] == 1 {
				f.OnlyThis++
			}
		}
	}
	found = slices.Clone(found)
	slices.SortStableFunc(found, func(a, b *Found) int {
		return cmp.Compare(b.Explains, a.Explains)
	})
	listed := found
	if len(listed) > maxFindings {
		listed = listed[:maxFindings-1]
	}
	var list []checkup.Finding
	for _, f := range listed {
		list = append(list, f.describe())
	}
	if rest := found[len(listed):]; len(rest) > 0 {
		list = append(list, further(rest))
	}
	return list
}

// joinPairs makes one finding of those that are single pairs of nodes, if they are more than
// maxPairs. Those that explain most are named.
func joinPairs(found []*Found) []*Found {
	single := func(f *Found) bool { return f.Cause == checkup.CausePair }
	var pairs []*Found
	for _, f := range found {
		if single(f) {
			pairs = append(pairs, f)
		}
	}
	if len(pairs) <= maxPairs {
		return found
	}
	slices.SortStableFunc(pairs, func(a, b *Found) int { return cmp.Compare(len(b.Pairs), len(a.Pairs)) })
	joined := &Found{Finding: checkup.Finding{
		Cause: checkup.CausePair, Subject: fmt.Sprintf("%d pairs of nodes", len(pairs)),
	}}
	joined.Confirmation = together(pairs)
	explained := map[int]bool{}
	for _, f := range pairs {
		for _, i := range f.Pairs {
			if !explained[i] {
				explained[i] = true
				joined.Pairs = append(joined.Pairs, i)
			}
		}
	}
	joined.Describe = func(f *checkup.Finding) {
		for i, p := range pairs {
			one := p.describe()
			if i == 0 {
				f.Message = fmt.Sprintf("%s, worst: %s", f.Subject, one.Message)
			}
			if i == maxNames {
				f.For = append(f.For, fmt.Sprintf("and %d more", len(pairs)-i))
				break
			}
			f.For = append(f.For, one.Message)
		}
	}
	return append(slices.DeleteFunc(slices.Clone(found), single), joined)
}

// together is what a further look found of several findings: the worst.
func together(found []*Found) checkup.Confirmation {
	for _, c := range []checkup.Confirmation{checkup.Confirmed, checkup.NotConfirmed, checkup.NotMadeAgain, checkup.Gone} {
		if slices.ContainsFunc(found, func(f *Found) bool { return f.Confirmation == c }) {
			return c
		}
	}
	return checkup.NotLookedAt
}

// further sums up the findings that are not listed. All of them are named. Only the first is described: a description
// is costly.
func further(rest []*Found) checkup.Finding {
	first := rest[0].describe()
	f := checkup.Finding{
		Cause: first.Cause, Subject: checkup.Count(len(rest), "more finding"), Confirmation: together(rest),
	}
	explained := map[int]bool{}
	for _, r := range rest {
		if r.Cause != f.Cause {
			f.Cause = checkup.CauseNetwork
		}
		f.OnlyThis += r.OnlyThis
		if len(f.Rest) < checkup.MaxRest {
			f.Rest = append(f.Rest, r.String())
			if r.cause != nil {
				f.Concerns(r.cause.concerned()...)
			}
		}
		for _, i := range r.Pairs {
			explained[i] = true
		}
	}
	f.Explains = len(explained)
	f.Message = fmt.Sprintf("%s, the first of them: %s", f.Subject, first.Message)
	return f
}
