// SPDX-License-Identifier: Apache-2.0

package servicecheck

import (
	"cmp"
	"fmt"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/kind"
)

// Probe is how a pair is measured: by connecting and closing. No data is sent.
type Probe struct {
	Count    int              `json:"count"`
	Interval checkup.Duration `json:"interval"`
	Timeout  checkup.Duration `json:"timeout"`
}

// Durations reports invalid durations in the fields probe, expect.latency, limits and timeouts of a check.
func Durations(
	p Probe, latency checkup.LatencyLimits, limits checkup.Limits, timeouts checkup.Timeouts, report kind.Reporter,
) {
	kind.Duration(p.Interval, 1, report, "probe", "interval")
	kind.Duration(p.Timeout, 1, report, "probe", "timeout")
	kind.LatencyDurations(latency, report)
	kind.Duration(limits.StartJitter, 0, report, "limits", "startJitter")
	kind.Timeouts(timeouts, report)
}

// ProbeTimeout compares the timeout with the time that one pair takes if its last connection is not answered.
func ProbeTimeout(p Probe, timeouts checkup.Timeouts, report kind.Reporter) {
	if timeouts.Probe <= 0 || p.Count < 1 || p.Interval <= 0 || p.Interval > checkup.MaxTimeout ||
		p.Timeout <= 0 || p.Timeout > checkup.MaxTimeout {
		return
	}
	need := checkup.Duration(min(p.Count, checkup.MaxCount)-1)*p.Interval + p.Timeout
	if have := timeouts.Probe / 4 * 3; need > have {
		report([]string{"timeouts", "probe"}, "agents have three quarters of it, %s: less than the %s that a pair takes "+
			"if its last connection is not answered", have, need)
	}
}

// Expectation is what a connection from a node to an address has to do.
type Expectation byte

const (
	Works   Expectation = 'w' // connects
	Refused Expectation = 'r' // is refused at once: the Service has no usable endpoint
	Dropped Expectation = 'd' // is not answered: a policy wants an endpoint on this node, and only others have one
)

// Closed is how a connection must fail.
type Closed string

const (
	ClosedExact Closed = "Exact" // refused or dropped, as kube-proxy does it
	ClosedAny   Closed = "Any"   // in any way
)

// synAgain is after how long Linux sends a SYN again (TCP_TIMEOUT_INIT, RFC 6298). A refusal of the first one may be
// lost: if the agent's own node refuses, its ICMP error arrives while connect still holds the lock of the socket, and
// the kernel drops it (TcpExtLockDroppedIcmps).
const synAgain = checkup.Duration(time.Second)

// MustNotConnect judges a measured pair that must not connect.
func MustNotConnect(w *checkup.Worksheet, o *judge.Outcome, e Expectation, how Closed) {
	seen, ordered := o.Cause, w.Measurements(o.Pair)
	probe, _ := w.Probe(o.Pair.Transport)
	o.Verdict, o.Cause, o.Breaches, o.Failure, o.Dead = checkup.Pass, checkup.Cause{}, nil, 0, nil
	fail := func(failure judge.Failure, reason checkup.Reason, format string, args ...any) {
		o.Verdict, o.Failure = checkup.Fail, failure
		o.Cause = checkup.Cause{Stage: checkup.StageConnect, Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	must, otherwise := "must be refused, because the Service has no endpoint", seen.Reason != checkup.ReasonRefused
	if e == Dropped {
		must = "must be dropped, because the Service has no endpoint on this node"
		otherwise = seen.Reason != checkup.ReasonTimedOut
	}
	switch {
	case o.Received > 0:
		fail(judge.Reached, checkup.ReasonReached, "%s, but %d of %d connected", must, o.Received, o.Sent)
		o.Breaches = []checkup.Breach{{
			Limit: checkup.LimitUnreachable, Measured: float64(o.Received), Measure: checkup.MeasureCount,
		}}
	case o.Sent < ordered:
		o.Verdict = checkup.Unmeasured
		o.Cause = checkup.Cause{Stage: checkup.StageCollect, Message: fmt.Sprintf(
			"only %d of %d measurements were made: too few to pass", o.Sent, ordered)}
	case how == ClosedExact && e == Refused && seen.Reason == checkup.ReasonTimedOut && probe.Timeout <= synAgain:
		o.Verdict = checkup.Unmeasured
		o.Cause = checkup.Cause{Stage: checkup.StageConnect, Reason: seen.Reason, Message: fmt.Sprintf(
			"timed out after %s: too soon to see a refusal, which may come only after the second SYN, at %s: raise probe.timeout",
			probe.Timeout, synAgain)}
	case how == ClosedExact && otherwise:
		fail(judge.Lost, seen.Reason, "%s, but %s", must, cmp.Or(seen.Message, "another error"))
	}
}
