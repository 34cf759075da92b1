// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
)

// sum is AtLeast as it is defined, added up with 300 bits.
func sum(k, n int, p float64) float64 {
	of := func(x float64) *big.Float { return new(big.Float).SetPrec(300).SetFloat64(x) }
	q := of(1)
	q.Sub(q, of(p))
	total := of(0)
	for i := k; i <= n; i++ {
		term := of(0).SetInt(new(big.Int).Binomial(int64(n), int64(i)))
		for range i {
			term.Mul(term, of(p))
		}
		for range n - i {
			term.Mul(term, q)
		}
		total.Add(total, term)
	}
	v, _ := total.Float64()
	return v
}

// TestAtLeast compares with the sum, also far out in the tail: levels are divided by the number of tests.
func TestAtLeast(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 20, 100} {
		for _, p := range []float64{1e-6, 0.001, 0.01, 0.05, 0.1, 0.5, 0.9, 0.999} {
			for k := 0; k <= n; k += max(1, n/10) {
				got, want := AtLeast(k, n, p), sum(k, n, p)
				if math.Abs(got-want) > 1e-9*want+1e-300 {
					t.Fatalf("AtLeast(%d, %d, %v) = %v, want %v", k, n, p, got, want)
				}
			}
		}
	}
	for _, test := range []struct {
		k, n int
		p    float64
		want float64
	}{
		{0, 0, 0.5, 1}, {1, 0, 0.5, 0}, {-1, 5, 0.5, 1}, {6, 5, 0.5, 0}, // more than all, or any number
		{1, 5, 0, 0}, {1, 5, -1, 0}, {1, 5, math.NaN(), 0}, {0, 5, 0, 1}, // at 0, one is proof
		{5, 5, 1, 1}, {5, 5, 2, 1},
		{1, 5_300_000, 1e-9, 0.0052859821},  // 1-(1-p)^n
		{530_000, 53_000_000, 0.01, 0.5002}, // near the mean
	} {
		if got := AtLeast(test.k, test.n, test.p); math.Abs(got-test.want) > 1e-3*test.want {
			t.Errorf("AtLeast(%d, %d, %v) = %v, want %v", test.k, test.n, test.p, got, test.want)
		}
	}
}

// TestAtLeastOnce compares with all sequences of a few trials, with AtLeast at a single point, and with the published
// probability that repeated tests of one sample, each at 5%, show a difference where there is none.
func TestAtLeastOnce(t *testing.T) {
	points := []Point{{2, 2}, {5, 3}, {5, 4}, {9, 4}}
	for _, p := range []float64{0, 0.01, 0.3, 0.9, 1} {
		want := 0.0
		for trials := range 1 << 9 {
			chance, reached := 1.0, false
			k := 0
			for i := range 9 {
				if trials>>i&1 == 1 {
					k++
					chance *= p
				} else {
					chance *= 1 - p
				}
				reached = reached || slices.ContainsFunc(points, func(at Point) bool { return at.N == i+1 && k >= at.K })
			}
			if reached {
				want += chance
			}
		}
		if got := AtLeastOnce(points, p); math.Abs(got-want) > 1e-12 {
			t.Errorf("p = %v: %v, want %v", p, got, want)
		}
	}
	for _, at := range []Point{{20, 6}, {100, 9}, {7, 0}, {7, 8}, {0, 0}} {
		if got, want := AtLeastOnce([]Point{at}, 0.05), AtLeast(at.K, at.N, 0.05); math.Abs(got-want) > 1e-12 {
			t.Errorf("%+v: %v, want %v", at, got, want)
		}
	}
	if got := AtLeastOnce(nil, 0.5); got != 0 {
		t.Errorf("no point: %v", got)
	}
	// Armitage, McPherson and Rowe, table 1, for a normal mean in both directions: 14.2% after 5 tests, 10.7% after 3.
	for _, n := range []int{3, 5} {
		var up []Point
		for i := range n {
			made := 2000 * (i + 1)
			up = append(up, Point{made, int(math.Ceil(float64(made)/2 + 1.96*math.Sqrt(float64(made))/2))})
		}
		want := map[int]float64{3: 0.107, 5: 0.142}[n] / 2
		if got := AtLeastOnce(up, 0.5); math.Abs(got-want) > 0.004 {
			t.Errorf("%d tests: %v, want %v", n, got, want)
		}
	}
}

// TestUpper compares with published values.
func TestUpper(t *testing.T) {
	for _, test := range []struct {
		k, n       int
		confidence float64
		want       string
	}{
		// Clopper and Pearson's chart, as two-sided 95% intervals: 97.5% on each side.
		{0, 10, 0.975, "0.3085"}, {1, 10, 0.975, "0.445"}, {5, 10, 0.975, "0.8129"}, {2, 20, 0.975, "0.317"},
		{0, 100, 0.95, "0.02951"}, // the rule of three says 0.03
		{0, 10_000, 0.95, "0.0002995"},
		{1, 10_000, 0.95, "0.0004743"},
		{53, 53_000, 0.95, "0.001257"},
		{5, 5, 0.95, "1"}, {6, 5, 0.95, "1"}, {0, 0, 0.95, "1"},
	} {
		if got := fmt.Sprintf("%.4g", Upper(test.k, test.n, test.confidence)); got != test.want {
			t.Errorf("Upper(%d, %d, %v) = %s, want %s", test.k, test.n, test.confidence, got, test.want)
		}
	}
}

// TestMonotone: more successes are less probable, more trials or a larger p make them more probable, and a bound
// rises with the successes and falls with the trials.
func TestMonotone(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		n := 1 + rng.IntN(1000)
		k, p := rng.IntN(n+1), math.Pow(10, -6*rng.Float64())
		v := AtLeast(k, n, p)
		if !(v >= 0 && v <= 1) || AtLeast(k+1, n, p) > v || AtLeast(k, n+1, p) < v*(1-1e-9) || AtLeast(k, n, p*1.01) < v*(1-1e-9) {
			t.Fatalf("AtLeast(%d, %d, %v) = %v is not monotone", k, n, p, v)
		}
		u := Upper(k, n, 0.95)
		if u < float64(k)/float64(n) || Upper(k+1, n, 0.95) < u || Upper(k, n+1, 0.95) > u || Upper(k, n, 0.99) < u {
			t.Fatalf("Upper(%d, %d) = %v is not monotone", k, n, u)
		}
		if seen := AtLeast(k+1, n, u); k < n && math.Abs(seen-0.95) > 1e-6 {
			t.Fatalf("at Upper(%d, %d) = %v, more is seen with probability %v, want 0.95", k, n, u, seen)
		}
	}
}

// TestAscending compares with all orders of a few values, and with published values of Kendall's S.
func TestAscending(t *testing.T) {
	for n := range 8 {
		counts, all := make([]int, n*(n-1)/2+1), 0
		var permute func(rest, order []int)
		permute = func(rest, order []int) {
			if len(rest) == 0 {
				up := 0
				for i, v := range order {
					for _, later := range order[i+1:] {
						if v < later {
							up++
						}
					}
				}
				counts[up]++
				all++
				return
			}
			for i, v := range rest {
				left := append(append([]int{}, rest[:i]...), rest[i+1:]...)
				permute(left, append(order[:len(order):len(order)], v))
			}
		}
		var values []int
		for i := range n {
			values = append(values, i)
		}
		permute(values, nil)
		got := Ascending(n)
		atLeast := 0
		for k := len(counts) - 1; k >= 0; k-- {
			atLeast += counts[k]
			if want := float64(atLeast) / float64(all); math.Abs(got[k]-want) > 1e-12 {
				t.Errorf("at least %d ascending pairs of %d values: %g, want %g", k, n, got[k], want)
			}
		}
	}
	// Kendall, Rank Correlation Methods, appendix table 1: n = 10, S = 2k - 45.
	for _, tt := range []struct {
		s    int
		want string
	}{{1, "0.5"}, {11, "0.19"}, {21, "0.036"}, {31, "0.0023"}} {
		if got := fmt.Sprintf("%.2g", Ascending(10)[(tt.s+45)/2]); got != tt.want {
			t.Errorf("S of 10 values is at least %d with probability %s, want %s", tt.s, got, tt.want)
		}
	}
}
