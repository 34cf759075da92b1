// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Receptions is what the responder of one target has counted. It is not safe for use
// by several goroutines at once.
type Receptions struct {
	w        *checkup.Worksheet
	target   int
	received map[checkup.Pair]checkup.Reception
	begun    bool // its first line arrived
	partly   bool // it says that it did not count everything
}

// NewReceptions returns what the responder of a target has counted before it reported
// anything.
func NewReceptions(w *checkup.Worksheet, target int) *Receptions {
	return &Receptions{w: w, target: target, received: map[checkup.Pair]checkup.Reception{}}
}

// maxTries is how often an agent makes each measurement at the most: spoiled ones are repeated (see pkg/probe).
const maxTries = 5

// Take takes one message of the responder, and reports whether it makes sense: whether it
// is its start, or a reception of an expected pair of the responder's target that can be, or
// one of an earlier look, which is ignored. Counts only grow, so that the highest of a pair
// is the latest.
func (r *Receptions) Take(m checkup.Message) bool {
	if m.Start != nil {
		r.begun = r.begun || m.Start.Source == -1
		return m.Start.Source == -1
	}
	if m.Reception != nil && m.Reception.Incomplete {
		r.partly = true
	}
	if m.Reception != nil && m.Reception.Look >= 0 && m.Reception.Look < r.w.Look {
		return true
	}
	if m.Reception != nil && r.w.IsService(m.Reception.Target) { // the agent reports who answers for a Service
		return true
	}
	if m.Reception == nil || m.Reception.Packets < 0 || m.Reception.Dropped < 0 || m.Reception.Look != r.w.Look ||
		!r.expects(m.Reception.Pair) || m.Reception.Packets > maxTries*r.w.Measurements(m.Reception.Pair) {
		return false
	}
	reported, known := *m.Reception, r.received[m.Reception.Pair]
	reported.Packets, reported.Dropped = max(reported.Packets, known.Packets), max(reported.Dropped, known.Dropped)
	r.received[reported.Pair] = reported
	return true
}

// Complete reports whether the responder counted everything and its log was read from its
// beginning: kubelets rotate logs, and the counts of some pairs are then gone.
func (r *Receptions) Complete() bool { return r.begun && !r.partly }

// All returns the receptions in the order of their pairs.
func (r *Receptions) All() []checkup.Reception {
	all := make([]checkup.Reception, 0, len(r.received))
	for _, reception := range r.received {
		all = append(all, reception)
	}
	slices.SortFunc(all, func(a, b checkup.Reception) int { return a.Pair.Compare(b.Pair) })
	return all
}

// expects reports whether a pair is expected, and one of the target.
func (r *Receptions) expects(p checkup.Pair) bool {
	if p.Target != r.target || p.Source < 0 || p.Source >= len(r.w.Assignments) ||
		!slices.Contains(r.w.Assignments[p.Source], p.Target) {
		return false
	}
	for expected := range r.w.PairsBetween(p.Source, p.Target) {
		if expected == p {
			return true
		}
	}
	return false
}
