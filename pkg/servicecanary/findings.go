// SPDX-License-Identifier: Apache-2.0

package servicecanary

import (
	"fmt"
	"maps"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/localise"
	"github.com/checkplan/checkplan/pkg/nodestate"
)

// rule looks for one kind of cause among the failed pairs that no earlier rule explains. docs/service-canary.md has the
// rules in words.
type rule struct {
	cause checkup.FindingCause
	// of returns the name of the group that a pair is in; false if it is in none.
	of func(x *explanation, i int) (string, bool)
	// nodes and services are the least number of nodes, and of Services, that the failed pairs of a group have.
	nodes, services int
	// share is the least share of the group's measured pairs that fail, without those that are explained.
	share float64
	// elsewhere demands that more than half of the failing targets of a group pass from another node.
	elsewhere bool
	// also reports a further failed pair that the group explains; nil for none.
	also    func(x *explanation, group string, i int) bool
	message func(x *explanation, group string, failed []int) string
}

// causes are the rules of findings. The first ones are about the responders themselves, without any Service: what does
// not work there cannot work through a Service.
var causes = []rule{
	{
		cause: checkup.CauseNetwork, nodes: 1, services: 2, share: 0.9,
		of: func(*explanation, int) (string, bool) { return "", true },
		message: func(x *explanation, _ string, _ []int) string {
			return "no endpoint is reached, neither directly nor through Services"
		},
	},
	{
		cause: checkup.CauseSource, nodes: 1, services: 1, share: 0.5, elsewhere: true,
		of:   func(x *explanation, i int) (string, bool) { return x.Source(i).Node, x.direct(i) },
		also: func(x *explanation, node string, i int) bool { return x.Source(i).Node == node },
		message: func(x *explanation, node string, _ []int) string {
			return fmt.Sprintf("node %s: endpoints are not reached from it, directly either: the network of its pods, not its "+
				"service proxy", node)
		},
	},
	{
		cause: checkup.CauseTarget, nodes: 2, services: 1, share: 0.9,
		of: func(x *explanation, i int) (string, bool) { return x.Target(i).Name(), x.direct(i) },
		also: func(x *explanation, name string, i int) bool {
			return slices.ContainsFunc(x.view(i).missing, func(address string) bool {
				return x.looks.labels([]string{address}) == name
			})
		},
		message: func(x *explanation, name string, failed []int) string {
			return fmt.Sprintf("%s: %s from %s, directly, too: not the service proxies", name, x.how(failed),
				checkup.SomeOf(x.SourceNodes(failed), "node"))
		},
	},
	{
		cause: checkup.CausePair, nodes: 1, services: 1,
		of: func(x *explanation, i int) (string, bool) {
			return x.Source(i).Node + " -> " + x.Target(i).Name(), x.direct(i)
		},
		also: func(x *explanation, name string, i int) bool {
			return slices.ContainsFunc(x.view(i).missing, func(address string) bool {
				return x.Source(i).Node+" -> "+x.looks.labels([]string{address}) == name
			})
		},
		message: func(x *explanation, _ string, failed []int) string {
			return fmt.Sprintf("node %s to %s: %s, directly, too: not its service proxy", x.Source(failed[0]).Node,
				x.Target(failed[0]).Name(), x.how(failed))
		},
	},
	{
		cause: checkup.CauseFamily, nodes: 2, services: 2, share: 0.9,
		of: func(x *explanation, i int) (string, bool) { return string(x.Outcomes[i].Pair.Family), !x.direct(i) },
		message: func(x *explanation, family string, _ []int) string {
			return family + ": Services do not do what they must from any node"
		},
	},
	{
		cause: checkup.CauseTransport, nodes: 2, services: 2, share: 0.9,
		of: func(x *explanation, i int) (string, bool) { return string(x.Outcomes[i].Pair.Transport), !x.direct(i) },
		message: func(x *explanation, transport string, _ []int) string {
			return transport + ": Services do not do what they must from any node"
		},
	},
	{
		cause: checkup.CauseNode, nodes: 1, services: 2, share: 0.5, elsewhere: true,
		of: func(x *explanation, i int) (string, bool) { return x.Source(i).Node, !x.direct(i) },
		message: func(x *explanation, node string, _ []int) string {
			return fmt.Sprintf("node %s: new Services do not work from it, their endpoints do: its service proxy does not run, or is "+
				"not up to date", node)
		},
	},
	{
		cause: checkup.CauseService, nodes: 2, services: 1, share: 0.9,
		of: func(x *explanation, i int) (string, bool) { return x.service(i), !x.direct(i) },
		message: func(x *explanation, service string, failed []int) string {
			return fmt.Sprintf("Service %s: %s from every node", service, x.how(failed))
		},
	},
	{
		cause: checkup.CauseNode, nodes: 1, services: 2, elsewhere: true,
		of: func(x *explanation, i int) (string, bool) { return x.Source(i).Node, !x.direct(i) },
		message: func(x *explanation, node string, failed []int) string {
			return fmt.Sprintf("node %s: %s: %s", node, checkup.SomeOf(localise.Once(failed, x.service), "Service"), x.how(failed))
		},
	},
	{
		cause: checkup.CauseService, nodes: 2, services: 1,
		of: func(x *explanation, i int) (string, bool) { return x.service(i), !x.direct(i) },
		message: func(x *explanation, service string, failed []int) string {
			return fmt.Sprintf("Service %s: %s from %s", service, x.how(failed), checkup.SomeOf(x.SourceNodes(failed), "node"))
		},
	},
	{
		cause: checkup.CausePair, nodes: 1, services: 1,
		of: func(x *explanation, i int) (string, bool) {
			return x.Source(i).Node + " -> " + x.service(i), !x.direct(i)
		},
		message: func(x *explanation, _ string, failed []int) string {
			return fmt.Sprintf("node %s, Service %s: %s", x.Source(failed[0]).Node, x.service(failed[0]), x.how(failed))
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
	return x.Explain(len(causes), func(rule int) *localise.Found { return x.best(causes[rule]) })
}

// best returns the finding of a rule that explains most failed pairs; nil if no group fits the rule.
func (x *explanation) best(r rule) *localise.Found {
	groups := x.Groups(func(i int) (string, bool) { return r.of(x, i) })
	var best *localise.Found
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		measured := slices.DeleteFunc(groups[name], x.idle)
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
		f.For = append(f.For, fmt.Sprintf("%d of %s fail: %s", len(failed), checkup.Count(len(measured), "measured pair"), x.how(failed)))
		if n := len(x.Elsewhere(failed)); r.elsewhere {
			f.For = append(f.For, fmt.Sprintf("%d of the %d pass from another node", n, len(failed)))
		}
		if !x.direct(failed[0]) {
			f.For = append(f.For, x.examples(failed)...)
		}
		if r.also != nil {
			var more []int
			for _, i := range x.Failed(x.Measured) {
				if !x.Explained(i) && !slices.Contains(failed, i) && r.also(x, name, i) {
					more = append(more, i)
				}
			}
			if len(more) > 0 {
				f.For = append(f.For, fmt.Sprintf("%s through Services fail, too", checkup.Count(len(more), "pair")))
				f.Pairs = append(slices.Clone(failed), more...)
				slices.Sort(f.Pairs)
			}
		}
		f.Confirmation = x.Again(f.Pairs)
		if n := len(measured) - len(failed); n > 0 {
			f.Against = append(f.Against, localise.OthersDoNot(n))
		}
		best = f
	}
	return best
}

// examples are the causes of failed pairs, each once, at most three.
func (x *explanation) examples(failed []int) []string {
	var all []string
	for _, i := range failed {
		p := x.Outcomes[i].Pair
		text := fmt.Sprintf("%s, %s %s: %s", x.service(i), p.Transport, p.Family, x.Outcomes[i].Cause.Message)
		if !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all[:min(len(all), 3)]
}

// idle reports whether a pair passes because nothing answers, which also happens to one that does not work at all.
func (x *explanation) idle(i int) bool {
	v := x.view(i)
	return x.Outcomes[i].Verdict == checkup.Pass &&
		(v.action == nodestate.Drop || v.action == nodestate.Reject && x.Outcomes[i].Pair.Transport == checkup.UDP)
}

// direct reports whether a pair is to a responder itself.
func (x *explanation) direct(i int) bool { return x.Target(i).OfService == "" }

func (x *explanation) service(i int) string { return serviceOf(x.Target(i)) }

// view is who answered a pair; empty if that is not known.
func (x *explanation) view(i int) *view {
	if v := x.looks.views[x.Outcomes[i].Pair]; v != nil {
		return v
	}
	return &view{}
}

// how says in which ways pairs fail.
func (x *explanation) how(failed []int) string {
	return x.How(failed, func(o *judge.Outcome) string {
		v := x.looks.views[o.Pair]
		switch {
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
