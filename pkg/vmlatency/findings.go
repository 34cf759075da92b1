// SPDX-License-Identifier: Apache-2.0

package vmlatency

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/localise"
)

// findings explain the failed pairs, network by network; doc.go has the rules. Each
// failed pair is explained by one finding.
func (v *vms) findings(j *judge.Judgement) []checkup.Finding {
	var found []*localise.Found
	for _, n := range v.networks(localise.NewEvidence(j)) {
		for _, d := range []damage{severed, lossy, late} {
			n.blame(d)
		}
		found = append(found, n.found...)
	}
	return localise.List(found)
}

// differences explain what became worse since earlier runs, network by network, as findings explain failures.
func (v *vms) differences(j *judge.Judgement, d *localise.Difference) []checkup.Finding {
	damage := late
	if d.Class == judge.Lost {
		damage = lossy
	}
	var found []*localise.Found
	for _, n := range v.networks(localise.NewEvidence(d.Judgement(j))) {
		n.difference = d
		n.blame(damage)
		found = append(found, n.found...)
	}
	return localise.List(found)
}

// damage is the kind of failure of a pair of VMs.
type damage uint8

const (
	severed damage = iota + 1 // no answer
	lossy                     // more loss than the limit allows
	late                      // a delay or its variation is over a limit
)

func damageOf(o *judge.Outcome) damage {
	switch {
	case o.Verdict != checkup.Fail:
		return 0
	case o.Failure != judge.Lost:
		return late
	case o.Received == 0:
		return severed
	default:
		return lossy
	}
}

// vmNetwork is the measurements over one network.
type vmNetwork struct {
	*vms
	*localise.Evidence
	ref   string
	links []*vmLink
	found []*localise.Found
	// difference is what became worse since earlier runs; nil if what is explained are failures.
	difference *localise.Difference
}

// vmLink is two nodes, or one twice, and the measured pairs between VMs on them,
// both ways.
type vmLink struct {
	a, b  string
	pairs []int
}

func (l *vmLink) touches(node string) bool { return l.a == node || l.b == node }

// other node than one of the two.
func (l *vmLink) other(node string) string {
	if l.a == node {
		return l.b
	}
	return l.a
}

// networks lists the networks with measurements, in the order of the worksheet.
func (v *vms) networks(e *localise.Evidence) []*vmNetwork {
	var networks []*vmNetwork
	for _, i := range e.Measured {
		p := e.Outcomes[i].Pair
		ref := v.network(p).String()
		k := slices.IndexFunc(networks, func(n *vmNetwork) bool { return n.ref == ref })
		if k < 0 {
			k = len(networks)
			networks = append(networks, &vmNetwork{vms: v, Evidence: e, ref: ref})
		}
		n := networks[k]
		a, b := n.place(p.Source), n.place(p.Target)
		k = slices.IndexFunc(n.links, func(l *vmLink) bool { return l.a == a && l.b == b || l.a == b && l.b == a })
		if k < 0 {
			k = len(n.links)
			n.links = append(n.links, &vmLink{a: a, b: b})
		}
		n.links[k].pairs = append(n.links[k].pairs, i)
	}
	return networks
}

// place of a VM: the node where it ran, or else its name.
func (n *vmNetwork) place(vm int) string { return cmp.Or(n.node(vm), n.vms.name(vm)) }

func (n *vmNetwork) failing(pairs []int, d damage) []int {
	return slices.DeleteFunc(slices.Clone(pairs), func(i int) bool { return damageOf(&n.Outcomes[i]) != d })
}

// blame explains one damage: by the network, by nodes all of whose pairs have it, and
// the remaining pairs one by one.
func (n *vmNetwork) blame(d damage) {
	var left []*vmLink
	for _, l := range n.links {
		if len(n.failing(l.pairs, d)) > 0 {
			left = append(left, l)
		}
	}
	bad := slices.Clone(left)
	all := len(bad) == len(n.links)
	// whole reports whether all measured pairs of a node are bad.
	whole := func(node string) bool {
		return !slices.ContainsFunc(n.links, func(l *vmLink) bool { return l.touches(node) && !slices.Contains(bad, l) })
	}
	if all && len(left) > 1 && len(common(left)) != 1 {
		n.add(d, checkup.Finding{Cause: checkup.CauseNetwork, Subject: n.ref}, left)
		return
	}
	for {
		node, most := "", 1
		for _, l := range left {
			for _, x := range []string{l.a, l.b} {
				if k := len(touching(left, x)); whole(x) && k > most {
					node, most = x, k
				}
			}
		}
		if node == "" {
			break
		}
		f := checkup.Finding{Cause: checkup.CauseNode, Subject: node}
		if all {
			f.Alternatives = []string{fmt.Sprintf("%s %s", checkup.CauseNetwork, n.ref)}
		}
		n.add(d, f, touching(left, node))
		left = slices.DeleteFunc(left, func(l *vmLink) bool { return l.touches(node) })
	}
	for _, l := range left {
		f := checkup.Finding{Cause: checkup.CausePair, Subject: l.a + " -> " + l.b}
		if len(n.links) == 1 {
			f.Alternatives = append(f.Alternatives, fmt.Sprintf("%s %s", checkup.CauseNetwork, n.ref))
		}
		for _, x := range slices.Compact([]string{l.a, l.b}) {
			if whole(x) && len(touching(n.links, x)) == 1 {
				f.Alternatives = append(f.Alternatives, fmt.Sprintf("%s %s", checkup.CauseNode, x))
			}
		}
		n.add(d, f, []*vmLink{l})
	}
}

func touching(links []*vmLink, node string) []*vmLink {
	return slices.DeleteFunc(slices.Clone(links), func(l *vmLink) bool { return !l.touches(node) })
}

// common are the nodes that all links touch.
func common(links []*vmLink) []string {
	nodes := slices.Compact([]string{links[0].a, links[0].b})
	return slices.DeleteFunc(nodes, func(x string) bool { return len(touching(links, x)) < len(links) })
}

// add makes a finding of the failures on some links.
func (n *vmNetwork) add(d damage, f checkup.Finding, links []*vmLink) {
	var pairs []int
	for _, l := range links {
		pairs = append(pairs, l.pairs...)
	}
	slices.Sort(pairs)
	for _, i := range pairs {
		p := n.Outcomes[i].Pair
		for _, node := range []string{n.node(p.Source), n.node(p.Target)} {
			if f.Cause == checkup.CausePair || node == f.Subject {
				f.Concerns(node)
			}
		}
	}
	failing := n.failing(pairs, d)
	families, others := n.families(failing), n.families(pairs)
	// If one family does not fail at all, the finding names the other.
	alone := len(families) == 1 && slices.ContainsFunc(others, func(family checkup.IPFamily) bool {
		return !slices.ContainsFunc(pairs, func(i int) bool {
			return n.Outcomes[i].Pair.Family == family && n.Outcomes[i].Verdict == checkup.Fail
		})
	})
	said := make([]string, len(families))
	for i, family := range families {
		said[i] = string(family)
	}
	of := strings.Join(said, " and ")
	if alone {
		f.Family = families[0]
		of += " only"
	}
	// The pairs of the same families: connectivity is measured both ways, limits
	// apply from the source only.
	same := slices.DeleteFunc(
		slices.Clone(pairs),
		func(i int) bool { return !slices.Contains(families, n.Outcomes[i].Pair.Family) },
	)
	from, to, oneWay := "", "", false
	if d == severed && len(links) == 1 {
		from, to, oneWay = n.oneWay(failing, same)
	}
	where := ""
	switch {
	case f.Cause == checkup.CauseNetwork:
		where = fmt.Sprintf("between all %d pairs of nodes", len(links))
	case f.Cause == checkup.CauseNode:
		var others []string
		for _, l := range links {
			if l.a != l.b {
				others = append(others, l.other(f.Subject))
			}
		}
		where = fmt.Sprintf("between %s and each of %s", f.Subject, checkup.SomeOf(others, "other node"))
		if len(others) < len(links) {
			where = fmt.Sprintf("on %s, and between it and %s", f.Subject, checkup.SomeOf(others, "other node"))
		}
	case oneWay:
		where = fmt.Sprintf("from %s to %s", from, to)
	case links[0].a == links[0].b:
		where = "between two VMs on " + links[0].a
	default:
		where = fmt.Sprintf("between %s and %s", links[0].a, links[0].b)
	}
	f.Message = fmt.Sprintf("%s over %s %s, %s", n.effect(d, failing), n.ref, where, of)
	switch {
	case n.difference != nil:
		f.Change = n.difference.Of(failing)
		f.Message = fmt.Sprintf("%s over %s, %s: %s", where, n.ref, of, localise.InWords(f.Change))
	case d == severed && oneWay:
		f.Message += ", not the other way round"
	case d == severed && len(failing) == len(same):
		f.Message += ", both ways"
	case d == late:
		f.Message += ": " + n.Outcomes[failing[0]].Cause.Message
	}
	f.For = n.evidence(failing)
	if d == severed {
		f.For = append(f.For, n.hints(f, links, oneWay, from)...)
		if !oneWay {
			f.Against = n.against(same)
		}
	}
	if rest := len(n.links) - len(links); rest > 0 {
		pass := 0
		for _, l := range n.links {
			if !slices.Contains(links, l) &&
				!slices.ContainsFunc(l.pairs, func(i int) bool { return n.Outcomes[i].Verdict == checkup.Fail }) {
				pass++
			}
		}
		verb := "pass"
		if n.difference != nil {
			pass, verb = rest-pass, n.difference.Verb()
		}
		f.For = append(f.For, fmt.Sprintf("%d of %s of nodes over %s %s",
			pass, checkup.Count(rest, "other pair"), n.ref, verb))
	}
	n.found = append(n.found, &localise.Found{Finding: f, Pairs: failing})
}

// families of some pairs, in the order of IPFamilies.
func (n *vmNetwork) families(pairs []int) []checkup.IPFamily {
	return slices.DeleteFunc(slices.Clone(checkup.IPFamilies), func(family checkup.IPFamily) bool {
		return !slices.ContainsFunc(pairs, func(i int) bool { return n.Outcomes[i].Pair.Family == family })
	})
}

// oneWay reports whether the pairs from one of two nodes fail and those from the other
// pass.
func (n *vmNetwork) oneWay(failing, same []int) (from, to string, is bool) {
	p := n.Outcomes[failing[0]].Pair
	from, to = n.place(p.Source), n.place(p.Target)
	back := 0
	for _, i := range same {
		there := n.place(n.Outcomes[i].Pair.Source) == from
		if there != slices.Contains(failing, i) {
			return "", "", false
		}
		if !there {
			back++
		}
	}
	return from, to, from != to && back > 0
}

// effect describes the damage in a finding's message.
func (n *vmNetwork) effect(d damage, failing []int) string {
	switch d {
	case severed:
		return "no connectivity"
	case lossy:
		sent, received := 0, 0
		for _, i := range failing {
			sent += n.Outcomes[i].Sent
			received += n.Outcomes[i].Received
		}
		return fmt.Sprintf("%s of the echo requests lost", checkup.PercentOf(sent-received, sent))
	default:
		return "too slow"
	}
}

// evidenceLines is how many lines of evidence name pairs.
const evidenceLines = 6

// evidence are the causes of failed pairs, one line for each source, target and cause.
func (n *vmNetwork) evidence(failing []int) []string {
	type key struct{ way, message string }
	var order []key
	families := map[key][]string{}
	for _, i := range failing {
		o := &n.Outcomes[i]
		k := key{n.way(o.Pair), o.Cause.Message}
		if families[k] == nil {
			order = append(order, k)
		}
		families[k] = append(families[k], string(o.Pair.Family))
	}
	var lines []string
	for i, k := range order {
		if i == evidenceLines {
			lines = append(lines, fmt.Sprintf("and %d more", len(order)-i))
			break
		}
		lines = append(lines, fmt.Sprintf("%s %s: %s", k.way, strings.Join(families[k], ", "), k.message))
	}
	return lines
}

// hints name likely causes if nothing is answered.
func (n *vmNetwork) hints(f checkup.Finding, links []*vmLink, oneWay bool, from string) []string {
	if oneWay {
		return []string{
			fmt.Sprintf(
				"echo requests in the other direction are answered: look for a filter on connections from %s, or an outage that began during the measurement",
				from,
			),
		}
	}
	if f.Family == checkup.IPv6 {
		return []string{
			"IPv6 finds its neighbours by multicast (RFC 4861), IPv4 by broadcast: check whether something between the VMs filters multicast",
		}
	}
	between := slices.ContainsFunc(links, func(l *vmLink) bool { return l.a != l.b })
	vm := n.vm(n.Outcomes[links[0].pairs[0]].Pair.Source)
	if vm != nil {
		if why := doubt(vm.NetworkType, vm.Binding); why != "" {
			return []string{"this may not be the network's fault: " + why}
		}
	}
	if !between || vm == nil || f.Family != "" || vm.NetworkType != "bridge" && vm.NetworkType != "cnv-bridge" {
		return nil
	}
	where := "on " + f.Subject
	switch f.Cause {
	case checkup.CausePair:
		where = fmt.Sprintf("on %s and %s", links[0].a, links[0].b)
	case checkup.CauseNetwork:
		where = "on each node"
	}
	return []string{
		fmt.Sprintf(
			"the %s plugin creates a missing bridge without an uplink: check that %s has one %s",
			vm.NetworkType,
			cmp.Or(vm.Bridge, "the bridge"),
			where,
		),
	}
}

// against names pairs that pass although the finding says that they are cut off.
func (n *vmNetwork) against(pairs []int) []string {
	var lines []string
	more := 0
	for _, i := range pairs {
		o := &n.Outcomes[i]
		if o.Verdict != checkup.Pass {
			continue
		}
		if len(lines) == evidenceLines {
			more++
			continue
		}
		lines = append(lines, fmt.Sprintf("%s %s passes", n.way(o.Pair), o.Pair.Family))
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return lines
}
