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

// passage is what goes from one endpoint to another, and back: the flows of all its pairs, or of those whose dead flows
// were dropped on the same way.
type passage struct {
	pairs       []int // outcomes with dead flows
	dead, flows int
	// lost of sent are measurements that are not of dead flows.
	lost, sent int
	// scope are the places that its packets go through, requests or answers; suspects those of them that may have dropped
	// the packets of its dead flows, by the target's count.
	scope, suspects []site
	link            [2]string // nodes, in alphabetical order
}

// passages sums up the measured pairs that can show dead flows.
func passages(e *Evidence) []passage {
	var all []passage
	var of [3]int // passage of each direction, plus one; 0 if there is none
	last := [2]int{-1, -1}
	for _, i := range e.Measured {
		o := &e.Outcomes[i]
		flows := len(o.Flows)
		switch {
		case len(o.Dead) == 0 && (o.Pair.Transport != checkup.UDP || o.Received == 0):
			continue
		case flows == 0:
			flows = min(checkup.UDPFlows, o.Sent)
		}
		if ends := [2]int{o.Pair.Source, o.Pair.Target}; ends != last {
			last, of = ends, [3]int{}
		}
		from, to := e.Source(i), e.Target(i)
		there, back := requestsOrAnswers(o)
		which := 0
		switch {
		case !there:
			which = 1
		case !back:
			which = 2
		}
		if of[which] == 0 {
			p := passage{link: [2]string{min(from.Node, to.Node), max(from.Node, to.Node)}}
			ways := [2][]site{sites(from, to), sites(to, from)}
			p.scope = slices.Concat(ways[0], ways[1])
			slices.SortFunc(p.scope, compareSites)
			p.scope = slices.Compact(p.scope)
			p.suspects = [][]site{p.scope, ways[1], ways[0]}[which]
			all = append(all, p)
			of[which] = len(all)
		}
		p := &all[of[which]-1]
		p.flows += flows
		sent, received := o.Living()
		p.lost, p.sent = p.lost+sent-received, p.sent+sent
		if len(o.Dead) > 0 {
			p.dead += len(o.Dead)
			p.pairs = append(p.pairs, i)
		}
	}
	return all
}

// requestsOrAnswers says on which ways the packets of dead flows may have been dropped: not on one on which fewer
// packets were lost, by the target's count, than a dead flow has.
func requestsOrAnswers(o *judge.Outcome) (there, back bool) {
	if !o.Counted {
		return true, true
	}
	fewest := math.MaxInt
	for _, f := range o.Dead {
		fewest = min(fewest, f.Sent)
	}
	there, back = o.Sent-o.Arrived >= fewest, o.Arrived-o.Received >= fewest
	return there || !back, back || !there
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
		all = append(
			all,
			site{oneWayZones, from.Zone, to.Zone},
			site{bothWaysZones, min(from.Zone, to.Zone), max(from.Zone, to.Zone)},
		)
	}
	return all
}

// carries reports whether packets from one endpoint to another go through a place.
func (s site) carries(from, to checkup.Endpoint) bool {
	a, b := from.Node, to.Node
	if s.kind == oneWayZones || s.kind == bothWaysZones {
		a, b = from.Zone, to.Zone
	}
	switch s.kind {
	case nodeIn:
		return b == s.a
	case nodeOut:
		return a == s.a
	case nodeBoth:
		return a == s.a || b == s.a
	case oneWayPair, oneWayZones:
		return a == s.a && b == s.b
	case bothWaysPair, bothWaysZones:
		return a == s.a && b == s.b || a == s.b && b == s.a
	default:
		return true
	}
}

func compareSites(s, t site) int {
	return cmp.Or(cmp.Compare(s.kind, t.kind), cmp.Compare(s.a, t.a), cmp.Compare(s.b, t.b))
}

// toll is what goes through a place: flows, dead ones that it may have dropped, the passages with these, and their
// links.
type toll struct {
	flows, dead, passages int
	link                  [2]string
	links                 bool // more than one
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
		if p.dead == 0 {
			continue
		}
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
				t.add(p, p.dead > 0 && slices.Contains(p.suspects, s))
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
	if t.passages > 0 && t.link != p.link {
		t.links = true
	}
	t.dead, t.passages, t.link = t.dead+p.dead, t.passages+1, p.link
}

// named reports whether a place can be named: a link, or what several links share.
func (d *deaths) named(s site) bool { return s.isPair() || d.at[s].links }

// explains reports whether a place may have dropped the packets of all dead flows.
func (d *deaths) explains(s site) bool {
	return d.at[s] != nil && d.at[s].passages == d.all.passages && d.named(s)
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
	return likelihood(
		t.dead,
		t.flows,
	) + likelihood(
		d.all.dead-t.dead,
		d.all.flows-t.flows,
	) - likelihood(
		d.all.dead,
		d.all.flows,
	)
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

// densest is the place in which the share of dead flows is higher than elsewhere, and differs most from it; nil if
// chance explains every difference (likelihood ratios, at the level of judge.FalseAlarms over all places).
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
		others = fmt.Sprintf("the others lose %s", judge.Percent(in.lost, in.sent))
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
	f.Alternatives = d.alternatives(where)
	return f, rest
}

// example names a dead flow.
func example(e *Evidence, i int) string {
	o := &e.Outcomes[i]
	f := o.Dead[0]
	return fmt.Sprintf("%s -> %s %s %s %dB from source port %d, %d of %d lost", e.Source(i).Name(), e.Target(i).Name(),
		o.Pair.Transport, o.Pair.Family, o.Pair.Size, f.Port, f.Sent-f.Received, f.Sent)
}

// alike sets done for the pairs of a place whose losses its share of dead flows explains: so many flows of theirs lost
// everything by chance, and the others lost no more than the limit allows. It returns those of the pairs that fail.
func alike(e *Evidence, where site, share float64, done []bool) []int {
	var partly []int // pairs that lost some of their flows
	chances := map[int]float64{}
	pairs := map[int]int{}    // by number of flows
	wholly := map[int][]int{} // likewise, those that lost all of their flows
	for _, i := range e.Measured {
		o := &e.Outcomes[i]
		from, to := e.Source(i), e.Target(i)
		if done[i] || !where.carries(from, to) && !where.carries(to, from) {
			continue
		}
		flows, dead, rest := flowsOf(o)
		pairs[flows]++
		switch {
		case o.Failure != judge.Lost && o.Failure != 0 || dead == 0:
		case dead == flows:
			wholly[flows] = append(wholly[flows], i)
		default:
			partly = append(partly, i)
			chances[i] = stats.AtLeast(dead, flows, share)
			for _, l := range limits(e.Worksheet.ExpectOf(o.Pair), judge.Lost) {
				chances[i] = min(chances[i], stats.AtLeast(rest.k, rest.n, l.P))
			}
		}
	}
	level := judge.FalseAlarms / float64(len(e.Measured))
	also := slices.DeleteFunc(partly, func(i int) bool { return chances[i] <= level })
	for flows, of := range wholly {
		if stats.AtLeast(len(of), pairs[flows], math.Pow(share, float64(flows))) > level {
			also = append(also, of...)
		}
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

// flowsOf counts the flows of a pair, those of which everything was lost, and what the others lost. A connection is a
// flow of its own. ICMP has no ports: all measurements of a pair are one flow.
func flowsOf(o *judge.Outcome) (flows, dead int, rest share) {
	switch {
	case o.Pair.Transport == checkup.ICMP:
		flows = 1
	case o.Pair.Transport == checkup.UDP && len(o.Flows) > 0:
		flows = len(o.Flows)
	case o.Pair.Transport == checkup.UDP:
		flows = min(checkup.UDPFlows, o.Sent)
	default:
		return o.Sent, o.Sent - o.Received, share{}
	}
	if o.Received == 0 {
		return flows, flows, share{}
	}
	for _, f := range o.Flows {
		if f.Received == 0 {
			dead++
		} else {
			rest.add(f.Sent-f.Received, f.Sent)
		}
	}
	return flows, dead, rest
}
