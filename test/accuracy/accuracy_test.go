// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// find returns a scenario and a noise by their names.
func find(t *testing.T, nodes, degree int, name, with string) setting {
	t.Helper()
	s, n := -1, -1
	for i := range scenarios {
		if scenarios[i].name == name {
			s = i
		}
	}
	for i := range noises {
		if noises[i].name == with {
			n = i
		}
	}
	if s < 0 || n < 0 {
		t.Fatalf("no case %q or noise %q", name, with)
	}
	return setting{scenarios[s], noises[n], nodes, degree}
}

// TestTable is a small part of the table: a dead node is always found, a clean network with losses below the limit
// passes, and no published algorithm is better over all of these runs.
func TestTable(t *testing.T) {
	var ours score
	best := make([]score, len(algorithms))
	for _, row := range []struct {
		nodes, degree int
		name, noise   string
		seeds         uint64
		always        bool // every run has the right verdict and exactly the right findings
	}{
		{12, 5, "clean", "none", 1, true},
		{12, 5, "clean", "0.1%", 5, true},
		{50, 5, "clean", "0.1%", 2, true},
		{12, 5, "node in", "0.1%", 4, true},
		{50, 5, "node in", "none", 1, true},
		{50, 5, "node in", "0.1%", 1, true},
		{12, 5, "node out", "none", 2, true},
		{12, 5, "node both", "0.1%", 2, true},
		{12, 5, "blip", "none", 1, true},
		{12, 10, "1.5% into a node", "0.5%", 4, true}, // 2% into it, and 1.3% of what goes in or out
		{12, 5, "one pair", "0.1%", 2, false},
		{12, 10, "zones both ways", "none", 1, false},
		{12, 5, "udp into a node", "0.1%", 2, false},
		{12, 5, "IPv6 at a node", "0.1%", 2, false},
		{12, 5, "MTU everywhere", "0.1%", 2, false},
		{50, 5, "20% into a node", "0.1%", 1, false},
		{50, 5, "two faults", "none", 2, false},
		{12, 10, "two faults", "0.1%", 5, true}, // from a node without udp to one that loses a fifth
		{50, 5, "rack", "0.1%", 1, false},
		{12, 5, "labelled rack", "0.1%", 2, true},
		{12, 5, "into a labelled rack", "0.1%", 2, true},
		{50, 10, "rack to rack", "0.1%", 1, true},
		{50, 10, "one of eight paths", "0.5%", 3, true}, // a pair has a dead flow, and one that lost a packet
	} {
		s := find(t, row.nodes, row.degree, row.name, row.noise)
		c, err := s.measure(row.seeds)
		if err != nil {
			t.Fatal(err)
		}
		for seed, wrong := range c.Wrong {
			if row.always {
				t.Errorf("%s, noise %s, %d nodes, seed %d: %s", row.name, row.noise, row.nodes, seed, wrong)
			}
		}
		ours.add(c.Ours)
		for i := range algorithms {
			best[i].add(c.Baselines[i])
		}
	}
	t.Logf("ours: %s", ours.both(ours.Exact))
	for i, a := range algorithms {
		t.Logf("%s: %s", a.name, best[i].both(best[i].Exact))
		if best[i].f1() > ours.f1() {
			t.Errorf("%s is better: %s; ours %s", a.name, best[i].both(best[i].Exact), ours.both(ours.Exact))
		}
	}
}

// TestDeadPathsAgain: agents of the second look have other addresses, so other flows take the dead path, of ICMP too. Its
// losses are no second finding. Without this, each of these seeds had one, with ICMP only.
func TestDeadPathsAgain(t *testing.T) {
	for _, seed := range []uint64{5, 11, 17, 179} {
		run, err := find(t, 50, 5, "one of eight paths", "0.5%").run(seed)
		if err != nil {
			t.Fatal(err)
		}
		if got := grade(run.causes, standing(run.report.Findings)); got != (score{1, 1, 1, 1}) {
			t.Errorf("seed %d: %+v", seed, run.report.Findings)
		}
	}
}

// TestMeasure checks the simulated packets.
func TestMeasure(t *testing.T) {
	s := find(t, 12, 3, "clean", "none")
	run := func(f fault, n noise) *checkup.Record {
		network, _, _, err := s.simulate(1)
		if err != nil {
			t.Fatal(err)
		}
		network.fault, network.noise = f, n
		return network.measure(network.w)
	}
	into := func(x int) func(packet) bool { return func(p packet) bool { return p.to == x } }

	for _, o := range run(losing(1, "", into(3)), noise{}).Observations {
		if dead := o.Source == 3 || o.Target == 3; (o.Received == 0) != dead || (o.Failure != nil) != dead {
			t.Errorf("node 3 receives nothing: %+v", o)
		}
	}
	r := run(losing(1, "", into(3)), noise{})
	for _, x := range r.Receptions {
		if x.Target == 3 || x.Packets != 20 {
			t.Errorf("node 3 receives nothing, others all: %+v", x)
		}
	}
	if len(r.Counted) != 12 || len(r.Sources) != 12 {
		t.Errorf("%d targets counted, %d sources", len(r.Counted), len(r.Sources))
	}
	for _, o := range run(losing(0.5, "", into(3)), noise{}).Observations {
		for _, rtt := range o.RTTs {
			late := time.Duration(rtt)*time.Microsecond > time.Second
			if late && (o.Transport != checkup.TCP || o.Source != 3 && o.Target != 3) {
				t.Errorf("only a lost SYN is late: %+v", o)
			}
		}
		sent, received := 0, 0
		for _, f := range o.Flows {
			sent, received = sent+f.Sent, received+f.Received
		}
		if len(o.Flows) > 0 && (sent != o.Sent || received != o.Received || o.Transport == checkup.UDP && len(o.Flows) != 4) {
			t.Errorf("flows of %+v", o)
		}
	}
	lost, sent := 0, 0
	for _, o := range run(fault{}, noise{loss: 0.005}).Observations {
		if o.Transport != checkup.TCP {
			lost, sent = lost+o.Sent-o.Received, sent+o.Sent
		}
	}
	if want := 0.01 * float64(sent); math.Abs(float64(lost)-want) > 5*math.Sqrt(want) {
		t.Errorf("0.5%% lost on each way: %d of %d round trips", lost, sent)
	}
	if a, b := run(fault{}, noises[4]), run(fault{}, noises[4]); !reflect.DeepEqual(a, b) {
		t.Error("two runs with the same seed differ")
	}
}

// TestPaths: of eight equal paths, each has an eighth of the flows, and an agent of another look has others.
func TestPaths(t *testing.T) {
	hits, moved := make([]int, 8), 0
	for i := range 80_000 {
		p := packet{from: i % 40, to: i % 41, port: 32768 + i, transport: checkup.UDP, family: checkup.IPv6, answer: i%2 == 0}
		again := p
		again.look = 1
		hits[pathOf(p, 7)%8]++
		if pathOf(p, 7)%8 != pathOf(again, 7)%8 {
			moved++
		}
	}
	if moved < 69_000 || moved > 71_000 {
		t.Errorf("%d of 80000 flows have another path in another look, want seven of eight", moved)
	}
	for path, n := range hits {
		if n < 9_500 || n > 10_500 {
			t.Errorf("path %d has %d of 80000 flows", path, n)
		}
	}
}

// TestGrade checks the score of findings.
func TestGrade(t *testing.T) {
	for _, test := range []struct {
		name   string
		causes []string
		found  []checkup.Finding
		want   score
	}{
		{"nothing wrong, nothing found", nil, nil, score{}},
		{"exactly that", []string{"node a"}, []checkup.Finding{{Cause: checkup.CauseNode, Subject: "a"}}, score{1, 1, 1, 1}},
		{"narrowed is another", []string{"node a"}, []checkup.Finding{{Cause: checkup.CauseNode, Subject: "a", Transport: checkup.UDP}}, score{1, 1, 0, 0}},
		{"narrowed twice", []string{"pair a -> b (IPv6, payloads from 9 bytes only)"},
			[]checkup.Finding{{Cause: checkup.CausePair, Subject: "a -> b", Family: checkup.IPv6, FromSize: 9}}, score{1, 1, 1, 1}},
		{"among alternatives", []string{"node a"}, []checkup.Finding{{Cause: checkup.CauseNodeIngress, Subject: "a", Alternatives: []string{"node a"}}}, score{1, 1, 0, 1}},
		{"one cause twice", []string{"node a"}, []checkup.Finding{{Cause: checkup.CauseNode, Subject: "a"}, {Cause: checkup.CauseNode, Subject: "a"}}, score{1, 2, 1, 1}},
		{"gone does not count", nil, []checkup.Finding{{Cause: checkup.CauseNode, Subject: "a", Confirmation: checkup.Gone}}, score{}},
		{"only counted", []string{"node a", "node b"}, []checkup.Finding{
			{Cause: checkup.CauseNode, Subject: "a"},
			{Cause: checkup.CauseNode, Subject: "3 more findings", Rest: []string{"node b", "nodeIngress c", "pair 4 pairs of nodes"}},
		}, score{2, 4, 2, 2}},
		{"nodes together", []string{"node a", "node b"}, []checkup.Finding{{Cause: checkup.CauseNodes, Subject: "b, a"}}, score{2, 2, 2, 2}},
		{"pairs that are joined", []string{"pair a -> b", "node c"}, []checkup.Finding{{Cause: checkup.CausePair, Subject: "5 pairs of nodes"}}, score{1, 0, 0, 0}},
		{"pairs that are joined, and none is broken", []string{"node c"}, []checkup.Finding{{Cause: checkup.CausePair, Subject: "5 pairs of nodes"}}, score{1, 1, 0, 0}},
		{"a size is no number of findings", []string{"size 1400"}, []checkup.Finding{{Cause: checkup.CauseSize, Subject: "1400"}}, score{1, 1, 1, 1}},
	} {
		if got := grade(test.causes, standing(test.found)); got != test.want {
			t.Errorf("%s: got %+v, want %+v", test.name, got, test.want)
		}
	}
}

// TestAlgorithms: the published algorithms find one dead node, zone boundary or family in a network without noise.
func TestAlgorithms(t *testing.T) {
	for _, name := range []string{
		"clean", "node in", "node out", "one pair", "zones one way", "IPv6 everywhere", "MTU everywhere",
	} {
		s := find(t, 12, 10, name, "none")
		n, record, _, err := s.simulate(3)
		if err != nil {
			t.Fatal(err)
		}
		o := observe(n.w, record)
		for _, a := range algorithms {
			var got []string
			for _, g := range a.find(o) {
				got = append(got, g.name)
			}
			if !slices.Equal(got, n.fault.causes) {
				t.Errorf("%s: %s names %v, want %v", name, a.name, got, n.fault.causes)
			}
		}
	}
}

// TestBelow: an algorithm is better beyond chance only if it is in enough runs, and more often than not; a few seeds show
// nothing.
func TestBelow(t *testing.T) {
	perfect, poor := score{1, 1, 1, 1}, score{1, 1, 0, 0}
	for _, test := range []struct {
		name          string
		ours, theirs  score // of each run in which they differ
		runs, against int   // runs in which the algorithm is better, and worse
		want          tally
	}{
		{"alike", perfect, perfect, 0, 0, tally{1, 0, 0}},
		{"ours is better", perfect, poor, 0, 50, tally{1, 0, 0}},
		{"better in a few", poor, perfect, 6, 0, tally{1, 1, 0}},
		{"better in many", poor, perfect, 20, 0, tally{1, 1, 1}},
		{"better as often as worse", poor, perfect, 21, 20, tally{1, 1, 0}},
	} {
		c := newCell()
		c.Ours.add(test.ours)
		c.Baselines[1].add(test.theirs)
		c.Baselines[0].add(poor)
		c.Baselines[2].add(poor)
		c.Duels[1] = duel{test.runs, test.against}
		var got tally
		text := got.compare(c, 650)
		if got != test.want || (text == "") != (got.below == 0) || strings.HasSuffix(text, "!") != (got.beyond == 1) {
			t.Errorf("%s: %+v, %q; want %+v", test.name, got, text, test.want)
		}
	}
	if got := (score{}).f1(); got != 1 {
		t.Errorf("nothing is broken and nothing found: %v, want 1", got)
	}
}

// TestKeep: a kept cell is not measured again, an unfinished line is, and a line that is no cell is an error.
func TestKeep(t *testing.T) {
	name := filepath.Join(t.TempDir(), "cells")
	s := find(t, 12, 3, "2% into a node", "0.1%")
	open := func() *kept {
		t.Helper()
		k, err := keep(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { k.file.Close() })
		return k
	}
	measure := func(k *kept, seeds uint64) *cell {
		t.Helper()
		c, err := k.measure(s, seeds)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := measure(open(), 2)
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, append(text, text[:len(text)/2]...), 0o600); err != nil {
		t.Fatal(err)
	}
	k := open()
	if len(k.cells) != 1 {
		t.Errorf("%d cells, want 1", len(k.cells))
	}
	if diff := cmp.Diff(first, measure(k, 2)); diff != "" {
		t.Errorf("the kept cell (-want +got):\n%s", diff)
	}
	if c := measure(k, 1); c.Runs != 1 {
		t.Errorf("%d runs, want 1: a cell of 2 seeds is another", c.Runs)
	}
	k.program = "another"
	measure(k, 2)
	if k = open(); len(k.cells) != 3 {
		t.Errorf("%d cells, want 3", len(k.cells))
	}

	if err := os.WriteFile(name, append(text, "{}\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := keep(name); err == nil || !strings.HasPrefix(err.Error(), name+":2: not a cell of this table") {
		t.Errorf("got %v", err)
	}
}
