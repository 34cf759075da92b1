// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// when is 1 where the condition holds, and chance 0 elsewhere.
func when(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}

func show(findings []checkup.Finding) string {
	var b strings.Builder
	for _, f := range findings {
		fmt.Fprintf(&b, "\n%s [%s] explains %d, only this %d", kind(f), f.Message, f.Explains, f.OnlyThis)
		for _, s := range f.For {
			fmt.Fprintf(&b, "\n  + %s", s)
		}
		for _, s := range f.Against {
			fmt.Fprintf(&b, "\n  - %s", s)
		}
		fmt.Fprintf(&b, "\n  ? %s", strings.Join(f.Alternatives, "; "))
	}
	return b.String()
}

// TestThreeNodes puts the faults of the end-to-end tests, as the sandbox makes
// them, into a full mesh of three nodes. They must be named, and nothing else.
func TestThreeNodes(t *testing.T) {
	const a, b = 0, 1 // worker-1, worker-2
	tests := []struct {
		name  string
		drop  func(packet) float64
		delay func(packet) time.Duration
		want  string // kind of the only finding
		or    []string
	}{
		{"nothing", nil, nil, "", nil},
		{"ingress of one node", func(p packet) float64 { return when(p.to == b) }, nil, "nodeIngress worker-2", nil},
		{"egress of one node", func(p packet) float64 { return when(p.from == b) }, nil, "nodeEgress worker-2", nil},
		{"one node both ways", func(p packet) float64 { return when(p.from == b || p.to == b) }, nil, "node worker-2", nil},
		{"one ordered pair", func(p packet) float64 { return when(p.from == a && p.to == b) }, nil, "pair worker-1 -> worker-2", nil},
		{"udp", func(p packet) float64 { return when(p.transport == checkup.UDP) }, nil, "transport udp", nil},
		{"tcp and so http", func(p packet) float64 { return when(p.transport == checkup.TCP) }, nil, "transport tcp", nil},
		{"IPv6", func(p packet) float64 { return when(p.family == checkup.IPv6) }, nil, "family IPv6", nil},
		{"large packets", func(p packet) float64 { return when(p.size > 1000) }, nil, "size 1400", nil},
		{"everything", func(packet) float64 { return 1 }, nil, "network", nil},
		{"a fifth of what goes to one node", func(p packet) float64 { return .2 * when(p.to == b) }, nil, "nodeIngress worker-2", nil},
		{"a fifth of what comes from one node", func(p packet) float64 { return .2 * when(p.from == b) }, nil, "nodeEgress worker-2", nil},
		{"a fifth of what goes to and comes from one node", func(p packet) float64 { return .2 * when(p.to == b || p.from == b) }, nil, "node worker-2", nil},
		{"a fifth everywhere", func(packet) float64 { return .2 }, nil, "network", nil},
		{"30ms towards one node", nil, func(p packet) time.Duration { return time.Duration(when(p.to == b)) * 30 * time.Millisecond }, "node worker-2", []string{"nodeIngress worker-2", "nodeEgress worker-2"}},
		{"30ms between two nodes", nil, func(p packet) time.Duration {
			return time.Duration(when(p.from == a && p.to == b)) * 30 * time.Millisecond
		}, "pair worker-1 -> worker-2", []string{"pair worker-2 -> worker-1"}},
		{"new flows into one node", func(p packet) float64 { return when(p.to == b && !p.answer) }, nil, "nodeIngress worker-2", []string{"target worker-2"}},
		{"new flows out of one node", func(p packet) float64 { return when(p.from == b && !p.answer) }, nil, "nodeEgress worker-2", []string{"source worker-2"}},
		{"udp into one node", func(p packet) float64 { return when(p.to == b && p.transport == checkup.UDP) }, nil, "nodeIngress worker-2 (udp only)", nil},
		{"IPv6 out of one node", func(p packet) float64 { return when(p.from == b && p.family == checkup.IPv6) }, nil, "nodeEgress worker-2 (IPv6 only)", nil},
		{"large packets of one pair", func(p packet) float64 { return when(p.from == a && p.to == b && p.size > 1000) }, nil, "pair worker-1 -> worker-2 (payloads from 1400 bytes only)", nil},
		{"large packets of IPv6", func(p packet) float64 { return when(p.family == checkup.IPv6 && p.size > 1000) }, nil, "size 1400 (IPv6 only)", nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for seed := range iterations(6, 60) { // every kind of network, with and without repair
				n := newNetwork(seed, 3, 0, 3, fourTransports())
				if seed%2 == 1 {
					n = newNetwork(seed, 3, 0, 3, defaultProbes())
				}
				n.repair = seed%3 == 0
				n.w.Expect.Loss.Max = ptr(checkup.Percent(1))
				n.w.Expect.Latency.P99 = ptr(checkup.Duration(10 * time.Millisecond))
				n.drop, n.delay = test.drop, test.delay
				r := n.judge()
				if test.want == "" {
					if len(r.Findings) > 0 {
						t.Fatalf("seed %d: found%s", seed, show(r.Findings))
					}
					continue
				}
				if len(r.Findings) != 1 || kind(r.Findings[0]) != test.want || r.Findings[0].Explains != r.Counts.Fail {
					t.Fatalf("seed %d: want %s alone, to explain %d; got%s", seed, test.want, r.Counts.Fail, show(r.Findings))
				}
				for _, or := range test.or {
					if !slices.Contains(r.Findings[0].Alternatives, or) {
						t.Fatalf("seed %d: want alternative %s; got%s", seed, or, show(r.Findings))
					}
				}
				if seed == 0 {
					t.Log(show(r.Findings))
				}
			}
		})
	}
}

// TestLocalise injects every cause into clusters of random size, sample and zones.
func TestLocalise(t *testing.T) {
	type fault struct {
		drop func(packet) bool
		want string
	}
	node := func(i int) string { return fmt.Sprintf("worker-%d", i+1) }
	causes := map[checkup.FindingCause]func(n *network, rng *rand.Rand) fault{
		checkup.CauseNodeIngress: func(n *network, rng *rand.Rand) fault {
			x := rng.IntN(len(n.w.Sources))
			return fault{func(p packet) bool { return p.to == x }, "nodeIngress " + node(x)}
		},
		checkup.CauseNodeEgress: func(n *network, rng *rand.Rand) fault {
			x := rng.IntN(len(n.w.Sources))
			return fault{func(p packet) bool { return p.from == x }, "nodeEgress " + node(x)}
		},
		checkup.CauseNode: func(n *network, rng *rand.Rand) fault {
			x := rng.IntN(len(n.w.Sources))
			return fault{func(p packet) bool { return p.from == x || p.to == x }, "node " + node(x)}
		},
		checkup.CausePair: func(n *network, rng *rand.Rand) fault {
			// One that is in the sample.
			a := rng.IntN(len(n.w.Sources))
			b := n.w.Assignments[a][rng.IntN(len(n.w.Assignments[a]))]
			return fault{func(p packet) bool { return p.from == a && p.to == b }, "pair " + node(a) + " -> " + node(b)}
		},
		checkup.CauseZones: func(n *network, rng *rand.Rand) fault {
			zone := func(i int) string { return n.w.Sources[i].Zone }
			a := rng.IntN(len(n.w.Sources))
			b := n.w.Assignments[a][rng.IntN(len(n.w.Assignments[a]))]
			za, zb := zone(a), zone(b)
			return fault{func(p packet) bool { return zone(p.from) == za && zone(p.to) == zb }, "zones " + za + " -> " + zb}
		},
		checkup.CauseFamily: func(_ *network, rng *rand.Rand) fault {
			f := checkup.IPFamilies[rng.IntN(2)]
			return fault{func(p packet) bool { return p.family == f }, "family " + string(f)}
		},
		checkup.CauseTransport: func(_ *network, rng *rand.Rand) fault {
			x := checkup.Transports[rng.IntN(4)]
			return fault{func(p packet) bool { return p.transport == x }, "transport " + string(x)}
		},
		checkup.CauseSize: func(_ *network, rng *rand.Rand) fault {
			limit := []int{1000, 1400}[rng.IntN(2)]
			from := map[int]string{1000: "1400", 1400: "4000"}[limit]
			return fault{func(p packet) bool { return p.size > limit }, "size " + from}
		},
		checkup.CauseSource: func(n *network, rng *rand.Rand) fault {
			x := rng.IntN(len(n.w.Sources))
			return fault{func(p packet) bool { return p.from == x && !p.answer }, "source " + node(x)}
		},
		checkup.CauseTarget: func(n *network, rng *rand.Rand) fault {
			x := rng.IntN(len(n.w.Sources))
			return fault{func(p packet) bool { return p.to == x && !p.answer }, "target " + node(x)}
		},
		checkup.CauseNetwork: func(*network, *rand.Rand) fault {
			return fault{func(packet) bool { return true }, "network"}
		},
	}
	// network is one for a cause; its faults are drawn with rng.
	network := func(seed uint64, cause checkup.FindingCause) (n *network, rng *rand.Rand) {
		rng = rand.New(rand.NewPCG(seed, 4))
		nodes := 4 + rng.IntN(10)
		degree := []int{0, 2, 3, 5}[rng.IntN(4)]
		n = newNetwork(seed, nodes, degree, []int{0, 2, 3}[rng.IntN(3)], fourTransports())
		if cause == checkup.CauseZones {
			n = newNetwork(seed, 12+rng.IntN(6), 6, 3, fourTransports())
		}
		n.tally = rng.IntN(3) > 0
		n.w.Expect.Loss.Max = ptr(checkup.Percent(1))
		return n, rng
	}
	seeds := iterations(6, 60)
	t.Run("clean", func(t *testing.T) {
		for seed := range seeds {
			for _, cause := range []checkup.FindingCause{checkup.CauseNode, checkup.CauseZones} { // all but zones have the same networks
				n, _ := network(seed, cause)
				if clean := n.judge(); clean.Verdict != checkup.RunPass || len(clean.Findings) > 0 {
					t.Fatalf("seed %d: a clean network has%s", seed, show(clean.Findings))
				}
			}
		}
	})
	for _, cause := range checkup.FindingCauses {
		if cause == checkup.CauseService || cause == checkup.CausePlacement {
			continue // not of pairs between pods: TestBlame, TestPlacement
		}
		t.Run(string(cause), func(t *testing.T) {
			inject, ok := causes[cause]
			if !ok {
				t.Fatal("nothing injects this cause")
			}
			for seed := range seeds {
				n, rng := network(seed, cause)
				nodes, degree := len(n.w.Sources), n.w.Degree
				fault := inject(n, rng)
				n.drop = func(p packet) float64 { return when(fault.drop(p)) }
				r := n.judge()
				if r.Counts.Fail == 0 {
					t.Fatalf("seed %d: %s of %d nodes makes nothing fail", seed, fault.want, nodes)
				}
				if len(r.Findings) == 0 || kind(r.Findings[0]) != fault.want && !slices.Contains(r.Findings[0].Alternatives, fault.want) {
					t.Errorf("seed %d: %d nodes, degree %d, counted %t: want %s; got%s", seed, nodes, degree, n.tally, fault.want, show(r.Findings))
				}
				if len(r.Findings) > 1 {
					t.Errorf("seed %d: one fault, %s, many findings%s", seed, fault.want, show(r.Findings))
				}
			}
		})
	}
}

// TestFindingsExplainAll checks what must hold of the findings of any record:
// each failed pair is explained, and the numbers add up.
func TestFindingsExplainAll(t *testing.T) {
	for seed := range iterations(40, 1000) {
		n := randomNetwork(seed)
		r := n.judge()
		sum, only := 0, 0
		for _, f := range r.Findings {
			if f.Explains == 0 || f.OnlyThis > f.Explains || f.Message == "" || len(f.For) == 0 && len(r.Findings) < maxFindings {
				t.Errorf("seed %d: %+v", seed, f)
			}
			sum += f.Explains
			only += f.OnlyThis
		}
		if sum < r.Counts.Fail || only > r.Counts.Fail || len(r.Findings) > maxFindings {
			t.Errorf("seed %d: %d failed pairs, of which findings explain %d, %d of them alone%s", seed, r.Counts.Fail, sum, only, show(r.Findings))
		}
	}
}

// BenchmarkJudge judges and localises 50,000 observations of 5,000 nodes: one
// source-target pair each by tcp.
func BenchmarkJudge(b *testing.B) {
	probes := []checkup.TransportProbe{{Transport: checkup.UDP, Probe: checkup.Probe{Sizes: []int{64}, Count: 20}}}
	chaos := rand.New(rand.NewPCG(1, 5))
	for _, bench := range []struct {
		name string
		drop func(packet) float64
	}{
		{"clean", nil},
		{"ingress of one node", func(p packet) float64 { return when(p.to == 7) }},
		{"ingress of a hundred nodes", func(p packet) float64 { return when(p.to < 100) }},
		{"everything", func(packet) float64 { return 1 }},
		{"a tenth of the pairs", func(p packet) float64 { return when((p.from*31+p.to*17)%10 == 0) }},
		{"half of the packets", func(packet) float64 { return when(chaos.IntN(2) == 0) }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			n := newNetwork(1, 5000, 10, 3, probes)
			n.w.IPFamilies = n.w.IPFamilies[:1]
			n.w.Expect.Loss.Max = ptr(checkup.Percent(1))
			n.drop = bench.drop
			record := n.measure()
			if len(record.Observations) != 50_000 {
				b.Fatalf("%d observations", len(record.Observations))
			}
			for b.Loop() {
				Judge(n.w, n.roster, record, checkup.Gate{})
			}
		})
	}
}

// TestLocalisePart injects faults that concern a part of the packets, or delay
// them, into clusters of random size and sample.
func TestLocalisePart(t *testing.T) {
	node := func(i int) string { return fmt.Sprintf("worker-%d", i+1) }
	for seed := range iterations(40, 200) {
		rng := rand.New(rand.NewPCG(seed, 7))
		nodes := 3 + rng.IntN(12)
		n := newNetwork(seed, nodes, []int{0, 2, 3, 5}[rng.IntN(4)], rng.IntN(4), defaultProbes())
		n.repair = rng.IntN(2) == 0
		n.w.Expect.Loss.Max = ptr(checkup.Percent(1))
		n.w.Expect.Latency.P99 = ptr(checkup.Duration(10 * time.Millisecond))
		x, part := rng.IntN(nodes), 0.15+0.3*rng.Float64()
		var here func(packet) bool
		var want string
		switch rng.IntN(4) {
		case 0:
			here, want = func(p packet) bool { return p.to == x }, "nodeIngress "+node(x)
		case 1:
			here, want = func(p packet) bool { return p.from == x }, "nodeEgress "+node(x)
		case 2:
			y := n.w.Assignments[x][rng.IntN(len(n.w.Assignments[x]))]
			here, want = func(p packet) bool { return p.from == x && p.to == y }, "pair "+node(x)+" -> "+node(y)
		default:
			here, want = func(packet) bool { return true }, "network"
		}
		what := fmt.Sprintf("%.0f%% lost", 100*part)
		if rng.IntN(2) == 0 {
			what = "delayed"
			n.delay = func(p packet) time.Duration { return time.Duration(when(here(p))) * 30 * time.Millisecond }
		} else {
			n.drop = func(p packet) float64 { return part * when(here(p)) }
		}
		r := n.judge()
		if len(r.Findings) != 1 || kind(r.Findings[0]) != want && !slices.Contains(r.Findings[0].Alternatives, want) {
			t.Errorf("seed %d: %d nodes, degree %d, repair %t: want %s, %s; got%s", seed, nodes, n.w.Degree, n.repair, want, what, show(r.Findings))
		}
	}
}

// TestTwoFaults checks that faults beside one another are each named.
func TestTwoFaults(t *testing.T) {
	for _, test := range []struct {
		name string
		drop func(packet) bool
		want []string
	}{
		{"two nodes", func(p packet) bool { return p.to == 1 || p.from == 4 }, []string{"nodeIngress worker-2", "nodeEgress worker-5"}},
		{"a family and a pair", func(p packet) bool { return p.family == checkup.IPv6 || p.from == 2 && p.to == 3 }, []string{"family IPv6", "pair worker-3 -> worker-4"}},
		{"a node and large packets", func(p packet) bool { return p.to == 1 || p.size > 1000 }, []string{"size 1400", "nodeIngress worker-2"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newNetwork(1, 8, 0, 2, fourTransports())
			n.drop = func(p packet) float64 { return when(test.drop(p)) }
			r := n.judge()
			var got []string
			for _, f := range r.Findings {
				got = append(got, kind(f))
			}
			slices.Sort(got)
			slices.Sort(test.want)
			if !slices.Equal(got, test.want) {
				t.Errorf("want %v; got%s", test.want, show(r.Findings))
			}
		})
	}
}

// TestOneFailure: a single failed pair is no more than that.
func TestOneFailure(t *testing.T) {
	n := newNetwork(1, 7, 2, 3, fourTransports())
	n.w.Expect.Loss.Max = ptr(checkup.Percent(1))
	record := n.measure()
	for i := range record.Observations {
		whole := record.Observations[i]
		o := &record.Observations[i]
		o.Received, o.RTTs, o.Failure = o.Received-1, o.RTTs[1:], &checkup.Cause{Stage: checkup.StageEcho, Message: "timed out"}
		r := Judge(n.w, n.roster, record, checkup.Gate{})
		if len(r.Findings) != 1 || r.Findings[0].Cause != checkup.CausePair || r.Findings[0].Explains != 1 {
			t.Fatalf("%v: %s", o.Pair, show(r.Findings))
		}
		record.Observations[i] = whole
	}
}
