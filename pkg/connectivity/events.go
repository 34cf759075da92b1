// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/openshift/api/operatorcontrolplane/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/crd"
)

// Reasons of events, OpenShift's.
const (
	EventOutageDetected = "ConnectivityOutageDetected" // a Warning
	EventRestored       = "ConnectivityRestored"
)

// Limits on events, as in OpenShift's operators: above the limit, events are held back and then combined into one event
// per node and reason. Those operators count in consecutive windows and have a second limit, 600 in 10 min. Here the
// first limit applies to any 30 s, which implies the second.
const (
	burstEvents  = 30
	burstPeriod  = 30 * time.Second
	holdBack     = 30 * time.Minute
	maxEventText = 16 << 10 // bytes of a summary; etcd holds each for an hour
)

// event is an event of a node.
type event struct {
	node    string
	kind    string // corev1.EventTypeNormal or EventTypeWarning
	reason  string
	message string
	at      time.Time // when it happened
	first   time.Time // of a summary: time of its first event; zero for other events
	count   int32     // of a summary: number of its events; 0 for other events
	key     string    // identifies the event: a retry does not create it twice
}

// detected is the event of the start of an outage.
func (id identity) detected(o v1alpha1.OutageEntry) event {
	e := event{
		node: id.node, kind: corev1.EventTypeWarning, reason: EventOutageDetected,
		message: "Connectivity outage detected", at: o.Start.Time,
		key: id.name + o.Start.UTC().Format(time.RFC3339Nano),
	}
	if n := len(o.StartLogs); n > 0 {
		e.message += ": " + o.StartLogs[n-1].Message
	}
	return e
}

// restored is the event of the end of an outage.
func (id identity) restored(o v1alpha1.OutageEntry) event {
	e := event{
		node: id.node, kind: corev1.EventTypeNormal, reason: EventRestored,
		message: restored(&o), at: o.End.Time,
		key: id.name + o.Start.UTC().Format(time.RFC3339Nano),
	}
	if len(o.EndLogs) > 0 {
		e.message += ": " + o.EndLogs[0].Message
	}
	return e
}

// recorder creates events, within the limits.
type recorder struct {
	events    corev1client.EventInterface // in namespace default, as all events of nodes; nil means no events
	namespace string                      // of the objects
	run       string                      // UID
	logf      func(string, ...any)

	mu      sync.Mutex  // guards following
	recent  []time.Time // when events were added, in the last burstPeriod
	until   time.Time   // events before this time are held back; zero means none are
	held    []*summary  // of the events that are held back, in the order of the first event of each
	waiting []event     // to be sent
	trouble error       // why the first waiting event was not sent; it is retried
	pause   time.Time   // no try before
}

// summary is the held events of a node and reason. It has a bound, unlike their number: a control plane that flaps for
// half an hour has a million events.
type summary struct {
	first, last event
	count       int32
	text        strings.Builder // a line for each event, up to maxEventText
	omitted     int             // events after the text
}

// add takes one more event.
func (s *summary) add(e event) {
	if s.count == 0 {
		s.first = e
	}
	s.last = e
	s.count++
	line := fmt.Sprintf("%s: %s\n", e.at.UTC().Format(time.RFC3339), e.message)
	if s.omitted > 0 || s.text.Len()+len(line) > maxEventText {
		s.omitted++
		return
	}
	s.text.WriteString(line)
}

// event is all events in one.
func (s *summary) event() event {
	e := s.last
	if s.count == 1 {
		return e
	}
	e.first, e.count = s.first.at, s.count
	e.key = "summary " + s.first.key + s.last.key
	if s.omitted > 0 {
		fmt.Fprintf(&s.text, "and %d more\n", s.omitted)
	}
	e.message = strings.TrimSuffix(s.text.String(), "\n")
	return e
}

// add sends an event, or holds it back.
func (r *recorder) add(now time.Time, e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.events == nil {
		return
	}
	r.release(now)
	r.recent = slices.DeleteFunc(r.recent, func(t time.Time) bool { return now.Sub(t) >= burstPeriod })
	if r.until.IsZero() && len(r.recent) >= burstEvents {
		r.until = now.Add(holdBack)
	}
	if !r.until.IsZero() {
		r.hold(e)
		return
	}
	r.recent = append(r.recent, now)
	r.waiting = append(r.waiting, e)
}

// hold adds an event to the summary of its node and reason. r.mu is held.
func (r *recorder) hold(e event) {
	at := slices.IndexFunc(r.held, func(s *summary) bool { return s.last.node == e.node && s.last.reason == e.reason })
	if at < 0 {
		at = len(r.held)
		r.held = append(r.held, &summary{})
	}
	r.held[at].add(e)
}

// release combines the held events when their time is over. r.mu is held.
func (r *recorder) release(now time.Time) {
	if !r.until.IsZero() && !now.Before(r.until) {
		r.sumUp()
	}
}

// flush combines the held events; the next send does not wait.
func (r *recorder) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pause = time.Time{}
	r.sumUp()
}

// sumUp sends the summaries of the held events. r.mu is held.
func (r *recorder) sumUp() {
	for _, s := range r.held {
		r.waiting = append(r.waiting, s.event())
	}
	r.held, r.until = nil, time.Time{}
}

// send creates the waiting events and reports whether none is left. An event that already exists was created by an
// earlier try.
func (r *recorder) send(ctx context.Context, now time.Time) bool {
	r.mu.Lock()
	r.release(now)
	waiting := r.waiting
	if now.Before(r.pause) {
		waiting = nil
	}
	r.mu.Unlock()
	sent := 0
	var trouble error
	for _, e := range waiting {
		one, cancel := context.WithTimeout(ctx, crd.Timeout)
		_, err := r.events.Create(one, r.object(e), metav1.CreateOptions{FieldManager: checkup.ManagedBy})
		cancel()
		switch {
		case err == nil, apierrors.IsAlreadyExists(err):
		case passing(err):
			trouble = fmt.Errorf("create event %s of node %s: %w", e.reason, e.node, err)
		default:
			r.logf("event %s of node %s was discarded: %v", e.reason, e.node, err)
		}
		if trouble != nil {
			break
		}
		sent++
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = r.waiting[sent:]
	if trouble != nil && ctx.Err() == nil {
		if r.trouble == nil && apierrors.IsForbidden(trouble) {
			r.logf("%v; retrying", trouble)
		}
		r.trouble, r.pause = trouble, now.Add(retryFirst)
		if apierrors.IsForbidden(trouble) {
			r.pause = now.Add(retryMost)
		}
	}
	if sent > 0 && trouble == nil {
		r.trouble = nil
	}
	return len(r.waiting) == 0
}

// forbidden reports whether the right to create the waiting event is missing.
func (r *recorder) forbidden() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return apierrors.IsForbidden(r.trouble)
}

// object converts the event to the API's type.
func (r *recorder) object(e event) *corev1.Event {
	sum := sha256.Sum256([]byte(strings.Join([]string{r.namespace, e.key, e.reason}, "\x00")))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:16])
	first := e.first
	if first.IsZero() {
		first = e.at
	}
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name:      strings.TrimRight(e.node[:min(len(e.node), 200)], "-.") + "." + hash, // at most 253 characters
			Namespace: metav1.NamespaceDefault,
		},
		// The UID is the node's name, as in the kubelet's events: kubectl describe
		// finds them by it.
		InvolvedObject:      corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: e.node, UID: types.UID(e.node)},
		Type:                e.kind,
		Reason:              e.reason,
		Message:             e.message,
		Source:              corev1.EventSource{Component: checkup.ManagedBy},
		ReportingController: "checkplan.dev/connectivity",
		ReportingInstance:   r.run,
		FirstTimestamp:      metav1.NewTime(first),
		LastTimestamp:       metav1.NewTime(e.at),
		Count:               max(1, e.count),
	}
}

// remains returns an error if events could not be created.
func (r *recorder) remains() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.waiting); n > 0 {
		why := r.trouble
		if why == nil {
			why = context.DeadlineExceeded
		}
		return fmt.Errorf("%d events of outages could not be created: %w", n, why)
	}
	return nil
}
