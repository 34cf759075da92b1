// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// blame explains the failed pairs of a worksheet with Connections; doc.go has the
// rules. Each failed pair is explained by at least one finding.
func blame(w *checkup.Worksheet, outcomes []outcome) []checkup.Finding {
	b := newBlamer(w, outcomes)
	b.find()
	return b.list()
}

// find explains every failed pair, the widest causes first.
func (b *blamer) find() {
	if b.everything() {
		return
	}
	b.components(b.common())
	b.sources()
	b.components(b.remaining())
	b.services()
	b.components(b.mostly())
	b.rest()
}

// blamer is the evidence: the measured pairs of each source and target.
type blamer struct {
	w        *checkup.Worksheet
	outcomes []outcome
	from, to [][]int // measured pairs, by source and by target
	slack    time.Duration
	// explained pairs, and sources that are to blame themselves
	explained []bool
	bad       []bool
	found     []*blamed
}

// blamed is a finding with the pairs that it explains.
type blamed struct {
	checkup.Finding
	pairs []int
	// targets that it blames
	targets []int
}

func newBlamer(w *checkup.Worksheet, outcomes []outcome) *blamer {
	b := &blamer{
		w: w, outcomes: outcomes,
		from: make([][]int, len(w.Sources)), to: make([][]int, len(w.Targets)),
		explained: make([]bool, len(outcomes)), bad: make([]bool, len(w.Sources)),
	}
	for _, p := range w.Probes {
		b.slack = max(b.slack, time.Duration(p.Interval))
	}
	for i := range outcomes {
		o := &outcomes[i]
		if o.verdict == checkup.Unmeasured {
			continue
		}
		b.from[o.pair.Source], b.to[o.pair.Target] = append(b.from[o.pair.Source], i), append(b.to[o.pair.Target], i)
	}
	return b
}

func (b *blamer) fails(i int) bool { return b.outcomes[i].verdict == checkup.Fail }

func (b *blamer) allFail(pairs []int) bool {
	return len(pairs) > 0 && !slices.ContainsFunc(pairs, func(i int) bool { return !b.fails(i) })
}

// ends counts different sources and targets of some pairs.
func (b *blamer) ends(pairs []int) (sources, targets int) {
	s, t := map[int]bool{}, map[int]bool{}
	for _, i := range pairs {
		s[b.outcomes[i].pair.Source], t[b.outcomes[i].pair.Target] = true, true
	}
	return len(s), len(t)
}

// add makes a finding that explains those of the pairs that fail.
func (b *blamer) add(f checkup.Finding, pairs, targets []int) {
	found := &blamed{Finding: f, targets: targets}
	b.found = append(b.found, found)
	for _, i := range pairs {
		b.give(found, i)
	}
}

func (b *blamer) give(f *blamed, pair int) {
	if b.fails(pair) && !slices.Contains(f.pairs, pair) {
		f.pairs = append(f.pairs, pair)
		b.explained[pair] = true
	}
}

// everything explains the case that nothing passes.
func (b *blamer) everything() bool {
	all := slices.Concat(b.from...)
	if sources, targets := b.ends(all); sources < 2 || targets < 2 || !b.allFail(all) {
		return false
	}
	b.add(checkup.Finding{
		Cause: checkup.CauseNetwork, Message: "every connection: " + b.effect(all),
		For: b.evidence(fmt.Sprintf("%d of %s fail", len(all), count(len(all), "measured pair")), all),
	}, all, nil)
	return true
}

// behind is the measured pairs to the endpoints behind a target: those of the
// source, or where it measured none, those of others that are not to blame
// themselves.
func (b *blamer) behind(source, target int) (pairs []int, others bool) {
	peer := b.w.Targets[target].Peer
	if peer == nil {
		return nil, false
	}
	var own, of []int
	for _, t := range slices.Sorted(slices.Values(peer.Backends)) {
		if t < 0 || t >= len(b.to) || t == target {
			continue
		}
		for _, i := range b.to[t] {
			if b.outcomes[i].pair.Source == source {
				own = append(own, i)
			}
			if !b.bad[b.outcomes[i].pair.Source] {
				of = append(of, i)
			}
		}
	}
	if len(own) > 0 {
		return own, false
	}
	return of, len(of) > 0
}

// service reports whether a target is a Service's address behind which something
// was measured. Of others nothing tells the way from the end of it.
func (b *blamer) service(target int) bool {
	pairs, _ := b.behind(-1, target)
	return len(pairs) > 0
}

// together reports whether the failures of the pairs can be one: there is an
// outage of the first with which one of each other overlaps. Pairs that fail
// without an outage, because they are slow, are out of time's reach.
func (b *blamer) together(pairs []int) bool {
	var lists [][]checkup.Outage
	for _, i := range pairs {
		if o := b.outages(i); len(o) > 0 {
			lists = append(lists, o)
		}
	}
	return len(lists) == 0 || slices.ContainsFunc(lists[0], func(first checkup.Outage) bool {
		return !slices.ContainsFunc(lists[1:], func(list []checkup.Outage) bool {
			return len(b.overlapping(list, first)) == 0
		})
	})
}

func (b *blamer) outages(i int) []checkup.Outage {
	if t := b.outcomes[i].told; t != nil {
		return t.Outages
	}
	return nil
}

// overlapping are the outages of a list, oldest first, that share a moment with
// another one, give or take an interval.
func (b *blamer) overlapping(list []checkup.Outage, with checkup.Outage) []checkup.Outage {
	from, _ := slices.BinarySearchFunc(list, with.Start.Add(-b.slack), func(o checkup.Outage, at time.Time) int { return end(o).Compare(at) })
	to := from
	for to < len(list) && list[to].Overlaps(with, b.slack) {
		to++
	}
	return list[from:to]
}

// end of an outage, or when it was last seen.
func end(o checkup.Outage) time.Time {
	if o.End.IsZero() {
		return o.Last
	}
	return o.End
}

// common lists the targets, not Services' addresses, that fail from every source,
// of which there are several.
func (b *blamer) common() []int {
	var targets []int
	for t, pairs := range b.to {
		if sources, _ := b.ends(pairs); sources > 1 && !b.service(t) && b.allFail(pairs) && b.together(pairs) {
			targets = append(targets, t)
		}
	}
	return targets
}

// remaining lists those that fail from every source that is not to blame itself.
// If it is only one, the failure must be one that a path does not make: that a
// connection stands, and nothing or nonsense comes over it.
func (b *blamer) remaining() []int {
	var targets []int
	for t, pairs := range b.to {
		left := b.good(pairs)
		sources, _ := b.ends(left)
		alone := sources == 1 && slices.ContainsFunc(left, func(i int) bool {
			s := b.stage(i)
			return s == checkup.StageHandshake || s == checkup.StageResponse
		})
		known := slices.ContainsFunc(b.found, func(f *blamed) bool { return slices.Contains(f.targets, t) })
		if !known && !b.service(t) && (sources > 1 || alone) && b.allFail(left) && b.together(left) {
			targets = append(targets, t)
		}
	}
	return targets
}

// mostly lists those that fail from more sources than not, of more than one node,
// in an overlapping time: a short outage is not seen by all.
func (b *blamer) mostly() []int {
	var targets []int
	for t, pairs := range b.to {
		left := b.good(pairs)
		fails := slices.DeleteFunc(b.failed(left), func(i int) bool { return b.explained[i] })
		if !b.service(t) && len(b.nodes(fails)) > 1 && 2*len(fails) > len(left) && b.together(fails) {
			targets = append(targets, t)
		}
	}
	return targets
}

// good drops the pairs of sources that are to blame themselves.
func (b *blamer) good(pairs []int) []int {
	return slices.DeleteFunc(slices.Clone(pairs), func(i int) bool { return b.bad[b.outcomes[i].pair.Source] })
}

// stage at which a failed pair fails.
func (b *blamer) stage(i int) checkup.Stage { return b.outcomes[i].cause.Stage }

// components blames targets. Those that are addresses of one pod, or names of one
// address, are one.
func (b *blamer) components(targets []int) {
	same := func(t, u checkup.Endpoint) bool {
		return t.Pod != "" && t.Pod == u.Pod || t.Peer != nil && u.Peer != nil && address(t.Peer) == address(u.Peer)
	}
	var groups [][]int
	for _, t := range targets {
		k := slices.IndexFunc(groups, func(g []int) bool { return same(b.w.Targets[g[0]], b.w.Targets[t]) })
		if k < 0 {
			groups = append(groups, []int{t})
		} else {
			groups[k] = append(groups[k], t)
		}
	}
	for _, group := range groups {
		var pairs, all []int
		var addresses []string
		for _, t := range group {
			all = append(all, b.to[t]...)
			pairs = append(pairs, b.good(b.to[t])...)
			if p := b.w.Targets[t].Peer; p != nil && !slices.Contains(addresses, address(p)) {
				addresses = append(addresses, address(p))
			}
		}
		target := b.w.Targets[group[0]]
		sources, _ := b.ends(pairs)
		f := checkup.Finding{
			Cause: checkup.CauseTarget, Subject: target.Name(),
			Message: fmt.Sprintf("%s, %s: %s", target.Name(), b.where(target, addresses), b.effect(pairs)),
			For:     b.evidence(fmt.Sprintf("%d of %s to it fail, from %s", b.count(all), count(len(all), "measured pair"), some(b.names(b.failed(all)), "source")), pairs),
		}
		if nodes := b.nodes(pairs); len(nodes) == 1 && nodes[0] != "" {
			// From one node alone the way to the target looks like the target.
			f.Alternatives = append(f.Alternatives, fmt.Sprintf("%s %s -> %s", checkup.CausePair, nodes[0], target.Name()))
		}
		if sources > 1 && b.connected(pairs) {
			f.For = append(f.For, "it accepts connections, so the way to it is open")
			f.Alternatives = nil
		}
		if against := b.passing(pairs); against != nil {
			f.Against = against
			for _, node := range b.nodes(b.failed(pairs)) {
				f.Alternatives = append(f.Alternatives, fmt.Sprintf("%s %s -> %s", checkup.CausePair, node, target.Name()))
			}
		}
		b.add(f, all, group)
	}
}

// failed are those of the pairs that fail.
func (b *blamer) failed(pairs []int) []int {
	return slices.DeleteFunc(slices.Clone(pairs), func(i int) bool { return !b.fails(i) })
}

// passing names those of the pairs that pass, in one line; nil if none does.
func (b *blamer) passing(pairs []int) []string {
	var names []string
	for _, i := range pairs {
		if p := b.outcomes[i].pair; !b.fails(i) {
			names = append(names, fmt.Sprintf("%s -> %s", name(b.w.Sources, p.Source), name(b.w.Targets, p.Target)))
		}
	}
	if len(names) == 0 {
		return nil
	}
	s := strings.Join(names[:min(len(names), 3)], ", ")
	if more := len(names) - 3; more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return []string{fmt.Sprintf("%d of %s pass: %s", len(names), count(len(pairs), "measured pair"), s)}
}

// connected reports whether the failures of every failed pair came after the
// connect.
func (b *blamer) connected(pairs []int) bool {
	return !slices.ContainsFunc(pairs, func(i int) bool {
		if !b.fails(i) {
			return false
		}
		t := b.outcomes[i].told
		return t == nil || t.failures[checkup.StageConnect]+t.failures[checkup.StageResolve] > 0 || len(t.failures) == 0
	})
}

// where a component is.
func (b *blamer) where(e checkup.Endpoint, addresses []string) string {
	var s []string
	if e.Component != "" {
		s = append(s, e.Component)
	}
	if e.Node != "" && e.Node != e.Name() {
		s = append(s, "on node "+e.Node)
	}
	if len(addresses) > 0 {
		s = append(s, "at "+strings.Join(addresses, " and "))
	}
	if len(s) == 0 {
		return "a target"
	}
	return strings.Join(s, " ")
}

// names of the sources of pairs, each once.
func (b *blamer) names(pairs []int) []string {
	var names []string
	for _, i := range pairs {
		if n := name(b.w.Sources, b.outcomes[i].pair.Source); !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names
}

// nodes of the sources of pairs, each once.
func (b *blamer) nodes(pairs []int) []string {
	var nodes []string
	for _, i := range pairs {
		if n := b.w.Sources[b.outcomes[i].pair.Source].Node; !slices.Contains(nodes, n) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// sources blames those from which everything fails but what fails from everywhere,
// and their node, if it has several and all of them do.
func (b *blamer) sources() {
	fails := func(s int) bool {
		var left []int
		for _, i := range b.from[s] {
			if b.explained[i] || b.accounted(i) {
				continue
			}
			left = append(left, i)
		}
		_, targets := b.ends(left)
		return targets > 1 && b.allFail(left)
	}
	on := map[string][]int{} // measured sources, by node
	bad := make([]bool, len(b.from))
	for s := range b.from {
		if len(b.from[s]) > 0 {
			on[b.w.Sources[s].Node] = append(on[b.w.Sources[s].Node], s)
		}
		bad[s] = fails(s)
	}
	b.bad = bad
	for s := range b.from {
		if !b.bad[s] {
			continue
		}
		e := b.w.Sources[s]
		group, pairs := []int{s}, b.from[s]
		f := checkup.Finding{Cause: checkup.CauseSource, Subject: e.Name(), Message: "everything that " + e.Name()}
		if e.Node != "" && e.Node != e.Name() {
			f.Message += " on node " + e.Node
		}
		f.Message += " connects to"
		if of := on[e.Node]; e.Node != "" && len(of) > 1 && !slices.ContainsFunc(of, func(s int) bool { return !b.bad[s] }) {
			if of[0] != s {
				continue // told with the first
			}
			group, pairs = of, nil
			for _, s := range of {
				pairs = append(pairs, b.from[s]...)
			}
			f.Cause, f.Subject = checkup.CauseNodeEgress, e.Node
			f.Message = fmt.Sprintf("out of node %s, from %s", e.Node, some(b.names(pairs), "source"))
			f.Alternatives = append(f.Alternatives, fmt.Sprintf("%s %s", checkup.CauseNode, e.Node))
		} else if e.Node != "" {
			f.Alternatives = append(f.Alternatives, fmt.Sprintf("%s %s", checkup.CauseNodeEgress, e.Node))
		}
		var elsewhere []int
		for _, i := range pairs {
			for _, k := range b.to[b.outcomes[i].pair.Target] {
				if !slices.Contains(group, b.outcomes[k].pair.Source) && !slices.Contains(elsewhere, k) {
					elsewhere = append(elsewhere, k)
				}
			}
		}
		f.Message += ": " + b.effect(pairs)
		first := fmt.Sprintf("%d of %s from it fail", b.count(pairs), count(len(pairs), "measured pair"))
		if len(elsewhere) > 0 {
			first += fmt.Sprintf("; %d of %d from other sources to the same targets pass", len(elsewhere)-b.count(elsewhere), len(elsewhere))
		} else {
			f.Alternatives = append(f.Alternatives, "each of its targets, which nothing else measures")
		}
		f.For = b.evidence(first, pairs)
		b.add(f, pairs, nil)
	}
}

// count of the pairs that fail.
func (b *blamer) count(pairs []int) int { return len(b.failed(pairs)) }

// parts says of the failed measurements of a pair to a Service's address how many
// the endpoints account for, and how many the way there.
type parts struct {
	component, path int
	// behind are the pairs to endpoints that failed with it, answered those that
	// did not, by the longest outage that is the way's, or else the longest.
	behind, answered []int
	outage           checkup.Outage
	slow             bool // it is slow, and has no outage
	others           bool // endpoints were measured from other sources
	unknown          int  // endpoints of which nothing is known
}

// weigh looks at a failed pair to a Service's address, outage by outage.
func (b *blamer) weigh(i int) parts {
	o := &b.outcomes[i]
	pairs, others := b.behind(o.pair.Source, o.pair.Target)
	p := parts{others: others}
	known := map[int]bool{}
	for _, k := range pairs {
		known[b.outcomes[k].pair.Target] = true
	}
	for _, t := range b.w.Targets[o.pair.Target].Peer.Backends {
		if !known[t] {
			p.unknown++
		}
	}
	if len(b.outages(i)) == 0 {
		p.slow = true
		for _, k := range pairs {
			if b.fails(k) {
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
	var blamed bool // p tells of an outage that is the way's
	type window struct {
		from, to time.Time
		chance   float64
	}
	likely := map[window]bool{} // the same for each outage of one time
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
			path = !likely[during] // else as often as it leads to one of those that fail
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

// answers reports whether a pair was measured during an outage of another, give
// or take an interval. That it did not fail then is known already.
func (b *blamer) answers(i int, during checkup.Outage) bool {
	return len(b.results(i, during.Start, end(during))) > 0
}

// results of a pair from one time to another, give or take an interval.
func (b *blamer) results(i int, from, to time.Time) []*checkup.Result {
	t := b.outcomes[i].told
	if t == nil {
		return nil
	}
	first, _ := slices.BinarySearchFunc(t.results, from.Add(-b.slack), func(r *checkup.Result, at time.Time) int { return r.At.Compare(at) })
	behind, _ := slices.BinarySearchFunc(t.results, to.Add(b.slack), func(r *checkup.Result, at time.Time) int {
		if r.At.After(at) {
			return 1
		}
		return -1
	})
	return t.results[first:behind]
}

// byChance is how likely, at the least, the failures of an address must be if each
// measurement went to one of its endpoints by chance, for these to account for
// them. kube-proxy spreads connections so.
const byChance = 0.01

// likely reports whether a pair may fail as often as it does from one time to
// another, if each measurement has this chance to fail.
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
		sum += math.Exp(choose(n, k) + float64(k)*math.Log(chance) + float64(n-k)*math.Log1p(-chance))
	}
	return sum
}

// accounted reports whether a failed pair leads to a Service's address whose
// endpoints, blamed already, account for it.
func (b *blamer) accounted(i int) bool {
	if !b.fails(i) || !b.service(b.outcomes[i].pair.Target) {
		return false
	}
	p := b.weigh(i)
	return p.component > p.path && slices.ContainsFunc(p.behind, func(k int) bool { return b.explained[k] })
}

// services looks at the failed pairs to Services' addresses: those that endpoints
// account for go to the findings of these, the others are the way's.
func (b *blamer) services() {
	type failed struct {
		pair int
		parts
	}
	ways := map[int][]failed{} // by target
	for t := range b.to {
		if !b.service(t) {
			continue
		}
		for _, i := range b.to[t] {
			if !b.fails(i) || b.explained[i] {
				continue
			}
			p := b.weigh(i)
			switch {
			case p.component == 0 && p.path == 0:
				// Nothing is known of the endpoints at that time.
			case p.component > p.path:
				b.through(i, p)
			default:
				ways[t] = append(ways[t], failed{i, p})
			}
		}
	}
	for t := range b.to {
		list := ways[t]
		if len(list) == 0 {
			continue
		}
		// One finding if it fails so from every node, else one for each.
		var groups [][]failed
		if every := b.nodes(b.good(b.to[t])); len(every) > 1 && len(list) == len(b.good(b.to[t])) {
			groups = [][]failed{list}
		} else {
			for _, f := range list {
				node := b.w.Sources[b.outcomes[f.pair].pair.Source].Node
				k := slices.IndexFunc(groups, func(g []failed) bool { return b.w.Sources[b.outcomes[g[0].pair].pair.Source].Node == node })
				if k < 0 {
					groups = append(groups, []failed{f})
				} else {
					groups[k] = append(groups[k], f)
				}
			}
		}
		for _, g := range groups {
			pairs := make([]int, len(g))
			for k := range g {
				pairs[k] = g[k].pair
			}
			e := b.w.Targets[t]
			from := "every source"
			if nodes := b.nodes(pairs); len(nodes) == 1 {
				from = cmp.Or(nodes[0], b.names(pairs)[0])
			}
			// The one with most to say speaks for all.
			p := slices.MaxFunc(g, func(a, c failed) int {
				return cmp.Or(cmp.Compare(a.path, c.path), cmp.Compare(c.pair, a.pair))
			}).parts
			f := checkup.Finding{
				Cause: checkup.CauseService, Subject: e.Name() + " from " + from,
				Message: fmt.Sprintf("the way to %s (%s) from %s, as by its service rules: %s, while %s", e.Name(), address(e.Peer), from, b.effect(pairs), b.answered(p)),
			}
			others := b.good(b.to[t])
			first := fmt.Sprintf("%d of %s to it from %s fail", len(pairs), count(len(b.same(pairs, others)), "measured pair"), from)
			if rest := len(others) - len(b.same(pairs, others)); rest > 0 {
				elsewhere := slices.DeleteFunc(slices.Clone(others), func(i int) bool { return slices.Contains(b.same(pairs, others), i) })
				first += fmt.Sprintf("; %d of %d from other nodes pass", rest-b.count(elsewhere), rest)
			}
			f.For = b.evidence(first, pairs)
			f.For = append(f.For, b.endpoints(p))
			if len(p.behind) > 0 {
				f.Against = append(f.Against, fmt.Sprintf("of the endpoints behind it %s failed in an overlapping time", some(b.targets(p.behind), "target")))
				for _, k := range b.targets(p.behind) {
					f.Alternatives = append(f.Alternatives, fmt.Sprintf("%s %s", checkup.CauseTarget, k))
				}
			}
			if p.component > 0 {
				f.Against = append(f.Against, fmt.Sprintf("%d of its %d failed measurements were while its endpoints failed too", p.component, p.component+p.path))
			}
			b.add(f, pairs, nil)
		}
	}
}

// same are the pairs among all whose sources are on a node of one of some pairs.
func (b *blamer) same(some, all []int) []int {
	nodes := b.nodes(some)
	return slices.DeleteFunc(slices.Clone(all), func(i int) bool {
		return !slices.Contains(nodes, b.w.Sources[b.outcomes[i].pair.Source].Node)
	})
}

// answered says how many of the endpoints behind a Service's address answered
// while it did not.
func (b *blamer) answered(p parts) string {
	yes := len(b.targets(p.answered))
	return fmt.Sprintf("%d of %s behind it answered", yes, count(yes+len(b.targets(p.behind))+p.unknown, "endpoint"))
}

// endpoints says which, and when.
func (b *blamer) endpoints(p parts) string {
	when := during(p.outage)
	if p.slow {
		when = "at that time"
	}
	s := fmt.Sprintf("%s, %s: %s", when, b.answered(p), some(b.targets(p.answered), "endpoint"))
	if p.unknown > 0 {
		s += fmt.Sprintf("; of %d nothing is known", p.unknown)
	}
	if p.others {
		s += "; they were measured from other sources"
	}
	return s
}

// targets of pairs by name, each once.
func (b *blamer) targets(pairs []int) []string {
	var names []string
	for _, i := range pairs {
		if n := name(b.w.Targets, b.outcomes[i].pair.Target); !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names
}

// through gives a pair to a Service's address to the findings that blame the
// endpoints which fail with it; if there is none, it stays.
func (b *blamer) through(i int, p parts) {
	o := &b.outcomes[i]
	given := map[*blamed]bool{}
	for _, k := range p.behind {
		for _, f := range b.found {
			if given[f] || !slices.Contains(f.targets, b.outcomes[k].pair.Target) && !slices.Contains(f.pairs, k) {
				continue
			}
			given[f] = true
			b.give(f, i)
			what := "all of its endpoints failed in an overlapping time"
			if len(p.answered) > 0 {
				dead, all := len(b.targets(p.behind)), len(b.targets(slices.Concat(p.behind, p.answered)))
				what = fmt.Sprintf("in %d of %d measurements, as chance has it: %d of its %d endpoints failed", o.sent-o.received, o.sent, dead, all)
			}
			line := fmt.Sprintf("so does the address %s from %s: %s", b.w.Targets[o.pair.Target].Name(), name(b.w.Sources, o.pair.Source), what)
			if p.others {
				line += " (measured from other sources)"
			}
			if !slices.Contains(f.For, line) {
				f.For = append(f.For, line)
			}
		}
	}
}

// rest explains what is left, pair by pair: those of the sources of one node to
// one target together, and if all fail that there are between two nodes, these.
func (b *blamer) rest() {
	type way struct{ from, to string }
	between := map[way][]int{}
	for i := range b.outcomes {
		if o := &b.outcomes[i]; o.verdict != checkup.Unmeasured {
			k := way{b.w.Sources[o.pair.Source].Node, b.w.Targets[o.pair.Target].Node}
			between[k] = append(between[k], i)
		}
	}
	// Services' addresses come last: they may be due to an endpoint's pair.
	var order, services []int
	for i := range b.outcomes {
		if !b.fails(i) {
			continue
		}
		if b.service(b.outcomes[i].pair.Target) {
			services = append(services, i)
		} else {
			order = append(order, i)
		}
	}
	for _, i := range append(order, services...) {
		o := &b.outcomes[i]
		if b.service(o.pair.Target) && !b.explained[i] {
			if p := b.weigh(i); p.component > p.path {
				b.through(i, p)
			}
		}
		if b.explained[i] {
			continue
		}
		source, target := b.w.Sources[o.pair.Source], b.w.Targets[o.pair.Target]
		f := checkup.Finding{Cause: checkup.CausePair}
		var pairs, scope []int
		if all := between[way{source.Node, target.Node}]; source.Node != "" && target.Node != "" && source.Node != target.Node && b.allFail(all) && b.together(all) {
			left := slices.DeleteFunc(slices.Clone(all), func(k int) bool { return b.explained[k] })
			if _, targets := b.ends(left); targets > 1 {
				pairs, scope = all, all
				f.Subject = source.Node + " -> " + target.Node
				f.Message = fmt.Sprintf("from node %s to node %s: %s", source.Node, target.Node, b.effect(all))
				f.Alternatives = append(f.Alternatives, fmt.Sprintf("%s %s -> %s", checkup.CausePair, target.Node, source.Node))
			}
		}
		if pairs == nil {
			for _, k := range b.to[o.pair.Target] {
				if b.w.Sources[b.outcomes[k].pair.Source].Node != source.Node || source.Node == "" && k != i {
					continue
				}
				scope = append(scope, k)
				if b.fails(k) && !b.explained[k] {
					pairs = append(pairs, k)
				}
			}
			from := source.Name()
			if len(pairs) > 1 {
				from = source.Node
			}
			f.Subject = from + " -> " + target.Name()
			f.Message = fmt.Sprintf("from %s to %s", from, target.Name())
			if target.Peer != nil {
				f.Message += fmt.Sprintf(" (%s)", address(target.Peer))
			}
			f.Message += ": " + b.effect(pairs)
			if elsewhere := b.good(b.to[o.pair.Target]); len(elsewhere) == len(b.same(pairs, elsewhere)) {
				// Nobody else measured it, or those who did are to blame themselves.
				f.Alternatives = append(f.Alternatives, fmt.Sprintf("%s %s", checkup.CauseTarget, target.Name()))
			}
		}
		first := fmt.Sprintf("%d of %s between them fail", b.count(scope), count(len(scope), "measured pair"))
		var pass, others int
		for _, k := range b.to[o.pair.Target] {
			if slices.Contains(scope, k) {
				continue
			}
			others++
			if !b.fails(k) {
				pass++
			}
		}
		if others > 0 {
			first += fmt.Sprintf("; %d of %d from elsewhere to the same target pass", pass, others)
		}
		f.For = b.evidence(first, pairs)
		if target.Peer != nil && len(target.Peer.Backends) > 0 {
			if p := b.weigh(i); p.component > p.path {
				f.For = append(f.For, fmt.Sprintf("of the endpoints behind it %s failed in an overlapping time", some(b.targets(p.behind), "target")))
			} else {
				f.For = append(f.For, "nothing is known of the endpoints behind it at that time")
			}
		}
		f.Against = b.passing(scope)
		b.add(f, pairs, nil)
	}
}

// effect says what happens to failing pairs: what most of them say.
func (b *blamer) effect(pairs []int) string {
	var causes []checkup.Cause
	var slowest int
	votes := map[checkup.Stage]int{}
	var failed, made int
	for _, i := range pairs {
		if !b.fails(i) {
			continue
		}
		o := &b.outcomes[i]
		if o.failure == slow {
			slowest++
		}
		cause := o.cause
		if o.told != nil {
			made, failed = made+o.sent, failed+o.sent-o.received
			if worst := longest(o.told.Outages); o.failure == lost && worst != nil {
				cause = worst.Cause
			}
		}
		votes[cause.Stage]++
		causes = append(causes, cause)
	}
	first := slices.MaxFunc(causes, func(a, c checkup.Cause) int {
		return cmp.Or(cmp.Compare(votes[a.Stage], votes[c.Stage]), cmp.Compare(c.String(), a.String()))
	})
	switch {
	case slowest == len(causes):
		return "too slow: " + first.Message
	case failed < made:
		return fmt.Sprintf("%s, in %d of %d measurements", act(first), failed, made)
	default:
		return act(first)
	}
}

// act says what a target does that fails at a stage.
func act(c checkup.Cause) string {
	switch c.Stage {
	case checkup.StageResolve:
		return "its name is not resolved (" + c.Message + ")"
	case checkup.StageConnect:
		return "no connection (" + c.Message + ")"
	case checkup.StageHandshake:
		// pkg/probe's words for a peer that is silent
		if long, silent := strings.CutPrefix(c.Message, "accepted the connection and then said nothing"); silent {
			return "accepts connections and then says nothing" + long
		}
		return "accepts connections, but makes no TLS handshake (" + c.Message + ")"
	case checkup.StageResponse:
		return "accepts connections, but gives no good response (" + c.Message + ")"
	default:
		return c.String()
	}
}

// evidence begins with a line on the pairs, and tells the longest outage of them.
func (b *blamer) evidence(first string, pairs []int) []string {
	lines := []string{first}
	var most *checkup.Outage
	n := 0
	for _, i := range pairs {
		if !b.fails(i) {
			continue
		}
		if o := longest(b.outages(i)); o != nil {
			n++
			if most == nil || o.Duration() > most.Duration() {
				most = o
			}
		}
	}
	if most != nil {
		s := fmt.Sprintf("outage of %s %s", lasted(*most), during(*most))
		if n > 1 {
			s += fmt.Sprintf(", the longest of %d pairs", n)
		}
		lines = append(lines, s)
	}
	return lines
}

// list puts what explains most first, and sums up what are too many.
func (b *blamer) list() []checkup.Finding {
	times := map[int]int{}
	for _, f := range b.found {
		for _, i := range f.pairs {
			times[i]++
		}
	}
	for _, f := range b.found {
		f.Explains, f.OnlyThis = len(f.pairs), 0
		for _, i := range f.pairs {
			if times[i] == 1 {
				f.OnlyThis++
			}
		}
	}
	slices.SortStableFunc(b.found, func(a, c *blamed) int { return cmp.Compare(c.Explains, a.Explains) })
	listed := b.found
	if len(listed) > maxFindings {
		listed = listed[:maxFindings-1]
	}
	var list []checkup.Finding
	for _, f := range listed {
		list = append(list, f.Finding)
	}
	if rest := b.found[len(listed):]; len(rest) > 0 {
		f := checkup.Finding{Cause: rest[0].Cause, Subject: count(len(rest), "more finding")}
		explained := map[int]bool{}
		for _, r := range rest {
			if r.Cause != f.Cause {
				f.Cause = checkup.CauseNetwork
			}
			f.OnlyThis += r.OnlyThis
			for _, i := range r.pairs {
				explained[i] = true
			}
		}
		f.Explains = len(explained)
		f.Message = fmt.Sprintf("%s, the first of them: %s", f.Subject, rest[0].Message)
		list = append(list, f)
	}
	return list
}
