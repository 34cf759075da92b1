// SPDX-License-Identifier: Apache-2.0

package history

import (
	"math"
	"slices"
)

// The values of a group in one run are three bytes for each probe: the codes of the median and of the 90th percentile
// of its delays, and of its loss. The median of a run is one observation of the group: packets of one run have much in
// common. Groups are in this order: all pairs, each source, each target, each ordered pair of zones.
const perGroup = 3

// group is a group of pairs. From and To are set as in a Key; a node that is in another zone is another node.
type group struct {
	Group    Group
	From, To Member
}

func (g group) key(check, probe string) Key {
	k := Key{Check: check, Group: g.Group, From: g.From.Name, To: g.To.Name, Probe: probe}
	if g.Group == Zones {
		k.From, k.To = g.From.Zone, g.To.Zone
	}
	return k
}

// zones are the zones of members, each once, sorted.
func zones(members []Member) []string {
	var all []string
	for _, m := range members {
		if m.Zone != "" {
			all = append(all, m.Zone)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (p *Pairs) countGroups() int {
	return 1 + len(p.Sources) + len(p.Targets) + len(zones(p.Sources))*len(zones(p.Targets))
}

// groupsOf lists the groups, in the order of their values.
func (p *Pairs) groupsOf() []group {
	all := make([]group, 0, p.countGroups())
	all = append(all, group{Group: All})
	for _, m := range p.Sources {
		all = append(all, group{Group: Out, From: m})
	}
	for _, m := range p.Targets {
		all = append(all, group{Group: In, To: m})
	}
	to := zones(p.Targets)
	for _, a := range zones(p.Sources) {
		for _, b := range to {
			all = append(all, group{Group: Zones, From: Member{Zone: a}, To: Member{Zone: b}})
		}
	}
	return all
}

// encodeGroups takes the values from the digests of the run. A group that was not measured has zeros.
func (p *Pairs) encodeGroups(check string, digests []Digest) []byte {
	of := make(map[Key]*Digest, len(digests))
	for i := range digests {
		of[digests[i].Key] = &digests[i]
	}
	var b []byte
	for _, g := range p.groupsOf() {
		for _, probe := range p.Probes {
			d := of[g.key(check, probe)]
			if d == nil || d.Sent <= 0 {
				b = append(b, 0, 0, 0)
				continue
			}
			median, tail := byte(0), byte(0)
			if d.Lost < d.Sent {
				median, tail = delayCode(d.Quantile(0.5)), delayCode(d.Quantile(0.9))
			}
			b = append(b, median, tail, lossCode(d.Lost/d.Sent))
		}
	}
	return b
}

// lossSteps is the number of codes of losses: they are even in the square root of the share, as the chance of losing is
// (Anscombe, Biometrika 35, 1948).
const lossSteps = 200

func lossCode(share float64) byte {
	return byte(1 + math.Round(lossSteps*math.Sqrt(min(max(share, 0), 1))))
}

// lossOf returns the share of a code, from 0 to 1.
func lossOf(code byte) float64 {
	root := float64(max(code, 1)-1) / lossSteps
	return min(root*root, 1)
}
