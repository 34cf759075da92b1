// SPDX-License-Identifier: Apache-2.0

//go:build !race

// A Writer starts no goroutine, and the race detector makes this test take four times as long: it runs without it.

package write

import (
	"strings"
	"testing"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/iptables"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy/proxytest"
	"github.com/checkplan/checkplan/pkg/dataplane/want"
)

// TestManyRules: a node with more than 20,000 rules is read and compared, and one endpoint that is missing is found.
func TestManyRules(t *testing.T) {
	w, all := fakes()
	step := proxytest.Many(1_000, 10_000)
	write(t, w, step.Items...)
	save := all[dataplane.IPv4].save()
	if n := strings.Count(save, "\n-A "); n < 20_000 {
		t.Fatalf("%d rules, want 20,000 or more", n)
	}
	wanted := want.Table(step.State, dataplane.IPv4, dataplane.IPTables)
	compare := func(save string) []dataplane.Difference {
		have, ok := iptables.ParseSave(save, dataplane.IPv4)
		if !ok || len(have.Unknown) > 0 {
			t.Fatalf("read %v, not understood: %q", ok, have.Unknown)
		}
		return dataplane.Compare(wanted, have)
	}
	if differences := compare(save); len(differences) > 0 {
		t.Errorf("%d differences, such as %+v", len(differences), differences[0])
	}
	before, rest, _ := strings.Cut(save, " -j DNAT --to-destination ")
	endpoint, after, _ := strings.Cut(rest, "\n")
	differences := compare(before[:strings.LastIndex(before, "\n")+1] + after)
	if len(differences) != 1 || differences[0].Endpoint.String() != endpoint {
		t.Errorf("without the rule of %s: %+v", endpoint, differences)
	}
}
