// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// when the condition holds, the cause.
func because(holds bool, c *checkup.Cause) *checkup.Cause {
	if holds {
		return c
	}
	return nil
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
	etcd := second*targetsPerNode + etcdTarget
	on := func(node, source int) bool { return source/sourcesPerNode == node }
	some := func(after time.Duration) bool { return after >= 10*time.Second && after < 50*time.Second }
	tests := []struct {
		name  string
		fault func(p *plane) fault
		want  []string // kinds of all findings, sorted
		says  string   // in the first finding
	}{
		{"nothing", func(*plane) fault { return fault{} }, nil, ""},
		{"a component that is down", func(*plane) fault {
			return fault{end: func(t int, _ time.Duration) *checkup.Cause { return because(t == etcd, refused) }}
		}, []string{"target etcd-server-cp-2"}, "etcd-server-cp-2, etcd on node cp-2 at 10.0.0.2:2379: no connection (connection refused)"},
		{"a component that says nothing", func(*plane) fault {
			return fault{end: func(t int, _ time.Duration) *checkup.Cause { return because(t == etcd, silent) }}
		}, []string{"target etcd-server-cp-2"}, "accepts connections and then says nothing for 10s"},
		{"a component that is not ready", func(*plane) fault {
			return fault{end: func(t int, _ time.Duration) *checkup.Cause { return because(t == etcd, notReady) }}
		}, []string{"target etcd-server-cp-2"}, "gives no good response"},
		{"a component with an outage", func(*plane) fault {
			return fault{end: func(t int, after time.Duration) *checkup.Cause { return because(t == etcd && some(after), refused) }}
		}, []string{"target etcd-server-cp-2"}, "in 160 of 240 measurements"},
		{"a component that most sources see fail", func(*plane) fault {
			return fault{way: func(s, t int, after time.Duration) *checkup.Cause {
				return because(t == etcd && s != kubeAPIServer && after == 20*time.Second, notReady)
			}}
		}, []string{"target etcd-server-cp-2"}, ""},
		{"a slow component", func(*plane) fault {
			return fault{delay: func(_, t int) time.Duration { return time.Duration(when(t == etcd)) * 80 * time.Millisecond }}
		}, []string{"target etcd-server-cp-2"}, "too slow"},
		{"one endpoint behind a Service", func(*plane) fault {
			return fault{end: func(t int, after time.Duration) *checkup.Cause {
				return because(t == second*targetsPerNode+kubeTarget && some(after), refused)
			}}
		}, []string{"target kubernetes-apiserver-endpoint-cp-2"}, ""},
		{"every endpoint behind a Service", func(p *plane) fault {
			return fault{end: func(t int, after time.Duration) *checkup.Cause {
				return because(t < p.kubeService() && t%targetsPerNode == kubeTarget && some(after), refused)
			}}
		}, []string{"target kubernetes-apiserver-endpoint-cp-1", "target kubernetes-apiserver-endpoint-cp-2"}, ""},
		{"the service rules of one node", func(p *plane) fault {
			return fault{way: func(s, t int, _ time.Duration) *checkup.Cause {
				return because(on(second, s) && t == p.kubeService(), timedOut)
			}}
		}, []string{"service kubernetes-default-service-cluster from cp-2"}, "as by its service rules: no connection (timed out after 10s), while 2 of 2 endpoints behind it answered"},
		{"the service rules of one node for a time", func(p *plane) fault {
			return fault{way: func(s, t int, after time.Duration) *checkup.Cause {
				return because(on(second, s) && t == p.kubeService() && some(after), timedOut)
			}}
		}, []string{"service kubernetes-default-service-cluster from cp-2"}, ""},
		{"the service rules of every node", func(p *plane) fault {
			return fault{way: func(s, t int, _ time.Duration) *checkup.Cause { return because(t == p.kubeService(), timedOut) }}
		}, []string{"service kubernetes-default-service-cluster from every source"}, ""},
		{"a Service and an endpoint behind it at another time", func(p *plane) fault {
			return fault{
				way: func(s, t int, after time.Duration) *checkup.Cause {
					return because(on(0, s) && t == p.kubeService() && after < 20*time.Second, timedOut)
				},
				end: func(t int, after time.Duration) *checkup.Cause {
					return because(t == second*targetsPerNode+kubeTarget && after >= 40*time.Second, refused)
				},
			}
		}, []string{"service kubernetes-default-service-cluster from cp-1", "target kubernetes-apiserver-endpoint-cp-2"}, ""},
		{"one source", func(p *plane) fault {
			return fault{way: func(s, _ int, _ time.Duration) *checkup.Cause { return because(s == kubeAPIServer, timedOut) }}
		}, []string{"source kube-apiserver-cp-1"}, "everything that kube-apiserver-cp-1 on node cp-1 connects to"},
		{"every source of one node", func(p *plane) fault {
			return fault{way: func(s, _ int, _ time.Duration) *checkup.Cause { return because(on(0, s), timedOut) }}
		}, []string{"nodeEgress cp-1"}, ""},
		{"a source and a component", func(p *plane) fault {
			return fault{
				way: func(s, _ int, _ time.Duration) *checkup.Cause { return because(s == kubeAPIServer, timedOut) },
				end: func(t int, _ time.Duration) *checkup.Cause { return because(t == etcd, refused) },
			}
		}, []string{"source kube-apiserver-cp-1", "target etcd-server-cp-2"}, ""},
		{"one pair", func(p *plane) fault {
			return fault{way: func(s, t int, _ time.Duration) *checkup.Cause {
				return because(s == kubeAPIServer && t == etcd, timedOut)
			}}
		}, []string{"pair kube-apiserver-cp-1 -> etcd-server-cp-2"}, "from kube-apiserver-cp-1 to etcd-server-cp-2 (10.0.0.2:2379): no connection (timed out after 10s)"},
		{"from one node to one component", func(p *plane) fault {
			return fault{way: func(s, t int, _ time.Duration) *checkup.Cause { return because(on(0, s) && t == etcd, timedOut) }}
		}, []string{"pair cp-1 -> etcd-server-cp-2"}, ""},
		{"from one node to another", func(p *plane) fault {
			return fault{way: func(s, t int, _ time.Duration) *checkup.Cause {
				return because(on(0, s) && t < p.kubeService() && t/targetsPerNode == second, timedOut)
			}}
		}, []string{"pair cp-1 -> cp-2"}, "from node cp-1 to node cp-2"},
		{"a name that is not resolved", func(p *plane) fault {
			return fault{end: func(t int, _ time.Duration) *checkup.Cause { return because(t == p.balancer(), noAddress) }}
		}, []string{"target load-balancer-api-external"}, "its name is not resolved (no such host)"},
		{"everything", func(p *plane) fault {
			return fault{way: func(int, int, time.Duration) *checkup.Cause { return timedOut }}
		}, []string{"network"}, "every connection: no connection (timed out after 10s)"},
	}
	seen := map[checkup.FindingCause]bool{}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for seed := range iterations(4, 40) {
				p := newPlane(seed, 2, 60)
				p.w.Expect.Loss.Max = ptr(checkup.Percent(1))
				p.w.Expect.Latency.P99 = ptr(checkup.Duration(50 * time.Millisecond))
				f := test.fault(p)
				p.way, p.end, p.delay = f.way, f.end, f.delay
				r := p.judge()
				var got []string
				for _, f := range r.Findings {
					got = append(got, kind(f))
					seen[f.Cause] = true
				}
				slices.Sort(got)
				if !slices.Equal(got, test.want) {
					t.Fatalf("seed %d: want %q; got%s", seed, test.want, show(r.Findings))
				}
				if test.says != "" && !strings.Contains(r.Findings[0].Message, test.says) {
					t.Fatalf("seed %d: want %q in%s", seed, test.says, show(r.Findings))
				}
				if seed == 0 {
					t.Log(show(r.Findings))
				}
			}
		})
	}
	for _, c := range []checkup.FindingCause{checkup.CauseTarget, checkup.CauseService, checkup.CauseSource, checkup.CauseNodeEgress, checkup.CausePair, checkup.CauseNetwork} {
		if !seen[c] {
			t.Errorf("no fault is told as %s", c)
		}
	}
}

// TestBlameExplains checks that every failed pair is explained, and nothing else,
// whatever fails.
func TestBlameExplains(t *testing.T) {
	causes := []*checkup.Cause{refused, timedOut, silent, notReady}
	for seed := range iterations(60, 2000) {
		rng := rand.New(rand.NewPCG(seed, 22))
		p := newPlane(seed, 1+rng.IntN(4), 1+rng.IntN(40))
		p.w.Connections.MaxOutage = ptr(checkup.Duration(time.Duration(rng.IntN(20)) * time.Second))
		if rng.IntN(2) == 0 {
			p.w.Expect.Loss.Max = ptr(checkup.Percent(rng.IntN(60)))
			p.w.Expect.Latency.P50 = ptr(checkup.Duration(5 * time.Millisecond))
		}
		ways, ends, chance := rng.IntN(4), rng.IntN(4), rng.Float64()
		pick := func(n uint64) float64 { return rand.New(rand.NewPCG(seed, n)).Float64() }
		p.way = func(s, t int, after time.Duration) *checkup.Cause {
			window := uint64(after / (7 * time.Second))
			return because(ways > 0 && pick(uint64(1000*s+t)) < .3*float64(ways) && pick(window+77) < chance, causes[(s+t)%len(causes)])
		}
		p.end = func(t int, after time.Duration) *checkup.Cause {
			return because(ends > 0 && pick(uint64(t)+9) < .3*float64(ends) && pick(uint64(after/(9*time.Second))) < chance, causes[t%len(causes)])
		}
		p.delay = func(s, t int) time.Duration {
			return time.Duration(when(pick(uint64(s*t)+5) < .1)) * 20 * time.Millisecond
		}
		record := p.measure()
		record.Results = slices.DeleteFunc(record.Results, func(r checkup.Result) bool { return pick(uint64(r.Source*100+r.Target)) < .1 })
		j := newJudge(p.w, p.roster, record)
		outcomes := j.outcomes()
		b := newBlamer(p.w, outcomes)
		b.find()
		explained := map[int]bool{}
		for _, f := range b.found {
			if len(f.pairs) == 0 || f.Message == "" || len(f.For) == 0 {
				t.Errorf("seed %d: an empty finding %+v", seed, f)
			}
			for _, i := range f.pairs {
				explained[i] = true
			}
		}
		for i := range outcomes {
			if fails := outcomes[i].verdict == checkup.Fail; fails != explained[i] {
				t.Errorf("seed %d: pair %+v fails: %t, explained: %t", seed, outcomes[i].pair, fails, explained[i])
			}
		}
		if n := len(b.list()); n > maxFindings {
			t.Errorf("seed %d: %d findings", seed, n)
		}
	}
}

// TestBlameEvidence checks what a finding says of the endpoints behind a Service
// that other sources measured, and of those of which nothing is known.
func TestBlameEvidence(t *testing.T) {
	p := newPlane(1, 3, 30)
	p.w.Expect.Loss.Max = ptr(checkup.Percent(1))
	p.way = func(s, t int, after time.Duration) *checkup.Cause {
		return because(s == aggregated && t == p.kubeService() && after >= 5*time.Second && after < 15*time.Second, timedOut)
	}
	record := p.measure()
	for i := range record.Sources {
		record.Sources[i].End = nil // which would say that more was told
	}
	// The source did not measure the endpoints, and nobody measured the third.
	record.Results = slices.DeleteFunc(record.Results, func(r checkup.Result) bool {
		isEndpoint := r.Target < p.kubeService() && r.Target%targetsPerNode == kubeTarget
		return isEndpoint && (r.Source == aggregated || r.Target/targetsPerNode == 2)
	})
	r := Judge(p.w, p.roster, record, checkup.Gate{})
	if len(r.Findings) != 1 || r.Findings[0].Cause != checkup.CauseService {
		t.Fatalf("want the one Service; got%s", show(r.Findings))
	}
	want := "2 of 3 endpoints behind it answered: kubernetes-apiserver-endpoint-cp-1, kubernetes-apiserver-endpoint-cp-2; of 1 nothing is known; they were measured from other sources"
	if all := strings.Join(r.Findings[0].For, "\n"); !strings.Contains(all, want) {
		t.Errorf("want %q in\n%s", want, all)
	}

	// If nobody measured any, neither the endpoints nor the way is blamed.
	record.Results = slices.DeleteFunc(record.Results, func(r checkup.Result) bool {
		return r.Target < p.kubeService() && r.Target%targetsPerNode == kubeTarget
	})
	r = Judge(p.w, p.roster, record, checkup.Gate{})
	if len(r.Findings) != 1 || kind(r.Findings[0]) != "pair aggregated-cp-1 -> kubernetes-default-service-cluster" {
		t.Errorf("want no more than the pair; got%s", show(r.Findings))
	} else if all := strings.Join(r.Findings[0].For, "\n"); !strings.Contains(all, "nothing is known of the endpoints behind it") {
		t.Errorf("does not say that nothing is known of the endpoints:%s", show(r.Findings))
	}
}

// TestBlameRules: the ways to several Services that fail from one node at one time
// are one cause, at different times they are several.
func TestBlameRules(t *testing.T) {
	for _, together := range []bool{true, false} {
		p := newPlane(1, 2, 60)
		p.w.Expect.Loss.Max = ptr(checkup.Percent(1))
		for node := range 2 { // a Service, too
			p.w.Targets[p.balancer()].Peer.Backends = append(p.w.Targets[p.balancer()].Peer.Backends, node*targetsPerNode+etcdTarget)
		}
		p.way = func(s, t int, after time.Duration) *checkup.Cause {
			first, second := after >= 10*time.Second && after < 20*time.Second, after >= 40*time.Second
			return because(s/sourcesPerNode == 1 && (t == p.kubeService() && first || t == p.balancer() && (together && first || !together && second)), timedOut)
		}
		r := p.judge()
		var got []string
		for _, f := range r.Findings {
			got = append(got, kind(f))
		}
		slices.Sort(got)
		want := []string{"service 2 addresses from cp-2"}
		if !together {
			want = []string{"service kubernetes-default-service-cluster from cp-2", "service load-balancer-api-external from cp-2"}
		}
		if !slices.Equal(got, want) {
			t.Errorf("want %q; got%s", want, show(r.Findings))
		} else if all := strings.Join(r.Findings[0].For, "\n"); together && (!strings.Contains(all, "kubernetes-default-service-cluster: ") || !strings.Contains(all, "load-balancer-api-external: ")) {
			t.Errorf("want what is known of the endpoints of each:%s", show(r.Findings))
		}
	}
}

// TestBlameOnePod: the addresses of one pod are one cause.
func TestBlameOnePod(t *testing.T) {
	p := newPlane(1, 2, 10)
	for _, x := range []int{etcdTarget, kubeTarget} {
		p.w.Targets[x].Pod = "kube-system/all-in-one"
	}
	p.end = func(t int, _ time.Duration) *checkup.Cause {
		return because(t == etcdTarget || t == kubeTarget, refused)
	}
	r := p.judge()
	if len(r.Findings) != 1 || !strings.Contains(r.Findings[0].Message, "at 10.0.0.1:2379 and 10.0.0.1:6443") {
		t.Errorf("want one finding with both addresses; got%s", show(r.Findings))
	}

	// So are the names of one address, as that of an API server's host and endpoint.
	p = newPlane(1, 2, 10)
	p.w.Targets[kubeTarget].Peer.Port = 2379
	p.end = func(t int, _ time.Duration) *checkup.Cause {
		return because(t == etcdTarget || t == kubeTarget, refused)
	}
	r = p.judge()
	if len(r.Findings) != 1 || !strings.Contains(r.Findings[0].Message, "at 10.0.0.1:2379: ") {
		t.Errorf("want one finding with the one address; got%s", show(r.Findings))
	}
}

// TestBlameOneSource: who alone connects to a target cannot tell it from the way,
// but for a connection that stands.
func TestBlameOneSource(t *testing.T) {
	for _, test := range []struct {
		cause *checkup.Cause
		want  string
		or    []string
	}{
		{refused, "pair kube-apiserver-cp-1 -> aggregated-endpoint-cp-1", []string{"target aggregated-endpoint-cp-1"}},
		{silent, "target aggregated-endpoint-cp-1", []string{"pair cp-1 -> aggregated-endpoint-cp-1"}},
	} {
		p := newPlane(1, 1, 10)
		p.end = func(t int, _ time.Duration) *checkup.Cause { return because(t == aggregatedTarget, test.cause) }
		r := p.judge()
		if len(r.Findings) != 1 || kind(r.Findings[0]) != test.want || !slices.Equal(r.Findings[0].Alternatives, test.or) || r.Findings[0].Explains != 2 {
			t.Errorf("%s: want %s or %q, with the address of its Service; got%s", test.cause, test.want, test.or, show(r.Findings))
		}
	}
}

// BenchmarkConnections judges a long watch of which much fails at times.
func BenchmarkConnections(b *testing.B) {
	p := newPlane(1, 3, 10_000)
	p.w.Expect.Loss.Max = ptr(checkup.Percent(1))
	p.end = func(t int, _ time.Duration) *checkup.Cause { return because(t%4 == 1 && p.rng.IntN(3) == 0, refused) }
	record := p.measure()
	for b.Loop() {
		Judge(p.w, p.roster, record, checkup.Gate{})
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
