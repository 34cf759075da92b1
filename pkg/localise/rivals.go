// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
)

const (
	// The most alternatives of a finding that further pairs separate.
	maxRivals = 8
	// The most pairs that are measured to separate the alternatives of one finding, and of how many ways they are chosen.
	maxSeparating = 40
	maxChoice     = 500
	// The most ways of the roster that are compared for one finding.
	maxLookedAt = 20_000
	// How often the evidence that rules out a cause is wanted, because one way may be an exception.
	wanted = 3
)

// ruledOut is the evidence, in nats, by which a cause is worse than another one that rules it out. One way has at most
// as much.
var ruledOut = -math.Log(judge.FalseAlarms)

// rivals are the causes that the sample cannot distinguish: that of the finding, and then its alternatives.
func (c *candidate) rivals() []*candidate {
	if c.others == nil {
		c.others = append([]*candidate{c}, c.l.alternatives(c)...)
	}
	return c.others
}

// affects reports whether a cause affects the requests, and the answers, of a pair between two endpoints, measured or
// not. Causes without direction affect both.
func (c *candidate) affects(from, to *checkup.Endpoint, a judge.Attribute) (there, back bool) {
	if !c.narrow.admits(a) {
		return false, false
	}
	if !c.directed() {
		there = c.carries(from, to)
		return there, there
	}
	return c.carries(from, to), !c.flows && c.carries(to, from)
}

// carries reports whether what goes from one endpoint to another goes through the place.
func (p *place) carries(from, to *checkup.Endpoint) bool {
	switch p.cause {
	case checkup.CauseNodeIngress:
		return to.Node == p.subject
	case checkup.CauseNodeEgress:
		return from.Node == p.subject
	case checkup.CauseNode:
		return from.Node == p.subject || to.Node == p.subject
	case checkup.CauseNodes, checkup.CauseNodesIngress, checkup.CauseNodesEgress:
		out, in := p.has(from), p.has(to)
		return out != in && (p.cause == checkup.CauseNodes || in == (p.cause == checkup.CauseNodesIngress))
	case checkup.CausePair:
		return from.Node == p.from && to.Node == p.to
	case checkup.CauseZones:
		return from.Zone == p.from && to.Zone == p.to
	case checkup.CauseGroups:
		return from.Topology[p.labelKey] == p.labelValue && to.Topology[p.labelKey] == p.labelTo
	case checkup.CauseSource:
		return from.Name() == p.subject
	case checkup.CauseTarget:
		return to.Name() == p.subject
	default:
		return true
	}
}

// has reports whether an endpoint is on one of several nodes.
func (p *place) has(e *checkup.Endpoint) bool {
	if p.label {
		return e.Topology[p.labelKey] == p.labelValue
	}
	return slices.Contains(p.names, e.Node)
}

// forecast says which share of the measurements fails, if a cause is right.
type forecast struct {
	*candidate
	class judge.Failure
	// usual is the share that fails elsewhere; share is that of the cause. For losses, both are of one way.
	usual, share float64
}

// newForecast takes the shares of the first look.
func (c *candidate) newForecast(usual float64) forecast {
	f := forecast{candidate: c, class: c.l.class, usual: usual, share: c.share}
	if f.class == judge.Lost {
		f.usual = oneWay(usual)
		if f.share = (c.share - usual) / (1 - usual); !c.directed() {
			f.share = oneWay(c.share)
		}
	}
	f.share = min(max(f.share, f.usual), 1)
	return f
}

// oneWay is the share of packets that one way loses if the share p of round trips is lost.
func oneWay(p float64) float64 { return 1 - math.Sqrt(1-p) }

// of is the share of a pair's requests, and of its answers, that fails.
func (f *forecast) of(from, to *checkup.Endpoint, a judge.Attribute) [2]float64 {
	there, back := f.affects(from, to, a)
	shares := [2]float64{f.usual, f.usual}
	for i, is := range []bool{there, back} {
		if is {
			shares[i] = 1 - (1-f.usual)*(1-f.share)
		}
	}
	return shares
}

// both is the share of measurements that fails if these shares of the two ways do. What is no loss has no ways.
func (f *forecast) both(ways [2]float64) float64 {
	if f.class != judge.Lost {
		return max(ways[0], ways[1])
	}
	return 1 - (1-ways[0])*(1-ways[1])
}

// against is the evidence, in nats, of a pair against a forecast of its ways.
func (f *forecast) against(o *judge.Outcome, ways [2]float64) float64 {
	one := func(failed, made int, p float64) float64 {
		return tally{made: float64(made), failed: float64(failed)}.against(min(max(p, least), 1-1e-9))
	}
	switch {
	case f.class != judge.Lost:
		if o.Verdict != checkup.Pass && o.Failure != f.class {
			return 0
		}
		failed := 0
		if o.Failure == f.class {
			failed = 1
		}
		return one(failed, 1, f.both(ways))
	case o.Counted:
		return one(o.Sent-o.Arrived, o.Sent, ways[0]) + one(o.Arrived-o.Received, o.Arrived, ways[1])
	default:
		return one(o.Sent-o.Received, o.Sent, f.both(ways))
	}
}

// question is a finding whose cause further pairs are to separate from its alternatives.
type question struct {
	*Found
	forecasts []forecast
	// only datagrams show a loss that TCP repairs.
	datagrams bool
	// others are the causes of other findings.
	others []*candidate
}

// questions are those of some findings that have alternatives, at most twice as many as are listed.
func (x *Explanation) questions(of []*Found) []question {
	var all []question
	for _, f := range of[:min(len(of), 2*maxFindings)] {
		if f.cause == nil || len(f.cause.rivals()) < 2 {
			continue
		}
		c := f.cause
		q := question{Found: f}
		q.datagrams = c.l.class == judge.Lost && c.share < dropShare && slices.ContainsFunc(c.l.attributes,
			func(a judge.Attribute) bool { return datagram(a.Transport) })
		usual := c.elsewhere(q.datagrams)
		for _, d := range c.rivals()[:min(len(c.rivals()), 1+maxRivals)] {
			q.forecasts = append(q.forecasts, d.newForecast(usual))
		}
		for _, g := range x.Found {
			if g != f && g.cause != nil {
				q.others = append(q.others, g.cause)
			}
		}
		all = append(all, q)
	}
	return all
}

// elsewhere is the share of measurements that fail although no cause explains them.
func (c *candidate) elsewhere(datagrams bool) float64 {
	var t tally
	for i := range c.l.all {
		if m := &c.l.all[i]; m.by == open && (!datagrams || m.datagram) {
			t.add(m)
		}
	}
	return min(max(t.failed/max(t.made, 1), least), max(c.share/2, least))
}

// suits reports whether a pair says something about a finding: other findings do not concern it.
func (q *question) suits(from, to *checkup.Endpoint, a judge.Attribute) bool {
	return (!q.datagrams || datagram(a.Transport)) && !slices.ContainsFunc(q.others, func(c *candidate) bool {
		there, back := c.affects(from, to, a)
		return there || back
	})
}

// choice is a pair that may be measured, and how far it is expected to separate each two causes.
type choice struct {
	checkup.Pair
	apart []float64
}

// Separating returns pairs of the worksheet's sources and targets, of the sample or not, whose results separate the
// causes of findings from their alternatives, at most a few for each finding. measurable says which pairs a further
// look can measure, and how often it would. It is deterministic for the same random.
//
// The pair that separates most causes comes first, then the one that separates most of the rest (greedy). Pairs
// that another finding concerns are left out.
func (x *Explanation) Separating(random *rand.Rand, measurable func(checkup.Pair) (count int)) []checkup.Pair {
	var pairs []checkup.Pair
	for _, q := range x.questions(x.Found) {
		pairs = append(pairs, q.separating(random, measurable)...)
	}
	return pairs
}

func (q *question) separating(random *rand.Rand, measurable func(checkup.Pair) int) []checkup.Pair {
	choices := q.choices(random, measurable)
	n := len(q.forecasts)
	missing := slices.Repeat([]float64{wanted * ruledOut}, n*(n-1)/2)
	var pairs []checkup.Pair
	for len(pairs) < maxSeparating {
		best, most := -1, 0.0
		for i := range choices {
			gain := 0.0
			for k, nats := range choices[i].apart {
				gain += min(nats, missing[k])
			}
			if gain > most+fits {
				best, most = i, gain
			}
		}
		if best < 0 {
			break
		}
		for k, nats := range choices[best].apart {
			missing[k] = max(0, missing[k]-nats)
		}
		pairs = append(pairs, choices[best].Pair)
		choices = slices.Delete(choices, best, best+1)
	}
	return pairs
}

// choices are ways of the roster, in a random order, each with the pair that separates most causes.
func (q *question) choices(random *rand.Rand, measurable func(checkup.Pair) int) []choice {
	l := q.cause.l
	sources, targets := random.Perm(len(l.w.Sources)), random.Perm(len(l.w.Targets))
	var all []choice
	for k := range min(len(sources)*len(targets), maxLookedAt) {
		s := sources[k%len(sources)]
		t := targets[(k/len(sources)+k)%len(targets)] // each way once
		from, to := &l.w.Sources[s], &l.w.Targets[t]
		best, most := choice{}, 0.0
		for _, a := range l.attributes {
			pair := checkup.Pair{Source: s, Target: t, Family: a.Family, Transport: a.Transport, Size: a.Size}
			apart, sum := q.apart(from, to, a)
			if sum == 0 || !q.suits(from, to, a) {
				continue
			}
			count := measurable(pair)
			if sum *= float64(count); sum > most {
				for i := range apart {
					apart[i] = min(apart[i]*float64(count), ruledOut)
				}
				best, most = choice{pair, apart}, sum
			}
		}
		if most > 0 {
			all = append(all, best)
		}
		if len(all) == maxChoice {
			break
		}
	}
	return all
}

// apart is how far one measurement is expected to separate each two causes, in nats, and the sum of that.
func (q *question) apart(from, to *checkup.Endpoint, a judge.Attribute) (apart []float64, sum float64) {
	ways := make([][2]float64, len(q.forecasts))
	for i := range q.forecasts {
		ways[i] = q.forecasts[i].of(from, to, a)
	}
	for i := range ways {
		for k := range i {
			nats := 0.0
			if f := &q.forecasts[i]; f.class == judge.Lost && a.Transport == checkup.UDP {
				nats = distance(ways[i][0], ways[k][0]) + distance(ways[i][1], ways[k][1])
			} else {
				nats = distance(f.both(ways[i]), f.both(ways[k]))
			}
			apart, sum = append(apart, nats), sum+nats
		}
	}
	return apart, sum
}

// distance is how much evidence, in nats, one measurement is expected to give against the share that is wrong.
func distance(p, q float64) float64 {
	if p == q {
		return 0
	}
	bounded := func(p float64) float64 { return min(max(p, least), 1-1e-9) }
	return min(tally{1, p}.against(bounded(q)), tally{1, q}.against(bounded(p)))
}

// reconsider rules out causes of a finding by what a further look measured, if that confirms the finding. If its own
// cause is ruled out, the best one of the others is named. Each way counts at most as much as rules out one cause: it
// may be an exception.
func (q *question) reconsider(further *judge.Judgement) {
	var ways [][2]int
	byWay := map[[2]int][]float64{}
	for i := range further.Outcomes {
		o := &further.Outcomes[i]
		a := judge.Attribute{Family: o.Pair.Family, Transport: o.Pair.Transport, Size: o.Pair.Size}
		from, to := &q.cause.l.w.Sources[o.Pair.Source], &q.cause.l.w.Targets[o.Pair.Target]
		if o.Verdict == checkup.Unmeasured || o.Excused {
			continue
		}
		if _, sum := q.apart(from, to, a); sum == 0 || !q.suits(from, to, a) {
			continue
		}
		way := [2]int{o.Pair.Source, o.Pair.Target}
		if byWay[way] == nil {
			ways, byWay[way] = append(ways, way), make([]float64, len(q.forecasts))
		}
		o = alive(o)
		for k := range q.forecasts {
			f := &q.forecasts[k]
			byWay[way][k] += f.against(o, f.of(from, to, a))
		}
	}
	against := make([]float64, len(q.forecasts)) // more than the evidence against the best one of each way
	for _, way := range ways {
		nats := byWay[way]
		best := slices.Min(nats)
		for k := range nats {
			against[k] += min(nats[k]-best, ruledOut)
		}
	}
	fewest := slices.Min(against)
	var left, out []*candidate
	best, lowest := q.cause, math.Inf(1)
	for i := range q.forecasts {
		d := q.forecasts[i].candidate
		if against[i] > fewest+ruledOut-fits {
			out = append(out, d)
			continue
		}
		left = append(left, d)
		if cost := against[i] + plainer*float64(d.degree()); cost < lowest-fits {
			best, lowest = d, cost
		}
	}
	if len(out) == 0 {
		return
	}
	left = append(left, q.cause.others[len(q.forecasts):]...)
	if slices.Contains(left, q.cause) {
		best = q.cause
	}
	q.becomes(best)
	left = slices.DeleteFunc(left, func(d *candidate) bool { return d == best })
	best.others, best.ruledOut = append([]*candidate{best}, left...), out
}

// becomes makes another candidate that explains the same pairs the cause of a finding that is not described yet.
func (f *Found) becomes(c *candidate) {
	if c == f.cause {
		return
	}
	c.newly, c.component = f.cause.newly, f.cause.component
	c.l.visit(c.place, &c.narrowing, c.flows, 0, func(i int32, _ bool) { c.add(i) })
	slices.Sort(c.explained)
	f.cause = c
	named := c.found(nil)
	f.Finding = named.Finding
}

// confirmed reports whether a further look finds what a finding is about. again has the indexes of its outcomes.
func (f *Found) confirmed(further *judge.Judgement, again map[checkup.Pair]int, j *judge.Judgement) bool {
	if f.Component != nil && f.Component.verdict != checkup.Unmeasured {
		return f.Component.verdict == checkup.Fail
	}
	return slices.ContainsFunc(f.Pairs, func(i int) bool {
		k, made := again[j.Outcomes[i].Pair]
		return made && further.Outcomes[k].Verdict == checkup.Fail
	})
}

// reconsider rules out causes of findings that a further look confirms. Findings that then have the same cause become
// one. None of them is described yet.
func (x *Explanation) reconsider(of []*Found, j, further *judge.Judgement, again map[checkup.Pair]int) {
	for _, q := range x.questions(of) {
		if q.confirmed(further, again, j) {
			q.reconsider(further)
		}
	}
	var found []*Found
	for _, f := range x.Found {
		same := func(g *Found) bool {
			return f.cause != nil && g.cause != nil && g.cause.same(f.cause) && g.cause.l == f.cause.l
		}
		if i := slices.IndexFunc(found, same); i >= 0 && (found[i].cause.ruledOut != nil || f.cause.ruledOut != nil) {
			g := found[i]
			g.Pairs = slices.Compact(slices.Sorted(slices.Values(slices.Concat(g.Pairs, f.Pairs))))
			continue
		}
		found = append(found, f)
	}
	x.Found = found
}
