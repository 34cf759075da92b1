// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/localise"
)

// findings explain the failed pairs of a control plane; doc.go has the rules. Each
// failed pair is explained by at least one finding.
func findings(j *judge.Judgement) []checkup.Finding {
	b := newBlamer(localise.NewEvidence(j))
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

// blamer is the evidence with what was found in it.
type blamer struct {
	*localise.Evidence
	slack time.Duration
	last  time.Time // start of the last failed measurement of all pairs
	// explained pairs, and sources that are to blame themselves
	explained []bool
	bad       []bool
	found     []*blamed
}

// blamed is a finding with the targets that it blames.
type blamed struct {
	localise.Found
	targets []int
}

func newBlamer(e *localise.Evidence) *blamer {
	b := &blamer{Evidence: e, explained: make([]bool, len(e.Outcomes)), bad: make([]bool, len(e.From))}
	for _, p := range e.Worksheet.Probes {
		b.slack = max(b.slack, time.Duration(p.Interval))
	}
	for i := range e.Outcomes {
		for _, o := range b.outages(i) {
			if o.Last.After(b.last) {
				b.last = o.Last
			}
		}
	}
	return b
}

// add makes a finding that explains those of the pairs that fail.
func (b *blamer) add(f checkup.Finding, pairs, targets []int) {
	found := &blamed{Found: localise.Found{Finding: f}, targets: targets}
	b.found = append(b.found, found)
	for _, i := range pairs {
		b.give(found, i)
	}
}

func (b *blamer) give(f *blamed, pair int) {
	if b.Fails(pair) && !slices.Contains(f.Pairs, pair) {
		f.Pairs = append(f.Pairs, pair)
		b.explained[pair] = true
	}
}

// everything explains the case that nothing passes.
func (b *blamer) everything() bool {
	all := slices.Concat(b.From...)
	if sources, targets := b.Ends(all); sources < 2 || targets < 2 || !b.AllFail(all) {
		return false
	}
	b.add(checkup.Finding{
		Cause: checkup.CauseNetwork, Message: "every connection: " + b.effect(all),
		For: b.evidence(fmt.Sprintf("%d of %s fail", len(all), checkup.Count(len(all), "measured pair")), all),
	}, all, nil)
	return true
}

// together reports whether the failures of the pairs can be one: some outage of the
// first pair overlaps with an outage of each other. Pairs that fail without an
// outage, because they are slow, are not compared.
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
	if t := b.Outcomes[i].Folded; t != nil {
		return t.Outages
	}
	return nil
}

// overlapping are the outages of a list, oldest first, that overlap with another
// one, with a tolerance of one interval.
func (b *blamer) overlapping(list []checkup.Outage, with checkup.Outage) []checkup.Outage {
	from, _ := slices.BinarySearchFunc(
		list,
		with.Start.Add(-b.slack),
		func(o checkup.Outage, at time.Time) int { return b.end(o).Compare(at) },
	)
	to := from
	for end := b.end(with).Add(b.slack); to < len(list) && !list[to].Start.After(end); to++ {
	}
	return list[from:to]
}

// end of an outage. If it had not ended at the pair's last measurement: the last failure in a watch, for which all
// sources measure at the same time. In one round, they measure one after the other if their agents start at different
// times, and the outage may still last when another source measures.
func (b *blamer) end(o checkup.Outage) time.Time {
	switch c := b.Worksheet.Connections; {
	case !o.End.IsZero():
		return o.End
	case c != nil && c.For > 0:
		return o.Last
	default:
		return b.last
	}
}

// common lists the targets, without Services' addresses, that fail from every one of
// several sources.
func (b *blamer) common() []int {
	var targets []int
	for t, pairs := range b.To {
		if sources, _ := b.Ends(pairs); sources > 1 && !b.service(t) && b.AllFail(pairs) && b.together(pairs) {
			targets = append(targets, t)
		}
	}
	return targets
}

// remaining lists the targets that fail from every source that is not to blame
// itself. If that is only one source, the failure must be one that a path does not
// cause: the connection is accepted, but the response is missing or invalid.
func (b *blamer) remaining() []int {
	var targets []int
	for t, pairs := range b.To {
		left := b.good(pairs)
		sources, _ := b.Ends(left)
		alone := sources == 1 && slices.ContainsFunc(left, func(i int) bool {
			s := b.stage(i)
			return s == checkup.StageHandshake || s == checkup.StageResponse
		})
		known := slices.ContainsFunc(b.found, func(f *blamed) bool { return slices.Contains(f.targets, t) })
		if !known && !b.service(t) && (sources > 1 || alone) && b.AllFail(left) && b.together(left) {
			targets = append(targets, t)
		}
	}
	return targets
}

// mostly lists the targets that fail from most sources, of more than one node, at an
// overlapping time: not every source measures during a short outage.
func (b *blamer) mostly() []int {
	var targets []int
	for t, pairs := range b.To {
		left := b.good(pairs)
		fails := slices.DeleteFunc(b.Failed(left), func(i int) bool { return b.explained[i] })
		if !b.service(t) && len(b.SourceNodes(fails)) > 1 && 2*len(fails) > len(left) && b.together(fails) {
			targets = append(targets, t)
		}
	}
	return targets
}

// good drops the pairs of sources that are to blame themselves.
func (b *blamer) good(pairs []int) []int {
	return slices.DeleteFunc(slices.Clone(pairs), func(i int) bool { return b.bad[b.Outcomes[i].Pair.Source] })
}

// stage at which a failed pair fails.
func (b *blamer) stage(i int) checkup.Stage { return b.Outcomes[i].Cause.Stage }

// components blames targets. Addresses of one pod, and names of one address, are one
// target.
func (b *blamer) components(targets []int) {
	same := func(t, u checkup.Endpoint) bool {
		return t.Pod != "" && t.Pod == u.Pod || t.Peer != nil && u.Peer != nil && t.Peer.Address() == u.Peer.Address()
	}
	var groups [][]int
	for _, t := range targets {
		k := slices.IndexFunc(groups, func(g []int) bool { return same(b.Worksheet.Targets[g[0]], b.Worksheet.Targets[t]) })
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
			all = append(all, b.To[t]...)
			pairs = append(pairs, b.good(b.To[t])...)
			if p := b.Worksheet.Targets[t].Peer; p != nil && !slices.Contains(addresses, p.Address()) {
				addresses = append(addresses, p.Address())
			}
		}
		target := b.Worksheet.Targets[group[0]]
		sources, _ := b.Ends(pairs)
		f := checkup.Finding{
			Cause:   checkup.CauseTarget,
			Subject: target.Name(),
			Message: fmt.Sprintf("%s, %s: %s", target.Name(), b.where(target, addresses), b.effect(pairs)),
			For: b.evidence(
				fmt.Sprintf(
					"%d of %s to it fail, from %s",
					b.count(all),
					checkup.Count(len(all), "measured pair"),
					checkup.SomeOf(b.SourceNames(b.Failed(all)), "source"),
				),
				pairs,
			),
		}
		var from []string // nodes whose path to the target explains the failures, too
		if nodes := b.SourceNodes(pairs); len(nodes) == 1 && nodes[0] != "" {
			from = nodes // from one node alone the path cannot be distinguished from the target
		}
		if sources > 1 && b.connected(pairs) {
			f.For = append(f.For, "it accepts connections: the path to it is open")
			from = nil
		}
		if against := b.passing(pairs); against != nil {
			f.Against = against
			from = append(from, b.SourceNodes(b.Failed(pairs))...)
		}
		for _, node := range from {
			f.Alternatives = append(f.Alternatives, fmt.Sprintf("%s %s -> %s", checkup.CausePair, node, target.Name()))
		}
		f.Concerns(append([]string{target.Node}, from...)...)
		b.add(f, all, group)
	}
}

// connected reports whether the failures of every failed pair came after the
// connect.
func (b *blamer) connected(pairs []int) bool {
	return !slices.ContainsFunc(pairs, func(i int) bool {
		if !b.Fails(i) {
			return false
		}
		t := b.Outcomes[i].Folded
		return t == nil || t.Failures[checkup.StageConnect]+t.Failures[checkup.StageResolve] > 0 || len(t.Failures) == 0
	})
}

// sources blames the sources from which everything fails that is not explained yet,
// and their node, if it has several and all of them fail.
func (b *blamer) sources() {
	fails := func(s int) bool {
		var left []int
		for _, i := range b.From[s] {
			if b.explained[i] || b.accounted(i) {
				continue
			}
			left = append(left, i)
		}
		_, targets := b.Ends(left)
		return targets > 1 && b.AllFail(left)
	}
	on := map[string][]int{} // measured sources, by node
	bad := make([]bool, len(b.From))
	for s := range b.From {
		if len(b.From[s]) > 0 {
			on[b.Worksheet.Sources[s].Node] = append(on[b.Worksheet.Sources[s].Node], s)
		}
		bad[s] = fails(s)
	}
	b.bad = bad
	for s := range b.From {
		if !b.bad[s] {
			continue
		}
		e := b.Worksheet.Sources[s]
		group, pairs := []int{s}, b.From[s]
		f := checkup.Finding{Cause: checkup.CauseSource, Subject: e.Name(), Message: "all targets of " + e.Name()}
		f.Concerns(e.Node)
		if e.Node != "" && e.Node != e.Name() {
			f.Message += " on node " + e.Node
		}
		if of := on[e.Node]; e.Node != "" && len(of) > 1 && !slices.ContainsFunc(of, func(s int) bool { return !b.bad[s] }) {
			if of[0] != s {
				continue // reported with the first
			}
			group, pairs = of, nil
			for _, s := range of {
				pairs = append(pairs, b.From[s]...)
			}
			f.Cause, f.Subject = checkup.CauseNodeEgress, e.Node
			f.Message = fmt.Sprintf(
				"all connections out of node %s, from %s",
				e.Node,
				checkup.SomeOf(b.SourceNames(pairs), "source"),
			)
			f.Alternatives = append(f.Alternatives, fmt.Sprintf("%s %s", checkup.CauseNode, e.Node))
		} else if e.Node != "" {
			f.Alternatives = append(f.Alternatives, fmt.Sprintf("%s %s", checkup.CauseNodeEgress, e.Node))
		}
		var elsewhere []int
		for _, i := range pairs {
			for _, k := range b.To[b.Outcomes[i].Pair.Target] {
				if !slices.Contains(group, b.Outcomes[k].Pair.Source) && !slices.Contains(elsewhere, k) {
					elsewhere = append(elsewhere, k)
				}
			}
		}
		f.Message += ": " + b.effect(pairs)
		first := fmt.Sprintf("%d of %s from it fail", b.count(pairs), checkup.Count(len(pairs), "measured pair"))
		if len(elsewhere) > 0 {
			first += fmt.Sprintf(
				"; %d of %d from other sources to the same targets pass",
				len(elsewhere)-b.count(elsewhere),
				len(elsewhere),
			)
		} else {
			f.Alternatives = append(f.Alternatives, "each of its targets: no other source measures them")
		}
		f.For = b.evidence(first, pairs)
		b.add(f, pairs, nil)
	}
}

// count of the pairs that fail.
func (b *blamer) count(pairs []int) int { return len(b.Failed(pairs)) }

// rest explains the remaining pairs one by one. Services' addresses come last: an
// endpoint's pair may explain them.
func (b *blamer) rest() {
	var order, services []int
	between := map[link][]int{}
	for i := range b.Outcomes {
		if b.Outcomes[i].Verdict == checkup.Unmeasured {
			continue
		}
		k := link{b.Source(i).Node, b.Target(i).Node}
		between[k] = append(between[k], i)
		switch {
		case !b.Fails(i):
		case b.service(b.Outcomes[i].Pair.Target):
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

// pair explains a failed pair: with all pairs between the two nodes, if all of them
// fail, else with the pairs from its node to its target.
func (b *blamer) pair(i int, between map[link][]int) {
	f := checkup.Finding{Cause: checkup.CausePair}
	source, target := b.Source(i), b.Target(i)
	f.Concerns(source.Node, target.Node)
	to := b.To[b.Outcomes[i].Pair.Target]
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
		pairs = slices.DeleteFunc(b.Failed(scope), func(k int) bool { return b.explained[k] })
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
			// No other source measured it, or those that did are to blame themselves.
			f.Alternatives = append(f.Alternatives, fmt.Sprintf("%s %s", checkup.CauseTarget, target.Name()))
		}
	}
	first := fmt.Sprintf("%d of %s between them fail", b.count(scope), checkup.Count(len(scope), "measured pair"))
	others := slices.DeleteFunc(slices.Clone(to), func(k int) bool { return slices.Contains(scope, k) })
	if len(others) > 0 {
		first += fmt.Sprintf("; %d of %d from elsewhere to the same target pass", len(others)-b.count(others), len(others))
	}
	f.For = b.evidence(first, pairs)
	if target.Peer != nil && len(target.Peer.Backends) > 0 {
		if p := b.weigh(i); p.component > p.path {
			f.For = append(
				f.For,
				fmt.Sprintf(
					"endpoints behind it that failed at an overlapping time: %s",
					checkup.SomeOf(b.TargetNames(p.behind), "target"),
				),
			)
		} else {
			f.For = append(f.For, "no data about the endpoints behind it at that time")
		}
	}
	f.Against = b.passing(scope)
	b.add(f, pairs, nil)
}

// between returns the pairs from one node to another if all fail at an overlapping
// time and several targets are not explained yet; else nil.
func (b *blamer) between(pairs []int) []int {
	link := link{b.Source(pairs[0]).Node, b.Target(pairs[0]).Node}
	left := slices.DeleteFunc(slices.Clone(pairs), func(k int) bool { return b.explained[k] })
	if _, targets := b.Ends(
		left,
	); targets < 2 || link.from == "" || link.to == "" || link.from == link.to || !b.AllFail(pairs) ||
		!b.together(pairs) {
		return nil
	}
	return pairs
}
