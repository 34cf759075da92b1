// SPDX-License-Identifier: Apache-2.0

// Package stats has the exact binomial statistics of judging, localising and explaining. X is the number of
// successes in n independent trials, each with probability p.
package stats

import "gonum.org/v1/gonum/mathext"

// AtLeast is the probability that X is k or more: the regularised incomplete beta function I_p(k, n-k+1) (Abramowitz
// and Stegun, Handbook of Mathematical Functions, 26.5.24). A p below 0, or one that is no number, counts as 0, one
// above 1 as 1.
func AtLeast(k, n int, p float64) float64 {
	switch {
	case k <= 0:
		return 1
	case k > n || !(p > 0):
		return 0
	case p >= 1:
		return 1
	}
	return mathext.RegIncBeta(float64(k), float64(n-k+1), p)
}

// Point is K successes in the first N of some trials.
type Point struct{ N, K int }

// AtLeastOnce is the probability that, at one or more of the points, the first N trials have K successes or more. The
// points are in the order of N. It is exact: the trials are gone through one by one (Armitage, McPherson and Rowe,
// Journal of the Royal Statistical Society A 132, 1969).
func AtLeastOnce(points []Point, p float64) float64 {
	p = min(max(p, 0), 1)
	// below has, by the number of successes, the probability that no point was reached yet.
	below, reached, made := []float64{1}, 0.0, 0
	for _, at := range points {
		for ; made < at.N; made++ {
			below = append(below, 0)
			for k := len(below) - 1; k >= 0; k-- {
				below[k] *= 1 - p
				if k > 0 {
					below[k] += below[k-1] * p
				}
			}
		}
		for len(below) > max(at.K, 0) {
			reached += below[len(below)-1]
			below = below[:len(below)-1]
		}
	}
	return reached
}

// Upper is the one-sided upper confidence bound on p when X is k (Clopper and Pearson, Biometrika 26, 1934): the p at
// which X is k or less with probability 1-confidence. It is 1 if k is n or more, and without trials.
//
// It is also the smallest p at which X exceeds k with probability confidence.
func Upper(k, n int, confidence float64) float64 {
	if k >= n {
		return 1
	}
	// AtLeast increases with p. Bisection ends where no number is between the two.
	low, high := 0.0, 1.0
	for {
		p := low + (high-low)/2
		if p <= low || p >= high {
			return high
		}
		if AtLeast(k+1, n, p) >= confidence {
			high = p
		} else {
			low = p
		}
	}
}

// Ascending returns, for each k from 0, the probability that at least k of the pairs of n values ascend: the earlier
// value of the pair is the lower one. All orders of the values are equally likely, and no two are equal. It is the
// exact distribution of Kendall's S and of Mann's test against trend (Mann, Econometrica 13, 1945; Kendall, Rank
// Correlation Methods, 1970, chapter 5).
func Ascending(n int) []float64 {
	p := []float64{1}
	// The i-th value has 0 to i-1 lower ones before it, each number equally likely and independent of the others.
	for i := 2; i <= n; i++ {
		next := make([]float64, len(p)+i-1)
		for k, v := range p {
			for lower := range i {
				next[k+lower] += v / float64(i)
			}
		}
		p = next
	}
	for k := len(p) - 2; k >= 0; k-- {
		p[k] += p[k+1]
	}
	return p
}
