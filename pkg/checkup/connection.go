// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"slices"
	"time"
)

// Result is one measurement of a pair whose measurements are reported one by one:
// one connection, at one time.
type Result struct {
	Pair
	// At is the start of the measurement, by the clock of the source's node.
	At time.Time `json:"at"`
	// Delays of the stages that passed. They belong to the connection that was used,
	// not to other connections that were tried in parallel.
	Delays StageDelays `json:"d"`
	// Failure is the stage that failed, and why; nil if all stages passed.
	Failure *Cause `json:"failure,omitempty"`
	// Unmeasured is set if a fault of the source itself spoiled the measurement. The
	// result then says nothing about the target.
	Unmeasured *Cause `json:"unmeasured,omitempty"`
}

// StageDelays are the delays of the stages of a connection, in microseconds, at least
// 1. 0 means that the stage did not pass, that the connection has no such stage, or
// that a delay of the agent itself spoiled the value. A spoiled Connect is never 0.
type StageDelays struct {
	Resolve   int64 `json:"r,omitempty"`
	Connect   int64 `json:"c,omitempty"`
	Handshake int64 `json:"h,omitempty"`
	Response  int64 `json:"w,omitempty"`
}

// Of returns the delay of a stage; 0 for stages that a connection does not have.
func (d StageDelays) Of(s Stage) int64 {
	switch s {
	case StageResolve:
		return d.Resolve
	case StageConnect:
		return d.Connect
	case StageHandshake:
		return d.Handshake
	case StageResponse:
		return d.Response
	}
	return 0
}

// Longest returns the longest of the delays.
func (d StageDelays) Longest() int64 { return max(d.Resolve, d.Connect, d.Handshake, d.Response) }

// ConnectionStages lists the stages of a connection in their order.
var ConnectionStages = []Stage{StageResolve, StageConnect, StageHandshake, StageResponse}

// Outage is a period in which a target was unreachable: from the start of the first
// failed measurement to the start of the next measurement that passed.
type Outage struct {
	Start time.Time `json:"start"`
	// End is zero if the outage had not ended when the last measurement was made.
	End time.Time `json:"end,omitzero"`
	// Last is the start of the last failed measurement in the outage.
	Last time.Time `json:"last"`
	// Failures is the number of failed measurements in the outage.
	Failures int `json:"failures"`
	// Cause of the first failure.
	Cause Cause `json:"cause"`
}

// Duration is the time from Start to End, or to Last if End is zero.
func (o Outage) Duration() time.Duration {
	if o.End.IsZero() {
		return o.Last.Sub(o.Start)
	}
	return o.End.Sub(o.Start)
}

// Outages finds the outages of one pair in its results, oldest first. The
// results may be in any order. Unmeasured results are ignored.
func Outages(results []Result) []Outage {
	sorted := slices.SortedStableFunc(slices.Values(results), func(a, b Result) int { return a.At.Compare(b.At) })
	var outages []Outage
	open := false
	for _, r := range sorted {
		switch {
		case r.Unmeasured != nil:
		case r.Failure == nil && open:
			outages[len(outages)-1].End = r.At
			open = false
		case r.Failure != nil && !open:
			outages = append(outages, Outage{Start: r.At, Last: r.At, Failures: 1, Cause: *r.Failure})
			open = true
		case r.Failure != nil:
			o := &outages[len(outages)-1]
			o.Last = r.At
			o.Failures++
		}
	}
	return outages
}

// StageDeadlines bound the stages of a connection.
type StageDeadlines struct {
	Resolve   Duration `json:"resolve"`
	Connect   Duration `json:"connect"`
	Handshake Duration `json:"handshake"`
	Response  Duration `json:"response"`
}

// Sum is the longest time that one measurement may take.
func (d StageDeadlines) Sum() Duration { return d.Resolve + d.Connect + d.Handshake + d.Response }

// ConnectivityChecks configures the PodNetworkConnectivityCheck objects
// (controlplane.operator.openshift.io/v1alpha1, a kind of OpenShift) of the pairs. They
// are in the run's namespace.
type ConnectivityChecks struct {
	// Write enables writing of the objects.
	Write bool `json:"write"`
	// InstallCRD allows setup to create their CustomResourceDefinition if the
	// cluster has none. If it is false and the CRD is missing, no objects are written.
	InstallCRD bool `json:"installCRD"`
	// Retention is how long the object of a pair is kept after its last result, once
	// the pair is no longer expected.
	Retention Duration `json:"retention"`
	// StaleAfter is the age of the last result at which the object's condition
	// Reachable becomes Unknown.
	StaleAfter Duration `json:"staleAfter"`
}
