// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge/judgetest"
	"github.com/checkplan/checkplan/pkg/stats"
)

// TestFalseAlarms: whatever the number of pairs, the tests of one look raise a false alarm with at most a quarter of
// FalseAlarms, also if the network only just keeps its limit.
func TestFalseAlarms(t *testing.T) {
	const limit = 0.01
	for _, pairs := range []int{1, 10, 120, 4_000, 100_000, 500_000, 5_000_000} {
		for _, sent := range []int{3, 5, 20, 100, 1000} {
			// The fewest losses that fail a pair.
			fails := 1
			for fails <= sent && (Test{checkup.LimitLoss, fails, sent, limit}).Verdict(Level(&checkup.Worksheet{}, pairs)) != checkup.Fail {
				fails++
			}
			for _, loss := range []float64{0.001, 0.005, limit} {
				one := stats.AtLeast(fails, sent, loss)
				if any := -math.Expm1(float64(pairs) * math.Log1p(-one)); any > FalseAlarms/4 {
					t.Errorf("%d pairs, %d of %d fail, %v lost: false alarms in %v of the runs", pairs, fails, sent, loss, any)
				}
			}
		}
	}
}

// TestNoise simulates meshes in which every packet is lost with the same small probability. No pair fails.
func TestNoise(t *testing.T) {
	for seed := range judgetest.Iterations(20, 1000) {
		for _, loss := range []float64{0.0005, 0.0025} { // on each way
			n := judgetest.NewMesh(seed, 12, 5, 2, judgetest.DefaultProbes())
			n.Worksheet.Expect.Loss.Max = new(checkup.Percent(1))
			n.Repair = true
			n.Drop = func(judgetest.Packet) float64 { return loss }
			r := check(n.Worksheet, n.Roster, n.Measure(), checkup.Gate{})
			if r.Verdict != checkup.RunPass || r.Counts.Undecided > r.Counts.Expected/10 {
				t.Errorf("seed %d, %v lost on each way: %s with %+v", seed, loss, r.Verdict, r.Counts)
			}
		}
	}
}

// TestMoreIsWorse: a pair that loses more, or is slower, never has a better verdict, and one that is not answered at
// all fails, whatever the limits and the number of other pairs.
func TestMoreIsWorse(t *testing.T) {
	order := []checkup.Verdict{checkup.Pass, checkup.Undecided, checkup.Fail}
	rng := rand.New(rand.NewPCG(1, 1))
	for range judgetest.Iterations(50, 1000) {
		n := judgetest.NewMesh(rng.Uint64(), 2+rng.IntN(5), 0, 0, []checkup.TransportProbe{
			{Transport: checkup.UDP, Probe: checkup.Probe{Sizes: []int{64}, Count: 1 + rng.IntN(60)}},
		})
		e := &n.Worksheet.Expect
		e.Loss.Max = new(checkup.Percent(math.Round(100 * math.Pow(rng.Float64(), 3))))
		for _, l := range []**checkup.Duration{&e.Latency.P50, &e.Latency.P90, &e.Latency.P95, &e.Latency.P99, &e.Latency.Max} {
			if rng.IntN(2) == 0 {
				*l = new(checkup.Duration(time.Millisecond))
			}
		}
		record := n.Measure()
		o := &record.Observations[rng.IntN(len(record.Observations))]
		for what, of := range map[string]func(bad int){
			"lost": func(bad int) { o.Received, o.RTTs = o.Sent-bad, slices.Repeat([]int64{100}, o.Sent-bad) },
			"slow": func(bad int) {
				o.Received, o.RTTs = o.Sent, slices.Concat(slices.Repeat([]int64{2000}, bad), slices.Repeat([]int64{100}, o.Sent-bad))
			},
		} {
			worst := 0
			for bad := range o.Sent + 1 {
				of(bad)
				at := Pairs(n.Worksheet, n.Roster, record, Rules{Pools: true}).Find(o.Pair)
				v := slices.Index(order, at.Verdict)
				if v < worst || o.Received == 0 && at.Verdict != checkup.Fail {
					t.Fatalf("expected %+v: %s with %d %s of %d", *e, at.Verdict, bad, what, o.Sent)
				}
				worst = v
				for _, b := range at.Breaches {
					if b.Limit != checkup.LimitAnswer && b.Measured <= b.Max {
						t.Fatalf("%s although %s %v is within its limit %v", at.Verdict, b.Limit, b.Measured, b.Max)
					}
				}
			}
		}
	}
}

// TestLevel: a pair that fails in a small mesh may be undecided in a large one, and passes in both or in none.
func TestLevel(t *testing.T) {
	for _, test := range []struct {
		lost  int
		small checkup.Verdict // of 2 nodes
		large checkup.Verdict // of 20 nodes
	}{
		{0, checkup.Pass, checkup.Pass},
		{1, checkup.Pass, checkup.Pass},
		{2, checkup.Undecided, checkup.Undecided},
		{5, checkup.Fail, checkup.Undecided},
		{6, checkup.Fail, checkup.Fail},
	} {
		for nodes, want := range map[int]checkup.Verdict{2: test.small, 20: test.large} {
			n := judgetest.NewMesh(1, nodes, 0, 0, []checkup.TransportProbe{
				{Transport: checkup.UDP, Probe: checkup.Probe{Sizes: []int{64}, Count: 20}},
			})
			n.Worksheet.Expect.Loss.Max = new(checkup.Percent(1))
			record := n.Measure()
			o := &record.Observations[0]
			o.Received, o.RTTs = o.Sent-test.lost, o.RTTs[test.lost:]
			if got := Pairs(n.Worksheet, n.Roster, record, Rules{Pools: true}).Outcomes[0].Verdict; got != want {
				t.Errorf("%d of 20 lost in a mesh of %d nodes: %s, want %s", test.lost, nodes, got, want)
			}
		}
	}
}

// TestJitter: there is no exact test of jitter. Where a kind looks again, one look does not decide.
func TestJitter(t *testing.T) {
	for _, test := range []struct {
		name  string
		rules Rules
		look  int
		want  checkup.Verdict
		cause string
	}{
		{"a kind that does not look again", Rules{}, 0, checkup.Fail, "echo: jitter 100µs, limit 99µs"},
		{"the first look", Rules{LooksAgain: true}, 0, checkup.Undecided, "echo: jitter 100µs, limit 99µs: not yet measured twice"},
		{"the further look", Rules{LooksAgain: true}, 1, checkup.Fail, "echo: jitter 100µs, limit 99µs"},
	} {
		o := newOne()
		o.w.Expect.Jitter.Max = ptr(checkup.Duration(99 * time.Microsecond))
		if o.w.Look = test.look; test.look > 0 {
			o.w.Again = []checkup.Again{{Pair: o.observation.Pair, Count: 4}}
		}
		got := Pairs(&o.w, o.roster, o.record, test.rules).Outcomes[0]
		if got.Verdict != test.want || got.Cause.String() != test.cause {
			t.Errorf("%s: %s, %q; want %s, %q", test.name, got.Verdict, got.Cause, test.want, test.cause)
		}
	}
}

// TestFailTogether: of pairs that fail together, those fail that lost something, and no pair that was not measured.
func TestFailTogether(t *testing.T) {
	n := judgetest.NewMesh(1, 4, 0, 0, []checkup.TransportProbe{
		{Transport: checkup.UDP, Probe: checkup.Probe{Sizes: []int{64}, Count: 20}},
	})
	n.Worksheet.Expect.Loss.Max = new(checkup.Percent(1))
	record := n.Measure()
	lose := func(i, lost int) {
		o := &record.Observations[i]
		o.Received, o.RTTs = o.Sent-lost, o.RTTs[lost:]
	}
	lose(0, 1)
	lose(1, 2)
	lose(2, 20)
	record.Observations[4].Unmeasured = &checkup.Cause{Stage: checkup.StageSelf, Message: "deadline"}
	lose(5, 1) // the responder itself dropped it
	record.Receptions = slices.DeleteFunc(record.Receptions, func(r checkup.Reception) bool { return r.Pair == record.Observations[5].Pair })
	record.Receptions = append(record.Receptions, checkup.Reception{Pair: record.Observations[5].Pair, Packets: 19, Dropped: 1})

	j := Pairs(n.Worksheet, n.Roster, record, Rules{})
	var before, after []string
	for _, o := range j.Outcomes[:7] {
		before = append(before, string(o.Verdict))
	}
	failed := j.FailTogether([]int{0, 1, 2, 3, 4, 5}, checkup.LimitLoss, "with the other pairs into the pods of x")
	for _, o := range j.Outcomes[:7] {
		after = append(after, string(o.Verdict))
	}
	if got, want := strings.Join(before, " "), "pass undecided fail pass unmeasured pass pass"; got != want {
		t.Errorf("alone: %s, want %s", got, want)
	}
	if got, want := strings.Join(after, " "), "fail fail fail pass unmeasured pass pass"; got != want || failed != 2 {
		t.Errorf("together: %s, %d more fail; want %s, 2 more", got, failed, want)
	}
	o := &j.Outcomes[0]
	const want = "1 of 20 lost (5%), limit 1%: with the other pairs into the pods of x; last: no answer"
	if o.Cause.Message != want || o.Failure != Lost || len(o.Breaches) != 1 || o.Breaches[0].Limit != checkup.LimitLoss {
		t.Errorf("the first pair fails with %+v, want the cause %q", o, want)
	}
	if r := j.Report(checkup.Gate{}); r.Verdict != checkup.RunFail || r.Counts.Fail != 3 || r.Counts.Undecided != 0 {
		t.Errorf("%s with %+v, want 3 failed pairs", r.Verdict, r.Counts)
	}
}

// TestStopped: a further look that ends at a stopping point of its order, which it is beyond, is measured as ordered, and
// fails. One that ends anywhere else has too few measurements to pass, as without stopping points.
func TestStopped(t *testing.T) {
	for _, test := range []struct {
		name                string
		sent, lost, spoiled int
		stops               checkup.Stops
		want                checkup.Verdict
		cause               string
	}{
		{"all, nothing lost", 100, 0, 0, twoStops, checkup.Pass, ""},
		{"all, a few lost", 100, 5, 0, twoStops, checkup.Undecided, ""},
		{"all, many lost", 100, 30, 0, twoStops, checkup.Fail, "30 of 100 lost (30%), limit 1%; last: no answer"},
		{"at the first point", 20, 3, 0, twoStops, checkup.Fail, "3 of 20 lost (15%), limit 1%: enough after 20 of 100; last: no answer"},
		{"at the second point", 40, 4, 0, twoStops, checkup.Fail, "4 of 40 lost (10%), limit 1%: enough after 40 of 100; last: no answer"},
		{"at a point, all lost", 20, 20, 0, twoStops, checkup.Fail, "no answer"},
		{"at a point, held up before", 20, 3, 30, twoStops, checkup.Fail, "3 of 20 lost (15%), limit 1%: enough after 20 of 100; last: no answer"},
		{"at a point, not beyond", 20, 2, 0, twoStops, checkup.Unmeasured, "only 20 of 100 measurements were made: too few to pass"},
		{"at a point, nothing lost", 40, 0, 0, twoStops, checkup.Unmeasured, "only 40 of 100 measurements were made: too few to pass"},
		{"beyond, but not at a point", 21, 3, 0, twoStops, checkup.Unmeasured, "only 21 of 100 measurements were made: too few to pass"},
		{"no points are ordered", 20, 3, 0, nil, checkup.Unmeasured, "only 20 of 100 measurements were made: too few to pass"},
	} {
		o := newOne()
		o.w.Expect.Loss.Max = ptr(checkup.Percent(1))
		o.w.Look, o.w.Again = 1, []checkup.Again{{Pair: o.observation.Pair, Count: 100, Stops: test.stops}}
		o.observation.Sent, o.observation.Received, o.observation.Spoiled = test.sent, test.sent-test.lost, test.spoiled
		o.observation.RTTs = slices.Repeat([]int64{100}, test.sent-test.lost)
		got := Pairs(&o.w, o.roster, o.record, Rules{Pools: true, LooksAgain: true}).Outcomes[0]
		if got.Verdict != test.want || test.cause != "" && got.Cause.Message != test.cause {
			t.Errorf("%s: %s, %q; want %s, %q", test.name, got.Verdict, got.Cause.Message, test.want, test.cause)
		}
	}
}

var twoStops = checkup.Stops{{After: 20, Lost: 3}, {After: 40, Lost: 4}}

// TestStopsOf: in a network that just keeps its limit, the probability that a pair is beyond a stopping point is at most
// the level of each, and all points of all pairs together have half of what single pairs have in a look. The fewest
// losses that stop are not one too many.
func TestStopsOf(t *testing.T) {
	for _, pairs := range []int{1, 12, 1000, 10_000} {
		for _, count := range []int{1, 4, 5, 25, 100, 200, 1000} {
			for _, limit := range []float64{0, 0.01, 0.2, 1} {
				level := LevelAtStops(&checkup.Worksheet{}, pairs*StopPoints)
				stops := StopsOf(count, limit, level)
				chance := 0.0
				for i, s := range stops {
					p := stats.AtLeast(s.Lost, s.After, limit)
					chance += p
					if p > level || s.Lost < 1 || s.Lost > s.After || s.After >= count || i > 0 && s.After <= stops[i-1].After ||
						s.Lost > 1 && stats.AtLeast(s.Lost-1, s.After, limit) <= level {
						t.Errorf("%d measurements, limit %v, level %v: %+v", count, limit, level, stops)
					}
				}
				if len(stops) > StopPoints || chance*float64(pairs) > FalseAlarms/8 {
					t.Errorf("%d pairs of %d measurements, limit %v: stopped by chance in %v of the runs", pairs, count, limit, chance*float64(pairs))
				}
			}
		}
	}
	if got := StopsOf(100, 0.01, 1e-7); !slices.Equal(got, checkup.Stops{{After: 20, Lost: 6}, {After: 40, Lost: 8}, {After: 60, Lost: 9}, {After: 80, Lost: 10}}) {
		t.Errorf("%+v", got)
	}
}

// TestShare: the checks of a plan share the false alarms of a run.
func TestShare(t *testing.T) {
	for checks, want := range map[int]float64{0: FalseAlarms, 1: FalseAlarms, 4: FalseAlarms / 4} {
		w := &checkup.Worksheet{Checks: checks}
		if got := Share(w); got != want || Level(w, 10) != want/40 || LevelAtStops(w, 10)+LevelToTheEnd(w, 10) != Level(w, 10) {
			t.Errorf("%d checks: %v, want %v", checks, got, want)
		}
	}
}
