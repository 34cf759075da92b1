// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"slices"
	"strings"
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// TestConcerned: findings have the nodes that their place is about, and none of a zone, a label or the network.
func TestConcerned(t *testing.T) {
	many := strings.Split("abcdefghijkl", "")
	for name, tt := range map[string]struct {
		place *place
		want  []string
	}{
		"node":            {&place{cause: checkup.CauseNodeIngress, subject: "a"}, []string{"a"}},
		"pair":            {between(checkup.CausePair, "a", "b"), []string{"a", "b"}},
		"target on node":  {&place{cause: checkup.CauseTarget, subject: "web", node: "a"}, []string{"a"}},
		"target off node": {&place{cause: checkup.CauseTarget, subject: "web"}, nil},
		"rack":            {&place{cause: checkup.CauseNodes, subject: "a, b, c", names: many[:3]}, []string{"a", "b", "c"}},
		"large rack":      {&place{cause: checkup.CauseNodes, subject: "a, b", names: many}, many[:maxNames]},
		"zone":            {&place{cause: checkup.CauseNodes, subject: "zone a", zone: true, names: many[:3]}, nil},
		"label":           {&place{cause: checkup.CauseNodes, subject: "rack a", label: true}, nil},
		"zones":           {between(checkup.CauseZones, "a", "b"), nil},
		"network":         {&place{cause: checkup.CauseNetwork}, nil},
	} {
		var f checkup.Finding
		f.Concerns(tt.place.concerned()...)
		f.Concerns(tt.place.concerned()...)
		if !slices.Equal(f.Nodes, tt.want) {
			t.Errorf("%s: nodes %q, want %q", name, f.Nodes, tt.want)
		}
	}
	var f checkup.Finding
	for _, s := range []site{{nodeIn, "a", ""}, {bothWaysPair, "b", "c"}, {oneWayZones, "d", "e"}, {kind: wholeNetwork}} {
		f.Concerns(s.nodes()...)
	}
	if want := []string{"a", "b", "c"}; !slices.Equal(f.Nodes, want) {
		t.Errorf("nodes of sites %q, want %q", f.Nodes, want)
	}
}
