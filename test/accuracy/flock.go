// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"slices"
)

// The parameters of flock: the probability with which a packet is lost on a way without a cause, the same with a cause,
// of which there are several grades, and the logarithm of the odds of a component being a cause. As in the paper, they
// are calibrated: of 60 combinations, they have the highest F1 score, averaged over the cases and noises, at 50 nodes
// and degree 10.
var (
	lostGood = 0.003
	lostBad  = []float64{0.03, 0.2, 0.99}
	prior    = -20.0
)

// flock is the inference of V. Harsh, T. Meng, K. Agrawal, P. B. Godfrey: "Flock: Accurate Network Fault Localization
// at Scale", Proc. ACM Netw. (CoNEXT) 2023: the set of causes of maximum likelihood, found greedily. Of the sets that
// differ from the present one in one component, the one of the highest likelihood is next, until none is better. The
// likelihoods of all of them are updated together, from the observations that changed (the paper's joint likelihood
// exploration).
//
// Adapted: the components are ours. The way of each packet is known, so that no sum over equal paths is needed. An
// observation of both directions is one way through the components of both. The paper has one probability of a loss
// with a cause, ours has three grades, of which the highest on a way applies: our causes lose from 1.5% to all packets,
// and a wide one with one grade would hide the narrow ones. A cause may be dropped again: ours are nested.
func flock(o *observations) []guess {
	f := flocking{observations: o, level: make([]int, len(o.list)), grades: len(lostBad) + 1}
	f.at = make([]int16, len(o.list)*f.grades)
	f.likelihood = make([]float64, len(o.list)*f.grades)
	for g, p := range append([]float64{lostGood}, lostBad...) {
		lost, came := math.Log(p), math.Log(1-p)
		for i := range o.list {
			f.likelihood[i*f.grades+g] = float64(o.list[i].bad)*lost + float64(o.list[i].made-o.list[i].bad)*came
		}
	}
	f.gain, f.flipped = make([]float64, len(o.names)*f.grades), make([]int, len(o.names))
	for i := range o.list {
		f.count(int32(i), 1)
	}
	// A component that lost nothing is never a cause: its gain is below 0.
	var suspects []int32
	for c, on := range o.of {
		if slices.ContainsFunc(on, func(i int32) bool { return o.list[i].bad > 0 }) {
			suspects = append(suspects, int32(c))
		}
	}
	for {
		best, most := cause{}, 1e-9
		for _, c := range suspects {
			for g := 1; g < f.grades; g++ {
				if gain := f.gain[int(c)*f.grades+g] + prior; gain > most {
					best, most = cause{component: c, grade: g}, gain
				}
			}
		}
		drop := -1
		for k := range f.causes {
			c := &f.causes[k]
			if c.computed < f.flipped[c.component] {
				c.dropped, c.computed = f.without(*c), f.flips
			}
			if g := c.dropped - prior; g > most {
				drop, most = k, g
			}
		}
		switch {
		case drop >= 0:
			f.flip(f.causes[drop], -1)
			f.causes = append(f.causes[:drop], f.causes[drop+1:]...)
		case best.grade > 0:
			f.flip(best, 1)
			f.causes = append(f.causes, best)
		default:
			var found []guess
			for _, c := range f.causes {
				var bad []int32
				for _, i := range o.of[c.component] {
					if o.list[i].bad > 0 {
						bad = append(bad, i)
					}
				}
				found = append(found, guess{name: o.names[c.component], or: o.same(c.component, bad)})
			}
			return found
		}
	}
}

// cause is a component that loses packets with a probability of a grade, counted from 1. dropped is what the likelihood
// would gain without the cause; computed is the number of flips before dropped was computed.
type cause struct {
	component int32
	grade     int
	dropped   float64
	computed  int
}

// flocking is the state of the search.
type flocking struct {
	*observations
	grades     int       // with 0, which is no cause
	likelihood []float64 // its logarithm, of each observation by each grade
	at         []int16   // the number of causes on the way of each observation by grade
	level      []int     // the highest grade of these
	gain       []float64 // of each component by grade
	causes     []cause
	flips      int   // causes that were added or dropped
	flipped    []int // by component: the last flip of a component with which it shares an observation
}

// count adds what an observation contributes to the gains of its components, or takes it off with a sign of -1.
func (f *flocking) count(i int32, sign float64) {
	l := f.likelihood[int(i)*f.grades : (int(i)+1)*f.grades]
	for _, c := range f.list[i].components {
		for g := f.level[i] + 1; g < f.grades; g++ {
			f.gain[int(c)*f.grades+g] += sign * (l[g] - l[f.level[i]])
		}
	}
}

// below is the highest grade under that of an observation's level which a cause on its way has.
func (f *flocking) below(i int32) int {
	g := f.level[i] - 1
	for g > 0 && f.at[int(i)*f.grades+g] == 0 {
		g--
	}
	return g
}

// without is what the likelihood gains if a cause is dropped.
func (f *flocking) without(c cause) float64 {
	gain := 0.0
	for _, i := range f.of[c.component] {
		if f.level[i] == c.grade && f.at[int(i)*f.grades+c.grade] == 1 {
			l := f.likelihood[int(i)*f.grades:]
			gain += l[f.below(i)] - l[c.grade]
		}
	}
	return gain
}

// flip adds a cause, or drops it with a sign of -1.
func (f *flocking) flip(c cause, sign int16) {
	f.flips++
	for _, i := range f.of[c.component] {
		for _, shared := range f.list[i].components {
			f.flipped[shared] = f.flips
		}
		f.at[int(i)*f.grades+c.grade] += sign
		level := f.level[i]
		switch {
		case sign > 0:
			level = max(level, c.grade)
		case level == c.grade && f.at[int(i)*f.grades+c.grade] == 0:
			level = f.below(i)
		}
		if level != f.level[i] {
			f.count(i, -1)
			f.level[i] = level
			f.count(i, 1)
		}
	}
}
