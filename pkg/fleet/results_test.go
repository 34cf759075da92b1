// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// began is when the agents of tests begin to measure.
var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// connections is a worksheet of n components in their nodes' networks. Each probes two
// targets that exist, three times, one second apart, and one that is not visible.
func connections(n int) *checkup.Worksheet {
	second := checkup.Duration(time.Second)
	probe := checkup.Probe{Sizes: []int{0}, Count: 3, Interval: second, Timeout: second}
	w := &checkup.Worksheet{
		Plan: "day-2", Check: "control", Kind: "controlPlane",
		IPFamilies:  []checkup.IPFamily{checkup.IPv4},
		Probes:      []checkup.TransportProbe{{Transport: checkup.TCP, Probe: probe}, {Transport: checkup.TLS, Probe: probe}},
		Limits:      checkup.Limits{PacketsPerSecond: 100, Concurrency: 4, StartJitter: second},
		Timeouts:    checkup.Timeouts{Setup: 60 * second, Probe: 120 * second},
		Connections: &checkup.ConnectionSheet{For: 3 * second},
		Targets: []checkup.Endpoint{
			{Component: "etcd", Label: "etcd-server-n0", Peer: &checkup.Peer{Host: "192.0.2.1", Port: 2379, Family: checkup.IPv4, Transport: checkup.TLS, ClientCertificate: "etcd-client"}},
			{Component: "load-balancer-internal", Label: "load-balancer-api-internal", Peer: &checkup.Peer{Host: "api-int.example", Port: 6443, Transport: checkup.TCP}},
			{Component: "etcd", Label: "etcd-server"},
		},
	}
	for i := range n {
		w.Sources = append(w.Sources, checkup.Endpoint{
			Node: fmt.Sprintf("n%d", i), Component: "kube-apiserver", Label: fmt.Sprintf("kube-apiserver-n%d", i),
			HostNetwork: true, ClientCertificates: []string{"etcd-client"}, Tolerations: []checkup.Toleration{{Operator: "Exists"}},
		})
		w.Assignments = append(w.Assignments, []int{0, 1, 2})
	}
	return w
}

func seen() *checkup.Roster {
	return &checkup.Roster{Targets: []checkup.RosterEntry{{}, {}, {Cause: setupCause("no etcd member was seen")}}}
}

// reported is what a source measured: n times each of its pairs that can be measured.
func reported(w *checkup.Worksheet, source, n int) [][]checkup.Result {
	var rounds [][]checkup.Result
	for i := range n {
		var round []checkup.Result
		for t := range 2 {
			for p := range w.PairsBetween(source, t) {
				round = append(round, checkup.Result{Pair: p, At: began.Add(time.Duration(i)*time.Second + time.Duration(t)*time.Millisecond), Delays: checkup.StageDelays{Connect: 100}})
			}
		}
		rounds = append(rounds, round)
	}
	return rounds
}

// watchLog is the log of an agent that reported so many rounds, line by line, and
// then ended.
func watchLog(w *checkup.Worksheet, source, rounds int) [][]byte {
	var lines [][]byte
	say := func(m checkup.Message) {
		b, err := json.Marshal(m)
		if err != nil {
			panic(err)
		}
		lines = append(lines, append(b, '\n'))
	}
	say(checkup.Message{Start: &checkup.AgentStart{Source: source, Version: "v1", Pairs: 2}})
	say(checkup.Message{Control: &checkup.Control{Family: checkup.IPv4, Name: "self", OK: true}})
	results := 0
	for _, round := range reported(w, source, rounds) {
		say(checkup.Message{Results: round})
		results += len(round)
	}
	say(checkup.Message{End: &checkup.AgentEnd{Results: results}})
	return lines
}

func join(lines [][]byte) []byte { return bytes.Join(lines, nil) }

// want is what a sink gets of a source that is read to its end.
func want(w *checkup.Worksheet, source, rounds int) map[checkup.Pair][]checkup.Result {
	all := map[checkup.Pair][]checkup.Result{}
	for _, round := range reported(w, source, rounds) {
		for _, r := range round {
			all[r.Pair] = append(all[r.Pair], r)
		}
	}
	return all
}

// TestResults: whatever a log looks like when it is opened again, each result
// comes once, in order; and what the log lost is known.
func TestResults(t *testing.T) {
	w := connections(1)
	whole := watchLog(w, 0, 3)
	head, last := whole[:3], whole[len(whole)-1]
	opens := func(logs ...[]byte) func(context.Context, int) (io.ReadCloser, error) {
		return func(_ context.Context, n int) (io.ReadCloser, error) { return text(logs[min(n, len(logs)-1)]), nil }
	}
	unmeasured := checkup.Observation{Pair: checkup.Pair{Source: 0, Target: 0, Family: checkup.IPv4, Transport: checkup.TLS}, Unmeasured: &checkup.Cause{Stage: checkup.StageSocket, Message: "no certificate"}}
	silent, err := json.Marshal(checkup.Message{Observation: &unmeasured})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name     string
		log      func(context.Context, int) (io.ReadCloser, error)
		results  int // of each pair, from the first on
		without  int // result of each pair that is missing; 0 is none
		progress int
		cause    string
	}{
		{name: "at once", log: opens(join(whole)), results: 3, progress: 6},
		{name: "from its beginning again", log: opens(join(head), join(whole)), results: 3, progress: 6},
		{name: "rotated, and nothing lost", log: opens(join(head), join(whole[3:])), results: 3, progress: 6},
		{name: "rotated, and a line lost", log: opens(join(head), join(whole[4:])), results: 3, without: 1, progress: 4, cause: "the agent reported 6 results, but its log has only 4 of them"},
		{name: "rotated before anybody read it", log: opens(last), results: 0, progress: 0, cause: "the agent reported 6 results, but its log has only 0 of them"},
		{name: "every line twice", log: opens(join(slices.Concat(whole[:2], whole[2:3], whole[2:4], whole[3:]))), results: 3, progress: 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, log := newFleet(t, newCluster())
			f.OpenLog = (&logs{w: w, of: map[int]func(context.Context, int) (io.ReadCloser, error){0: tt.log}}).open
			s := newSink()
			var at Progress
			if err := f.Measure(t.Context(), w, seen(), s, func(p Progress) { at = p }); err != nil {
				t.Fatal(err)
			}
			expected := want(w, 0, tt.results)
			for p := range expected {
				if tt.without > 0 {
					expected[p] = slices.Delete(expected[p], tt.without, tt.without+1)
				}
			}
			if diff := cmp.Diff(expected, s.results); diff != "" {
				t.Errorf("results (-want +got):\n%s", diff)
			}
			if at.Results != tt.progress || at.Expected != 6 {
				t.Errorf("progress %d of %d results, want %d of 6", at.Results, at.Expected, tt.progress)
			}
			source := s.sources[0]
			if source.End == nil || (source.Cause != nil) != (tt.cause != "") || source.Cause != nil && !strings.Contains(source.Cause.Message, tt.cause) {
				t.Errorf("source %+v, want its end, and cause %q", source, tt.cause)
			}
			if strings.Contains(log.String(), "ignored: not a valid message") || len(source.Conflicts) != 0 {
				t.Error("something was ignored or contradicted itself")
			}
		})
	}

	t.Run("a pair of which nothing can be measured", func(t *testing.T) {
		f, _ := newFleet(t, newCluster())
		other := checkup.Message{Results: []checkup.Result{reported(w, 0, 1)[0][1]}}
		line, err := json.Marshal(other)
		if err != nil {
			t.Fatal(err)
		}
		end := []byte(`{"end":{"observations":1,"results":1,"selfDoubt":{"schedulingDelayMax":0,"schedulingDelayP99":0}}}` + "\n")
		f.OpenLog = (&logs{w: w, of: map[int]func(context.Context, int) (io.ReadCloser, error){
			0: opens(join([][]byte{whole[0], silent, []byte("\n"), line, []byte("\n"), end})),
		}}).open
		s := newSink()
		var at Progress
		if err := f.Measure(t.Context(), w, seen(), s, func(p Progress) { at = p }); err != nil {
			t.Fatal(err)
		}
		if s.observations[unmeasured.Pair] != 1 || s.sources[0].Cause != nil || at.Results != 4 {
			t.Errorf("observations %v, cause %v, progress %+v; want one, none, and 4 of 6: 3 will never come", s.observations, s.sources[0].Cause, at)
		}
	})
}

// TestResultsThatMakeNoSense: results of pairs that nobody asked for, or without a
// time, are counted and passed over; the others of their line are taken.
func TestResultsThatMakeNoSense(t *testing.T) {
	w := connections(1)
	first := reported(w, 0, 1)[0]
	foreign, timeless := first[0], first[0]
	foreign.Target, timeless.At = 99, time.Time{}
	line, err := json.Marshal(checkup.Message{Results: []checkup.Result{foreign, first[0], timeless}})
	if err != nil {
		t.Fatal(err)
	}
	f, log := newFleet(t, newCluster())
	f.OpenLog = (&logs{w: w, of: map[int]func(context.Context, int) (io.ReadCloser, error){
		0: func(context.Context, int) (io.ReadCloser, error) {
			return text(slices.Concat(line, []byte("\n"), join(watchLog(w, 0, 3)))), nil
		},
	}}).open
	s := newSink()
	if err := f.Measure(t.Context(), w, seen(), s, nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want(w, 0, 3), s.results); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	if s.sources[0].Unrequested != 1 {
		t.Errorf("source %+v, want 1 unrequested pair", s.sources[0])
	}
	if !strings.Contains(log.String(), "source kube-apiserver-n0: 1 line of its agent's log ignored: not a valid message") {
		t.Error("the log does not say that something was ignored")
	}

	mesh := worksheet(3) // which is reported by observations
	b, err := json.Marshal(checkup.Message{Results: []checkup.Result{{Pair: slices.Collect(mesh.PairsOf(0))[0], At: began}}})
	if err != nil {
		t.Fatal(err)
	}
	f.OpenLog = (&logs{w: mesh, of: map[int]func(context.Context, int) (io.ReadCloser, error){
		0: func(context.Context, int) (io.ReadCloser, error) {
			return text(slices.Concat(b, []byte("\n"), speech(mesh, 0))), nil
		},
	}}).open
	s = newSink()
	if err := f.Measure(t.Context(), mesh, rosterOf(mesh), s, nil); err != nil {
		t.Fatal(err)
	}
	if len(s.results) != 0 {
		t.Errorf("results %v of a check whose pairs are reported by observations, want none", s.results)
	}
}

// TestLogFrom: a log is read from its beginning until there is a result, and then
// from a while before the newest.
func TestLogFrom(t *testing.T) {
	w := connections(1)
	f, _ := newFleet(t, newCluster())
	whole := watchLog(w, 0, 3)
	var mu sync.Mutex // guards following
	var since []*metav1.Time
	f.OpenLog = func(_ context.Context, _ string, options *corev1.PodLogOptions) (io.ReadCloser, error) {
		mu.Lock()
		defer mu.Unlock()
		since = append(since, options.SinceTime)
		return text(join(whole[:min(1+2*len(since), len(whole))])), nil
	}
	if err := f.Measure(t.Context(), w, seen(), newSink(), nil); err != nil {
		t.Fatal(err)
	}
	if len(since) != 3 || since[0] != nil || since[1] == nil || since[2] == nil {
		t.Fatalf("the log was opened from %v, want three times, and the first from its beginning", since)
	}
	for i, newest := range []time.Time{began.Add(time.Millisecond), began.Add(2*time.Second + time.Millisecond)} {
		if got := since[i+1].Time; !got.Before(newest) || newest.Sub(got) > 2*clockSlack {
			t.Errorf("opened from %s, want a while before %s", got, newest)
		}
	}
}

// TestAPIServerAway: a watch goes on when the API server, or while it lasts a
// kubelet, is away for longer than our patience.
func TestAPIServerAway(t *testing.T) {
	w := connections(2)
	for _, tt := range []struct {
		name string
		err  error
	}{
		{"API server", errors.New("dial tcp 192.0.2.1:6443: connect: connection refused")},
		{"kubelet", apierrors.NewInternalError(errors.New("dial tcp 192.0.2.1:10250: connect: connection refused"))},
	} {
		t.Run(tt.name, synctested(func(t *testing.T) {
			f, _ := newFleet(t, newCluster())
			var back time.Time
			opens := func(source int) func(context.Context, int) (io.ReadCloser, error) {
				whole := watchLog(w, source, 3)
				return func(_ context.Context, n int) (io.ReadCloser, error) {
					switch {
					case n == 0:
						return text(join(whole[:3])), nil
					case time.Now().Before(back):
						return nil, tt.err
					}
					return text(join(whole)), nil
				}
			}
			f.OpenLog = (&logs{w: w, of: map[int]func(context.Context, int) (io.ReadCloser, error){0: opens(0), 1: opens(1)}}).open
			back = time.Now().Add(30 * f.Patience)
			s := newSink()
			if err := f.Measure(t.Context(), w, seen(), s, nil); err != nil {
				t.Fatal(err)
			}
			for source := range w.Sources {
				if cause := s.sources[source].Cause; cause != nil {
					t.Errorf("source %d: cause %v, want none", source, cause)
				}
				for p, results := range want(w, source, 3) {
					if diff := cmp.Diff(results, s.results[p]); diff != "" {
						t.Errorf("%v (-want +got):\n%s", p, diff)
					}
				}
			}
		}))
	}
}

// TestDismissed: when the task is stopped, agents are asked to end, and what they
// say on their way out is taken.
func TestDismissed(t *testing.T) { synctest.Test(t, testDismissed) }

func testDismissed(t *testing.T) {
	w := connections(2)
	const talks = 0 // the other one says nothing
	c := newCluster()
	c.becomes["n1"] = waiting("ContainerCreating", "")
	f, _ := newFleet(t, c)
	f.Farewell = 20 * time.Second
	f.Patience = time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	whole := watchLog(w, talks, 3)
	end := []byte(`{"end":{"observations":0,"results":4,"selfDoubt":{"schedulingDelayMax":0,"schedulingDelayP99":0}}}` + "\n")
	deleted := make(chan struct{})
	c.PrependReactor("delete", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if a.(k8stesting.DeleteAction).GetName() == checkup.ObjectName("run-uid", "control", checkup.RoleAgent, w.Sources[talks].Name()) {
			if got := a.(k8stesting.DeleteActionImpl).GetDeleteOptions().GracePeriodSeconds; got == nil || *got != grace {
				t.Errorf("deleted with grace %v, want %d s to end", got, grace)
			}
			close(deleted)
			return true, nil, nil // it exists until its container has ended
		}
		return false, nil, nil
	})
	f.OpenLog = (&logs{w: w, of: map[int]func(context.Context, int) (io.ReadCloser, error){
		talks: func(context.Context, int) (io.ReadCloser, error) {
			r, pipe := io.Pipe()
			go func() {
				pipe.Write(join(whole[:3]))
				<-deleted
				pipe.Write(slices.Concat(whole[3], end))
				pipe.Close()
			}()
			return r, nil
		},
	}}).open
	s := newSink()
	s.reported = make(chan checkup.Pair)
	go func() {
		for range s.reported {
			cancel()
		}
	}()
	if err := f.Measure(ctx, w, seen(), s, nil); err != nil {
		t.Fatal(err)
	}
	close(s.reported)
	if diff := cmp.Diff(want(w, talks, 2), s.results); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	for source, message := range []string{"stopped before the agent ended", "stopped before the agent started"} {
		if cause := s.sources[source].Cause; cause == nil || !strings.Contains(cause.Message, message) {
			t.Errorf("source %d: cause %v, want %q", source, cause, message)
		}
	}
}

// TestTurns: agents that never stop talking do not keep others from being read.
func TestTurns(t *testing.T) { synctest.Test(t, testTurns) }

func testTurns(t *testing.T) {
	w := connections(streams + 1)
	f, _ := newFleet(t, newCluster())
	f.Stall = 10 * time.Millisecond
	l := &logs{w: w, of: map[int]func(context.Context, int) (io.ReadCloser, error){}}
	done := make(chan struct{})
	var mu sync.Mutex // guards following
	heard := map[int]bool{}
	for source := range w.Sources {
		round := watchLog(w, source, 1)[2]
		l.of[source] = func(ctx context.Context, n int) (io.ReadCloser, error) {
			mu.Lock()
			defer mu.Unlock()
			if heard[source] = true; len(heard) == len(w.Sources) {
				select {
				case <-done:
				default:
					close(done)
				}
			}
			r, pipe := io.Pipe()
			go func() {
				for ctx.Err() == nil {
					if _, err := pipe.Write(round); err != nil {
						return
					}
					Sleep(ctx, time.Millisecond)
				}
				pipe.CloseWithError(ctx.Err())
			}()
			return r, nil
		}
	}
	f.OpenLog = l.open
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-done
		cancel()
	}()
	if err := f.Measure(ctx, w, seen(), newSink(), nil); err != nil {
		t.Fatal(err)
	}
	if len(heard) != len(w.Sources) {
		t.Errorf("%d of %d agents were read", len(heard), len(w.Sources))
	}
}

// TestHostNetworkRefused: what admission refuses is a cause with its words and
// what to do, or an error where it refuses all.
func TestHostNetworkRefused(t *testing.T) {
	refusal := apierrors.NewForbidden(pods, "x", errors.New(`violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)`))
	const remedy = "kubectl label --overwrite namespace ns pod-security.kubernetes.io/enforce=privileged"
	hostNetwork := func(o runtime.Object) bool { return o.(*corev1.Pod).Spec.HostNetwork }

	w := connections(2)
	w.Sources[1].HostNetwork = false
	c := newCluster()
	c.refuse("create", "pods", refusal, hostNetwork)
	f, _ := newFleet(t, c)
	l := &logs{w: w, of: map[int]func(context.Context, int) (io.ReadCloser, error){
		1: func(context.Context, int) (io.ReadCloser, error) { return text(join(watchLog(w, 1, 3))), nil },
	}}
	f.OpenLog = l.open
	s := newSink()
	if err := f.Measure(t.Context(), w, seen(), s, nil); err != nil {
		t.Fatal(err)
	}
	scc := apierrors.NewForbidden(pods, "x", errors.New(`unable to validate against any security context constraint: [...]`))
	if err := f.advise(scc, &corev1.Pod{Spec: corev1.PodSpec{HostNetwork: true}}); !strings.Contains(err.Error(), "preset openshift") {
		t.Errorf("%v, want what to do on OpenShift", err)
	}
	cause := s.sources[0].Cause
	if cause == nil || cause.Stage != checkup.StageStart || !strings.Contains(cause.Message, "host namespaces (hostNetwork=true)") || !strings.Contains(cause.Message, remedy) {
		t.Errorf("cause %v, want the words of admission and %q", cause, remedy)
	}
	if cause := s.sources[1].Cause; cause != nil {
		t.Errorf("the other source has the cause %v, want none", cause)
	}

	all := newCluster()
	all.refuse("create", "pods", refusal, nil)
	f, _ = newFleet(t, all)
	err := f.Measure(t.Context(), connections(2), seen(), newSink(), nil)
	if err == nil || !strings.Contains(err.Error(), "none of 2 agents could be created") || !strings.HasSuffix(err.Error(), remedy) {
		t.Errorf("%v, want an error that ends with %q", err, remedy)
	}

	all.refuse("create", "pods", apierrors.NewForbidden(pods, "x", errors.New("exceeded quota")), nil)
	if err := f.Measure(t.Context(), connections(2), seen(), newSink(), nil); err == nil || strings.Contains(err.Error(), remedy) {
		t.Errorf("%v, want an error without advice that does not help", err)
	}
}

// TestSourceWithoutNode: a component that is on no node is a cause, and keeps no
// other from being measured.
func TestSourceWithoutNode(t *testing.T) {
	w := connections(3)
	w.Sources[0].Node, w.Sources[2].Node = "", ""
	w.Sources[2].Cause = setupCause("no pod of it was seen")
	f, _ := newFleet(t, newCluster())
	f.OpenLog = (&logs{w: w, of: map[int]func(context.Context, int) (io.ReadCloser, error){
		1: func(context.Context, int) (io.ReadCloser, error) { return text(join(watchLog(w, 1, 3))), nil },
	}}).open
	s := newSink()
	if err := f.Measure(t.Context(), w, seen(), s, nil); err != nil {
		t.Fatal(err)
	}
	if cause := s.sources[0].Cause; cause == nil || cause.Stage != checkup.StageSchedule {
		t.Errorf("cause %v, want one of stage schedule", cause)
	}
	if cause := s.sources[2].Cause; !cmp.Equal(w.Sources[2].Cause, cause) {
		t.Errorf("cause %v, want the worksheet's", cause)
	}
	if cause := s.sources[1].Cause; cause != nil {
		t.Errorf("the other source has the cause %v, want none", cause)
	}
}
