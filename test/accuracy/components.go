// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// observations are what the published algorithms work on: the first look's measurements, and the components that each
// of them went through. The components are those that pkg/localise may name, except sources and targets (which are
// never at fault here) and causes that are narrowed twice.
type observations struct {
	names []string      // of the components
	of    [][]int32     // the observations that went through each component
	list  []observation // each with its components
}

// observation is a number of packets that took the same way, and how many of them were lost or exceeded the limit on
// delays.
type observation struct {
	made, bad  int
	components []int32
}

// failed reports whether more than the plan's limit was lost or late.
func (o *observation) failed() bool { return float64(o.bad)*100 > float64(o.made)*float64(maxLoss) }

// guess is a cause that is named, with those that cannot be distinguished from it.
type guess struct {
	name string
	or   []string
	// pairs is the number of single pairs that are only counted; 0 for others.
	pairs int
}

// algorithms are the published algorithms that the table compares with.
var algorithms = []struct {
	name string
	find func(*observations) []guess
}{{"set cover", setCover}, {"007", votes}, {"Flock", flock}}

// observe turns a record into observations. A udp pair without late packets is two of them, one for each direction, by
// the target's count. Every other pair is one, in both directions: which of them lost a packet is unknown.
func observe(w *checkup.Worksheet, record *checkup.Record) *observations {
	b := builder{w: w, first: map[place]int32{}, on: map[[2]int][]int32{}}
	arrived := map[checkup.Pair]int{}
	for _, r := range record.Receptions {
		arrived[r.Pair] = r.Packets
	}
	for i := range record.Observations {
		o := &record.Observations[i]
		late := 0
		for _, rtt := range o.RTTs {
			if rtt > int64(maxP99/time.Microsecond) {
				late++
			}
		}
		p := o.Pair
		there, back := [2]int{p.Source, p.Target}, [2]int{p.Target, p.Source}
		switch n := arrived[p]; {
		case p.Transport != checkup.UDP || late > 0:
			b.add(o.Sent, o.Sent-o.Received+late, p, there, back)
		default:
			b.add(o.Sent, o.Sent-n, p, there)
			b.add(n, n-o.Received, p, back)
		}
	}
	return &b.observations
}

// builder numbers components as they occur.
type builder struct {
	observations
	w     *checkup.Worksheet
	first map[place]int32    // the first component of each place
	on    map[[2]int][]int32 // the first component of each place on the way from one node to another
}

// place is where a cause may be: of one or two nodes or zones.
type place struct {
	cause checkup.FindingCause
	a, b  string
}

// variants are what a place may be narrowed to.
var variants = [...]string{"", "IPv4", "IPv6", "tcp", "udp", "icmp", "payloads from 1400 bytes"}

// add adds an observation of packets of a pair on one or two ways between nodes.
func (b *builder) add(made, bad int, p checkup.Pair, ways ...[2]int) {
	if made == 0 {
		return
	}
	var admits [len(variants)]bool
	for i, v := range variants {
		admits[i] = v == "" || v == string(p.Family) || v == string(p.Transport) || i == len(variants)-1 && p.Size >= 1400
	}
	o := observation{made: made, bad: bad}
	at := int32(len(b.list))
	for _, way := range ways {
		firsts := b.through(way)
		o.components = slices.Grow(o.components, len(firsts)*len(variants))
		for _, first := range firsts {
			for i, admitted := range admits {
				c := first + int32(i)
				if on := b.of[c]; admitted && (len(on) == 0 || on[len(on)-1] != at) { // once, if both ways lead through it
					b.of[c] = append(on, at)
					o.components = append(o.components, c)
				}
			}
		}
	}
	b.list = append(b.list, o)
}

// through returns the first component of each place on the way from one node to another.
func (b *builder) through(way [2]int) []int32 {
	if known := b.on[way]; known != nil {
		return known
	}
	var places []int32
	through := func(cause checkup.FindingCause, x, y string) {
		key := place{cause, x, y}
		first, ok := b.first[key]
		if !ok {
			first = int32(len(b.names))
			b.first[key] = first
			for _, v := range variants {
				b.names = append(b.names, key.name(v))
				b.of = append(b.of, nil)
			}
		}
		places = append(places, first)
	}
	from, to := b.w.Sources[way[0]], b.w.Sources[way[1]]
	through(checkup.CauseNetwork, "", "")
	through(checkup.CauseNode, to.Node, "") // before the directions, because ties go to the first
	through(checkup.CauseNode, from.Node, "")
	through(checkup.CauseNodeIngress, to.Node, "")
	through(checkup.CauseNodeEgress, from.Node, "")
	through(checkup.CausePair, from.Node, to.Node)
	through(checkup.CauseZones, from.Zone, to.Zone)
	if a, b := rackOf(from), rackOf(to); a != "" {
		through(checkup.CauseGroups, a, b)
		if a != b {
			for _, rack := range []string{a, b} {
				through(checkup.CauseNodes, rack, "")
			}
			through(checkup.CauseNodesIngress, b, "")
			through(checkup.CauseNodesEgress, a, "")
		}
	}
	b.on[way] = places
	return places
}

// rackOf names the rack of a node as findings do; empty if the plan names no label.
func rackOf(e checkup.Endpoint) string {
	if rack := e.Topology[rackLabel]; rack != "" {
		return "rack " + rack
	}
	return ""
}

// name is a component in the form of checkup.Finding.Alternatives.
func (p place) name(variant string) string {
	place := string(p.cause)
	if p.a != "" {
		place += " " + p.a
	}
	if p.b != "" {
		place += " -> " + p.b
	}
	switch {
	case variant == "":
		return place
	case p.cause != checkup.CauseNetwork:
		return place + " (" + variant + " only)"
	case variant == "IPv4" || variant == "IPv6":
		return "family " + variant
	case variant == variants[len(variants)-1]:
		return "size 1400"
	default:
		return "transport " + variant
	}
}

// same returns the names of the other components that the same bad observations of a list went through, and as many
// observations in all: no algorithm that works on observations can distinguish them.
func (o *observations) same(c int32, bad []int32) []string {
	if len(bad) == 0 {
		return nil
	}
	count := map[int32]int{}
	for _, i := range bad {
		for _, d := range o.list[i].components {
			count[d]++
		}
	}
	var names []string
	for _, d := range o.list[bad[0]].components {
		if d != c && count[d] == len(bad) && len(o.of[d]) == len(o.of[c]) {
			names = append(names, o.names[d])
		}
	}
	return names
}
