// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/stats"
)

// Power is the probability that a run of a mesh fails because of a loss, by where packets are lost. 0 to 1; -1 if the
// sample has no such place. It is a lower bound: only the losses at that place count.
type Power struct {
	// Loss is the share of the packets that are lost at the place. 100% is a dead place.
	Loss checkup.Percent `json:"loss"`
	// Pair: requests from one source to one target.
	Pair float64 `json:"pair"`
	// NodeIngress: packets to the pods of one node, requests and answers.
	NodeIngress float64 `json:"nodeIngress"`
	// Zones: packets from one zone to another one.
	Zones float64 `json:"zones"`
	// Network: all packets, requests and answers.
	Network float64 `json:"network"`
}

// powerLosses are the losses for which explain shows the Power, in percent.
var powerLosses = []checkup.Percent{0.5, 1.5, 2, 3, 5, 10, 20, 100}

// often is the probability with which explain says that a loss is seen.
const often = 0.95

// PowerOf returns what a run of the worksheet can see, for each of powerLosses. confirm says that a second look must
// confirm it. It is nil if the plan expects that nothing comes through.
//
// It uses the statistics of pkg/judge. If a loss is partial, TCP repairs it, therefore only datagrams count if there
// are any, and where packets are lost on their way to a place, only those that targets count (udp) if there are any.
// Packets are lost independently. Places are those with the fewest packets: other nodes, pairs and zones see more. The
// second look measures what the first one finds, within its limit of pairs, and has as many tests as the first.
func PowerOf(w *checkup.Worksheet, confirm bool) []Power {
	if w.Expect.Unreachable {
		return nil
	}
	s := sightOf(w, confirm)
	rows := make([]Power, len(powerLosses))
	for i, loss := range powerLosses {
		p := float64(loss) / 100
		rows[i] = Power{loss, s.pair(p), s.ingress.seen(p), s.zones.seen(p), s.network.seen(roundTrip(p))}
	}
	return rows
}

// roundTrip is the share of round trips that fail if the share p of the packets of each way is lost.
func roundTrip(p float64) float64 { return 1 - (1-p)*(1-p) }

// sight is what a sample can see.
type sight struct {
	// singles are the pairs of one source and one target that show partial losses.
	singles                          []spot
	between, ingress, zones, network spot
}

// pair is the probability that a loss of requests from one source to one target is seen: by the pairs between them,
// each alone, or by all together.
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
	absent                   bool
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
		return stats.AtLeast(s.suspect, s.first, p) * stats.AtLeast(s.confirms, s.second, p)
	}
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

// critical is the smallest number of losses of n packets whose probability is at most level if the limit is just kept;
// more than n if there is none.
func critical(n int, limit, level float64) int {
	low, high := 0, n+1
	for low < high {
		if k := (low + high) / 2; stats.AtLeast(k, n, limit) <= level {
			high = k
		} else {
			low = k + 1
		}
	}
	return low
}

// sightOf computes the tests of a worksheet.
func sightOf(w *checkup.Worksheet, confirm bool) *sight {
	all, trips, ways := countsOf(w)
	at, tests := countPlaces(w), limitsOf(w.Expect)
	alone, together := judge.Level(at.total*len(all)*tests), judge.Level(at.components*tests)
	most, _ := mostAgain(w)
	// spotOf is the test of so many source-target pairs, each with the given counts.
	spotOf := func(times int, counts []int, doubt, level float64) spot {
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
		limit := float64(*w.Expect.Loss.Max) / 100
		s.fails = critical(s.first, limit, level)
		if confirm {
			s.second = int(min(1, float64(most)/float64(max(1, times*len(all)))) * float64(again))
			s.suspect, s.confirms = min(s.fails, critical(s.first, limit, doubt)), critical(s.second, limit, level)
		}
		return s
	}
	x := &sight{
		between: spotOf(min(1, at.total), ways, componentDoubt, together),
		ingress: spotOf(at.node, ways, componentDoubt, together),
		zones:   spotOf(at.border, ways, componentDoubt, together),
		network: spotOf(at.total, trips, judge.Doubt, together),
	}
	for _, n := range trips {
		x.singles = append(x.singles, spotOf(min(1, at.total), []int{n}, judge.Doubt, alone))
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
	node   int // the fewest that a target's node has, as target and as source
	border int // the fewest between two zones, in both directions; 0 without zones
	// components is the number of places that pkg/localise tests, each with its narrowings.
	components int
}

func countPlaces(w *checkup.Worksheet) places {
	var at places
	in, of := map[string]int{}, map[string]int{}
	zones, links := map[[2]string]int{}, map[[2]string]bool{}
	for s, targets := range w.Assignments {
		for _, t := range targets {
			a, b := w.Sources[s], w.Targets[t]
			at.total++
			in[b.Node]++
			of[a.Node]++
			of[b.Node]++
			links[[2]string{min(a.Node, b.Node), max(a.Node, b.Node)}] = true
			if a.Zone != "" && b.Zone != "" {
				zones[[2]string{min(a.Zone, b.Zone), max(a.Zone, b.Zone)}]++
			}
		}
	}
	fewest := func(n *int, of int) {
		if *n == 0 || of < *n {
			*n = of
		}
	}
	for node := range in {
		fewest(&at.node, of[node])
	}
	wide := 1 + 3*len(of) // the network, and nodes: in, out, both
	for z, n := range zones {
		wide++
		if z[0] != z[1] {
			wide++
			fewest(&at.border, n)
		}
	}
	at.components = wide*narrowings(w) + 2*len(links)
	return at
}

// componentDoubt is the probability up to which pkg/localise doubts a component.
const componentDoubt = 0.01

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

// narrowings is the number of ways in which pkg/localise narrows a place: by one or two of family, transport and
// payloads from a size up, or not at all. Those that admit the same pairs count once.
func narrowings(w *checkup.Worksheet) int {
	type attribute struct {
		family    checkup.IPFamily
		transport checkup.Transport
		size      int
	}
	var attributes, single []attribute
	for _, f := range w.IPFamilies {
		single = append(single, attribute{family: f})
		for _, p := range w.Probes {
			for _, z := range p.Sizes {
				attributes = append(attributes, attribute{f, p.Transport, z})
			}
		}
	}
	for _, p := range w.Probes {
		single = append(single, attribute{transport: p.Transport})
		for _, z := range p.Sizes {
			single = append(single, attribute{size: z})
		}
	}
	known := map[string]bool{}
	add := func(n attribute) {
		admits := make([]byte, len(attributes))
		for i, a := range attributes {
			family, transport := n.family == "" || n.family == a.family, n.transport == "" || n.transport == a.transport
			if family && transport && a.size >= n.size {
				admits[i] = 1
			}
		}
		if slices.Contains(admits, 1) {
			known[string(admits)] = true
		}
	}
	add(attribute{})
	for i, a := range single {
		add(a)
		for _, b := range single[i+1:] {
			if (a.family == "" || b.family == "") && (a.transport == "" || b.transport == "") {
				add(attribute{cmp.Or(a.family, b.family), cmp.Or(a.transport, b.transport), max(a.size, b.size)})
			}
		}
	}
	return len(known)
}

// powerTable shows the Power of a check.
func powerTable(rows []Power) *checkup.Table {
	t := &checkup.Table{Noun: "loss", Columns: []checkup.Column{
		{Name: "loss", Measure: checkup.MeasurePercent}, {Name: "one pair", Measure: checkup.MeasurePercent},
		{Name: "into a node", Measure: checkup.MeasurePercent}, {Name: "zone to zone", Measure: checkup.MeasurePercent},
		{Name: "everywhere", Measure: checkup.MeasurePercent},
	}}
	for _, r := range rows {
		row := []checkup.Cell{checkup.Number(r.Loss)}
		for _, seen := range []float64{r.Pair, r.NodeIngress, r.Zones, r.Network} {
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
func sees(w *checkup.Worksheet, rotate, confirm bool) []checkup.Item {
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
	s := sightOf(w, confirm)
	line("a node that loses %s or more of what comes in: with 95%%", share(smallest(s.ingress.seen)))
	line("a sampled pair that loses %s or more: with 95%%", share(smallest(s.pair)))
	line("false alarm: at most 1 clean run in 1,000")
	return lines
}

// share prints a share in percent, rounded up to one decimal.
func share(p float64) string {
	return checkup.Percent(math.Ceil(1000*p-1e-9) / 10).String()
}
