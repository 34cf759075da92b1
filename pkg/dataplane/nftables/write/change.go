// SPDX-License-Identifier: Apache-2.0

package write

import (
	"maps"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/knftables"

	"github.com/checkplan/checkplan/pkg/dataplane"
)

// Replace adds to a transaction what makes the table have these rules, whatever it had before.
func (r *Rules) Replace(tx *knftables.Transaction) {
	tx.Add(r.table())
	tx.Delete(r.table())
	r.Change(tx, &Rules{}, time.Time{})
}

func (r *Rules) table() *knftables.Table {
	return &knftables.Table{Comment: comment(r.Comment)}
}

// Change adds to a transaction what turns one set of rules into these, and returns what the table has then: these
// rules, and chains without rules that are stale, from now on or already. The older rules are what Change or found
// returned. Sets with a timeout keep their elements.
func (r *Rules) Change(tx *knftables.Transaction, older *Rules, now time.Time) *Rules {
	newer := &Rules{Family: r.Family, Comment: r.Comment, Chains: maps.Clone(r.Chains), Sets: r.Sets}
	tx.Add(r.table())
	// What is referred to comes before what refers to it: first all objects, then rules and elements.
	for _, name := range sorted(r.Chains) {
		if _, ok := older.Chains[name]; !ok {
			tx.Add(r.Chains[name].object(name))
		}
	}
	for _, name := range sorted(r.Sets) {
		if _, ok := older.Sets[name]; !ok {
			tx.Add(r.Sets[name].object(name))
		}
	}
	for _, name := range r.mapsFirst() {
		is, was := r.Chains[name], older.Chains[name]
		if slices.Equal(was.Rules, is.Rules) {
			continue
		}
		if len(was.Rules) > 0 {
			tx.Flush(&knftables.Chain{Name: name})
		}
		for _, rule := range is.Rules {
			tx.Add(&knftables.Rule{Chain: name, Rule: rule.Text, Comment: comment(rule.Comment)})
		}
	}
	for _, name := range sorted(older.Chains) {
		if _, ok := r.Chains[name]; ok {
			continue
		}
		was := older.Chains[name]
		newer.Chains[name] = was
		if was.stale.IsZero() {
			newer.Chains[name] = Chain{stale: now}
		}
		if len(was.Rules) > 0 {
			tx.Flush(&knftables.Chain{Name: name})
		}
	}
	for _, name := range sorted(older.Sets) {
		was := older.Sets[name]
		is, ok := r.Sets[name]
		switch {
		case !ok || is.Timeout != 0 || is.unknown:
		case was.unknown && is.Map:
			tx.Flush(&knftables.Map{Name: name})
		case was.unknown:
			tx.Flush(&knftables.Set{Name: name})
		default:
			for _, key := range sorted(was.Elements) {
				if is.Elements[key].differs(was.Elements[key]) {
					e := was.element(name, was.Elements[key])
					e.Comment = nil
					tx.Delete(e)
				}
			}
		}
	}
	for _, name := range sorted(r.Sets) {
		is, was := r.Sets[name], older.Sets[name]
		for _, key := range sorted(is.Elements) {
			if is.Elements[key].differs(was.Elements[key]) {
				tx.Add(is.element(name, is.Elements[key]))
			}
		}
	}
	for _, name := range sorted(older.Sets) {
		was := older.Sets[name]
		switch _, ok := r.Sets[name]; {
		case ok:
		case was.Map:
			tx.Delete(&knftables.Map{Name: name})
		default:
			tx.Delete(&knftables.Set{Name: name})
		}
	}
	return newer
}

// mapsAtOnce is how many chains with maps of their own are added at once. The kernel adds such a map in a time that
// grows with the transaction so far: it goes through it (__nft_set_trans_bind of Linux 6.18). With 10,000 maps after
// the rules of 100,000 endpoints, that took minutes.
const mapsAtOnce = 500

// steps returns what the table has after each of the transactions that lead from older rules, or from no table if they
// are nil, to these: the last one. The others only add chains to which nothing leads yet. There are others only if many
// chains with maps are added.
func (r *Rules) steps(older *Rules) []*Rules {
	step := NewRules(r.Family, r.Comment)
	if older != nil {
		step.Chains, step.Sets = maps.Clone(older.Chains), maps.Clone(older.Sets)
	}
	var plain, mapped []string
	for _, name := range sorted(r.Chains) {
		switch _, known := step.Chains[name]; {
		case known:
		case r.Chains[name].hasMap():
			mapped = append(mapped, name)
		case strings.HasPrefix(name, endpointPrefix), name == MarkMasquerade:
			plain = append(plain, name) // which lead to no others
		}
	}
	if len(mapped) <= mapsAtOnce {
		return []*Rules{r}
	}
	for name, set := range r.Sets {
		if _, known := step.Sets[name]; !known && set.Timeout != 0 { // chains of endpoints name it
			step.Sets[name] = set
		}
	}
	var steps []*Rules
	batches := slices.Collect(slices.Chunk(mapped, mapsAtOnce))
	for _, batch := range append([][]string{plain}, batches...) {
		step = &Rules{Family: r.Family, Comment: r.Comment, Chains: maps.Clone(step.Chains), Sets: step.Sets}
		for _, name := range batch {
			step.Chains[name] = r.Chains[name]
		}
		steps = append(steps, step)
	}
	return append(steps, r)
}

// hasMap reports whether a rule of the chain has a map, or a set, without a name.
func (c Chain) hasMap() bool {
	return slices.ContainsFunc(c.Rules, func(r Rule) bool {
		return strings.Contains(r.Text, "vmap { ") || strings.Contains(r.Text, "!= { ")
	})
}

// mapsFirst returns the names of the chains: see mapsAtOnce.
func (r *Rules) mapsFirst() []string {
	names := sorted(r.Chains)
	slices.SortStableFunc(names, func(a, b string) int {
		switch first, second := r.Chains[a].hasMap(), r.Chains[b].hasMap(); {
		case first == second:
			return 0
		case first:
			return -1
		}
		return 1
	})
	return names
}

// tidy adds to a transaction what deletes the chains that are stale since some time, and returns what the table has
// then. More means that others are stale.
func (r *Rules) tidy(tx *knftables.Transaction, since time.Time) (newer *Rules, more bool) {
	newer = &Rules{Family: r.Family, Comment: r.Comment, Chains: maps.Clone(r.Chains), Sets: r.Sets}
	for _, name := range sorted(r.Chains) {
		switch c := r.Chains[name]; {
		case c.stale.IsZero():
		case c.stale.After(since):
			more = true
		default:
			tx.Delete(&knftables.Chain{Name: name})
			delete(newer.Chains, name)
		}
	}
	return newer, more
}

// found is what is known of a table of which only the names were read.
func found(family dataplane.Family, chains, sets, maps []string) *Rules {
	r := &Rules{Family: family, Chains: map[string]Chain{}, Sets: map[string]Set{}}
	for _, name := range chains {
		r.Chains[name] = Chain{Rules: []Rule{{Text: "not read"}}}
	}
	for _, name := range sets {
		r.Sets[name] = Set{unknown: true}
	}
	for _, name := range maps {
		r.Sets[name] = Set{Map: true, unknown: true}
	}
	return r
}

// differs reports whether an element is another one. The zero value is no element.
func (e Element) differs(o Element) bool {
	return e.Value != o.Value || e.Comment != o.Comment || len(e.Key) != len(o.Key)
}

func (c Chain) object(name string) *knftables.Chain {
	object := &knftables.Chain{Name: name}
	if c.Hook != "" {
		object.Type, object.Hook, object.Priority = &c.Type, &c.Hook, &c.Priority
	}
	return object
}

func (s Set) object(name string) knftables.Object {
	if s.Map {
		return &knftables.Map{Name: name, Type: s.Type}
	}
	object := &knftables.Set{Name: name, Type: s.Type}
	if s.Timeout != 0 { // without dynamic, the kernel adds the flag later, and the set cannot be added again
		object.Flags, object.Timeout = []knftables.SetFlag{knftables.DynamicFlag, knftables.TimeoutFlag}, &s.Timeout
	}
	return object
}

func (s Set) element(name string, e Element) *knftables.Element {
	object := &knftables.Element{Key: e.Key, Comment: comment(e.Comment)}
	if s.Map {
		object.Map, object.Value = name, []string{e.Value}
	} else {
		object.Set = name
	}
	return object
}

// comment returns nil for a text that is too long: names of a Service and a port have up to 191 bytes, the limit is
// 128, and half a name would be that of another one.
func comment(text string) *string {
	if text == "" || len(text) > knftables.CommentLengthMax {
		return nil
	}
	return &text
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
