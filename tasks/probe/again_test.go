// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/fleet"
	"github.com/checkplan/checkplan/pkg/podmesh"
	agents "github.com/checkplan/checkplan/pkg/probe"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

// lab is a check of two nodes, n0 and n1, whose agents and responders are real and run in this
// process. The log of an agent is what it writes, of a responder what it has written so far.
type lab struct {
	task   *task.Task
	fleet  *fleet.Fleet
	frozen record.Frozen
	log    *bytes.Buffer // of the task
	// dead reports whether nothing from source to target gets through in a look; nil means that
	// everything does.
	dead func(look, source, target int) bool

	mu      sync.Mutex // guards following
	started map[string]int
	orders  []checkup.Order
}

func newLab(t *testing.T) *lab {
	second := checkup.Duration(time.Second)
	client := fake.NewSimpleClientset()
	client.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		a.(k8stesting.CreateAction).GetObject().(*corev1.Pod).Status = corev1.PodStatus{
			Phase:             corev1.PodRunning,
			ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
		}
		return false, nil, nil
	})
	l := &lab{log: &bytes.Buffer{}, started: map[string]int{}}
	l.task = &task.Task{Kubernetes: client, Namespace: "ns", RunName: "run", RunUID: "uid-1", PodName: "probe-pod", PodUID: "uid-3", Check: "mesh", Stdout: l.log}
	l.frozen = record.Frozen{Gate: checkup.Gate{Require: checkup.RequirePass, Confirm: true}, Worksheet: checkup.Worksheet{
		Plan: "day-2", Check: "mesh", Kind: podmesh.Name, Assignments: [][]int{{1}, {0}}, IPFamilies: []checkup.IPFamily{checkup.IPv4},
		Probes: []checkup.TransportProbe{
			{Transport: checkup.TCP, Probe: checkup.Probe{Sizes: []int{0}, Count: 3, Timeout: second / 10}},
			{Transport: checkup.UDP, Probe: checkup.Probe{Sizes: []int{64}, Count: 5, Timeout: second / 10}},
		},
		Limits:   checkup.Limits{PacketsPerSecond: 10_000, Concurrency: 8},
		Timeouts: checkup.Timeouts{Setup: 60 * second, Probe: 60 * second},
	}}
	responders := map[string]*reports{}
	for i := range 2 {
		node := fmt.Sprintf("n%d", i)
		r, err := agents.Listen(t.Context(), "127.0.0.1:0", "127.0.0.1:0", "")
		if err != nil {
			t.Fatal(err)
		}
		name := checkup.ObjectName("uid-1", "mesh", checkup.RoleResponder, node)
		counted := &reports{}
		responders[name] = counted
		ctx, stop := context.WithCancel(context.Background())
		tick := time.NewTicker(5 * time.Millisecond)
		served := make(chan error, 1)
		go func() { served <- r.Serve(ctx, counted, tick.C) }()
		t.Cleanup(func() { stop(); tick.Stop(); <-served })
		l.frozen.Worksheet.Sources = append(l.frozen.Worksheet.Sources, checkup.Endpoint{Node: node})
		l.frozen.Roster.Targets = append(l.frozen.Roster.Targets, checkup.RosterEntry{
			Pod: "ns/" + name, Addresses: map[checkup.IPFamily]string{checkup.IPv4: "127.0.0.1"}, Ports: r.Ports(),
		})
		if err := client.Tracker().Add(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", Labels: map[string]string{
				checkup.LabelRun: "uid-1", checkup.LabelCheck: "mesh", checkup.LabelRole: "responder",
			}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		}); err != nil {
			t.Fatal(err)
		}
	}
	l.frozen.Worksheet.Targets = l.frozen.Worksheet.Sources
	if err := l.task.Store("day-2").Save(t.Context(), record.Worksheet("mesh"), l.frozen); err != nil {
		t.Fatal(err)
	}
	silent := blackHole(t)
	l.fleet = l.task.Fleet("day-2")
	l.fleet.Retry = time.Millisecond
	l.fleet.OpenLog = func(ctx context.Context, pod string, _ *corev1.PodLogOptions) (io.ReadCloser, error) {
		if r := responders[pod]; r != nil {
			time.Sleep(20 * time.Millisecond) // until the next tick
			return io.NopCloser(strings.NewReader(r.String())), nil
		}
		cm, err := client.CoreV1().ConfigMaps("ns").Get(ctx, pod, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		order, err := agents.ReadOrder(strings.NewReader(cm.Data["order.json"]))
		if err != nil {
			return nil, err
		}
		l.mu.Lock()
		l.started[pod]++
		l.orders = append(l.orders, order)
		l.mu.Unlock()
		funcs := map[checkup.Transport]agents.Func{}
		for transport, measure := range agents.Funcs {
			funcs[transport] = func(ctx context.Context, m agents.Measurement, s *agents.Session) checkup.Observation {
				control := m.Pair.Target < 0
				if l.dead != nil && !control && l.dead(order.Look, m.Pair.Source, m.Pair.Target) {
					m.Address = silent[transport]
				}
				return measure(ctx, m, s)
			}
		}
		r, w := io.Pipe()
		go func() {
			w.CloseWithError(agents.Agent{Order: order, Out: w, Funcs: funcs}.Run(ctx))
		}()
		return r, nil
	}
	return l
}

// blackHole returns addresses where nothing answers.
func blackHole(t *testing.T) map[checkup.Transport]netip.AddrPort {
	udp, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { udp.Close() })
	refused := netip.MustParseAddrPort(tcp.Addr().String())
	tcp.Close()
	return map[checkup.Transport]netip.AddrPort{
		checkup.UDP: netip.MustParseAddrPort(udp.LocalAddr().String()), checkup.TCP: refused,
	}
}

// reports is the log of a responder.
type reports struct {
	mu  sync.Mutex
	log bytes.Buffer
}

func (r *reports) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(b)
}

func (r *reports) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

// run measures, and returns the report and the record.
func (l *lab) run(t *testing.T) (*checkup.Report, *checkup.Record) {
	t.Helper()
	if err := probe(t.Context(), l.task, l.fleet, &l.frozen); err != nil {
		t.Fatal(err)
	}
	r, err := l.task.Store("").LoadRecord(t.Context(), "mesh")
	if err != nil {
		t.Fatal(err)
	}
	return l.report(t), r
}

func (l *lab) report(t *testing.T) *checkup.Report {
	t.Helper()
	plan := &checkup.Plan{Name: "day-2", Gate: l.frozen.Gate, Checks: map[string]checkup.Check{"mesh": {Spec: &podmesh.Spec{}}}}
	report, err := l.task.Report(t.Context(), plan, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// TestCleanLook: a look without failures is the only one, and each agent is started once.
func TestCleanLook(t *testing.T) {
	l := newLab(t)
	report, r := l.run(t)
	if report.Verdict != checkup.RunPass || len(r.Looks) != 0 || len(l.orders) != 2 {
		t.Errorf("%s, %d looks, %d agents; want a pass, none and 2:\n%s", report.Summary, len(r.Looks), len(l.orders), l.log)
	}
	if strings.Contains(l.log.String(), "second look") {
		t.Errorf("the log is about a second look:\n%s", l.log)
	}
}

// TestSecondLook: what fails in the first look is measured again by another agent, and nothing else: that the way back
// passed is enough against causes of both directions. Responders are the same, but count each look for itself.
func TestSecondLook(t *testing.T) {
	l := newLab(t)
	l.dead = func(look, source, _ int) bool { return look == 0 && source == 0 }
	report, r := l.run(t)
	if len(r.Observations) != 4 || len(r.Looks) != 1 {
		t.Fatalf("%d pairs, %d looks; want 4 and 1:\n%s", len(r.Observations), len(r.Looks), l.log)
	}
	second := r.Looks[0]
	if second.Worksheet.Look != 1 || second.After <= 0 || second.Worksheet.Timeouts.Probe >= l.frozen.Worksheet.Timeouts.Probe {
		t.Errorf("look %d after %s, for %s", second.Worksheet.Look, second.After, second.Worksheet.Timeouts.Probe)
	}
	if len(second.Record.Observations) != 2 {
		t.Fatalf("%d pairs measured again, want 2", len(second.Record.Observations))
	}
	for _, o := range second.Record.Observations {
		if o.Source != 0 || o.Received != second.Worksheet.Measurements(o.Pair) {
			t.Errorf("again %+v, want all answered, and nothing of the way back", o)
		}
	}
	packets := map[int]int{}
	for _, got := range second.Record.Receptions {
		if packets[got.Source] += got.Packets; got.Look != 1 {
			t.Errorf("reception %+v of the second look", got)
		}
	}
	if packets[0] != 5 || packets[1] != 0 {
		t.Errorf("requests in the second look, by source: %v, want 5 and 0", packets)
	}
	for name, n := range l.started {
		if n != 1 {
			t.Errorf("agent %s was started %d times", name, n)
		}
	}
	if len(l.orders) != 3 {
		t.Errorf("%d agents, want 3", len(l.orders))
	}
	if report.Verdict != checkup.RunPass || !report.Passed || report.Counts.Pass != 4 {
		t.Errorf("%s, want that all passed", report.Summary)
	}
	if want := fmt.Sprintf("; 2 failures gone after %s", second.After); !strings.HasSuffix(report.Summary, want) {
		t.Errorf("summary %q, want %q in the end", report.Summary, want)
	}
	for _, f := range report.Checks[0].Findings {
		if f.Confirmation != checkup.Gone || strings.Contains(report.Summary, f.Message) {
			t.Errorf("finding %+v, want that it is gone, and not in the summary %q", f, report.Summary)
		}
	}
	for _, u := range report.Checks[0].Units {
		if u.Verdict != checkup.Pass || u.Confirmation != checkup.Gone || u.After != second.After || u.Cause == nil || u.Received != u.Sent {
			t.Errorf("unit %+v, want that it is gone, with the cause of the first look", u)
		}
	}
	for _, want := range []string{"second look: 2 pairs, for at most ", "second look: 1 of 1 agent started, 2 of 2 pairs measured"} {
		if !strings.Contains(l.log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, l.log)
		}
	}
}

// TestConfirmed: what fails again fails the run. What neither failed, nor is doubtful, nor separates causes, is not
// measured again.
func TestConfirmed(t *testing.T) {
	l := newLab(t)
	l.dead = func(_, source, _ int) bool { return source == 0 }
	report, r := l.run(t)
	if report.Verdict != checkup.RunFail || report.Counts.Fail != 2 || len(r.Looks) != 1 || len(r.Looks[0].Record.Observations) != 2 {
		t.Errorf("%s, want that 2 pairs failed twice", report.Summary)
	}
	units := report.Checks[0].Units
	for _, u := range units {
		if u.Source != "n0" || u.Verdict != checkup.Fail || u.Confirmation != checkup.Confirmed {
			t.Errorf("unit %+v, want that its failure is confirmed", u)
		}
	}
	if f := report.Checks[0].Findings; len(units) != 2 || len(f) != 1 || f[0].Confirmation != checkup.Confirmed {
		t.Errorf("%d units, findings %+v, want 2 and one that is confirmed", len(units), f)
	}
}

// TestSecondTry: a try of the task without a second look is not judged by the second look of an earlier try.
func TestSecondTry(t *testing.T) {
	l := newLab(t)
	l.dead = func(_, source, _ int) bool { return source == 0 }
	if _, r := l.run(t); len(r.Looks) != 1 {
		t.Fatalf("%d looks in the first try, want 1", len(r.Looks))
	}
	l.dead = nil
	report, r := l.run(t)
	if report.Verdict != checkup.RunPass || len(r.Looks) != 0 || strings.Contains(report.Summary, "after") {
		t.Errorf("%s, %d looks; want a pass by the first look", report.Summary, len(r.Looks))
	}
}

// TestNotConfirmedByTheGate: a gate that does not confirm decides by the first look.
func TestNotConfirmedByTheGate(t *testing.T) {
	l := newLab(t)
	l.frozen.Gate.Confirm = false
	l.dead = func(look, source, _ int) bool { return look == 0 && source == 0 }
	if report, r := l.run(t); report.Verdict != checkup.RunFail || len(r.Looks) != 0 {
		t.Errorf("%s, %d looks; want a failure and none", report.Summary, len(r.Looks))
	}
}

// TestSecondLookRefused: agents that cannot be started again are no error of the task. The first look
// stays.
func TestSecondLookRefused(t *testing.T) {
	l := newLab(t)
	l.dead = func(_, source, _ int) bool { return source == 0 }
	created := 0
	l.task.Kubernetes.(*fake.Clientset).PrependReactor("create", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
		if created++; created > 2 {
			return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("exceeded quota"))
		}
		return false, nil, nil
	})
	report, r := l.run(t)
	if len(r.Observations) != 4 || len(r.Looks) != 1 || len(r.Looks[0].Record.Observations) != 0 || report.Counts.Fail != 2 {
		t.Errorf("%s; %d pairs, %+v; want the first look", report.Summary, len(r.Observations), r.Looks)
	}
	if want := "; nothing failed in both looks"; report.Verdict != checkup.RunInconclusive || !strings.Contains(report.Summary, want) {
		t.Errorf("%s, want that it is inconclusive: %s", report.Summary, want)
	}
	if want := "::warning::second look: 2 pairs not measured again: none of 1 agent could be created: "; !strings.Contains(l.log.String(), want) {
		t.Errorf("the log lacks %q:\n%s", want, l.log)
	}
}

// TestSecondLookWithoutTime: a first look that takes all of the probe timeout leaves nothing for a
// second.
func TestSecondLookWithoutTime(t *testing.T) {
	l := newLab(t)
	l.frozen.Worksheet.Timeouts.Probe = checkup.Duration(leastTime)
	l.dead = func(_, source, _ int) bool { return source == 0 }
	_, r := l.run(t)
	if len(r.Looks) != 1 || len(r.Looks[0].Worksheet.Again) != 2 || len(r.Looks[0].Record.Sources) != 0 || len(l.orders) != 2 {
		t.Errorf("%+v, want a look that was not made", r.Looks)
	}
	if want := "second look: 2 pairs not measured again: no time is left of timeouts.probe (10s)"; !strings.Contains(l.log.String(), want) {
		t.Errorf("the log lacks %q:\n%s", want, l.log)
	}
}

// TestStoppedSecondLook: a task that is stopped in the second look keeps the first.
func TestStoppedSecondLook(t *testing.T) {
	l := newLab(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	l.fleet.Farewell = time.Millisecond
	l.dead = func(look, source, _ int) bool {
		if look == 1 {
			cancel(errors.New("terminated"))
		}
		return source == 0
	}
	if err := probe(ctx, l.task, l.fleet, &l.frozen); err == nil || !strings.Contains(err.Error(), "terminated") {
		t.Errorf("%v, want that it was stopped", err)
	}
	r, err := l.task.Store("").LoadRecord(t.Context(), "mesh")
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := json.Marshal(r.Counted); len(r.Observations) != 4 || string(b) != "[0,1]" || len(r.Looks) != 1 {
		t.Errorf("%d pairs, counted %s, %d looks; want all of the first look", len(r.Observations), b, len(r.Looks))
	}
}
