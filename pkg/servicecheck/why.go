// SPDX-License-Identifier: Apache-2.0

package servicecheck

import (
	"fmt"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/nodestate"
)

// Chosen is how nodes choose among the endpoints of a Service's port.
type Chosen struct {
	// Node is one that chooses so, and Zone its zone. Both are empty if all nodes do.
	Node string `json:"node,omitempty"`
	Zone string `json:"zone,omitempty"`
	nodestate.Choice
}

// MostHints is the most lines of Why about hints, and the most zones of which a worksheet has a Chosen.
const MostHints = 3

// Why returns what decides which endpoints of one Service nodes may use, each reason once, one line each: policies,
// hints, and that no endpoint is ready. It is nil if nodes use all ready endpoints.
func Why(chosen []Chosen) []string {
	var policies, hints, ready []string
	add := func(lines *[]string, format string, args ...any) {
		if line := fmt.Sprintf(format, args...); !slices.Contains(*lines, line) {
			*lines = append(*lines, line)
		}
	}
	for _, c := range chosen {
		if c.InternalToLocal {
			add(&policies, "internalTrafficPolicy is Local: only endpoints on the node itself serve the cluster IP")
		}
		if c.ExternalToLocal {
			add(&policies, "externalTrafficPolicy is Local: only endpoints on the node itself serve what comes from outside")
		}
		switch {
		case c.Hinted == c.Ready: // nothing is narrowed
		case c.Hints == nodestate.ZoneHints:
			add(&hints, "topology hints keep %d of %s to %s", c.Hinted, checkup.Count(c.Ready, "endpoint"), c.Zone)
		case c.Hints == nodestate.NodeHints:
			add(&hints, "topology hints keep %d of %s to node %s", c.Hinted, checkup.Count(c.Ready, "endpoint"), c.Node)
		}
		switch {
		case c.Ready > 0:
		case c.Terminating == 0:
			add(&ready, "no endpoint is ready")
		case c.Terminating == 1:
			add(&ready, "no endpoint is ready; 1 terminating serves")
		default:
			add(&ready, "no endpoint is ready; %d terminating serve", c.Terminating)
		}
	}
	slices.Sort(policies)
	if len(hints) > MostHints {
		hints = append(hints[:MostHints], "topology hints decide elsewhere, too")
	}
	return slices.Concat(policies, hints, ready)
}
