// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

var demand = checkup.Regression{
	Runs: 20, MinFactor: 1.5, MinDelay: checkup.Duration(100 * time.Microsecond), MinLoss: 1,
}

// long returns many if CHECKPLAN_LONG is set, else few.
func long(few, many int) int {
	if os.Getenv("CHECKPLAN_LONG") != "" {
		return many
	}
	return few
}

// cluster simulates the values of the groups of a check in many runs, without the packets: a delay is the product of
// what the run, the node and the group add by chance.
type cluster struct {
	nodes int
	// noise is what the chance of a run, of a node in a run, and of a value adds: sigma of the logarithm. heavy replaces
	// one in ten of them by ten times as much.
	noise float64
	heavy bool
	every time.Duration
	// degree is the number of targets of each node, of whose single pairs the values are kept; 0 keeps none.
	degree int
	// slow multiplies the delay of the groups of a node; nil is 1.
	slow func(run, node int) float64
}

func (c cluster) pairs(random *rand.Rand, run int) *Pairs {
	n := c.nodes
	p := &Pairs{Probes: []string{"tcp IPv4 0B", "udp IPv4 64B"}}
	for i := range n {
		p.Sources = append(p.Sources, Member{Name: fmt.Sprintf("n%03d", i), Zone: string(rune('a' + i%3))})
	}
	p.Targets = p.Sources
	targets := make([][]int, n)
	for s := range targets {
		for k := range c.degree {
			targets[s] = append(targets[s], (s+k+1)%n)
		}
	}
	p.rows = encodeRows(targets, n)
	chance := func() float64 {
		x := c.noise * random.NormFloat64()
		if c.heavy && random.IntN(10) == 0 {
			x *= 10
		}
		return x
	}
	delay := func(log float64) byte { return delayCode(int64(300 * math.Exp(log))) }
	whole, node := chance(), make([]float64, n)
	for i := range node {
		node[i] = chance()
		if c.slow != nil {
			node[i] += math.Log(c.slow(run, i))
		}
	}
	add := func(of float64) {
		for range p.Probes {
			median := whole + of + chance()
			p.groups = append(p.groups, delay(median), delay(median+1+chance()), lossCode(max(0, chance()/100)))
		}
	}
	add(0)
	for range 2 { // as sources, and as targets
		for _, of := range node {
			add(of)
		}
	}
	for range p.countGroups() - 1 - 2*n {
		add(0)
	}
	for s, t := range p.each() {
		for range p.Probes {
			median := whole + (node[s]+node[t])/2 + chance()
			p.detail = append(p.detail, delay(median), delay(median+1), byte(1+max(0, int(5*chance()))))
		}
	}
	return p
}

// simulate runs a cluster, and calls each with the comparison of each run with those before it.
func (c cluster) simulate(seed uint64, runs int, r checkup.Regression, each func(run int, x *Comparison)) {
	random := rand.New(rand.NewPCG(seed, 9))
	h := &History{}
	for run := range runs {
		at := start.Add(time.Duration(run) * max(c.every, time.Minute))
		now := c.pairs(random, run)
		x := h.Compare("mesh", now, at, r)
		each(run, x)
		regressed := slices.ContainsFunc(x.Changes, func(c Change) bool { return c.Days == 0 })
		check := Check{Name: "mesh", Pairs: now, Regressed: regressed}
		h.Runs = append(h.Runs, Run{N: run + 1, Finished: at, Checks: []Check{check}})
		h.Runs = h.Runs[max(0, len(h.Runs)-200):]
		h.dropOld()
	}
}

// TestFalseAlarms: without any change, and with every difference counted, at most one in 21 runs begins an alarm,
// whatever the noise is; with the default demands, quiet clusters have none.
func TestFalseAlarms(t *testing.T) {
	every := checkup.Regression{Runs: 20, MinFactor: 1}
	for _, tt := range []struct {
		name  string
		c     cluster
		r     checkup.Regression
		quiet bool
	}{
		{"every difference counts", cluster{noise: 0.1}, every, false},
		{"every difference counts, heavy tails", cluster{noise: 0.2, heavy: true}, every, false},
		{"single pairs, every difference counts", cluster{noise: 0.1, degree: 10}, every, false},
		{"single pairs, every difference counts, heavy tails", cluster{noise: 0.2, heavy: true, degree: 10}, every, false},
		{"single pairs, default demands, quiet", cluster{noise: 0.03, degree: 10}, demand, true},
		{"single pairs, default demands, heavy tails", cluster{noise: 0.2, heavy: true, degree: 10}, demand, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.c.nodes = long(20, 200)
			runs, compared, alarms, begun, before := long(90, 10_000), 0, 0, 0, false
			tt.c.simulate(5, runs, tt.r, func(_ int, x *Comparison) {
				if x.Runs < 20 {
					return
				}
				compared++
				alarm := len(x.Changes) > 0
				if alarm {
					alarms++
					if !before {
						begun++
					}
				}
				before = alarm
			})
			rate := 1.0 / float64(tt.r.Runs+1)
			t.Logf("%d runs compared, %d with alarms (%.2f%%), %d begun (%.2f%%)", compared, alarms,
				100*float64(alarms)/float64(compared), begun, 100*float64(begun)/float64(compared))
			// Four standard deviations of the binomial.
			if most := rate + 4*math.Sqrt(rate*(1-rate)/float64(compared)); float64(begun) > most*float64(compared) {
				t.Errorf("%d of %d runs begin a false alarm, want at most %.2g", begun, compared, rate)
			}
			if tt.quiet && alarms > 0 {
				t.Errorf("%d false alarms, want none", alarms)
			}
		})
	}
}

// TestDriftIsFound: a node that becomes slower by 1% each day is found, with the number of days for each noise. Without
// any change, drift is not found.
func TestDriftIsFound(t *testing.T) {
	const still = 70 // days without a change
	for _, tt := range []struct {
		noise, perDay float64
		within        int // days; 0 is never
	}{
		{0.03, 1.01, 50},
		{0.1, 1.01, 60},
		{0.1, 1.03, 30},
		{0.1, 1, 0},
	} {
		t.Run(fmt.Sprintf("noise %g, %g a day", tt.noise, tt.perDay), func(t *testing.T) {
			var found []int
			for seed := range long(1, 100) {
				c := cluster{nodes: long(10, 20), noise: tt.noise / 2, every: 24 * time.Hour, slow: func(run, node int) float64 {
					if node != 7 {
						return 1
					}
					return math.Pow(tt.perDay, float64(max(0, run-still)))
				}}
				day := 0
				c.simulate(uint64(seed), still+tt.within+20, demand, func(run int, x *Comparison) {
					for _, change := range x.Changes {
						if change.Days == 0 || day > 0 {
							continue
						}
						if day = run - still; change.From+change.To != "n007" || day <= 0 {
							t.Errorf("seed %d, day %d: %+v", seed, run-still, change)
						}
					}
				})
				if day > 0 {
					found = append(found, day)
				}
			}
			slices.Sort(found)
			if tt.within == 0 {
				return
			}
			if len(found) < long(1, 100) || found[len(found)/2] > tt.within {
				t.Errorf("found after %v days, want within %d", found, tt.within)
			}
			t.Logf("found after %d to %d days, median %d", found[0], found[len(found)-1], found[len(found)/2])
		})
	}
}

// TestMeasure: center and spread of a row are the lower median and the lower median distance from it.
func TestMeasure(t *testing.T) {
	lower := func(sorted []float64) float64 { return sorted[(len(sorted)-1)/2] }
	random := rand.New(rand.NewPCG(1, 4))
	for range long(2000, 100_000) {
		w := row{limit: limits[random.IntN(perGroup)], codes: make([]byte, 1+random.IntN(keepPairs+1))}
		of := scaleOf(w.limit).of
		first, codes := random.IntN(256), 1+random.IntN(256)
		var values []float64
		for i := range w.codes {
			if c := first + random.IntN(codes); c < 256 {
				w.codes[i] = byte(c)
			}
			if w.codes[i] > 0 {
				values = append(values, of[w.codes[i]])
			}
		}
		if w.measure(); len(values) == 0 {
			continue
		}
		slices.Sort(values)
		center := lower(values)
		for i := range values {
			values[i] = math.Abs(values[i] - center)
		}
		slices.Sort(values)
		if w.known != len(values) || w.center != center || w.spread != lower(values) {
			t.Fatalf("codes %v: %d values, center %g, spread %g; want %d, %g, %g", w.codes, w.known, w.center, w.spread,
				len(values), center, lower(values))
		}
	}
}

// TestCompareKnowsNoOrder: a step is the same whatever the order of the earlier runs is: that makes the test exact. The
// same comparison has the same result.
func TestCompareKnowsNoOrder(t *testing.T) {
	for seed := range uint64(long(5, 50)) {
		random := rand.New(rand.NewPCG(seed, 3))
		c := cluster{nodes: 2 + random.IntN(12), noise: 0.1}
		c.slow = func(run, node int) float64 {
			if run == 25 && node == 1 {
				return 5
			}
			return 1
		}
		h := &History{}
		for run := range 25 {
			check := Check{Name: "mesh", Pairs: c.pairs(random, run)}
			h.Runs = append(h.Runs, Run{N: run + 1, Finished: start, Checks: []Check{check}})
		}
		now := c.pairs(random, 25)
		want := h.Compare("mesh", now, start, demand)
		if len(want.Changes) == 0 {
			t.Errorf("seed %d: a node that is five times slower was not found", seed)
		}
		shuffled := &History{Runs: slices.Clone(h.Runs)}
		random.Shuffle(25, func(i, k int) { shuffled.Runs[i], shuffled.Runs[k] = shuffled.Runs[k], shuffled.Runs[i] })
		if got := shuffled.Compare("mesh", now, start, demand); !slices.Equal(got.Changes, want.Changes) {
			t.Errorf("seed %d: changes %+v in another order of runs, want %+v", seed, got.Changes, want.Changes)
		}
		if got := h.Compare("mesh", now, start, demand); !slices.Equal(got.Changes, want.Changes) {
			t.Errorf("seed %d: a second comparison has other changes", seed)
		}
	}
}

// TestBefore: runs that are known to be worse are not compared with: the last ones, and those in succession.
func TestBefore(t *testing.T) {
	p := cluster{nodes: 2}.pairs(rand.New(rand.NewPCG(1, 1)), 0)
	for _, tt := range []struct{ runs, want string }{
		{"", ""},
		{".....", "....."},
		{"..x..", "..x.."},
		{"..xx.", "..."},
		{"...xx", "..."},
		{"....x", "...."},
		{"x.x.x", "x.x."},
		{"xx.x.", ".x."},
	} {
		h := &History{}
		for _, r := range tt.runs {
			h.Runs = append(h.Runs, Run{Checks: []Check{{Name: "mesh", Pairs: p, Regressed: r == 'x'}}})
		}
		got := ""
		for _, k := range h.before("mesh") {
			if k.regressed {
				got += "x"
			} else {
				got += "."
			}
		}
		if got != tt.want {
			t.Errorf("of %q, %q is compared with, want %q", tt.runs, got, tt.want)
		}
	}
}

// TestForeignGroups: values of groups that do not belong to the pairs are left out, and the pairs stay.
func TestForeignGroups(t *testing.T) {
	h := Merge(nil, mesh{nodes: nodes(4), degree: 1}.entry(0))
	own := h.Runs[0].Checks[0].Pairs
	own.groups = own.groups[:len(own.groups)-1]
	parts, err := Encode(h)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := Decode("p", parts, start)
	if p := got.Runs[0].Checks[0].Pairs; p == nil || p.groups != nil || p.detail == nil {
		t.Errorf("pairs %+v, want them without values of groups", p)
	}
}

// TestCreatedAgain: a node that was deleted and created again is another one: it is not compared with the one before.
func TestCreatedAgain(t *testing.T) {
	const node = "node-0003"
	m := mesh{nodes: nodes(8), degree: 7, uids: map[string]string{}}
	for _, name := range m.nodes {
		m.uids[name] = "uid of " + name
	}
	var h *History
	for run := range demand.Runs + 2 {
		h = Merge(h, m.entry(run))
	}
	m.slow = func(_ int, from, to string) float64 {
		if from == node || to == node {
			return 20
		}
		return 1
	}
	for uid, same := range map[string]bool{"uid of " + node: true, "another one": false} {
		m.uids[node] = uid
		r, sheets := m.sheet(demand.Runs + 2)
		found := false
		for _, c := range h.Compare("mesh", PairsOf(&r.Checks[0], sheets["mesh"]), r.Finished, demand).Changes {
			found = found || c.From == node || c.To == node
		}
		if found != same {
			t.Errorf("UID %q: a change of the node is found: %v, want %v", uid, found, same)
		}
	}
}
