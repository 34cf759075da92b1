// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"fmt"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// paths explains the pairs of which some flows never get through (judge.FlowLost). Switches and hosts choose one of
// several parallel paths by a hash of addresses and ports (RFC 2992): one dead path of eight is an eighth of all flows
// through a place, each of them wholly dead, and no loss of the others. It sets done for pairs whose losses the dead
// paths explain too: connections, of which each is a flow of its own.
//
// The cause is the narrowest place that all dead flows go through, if it is more likely than the network, by more than
// the number of places that could be so by chance. If there is none, the place whose share of dead flows differs most
// from that of all others is named first, if chance does not explain the difference, and the rest is explained without
// it. What remains is of the network. One link of two nodes is never named as more than that.
func paths(e *Evidence, done []bool) []*Found {
	if !slices.ContainsFunc(e.Measured, func(i int) bool { return len(e.Outcomes[i].Dead) > 0 }) {
		return nil
	}
	through := passages(e)
	var found []*Found
	for slices.ContainsFunc(through, func(p passage) bool { return p.dead > 0 }) {
		d := newDeaths(through)
		where := d.shared()
		switch {
		case where == nil:
			where = d.densest()
		case !d.beyondNetwork(*where):
			where = nil
		}
		if where == nil {
			where = &site{kind: wholeNetwork}
		}
		f, rest := d.found(e, *where, done)
		through = rest
		found = append(found, f)
	}
	return found
}

// found is the finding about dead paths at a place. rest are the passages that it says nothing about.
func (d *deaths) found(e *Evidence, where site, done []bool) (f *Found, rest []passage) {
	f = &Found{Finding: checkup.Finding{Cause: checkup.CausePaths, Subject: where.subject()}}
	var in passage
	for _, p := range d.through {
		of := p.scope
		if p.dead > 0 {
			of = p.suspects
		}
		if where.kind != wholeNetwork && !slices.Contains(of, where) {
			rest = append(rest, p)
			continue
		}
		in.dead, in.flows = in.dead+p.dead, in.flows+p.flows
		in.lost, in.sent = in.lost+p.lost, in.sent+p.sent
		in.pairs = append(in.pairs, p.pairs...)
	}
	slices.Sort(in.pairs)
	f.Pairs = in.pairs
	others := "the others lose nothing"
	if in.lost > 0 {
		others = fmt.Sprintf("the others lose %s", checkup.PercentOf(in.lost, in.sent))
	}
	get := "get"
	if in.dead == 1 {
		get = "gets"
	}
	f.Message = fmt.Sprintf("%d of %s %s never %s through, %s: one of several parallel paths",
		in.dead, checkup.Count(in.flows, "flow"), where, get, others)
	f.For = []string{
		fmt.Sprintf("%s with such flows, for example %s", checkup.Count(len(in.pairs), "pair"), example(e, in.pairs[0])),
	}
	if also := alike(e, where, float64(in.dead)/float64(in.flows), done); len(also) > 0 {
		f.Pairs = slices.Concat(f.Pairs, also)
		f.For = append(
			f.For,
			fmt.Sprintf("%s of the same place lost only whole flows, about as many", checkup.Count(len(also), "further pair")),
		)
	}
	f.Concerns(where.nodes()...)
	for _, s := range d.alternatives(where) {
		f.Alternatives = append(f.Alternatives, fmt.Sprintf("%s %s", checkup.CausePaths, s.subject()))
		f.Concerns(s.nodes()...)
	}
	return f, rest
}

// example names a dead flow.
func example(e *Evidence, i int) string {
	o := &e.Outcomes[i]
	f := o.Dead[0]
	return fmt.Sprintf("%s -> %s %s %s %dB from source port %d, %d of %d lost", e.Source(i).Name(), e.Target(i).Name(),
		o.Pair.Transport, o.Pair.Family, o.Pair.Size, f.Port, f.Sent-f.Received, f.Sent)
}
