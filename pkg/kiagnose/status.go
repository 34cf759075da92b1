// SPDX-License-Identifier: Apache-2.0

package kiagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Keys of a checkup's ConfigMap by which it tells its outcome.
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

	// Beyond kiagnose's.
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
	KeySent, KeyReceived, KeyLoss, KeyDuplicates, KeyP50Latency, KeyP90Latency, KeyP95Latency, KeyP99Latency, KeyStdDevLatency,
}

// Outcome is what became of a check.
type Outcome struct {
	Report checkup.CheckReport
	// Started is zero where nobody knows.
	Started, Finished time.Time
	// Teardown says what went wrong when the VMs were removed; empty: nothing.
	Teardown string
}

// Status are the status keys of the outcome. What was not measured has no key.
// Numbers are over all pairs of VMs and families that were measured: the lowest
// minimum, the mean of all answers, the highest of everything else.
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
	for _, vm := range o.Report.VMs {
		sources, targets = add(sources, vm.SourceNode), add(targets, vm.TargetNode)
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
	var duration checkup.Duration
	var all *checkup.Delay // Mean is the sum over all answers
	for _, vm := range o.Report.VMs {
		for _, f := range vm.Families {
			if f.Verdict == checkup.Unmeasured || f.Sent == 0 {
				continue
			}
			sent, received, duplicates = sent+int64(f.Sent), received+int64(f.Received), duplicates+int64(f.Duplicates)
			duration = max(duration, f.Duration)
			d := f.Delay
			if d == nil {
				continue
			}
			if all == nil {
				all = &checkup.Delay{Min: d.Min}
			}
			all.Mean += d.Mean * int64(f.Received)
			all.Min = min(all.Min, d.Min)
			all.P50, all.P90, all.P95, all.P99 = max(all.P50, d.P50), max(all.P90, d.P90), max(all.P95, d.P95), max(all.P99, d.P99)
			all.Max, all.StdDev = max(all.Max, d.Max), max(all.StdDev, d.StdDev)
		}
	}
	number := func(key string, n int64) { status[key] = strconv.FormatInt(n, 10) }
	if sent > 0 {
		number(KeySent, sent)
		number(KeyReceived, received)
		number(KeyDuplicates, duplicates)
		status[KeyLoss] = strconv.FormatFloat(100*float64(sent-received)/float64(sent), 'f', -1, 64)
		// Whole seconds, as kiagnose has them.
		seconds := max(1, int64(time.Duration(duration).Round(time.Second)/time.Second))
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

// reasons why the outcome is no success, each with the part of the checkup before
// it; none for a success. The words are pkg/report's, which are kiagnose's where it
// has some.
func (o Outcome) reasons() []string {
	var reasons []string
	if o.Report.Verdict != checkup.RunPass {
		if o.Report.Cause != nil {
			reasons = add(reasons, phrase(o.Report.Cause))
		}
		for _, vm := range o.Report.VMs {
			for _, reason := range reasonsOf(vm, len(o.Report.VMs) > 1) {
				reasons = add(reasons, reason)
			}
		}
		// Whatever a report has no VMs for.
		for _, pair := range slices.Concat(o.Report.Failed, o.Report.Unmeasured) {
			if len(reasons) == 0 {
				reasons = append(reasons, phrase(&pair.Cause))
			}
		}
		if len(reasons) == 0 {
			reasons = append(reasons, fmt.Sprintf("run: the verdict is %s", cmp.Or(o.Report.Verdict, "unknown")))
		}
	}
	if o.Teardown != "" {
		reasons = append(reasons, "teardown: "+oneLine(o.Teardown))
	}
	return reasons
}

// reason is why some families of a pair of VMs did not pass.
type reason struct {
	text     string
	families []checkup.IPFamily
}

// reasonsOf are the reasons of one pair of VMs, each once, with the families that
// it is true of, unless those are all, and the VMs, if there are several pairs.
func reasonsOf(vm checkup.VMReport, several bool) []string {
	var found []reason
	tell := func(family checkup.IPFamily, text string) {
		i := slices.IndexFunc(found, func(r reason) bool { return r.text == text })
		if i < 0 {
			found, i = append(found, reason{text: text}), len(found)
		}
		if !slices.Contains(found[i].families, family) {
			found[i].families = append(found[i].families, family)
		}
	}
	for _, f := range vm.Families {
		if f.Verdict != checkup.Pass && f.Cause != nil {
			tell(f.Family, phrase(f.Cause))
		}
		// What keeps both ways from being measured is told once.
		if back := f.BackCause; f.Back != checkup.Pass && back != nil && (f.Verdict == checkup.Pass || f.Cause == nil || *back != *f.Cause) {
			tell(f.Family, phrase(back)+" (from target to source)")
		}
	}
	lines := make([]string, len(found))
	for i, r := range found {
		lines[i] = r.text
		if len(r.families) < len(vm.Families) {
			words := make([]string, len(r.families))
			for j, f := range r.families {
				words[j] = string(f)
			}
			lines[i] += " over " + strings.Join(words, " and ")
		}
		if several {
			lines[i] += fmt.Sprintf(" (%s to %s)", vm.Source, vm.Target)
		}
	}
	return lines
}

// phrase is a cause with the part of the checkup that it stopped.
func phrase(c *checkup.Cause) string {
	part := "run"
	switch c.Stage {
	case checkup.StageSetup, checkup.StageSchedule, checkup.StageStart:
		part = "setup"
	}
	return part + ": " + oneLine(c.Message)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
