// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/rules"
)

// Ruleset converts a dump. Names of chains are what name makes of a table's and a chain's. Keys, labels and what asks
// for pods are left to the caller, who knows what the names mean. A rule with a part that was not understood has a
// Text.
func (d *Dump) Ruleset(name func(table, chain string) string) *rules.Ruleset {
	set := &rules.Ruleset{
		Hooks: map[rules.Hook][]string{}, Chains: map[string][]rules.Rule{}, Keys: map[dataplane.Key]bool{},
	}
	base := slices.Clone(d.Chains)
	slices.SortStableFunc(base, func(a, b Chain) int { return cmp.Compare(a.Priority, b.Priority) })
	for _, c := range base {
		set.Chains[name(c.Table, c.Name)] = nil
		if c.Hook != "" {
			set.Hooks[rules.Hook(c.Hook)] = append(set.Hooks[rules.Hook(c.Hook)], name(c.Table, c.Name))
		}
	}
	sets := map[[2]string]*Set{}
	for i := range d.Sets {
		sets[[2]string{d.Sets[i].Table, d.Sets[i].Name}] = &d.Sets[i]
	}
	for i := range d.Rules {
		r := &d.Rules[i]
		c := converter{dump: d, table: r.Table, sets: sets, name: name, registers: map[uint32]value{}}
		chain := name(r.Table, r.Chain)
		set.Chains[chain] = append(set.Chains[chain], c.convert(r))
	}
	for _, c := range base {
		if c.Drop {
			chain := name(c.Table, c.Name)
			set.Chains[chain] = append(set.Chains[chain], rules.Rule{Verdict: rules.Verdict{Do: rules.Drop}})
		}
	}
	return set
}

// value is what a register has: a part of the packet, possibly masked, or data.
type value struct {
	what      string
	word      int // of a value of several registers
	size      int // bytes
	mask, xor []byte
	data      []byte
	modulus   int
	set       *Set // of chosen: the map
}

// What registers have.
const (
	sourceAddr = "saddr"
	destAddr   = "daddr"
	protocol   = "l4proto"
	destPort   = "dport"
	mark       = "mark"
	state      = "ct state"
	status     = "ct status"
	inName     = "iifname"
	sourceType = "fib saddr type"
	destType   = "fib daddr type"
	nfproto    = "nfproto"
	random     = "random"
	chosen     = "chosen" // what a map has for a random number
	data       = "data"
)

type converter struct {
	dump      *Dump
	table     string
	sets      map[[2]string]*Set
	name      func(table, chain string) string
	registers map[uint32]value
	rule      rules.Rule
}

var errUnknown = errors.New("not understood")

func (c *converter) convert(r *Rule) rules.Rule {
	c.rule.Comment = r.Comment
	for _, e := range r.Exprs {
		err := c.expression(e)
		if err == nil || c.rule.Text != "" {
			continue // what follows may still be known: where the rule jumps to
		}
		names := make([]string, len(r.Exprs))
		for i, e := range r.Exprs {
			names[i] = e.Name
		}
		c.cond(rules.Cond{Field: rules.Unknown})
		c.rule.Text = fmt.Sprintf("table %s, chain %s, rule %d: %s: %v (%s)", r.Table, r.Chain, r.Handle, e.Name, err,
			strings.Join(names, ", "))
	}
	return c.rule
}

// register is the number of the first four bytes of a register: there are names for 16 bytes, and for 4.
func register(n uint32) uint32 {
	if n >= 8 {
		return n - 8
	}
	return (n - 1) * 4
}

func (c *converter) load(n uint32, v value) {
	for i := range max(1, (v.size+3)/4) {
		v.word = i
		c.registers[register(n)+uint32(i)] = v
	}
}

func (c *converter) cond(cond rules.Cond) { c.rule.Conds = append(c.rule.Conds, cond) }

func (c *converter) effect(e rules.Effect) { c.rule.Effects = append(c.rule.Effects, e) }

// expression adds one. Attributes are numbered as in linux/netfilter/nf_tables.h.
func (c *converter) expression(e Expression) error {
	if c.rule.Verdict.Do != rules.Continue || c.rule.Map != nil {
		return errors.New("something after the verdict")
	}
	a, err := parse(e.Data)
	if err != nil {
		return err
	}
	switch e.Name {
	case "counter", "log":
		return nil
	case "payload":
		return c.payload(a)
	case "meta":
		return c.meta(a)
	case "ct":
		what := map[uint32]string{0: state, 2: status}[a.number(2)]
		if what == "" || a.raw(1) == nil {
			return errUnknown
		}
		c.load(a.number(1), value{what: what, size: 4})
	case "fib":
		what := map[uint32]string{1: sourceType, 2: destType}[a.number(3)]
		if a.number(2) != 3 || what == "" {
			return errUnknown
		}
		c.load(a.number(1), value{what: what, size: 4})
	case "numgen":
		if a.number(4) != 0 || a.number(2) == 0 || a.number(2) > 1<<20 {
			return errUnknown
		}
		c.load(a.number(1), value{what: random, size: 4, modulus: int(a.number(2))})
	case "bitwise":
		v := c.registers[register(a.number(1))]
		if a.number(6) != 0 || v.what == "" || v.mask != nil || v.word != 0 {
			return errUnknown
		}
		v.mask, v.xor = a.nested(4).raw(1), a.nested(5).raw(1)
		c.load(a.number(2), v)
	case "cmp":
		return c.compare(c.registers[register(a.number(1))], a.number(2), a.nested(3).raw(1))
	case "lookup":
		return c.lookup(a)
	case "immediate":
		if a.number(1) != 0 {
			b := a.nested(2).raw(1)
			c.load(a.number(1), value{what: data, size: len(b), data: b})
			return nil
		}
		v := verdict(a.nested(2))
		if v == nil {
			return errUnknown
		}
		c.rule.Verdict, err = c.verdict(*v)
		return err
	case "nat":
		return c.nat(a)
	case "masq":
		c.rule.Verdict = rules.Verdict{Do: rules.Masquerade}
	case "reject":
		c.rule.Verdict = rules.Verdict{Do: rules.Reject}
	case "dynset":
		set := c.sets[[2]string{c.table, a.text(1)}]
		if set == nil || c.registers[register(a.number(4))].what != sourceAddr || set.Flags&setTimeout == 0 {
			return errUnknown
		}
		c.effect(rules.Effect{Affinity: set.Name, Seconds: seconds(cmp.Or(a.long(6), set.Timeout))})
	case "match":
		return c.match(a.text(1), a.number(2), a.raw(3))
	case "target":
		return c.target(a.text(1), a.number(2), a.raw(3))
	default:
		return errUnknown
	}
	return nil
}

func seconds(milliseconds uint64) int32 { return int32(min(milliseconds/1000, 1<<30)) }

func (c *converter) payload(a attributes) error {
	what := ""
	base, offset, size := a.number(2), a.number(3), int(a.number(4))
	switch {
	case a.raw(1) == nil:
	case base == 1 && !c.dump.IPv6 && size <= 4:
		what = map[uint32]string{12: sourceAddr, 16: destAddr}[offset]
	case base == 1 && c.dump.IPv6 && size <= 16:
		what = map[uint32]string{8: sourceAddr, 24: destAddr}[offset]
	case base == 2 && offset == 2 && size == 2:
		what = destPort
	}
	if !c.dump.IPv6 && base == 1 && offset == 9 && size == 1 || c.dump.IPv6 && base == 1 && offset == 6 && size == 1 {
		what = protocol
	}
	if what == "" || size == 0 {
		return errUnknown
	}
	c.load(a.number(1), value{what: what, size: size})
	return nil
}

func (c *converter) meta(a attributes) error {
	key := a.number(2)
	if a.raw(3) != nil {
		v := c.registers[register(a.number(3))]
		switch {
		case key != 3:
			return errUnknown
		case v.what == mark && len(v.mask) == 4 && len(v.xor) == 4:
			c.effect(rules.Effect{And: native(v.mask), Xor: native(v.xor)})
		case v.what == data && len(v.data) == 4:
			c.effect(rules.Effect{Xor: native(v.data)})
		default:
			return errUnknown
		}
		return nil
	}
	v, ok := map[uint32]value{
		3: {what: mark, size: 4}, 6: {what: inName, size: 16}, 15: {what: nfproto, size: 1}, 16: {what: protocol, size: 1},
	}[key]
	if !ok {
		return errUnknown
	}
	c.load(a.number(1), v)
	return nil
}

var protocols = map[byte]string{6: "TCP", 17: "UDP", 132: "SCTP"}

func (c *converter) compare(v value, op uint32, b []byte) error {
	if op > 1 { // less, greater
		return errUnknown
	}
	cond := rules.Cond{Not: op == 1}
	switch {
	case v.what == sourceAddr, v.what == destAddr:
		p, err := c.prefix(b, v.mask)
		if err != nil || len(b) != v.size {
			return errUnknown
		}
		cond.Field, cond.Addrs = field(v.what), addrs(p)
	case v.what == protocol && len(b) == 1 && protocols[b[0]] != "":
		cond.Field, cond.Text = rules.Protocol, protocols[b[0]]
	case v.what == protocol && len(b) == 1:
		cond.Field = rules.Never
	case v.what == destPort && len(b) == 2 && v.mask == nil:
		port := binary.BigEndian.Uint16(b)
		cond.Field, cond.Low, cond.High = rules.DestPort, port, port
	case v.what == mark && len(b) == 4 && v.mask == nil:
		cond.Field, cond.Value, cond.Mask = rules.Mark, native(b), ^uint32(0)
	case v.what == mark && len(b) == 4 && native(v.xor) == 0:
		cond.Field, cond.Value, cond.Mask = rules.Mark, native(b), native(v.mask)
	case v.what == state && len(b) == 4 && v.mask == nil:
		cond.Field, cond.New = rules.State, native(b) == stateNew
	case v.what == state && len(b) == 4 && native(b) == 0:
		cond.Field, cond.New, cond.Not = rules.State, native(v.mask)&stateNew != 0, op == 0
	case v.what == status && len(b) == 4 && native(b) == 0 && native(v.mask) == statusDNAT:
		cond.Field, cond.Not = rules.Translated, op == 0
	case (v.what == sourceType || v.what == destType) && len(b) == 4 && native(b) == 2 && v.mask == nil: // RTN_LOCAL
		cond.Field = map[string]rules.Field{sourceType: rules.SourceLocal, destType: rules.DestLocal}[v.what]
	case v.what == inName && v.mask == nil:
		name, _, exact := bytes.Cut(b, []byte{0})
		cond.Field, cond.Text = rules.Interface, string(name)
		if !exact && len(b) < 16 {
			cond.Text += "*"
		}
	case v.what == nfproto: // the table's own
		return nil
	default:
		return errUnknown
	}
	c.cond(cond)
	return nil
}

// stateNew is the state's bit of new connections, statusDNAT the status' bit of those whose destination was rewritten:
// linux/netfilter/nf_conntrack_common.h.
const (
	stateNew   = 1 << 3
	statusDNAT = 1 << 5
)

func field(what string) rules.Field {
	if what == sourceAddr {
		return rules.Source
	}
	return rules.Dest
}

func addrs(list ...netip.Prefix) *rules.Addrs {
	a := &rules.Addrs{Single: map[netip.Addr]bool{}}
	for _, p := range list {
		if p.IsSingleIP() {
			a.Single[p.Addr()] = true
		} else {
			a.Prefixes = append(a.Prefixes, p)
		}
	}
	return a
}

// prefix is the addresses that begin with some bytes, or that are equal after a mask.
func (c *converter) prefix(b, mask []byte) (netip.Prefix, error) {
	whole := make([]byte, 4)
	if c.dump.IPv6 {
		whole = make([]byte, 16)
	}
	if len(b) == 0 || len(b) > len(whole) || mask != nil && len(mask) != len(b) {
		return netip.Prefix{}, errUnknown
	}
	length := len(b) * 8
	if mask != nil {
		length = 0
		for _, m := range mask {
			length += bits.OnesCount8(m)
		}
		for i := range len(mask) * 8 {
			if (mask[i/8]&(0x80>>(i%8)) != 0) != (i < length) {
				return netip.Prefix{}, errUnknown // not a prefix
			}
		}
	}
	copy(whole, b)
	addr, _ := netip.AddrFromSlice(whole)
	p := netip.PrefixFrom(addr, length)
	if p.Masked() != p {
		return netip.Prefix{}, errUnknown
	}
	return p, nil
}

func (c *converter) verdict(v Verdict) (rules.Verdict, error) {
	do, ok := map[int32]rules.Do{
		0: rules.Drop, 1: rules.Accept, -1: rules.Continue, -3: rules.Jump, -4: rules.Goto, -5: rules.Return,
	}[v.Code]
	if !ok {
		return rules.Verdict{}, fmt.Errorf("verdict %d %w", v.Code, errUnknown)
	}
	verdict := rules.Verdict{Do: do}
	if do == rules.Jump || do == rules.Goto {
		verdict.Chain = c.name(c.table, v.Chain)
	}
	return verdict, nil
}

// lookup is of a set or of a verdict map.
func (c *converter) lookup(a attributes) error {
	set := c.sets[[2]string{c.table, a.text(1)}]
	if set == nil || set.KeyLen == 0 || set.KeyLen > 64 {
		return errUnknown
	}
	var parts []value
	for at, left := register(a.number(2)), int(set.KeyLen); left > 0; {
		v := c.registers[at]
		if v.what == "" || v.word != 0 || v.mask != nil {
			return errUnknown
		}
		words := max(1, (v.size+3)/4)
		parts = append(parts, v)
		at, left = at+uint32(words), left-words*4
	}
	not := a.number(5)&1 != 0
	if a.raw(3) != nil {
		switch {
		case not:
			return errUnknown
		case a.number(3) == 0:
			return c.verdictMap(set, parts)
		case len(parts) != 1 || parts[0].what != random || len(set.Elements) == 0:
			return errUnknown
		}
		size := len(set.Elements[0].Data)
		c.load(a.number(3), value{what: chosen, size: size, modulus: parts[0].modulus, set: set})
		return nil
	}
	what := parts[0].what
	if len(parts) != 1 || what != sourceAddr && what != destAddr {
		return c.lookupValues(set, parts, not)
	}
	if set.Flags&setTimeout != 0 {
		if what != sourceAddr {
			return errUnknown
		}
		c.cond(rules.Cond{Field: rules.Affinity, Not: not, Text: set.Name, Seconds: seconds(set.Timeout)})
		return nil
	}
	list, err := c.elements(set)
	if err != nil {
		return err
	}
	c.cond(rules.Cond{Field: field(what), Not: not, Addrs: list})
	return nil
}

// lookupValues is a lookup of a destination, a protocol, a port, or several of them, possibly with the source.
func (c *converter) lookupValues(set *Set, parts []value, not bool) error {
	size, source := 0, -1 // source: where it is in a key
	cond := rules.Cond{Field: rules.Set, Not: not, Set: map[rules.MapKey]*rules.Addrs{}}
	places := map[rules.Field]int{}
	for _, v := range parts {
		f, ok := packetFields[v.what]
		switch {
		case v.what == sourceAddr && v.size == c.size(rules.Dest) && source < 0:
			source = size
		case ok && v.size == c.size(f) && !slices.Contains(cond.Fields, f):
			places[f], cond.Fields = size, append(cond.Fields, f)
		default:
			return errUnknown
		}
		size += align(v.size)
	}
	if set.Flags&(setInterval|setTimeout) != 0 || len(cond.Fields) == 0 {
		return errUnknown
	}
	sources := map[rules.MapKey][]netip.Prefix{}
	for _, e := range set.Elements {
		if len(e.Key) < parts[0].size || len(parts) > 1 && len(e.Key) != size || e.Any || e.Verdict != nil {
			return errUnknown
		}
		var key rules.MapKey
		for f, at := range places {
			c.keyField(&key, f, e.Key[at:])
		}
		if source < 0 {
			cond.Set[key] = nil
			continue
		}
		n := c.size(rules.Dest)
		from, _ := netip.AddrFromSlice(e.Key[source : source+n])
		sources[key] = append(sources[key], netip.PrefixFrom(from, n*8))
	}
	for key, from := range sources {
		cond.Set[key] = addrs(from...)
	}
	c.cond(cond)
	return nil
}

// packetFields are the fields of a MapKey, by what registers have.
var packetFields = map[string]rules.Field{
	destAddr: rules.Dest, protocol: rules.Protocol, destPort: rules.DestPort,
}

// keyField sets one field of a key to what bytes begin with: there are c.size(f) or more.
func (c *converter) keyField(key *rules.MapKey, f rules.Field, b []byte) {
	b = b[:c.size(f)]
	switch f {
	case rules.Dest:
		key.Dest, _ = netip.AddrFromSlice(b)
	case rules.Protocol:
		key.Protocol = protocols[b[0]]
	case rules.DestPort:
		key.Port = binary.BigEndian.Uint16(b)
	}
}

// elements are those of a set of addresses.
func (c *converter) elements(set *Set) (*rules.Addrs, error) {
	size := 4
	if c.dump.IPv6 {
		size = 16
	}
	elements := slices.Clone(set.Elements)
	for _, e := range elements {
		if len(e.Key) != size || e.KeyEnd != nil || e.Any || e.Verdict != nil {
			return nil, errUnknown
		}
	}
	// The first address after an interval comes before the same one as the first of the next interval.
	slices.SortStableFunc(elements, func(a, b SetElement) int {
		ends := map[bool]int{true: -1, false: 0}
		return cmp.Or(bytes.Compare(a.Key, b.Key), cmp.Compare(ends[a.End], ends[b.End]))
	})
	var list []netip.Prefix
	for i, e := range elements {
		first, _ := netip.AddrFromSlice(e.Key)
		switch {
		case e.End:
		case set.Flags&setInterval == 0:
			list = append(list, netip.PrefixFrom(first, size*8))
		case i+1 < len(elements) && elements[i+1].End:
			end, _ := netip.AddrFromSlice(elements[i+1].Key)
			list = append(list, dataplane.Range(first, end.Prev())...)
		default: // to the last address
			list = append(list, dataplane.Range(first, lastAddr(size))...)
		}
	}
	return addrs(list...), nil
}

func lastAddr(size int) netip.Addr {
	addr, _ := netip.AddrFromSlice(bytes.Repeat([]byte{0xff}, size))
	return addr
}

func (c *converter) verdictMap(set *Set, parts []value) error {
	m := &rules.Map{Elements: map[rules.MapKey]rules.Element{}}
	if len(parts) == 1 && parts[0].what == random {
		m.Random = parts[0].modulus
	} else {
		for _, v := range parts {
			f, ok := packetFields[v.what]
			if !ok || v.size != c.size(f) {
				return errUnknown
			}
			m.Fields = append(m.Fields, f)
		}
	}
	for _, e := range set.Elements {
		if e.Verdict == nil || len(e.Key) != int(set.KeyLen) || e.End || e.Any ||
			set.Flags&setInterval != 0 && m.Random == 0 {
			return errUnknown
		}
		v, err := c.verdict(*e.Verdict)
		if err != nil {
			return err
		}
		element := rules.Element{Verdict: v, Comment: e.Comment}
		if m.Random > 0 {
			m.Choices = append(m.Choices, element)
			continue
		}
		var key rules.MapKey
		at := 0
		for _, f := range m.Fields {
			size := c.size(f)
			if at+size > len(e.Key) {
				return errUnknown
			}
			c.keyField(&key, f, e.Key[at:])
			at += align(size)
		}
		m.Elements[key] = element
	}
	c.rule.Map = m
	return nil
}

func (c *converter) size(f rules.Field) int {
	switch {
	case f == rules.Protocol:
		return 1
	case f == rules.DestPort:
		return 2
	case c.dump.IPv6:
		return 16
	}
	return 4
}

func (c *converter) nat(a attributes) error {
	addr, port := c.registers[register(a.number(3))], c.registers[register(a.number(5))]
	if a.number(1) != 1 || a.raw(3) == nil || a.raw(5) == nil ||
		a.raw(4) != nil && a.number(4) != a.number(3) || a.raw(6) != nil && a.number(6) != a.number(5) {
		return errUnknown
	}
	n := c.size(rules.Dest)
	switch {
	case addr.what == data && port.what == data && addr.size == n && port.size == 2:
		c.rule.Verdict = dnat(addr.data, port.data)
	case addr.what == chosen && port.what == chosen && addr.set == port.set && addr.word == 0 && port.word == align(n)/4:
		m := &rules.Map{Random: addr.modulus}
		for _, e := range addr.set.Elements {
			if len(e.Data) < align(n)+2 || e.End || e.Any || e.Verdict != nil {
				return errUnknown
			}
			m.Choices = append(m.Choices, rules.Element{Verdict: dnat(e.Data[:n], e.Data[align(n):]), Comment: e.Comment})
		}
		c.rule.Map = m
	default:
		return errUnknown
	}
	return nil
}

func dnat(addr, port []byte) rules.Verdict {
	to, _ := netip.AddrFromSlice(addr)
	return rules.Verdict{Do: rules.DNAT, To: netip.AddrPortFrom(to, binary.BigEndian.Uint16(port))}
}
