// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// mostOf is the share of the pairs of a node, or of the network, that must arrive with another source address for it to
// be the cause.
const mostOf = 0.5

// rewriter is a place where source addresses may be rewritten: what leaves a node, what enters one, both, or the whole
// network.
type rewriter struct {
	out, into string // nodes; both empty for the network
	narrow
	pairs []int // with another address, which no other rewriter explains
	keep  []int // with the source's own address
}

// rewritten explains the failed pairs whose targets saw another source address than the source's own. Address
// translation belongs to a rule of a node, and concerns all of its packets or those of one family or transport: the
// node that explains most is named first. Sources come before targets, because masquerading is done where packets leave
// a node.
func rewritten(e *Evidence, explain func(i int) bool) []*Found {
	var all rewriter
	nodes, sources := map[rewriterKey]*rewriter{}, map[string]bool{}
	at := func(out, into string) *rewriter {
		key := rewriterKey{out, into}
		if nodes[key] == nil {
			nodes[key] = &rewriter{out: out, into: into}
		}
		return nodes[key]
	}
	for _, i := range e.Measured {
		o := &e.Outcomes[i]
		if !o.Witnessed || o.SeenAs != "" && (!e.Fails(i) || !explain(i)) {
			continue
		}
		sources[e.Source(i).Node] = true
		for _, r := range []*rewriter{&all, at(e.Source(i).Node, ""), at("", e.Target(i).Node)} {
			if o.SeenAs == "" {
				r.keep = append(r.keep, i)
			} else {
				r.pairs = append(r.pairs, i)
			}
		}
	}
	if whole := e.narrowed(all); whole.fits() && len(e.sourcesOf(whole.pairs)) > 2 &&
		len(e.sourcesOf(whole.pairs)) == len(sources) && len(e.targetsOf(whole.pairs)) > 1 {
		return []*Found{e.rewrites(whole)}
	}
	var found []*Found
	done := map[int]bool{}
	take := func(r rewriter) {
		for _, i := range r.pairs {
			done[i] = true
		}
		found = append(found, e.rewrites(r))
	}
	most := func(a, b *rewriter) int {
		return cmp.Or(cmp.Compare(len(b.pairs), len(a.pairs)), cmp.Compare(a.into, b.into), cmp.Compare(a.out, b.out))
	}
	candidates := slices.SortedFunc(maps.Values(nodes), most)
	for len(candidates) > 0 && len(candidates[0].pairs) > 0 {
		first := candidates[0]
		candidates = candidates[1:]
		before := len(first.pairs)
		first.pairs = slices.DeleteFunc(first.pairs, func(i int) bool { return done[i] })
		if len(first.pairs) < before { // another one may explain more now
			place, _ := slices.BinarySearchFunc(candidates, first, most)
			candidates = slices.Insert(candidates, place, first)
			continue
		}
		if r := e.narrowed(*first); r.fits() && len(e.sourcesOf(r.pairs))*len(e.targetsOf(r.pairs)) > 1 {
			take(r)
		}
	}
	links := map[rewriterKey]*rewriter{}
	var order []*rewriter
	for _, i := range slices.Concat(all.pairs, all.keep) { // those with another address make the links
		key := rewriterKey{e.Source(i).Node, e.Target(i).Node}
		switch r := links[key]; {
		case done[i]:
		case e.Outcomes[i].SeenAs == "":
			if r != nil {
				r.keep = append(r.keep, i)
			}
		case r == nil:
			links[key] = &rewriter{out: key.out, into: key.into, pairs: []int{i}}
			order = append(order, links[key])
		default:
			r.pairs = append(r.pairs, i)
		}
	}
	for _, r := range order {
		take(e.narrowed(*r))
	}
	return found
}

// rewriterKey names a rewriter.
type rewriterKey struct{ out, into string }

// narrowed narrows a place to the family and the transport that its rewritten pairs have in common, if others go
// through it that are not rewritten.
func (e *Evidence) narrowed(r rewriter) rewriter {
	if len(r.pairs) == 0 {
		return r
	}
	first := e.Outcomes[r.pairs[0]].Pair
	for _, by := range []narrow{{family: first.Family}, {transport: first.Transport}} {
		other := func(i int) bool { return !by.admits(e.Attributes[e.Outcomes[i].Attribute]) }
		if !slices.ContainsFunc(r.pairs, other) && slices.ContainsFunc(r.keep, other) {
			r.keep = slices.DeleteFunc(slices.Clone(r.keep), other)
			r.family, r.transport = cmp.Or(r.family, by.family), cmp.Or(r.transport, by.transport)
		}
	}
	return r
}

// fits reports whether most pairs through the place are rewritten.
func (r rewriter) fits() bool {
	return float64(len(r.pairs)) >= mostOf*float64(len(r.pairs)+len(r.keep))
}

// rewrites is the finding about a place.
func (e *Evidence) rewrites(r rewriter) *Found {
	addresses := map[netip.Addr]bool{}
	families := map[checkup.IPFamily]bool{}
	for _, i := range r.pairs {
		if a, err := netip.ParseAddr(e.Outcomes[i].SeenAs); err == nil {
			addresses[a] = true
		}
		families[e.Outcomes[i].Pair.Family] = true
	}
	var to []string
	for _, a := range slices.SortedFunc(maps.Keys(addresses), netip.Addr.Compare) {
		to = append(to, a.String())
	}
	how := "source NAT"
	if len(to) == len(families) {
		how = "masquerade" // all packets have one address
	}
	f := checkup.Finding{Cause: checkup.CauseSourceAddress, Family: r.family, Transport: r.transport}
	f.Concerns(r.out, r.into)
	what, where := "", ""
	switch {
	case r.out == "" && r.into == "":
		what, where, how = "every node rewrites the source address of its pods, to", "in all", "source NAT"
	case r.into == "":
		f.Subject, where = r.out, "out of "+r.out
		what = r.out + " rewrites the source address of its pods to"
	case r.out == "":
		f.Subject, where = "into "+r.into, "into "+r.into
		what = "packets into the pods of " + r.into + " arrive with the source address"
	default:
		f.Subject, where = r.out+" -> "+r.into, fmt.Sprintf("from %s to %s", r.out, r.into)
		what = fmt.Sprintf("packets %s arrive with the source address", where)
	}
	f.Message = fmt.Sprintf("%s %s: %s", what, checkup.Some(to), how)
	if only := r.String(); only != "" {
		f.Message += ", " + only
		where += " (" + only + ")"
	}
	all := len(r.pairs) + len(r.keep)
	f.For = []string{fmt.Sprintf("%d of %s %s arrive with another source address than that of the agent's pod",
		len(r.pairs), checkup.Count(all, "measured pair"), where)}
	if len(r.keep) > 0 {
		f.Against = []string{fmt.Sprintf("%d of %s %s keep it", len(r.keep), checkup.Count(all, "measured pair"), where)}
	}
	return &Found{Finding: f, Pairs: r.pairs}
}

// sourcesOf and targetsOf are the nodes of outcomes.
func (e *Evidence) sourcesOf(of []int) map[string]bool {
	nodes := map[string]bool{}
	for _, i := range of {
		nodes[e.Source(i).Node] = true
	}
	return nodes
}

func (e *Evidence) targetsOf(of []int) map[string]bool {
	nodes := map[string]bool{}
	for _, i := range of {
		nodes[e.Target(i).Node] = true
	}
	return nodes
}
