// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/retry"
)

// fixture is a pod, ConfigMap or Service of a fleet.
type fixture struct {
	kind string // "pod", "configmap" or "service"
	metav1.ObjectMeta
	node string // of a pod
	// idle marks a preflight pod that has started no container. It is deleted without
	// waiting for its kubelet, which keeps trying to set up its network.
	idle bool
}

func (x fixture) String() string { return x.kind + "/" + x.Name }

// pods lists pods of the namespace.
func (f *Fleet) pods(ctx context.Context, options metav1.ListOptions) (*corev1.PodList, error) {
	return retry.Get(ctx, func() (*corev1.PodList, error) {
		return f.Client.CoreV1().Pods(f.Namespace).List(ctx, options)
	})
}

// list returns the fixtures that the selector matches, those of each kind by name.
func (f *Fleet) list(ctx context.Context, selector string) ([]fixture, error) {
	options := metav1.ListOptions{LabelSelector: selector}
	pods, err := f.pods(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("list fixtures: %w", err)
	}
	cms := &corev1.ConfigMapList{}
	if !f.Alone {
		cms, err = retry.Get(ctx, func() (*corev1.ConfigMapList, error) {
			return f.Client.CoreV1().ConfigMaps(f.Namespace).List(ctx, options)
		})
		if err != nil {
			return nil, fmt.Errorf("list fixtures: %w", err)
		}
	}
	var found []fixture
	for _, p := range pods.Items {
		found = append(
			found,
			fixture{
				"pod",
				p.ObjectMeta,
				p.Spec.NodeName,
				p.Labels[checkup.LabelRole] == string(checkup.RolePreflight) && !started(&p),
			},
		)
	}
	for _, c := range cms.Items {
		found = append(found, fixture{"configmap", c.ObjectMeta, "", false})
	}
	if f.Services {
		list, err := retry.Get(ctx, func() (*corev1.ServiceList, error) {
			return f.Client.CoreV1().Services(f.Namespace).List(ctx, options)
		})
		if err != nil {
			return nil, fmt.Errorf("list fixtures: %w", err)
		}
		for _, s := range list.Items {
			found = append(found, fixture{"service", s.ObjectMeta, "", false})
		}
	}
	slices.SortFunc(found, func(a, b fixture) int {
		return cmp.Or(-cmp.Compare(a.kind, b.kind), cmp.Compare(a.Name, b.Name))
	})
	return found, nil
}

// Left returns the names of the fixtures of the run that still exist, as kind/name.
func (f *Fleet) Left(ctx context.Context) ([]string, error) {
	found, err := f.list(ctx, f.fixtures())
	names := make([]string, len(found))
	for i, x := range found {
		names[i] = x.String()
	}
	return names, err
}

// Remove deletes every fixture of the run and waits until they are gone, or ctx
// is done. It returns the names of what is left, as kind/name.
//
// A pod whose kubelet does not answer would be Terminating for as long as its node is
// away. A pod that still exists some time after its grace period (Force) is therefore
// force-deleted; the kubelet ends its containers when it comes back and finds that the
// pod was deleted. The time decides that, not the node's condition: this needs no right
// on nodes, and also works for a kubelet that hangs on a node that is Ready.
func (f *Fleet) Remove(ctx context.Context) (left []string, err error) {
	asked := map[types.UID]time.Time{}
	var problems error
	var denials Denials
	for {
		found, err := f.list(ctx, f.fixtures())
		if err != nil {
			if ctx.Err() == nil && retry.Passing(err) && Sleep(ctx, f.retry()) {
				continue
			}
			return left, errors.Join(problems, err)
		}
		left = left[:0]
		for _, x := range found {
			left = append(left, x.String())
		}
		if len(found) == 0 {
			return nil, nil
		}
		orders := f.deletions(found, asked)
		errs := Each(len(found), func(i int) error {
			if orders[i] == nil {
				return nil
			}
			return f.remove(ctx, found[i], *orders[i])
		})
		for i, err := range errs {
			if err != nil {
				delete(asked, found[i].UID)
			}
		}
		problems = errors.Join(errs...)
		wait := f.retry()
		if problems == nil && len(found) <= few {
			wait /= 4
		}
		if denials.Final(problems) || !Sleep(ctx, wait) {
			return left, problems
		}
	}
}

// few is the largest number of fixtures that Remove lists four times a second. Of more, a list is costly. Most pods are
// gone about a second after the request: a kubelet looks every second which of its containers have exited.
const few = 100

// Denials are those of requests that a loop makes again and again. The zero value has no denials.
type Denials struct{ since time.Time }

// Final notes the error of a try, and reports whether it is a denial that is useless to try again. An API server that
// has just started denies everything for some seconds (retry.Final).
func (d *Denials) Final(err error) bool {
	if !apierrors.IsForbidden(err) {
		d.since = time.Time{}
		return false
	}
	if d.since.IsZero() {
		d.since = time.Now()
	}
	return retry.Final(err, time.Since(d.since))
}

// deletions says for each fixture how it is to be deleted now: nil if its deletion was
// requested before and it has time left. asked holds since when, by UID.
func (f *Fleet) deletions(found []fixture, asked map[types.UID]time.Time) []*metav1.DeleteOptions {
	now := f.now()
	options := make([]*metav1.DeleteOptions, len(found))
	for i, x := range found {
		since, before := asked[x.UID]
		period := int64(grace)
		if x.idle {
			period = 0
		}
		if before {
			if x.kind != "pod" || now.Sub(since) <= grace*time.Second+cmp.Or(f.Force, 15*time.Second) {
				continue
			}
			f.logf(
				"::warning::%s on node %s did not end: force-deleted; the node's kubelet ends its containers when it answers again",
				x,
				x.node,
			)
			period = 0
		}
		asked[x.UID] = now
		options[i] = &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &found[i].UID}}
		if x.kind == "pod" {
			options[i].GracePeriodSeconds = &period
		}
	}
	return options
}

// remove deletes one fixture. It is no error if the fixture is gone, or if its name now
// belongs to another object.
func (f *Fleet) remove(ctx context.Context, x fixture, options metav1.DeleteOptions) error {
	var err error
	switch x.kind {
	case "pod":
		err = f.Client.CoreV1().Pods(f.Namespace).Delete(ctx, x.Name, options)
	case "service":
		err = f.Client.CoreV1().Services(f.Namespace).Delete(ctx, x.Name, options)
	default:
		err = f.Client.CoreV1().ConfigMaps(f.Namespace).Delete(ctx, x.Name, options)
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete %s: %w", x, err)
	}
	return nil
}

// Sweep deletes the fixtures of other runs of the plan that no run needs any longer:
// those whose AnnotationExpires has passed, which is some time after their own end. It
// does not wait, and does not read the runs, which would need a right to. It returns how
// many it deleted.
func (f *Fleet) Sweep(ctx context.Context) (int, error) {
	var stale []fixture
	for _, role := range roles() {
		found, err := f.list(ctx, labels.Set{checkup.LabelPlan: f.Plan, checkup.LabelRole: role}.String())
		if err != nil {
			return 0, err
		}
		for _, x := range found {
			expires, err := time.Parse(time.RFC3339, x.Annotations[AnnotationExpires])
			if err == nil && expires.Before(f.now()) && x.Labels[checkup.LabelRun] != f.RunUID {
				stale = append(stale, x)
			}
		}
	}
	errs := Each(len(stale), func(i int) error {
		return f.remove(ctx, stale[i], metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &stale[i].UID}})
	})
	n := 0
	for _, err := range errs {
		if err == nil {
			n++
		}
	}
	return n, errors.Join(errs...)
}

const (
	// evidencePods is the number of pods of which evidence is kept: enough to see a
	// pattern.
	evidencePods = 20
	// evidenceLog is how much of a log is kept, from its end, in bytes.
	evidenceLog = 64 << 10
)

// Evidence reads what is known of the fixture pods of the run that went wrong, of at
// most 20 of them: responders that are not ready, others that did not succeed. What
// cannot be read is left out, except the manifest.
func (f *Fleet) Evidence(ctx context.Context) ([]checkup.PodEvidence, error) {
	list, err := f.pods(ctx, metav1.ListOptions{LabelSelector: f.fixtures()})
	if err != nil {
		return nil, fmt.Errorf("list fixtures: %w", err)
	}
	var wrong []*corev1.Pod
	for i := range list.Items {
		pod := &list.Items[i]
		fine := pod.Status.Phase == corev1.PodSucceeded
		if checkup.Role(pod.Labels[checkup.LabelRole]) == checkup.RoleResponder {
			fine = up(pod)
		}
		if !fine {
			wrong = append(wrong, pod)
		}
	}
	if len(wrong) == 0 {
		return nil, nil
	}
	slices.SortFunc(wrong, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	if n := len(wrong); n > evidencePods {
		f.logf("keeping evidence of the first %d of %d pods that went wrong", evidencePods, n)
		wrong = wrong[:evidencePods]
	}
	warnings := f.Warnings(ctx, "Pod")
	kept := make([]checkup.PodEvidence, len(wrong))
	Each(len(wrong), func(i int) error {
		pod := wrong[i]
		pod.ManagedFields, pod.TypeMeta = nil, metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"} // lists omit the type
		kept[i] = checkup.PodEvidence{
			Pod: pod.Name, Check: pod.Labels[checkup.LabelCheck], Node: pod.Spec.NodeName,
			Problem: explain(pod, Warning{}).Message, Warning: warnings[pod.Name].String(), Manifest: Manifest(pod),
		}
		if !started(pod) {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // its kubelet may not answer
		defer cancel()
		log, err := f.Log(ctx, pod.Name, &corev1.PodLogOptions{})
		if err != nil {
			kept[i].Log = OneLine("cannot be read: " + err.Error())
			return nil
		}
		defer log.Close()
		kept[i].Log = Tail(log, evidenceLog)
		return nil
	})
	return kept, nil
}

// Manifest is an object as JSON; nil if it cannot be encoded.
func Manifest(object any) json.RawMessage {
	raw, err := json.Marshal(object)
	if err != nil {
		return nil
	}
	return raw
}

// Tail returns the last n bytes of the reader, until it ends or fails.
func Tail(r io.Reader, n int) string {
	var end []byte
	buf := make([]byte, n)
	for {
		m, err := r.Read(buf)
		end = append(end, buf[:m]...)
		end = end[max(0, len(end)-n):]
		if err != nil {
			return string(end)
		}
	}
}
