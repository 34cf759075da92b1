// SPDX-License-Identifier: Apache-2.0

package write

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/iptables"
)

// own is the name of one of the proxy's chains.
var own = regexp.MustCompile(`^` + iptables.OwnPrefix + `[A-Za-z0-9-]{1,22}$`)

// builtin are the tables' chains of others in which the proxy has rules.
var builtin = []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

// Restore returns what iptables-restore --noflush reads to turn one set of rules into these: each table is one
// transaction. It is empty if they are equal. The older rules are those that the last Restore led to, or what Found
// returned.
func (r *Rules) Restore(older *Rules) []byte {
	var text bytes.Buffer
	for _, name := range iptables.Tables {
		table(&text, name, r.table(name), older.table(name))
	}
	return text.Bytes()
}

func (r *Rules) table(name string) *Table {
	if r == nil || r.Tables[name] == nil {
		return &Table{}
	}
	return r.Tables[name]
}

// table writes the changes of one table, if there are any.
func table(text *bytes.Buffer, name string, is, was *Table) {
	var declared, rules, deleted bytes.Buffer
	for _, chain := range sorted(is.Chains) {
		before, known := was.Chains[chain]
		if known && slices.Equal(before, is.Chains[chain]) {
			continue
		}
		fmt.Fprintf(&declared, ":%s - [0:0]\n", chain) // makes it, or removes its rules
		for _, rule := range is.Chains[chain] {
			fmt.Fprintf(&rules, "-A %s %s\n", chain, rule)
		}
	}
	for _, chain := range sorted(was.Chains) {
		if _, ok := is.Chains[chain]; !ok {
			fmt.Fprintf(&declared, ":%s - [0:0]\n", chain)
			fmt.Fprintf(&deleted, "-X %s\n", chain)
		}
	}
	if !slices.Equal(is.Jumps, was.Jumps) {
		for _, jump := range was.Jumps {
			fmt.Fprintf(&rules, "-D %s %s\n", jump.Chain, jump.Rule)
		}
		for _, jump := range slices.Backward(is.Jumps) {
			fmt.Fprintf(&rules, "-I %s %s\n", jump.Chain, jump.Rule)
		}
	}
	if declared.Len()+rules.Len() == 0 {
		return
	}
	fmt.Fprintf(text, "*%s\n%s%s%sCOMMIT\n", name, declared.Bytes(), rules.Bytes(), deleted.Bytes())
}

// Found returns what iptables-save shows of the proxy's rules, which a predecessor may have left. What its chains have
// is not kept: Restore writes them anew. It is nil if there is nothing.
func Found(save []byte, family dataplane.Family) *Rules {
	r := &Rules{Family: family, Tables: map[string]*Table{}}
	some := false
	within := ""
	for line := range strings.Lines(string(save)) {
		line = strings.TrimRight(line, "\r\n")
		if name, ok := strings.CutPrefix(line, "*"); ok {
			within = name
			continue
		}
		if !slices.Contains(iptables.Tables, within) {
			continue
		}
		t := r.Tables[within]
		if t == nil {
			t = &Table{Chains: map[string][]string{}}
			r.Tables[within] = t
		}
		if chain, ok := strings.CutPrefix(line, ":"); ok {
			if chain, _, _ = strings.Cut(chain, " "); own.MatchString(chain) {
				t.Chains[chain], some = []string{"not read"}, true
			}
			continue
		}
		if rest, ok := strings.CutPrefix(line, "-A "); ok {
			chain, rule, _ := strings.Cut(rest, " ")
			at := strings.LastIndex(rule, "-j ")
			if at >= 0 && own.MatchString(rule[at+len("-j "):]) && slices.Contains(builtin, chain) {
				t.Jumps, some = append(t.Jumps, Jump{chain, rule}), true
			}
		}
	}
	if !some {
		return nil
	}
	return r
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
