// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"cmp"
	"fmt"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// siteKind is a sort of place, in the order in which places that explain the same are preferred.
type siteKind int8

const (
	oneWayPair siteKind = iota
	bothWaysPair
	nodeIn
	nodeOut
	nodeBoth
	oneWayZones
	bothWaysZones
	wholeNetwork
)

// site is a place that flows go through. a and b are nodes or zones; for both ways, in alphabetical order.
type site struct {
	kind siteKind
	a, b string
}

// counterpart is the same place in the other direction; itself if it has no direction.
func (s site) counterpart() site {
	switch s.kind {
	case nodeIn:
		return site{nodeOut, s.a, ""}
	case nodeOut:
		return site{nodeIn, s.a, ""}
	case oneWayPair, oneWayZones:
		return site{s.kind, s.b, s.a}
	default:
		return s
	}
}

// bothWays is the same place in both directions.
func (s site) bothWays() site {
	switch s.kind {
	case nodeIn, nodeOut:
		return site{nodeBoth, s.a, ""}
	case oneWayPair, oneWayZones:
		return site{s.kind + 1, min(s.a, s.b), max(s.a, s.b)}
	default:
		return s
	}
}

// isPair reports whether a place is one link of two nodes.
func (s site) isPair() bool { return s.kind == oneWayPair || s.kind == bothWaysPair }

// subject names a place in a finding.
func (s site) subject() string {
	switch s.kind {
	case nodeIn:
		return "into " + s.a
	case nodeOut:
		return "out of " + s.a
	case nodeBoth:
		return s.a
	case oneWayPair, oneWayZones:
		return s.a + " -> " + s.b
	case bothWaysPair, bothWaysZones:
		return s.a + " <-> " + s.b
	default:
		return "network"
	}
}

// nodes are those of the place; nil for zones and the network.
func (s site) nodes() []string {
	switch s.kind {
	case nodeIn, nodeOut, nodeBoth:
		return []string{s.a}
	case oneWayPair, bothWaysPair:
		return []string{s.a, s.b}
	default:
		return nil
	}
}

// String is the place in words.
func (s site) String() string {
	zone := ""
	if s.kind == oneWayZones || s.kind == bothWaysZones {
		zone = "zone "
	}
	switch s.kind {
	case nodeIn:
		return "into the pods of " + s.a
	case nodeOut:
		return "out of the pods of " + s.a
	case nodeBoth:
		return "into and out of the pods of " + s.a
	case oneWayPair, oneWayZones:
		if s.a == s.b {
			return "within " + zone + s.a
		}
		return fmt.Sprintf("from %s%s to %s%s", zone, s.a, zone, s.b)
	case bothWaysPair, bothWaysZones:
		if s.a == s.b {
			return "within " + zone + s.a
		}
		return fmt.Sprintf("between %s%s and %s%s", zone, s.a, zone, s.b)
	default:
		return "in the whole network"
	}
}

// sites are the places that packets from one endpoint to another go through, besides the network.
func sites(from, to checkup.Endpoint) []site {
	all := []site{
		{oneWayPair, from.Node, to.Node}, {bothWaysPair, min(from.Node, to.Node), max(from.Node, to.Node)},
		{nodeOut, from.Node, ""}, {nodeIn, to.Node, ""}, {nodeBoth, from.Node, ""},
	}
	if from.Node != to.Node {
		all = append(all, site{nodeBoth, to.Node, ""})
	}
	if from.Zone != "" && to.Zone != "" {
		all = append(
			all,
			site{oneWayZones, from.Zone, to.Zone},
			site{bothWaysZones, min(from.Zone, to.Zone), max(from.Zone, to.Zone)},
		)
	}
	return all
}

// carries reports whether packets from one endpoint to another go through a place.
func (s site) carries(from, to checkup.Endpoint) bool {
	a, b := from.Node, to.Node
	if s.kind == oneWayZones || s.kind == bothWaysZones {
		a, b = from.Zone, to.Zone
	}
	switch s.kind {
	case nodeIn:
		return b == s.a
	case nodeOut:
		return a == s.a
	case nodeBoth:
		return a == s.a || b == s.a
	case oneWayPair, oneWayZones:
		return a == s.a && b == s.b
	case bothWaysPair, bothWaysZones:
		return a == s.a && b == s.b || a == s.b && b == s.a
	default:
		return true
	}
}

func compareSites(s, t site) int {
	return cmp.Or(cmp.Compare(s.kind, t.kind), cmp.Compare(s.a, t.a), cmp.Compare(s.b, t.b))
}
