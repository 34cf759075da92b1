// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/dynamic"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// RetireOptions say whose objects are looked through.
type RetireOptions struct {
	Dynamic   dynamic.Interface
	Namespace string
	// Worksheet of the check, with Connections: what is expected, and how long the
	// objects of other pairs stay.
	Worksheet *checkup.Worksheet
	// Started is when the run began.
	Started time.Time
}

// Retire looks through the objects of a check after a run. Those of pairs that
// the worksheet does not expect become Unknown when their last result is older
// than staleAfter, and are deleted when it is older than retention; where there
// is none, their own age counts. Those of expected pairs are never deleted; they
// become Unknown if the run gave them no result and staleAfter was over before it
// began, as where its probe task never ran.
//
// The error joins those of all objects that could not be read or written; the
// others are done all the same.
func Retire(ctx context.Context, o RetireOptions) (deleted int, err error) {
	w := o.Worksheet
	if w.Connections == nil {
		return 0, nil
	}
	expected := map[string]bool{}
	for p := range w.Pairs() {
		if w.Targets[p.Target].Peer != nil {
			expected[checkup.ConnectivityName(w.Sources[p.Source], w.Targets[p.Target])] = true
		}
	}
	objects := o.Dynamic.Resource(Resource).Namespace(o.Namespace)
	now := time.Now()
	var (
		mu       sync.Mutex // guards deleted and problems
		problems []error
		group    errgroup.Group
	)
	group.SetLimit(writesAtOnce)
	own := metav1.ListOptions{LabelSelector: labels.SelectorFromSet(ownLabels(w.Plan, w.Check)).String()}
	err = eachObject(ctx, objects, own, func(u *unstructured.Unstructured) error {
		group.Go(func() error {
			gone, err := retire(ctx, objects, u, expected[u.GetName()], w.Connections.Checks, o.Started, now)
			mu.Lock()
			defer mu.Unlock()
			if gone {
				deleted++
			}
			if err != nil {
				problems = append(problems, err)
			}
			return nil
		})
		return nil
	})
	_ = group.Wait()
	if err != nil {
		problems = append(problems, fmt.Errorf("list %ss in namespace %s: %w", Kind, o.Namespace, err))
	}
	return deleted, errors.Join(problems...)
}

// retire does what is due for one object.
func retire(ctx context.Context, objects dynamic.ResourceInterface, u *unstructured.Unstructured, expected bool, c checkup.ConnectivityChecks, started, now time.Time) (deleted bool, err error) {
	status, err := statusOf(u)
	if err != nil {
		return false, err
	}
	last, what := newest(&status), "no result since "
	if last.IsZero() {
		last, what = u.GetCreationTimestamp().Time, "never a result since "
	}
	age := now.Sub(last)
	if expected {
		age = started.Sub(last)
	} else if age >= time.Duration(c.Retention) {
		// Not if a run wrote it since it was read: then it is expected by that one.
		uid, version := u.GetUID(), u.GetResourceVersion()
		err := objects.Delete(ctx, u.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}})
		switch {
		case apierrors.IsNotFound(err), apierrors.IsConflict(err):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("delete %s %s: %w", Kind, u.GetName(), err)
		}
		return true, nil
	}
	if age < time.Duration(c.StaleAfter) || reachable(&status).Status == metav1.ConditionUnknown {
		return false, nil
	}
	message := what + last.UTC().Format(time.RFC3339)
	if !expected {
		message += "; the pair is no longer expected"
	}
	h := history{settled: status, id: identity{label: targetLabel(u, reachable(&status).Message)}}
	h.unknown(ReasonNoRecentResult, message, now)
	configuration := statusConfiguration(u.GetNamespace(), u.GetName(), &h.settled)
	configuration.SetResourceVersion(u.GetResourceVersion()) // likewise
	_, err = objects.ApplyStatus(ctx, u.GetName(), configuration, metav1.ApplyOptions{FieldManager: checkup.ManagedBy, Force: true})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return false, fmt.Errorf("write the status of %s %s: %w", Kind, u.GetName(), err)
	}
	return false, nil
}

// targetLabel is what messages call the target of a pair of which only the
// object is known: as its condition did, or else by its endpoint.
func targetLabel(u *unstructured.Unstructured, message string) string {
	if label, _, ok := strings.Cut(message, ": "); ok {
		return label
	}
	endpoint, _, _ := unstructured.NestedString(u.Object, "spec", "targetEndpoint")
	return endpoint
}
