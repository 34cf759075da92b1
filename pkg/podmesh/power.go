// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/localise"
	"github.com/checkplan/checkplan/pkg/stats"
)

// power is the probability that a run of a mesh fails because of a loss, by where packets are lost. 0 to 1; -1 if the
// sample has no such place. It is a lower bound: only the losses at that place count.
type power struct {
	loss    checkup.Percent // share of the packets that are lost at the place. 100% is a dead place.
	pair    float64         // packets from the pods of one node to those of another one, requests and answers
	ingress float64         // packets to the pods of one node, requests and answers
	zones   float64         // packets from one zone to another one
	network float64         // all packets, requests and answers
}

// powerLosses are the losses for which explain shows the power, in percent.
var powerLosses = []checkup.Percent{0.5, 1.5, 2, 3, 5, 10, 20, 100}

// often is the probability with which explain says that a loss is seen.
const often = 0.95

// powers returns what a run can see, for each of powerLosses.
//
// It uses the statistics of pkg/judge. If a loss is partial, TCP repairs it, therefore only datagrams count if there
// are any, and where packets are lost on their way to a place, only those that targets count (udp) if there are any.
// Packets are lost independently. Places are those with the fewest packets: other nodes, pairs and zones see more. The
// second look measures what the first one finds, within its limit of pairs, and has as many tests as it may have.
func (s *sight) powers() []power {
	rows := make([]power, len(powerLosses))
	for i, loss := range powerLosses {
		p := float64(loss) / 100
		rows[i] = power{loss, s.pair(p), s.ingress.seen(p), s.zones.seen(p), s.network.seen(roundTrip(p))}
	}
	return rows
}

// roundTrip is the share of round trips that fail if the share p of the packets of each way is lost.
func roundTrip(p float64) float64 { return 1 - (1-p)*(1-p) }

// sight is what a sample can see.
type sight struct {
	// singles are the pairs between two nodes that show partial losses.
	singles                          []spot
	between, ingress, zones, network spot
}

// pair is the probability that a loss from one node to another is seen: by the pairs between them, each alone, or by
// all together.
func (s *sight) pair(p float64) float64 {
	missed := 1.0
	for _, one := range s.singles {
		missed *= 1 - one.seen(p)
	}
	return max(1-missed, s.between.seen(p))
}

// spot is a test of the packets that go through a place.
type spot struct {
	// packets that are tested in the first look, and in the second; no second look if 0.
	first, second int
	// fails are the losses that fail the place in the first look; suspect those that lead to a second look, and confirms
	// those that then fail it.
	fails, suspect, confirms int
	// stops are the points of the second look at which it ends, and the place has failed.
	stops  checkup.Stops
	absent bool
}

// seen is the probability that the spot fails, if the share p of its packets is lost. -1 if there is no such spot.
func (s spot) seen(p float64) float64 {
	switch {
	case s.absent:
		return -1
	case p >= 1:
		return 1 // nothing is answered
	case s.second == 0:
		return stats.AtLeast(s.fails, s.first, p)
	default:
		return stats.AtLeast(s.suspect, s.first, p) * s.confirmed(p)
	}
}

// confirmed is the probability that the second look fails the spot.
func (s spot) confirmed(p float64) float64 {
	if len(s.stops) == 0 {
		return stats.AtLeast(s.confirms, s.second, p)
	}
	var at []stats.Point
	for _, stop := range s.stops {
		at = append(at, stats.Point{N: stop.After, K: stop.Lost})
	}
	return stats.AtLeastOnce(append(at, stats.Point{N: s.second, K: s.confirms}), p)
}

// smallest is the smallest loss, as a share, that is seen with probability often or more. seen must not decrease.
func smallest(seen func(p float64) float64) float64 {
	low, high := 0.0, 1.0
	for range 40 {
		if p := (low + high) / 2; seen(p) >= often {
			high = p
		} else {
			low = p
		}
	}
	return high
}

// sightOf computes the tests of a worksheet. confirm says that a second look must confirm a failure.
func sightOf(w *checkup.Worksheet, confirm bool) *sight {
	all, trips, ways := countsOf(w)
	at, tests := countPlaces(w), limitsOf(w.Expect)
	most, _ := mostAgain(w)
	// tested are the levels of the two looks, that of the stopping points of the second, 0 without any, and what leads
	// from the first to the second.
	type tested struct {
		first, second, stops float64
		suspect              func(t judge.Test) bool
	}
	pairs, components := at.total*len(all), localise.Components(w)
	again := min(pairs, most)
	alone := tested{
		judge.Level(w, pairs*tests), judge.LevelToTheEnd(w, again*tests), judge.LevelAtStops(w, again*judge.StopPoints),
		func(t judge.Test) bool { return t.Verdict(0) != checkup.Pass },
	}
	together := tested{
		first:  judge.Level(w, components*tests),
		second: judge.Level(w, min(components, localise.MaxUndecided)),
	}
	together.suspect = func(t judge.Test) bool { return localise.Suspect(t, together.first) }
	// A wide place is what usually happens at a node, which then is no reason for suspicion.
	wide := together
	wide.suspect = func(t judge.Test) bool { return stats.AtLeast(t.K, t.N, t.P) <= localise.Doubt }
	// spotOf is the test of so many source-target pairs, each with the given counts.
	spotOf := func(times int, counts []int, by tested) spot {
		s := spot{absent: times == 0}
		again := 0
		for _, n := range counts {
			s.first += times * n
			again += times * countAgain(n)
		}
		s.fails = s.first + 1 // never
		if w.Expect.Loss.Max == nil {
			return s
		}
		// The fewest losses of n packets for which a test has a result; n+1 if it never has.
		fewest := func(n int, is func(judge.Test) bool) int {
			return sort.Search(n+1, func(k int) bool {
				return is(judge.Test{Limit: checkup.LimitLoss, K: k, N: n, P: float64(*w.Expect.Loss.Max) / 100})
			})
		}
		fails := func(level float64) func(judge.Test) bool {
			return func(t judge.Test) bool { return t.Verdict(level) == checkup.Fail }
		}
		s.fails = fewest(s.first, fails(by.first))
		if confirm {
			s.second = int(min(1, float64(most)/float64(max(1, times*len(all)))) * float64(again))
			s.suspect, s.confirms = min(s.fails, fewest(s.first, by.suspect)), fewest(s.second, fails(by.second))
			if by.stops > 0 {
				s.stops = judge.StopsOf(s.second, float64(*w.Expect.Loss.Max)/100, by.stops)
			}
		}
		return s
	}
	x := &sight{
		between: spotOf(at.link, ways, together),
		ingress: spotOf(at.node, ways, together),
		zones:   spotOf(at.border, ways, wide),
		network: spotOf(at.total, trips, wide),
	}
	for range at.link {
		for _, n := range trips {
			x.singles = append(x.singles, spotOf(1, []int{n}, alone))
		}
	}
	return x
}

// countsOf returns the counts of the pairs of one source and target: of all, of those that show a partial loss of round
// trips, and of those that show on which way packets are lost.
func countsOf(w *checkup.Worksheet) (all, trips, ways []int) {
	for _, p := range w.Probes {
		for range len(w.IPFamilies) * len(p.Sizes) {
			all = append(all, p.Count)
			switch p.Transport {
			case checkup.UDP:
				trips, ways = append(trips, p.Count), append(ways, p.Count)
			case checkup.ICMP:
				trips = append(trips, p.Count)
			}
		}
	}
	if len(trips) == 0 {
		trips = all
	}
	if len(ways) == 0 {
		ways = trips
	}
	return all, trips, ways
}

// places are numbers of a sample.
type places struct {
	total  int // source-target pairs
	link   int // the fewest from one node to another and back
	node   int // the fewest that a target's node has, as target and as source
	border int // the fewest between two zones, in both directions; 0 without zones
}

func countPlaces(w *checkup.Worksheet) places {
	var at places
	in, of := map[string]int{}, map[string]int{}
	links, zones := map[[2]string]int{}, map[[2]string]int{}
	for s, targets := range w.Assignments {
		for _, t := range targets {
			a, b := w.Sources[s], w.Targets[t]
			at.total++
			in[b.Node]++
			of[a.Node]++
			of[b.Node]++
			links[[2]string{min(a.Node, b.Node), max(a.Node, b.Node)}]++
			if a.Zone != "" && b.Zone != "" && a.Zone != b.Zone {
				zones[[2]string{min(a.Zone, b.Zone), max(a.Zone, b.Zone)}]++
			}
		}
	}
	fewest := func(n *int, of int) {
		if *n == 0 || of < *n {
			*n = of
		}
	}
	for _, n := range links {
		fewest(&at.link, n)
	}
	for node := range in {
		fewest(&at.node, of[node])
	}
	for _, n := range zones {
		fewest(&at.border, n)
	}
	return at
}

// limitsOf is the number of tests of each pair: the limits on loss and percentiles that chance may exceed.
func limitsOf(e checkup.Expect) int {
	n := 0
	if e.Loss.Max != nil && *e.Loss.Max > 0 {
		n++
	}
	for _, l := range e.Latency.Ordered() {
		if l.Limit != nil && l.Quantile < 1 {
			n++
		}
	}
	return n
}

// powerTable shows the Power of a check.
func powerTable(rows []power) *checkup.Table {
	t := &checkup.Table{Noun: "loss", Columns: []checkup.Column{
		{Name: "loss", Measure: checkup.MeasurePercent}, {Name: "one pair", Measure: checkup.MeasurePercent},
		{Name: "into a node", Measure: checkup.MeasurePercent}, {Name: "zone to zone", Measure: checkup.MeasurePercent},
		{Name: "everywhere", Measure: checkup.MeasurePercent},
	}}
	for _, r := range rows {
		row := []checkup.Cell{checkup.Number(r.loss)}
		for _, seen := range []float64{r.pair, r.ingress, r.zones, r.network} {
			if seen < 0 {
				row = append(row, checkup.Text("none"))
				continue
			}
			row = append(row, checkup.Number(math.Round(1000*seen)/10))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// sees describes what a run can see, one line each.
func (s *sight) sees(w *checkup.Worksheet, rotate bool) []checkup.Item {
	var lines []checkup.Item
	line := func(format string, args ...any) {
		lines = append(lines, checkup.Item{Text: fmt.Sprintf(format, args...)})
	}
	sampled := countPlaces(w).total
	part := share(float64(sampled) / float64(max(1, w.Possible)))
	switch {
	case sampled >= w.Possible:
		line("a dead pair: always")
	case rotate:
		line("a dead pair: if sampled, %s of the pairs are, all after %s", part, checkup.Count(w.Rounds, "run"))
	default:
		line("a dead pair: if sampled, %s of the pairs are, the same in every run", part)
	}
	if w.Expect.Loss.Max == nil {
		line("a partial loss: never, the plan has no limit (expect.loss.max)")
		return lines
	}
	line("a node that loses %s or more of what comes in: with 95%%", share(smallest(s.ingress.seen)))
	line("a sampled pair that loses %s or more: with 95%%", share(smallest(s.pair)))
	more := ""
	few := func(p checkup.TransportProbe) bool { return p.Probe.Count < 3 }
	if *w.Expect.Loss.Max > 0 && slices.ContainsFunc(w.Probes, few) {
		more = "; pairs of 1 or 2 measurements add more" // they fail when all are lost, at no level
	}
	line("false alarm: at most 1 clean run in 1,000%s", more)
	return lines
}

// share prints a share in percent, rounded up to one decimal.
func share(p float64) string {
	return checkup.Percent(math.Ceil(1000*p-1e-9) / 10).String()
}
