// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/checkplan/checkplan/pkg/judge"
)

// toll is what goes through a place: flows, dead ones that it may have dropped, the passages with these, and their
// links.
type toll struct {
	flows, dead, passages int
	link                  [2]string
	links                 bool // more than one
}

// deaths are the passages that no place explains yet, and what of them goes through each place.
type deaths struct {
	through []passage
	all     toll
	at      map[site]*toll
}

func newDeaths(through []passage) *deaths {
	d := &deaths{through: through, at: map[site]*toll{}}
	for i := range through {
		p := &through[i]
		d.all.add(p, p.dead > 0)
		if p.dead == 0 {
			continue
		}
		for _, s := range p.suspects {
			if d.at[s] == nil {
				d.at[s] = &toll{}
			}
		}
	}
	for i := range through {
		p := &through[i]
		for _, s := range p.scope {
			if t := d.at[s]; t != nil {
				t.add(p, p.dead > 0 && slices.Contains(p.suspects, s))
			}
		}
	}
	return d
}

// add counts a passage; suspect says that the place may have dropped the packets of its dead flows.
func (t *toll) add(p *passage, suspect bool) {
	t.flows += p.flows
	if !suspect {
		return
	}
	if t.passages > 0 && t.link != p.link {
		t.links = true
	}
	t.dead, t.passages, t.link = t.dead+p.dead, t.passages+1, p.link
}

// named reports whether a place can be named: a link, or what several links share.
func (d *deaths) named(s site) bool { return s.isPair() || d.at[s].links }

// explains reports whether a place may have dropped the packets of all dead flows.
func (d *deaths) explains(s site) bool {
	return d.at[s] != nil && d.at[s].passages == d.all.passages && d.named(s)
}

// shared is the narrowest place that explains all dead flows, in both directions if either one does; nil if only the
// network does.
func (d *deaths) shared() *site {
	var all []site
	for s := range d.at {
		if c := s.counterpart(); d.explains(s) && (c == s || !d.explains(c)) {
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		return nil
	}
	narrowest := slices.MinFunc(all, func(s, t site) int {
		return cmp.Or(cmp.Compare(d.at[s].flows, d.at[t].flows), compareSites(s, t))
	})
	return &narrowest
}

// beyondNetwork reports whether a shared place is to be named instead of the network.
func (d *deaths) beyondNetwork(s site) bool {
	return s.isPair() || d.ratio(s) > math.Log(float64(len(d.at)))
}

// ratio is how much likelier the dead flows are if the place has another share of them than all others, as a logarithm.
func (d *deaths) ratio(s site) float64 {
	t := d.at[s]
	return likelihood(
		t.dead,
		t.flows,
	) + likelihood(
		d.all.dead-t.dead,
		d.all.flows-t.flows,
	) - likelihood(
		d.all.dead,
		d.all.flows,
	)
}

// alternatives are the other places that this sample cannot distinguish from the one that is named: those that have the
// same flows; for the network, those that all dead flows go through by chance; the network, if chance explains that all
// dead flows go through the place that is named (at the level of judge.FalseAlarms over all places).
func (d *deaths) alternatives(where site) []site {
	var all []site
	if !where.isPair() && d.explains(where) && d.ratio(where) <= d.significant() {
		all = append(all, site{kind: wholeNetwork})
	}
	for _, s := range slices.SortedFunc(maps.Keys(d.at), compareSites) {
		switch c := s.counterpart(); {
		case s == where || s == where.bothWays() || !d.explains(s):
		case where.kind == wholeNetwork && (c == s || !d.explains(c)),
			where.kind != wholeNetwork && d.at[s].flows == d.at[where].flows:
			all = append(all, s)
		}
	}
	return all
}

// significant is the ratio that chance exceeds at none of the places, at the level of judge.FalseAlarms over them all.
func (d *deaths) significant() float64 { return math.Log(float64(len(d.at)) / judge.FalseAlarms) }

// densest is the place in which the share of dead flows is higher than elsewhere, and differs most from it; nil if
// chance explains every difference (likelihood ratios, at the level of judge.FalseAlarms over all places).
func (d *deaths) densest() *site {
	var densest *site
	highest := d.significant()
	for _, s := range slices.SortedFunc(maps.Keys(d.at), compareSites) {
		t := d.at[s]
		dead, flows := d.all.dead-t.dead, d.all.flows-t.flows
		if !d.named(s) || t.dead*flows <= dead*t.flows {
			continue
		}
		if ratio := d.ratio(s); ratio > highest {
			densest, highest = &s, ratio
		}
	}
	return densest
}

// likelihood is the logarithm of the highest probability with which k of n happen.
func likelihood(k, n int) float64 {
	sum := 0.0
	for _, x := range []int{k, n - k} {
		if x > 0 {
			sum += float64(x) * math.Log(float64(x)/float64(n))
		}
	}
	return sum
}
