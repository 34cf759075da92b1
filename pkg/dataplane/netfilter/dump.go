// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Dump is what the kernel has of tables of one family, as it was read. Expressions are the kernel's bytes.
type Dump struct {
	// IPv6: the family ip6; false: ip.
	IPv6   bool    `json:"ipv6,omitempty"`
	Chains []Chain `json:"chains,omitempty"`
	Rules  []Rule  `json:"rules,omitempty"`
	Sets   []Set   `json:"sets,omitempty"`
	// IPSets are those that rules of iptables name, whoever made them; only of ReadIPSets.
	IPSets []IPSet `json:"ipsets,omitempty"`
}

// Chain is one of a table. Hook is empty if it is no base chain.
type Chain struct {
	Table    string `json:"table"`
	Name     string `json:"name"`
	Type     string `json:"type,omitempty"`
	Hook     string `json:"hook,omitempty"`
	Priority int32  `json:"priority,omitempty"`
	Drop     bool   `json:"drop,omitempty"` // the policy
}

// Rule is one of a chain. Rules of a chain are in their order.
type Rule struct {
	Table   string       `json:"table"`
	Chain   string       `json:"chain"`
	Handle  uint64       `json:"handle,omitempty"`
	Comment string       `json:"comment,omitempty"`
	Exprs   []Expression `json:"exprs"`
}

// Expression is a part of a rule. Data are its attributes.
type Expression struct {
	Name string `json:"name"`
	Data []byte `json:"data,omitempty"`
}

// Set is a set or a map.
type Set struct {
	Table    string       `json:"table"`
	Name     string       `json:"name"`
	Flags    uint32       `json:"flags,omitempty"`
	KeyLen   uint32       `json:"keyLen"`
	Timeout  uint64       `json:"timeout,omitempty"` // milliseconds
	Elements []SetElement `json:"elements,omitempty"`
}

// SetElement is one of a set. Verdict is set in verdict maps, Data in other maps.
type SetElement struct {
	Key     []byte   `json:"key"`
	KeyEnd  []byte   `json:"keyEnd,omitempty"` // the last of an interval of a concatenation
	End     bool     `json:"end,omitempty"`    // Key is the first after an interval
	Any     bool     `json:"any,omitempty"`    // what no other element has
	Verdict *Verdict `json:"verdict,omitempty"`
	Data    []byte   `json:"data,omitempty"`
	Comment string   `json:"comment,omitempty"`
}

// Verdict is the kernel's code of one, and the chain of a jump.
type Verdict struct {
	Code  int32  `json:"code"`
	Chain string `json:"chain,omitempty"`
}

// Flags of sets: linux/netfilter/nf_tables.h.
const (
	setInterval = 0x4
	setTimeout  = 0x10
	setEval     = 0x20 // dynamic
)

// Messages of nftables, and their attributes: linux/netfilter/nf_tables.h.
const (
	newChain      = 3
	getChain      = 4
	newRule       = 6
	getRule       = 7
	newSet        = 9
	getSet        = 10
	newSetElement = 12
	getSetElement = 13
	newGeneration = 15
	getGeneration = 16
)

var hooks = []string{"prerouting", "input", "forward", "output", "postrouting"}

// message is one of a dump, without its headers.
type message struct {
	kind uint16
	data []byte
}

// add decodes a message. Those of other tables are left out.
func (d *Dump) add(m message, tables []string) error {
	a, err := parse(m.data)
	if err != nil {
		return err
	}
	table := a.text(1)
	if !slices.Contains(tables, table) {
		return nil
	}
	switch m.kind {
	case newChain:
		c := Chain{Table: table, Name: a.text(3), Type: a.text(7), Drop: len(a.raw(5)) == 4 && a.number(5) == 0}
		if hook := a.nested(4); len(hook) > 0 {
			n := hook.number(1)
			if int(n) >= len(hooks) {
				return fmt.Errorf("chain %s: unknown hook %d", c.Name, n)
			}
			c.Hook, c.Priority = hooks[n], int32(hook.number(2))
		}
		d.Chains = append(d.Chains, c)
	case newRule:
		r := Rule{Table: table, Chain: a.text(2), Handle: a.long(3), Comment: comment(a.raw(7))}
		list, err := parse(a.raw(4))
		if err != nil {
			return err
		}
		for _, data := range list[1] {
			e, err := parse(data)
			if err != nil {
				return err
			}
			r.Exprs = append(r.Exprs, Expression{Name: e.text(1), Data: slices.Clone(e.raw(2))})
		}
		d.Rules = append(d.Rules, r)
	case newSet:
		d.Sets = append(d.Sets, Set{
			Table: table, Name: a.text(2), Flags: a.number(3), KeyLen: a.number(5), Timeout: a.long(11),
		})
	case newSetElement:
		i := slices.IndexFunc(d.Sets, func(s Set) bool { return s.Table == table && s.Name == a.text(2) })
		if i < 0 {
			return fmt.Errorf("elements of set %s, which is not in the dump", a.text(2))
		}
		list, err := parse(a.raw(3))
		if err != nil {
			return err
		}
		for _, data := range list[1] {
			e, err := parse(data)
			if err != nil {
				return err
			}
			flags := e.number(3)
			d.Sets[i].Elements = append(d.Sets[i].Elements, SetElement{
				Key: slices.Clone(e.nested(1).raw(1)), KeyEnd: slices.Clone(e.nested(10).raw(1)), End: flags&1 != 0,
				Any: flags&2 != 0, Verdict: verdict(e.nested(2)), Data: slices.Clone(e.nested(2).raw(1)),
				Comment: comment(e.raw(6)),
			})
		}
	}
	return nil
}

// verdict decodes the data of an element or of an immediate expression. It is nil if they are no verdict.
func verdict(data attributes) *Verdict {
	v := data.nested(2)
	if v.raw(1) == nil {
		return nil
	}
	return &Verdict{Code: int32(v.number(1)), Chain: v.text(2)}
}

// comment finds one in the bytes that nft and knftables keep with rules and elements: type, length, value.
func comment(data []byte) string {
	for len(data) >= 2 {
		kind, size := data[0], int(data[1])
		if 2+size > len(data) {
			return ""
		}
		if kind == 0 {
			text := data[2 : 2+size]
			for len(text) > 0 && text[len(text)-1] == 0 {
				text = text[:len(text)-1]
			}
			return string(text)
		}
		data = data[2+size:]
	}
	return ""
}

func native(b []byte) uint32 {
	if len(b) == 4 {
		return binary.NativeEndian.Uint32(b)
	}
	return 0
}
