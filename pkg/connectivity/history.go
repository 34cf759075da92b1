// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/openshift/api/operatorcontrolplane/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// How much history an object holds: as much as with OpenShift's operators.
const (
	maxLog        = 10 // successes, and failures
	maxOutages    = 20
	maxOutageLogs = 5 // startLogs, and endLogs
	// maxRecent is the maximum number of results that are held back. Every write folds them again.
	maxRecent = 128
	// maxCause is the maximum length of a failure's message in bytes. An object holds up to 220 of them and must not
	// exceed 1.5 MiB (etcd's limit).
	maxCause = 1 << 10
)

// Reasons in addition to those of the API. The first is the one that OpenShift's operators set in the condition; the
// next three are of stages that they do not check; the last three are of the condition Unknown, which they never set.
const (
	ReasonTCPConnectSuccess  = "TCPConnectSuccess"
	ReasonTLSHandshakeError  = "TLSHandshakeError"
	ReasonHTTPResponseError  = "HTTPResponseError"
	ReasonConnectionError    = "ConnectionError"    // a stage that this version does not know
	ReasonNoRecentResult     = "NoRecentResult"     // the last result is too old
	ReasonSourceNotReporting = "SourceNotReporting" // the source's agent did not start, or was lost
	ReasonNotMeasured        = "NotMeasured"        // the source reported that it could not measure
)

// entries returns the log entries of a result: the passed stages for which the API has a reason, and the failed one.
// The time of an entry is the start of its stage; that of the first entry is the result's.
func (id identity) entries(r checkup.Result) []v1alpha1.LogEntry {
	var entries []v1alpha1.LogEntry
	at := r.At
	passed := func(reason, message string, micros int64) {
		delay := time.Duration(micros) * time.Microsecond
		entries = append(entries, v1alpha1.LogEntry{
			Start: metav1.NewTime(at), Success: true, Reason: reason,
			Message: id.label + ": " + message, Latency: metav1.Duration{Duration: delay},
		})
		at = at.Add(delay)
	}
	if r.Delays.Resolve > 0 {
		passed(
			v1alpha1.LogEntryReasonDNSResolve,
			fmt.Sprintf("resolved host name %s successfully", id.host),
			r.Delays.Resolve,
		)
	}
	// A successful connect took at least a microsecond.
	if r.Delays.Connect > 0 || r.Failure == nil {
		passed(
			v1alpha1.LogEntryReasonTCPConnect,
			fmt.Sprintf("tcp connection to %s succeeded", id.endpoint),
			r.Delays.Connect,
		)
	}
	if r.Failure == nil {
		return entries
	}
	at = at.Add(time.Duration(r.Delays.Handshake) * time.Microsecond)
	reason, message := id.failure(*r.Failure)
	return append(
		entries,
		v1alpha1.LogEntry{Start: metav1.NewTime(at), Reason: reason, Message: id.label + ": " + message},
	)
}

// failure returns reason and message of a failed stage.
func (id identity) failure(c checkup.Cause) (reason, message string) {
	if len(c.Message) > maxCause {
		c.Message = strings.ToValidUTF8(c.Message[:maxCause], "") + "..."
	}
	switch c.Stage {
	case checkup.StageResolve:
		return v1alpha1.LogEntryReasonDNSError, fmt.Sprintf("failure looking up host %s: %s", id.host, c.Message)
	case checkup.StageConnect:
		return v1alpha1.LogEntryReasonTCPConnectError, fmt.Sprintf(
			"failed to establish a TCP connection to %s: %s",
			id.endpoint,
			c.Message,
		)
	case checkup.StageHandshake:
		return ReasonTLSHandshakeError, fmt.Sprintf("failed to complete a TLS handshake with %s: %s", id.endpoint, c.Message)
	case checkup.StageResponse:
		return ReasonHTTPResponseError, fmt.Sprintf("failed to get an HTTP response from %s: %s", id.endpoint, c.Message)
	}
	return ReasonConnectionError, fmt.Sprintf("failed to use a connection to %s: %s", id.endpoint, c)
}

// fold adds the next result of a pair to its status. Results come in the order of their measurement; unmeasured ones
// are skipped.
func (id identity) fold(s *v1alpha1.PodNetworkConnectivityCheckStatus, r checkup.Result) {
	if r.Unmeasured != nil {
		return
	}
	entries := id.entries(r)
	for _, e := range entries {
		if e.Success {
			s.Successes = insert(s.Successes, e)
		} else {
			s.Failures = insert(s.Failures, e)
		}
	}
	last := entries[len(entries)-1]
	if r.Failure != nil {
		s.Outages = outageGoesOn(s.Outages, r.At, last)
		setReachable(s, metav1.ConditionFalse, last.Reason, last.Message, r.At)
	} else {
		s.Outages = outageEnds(s.Outages, r.At, last)
		setReachable(s, metav1.ConditionTrue, ReasonTCPConnectSuccess, last.Message, r.At)
	}
}

// history is the status of a pair's object, with the newest results held back: a late result can still be inserted in
// order.
type history struct {
	id      identity
	settled v1alpha1.PodNetworkConnectivityCheckStatus // without recent
	recent  []checkup.Result                           // in order
}

// add adds a result. A result that is late by up to hold is inserted in order. An even older one means that a clock was
// set back: it is appended as the newest. A result with a known time is a duplicate: it is ignored, and taken is false.
func (h *history) add(r checkup.Result, hold time.Duration) (taken bool) {
	if n := len(h.recent); n > 0 && r.At.Before(h.recent[n-1].At.Add(-hold)) {
		h.settle(n)
	}
	i, known := slices.BinarySearchFunc(
		h.recent,
		r.At,
		func(r checkup.Result, at time.Time) int { return r.At.Compare(at) },
	)
	if known {
		return false
	}
	h.recent = slices.Insert(h.recent, i, r)
	from := h.recent[len(h.recent)-1].At.Add(-hold)
	old := max(0, len(h.recent)-maxRecent)
	for h.recent[old].At.Before(from) {
		old++
	}
	h.settle(old)
	return true
}

// settle folds the oldest n recent results permanently.
func (h *history) settle(n int) {
	for _, r := range h.recent[:n] {
		h.id.fold(&h.settled, r)
	}
	h.recent = slices.Delete(h.recent, 0, n)
}

// status returns the status of the object. It shares no data that changes later.
func (h *history) status() *v1alpha1.PodNetworkConnectivityCheckStatus {
	s := h.settled // fold changes no list in place
	for _, r := range h.recent {
		h.id.fold(&s, r)
	}
	return &s
}

// unknown sets the condition Reachable to Unknown.
func (h *history) unknown(reason, message string, at time.Time) {
	h.settle(len(h.recent))
	setReachable(&h.settled, metav1.ConditionUnknown, reason, h.id.label+": "+message, at)
}

// insert adds an entry to a log, newest first, and limits the log's length. It does not change the given list.
func insert(log []v1alpha1.LogEntry, e v1alpha1.LogEntry) []v1alpha1.LogEntry {
	i := 0
	for i < len(log) && log[i].Start.After(e.Start.Time) {
		i++
	}
	if i >= maxLog {
		return log
	}
	log = slices.Insert(slices.Clip(log), i, e)
	return log[:min(len(log), maxLog)]
}

// outageGoesOn starts an outage, or adds a failure to the open one. One failure is enough.
func outageGoesOn(outages []v1alpha1.OutageEntry, at time.Time, failure v1alpha1.LogEntry) []v1alpha1.OutageEntry {
	if len(outages) == 0 || !outages[0].End.IsZero() {
		outages = slices.Insert(slices.Clip(outages), 0, v1alpha1.OutageEntry{
			Start:     metav1.NewTime(at),
			StartLogs: []v1alpha1.LogEntry{failure},
			EndLogs:   []v1alpha1.LogEntry{failure},
			Message:   "Connectivity outage detected at " + at.UTC().Format(time.RFC3339Nano),
		})
		return outages[:min(len(outages), maxOutages)]
	}
	outages = slices.Clone(outages)
	o := &outages[0]
	if len(o.StartLogs) == 0 || len(o.StartLogs) < maxOutageLogs && o.StartLogs[0].Message != failure.Message {
		o.StartLogs = slices.Insert(slices.Clip(o.StartLogs), 0, failure)
	}
	o.EndLogs = slices.Insert(slices.Clip(o.EndLogs), 0, failure)
	o.EndLogs = o.EndLogs[:min(len(o.EndLogs), maxOutageLogs)]
	return outages
}

// outageEnds ends the open outage, if there is one.
func outageEnds(outages []v1alpha1.OutageEntry, at time.Time, success v1alpha1.LogEntry) []v1alpha1.OutageEntry {
	if len(outages) == 0 || !outages[0].End.IsZero() {
		return outages
	}
	outages = slices.Clone(outages)
	o := &outages[0]
	if at.Before(o.Start.Time) { // the source's clock was set back
		at = o.Start.Time
	}
	o.End = metav1.NewTime(at)
	o.EndLogs = slices.Insert(slices.Clip(o.EndLogs), 0, success)
	o.EndLogs = o.EndLogs[:min(len(o.EndLogs), maxOutageLogs)]
	o.Message = restored(o)
	return outages
}

// restored returns the message of the end of an outage.
func restored(o *v1alpha1.OutageEntry) string {
	return fmt.Sprintf("Connectivity restored after %v", o.End.Sub(o.Start.Time))
}

// setReachable sets the condition Reachable. Its transition time changes only with its status, and never backwards.
func setReachable(
	s *v1alpha1.PodNetworkConnectivityCheckStatus,
	status metav1.ConditionStatus,
	reason, message string,
	at time.Time,
) {
	c := v1alpha1.PodNetworkConnectivityCheckCondition{
		Type: v1alpha1.Reachable, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(at),
	}
	s.Conditions = slices.Clone(s.Conditions)
	for i, old := range s.Conditions {
		if old.Type != v1alpha1.Reachable {
			continue
		}
		if old.Status == status || old.LastTransitionTime.After(at) {
			c.LastTransitionTime = old.LastTransitionTime
		}
		s.Conditions[i] = c
		return
	}
	s.Conditions = append(s.Conditions, c)
}

// reachable returns the condition Reachable; the zero value if it is not set.
func reachable(s *v1alpha1.PodNetworkConnectivityCheckStatus) v1alpha1.PodNetworkConnectivityCheckCondition {
	for _, c := range s.Conditions {
		if c.Type == v1alpha1.Reachable {
			return c
		}
	}
	return v1alpha1.PodNetworkConnectivityCheckCondition{}
}

// upTo moves the times in a status that are later than now to now. A clock that was ahead wrote them; nothing would
// ever be newer.
func upTo(now time.Time, s *v1alpha1.PodNetworkConnectivityCheckStatus) {
	limit := func(t *metav1.Time) {
		if t.After(now) {
			*t = metav1.NewTime(now)
		}
	}
	logs := func(log []v1alpha1.LogEntry) {
		for i := range log {
			limit(&log[i].Start)
		}
	}
	logs(s.Successes)
	logs(s.Failures)
	for i := range s.Outages {
		o := &s.Outages[i]
		limit(&o.Start)
		limit(&o.End)
		logs(o.StartLogs)
		logs(o.EndLogs)
	}
	for i := range s.Conditions {
		limit(&s.Conditions[i].LastTransitionTime)
	}
}

// newest returns the time of the newest log entry; zero without entries.
func newest(s *v1alpha1.PodNetworkConnectivityCheckStatus) time.Time {
	var t time.Time
	for _, log := range [][]v1alpha1.LogEntry{s.Successes, s.Failures} {
		for _, e := range log {
			if e.Start.After(t) {
				t = e.Start.Time
			}
		}
	}
	return t
}

// begun returns the time of the newest result in the logs. Entries of later stages are ignored, because they start
// later than their result.
func begun(s *v1alpha1.PodNetworkConnectivityCheckStatus) time.Time {
	var lookup, connect time.Time
	for _, log := range [][]v1alpha1.LogEntry{s.Successes, s.Failures} {
		for _, e := range log {
			switch e.Reason {
			case v1alpha1.LogEntryReasonDNSResolve, v1alpha1.LogEntryReasonDNSError:
				if e.Start.After(lookup) {
					lookup = e.Start.Time
				}
			case v1alpha1.LogEntryReasonTCPConnect, v1alpha1.LogEntryReasonTCPConnectError:
				if e.Start.After(connect) {
					connect = e.Start.Time
				}
			}
		}
	}
	if !lookup.IsZero() {
		return lookup
	}
	return connect
}
