// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/judge/judgetest"
	"github.com/checkplan/checkplan/pkg/localise"
	"github.com/checkplan/checkplan/pkg/stats"
)

// confirms is a gate that wants failures to be confirmed.
var confirms = checkup.Gate{Require: checkup.RequirePass, Confirm: true}

// TestAgainOfRandomMeshes: a second look has pairs that failed, are undecided, or are of an undecided component, each
// once and in the order of the worksheet, at most mostAgain of them. All others separate causes: their source measured
// something, and the roster has their target. It is the same for the same record, in any order of its observations. A
// clean look, a third look, and a gate that does not confirm have none.
func TestAgainOfRandomMeshes(t *testing.T) {
	for seed := range judgetest.Iterations(200, 5000) {
		mesh := judgetest.RandomMesh(seed)
		w, record := mesh.Worksheet, mesh.Measure()
		further := Again(w, mesh.Roster, record, confirms)
		doubtful := map[checkup.Pair]bool{}
		j := judge.Pairs(w, mesh.Roster, record, judging(confirms))
		for _, c := range localise.Explain(j).Undecided {
			for _, part := range c.Parts {
				doubtful[j.Outcomes[part.At].Pair] = true
			}
		}
		for i := range j.Outcomes {
			if o := &j.Outcomes[i]; o.Verdict == checkup.Fail || o.Verdict == checkup.Undecided {
				doubtful[o.Pair] = true
			}
		}
		if (further == nil) != (len(doubtful) == 0) {
			t.Fatalf("seed %d: a second look: %t, with %d doubtful pairs", seed, further != nil, len(doubtful))
		}
		if Again(w, mesh.Roster, record, checkup.Gate{}) != nil {
			t.Fatalf("seed %d: a second look although the gate does not confirm", seed)
		}
		if further == nil {
			continue
		}
		pairs := slices.Collect(further.Pairs())
		most, packets := mostAgain(w)
		if further.CountPackets() > packets {
			t.Fatalf("seed %d: %d packets, explained as at most %d", seed, further.CountPackets(), packets)
		}
		more := 0
		for _, a := range further.Again {
			if !doubtful[a.Pair] {
				more++
			}
		}
		if further.Look != 1 || len(pairs) > most || len(pairs)-more < min(len(doubtful), most-most/separatingShare) ||
			len(pairs) != len(further.Again) {
			t.Fatalf("seed %d: look %d with %d pairs, %d listed, of %d", seed, further.Look, len(pairs), len(further.Again), len(doubtful))
		}
		for i, a := range further.Again {
			first := j.Find(a.Pair)
			if a.Pair != pairs[i] ||
				a.Count < w.Measurements(a.Pair) || a.Count > max(countAgain(w.Measurements(a.Pair)), len(a.Ports)*ofFlow) ||
				(a.Count == w.Measurements(a.Pair)) != (first != nil && first.Received == 0) {
				t.Fatalf("seed %d: %+v, after %+v", seed, a, first)
			}
			if !doubtful[a.Pair] && (a.Target >= len(w.Targets) || mesh.Roster.Targets[a.Target].Addresses[a.Family] == "" ||
				a.Target == a.Source || len(w.Assignments[a.Source]) == 0) {
				t.Fatalf("seed %d: %+v cannot be measured", seed, a)
			}
		}
		shuffled := *record
		shuffled.Observations = slices.Clone(record.Observations)
		rand.New(rand.NewPCG(seed, 9)).Shuffle(len(shuffled.Observations), func(a, b int) {
			shuffled.Observations[a], shuffled.Observations[b] = shuffled.Observations[b], shuffled.Observations[a]
		})
		if diff := cmp.Diff(further, Again(w, mesh.Roster, &shuffled, confirms)); diff != "" {
			t.Fatalf("seed %d: depends on the order of the observations:\n%s", seed, diff)
		}
		if Again(further, mesh.Roster, record, confirms) != nil {
			t.Fatalf("seed %d: a third look", seed)
		}
	}
}

// TestAgainIsBounded: of a mesh in which all fails, the second look has as many pairs as the budget
// allows, and every source and target has its share.
func TestAgainIsBounded(t *testing.T) {
	mesh := judgetest.NewMesh(7, 60, 10, 0, judgetest.DefaultProbes())
	mesh.Drop = func(judgetest.Packet) float64 { return 1 }
	w := mesh.Worksheet
	record := mesh.Measure()
	for _, tt := range []struct{ budget, want int }{{0, 1000}, {100, 1000}, {30_000, 3000}, {10_000_000, 6000}} {
		w.Budget = tt.budget
		further := Again(w, mesh.Roster, record, confirms)
		if most, _ := mostAgain(w); further == nil || len(further.Again) != tt.want || most != tt.want {
			t.Fatalf("budget %d: not %d pairs of %d", tt.budget, tt.want, w.CountPairs())
		}
		for name, n := range map[string]func(checkup.Again) int{
			"source": func(a checkup.Again) int { return a.Source },
			"target": func(a checkup.Again) int { return a.Target },
		} {
			each := make([]int, len(w.Sources))
			for _, a := range further.Again {
				each[n(a)]++
			}
			if slices.Max(each) > 3*slices.Min(each) {
				t.Errorf("budget %d: pairs by %s: %v, want them spread", tt.budget, name, each)
			}
		}
	}
}

// TestAgainCounts: a pair that was answered is measured five times as often, up to 200.
func TestAgainCounts(t *testing.T) {
	for n, want := range map[int]int{1: 5, 5: 25, 20: 100, 40: 200, 100: 200, 200: 200, 1000: 1000} {
		if got := countAgain(n); got != want {
			t.Errorf("%d measurements: again %d, want %d", n, got, want)
		}
	}
}

// TestAgainStops: pairs that are measured oftener than before have stopping points, whose level is shared by all of them;
// not those without an answer, those with source ports, and those of a plan that does not limit the loss.
func TestAgainStops(t *testing.T) {
	mesh := judgetest.NewMesh(7, 12, 0, 0, judgetest.DefaultProbes())
	w := mesh.Worksheet
	w.Expect.Loss.Max, w.Budget = new(checkup.Percent(1)), 100_000
	mesh.Drop = func(p judgetest.Packet) float64 { return judgetest.When(p.To == 1) + 0.2*judgetest.When(p.To == 2) }
	record := mesh.Measure()
	next := Again(w, mesh.Roster, record, confirms)
	chance, ended := 0.0, 0
	for _, a := range next.Again {
		o := judge.Pairs(w, mesh.Roster, record, judging(confirms)).Find(a.Pair)
		if oftener := a.Count > w.Measurements(a.Pair); (len(a.Stops) > 0) != (oftener && len(a.Ports) == 0) {
			t.Errorf("%+v after %+v", a, o)
		}
		for _, s := range a.Stops {
			chance += stats.AtLeast(s.Lost, s.After, 0.01)
		}
	}
	if chance == 0 || chance > judge.FalseAlarms/8 {
		t.Errorf("a pair that just keeps the limit stops in %v of the runs", chance)
	}
	look := further(mesh, record, mesh.Drop)
	for _, o := range look.Record.Observations {
		if a := look.Worksheet.AgainOf(o.Pair); o.Sent < a.Count {
			ended++
			if !a.Stops.End(&o) {
				t.Errorf("ended at %d of %d: %+v", o.Sent, a.Count, a.Stops)
			}
		}
	}
	if ended == 0 {
		t.Error("no pair ended at a stopping point")
	}
	record.Looks = []checkup.Look{*look}
	for _, u := range Judge(w, mesh.Roster, record, confirms).Units {
		if u.Verdict == checkup.Unmeasured {
			t.Errorf("unmeasured: %+v", u)
		}
	}
	w.Expect.Loss.Max = nil
	for _, a := range Again(w, mesh.Roster, record, confirms).Again {
		if len(a.Stops) > 0 {
			t.Errorf("no limit on the loss: %+v", a)
		}
	}
}

// TestStopsRaiseNoAlarm: if all packets are lost with the probability of the limit, second looks with stopping points
// fail no oftener than the level says, whatever the first look was.
func TestStopsRaiseNoAlarm(t *testing.T) {
	for seed := range judgetest.Iterations(20, 200) {
		mesh := judgetest.NewMesh(seed, 6, 0, 0, judgetest.DefaultProbes())
		w := mesh.Worksheet
		w.Expect.Loss.Max, w.Budget, mesh.Repair = new(checkup.Percent(1)), 100_000, true
		mesh.Drop = func(p judgetest.Packet) float64 { return 0.2 } // every pair is doubtful
		record := mesh.Measure()
		record.Looks = []checkup.Look{*further(mesh, record, func(judgetest.Packet) float64 { return 0.005 })}
		if r := Judge(w, mesh.Roster, record, confirms); r.Counts.Fail > 0 {
			t.Errorf("seed %d: %s with %+v", seed, r.Verdict, r.Counts)
		}
	}
}

// TestAgainPorts: if one source port of a pair was never answered and another was, both are used
// again with others, 20 in all, each of them five times. Ports do not matter where nothing was
// answered, or every port was.
func TestAgainPorts(t *testing.T) {
	mesh := judgetest.NewMesh(7, 3, 0, 0, []checkup.TransportProbe{
		{Transport: checkup.UDP, Probe: checkup.Probe{Sizes: []int{64}, Count: 10}},
	})
	mesh.Drop = func(judgetest.Packet) float64 { return 1 }
	mesh.Tally = false
	record := mesh.Measure()
	mesh.Worksheet.Expect.Loss.Max = new(checkup.Percent(0))
	for i, f := range [][]checkup.Flow{
		{{Port: 4001, Sent: 5}, {Port: 4002, Sent: 5}},
		{{Port: 4001, Sent: 5, Received: 4}, {Port: 4002, Sent: 5, Received: 1}},
		{{Port: 4002, Sent: 5}, {Port: 4001, Sent: 5, Received: 5}},
	} {
		o := &record.Observations[i]
		o.Flows, o.Received, o.RTTs = f, f[0].Received+f[1].Received, slices.Repeat([]int64{1}, f[0].Received+f[1].Received)
	}
	further := Again(mesh.Worksheet, mesh.Roster, record, confirms)
	for i, want := range []struct {
		first []int // of its ports
		count int
	}{{nil, 10}, {nil, 50}, {[]int{4002, 4001}, 100}} {
		a := further.AgainOf(record.Observations[i].Pair)
		if a == nil || a.Count != want.count || (a.Ports == nil) != (want.first == nil) ||
			a.Ports != nil && (len(a.Ports) != 20 || !slices.Equal(a.Ports[:len(want.first)], want.first)) {
			t.Errorf("pair %d: again %+v, want %d measurements by ports that begin with %v", i, a, want.count, want.first)
		}
		for _, port := range a.Ports {
			if port < 1 || port > 65535 {
				t.Errorf("pair %d: port %d", i, port)
			}
		}
	}
	if _, packets := mostAgain(mesh.Worksheet); further.CountPackets() > packets {
		t.Errorf("%d packets, explained as at most %d", further.CountPackets(), packets)
	}
}

// further measures what the second look at a mesh asks for; nil if it asks for nothing.
func further(mesh *judgetest.Mesh, record *checkup.Record, drop func(judgetest.Packet) float64) *checkup.Look {
	next := Again(mesh.Worksheet, mesh.Roster, record, confirms)
	if next == nil {
		return nil
	}
	first, fault := mesh.Worksheet, mesh.Drop
	mesh.Worksheet, mesh.Drop = next, drop
	defer func() { mesh.Worksheet, mesh.Drop = first, fault }()
	return &checkup.Look{Worksheet: *next, After: checkup.Duration(12 * time.Second), Record: *mesh.Measure()}
}

// TestBlip: a fault that is over in the second look leaves nothing failed, and one that is not is
// confirmed. A second look that could not be made leaves the failures and no verdict; without one, the
// first look decides.
func TestBlip(t *testing.T) {
	dead := func(p judgetest.Packet) float64 { return judgetest.When(p.To == 1) }
	nothing := func(judgetest.Packet) float64 { return 0 }
	// 4 of the 6 ways between 3 nodes end or begin at node 1, with 14 pairs each.
	for _, tt := range []struct {
		name   string
		second func(judgetest.Packet) float64
		change func(*checkup.Record)
		want   checkup.RunVerdict
		units  map[checkup.Confirmation]int
		said   []string
	}{
		{"gone", nothing, nil, checkup.RunPass, map[checkup.Confirmation]int{checkup.Gone: 56}, []string{"56 failures gone after 12s"}},
		{"confirmed", dead, nil, checkup.RunFail, map[checkup.Confirmation]int{checkup.Confirmed: 56}, nil},
		{"not made", dead, func(r *checkup.Record) { r.Looks[0].Record = checkup.Record{} }, checkup.RunInconclusive,
			map[checkup.Confirmation]int{checkup.NotMadeAgain: 56}, []string{"nothing failed in both looks"}},
		{"no look", dead, func(r *checkup.Record) { r.Looks = nil }, checkup.RunFail, map[checkup.Confirmation]int{checkup.NotLookedAt: 56}, nil},
		{"an agent of it is missing", dead, func(r *checkup.Record) {
			second := &r.Looks[0].Record
			second.Observations = slices.DeleteFunc(second.Observations, func(o checkup.Observation) bool { return o.Source == 0 })
		}, checkup.RunFail, map[checkup.Confirmation]int{checkup.Confirmed: 42, checkup.NotMadeAgain: 14}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mesh := judgetest.NewMesh(7, 3, 0, 0, judgetest.FourTransports())
			mesh.Worksheet.Expect.Loss.Max = new(checkup.Percent(1))
			mesh.Drop = dead
			record := mesh.Measure()
			look := further(mesh, record, tt.second)
			record.Looks = []checkup.Look{*look}
			if tt.change != nil {
				tt.change(record)
			}
			r := Judge(mesh.Worksheet, mesh.Roster, record, confirms)
			units := map[checkup.Confirmation]int{}
			for _, u := range r.Units {
				units[u.Confirmation]++
			}
			if diff := cmp.Diff(tt.units, units); diff != "" || r.Verdict != tt.want {
				t.Errorf("%s %+v, want %s; units (-want +got):\n%s", r.Verdict, r.Counts, tt.want, diff)
			}
			if diff := cmp.Diff(tt.said, r.Said); diff != "" {
				t.Errorf("summary (-want +got):\n%s", diff)
			}
			for _, f := range r.Findings {
				if (f.Confirmation == checkup.Gone) != (r.Counts.Fail == 0) {
					t.Errorf("finding %+v of %d failed pairs", f, r.Counts.Fail)
				}
			}
		})
	}
}

// TestHeldUp: a pair that could not be measured because its agent was held up is measured in the second look, which
// decides. But a failure that only the second look could measure is not confirmed.
func TestHeldUp(t *testing.T) {
	nothing := func(judgetest.Packet) float64 { return 0 }
	held := &checkup.Cause{Stage: checkup.StageSelf, Message: "the agent or its target was held up"}
	for _, tt := range []struct {
		name   string
		first  checkup.Observation
		asked  bool
		second func(judgetest.Packet) float64
		again  bool // held up in the second look, too
		want   checkup.RunVerdict
		counts checkup.Counts
		units  []checkup.Confirmation
	}{
		{"passes", checkup.Observation{Spoiled: 25, Unmeasured: held}, true, nothing, false,
			checkup.RunPass, checkup.Counts{Expected: 84, Pass: 84}, nil},
		{"too few", checkup.Observation{Sent: 1, Received: 1, RTTs: []int64{90}, Spoiled: 24}, true, nothing, false,
			checkup.RunPass, checkup.Counts{Expected: 84, Pass: 84}, nil},
		{"fails", checkup.Observation{Spoiled: 25, Unmeasured: held}, true,
			func(judgetest.Packet) float64 { return 1 }, false,
			checkup.RunInconclusive, checkup.Counts{Expected: 84, Pass: 83, Fail: 1}, []checkup.Confirmation{checkup.NotMadeAgain}},
		{"again held up", checkup.Observation{Spoiled: 25, Unmeasured: held}, true, nothing, true,
			checkup.RunInconclusive, checkup.Counts{Expected: 84, Pass: 83, Unmeasured: 1}, []checkup.Confirmation{checkup.NotLookedAt}},
		{"no time", checkup.Observation{Unmeasured: held}, false, nil, false,
			checkup.RunInconclusive, checkup.Counts{Expected: 84, Pass: 83, Unmeasured: 1}, []checkup.Confirmation{checkup.NotLookedAt}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mesh := judgetest.NewMesh(7, 3, 0, 0, judgetest.FourTransports())
			record := mesh.Measure()
			pair := record.Observations[0].Pair
			tt.first.Pair = pair
			record.Observations[0] = tt.first
			look := further(mesh, record, tt.second)
			if (look != nil) != tt.asked {
				t.Fatalf("second look: %+v", look)
			}
			if look != nil {
				if a := look.Worksheet.Again; len(a) != 1 || a[0].Pair != pair || a[0].Count != mesh.Worksheet.Measurements(pair) {
					t.Fatalf("measures again: %+v", a)
				}
				if tt.again {
					look.Record.Observations[0] = tt.first
				}
				record.Looks = []checkup.Look{*look}
			}
			r := Judge(mesh.Worksheet, mesh.Roster, record, confirms)
			var units []checkup.Confirmation
			for _, u := range r.Units {
				units = append(units, u.Confirmation)
			}
			if diff := cmp.Diff(tt.units, units); diff != "" || r.Verdict != tt.want || r.Counts != tt.counts {
				t.Errorf("%s %+v, want %s %+v; units (-want +got):\n%s", r.Verdict, r.Counts, tt.want, tt.counts, diff)
			}
		})
	}
}

// TestLooksOfRandomMeshes: with a second look of another fault, every pair is counted once, units are
// those that did not pass and those that are gone, and a pair that the second look did not measure has
// the verdict of the first. A look that nobody asked for changes nothing.
func TestLooksOfRandomMeshes(t *testing.T) {
	for seed := range judgetest.Iterations(200, 5000) {
		mesh, other := judgetest.RandomMesh(seed), judgetest.RandomMesh(seed+1_000_000)
		record := mesh.Measure()
		first := Judge(mesh.Worksheet, mesh.Roster, record, confirms)
		look := further(mesh, record, other.Drop)
		if look == nil {
			record.Looks = []checkup.Look{{Record: *record}}
			if diff := cmp.Diff(first, Judge(mesh.Worksheet, mesh.Roster, record, confirms)); diff != "" {
				t.Fatalf("seed %d: a look at nothing changes the report:\n%s", seed, diff)
			}
			continue
		}
		record.Looks = []checkup.Look{*look}
		r := Judge(mesh.Worksheet, mesh.Roster, record, confirms)
		c := r.Counts
		if c.Expected != first.Counts.Expected || c.Pass+c.Fail+c.Undecided+c.Unmeasured != c.Expected ||
			c.Unmeasured > first.Counts.Unmeasured {
			t.Fatalf("seed %d: %+v after %+v", seed, c, first.Counts)
		}
		if r.Sent < first.Sent {
			t.Fatalf("seed %d: %d measurements in both looks, %d in the first", seed, r.Sent, first.Sent)
		}
		for _, u := range r.Units {
			ok := map[checkup.Confirmation][]checkup.Verdict{
				checkup.NotLookedAt:  {checkup.Unmeasured, checkup.Fail},
				checkup.Confirmed:    {checkup.Fail},
				checkup.Gone:         {checkup.Pass},
				checkup.NotConfirmed: {checkup.Undecided},
				checkup.NotMadeAgain: {checkup.Fail, checkup.Undecided},
			}[u.Confirmation]
			if !slices.Contains(ok, u.Verdict) || u.Cause == nil || u.Cause.Message == "no reason was given" {
				t.Fatalf("seed %d: unit %+v", seed, u)
			}
		}
	}
}

// TestSeparatingPairs: worker-1 has one target, worker-2, and worker-2 has no other source. In the first look, one
// failed pair of nodes may be the pair, the one node or the other. The second look measures pairs beyond the sample,
// and the report names what is broken. What was ruled out is said, and pairs beyond the sample are no units.
func TestSeparatingPairs(t *testing.T) {
	for _, tt := range []struct {
		name string
		drop func(judgetest.Packet) float64
		want string
		out  string
	}{
		{"pair", func(p judgetest.Packet) float64 { return judgetest.When(p.From == 0 && p.To == 1) },
			"pair worker-1 -> worker-2", "nodeIngress worker-2"},
		{"into a node", func(p judgetest.Packet) float64 { return judgetest.When(p.To == 1) },
			"nodeIngress worker-2", "pair worker-1 -> worker-2"},
		{"out of a node", func(p judgetest.Packet) float64 { return judgetest.When(p.From == 0) },
			"nodeEgress worker-1", "pair worker-1 -> worker-2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mesh := judgetest.NewMesh(7, 8, 0, 0, judgetest.DefaultProbes())
			w := mesh.Worksheet
			w.Expect.Loss.Max, w.Budget = new(checkup.Percent(1)), 1000
			w.Assignments = [][]int{{1}, {}, {3, 4}, {4, 5}, {5, 6}, {6, 7}, {7, 2}, {2, 3}}
			mesh.Drop = tt.drop
			record := mesh.Measure()
			first := Judge(w, mesh.Roster, record, confirms)
			if len(first.Findings) != 1 || len(first.Findings[0].Alternatives) == 0 {
				t.Fatalf("want one finding with alternatives; got%s", judgetest.Show(first.Findings))
			}
			look := further(mesh, record, tt.drop)
			record.Looks = []checkup.Look{*look}
			r := Judge(w, mesh.Roster, record, confirms)
			if len(r.Findings) != 1 || judgetest.Kind(r.Findings[0]) != tt.want ||
				r.Findings[0].Confirmation != checkup.Confirmed {
				t.Fatalf("want %s, confirmed; got%s", tt.want, judgetest.Show(r.Findings))
			}
			line := r.Findings[0].For[len(r.Findings[0].For)-1]
			if !strings.HasPrefix(line, "ruled out by the second look: ") || !strings.Contains(line, tt.out) {
				t.Errorf("want %s ruled out; got%s", tt.out, judgetest.Show(r.Findings))
			}
			if diff := cmp.Diff(first.Counts, r.Counts); diff != "" {
				t.Errorf("units (-first look +second):\n%s", diff)
			}
			if diff := cmp.Diff(first.Coverage, r.Coverage); diff != "" {
				t.Errorf("coverage (-first look +second):\n%s", diff)
			}
		})
	}
}

// TestSeparatingGroup: in a ring of four nodes whose every other node is in one rack, all pairs of the sample go into
// the rack or out of it. If nothing gets through, that may be the rack or the whole network. The second look measures
// pairs within the rack, or beside it.
func TestSeparatingGroup(t *testing.T) {
	rack := func(p judgetest.Packet) float64 { return judgetest.When(p.From%2 != p.To%2) }
	all := func(judgetest.Packet) float64 { return 1 }
	for _, tt := range []struct {
		name  string
		sizes []int // with one, the second look has room for one pair that is not of the sample
		drop  func(judgetest.Packet) float64
		want  string
		out   string
	}{
		{"rack", []int{64, 1400}, rack, "nodes rack r1", "network"},
		{"rack, by one pair", []int{64}, rack, "nodes rack r1", "network"},
		{"network", []int{64, 1400}, all, "network", "nodes rack r1"},
		{"network, by one pair", []int{64}, all, "network", "nodes rack r1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mesh := judgetest.NewMesh(7, 4, 0, 0, judgetest.DefaultProbes()[1:2])
			w := mesh.Worksheet
			w.Probes[0].Sizes = tt.sizes
			w.Expect.Loss.Max, w.Budget = new(checkup.Percent(1)), 1000
			w.Assignments = [][]int{{1}, {2}, {3}, {0}}
			for i := 0; i < 4; i += 2 {
				rack := map[string]string{"example.com/rack": "r1"}
				w.Sources[i].Topology, w.Targets[i].Topology = rack, rack
			}
			mesh.Drop = tt.drop
			record := mesh.Measure()
			first := Judge(w, mesh.Roster, record, confirms).Findings
			if len(first) != 1 || judgetest.Kind(first[0]) != "network" || !slices.Contains(first[0].Alternatives, "nodes rack r1") {
				t.Fatalf("first look: want network or nodes rack r1; got%s", judgetest.Show(first))
			}
			record.Looks = []checkup.Look{*further(mesh, record, tt.drop)}
			got := Judge(w, mesh.Roster, record, confirms).Findings
			if len(got) != 1 || judgetest.Kind(got[0]) != tt.want || len(got[0].Alternatives) > 0 ||
				!slices.Contains(got[0].For, "ruled out by the second look: "+tt.out) {
				t.Errorf("want %s, with %s ruled out; got%s", tt.want, tt.out, judgetest.Show(got))
			}
		})
	}
}

// TestSeparatingIsBounded: whatever the budget, pairs that separate causes never exceed it, in pairs and in packets.
func TestSeparatingIsBounded(t *testing.T) {
	beyond := 0
	for seed := range judgetest.Iterations(60, 2000) {
		rng := rand.New(rand.NewPCG(seed, 5))
		mesh := judgetest.NewMesh(seed, 4+rng.IntN(30), 1+rng.IntN(3), rng.IntN(4), judgetest.FourTransports())
		w := mesh.Worksheet
		w.Expect.Loss.Max, w.Budget = new(checkup.Percent(1)), rng.IntN(20_000)
		bad, share := rng.IntN(len(w.Sources)), []float64{0.05, 0.2, 1}[rng.IntN(3)]
		mesh.Drop = func(p judgetest.Packet) float64 { return 0.002 + share*judgetest.When(p.To == bad) }
		record := mesh.Measure()
		next := Again(w, mesh.Roster, record, confirms)
		if next == nil {
			continue
		}
		pairs, packets := mostAgain(w)
		if len(next.Again) > pairs || next.CountPackets() > packets || next.CountPairs() != len(next.Again) {
			t.Fatalf("seed %d: %d pairs of at most %d, %d packets of at most %d",
				seed, len(next.Again), pairs, next.CountPackets(), packets)
		}
		j := judge.Pairs(w, mesh.Roster, record, judging(confirms))
		for _, a := range next.Again {
			if j.Find(a.Pair) != nil {
				continue
			}
			beyond++
			if a.Source == a.Target || a.Target >= len(w.Targets) || len(w.Assignments[a.Source]) == 0 {
				t.Fatalf("seed %d: %+v is not of the roster", seed, a)
			}
		}
		if diff := cmp.Diff(next, Again(w, mesh.Roster, record, confirms)); diff != "" {
			t.Fatalf("seed %d: not deterministic:\n%s", seed, diff)
		}
	}
	if beyond == 0 {
		t.Error("no second look had a pair beyond the sample")
	}
}
