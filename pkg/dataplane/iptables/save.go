// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/rules"
)

// ParseSave returns what the rules of one family do, from the text that iptables-save or ip6tables-save prints. It is
// false if none of them is a proxy's. A rule that is not understood makes unmeasured what it concerns; it is no
// error.
func ParseSave(text string, family dataplane.Family) (dataplane.Table, bool) {
	set := &rules.Ruleset{Chains: map[string][]rules.Rule{}, Keys: map[dataplane.Key]bool{}}
	within := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			within = line[1:]
		case strings.HasPrefix(line, ":") && slices.Contains(Tables, within):
			name, _, _ := strings.Cut(line[1:], " ")
			if _, ok := set.Chains[Qualified(within, name)]; !ok {
				set.Chains[Qualified(within, name)] = nil
			}
		case slices.Contains(Tables, within) && strings.Contains(line, "-A "):
			chain, rule := parseRule(line, within, family)
			set.Chains[chain] = append(set.Chains[chain], rule)
		}
	}
	have, by := table(set, family)
	return have, len(by) > 0
}

// words splits a line as a shell does, as far as iptables-save writes it: quotes around, and a backslash before a
// character.
func words(line string) []string {
	var all []string
	var word strings.Builder
	quoted, some, escaped := false, false, false
	for _, r := range line {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\':
			escaped = true
		case r == '"':
			quoted, some = !quoted, true
		case r == ' ' && !quoted:
			if some || word.Len() > 0 {
				all = append(all, word.String())
			}
			word.Reset()
			some = false
		default:
			word.WriteRune(r)
		}
	}
	if some || word.Len() > 0 {
		all = append(all, word.String())
	}
	return all
}

var errUnknown = errors.New("not understood")

type parser struct {
	table  string
	words  []string
	family dataplane.Family
	rule   rules.Rule
	recent rules.Cond // of -m recent, whose options are several words
	set    bool       // of the same: --set
}

// parseRule returns a rule and its chain. [1:60] at the beginning are counters.
func parseRule(line, table string, family dataplane.Family) (string, rules.Rule) {
	p := parser{table: table, words: words(line), family: family}
	if len(p.words) > 0 && strings.HasPrefix(p.words[0], "[") {
		p.words = p.words[1:]
	}
	if len(p.words) < 2 || p.words[0] != "-A" {
		return Qualified(table, ""), p.rule
	}
	chain := Qualified(table, p.words[1])
	p.words = p.words[2:]
	for len(p.words) > 0 {
		word := p.words[0]
		not := word == "!" && len(p.words) > 1
		if not {
			word, p.words = p.words[1], p.words[1:]
		}
		p.words = p.words[1:]
		if err := p.option(word, not); err != nil && p.rule.Text == "" { // what follows may still be known
			p.rule.Conds = append(p.rule.Conds, rules.Cond{Field: rules.Unknown})
			p.rule.Text = fmt.Sprintf("table %s: %s", table, line)
		}
	}
	switch {
	case p.set:
		p.rule.Effects = append(p.rule.Effects, rules.Effect{Affinity: p.recent.Text})
	case p.recent.Field != "":
		p.rule.Conds = append(p.rule.Conds, p.recent)
	}
	return chain, p.rule
}

func (p *parser) next() string {
	if len(p.words) == 0 {
		return ""
	}
	word := p.words[0]
	p.words = p.words[1:]
	return word
}

var protocols = map[string]string{"tcp": "TCP", "udp": "UDP", "sctp": "SCTP", "6": "TCP", "17": "UDP", "132": "SCTP"}

// option adds one to the rule.
func (p *parser) option(word string, not bool) error {
	cond := rules.Cond{Not: not}
	switch word {
	case "-m", "--match":
		matches := []string{"comment", "tcp", "udp", "sctp", "addrtype", "statistic", "recent", "mark", "conntrack", "nfacct"}
		if not || !slices.Contains(matches, p.next()) {
			return errUnknown
		}
		return nil
	case "--comment":
		p.rule.Comment = p.next()
		return nil
	case "--nfacct-name", "--reject-with", "--random-fully", "--rsource", "--reap":
		if word == "--nfacct-name" || word == "--reject-with" {
			p.next()
		}
		if not {
			return errUnknown
		}
		return nil
	case "-s", "--source", "-d", "--destination":
		prefix, err := p.prefix(p.next())
		if err != nil {
			return err
		}
		cond.Field, cond.Addrs = rules.Source, &rules.Addrs{Single: map[netip.Addr]bool{}}
		if strings.HasPrefix(strings.TrimLeft(word, "-"), "d") {
			cond.Field = rules.Dest
		}
		if prefix.IsSingleIP() {
			cond.Addrs.Single[prefix.Addr()] = true
		} else {
			cond.Addrs.Prefixes = []netip.Prefix{prefix}
		}
	case "-p", "--protocol":
		name := p.next()
		cond.Field, cond.Text = rules.Protocol, protocols[name]
		if cond.Text == "" {
			cond.Field = rules.Never // another one than Services have
		}
	case "--dport", "--destination-port":
		low, high, isRange := strings.Cut(p.next(), ":")
		if !isRange {
			high = low
		}
		a, errA := strconv.ParseUint(low, 10, 16)
		b, errB := strconv.ParseUint(high, 10, 16)
		if errA != nil || errB != nil {
			return errUnknown
		}
		cond.Field, cond.Low, cond.High = rules.DestPort, uint16(a), uint16(b)
	case "--dst-type", "--src-type":
		if p.next() != "LOCAL" {
			return errUnknown
		}
		cond.Field = map[string]rules.Field{"--dst-type": rules.DestLocal, "--src-type": rules.SourceLocal}[word]
	case "-i", "--in-interface":
		cond.Field, cond.Text = rules.Interface, p.next()
		if prefix, ok := strings.CutSuffix(cond.Text, "+"); ok {
			cond.Text = prefix + "*"
		}
	case "--mode":
		if p.next() != "random" || not {
			return errUnknown
		}
		return nil
	case "--probability":
		p.next()
		cond.Field = rules.Chance
	case "--ctstate":
		cond.Field, cond.New = rules.State, slices.Contains(strings.Split(p.next(), ","), "NEW")
	case "--mark":
		value, mask, err := marks(p.next())
		if err != nil {
			return err
		}
		cond.Field, cond.Value, cond.Mask = rules.Mark, value, mask
	case "--rcheck", "--set", "--name", "--seconds", "--mask":
		if not {
			return errUnknown
		}
		return p.affinity(word)
	case "-j", "--jump", "-g", "--goto":
		if not || p.rule.Verdict.Do != rules.Continue {
			return errUnknown
		}
		return p.target(word, p.next())
	default:
		return errUnknown
	}
	p.rule.Conds = append(p.rule.Conds, cond)
	return nil
}

func (p *parser) prefix(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	if addr, err := netip.ParseAddr(text); err == nil {
		prefix = netip.PrefixFrom(addr, addr.BitLen())
	} else if !strings.Contains(text, "/") {
		return prefix, errUnknown
	}
	if !prefix.IsValid() || err != nil && strings.Contains(text, "/") || prefix.Masked() != prefix ||
		prefix.Addr().Is4() != (p.family == dataplane.IPv4) || prefix.Addr().Zone() != "" {
		return prefix, errUnknown
	}
	return prefix, nil
}

func marks(text string) (value, mask uint32, err error) {
	v, m, ok := strings.Cut(text, "/")
	if !ok {
		m = "0xffffffff"
	}
	a, errA := strconv.ParseUint(v, 0, 32)
	b, errB := strconv.ParseUint(m, 0, 32)
	if errA != nil || errB != nil {
		return 0, 0, errUnknown
	}
	return uint32(a), uint32(b), nil
}

func (p *parser) affinity(word string) error {
	p.recent.Field = rules.Affinity
	switch word {
	case "--set":
		p.set = true
	case "--name":
		p.recent.Text = p.next()
	case "--mask":
		if mask := p.next(); mask != "255.255.255.255" && mask != "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff" {
			return errUnknown
		}
	case "--seconds":
		seconds, err := strconv.ParseInt(p.next(), 10, 32)
		if err != nil {
			return errUnknown
		}
		p.recent.Seconds = int32(seconds)
	}
	return nil
}

// target reads what follows -j, and its own options.
func (p *parser) target(word, name string) error {
	verdict := &p.rule.Verdict
	switch name {
	case "":
		return errUnknown
	case "ACCEPT", "DROP", "REJECT", "RETURN", "MASQUERADE":
		verdict.Do = rules.Do(strings.ToLower(name))
	case "MARK":
		how := p.next()
		value, mask, err := marks(p.next())
		if err != nil {
			return err
		}
		e, ok := map[string]rules.Effect{
			"--or-mark":   {And: ^value, Xor: value},
			"--xor-mark":  {And: ^uint32(0), Xor: value},
			"--and-mark":  {And: value},
			"--set-xmark": {And: ^mask, Xor: value},
			"--set-mark":  {And: ^(mask | value), Xor: value},
		}[how]
		if !ok {
			return errUnknown
		}
		p.rule.Effects = append(p.rule.Effects, e)
	case "DNAT":
		if p.next() != "--to-destination" {
			return errUnknown
		}
		to, err := netip.ParseAddrPort(p.next())
		if err != nil || to.Addr().Is4() != (p.family == dataplane.IPv4) {
			return errUnknown
		}
		verdict.Do, verdict.To = rules.DNAT, to
	case "NFLOG", "LOG", "NFQUEUE", "QUEUE", "CT", "NOTRACK", "TPROXY", "REDIRECT", "SNAT":
		return errUnknown
	default: // a chain, or an unknown target: then the chain has no rules
		if !strings.HasPrefix(name, Prefix) && !strings.HasPrefix(name, OwnPrefix) {
			return errUnknown
		}
		verdict.Do, verdict.Chain = rules.Jump, Qualified(p.table, name)
		if strings.HasPrefix(strings.TrimLeft(word, "-"), "g") {
			verdict.Do = rules.Goto
		}
	}
	return nil
}
