// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// fault is what is broken, and how that is named.
type fault struct {
	// causes are the right findings, in the form of checkup.Finding.Alternatives; empty if a run must pass.
	causes []string
	// drop is the probability with which a packet is lost, delay what is added to its way; nil for none.
	drop  func(packet) float64
	delay func(packet) time.Duration
	// silent are the sources whose agents report nothing.
	silent map[int]bool
}

// scenario is a kind of fault. Its place is drawn.
type scenario struct {
	name string
	draw func(d *draw) fault
	// racks says that the plan names the label of the nodes' racks.
	racks bool
}

// draw draws places for faults. No node is drawn twice.
type draw struct {
	w    *checkup.Worksheet
	rng  *rand.Rand
	used map[int]bool
}

func (d *draw) node() int {
	for {
		if i := d.rng.IntN(len(d.w.Sources)); !d.used[i] {
			d.used[i] = true
			return i
		}
	}
}

// pair draws an ordered pair of nodes from the sample.
func (d *draw) pair() (int, int) {
	for {
		a := d.rng.IntN(len(d.w.Sources))
		targets := d.w.Assignments[a]
		if len(targets) == 0 {
			continue
		}
		if b := targets[d.rng.IntN(len(targets))]; !d.used[a] && !d.used[b] {
			d.used[a], d.used[b] = true, true
			return a, b
		}
	}
}

// zones draws two zones.
func (d *draw) zones() (string, string) {
	p := d.rng.Perm(3)
	return fmt.Sprintf("zone-%c", 'a'+p[0]), fmt.Sprintf("zone-%c", 'a'+p[1])
}

// racks draws two racks that have a pair from one to the other in the sample.
func (d *draw) racks() (string, string) {
	for {
		a := d.rng.IntN(len(d.w.Sources))
		if targets := d.w.Assignments[a]; len(targets) > 0 {
			if b := targets[d.rng.IntN(len(targets))]; d.rack(a) != d.rack(b) {
				return d.rack(a), d.rack(b)
			}
		}
	}
}

func (d *draw) rack(i int) string { return rackOf(d.w.Sources[i]) }

func (d *draw) name(i int) string { return d.w.Sources[i].Node }

func (d *draw) zone(i int) string { return d.w.Sources[i].Zone }

// losing is a fault that drops a share of the packets for which the condition holds.
func losing(share float64, cause string, hit func(packet) bool) fault {
	return fault{causes: []string{cause}, drop: func(p packet) float64 {
		if hit(p) {
			return share
		}
		return 0
	}}
}

func nodeIn(d *draw) fault {
	x := d.node()
	return losing(1, "nodeIngress "+d.name(x), func(p packet) bool { return p.to == x })
}

func nodeOut(d *draw) fault {
	x := d.node()
	return losing(1, "nodeEgress "+d.name(x), func(p packet) bool { return p.from == x })
}

func nodeBoth(d *draw) fault {
	x := d.node()
	return losing(1, "node "+d.name(x), func(p packet) bool { return p.from == x || p.to == x })
}

func onePair(d *draw) fault {
	a, b := d.pair()
	return losing(1, "pair "+d.name(a)+" -> "+d.name(b), func(p packet) bool { return p.from == a && p.to == b })
}

func oneZonePair(d *draw) fault {
	a, b := d.zones()
	return losing(1, "zones "+a+" -> "+b, func(p packet) bool { return d.zone(p.from) == a && d.zone(p.to) == b })
}

func udpInto(d *draw) fault {
	x := d.node()
	return losing(1, "nodeIngress "+d.name(x)+" (udp only)",
		func(p packet) bool { return p.to == x && p.transport == checkup.UDP })
}

func ipv6At(d *draw) fault {
	x := d.node()
	return losing(1, "node "+d.name(x)+" (IPv6 only)",
		func(p packet) bool { return (p.from == x || p.to == x) && p.family == checkup.IPv6 })
}

func mtuAt(d *draw) fault {
	x := d.node()
	return losing(1, "node "+d.name(x)+" (payloads from 1400 bytes only)",
		func(p packet) bool { return (p.from == x || p.to == x) && p.size > 1300 })
}

// into drops a share of what goes to one node.
func into(share float64) func(*draw) fault {
	return func(d *draw) fault {
		x := d.node()
		return losing(share, "nodeIngress "+d.name(x), func(p packet) bool { return p.to == x })
	}
}

// slow delays all packets of a node, half of the delay on each way. Delays have no direction, so it is named as the
// node if it breaks the limit.
func slow(delay time.Duration) func(*draw) fault {
	return func(d *draw) fault {
		x := d.node()
		f := fault{delay: func(p packet) time.Duration {
			if p.from == x || p.to == x {
				return delay / 2
			}
			return 0
		}}
		if delay > maxP99 {
			f.causes = []string{"node " + d.name(x)}
		}
		return f
	}
}

// several joins faults. Each of them acts alone.
func several(faults ...fault) fault {
	joined := fault{}
	for _, f := range faults {
		joined.causes = append(joined.causes, f.causes...)
	}
	joined.drop = func(p packet) float64 {
		through := 1.0
		for _, f := range faults {
			through *= 1 - f.drop(p)
		}
		return 1 - through
	}
	return joined
}

// some joins so many faults of different nodes, of which at most one is that of a zone boundary.
func some(count int) func(*draw) fault {
	return func(d *draw) fault {
		kinds := []func(*draw) fault{nodeIn, nodeOut, nodeBoth, onePair, udpInto, ipv6At, mtuAt, into(0.2)}
		var faults []fault
		for range count {
			i := d.rng.IntN(len(kinds) + 1)
			if i == len(kinds) {
				if len(faults) == 0 {
					faults = append(faults, oneZonePair(d))
					continue
				}
				i = 0
			}
			faults = append(faults, kinds[i](d))
		}
		return several(faults...)
	}
}

// scenarios lists every case of the table.
var scenarios = []scenario{
	{name: "clean", draw: func(*draw) fault { return fault{} }},
	{name: "node in", draw: nodeIn},
	{name: "node out", draw: nodeOut},
	{name: "node both", draw: nodeBoth},
	{name: "one pair", draw: onePair},
	{name: "zones one way", draw: oneZonePair},
	{name: "zones both ways", draw: func(d *draw) fault {
		a, b := d.zones()
		f := losing(1, "", func(p packet) bool {
			from, to := d.zone(p.from), d.zone(p.to)
			return from == a && to == b || from == b && to == a
		})
		f.causes = []string{"zones " + a + " -> " + b, "zones " + b + " -> " + a}
		return f
	}},
	{name: "udp into a node", draw: udpInto},
	{name: "IPv6 everywhere", draw: func(*draw) fault {
		return losing(1, "family IPv6", func(p packet) bool { return p.family == checkup.IPv6 })
	}},
	{name: "IPv6 at a node", draw: ipv6At},
	{name: "MTU at a node", draw: mtuAt},
	{name: "MTU everywhere", draw: func(*draw) fault {
		return losing(1, "size 1400", func(p packet) bool { return p.size > 1300 })
	}},
	{name: "20% into a node", draw: into(0.2)},
	{name: "5% into a node", draw: into(0.05)},
	{name: "3% into a node", draw: into(0.03)},
	{name: "2% into a node", draw: into(0.02)},
	{name: "1.5% into a node", draw: into(0.015)},
	{name: "30ms at a node", draw: slow(30 * time.Millisecond)},
	{name: "120ms at a node", draw: slow(120 * time.Millisecond)},
	{name: "two faults", draw: some(2)},
	{name: "three faults", draw: some(3)},
	{name: "dead agents", draw: func(d *draw) fault {
		f := nodeIn(d)
		f.silent = map[int]bool{}
		for range max(1, len(d.w.Sources)/10) {
			f.silent[d.node()] = true
		}
		return f
	}},
	{name: "half of the nodes", draw: func(d *draw) fault {
		dead := map[int]bool{}
		var causes []string
		for range len(d.w.Sources) / 2 {
			x := d.node()
			dead[x] = true
			causes = append(causes, "nodeIngress "+d.name(x))
		}
		f := losing(1, "", func(p packet) bool { return dead[p.to] })
		f.causes = causes
		return f
	}},
	{name: "rack", draw: func(d *draw) fault {
		rack := map[int]bool{}
		var causes []string
		for range 4 {
			x := d.node()
			rack[x] = true
			causes = append(causes, "node "+d.name(x))
		}
		f := losing(1, "", func(p packet) bool { return rack[p.from] != rack[p.to] })
		f.causes = causes
		return f
	}},
	{name: "clean in racks", racks: true, draw: func(*draw) fault { return fault{} }},
	{name: "labelled rack", racks: true, draw: func(d *draw) fault {
		rack, _ := d.racks()
		return losing(1, "nodes "+rack,
			func(p packet) bool { return (d.rack(p.from) == rack) != (d.rack(p.to) == rack) })
	}},
	{name: "into a labelled rack", racks: true, draw: func(d *draw) fault {
		rack, _ := d.racks()
		return losing(1, "nodesIngress "+rack, func(p packet) bool { return d.rack(p.to) == rack && d.rack(p.from) != rack })
	}},
	{name: "5% into a labelled rack", racks: true, draw: func(d *draw) fault {
		rack, _ := d.racks()
		return losing(0.05, "nodesIngress "+rack,
			func(p packet) bool { return d.rack(p.to) == rack && d.rack(p.from) != rack })
	}},
	{name: "rack to rack", racks: true, draw: func(d *draw) fault {
		a, b := d.racks()
		return losing(1, "groups "+a+" -> "+b, func(p packet) bool { return d.rack(p.from) == a && d.rack(p.to) == b })
	}},
	{name: "node in beside racks", racks: true, draw: nodeIn},
	{name: "one of eight paths", draw: func(d *draw) fault {
		a, b := d.zones()
		salt := d.rng.Uint64()
		return losing(1, "paths "+a+" -> "+b, func(p packet) bool {
			return d.zone(p.from) == a && d.zone(p.to) == b && pathOf(p, salt)%8 == 0
		})
	}},
	{name: "blip", draw: func(d *draw) fault {
		x := d.node()
		return fault{drop: func(p packet) float64 {
			if p.to == x && p.look == 0 {
				return 1
			}
			return 0
		}}
	}},
}

// pathOf hashes what a router with several equal paths hashes (RFC 2992): addresses, protocol and ports. The agent of
// another look is another pod, with another address.
func pathOf(p packet, salt uint64) uint64 {
	h := salt
	mix := func(v int) { // SplitMix64
		h += 0x9e3779b97f4a7c15 ^ uint64(v)
		h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>27) * 0x94d049bb133111eb
		h ^= h >> 31
	}
	mix(p.from)
	mix(p.to)
	mix(p.look)
	mix(p.port)
	mix(len(p.transport))
	mix(len(p.family) + int(p.family[len(p.family)-1]))
	if p.answer {
		mix(1)
	}
	return h
}
