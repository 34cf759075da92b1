// SPDX-License-Identifier: Apache-2.0

package kiagnose

import (
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

// family returns the units of both directions of a pair of VMs in one family.
type family struct{ there, back checkup.Unit }

// way returns a unit of one direction of the pair.
func way(f checkup.IPFamily, way string, verdict checkup.Verdict) checkup.Unit {
	u := checkup.Unit{
		Source: "source", Target: "target", Family: f, Verdict: verdict,
		Labels: map[string]string{checkup.UnitSourceNode: "n1", checkup.UnitTargetNode: "n2", checkup.UnitWay: way},
	}
	if way == checkup.WayBack {
		u.Source, u.Target = u.Target, u.Source
		u.Labels[checkup.UnitSourceNode], u.Labels[checkup.UnitTargetNode] = "n2", "n1"
	}
	return u
}

// measured returns the units of a family that was measured for 5 s: 25 requests.
func measured(f checkup.IPFamily, verdict checkup.Verdict, received int, delay *checkup.Delay) family {
	u := way(f, checkup.WayThere, verdict)
	u.Sent, u.Received, u.Duplicates, u.Delay = 25, received, 1, delay
	u.Values = []checkup.Value{{Name: checkup.UnitDuration, Value: 5e6, Measure: checkup.MeasureMicroseconds}}
	back := way(f, checkup.WayBack, checkup.Pass)
	back.Sent, back.Received = 5, 5
	return family{u, back}
}

// unmeasured returns the units of a family that was not measured.
func unmeasured(f checkup.IPFamily, cause checkup.Cause) family {
	u := family{way(f, checkup.WayThere, checkup.Unmeasured), way(f, checkup.WayBack, checkup.Unmeasured)}
	u.there.Cause, u.back.Cause = &cause, &cause
	return u
}

// flat returns a distribution around a mean.
func flat(mean int64) *checkup.Delay {
	return &checkup.Delay{Min: mean - 10, Mean: mean, P50: mean + 1, P90: mean + 2, P95: mean + 3, P99: mean + 4, Max: mean + 5, StdDev: 6}
}

func outcome(verdict checkup.RunVerdict, families ...family) Outcome {
	o := Outcome{Started: begun, Finished: ended, Report: checkup.CheckReport{Name: "latency", Verdict: verdict}}
	for _, f := range families {
		o.Report.Units = append(o.Report.Units, f.there, f.back)
	}
	return o
}

func TestStatusOfSuccess(t *testing.T) {
	o := outcome(checkup.RunPass, measured(checkup.IPv4, checkup.Pass, 25, flat(1000)), measured(checkup.IPv6, checkup.Pass, 15, flat(2000)))
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

// TestUnmeasuredHasNoKey: a number that was not measured is omitted, not 0.
func TestUnmeasuredHasNoKey(t *testing.T) {
	never := checkup.Cause{Stage: checkup.StageSetup, Message: "node n9\ndoes not exist"}
	o := outcome(checkup.RunInconclusive, unmeasured(checkup.IPv4, never), unmeasured(checkup.IPv6, never))
	o.Started = time.Time{}
	for i := range o.Report.Units {
		delete(o.Report.Units[i].Labels, checkup.UnitSourceNode)
		delete(o.Report.Units[i].Labels, checkup.UnitTargetNode)
	}
	want := map[string]string{"status.succeeded": "false", "status.failureReason": "setup: node n9 does not exist", "status.completionTimestamp": "2026-01-02T02:05:05Z"}
	if diff := cmp.Diff(want, o.Status()); diff != "" {
		t.Error(diff)
	}
	// A gate may let a run pass that did not measure all: the checkup did not succeed.
	some := outcome(checkup.RunPass, measured(checkup.IPv4, checkup.Pass, 25, flat(1000)), unmeasured(checkup.IPv6, never)).Status()
	if some["status.succeeded"] != "false" || some["status.failureReason"] == "" {
		t.Errorf("succeeded %q, %q, of a family that was not measured", some["status.succeeded"], some["status.failureReason"])
	}
	// No answer: requests and loss have keys, delays have none.
	status := outcome(checkup.RunFail, measured(checkup.IPv4, checkup.Fail, 0, nil)).Status()
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
	broken := func(f family, limit checkup.Limit, measured, most float64, last string) family {
		b := checkup.Breach{Limit: limit, Measured: measured, Max: most}
		if last != "" {
			b.Cause = &checkup.Cause{Stage: checkup.StageEcho, Message: last}
		}
		f.there.Breaches = append(f.there.Breaches, b)
		f.there.Cause = &checkup.Cause{Stage: checkup.StageEcho, Message: "the words of the report"}
		return f
	}
	back := func(f family, verdict checkup.Verdict, message string, breaches ...checkup.Breach) family {
		f.back.Verdict, f.back.Cause, f.back.Breaches = verdict, &checkup.Cause{Stage: checkup.StageEcho, Message: message}, breaches
		return f
	}
	slow := func(f checkup.IPFamily, mean int64) family {
		return broken(measured(f, checkup.Fail, 25, flat(mean)), checkup.LimitMax, float64(mean), 200_000, "")
	}
	silent := func(f checkup.IPFamily) family {
		return broken(measured(f, checkup.Fail, 0, nil), checkup.LimitAnswer, 0, 0, "25 of 25")
	}
	lossy := broken(measured(checkup.IPv4, checkup.Fail, 20, flat(1)), checkup.LimitLoss, 20, 5, "no answer within 5s")
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
		{"over the limit in one family", outcome(checkup.RunFail, measured(checkup.IPv4, checkup.Pass, 25, flat(100)), slow(checkup.IPv6, 500_000)), nil, `run: actual max latency "500ms" is greater than desired "200ms" over IPv6`},
		{"nothing came through", outcome(checkup.RunFail, silent(checkup.IPv4), silent(checkup.IPv6)), nil, "run: no connectivity - 100% packet loss (25 of 25)"},
		{
			"nothing came through either way", outcome(checkup.RunFail, back(silent(checkup.IPv4), checkup.Fail, "3 of 3", checkup.Breach{Limit: checkup.LimitAnswer, Cause: &checkup.Cause{Message: "3 of 3"}})), nil,
			"run: no connectivity - 100% packet loss (25 of 25),run: no connectivity - 100% packet loss (3 of 3) (from target to source)",
		},
		{"nothing came through of one family", outcome(checkup.RunFail, measured(checkup.IPv4, checkup.Pass, 25, flat(1)), silent(checkup.IPv6)), nil, "run: no connectivity - 100% packet loss (25 of 25) over IPv6"},
		{"no way back", outcome(checkup.RunFail, back(measured(checkup.IPv4, checkup.Pass, 25, flat(1)), checkup.Fail, "no answer")), nil, "run: no answer (from target to source)"},
		{"way back not measured", outcome(checkup.RunInconclusive, back(measured(checkup.IPv4, checkup.Pass, 25, flat(1)), checkup.Unmeasured, "console lost")), nil, "run: console lost (from target to source)"},
		{"lost more than the limit", outcome(checkup.RunFail, lossy), nil, "run: 5 of 25 lost (20%), limit 5%; last: no answer within 5s"},
		{
			"two limits", outcome(checkup.RunFail, broken(lossy, checkup.LimitJitter, 412_000, 200_000, "")), nil,
			`run: 5 of 25 lost (20%), limit 5%; last: no answer within 5s; actual jitter "412ms" is greater than desired "200ms"`,
		},
		{"setup failed", Outcome{Report: checkup.CheckReport{Verdict: checkup.RunInconclusive, Cause: &checkup.Cause{Stage: checkup.StageSetup, Message: "KubeVirt is not installed"}}}, nil, "setup: KubeVirt is not installed"},
		{"not collected", Outcome{Report: checkup.CheckReport{Verdict: checkup.RunInconclusive, Cause: &checkup.Cause{Stage: checkup.StageCollect, Message: "task probe-latency failed (TaskRunTimeout)"}}}, nil, "run: task probe-latency failed (TaskRunTimeout)"},
		{
			"two causes", outcome(checkup.RunInconclusive, unmeasured(checkup.IPv4, checkup.Cause{Stage: checkup.StageStart, Message: "no boot"}), unmeasured(checkup.IPv6, checkup.Cause{Stage: checkup.StageCollect, Message: "console taken"})), nil,
			"setup: no boot over IPv4,run: console taken over IPv6",
		},
		{
			"several pairs", outcome(checkup.RunFail, silent(checkup.IPv4)),
			func(o *Outcome) {
				second := silent(checkup.IPv4)
				second.there.Source, second.there.Target = "a on x", "b on x"
				second.back.Source, second.back.Target = "b on x", "a on x"
				o.Report.Units = append(o.Report.Units, second.there, second.back)
			},
			"run: no connectivity - 100% packet loss (25 of 25) (source to target),run: no connectivity - 100% packet loss (25 of 25) (a on x to b on x)",
		},
		{"pairs without VMs", Outcome{Report: checkup.CheckReport{Verdict: checkup.RunFail, Units: []checkup.Unit{{Verdict: checkup.Unmeasured, Cause: &checkup.Cause{Stage: checkup.StageControl, Message: "not trusted"}}}}}, nil, "run: not trusted"},
		{"slower than before", Outcome{Report: checkup.CheckReport{Verdict: checkup.RunFail, Findings: []checkup.Finding{{Message: "between a and b: 3 times slower", Change: &checkup.Change{}}}}}, nil, "run: between a and b: 3 times slower"},
		{"no reason at all", Outcome{Report: checkup.CheckReport{Verdict: checkup.RunInconclusive}}, nil, "run: the verdict is inconclusive"},
		{"nothing at all", Outcome{}, nil, "run: the verdict is unknown"},
		{"leftovers", outcome(checkup.RunPass, measured(checkup.IPv4, checkup.Pass, 25, flat(1))), func(o *Outcome) { o.Teardown = "left behind: vmi/a\nvmi/b" }, "teardown: left behind: vmi/a vmi/b"},
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
			t.Errorf("docs/kiagnose.md lacks `%s`", word)
		}
	}
}
