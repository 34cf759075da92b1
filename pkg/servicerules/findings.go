// SPDX-License-Identifier: Apache-2.0

package servicerules

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// rule explains a group of failed units.
type rule struct {
	cause checkup.FindingCause
	// of names the groups of a unit; nil if it is in none.
	of func(j *judging, o *outcome) []string
	// nodes and services are the least number of nodes, and of Services, of the failed units.
	nodes, services int
	// share is the least share of the group's measured units that fail.
	share float64
	// without counts only units without any rules, and family says that a group has one family.
	without, family bool
	// protocol counts only units of which nothing differs but frontends of one protocol, the group's name, and demands
	// that frontends of another protocol are as wanted.
	protocol bool
	// why adds to the evidence what decides about the endpoints of a Service.
	why     bool
	message func(j *judging, group string, failed []*outcome) string
}

// causes are the rules of findings, from the widest cause to the narrowest. Of the groups of one rule, the one that
// explains most failed units is the first.
var causes = []rule{
	{
		cause: checkup.CauseNode, of: byNode, nodes: 1, services: 1, share: 0.9, without: true,
		message: func(_ *judging, node string, _ []*outcome) string {
			return fmt.Sprintf("node %s: it has no rules of Services: its service proxy does not run, or has never written them", node)
		},
	},
	{
		cause: checkup.CauseFamily, nodes: 2, services: 1, share: 1, without: true,
		of: func(j *judging, o *outcome) []string { return ofService(o, string(j.family(o))) },
		message: func(_ *judging, family string, _ []*outcome) string {
			return fmt.Sprintf("%s: no node has rules of Services: their service proxies do not serve this family", family)
		},
	},
	{
		cause: checkup.CauseNode, nodes: 1, services: 1, share: 0.9, without: true, family: true,
		of: func(j *judging, o *outcome) []string { return ofService(o, j.node(o)+" "+string(j.family(o))) },
		message: func(j *judging, _ string, failed []*outcome) string {
			return fmt.Sprintf("node %s: it has no %s rules of Services: its service proxy does not serve this family, or has "+
				"never written them", j.node(failed[0]), j.family(failed[0]))
		},
	},
	{
		cause: checkup.CauseTransport, nodes: 1, services: 2, share: 0.9, protocol: true,
		of: func(j *judging, o *outcome) []string { return j.protocolsOf(o) },
		message: func(j *judging, protocol string, failed []*outcome) string {
			return fmt.Sprintf("%s: the rules of %s differ from what they have to be on %s, and those for other protocols do not",
				protocol, checkup.Count(len(j.servicesOf(failed)), "Service"), checkup.SomeOf(j.nodesOf(failed), "node"))
		},
	},
	{
		cause: checkup.CauseService, of: byService, nodes: 2, services: 1, share: 1, why: true,
		message: func(_ *judging, service string, _ []*outcome) string {
			return fmt.Sprintf("Service %s: the rules of every node differ from what they have to be", service)
		},
	},
	{
		cause: checkup.CauseNode, of: byNode, nodes: 1, services: 2,
		message: func(j *judging, node string, failed []*outcome) string {
			return fmt.Sprintf("node %s: its rules of %s differ from what they have to be: its service proxy is not up to date%s",
				node, checkup.Count(len(j.servicesOf(failed)), "Service"), j.sinceWords(failed))
		},
	},
	{
		cause: checkup.CauseService, of: byService, nodes: 2, services: 1, why: true,
		message: func(j *judging, service string, failed []*outcome) string {
			return fmt.Sprintf("Service %s: the rules of %s differ from what they have to be", service,
				checkup.SomeOf(j.nodesOf(failed), "node"))
		},
	},
	{
		cause: checkup.CausePair, nodes: 1, services: 1,
		of: func(j *judging, o *outcome) []string { return ofService(o, j.node(o)+" -> "+j.service(o)) },
		message: func(j *judging, _ string, failed []*outcome) string {
			return fmt.Sprintf("node %s, Service %s: %s", j.node(failed[0]), j.service(failed[0]), failed[0].cause.Message)
		},
	},
	{
		cause: checkup.CauseService, nodes: 1,
		of: func(j *judging, o *outcome) []string {
			if o.service != others {
				return nil
			}
			return []string{j.extraName(o)}
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

// ofService is the group of a unit that is about a Service; nil for others.
func ofService(o *outcome, group string) []string {
	if o.service == others {
		return nil
	}
	return []string{group}
}

func byNode(j *judging, o *outcome) []string { return ofService(o, j.node(o)) }

func byService(j *judging, o *outcome) []string { return ofService(o, j.service(o)) }

// protocolsOf are those of the ports of a unit's Service; nil for others.
func (j *judging) protocolsOf(o *outcome) []string {
	if o.service == others {
		return nil
	}
	var all []string
	for _, p := range j.sheet.Services[o.service].Protocols {
		all = append(all, string(p))
	}
	return all
}

// differsIn reports whether a failed unit differs in frontends of one protocol only.
func (o *outcome) differsIn(protocol string) bool {
	return o.trouble != nil && string(o.trouble.Protocol) == protocol
}

// otherwise counts the measured units whose frontends of other protocols than one are as wanted.
func (j *judging) otherwise(protocol string) int {
	n := 0
	for i := range j.outcomes {
		o := &j.outcomes[i]
		right := o.verdict == checkup.Pass || o.verdict == checkup.Fail && o.differsIn(protocol)
		if right && slices.ContainsFunc(j.protocolsOf(o), func(p string) bool { return p != protocol }) {
			n++
		}
	}
	return n
}

// since is the earliest change in the API that the failed units of a node prove that it does not know; zero if they
// prove none. What the node has and the API has not is a proof. What it lacks is one unless the node knows of a later
// change: then its rules were damaged.
func (j *judging) since(failed []*outcome) (at time.Time, age checkup.Duration) {
	for _, o := range failed {
		t, seen := o.trouble, j.facts[unitOf(o.source, j.family(o))]
		if t == nil || seen == nil || t.Changed.IsZero() {
			continue
		}
		proof := slices.Contains(t.Of, stale) || slices.Contains(t.Of, lacking) && t.Changed.After(seen.Followed)
		if !proof {
			continue
		}
		if at.IsZero() || t.Changed.Before(at) {
			at, age = t.Changed, t.Age
		}
	}
	return at, age
}

// sinceWords is " since 12:03:10 UTC", with the date if that is long ago; empty if since is not known.
func (j *judging) sinceWords(failed []*outcome) string {
	at, age := j.since(failed)
	layout := " since 15:04:05 UTC"
	switch {
	case at.IsZero():
		return ""
	case time.Duration(age) > 12*time.Hour:
		layout = " since 2006-01-02 15:04:05 UTC"
	}
	return at.UTC().Format(layout)
}

// why says what decides which endpoints of a Service nodes must use.
func (j *judging) why(failed []*outcome) []string {
	var chosen []servicecheck.Chosen
	for _, o := range failed {
		if o.trouble != nil && o.trouble.Choice != nil {
			zone := j.w.Sources[o.source].Zone
			chosen = append(chosen, servicecheck.Chosen{Node: j.node(o), Zone: zone, Choice: *o.trouble.Choice})
		}
	}
	return servicecheck.Why(chosen)
}

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
			if o := &j.outcomes[i]; o.verdict != checkup.Unmeasured && !explained[o] {
				for _, name := range r.of(j, o) {
					groups[name] = append(groups[name], o)
				}
			}
		}
		failed := map[string][]*outcome{}
		for name, units := range groups {
			failed[name] = slices.DeleteFunc(slices.Clone(units), func(o *outcome) bool {
				return o.verdict != checkup.Fail || r.without && o.cause.Reason == checkup.ReasonDiffers ||
					r.protocol && !o.differsIn(name)
			})
		}
		// Groups of one rule share no failed unit, so the order is that of their sizes.
		names := slices.SortedFunc(maps.Keys(groups), func(a, b string) int {
			return cmp.Or(cmp.Compare(len(failed[b]), len(failed[a])), cmp.Compare(a, b))
		})
		for _, name := range names {
			units := failed[name]
			share := float64(len(units)) / float64(len(groups[name]))
			if len(units) == 0 || len(j.nodesOf(units)) < r.nodes || len(j.servicesOf(units)) < r.services || share < r.share ||
				r.without && len(units) < 2 || r.protocol && j.otherwise(name) == 0 {
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
			if r.why {
				f.For = append(f.For, j.why(units)...)
			}
			if r.protocol {
				f.For = append(f.For, fmt.Sprintf("%s as wanted for other protocols", checkup.CountAre(j.otherwise(name), noun)))
			}
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
