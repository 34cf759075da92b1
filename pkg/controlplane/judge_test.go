// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/judge/judgetest"
)

func ptr[T any](v T) *T { return &v }

// connection is a worksheet of the one pair of an API server and etcd, and five
// results of it. Each case of the table below changes something about it.
type connection struct {
	*judgetest.Plane
	record *checkup.Record
}

func newConnection() *connection {
	p := judgetest.NewPlane(1, 1, 5)
	p.Worksheet.Sources, p.Worksheet.Assignments = p.Worksheet.Sources[:1], [][]int{{judgetest.EtcdTarget}}
	c := &connection{p, p.Measure()}
	for i := range c.record.Results {
		c.record.Results[i].At = p.Start.Add(time.Duration(i) * time.Second)
		c.record.Results[i].Delays = checkup.StageDelays{Connect: 300, Handshake: 900}
	}
	return c
}

// fail makes some results fail.
func (c *connection) fail(cause *checkup.Cause, which ...int) {
	for _, i := range which {
		r := &c.record.Results[i]
		r.Failure, r.Delays = cause, checkup.StageDelays{}
		if cause.Stage == checkup.StageHandshake {
			r.Delays.Connect = 100
		}
	}
}

func TestJudgeConnection(t *testing.T) {
	spoilt := &checkup.Cause{Stage: checkup.StageSelf, Message: "held up for 80ms"}
	tests := []struct {
		name   string
		change func(*connection)
		want   checkup.Verdict
		cause  string
	}{
		{"all passed", func(*connection) {}, checkup.Pass, ""},
		{"reported twice, the same", func(c *connection) {
			again := c.record.Results[3]
			again.At = again.At.In(time.FixedZone("elsewhere", 3600))
			c.record.Results = append(c.record.Results, again)
		}, checkup.Pass, ""},

		// Nothing known.
		{"no roster", func(c *connection) { c.Roster = nil }, checkup.Unmeasured, "setup: the target is not on the roster"},
		{"a target that is not visible", func(c *connection) {
			c.Worksheet.Targets[judgetest.EtcdTarget].Peer = nil
			c.Roster.Targets[judgetest.EtcdTarget].Cause = &checkup.Cause{Stage: checkup.StageSetup, Message: "no etcd member is visible"}
			c.record.Results = nil
		}, checkup.Unmeasured, "setup: no etcd member is visible"},
		{"no record", func(c *connection) { c.record = nil }, checkup.Unmeasured, "collect: the record has no data of the source"},
		{"no results", func(c *connection) { c.record.Results = nil }, checkup.Unmeasured, "collect: the agent exited without reporting this pair"},
		{"the agent could not measure it", func(c *connection) {
			c.record.Results = nil
			p := slices.Collect(c.Worksheet.Pairs())[0]
			c.record.Observations = []checkup.Observation{{Pair: p, Unmeasured: &checkup.Cause{Stage: checkup.StageSetup, Message: "Secret etcd-client has no tls.key"}}}
		}, checkup.Unmeasured, "setup: Secret etcd-client has no tls.key"},
		{"a control pair wrong", func(c *connection) { c.record.Sources[0].Controls[1].OK = false }, checkup.Unmeasured, `control: the agent got its control pair "closed" wrong (it gave no details), so it is not trusted`},
		{"a control pair missing", func(c *connection) { c.record.Sources[0].Controls = c.record.Sources[0].Controls[:1] }, checkup.Unmeasured, `control: the agent reported no control pair "closed", so it is not trusted`},

		// Not credible, or not enough.
		{"an unrequested pair", func(c *connection) {
			for range 3 {
				alien := c.record.Results[0]
				alien.Target = 1
				c.record.Results = append(c.record.Results, alien)
			}
		}, checkup.Unmeasured, "collect: the agent reported 1 unrequested pair, so it is not trusted"},
		{"reported twice, differently", func(c *connection) {
			again := c.record.Results[3]
			again.Failure, again.Delays = judgetest.Refused, checkup.StageDelays{}
			c.record.Results = append(c.record.Results, again)
		}, checkup.Unmeasured, "collect: the agent reported one measurement twice, with different results"},
		{"reported as a whole, too", func(c *connection) {
			c.record.Observations = []checkup.Observation{{Pair: c.record.Results[0].Pair, Sent: 5}}
		}, checkup.Unmeasured, "collect: the agent reported the pair both as a whole and by single measurements"},
		{"unmeasured as a whole, too", func(c *connection) {
			c.record.Observations = []checkup.Observation{{Pair: c.record.Results[0].Pair, Unmeasured: spoilt}}
		}, checkup.Unmeasured, "self: held up for 80ms"},
		{"unmeasured as a whole, too, and failed", func(c *connection) {
			c.fail(judgetest.Refused, 0, 1, 2, 3, 4)
			c.record.Observations = []checkup.Observation{{Pair: c.record.Results[0].Pair, Unmeasured: spoilt}}
		}, checkup.Fail, "connect: connection refused"},
		{"passed without a connect", func(c *connection) { c.record.Results[2].Delays = checkup.StageDelays{} }, checkup.Unmeasured, "collect: the measurement of 2026-01-02T03:04:07.000Z contradicts itself: its delays do not match the stages that it passed"},
		{"failed at a stage that it passed", func(c *connection) {
			c.record.Results[2].Failure = judgetest.Refused
		}, checkup.Unmeasured, "collect: the measurement of 2026-01-02T03:04:07.000Z contradicts itself: its delays do not match the stages that it passed"},
		{"a negative delay", func(c *connection) { c.record.Results[2].Delays.Handshake = -1 }, checkup.Unmeasured, "collect: the measurement of 2026-01-02T03:04:07.000Z contradicts itself: its delays do not match the stages that it passed"},
		{"a delay longer than the probe task", func(c *connection) {
			c.Worksheet.Timeouts.Probe = checkup.Duration(time.Minute)
			c.record.Results[2].Delays.Connect = math.MaxInt64
		}, checkup.Unmeasured, "collect: the numbers do not add up: a delay of 9223372036854775807 µs, of at most 65000000"},
		{"more than ordered", func(c *connection) {
			more := c.record.Results[4]
			more.At = more.At.Add(time.Second)
			c.record.Results = append(c.record.Results, more)
		}, checkup.Unmeasured, "collect: the agent reported 6 measurements, of 5 ordered"},
		{"fewer than ordered", func(c *connection) {
			c.record.Results = c.record.Results[:4]
			c.record.Sources[0].End = nil
		}, checkup.Unmeasured, "collect: only 4 of 5 measurements were made: too few to pass"},
		{"fewer than ordered, and failed", func(c *connection) {
			c.fail(judgetest.Refused, 0, 1, 2, 3)
			c.record.Results = c.record.Results[:4]
			c.record.Sources[0].End = nil
		}, checkup.Fail, "connect: connection refused"},
		{"fewer than the agent counts", func(c *connection) { c.record.Sources[0].End.Results = 6 }, checkup.Unmeasured, "collect: the agent reported 6 measurements; 5 arrived"},
		{"fewer than the agent counts, and failed", func(c *connection) {
			c.record.Sources[0].End.Results = 6
			c.fail(judgetest.Silent, 0, 1, 2, 3, 4)
		}, checkup.Fail, "handshake: accepted the connection and then sent nothing for 10s"},
		{"spoiled in part", func(c *connection) { c.record.Results[1].Unmeasured = spoilt }, checkup.Unmeasured, "self: 1 of 5 measurements were discarded; 4 of 5 ordered remain, too few to pass; the last discarded: held up for 80ms"},
		{"mostly spoiled, and failed", func(c *connection) {
			c.fail(judgetest.Refused, 0, 1, 2, 3, 4)
			for i := range 3 {
				c.record.Results[i].Unmeasured = spoilt
			}
		}, checkup.Unmeasured, "self: 3 of 5 measurements were discarded; 2 of 5 ordered remain; the last discarded: held up for 80ms"},
		{"a failure of the agent's own", func(c *connection) {
			c.fail(&checkup.Cause{Stage: checkup.StageSocket, Message: "too many open files"}, 0, 1, 2, 3, 4)
		}, checkup.Unmeasured, "socket: 5 of 5 measurements were discarded; 0 of 5 ordered remain; the last discarded: too many open files"},

		// Expectations.
		{"never connects", func(c *connection) { c.fail(judgetest.Refused, 0, 1, 2, 3, 4) }, checkup.Fail, "connect: connection refused"},
		{"never sends anything", func(c *connection) { c.fail(judgetest.Silent, 0, 1, 2, 3, 4) }, checkup.Fail, "handshake: accepted the connection and then sent nothing for 10s"},
		{"failed in part, without a limit", func(c *connection) { c.fail(judgetest.Refused, 0, 1, 2, 3) }, checkup.Pass, ""},
		{"failed in part, as often happens by chance", func(c *connection) {
			c.fail(judgetest.Refused, 1, 2)
			c.Worksheet.Expect.Loss.Max = ptr(checkup.Percent(20))
		}, checkup.Pass, ""},
		{"failed in part, as seldom happens by chance", func(c *connection) {
			c.fail(judgetest.Refused, 1, 2)
			c.Worksheet.Expect.Loss.Max = ptr(checkup.Percent(5))
		}, checkup.Undecided, "connect: 2 of 5 failed (40%), limit 5%: too few measurements to decide; last: connection refused"},
		{"failed in part, over the limit", func(c *connection) {
			c.fail(judgetest.Refused, 1, 2)
			c.Worksheet.Expect.Loss.Max = ptr(checkup.Percent(0.1))
		}, checkup.Fail, "connect: 2 of 5 failed (40%), limit 0.1%; last: connection refused"},
		{"undecided, and fewer than the agent counts", func(c *connection) {
			c.fail(judgetest.Refused, 1, 2)
			c.Worksheet.Expect.Loss.Max = ptr(checkup.Percent(5))
			c.record.Sources[0].End.Results = 6
		}, checkup.Unmeasured, "collect: the agent reported 6 measurements; 5 arrived"},
		{"too slow to connect", func(c *connection) { c.Worksheet.Expect.Latency.Max = ptr(checkup.Duration(100 * time.Microsecond)) }, checkup.Fail, "connect: max 300µs, limit 100µs"},
		{"an outage as long as the limit", func(c *connection) {
			c.fail(judgetest.Refused, 1, 2)
			c.Worksheet.Connections.MaxOutage = ptr(checkup.Duration(2 * time.Second))
		}, checkup.Pass, ""},
		{"an outage over the limit", func(c *connection) {
			c.fail(judgetest.Refused, 1, 2)
			c.fail(judgetest.Silent, 4)
			c.Worksheet.Connections.MaxOutage = ptr(checkup.Duration(time.Second))
		}, checkup.Fail, "connect: an outage of 2s, limit 1s, from 2026-01-02T03:04:06.000Z to 2026-01-02T03:04:08.000Z: connection refused"},
		{"an outage to the end", func(c *connection) {
			c.fail(judgetest.Silent, 2, 3, 4)
			c.Worksheet.Connections.MaxOutage = ptr(checkup.Duration(time.Second))
		}, checkup.Fail, "handshake: an outage of at least 2s, limit 1s, from 2026-01-02T03:04:07.000Z, not over at 2026-01-02T03:04:09.000Z: accepted the connection and then sent nothing for 10s"},
		{"unreachable, but connected", func(c *connection) {
			c.Worksheet.Expect.Unreachable = true
			c.fail(judgetest.Silent, 0, 1, 2, 3, 4)
		}, checkup.Fail, "connect: must be unreachable, but 5 of 5 were connected"},
		{"unreachable, and refused", func(c *connection) {
			c.Worksheet.Expect.Unreachable = true
			c.fail(judgetest.Refused, 0, 1, 2, 3, 4)
		}, checkup.Pass, ""},
	}
	seen := map[checkup.Verdict]bool{}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := newConnection()
			test.change(c)
			r := Judge(c.Worksheet, c.Roster, c.record, checkup.Gate{MaxUnmeasured: 100})
			if len(r.Units) != 1 {
				t.Fatalf("%d connections, want 1", len(r.Units))
			}
			cause := ""
			if why := r.Units[0].Cause; why != nil {
				cause = why.String()
			}
			seen[r.Units[0].Verdict] = true
			if got := r.Units[0].Verdict; got != test.want || cause != test.cause {
				t.Errorf("got %s, %q\nwant %s, %q", got, cause, test.want, test.cause)
			}
			if (r.Counts != checkup.Counts{Expected: 1, Pass: r.Counts.Pass, Fail: r.Counts.Fail, Undecided: r.Counts.Undecided, Unmeasured: r.Counts.Unmeasured}) || len(r.Findings) != r.Counts.Fail {
				t.Errorf("%+v with %d findings", r.Counts, len(r.Findings))
			}
		})
	}
	for _, v := range checkup.Verdicts {
		if !seen[v] {
			t.Errorf("no case has verdict %s", v)
		}
	}
}

// TestAnyFamilyControls: whoever may use any family must have every family that
// was controlled right, and one at least.
func TestAnyFamilyControls(t *testing.T) {
	right := func(f checkup.IPFamily) []checkup.Control {
		return []checkup.Control{{Family: f, Name: "self", OK: true}, {Family: f, Name: "closed", OK: true}}
	}
	wrong := func(f checkup.IPFamily) []checkup.Control {
		return []checkup.Control{{Family: f, Name: "self", OK: true}, {Family: f, Name: "closed"}}
	}
	for _, test := range []struct {
		name     string
		controls []checkup.Control
		want     checkup.Verdict
	}{
		{"none", nil, checkup.Unmeasured},
		{"one family", right(checkup.IPv6), checkup.Pass},
		{"both", append(right(checkup.IPv4), right(checkup.IPv6)...), checkup.Pass},
		{"one of them wrong", append(right(checkup.IPv4), wrong(checkup.IPv6)...), checkup.Unmeasured},
		{"one of them in part", append(right(checkup.IPv4)[:1], right(checkup.IPv6)...), checkup.Pass},
		{"in part", right(checkup.IPv4)[:1], checkup.Unmeasured},
	} {
		p := judgetest.NewPlane(1, 1, 3)
		p.Worksheet.Sources, p.Worksheet.Assignments = p.Worksheet.Sources[:1], [][]int{{p.Balancer()}}
		record := p.Measure()
		record.Sources[0].Controls = test.controls
		if got := Judge(p.Worksheet, p.Roster, record, checkup.Gate{}).Units[0]; got.Verdict != test.want {
			t.Errorf("%s: %s (%v), want %s", test.name, got.Verdict, got.Cause, test.want)
		}
	}
}

// randomPlane is a control plane of a random size with random faults.
func randomPlane(seed uint64) *judgetest.Plane {
	rng := rand.New(rand.NewPCG(seed, 23))
	p := judgetest.NewPlane(seed, 1+rng.IntN(3), 1+rng.IntN(20))
	p.Worksheet.Expect.Loss.Max = ptr(checkup.Percent(rng.IntN(50)))
	bad, chance := rng.IntN(len(p.Worksheet.Targets)), rng.Float64()
	p.Way = func(s, t int, after time.Duration) *checkup.Cause {
		if (t == bad || p.Rand.IntN(30) == 0) && p.Rand.Float64() < chance {
			return []*checkup.Cause{judgetest.Refused, judgetest.Silent, judgetest.TimedOut}[p.Rand.IntN(3)]
		}
		return nil
	}
	return p
}

// TestConnectionsHold checks what must hold for any record.
func TestConnectionsHold(t *testing.T) {
	for seed := range judgetest.Iterations(20, 400) {
		p := randomPlane(seed)
		record := p.Measure()
		rng := rand.New(rand.NewPCG(seed, 24))
		whole := Judge(p.Worksheet, p.Roster, record, checkup.Gate{})
		if whole.Counts.Expected != p.Worksheet.CountPairs() || len(whole.Units) != whole.Counts.Expected || whole.Counts.Unmeasured > 0 || whole.Sent != len(record.Results) {
			t.Fatalf("seed %d: %+v, %d connections, %d sent of %d results", seed, whole.Counts, len(whole.Units), whole.Sent, len(record.Results))
		}
		for _, c := range whole.Units {
			failed := 0
			for _, n := range c.Failures {
				failed += n
			}
			inOutages := 0
			for _, o := range c.Outages {
				inOutages += o.Failures
			}
			if c.Received+failed != c.Sent || inOutages != failed || c.Name == "" || c.Object != c.Name || c.Labels["address"] == "" || (c.Cause == nil) != (c.Verdict == checkup.Pass) {
				t.Fatalf("seed %d: does not add up: %+v", seed, c)
			}
		}
		connects := 0
		for _, row := range whole.Delays {
			if row.Stage == checkup.StageConnect {
				connects += row.Sent
			}
		}
		if connects != len(record.Results) {
			t.Fatalf("seed %d: the rows of the connect have %d of %d measurements", seed, connects, len(record.Results))
		}

		// Neither their order nor a repetition matters.
		shuffled := *record
		shuffled.Results = slices.Concat(record.Results, record.Results[:rng.IntN(len(record.Results)+1)])
		rng.Shuffle(len(shuffled.Results), func(i, k int) {
			shuffled.Results[i], shuffled.Results[k] = shuffled.Results[k], shuffled.Results[i]
		})
		before := slices.Clone(shuffled.Results)
		if diff := cmp.Diff(whole, Judge(p.Worksheet, p.Roster, &shuffled, checkup.Gate{})); diff != "" {
			t.Fatalf("seed %d: the order of results matters:\n%s", seed, diff)
		}
		if !slices.Equal(before, shuffled.Results) {
			t.Fatalf("seed %d: Judge changed its argument", seed)
		}

		// Without one of the results nothing of its source passes any more that the
		// agent says that it reported it, and its own pair never.
		gone := rng.IntN(len(record.Results))
		partial := *record
		partial.Results = slices.Delete(slices.Clone(record.Results), gone, gone+1)
		r := Judge(p.Worksheet, p.Roster, &partial, checkup.Gate{})
		for i, c := range r.Units {
			if c.Source == judge.Name(p.Worksheet.Sources, record.Results[gone].Source) && c.Verdict == checkup.Pass {
				t.Fatalf("seed %d: %s -> %s passes although a result of its source is missing", seed, c.Source, c.Target)
			}
			if c.Source != judge.Name(p.Worksheet.Sources, record.Results[gone].Source) && c.Verdict != whole.Units[i].Verdict {
				t.Fatalf("seed %d: a missing result of another source changes %s -> %s", seed, c.Source, c.Target)
			}
		}
		if r.Verdict == checkup.RunPass {
			t.Fatalf("seed %d: passes without a result", seed)
		}
		for i := range partial.Sources {
			partial.Sources = slices.Clone(partial.Sources)
			partial.Sources[i].End = nil
		}
		r = Judge(p.Worksheet, p.Roster, &partial, checkup.Gate{})
		at := slices.IndexFunc(slices.Collect(p.Worksheet.Pairs()), func(pair checkup.Pair) bool { return pair == record.Results[gone].Pair })
		if r.Units[at].Verdict == checkup.Pass {
			t.Fatalf("seed %d: passes with a result less than was ordered", seed)
		}
	}
}

// TestSpoiledDelay: a stage that was passed counts as passed without its delay,
// which the agent leaves out where it was held up.
func TestSpoiledDelay(t *testing.T) {
	c := newConnection()
	for i := range 3 {
		c.record.Results[i].Delays.Handshake = 0
	}
	c.fail(judgetest.Silent, 4)
	r := Judge(c.Worksheet, c.Roster, c.record, checkup.Gate{})
	want := []checkup.DelayRow{
		{Transport: checkup.TLS, Stage: checkup.StageConnect, Family: checkup.IPv4, Pairs: 1, Sent: 5, Received: 5, Delay: judge.DelayOf([][]int64{{300, 300, 300, 300, 100}})},
		{Transport: checkup.TLS, Stage: checkup.StageHandshake, Family: checkup.IPv4, Pairs: 1, Sent: 5, Received: 4, Loss: 20, Delay: judge.DelayOf([][]int64{{900}})},
	}
	if diff := cmp.Diff(want, r.Delays); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}

// stopped is the report of a run that was stopped half-way, where no etcd is visible
// and the CRD is missing.
func stopped() checkup.CheckReport {
	p := judgetest.NewPlane(7, 2, 60)
	p.Worksheet.Expect.Loss.Max = ptr(checkup.Percent(20))
	p.Worksheet.Connections.MaxOutage = ptr(checkup.Duration(30 * time.Second))
	p.Worksheet.Warnings = []string{"no etcd member is visible"}
	p.Worksheet.Connections.Unwritten = "the cluster has no CustomResourceDefinition, and the plan does not allow to install it"
	for _, t := range []int{judgetest.EtcdTarget, judgetest.TargetsPerNode + judgetest.EtcdTarget} {
		p.Worksheet.Targets[t].Peer = nil
		p.Roster.Targets[t].Cause = &checkup.Cause{Stage: checkup.StageSetup, Message: "no pod of this component is visible"}
	}
	p.End = func(t int, after time.Duration) *checkup.Cause {
		return judgetest.Because(t == p.Balancer() && after >= 10*time.Second, judgetest.NoAddress)
	}
	r := p.Measure()
	first := r.Results[0].At
	r.Results = slices.DeleteFunc(r.Results, func(r checkup.Result) bool { return r.At.Sub(first) > 30*time.Second })
	for i := range r.Sources {
		r.Sources[i].End = nil
		r.Sources[i].Cause = &checkup.Cause{Stage: checkup.StageCollect, Message: "the run was stopped"}
	}
	return Judge(p.Worksheet, p.Roster, r, checkup.Gate{Require: checkup.RequirePass})
}

// TestStopped: what was reported before a run was stopped is in its report.
func TestStopped(t *testing.T) {
	r := stopped()
	sent, outages := 0, 0
	for _, c := range r.Units {
		sent += c.Sent
		outages += len(c.Outages)
	}
	if sent != r.Sent || sent == 0 || outages == 0 || r.Counts.Pass > 0 {
		t.Errorf("%d of %d measurements, %d outages, %+v", sent, r.Sent, outages, r.Counts)
	}
	if len(r.Notes) != 2 || !strings.HasPrefix(r.Notes[1], "no PodNetworkConnectivityChecks are written: ") {
		t.Errorf("notes %q", r.Notes)
	}
}
