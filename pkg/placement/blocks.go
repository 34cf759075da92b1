// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/scheduling"
)

// namesShown is the most nodes that a line names.
const namesShown = 8

// blocks show the origin of the placements, and each side.
func (d *trial) blocks() []checkup.Block {
	mode := string(d.Mode)
	if d.Mode == cluster.DiagnosticsNoOpinion {
		mode = "not set, which is " + string(cluster.DiagnosticsAll)
	}
	blocks := []checkup.Block{{
		Title: "Placement",
		Note: fmt.Sprintf(
			"from %s; mode %s; %s examined",
			cmp.Or(d.Origin, "nowhere"),
			mode,
			checkup.Count(d.Nodes, "node"),
		),
	}}
	list := &checkup.List{Noun: "side"}
	for i := range d.Sides {
		list.Items = append(list.Items, d.item(&d.Sides[i]))
	}
	if len(list.Items) > 0 {
		blocks = append(blocks, checkup.Block{List: list})
	}
	return blocks
}

// item is a side with its cause, the nodes of its pods, and the API server's answer.
func (d *trial) item(s *Side) checkup.Item {
	v, cause := d.judge(s)
	it := checkup.Item{
		Name: string(s.Side), Verdict: v,
		Text: fmt.Sprintf("%d of %s eligible", len(s.Eligible), checkup.Count(d.Nodes, "node")),
	}
	if s.Min != nil {
		it.Text += fmt.Sprintf(", at least %d demanded", *s.Min)
	}
	line := func(format string, args ...any) {
		it.Items = append(it.Items, checkup.Item{Text: fmt.Sprintf(format, args...)})
	}
	if cause != nil {
		line("%s", cause)
	}
	line("%s", lands(s))
	for _, g := range s.Rejected {
		line("not on %s: %s", several(g.Nodes), strings.Join(reasons(g), "; "))
	}
	for _, g := range s.Later {
		line("evicted later from %s: %s", several(g.Nodes), strings.Join(reasons(g), "; "))
	}
	for _, c := range s.Contradictions {
		line("contradiction: %s", c)
	}
	for _, u := range s.Unknown {
		line("unknown: %s", u)
	}
	for i := range d.answers[s.Side] {
		switch a := &d.answers[s.Side][i]; {
		case a.cause != nil:
			line("the API server was not asked, or did not decide: %s", a.cause)
		case a.Allowed:
			line("the API server admits the pod")
		default:
			line("the API server does not admit the pod: %s", cmp.Or(a.Message, "it gave no reason"))
		}
		for _, w := range d.answers[s.Side][i].Warnings {
			line("warning: %s", w)
		}
		for _, c := range d.answers[s.Side][i].Changed {
			line("changed at admission: %s", c)
		}
	}
	return it
}

// lands says on which nodes the pods of a side run.
func lands(s *Side) string {
	workload := cmp.Or(s.Workload, "workload")
	switch {
	case len(s.Eligible) == 0:
		return fmt.Sprintf("no node takes the pods of the %s", workload)
	case s.Workload == "Deployment" && len(s.Eligible) > 1:
		return fmt.Sprintf("the pod of the %s lands on one of %s", workload, several(s.Eligible))
	case s.Workload == "Deployment":
		return fmt.Sprintf("the pod of the %s lands on %s", workload, s.Eligible[0])
	default:
		return fmt.Sprintf("the %s has a pod on %s", workload, several(s.Eligible))
	}
}

// several names nodes, or the first of them and the number of the others.
func several(nodes []string) string {
	if len(nodes) <= namesShown {
		return strings.Join(nodes, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(nodes[:namesShown-1], ", "), len(nodes)-namesShown+1)
}

// reasons of a group, each in full.
func reasons(g scheduling.NodeGroup) []string {
	var list []string
	for _, r := range g.Reasons {
		list = append(list, cmp.Or(r.Message, r.Scheduler))
	}
	return list
}
