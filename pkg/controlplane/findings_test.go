// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/judge/judgetest"
	"github.com/checkplan/checkplan/pkg/localise"
)

// judged is the report of what is measured of a control plane.
func judged(p *judgetest.Plane) checkup.CheckReport {
	return Judge(p.Worksheet, p.Roster, p.Measure(), checkup.Gate{})
}

// kindsOf are the kinds of findings, sorted.
func kindsOf(findings []checkup.Finding) []string {
	var all []string
	for _, f := range findings {
		all = append(all, judgetest.Kind(f))
	}
	slices.Sort(all)
	return all
}

// TestBlame puts faults into control planes of two and three nodes. They must be
// named, and nothing else.
func TestBlame(t *testing.T) {
	type fault struct {
		way   func(source, target int, after time.Duration) *checkup.Cause
		end   func(target int, after time.Duration) *checkup.Cause
		delay func(source, target int) time.Duration
	}
	const second = 1 // index of the second node
	etcd := second*judgetest.TargetsPerNode + judgetest.EtcdTarget
	on := func(node, source int) bool { return source/judgetest.SourcesPerNode == node }
	some := func(after time.Duration) bool { return after >= 10*time.Second && after < 50*time.Second }
	tests := []struct {
		name  string
		fault func(p *judgetest.Plane) fault
		want  []string // kinds of all findings, sorted
		says  string   // in the first finding
	}{
		{"nothing", func(*judgetest.Plane) fault { return fault{} }, nil, ""},
		{"a component that is down", func(*judgetest.Plane) fault {
			return fault{end: func(t int, _ time.Duration) *checkup.Cause { return judgetest.Because(t == etcd, judgetest.Refused) }}
		}, []string{"target etcd-server-cp-2"}, "etcd-server-cp-2, etcd on node cp-2 at 10.0.0.2:2379: no connection (connection refused)"},
		{"a component that says nothing", func(*judgetest.Plane) fault {
			return fault{end: func(t int, _ time.Duration) *checkup.Cause { return judgetest.Because(t == etcd, judgetest.Silent) }}
		}, []string{"target etcd-server-cp-2"}, "accepts connections and sends nothing (accepted the connection and then sent nothing for 10s)"},
		{"a component that is not ready", func(*judgetest.Plane) fault {
			return fault{end: func(t int, _ time.Duration) *checkup.Cause { return judgetest.Because(t == etcd, judgetest.NotReady) }}
		}, []string{"target etcd-server-cp-2"}, "sends no valid response"},
		{"a component with an outage", func(*judgetest.Plane) fault {
			return fault{end: func(t int, after time.Duration) *checkup.Cause {
				return judgetest.Because(t == etcd && some(after), judgetest.Refused)
			}}
		}, []string{"target etcd-server-cp-2"}, "in 160 of 240 measurements"},
		{"a component that most sources see fail", func(*judgetest.Plane) fault {
			return fault{way: func(s, t int, after time.Duration) *checkup.Cause {
				return judgetest.Because(t == etcd && s != judgetest.KubeAPIServer && after >= 20*time.Second && after < 30*time.Second, judgetest.NotReady)
			}}
		}, []string{"target etcd-server-cp-2"}, ""},
		{"a slow component", func(*judgetest.Plane) fault {
			return fault{delay: func(_, t int) time.Duration { return time.Duration(judgetest.When(t == etcd)) * 80 * time.Millisecond }}
		}, []string{"target etcd-server-cp-2"}, "too slow"},
		{"one endpoint behind a Service", func(*judgetest.Plane) fault {
			return fault{end: func(t int, after time.Duration) *checkup.Cause {
				return judgetest.Because(t == second*judgetest.TargetsPerNode+judgetest.KubeTarget && some(after), judgetest.Refused)
			}}
		}, []string{"target kubernetes-apiserver-endpoint-cp-2"}, ""},
		{"every endpoint behind a Service", func(p *judgetest.Plane) fault {
			return fault{end: func(t int, after time.Duration) *checkup.Cause {
				return judgetest.Because(t < p.KubeService() && t%judgetest.TargetsPerNode == judgetest.KubeTarget && some(after), judgetest.Refused)
			}}
		}, []string{"target kubernetes-apiserver-endpoint-cp-1", "target kubernetes-apiserver-endpoint-cp-2"}, ""},
		{"the service rules of one node", func(p *judgetest.Plane) fault {
			return fault{way: func(s, t int, _ time.Duration) *checkup.Cause {
				return judgetest.Because(on(second, s) && t == p.KubeService(), judgetest.TimedOut)
			}}
		}, []string{"service kubernetes-default-service-cluster from cp-2"}, "such as its service rules: no connection (timed out after 10s), while 2 of 2 endpoints behind it answered"},
		{"the service rules of one node for a time", func(p *judgetest.Plane) fault {
			return fault{way: func(s, t int, after time.Duration) *checkup.Cause {
				return judgetest.Because(on(second, s) && t == p.KubeService() && some(after), judgetest.TimedOut)
			}}
		}, []string{"service kubernetes-default-service-cluster from cp-2"}, ""},
		{"the service rules of every node", func(p *judgetest.Plane) fault {
			return fault{way: func(s, t int, _ time.Duration) *checkup.Cause {
				return judgetest.Because(t == p.KubeService(), judgetest.TimedOut)
			}}
		}, []string{"service kubernetes-default-service-cluster from every source"}, ""},
		{"a Service and an endpoint behind it at another time", func(p *judgetest.Plane) fault {
			return fault{
				way: func(s, t int, after time.Duration) *checkup.Cause {
					return judgetest.Because(on(0, s) && t == p.KubeService() && after < 20*time.Second, judgetest.TimedOut)
				},
				end: func(t int, after time.Duration) *checkup.Cause {
					return judgetest.Because(t == second*judgetest.TargetsPerNode+judgetest.KubeTarget && after >= 40*time.Second, judgetest.Refused)
				},
			}
		}, []string{"service kubernetes-default-service-cluster from cp-1", "target kubernetes-apiserver-endpoint-cp-2"}, ""},
		{"one source", func(p *judgetest.Plane) fault {
			return fault{way: func(s, _ int, _ time.Duration) *checkup.Cause {
				return judgetest.Because(s == judgetest.KubeAPIServer, judgetest.TimedOut)
			}}
		}, []string{"source kube-apiserver-cp-1"}, "all targets of kube-apiserver-cp-1 on node cp-1"},
		{"every source of one node", func(p *judgetest.Plane) fault {
			return fault{way: func(s, _ int, _ time.Duration) *checkup.Cause { return judgetest.Because(on(0, s), judgetest.TimedOut) }}
		}, []string{"nodeEgress cp-1"}, ""},
		{"a source and a component", func(p *judgetest.Plane) fault {
			return fault{
				way: func(s, _ int, _ time.Duration) *checkup.Cause {
					return judgetest.Because(s == judgetest.KubeAPIServer, judgetest.TimedOut)
				},
				end: func(t int, _ time.Duration) *checkup.Cause { return judgetest.Because(t == etcd, judgetest.Refused) },
			}
		}, []string{"source kube-apiserver-cp-1", "target etcd-server-cp-2"}, ""},
		{"one pair", func(p *judgetest.Plane) fault {
			return fault{way: func(s, t int, _ time.Duration) *checkup.Cause {
				return judgetest.Because(s == judgetest.KubeAPIServer && t == etcd, judgetest.TimedOut)
			}}
		}, []string{"pair kube-apiserver-cp-1 -> etcd-server-cp-2"}, "from kube-apiserver-cp-1 to etcd-server-cp-2 (10.0.0.2:2379): no connection (timed out after 10s)"},
		{"from one node to one component", func(p *judgetest.Plane) fault {
			return fault{way: func(s, t int, _ time.Duration) *checkup.Cause {
				return judgetest.Because(on(0, s) && t == etcd, judgetest.TimedOut)
			}}
		}, []string{"pair cp-1 -> etcd-server-cp-2"}, ""},
		{"from one node to another", func(p *judgetest.Plane) fault {
			return fault{way: func(s, t int, _ time.Duration) *checkup.Cause {
				return judgetest.Because(on(0, s) && t < p.KubeService() && t/judgetest.TargetsPerNode == second, judgetest.TimedOut)
			}}
		}, []string{"pair cp-1 -> cp-2"}, "from node cp-1 to node cp-2"},
		{"a name that is not resolved", func(p *judgetest.Plane) fault {
			return fault{end: func(t int, _ time.Duration) *checkup.Cause {
				return judgetest.Because(t == p.Balancer(), judgetest.NoAddress)
			}}
		}, []string{"target load-balancer-api-external"}, "its name does not resolve (no such host)"},
		{"everything", func(p *judgetest.Plane) fault {
			return fault{way: func(int, int, time.Duration) *checkup.Cause { return judgetest.TimedOut }}
		}, []string{"network"}, "every connection: no connection (timed out after 10s)"},
	}
	seen := map[checkup.FindingCause]bool{}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for seed := range judgetest.Iterations(4, 40) {
				p := judgetest.NewPlane(seed, 2, 60)
				p.Worksheet.Expect.Loss.Max = ptr(checkup.Percent(1))
				p.Worksheet.Expect.Latency.P99 = ptr(checkup.Duration(50 * time.Millisecond))
				f := test.fault(p)
				p.Way, p.End, p.Delay = f.way, f.end, f.delay
				r := judged(p)
				got := kindsOf(r.Findings)
				for _, f := range r.Findings {
					seen[f.Cause] = true
				}
				if !slices.Equal(got, test.want) {
					t.Fatalf("seed %d: want %q; got%s", seed, test.want, judgetest.Show(r.Findings))
				}
				if test.says != "" && !strings.Contains(r.Findings[0].Message, test.says) {
					t.Fatalf("seed %d: want %q in%s", seed, test.says, judgetest.Show(r.Findings))
				}
				if seed == 0 {
					t.Log(judgetest.Show(r.Findings))
				}
			}
		})
	}
	for _, c := range []checkup.FindingCause{checkup.CauseTarget, checkup.CauseService, checkup.CauseSource, checkup.CauseNodeEgress, checkup.CausePair, checkup.CauseNetwork} {
		if !seen[c] {
			t.Errorf("no fault is reported as %s", c)
		}
	}
}

// TestBlameExplains checks that every failed pair is explained, and nothing else,
// whatever fails.
func TestBlameExplains(t *testing.T) {
	causes := []*checkup.Cause{judgetest.Refused, judgetest.TimedOut, judgetest.Silent, judgetest.NotReady}
	for seed := range judgetest.Iterations(60, 2000) {
		rng := rand.New(rand.NewPCG(seed, 22))
		p := judgetest.NewPlane(seed, 1+rng.IntN(4), 1+rng.IntN(40))
		p.Worksheet.Connections.MaxOutage = ptr(checkup.Duration(time.Duration(rng.IntN(20)) * time.Second))
		if rng.IntN(2) == 0 {
			p.Worksheet.Expect.Loss.Max = ptr(checkup.Percent(rng.IntN(60)))
			p.Worksheet.Expect.Latency.P50 = ptr(checkup.Duration(5 * time.Millisecond))
		}
		if rng.IntN(2) == 0 {
			p.Worksheet.Connections.For = 0 // one round
		}
		ways, ends, chance := rng.IntN(4), rng.IntN(4), rng.Float64()
		pick := func(n uint64) float64 { return rand.New(rand.NewPCG(seed, n)).Float64() }
		p.Way = func(s, t int, after time.Duration) *checkup.Cause {
			window := uint64(after / (7 * time.Second))
			return judgetest.Because(ways > 0 && pick(uint64(1000*s+t)) < .3*float64(ways) && pick(window+77) < chance, causes[(s+t)%len(causes)])
		}
		p.End = func(t int, after time.Duration) *checkup.Cause {
			return judgetest.Because(ends > 0 && pick(uint64(t)+9) < .3*float64(ends) && pick(uint64(after/(9*time.Second))) < chance, causes[t%len(causes)])
		}
		p.Delay = func(s, t int) time.Duration {
			return time.Duration(judgetest.When(pick(uint64(s*t)+5) < .1)) * 20 * time.Millisecond
		}
		record := p.Measure()
		record.Results = slices.DeleteFunc(record.Results, func(r checkup.Result) bool { return pick(uint64(r.Source*100+r.Target)) < .1 })
		j := judge.Pairs(p.Worksheet, p.Roster, record, judge.Rules{})
		outcomes := j.Outcomes
		b := newBlamer(localise.NewEvidence(j))
		b.find()
		explained := map[int]bool{}
		for _, f := range b.found {
			if len(f.Pairs) == 0 || f.Message == "" || len(f.For) == 0 {
				t.Errorf("seed %d: an empty finding %+v", seed, f)
			}
			for _, i := range f.Pairs {
				explained[i] = true
			}
		}
		for i := range outcomes {
			if fails := outcomes[i].Verdict == checkup.Fail; fails != explained[i] {
				t.Errorf("seed %d: pair %+v fails: %t, explained: %t", seed, outcomes[i].Pair, fails, explained[i])
			}
		}
		if n := len(b.list()); n > 20 {
			t.Errorf("seed %d: %d findings", seed, n)
		}
	}
}

// TestBlameEvidence checks what a finding says of the endpoints behind a Service
// that other sources measured, and of those of which nothing is known.
func TestBlameEvidence(t *testing.T) {
	p := judgetest.NewPlane(1, 3, 30)
	p.Worksheet.Expect.Loss.Max = ptr(checkup.Percent(1))
	p.Way = func(s, t int, after time.Duration) *checkup.Cause {
		return judgetest.Because(s == judgetest.Aggregated && t == p.KubeService() && after >= 5*time.Second && after < 15*time.Second, judgetest.TimedOut)
	}
	record := p.Measure()
	for i := range record.Sources {
		record.Sources[i].End = nil // which would say that more was reported
	}
	// The source did not measure the endpoints, and nobody measured the third.
	record.Results = slices.DeleteFunc(record.Results, func(r checkup.Result) bool {
		isEndpoint := r.Target < p.KubeService() && r.Target%judgetest.TargetsPerNode == judgetest.KubeTarget
		return isEndpoint && (r.Source == judgetest.Aggregated || r.Target/judgetest.TargetsPerNode == 2)
	})
	r := Judge(p.Worksheet, p.Roster, record, checkup.Gate{})
	if len(r.Findings) != 1 || r.Findings[0].Cause != checkup.CauseService {
		t.Fatalf("want the one Service; got%s", judgetest.Show(r.Findings))
	}
	want := "2 of 3 endpoints behind it answered: kubernetes-apiserver-endpoint-cp-1, kubernetes-apiserver-endpoint-cp-2; no data about 1; they were measured from other sources"
	if all := strings.Join(r.Findings[0].For, "\n"); !strings.Contains(all, want) {
		t.Errorf("want %q in\n%s", want, all)
	}

	// If nobody measured any, neither the endpoints nor the way is blamed.
	record.Results = slices.DeleteFunc(record.Results, func(r checkup.Result) bool {
		return r.Target < p.KubeService() && r.Target%judgetest.TargetsPerNode == judgetest.KubeTarget
	})
	r = Judge(p.Worksheet, p.Roster, record, checkup.Gate{})
	if len(r.Findings) != 1 || judgetest.Kind(r.Findings[0]) != "pair aggregated-cp-1 -> kubernetes-default-service-cluster" {
		t.Errorf("want no more than the pair; got%s", judgetest.Show(r.Findings))
	} else if all := strings.Join(r.Findings[0].For, "\n"); !strings.Contains(all, "no data about the endpoints behind it") {
		t.Errorf("does not say that it has no data about the endpoints:%s", judgetest.Show(r.Findings))
	}
}

// TestBlameOneRound: in one round, an agent that starts later measures when others have ended. Failures of one target
// are one cause, unless the target had answered in between. In a watch they are several causes.
func TestBlameOneRound(t *testing.T) {
	const second = 1 // index of the second node
	etcd := second*judgetest.TargetsPerNode + judgetest.EtcdTarget
	from := func(source string) string { return "pair " + source + " -> etcd-server-cp-2" }
	for _, test := range []struct {
		name     string
		watch    bool
		answered int // which measurement of sources on cp-1 passes; 0 means none
		want     []string
	}{
		{"fails all the time", false, 0, []string{"target etcd-server-cp-2"}},
		{"answers in the middle", false, 2, []string{"target etcd-server-cp-2"}},
		{"answers at the end", false, 4, []string{from("cp-1"), from("cp-2")}},
		{"a watch", true, 0, []string{from("cp-1"), from("cp-2")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := judgetest.NewPlane(1, 2, 5)
			p.Worksheet.Expect.Loss.Max = ptr(checkup.Percent(1))
			if !test.watch {
				p.Worksheet.Connections.For = 0
			}
			p.Way = func(s, t int, after time.Duration) *checkup.Cause {
				answers := s/judgetest.SourcesPerNode != second && test.answered > 0 && after == time.Duration(test.answered)*time.Second
				return judgetest.Because(t == etcd && !answers, judgetest.Silent)
			}
			record := p.Measure()
			for i := range record.Results {
				if r := &record.Results[i]; r.Source/judgetest.SourcesPerNode == second {
					r.At = r.At.Add(20 * time.Second)
				}
			}
			r := Judge(p.Worksheet, p.Roster, record, checkup.Gate{})
			got := kindsOf(r.Findings)
			if !slices.Equal(got, test.want) {
				t.Errorf("want %q; got%s", test.want, judgetest.Show(r.Findings))
			}
		})
	}
}

// TestOverlapping: outages overlap if they are at most slack apart. In a round, but not in a watch, one that had not
// ended lasts as long as any failure.
func TestOverlapping(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	outage := func(series string) checkup.Outage {
		var results []checkup.Result
		for i, c := range series {
			results = append(results, checkup.Result{At: start.Add(time.Duration(i) * time.Second), Failure: judgetest.Because(c == 'x', judgetest.Refused)})
		}
		return checkup.Outages(results)[0]
	}
	for _, test := range []struct {
		a, b         string
		slack        time.Duration
		watch, round bool
	}{
		{"xx..", "xx..", 0, true, true},
		{"xx......", "....xx..", 0, false, false},
		{"xx......", "...xx...", time.Second, true, true},
		{"xx......", "....xx..", time.Second, false, false},
		{"xxxxxxxx", "...x....", 0, true, true}, // the first outage has no end
		{"xx", "....xx", time.Second, false, true},
		{"xx", "....x.", time.Second, false, true},
		{"x.", "....xx", time.Second, false, false},
	} {
		for _, watch := range []bool{true, false} {
			p := judgetest.NewPlane(1, 1, 1)
			if !watch {
				p.Worksheet.Connections.For = 0
			}
			b := newBlamer(localise.NewEvidence(judge.Pairs(p.Worksheet, p.Roster, p.Measure(), judge.Rules{})))
			b.slack, b.last = test.slack, start.Add(time.Minute)
			want := test.round
			if watch {
				want = test.watch
			}
			one, other := outage(test.a), outage(test.b)
			if got := len(b.overlapping([]checkup.Outage{one}, other)) > 0; got != want {
				t.Errorf("%q with %q within %s, watch %t: got %t, want %t", test.a, test.b, test.slack, watch, got, want)
			}
			if got := len(b.overlapping([]checkup.Outage{other}, one)) > 0; got != want {
				t.Errorf("%q with %q within %s, watch %t: got %t, want %t", test.b, test.a, test.slack, watch, got, want)
			}
		}
	}
}

// TestBlameRules: the ways to several Services that fail from one node at one time
// are one cause, at different times they are several.
func TestBlameRules(t *testing.T) {
	for _, together := range []bool{true, false} {
		p := judgetest.NewPlane(1, 2, 60)
		p.Worksheet.Expect.Loss.Max = ptr(checkup.Percent(1))
		for node := range 2 { // a Service, too
			p.Worksheet.Targets[p.Balancer()].Peer.Backends = append(p.Worksheet.Targets[p.Balancer()].Peer.Backends, node*judgetest.TargetsPerNode+judgetest.EtcdTarget)
		}
		p.Way = func(s, t int, after time.Duration) *checkup.Cause {
			first, second := after >= 10*time.Second && after < 20*time.Second, after >= 40*time.Second
			return judgetest.Because(s/judgetest.SourcesPerNode == 1 && (t == p.KubeService() && first || t == p.Balancer() && (together && first || !together && second)), judgetest.TimedOut)
		}
		r := judged(p)
		got := kindsOf(r.Findings)
		want := []string{"service 2 addresses from cp-2"}
		if !together {
			want = []string{"service kubernetes-default-service-cluster from cp-2", "service load-balancer-api-external from cp-2"}
		}
		if !slices.Equal(got, want) {
			t.Errorf("want %q; got%s", want, judgetest.Show(r.Findings))
		} else if all := strings.Join(r.Findings[0].For, "\n"); together && (!strings.Contains(all, "kubernetes-default-service-cluster: ") || !strings.Contains(all, "load-balancer-api-external: ")) {
			t.Errorf("want what is known of the endpoints of each:%s", judgetest.Show(r.Findings))
		}
	}
}

// TestBlameOnePod: the addresses of one pod are one cause.
func TestBlameOnePod(t *testing.T) {
	p := judgetest.NewPlane(1, 2, 10)
	for _, x := range []int{judgetest.EtcdTarget, judgetest.KubeTarget} {
		p.Worksheet.Targets[x].Pod = "kube-system/all-in-one"
	}
	p.End = func(t int, _ time.Duration) *checkup.Cause {
		return judgetest.Because(t == judgetest.EtcdTarget || t == judgetest.KubeTarget, judgetest.Refused)
	}
	r := judged(p)
	if len(r.Findings) != 1 || !strings.Contains(r.Findings[0].Message, "at 10.0.0.1:2379 and 10.0.0.1:6443") {
		t.Errorf("want one finding with both addresses; got%s", judgetest.Show(r.Findings))
	}

	// So are the names of one address, as that of an API server's host and endpoint.
	p = judgetest.NewPlane(1, 2, 10)
	p.Worksheet.Targets[judgetest.KubeTarget].Peer.Port = 2379
	p.End = func(t int, _ time.Duration) *checkup.Cause {
		return judgetest.Because(t == judgetest.EtcdTarget || t == judgetest.KubeTarget, judgetest.Refused)
	}
	r = judged(p)
	if len(r.Findings) != 1 || !strings.Contains(r.Findings[0].Message, "at 10.0.0.1:2379: ") {
		t.Errorf("want one finding with the one address; got%s", judgetest.Show(r.Findings))
	}
}

// TestBlameOneSource: a single source cannot distinguish its target from the path to it,
// except by a connection that was accepted.
func TestBlameOneSource(t *testing.T) {
	for _, test := range []struct {
		cause *checkup.Cause
		want  string
		or    []string
	}{
		{judgetest.Refused, "pair kube-apiserver-cp-1 -> aggregated-endpoint-cp-1", []string{"target aggregated-endpoint-cp-1"}},
		{judgetest.Silent, "target aggregated-endpoint-cp-1", []string{"pair cp-1 -> aggregated-endpoint-cp-1"}},
	} {
		p := judgetest.NewPlane(1, 1, 10)
		p.End = func(t int, _ time.Duration) *checkup.Cause {
			return judgetest.Because(t == judgetest.AggregatedTarget, test.cause)
		}
		r := judged(p)
		if len(r.Findings) != 1 || judgetest.Kind(r.Findings[0]) != test.want || !slices.Equal(r.Findings[0].Alternatives, test.or) || r.Findings[0].Explains != 2 {
			t.Errorf("%s: want %s or %q, with the address of its Service; got%s", test.cause, test.want, test.or, judgetest.Show(r.Findings))
		}
	}
}

// BenchmarkConnections judges a long watch of which much fails at times.
func BenchmarkConnections(b *testing.B) {
	p := judgetest.NewPlane(1, 3, 10_000)
	p.Worksheet.Expect.Loss.Max = ptr(checkup.Percent(1))
	p.End = func(t int, _ time.Duration) *checkup.Cause {
		return judgetest.Because(t%4 == 1 && p.Rand.IntN(3) == 0, judgetest.Refused)
	}
	record := p.Measure()
	for b.Loop() {
		Judge(p.Worksheet, p.Roster, record, checkup.Gate{})
	}
	b.ReportMetric(float64(len(record.Results)), "results")
}

func TestAtLeast(t *testing.T) {
	for _, test := range []struct {
		n, x   int
		chance float64
		want   string
	}{{5, 5, .5, "0.0312"}, {10, 5, .5, "0.6230"}, {10, 0, .5, "1.0000"}, {30, 30, .5, "0.0000"}, {4, 2, .25, "0.2617"}} {
		if got := fmt.Sprintf("%.4f", atLeast(test.n, test.x, test.chance)); got != test.want {
			t.Errorf("P(at least %d of %d | %v) = %s, want %s", test.x, test.n, test.chance, got, test.want)
		}
	}
}
