// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
)

// Explain shows which components will connect to which, how they are measured, and
// what the check needs beyond other checks.
func Explain(e kind.Explained) kind.Explanation {
	w, c := e.Worksheet, e.Worksheet.Connections
	sources, targets := pairsOf(w)
	var x kind.Explanation
	x.Field(
		"pairs",
		fmt.Sprintf(
			"%d, from %s to %s",
			e.Cost.Pairs,
			checkup.Count(len(w.Sources), "source"),
			checkup.Count(len(w.Targets), "target"),
		),
	)
	if len(w.Probes) > 0 {
		p := w.Probes[0]
		if c.For > 0 {
			x.Field("measured", fmt.Sprintf("each every %s for %s: %d times", p.Interval, c.For, p.Count))
		} else {
			x.Field("measured", fmt.Sprintf("each %d times, every %s", p.Count, p.Interval))
		}
	}
	d := c.Deadlines
	x.Field(
		"deadlines",
		fmt.Sprintf("resolve %s, connect %s, handshake %s, response %s", d.Resolve, d.Connect, d.Handshake, d.Response),
	)
	if n, causes := unmeasurable(w, e.Roster); n > 0 {
		x.Unmeasured = n
		x.Field("unmeasured", fmt.Sprintf("%s will not be measured:", checkup.Count(n, "pair")), causes...)
	}
	podSecurity(&x, w, sources)
	x.Blocks = tables(w, sources, targets)
	return x
}

// pairsOf counts the pairs of each source and of each target, by index.
func pairsOf(w *checkup.Worksheet) (sources, targets []int) {
	sources, targets = make([]int, len(w.Sources)), make([]int, len(w.Targets))
	for s, assigned := range w.Assignments {
		for _, t := range assigned {
			n := w.PairsPerAssignment(t)
			sources[s] += n
			targets[t] += n
		}
	}
	return sources, targets
}

// unmeasurable counts the pairs whose source or target is missing, and lists why.
func unmeasurable(w *checkup.Worksheet, roster *checkup.Roster) (pairs int, causes []checkup.Item) {
	missing := func(t int) *checkup.Cause {
		if t < len(roster.Targets) {
			return roster.Targets[t].Cause
		}
		return nil
	}
	for s, assigned := range w.Assignments {
		for _, t := range assigned {
			if w.Sources[s].Cause != nil || missing(t) != nil {
				pairs += w.PairsPerAssignment(t)
			}
		}
	}
	for _, s := range w.Sources {
		if s.Cause != nil {
			causes = append(causes, checkup.Item{Text: fmt.Sprintf("from %s: %s", s.Name(), s.Cause.Message)})
		}
	}
	for t := range w.Targets {
		if cause := missing(t); cause != nil {
			causes = append(causes, checkup.Item{Text: fmt.Sprintf("to %s: %s", w.Targets[t].Name(), cause.Message)})
		}
	}
	return pairs, causes
}

// podSecurity adds what the check needs beyond the rights and the pod security of all
// checks, and the objects that it writes. pairs has the number of pairs per source.
func podSecurity(x *kind.Explanation, w *checkup.Worksheet, pairs []int) {
	var host, secrets []string
	for i, s := range w.Sources {
		if s.HostNetwork && pairs[i] > 0 && s.Node != "" {
			host = append(host, s.Name())
		}
		for _, secret := range s.ClientCertificates {
			if !slices.Contains(secrets, secret) {
				secrets = append(secrets, secret)
			}
		}
	}
	if len(host) > 0 {
		x.Field("pod security", fmt.Sprintf("%s on the host network, as the components that they represent: %s. "+
			"The namespace of the run must admit that (pod security level privileged)",
			checkup.Count(len(host), "agent"), checkup.Some(host)))
	}
	if len(secrets) > 0 {
		slices.Sort(secrets)
		x.Field("secrets", "client certificates that agents mount, if they exist: "+checkup.Some(secrets))
	}
	switch checks := w.Connections.Checks; {
	case !checks.Write:
		x.Field("objects", "no PodNetworkConnectivityCheck is written (connectivityChecks.write)")
	case checks.InstallCRD:
		x.Field("objects", fmt.Sprintf("one PodNetworkConnectivityCheck per pair, kept for %s after the pair is gone; "+
			"setup installs their CustomResourceDefinition if the cluster has none", checks.Retention))
	default:
		x.Field("objects", fmt.Sprintf("one PodNetworkConnectivityCheck per pair, kept for %s after the pair is gone, "+
			"if the cluster has their CustomResourceDefinition", checks.Retention))
	}
}

// tables show the pairs of roles, the sources and the targets.
func tables(w *checkup.Worksheet, sources, targets []int) []checkup.Block {
	type roles struct{ from, to string }
	counts := map[roles]int{}
	var order []roles
	for s, assigned := range w.Assignments {
		for _, t := range assigned {
			k := roles{w.Sources[s].Component, w.Targets[t].Component}
			if counts[k] == 0 {
				order = append(order, k)
			}
			counts[k] += w.PairsPerAssignment(t)
		}
	}
	slices.SortFunc(order, func(a, b roles) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to)) })
	table := func(noun string, columns ...string) *checkup.Table {
		t := &checkup.Table{Noun: noun}
		for _, name := range columns {
			column := checkup.Column{Name: name}
			switch name {
			case "PAIRS":
				column.Measure = checkup.MeasureCount
			case "NODE":
				column.Priority = 1 // names of sources have it
			}
			t.Columns = append(t.Columns, column)
		}
		return t
	}
	between := table("pair of roles", "FROM", "TO", "PAIRS")
	for _, k := range order {
		between.Rows = append(
			between.Rows,
			[]checkup.Cell{checkup.Text(k.from), checkup.Text(k.to), checkup.Number(counts[k])},
		)
	}
	from := table("source", "SOURCE", "NODE", "NETWORK", "PAIRS")
	for i, s := range w.Sources {
		network := "pod"
		if s.HostNetwork {
			network = "host"
		}
		from.Rows = append(
			from.Rows,
			[]checkup.Cell{checkup.Text(s.Name()), checkup.Text(s.Node), checkup.Text(network), checkup.Number(sources[i])},
		)
	}
	to := table("target", "TARGET", "PAIRS", "ADDRESS")
	for i, t := range w.Targets {
		to.Rows = append(
			to.Rows,
			[]checkup.Cell{checkup.Text(t.Name()), checkup.Number(targets[i]), checkup.Text(address(t.Peer))},
		)
	}
	return []checkup.Block{{Table: between}, {Table: from}, {Table: to}}
}

// address is the address and transport of a target; empty if it has no address.
func address(peer *checkup.Peer) string {
	if peer == nil {
		return ""
	}
	text := fmt.Sprintf("%s %s%s", peer.Transport, peer.Address(), peer.Path)
	if n := len(peer.Backends); n > 0 {
		text += ", " + checkup.Count(n, "endpoint") + " behind it"
	}
	return text
}
