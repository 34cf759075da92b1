// SPDX-License-Identifier: Apache-2.0

package history

import (
	"iter"
	"math/bits"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/stats"
)

// newest holds the last result of every (source, target) pair of the current members.
type newest struct {
	measured, failing int
	// expected is the number of pairs of the newest run, measured or not.
	expected int
	// used counts, by the number of the run, the pairs whose last result is of that run.
	used map[int]int
	// runs that used counts, oldest first, and the names of the pair that was measured first of all.
	runs           []*Run
	source, target string
	// seen has a bit for each source and target, by their positions in members: those that were measured. fresh has the
	// pairs that only the newest run measured.
	seen, fresh []uint64
	members     *Pairs
	// keep has the numbers of further runs that are needed: a member was missing in them.
	keep map[int]bool
}

// newest goes from the newest run to the oldest, and takes each pair once. A member that is missing in a run was not
// there before either: all that is older than its return is about another one.
func (h *History) newest(check string) *newest {
	n := &newest{used: map[int]int{}, keep: map[int]bool{}}
	var sources, targets map[Member]int
	for i := len(h.Runs) - 1; i >= 0; i-- {
		r := &h.Runs[i]
		c := r.check(check)
		if c == nil || c.Pairs == nil {
			continue
		}
		p := c.Pairs
		first := n.members == nil
		if first {
			n.members = p
			n.seen = make([]uint64, (len(p.Sources)*len(p.Targets)+63)/64)
			n.fresh = make([]uint64, len(n.seen))
			sources, targets = positions(p.Sources), positions(p.Targets)
		}
		before := len(sources) + len(targets)
		from, to := current(sources, p.Sources), current(targets, p.Targets)
		n.keep[r.N] = len(sources)+len(targets) < before
		verdicts := verdictReader{b: p.verdicts}
		for s, t := range p.each() {
			if first {
				n.expected++
			}
			verdict := verdicts.worst(len(p.Probes))
			a, b := from[s], to[t]
			if a < 0 || b < 0 || verdict == codeUnmeasured {
				continue
			}
			bit := a*len(n.members.Targets) + b
			word, mask := bit/64, uint64(1)<<(bit%64)
			if n.seen[word]&mask != 0 {
				n.fresh[word] &^= mask
				continue
			}
			n.seen[word] |= mask
			if first {
				n.fresh[word] |= mask
			}
			n.measured++
			if verdict == codeFail {
				n.failing++
			}
			if n.used[r.N]++; n.used[r.N] == 1 {
				n.runs = append(n.runs, r)
				n.source, n.target = p.Sources[s].Name, p.Targets[t].Name
			}
		}
	}
	slices.Reverse(n.runs)
	return n
}

func positions(members []Member) map[Member]int {
	at := make(map[Member]int, len(members))
	for i, m := range members {
		at[m] = i
	}
	return at
}

// current returns the position of each member among those that are still there, or -1; it removes those that are
// missing in members.
func current(alive map[Member]int, members []Member) []int {
	at := make([]int, len(members))
	here := make(map[Member]bool, len(members))
	for i, m := range members {
		here[m] = true
		position, ok := alive[m]
		if !ok {
			position = -1
		}
		at[i] = position
	}
	for m := range alive {
		if !here[m] {
			delete(alive, m)
		}
	}
	return at
}

// confidence of Cumulative.FailingUpperBound.
const confidence = 0.95

// possible is the number of possible pairs in the newest run of the check.
func (h *History) possible(check string) int {
	for i := len(h.Runs) - 1; i >= 0; i-- {
		if c := h.Runs[i].check(check); c != nil && c.Possible > 0 {
			return c.Possible
		}
	}
	return 0
}

// Cumulative returns the coverage of a check by all runs together; nil if no run has pairs of it.
func (h *History) Cumulative(check string) *checkup.Cumulative {
	n := h.newest(check)
	if n.members == nil {
		return nil
	}
	c := &checkup.Cumulative{
		Runs: len(n.runs), Measured: n.measured, Possible: max(h.possible(check), n.measured), Failing: n.failing,
	}
	if n.measured == 0 {
		return c
	}
	c.Since = n.runs[0].Started
	sample := n.expected < c.Possible
	switch {
	case c.Measured == c.Possible:
		c.Oldest, c.OldestAt = n.source+" -> "+n.target, n.runs[0].Finished
		c.FailingUpperBound = new(float64(n.failing) / float64(c.Possible))
	case sample:
		c.FailingUpperBound = new(stats.Upper(n.failing, n.measured, confidence))
		fallthrough
	default:
		c.Oldest = n.missing(sample)
	}
	gained := 0
	for _, word := range n.fresh {
		gained += bits.OnesCount64(word)
	}
	if gained > 0 {
		left := (c.Possible - c.Measured + gained - 1) / gained
		c.RunsLeft = &left
	} else if c.Measured == c.Possible {
		c.RunsLeft = new(int)
	}
	return c
}

// missing names a pair that was never measured: one that the newest run expected or, of a sample, any.
func (n *newest) missing(sample bool) string {
	for s, t := range n.members.each() {
		if bit := s*len(n.members.Targets) + t; n.seen[bit/64]&(1<<(bit%64)) == 0 {
			return n.members.Sources[s].Name + " -> " + n.members.Targets[t].Name
		}
	}
	if !sample {
		return ""
	}
	for s, source := range n.members.Sources {
		for t, target := range n.members.Targets {
			bit := s*len(n.members.Targets) + t
			if source.node() != target.node() && n.seen[bit/64]&(1<<(bit%64)) == 0 {
				return source.Name + " -> " + target.Name
			}
		}
	}
	return ""
}

// PairResult is what one run found out about a pair.
type PairResult struct {
	Run     string    `json:"run"`
	At      time.Time `json:"at"`
	Check   string    `json:"check"`
	Source  string    `json:"source"`
	Target  string    `json:"target"`
	Results []Result  `json:"results"`
}

// Pair returns what the listed runs found out about a pair, oldest first. Source and target are names, or those of the
// nodes: then it may be several pairs.
func (h *History) Pair(source, target string) []PairResult {
	var all []PairResult
	for i := range h.Runs {
		for _, c := range h.Runs[i].Checks {
			if c.Pairs == nil {
				continue
			}
			wanted := func(s, t *Member) bool { return s.is(source) && t.is(target) }
			for ends, results := range c.Pairs.results(wanted) {
				all = append(all, PairResult{
					h.Runs[i].Name, h.Runs[i].Finished, c.Name, ends[0].Name, ends[1].Name, slices.Clone(results),
				})
			}
		}
	}
	return all
}

// Measured is what one run found out about one pair. Nodes are those of source and target.
type Measured struct {
	Check, Source, SourceNode, Target, TargetNode string
	// Results of the probes. They are overwritten by those of the next pair.
	Results []Result
}

// Measured yields what a listed run, by its UID, found out about its pairs. A run that is not listed has none.
func (h *History) Measured(uid string) iter.Seq[Measured] {
	return func(yield func(Measured) bool) {
		i := slices.IndexFunc(h.Runs, func(r Run) bool { return r.UID == uid })
		if i < 0 {
			return
		}
		for _, c := range h.Runs[i].Checks {
			if c.Pairs == nil {
				continue
			}
			for ends, results := range c.Pairs.results(func(_, _ *Member) bool { return true }) {
				s, t := ends[0], ends[1]
				if !yield(Measured{c.Name, s.Name, s.node(), t.Name, t.node(), results}) {
					return
				}
			}
		}
	}
}
