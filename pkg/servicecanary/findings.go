// SPDX-License-Identifier: Apache-2.0

package servicecanary

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/localise"
	"github.com/checkplan/checkplan/pkg/nodestate"
)

// causes are the rules of findings, in words in docs/service-canary.md. The first ones are about the responders
// themselves, without any Service: what does not work there cannot work through a Service.
var causes = []localise.Rule[*explanation]{
	{
		Cause: checkup.CauseNetwork, Nodes: 1, Services: 2, Share: 0.9,
		Of: func(x *explanation, i int) (string, bool) { return "", !x.Idle(i) },
		Message: func(x *explanation, _ string, _ []int) string {
			return "no endpoint is reached, neither directly nor through Services"
		},
	},
	{
		Cause: checkup.CauseSource, Nodes: 1, Services: 1, Share: 0.5, Elsewhere: true,
		Of:   func(x *explanation, i int) (string, bool) { return x.Source(i).Node, x.direct(i) },
		Also: func(x *explanation, node string, i int) bool { return x.Source(i).Node == node },
		Message: func(x *explanation, node string, _ []int) string {
			return fmt.Sprintf("node %s: does not reach endpoints, not even directly: its pod network fails, not its "+
				"service proxy", node)
		},
	},
	{
		Cause: checkup.CauseTarget, Nodes: 2, Services: 1, Share: 0.9,
		Of: func(x *explanation, i int) (string, bool) { return x.Target(i).Name(), x.direct(i) },
		Also: func(x *explanation, name string, i int) bool {
			return slices.ContainsFunc(x.view(i).missing, func(address string) bool {
				return x.looks.labels([]string{address}) == name
			})
		},
		Message: func(x *explanation, name string, failed []int) string {
			return fmt.Sprintf("%s: %s from %s, also directly: not because of the service proxies", name, x.Ways(failed),
				checkup.SomeOf(x.SourceNodes(failed), "node"))
		},
	},
	{
		Cause: checkup.CausePair, Nodes: 1, Services: 1,
		Of: func(x *explanation, i int) (string, bool) {
			return x.Source(i).Node + " -> " + x.Target(i).Name(), x.direct(i)
		},
		Also: func(x *explanation, name string, i int) bool {
			return slices.ContainsFunc(x.view(i).missing, func(address string) bool {
				return x.Source(i).Node+" -> "+x.looks.labels([]string{address}) == name
			})
		},
		Message: func(x *explanation, _ string, failed []int) string {
			return fmt.Sprintf("node %s to %s: %s, also directly: not because of its service proxy", x.Source(failed[0]).Node,
				x.Target(failed[0]).Name(), x.Ways(failed))
		},
	},
	{
		Cause: checkup.CauseFamily, Nodes: 2, Services: 2, Share: 0.9,
		Of: func(x *explanation, i int) (string, bool) { return string(x.Outcomes[i].Pair.Family), x.through(i) },
		Message: func(x *explanation, family string, _ []int) string {
			return family + ": Services do not do what they must from any node"
		},
	},
	{
		Cause: checkup.CauseTransport, Nodes: 2, Services: 2, Share: 0.9,
		Of: func(x *explanation, i int) (string, bool) { return string(x.Outcomes[i].Pair.Transport), x.through(i) },
		Message: func(x *explanation, transport string, _ []int) string {
			return transport + ": Services do not do what they must from any node"
		},
	},
	{
		Cause: checkup.CauseNode, Nodes: 1, Services: 2, Share: 0.5, Elsewhere: true,
		Of: func(x *explanation, i int) (string, bool) { return x.proxy(i), x.through(i) },
		Message: func(x *explanation, node string, _ []int) string {
			return fmt.Sprintf("node %s: new Services do not work from it, their endpoints do: its service proxy does not run, or is "+
				"not up to date", node)
		},
	},
	{
		Cause: checkup.CauseService, Nodes: 2, Services: 1, Share: 0.9,
		Of: func(x *explanation, i int) (string, bool) { return x.Service(i), x.through(i) },
		Message: func(x *explanation, service string, failed []int) string {
			return fmt.Sprintf("Service %s: %s from every node", service, x.Ways(failed))
		},
	},
	{
		Cause: checkup.CauseNode, Nodes: 1, Services: 2, Elsewhere: true,
		Of: func(x *explanation, i int) (string, bool) { return x.proxy(i), x.through(i) },
		Message: func(x *explanation, node string, failed []int) string {
			return fmt.Sprintf("node %s: %s: %s",
				node, checkup.SomeOf(localise.Once(failed, x.Service), "Service"), x.Ways(failed))
		},
	},
	{
		Cause: checkup.CauseService, Nodes: 2, Services: 1,
		Of: func(x *explanation, i int) (string, bool) { return x.Service(i), x.through(i) },
		Message: func(x *explanation, service string, failed []int) string {
			return fmt.Sprintf("Service %s: %s from %s", service, x.Ways(failed), checkup.SomeOf(x.SourceNodes(failed), "node"))
		},
	},
	{
		Cause: checkup.CausePair, Nodes: 1, Services: 1,
		Of: func(x *explanation, i int) (string, bool) {
			return x.Source(i).Node + " -> " + x.asked(i), x.through(i)
		},
		Message: func(x *explanation, _ string, failed []int) string {
			return fmt.Sprintf("node %s, Service %s: %s", x.Source(failed[0]).Node, x.asked(failed[0]), x.Ways(failed))
		},
	},
}

// explanation is the evidence.
type explanation struct {
	*localise.Ruled
	looks *looks
}

// findings explain the failed pairs.
func findings(j *judge.Judgement, l *looks) []checkup.Finding {
	x := &explanation{looks: l}
	x.Ruled = localise.NewRuled(j, func(i int) string {
		p := j.Outcomes[i].Pair
		name := l.w.Targets[p.Target].Name()
		if s := l.w.Targets[p.Target].OfService; s != "" { // node ports have a target for each node
			name = s
		}
		return fmt.Sprintf("%s %s %s", name, p.Family, p.Transport)
	})
	return localise.ByServices(x, causes)
}

// examples are the causes of failed pairs, each once, at most three.
func (x *explanation) examples(failed []int) []string {
	var all []string
	for _, i := range failed {
		p := x.Outcomes[i].Pair
		text := fmt.Sprintf("%s, %s %s: %s", x.Service(i), p.Transport, p.Family, x.Outcomes[i].Cause.Message)
		if !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all[:min(len(all), 3)]
}

// For returns how many pairs pass elsewhere, and how those through Services fail.
func (x *explanation) For(_ checkup.FindingCause, failed []int, elsewhere int) []string {
	var lines []string
	if elsewhere > 0 {
		lines = append(lines, fmt.Sprintf("%d of the %d pass from another node", elsewhere, len(failed)))
	}
	if !x.direct(failed[0]) {
		lines = append(lines, x.examples(failed)...)
	}
	return lines
}

// Idle reports whether a pair passes because nothing answers, which also happens to one that does not work at all.
func (x *explanation) Idle(i int) bool {
	v := x.view(i)
	return x.Outcomes[i].Verdict == checkup.Pass &&
		(v.action == nodestate.Drop || v.action == nodestate.Reject && x.Outcomes[i].Pair.Transport == checkup.UDP)
}

// through reports whether a pair leads through a Service, and shows whether it works.
func (x *explanation) through(i int) bool { return !x.direct(i) && !x.Idle(i) }

// direct reports whether a pair is to a responder itself.
func (x *explanation) direct(i int) bool { return x.Target(i).OfService == "" }

// Service names the Service of a pair.
func (x *explanation) Service(i int) string { return serviceOf(x.Target(i)) }

// proxy is the node whose service proxy decides who answers a pair: that of a node port, or the source's.
func (x *explanation) proxy(i int) string { return cmp.Or(x.Target(i).Node, x.Source(i).Node) }

// asked is the Service of a pair, or its node port at another node.
func (x *explanation) asked(i int) string {
	if x.proxy(i) != x.Source(i).Node {
		return x.Target(i).Name()
	}
	return x.Service(i)
}

// view is who answered a pair; empty if that is not known.
func (x *explanation) view(i int) *view {
	if v := x.looks.views[x.Outcomes[i].Pair]; v != nil {
		return v
	}
	return &view{}
}

// Ways says in which ways pairs fail.
func (x *explanation) Ways(failed []int) string {
	return x.How(failed, func(o *judge.Outcome) string {
		v := x.looks.views[o.Pair]
		switch {
		case o.Failure == judge.Rewritten:
			return "the source address is not preserved"
		case v != nil && len(v.wrong) > 0:
			return "wrongly answered by " + x.looks.labels(v.wrong)
		case o.Cause.Reason == checkup.ReasonUnreached && v != nil:
			return x.looks.labels(v.missing) + " is never reached"
		case o.Cause.Reason == checkup.ReasonShare && v != nil && v.one:
			return "no session affinity"
		case o.Cause.Reason == checkup.ReasonShare:
			return "uneven shares"
		}
		return localise.Way(o, "no answer")
	})
}
