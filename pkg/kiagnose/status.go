// SPDX-License-Identifier: Apache-2.0

package kiagnose

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Keys of a checkup's ConfigMap with its outcome.
const (
	StatusPrefix           = "status."
	KeySucceeded           = "status.succeeded"
	KeyFailureReason       = "status.failureReason"
	KeyStartTimestamp      = "status.startTimestamp"
	KeyCompletionTimestamp = "status.completionTimestamp"

	KeyMinLatency = "status.result.minLatencyNanoSec"
	KeyAvgLatency = "status.result.avgLatencyNanoSec"
	KeyMaxLatency = "status.result.maxLatencyNanoSec"
	KeySourceNode = "status.result.sourceNode"
	KeyTargetNode = "status.result.targetNode"
	// KeyDuration as kiagnose writes it, KeyDurations as its document spells it:
	// both are written.
	KeyDuration  = "status.result.measurementDurationSec"
	KeyDurations = "status.results.measurementDurationSec"

	// Keys that kiagnose does not have.
	KeySent          = "status.result.packetsSent"
	KeyReceived      = "status.result.packetsReceived"
	KeyLoss          = "status.result.packetLossPercent"
	KeyDuplicates    = "status.result.duplicatePackets"
	KeyP50Latency    = "status.result.p50LatencyNanoSec"
	KeyP90Latency    = "status.result.p90LatencyNanoSec"
	KeyP95Latency    = "status.result.p95LatencyNanoSec"
	KeyP99Latency    = "status.result.p99LatencyNanoSec"
	KeyStdDevLatency = "status.result.stdDevLatencyNanoSec"
)

// StatusKeys lists every status key.
var StatusKeys = []string{
	KeySucceeded, KeyFailureReason, KeyStartTimestamp, KeyCompletionTimestamp,
	KeyMinLatency, KeyAvgLatency, KeyMaxLatency, KeyDuration, KeyDurations, KeySourceNode, KeyTargetNode,
	KeySent, KeyReceived, KeyLoss, KeyDuplicates,
	KeyP50Latency, KeyP90Latency, KeyP95Latency, KeyP99Latency, KeyStdDevLatency,
}

// Outcome is how a check ended.
type Outcome struct {
	Report checkup.CheckReport
	// Started is zero if it is unknown.
	Started, Finished time.Time
	// Teardown is the error of removing the VMs; empty if they were removed.
	Teardown string
}

// Status returns the status keys of the outcome. What was not measured has no key. Numbers
// are over all pairs of VMs and families that were measured: the lowest minimum, the mean
// of all answers, and the highest value of every other statistic.
func (o Outcome) Status() map[string]string {
	reasons := o.reasons()
	status := map[string]string{
		KeySucceeded:           strconv.FormatBool(len(reasons) == 0),
		KeyFailureReason:       strings.Join(reasons, ","),
		KeyCompletionTimestamp: timestamp(o.Finished),
	}
	if !o.Started.IsZero() {
		status[KeyStartTimestamp] = timestamp(o.Started)
	}
	var sources, targets []string
	for i := range o.Report.Units {
		if u := &o.Report.Units[i]; isForward(u) {
			sources = add(sources, u.Labels[checkup.UnitSourceNode])
			targets = add(targets, u.Labels[checkup.UnitTargetNode])
		}
	}
	if len(sources) > 0 {
		status[KeySourceNode] = strings.Join(sources, ",")
	}
	if len(targets) > 0 {
		status[KeyTargetNode] = strings.Join(targets, ",")
	}
	o.numbers(status)
	return status
}

// isForward reports whether a unit is from the first to the second VM of a pair.
func isForward(u *checkup.Unit) bool { return u.Labels[checkup.UnitWay] == checkup.WayThere }

func timestamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func add(list []string, s string) []string {
	if s == "" || slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

// numbers adds the keys of what was measured.
func (o Outcome) numbers(status map[string]string) {
	var sent, received, duplicates int64
	var micros float64     // the longest measurement
	var all *checkup.Delay // Mean is the sum over all answers
	for i := range o.Report.Units {
		u := &o.Report.Units[i]
		if !isForward(u) || u.Verdict == checkup.Unmeasured || u.Sent == 0 {
			continue
		}
		sent += int64(u.Sent)
		received += int64(u.Received)
		duplicates += int64(u.Duplicates)
		for _, v := range u.Values {
			if v.Name == checkup.UnitDuration {
				micros = max(micros, v.Value)
			}
		}
		d := u.Delay
		if d == nil {
			continue
		}
		if all == nil {
			all = &checkup.Delay{Min: d.Min}
		}
		all.Mean += d.Mean * int64(u.Received)
		all.Min = min(all.Min, d.Min)
		all.P50, all.P90 = max(all.P50, d.P50), max(all.P90, d.P90)
		all.P95, all.P99 = max(all.P95, d.P95), max(all.P99, d.P99)
		all.Max, all.StdDev = max(all.Max, d.Max), max(all.StdDev, d.StdDev)
	}
	number := func(key string, n int64) { status[key] = strconv.FormatInt(n, 10) }
	if sent > 0 {
		number(KeySent, sent)
		number(KeyReceived, received)
		number(KeyDuplicates, duplicates)
		status[KeyLoss] = strconv.FormatFloat(100*float64(sent-received)/float64(sent), 'f', -1, 64)
		// Whole seconds, as kiagnose writes them.
		seconds := max(1, int64(math.Round(micros/1e6)))
		number(KeyDuration, seconds)
		number(KeyDurations, seconds)
	}
	if all != nil && received > 0 {
		for _, row := range []struct {
			key    string
			micros int64
		}{
			{KeyMinLatency, all.Min}, {KeyMaxLatency, all.Max}, {KeyStdDevLatency, all.StdDev},
			{KeyP50Latency, all.P50}, {KeyP90Latency, all.P90}, {KeyP95Latency, all.P95}, {KeyP99Latency, all.P99},
		} {
			number(row.key, row.micros*int64(time.Microsecond))
		}
		number(KeyAvgLatency, all.Mean*int64(time.Microsecond)/received)
	}
}

// reasons returns why the checkup did not succeed; none if it did. Each begins with the
// part of the checkup: setup, run or teardown.
func (o Outcome) reasons() []string {
	var reasons []string
	unmeasured := slices.ContainsFunc(o.Report.Units, func(u checkup.Unit) bool { return u.Verdict == checkup.Unmeasured })
	if o.Report.Verdict != checkup.RunPass || unmeasured { // a gate may let a run pass that did not measure all
		if o.Report.Cause != nil {
			reasons = add(reasons, part(o.Report.Cause.Stage)+checkup.OneLine(o.Report.Cause.Message))
		}
		pairs := pairsOf(o.Report.Units)
		for _, p := range pairs {
			for _, reason := range p.reasons(len(pairs) > 1) {
				reasons = add(reasons, reason)
			}
		}
		if len(reasons) == 0 && o.Report.Verdict == checkup.RunFail { // then a regression fails it
			for _, f := range o.Report.Findings {
				if f.Change != nil {
					reasons = add(reasons, "run: "+checkup.OneLine(f.Message))
				}
			}
		}
		if len(reasons) == 0 {
			reasons = append(reasons, fmt.Sprintf("run: the verdict is %s", cmp.Or(o.Report.Verdict, "unknown")))
		}
	}
	if o.Teardown != "" {
		reasons = append(reasons, "teardown: "+checkup.OneLine(o.Teardown))
	}
	return reasons
}

// pair is the units of two VMs on one network.
type pair struct {
	source, target, network string
	families                []checkup.IPFamily
	units                   []*checkup.Unit
}

// pairsOf returns the pairs of VMs of units, in their order.
func pairsOf(units []checkup.Unit) []*pair {
	var pairs []*pair
	for i := range units {
		u := &units[i]
		source, target, network := u.Source, u.Target, u.Labels[checkup.UnitNetwork]
		if u.Labels[checkup.UnitWay] == checkup.WayBack {
			source, target = target, source
		}
		k := slices.IndexFunc(pairs, func(p *pair) bool {
			return p.source == source && p.target == target && p.network == network
		})
		if k < 0 {
			k, pairs = len(pairs), append(pairs, &pair{source: source, target: target, network: network})
		}
		p := pairs[k]
		p.units = append(p.units, u)
		if !slices.Contains(p.families, u.Family) {
			p.families = append(p.families, u.Family)
		}
	}
	return pairs
}

// reasons returns why units of one pair of VMs did not pass, each reason once. It has its
// families unless those are all of the pair, and the VMs if there are several pairs.
func (p *pair) reasons(several bool) []string {
	type reason struct {
		text     string
		families []checkup.IPFamily
	}
	var found []reason
	causes := map[checkup.IPFamily]*checkup.Cause{} // from source to target
	for _, u := range p.units {
		if u.Verdict == checkup.Pass || u.Cause == nil {
			continue
		}
		text := phrase(u)
		if u.Labels[checkup.UnitWay] != checkup.WayBack {
			causes[u.Family] = u.Cause
		} else {
			// A cause of both directions is one reason.
			if first := causes[u.Family]; first != nil && *first == *u.Cause {
				continue
			}
			text += " (from target to source)"
		}
		i := slices.IndexFunc(found, func(r reason) bool { return r.text == text })
		if i < 0 {
			found, i = append(found, reason{text: text}), len(found)
		}
		if !slices.Contains(found[i].families, u.Family) {
			found[i].families = append(found[i].families, u.Family)
		}
	}
	lines := make([]string, len(found))
	for i, r := range found {
		lines[i] = r.text
		if len(r.families) < len(p.families) {
			words := make([]string, len(r.families))
			for j, f := range r.families {
				words[j] = string(f)
			}
			lines[i] += " over " + strings.Join(words, " and ")
		}
		if several {
			lines[i] += fmt.Sprintf(" (%s to %s)", p.source, p.target)
		}
	}
	return lines
}

// phrase is why a unit did not pass, after the part of the checkup that failed.
func phrase(u *checkup.Unit) string {
	var broken []string
	for _, b := range u.Breaches {
		broken = append(broken, words(u, b))
	}
	return part(u.Cause.Stage) + checkup.OneLine(cmp.Or(strings.Join(broken, "; "), u.Cause.Message))
}

// words describes a broken limit in the words of kiagnose's VM latency checkup, if it has
// that limit.
func words(u *checkup.Unit, b checkup.Breach) string {
	last := ""
	if b.Cause != nil {
		last = b.Cause.Message
	}
	delay := func(us float64) string { return time.Duration(math.Round(us * float64(time.Microsecond))).String() }
	limit := checkup.Duration(math.Round(b.Max * float64(time.Microsecond)))
	switch b.Limit {
	case checkup.LimitAnswer:
		return fmt.Sprintf("no connectivity - 100%% packet loss (%s)", last)
	case checkup.LimitLoss:
		return fmt.Sprintf("%d of %d lost (%s), limit %s; last: %s",
			u.Sent-u.Received, u.Sent, checkup.Percent(b.Measured), checkup.Percent(b.Max), last)
	case checkup.LimitJitter:
		return fmt.Sprintf("actual jitter %q is greater than desired %q", delay(b.Measured), limit)
	case checkup.LimitP50, checkup.LimitP90, checkup.LimitP95, checkup.LimitP99, checkup.LimitMax:
		return fmt.Sprintf("actual %s latency %q is greater than desired %q", b.Limit, delay(b.Measured), limit)
	}
	return u.Cause.Message // VMs have no other limit
}

// part is the part of the checkup that a stage belongs to, as the prefix of a reason.
func part(s checkup.Stage) string {
	switch s {
	case checkup.StageSetup, checkup.StageSchedule, checkup.StageStart:
		return "setup: "
	}
	return "run: "
}
