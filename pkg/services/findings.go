// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"maps"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/localise"
)

// rule looks for one kind of cause among the failed pairs that no earlier rule explains. docs/services.md has the rules
// in words.
type rule struct {
	cause checkup.FindingCause
	// of returns the name of the group that a pair is in; false if it is in none.
	of func(x *explanation, i int) (string, bool)
	// nodes and services are the least number of nodes, and of Services, that the failed pairs of a group have.
	nodes, services int
	// share is the least share of the group's measured pairs that fail, without those that are explained.
	share float64
	// elsewhere demands that more than half of the failing addresses of a group pass from another node.
	elsewhere bool
	message   func(x *explanation, group string, failed []int) string
}

// causes are the rules of findings, from the widest cause to the narrowest. Of the groups of one rule, the one that
// explains most failed pairs is the first.
var causes = []rule{
	{
		cause: checkup.CauseNetwork, nodes: 1, services: 2, share: 0.9,
		of:      func(*explanation, int) (string, bool) { return "", true },
		message: func(x *explanation, _ string, failed []int) string { return "Services do not work from any node" },
	},
	{
		cause: checkup.CauseFamily, nodes: 1, services: 2, share: 0.9,
		of: func(x *explanation, i int) (string, bool) { return string(x.Outcomes[i].Pair.Family), true },
		message: func(x *explanation, family string, failed []int) string {
			return family + " addresses of Services do not work from any node"
		},
	},
	{
		cause: checkup.CauseNode, nodes: 1, services: 2, share: 0.5, elsewhere: true,
		of: func(x *explanation, i int) (string, bool) { return x.Source(i).Node, true },
		message: func(x *explanation, node string, failed []int) string {
			return fmt.Sprintf("node %s: most Services do not work from it, and work from other nodes: "+
				"its service proxy does not run, or has not written its rules", node)
		},
	},
	{
		cause: checkup.CauseService, nodes: 2, services: 1, share: 1,
		of:      func(x *explanation, i int) (string, bool) { return x.service(i), true },
		message: fromEveryNode,
	},
	{
		cause: checkup.CauseService, nodes: 2, services: 1, share: 1,
		of: func(x *explanation, i int) (string, bool) {
			return x.service(i) + " " + string(x.Outcomes[i].Pair.Family), true
		},
		message: fromEveryNode,
	},
	{
		cause: checkup.CauseService, nodes: 2, services: 1, share: 1,
		of:      func(x *explanation, i int) (string, bool) { return x.Target(i).Name(), true },
		message: fromEveryNode,
	},
	{
		cause: checkup.CauseNode, nodes: 1, services: 2, elsewhere: true,
		of: func(x *explanation, i int) (string, bool) { return x.Source(i).Node, true },
		message: func(x *explanation, node string, failed []int) string {
			return fmt.Sprintf("node %s: %s from it, and work from other nodes: its service proxy is not up to date",
				node, doNotWork(len(localise.Once(failed, x.service))))
		},
	},
	{
		cause: checkup.CauseService, nodes: 2, services: 1,
		of: func(x *explanation, i int) (string, bool) { return x.service(i), true },
		message: func(x *explanation, service string, failed []int) string {
			return fmt.Sprintf("Service %s: %s from %s", service, x.how(failed), checkup.SomeOf(x.SourceNodes(failed), "node"))
		},
	},
	{
		cause: checkup.CausePair, nodes: 1, services: 1,
		of: func(x *explanation, i int) (string, bool) { return x.Source(i).Node + " -> " + x.service(i), true },
		message: func(x *explanation, _ string, failed []int) string {
			return fmt.Sprintf("Service %s: %s from node %s", x.service(failed[0]), x.how(failed), x.Source(failed[0]).Node)
		},
	},
}

func fromEveryNode(x *explanation, group string, failed []int) string {
	return fmt.Sprintf("Service %s: %s from every node", group, x.how(failed))
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
		if len(failed) == 0 || best != nil && len(failed) <= len(best.Pairs) {
			continue
		}
		share := float64(len(failed)) / float64(len(measured))
		if len(x.SourceNodes(failed)) < r.nodes || len(localise.Once(failed, x.service)) < r.services || share < r.share ||
			r.elsewhere && 2*len(x.Elsewhere(failed)) <= len(failed) {
			continue
		}
		f := &localise.Found{Pairs: failed}
		f.Cause, f.Subject, f.Message = r.cause, name, r.message(x, name, failed)
		f.Confirmation = x.Again(failed)
		f.For = append(f.For, fmt.Sprintf("%d of %s fail: %s", len(failed), checkup.Count(len(measured), "measured pair"), x.how(failed)))
		if n := len(x.Elsewhere(failed)); r.elsewhere {
			f.For = append(f.For, fmt.Sprintf("%d of the %d failing addresses work from another node", n, len(failed)))
		}
		if r.cause == checkup.CauseService {
			if n := x.sheet.Targets[x.Outcomes[failed[0]].Pair.Target].Endpoints; n > 0 {
				f.For = append(f.For, fmt.Sprintf("the Service has %s", checkup.Count(n, "usable endpoint")))
			}
		}
		if n := len(x.against(measured)); n > 0 {
			f.Against = append(f.Against, localise.OthersDoNot(n))
		}
		best = f
	}
	return best
}

// same names what other nodes measure, too: a target, or of node ports, whose addresses differ from node to node,
// Service and port.
func same(sheet *Sheet, p checkup.Pair) string {
	t := sheet.Targets[p.Target]
	if t.Address == NodePort {
		return fmt.Sprintf("%s %s %s", t.Service, t.Port, p.Family)
	}
	return fmt.Sprint(p.Target)
}

// against returns the pairs that pass, without those that pass because nothing answers.
func (x *explanation) against(measured []int) []int {
	return slices.DeleteFunc(slices.Clone(measured), func(i int) bool {
		return x.Outcomes[i].Verdict != checkup.Pass || x.sheet.Expects(x.Worksheet, x.Outcomes[i].Pair) == Dropped
	})
}

func (x *explanation) service(i int) string { return x.sheet.Service(x.Outcomes[i].Pair.Target) }

// how says in which ways pairs fail.
func (x *explanation) how(failed []int) string {
	return x.How(failed, func(o *judge.Outcome) string { return localise.Way(o, "does not connect") })
}

// doNotWork is "1 Service does not work", "2 Services do not work".
func doNotWork(n int) string {
	if n == 1 {
		return "1 Service does not work"
	}
	return fmt.Sprintf("%d Services do not work", n)
}
