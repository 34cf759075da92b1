// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bytes"
	"math"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
)

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

// row has the codes of one value of one group or pair, in each run; 0 where it was not measured. The last one is that
// of this run.
type row struct {
	Key
	limit  checkup.Limit
	family int
	codes  []byte
	// known is the number of runs that measured it. center and spread are their median, and the median distance from it.
	known          int
	center, spread float64
}

// rows are the values that are compared, by family: those of like groups and of one kind have like noise.
type rows struct {
	all []row
	n   int // runs, with this one
	// spread is the least spread of the rows of a family, and unit its usual worst score; see scores.
	spread, unit [families]float64
	// index has the rows by what they are of; nil until find needs it.
	index map[rowKey]int
}

type rowKey struct {
	Key
	limit checkup.Limit
}

// families are the kinds of groups times the values.
const families = 4 * perGroup

func familyOf(g Group, value int) int {
	kind := map[Group]int{All: 0, Out: 1, In: 1, Zones: 2, PairGroup: 3}[g]
	return kind*perGroup + value
}

// perPair is the number of values of a pair: the median of its delays, and its loss.
const perPair = 2

// rowsOf collects the values of the groups and single pairs of now, which may be missing in earlier runs.
func rowsOf(check string, earlier []past, now *Pairs) *rows {
	of := &rows{n: len(earlier) + 1}
	for _, g := range now.groupsOf() {
		for _, probe := range now.Probes {
			for v, limit := range limits {
				of.all = append(of.all, row{Key: g.key(check, probe), limit: limit, family: familyOf(g.Group, v)})
			}
		}
	}
	groups := len(of.all)
	if now.detail != nil {
		delay, loss := familyOf(PairGroup, 0), familyOf(PairGroup, 2)
		of.all = slices.Grow(of.all, perPair*len(now.detail)/3)
		for s, t := range now.each() {
			for _, probe := range now.Probes {
				key := Key{Check: check, Group: PairGroup, From: now.Sources[s].Name, To: now.Targets[t].Name, Probe: probe}
				of.all = append(of.all, row{Key: key, limit: checkup.LimitP50, family: delay},
					row{Key: key, limit: checkup.LimitLoss, family: loss})
			}
		}
	}
	codes := make([]byte, len(of.all)*of.n)
	for i := range of.all {
		of.all[i].codes = codes[i*of.n : (i+1)*of.n : (i+1)*of.n]
	}
	f := newFiller(now)
	for run, p := range append(slices.Clone(earlier), past{pairs: now}) {
		f.match(p.pairs)
		f.groups(of.all[:groups], run, p.pairs)
		f.pairs(of.all[groups:], run, p.pairs)
	}
	for i := range of.all {
		of.all[i].measure()
	}
	return of
}

// filler finds the groups and pairs of a run in another one, now. Most runs have the same nodes.
type filler struct {
	now              *Pairs
	sources, targets places[Member]
	from, to         places[string] // zones
	probes           places[string]
	index            map[int]int // the number of each pair of now, by source and target; nil until it is needed
	lossCodes        [256]byte   // the codes of losses in groups, by those in single pairs
}

func newFiller(now *Pairs) *filler {
	f := &filler{now: now}
	f.sources.list, f.targets.list, f.probes.list = now.Sources, now.Targets, now.Probes
	f.from.list, f.to.list = zones(now.Sources), zones(now.Targets)
	for i := range f.lossCodes {
		f.lossCodes[i] = lossCode(float64(i-1) / 100)
	}
	return f
}

// match finds what the run has.
func (f *filler) match(p *Pairs) {
	zonesOf := func(same bool, of *places[string], members []Member) {
		list := of.list
		if !same {
			list = zones(members)
		}
		of.match(list)
	}
	zonesOf(f.sources.match(p.Sources), &f.from, p.Sources)
	zonesOf(f.targets.match(p.Targets), &f.to, p.Targets)
	f.probes.match(p.Probes)
}

// groups takes the values of the groups of a run, in the order of groupsOf.
func (f *filler) groups(all []row, run int, p *Pairs) {
	at := 0
	next := func(group int) {
		for _, k := range f.probes.at {
			if group >= 0 && k >= 0 {
				to := (group*len(f.now.Probes) + k) * perGroup
				for v := range perGroup {
					all[to+v].codes[run] = p.groups[at+v]
				}
			}
			at += perGroup
		}
	}
	behind := func(before, at int) int {
		if at < 0 {
			return -1
		}
		return before + at
	}
	next(0)
	before := 1
	for _, s := range f.sources.at {
		next(behind(before, s))
	}
	before += len(f.sources.list)
	for _, t := range f.targets.at {
		next(behind(before, t))
	}
	before += len(f.targets.list)
	for _, a := range f.from.at {
		for _, b := range f.to.at {
			if b < 0 || a < 0 {
				next(-1)
			} else {
				next(before + a*len(f.to.list) + b)
			}
		}
	}
}

// pairs takes the median and the loss of the single pairs of a run.
func (f *filler) pairs(all []row, run int, p *Pairs) {
	if f.now.detail == nil || p.detail == nil {
		return
	}
	same := f.sources.same && f.targets.same && bytes.Equal(p.rows, f.now.rows)
	at, n := 0, 0
	for s, t := range p.each() {
		i := n
		if !same {
			i = f.find(f.sources.at[s], f.targets.at[t])
		}
		n++
		for _, k := range f.probes.at {
			if d := p.detail[at : at+3]; i >= 0 && k >= 0 && d[2] > 0 {
				to := all[(i*len(f.now.Probes)+k)*perPair:]
				to[0].codes[run], to[1].codes[run] = d[0], f.lossCodes[d[2]]
			}
			at += 3
		}
	}
}

// find returns the number of a pair of now; -1 if it has none.
func (f *filler) find(source, target int) int {
	if source < 0 || target < 0 {
		return -1
	}
	if f.index == nil {
		f.index = map[int]int{}
		for s, t := range f.now.each() {
			f.index[s*len(f.now.Targets)+t] = len(f.index)
		}
	}
	if i, ok := f.index[source*len(f.now.Targets)+target]; ok {
		return i
	}
	return -1
}

// places finds the elements of other lists in a list.
type places[T comparable] struct {
	list  []T
	index map[T]int // of list; nil until it is needed
	// at has, for each element of the list that was matched last, where it is in list, or -1; same says that both are
	// equal.
	at   []int
	same bool
}

// match sets at, and reports whether both lists are the same.
func (p *places[T]) match(other []T) bool {
	was := p.same
	if p.same = slices.Equal(other, p.list); p.same && was {
		return true
	}
	if p.index == nil {
		p.index = make(map[T]int, len(p.list))
		for i, e := range p.list {
			p.index[e] = i
		}
	}
	p.at = p.at[:0]
	for _, e := range other {
		i, ok := p.index[e]
		if !ok {
			i = -1
		}
		p.at = append(p.at, i)
	}
	return p.same
}

// measure computes known, center and spread, without sorting: codes are few, and their scales ascend. All three are
// the same in any order of the runs, this one included.
func (w *row) measure() {
	var count [256]int16
	w.known = 0
	low, high := 255, 0
	for _, c := range w.codes {
		if c > 0 {
			count[c]++
			w.known++
			low, high = min(low, int(c)), max(high, int(c))
		}
	}
	if w.known == 0 {
		return
	}
	of := &scaleOf(w.limit).of
	half := (w.known + 1) / 2 // the lower median is the last of so many
	center, seen := low, int(count[low])
	for seen < half {
		center++
		seen += int(count[center])
	}
	w.center = of[center]
	w.spread = 0
	below, above := center-1, center+1
	for seen = int(count[center]); seen < half; {
		if above > high || below >= low && w.center-of[below] <= of[above]-w.center {
			w.spread = w.center - of[below]
			seen += int(count[below])
			below--
			continue
		}
		w.spread = of[above] - w.center
		seen += int(count[above])
		above++
	}
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

// scores returns the score of each run.
func (of *rows) scores(runs int) []float64 {
	var spreads [families][]float64
	for i := range of.all {
		if w := &of.all[i]; w.tested(runs) {
			spreads[w.family] = append(spreads[w.family], w.spread)
		}
	}
	// A row that hardly varies has at least the median spread of its family: its own may be small by chance.
	for f, all := range spreads {
		of.spread[f], of.unit[f] = 0, 1
		if len(all) > 0 {
			slices.Sort(all)
			of.spread[f] = all[(len(all)-1)/2]
		}
	}
	var worst [families][]float64 // of each run
	for f := range worst {
		worst[f] = make([]float64, of.n)
	}
	for i := range of.all {
		w := &of.all[i]
		if !w.tested(runs) {
			continue
		}
		scale, unit, worst := &scaleOf(w.limit).of, of.scaled(w), worst[w.family]
		for run, code := range w.codes {
			if score := (scale[code] - w.center) / unit; code > 0 && score > worst[run] {
				worst[run] = score
			}
		}
	}
	scores := make([]float64, of.n)
	for f, all := range worst {
		sorted := slices.Clone(all)
		slices.Sort(sorted)
		of.unit[f] = max(leastWorst, sorted[(of.n-1)/2])
		for run, v := range all {
			scores[run] = max(scores[run], v/of.unit[f])
		}
	}
	return scores
}

// above lists the rows of which this run's value has a higher score.
func (of *rows) above(score float64, runs int) []int {
	var all []int
	for i := range of.all {
		if w := &of.all[i]; w.tested(runs) && of.score(w, of.n-1) > score {
			all = append(all, i)
		}
	}
	return all
}

// find returns a row; nil if there is none, or if too few runs measured it.
func (of *rows) find(k Key, l checkup.Limit) *row {
	if of == nil {
		return nil
	}
	if of.index == nil {
		of.index = make(map[rowKey]int, len(of.all))
		for i := range of.all {
			of.index[rowKey{of.all[i].Key, of.all[i].limit}] = i
		}
	}
	i, ok := of.index[rowKey{k, l}]
	if !ok || of.all[i].known <= leastKnown {
		return nil
	}
	return &of.all[i]
}
