// SPDX-License-Identifier: Apache-2.0

package history

import (
	"math"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// DriftAlarms is the highest probability that a run without any change has a false alarm of drift: all tests share it
// (Bonferroni). A step has that of Regression.Runs.
const DriftAlarms = 1e-3

// PairGroup is a single pair: it has no digest.
const PairGroup Group = "pair"

// Change is a group, or a pair, that is worse than in earlier runs, in one of its values.
type Change struct {
	// Key names the group; Probe is as in Pairs.Probes. A pair has the group PairGroup, and the names of its source and
	// its target.
	Key
	// Limit is LimitP50 or LimitP90, in microseconds, or LimitLoss, a share from 0 to 1.
	Limit checkup.Limit
	// Usual is the median of the earlier runs, and Now the value of this one. Of a drift they are the values at both ends
	// of the line through the days.
	Usual, Now float64
	// Least is the least value now that is a change, less what the history does not know of it.
	Least float64
	// Days is the time over which a drift grew; 0 for a step.
	Days int
}

// Comparison says what is worse in a run than in those before it.
type Comparison struct {
	// Runs is the number of earlier runs with which the newest one was compared, and Days that of earlier days with one
	// run each. Either is below Regression.Runs if the history is too short; nothing was compared then.
	Runs, Days int
	// Changes by a step, and those by a drift.
	Changes []Change

	rows, daily *rows
}

// Compare compares the pairs of a run, which ended at the given time, with the runs of h, which does not have it. It is
// pure. docs/regression.md has the tests and what they assume.
func (h *History) Compare(check string, now *Pairs, at time.Time, r checkup.Regression) *Comparison {
	c := &Comparison{}
	now = now.at(joinNodes(h.Nodes, now.uids))
	c.step(h.before(check), check, now, r)
	c.drift(h.days(check, at), check, now, at, r)
	return c
}

// past is an earlier run of a check.
type past struct {
	at        time.Time
	pairs     *Pairs
	regressed bool
}

func (h *History) pasts(check string) []past {
	var all []past
	for i := range h.Runs {
		if c := h.Runs[i].check(check); c != nil && c.Pairs != nil && c.Pairs.groups != nil {
			all = append(all, past{h.Runs[i].Finished, c.Pairs, c.Regressed})
		}
	}
	return all
}

// before returns the newest runs, oldest first, without those that are known to be worse: the last ones, and any two or
// more in succession. A single one stays, because chance alone makes such runs: without all of them, the rest would be
// too good, and the next false alarm more likely.
func (h *History) before(check string) []past {
	all := h.pasts(check)
	all = all[max(0, len(all)-keepPairs):]
	worse := func(i int) bool { return i >= 0 && i < len(all) && all[i].regressed }
	var kept []past
	for i := range all {
		if !worse(i) || i+1 < len(all) && !worse(i-1) && !worse(i+1) {
			kept = append(kept, all[i])
		}
	}
	return kept
}

// days returns the last run of each day before that of at, oldest first.
func (h *History) days(check string, at time.Time) []past {
	var kept []past
	for _, p := range h.pasts(check) {
		if dayOf(p.at) >= dayOf(at) {
			continue
		}
		if n := len(kept); n > 0 && dayOf(kept[n-1].at) == dayOf(p.at) {
			kept = kept[:n-1]
		}
		kept = append(kept, p)
	}
	return kept[max(0, len(kept)-keepDays):]
}

// least is the least value that is as much worse than the usual one as the plan demands.
func least(r checkup.Regression, l checkup.Limit, usual float64) float64 {
	if l == checkup.LimitLoss {
		return usual + float64(r.MinLoss)/100
	}
	return max(r.MinFactor*usual, usual+float64(time.Duration(r.MinDelay).Microseconds()))
}

// half is the demand on a drift of a node that is at one end of another one: see withEnds.
func half(r checkup.Regression) checkup.Regression {
	r.MinFactor, r.MinDelay, r.MinLoss = math.Sqrt(r.MinFactor), r.MinDelay/2, r.MinLoss/2
	return r
}

// step compares this run with earlier ones, all values at once. The score of a run is its worst value of all groups and
// pairs. Each is measured from its own median, in units of its own spread, and each family of values is scaled to the
// same usual worst one. If nothing changed, this run is as likely as any other to be the one with the highest score, of
// n, the second highest, ... of n: an exact test at level k/n, with any noise and any dependence between values of one
// run (Westfall and Young, Resampling-Based Multiple Testing, 1993, section 2.3, on the maximum as the statistic; Vovk,
// Gammerman and Shafer, Algorithmic Learning in a Random World, 2005, section 2.2, on ranks of exchangeable scores).
func (c *Comparison) step(earlier []past, check string, now *Pairs, r checkup.Regression) {
	if now.groups == nil {
		return
	}
	// Single pairs take part if the runs that have them are enough, and then these runs are compared.
	detailed := slices.DeleteFunc(slices.Clone(earlier), func(p past) bool { return p.pairs.detail == nil })
	var of *rows
	if len(detailed) >= r.Runs {
		of = rowsOf(check, detailed, now)
	}
	if of != nil && slices.ContainsFunc(of.all, func(w row) bool { return w.Group == PairGroup && w.tested(r.Runs) }) {
		earlier = detailed
	} else if of = nil; len(earlier) >= r.Runs {
		of = rowsOf(check, earlier, now)
	}
	if c.Runs = len(earlier); of == nil {
		return
	}
	c.rows = of
	scores := of.scores(r.Runs)
	last := scores[of.n-1]
	slices.Sort(scores[:of.n-1])
	allowed := of.n/(r.Runs+1) - 1
	if allowed < 0 || last <= scores[of.n-2-allowed] {
		return
	}
	most := scores[of.n-2-allowed]
	var sure, likely []Change
	for _, i := range of.above(most/2, r.Runs) {
		w := &of.all[i]
		change := Change{Key: w.Key, Limit: w.limit, Usual: w.usual(), Now: w.now()}
		above := most
		if of.score(w, of.n-1) <= most {
			above /= 2
		}
		change.Least = max(least(r, w.limit, change.Usual), valueOf(w.limit, w.center+above*of.scaled(w)))
		switch {
		case change.Now < change.Least:
		case above == most:
			sure = append(sure, change)
		default:
			likely = append(likely, change)
		}
	}
	c.Changes = append(c.Changes, withEnds(sure, likely)...)
	for i := range c.Changes {
		c.Changes[i].Least *= 1 - 2*Accuracy
	}
}

// withEnds adds to changes that are sure those that are likely, if they are of the same value of a node that is an end
// of what is sure. What is sure decides whether there is an alarm; the others only show where, and need less evidence.
// A high 90th percentile is no reason for it: one slow pair of a node is enough.
func withEnds(sure, likely []Change) []Change {
	type end struct {
		name  string
		limit checkup.Limit
	}
	ends := map[end]bool{}
	for _, c := range sure {
		if c.Group != Zones && c.Limit != checkup.LimitP90 {
			ends[end{c.From, c.Limit}], ends[end{c.To, c.Limit}] = true, true
		}
	}
	for _, c := range likely {
		if (c.Group == Out || c.Group == In) && ends[end{c.From + c.To, c.Limit}] {
			sure = append(sure, c)
		}
	}
	return sure
}

// leastKnown is the least number of earlier runs from which it is known what is usual.
const leastKnown = 3

// Usual returns the usual value of a group or, with PairGroup, of a pair, in the unit of a Change; false if too few of
// the compared runs measured it. It knows the medians and losses of pairs.
func (c *Comparison) Usual(k Key, l checkup.Limit) (float64, bool) {
	w := c.rows.find(k, l)
	if w == nil {
		return 0, false
	}
	return w.usual(), true
}

// First returns the value in the first third of the days, as Usual.
func (c *Comparison) First(k Key, l checkup.Limit) (float64, bool) {
	w := c.daily.find(k, l)
	if w == nil {
		return 0, false
	}
	var early []byte
	for _, code := range w.codes {
		if code > 0 {
			early = append(early, code)
		}
	}
	return (&row{limit: l, codes: append(early[:len(early)/3:len(early)/3], 0)}).usual(), true
}
