// SPDX-License-Identifier: Apache-2.0

package nodestate

import "slices"

// View is the state of one node, kept up to date: a change of the cluster costs the work for the Services that it is
// about.
type View struct {
	cluster *Cluster
	node    string
	items   []*ServiceEndpoints // in the order of their keys
	rev     uint64
}

// View returns the state of a node that follows the cluster's changes until Close. It begins at revision 1, so that 0
// can mean "none seen yet".
func (c *Cluster) View(node string) *View {
	v := &View{cluster: c, node: node, items: c.State(node), rev: 1}
	c.views = append(c.views, v)
	return v
}

// Close ends the view: it no longer follows the cluster.
func (v *View) Close() {
	v.cluster.views = slices.DeleteFunc(v.cluster.views, func(other *View) bool { return other == v })
}

// Rev is the number of different states since the view was made. A change of the cluster that does not alter the
// node's result does not alter Rev.
func (v *View) Rev() uint64 { return v.rev }

// State returns the messages in the order of namespace and name. The list is the caller's; the messages are not: they
// are replaced when they change, never written to.
func (v *View) State() []*ServiceEndpoints { return slices.Clone(v.items) }

// refresh computes one Service again.
func (v *View) refresh(s *service) {
	at, found := slices.BinarySearchFunc(v.items, &ServiceEndpoints{Namespace: s.key.Namespace, Name: s.key.Name}, byKey)
	switch message := v.cluster.serve(s, v.node); {
	case message == nil && !found, message != nil && found && message.Equal(v.items[at]):
		return
	case message == nil:
		v.items = slices.Delete(v.items, at, at+1)
	case found:
		v.items[at] = message
	default:
		v.items = slices.Insert(v.items, at, message)
	}
	v.rev++
}

// refreshAll computes all Services again, because their node changed. Those that are the same keep their messages.
func (v *View) refreshAll() {
	before := v.rev
	for _, s := range v.cluster.services {
		v.refresh(s)
	}
	if v.rev != before {
		v.rev = before + 1
	}
}
