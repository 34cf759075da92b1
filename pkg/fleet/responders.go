// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/ingest"
)

// StartResponders starts a responder for every target of the worksheet that is
// a fixture and has a source, or Turns, waits until they are ready, for at most the
// worksheet's setup timeout, and fills in the roster: one entry per target. Entries of
// targets that existed before are left as the caller made them. A responder that is not
// ready in time is a Cause in its entry (stage setup). It gives up before the timeout
// when all that are not ready have been stuck for as long as Patience. Then it creates the worksheet's Services, for
// which it keeps a quarter of the timeout.
//
// progress, if not nil, is called whenever the number of ready responders changes.
func (f *Fleet) StartResponders(
	ctx context.Context,
	w *checkup.Worksheet,
	roster *checkup.Roster,
	progress func(ready, of int),
) error {
	deadline, cancel := context.WithTimeout(ctx, time.Duration(w.Timeouts.Setup))
	defer cancel()
	var pods []*corev1.Pod
	var targets []int // of pods
	for t, degree := range w.InDegrees() {
		switch {
		case !w.Targets[t].IsFixture():
			continue
		case degree == 0 && !w.Targets[t].Turns():
			roster.Targets[t].Cause = &checkup.Cause{
				Stage:   checkup.StageSetup,
				Message: "no responder was started: the sample has no source for it",
			}
			continue
		}
		pod, err := f.responder(w, t)
		if err != nil {
			return fmt.Errorf("responder for %s: %w", w.Targets[t].Name(), err)
		}
		pods, targets = append(pods, pod), append(targets, t)
	}
	if len(pods) > 0 {
		f.logf("starting %s", checkup.Count(len(pods), "responder"))
	}
	errs := Each(len(pods), func(i int) error { return f.create(deadline, pods[i]) })
	if err := EveryOne(errs); err != nil && ctx.Err() == nil {
		return fmt.Errorf("none of %s could be created: %w", checkup.Count(len(pods), "responder"), err)
	}
	waiting := map[string]int{} // by the pod's name, the target
	for i, t := range targets {
		if errs[i] != nil {
			roster.Targets[t].Cause = setupCause("its responder was not created: " + OneLine(errs[i].Error()))
			continue
		}
		waiting[pods[i].Name] = t
	}
	var left map[string]*corev1.Pod
	if len(waiting) > 0 {
		wait := deadline
		if len(w.Services) > 0 { // one slow responder must leave time for the Services of the others
			end, _ := deadline.Deadline()
			var cancel context.CancelFunc
			wait, cancel = context.WithDeadline(deadline, end.Add(-time.Duration(w.Timeouts.Setup)/4))
			defer cancel()
		}
		var err error
		if left, err = f.awaitReady(wait, w, roster, waiting, len(pods), progress); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("wait for responders: %w", context.Cause(ctx))
	}
	if len(left) > 0 {
		warnings := f.Warnings(ctx, "Pod")
		for name, t := range waiting {
			pod, ok := left[name]
			switch {
			case !ok:
			case pod == nil:
				roster.Targets[t].Cause = setupCause("its responder was deleted before it was ready")
			default:
				roster.Targets[t].Cause = setupCause("its responder is not ready: " + explain(pod, warnings[name]).Message)
			}
		}
	}
	if err := f.startServices(deadline, w, roster); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("wait for Services: %w", context.Cause(ctx))
	}
	for t, e := range roster.Targets {
		if e.Cause != nil {
			f.logf("::warning::target %s: %s", w.Targets[t].Name(), e.Cause.Message)
		}
	}
	return nil
}

// setupCause is a Cause of the stage in which targets are set up.
func setupCause(message string) *checkup.Cause {
	return &checkup.Cause{Stage: checkup.StageSetup, Message: message}
}

// awaitReady watches until each waiting responder is ready, and then in the roster, or
// has ended, or ctx ends. It returns the last state of those that are not ready, nil for
// those that were deleted.
func (f *Fleet) awaitReady(
	ctx context.Context,
	w *checkup.Worksheet,
	roster *checkup.Roster,
	waiting map[string]int,
	of int,
	progress func(ready, of int),
) (map[string]*corev1.Pod, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	left := map[string]*corev1.Pod{} // not ready, in their last state
	for name := range waiting {
		left[name] = nil
	}
	ended := map[string]bool{} // in left, and nothing to wait for
	var patience *time.Timer   // runs while all that are waited for are stuck
	consider := func() {
		if progress != nil {
			progress(len(waiting)-len(left), of)
		}
		hope := slices.ContainsFunc(slices.Collect(maps.Keys(left)), func(name string) bool {
			return !ended[name] && (left[name] == nil || !stuck(left[name]))
		})
		switch {
		case len(left) == len(ended):
			cancel()
		case hope && patience != nil:
			patience.Stop()
			patience = nil
		case !hope && patience == nil:
			patience = time.AfterFunc(f.patience(), cancel)
		}
	}
	consider()
	err := f.watch(ctx, f.Labels(w.Check, checkup.RoleResponder), func(pod *corev1.Pod, gone bool) {
		if _, ok := left[pod.Name]; !ok {
			return
		}
		switch {
		case gone:
			left[pod.Name], ended[pod.Name] = nil, true
		case over(pod):
			left[pod.Name], ended[pod.Name] = pod, true
		case up(pod):
			delete(left, pod.Name)
			roster.Targets[waiting[pod.Name]] = entry(pod)
			f.logf("%d of %s ready: %s", len(waiting)-len(left), checkup.Count(of, "responder"),
				w.Targets[waiting[pod.Name]].Name())
		default:
			left[pod.Name] = pod
		}
		consider()
	})
	if patience != nil {
		patience.Stop()
	}
	return left, err
}

// TakeOver makes this task's pod the owner of the responders of a check: they are
// deleted with this pod, and no longer with setup's. A responder that was deleted gets a
// Cause in the roster.
func (f *Fleet) TakeOver(ctx context.Context, w *checkup.Worksheet, roster *checkup.Roster) error {
	targets := responders(w, roster)
	errs := Each(len(targets), func(i int) error {
		return f.own(ctx, checkup.ObjectName(f.RunUID, w.Check, checkup.RoleResponder, w.Targets[targets[i]].Name()))
	})
	for i, t := range targets {
		switch err := errs[i]; {
		case apierrors.IsNotFound(err):
			roster.Targets[t].Cause = setupCause("its responder was deleted after setup")
			f.logf("::warning::target %s: %s", w.Targets[t].Name(), roster.Targets[t].Cause.Message)
			errs[i] = nil
		case err != nil:
			errs[i] = fmt.Errorf("take over the responder of %s: %w", w.Targets[t].Name(), err)
		}
	}
	return errors.Join(errs...)
}

// staying are the responders that do not end before their check does.
func staying(w *checkup.Worksheet, roster *checkup.Roster) []int {
	return slices.DeleteFunc(responders(w, roster), func(t int) bool { return w.Targets[t].Ends })
}

// responders are the targets that have a responder which was ready.
func responders(w *checkup.Worksheet, roster *checkup.Roster) []int {
	var targets []int
	for t, e := range roster.Targets {
		if w.Targets[t].IsFixture() && e.Cause == nil {
			targets = append(targets, t)
		}
	}
	return targets
}

// Lost reads the state of the responders after probing and gives those that ended
// before, and are not to, a Cause in the roster: an answer that is missing because the responder ended is
// no fact about the network.
func (f *Fleet) Lost(ctx context.Context, w *checkup.Worksheet, roster *checkup.Roster) error {
	alive := staying(w, roster)
	if len(alive) == 0 {
		return nil
	}
	list, err := f.pods(ctx, metav1.ListOptions{LabelSelector: f.Labels(w.Check, checkup.RoleResponder).String()})
	if err != nil {
		return fmt.Errorf("read the state of the responders: %w", err)
	}
	pods := map[string]*corev1.Pod{}
	for i, pod := range list.Items {
		pods[pod.Namespace+"/"+pod.Name] = &list.Items[i]
	}
	for _, t := range alive {
		switch pod := pods[roster.Targets[t].Pod]; {
		case pod == nil:
			roster.Targets[t].Cause = setupCause("lost while probing: its responder was deleted")
		case over(pod):
			roster.Targets[t].Cause = setupCause("lost while probing: " + explain(pod, Warning{}).Message)
		default:
			continue
		}
		f.logf("::warning::target %s: %s", w.Targets[t].Name(), roster.Targets[t].Cause.Message)
	}
	return nil
}

// maxCounts is how many bytes of a responder's log are read: kubelets keep 10 MiB of a log by default
// (containerLogMaxSize), and a log that is not followed ends there.
const maxCounts = 256 << 20

// Receptions reads from the responders' logs what each received, and calls received
// for each log that is complete and could be read to its end, one call at a time. A responder
// whose log cannot be read only costs the knowledge of the direction of a loss. Before, it
// waits until the responders have reported the last requests: they report every 200 ms.
func (f *Fleet) Receptions(
	ctx context.Context,
	w *checkup.Worksheet,
	roster *checkup.Roster,
	received func(target int, of []checkup.Reception),
) {
	targets := staying(w, roster)
	if _, counted := w.Probe(checkup.UDP); counted && len(targets) > 0 {
		Sleep(ctx, f.retry()/2)
	}
	var mu sync.Mutex // serialises received
	read := func(t int) error {
		name := checkup.ObjectName(f.RunUID, w.Check, checkup.RoleResponder, w.Targets[t].Name())
		log, err := f.Log(ctx, name, &corev1.PodLogOptions{})
		if err != nil {
			return fmt.Errorf("responder %s: %w", w.Targets[t].Name(), err)
		}
		defer log.Close()
		receptions := ingest.NewReceptions(w, t)
		garbage, err := ingest.Lines(ingest.Limited(log, maxCounts), receptions.Take)
		if err != nil {
			return fmt.Errorf("responder %s: %w", w.Targets[t].Name(), err)
		}
		if garbage > 0 {
			f.logf("::warning::target %s: %s of its responder's log ignored: not a count of an expected pair",
				w.Targets[t].Name(), checkup.Count(garbage, "line"))
		}
		if !receptions.Complete() {
			return fmt.Errorf("responder %s: its log is not complete", w.Targets[t].Name())
		}
		mu.Lock()
		defer mu.Unlock()
		received(t, receptions.All())
		return nil
	}
	// One more try, after all others: a kubelet that is away fails each, and must not keep the time of the rest.
	var errs []error
	for try := 0; try < 2 && len(targets) > 0; try++ {
		if try > 0 && !Sleep(ctx, f.retry()) {
			break
		}
		errs = Each(len(targets), func(i int) error { return read(targets[i]) })
		var failed []int
		for i, err := range errs {
			if err != nil {
				failed = append(failed, targets[i])
			}
		}
		targets = failed
	}
	if err := errors.Join(errs...); err != nil {
		f.logf("::warning::cannot read what some responders received: %s", OneLine(err.Error()))
	}
}
