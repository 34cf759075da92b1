// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// The weights of the localiser's costs. One cause costs 1, and what makes an
// explanation worse costs as much as this many more causes.
const (
	// narrowing a place to one family, transport or size, or an attribute to a
	// second one
	narrowCost = 0.25
	// an exception: one node pair, or one transport, that does otherwise than the
	// cause says; so a node of whose five peers one has no trouble is not named,
	// but one of six is
	exceptionCost = 3
	// evidence, in nats, that chance accounts for, and that costs nothing
	chance = 3
	// how much costlier an explanation of the same pairs may be and still be told
	// as one that cannot be excluded
	alternativeCost = 0.3
	// the share of its pairs that a cause of more than one node pair must see fail
	minShare = 0.15
	// from this share of losses up, a loss is a drop: TCP would not repair it
	dropShare = 0.9
)

// maxFindings are listed; the last one sums up the rest. maxAlternatives are
// told of each.
const (
	maxFindings     = 20
	maxAlternatives = 6
)

// localise explains the failed pairs by the fewest causes; doc.go has the model.
// It is a greedy weighted set cover: of all causes, the one of the lowest cost
// per pair that it newly explains comes first, until no pair is left.
func localise(w *checkup.Worksheet, attributes []attribute, outcomes []outcome) []checkup.Finding {
	var accepted []*candidate
	done := make([]bool, len(outcomes)) // slow pairs that a lossy cause accounts for
	for _, class := range []failure{lost, slow, reached} {
		l := newLocaliser(w, attributes, outcomes, class, done)
		if l == nil {
			continue
		}
		chosen := l.cover()
		if class == lost {
			for _, c := range chosen {
				l.delays(c, done)
			}
		}
		accepted = append(accepted, chosen...)
	}
	return findings(accepted)
}

// measured is one measured pair, as evidence.
type measured struct {
	*outcome
	at           int     // in the outcomes
	a, b         int32   // nodes of source and target
	fail         bool    // in the localiser's class
	made, failed float64 // measurements, and how many of them failed
}

// narrow restricts a cause to some attributes; zero values do not restrict.
type narrow struct {
	family    checkup.IPFamily
	transport checkup.Transport
	fromSize  int
}

func (n narrow) admits(a attribute) bool {
	return (n.family == "" || n.family == a.family) &&
		(n.transport == "" || n.transport == a.transport) &&
		a.size >= n.fromSize
}

// is reports whether an attribute has the one value that n names.
func (n narrow) is(a attribute) bool {
	return n.admits(a) && (n.fromSize == 0 || n.fromSize == a.size)
}

// degree says by how many attributes n narrows.
func (n narrow) degree() int {
	d := 0
	for _, set := range []bool{n.family != "", n.transport != "", n.fromSize > 0} {
		if set {
			d++
		}
	}
	return d
}

// String prints the attributes, or nothing.
func (n narrow) String() string {
	var s []string
	if n.family != "" {
		s = append(s, string(n.family))
	}
	if n.transport != "" {
		s = append(s, string(n.transport))
	}
	if n.fromSize > 0 {
		s = append(s, fmt.Sprintf("payloads from %d bytes", n.fromSize))
	}
	if len(s) == 0 {
		return ""
	}
	return strings.Join(s, ", ") + " only"
}

// place is where a cause may be: the pairs whose requests go through it, and
// those whose answers do.
type place struct {
	cause   checkup.FindingCause
	subject string
	there   []int32 // requests; for node and network, either way
	back    []int32 // answers
	pod     bool    // a target that is an existing pod
}

// candidate is one possible cause.
type candidate struct {
	l *localiser
	*place
	narrow
	// flows says that only new flows are concerned, as by a stateful policy: the
	// answers of other flows go through. Else every packet is.
	flows     bool
	explained []int32 // failed pairs, in order
	there     int     // of which by their requests
	passing   []int32 // pairs that should fail, and do not
	scope     int     // measured pairs that it concerns
	share     float64 // of measurements that fail
	links     int     // unordered node pairs among explained
	ways      int     // ordered node pairs among explained
	oneWay    int     // explained pairs whose direction is known to be one
	bothWays  int     // explained pairs that lost packets in both directions
	oddity    float64 // cost of its exceptions
	cost      float64
	// when it was accepted
	gain         int
	alternatives []*candidate
	onlyThis     int
	also         []int // outcomes of another class that it accounts for
}

// localiser is the evidence of one class of failure, indexed.
type localiser struct {
	w          *checkup.Worksheet
	class      failure
	attributes []attribute
	values     []narrow // every family, transport and size
	narrows    []narrow // by one attribute
	narrows2   []narrow // by two
	all        []measured
	fails      int
	nodes      []string
	covered    []bool
	candidates []*candidate
	of         map[int32][]*candidate // by explained pair
	key        map[string]int32       // node index by name
}

// newLocaliser returns nil if no pair failed in the class.
func newLocaliser(w *checkup.Worksheet, attributes []attribute, outcomes []outcome, class failure, done []bool) *localiser {
	if !slices.ContainsFunc(outcomes, func(o outcome) bool { return o.failure == class }) {
		return nil
	}
	l := &localiser{w: w, class: class, attributes: attributes, of: map[int32][]*candidate{}, key: map[string]int32{}}
	node := func(name string) int32 {
		i, ok := l.key[name]
		if !ok {
			i = int32(len(l.nodes))
			l.key[name] = i
			l.nodes = append(l.nodes, name)
		}
		return i
	}
	for i := range outcomes {
		o := &outcomes[i]
		if o.verdict == checkup.Unmeasured || done[i] {
			continue
		}
		m := measured{outcome: o, at: i, fail: o.failure == class, made: 1}
		switch {
		case class == lost:
			m.made, m.failed = float64(o.sent), float64(o.sent-o.received)
		case o.verdict == checkup.Fail && !m.fail:
			continue // a pair through which nothing comes is neither slow nor fast
		case m.fail:
			m.failed = 1
		}
		m.a, m.b = node(w.Sources[o.pair.Source].Node), node(w.Targets[o.pair.Target].Node)
		if m.fail {
			l.fails++
		}
		l.all = append(l.all, m)
	}
	if l.fails == 0 {
		return nil
	}
	l.covered = make([]bool, len(l.all))
	l.narrowings()
	return l
}

// narrowings lists what a cause may be narrowed to.
func (l *localiser) narrowings() {
	var families, transports, sizes []narrow
	for _, a := range l.attributes {
		families = append(families, narrow{family: a.family})
		transports = append(transports, narrow{transport: a.transport})
		sizes = append(sizes, narrow{fromSize: a.size})
	}
	slices.SortFunc(sizes, func(a, b narrow) int { return cmp.Compare(a.fromSize, b.fromSize) })
	families, transports, sizes = distinct(families), distinct(transports), distinct(sizes)
	l.values = slices.Concat(families, transports, sizes)
	if len(sizes) > 0 {
		sizes = sizes[1:] // from the smallest size up is everything
	}
	for _, kind := range [][]narrow{families, transports, sizes} {
		if len(kind) > 1 || len(kind) == 1 && kind[0].fromSize > 0 {
			l.narrows = append(l.narrows, kind...)
		}
	}
	for i, a := range l.narrows {
		for _, b := range l.narrows[i+1:] {
			both := narrow{cmp.Or(a.family, b.family), cmp.Or(a.transport, b.transport), max(a.fromSize, b.fromSize)}
			if both.degree() == 2 {
				l.narrows2 = append(l.narrows2, both)
			}
		}
	}
}

// distinct drops repetitions, keeping the order.
func distinct(of []narrow) []narrow {
	var kept []narrow
	for _, n := range of {
		if !slices.Contains(kept, n) {
			kept = append(kept, n)
		}
	}
	return kept
}

// places lists every place that a failed pair went through, in a fixed order.
func (l *localiser) places() []*place {
	n := len(l.nodes)
	from, to := make([][]int32, n), make([][]int32, n)
	sources, targets := make([][]int32, len(l.w.Sources)), make([][]int32, len(l.w.Targets))
	type two struct{ a, b int32 }
	type zones struct{ a, b string }
	byPair, byZones := map[two][]int32{}, map[zones][]int32{}
	all := make([]int32, len(l.all))
	for i := range l.all {
		m, i := &l.all[i], int32(i)
		all[i] = i
		from[m.a], to[m.b] = append(from[m.a], i), append(to[m.b], i)
		sources[m.pair.Source], targets[m.pair.Target] = append(sources[m.pair.Source], i), append(targets[m.pair.Target], i)
		byPair[two{m.a, m.b}] = append(byPair[two{m.a, m.b}], i)
		if za, zb := l.w.Sources[m.pair.Source].Zone, l.w.Targets[m.pair.Target].Zone; za != "" && zb != "" {
			byZones[zones{za, zb}] = append(byZones[zones{za, zb}], i)
		}
	}
	places := []*place{{cause: checkup.CauseNetwork, there: all}}
	node, source, target := map[int32]bool{}, map[int]bool{}, map[int]bool{}
	pair, zone := map[two]bool{}, map[zones]bool{}
	addNode := func(x int32) {
		if node[x] {
			return
		}
		node[x] = true
		any := slices.Clone(from[x])
		for _, i := range to[x] {
			if l.all[i].a != x {
				any = append(any, i)
			}
		}
		slices.Sort(any)
		places = append(places,
			&place{cause: checkup.CauseNodeIngress, subject: l.nodes[x], there: to[x], back: from[x]},
			&place{cause: checkup.CauseNodeEgress, subject: l.nodes[x], there: from[x], back: to[x]},
			&place{cause: checkup.CauseNode, subject: l.nodes[x], there: any})
	}
	addPair := func(a, b int32) {
		if pair[two{a, b}] {
			return
		}
		pair[two{a, b}] = true
		p := &place{cause: checkup.CausePair, subject: l.nodes[a] + " -> " + l.nodes[b], there: byPair[two{a, b}]}
		if a != b {
			p.back = byPair[two{b, a}]
		}
		places = append(places, p)
	}
	addZones := func(a, b string) {
		if zone[zones{a, b}] || a == "" || b == "" {
			return
		}
		zone[zones{a, b}] = true
		p := &place{cause: checkup.CauseZones, subject: a + " -> " + b, there: byZones[zones{a, b}]}
		if a != b {
			p.back = byZones[zones{b, a}]
		}
		places = append(places, p)
	}
	for i := range l.all {
		m := &l.all[i]
		if !m.fail {
			continue
		}
		addNode(m.a)
		addNode(m.b)
		addPair(m.a, m.b)
		addPair(m.b, m.a)
		s, t := l.w.Sources[m.pair.Source], l.w.Targets[m.pair.Target]
		addZones(s.Zone, t.Zone)
		addZones(t.Zone, s.Zone)
		if k := m.pair.Source; !source[k] {
			source[k] = true
			places = append(places, &place{cause: checkup.CauseSource, subject: s.Name(), there: sources[k]})
		}
		if k := m.pair.Target; !target[k] {
			target[k] = true
			places = append(places, &place{cause: checkup.CauseTarget, subject: t.Name(), there: targets[k], pod: t.Pod != ""})
		}
	}
	return places
}

// explains reports whether a failed pair may be due to the place, by the
// direction in which it lost packets.
func (p *place) explains(m *measured, back bool) bool {
	switch p.cause {
	case checkup.CauseNodeIngress, checkup.CauseNodeEgress, checkup.CausePair, checkup.CauseZones:
		if back {
			return m.carried != checkup.DirectionForward
		}
		return m.carried != checkup.DirectionReturn
	case checkup.CauseNode:
		// Where nothing comes through either way, requests are lost already.
		return m.received > 0 || m.carried != checkup.DirectionReturn
	default:
		return true
	}
}

// datagram reports whether a transport shows each lost packet; TCP repairs
// losses, and shows them as delays.
func datagram(t checkup.Transport) bool { return t == checkup.UDP || t == checkup.ICMP }

// tally is what a cell of the evidence sums up.
type tally struct{ made, failed float64 }

func (t *tally) add(m *measured) {
	t.made += m.made
	t.failed += m.failed
}

// against is the evidence, in nats, that the cell's share of failures is not the
// one of the whole scope: the logarithm of the likelihood ratio.
func (t tally) against(share float64) float64 {
	if t.made == 0 {
		return 0
	}
	q := t.failed / t.made
	nats := 0.0
	if q > 0 {
		nats += q * math.Log(q/share)
	}
	if q < 1 {
		nats += (1 - q) * math.Log((1-q)/(1-share))
	}
	return t.made * nats
}

// assess works out what a cause explains and what it costs; nil if it explains
// nothing.
func (l *localiser) assess(p *place, n narrow, flows bool) *candidate {
	c := &candidate{l: l, place: p, narrow: n, flows: flows}
	var scope []int32
	var datagrams, all tally
	failing := 0
	take := func(list []int32, back bool) {
		for _, i := range list {
			m := &l.all[i]
			if !n.admits(l.attributes[m.attr]) {
				continue
			}
			if m.fail {
				if !p.explains(m, back) {
					continue
				}
				c.explained = append(c.explained, i)
				if !back {
					c.there++
				}
			} else {
				c.passing = append(c.passing, i)
			}
			scope = append(scope, i)
			all.add(m)
			if datagram(m.pair.Transport) {
				datagrams.add(m)
			}
		}
	}
	take(p.there, false)
	there := len(scope)
	if !flows {
		take(p.back, true)
	}
	if len(c.explained) == 0 {
		return nil
	}
	slices.Sort(c.explained)
	c.scope = len(scope)

	// A loss that is not total is judged by datagrams alone, where there are any.
	counts := func(*measured) bool { return true }
	total := all
	if part := datagrams.failed / max(datagrams.made, 1); l.class == lost && part > 0 && part < dropShare {
		counts = func(m *measured) bool { return datagram(m.pair.Transport) }
		total = datagrams
	}
	c.share = total.failed / max(total.made, 1)
	relevant := 0
	for _, i := range scope {
		if m := &l.all[i]; counts(m) {
			relevant++
			if m.fail {
				failing++
			}
		}
	}
	c.oddity = l.exceptions(c, scope, there, counts)
	c.cost = 1 + c.oddity
	switch {
	case p.cause == checkup.CauseNetwork && n.degree() > 0:
		c.cost += narrowCost * float64(n.degree()-1)
	default:
		c.cost += narrowCost * float64(n.degree())
	}
	c.weigh()
	if p.cause != checkup.CausePair && float64(failing) < minShare*float64(relevant) {
		return nil
	}
	return c
}

// exceptions is the cost of what in the scope does otherwise than the rest of
// it: by node pair, by whether requests or answers go through the place, by each
// attribute, and for wide places by node. The first so many of the scope are
// those whose requests do.
func (l *localiser) exceptions(c *candidate, scope []int32, there int, counts func(*measured) bool) float64 {
	wide := c.cause == checkup.CauseNetwork || c.cause == checkup.CauseZones
	var sources, targets []tally
	if wide {
		sources, targets = make([]tally, len(l.nodes)), make([]tally, len(l.nodes))
	}
	byAttribute := make([]tally, len(l.attributes))
	cells := make([]tally, 2, 16) // the first two are for requests and answers
	var a, b int32 = -1, -1
	for k, i := range scope {
		m := &l.all[i]
		if !counts(m) {
			continue
		}
		// Pairs of one source and target follow one another.
		if m.a != a || m.b != b {
			cells = append(cells, tally{})
			a, b = m.a, m.b
		}
		cells[len(cells)-1].add(m)
		if k < there && (c.cause != checkup.CauseNode || l.nodes[m.a] == c.subject) {
			cells[0].add(m)
		} else {
			cells[1].add(m)
		}
		byAttribute[m.attr].add(m)
		if wide {
			sources[m.a].add(m)
			targets[m.b].add(m)
		}
	}
	for _, n := range l.values {
		var t tally
		for i, a := range l.attributes {
			if n.is(a) {
				t.made += byAttribute[i].made
				t.failed += byAttribute[i].failed
			}
		}
		cells = append(cells, t)
	}
	cells = slices.Concat(cells, sources, targets)

	// Of many cells one is out of line by chance. But whether a pair is slow, or
	// gets through, is not a matter of chance to begin with.
	allowed := float64(chance)
	if l.class == lost {
		allowed += math.Log(float64(len(cells)))
	}
	share := min(max(c.share, 1e-9), 1-1e-9)
	cost := 0.0
	for _, t := range cells {
		cost += min(exceptionCost, max(0, t.against(share)-allowed))
	}
	return cost
}

// weigh counts the node pairs and directions among what is explained.
func (c *candidate) weigh() {
	links, ways := map[[2]int32]bool{}, map[[2]int32]bool{}
	var a, b int32 = -1, -1
	for _, i := range c.explained {
		m := &c.l.all[i]
		if m.a != a || m.b != b { // pairs of one source and target follow one another
			a, b = m.a, m.b
			links[[2]int32{min(a, b), max(a, b)}] = true
			ways[[2]int32{a, b}] = true
		}
		switch m.carried {
		case checkup.DirectionForward, checkup.DirectionReturn:
			c.oneWay++
		case checkup.DirectionBoth:
			c.bothWays++
		}
	}
	c.links, c.ways = len(links), len(ways)
}

// weak reports whether there is too little to name more than a node pair.
func (c *candidate) weak() bool {
	switch c.cause {
	case checkup.CausePair:
		return false
	case checkup.CauseNetwork:
		return c.ways < 2
	default:
		return c.links < 2
	}
}

// rank orders causes that explain the same at the same cost: what is more
// particular comes first.
func (c *candidate) rank() int {
	switch c.cause {
	case checkup.CausePair:
		if c.links == 1 {
			return 0
		}
		return 90
	case checkup.CauseNodeIngress, checkup.CauseNodeEgress:
		// Without a known direction they are no more likely than node.
		if c.flows || c.oneWay > c.bothWays {
			return 10
		}
		return 12
	case checkup.CauseNode:
		return 11
	case checkup.CauseTarget:
		if c.pod {
			return 9
		}
		return 20
	case checkup.CauseSource:
		return 21
	case checkup.CauseZones:
		return 30
	default:
		switch {
		case c.degree() == 0:
			return 50
		case c.fromSize > 0:
			return 42
		case c.transport != "":
			return 41
		default:
			return 40
		}
	}
}

// compare orders candidates of the same cost per pair.
func (c *candidate) compare(d *candidate) int {
	return cmp.Or(
		cmp.Compare(c.rank(), d.rank()),
		cmp.Compare(d.there, c.there),
		cmp.Compare(c.degree(), d.degree()),
		cmp.Compare(c.cost, d.cost),
		cmp.Compare(slices.Index(checkup.FindingCauses, c.cause), slices.Index(checkup.FindingCauses, d.cause)),
		cmp.Compare(c.subject, d.subject),
		// Where one transport alone has the large payloads, it is named, not they.
		cmp.Compare(c.fromSize, d.fromSize),
		cmp.Compare(c.transport, d.transport),
		cmp.Compare(c.family, d.family),
		-compareBool(c.flows, d.flows),
	)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	default:
		return -1
	}
}

// propose makes every candidate that is worth a look: a place, narrowed only if
// it does not fit as a whole, and by two attributes only if one does not do.
func (l *localiser) propose() {
	const fits = 1e-9
	for _, p := range l.places() {
		modes := []bool{false}
		switch {
		case len(p.back) > 0 && l.class == reached:
			// What lets new flows through need not let anything else through.
			modes = []bool{true}
		case len(p.back) > 0:
			modes = append(modes, true)
		}
		narrowest := len(l.narrows) + len(l.narrows2)
		if p.cause == checkup.CauseSource {
			narrowest = 0
		}
		for _, flows := range modes {
			whole := l.assess(p, narrow{}, flows)
			if whole == nil && p.cause == checkup.CausePair {
				continue
			}
			l.add(whole)
			if narrowest == 0 || whole != nil && whole.cost < 1+fits {
				continue
			}
			done := false
			for _, n := range l.narrows {
				if c := l.assess(p, n, flows); c != nil {
					l.add(c)
					done = done || whole != nil && len(c.explained) == len(whole.explained) && c.cost < 1+narrowCost+fits
				}
			}
			if done {
				continue
			}
			for _, n := range l.narrows2 {
				l.add(l.assess(p, n, flows))
			}
		}
	}
}

func (l *localiser) add(c *candidate) {
	if c == nil {
		return
	}
	l.candidates = append(l.candidates, c)
	for _, i := range c.explained {
		l.of[i] = append(l.of[i], c)
	}
}

// queue is a heap of candidates, the cheapest per newly explained pair on top.
type queue []*candidate

func (q queue) Len() int      { return len(q) }
func (q queue) Swap(i, k int) { q[i], q[k] = q[k], q[i] }
func (q queue) Less(i, k int) bool {
	// Rounded, so that equal sums added up in another order are equal.
	a, b := math.Round(1e9*q[i].cost/float64(q[i].gain)), math.Round(1e9*q[k].cost/float64(q[k].gain))
	if a != b {
		return a < b
	}
	return q[i].compare(q[k]) < 0
}
func (q *queue) Push(x any) { *q = append(*q, x.(*candidate)) }
func (q *queue) Pop() any {
	last := len(*q) - 1
	c := (*q)[last]
	*q = (*q)[:last]
	return c
}

// cover chooses causes until every failed pair is explained.
func (l *localiser) cover() []*candidate {
	l.propose()
	q := make(queue, 0, len(l.candidates))
	for _, c := range l.candidates {
		c.gain = len(c.explained)
		if !c.weak() {
			q = append(q, c)
		}
	}
	heap.Init(&q)
	var chosen []*candidate
	for uncovered := l.fails; uncovered > 0 && len(q) > 0; {
		c := q[0]
		left := l.left(c)
		switch {
		case len(left) == 0:
			heap.Pop(&q)
		case len(left) < c.gain:
			// What it newly explains only ever shrinks, so a candidate that is on
			// top with its present count is the best.
			c.gain = len(left)
			heap.Fix(&q, 0)
		default:
			heap.Pop(&q)
			c.alternatives = l.alternatives(c, left)
			for _, i := range left {
				l.covered[i] = true
			}
			uncovered -= len(left)
			chosen = append(chosen, c)
		}
	}
	return prune(chosen)
}

// left is what a candidate explains and nothing chosen does.
func (l *localiser) left(c *candidate) []int32 {
	var left []int32
	for _, i := range c.explained {
		if !l.covered[i] {
			left = append(left, i)
		}
	}
	return left
}

// alternatives are the candidates that explain the same of what is left at about
// the same cost.
func (l *localiser) alternatives(c *candidate, left []int32) []*candidate {
	var same []*candidate
	for _, d := range l.of[left[0]] {
		if d.place == c.place && d.narrow == c.narrow || d.cost > c.cost+alternativeCost+1e-9 || !slices.Equal(left, l.left(d)) {
			continue
		}
		same = append(same, d)
	}
	// Not the same place narrowed further, without need.
	all := append([]*candidate{c}, same...)
	same = slices.DeleteFunc(same, func(d *candidate) bool {
		return slices.ContainsFunc(all, func(e *candidate) bool { return e.place == d.place && e.narrow.wider(d.narrow) }) || c.excludes(d)
	})
	slices.SortFunc(same, (*candidate).compare)
	return slices.CompactFunc(same, func(d, e *candidate) bool { return d.place == e.place && d.narrow == e.narrow })
}

// wider reports whether n narrows less than o does, and in nothing else.
func (n narrow) wider(o narrow) bool {
	return n != o && (n.family == "" || n.family == o.family) && (n.transport == "" || n.transport == o.transport) && n.fromSize <= o.fromSize
}

// sureOneWay is how many pairs must have lost packets in one and the same
// direction only, of those that lost a part, for a loss in both to be excluded:
// if both were as likely, this would be chance in 1 of 32 cases.
const sureOneWay = 5

// excludes reports whether what speaks for c speaks against d: a node that loses
// a part of the packets both ways would not lose them in one only.
func (c *candidate) excludes(d *candidate) bool {
	return d.cause == checkup.CauseNode && (c.cause == checkup.CauseNodeIngress || c.cause == checkup.CauseNodeEgress) &&
		c.share < dropShare && c.oneWay >= sureOneWay && c.bothWays == 0
}

// prune drops causes all of whose pairs others explain, the latest first.
func prune(chosen []*candidate) []*candidate {
	times := map[int32]int{}
	for _, c := range chosen {
		for _, i := range c.explained {
			times[i]++
		}
	}
	var kept []*candidate
	for _, c := range slices.Backward(chosen) {
		if !slices.ContainsFunc(c.explained, func(i int32) bool { return times[i] == 1 }) {
			for _, i := range c.explained {
				times[i]--
			}
			continue
		}
		kept = append(kept, c)
	}
	slices.Reverse(kept)
	for _, c := range kept {
		for _, i := range c.explained {
			if times[i] == 1 {
				c.onlyThis++
			}
		}
	}
	return kept
}

// delays gives a cause that loses a part of the packets the slow pairs of its
// place too: TCP repairs a loss by waiting.
func (l *localiser) delays(c *candidate, done []bool) {
	if c.share >= dropShare {
		return
	}
	for _, i := range c.passing {
		if m := &l.all[i]; m.failure == slow {
			c.also = append(c.also, m.at)
			done[m.at] = true
		}
	}
}

// findings puts the chosen causes into words, what explains most first.
func findings(chosen []*candidate) []checkup.Finding {
	slices.SortStableFunc(chosen, func(a, b *candidate) int {
		return cmp.Compare(len(b.explained)+len(b.also), len(a.explained)+len(a.also))
	})
	// A slow pair may be due to two lossy causes.
	times := map[int]int{}
	for _, c := range chosen {
		for _, i := range c.also {
			times[i]++
		}
	}
	for _, c := range chosen {
		for _, i := range c.also {
			if times[i] == 1 {
				c.onlyThis++
			}
		}
	}
	listed := chosen
	if len(chosen) > maxFindings {
		listed = chosen[:maxFindings-1]
	}
	var list []checkup.Finding
	for _, c := range listed {
		list = append(list, c.finding())
	}
	if rest := chosen[len(listed):]; len(rest) > 0 {
		list = append(list, further(rest))
	}
	return list
}

// further sums up the findings that are not listed.
func further(rest []*candidate) checkup.Finding {
	first := rest[0].finding()
	f := checkup.Finding{Cause: first.Cause, Subject: count(len(rest), "more finding")}
	explained := map[int]bool{}
	for _, c := range rest {
		if cause, _, _ := c.name(); cause != f.Cause {
			f.Cause = checkup.CauseNetwork
		}
		f.OnlyThis += c.onlyThis
		for _, i := range c.explained {
			explained[c.l.all[i].at] = true
		}
		for _, i := range c.also {
			explained[i] = true
		}
	}
	f.Explains = len(explained)
	f.Message = fmt.Sprintf("%s, the first of them: %s", f.Subject, first.Message)
	return f
}

// finding puts a cause into words.
func (c *candidate) finding() checkup.Finding {
	cause, subject, rest := c.name()
	f := checkup.Finding{
		Cause: cause, Subject: subject, Family: rest.family, Transport: rest.transport, FromSize: rest.fromSize,
		Explains: len(c.explained) + len(c.also), OnlyThis: c.onlyThis,
	}
	f.Message = c.phrase(cause, subject)
	if s := rest.String(); s != "" {
		f.Message += ", " + s
	}
	f.Message += ": " + c.effect()
	f.For = c.evidence()
	f.Against = c.contradictions()
	for i, d := range c.alternatives {
		if i == maxAlternatives {
			f.Alternatives = append(f.Alternatives, fmt.Sprintf("and %d more", len(c.alternatives)-i))
			break
		}
		f.Alternatives = append(f.Alternatives, d.String())
	}
	return f
}

// name of a cause. One that is narrowed, but is everywhere, goes by an attribute.
func (c *candidate) name() (checkup.FindingCause, string, narrow) {
	rest := c.narrow
	if c.cause != checkup.CauseNetwork || rest.degree() == 0 {
		return c.cause, c.subject, rest
	}
	switch {
	case rest.fromSize > 0:
		size := strconv.Itoa(rest.fromSize)
		rest.fromSize = 0
		return checkup.CauseSize, size, rest
	case rest.transport != "":
		rest.transport = ""
		return checkup.CauseTransport, string(c.transport), rest
	default:
		return checkup.CauseFamily, string(c.family), narrow{}
	}
}

// String is "<cause> <subject> (<narrowed to>)".
func (c *candidate) String() string {
	cause, subject, rest := c.name()
	s := string(cause)
	if subject != "" {
		s += " " + subject
	}
	if n := rest.String(); n != "" {
		s += " (" + n + ")"
	}
	return s
}

// phrase says where, for people.
func (c *candidate) phrase(cause checkup.FindingCause, subject string) string {
	switch cause {
	case checkup.CauseNodeIngress:
		return "into the pods of " + subject
	case checkup.CauseNodeEgress:
		return "out of the pods of " + subject
	case checkup.CauseNode:
		return "into and out of the pods of " + subject
	case checkup.CausePair:
		return "from " + strings.Replace(subject, " -> ", " to ", 1)
	case checkup.CauseZones:
		return "from zone " + strings.Replace(subject, " -> ", " to ", 1)
	case checkup.CauseSource:
		return "whatever source " + subject + " measures"
	case checkup.CauseTarget:
		return "target " + subject
	case checkup.CauseSize:
		return "payloads of " + subject + " bytes and more"
	case checkup.CauseNetwork:
		return "the whole network"
	default:
		return subject + " everywhere"
	}
}

// effect says what happens there.
func (c *candidate) effect() string {
	switch {
	case c.l.class == reached:
		return "gets through, and must not"
	case c.l.class == slow:
		there, elsewhere := c.medians()
		s := "too slow, median round trip " + micros(there)
		if elsewhere > 0 {
			s += ", elsewhere " + micros(elsewhere)
		}
		return s
	case c.share >= 1 && c.flows:
		return "no new flow gets through"
	case c.share >= 1:
		return "nothing gets through"
	default:
		return fmt.Sprintf("about %.0f%% of the measurements are lost", 100*c.share)
	}
}

// medians of the pairs' median delays, of those explained and of those that pass
// outside the scope; 0 where there are none.
func (c *candidate) medians() (there, elsewhere int64) {
	explained, inside := map[int32]bool{}, map[int32]bool{}
	for _, i := range c.explained {
		explained[i] = true
	}
	for _, i := range c.passing {
		inside[i] = true
	}
	var of, others []int64
	for i := range c.l.all {
		m := &c.l.all[i]
		if len(m.rtts) == 0 {
			continue
		}
		switch median := quantile(slices.Sorted(slices.Values(m.rtts)), 0.5); {
		case explained[int32(i)]:
			of = append(of, median)
		case !m.fail && !inside[int32(i)]:
			others = append(others, median)
		}
	}
	slices.Sort(of)
	slices.Sort(others)
	return quantile(of, 0.5), quantile(others, 0.5)
}

// evidence for the cause, a line each.
func (c *candidate) evidence() []string {
	var lines []string
	s := fmt.Sprintf("%d of %s %s fail", len(c.explained), count(c.scope, "measured pair"), c.where())
	in := map[int32]bool{}
	for _, i := range c.explained {
		in[i] = true
	}
	for _, i := range c.passing {
		in[i] = true
	}
	pass, others := 0, 0
	for i := range c.l.all {
		if !in[int32(i)] {
			others++
			if c.l.all[i].verdict == checkup.Pass {
				pass++
			}
		}
	}
	if others > 0 {
		s += fmt.Sprintf("; %d of %d pairs elsewhere pass", pass, others)
	}
	lines = append(lines, s)

	var forward, back, both int
	for _, i := range c.explained {
		switch c.l.all[i].direction {
		case checkup.DirectionForward:
			forward++
		case checkup.DirectionReturn:
			back++
		case checkup.DirectionBoth:
			both++
		}
	}
	if n := forward + back + both; n > 0 {
		var parts []string
		for _, p := range []struct {
			n    int
			what string
		}{{forward, "requests did not arrive in %d"}, {back, "answers did not come back in %d"}, {both, "both were lost in %d"}} {
			if p.n > 0 {
				parts = append(parts, fmt.Sprintf(p.what, p.n))
			}
		}
		lines = append(lines, fmt.Sprintf("by the target's own count of udp requests: %s of %s", strings.Join(parts, ", "), count(n, "pair")))
	}
	if c.flows {
		pass, all := 0, 0
		for _, i := range c.back {
			if m := &c.l.all[i]; c.admits(c.l.attributes[m.attr]) {
				all++
				if !m.fail {
					pass++
				}
			}
		}
		if pass > 0 {
			s := fmt.Sprintf("%d of %s the other way round pass", pass, count(all, "pair"))
			if c.l.class == lost {
				s += ": their answers get through, so only new flows are concerned, as by a policy"
			}
			lines = append(lines, s)
		}
	}
	if n := c.passed(); n > 0 && c.byChance() {
		lines = append(lines, fmt.Sprintf("%d of the %d pass, as chance has it where a part is concerned", n, c.scope))
	}
	if len(c.also) > 0 {
		lines = append(lines, fmt.Sprintf("%s of the same place too slow, as where TCP repairs a loss", are(len(c.also), "pair")))
	}
	return lines
}

// passed is how many pairs of the scope pass.
func (c *candidate) passed() int {
	n := 0
	for _, i := range c.passing {
		if c.l.all[i].verdict == checkup.Pass {
			n++
		}
	}
	return n
}

// are prints a number of things with its verb.
func are(n int, noun string) string {
	if n == 1 {
		return "1 " + noun + " is"
	}
	return fmt.Sprintf("%d %ss are", n, noun)
}

// where names the pairs of the scope.
func (c *candidate) where() string {
	cause, subject, rest := c.name()
	var s string
	both := !c.flows && len(c.back) > 0
	switch cause {
	case checkup.CauseNodeIngress, checkup.CauseNodeEgress, checkup.CauseNode:
		switch {
		case both || cause == checkup.CauseNode:
			s = "into or out of " + subject
		case cause == checkup.CauseNodeIngress:
			s = "into " + subject
		default:
			s = "out of " + subject
		}
	case checkup.CausePair, checkup.CauseZones:
		from, to, _ := strings.Cut(subject, " -> ")
		s = fmt.Sprintf("from %s to %s", from, to)
		if both {
			s = fmt.Sprintf("between %s and %s", from, to)
		}
	case checkup.CauseSource:
		s = "out of " + subject
	case checkup.CauseTarget:
		s = "into " + subject
	case checkup.CauseSize:
		s = "of " + subject + " bytes and more"
	case checkup.CauseNetwork:
		s = "in all"
	default:
		s = "of " + subject
	}
	if n := rest.String(); n != "" {
		s += " (" + n + ")"
	}
	return s
}

// byChance reports whether what passes in the scope is what chance lets pass: the
// cause concerns a part of the packets, and nothing stands out.
func (c *candidate) byChance() bool { return c.share < dropShare && c.oddity == 0 }

// contradictions name what passes although the cause would have it fail.
func (c *candidate) contradictions() []string {
	if c.byChance() {
		return nil
	}
	var names []string
	n := 0
	for _, i := range c.passing {
		m := &c.l.all[i]
		if m.verdict != checkup.Pass {
			continue
		}
		if n++; n > 3 {
			continue
		}
		names = append(names, fmt.Sprintf("%s -> %s %s %s %dB", name(c.l.w.Sources, m.pair.Source), name(c.l.w.Targets, m.pair.Target), m.pair.Transport, m.pair.Family, m.pair.Size))
	}
	if n == 0 {
		return nil
	}
	s := strings.Join(names, ", ")
	if more := n - len(names); more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return []string{fmt.Sprintf("%d of %s %s pass: %s", n, count(c.scope, "measured pair"), c.where(), s)}
}
