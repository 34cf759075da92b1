// SPDX-License-Identifier: Apache-2.0

package write

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/knftables"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/nftables"
	"github.com/checkplan/checkplan/pkg/dataplane/rules"
)

// This file reads the words of nft that Render writes, and no others: so a test needs neither nft nor a kernel. What
// the rules are for a kernel, TestKernel says.

// tableOf says what a table in a fake does, by the reader of pkg/dataplane/nftables.
func tableOf(t *testing.T, fake *knftables.Fake, family dataplane.Family) dataplane.Table {
	t.Helper()
	set := &rules.Ruleset{
		Hooks: map[rules.Hook][]string{}, Chains: map[string][]rules.Rule{}, Keys: map[dataplane.Key]bool{},
	}
	type hooked struct {
		name     string
		hook     rules.Hook
		priority int
	}
	var bases []hooked
	for name, chain := range fake.Table.Chains {
		set.Chains[name] = nil
		if chain.Hook != nil {
			priority, err := knftables.ParsePriority(knftables.IPv4Family, string(*chain.Priority))
			if err != nil {
				t.Fatal(err)
			}
			bases = append(bases, hooked{name, rules.Hook(*chain.Hook), priority})
		}
		for _, rule := range chain.Rules {
			p := reader{t: t, fake: fake, words: strings.Fields(rule.Rule)}
			set.Chains[name] = append(set.Chains[name], p.rule())
		}
	}
	slices.SortFunc(bases, func(a, b hooked) int { return a.priority - b.priority })
	for _, b := range bases {
		set.Hooks[b.hook] = append(set.Hooks[b.hook], b.name)
	}
	return nftables.Table(set, family)
}

type reader struct {
	t     *testing.T
	fake  *knftables.Fake
	words []string
	r     rules.Rule
}

func (p *reader) fail(why string) {
	p.t.Helper()
	p.t.Fatalf("%s: %q", why, p.words)
}

// next takes the words if they come next.
func (p *reader) next(words ...string) bool {
	if len(p.words) < len(words) || !slices.Equal(p.words[:len(words)], words) {
		return false
	}
	p.words = p.words[len(words):]
	return true
}

func (p *reader) word() string {
	p.t.Helper()
	if len(p.words) == 0 {
		p.fail("a rule ends too early")
	}
	word := p.words[0]
	p.words = p.words[1:]
	return word
}

// list takes what is in braces, separated by commas.
func (p *reader) list() []string {
	p.t.Helper()
	end := slices.Index(p.words, "}")
	if !p.next("{") || end < 0 {
		p.fail("no braces")
	}
	list := strings.Split(strings.Join(p.words[:end-1], " "), " , ")
	p.words = p.words[end:]
	return list
}

func (p *reader) cond(c rules.Cond) { p.r.Conds = append(p.r.Conds, c) }

func (p *reader) rule() rules.Rule {
	p.t.Helper()
	for len(p.words) > 0 {
		if p.r.Verdict.Do != rules.Continue || p.r.Map != nil {
			p.fail("words after the verdict")
		}
		p.part()
	}
	return p.r
}

func (p *reader) part() {
	p.t.Helper()
	ip := "ip"
	if slices.Contains(p.words, "ip6") {
		ip = "ip6"
	}
	switch {
	case p.next("ct", "state", "new"):
		p.cond(rules.Cond{Field: rules.State, New: true})
	case p.next(ip, "daddr", ".", "meta", "l4proto", ".", "th", "dport", "vmap"):
		p.vmap(rules.Dest, rules.Protocol, rules.DestPort)
	case p.next("meta", "l4proto", ".", "th", "dport", "vmap"):
		p.vmap(rules.Protocol, rules.DestPort)
	case p.next(ip, "daddr"):
		p.addresses(rules.Dest)
	case p.next(ip, "saddr"):
		p.addresses(rules.Source)
	case p.next("fib", "daddr", "type", "local"):
		p.cond(rules.Cond{Field: rules.DestLocal})
	case p.next("fib", "saddr", "type", "local"):
		p.cond(rules.Cond{Field: rules.SourceLocal})
	case p.next("iifname"):
		not := p.next("!=")
		p.cond(rules.Cond{Field: rules.Interface, Not: not, Text: strings.Trim(p.word(), `"`)})
	case p.next("meta", "l4proto"):
		p.cond(rules.Cond{Field: rules.Protocol, Text: strings.ToUpper(p.word())})
	case p.next("meta", "mark", "set", "meta", "mark", "or"):
		v := p.number()
		p.r.Effects = append(p.r.Effects, rules.Effect{And: ^v, Xor: v})
	case p.next("meta", "mark", "set", "meta", "mark", "xor"):
		p.r.Effects = append(p.r.Effects, rules.Effect{And: ^uint32(0), Xor: p.number()})
	case p.next("meta", "mark", "and"):
		mask := p.number()
		if !p.next("==") {
			p.fail("no ==")
		}
		p.cond(rules.Cond{Field: rules.Mark, Value: p.number(), Mask: mask})
	case p.next("update"):
		name := strings.TrimPrefix(p.word(), "@")
		if !p.next("{", ip, "saddr", "}") {
			p.fail("update of what")
		}
		p.r.Effects = append(p.r.Effects, rules.Effect{Affinity: name, Seconds: p.timeout(name)})
	case p.next("numgen", "random", "mod"):
		m := &rules.Map{Random: int(p.number())}
		if !p.next("vmap") {
			p.fail("no vmap")
		}
		for i, choice := range p.list() {
			number, verdict, ok := strings.Cut(choice, " : ")
			if !ok || number != strconv.Itoa(i) {
				p.fail("choice " + choice)
			}
			m.Choices = append(m.Choices, rules.Element{Verdict: p.verdict(verdict)})
		}
		p.r.Map = m
	case p.next("dnat", "to"):
		to, err := netip.ParseAddrPort(p.word())
		if err != nil {
			p.fail(err.Error())
		}
		p.r.Verdict = rules.Verdict{Do: rules.DNAT, To: to}
	case p.next("masquerade", "fully-random"):
		p.r.Verdict = rules.Verdict{Do: rules.Masquerade}
	case len(p.words) > 1 && p.words[1] == "dport":
		protocol := p.word()
		p.word()
		port := uint16(p.number())
		p.cond(rules.Cond{Field: rules.Protocol, Text: strings.ToUpper(protocol)})
		p.cond(rules.Cond{Field: rules.DestPort, Low: port, High: port})
	default:
		p.r.Verdict = p.verdict(strings.Join(p.words, " "))
		p.words = nil
	}
}

func (p *reader) number() uint32 {
	p.t.Helper()
	n, err := strconv.ParseUint(p.word(), 0, 32)
	if err != nil {
		p.fail(err.Error())
	}
	return uint32(n)
}

func (p *reader) verdict(text string) rules.Verdict {
	p.t.Helper()
	switch word, chain, _ := strings.Cut(text, " "); {
	case (word == "jump" || word == "goto") && p.fake.Table.Chains[chain] != nil:
		return rules.Verdict{Do: rules.Do(word), Chain: chain}
	case slices.Contains([]string{"drop", "reject", "return"}, text):
		return rules.Verdict{Do: rules.Do(text)}
	}
	p.fail("verdict " + text)
	return rules.Verdict{}
}

func (p *reader) timeout(name string) int32 {
	p.t.Helper()
	set := p.fake.Table.Sets[name]
	if set == nil || set.Timeout == nil {
		p.fail("no set with a timeout: " + name)
	}
	return int32(set.Timeout.Seconds())
}

// addresses is a condition on an address: one, a prefix, a list, or a set.
func (p *reader) addresses(field rules.Field) {
	p.t.Helper()
	c := rules.Cond{Field: field, Not: p.next("!="), Addrs: &rules.Addrs{Single: map[netip.Addr]bool{}}}
	var list []string
	switch {
	case len(p.words) > 0 && p.words[0] == "{":
		list = p.list()
	case len(p.words) > 0 && strings.HasPrefix(p.words[0], "@"):
		name := p.word()[1:]
		if strings.HasPrefix(name, "affinity-") {
			p.cond(rules.Cond{Field: rules.Affinity, Text: name, Seconds: p.timeout(name)})
			return
		}
		set := p.fake.Table.Sets[name]
		if set == nil {
			p.fail("no set " + name)
		}
		for _, e := range set.Elements {
			list = append(list, e.Key[0])
		}
	default:
		list = []string{p.word()}
	}
	for _, text := range list {
		if a, err := netip.ParseAddr(text); err == nil {
			c.Addrs.Single[a] = true
			continue
		}
		prefix, err := netip.ParsePrefix(text)
		if err != nil || prefix.Masked() != prefix {
			p.fail("address " + text)
		}
		if prefix.IsSingleIP() {
			c.Addrs.Single[prefix.Addr()] = true
		} else {
			c.Addrs.Prefixes = append(c.Addrs.Prefixes, prefix)
		}
	}
	p.cond(c)
}

// vmap is a map of the fields.
func (p *reader) vmap(fields ...rules.Field) {
	p.t.Helper()
	name := strings.TrimPrefix(p.word(), "@")
	from := p.fake.Table.Maps[name]
	if from == nil {
		p.fail("no map " + name)
	}
	m := &rules.Map{Fields: fields, Elements: map[rules.MapKey]rules.Element{}}
	for _, e := range from.Elements {
		var key rules.MapKey
		if len(e.Key) != len(fields) {
			p.fail(fmt.Sprint("key ", e.Key))
		}
		for i, f := range fields {
			switch f {
			case rules.Dest:
				key.Dest = netip.MustParseAddr(e.Key[i])
			case rules.Protocol:
				key.Protocol = strings.ToUpper(e.Key[i])
			case rules.DestPort:
				n, err := strconv.ParseUint(e.Key[i], 10, 16)
				if err != nil {
					p.fail(err.Error())
				}
				key.Port = uint16(n)
			}
		}
		element := rules.Element{Verdict: p.verdict(strings.Join(e.Value, " "))}
		if e.Comment != nil {
			element.Comment = *e.Comment
		}
		m.Elements[key] = element
	}
	p.r.Map = m
}
