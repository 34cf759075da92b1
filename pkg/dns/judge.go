// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// Judge returns the report of a dns check. Its units are the pairs that failed or were not measured.
//
// It is pure. A nil roster or record means that nothing was set up or collected.
func Judge(
	w *checkup.Worksheet, roster *checkup.Roster, record *checkup.Record, gate checkup.Gate,
) checkup.CheckReport {
	sheet, err := SheetOf(w)
	if err != nil {
		return judge.NotMeasured(w.Check, w.Kind, checkup.Cause{Stage: checkup.StageSetup, Message: err.Error()})
	}
	pairs := func(w *checkup.Worksheet, record *checkup.Record) *judge.Judgement {
		return judge.Pairs(w, roster, record, judge.Rules{LooksAgain: gate.Confirm})
	}
	j := pairs(w, record)
	servicecheck.Merge(j, w, record, pairs)
	servicecheck.Excuse(j, record, func(o *judge.Outcome, changed map[int]bool) bool { return excused(w, o, changed) })
	r := j.Report(gate)
	r.Units = j.Troubled()
	for i := range r.Units {
		label(&r.Units[i], w, sheet)
	}
	r.Delays = j.DelayRows()
	r.Findings = findings(j, sheet)
	r.Blocks = blocks(j, sheet, record)
	judge.Confirm(&r, gate)
	return r
}

// excused reports whether a change explains a failure: of the server always, and of the Service if the answer was
// wrong. A Service that changes is no reason for silence, unless a resolver completes the name: if the name is gone, it
// asks for names outside the cluster next, and whatever these servers do is the result.
func excused(w *checkup.Worksheet, o *judge.Outcome, changed map[int]bool) bool {
	peer := w.Targets[o.Pair.Target].Peer
	completed := peer != nil && peer.Question != nil && !strings.HasSuffix(peer.Question.Name, ".")
	return changed[len(w.Targets)+o.Pair.Target] ||
		changed[o.Pair.Target] && (o.Cause.Reason == checkup.ReasonWrong || completed)
}

// Again returns the worksheet of the second look: the pairs that failed or are undecided. It is nil if there are none,
// if the gate does not want failures to be confirmed, and after the second look.
func Again(
	w *checkup.Worksheet, roster *checkup.Roster, record *checkup.Record, gate checkup.Gate,
) *checkup.Worksheet {
	if !gate.Confirm || w.Look > 0 {
		return nil
	}
	j := judge.Pairs(w, roster, record, judge.Rules{LooksAgain: true})
	return servicecheck.LookAgain(j, func(checkup.Pair) bool { return true })
}

// Labels of units.
const (
	labelServer   = "server"
	labelQuestion = "question"
	labelService  = "service"
)

// label adds what a unit's target is.
func label(u *checkup.Unit, w *checkup.Worksheet, sheet *Sheet) {
	i := slices.IndexFunc(w.Targets, func(e checkup.Endpoint) bool { return e.Name() == u.Target })
	if i < 0 {
		return
	}
	t := sheet.Targets[i]
	u.Labels = map[string]string{labelServer: t.Server, labelQuestion: t.Question, checkup.UnitSourceNode: u.Source}
	if t.Service != "" {
		u.Labels[labelService] = t.Service
	}
}

// extras are what observations have beside the numbers of all pairs.
type extras struct {
	repeated, truncated int
	// connects and answers are the two parts of each delay over TCP; nil over UDP.
	connects, answers []int64
}

// extrasOf adds up the first look's, by pair. An agent may report any number: none is above what was sent.
func extrasOf(record *checkup.Record) map[checkup.Pair]extras {
	of := map[checkup.Pair]extras{}
	if record == nil {
		return of
	}
	for _, o := range record.Observations {
		most := func(n int) int { return min(max(n, 0), max(o.Sent, 0)) }
		x := extras{repeated: most(o.Repeated), truncated: most(o.Truncated)}
		x.connects, x.answers = stages(&o)
		of[o.Pair] = x
	}
	return of
}

// stages splits the delays of an observation into those of the TCP connect and of the answer after it; nil if it does
// not have the former, or if they are not parts of the delays.
func stages(o *checkup.Observation) (connects, answers []int64) {
	if len(o.Connects) != len(o.RTTs) {
		return nil, nil
	}
	for i, connect := range o.Connects {
		if connect < 0 || connect > o.RTTs[i] {
			return nil, nil
		}
		answers = append(answers, o.RTTs[i]-connect)
	}
	return o.Connects, answers
}

// row is a server over one transport.
type row struct {
	server    string
	family    checkup.IPFamily
	transport checkup.Transport
}

// blocks say how each server does over each transport, with the delays of each stage, and how the questions do of which
// not all pairs passed.
func blocks(j *judge.Judgement, sheet *Sheet, record *checkup.Record) []checkup.Block {
	of := extrasOf(record)
	counts, questions := map[row]checkup.Counts{}, map[string]checkup.Counts{}
	sums, delays := map[row]extras{}, map[row][][]int64{}
	connects, answers := map[row][][]int64{}, map[row][][]int64{}
	truncated := 0
	for i := range j.Outcomes {
		o := &j.Outcomes[i]
		if o.Broken {
			continue
		}
		t := sheet.Targets[o.Pair.Target]
		at := row{t.Server, o.Pair.Family, o.Pair.Transport}
		counts[at] = judge.Sum(counts[at], judge.Counted(o.Verdict))
		questions[t.Question] = judge.Sum(questions[t.Question], judge.Counted(o.Verdict))
		if o.Verdict != checkup.Unmeasured {
			x := of[o.Pair]
			sums[at] = extras{repeated: sums[at].repeated + x.repeated, truncated: sums[at].truncated + x.truncated}
			truncated += x.truncated
			delays[at] = append(delays[at], o.RTTs)
			connects[at], answers[at] = append(connects[at], x.connects), append(answers[at], x.answers)
		}
	}
	var rows []row
	for at := range counts {
		rows = append(rows, at)
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.family, b.family), cmp.Compare(a.server, b.server), cmp.Compare(a.transport, b.transport))
	})
	table := &checkup.Table{Noun: "server", Columns: []checkup.Column{
		{Name: "server"}, {Name: "over"}, {Name: "pairs", Measure: checkup.MeasureCount},
		{Name: "pass", Measure: checkup.MeasureCount}, {Name: "fail", Measure: checkup.MeasureCount},
		{Name: "unmeasured", Measure: checkup.MeasureCount}, {Name: "p50", Measure: checkup.MeasureMicroseconds},
		{Name: "p99", Measure: checkup.MeasureMicroseconds}, {Name: "lost", Measure: checkup.MeasureCount},
		{Name: "truncated", Measure: checkup.MeasureCount}, {Name: "undecided", Measure: checkup.MeasureCount},
	}}
	for _, at := range rows {
		c, p50, p99 := counts[at], checkup.Text(""), checkup.Text("")
		if d := judge.DelayOf(delays[at]); d != nil {
			p50, p99 = checkup.Number(d.P50), checkup.Number(d.P99)
		}
		table.Rows = append(table.Rows, []checkup.Cell{
			checkup.Text(at.server), checkup.Text(over(at.transport)), checkup.Number(c.Expected), checkup.Number(c.Pass),
			checkup.Number(c.Fail), checkup.Number(c.Unmeasured), p50, p99, checkup.Number(sums[at].repeated),
			checkup.Number(sums[at].truncated), checkup.Number(c.Undecided),
		})
	}
	all := []checkup.Block{{Title: "DNS servers", Table: table}}
	if table := stageTable(rows, delays, connects, answers); len(table.Rows) > 0 {
		all = append(all, checkup.Block{Title: "Delays of DNS servers by stage", Table: table})
	}
	// If all questions are among them, they are not what is wrong.
	if table := troubled(questions); len(table.Rows) > 0 && len(table.Rows) < len(questions) {
		all = append(all, checkup.Block{Title: fmt.Sprintf("Questions (%d)", len(questions)), Table: table})
	}
	if truncated > 0 {
		all = append(all, checkup.Block{Note: fmt.Sprintf("%s did not fit in a datagram of 512 bytes: TCP was needed",
			checkup.Count(truncated, "answer"))})
	}
	return all
}

// stageTable has the delays of each stage: over UDP from the question to the answer, over TCP of the connect and from
// then to the answer.
func stageTable(rows []row, delays, connects, answers map[row][][]int64) *checkup.Table {
	table := &checkup.Table{Noun: "stage", Columns: []checkup.Column{
		{Name: "server"}, {Name: "over"}, {Name: "stage"}, {Name: "p50", Measure: checkup.MeasureMicroseconds},
		{Name: "p90", Measure: checkup.MeasureMicroseconds}, {Name: "p99", Measure: checkup.MeasureMicroseconds},
		{Name: "max", Measure: checkup.MeasureMicroseconds},
	}}
	add := func(at row, stage string, of [][]int64) {
		if d := judge.DelayOf(of); d != nil {
			table.Rows = append(table.Rows, []checkup.Cell{
				checkup.Text(at.server), checkup.Text(over(at.transport)), checkup.Text(stage), checkup.Number(d.P50),
				checkup.Number(d.P90), checkup.Number(d.P99), checkup.Number(d.Max),
			})
		}
	}
	for _, at := range rows {
		if at.transport != checkup.DNSTCP {
			add(at, "answer", delays[at])
			continue
		}
		add(at, "connect", connects[at])
		add(at, "answer", answers[at])
	}
	return table
}

// troubled has the questions of which not all pairs passed, the worst first.
func troubled(counts map[string]checkup.Counts) *checkup.Table {
	table := &checkup.Table{Noun: "question", Columns: []checkup.Column{
		{Name: "question"}, {Name: "pairs", Measure: checkup.MeasureCount}, {Name: "pass", Measure: checkup.MeasureCount},
		{Name: "fail", Measure: checkup.MeasureCount}, {Name: "undecided", Measure: checkup.MeasureCount},
		{Name: "unmeasured", Measure: checkup.MeasureCount},
	}}
	var names []string
	for name, c := range counts {
		if c.Pass < c.Expected {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b].Fail, counts[a].Fail), cmp.Compare(counts[b].Unmeasured, counts[a].Unmeasured),
			cmp.Compare(a, b))
	})
	for _, name := range names {
		c := counts[name]
		table.Rows = append(table.Rows, []checkup.Cell{
			checkup.Text(name), checkup.Number(c.Expected), checkup.Number(c.Pass), checkup.Number(c.Fail),
			checkup.Number(c.Undecided), checkup.Number(c.Unmeasured),
		})
	}
	return table
}

// over is a transport in words.
func over(t checkup.Transport) string {
	if t == checkup.DNSTCP {
		return string(TCP)
	}
	return string(UDP)
}
