// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"fmt"
	"strconv"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
)

// Explain shows which sample a run will measure, and what it can see.
func Explain(e kind.Explained) kind.Explanation {
	w := e.Worksheet
	var x kind.Explanation
	x.Field("sample", fmt.Sprintf("round %d of %d, degree %d, seed %d", w.Round, w.Rounds, w.Degree, w.Seed))
	x.Field("pairs", strconv.Itoa(e.Cost.Pairs))
	confirm := gateOf(w, e.Gate).Confirm
	mesh, ok := e.Spec.(*Spec)
	if ok {
		for _, key := range mesh.Sample.Topology {
			nodes, values := countLabel(w, key)
			x.Field("topology", fmt.Sprintf("%s: %s, %s", key, checkup.Count(values, "value"), checkup.Count(nodes, "node")))
		}
	}
	if e.Cost.Inside > 0 {
		x.Field("inside", fmt.Sprintf("%s in as many existing pods: Kubernetes keeps each until its pod is deleted, "+
			"stopped; at most %d in a pod; failures are not measured again",
			checkup.Count(e.Cost.Inside, "ephemeral container"), checkup.MaxInside))
	}
	if confirm {
		pairs, packets := mostAgain(w)
		x.Field("second look", fmt.Sprintf("at most %s, %s, from %s, within what is left of timeouts.probe (%s)",
			checkup.Count(pairs, "pair"), checkup.Count(packets, "packet"), checkup.Count(e.Cost.Agents, "agent"),
			w.Timeouts.Probe))
	}
	if w.Expect.Unreachable {
		return x
	}
	if w.Expect.SourceAddress == checkup.PreservedSource {
		compared := 0
		for p := range w.Pairs() {
			if w.Witnesses(p) {
				compared++
			}
		}
		x.Field("addresses", fmt.Sprintf("the source address must be preserved, compared in %d of %s",
			compared, checkup.Count(e.Cost.Pairs, "pair")))
	}
	sight := sightOf(w, confirm)
	x.Field("sees", "in one run:", sight.sees(w, ok && mesh.Sample.Rotate)...)
	if r := w.Expect.Regression; r != nil {
		least := fmt.Sprintf("with earlier runs in the history of the plan, if it has at least %d:", r.Runs)
		x.Field("compared", least, compares(w, r)...)
	}
	x.Power = powerTable(sight.powers())
	return x
}

// compares says what a comparison with earlier runs looks at, what it finds, and what that means. docs/regression.md
// has the reasons.
func compares(w *checkup.Worksheet, r *checkup.Regression) []checkup.Item {
	groups := "the check, each node as source and as target, each pair of zones, single pairs"
	if w.Rounds > 1 {
		groups += " that were measured before"
	}
	result := "a regression is a finding, and fails nothing"
	if r.Fail {
		result = "a regression fails the check"
	}
	return []checkup.Item{
		{Text: groups},
		{Text: fmt.Sprintf("median and 90th percentile of the delay: a rise to %g times the usual, and by %s or more", r.MinFactor, r.MinDelay)},
		{Text: fmt.Sprintf("loss: a rise by %s of the packets or more", r.MinLoss)},
		{Text: fmt.Sprintf("a step: from the first run after it; a drift: after %d days or more", r.Runs)},
		{Text: fmt.Sprintf("false alarm: at most 1 of %d runs without a change", r.Runs+1)},
		{Text: result},
	}
}
