// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Of four nodes, two are in a rack such that every pair of a small sample goes into it or out of it. If the rack is cut
// off from the other two nodes, all pairs fail, as if the whole network did. The second look also measures pairs within
// the rack, or beside it, and the only finding is the rack.
func TestRack(t *testing.T) {
	const few, rack = "racks.e2e/few", "racks.e2e/rack"
	label := func(nodes []string, labels ...string) {
		sandbox(t, slices.Concat([]string{"kubectl", "label", "--overwrite", "node"}, nodes, labels)...)
	}
	all := []string{"control-plane", "worker-1", "worker-2", "worker-3"}
	t.Cleanup(func() { label(all, few+"-", rack+"-") })
	label(all, few+"=yes", rack+"-")
	explain := start(t, "explain", plans, "--plan", "racks", "--output", "json")
	if code := explain.wait(t); code != 0 {
		t.Fatalf("explain: exit code %d, want 0: %s", code, explain.stderr.String())
	}
	var explained struct {
		Checks []struct{ Worksheet checkup.Worksheet }
	}
	if err := json.Unmarshal(explain.stdout.Bytes(), &explained); err != nil {
		t.Fatal(err)
	}
	w := explained.Checks[0].Worksheet
	side := map[string]int{} // 1 in the rack, -1 beside it
	for _, node := range all {
		side[node] = cmp.Or(side[node], 1)
		for range all {
			for s, targets := range w.Assignments {
				for _, target := range targets {
					a, b := w.Sources[s].Node, w.Targets[target].Node
					side[a] = cmp.Or(side[a], -side[b])
					side[b] = cmp.Or(side[b], -side[a])
					if side[a] != 0 && side[a] == side[b] {
						t.Fatalf("another plan name or seed is needed: a pair within the rack or beside it: %v", w.Assignments)
					}
				}
			}
		}
	}
	in := slices.DeleteFunc(slices.Clone(all), func(node string) bool { return side[node] < 0 })
	out := slices.DeleteFunc(slices.Clone(all), func(node string) bool { return side[node] > 0 })
	if len(in) != 2 || len(out) != 2 {
		t.Fatalf("racks of %v and %v, want two nodes each: %v", in, out, w.Assignments)
	}
	label(in, rack+"=r1")
	for _, x := range in {
		for _, y := range out {
			fault(t, "drop", "--from", x, "--to", y)
			fault(t, "drop", "--from", y, "--to", x)
		}
	}
	r := runPlan(t, "racks", 3)
	found := findings(r)
	if r.Counts.Fail != r.Counts.Expected || len(found) != 1 || found[0].String() != "nodes rack r1" ||
		found[0].Confirmation != checkup.Confirmed || len(found[0].Alternatives) > 0 ||
		!strings.Contains(strings.Join(found[0].For, "\n"), "ruled out by the second look: network") {
		t.Errorf("want one finding, rack r1, confirmed, with the network ruled out by the second look:\n%s", describe(t, r))
	}
	checkResults(t, r)
	nothingLeft(t)
}
