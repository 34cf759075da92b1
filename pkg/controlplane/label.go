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

// labelTargets makes the labels of targets unique, and with them the names of their
// pairs' objects. If targets share a label, IPv6 addresses beside IPv4 ones get the
// suffix -ipv6, and those with different ports the port. Those that are still equal,
// such as two pods on one node, are numbered from the second on, in the order of the
// pods' names: unlike an address, a number stays when pods are replaced.
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
	identity := func(t *target) string {
		where := ""
		if t.Peer != nil {
			where = fmt.Sprintf("%s %d %s", t.Peer.Host, t.Peer.Port, t.Peer.Transport)
		}
		return strings.Join(append([]string{t.Pod, where, t.Node, t.Component, t.fronts}, t.behind...), "\x00")
	}
	slices.SortFunc(targets, func(a, b *target) int {
		return cmp.Or(cmp.Compare(a.Label, b.Label), cmp.Compare(identity(a), identity(b)))
	})
	// The name of a pair's object ends in the port: it must not equal the label of a
	// target without one.
	name := func(t *target, label string) string {
		if t.Peer == nil {
			return "\x00" + label
		}
		return fmt.Sprintf("\x00%s-%d", label, t.Peer.Port)
	}
	taken := map[string]bool{}
	last, number := "", 0
	for _, t := range targets {
		if t.Label != last {
			last, number = t.Label, 0
		}
		if number > 0 {
			t.Label += "-" + strconv.Itoa(number)
		}
		number++
		t.Label = untaken(t.Label, identity(t), func(label string) bool { return taken[label] || taken[name(t, label)] })
		taken[t.Label], taken[name(t, t.Label)] = true, true
	}
}

// labelSources makes the labels of sources unique. Those of pods in several
// namespaces get the namespace as a prefix; several pods of one component on one
// node are numbered from the second on, in the order of their names.
func labelSources(sources []*source) {
	byLabel := map[string][]*source{}
	for _, s := range sources {
		byLabel[s.Label] = append(byLabel[s.Label], s)
	}
	namespace := func(s *source) string {
		namespace, _, _ := strings.Cut(s.Pod, "/")
		return namespace
	}
	for _, same := range byLabel {
		if slices.ContainsFunc(same, func(s *source) bool { return namespace(s) != namespace(same[0]) }) {
			for _, s := range same {
				if s.Pod != "" {
					s.Label = namespace(s) + "-" + s.Label
				}
			}
		}
	}
	slices.SortFunc(sources, func(a, b *source) int {
		return cmp.Or(
			cmp.Compare(a.Label, b.Label),
			cmp.Compare(a.Pod, b.Pod),
			cmp.Compare(a.Node, b.Node),
			cmp.Compare(a.Component, b.Component),
		)
	})
	taken := map[string]bool{}
	last, number := "", 0
	for _, s := range sources {
		label := s.Label
		if label != last {
			last, number = label, 0
		}
		if number > 0 && s.fleeting {
			s.Label += "-" + strconv.Itoa(number)
		}
		number++
		s.Label = untaken(s.Label, s.Pod+"\x00"+s.Node+"\x00"+s.Component, func(label string) bool { return taken[label] })
		taken[s.Label] = true
	}
}

// untaken returns the label if it is free, else the label with a hash of the
// identity as a suffix.
func untaken(label, identity string, taken func(string) bool) string {
	free := label
	for try := 0; taken(free); try++ {
		sum := sha256.Sum256([]byte(label + "\x00" + identity + "\x00" + strconv.Itoa(try)))
		free = label + "-" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:8])
	}
	return free
}
