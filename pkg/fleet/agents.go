// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// streams is how many logs are followed at once: each is a connection through
// the API server to a kubelet. Agents beyond it keep what they say in their log
// until there is room.
const streams = 64

// Sink takes what agents told. Its methods are called from several goroutines.
type Sink interface {
	// Observation is called once for each pair of which one came in.
	Observation(checkup.Observation)
	// Results is called with what came in of pairs that are told measurement by
	// measurement: each result once, those of one pair in the order of their times.
	Results([]checkup.Result)
	// Source is called once for each source of the worksheet, when nothing more
	// will come from it.
	Source(checkup.Source)
}

// Progress is how far Measure is.
type Progress struct {
	Started, Agents int // agents that have started, of how many
	Measured, Pairs int // pairs of which an observation came in, of how many in the worksheet
	// Results that came in, of how many that the agents are to tell; both 0 where
	// pairs are told by observations.
	Results, Expected int
}

// Measure starts an agent for every source of the worksheet that has something
// to measure and reads what it tells until all have come to their end, for at
// most the worksheet's probe timeout, watching included. Whatever stops an agent
// is a Cause of its source. progress, if not nil, is called with every change, one
// call at a time.
//
// When ctx is done earlier, Measure asks the agents to come to their end, takes
// for a short while (Farewell) what they still have to say, tells the sink of
// every source as it is then, and returns nil: what was measured by then stays.
func (f *Fleet) Measure(ctx context.Context, w *checkup.Worksheet, roster *checkup.Roster, sink Sink, progress func(Progress)) error {
	// It outlives ctx, for what agents say on their way out.
	deadline, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Duration(w.ProbeTimeout()))
	defer cancel()
	m := &measuring{Fleet: f, w: w, sink: sink, told: progress, stopping: ctx.Done(), slots: make(chan struct{}, streams)}
	m.progress.Pairs = w.CountPairs()

	var pods []*corev1.Pod
	var orders []*corev1.ConfigMap
	busy := map[int]bool{}
	for _, order := range Orders(w, roster) {
		pod, err := f.agent(w, order.Source)
		var cm *corev1.ConfigMap
		if err == nil {
			cm, err = orderOf(pod, order)
		}
		if err != nil {
			return fmt.Errorf("agent for %s: %w", w.Sources[order.Source].Name(), err)
		}
		pods, orders = append(pods, pod), append(orders, cm)
		m.agents = append(m.agents, newAgent(w, order, pod))
		busy[order.Source] = true
	}
	for s, targets := range w.Assignments {
		switch {
		case busy[s]:
		case len(targets) == 0:
			sink.Source(checkup.Source{Source: s})
		case w.Sources[s].Node == "":
			cause := w.Sources[s].Cause
			if cause == nil {
				cause = &checkup.Cause{Stage: checkup.StageSchedule, Message: "it is on no node, so there is none for an agent to stand on"}
			}
			sink.Source(checkup.Source{Source: s, Cause: cause})
		default:
			sink.Source(checkup.Source{Source: s, Cause: setupCause("none of its targets came up, so no agent was started")})
		}
	}
	if len(m.agents) == 0 {
		return nil
	}
	m.progress.Agents = len(m.agents)
	for _, a := range m.agents {
		m.progress.Expected += a.expected
	}
	f.logf("starting %d agents", len(m.agents))
	starting, cancel := context.WithTimeout(ctx, time.Duration(w.ProbeTimeout()))
	defer cancel()
	errs := all(len(pods), func(i int) error {
		if err := f.writeOrder(starting, orders[i]); err != nil {
			return err
		}
		return f.advise(f.create(starting, pods[i]), pods[i])
	})
	if err := everyOne(errs); err != nil && ctx.Err() == nil {
		return fmt.Errorf("none of %d agents could be created: %w", len(pods), err)
	}
	for i, a := range m.agents {
		a.refused = errs[i]
	}
	return m.run(ctx, deadline)
}

// advise adds to an error what to do about it, where admission refused a pod
// because it stands in its node's network.
func (f *Fleet) advise(err error, pod *corev1.Pod) error {
	if !pod.Spec.HostNetwork || !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "violates PodSecurity") {
		return err
	}
	return fmt.Errorf("%w; its component is in its node's network, and so the agent must be: "+
		"allow it by kubectl label --overwrite namespace %s %s=privileged", err, f.Namespace, checkup.LabelPodSecurity)
}

// writeOrder creates the ConfigMap of an agent's order, or overwrites the one of
// an earlier try.
func (f *Fleet) writeOrder(ctx context.Context, cm *corev1.ConfigMap) error {
	for try := 1; ; try++ {
		_, err := f.Client.CoreV1().ConfigMaps(f.Namespace).Create(ctx, cm, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			_, err = f.Client.CoreV1().ConfigMaps(f.Namespace).Update(ctx, cm, metav1.UpdateOptions{})
		}
		if err == nil {
			return nil
		}
		again := Passing(err) || apierrors.IsNotFound(err) // it went between the two requests
		if try == tries || !again || !Sleep(ctx, f.retry()) {
			return fmt.Errorf("write the order of agent %s: %w", cm.Name, err)
		}
	}
}

// measuring is one run of Measure.
type measuring struct {
	*Fleet
	w        *checkup.Worksheet
	sink     Sink
	agents   []*agent
	stopping <-chan struct{} // closed when the task is stopped from outside
	slots    chan struct{}   // one for each stream that is open
	waiting  atomic.Int32    // agents that wait for a slot

	mu       sync.Mutex // guards following, and serialises told
	progress Progress
	told     func(Progress)

	giving   sync.Mutex  // guards following
	giveUp   func()      // ends the waiting
	hopeless *time.Timer // runs while all agents that are waited for are stuck
}

// agent is one agent and what is known of it.
type agent struct {
	source  int
	name    string // of its pod
	node    string
	refused error // why its pod was not created
	// pairs of the source, and whether an observation came in. Only the goroutine
	// that reads the log uses it and the following.
	pairs    map[checkup.Pair]bool
	measured int // pairs of which one came in
	// last is the time of the newest result of each pair, newest that of them all:
	// what is not after it was told before. A log is read in its order, so that
	// nothing else has to be kept.
	last     map[checkup.Pair]time.Time
	newest   time.Time
	results  int  // that came in
	settled  int  // results that came in, or never will because an observation says why
	expected int  // results of its whole order; 0 where pairs are told by observations
	begun    bool // it told its start
	controls []checkup.Control
	end      *checkup.AgentEnd
	garbage  int  // lines of the log that made no sense
	cut      bool // measuring was stopped while it was still waited for

	changed chan struct{} // holds one token when the following changed

	mu      sync.Mutex // guards following
	pod     *corev1.Pod
	gone    bool
	started bool
	mute    bool // its kubelet did not give its log the last time
	done    bool // nobody waits for it any more
}

// stuck reports whether the agent is in a state that lasts as a rule, and whether
// it is waited for at all.
func (a *agent) stuck() (stuckNow, waited bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mute || a.pod != nil && !a.started && stuck(a.pod), !a.done
}

// set changes what mu guards.
func (a *agent) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

func newAgent(w *checkup.Worksheet, order checkup.Order, pod *corev1.Pod) *agent {
	a := &agent{
		source: order.Source, name: pod.Name, node: w.Sources[order.Source].Node,
		pairs: map[checkup.Pair]bool{}, last: map[checkup.Pair]time.Time{}, changed: make(chan struct{}, 1),
	}
	for p := range w.PairsOf(order.Source) {
		a.pairs[p] = false
	}
	if order.Connections == nil {
		return a
	}
	for _, target := range order.Targets {
		for p := range w.PairsBetween(order.Source, target.Target) {
			a.expected += countOf(w, p)
		}
	}
	return a
}

// countOf is how many measurements of a pair are made.
func countOf(w *checkup.Worksheet, p checkup.Pair) int {
	probe, _ := w.Probe(p.Transport)
	return probe.Count
}

// missed says whether the agent told of more than came in of it, or was stopped
// before it had told of everything.
func (a *agent) missed() bool {
	return a.end == nil || a.measured < a.end.Observations || a.results < a.end.Results || a.cut && a.settled < a.expected
}

// state returns the pod as it was seen last, which is nil before it was.
func (a *agent) state() (pod *corev1.Pod, gone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pod, a.gone
}

// run reads all agents' logs while one watch tells of their pods.
func (m *measuring) run(ctx, deadline context.Context) error {
	watching, stop := context.WithCancel(deadline)
	defer stop()
	m.giveUp = stop
	byName := map[string]*agent{}
	for _, a := range m.agents {
		byName[a.name] = a
		a.done = a.refused != nil
	}
	watched := make(chan error, 1)
	go func() {
		watched <- m.watch(watching, m.Labels(m.w.Check, checkup.RoleAgent), func(pod *corev1.Pod, gone bool) {
			a := byName[pod.Name]
			if a == nil {
				return
			}
			a.mu.Lock()
			a.pod, a.gone = pod, gone
			first := !a.started && started(pod)
			a.started = a.started || first
			a.mu.Unlock()
			if first {
				m.advance(func(p *Progress) { p.Started++ })
			}
			m.consider()
			select {
			case a.changed <- struct{}{}:
			default:
			}
		})
		stop() // without the watch nothing moves on
	}()

	var wg sync.WaitGroup
	trouble := make([]string, len(m.agents)) // with reading its log, by agent
	for i, a := range m.agents {
		wg.Go(func() {
			if a.refused == nil {
				trouble[i] = m.collect(watching, a)
				a.cut = ctx.Err() != nil
				a.set(func() { a.done = true })
				m.consider()
			}
		})
	}
	dismissed := make(chan struct{})
	go func() {
		defer close(dismissed)
		select {
		case <-ctx.Done():
			m.dismiss(watching)
			stop()
		case <-watching.Done():
		}
	}()
	wg.Wait()
	stop()
	<-dismissed
	err := <-watched
	if m.hopeless != nil {
		m.hopeless.Stop()
	}
	if err != nil {
		return err
	}

	var warnings map[string]string
	nodes := map[string]string{}
	// The deadline is over for the pods, not for finding out what they died of.
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for i, a := range m.agents {
		s := checkup.Source{Source: a.source, Pod: m.Namespace + "/" + a.name, Controls: a.controls, End: a.end}
		if a.refused != nil {
			s.Pod = ""
		}
		if a.missed() {
			if warnings == nil && ctx.Err() == nil {
				warnings = m.Warnings(after, "Pod")
			}
			if _, ok := nodes[a.node]; !ok && ctx.Err() == nil {
				nodes[a.node] = m.nodeTrouble(after, a.node)
			}
			s.Cause = a.cause(trouble[i], warnings[a.name], nodes[a.node])
			m.logf("::warning::source %s: %s", m.w.Sources[a.source].Name(), s.Cause)
		}
		if a.garbage > 0 {
			m.logf("::warning::source %s: %d lines of its agent's log made no sense", m.w.Sources[a.source].Name(), a.garbage)
		}
		m.sink.Source(s)
	}
	return nil
}

// dismiss asks the agents that are still waited for to come to their end, and
// gives them a while to say what they have: without it, what they measured since
// they spoke last would be lost. It returns when the while or ctx is over.
func (m *measuring) dismiss(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(m.Farewell, (grace+2)*time.Second))
	defer cancel()
	Sleep(ctx, m.retry()) // logs that waited for their turn are being opened
	all(len(m.agents), func(i int) error {
		if _, waited := m.agents[i].stuck(); !waited {
			return nil
		}
		period := int64(grace)
		return m.Client.CoreV1().Pods(m.Namespace).Delete(ctx, m.agents[i].name, metav1.DeleteOptions{GracePeriodSeconds: &period})
	})
	<-ctx.Done()
}

// consider starts the time of Patience when all agents that are still waited for
// are stuck, and stops it when one is not any more.
func (m *measuring) consider() {
	m.giving.Lock()
	defer m.giving.Unlock()
	for _, a := range m.agents {
		if stuck, waited := a.stuck(); waited && !stuck {
			if m.hopeless != nil {
				m.hopeless.Stop()
				m.hopeless = nil
			}
			return
		}
	}
	if m.hopeless == nil {
		m.hopeless = time.AfterFunc(m.patience(), m.giveUp)
	}
}

// advance changes the progress and tells of it.
func (m *measuring) advance(change func(*Progress)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.progress)
	if m.told != nil {
		m.told(m.progress)
	}
}

// collect reads the log of one agent until its end message came, or nothing more
// can come, or ctx is done. It returns what is to be known of how that went:
// the last error of reading, or empty.
func (m *measuring) collect(ctx context.Context, a *agent) (trouble string) {
	for last := 0; ; {
		pod, gone := a.state()
		if gone {
			return ""
		}
		ended := pod != nil && over(pod)
		if pod != nil && started(pod) {
			err := m.read(ctx, a, !ended)
			switch {
			case a.end != nil:
				return ""
			case ctx.Err() != nil:
				return trouble
			case err == nil:
				trouble = ""
			default:
				trouble = OneLine(err.Error())
			}
			// The log of a pod that is over is complete, unless its kubelet could not
			// be asked.
			if last++; ended && (err == nil || last >= tries) {
				return trouble
			}
			if !ended {
				last = 0
			}
		} else if ended {
			return ""
		}
		wait := time.Hour
		if pod != nil && started(pod) {
			wait = m.retry()
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return trouble
		case <-a.changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// read reads the log of an agent, and passes over what it told before:
// observations are told once for each pair, results in the order of their times,
// so that a stream that broke is simply opened anew. It begins where the newest
// result was taken, because a log may be long, and at the beginning before there
// is one. The kubelet begins a new file when a log has grown to 10 MiB or so: a
// stream that is open goes on into it, one that is opened then begins there.
//
// The log of an agent that says nothing for a while is left, so that another one
// has its turn, and so that a dead connection is found out; so is that of one that
// talks on and on when others wait.
func (m *measuring) read(ctx context.Context, a *agent, follow bool) error {
	m.waiting.Add(1)
	select {
	case m.slots <- struct{}{}:
		m.waiting.Add(-1)
		defer func() { <-m.slots }()
	case <-m.stopping: // there is no time left to wait
		m.waiting.Add(-1)
	case <-ctx.Done():
		m.waiting.Add(-1)
		return ctx.Err()
	}
	stall := cmp.Or(m.Stall, 30*time.Second)
	stream, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(stall, cancel)
	defer silence.Stop()
	opened, left := time.Now(), false
	log, err := m.openLog(stream, a.name, a.logFrom(follow))
	a.set(func() { a.mute = m.mute(err) })
	m.consider()
	if err != nil {
		return fmt.Errorf("open its log: %w", err)
	}
	defer log.Close()
	defer context.AfterFunc(stream, func() { log.Close() })()
	garbage, err := lines(bufio.NewReader(log), func(message checkup.Message) bool {
		silence.Reset(stall)
		if follow && m.waiting.Load() > 0 && time.Since(opened) > stall {
			left = true
			cancel()
		}
		return m.take(a, message)
	})
	a.garbage = max(a.garbage, garbage)
	switch {
	case a.end != nil || left:
		return nil
	case stream.Err() != nil:
		return fmt.Errorf("its log was silent for %s", stall)
	case err != nil:
		return fmt.Errorf("read its log: %w", err)
	}
	return nil
}

// clockSlack is how far a node's clock may be set back without a loss: the log is
// read again from so long before its newest result.
const clockSlack = time.Minute

// logFrom says from where a log is to be read. A line is written after what it
// tells was measured, by the same clock.
func (a *agent) logFrom(follow bool) *corev1.PodLogOptions {
	options := &corev1.PodLogOptions{Follow: follow}
	if !a.newest.IsZero() {
		options.SinceTime = new(metav1.NewTime(a.newest.Add(-clockSlack)))
	}
	return options
}

// mute reports whether an error of opening a log means that the agent's kubelet
// does not give it, so that waiting is of little use. An API server that is away
// comes back; and while pairs are watched, a kubelet may be away for a time, too:
// the agent goes on without it.
func (m *measuring) mute(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && (m.w.Connections == nil || m.w.Connections.For == 0)
}

// take takes one message of an agent, and says whether it makes sense.
func (m *measuring) take(a *agent, message checkup.Message) bool {
	switch {
	case message.Start != nil:
		if message.Start.Source != a.source {
			return false
		}
		a.begun = true
	case message.Control != nil:
		for i, c := range a.controls {
			if c.Family == message.Control.Family && c.Name == message.Control.Name {
				a.controls[i] = *message.Control
				return true
			}
		}
		a.controls = append(a.controls, *message.Control)
	case message.Observation != nil:
		known, expected := a.pairs[message.Observation.Pair]
		if !expected || known {
			return expected
		}
		a.pairs[message.Observation.Pair] = true
		a.measured++
		n := 0
		if a.expected > 0 { // there will be no results
			n = countOf(m.w, message.Observation.Pair)
		}
		a.settled += n
		m.sink.Observation(*message.Observation)
		m.advance(func(p *Progress) {
			p.Measured++
			p.Results += n
		})
	case len(message.Results) > 0:
		return m.takeResults(a, message.Results)
	case message.End != nil:
		a.end = message.End
	default:
		return false
	}
	return true
}

// takeResults takes those of the results that are new, and says whether all of
// them make sense.
func (m *measuring) takeResults(a *agent, results []checkup.Result) bool {
	fresh := make([]checkup.Result, 0, len(results))
	sense := true
	for _, r := range results {
		if _, expected := a.pairs[r.Pair]; !expected || a.expected == 0 || r.At.IsZero() {
			sense = false
			continue
		}
		if !r.At.After(a.last[r.Pair]) {
			continue
		}
		a.last[r.Pair] = r.At
		if r.At.After(a.newest) {
			a.newest = r.At
		}
		fresh = append(fresh, r)
	}
	if len(fresh) > 0 {
		a.results += len(fresh)
		a.settled += len(fresh)
		m.sink.Results(fresh)
		m.advance(func(p *Progress) { p.Results += len(fresh) })
	}
	return sense
}

// cause says why an agent did not come to its end. trouble is what went wrong
// with reading its log, event the last warning about its pod, node what is wrong
// with its node, each empty if nothing.
func (a *agent) cause(trouble, event, node string) *checkup.Cause {
	pod, gone := a.state()
	c := checkup.Cause{Stage: checkup.StageCollect}
	switch {
	case a.refused != nil:
		c = checkup.Cause{Stage: checkup.StageStart, Message: OneLine(a.refused.Error())}
	case a.cut && (pod == nil || !started(pod)):
		c = checkup.Cause{Stage: checkup.StageStart, Message: "the probe task was stopped before the agent started"}
	case a.cut:
		c.Message = "the probe task was stopped before the agent came to its end"
	case a.end != nil && a.results < a.end.Results:
		c.Message = fmt.Sprintf("the agent told of %d results, but only %d of them were in its log", a.end.Results, a.results)
	case a.end != nil:
		c.Message = fmt.Sprintf("the agent told of %d observations, but not all of them were in its log", a.end.Observations)
	case gone && !started(pod):
		c = checkup.Cause{Stage: checkup.StageStart, Message: "the agent's pod was deleted before it started"}
	case gone:
		c.Message = "the agent's pod was deleted before it came to its end"
	case pod == nil:
		c = checkup.Cause{Stage: checkup.StageStart, Message: "the API server did not tell of the agent's pod"}
	case !started(pod):
		c = explain(pod, event)
	case over(pod):
		c.Message = explain(pod, event).Message
		if !a.begun && trouble == "" {
			c.Stage = checkup.StageStart
		}
	case trouble != "":
		c.Message = "what the agent told could not be read to its end"
	default:
		c.Message = "the agent did not come to its end in time"
	}
	if a.refused == nil {
		c.Message = and(c.Message, trouble)
	}
	c.Message = and(c.Message, node)
	return &c
}

// and adds to a message, unless there is nothing to add.
func and(message, more string) string {
	if more == "" {
		return message
	}
	return message + "; " + more
}

// nodeTrouble says what is wrong with a node, or "": it only adds to a message.
func (f *Fleet) nodeTrouble(ctx context.Context, name string) string {
	node, err := f.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "its node is no more"
	case err != nil:
		return ""
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return OneLine("its node is not ready: " + c.Message)
		}
	}
	return ""
}
