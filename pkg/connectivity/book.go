// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/openshift/api/operatorcontrolplane/v1alpha1"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/crd"
)

// How often objects are written.
const (
	// steadyEvery and steadyResults limit the age and the number of unwritten results of an object whose condition
	// does not change.
	steadyEvery   = 30 * time.Second
	steadyResults = 20
	// steadyPerSecond limits such writes over all objects. If there are too many objects for steadyEvery, each is
	// written less often: 10,000 objects every 400 s, which is within the default staleAfter.
	steadyPerSecond = 25
	// batchSize is the number of writes after which the most urgent ones are selected again.
	batchSize = 64
	// retryFirst doubles up to retryMost while the API server is unavailable; each retry writes one object, always
	// another one. An object that fails while others are written waits for itself, from retryFirst to retryRefused. One
	// that the API server rejects is retried after retryRefused.
	retryFirst   = time.Second
	retryMost    = 5 * time.Second
	retryRefused = time.Minute
	// forbidden is how long startup 403s are tolerated: Open and Close then give up.
	forbidden = 5 * time.Second
	// listEvery is how often Open tries to list the objects, until listTimeout.
	listEvery   = 2 * time.Second
	listTimeout = time.Minute
	// refusedLines is how many rejected objects are logged individually.
	refusedLines = 5
	// idle is how often Run checks whether a write is due.
	idle = time.Second
	// clockSlack is how far the clocks of nodes may be apart.
	clockSlack = time.Minute
)

// staleIntervals is the number of intervals without a result after which a pair is Unknown.
const staleIntervals = 3

// Options configure a Book.
type Options struct {
	Dynamic dynamic.Interface
	// Kubernetes writes the events. Nil means none.
	Kubernetes kubernetes.Interface
	// Namespace of the run.
	Namespace string
	// RunUID of the PipelineRun, the reporting instance of events.
	RunUID string
	// Worksheet of the check, with Connections.
	Worksheet *checkup.Worksheet
	// Logf writes one log line. Nil means no log.
	Logf func(format string, args ...any)
}

// Book writes one object for each pair of a worksheet. It is a ingest.Sink. Its methods may be called concurrently, but
// Close only after Run.
type Book struct {
	objects   dynamic.ResourceInterface
	namespace string
	labels    map[string]string
	ages      map[string]string // annotations
	logf      func(string, ...any)
	opened    time.Time
	earliest  time.Time     // no result of this run can be older
	longest   int64         // no delay of this run can be longer, in microseconds
	steady    time.Duration // between steady writes of one object
	stretched time.Duration // likewise, with any number of results
	events    *recorder
	wake      chan struct{} // a write may be due

	mu       sync.Mutex // guards following, and the pairs
	pairs    []*pair
	byIndex  map[[2]int]*pair // by source and target
	limiter  *rate.Limiter
	trouble  error         // the last failed write; nil after a successful one
	since    time.Time     // when writes began to fail
	backoff  time.Duration // wait before the next try
	pause    time.Time     // no try before
	refused  int           // number of rejected objects that were logged
	sourceOf map[int][]*pair
	wrong    map[int]time.Duration // what is added to the times of a source whose clock is wrong
}

// pair is the state of one pair in a Book.
type pair struct {
	history
	stale time.Duration // age at which the last result is too old
	hold  time.Duration // how late a result may arrive
	known time.Time     // time of the newest result at Open

	heard   time.Time      // when the last result arrived; zero if none arrived in this run
	source  *checkup.Cause // of the source
	cause   *checkup.Cause // of the pair
	unheard bool           // the condition is Unknown

	state    metav1.ConditionStatus // of the condition, after the newest result
	recorded []span                 // outages for which events were recorded

	there   bool      // the object exists, and its labels and spec are right
	urgent  bool      // does not wait for steadyEvery
	changes int       // unwritten results and other changes
	written time.Time // time of the last write of the status
	tried   time.Time // time of the last write, also of one that failed
	failing time.Time // time of the first of the failed writes since written; zero if there is none
	retry   time.Time // no write before: the last one failed
	refused error     // nil if the API server did not reject the last write
}

// span is an outage for which events were recorded.
type span struct{ start, end time.Time }

// Open reads the existing objects of the pairs. Run creates the missing ones. An object with a pair's name that is not
// ours is not changed, and the pair is not written.
//
// Open needs the CRD (EnsureCRD). It waits up to a minute for an unavailable API server.
func Open(ctx context.Context, o Options) (*Book, error) {
	w := o.Worksheet
	if w.Connections == nil {
		return nil, fmt.Errorf("check %s has no connections: cannot write %ss", w.Check, Kind)
	}
	b := &Book{
		objects:   o.Dynamic.Resource(Resource).Namespace(o.Namespace),
		namespace: o.Namespace,
		labels:    ownLabels(w.Plan, w.Check),
		ages:      ageAnnotations(w.Connections.Checks),
		logf:      o.Logf,
		opened:    time.Now(),
		longest:   w.MaxDelay(),
		wake:      make(chan struct{}, 1),
		byIndex:   map[[2]int]*pair{},
		limiter:   rate.NewLimiter(crd.PerSecond, crd.Burst),
		sourceOf:  map[int][]*pair{},
		wrong:     map[int]time.Duration{},
	}
	// An earlier try of the task may have begun this long ago.
	b.earliest = b.opened.Add(-time.Duration(w.ProbeTimeout()) - clockSlack)
	if b.logf == nil {
		b.logf = func(string, ...any) {}
	}
	b.events = &recorder{namespace: o.Namespace, run: o.RunUID, logf: b.logf}
	if o.Kubernetes != nil {
		b.events.events = o.Kubernetes.CoreV1().Events(metav1.NamespaceDefault)
	}
	live, err := b.list(ctx)
	if err != nil {
		return nil, err
	}
	b.expect(w, live)
	b.stretched = time.Duration(len(b.pairs)) * time.Second / steadyPerSecond
	b.steady = max(steadyEvery, b.stretched)
	return b, nil
}

// list reads all objects of the namespace, including those of others, by name.
func (b *Book) list(ctx context.Context) (map[string]*unstructured.Unstructured, error) {
	live := map[string]*unstructured.Unstructured{}
	var last error
	begin := time.Now()
	err := wait.PollUntilContextTimeout(ctx, listEvery, listTimeout, true, func(ctx context.Context) (bool, error) {
		clear(live)
		err := crd.Each(ctx, b.objects, metav1.ListOptions{}, func(u *unstructured.Unstructured) error {
			live[u.GetName()] = u
			return nil
		})
		if err == nil {
			return true, nil
		}
		if last == nil || ctx.Err() == nil { // the earlier error says more than the timeout
			last = err
		}
		if apierrors.IsForbidden(last) && time.Since(begin)+listEvery > forbidden {
			return false, last
		}
		return false, nil
	})
	if err != nil {
		if last == nil {
			last = err
		}
		return nil, fmt.Errorf("list %ss in namespace %s: %w", Kind, b.namespace, last)
	}
	return live, nil
}

// expect creates the pairs of the worksheet, with the history of their objects.
func (b *Book) expect(w *checkup.Worksheet, live map[string]*unstructured.Unstructured) {
	names := map[string]checkup.Pair{}
	for p := range w.Pairs() {
		source, target := w.Sources[p.Source], w.Targets[p.Target]
		if target.Peer == nil {
			continue // no known address
		}
		id := identify(source, target)
		if other, twice := names[id.name]; twice {
			b.logf("%s for %s to %s is not written: its name %s is already used for %s to %s", Kind, source.Name(),
				target.Name(), id.name, w.Sources[other.Source].Name(), w.Targets[other.Target].Name())
			continue
		}
		names[id.name] = p
		probe, _ := w.Probe(p.Transport)
		one := &pair{
			history: history{id: id},
			source:  source.Cause,
			stale:   max(time.Duration(w.Connections.Checks.StaleAfter), staleIntervals*time.Duration(probe.Interval)),
			hold:    time.Duration(w.Connections.Deadlines.Sum() + probe.Interval),
			changes: 1, urgent: true,
		}
		if object, ok := live[id.name]; ok {
			if !managed(object) {
				b.logf("%s for %s to %s is not written: the object %s belongs to %s", Kind, source.Name(), target.Name(),
					id.name, owner(object))
				continue
			}
			b.remember(one, object)
		}
		b.pairs = append(b.pairs, one)
		b.byIndex[[2]int{p.Source, p.Target}] = one
		b.sourceOf[p.Source] = append(b.sourceOf[p.Source], one)
	}
}

// remember loads the history of an object.
func (b *Book) remember(p *pair, object *unstructured.Unstructured) {
	_, cert, _ := unstructured.NestedMap(object.Object, "spec", "tlsClientCert")
	p.there = p.id.matches(object, b.labels, b.ages) && cert == (p.id.cert != "")
	status, err := statusOf(object)
	if err != nil {
		b.logf("cannot read the history of %s, which starts again: %v", p.id.name, err)
		return
	}
	upTo(b.opened, &status)
	p.settled = status
	p.state = reachable(&status).Status
	p.known = begun(&status)
	for _, o := range status.Outages {
		p.recorded = append(p.recorded, span{o.Start.Time, o.End.Time})
	}
	if p.there {
		p.changes, p.urgent = 0, false
		p.written = b.opened
	}
}

// Results adds measurements to the pairs. The next write contains them.
func (b *Book) Results(results []checkup.Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	var changed []*pair
	change := func(p *pair) {
		if !slices.Contains(changed, p) {
			changed = append(changed, p)
		}
	}
	for _, r := range results {
		p := b.byIndex[[2]int{r.Source, r.Target}]
		if p == nil {
			continue
		}
		if r.Unmeasured != nil {
			p.cause = r.Unmeasured
			continue
		}
		if r.Delays.Longest() > b.longest {
			p.cause = &checkup.Cause{Stage: checkup.StageCollect, Message: fmt.Sprintf(
				"the numbers do not add up: a delay of %d µs, of at most %d", r.Delays.Longest(), b.longest)}
			continue
		}
		r.At = b.timeOf(r, now)
		if !r.At.After(p.known) && r.At.Before(b.opened) {
			p.heard = now
			continue // an earlier try of this task recorded it
		}
		late := len(p.recent) > 0 && r.At.Before(p.recent[len(p.recent)-1].At)
		if !p.add(r, p.hold) {
			continue
		}
		p.heard, p.cause, p.unheard = now, nil, false
		p.changes++
		state := metav1.ConditionTrue
		if r.Failure != nil {
			state = metav1.ConditionFalse
		}
		switch {
		case late: // may split an outage or start it earlier
			change(p)
		case state != p.state:
			p.state = state
			change(p)
		case p.changes == steadyResults:
			b.nudge()
		}
	}
	for _, p := range changed {
		p.urgent = true
		b.announce(p, now)
	}
	if len(changed) > 0 {
		b.nudge()
	}
}

// timeOf returns the time of a result by this machine's clock, if that of its source is wrong: no result is older than
// the run or from the future. b.mu is held.
func (b *Book) timeOf(r checkup.Result, now time.Time) time.Time {
	possible := func(t time.Time) bool { return !t.Before(b.earliest) && !t.After(now.Add(clockSlack)) }
	if possible(r.At) {
		delete(b.wrong, r.Source)
		return r.At
	}
	by, known := b.wrong[r.Source]
	if !known || !possible(r.At.Add(by)) {
		by = now.Sub(r.At)
		b.wrong[r.Source] = by
		if !known {
			b.logf("the clock of source %d is wrong by %v: its results get the time of their arrival",
				r.Source, by.Round(time.Second))
		}
	}
	return r.At.Add(by)
}

// Observation records that a source could not measure a pair.
func (b *Book) Observation(o checkup.Observation) {
	if o.Unmeasured == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.byIndex[[2]int{o.Source, o.Target}]; p != nil {
		p.cause = o.Unmeasured
		if p.heard.IsZero() {
			b.lose(p, time.Now())
		}
	}
}

// Source records how a source ended. If it failed, its pairs without a result become Unknown at once, the others when
// their last result is too old.
func (b *Book) Source(s checkup.Source) {
	if s.Cause == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.sourceOf[s.Source] {
		p.source = s.Cause
		if p.heard.IsZero() {
			b.lose(p, time.Now())
		}
	}
}

// nudge wakes Run.
func (b *Book) nudge() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// lose sets a pair's condition to Unknown, once. b.mu is held.
func (b *Book) lose(p *pair, now time.Time) {
	if p.unheard {
		return
	}
	reason, message := p.why(now, b.opened)
	p.unknown(reason, message, now)
	p.state, p.unheard = metav1.ConditionUnknown, true
	p.changes++
	p.urgent = true
	b.nudge()
}

// why returns reason and message of the condition Unknown. They do not change while the pair stays Unknown.
func (p *pair) why(now, opened time.Time) (reason, message string) {
	since := "no result"
	last := newest(p.status())
	switch {
	case !p.heard.IsZero():
		since = fmt.Sprintf("no result for %s", now.Sub(p.heard).Round(time.Second))
	case !last.IsZero():
		since = fmt.Sprintf("no result since this run began to measure at %s; the last result is from %s",
			opened.UTC().Format(time.RFC3339), last.UTC().Format(time.RFC3339))
	}
	switch {
	case p.cause != nil:
		return ReasonNotMeasured, fmt.Sprintf("%s: %s", since, p.cause)
	case p.source != nil:
		return ReasonSourceNotReporting, fmt.Sprintf("%s: %s", since, p.source)
	}
	return ReasonNoRecentResult, since
}

// expire sets the condition of pairs to Unknown whose last result is too old. b.mu is held.
func (b *Book) expire(now time.Time) {
	for _, p := range b.pairs {
		last := p.heard
		if last.IsZero() {
			last = b.opened
		}
		if now.Sub(last) >= p.stale {
			b.lose(p, now)
		}
	}
}

// announce records events of outages that began or ended. b.mu is held.
func (b *Book) announce(p *pair, now time.Time) {
	outages := p.status().Outages
	for _, o := range slices.Backward(outages) {
		// An outage that starts earlier because of a late result is the same outage.
		i := slices.IndexFunc(p.recorded, func(t span) bool {
			return t.start.Equal(o.Start.Time) || t.start.After(o.Start.Time) && (o.End.IsZero() || t.start.Before(o.End.Time))
		})
		if i < 0 {
			p.recorded = append(p.recorded, span{start: o.Start.Time})
			i = len(p.recorded) - 1
			b.events.add(now, p.id.detected(o))
		}
		if t := &p.recorded[i]; t.end.IsZero() && !o.End.IsZero() {
			t.end = o.End.Time
			b.events.add(now, p.id.restored(o))
		}
	}
	if n := len(p.recorded) - 2*maxOutages; n > 0 {
		p.recorded = slices.Delete(p.recorded, 0, n)
	}
}

// Run writes due objects until the context ends. Failed writes are logged and retried; results that arrive in the
// meantime are kept.
func (b *Book) Run(ctx context.Context) {
	for ctx.Err() == nil {
		timer := time.NewTimer(b.step(ctx))
		select {
		case <-ctx.Done():
		case <-b.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// step writes a batch of due objects, and the events. It returns the time to wait before the next step.
func (b *Book) step(ctx context.Context) time.Duration {
	b.mu.Lock()
	now := time.Now()
	b.expire(now)
	if wait := b.pause.Sub(now); wait > 0 {
		b.mu.Unlock()
		return min(wait, idle)
	}
	due := b.due(func(p *pair) bool { return b.isDue(p, now) })
	most := b.batch()
	n := min(len(due), most, max(0, int(b.limiter.TokensAt(now))))
	b.limiter.AllowN(now, n)
	batch := b.take(due[:n])
	b.mu.Unlock()

	b.write(ctx, batch)
	b.events.send(ctx, time.Now())
	switch {
	case n < len(due) && n < most: // wait for tokens
		return time.Second * crd.AtOnce / crd.PerSecond
	case n < len(due):
		return 0
	}
	return idle
}

// batch returns the maximum number of objects to write next. b.mu is held.
func (b *Book) batch() int {
	if b.trouble != nil {
		return 1
	}
	return batchSize
}

// isDue reports whether a pair must be written now. b.mu is held.
func (b *Book) isDue(p *pair, now time.Time) bool {
	if p.changes == 0 || now.Before(p.retry) {
		return false
	}
	age := now.Sub(p.written)
	return p.urgent || age >= b.steady || p.changes >= steadyResults && age >= b.stretched
}

// due returns the due pairs: urgent ones first, then by the time of their last write. b.mu is held.
func (b *Book) due(is func(*pair) bool) []*pair {
	var due []*pair
	for _, p := range b.pairs {
		if is(p) {
			due = append(due, p)
		}
	}
	last := func(p *pair) time.Time { // a write that failed does not keep others from being tried
		if p.tried.After(p.written) {
			return p.tried
		}
		return p.written
	}
	first := func(p *pair) bool { return p.urgent && p.failing.IsZero() }
	slices.SortStableFunc(due, func(a, z *pair) int {
		if first(a) != first(z) {
			if first(a) {
				return -1
			}
			return 1
		}
		return last(a).Compare(last(z))
	})
	return due
}

// job is one object to be written.
type job struct {
	p       *pair
	status  *v1alpha1.PodNetworkConnectivityCheckStatus
	there   bool
	changes int
	err     error
}

// take makes jobs from the current state of pairs. b.mu is held.
func (b *Book) take(pairs []*pair) []*job {
	jobs := make([]*job, len(pairs))
	for i, p := range pairs {
		jobs[i] = &job{p: p, status: p.status(), there: p.there, changes: p.changes}
		p.urgent = false
	}
	return jobs
}

// write writes a batch and records the results.
func (b *Book) write(ctx context.Context, batch []*job) {
	group := errgroup.Group{}
	group.SetLimit(crd.AtOnce)
	for _, j := range batch {
		group.Go(func() error {
			one, cancel := context.WithTimeout(ctx, crd.Timeout)
			defer cancel()
			j.there, j.err = b.put(one, j)
			return nil // each job has its own error
		})
	}
	_ = group.Wait()

	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	var trouble error
	written := slices.ContainsFunc(batch, func(j *job) bool { return j.err == nil })
	for _, j := range batch {
		p := j.p
		p.there, p.tried = j.there, now
		if j.err != nil && p.failing.IsZero() {
			p.failing = now
		}
		switch {
		case j.err == nil:
			p.written, p.failing, p.refused = now, time.Time{}, nil
			p.changes -= j.changes
		case passing(j.err) && !written:
			p.urgent = true
			trouble = j.err
		case passing(j.err): // it is this object: the API server writes others
			if p.refused == nil && b.refused < refusedLines {
				b.logf("%v; other objects are written; retried", j.err)
				b.refused++
			}
			p.urgent, p.refused = true, j.err
			p.retry = now.Add(min(max(retryFirst, now.Sub(p.failing)), retryRefused))
		default:
			if p.refused == nil && b.refused < refusedLines {
				b.logf("%v; retried every %s", j.err, retryRefused)
				b.refused++
			}
			p.urgent, p.refused, p.retry = true, j.err, now.Add(retryRefused)
		}
	}
	switch {
	case trouble != nil && ctx.Err() == nil:
		if b.trouble == nil {
			b.logf("%v; results are kept and written when the API server is available again", trouble)
			b.backoff = retryFirst
			b.since = now
		}
		b.pause = now.Add(b.backoff)
		b.backoff = min(2*b.backoff, retryMost)
		b.trouble = trouble
	case trouble == nil && written && b.trouble != nil:
		b.logf("writing %ss succeeds again", Kind)
		b.trouble = nil
	}
}

// put writes one object: labels and spec if needed, and the status. It reports whether labels and spec are then right:
// if someone changed them in the meantime, the next write corrects them.
func (b *Book) put(ctx context.Context, j *job) (there bool, err error) {
	id := j.p.id
	force := metav1.ApplyOptions{FieldManager: checkup.ManagedBy, Force: true} // of our fields
	there = j.there
	for {
		created := false
		if !there {
			if _, err := b.objects.Apply(ctx, id.name, id.object(b.namespace, b.labels, b.ages), force); err != nil {
				return false, fmt.Errorf("write %s %s: %w", Kind, id.name, err)
			}
			there, created = true, true
		}
		if len(j.status.Conditions) == 0 {
			return true, nil // no result yet
		}
		live, err := b.objects.ApplyStatus(ctx, id.name, statusConfiguration(b.namespace, id.name, j.status), force)
		switch {
		case apierrors.IsNotFound(err) && !created:
			there = false // someone deleted it
		case err != nil:
			return there, fmt.Errorf("write the status of %s %s: %w", Kind, id.name, err)
		default:
			return id.matches(live, b.labels, b.ages), nil
		}
	}
}

// passing reports whether a write can succeed later without a change of the object: the API server is unavailable,
// starting or busy. A starting API server answers not found before it serves the CRD, and forbidden before it has read
// its roles.
func passing(err error) bool {
	return !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) &&
		!apierrors.IsRequestEntityTooLargeError(err) && !apierrors.IsMethodNotSupported(err)
}

// Close writes all unwritten results and events as fast as the API server accepts them, and waits for an unavailable
// one. Pairs without a result in this run become Unknown. Call it after Run has returned, with a context that has time
// left. The error reports how many objects could not be written, and why.
func (b *Book) Close(ctx context.Context) error {
	b.mu.Lock()
	now := time.Now()
	b.expire(now)
	for _, p := range b.pairs {
		if p.heard.IsZero() {
			b.lose(p, now)
		}
		p.retry, p.refused = time.Time{}, nil
	}
	b.pause = time.Time{}
	b.events.flush()
	b.mu.Unlock()
	for {
		b.mu.Lock()
		now := time.Now()
		wait := b.pause.Sub(now)
		left := b.due(func(p *pair) bool { return p.changes > 0 && !p.hopeless(now) })
		ready := slices.DeleteFunc(slices.Clone(left), func(p *pair) bool { return now.Before(p.retry) })
		var batch []*job
		if wait <= 0 {
			batch = b.take(ready[:min(len(ready), b.batch())])
			if len(batch) == 0 {
				wait = idle
			}
		}
		b.mu.Unlock()
		if len(left) == 0 { // events last: the objects contain the same facts
			if b.events.send(ctx, time.Now()) || b.events.forbidden() {
				break
			}
			wait = retryFirst
		}
		b.write(ctx, batch)
		if len(batch) > 0 && b.isForbidden() {
			break
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			break
		}
	}
	return b.remains()
}

// hopeless reports whether Close need not try again to write the pair.
func (p *pair) hopeless(now time.Time) bool {
	return p.refused != nil && (!passing(p.refused) || apierrors.IsForbidden(p.refused) && now.Sub(p.failing) >= forbidden)
}

// CloseTime is how long Close may take to write all objects.
func (b *Book) CloseTime() time.Duration {
	return time.Duration(len(b.pairs)) * time.Second / crd.PerSecond
}

// isForbidden reports whether writes have been forbidden for longer than during a startup.
func (b *Book) isForbidden() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return apierrors.IsForbidden(b.trouble) && time.Since(b.since) >= forbidden
}

// remains returns an error for what could not be written.
func (b *Book) remains() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	why := b.trouble
	for _, p := range b.pairs {
		if p.changes > 0 {
			n++
			if p.refused != nil {
				why = p.refused
			}
		}
	}
	var problems []error
	if n > 0 {
		if why == nil {
			why = errors.New("no time left")
		}
		problems = append(problems, fmt.Errorf("%d of %d %ss could not be written: %w", n, len(b.pairs), Kind, why))
	}
	if err := b.events.remains(); err != nil {
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}
