// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"iter"
	"math"
	"reflect"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// evidence is a record, indexed by the expected pairs of its worksheet.
type evidence struct {
	w       *checkup.Worksheet
	sources []source
	// pairs are the expected pairs, in the worksheet's order
	pairs []checkup.Pair
	// spans are the start indexes of the assignments in pairs, followed by the end of the
	// last one; first are the start indexes of the sources in spans
	spans []int
	first []int
	// by position in pairs
	observed  []*checkup.Observation
	conflict  map[int]bool
	folded    map[int]*Folded
	reception map[int]int
	// counted has the targets whose responder's count is known
	counted map[int]bool
	// full is the number of requests that the responder of a target dropped, by family
	full map[side]int
	// most is the largest number of udp requests that can have been sent to a target, by
	// family; nil until it is asked for
	most map[side]int
	// strays are observations and results that name no source of the worksheet
	strays, strayResults int
}

// side is a target in one family.
type side struct {
	target int
	family checkup.IPFamily
}

// source is the record of one source of the worksheet.
type source struct {
	recorded bool
	cause    *checkup.Cause
	ends     []*checkup.AgentEnd
	controls []checkup.Control
	observed int // observations
	results  int // results, each counted once
	alien    int // pairs in the record that the worksheet does not assign to it
	// discarded are the unrequested pairs, and conflicts the conflicting reports,
	// that the collector left out of the record
	discarded, conflicts int
	// uncounted are the pairs with more answers than their targets counted requests
	uncounted int
}

// unrequested is the number of unrequested pairs that the source reported.
func (s *source) unrequested() int { return s.alien + s.discarded }

// controlNames are the control pairs that an agent must report for each family.
var controlNames = []string{"self", "closed"}

// uncontrolled returns the name of a control pair of the family that the agent did
// not report; empty if it reported them all.
func (s *source) uncontrolled(f checkup.IPFamily) string {
	for _, name := range controlNames {
		if !slices.ContainsFunc(s.controls, func(c checkup.Control) bool { return c.Family == f && c.Name == name }) {
			return name
		}
	}
	return ""
}

// collect indexes a record; nil is an empty one.
func collect(w *checkup.Worksheet, record *checkup.Record) *evidence {
	e := &evidence{
		w: w, sources: make([]source, len(w.Assignments)), first: make([]int, len(w.Assignments)),
		pairs: make([]checkup.Pair, 0, w.CountPairs()), conflict: map[int]bool{}, folded: map[int]*Folded{},
		reception: map[int]int{}, counted: map[int]bool{}, full: map[side]int{},
	}
	for s, targets := range w.Assignments {
		e.first[s] = len(e.spans)
		for _, t := range targets {
			e.spans = append(e.spans, len(e.pairs))
			e.pairs = slices.AppendSeq(e.pairs, w.PairsBetween(s, t))
		}
	}
	e.spans = append(e.spans, len(e.pairs))
	e.observed = make([]*checkup.Observation, len(e.pairs))
	if record == nil {
		return e
	}
	for i := range record.Sources {
		e.source(&record.Sources[i])
	}
	for i := range record.Observations {
		e.observation(&record.Observations[i])
	}
	e.fold(record.Results)
	for _, t := range record.Counted {
		e.counted[t] = true
	}
	for _, r := range record.Receptions {
		if at, ok := e.position(r.Pair); ok {
			e.reception[at] = max(e.reception[at], r.Packets)
		}
		to := side{r.Target, r.Family}
		e.full[to] = max(e.full[to], r.Dropped)
	}
	return e
}

func (e *evidence) source(s *checkup.Source) {
	if s.Source < 0 || s.Source >= len(e.sources) {
		return
	}
	known := &e.sources[s.Source]
	known.recorded = true
	known.controls = append(known.controls, s.Controls...)
	if known.cause == nil {
		known.cause = s.Cause
	}
	if s.End != nil {
		known.ends = append(known.ends, s.End)
	}
	known.discarded += max(0, s.Unrequested)
	known.conflicts += len(s.Conflicts)
	for _, p := range s.Conflicts {
		if at, ok := e.position(p); ok {
			e.conflict[at] = true
		}
	}
}

func (e *evidence) observation(o *checkup.Observation) {
	if o.Source < 0 || o.Source >= len(e.sources) {
		e.strays++
		return
	}
	e.sources[o.Source].observed++
	at, ok := e.position(o.Pair)
	switch {
	case !ok:
		e.sources[o.Source].alien++
	case e.observed[at] == nil:
		e.observed[at] = o
	case !reflect.DeepEqual(e.observed[at], o):
		e.conflict[at] = true
		if made(o) > made(e.observed[at]) { // the result must not depend on their order
			e.observed[at] = o
		}
	}
}

// made is the number of measurements that were made, credible or not. An agent may claim any number: more than any plan
// orders counts as that many, so that sums do not overflow.
func made(o *checkup.Observation) int {
	return max(0, min(o.Sent, math.MaxInt32)) + max(0, min(o.Spoiled, math.MaxInt32))
}

// assignments yields the start and end of each assignment in pairs.
func (e *evidence) assignments() iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		for span, end := range e.spans[1:] {
			if !yield(e.spans[span], end) {
				return
			}
		}
	}
}

// position finds a pair among the expected ones.
func (e *evidence) position(p checkup.Pair) (int, bool) {
	if p.Source < 0 || p.Source >= len(e.w.Assignments) {
		return 0, false
	}
	targets := e.w.Assignments[p.Source]
	t, ok := slices.BinarySearch(targets, p.Target)
	if !ok {
		if t = slices.Index(targets, p.Target); t < 0 {
			return 0, false
		}
	}
	span := e.first[p.Source] + t
	for at := e.spans[span]; at < e.spans[span+1]; at++ {
		if e.pairs[at] == p {
			return at, true
		}
	}
	return 0, false
}
