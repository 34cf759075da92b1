// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Node is what a history knows of a node: a node that was deleted and created again has another UID.
type Node struct {
	Name string `json:"n"`
	// UID is a short digest of the UID in the newest run that knew it.
	UID string `json:"u"`
	// Epoch is how often another UID came.
	Epoch int `json:"e,omitempty"`
}

// uidsOf returns digests of the UIDs of the nodes of a worksheet, by name; nil if it has none.
func uidsOf(w *checkup.Worksheet) map[string]string {
	var uids map[string]string
	for _, endpoints := range [][]checkup.Endpoint{w.Sources, w.Targets} {
		for i := range endpoints {
			if e := &endpoints[i]; e.Node != "" && e.NodeUID != "" {
				if uids == nil {
					uids = map[string]string{}
				}
				uids[e.Node] = fmt.Sprintf("%08x", uint32(checkup.HashString(0, e.NodeUID)))
			}
		}
	}
	return uids
}

// joinNodes adds the nodes of a run. A node that is not known begins at epoch 0, in a history of an older version too.
// Of more than maxMembers, only those of the run stay.
func joinNodes(nodes []Node, uids map[string]string) []Node {
	known := make(map[string]Node, len(nodes))
	for _, n := range nodes {
		known[n.Name] = n
	}
	changed := false
	for name, uid := range uids {
		n, ok := known[name]
		if ok && n.UID == uid {
			continue
		}
		if ok {
			n.Epoch++
		}
		n.Name, n.UID, changed = name, uid, true
		known[name] = n
	}
	if !changed {
		return nodes
	}
	all := make([]Node, 0, len(known))
	for name, n := range known {
		if _, ok := uids[name]; ok || len(known) <= maxMembers {
			all = append(all, n)
		}
	}
	slices.SortFunc(all, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// at returns the pairs with their members in the epochs of their nodes.
func (p *Pairs) at(nodes []Node) *Pairs {
	epochs := map[string]int{}
	for _, n := range nodes {
		if n.Epoch > 0 {
			epochs[n.Name] = n.Epoch
		}
	}
	of := func(members []Member) []Member {
		if len(epochs) == 0 {
			return members
		}
		members = slices.Clone(members)
		for i := range members {
			members[i].Epoch = epochs[members[i].node()]
		}
		return members
	}
	dated := *p
	dated.Sources, dated.Targets, dated.uids = of(p.Sources), of(p.Targets), nil
	return &dated
}
