// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
)

// narrow restricts a cause to some attributes; zero values do not restrict.
type narrow struct {
	family    checkup.IPFamily
	transport checkup.Transport
	fromSize  int
}

func (n narrow) admits(a judge.Attribute) bool {
	return (n.family == "" || n.family == a.Family) &&
		(n.transport == "" || n.transport == a.Transport) &&
		a.Size >= n.fromSize
}

// is reports whether an attribute has the one value that n names.
func (n narrow) is(a judge.Attribute) bool {
	return n.admits(a) && (n.fromSize == 0 || n.fromSize == a.Size)
}

// degree is the number of attributes by which n narrows.
func (n narrow) degree() int {
	d := 0
	for _, set := range []bool{n.family != "", n.transport != "", n.fromSize > 0} {
		if set {
			d++
		}
	}
	return d
}

// String prints the attributes, or nothing.
func (n narrow) String() string {
	var s []string
	if n.family != "" {
		s = append(s, string(n.family))
	}
	if n.transport != "" {
		s = append(s, string(n.transport))
	}
	if n.fromSize > 0 {
		s = append(s, fmt.Sprintf("payloads from %d bytes", n.fromSize))
	}
	if len(s) == 0 {
		return ""
	}
	return strings.Join(s, ", ") + " only"
}

// wider reports whether n narrows less than o, by the same attributes only.
func (n narrow) wider(o narrow) bool {
	return n != o && (n.family == "" || n.family == o.family) &&
		(n.transport == "" || n.transport == o.transport) && n.fromSize <= o.fromSize
}

// place is where a cause may be: the ways whose requests go through it, and those whose
// answers do. A way is a source and a target with all their pairs.
type place struct {
	cause                         checkup.FindingCause
	subject                       string
	from, to                      string   // of a pair, zones or groups, as the subject names them
	node                          string   // of a source or target; empty if it is on none
	there                         []int32  // requests; for nodes and network, either way
	back                          []int32  // answers
	pod                           bool     // a target that is an existing pod
	nodes                         []int32  // that are several, in order
	names                         []string // of nodes, sorted
	zone                          bool     // nodes are all nodes of a zone
	label                         bool     // nodes share a label of Endpoint.Topology
	labelKey, labelValue, labelTo string   // of this label; labelTo for groups
	in                            []bool   // by node, whether it is one of nodes; set if label is
	index                         int      // in localiser.places
	mirror                        bool     // another place has the same ways with requests and answers exchanged
	// In the queue of cover:
	at      int        // position, -1 if it is not in the queue
	key     float64    // cost per newly explained pair; at least that if not fresh
	fresh   bool       // best is known, and nothing changed since
	best    *candidate // of all narrowings
	floor   float64    // the lowest cost of the last assessment
	left    int        // failed pairs of its ways that no accepted cause explains
	last    int        // left when it was last assessed
	touched int        // ways of which pairs were explained since the last assessment
}

// between is the place from one of two places to the other, without its ways.
func between(cause checkup.FindingCause, from, to string) *place {
	return &place{cause: cause, subject: from + " -> " + to, from: from, to: to}
}

// concerned are the nodes that the place concerns; nil for those of a zone or a label.
func (p *place) concerned() []string {
	switch p.cause {
	case checkup.CauseNodeIngress, checkup.CauseNodeEgress, checkup.CauseNode:
		return []string{p.subject}
	case checkup.CausePair:
		return []string{p.from, p.to}
	case checkup.CauseSource, checkup.CauseTarget:
		return []string{p.node}
	case checkup.CauseNodes:
		if !p.zone {
			return p.names[:min(len(p.names), maxNames)]
		}
	}
	return nil
}

// explains reports whether a failed pair may be due to the place, by the
// direction in which it lost packets.
func (p *place) explains(m *measured, back bool) bool {
	switch p.cause {
	case checkup.CauseNodeIngress, checkup.CauseNodeEgress, checkup.CauseNodesIngress, checkup.CauseNodesEgress,
		checkup.CausePair, checkup.CauseZones, checkup.CauseGroups:
		if back {
			return m.answers
		}
		return m.requests
	case checkup.CauseNode, checkup.CauseNodes:
		// If no answer arrived, the requests may have been lost.
		return m.Received > 0 || m.requests
	default:
		return true
	}
}

// narrowings lists what a cause may be narrowed to. Two that admit the same attributes are
// one, under the more specific name: a transport rather than its sizes.
func (l *localiser) narrowings() {
	var families, transports, sizes []narrow
	for _, a := range l.attributes {
		families = append(families, narrow{family: a.Family})
		transports = append(transports, narrow{transport: a.Transport})
		sizes = append(sizes, narrow{fromSize: a.Size})
	}
	slices.SortFunc(sizes, func(a, b narrow) int { return cmp.Compare(a.fromSize, b.fromSize) })
	families, transports, sizes = distinct(families), distinct(transports), distinct(sizes)
	for _, n := range slices.Concat(families, transports, sizes) {
		value := narrowing{narrow: n}
		for _, a := range l.attributes {
			value.admits = append(value.admits, n.is(a))
		}
		l.values = append(l.values, value)
	}
	l.whole = l.narrowing(narrow{})
	known := []narrowing{l.whole}
	add := func(list []narrowing, n narrow) []narrowing {
		made := l.narrowing(n)
		if slices.ContainsFunc(known, func(k narrowing) bool { return slices.Equal(k.admits, made.admits) }) ||
			!slices.Contains(made.admits, true) {
			return list
		}
		known = append(known, made)
		return append(list, made)
	}
	single := slices.Concat(families, transports, sizes)
	for _, n := range single {
		l.narrows = add(l.narrows, n)
	}
	for i, a := range single {
		for _, b := range single[i+1:] {
			both := narrow{cmp.Or(a.family, b.family), cmp.Or(a.transport, b.transport), max(a.fromSize, b.fromSize)}
			if both.degree() == 2 {
				l.narrows2 = add(l.narrows2, both)
			}
		}
	}
}

// narrowing is a narrow with the attributes that it admits, by their index.
type narrowing struct {
	narrow
	admits []bool
}

func (l *localiser) narrowing(n narrow) narrowing {
	made := narrowing{narrow: n}
	for _, a := range l.attributes {
		made.admits = append(made.admits, n.admits(a))
	}
	return made
}

// distinct drops repetitions, keeping the order.
func distinct(of []narrow) []narrow {
	var kept []narrow
	for _, n := range of {
		if !slices.Contains(kept, n) {
			kept = append(kept, n)
		}
	}
	return kept
}

// places lists every place that a measured pair went through, in a fixed order, and
// notes at each way the places that it belongs to.
func (l *localiser) listPlaces() {
	n := len(l.nodes)
	type two struct{ a, b int32 }
	type zones struct{ a, b string }
	from, to := make([][]int32, n), make([][]int32, n)
	sources, targets := make([][]int32, len(l.w.Sources)), make([][]int32, len(l.w.Targets))
	byPair, byZones := map[two][]int32{}, map[zones][]int32{}
	all := make([]int32, len(l.ways))
	for i := range l.ways {
		w, i := &l.ways[i], int32(i)
		all[i] = i
		from[w.a], to[w.b] = append(from[w.a], i), append(to[w.b], i)
		sources[w.source], targets[w.target] = append(sources[w.source], i), append(targets[w.target], i)
		byPair[two{w.a, w.b}] = append(byPair[two{w.a, w.b}], i)
		if za, zb := l.w.Sources[w.source].Zone, l.w.Targets[w.target].Zone; za != "" && zb != "" {
			byZones[zones{za, zb}] = append(byZones[zones{za, zb}], i)
		}
	}
	l.add(&place{cause: checkup.CauseNetwork, there: all})
	nodeSeen, sourceSeen, targetSeen := make([]bool, n), make([]bool, len(sources)), make([]bool, len(targets))
	pairSeen, zoneSeen := map[two]bool{}, map[zones]bool{}
	addNode := func(x int32) {
		if nodeSeen[x] {
			return
		}
		nodeSeen[x] = true
		either := slices.Clone(from[x])
		for _, i := range to[x] {
			if l.ways[i].a != x {
				either = append(either, i)
			}
		}
		slices.Sort(either)
		l.add(&place{cause: checkup.CauseNodeIngress, subject: l.nodes[x], there: to[x], back: from[x]})
		l.add(&place{cause: checkup.CauseNodeEgress, subject: l.nodes[x], there: from[x], back: to[x]})
		l.add(&place{cause: checkup.CauseNode, subject: l.nodes[x], there: either})
	}
	addPair := func(a, b int32) {
		if pairSeen[two{a, b}] {
			return
		}
		pairSeen[two{a, b}] = true
		p := between(checkup.CausePair, l.nodes[a], l.nodes[b])
		p.there = byPair[two{a, b}]
		if a != b {
			p.back, p.mirror = byPair[two{b, a}], pairSeen[two{b, a}]
		}
		l.add(p)
	}
	addZones := func(a, b string) {
		if zoneSeen[zones{a, b}] || a == "" || b == "" {
			return
		}
		zoneSeen[zones{a, b}] = true
		p := between(checkup.CauseZones, a, b)
		p.there = byZones[zones{a, b}]
		if a != b {
			p.back, p.mirror = byZones[zones{b, a}], zoneSeen[zones{b, a}]
		}
		l.add(p)
	}
	for i := range l.ways {
		w := &l.ways[i]
		addNode(w.a)
		addNode(w.b)
		addPair(w.a, w.b)
		addPair(w.b, w.a)
		s, t := l.w.Sources[w.source], l.w.Targets[w.target]
		addZones(s.Zone, t.Zone)
		addZones(t.Zone, s.Zone)
		if k := w.source; !sourceSeen[k] {
			sourceSeen[k] = true
			l.add(&place{cause: checkup.CauseSource, subject: s.Name(), node: s.Node, there: sources[k]})
		}
		if k := w.target; !targetSeen[k] {
			targetSeen[k] = true
			l.add(&place{cause: checkup.CauseTarget, subject: t.Name(), node: t.Node, there: targets[k], pod: t.Pod != ""})
		}
	}
}

// domain is a value of a label of Endpoint.Topology.
type domain struct{ key, value string }

// String is the label's name without its prefix, and the value.
func (d domain) String() string { return d.key[strings.LastIndex(d.key, "/")+1:] + " " + d.value }

func (d domain) compare(o domain) int {
	return cmp.Or(cmp.Compare(d.key, o.key), cmp.Compare(d.value, o.value))
}

// zoneLabel is the key of Endpoint.Zone (well-known labels of Kubernetes). Pairs of its values are known as zones.
const zoneLabel = "topology.kubernetes.io/zone"

// labelled adds the places of nodes that share a label of Endpoint.Topology: what goes to them from other nodes, what
// goes from them to others, and both; and what goes from the nodes of one value to those of another, or of the same.
// The places of one node alone, and of one node and another, are known already.
func (l *localiser) labelled() {
	type ordered struct{ from, to domain }
	to, from, in := map[domain][]int32{}, map[domain][]int32{}, map[domain][]bool{}
	groups := map[ordered][]int32{}
	var order []domain
	var pairs []ordered
	for i := range l.ways {
		w := &l.ways[i]
		a, b := l.w.Sources[w.source].Topology, l.w.Targets[w.target].Topology
		add := func(of map[string]string, node int32, list map[domain][]int32) {
			for key, value := range of {
				d := domain{key, value}
				if in[d] == nil {
					in[d] = make([]bool, len(l.nodes))
					order = append(order, d)
				}
				in[d][node] = true
				if a[key] != b[key] {
					list[d] = append(list[d], int32(i))
				}
			}
		}
		add(a, w.a, from)
		add(b, w.b, to)
		for key := range a {
			if b[key] == "" || key == zoneLabel {
				continue
			}
			k := ordered{domain{key, a[key]}, domain{key, b[key]}}
			if groups[k] == nil {
				pairs = append(pairs, k)
				if back := (ordered{k.to, k.from}); back != k && groups[back] == nil {
					pairs = append(pairs, back) // its answers go through it, if not its requests
				}
			}
			groups[k] = append(groups[k], int32(i))
		}
	}
	slices.SortFunc(order, domain.compare)
	nodes := map[domain][]int32{}
	for _, d := range order {
		p := place{subject: d.String(), label: true, labelKey: d.key, labelValue: d.value, in: in[d]}
		for x, is := range p.in {
			if is {
				p.nodes = append(p.nodes, int32(x))
			}
		}
		nodes[d] = p.nodes
		if len(p.nodes) < 2 || len(to[d])+len(from[d]) == 0 {
			continue
		}
		in, out, both := p, p, p
		in.cause, in.there, in.back = checkup.CauseNodesIngress, to[d], from[d]
		out.cause, out.there, out.back = checkup.CauseNodesEgress, from[d], to[d]
		both.cause, both.there = checkup.CauseNodes, slices.Sorted(slices.Values(slices.Concat(to[d], from[d])))
		l.add(&in)
		l.add(&out)
		l.add(&both)
	}
	slices.SortFunc(pairs, func(a, b ordered) int { return cmp.Or(a.from.compare(b.from), a.to.compare(b.to)) })
	for _, k := range slices.Compact(pairs) {
		if len(nodes[k.from]) < 2 && len(nodes[k.to]) < 2 {
			continue
		}
		p := between(checkup.CauseGroups, k.from.String(), k.to.String())
		p.there, p.labelKey, p.labelValue, p.labelTo = groups[k], k.from.key, k.from.value, k.to.value
		if k.from != k.to {
			p.back, p.mirror = groups[ordered{k.to, k.from}], k.from.compare(k.to) > 0
		}
		l.add(p)
	}
}

// find finds a place of another localiser; nil if there is none.
func (l *localiser) find(of *place) *place {
	for _, p := range l.places {
		if p.cause == of.cause && p.subject == of.subject {
			return p
		}
	}
	return nil
}

// add adds a place.
func (l *localiser) add(p *place) {
	p.at, p.index = -1, len(l.places)
	for _, list := range [][]int32{p.there, p.back} {
		for _, i := range list {
			p.left += l.ways[i].left
		}
	}
	l.places = append(l.places, p)
	for _, list := range [][]int32{p.there, p.back} {
		for _, i := range list {
			l.ways[i].places = append(l.ways[i].places, p)
		}
	}
}
