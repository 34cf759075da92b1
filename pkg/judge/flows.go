// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"slices"
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

// silent are the source ports of an answered pair that may be dead: none of at least minFlow measurements was answered.
type silent struct {
	flows []checkup.Flow
	// chances are the probabilities that each of them is silent if all ports lose alike: as much as the others lost, with
	// one more loss for what so few measurements cannot show, or as much as the limit allows if that is more. They are
	// multiplied by the number of ports, because each port is a test.
	chances []float64
	// others are the ports that were answered, with their measurements.
	others, sent, received int
}

// silentFlows finds the silent ports of a measured pair.
func (j *Judgement) silentFlows(o *Outcome) silent {
	var s silent
	for _, f := range o.Flows {
		switch {
		case f.Received > 0:
			s.others++
			s.sent, s.received = s.sent+f.Sent, s.received+f.Received
		case f.Sent >= minFlow:
			s.flows = append(s.flows, f)
		}
	}
	expect := j.Worksheet.ExpectOf(o.Pair)
	if s.others == 0 || expect.Unreachable {
		return silent{}
	}
	loss := usualLoss
	if limit := expect.Loss.Max; limit != nil {
		loss = float64(*limit) / 100
	}
	loss = max(loss, float64(s.sent-s.received+1)/float64(s.sent+2))
	for _, f := range s.flows {
		s.chances = append(s.chances, stats.AtLeast(f.Sent, f.Sent, loss)*float64(len(s.flows)+s.others))
	}
	return s
}

// deadFlow is the chance up to which a silent port is dead, in a look that makes each test at this level. That is the
// level for a port alone. But a dead path shows in many pairs, of which a few measurements from one port prove nothing
// alone. So it is higher if at most a twentieth of so many pairs have a silent port by chance (the false discovery
// rate: Benjamini and Hochberg, 1995), and so many would have one, anywhere, at most with the probability of the level.
func (j *Judgement) deadFlow(level float64) float64 {
	tests := 0
	var chances []float64 // of each pair with silent ports, the lowest
	for i := range j.Outcomes {
		o := &j.Outcomes[i]
		tests += flowTests(o)
		if s := j.silentFlows(o); len(s.chances) > 0 {
			chances = append(chances, slices.Min(s.chances))
		}
	}
	slices.Sort(chances)
	for i, chance := range slices.Backward(chances) {
		if pairs := i + 1; chance <= Doubt*float64(pairs)/float64(tests) &&
			stats.AtLeast(pairs, tests, chance)*float64(len(chances)) <= level {
			return max(chance, level)
		}
	}
	return level
}

// deadFlows sets the dead ports of an outcome, and returns the limit that the pair then breaks, or may break. A dead
// flow is no loss of a quarter: each packet of a port takes the same one of several parallel paths (RFC 2992).
func (j *Judgement) deadFlows(seen *checkup.Observation, o *Outcome) (failed, doubted []broken) {
	s := j.silentFlows(o)
	var doubtful []checkup.Flow
	for i, f := range s.flows {
		switch {
		case s.chances[i] <= j.dead:
			o.Dead = append(o.Dead, f)
		case s.chances[i] <= Doubt:
			doubtful = append(doubtful, f)
		}
	}
	others := fmt.Sprintf("%d of %d from %s", s.received, s.sent, checkup.Count(s.others, "other port"))
	if len(o.Dead) > 0 {
		failed = append(failed, unansweredPorts(seen, o.Dead, others))
	}
	if len(doubtful) > 0 {
		doubted = append(doubted, unansweredPorts(seen, doubtful, others+": too few measurements to decide"))
	}
	return failed, doubted
}

// unansweredPorts is the limit that these flows of an observation break, or may break. others says how the others
// differ.
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
