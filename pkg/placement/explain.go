// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/scheduling"
)

// Explain shows on which nodes the pods would run, and the condition if the API server
// admits them, which only a run asks.
func Explain(e kind.Explained) kind.Explanation {
	var x kind.Explanation
	sheet, err := SheetOf(e.Worksheet)
	if err != nil {
		x.Field("placement", err.Error())
		return x
	}
	mode := cmp.Or(string(sheet.Mode), `"", which means All`)
	if sheet.Mode == cluster.DiagnosticsDisabled {
		mode += ": nothing is placed"
	}
	x.Field("mode", fmt.Sprintf("%s, from %s", mode, sheet.Origin))
	for i := range sheet.Sides {
		s := &sheet.Sides[i]
		x.Field(string(s.Side), destination(s, sheet.Nodes), details(s)...)
	}
	if c := sheet.Predicted(); c != nil {
		x.Conditions = []checkup.Condition{*c}
		text := fmt.Sprintf("%s would be %s, reason %s", c.Type, c.Status, c.Reason)
		if c.Message != "" {
			text += " (" + c.Message + ")"
		}
		if c.Status == "True" {
			text += ", if the API server admits the pods: a run asks it"
		}
		x.Field("condition", text)
	}
	return x
}

// destination says on which nodes the pods of a side would run.
func destination(s *Side, nodes int) string {
	n, of := len(s.Eligible), checkup.Count(nodes, "node")
	switch {
	case n == 0 && s.Workload == "DaemonSet":
		return fmt.Sprintf("a DaemonSet: no pod, because none of %s is eligible", of)
	case n == 0:
		return fmt.Sprintf("a %s of one replica: its pod stays pending, because none of %s is eligible", s.Workload, of)
	case s.Workload == "DaemonSet":
		return fmt.Sprintf("a DaemonSet: a pod on each of %d of %s: %s", n, of, checkup.Some(s.Eligible))
	default:
		return fmt.Sprintf(
			"a %s of one replica: its pod lands on one of %d of %s: %s",
			s.Workload,
			n,
			of,
			checkup.Some(s.Eligible),
		)
	}
}

// details are the plan's demand, the rejected nodes with their reasons, and what is
// contradictory or unknown, one line each.
func details(s *Side) []checkup.Item {
	var items []checkup.Item
	add := func(format string, args ...any) {
		items = append(items, checkup.Item{Text: fmt.Sprintf(format, args...)})
	}
	because := func(reasons []scheduling.NodeReason) string {
		messages := make([]string, len(reasons))
		for i, r := range reasons {
			messages[i] = r.Message
		}
		return strings.Join(messages, "; ")
	}
	if s.Min != nil {
		add("the plan demands at least %s", checkup.Count(*s.Min, "eligible node"))
	}
	for _, g := range s.Rejected {
		add("not on %s: %s", checkup.Some(g.Nodes), because(g.Reasons))
	}
	for _, g := range s.Later {
		add("evicted from %s: %s", checkup.Some(g.Nodes), because(g.Reasons))
	}
	for _, c := range s.Contradictions {
		add("contradiction: %s", c)
	}
	for _, u := range s.Unknown {
		add("unknown: %s", u)
	}
	return items
}
