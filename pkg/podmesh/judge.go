// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/localise"
)

// gateOf is the gate of a mesh. Agents inside existing pods look once: Kubernetes keeps each of their containers in its
// pod, and a second look would add another one.
func gateOf(w *checkup.Worksheet, gate checkup.Gate) checkup.Gate {
	gate.Confirm = gate.Confirm && !w.Inside()
	return gate
}

// judging are the rules of judging a mesh.
func judging(gate checkup.Gate) judge.Rules {
	return judge.Rules{Pools: true, LooksAgain: gate.Confirm}
}

// Judge returns the report of a mesh. Its units are the pairs that failed or were
// not measured: a mesh of 5,000 nodes has too many pairs to list all of them.
//
// It is pure. A nil roster or record means that nothing was set up or collected.
func Judge(
	w *checkup.Worksheet,
	roster *checkup.Roster,
	record *checkup.Record,
	gate checkup.Gate,
) checkup.CheckReport {
	gate = gateOf(w, gate)
	j := judge.Pairs(w, roster, record, judging(gate))
	explained := localise.Explain(j)
	var gone []string
	if record != nil {
		for i := range record.Looks {
			further := lookOf(w, roster, &record.Looks[i], gate)
			explained.LookAgain(j, further, record.Looks[i].After)
			gone = explained.Gone(record.Looks[i].After)
		}
	}
	r := j.Report(gate)
	r.Units = j.Troubled()
	r.Delays = j.DelayRows()
	r.Matrix = j.Matrix()
	r.Findings, r.Background = explained.Findings(), explained.Background
	r.Notes = append(r.Notes, gone...)
	if note := uncompared(w); note != "" {
		r.Notes = append(r.Notes, note)
	}
	judge.Confirm(&r, gate)
	return r
}

// uncompared notes that no pair can show what the plan expects of source addresses; empty if some can.
func uncompared(w *checkup.Worksheet) string {
	if w.Expect.SourceAddress != checkup.PreservedSource || w.Expect.Unreachable {
		return ""
	}
	for p := range w.Pairs() {
		if p.Target >= 0 && p.Target < len(w.Targets) && p.Source < len(w.Sources) && w.Witnesses(p) {
			return ""
		}
	}
	return "source addresses were not compared: no target of these probes reports the one that it sees"
}

// lookOf judges a further look at a mesh by its own measurements.
func lookOf(w *checkup.Worksheet, roster *checkup.Roster, look *checkup.Look, gate checkup.Gate) *judge.Judgement {
	next := *w
	next.Look, next.Again = max(look.Worksheet.Look, 1), look.Worksheet.Again
	if next.Again == nil {
		next.Again = []checkup.Again{}
	}
	next.Assignments = assign(w.Assignments, next.Again) // some need not be in the sample
	return judge.Pairs(&next, roster, &look.Record, judging(gate))
}
