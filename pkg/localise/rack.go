// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"fmt"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/stats"
)

// minRack is the lowest number of nodes that are named together.
const minRack = 3

// racks adds a place for each group of nodes that lose everything to and from other nodes,
// but nothing among each other. The nodes of a group are fewer than half of all: the others
// are cut off from them as much as they are from the others.
func (l *localiser) racks() {
	if l.class != judge.Lost {
		return
	}
	links := l.links()
	most, parity := links.starts()
	behind, wrong := links.sides(most)
	if other, n := links.sides(parity); n < wrong {
		behind = other
	}
	// Those behind something that reach one another are a group.
	group := make([]int, len(links))
	for x := range group {
		group[x] = -1
	}
	var groups [][]int32
	for x := range links {
		if !behind[x] || group[x] >= 0 {
			continue
		}
		nodes := []int32{int32(x)}
		group[x] = len(groups)
		for k := 0; k < len(nodes); k++ {
			for _, t := range links[nodes[k]] {
				if !t.dead && behind[t.to] && group[t.to] < 0 {
					group[t.to] = len(groups)
					nodes = append(nodes, t.to)
				}
			}
		}
		groups = append(groups, nodes)
	}
	taken := make([]bool, len(groups))
	for g, nodes := range groups {
		if len(nodes) < 2 || taken[g] {
			continue
		}
		// Others, of which no measurement shows that they are cut off from these.
		joined, with := slices.Clone(nodes), []int{}
		for o, others := range groups {
			apart := func(x int32) bool {
				return slices.ContainsFunc(links[x], func(t link) bool { return t.dead && slices.Contains(joined, t.to) })
			}
			if o != g && !taken[o] && !slices.ContainsFunc(others, apart) {
				joined, with = append(joined, others...), append(with, o)
			}
		}
		if links.linked(joined) {
			nodes = joined
			for _, o := range with {
				taken[o] = true
			}
		}
		if len(nodes) >= minRack && 2*len(nodes) < len(l.nodes) {
			slices.Sort(nodes)
			l.addRack(nodes)
		}
	}
}

// link is that of a node to another. It is dead if no pair of the two passes, either way.
type link struct {
	to   int32
	dead bool
}

// graph has the links of each node.
type graph [][]link

func (l *localiser) links() graph {
	type two struct{ a, b int32 }
	dead := map[two]bool{}
	var order []two
	for i := range l.ways {
		w := &l.ways[i]
		k := two{min(w.a, w.b), max(w.a, w.b)}
		before, known := dead[k]
		dead[k] = w.left == int(w.end-w.from) && (before || !known)
		if !known {
			order = append(order, k)
		}
	}
	g := make(graph, len(l.nodes))
	for _, k := range order {
		g[k.a] = append(g[k.a], link{k.b, dead[k]})
		g[k.b] = append(g[k.b], link{k.a, dead[k]})
	}
	return g
}

// linked reports whether so many nodes have no fewer links among each other than chance lets a sample have. Where nodes
// are cut off one by one, those that the sample does not link look like a group that no dead link divides.
func (g graph) linked(nodes []int32) bool {
	in := make([]bool, len(g))
	for _, x := range nodes {
		in[x] = true
	}
	all, within := 0, 0 // counted at both ends
	for x := range g {
		for _, t := range g[x] {
			all++
			if in[x] && in[t.to] {
				within++
			}
		}
	}
	n, k := float64(len(g)), float64(len(nodes))
	return 1-stats.AtLeast(within/2+1, all/2, k*(k-1)/(n*(n-1))) > Doubt
}

// starts are two guesses which nodes are behind something: those with more dead links than
// others; and those from which an odd number of dead links leads to the node with the fewest.
func (g graph) starts() (most, parity []bool) {
	most, parity = make([]bool, len(g)), make([]bool, len(g))
	first, fewest := int32(0), len(g)
	for x := range g {
		dead := 0
		for _, t := range g[x] {
			if t.dead {
				dead++
			}
		}
		most[x] = 2*dead > len(g[x])
		if len(g[x]) > 0 && dead < fewest {
			first, fewest = int32(x), dead
		}
	}
	seen, queue := make([]bool, len(g)), []int32{first}
	seen[first] = true
	for k := 0; k < len(queue); k++ {
		for _, t := range g[queue[k]] {
			if !seen[t.to] {
				seen[t.to], parity[t.to] = true, parity[queue[k]] != t.dead
				queue = append(queue, t.to)
			}
		}
	}
	return most, parity
}

// sides moves single nodes to the other side until no move makes more links right: dead
// between the sides, alive within them. It returns the number of links that are wrong in the end.
func (g graph) sides(behind []bool) (sides []bool, wrong int) {
	for range g { // mostly two or three times
		moved := false
		wrong = 0
		for x := range g {
			bad := 0
			for _, t := range g[x] {
				if t.dead != (behind[x] != behind[t.to]) {
					bad++
				}
			}
			if 2*bad > len(g[x]) {
				behind[x], moved = !behind[x], true
				bad = len(g[x]) - bad
			}
			wrong += bad
		}
		if !moved {
			break
		}
	}
	return behind, wrong
}

// addRack adds the place of all ways between the nodes and others.
func (l *localiser) addRack(nodes []int32) {
	p := &place{cause: checkup.CauseNodes, nodes: nodes}
	p.subject, p.zone = l.together(nodes)
	if slices.ContainsFunc(l.places, func(q *place) bool { return q.cause == p.cause && slices.Equal(q.nodes, nodes) }) {
		return // its label names it
	}
	in := make([]bool, len(l.nodes))
	for _, x := range nodes {
		in[x] = true
		p.names = append(p.names, l.nodes[x])
	}
	slices.Sort(p.names)
	for i := range l.ways {
		if w := &l.ways[i]; in[w.a] != in[w.b] {
			p.there = append(p.there, int32(i))
		}
	}
	l.add(p)
}

// maxNames is how many nodes are named in one finding.
const maxNames = 10

// together names several nodes: by their zone, if they are all of its nodes, otherwise by their names.
func (l *localiser) together(nodes []int32) (subject string, zone bool) {
	zones := map[string]string{} // by node
	for _, list := range [][]checkup.Endpoint{l.w.Sources, l.w.Targets} {
		for _, e := range list {
			zones[e.Node] = e.Zone
		}
	}
	of := zones[l.nodes[nodes[0]]]
	all := 0
	for _, x := range l.nodes {
		if zones[x] == of {
			all++
		}
	}
	other := func(x int32) bool { return zones[l.nodes[x]] != of }
	if of != "" && all == len(nodes) && !slices.ContainsFunc(nodes, other) {
		return "zone " + of, true
	}
	var names []string
	for _, x := range nodes {
		names = append(names, l.nodes[x])
	}
	slices.Sort(names)
	if more := len(names) - maxNames; more > 0 {
		names = append(names[:maxNames], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", "), false
}
