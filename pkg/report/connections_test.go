// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// connectionScenarios are reports of a control plane for testdata.
func connectionScenarios(run Run) map[string]checkup.Report {
	plan := &checkup.Plan{Name: "day-2", Gate: checkup.Gate{Require: checkup.RequirePass}, Checks: map[string]checkup.Check{"api": {ControlPlane: &checkup.ControlPlane{}}}}
	api := func(nodes, count int, change func(*plane)) *plane {
		p := newPlane(7, nodes, count)
		p.w.Expect.Loss.Max = ptr(checkup.Percent(20))
		p.w.Connections.MaxOutage = ptr(checkup.Duration(30 * time.Second))
		if change != nil {
			change(p)
		}
		return p
	}
	judged := func(p *plane, change func(*checkup.Record)) checkup.Report {
		record := p.measure()
		if change != nil {
			change(record)
		}
		return Join(plan, run, []checkup.CheckReport{Judge(p.w, p.roster, record, plan.Gate)}, nil)
	}
	return map[string]checkup.Report{
		// An API server is restarted while it is watched, which the plan allows.
		"connections-restart": judged(api(2, 60, func(p *plane) {
			p.w.Expect.Loss.Max = nil
			p.end = func(t int, after time.Duration) *checkup.Cause {
				return because(t == kubeTarget && after >= 20*time.Second && after < 32*time.Second, refused)
			}
		}), nil),
		"connections-silent": judged(api(2, 5, func(p *plane) {
			p.end = func(t int, _ time.Duration) *checkup.Cause { return because(t == etcdTarget, silent) }
		}), nil),
		"connections-endpoint": judged(api(2, 60, func(p *plane) {
			p.end = func(t int, _ time.Duration) *checkup.Cause { return because(t == kubeTarget, timedOut) }
		}), nil),
		"connections-service": judged(api(2, 60, func(p *plane) {
			p.way = func(s, t int, after time.Duration) *checkup.Cause {
				return because(s == sourcesPerNode+aggregated && t == p.kubeService() && after >= 10*time.Second, timedOut)
			}
		}), nil),
		// No etcd is visible, the CRD is missing, and the run was stopped half-way.
		"connections-stopped": judged(api(2, 60, func(p *plane) {
			p.w.Warnings = []string{"no etcd member is visible"}
			p.w.Connections.Unwritten = "the cluster has no CustomResourceDefinition, and the plan does not allow to install it"
			for _, t := range []int{etcdTarget, targetsPerNode + etcdTarget} {
				p.w.Targets[t].Peer = nil
				p.roster.Targets[t].Cause = &checkup.Cause{Stage: checkup.StageSetup, Message: "no pod of this component is visible"}
			}
			p.end = func(t int, after time.Duration) *checkup.Cause {
				return because(t == p.balancer() && after >= 10*time.Second, noAddress)
			}
		}), func(r *checkup.Record) {
			first := r.Results[0].At
			r.Results = slices.DeleteFunc(r.Results, func(r checkup.Result) bool { return r.At.Sub(first) > 30*time.Second })
			for i := range r.Sources {
				r.Sources[i].End = nil
				r.Sources[i].Cause = &checkup.Cause{Stage: checkup.StageCollect, Message: "the run was stopped"}
			}
		}),
	}
}

// connection is a worksheet of the one pair of an API server and etcd, and five
// results of it. Each case of the table below changes something about it.
type connection struct {
	w      *checkup.Worksheet
	roster *checkup.Roster
	record *checkup.Record
}

func newConnection() *connection {
	p := newPlane(1, 1, 5)
	p.w.Sources, p.w.Assignments = p.w.Sources[:1], [][]int{{etcdTarget}}
	c := &connection{p.w, p.roster, p.measure()}
	for i := range c.record.Results {
		c.record.Results[i].At = p.start.Add(time.Duration(i) * time.Second)
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
		{"told twice, the same", func(c *connection) {
			again := c.record.Results[3]
			again.At = again.At.In(time.FixedZone("elsewhere", 3600))
			c.record.Results = append(c.record.Results, again)
		}, checkup.Pass, ""},

		// Nothing known.
		{"no roster", func(c *connection) { c.roster = nil }, checkup.Unmeasured, "setup: the target is not on the roster"},
		{"a target that is not visible", func(c *connection) {
			c.w.Targets[etcdTarget].Peer = nil
			c.roster.Targets[etcdTarget].Cause = &checkup.Cause{Stage: checkup.StageSetup, Message: "no etcd member is visible"}
			c.record.Results = nil
		}, checkup.Unmeasured, "setup: no etcd member is visible"},
		{"no record", func(c *connection) { c.record = nil }, checkup.Unmeasured, "collect: nothing was recorded of the source"},
		{"no results", func(c *connection) { c.record.Results = nil }, checkup.Unmeasured, "collect: the agent ended without telling"},
		{"the agent could not measure it", func(c *connection) {
			c.record.Results = nil
			p := slices.Collect(c.w.Pairs())[0]
			c.record.Observations = []checkup.Observation{{Pair: p, Unmeasured: &checkup.Cause{Stage: checkup.StageSetup, Message: "Secret etcd-client has no tls.key"}}}
		}, checkup.Unmeasured, "setup: Secret etcd-client has no tls.key"},
		{"a control pair wrong", func(c *connection) { c.record.Sources[0].Controls[1].OK = false }, checkup.Unmeasured, `control: the agent got its control pair "closed" wrong (it did not say how), so it is not trusted`},
		{"a control pair missing", func(c *connection) { c.record.Sources[0].Controls = c.record.Sources[0].Controls[:1] }, checkup.Unmeasured, `control: the agent told no control pair "closed", so it is not trusted`},

		// Not to be believed, or not enough.
		{"another pair told", func(c *connection) {
			for range 3 {
				alien := c.record.Results[0]
				alien.Target = 1
				c.record.Results = append(c.record.Results, alien)
			}
		}, checkup.Unmeasured, "collect: the agent reported 1 unrequested pair, so it is not trusted"},
		{"told twice, differently", func(c *connection) {
			again := c.record.Results[3]
			again.Failure, again.Delays = refused, checkup.StageDelays{}
			c.record.Results = append(c.record.Results, again)
		}, checkup.Unmeasured, "collect: the agent told different results for the one measurement"},
		{"told as a whole, too", func(c *connection) {
			c.record.Observations = []checkup.Observation{{Pair: c.record.Results[0].Pair, Sent: 5}}
		}, checkup.Unmeasured, "collect: the agent told the pair both as a whole and measurement by measurement"},
		{"unmeasured as a whole, too", func(c *connection) {
			c.record.Observations = []checkup.Observation{{Pair: c.record.Results[0].Pair, Unmeasured: spoilt}}
		}, checkup.Unmeasured, "self: held up for 80ms"},
		{"unmeasured as a whole, too, and failed", func(c *connection) {
			c.fail(refused, 0, 1, 2, 3, 4)
			c.record.Observations = []checkup.Observation{{Pair: c.record.Results[0].Pair, Unmeasured: spoilt}}
		}, checkup.Fail, "connect: connection refused"},
		{"passed without a connect", func(c *connection) { c.record.Results[2].Delays = checkup.StageDelays{} }, checkup.Unmeasured, "collect: the measurement of 2026-01-02T03:04:07.000Z does not add up: its delays are not those of the stages that it passed"},
		{"failed at a stage that it passed", func(c *connection) {
			c.record.Results[2].Failure = refused
		}, checkup.Unmeasured, "collect: the measurement of 2026-01-02T03:04:07.000Z does not add up: its delays are not those of the stages that it passed"},
		{"a negative delay", func(c *connection) { c.record.Results[2].Delays.Handshake = -1 }, checkup.Unmeasured, "collect: the measurement of 2026-01-02T03:04:07.000Z does not add up: its delays are not those of the stages that it passed"},
		{"more than ordered", func(c *connection) {
			more := c.record.Results[4]
			more.At = more.At.Add(time.Second)
			c.record.Results = append(c.record.Results, more)
		}, checkup.Unmeasured, "collect: the agent told 6 measurements, of 5 ordered"},
		{"fewer than ordered", func(c *connection) {
			c.record.Results = c.record.Results[:4]
			c.record.Sources[0].End = nil
		}, checkup.Unmeasured, "collect: only 4 of 5 measurements were made: too few to pass"},
		{"fewer than ordered, and failed", func(c *connection) {
			c.fail(refused, 0, 1, 2, 3)
			c.record.Results = c.record.Results[:4]
			c.record.Sources[0].End = nil
		}, checkup.Fail, "connect: connection refused"},
		{"fewer than were told", func(c *connection) { c.record.Sources[0].End.Results = 6 }, checkup.Unmeasured, "collect: the agent told 6 measurements, of which 5 arrived"},
		{"fewer than were told, and failed", func(c *connection) {
			c.record.Sources[0].End.Results = 6
			c.fail(silent, 0, 1, 2, 3, 4)
		}, checkup.Fail, "handshake: accepted the connection and then said nothing for 10s"},
		{"spoiled in part", func(c *connection) { c.record.Results[1].Unmeasured = spoilt }, checkup.Unmeasured, "self: 1 of 5 measurements are none, and 4 of 5 ordered are too few to pass; the last of them: held up for 80ms"},
		{"mostly spoiled, and failed", func(c *connection) {
			c.fail(refused, 0, 1, 2, 3, 4)
			for i := range 3 {
				c.record.Results[i].Unmeasured = spoilt
			}
		}, checkup.Unmeasured, "self: 3 of 5 measurements are none, and 2 of 5 ordered are good; the last of them: held up for 80ms"},
		{"a failure of the agent's own", func(c *connection) {
			c.fail(&checkup.Cause{Stage: checkup.StageSocket, Message: "too many open files"}, 0, 1, 2, 3, 4)
		}, checkup.Unmeasured, "socket: 5 of 5 measurements are none, and 0 of 5 ordered are good; the last of them: too many open files"},

		// Expectations.
		{"never connects", func(c *connection) { c.fail(refused, 0, 1, 2, 3, 4) }, checkup.Fail, "connect: connection refused"},
		{"never says a thing", func(c *connection) { c.fail(silent, 0, 1, 2, 3, 4) }, checkup.Fail, "handshake: accepted the connection and then said nothing for 10s"},
		{"failed in part, without a limit", func(c *connection) { c.fail(refused, 0, 1, 2, 3) }, checkup.Pass, ""},
		{"failed in part, over the limit", func(c *connection) {
			c.fail(refused, 1, 2)
			c.w.Expect.Loss.Max = ptr(checkup.Percent(20))
		}, checkup.Fail, "connect: 2 of 5 failed (40%), limit 20%; last: connection refused"},
		{"too slow to connect", func(c *connection) { c.w.Expect.Latency.Max = ptr(checkup.Duration(100 * time.Microsecond)) }, checkup.Fail, "connect: max 300µs, limit 100µs"},
		{"an outage as long as the limit", func(c *connection) {
			c.fail(refused, 1, 2)
			c.w.Connections.MaxOutage = ptr(checkup.Duration(2 * time.Second))
		}, checkup.Pass, ""},
		{"an outage over the limit", func(c *connection) {
			c.fail(refused, 1, 2)
			c.fail(silent, 4)
			c.w.Connections.MaxOutage = ptr(checkup.Duration(time.Second))
		}, checkup.Fail, "connect: an outage of 2s, limit 1s, from 2026-01-02T03:04:06.000Z to 2026-01-02T03:04:08.000Z: connection refused"},
		{"an outage to the end", func(c *connection) {
			c.fail(silent, 2, 3, 4)
			c.w.Connections.MaxOutage = ptr(checkup.Duration(time.Second))
		}, checkup.Fail, "handshake: an outage of at least 2s, limit 1s, from 2026-01-02T03:04:07.000Z, not over at 2026-01-02T03:04:09.000Z: accepted the connection and then said nothing for 10s"},
		{"unreachable, but connected", func(c *connection) {
			c.w.Expect.Unreachable = true
			c.fail(silent, 0, 1, 2, 3, 4)
		}, checkup.Fail, "connect: must be unreachable, but 5 of 5 were connected"},
		{"unreachable, and refused", func(c *connection) {
			c.w.Expect.Unreachable = true
			c.fail(refused, 0, 1, 2, 3, 4)
		}, checkup.Pass, ""},
	}
	seen := map[checkup.Verdict]bool{}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := newConnection()
			test.change(c)
			r := Judge(c.w, c.roster, c.record, checkup.Gate{MaxUnmeasured: 100})
			if len(r.Connections) != 1 {
				t.Fatalf("%d connections, want 1", len(r.Connections))
			}
			cause := ""
			if why := r.Connections[0].Cause; why != nil {
				cause = why.String()
			}
			seen[r.Connections[0].Verdict] = true
			if got := r.Connections[0].Verdict; got != test.want || cause != test.cause {
				t.Errorf("got %s, %q\nwant %s, %q", got, cause, test.want, test.cause)
			}
			if (r.Counts != checkup.Counts{Expected: 1, Pass: r.Counts.Pass, Fail: r.Counts.Fail, Unmeasured: r.Counts.Unmeasured}) || r.Counts.Fail != len(r.Failed) || len(r.Findings) != r.Counts.Fail {
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
		p := newPlane(1, 1, 3)
		p.w.Sources, p.w.Assignments = p.w.Sources[:1], [][]int{{p.balancer()}}
		record := p.measure()
		record.Sources[0].Controls = test.controls
		if got := Judge(p.w, p.roster, record, checkup.Gate{}).Connections[0]; got.Verdict != test.want {
			t.Errorf("%s: %s (%v), want %s", test.name, got.Verdict, got.Cause, test.want)
		}
	}
}

// randomPlane is a control plane of a random size with random faults.
func randomPlane(seed uint64) *plane {
	rng := rand.New(rand.NewPCG(seed, 23))
	p := newPlane(seed, 1+rng.IntN(3), 1+rng.IntN(20))
	p.w.Expect.Loss.Max = ptr(checkup.Percent(rng.IntN(50)))
	bad, chance := rng.IntN(len(p.w.Targets)), rng.Float64()
	p.way = func(s, t int, after time.Duration) *checkup.Cause {
		if (t == bad || p.rng.IntN(30) == 0) && p.rng.Float64() < chance {
			return []*checkup.Cause{refused, silent, timedOut}[p.rng.IntN(3)]
		}
		return nil
	}
	return p
}

// TestConnectionsHold checks what must hold for any record.
func TestConnectionsHold(t *testing.T) {
	for seed := range iterations(20, 400) {
		p := randomPlane(seed)
		record := p.measure()
		rng := rand.New(rand.NewPCG(seed, 24))
		whole := Judge(p.w, p.roster, record, checkup.Gate{})
		if whole.Counts.Expected != p.w.CountPairs() || len(whole.Connections) != whole.Counts.Expected || whole.Counts.Unmeasured > 0 || whole.Sent != len(record.Results) {
			t.Fatalf("seed %d: %+v, %d connections, %d sent of %d results", seed, whole.Counts, len(whole.Connections), whole.Sent, len(record.Results))
		}
		for _, c := range whole.Connections {
			failed := 0
			for _, n := range c.Failures {
				failed += n
			}
			inOutages := 0
			for _, o := range c.Outages {
				inOutages += o.Failures
			}
			if c.Received+failed != c.Sent || inOutages != failed || c.Name == "" || c.Address == "" || (c.Cause == nil) != (c.Verdict == checkup.Pass) {
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
		if diff := cmp.Diff(whole, Judge(p.w, p.roster, &shuffled, checkup.Gate{})); diff != "" {
			t.Fatalf("seed %d: the order of results matters:\n%s", seed, diff)
		}
		if !slices.Equal(before, shuffled.Results) {
			t.Fatalf("seed %d: Judge changed its argument", seed)
		}

		// Without one of the results nothing of its source passes any more that the
		// agent says it told, and its own pair never.
		gone := rng.IntN(len(record.Results))
		partial := *record
		partial.Results = slices.Delete(slices.Clone(record.Results), gone, gone+1)
		r := Judge(p.w, p.roster, &partial, checkup.Gate{})
		for i, c := range r.Connections {
			if c.Source == name(p.w.Sources, record.Results[gone].Source) && c.Verdict == checkup.Pass {
				t.Fatalf("seed %d: %s -> %s passes although a result of its source is missing", seed, c.Source, c.Target)
			}
			if c.Source != name(p.w.Sources, record.Results[gone].Source) && c.Verdict != whole.Connections[i].Verdict {
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
		r = Judge(p.w, p.roster, &partial, checkup.Gate{})
		at := slices.IndexFunc(slices.Collect(p.w.Pairs()), func(pair checkup.Pair) bool { return pair == record.Results[gone].Pair })
		if r.Connections[at].Verdict == checkup.Pass {
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
	c.fail(silent, 4)
	r := Judge(c.w, c.roster, c.record, checkup.Gate{})
	want := []checkup.DelayRow{
		{Transport: checkup.TLS, Stage: checkup.StageConnect, Family: checkup.IPv4, Pairs: 1, Sent: 5, Received: 5, Delay: delay([][]int64{{300, 300, 300, 300, 100}})},
		{Transport: checkup.TLS, Stage: checkup.StageHandshake, Family: checkup.IPv4, Pairs: 1, Sent: 5, Received: 4, Loss: 20, Delay: delay([][]int64{{900}})},
	}
	if diff := cmp.Diff(want, r.Delays); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}

// TestStopped: what was told before a run was stopped is in its report.
func TestStopped(t *testing.T) {
	r := connectionScenarios(Run{})["connections-stopped"].Checks[0]
	told, outages := 0, 0
	for _, c := range r.Connections {
		told += c.Sent
		outages += len(c.Outages)
	}
	if told != r.Sent || told == 0 || outages == 0 || r.Counts.Pass > 0 {
		t.Errorf("%d of %d measurements, %d outages, %+v", told, r.Sent, outages, r.Counts)
	}
	if len(r.Notes) != 2 || !strings.HasPrefix(r.Notes[1], "no PodNetworkConnectivityChecks are written: ") {
		t.Errorf("notes %q", r.Notes)
	}
}
