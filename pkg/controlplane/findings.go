// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"slices"
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

// source and target of a pair.
func (b *blamer) source(i int) checkup.Endpoint { return b.w.Sources[b.outcomes[i].pair.Source] }
func (b *blamer) target(i int) checkup.Endpoint { return b.w.Targets[b.outcomes[i].pair.Target] }

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
		return t.Pod != "" && t.Pod == u.Pod || t.Peer != nil && u.Peer != nil && t.Peer.Address() == u.Peer.Address()
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
			if p := b.w.Targets[t].Peer; p != nil && !slices.Contains(addresses, p.Address()) {
				addresses = append(addresses, p.Address())
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

// rest explains what is left, pair by pair. Services' addresses come last: they may
// be due to an endpoint's pair.
func (b *blamer) rest() {
	var order, services []int
	between := map[link][]int{}
	for i := range b.outcomes {
		if b.outcomes[i].verdict == checkup.Unmeasured {
			continue
		}
		k := link{b.source(i).Node, b.target(i).Node}
		between[k] = append(between[k], i)
		switch {
		case !b.fails(i):
		case b.service(b.outcomes[i].pair.Target):
			services = append(services, i)
		default:
			order = append(order, i)
		}
	}
	for _, i := range order {
		if !b.explained[i] {
			b.pair(i, between)
		}
	}
	for _, i := range services {
		if b.explained[i] {
			continue
		}
		if p := b.weigh(i); p.component > p.path {
			b.through(i, p)
		}
		if !b.explained[i] {
			b.pair(i, between)
		}
	}
}

// link is an ordered pair of nodes.
type link struct{ from, to string }

// pair explains a failed pair: with all between the two nodes, if all of these
// fail, or else with those of the sources of its node to its target.
func (b *blamer) pair(i int, between map[link][]int) {
	f := checkup.Finding{Cause: checkup.CausePair}
	source, target := b.source(i), b.target(i)
	to := b.to[b.outcomes[i].pair.Target]
	pairs := b.between(between[link{source.Node, target.Node}])
	scope := pairs
	if pairs != nil {
		f.Subject = source.Node + " -> " + target.Node
		f.Message = fmt.Sprintf("from node %s to node %s: %s", source.Node, target.Node, b.effect(pairs))
		f.Alternatives = append(f.Alternatives, fmt.Sprintf("%s %s -> %s", checkup.CausePair, target.Node, source.Node))
	} else {
		scope = []int{i}
		if source.Node != "" {
			scope, _ = b.same(scope, to)
		}
		pairs = slices.DeleteFunc(b.failed(scope), func(k int) bool { return b.explained[k] })
		from := source.Name()
		if len(pairs) > 1 {
			from = source.Node
		}
		f.Subject = from + " -> " + target.Name()
		f.Message = fmt.Sprintf("from %s to %s", from, target.Name())
		if target.Peer != nil {
			f.Message += fmt.Sprintf(" (%s)", target.Peer.Address())
		}
		f.Message += ": " + b.effect(pairs)
		if _, elsewhere := b.same(pairs, b.good(to)); len(elsewhere) == 0 {
			// Nobody else measured it, or those who did are to blame themselves.
			f.Alternatives = append(f.Alternatives, fmt.Sprintf("%s %s", checkup.CauseTarget, target.Name()))
		}
	}
	first := fmt.Sprintf("%d of %s between them fail", b.count(scope), count(len(scope), "measured pair"))
	others := slices.DeleteFunc(slices.Clone(to), func(k int) bool { return slices.Contains(scope, k) })
	if len(others) > 0 {
		first += fmt.Sprintf("; %d of %d from elsewhere to the same target pass", len(others)-b.count(others), len(others))
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

// between returns the pairs from one node to another if all fail, in an overlapping
// time, and several targets are still to be explained; else nil.
func (b *blamer) between(pairs []int) []int {
	link := link{b.source(pairs[0]).Node, b.target(pairs[0]).Node}
	left := slices.DeleteFunc(slices.Clone(pairs), func(k int) bool { return b.explained[k] })
	if _, targets := b.ends(left); targets < 2 || link.from == "" || link.to == "" || link.from == link.to || !b.allFail(pairs) || !b.together(pairs) {
		return nil
	}
	return pairs
}
