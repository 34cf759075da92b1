// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// labelTargets makes the labels of targets unique, and with them the names of
// their pairs' objects. Those of one label get what tells them apart behind it:
// the family of an IPv6 address beside an IPv4 one, the port, the address. Only
// what shares a label is told apart, and all of it is, so that the order in
// which targets were found does not matter.
func labelTargets(targets []*target) {
	for _, differs := range []func(*target) string{
		func(t *target) string {
			if t.Peer != nil && t.Peer.Family == checkup.IPv6 {
				return "ipv6"
			}
			return ""
		},
		func(t *target) string {
			if t.Peer == nil {
				return ""
			}
			return strconv.Itoa(t.Peer.Port)
		},
		func(t *target) string {
			if t.Peer == nil {
				return ""
			}
			return dashed(t.Peer.Host)
		},
	} {
		byLabel := map[string][]*target{}
		for _, t := range targets {
			byLabel[t.Label] = append(byLabel[t.Label], t)
		}
		for _, same := range byLabel {
			if !slices.ContainsFunc(same, func(t *target) bool { return differs(t) != differs(same[0]) }) {
				continue
			}
			for _, t := range same {
				if part := differs(t); part != "" {
					t.Label += "-" + part
				}
			}
		}
	}
	// What is left has its address and port in common, or was made alike by the
	// above. A name of an object ends in the port, so that it must not read as the
	// label of a target without one.
	identity := func(t *target) string {
		where := ""
		if t.Peer != nil {
			where = fmt.Sprintf("%s %d %s", t.Peer.Host, t.Peer.Port, t.Peer.Transport)
		}
		return strings.Join(append([]string{t.Component, where, t.Node, t.Pod, t.fronts}, t.behind...), "\x00")
	}
	slices.SortStableFunc(targets, func(a, b *target) int {
		return cmp.Or(cmp.Compare(a.Label, b.Label), cmp.Compare(identity(a), identity(b)))
	})
	taken := map[string]bool{}
	for _, t := range targets {
		name := func() string {
			if t.Peer == nil {
				return "\x00" + t.Label
			}
			return fmt.Sprintf("\x00%s-%d", t.Label, t.Peer.Port)
		}
		t.Label = untaken(t.Label, identity(t), func(label string) bool {
			t.Label = label
			return taken[label] || taken[name()]
		})
		taken[t.Label], taken[name()] = true, true
	}
}

// labelSources makes the labels of sources unique: pods of one name get their
// namespace before it.
func labelSources(sources []*source) {
	count := map[string]int{}
	for _, s := range sources {
		count[s.Label]++
	}
	identity := func(s *source) string { return s.namespace + "\x00" + s.Node + "\x00" + s.Component }
	for _, s := range sources {
		if count[s.Label] > 1 && s.namespace != "" {
			s.Label = s.namespace + "-" + s.Label
		}
	}
	slices.SortStableFunc(sources, func(a, b *source) int {
		return cmp.Or(cmp.Compare(a.Label, b.Label), cmp.Compare(identity(a), identity(b)))
	})
	taken := map[string]bool{}
	for _, s := range sources {
		s.Label = untaken(s.Label, identity(s), func(label string) bool { return taken[label] })
		taken[s.Label] = true
	}
}

// untaken returns the label, or one with a hash of who has it behind it that is
// not taken.
func untaken(label, identity string, taken func(string) bool) string {
	free := label
	for try := 0; taken(free); try++ {
		sum := sha256.Sum256([]byte(label + "\x00" + identity + "\x00" + strconv.Itoa(try)))
		free = label + "-" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:8])
	}
	return free
}
