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

func ptr[T any](v T) *T { return &v }

// judged is the report of a mesh with its findings.
func judged(n *judgetest.Mesh) checkup.CheckReport { return check(n, n.Measure()) }

// check is the report of a mesh of which a record is known, with its findings.
func check(n *judgetest.Mesh, record *checkup.Record) checkup.CheckReport {
	j := judge.Pairs(n.Worksheet, n.Roster, record, judge.Rules{})
	x := Explain(j)
	r := j.Report(checkup.Gate{})
	r.Findings = x.Findings()
	return r
}

// TestThreeNodes puts the faults of the end-to-end tests, as the sandbox makes
// them, into a full mesh of three nodes. They must be named, and nothing else.
func TestThreeNodes(t *testing.T) {
	const a, b = 0, 1 // worker-1, worker-2
	tests := []struct {
		name  string
		drop  func(judgetest.Packet) float64
		delay func(judgetest.Packet) time.Duration
		want  string // kind of the only finding
		or    []string
	}{
		{"nothing", nil, nil, "", nil},
		{"ingress of one node", func(p judgetest.Packet) float64 { return judgetest.When(p.To == b) }, nil, "nodeIngress worker-2", nil},
		{"egress of one node", func(p judgetest.Packet) float64 { return judgetest.When(p.From == b) }, nil, "nodeEgress worker-2", nil},
		{"one node both ways", func(p judgetest.Packet) float64 { return judgetest.When(p.From == b || p.To == b) }, nil, "node worker-2", nil},
		{"one ordered pair", func(p judgetest.Packet) float64 { return judgetest.When(p.From == a && p.To == b) }, nil, "pair worker-1 -> worker-2", nil},
		{"udp", func(p judgetest.Packet) float64 { return judgetest.When(p.Transport == checkup.UDP) }, nil, "transport udp", nil},
		{"tcp and so http", func(p judgetest.Packet) float64 { return judgetest.When(p.Transport == checkup.TCP) }, nil, "transport tcp", nil},
		{"IPv6", func(p judgetest.Packet) float64 { return judgetest.When(p.Family == checkup.IPv6) }, nil, "family IPv6", nil},
		{"large packets", func(p judgetest.Packet) float64 { return judgetest.When(p.Size > 1000) }, nil, "size 1400", nil},
		{"everything", func(judgetest.Packet) float64 { return 1 }, nil, "network", nil},
		{"a fifth of what goes to one node", func(p judgetest.Packet) float64 { return .2 * judgetest.When(p.To == b) }, nil, "nodeIngress worker-2", nil},
		{"a fifth of what comes from one node", func(p judgetest.Packet) float64 { return .2 * judgetest.When(p.From == b) }, nil, "nodeEgress worker-2", nil},
		{"a fifth of what goes to and comes from one node", func(p judgetest.Packet) float64 { return .2 * judgetest.When(p.To == b || p.From == b) }, nil, "node worker-2", nil},
		{"a fifth everywhere", func(judgetest.Packet) float64 { return .2 }, nil, "network", nil},
		{"30ms towards one node", nil, func(p judgetest.Packet) time.Duration {
			return time.Duration(judgetest.When(p.To == b)) * 30 * time.Millisecond
		}, "node worker-2", []string{"nodeIngress worker-2", "nodeEgress worker-2"}},
		{"30ms between two nodes", nil, func(p judgetest.Packet) time.Duration {
			return time.Duration(judgetest.When(p.From == a && p.To == b)) * 30 * time.Millisecond
		}, "pair worker-1 -> worker-2", []string{"pair worker-2 -> worker-1"}},
		{"new flows into one node", func(p judgetest.Packet) float64 { return judgetest.When(p.To == b && !p.Answer) }, nil, "nodeIngress worker-2", []string{"target worker-2"}},
		{"new flows out of one node", func(p judgetest.Packet) float64 { return judgetest.When(p.From == b && !p.Answer) }, nil, "nodeEgress worker-2", []string{"source worker-2"}},
		{"udp into one node", func(p judgetest.Packet) float64 { return judgetest.When(p.To == b && p.Transport == checkup.UDP) }, nil, "nodeIngress worker-2 (udp only)", nil},
		{"IPv6 out of one node", func(p judgetest.Packet) float64 { return judgetest.When(p.From == b && p.Family == checkup.IPv6) }, nil, "nodeEgress worker-2 (IPv6 only)", nil},
		{"large packets of one pair", func(p judgetest.Packet) float64 { return judgetest.When(p.From == a && p.To == b && p.Size > 1000) }, nil, "pair worker-1 -> worker-2 (payloads from 1400 bytes only)", nil},
		{"large packets of IPv6", func(p judgetest.Packet) float64 { return judgetest.When(p.Family == checkup.IPv6 && p.Size > 1000) }, nil, "size 1400 (IPv6 only)", nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for seed := range judgetest.Iterations(6, 60) { // every kind of network, with and without repair
				n := judgetest.NewMesh(seed, 3, 0, 3, judgetest.FourTransports())
				if seed%2 == 1 {
					n = judgetest.NewMesh(seed, 3, 0, 3, judgetest.DefaultProbes())
				}
				n.Repair = seed%3 == 0
				n.Worksheet.Expect.Loss.Max = ptr(checkup.Percent(1))
				n.Worksheet.Expect.Latency.P99 = ptr(checkup.Duration(10 * time.Millisecond))
				n.Drop, n.Delay = test.drop, test.delay
				r := judged(n)
				if test.want == "" {
					if len(r.Findings) > 0 {
						t.Fatalf("seed %d: found%s", seed, judgetest.Show(r.Findings))
					}
					continue
				}
				if len(r.Findings) != 1 || judgetest.Kind(r.Findings[0]) != test.want || r.Findings[0].Explains != r.Counts.Fail {
					t.Fatalf("seed %d: want %s alone, to explain %d; got%s", seed, test.want, r.Counts.Fail, judgetest.Show(r.Findings))
				}
				for _, or := range test.or {
					if !slices.Contains(r.Findings[0].Alternatives, or) {
						t.Fatalf("seed %d: want alternative %s; got%s", seed, or, judgetest.Show(r.Findings))
					}
				}
				if seed == 0 {
					t.Log(judgetest.Show(r.Findings))
				}
			}
		})
	}
}

// racks is the number of racks that inRacks puts nodes into.
const racks = 3

// inRacks labels the nodes of a mesh by their racks, in turn.
func inRacks(n *judgetest.Mesh) {
	for i := range n.Worksheet.Sources {
		of := map[string]string{"example.com/rack": fmt.Sprintf("r%d", i%racks)}
		n.Worksheet.Sources[i].Topology, n.Worksheet.Targets[i].Topology = of, of
	}
}

// TestTopology breaks racks of which the plan names the label, and other places beside it.
func TestTopology(t *testing.T) {
	rack := func(i int) int { return i % racks }
	into := func(p judgetest.Packet) bool { return rack(p.To) == 1 && rack(p.From) != 1 }
	behind := func(p judgetest.Packet) bool { return (rack(p.To) == 1) != (rack(p.From) == 1) }
	for _, test := range []struct {
		name    string
		drop    func(judgetest.Packet) float64
		want    string
		message string
	}{
		{"into a rack", func(p judgetest.Packet) float64 { return judgetest.When(into(p)) },
			"nodesIngress rack r1", "into rack r1: nothing gets through"},
		{"between a rack and the others", func(p judgetest.Packet) float64 { return judgetest.When(behind(p)) },
			"nodes rack r1", "between rack r1 and all other nodes: nothing gets through"},
		{"udp into a rack", func(p judgetest.Packet) float64 { return judgetest.When(into(p) && p.Transport == checkup.UDP) },
			"nodesIngress rack r1 (udp only)", "into rack r1, udp only: nothing gets through"},
		{"from rack to rack", func(p judgetest.Packet) float64 { return judgetest.When(rack(p.From) == 2 && rack(p.To) == 1) },
			"groups rack r2 -> rack r1", "from rack r2 to rack r1: nothing gets through"},
		{"within a rack", func(p judgetest.Packet) float64 { return judgetest.When(rack(p.From) == 1 && rack(p.To) == 1) },
			"groups rack r1 -> rack r1", "from rack r1 to rack r1: nothing gets through"},
		{"a twentieth of what goes into a rack", func(p judgetest.Packet) float64 { return .05 * judgetest.When(into(p)) },
			"nodesIngress rack r1", ""},
		{"into a node of a rack", func(p judgetest.Packet) float64 { return judgetest.When(p.To == 4) },
			"nodeIngress worker-5", "into the pods of worker-5: nothing gets through"},
		{"from one node to another", func(p judgetest.Packet) float64 { return judgetest.When(p.From == 3 && p.To == 4) },
			"pair worker-4 -> worker-5", "from worker-4 to worker-5: nothing gets through"},
		{"everywhere", func(judgetest.Packet) float64 { return 1 }, "network", "the whole network: nothing gets through"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for seed := range judgetest.Iterations(4, 40) {
				n := judgetest.NewMesh(seed, 13, 0, 2, judgetest.FourTransports())
				inRacks(n)
				n.Worksheet.Expect.Loss.Max = new(checkup.Percent(1))
				n.Drop = test.drop
				r := judged(n)
				if len(r.Findings) != 1 || judgetest.Kind(r.Findings[0]) != test.want ||
					test.message != "" && r.Findings[0].Message != test.message {
					t.Errorf("seed %d: want %s alone; got%s", seed, test.want, judgetest.Show(r.Findings))
				}
			}
		})
	}
}

// TestLocalise injects every cause into clusters of random size, sample and zones.
func TestLocalise(t *testing.T) {
	type fault struct {
		drop func(judgetest.Packet) bool
		want string
	}
	node := func(i int) string { return fmt.Sprintf("worker-%d", i+1) }
	causes := map[checkup.FindingCause]func(n *judgetest.Mesh, rng *rand.Rand) fault{
		checkup.CauseNodeIngress: func(n *judgetest.Mesh, rng *rand.Rand) fault {
			x := rng.IntN(len(n.Worksheet.Sources))
			return fault{func(p judgetest.Packet) bool { return p.To == x }, "nodeIngress " + node(x)}
		},
		checkup.CauseNodeEgress: func(n *judgetest.Mesh, rng *rand.Rand) fault {
			x := rng.IntN(len(n.Worksheet.Sources))
			return fault{func(p judgetest.Packet) bool { return p.From == x }, "nodeEgress " + node(x)}
		},
		checkup.CauseNode: func(n *judgetest.Mesh, rng *rand.Rand) fault {
			x := rng.IntN(len(n.Worksheet.Sources))
			return fault{func(p judgetest.Packet) bool { return p.From == x || p.To == x }, "node " + node(x)}
		},
		checkup.CauseNodes: func(n *judgetest.Mesh, rng *rand.Rand) fault {
			rack := map[int]bool{}
			var names []string
			for len(rack) < 3 {
				if x := rng.IntN(len(n.Worksheet.Sources)); !rack[x] {
					rack[x] = true
					names = append(names, node(x))
				}
			}
			slices.Sort(names)
			return fault{func(p judgetest.Packet) bool { return rack[p.From] != rack[p.To] }, "nodes " + strings.Join(names, ", ")}
		},
		checkup.CauseNodesIngress: func(_ *judgetest.Mesh, rng *rand.Rand) fault {
			x := rng.IntN(racks)
			return fault{
				func(p judgetest.Packet) bool { return p.To%racks == x && p.From%racks != x }, fmt.Sprintf("nodesIngress rack r%d", x),
			}
		},
		checkup.CauseNodesEgress: func(_ *judgetest.Mesh, rng *rand.Rand) fault {
			x := rng.IntN(racks)
			return fault{
				func(p judgetest.Packet) bool { return p.From%racks == x && p.To%racks != x }, fmt.Sprintf("nodesEgress rack r%d", x),
			}
		},
		checkup.CausePair: func(n *judgetest.Mesh, rng *rand.Rand) fault {
			// One that is in the sample.
			a := rng.IntN(len(n.Worksheet.Sources))
			b := n.Worksheet.Assignments[a][rng.IntN(len(n.Worksheet.Assignments[a]))]
			return fault{func(p judgetest.Packet) bool { return p.From == a && p.To == b }, "pair " + node(a) + " -> " + node(b)}
		},
		checkup.CauseZones: func(n *judgetest.Mesh, rng *rand.Rand) fault {
			zone := func(i int) string { return n.Worksheet.Sources[i].Zone }
			a := rng.IntN(len(n.Worksheet.Sources))
			b := n.Worksheet.Assignments[a][rng.IntN(len(n.Worksheet.Assignments[a]))]
			za, zb := zone(a), zone(b)
			return fault{func(p judgetest.Packet) bool { return zone(p.From) == za && zone(p.To) == zb }, "zones " + za + " -> " + zb}
		},
		checkup.CauseGroups: func(n *judgetest.Mesh, rng *rand.Rand) fault {
			a := rng.IntN(len(n.Worksheet.Sources))
			b := n.Worksheet.Assignments[a][rng.IntN(len(n.Worksheet.Assignments[a]))]
			return fault{
				func(p judgetest.Packet) bool { return p.From%racks == a%racks && p.To%racks == b%racks },
				fmt.Sprintf("groups rack r%d -> rack r%d", a%racks, b%racks),
			}
		},
		checkup.CauseFamily: func(_ *judgetest.Mesh, rng *rand.Rand) fault {
			f := checkup.IPFamilies[rng.IntN(2)]
			return fault{func(p judgetest.Packet) bool { return p.Family == f }, "family " + string(f)}
		},
		checkup.CauseTransport: func(_ *judgetest.Mesh, rng *rand.Rand) fault {
			x := checkup.Transports[rng.IntN(4)]
			return fault{func(p judgetest.Packet) bool { return p.Transport == x }, "transport " + string(x)}
		},
		checkup.CauseSize: func(_ *judgetest.Mesh, rng *rand.Rand) fault {
			limit := []int{1000, 1400}[rng.IntN(2)]
			from := map[int]string{1000: "1400", 1400: "4000"}[limit]
			return fault{func(p judgetest.Packet) bool { return p.Size > limit }, "size " + from}
		},
		checkup.CauseSource: func(n *judgetest.Mesh, rng *rand.Rand) fault {
			x := rng.IntN(len(n.Worksheet.Sources))
			return fault{func(p judgetest.Packet) bool { return p.From == x && !p.Answer }, "source " + node(x)}
		},
		checkup.CauseTarget: func(n *judgetest.Mesh, rng *rand.Rand) fault {
			x := rng.IntN(len(n.Worksheet.Sources))
			return fault{func(p judgetest.Packet) bool { return p.To == x && !p.Answer }, "target " + node(x)}
		},
		checkup.CauseNetwork: func(*judgetest.Mesh, *rand.Rand) fault {
			return fault{func(judgetest.Packet) bool { return true }, "network"}
		},
	}
	// mesh is one for a cause; its faults are drawn with rng.
	mesh := func(seed uint64, cause checkup.FindingCause) (n *judgetest.Mesh, rng *rand.Rand) {
		rng = rand.New(rand.NewPCG(seed, 4))
		nodes := 4 + rng.IntN(10)
		degree := []int{0, 2, 3, 5}[rng.IntN(4)]
		n = judgetest.NewMesh(seed, nodes, degree, []int{0, 2, 3}[rng.IntN(3)], judgetest.FourTransports())
		if cause == checkup.CauseNodes {
			n = judgetest.NewMesh(seed, 8+rng.IntN(10), 0, 0, judgetest.FourTransports())
		}
		if cause == checkup.CauseNodesIngress || cause == checkup.CauseNodesEgress || cause == checkup.CauseGroups {
			n = judgetest.NewMesh(seed, 12+rng.IntN(6), 6, 2, judgetest.FourTransports())
			inRacks(n)
		}
		if cause == checkup.CauseZones {
			n = judgetest.NewMesh(seed, 12+rng.IntN(6), 6, 3, judgetest.FourTransports())
		}
		n.Tally = rng.IntN(3) > 0
		n.Worksheet.Expect.Loss.Max = ptr(checkup.Percent(1))
		return n, rng
	}
	seeds := judgetest.Iterations(6, 60)
	t.Run("clean", func(t *testing.T) {
		for seed := range seeds {
			for _, cause := range []checkup.FindingCause{checkup.CauseNode, checkup.CauseZones} { // all but zones have the same networks
				n, _ := mesh(seed, cause)
				if clean := judged(n); clean.Verdict != checkup.RunPass || len(clean.Findings) > 0 {
					t.Fatalf("seed %d: a clean network has%s", seed, judgetest.Show(clean.Findings))
				}
			}
		}
	})
	for _, cause := range checkup.FindingCauses {
		switch cause {
		case checkup.CauseService, checkup.CausePlacement:
			continue // not of pairs between pods
		case checkup.CausePaths:
			continue // see TestPaths
		case checkup.CauseSourceAddress:
			continue // see TestRewritten
		}
		t.Run(string(cause), func(t *testing.T) {
			inject, ok := causes[cause]
			if !ok {
				t.Fatal("nothing injects this cause")
			}
			for seed := range seeds {
				n, rng := mesh(seed, cause)
				nodes, degree := len(n.Worksheet.Sources), n.Worksheet.Degree
				fault := inject(n, rng)
				n.Drop = func(p judgetest.Packet) float64 { return judgetest.When(fault.drop(p)) }
				r := judged(n)
				if r.Counts.Fail == 0 {
					t.Fatalf("seed %d: %s of %d nodes makes nothing fail", seed, fault.want, nodes)
				}
				if len(r.Findings) == 0 || judgetest.Kind(r.Findings[0]) != fault.want && !slices.Contains(r.Findings[0].Alternatives, fault.want) {
					t.Errorf("seed %d: %d nodes, degree %d, counted %t: want %s; got%s", seed, nodes, degree, n.Tally, fault.want, judgetest.Show(r.Findings))
				}
				if len(r.Findings) > 1 {
					t.Errorf("seed %d: one fault, %s, many findings%s", seed, fault.want, judgetest.Show(r.Findings))
				}
			}
		})
	}
}

// TestFindingsExplainAll checks what must hold of the findings of any record:
// each failed pair is explained, and the numbers add up.
func TestFindingsExplainAll(t *testing.T) {
	for seed := range judgetest.Iterations(40, 1000) {
		n := judgetest.RandomMesh(seed)
		r := judged(n)
		sum, only := 0, 0
		for _, f := range r.Findings {
			if f.Explains == 0 || f.OnlyThis > f.Explains || f.Message == "" || len(f.For) == 0 && len(r.Findings) < maxFindings {
				t.Errorf("seed %d: %+v", seed, f)
			}
			sum += f.Explains
			only += f.OnlyThis
		}
		if sum < r.Counts.Fail || only > r.Counts.Fail || len(r.Findings) > maxFindings {
			t.Errorf("seed %d: %d failed pairs, of which findings explain %d, %d of them alone%s", seed, r.Counts.Fail, sum, only, judgetest.Show(r.Findings))
		}
	}
}

// BenchmarkExplain judges and localises 100,000 pairs of 1,000 nodes. The promise is less
// than 2 s and 300 MB in every case.
func BenchmarkExplain(b *testing.B) {
	part := func(share float64, hit func(judgetest.Packet) bool) func(judgetest.Packet) float64 {
		return func(p judgetest.Packet) float64 { return share * judgetest.When(hit(p)) }
	}
	everywhere := func(judgetest.Packet) bool { return true }
	for _, bench := range []struct {
		name string
		drop func(judgetest.Packet) float64
	}{
		{"clean", nil},
		{"0.5% everywhere", part(0.005, everywhere)},
		{"ingress of one node", part(1, func(p judgetest.Packet) bool { return p.To == 7 })},
		{"5% into a hundred nodes", part(0.05, func(p judgetest.Packet) bool { return p.To < 100 })},
		{"ingress of half of the nodes", part(1, func(p judgetest.Packet) bool { return p.To%2 == 0 })},
		{"a tenth of the pairs", part(1, func(p judgetest.Packet) bool { return (p.From*31+p.To*17)%10 == 0 })},
		{"half of the packets", part(0.5, everywhere)},
		{"everything", part(1, everywhere)},
	} {
		b.Run(bench.name, func(b *testing.B) {
			n := judgetest.NewMesh(1, 1000, 10, 3, judgetest.DefaultProbes())
			n.Worksheet.Expect.Loss.Max = ptr(checkup.Percent(1))
			n.Worksheet.Expect.Latency.P99 = ptr(checkup.Duration(100 * time.Millisecond))
			n.Drop, n.Repair = bench.drop, true
			record := n.Measure()
			if len(record.Observations) != 100_000 {
				b.Fatalf("%d observations", len(record.Observations))
			}
			b.ReportAllocs()
			for b.Loop() {
				check(n, record)
			}
		})
	}
}

// TestLocalisePart injects faults that concern a part of the packets, or delay
// them, into clusters of random size and sample.
func TestLocalisePart(t *testing.T) {
	node := func(i int) string { return fmt.Sprintf("worker-%d", i+1) }
	for seed := range judgetest.Iterations(40, 200) {
		rng := rand.New(rand.NewPCG(seed, 7))
		nodes := 3 + rng.IntN(12)
		n := judgetest.NewMesh(seed, nodes, []int{0, 2, 3, 5}[rng.IntN(4)], rng.IntN(4), judgetest.DefaultProbes())
		n.Repair = rng.IntN(2) == 0
		n.Worksheet.Expect.Loss.Max = ptr(checkup.Percent(1))
		n.Worksheet.Expect.Latency.P99 = ptr(checkup.Duration(10 * time.Millisecond))
		x, part := rng.IntN(nodes), 0.15+0.3*rng.Float64()
		var here func(judgetest.Packet) bool
		var want string
		switch rng.IntN(4) {
		case 0:
			here, want = func(p judgetest.Packet) bool { return p.To == x }, "nodeIngress "+node(x)
		case 1:
			here, want = func(p judgetest.Packet) bool { return p.From == x }, "nodeEgress "+node(x)
		case 2:
			y := n.Worksheet.Assignments[x][rng.IntN(len(n.Worksheet.Assignments[x]))]
			here, want = func(p judgetest.Packet) bool { return p.From == x && p.To == y }, "pair "+node(x)+" -> "+node(y)
		default:
			here, want = func(judgetest.Packet) bool { return true }, "network"
		}
		what := fmt.Sprintf("%.0f%% lost", 100*part)
		if rng.IntN(2) == 0 {
			what = "delayed"
			n.Delay = func(p judgetest.Packet) time.Duration {
				return time.Duration(judgetest.When(here(p))) * 30 * time.Millisecond
			}
		} else {
			n.Drop = func(p judgetest.Packet) float64 { return part * judgetest.When(here(p)) }
		}
		r := judged(n)
		if len(r.Findings) != 1 || judgetest.Kind(r.Findings[0]) != want && !slices.Contains(r.Findings[0].Alternatives, want) {
			t.Errorf("seed %d: %d nodes, degree %d, repair %t: want %s, %s; got%s", seed, nodes, n.Worksheet.Degree, n.Repair, want, what, judgetest.Show(r.Findings))
		}
	}
}

// TestTwoFaults checks that faults beside one another are each named.
func TestTwoFaults(t *testing.T) {
	for _, test := range []struct {
		name string
		drop func(judgetest.Packet) bool
		want []string
	}{
		{"two nodes", func(p judgetest.Packet) bool { return p.To == 1 || p.From == 4 }, []string{"nodeIngress worker-2", "nodeEgress worker-5"}},
		{"a family and a pair", func(p judgetest.Packet) bool { return p.Family == checkup.IPv6 || p.From == 2 && p.To == 3 }, []string{"family IPv6", "pair worker-3 -> worker-4"}},
		{"a node and large packets", func(p judgetest.Packet) bool { return p.To == 1 || p.Size > 1000 }, []string{"size 1400", "nodeIngress worker-2"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := judgetest.NewMesh(1, 8, 0, 2, judgetest.FourTransports())
			n.Drop = func(p judgetest.Packet) float64 { return judgetest.When(test.drop(p)) }
			r := judged(n)
			var got []string
			for _, f := range r.Findings {
				got = append(got, judgetest.Kind(f))
			}
			slices.Sort(got)
			slices.Sort(test.want)
			if !slices.Equal(got, test.want) {
				t.Errorf("want %v; got%s", test.want, judgetest.Show(r.Findings))
			}
		})
	}
}

// TestOneFailure: a single failed pair is no more than that.
func TestOneFailure(t *testing.T) {
	n := judgetest.NewMesh(1, 7, 2, 3, judgetest.FourTransports())
	n.Worksheet.Expect.Loss.Max = ptr(checkup.Percent(1))
	record := n.Measure()
	for i := range record.Observations {
		whole := record.Observations[i]
		o := &record.Observations[i]
		o.Received, o.RTTs, o.Failure = 0, nil, &checkup.Cause{Stage: checkup.StageEcho, Message: "timed out"}
		r := check(n, record)
		if len(r.Findings) != 1 || r.Findings[0].Cause != checkup.CausePair || r.Findings[0].Explains != 1 {
			t.Fatalf("%v: %s", o.Pair, judgetest.Show(r.Findings))
		}
		record.Observations[i] = whole
	}
}
