// SPDX-License-Identifier: Apache-2.0

package print

import (
	"cmp"
	"fmt"
	"io"
	"net/url"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
)

// htmlNodeRows is the number of nodes of a list of nodes: the largest clusters that Kubernetes supports have as many.
const htmlNodeRows = 5000

// NodeRow is one node of a list of nodes. From and To count the pairs from and to the node by their verdicts, over all
// plans; Plans is the number of plans that have such pairs.
type NodeRow struct {
	Node     string
	Plans    int
	From, To checkup.Counts
}

// NodePlan is what the newest run of one plan found out about a node.
type NodePlan struct {
	PlanRow
	// Findings that concern the node.
	Findings []checkup.Finding
	// From and To are the worst pairs from and to the node, worst first; MoreFrom and MoreTo count those that are left
	// out.
	From, To         []NodePair
	MoreFrom, MoreTo int
	// Notes limit what the lists mean, one line each.
	Notes []string
}

// NodePair is one probe of one pair.
type NodePair struct {
	Check, Source, Target string
	history.Result
}

// ranks of verdicts, worst first.
var ranks = map[checkup.Verdict]int{checkup.Fail: 1, checkup.Unmeasured: 2, checkup.Undecided: 3, checkup.Pass: 4}

// CompareNodePairs orders pairs: the worst first, by verdict, loss and delay, then by name.
func CompareNodePairs(a, b NodePair) int {
	return cmp.Or(cmp.Compare(ranks[a.Verdict], ranks[b.Verdict]), cmp.Compare(b.Loss, a.Loss), cmp.Compare(b.P50, a.P50),
		cmp.Compare(a.Check, b.Check), cmp.Compare(a.Source, b.Source), cmp.Compare(a.Target, b.Target),
		cmp.Compare(a.Probe, b.Probe))
}

type htmlNodes struct {
	Title string
	Notes []string
	Table *htmlTable
}

type htmlNode struct {
	Title string
	Notes []string
	Plans []htmlNodePlan
}

type htmlNodePlan struct {
	htmlPlan
	Findings     []htmlFinding
	MoreFindings string
	Tables       []*htmlTable
	Notes        []string
}

// HTMLNodes writes a list of nodes as one HTML document, as HTML does, with notes above it. Nodes with failed pairs
// come first, then those with unmeasured ones.
func HTMLNodes(w io.Writer, title string, rows []NodeRow, notes []string, links Links) error {
	view := &htmlNodes{Title: htmlClip(title), Notes: htmlClips(notes)}
	rows = slices.Clone(rows)
	slices.SortFunc(rows, func(a, b NodeRow) int {
		return cmp.Or(cmp.Compare(b.From.Fail+b.To.Fail, a.From.Fail+a.To.Fail),
			cmp.Compare(b.From.Unmeasured+b.To.Unmeasured, a.From.Unmeasured+a.To.Unmeasured), cmp.Compare(a.Node, b.Node))
	})
	number := func(text string) htmlCell { return htmlCell{Text: text, Number: true} }
	t := &htmlTable{Label: "Nodes", Columns: []htmlCell{{Text: "node"},
		number("from it: fail"), number("unmeasured"), number("pairs"),
		number("to it: fail"), number("unmeasured"), number("pairs"), number("plans")}}
	for i, r := range rows {
		if i == htmlNodeRows {
			t.More = "... and " + checkup.Count(len(rows)-i, "more node")
			break
		}
		cells := []htmlCell{{Text: htmlClip(r.Node), URL: links.node(r.Node)}}
		for _, n := range []int{
			r.From.Fail, r.From.Unmeasured, r.From.Expected, r.To.Fail, r.To.Unmeasured, r.To.Expected, r.Plans,
		} {
			cells = append(cells, number(fmt.Sprint(n)))
		}
		t.Rows = append(t.Rows, cells)
	}
	if len(t.Rows) > 0 {
		view.Table = t
	}
	return (&htmlPage{Title: title, Lists: links.lists(), Nodes: view}).write(w)
}

// HTMLNode writes what the newest runs of the plans found out about a node as one HTML document, as HTML does, with
// notes above it.
func HTMLNode(w io.Writer, node string, plans []NodePlan, notes []string, links Links) error {
	view := &htmlNode{Title: htmlClip("Node " + node), Notes: htmlClips(notes)}
	for i := range plans {
		p := &plans[i]
		v := htmlNodePlan{htmlPlan: htmlPlanOf(&p.PlanRow, links), Notes: htmlClips(p.Notes)}
		v.Findings, v.MoreFindings = htmlFindingsOf(p.Findings, "pair")
		address := links.of(p.Namespace).plan(p.Plan)
		for _, list := range []struct {
			label, peer string
			pairs       []NodePair
			more        int
			of          func(NodePair) string
		}{
			{"Pairs from the node, worst first", "target", p.From, p.MoreFrom, func(n NodePair) string { return n.Target }},
			{"Pairs to the node, worst first", "source", p.To, p.MoreTo, func(n NodePair) string { return n.Source }},
		} {
			if len(list.pairs) > 0 {
				v.Tables = append(v.Tables, htmlPairs(list.label, list.peer, address, list.pairs, list.more, list.of))
			}
		}
		view.Plans = append(view.Plans, v)
	}
	page := htmlPage{Title: "Node " + node, Lists: links.lists(), Nav: []htmlLink{{Text: htmlClip(node)}}, Node: view}
	return page.write(w)
}

// htmlPairs lists pairs of a node by their other end, with links to what the plan's page at address has about each.
func htmlPairs(label, peer, address string, pairs []NodePair, more int, of func(NodePair) string) *htmlTable {
	t := &htmlTable{Label: label, Columns: []htmlCell{{Text: peer}, {Text: "verdict"}, {Text: "probe"},
		{Text: "median", Number: true}, {Text: "longest", Number: true}, {Text: "loss", Number: true}, {Text: "check"}}}
	for i, p := range pairs {
		if i == htmlItems {
			more += len(pairs) - i
			break
		}
		median, longest, loss, link := "-", "-", "-", ""
		if p.P50 > 0 {
			median, longest = micros(p.P50), micros(p.Max)
		}
		if p.Loss >= 0 {
			loss = fmt.Sprintf("%d%%", p.Loss)
		}
		if address != "" {
			link = address + "?" + url.Values{"source": {p.Source}, "target": {p.Target}}.Encode()
		}
		t.Rows = append(t.Rows, []htmlCell{
			{Text: htmlClip(of(p)), URL: link}, {Verdict: htmlVerdict(string(p.Verdict))}, {Text: htmlClip(p.Probe)},
			{Text: median, Number: true}, {Text: longest, Number: true}, {Text: loss, Number: true},
			{Text: htmlClip(p.Check)},
		})
	}
	if more > 0 {
		t.More = "... and " + checkup.Count(more, "more line")
	}
	return t
}
