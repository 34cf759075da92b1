// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/retry"
)

// tries is how often a request that failed for a passing reason is made.
const tries = 5

// Each calls do for each index below n, at most `concurrency` at a time, and returns
// its errors by index.
func Each(n int, do func(i int) error) []error {
	errs := make([]error, n)
	var group errgroup.Group
	group.SetLimit(concurrency)
	for i := range n {
		group.Go(func() error {
			errs[i] = do(i)
			return nil
		})
	}
	_ = group.Wait() // the errors are in errs
	return errs
}

// EveryOne returns the first error if none of several attempts succeeded: what is
// refused to all is not a fact about one node. It is nil if there were no attempts.
func EveryOne(errs []error) error {
	for _, err := range errs {
		if err == nil {
			return nil
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return errs[0]
}

// create creates the pod, or adopts the one that an earlier try of the task created:
// this task's pod becomes its owner. If a pod of that name is being deleted, create
// waits; if it has failed, create replaces it.
func (f *Fleet) create(ctx context.Context, pod *corev1.Pod) error {
	pods := f.Client.CoreV1().Pods(f.Namespace)
	for try := 1; ; {
		_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			var old *corev1.Pod
			old, err = pods.Get(ctx, pod.Name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err): // it was deleted between the two requests
				continue
			case err != nil:
			case old.Labels[checkup.LabelRun] != f.RunUID:
				return fmt.Errorf("create pod %s: a pod of that name belongs to another run; delete it", pod.Name)
			case old.DeletionTimestamp == nil && old.Status.Phase != corev1.PodFailed:
				if old.Labels[checkup.LabelRole] == string(checkup.RolePreflight) { // over in a moment
					return nil
				}
				return f.own(ctx, pod.Name)
			case old.DeletionTimestamp == nil:
				err = pods.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &old.UID}})
				if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
					return fmt.Errorf("replace pod %s of an earlier try: %w", pod.Name, err)
				}
				fallthrough
			default:
				if !Sleep(ctx, f.retry()) {
					return fmt.Errorf("create pod %s: one of an earlier try is still being deleted: %w", pod.Name, context.Cause(ctx))
				}
				continue
			}
		}
		if err == nil {
			return nil
		}
		if try++; try > tries || !retry.Passing(err) || !Sleep(ctx, f.retry()) {
			return fmt.Errorf("create pod %s: %w", pod.Name, err)
		}
	}
}

// own makes this task's pod the only owner of a pod.
func (f *Fleet) own(ctx context.Context, pod string) error {
	// A merge patch replaces the list as a whole, the earlier task's pod with it.
	if err := f.patch(ctx, pod, map[string]any{"ownerReferences": f.Owners()}); err != nil {
		return fmt.Errorf("make pod %s the owner of pod %s: %w", f.Owner, pod, err)
	}
	return nil
}

// patch changes the metadata of a pod by a merge patch.
func (f *Fleet) patch(ctx context.Context, pod string, metadata map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return fmt.Errorf("encode the change: %w", err)
	}
	return retry.Until(ctx, func() error {
		_, err := f.Client.CoreV1().Pods(f.Namespace).Patch(ctx, pod, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

// watch calls seen with every state of every pod that the labels select, and with gone
// when it is deleted, one call at a time, until ctx ends; then it returns nil. It keeps
// trying to list and watch when the API server does not answer. An error means that
// there is no right to watch.
func (f *Fleet) watch(ctx context.Context, of labels.Set, seen func(pod *corev1.Pod, gone bool)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		worked atomic.Bool               // a watch was opened
		since  atomic.Pointer[time.Time] // the first denial after that, or ever; nil if there was none
	)
	pods := f.Client.CoreV1().Pods(f.Namespace)
	list := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = of.String()
			return pods.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = of.String()
			w, err := pods.Watch(ctx, o)
			if err == nil {
				worked.Store(true)
				since.Store(nil)
			}
			return w, err
		},
	}
	informer := cache.NewSharedIndexInformer(
		cache.ToListWatcherWithWatchListSemantics(list, f.Client),
		&corev1.Pod{},
		0,
		cache.Indexers{},
	)
	err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
			return
		}
		since.CompareAndSwap(nil, new(time.Now()))
		first := since.Load()
		if first == nil {
			return // the watch has just been opened
		}
		denied := time.Since(*first)
		if worked.Load() && denied > deniedFor || !worked.Load() && retry.Final(err, denied) {
			cancel(deniedError{err})
		}
	})
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { seen(o.(*corev1.Pod), false) },
		UpdateFunc: func(_, o any) { seen(o.(*corev1.Pod), false) },
		DeleteFunc: func(o any) {
			if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = unknown.Obj
			}
			if pod, ok := o.(*corev1.Pod); ok {
				seen(pod, true)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	informer.RunWithContext(ctx) // returns when the last call of seen has
	var denied deniedError
	if errors.As(context.Cause(ctx), &denied) {
		return fmt.Errorf("watch pods in namespace %s: %w", f.Namespace, denied.error)
	}
	return nil
}

// deniedFor is how long a watch that has worked may be denied until the denial counts:
// an API server that has just started denies everything for a second or two, until it
// has read its roles.
const deniedFor = 15 * time.Second

// deniedError is the cause with which a watch without a right to it is ended.
type deniedError struct{ error }
