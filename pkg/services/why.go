// SPDX-License-Identifier: Apache-2.0

package services

import (
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/nodestate"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// why returns how nodes choose among the endpoints of an address, by one node of each of the first zones; nil if they
// use all ready endpoints. Agents connect from inside the cluster, to which only the policy of the cluster IP applies.
func (s *states) why(a *address, nodes []cluster.Node) []servicecheck.Chosen {
	namespace, name, _ := strings.Cut(a.service, "/")
	var all []servicecheck.Chosen
	for _, n := range nodes {
		choice, ok := s.all.Choice(n.Name, namespace, name, nodestate.IPFamily(a.family), a.port, nodestate.TCP)
		if !ok {
			continue
		}
		choice.ExternalToLocal = false
		if choice.InternalToLocal = choice.InternalToLocal && a.kind == ClusterIP; choice.InternalToLocal {
			choice.Hints, choice.Hinted = nodestate.NoHints, 0
		}
		is := servicecheck.Chosen{Choice: choice}
		if choice.Hints != nodestate.NoHints {
			is.Node, is.Zone = n.Name, zoneOf(n)
		}
		if len(servicecheck.Why([]servicecheck.Chosen{is})) > 0 && !slices.Contains(all, is) {
			all = append(all, is)
		}
	}
	return all
}

// examples returns the first node of each of the first zones.
func examples(nodes []cluster.Node) []cluster.Node {
	var some []cluster.Node
	for _, n := range nodes {
		same := func(m cluster.Node) bool { return zoneOf(m) == zoneOf(n) }
		if len(some) < servicecheck.MostHints && !slices.ContainsFunc(some, same) {
			some = append(some, n)
		}
	}
	return some
}
