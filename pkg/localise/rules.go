// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
)

// Ruled is the evidence of a kind that explains failed pairs by a list of rules: each is tried on what those before it
// left over, until it explains nothing more.
type Ruled struct {
	*Evidence
	explained map[int]bool
	same      func(i int) string
	// passes has the nodes from which something passes, by its name.
	passes map[string]map[string]bool
}

// NewRuled returns the evidence of a judgement. same names what other nodes measure, too.
func NewRuled(j *judge.Judgement, same func(i int) string) *Ruled {
	r := &Ruled{Evidence: NewEvidence(j), explained: map[int]bool{}, same: same, passes: map[string]map[string]bool{}}
	for _, i := range r.Measured {
		if r.Outcomes[i].Verdict == checkup.Pass {
			at := same(i)
			if r.passes[at] == nil {
				r.passes[at] = map[string]bool{}
			}
			r.passes[at][r.Source(i).Node] = true
		}
	}
	return r
}

// Explain returns the findings of so many rules. best returns the finding of a rule that explains most failed pairs;
// nil if it explains none of those that are left.
func (r *Ruled) Explain(rules int, best func(rule int) *Found) []checkup.Finding {
	var found []*Found
	for rule := range rules {
		for {
			f := best(rule)
			if f == nil {
				break
			}
			for _, i := range f.Pairs {
				r.explained[i] = true
			}
			found = append(found, f)
		}
	}
	return List(found)
}

// Rule looks for one kind of cause among the failed pairs of Services that no earlier rule explains: a group of
// measured pairs of which enough fail. X is the evidence of a kind.
type Rule[X OfServices] struct {
	Cause checkup.FindingCause
	// Of returns the name of the group that a pair is in; false if it is in none.
	Of func(x X, i int) (string, bool)
	// Nodes and Services are the least number of nodes, and of Services, that the failed pairs of a group have.
	Nodes, Services int
	// Share is the least share of the group's pairs that fail, without those that are explained.
	Share float64
	// Elsewhere demands that more than half of the failed pairs of a group pass from another node.
	Elsewhere bool
	// Also reports a further failed pair that the group explains; nil for none.
	Also    func(x X, group string, i int) bool
	Message func(x X, group string, failed []int) string
}

// OfServices is the evidence of a kind whose pairs lead to Services: a Ruled, and what only the kind knows.
type OfServices interface {
	Self() *Ruled
	// Service names the Service of a pair, and Ways says how pairs fail.
	Service(i int) string
	Ways(failed []int) string
	// Idle reports whether a pair passes because nothing answers, which also happens to one that does not work at all.
	Idle(i int) bool
	// For returns what else is evidence for a finding of a cause: the lines after how many pairs fail and, with a rule's
	// Elsewhere, how many of them pass elsewhere.
	For(cause checkup.FindingCause, failed []int, elsewhere int) []string
}

// Self is for types that embed Ruled.
func (r *Ruled) Self() *Ruled { return r }

// ByServices returns the findings of rules.
func ByServices[X OfServices](x X, rules []Rule[X]) []checkup.Finding {
	return x.Self().Explain(len(rules), func(rule int) *Found { return best(x, rules[rule]) })
}

// best returns the finding of a rule that explains most failed pairs; nil if no group fits the rule.
func best[X OfServices](x X, rule Rule[X]) *Found {
	r := x.Self()
	groups := r.Groups(func(i int) (string, bool) { return rule.Of(x, i) })
	var best *Found
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		measured := groups[name]
		failed := r.Failed(measured)
		if len(failed) == 0 || best != nil && len(failed) <= len(best.Pairs) {
			continue
		}
		share, elsewhere := float64(len(failed))/float64(len(measured)), 0
		if rule.Elsewhere {
			elsewhere = len(r.Elsewhere(failed))
		}
		if len(r.SourceNodes(failed)) < rule.Nodes || len(Once(failed, x.Service)) < rule.Services || share < rule.Share ||
			rule.Elsewhere && 2*elsewhere <= len(failed) {
			continue
		}
		f := &Found{Pairs: failed}
		f.Cause, f.Subject, f.Message = rule.Cause, name, rule.Message(x, name, failed)
		switch rule.Cause {
		case checkup.CauseNode, checkup.CauseSource:
			f.Concerns(name) // such a rule groups pairs by node
		case checkup.CausePair:
			f.Concerns(append(r.SourceNodes(failed), r.TargetNode(failed))...)
		case checkup.CauseTarget:
			f.Concerns(r.TargetNode(failed))
		}
		f.For = append(f.For, fmt.Sprintf("%d of %s fail: %s",
			len(failed), checkup.Count(len(measured), "measured pair"), x.Ways(failed)))
		f.For = append(f.For, x.For(rule.Cause, failed, elsewhere)...)
		if rule.Also != nil {
			more := slices.DeleteFunc(r.Failed(r.Measured), func(i int) bool {
				return r.explained[i] || slices.Contains(failed, i) || !rule.Also(x, name, i)
			})
			if len(more) > 0 {
				f.For = append(f.For, fmt.Sprintf("%s through Services fail, too", checkup.Count(len(more), "pair")))
				f.Pairs = slices.Sorted(slices.Values(slices.Concat(failed, more)))
			}
		}
		f.Confirmation = r.Again(f.Pairs)
		against := slices.DeleteFunc(slices.Clone(measured), func(i int) bool { return r.Fails(i) || x.Idle(i) })
		if n := len(against); n > 0 {
			f.Against = append(f.Against, OthersDoNot(n))
		}
		best = f
	}
	return best
}

// Explained reports whether a rule has explained a pair already.
func (r *Ruled) Explained(i int) bool { return r.explained[i] }

// Groups returns the measured pairs that no rule has explained, by the name of the group that of gives them; pairs of
// which it says false are in none.
func (r *Ruled) Groups(of func(i int) (string, bool)) map[string][]int {
	groups := map[string][]int{}
	for _, i := range r.Measured {
		if name, ok := of(i); ok && !r.explained[i] {
			groups[name] = append(groups[name], i)
		}
	}
	return groups
}

// Elsewhere returns those of the pairs of which the same passes from another node.
func (r *Ruled) Elsewhere(pairs []int) []int {
	return slices.DeleteFunc(slices.Clone(pairs), func(i int) bool {
		nodes := r.passes[r.same(i)]
		return len(nodes) == 0 || len(nodes) == 1 && nodes[r.Source(i).Node]
	})
}

// Again is Confirmed if any of the failed pairs failed again.
func (r *Ruled) Again(failed []int) checkup.Confirmation {
	of := checkup.NotLookedAt
	for _, i := range failed {
		switch r.Outcomes[i].Confirmation() {
		case checkup.Confirmed:
			return checkup.Confirmed
		case checkup.NotMadeAgain:
			of = checkup.NotMadeAgain
		}
	}
	return of
}

// How says in which ways pairs fail, the most frequent first.
func (r *Ruled) How(failed []int, way func(*judge.Outcome) string) string {
	n := map[string]int{}
	for _, i := range failed {
		n[way(&r.Outcomes[i])]++
	}
	ways := slices.SortedFunc(maps.Keys(n), func(a, b string) int {
		return cmp.Or(cmp.Compare(n[b], n[a]), cmp.Compare(a, b))
	})
	if len(ways) == 1 {
		return ways[0]
	}
	for i, w := range ways {
		ways[i] = fmt.Sprintf("%d %s", n[w], w)
	}
	return strings.Join(ways, ", ")
}

// OthersDoNot says of how many pairs the failure of a group is not true: "1 other does not fail".
func OthersDoNot(n int) string {
	if n == 1 {
		return "1 other does not fail"
	}
	return fmt.Sprintf("%d others do not fail", n)
}

// Way says how a pair fails. silent is what it says of one without any answer or reason.
func Way(o *judge.Outcome, silent string) string {
	switch {
	case o.Failure == judge.Reached:
		return "connects and must not"
	case o.Failure == judge.Slow:
		return "slow"
	case o.Received > 0:
		return "fails at times"
	case o.Cause.Reason == checkup.ReasonRefused:
		return "refused"
	case o.Cause.Reason == checkup.ReasonTimedOut:
		return "timed out"
	case o.Cause.Reason == checkup.ReasonNoRoute:
		return "unreachable"
	}
	return silent
}

// Once returns the names of pairs, each once and sorted.
func Once(pairs []int, name func(i int) string) []string {
	var all []string
	for _, i := range pairs {
		all = append(all, name(i))
	}
	slices.Sort(all)
	return slices.Compact(all)
}
