// SPDX-License-Identifier: Apache-2.0

//go:build !race

// A Writer starts no goroutine, and the race detector makes these tests take four times as long: they run without it.

package write

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/knftables"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/nftables"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy/proxytest"
	"github.com/checkplan/checkplan/pkg/dataplane/want"
)

// TestManyRules: a node with more than 20,000 rules is read and compared, and one endpoint that is missing is found.
func TestManyRules(t *testing.T) {
	w, all := fakes()
	step := proxytest.Many(1_200, 12_000)
	write(t, w, step.Items...)
	fake := all[dataplane.IPv4]
	rules, damaged := 0, ""
	for _, name := range slices.Sorted(maps.Keys(fake.Table.Chains)) {
		rules += len(fake.Table.Chains[name].Rules)
		if damaged == "" && strings.HasPrefix(name, "endpoint-") {
			damaged = name
		}
	}
	if rules < 20_000 {
		t.Fatalf("%d rules, want 20,000 or more", rules)
	}
	wanted := want.Table(step.State, dataplane.IPv4, dataplane.NFTables)
	if differences := dataplane.Compare(wanted, tableOf(t, fake, dataplane.IPv4)); len(differences) > 0 {
		t.Errorf("%d differences, such as %+v", len(differences), differences[0])
	}
	fake.Table.Chains[damaged].Rules = nil
	differences := dataplane.Compare(wanted, tableOf(t, fake, dataplane.IPv4))
	if len(differences) != 1 ||
		!strings.HasSuffix(damaged, "__"+strings.ReplaceAll(differences[0].Endpoint.String(), ":", "/")) {
		t.Errorf("without the rules of %s: %+v", damaged, differences)
	}
}

// TestManyMaps: many chains with maps are added before anything leads to them, a part at a time. What packets meet changes
// in the last transaction only, and there is as it would be after one.
func TestManyMaps(t *testing.T) {
	const parts = 3
	many := proxytest.Large(parts*mapsAtOnce, 10*parts*mapsAtOnce)
	for _, before := range []string{"nothing", "a state", "a predecessor"} {
		t.Run(before, func(t *testing.T) {
			w, r := recording()
			if before != "nothing" {
				write(t, w, service("web"))
			}
			if before == "a predecessor" {
				w.tables[0].have = nil
			}
			n := len(r.transactions)
			write(t, w, many...)
			if got := len(r.transactions) - n; got < 2+parts-1 || got > 2+parts {
				t.Fatalf("%d transactions", got)
			}
			for i, text := range r.transactions[n:] {
				last := i == len(r.transactions)-n-1
				if maps := strings.Count(text, " vmap { "); maps > mapsAtOnce {
					t.Errorf("transaction %d has %d maps", i, maps)
				}
				for line := range strings.Lines(text) {
					words := strings.Fields(line)
					if kind := words[0] + " " + words[1]; !last && (kind == "add element" || kind == "delete element" || strings.HasPrefix(kind, "flush") ||
						kind == "delete table" && before != "nothing" || strings.Contains(line, " type filter ") || strings.Contains(line, " type nat ")) {
						t.Fatalf("transaction %d, which is not the last one: %s", i, line)
					}
				}
			}
			w.later()
			if more, err := w.Tidy(t.Context()); more || err != nil {
				t.Fatal(more, err)
			}
			fresh := knftables.NewFake(knftables.IPv4Family, nftables.OwnName)
			tx := fresh.NewTransaction()
			Render(proxy.Check(many), proxytest.Node(), dataplane.IPv4).Replace(tx)
			if err := fresh.Run(t.Context(), tx); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(contents(fresh), contents(r.Fake), sortLines); diff != "" {
				t.Errorf("(-want +got)\n%.2000s", diff)
			}
		})
	}
}
