// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/judge/judgetest"
)

// lossy is a mesh in which packets are lost everywhere, and more of them into one node.
func lossy(seed uint64, everywhere, into float64) *judgetest.Mesh {
	n := judgetest.NewMesh(seed, 20, 6, 3, judgetest.DefaultProbes())
	n.Worksheet.Expect.Loss.Max = ptr(checkup.Percent(1))
	n.Repair = true
	n.Drop = func(p judgetest.Packet) float64 {
		if p.To == 7 {
			return into
		}
		return everywhere
	}
	return n
}

// oftener is a worksheet of the same pairs, with five times the measurements: those of a further look.
func oftener(w *checkup.Worksheet) *checkup.Worksheet {
	more := *w
	more.Probes = slices.Clone(w.Probes)
	for i := range more.Probes {
		more.Probes[i].Count *= 5
	}
	return &more
}

// TestComponents: a node whose pairs fail only together is named alone, and loss that is spread evenly
// is background.
func TestComponents(t *testing.T) {
	for _, tt := range []struct {
		name             string
		everywhere, into float64
		want             []string
		background       bool
	}{
		{"clean", 0, 0, nil, false},
		{"background", 0.001, 0.001, nil, true},
		{"background just below the limit", 0.005, 0.005, nil, true},
		{"5% into a node", 0, 0.05, []string{"nodeIngress worker-8"}, false},
		{"5% into a node and background", 0.001, 0.05, []string{"nodeIngress worker-8"}, true},
		{"a dead node and background", 0.001, 1, []string{"nodeIngress worker-8"}, true},
		{"3% everywhere", 0.03, 0.03, []string{"network"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for seed := range judgetest.Iterations(5, 50) {
				n := lossy(seed, tt.everywhere, tt.into)
				j := judge.Pairs(n.Worksheet, n.Roster, n.Measure(), judge.Rules{Pools: true, LooksAgain: true})
				x := Explain(j)
				var got []string
				for _, f := range x.Findings() {
					got = append(got, judgetest.Kind(f))
				}
				if !slices.Equal(got, tt.want) || (len(x.Background) > 0) != tt.background {
					t.Errorf("seed %d: want %v; got%s, background %+v", seed, tt.want, judgetest.Show(x.Findings()), x.Background)
				}
				if r := j.Report(checkup.Gate{}); (r.Counts.Fail > 0) != (len(tt.want) > 0) {
					t.Errorf("seed %d: %+v, with findings %v", seed, r.Counts, got)
				}
			}
		})
	}
}

// TestSlowTogether: a tenth of the packets to and from a node are late. Its pairs with a late answer fail together, also
// those of which few measurements leave the percentile undecided.
func TestSlowTogether(t *testing.T) {
	for seed := range judgetest.Iterations(5, 50) {
		n := lossy(seed, 0, 0)
		n.Worksheet.Expect.Latency.P99 = ptr(checkup.Duration(10 * time.Millisecond))
		random := rand.New(rand.NewPCG(seed, 6))
		n.Delay = func(p judgetest.Packet) time.Duration {
			late := (p.From == 7 || p.To == 7) && random.IntN(5) == 0
			return time.Duration(judgetest.When(late)) * 30 * time.Millisecond
		}
		j := judge.Pairs(n.Worksheet, n.Roster, n.Measure(), judge.Rules{Pools: true, LooksAgain: true})
		x := Explain(j)
		if len(x.Found) != 1 || x.Found[0].Cause != checkup.CauseNode {
			t.Fatalf("seed %d: want one node; got%s", seed, judgetest.Show(x.Findings()))
		}
		for i := range j.Outcomes {
			if o := &j.Outcomes[i]; o.Verdict == checkup.Undecided {
				t.Errorf("seed %d: %+v is undecided: %s", seed, o.Pair, o.Cause.Message)
			}
		}
	}
}

// TestSlowInLoss: what is lost everywhere explains slow connections, but not that datagrams of a node are slow.
func TestSlowInLoss(t *testing.T) {
	for seed := range judgetest.Iterations(5, 50) {
		n := lossy(seed, 0.03, 0.03)
		n.Worksheet.Expect.Latency.P50 = ptr(checkup.Duration(10 * time.Millisecond))
		n.Delay = func(p judgetest.Packet) time.Duration {
			udp := p.Transport == checkup.UDP && (p.From == 7 || p.To == 7)
			return time.Duration(judgetest.When(udp)) * 15 * time.Millisecond
		}
		var got []string
		for _, f := range Explain(judge.Pairs(n.Worksheet, n.Roster, n.Measure(), judge.Rules{Pools: true})).Findings() {
			got = append(got, judgetest.Kind(f))
		}
		if want := []string{"network", "node worker-8 (udp only)"}; !slices.Equal(got, want) {
			t.Errorf("seed %d: got %q, want %q", seed, got, want)
		}
	}
}

// TestLookAgain: a further look decides what becomes of a finding and of its pairs, if it measures enough of them.
func TestLookAgain(t *testing.T) {
	for _, tt := range []struct {
		name          string
		first, second float64 // into the node
		pairs         int     // of the finding that are measured again
		want          checkup.Confirmation
		fails         bool
	}{
		{"dead, dead", 1, 1, 100, checkup.Confirmed, true},
		{"dead, gone", 1, 0, 100, checkup.Gone, false},
		{"dead, not measured again", 1, 1, 0, checkup.NotMadeAgain, true},
		{"dead, few gone", 1, 0, 3, checkup.NotMadeAgain, true},
		{"dead, enough gone", 1, 0, enough, checkup.Gone, false},
		{"some loss, again", 0.08, 0.08, 100, checkup.Confirmed, true},
		{"some loss, gone", 0.08, 0, 100, checkup.Gone, false},
		{"some loss, not measured again", 0.08, 0, 0, checkup.NotMadeAgain, true},
		{"some loss, few gone", 0.08, 0, 3, checkup.NotMadeAgain, true},
		{"some loss, enough gone", 0.08, 0, enough, checkup.Gone, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for seed := range judgetest.Iterations(3, 30) {
				n := lossy(seed, 0, tt.first)
				rules := judge.Rules{Pools: true, LooksAgain: true}
				j := judge.Pairs(n.Worksheet, n.Roster, n.Measure(), rules)
				x := Explain(j)
				next := lossy(seed+100, 0, tt.second)
				next.Worksheet = n.Worksheet
				record, left := next.Measure(), tt.pairs
				record.Observations = slices.DeleteFunc(record.Observations, func(o checkup.Observation) bool {
					left -= int(judgetest.When(j.Find(o.Pair).Verdict == checkup.Fail))
					return j.Find(o.Pair).Verdict != checkup.Fail || left < 0
				})
				x.LookAgain(j, judge.Pairs(n.Worksheet, n.Roster, record, rules), checkup.Duration(12e9))
				if len(x.Found) != 1 || x.Found[0].Confirmation != tt.want {
					t.Fatalf("seed %d: want %q; got %d findings, %+v", seed, tt.want, len(x.Found), x.Found)
				}
				listed := len(x.Findings()) + len(x.Gone(0))
				if r := j.Report(checkup.Gate{}); (r.Counts.Fail > 0) != tt.fails || listed != 1 {
					t.Errorf("seed %d: %+v, %d listed", seed, r.Counts, listed)
				}
			}
		})
	}
}

// TestDeadPairOfAComponent: a pair that is dead in both looks fails, whatever becomes of the loss into its target.
func TestDeadPairOfAComponent(t *testing.T) {
	for _, tt := range []struct {
		name   string
		second float64 // into the node
	}{{"the loss is gone", 0}, {"the loss is undecided", 0.015}, {"the loss remains", 0.08}} {
		t.Run(tt.name, func(t *testing.T) {
			for seed := range judgetest.Iterations(5, 50) {
				var from int
				mesh := func(seed uint64, into float64) *judgetest.Mesh {
					n := lossy(seed, 0, into)
					drop := n.Drop
					n.Drop = func(p judgetest.Packet) float64 {
						if p.From == from && p.To == 7 {
							return 1
						}
						return drop(p)
					}
					return n
				}
				n := mesh(seed, 0.08)
				from = slices.IndexFunc(n.Worksheet.Assignments, func(targets []int) bool { return slices.Contains(targets, 7) })
				rules := judge.Rules{Pools: true, LooksAgain: true}
				j := judge.Pairs(n.Worksheet, n.Roster, n.Measure(), rules)
				x := Explain(j)
				next := mesh(seed+100, tt.second)
				next.Worksheet = n.Worksheet
				x.LookAgain(j, judge.Pairs(n.Worksheet, n.Roster, next.Measure(), rules), checkup.Duration(12e9))
				for i := range j.Outcomes {
					if o := &j.Outcomes[i]; o.Pair.Source == from && o.Pair.Target == 7 && o.Verdict != checkup.Fail {
						t.Errorf("seed %d: %+v is %s", seed, o.Pair, o.Verdict)
					}
				}
				explained := map[int]bool{}
				for _, f := range x.Found {
					for _, i := range f.Pairs {
						explained[i] = true
					}
				}
				for i := range j.Outcomes {
					if j.Outcomes[i].Verdict == checkup.Fail && !explained[i] {
						t.Errorf("seed %d: nothing explains %+v; got%s", seed, j.Outcomes[i].Pair, judgetest.Show(x.Findings()))
					}
				}
			}
		})
	}
}

// TestTwoNodes: into two nodes nothing gets through, and one of them has healed when all failed pairs are measured again.
// The pair from the broken node to the healed one still fails, by its answers. It does not confirm the healed node.
func TestTwoNodes(t *testing.T) {
	for seed := range judgetest.Iterations(5, 50) {
		mesh := func(seed uint64, dead ...int) *judgetest.Mesh {
			n := lossy(seed, 0, 0)
			n.Drop = func(p judgetest.Packet) float64 { return judgetest.When(slices.Contains(dead, p.To)) }
			return n
		}
		n := mesh(seed)
		broken := n.Worksheet.Assignments[7][0]
		n = mesh(seed, broken, 7)
		rules := judge.Rules{Pools: true, LooksAgain: true}
		j := judge.Pairs(n.Worksheet, n.Roster, n.Measure(), rules)
		x := Explain(j)
		next := mesh(seed+100, 7)
		next.Worksheet = n.Worksheet
		x.LookAgain(j, judge.Pairs(n.Worksheet, n.Roster, next.Measure(), rules), checkup.Duration(12e9))
		if found := x.Findings(); len(found) != 1 || judgetest.Kind(found[0]) != "nodeIngress worker-8" ||
			found[0].Confirmation != checkup.Confirmed || len(x.Gone(0)) != 1 {
			t.Errorf("seed %d: want into worker-8 alone; got%s\ngone: %v", seed, judgetest.Show(found), x.Gone(0))
		}
	}
}

// TestFullSocket: a node's loss is gone, and in the further look its responder has no room for some requests. What it
// dropped itself confirms nothing.
func TestFullSocket(t *testing.T) {
	for seed := range judgetest.Iterations(5, 50) {
		mesh := func(seed uint64, into float64) *judgetest.Mesh {
			n := judgetest.NewMesh(seed, 20, 0, 0, judgetest.DefaultProbes()[1:2])
			n.Worksheet.Assignments[7] = nil // only requests come into the node
			n.Worksheet.Expect.Loss.Max = ptr(checkup.Percent(1))
			n.Drop = func(p judgetest.Packet) float64 { return into * judgetest.When(p.To == 7 && !p.Answer) }
			return n
		}
		n, next := mesh(seed, 0.08), mesh(seed+100, 0.02)
		rules := judge.Rules{Pools: true, LooksAgain: true}
		j := judge.Pairs(n.Worksheet, n.Roster, n.Measure(), rules)
		x := Explain(j)
		next.Worksheet = oftener(n.Worksheet)
		record := next.Measure()
		for i := range record.Receptions {
			record.Receptions[i].Dropped = 1000 * int(judgetest.When(record.Receptions[i].Target == 7))
		}
		x.LookAgain(j, judge.Pairs(next.Worksheet, n.Roster, record, rules), checkup.Duration(12e9))
		if len(x.Found) != 1 || x.Found[0].Confirmation != checkup.Gone {
			t.Errorf("seed %d: want that the loss is gone; got%s", seed, judgetest.Show(x.Findings()))
		}
	}
}

// TestSeenOnce: a pair that passed the first look and fails the further one, alone, is not confirmed.
func TestSeenOnce(t *testing.T) {
	n := lossy(1, 0, 0.08)
	rules := judge.Rules{Pools: true, LooksAgain: true}
	j := judge.Pairs(n.Worksheet, n.Roster, n.Measure(), rules)
	x := Explain(j)
	next := lossy(2, 0, 0)
	next.Worksheet = n.Worksheet
	from := 0
	to := n.Worksheet.Assignments[from][0]
	next.Drop = func(p judgetest.Packet) float64 { return judgetest.When(p.From == from && p.To == to) }
	x.LookAgain(j, judge.Pairs(n.Worksheet, n.Roster, next.Measure(), rules), checkup.Duration(12e9))
	for i := range j.Outcomes {
		if o := &j.Outcomes[i]; o.Verdict == checkup.Fail && o.Confirmation() != checkup.NotMadeAgain {
			t.Errorf("%+v: %q, after %s", o.Pair, o.Confirmation(), o.Look.First)
		}
	}
	if found := x.Findings(); len(found) != 1 || found[0].Cause != checkup.CausePair ||
		found[0].Confirmation != checkup.NotMadeAgain {
		t.Errorf("want one pair, not confirmed; got%s", judgetest.Show(found))
	}
}

// TestDelayAfterLoss: a node is slow in both looks, and loses packets in the first one. When the loss is gone, the delay
// has one cause: pairs of http, of which three slow measurements show nothing, are no exceptions.
func TestDelayAfterLoss(t *testing.T) {
	for seed := range judgetest.Iterations(10, 100) {
		mesh := func(seed uint64, lost float64) *judgetest.Mesh {
			n := judgetest.NewMesh(seed, 5, 0, 0, judgetest.DefaultProbes())
			n.Worksheet.Expect.Loss.Max = ptr(checkup.Percent(1))
			n.Worksheet.Expect.Latency.P50 = ptr(checkup.Duration(10 * time.Millisecond))
			n.Repair = true
			at := func(p judgetest.Packet) float64 { return judgetest.When(p.From == 2 || p.To == 2) }
			n.Drop = func(p judgetest.Packet) float64 { return lost * at(p) }
			n.Delay = func(p judgetest.Packet) time.Duration { return time.Duration(at(p)) * 15 * time.Millisecond }
			return n
		}
		n := mesh(seed, 0.25)
		rules := judge.Rules{Pools: true, LooksAgain: true}
		j := judge.Pairs(n.Worksheet, n.Roster, n.Measure(), rules)
		x := Explain(j)
		next := mesh(seed+100, 0)
		next.Worksheet = oftener(n.Worksheet)
		record := next.Measure()
		record.Observations = slices.DeleteFunc(record.Observations, func(o checkup.Observation) bool {
			return j.Find(o.Pair).Verdict == checkup.Pass
		})
		x.LookAgain(j, judge.Pairs(next.Worksheet, n.Roster, record, rules), checkup.Duration(12e9))
		if found := x.Findings(); len(found) != 1 || judgetest.Kind(found[0]) != "node worker-3" || len(x.Gone(0)) != 1 {
			t.Errorf("seed %d: want node worker-3 alone; got%s\ngone: %v", seed, judgetest.Show(found), x.Gone(0))
		}
	}
}

// TestFailuresOfRandomMeshes: after two looks of different faults, losses and delays, of which the second one measures only
// some of the pairs, each pair that fails has a cause that is not gone. A pair without any answer is never undecided.
func TestFailuresOfRandomMeshes(t *testing.T) {
	for seed := range judgetest.Iterations(300, 10_000) {
		random := rand.New(rand.NewPCG(seed, 4))
		mesh := func(seed uint64) *judgetest.Mesh {
			n := judgetest.RandomMesh(seed)
			n.Worksheet.Expect.Latency.P50 = ptr(checkup.Duration(10 * time.Millisecond))
			slow, by := random.IntN(9), time.Duration(random.IntN(3))*10*time.Millisecond
			n.Delay = func(p judgetest.Packet) time.Duration {
				return time.Duration(judgetest.When(p.From == slow || p.To == slow)) * by
			}
			return n
		}
		n, next := mesh(seed), mesh(seed+1_000_000)
		rules := judge.Rules{Pools: true, LooksAgain: true}
		j := judge.Pairs(n.Worksheet, n.Roster, n.Measure(), rules)
		x := Explain(j)
		next.Worksheet = oftener(n.Worksheet)
		record, again := next.Measure(), []float64{1, 0.5, 0.1}[seed%3]
		record.Observations = slices.DeleteFunc(record.Observations, func(checkup.Observation) bool {
			return random.Float64() >= again
		})
		x.LookAgain(j, judge.Pairs(next.Worksheet, n.Roster, record, rules), checkup.Duration(12e9))
		explained := map[int]bool{}
		for _, f := range x.Found {
			for _, i := range f.Pairs {
				explained[i] = explained[i] || !f.gone()
			}
		}
		for i := range j.Outcomes {
			if o := &j.Outcomes[i]; o.Verdict == checkup.Fail && !explained[i] {
				t.Errorf("seed %d: %+v fails (%s) without a cause; got%s\ngone: %v",
					seed, o.Pair, o.Cause.Message, judgetest.Show(x.Findings()), x.Gone(0))
				break
			}
			if o := &j.Outcomes[i]; o.Verdict == checkup.Undecided && o.Sent > 0 && o.Received == 0 {
				t.Errorf("seed %d: %+v has no answer, and is undecided (%s)", seed, o.Pair, o.Cause.Message)
			}
		}
	}
}

// TestUndecidedComponent: loss that one look cannot distinguish from the limit is decided by the next.
func TestUndecidedComponent(t *testing.T) {
	decided := 0
	for seed := range uint64(10) {
		n := lossy(seed, 0, 0.02)
		rules := judge.Rules{Pools: true, LooksAgain: true}
		j := judge.Pairs(n.Worksheet, n.Roster, n.Measure(), rules)
		x := Explain(j)
		if len(x.Found) > 0 {
			continue
		}
		more := lossy(seed+100, 0, 0.02)
		more.Worksheet = oftener(n.Worksheet)
		x.LookAgain(j, judge.Pairs(more.Worksheet, n.Roster, more.Measure(), rules), checkup.Duration(12e9))
		for _, f := range x.Findings() {
			if f.Subject == "worker-8" && f.Confirmation == checkup.Confirmed && j.Report(checkup.Gate{}).Counts.Fail > 0 {
				decided++
			}
		}
	}
	if decided < 5 {
		t.Errorf("decided %d of 10 runs", decided)
	}
}

// TestListed: of many single pairs there is one finding, and never more than ten findings.
func TestListed(t *testing.T) {
	for _, tt := range []struct {
		name string
		hit  func(judgetest.Packet) bool
		want int
		last string
	}{
		{"three pairs", func(p judgetest.Packet) bool { return p.From < 3 && p.To == p.From+10 }, 3, "pair worker-3 -> worker-13"},
		{"five pairs", func(p judgetest.Packet) bool { return p.From < 5 && p.To == p.From+10 }, 1, "pair 5 pairs of nodes"},
		{"twelve nodes", func(p judgetest.Packet) bool { return p.To%3 == 0 }, 10, "nodeIngress 3 more findings"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := judgetest.NewMesh(1, 36, 0, 0, judgetest.DefaultProbes())
			n.Drop = func(p judgetest.Packet) float64 { return judgetest.When(tt.hit(p)) }
			found := judged(n).Findings
			if len(found) != tt.want || judgetest.Kind(found[len(found)-1]) != tt.last {
				t.Errorf("want %d findings, the last %s; got%s", tt.want, tt.last, judgetest.Show(found))
			}
		})
	}
}

// TestRest: the finding that counts others names each of them, and the nodes that they concern.
func TestRest(t *testing.T) {
	n := judgetest.NewMesh(1, 36, 0, 0, judgetest.DefaultProbes())
	n.Drop = func(p judgetest.Packet) float64 { return judgetest.When(p.To%3 == 0) }
	found := judged(n).Findings
	named, nodes := map[string]bool{}, map[string]bool{}
	for i, f := range found {
		if last := i == len(found)-1; last != (len(f.Rest) > 0) {
			t.Errorf("finding %d of %d names %q", i+1, len(found), f.Rest)
		}
		for _, name := range append(f.Rest, f.String()) {
			named[name] = true
		}
		for _, node := range f.Nodes {
			nodes[node] = true
		}
	}
	for i := 0; i < 36; i += 3 {
		node := fmt.Sprintf("worker-%d", i+1)
		if !named["nodeIngress "+node] || !nodes[node] {
			t.Errorf("no finding names %s, or none concerns it:%s", node, judgetest.Show(found))
		}
	}
}

// TestListedConfirmed: findings that are summed up are confirmed if one of them is.
func TestListedConfirmed(t *testing.T) {
	for _, tt := range []struct {
		name string
		hit  func(judgetest.Packet) bool
		want string
	}{
		{"five pairs", func(p judgetest.Packet) bool { return p.From < 5 && p.To == p.From+10 }, "pair 5 pairs of nodes"},
		{"twelve nodes", func(p judgetest.Packet) bool { return p.To%3 == 0 }, "nodeIngress 3 more findings"},
	} {
		for _, again := range []struct {
			made bool
			want checkup.Confirmation
		}{{true, checkup.Confirmed}, {false, checkup.NotMadeAgain}} {
			n := judgetest.NewMesh(1, 36, 0, 0, judgetest.DefaultProbes())
			n.Drop = func(p judgetest.Packet) float64 { return judgetest.When(tt.hit(p)) }
			rules := judge.Rules{Pools: true, LooksAgain: true}
			j := judge.Pairs(n.Worksheet, n.Roster, n.Measure(), rules)
			x := Explain(j)
			record := &checkup.Record{}
			if again.made {
				record = n.Measure()
			}
			x.LookAgain(j, judge.Pairs(n.Worksheet, n.Roster, record, rules), checkup.Duration(12e9))
			found := x.Findings()
			if last := found[len(found)-1]; judgetest.Kind(last) != tt.want || last.Confirmation != again.want {
				t.Errorf("%s: got %s, %q; want %s, %q", tt.name, judgetest.Kind(last), last.Confirmation, tt.want, again.want)
			}
		}
	}
}

// TestRack: nodes behind one dead uplink are one finding, by their zone if they are a zone.
func TestRack(t *testing.T) {
	for _, tt := range []struct {
		zones int
		rack  func(int) bool
		want  string
	}{
		{0, func(i int) bool { return i < 4 }, "nodes worker-1, worker-2, worker-3, worker-4"},
		{3, func(i int) bool { return i < 4 }, "nodes worker-1, worker-2, worker-3, worker-4"},
		{3, func(i int) bool { return i%3 == 0 }, "nodes zone zone-a"},
	} {
		t.Run(fmt.Sprint(tt.zones, tt.want), func(t *testing.T) {
			for seed := range judgetest.Iterations(5, 50) {
				n := judgetest.NewMesh(seed, 15, 8, tt.zones, judgetest.DefaultProbes())
				n.Drop = func(p judgetest.Packet) float64 { return judgetest.When(tt.rack(p.From) != tt.rack(p.To)) }
				found := judged(n).Findings
				if len(found) != 1 || judgetest.Kind(found[0]) != tt.want {
					t.Errorf("seed %d: want %s; got%s", seed, tt.want, judgetest.Show(found))
				}
			}
		})
	}
}

// TestNoRack: 100 of 200 nodes are cut off one by one. Each sample of three targets leaves many of them without a link
// among each other. They are no group, but for at most one mesh of twenty.
func TestNoRack(t *testing.T) {
	meshes := judgetest.Iterations(10, 200)
	var groups []string
	for seed := range meshes {
		n := judgetest.NewMesh(seed, 200, 3, 0, judgetest.DefaultProbes()[:2])
		dead := rand.New(rand.NewPCG(seed, 5)).Perm(200)
		n.Drop = func(p judgetest.Packet) float64 { return judgetest.When(dead[p.To]%2 == 0) }
		for _, f := range Explain(judge.Pairs(n.Worksheet, n.Roster, n.Measure(), judge.Rules{Pools: true})).Found {
			if f.Finding.Cause == checkup.CauseNodes {
				groups = append(groups, fmt.Sprintf("seed %d: %s, of %d pairs", seed, f.Subject, len(f.Pairs)))
			}
		}
	}
	if len(groups) > int(meshes/20) {
		t.Errorf("%d of %d meshes:\n%s", len(groups), meshes, strings.Join(groups, "\n"))
	}
}
