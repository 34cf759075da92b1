// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/dataplane"
)

// What following one frontend may cost. kube-proxy's own rules take some ten steps per endpoint; and the kernel allows
// 16 jumps.
const (
	maxSteps = 1_000_000
	maxDepth = 64
)

// Table says what the rules do with each frontend that they name, from each origin.
func Table(set *Ruleset, mode dataplane.Mode, family dataplane.Family) dataplane.Table {
	table := dataplane.Table{
		Mode: mode, Family: family, NodePortAddresses: set.NodePortAddresses, Incomplete: set.Incomplete,
		Frontends: []dataplane.Frontend{},
	}
	pods := set.pods()
	table.PodsBy = pods.String()
	for _, text := range set.Unknown {
		table.Unknown = note(table.Unknown, text)
	}
	for key := range set.Keys {
		var ways [][]dataplane.Frontend
		for _, to := range set.places(key) {
			var way []dataplane.Frontend
			for _, origin := range dataplane.Origins {
				w := walker{set: set, key: key, to: to, origin: origin, pods: pods, endpoints: map[netip.AddrPort]*endpoint{}}
				way = append(way, w.frontend())
			}
			if !slices.ContainsFunc(ways, func(w []dataplane.Frontend) bool { return reflect.DeepEqual(w, way) }) {
				ways = append(ways, way)
			}
		}
		table.Frontends = append(table.Frontends, slices.Concat(ways...)...)
	}
	table.Sort()
	return table
}

// places are the addresses at which packets to a key are followed. A node port is followed to the first of the node's
// addresses that rules name, or to any; where each has a virtual server of its own, to all of them.
func (s *Ruleset) places(key dataplane.Key) []netip.Addr {
	switch {
	case key.Address.IsValid() || len(s.NodePortAddresses) == 0:
		return []netip.Addr{key.Address}
	case s.Servers != nil:
		return s.NodePortAddresses
	}
	return s.NodePortAddresses[:1]
}

func note(list []string, text string) []string {
	if len(list) < dataplane.MaxUnknown && !slices.Contains(list, text) {
		list = append(list, text)
	}
	return list
}

// pods is how rules recognise packets of the node's pods.
type pods struct {
	prefix netip.Prefix
	iface  string
}

func (p pods) String() string {
	if p.prefix.IsValid() {
		return p.prefix.String()
	}
	return p.iface
}

// is reports whether a condition asks for pods of the node, whatever its Not.
func (p pods) is(c Cond) bool { return c.Pods && p == podsOf(c) && p != (pods{}) }

func podsOf(c Cond) pods {
	switch {
	case c.Field == Interface:
		return pods{iface: c.Text}
	case c.Field == Source && len(c.Addrs.Single) == 0 && len(c.Addrs.Prefixes) == 1:
		return pods{prefix: c.Addrs.Prefixes[0]}
	}
	return pods{}
}

// pods finds it. All rules of a proxy have the same; if not, the most frequent one counts.
func (s *Ruleset) pods() pods {
	count := map[pods]int{}
	for _, chain := range s.Chains {
		for i := range chain {
			for _, c := range chain[i].Conds {
				if c.Pods {
					count[podsOf(c)]++
				}
			}
		}
	}
	delete(count, pods{})
	var best pods
	byText := func(a, b pods) int { return cmp.Compare(a.String(), b.String()) }
	for _, p := range slices.SortedFunc(maps.Keys(count), byText) {
		if count[p] > count[best] {
			best = p
		}
	}
	return best
}

// walker follows the packets of one frontend from one origin.
type walker struct {
	set *Ruleset
	key dataplane.Key
	// to is where packets go: the key's address, or that of the node at which a node port is followed; invalid: any.
	to     netip.Addr
	origin dataplane.Origin
	pods   pods
	steps  int

	label     string
	unknown   []string
	outcomes  []outcome
	endpoints map[netip.AddrPort]*endpoint
}

// packet is what the rules did so far. It is copied where ways part.
type packet struct {
	mark      uint32
	dnat      netip.AddrPort
	snat      bool
	in        []netip.Prefix // the source is in one of these; nil: it was not asked for, or is in none
	elsewhere bool           // the source is outside of prefixes that were asked for
	hairpin   netip.Addr     // the packet is marked if this is its source
	sticky    *sticky        // it goes to where an earlier connection went
	noted     *sticky        // and later connections go where it goes
	balanced  bool           // although it is sticky, it goes there without an earlier connection, too
}

type sticky struct {
	name    string
	seconds int32
}

// outcome is what becomes of a packet.
type outcome struct {
	packet
	action dataplane.Action
}

// endpoint is what is known of one.
type endpoint struct {
	balanced      bool // new clients may get it
	plain         bool // connections from it to itself may keep their source
	masquerades   map[dataplane.Masquerade]bool
	sticky, noted *sticky
}

// frame is a place in a chain, and where a return goes.
type frame struct {
	chain  string
	next   int
	parent *frame
	depth  int
	after  func(packet) // at the end of a base chain
}

func (w *walker) frontend() dataplane.Frontend {
	first := Prerouting
	if w.origin == dataplane.Node {
		first = Output
	}
	w.hook(first, packet{}, w.route)
	f := dataplane.Frontend{Key: w.key, From: w.origin, Unknown: w.unknown}
	f.Service, f.PortName, _ = strings.Cut(w.label, ":")
	w.judge(&f)
	return f
}

// route sends a packet on that has passed the hook at which its destination was rewritten.
func (w *walker) route(p packet) {
	here := w.local() && !p.dnat.IsValid()
	end := func(p packet) {
		if p.dnat.IsValid() {
			w.end(p, dataplane.Forward)
		} else {
			w.end(p, dataplane.Pass)
		}
	}
	out := func(p packet) { w.hook(Postrouting, p, end) }
	if w.set.Servers != nil { // the node's own packets meet them before it is decided whether they stay here
		out = func(p packet) { w.hook(Sent, p, func(p packet) { w.hook(Postrouting, p, end) }) }
		switch {
		case w.origin == dataplane.Node:
			w.balance(p, out, out)
		case here:
			w.hook(Input, p, func(p packet) { w.balance(p, out, end) })
		default:
			w.hook(Forward, p, func(p packet) { w.hook(Postrouting, p, end) })
		}
		return
	}
	switch {
	case here: // the node's own packets pass Postrouting before, which means nothing to those that stay here
		w.hook(Input, p, end)
	case w.origin == dataplane.Node:
		out(p)
	default:
		w.hook(Forward, p, out)
	}
}

// balance follows a packet to each endpoint of the virtual server that takes it, or on if none does.
func (w *walker) balance(p packet, taken, otherwise func(packet)) {
	if text, ok := w.set.Marks[p.mark]; ok {
		w.unknown = note(w.unknown, text)
	}
	server := w.set.Servers[dataplane.Key{Address: w.dest(p), Protocol: w.key.Protocol, Port: w.port(p)}]
	if server == nil || p.dnat.IsValid() {
		otherwise(p)
		return
	}
	if server.Text != "" {
		w.unknown = note(w.unknown, server.Text)
	}
	if len(server.Endpoints) == 0 {
		w.end(p, dataplane.Reject)
	}
	for _, endpoint := range server.Endpoints {
		to := p
		to.dnat = endpoint
		if server.AffinitySeconds != 0 {
			to.sticky = &sticky{endpoint.String(), server.AffinitySeconds}
			to.noted, to.balanced = to.sticky, true
		}
		taken(to)
	}
}

// local reports whether the packets go to an address of the node.
func (w *walker) local() bool { return !w.key.Address.IsValid() || w.set.Addresses[w.to] }

// source is the address that the node's own packets have, if that is known: a node that connects to one of its own
// addresses uses this address.
func (w *walker) source() (netip.Addr, bool) {
	return w.to, w.set.Servers != nil && w.origin == dataplane.Node && w.local()
}

// from reports whether packets can come from an address. An address of the node is the source of its own packets only:
// the kernel drops others.
func (w *walker) from(addr netip.Addr) bool {
	if source, ok := w.source(); ok {
		return addr == source
	}
	return w.origin == dataplane.Node || !w.set.Addresses[addr]
}

// hook takes the packet through the base chains of a hook.
func (w *walker) hook(hook Hook, p packet, then func(packet)) {
	w.base(w.set.Hooks[hook], p, then)
}

func (w *walker) base(chains []string, p packet, then func(packet)) {
	if len(chains) == 0 {
		then(p)
		return
	}
	w.run(&frame{chain: chains[0], after: func(p packet) { w.base(chains[1:], p, then) }}, p)
}

func (w *walker) end(p packet, action dataplane.Action) {
	w.outcomes = append(w.outcomes, outcome{p, action})
}

// run follows a packet from a place to its end.
func (w *walker) run(at *frame, p packet) {
	for {
		if w.steps++; w.steps > maxSteps || at.depth > maxDepth {
			w.unknown = note(w.unknown, "too many rules to follow, or a circle of jumps")
			return
		}
		rules := w.set.Chains[at.chain]
		next := w.set.next(at.chain, at.next, w.port(p))
		if next >= len(rules) {
			if at.parent == nil {
				at.after(p)
				return
			}
			at = at.parent
			continue
		}
		rule := &rules[next]
		at = &frame{at.chain, next + 1, at.parent, at.depth, at.after}

		matches, otherwise := w.matches(rule, &p)
		if otherwise != nil { // the packet may also go on
			w.run(at, *otherwise)
		}
		if !matches {
			continue
		}
		if rule.Text != "" {
			w.unknown = note(w.unknown, rule.Text)
		}
		verdict, label := rule.Verdict, rule.Label
		if rule.Map != nil {
			element, ok := w.lookup(rule.Map, at, p)
			if !ok {
				continue
			}
			verdict, label = element.Verdict, cmp.Or(element.Label, label)
		}
		if w.label == "" {
			w.label = label
		}
		for _, e := range rule.Effects {
			if e.Affinity != "" {
				p.noted = &sticky{e.Affinity, e.Seconds}
			} else {
				p.mark = p.mark&e.And ^ e.Xor
			}
		}
		to, ok := w.follow(verdict, at, p)
		if !ok {
			return
		}
		at, p = to.at, to.packet
	}
}

// longChain is the number of rules from which on a chain has an index.
const longChain = 32

// index has the places of a chain's rules: those for one port by that, and all others.
type index struct {
	ports  map[uint16][]int
	others []int
}

// next returns the place of the first rule, from one on, that a packet to the port can meet. A chain of kube-proxy can
// have one rule per Service, and each packet would have to be compared with all of them.
func (s *Ruleset) next(chain string, from int, port uint16) int {
	all := s.Chains[chain]
	if len(all) < longChain {
		return from
	}
	i := s.indexes[chain]
	if i == nil {
		i = &index{ports: map[uint16][]int{}}
		for at, r := range all {
			of := slices.IndexFunc(r.Conds, func(c Cond) bool { return c.Field == DestPort && !c.Not && c.Low == c.High })
			if of < 0 {
				i.others = append(i.others, at)
			} else {
				i.ports[r.Conds[of].Low] = append(i.ports[r.Conds[of].Low], at)
			}
		}
		if s.indexes == nil {
			s.indexes = map[string]*index{}
		}
		s.indexes[chain] = i
	}
	first := len(all)
	for _, list := range [][]int{i.ports[port], i.others} {
		if at, _ := slices.BinarySearch(list, from); at < len(list) {
			first = min(first, list[at])
		}
	}
	return first
}

type step struct {
	at *frame
	packet
}

// follow applies a verdict. It is false if the packet's way is followed to its end.
func (w *walker) follow(v Verdict, at *frame, p packet) (step, bool) {
	base := at
	for base.parent != nil {
		base = base.parent
	}
	switch v.Do {
	case Continue:
		return step{at, p}, true
	case Jump:
		return step{&frame{chain: v.Chain, parent: at, depth: at.depth + 1}, p}, true
	case Goto:
		to := &frame{chain: v.Chain, parent: at.parent, depth: at.depth + 1, after: at.after}
		return step{to, p}, true
	case Return:
		if at.parent != nil {
			return step{at.parent, p}, true
		}
	case Drop:
		w.end(p, dataplane.Drop)
		return step{}, false
	case Reject:
		w.end(p, dataplane.Reject)
		return step{}, false
	case DNAT:
		p.dnat = v.To
	case Masquerade:
		p.snat = true
	case Accept:
	}
	base.after(p)
	return step{}, false
}

// lookup returns a map's element for the packet. For a random one, it follows all but the last itself.
func (w *walker) lookup(m *Map, at *frame, p packet) (Element, bool) {
	if m.Random > 0 {
		for i, e := range m.Choices {
			if i == len(m.Choices)-1 && len(m.Choices) >= m.Random {
				return e, true
			}
			if w.label == "" {
				w.label = e.Label
			}
			if next, ok := w.follow(e.Verdict, at, p); ok {
				w.run(next.at, next.packet)
			}
		}
		return Element{}, false // and some numbers have no element
	}
	e, ok := m.Elements[w.mapKey(m.Fields, p)]
	return e, ok
}

// mapKey is the packet's values of some fields.
func (w *walker) mapKey(fields []Field, p packet) MapKey {
	var key MapKey
	for _, f := range fields {
		switch f {
		case Dest:
			key.Dest = w.dest(p)
		case Protocol:
			key.Protocol = w.key.Protocol
		case DestPort:
			key.Port = w.port(p)
		}
	}
	return key
}

// dest is the packet's destination. It is invalid for an address of the node, if node ports are served at all of them.
func (w *walker) dest(p packet) netip.Addr {
	if p.dnat.IsValid() {
		return p.dnat.Addr()
	}
	return w.to
}

func (w *walker) port(p packet) uint16 {
	if p.dnat.IsValid() {
		return p.dnat.Port()
	}
	return w.key.Port
}

// matches reports whether the packet meets the rule's conditions. If it may meet them or not, otherwise is the packet
// that does not, and p becomes the one that does. A rule with a part that was not understood is met if the rest is.
func (w *walker) matches(r *Rule, p *packet) (matches bool, otherwise *packet) {
	for i := range r.Conds {
		if met, known := w.meets(w.resolve(&r.Conds[i], p), p); known && !met {
			return false, nil
		}
	}
	not := *p // as it is if the rule is not met
	for i := range r.Conds {
		c := w.resolve(&r.Conds[i], p)
		if _, known := w.meets(c, p); known {
			continue
		}
		switch c.Field {
		case Chance:
			otherwise = &not
		case Affinity:
			p.sticky, otherwise = &sticky{c.Text, c.Seconds}, &not
		case Source:
			// Connections from an endpoint to itself are marked: decided when it is known where they go.
			if addr, ok := c.Addrs.one(); ok && !c.Not {
				if mark, only := w.marks(r, *p); only {
					if mark != p.mark {
						p.hairpin = addr
					}
					return false, nil
				}
				if r.Verdict.Do == Masquerade && addr == p.dnat.Addr() { // or masqueraded, when it is known
					p.hairpin = addr
					return false, nil
				}
			}
			if c.Pods {
				w.unknown = note(w.unknown, "different ways to recognise pods of the node")
				continue
			}
			if p.in != nil { // what is left of the sources that were asked for before
				both := intersect(p.in, c.Addrs.all())
				switch {
				case slices.Equal(both, p.in) == c.Not && (c.Not || len(both) == 0):
					return false, nil
				case len(both) == 0 || slices.Equal(both, p.in):
					continue
				case !c.Not:
					p.in = both
				default:
					not.in = both
				}
				otherwise = &not
				continue
			}
			inside, outside := p, &not
			if c.Not {
				inside, outside = &not, p
			}
			inside.in, inside.elsewhere = c.Addrs.all(), false
			outside.elsewhere = true
			otherwise = &not
		case Interface:
			w.unknown = note(w.unknown, "a condition on the interface "+c.Text)
		default: // the rule has a Text
		}
	}
	return true, otherwise
}

// intersect returns the addresses that are in both lists. Of two prefixes, one has the other, or they have nothing in
// common.
func intersect(a, b []netip.Prefix) []netip.Prefix {
	var both []netip.Prefix
	for _, p := range a {
		for _, q := range b {
			switch {
			case p.Bits() >= q.Bits() && q.Contains(p.Addr()):
				both = append(both, p)
			case p.Contains(q.Addr()):
				both = append(both, q)
			}
		}
	}
	return dataplane.Prefixes(both)
}

// resolve makes of a condition on a set one that meets knows, for this packet; and of one on the source what is known
// of that.
func (w *walker) resolve(c *Cond, p *packet) *Cond {
	if c.Field == Set {
		sources, has := c.Set[w.mapKey(c.Fields, *p)]
		if !has || sources == nil {
			return constant(has != c.Not)
		}
		c = &Cond{Field: Source, Not: c.Not, Addrs: sources}
	}
	if c.Field != Source || w.set.Servers == nil || w.pods.is(*c) {
		return c
	}
	if source, ok := w.source(); ok {
		return constant(c.Addrs.Has(source) != c.Not)
	}
	for addr := range c.Addrs.Single {
		if !w.from(addr) { // without those that no packet has
			possible := maps.Clone(c.Addrs.Single)
			maps.DeleteFunc(possible, func(addr netip.Addr, _ bool) bool { return !w.from(addr) })
			return &Cond{Field: Source, Not: c.Not, Addrs: &Addrs{possible, c.Addrs.Prefixes}, Pods: c.Pods}
		}
	}
	return c
}

// constant is a condition that each packet meets, or none.
func constant(met bool) *Cond { return &Cond{Field: Never, Not: met} }

// meets reports whether the packet meets a condition, if that is known.
func (w *walker) meets(c *Cond, p *packet) (met, known bool) {
	switch c.Field {
	case Dest:
		met = c.Addrs.Has(w.dest(*p))
	case Protocol:
		met = c.Text == w.key.Protocol
	case DestPort:
		met = c.Low <= w.port(*p) && w.port(*p) <= c.High
	case DestLocal:
		met = w.local() && !p.dnat.IsValid()
	case SourceLocal:
		met = w.origin == dataplane.Node
	case State:
		met = c.New
	case Translated:
		met = p.dnat.IsValid()
	case Mark:
		met = p.mark&c.Mask == c.Value
	case Never:
		met = false
	case Virtual:
		met = w.set.Servers != nil && p.dnat.IsValid() && (c.Addrs == nil || c.Addrs.Has(w.to)) &&
			(c.Text == "" || c.Text == w.key.Protocol) && c.Low <= w.key.Port && w.key.Port <= c.High
	case Interface, Source:
		switch {
		case w.pods.is(*c):
			met = w.origin == dataplane.Pod
		case c.Field == Source && c.Addrs.everything():
			met = true
		case c.Field == Source && (len(c.Addrs.all()) == 0 || c.Addrs.loopback()):
			met = false
		default:
			return false, false
		}
	default:
		return false, false
	}
	return met != c.Not, true
}

// marks returns the packet's mark after the rule, if the rule does nothing but change it.
func (w *walker) marks(r *Rule, p packet) (mark uint32, only bool) {
	if r.Verdict.Do != Jump || r.Map != nil || len(r.Effects) > 0 || r.Text != "" {
		return 0, false
	}
	mark = p.mark
	for _, inner := range w.set.Chains[r.Verdict.Chain] {
		if len(inner.Conds) > 0 || inner.Map != nil || inner.Text != "" {
			return 0, false
		}
		if inner.Verdict.Do == Return { // of iptables-legacy, each chain ends so
			return mark, true
		}
		if inner.Verdict.Do != Continue {
			return 0, false
		}
		for _, e := range inner.Effects {
			if e.Affinity != "" {
				return 0, false
			}
			mark = mark&e.And ^ e.Xor
		}
	}
	return mark, true
}

// judge puts all outcomes together.
func (w *walker) judge(f *dataplane.Frontend) {
	var inside, outside, anywhere []outcome
	var sources []netip.Prefix
	for _, o := range w.outcomes {
		switch {
		case o.in != nil:
			inside, sources = append(inside, o), append(sources, o.in...)
		case o.elsewhere:
			outside = append(outside, o)
		default:
			anywhere = append(anywhere, o)
		}
	}
	allowed := anywhere
	if len(inside) > 0 || len(outside) > 0 {
		allowed = append(inside, anywhere...)
		f.Sources = dataplane.Prefixes(sources)
		for _, o := range outside {
			if o.action != dataplane.Drop && f.Sources != nil {
				f.Elsewhere = o.action
			}
		}
	}
	w.action(f, allowed)
	if f.Action == dataplane.Drop && f.Elsewhere == "" {
		f.Sources = nil
	}
}

func (w *walker) action(f *dataplane.Frontend, allowed []outcome) {
	f.Action = dataplane.Pass
	for i, o := range allowed {
		switch {
		case o.action == dataplane.Forward:
			w.arrive(o)
		case i > 0 && f.Action != o.action && f.Action != dataplane.Forward:
			w.unknown = note(w.unknown, "connections are treated differently by chance")
		}
		if f.Action != dataplane.Forward {
			f.Action = o.action
		}
		f.Lost = f.Lost || o.action != dataplane.Forward
	}
	f.Unknown = w.unknown
	if f.Action != dataplane.Forward {
		f.Lost = false
		return
	}
	seconds, masquerades := map[int32]bool{}, map[dataplane.Masquerade]bool{}
	for addr, e := range w.endpoints {
		if e.balanced {
			f.Endpoints = append(f.Endpoints, dataplane.Endpoint{Address: addr, Hairpin: !e.plain})
		}
		seconds[e.seconds()] = true
		for m := range e.masquerades {
			masquerades[m] = true
		}
	}
	slices.SortFunc(f.Endpoints, func(a, b dataplane.Endpoint) int { return a.Address.Compare(b.Address) })
	f.AffinitySeconds, f.Masquerade = dataplane.MixedAffinity, dataplane.Undecided
	if len(seconds) == 1 {
		f.AffinitySeconds = slices.Collect(maps.Keys(seconds))[0]
	}
	if len(masquerades) == 1 {
		f.Masquerade = slices.Collect(maps.Keys(masquerades))[0]
	}
}

// arrive notes what an outcome says of its endpoint.
func (w *walker) arrive(o outcome) {
	e := w.endpoints[o.dnat]
	if e == nil {
		e = &endpoint{masquerades: map[dataplane.Masquerade]bool{}}
		w.endpoints[o.dnat] = e
	}
	e.plain = e.plain || o.hairpin != o.dnat.Addr() && !o.snat && w.from(o.dnat.Addr())
	e.noted = o.noted
	if o.sticky != nil {
		e.sticky = o.sticky
	}
	if o.sticky == nil || o.balanced {
		e.balanced = true
	}
	if o.snat {
		e.masquerades[dataplane.Rewritten] = true
	} else {
		e.masquerades[dataplane.Preserved] = true
	}
}

func (e *endpoint) seconds() int32 {
	switch {
	case e.sticky == nil && e.noted == nil:
		return 0
	case e.sticky == nil || e.noted == nil || e.sticky.name != e.noted.name || !e.balanced:
		return dataplane.MixedAffinity
	}
	return e.sticky.seconds
}
