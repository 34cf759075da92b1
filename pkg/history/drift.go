// SPDX-License-Identifier: Apache-2.0

package history

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/stats"
)

// tails has the distributions of Mann's statistic, by the number of days with this one.
var tails = func() (all [keepDays + 2]func() []float64) {
	for n := range all {
		all[n] = sync.OnceValue(func() []float64 { return stats.Ascending(n) })
	}
	return all
}()

// drift looks for a trend of each value over days, of which each has one run: Mann's test, exact, each at an equal
// share of DriftAlarms. Runs of one day are too much alike to be compared with those of others one by one.
func (c *Comparison) drift(days []past, check string, now *Pairs, at time.Time, r checkup.Regression) {
	c.Days = len(days)
	if now.groups == nil || c.Days < r.Runs {
		return
	}
	of := rowsOf(check, days, now)
	c.daily = of
	tests := 0
	for i := range of.all {
		if of.all[i].tested(r.Runs) {
			tests++
		}
	}
	when := make([]float64, 0, of.n)
	for _, p := range days {
		when = append(when, p.at.Sub(at).Hours()/24)
	}
	when = append(when, 0)
	source := rand.NewPCG(0, 0)
	coin, values := rand.New(source), make([]float64, 0, of.n)
	var sure, likely []Change
	for i := range of.all {
		w := &of.all[i]
		if !w.tested(r.Runs) {
			continue
		}
		var n int
		source.Seed(uint64(at.Unix()), uint64(i))
		n, values = w.ascending(coin, values[:0])
		probability := tails[w.known]()[n]
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
// decides. It is seeded, because the same runs must give the same report. values is scratch space, and returned.
func (w *row) ascending(coin *rand.Rand, values []float64) (int, []float64) {
	n := 0
	for _, c := range w.codes {
		if c == 0 {
			continue
		}
		v := float64(c) + coin.Float64()
		for _, earlier := range values {
			if earlier < v {
				n++
			}
		}
		values = append(values, v)
	}
	return n, values
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
	slices.Sort(rest)
	end := rest[(len(rest)-1)/2]
	return valueOf(w.limit, end+slope*first), valueOf(w.limit, end), int(math.Round(-first))
}
