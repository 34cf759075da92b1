// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/rules"
)

// LegacyTable is a table of iptables-legacy as the kernel has it: linux/netfilter_ipv4/ip_tables.h, and ip6_tables.h.
type LegacyTable struct {
	Name string `json:"name"`
	// Hooks are the places in Entries where the built-in chains begin; those that the table does not have are -1.
	Hooks   [5]int `json:"hooks"`
	Entries []byte `json:"entries"`
}

// builtIn are the chains of the hooks, in the order of their numbers.
var builtIn = []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

// layout is where the fields of an entry are.
type layout struct {
	size                  int // of an address: source, destination, and their masks, are first
	proto, flags, inverse int
	target, next, after   int // after is where the matches begin
}

var (
	layout4 = layout{size: 4, proto: 80, flags: 82, inverse: 83, target: 88, next: 90, after: 112}
	layout6 = layout{size: 16, proto: 128, flags: 131, inverse: 132, target: 140, next: 142, after: 168}
)

// Flags of entries that mean that a condition is not to be met.
const (
	notInterface = 0x01
	notSource    = 0x08
	notDest      = 0x10
	notProtocol  = 0x40
	isGoto       = 0x02
)

var errEntries = errors.New("entries of an iptables table are malformed")

// Legacy converts tables of iptables-legacy of one family, as Dump.Ruleset does. The dump says which family, and has
// the ipsets that rules name.
func Legacy(dump *Dump, name func(table, chain string) string, tables ...LegacyTable) (*rules.Ruleset, error) {
	set := &rules.Ruleset{Chains: map[string][]rules.Rule{}, Keys: map[dataplane.Key]bool{}}
	for _, t := range tables {
		l := legacy{table: t, layout: layout4, dump: dump, set: set, name: name}
		if dump.IPv6 {
			l.layout = layout6
		}
		if err := l.convert(); err != nil {
			return nil, fmt.Errorf("table %s: %w", t.Name, err)
		}
	}
	return set, nil
}

type legacy struct {
	table  LegacyTable
	layout layout
	dump   *Dump
	set    *rules.Ruleset
	name   func(table, chain string) string
	chains map[int]string // by where they begin
}

// each calls visit for each entry.
func (l *legacy) each(visit func(at int, entry []byte) error) error {
	all := l.table.Entries
	for at := 0; at < len(all); {
		if len(all)-at < l.layout.after {
			return errEntries
		}
		next := int(u16(all, at+l.layout.next))
		if target := int(u16(all, at+l.layout.target)); next > len(all)-at || target < l.layout.after || target+32 > next {
			return errEntries
		}
		if err := visit(at, all[at:at+next]); err != nil {
			return err
		}
		at += next
	}
	return nil
}

func (l *legacy) convert() error {
	l.chains = map[int]string{}
	for hook, at := range l.table.Hooks {
		if at >= 0 {
			l.chains[at] = builtIn[hook]
		}
	}
	// A chain begins after an entry with the target ERROR, which has its name.
	err := l.each(func(at int, entry []byte) error {
		if kind, _, data := l.target(entry); kind == "ERROR" && text(data) != "ERROR" {
			l.chains[at+len(entry)] = text(data)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, chain := range l.chains {
		l.set.Chains[l.name(l.table.Name, chain)] = nil
	}
	within := ""
	return l.each(func(at int, entry []byte) error {
		if chain, ok := l.chains[at]; ok {
			within = chain
		}
		if kind, _, _ := l.target(entry); kind == "ERROR" {
			return nil
		}
		chain := l.name(l.table.Name, within)
		l.set.Chains[chain] = append(l.set.Chains[chain], l.rule(at, within, entry))
		return nil
	})
}

// target returns an entry's target: its name, revision and data.
func (l *legacy) target(entry []byte) (string, uint32, []byte) {
	b := entry[u16(entry, l.layout.target):]
	return text(b[2:31]), uint32(b[31]), b[32:]
}

func (l *legacy) rule(at int, chain string, entry []byte) rules.Rule {
	c := converter{dump: l.dump, table: l.table.Name, name: l.name}
	fail := func(err error) {
		if err != nil && c.rule.Text == "" {
			c.cond(rules.Cond{Field: rules.Unknown})
			c.rule.Text = fmt.Sprintf("table %s, chain %s, at %d: %v", l.table.Name, chain, at, err)
		}
	}
	fail(l.packet(&c, entry))
	for b := entry[l.layout.after:u16(entry, l.layout.target)]; len(b) > 0; {
		if len(b) < 32 || int(u16(b, 0)) < 32 || int(u16(b, 0)) > len(b) {
			fail(errEntries)
			break
		}
		size := int(u16(b, 0))
		fail(c.match(text(b[2:31]), uint32(b[31]), b[32:size]))
		b = b[size:]
	}
	name, revision, data := l.target(entry)
	if name != "" {
		fail(c.target(name, revision, data))
		return c.rule
	}
	if len(data) < 4 {
		fail(errEntries)
		return c.rule
	}
	verdict := int(int32(binary.NativeEndian.Uint32(data)))
	switch to, known := l.chains[verdict]; {
	case verdict == -1:
		c.rule.Verdict.Do = rules.Drop
	case verdict == -2:
		c.rule.Verdict.Do = rules.Accept
	case verdict == -5:
		c.rule.Verdict.Do = rules.Return
	case verdict == at+len(entry): // a rule without a target
	case known:
		c.rule.Verdict = rules.Verdict{Do: rules.Jump, Chain: l.name(l.table.Name, to)}
		if entry[l.layout.flags]&isGoto != 0 {
			c.rule.Verdict.Do = rules.Goto
		}
	default:
		fail(fmt.Errorf("verdict %d is not understood", verdict))
	}
	return c.rule
}

// packet adds the conditions that are no matches: addresses, interface, protocol.
func (l *legacy) packet(c *converter, entry []byte) error {
	n := l.layout.size
	inverse := entry[l.layout.inverse]
	if inverse&^(notInterface|notSource|notDest|notProtocol) != 0 {
		return errUnknown
	}
	for i, what := range []string{sourceAddr, destAddr} {
		address, mask := entry[i*n:(i+1)*n], entry[(2+i)*n:(3+i)*n]
		p, err := c.prefix(address, mask)
		if err != nil {
			return err
		}
		not := inverse&[]byte{notSource, notDest}[i] != 0
		if p.Bits() > 0 || not {
			c.cond(rules.Cond{Field: field(what), Not: not, Addrs: addrs(netip.PrefixFrom(p.Addr(), p.Bits()))})
		}
	}
	in, out, mask := text(entry[4*n:4*n+16]), text(entry[4*n+16:4*n+32]), entry[4*n+32:4*n+48]
	if out != "" {
		return errors.New("a condition on the interface by which packets leave is not understood")
	}
	if in != "" {
		if len(in) < 16 && mask[len(in)] == 0 && !strings.HasSuffix(in, "*") {
			in += "*"
		}
		c.cond(rules.Cond{Field: rules.Interface, Text: in, Not: inverse&notInterface != 0})
	}
	if proto := u16(entry, l.layout.proto); proto != 0 {
		cond := rules.Cond{Field: rules.Protocol, Not: inverse&notProtocol != 0}
		if cond.Text = protocols[byte(proto)]; cond.Text == "" || proto > 255 {
			cond.Field = rules.Never
		}
		c.cond(cond)
	}
	return nil
}
