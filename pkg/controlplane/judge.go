// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
)

// Judge returns the report of a control plane check. Each connection is a unit,
// also those that passed.
//
// It is pure. A nil roster or record means that nothing was set up or collected.
func Judge(
	w *checkup.Worksheet,
	roster *checkup.Roster,
	record *checkup.Record,
	gate checkup.Gate,
) checkup.CheckReport {
	j := judge.Pairs(w, roster, record, judge.Rules{})
	r := j.Report(gate)
	if c := w.Connections; c != nil && c.Unwritten != "" {
		r.Notes = append(r.Notes, "no PodNetworkConnectivityChecks are written: "+c.Unwritten)
	}
	r.Coverage.FailingUpperBound = nil // no sample: every pair is expected
	r.Delays = j.StageRows()
	r.Matrix = j.Matrix()
	r.Findings = findings(j)
	r.Units, r.Complete = units(j), true
	r.Blocks, r.BlocksListUnits = blocks(r.Units), true
	r.Said = said(r.Units)
	return r
}

// units are the connections, in the order of the worksheet. The name of a unit is
// that of its PodNetworkConnectivityCheck.
func units(j *judge.Judgement) []checkup.Unit {
	list := make([]checkup.Unit, 0, len(j.Outcomes))
	for i := range j.Outcomes {
		o := &j.Outcomes[i]
		u := j.Unit(o)
		u.Delay = nil // reported by stage
		if !o.Broken {
			target := j.Worksheet.Targets[o.Pair.Target]
			u.Object = checkup.ConnectivityName(j.Worksheet.Sources[o.Pair.Source], target)
			u.Name = u.Object
			if target.Peer != nil {
				u.Labels = map[string]string{checkup.UnitAddress: target.Peer.Address()}
			}
		}
		list = append(list, u)
	}
	return list
}

// said counts the connections that passed although they had outages, as a clause;
// nil if there are none.
func said(units []checkup.Unit) []string {
	n := 0
	var all []checkup.Outage
	for i := range units {
		if u := &units[i]; u.Verdict == checkup.Pass && len(u.Outages) > 0 {
			n++
			all = append(all, u.Outages...)
		}
	}
	if n == 0 {
		return nil
	}
	return []string{
		fmt.Sprintf(
			"%s that passed had outages, the longest of %s",
			checkup.Count(n, "pair"),
			judge.Lasted(*judge.Longest(all)),
		),
	}
}

// blocks list the connections that failed, are undecided or had an outage, the worst first, then
// those that were not measured, by their causes, and count the verdicts.
func blocks(units []checkup.Unit) []checkup.Block {
	if len(units) == 0 {
		return nil
	}
	var counts checkup.Counts
	passedWith := 0
	var shown, unmeasured []*checkup.Unit
	for i := range units {
		u := &units[i]
		counts = judge.Sum(counts, judge.Counted(u.Verdict))
		switch {
		case u.Verdict == checkup.Fail || u.Verdict == checkup.Undecided || len(u.Outages) > 0:
			shown = append(shown, u)
		case u.Verdict == checkup.Unmeasured:
			unmeasured = append(unmeasured, u)
		}
		if u.Verdict == checkup.Pass && len(u.Outages) > 0 {
			passedWith++
		}
	}
	slices.SortStableFunc(shown, worstFirst)
	list := &checkup.List{Noun: "connection"}
	for _, u := range shown {
		list.Items = append(list.Items, item(u))
	}
	note := fmt.Sprintf("%d of %d pass", counts.Pass, len(units))
	if passedWith > 0 {
		note += fmt.Sprintf(", %d of them with outages", passedWith)
	}
	note += fmt.Sprintf("; %d fail", counts.Fail)
	if counts.Undecided > 0 {
		note += fmt.Sprintf(", %d undecided", counts.Undecided)
	}
	note += fmt.Sprintf(", %d unmeasured", counts.Unmeasured)

	title := fmt.Sprintf("Connections (%d)", len(units))
	var all []checkup.Block
	if len(list.Items) > 0 {
		all = append(all, checkup.Block{Title: title, List: list})
		title = ""
	}
	all = append(all, checkup.Block{Title: title, Note: note})
	if len(unmeasured) > 0 {
		all = append(
			all,
			checkup.Block{Title: fmt.Sprintf("Unmeasured connections (%d)", len(unmeasured)), List: notMeasured(unmeasured)},
		)
	}
	return all
}

// worstFirst orders connections: those that failed, then by the share of
// measurements that failed, then by their longest outage.
func worstFirst(a, b *checkup.Unit) int {
	rank := func(u *checkup.Unit) int {
		return slices.Index([]checkup.Verdict{checkup.Fail, checkup.Unmeasured, checkup.Undecided, checkup.Pass}, u.Verdict)
	}
	share := func(u *checkup.Unit) float64 {
		if u.Sent == 0 {
			return 0
		}
		return float64(u.Sent-u.Received) / float64(u.Sent)
	}
	length := func(u *checkup.Unit) int64 {
		if o := judge.Longest(u.Outages); o != nil {
			return int64(o.Duration())
		}
		return 0
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(share(b), share(a)), cmp.Compare(length(b), length(a)))
}

// outageLines is the most outages that are listed of one connection.
const outageLines = 5

// item is a connection with its cause, its numbers and its outages.
func item(u *checkup.Unit) checkup.Item {
	it := checkup.Item{Verdict: u.Verdict, Text: u.Source + " -> " + u.Target}
	if address := u.Labels[checkup.UnitAddress]; address != "" {
		it.Text += fmt.Sprintf(" (%s)", address)
	}
	line := func(s string) { it.Items = append(it.Items, checkup.Item{Text: s}) }
	if u.Cause != nil {
		line(u.Cause.String())
	}
	s := fmt.Sprintf("%d of %s passed", u.Received, checkup.Count(u.Sent, "measurement"))
	if failed := failures(u); failed != "" {
		s += "; failed: " + failed
	}
	if d := u.Delays[checkup.StageConnect]; d != nil {
		s += "; connect p50 " + judge.Micros(d.P50)
	}
	line(s)
	for i, o := range u.Outages {
		if i == outageLines {
			line(fmt.Sprintf("... and %s", checkup.Count(len(u.Outages)-i, "more outage")))
			break
		}
		line(fmt.Sprintf("outage %s, %s, %d failed", judge.During(o), judge.Lasted(o), o.Failures))
	}
	return it
}

// failures of a connection by stage.
func failures(u *checkup.Unit) string {
	var parts []string
	for _, s := range checkup.Stages {
		if n := u.Failures[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", s, n))
		}
	}
	return strings.Join(parts, ", ")
}

// notMeasured lists unmeasured connections in groups: by cause and target if setup
// failed, else by cause and source. The largest group is first.
func notMeasured(units []*checkup.Unit) *checkup.List {
	type key struct {
		cause checkup.Cause
		end   string
	}
	type group struct {
		key
		n                int
		sources, targets []string
	}
	var groups []*group
	at := map[key]*group{}
	add := func(names []string, name string) []string {
		if slices.Contains(names, name) {
			return names
		}
		return append(names, name)
	}
	for _, u := range units {
		k := key{*u.Cause, "from " + u.Source}
		if u.Cause.Stage == checkup.StageSetup {
			k.end = "to " + u.Target
		}
		g := at[k]
		if g == nil {
			g = &group{key: k}
			at[k], groups = g, append(groups, g)
		}
		g.n++
		g.sources, g.targets = add(g.sources, u.Source), add(g.targets, u.Target)
	}
	slices.SortStableFunc(groups, func(a, b *group) int { return cmp.Compare(b.n, a.n) })
	list := &checkup.List{Noun: "line"}
	for _, g := range groups {
		list.Items = append(list.Items, checkup.Item{Text: fmt.Sprintf("%s from %s to %s: %s", checkup.Count(g.n, "pair"),
			checkup.SomeOf(g.sources, "source"), checkup.SomeOf(g.targets, "target"), g.cause)})
	}
	return list
}
