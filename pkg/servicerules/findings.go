// SPDX-License-Identifier: Apache-2.0

package servicerules

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// rule explains a group of failed units.
type rule struct {
	cause checkup.FindingCause
	// of names the group of a unit; false if it is in none.
	of func(j *judging, o *outcome) (string, bool)
	// nodes and services are the least number of nodes, and of Services, of the failed units.
	nodes, services int
	// share is the least share of the group's measured units that fail.
	share float64
	// without counts only units without any rules, and family says that a group has one family.
	without, family bool
	message         func(j *judging, group string, failed []*outcome) string
}

// causes are the rules of findings, from the widest cause to the narrowest. Of the groups of one rule, the one that
// explains most failed units is the first.
var causes = []rule{
	{
		cause: checkup.CauseNode, of: ofNode, nodes: 1, services: 1, share: 0.9, without: true,
		message: func(_ *judging, node string, _ []*outcome) string {
			return fmt.Sprintf("node %s: it has no rules of Services: its service proxy does not run, or has never written them", node)
		},
	},
	{
		cause: checkup.CauseFamily, nodes: 2, services: 1, share: 1, without: true,
		of: func(j *judging, o *outcome) (string, bool) { return string(j.family(o)), o.service != others },
		message: func(_ *judging, family string, _ []*outcome) string {
			return fmt.Sprintf("%s: no node has rules of Services: their service proxies do not serve this family", family)
		},
	},
	{
		cause: checkup.CauseNode, nodes: 1, services: 1, share: 0.9, without: true, family: true,
		of: func(j *judging, o *outcome) (string, bool) {
			return j.node(o) + " " + string(j.family(o)), o.service != others
		},
		message: func(j *judging, _ string, failed []*outcome) string {
			return fmt.Sprintf("node %s: it has no %s rules of Services: its service proxy does not serve this family, or has "+
				"never written them", j.node(failed[0]), j.family(failed[0]))
		},
	},
	{
		cause: checkup.CauseService, of: ofService, nodes: 2, services: 1, share: 1,
		message: func(_ *judging, service string, _ []*outcome) string {
			return fmt.Sprintf("Service %s: the rules of every node differ from what they have to be", service)
		},
	},
	{
		cause: checkup.CauseNode, of: ofNode, nodes: 1, services: 2,
		message: func(j *judging, node string, failed []*outcome) string {
			return fmt.Sprintf("node %s: its rules of %s differ from what they have to be: its service proxy is not up to date",
				node, checkup.Count(len(j.servicesOf(failed)), "Service"))
		},
	},
	{
		cause: checkup.CauseService, of: ofService, nodes: 2, services: 1,
		message: func(j *judging, service string, failed []*outcome) string {
			return fmt.Sprintf("Service %s: the rules of %s differ from what they have to be", service,
				checkup.SomeOf(j.nodesOf(failed), "node"))
		},
	},
	{
		cause: checkup.CausePair, nodes: 1, services: 1,
		of: func(j *judging, o *outcome) (string, bool) {
			return j.node(o) + " -> " + j.service(o), o.service != others
		},
		message: func(j *judging, _ string, failed []*outcome) string {
			return fmt.Sprintf("node %s, Service %s: %s", j.node(failed[0]), j.service(failed[0]), failed[0].cause.Message)
		},
	},
	{
		cause: checkup.CauseService, nodes: 1,
		of: func(j *judging, o *outcome) (string, bool) {
			return j.extraName(o), o.service == others
		},
		message: func(j *judging, service string, failed []*outcome) string {
			what := fmt.Sprintf("rules for Service %s, which does not exist", service)
			if service == unnamed {
				what = "rules for an address that no Service has"
			}
			return what + ", on " + checkup.SomeOf(j.nodesOf(failed), "node")
		},
	},
}

func ofNode(j *judging, o *outcome) (string, bool) { return j.node(o), o.service != others }

func ofService(j *judging, o *outcome) (string, bool) { return j.service(o), o.service != others }

// unnamed is the subject of a finding about rules that do not say for which Service they are.
const unnamed = "unknown"

// extraName is how rules call the first Service that does not exist; unnamed if they do not say.
func (j *judging) extraName(o *outcome) string {
	seen := j.facts[unitOf(o.source, j.family(o))]
	if seen == nil || len(seen.Extra.Services) == 0 {
		return unnamed
	}
	name := seen.Extra.Services[0]
	if more := len(seen.Extra.Services) - 1; more > 0 {
		name += fmt.Sprintf(" and %s", checkup.Count(more, "other"))
	}
	return name
}

// findings explain the failed units.
func (j *judging) findings() []checkup.Finding {
	var list []checkup.Finding
	explained := map[*outcome]bool{}
	for _, r := range causes {
		groups := map[string][]*outcome{} // measured ones that are not explained
		for i := range j.outcomes {
			o := &j.outcomes[i]
			if name, ok := r.of(j, o); ok && o.verdict != checkup.Unmeasured && !explained[o] {
				groups[name] = append(groups[name], o)
			}
		}
		failed := map[string][]*outcome{}
		for name, units := range groups {
			failed[name] = slices.DeleteFunc(slices.Clone(units), func(o *outcome) bool {
				return o.verdict != checkup.Fail || r.without && o.cause.Reason == checkup.ReasonDiffers
			})
		}
		// Groups of one rule share no unit, so the order is that of their sizes.
		names := slices.SortedFunc(maps.Keys(groups), func(a, b string) int {
			return cmp.Or(cmp.Compare(len(failed[b]), len(failed[a])), cmp.Compare(a, b))
		})
		for _, name := range names {
			units := failed[name]
			share := float64(len(units)) / float64(len(groups[name]))
			if len(units) == 0 || len(j.nodesOf(units)) < r.nodes || len(j.servicesOf(units)) < r.services || share < r.share ||
				r.without && len(units) < 2 {
				continue
			}
			f := checkup.Finding{
				Cause: r.cause, Subject: name, Message: r.message(j, name, units), Explains: len(units), OnlyThis: len(units),
			}
			if r.family {
				f.Subject, f.Family = j.node(units[0]), j.family(units[0])
			}
			if r.cause == checkup.CauseNode || r.cause == checkup.CausePair {
				f.Concerns(j.nodesOf(units)...)
			}
			f.For = append(f.For, fmt.Sprintf("%d of %s fail", len(units), checkup.Count(len(groups[name]), "measured "+noun)))
			f.For = append(f.For, j.examples(units)...)
			if n := len(groups[name]) - len(units); n > 0 {
				f.Against = append(f.Against, fmt.Sprintf("%s as wanted, or with other differences", checkup.Count(n, noun)))
			}
			for _, o := range units {
				explained[o] = true
			}
			list = append(list, f)
		}
	}
	return list
}

// examples are what the most frequent causes of units are, each once.
func (j *judging) examples(units []*outcome) []string {
	const most = 3
	count := map[string]int{}
	first := map[string]*outcome{}
	for _, o := range units {
		if count[o.cause.Message]++; first[o.cause.Message] == nil {
			first[o.cause.Message] = o
		}
	}
	messages := slices.SortedFunc(maps.Keys(count), func(a, b string) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a, b))
	})
	var lines []string
	for _, m := range messages[:min(len(messages), most)] {
		line := j.node(first[m]) + ", " + j.service(first[m]) + ": " + m
		if count[m] > 1 {
			line = fmt.Sprintf("%s: %s", checkup.Count(count[m], noun), m)
		}
		lines = append(lines, line)
	}
	return lines
}

// nodesOf units, each once, sorted.
func (j *judging) nodesOf(units []*outcome) []string {
	return once(units, j.node)
}

// servicesOf units, each once, sorted.
func (j *judging) servicesOf(units []*outcome) []string {
	return once(slices.DeleteFunc(slices.Clone(units), func(o *outcome) bool { return o.service == others }), j.service)
}

func once(units []*outcome, name func(*outcome) string) []string {
	names := map[string]bool{}
	for _, o := range units {
		names[name(o)] = true
	}
	return slices.Sorted(maps.Keys(names))
}
