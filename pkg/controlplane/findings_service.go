// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
)

// behind returns the measured pairs to the endpoints behind a target: those of the
// source or, if it measured none, those of other sources that are not to blame.
func (b *blamer) behind(source, target int) (pairs []int, others bool) {
	peer := b.Worksheet.Targets[target].Peer
	if peer == nil {
		return nil, false
	}
	var own, of []int
	for _, t := range slices.Sorted(slices.Values(peer.Backends)) {
		if t < 0 || t >= len(b.To) || t == target {
			continue
		}
		for _, i := range b.To[t] {
			if b.Outcomes[i].Pair.Source == source {
				own = append(own, i)
			}
			if !b.bad[b.Outcomes[i].Pair.Source] {
				of = append(of, i)
			}
		}
	}
	if len(own) > 0 {
		return own, false
	}
	return of, len(of) > 0
}

// service reports whether a target is a Service's address with measured endpoints.
// Without these, the path and the endpoints cannot be distinguished.
func (b *blamer) service(target int) bool {
	pairs, _ := b.behind(-1, target)
	return len(pairs) > 0
}

// shares counts, of the failed measurements of a pair to a Service's address, those
// that the endpoints explain (component) and those that the path explains.
type shares struct {
	component, path int
	// behind are the pairs to endpoints that failed during outage, answered those
	// that did not. outage is the longest that the path explains, else the longest.
	behind, answered []int
	outage           checkup.Outage
	slow             bool // it is slow, and has no outage
	others           bool // endpoints were measured from other sources
	unknown          int  // endpoints without data
}

// weigh evaluates a failed pair to a Service's address, outage by outage.
func (b *blamer) weigh(i int) shares {
	o := &b.Outcomes[i]
	pairs, others := b.behind(o.Pair.Source, o.Pair.Target)
	p := shares{others: others}
	known := map[int]bool{}
	for _, k := range pairs {
		known[b.Outcomes[k].Pair.Target] = true
	}
	for _, t := range b.Worksheet.Targets[o.Pair.Target].Peer.Backends {
		if !known[t] {
			p.unknown++
		}
	}
	if len(b.outages(i)) == 0 {
		p.slow = true
		for _, k := range pairs {
			if b.Fails(k) {
				p.behind = append(p.behind, k)
			} else {
				p.answered = append(p.answered, k)
			}
		}
		if len(p.answered) == 0 && len(p.behind) > 0 {
			p.component = 1
		} else if len(p.answered) > 0 {
			p.path = 1
		}
		return p
	}
	var blamed bool // p has an outage that the path explains
	type window struct {
		from, to time.Time
		chance   float64
	}
	likely := map[window]bool{} // cached: outages often share a window
	for _, outage := range b.outages(i) {
		var behind, answered []int
		var during window
		for _, k := range pairs {
			switch with := b.overlapping(b.outages(k), outage); {
			case len(with) > 0:
				behind = append(behind, k)
				if from := with[0].Start; during.from.IsZero() || from.Before(during.from) {
					during.from = from
				}
				if to := with[len(with)-1].Last; to.After(during.to) {
					during.to = to
				}
			case b.answers(k, outage):
				answered = append(answered, k)
			}
		}
		path := len(answered) > 0
		if path && len(behind) > 0 {
			during.chance = float64(len(behind)) / float64(len(behind)+len(answered))
			if _, known := likely[during]; !known {
				likely[during] = b.likely(i, during.from, during.to, during.chance)
			}
			path = !likely[during] // if likely, the failed endpoints explain the outage
		}
		switch {
		case path:
			p.path += outage.Failures
		case len(behind) > 0:
			p.component += outage.Failures
		}
		if path && !blamed || path == blamed && outage.Duration() >= p.outage.Duration() {
			p.behind, p.answered, p.outage = behind, answered, outage
			blamed = blamed || path
		}
	}
	return p
}

// answers reports whether a pair was measured during an outage of another, with a
// tolerance of one interval. The caller knows that it did not fail then.
func (b *blamer) answers(i int, during checkup.Outage) bool {
	return len(b.results(i, during.Start, b.end(during))) > 0
}

// results of a pair from one time to another, with a tolerance of one interval.
func (b *blamer) results(i int, from, to time.Time) []*checkup.Result {
	t := b.Outcomes[i].Folded
	if t == nil {
		return nil
	}
	first, _ := slices.BinarySearchFunc(
		t.Results,
		from.Add(-b.slack),
		func(r *checkup.Result, at time.Time) int { return r.At.Compare(at) },
	)
	behind, _ := slices.BinarySearchFunc(t.Results, to.Add(b.slack), func(r *checkup.Result, at time.Time) int {
		if r.At.After(at) {
			return 1
		}
		return -1
	})
	return t.Results[first:behind]
}

// byChance is the least probability of an address's failures with which its failed
// endpoints explain them, if each measurement went to a random endpoint. kube-proxy
// selects endpoints at random.
const byChance = 0.01

// likely reports whether the failures of a pair from one time to another are
// probable (byChance), if each measurement fails with this probability.
func (b *blamer) likely(i int, from, to time.Time, chance float64) bool {
	results, failed := b.results(i, from, to), 0
	for _, r := range results {
		if r.Failure != nil {
			failed++
		}
	}
	return atLeast(len(results), failed, chance) >= byChance
}

// atLeast is the binomial probability of x or more hits in n tries.
func atLeast(n, x int, chance float64) float64 {
	sum := 0.0
	for k := x; k <= n; k++ {
		sum += math.Exp(judge.LogChoose(n, k) + float64(k)*math.Log(chance) + float64(n-k)*math.Log1p(-chance))
	}
	return sum
}

// accounted reports whether a failed pair is to a Service's address and findings on
// its endpoints explain it.
func (b *blamer) accounted(i int) bool {
	if !b.Fails(i) || !b.service(b.Outcomes[i].Pair.Target) {
		return false
	}
	p := b.weigh(i)
	return p.component > p.path && slices.ContainsFunc(p.behind, func(k int) bool { return b.explained[k] })
}

// services explains the failed pairs to Services' addresses: by the findings on
// their endpoints, else by the path.
func (b *blamer) services() {
	var nodes []string
	from := map[string][]toService{} // by node
	for t := range b.To {
		if !b.service(t) {
			continue
		}
		var ways []way
		for _, i := range b.To[t] {
			if !b.Fails(i) || b.explained[i] {
				continue
			}
			p := b.weigh(i)
			switch {
			case p.component == 0 && p.path == 0:
				// No data about the endpoints at that time.
			case p.component > p.path:
				b.through(i, p)
			default:
				ways = append(ways, way{i, p})
			}
		}
		// One finding if the path fails from every node, else one for each node, whose
		// paths to other Services may fail too.
		every := b.good(b.To[t])
		if len(b.SourceNodes(every)) > 1 && len(ways) == len(every) {
			b.way(t, ways)
			continue
		}
		var groups [][]way
		for _, f := range ways {
			node := b.Source(f.pair).Node
			k := slices.IndexFunc(groups, func(g []way) bool { return b.Source(g[0].pair).Node == node })
			if k < 0 {
				groups = append(groups, []way{f})
			} else {
				groups[k] = append(groups[k], f)
			}
		}
		for _, g := range groups {
			node := b.Source(g[0].pair).Node
			if _, ok := from[node]; !ok {
				nodes = append(nodes, node)
			}
			from[node] = append(from[node], toService{t, g})
		}
	}
	for _, node := range nodes {
		var pairs []int
		for _, to := range from[node] {
			for _, w := range to.ways {
				pairs = append(pairs, w.pair)
			}
		}
		if list := from[node]; len(list) > 1 && node != "" && b.together(pairs) {
			b.rules(node, list, pairs)
			continue
		}
		for _, to := range from[node] {
			b.way(to.target, to.ways)
		}
	}
}

// toService is the failed pairs to one Service's address that the path explains.
type toService struct {
	target int
	ways   []way
}

// rules blames the service rules of a node for the failed pairs from it to several
// Services' addresses.
func (b *blamer) rules(node string, list []toService, pairs []int) {
	var addresses, proof []string
	var here, elsewhere []int
	for _, to := range list {
		e := b.Worksheet.Targets[to.target]
		addresses = append(addresses, fmt.Sprintf("%s (%s)", e.Name(), e.Peer.Address()))
		proof = append(proof, fmt.Sprintf("%s: %s", e.Name(), b.endpoints(worst(to.ways))))
		same, others := b.same(pairs, b.good(b.To[to.target]))
		here, elsewhere = append(here, same...), append(elsewhere, others...)
	}
	f := checkup.Finding{
		Cause:   checkup.CauseService,
		Subject: fmt.Sprintf("%d addresses from %s", len(list), node),
		Message: fmt.Sprintf(
			"the path to services from %s, such as its service rules: %s; to %s, while endpoints behind them answered",
			node,
			b.effect(pairs),
			checkup.SomeOf(addresses, "address"),
		),
	}
	f.Concerns(node)
	first := fmt.Sprintf("%d of %s to them from %s fail", len(pairs), checkup.Count(len(here), "measured pair"), node)
	if len(elsewhere) > 0 {
		first += fmt.Sprintf("; %d of %d from other nodes pass", len(elsewhere)-b.count(elsewhere), len(elsewhere))
	}
	f.For = append(b.evidence(first, pairs), proof...)
	b.add(f, pairs, nil)
}

// worst is the way with most failed measurements.
func worst(ways []way) shares {
	return slices.MaxFunc(ways, func(a, c way) int {
		return cmp.Or(cmp.Compare(a.path, c.path), cmp.Compare(c.pair, a.pair))
	}).shares
}

// way is a failed pair to a Service's address that the path explains.
type way struct {
	pair int
	shares
}

// way blames the path to a Service's address for some pairs.
func (b *blamer) way(target int, ways []way) {
	pairs := make([]int, len(ways))
	for k := range ways {
		pairs[k] = ways[k].pair
	}
	e := b.Worksheet.Targets[target]
	from, node := "every source", ""
	if nodes := b.SourceNodes(pairs); len(nodes) == 1 {
		node = nodes[0]
		from = cmp.Or(node, b.SourceNames(pairs)[0])
	}
	p := worst(ways) // shown for all
	f := checkup.Finding{
		Cause:   checkup.CauseService,
		Subject: e.Name() + " from " + from,
		Message: fmt.Sprintf(
			"the path to %s (%s) from %s, such as its service rules: %s, while %s",
			e.Name(),
			e.Peer.Address(),
			from,
			b.effect(pairs),
			b.answered(p),
		),
	}
	f.Concerns(node)
	here, elsewhere := b.same(pairs, b.good(b.To[target]))
	first := fmt.Sprintf("%d of %s to it from %s fail", len(pairs), checkup.Count(len(here), "measured pair"), from)
	if len(elsewhere) > 0 {
		first += fmt.Sprintf("; %d of %d from other nodes pass", len(elsewhere)-b.count(elsewhere), len(elsewhere))
	}
	f.For = append(b.evidence(first, pairs), b.endpoints(p))
	if dead := b.TargetNames(p.behind); len(dead) > 0 {
		f.Against = append(
			f.Against,
			fmt.Sprintf("endpoints behind it that failed at an overlapping time: %s", checkup.SomeOf(dead, "target")),
		)
		for _, t := range dead {
			f.Alternatives = append(f.Alternatives, fmt.Sprintf("%s %s", checkup.CauseTarget, t))
		}
		for _, i := range p.behind {
			f.Concerns(b.Target(i).Node)
		}
	}
	if p.component > 0 {
		f.Against = append(
			f.Against,
			fmt.Sprintf(
				"%d of its %d failed measurements overlap with failures of its endpoints",
				p.component,
				p.component+p.path,
			),
		)
	}
	b.add(f, pairs, nil)
}

// same splits pairs into those from the nodes of some pairs, and others.
func (b *blamer) same(some, all []int) (same, others []int) {
	nodes := b.SourceNodes(some)
	for _, i := range all {
		if slices.Contains(nodes, b.Source(i).Node) {
			same = append(same, i)
		} else {
			others = append(others, i)
		}
	}
	return same, others
}

// answered says how many of the endpoints behind a Service's address answered
// while it did not.
func (b *blamer) answered(p shares) string {
	yes := len(b.TargetNames(p.answered))
	return fmt.Sprintf(
		"%d of %s behind it answered",
		yes,
		checkup.Count(yes+len(b.TargetNames(p.behind))+p.unknown, "endpoint"),
	)
}

// endpoints says which endpoints answered, and when.
func (b *blamer) endpoints(p shares) string {
	when := judge.During(p.outage)
	if p.slow {
		when = "at that time"
	}
	s := fmt.Sprintf("%s, %s: %s", when, b.answered(p), checkup.SomeOf(b.TargetNames(p.answered), "endpoint"))
	if p.unknown > 0 {
		s += fmt.Sprintf("; no data about %d", p.unknown)
	}
	if p.others {
		s += "; they were measured from other sources"
	}
	return s
}

// through adds a pair to a Service's address to the findings on the endpoints that
// fail with it; without such a finding it remains unexplained.
func (b *blamer) through(i int, p shares) {
	o := &b.Outcomes[i]
	given := map[*blamed]bool{}
	for _, k := range p.behind {
		for _, f := range b.found {
			if given[f] || !slices.Contains(f.targets, b.Outcomes[k].Pair.Target) && !slices.Contains(f.Pairs, k) {
				continue
			}
			given[f] = true
			b.give(f, i)
			what := "all of its endpoints failed at an overlapping time"
			if len(p.answered) > 0 {
				dead, all := len(b.TargetNames(p.behind)), len(b.TargetNames(slices.Concat(p.behind, p.answered)))
				what = fmt.Sprintf(
					"in %d of %d measurements, as random balancing predicts: %d of its %d endpoints failed",
					o.Sent-o.Received,
					o.Sent,
					dead,
					all,
				)
			}
			line := fmt.Sprintf("the address %s from %s fails too: %s", b.Target(i).Name(), b.Source(i).Name(), what)
			if p.others {
				line += " (measured from other sources)"
			}
			if !slices.Contains(f.For, line) {
				f.For = append(f.For, line)
			}
		}
	}
}
