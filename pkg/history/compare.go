// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/stats"
)

// DriftAlarms is the highest probability that a run without any change has a false alarm of drift: all tests share it
// (Bonferroni). A step has that of Regression.Runs.
const DriftAlarms = 1e-3

// PairGroup is a single pair: it has no digest.
const PairGroup Group = "pair"

// Change is a group, or a pair, that is worse than in earlier runs, in one of its values.
type Change struct {
	// Key names the group; Probe is as in Pairs.Probes. A pair has the group PairGroup, and the names of its source and
	// its target.
	Key
	// Limit is LimitP50 or LimitP90, in microseconds, or LimitLoss, a share from 0 to 1.
	Limit checkup.Limit
	// Usual is the median of the earlier runs, and Now the value of this one. Of a drift they are the values at both ends
	// of the line through the days.
	Usual, Now float64
	// Least is the least value now that is a change, less what the history does not know of it.
	Least float64
	// Days is the time over which a drift grew; 0 for a step.
	Days int
}

// Comparison says what is worse in a run than in those before it.
type Comparison struct {
	// Runs is the number of earlier runs with which the newest one was compared, and Days that of earlier days with one
	// run each. Either is below Regression.Runs if the history is too short; nothing was compared then.
	Runs, Days int
	// Changes by a step, and those by a drift.
	Changes []Change

	rows, daily *rows
}

// Compare compares the pairs of a run, which ended at the given time, with the runs of h, which does not have it. It is
// pure. docs/regression.md has the tests and what they assume.
func (h *History) Compare(check string, now *Pairs, at time.Time, r checkup.Regression) *Comparison {
	c := &Comparison{}
	c.step(h.before(check), check, now, r)
	c.drift(h.days(check, at), check, now, at, r)
	return c
}

// past is an earlier run of a check.
type past struct {
	at        time.Time
	pairs     *Pairs
	regressed bool
}

func (h *History) pasts(check string) []past {
	var all []past
	for i := range h.Runs {
		if c := h.Runs[i].check(check); c != nil && c.Pairs != nil && c.Pairs.groups != nil {
			all = append(all, past{h.Runs[i].Finished, c.Pairs, c.Regressed})
		}
	}
	return all
}

// before returns the newest runs, oldest first, without those that are known to be worse: the last ones, and any two or
// more in succession. A single one stays, because chance alone makes such runs: without all of them, the rest would be
// too good, and the next false alarm more likely.
func (h *History) before(check string) []past {
	all := h.pasts(check)
	all = all[max(0, len(all)-keepPairs):]
	worse := func(i int) bool { return i >= 0 && i < len(all) && all[i].regressed }
	var kept []past
	for i := range all {
		if !worse(i) || i+1 < len(all) && !worse(i-1) && !worse(i+1) {
			kept = append(kept, all[i])
		}
	}
	return kept
}

// days returns the last run of each day before that of at, oldest first.
func (h *History) days(check string, at time.Time) []past {
	var kept []past
	for _, p := range h.pasts(check) {
		if dayOf(p.at) >= dayOf(at) {
			continue
		}
		if n := len(kept); n > 0 && dayOf(kept[n-1].at) == dayOf(p.at) {
			kept = kept[:n-1]
		}
		kept = append(kept, p)
	}
	return kept[max(0, len(kept)-keepDays):]
}

// limits are the values of a group, in the order of their codes.
var limits = [perGroup]checkup.Limit{checkup.LimitP50, checkup.LimitP90, checkup.LimitLoss}

// scale turns a code into a number whose noise does not depend on its size, and step is the least noise that counts.
type scale struct {
	of   [256]float64
	step float64
}

var delays, losses = func() (d, l scale) {
	d.step, l.step = delayStep, 0.05
	for code := range d.of {
		d.of[code] = delayStep * float64(code)
		l.of[code] = math.Sqrt(lossOf(byte(code)))
	}
	return d, l
}()

func scaleOf(l checkup.Limit) *scale {
	if l == checkup.LimitLoss {
		return &losses
	}
	return &delays
}

// value of a number of a scale, in the unit of a Change.
func valueOf(l checkup.Limit, x float64) float64 {
	if l == checkup.LimitLoss {
		return min(max(x, 0)*max(x, 0), 1)
	}
	return math.Exp(x - delayStep) // see delayOf
}

// least is the least value that is as much worse than the usual one as the plan demands.
func least(r checkup.Regression, l checkup.Limit, usual float64) float64 {
	if l == checkup.LimitLoss {
		return usual + float64(r.MinLoss)/100
	}
	return max(r.MinFactor*usual, usual+float64(time.Duration(r.MinDelay).Microseconds()))
}

// half is the demand on a drift of a node that is at one end of another one: see withEnds.
func half(r checkup.Regression) checkup.Regression {
	r.MinFactor, r.MinDelay, r.MinLoss = math.Sqrt(r.MinFactor), r.MinDelay/2, r.MinLoss/2
	return r
}

// row has the codes of one value of one group or pair, in each run; 0 where it was not measured. The last one is that
// of this run.
type row struct {
	Key
	limit  checkup.Limit
	family int
	codes  []byte
	// center and spread are the median of all runs, and the median distance from it.
	center, spread float64
	known          int
}

// rows are the values that are compared, by family: those of like groups and of one kind have like noise.
type rows struct {
	all   []row
	n     int // runs, with this one
	index map[rowKey]int
	// spread is the least spread of the rows of a family, and unit its usual worst score; see scores.
	spread, unit [families]float64
}

type rowKey struct {
	Key
	limit checkup.Limit
}

func (of *rows) add(w row) {
	of.index[rowKey{w.Key, w.limit}] = len(of.all)
	of.all = append(of.all, w)
}

// families are the kinds of groups times the values.
const families = 4 * perGroup

func familyOf(g Group, value int) int {
	kind := map[Group]int{All: 0, Out: 1, In: 1, Zones: 2, PairGroup: 3}[g]
	return kind*perGroup + value
}

// groupRows collects the values of the groups of now, which may be missing in earlier runs.
func groupRows(check string, earlier []past, now *Pairs) *rows {
	of := &rows{n: len(earlier) + 1, index: map[rowKey]int{}}
	index := map[group]int{}
	list := now.groupsOf()
	codes := make([]byte, len(list)*len(now.Probes)*perGroup*of.n)
	for g, key := range list {
		index[key] = g
		for _, probe := range now.Probes {
			for v, limit := range limits {
				at := len(of.all) * of.n
				of.add(row{Key: key.key(check, probe), limit: limit, family: familyOf(key.Group, v),
					codes: codes[at : at+of.n : at+of.n]})
			}
		}
	}
	for r, p := range append(slices.Clone(earlier), past{pairs: now}) {
		probes := positionsOf(p.pairs.Probes, now.Probes)
		at := 0
		for _, key := range p.pairs.groupsOf() {
			g, ok := index[key]
			for _, k := range probes {
				for v := range perGroup {
					if ok && k >= 0 {
						of.all[(g*len(now.Probes)+k)*perGroup+v].codes[r] = p.pairs.groups[at]
					}
					at++
				}
			}
		}
	}
	return of
}

// positionsOf returns where each of old is in list, or -1.
func positionsOf(old, list []string) []int {
	var at []int
	for _, s := range old {
		at = append(at, slices.Index(list, s))
	}
	return at
}

// pairRows collects also the medians and losses of single pairs.
func pairRows(check string, earlier []past, now *Pairs) *rows {
	of := groupRows(check, earlier, now)
	if now.detail == nil {
		return of
	}
	const perPair = 2
	type ends struct{ from, to Member }
	index, n := map[ends]int{}, 0
	first := len(of.all)
	for s, t := range now.each() {
		index[ends{now.Sources[s], now.Targets[t]}] = n
		n++
		for _, probe := range now.Probes {
			key := Key{Check: check, Group: PairGroup, From: now.Sources[s].Name, To: now.Targets[t].Name, Probe: probe}
			of.add(row{Key: key, limit: checkup.LimitP50, family: familyOf(PairGroup, 0)})
			of.add(row{Key: key, limit: checkup.LimitLoss, family: familyOf(PairGroup, 2)})
		}
	}
	codes := make([]byte, (len(of.all)-first)*of.n)
	for i := range of.all[first:] {
		of.all[first+i].codes = codes[i*of.n : (i+1)*of.n : (i+1)*of.n]
	}
	for r, p := range append(slices.Clone(earlier), past{pairs: now}) {
		if p.pairs.detail == nil {
			continue
		}
		probes := positionsOf(p.pairs.Probes, now.Probes)
		at := 0
		for s, t := range p.pairs.each() {
			i, ok := index[ends{p.pairs.Sources[s], p.pairs.Targets[t]}]
			for _, k := range probes {
				if d := p.pairs.detail[at : at+3]; ok && k >= 0 && d[2] > 0 {
					to := of.all[first+(i*len(now.Probes)+k)*perPair:]
					to[0].codes[r], to[1].codes[r] = d[0], lossCode(float64(d[2]-1)/100)
				}
				at += 3
			}
		}
	}
	return of
}

// measure computes center and spread. Both are the same in any order of the runs, this one included.
func (w *row) measure(scratch []float64) {
	of := &scaleOf(w.limit).of
	values := scratch[:0]
	for _, c := range w.codes {
		if c > 0 {
			values = append(values, of[c])
		}
	}
	w.known = len(values)
	if w.known == 0 {
		return
	}
	slices.Sort(values)
	w.center = values[(len(values)-1)/2]
	for i, v := range values {
		values[i] = math.Abs(v - w.center)
	}
	slices.Sort(values)
	w.spread = values[(len(values)-1)/2]
}

// usual is the median of the earlier runs.
func (w *row) usual() float64 {
	var codes []byte
	for _, c := range w.codes[:len(w.codes)-1] {
		if c > 0 {
			codes = append(codes, c)
		}
	}
	if len(codes) == 0 {
		return 0
	}
	slices.Sort(codes)
	return valueOf(w.limit, scaleOf(w.limit).of[codes[(len(codes)-1)/2]])
}

// now is the value of this run.
func (w *row) now() float64 {
	return valueOf(w.limit, scaleOf(w.limit).of[w.codes[len(w.codes)-1]])
}

// step compares this run with earlier ones, all values at once. The score of a run is its worst value of all groups and
// pairs. Each is measured from its own median, in units of its own spread, and each family of values is scaled to the
// same usual worst one. If nothing changed, this run is as likely as any other to be the one with the highest score, of
// n, the second highest, ... of n: an exact test at level k/n, with any noise and any dependence between values of one
// run (Westfall and Young, Resampling-Based Multiple Testing, 1993, section 2.3, on the maximum as the statistic; Vovk,
// Gammerman and Shafer, Algorithmic Learning in a Random World, 2005, section 2.2, on ranks of exchangeable scores).
func (c *Comparison) step(earlier []past, check string, now *Pairs, r checkup.Regression) {
	if now.groups == nil {
		return
	}
	// Single pairs take part if the runs that have them are enough, and then these runs are compared.
	var detailed []past
	for _, p := range earlier {
		if p.pairs.detail != nil {
			detailed = append(detailed, p)
		}
	}
	var of *rows
	if len(detailed) >= r.Runs {
		of = pairRows(check, detailed, now)
	}
	if of != nil && of.eligible(r.Runs, PairGroup) {
		earlier = detailed
	} else if of = nil; len(earlier) >= r.Runs {
		of = pairRows(check, earlier, now)
	}
	if c.Runs = len(earlier); of == nil {
		return
	}
	c.rows = of
	scores, flagged := of.scores(r.Runs)
	last := scores[of.n-1]
	slices.Sort(scores[:of.n-1])
	allowed := of.n/(r.Runs+1) - 1
	if allowed < 0 || last <= scores[of.n-2-allowed] {
		return
	}
	most := scores[of.n-2-allowed]
	var sure, likely []Change
	for _, i := range flagged(most / 2) {
		w := &of.all[i]
		change := Change{Key: w.Key, Limit: w.limit, Usual: w.usual(), Now: w.now()}
		above := most
		if of.score(w, of.n-1) <= most {
			above /= 2
		}
		change.Least = max(least(r, w.limit, change.Usual), valueOf(w.limit, w.center+above*of.scaled(w)))
		switch {
		case change.Now < change.Least:
		case above == most:
			sure = append(sure, change)
		default:
			likely = append(likely, change)
		}
	}
	c.Changes = append(c.Changes, withEnds(sure, likely)...)
	for i := range c.Changes {
		c.Changes[i].Least *= 1 - 2*Accuracy
	}
}

// withEnds adds to changes that are sure those that are likely, if they are of the same value of a node that is an end
// of what is sure. What is sure decides whether there is an alarm; the others only show where, and need less evidence.
// A high 90th percentile is no reason for it: one slow pair of a node is enough.
func withEnds(sure, likely []Change) []Change {
	type end struct {
		name  string
		limit checkup.Limit
	}
	ends := map[end]bool{}
	for _, c := range sure {
		if c.Group != Zones && c.Limit != checkup.LimitP90 {
			ends[end{c.From, c.Limit}], ends[end{c.To, c.Limit}] = true, true
		}
	}
	for _, c := range likely {
		if (c.Group == Out || c.Group == In) && ends[end{c.From + c.To, c.Limit}] {
			sure = append(sure, c)
		}
	}
	return sure
}

// eligible reports whether a row of the group has enough earlier values to be tested.
func (of *rows) eligible(runs int, g Group) bool {
	scratch := make([]float64, 0, of.n)
	return slices.ContainsFunc(of.all, func(w row) bool {
		if w.Group != g {
			return false
		}
		w.measure(scratch)
		return w.tested(runs)
	})
}

// tested reports whether a row was measured in this run, and in enough earlier ones.
func (w *row) tested(runs int) bool { return w.codes[len(w.codes)-1] > 0 && w.known > runs }

// score of a row in a run.
func (of *rows) score(w *row, run int) float64 {
	return (scaleOf(w.limit).of[w.codes[run]] - w.center) / of.scaled(w)
}

// scaled is the distance from the center that makes a score of 1.
func (of *rows) scaled(w *row) float64 {
	return max(w.spread, of.spread[w.family], scaleOf(w.limit).step) * of.unit[w.family]
}

// leastWorst is the smallest usual worst value of a family: a family of few rows has no worst ones.
const leastWorst = 3

// scores returns the score of each run, and a function that lists the rows of which this run's value is above a score.
func (of *rows) scores(runs int) ([]float64, func(float64) []int) {
	scratch := make([]float64, 0, of.n)
	var spreads [families][]float64
	for i := range of.all {
		w := &of.all[i]
		w.measure(scratch)
		if w.tested(runs) {
			spreads[w.family] = append(spreads[w.family], w.spread)
		}
	}
	// A row that hardly varies has at least the median spread of its family: its own may be small by chance.
	var usual [families]float64
	for f, all := range spreads {
		if len(all) > 0 {
			slices.Sort(all)
			usual[f] = all[(len(all)-1)/2]
		}
	}
	of.spread, of.unit = usual, [families]float64{}
	for f := range of.unit {
		of.unit[f] = 1
	}
	worst := make([][families]float64, of.n)
	for i := range of.all {
		w := &of.all[i]
		if !w.tested(runs) {
			continue
		}
		for run, code := range w.codes {
			if code > 0 {
				worst[run][w.family] = max(worst[run][w.family], of.score(w, run))
			}
		}
	}
	column := make([]float64, of.n)
	for f := range families {
		for run := range worst {
			column[run] = worst[run][f]
		}
		slices.Sort(column)
		of.unit[f] = max(leastWorst, column[(of.n-1)/2])
	}
	scores := make([]float64, of.n)
	for run := range worst {
		for f, v := range worst[run] {
			scores[run] = max(scores[run], v/of.unit[f])
		}
	}
	return scores, func(above float64) []int {
		var flagged []int
		for i := range of.all {
			w := &of.all[i]
			if w.tested(runs) && of.score(w, of.n-1) > above {
				flagged = append(flagged, i)
			}
		}
		return flagged
	}
}

// leastKnown is the least number of earlier runs from which it is known what is usual.
const leastKnown = 3

// Usual returns the usual value of a group or, with PairGroup, of a pair, in the unit of a Change; false if too few of
// the compared runs measured it. It knows the medians and losses of pairs.
func (c *Comparison) Usual(k Key, l checkup.Limit) (float64, bool) {
	w := c.rows.find(k, l)
	if w == nil {
		return 0, false
	}
	return w.usual(), true
}

// First returns the value in the first third of the days, as Usual.
func (c *Comparison) First(k Key, l checkup.Limit) (float64, bool) {
	w := c.daily.find(k, l)
	if w == nil {
		return 0, false
	}
	var early []byte
	for _, code := range w.codes {
		if code > 0 {
			early = append(early, code)
		}
	}
	return (&row{limit: l, codes: append(early[:len(early)/3:len(early)/3], 0)}).usual(), true
}

// find returns a row; nil if there is none, or if too few runs measured it.
func (of *rows) find(k Key, l checkup.Limit) *row {
	if of == nil {
		return nil
	}
	i, ok := of.index[rowKey{k, l}]
	if !ok || of.all[i].known <= leastKnown {
		return nil
	}
	return &of.all[i]
}

// drift looks for a trend of each value over days, of which each has one run: Mann's test, exact, each at an equal
// share of DriftAlarms. Runs of one day are too much alike to be compared with those of others one by one.
func (c *Comparison) drift(days []past, check string, now *Pairs, at time.Time, r checkup.Regression) {
	c.Days = len(days)
	if now.groups == nil || c.Days < r.Runs {
		return
	}
	of := pairRows(check, days, now)
	c.daily = of
	scratch := make([]float64, 0, of.n)
	tests := 0
	for i := range of.all {
		w := &of.all[i]
		w.measure(scratch)
		if w.tested(r.Runs) {
			tests++
		}
	}
	when := make([]float64, 0, of.n)
	for _, p := range days {
		when = append(when, p.at.Sub(at).Hours()/24)
	}
	when = append(when, 0)
	tails := map[int][]float64{}
	var sure, likely []Change
	for i := range of.all {
		w := &of.all[i]
		if !w.tested(r.Runs) {
			continue
		}
		if tails[w.known] == nil {
			tails[w.known] = stats.Ascending(w.known)
		}
		probability := tails[w.known][w.ascending(uint64(at.Unix()), uint64(i))]
		if probability > DriftAlarms {
			continue
		}
		change := Change{Key: w.Key, Limit: w.limit}
		change.Usual, change.Now, change.Days = w.line(when)
		change.Least = least(half(r), w.limit, change.Usual)
		switch {
		case probability <= DriftAlarms/float64(tests) && change.Now >= least(r, w.limit, change.Usual):
			sure = append(sure, change)
		case change.Now >= change.Least:
			likely = append(likely, change)
		}
	}
	c.Changes = append(c.Changes, withEnds(sure, likely)...)
}

// ascending counts the pairs of runs whose earlier value is the lower one. Codes are coarse: of two equal ones, a coin
// decides. It is seeded, because the same runs must give the same report.
func (w *row) ascending(seed, index uint64) int {
	random := rand.New(rand.NewPCG(seed, index))
	var values []float64
	for _, c := range w.codes {
		if c > 0 {
			values = append(values, float64(c)+random.Float64())
		}
	}
	n := 0
	for i, v := range values {
		for _, later := range values[i+1:] {
			if v < later {
				n++
			}
		}
	}
	return n
}

// line returns the values at both ends of the line through the days, and their number: the median slope of all pairs
// of days, through the median (Sen, Journal of the American Statistical Association 63, 1968).
func (w *row) line(when []float64) (then, now float64, days int) {
	of := &scaleOf(w.limit).of
	var slopes, rest []float64
	first := math.NaN()
	for i, a := range w.codes {
		if a == 0 {
			continue
		}
		if math.IsNaN(first) {
			first = when[i]
		}
		for k := i + 1; k < len(w.codes); k++ {
			if b := w.codes[k]; b > 0 && when[k] > when[i] {
				slopes = append(slopes, (of[b]-of[a])/(when[k]-when[i]))
			}
		}
	}
	if len(slopes) == 0 {
		return 0, 0, 0
	}
	slices.Sort(slopes)
	slope := slopes[(len(slopes)-1)/2]
	for i, c := range w.codes {
		if c > 0 {
			rest = append(rest, of[c]-slope*when[i])
		}
	}
	slices.SortFunc(rest, cmp.Compare)
	end := rest[(len(rest)-1)/2]
	return valueOf(w.limit, end+slope*first), valueOf(w.limit, end), int(math.Round(-first))
}
