// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/localise"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// causes are the rules of findings, in words in docs/services.md, from the widest cause to the narrowest. Of the groups
// of one rule, the one that explains most failed pairs is the first.
var causes = []localise.Rule[*explanation]{
	{
		Cause: checkup.CauseNetwork, Nodes: 1, Services: 2, Share: 0.9,
		Of:      func(*explanation, int) (string, bool) { return "", true },
		Message: func(x *explanation, _ string, failed []int) string { return "Services do not work from any node" },
	},
	{
		Cause: checkup.CauseFamily, Nodes: 1, Services: 2, Share: 0.9,
		Of: func(x *explanation, i int) (string, bool) { return string(x.Outcomes[i].Pair.Family), true },
		Message: func(x *explanation, family string, failed []int) string {
			return family + " addresses of Services do not work from any node"
		},
	},
	{
		Cause: checkup.CauseNode, Nodes: 1, Services: 2, Share: 0.5, Elsewhere: true,
		Of: func(x *explanation, i int) (string, bool) { return x.Source(i).Node, true },
		Message: func(x *explanation, node string, failed []int) string {
			return fmt.Sprintf("node %s: most Services do not work from it, and work from other nodes: "+
				"its service proxy does not run, or has not written its rules", node)
		},
	},
	{
		Cause: checkup.CauseService, Nodes: 2, Services: 1, Share: 1,
		Of:      func(x *explanation, i int) (string, bool) { return x.Service(i), true },
		Message: fromEveryNode,
	},
	{
		Cause: checkup.CauseService, Nodes: 2, Services: 1, Share: 1,
		Of: func(x *explanation, i int) (string, bool) {
			return x.Service(i) + " " + string(x.Outcomes[i].Pair.Family), true
		},
		Message: fromEveryNode,
	},
	{
		Cause: checkup.CauseService, Nodes: 2, Services: 1, Share: 1,
		Of:      func(x *explanation, i int) (string, bool) { return x.Target(i).Name(), true },
		Message: fromEveryNode,
	},
	{
		Cause: checkup.CauseNode, Nodes: 1, Services: 2, Elsewhere: true,
		Of: func(x *explanation, i int) (string, bool) { return x.Source(i).Node, true },
		Message: func(x *explanation, node string, failed []int) string {
			return fmt.Sprintf("node %s: %s from it, and work from other nodes: its service proxy is not up to date",
				node, doNotWork(len(localise.Once(failed, x.Service))))
		},
	},
	{
		Cause: checkup.CauseService, Nodes: 2, Services: 1,
		Of: func(x *explanation, i int) (string, bool) { return x.Service(i), true },
		Message: func(x *explanation, service string, failed []int) string {
			return fmt.Sprintf("Service %s: %s from %s", service, x.Ways(failed), checkup.SomeOf(x.SourceNodes(failed), "node"))
		},
	},
	{
		Cause: checkup.CausePair, Nodes: 1, Services: 1,
		Of: func(x *explanation, i int) (string, bool) { return x.Source(i).Node + " -> " + x.Service(i), true },
		Message: func(x *explanation, _ string, failed []int) string {
			return fmt.Sprintf("Service %s: %s from node %s", x.Service(failed[0]), x.Ways(failed), x.Source(failed[0]).Node)
		},
	},
}

func fromEveryNode(x *explanation, group string, failed []int) string {
	return fmt.Sprintf("Service %s: %s from every node", group, x.Ways(failed))
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
	return localise.ByServices(x, causes)
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

// Idle reports whether a pair passes because it is dropped, as it must be.
func (x *explanation) Idle(i int) bool {
	return x.Outcomes[i].Verdict == checkup.Pass &&
		x.sheet.Expects(x.Worksheet, x.Outcomes[i].Pair) == servicecheck.Dropped
}

// For returns how many pairs work elsewhere, how many endpoints a Service has, and what decides which of them are used.
func (x *explanation) For(cause checkup.FindingCause, failed []int, elsewhere int) []string {
	var lines []string
	if elsewhere > 0 {
		lines = append(lines, fmt.Sprintf("%d of the %d failing addresses work from another node", elsewhere, len(failed)))
	}
	n := x.sheet.Targets[x.Outcomes[failed[0]].Pair.Target].Endpoints
	if cause == checkup.CauseService && n > 0 {
		lines = append(lines, fmt.Sprintf("the Service has %s", checkup.Count(n, "usable endpoint")))
	}
	if cause == checkup.CauseService {
		var why []servicecheck.Chosen
		for _, i := range failed {
			why = append(why, x.sheet.Targets[x.Outcomes[i].Pair.Target].Why...)
		}
		lines = append(lines, servicecheck.Why(why)...)
	}
	return lines
}

// Service names the Service of a pair.
func (x *explanation) Service(i int) string { return x.sheet.Service(x.Outcomes[i].Pair.Target) }

// Ways says in which ways pairs fail.
func (x *explanation) Ways(failed []int) string {
	return x.How(failed, func(o *judge.Outcome) string { return localise.Way(o, "does not connect") })
}

// doNotWork is "1 Service does not work", "2 Services do not work".
func doNotWork(n int) string {
	if n == 1 {
		return "1 Service does not work"
	}
	return fmt.Sprintf("%d Services do not work", n)
}
