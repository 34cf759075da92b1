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

// place is where a cause may be: the pairs whose requests go through it, and
// those whose answers do.
type place struct {
	cause   checkup.FindingCause
	subject string
	there   []int32 // requests; for node and network, either way
	back    []int32 // answers
	pod     bool    // a target that is an existing pod
}

// explains reports whether a failed pair may be due to the place, by the
// direction in which it lost packets.
func (p *place) explains(m *measured, back bool) bool {
	switch p.cause {
	case checkup.CauseNodeIngress, checkup.CauseNodeEgress, checkup.CausePair, checkup.CauseZones:
		if back {
			return m.Carried != checkup.DirectionForward
		}
		return m.Carried != checkup.DirectionReturn
	case checkup.CauseNode:
		// If no answer arrived, the requests may have been lost.
		return m.Received > 0 || m.Carried != checkup.DirectionReturn
	default:
		return true
	}
}

// narrowings lists what a cause may be narrowed to.
func (l *localiser) narrowings() {
	var families, transports, sizes []narrow
	for _, a := range l.attributes {
		families = append(families, narrow{family: a.Family})
		transports = append(transports, narrow{transport: a.Transport})
		sizes = append(sizes, narrow{fromSize: a.Size})
	}
	slices.SortFunc(sizes, func(a, b narrow) int { return cmp.Compare(a.fromSize, b.fromSize) })
	families, transports, sizes = distinct(families), distinct(transports), distinct(sizes)
	l.values = slices.Concat(families, transports, sizes)
	if len(sizes) > 0 {
		sizes = sizes[1:] // from the smallest size up is all sizes
	}
	for _, kind := range [][]narrow{families, transports, sizes} {
		if len(kind) > 1 || len(kind) == 1 && kind[0].fromSize > 0 {
			l.narrows = append(l.narrows, kind...)
		}
	}
	for i, a := range l.narrows {
		for _, b := range l.narrows[i+1:] {
			both := narrow{cmp.Or(a.family, b.family), cmp.Or(a.transport, b.transport), max(a.fromSize, b.fromSize)}
			if both.degree() == 2 {
				l.narrows2 = append(l.narrows2, both)
			}
		}
	}
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

// places lists every place that a failed pair went through, in a fixed order.
func (l *localiser) places() []*place {
	n := len(l.nodes)
	from, to := make([][]int32, n), make([][]int32, n)
	sources, targets := make([][]int32, len(l.w.Sources)), make([][]int32, len(l.w.Targets))
	type two struct{ a, b int32 }
	type zones struct{ a, b string }
	byPair, byZones := map[two][]int32{}, map[zones][]int32{}
	all := make([]int32, len(l.all))
	for i := range l.all {
		m, i := &l.all[i], int32(i)
		all[i] = i
		from[m.a], to[m.b] = append(from[m.a], i), append(to[m.b], i)
		sources[m.Pair.Source], targets[m.Pair.Target] = append(sources[m.Pair.Source], i), append(targets[m.Pair.Target], i)
		byPair[two{m.a, m.b}] = append(byPair[two{m.a, m.b}], i)
		if za, zb := l.w.Sources[m.Pair.Source].Zone, l.w.Targets[m.Pair.Target].Zone; za != "" && zb != "" {
			byZones[zones{za, zb}] = append(byZones[zones{za, zb}], i)
		}
	}
	places := []*place{{cause: checkup.CauseNetwork, there: all}}
	node, source, target := map[int32]bool{}, map[int]bool{}, map[int]bool{}
	pair, zone := map[two]bool{}, map[zones]bool{}
	addNode := func(x int32) {
		if node[x] {
			return
		}
		node[x] = true
		any := slices.Clone(from[x])
		for _, i := range to[x] {
			if l.all[i].a != x {
				any = append(any, i)
			}
		}
		slices.Sort(any)
		places = append(places,
			&place{cause: checkup.CauseNodeIngress, subject: l.nodes[x], there: to[x], back: from[x]},
			&place{cause: checkup.CauseNodeEgress, subject: l.nodes[x], there: from[x], back: to[x]},
			&place{cause: checkup.CauseNode, subject: l.nodes[x], there: any})
	}
	addPair := func(a, b int32) {
		if pair[two{a, b}] {
			return
		}
		pair[two{a, b}] = true
		p := &place{cause: checkup.CausePair, subject: l.nodes[a] + " -> " + l.nodes[b], there: byPair[two{a, b}]}
		if a != b {
			p.back = byPair[two{b, a}]
		}
		places = append(places, p)
	}
	addZones := func(a, b string) {
		if zone[zones{a, b}] || a == "" || b == "" {
			return
		}
		zone[zones{a, b}] = true
		p := &place{cause: checkup.CauseZones, subject: a + " -> " + b, there: byZones[zones{a, b}]}
		if a != b {
			p.back = byZones[zones{b, a}]
		}
		places = append(places, p)
	}
	for i := range l.all {
		m := &l.all[i]
		if !m.fail {
			continue
		}
		addNode(m.a)
		addNode(m.b)
		addPair(m.a, m.b)
		addPair(m.b, m.a)
		s, t := l.w.Sources[m.Pair.Source], l.w.Targets[m.Pair.Target]
		addZones(s.Zone, t.Zone)
		addZones(t.Zone, s.Zone)
		if k := m.Pair.Source; !source[k] {
			source[k] = true
			places = append(places, &place{cause: checkup.CauseSource, subject: s.Name(), there: sources[k]})
		}
		if k := m.Pair.Target; !target[k] {
			target[k] = true
			places = append(places, &place{cause: checkup.CauseTarget, subject: t.Name(), there: targets[k], pod: t.Pod != ""})
		}
	}
	return places
}
