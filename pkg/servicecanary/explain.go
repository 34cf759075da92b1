// SPDX-License-Identifier: Apache-2.0

package servicecanary

import (
	"fmt"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// Explain shows which Services a run creates, over which responders.
func Explain(e kind.Explained) kind.Explanation {
	w := e.Worksheet
	var x kind.Explanation
	sheet, err := SheetOf(w)
	if err != nil {
		x.Field("services", err.Error())
		return x
	}
	var on []string
	for _, t := range w.Targets {
		if t.IsFixture() {
			on = append(on, endpointOn(t))
		}
	}
	x.Field("services", fmt.Sprintf("%d, created by setup and deleted by teardown, each with port 7 of TCP and UDP", len(w.Services)))
	x.Field("endpoints", fmt.Sprintf("%d: %s", len(on), checkup.Some(on)))
	x.Field("pairs", fmt.Sprintf("%d: a node, a Service or an endpoint itself, a family and a transport", e.Cost.Pairs))
	if p, ok := w.Probe(checkup.TCP); ok {
		x.Field("measures", fmt.Sprintf("each pair %s, every %s; the responders say who answers",
			checkup.Count(p.Count, "time"), p.Interval))
	}
	switch sheet.Share {
	case ShareAny:
		x.Field("shares", "each endpoint must answer; how often is not tested")
	default:
		x.Field("shares", fmt.Sprintf("must be even; all tests of a look together are wrong in 1 of %.0f runs", 1/judge.Level(w, 1)))
	}
	if e.Gate.Confirm {
		x.Field("second look", fmt.Sprintf("failed pairs, at most %d, within what is left of timeouts.probe (%s)",
			servicecheck.MostAgain(w), w.Timeouts.Probe))
	}
	if turn := turnOf(w); turn != "" {
		x.Field("turn", turn)
	}
	x.Field("changes", "Services are listed before and after measuring: what failed and has changed is unmeasured")
	table := &checkup.Table{Noun: "Service", Columns: []checkup.Column{
		{Name: "SERVICE"}, {Name: "WHAT IT HAS"}, {Name: "ENDPOINTS", Measure: checkup.MeasureCount},
	}}
	for _, s := range w.Services {
		n := 0
		for _, endpoint := range slices.Concat(w.Sources, w.Targets) {
			if slices.Contains(endpoint.In, s.Name) && (!endpoint.NeverReady || s.PublishNotReady) {
				n++
			}
		}
		table.Rows = append(table.Rows, []checkup.Cell{checkup.Text(s.Name), checkup.Text(has(w, s)), checkup.Number(n)})
	}
	x.Blocks = []checkup.Block{{Table: table}}
	return x
}

// turnOf words what changes while Services are measured; empty if nothing does.
func turnOf(w *checkup.Worksheet) string {
	leaves, joins, ends := 0, 0, 0
	for _, t := range w.Targets {
		if len(t.Leaves) > 0 {
			leaves++
		}
		if len(t.Joins) > 0 {
			joins++
		}
		if t.Ends {
			ends++
		}
	}
	if joins == 0 {
		return ""
	}
	var changes []string
	if n := leaves + joins; n > 0 {
		changes = append(changes, fmt.Sprintf("changes the labels of %s", checkup.Count(n, "responder")))
	}
	if ends > 0 {
		changes = append(changes, fmt.Sprintf("deletes %d, which still answers for a while", ends))
	}
	return fmt.Sprintf("when each agent has measured a pair, at most %s after the first one, probe %s", w.TurnTime(),
		strings.Join(changes, ", and "))
}

// has words what a Service has beside its ports.
func has(w *checkup.Worksheet, s checkup.ServiceFixture) string {
	var all []string
	leaves, turns := w.Turning()[s.Name]
	for _, of := range []struct {
		is   bool
		text string
	}{
		{s.Headless, "clusterIP: None"},
		{s.NodePort, "type: NodePort"},
		{s.InternalLocal, "internalTrafficPolicy: Local"},
		{s.ExternalLocal, "externalTrafficPolicy: Local"},
		{s.ClientIP > 0, fmt.Sprintf("sessionAffinity: ClientIP, timeoutSeconds: %d", s.ClientIP)},
		{s.PublishNotReady, "publishNotReadyAddresses: true"},
		{s.Distribution != "", "trafficDistribution: " + s.Distribution},
		{turns && leaves, "its endpoint leaves, and another one joins"},
		{turns && !leaves, "its endpoint terminates, and another one joins"},
	} {
		if of.is {
			all = append(all, of.text)
		}
	}
	return strings.Join(all, ", ")
}
