// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/judge/judgetest"
)

// TestAlternatives: what this sample cannot distinguish from the cause is listed, and nothing that the other pairs are
// evidence against, however few they are: a full mesh of three nodes with one small probe, of failures and of
// regressions.
func TestAlternatives(t *testing.T) {
	const b = 1 // worker-2
	at := func(p judgetest.Packet) bool { return p.From == b || p.To == b }
	pair := func(p judgetest.Packet) bool { return p.From == 0 && p.To == b }
	slower := func(is func(judgetest.Packet) bool) func(judgetest.Packet) time.Duration {
		return func(p judgetest.Packet) time.Duration {
			return time.Duration(judgetest.When(is(p))) * 20 * time.Millisecond
		}
	}
	loses := func(share float64, is func(judgetest.Packet) bool) func(judgetest.Packet) float64 {
		return func(p judgetest.Packet) float64 { return share * judgetest.When(is(p)) }
	}
	directions := []string{"nodeIngress worker-2", "nodeEgress worker-2"}
	both := []string{"pair worker-2 -> worker-1"}
	// Of one family, two pairs of each node are slow and two are not: too little to rule a node out, but not the network.
	nodes := []string{
		"pair worker-2 -> worker-1", "node worker-1", "node worker-2", "nodeIngress worker-1", "nodeIngress worker-2",
		"nodeEgress worker-1", "and 1 more",
	}
	for _, test := range []struct {
		name       string
		families   int // 0: one or both
		regression bool
		drop       func(judgetest.Packet) float64
		delay      func(judgetest.Packet) time.Duration
		want       string
		or         []string // of a loss, which is random, at most these
	}{
		{"a slower node", 0, true, nil, slower(at), "node worker-2", directions},
		{"a slow node", 0, false, nil, slower(at), "node worker-2", directions},
		{"a slower pair", 2, true, nil, slower(pair), "pair worker-1 -> worker-2", both},
		{"a slow pair", 2, false, nil, slower(pair), "pair worker-1 -> worker-2", both},
		{"a slower pair of one family", 1, true, nil, slower(pair), "pair worker-1 -> worker-2", nodes},
		{"a slower network", 0, true, nil, slower(func(judgetest.Packet) bool { return true }), "network", nil},
		{"a slow network", 0, false, nil, slower(func(judgetest.Packet) bool { return true }), "network", nil},
		{"a dead node", 0, false, loses(1, at), nil, "node worker-2", nil},
		{"a node that loses more", 0, true, loses(.5, at), nil, "node worker-2", directions},
		{"a node that loses half", 0, false, loses(.5, at), nil, "node worker-2", directions},
		{"a dead pair", 0, false, loses(1, pair), nil, "pair worker-1 -> worker-2", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			for seed := range judgetest.Iterations(8, 200) {
				n := judgetest.NewMesh(seed, 3, 0, 0, []checkup.TransportProbe{
					{Transport: checkup.UDP, Probe: checkup.Probe{Sizes: []int{64}, Count: 20}},
				})
				n.Worksheet.IPFamilies = checkup.IPFamilies[:1+seed%2]
				if test.families > 0 {
					n.Worksheet.IPFamilies = checkup.IPFamilies[:test.families]
				}
				n.Worksheet.Expect.Loss.Max = new(checkup.Percent(1))
				n.Worksheet.Expect.Latency.P50 = new(checkup.Duration(10 * time.Millisecond))
				if test.regression { // within all limits
					n.Worksheet.Expect.Loss.Max = new(checkup.Percent(100))
					n.Worksheet.Expect.Latency.P50 = nil
				}
				n.Drop, n.Delay = test.drop, test.delay
				j := judge.Pairs(n.Worksheet, n.Roster, n.Measure(), judge.Rules{})
				found := Explain(j).Findings()
				if test.regression {
					found = ExplainChange(j, worse(j))
				}
				want := slices.Clone(test.or)
				if test.drop != nil && len(found) == 1 {
					want = slices.DeleteFunc(want, func(or string) bool { return !slices.Contains(found[0].Alternatives, or) })
				}
				sorted := cmpopts.SortSlices(strings.Compare)
				if len(found) != 1 || judgetest.Kind(found[0]) != test.want ||
					!cmp.Equal(found[0].Alternatives, want, sorted, cmpopts.EquateEmpty()) {
					t.Fatalf("seed %d: want %s or %s; got%s", seed, test.want, strings.Join(test.or, "; "), judgetest.Show(found))
				}
			}
		})
	}
}

// worse is what a simulated judgement shows of a network that took less than 10ms and lost nothing before.
func worse(j *judge.Judgement) *Difference {
	of := func([]int) *checkup.Change { return &checkup.Change{Limit: checkup.LimitP50} }
	d := &Difference{Class: judge.Slow, Of: of}
	for i := range j.Outcomes {
		o := &j.Outcomes[i]
		slow := judge.Quantile(slices.Sorted(slices.Values(o.RTTs)), 0.5) > 10_000
		if o.Received < o.Sent {
			d.Class = judge.Lost
		}
		d.Changed = append(d.Changed, slow || o.Received < o.Sent)
	}
	return d
}
