// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// sink keeps what agents reported.
type sink struct {
	mu           sync.Mutex // guards following
	observations map[checkup.Pair]int
	results      map[checkup.Pair][]checkup.Result
	sources      map[int]checkup.Source
	reported     chan checkup.Pair // not nil: the pair of each observation and result is sent there, too
}

func newSink() *sink {
	return &sink{observations: map[checkup.Pair]int{}, results: map[checkup.Pair][]checkup.Result{}, sources: map[int]checkup.Source{}}
}

func (s *sink) Observation(o checkup.Observation) {
	s.mu.Lock()
	s.observations[o.Pair]++
	s.mu.Unlock()
	if s.reported != nil {
		s.reported <- o.Pair
	}
}

func (s *sink) Results(results []checkup.Result) {
	s.mu.Lock()
	for _, r := range results {
		s.results[r.Pair] = append(s.results[r.Pair], r)
	}
	s.mu.Unlock()
	if s.reported != nil {
		for _, r := range results {
			s.reported <- r.Pair
		}
	}
}

func (s *sink) Source(source checkup.Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sources[source.Source] = source
}

// speech is the whole log of an agent that ended.
func speech(w *checkup.Worksheet, source int) []byte {
	var b bytes.Buffer
	say := func(m checkup.Message) {
		line, err := json.Marshal(m)
		if err != nil {
			panic(err)
		}
		b.Write(append(line, '\n'))
	}
	pairs := slices.Collect(w.PairsOf(source))
	say(checkup.Message{Start: &checkup.AgentStart{Source: source, Version: "v1", Pairs: len(pairs)}})
	say(checkup.Message{Control: &checkup.Control{Family: checkup.IPv4, Name: "self", OK: true}})
	say(checkup.Message{Control: &checkup.Control{Family: checkup.IPv4, Name: "closed", OK: true}})
	for _, p := range pairs {
		say(checkup.Message{Observation: &checkup.Observation{Pair: p, Sent: 1, Received: 1, RTTs: []int64{100}}})
	}
	say(checkup.Message{End: &checkup.AgentEnd{Observations: len(pairs)}})
	return b.Bytes()
}

// logs opens logs by the source whose agent wrote them.
type logs struct {
	w *checkup.Worksheet
	// of opens the n-th time, counted from 0; nil, or nil for a source, means that
	// the agent ended.
	of map[int]func(ctx context.Context, n int) (io.ReadCloser, error)

	mu     sync.Mutex // guards following
	opened map[int]int
}

func (l *logs) open(ctx context.Context, pod string, _ *corev1.PodLogOptions) (io.ReadCloser, error) {
	for s, e := range l.w.Sources {
		if checkup.ObjectName("run-uid", l.w.Check, checkup.RoleAgent, e.Name()) != pod {
			continue
		}
		l.mu.Lock()
		if l.opened == nil {
			l.opened = map[int]int{}
		}
		n := l.opened[s]
		l.opened[s]++
		l.mu.Unlock()
		if l.of[s] != nil {
			return l.of[s](ctx, n)
		}
		return text(speech(l.w, s)), nil
	}
	return nil, fmt.Errorf("no pod %s", pod)
}

func text(b []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(b)) }

// hanging is a log that says something and then nothing more until ctx is done.
func hanging(ctx context.Context, b []byte) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		w.Write(b)
		<-ctx.Done()
		w.CloseWithError(ctx.Err())
	}()
	return r
}

func TestMeasure(t *testing.T) {
	w := worksheet(4)
	c := newCluster()
	f, _ := newFleet(t, c)
	f.OpenLog = (&logs{w: w}).open
	s := newSink()
	var last Progress
	if err := f.Measure(t.Context(), w, rosterOf(w), s, func(p Progress) { last = p }); err != nil {
		t.Fatal(err)
	}
	for p := range w.Pairs() {
		if s.observations[p] != 1 {
			t.Errorf("pair %v was reported %d times, want once", p, s.observations[p])
		}
	}
	for i := range w.Sources {
		source := s.sources[i]
		if source.End == nil || source.Cause != nil || len(source.Controls) != 2 || !strings.HasPrefix(source.Pod, "ns/mesh-agent-") {
			t.Errorf("source %d: %+v, want it at its end, with both controls and its pod", i, source)
		}
	}
	if want := (Progress{Started: 4, Agents: 4, Measured: w.CountPairs(), Pairs: w.CountPairs()}); last != want {
		t.Errorf("progress ended at %+v, want %+v", last, want)
	}
	cms, err := c.CoreV1().ConfigMaps("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(cms.Items) != 4 {
		t.Errorf("%d orders, want 4", len(cms.Items))
	}
}

// TestMeasureGoesWrong: each way in which an agent can go wrong is a cause of its
// source and of no other, with the stage at which it stopped; and what it reported
// before stays.
func TestMeasureGoesWrong(t *testing.T) {
	w := worksheet(4)
	const bad = 1
	all := speech(w, bad)
	half := all[:len(all)/2]
	lines := bytes.SplitAfter(all, []byte("\n"))
	lost := bytes.Join(slices.Delete(slices.Clone(lines), 3, 4), nil) // all but one observation
	say := func(b []byte) func(context.Context, int) (io.ReadCloser, error) {
		return func(context.Context, int) (io.ReadCloser, error) { return text(b), nil }
	}
	gone := func(c *cluster) { // the pod is deleted as soon as its log is opened
		c.becomes["n1"] = running(0)
	}
	deadNode := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: "dead", Namespace: "ns"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: checkup.ObjectName("run-uid", "mesh", checkup.RoleAgent, "n1")},
		Type:           corev1.EventTypeWarning, Reason: "NodeNotReady", Message: "Node is not ready",
	}
	evicted := ended(137, "Error", "")
	evicted.Reason, evicted.Message = "Evicted", "The node was low on resource: memory."
	oom := ended(137, "OOMKilled", "")
	stagesSeen := map[checkup.Stage]bool{}
	for _, tt := range []struct {
		name    string
		objects []runtime.Object
		prepare func(c *cluster)
		log     func(ctx context.Context, n int) (io.ReadCloser, error)
		roster  func(*checkup.Roster)
		delete  bool // the pod is deleted when its log is opened
		stage   checkup.Stage
		message string
		some    bool // some observations came in
	}{
		{name: "none of its targets is up", roster: func(r *checkup.Roster) { r.Targets[2].Cause, r.Targets[3].Cause = setupCause("x"), setupCause("x") },
			stage: checkup.StageSetup, message: "none of its targets is ready"},
		{name: "not scheduled", prepare: func(c *cluster) { c.becomes["n1"] = unschedulable("0/4 nodes are available") },
			stage: checkup.StageSchedule, message: "not scheduled: 0/4 nodes are available"},
		{name: "no image", prepare: func(c *cluster) { c.becomes["n1"] = waiting("ImagePullBackOff", "not found") },
			stage: checkup.StageStart, message: "ImagePullBackOff: not found"},
		{name: "over quota", prepare: func(c *cluster) {
			c.refuse("create", "pods", apierrors.NewForbidden(pods, "x", errors.New("exceeded quota")), onNode("n1"))
		}, stage: checkup.StageStart, message: "exceeded quota"},
		{name: "crashed at once", prepare: func(c *cluster) { c.becomes["n1"] = ended(2, "Error", "no order") }, log: say(nil),
			stage: checkup.StageStart, message: "the container ended with exit code 2: no order"},
		{name: "killed half-way", prepare: func(c *cluster) { c.becomes["n1"] = oom }, log: say(half),
			stage: checkup.StageCollect, message: "exit code 137 (OOMKilled)", some: true},
		{name: "evicted half-way", prepare: func(c *cluster) { c.becomes["n1"] = evicted }, log: say(half),
			stage: checkup.StageCollect, message: "(Evicted): The node was low on resource: memory.", some: true},
		{name: "ended without its end", prepare: func(c *cluster) { c.becomes["n1"] = ended(0, "Completed", "") }, log: say(half),
			stage: checkup.StageCollect, message: "exit code 0", some: true},
		{name: "lost an observation", log: say(lost),
			stage: checkup.StageCollect, message: "the agent reported 4 observations, but its log has not all", some: true},
		{name: "deleted half-way", prepare: gone, delete: true, log: func(ctx context.Context, n int) (io.ReadCloser, error) { return hanging(ctx, half), nil },
			stage: checkup.StageCollect, message: "pod was deleted", some: true},
		{name: "kubelet stopped half-way", objects: []runtime.Object{deadNode},
			log: func(ctx context.Context, n int) (io.ReadCloser, error) {
				if n == 0 {
					return text(half), nil
				}
				return nil, apierrors.NewInternalError(errors.New("dial tcp 198.18.0.2:10250: connect: connection refused"))
			},
			stage: checkup.StageCollect, message: "; NodeNotReady: Node is not ready", some: true},
		{name: "kubelet does not take it up", objects: []runtime.Object{deadNode}, prepare: func(c *cluster) {
			c.becomes["n1"] = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}}
		}, stage: checkup.StageStart, message: "has not accepted the pod: NodeNotReady: Node is not ready"},
		{name: "log hangs", log: func(ctx context.Context, n int) (io.ReadCloser, error) { return hanging(ctx, half), nil },
			stage: checkup.StageCollect, message: "could not be read to its end; its log was silent for 50ms", some: true},
		{name: "log of somebody else", prepare: func(c *cluster) { c.becomes["n1"] = ended(0, "Completed", "") }, log: say(bytes.ReplaceAll(speech(w, 2), []byte(`"end"`), []byte(`"fin"`))),
			stage: checkup.StageStart, message: "exit code 0"},
	} {
		stagesSeen[tt.stage] = true
		// In a bubble nobody waits for a timeout, and none is over because the machine
		// is busy.
		t.Run(tt.name, synctested(func(t *testing.T) {
			c := newCluster(tt.objects...)
			if tt.prepare != nil {
				tt.prepare(c)
			}
			w := worksheet(4)
			f, _ := newFleet(t, c)
			f.Stall = 50 * time.Millisecond
			l := &logs{w: w, of: map[int]func(context.Context, int) (io.ReadCloser, error){bad: tt.log}}
			f.OpenLog = func(ctx context.Context, pod string, options *corev1.PodLogOptions) (io.ReadCloser, error) {
				r, err := l.open(ctx, pod, options)
				if tt.delete && pod == checkup.ObjectName("run-uid", "mesh", checkup.RoleAgent, "n1") {
					// Once what it reported was read.
					return &hook{ReadCloser: r, after: len(half), do: func() {
						<-c.watched
						c.CoreV1().Pods("ns").Delete(context.Background(), pod, metav1.DeleteOptions{})
					}}, err
				}
				return r, err
			}
			roster := rosterOf(w)
			if tt.roster != nil {
				tt.roster(roster)
			}
			s := newSink()
			if err := f.Measure(t.Context(), w, roster, s, nil); err != nil {
				t.Fatal(err)
			}
			for i := range w.Sources {
				source, ok := s.sources[i]
				switch {
				case !ok:
					t.Errorf("no report of source %d", i)
				case i != bad && source.Cause != nil:
					t.Errorf("source %d: %v, want no cause", i, source.Cause)
				case i == bad && (source.Cause == nil || source.Cause.Stage != tt.stage || !strings.Contains(source.Cause.Message, tt.message)):
					t.Errorf("cause %v, want stage %s and %q", source.Cause, tt.stage, tt.message)
				}
			}
			n := 0
			for p := range w.PairsOf(bad) {
				n += s.observations[p]
			}
			if (n > 0) != tt.some || n > 4 {
				t.Errorf("%d observations came in, want some: %v", n, tt.some)
			}
		}))
	}
	// Every stage that this package can stop at is above; the others are the
	// agent's own.
	ours := []checkup.Stage{checkup.StageSetup, checkup.StageSchedule, checkup.StageStart, checkup.StageCollect}
	if diff := cmp.Diff(slices.Sorted(slices.Values(ours)), slices.Sorted(maps.Keys(stagesSeen))); diff != "" {
		t.Errorf("stages (-want +got):\n%s", diff)
	}
}

// synctested runs a test in a bubble in which time passes when all wait.
func synctested(test func(*testing.T)) func(*testing.T) {
	return func(t *testing.T) { synctest.Test(t, test) }
}

// hook does something once so many bytes were read.
type hook struct {
	io.ReadCloser
	after int
	do    func()
}

func (h *hook) Read(b []byte) (int, error) {
	n, err := h.ReadCloser.Read(b)
	if h.after > 0 && h.after-n <= 0 {
		h.do()
	}
	h.after -= n
	return n, err
}

// TestBrokenStream: a stream that breaks is opened again, and no line is lost or
// taken twice, wherever it broke.
func TestBrokenStream(t *testing.T) {
	for at := 0; at < len(speech(worksheet(3), 0)); at += 37 {
		wholeLog(t, fmt.Sprintf("broken at %d", at), newCluster(), func(all []byte, n int) (io.ReadCloser, error) {
			switch n {
			case 0:
				return io.NopCloser(io.MultiReader(bytes.NewReader(all[:at]), broken{})), nil
			case 1:
				return nil, errors.New("connection refused")
			case 2: // it ends without an error, as it does when the kubelet stops
				return text(all[:at]), nil
			default:
				return text(all), nil
			}
		})
	}
}

// TestLateLog: the log of an agent that exited with code 0 is read again until it has the end message, because containerd
// on a busy node may report the exit before it has written the log.
func TestLateLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		c.becomes["n0"] = ended(0, "Completed", "")
		wholeLog(t, "late", c, func(all []byte, n int) (io.ReadCloser, error) {
			if n < 3 {
				return text(all[:len(all)/2]), nil
			}
			return text(all), nil
		})
	})
}

// wholeLog measures three nodes, and fails unless all that the agent of the first node reported arrives once. open opens
// the log of this agent, which is all when it is complete; n counts from 0.
func wholeLog(t *testing.T, what string, c *cluster, open func(all []byte, n int) (io.ReadCloser, error)) {
	t.Helper()
	w := worksheet(3)
	all := speech(w, 0)
	f, log := newFleet(t, c)
	f.Patience = time.Minute
	l := &logs{w: w, of: map[int]func(context.Context, int) (io.ReadCloser, error){
		0: func(_ context.Context, n int) (io.ReadCloser, error) { return open(all, n) },
	}}
	f.OpenLog = l.open
	s := newSink()
	if err := f.Measure(t.Context(), w, rosterOf(w), s, nil); err != nil {
		t.Fatal(err)
	}
	if cause := s.sources[0].Cause; cause != nil {
		t.Fatalf("%s: cause %v, want none", what, cause)
	}
	for p := range w.Pairs() {
		if s.observations[p] != 1 {
			t.Fatalf("%s: pair %v was reported %d times", what, p, s.observations[p])
		}
	}
	if n := len(s.sources[0].Controls); n != 2 {
		t.Fatalf("%s: %d controls, want 2", what, n)
	}
	if strings.Contains(log.String(), "ignored: not a valid message") {
		t.Fatalf("%s: half a line counts as garbage:\n%s", what, log)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("http2: client connection lost") }

// TestEndMessage: a log is read to the agent's end message, although the stream goes on until the kubelet has noticed
// that the container has exited, and no further.
func TestEndMessage(t *testing.T) { synctest.Test(t, testEndMessage) }

func testEndMessage(t *testing.T) {
	w := worksheet(3)
	f, _ := newFleet(t, newCluster())
	closed := make(chan struct{})
	f.OpenLog = (&logs{w: w, of: map[int]func(context.Context, int) (io.ReadCloser, error){
		0: func(ctx context.Context, _ int) (io.ReadCloser, error) {
			context.AfterFunc(ctx, func() { close(closed) })
			return hanging(ctx, append(speech(w, 0), `{"observation":{"s":99,"t":99,"f":"IPv4","p":"tcp","z":64}}`+"\n"...)), nil
		},
	}}).open
	s := newSink()
	began := time.Now()
	if err := f.Measure(t.Context(), w, rosterOf(w), s, nil); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 0 {
		t.Errorf("waited %s of fake time, want no wait after the end message", took)
	}
	<-closed
	if source := s.sources[0]; source.End == nil || source.Cause != nil || source.Unrequested > 0 {
		t.Errorf("source %+v, want it at its end, and nothing after it", source)
	}
}

// TestGarbage: what is no message is counted and logged; a pair that nobody requested
// is noted about the source that reported it; neither does any harm to others.
func TestGarbage(t *testing.T) {
	w := worksheet(3)
	f, log := newFleet(t, newCluster())
	f.OpenLog = (&logs{w: w, of: map[int]func(context.Context, int) (io.ReadCloser, error){
		0: func(context.Context, int) (io.ReadCloser, error) {
			foreign := `{"observation":{"s":0,"t":0,"f":"IPv4","p":"tcp","z":64}}` + "\n" + `{"observation":{"s":99,"t":99,"f":"IPv4","p":"tcp","z":64}}` + "\n"
			return text(append([]byte("runtime: warning\n"+foreign), speech(w, 0)...)), nil
		},
	}}).open
	s := newSink()
	if err := f.Measure(t.Context(), w, rosterOf(w), s, nil); err != nil {
		t.Fatal(err)
	}
	if len(s.observations) != w.CountPairs() || s.sources[0].Cause != nil {
		t.Errorf("%d observations, cause %v; want %d, none", len(s.observations), s.sources[0].Cause, w.CountPairs())
	}
	if source := s.sources[0]; source.Unrequested != 2 {
		t.Errorf("source %+v, want 2 unrequested pairs", source)
	}
	for _, want := range []string{
		"source n0: 1 line of its agent's log ignored: not a valid message",
		"source n0 reported 2 unrequested pairs: none of its pairs is trusted",
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q", want)
		}
	}
}

// TestMeasureStopped: when the task is stopped, what was measured stays, and every
// source is reported.
func TestMeasureStopped(t *testing.T) { synctest.Test(t, testMeasureStopped) }

func testMeasureStopped(t *testing.T) {
	w := worksheet(3)
	f, _ := newFleet(t, newCluster())
	half := speech(w, 1)
	half = half[:len(half)/2]
	f.OpenLog = (&logs{w: w, of: map[int]func(context.Context, int) (io.ReadCloser, error){
		1: func(ctx context.Context, n int) (io.ReadCloser, error) { return hanging(ctx, half), nil },
	}}).open
	ctx, cancel := context.WithCancel(t.Context())
	s := newSink()
	s.reported = make(chan checkup.Pair)
	go func() {
		for p := range s.reported {
			if p.Source == 1 {
				cancel()
			}
		}
	}()
	if err := f.Measure(ctx, w, rosterOf(w), s, nil); err != nil {
		t.Fatal(err)
	}
	close(s.reported)
	if len(s.sources) != 3 {
		t.Errorf("%d sources were reported, want 3", len(s.sources))
	}
	if cause := s.sources[1].Cause; cause == nil || cause.Stage != checkup.StageCollect || !strings.Contains(cause.Message, "task was stopped") {
		t.Errorf("cause %v, want that the task was stopped", cause)
	}
	n := 0
	for p := range w.PairsOf(1) {
		n += s.observations[p]
	}
	if n == 0 {
		t.Error("what was measured before is lost")
	}
}

// An API server that has just started denies everything until it has read its
// roles: a watch that has worked goes on.
func TestMeasureDeniedForAMoment(t *testing.T) {
	w := worksheet(3)
	c := newCluster()
	var calls atomic.Int32
	again := make(chan struct{})
	c.PrependWatchReactor("pods", func(k8stesting.Action) (bool, watch.Interface, error) {
		switch n := calls.Add(1); {
		case n == 1: // the API server goes while this one is open
			ends := watch.NewFake()
			ends.Stop()
			return true, ends, nil
		case n <= 3:
			return true, nil, apierrors.NewForbidden(pods, "", errors.New("not yet"))
		case n == 4:
			close(again)
		}
		return false, nil, nil
	})
	f, _ := newFleet(t, c)
	open := (&logs{w: w}).open
	f.OpenLog = func(ctx context.Context, pod string, o *corev1.PodLogOptions) (io.ReadCloser, error) {
		select {
		case <-again: // nothing is reported before
			return open(ctx, pod, o)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	sink := newSink()
	if err := f.Measure(t.Context(), w, rosterOf(w), sink, nil); err != nil {
		t.Fatal(err)
	}
	for _, source := range sink.sources {
		if source.End == nil {
			t.Errorf("source %d did not end: %v", source.Source, source.Cause)
		}
	}
	if len(sink.sources) != 3 {
		t.Errorf("%d sources, want 3", len(sink.sources))
	}
}

func TestMeasureRefused(t *testing.T) {
	for _, tt := range []struct {
		name, verb, resource string
		err                  error
		want                 string
	}{
		{"no right to create pods", "create", "pods", apierrors.NewForbidden(pods, "x", errors.New("no")), "none of 3 agents could be created: create pod"},
		{"no right to create orders", "create", "configmaps", apierrors.NewForbidden(corev1.Resource("configmaps"), "x", errors.New("no")), "none of 3 agents could be created: write the order"},
		{"no right to watch", "watch", "pods", apierrors.NewForbidden(pods, "", errors.New("no")), "watch pods in namespace ns"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := worksheet(3)
			c := newCluster()
			if tt.verb == "watch" {
				c.PrependWatchReactor("pods", watchRefused(tt.err))
			} else {
				c.refuse(tt.verb, tt.resource, tt.err, nil)
			}
			f, _ := newFleet(t, c)
			f.OpenLog = (&logs{w: w, of: map[int]func(context.Context, int) (io.ReadCloser, error){
				0: func(ctx context.Context, n int) (io.ReadCloser, error) { return hanging(ctx, nil), nil },
			}}).open
			err := f.Measure(t.Context(), w, rosterOf(w), newSink(), nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want an error with %q", err, tt.want)
			}
		})
	}
}

// TestEventsAreListedOnce: however many agents went wrong, events are listed once, also if that is refused.
func TestEventsAreListedOnce(t *testing.T) {
	for _, err := range []error{nil, apierrors.NewForbidden(corev1.Resource("events"), "", errors.New("no"))} {
		w := worksheet(4)
		c := newCluster()
		listed := 0
		c.PrependReactor("list", "events", func(k8stesting.Action) (bool, runtime.Object, error) {
			listed++
			return err != nil, nil, err
		})
		for _, node := range []string{"n0", "n1", "n2"} {
			c.becomes[node] = unschedulable("0/4 nodes are available")
		}
		f, _ := newFleet(t, c)
		f.OpenLog = (&logs{w: w}).open
		if err := f.Measure(t.Context(), w, rosterOf(w), newSink(), nil); err != nil {
			t.Fatal(err)
		}
		if listed != 1 {
			t.Errorf("events were listed %d times (%v), want once", listed, err)
		}
	}
}

// TestManyAgents: more agents than streams all have their turn, though some of
// them hang.
func TestManyAgents(t *testing.T) { synctest.Test(t, testManyAgents) }

func testManyAgents(t *testing.T) {
	w := worksheet(3 * streams)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f, _ := newFleet(t, newCluster())
	f.Stall = 20 * time.Millisecond
	l := &logs{w: w, of: map[int]func(context.Context, int) (io.ReadCloser, error){}}
	for s := range streams { // enough to take every stream
		l.of[s] = func(ctx context.Context, n int) (io.ReadCloser, error) { return hanging(ctx, nil), nil }
	}
	f.OpenLog = l.open
	s := newSink()
	s.reported = make(chan checkup.Pair)
	want := 2 * streams * 4
	done := make(chan int)
	go func() {
		n := 0
		for range s.reported {
			if n++; n == want {
				cancel() // the others would hang to the end
			}
		}
		done <- n
	}()
	if err := f.Measure(ctx, w, rosterOf(w), s, nil); err != nil {
		t.Fatal(err)
	}
	close(s.reported)
	if n := <-done; n != want {
		t.Errorf("%d observations, want %d", n, want)
	}
}
