// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Kind is what a Difference is about.
type Kind string

const (
	// Missing: the rules do not know the frontends of Difference.At at all. If Difference.Whole, they know no frontend
	// of the Service in this family.
	Missing Kind = "missing"
	// Extra: the rules serve frontends that no Service has: it was deleted, or somebody added them.
	Extra Kind = "extra"
	// WrongAction: forwarded instead of dropped, for example. Want and Have are actions.
	WrongAction Kind = "action"
	// WrongService: the frontend leads to another Service. Have is its name.
	WrongService Kind = "service"
	// EndpointMissing: connections never go to Endpoint, and should.
	EndpointMissing Kind = "endpointMissing"
	// EndpointExtra: connections go to Endpoint, and should not. It is stale if the Service had it before; only who
	// watched the API knows that.
	EndpointExtra Kind = "endpointExtra"
	// WrongPort: connections go to Endpoint's address with the port of Have instead.
	WrongPort Kind = "endpointPort"
	// Lost: some connections go nowhere, although no endpoint is missing.
	Lost Kind = "lost"
	// WrongAffinity, WrongSources, WrongMasquerade and NoHairpin: see the fields of Frontend and Endpoint.
	WrongAffinity   Kind = "affinity"
	WrongSources    Kind = "sources"
	WrongMasquerade Kind = "masquerade"
	NoHairpin       Kind = "hairpin"
	// Unmeasured: rules that these packets may meet were not understood. Have is the first of them. It says nothing
	// about whether the frontend is right.
	Unmeasured Kind = "unmeasured"
)

// Difference is one thing that is not as it has to be, at all the frontends of one Service port where it is so.
type Difference struct {
	Kind     Kind   `json:"kind"`
	Family   Family `json:"family"`
	Service  string `json:"service,omitempty"` // namespace/name; empty if Extra and the rules do not say
	PortName string `json:"portName,omitempty"`
	// Endpoint is valid for the kinds that are about one.
	Endpoint netip.AddrPort `json:"endpoint"`
	// Want and Have are words about the property that differs; empty if Kind says it all.
	Want string `json:"want,omitempty"`
	Have string `json:"have,omitempty"`
	// Whole: the kind Missing or Extra, and true for all frontends of the Service in this family.
	Whole bool `json:"whole,omitempty"`
	// At has all frontends that differ so, in the order of the table. It is never empty.
	At []Place `json:"at"`
}

// Place is a frontend for connections from some origins.
type Place struct {
	Key
	From []Origin `json:"from"`
}

// same is what two Differences have in common that are the same one.
type same struct {
	kind              Kind
	family            Family
	service, portName string
	endpoint          netip.AddrPort
	want, have        string
}

func (d Difference) same() same {
	return same{d.Kind, d.Family, d.Service, d.PortName, d.Endpoint, d.Want, d.Have}
}

// Compare returns how a table that was read differs from one that is wanted, sorted by Service, port and kind. Both
// have the same family.
//
// If several wanted frontends have one key (two Services with one external IP and port), the rules may do as any one of
// them says, as kube-proxy does. If several have it in the table that was read (a node port that addresses of the node
// serve differently), each has to be as wanted.
func Compare(want, have Table) []Difference {
	c := comparison{
		family: have.Family, at: map[same]*Difference{}, places: map[*Difference]map[Key]int{},
		wanted: map[string]int{}, missing: map[string]int{},
	}
	wanted, had := index(want), index(have)
	for _, w := range want.Frontends {
		c.wanted[w.Service]++
	}
	for key, ws := range wanted {
		hs := had[key]
		if hs == nil && have.Incomplete {
			for i, origin := range Origins {
				for _, w := range ws[i] {
					d := Difference{Kind: Unmeasured, Service: w.Service, PortName: w.PortName, Have: first(have.Unknown)}
					c.add(d, key, origin)
				}
			}
			continue
		}
		for i, origin := range Origins {
			candidates := ws[i]
			if origin == Pod && have.PodsBy == "" {
				candidates = ws[slices.Index(Origins[:], Outside)]
			}
			if hs == nil || len(hs[i]) == 0 {
				c.compare(key, origin, candidates, nil)
				continue
			}
			for j := range hs[i] {
				c.compare(key, origin, candidates, hs[i][j:j+1])
			}
		}
	}
	for key, hs := range had {
		if _, ok := wanted[key]; ok {
			continue
		}
		for i, origin := range Origins {
			for _, h := range hs[i] {
				switch {
				case len(h.Unknown) > 0:
					c.add(Difference{Kind: Unmeasured, Service: h.Service, PortName: h.PortName, Have: h.Unknown[0]}, key, origin)
				case h.Action != Pass:
					c.add(Difference{Kind: Extra, Service: h.Service, PortName: h.PortName, Have: string(h.Action)}, key, origin)
				}
			}
		}
	}
	return c.sorted()
}

func first(list []string) string {
	if len(list) == 0 {
		return "rules that were not understood"
	}
	return list[0]
}

// index has the frontends of each key by origin.
func index(t Table) map[Key]*[len(Origins)][]Frontend {
	byKey := map[Key]*[len(Origins)][]Frontend{}
	for _, f := range t.Frontends {
		of := byKey[f.Key]
		if of == nil {
			of = &[len(Origins)][]Frontend{}
			byKey[f.Key] = of
		}
		if i := slices.Index(Origins[:], f.From); i >= 0 {
			of[i] = append(of[i], f)
		}
	}
	return byKey
}

type comparison struct {
	family Family
	at     map[same]*Difference
	// places are the indexes of keys in At.
	places map[*Difference]map[Key]int
	// wanted and missing count frontends of a Service.
	wanted, missing map[string]int
}

func (c *comparison) add(d Difference, key Key, from Origin) {
	d.Family = c.family
	known := c.at[d.same()]
	if known == nil {
		known = &d
		c.at[d.same()], c.places[known] = known, map[Key]int{}
	}
	if i, ok := c.places[known][key]; ok {
		if !slices.Contains(known.At[i].From, from) {
			known.At[i].From = append(known.At[i].From, from)
		}
		return
	}
	c.places[known][key] = len(known.At)
	known.At = append(known.At, Place{key, []Origin{from}})
}

// compare adds the differences of one key and origin. Of several candidates, the one counts that has none, else the one
// of the Service that the rules name.
func (c *comparison) compare(key Key, origin Origin, candidates, had []Frontend) {
	var chosen []Difference
	for i, w := range candidates {
		differences := frontends(w, had)
		if len(differences) == 0 {
			return
		}
		if i == 0 || len(had) == 1 && had[0].Service == w.Service {
			chosen = differences
		}
	}
	for _, d := range chosen {
		if d.Kind == Missing {
			c.missing[d.Service]++
		}
		c.add(d, key, origin)
	}
}

// frontends compares one frontend, without its place, with the one that was read, if there is one.
func frontends(w Frontend, had []Frontend) []Difference {
	base := Difference{Service: w.Service, PortName: w.PortName}
	of := func(kind Kind, want, have string) Difference {
		d := base
		d.Kind, d.Want, d.Have = kind, want, have
		return d
	}
	if len(had) == 0 {
		if w.Action == Pass {
			return nil
		}
		return []Difference{of(Missing, string(w.Action), "")}
	}
	h := had[0]
	switch {
	case len(h.Unknown) > 0:
		return []Difference{of(Unmeasured, "", h.Unknown[0])}
	case h.Action == Pass && w.Action == Pass:
		return nil
	case h.Action == Pass:
		return []Difference{of(Missing, string(w.Action), "")}
	case h.Service != "" && h.Service != w.Service:
		return []Difference{of(WrongService, w.Service, h.Service)}
	case h.Action != w.Action:
		return []Difference{of(WrongAction, string(w.Action), string(h.Action))}
	}
	var all []Difference
	switch {
	case !slices.Equal(w.Sources, h.Sources):
		all = append(all, of(WrongSources, prefixes(w.Sources), prefixes(h.Sources)))
	case h.Elsewhere != "":
		all = append(all, of(WrongSources, "drop elsewhere", string(h.Elsewhere)+" elsewhere"))
	}
	if w.Action != Forward {
		return all
	}
	endpoints := endpoints(base, w.Endpoints, h.Endpoints)
	all = append(all, endpoints...)
	if h.Lost && !slices.ContainsFunc(endpoints, func(d Difference) bool { return d.Kind == EndpointMissing }) {
		all = append(all, of(Lost, "", ""))
	}
	if w.AffinitySeconds != h.AffinitySeconds {
		all = append(all, of(WrongAffinity, affinity(w.AffinitySeconds), affinity(h.AffinitySeconds)))
	}
	if w.Masquerade != Either && w.Masquerade != h.Masquerade {
		all = append(all, of(WrongMasquerade, string(w.Masquerade), string(h.Masquerade)))
	}
	return all
}

// endpoints compares two sorted lists.
func endpoints(base Difference, want, have []Endpoint) []Difference {
	var all, missing, extra []Difference
	of := func(kind Kind, e Endpoint) Difference {
		d := base
		d.Kind, d.Endpoint = kind, e.Address
		return d
	}
	for len(want) > 0 || len(have) > 0 {
		order := 0
		switch {
		case len(want) == 0:
			order = 1
		case len(have) == 0:
			order = -1
		default:
			order = want[0].compare(have[0])
		}
		switch {
		case order < 0:
			missing = append(missing, of(EndpointMissing, want[0]))
			want = want[1:]
		case order > 0:
			extra = append(extra, of(EndpointExtra, have[0]))
			have = have[1:]
		default:
			if want[0].Hairpin && !have[0].Hairpin {
				all = append(all, of(NoHairpin, want[0]))
			}
			want, have = want[1:], have[1:]
		}
	}
	// One that is missing and one that is extra with the same address is one with a wrong port.
	for _, m := range missing {
		i := slices.IndexFunc(extra, func(e Difference) bool { return e.Endpoint.Addr() == m.Endpoint.Addr() })
		if i >= 0 {
			m.Kind, m.Want, m.Have = WrongPort, fmt.Sprint(m.Endpoint.Port()), fmt.Sprint(extra[i].Endpoint.Port())
			extra = slices.Delete(extra, i, i+1)
		}
		all = append(all, m)
	}
	return append(all, extra...)
}

func affinity(seconds int32) string {
	switch seconds {
	case 0:
		return "none"
	case MixedAffinity:
		return "not for all endpoints alike"
	}
	return fmt.Sprintf("%d s", seconds)
}

func prefixes(list []netip.Prefix) string {
	if len(list) == 0 {
		return "all sources"
	}
	texts := make([]string, len(list))
	for i, p := range list {
		texts[i] = p.String()
	}
	return strings.Join(texts, " ")
}

func (c *comparison) sorted() []Difference {
	all := make([]Difference, 0, len(c.at))
	for _, d := range c.at {
		switch d.Kind {
		case Missing:
			d.Whole = c.missing[d.Service] == c.wanted[d.Service]
		case Extra:
			d.Whole = c.wanted[d.Service] == 0
		}
		for _, p := range d.At {
			slices.SortFunc(p.From, func(a, b Origin) int {
				return cmp.Compare(slices.Index(Origins[:], a), slices.Index(Origins[:], b))
			})
		}
		slices.SortFunc(d.At, func(a, b Place) int { return a.compare(b.Key) })
		all = append(all, *d)
	}
	slices.SortFunc(all, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.PortName, b.PortName), cmp.Compare(a.Kind, b.Kind),
			a.Endpoint.Compare(b.Endpoint), a.At[0].compare(b.At[0].Key), cmp.Compare(a.Want, b.Want),
			cmp.Compare(a.Have, b.Have))
	})
	return all
}

// Both returns the differences that are in two looks, with the places that are in both. Endpoints change while one
// looks: what is in one look only is a change under way.
func Both(first, second []Difference) []Difference {
	earlier := map[same]Difference{}
	for _, d := range first {
		earlier[d.same()] = d
	}
	var both []Difference
	for _, d := range second {
		e, ok := earlier[d.same()]
		if !ok {
			continue
		}
		before := make(map[Key][]Origin, len(e.At))
		for _, p := range e.At {
			before[p.Key] = p.From
		}
		var at []Place
		for _, p := range d.At {
			from, ok := before[p.Key]
			if !ok {
				continue
			}
			p.From = slices.DeleteFunc(slices.Clone(p.From), func(o Origin) bool { return !slices.Contains(from, o) })
			if len(p.From) > 0 {
				at = append(at, p)
			}
		}
		if len(at) > 0 {
			d.At, d.Whole = at, d.Whole && e.Whole
			both = append(both, d)
		}
	}
	return both
}
