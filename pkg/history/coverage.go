// SPDX-License-Identifier: Apache-2.0

package history

import (
	"math/bits"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/stats"
)

// newest holds the last result of every (source, target) pair of the current members.
type newest struct {
	measured, failing int
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

// Cumulative returns the coverage of a check by all runs together, with possible pairs in the full mesh; nil if no run
// has pairs of it.
func (h *History) Cumulative(check string, possible int) *checkup.Cumulative {
	n := h.newest(check)
	if n.members == nil {
		return nil
	}
	c := &checkup.Cumulative{
		Runs: len(n.runs), Measured: n.measured, Possible: max(possible, n.measured), Failing: n.failing,
	}
	if n.measured == 0 {
		return c
	}
	c.Since = n.runs[0].Started
	bound := float64(n.failing) / float64(c.Possible)
	if c.Measured < c.Possible {
		bound = stats.Upper(n.failing, n.measured, confidence)
		c.Oldest = n.missing()
	} else {
		c.Oldest, c.OldestAt = n.source+" -> "+n.target, n.runs[0].Finished
	}
	c.FailingUpperBound = &bound
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

// missing names a pair that was never measured.
func (n *newest) missing() string {
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
	Results []Result  `json:"results"`
}

// Pair returns what the listed runs found out about a pair, by names of source and target, oldest first.
func (h *History) Pair(source, target string) []PairResult {
	var all []PairResult
	for i := range h.Runs {
		for _, c := range h.Runs[i].Checks {
			if c.Pairs == nil {
				continue
			}
			if results := c.Pairs.of(source, target); results != nil {
				all = append(all, PairResult{h.Runs[i].Name, h.Runs[i].Finished, c.Name, results})
			}
		}
	}
	return all
}
