// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// told is what the Results of one pair come to.
type told struct {
	checkup.Observation
	// results that are measurements, each once, in the order of their times
	results []*checkup.Result
	// failures counts those that failed by the stage that did, passed by each stage
	// that was passed. A stage that was passed may have no delay, where the agent was
	// held up; if none of a pair's has one, the pair has no such stage.
	failures, passed map[checkup.Stage]int
	// spoiled is why the last of those that are none was none
	spoiled checkup.Cause
	// wrong says why they cannot be believed; empty if they can
	wrong string
	// unmeasured is what the agent told of the pair as a whole, beside its results;
	// nil if it told nothing
	unmeasured *checkup.Cause
}

// fold puts the results of each pair together. Their order does not matter.
func (j *judge) fold(results []checkup.Result) {
	at, alien := map[int][]*checkup.Result{}, map[checkup.Pair][]*checkup.Result{}
	for i := range results {
		r := &results[i]
		if r.Source < 0 || r.Source >= len(j.sources) {
			j.strayResults++
		} else if k, ok := j.position(r.Pair); ok {
			at[k] = append(at[k], r)
		} else {
			alien[r.Pair] = append(alien[r.Pair], r)
		}
	}
	for p, results := range alien {
		j.sources[p.Source].alien++
		each, _ := once(results)
		j.sources[p.Source].results += len(each)
	}
	for k, results := range at {
		t := fold(j.pairs[k], results)
		j.sources[t.Source].results += len(t.results) + t.Spoiled
		if o := j.observed[k]; o != nil {
			t.unmeasured = o.Unmeasured
			if o.Unmeasured == nil {
				t.wrong = "the agent told the pair both as a whole and measurement by measurement"
			}
		}
		j.told[k], j.observed[k] = t, &t.Observation
	}
}

// once sorts results of one pair by their times, and drops repetitions. It
// reports whether two of one time differ.
func once(results []*checkup.Result) (each []*checkup.Result, differ bool) {
	slices.SortFunc(results, func(a, b *checkup.Result) int { return a.At.Compare(b.At) })
	for _, r := range results {
		if len(each) == 0 || !each[len(each)-1].At.Equal(r.At) {
			each = append(each, r)
			continue
		}
		a, b := *each[len(each)-1], *r
		a.At, b.At = time.Time{}, time.Time{} // equal, if in two time zones
		differ = differ || !reflect.DeepEqual(a, b)
	}
	return each, differ
}

// fold makes one observation of the results of a pair.
func fold(p checkup.Pair, results []*checkup.Result) *told {
	t := &told{Observation: checkup.Observation{Pair: p, Stages: map[checkup.Stage][]int64{}}, passed: map[checkup.Stage]int{}}
	each, differ := once(results)
	if differ {
		t.wrong = "the agent told different results for the one measurement"
	}
	var measured []checkup.Result
	for _, r := range each {
		if why := spoiled(r); why != nil {
			t.Spoiled++
			t.spoiled = *why
			continue
		}
		if contradicts(r) && t.wrong == "" {
			t.wrong = fmt.Sprintf("the measurement of %s does not add up: its delays are not those of the stages that it passed", stamp(r.At))
		}
		t.results = append(t.results, r)
		utc := *r
		utc.At = r.At.UTC()
		measured = append(measured, utc)
		t.Sent++
		for _, s := range checkup.ConnectionStages {
			if d := r.Delays.Of(s); d > 0 {
				t.Stages[s] = append(t.Stages[s], d)
			}
		}
		failed := len(checkup.ConnectionStages)
		if r.Failure != nil {
			failed = slices.Index(checkup.ConnectionStages, r.Failure.Stage)
		}
		for _, s := range checkup.ConnectionStages[:max(failed, 0)] {
			t.passed[s]++
		}
		if r.Failure == nil {
			t.Received++
			continue
		}
		t.Failure = r.Failure
		if t.failures == nil {
			t.failures = map[checkup.Stage]int{}
		}
		t.failures[r.Failure.Stage]++
	}
	for s := range t.passed {
		if len(t.Stages[s]) == 0 {
			delete(t.passed, s)
		}
	}
	t.RTTs = t.Stages[checkup.StageConnect]
	t.Outages = checkup.Outages(measured)
	return t
}

// spoiled says why a result is no measurement; nil if it is one.
func spoiled(r *checkup.Result) *checkup.Cause {
	if r.Unmeasured == nil && r.Failure != nil && !ofNetwork(r.Failure.Stage) {
		return r.Failure
	}
	return r.Unmeasured
}

// contradicts reports whether the delays of a measurement are not those of the
// stages before the one that failed.
func contradicts(r *checkup.Result) bool {
	failed := len(checkup.ConnectionStages)
	if r.Failure != nil {
		failed = slices.Index(checkup.ConnectionStages, r.Failure.Stage)
	}
	for i, s := range checkup.ConnectionStages {
		if d := r.Delays.Of(s); d < 0 || d > 0 && i >= failed {
			return true
		}
	}
	return r.Failure == nil && r.Delays.Connect == 0
}

// incomplete says why the results of a pair are not enough to pass; nil if they
// are.
func (j *judge) incomplete(at int) *checkup.Cause {
	if why := j.told[at].unmeasured; why != nil {
		return why
	}
	s := &j.sources[j.pairs[at].Source]
	for _, end := range s.ends {
		if end.Results > s.results {
			return &checkup.Cause{Stage: checkup.StageCollect, Message: fmt.Sprintf("the agent told %s, of which %d arrived", count(end.Results, "measurement"), s.results)}
		}
	}
	return nil
}

// connections reports every pair of a worksheet with Connections.
func (j *judge) connections(outcomes []outcome) []checkup.ConnectionReport {
	list := make([]checkup.ConnectionReport, 0, len(outcomes))
	for i := range outcomes {
		o := &outcomes[i]
		c := checkup.ConnectionReport{Source: name(j.w.Sources, o.pair.Source), Target: name(j.w.Targets, o.pair.Target), Verdict: o.verdict}
		if !o.broken {
			target := j.w.Targets[o.pair.Target]
			c.Name = checkup.ConnectivityName(j.w.Sources[o.pair.Source], target)
			if target.Peer != nil {
				c.Address = target.Peer.Address()
			}
		}
		if t := o.told; t != nil {
			c.Sent, c.Received, c.Failures, c.Outages = t.Sent, t.Received, maps.Clone(t.failures), t.Outages
			for s, delays := range t.Stages {
				if c.Delays == nil {
					c.Delays = map[checkup.Stage]*checkup.Delay{}
				}
				c.Delays[s] = delay([][]int64{delays})
			}
		}
		c.Cause = o.why()
		list = append(list, c)
	}
	return list
}

// stageRows summarises the delays of each stage by transport and family: what is
// sent is what came to the stage, what is received what passed it. There is a row
// of the TCP connect for every kind of pair, and one for any other stage that a
// pair came to.
func stageRows(attributes []attribute, outcomes []outcome) []checkup.DelayRow {
	var rows []checkup.DelayRow
	for k, a := range attributes {
		if !slices.ContainsFunc(outcomes, func(o outcome) bool { return o.attr == k }) {
			continue
		}
		for _, s := range checkup.ConnectionStages {
			row := checkup.DelayRow{Transport: a.transport, Stage: s, Family: a.family, Size: a.size}
			var delays [][]int64
			for i := range outcomes {
				o := &outcomes[i]
				if o.attr != k || o.told == nil || o.verdict == checkup.Unmeasured {
					continue
				}
				if reached := o.told.passed[s] + o.told.failures[s]; reached > 0 {
					row.Pairs++
					row.Sent += reached
					row.Received += o.told.passed[s]
					delays = append(delays, o.told.Stages[s])
				}
			}
			if row.Pairs == 0 && s != checkup.StageConnect {
				continue
			}
			row.Loss = percent(row.Sent-row.Received, row.Sent)
			row.Delay = delay(delays)
			rows = append(rows, row)
		}
	}
	return rows
}

// longest outage; nil if there is none.
func longest(outages []checkup.Outage) *checkup.Outage {
	var most *checkup.Outage
	for i := range outages {
		if o := &outages[i]; most == nil || o.Duration() > most.Duration() {
			most = o
		}
	}
	return most
}

// during says from when to when an outage lasted.
func during(o checkup.Outage) string {
	if o.End.IsZero() {
		return fmt.Sprintf("from %s, not over at %s", stamp(o.Start), stamp(o.Last))
	}
	return fmt.Sprintf("from %s to %s", stamp(o.Start), stamp(o.End))
}

// lasted says how long.
func lasted(o checkup.Outage) string {
	s := o.Duration().Round(time.Millisecond).String()
	if o.End.IsZero() {
		return "at least " + s
	}
	return s
}

// stamp prints a time to the millisecond.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
