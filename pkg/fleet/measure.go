// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/ingest"
	"github.com/checkplan/checkplan/pkg/retry"
)

// Progress is how far Measure is.
type Progress struct {
	Started, Agents int // agents that have started, of how many
	// Pairs whose observation arrived, of how many in the worksheet; or tables, one for each source and family.
	Measured, Pairs int
	// Results that arrived, of how many that the agents are to report; both 0 where
	// pairs are reported as observations.
	Results, Expected int
}

// Measure starts an agent for every source of the worksheet that has something to
// measure, in a pod of its own or inside the existing pod that is the source, and reads what it reports until all
// agents have ended, for at most the worksheet's probe timeout, watching included. Whatever stops an agent is a Cause
// of its source. progress, if not nil, is called with every change, one call at a time.
//
// When ctx is done earlier, Measure asks the agents to end, receives for a short while
// (Farewell) what they still have to report, calls the sink with every source as it is
// then, and returns nil: what was measured by then is kept.
func (f *Fleet) Measure(
	ctx context.Context, w *checkup.Worksheet, roster *checkup.Roster, sink ingest.Sink, progress func(Progress),
) error {
	// It outlives ctx, for what agents report while they end.
	deadline, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Duration(w.ProbeTimeout()))
	defer cancel()
	m := &measuring{
		Fleet: f, w: w, sink: sink, changed: progress, stopping: ctx.Done(), slots: make(chan struct{}, streams),
	}
	m.progress.Pairs = w.CountPairs()
	if w.Tables != nil {
		m.progress.Pairs = len(w.Sources) * len(w.IPFamilies)
	}

	var create []func(context.Context) error // by agent
	busy := map[int]bool{}
	for _, order := range Orders(w, roster) {
		a, do, err := f.prepare(w, order)
		if err != nil {
			return fmt.Errorf("agent for %s: %w", w.Sources[order.Source].Name(), err)
		}
		create = append(create, do)
		m.agents = append(m.agents, a)
		busy[order.Source] = true
	}
	for s := range w.Assignments {
		if !busy[s] {
			sink.Source(checkup.Source{Source: s, Cause: idle(w, s)})
		}
	}
	if len(m.agents) == 0 {
		return nil
	}
	m.progress.Agents = len(m.agents)
	for _, a := range m.agents {
		m.progress.Expected += a.expected
	}
	f.logf("starting %s", checkup.Count(len(m.agents), "agent"))
	starting, cancel := context.WithTimeout(ctx, time.Duration(w.ProbeTimeout()))
	defer cancel()
	errs := Each(len(create), func(i int) error { return create[i](starting) })
	// That an existing pod has ended, or is another one now, is no error of the tool; a missing right is. Nor is a
	// namespace that refuses pods that read rules: other checks of the plan go on.
	if err := EveryOne(errs); err != nil && ctx.Err() == nil && (!w.Inside() || apierrors.IsForbidden(err)) &&
		(w.Tables == nil || !refusedSecurity(err)) {
		return fmt.Errorf("none of %s could be created: %w", checkup.Count(len(create), "agent"), err)
	}
	for i, a := range m.agents {
		a.refused = errs[i]
	}
	return m.run(ctx, deadline)
}

// prepare returns the agent that carries out an order, and what creates it.
func (f *Fleet) prepare(w *checkup.Worksheet, order checkup.Order) (*agent, func(context.Context) error, error) {
	if w.Sources[order.Source].Inside {
		a, err := f.agentInside(w, order)
		if err != nil {
			return nil, nil, err
		}
		return a, func(ctx context.Context) error { return f.insert(ctx, w, a) }, nil
	}
	pod, err := f.agent(w, order.Source)
	if err != nil {
		return nil, nil, err
	}
	cms, err := ordersOf(pod, order)
	if err != nil {
		return nil, nil, err
	}
	return newAgent(w, order, pod.Name), func(ctx context.Context) error {
		for _, cm := range cms {
			if err := f.writeOrder(ctx, cm); err != nil {
				return err
			}
		}
		return f.advise(f.create(ctx, pod), pod)
	}, nil
}

// idle says why a source has no agent; nil if it has nothing to measure.
func idle(w *checkup.Worksheet, source int) *checkup.Cause {
	switch {
	case len(w.Assignments[source]) == 0:
		return nil
	case w.Sources[source].Inside && w.Sources[source].Cause != nil:
		return w.Sources[source].Cause
	case w.Sources[source].Node != "":
		return setupCause("no agent was started: none of its targets is ready")
	case w.Sources[source].Cause != nil:
		return w.Sources[source].Cause
	}
	return &checkup.Cause{Stage: checkup.StageSchedule, Message: "source is not scheduled: it runs on no node"}
}

// advise adds to an error what to do about it, where admission refused a pod because
// it is on the host network.
func (f *Fleet) advise(err error, pod *corev1.Pod) error {
	if !pod.Spec.HostNetwork || !apierrors.IsForbidden(err) {
		return err
	}
	if readsRules(&pod.Spec) {
		if !refusedSecurity(err) {
			return err
		}
		return fmt.Errorf("%w; an agent reads the rules of its node on the host network, as root with %s only: "+
			"allow it by kubectl label --overwrite namespace %s %s=privileged", err, rulesCapability, f.Namespace,
			checkup.LabelPodSecurity)
	}
	if refusedConstraints(err) {
		return fmt.Errorf("%w; the agent must be on the host network, as its component is: compile the plan with preset "+
			"openshift or auto, which grants its account for probe the use of hostnetwork-v2", err)
	}
	if !refusedSecurity(err) {
		return err
	}
	return fmt.Errorf("%w; the agent must be on the host network, as its component is: "+
		"allow it by kubectl label --overwrite namespace %s %s=privileged", err, f.Namespace, checkup.LabelPodSecurity)
}

// refusedSecurity reports whether pod security refused a pod.
func refusedSecurity(err error) bool {
	return apierrors.IsForbidden(err) && RefusedSecurity(err.Error())
}

// RefusedSecurity reports whether a message is that of an API server whose pod security refused a pod. Neither the
// error nor a condition that quotes it has a reason of its own for that (k8s.io/pod-security-admission/admission).
func RefusedSecurity(message string) bool { return strings.Contains(message, "violates PodSecurity") }

// refusedConstraints reports whether OpenShift's security context constraints refused a pod.
func refusedConstraints(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "security context constraint")
}

// writeOrder creates a ConfigMap of an agent's order, or overwrites the one of an
// earlier try.
func (f *Fleet) writeOrder(ctx context.Context, cm *corev1.ConfigMap) error {
	client := f.Client.CoreV1().ConfigMaps(f.Namespace)
	err := retry.Until(ctx, func() error {
		_, err := client.Create(ctx, cm, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			_, err = client.Update(ctx, cm, metav1.UpdateOptions{})
		}
		if apierrors.IsNotFound(err) { // it was deleted between the two requests
			_, err = client.Create(ctx, cm, metav1.CreateOptions{})
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("write the order of agent %s: %w", cm.Name, err)
	}
	return nil
}

// measuring is one run of Measure.
type measuring struct {
	*Fleet
	w        *checkup.Worksheet
	sink     ingest.Sink
	agents   []*agent
	stopping <-chan struct{} // closed when the task is stopped from outside
	slots    chan struct{}   // one for each open stream
	waiting  atomic.Int32    // agents that wait for a slot

	mu       sync.Mutex // guards progress, and serialises changed
	progress Progress
	changed  func(Progress)

	giving   sync.Mutex  // guards following
	giveUp   func()      // ends the waiting
	hopeless *time.Timer // runs while all agents that are waited for are stuck
}

// run reads the logs of all agents while one watch follows their pods.
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
		seen := func(a *agent, pod *corev1.Pod, gone bool) {
			a.mu.Lock()
			a.pod, a.gone = pod, gone
			first := !a.started && started(pod)
			a.started = a.started || first
			if first {
				a.began = time.Now()
			}
			a.mu.Unlock()
			if first {
				m.advance(func(p *Progress) { p.Started++ })
			}
			m.consider()
			select {
			case a.changed <- struct{}{}:
			default:
			}
		}
		if m.w.Inside() {
			m.poll(watching, seen)
			watched <- nil
			return
		}
		watched <- m.watch(watching, m.Labels(m.w.Check, checkup.RoleAgent), func(pod *corev1.Pod, gone bool) {
			if a := byName[pod.Name]; a != nil {
				seen(a, pod, gone)
			}
		})
		stop() // without the watch no state changes
	}()

	var wg sync.WaitGroup
	trouble := make([]string, len(m.agents)) // with reading its log, by agent
	for i, a := range m.agents {
		wg.Go(func() {
			if a.refused == nil {
				trouble[i] = m.collect(watching, a)
				a.cut = ctx.Err() != nil
				a.set(func() { a.done, a.ended = true, time.Now() })
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
	m.conclude(ctx, trouble)
	return nil
}

// conclude calls the sink with what became of each source. trouble is what went wrong
// with reading its log, by agent.
func (m *measuring) conclude(ctx context.Context, trouble []string) {
	var warnings map[string]Warning
	asked := false
	// The deadline of the pods is over, but not the time to find out why they ended.
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for i, a := range m.agents {
		s := a.reported.Report()
		s.Pod = m.Namespace + "/" + a.name
		if a.inside != nil {
			s.Pod = a.name
		}
		a.identify(&s)
		if a.refused != nil {
			s.Pod = ""
		}
		if a.missed() {
			if !asked && ctx.Err() == nil && a.inside == nil {
				warnings, asked = m.Warnings(after, "Pod"), true
			}
			s.Cause = a.cause(trouble[i], warnings[a.name])
			m.logf("::warning::source %s: %s", m.w.Sources[a.source].Name(), s.Cause)
		}
		if a.garbage > 0 {
			m.logf("::warning::source %s: %s of its agent's log ignored: not a valid message",
				m.w.Sources[a.source].Name(), checkup.Count(a.garbage, "line"))
		}
		m.LogDistrust("source", m.w.Sources[a.source].Name(), s)
		m.sink.Source(s)
	}
}

// LogDistrust logs why a source, an agent or a VM, is not trusted, if it is not.
func (f *Fleet) LogDistrust(what, name string, s checkup.Source) {
	if s.Unrequested > 0 {
		f.logf("::warning::%s %s reported %s: none of its pairs is trusted",
			what, name, checkup.Count(s.Unrequested, "unrequested pair"))
	}
	if len(s.Conflicts) > 0 {
		f.logf(
			"::warning::%s %s reported %s twice with different results",
			what,
			name,
			checkup.Count(len(s.Conflicts), "pair"),
		)
	}
}

// dismiss asks the agents that are still waited for to end, and gives them a while to
// report what they have: without it, what they measured since their last report would
// be lost. It returns when the while or ctx is over.
func (m *measuring) dismiss(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(m.Farewell, (grace+2)*time.Second))
	defer cancel()
	Sleep(ctx, m.retry()) // logs that waited for their turn are being opened
	Each(len(m.agents), func(i int) error {
		if _, waited := m.agents[i].stuck(); !waited || m.agents[i].inside != nil { // the pod is not ours
			return nil
		}
		period := int64(grace)
		options := metav1.DeleteOptions{GracePeriodSeconds: &period}
		return m.Client.CoreV1().Pods(m.Namespace).Delete(ctx, m.agents[i].name, options)
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

// advance changes the progress and reports it.
func (m *measuring) advance(change func(*Progress)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.progress)
	if m.changed != nil {
		m.changed(m.progress)
	}
}
