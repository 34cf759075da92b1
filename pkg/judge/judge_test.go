// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge/judgetest"
)

func ptr[T any](v T) *T { return &v }

// check is the report of a worksheet's pairs with those that did not pass.
func check(w *checkup.Worksheet, roster *checkup.Roster, record *checkup.Record, gate checkup.Gate) checkup.CheckReport {
	j := Pairs(w, roster, record, Rules{})
	r := j.Report(gate)
	r.Units = j.Troubled()
	r.Delays, r.Matrix = j.DelayRows(), j.Matrix()
	return r
}

// units of a report that have a verdict.
func units(r checkup.CheckReport, v checkup.Verdict) []checkup.Unit {
	return slices.DeleteFunc(slices.Clone(r.Units), func(u checkup.Unit) bool { return u.Verdict != v })
}

// one is a worksheet of a single udp pair, and what was recorded of it. Each case
// of the table below changes something about it.
type one struct {
	w           checkup.Worksheet
	roster      *checkup.Roster
	record      *checkup.Record
	observation *checkup.Observation
}

func newOne() *one {
	node := checkup.Endpoint{Node: "a"}
	o := &one{
		w: checkup.Worksheet{
			Check: "mesh", Kind: "podMesh", Possible: 1,
			Sources: []checkup.Endpoint{node}, Targets: []checkup.Endpoint{{Node: "b"}},
			Assignments: [][]int{{0}}, IPFamilies: []checkup.IPFamily{checkup.IPv4},
			Probes: []checkup.TransportProbe{{Transport: checkup.UDP, Probe: checkup.Probe{Sizes: []int{64}, Count: 4}}},
		},
		roster: &checkup.Roster{Targets: []checkup.RosterEntry{{Pod: "ns/b", Addresses: map[checkup.IPFamily]string{checkup.IPv4: "10.0.0.2"}}}},
		record: &checkup.Record{
			Sources: []checkup.Source{{
				Controls: []checkup.Control{{Family: checkup.IPv4, Name: "self", OK: true}, {Family: checkup.IPv4, Name: "closed", OK: true}},
				End:      &checkup.AgentEnd{Observations: 1},
			}},
			Observations: []checkup.Observation{{
				Pair: checkup.Pair{Family: checkup.IPv4, Transport: checkup.UDP, Size: 64},
				Sent: 4, Received: 4, RTTs: []int64{100, 200, 300, 400},
			}},
		},
	}
	o.observation = &o.record.Observations[0]
	return o
}

// transport makes the pair one of another transport.
func (o *one) transport(t checkup.Transport, size int) {
	o.w.Probes = []checkup.TransportProbe{{Transport: t, Probe: checkup.Probe{Sizes: []int{size}, Count: 4}}}
	o.observation.Transport, o.observation.Size = t, size
}

func (o *one) received(n int, failure *checkup.Cause) {
	o.observation.Received, o.observation.RTTs = n, o.observation.RTTs[:n]
	o.observation.Failure = failure
}

// witnessed makes the plan expect the source's own address, and the target report what it saw.
func (o *one) witnessed(answers, rewritten int, as string) {
	o.w.Expect.SourceAddress = checkup.PreservedSource
	o.observation.Witnessed, o.observation.Rewritten, o.observation.SeenAs = answers, rewritten, as
}

// dropped makes the target's responder, whose count is known, report that so many
// requests arrived and so many, of all pairs, were dropped. What it reports of the
// pair itself is beside what it reports of another.
func (o *one) dropped(arrived, dropped int) {
	other := o.observation.Pair
	other.Source = 1
	o.record.Counted = []int{0}
	o.record.Receptions = []checkup.Reception{{Pair: other, Packets: 1, Dropped: dropped}, {Pair: o.observation.Pair, Packets: arrived}}
}

func TestJudgePair(t *testing.T) {
	timeout := &checkup.Cause{Stage: checkup.StageEcho, Message: "timed out"}
	tests := []struct {
		name   string
		change func(*one)
		want   checkup.Verdict
		cause  string // "stage: message" of what is not a pass
	}{
		{"all answered", func(*one) {}, checkup.Pass, ""},

		// Nothing known.
		{"no roster", func(o *one) { o.roster = nil }, checkup.Unmeasured, "setup: the target is not on the roster"},
		{"not on the roster", func(o *one) { o.roster.Targets = nil }, checkup.Unmeasured, "setup: the target is not on the roster"},
		{"no address of the family", func(o *one) { o.roster.Targets[0].Addresses = map[checkup.IPFamily]string{checkup.IPv6: "fd00::2"} }, checkup.Unmeasured, "setup: the target has no IPv4 address; if no pod of this cluster has one, remove it from the plan's ipFamilies"},
		{"target did not start", func(o *one) {
			o.roster.Targets[0].Cause = &checkup.Cause{Stage: checkup.StageStart, Message: "image cannot be pulled"}
		}, checkup.Unmeasured, "start: image cannot be pulled"},
		{"no record", func(o *one) { o.record = nil }, checkup.Unmeasured, "collect: the record has no data of the source"},
		{"source not in the record", func(o *one) { *o.record = checkup.Record{} }, checkup.Unmeasured, "collect: the record has no data of the source"},
		{"source has a cause", func(o *one) {
			o.record.Observations = nil
			o.record.Sources = []checkup.Source{{Cause: &checkup.Cause{Stage: checkup.StageSchedule, Message: "0/3 nodes are available"}}}
		}, checkup.Unmeasured, "schedule: 0/3 nodes are available"},
		{"agent did not end", func(o *one) { o.record.Observations, o.record.Sources[0].End = nil, nil }, checkup.Unmeasured, "collect: the agent did not finish"},
		{"agent exited without reporting the pair", func(o *one) { o.record.Observations = nil }, checkup.Unmeasured, "collect: the agent exited without reporting this pair"},
		{"agent reports it as unmeasured", func(o *one) {
			o.observation.Unmeasured = &checkup.Cause{Stage: checkup.StageSelf, Message: "deadline"}
		}, checkup.Unmeasured, "self: deadline"},

		// Reports that are not credible.
		{"self control wrong", func(o *one) {
			o.record.Sources[0].Controls[0] = checkup.Control{Family: checkup.IPv4, Name: "self", Message: "refused"}
		}, checkup.Unmeasured, `control: the agent got its control pair "self" wrong (refused), so it is not trusted`},
		{"closed control wrong", func(o *one) {
			o.record.Sources[0].Controls[1] = checkup.Control{Family: checkup.IPv4, Name: "closed", Message: "connected"}
		}, checkup.Unmeasured, `control: the agent got its control pair "closed" wrong (connected), so it is not trusted`},
		{"control wrong, and the pair would fail", func(o *one) {
			o.received(0, timeout)
			o.record.Sources[0].Controls[0].OK = false
		}, checkup.Unmeasured, `control: the agent got its control pair "self" wrong (it gave no details), so it is not trusted`},
		{"control of the other family wrong", func(o *one) {
			o.record.Sources[0].Controls = append(o.record.Sources[0].Controls, checkup.Control{Family: checkup.IPv6, Name: "self"})
		}, checkup.Pass, ""},
		{"no closed control reported", func(o *one) { o.record.Sources[0].Controls = o.record.Sources[0].Controls[:1] }, checkup.Unmeasured, `control: the agent reported no control pair "closed", so it is not trusted`},
		{"reported twice, the same", func(o *one) { o.record.Observations = append(o.record.Observations, *o.observation) }, checkup.Pass, ""},
		{"reported twice, differently", func(o *one) {
			again := *o.observation
			again.RTTs = []int64{1, 2, 3, 4}
			o.record.Observations = append(o.record.Observations, again)
		}, checkup.Unmeasured, "collect: the agent reported this pair twice, with different results"},
		{"a conflict of another source was recorded", func(o *one) {
			o.record.Sources = append(o.record.Sources, checkup.Source{Source: 1, Conflicts: []checkup.Pair{o.observation.Pair}})
		}, checkup.Pass, ""},
		{"an unrequested pair", func(o *one) {
			alien := *o.observation
			alien.Target = 7
			o.record.Observations = append(o.record.Observations, alien)
		}, checkup.Unmeasured, "collect: the agent reported 1 unrequested pair, so it is not trusted"},
		{"unrequested pairs that the collector left out", func(o *one) { o.record.Sources[0].Unrequested = 2 }, checkup.Unmeasured, "collect: the agent reported 2 unrequested pairs, so it is not trusted"},
		{"unrequested pairs, and a wrong control", func(o *one) {
			o.record.Sources[0].Unrequested = 2
			o.record.Sources[0].Controls[0] = checkup.Control{Family: checkup.IPv4, Name: "self", Message: "refused"}
		}, checkup.Unmeasured, `control: the agent got its control pair "self" wrong (refused), so it is not trusted`},
		{"a conflict that the collector left out", func(o *one) {
			o.record.Sources[0].Conflicts = []checkup.Pair{o.observation.Pair}
		}, checkup.Unmeasured, "collect: the agent reported this pair twice, with different results"},
		{"a conflict that the collector left out, with all of its reports", func(o *one) {
			o.record.Sources[0].Conflicts = []checkup.Pair{o.observation.Pair}
			o.record.Observations = nil
		}, checkup.Unmeasured, "collect: the agent reported this pair twice, with different results"},
		{"a conflict of another pair", func(o *one) {
			other := o.observation.Pair
			other.Target = 7
			o.record.Sources[0].Conflicts = []checkup.Pair{other}
		}, checkup.Pass, ""},
		{"a source that is not on the worksheet", func(o *one) {
			stray := *o.observation
			stray.Source = -1
			o.record.Observations = append(o.record.Observations, stray)
		}, checkup.Pass, ""},
		{"more received than sent", func(o *one) { o.observation.Sent = 3 }, checkup.Unmeasured, "collect: the numbers do not add up: 3 sent, 0 spoiled and 4 received with 4 delays, of 4 ordered"},
		{"more sent than ordered", func(o *one) { o.observation.Sent = 5 }, checkup.Unmeasured, "collect: the numbers do not add up: 5 sent, 0 spoiled and 4 received with 4 delays, of 4 ordered"},
		{"negative duplicates", func(o *one) { o.observation.Duplicates = -5 }, checkup.Unmeasured, "collect: the numbers do not add up: 4 sent, 0 spoiled and 4 received with 4 delays, of 4 ordered"},
		{"a delay longer than the probe task", func(o *one) {
			o.w.Timeouts.Probe = checkup.Duration(time.Minute)
			o.observation.RTTs[2] = 1<<63 - 1
		}, checkup.Unmeasured, "collect: the numbers do not add up: a delay of 9223372036854775807 µs, of at most 60000000"},
		{"fewer delays than answers", func(o *one) { o.observation.RTTs = o.observation.RTTs[:3] }, checkup.Unmeasured, "collect: the numbers do not add up: 4 sent, 0 spoiled and 4 received with 3 delays, of 4 ordered"},
		{"nothing sent", func(o *one) { *o.observation = checkup.Observation{Pair: o.observation.Pair} }, checkup.Unmeasured, "collect: no measurement was made"},
		{"the zero observation of a failure", func(o *one) {
			*o.observation = checkup.Observation{Pair: o.observation.Pair, Failure: timeout}
		}, checkup.Unmeasured, "collect: no measurement was made"},
		{"fewer sent than ordered, all answered", func(o *one) { o.observation.Sent = 3; o.received(3, nil) }, checkup.Unmeasured, "collect: only 3 of 4 measurements were made: too few to pass"},
		{"fewer sent than ordered, none answered", func(o *one) { o.observation.Sent = 3; o.received(0, timeout) }, checkup.Fail, "echo: timed out"},
		{"spoiled in part, and repeated", func(o *one) { o.observation.Spoiled = 3 }, checkup.Pass, ""},
		{"spoiled more often than ordered, and repeated", func(o *one) { o.observation.Spoiled = 16 }, checkup.Pass, ""},
		{"spoiled, repeated, and none answered", func(o *one) { o.observation.Spoiled = 3; o.received(0, timeout) }, checkup.Fail, "echo: timed out"},
		{"spoiled in part", func(o *one) { o.observation.Sent, o.observation.Spoiled = 2, 18; o.received(2, nil) }, checkup.Unmeasured, "self: the agent or its target was held up in 18 of 20 measurements; 2 of 4 ordered remain, too few to pass"},
		{"spoiled in part, and none answered", func(o *one) { o.observation.Sent, o.observation.Spoiled = 2, 18; o.received(0, timeout) }, checkup.Fail, "echo: timed out"},
		{"mostly spoiled", func(o *one) { o.observation.Sent, o.observation.Spoiled = 1, 3; o.received(0, timeout) }, checkup.Unmeasured, "self: the agent or its target was held up in 3 of 4 measurements; 1 of 4 ordered remain"},
		{"no local socket", func(o *one) {
			o.received(0, &checkup.Cause{Stage: checkup.StageSocket, Message: "too many open files"})
		}, checkup.Unmeasured, "socket: too many open files"},
		{"no local socket, and must be unreachable", func(o *one) {
			o.w.Expect.Unreachable = true
			o.received(0, &checkup.Cause{Stage: checkup.StageSocket, Message: "too many open files"})
		}, checkup.Unmeasured, "socket: too many open files"},

		// Expectations.
		{"nothing received", func(o *one) { o.received(0, timeout) }, checkup.Fail, "echo: timed out"},
		{"nothing received, no failure reported", func(o *one) { o.received(0, nil) }, checkup.Fail, "echo: no answer"},
		{"lost without a limit", func(o *one) { o.received(1, timeout) }, checkup.Pass, ""},
		{"lost within the limit", func(o *one) { o.received(3, timeout); o.w.Expect.Loss.Max = ptr(checkup.Percent(25)) }, checkup.Pass, ""},
		{"lost more than the limit, as often happens by chance", func(o *one) { o.received(2, timeout); o.w.Expect.Loss.Max = ptr(checkup.Percent(25)) }, checkup.Pass, ""},
		{"lost more than the limit, as seldom happens by chance", func(o *one) { o.received(3, timeout); o.w.Expect.Loss.Max = ptr(checkup.Percent(1)) }, checkup.Undecided, "echo: 1 of 4 lost (25%), limit 1%: too few measurements to decide; last: timed out"},
		{"lost more than the limit", func(o *one) { o.received(1, timeout); o.w.Expect.Loss.Max = ptr(checkup.Percent(1)) }, checkup.Fail, "echo: 3 of 4 lost (75%), limit 1%; last: timed out"},
		{"lost one, and none may be", func(o *one) { o.received(3, timeout); o.w.Expect.Loss.Max = ptr(checkup.Percent(0)) }, checkup.Fail, "echo: 1 of 4 lost (25%), limit 0%; last: timed out"},
		{"lost all, and all may be", func(o *one) { o.received(0, timeout); o.w.Expect.Loss.Max = ptr(checkup.Percent(100)) }, checkup.Fail, "echo: timed out"},
		{"lost too much of too few to pass", func(o *one) {
			o.observation.Sent = 3
			o.received(2, timeout)
			o.w.Expect.Loss.Max = ptr(checkup.Percent(1))
		}, checkup.Unmeasured, "collect: only 3 of 4 measurements were made: too few to pass"},
		{"p50 at its limit", func(o *one) { o.w.Expect.Latency.P50 = ptr(checkup.Duration(200 * time.Microsecond)) }, checkup.Pass, ""},
		{"p50 over its limit, as often happens by chance", func(o *one) { o.w.Expect.Latency.P50 = ptr(checkup.Duration(199 * time.Microsecond)) }, checkup.Pass, ""},
		{"p90 over its limit", func(o *one) { o.w.Expect.Latency.P90 = ptr(checkup.Duration(99 * time.Microsecond)) }, checkup.Fail, "echo: p90 400µs, limit 99µs, exceeded by 4 of 4"},
		{"p99 over its limit, as seldom happens by chance", func(o *one) { o.w.Expect.Latency.P99 = ptr(checkup.Duration(300 * time.Microsecond)) }, checkup.Undecided, "echo: p99 400µs, limit 300µs, exceeded by 1 of 4: too few measurements to decide"},
		{"max over its limit", func(o *one) { o.w.Expect.Latency.Max = ptr(checkup.Duration(399 * time.Microsecond)) }, checkup.Fail, "echo: max 400µs, limit 399µs"},
		{"two percentiles and jitter over their limits", func(o *one) {
			o.w.Expect.Latency.P99 = ptr(checkup.Duration(time.Microsecond))
			o.w.Expect.Latency.Max = ptr(checkup.Duration(2 * time.Microsecond))
			o.w.Expect.Jitter.Max = ptr(checkup.Duration(99 * time.Microsecond))
		}, checkup.Fail, "echo: p99 400µs, limit 1µs, exceeded by 4 of 4; max 400µs, limit 2µs; jitter 100µs, limit 99µs"},
		{"one limit is broken, another perhaps", func(o *one) {
			o.received(3, timeout)
			o.w.Expect.Loss.Max = ptr(checkup.Percent(1))
			o.w.Expect.Latency.Max = ptr(checkup.Duration(2 * time.Microsecond))
		}, checkup.Fail, "echo: max 300µs, limit 2µs"},
		{"loss and delay over their limits", func(o *one) {
			o.received(2, timeout)
			o.w.Expect.Loss.Max = ptr(checkup.Percent(0))
			o.w.Expect.Latency.Max = ptr(checkup.Duration(0))
		}, checkup.Fail, "echo: 2 of 4 lost (50%), limit 0%; last: timed out; max 200µs, limit 0s"},

		// A responder that dropped requests itself.
		{"dropped by the responder", func(o *one) { o.received(2, timeout); o.w.Expect.Loss.Max = ptr(checkup.Percent(0)); o.dropped(2, 2) }, checkup.Unmeasured, "self: 2 of 4 requests did not arrive, but the responder's socket had no room for 2"},
		{"perhaps dropped by the responder", func(o *one) { o.received(3, timeout); o.w.Expect.Loss.Max = ptr(checkup.Percent(1)); o.dropped(3, 1) }, checkup.Unmeasured, "self: 1 of 4 requests did not arrive, but the responder's socket had no room for 1"},
		{"a responder that dropped more than can have been sent", func(o *one) { o.received(0, timeout); o.dropped(0, 1<<40) }, checkup.Fail, "echo: timed out"},
		{"all dropped by the responder", func(o *one) { o.received(0, timeout); o.dropped(0, 4) }, checkup.Unmeasured, "self: 4 of 4 requests did not arrive, but the responder's socket had no room for 4"},
		{"more dropped than was sent", func(o *one) { o.received(0, timeout); o.dropped(0, 5) }, checkup.Fail, "echo: timed out"},
		{"more dropped than was sent, with spoiled ones", func(o *one) { o.received(0, timeout); o.observation.Spoiled = 1; o.dropped(0, 5) }, checkup.Unmeasured, "self: 5 of 5 requests did not arrive, but the responder's socket had no room for 5"},
		{"answers without requests", func(o *one) { o.dropped(0, 0) }, checkup.Unmeasured, "collect: the agent reported 4 answers, but its target counted 0 requests: one of them is wrong"},
		{"more answers than requests", func(o *one) { o.received(3, timeout); o.dropped(2, 0) }, checkup.Unmeasured, "collect: the agent reported 3 answers, but its target counted 2 requests: one of them is wrong"},
		{"answers without requests, but the responder was not read to its end", func(o *one) { o.dropped(0, 0); o.record.Counted = nil }, checkup.Pass, ""},
		{"answers of a connection, which targets do not count", func(o *one) { o.transport(checkup.TCP, 0); o.dropped(0, 0) }, checkup.Pass, ""},
		{"repeated requests arrived too", func(o *one) { o.observation.Spoiled = 2; o.dropped(6, 0) }, checkup.Pass, ""},
		{"a delay above its timeout", func(o *one) { o.w.Probes[0].Timeout = checkup.Duration(399 * time.Microsecond) }, checkup.Unmeasured, "collect: the numbers do not add up: a delay of 400 µs, of at most 399"},
		{"a delay of its timeout", func(o *one) { o.w.Probes[0].Timeout = checkup.Duration(400 * time.Microsecond) }, checkup.Pass, ""},
		{"more reordered than received", func(o *one) { o.observation.Reordered = 5 }, checkup.Unmeasured, "collect: the numbers do not add up: 4 sent, 0 spoiled and 4 received with 4 delays, of 4 ordered"},
		{"more spoiled than tries", func(o *one) { o.observation.Spoiled = 21 }, checkup.Unmeasured, "collect: the numbers do not add up: 4 sent, 21 spoiled and 4 received with 4 delays, of 4 ordered"},
		{"dropped by the responder, without a limit", func(o *one) { o.received(2, timeout); o.dropped(2, 2) }, checkup.Pass, ""},
		{"more lost than the responder dropped", func(o *one) { o.received(0, timeout); o.dropped(0, 3) }, checkup.Fail, "echo: timed out"},
		{"answers lost too", func(o *one) { o.received(0, timeout); o.dropped(1, 9) }, checkup.Fail, "echo: timed out"},
		{"dropped in the other family", func(o *one) { o.received(0, timeout); o.dropped(0, 9); o.record.Receptions[0].Family = checkup.IPv6 }, checkup.Fail, "echo: timed out"},
		{"dropped, but the responder was not read to its end", func(o *one) { o.received(0, timeout); o.dropped(0, 9); o.record.Counted = nil }, checkup.Fail, "echo: timed out"},
		{"dropped datagrams, and no connection", func(o *one) { o.transport(checkup.TCP, 0); o.received(0, timeout); o.dropped(0, 9) }, checkup.Fail, "echo: timed out"},
		{"dropped, but too slow is what fails", func(o *one) { o.w.Expect.Latency.Max = ptr(checkup.Duration(0)); o.dropped(4, 9) }, checkup.Fail, "echo: max 400µs, limit 0s"},
		{"unreachable, but the responder dropped", func(o *one) { o.w.Expect.Unreachable = true; o.received(0, timeout); o.dropped(0, 4) }, checkup.Unmeasured, "self: 4 of 4 requests did not arrive, but the responder's socket had no room for 4"},
		{"unreachable, and more dropped than was sent", func(o *one) { o.w.Expect.Unreachable = true; o.received(0, timeout); o.dropped(0, 9) }, checkup.Unmeasured, "collect: the responder counted 9 dropped requests, of at most 4 that were sent to it: its count is not trusted"},

		// The source address.
		{"source address kept", func(o *one) { o.witnessed(4, 0, "") }, checkup.Pass, ""},
		{"source address rewritten", func(o *one) { o.witnessed(4, 4, "10.1.2.3") }, checkup.Fail, "echo: the target saw the source address 10.1.2.3, not the agent's own, in 4 of 4"},
		{"source address sometimes rewritten", func(o *one) { o.witnessed(4, 1, "fd00::7") }, checkup.Fail, "echo: the target saw the source address fd00::7, not the agent's own, in 1 of 4"},
		{"source address unknown", func(o *one) { o.witnessed(0, 0, "") }, checkup.Unmeasured, "collect: the target did not report the source address that it saw: its responder, or the agent, is of an older version, or does not answer on this connection"},
		{"source address unknown, and nothing answered", func(o *one) { o.witnessed(0, 0, ""); o.received(0, timeout) }, checkup.Fail, "echo: timed out"},
		{"any source address", func(o *one) { o.witnessed(4, 4, "10.1.2.3"); o.w.Expect.SourceAddress = checkup.AnySource }, checkup.Pass, ""},
		{"source address, of icmp", func(o *one) { o.witnessed(0, 0, ""); o.transport(checkup.ICMP, 64) }, checkup.Pass, ""},
		{"source address, in a small packet", func(o *one) { o.witnessed(0, 0, ""); o.transport(checkup.UDP, 47) }, checkup.Pass, ""},
		{"source address, of an existing pod", func(o *one) { o.witnessed(0, 0, ""); o.transport(checkup.TCP, 0); o.w.Targets[0].Pod = "ns/web" }, checkup.Pass, ""},
		{"source address, of an agent on the host network", func(o *one) { o.witnessed(4, 4, "10.1.2.3"); o.w.Sources[0].HostNetwork = true }, checkup.Pass, ""},
		{"invalid source address", func(o *one) { o.witnessed(4, 4, "\x1b[31m") }, checkup.Unmeasured, "collect: the numbers do not add up: 4 answers with a rewritten source address, which is not an IP address"},
		{"source address without a rewritten answer", func(o *one) { o.witnessed(4, 0, "10.1.2.3") }, checkup.Unmeasured, "collect: the numbers do not add up: 0 answers with a rewritten source address, which is not an IP address"},
		{"more witnessed than received", func(o *one) { o.witnessed(5, 0, "") }, checkup.Unmeasured, "collect: the numbers do not add up: 5 answers with a source address, 0 of them rewritten, of 4 received"},
		{"more rewritten than witnessed", func(o *one) { o.witnessed(3, 4, "10.1.2.3") }, checkup.Unmeasured, "collect: the numbers do not add up: 3 answers with a source address, 4 of them rewritten, of 4 received"},

		// The opposite expectation.
		{"unreachable, nothing came through", func(o *one) { o.w.Expect.Unreachable = true; o.received(0, timeout) }, checkup.Pass, ""},
		{"unreachable, but answered", func(o *one) { o.w.Expect.Unreachable = true; o.received(1, timeout) }, checkup.Fail, "echo: must be unreachable, but 1 of 4 were answered"},
		{"unreachable, but answered, and the responder dropped", func(o *one) { o.w.Expect.Unreachable = true; o.received(1, timeout); o.dropped(1, 9) }, checkup.Fail, "echo: must be unreachable, but 1 of 4 were answered"},
		{"unreachable, but requests arrive", func(o *one) {
			o.w.Expect.Unreachable = true
			o.received(0, timeout)
			o.record.Receptions = []checkup.Reception{{Pair: o.observation.Pair, Packets: 2}}
		}, checkup.Fail, "echo: must be unreachable, but 2 requests arrived at the target"},
		{"unreachable, but connects", func(o *one) {
			o.w.Expect.Unreachable = true
			o.transport(checkup.HTTP, 0)
			o.received(0, &checkup.Cause{Stage: checkup.StageResponse, Message: "503"})
		}, checkup.Fail, "response: must be unreachable, but it accepted a connection: 503"},
		{"unreachable, too few were made", func(o *one) {
			o.w.Expect.Unreachable = true
			o.observation.Sent = 1
			o.received(0, timeout)
		}, checkup.Unmeasured, "collect: only 1 of 4 measurements were made: too few to pass"},
		{"unreachable, not reported", func(o *one) { o.w.Expect.Unreachable = true; o.record.Observations = nil }, checkup.Unmeasured, "collect: the agent exited without reporting this pair"},
		{"unreachable, no address", func(o *one) { o.w.Expect.Unreachable = true; o.roster.Targets[0].Addresses = nil }, checkup.Unmeasured, "setup: the target has no IPv4 address; if no pod of this cluster has one, remove it from the plan's ipFamilies"},

		// Worksheets that no Expand makes.
		{"no such target", func(o *one) { o.w.Assignments = [][]int{{1}} }, checkup.Unmeasured, "setup: invalid worksheet: the pair's source or target does not exist"},
	}
	seen := map[checkup.Verdict]bool{}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := newOne()
			test.change(o)
			r := check(&o.w, o.roster, o.record, checkup.Gate{MaxUnmeasured: 100})
			got, cause := checkup.Pass, ""
			if len(r.Units) > 0 {
				got, cause = r.Units[0].Verdict, r.Units[0].Cause.String()
			}
			seen[got] = true
			if got != test.want || cause != test.cause {
				t.Errorf("got %s, %q\nwant %s, %q", got, cause, test.want, test.cause)
			}
			if r.Counts.Expected != 1 || r.Counts.Pass+r.Counts.Fail+r.Counts.Undecided+r.Counts.Unmeasured != 1 {
				t.Errorf("counts do not add up to the one expected pair: %+v", r.Counts)
			}
		})
	}
	for _, v := range checkup.Verdicts {
		if !seen[v] {
			t.Errorf("no case has verdict %s", v)
		}
	}
}

// TestHugeClaim: a source that claims to have sent more than any plan orders does not cost another its excuse: the full
// socket of their target.
func TestHugeClaim(t *testing.T) {
	o := newOne()
	o.w.Sources, o.w.Assignments = append(o.w.Sources, checkup.Endpoint{Node: "c"}), [][]int{{0}, {0}}
	liar := *o.observation
	liar.Source, liar.Sent, liar.Spoiled = 1, math.MaxInt64, 1
	o.received(0, &checkup.Cause{Stage: checkup.StageEcho, Message: "timed out"})
	o.dropped(0, 4)
	o.record.Observations = append(o.record.Observations, liar)
	r := check(&o.w, o.roster, o.record, checkup.Gate{MaxUnmeasured: 100})
	if u := r.Units[0]; u.Verdict != checkup.Unmeasured || u.Cause.Stage != checkup.StageSelf || r.Sent < 0 {
		t.Errorf("got %s, %s, of %d measurements; want that the responder's socket had no room", u.Verdict, u.Cause, r.Sent)
	}
}

func TestVerdict(t *testing.T) {
	tests := []struct {
		counts checkup.Counts
		max    checkup.Percent
		want   checkup.RunVerdict
	}{
		{checkup.Counts{Expected: 3, Pass: 3}, 0, checkup.RunPass},
		{checkup.Counts{Expected: 3, Pass: 2, Fail: 1}, 0, checkup.RunFail},
		{checkup.Counts{Expected: 3, Fail: 1, Unmeasured: 2}, 0, checkup.RunFail},
		{checkup.Counts{Expected: 3, Pass: 2, Unmeasured: 1}, 0, checkup.RunInconclusive},
		{checkup.Counts{Expected: 20, Pass: 19, Unmeasured: 1}, 5, checkup.RunPass},
		{checkup.Counts{Expected: 20, Pass: 18, Unmeasured: 2}, 5, checkup.RunInconclusive},
		{checkup.Counts{Expected: 20, Pass: 19, Unmeasured: 1}, checkup.Percent(math.NaN()), checkup.RunInconclusive},
		{checkup.Counts{Expected: 3, Unmeasured: 3}, 100, checkup.RunInconclusive},
		{checkup.Counts{Expected: 3, Pass: 2, Undecided: 1}, 0, checkup.RunPass},
		{checkup.Counts{Expected: 3, Pass: 1, Undecided: 1, Unmeasured: 1}, 0, checkup.RunInconclusive},
		{checkup.Counts{Expected: 3, Fail: 1, Undecided: 2}, 0, checkup.RunFail},
		{checkup.Counts{Expected: 3, Undecided: 3}, 0, checkup.RunPass},
		{checkup.Counts{}, 100, checkup.RunInconclusive},
	}
	seen := map[checkup.RunVerdict]bool{}
	for _, test := range tests {
		seen[test.want] = true
		if got := Verdict(test.counts, test.max); got != test.want {
			t.Errorf("verdict(%+v, %s) = %s, want %s", test.counts, test.max, got, test.want)
		}
	}
	for _, v := range checkup.RunVerdicts {
		if !seen[v] {
			t.Errorf("no case has verdict %s", v)
		}
	}
}

func TestJoin(t *testing.T) {
	plan := &checkup.Plan{
		Name: "p", Gate: checkup.Gate{Require: checkup.RequireNoFailure},
		Checks: map[string]checkup.Check{"a": {After: []string{"b"}, Spec: spec("podMesh")}, "b": {Spec: spec("podMesh")}},
	}
	check := func(name string, v checkup.RunVerdict, c checkup.Counts) checkup.CheckReport {
		return checkup.CheckReport{Name: name, Kind: "podMesh", Verdict: v, Counts: c}
	}
	pass := checkup.Counts{Expected: 2, Pass: 2}
	tests := []struct {
		name    string
		plan    *checkup.Plan
		checks  []checkup.CheckReport
		left    []string
		want    checkup.RunVerdict
		passed  bool
		order   string
		summary string
	}{
		{"all pass", plan, []checkup.CheckReport{check("a", checkup.RunPass, pass), check("b", checkup.RunPass, pass)}, nil,
			checkup.RunPass, true, "b a", "pass: 4 of 4 pairs passed, 0 failed, 0 unmeasured"},
		{"one fails", plan, []checkup.CheckReport{check("a", checkup.RunFail, checkup.Counts{Expected: 2, Pass: 1, Fail: 1}), check("b", checkup.RunPass, pass)}, nil,
			checkup.RunFail, false, "b a", "fail: 3 of 4 pairs passed, 1 failed, 0 unmeasured"},
		{"one is undecided", plan, []checkup.CheckReport{check("a", checkup.RunPass, checkup.Counts{Expected: 2, Pass: 1, Undecided: 1}), check("b", checkup.RunPass, pass)}, nil,
			checkup.RunPass, true, "b a", "pass: 3 of 4 pairs passed, 0 failed, 1 undecided, 0 unmeasured"},
		{"one is missing", plan, []checkup.CheckReport{check("b", checkup.RunPass, pass)}, nil,
			checkup.RunInconclusive, true, "b a", "inconclusive: 2 of 2 pairs passed, 0 failed, 0 unmeasured; a was not measured: setup: the check has no worksheet: its setup failed or did not run"},
		{"one says why it is missing", plan, []checkup.CheckReport{check("b", checkup.RunPass, pass), NotMeasured("a", "podMesh", checkup.Cause{Stage: checkup.StageSetup, Message: "no node matches"})}, nil,
			checkup.RunInconclusive, true, "b a", "inconclusive: 2 of 2 pairs passed, 0 failed, 0 unmeasured; a was not measured: setup: no node matches"},
		{"a verdict that nobody knows", plan, []checkup.CheckReport{check("a", "", pass), check("b", checkup.RunPass, pass)}, nil,
			checkup.RunInconclusive, true, "b a", "inconclusive: 4 of 4 pairs passed, 0 failed, 0 unmeasured"},
		{"no checks", &checkup.Plan{Name: "p"}, nil, nil,
			checkup.RunInconclusive, false, "", "inconclusive: no pair was expected"},
		{"something is left", plan, []checkup.CheckReport{check("a", checkup.RunPass, pass), check("b", checkup.RunPass, pass)}, []string{"Pod/x"},
			checkup.RunPass, true, "b a", "pass: 4 of 4 pairs passed, 0 failed, 0 unmeasured; 1 object left behind"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := Join(test.plan, Run{}, test.checks, test.left)
			var order []string
			for _, c := range r.Checks {
				order = append(order, c.Name)
			}
			if r.Verdict != test.want || r.Passed != test.passed || strings.Join(order, " ") != test.order || r.Summary != test.summary {
				t.Errorf("got %s, passed %t, checks %v, summary\n%s\nwant %s, passed %t, checks %q, summary\n%s", r.Verdict, r.Passed, order, r.Summary, test.want, test.passed, test.order, test.summary)
			}
		})
	}
}

// TestDistrust: what a source is not trusted for has a reason that code can read, and
// a note.
func TestDistrust(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*one)
		reason checkup.Reason
		note   string
	}{
		{"unrequested, in the record", func(o *one) {
			alien := *o.observation
			alien.Target = 7
			o.record.Observations = append(o.record.Observations, alien)
			o.record.Sources[0].End.Observations = 2
		}, checkup.ReasonUnrequested, "reported 1 unrequested pair"},
		{"unrequested, left out", func(o *one) { o.record.Sources[0].Unrequested = 3 }, checkup.ReasonUnrequested, "reported 3 unrequested pairs"},
		{"conflict, left out", func(o *one) {
			o.record.Sources[0].Conflicts = []checkup.Pair{o.observation.Pair}
			o.record.Sources[0].End.Observations = 2
		}, checkup.ReasonConflict, "reported 1 pair twice, with different results"},
	} {
		o := newOne()
		test.change(o)
		r := check(&o.w, o.roster, o.record, checkup.Gate{})
		if len(r.Units) != 1 || r.Units[0].Cause.Reason != test.reason {
			t.Errorf("%s: units %+v, want reason %s", test.name, r.Units, test.reason)
		}
		if len(r.Agents) != 1 || r.Agents[0].Note != test.note {
			t.Errorf("%s: notes %+v, want %q", test.name, r.Agents, test.note)
		}
	}
}

// TestBreaches: each broken limit is a breach with its numbers.
func TestBreaches(t *testing.T) {
	o := newOne()
	o.received(2, &checkup.Cause{Stage: checkup.StageEcho, Message: "timed out"})
	o.w.Expect.Loss.Max = ptr(checkup.Percent(0.5))
	o.w.Expect.Latency.Max = ptr(checkup.Duration(1500))
	o.w.Expect.Jitter.Max = ptr(checkup.Duration(time.Microsecond))
	want := []checkup.Breach{
		{Limit: checkup.LimitLoss, Measured: 50, Max: 0.5, Measure: checkup.MeasurePercent, Cause: o.observation.Failure},
		{Limit: checkup.LimitMax, Measured: 200, Max: 1.5, Measure: checkup.MeasureMicroseconds},
		{Limit: checkup.LimitJitter, Measured: 100, Max: 1, Measure: checkup.MeasureMicroseconds},
	}
	u := check(&o.w, o.roster, o.record, checkup.Gate{}).Units[0]
	if diff := cmp.Diff(want, u.Breaches); diff != "" {
		t.Errorf("breaches (-want +got):\n%s", diff)
	}
	if want := "2 of 4 lost (50%), limit 0.5%; last: timed out; max 200µs, limit 1.5µs; jitter 100µs, limit 1µs"; u.Cause.Message != want {
		t.Errorf("message %q, want %q", u.Cause.Message, want)
	}
}

// TestScore: what checks count is summed up by noun.
func TestScore(t *testing.T) {
	check := func(noun string, expected int) checkup.CheckReport {
		return checkup.CheckReport{Noun: noun, Verdict: checkup.RunPass, Counts: checkup.Counts{Expected: expected, Pass: expected}}
	}
	pairs, where, disabled := check("pair", 3), check("placement", 2), check("placement", 0)
	for _, test := range []struct {
		checks []checkup.CheckReport
		want   string
	}{
		{nil, "no pair was expected"},
		{[]checkup.CheckReport{check("", 0)}, "no pair was expected"},
		{[]checkup.CheckReport{where}, "2 of 2 placements passed, 0 failed, 0 unmeasured"},
		{[]checkup.CheckReport{where, pairs}, "3 of 3 pairs passed, 0 failed, 0 unmeasured; 2 of 2 placements passed, 0 failed, 0 unmeasured"},
		{[]checkup.CheckReport{disabled}, "no placement was expected"},
		{[]checkup.CheckReport{disabled, pairs}, "3 of 3 pairs passed, 0 failed, 0 unmeasured"},
	} {
		if got := score(&checkup.Report{Checks: test.checks}); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

// TestSaid: what a kind adds to the summary comes after the first finding.
func TestSaid(t *testing.T) {
	r := checkup.Report{Verdict: checkup.RunPass, Leftovers: []string{"Pod/x"}, Checks: []checkup.CheckReport{
		{Counts: checkup.Counts{Expected: 1, Pass: 1}, Said: []string{"one", "two"}},
		{Findings: []checkup.Finding{{Message: "found"}}, Said: []string{"three"}},
	}}
	const want = "1 of 1 pair passed, 0 failed, 0 unmeasured; found; one; two; three; 1 object left behind"
	if got := summary(&r); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestJudgeHolds checks what must hold for any record.
func TestJudgeHolds(t *testing.T) {
	for seed := range judgetest.Iterations(10, 200) {
		n := judgetest.RandomMesh(seed)
		record := n.Measure()
		rng := rand.New(rand.NewPCG(seed, 3))
		whole := check(n.Worksheet, n.Roster, record, checkup.Gate{})
		if c := whole.Counts; c.Expected != n.Worksheet.CountPairs() || c.Pass+c.Fail+c.Undecided+c.Unmeasured != c.Expected ||
			len(units(whole, checkup.Fail)) != c.Fail || len(units(whole, checkup.Undecided)) != c.Undecided ||
			len(units(whole, checkup.Unmeasured)) != whole.Counts.Unmeasured {
			t.Fatalf("seed %d: counts do not add up: %+v", seed, whole.Counts)
		}

		shuffled := *record
		shuffled.Observations, shuffled.Receptions = slices.Clone(record.Observations), slices.Clone(record.Receptions)
		rng.Shuffle(len(shuffled.Observations), func(i, k int) {
			shuffled.Observations[i], shuffled.Observations[k] = shuffled.Observations[k], shuffled.Observations[i]
		})
		rng.Shuffle(len(shuffled.Receptions), func(i, k int) {
			shuffled.Receptions[i], shuffled.Receptions[k] = shuffled.Receptions[k], shuffled.Receptions[i]
		})
		if diff := cmp.Diff(whole, check(n.Worksheet, n.Roster, &shuffled, checkup.Gate{})); diff != "" {
			t.Fatalf("seed %d: the order of observations matters:\n%s", seed, diff)
		}

		// Without some of what was reported, in any combination, nothing passes that
		// was not reported, and the check does not pass at all.
		for range 5 {
			if len(record.Observations) == 0 {
				break
			}
			partial := *record
			gone := map[checkup.Pair]bool{}
			partial.Observations = nil
			for i, o := range record.Observations {
				if rng.IntN(10) == 0 || i == 0 {
					gone[o.Pair] = true
					continue
				}
				partial.Observations = append(partial.Observations, o)
			}
			r := check(n.Worksheet, n.Roster, &partial, checkup.Gate{})
			if r.Verdict == checkup.RunPass {
				t.Fatalf("seed %d: passes without %d of %d observations", seed, len(gone), len(record.Observations))
			}
			if r.Counts.Unmeasured != whole.Counts.Unmeasured+len(gone) || r.Counts.Pass > whole.Counts.Pass {
				t.Fatalf("seed %d: without %d observations: %+v, with them %+v", seed, len(gone), r.Counts, whole.Counts)
			}
		}

		// A source that is lost takes all its pairs with it, and no other.
		if len(record.Sources) > 0 {
			lost := rng.IntN(len(record.Sources))
			partial := *record
			partial.Sources = slices.Delete(slices.Clone(record.Sources), lost, lost+1)
			r := check(n.Worksheet, n.Roster, &partial, checkup.Gate{})
			for _, p := range units(r, checkup.Unmeasured) {
				if p.Source != n.Worksheet.Sources[lost].Node {
					t.Fatalf("seed %d: %s -> %s is unmeasured because of %s", seed, p.Source, p.Target, n.Worksheet.Sources[lost].Node)
				}
			}
			if want := len(slices.Collect(n.Worksheet.PairsOf(lost))); r.Counts.Unmeasured != want {
				t.Fatalf("seed %d: %d pairs unmeasured, want the %d of the lost source", seed, r.Counts.Unmeasured, want)
			}
		}
	}
}

// TestAgain: a further look is judged like a first one of the pairs that it lists: the others are not expected, and an
// observation of one is unrequested.
func TestAgain(t *testing.T) {
	for seed := range judgetest.Iterations(10, 200) {
		n := judgetest.RandomMesh(seed)
		rng := rand.New(rand.NewPCG(seed, 4))
		record := n.Measure()
		whole := Pairs(n.Worksheet, n.Roster, record, Rules{})

		further, again := *n.Worksheet, *record
		further.Look, further.Again, again.Observations = 1, []checkup.Again{}, nil
		for _, o := range record.Observations {
			if rng.IntN(4) == 0 {
				further.Again = append(further.Again, checkup.Again{Pair: o.Pair, Count: o.Sent})
				again.Observations = append(again.Observations, o)
			}
		}
		part := Pairs(&further, n.Roster, &again, Rules{})
		if len(part.Outcomes) != len(further.Again) {
			t.Fatalf("seed %d: %d outcomes of %d pairs", seed, len(part.Outcomes), len(further.Again))
		}
		for i, o := range part.Outcomes {
			same := whole.Find(o.Pair)
			if o.Pair != further.Again[i].Pair || part.Find(o.Pair) != &part.Outcomes[i] || o.Attribute != same.Attribute ||
				o.Verdict == checkup.Unmeasured || o.Received != same.Received || o.Direction != same.Direction {
				t.Fatalf("seed %d: in the further look\n%+v\nin the first\n%+v", seed, o, same)
			}
		}
		if len(part.Outcomes) > 0 {
			o := &part.Outcomes[rng.IntN(len(part.Outcomes))]
			further.Again = slices.DeleteFunc(further.Again, func(a checkup.Again) bool { return a.Pair == o.Pair })
			for _, u := range check(&further, n.Roster, &again, checkup.Gate{}).Units {
				if u.Source == n.Worksheet.Sources[o.Pair.Source].Name() && u.Cause.Reason != checkup.ReasonUnrequested {
					t.Fatalf("seed %d: the agent of %s reported a pair that is not looked at again, and is trusted", seed, u.Source)
				}
			}
		}
	}
}

func TestQuantile(t *testing.T) {
	hundred := make([]int64, 100)
	for i := range hundred {
		hundred[i] = int64(i + 1)
	}
	tests := []struct {
		sorted []int64
		q      float64
		want   int64
	}{
		{nil, 0.5, 0},
		{[]int64{7}, 0.5, 7},
		{[]int64{7}, 0.99, 7},
		{[]int64{1, 2}, 0.5, 1},
		{[]int64{1, 2, 3}, 0.5, 2},
		{[]int64{1, 2, 3}, 0.99, 3},
		{hundred, 0.50, 50},
		{hundred, 0.90, 90},
		{hundred, 0.95, 95},
		{hundred, 0.99, 99},
		{hundred, 1, 100},
		{hundred[:20], 0.95, 19},
	}
	for _, test := range tests {
		if got := Quantile(test.sorted, test.q); got != test.want {
			t.Errorf("quantile(%d values, %v) = %d, want %d", len(test.sorted), test.q, got, test.want)
		}
	}
}

func TestDelay(t *testing.T) {
	if got := DelayOf([][]int64{nil, {}}); got != nil {
		t.Errorf("the delay of nothing is %+v", got)
	}
	// Jitter is within a pair: from 40 of the first to 100 of the second is no jitter.
	got := DelayOf([][]int64{{10, 20, 40}, {100, 90}})
	want := &checkup.Delay{Min: 10, Mean: 52, P50: 40, P90: 100, P95: 100, P99: 100, Max: 100, StdDev: 37, Jitter: 13}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("delay (-want +got):\n%s", diff)
	}
}

// TestFailingUpperBound compares with the bound as it is defined, worked out with
// whole numbers, and with published values.
func TestFailingUpperBound(t *testing.T) {
	choose := func(n, k int) float64 {
		if k < 0 || k > n {
			return 0
		}
		v := 1.0
		for i := range k {
			v = v * float64(n-i) / float64(i+1)
		}
		return math.Round(v)
	}
	for N := 1; N <= 24; N++ {
		for n := 1; n <= N; n++ {
			for x := 0; x <= n; x++ {
				want := x
				for K := x; K <= N-n+x; K++ {
					sum := 0.0
					for i := 0; i <= x; i++ {
						sum += choose(K, i) * choose(N-K, n-i)
					}
					if sum/choose(N, n) >= alpha*(1-1e-9) {
						want = K
					}
				}
				if got := failingUpperBound(N, n, x); got != float64(want)/float64(N) {
					t.Fatalf("%d of %d drawn from %d fail: bound %v, want %v", x, n, N, got, float64(want)/float64(N))
				}
			}
		}
	}
	for _, test := range []struct {
		possible, measured, failing int
		want                        string // in percent
	}{
		// The rule of three says 0.03, the binomial bound 0.02995.
		{25_000_000, 10_000, 0, "0.02994"},
		{25_000_000, 50_000, 0, "0.005984"},
		{25_000_000, 50_000, 25_000, "50.37"},
		{25_000_000, 10_000, 1, "0.04742"}, // Clopper and Pearson: 0.04743
		// The one that was not seen would have had to be the only one.
		{25_000_000, 24_999_999, 0, "0"},
		{600, 600, 0, "0"},
		{600, 600, 12, "2"},
	} {
		if got := fmt.Sprintf("%.4g", 100*failingUpperBound(test.possible, test.measured, test.failing)); got != test.want {
			t.Errorf("%d of %d of %d: %s%%, want %s%%", test.failing, test.measured, test.possible, got, test.want)
		}
	}
}
