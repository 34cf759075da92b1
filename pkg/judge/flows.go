// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/stats"
)

const (
	// minFlow is the fewest measurements from one source port by which it can be dead.
	minFlow = 3
	// usualLoss is the loss that a network may have if the plan has no limit.
	usualLoss = 0.01
)

// deadFlows tests the source ports of an answered pair that are never answered. It sets the dead ones in the outcome, and
// returns the limit that the pair then breaks, or may break.
//
// A dead flow is no loss of a quarter: each packet of a port takes the same one of several parallel paths (RFC 2992). The
// test is whether a port without answers is likely if all ports lose alike: as much as the answered ports lost, with one
// more loss for what so few measurements cannot show, or as much as the limit allows if that is more. Each port is a test
// of its own, and the pair is one test of the level.
func deadFlows(seen *checkup.Observation, o *Outcome, expect checkup.Expect, level float64) (failed, doubted []broken) {
	var silent []checkup.Flow
	answered, sent, received := 0, 0, 0 // of the others
	for _, f := range seen.Flows {
		switch {
		case f.Received > 0:
			answered++
			sent, received = sent+f.Sent, received+f.Received
		case f.Sent >= minFlow:
			silent = append(silent, f)
		}
	}
	if answered == 0 {
		return nil, nil
	}
	p := float64(sent-received+1) / float64(sent+2)
	if limit := expect.Loss.Max; limit != nil {
		p = max(p, float64(*limit)/100)
	} else {
		p = max(p, usualLoss)
	}
	var doubtful []checkup.Flow
	for _, f := range silent {
		switch probability := stats.AtLeast(f.Sent, f.Sent, p) * float64(len(silent)+answered); {
		case probability <= level:
			o.Dead = append(o.Dead, f)
		case probability <= Doubt:
			doubtful = append(doubtful, f)
		}
	}
	others := fmt.Sprintf("%d of %d from %s", received, sent, checkup.Count(answered, "other port"))
	if len(o.Dead) > 0 {
		failed = append(failed, unansweredPorts(seen, o.Dead, others))
	}
	if len(doubtful) > 0 {
		doubted = append(doubted, unansweredPorts(seen, doubtful, others+": too few measurements to decide"))
	}
	return failed, doubted
}

// unansweredPorts is the limit that these flows of an observation break, or may break. others says how the others differ.
func unansweredPorts(seen *checkup.Observation, flows []checkup.Flow, others string) broken {
	const most = 4
	why, sent := unanswered(seen), 0
	var ports []string
	for i, f := range flows {
		sent += f.Sent
		if i < most {
			ports = append(ports, fmt.Sprint(f.Port))
		}
	}
	list := "port " + ports[0]
	if len(flows) > 1 {
		list = "ports " + strings.Join(ports, ", ")
	}
	if n := len(flows) - len(ports); n > 0 {
		list += fmt.Sprintf(" and %d more", n)
	}
	return broken{
		checkup.Breach{Limit: checkup.LimitFlow, Measured: float64(len(flows)), Measure: checkup.MeasureCount, Cause: &why},
		FlowLost, why.Stage,
		fmt.Sprintf("0 of %d from source %s answered, %s; last: %s", sent, list, others, why.Message),
	}
}

// Living are the numbers of the measurements that are not of dead flows.
func (o *Outcome) Living() (sent, received int) {
	sent = o.Sent
	for _, f := range o.Dead {
		sent -= f.Sent
	}
	return sent, o.Received
}

// flowTests is 1 for an outcome whose flows are tested if they are listed, otherwise 0. It must not depend on whether
// something was lost, as the list does.
func flowTests(o *Outcome) int {
	if o.Pair.Transport == checkup.UDP && o.Sent >= 2*minFlow {
		return 1
	}
	for _, f := range o.Flows {
		if f.Sent >= minFlow {
			return 1
		}
	}
	return 0
}

// wrongFlows says why the flows of an observation, of so many measurements ordered, contradict each other or the other
// numbers; empty if they do not.
func wrongFlows(seen *checkup.Observation, ordered int) string {
	if len(seen.Flows) == 0 {
		return ""
	}
	if len(seen.Flows) > min(ordered, checkup.MaxFlows) {
		return fmt.Sprintf("%d source ports, of %d measurements ordered", len(seen.Flows), ordered)
	}
	ports, sent, received := map[int]bool{}, 0, 0
	for _, f := range seen.Flows {
		made := f.Sent > 0 || f.Unmeasured != nil
		if f.Port < 1 || f.Port > 65535 || ports[f.Port] || !made || f.Sent < 0 || f.Received < 0 || f.Received > f.Sent ||
			f.Sent > ordered {
			return fmt.Sprintf("source port %d with %d sent and %d received", f.Port, f.Sent, f.Received)
		}
		ports[f.Port] = true
		sent, received = sent+f.Sent, received+f.Received
	}
	if sent != seen.Sent || received != seen.Received {
		return fmt.Sprintf("%d sent and %d received, but %d and %d by source port", seen.Sent, seen.Received, sent, received)
	}
	return ""
}

// unused says why an agent could not use a source port that it must use; nil if it used all.
func unused(seen *checkup.Observation) *checkup.Cause {
	for _, f := range seen.Flows {
		if f.Unmeasured != nil {
			return &checkup.Cause{
				Stage: f.Unmeasured.Stage, Message: fmt.Sprintf("source port %d was not used: %s", f.Port, f.Unmeasured.Message),
			}
		}
	}
	return nil
}
