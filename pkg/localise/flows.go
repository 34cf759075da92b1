// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/stats"
)

// paths explains the pairs of which some flows never get through (judge.FlowLost). Switches and hosts choose one of
// several parallel paths by a hash of addresses and ports (RFC 2992): one dead path of eight is an eighth of all flows
// through a place, each of them wholly dead, and no loss of the others. It sets done for pairs whose losses the dead
// paths explain too: connections, of which each is a flow of its own.
//
// The cause is the narrowest place that all dead flows go through, if it is more likely than the network, by more than the
// number of places that could be so by chance. If there is none, the place whose share of dead flows differs most from
// that of all others is named first, if chance does not explain the difference, and the rest is explained without it. What
// remains is of the network. One link of two nodes is never named as more than that.
func paths(e *Evidence, done []bool) []*Found {
	if !slices.ContainsFunc(e.Measured, func(i int) bool { return len(e.Outcomes[i].Dead) > 0 }) {
		return nil
	}
	var through []passage
	var dying int
	for _, i := range e.Measured {
		if p := newPassage(e, i); p.flows > 0 {
			through = append(through, p)
			if p.dead > 0 {
				dying++
			}
		}
	}
	var found []*Found
	for dying > 0 {
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
		f := d.found(e, *where, done)
		dying -= len(f.inside)
		through = f.rest
		found = append(found, f.Found)
	}
	return found
}

// siteKind is a sort of place, in the order in which places that explain the same are preferred.
type siteKind int8

const (
	oneWayPair siteKind = iota
	bothWaysPair
	nodeIn
	nodeOut
	nodeBoth
	oneWayZones
	bothWaysZones
	wholeNetwork
)

// site is a place that flows go through. a and b are nodes or zones; for both ways, in alphabetical order.
type site struct {
	kind siteKind
	a, b string
}

// counterpart is the same place in the other direction; itself if it has no direction.
func (s site) counterpart() site {
	switch s.kind {
	case nodeIn:
		return site{nodeOut, s.a, ""}
	case nodeOut:
		return site{nodeIn, s.a, ""}
	case oneWayPair, oneWayZones:
		return site{s.kind, s.b, s.a}
	default:
		return s
	}
}

// bothWays is the same place in both directions.
func (s site) bothWays() site {
	switch s.kind {
	case nodeIn, nodeOut:
		return site{nodeBoth, s.a, ""}
	case oneWayPair, oneWayZones:
		return site{s.kind + 1, min(s.a, s.b), max(s.a, s.b)}
	default:
		return s
	}
}

// isPair reports whether a place is one link of two nodes.
func (s site) isPair() bool { return s.kind == oneWayPair || s.kind == bothWaysPair }

// subject names a place in a finding.
func (s site) subject() string {
	switch s.kind {
	case nodeIn:
		return "into " + s.a
	case nodeOut:
		return "out of " + s.a
	case nodeBoth:
		return s.a
	case oneWayPair, oneWayZones:
		return s.a + " -> " + s.b
	case bothWaysPair, bothWaysZones:
		return s.a + " <-> " + s.b
	default:
		return "network"
	}
}

// String is the place in words.
func (s site) String() string {
	zone := ""
	if s.kind == oneWayZones || s.kind == bothWaysZones {
		zone = "zone "
	}
	switch s.kind {
	case nodeIn:
		return "into the pods of " + s.a
	case nodeOut:
		return "out of the pods of " + s.a
	case nodeBoth:
		return "into and out of the pods of " + s.a
	case oneWayPair, oneWayZones:
		if s.a == s.b {
			return "within " + zone + s.a
		}
		return fmt.Sprintf("from %s%s to %s%s", zone, s.a, zone, s.b)
	case bothWaysPair, bothWaysZones:
		if s.a == s.b {
			return "within " + zone + s.a
		}
		return fmt.Sprintf("between %s%s and %s%s", zone, s.a, zone, s.b)
	default:
		return "in the whole network"
	}
}

// passage is a measured pair with its flows.
type passage struct {
	at          int // in the outcomes
	dead, flows int
	// scope are the places that its packets go through, requests or answers; suspects those of them that may have dropped
	// the packets of its dead flows, by the target's count.
	scope, suspects []site
	link            [2]string // nodes, in alphabetical order
}

// newPassage returns a passage without flows for a pair that cannot show a dead one.
func newPassage(e *Evidence, i int) passage {
	o := &e.Outcomes[i]
	p := passage{at: i, dead: len(o.Dead), flows: len(o.Flows)}
	switch {
	case p.dead == 0 && (o.Pair.Transport != checkup.UDP || o.Received == 0):
		return passage{}
	case p.flows == 0:
		p.flows = min(checkup.UDPFlows, o.Sent)
	}
	from, to := e.Source(i), e.Target(i)
	p.link = [2]string{min(from.Node, to.Node), max(from.Node, to.Node)}
	there, back := sites(from, to), sites(to, from)
	p.scope = append(slices.Clone(there), back...)
	slices.SortFunc(p.scope, compareSites)
	p.scope = slices.Compact(p.scope)
	switch {
	case p.dead == 0:
	case o.Direction == checkup.DirectionForward:
		p.suspects = there
	case o.Direction == checkup.DirectionReturn:
		p.suspects = back
	default:
		p.suspects = p.scope
	}
	return p
}

// sites are the places that packets from one endpoint to another go through, besides the network.
func sites(from, to checkup.Endpoint) []site {
	all := []site{
		{oneWayPair, from.Node, to.Node}, {bothWaysPair, min(from.Node, to.Node), max(from.Node, to.Node)},
		{nodeOut, from.Node, ""}, {nodeIn, to.Node, ""}, {nodeBoth, from.Node, ""},
	}
	if from.Node != to.Node {
		all = append(all, site{nodeBoth, to.Node, ""})
	}
	if from.Zone != "" && to.Zone != "" {
		all = append(all, site{oneWayZones, from.Zone, to.Zone}, site{bothWaysZones, min(from.Zone, to.Zone), max(from.Zone, to.Zone)})
	}
	return all
}

// carries reports whether packets from one endpoint to another go through a place.
func (s site) carries(from, to checkup.Endpoint) bool {
	return s.kind == wholeNetwork || slices.Contains(sites(from, to), s)
}

func compareSites(s, t site) int {
	return cmp.Or(cmp.Compare(s.kind, t.kind), cmp.Compare(s.a, t.a), cmp.Compare(s.b, t.b))
}

// toll is what goes through a place: flows, dead ones, pairs with dead ones that it may have dropped, and their links.
type toll struct {
	flows, dead, pairs int
	link               [2]string
	links              bool // more than one
}

// deaths are the passages that no place explains yet, and what of them goes through each place.
type deaths struct {
	through []passage
	all     toll
	at      map[site]*toll
}

func newDeaths(through []passage) *deaths {
	d := &deaths{through: through, at: map[site]*toll{}}
	for i := range through {
		p := &through[i]
		d.all.add(p, p.dead > 0)
		for _, s := range p.suspects {
			if d.at[s] == nil {
				d.at[s] = &toll{}
			}
		}
	}
	for i := range through {
		p := &through[i]
		for _, s := range p.scope {
			if t := d.at[s]; t != nil {
				t.add(p, slices.Contains(p.suspects, s))
			}
		}
	}
	return d
}

// add counts a passage; suspect says that the place may have dropped the packets of its dead flows.
func (t *toll) add(p *passage, suspect bool) {
	t.flows += p.flows
	if !suspect {
		return
	}
	if t.pairs > 0 && t.link != p.link {
		t.links = true
	}
	t.dead, t.pairs, t.link = t.dead+p.dead, t.pairs+1, p.link
}

// named reports whether a place can be named: a link, or what several links share.
func (d *deaths) named(s site) bool { return s.isPair() || d.at[s].links }

// explains reports whether a place may have dropped the packets of all dead flows.
func (d *deaths) explains(s site) bool {
	return d.at[s] != nil && d.at[s].pairs == d.all.pairs && d.named(s)
}

// shared is the narrowest place that explains all dead flows, in both directions if either one does; nil if only the
// network does.
func (d *deaths) shared() *site {
	var all []site
	for s := range d.at {
		if c := s.counterpart(); d.explains(s) && (c == s || !d.explains(c)) {
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		return nil
	}
	narrowest := slices.MinFunc(all, func(s, t site) int {
		return cmp.Or(cmp.Compare(d.at[s].flows, d.at[t].flows), compareSites(s, t))
	})
	return &narrowest
}

// beyondNetwork reports whether a shared place is to be named instead of the network.
func (d *deaths) beyondNetwork(s site) bool {
	return s.isPair() || d.ratio(s) > math.Log(float64(len(d.at)))
}

// ratio is how much likelier the dead flows are if the place has another share of them than all others, as a logarithm.
func (d *deaths) ratio(s site) float64 {
	t := d.at[s]
	return likelihood(t.dead, t.flows) + likelihood(d.all.dead-t.dead, d.all.flows-t.flows) - likelihood(d.all.dead, d.all.flows)
}

// alternatives are the other places that this sample cannot tell from the one that is named: those that have the same
// flows; for the network, those that all dead flows go through by chance.
func (d *deaths) alternatives(where site) []string {
	var all []string
	for _, s := range slices.SortedFunc(maps.Keys(d.at), compareSites) {
		switch c := s.counterpart(); {
		case s == where || s == where.bothWays() || !d.explains(s):
		case where.kind == wholeNetwork && (c == s || !d.explains(c)),
			where.kind != wholeNetwork && d.at[s].flows == d.at[where].flows:
			all = append(all, fmt.Sprintf("%s %s", checkup.CausePaths, s.subject()))
		}
	}
	return all
}

// densest is the place in which the share of dead flows is higher than elsewhere, and differs most from it; nil if chance
// explains every difference (likelihood ratios, at the level of judge.FalseAlarms over all places).
func (d *deaths) densest() *site {
	var densest *site
	highest := math.Log(float64(len(d.at)) / judge.FalseAlarms)
	for _, s := range slices.SortedFunc(maps.Keys(d.at), compareSites) {
		t := d.at[s]
		dead, flows := d.all.dead-t.dead, d.all.flows-t.flows
		if !d.named(s) || t.dead*flows <= dead*t.flows {
			continue
		}
		if ratio := d.ratio(s); ratio > highest {
			densest, highest = &s, ratio
		}
	}
	return densest
}

// likelihood is the logarithm of the highest probability with which k of n happen.
func likelihood(k, n int) float64 {
	sum := 0.0
	for _, x := range []int{k, n - k} {
		if x > 0 {
			sum += float64(x) * math.Log(float64(x)/float64(n))
		}
	}
	return sum
}

// explained is a finding, the passages with dead flows that it explains, and those that do not go through its place.
type explained struct {
	*Found
	inside, rest []passage
}

// found is the finding about dead paths at a place.
func (d *deaths) found(e *Evidence, where site, done []bool) explained {
	x := explained{Found: &Found{Finding: checkup.Finding{Cause: checkup.CausePaths, Subject: where.subject()}}}
	dead, flows, lost, sent := 0, 0, 0, 0
	for _, p := range d.through {
		of := p.scope
		if p.dead > 0 {
			of = p.suspects
		}
		if where.kind != wholeNetwork && !slices.Contains(of, where) {
			x.rest = append(x.rest, p)
			continue
		}
		flows += p.flows
		alive, received := e.Outcomes[p.at].Living()
		lost, sent = lost+alive-received, sent+alive
		if p.dead > 0 {
			dead += p.dead
			x.inside = append(x.inside, p)
			x.Pairs = append(x.Pairs, p.at)
		}
	}
	others := "the others lose nothing"
	if lost > 0 {
		others = fmt.Sprintf("the others lose %s", judge.Percent(lost, sent))
	}
	get := "get"
	if dead == 1 {
		get = "gets"
	}
	x.Message = fmt.Sprintf("%d of %s %s never %s through, %s: one of several parallel paths",
		dead, checkup.Count(flows, "flow"), where, get, others)
	x.For = []string{fmt.Sprintf("%s with such flows, for example %s", checkup.Count(len(x.inside), "pair"), example(e, x.inside[0].at))}
	if also := alike(e, where, float64(dead)/float64(flows), done); len(also) > 0 {
		x.Pairs = append(x.Pairs, also...)
		x.For = append(x.For, fmt.Sprintf("%s of the same place lost only whole flows, about as many", checkup.Count(len(also), "further pair")))
	}
	x.Alternatives = d.alternatives(where)
	return x
}

// example names a dead flow such that it can be measured again.
func example(e *Evidence, i int) string {
	o := &e.Outcomes[i]
	f := o.Dead[0]
	return fmt.Sprintf("%s -> %s %s %s %dB from source port %d, %d of %d lost", e.Source(i).Name(), e.Target(i).Name(),
		o.Pair.Transport, o.Pair.Family, o.Pair.Size, f.Port, f.Sent-f.Received, f.Sent)
}

// alike sets done for the pairs of a place whose losses its share of dead flows explains: each flow of theirs lost all or
// nothing, and so many by chance. A connection is a flow of its own. It returns those of the pairs that fail.
func alike(e *Evidence, where site, share float64, done []bool) []int {
	var partly, wholly []int // that lost some and all of their flows
	chances := map[int]float64{}
	pairs, expected := 0, 0.0 // of the pairs, those that lose all flows
	for _, i := range e.Measured {
		o := &e.Outcomes[i]
		from, to := e.Source(i), e.Target(i)
		if o.Pair.Transport == checkup.ICMP || done[i] || !where.carries(from, to) && !where.carries(to, from) {
			continue
		}
		flows, dead := o.Sent, o.Sent-o.Received
		if o.Pair.Transport == checkup.UDP {
			flows, dead = udpFlows(o)
		}
		pairs++
		expected += math.Pow(share, float64(flows))
		switch {
		case o.Failure != judge.Lost && o.Failure != 0 || dead == 0:
		case dead == flows:
			wholly = append(wholly, i)
		default:
			partly = append(partly, i)
			chances[i] = stats.AtLeast(dead, flows, share)
		}
	}
	if pairs == 0 {
		return nil
	}
	also := slices.DeleteFunc(partly, func(i int) bool { return chances[i] <= judge.FalseAlarms/float64(pairs) })
	if stats.AtLeast(len(wholly), pairs, expected/float64(pairs)) > judge.FalseAlarms {
		also = append(also, wholly...)
	}
	slices.Sort(also)
	for _, i := range also {
		done[i] = true
	}
	return e.Failed(also)
}

// alive is an outcome without the measurements of its dead flows: they say nothing about the loss of others. The
// target's count does not say how many of them arrived.
func alive(o *judge.Outcome) *judge.Outcome {
	if len(o.Dead) == 0 {
		return o
	}
	living := *o
	living.Sent, living.Received = o.Living()
	living.Counted, living.Arrived, living.Direction = false, 0, checkup.DirectionUnknown
	return &living
}

// udpFlows counts the flows of a udp pair and those that are dead; none are if one lost only a part.
func udpFlows(o *judge.Outcome) (flows, dead int) {
	switch n := min(checkup.UDPFlows, o.Sent); o.Received {
	case 0:
		return n, n
	case o.Sent:
		return n, 0
	}
	for _, f := range o.Flows {
		switch f.Received {
		case 0:
			dead++
		case f.Sent:
		default:
			return len(o.Flows), 0
		}
	}
	return len(o.Flows), dead
}
