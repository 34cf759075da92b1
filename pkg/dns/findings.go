// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/localise"
)

// rule looks for one kind of cause among the failed pairs that no earlier rule explains. docs/dns.md has the rules in
// words.
type rule struct {
	cause checkup.FindingCause
	// of returns the name of the group that a pair is in; false if it is in none.
	of func(x *explanation, i int) (string, bool)
	// nodes, names and servers are the least number of nodes, of questions' subjects, and of servers, that the failed
	// pairs of a group have; pairs is the least number of the failed pairs. 0 is 1.
	nodes, names, servers, pairs int
	// share is the least share of the group's measured pairs that fail, without those that are explained.
	share float64
	// elsewhere demands that for more than half of the failed pairs another node gets an answer from the same server.
	elsewhere bool
	// throughResolver says that what pods' resolvers lose in the same way is explained, too: they are sent to a server by
	// its Service.
	throughResolver bool
	message         func(x *explanation, group string, measured, failed []int) string
}

// causes are the rules of findings, from the widest cause to the narrowest. Of the groups of one rule, the one that
// explains most failed pairs is the first.
var causes = []rule{
	{
		cause: checkup.CauseNetwork, names: 2, share: 0.9,
		of: func(*explanation, int) (string, bool) { return "", true },
		message: func(x *explanation, _ string, _, failed []int) string {
			return fmt.Sprintf("DNS does not work from any node: %s", x.how(failed))
		},
	},
	{
		cause: checkup.CauseTransport, names: 2, share: 0.9,
		of: func(x *explanation, i int) (string, bool) { return over(x.Outcomes[i].Pair.Transport), true },
		message: func(x *explanation, transport string, _, failed []int) string {
			return fmt.Sprintf("DNS over %s does not work from any node: %s", transport, x.how(failed))
		},
	},
	{
		cause: checkup.CauseFamily, names: 2, servers: 2, share: 0.9,
		of: func(x *explanation, i int) (string, bool) {
			family := x.Outcomes[i].Pair.Family
			return string(family), family != checkup.AnyIPFamily
		},
		message: func(x *explanation, family string, _, failed []int) string {
			return fmt.Sprintf("%s addresses of DNS servers do not work from any node: %s", family, x.how(failed))
		},
	},
	{
		cause: checkup.CauseFamily, names: 2, share: 0.9,
		of: func(x *explanation, i int) (string, bool) { return x.question(i).Type, true },
		message: func(x *explanation, kind string, _, failed []int) string {
			return fmt.Sprintf("questions of the type %s: %s everywhere", kind, x.how(failed))
		},
	},
	{
		cause: checkup.CauseTarget, nodes: 2, names: 2, share: 0.9, throughResolver: true,
		of: oneEndpoint, message: fromServer,
	},
	{
		cause: checkup.CauseTarget, nodes: 2, names: 2, share: 0.9,
		of: func(x *explanation, i int) (string, bool) { return x.server(i), x.server(i) == ResolverName },
		message: func(x *explanation, _ string, measured, failed []int) string {
			return fmt.Sprintf("the pods' resolver: %s from %s", x.how(failed), x.where(measured, failed))
		},
	},
	{
		cause: checkup.CauseNode, names: 2, share: 0.5, elsewhere: true,
		of: func(x *explanation, i int) (string, bool) { return x.Source(i).Node, true },
		message: func(x *explanation, node string, _, failed []int) string {
			return fmt.Sprintf("node %s: DNS does not work from it, and works from other nodes: %s", node, x.how(failed))
		},
	},
	{
		cause: checkup.CauseTarget, nodes: 2, names: 2, share: 0.5, throughResolver: true,
		of: oneEndpoint, message: fromServer,
	},
	{
		cause: checkup.CauseService, pairs: 2, share: 1,
		of: func(x *explanation, i int) (string, bool) { return x.subject(i), true },
		message: func(x *explanation, subject string, measured, failed []int) string {
			return fmt.Sprintf("%s: %s from %s and every server", x.about(failed[0]), x.how(failed), x.where(measured, failed))
		},
	},
	{
		cause: checkup.CauseNode, names: 2, share: 0.5, elsewhere: true,
		of: func(x *explanation, i int) (string, bool) { return x.Source(i).Node + " -> " + x.server(i), true },
		message: func(x *explanation, _ string, _, failed []int) string {
			return fmt.Sprintf("node %s: %s from %s, which answers other nodes",
				x.Source(failed[0]).Node, x.how(failed), x.serverWords(failed[0]))
		},
	},
	{
		cause: checkup.CauseTarget, names: 2,
		of: func(x *explanation, i int) (string, bool) { return x.server(i), true },
		message: func(x *explanation, _ string, measured, failed []int) string {
			return fmt.Sprintf("%s: %s to some questions, from %s", x.serverWords(failed[0]), x.how(failed), x.where(measured, failed))
		},
	},
	{
		cause: checkup.CauseService,
		of:    func(x *explanation, i int) (string, bool) { return x.subject(i), true },
		message: func(x *explanation, _ string, measured, failed []int) string {
			return fmt.Sprintf("%s: %s from %s, by %s", x.about(failed[0]), x.how(failed), x.where(measured, failed),
				x.serverWords(failed[0]))
		},
	},
}

// oneEndpoint groups pairs by their server, without those of the pods' resolvers.
func oneEndpoint(x *explanation, i int) (string, bool) {
	return x.server(i), x.server(i) != ResolverName
}

func fromServer(x *explanation, server string, measured, failed []int) string {
	return fmt.Sprintf("DNS server %s: %s from %s", server, x.how(failed), x.where(measured, failed))
}

// explanation is the evidence.
type explanation struct {
	*localise.Ruled
	sheet *Sheet
}

// findings explain the failed pairs.
func findings(j *judge.Judgement, sheet *Sheet) []checkup.Finding {
	x := &explanation{sheet: sheet}
	x.Ruled = localise.NewRuled(j, func(i int) string { return same(sheet, j.Outcomes[i].Pair) })
	return x.Explain(len(causes), func(rule int) *localise.Found { return x.best(causes[rule]) })
}

// best returns the finding of a rule that explains most failed pairs; nil if no group fits the rule.
func (x *explanation) best(r rule) *localise.Found {
	groups := x.Groups(func(i int) (string, bool) { return r.of(x, i) })
	var best *localise.Found
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		measured := groups[name]
		failed := x.Failed(measured)
		if len(failed) == 0 || len(failed) < r.pairs || best != nil && len(failed) <= len(best.Pairs) {
			continue
		}
		share := float64(len(failed)) / float64(len(measured))
		if len(x.SourceNodes(failed)) < r.nodes || len(distinct(failed, x.subject)) < r.names || share < r.share ||
			len(distinct(failed, x.server)) < r.servers || r.elsewhere && 2*len(x.Elsewhere(failed)) <= len(failed) {
			continue
		}
		f := &localise.Found{Pairs: failed}
		f.Cause, f.Subject, f.Message = r.cause, name, r.message(x, name, measured, failed)
		if r.cause == checkup.CauseNode {
			f.Concerns(x.SourceNodes(failed)...)
		}
		f.Confirmation = x.Again(failed)
		f.For = append(f.For, fmt.Sprintf("%d of %s fail: %s", len(failed), checkup.Count(len(measured), "measured pair"), x.how(failed)))
		if answers := x.answers(failed); answers != "" {
			f.For = append(f.For, answers)
		}
		if r.elsewhere {
			f.For = append(f.For, fmt.Sprintf("for %d of them the same server answers another node", len(x.Elsewhere(failed))))
		}
		if n := len(measured) - len(failed); n > 0 {
			f.Against = append(f.Against, localise.OthersDoNot(n))
		}
		if r.throughResolver {
			if related := x.throughResolver(failed); len(related) > 0 {
				f.Pairs = append(slices.Clone(failed), related...)
				f.For = append(f.For, fmt.Sprintf("the resolvers of pods ask it, too: %s through them fail in the same way",
					checkup.Count(len(related), "pair")))
			}
		}
		best = f
	}
	return best
}

// throughResolver returns the failed pairs of the pods' resolvers, of the nodes of other failed pairs, that fail as
// these do: without the answer, or with a wrong one.
func (x *explanation) throughResolver(failed []int) []int {
	nodes, wrong := x.SourceNodes(failed), 0
	for _, i := range failed {
		if x.isWrong(i) {
			wrong++
		}
	}
	var related []int
	for _, i := range x.Measured {
		if x.Fails(i) && !x.Explained(i) && x.server(i) == ResolverName && slices.Contains(nodes, x.Source(i).Node) &&
			x.isWrong(i) == (2*wrong > len(failed)) {
			related = append(related, i)
		}
	}
	return related
}

// isWrong reports whether a pair fails because of what was answered.
func (x *explanation) isWrong(i int) bool {
	switch x.Outcomes[i].Cause.Reason {
	case checkup.ReasonWrong, checkup.ReasonCode, checkup.ReasonMalformed:
		return true
	}
	return false
}

func (x *explanation) target(i int) Target { return x.sheet.Targets[x.Outcomes[i].Pair.Target] }
func (x *explanation) server(i int) string { return x.target(i).Server }

func (x *explanation) question(i int) *checkup.Question { return x.Target(i).Peer.Question }

// subject is what a question asks about: a Service, or another name.
func (x *explanation) subject(i int) string { return cmp.Or(x.target(i).Service, x.question(i).Name) }

// about is the subject in words.
func (x *explanation) about(i int) string {
	if service := x.target(i).Service; service != "" {
		return "Service " + service
	}
	return "name " + x.question(i).Name
}

func (x *explanation) serverWords(i int) string {
	if x.server(i) == ResolverName {
		return "the pods' resolver"
	}
	return "DNS server " + x.server(i)
}

// same names a server and a transport.
func same(sheet *Sheet, p checkup.Pair) string {
	return sheet.Targets[p.Target].Server + " " + over(p.Transport)
}

// where says from which nodes pairs fail.
func (x *explanation) where(measured, failed []int) string {
	all, nodes := x.SourceNodes(measured), x.SourceNodes(failed)
	if len(nodes) == len(all) && len(all) > 1 {
		return "every node"
	}
	if len(nodes) == 1 {
		return "node " + nodes[0]
	}
	return checkup.SomeOf(nodes, "node")
}

// answers quotes the most frequent cause of pairs that fail by what was answered, or because datagrams were lost; empty
// if there are none.
func (x *explanation) answers(failed []int) string {
	n := map[string]int{}
	for _, i := range failed {
		if x.isWrong(i) || x.Outcomes[i].Cause.Reason == checkup.ReasonRepeated {
			n[x.Outcomes[i].Cause.Message]++
		}
	}
	messages := slices.SortedFunc(maps.Keys(n), func(a, b string) int {
		return cmp.Or(cmp.Compare(n[b], n[a]), cmp.Compare(a, b))
	})
	if len(messages) == 0 {
		return ""
	}
	return fmt.Sprintf("in %s: %s", checkup.Count(n[messages[0]], "pair"), messages[0])
}

// how says in which ways pairs fail.
func (x *explanation) how(failed []int) string { return x.How(failed, way) }

// way says how a pair fails.
func way(o *judge.Outcome) string {
	if o.Failure == judge.Slow {
		return "slow"
	}
	words := map[checkup.Reason]string{
		checkup.ReasonWrong: "wrong answers", checkup.ReasonCode: "errors", checkup.ReasonMalformed: "malformed answers",
		checkup.ReasonRepeated: "lost datagrams", checkup.ReasonTimedOut: "no answer", checkup.ReasonRefused: "refused",
		checkup.ReasonNoRoute: "unreachable",
	}[o.Cause.Reason]
	if words = cmp.Or(words, "no answer"); o.Received > 0 {
		words += " at times"
	}
	return words
}

// distinct returns the different values of a function of pairs.
func distinct(pairs []int, of func(int) string) map[string]bool {
	all := map[string]bool{}
	for _, i := range pairs {
		all[of(i)] = true
	}
	return all
}
