// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/record"
)

// Limits of the pages of nodes.
const (
	// mostNodes is the number of nodes that are counted: four times the nodes of the largest cluster.
	mostNodes = 20_000
	// mostPairs is the number of pairs in each direction, of one node and plan, that are kept to list the worst of them.
	mostPairs = 1000
)

// remembered is the run whose pairs are shown: that of the report or, if the history does not have it (yet), the newest
// that it has; the zero value if it has none.
func remembered(r *checkup.Report, h *history.History) history.Run {
	for _, run := range slices.Backward(h.Runs) {
		if run.UID == r.RunUID {
			return run
		}
	}
	if n := len(h.Runs); n > 0 {
		return h.Runs[n-1]
	}
	return history.Run{}
}

// measured yields what the newest run of a plan found out about its pairs. Where the history has no pairs of a check,
// they are the units of the report that have nodes.
func measured(r *checkup.Report, h *history.History) iter.Seq[history.Measured] {
	return func(yield func(history.Measured) bool) {
		done := map[string]bool{}
		for m := range h.Measured(remembered(r, h).UID) {
			done[m.Check] = true
			if !yield(m) {
				return
			}
		}
		for i := range r.Checks {
			c := &r.Checks[i]
			if done[c.Name] {
				continue
			}
			for k := range c.Units {
				if !yield(unit(c, &c.Units[k])) {
					return
				}
			}
		}
	}
}

// unit is a unit as the history has pairs. A node is empty if it is not known. Sources and targets of a mesh are nodes
// if they are not pods, which have a namespace.
func unit(c *checkup.CheckReport, u *checkup.Unit) history.Measured {
	on := func(label, name string) string {
		if c.Coverage == nil || strings.Contains(name, "/") {
			name = ""
		}
		return cmp.Or(u.Labels[label], name)
	}
	result := history.Result{
		Probe:   history.ProbeName(checkup.Pair{Transport: u.Transport, Family: u.Family, Size: u.Size}),
		Verdict: u.Verdict, Loss: -1,
	}
	if u.Delay != nil {
		result.P50, result.Max = u.Delay.P50, u.Delay.Max
	}
	if u.Sent > 0 {
		result.Loss = (100*(u.Sent-u.Received) + u.Sent - 1) / u.Sent
	}
	return history.Measured{
		Check: c.Name, Source: u.Source, SourceNode: on(checkup.UnitSourceNode, u.Source),
		Target: u.Target, TargetNode: on(checkup.UnitTargetNode, u.Target), Results: []history.Result{result},
	}
}

// eachPlan calls a function for each plan of the pages of nodes whose newest report can be read, with its row and its
// history. It returns notes about plans that are left out.
func (s *Server) eachPlan(
	ctx context.Context, do func(row print.PlanRow, r *checkup.Report, h *history.History),
) ([]string, error) {
	reported := slices.DeleteFunc(slices.Clone(s.listed.plans), func(p record.StoredPlan) bool { return p.Newest == nil })
	plans, leftOut := share(reported, nodePlans)
	slices.SortFunc(plans, byName)
	notes := s.notes(leftOut, nodePlans)
	err := s.visit(ctx, plans, func(ctx context.Context, plan record.StoredPlan) {
		row, r := s.newest(ctx, plan, nodeReportBytes)
		if r != nil {
			h, err := s.history(ctx, plan)
			if err == nil {
				do(row, r, h)
				return
			}
			row.Problem = err.Error()
		}
		notes = append(notes, fmt.Sprintf("Plan %s/%s is left out: %s", plan.Namespace, plan.Plan, row.Problem))
	})
	return notes, err
}

// count adds the results of a pair of endpoints, each of which is a pair of its own, to counts.
func count(c *checkup.Counts, results []history.Result) {
	for _, r := range results {
		c.Expected++
		switch r.Verdict {
		case checkup.Pass:
			c.Pass++
		case checkup.Fail:
			c.Fail++
		case checkup.Undecided:
			c.Undecided++
		default:
			c.Unmeasured++
		}
	}
}

func (s *Server) nodes(ctx context.Context, b *bytes.Buffer, _ *http.Request) error {
	rows := map[string]*print.NodeRow{}
	counted := map[string]int{} // the last plan that counted for a node, from 1
	left, n := false, 0         // whether nodes were left out, and the number of the plan
	notes, err := s.eachPlan(ctx, func(_ print.PlanRow, r *checkup.Report, h *history.History) {
		n++
		row := func(node string) *print.NodeRow {
			if rows[node] == nil {
				if node == "" || len(node) > nameBytes {
					return &print.NodeRow{} // not known, or no name of a node
				}
				if len(rows) == mostNodes {
					left = true
					return &print.NodeRow{}
				}
				rows[node] = &print.NodeRow{Node: node}
			}
			if counted[node] != n {
				counted[node] = n
				rows[node].Plans++
			}
			return rows[node]
		}
		for m := range measured(r, h) {
			count(&row(m.SourceNode).From, m.Results)
			count(&row(m.TargetNode).To, m.Results)
		}
	})
	if err != nil {
		return err
	}
	if left {
		notes = append(notes, fmt.Sprintf("Pairs of further nodes are not counted: this page counts those of at most %d.", mostNodes))
	}
	var list []print.NodeRow
	for _, node := range slices.Sorted(maps.Keys(rows)) {
		list = append(list, *rows[node])
	}
	notes = append([]string{"Pairs of the newest run of each plan, from and to the pods of each node. Checks that measure no pairs of " +
		"nodes, such as those of the control plane, are in the reports only."}, notes...)
	return print.HTMLNodes(b, "Nodes in plans of "+s.where(), list, notes, s.links())
}

// worst keeps the worst pairs, and counts the others.
type worst struct {
	pairs []print.NodePair
	more  int
}

func (w *worst) add(m history.Measured) {
	for _, r := range m.Results {
		w.pairs = append(w.pairs, print.NodePair{Check: m.Check, Source: m.Source, Target: m.Target, Result: r})
	}
	if len(w.pairs) >= 2*mostPairs {
		w.cut()
	}
}

func (w *worst) cut() {
	slices.SortFunc(w.pairs, print.CompareNodePairs)
	kept := min(len(w.pairs), mostPairs)
	w.more += len(w.pairs) - kept
	w.pairs = w.pairs[:kept]
}

func (s *Server) node(ctx context.Context, b *bytes.Buffer, r *http.Request) error {
	node := r.PathValue("node")
	if len(node) > nameBytes {
		return missing("no plan has measured this node in %s", s.where())
	}
	var on []print.NodePlan
	notes, err := s.eachPlan(ctx, func(row print.PlanRow, r *checkup.Report, h *history.History) {
		p := print.NodePlan{PlanRow: row}
		for i := range r.Checks {
			for _, f := range r.Checks[i].Findings {
				if slices.Contains(f.Nodes, node) {
					p.Findings = append(p.Findings, f)
				}
			}
		}
		var from, to worst
		for m := range measured(r, h) {
			if m.SourceNode == node {
				from.add(m)
			}
			if m.TargetNode == node {
				to.add(m)
			}
		}
		from.cut()
		to.cut()
		switch run := remembered(r, h); run.UID {
		case r.RunUID:
		case "":
			p.Notes = []string{"The plan has no history: pairs that passed are not listed."}
		default:
			p.Notes = []string{"The history does not have this run: pairs are those of run " + run.Name + "."}
		}
		p.From, p.MoreFrom, p.To, p.MoreTo = from.pairs, from.more, to.pairs, to.more
		if len(p.From)+len(p.To)+len(p.Findings) > 0 {
			on = append(on, p)
		}
	})
	if err != nil {
		return err
	}
	if len(on)+len(notes) == 0 {
		return missing("no plan has measured this node in its newest run in %s", s.where())
	}
	return print.HTMLNode(b, node, on, notes, s.links())
}
