// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Folded is the sum of the Results of one pair.
type Folded struct {
	checkup.Observation
	// Results without spoiled and repeated ones, in the order of their times.
	Results []*checkup.Result
	// Failures counts the failed results by the stage that failed.
	Failures map[checkup.Stage]int
	// passed counts the results by each stage that they passed. A passed stage may have
	// no delay, if the agent was delayed. If no result of the pair has a delay of the
	// stage, the pair has no such stage.
	passed map[checkup.Stage]int
	// spoiled says why the last discarded result was discarded
	spoiled checkup.Cause
	// wrong says why the results are not credible; nil if they are
	wrong *checkup.Cause
	// unmeasured is the cause that the agent reported for the pair as a whole, besides
	// its results; nil if it reported none
	unmeasured *checkup.Cause
}

// fold collects the results of each pair. Their order does not matter.
func (e *evidence) fold(results []checkup.Result) {
	at, alien := map[int][]*checkup.Result{}, map[checkup.Pair][]*checkup.Result{}
	for i := range results {
		r := &results[i]
		if r.Source < 0 || r.Source >= len(e.sources) {
			e.strayResults++
		} else if k, ok := e.position(r.Pair); ok {
			at[k] = append(at[k], r)
		} else {
			alien[r.Pair] = append(alien[r.Pair], r)
		}
	}
	for p, results := range alien {
		e.sources[p.Source].alien++
		each, _ := once(results)
		e.sources[p.Source].results += len(each)
	}
	for k, results := range at {
		t := fold(e.pairs[k], results)
		e.sources[t.Source].results += len(t.Results) + t.Spoiled
		if o := e.observed[k]; o != nil {
			t.unmeasured = o.Unmeasured
			if o.Unmeasured == nil {
				t.wrong = distrusted("the agent reported the pair both as a whole and by single measurements")
			}
		}
		e.folded[k], e.observed[k] = t, &t.Observation
	}
}

// once sorts results of one pair by their times, and drops repetitions. It reports
// whether two results of the same time differ.
func once(results []*checkup.Result) (each []*checkup.Result, differ bool) {
	slices.SortFunc(results, func(a, b *checkup.Result) int { return a.At.Compare(b.At) })
	for _, r := range results {
		if len(each) == 0 || !each[len(each)-1].At.Equal(r.At) {
			each = append(each, r)
			continue
		}
		a, b := *each[len(each)-1], *r
		a.At, b.At = time.Time{}, time.Time{} // equal times may be in different time zones
		differ = differ || !reflect.DeepEqual(a, b)
	}
	return each, differ
}

// fold makes one observation of the results of a pair.
func fold(p checkup.Pair, results []*checkup.Result) *Folded {
	t := &Folded{
		Observation: checkup.Observation{Pair: p, Stages: map[checkup.Stage][]int64{}}, passed: map[checkup.Stage]int{},
	}
	each, differ := once(results)
	if differ {
		t.wrong = distrusted("the agent reported one measurement twice, with different results")
		t.wrong.Reason = checkup.ReasonConflict
	}
	var measured []checkup.Result
	for _, r := range each {
		if why := spoiled(r); why != nil {
			t.Spoiled++
			t.spoiled = *why
			continue
		}
		if contradicts(r) && t.wrong == nil {
			t.wrong = distrusted(fmt.Sprintf(
				"the measurement of %s contradicts itself: its delays do not match the stages that it passed", stamp(r.At)))
		}
		t.Results = append(t.Results, r)
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
		if t.Failures == nil {
			t.Failures = map[checkup.Stage]int{}
		}
		t.Failures[r.Failure.Stage]++
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

// distrusted is the cause of results that are not credible.
func distrusted(message string) *checkup.Cause {
	return &checkup.Cause{Stage: checkup.StageCollect, Message: message}
}

// spoiled says why a result is discarded; nil if it is a measurement.
func spoiled(r *checkup.Result) *checkup.Cause {
	if r.Unmeasured == nil && r.Failure != nil && !ofNetwork(r.Failure.Stage) {
		return r.Failure
	}
	return r.Unmeasured
}

// contradicts reports whether a measurement has delays of stages that it did not pass, or
// no delay of a connect that it passed.
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

// incomplete says why the results of a pair are too few to pass; nil if they are not.
func (j *Judgement) incomplete(at int) *checkup.Cause {
	if why := j.evidence.folded[at].unmeasured; why != nil {
		return why
	}
	s := &j.evidence.sources[j.Outcomes[at].Pair.Source]
	for _, end := range s.ends {
		if end.Results > s.results {
			return &checkup.Cause{Stage: checkup.StageCollect, Message: fmt.Sprintf(
				"the agent reported %s; %d arrived", checkup.Count(end.Results, "measurement"), s.results)}
		}
	}
	return nil
}
