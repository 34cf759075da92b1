// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"fmt"
	"hash/fnv"
	"slices"
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge/judgetest"
)

// path is the path of a packet among n parallel ones, by its addresses and ports. Both ways of a conversation take the
// same one.
func path(p judgetest.Packet, n uint32) uint32 {
	h := fnv.New32a()
	fmt.Fprint(h, min(p.From, p.To), max(p.From, p.To), p.Family, p.Transport, p.Port)
	return h.Sum32() / 7 % n
}

// Dead paths are found where they are, and nothing else is found. Where few flows are dead, all of them may go through
// one node by chance: then the network is an alternative of the node.
func TestPaths(t *testing.T) {
	zone := func(i int) int { return i % 3 }
	everywhere := func(judgetest.Packet) bool { return true }
	udp := func(count int) []checkup.TransportProbe {
		return []checkup.TransportProbe{{Transport: checkup.UDP, Probe: checkup.Probe{Sizes: []int{64, 1400}, Count: count}}}
	}
	for _, test := range []struct {
		name   string
		nodes  int
		probes []checkup.TransportProbe
		dead   func(judgetest.Packet) bool // drops one path of eight
		want   []string
	}{
		{"in a small network", 3, udp(40), everywhere, []string{"paths network"}},
		{"in the network", 12, udp(40), everywhere, []string{"paths network"}},
		{"in the network, with connections", 12, judgetest.DefaultProbes(), everywhere, []string{"paths network"}},
		{"from one zone to another", 12, udp(40), func(p judgetest.Packet) bool { return zone(p.From) == 0 && zone(p.To) == 1 }, []string{"paths zone-a -> zone-b"}},
		{"between two zones", 12, judgetest.DefaultProbes(), func(p judgetest.Packet) bool { return zone(p.From)+zone(p.To) == 1 }, []string{"paths zone-a <-> zone-b"}},
		{"by few measurements each", 12, udp(12), func(p judgetest.Packet) bool { return zone(p.From)+zone(p.To) == 1 }, []string{"paths zone-a <-> zone-b"}},
		{"into a node", 12, udp(40), func(p judgetest.Packet) bool { return p.To == 4 }, []string{"paths into worker-5"}},
		{"out of a node", 12, udp(20), func(p judgetest.Packet) bool { return p.From == 4 }, []string{"paths out of worker-5"}},
		{"at a node", 12, udp(40), func(p judgetest.Packet) bool { return p.From == 4 || p.To == 4 }, []string{"paths worker-5"}},
		{"at two nodes", 12, udp(40), func(p judgetest.Packet) bool { return p.From == 4 || p.To == 4 || p.From == 8 || p.To == 8 }, []string{"paths worker-5", "paths worker-9"}},
		{"from a node to another", 12, udp(40), func(p judgetest.Packet) bool { return p.From == 4 && p.To == 7 }, []string{"paths worker-5 -> worker-8"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, noise := range []float64{0, 0.001} {
				found, runs := 0, 0
				for seed := range judgetest.Iterations(5, 100) {
					n := judgetest.NewMesh(seed, test.nodes, 0, 3, test.probes)
					n.Repair = true
					n.Worksheet.Expect.Loss.Max = new(checkup.Percent(1))
					dead := false
					n.Drop = func(p judgetest.Packet) float64 {
						if p.Port > 0 && test.dead(p) && path(p, 8) == 0 {
							dead = true
							return 1
						}
						return noise
					}
					r := judged(n)
					if !dead {
						continue // by chance
					}
					runs++
					var got []string
					explained := 0
					for _, f := range r.Findings {
						got = append(got, judgetest.Kind(f))
						explained += f.OnlyThis
					}
					slices.Sort(got)
					alone := slices.Equal(got, test.want) ||
						len(r.Findings) == 1 && slices.Equal(r.Findings[0].Alternatives, test.want)
					if alone && explained == r.Counts.Fail {
						found++
					} else {
						t.Logf("seed %d, noise %v: %+v, got%s", seed, noise, r.Counts, judgetest.Show(r.Findings))
					}
				}
				if found < runs {
					t.Errorf("noise %v: found alone in %d of %d runs", noise, found, runs)
				}
			}
		})
	}
}
