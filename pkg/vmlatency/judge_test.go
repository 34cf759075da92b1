// SPDX-License-Identifier: Apache-2.0

package vmlatency

import (
	"fmt"
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

// guests is a simulated cluster of VMs, in pairs, on networks with a fault.
type guests struct {
	w      *checkup.Worksheet
	roster *checkup.Roster
	rng    *rand.Rand
	// drop is the probability with which a packet from one VM to another is lost,
	// delay what is added to its way; nil means no fault. An answer is a packet back.
	drop  func(from, to int, family checkup.IPFamily, answer bool) float64
	delay func(from, to int, family checkup.IPFamily) time.Duration
}

// vmLine is a pair of VMs to be: two nodes and a network. Nodes that the plan does not name
// begin with "?".
type vmLine struct{ source, target, network string }

func newGuests(seed uint64, links ...vmLine) *guests {
	g := &guests{
		rng: rand.New(rand.NewPCG(seed, 31)), roster: &checkup.Roster{},
		w: &checkup.Worksheet{
			Plan: "day-2", Check: "vms", Kind: "vmLatency", Rounds: 1, IPFamilies: checkup.IPFamilies, Possible: 2 * len(links),
			Probes: []checkup.TransportProbe{{Transport: checkup.ICMP, Probe: checkup.Probe{
				Sizes: []int{checkup.VMEchoSize}, Count: 25, Interval: checkup.Duration(200 * time.Millisecond), Timeout: echoTimeout}}},
			Guests: &checkup.GuestSheet{Duration: checkup.Duration(5 * time.Second)},
		},
	}
	networks := map[string]bool{}
	for _, l := range links {
		networks[l.network] = true
	}
	labels := map[string]int{}
	for i, l := range links {
		for k, node := range []string{l.source, l.target} {
			ref := checkup.NetworkRef{Namespace: "default", Name: l.network}
			e := checkup.Endpoint{Node: node, Label: node, VM: &checkup.VM{
				Name: node, Network: ref, NetworkType: "bridge", Bridge: l.network, Binding: checkup.BindingBridge, Target: k == 1,
			}}
			if strings.HasPrefix(node, "?") {
				e.Node, e.Label = "", []string{"source", "target"}[k]
				e.VM.Name = e.Label
			}
			if len(networks) > 1 {
				e.Label += " on " + ref.String()
			}
			if labels[e.Label]++; labels[e.Label] > 1 {
				number := fmt.Sprintf(" (%d)", labels[e.Label])
				e.Label += number
				e.VM.Name += number
			}
			g.w.Sources, g.w.Targets = append(g.w.Sources, e), append(g.w.Targets, e)
			g.roster.Targets = append(g.roster.Targets, checkup.RosterEntry{
				Pod: fmt.Sprintf("checks/vm-%d", 2*i+k), Node: strings.TrimPrefix(node, "?"),
				Addresses: map[checkup.IPFamily]string{checkup.IPv4: fmt.Sprintf("10.37.%d.%d", i, k+1), checkup.IPv6: fmt.Sprintf("fd37::%d:%d", i, k+1)},
			})
		}
		g.w.Assignments = append(g.w.Assignments, []int{2*i + 1}, []int{2 * i})
	}
	return g
}

// on reports whether a VM runs on a node, and its network has the name.
func (g *guests) on(vm int, node, network string) bool {
	return g.roster.Targets[vm].Node == node && g.w.Sources[vm].VM.Network.Name == network
}

func (g *guests) measure() *checkup.Record {
	r := &checkup.Record{}
	for s := range g.w.Assignments {
		source := checkup.Source{Source: s, Pod: g.roster.Targets[s].Pod, End: &checkup.AgentEnd{}}
		for _, f := range g.w.IPFamilies {
			for _, name := range judgetest.Controls {
				source.Controls = append(source.Controls, checkup.Control{Family: f, Name: name, OK: true})
			}
		}
		for p := range g.w.PairsOf(s) {
			o := checkup.Observation{Pair: p}
			for range g.w.Measurements(p) {
				o.Sent++
				if g.drops(p.Source, p.Target, p.Family, false) || g.drops(p.Target, p.Source, p.Family, true) {
					o.Failure = &checkup.Cause{Stage: checkup.StageEcho, Message: "no answer within 5s"}
					continue
				}
				o.Received++
				rtt := time.Duration(400+g.rng.IntN(500)) * time.Microsecond
				if g.delay != nil {
					rtt += g.delay(p.Source, p.Target, p.Family) + g.delay(p.Target, p.Source, p.Family)
				}
				o.RTTs = append(o.RTTs, rtt.Microseconds())
			}
			r.Observations = append(r.Observations, o)
			source.End.Observations++
		}
		r.Sources = append(r.Sources, source)
	}
	return r
}

func (g *guests) drops(from, to int, family checkup.IPFamily, answer bool) bool {
	if g.drop == nil {
		return false
	}
	chance := g.drop(from, to, family, answer)
	return chance >= 1 || chance > 0 && g.rng.Float64() < chance
}

// judge is Judge with the default gate.
func (g *guests) judge() checkup.CheckReport {
	return Judge(g.w, g.roster, g.measure(), checkup.Gate{})
}

// oneVM is a worksheet of one pair of VMs in one family and what was recorded. Each
// case of the table below changes something about it.
func oneVM() (*guests, *checkup.Record) {
	g := newGuests(1, vmLine{"node01", "node02", "br10"})
	g.w.IPFamilies = g.w.IPFamilies[:1]
	return g, g.measure()
}

func TestJudgeVM(t *testing.T) {
	lose := func(o *checkup.Observation, n int) {
		o.Received, o.RTTs = o.Received-n, o.RTTs[n:]
		o.Failure = &checkup.Cause{Stage: checkup.StageEcho, Message: "no answer within 5s"}
	}
	tests := []struct {
		name       string
		change     func(*guests, *checkup.Record)
		there      string // verdict, and its cause if it is no pass
		back       string
		note       string
		unreported bool // there is no delay
	}{
		{"all answered", func(*guests, *checkup.Record) {}, "pass", "pass", "", false},

		// Limits.
		{"too slow", func(g *guests, r *checkup.Record) {
			g.w.Expect.Latency.Max = ptr(checkup.Duration(200 * time.Millisecond))
			r.Observations[0].RTTs[7] = 412_345
		}, "fail echo: max 412.345ms, limit 200ms", "pass", "", false},
		{"several limits", func(g *guests, r *checkup.Record) {
			g.w.Expect.Latency.P50 = ptr(checkup.Duration(time.Microsecond))
			g.w.Expect.Jitter.Max = ptr(checkup.Duration(2 * time.Microsecond))
			for i := range r.Observations[0].RTTs {
				r.Observations[0].RTTs[i] = int64(10 * (1 + i%2))
			}
		}, "fail echo: p50 10µs, limit 1µs, exceeded by 25 of 25; jitter 10µs, limit 2µs", "pass", "", false},
		{"at the limit", func(g *guests, r *checkup.Record) {
			g.w.Expect.Latency.Max = ptr(checkup.Duration(time.Duration(slices.Max(r.Observations[0].RTTs)) * time.Microsecond))
		}, "pass", "pass", "", false},
		{"nothing came through", func(_ *guests, r *checkup.Record) {
			lose(&r.Observations[0], 25)
			lose(&r.Observations[1], 5)
		}, "fail echo: no answer within 5s", "fail echo: no answer within 5s", "", true},
		{"part lost without a limit", func(_ *guests, r *checkup.Record) { lose(&r.Observations[0], 5) }, "pass", "pass",
			"node01 to node02 over default/br10, IPv4: 5 of 25 echo requests were not answered (20%); the plan sets no limit", false},
		{"part lost within the limit", func(g *guests, r *checkup.Record) {
			g.w.Expect.Loss.Max = ptr(checkup.Percent(20))
			lose(&r.Observations[0], 5)
		}, "pass", "pass", "node01 to node02 over default/br10, IPv4: 5 of 25 echo requests were not answered (20%); the limit is 20%", false},
		{"part lost over the limit, as often happens by chance", func(g *guests, r *checkup.Record) {
			g.w.Expect.Loss.Max = ptr(checkup.Percent(19))
			lose(&r.Observations[0], 5)
		}, "pass", "pass", "node01 to node02 over default/br10, IPv4: 5 of 25 echo requests were not answered (20%); the limit is 19%, but so few requests do not prove that it is exceeded", false},
		{"part lost over the limit, as seldom happens by chance", func(g *guests, r *checkup.Record) {
			g.w.Expect.Loss.Max = ptr(checkup.Percent(5))
			lose(&r.Observations[0], 5)
		}, "undecided echo: 5 of 25 lost (20%), limit 5%: too few measurements to decide; last: no answer within 5s", "pass", "", false},
		{"part lost over the limit", func(g *guests, r *checkup.Record) {
			g.w.Expect.Loss.Max = ptr(checkup.Percent(1))
			lose(&r.Observations[0], 5)
		}, "fail echo: 5 of 25 lost (20%), limit 1%; last: no answer within 5s", "pass", "", false},
		{"limits are not for the way back", func(g *guests, r *checkup.Record) {
			g.w.Expect.Loss.Max = ptr(checkup.Percent(0))
			g.w.Expect.Latency.Max = ptr(checkup.Duration(time.Second))
			lose(&r.Observations[1], 1)
			r.Observations[1].RTTs[0] = 3_000_000
		}, "pass", "pass", "node02 to node01 over default/br10, IPv4: 1 of 5 echo requests were not answered (20%); connectivity needs one", false},

		// Not measured.
		{"no roster", func(g *guests, _ *checkup.Record) { g.roster = nil }, "unmeasured setup: the VM is not on the roster", "unmeasured setup: the VM is not on the roster", "", true},
		{"no record", func(_ *guests, r *checkup.Record) { *r = checkup.Record{} }, "unmeasured collect: the record has no data of the source", "unmeasured collect: the record has no data of the source", "", true},
		{"a prerequisite is missing", func(g *guests, _ *checkup.Record) {
			g.w.Sources[0].Cause = &checkup.Cause{Stage: checkup.StageSetup, Message: "no node node01"}
			g.w.Targets[0].Cause = g.w.Sources[0].Cause
		}, "unmeasured setup: no node node01", "unmeasured setup: no node node01", "", true},
		{"the source did not come up", func(g *guests, r *checkup.Record) {
			g.roster.Targets[0].Cause = &checkup.Cause{Stage: checkup.StageStart, Message: "no boot"}
		}, "unmeasured start: VM node01: no boot", "unmeasured start: VM node01: no boot", "", true},
		{"the target did not come up, and so the source was not waited for", func(g *guests, r *checkup.Record) {
			g.roster.Targets[1].Cause = &checkup.Cause{Stage: checkup.StageStart, Message: "no boot"}
			g.roster.Targets[0].Cause = &checkup.Cause{Stage: checkup.StageStart, Reason: checkup.ReasonOtherVM, Message: "not waited for, because of VM node02: no boot"}
		}, "unmeasured start: VM node02: no boot", "unmeasured start: VM node02: no boot", "", true},
		{"neither came up", func(g *guests, r *checkup.Record) {
			g.roster.Targets[0].Cause = &checkup.Cause{Stage: checkup.StageStart, Message: "no boot"}
			g.roster.Targets[1].Cause = &checkup.Cause{Stage: checkup.StageStart, Message: "no boot"}
		}, "unmeasured start: no boot", "unmeasured start: no boot", "", true},
		{"a VM has no address of the family", func(g *guests, r *checkup.Record) { g.roster.Targets[0].Addresses = nil }, "unmeasured setup: VM node01: the VM has no IPv4 address", "unmeasured setup: VM node01: the VM has no IPv4 address", "", true},
		{"an unused address answers", func(_ *guests, r *checkup.Record) {
			r.Sources[0].Controls[1] = checkup.Control{Family: checkup.IPv4, Name: "closed", Message: "10.37.0.6 answered"}
		}, `unmeasured control: the guest got its control pair "closed" wrong (10.37.0.6 answered), so it is not trusted`, "pass", "", true},
		{"a control pair is missing", func(_ *guests, r *checkup.Record) { r.Sources[1].Controls = nil }, "pass", `unmeasured control: the guest reported no control pair "self", so it is not trusted`, "", false},
		{"fewer than ordered", func(_ *guests, r *checkup.Record) {
			o := &r.Observations[0]
			o.Sent, o.Received, o.RTTs = 24, 24, o.RTTs[1:]
		}, "unmeasured collect: only 24 of 25 measurements were made: too few to pass", "pass", "", true},
		{"more connectivity than ordered", func(_ *guests, r *checkup.Record) {
			o := &r.Observations[1]
			o.Sent, o.Received, o.RTTs = 6, 6, []int64{1, 2, 3, 4, 5, 6}
		}, "pass", "unmeasured collect: the numbers do not add up: 6 sent, 0 spoiled and 6 received with 6 delays, of 5 ordered", "", false},
		{"the console was lost", func(_ *guests, r *checkup.Record) {
			r.Observations = r.Observations[1:]
			r.Sources[0].End, r.Sources[0].Cause = nil, &checkup.Cause{Stage: checkup.StageCollect, Message: "the console was lost"}
		}, "unmeasured collect: the console was lost", "pass", "", true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g, record := oneVM()
			test.change(g, record)
			r := Judge(g.w, g.roster, record, checkup.Gate{})
			if len(r.Units) != 2 || !r.Complete {
				t.Fatalf("want one pair of one family, both ways: %+v", r.Units)
			}
			there, back := r.Units[0], r.Units[1]
			said := func(v checkup.Verdict, cause *checkup.Cause) string {
				if cause == nil {
					return string(v)
				}
				return string(v) + " " + cause.String()
			}
			if got := said(there.Verdict, there.Cause); got != test.there {
				t.Errorf("there: %s\n want: %s", got, test.there)
			}
			if got := said(back.Verdict, back.Cause); got != test.back {
				t.Errorf("back: %s\nwant: %s", got, test.back)
			}
			if got := strings.Join(r.Notes, "; "); got != test.note {
				t.Errorf("notes: %s\n want: %s", got, test.note)
			}
			if (there.Delay == nil) != test.unreported || back.Delay != nil {
				t.Errorf("delay %+v, back %+v", there.Delay, back.Delay)
			}
			if r.Counts.Expected != 2 || r.Counts.Pass+r.Counts.Fail+r.Counts.Undecided+r.Counts.Unmeasured != 2 {
				t.Errorf("counts do not add up to the two expected pairs: %+v", r.Counts)
			}
			if r.Coverage != nil || r.Matrix != nil {
				t.Error("VMs are no sample and no mesh")
			}
		})
	}
}

// TestVMUnits checks the numbers of a pair against those that were recorded, and
// that connectivity from the target has no delay.
func TestVMUnits(t *testing.T) {
	g := newGuests(1, vmLine{"?node07", "?node03", "br10"})
	g.w.IPFamilies = g.w.IPFamilies[:1]
	record := g.measure()
	o := &record.Observations[0]
	for i := range o.RTTs {
		o.RTTs[i] = int64(1000 * (i + 1))
	}
	o.Duplicates, o.Reordered = 2, 1
	record.Observations[1].RTTs = []int64{1, 1, 1, 1, 90_000}
	got := Judge(g.w, g.roster, record, checkup.Gate{})
	delay := &checkup.Delay{Min: 1000, Mean: 13_000, P50: 13_000, P90: 23_000, P95: 24_000, P99: 25_000, Max: 25_000, StdDev: 7211, Jitter: 1000}
	labels := func(way, source, target string) map[string]string {
		return map[string]string{"network": "default/br10", "way": way, "source_node": source, "target_node": target}
	}
	want := []checkup.Unit{{
		Name: "source -> target over default/br10 IPv4", Source: "source", Target: "target", Labels: labels("there", "node07", "node03"),
		Family: checkup.IPv4, Transport: checkup.ICMP, Size: checkup.VMEchoSize, Verdict: checkup.Pass,
		Sent: 25, Received: 25, Duplicates: 2, Reordered: 1, Delay: delay,
		Values: []checkup.Value{{Name: "measurement_duration", Value: 5_000_000, Measure: checkup.MeasureMicroseconds}},
	}, {
		Name: "target -> source over default/br10 IPv4", Source: "target", Target: "source", Labels: labels("back", "node03", "node07"),
		Family: checkup.IPv4, Transport: checkup.ICMP, Size: checkup.VMEchoSize, Verdict: checkup.Pass,
		Sent: checkup.VMConnectivityCount, Received: checkup.VMConnectivityCount,
	}}
	if diff := cmp.Diff(want, got.Units); diff != "" {
		t.Errorf("units (-want +got):\n%s", diff)
	}
	if want := []string{"source (node07) to target (node03) over default/br10: IPv4 min/avg/max 1ms/13ms/25ms"}; !slices.Equal(got.Said, want) {
		t.Errorf("said %q, want %q", got.Said, want)
	}
	if want := 25 + checkup.VMConnectivityCount; got.Sent != want {
		t.Errorf("%d measurements, want %d", got.Sent, want)
	}
}

// TestBlameNetworks checks how faults of networks are reported.
func TestBlameNetworks(t *testing.T) {
	mesh := []vmLine{{"a", "b", "n"}, {"a", "c", "n"}, {"b", "c", "n"}}
	always := func(int, int, checkup.IPFamily, bool) float64 { return 1 }
	tests := []struct {
		name   string
		links  []vmLine
		change func(*guests)
		want   []string // cause, subject, message, alternatives
	}{
		{"nothing fails", mesh, func(*guests) {}, nil},
		{"the one pair", []vmLine{{"a", "b", "n"}}, func(g *guests) { g.drop = always },
			[]string{"pair a -> b: no connectivity over default/n between a and b, IPv4 and IPv6, both ways [network default/n; node a; node b]"}},
		{"the one pair, on one node", []vmLine{{"a", "a", "n"}}, func(g *guests) { g.drop = always },
			[]string{"pair a -> a: no connectivity over default/n between two VMs on a, IPv4 and IPv6, both ways [network default/n; node a]"}},
		{"one family", []vmLine{{"a", "b", "n"}}, func(g *guests) {
			g.drop = func(_, _ int, f checkup.IPFamily, _ bool) float64 { return judgetest.When(f == checkup.IPv6) }
		}, []string{"pair a -> b (IPv6 only): no connectivity over default/n between a and b, IPv6 only, both ways [network default/n; node a; node b]"}},
		{"one family, of one", []vmLine{{"a", "b", "n"}}, func(g *guests) { g.w.IPFamilies, g.drop = checkup.IPFamilies[:1], always },
			[]string{"pair a -> b: no connectivity over default/n between a and b, IPv4, both ways [network default/n; node a; node b]"}},
		{"one way", []vmLine{{"a", "b", "n"}}, func(g *guests) {
			g.drop = func(from, _ int, _ checkup.IPFamily, answer bool) float64 {
				return judgetest.When(from == 1 && !answer)
			}
		}, []string{"pair a -> b: no connectivity over default/n from b to a, IPv4 and IPv6, not the other way round [network default/n; node a; node b]"}},
		{"another network is no evidence", []vmLine{{"a", "b", "n"}, {"a", "b", "m"}}, func(g *guests) {
			g.drop = func(from, _ int, _ checkup.IPFamily, _ bool) float64 { return judgetest.When(from < 2) }
		}, []string{"pair a -> b: no connectivity over default/n between a and b, IPv4 and IPv6, both ways [network default/n; node a; node b]"}},
		{"two networks", []vmLine{{"a", "b", "n"}, {"a", "b", "m"}}, func(g *guests) { g.drop = always }, []string{
			"pair a -> b: no connectivity over default/n between a and b, IPv4 and IPv6, both ways [network default/n; node a; node b]",
			"pair a -> b: no connectivity over default/m between a and b, IPv4 and IPv6, both ways [network default/m; node a; node b]",
		}},
		{"a network", mesh, func(g *guests) { g.drop = always },
			[]string{"network default/n: no connectivity over default/n between all 3 pairs of nodes, IPv4 and IPv6, both ways []"}},
		{"a node", mesh, func(g *guests) {
			g.drop = func(from, to int, _ checkup.IPFamily, _ bool) float64 {
				return judgetest.When(g.on(from, "c", "n") || g.on(to, "c", "n"))
			}
		}, []string{"node c: no connectivity over default/n between c and each of a, b, IPv4 and IPv6, both ways []"}},
		{"a node that all have in common", []vmLine{{"a", "b", "n"}, {"c", "a", "n"}}, func(g *guests) { g.drop = always },
			[]string{"node a: no connectivity over default/n between a and each of b, c, IPv4 and IPv6, both ways [network default/n]"}},
		{"a node, and on it", []vmLine{{"a", "b", "n"}, {"a", "a", "n"}, {"b", "b", "n"}}, func(g *guests) {
			g.drop = func(from, _ int, _ checkup.IPFamily, _ bool) float64 { return judgetest.When(from < 4) }
		}, []string{"node a: no connectivity over default/n on a, and between it and b, IPv4 and IPv6, both ways []"}},
		{"one pair of three", mesh, func(g *guests) {
			g.drop = func(from, _ int, _ checkup.IPFamily, _ bool) float64 { return judgetest.When(from < 2) }
		}, []string{"pair a -> b: no connectivity over default/n between a and b, IPv4 and IPv6, both ways []"}},
		{"one pair of two", []vmLine{{"a", "b", "n"}, {"c", "b", "n"}}, func(g *guests) {
			g.drop = func(from, _ int, _ checkup.IPFamily, _ bool) float64 { return judgetest.When(from < 2) }
		}, []string{"pair a -> b: no connectivity over default/n between a and b, IPv4 and IPv6, both ways [node a]"}},
		{"a pair twice, of which one fails", []vmLine{{"a", "b", "n"}, {"b", "a", "n"}}, func(g *guests) {
			g.drop = func(from, _ int, _ checkup.IPFamily, _ bool) float64 { return judgetest.When(from < 2) }
		}, []string{"pair a -> b: no connectivity over default/n between a and b, IPv4 and IPv6 [network default/n; node a; node b]"}},
		{"loss and delay", []vmLine{{"a", "b", "n"}, {"a", "c", "n"}}, func(g *guests) {
			g.w.Expect.Loss.Max = ptr(checkup.Percent(0))
			g.w.Expect.Latency.P50 = ptr(checkup.Duration(20 * time.Millisecond))
			g.drop = func(from, _ int, f checkup.IPFamily, _ bool) float64 {
				return .5 * judgetest.When(from == 0 && f == checkup.IPv4)
			}
			g.delay = func(from, _ int, _ checkup.IPFamily) time.Duration {
				return 20 * time.Millisecond * time.Duration(judgetest.When(from == 2))
			}
		}, []string{
			`pair a -> c: too slow over default/n between a and c, IPv4 and IPv6: p50 20.663ms, limit 20ms, exceeded by 25 of 25 [node c]`,
			"pair a -> b (IPv4 only): 52% of the echo requests lost over default/n between a and b, IPv4 only [node b]",
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g := newGuests(3, test.links...)
			test.change(g)
			r := g.judge()
			var got []string
			explained := 0
			for _, f := range r.Findings {
				got = append(got, fmt.Sprintf("%s: %s [%s]", judgetest.Kind(f), f.Message, strings.Join(f.Alternatives, "; ")))
				explained += f.Explains
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
			if explained != r.Counts.Fail {
				t.Errorf("%d of %d failed pairs are explained", explained, r.Counts.Fail)
			}
		})
	}
}

// TestVMsHold checks what must hold for any record of VMs, and for worksheets that
// no Expand makes.
func TestVMsHold(t *testing.T) {
	for seed := range judgetest.Iterations(300, 20_000) {
		rng := rand.New(rand.NewPCG(seed, 32))
		links := make([]vmLine, 1+rng.IntN(8))
		for i := range links {
			links[i] = vmLine{string(rune('a' + rng.IntN(4))), string(rune('a' + rng.IntN(4))), string(rune('m' + rng.IntN(2)))}
			if rng.IntN(4) == 0 {
				links[i].source, links[i].target = "?"+links[i].source, "?"+links[i].target
			}
		}
		g := newGuests(seed, links...)
		g.w.IPFamilies = g.w.IPFamilies[:1+rng.IntN(2)]
		g.w.Expect.Loss.Max = []*checkup.Percent{nil, ptr(checkup.Percent(10))}[rng.IntN(2)]
		g.w.Expect.Latency.Max = []*checkup.Duration{nil, ptr(checkup.Duration(5 * time.Millisecond))}[rng.IntN(2)]
		bad, chance := rng.IntN(2*len(links)), []float64{0, .1, 1}[rng.IntN(3)]
		g.drop = func(from, _ int, f checkup.IPFamily, _ bool) float64 {
			return chance * judgetest.When(from == bad || f == checkup.IPv6 && seed%3 == 0)
		}
		g.delay = func(from, _ int, _ checkup.IPFamily) time.Duration {
			return 10 * time.Millisecond * time.Duration(judgetest.When(from == (bad+2)%len(g.w.Sources)))
		}
		record := g.measure()
		spoil(rng, g, record)
		r := Judge(g.w, g.roster, record, checkup.Gate{})

		reported := map[checkup.Pair]int{}
		for _, o := range record.Observations {
			reported[o.Pair]++
		}
		index := map[string]int{}
		for i := range g.w.Sources {
			index[g.w.Sources[i].Label] = i
		}
		for _, u := range r.Units {
			source, target := index[u.Source], index[u.Target]
			p := checkup.Pair{Source: source, Target: target, Family: u.Family, Transport: checkup.ICMP, Size: checkup.VMEchoSize}
			if u.Verdict == checkup.Pass && (reported[p] == 0 || len(record.Sources) <= source || g.roster.Targets[source].Cause != nil || g.roster.Targets[target].Cause != nil) {
				t.Fatalf("seed %d: %+v passes, and was not measured", seed, p)
			}
			there := u.Labels["way"] == "there"
			if there != (source%2 == 0) {
				t.Fatalf("seed %d: way of %+v", seed, u)
			}
			if there && u.Verdict == checkup.Pass && (u.Sent != 25 || u.Received == 0 || u.Delay == nil) {
				t.Fatalf("seed %d: passes with %+v", seed, u)
			}
			if u.Verdict == checkup.Unmeasured && (u.Sent != 0 || u.Delay != nil || u.Cause == nil) {
				t.Fatalf("seed %d: unmeasured with %+v", seed, u)
			}
		}
		explained := 0
		for _, f := range r.Findings {
			explained += f.Explains
			if f.Message == "" || len(f.For) == 0 || f.Explains == 0 || f.OnlyThis != f.Explains {
				t.Fatalf("seed %d: finding %+v", seed, f)
			}
		}
		if explained != r.Counts.Fail {
			t.Fatalf("seed %d: %d of %d failed pairs are explained", seed, explained, r.Counts.Fail)
		}
		if r.Counts.Expected != g.w.CountPairs() || r.Verdict == checkup.RunPass && r.Counts.Pass+r.Counts.Undecided != r.Counts.Expected {
			t.Fatalf("seed %d: %+v of %d pairs, verdict %s", seed, r.Counts, g.w.CountPairs(), r.Verdict)
		}
		shuffled := *record
		shuffled.Observations = slices.Clone(record.Observations)
		rng.Shuffle(len(shuffled.Observations), func(i, k int) {
			shuffled.Observations[i], shuffled.Observations[k] = shuffled.Observations[k], shuffled.Observations[i]
		})
		if diff := cmp.Diff(r, Judge(g.w, g.roster, &shuffled, checkup.Gate{})); diff != "" {
			t.Fatalf("seed %d: the order of observations matters:\n%s", seed, diff)
		}
		consistent(t, r, true)

		// Worksheets that are wrong: no panic, and nothing passes that is not there.
		switch rng.IntN(5) {
		case 0:
			g.w.Assignments[rng.IntN(len(g.w.Assignments))] = []int{0, 99}
		case 1:
			g.w.Sources = g.w.Sources[:rng.IntN(len(g.w.Sources))]
		case 2:
			g.w.Targets = g.w.Targets[:rng.IntN(len(g.w.Targets))]
		case 3:
			g.w.Sources[rng.IntN(len(g.w.Sources))].VM = nil
		case 4:
			g.w.Probes, g.roster = nil, nil
		}
		consistent(t, Judge(g.w, g.roster, record, checkup.Gate{}), false)
	}
}

// spoil takes something away from what was recorded, or makes it wrong.
func spoil(rng *rand.Rand, g *guests, r *checkup.Record) {
	for range rng.IntN(3) {
		if len(r.Observations) == 0 {
			return
		}
		k := rng.IntN(len(r.Observations))
		o := &r.Observations[k]
		switch rng.IntN(7) {
		case 0:
			r.Observations = slices.Delete(r.Observations, k, k+1)
		case 1:
			*o = checkup.Observation{Pair: o.Pair}
		case 2:
			o.Unmeasured = &checkup.Cause{Stage: checkup.StageSelf, Message: "its time was over"}
		case 3:
			again := *o
			again.Sent--
			r.Observations = append(r.Observations, again)
		case 4:
			g.roster.Targets[rng.IntN(len(g.roster.Targets))] = checkup.RosterEntry{Cause: &checkup.Cause{Stage: checkup.StageStart, Message: "no boot"}}
		case 5:
			r.Sources = r.Sources[:rng.IntN(len(r.Sources)+1)]
		case 6:
			o.Target = 99
		}
	}
}

// consistent checks that the units of a report are those that it counts, each with a
// name of its own if the worksheet is right, and that the block has a line for each
// pair of VMs.
func consistent(t *testing.T, r checkup.CheckReport, right bool) {
	t.Helper()
	var counts checkup.Counts
	names := map[string]bool{}
	for _, u := range r.Units {
		counts.Expected++
		switch u.Verdict {
		case checkup.Pass:
			counts.Pass++
		case checkup.Fail:
			counts.Fail++
		case checkup.Undecided:
			counts.Undecided++
		case checkup.Unmeasured:
			counts.Unmeasured++
		}
		if right && names[u.Name] {
			t.Fatalf("duplicate unit %q", u.Name)
		}
		names[u.Name] = true
	}
	if counts != r.Counts {
		t.Fatalf("units %+v, counts %+v", counts, r.Counts)
	}
	if right && (len(r.Blocks) != 1 || r.Blocks[0].List == nil || len(r.Blocks[0].List.Items) == 0) {
		t.Fatalf("blocks %+v", r.Blocks)
	}
	for _, b := range r.Blocks {
		for _, item := range b.List.Items {
			if item.Table == nil {
				continue
			}
			for _, row := range item.Table.Rows {
				if len(row) != len(item.Table.Columns) {
					t.Fatalf("%d cells for %d columns", len(row), len(item.Table.Columns))
				}
			}
		}
	}
}

// TestDoubtfulBinding: a finding about a network that may not carry the frames of bound VMs says so.
func TestDoubtfulBinding(t *testing.T) {
	for kind, doubted := range map[string]bool{"bridge": false, "macvlan": true, "ipvlan": true, "macvtap": true, "ptp": true} {
		g := newGuests(1, vmLine{"a", "b", "m"})
		for i := range g.w.Sources {
			g.w.Sources[i].VM.NetworkType = kind
		}
		g.drop = func(int, int, checkup.IPFamily, bool) float64 { return 1 }
		r := Judge(g.w, g.roster, g.measure(), checkup.Gate{})
		if len(r.Findings) != 1 {
			t.Fatalf("%s: findings %+v", kind, r.Findings)
		}
		if said := strings.Contains(strings.Join(r.Findings[0].For, " "), "this may not be the network's fault: type "+kind); said != doubted {
			t.Errorf("%s: %q", kind, r.Findings[0].For)
		}
	}
}
