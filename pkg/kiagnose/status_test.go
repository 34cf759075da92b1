// SPDX-License-Identifier: Apache-2.0

package kiagnose

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
)

var (
	begun = time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600))
	ended = begun.Add(time.Minute)
)

// family is one that was measured for 5 s: 25 requests.
func family(f checkup.IPFamily, verdict checkup.Verdict, received int, delay *checkup.Delay) checkup.VMFamilyReport {
	return checkup.VMFamilyReport{
		Family: f, Verdict: verdict, Back: checkup.Pass, Sent: 25, Received: received, Duplicates: 1,
		Loss: checkup.Percent(100 * float64(25-received) / 25), Delay: delay, Duration: checkup.Duration(5 * time.Second),
	}
}

// unmeasured is a family of which there is no number.
func unmeasured(f checkup.IPFamily, cause checkup.Cause) checkup.VMFamilyReport {
	return checkup.VMFamilyReport{Family: f, Verdict: checkup.Unmeasured, Cause: &cause, Back: checkup.Unmeasured, BackCause: &cause}
}

// flat is a distribution around a mean.
func flat(mean int64) *checkup.Delay {
	return &checkup.Delay{Min: mean - 10, Mean: mean, P50: mean + 1, P90: mean + 2, P95: mean + 3, P99: mean + 4, Max: mean + 5, StdDev: 6}
}

func outcome(verdict checkup.RunVerdict, families ...checkup.VMFamilyReport) Outcome {
	return Outcome{
		Started: begun, Finished: ended,
		Report: checkup.CheckReport{Name: "latency", Verdict: verdict, VMs: []checkup.VMReport{{
			Source: "source", Target: "target", SourceNode: "n1", TargetNode: "n2", Families: families,
		}}},
	}
}

func TestStatusOfSuccess(t *testing.T) {
	o := outcome(checkup.RunPass, family(checkup.IPv4, checkup.Pass, 25, flat(1000)), family(checkup.IPv6, checkup.Pass, 15, flat(2000)))
	want := map[string]string{
		"status.succeeded": "true", "status.failureReason": "",
		"status.startTimestamp": "2026-01-02T02:04:05Z", "status.completionTimestamp": "2026-01-02T02:05:05Z",
		"status.result.sourceNode": "n1", "status.result.targetNode": "n2",
		"status.result.minLatencyNanoSec": "990000", "status.result.avgLatencyNanoSec": "1375000", "status.result.maxLatencyNanoSec": "2005000",
		"status.result.measurementDurationSec": "5", "status.results.measurementDurationSec": "5",
		"status.result.packetsSent": "50", "status.result.packetsReceived": "40", "status.result.packetLossPercent": "20", "status.result.duplicatePackets": "2",
		"status.result.p50LatencyNanoSec": "2001000", "status.result.p90LatencyNanoSec": "2002000", "status.result.p95LatencyNanoSec": "2003000",
		"status.result.p99LatencyNanoSec": "2004000", "status.result.stdDevLatencyNanoSec": "6000",
	}
	if diff := cmp.Diff(want, o.Status()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(slices.Values(StatusKeys))); diff != "" {
		t.Errorf("StatusKeys: %s", diff)
	}
}

// TestUnmeasuredHasNoKey: what was not measured is not told as 0.
func TestUnmeasuredHasNoKey(t *testing.T) {
	never := checkup.Cause{Stage: checkup.StageSetup, Message: "node n9\ndoes not exist"}
	o := outcome(checkup.RunInconclusive, unmeasured(checkup.IPv4, never), unmeasured(checkup.IPv6, never))
	o.Started, o.Report.VMs[0].SourceNode, o.Report.VMs[0].TargetNode = time.Time{}, "", ""
	want := map[string]string{"status.succeeded": "false", "status.failureReason": "setup: node n9 does not exist", "status.completionTimestamp": "2026-01-02T02:05:05Z"}
	if diff := cmp.Diff(want, o.Status()); diff != "" {
		t.Error(diff)
	}
	// No answer: there are requests and a loss, but no delay.
	status := outcome(checkup.RunFail, family(checkup.IPv4, checkup.Fail, 0, nil)).Status()
	for key, is := range map[string]string{KeyLoss: "100", KeySent: "25", KeyReceived: "0", KeyDuration: "5"} {
		if status[key] != is {
			t.Errorf("%s is %q, want %q", key, status[key], is)
		}
	}
	for key := range status {
		if strings.HasSuffix(key, "NanoSec") {
			t.Errorf("%s is %q although nothing was received", key, status[key])
		}
	}
}

func TestFailureReason(t *testing.T) {
	because := func(f checkup.VMFamilyReport, message string) checkup.VMFamilyReport {
		f.Cause = &checkup.Cause{Stage: checkup.StageEcho, Message: message}
		return f
	}
	back := func(f checkup.VMFamilyReport, verdict checkup.Verdict, message string) checkup.VMFamilyReport {
		f.Back, f.BackCause = verdict, &checkup.Cause{Stage: checkup.StageEcho, Message: message}
		return f
	}
	slow := func(f checkup.IPFamily, mean int64) checkup.VMFamilyReport {
		return because(family(f, checkup.Fail, 25, flat(mean)), fmt.Sprintf(`actual max latency "%dms" is greater than desired "200ms"`, mean/1000))
	}
	silent := func(f checkup.IPFamily) checkup.VMFamilyReport {
		return because(family(f, checkup.Fail, 0, nil), "no connectivity - 100% packet loss (25 of 25)")
	}
	for _, tt := range []struct {
		name    string
		outcome Outcome
		change  func(*Outcome)
		want    string
	}{
		{"over the limit", outcome(checkup.RunFail, slow(checkup.IPv4, 400_000)), nil, `run: actual max latency "400ms" is greater than desired "200ms"`},
		{
			"over the limit in both families", outcome(checkup.RunFail, slow(checkup.IPv4, 400_000), slow(checkup.IPv6, 500_000)), nil,
			`run: actual max latency "400ms" is greater than desired "200ms" over IPv4,run: actual max latency "500ms" is greater than desired "200ms" over IPv6`,
		},
		{"over the limit in one family", outcome(checkup.RunFail, family(checkup.IPv4, checkup.Pass, 25, flat(100)), slow(checkup.IPv6, 500_000)), nil, `run: actual max latency "500ms" is greater than desired "200ms" over IPv6`},
		{"nothing came through", outcome(checkup.RunFail, silent(checkup.IPv4), silent(checkup.IPv6)), nil, "run: no connectivity - 100% packet loss (25 of 25)"},
		{
			"nothing came through either way", outcome(checkup.RunFail, back(silent(checkup.IPv4), checkup.Fail, "no connectivity - 100% packet loss (3 of 3)")), nil,
			"run: no connectivity - 100% packet loss (25 of 25),run: no connectivity - 100% packet loss (3 of 3) (from target to source)",
		},
		{"nothing came through of one family", outcome(checkup.RunFail, family(checkup.IPv4, checkup.Pass, 25, flat(1)), silent(checkup.IPv6)), nil, "run: no connectivity - 100% packet loss (25 of 25) over IPv6"},
		{"no way back", outcome(checkup.RunFail, back(family(checkup.IPv4, checkup.Pass, 25, flat(1)), checkup.Fail, "no answer")), nil, "run: no answer (from target to source)"},
		{"way back not measured", outcome(checkup.RunInconclusive, back(family(checkup.IPv4, checkup.Pass, 25, flat(1)), checkup.Unmeasured, "console lost")), nil, "run: console lost (from target to source)"},
		{"setup failed", Outcome{Report: checkup.CheckReport{Verdict: checkup.RunInconclusive, Cause: &checkup.Cause{Stage: checkup.StageSetup, Message: "KubeVirt is not installed"}}}, nil, "setup: KubeVirt is not installed"},
		{"not collected", Outcome{Report: checkup.CheckReport{Verdict: checkup.RunInconclusive, Cause: &checkup.Cause{Stage: checkup.StageCollect, Message: "task probe-latency failed (TaskRunTimeout)"}}}, nil, "run: task probe-latency failed (TaskRunTimeout)"},
		{
			"two causes", outcome(checkup.RunInconclusive, unmeasured(checkup.IPv4, checkup.Cause{Stage: checkup.StageStart, Message: "no boot"}), unmeasured(checkup.IPv6, checkup.Cause{Stage: checkup.StageCollect, Message: "console taken"})), nil,
			"setup: no boot over IPv4,run: console taken over IPv6",
		},
		{
			"several pairs", outcome(checkup.RunFail, silent(checkup.IPv4)),
			func(o *Outcome) {
				o.Report.VMs = append(o.Report.VMs, checkup.VMReport{Source: "a on x", Target: "b on x", Families: []checkup.VMFamilyReport{silent(checkup.IPv4)}})
			},
			"run: no connectivity - 100% packet loss (25 of 25) (source to target),run: no connectivity - 100% packet loss (25 of 25) (a on x to b on x)",
		},
		{"pairs without VMs", Outcome{Report: checkup.CheckReport{Verdict: checkup.RunFail, Unmeasured: []checkup.PairResult{{Cause: checkup.Cause{Stage: checkup.StageControl, Message: "not trusted"}}}}}, nil, "run: not trusted"},
		{"no reason at all", Outcome{Report: checkup.CheckReport{Verdict: checkup.RunInconclusive}}, nil, "run: the verdict is inconclusive"},
		{"nothing at all", Outcome{}, nil, "run: the verdict is unknown"},
		{"leftovers", outcome(checkup.RunPass, family(checkup.IPv4, checkup.Pass, 25, flat(1))), func(o *Outcome) { o.Teardown = "left behind: vmi/a\nvmi/b" }, "teardown: left behind: vmi/a vmi/b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.change != nil {
				tt.change(&tt.outcome)
			}
			status := tt.outcome.Status()
			if got := status[KeyFailureReason]; got != tt.want {
				t.Errorf("%s\nwant %s", got, tt.want)
			}
			if status[KeySucceeded] != "false" {
				t.Errorf("succeeded is %q", status[KeySucceeded])
			}
		})
	}
}

// The document for kiagnose's users has every key and every variable.
func TestDocs(t *testing.T) {
	b, err := os.ReadFile("../../docs/kiagnose.md")
	if err != nil {
		t.Fatal(err)
	}
	words := append(slices.Sorted(maps.Keys(legacy)), KeyTimeout, CheckupType)
	words = append(words, StatusKeys...)
	for _, p := range params {
		words = append(words, ParamPrefix+p.name, p.old, p.variable())
	}
	for _, word := range words {
		if !strings.Contains(string(b), "`"+word+"`") {
			t.Errorf("docs/kiagnose.md does not say `%s`", word)
		}
	}
}
