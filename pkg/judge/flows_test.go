// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge/judgetest"
)

// flowsOf are flows of ports 1, 2, ... from "received/sent" each.
func flowsOf(text string) (flows []checkup.Flow, sent, received int) {
	for i, s := range strings.Fields(text) {
		f := checkup.Flow{Port: i + 1}
		if _, err := fmt.Sscanf(s, "%d/%d", &f.Received, &f.Sent); err != nil {
			panic(err)
		}
		flows, sent, received = append(flows, f), sent+f.Sent, received+f.Received
	}
	return flows, sent, received
}

// A source port that is never answered beside others that are is a dead flow, if chance does not explain it.
func TestDeadFlows(t *testing.T) {
	for _, test := range []struct {
		name  string
		flows string
		limit checkup.Percent // on loss; negative: none
		want  checkup.Verdict
		class Failure
		cause string // the message, up to "; last"
	}{
		{"one of four", "10/10 0/10 10/10 10/10", 1, checkup.Fail, FlowLost, "0 of 10 from source port 2 answered, 30 of 30 from 3 other ports"},
		{"three of four", "0/10 0/10 0/10 10/10", 1, checkup.Fail, FlowLost, "0 of 30 from source ports 1, 2, 3 answered, 10 of 10 from 1 other port"},
		{"without a limit on loss", "10/10 0/10 10/10 10/10", -1, checkup.Fail, FlowLost, "0 of 10 from source port 2 answered, 30 of 30 from 3 other ports"},
		{"a limit of 0", "10/10 0/10 10/10 10/10", 0, checkup.Fail, FlowLost, "0 of 10 from source port 2 answered, 30 of 30 from 3 other ports"},
		{"all of them", "0/10 0/10 0/10 0/10", 1, checkup.Fail, Lost, "no answer"},
		{"one answer is enough", "10/10 1/10 10/10 10/10", -1, checkup.Pass, 0, ""},
		{"too few measurements of the port", "10/10 10/10 10/10 0/2", -1, checkup.Pass, 0, ""},
		{"too few to decide", "3/3 3/3 3/3 0/3", -1, checkup.Undecided, 0, "0 of 3 from source port 4 answered, 9 of 9 from 3 other ports: too few measurements to decide"},
		{"the others lose half", "5/10 5/10 5/10 0/10", -1, checkup.Undecided, 0, "0 of 10 from source port 4 answered, 15 of 30 from 3 other ports: too few measurements to decide"},
		{"the others lose most", "1/4 1/4 1/4 0/4", -1, checkup.Pass, 0, ""},
		{"the limit allows it", "3/3 3/3 3/3 0/3", 90, checkup.Pass, 0, ""},
		{"the others lose too much as well", "14/20 14/20 0/40 14/20", 1, checkup.Fail, FlowLost,
			"0 of 40 from source port 3 answered, 42 of 60 from 3 other ports; last: no answer; 18 of 60 lost (30%), limit 1%"},
		{"a dead flow is no loss", "40/40 0/10 40/40 39/40", 1, checkup.Fail, FlowLost, "0 of 10 from source port 2 answered, 119 of 120 from 3 other ports"},
		{"six of eight connections", "1/1 1/1 0/1 1/1 1/1 0/1 1/1 1/1", -1, checkup.Pass, 0, ""},
		{"many dead ports", "0/5 0/5 0/5 0/5 0/5 0/5 20/20", -1, checkup.Fail, FlowLost,
			"0 of 30 from source ports 1, 2, 3, 4 and 2 more answered, 20 of 20 from 1 other port"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := newOne()
			flows, sent, received := flowsOf(test.flows)
			o.w.Probes[0].Count = sent
			o.observation.Sent, o.observation.Received, o.observation.Flows = sent, received, flows
			o.observation.RTTs = slices.Repeat([]int64{100}, received)
			if test.limit >= 0 {
				o.w.Expect.Loss.Max = &test.limit
			}
			got := Pairs(&o.w, o.roster, o.record, Rules{}).Outcomes[0]
			if got.Verdict != test.want || got.Failure != test.class || !strings.HasPrefix(got.Cause.Message, test.cause) {
				t.Errorf("%s, class %d, %q; want %s, class %d, %q", got.Verdict, got.Failure, got.Cause.Message, test.want, test.class, test.cause)
			}
			for _, f := range got.Dead {
				if f.Received > 0 || got.Failure != FlowLost {
					t.Errorf("dead flow %+v of %+v", f, got)
				}
			}
			if broke := slices.ContainsFunc(got.Breaches, func(b checkup.Breach) bool { return b.Limit == checkup.LimitFlow }); broke != strings.HasPrefix(test.cause, "0 of") {
				t.Errorf("breaches %+v", got.Breaches)
			}
		})
	}
}

// Flows that contradict each other or the other numbers make the pair unmeasured, as the other numbers do.
func TestHostileFlows(t *testing.T) {
	many := make([]checkup.Flow, 10_000)
	for i := range many {
		many[i] = checkup.Flow{Port: i + 1}
	}
	taken := &checkup.Cause{Stage: checkup.StageSocket, Message: "bind: address already in use"}
	for _, test := range []struct {
		name  string
		flows []checkup.Flow
		want  string // the cause; empty if they are credible
	}{
		{"they add up", []checkup.Flow{{Port: 1, Sent: 3, Received: 3}, {Port: 2, Sent: 1}}, ""},
		{"10,000 ports", many, "10000 source ports, of 4 measurements ordered"},
		{"a port without measurements", []checkup.Flow{{Port: 1, Sent: 4, Received: 3}, {Port: 2}}, "source port 2 with 0 sent and 0 received"},
		{"one port twice", []checkup.Flow{{Port: 1, Sent: 3, Received: 3}, {Port: 1, Sent: 1}}, "source port 1 with 1 sent and 0 received"},
		{"no such port", []checkup.Flow{{Port: 65536, Sent: 4, Received: 3}}, "source port 65536 with 4 sent and 3 received"},
		{"port 0", []checkup.Flow{{Sent: 4, Received: 3}}, "source port 0 with 4 sent and 3 received"},
		{"a negative number", []checkup.Flow{{Port: 1, Sent: 5, Received: 3}, {Port: 2, Sent: -1}}, "source port 1 with 5 sent and 3 received"},
		{"the largest numbers", []checkup.Flow{{Port: 1, Sent: math.MaxInt, Received: math.MaxInt}, {Port: 2, Sent: math.MaxInt}}, "source port 1 with"},
		{"a negative answer", []checkup.Flow{{Port: 1, Sent: 3, Received: 4}, {Port: 2, Sent: 1, Received: -1}}, "source port 1 with 3 sent and 4 received"},
		{"too many sent", []checkup.Flow{{Port: 1, Sent: 3, Received: 3}, {Port: 2, Sent: 2}}, "4 sent and 3 received, but 5 and 3 by source port"},
		{"too few received", []checkup.Flow{{Port: 1, Sent: 3, Received: 2}, {Port: 2, Sent: 1}}, "4 sent and 3 received, but 4 and 2 by source port"},
		{"an unused port", []checkup.Flow{{Port: 1, Sent: 4, Received: 3}, {Port: 2, Unmeasured: taken}}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := newOne()
			o.received(3, nil)
			o.observation.Flows = test.flows
			got := Pairs(&o.w, o.roster, o.record, Rules{}).Outcomes[0]
			if want := "the numbers do not add up: " + test.want; (got.Verdict == checkup.Unmeasured) != (test.want != "") ||
				test.want != "" && !strings.HasPrefix(got.Cause.Message, want) {
				t.Errorf("%s, %q; want %q", got.Verdict, got.Cause.Message, want)
			}
		})
	}
}

// A pair does not pass if a source port that had to be used was not.
func TestUnusedPort(t *testing.T) {
	o := newOne()
	o.received(2, nil)
	o.observation.Sent = 2
	o.observation.Flows = []checkup.Flow{{Port: 7, Sent: 2, Received: 2}, {
		Port: 8, Unmeasured: &checkup.Cause{Stage: checkup.StageSocket, Message: "bind: address already in use"},
	}}
	got := Pairs(&o.w, o.roster, o.record, Rules{}).Outcomes[0]
	if want := "socket: source port 8 was not used: bind: address already in use"; got.Verdict != checkup.Unmeasured || got.Cause.String() != want {
		t.Errorf("%s, %q; want unmeasured, %q", got.Verdict, got.Cause, want)
	}
}

// hash is the path of a packet among n parallel ones.
func hash(p judgetest.Packet, n uint32) uint32 {
	h := fnv.New32a()
	fmt.Fprint(h, min(p.From, p.To), max(p.From, p.To), p.Family, p.Transport, p.Port)
	return h.Sum32() / 7 % n
}

// One of eight paths is dead: in a mesh with noise, all that loses a part fails by its flows, and nothing by its loss.
func TestDeadPath(t *testing.T) {
	probes := []checkup.TransportProbe{{Transport: checkup.UDP, Probe: checkup.Probe{Sizes: []int{64}, Count: 40}}}
	for seed := range judgetest.Iterations(20, 500) {
		n := judgetest.NewMesh(seed, 8, 0, 2, probes)
		n.Worksheet.Expect.Loss.Max = new(checkup.Percent(1))
		n.Drop = func(p judgetest.Packet) float64 {
			if hash(p, 8) == 0 {
				return 1
			}
			return 0.001
		}
		j := Pairs(n.Worksheet, n.Roster, n.Measure(), Rules{})
		dead := 0
		for i := range j.Outcomes {
			o := &j.Outcomes[i]
			dead += len(o.Dead)
			if sent, received := o.Living(); o.Received > 0 && o.Verdict == checkup.Fail && (o.Failure != FlowLost || sent-received > 5) {
				t.Errorf("seed %d: %s fails with class %d: %s", seed, j.Unit(o).Name, o.Failure, o.Cause)
			}
		}
		if flows := 4 * len(j.Outcomes); dead < flows/16 || dead > flows/4 {
			t.Errorf("seed %d: %d of %d flows are dead, want about an eighth", seed, dead, flows)
		}
	}
}
