// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/ingest"
)

// agent is one agent and what is known of it.
type agent struct {
	source  int
	name    string // of its pod; namespace/name if it is inside an existing one
	inside  *inside
	refused error // why its pod or container was not created
	// reported is what arrived. Only the goroutine that reads the log uses it and the
	// following.
	reported *ingest.Source
	settled  int  // results that arrived, or never will because an observation says why
	expected int  // results of its whole order; 0 where pairs are reported as observations
	garbage  int  // lines of the log that are not valid messages
	cut      bool // measuring was stopped while it was still waited for

	changed chan struct{} // holds one token when the following changed

	mu      sync.Mutex // guards following
	pod     *corev1.Pod
	gone    bool
	started bool
	began   time.Time // when it was seen to have started
	ended   time.Time // when nobody read its log any more
	mute    bool      // its kubelet did not return its log the last time
	done    bool      // nobody waits for it any more
}

func newAgent(w *checkup.Worksheet, order checkup.Order, name string) *agent {
	a := &agent{
		source: order.Source, name: name,
		reported: ingest.NewSource(w, order.Source), changed: make(chan struct{}, 1),
	}
	if order.Connections == nil {
		return a
	}
	for _, target := range order.Targets {
		for p := range w.PairsBetween(order.Source, target.Target) {
			a.expected += w.Measurements(p)
		}
	}
	return a
}

// stuck reports whether the agent is in a state that usually lasts, and whether it is
// waited for at all.
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

// state returns the pod as the watch reported it last; nil before it did.
func (a *agent) state() (pod *corev1.Pod, gone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pod, a.gone
}

// identify says which pod the agent was, as the watch reported it last, and when it measured.
func (a *agent) identify(s *checkup.Source) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pod != nil {
		s.UID, s.Addresses = string(a.pod.UID), addressesOf(a.pod)
	}
	if a.started {
		s.Began, s.Ended = a.began.UTC(), a.ended.UTC()
	}
}

// missed reports whether less arrived than the agent reported, or whether it was
// stopped before it had reported everything.
func (a *agent) missed() bool { return !a.reported.Complete() || a.cut && a.settled < a.expected }

// cause says why not everything arrived from an agent. trouble is what went wrong
// with reading its log, or empty; event is the last warning about its pod.
func (a *agent) cause(trouble string, event Warning) *checkup.Cause {
	pod, gone := a.state()
	end := a.reported.End()
	c := checkup.Cause{Stage: checkup.StageCollect}
	switch {
	case a.refused != nil:
		c = checkup.Cause{Stage: checkup.StageStart, Message: OneLine(a.refused.Error())}
	case a.cut && (pod == nil || !started(pod)):
		c = checkup.Cause{Stage: checkup.StageStart, Message: "the probe task was stopped before the agent started"}
	case a.cut:
		c.Message = "the probe task was stopped before the agent ended"
	case end != nil && a.reported.Results() < end.Results:
		c.Message = fmt.Sprintf("the agent reported %d results, but its log has only %d of them",
			end.Results, a.reported.Results())
	case end != nil && end.Tables > 0:
		c.Message = fmt.Sprintf("the agent reported %d tables, but its log has not all of them", end.Tables)
	case end != nil:
		c.Message = fmt.Sprintf("the agent reported %d observations, but its log has not all of them", end.Observations)
	case gone && a.inside != nil:
		c.Message = "the source pod was deleted or replaced before its agent ended"
	case a.inside != nil && pod != nil && pod.Status.Reason == reasonPodEnded:
		c.Message = "the source pod ended before its agent did"
	case gone && !started(pod):
		c = checkup.Cause{Stage: checkup.StageStart, Message: "the agent's pod was deleted before it started"}
	case gone:
		c.Message = "the agent's pod was deleted before it ended"
	case pod == nil:
		c = checkup.Cause{Stage: checkup.StageStart, Message: "the API server reported nothing about the agent's pod"}
	case !started(pod):
		c = explain(pod, event)
	case over(pod):
		c.Message = explain(pod, event).Message
		if !a.reported.Begun() && trouble == "" {
			c.Stage = checkup.StageStart
		}
	case trouble != "":
		c.Message = "the agent's log could not be read to its end"
	default:
		c.Message = "the agent did not end in time"
	}
	if a.refused == nil {
		c.Message = and(c.Message, trouble)
	}
	if warning := event.String(); event.Reason == reasonNodeNotReady && !strings.Contains(c.Message, warning) {
		c.Message = and(c.Message, warning)
	}
	return &c
}

// reasonNodeNotReady is that of the node lifecycle controller's event about each pod of a node that is not ready.
const reasonNodeNotReady = "NodeNotReady"

// and adds to a message, unless there is nothing to add.
func and(message, more string) string {
	if more == "" {
		return message
	}
	return message + "; " + more
}
