// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"math"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// coverage counts how many of the possible pairs were measured.
func (j *Judgement) coverage() *checkup.Coverage {
	w := j.Worksheet
	c := &checkup.Coverage{Possible: w.Possible, Round: w.Round, Rounds: w.Rounds, Seed: w.Seed}
	out, in, sources := make([]int, len(w.Sources)), make([]int, len(w.Targets)), make([]int, len(w.Targets))
	type zones struct{ source, target string }
	hit := map[zones]bool{}
	failing, assigned := 0, 0
	for outcomes := range j.Assignments {
		assigned++
		if t := outcomes[0].Pair.Target; t >= 0 && t < len(sources) {
			sources[t]++
		}
		fail, pass := 0, 0
		for _, o := range outcomes {
			switch o.Verdict {
			case checkup.Fail:
				fail++
			case checkup.Pass, checkup.Undecided:
				pass++
			}
		}
		switch {
		case fail > 0:
			failing++
		case pass == 0:
			continue
		case pass < len(outcomes):
			c.Partial++
			continue
		}
		c.Measured++
		p := outcomes[0].Pair
		out[p.Source]++
		in[p.Target]++
		if a, b := w.Sources[p.Source].Zone, w.Targets[p.Target].Zone; a != "" && b != "" {
			hit[zones{a, b}] = true
		}
	}
	c.OutDegreeMin, c.OutDegreeMax = bounds(out)
	var measurable []int
	for t, n := range in {
		if sources[t] > 0 || !w.Targets[t].Turns() { // without a source on purpose
			measurable = append(measurable, n)
		}
	}
	c.InDegreeMin, c.InDegreeMax = bounds(measurable)
	c.ZonePairsHit, c.ZonePairsPossible = len(hit), zonePairs(w)
	// An assigned pair is possible, even if the worksheet's number is too low.
	c.Possible = max(c.Possible, assigned)
	if c.Measured > 0 {
		bound := failingUpperBound(c.Possible, c.Measured, failing)
		c.FailingUpperBound = &bound
	}
	return c
}

// zonePairs counts the ordered zone pairs that have a source and a target on different
// nodes.
func zonePairs(w *checkup.Worksheet) int {
	nodes := func(of []checkup.Endpoint) map[string]map[string]bool {
		by := map[string]map[string]bool{}
		for _, e := range of {
			if e.Zone == "" {
				continue
			}
			if by[e.Zone] == nil {
				by[e.Zone] = map[string]bool{}
			}
			by[e.Zone][e.Node] = true
		}
		return by
	}
	sources, targets, n := nodes(w.Sources), nodes(w.Targets), 0
	for a, from := range sources {
		for b, to := range targets {
			if a != b || len(from) > 1 || len(to) > 1 || !sameKeys(from, to) {
				n++
			}
		}
	}
	return n
}

func sameKeys(a, b map[string]bool) bool {
	for k := range a {
		if !b[k] {
			return false
		}
	}
	return len(a) == len(b)
}

func bounds(degrees []int) (lowest, highest int) {
	for i, d := range degrees {
		if i == 0 || d < lowest {
			lowest = d
		}
		highest = max(highest, d)
	}
	return lowest, highest
}

// alpha is one minus the confidence of failingUpperBound.
const alpha = 0.05

// failingUpperBound is the exact one-sided 95% upper confidence bound on the
// share of failing pairs among possible, when of measured ones, drawn at random
// without replacement, failing failed. It inverts the hypergeometric test, as
// Clopper and Pearson invert the binomial one: the bound is the largest number K
// of failing pairs for which so few failures in the sample still have a probability of
// 5%. If nothing failed and possible is much larger than measured, it is about
// 3/measured (the rule of three).
//
// The distribution function decreases with K; bisection finds K.
func failingUpperBound(possible, measured, failing int) float64 {
	low, high := failing, possible-measured+failing // low is known to be possible, high may be
	for low < high {
		k := low + (high-low+1)/2
		if atMost(possible, k, measured, failing) >= alpha*(1-1e-7) { // a tolerance for rounding
			low = k
		} else {
			high = k - 1
		}
	}
	return float64(low) / float64(possible)
}

// atMost is the hypergeometric probability of drawing at most x marked ones in n
// draws from N of which K are marked. From the mean up it returns 1 instead of the exact
// value, which is above 1/4 there: its caller only compares it with alpha.
func atMost(N, K, n, x int) float64 {
	if float64(x) >= float64(n)*float64(K)/float64(N) {
		return 1
	}
	// Below the mean the terms decrease from x down, therefore the sum ends early.
	term := math.Exp(LogChoose(K, x) + LogChoose(N-K, n-x) - LogChoose(N, n))
	sum := term
	for i := x; i > 0 && term > sum*1e-17 && sum <= alpha; i-- {
		term *= float64(i) * float64(N-K-n+i) / (float64(K-i+1) * float64(n-i+1))
		sum += term
	}
	return sum
}

// LogChoose is the logarithm of the binomial coefficient; minus infinity if that is 0.
func LogChoose(n, k int) float64 {
	if k < 0 || k > n {
		return math.Inf(-1)
	}
	a, _ := math.Lgamma(float64(n + 1))
	b, _ := math.Lgamma(float64(k + 1))
	c, _ := math.Lgamma(float64(n - k + 1))
	return a - b - c
}
